//! The tensors of a program in the model file, of which it may want some rows or columns only.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

use paceline_gguf::{Gguf, Tensor, TensorType};

use crate::blocks::dequantize_row;
use crate::program::{WeightSpec, WeightUse};
use crate::{Error, Result};

/// Rows that are looked up where the model file has them: only pages with rows in use are in memory.
pub struct Table {
    model: Arc<Gguf>,
    tensor: String,
    /// The first of its rows that belongs to the table.
    first: usize,
}

impl Table {
    /// Reads one row.
    ///
    /// # Panics
    /// If there is no such row, or `into` has another length.
    pub fn read(&self, row: usize, into: &mut [f32]) {
        let tensor = self.model.tensor(&self.tensor).expect("the tensor was there when the table was loaded");
        let row = self.first + row;
        dequantize_row(tensor.kind, tensor.rows(row..row + 1), into);
    }
}

/// Has the system read the bytes of a tensor that is loaded next.
pub fn read_ahead(spec: &WeightSpec, model: &Gguf) {
    if let (Some(tensor), true) = (model.tensor(&spec.tensor), spec.usage != WeightUse::Table) {
        model.read_ahead(tensor.data);
    }
}

/// The rows and columns of a tensor that a program wants.
pub struct Source<'a> {
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
    /// Finds a tensor.
    ///
    /// # Errors
    /// A tensor that is missing, that has too few rows or columns, or of which parts of blocks are wanted.
    pub fn find(spec: &WeightSpec, model: &'a Arc<Gguf>) -> Result<Self> {
        let missing = || Error::MissingTensor { tensor: spec.tensor.clone() };
        let tensor = model.tensor(&spec.tensor).ok_or_else(missing)?;
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

    /// How it is stored.
    pub fn kind(&self) -> TensorType {
        self.tensor.kind
    }

    /// `(columns, rows, matrices)`, of what is wanted.
    pub fn shape(&self) -> [usize; 3] {
        self.shape
    }

    /// Bytes of a row of what is wanted.
    pub fn row_bytes(&self) -> usize {
        self.row.len()
    }

    /// What is wanted of all matrices, one behind the other: as the file has it, or gathered.
    ///
    /// # Errors
    /// Memory that cannot be had.
    pub fn bytes(&self) -> Result<Cow<'a, [u8]>> {
        if self.is_one_piece() { Ok(Cow::Borrowed(self.piece())) } else { self.gather().map(Cow::Owned) }
    }

    /// Says that some of the file's bytes are needed no more, so that they leave memory.
    pub fn forget(&self, bytes: &[u8]) {
        self.model.forget(bytes);
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

    /// The rows, to be looked up while the model is open.
    pub fn table(&self, spec: &WeightSpec) -> Table {
        Table { model: Arc::clone(self.model), tensor: spec.tensor.clone(), first: self.rows.start }
    }

    /// All values, which are one piece of the file.
    ///
    /// # Errors
    /// Memory that cannot be had.
    pub fn convert(&self) -> Result<Vec<f32>> {
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
