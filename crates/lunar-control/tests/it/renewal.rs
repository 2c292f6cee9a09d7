//! Certificate and token of a running API are read again when a configuration is applied.

use crate::common::{Scratch, TARGET, TEST_TIMEOUT, lun};
use lunar_block::{BlockDevice, MemoryDevice};
use lunar_control::api::bound::BoundApi;
use lunar_control::client::{ApiClient, ApiPath};
use lunar_control::config::{ApiListen, ApiOptions};
use lunar_control::daemon::{
    Applied, ApplyOptions, ConfigOrigin, ConfigSource, Daemon, OpenedConfig, StartOptions,
};
use lunar_control::device_url::{DeviceOptions, DeviceUrl, Opener};
use lunar_control::http::{Address, HttpServer};
use lunar_control::{Failure, TlsFiles, Token, config};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, ServerName};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::runtime::Runtime;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

const OLD: &str = "the-old-token-0123456789";
const NEW: &str = "the-new-token-0123456789";

#[derive(Debug)]
struct Memory;

impl Opener for Memory {
    fn open(&self, _: &DeviceUrl, _: &DeviceOptions) -> Result<Arc<dyn BlockDevice>, Failure> {
        Ok(Arc::new(MemoryDevice::new(1 << 20, 512, 4096)?))
    }
}

struct Rig {
    scratch: Scratch,
    daemon: Arc<Daemon>,
    api: HttpServer,
    runtime: Runtime,
}

fn configuration(luns: u16) -> String {
    let luns: String = (0..luns).map(|id| lun(id, "mem:1M")).collect();
    format!("[listen]\nportals = [\"127.0.0.1:0\"]\n[[target]]\nname = \"{TARGET}\"\n{luns}")
}

/// Writes a new certificate with its key, and a copy of the certificate for clients.
fn certify(scratch: &Scratch, copy: &str) -> PathBuf {
    let made = rcgen::generate_simple_self_signed(vec!["127.0.0.1".to_owned()]).unwrap();
    scratch.file("key.pem", made.signing_key.serialize_pem());
    scratch.file("cert.pem", made.cert.pem());
    scratch.file(copy, made.cert.pem())
}

impl Rig {
    /// Starts a server; also returns the certificate that clients trust.
    fn new(name: &str) -> (Self, PathBuf) {
        let scratch = Scratch::new(name);
        let trusted = certify(&scratch, "old.pem");
        let token = scratch.file("token", OLD);
        let file = scratch.file("lunar.toml", configuration(1));
        let read = config::load(&file).unwrap();
        let origin = ConfigOrigin::File { path: file, api: None };
        let daemon = OpenedConfig::open(read, origin, Arc::new(Memory), StartOptions::default())
            .unwrap()
            .serve()
            .unwrap();
        let daemon = Arc::new(daemon);
        let (certificate, key) = (scratch.path("cert.pem"), scratch.path("key.pem"));
        let options = ApiOptions {
            listen: ApiListen::At(Address::parse("127.0.0.1:0").unwrap()),
            tls: Some(TlsFiles { certificate, key }),
            token_file: Some(token),
        };
        let bound = BoundApi::bind(&options, true, None).unwrap().unwrap();
        let api = bound.serve(Arc::clone(&daemon)).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        (Self { scratch, daemon, api, runtime }, trusted)
    }

    fn apply(&self, luns: u16, dry_run: bool) -> Result<Applied, Failure> {
        self.scratch.file("lunar.toml", configuration(luns));
        let options = ApplyOptions { dry_run, shrink: false };
        self.daemon.apply(&ConfigSource::OwnFile, options, &"a test")
    }

    /// Requests the server status on a new connection.
    fn get(&self, trusted: &Path, token: &str) -> Result<serde_json::Value, Failure> {
        let token = Token::read(&self.scratch.file("client-token", token)).unwrap();
        let (address, trusted) = (self.api.address().clone(), Some(trusted.to_owned()));
        let client = ApiClient { address, trusted, token: Some(token) };
        self.runtime.block_on(client.get(&ApiPath::new(&["status"])))
    }

    /// Opens a connection that is kept open.
    fn connect(&self, trusted: &Path) -> TlsStream<TcpStream> {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_file(trusted).unwrap()).unwrap();
        let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        let Address::Tcp(address) = self.api.address() else { panic!("no TCP") };
        self.runtime.block_on(async {
            let stream = TcpStream::connect(address).await.unwrap();
            let connector = TlsConnector::from(Arc::new(config));
            connector.connect(ServerName::from(address.ip()), stream).await.unwrap()
        })
    }

    /// Sends a request on an open connection; returns the status of the answer.
    fn ask(&self, stream: &mut TlsStream<TcpStream>, token: &str) -> u16 {
        let request = format!(
            "GET /api/v1/targets HTTP/1.1\r\nHost: localhost\r\n\
             Authorization: Bearer {token}\r\n\r\n"
        );
        let exchange = async {
            stream.write_all(request.as_bytes()).await.unwrap();
            let mut answer = Vec::new();
            loop {
                assert!(
                    stream.read_buf(&mut answer).await.unwrap() > 0,
                    "the connection was closed"
                );
                let text = String::from_utf8_lossy(&answer).into_owned();
                let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
                let length = head.to_ascii_lowercase();
                let length = length.split("content-length: ").nth(1).unwrap();
                let length: usize = length.lines().next().unwrap().parse().unwrap();
                if body.len() >= length {
                    return head.split(' ').nth(1).unwrap().parse().unwrap();
                }
            }
        };
        self.runtime.block_on(async { tokio::time::timeout(TEST_TIMEOUT, exchange).await.unwrap() })
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        self.daemon.shutdown(std::time::Duration::from_secs(1), &mut |_| {});
    }
}

/// Goal: new connections get the new certificate, and new requests must send the new token, also on
/// open connections, which stay open; the change is reported once.
#[test]
fn certificate_and_token_are_reloaded() {
    let (rig, old) = Rig::new("renewal");
    let mut stays = rig.connect(&old);
    assert_eq!(rig.ask(&mut stays, OLD), 200);
    assert!(rig.apply(1, false).unwrap().difference.is_empty(), "no differences");

    let new = certify(&rig.scratch, "new.pem");
    rig.scratch.file("token", NEW);
    let dry = rig.apply(1, true).unwrap();
    assert_eq!(dry.difference.changes.len(), 2, "{}", dry.difference);
    assert!(rig.get(&old, OLD).is_ok(), "a dry run changes nothing");
    let applied = rig.apply(1, false).unwrap();
    let output = applied.difference.to_string();
    assert!(
        output.contains("~ api.tls: reloaded") && output.contains("~ api.token_file"),
        "{output}"
    );
    assert!(!output.contains(NEW), "{output}");
    assert!(rig.apply(1, false).unwrap().difference.is_empty(), "the change was reported");

    assert_eq!(rig.ask(&mut stays, NEW), 200, "the connection continues");
    assert_eq!(rig.ask(&mut stays, OLD), 401, "the old token is refused");
    assert!(rig.get(&new, NEW).is_ok());
    assert!(rig.get(&old, NEW).unwrap_err().what.contains("certificate"));
    assert!(rig.get(&new, OLD).unwrap_err().what.contains("token"));
}

/// Goal: an invalid certificate, key or token refuses the whole change, and the old ones stay in
/// use.
#[test]
fn unusable_files_refuse_the_change() {
    let (rig, old) = Rig::new("renewal-broken");
    let good = |name: &str| std::fs::read(rig.scratch.path(name)).unwrap();
    let files = [("cert.pem", good("cert.pem")), ("key.pem", good("key.pem"))];
    let other = rcgen::generate_simple_self_signed(vec!["127.0.0.1".to_owned()]).unwrap();
    for (name, content) in [
        ("cert.pem", "no certificate".to_owned()),
        ("cert.pem", other.cert.pem()),
        ("key.pem", String::new()),
        ("token", "short".to_owned()),
    ] {
        rig.scratch.file(name, content);
        rig.apply(2, true).unwrap_err();
        let refused = rig.apply(2, false).unwrap_err();
        assert!(refused.hint.is_some() && refused.what.contains(name), "{refused}");
        let luns = rig.daemon.server().catalogue().targets[0].luns.len();
        assert_eq!(luns, 1, "{name}: nothing was changed");
        assert!(rig.get(&old, OLD).is_ok(), "{name}");
        for (name, content) in &files {
            rig.scratch.file(name, content);
        }
        rig.scratch.file("token", OLD);
    }
    rig.apply(2, false).unwrap();
    assert_eq!(rig.daemon.server().catalogue().targets[0].luns.len(), 2);
}
