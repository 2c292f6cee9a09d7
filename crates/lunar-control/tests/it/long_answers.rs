//! Responses of which the client reads only a part.

use crate::common::{Scratch, TARGET, TEST_TIMEOUT, ask, daemon_of_memory, lun, serve_daemon};
use axum::Extension;
use axum::body::Body;
use axum::http::header::RETRY_AFTER;
use hyper::service::Service;
use hyper::{Request, Response, StatusCode};
use hyper_util::service::TowerToHyperService;
use lunar_block::MemoryKind;
use lunar_control::api;
use lunar_control::daemon::Daemon;
use lunar_control::http::{Address, HttpLimits, HttpServer, Peer};
use lunar_testkit::raw::RawClient;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;

/// Number of LUNs, which each session lists.
const LUNS: u16 = 2000;
const SESSIONS: u32 = 100;
/// Number of clients that do not read their answers.
const CLIENTS: usize = 8;
/// Maximum memory for the answer of one client: two pieces of 60 KiB, the last item of each, and a
/// margin.
const CLIENT_BYTES_MAX: usize = 160 << 10;

struct Rig {
    daemon: Arc<Daemon>,
    http: HttpServer,
    _sessions: Vec<RawClient>,
    _scratch: Scratch,
}

fn held_bytes(daemon: &Daemon) -> usize {
    daemon.server().buffers().budget().usage().by_kind[MemoryKind::Api as usize]
}

impl Rig {
    fn new(name: &str, sessions: u32) -> Self {
        let scratch = Scratch::new(name);
        let luns: String = (0..LUNS).map(|id| lun(id, "mem:1M")).collect();
        let daemon = daemon_of_memory(&luns);
        let portal = daemon.server().addresses()[0].to_string();
        let log_in = |number| RawClient::log_in_as(&portal, TARGET, number).unwrap();
        let sessions = (0..sessions).map(log_in).collect();
        let socket = format!("unix:{}", scratch.path("api.sock").display());
        let http = serve_daemon(Arc::clone(&daemon), &socket, None, None, HttpLimits::default());
        Self { daemon, http, _sessions: sessions, _scratch: scratch }
    }

    /// Sends a request and reads the first byte of its answer.
    fn begin(&self, path: &str) -> UnixStream {
        let Address::Unix(socket) = self.http.address() else { panic!("a unix socket") };
        let mut stream = UnixStream::connect(socket).unwrap();
        stream.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
        write!(stream, "GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").unwrap();
        stream.read_exact(&mut [0]).unwrap();
        stream
    }
}

/// Goal: clients that do not read long lists hold only a few pieces of the lists in memory; a
/// client that reads gets the whole list. Fault: 64 connections that requested `GET /sessions`
/// while there were 7,000 sessions, and read nothing, held 580 MB despite a limit of 256 MiB.
#[test]
fn unread_lists_hold_little_memory() {
    let rig = Rig::new("unread", SESSIONS);
    for path in ["sessions", "targets", &format!("targets/{TARGET}"), "luns"] {
        let path = format!("/api/v1/{path}");
        let clients: Vec<_> = (0..CLIENTS).map(|_| rig.begin(&path)).collect();
        let held = held_bytes(&rig.daemon);
        assert!(held <= CLIENTS * CLIENT_BYTES_MAX, "{path}: {held} bytes");
        for mut client in clients {
            let mut answer = Vec::new();
            client.read_to_end(&mut answer).unwrap();
            assert!(answer.len() > 3 * CLIENT_BYTES_MAX, "{path}: {} bytes", answer.len());
            assert!(answer.ends_with(b"\r\n0\r\n\r\n"), "{path}: an incomplete answer");
        }
        assert_eq!(ask(rig.http.address(), "GET", &path, "").0, 200);
    }
}

/// Goal: a list in pieces is the same JSON as a list in one piece.
#[test]
fn lists_in_pieces_are_complete() {
    let rig = Rig::new("pieces", SESSIONS);
    let get = |path: &str| ask(rig.http.address(), "GET", &format!("/api/v1/{path}"), "").1;
    let sessions = get("sessions");
    let sessions = sessions["sessions"].as_array().unwrap();
    let tsihs: Vec<_> = sessions.iter().map(|one| one["tsih"].as_u64().unwrap()).collect();
    assert_eq!(tsihs.len(), SESSIONS as usize);
    assert!(tsihs.is_sorted(), "{tsihs:?}");
    assert_eq!(get("status")["sessions"], SESSIONS);
    for session in sessions {
        assert_eq!(&get(&format!("sessions/{}", session["tsih"])), session);
    }
    let targets = get("targets");
    let target = get(&format!("targets/{TARGET}"));
    assert_eq!(targets, serde_json::json!({ "targets": [&target] }));
    let ids: Vec<_> =
        target["luns"].as_array().unwrap().iter().map(|lun| lun["id"].as_u64().unwrap()).collect();
    assert_eq!(ids, (0..LUNS.into()).collect::<Vec<u64>>());
    let luns = get("luns");
    for (listed, of_target) in
        luns["luns"].as_array().unwrap().iter().zip(target["luns"].as_array().unwrap())
    {
        let mut expected = of_target.clone();
        expected["target"] = TARGET.into();
        assert_eq!(listed, &expected);
    }
    assert_eq!(luns["luns"].as_array().unwrap().len(), usize::from(LUNS));
}

/// Goal: a list of targets that change while the list is being sent ends without its final chunk,
/// which tells the client that it is incomplete. The list keeps no removed target in use.
#[test]
fn a_list_of_changed_targets_breaks_off() {
    let rig = Rig::new("changed", 0);
    let mut client = rig.begin("/api/v1/luns");
    let path = format!("/api/v1/targets/{TARGET}/luns/0");
    assert_eq!(ask(rig.http.address(), "DELETE", &path, "").0, 200);
    let mut answer = Vec::new();
    client.read_to_end(&mut answer).unwrap();
    let text = String::from_utf8(answer).unwrap();
    assert!(text.to_ascii_lowercase().contains("transfer-encoding: chunked"), "sent in pieces");
    assert!(!text.ends_with("\r\n0\r\n\r\n"), "{} bytes", text.len());
    let (status, luns) = ask(rig.http.address(), "GET", "/api/v1/luns", "");
    assert_eq!((status, luns["luns"].as_array().unwrap().len()), (200, usize::from(LUNS) - 1));
}

/// Goal: responses that are encoded as a whole hold a small part of the memory. Further requests
/// are refused until earlier responses have been read, except for users of the unix socket.
#[test]
fn unread_documents_hold_little_memory() {
    const MEMORY: usize = 64 << 20;
    let mut luns: String = (0..LUNS).map(|id| lun(id, "mem:1M")).collect();
    luns.push_str(&format!("[limits]\nmemory_bytes_max = {MEMORY}\n"));
    let daemon = daemon_of_memory(&luns);
    let router = api::router(Arc::clone(&daemon), None);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let reader = Peer::Tcp { address: "127.0.0.1:1".parse().unwrap(), tls: false };
    let get = |path: &str, peer: &Peer| -> Response<Body> {
        let service = TowerToHyperService::new(router.clone().layer(Extension(peer.clone())));
        let request = Request::get(format!("/api/v1/{path}")).header("host", "127.0.0.1");
        runtime.block_on(service.call(request.body(Body::empty()).unwrap())).unwrap()
    };
    for path in ["status", "configuration"] {
        let mut held = Vec::new();
        let refused = (0..60).map(|_| get(path, &reader)).find_map(|answer| {
            if answer.status() != StatusCode::OK {
                return Some(answer);
            }
            held.push(answer);
            None
        });
        let refused = refused.expect("a refusal");
        assert_eq!(refused.status(), StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(refused.headers()[RETRY_AFTER], "1");
        assert!(held.len() > 3, "{path}: {} answers", held.len());
        let bytes = held_bytes(&daemon);
        assert!((MEMORY / 32..=MEMORY / 16).contains(&bytes), "{path}: {bytes} bytes");
        assert_eq!(get(path, &Peer::Unix { uid: 0 }).status(), StatusCode::OK);
        assert_eq!(get("sessions", &reader).status(), StatusCode::OK);
        held.clear();
        assert_eq!(held_bytes(&daemon), 0);
        assert_eq!(get(path, &reader).status(), StatusCode::OK);
    }
}
