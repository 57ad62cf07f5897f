//! The cluster's authority: the key that signs every node's certificate.

use paceline_proto::NodeId;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, PKCS_ED25519,
};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;

use super::key::{PublicKey, sha256};
use super::{TokenId, hex, names};
use crate::{Error, Result};

/// SHA-256 of an authority's certificate in DER.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Fingerprint(pub(super) [u8; 32]);

hex::hexadecimal!(Fingerprint, 32, "a fingerprint");

impl Fingerprint {
    /// Of this certificate.
    pub fn of(certificate: &CertificateDer<'_>) -> Self {
        Self(sha256(certificate))
    }
}

/// What a certificate lets its node be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Role {
    /// The process that shards attend to.
    Coordinator,
    /// A process that runs stages.
    Shard,
}

/// A cluster's certificate authority.
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    certificate: CertificateDer<'static>,
    pem: String,
}

impl Authority {
    /// A new authority: a new cluster.
    ///
    /// # Errors
    /// [`Certificate`](Error::Certificate) when the system has no randomness.
    pub fn create() -> Result<Self> {
        let key = KeyPair::generate_for(&PKCS_ED25519).map_err(Error::certificate)?;
        let certificate = parameters().self_signed(&key).map_err(Error::certificate)?;
        let pem = format!("{}{}", key.serialize_pem(), certificate.pem());
        Ok(Self { issuer: Issuer::new(parameters(), key), certificate: certificate.der().clone(), pem })
    }

    /// The authority that [`to_pem`](Self::to_pem) wrote.
    ///
    /// # Errors
    /// [`Certificate`](Error::Certificate) when the text is something else, or key and certificate do not belong
    /// together.
    pub fn from_pem(pem: &str) -> Result<Self> {
        let unreadable =
            |what: &str| Error::Certificate { reason: format!("the authority's PEM holds no readable {what}") };
        let key = KeyPair::from_pem(pem).map_err(|_| unreadable("private key"))?;
        let certificate = CertificateDer::from_pem_slice(pem.as_bytes()).map_err(|_| unreadable("certificate"))?;
        let end = webpki::EndEntityCert::try_from(&certificate).map_err(|_| unreadable("certificate"))?;
        if end.subject_public_key_info().as_ref() != rcgen::PublicKeyData::subject_public_key_info(&key) {
            return Err(Error::Certificate { reason: "the authority's key and certificate do not match".into() });
        }
        Ok(Self { issuer: Issuer::new(parameters(), key), certificate, pem: pem.to_owned() })
    }

    /// Key and certificate. Whoever has this text is the cluster: keep it secret.
    pub fn to_pem(&self) -> String {
        self.pem.clone()
    }

    /// What tokens say of this authority.
    pub fn fingerprint(&self) -> Fingerprint {
        Fingerprint::of(&self.certificate)
    }

    /// The certificate that nodes check others against.
    pub fn certificate(&self) -> &CertificateDer<'static> {
        &self.certificate
    }

    /// A certificate for a node's public key (SubjectPublicKeyInfo in DER), with the token that let it in.
    ///
    /// # Errors
    /// [`Certificate`](Error::Certificate) when the key is no Ed25519 key.
    pub fn issue(
        &self,
        node: NodeId,
        token: Option<TokenId>,
        role: Role,
        public_key_der: &[u8],
    ) -> Result<CertificateDer<'static>> {
        let key = PublicKey::from_der(public_key_der)?;
        let mut names = vec![names::of_node(node)];
        names.extend(token.map(names::of_token));
        if role == Role::Coordinator {
            names.push(names::COORDINATOR.into());
        }
        let parameters = leaf(&names[0].clone(), names)?;
        let certificate = parameters.signed_by(&key, &self.issuer).map_err(Error::certificate)?;
        Ok(certificate.der().clone())
    }
}

impl std::fmt::Debug for Authority {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "Authority({})", self.fingerprint())
    }
}

/// What every authority's certificate says; the same each time, so that the issuer can be rebuilt from the key.
fn parameters() -> CertificateParams {
    let mut parameters = CertificateParams::default();
    parameters.distinguished_name = named(names::AUTHORITY);
    parameters.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    parameters.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
    parameters
}

/// A certificate that is no authority's, for both ends of a connection.
pub(super) fn leaf(subject: &str, names: Vec<String>) -> Result<CertificateParams> {
    let mut parameters = CertificateParams::new(names).map_err(Error::certificate)?;
    parameters.distinguished_name = named(subject);
    parameters.is_ca = IsCa::ExplicitNoCa;
    parameters.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    parameters.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth, ExtendedKeyUsagePurpose::ServerAuth];
    Ok(parameters)
}

fn named(common_name: &str) -> DistinguishedName {
    let mut name = DistinguishedName::new();
    name.push(DnType::CommonName, common_name);
    name
}
