//! What each form keeps of the values.

use proptest::prelude::*;

use super::*;
use crate::ids::{Epoch, StepId};
use crate::step::Step;
use crate::{Frame, Payload};

fn frame(width: usize, values: &[f32]) -> Frame {
    let step = Step { epoch: Epoch(1), id: StepId(2), operations: vec![], chunks: vec![] };
    Frame { step, payload: Payload::from_rows(width, values), times: vec![] }
}

fn travelled(width: usize, values: &[f32], activations: Activations) -> Vec<f32> {
    let bytes = frame(width, values).encode_as(activations);
    let mut back = Vec::new();
    Frame::decode(&bytes).expect("it is one of ours").payload.read_rows(&mut back);
    back
}

proptest! {
    #[test]
    fn halves_keep_three_digits(width in 1usize..80, seed in prop::collection::vec(-6e4f32..6e4, 80)) {
        let values: Vec<f32> = seed[..width].iter().chain(&seed[..width]).copied().collect();
        for (value, back) in values.iter().zip(travelled(width, &values, Activations::F16)) {
            prop_assert!((value - back).abs() <= value.abs() / 2048.0 + 1e-7, "{value} became {back}");
        }
    }

    #[test]
    fn integers_keep_half_a_step_of_their_block(width in 1usize..80, seed in prop::collection::vec(-1e3f32..1e3, 80)) {
        let values: Vec<f32> = seed[..width].iter().chain(&seed[..width]).copied().collect();
        let back = travelled(width, &values, Activations::Int8);
        prop_assert_eq!(back.len(), values.len());
        for (row, back) in values.chunks(width).zip(back.chunks(width)) {
            for (block, back) in row.chunks(BLOCK).zip(back.chunks(BLOCK)) {
                let largest = block.iter().fold(0.0f32, |largest, value| largest.max(value.abs()));
                for (value, back) in block.iter().zip(back) {
                    prop_assert!((value - back).abs() <= largest / 127.0 * 0.501, "{value} became {back}");
                }
            }
        }
    }

    #[test]
    fn the_head_announces_what_is_packed(width in 1u32..100, rows in 0usize..4) {
        let values = vec![1.5; width as usize * rows];
        for activations in [Activations::F32, Activations::F16, Activations::Int8] {
            let payload = Payload::from_rows(width as usize, &values);
            let Payload::Host { rows, .. } = &payload;
            prop_assert_eq!(activations.pack(width, rows).len(), activations.packed_bytes(width, rows.len()));
        }
    }
}

#[test]
fn special_values_stay_special() {
    let halves = travelled(4, &[f32::NAN, f32::INFINITY, -0.0, 1e9], Activations::F16);
    assert!(halves[0].is_nan() && halves[1] == f32::INFINITY && halves[2].to_bits() == (-0.0f32).to_bits());
    assert_eq!(halves[3], f32::INFINITY);
    assert!(travelled(2, &[f32::INFINITY, 1.0], Activations::Int8).iter().all(|value| value.is_nan()));
    assert_eq!(travelled(2, &[0.0, 0.0], Activations::Int8), [0.0, 0.0]);
    let huge = travelled(2, &[1e38, -1e38], Activations::Int8);
    assert!((huge[0] / 1e38 - 1.0).abs() < 0.01 && huge[1] == -huge[0]);
    let tiny = travelled(2, &[1e-45, -1e-45], Activations::Int8);
    assert!(tiny.iter().all(|value| value.abs() < 1e-40));
}

#[test]
fn names_are_read_as_they_are_written() {
    for activations in [Activations::F32, Activations::F16, Activations::Int8] {
        assert_eq!(activations.to_string().parse(), Ok(activations));
    }
    for name in ["", "F32", "f64", "int8 ", "bf16"] {
        assert_eq!(name.parse::<Activations>(), Err(Error::ActivationsName { found: name.into() }));
    }
    assert_eq!(Activations::default(), Activations::F32);
}

#[test]
fn forms_that_do_not_fit_are_refused() {
    let mut bytes = frame(4, &[1.0; 8]).encode().to_vec();
    bytes[7] = 9;
    assert_eq!(Frame::decode(&bytes.clone().into()), Err(Error::Activations { found: 9 }));
    bytes[7] = 2;
    let refused = Frame::decode(&bytes.clone().into());
    assert!(refused.is_ok(), "32 bytes are also four rows of integers");
    bytes[12] = 5;
    let refused = Frame::decode(&bytes.into());
    assert_eq!(refused, Err(Error::Rows { bytes: 32, width: 5, activations: Activations::Int8 }));
}
