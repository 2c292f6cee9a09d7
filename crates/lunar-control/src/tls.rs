//! TLS from files: certificate and key of a server, trusted certificates of a client.

use crate::Failure;
use crate::small_file::{self, Readable};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio_rustls::rustls::crypto::{CryptoProvider, ring};
use tokio_rustls::rustls::{ClientConfig, RootCertStore, ServerConfig};
use tokio_rustls::{TlsAcceptor, TlsConnector};

/// Maximum size of a certificate or key file.
const PEM_BYTES_MAX: u64 = 1 << 20;

/// Files of a server's certificate.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct TlsFiles {
    /// The certificate with its chain, PEM.
    pub certificate: PathBuf,
    /// The private key, PEM.
    pub key: PathBuf,
}

/// A certificate and its key, loaded for a server.
#[derive(Clone)]
pub(crate) struct ServerTls {
    pub(crate) acceptor: TlsAcceptor,
    /// The certificates; equal certificates imply the same key.
    certificates: Vec<CertificateDer<'static>>,
}

impl ServerTls {
    /// Whether both present the same certificates.
    pub(crate) fn same(&self, other: &Self) -> bool {
        self.certificates == other.certificates
    }
}

impl std::fmt::Debug for ServerTls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ServerTls(…)")
    }
}

/// Reads both files and checks that they match.
pub(crate) fn server(files: &TlsFiles, readable: Readable) -> Result<ServerTls, Failure> {
    let certificates = certificates(&files.certificate, readable)?;
    let key = PrivateKeyDer::from_pem_slice(&read(&files.key, readable)?).map_err(|error| {
        Failure::new(format!("cannot read a private key from {}: {error}", files.key.display()))
            .hint("use a file with a private key in PEM format")
    })?;
    let config = ServerConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .and_then(|builder| {
            builder.with_no_client_auth().with_single_cert(certificates.clone(), key)
        })
        .map_err(|error| {
            let both = (files.certificate.display(), files.key.display());
            Failure::new(format!(
                "cannot use the certificate {} with the key {}: {error}",
                both.0, both.1
            ))
            .hint("use a certificate and its private key")
        })?;
    Ok(ServerTls { acceptor: TlsAcceptor::from(Arc::new(config)), certificates })
}

/// A client that trusts the certificates in `trusted` and those signed by them.
pub(crate) fn client(trusted: &Path) -> Result<TlsConnector, Failure> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(trusted, Readable::Any)? {
        roots.add(certificate).map_err(|error| {
            Failure::new(format!("invalid certificate in {}: {error}", trusted.display()))
        })?;
    }
    let config = ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .map_err(|error| Failure::new(format!("cannot set up TLS: {error}")))?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(TlsConnector::from(Arc::new(config)))
}

/// A hint for a failed handshake, if the cause is known.
pub(crate) fn hint(error: &std::io::Error) -> Option<&'static str> {
    // The type of the reason belongs to a crate that is no direct dependency, so its text is
    // checked.
    error.to_string().contains("CaUsedAsEndEntity").then_some(
        "the certificate of the server is a CA certificate (CA:TRUE, the default of `openssl req \
         -x509`), which must not identify a server: create one with -addext \
         basicConstraints=critical,CA:FALSE -addext subjectAltName=IP:ADDRESS",
    )
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

fn certificates(path: &Path, readable: Readable) -> Result<Vec<CertificateDer<'static>>, Failure> {
    let bytes = read(path, readable)?;
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&bytes).collect();
    match found {
        Ok(found) if !found.is_empty() => Ok(found),
        Ok(_) => Err(Failure::new(format!("no certificate in {}", path.display()))
            .hint("use a file with certificates in PEM format")),
        Err(error) => {
            Err(Failure::new(format!("cannot read certificates from {}: {error}", path.display()))
                .hint("use a file with certificates in PEM format"))
        }
    }
}

fn read(path: &Path, readable: Readable) -> Result<Vec<u8>, Failure> {
    let failed = |error: std::io::Error| {
        Failure::new(format!("cannot read {}: {error}", path.display()))
            .hint("use a readable file in PEM format")
    };
    Ok(small_file::read(path, PEM_BYTES_MAX, readable).map_err(failed)?.0)
}
