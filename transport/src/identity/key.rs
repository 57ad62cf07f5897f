//! Keys: all of them Ed25519, so that there is one form to read and one to check.

use rcgen::{KeyPair, PKCS_ED25519, PublicKeyData, SignatureAlgorithm};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use sha2::{Digest, Sha256};

use crate::{Error, Result};

/// What stands before the 32 bytes of a seed in PKCS#8.
const PRIVATE_PREFIX: [u8; 16] =
    [0x30, 0x2e, 0x02, 0x01, 0x00, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x04, 0x22, 0x04, 0x20];
/// What stands before the 32 bytes of a public key in SubjectPublicKeyInfo.
const PUBLIC_PREFIX: [u8; 12] = [0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00];

/// A node's private key. It leaves the process that made it only as a seed in a file of a node that keeps its name.
pub struct NodeKey(KeyPair);

impl NodeKey {
    /// A new key.
    ///
    /// # Errors
    /// [`Certificate`](Error::Certificate) when the system has no randomness.
    pub fn generate() -> Result<Self> {
        KeyPair::generate_for(&PKCS_ED25519).map(Self).map_err(Error::certificate)
    }

    /// A seed from which the same key can be made again; as secret as the key.
    ///
    /// # Errors
    /// [`Certificate`](Error::Certificate) when the system has no randomness.
    pub fn new_seed() -> Result<[u8; 32]> {
        random()
    }

    /// The key that belongs to a seed.
    ///
    /// # Errors
    /// [`Certificate`](Error::Certificate) for what is no seed.
    pub fn from_seed(seed: &[u8; 32]) -> Result<Self> {
        let pkcs8 = [&PRIVATE_PREFIX[..], seed].concat();
        let pair = KeyPair::from_pkcs8_der_and_sign_algo(&PrivatePkcs8KeyDer::from(pkcs8), &PKCS_ED25519);
        pair.map(Self).map_err(Error::certificate)
    }

    /// The public key as SubjectPublicKeyInfo in DER.
    pub fn public_key_der(&self) -> Vec<u8> {
        self.0.subject_public_key_info()
    }

    pub(super) fn pair(&self) -> &KeyPair {
        &self.0
    }

    pub(super) fn private_der(&self) -> PrivateKeyDer<'static> {
        PrivatePkcs8KeyDer::from(self.0.serialize_der()).into()
    }
}

impl std::fmt::Debug for NodeKey {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("NodeKey(..)")
    }
}

/// A public key that came from outside.
pub(super) struct PublicKey([u8; 32]);

impl PublicKey {
    /// Reads SubjectPublicKeyInfo; nothing but an Ed25519 key is taken.
    pub(super) fn from_der(der: &[u8]) -> Result<Self> {
        let key = der.strip_prefix(&PUBLIC_PREFIX).and_then(|key| key.try_into().ok());
        key.map(Self).ok_or_else(|| Error::Certificate {
            reason: format!("{} bytes of public key are no Ed25519 key in SubjectPublicKeyInfo", der.len()),
        })
    }
}

impl PublicKeyData for PublicKey {
    fn der_bytes(&self) -> &[u8] {
        &self.0
    }

    fn algorithm(&self) -> &'static SignatureAlgorithm {
        &PKCS_ED25519
    }
}

pub(super) fn sha256(bytes: &[u8]) -> [u8; 32] {
    Sha256::digest(bytes).into()
}

/// The one crypto provider; it is passed explicitly, never installed for the whole process.
pub(super) fn provider() -> std::sync::Arc<CryptoProvider> {
    std::sync::Arc::new(rustls::crypto::aws_lc_rs::default_provider())
}

pub(super) fn random<const N: usize>() -> Result<[u8; N]> {
    let mut bytes = [0; N];
    let filled = provider().secure_random.fill(&mut bytes);
    filled.map_err(|_| Error::Certificate { reason: "the system gives no random bytes".into() })?;
    Ok(bytes)
}
