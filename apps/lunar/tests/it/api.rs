//! The API of the real binary: as documented, over each transport, with an independent client.

use crate::common::{Scratch, Server, assert_exit, finish, json, lunar, printed, run};
use lunar_testkit::contract::ApiContract;
use serde_json::Value;
use std::process::{Command, Stdio};

const TOKEN: &str = "0123456789abcdef0123456789";

/// Runs `curl` with these arguments; returns the status and the body of the answer.
fn curl(arguments: &[&str]) -> (u16, Value) {
    let mut command = Command::new("curl");
    command.args(["-sS", "-w", "\n%{http_code}", "--max-time", "30"]).args(arguments);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let output = finish(command, b"");
    assert_exit(&output, 0);
    let text = String::from_utf8(output.stdout).unwrap();
    let (body, status) = text.rsplit_once('\n').unwrap();
    let body = if body.is_empty() { Value::Null } else { serde_json::from_str(body).unwrap() };
    (status.parse().unwrap(), body)
}

struct Socket(String);

impl Socket {
    fn of(server: &Server) -> Self {
        let api = server.report["api"].as_str().unwrap();
        Self(api.strip_prefix("unix:").unwrap().to_owned())
    }

    fn ask(&self, method: &str, path: &str, body: Option<&str>) -> (u16, Value) {
        let url = format!("http://localhost{path}");
        let mut arguments = vec!["--unix-socket", &self.0, "-X", method, &url];
        if let Some(body) = body {
            arguments.extend(["--json", body]);
        }
        curl(&arguments)
    }
}

/// A request to add a target.
const ADDED_TARGET: &str =
    r#"{"target": {"name": "iqn.2026-11.org.example:b", "lun": [{"device": "mem:1M"}]}}"#;

/// Requests with method, path (`{t}`: the target), body and status of the answer.
const REQUESTS: &[(&str, &str, Option<&str>, u16)] = &[
    ("GET", "/api/v1/openapi.json", None, 200),
    ("GET", "/api/v1/status", None, 200),
    ("GET", "/api/v1/sessions", None, 200),
    ("GET", "/api/v1/sessions/1", None, 404),
    ("DELETE", "/api/v1/sessions/1", None, 404),
    ("POST", "/api/v1/sessions/1/trace", Some(r#"{"seconds": 1}"#), 404),
    ("DELETE", "/api/v1/sessions/1/trace", None, 404),
    ("GET", "/api/v1/targets", None, 200),
    ("GET", "{t}", None, 200),
    ("GET", "/api/v1/targets/x", None, 404),
    ("GET", "/api/v1/pools", None, 200),
    ("POST", "/api/v1/targets", Some(ADDED_TARGET), 200),
    ("POST", "/api/v1/targets", Some(ADDED_TARGET), 200),
    ("POST", "/api/v1/targets", Some(r#"{"target": {"name": "iqn.2026-11.org.example:b"}}"#), 422),
    ("POST", "/api/v1/targets", Some(r#"{"target": {"name": "b"}, "persist": true}"#), 409),
    ("DELETE", "/api/v1/targets/iqn.2026-11.org.example:b", None, 200),
    ("DELETE", "/api/v1/targets/iqn.2026-11.org.example:b", None, 200),
    ("DELETE", "/api/v1/targets/b", None, 422),
    ("DELETE", "/api/v1/targets/iqn.2026-11.org.example:b?persist=true", None, 409),
    ("GET", "/api/v1/luns", None, 200),
    ("GET", "/api/v1/configuration", None, 200),
    ("POST", "{t}/luns", Some(r#"{"device": "mem:1M"}"#), 200),
    ("POST", "{t}/luns", Some(r#"{"device": "mem:1M", "id": 0}"#), 422),
    ("POST", "{t}/luns", Some(r#"{"device": "mem:1X"}"#), 422),
    ("POST", "{t}/luns", Some(r#"{"device": "mem:1M", "colour": 1}"#), 422),
    ("POST", "{t}/luns", Some(r#"{"device": "#), 400),
    ("POST", "{t}/luns", Some("[]"), 422),
    ("POST", "{t}/luns/0/resize", Some(r#"{"size_bytes": 2097152}"#), 200),
    ("POST", "{t}/luns/0/resize", Some(r#"{"size_bytes": 1048576}"#), 409),
    ("POST", "{t}/luns/0/resize", Some(r#"{"size_bytes": 1048577}"#), 422),
    ("POST", "{t}/luns/0/resize", Some(r#"{"size_bytes": 1048576, "shrink": true}"#), 200),
    ("POST", "{t}/luns/0/recover", Some(r#"{"accept_loss": true}"#), 200),
    ("POST", "{t}/luns/0/recover", Some(r#"{"accept_loss": false}"#), 422),
    ("POST", "{t}/luns/9/recover", Some(r#"{"accept_loss": true}"#), 404),
    ("POST", "{t}/luns/9/resize", Some(r#"{"size_bytes": 1048576}"#), 404),
    ("POST", "{t}/luns/0/resize", Some(r#"{"size_bytes": -1}"#), 422),
    ("DELETE", "{t}/luns/1", None, 200),
    ("DELETE", "{t}/luns/1", None, 404),
    ("DELETE", "{t}/luns/0?device=mem:9M", None, 404),
    ("PUT", "{t}/luns/0/limit", Some(r#"{"iops": 100, "bandwidth": "1Gbit"}"#), 200),
    ("PUT", "{t}/luns/0/limit", Some(r#"{"iops": 9}"#), 422),
    ("PUT", "{t}/luns/9/limit", Some("{}"), 404),
    ("PUT", "{t}/luns/0/limit", Some("{}"), 200),
    ("PUT", "{t}/luns/0/initiator-limit?initiator=iqn.a:x", Some(r#"{"iops": 10}"#), 422),
    ("PUT", "{t}/luns/0/initiator-limit", Some(r#"{"iops": 10}"#), 200),
    ("PUT", "{t}/luns/9/initiator-limit", Some("{}"), 404),
    ("PUT", "{t}/luns/0/initiator-limit", Some("{}"), 200),
    ("PUT", "{t}/limit?initiator=iqn.2026-11.org.example:x", Some(r#"{"iops": 10}"#), 200),
    ("PUT", "{t}/limit", Some(r#"{"bandwidth": "9Mbit"}"#), 422),
    ("PUT", "{t}/limit?initiator=x", Some(r#"{"iops": 10}"#), 422),
    ("PUT", "{t}/limit?initator=iqn.2026-11.org.example:x", Some(r#"{"iops": 10}"#), 400),
    ("DELETE", "{t}/luns/0?devcie=mem:9M", None, 400),
    ("PUT", "{t}/redirect", Some(r#"{"address": "192.0.2.1:3260"}"#), 200),
    ("PUT", "{t}/redirect", Some(r#"{"address": "nowhere"}"#), 422),
    ("DELETE", "{t}/redirect", None, 200),
    ("POST", "/api/v1/apply", Some(r#"{"dry_run": true}"#), 409),
    ("POST", "/api/v1/pools/none/members", Some(r#"{"device": "file:a"}"#), 404),
    ("POST", "/api/v1/pools/none/members/0/replace", Some(r#"{"device": "file:a"}"#), 404),
    ("DELETE", "/api/v1/pools/none/members/0", None, 404),
    ("POST", "/api/v1/pools/none/scrub", Some(r#"{"rate": "800Mbit"}"#), 404),
    ("DELETE", "/api/v1/pools/none/scrub", None, 404),
    ("GET", "/api/v1/migrations", None, 200),
    ("POST", "{t}/luns/0/migration", Some(r#"{"storage": "a", "start_bytes": 0}"#), 409),
    ("POST", "{t}/luns/9/migration", Some(r#"{"storage": "a", "start_bytes": 0}"#), 404),
    ("DELETE", "{t}/luns/9/migration", None, 404),
    ("POST", "/api/v1/stop", None, 200),
];

/// Goal: every operation of the document answers as documented, whether it succeeds or is refused.
#[test]
fn answers_are_as_documented() {
    let scratch = Scratch::new("documented");
    let disk = scratch.path().join("disk.img").display().to_string();
    let server = Server::start(&[&disk, "--size", "1M", "--name", "iqn.2026-11.org.example:a"]);
    let socket = Socket::of(&server);
    assert_eq!(socket.0, format!("{disk}.lunar/api.sock"), "no runtime directory");
    let contract = ApiContract(socket.ask("GET", "/api/v1/openapi.json", None).1);
    assert_eq!(contract.0["info"]["title"], "Lunar");
    assert_eq!(contract.0["info"]["version"], env!("CARGO_PKG_VERSION"));
    assert!(contract.0["info"].get("contact").is_none(), "{}", contract.0["info"]);
    lunar_testkit::contract::assert_rejects_wrong_types(&contract);
    let target = "/api/v1/targets/iqn.2026-11.org.example:a";
    let mut missing = contract.operations();
    let count_luns = || socket.ask("GET", "/api/v1/luns", None).1["luns"].as_array().unwrap().len();
    for &(method, path, body, status) in REQUESTS {
        let path = path.replace("{t}", target);
        if path == "/api/v1/stop" {
            assert_eq!(count_luns(), 1);
        }
        let (got, answer) = socket.ask(method, &path, body);
        assert_eq!(got, status, "{method} {path} {body:?}: {answer}");
        if path != "/api/v1/openapi.json" {
            contract.check(method, &path, got, &answer);
        }
        let template = contract.template(&path);
        missing.retain(|(m, p)| !(m.eq_ignore_ascii_case(method) && *p == template));
    }
    assert!(missing.is_empty(), "not tried: {missing:?}");
    assert_exit(&server.end(), 0);
}

/// Goal: bodies that are too long, too deep, of a wrong type or from a web page are refused, and
/// the server keeps running.
#[test]
fn hostile_bodies_are_refused() {
    let scratch = Scratch::new("hostile-bodies");
    let disk = scratch.path().join("disk.img").display().to_string();
    let server = Server::start(&[&disk, "--size", "1M", "--name", "iqn.2026-11.org.example:a"]);
    let socket = Socket::of(&server);
    let url = "http://localhost/api/v1/targets/iqn.2026-11.org.example:a/luns";
    let ask = |more: &[&str]| curl(&[&["--unix-socket", &socket.0, url], more].concat()).0;
    let long = scratch.file("long", &vec![b' '; 5 << 20]);
    let deep = format!("{{\"device\": {}", "[".repeat(100_000));
    assert_eq!(ask(&["--json", &format!("@{long}")]), 413);
    assert_eq!(ask(&["-H", "Transfer-Encoding: chunked", "--json", &format!("@{long}")]), 413);
    assert_eq!(ask(&["--json", &deep]), 422);
    assert_eq!(ask(&["-d", r#"{"device": "mem:1M"}"#]), 415, "what a form can send");
    assert_eq!(ask(&["-H", "Content-Type: text/plain", "-d", r#"{"device": "mem:1M"}"#]), 415);
    assert_eq!(ask(&["-H", "Origin: http://a.example", "--json", r#"{"device": "mem:1M"}"#]), 403);
    let etc = r#"{"device": "/etc/passwd%00"}"#;
    assert!((400..500).contains(&ask(&["--json", etc])));
    assert_eq!(ask(&["--json", r#"{"device": "mem:1M"}"#]), 200);
    assert_exit(&server.stop().0, 0);
}

fn certificate(scratch: &Scratch) -> (String, String) {
    let made = rcgen::generate_simple_self_signed(vec!["127.0.0.1".to_owned()]).unwrap();
    let key = made.signing_key.serialize_pem();
    (scratch.file("cert.pem", made.cert.pem().as_bytes()), scratch.file("key.pem", key.as_bytes()))
}

/// Goal: over TCP the token is required, over TLS both sides authenticate, and the token is printed
/// nowhere.
#[test]
fn tcp_and_tls_require_the_token() {
    let scratch = Scratch::new("tcp-tls");
    let token = scratch.file("token", TOKEN.as_bytes());
    let (certificate, key) = certificate(&scratch);
    let guarded = ["--api", "127.0.0.1:0", "--api-token-file", &token];
    let tls = ["--api-certificate-file", &certificate, "--api-key-file", &key];
    let bearer = format!("Authorization: Bearer {TOKEN}");
    for (tls, scheme) in [(&[][..], "http"), (&tls[..], "https")] {
        let mut command =
            lunar(&[&["serve", "mem:1M", "--listen", "127.0.0.1:0"][..], &guarded, tls].concat());
        command.env("RUST_LOG", "trace");
        let server = Server::start_command(command);
        let api = server.report["api"].as_str().unwrap().to_owned();
        let url = format!("{scheme}://{api}/api/v1/status");
        assert_eq!(curl(&["--cacert", &certificate, &url]).0, 401);
        let wrong = "Authorization: Bearer 0123456789abcdef012345678x";
        assert_eq!(curl(&["--cacert", &certificate, "-H", wrong, &url]).0, 401);
        assert_eq!(curl(&["--cacert", &certificate, "-H", &bearer, &url]).0, 200);
        let mut ctl = vec!["ctl", "--api", &api, "--token-file", &token, "--json"];
        if scheme == "https" {
            ctl.extend(["--ca-file", &certificate]);
        }
        let changed = run(&[&ctl[..], &["add-lun", "mem:2M"]].concat());
        assert_exit(&changed, 0);
        assert_exit(&run(&["ctl", "--api", &api, "status"]), 1);
        let (stopped, _) = server.stop();
        assert_exit(&stopped, 0);
        let output = printed(&stopped);
        assert!(!output.contains(TOKEN));
        // Attempts with wrong tokens are logged.
        let refused = |line: &&str| line.contains("WARN") && line.contains("peer=127.0.0.1:");
        let refused = output.lines().filter(refused).filter(|line| line.contains("the token is"));
        assert!(refused.count() >= 2, "{output}");
    }
}

/// Goal: if a server uses a certificate authority's own certificate, as plain `openssl req -x509`
/// makes it, the client reports that and says how to make a suitable one.
#[test]
fn a_ca_certificate_of_a_server_is_explained() {
    let scratch = Scratch::new("tls-authority");
    let token = scratch.file("token", TOKEN.as_bytes());
    let mut wanted = rcgen::CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
    wanted.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let key = rcgen::KeyPair::generate().unwrap();
    let made = wanted.self_signed(&key).unwrap();
    let certificate = scratch.file("cert.pem", made.pem().as_bytes());
    let key = scratch.file("key.pem", key.serialize_pem().as_bytes());
    let guarded = ["--api", "127.0.0.1:0", "--api-token-file", &token];
    let tls = ["--api-certificate-file", &certificate, "--api-key-file", &key];
    let server = Server::start(&[&["mem:1M"][..], &guarded, &tls].concat());
    let api = server.report["api"].as_str().unwrap();
    let ctl = ["ctl", "status", "--json", "--api", api, "--token-file", &token];
    let refused = run(&[&ctl[..], &["--ca-file", &certificate]].concat());
    assert_exit(&refused, 1);
    let hint = json(&refused)["hint"].as_str().unwrap().to_owned();
    assert!(hint.contains("basicConstraints=critical,CA:FALSE"), "{hint}");
    assert_exit(&server.stop().0, 0);
}

/// Goal: a server whose API would be unprotected does not start, and reports the missing options.
#[test]
fn an_open_api_is_refused() {
    let scratch = Scratch::new("open-api");
    let token = scratch.file("token", TOKEN.as_bytes());
    let short = scratch.file("short", b"short");
    let serve = ["serve", "mem:1M", "--listen", "127.0.0.1:0", "--json"];
    for (arguments, status) in [
        (&["--api", "0.0.0.0:0"][..], 2),
        (&["--api", "0.0.0.0:0", "--api-token-file", &token], 2),
        (&["--api", "unix:a", "--api-token-file", &token], 2),
        (&["--api", "somewhere"], 2),
        (&["--api-token-file", &token], 2),
        (&["--api", "127.0.0.1:0", "--api-token-file", &short], 1),
        (&["--api", "127.0.0.1:0", "--api-token-file", "/nonexistent"], 1),
        (&["--api", "unix:/nonexistent-and-not-to-be-made\0/a"], 2),
    ] {
        if arguments.iter().any(|argument| argument.contains('\0')) {
            continue; // no argument can contain a zero byte
        }
        let output = run(&[&serve, arguments].concat());
        assert_exit(&output, status);
        assert!(json(&output)["error"].is_string());
        assert!(!printed(&output).contains(TOKEN));
    }
}

/// Goal: the examples in docs/api.md work as shown.
#[test]
fn the_documentation_runs_as_written() {
    let scratch = Scratch::new("doc");
    let disk = scratch.path().join("disk.img").display().to_string();
    let server = Server::start(&[&disk, "--size", "1M"]);
    let text = include_str!("../../../../docs/api.md");
    let mut scripts = 0;
    for block in text.split("```sh\n").skip(1) {
        let script = block.split("```").next().unwrap();
        let mut command = Command::new("sh");
        command.args(["-e", "-c", script]).env("SOCKET", Socket::of(&server).0);
        command.env("TARGET", server.report["targets"][0]["name"].as_str().unwrap());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        assert_exit(&finish(command, b""), 0);
        scripts += 1;
    }
    assert!(scripts >= 4);
    assert_eq!(json(&run(&["info", &server.lun(0), "--json"]))["size_bytes"], 8 << 20);
    assert_exit(&server.stop().0, 0);
}

/// Goal: after SIGHUP, new connections see the new certificate and new requests require the new
/// token; unusable files refuse the change.
#[test]
fn certificate_and_token_are_reloaded() {
    let scratch = Scratch::new("renewal");
    scratch.file("token", TOKEN.as_bytes());
    let (old, _) = certificate(&scratch);
    let trusted = scratch.file("old.pem", &std::fs::read(&old).unwrap());
    let text = "[listen]\nportals = [\"127.0.0.1:0\"]\n\
        [api]\nlisten = \"127.0.0.1:0\"\ntoken_file = \"token\"\n\
        tls = { certificate_file = \"cert.pem\", key_file = \"key.pem\" }\n\
        [[target]]\nname = \"iqn.2026-11.org.example:a\"\n\
        [[target.lun]]\nid = 0\ndevice = \"mem:1M\"\n";
    let config = scratch.file("lunar.toml", text.as_bytes());
    let server = Server::start_command(lunar(&["target", "--config", &config]));
    let url = format!("https://{}/api/v1/status", server.report["api"].as_str().unwrap());
    let opens = |trusted: &str, token: &str| {
        let bearer = format!("Authorization: Bearer {token}");
        let mut command = Command::new("curl");
        command.args(["-sSf", "--max-time", "30", "--cacert", trusted, "-H", &bearer, &url]);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        finish(command, b"").status.success()
    };
    assert!(opens(&trusted, TOKEN));
    scratch.file("key.pem", b"no key");
    let mut apply = lunar(&["apply", &config, "--api"]);
    apply.arg(server.report["api"].as_str().unwrap());
    apply.args([
        "--ca-file",
        &trusted,
        "--token-file",
        &scratch.path().join("token").display().to_string(),
    ]);
    let refused = finish(apply, b"");
    assert_exit(&refused, 1);
    assert!(printed(&refused).contains("cannot read a private key from"), "{}", printed(&refused));
    assert!(opens(&trusted, TOKEN), "the old files stay in use");
    certificate(&scratch);
    let (new, token) = (scratch.path().join("cert.pem"), "another-token-0123456789");
    scratch.file("token", token.as_bytes());
    let new = new.to_str().unwrap();
    let begun = std::time::Instant::now();
    while !opens(new, token) {
        crate::common::signal(server.pid(), "HUP");
        assert!(begun.elapsed() < crate::common::TEST_TIMEOUT, "not used");
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
    assert!(!opens(&trusted, token) && !opens(new, TOKEN));
    let (stopped, _) = server.stop();
    assert_exit(&stopped, 0);
    let output = printed(&stopped);
    assert!(output.contains("~ api.tls: reloaded from"), "{output}");
    assert!(!output.contains(token), "{output}");
}
