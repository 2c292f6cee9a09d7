//! A server of the API over something that is easily known, and a client that says anything.
#![allow(dead_code)] // every test file uses its own part
#![allow(clippy::unwrap_used)] // a test may unwrap

pub mod contract;

use control::api::sessions::{Connection, Negotiated, Session};
use control::api::status::{Status, UnitStatus};
use control::api::targets::{Lun, Target};
use control::api::{self, Operator};
use control::http::{Address, HttpLimits, HttpOptions, HttpServer};
use control::{TlsFiles, Token};
use serde_json::Value;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// Longer than anything here should take, even on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(30);
pub const TARGET: &str = "iqn.2026-11.org.example:a";

/// A directory of its own, removed with all it holds.
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

/// One target, one LUN, one session.
pub struct Known;

impl Operator for Known {
    fn status(&self) -> Status {
        Status {
            version: "0.0.0".into(),
            started: "2026-11-21T22:30:00Z".into(),
            uptime_seconds: 5,
            pid: 7,
            portals: vec!["127.0.0.1:3260".into()],
            targets: 1,
            luns: 1,
            sessions: 1,
            connections: 1,
            units: vec![UnitStatus {
                uuid: "0b0f3c1e-7d55-4f0e-9b1d-2f6c5c1f9a10".into(),
                device: "mem:1M".into(),
                io_tier: "memory".into(),
            }],
            drift: vec!["LUN 0 was added".into()],
        }
    }

    fn targets(&self) -> Vec<Target> {
        let lun = Lun {
            id: 0,
            device: "mem:1M".into(),
            uuid: "0b0f3c1e-7d55-4f0e-9b1d-2f6c5c1f9a10".into(),
            size_bytes: 1 << 20,
            block_bytes: 512,
            physical_block_bytes: 4096,
            cache: "write-through".into(),
            io_tier: "memory".into(),
            thin: true,
            read_only: false,
            removable: false,
            initiators: Vec::new(),
            networks: vec!["10.0.0.0/8".into()],
        };
        vec![Target {
            name: TARGET.into(),
            portal_group: 1,
            portal_groups: vec![1],
            initiators: Vec::new(),
            networks: Vec::new(),
            chap: false,
            redirect: None,
            luns: vec![lun],
        }]
    }

    fn sessions(&self) -> Vec<Session> {
        let connection = Connection {
            cid: 0,
            initiator_address: "127.0.0.1:40000".into(),
            portal_address: "127.0.0.1:3260".into(),
        };
        vec![Session {
            tsih: 65_535,
            initiator: "iqn.2026-11.org.example:host".into(),
            isid: "400001370000".into(),
            target: None,
            portal_group: 1,
            since: "2026-11-21T22:30:00Z".into(),
            commands_in_flight: 3,
            luns: vec![0],
            connections: vec![connection],
            negotiated: Negotiated {
                max_connections: 1,
                error_recovery_level: 0,
                initial_r2t: true,
                immediate_data: true,
                max_burst_bytes: 262_144,
                first_burst_bytes: 65_536,
                max_outstanding_r2t: 1,
                time_to_wait_seconds: 2,
                time_to_retain_seconds: 20,
            },
        }]
    }
}

/// Serves [`Known`].
pub fn serve(
    address: &str,
    tls: Option<TlsFiles>,
    token: Option<&Path>,
    limits: HttpLimits,
) -> HttpServer {
    let address = Address::parse(address).unwrap();
    let token = token.map(|path| Token::read(path).unwrap());
    let router = api::router(Arc::new(Known), token);
    HttpServer::start(HttpOptions { address, tls, limits }, router).unwrap()
}

/// Sends these bytes, and tells all that is answered until the end.
pub fn exchange(address: &Address, bytes: &[u8]) -> String {
    match address {
        Address::Unix(path) => {
            let stream = UnixStream::connect(path).unwrap();
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
            say(stream, bytes)
        }
        Address::Tcp(address) => {
            let stream = TcpStream::connect(address).unwrap();
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
            say(stream, bytes)
        }
    }
}

fn say(mut stream: impl Read + Write, bytes: &[u8]) -> String {
    // The server may have heard enough before the end.
    let _ = stream.write_all(bytes);
    let mut answer = Vec::new();
    if let Err(error) = stream.read_to_end(&mut answer) {
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset, "{error}");
    }
    String::from_utf8_lossy(&answer).into_owned()
}

/// One request; the status and the JSON body of its answer.
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
    let body = answer.split_once("\r\n\r\n").unwrap().1;
    let json = answer.to_ascii_lowercase().contains("content-type: application/json");
    let body = match json && !body.is_empty() {
        true => serde_json::from_str(body).unwrap_or_else(|error| panic!("{error}: {answer}")),
        false => Value::Null,
    };
    (status.parse().unwrap(), body)
}
