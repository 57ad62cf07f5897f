//! The header of one file: checked in full, without touching the data behind it.

#[cfg(test)]
mod tests;

use std::{ops::Range, sync::Arc};

use crate::{Error, Metadata, Result, Shape, TensorType, cursor::Cursor, tensor_type::unsupported_name};

/// The longest header that is read; a vocabulary of a quarter of a million tokens takes about ten megabytes.
///
/// Without it a sparse file of a few kilobytes could make us hold terabytes of zeros.
pub const MAX_HEADER_BYTES: u64 = 256 << 20;
/// The most metadata entries; ordinary files have about forty.
pub const MAX_METADATA_ENTRIES: u64 = 1 << 16;
/// The most tensors in a file; the largest models have a few thousand, or a hundred thousand with every expert apart.
pub const MAX_TENSORS: u64 = 1 << 18;
/// The longest key or tensor name in bytes: the format's own limit for keys.
pub const MAX_NAME_BYTES: u64 = (1 << 16) - 1;
/// The largest alignment of tensor data: a huge page. The format's default is 32.
pub const MAX_ALIGNMENT: u64 = 2 << 20;

const DEFAULT_ALIGNMENT: u64 = 32;
/// Name length, dimension count, one dimension, type and offset.
const LEAST_TENSOR_INFO_BYTES: u64 = 8 + 4 + 8 + 4 + 8;

/// A tensor of one file, checked: whole blocks, aligned, within the file, overlapping no other.
pub(crate) struct TensorRecord {
    pub(crate) name: Arc<str>,
    pub(crate) kind: TensorType,
    pub(crate) shape: Shape,
    /// Where its bytes are in the file.
    pub(crate) data: Range<usize>,
}

pub(crate) struct Header {
    pub(crate) metadata: Metadata,
    pub(crate) tensors: Vec<TensorRecord>,
    /// Where the data of the tensors begin in the file.
    pub(crate) data_start: u64,
}

impl Header {
    /// Reads and checks the header of a file whose content is `bytes`; `file` names it in errors.
    pub(crate) fn read(bytes: &[u8], file: &str) -> Result<Header> {
        check_magic(bytes, file)?;
        let mut cursor = Cursor::new(bytes, file);
        cursor.take(4, "magic number")?;
        check_version(cursor.u32("version")?, file)?;
        let tensor_count = cursor.u64("tensor count")?;
        let metadata_count = cursor.u64("metadata count")?;
        let metadata = Metadata::read(&mut cursor, metadata_count)?;
        let infos = read_tensor_infos(&mut cursor, tensor_count)?;

        let alignment = alignment(&metadata, file)?;
        let data_start = (cursor.position() as u64).next_multiple_of(alignment);
        let place = |info| Placement { file, alignment, data_start, length: bytes.len() as u64 }.place(info);
        let tensors: Vec<TensorRecord> = infos.into_iter().map(place).collect::<Result<_>>()?;
        check_overlaps(&tensors, file)?;
        Ok(Header { metadata, tensors, data_start })
    }
}

fn check_magic(bytes: &[u8], file: &str) -> Result<()> {
    if bytes.starts_with(b"GGUF") {
        return Ok(());
    }
    let found = bytes[..bytes.len().min(16)].escape_ascii().to_string();
    Err(Error::NotGguf { file: file.to_owned(), length: bytes.len() as u64, found })
}

fn check_version(version: u32, file: &str) -> Result<()> {
    let file = file.to_owned();
    match version {
        2 | 3 => Ok(()),
        // Big-endian files have the same magic bytes; the version is the first number to be the wrong way round.
        _ if (1..=3).contains(&version.swap_bytes()) => Err(Error::BigEndian { file, version: version.swap_bytes() }),
        _ => Err(Error::UnsupportedVersion { file, version }),
    }
}

fn alignment(metadata: &Metadata, file: &str) -> Result<u64> {
    let alignment = metadata.get_u64("general.alignment")?.unwrap_or(DEFAULT_ALIGNMENT);
    if alignment.is_power_of_two() && alignment <= MAX_ALIGNMENT {
        return Ok(alignment);
    }
    Err(Error::Alignment { file: file.to_owned(), alignment, limit: MAX_ALIGNMENT })
}

/// What the file says of a tensor, before anything depends on where the data begin.
struct TensorInfo {
    name: Box<str>,
    kind: TensorType,
    shape: Shape,
    offset: u64,
}

fn read_tensor_infos(cursor: &mut Cursor<'_>, count: u64) -> Result<Vec<TensorInfo>> {
    if count > MAX_TENSORS {
        return Err(Error::TooMany { file: cursor.file(), what: "tensors", count, limit: MAX_TENSORS });
    }
    cursor.expect_room(count, LEAST_TENSOR_INFO_BYTES, "list of tensors")?;
    (0..count).map(|_| TensorInfo::read(cursor)).collect()
}

impl TensorInfo {
    fn read(cursor: &mut Cursor<'_>) -> Result<TensorInfo> {
        let name = cursor.name(MAX_NAME_BYTES, "tensor name")?;
        let count = cursor.u32("dimension count of a tensor")?;
        if count == 0 || count as usize > Shape::MAX_DIMS {
            return Err(Error::DimensionCount { file: cursor.file(), tensor: name.into(), count });
        }
        let mut dims = [1; Shape::MAX_DIMS];
        for length in &mut dims[..count as usize] {
            *length = cursor.u64("dimensions of a tensor")?;
        }
        let type_id = cursor.u32("type of a tensor")?;
        let offset = cursor.u64("offset of a tensor")?;
        let Some(kind) = TensorType::from_id(type_id) else {
            let (file, tensor, kind) = (cursor.file(), name.into(), unsupported_name(type_id));
            return Err(Error::UnsupportedTensorType { file, tensor, kind, type_id });
        };
        let shape = check_shape(cursor, &name, kind, dims)?;
        Ok(TensorInfo { name, kind, shape, offset })
    }
}

/// The shape, if its elements and bytes can be counted and its rows are whole blocks.
fn check_shape(cursor: &Cursor<'_>, name: &str, kind: TensorType, dims: [u64; Shape::MAX_DIMS]) -> Result<Shape> {
    let (file, tensor) = (cursor.file(), name.to_owned());
    if let Some(dimension) = dims.iter().position(|&length| length == 0) {
        return Err(Error::ZeroDimension { file, tensor, dimension });
    }
    let elements = dims.iter().try_fold(1, |product: u64, &length| product.checked_mul(length));
    let block_bytes = kind.block_bytes() as u64;
    let countable = elements.and_then(|elements| elements.checked_mul(block_bytes));
    if countable.is_none_or(|bound| usize::try_from(bound).is_err()) {
        return Err(Error::TensorTooLarge { file, tensor, dims: dims.to_vec() });
    }
    let (columns, block_len) = (dims[0], kind.block_len() as u64);
    if !columns.is_multiple_of(block_len) {
        return Err(Error::RowNotWholeBlocks { file, tensor, columns, kind: kind.name(), block_len });
    }
    Ok(Shape::from(dims.map(|length| length as usize)))
}

/// What decides where the data of a tensor are.
struct Placement<'a> {
    file: &'a str,
    alignment: u64,
    data_start: u64,
    length: u64,
}

impl Placement<'_> {
    fn place(&self, info: TensorInfo) -> Result<TensorRecord> {
        let TensorInfo { name, kind, shape, offset } = info;
        let (file, alignment, length) = (self.file.to_owned(), self.alignment, self.length);
        if !offset.is_multiple_of(alignment) {
            return Err(Error::Misaligned { file, tensor: name.into(), offset, alignment });
        }
        let bytes = kind.bytes_for(shape.elements()) as u64;
        let start = self.data_start.checked_add(offset);
        match start.and_then(|start| Some(start..start.checked_add(bytes)?)) {
            Some(data) if data.end <= length => {
                Ok(TensorRecord { name: name.into(), kind, shape, data: data.start as usize..data.end as usize })
            }
            _ => Err(Error::TensorOutOfBounds { file, tensor: name.into(), offset, bytes, length }),
        }
    }
}

fn check_overlaps(tensors: &[TensorRecord], file: &str) -> Result<()> {
    let mut by_start: Vec<&TensorRecord> = tensors.iter().collect();
    by_start.sort_by_key(|tensor| tensor.data.start);
    for pair in by_start.windows(2) {
        let (first, second) = (pair[0], pair[1]);
        if first.data.end > second.data.start {
            let bytes = (first.data.end.min(second.data.end) - second.data.start) as u64;
            let (first, second) = (first.name.to_string(), second.name.to_string());
            return Err(Error::Overlap { file: file.to_owned(), first, second, bytes });
        }
    }
    Ok(())
}
