//! Reads the `.npy` files of the golden data: little-endian `f32` and `i32` arrays in C order.

use std::fs;
use std::path::Path;

/// An array and its shape, slowest dimension first.
#[derive(Debug, Clone, PartialEq)]
pub struct Array<T> {
    /// Lengths of the dimensions.
    pub shape: Vec<usize>,
    /// The elements, last dimension fastest.
    pub values: Vec<T>,
}

impl<T> Array<T> {
    /// The rows: slices along the last dimension.
    pub fn rows(&self) -> impl ExactSizeIterator<Item = &[T]> {
        self.values.chunks_exact(*self.shape.last().expect("an array has a dimension"))
    }
}

/// Reads an array of `f32`.
///
/// # Panics
/// If the file cannot be read or holds something else.
pub fn read_f32(path: &Path) -> Array<f32> {
    read(path, "<f4", f32::from_le_bytes)
}

/// Reads an array of `i32`.
///
/// # Panics
/// If the file cannot be read or holds something else.
pub fn read_i32(path: &Path) -> Array<i32> {
    read(path, "<i4", i32::from_le_bytes)
}

fn read<T>(path: &Path, kind: &str, decode: fn([u8; 4]) -> T) -> Array<T> {
    let bytes = fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let (header, data) = split(&bytes).unwrap_or_else(|| panic!("{}: not an .npy file", path.display()));
    assert!(header.contains(kind) && header.contains("'fortran_order': False"), "{}: {header}", path.display());
    let shape = shape_of(header).unwrap_or_else(|| panic!("{}: no shape in {header}", path.display()));
    let values: Vec<T> =
        data.chunks_exact(4).map(|chunk| decode(chunk.try_into().expect("chunks have 4 bytes"))).collect();
    assert_eq!(values.len(), shape.iter().product::<usize>(), "{}: elements", path.display());
    Array { shape, values }
}

/// The header text and the data of a file of format version 1.
fn split(bytes: &[u8]) -> Option<(&str, &[u8])> {
    let rest = bytes.strip_prefix(b"\x93NUMPY\x01\x00")?;
    let (length, rest) = rest.split_first_chunk::<2>()?;
    let (header, data) = rest.split_at_checked(usize::from(u16::from_le_bytes(*length)))?;
    Some((str::from_utf8(header).ok()?, data))
}

/// The numbers of `'shape': (64, 320)`.
fn shape_of(header: &str) -> Option<Vec<usize>> {
    let (_, rest) = header.split_once("'shape': (")?;
    let (numbers, _) = rest.split_once(')')?;
    numbers.split(',').map(str::trim).filter(|number| !number.is_empty()).map(|number| number.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_is_understood() {
        let header = "{'descr': '<f4', 'fortran_order': False, 'shape': (64, 320), }";
        let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
        bytes.extend((header.len() as u16).to_le_bytes());
        bytes.extend(header.bytes());
        bytes.extend([1, 2]);
        assert_eq!(split(&bytes), Some((header, [1, 2].as_slice())));
        assert_eq!(split(b"\x93NUMPY\x01\x00\xff\xffshort"), None);
        assert_eq!(shape_of(header), Some(vec![64, 320]));
        assert_eq!(shape_of("'shape': (16,), "), Some(vec![16]));
        assert_eq!(shape_of("'shape': (16.5,), "), None);
    }
}
