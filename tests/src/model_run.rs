//! [`paceline_evaluation::ModelRun`] for tests: whatever cannot be run is a panic.

use std::ops::Range;
use std::sync::Arc;

use paceline_compute::Device;
use paceline_compute::cpu::CpuDevice;
use paceline_compute::program::{Buffer, Program, Recorded};
pub use paceline_evaluation::Chunk;
use paceline_gguf::{Gguf, KvType};

/// The device that tests use if any will do: two threads, and the fastest instructions that there are.
pub fn cpu() -> CpuDevice {
    CpuDevice::new(2, None).expect("every machine has two threads to give")
}

/// How a model is laid out and how much it can hold.
#[derive(Debug, Clone)]
pub struct Layout {
    /// Layers of each stage, in order; none for one stage with all.
    pub splits: Vec<Range<usize>>,
    /// How keys and values are stored.
    pub key_value_type: KvType,
    /// Tokens per page.
    pub page_tokens: usize,
    /// The longest sequence.
    pub context: usize,
    /// The most sessions.
    pub sessions: usize,
    /// The most rows of a step.
    pub rows: usize,
}

impl Default for Layout {
    fn default() -> Layout {
        let splits = Vec::new();
        Layout { splits, key_value_type: KvType::F32, page_tokens: 16, context: 256, sessions: 4, rows: 64 }
    }
}

/// A model in place, and the sessions that it is running.
pub struct ModelRun(paceline_evaluation::ModelRun);

impl ModelRun {
    /// Loads every stage of `model` on `device`.
    ///
    /// # Panics
    /// If a stage cannot be recorded or loaded.
    pub fn new(device: &dyn Device, model: &Arc<Gguf>, layout: Layout) -> ModelRun {
        ModelRun::on(&[device], model, layout)
    }

    /// Loads every stage of `model` on one of the devices, which are dealt out in turn.
    ///
    /// # Panics
    /// If a stage cannot be recorded or loaded.
    pub fn on(devices: &[&dyn Device], model: &Arc<Gguf>, layout: Layout) -> ModelRun {
        let Layout { splits, key_value_type, page_tokens, context, sessions, rows } = layout;
        let layout = paceline_evaluation::Layout {
            splits,
            key_value_types: [key_value_type; 2],
            page_tokens,
            context,
            sessions,
            rows,
            wanted: rows,
            ..paceline_evaluation::Layout::default()
        };
        ModelRun(paceline_evaluation::ModelRun::on(devices, model, layout).expect("every stage is loaded"))
    }

    /// Runs one step and returns the logits of every row, in order.
    ///
    /// # Panics
    /// If the step does not fit, or a stage refuses it.
    pub fn step(&mut self, chunks: &[Chunk]) -> Vec<Vec<f32>> {
        self.0.step(chunks).expect("the step runs")
    }

    /// The final hidden rows of the last step of `rows` rows.
    ///
    /// # Panics
    /// If there was no such step.
    pub fn hidden(&mut self, rows: usize) -> Vec<Vec<f32>> {
        self.0.hidden(rows).expect("the step had these rows")
    }

    /// Runs one step and shows every operation of every stage with the buffers as it left them.
    ///
    /// # Panics
    /// As [`ModelRun::step`].
    pub fn observe(&mut self, chunks: &[Chunk], observe: impl FnMut(&Program, &Recorded, &dyn Fn(Buffer) -> Vec<f32>)) {
        self.0.observe(chunks, observe).expect("the step runs");
    }

    /// Runs a session's next tokens in chunks of at most `chunk` and returns the logits of every row.
    ///
    /// # Panics
    /// As [`ModelRun::step`].
    pub fn text(&mut self, session: u32, tokens: &[u32], chunk: usize) -> Vec<Vec<f32>> {
        self.0.text(session, tokens, chunk).expect("the step runs")
    }

    /// As [`ModelRun::text`], but returns the logits of the last row only: what comes next.
    ///
    /// # Panics
    /// As [`ModelRun::step`]; if there are no tokens.
    pub fn next(&mut self, session: u32, tokens: &[u32], chunk: usize) -> Vec<f32> {
        self.0.next(session, tokens, chunk).expect("the step runs").expect("there are tokens")
    }

    /// Begins a session that goes on from where another is, as a cache does it.
    ///
    /// # Panics
    /// If there is no such session, or no room for another.
    pub fn fork(&mut self, session: u32, copy: u32) {
        self.0.fork(session, copy).expect("there is room");
    }

    /// Ends a session; its pages and slot are used again.
    ///
    /// # Panics
    /// If there is no such session.
    pub fn end(&mut self, session: u32) {
        self.0.end(session).expect("the session is running");
    }
}
