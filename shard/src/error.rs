//! What can go wrong in a stage.

use paceline_proto::{Epoch, SessionId, StepId};

/// An error of running a stage. After one the stage runs nothing more: its memory may disagree with the
/// other stages'.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The device could not do it.
    #[error(transparent)]
    Device(#[from] paceline_compute::Error),
    /// A draft model that cannot be used.
    #[error(transparent)]
    Model(#[from] paceline_model::Error),
    /// A draft model's file that cannot be used.
    #[error(transparent)]
    File(#[from] paceline_gguf::Error),
    /// There is no draft model.
    #[error("the model was opened without another one that drafts for it")]
    NoDraft,
    /// The link could not do it.
    #[error(transparent)]
    Link(#[from] paceline_transport::Error),
    /// A step of another placement.
    #[error("a step of epoch {found} reached a stage of epoch {expected}")]
    Epoch {
        /// The step's.
        found: Epoch,
        /// The stage's.
        expected: Epoch,
    },
    /// A step is missing or came twice.
    #[error("step {found} came where step {expected} was due")]
    Order {
        /// The step's number.
        found: StepId,
        /// The number due.
        expected: StepId,
    },
    /// A step speaks of a session that this stage does not know.
    #[error("session {session} is not open on this stage")]
    UnknownSession {
        /// Whose.
        session: SessionId,
    },
    /// A frame after one that failed.
    #[error("the stage has failed before and runs nothing more")]
    Stopped,
    /// A session is opened twice.
    #[error("session {session} is open already")]
    OpenTwice {
        /// Whose.
        session: SessionId,
    },
    /// More tokens are told than the session is said to have.
    #[error("session {session} reuses {tokens} tokens, and {told} of them are told")]
    Reused {
        /// Whose.
        session: SessionId,
        /// How many it has.
        tokens: usize,
        /// How many are told.
        told: usize,
    },
    /// A chunk refers to a token that was never sampled.
    #[error("step {step} sampled no token for session {session}")]
    NotSampled {
        /// Whose.
        session: SessionId,
        /// The step it was to come from.
        step: StepId,
    },
    /// The token of an earlier step reached a stage behind the head, which should have put it in its place.
    #[error("session {session} runs the token that step {step} sampled; the head should have put it in its place")]
    Unresolved {
        /// Whose.
        session: SessionId,
        /// The step it comes from.
        step: StepId,
    },
    /// A session is given a state slot that another one has.
    #[error("state slot {slot} is session {owner}'s, session {session} cannot have it")]
    SlotTaken {
        /// The slot.
        slot: usize,
        /// Who has it.
        owner: SessionId,
        /// Who should get it.
        session: SessionId,
    },
    /// A page that this stage does not have.
    #[error("page {page} of session {session} does not exist; there are {pages}")]
    UnknownPage {
        /// Whose.
        session: SessionId,
        /// The page.
        page: u32,
        /// How many there are, from 0.
        pages: usize,
    },
    /// More than was reserved when the stage was loaded.
    #[error("{found} {what}, but {limit} were reserved")]
    OverLimit {
        /// Of what.
        what: &'static str,
        /// How many.
        found: usize,
        /// The most possible.
        limit: usize,
    },
    /// A chunk without rows.
    #[error("the chunk of session {session} has no rows")]
    EmptyChunk {
        /// Whose.
        session: SessionId,
    },
    /// Two chunks of one session in a step.
    #[error("session {session} has two chunks in step {step}")]
    TwoChunks {
        /// Whose.
        session: SessionId,
        /// In which step.
        step: StepId,
    },
    /// A chunk that goes past the pages that its session was granted.
    #[error("session {session} runs up to token {end}, its pages hold {granted}")]
    BeyondPages {
        /// Whose.
        session: SessionId,
        /// Tokens of the session after the chunk.
        end: usize,
        /// Tokens that its pages hold.
        granted: usize,
    },
    /// A chunk that does not go on where its session's tokens end, or where some of them may be rejected.
    #[error(
        "session {session} goes on at token {start} with {drafts} uncertain ones; {certain} of its tokens are certain, \
         and {uncertain} logged behind them"
    )]
    NotNext {
        /// Whose.
        session: SessionId,
        /// Where the chunk starts.
        start: usize,
        /// How many tokens up to its end it leaves uncertain.
        drafts: usize,
        /// How many tokens of the session are certain.
        certain: usize,
        /// How many follow that are not.
        uncertain: usize,
    },
    /// Drafts are tokens, and known when they are sent.
    #[error("the uncertain rows of session {session} are not tokens")]
    NotDrafts {
        /// Whose.
        session: SessionId,
    },
    /// A snapshot of a state whose log holds tokens.
    #[error(
        "the state in slot {slot} cannot be copied: {tokens} tokens of session {session} behind it are uncertain; \
         run a chunk without drafts first"
    )]
    Uncertain {
        /// Whose.
        session: SessionId,
        /// Its slot.
        slot: usize,
        /// How many tokens.
        tokens: usize,
    },
    /// Activations of another model.
    #[error("the frame carries rows of {found} values, this model's have {expected}")]
    Width {
        /// Values per row in the frame.
        found: usize,
        /// Values per row of the model.
        expected: usize,
    },
    /// The rows that came do not fit the step's chunks.
    #[error("the frame carries {found} values of activations, its chunks need {expected}")]
    Rows {
        /// Values there are.
        found: usize,
        /// Values needed.
        expected: usize,
    },
    /// Logits and samplers are at the tail only.
    #[error("this stage has no logits and no samplers, it is not the last of its row")]
    NotTail,
    /// A tail that computes other rows for its draft model than that reads.
    #[error("the draft model reads rows of {wanted} values beside the tail's results, the tail has {found}")]
    Features {
        /// Values per row that the tail has, 0 if it has no such rows.
        found: usize,
        /// Values per row that the draft model reads.
        wanted: usize,
    },
    /// A layer whose memories are not here.
    #[error("layer {layer} is none of this stage's")]
    UnknownLayer {
        /// Which.
        layer: usize,
    },
    /// Memories cannot be taken into a stage that has some already.
    #[error("the stage has run a step, or failed; only a new one takes over memories")]
    NotNew,
    /// A step was run while memories were given away.
    #[error("the stage goes on with step {step} while its memories are being taken")]
    RunsOn {
        /// The step that is due next.
        step: StepId,
    },
    /// More to say about sessions than is read.
    #[error("what is said about the sessions has {bytes} bytes, the limit is {limit}")]
    Head {
        /// Bytes there are.
        bytes: u64,
        /// The most possible.
        limit: u32,
    },
    /// What came from another stage does not fit.
    #[error("another stage gave {what}")]
    Memories {
        /// What is wrong with it.
        what: String,
    },
    /// What another stage says cannot be read.
    #[error(transparent)]
    Wire(paceline_proto::Error),
    /// A sampler of another stage that cannot be used here.
    #[error("the sampler of session {session}: {reason}")]
    Sampler {
        /// Whose.
        session: SessionId,
        /// Why not.
        reason: String,
    },
    /// Memories could not be written or read on their way.
    #[error("memories on their way: {0}")]
    Moving(std::io::Error),
    /// A step installs what no lower tier has brought.
    #[error("nothing is staged under ticket {ticket}")]
    NotStaged {
        /// The ticket.
        ticket: u64,
    },
    /// A step installs what was staged into other places than that needs.
    #[error("{staged} pages are staged under ticket {ticket}, {given} are given; or only one of them has a state")]
    OtherPlaces {
        /// The ticket.
        ticket: u64,
        /// Pages that are staged.
        staged: usize,
        /// Pages that are given.
        given: usize,
    },
    /// There is nothing to read.
    #[error("a text has no tokens")]
    EmptyText,
    /// A token that the model does not have.
    #[error("token {token} does not exist; the vocabulary has {vocabulary} tokens")]
    UnknownToken {
        /// The token.
        token: u32,
        /// How many there are.
        vocabulary: usize,
    },
    /// Two texts for a model that reads one.
    #[error("two texts are to be read as one, but the model cannot tell them apart")]
    NoPairs,
    /// A thread of the stage or of its disk tier could not be started.
    #[error("a thread could not be started: {0}")]
    Thread(std::io::Error),
}

/// A result with this crate's error.
pub type Result<T> = std::result::Result<T, Error>;
