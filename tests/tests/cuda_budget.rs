//! What is reckoned of a decode step on a GPU is what happens: as many launches.

use std::sync::Arc;

use paceline_compute::Device;
use paceline_compute::device::{ChunkLog, ChunkRows, LogSpec, MemorySpec, StepInputs};
use paceline_cuda::CudaDevice;
use paceline_cuda::budget;
use paceline_cuda::driver::Driver;
use paceline_emulation::{EmulatedDriver, Order};
use paceline_gguf::{KvType, ModelShape};
use paceline_model::StageLayers;
use paceline_tests::models::model;

#[test]
fn launches_are_counted_before_they_happen() {
    let names = ["nano16-f32", "mini-moe-Q4_K_M", "mini-llama-Q4_K_M", "mini-qwen3-Q4_K_M", "mini-moe-MXFP4_MOE"];
    for (name, logs) in names.into_iter().zip([LogSpec::NONE, LogSpec { sessions: 1, tokens: 2 }].into_iter().cycle()) {
        let model = model(name);
        let layers = ModelShape::read(&model).expect("a shape").layers.len();
        let memory = MemorySpec {
            page_tokens: 64,
            pages: 8,
            slots: 1,
            key_type: KvType::F16,
            value_type: KvType::Q8_0,
            rows: 300,
            wanted: 1,
            logs,
        };
        let program = paceline_model::record(&model, &StageLayers::of(0..layers, layers)).expect("a program");
        let driver = Arc::new(EmulatedDriver::new(Order::Forwards));
        let device = CudaDevice::new(Arc::clone(&driver) as Arc<dyn Driver>);
        let mut stage = device.load(program.clone(), &model, memory, &mut |_| ()).expect("a stage");
        let pages: Vec<u32> = (0..8).collect();
        for start in [0, 300] {
            let chunks = [ChunkRows { first_row: 0, rows: 1, start, slot: 0, pages: &pages, log: ChunkLog::default() }];
            let positions = [[start as u32, start as u32, start as u32, 0]];
            let inputs =
                StepInputs { chunks: &chunks, tokens: &[1], vectors: &[], positions: &positions, wanted: &[0] };
            let before = driver.launches();
            stage.run(&inputs).expect("a step");
            let costs = budget::decode(&program, &model, &memory, start).expect("a cost");
            let expected: usize = costs.iter().map(|cost| cost.launches).sum();
            assert_eq!(driver.launches() - before, expected, "{name} at {start}");
        }
        let weights: u64 = (0..program.weights.len() as u32)
            .map(|weight| stage.weight_bytes(paceline_compute::program::Weight(weight)))
            .sum();
        let read: u64 = budget::decode(&program, &model, &memory, 0)
            .expect("a cost")
            .iter()
            .filter(|cost| ["linear", "experts"].contains(&cost.operation))
            .map(|cost| cost.bytes)
            .sum();
        assert!(read <= weights && read * 20 > weights, "{name}: {read} of {weights} bytes");
    }
}
