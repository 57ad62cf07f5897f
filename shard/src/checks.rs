//! What a step's chunks may ask of a stage. Frames come from other hosts, so nothing in them is believed: what passes
//! here fits the memory that the stage has reserved, and every sum of its numbers can be computed.

use paceline_compute::device::MemorySpec;
use paceline_proto::{Chunk, ChunkInput, SessionId, Step};

use crate::sessions::SessionTable;
use crate::stage::Place;
use crate::{Error, Result};

/// Checks the chunks of a step whose operations have been applied, before their rows are laid out. Chunks that are
/// void already are not run, and may be anything; so are those of sessions that are cancelled here, which lack what was
/// void before.
///
/// A chunk sent ahead of a result becomes void where the rows before it are not here: they were void themselves.
pub(crate) fn check_chunks(
    step: &mut Step,
    place: Place,
    sessions: &mut SessionTable,
    memory: &MemorySpec,
    is_cancelled: impl Fn(SessionId) -> bool,
) -> Result<()> {
    let (mut rows, mut wanted) = (0_usize, 0_usize);
    for chunk in step.chunks.iter_mut().filter(|chunk| !chunk.void && !is_cancelled(chunk.session)) {
        check_chunk(chunk, sessions)?;
        check_drafts(chunk, sessions, memory)?;
        let session = chunk.session;
        if sessions.get_mut(session)?.ran_in.replace(step.id) == Some(step.id) {
            return Err(Error::TwoChunks { session, step: step.id });
        }
        if chunk.void {
            continue;
        }
        rows = rows.saturating_add(chunk.input.rows());
        if place.last {
            wanted = wanted.saturating_add(chunk.wanted.wanted_rows(chunk.input.rows()));
        }
    }
    within("rows in a step", rows, memory.rows)?;
    within("rows wanted of a step", wanted, memory.wanted)
}

/// Checks that a chunk has rows, and that its session has pages for them.
fn check_chunk(chunk: &Chunk, sessions: &SessionTable) -> Result<()> {
    let session = chunk.session;
    let granted = sessions.room_of(sessions.get(session)?);
    if chunk.input.rows() == 0 {
        return Err(Error::EmptyChunk { session });
    }
    let end = (chunk.start as usize).saturating_add(chunk.input.rows());
    if end > granted {
        return Err(Error::BeyondPages { session, end, granted });
    }
    Ok(())
}

/// Checks that a chunk goes on where its session's tokens are certain or logged, and that there is room for what it
/// leaves uncertain.
fn check_drafts(chunk: &mut Chunk, sessions: &mut SessionTable, memory: &MemorySpec) -> Result<()> {
    let session = chunk.session;
    let (start, rows, drafts) = (chunk.start as usize, chunk.input.rows(), chunk.wanted.drafts() as usize);
    let (certain, uncertain) = (sessions.get(session)?.certain, sessions.get(session)?.uncertain);
    if start > certain + uncertain && drafts >= rows {
        chunk.void = true;
        return Ok(());
    }
    // Before the start lie tokens that stay certain, and at least those that are.
    if !(certain..=certain + uncertain).contains(&start) || drafts > start - certain + rows {
        return Err(Error::NotNext { session, start, drafts, certain, uncertain });
    }
    if drafts > 0 {
        if !matches!(chunk.input, ChunkInput::Tokens(_)) {
            return Err(Error::NotDrafts { session });
        }
        within("uncertain tokens of a session", drafts, memory.logs.tokens)?;
        sessions.reserve_log(session)?;
    }
    Ok(())
}

fn within(what: &'static str, found: usize, limit: usize) -> Result<()> {
    if found > limit {
        return Err(Error::OverLimit { what, found, limit });
    }
    Ok(())
}
