//! Join tokens: one word that lets a newcomer find, know and enter a cluster.

use std::fmt::{self, Display, Formatter};
use std::str::FromStr;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use rustls::pki_types::CertificateDer;

use super::authority::leaf;
use super::key::{NodeKey, random, sha256};
use super::{Fingerprint, hex, names};
use crate::{Error, Result};

const PREFIX: &str = "paceline1.";
const ID_BYTES: usize = 8;
const SUM_BYTES: usize = 4;
/// Bytes of a token before its address.
const FIXED_BYTES: usize = ID_BYTES + 32 + 32;
const LONGEST_ADDRESS: usize = 255 + 6;

/// A token's public name: it may stand in logs and certificates.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TokenId([u8; ID_BYTES]);

hex::hexadecimal!(TokenId, 8, "a token's id");

/// SHA-256 of the public key that a token's secret gives: what the coordinator keeps instead of the secret.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TokenKey([u8; 32]);

hex::hexadecimal!(TokenKey, 32, "a token's key");

impl TokenKey {
    /// Of a public key as SubjectPublicKeyInfo in DER.
    pub(super) fn of(public_key_der: &[u8]) -> Self {
        Self(sha256(public_key_der))
    }
}

/// What a newcomer needs to join. Its text ([`Display`], [`FromStr`]) is a secret.
#[derive(Clone, PartialEq, Eq)]
pub struct JoinToken {
    /// Its public name.
    pub id: TokenId,
    /// `host:port` of the control plane.
    pub address: String,
    /// Of the cluster's authority.
    pub fingerprint: Fingerprint,
    secret: [u8; 32],
}

impl JoinToken {
    /// A new token for the cluster of this authority, whose control plane is at `address`.
    ///
    /// # Errors
    /// [`Token`](Error::Token) when the address is not `host:port`.
    pub fn create(address: &str, fingerprint: Fingerprint) -> Result<Self> {
        check_address(address)?;
        Ok(Self { id: TokenId(random()?), address: address.to_owned(), fingerprint, secret: random()? })
    }

    /// What the coordinator keeps of it.
    ///
    /// # Errors
    /// [`Certificate`](Error::Certificate) when no key can be made of the secret.
    pub fn key(&self) -> Result<TokenKey> {
        Ok(TokenKey::of(&self.signing_key()?.public_key_der()))
    }

    pub(super) fn signing_key(&self) -> Result<NodeKey> {
        NodeKey::from_seed(&self.secret)
    }

    /// The certificate that a newcomer presents: of the token's key, signed by itself.
    pub(super) fn certificate(&self) -> Result<CertificateDer<'static>> {
        let key = self.signing_key()?;
        let parameters = leaf(names::NEWCOMER, vec![names::NEWCOMER.into()])?;
        Ok(parameters.self_signed(key.pair()).map_err(Error::certificate)?.der().clone())
    }
}

impl Display for JoinToken {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        let mut bytes = [&self.id.0[..], &self.fingerprint.0, &self.secret, self.address.as_bytes()].concat();
        let sum = sha256(&bytes);
        bytes.extend_from_slice(&sum[..SUM_BYTES]);
        write!(formatter, "{PREFIX}{}", URL_SAFE_NO_PAD.encode(bytes))
    }
}

impl fmt::Debug for JoinToken {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        write!(formatter, "JoinToken({}, {}, {}, ..)", self.id, self.address, self.fingerprint)
    }
}

impl FromStr for JoinToken {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let text = text.trim();
        let word = text.strip_prefix(PREFIX).ok_or_else(|| refuse("it does not begin with `paceline1.`"))?;
        if word.len() > (FIXED_BYTES + LONGEST_ADDRESS + SUM_BYTES).div_ceil(3) * 4 {
            return Err(refuse("it is too long"));
        }
        let bytes = URL_SAFE_NO_PAD.decode(word).map_err(|_| refuse("it has characters that no token has"))?;
        let (body, sum) = bytes.split_last_chunk::<SUM_BYTES>().ok_or_else(|| refuse("it is too short"))?;
        if sha256(body)[..SUM_BYTES] != *sum {
            return Err(refuse("its checksum is wrong: copy it again, whole"));
        }
        read(body)
    }
}

fn read(body: &[u8]) -> Result<JoinToken> {
    let short = || refuse("it is too short");
    let (id, rest) = body.split_first_chunk().ok_or_else(short)?;
    let (fingerprint, rest) = rest.split_first_chunk().ok_or_else(short)?;
    let (secret, address) = rest.split_first_chunk().ok_or_else(short)?;
    let address = str::from_utf8(address).map_err(|_| refuse("its address is no text"))?;
    check_address(address)?;
    let (id, fingerprint) = (TokenId(*id), Fingerprint(*fingerprint));
    Ok(JoinToken { id, address: address.to_owned(), fingerprint, secret: *secret })
}

fn check_address(address: &str) -> Result<()> {
    let plain = address.len() <= LONGEST_ADDRESS && address.chars().all(|c| c.is_ascii_graphic());
    let parts = address.rsplit_once(':').filter(|(host, _)| plain && !host.is_empty());
    let port = parts.and_then(|(_, port)| port.parse::<u16>().ok()).filter(|port| *port != 0);
    port.map(drop).ok_or_else(|| refuse(&format!("the address `{}` is not host:port", address.escape_debug())))
}

fn refuse(reason: &str) -> Error {
    Error::Token { reason: reason.to_owned() }
}
