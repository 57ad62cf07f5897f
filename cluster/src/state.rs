//! The coordinator's folder: what must outlive it. The cluster's authority, its own name, the join tokens, and the
//! [`store`] of what it knows of its cluster.
//!
//! Whoever can read the folder can join the cluster as anyone, so it is its owner's alone.

pub(crate) mod keeper;
pub(crate) mod responses;
pub(crate) mod store;

use std::collections::BTreeSet;
use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail};
use paceline_proto::NodeId;
use paceline_transport::identity::{Authority, Identity, JoinToken, NodeKey, Role, TokenId, TokenKey, Trust};
use serde::{Deserialize, Serialize};
use tracing::warn;
use uuid::Uuid;

use store::Store;

/// The label of the token that a coordinator prints when it starts.
const USUAL: &str = "usual";

/// The folder.
#[derive(Debug, Clone)]
pub(crate) struct State {
    folder: PathBuf,
}

/// A join token as it is kept, with its secret: whoever can read the folder has the authority's key as well.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct TokenRecord {
    /// Its name.
    pub(crate) id: TokenId,
    /// By which a newcomer is recognised.
    key: TokenKey,
    /// What newcomers are given.
    pub(crate) token: String,
    /// For people.
    pub(crate) label: String,
    /// Seconds since 1970.
    pub(crate) created: u64,
    /// Nobody joins with it any more, and who joined with it is out.
    pub(crate) revoked: bool,
}

impl State {
    /// Opens the folder, or makes it.
    pub(crate) fn open(folder: Option<&Path>) -> Result<Self> {
        let folder = match folder {
            Some(folder) => folder.to_owned(),
            None => usual_folder()?,
        };
        let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&folder);
        made.with_context(|| format!("cannot make the folder {}", folder.display()))?;
        Ok(Self { folder })
    }

    /// A folder inside it.
    pub(crate) fn subfolder(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// What the coordinator knows of its cluster. Only one process at a time can open it.
    pub(crate) fn store(&self) -> Result<Store> {
        Store::open(&self.folder)
    }

    /// The cluster's authority, made at the first start.
    pub(crate) fn authority(&self) -> Result<Authority> {
        // Two first starts at the same time must not make two of them.
        let _lock = lock(&self.folder.join("tokens.lock"))?;
        let path = self.folder.join("authority.pem");
        if let Some(text) = read(&path)? {
            return Authority::from_pem(&text).with_context(|| format!("{} cannot be used", path.display()));
        }
        let authority = Authority::create()?;
        replace(&path, authority.to_pem().as_bytes())?;
        Ok(authority)
    }

    /// The coordinator as its peers know it. It keeps its name; its key is new at every start.
    pub(crate) fn identity(&self, authority: &Authority) -> Result<Identity> {
        let path = self.folder.join("name");
        let name = match read(&path)? {
            Some(text) => text.trim().parse().with_context(|| format!("{} holds no name", path.display()))?,
            None => {
                let name = Uuid::new_v4();
                replace(&path, name.to_string().as_bytes())?;
                name
            }
        };
        let (node, key) = (NodeId(name), NodeKey::generate()?);
        let certificate = authority.issue(node, None, Role::Coordinator, &key.public_key_der())?;
        Ok(Identity::new(node, key, certificate, authority.certificate().clone())?)
    }

    /// The join tokens.
    pub(crate) fn tokens(&self) -> Tokens {
        let (path, lock) = (self.folder.join("tokens.json"), self.folder.join("tokens.lock"));
        Tokens { path, lock, last: Arc::default() }
    }
}

/// `$XDG_STATE_HOME/paceline`, or below the home folder.
fn usual_folder() -> Result<PathBuf> {
    let named = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let state = named("XDG_STATE_HOME").or_else(|| Some(named("HOME")?.join(".local/state")));
    Ok(state.context("there is no home folder: say with --state where to keep the cluster's keys")?.join("paceline"))
}

/// The join tokens, in a file that several processes may change. It is read anew each time, so that a token is revoked
/// for a running coordinator too; while it cannot be read, what was read last holds.
#[derive(Clone)]
pub(crate) struct Tokens {
    path: PathBuf,
    lock: PathBuf,
    last: Arc<Mutex<Vec<TokenRecord>>>,
}

impl fmt::Debug for Tokens {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Tokens({})", self.path.display())
    }
}

impl Tokens {
    /// All of them, oldest first.
    pub(crate) fn list(&self) -> Result<Vec<TokenRecord>> {
        let Some(text) = read(&self.path)? else { return Ok(Vec::new()) };
        serde_json::from_str(&text).with_context(|| format!("{} cannot be read", self.path.display()))
    }

    /// A new token for joining at `address`.
    pub(crate) fn create(&self, address: &str, authority: &Authority, label: &str) -> Result<JoinToken> {
        self.change(|records| add(records, JoinToken::create(address, authority.fingerprint())?, label))
    }

    /// The token that a coordinator prints: the same at every start, until it is revoked.
    pub(crate) fn usual(&self, address: &str, authority: &Authority) -> Result<JoinToken> {
        self.change(|records| {
            let kept = records.iter_mut().find(|record| record.label == USUAL && !record.revoked);
            let Some(record) = kept else {
                return add(records, JoinToken::create(address, authority.fingerprint())?, USUAL);
            };
            let mut token: JoinToken = record.token.parse()?;
            if token.fingerprint != authority.fingerprint() {
                bail!("the tokens in {} belong to another authority: remove that file", self.path.display());
            }
            token.address = address.to_owned();
            record.token = token.to_string();
            Ok(token)
        })
    }

    /// Revokes a token; false if there is no such token.
    pub(crate) fn revoke(&self, id: &TokenId) -> Result<bool> {
        self.change(|records| {
            let found = records.iter_mut().find(|record| record.id == *id);
            Ok(found.map(|record| record.revoked = true).is_some())
        })
    }

    fn change<T>(&self, change: impl FnOnce(&mut Vec<TokenRecord>) -> Result<T>) -> Result<T> {
        let _lock = lock(&self.lock)?;
        let mut records = self.list()?;
        let result = change(&mut records)?;
        replace(&self.path, &serde_json::to_vec_pretty(&records)?)?;
        Ok(result)
    }

    /// The tokens that are not revoked.
    pub(crate) fn live(&self) -> BTreeSet<TokenId> {
        self.records().iter().filter(|record| !record.revoked).map(|record| record.id).collect()
    }

    fn records(&self) -> Vec<TokenRecord> {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        match self.list() {
            Ok(records) => last.clone_from(&records),
            Err(error) => warn!("the tokens as they were last are in force: {error:#}"),
        }
        last.clone()
    }
}

/// Waits until nobody else changes the folder; the lock ends with the file.
fn lock(path: &Path) -> Result<File> {
    let file = private().create(true).truncate(false).open(path);
    let file = file.with_context(|| format!("cannot open {}", path.display()))?;
    file.lock().with_context(|| format!("cannot lock {}", path.display()))?;
    Ok(file)
}

fn add(records: &mut Vec<TokenRecord>, token: JoinToken, label: &str) -> Result<JoinToken> {
    let created = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    records.push(TokenRecord {
        id: token.id,
        key: token.key()?,
        token: token.to_string(),
        label: label.to_owned(),
        created,
        revoked: false,
    });
    Ok(token)
}

impl Trust for Tokens {
    fn token_of(&self, key: &TokenKey) -> Option<TokenId> {
        self.records().iter().find(|record| !record.revoked && record.key == *key).map(|record| record.id)
    }

    fn is_live(&self, token: &TokenId) -> bool {
        self.live().contains(token)
    }
}

fn private() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.write(true).mode(0o600);
    options
}

/// The text of a file, if there is one.
fn read(path: &Path) -> Result<Option<String>> {
    let mut text = String::new();
    match File::open(path).and_then(|mut file| file.read_to_string(&mut text)) {
        Ok(_) => Ok(Some(text)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).with_context(|| format!("cannot read {}", path.display())),
    }
}

/// Writes a file that only its owner may read, whole or not at all.
pub(crate) fn replace(path: &Path, bytes: &[u8]) -> Result<()> {
    // A name that nobody can have prepared.
    let beside = path.with_extension(format!("{}.new", Uuid::new_v4().simple()));
    let write = || {
        let mut file = private().create_new(true).open(&beside)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        std::fs::rename(&beside, path)
    };
    let written = write();
    if written.is_err() {
        // It may not have come into being at all.
        let _ = std::fs::remove_file(&beside);
    }
    written.with_context(|| format!("cannot write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn state() -> (tempfile::TempDir, State) {
        let folder = tempfile::tempdir().expect("a folder");
        let state = State::open(Some(&folder.path().join("state"))).expect("a state folder");
        (folder, state)
    }

    #[test]
    fn authority_and_name_outlive_the_coordinator() {
        let (_folder, state) = state();
        let first = state.authority().expect("made");
        let again = state.authority().expect("read");
        assert_eq!(first.fingerprint(), again.fingerprint());
        let name = |authority| state.identity(authority).expect("an identity").node();
        assert_eq!(name(&first), name(&again));
        let mode = std::fs::metadata(state.subfolder("authority.pem")).expect("a file").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }

    #[test]
    fn a_token_is_known_until_it_is_revoked_and_the_usual_one_is_kept() {
        let (_folder, state) = state();
        let (authority, tokens) = (state.authority().expect("made"), state.tokens());
        let usual = tokens.usual("a:1", &authority).expect("made");
        let again = tokens.usual("b:2", &authority).expect("kept");
        assert_eq!((usual.id, "b:2"), (again.id, again.address.as_str()));
        let other = tokens.create("a:1", &authority, "for a friend").expect("made");
        let key = other.key().expect("a key");
        assert_eq!(tokens.token_of(&key), Some(other.id));
        assert!(tokens.is_live(&usual.id));
        assert!(tokens.revoke(&other.id).expect("written"));
        assert_eq!((tokens.token_of(&key), tokens.is_live(&other.id)), (None, false));
        assert!(tokens.revoke(&usual.id).expect("written"));
        assert_ne!(tokens.usual("a:1", &authority).expect("made").id, usual.id);
        assert_eq!(tokens.list().expect("readable").len(), 3);
    }

    #[test]
    fn a_damaged_folder_lets_nobody_in_and_says_so() {
        let (_folder, state) = state();
        let authority = state.authority().expect("made");
        let token = state.tokens().usual("a:1", &authority).expect("made");
        let running = state.tokens();
        assert!(running.is_live(&token.id));
        std::fs::write(state.subfolder("tokens.json"), "[{").expect("writable");
        assert!(!state.tokens().is_live(&token.id), "nothing was read before");
        assert!(running.is_live(&token.id), "a coordinator that runs does not forget");
        let error = state.tokens().usual("a:1", &authority).expect_err("damaged");
        assert!(format!("{error:#}").contains("tokens.json"), "{error:#}");
        std::fs::write(state.subfolder("authority.pem"), "no key").expect("writable");
        let error = state.authority().expect_err("damaged");
        assert!(format!("{error:#}").contains("authority.pem"), "{error:#}");
    }
}
