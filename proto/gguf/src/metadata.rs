//! The key-value pairs of a model file.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use crate::{
    Array, Error, Result, StringArray, Value,
    cursor::Cursor,
    header::{MAX_METADATA_ENTRIES, MAX_NAME_BYTES},
};

/// The decoded metadata of a model, independent of the mapped file.
///
/// Getters return `Ok(None)` for a missing key and [`Error::WrongValue`] for a value that is not exactly
/// representable as what was asked for: numbers convert between widths and signs only where nothing is lost.
#[derive(Debug)]
pub struct Metadata {
    file: String,
    entries: BTreeMap<Box<str>, Value>,
}

impl Metadata {
    pub(crate) fn read(cursor: &mut Cursor<'_>, count: u64) -> Result<Metadata> {
        if count > MAX_METADATA_ENTRIES {
            let (what, limit) = ("metadata entries", MAX_METADATA_ENTRIES);
            return Err(Error::TooMany { file: cursor.file(), what, count, limit });
        }
        let mut entries = BTreeMap::new();
        for _ in 0..count {
            let key = cursor.name(MAX_NAME_BYTES, "metadata key")?;
            let value = Value::read(cursor, &key)?;
            if entries.contains_key(&key) {
                return Err(Error::DuplicateKey { file: cursor.file(), key: key.into() });
            }
            entries.insert(key, value);
        }
        Ok(Metadata { file: cursor.file(), entries })
    }

    pub(crate) fn file(&self) -> &str {
        &self.file
    }

    /// The number of entries.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are no entries.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// All entries, by key.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.entries.iter().map(|(key, value)| (&**key, value))
    }

    /// The value as it is in the file.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.entries.get(key)
    }

    /// A non-negative integer below 2^32.
    pub fn get_u32(&self, key: &str) -> Result<Option<u32>> {
        self.convert(key, "an integer of 32 bits without sign", |value| value.integer()?.try_into().ok())
    }

    /// A non-negative integer below 2^64.
    pub fn get_u64(&self, key: &str) -> Result<Option<u64>> {
        self.convert(key, "an integer without sign", |value| value.integer()?.try_into().ok())
    }

    /// A number that single precision holds exactly.
    pub fn get_f32(&self, key: &str) -> Result<Option<f32>> {
        self.convert(key, "a number of single precision", Value::float)
    }

    /// A truth value.
    pub fn get_bool(&self, key: &str) -> Result<Option<bool>> {
        self.convert(key, "a bool", |value| match value {
            Value::Bool(value) => Some(*value),
            _ => None,
        })
    }

    /// A string.
    pub fn get_str(&self, key: &str) -> Result<Option<&str>> {
        self.convert(key, "a string", |value| match value {
            Value::String(text) => Some(&**text),
            _ => None,
        })
    }

    /// Like [`get_u32`](Metadata::get_u32), for a key that must be there.
    pub fn require_u32(&self, key: &str) -> Result<u32> {
        self.get_u32(key)?.ok_or_else(|| self.missing(key))
    }

    /// Like [`get_f32`](Metadata::get_f32), for a key that must be there.
    pub fn require_f32(&self, key: &str) -> Result<f32> {
        self.get_f32(key)?.ok_or_else(|| self.missing(key))
    }

    /// Like [`get_str`](Metadata::get_str), for a key that must be there.
    pub fn require_str(&self, key: &str) -> Result<&str> {
        self.get_str(key)?.ok_or_else(|| self.missing(key))
    }

    /// The error for a key that must be there and is not.
    pub fn missing(&self, key: &str) -> Error {
        Error::MissingKey { file: self.file.clone(), key: key.to_owned() }
    }

    /// An array of strings.
    pub fn strings(&self, key: &str) -> Result<Option<&StringArray>> {
        self.convert(key, "an array of strings", |value| match value {
            Value::Array(Array::Strings(strings)) => Some(strings),
            _ => None,
        })
    }

    /// An array of integers of 32 bits without sign.
    pub fn u32s(&self, key: &str) -> Result<Option<Vec<u32>>> {
        self.convert(key, "an array of integers of 32 bits without sign", integers)
    }

    /// An array of integers of 32 bits with sign.
    pub fn i32s(&self, key: &str) -> Result<Option<Vec<i32>>> {
        self.convert(key, "an array of integers of 32 bits", integers)
    }

    /// An array of single-precision numbers.
    pub fn f32s(&self, key: &str) -> Result<Option<Vec<f32>>> {
        self.convert(key, "an array of single-precision numbers", |value| match value {
            Value::Array(Array::F32(values)) => Some(values.to_vec()),
            _ => None,
        })
    }

    /// An array of truth values.
    pub fn bools(&self, key: &str) -> Result<Option<Vec<bool>>> {
        self.convert(key, "an array of bools", |value| match value {
            Value::Array(Array::Bools(values)) => Some(values.to_vec()),
            _ => None,
        })
    }

    /// One integer per layer: written once for all, or as an array of exactly `layers` elements.
    ///
    /// The answer has `layers` elements, so check `layers` first if it comes from the file.
    pub fn u32_per_layer(&self, key: &str, layers: usize) -> Result<Option<Vec<u32>>> {
        if !matches!(self.get(key), Some(Value::Array(_))) {
            return Ok(self.get_u32(key)?.map(|value| vec![value; layers]));
        }
        let values = self.u32s(key)?;
        self.expect_length(key, values.as_ref().map(Vec::len), layers)?;
        Ok(values)
    }

    /// Checks that an array, if there is one, has `wanted` elements.
    pub(crate) fn expect_length(&self, key: &str, found: Option<usize>, wanted: usize) -> Result<()> {
        match found {
            Some(found) if found != wanted => {
                Err(Error::ArrayLength { file: self.file.clone(), key: key.to_owned(), found, wanted })
            }
            _ => Ok(()),
        }
    }

    fn convert<'a, T>(
        &'a self,
        key: &str,
        wanted: &'static str,
        convert: impl FnOnce(&'a Value) -> Option<T>,
    ) -> Result<Option<T>> {
        let Some(value) = self.get(key) else { return Ok(None) };
        match convert(value) {
            Some(converted) => Ok(Some(converted)),
            None => {
                let (file, key, found) = (self.file.clone(), key.to_owned(), value.describe());
                Err(Error::WrongValue { file, key, found, wanted })
            }
        }
    }
}

fn integers<T: TryFrom<i128>>(value: &Value) -> Option<Vec<T>> {
    let Value::Array(array) = value else { return None };
    array.integers()?.into_iter().map(|value| value.try_into().ok()).collect()
}
