//! The tensors of a program, brought from the model file to the device. Blocks stay as the file has them.

use std::sync::Arc;

use paceline_compute::Result;
use paceline_compute::program::{Program, WeightSpec, WeightUse};
use paceline_compute::shelf::Shelf;
use paceline_compute::tensors::{Source, Table, read_ahead};
use paceline_gguf::{Gguf, TensorType};

use crate::driver::{Address, Driver};
use crate::memory::Memory;

/// Bytes of the file that are copied at a time, before they leave the program's memory of it.
const BYTES_PER_PART: usize = 64 << 20;

/// A loaded tensor.
pub(crate) struct Loaded {
    tensor: String,
    kind: TensorType,
    values: Values,
}

enum Values {
    OnDevice(Memory),
    /// Rows that are looked up where the file has them, and brought to the device with a step.
    Mapped(Table),
}

impl Loaded {
    fn load(spec: &WeightSpec, model: &Arc<Gguf>, driver: &Arc<dyn Driver>) -> Result<Self> {
        let source = Source::find(spec, model)?;
        let values = match spec.usage {
            WeightUse::Matrix | WeightUse::Experts => Values::OnDevice(upload(&source, driver)?),
            WeightUse::Vector => {
                let bytes: Vec<u8> = source.convert()?.into_iter().flat_map(f32::to_le_bytes).collect();
                Values::OnDevice(Memory::holding(driver, "weights", &bytes)?)
            }
            WeightUse::Table => Values::Mapped(source.table(spec)),
        };
        Ok(Self { tensor: spec.tensor.clone(), kind: source.kind(), values })
    }

    /// Bytes it occupies on the device.
    pub(crate) fn bytes(&self) -> u64 {
        match &self.values {
            Values::OnDevice(memory) => memory.bytes() as u64,
            Values::Mapped(_) => 0,
        }
    }

    /// How a matrix is stored.
    pub(crate) fn kind(&self) -> TensorType {
        self.kind
    }

    /// Where a matrix or a vector lies.
    pub(crate) fn address(&self) -> Address {
        self.memory().address()
    }

    /// The values of a vector.
    ///
    /// # Errors
    /// If the device fails.
    pub(crate) fn vector(&self) -> Result<Vec<f32>> {
        let memory = self.memory();
        let mut bytes = vec![0; memory.bytes()];
        memory.read(0, &mut bytes)?;
        Ok(bytes.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect())
    }

    /// The table, of a tensor that is used as such.
    pub(crate) fn table(&self) -> &Table {
        match &self.values {
            Values::Mapped(table) => table,
            Values::OnDevice(_) => panic!("{} is not used as a table", self.tensor),
        }
    }

    fn memory(&self) -> &Memory {
        match &self.values {
            Values::OnDevice(memory) => memory,
            Values::Mapped(_) => panic!("{} is used as a table", self.tensor),
        }
    }
}

/// Copies a matrix to the device, part by part.
fn upload(source: &Source<'_>, driver: &Arc<dyn Driver>) -> Result<Memory> {
    let bytes = &*source.bytes()?;
    let memory = Memory::reserve(driver, "weights", bytes.len())?;
    for (part, content) in bytes.chunks(BYTES_PER_PART).enumerate() {
        memory.write(part * BYTES_PER_PART, content)?;
        source.forget(content);
    }
    Ok(memory)
}

/// All tensors of a program: those that are on the device already, and the others, which are read.
///
/// # Errors
/// A tensor that is missing or too small; memory that cannot be had.
pub(crate) fn load_all(
    shelf: &Shelf<Loaded>,
    driver: &Arc<dyn Driver>,
    program: &Program,
    model: &Arc<Gguf>,
    progress: &mut dyn FnMut(u64),
) -> Result<Vec<Arc<Loaded>>> {
    let mut found = shelf.find(program, model);
    for (index, spec) in program.weights.iter().enumerate() {
        if found[index].is_some() {
            continue;
        }
        if let Some(next) = program.weights.get(index + 1).filter(|_| found[index + 1].is_none()) {
            read_ahead(next, model);
        }
        let tensor = Arc::new(Loaded::load(spec, model, driver)?);
        shelf.put(spec, model, &tensor);
        found[index] = Some(tensor);
        progress(model.tensor(&spec.tensor).map_or(0, |tensor| tensor.data.len() as u64));
    }
    Ok(found.into_iter().flatten().collect())
}
