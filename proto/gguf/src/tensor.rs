//! One tensor of a file: its name, type, shape and bytes.

use std::{fmt, ops::Range};

use crate::TensorType;

/// The lengths of a tensor's dimensions, the contiguous one first; missing dimensions are one long.
///
/// `Shape::from([256, 320])` is a matrix of 320 rows of 256 elements each, so `y = W x` has 256 inputs and 320 outputs.
/// As in the format, trailing dimensions of one do not count: `[256]` equals `[256, 1]`.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Shape([usize; Shape::MAX_DIMS]);

impl Shape {
    /// The most dimensions a tensor can have.
    pub const MAX_DIMS: usize = 4;

    /// The dimensions without trailing ones, but at least one.
    pub fn dims(&self) -> &[usize] {
        let used = self.0.iter().rposition(|&length| length != 1).map_or(1, |last| last + 1);
        &self.0[..used]
    }

    /// The length of a contiguous row.
    pub fn columns(&self) -> usize {
        self.0[0]
    }

    /// The number of rows: the product of all dimensions but the first.
    pub fn rows(&self) -> usize {
        self.0[1..].iter().product()
    }

    /// The number of elements.
    pub fn elements(&self) -> usize {
        self.0.iter().product()
    }
}

impl<const N: usize> From<[usize; N]> for Shape {
    fn from(dims: [usize; N]) -> Shape {
        const { assert!(N >= 1 && N <= Shape::MAX_DIMS, "a shape has 1 to 4 dimensions") };
        let mut all = [1; Shape::MAX_DIMS];
        all[..N].copy_from_slice(&dims);
        Shape(all)
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.dims())
    }
}

impl fmt::Debug for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Shape{self}")
    }
}

/// A tensor of an open file.
///
/// The data are exactly `kind.bytes_for(shape.elements())` bytes. In a mapped file they start at a multiple of the
/// file's alignment (32 unless it says otherwise); in a model given as memory they may start anywhere, so read them
/// without assuming an alignment.
#[derive(Clone, Copy)]
pub struct Tensor<'a> {
    /// The name in the file, such as `blk.3.attn_k.weight`.
    pub name: &'a str,
    /// How the elements are stored.
    pub kind: TensorType,
    /// The dimensions; every row is a whole number of blocks of `kind`.
    pub shape: Shape,
    /// The stored rows, one after another.
    pub data: &'a [u8],
}

impl<'a> Tensor<'a> {
    /// Bytes of one stored row.
    pub fn row_bytes(&self) -> usize {
        self.kind.bytes_for(self.shape.columns())
    }

    /// The bytes of consecutive rows.
    ///
    /// # Panics
    /// If there are not so many rows.
    pub fn rows(&self, rows: Range<usize>) -> &'a [u8] {
        let row_bytes = self.row_bytes();
        &self.data[rows.start * row_bytes..rows.end * row_bytes]
    }
}

impl fmt::Debug for Tensor<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} {} {}", self.name, self.kind, self.shape)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shape_counts_rows_and_columns() {
        let shape = Shape::from([64, 32, 8]);
        assert_eq!((shape.columns(), shape.rows(), shape.elements()), (64, 256, 16384));
        assert_eq!(shape.to_string(), "[64, 32, 8]");
        assert_eq!(Shape::from([7]), Shape::from([7, 1, 1]));
        assert_eq!(Shape::from([1, 1]).dims(), [1]);
        assert_eq!(Shape::from([1, 5]).dims(), [1, 5]);
    }

    #[test]
    fn rows_are_consecutive_bytes() {
        let data: Vec<u8> = (0..24).collect();
        let tensor = Tensor { name: "t", kind: TensorType::F16, shape: Shape::from([4, 3]), data: &data };
        assert_eq!(tensor.row_bytes(), 8);
        assert_eq!(tensor.rows(1..3), &data[8..24]);
    }
}
