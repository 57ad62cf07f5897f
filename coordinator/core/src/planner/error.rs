//! Why there is no placement.

use super::{MAX_THREADS, Memory, Speed, WouldFit, render::human};

/// The result of planning.
pub type Result<T> = std::result::Result<T, Error>;

/// Why a model cannot be placed as wished.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A wish that must not be zero.
    #[error("{what} is 0, at least 1 is needed")]
    Zero {
        /// Which.
        what: &'static str,
    },
    /// A host without threads, or with more than can be.
    #[error("the host has {threads} threads, 1 to {limit} are possible")]
    Threads {
        /// How many.
        threads: usize,
        /// The most.
        limit: usize,
    },
    /// Guesses by a block for multi-token prediction, of which there is not exactly one.
    #[error("the model has {blocks} blocks for multi-token prediction, drafts can be made with exactly one")]
    MtpBlocks {
        /// How many there are.
        blocks: usize,
    },
    /// Guesses by a model of its own, of which nothing is known.
    #[error("the model was opened without another one that drafts for it")]
    NoDraft,
    /// No devices, or more than a plan can have.
    #[error("there are {count} devices, 1 to {limit} are possible")]
    Devices {
        /// How many.
        count: usize,
        /// The most.
        limit: usize,
    },
    /// A device without threads, or with more than can be.
    #[error("the device {device} has {threads} threads, 1 to {MAX_THREADS} are possible")]
    DeviceThreads {
        /// Which.
        device: String,
        /// How many.
        threads: usize,
    },
    /// A speed that no device can have.
    #[error(
        "the device {device} reads {} bytes and makes {} products per second besides {} s per step: numbers above 0 are needed",
        speed.read, speed.products, speed.step_overhead
    )]
    Speed {
        /// Which.
        device: String,
        /// What it is said to do.
        speed: Speed,
    },
    /// A speed that no link can have.
    #[error("a link carries {bytes_per_second} bytes per second, a number above 0 is needed")]
    Link {
        /// What it is said to carry.
        bytes_per_second: f64,
    },
    /// A link between devices that are not there.
    #[error("a link from device {from} to device {to} was measured, but there are {devices} devices")]
    LinkOfNobody {
        /// Which sends.
        from: usize,
        /// Which receives.
        to: usize,
        /// How many there are.
        devices: usize,
    },
    /// More shards than there are places to cut.
    #[error(
        "{shards} shards are wanted, but the model has {blocks} blocks, which may not be cut: use at most {blocks} shards"
    )]
    TooManyShards {
        /// How many were wished for.
        shards: usize,
        /// How many are possible.
        blocks: usize,
    },
    /// More shards than devices, where each stage has one of its own.
    #[error("{shards} shards are wanted, but there are {devices} devices: use at most {devices} shards")]
    TooFewDevices {
        /// How many stages were wished for.
        shards: usize,
        /// How many devices there are.
        devices: usize,
    },
    /// More blocks than any model has.
    #[error("the model has {blocks} blocks, at most {limit} can be placed on several devices")]
    TooManyBlocks {
        /// How many.
        blocks: usize,
        /// The most.
        limit: usize,
    },
    /// A load that sessions as wished could never have.
    #[error("a load with {what}={wanted} is wanted, but {what} can be at most {limit} with these wishes")]
    Load {
        /// What of it.
        what: &'static str,
        /// How much.
        wanted: usize,
        /// The most.
        limit: usize,
    },
    /// One session would not fit.
    #[error("keys and values of {tokens} tokens are fewer than the {context} that one session can have")]
    FewTokens {
        /// Of all sessions together.
        tokens: usize,
        /// Of one session.
        context: usize,
    },
    /// A context that the model was not trained for.
    #[error("a context of {context} tokens is wanted, but the model was trained for {trained}: use at most {trained}")]
    ContextTooLong {
        /// Tokens wished for.
        context: usize,
        /// Tokens trained for.
        trained: usize,
    },
    /// More of something than can be numbered.
    #[error("{count} {what} would be needed, at most {limit} can be numbered: use a smaller context or fewer sessions")]
    TooMany {
        /// Of what.
        what: &'static str,
        /// How many.
        count: usize,
        /// The most.
        limit: u32,
    },
    /// Keys or values that cannot be cached in the type wished for.
    #[error(transparent)]
    KeyValueType(#[from] paceline_gguf::Error),
    /// More memory needed than there is.
    #[error(
        "{} are needed (weights {}, keys and values {}, states {}, buffers {}, reserve {}), but {} are available: \
         {would_fit}",
        human(needed.total()), human(needed.weights), human(needed.key_value), human(needed.states),
        human(needed.buffers), human(needed.reserve), human(*available)
    )]
    DoesNotFit {
        /// Bytes of all stages together.
        needed: Box<Memory>,
        /// Bytes the host has.
        available: u64,
        /// What would fit instead.
        would_fit: Box<WouldFit>,
    },
    /// No way to cut the model fits into the memory of the devices.
    #[error(
        "{} are needed (weights {}, keys and values {}, states {}, buffers {}, reserve {}), but {}: {would_fit}",
        human(needed.total()), human(needed.weights), human(needed.key_value), human(needed.states),
        human(needed.buffers), human(needed.reserve), devices_have(*devices, *available, needed.total())
    )]
    NoCutFits {
        /// Bytes of the whole in one stage; several need more buffers.
        needed: Box<Memory>,
        /// How many devices there are.
        devices: usize,
        /// Bytes of all devices together.
        available: u64,
        /// What would fit instead.
        would_fit: Box<WouldFit>,
    },
}

fn devices_have(devices: usize, available: u64, needed: u64) -> String {
    let available_text = human(available);
    match (devices, available >= needed) {
        (1, _) => format!("the device has {available_text}"),
        (_, false) => format!("the {devices} devices have {available_text} together"),
        (_, true) => {
            format!("no cut between blocks fits into the {devices} devices, which have {available_text} together")
        }
    }
}
