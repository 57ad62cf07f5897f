//! TLS for the control plane and for links: version 1.3 alone, certificates on both sides, nothing resumed, so that a
//! revoked token is asked for at every connection.

use std::sync::Arc;

use rustls::client::Resumption;
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::version::TLS13;
use rustls::{ClientConfig, ServerConfig};

use super::key::provider;
use super::verify::{Members, PinnedAuthority};
use super::{Identity, JoinToken, Trust};
use crate::{Error, Result};

const CONTROL: &[u8] = b"h2";
const DATA: &[u8] = b"paceline/1";

/// TLS for the control plane: lets in nodes of the authority, and newcomers with a live token.
///
/// # Errors
/// [`Certificate`](Error::Certificate) when the identity's certificates cannot be used.
pub fn control_server(identity: &Identity, trust: Arc<dyn Trust>) -> Result<ServerConfig> {
    let nodes = node_verifier(identity)?;
    server(identity, Arc::new(Members { nodes, trust, provider: provider() }), CONTROL)
}

/// TLS of a newcomer to the control plane: known by its token, knowing the authority's fingerprint.
///
/// # Errors
/// [`Certificate`](Error::Certificate) when no key can be made of the token.
pub fn newcomer_client(token: &JoinToken) -> Result<ClientConfig> {
    let pinned = PinnedAuthority { fingerprint: token.fingerprint, provider: provider() };
    let builder = client_builder()?.dangerous().with_custom_certificate_verifier(Arc::new(pinned));
    let key = token.signing_key()?.private_der();
    let config = builder.with_client_auth_cert(vec![token.certificate()?], key).map_err(Error::certificate)?;
    Ok(finish(config, CONTROL))
}

/// TLS of a node to the control plane.
///
/// # Errors
/// [`Certificate`](Error::Certificate) when the identity's certificates cannot be used.
pub fn node_client(identity: &Identity) -> Result<ClientConfig> {
    client(identity, CONTROL)
}

/// TLS of a data endpoint towards others.
pub(crate) fn data_client(identity: &Identity) -> Result<ClientConfig> {
    client(identity, DATA)
}

/// TLS of a data endpoint that others connect to.
pub(crate) fn data_server(identity: &Identity) -> Result<ServerConfig> {
    server(identity, node_verifier(identity)?, DATA)
}

fn node_verifier(identity: &Identity) -> Result<Arc<dyn ClientCertVerifier>> {
    let builder = WebPkiClientVerifier::builder_with_provider(identity.roots()?, provider());
    builder.build().map_err(Error::certificate)
}

fn server(identity: &Identity, verifier: Arc<dyn ClientCertVerifier>, protocol: &[u8]) -> Result<ServerConfig> {
    let builder = ServerConfig::builder_with_provider(provider());
    let builder = builder.with_protocol_versions(&[&TLS13]).map_err(Error::certificate)?;
    let builder = builder.with_client_cert_verifier(verifier);
    let mut config = builder.with_single_cert(identity.chain(), identity.private_key()).map_err(Error::certificate)?;
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    config.alpn_protocols = vec![protocol.to_vec()];
    Ok(config)
}

fn client(identity: &Identity, protocol: &[u8]) -> Result<ClientConfig> {
    let builder = client_builder()?.with_root_certificates(identity.roots()?);
    let config = builder.with_client_auth_cert(identity.chain(), identity.private_key()).map_err(Error::certificate)?;
    Ok(finish(config, protocol))
}

fn client_builder() -> Result<rustls::ConfigBuilder<ClientConfig, rustls::WantsVerifier>> {
    ClientConfig::builder_with_provider(provider()).with_protocol_versions(&[&TLS13]).map_err(Error::certificate)
}

fn finish(mut config: ClientConfig, protocol: &[u8]) -> ClientConfig {
    config.resumption = Resumption::disabled();
    config.alpn_protocols = vec![protocol.to_vec()];
    config
}
