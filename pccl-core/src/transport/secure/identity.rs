//! The key pair of a party.

use std::fmt;
use std::io::{self, Write};
use std::path::Path;
use std::sync::Arc;

use rustls::crypto::ring::sign::any_eddsa_type;
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer};
use rustls::sign::CertifiedKey;

use crate::ids::PublicKey;
use crate::transport::sockopt;
use crate::wire::ticket;

/// A key pair. Never printed but for its public half.
#[derive(Clone)]
pub(crate) struct Identity {
    seed: [u8; SEED_BYTES],
    key: PublicKey,
    certified: Arc<CertifiedKey>,
}

impl Identity {
    /// A new one.
    pub(crate) fn new() -> io::Result<Self> {
        let mut seed = [0; SEED_BYTES];
        getrandom::fill(&mut seed).map_err(io::Error::other)?;
        Self::from_seed(seed)
    }

    /// The one in a file, which is made if it is not there: readable by its owner only.
    pub(crate) fn kept(path: &Path) -> io::Result<Self> {
        match std::fs::read_to_string(path) {
            Ok(text) => Self::from_text(text.trim()),
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                let identity = Self::new()?;
                keep(path, &format!("{}\n", identity.text()))?;
                Ok(identity)
            }
            Err(e) => Err(e),
        }
    }

    /// From what [`Identity::text`] gave.
    pub(crate) fn from_text(text: &str) -> io::Result<Self> {
        let none = || io::Error::new(io::ErrorKind::InvalidData, "the file holds no key pair");
        let seed = text.strip_prefix(TEXT_PREFIX).ok_or_else(none)?;
        let seed = ticket::decode(seed).map_err(|_| none())?;
        Self::from_seed(seed.try_into().map_err(|_| none())?)
    }

    /// As a line of text, secret half included.
    pub(crate) fn text(&self) -> String {
        format!("{TEXT_PREFIX}{}", ticket::encode(&self.seed))
    }

    /// The public half.
    pub(crate) fn key(&self) -> PublicKey {
        self.key
    }

    pub(super) fn certified(&self) -> Arc<CertifiedKey> {
        self.certified.clone()
    }

    fn from_seed(seed: [u8; SEED_BYTES]) -> io::Result<Self> {
        let pair = [PAIR_PREFIX, &seed].concat();
        let pair = any_eddsa_type(&PrivatePkcs8KeyDer::from(pair)).map_err(io::Error::other)?;
        let none = || io::Error::other("a key pair without a public key");
        let public = pair.public_key().ok_or_else(none)?;
        let key = public_key(&public).ok_or_else(none)?;
        let shown = CertificateDer::from(public.to_vec());
        Ok(Self {
            seed,
            key,
            certified: Arc::new(CertifiedKey::new(vec![shown], pair)),
        })
    }
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Identity").field(&self.key).finish()
    }
}

/// Writes a file that only its owner may read. It is whole at every moment.
pub(crate) fn keep(path: &Path, text: &str) -> io::Result<()> {
    let mut beside = path.as_os_str().to_owned();
    beside.push(".new");
    let beside = Path::new(&beside);
    // Left over from a process that ended in between.
    let _ = std::fs::remove_file(beside);
    let mut file = sockopt::private_file(beside)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    drop(file);
    std::fs::rename(beside, path)
}

/// The key in what TLS carries (RFC 8410, section 4), if it is of the only kind there is here.
pub(super) fn public_key(shown: &[u8]) -> Option<PublicKey> {
    let key = shown.strip_prefix(PUBLIC_PREFIX)?;
    key.try_into().ok().map(PublicKey)
}

const SEED_BYTES: usize = 32;

/// What stands in front of an Ed25519 seed in PKCS #8 (RFC 8410, section 7).
const PAIR_PREFIX: &[u8] = &[
    0x30, 0x2e, 2, 1, 0, 0x30, 5, 6, 3, 0x2b, 0x65, 0x70, 4, 0x22, 4, 0x20,
];

/// And in front of an Ed25519 public key (section 4).
const PUBLIC_PREFIX: &[u8] = &[0x30, 0x2a, 0x30, 5, 6, 3, 0x2b, 0x65, 0x70, 3, 0x21, 0];

/// How a key pair begins as text, so that nobody takes it for anything else.
const TEXT_PREFIX: &str = "pccl-secret-key-";
