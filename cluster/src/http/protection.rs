//! Who may use the API, over what, and how much: what the flags say about it, checked.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use paceline_api::{ApiKey, ApiKeys, KeyLimits};
use rustls::ServerConfig;
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tracing::warn;

use crate::cli::ApiArgs;

/// An address that others can reach needs a key.
pub(super) fn check_exposure(arguments: &ApiArgs) -> Result<()> {
    let host = arguments.host;
    if host.is_loopback() {
        return Ok(());
    }
    ensure!(
        !arguments.api_key.is_empty() || arguments.api_key_file.is_some(),
        "--host {host} can be reached from outside: give a key with --api-key or --api-key-file, or listen on 127.0.0.1"
    );
    if arguments.tls_cert.is_none() {
        warn!(%host, "keys and prompts travel in the clear; --tls-cert and --tls-key change that");
    }
    Ok(())
}

/// The keys of the command line and those of the file.
pub(super) fn api_keys(arguments: &ApiArgs) -> Result<ApiKeys> {
    let limits =
        KeyLimits { requests: arguments.key_requests, tokens: arguments.key_tokens, sessions: arguments.key_sessions };
    let mut keys: Vec<ApiKey> = arguments.api_key.iter().map(|key| ApiKey::new(key)).collect();
    if let Some(path) = &arguments.api_key_file {
        keys.extend(keys_in(path)?);
    }
    if keys.is_empty() {
        return Ok(ApiKeys::open(limits));
    }
    Ok(ApiKeys::new(keys.into_iter().map(|key| key.or_limits(limits))))
}

/// The keys of a file, one a line.
fn keys_in(path: &Path) -> Result<Vec<ApiKey>> {
    let text = std::fs::read_to_string(path);
    let text = text.with_context(|| format!("cannot read the keys in {}", path.display()))?;
    let mut keys = Vec::new();
    for (index, line) in text.lines().map(str::trim).enumerate() {
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let key = line.parse::<ApiKey>();
        keys.push(key.with_context(|| format!("line {} of {} is no key", index + 1, path.display()))?);
    }
    ensure!(!keys.is_empty(), "there is no key in {}", path.display());
    Ok(keys)
}

/// The certificate of the API, where it is served over TLS.
pub(super) fn tls(arguments: &ApiArgs) -> Result<Option<Arc<ServerConfig>>> {
    let (Some(certificate), Some(key)) = (&arguments.tls_cert, &arguments.tls_key) else { return Ok(None) };
    let chain = CertificateDer::pem_file_iter(certificate).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let chain = chain.with_context(|| format!("cannot read a certificate in {}", certificate.display()))?;
    ensure!(!chain.is_empty(), "there is no certificate in {}", certificate.display());
    let private = PrivateKeyDer::from_pem_file(key);
    let private = private.with_context(|| format!("cannot read a private key in {}", key.display()))?;
    let config = ServerConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()
        .context("TLS cannot be set up")?
        .with_no_client_auth()
        .with_single_cert(chain, private)
        .with_context(|| format!("{} does not go with {}", key.display(), certificate.display()))?;
    Ok(Some(Arc::new(config)))
}
