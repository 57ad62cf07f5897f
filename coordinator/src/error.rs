//! Why a request is not served, or not to its end.

/// An error that a client can be told.
#[derive(Debug, Clone, thiserror::Error, PartialEq, Eq)]
pub enum Error {
    /// Nothing to go on from.
    #[error("the prompt has no tokens")]
    EmptyPrompt,
    /// A token id that the model does not have.
    #[error("token {token} does not exist, the vocabulary has {vocabulary} tokens")]
    TokenOutOfRange {
        /// The token.
        token: u32,
        /// Size of the vocabulary.
        vocabulary: usize,
    },
    /// Prompt and answer do not fit the context.
    #[error(
        "the prompt has {tokens} tokens, but the context of a session is {context} tokens and must hold at least one more"
    )]
    ContextLength {
        /// Tokens of the prompt.
        tokens: usize,
        /// The most tokens of a session.
        context: usize,
    },
    /// A text that is to be read has nothing in it.
    #[error("text {index} has no tokens")]
    EmptyText {
        /// Which of the request's texts, from 0.
        index: usize,
    },
    /// A text that is to be read at once is too long.
    #[error("text {index} has {tokens} tokens, the model reads {context} at most; cut it into parts")]
    TextLength {
        /// Which of the request's texts, from 0.
        index: usize,
        /// Its tokens, special ones included.
        tokens: usize,
        /// The most.
        context: usize,
    },
    /// More memory than there is.
    #[error("the session needs {needed} pages of keys and values, but there are {pages}")]
    NeverFits {
        /// Pages for prompt and answer.
        needed: usize,
        /// All pages.
        pages: usize,
    },
    /// A part of the request that the model's text side cannot use.
    #[error("{reason}")]
    Request {
        /// Which and why.
        reason: String,
    },
    /// Too many are waiting.
    #[error("{waiting} requests are waiting already, the limit is {limit}; try again later")]
    QueueFull {
        /// How many wait.
        waiting: usize,
        /// The most that may.
        limit: usize,
    },
    /// It waited too long.
    #[error("the request waited {seconds} s and was not admitted; try again later")]
    QueueDeadline {
        /// How long.
        seconds: u64,
    },
    /// The service stops.
    #[error("the service is shutting down")]
    ShuttingDown,
    /// Nothing runs until the stages are placed anew.
    #[error("the service is being restored: {reason}; try again later")]
    Restoring {
        /// What happened.
        reason: String,
    },
    /// A stage failed.
    #[error("the answer could not be completed: {reason}")]
    Lost {
        /// What the stage says.
        reason: String,
    },
    /// It cannot be pinned or dropped.
    #[error("these {tokens} tokens are not cached; send them as a request first")]
    NotCached {
        /// Tokens of the text.
        tokens: usize,
    },
    /// Others need room too.
    #[error("{reason}")]
    TooMuchPinned {
        /// The numbers.
        reason: String,
    },
    /// The reader of the answer is gone.
    #[error("the client left")]
    ClientLeft,
}

/// A result with this crate's error.
pub type Result<T> = std::result::Result<T, Error>;
