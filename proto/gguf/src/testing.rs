//! For tests only: writes small, header-only and hostile model files.
//!
//! [`GgufWriter`] writes what it is told, right or wrong; the program itself never writes models.

mod published;

use std::{
    fs::File,
    io::{self, Seek, SeekFrom, Write},
    path::Path,
};

use crate::{Array, StringArray, TensorType, Value};

pub use published::PublishedShape;

/// A tensor to be written; every field goes into the file as it is.
#[derive(Clone, Debug)]
pub struct TensorEntry {
    /// The name in the file.
    pub name: String,
    /// The dimensions, contiguous first; any number of them.
    pub dims: Vec<u64>,
    /// The number that stands for the type; see [`TensorType::id`].
    pub type_id: u32,
    /// The offset in the data section; `None` puts it after the previous tensor, aligned.
    pub offset: Option<u64>,
    /// The space kept in the data section.
    pub bytes: u64,
    /// What is written at the start of that space; nothing leaves a hole.
    pub data: Vec<u8>,
}

/// Builds a model file in memory or, with holes in place of data, as a sparse file on the disk.
#[derive(Clone, Debug)]
pub struct GgufWriter {
    /// The version in the header, 3 unless changed.
    pub version: u32,
    /// The tensor count in the header, where it is not the truth.
    pub tensor_count: Option<u64>,
    /// The metadata count in the header, where it is not the truth.
    pub metadata_count: Option<u64>,
    /// What tensor data are aligned to; written as `general.alignment` only by [`GgufWriter::metadata`].
    pub alignment: u64,
    /// The key-value pairs in order.
    pub entries: Vec<(String, Value)>,
    /// The tensors in order.
    pub tensors: Vec<TensorEntry>,
}

impl Default for GgufWriter {
    fn default() -> GgufWriter {
        GgufWriter::new()
    }
}

impl GgufWriter {
    /// A file of version 3 without metadata and tensors.
    pub fn new() -> GgufWriter {
        let (entries, tensors) = (Vec::new(), Vec::new());
        GgufWriter { version: 3, tensor_count: None, metadata_count: None, alignment: 32, entries, tensors }
    }

    /// Appends a key-value pair.
    pub fn metadata(&mut self, key: impl Into<String>, value: impl Into<Value>) -> &mut GgufWriter {
        self.entries.push((key.into(), value.into()));
        self
    }

    /// Appends a tensor with its data.
    pub fn tensor(
        &mut self,
        name: impl Into<String>,
        kind: TensorType,
        dims: &[u64],
        data: Vec<u8>,
    ) -> &mut GgufWriter {
        let bytes = data.len() as u64;
        self.push(TensorEntry { name: name.into(), dims: dims.to_vec(), type_id: kind.id(), offset: None, bytes, data })
    }

    /// Appends a tensor without data: a hole of the right size.
    ///
    /// # Panics
    /// If the size overflows; use [`push`](GgufWriter::push) for that.
    pub fn hole(&mut self, name: impl Into<String>, kind: TensorType, dims: &[u64]) -> &mut GgufWriter {
        let bytes = kind.bytes_for(dims.iter().product::<u64>() as usize) as u64;
        let (name, dims, type_id) = (name.into(), dims.to_vec(), kind.id());
        self.push(TensorEntry { name, dims, type_id, offset: None, bytes, data: Vec::new() })
    }

    /// Appends a tensor as it is.
    pub fn push(&mut self, tensor: TensorEntry) -> &mut GgufWriter {
        self.tensors.push(tensor);
        self
    }

    /// The header: everything before the data section, without padding.
    pub fn header(&self) -> Vec<u8> {
        let mut out = b"GGUF".to_vec();
        out.extend(self.version.to_le_bytes());
        out.extend(self.tensor_count.unwrap_or(self.tensors.len() as u64).to_le_bytes());
        out.extend(self.metadata_count.unwrap_or(self.entries.len() as u64).to_le_bytes());
        for (key, value) in &self.entries {
            write_string(&mut out, key);
            write_value(&mut out, value);
        }
        for (tensor, offset) in self.tensors.iter().zip(self.offsets()) {
            write_string(&mut out, &tensor.name);
            out.extend((tensor.dims.len() as u32).to_le_bytes());
            out.extend(tensor.dims.iter().flat_map(|length| length.to_le_bytes()));
            out.extend(tensor.type_id.to_le_bytes());
            out.extend(offset.to_le_bytes());
        }
        out
    }

    /// The whole file in memory.
    pub fn to_vec(&self) -> Vec<u8> {
        let mut out = self.header();
        out.resize(out.len().next_multiple_of(self.alignment as usize), 0);
        for tensor in &self.tensors {
            out.resize(out.len().next_multiple_of(self.alignment as usize), 0);
            let end = out.len() + tensor.bytes as usize;
            out.extend(&tensor.data);
            out.resize(end, 0);
        }
        out
    }

    /// Writes the file; holes take no space on the disk where the file system can do that.
    pub fn write(&self, path: &Path) -> io::Result<()> {
        let mut file = File::create(path)?;
        let header = self.header();
        file.write_all(&header)?;
        let mut position = (header.len() as u64).next_multiple_of(self.alignment);
        for tensor in &self.tensors {
            position = position.next_multiple_of(self.alignment);
            if !tensor.data.is_empty() {
                file.seek(SeekFrom::Start(position))?;
                file.write_all(&tensor.data)?;
            }
            position += tensor.bytes;
        }
        file.set_len(position)
    }

    fn offsets(&self) -> impl Iterator<Item = u64> {
        let alignment = self.alignment;
        self.tensors.iter().scan(0_u64, move |position, tensor| {
            let offset = position.next_multiple_of(alignment);
            *position = offset + tensor.bytes;
            Some(tensor.offset.unwrap_or(offset))
        })
    }
}

fn write_string(out: &mut Vec<u8>, text: &str) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text.as_bytes());
}

fn write_value(out: &mut Vec<u8>, value: &Value) {
    let type_id: u32 = match value {
        Value::U8(_) => 0,
        Value::I8(_) => 1,
        Value::U16(_) => 2,
        Value::I16(_) => 3,
        Value::U32(_) => 4,
        Value::I32(_) => 5,
        Value::F32(_) => 6,
        Value::Bool(_) => 7,
        Value::String(_) => 8,
        Value::Array(_) => 9,
        Value::U64(_) => 10,
        Value::I64(_) => 11,
        Value::F64(_) => 12,
    };
    out.extend(type_id.to_le_bytes());
    match value {
        Value::U8(value) => out.extend(value.to_le_bytes()),
        Value::I8(value) => out.extend(value.to_le_bytes()),
        Value::U16(value) => out.extend(value.to_le_bytes()),
        Value::I16(value) => out.extend(value.to_le_bytes()),
        Value::U32(value) => out.extend(value.to_le_bytes()),
        Value::I32(value) => out.extend(value.to_le_bytes()),
        Value::U64(value) => out.extend(value.to_le_bytes()),
        Value::I64(value) => out.extend(value.to_le_bytes()),
        Value::F32(value) => out.extend(value.to_le_bytes()),
        Value::F64(value) => out.extend(value.to_le_bytes()),
        Value::Bool(value) => out.push(u8::from(*value)),
        Value::String(text) => write_string(out, text),
        Value::Array(array) => write_array(out, array),
    }
}

fn write_array(out: &mut Vec<u8>, array: &Array) {
    let type_id: u32 = match array {
        Array::U8(_) => 0,
        Array::I8(_) => 1,
        Array::U16(_) => 2,
        Array::I16(_) => 3,
        Array::U32(_) => 4,
        Array::I32(_) => 5,
        Array::F32(_) => 6,
        Array::Bools(_) => 7,
        Array::Strings(_) => 8,
        Array::Arrays(_) => 9,
        Array::U64(_) => 10,
        Array::I64(_) => 11,
        Array::F64(_) => 12,
    };
    out.extend(type_id.to_le_bytes());
    out.extend((array.len() as u64).to_le_bytes());
    match array {
        Array::U8(values) => out.extend(&**values),
        Array::I8(values) => out.extend(values.iter().flat_map(|value| value.to_le_bytes())),
        Array::U16(values) => out.extend(values.iter().flat_map(|value| value.to_le_bytes())),
        Array::I16(values) => out.extend(values.iter().flat_map(|value| value.to_le_bytes())),
        Array::U32(values) => out.extend(values.iter().flat_map(|value| value.to_le_bytes())),
        Array::I32(values) => out.extend(values.iter().flat_map(|value| value.to_le_bytes())),
        Array::U64(values) => out.extend(values.iter().flat_map(|value| value.to_le_bytes())),
        Array::I64(values) => out.extend(values.iter().flat_map(|value| value.to_le_bytes())),
        Array::F32(values) => out.extend(values.iter().flat_map(|value| value.to_le_bytes())),
        Array::F64(values) => out.extend(values.iter().flat_map(|value| value.to_le_bytes())),
        Array::Bools(values) => out.extend(values.iter().map(|&value| u8::from(value))),
        Array::Strings(strings) => strings.iter().for_each(|text| write_string(out, text)),
        Array::Arrays(arrays) => arrays.iter().for_each(|array| write_array(out, array)),
    }
}

impl From<u32> for Value {
    fn from(value: u32) -> Value {
        Value::U32(value)
    }
}

impl From<f32> for Value {
    fn from(value: f32) -> Value {
        Value::F32(value)
    }
}

impl From<bool> for Value {
    fn from(value: bool) -> Value {
        Value::Bool(value)
    }
}

impl From<&str> for Value {
    fn from(text: &str) -> Value {
        Value::String(text.into())
    }
}

impl From<Array> for Value {
    fn from(array: Array) -> Value {
        Value::Array(array)
    }
}

impl From<&[&str]> for Value {
    fn from(strings: &[&str]) -> Value {
        Value::Array(Array::Strings(strings.iter().collect::<StringArray>()))
    }
}

impl From<&[u32]> for Value {
    fn from(values: &[u32]) -> Value {
        Value::Array(Array::U32(values.into()))
    }
}

impl From<&[i32]> for Value {
    fn from(values: &[i32]) -> Value {
        Value::Array(Array::I32(values.into()))
    }
}

impl From<&[bool]> for Value {
    fn from(values: &[bool]) -> Value {
        Value::Array(Array::Bools(values.into()))
    }
}
