//! Metadata values: decoding them, and looking at a number as another type where nothing is lost.

use std::fmt;

use crate::{Error, Result, cursor::Cursor};

/// Arrays of arrays may be nested this deep; ordinary files have none, and decoding recurses once per level.
pub const MAX_ARRAY_DEPTH: u32 = 4;

const STRINGS: &str = "array of strings";

/// One metadata value.
#[derive(Clone, Debug, PartialEq)]
#[expect(missing_docs, reason = "the variants are the types they hold")]
pub enum Value {
    U8(u8),
    I8(i8),
    U16(u16),
    I16(i16),
    U32(u32),
    I32(i32),
    U64(u64),
    I64(i64),
    F32(f32),
    F64(f64),
    Bool(bool),
    String(Box<str>),
    Array(Array),
}

/// A metadata array; all elements have one type.
#[derive(Clone, Debug, PartialEq)]
#[expect(missing_docs, reason = "the variants are the types they hold")]
pub enum Array {
    U8(Box<[u8]>),
    I8(Box<[i8]>),
    U16(Box<[u16]>),
    I16(Box<[i16]>),
    U32(Box<[u32]>),
    I32(Box<[i32]>),
    U64(Box<[u64]>),
    I64(Box<[i64]>),
    F32(Box<[f32]>),
    F64(Box<[f64]>),
    Bools(Box<[bool]>),
    Strings(StringArray),
    Arrays(Vec<Array>),
}

/// Many strings in one allocation: their text end to end, and where each ends.
///
/// A vocabulary has a quarter of a million entries; one `String` for each would dominate the opening of a file.
#[derive(Clone, Default, PartialEq)]
pub struct StringArray {
    text: Box<str>,
    ends: Box<[usize]>,
}

impl StringArray {
    /// The number of strings.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// The string at `index`, if there are so many.
    pub fn get(&self, index: usize) -> Option<&str> {
        let end = *self.ends.get(index)?;
        let start = if index == 0 { 0 } else { self.ends[index - 1] };
        Some(&self.text[start..end])
    }

    /// All strings in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &str> + Clone {
        (0..self.len()).map(|index| self.get(index).expect("the index is in range"))
    }

    fn read(cursor: &mut Cursor<'_>, count: u64) -> Result<StringArray> {
        cursor.expect_room(count, 8, STRINGS)?;
        let start = cursor.position();
        let (mut text, mut ends) = (Vec::new(), Vec::new());
        for _ in 0..count {
            let length = cursor.u64(STRINGS)?;
            text.extend_from_slice(cursor.take(length, STRINGS)?);
            ends.push(text.len());
        }
        // All pieces are valid exactly if the whole is and every cut lies between two characters.
        let text = String::from_utf8(text).map_err(|_| cursor.invalid_utf8(start, STRINGS))?;
        if !ends.iter().all(|&end| text.is_char_boundary(end)) {
            return Err(cursor.invalid_utf8(start, STRINGS));
        }
        Ok(StringArray { text: text.into(), ends: ends.into() })
    }
}

impl fmt::Debug for StringArray {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

impl<S: AsRef<str>> FromIterator<S> for StringArray {
    fn from_iter<I: IntoIterator<Item = S>>(strings: I) -> StringArray {
        let (mut text, mut ends) = (String::new(), Vec::new());
        for string in strings {
            text.push_str(string.as_ref());
            ends.push(text.len());
        }
        StringArray { text: text.into(), ends: ends.into() }
    }
}

impl Value {
    /// Reads a value: its type, then itself. `key` is for errors.
    pub(crate) fn read(cursor: &mut Cursor<'_>, key: &str) -> Result<Value> {
        const WHAT: &str = "metadata value";
        let type_id = cursor.u32("type of a metadata value")?;
        Ok(match type_id {
            0 => Value::U8(u8::from_le_bytes(cursor.array(WHAT)?)),
            1 => Value::I8(i8::from_le_bytes(cursor.array(WHAT)?)),
            2 => Value::U16(u16::from_le_bytes(cursor.array(WHAT)?)),
            3 => Value::I16(i16::from_le_bytes(cursor.array(WHAT)?)),
            4 => Value::U32(u32::from_le_bytes(cursor.array(WHAT)?)),
            5 => Value::I32(i32::from_le_bytes(cursor.array(WHAT)?)),
            6 => Value::F32(f32::from_le_bytes(cursor.array(WHAT)?)),
            7 => Value::Bool(read_bools(cursor, 1)?[0]),
            8 => Value::String(cursor.string(WHAT)?),
            9 => Value::Array(Array::read(cursor, key, 1)?),
            10 => Value::U64(u64::from_le_bytes(cursor.array(WHAT)?)),
            11 => Value::I64(i64::from_le_bytes(cursor.array(WHAT)?)),
            12 => Value::F64(f64::from_le_bytes(cursor.array(WHAT)?)),
            _ => return Err(unknown_type(cursor, key, type_id)),
        })
    }

    /// The value as an integer, if it is one.
    pub(crate) fn integer(&self) -> Option<i128> {
        Some(match *self {
            Value::U8(value) => value.into(),
            Value::I8(value) => value.into(),
            Value::U16(value) => value.into(),
            Value::I16(value) => value.into(),
            Value::U32(value) => value.into(),
            Value::I32(value) => value.into(),
            Value::U64(value) => value.into(),
            Value::I64(value) => value.into(),
            _ => return None,
        })
    }

    /// The value as a number of single precision, if that is exactly the same number.
    pub(crate) fn float(&self) -> Option<f32> {
        match *self {
            Value::F32(value) => Some(value),
            Value::F64(value) => {
                let narrow = value as f32;
                (f64::from(narrow) == value || value.is_nan()).then_some(narrow)
            }
            _ => {
                let integer = self.integer()?;
                let narrow = integer as f32;
                (narrow as i128 == integer).then_some(narrow)
            }
        }
    }

    /// The value in words, for errors: its type and, if short, itself.
    pub(crate) fn describe(&self) -> String {
        match self {
            Value::F32(value) => format!("the float {value}"),
            Value::F64(value) => format!("the double {value}"),
            Value::Bool(value) => format!("the bool {value}"),
            Value::String(_) => "a string".to_owned(),
            Value::Array(array) => format!("an array of {}", array.len()),
            _ => format!("the integer {}", self.integer().expect("all other types are integers")),
        }
    }
}

impl Array {
    /// The number of elements.
    pub fn len(&self) -> usize {
        match self {
            Array::U8(values) => values.len(),
            Array::I8(values) => values.len(),
            Array::U16(values) => values.len(),
            Array::I16(values) => values.len(),
            Array::U32(values) => values.len(),
            Array::I32(values) => values.len(),
            Array::U64(values) => values.len(),
            Array::I64(values) => values.len(),
            Array::F32(values) => values.len(),
            Array::F64(values) => values.len(),
            Array::Bools(values) => values.len(),
            Array::Strings(values) => values.len(),
            Array::Arrays(values) => values.len(),
        }
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn read(cursor: &mut Cursor<'_>, key: &str, depth: u32) -> Result<Array> {
        if depth > MAX_ARRAY_DEPTH {
            return Err(Error::NestedTooDeep { file: cursor.file(), key: key.to_owned(), limit: MAX_ARRAY_DEPTH });
        }
        let type_id = cursor.u32("type of an array")?;
        let count = cursor.u64("length of an array")?;
        Ok(match type_id {
            0 => Array::U8(read_numbers(cursor, count, u8::from_le_bytes)?),
            1 => Array::I8(read_numbers(cursor, count, i8::from_le_bytes)?),
            2 => Array::U16(read_numbers(cursor, count, u16::from_le_bytes)?),
            3 => Array::I16(read_numbers(cursor, count, i16::from_le_bytes)?),
            4 => Array::U32(read_numbers(cursor, count, u32::from_le_bytes)?),
            5 => Array::I32(read_numbers(cursor, count, i32::from_le_bytes)?),
            6 => Array::F32(read_numbers(cursor, count, f32::from_le_bytes)?),
            7 => Array::Bools(read_bools(cursor, count)?),
            8 => Array::Strings(StringArray::read(cursor, count)?),
            9 => Array::Arrays(read_arrays(cursor, key, count, depth)?),
            10 => Array::U64(read_numbers(cursor, count, u64::from_le_bytes)?),
            11 => Array::I64(read_numbers(cursor, count, i64::from_le_bytes)?),
            12 => Array::F64(read_numbers(cursor, count, f64::from_le_bytes)?),
            _ => return Err(unknown_type(cursor, key, type_id)),
        })
    }

    /// The elements as integers, if they are.
    pub(crate) fn integers(&self) -> Option<Vec<i128>> {
        Some(match self {
            Array::U8(values) => values.iter().map(|&value| value.into()).collect(),
            Array::I8(values) => values.iter().map(|&value| value.into()).collect(),
            Array::U16(values) => values.iter().map(|&value| value.into()).collect(),
            Array::I16(values) => values.iter().map(|&value| value.into()).collect(),
            Array::U32(values) => values.iter().map(|&value| value.into()).collect(),
            Array::I32(values) => values.iter().map(|&value| value.into()).collect(),
            Array::U64(values) => values.iter().map(|&value| value.into()).collect(),
            Array::I64(values) => values.iter().map(|&value| value.into()).collect(),
            _ => return None,
        })
    }
}

fn read_numbers<const N: usize, T>(
    cursor: &mut Cursor<'_>,
    count: u64,
    from_le_bytes: fn([u8; N]) -> T,
) -> Result<Box<[T]>> {
    const WHAT: &str = "array of numbers";
    cursor.expect_room(count, N as u64, WHAT)?;
    let bytes = cursor.take(count * N as u64, WHAT)?;
    let (numbers, _) = bytes.as_chunks::<N>();
    Ok(numbers.iter().map(|&number| from_le_bytes(number)).collect())
}

fn read_bools(cursor: &mut Cursor<'_>, count: u64) -> Result<Box<[bool]>> {
    let at = cursor.position();
    let bytes = cursor.take(count, "bool")?;
    let read = |(index, &value): (usize, &u8)| match value {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(Error::InvalidBool { file: cursor.file(), at: (at + index) as u64, value }),
    };
    bytes.iter().enumerate().map(read).collect()
}

fn read_arrays(cursor: &mut Cursor<'_>, key: &str, count: u64, depth: u32) -> Result<Vec<Array>> {
    // An array takes at least its type and its length.
    cursor.expect_room(count, 12, "array of arrays")?;
    let mut arrays = Vec::new();
    for _ in 0..count {
        arrays.push(Array::read(cursor, key, depth + 1)?);
    }
    Ok(arrays)
}

fn unknown_type(cursor: &Cursor<'_>, key: &str, type_id: u32) -> Error {
    Error::UnknownValueType { file: cursor.file(), key: key.to_owned(), type_id }
}
