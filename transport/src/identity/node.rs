//! A node's identity: its name, its key, and the certificate that ties them together.

use std::sync::Arc;

use paceline_proto::NodeId;
use rustls::RootCertStore;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use webpki::{EndEntityCert, KeyUsage, anchor_from_trusted_cert};

use super::key::provider;
use super::{Fingerprint, NodeKey, names};
use crate::{Error, Result};

/// Who this process is. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Identity(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    node: NodeId,
    key: NodeKey,
    certificate: CertificateDer<'static>,
    authority: CertificateDer<'static>,
}

impl Identity {
    /// The identity that a certificate of the authority gives.
    ///
    /// # Errors
    /// [`Certificate`](Error::Certificate) when the certificate is not the authority's, not for this key, or not for
    /// this node.
    pub fn new(
        node: NodeId,
        key: NodeKey,
        certificate: CertificateDer<'static>,
        authority: CertificateDer<'static>,
    ) -> Result<Self> {
        check(node, &key, &certificate, &authority)?;
        Ok(Self(Arc::new(Inner { node, key, certificate, authority })))
    }

    /// The node's name.
    pub fn node(&self) -> NodeId {
        self.0.node
    }

    /// Of the authority.
    pub fn fingerprint(&self) -> Fingerprint {
        Fingerprint::of(&self.0.authority)
    }

    /// The certificate and its authority's, as they are sent in a handshake.
    pub(super) fn chain(&self) -> Vec<CertificateDer<'static>> {
        vec![self.0.certificate.clone(), self.0.authority.clone()]
    }

    pub(super) fn private_key(&self) -> PrivateKeyDer<'static> {
        self.0.key.private_der()
    }

    pub(super) fn roots(&self) -> Result<Arc<RootCertStore>> {
        roots(&self.0.authority)
    }
}

/// The one authority to trust.
pub(super) fn roots(authority: &CertificateDer<'_>) -> Result<Arc<RootCertStore>> {
    let mut roots = RootCertStore::empty();
    roots.add(authority.clone().into_owned()).map_err(Error::certificate)?;
    Ok(Arc::new(roots))
}

/// The DNS names of a certificate.
pub(super) fn certificate_names(certificate: &CertificateDer<'_>) -> Result<Vec<String>> {
    let end = EndEntityCert::try_from(certificate).map_err(Error::certificate)?;
    Ok(end.valid_dns_names().map(str::to_owned).collect())
}

fn check(node: NodeId, key: &NodeKey, certificate: &CertificateDer<'_>, authority: &CertificateDer<'_>) -> Result<()> {
    let end = EndEntityCert::try_from(certificate).map_err(Error::certificate)?;
    let anchor = anchor_from_trusted_cert(authority).map_err(Error::certificate)?;
    let algorithms = provider().signature_verification_algorithms;
    let usage = KeyUsage::client_auth();
    end.verify_for_usage(algorithms.all, &[anchor], &[], UnixTime::now(), usage, None, None)
        .map_err(Error::certificate)?;
    if end.subject_public_key_info().as_ref() != key.public_key_der() {
        return Err(Error::Certificate { reason: "the certificate is for another key".into() });
    }
    let name = names::of_node(node);
    if !end.valid_dns_names().any(|found| found == name) {
        return Err(Error::Certificate { reason: format!("the certificate is not for node {node}") });
    }
    Ok(())
}
