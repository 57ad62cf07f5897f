//! The tensors of a program, brought from the model file into the form that operations read.

use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use paceline_gguf::{Gguf, Tensor};

use super::linear::{PANEL_ROWS, PackedWeight};
use super::pool::Pool;
use crate::blocks::dequantize_row;
use crate::program::{WeightSpec, WeightUse};
use crate::{Error, Result};

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

/// Rows that are looked up where the model file has them: only pages with rows in use are in memory.
pub(crate) struct Table {
    model: Arc<Gguf>,
    tensor: String,
    /// The first of its rows that belongs to the table.
    first: usize,
}

impl Table {
    /// Reads one row.
    pub(crate) fn read(&self, row: usize, into: &mut [f32]) {
        let tensor = self.model.tensor(&self.tensor).expect("the tensor was there when the table was loaded");
        let row = self.first + row;
        dequantize_row(tensor.kind, tensor.rows(row..row + 1), into);
    }
}

/// Has the system read the bytes of a tensor that is loaded next.
pub(super) fn read_ahead(spec: &WeightSpec, model: &Gguf) {
    if let (Some(tensor), true) = (model.tensor(&spec.tensor), spec.usage != WeightUse::Table) {
        model.read_ahead(tensor.data);
    }
}

impl Loaded {
    /// Finds a tensor and brings it into its form, with all threads of `pool`.
    ///
    /// # Errors
    /// A tensor that is missing or has too few rows; memory that cannot be had.
    pub(crate) fn load(spec: &WeightSpec, model: &Arc<Gguf>, pool: &Pool) -> Result<Self> {
        let missing = || Error::MissingTensor { tensor: spec.tensor.clone() };
        let source = Source::new(spec, model, model.tensor(&spec.tensor).ok_or_else(missing)?)?;
        let values = match spec.usage {
            WeightUse::Matrix | WeightUse::Experts => Values::Packed(source.pack(pool)?),
            WeightUse::Table => Values::Table(source.table(spec)),
            WeightUse::Vector => Values::Vector(source.convert()?),
        };
        Ok(Self { tensor: spec.tensor.clone(), shape: source.shape, values })
    }

    /// Bytes it occupies beside the model file.
    pub(crate) fn bytes(&self) -> u64 {
        match &self.values {
            Values::Packed(packed) => packed.bytes() as u64,
            Values::Table(_) => 0,
            Values::Vector(values) => size_of_val(&values[..]) as u64,
        }
    }

    /// The tensor's name.
    pub(crate) fn tensor(&self) -> &str {
        &self.tensor
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

/// The rows and columns of a tensor that are wanted.
struct Source<'a> {
    model: &'a Arc<Gguf>,
    tensor: Tensor<'a>,
    /// The wanted rows of each matrix, of so many.
    rows: Range<usize>,
    all_rows: usize,
    /// The wanted bytes of each row.
    row: Range<usize>,
    /// `(wanted columns, wanted rows, matrices)`.
    shape: [usize; 3],
}

impl<'a> Source<'a> {
    fn new(spec: &WeightSpec, model: &'a Arc<Gguf>, tensor: Tensor<'a>) -> Result<Self> {
        let dims = tensor.shape.dims();
        let matrices = match spec.usage {
            WeightUse::Experts => dims.get(2..).map_or(1, |rest| rest.iter().product()),
            _ => 1,
        };
        let all_rows = tensor.shape.rows() / matrices.max(1);
        let rows = spec.rows.clone().unwrap_or(0..all_rows);
        if rows.start > rows.end || rows.end > all_rows {
            return Err(Error::WrongShape {
                tensor: spec.tensor.clone(),
                found: tensor.shape.to_string(),
                expected: format!("at least {} rows", rows.end),
            });
        }
        let columns = wanted_columns(spec, &tensor)?;
        let row = tensor.kind.bytes_for(columns.start)..tensor.kind.bytes_for(columns.end);
        let shape = [columns.len(), rows.len(), matrices];
        Ok(Self { model, tensor, rows, all_rows, row, shape })
    }

    /// Packs with all threads; what has been packed leaves the program's memory of the file at once.
    fn pack(&self, pool: &Pool) -> Result<PackedWeight> {
        let [columns, rows, matrices] = self.shape;
        let mut packed = PackedWeight::zeroed(self.tensor.kind, matrices, rows, columns)?;
        let gathered = if self.is_one_piece() { None } else { Some(self.gather()?) };
        let bytes = gathered.as_deref().unwrap_or_else(|| self.piece());
        let row_bytes = self.row.len();
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
                self.model.forget(&bytes[own.start * row_bytes..own.end * row_bytes]);
            }
        })?;
        drop(parts);
        // A fault maps some pages around it, which may lie in parts that were forgotten.
        self.model.forget(bytes);
        match failed.into_inner().unwrap_or_else(PoisonError::into_inner) {
            Some(error) => Err(error),
            None => Ok(packed),
        }
    }

    /// Does all that is wanted lie one behind the other?
    fn is_one_piece(&self) -> bool {
        let whole_rows = self.row.len() == self.tensor.row_bytes();
        whole_rows && (self.shape[2] == 1 || self.rows.len() == self.all_rows)
    }

    /// What is wanted of all matrices, one behind the other.
    fn gather(&self) -> Result<Vec<u8>> {
        let [_, rows, matrices] = self.shape;
        let mut bytes = Vec::new();
        reserve(&mut bytes, rows * matrices * self.row.len())?;
        for matrix in 0..matrices {
            let first = matrix * self.all_rows;
            let part = self.tensor.rows(first + self.rows.start..first + self.rows.end);
            let rows = part.chunks_exact(self.tensor.row_bytes().max(1));
            rows.for_each(|row| bytes.extend_from_slice(&row[self.row.clone()]));
            self.model.forget(part);
        }
        Ok(bytes)
    }

    /// What is wanted, where it is one piece.
    fn piece(&self) -> &'a [u8] {
        let last = self.shape[2].saturating_sub(1) * self.all_rows;
        self.tensor.rows(self.rows.start..last + self.rows.end)
    }

    fn table(&self, spec: &WeightSpec) -> Table {
        Table { model: Arc::clone(self.model), tensor: spec.tensor.clone(), first: self.rows.start }
    }

    fn convert(&self) -> Result<Vec<f32>> {
        let mut values = Vec::new();
        let length = self.shape[0] * self.shape[1];
        reserve(&mut values, length)?;
        values.resize(length, 0.0);
        dequantize_row(self.tensor.kind, self.piece(), &mut values);
        self.model.forget(self.piece());
        Ok(values)
    }
}

/// The columns that are wanted of a tensor, which must be whole blocks.
fn wanted_columns(spec: &WeightSpec, tensor: &Tensor<'_>) -> Result<Range<usize>> {
    let all = tensor.shape.columns();
    let Some(columns) = spec.columns.clone() else { return Ok(0..all) };
    assert_eq!(spec.usage, WeightUse::Matrix, "{}: parts of rows are wanted of a matrix only", spec.tensor);
    if columns.start > columns.end || columns.end > all {
        return Err(Error::WrongShape {
            tensor: spec.tensor.clone(),
            found: tensor.shape.to_string(),
            expected: format!("at least {} columns", columns.end),
        });
    }
    let (kind, block) = (tensor.kind, tensor.kind.block_len());
    let partial = [columns.start, columns.end].into_iter().find(|border| !border.is_multiple_of(block));
    partial.map_or(Ok(columns), |columns| Err(Error::PartialBlock { kind, columns, block }))
}

fn reserve<T>(values: &mut Vec<T>, length: usize) -> Result<()> {
    let bytes = (length as u64).saturating_mul(size_of::<T>() as u64);
    values.try_reserve_exact(length).map_err(|_| Error::OutOfMemory { what: "weights", bytes })
}
