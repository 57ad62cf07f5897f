//! What the planner says a stage needs is never less than what the CPU device takes, and little more.

use std::sync::Arc;

use paceline_compute::Device;
use paceline_compute::device::{LogSpec, MemorySpec, MemoryUse};
use paceline_core::planner::{Cache, Host, Memory, Placement, TailDrafter, Wishes, plan};
use paceline_cuda::CudaDevice;
use paceline_emulation::{EmulatedDriver, Order};
use paceline_gguf::{Gguf, KvType, ModelShape, testing::PublishedShape};
use paceline_model::StageLayers;
use paceline_proto::Epoch;
use paceline_shard::Place;
use paceline_tests::drafting;
use paceline_tests::model_run::cpu;
use paceline_tests::models::{model, with_draft};

const LARGE: Host = Host { memory_bytes: 1 << 50, threads: 2 };

/// What every stage of a plan is said to need, and what it takes.
fn loaded(model: &Arc<Gguf>, placement: &Placement, device: &dyn Device) -> Vec<(Memory, MemoryUse)> {
    let spec = MemorySpec {
        page_tokens: placement.page_tokens,
        pages: placement.pages,
        slots: placement.slots,
        key_type: placement.key_type,
        value_type: placement.value_type,
        rows: placement.step_rows,
        wanted: placement.step_wanted,
        logs: LogSpec { sessions: placement.logs.sessions, tokens: placement.logs.tokens },
    };
    let load = |stage: &paceline_core::planner::StagePlan| {
        let layers = StageLayers { layers: stage.layers.clone(), first: stage.first, last: stage.last };
        let place = Place { index: 0, first: stage.first, last: stage.last, epoch: Epoch::default() };
        let loaded = drafting::stage(model, &layers, device, spec, place, placement.drafter);
        (stage.memory, loaded.memory_use())
    };
    placement.stages.iter().map(load).collect()
}

fn total(used: &MemoryUse) -> u64 {
    used.weights + used.pages + used.states + used.buffers
}

fn check(model: &Arc<Gguf>, wishes: &Wishes, most: f64) {
    let shape = ModelShape::read(model).expect("a shape");
    let placement = plan(&shape, wishes, &LARGE).expect("a plan");
    for (planned, used) in loaded(model, &placement, &cpu()) {
        let told = format!("{planned:?} planned, {used:?} used");
        assert!(planned.key_value >= used.pages && planned.states >= used.states, "{told}");
        assert!(planned.total() >= total(&used), "{told}");
        assert!(planned.total() as f64 <= total(&used) as f64 * most, "{told}");
    }
}

#[test]
fn no_model_takes_more_than_was_planned() {
    for name in [
        "mini-Q3_K_M",
        "mini-Q4_K_M",
        "mini-Q5_K_M",
        "mini-Q8_0",
        "mini-BF16",
        "mini-IQ4_XS",
        "mini-moe-MXFP4_MOE",
        "mini-moe-Q4_K_M",
        "mini-llama-Q4_K_M",
        "mini-qwen3-Q4_K_M",
        "tiny-hybrid-mtp-q8_0",
        "nano-moe-f32",
        "nano-mtp-f32",
        "mini16-mtp-Q8_0",
    ] {
        let model = model(name);
        let blocks = ModelShape::read(&model).expect("a shape").blocks().len();
        for (shards, rows) in [(1, 1), (1, 512), (2.min(blocks), 64)] {
            let mut wishes = Wishes::new(shards, 256, 3);
            wishes.step_rows = rows + 3;
            wishes.cache = Cache { snapshots: rows % 5, pages: rows % 7 };
            check(&model, &wishes, f64::INFINITY);
            check(&model, &wishes.clone().with_drafts(rows % 20), f64::INFINITY);
            if !ModelShape::read(&model).expect("a shape").mtp.is_empty() {
                let drafter = Some(TailDrafter::Mtp);
                check(&model, &Wishes { drafter, ..wishes.with_drafts(1 + rows % 20) }, f64::INFINITY);
            }
        }
    }
}

#[test]
fn no_model_that_drafts_takes_more_than_was_planned() {
    let types = [[KvType::F16; 2], [KvType::Q8_0, KvType::Q4_0]];
    for draft in ["nano-f32", "nano-moe-f32", "mini-Q4_K_M", "mini-llama-Q4_K_M", "mini-qwen3-Q4_K_M"] {
        let model = with_draft("mini-Q8_0", draft);
        for ([key_type, value_type], rows) in types.into_iter().zip([1, 512]) {
            let mut wishes = Wishes::new(1, 256, 3);
            wishes.step_rows = rows + 3;
            wishes.cache = Cache { snapshots: 5, pages: 7 };
            wishes.drafter = Some(TailDrafter::Model { key_type, value_type });
            check(&model, &wishes.with_drafts(1 + rows % 20), f64::INFINITY);
        }
    }
    for (name, draft) in [("mini-f32", "mini-dflash-f32"), ("tiny-hybrid-mtp-q8_0", "tiny-dflash-q8_0")] {
        let model = with_draft(name, draft);
        let blocks = ModelShape::read(&model).expect("a shape").blocks().len();
        for ([key_type, value_type], (shards, rows)) in types.into_iter().zip([(1, 1), (blocks, 512)]) {
            let mut wishes = Wishes::new(shards, 256, 3);
            wishes.step_rows = rows + 3;
            wishes.drafter = Some(TailDrafter::Dflash { key_type, value_type });
            check(&model, &wishes.with_drafts(1 + rows % 20), f64::INFINITY);
        }
    }
}

#[test]
fn a_model_of_real_size_takes_nearly_what_was_planned() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("model.gguf");
    PublishedShape { layers: 12, ..PublishedShape::B0_8 }.with_mtp(1).writer().write(&path).expect("a sparse file");
    let model = Arc::new(Gguf::open(&path).expect("a model"));
    for [key_type, value_type] in [[KvType::Q8_0; 2], [KvType::Q4_1, KvType::Q4_0], [KvType::Iq4Nl; 2]] {
        let wishes = Wishes { key_type, value_type, ..Wishes::new(1, 8192, 4) };
        check(&model, &wishes, 1.035);
        check(&model, &Wishes { shards: Some(3), ..wishes.clone() }, 1.2);
        check(&model, &wishes.clone().with_drafts(15), 1.035);
        let drafter = Some(TailDrafter::Mtp);
        check(&model, &Wishes { drafter, ..wishes.clone().with_drafts(15) }, 1.06);
        check(&model, &Wishes { cache: Cache { snapshots: 16, pages: 100 }, ..wishes }, 1.035);
    }
}

/// A GPU lays things out in its own way: what it takes more than was planned is a small part of the margin that the
/// program leaves on a card, 256 MiB.
#[test]
fn a_gpu_takes_little_more_than_was_planned() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("model.gguf");
    PublishedShape { layers: 8, ..PublishedShape::B0_8 }.writer().write(&path).expect("a sparse file");
    let real = Arc::new(Gguf::open(&path).expect("a model"));
    let device = CudaDevice::new(Arc::new(EmulatedDriver::new(Order::Forwards)));
    for (model, context) in [(real, 8192), (model("mini-moe-Q4_K_M"), 256), (model("mini-llama-Q4_K_M"), 256)] {
        let shape = ModelShape::read(&model).expect("a shape");
        for rows in [1, 512] {
            let mut wishes = Wishes::new(1, context, 4);
            wishes.step_rows = rows + 4;
            wishes.cache = Cache { snapshots: 8, pages: 20 };
            let placement = plan(&shape, &wishes.with_drafts(rows % 20), &LARGE).expect("a plan");
            for (planned, used) in loaded(&model, &placement, &device) {
                let told = format!("{planned:?} planned, {used:?} used");
                assert!(planned.key_value >= used.pages && planned.states >= used.states, "{told}");
                assert!(planned.total() + (32 << 20) >= total(&used), "{told}");
            }
        }
    }
}
