//! What can go wrong between text and tokens.

/// An error of this crate.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The file names a tokenizer family that is not built here.
    #[error("unknown tokenizer model {0:?}; known are gpt2, llama and bert")]
    UnknownModel(String),
    /// The file names a pre-tokenizer that is not built here; guessing one would give wrong tokens.
    #[error("unknown pre-tokenizer {name:?}; known are {known}")]
    UnknownPreTokenizer {
        /// The name in the file.
        name: String,
        /// The names that would have worked.
        known: String,
    },
    /// The metadata of the model file cannot be read.
    #[error("the tokenizer in the model file cannot be read")]
    Metadata(#[from] paceline_gguf::Error),
    /// A metadata key that the tokenizer cannot do without.
    #[error("the model file has no usable metadata key {0}")]
    MissingKey(&'static str),
    /// The vocabulary has no tokens or more than ids can count.
    #[error("the vocabulary has {0} tokens; between 1 and 2^31 are possible")]
    VocabularySize(usize),
    /// An array that runs parallel to the tokens has another length.
    #[error("the vocabulary has {tokens} tokens but {entries} {what}")]
    LengthMismatch {
        /// Number of tokens.
        tokens: usize,
        /// Number of entries of the other array.
        entries: usize,
        /// What the other array holds.
        what: &'static str,
    },
    /// Two ids with one spelling: encoding would be ambiguous.
    #[error("token {text:?} occurs twice in the vocabulary, as {first} and {second}")]
    DuplicateToken {
        /// The spelling.
        text: String,
        /// The lower id.
        first: u32,
        /// The higher id.
        second: u32,
    },
    /// A merge that is not two tokens.
    #[error("merge {index} ({merge:?}) is not two tokens of the vocabulary")]
    BadMerge {
        /// Position in the list of merges.
        index: usize,
        /// The text of the merge.
        merge: String,
    },
    /// A token that must stand for a byte does not say for which.
    #[error("byte token {id} is spelled {text:?}; expected <0x00> to <0xFF>")]
    BadByteToken {
        /// The token.
        id: u32,
        /// Its spelling.
        text: String,
    },
    /// Some text could not be written with this vocabulary at all.
    #[error("the vocabulary has no token for byte {0:#04x} and no unknown token")]
    MissingByte(u8),
    /// A special token id beyond the vocabulary.
    #[error("the {role} token is {id}, but the vocabulary has {tokens} tokens")]
    SpecialOutOfRange {
        /// Which special token.
        role: &'static str,
        /// Its id.
        id: u32,
        /// Number of tokens.
        tokens: usize,
    },
    /// The file asks for a token to be added to every text and does not say which.
    #[error("the vocabulary asks for a {0} token on every text but names none")]
    MissingSpecial(&'static str),
    /// A token id that is not in the vocabulary.
    #[error("token {id} is not in the vocabulary of {tokens}")]
    TokenOutOfRange {
        /// The id.
        id: u32,
        /// Number of tokens.
        tokens: usize,
    },
    /// A stop string without characters would stop every text at once.
    #[error("stop string {0} is empty")]
    EmptyStopString(usize),
    /// The model brings no chat template and its vocabulary is not ChatML's.
    #[error("the model has no chat template; use /v1/completions or give --chat-template")]
    NoChatTemplate,
    /// The chat template does not parse.
    #[error("the chat template does not compile: {0}")]
    TemplateSyntax(String),
    /// The template itself refused the conversation (`raise_exception`): the request is at fault.
    #[error("the chat template refuses the conversation: {0}")]
    TemplateRaised(String),
    /// The template failed on this conversation.
    #[error("the chat template fails: {0}")]
    TemplateFailed(String),
    /// The template ran too long, wrote too much or nested too deep.
    #[error("the chat template exceeds the limits on work and output: {0}")]
    TemplateLimit(String),
    /// No answer can be held to the grammar that is asked for.
    #[error("{0}")]
    Grammar(#[from] paceline_grammar::Error),
    /// A content part that is not text.
    #[error("message {message} has a content part of type {kind:?}; only text is supported")]
    UnsupportedContent {
        /// Position of the message.
        message: usize,
        /// The type it names.
        kind: String,
    },
    /// A message that has not the form of a chat message.
    #[error("message {message} is malformed: {problem}")]
    BadMessage {
        /// Position of the message.
        message: usize,
        /// What is wrong with it.
        problem: &'static str,
    },
}

impl Error {
    /// Whether the request is at fault (and not the model file or this program).
    pub fn is_client_error(&self) -> bool {
        matches!(
            self,
            Self::TokenOutOfRange { .. }
                | Self::EmptyStopString(_)
                | Self::TemplateRaised(_)
                | Self::UnsupportedContent { .. }
                | Self::BadMessage { .. }
        )
    }
}

/// Result of this crate.
pub type Result<T> = std::result::Result<T, Error>;
