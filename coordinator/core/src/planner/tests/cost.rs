//! What steps cost, against figures that are known of published models.

use super::*;

fn whole(shape: &ModelShape, kind: KvType) -> StageCost {
    StageCost::of(shape, 0..shape.layers.len(), true, true, kind, kind)
}

fn is_near(one: f64, other: f64, tolerance: f64) -> bool {
    (one / other - 1.0).abs() <= tolerance
}

#[test]
fn a_token_reads_the_known_bytes() {
    let shape = shapes::published_as(PublishedShape::B27, paceline_gguf::TensorType::Q6K);
    let cost = whole(&shape, KvType::Q8_0);
    // 21.0 GB of weights, 0.30 GB of states read and written, 34,816 bytes for each token of context.
    let (near, far) = (cost.work(&StepShape::decode(1, 0)), cost.work(&StepShape::decode(1, 100_000)));
    assert!(is_near(near.bytes, 21.3e9, 0.01), "{near:?}");
    assert!(is_near(far.bytes - near.bytes, 3.48e9, 0.01), "{far:?}");
    // Four sessions in one step read the weights once.
    let four = cost.work(&StepShape::decode(4, 0));
    assert!(is_near(four.bytes, 21.0e9 + 4.0 * 0.30e9, 0.02), "{four:?}");
    let speed = Speed { step_overhead: 0.0, ..Speed::new(1008e9, 1e18) };
    assert!(is_near(1.0 / cost.seconds(&speed, &StepShape::decode(1, 0)), 47.0, 0.02));
}

#[test]
fn rows_share_experts() {
    let shape = published(PublishedShape::B35_A3);
    let cost = whole(&shape, KvType::F16);
    let weights = |rows: usize| cost.work(&StepShape { rows, wanted: 1, sessions: 0, context_tokens: 0 }).bytes;
    // 1.97 GB for one row, 5.73 GB for eight that choose independently, never more than there is.
    assert!(is_near(weights(1), 1.97e9, 0.03), "{}", weights(1));
    assert!(is_near(weights(8), 5.73e9, 0.05), "{}", weights(8));
    assert!(is_near(weights(4096), (shape.total().bytes - shape.embedding.bytes) as f64, 0.2), "{}", weights(4096));
    let experts: u64 = cost.experts.iter().map(|experts| experts.bytes).sum();
    assert_eq!((cost.experts.len(), cost.experts[0].count, cost.experts[0].used), (1, 256, 8));
    assert_eq!(experts, shape.layers.iter().map(|layer| layer.experts.unwrap().weights.bytes).sum::<u64>());
}

#[test]
fn prompts_multiply_and_share_what_they_attend_to() {
    let shape = published(PublishedShape::B0_8);
    let cost = whole(&shape, KvType::F16);
    let chunk = cost.work(&StepShape::prefill(512, 0));
    // Half a thousand million multiply-adds for a row of the layers.
    assert!(is_near(chunk.products / 512.0, 0.5e9, 0.1), "{chunk:?}");
    // 512 rows read the keys and values before them once.
    let later = cost.work(&StepShape::prefill(512, 1000));
    assert!(is_near(later.bytes - chunk.bytes, 1000.0 * 12_288.0, 1e-6), "{later:?}");
    assert!(cost.work(&StepShape { wanted: 1, ..StepShape::prefill(512, 0) }).bytes - chunk.bytes > 200e6);
}

#[test]
fn nothing_costs_nothing() {
    let cost = whole(&published(PublishedShape::B0_8), KvType::F16);
    assert_eq!(cost.seconds(&Speed::new(1e9, 1e9), &StepShape::default()), 0.0);
    assert_eq!(StepShape::prefill(0, 100), StepShape { context_tokens: 0, ..StepShape::default() });
    let huge = StepShape::decode(usize::MAX, usize::MAX);
    assert!(cost.seconds(&Speed::new(1e9, 1e9), &huge).is_finite());
}

#[test]
fn what_is_sent_is_a_row_for_each_token_and_a_token_from_the_last() {
    let shape = published(PublishedShape::B27);
    let first = StageCost::of(&shape, 0..4, true, false, KvType::F16, KvType::F16);
    let last = StageCost::of(&shape, 4..64, false, true, KvType::F16, KvType::F16);
    assert_eq!(first.sent_bytes(&StepShape::prefill(512, 0)), 512.0 * 20_480.0);
    assert_eq!(last.sent_bytes(&StepShape::decode(3, 0)), 3.0 * 64.0);
}

proptest! {
    #[test]
    fn stages_cost_together_what_the_whole_costs(shape in any_shape(), at in 0usize..12, rows in 1usize..50) {
        let at = at.min(shape.layers.len());
        let count = shape.layers.len();
        let kind = KvType::F16;
        let first = StageCost::of(&shape, 0..at, true, false, kind, kind);
        let last = StageCost::of(&shape, at..count, false, true, kind, kind);
        let step = StepShape { rows, wanted: rows.min(2), sessions: rows.min(3), context_tokens: rows as u64 * 7 };
        let (parts, all) = (first.work(&step) + last.work(&step), whole(&shape, kind).work(&step));
        prop_assert!((parts.bytes - all.bytes).abs() <= 1e-9 * all.bytes.max(1.0));
        prop_assert!((parts.products - all.products).abs() <= 1e-9 * all.products.max(1.0));
    }

    #[test]
    fn one_row_reads_what_the_table_says(shape in any_shape()) {
        let cost = whole(&shape, KvType::F16);
        let found = cost.work(&StepShape { rows: 1, wanted: 1, sessions: 0, context_tokens: 0 }).bytes;
        let told = plan(&shape, &Wishes::new(1, 1, 1), &LARGE).unwrap().bottleneck() as f64;
        // The table counts whole experts, of bytes that may not divide evenly.
        prop_assert!((found - told).abs() <= shape.layers.len() as f64 * 10.0, "{} for {}", found, told);
    }
}
