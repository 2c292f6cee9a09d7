//! The commands for clients that a server prints: they work as printed.

use crate::common::{Scratch, Server, assert_exit, lunar, printed};
use std::os::unix::fs::MetadataExt;
use std::process::{Command, Output};

/// Runs a printed command in a shell, with `lunar` in the search path.
fn paste(line: &str) -> Output {
    let program = std::path::Path::new(env!("CARGO_BIN_EXE_lunar"));
    let path = std::env::var("PATH").unwrap();
    let path = format!("{}:{path}", program.parent().unwrap().display());
    Command::new("sh").args(["-ec", line]).env("PATH", path).output().unwrap()
}

/// Goal: the printed `lunar info` logs in, whichever initiator has the credential or sees the LUN.
/// Fault: with CHAP per initiator, the lines had neither the name nor the credential.
#[test]
fn printed_commands_log_in() {
    let alice = "iqn.2026-11.org.example:alice";
    let bob = "iqn.2026-11.org.example:bob";
    let chap = "user = \"u\", secret_file = \"secret\"";
    for (target, lun) in [
        (format!("chap = {{ {chap} }}"), String::new()),
        (format!("chap = [{{ initiator = \"{alice}\", {chap} }}]"), String::new()),
        (
            format!(
                "initiators = [\"{alice}\", \"{bob}\"]\n\
                 chap = [{{ initiator = \"{alice}\", user = \"v\", secret_file = \"other\" }}, \
                 {{ initiator = \"{bob}\", {chap} }}]"
            ),
            format!("initiators = [\"{bob}\"]"),
        ),
        (format!("initiators = [\"{alice}\"]\nchap = {{ {chap} }}"), String::new()),
    ] {
        let scratch = Scratch::new("client-lines");
        scratch.file("secret", b"swordfish swordfish");
        scratch.file("other", b"hunter2 hunter2 hunter2");
        let text = format!(
            "[listen]\nportals = [\"127.0.0.1:0\"]\n[[target]]\n\
             name = \"iqn.2026-11.org.example:a\"\n{target}\n\
             [[target.lun]]\nid = 0\ndevice = \"mem:1M\"\n{lun}\n"
        );
        let config = scratch.file("lunar.toml", text.as_bytes());
        let server = Server::start_command(lunar(&["target", "--config", &config]));
        let clients = server.report["clients"].as_array().unwrap();
        let lines = clients.iter().map(|line| line.as_str().unwrap());
        let info = lines.clone().find(|line| line.starts_with("lunar info")).unwrap();
        let ran = paste(info);
        assert_exit(&ran, 0);
        assert!(printed(&ran).contains("1 MiB"), "{info}: {}", printed(&ran));
        assert!(
            lines.clone().any(|line| line.contains("LIBISCSI_CHAP_USERNAME='u'")),
            "{clients:?}"
        );
        assert_exit(&server.stop().0, 0);
    }
}

/// Goal: the commands work on this machine if it is in an admitted network, although the server
/// listens on all addresses.
/// Method: a network namespace with an address of the admitted network.
#[test]
fn printed_commands_are_admitted() {
    let script = "ip link set lo up
        ip address add 192.0.2.7/24 dev lo
        lunar serve mem:1M --listen 0.0.0.0:3260 --network 192.0.2.0/24 --api none >served 2>&1 &
        trap 'kill $!' EXIT
        until grep -q '^listening on' served; do sleep 0.1; done
        grep -o 'lunar info .*' served >line
        . ./line";
    let scratch = Scratch::new("client-network");
    let inside = format!("cd {} && {}", scratch.path().display(), script);
    let root = std::fs::metadata("/proc/self").unwrap().uid() == 0;
    let user = if root { "" } else { "--map-root-user" };
    let ran = paste(&format!("unshare {user} --net sh -ec '{}'", inside.replace('\'', "'\\''")));
    assert_exit(&ran, 0);
    let line = std::fs::read_to_string(scratch.path().join("line")).unwrap();
    assert!(line.contains("iscsi://192.0.2.7:3260/"), "{line}");
    assert!(printed(&ran).contains("1 MiB"), "{}", printed(&ran));
}
