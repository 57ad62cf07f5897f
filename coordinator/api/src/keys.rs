//! The keys that open the API, what each may use, and how they are written in a file.

use std::str::FromStr;
use std::sync::Arc;

use sha2::{Digest, Sha256};
use subtle::{ConditionallySelectable, ConstantTimeEq};

use crate::caller::Caller;
use crate::limits::KeyLimits;

/// What stands before the hash of a key, where a file has the hash instead of the key.
const HASH_PREFIX: &str = "sha256:";

/// One key. Only its hash is kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApiKey {
    name: String,
    hash: [u8; 32],
    limits: KeyLimits,
}

/// Why a line is no key.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    /// Nothing in it.
    #[error("there is no key in it")]
    Empty,
    /// Something else behind `sha256:`.
    #[error("what stands behind \"sha256:\" must be 64 hexadecimal digits, as `printf %s KEY | sha256sum` prints them")]
    Hash,
    /// A setting that does not exist.
    #[error("{setting:?} is no setting of a key; there are name=, requests=, tokens= and sessions=")]
    Setting {
        /// As it is written.
        setting: String,
    },
    /// A setting that is no number.
    #[error("{setting:?} must be a whole number from 1 to 4294967295")]
    Number {
        /// As it is written.
        setting: String,
    },
}

impl ApiKey {
    /// Takes a key as clients show it.
    pub fn new(key: &str) -> Self {
        Self::of_hash(hash(key.as_bytes()))
    }

    /// With these limits, where it has none of its own.
    #[must_use]
    pub fn or_limits(mut self, limits: KeyLimits) -> Self {
        self.limits = self.limits.or(limits);
        self
    }

    /// What the log calls it: its name, or the beginning of its hash.
    pub fn name(&self) -> &str {
        &self.name
    }

    fn of_hash(hash: [u8; 32]) -> Self {
        let [one, two, three, four, ..] = hash;
        Self { name: format!("{one:02x}{two:02x}{three:02x}{four:02x}"), hash, limits: KeyLimits::default() }
    }

    fn set(&mut self, setting: &str) -> Result<(), KeyError> {
        let unknown = || KeyError::Setting { setting: setting.to_owned() };
        let (name, value) = setting.split_once('=').ok_or_else(unknown)?;
        let number = || match value.parse::<u32>() {
            Ok(number) if number > 0 => Ok(Some(number)),
            _ => Err(KeyError::Number { setting: setting.to_owned() }),
        };
        match name {
            "name" if !value.is_empty() => value.clone_into(&mut self.name),
            "requests" => self.limits.requests = number()?,
            "tokens" => self.limits.tokens = number()?,
            "sessions" => self.limits.sessions = number()?,
            _ => return Err(unknown()),
        }
        Ok(())
    }
}

/// Reads `KEY` or `sha256:HASH`, and behind it what the key may use: `name=alice requests=60 tokens=100000 sessions=4`.
impl FromStr for ApiKey {
    type Err = KeyError;

    fn from_str(line: &str) -> Result<Self, KeyError> {
        let mut words = line.split_whitespace();
        let key = words.next().ok_or(KeyError::Empty)?;
        let mut key = match key.strip_prefix(HASH_PREFIX) {
            Some(digits) => Self::of_hash(bytes_of(digits).ok_or(KeyError::Hash)?),
            None => Self::new(key),
        };
        words.try_for_each(|setting| key.set(setting))?;
        Ok(key)
    }
}

/// The bytes of 64 hexadecimal digits.
fn bytes_of(digits: &str) -> Option<[u8; 32]> {
    if digits.len() != 64 || !digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
        return None;
    }
    let mut bytes = [0; 32];
    for (byte, pair) in bytes.iter_mut().zip(digits.as_bytes().chunks_exact(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
    }
    Some(bytes)
}

fn hash(key: &[u8]) -> [u8; 32] {
    Sha256::digest(key).into()
}

/// All keys, each with its account.
#[derive(Debug, Clone)]
pub struct ApiKeys {
    known: Vec<([u8; 32], Arc<Caller>)>,
    /// Who calls where no key is asked for.
    anyone: Arc<Caller>,
}

impl Default for ApiKeys {
    fn default() -> Self {
        Self::open(KeyLimits::default())
    }
}

impl ApiKeys {
    /// These keys. None leaves the API open.
    pub fn new(keys: impl IntoIterator<Item = ApiKey>) -> Self {
        let caller = |key: ApiKey| (key.hash, Arc::new(Caller::new(key.name, key.limits)));
        Self { known: keys.into_iter().map(caller).collect(), ..Self::default() }
    }

    /// No keys: everyone may come in, and all share these limits.
    pub fn open(limits: KeyLimits) -> Self {
        Self { known: Vec::new(), anyone: Arc::new(Caller::new("anyone".to_owned(), limits)) }
    }

    /// Whether no key is asked for.
    pub fn is_open(&self) -> bool {
        self.known.is_empty()
    }

    /// Who calls where no key is asked for.
    pub(crate) fn anyone(&self) -> &Arc<Caller> {
        &self.anyone
    }

    /// Whose key it is. Takes the same time for every wrong key: hashes of equal length are compared in constant time,
    /// all of them.
    pub(crate) fn caller(&self, key: &[u8]) -> Option<&Arc<Caller>> {
        let shown = hash(key);
        let mut found = u64::MAX;
        for (index, (known, _)) in self.known.iter().enumerate() {
            found = u64::conditional_select(&found, &(index as u64), known.ct_eq(&shown));
        }
        self.known.get(usize::try_from(found).ok()?).map(|(_, caller)| caller)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_a_key_or_its_hash_with_settings() {
        let plain: ApiKey = "secret".parse().unwrap();
        assert_eq!((plain.name(), plain.limits), ("2bb80d53", KeyLimits::default()));
        let hashed = "sha256:2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b";
        assert_eq!(hashed.parse(), Ok(plain));
        let full: ApiKey = "secret  name=alice requests=60 tokens=100000 sessions=4".parse().unwrap();
        let limits = KeyLimits { requests: Some(60), tokens: Some(100_000), sessions: Some(4) };
        assert_eq!((full.name(), full.limits), ("alice", limits));
        let usual = KeyLimits { requests: Some(1), tokens: None, sessions: Some(1) };
        let lenient: ApiKey = "secret requests=60".parse().unwrap();
        let both = KeyLimits { requests: Some(60), tokens: None, sessions: Some(1) };
        assert_eq!(lenient.or_limits(usual).limits, both);
    }

    #[test]
    fn a_line_that_is_none_says_why() {
        for (line, says) in [
            ("  ", "no key"),
            ("sha256:abc", "64 hexadecimal digits"),
            ("secret admin", "\"admin\" is no setting"),
            ("secret name=", "\"name=\" is no setting"),
            ("secret requests=0", "\"requests=0\" must be a whole number"),
            ("secret tokens=many", "\"tokens=many\" must be a whole number"),
        ] {
            let error = line.parse::<ApiKey>().unwrap_err().to_string();
            assert!(error.contains(says), "{line}: {error}");
        }
    }

    #[test]
    fn a_key_leads_to_its_caller() {
        let keys = ApiKeys::new(["one name=first", "two name=second"].map(|line| line.parse().unwrap()));
        let name = |key: &str| keys.caller(key.as_bytes()).map(|caller| caller.name().to_owned());
        assert_eq!(name("one").as_deref(), Some("first"));
        assert_eq!(name("two").as_deref(), Some("second"));
        assert_eq!(name("three"), None);
        assert_eq!(name(""), None);
        assert!(!keys.is_open() && ApiKeys::default().is_open());
    }
}
