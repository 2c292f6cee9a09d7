//! Log lines about failed logins: they identify initiator and reason, contain no secret, and are
//! limited in rate.

use crate::common::{Scratch, Server, assert_exit, lunar, printed, run};
use lunar_initiator::{Chap, Initiator, SessionOptions, Url};
use lunar_iscsi::login::{Credential, Secret};
use std::io::{Read, Write};
use std::net::TcpStream;

const TARGET: &str = "iqn.2026-11.org.example:one";
const EVE: &str = "iqn.2026-11.org.example:eve";

/// Fails to log in a number of times with a wrong secret, within this process: as many other
/// processes could take longer than the minute that a log line covers.
fn fail_to_log_in(url: &str, times: usize) {
    let url: Url = url.parse().unwrap();
    let secret = Secret::new(b"swordfish swordfish");
    let mut options = SessionOptions::new(EVE);
    options.chap = Some(Chap::new(Credential { user: "u".to_owned(), secret }, None));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        for _ in 0..times {
            let error = Initiator::connect(&url, &options).await.map(|_| ()).unwrap_err();
            assert_eq!(error.kind, lunar_initiator::ErrorKind::Authentication, "{error}");
        }
    });
}

/// Goal: each of the first failures has a line with initiator, target, source and reason; then
/// there is one line a minute. Method: twelve wrong secrets, and logins refused for other reasons.
#[test]
fn logs_of_failed_logins_are_limited() {
    let scratch = Scratch::new("log-of-failures");
    let right = scratch.file("right", b"hunter2 hunter2 hunter2");
    let wrong = scratch.file("wrong", b"swordfish swordfish");
    let config = scratch.file(
        "lunar.toml",
        format!(
            "[listen]\nportals = [\"127.0.0.1:0\"]\n[limits]\nlogin_backoff_seconds_max = 0\n\
             [[target]]\nname = \"{TARGET}\"\nchap = {{ user = \"u\", secret_file = \"right\" }}\n\
             [[target.lun]]\nid = 0\ndevice = \"mem:1M\"\n"
        )
        .as_bytes(),
    );
    let server = Server::start_command(lunar(&["target", "--config", &config]));
    let elsewhere = format!("{}/iqn.2026-11.org.example:none/0", server.portal());
    assert_exit(&run(&["info", &elsewhere, "--initiator-name", EVE]), 1);
    let log_in = |file: &str| {
        let who = ["--initiator-name", EVE, "--chap-user", "u", "--chap-secret-file", file];
        run(&[&["info", &server.lun(0)], &who[..]].concat())
    };
    fail_to_log_in(&server.lun(0), 12);
    assert_exit(&log_in(&right), 0);
    assert_exit(&log_in(&wrong), 1);
    let (stopped, _) = server.stop();
    assert_exit(&stopped, 0);
    let log = printed(&stopped);
    let lines: Vec<&str> = log.lines().filter(|line| line.contains("login refused")).collect();
    assert_eq!(lines.len(), 6, "five, then none, then one after a success: {log}");
    assert!(lines[0].contains("the target does not exist"), "{}", lines[0]);
    for line in &lines {
        assert!(line.contains(EVE) && line.contains("peer=127.0.0.1:"), "{line}");
    }
    for line in &lines[1..] {
        assert!(line.contains("wrong CHAP name or response"), "{line}");
        assert!(line.contains(TARGET) && line.contains("AUTHENTICATION_FAILURE"), "{line}");
    }
    assert!(!log.contains("hunter2") && !log.contains("swordfish"), "{log}");
}

/// A Login Request of the operational stage with the C bit, and meaningless text. RFC 7143 §11.12.
fn piece_of_a_login(bytes: usize) -> Vec<u8> {
    let mut pdu = vec![0; 48];
    pdu[..2].copy_from_slice(&[0x43, 0x44]);
    pdu[4..8].copy_from_slice(&u32::try_from(bytes).unwrap().to_be_bytes());
    pdu.resize(48 + bytes, b'x');
    pdu
}

/// Goal: a login whose text never ends is refused with its own status once the text exceeds the
/// limit, and the log has the reason. Fault: 57 kB of text were kept for each login.
#[test]
fn a_login_text_has_a_limit() {
    let scratch = Scratch::new("login-text");
    let config = format!(
        "[listen]\nportals = [\"127.0.0.1:0\"]\n[limits]\ntext_bytes = \"16KiB\"\n\
         [[target]]\nname = \"{TARGET}\"\n[[target.lun]]\nid = 0\ndevice = \"mem:1M\"\n"
    );
    let config = scratch.file("lunar.toml", config.as_bytes());
    let server = Server::start_command(lunar(&["target", "--config", &config]));
    let address = server.portal();
    let mut tcp = TcpStream::connect(address.trim_start_matches("iscsi://")).unwrap();
    let mut statuses = Vec::new();
    for bytes in [8192, 8192, 4] {
        tcp.write_all(&piece_of_a_login(bytes)).unwrap();
        let mut response = [0; 48];
        tcp.read_exact(&mut response).unwrap();
        statuses.push(u16::from_be_bytes([response[36], response[37]]));
    }
    assert_eq!(statuses, [0, 0, 0x0200], "initiator error, RFC 7143 §11.13.5");
    assert_eq!(tcp.read(&mut [0; 48]).unwrap(), 0, "closed");
    let (stopped, _) = server.stop();
    assert_exit(&stopped, 0);
    let log = printed(&stopped);
    let line = log.lines().find(|line| line.contains("login refused")).unwrap();
    assert!(line.contains("more than 16384 bytes of text"), "{line}");
    assert!(line.contains("INITIATOR_ERROR") && line.contains("peer=127.0.0.1:"), "{line}");
}
