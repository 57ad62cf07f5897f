//! The CPU as a [`Device`].

use std::sync::Arc;

use paceline_gguf::Gguf;

use super::pool::Pool;
use super::simd::Isa;
use super::stage::CpuStage;
use super::weights::Loaded;
use crate::device::{Description, Device, KeptWeights, LoadedStage, MemorySpec};
use crate::program::Program;
use crate::shelf::Shelf;
use crate::{Error, Result};

/// Some threads of this host. Stages that share a device take turns on its threads.
pub struct CpuDevice {
    pub(super) pool: Arc<Pool>,
    pub(super) isa: Isa,
    pub(super) shelf: Shelf<Loaded>,
    /// Whether keys and values in blocks are rotated first.
    pub(super) rotation: bool,
}

impl CpuDevice {
    /// Starts a device of `threads` threads, the one that runs a step included. Results are the same bits for
    /// any number of threads and any instruction set; without `isa` the fastest is taken.
    ///
    /// # Errors
    /// An instruction set that this host lacks; threads that the system does not grant.
    pub fn new(threads: usize, isa: Option<Isa>) -> Result<Self> {
        let isa = usable(isa)?;
        Ok(Self { pool: Arc::new(Pool::new(threads)?), isa, shelf: Shelf::default(), rotation: true })
    }

    /// Starts a device of one thread per core of `cores`, numbered as the system does, and keeps each on its core. The
    /// thread that runs a step belongs to the first core, and is kept there from its first step on.
    ///
    /// # Errors
    /// As [`CpuDevice::new`]. A core that the system refuses is no error: the thread then runs anywhere.
    pub fn on_cores(cores: &[usize], isa: Option<Isa>) -> Result<Self> {
        let isa = usable(isa)?;
        Ok(Self { pool: Arc::new(Pool::on_cores(cores)?), isa, shelf: Shelf::default(), rotation: true })
    }

    /// The same device, whose stages do not rotate keys and values before they round them to blocks: for comparison.
    #[must_use]
    pub fn without_rotation(self) -> Self {
        Self { rotation: false, ..self }
    }
}

/// The instruction set to use, if the host has it.
fn usable(isa: Option<Isa>) -> Result<Isa> {
    let isa = isa.unwrap_or_else(Isa::detect);
    if !isa.is_available() {
        let available = Isa::ALL.into_iter().filter(|isa| isa.is_available()).map(Isa::name);
        let available = available.collect::<Vec<_>>().join(", ");
        return Err(Error::MissingInstructions { isa: isa.to_string(), available });
    }
    Ok(isa)
}

impl Device for CpuDevice {
    fn describe(&self) -> Description {
        let threads = self.pool.threads();
        let plural = if threads == 1 { "" } else { "s" };
        Description { name: "cpu".to_owned(), detail: format!("{}, {threads} thread{plural}", self.isa) }
    }

    fn keep(&self, program: &Program, model: &Arc<Gguf>) -> KeptWeights {
        let found: Vec<Arc<Loaded>> = self.shelf.find(program, model).into_iter().flatten().collect();
        KeptWeights::new(found.iter().map(|tensor| tensor.bytes()).sum(), found)
    }

    fn load(
        &self,
        program: Program,
        model: &Arc<Gguf>,
        memory: MemorySpec,
        progress: &mut dyn FnMut(u64),
    ) -> Result<Box<dyn LoadedStage>> {
        Ok(Box::new(CpuStage::load(self, program, model, memory, progress)?))
    }
}
