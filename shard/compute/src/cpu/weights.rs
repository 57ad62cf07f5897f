//! The tensors of a program, brought from the model file into the form that operations read.

use std::sync::{Mutex, PoisonError};

use paceline_gguf::{Gguf, Tensor, TensorType};

use super::linear::PackedWeight;
use super::pool::Pool;
use super::shared::Shared;
use crate::blocks::dequantize_row;
use crate::program::{WeightSpec, WeightUse};
use crate::{Error, Result};

/// Panels that a thread packs at a time.
const PANELS_PER_PART: usize = 16;

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

/// Rows that are looked up, as the file stores them.
pub(crate) struct Table {
    kind: TensorType,
    row_bytes: usize,
    bytes: Shared<u8>,
}

impl Table {
    /// Reads one row.
    #[expect(unsafe_code, reason = "tables are never written after loading")]
    pub(crate) fn read(&self, row: usize, into: &mut [f32]) {
        // SAFETY: nobody has written since the table was loaded.
        let bytes = unsafe { self.bytes.part(row * self.row_bytes..(row + 1) * self.row_bytes) };
        dequantize_row(self.kind, bytes, into);
    }
}

impl Loaded {
    /// Finds a tensor and brings it into its form, with all threads of `pool`.
    ///
    /// # Errors
    /// A tensor that is missing or has too few rows; memory that cannot be had.
    pub(crate) fn load(spec: &WeightSpec, model: &Gguf, pool: &Pool) -> Result<Self> {
        let missing = || Error::MissingTensor { tensor: spec.tensor.clone() };
        let source = Source::new(spec, model.tensor(&spec.tensor).ok_or_else(missing)?)?;
        let values = match spec.usage {
            WeightUse::Matrix | WeightUse::Experts => Values::Packed(source.pack(pool)?),
            WeightUse::Table => Values::Table(source.copy()?),
            WeightUse::Vector => Values::Vector(source.convert()?),
        };
        Ok(Self { tensor: spec.tensor.clone(), shape: source.shape, values })
    }

    /// Bytes it occupies.
    pub(crate) fn bytes(&self) -> u64 {
        match &self.values {
            Values::Packed(packed) => packed.bytes() as u64,
            Values::Table(table) => table.bytes.bytes(),
            Values::Vector(values) => size_of_val(&values[..]) as u64,
        }
    }

    /// The tensor's name.
    pub(crate) fn tensor(&self) -> &str {
        &self.tensor
    }

    /// `(columns, rows, matrices)`, of the rows that were asked for.
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

/// The rows of a tensor that are wanted.
struct Source<'a> {
    kind: TensorType,
    shape: [usize; 3],
    /// The wanted rows of each matrix.
    parts: Vec<&'a [u8]>,
}

impl<'a> Source<'a> {
    fn new(spec: &WeightSpec, tensor: Tensor<'a>) -> Result<Self> {
        let dims = tensor.shape.dims();
        let matrices = match spec.usage {
            WeightUse::Experts => dims.get(2..).map_or(1, |rest| rest.iter().product()),
            _ => 1,
        };
        let all = tensor.shape.rows() / matrices.max(1);
        let rows = spec.rows.clone().unwrap_or(0..all);
        if rows.start > rows.end || rows.end > all {
            return Err(Error::WrongShape {
                tensor: spec.tensor.clone(),
                found: tensor.shape.to_string(),
                expected: format!("at least {} rows", rows.end),
            });
        }
        let shape = [tensor.shape.columns(), rows.len(), matrices];
        let part = |matrix: usize| tensor.rows(matrix * all + rows.start..matrix * all + rows.end);
        Ok(Self { kind: tensor.kind, shape, parts: (0..matrices).map(part).collect() })
    }

    fn pack(&self, pool: &Pool) -> Result<PackedWeight> {
        let [columns, rows, matrices] = self.shape;
        let mut packed = PackedWeight::zeroed(self.kind, matrices, rows, columns)?;
        let gathered;
        let bytes = match self.parts[..] {
            [whole] => whole,
            _ => {
                gathered = self.gather()?;
                &gathered
            }
        };
        let parts = Mutex::new(packed.panels_mut(PANELS_PER_PART));
        let failed = Mutex::new(None);
        pool.run(&|_| {
            loop {
                let part = parts.lock().unwrap_or_else(PoisonError::into_inner).next();
                let Some(mut part) = part else { return };
                if let Err(error) = part.fill(bytes) {
                    *failed.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
                }
            }
        })?;
        drop(parts);
        match failed.into_inner().unwrap_or_else(PoisonError::into_inner) {
            Some(error) => Err(error),
            None => Ok(packed),
        }
    }

    /// The wanted rows of all matrices, one behind the other.
    fn gather(&self) -> Result<Vec<u8>> {
        let length = self.parts.iter().map(|part| part.len()).sum();
        let mut bytes = Vec::new();
        reserve(&mut bytes, length)?;
        for part in &self.parts {
            bytes.extend_from_slice(part);
        }
        Ok(bytes)
    }

    fn copy(&self) -> Result<Table> {
        let source = self.parts[0];
        let mut bytes = Shared::zeroed("weights", source.len())?;
        bytes.all_mut().copy_from_slice(source);
        Ok(Table { kind: self.kind, row_bytes: self.kind.bytes_for(self.shape[0]), bytes })
    }

    fn convert(&self) -> Result<Vec<f32>> {
        let mut values = Vec::new();
        let length = self.shape[0] * self.shape[1];
        reserve(&mut values, length)?;
        values.resize(length, 0.0);
        dequantize_row(self.kind, self.parts[0], &mut values);
        Ok(values)
    }
}

fn reserve<T>(values: &mut Vec<T>, length: usize) -> Result<()> {
    let bytes = (length as u64).saturating_mul(size_of::<T>() as u64);
    values.try_reserve_exact(length).map_err(|_| Error::OutOfMemory { what: "weights", bytes })
}
