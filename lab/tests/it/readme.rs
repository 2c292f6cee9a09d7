//! Chapters of the documents, run as written, in namespaces where their ports and addresses are
//! free.

use anyhow::{Context, Result, ensure};
use lunar_lab::peers::lunar;
use lunar_lab::readme;
use lunar_lab::system::process::run;
use lunar_lab::system::scratch::Scratch;
use std::path::Path;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(600);

/// Addresses that the examples listen on besides loopback (RFC 5737: documentation).
const ADDRESSES: [&str; 2] = ["192.0.2.7/32", "198.51.100.7/32"];

/// A server of another user that runs while a chapter is walked.
struct ForeignServer {
    /// Starts the server; `foreign` becomes the number of its process.
    start: &'static str,
    /// Fails unless the server still serves its target.
    check: &'static str,
}

/// A tgtd as Debian's service starts it: the default control port, target 1.
const FOREIGN_TGTD: ForeignServer = ForeignServer {
    start: "mkdir -p /run/tgtd
        head -c 1M /dev/urandom >../foreign.img
        tgtd -f --iscsi portal=127.0.0.1:3260 >../foreign.log 2>&1 &
        foreign=$!
        for try in $(seq 100); do
            tgtadm --op show --mode sys >/dev/null 2>&1 && break
            sleep 0.1
        done
        tgtadm --lld iscsi --op new --mode target --tid 1 -T iqn.2026-11.org.example:foreign
        tgtadm --lld iscsi --op new --mode logicalunit --tid 1 --lun 1 -b $PWD/../foreign.img
        tgtadm --lld iscsi --op bind --mode target --tid 1 -I ALL\n",
    check: "kill -0 $foreign
        tgtadm --lld iscsi --op show --mode target | grep -c ^Target | grep -qx 1
        lunar read iscsi://127.0.0.1:3260/iqn.2026-11.org.example:foreign/1 \
            | cmp - ../foreign.img\n",
};

/// A Lunar server with the chapter's command line and target, at the default address of `lunar
/// ctl`.
const FOREIGN_LUNAR: ForeignServer = ForeignServer {
    start: "mkdir ../foreign
        cat >../foreign/lunar.toml <<'END'
[listen]
portals = ['127.0.0.1:3270']
[[target]]
name = 'iqn.2026-11.org.example:vm'
[[target.lun]]
id = 0
device = 'file:vm.img'
size = '16MiB'
END
        (cd ../foreign && exec lunar target --config lunar.toml >log 2>&1) &
        foreign=$!
        for try in $(seq 100); do grep -q '^listening on' ../foreign/log && break; sleep 0.1; done
        grep '^api  *unix:.*/lunar/api.sock' ../foreign/log >/dev/null\n",
    check: "kill -0 $foreign
        lunar info iscsi://127.0.0.1:3270/iqn.2026-11.org.example:vm/0 | grep -q '16 MiB'
        cmp <(head -c 16M /dev/zero) ../foreign/vm.img\n",
};

const README: &str = "README.md";
const USING: &str = "docs/using.md";
const OPERATING: &str = "docs/operating.md";
const ACCESS: &str = "docs/access.md";
const SWITCH: &str = "docs/switch.md";

/// Runs a chapter of a document in an empty folder, with `lunar` in the search path.
fn walk(document: &str, title: &str) -> Result<()> {
    walk_with(document, title, None)
}

/// Runs a chapter, which must not harm a server that runs already.
fn walk_with(document: &str, title: &str, foreign: Option<ForeignServer>) -> Result<()> {
    let scratch = Scratch::new("readme")?;
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let text = std::fs::read_to_string(root.join(document))?;
    std::fs::write(scratch.path("walk"), readme::script(&text, title)?)?;
    let lunar = std::fs::canonicalize(lunar::binary()?)?;
    std::fs::create_dir(scratch.path("bin"))?;
    std::os::unix::fs::symlink(&lunar, scratch.path("bin/lunar"))?;
    std::fs::create_dir(scratch.path("home"))?;
    // The control sockets of tgtd are in /run: this hides those of this machine.
    let mut inside = String::from("mount -t tmpfs tmpfs /run\nip link set lo up\n");
    for address in ADDRESSES {
        inside.push_str(&format!("ip address add {address} dev lo\n"));
    }
    let folder = scratch.folder().to_str().context("a path in UTF-8")?;
    inside.push_str(&format!(
        "cd {folder}/home && export PATH={folder}/bin:$PATH HOME=$PWD XDG_RUNTIME_DIR=$PWD\n"
    ));
    match foreign {
        None => inside.push_str("exec bash ../walk\n"),
        // Reports the chapter's own failure, and harm to the other server as well.
        Some(ForeignServer { start, check }) => inside.push_str(&format!(
            "{start}failed=0\nbash ../walk || failed=$?\n\
             trap 'echo \"the foreign server was harmed: $BASH_COMMAND\" >&2' ERR\n\
             {check}exit $failed\n"
        )),
    }
    let mut arguments = vec!["--net", "--pid", "--fork", "--kill-child", "--mount-proc"];
    if !rustix::process::geteuid().is_root() {
        arguments.extend(["--user", "--map-root-user"]);
    }
    arguments.extend(["bash", "-ec", &inside]);
    let walked = run("unshare", &arguments, LIMIT)?;
    ensure!(
        walked.succeeded() && walked.stdout.ends_with("walked\n"),
        "{document}, {title}: {}",
        walked.outputs()
    );
    Ok(())
}

/// Goal: the disk of the quick start is the one that its client's commands name; the guest of
/// `lab/kernel/run mount` runs these.
#[test]
fn quick_start() -> Result<()> {
    walk(README, "Quick start")
}

#[test]
fn use_the_demo_disk() -> Result<()> {
    walk(USING, "Use the demo disk")
}

#[test]
fn use_the_disks_of_other_targets() -> Result<()> {
    walk(USING, "Use the disks of other targets")
}

#[test]
fn join_disks_to_a_pool() -> Result<()> {
    walk(OPERATING, "Join disks to a pool")
}

#[test]
fn two_targets_one_switch_one_host() -> Result<()> {
    walk(SWITCH, "Two targets, one switch, one host")
}

/// Fault: the chapter's commands reached any tgtd that ran on the machine, removed its target 1 and
/// stopped it.
#[test]
fn a_foreign_tgtd_is_not_touched() -> Result<()> {
    walk_with(USING, "Use the disks of other targets", Some(FOREIGN_TGTD))
}

#[test]
fn serve_disks_of_your_own() -> Result<()> {
    walk(OPERATING, "Serve disks of your own")
}

#[test]
fn access_control() -> Result<()> {
    walk(ACCESS, "Access control")
}

#[test]
fn operation() -> Result<()> {
    walk(OPERATING, "Operation")
}

/// Fault: the chapter ended every server on the machine with the same command line, and if its own
/// server did not run, `lunar ctl` changed another one.
#[test]
fn a_foreign_server_is_not_touched() -> Result<()> {
    walk_with(OPERATING, "Operation", Some(FOREIGN_LUNAR))
}
