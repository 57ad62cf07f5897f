//! The tensors of a program, brought from the model file into the form that operations read.

use std::sync::{Arc, Mutex, PoisonError};

use paceline_gguf::Gguf;

use super::linear::{PANEL_ROWS, PackedWeight};
use super::pool::Pool;
use crate::Result;
use crate::program::{WeightSpec, WeightUse};
use crate::shapes::TensorShape;
use crate::tensors::{Source, Table};

/// Bytes of the file that a thread packs at a time: enough that threads seldom meet, and little that is in memory
/// twice.
const BYTES_PER_PART: usize = 1 << 20;

/// A loaded tensor.
pub(crate) struct Loaded {
    tensor: String,
    /// `(columns, rows, matrices)`.
    shape: [usize; 3],
    values: Values,
}

enum Values {
    Packed(PackedWeight),
    Table(Table),
    Vector(Vec<f32>),
}

impl Loaded {
    /// Finds a tensor and brings it into its form, with all threads of `pool`.
    ///
    /// # Errors
    /// A tensor that is missing or has too few rows; memory that cannot be had.
    pub(crate) fn load(spec: &WeightSpec, model: &Arc<Gguf>, pool: &Pool) -> Result<Self> {
        let source = Source::find(spec, model)?;
        let values = match spec.usage {
            WeightUse::Matrix | WeightUse::Experts => Values::Packed(pack(&source, pool)?),
            WeightUse::Table => Values::Table(source.table(spec)),
            WeightUse::Vector => Values::Vector(source.convert()?),
        };
        Ok(Self { tensor: spec.tensor.clone(), shape: source.shape(), values })
    }

    /// Bytes it occupies beside the model file.
    pub(crate) fn bytes(&self) -> u64 {
        match &self.values {
            Values::Packed(packed) => packed.bytes() as u64,
            Values::Table(_) => 0,
            Values::Vector(values) => size_of_val(&values[..]) as u64,
        }
    }

    /// The same with the tensor's name.
    pub(crate) fn shape_of(&self) -> TensorShape<'_> {
        TensorShape { tensor: &self.tensor, shape: self.shape }
    }

    /// `(columns, rows, matrices)`, of the rows and columns that were asked for.
    pub(crate) fn shape(&self) -> [usize; 3] {
        self.shape
    }

    /// The matrices, of a tensor that is used as such.
    pub(crate) fn packed(&self) -> &PackedWeight {
        match &self.values {
            Values::Packed(packed) => packed,
            _ => panic!("{} is not used as a matrix", self.tensor),
        }
    }

    /// The table, of a tensor that is used as such.
    pub(crate) fn table(&self) -> &Table {
        match &self.values {
            Values::Table(table) => table,
            _ => panic!("{} is not used as a table", self.tensor),
        }
    }

    /// The values, of a tensor that is used as such.
    pub(crate) fn vector(&self) -> &[f32] {
        match &self.values {
            Values::Vector(values) => values,
            _ => panic!("{} is not used as a vector", self.tensor),
        }
    }
}

/// Packs with all threads; what has been packed leaves the program's memory of the file at once.
fn pack(source: &Source<'_>, pool: &Pool) -> Result<PackedWeight> {
    let [columns, rows, matrices] = source.shape();
    let mut packed = PackedWeight::zeroed(source.kind(), matrices, rows, columns)?;
    let bytes = &*source.bytes()?;
    let row_bytes = source.row_bytes();
    let panels_per_part = (BYTES_PER_PART / (PANEL_ROWS * row_bytes).max(1)).max(1);
    let parts = Mutex::new(packed.panels_mut(panels_per_part));
    let failed = Mutex::new(None);
    pool.run(&|_| {
        loop {
            let part = parts.lock().unwrap_or_else(PoisonError::into_inner).next();
            let Some(mut part) = part else { return };
            let own = part.source_rows();
            if let Err(error) = part.fill(bytes) {
                *failed.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
                return;
            }
            source.forget(&bytes[own.start * row_bytes..own.end * row_bytes]);
        }
    })?;
    drop(parts);
    // A fault maps some pages around it, which may lie in parts that were forgotten.
    source.forget(bytes);
    match failed.into_inner().unwrap_or_else(PoisonError::into_inner) {
        Some(error) => Err(error),
        None => Ok(packed),
    }
}
