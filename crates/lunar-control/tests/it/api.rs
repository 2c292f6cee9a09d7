//! The API answers according to its document, over every transport.

use crate::common::{Scratch, TARGET, ask, serve};
use lunar_control::api;
use lunar_control::client::{ApiClient, ApiPath};
use lunar_control::http::{Address, HttpLimits};
use lunar_control::{TlsFiles, Token};
use lunar_testkit::contract::{ApiContract, METHODS, assert_rejects_wrong_types};
use serde_json::{Value, json};
use std::path::PathBuf;

const TOKEN: &str = "0123456789abcdef0123456789";

fn contract() -> ApiContract {
    ApiContract(serde_json::to_value(api::document()).unwrap())
}

/// Fills in a value for each parameter of a path.
fn filled(path: &str) -> String {
    path.replace("{tsih}", "65535").replace("{target}", TARGET).replace("{lun}", "0")
}

/// Goal: the document lists every operation and no other, and each operation answers as documented.
#[test]
fn the_document_matches_the_api() {
    let scratch = Scratch::new("document");
    let socket = format!("unix:{}", scratch.path("api.sock").display());
    let server = serve(&socket, None, None, HttpLimits::default());
    let contract = contract();
    assert_rejects_wrong_types(&contract);
    let (status, served) = ask(server.address(), "GET", "/api/v1/openapi.json", "");
    assert_eq!((status, &served), (200, &contract.0));
    let operations = contract.operations();
    assert!(operations.len() >= 7, "{operations:?}");
    for path in contract.0["paths"].as_object().unwrap().keys() {
        for method in METHODS {
            let filled = filled(path);
            let (status, body) = ask(server.address(), &method.to_ascii_uppercase(), &filled, "");
            let documented = operations.contains(&(method.to_owned(), path.clone()));
            assert_eq!(status != 405, documented, "{method} {path}: {status}");
            assert_ne!(body["error"], "there is no resource at this path", "{path}");
            if documented {
                contract.check(method, &filled, status, &body);
            }
            if documented && method == "get" && !path.contains("{tsih}") {
                assert_eq!(status, 200, "{path}: {body}");
            }
        }
    }
    for (path, status) in [
        ("/api/v1/sessions/1", 404),
        ("/api/v1/sessions/65536", 400),
        ("/api/v1/sessions/-1", 400),
        ("/api/v1/targets/iqn.other", 404),
        ("/api/v1/targets/%ff", 400),
    ] {
        let (got, body) = ask(server.address(), "GET", path, "");
        assert_eq!(got, status, "{path}: {body}");
        assert!(body["hint"].is_string() || status == 400, "{path}: {body}");
        contract.check("get", path, got, &body);
    }
    let (status, body) = ask(server.address(), "GET", "/", "");
    assert_eq!((status, body["error"].is_string()), (404, true));
}

/// Goal: a change takes effect, is reported as drift, and can be undone.
#[test]
fn changes_are_made() {
    let scratch = Scratch::new("changes");
    let socket = format!("unix:{}", scratch.path("api.sock").display());
    let server = serve(&socket, None, None, HttpLimits::default());
    let json = "Content-Type: application/json\r\n\r\n";
    let body = format!("{json}{{\"device\": \"mem:4M\"}}");
    let luns = format!("/api/v1/targets/{TARGET}/luns");
    let (status, changed) = ask(server.address(), "POST", &luns, &body);
    assert_eq!(status, 200, "{changed}");
    assert_eq!((&changed["made"], &changed["changes"][0]["lun"]), (&true.into(), &1.into()));
    assert!(changed["toml"].as_str().unwrap().contains("mem:4M"), "{changed}");
    let (_, known) = ask(server.address(), "GET", "/api/v1/luns", "");
    assert_eq!(known["luns"][1]["size_bytes"], 4 << 20);
    let (_, output) = ask(server.address(), "GET", "/api/v1/status", "");
    assert_eq!((&output["luns"], output["drift"].as_array().unwrap().len()), (&2.into(), 1));
    let (status, _) = ask(server.address(), "DELETE", &format!("{luns}/1"), "");
    assert_eq!(status, 200);
    let (_, output) = ask(server.address(), "GET", "/api/v1/status", "");
    assert_eq!((&output["luns"], &output["drift"]), (&1.into(), &serde_json::json!([])));
}

/// Goal: over TCP the token gives access; without a token only reading is possible, and not for web
/// pages.
#[test]
fn tcp_is_guarded() {
    let scratch = Scratch::new("tcp");
    let token = scratch.file("token", TOKEN);
    let contract = contract();
    let open = serve("127.0.0.1:0", None, None, HttpLimits::default());
    let guarded = serve("127.0.0.1:0", None, Some(&token), HttpLimits::default());
    let right = format!("Authorization: Bearer {TOKEN}");
    let path = "/api/v1/status";
    for (address, method, headers, status) in [
        (open.address(), "GET", "", 200),
        (open.address(), "HEAD", "", 200),
        (open.address(), "POST", "", 403),
        (open.address(), "GET", "Origin: http://evil.example", 403),
        (open.address(), "GET", "Host: evil.example", 403),
        (guarded.address(), "GET", "", 401),
        (guarded.address(), "GET", "Authorization: Bearer 0123456789abcdef012345678", 401),
        (guarded.address(), "GET", &right, 200),
        (guarded.address(), "POST", &right, 405),
    ] {
        let (got, body) = ask(address, method, path, headers);
        assert_eq!(got, status, "{method} {headers}: {body}");
        if method == "GET" {
            contract.check("get", path, got, &body);
        }
        assert!(!body.to_string().contains(TOKEN));
    }
}

fn certificate(scratch: &Scratch) -> TlsFiles {
    let made = rcgen::generate_simple_self_signed(vec!["127.0.0.1".to_owned()]).unwrap();
    TlsFiles {
        certificate: scratch.file("cert.pem", made.cert.pem()),
        key: scratch.file("key.pem", made.signing_key.serialize_pem()),
    }
}

fn get(address: &Address, trusted: Option<PathBuf>, token: Option<Token>) -> Result<Value, String> {
    let client = ApiClient { address: address.clone(), trusted, token };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let status = runtime.block_on(client.get(&ApiPath::new(&["status"])));
    status.map_err(|failure| format!("{}; {}", failure.what, failure.hint.unwrap_or_default()))
}

/// Goal: over TLS the client authenticates the server and the server the client; a mismatch fails
/// with a reason.
#[test]
fn tls_and_token_prove_both_sides() {
    let scratch = Scratch::new("tls");
    let files = certificate(&scratch);
    let path = scratch.file("token", format!("{TOKEN}\n"));
    let server = serve("127.0.0.1:0", Some(files.clone()), Some(&path), HttpLimits::default());
    let token = || Some(Token::read(&path).unwrap());
    let trusted = Some(files.certificate.clone());
    let status = get(server.address(), trusted.clone(), token()).unwrap();
    assert_eq!(status["version"], env!("CARGO_PKG_VERSION"));
    assert!(get(server.address(), trusted, None).unwrap_err().contains("token"));
    let other = Scratch::new("tls-other");
    let stranger = certificate(&other);
    let refused = get(server.address(), Some(stranger.certificate.clone()), token()).unwrap_err();
    assert!(refused.contains("certificate"), "{refused}");
    assert!(get(server.address(), None, token()).unwrap_err().contains("TLS"));
    // A client that does not use TLS is disconnected; the next client is served.
    assert!(
        !crate::common::exchange(server.address(), b"GET / HTTP/1.1\r\n\r\n").contains("HTTP/1.1")
    );
    assert!(get(server.address(), Some(files.certificate), token()).is_ok());
}

/// Goal: a failure of the client names the server and the reason.
#[test]
fn the_client_reports_errors_of_the_server() {
    let scratch = Scratch::new("client");
    let missing = Address::Unix(scratch.path("missing.sock"));
    assert!(get(&missing, None, None).unwrap_err().contains("no server is listening there"));
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = Address::Tcp(listener.local_addr().unwrap());
    let liar = std::thread::spawn(move || {
        use std::io::{Read, Write};
        for answer in ["HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[]", "SSH-2.0-x\r\n"] {
            let (mut stream, _) = listener.accept().unwrap();
            let _ = stream.read(&mut [0; 4096]);
            stream.write_all(answer.as_bytes()).unwrap();
        }
    });
    let wrong = json!([]);
    assert_eq!(get(&address, None, None), Ok(wrong), "any JSON is a value");
    assert!(get(&address, None, None).unwrap_err().contains("the address of the lunar API"));
    liar.join().unwrap();
}

/// Goal: a stopping server refuses every change with 503 and a reason, and still answers reads.
#[test]
fn a_stopping_server_answers_reads_and_refuses_changes() {
    let scratch = Scratch::new("end");
    let socket = format!("unix:{}", scratch.path("api.sock").display());
    let daemon = crate::common::daemon();
    let server =
        crate::common::serve_daemon(daemon.clone(), &socket, None, None, HttpLimits::default());
    let stopping = || ask(server.address(), "GET", "/api/v1/status", "").1["stopping"].clone();
    assert_eq!(stopping(), false);
    daemon.shutdown(std::time::Duration::from_secs(1), &mut |_| {});
    assert_eq!(stopping(), true);
    let contract = contract();
    for (method, path, body) in [
        ("POST", "/targets/{t}/luns", "{\"device\": \"mem:1M\"}"),
        ("DELETE", "/targets/{t}/luns/0", ""),
        ("POST", "/targets/{t}/luns/0/resize", "{\"size_bytes\": 2097152}"),
        ("POST", "/targets/{t}/luns/0/recover", "{\"accept_loss\": true}"),
        ("PUT", "/targets/{t}/luns/0/limit", "{\"iops\": 10}"),
        ("PUT", "/targets/{t}/luns/0/initiator-limit", "{\"iops\": 10}"),
        ("PUT", "/targets/{t}/limit", "{\"iops\": 10}"),
        ("PUT", "/targets/{t}/redirect", "{\"address\": \"192.0.2.1:3260\"}"),
        ("DELETE", "/targets/{t}/redirect", ""),
        ("DELETE", "/sessions/1", ""),
    ] {
        let path = format!("/api/v1{}", path.replace("{t}", TARGET));
        let headers = format!("Content-Type: application/json\r\n\r\n{body}");
        let (status, answer) = ask(server.address(), method, &path, &headers);
        assert_eq!(status, 503, "{method} {path}: {answer}");
        assert!(answer["error"].as_str().unwrap().contains("stopping"), "{answer}");
        assert!(answer["hint"].is_string(), "{answer}");
        contract.check(method, &path, status, &answer);
    }
    assert_eq!(daemon.server().catalogue().targets[0].luns.len(), 1);
}
