//! Frames survive the wire, and hostile bytes give errors.

use proptest::prelude::*;
use uuid::Uuid;

use super::*;
use crate::ids::{Epoch, PageId, SessionId, Slot, StepId};
use crate::sampling::SamplingSettings;
use crate::step::{
    Chunk, ChunkInput, ChunkResult, Drafted, Logprobs, Operation, Outcome, Reused, SampledToken, TokenLogprob,
    Verified, Verify, Wanted,
};
use crate::tiers::Ticket;

fn session() -> impl Strategy<Value = SessionId> {
    any::<u128>().prop_map(|bits| SessionId(Uuid::from_u128(bits)))
}

fn operation() -> impl Strategy<Value = Operation> {
    let reused = (any::<u32>(), prop::collection::vec(any::<u32>(), 0..4));
    let parts = (session(), any::<u32>(), any::<u64>(), 0.0f32..2.0, any::<u32>(), reused);
    let open = parts.prop_map(|(session, slot, seed, temperature, generated_from, (tokens, last))| {
        let sampling = Box::new(SamplingSettings { seed, temperature, ..SamplingSettings::default() });
        Operation::Open { session, slot: Slot(slot), sampling, generated_from, reused: Reused { tokens, last } }
    });
    let grant = (session(), prop::collection::vec(any::<u32>().prop_map(PageId), 0..5))
        .prop_map(|(session, pages)| Operation::Grant { session, pages });
    let close = session().prop_map(|session| Operation::Close { session });
    let copy =
        (any::<u32>(), any::<u32>()).prop_map(|(from, to)| Operation::CopyPage { from: PageId(from), to: PageId(to) });
    let copy_state =
        (any::<u32>(), any::<u32>()).prop_map(|(from, to)| Operation::CopyState { from: Slot(from), to: Slot(to) });
    let pages = prop::collection::vec(any::<u32>().prop_map(PageId), 0..5);
    let install = (any::<u64>(), pages, prop::option::of(any::<u32>().prop_map(Slot)))
        .prop_map(|(ticket, pages, slot)| Operation::Install { ticket: Ticket(ticket), pages, slot });
    prop_oneof![open, grant, close, copy, copy_state, install]
}

fn chunk() -> impl Strategy<Value = Chunk> {
    let input = prop_oneof![
        prop::collection::vec(any::<u32>(), 1..9).prop_map(ChunkInput::Tokens),
        prop::collection::vec(any::<[u32; 4]>(), 1..5).prop_map(|positions| ChunkInput::Rows { positions }),
        any::<u64>().prop_map(|step| ChunkInput::Sampled { step: StepId(step) }),
    ];
    let verify = any::<(u32, u32, u16)>()
        .prop_map(|(drafts, propose, least_probability)| Wanted::Verify(Verify { drafts, propose, least_probability }));
    let wanted = prop_oneof![Just(Wanted::Nothing), Just(Wanted::Sample), Just(Wanted::Vector), verify];
    (session(), any::<u32>(), input, wanted, any::<bool>()).prop_map(|(session, start, input, wanted, void)| Chunk {
        session,
        start,
        input,
        wanted,
        void,
    })
}

fn frame() -> impl Strategy<Value = Frame> {
    let step =
        (any::<u32>(), any::<u64>(), prop::collection::vec(operation(), 0..4), prop::collection::vec(chunk(), 0..4))
            .prop_map(|(epoch, id, operations, chunks)| Step {
                epoch: Epoch(epoch),
                id: StepId(id),
                operations,
                chunks,
            });
    let times =
        prop::collection::vec(any::<[u64; 3]>().prop_map(|[busy, idle, sent]| StageTime { busy, idle, sent }), 0..3);
    (step, 1usize..9, prop::collection::vec(-1e9f32..1e9, 0..4), times).prop_map(|(step, width, seed, times)| {
        let values: Vec<f32> = seed.iter().flat_map(|value| std::iter::repeat_n(*value, width)).collect();
        Frame { step, payload: Payload::from_rows(width, &values), times }
    })
}

proptest! {
    #[test]
    fn a_frame_survives_the_wire(frame in frame()) {
        prop_assert_eq!(Frame::decode(&frame.encode()), Ok(frame));
    }

    #[test]
    fn a_cut_frame_is_refused(frame in frame(), cut in 1usize..200) {
        let bytes = frame.encode();
        let cut = cut.min(bytes.len());
        prop_assert!(Frame::decode(&bytes.slice(..bytes.len() - cut)).is_err());
    }

    #[test]
    fn changed_bytes_never_panic(frame in frame(), at in any::<prop::sample::Index>(), value in any::<u8>()) {
        let mut bytes = frame.encode().to_vec();
        let at = at.index(bytes.len());
        bytes[at] = value;
        let _ = Frame::decode(&Bytes::from(bytes.clone()));
        let _ = Reply::decode(&Bytes::from(bytes));
    }

    #[test]
    fn rows_keep_their_bits(values in prop::collection::vec(any::<u32>().prop_map(f32::from_bits), 0..64)) {
        let mut back = Vec::new();
        Payload::from_rows(1, &values).read_rows(&mut back);
        let bits = |values: &[f32]| values.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
        prop_assert_eq!(bits(&values), bits(&back));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]

    #[test]
    fn any_bytes_are_read_or_refused(
        body in prop::collection::vec(any::<u8>(), 0..200),
        (kind, activations, width) in (0u8..5, 0u8..4, 0u32..9),
        description in 0u64..200,
    ) {
        let _ = (Frame::decode(&Bytes::from(body.clone())), Reply::decode(&Bytes::from(body.clone())));
        // Behind a good header the bytes reach the description and the rows.
        let mut header = Header::new(kind, Epoch(0), StepId(0), 0);
        let description = description.min(body.len() as u64);
        (header.activations, header.width) = (activations, width.into());
        header.description_bytes = description.into();
        header.payload_bytes = (body.len() as u64 - description).into();
        let bytes = Bytes::from([header.as_bytes(), &body].concat());
        let _ = (Frame::decode(&bytes), Reply::decode(&bytes));
    }
}

#[test]
fn results_survive_the_wire() {
    let session = SessionId(Uuid::from_u128(7));
    let top = vec![TokenLogprob { token: 3, logprob: -0.5 }];
    let logprobs = Some(Box::new(Logprobs { chosen: -0.25, top }));
    let outcomes = [
        Outcome::Stored,
        Outcome::Void,
        Outcome::Vector(vec![1.0, -2.0]),
        Outcome::Verified(Verified {
            tokens: vec![SampledToken { token: 5, logprobs: logprobs.clone() }; 2],
            drafted: vec![Drafted { token: 6, probability: 0.5 }],
        }),
        Outcome::Sampled(SampledToken { token: 5, logprobs }),
    ];
    let results = outcomes.into_iter().map(|outcome| ChunkResult { session, outcome }).collect();
    let done = StepDone {
        epoch: Epoch(2),
        step: StepId(9),
        results,
        times: vec![StageTime { busy: 12, idle: 3, sent: 4096 }],
    };
    for reply in [Reply::Done(done), Reply::Failed { stage: 3, reason: "no memory".into() }] {
        assert_eq!(Reply::decode(&reply.encode()), Ok(reply));
    }
}

#[test]
fn every_fault_of_a_header_has_its_error() {
    let frame = Frame {
        step: Step { epoch: Epoch(1), id: StepId(1), operations: vec![], chunks: vec![] },
        payload: Payload::from_rows(2, &[1.0, 2.0]),
        times: vec![],
    };
    let good = frame.encode();
    let with = |at: usize, value: &[u8]| {
        let mut bytes = good.to_vec();
        bytes[at..at + value.len()].copy_from_slice(value);
        Frame::decode(&Bytes::from(bytes)).expect_err("it was spoiled")
    };
    assert!(matches!(Frame::decode(&good.slice(..10)), Err(Error::Short { found: 10, .. })));
    assert!(matches!(with(0, b"GGUF"), Error::Magic { .. }));
    assert!(matches!(with(4, &[9, 0]), Error::Version { found: 9, expected: VERSION }));
    assert!(matches!(with(6, &[9, 0]), Error::Kind { found: 9 }));
    assert!(matches!(with(7, &[3]), Error::Activations { found: 3 }));
    assert!(matches!(with(8, &[7]), Error::Disagree { .. }));
    assert!(matches!(with(16, &[7]), Error::Disagree { .. }));
    assert!(matches!(with(12, &[3, 0, 0, 0]), Error::Rows { bytes: 8, width: 3, .. }));
    assert!(matches!(with(24, &[0xff; 8]), Error::TooLarge { .. }));
    assert!(matches!(with(32, &[4]), Error::Length { .. }));
    assert!(matches!(with(HEADER_BYTES, &[0xff; 2]), Error::Description { .. }));
}

#[test]
fn a_link_has_a_limit_of_its_own() {
    let frame = Frame {
        step: Step { epoch: Epoch(1), id: StepId(1), operations: vec![], chunks: vec![] },
        payload: Payload::from_rows(2, &[1.0; 64]),
        times: vec![],
    };
    let bytes = frame.encode();
    let announced = (bytes.len() - HEADER_BYTES) as u64;
    assert_eq!(Header::read(&bytes, announced).map(|header| header.body_bytes()), Ok(announced));
    let refused = Header::read(&bytes, announced - 1).map(|header| header.body_bytes());
    assert_eq!(refused, Err(Error::TooLarge { announced, limit: announced - 1 }));
}

#[test]
fn absurd_counts_inside_a_description_are_refused() {
    let reply = Reply::Failed { stage: 1, reason: "x".into() };
    let good = reply.encode();
    // A string of 2^60 bytes, written as postcard writes lengths.
    let absurd = [1, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x10];
    let mut bytes = good[..HEADER_BYTES].to_vec();
    bytes[24] = absurd.len() as u8;
    bytes.extend_from_slice(&absurd);
    assert!(matches!(Reply::decode(&bytes.into()), Err(Error::Description { .. })));
    // The same as the count of a step's operations: epoch 0, step 0, then the count.
    let step = [&[0, 0], &absurd[1..]].concat();
    let mut bytes = good[..HEADER_BYTES].to_vec();
    (bytes[6], bytes[24]) = (KIND_STEP, step.len() as u8);
    bytes.extend_from_slice(&step);
    assert!(matches!(Frame::decode(&bytes.into()), Err(Error::Description { .. })));
}

#[test]
fn one_kind_is_not_read_as_another() {
    let frame = Frame {
        step: Step { epoch: Epoch(1), id: StepId(1), operations: vec![], chunks: vec![] },
        payload: Payload::empty(),
        times: vec![],
    };
    assert_eq!(Reply::decode(&frame.encode()), Err(Error::Kind { found: 1 }));
    let failed = Reply::Failed { stage: 0, reason: String::new() };
    assert_eq!(Frame::decode(&failed.encode()), Err(Error::Kind { found: 3 }));
}
