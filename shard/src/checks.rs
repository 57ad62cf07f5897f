//! What a step's chunks may ask of a stage. Frames come from other hosts, so nothing in them is believed: what passes
//! here fits the memory that the stage has reserved, and every sum of its numbers can be computed.

use paceline_compute::device::MemorySpec;
use paceline_proto::{Chunk, Step, Wanted};

use crate::sessions::SessionTable;
use crate::stage::Place;
use crate::{Error, Result};

/// Checks the chunks of a step whose operations have been applied, before their rows are laid out. Chunks that are
/// void already are not run, and may be anything.
pub(crate) fn check_chunks(step: &Step, place: Place, sessions: &mut SessionTable, memory: &MemorySpec) -> Result<()> {
    let (mut rows, mut wanted) = (0_usize, 0);
    for chunk in step.chunks.iter().filter(|chunk| !chunk.void) {
        check_chunk(chunk, sessions, memory)?;
        let session = chunk.session;
        if sessions.get_mut(session)?.ran_in.replace(step.id) == Some(step.id) {
            return Err(Error::TwoChunks { session, step: step.id });
        }
        rows = rows.saturating_add(chunk.input.rows());
        wanted += usize::from(place.last && chunk.wanted != Wanted::Nothing);
    }
    within("rows in a step", rows, memory.rows)?;
    within("rows wanted of a step", wanted, memory.wanted)
}

/// Checks that a chunk has rows, and that its session has pages for them.
fn check_chunk(chunk: &Chunk, sessions: &SessionTable, memory: &MemorySpec) -> Result<()> {
    let session = chunk.session;
    let pages = sessions.get(session)?.pages.len();
    if chunk.input.rows() == 0 {
        return Err(Error::EmptyChunk { session });
    }
    let end = (chunk.start as usize).saturating_add(chunk.input.rows());
    // Positions are counted in 32 bits.
    let granted = pages.saturating_mul(memory.page_tokens).min(u32::MAX as usize);
    if end > granted {
        return Err(Error::BeyondPages { session, end, granted });
    }
    Ok(())
}

fn within(what: &'static str, found: usize, limit: usize) -> Result<()> {
    if found > limit {
        return Err(Error::OverLimit { what, found, limit });
    }
    Ok(())
}
