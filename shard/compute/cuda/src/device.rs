//! A GPU as a [`Device`].

use std::sync::Arc;

use paceline_compute::device::{Description, KeptWeights, MemorySpec};
use paceline_compute::program::Program;
use paceline_compute::shelf::Shelf;
use paceline_compute::{Device, LoadedStage, Result};
use paceline_gguf::Gguf;

use crate::driver::Driver;
use crate::stage::CudaStage;
use crate::weights::Loaded;

/// A GPU behind a driver. Its stages take turns on it.
pub struct CudaDevice {
    pub(crate) driver: Arc<dyn Driver>,
    pub(crate) shelf: Shelf<Loaded>,
    /// Whether keys and values in blocks are rotated first.
    pub(crate) rotation: bool,
}

impl CudaDevice {
    /// The GPU of a driver.
    pub fn new(driver: Arc<dyn Driver>) -> Self {
        Self { driver, shelf: Shelf::default(), rotation: true }
    }

    /// The same device, whose stages do not rotate keys and values before they round them to blocks: for comparison.
    #[must_use]
    pub fn without_rotation(self) -> Self {
        Self { rotation: false, ..self }
    }

    /// What it runs on.
    pub fn driver(&self) -> &Arc<dyn Driver> {
        &self.driver
    }
}

impl Device for CudaDevice {
    fn describe(&self) -> Description {
        self.driver.describe()
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
        Ok(Box::new(CudaStage::load(self, program, model, memory, progress)?))
    }
}
