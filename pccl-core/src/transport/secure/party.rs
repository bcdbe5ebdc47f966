//! Who speaks TLS here, and whom it believes to be who.

use std::io;
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{AlwaysResolvesClientRawPublicKeys, Resumption};
use rustls::crypto::{CryptoProvider, WebPkiSupportedAlgorithms, ring};
use rustls::pki_types::{CertificateDer, ServerName, SubjectPublicKeyInfoDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{AlwaysResolvesServerRawPublicKeys, NoServerSessionStorage};
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, DistinguishedName, Error, ServerConfig,
    SignatureScheme,
};

use super::identity::{Identity, public_key};
use crate::ids::PublicKey;

/// A process with its key, able to dial and to accept.
#[derive(Clone)]
pub(crate) struct Party {
    identity: Identity,
    provider: Arc<CryptoProvider>,
    server: Arc<ServerConfig>,
}

impl Party {
    /// A party with this key pair.
    pub(crate) fn new(identity: Identity) -> io::Result<Self> {
        let provider = Arc::new(CryptoProvider {
            cipher_suites: vec![
                ring::cipher_suite::TLS13_AES_128_GCM_SHA256,
                ring::cipher_suite::TLS13_CHACHA20_POLY1305_SHA256,
            ],
            kx_groups: vec![ring::kx_group::X25519],
            ..ring::default_provider()
        });
        let anybody = Arc::new(Shown {
            expected: None,
            algorithms: provider.signature_verification_algorithms,
        });
        let resolver = AlwaysResolvesServerRawPublicKeys::new(identity.certified());
        let mut server = ServerConfig::builder_with_provider(provider.clone())
            .with_protocol_versions(VERSIONS)
            .map_err(io::Error::other)?
            .with_client_cert_verifier(anybody)
            .with_cert_resolver(Arc::new(resolver));
        server.alpn_protocols = vec![PROTOCOL.to_vec()];
        server.session_storage = Arc::new(NoServerSessionStorage {});
        server.send_tls13_tickets = 0;
        Ok(Self {
            identity,
            provider,
            server: Arc::new(server),
        })
    }

    /// The public half of its key.
    pub(crate) fn key(&self) -> PublicKey {
        self.identity.key()
    }

    /// To accept anybody who has some key.
    pub(super) fn server(&self) -> Arc<ServerConfig> {
        self.server.clone()
    }

    /// To dial whoever has this key, and nobody else.
    pub(super) fn client(&self, expected: PublicKey) -> Result<Arc<ClientConfig>, Error> {
        let verifier = Arc::new(Shown {
            expected: Some(expected),
            algorithms: self.provider.signature_verification_algorithms,
        });
        let resolver = AlwaysResolvesClientRawPublicKeys::new(self.identity.certified());
        let mut client = ClientConfig::builder_with_provider(self.provider.clone())
            .with_protocol_versions(VERSIONS)?
            .dangerous()
            .with_custom_certificate_verifier(verifier)
            .with_client_cert_resolver(Arc::new(resolver));
        client.alpn_protocols = vec![PROTOCOL.to_vec()];
        client.resumption = Resumption::disabled();
        client.enable_sni = false;
        Ok(Arc::new(client))
    }
}

impl std::fmt::Debug for Party {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Party").field(&self.key()).finish()
    }
}

/// A name that TLS asks for and nobody looks at: keys are what counts.
pub(super) fn nobody() -> Result<ServerName<'static>, Error> {
    ServerName::try_from(NAME).map_err(|e| Error::General(e.to_string()))
}

/// Checks a key that was shown.
#[derive(Debug)]
struct Shown {
    expected: Option<PublicKey>,
    algorithms: WebPkiSupportedAlgorithms,
}

impl Shown {
    fn check(&self, shown: &[u8]) -> Result<(), Error> {
        let key = public_key(shown);
        let key = key.ok_or(Error::InvalidCertificate(CertificateError::BadEncoding))?;
        match self.expected {
            Some(expected) if expected != key => Err(Error::General(format!(
                "somebody else is there: it shows {key:?}, and not {expected:?}"
            ))),
            _ => Ok(()),
        }
    }

    fn signed(
        &self,
        message: &[u8],
        shown: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let key = SubjectPublicKeyInfoDer::from(shown.as_ref());
        rustls::crypto::verify_tls13_signature_with_raw_key(
            message,
            &key,
            signature,
            &self.algorithms,
        )
    }
}

impl ServerCertVerifier for Shown {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        self.check(end_entity)
            .map(|()| ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(Error::General("TLS 1.2 is not spoken here".into()))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.signed(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ED25519]
    }

    fn requires_raw_public_keys(&self) -> bool {
        true
    }
}

impl ClientCertVerifier for Shown {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        self.check(end_entity)
            .map(|()| ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(Error::General("TLS 1.2 is not spoken here".into()))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.signed(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ED25519]
    }

    fn requires_raw_public_keys(&self) -> bool {
        true
    }
}

const VERSIONS: &[&rustls::SupportedProtocolVersion] = &[&rustls::version::TLS13];

/// Named in the handshake (ALPN), so that nobody can lead one of these connections to, or from,
/// another sort of server.
const PROTOCOL: &[u8] = b"pccl";

const NAME: &str = "pccl";
