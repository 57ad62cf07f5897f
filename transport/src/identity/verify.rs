//! Whom the control plane lets in, and whom a newcomer believes.

use std::fmt::Debug;
use std::sync::Arc;

use paceline_proto::NodeId;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{CertificateError, DigitallySignedStruct, DistinguishedName, SignatureScheme};
use subtle::ConstantTimeEq;
use webpki::EndEntityCert;

use super::node::{certificate_names, roots};
use super::{Fingerprint, TokenId, TokenKey, names};
use crate::{Error, Result};

/// What the coordinator knows of tokens.
pub trait Trust: Debug + Send + Sync {
    /// The live token with this key.
    fn token_of(&self, key: &TokenKey) -> Option<TokenId>;
    /// Whether nodes that came by this token are still let in.
    fn is_live(&self, token: &TokenId) -> bool;
}

/// Who is at the other end of a control connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Peer {
    /// Someone who knows a token's secret and has no certificate yet.
    Newcomer(TokenId),
    /// A node with a certificate of the authority.
    Node {
        /// Which.
        node: NodeId,
        /// The token that let it in, if one did.
        token: Option<TokenId>,
    },
}

/// Who completed a handshake with [`control_server`](super::control_server).
///
/// # Errors
/// [`Certificate`](Error::Certificate) when there is no certificate, it names nobody, or its token was revoked since.
pub fn peer_of(certificates: &[CertificateDer<'_>], trust: &dyn Trust) -> Result<Peer> {
    let refuse = |reason: &str| Error::Certificate { reason: reason.to_owned() };
    let certificate = certificates.first().ok_or_else(|| refuse("the peer has shown no certificate"))?;
    if let Some(token) = newcomer(certificate, trust)? {
        return Ok(Peer::Newcomer(token));
    }
    // A newcomer's certificate may not name a node, so what names one was signed by the authority.
    let node = named_node(certificate)?;
    let token = certificate_names(certificate)?.iter().find_map(|name| names::token_in(name));
    if token.is_some_and(|token| !trust.is_live(&token)) {
        return Err(refuse("its token has been revoked"));
    }
    Ok(Peer::Node { node, token })
}

/// The node that a certificate of the authority names.
pub(crate) fn named_node(certificate: &CertificateDer<'_>) -> Result<NodeId> {
    let node = certificate_names(certificate)?.iter().find_map(|name| names::node_in(name));
    node.ok_or_else(|| Error::certificate("it names no node"))
}

/// The live token whose key the certificate has.
fn newcomer(certificate: &CertificateDer<'_>, trust: &dyn Trust) -> Result<Option<TokenId>> {
    let end = EndEntityCert::try_from(certificate).map_err(Error::certificate)?;
    Ok(trust.token_of(&TokenKey::of(&end.subject_public_key_info())))
}

/// Lets in nodes of the authority whose token is live, and newcomers with a live token.
#[derive(Debug)]
pub(super) struct Members {
    pub(super) nodes: Arc<dyn ClientCertVerifier>,
    pub(super) trust: Arc<dyn Trust>,
    pub(super) provider: Arc<CryptoProvider>,
}

type Verified<T> = std::result::Result<T, rustls::Error>;

impl ClientCertVerifier for Members {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        // Newcomers have no certificate of the authority, so none is hinted at.
        &[]
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Verified<ClientCertVerified> {
        let bad = |_| rustls::Error::from(CertificateError::BadEncoding);
        let names = certificate_names(end_entity).map_err(bad)?;
        if newcomer(end_entity, self.trust.as_ref()).map_err(bad)?.is_some() {
            // Its key is enough; what else it says is its own claim, and must not look like a node's certificate.
            let plain = names.iter().all(|name| name == names::NEWCOMER);
            let refused = rustls::Error::from(CertificateError::ApplicationVerificationFailure);
            return if plain { Ok(ClientCertVerified::assertion()) } else { Err(refused) };
        }
        let verified = self.nodes.verify_client_cert(end_entity, intermediates, now)?;
        match names.iter().find_map(|name| names::token_in(name)) {
            Some(token) if !self.trust.is_live(&token) => Err(CertificateError::Revoked.into()),
            _ => Ok(verified),
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Verified<HandshakeSignatureValid> {
        verify_tls12_signature(message, certificate, signature, &self.provider.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Verified<HandshakeSignatureValid> {
        verify_tls13_signature(message, certificate, signature, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

/// Believes a server whose chain ends in the authority with this fingerprint.
#[derive(Debug)]
pub(super) struct PinnedAuthority {
    pub(super) fingerprint: Fingerprint,
    pub(super) provider: Arc<CryptoProvider>,
}

impl PinnedAuthority {
    fn authority(&self, chain: &[CertificateDer<'_>]) -> Verified<Arc<WebPkiServerVerifier>> {
        let unknown = || rustls::Error::from(CertificateError::UnknownIssuer);
        let pinned = |last: &&CertificateDer<'_>| Fingerprint::of(last).0.ct_eq(&self.fingerprint.0).into();
        let authority = chain.last().filter(pinned).ok_or_else(unknown)?;
        let roots = roots(authority).map_err(|_| unknown())?;
        WebPkiServerVerifier::builder_with_provider(roots, self.provider.clone()).build().map_err(|_| unknown())
    }
}

impl ServerCertVerifier for PinnedAuthority {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Verified<ServerCertVerified> {
        let authority = self.authority(intermediates)?;
        authority.verify_server_cert(end_entity, &[], server_name, ocsp_response, now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Verified<HandshakeSignatureValid> {
        verify_tls12_signature(message, certificate, signature, &self.provider.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Verified<HandshakeSignatureValid> {
        verify_tls13_signature(message, certificate, signature, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
