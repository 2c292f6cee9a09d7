//! Operator output of the running program: metrics, and a log line for each refused login.

use crate::common::*;

const ALICE: &str = "iqn.2026-11.org.example:alice";
const BOB: &str = "iqn.2026-11.org.example:bob";

fn target(name: &str, more: &str, lun: &str) -> String {
    format!(
        "[[target]]\nname = \"iqn.2026-11.org.example:{name}\"\n{more}\n\
         [[target.lun]]\nid = 0\ndevice = \"mem:1M\"\n{lun}\n"
    )
}

/// Goal: each reason of a refusal is named in the log and in the metrics, and reads are counted.
/// Method: a configuration with one target for each reason.
#[test]
fn refused_logins_are_explained_and_counted() {
    let scratch = Scratch::new("metrics");
    let wrong = scratch.file("wrong", b"hunter2 hunter2");
    scratch.file("right", b"swordfish swordfish");
    let chap = "user = \"u\", secret_file = \"right\"";
    let config = [
        "[listen]\nportals = [\"127.0.0.1:0\"]\n[metrics]\nlisten = \"127.0.0.1:0\"\n\
         [limits]\nlogin_backoff_seconds_max = 0\n"
            .to_owned(),
        target("open", "", ""),
        target("listed", &format!("initiators = [\"{ALICE}\"]"), ""),
        target("empty", "", &format!("initiators = [\"{ALICE}\"]")),
        target("proven", &format!("chap = {{ {chap} }}"), ""),
        target("named", &format!("chap = [{{ initiator = \"{ALICE}\", {chap} }}]"), ""),
    ];
    let config = scratch.file("lunar.toml", config.concat().as_bytes());
    let server = Server::start_command(lunar(&["target", "--config", &config]));
    let read = |name: &str, more: &[&str]| {
        let url = format!("{}/iqn.2026-11.org.example:{name}/0", server.portal());
        let who = ["read", &url, "--length", "64K", "--initiator-name", BOB];
        run(&[&who, more].concat())
    };
    assert_exit(&read("open", &[]), 0);
    let refusals = [
        ("none", "the target does not exist", "no_target"),
        ("listed", "the target does not allow this initiator name or address", "access_list"),
        ("empty", "no LUN of the target is accessible to this initiator", "no_lun"),
        ("named", "the target has no CHAP credential for this initiator", "no_credential"),
    ];
    for (name, ..) in refusals {
        assert_exit(&read(name, &[]), 1);
    }
    let proof = ["--chap-user", "u", "--chap-secret-file", &wrong];
    assert_exit(&read("proven", &proof), 1);
    let page = get(server.report["metrics"].as_str().unwrap());
    let has = |line: &str| assert!(page.lines().any(|other| other == line), "{line}: {page}");
    for (.., reason) in refusals {
        has(&format!("lunar_login_failures_total{{reason=\"{reason}\"}} 1"));
    }
    has("lunar_login_failures_total{reason=\"authentication\"} 1");
    let labels = "target=\"iqn.2026-11.org.example:open\",lun=\"0\",op=\"read\"";
    has(&format!("lunar_sent_bytes_total{{{labels}}} 65536"));
    let (stopped, _) = server.stop();
    assert_exit(&stopped, 0);
    let log = printed(&stopped);
    let lines: Vec<&str> = log.lines().filter(|line| line.contains("login refused")).collect();
    assert_eq!(lines.len(), refusals.len() + 1, "{log}");
    for (line, (name, why, _)) in lines.iter().zip(refusals) {
        assert!(line.contains(why) && line.contains(BOB), "{line}");
        assert!(line.contains(&format!("org.example:{name}")), "{line}");
    }
    assert!(lines[refusals.len()].contains("wrong CHAP name or response"), "{log}");
}

/// Goal: `lunar serve` has metrics at the given address, and none without one.
#[test]
fn serve_has_metrics_on_request() {
    let server = Server::start(&["mem:1M", "--metrics", "127.0.0.1:0"]);
    let page = get(server.report["metrics"].as_str().unwrap());
    assert!(page.contains("lunar_build_info{version=") && page.ends_with("# EOF\n"), "{page}");
    drop(server);
    assert!(Server::start(&["mem:1M"]).report["metrics"].is_null());
}
