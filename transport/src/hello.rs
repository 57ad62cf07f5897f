//! The first bytes on a connection: what it is for, and the answer to it. Fixed sizes, little endian.

use paceline_proto::{Activations, Epoch, NodeId, frame};

use crate::{Error, LinkKey, LinkSettings, MoveKey, Result};

const HELLO: [u8; 4] = *b"PCLH";
const ANSWER: [u8; 4] = *b"PCLA";
const PURPOSE_LINK: u16 = 1;
const PURPOSE_PIECES: u16 = 2;
const PURPOSE_MEMORIES: u16 = 3;

/// Bytes of a [`Hello`].
pub const HELLO_BYTES: usize = 84;
/// Bytes of an [`Answer`].
pub const ANSWER_BYTES: usize = 24;

/// What a connection is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hello {
    /// Who speaks.
    pub from: NodeId,
    /// Whom it wants to speak to.
    pub to: NodeId,
    /// What about.
    pub purpose: Purpose,
}

/// What a connection may be for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// A link of an epoch.
    Link(LinkKey, LinkSettings),
    /// Fetching pieces of models.
    Pieces,
    /// Taking what a stage remembers, in a move.
    Memories(MoveKey),
}

/// The answer to a [`Hello`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Answer {
    /// Who answers.
    pub node: NodeId,
    /// Why not, if not.
    pub refusal: Option<Refusal>,
}

/// Why a [`Hello`] is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// Nobody expects this link: another epoch, number, node or secret.
    #[error("no such link is expected there")]
    Unexpected,
    /// The link is expected with other settings.
    #[error("the link is expected with other settings")]
    Settings,
    /// Nobody gives memories in this move: another epoch or secret.
    #[error("no memories are given there in such a move")]
    NotGiven,
    /// The hello was meant for another node.
    #[error("another node was meant")]
    Node,
    /// It cannot be read, or is of another release.
    #[error("the greeting cannot be read: run the same release on every host")]
    Unreadable,
}

impl Hello {
    /// The hello as bytes.
    pub fn encode(&self) -> [u8; HELLO_BYTES] {
        let none = LinkKey { epoch: Epoch(0), link: 0, secret: [0; 16] };
        let nothing = LinkSettings { frames: 0, frame_bytes: 0, activations: Activations::F32 };
        let (purpose, key, settings) = match self.purpose {
            Purpose::Link(key, settings) => (PURPOSE_LINK, key, settings),
            Purpose::Pieces => (PURPOSE_PIECES, none, nothing),
            Purpose::Memories(MoveKey { epoch, secret }) => {
                (PURPOSE_MEMORIES, LinkKey { epoch, link: 0, secret }, nothing)
            }
        };
        let mut writer = Writer::new();
        writer.put(&HELLO);
        writer.put(&frame::VERSION.to_le_bytes());
        writer.put(&purpose.to_le_bytes());
        writer.put(&(HELLO_BYTES as u32).to_le_bytes());
        writer.put(&key.epoch.0.to_le_bytes());
        writer.put(&key.link.to_le_bytes());
        writer.put(&u32::from(settings.activations.code()).to_le_bytes());
        writer.put(&(settings.frames as u32).to_le_bytes());
        writer.put(&settings.frame_bytes.to_le_bytes());
        writer.put(self.from.0.as_bytes());
        writer.put(self.to.0.as_bytes());
        writer.put(&key.secret);
        writer.bytes
    }

    /// Reads a hello.
    ///
    /// # Errors
    /// [`Greeting`](Error::Greeting) for anything that [`encode`](Self::encode) would not write.
    pub fn decode(bytes: &[u8; HELLO_BYTES]) -> Result<Self> {
        let mut reader = Reader(bytes);
        reader.expect(HELLO)?;
        let purpose = reader.u16();
        let size = reader.u32();
        if size as usize != HELLO_BYTES {
            return Err(Error::greeting(format!("it announces {size} bytes, not {HELLO_BYTES}")));
        }
        let (epoch, link) = (Epoch(reader.u32()), reader.u32());
        let (activations, frames, frame_bytes) = (reader.u32(), reader.u32() as usize, reader.u64());
        let (from, to) = (reader.node(), reader.node());
        let key = LinkKey { epoch, link, secret: reader.take() };
        let activations = u8::try_from(activations).map_err(|_| Error::greeting("an unknown form of activations"))?;
        let settings = LinkSettings { frames, frame_bytes, activations: Activations::of_code(activations)? };
        let hello = Self { from, to, purpose: purpose_of(purpose, key, settings)? };
        // What is not used must be zero, so that a later release may use it.
        if hello.encode() == *bytes { Ok(hello) } else { Err(Error::greeting("unused bytes are not zero")) }
    }
}

fn purpose_of(code: u16, key: LinkKey, settings: LinkSettings) -> Result<Purpose> {
    match code {
        PURPOSE_LINK => settings.check().map(|()| Purpose::Link(key, settings)),
        PURPOSE_PIECES => Ok(Purpose::Pieces),
        PURPOSE_MEMORIES => Ok(Purpose::Memories(MoveKey { epoch: key.epoch, secret: key.secret })),
        _ => Err(Error::greeting(format!("purpose {code} does not exist"))),
    }
}

impl Answer {
    /// The answer as bytes.
    pub fn encode(&self) -> [u8; ANSWER_BYTES] {
        let status: u16 = match self.refusal {
            None => 0,
            Some(Refusal::Unexpected) => 1,
            Some(Refusal::Settings) => 2,
            Some(Refusal::Node) => 3,
            Some(Refusal::Unreadable) => 4,
            Some(Refusal::NotGiven) => 5,
        };
        let mut writer = Writer::new();
        writer.put(&ANSWER);
        writer.put(&frame::VERSION.to_le_bytes());
        writer.put(&status.to_le_bytes());
        writer.put(self.node.0.as_bytes());
        writer.bytes
    }

    /// Reads an answer.
    ///
    /// # Errors
    /// [`Greeting`](Error::Greeting) for anything that [`encode`](Self::encode) would not write.
    pub fn decode(bytes: &[u8; ANSWER_BYTES]) -> Result<Self> {
        let mut reader = Reader(bytes);
        reader.expect(ANSWER)?;
        let refusal = match reader.u16() {
            0 => None,
            1 => Some(Refusal::Unexpected),
            2 => Some(Refusal::Settings),
            3 => Some(Refusal::Node),
            4 => Some(Refusal::Unreadable),
            5 => Some(Refusal::NotGiven),
            status => return Err(Error::greeting(format!("status {status} does not exist"))),
        };
        Ok(Self { node: reader.node(), refusal })
    }
}

struct Writer<const N: usize> {
    bytes: [u8; N],
    at: usize,
}

impl<const N: usize> Writer<N> {
    fn new() -> Self {
        Self { bytes: [0; N], at: 0 }
    }

    fn put(&mut self, bytes: &[u8]) {
        self.bytes[self.at..self.at + bytes.len()].copy_from_slice(bytes);
        self.at += bytes.len();
    }
}

/// Takes fields off the front of bytes whose number is known to be right.
struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> [u8; N] {
        let (field, rest) = self.0.split_first_chunk().expect("the sizes of the fields sum up");
        self.0 = rest;
        *field
    }

    fn u16(&mut self) -> u16 {
        u16::from_le_bytes(self.take())
    }

    fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.take())
    }

    fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.take())
    }

    fn node(&mut self) -> NodeId {
        NodeId(uuid::Uuid::from_bytes(self.take()))
    }

    fn expect(&mut self, magic: [u8; 4]) -> Result<()> {
        if self.take() != magic {
            return Err(Error::greeting("it is none of ours"));
        }
        let (found, expected) = (self.u16(), frame::VERSION);
        if found != expected {
            return Err(paceline_proto::Error::Version { found, expected }.into());
        }
        Ok(())
    }
}
