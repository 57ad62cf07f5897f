//! What the coordinator actor answers about its cache, and does with it.

use actix::{Context, Handler, Message, MessageResult};
use paceline_core::coordinator::{Event, Forgotten, PinRefusal};

use super::{CacheChange, CacheChanged, CacheList};
use crate::actor::CoordinatorActor;
use crate::error::{Error, Result};

/// Asks what is remembered, at most so many texts.
#[derive(Message)]
#[rtype(result = "CacheList")]
pub(crate) struct GetCache(pub(crate) usize);

impl Handler<GetCache> for CoordinatorActor {
    type Result = MessageResult<GetCache>;

    fn handle(&mut self, GetCache(limit): GetCache, _: &mut Context<Self>) -> Self::Result {
        let (paths, left_off) = self.core.cached(limit);
        MessageResult(CacheList { paths, left_off })
    }
}

/// Keeps or forgets a text.
#[derive(Message)]
#[rtype(result = "Result<CacheChanged>")]
pub(crate) struct ChangeCache {
    pub(crate) change: CacheChange,
    pub(crate) tokens: Vec<u32>,
}

impl Handler<ChangeCache> for CoordinatorActor {
    type Result = Result<CacheChanged>;

    fn handle(&mut self, ChangeCache { change, tokens }: ChangeCache, context: &mut Context<Self>) -> Self::Result {
        let count = tokens.len();
        let unknown = || Error::NotCached { tokens: count };
        let changed = match change {
            CacheChange::Pin => {
                let kept = self.core.pin(&tokens).map_err(|refusal| match refusal {
                    PinRefusal::Unknown => unknown(),
                    refusal @ PinRefusal::TooMuch { .. } => Error::TooMuchPinned { reason: refusal.to_string() },
                })?;
                CacheChanged { tokens: count, cached: kept, ..CacheChanged::default() }
            }
            CacheChange::Unpin => match self.core.unpin(&tokens) {
                0 => return Err(unknown()),
                cached => CacheChanged { tokens: count, cached, ..CacheChanged::default() },
            },
            CacheChange::Drop => {
                let forgotten = self.core.forget(&tokens).ok_or_else(unknown)?;
                let Forgotten { pages, snapshots, on_disk } = forgotten;
                CacheChanged { tokens: count, cached: count, pages, snapshots, on_disk }
            }
        };
        // What became free may be what somebody waits for.
        self.on(Event::Tick, context);
        Ok(changed)
    }
}
