//! An API server over a small configuration, and a client that can send arbitrary bytes.
#![allow(dead_code)] // every test file uses its own part
#![allow(clippy::unwrap_used)] // a test may unwrap

use lunar_block::{BlockDevice, MemoryDevice};
use lunar_control::config;
use lunar_control::daemon::{ConfigOrigin, Daemon, OpenedConfig, StartOptions};
use lunar_control::device_url::{DeviceOptions, DeviceUrl, Opener};
use lunar_control::http::{Address, HttpLimits, HttpOptions, HttpServer};
use lunar_control::{Failure, TlsFiles, Token, api};
use serde_json::Value;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// Timeout for everything in these tests, even on a busy machine.
pub const TEST_TIMEOUT: Duration = Duration::from_secs(30);
pub const TARGET: &str = "iqn.2026-11.org.example:a";

/// A directory of a test, removed with its contents.
pub struct Scratch(PathBuf);

impl Scratch {
    pub fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("lunar-api-{}-{name}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    pub fn file(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        use std::os::unix::fs::PermissionsExt;
        let path = self.path(name);
        std::fs::write(&path, content).unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).unwrap();
        path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Opens memory only.
#[derive(Debug)]
struct MemoryOnly;

impl Opener for MemoryOnly {
    fn open(
        &self,
        url: &DeviceUrl,
        options: &DeviceOptions,
    ) -> Result<Arc<dyn BlockDevice>, Failure> {
        match url {
            DeviceUrl::Memory { size_bytes } => {
                let (block, physical) = (options.block_bytes, options.physical_block_bytes);
                Ok(Arc::new(MemoryDevice::new(*size_bytes, block, physical)?))
            }
            other => Err(Failure::usage(format!("{other} is no memory"))),
        }
    }
}

/// A server of one target with one LUN.
pub fn daemon() -> Arc<Daemon> {
    daemon_of(&lun(0, "mem:1M"), Arc::new(MemoryOnly))
}

/// A LUN of a configuration.
pub fn lun(id: u16, device: &str) -> String {
    format!("[[target.lun]]\nid = {id}\ndevice = \"{device}\"\n")
}

/// A server of one target with these LUNs, all in memory.
pub fn daemon_of_memory(luns: &str) -> Arc<Daemon> {
    daemon_of(luns, Arc::new(MemoryOnly))
}

/// A server of one target with these LUNs.
pub fn daemon_of(luns: &str, opener: Arc<dyn Opener>) -> Arc<Daemon> {
    let text =
        format!("[listen]\nportals = [\"127.0.0.1:0\"]\n[[target]]\nname = \"{TARGET}\"\n{luns}");
    let configuration = config::parse(&text, Path::new("lunar.toml")).unwrap();
    Arc::new(
        OpenedConfig::open(configuration, ConfigOrigin::Arguments, opener, StartOptions::default())
            .unwrap()
            .serve()
            .unwrap(),
    )
}

/// Serves the API over [`daemon`].
pub fn serve(
    address: &str,
    tls: Option<TlsFiles>,
    token: Option<&Path>,
    limits: HttpLimits,
) -> HttpServer {
    serve_daemon(daemon(), address, tls, token, limits)
}

/// Serves the API over `daemon`.
pub fn serve_daemon(
    daemon: Arc<Daemon>,
    address: &str,
    tls: Option<TlsFiles>,
    token: Option<&Path>,
    limits: HttpLimits,
) -> HttpServer {
    let address = Address::parse(address).unwrap();
    let token = token.map(|path| Token::read(path).unwrap());
    let router = api::router(daemon, token);
    HttpServer::start(HttpOptions { address, tls, limits }, router).unwrap()
}

/// Sends these bytes, and returns the answer up to the end of the connection.
pub fn exchange(address: &Address, bytes: &[u8]) -> String {
    match address {
        Address::Unix(path) => {
            let stream = UnixStream::connect(path).unwrap();
            stream.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
            send_and_read(stream, bytes)
        }
        Address::Tcp(address) => {
            let stream = TcpStream::connect(address).unwrap();
            stream.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
            send_and_read(stream, bytes)
        }
    }
}

fn send_and_read(mut stream: impl Read + Write, bytes: &[u8]) -> String {
    // The server may close the connection before it has read everything.
    let _ = stream.write_all(bytes);
    let mut answer = Vec::new();
    if let Err(error) = stream.read_to_end(&mut answer) {
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset, "{error}");
    }
    String::from_utf8_lossy(&answer).into_owned()
}

/// Sends one request; returns the status and the JSON body of the answer.
pub fn ask(address: &Address, method: &str, path: &str, more: &str) -> (u16, Value) {
    let (headers, body) = more.split_once("\r\n\r\n").unwrap_or((more, ""));
    let headers = if headers.is_empty() { String::new() } else { format!("{headers}\r\n") };
    let request = format!(
        "{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n{headers}\
         Content-Length: {}\r\n\r\n{body}",
        body.len()
    );
    parse(&exchange(address, request.as_bytes()))
}

/// Status and JSON body of an answer.
pub fn parse(answer: &str) -> (u16, Value) {
    let status = answer.get(9..12).unwrap_or_else(|| panic!("no answer: {answer:?}"));
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    let head = head.to_ascii_lowercase();
    let body = match head.contains("transfer-encoding: chunked") {
        true => joined(body),
        false => body.to_owned(),
    };
    let json = head.contains("content-type: application/json");
    let body = match json && !body.is_empty() {
        true => serde_json::from_str(&body).unwrap_or_else(|error| panic!("{error}: {answer}")),
        false => Value::Null,
    };
    (status.parse().unwrap(), body)
}

/// Joins the chunks of a body.
fn joined(mut chunks: &str) -> String {
    let mut body = String::new();
    loop {
        let (size, rest) = chunks.split_once("\r\n").expect("the size of a chunk");
        let (chunk, rest) = rest.split_at(usize::from_str_radix(size, 16).unwrap());
        body.push_str(chunk);
        if chunk.is_empty() {
            return body;
        }
        chunks = rest.strip_prefix("\r\n").expect("the end of a chunk");
    }
}
