//! Each invariant is broken once on purpose: a check that cannot fail proves nothing.

use paceline_proto::Operation::CopyPage;
use paceline_proto::{Epoch, Reused, SamplingSettings, Verify};
use uuid::Uuid;

use super::*;

fn session(number: u128) -> SessionId {
    SessionId(Uuid::from_u128(number))
}

fn balanced() -> Accounts {
    Accounts {
        pages: 8,
        pages_free: 5,
        pages_reserved: 2,
        slots: 4,
        slots_free: 2,
        steps: 1,
        credits: 2,
        waiting: 0,
        queue: 3,
        interrupted: 2,
        oldest_waiting: Some(8),
        newest_running: Some(7),
        awaited: 1,
        unanswered: 1,
        running: 2,
        snapshots: 3,
        snapshots_free: 1,
        snapshots_held: 2,
        references: 4,
        references_held: 4,
        pages_held: 3,
        pages_promised: 2,
    }
}

#[test]
fn each_mistake_in_the_accounts_is_found() {
    type Mistake = (Invariant, fn(&mut Accounts));
    let mistakes: [Mistake; 11] = [
        (Invariant::PagesBalance, |accounts| accounts.pages_free += 1), // freed twice
        (Invariant::PagesBalance, |accounts| accounts.pages_free -= 1), // lost
        (Invariant::ReservedPagesAreFree, |accounts| accounts.pages_reserved += 1),
        (Invariant::ReservedPagesAreFree, |accounts| {
            accounts.pages_promised = 6;
            accounts.pages_reserved = 6;
        }),
        (Invariant::SlotsBalance, |accounts| accounts.slots_free += 1),
        (Invariant::StepsWithinCredits, |accounts| accounts.steps = 3),
        (Invariant::QueueBounded, |accounts| accounts.waiting = 4),
        (Invariant::AnswersAwaited, |accounts| accounts.unanswered = 0),
        (Invariant::ReferencesCounted, |accounts| accounts.references = 5),
        (Invariant::SnapshotsBalance, |accounts| accounts.snapshots_free = 2),
        (Invariant::NobodyOvertakes, |accounts| accounts.oldest_waiting = Some(6)),
    ];
    assert_eq!(accounts_balance(&balanced()), Ok(()));
    for (invariant, mistake) in mistakes {
        let mut accounts = balanced();
        mistake(&mut accounts);
        assert_eq!(accounts_balance(&accounts).map_err(|broken| broken.invariant), Err(invariant));
    }
}

fn open(number: u128, slot: u32) -> Operation {
    let sampling = Box::new(SamplingSettings::default());
    Operation::Open {
        session: session(number),
        slot: Slot(slot),
        sampling,
        generated_from: 0,
        reused: Reused::default(),
    }
}

/// A session of which `tokens` tokens are not run.
fn reuse(number: u128, slot: u32, tokens: u32) -> Operation {
    let (sampling, reused) = (Box::default(), Reused { tokens, last: Vec::new() });
    Operation::Open { session: session(number), slot: Slot(slot), sampling, generated_from: 0, reused }
}

fn copy_state(from: u32, to: u32) -> Operation {
    Operation::CopyState { from: Slot(from), to: Slot(to) }
}

fn grant(number: u128, page: u32) -> Operation {
    Operation::Grant { session: session(number), pages: vec![PageId(page)] }
}

fn close(number: u128) -> Operation {
    Operation::Close { session: session(number) }
}

fn chunk(number: u128, start: u32, rows: usize) -> Chunk {
    let input = ChunkInput::Tokens(vec![7; rows]);
    Chunk { session: session(number), start, input, wanted: Wanted::Sample, void: false }
}

/// A chunk of which so many tokens up to its end are uncertain.
fn guesses(number: u128, start: u32, rows: usize, drafts: u32) -> Chunk {
    Chunk { wanted: Wanted::Verify(Verify { drafts, ..Verify::default() }), ..chunk(number, start, rows) }
}

fn ahead(number: u128, start: u32, step: u64) -> Chunk {
    Chunk { input: ChunkInput::Sampled { step: StepId(step) }, ..chunk(number, start, 1) }
}

fn follow(steps: Vec<(u64, Vec<Operation>, Vec<Chunk>)>) -> Result<(), Invariant> {
    let logs = Limits { log_sessions: 2, log_tokens: 3, ..Limits::new(1, 4, 8, 4, 32) };
    let limits = Limits { step_rows: 6, step_wanted: 2, ..logs };
    let mut stream = StepStream::new(&limits);
    for (id, operations, chunks) in steps {
        let step = Step { epoch: Epoch(0), id: StepId(id), operations, chunks };
        stream.follow(&step).map_err(|broken| broken.invariant)?;
    }
    Ok(())
}

#[test]
fn a_right_stream_is_right() {
    let steps = vec![
        (0, vec![open(1, 0), grant(1, 0)], vec![chunk(1, 0, 3)]),
        (1, vec![open(2, 1), grant(2, 1)], vec![chunk(2, 0, 4), ahead(1, 3, 0)]),
        (2, vec![close(1), grant(2, 0)], vec![chunk(2, 4, 1)]), // page 0 goes from one to the other
        (3, vec![open(3, 0), close(2)], vec![]),
        // two go on from the state after a full page that both have
        (4, vec![grant(3, 2)], vec![chunk(3, 0, 4)]),
        (5, vec![copy_state(0, 4), reuse(4, 1, 4), copy_state(4, 1), grant(4, 2), grant(4, 3)], vec![chunk(4, 4, 1)]),
        (6, vec![grant(3, 4)], vec![chunk(3, 4, 1), chunk(4, 5, 1)]),
        (7, vec![open(1, 2), grant(1, 5)], vec![chunk(1, 0, 3)]), // from its beginning, as it was paused
        // a draft, another one sent ahead, and what follows if the first is wrong
        (8, vec![grant(1, 6)], vec![guesses(1, 3, 2, 1)]),
        (9, vec![], vec![guesses(1, 5, 1, 2)]),
        (10, vec![], vec![guesses(1, 4, 2, 1)]),
    ];
    assert_eq!(follow(steps), Ok(()));
}

#[test]
fn each_mistake_in_the_stream_is_found() {
    let first = || (0, vec![open(1, 0), grant(1, 0)], vec![chunk(1, 0, 3)]);
    let second = |operations, chunks| vec![first(), (1, operations, chunks)];
    let mistakes = [
        (Invariant::StepsConsecutive, vec![first(), (2, vec![], vec![])]),
        (Invariant::StepsConsecutive, vec![first(), (0, vec![], vec![])]),
        (Invariant::OpenThenClose, second(vec![open(1, 1)], vec![])),
        (Invariant::OpenThenClose, second(vec![close(1), close(1)], vec![])),
        (Invariant::OpenThenClose, second(vec![grant(2, 1)], vec![])),
        (Invariant::OpenThenClose, second(vec![], vec![chunk(2, 0, 1)])),
        (Invariant::SlotHasOneOwner, second(vec![open(2, 0)], vec![])),
        (Invariant::SlotHasOneOwner, second(vec![copy_state(3, 0)], vec![])),
        (Invariant::PageHasOneWriter, second(vec![open(2, 1), grant(2, 0)], vec![chunk(2, 0, 1)])),
        (Invariant::PageHasOneWriter, second(vec![open(2, 1), grant(2, 0)], vec![chunk(1, 3, 1)])),
        (Invariant::PageHasOneWriter, second(vec![grant(1, 0)], vec![chunk(1, 3, 1)])),
        (Invariant::PageHasOneWriter, second(vec![grant(1, 0), CopyPage { from: PageId(1), to: PageId(0) }], vec![])),
        (Invariant::StateRestored, second(vec![reuse(2, 1, 4), grant(2, 0), grant(2, 1)], vec![chunk(2, 4, 1)])),
        (Invariant::OneChunkPerSession, second(vec![], vec![chunk(1, 3, 1), chunk(1, 4, 1)])),
        (Invariant::ChunksContiguous, second(vec![], vec![chunk(1, 2, 1)])), // a token twice
        (Invariant::ChunksContiguous, second(vec![grant(1, 1)], vec![chunk(1, 4, 1)])), // a token left out
        (Invariant::ChunksContiguous, second(vec![], vec![chunk(1, 3, 0)])),
        (Invariant::ChunkHasPages, second(vec![], vec![chunk(1, 3, 2)])),
        (Invariant::RowsWithinStep, second(vec![grant(1, 1)], vec![chunk(1, 3, 7)])),
        (Invariant::WantedWithinStep, second(vec![], vec![chunk(1, 3, 1), chunk(2, 0, 1), chunk(3, 0, 1)])),
        (Invariant::SampledFollows, second(vec![], vec![ahead(1, 3, 1)])),
        (Invariant::LogsSuffice, second(vec![], vec![guesses(1, 3, 1, 4)])),
        (Invariant::CertainStays, second(vec![], vec![guesses(1, 3, 1, 2)])),
        (
            Invariant::AheadFollows,
            [second(vec![grant(1, 1)], vec![guesses(1, 3, 2, 1)]), vec![(2, vec![], vec![guesses(1, 4, 1, 1)])]]
                .concat(),
        ),
    ];
    for (number, (invariant, steps)) in mistakes.into_iter().enumerate() {
        assert_eq!(follow(steps), Err(invariant), "mistake {number}");
    }
}
