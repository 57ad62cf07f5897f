//! The name of a model: the hash of its manifest.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::{Error, Result};

/// Names a model by its contents: the blake3 hash of its [`Manifest`](crate::Manifest). Written as 64 hexadecimal
/// digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ModelHash(pub [u8; 32]);

impl fmt::Display for ModelHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&blake3::Hash::from_bytes(self.0).to_hex())
    }
}

impl fmt::Debug for ModelHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ModelHash({self})")
    }
}

impl FromStr for ModelHash {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let parsed = blake3::Hash::from_hex(text);
        parsed
            .map(|hash| Self(*hash.as_bytes()))
            .map_err(|_| Error::HashText { given: text.chars().take(80).collect() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hash_is_read_as_it_is_written() {
        let hash = ModelHash(std::array::from_fn(|index| index as u8 * 7));
        assert_eq!(hash.to_string().len(), 64);
        assert_eq!(hash.to_string().parse::<ModelHash>().unwrap(), hash);
        for wrong in ["", "12", &"g".repeat(64), &"0".repeat(65), "../../etc/passwd", &"ä".repeat(1000)] {
            let error = wrong.parse::<ModelHash>().unwrap_err();
            assert!(matches!(&error, Error::HashText { given } if given.chars().count() <= 80), "{error}");
        }
    }
}
