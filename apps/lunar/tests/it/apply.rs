//! `lunar apply` and SIGHUP: changes of a running server, as a whole or not at all.

use crate::common::{
    Scratch, Server, TEST_TIMEOUT, assert_exit, finish, json, lunar, pattern, printed, run,
};
use bytes::Bytes;
use lunar_initiator::{Initiator, SessionOptions, Url};
use lunar_wire::Lun;
use serde_json::Value;
use std::process::Output;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

const ONE: &str = "iqn.2026-11.org.example:one";
const TWO: &str = "iqn.2026-11.org.example:two";

/// A daemon, the directory of its configuration, and the runtime directory of its API.
struct Daemon {
    scratch: Scratch,
    server: Server,
}

impl Daemon {
    fn start(name: &str, prepare: impl FnOnce(&Scratch), text: &str) -> Self {
        let scratch = Scratch::new(name);
        prepare(&scratch);
        let config = scratch.file("lunar.toml", with_portal(text).as_bytes());
        let mut command = lunar(&["target", "--config", &config]);
        command.env("XDG_RUNTIME_DIR", scratch.path());
        Self { server: Server::start_command(command), scratch }
    }

    fn lunar(&self, arguments: &[&str]) -> Output {
        let mut command = lunar(arguments);
        command.env("XDG_RUNTIME_DIR", self.scratch.path());
        finish(command, b"")
    }

    /// Writes a configuration to another file than the daemon's own.
    fn other(&self, text: &str) -> String {
        self.scratch.file("other.toml", with_portal(text).as_bytes())
    }

    /// Applies a configuration; returns the changes, one per line.
    #[track_caller]
    fn apply(&self, text: &str) -> Vec<String> {
        let output = self.lunar(&["apply", &self.other(text), "--json"]);
        assert_exit(&output, 0);
        let document = json(&output);
        assert_eq!(document["made"], true);
        lines(&document)
    }

    #[track_caller]
    fn refused(&self, text: &str) -> String {
        let output = self.lunar(&["apply", &self.other(text)]);
        assert_exit(&output, 1);
        printed(&output)
    }

    fn ctl(&self, arguments: &[&str]) -> Value {
        let output = self.lunar(&[&["ctl"], arguments, &["--json"]].concat());
        assert_exit(&output, 0);
        json(&output)
    }

    fn drift(&self) -> Vec<String> {
        let status = self.ctl(&["status"]);
        status["drift"].as_array().unwrap().iter().map(text).collect()
    }

    fn tsih_of(&self, target: &str) -> Vec<u64> {
        let sessions = self.ctl(&["sessions"]);
        let sessions = sessions["sessions"].as_array().unwrap().iter();
        let found = sessions.filter(|session| session["target"] == target);
        found.map(|session| session["tsih"].as_u64().unwrap()).collect()
    }

    fn url(&self, target: &str, lun: u16) -> String {
        format!("{}/{target}/{lun}", self.server.portal())
    }
}

/// Adds the daemon's portal, with port 0: the applied text names the same portal, so nothing
/// differs.
fn with_portal(text: &str) -> String {
    format!("[listen]\nportals = [\"127.0.0.1:0\"]\n{text}")
}

fn target(name: &str, luns: &str) -> String {
    format!("[[target]]\nname = \"{name}\"\n{luns}")
}

fn lun(id: u16, device: &str) -> String {
    format!("[[target.lun]]\nid = {id}\ndevice = \"{device}\"\n")
}

fn text(value: &Value) -> String {
    value.as_str().unwrap().to_owned()
}

fn lines(document: &Value) -> Vec<String> {
    document["changes"].as_array().unwrap().iter().map(|change| text(&change["line"])).collect()
}

/// A session of this program's initiator that repeats a command on its own thread.
struct Session {
    stop: Arc<AtomicBool>,
    good: Arc<AtomicUsize>,
    thread: std::thread::JoinHandle<Vec<String>>,
}

impl Session {
    fn start(url: &str) -> Self {
        let url: Url = url.parse().unwrap();
        let (stop, good) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let (stopped, counted) = (Arc::clone(&stop), Arc::clone(&good));
        let thread = std::thread::spawn(move || {
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(read_until(&url, &stopped, &counted))
        });
        let session = Self { stop, good, thread };
        session.still_works();
        session
    }

    /// Waits until several more reads have ended with GOOD.
    #[track_caller]
    fn still_works(&self) {
        let (before, start) = (self.good.load(Ordering::Acquire), Instant::now());
        while self.good.load(Ordering::Acquire) < before + 20 {
            assert!(
                start.elapsed() < TEST_TIMEOUT && !self.thread.is_finished(),
                "it stopped reading"
            );
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Ends the session; returns all results that were not GOOD.
    fn end(self) -> Vec<String> {
        self.stop.store(true, Ordering::Release);
        self.thread.join().unwrap()
    }
}

async fn read_until(url: &Url, stop: &AtomicBool, good: &AtomicUsize) -> Vec<String> {
    let options = SessionOptions::new("iqn.2026-11.org.example:reader");
    let session = Initiator::connect(url, &options).await.unwrap();
    let lun = Lun::new(url.unit.as_ref().unwrap().lun);
    let mut other = Vec::new();
    let mut fresh = true;
    while !stop.load(Ordering::Acquire) {
        let read: &[u8] = &[0x28, 0, 0, 0, 0, 0, 0, 0, 8, 0];
        match session.execute(lun, read, Bytes::new(), 4096).await {
            Ok(reply) if reply.result.status == 0 => {
                good.fetch_add(1, Ordering::AcqRel);
                fresh = false;
            }
            // A new nexus begins with a POWER ON unit attention.
            Ok(_) if fresh => fresh = false,
            Ok(reply) => other.push(format!("{:?}", reply.result)),
            Err(error) => {
                other.push(error.to_string());
                return other;
            }
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    session.log_out().await.unwrap();
    other
}

/// Goal: targets and LUNs are added and removed while a session reads; the session keeps its handle
/// and gets only GOOD. Unaffected objects stay untouched, memory keeps its data.
#[test]
fn unaffected_sessions_are_not_informed() {
    let one = target(ONE, &lun(0, "mem:1M"));
    let daemon = Daemon::start("unconcerned", |_| (), &one);
    let bytes = pattern(1, 4096);
    let url = daemon.url(ONE, 0);
    assert_exit(&crate::common::run_with_input(&["write", &url, "--offset", "0"], &bytes), 0);
    let session = Session::start(&url);
    let tsih = daemon.tsih_of(ONE);
    assert_eq!(tsih.len(), 1);

    let both = format!("{one}{}", target(TWO, &lun(3, "mem:2M")));
    let added = daemon.apply(&both);
    assert_eq!(added, [format!("+ {TWO}"), format!("+ {TWO} LUN 3: device = \"mem:2MiB\"")]);
    session.still_works();
    assert_exit(&run(&["info", &daemon.url(TWO, 3)]), 0);
    assert!(daemon.apply(&both).is_empty(), "no differences remain");
    let readdressed = one.replace("[[target.lun]]", "alias = \"x\"\n[[target.lun]]");
    assert_eq!(daemon.apply(&readdressed).len(), 3, "an alias, and the other target goes");
    session.still_works();
    assert_exit(&run(&["info", &daemon.url(TWO, 3)]), 1);
    assert_eq!(daemon.tsih_of(ONE), tsih);
    assert_eq!(session.end(), Vec::<String>::new());
    let read = run(&["read", &url, "--offset", "0", "--length", "4096"]);
    assert_eq!(read.stdout, bytes);
    assert_exit(&daemon.server.stop().0, 0);
}

/// Sends a MODE SELECT that sets SWP; returns the sense, after unit attentions.
async fn protect(session: &Initiator) -> Option<Vec<u8>> {
    let list: &[u8] = &[0, 0, 0, 0, 0x0a, 10, 0x22, 0x10, 0x08, 0, 0, 0, 0, 0, 0, 0];
    loop {
        let cdb: &[u8] = &[0x15, 0x10, 0, 0, 16, 0];
        let data = Bytes::from_static(list);
        let result = session.execute(Lun::new(0), cdb, data, 0).await.unwrap().result;
        let sense = result.sense.to_vec();
        match (result.status, sense.get(2).map(|key| key & 0x0f)) {
            (0, _) => return None,
            (_, Some(6)) => {}
            _ => return Some(sense),
        }
    }
}

/// Goal: a change of administrators is effective at once in existing sessions, and is reported; the
/// sessions are otherwise unchanged.
#[test]
fn administrators_change_while_sessions_run() {
    const DENIED: [u8; 2] = [0x20, 0x02];
    let own = "administer = [\"iqn.2026-11.org.example:other\"]\n";
    let all = target(ONE, &lun(0, "mem:1M"));
    let daemon = Daemon::start("administer", |_| (), &all);
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let url: Url = daemon.url(ONE, 0).parse().unwrap();
    let options = SessionOptions::new("iqn.2026-11.org.example:reader");
    let session = runtime.block_on(Initiator::connect(&url, &options)).unwrap();
    let tsih = daemon.tsih_of(ONE);
    let restricted = target(ONE, &format!("{own}{}", lun(0, "mem:1M")));
    let changed = daemon.apply(&restricted);
    assert_eq!(
        changed,
        [format!("~ {ONE} administer: none -> [\"iqn.2026-11.org.example:other\"]")]
    );
    let refused = runtime.block_on(protect(&session)).unwrap();
    assert_eq!((refused[2] & 0x0f, &refused[12..14]), (5, &DENIED[..]));
    let shown = daemon.ctl(&["targets"])["targets"][0].clone();
    assert_eq!(shown["administer"], serde_json::json!(["iqn.2026-11.org.example:other"]));
    assert_eq!(shown["luns"][0]["administer"], Value::Null);
    let targets = daemon.lunar(&["ctl", "targets"]);
    let targets = String::from_utf8(targets.stdout).unwrap();
    assert!(targets.contains("administered by iqn.2026-11.org.example:other"), "{targets}");

    let nobody = target(ONE, &format!("{}administer = []\n", lun(0, "mem:1M")));
    assert_eq!(daemon.apply(&nobody).len(), 2);
    assert!(runtime.block_on(protect(&session)).is_some());
    let luns = daemon.lunar(&["ctl", "luns"]);
    let luns = String::from_utf8(luns.stdout).unwrap();
    assert!(luns.contains("no administrators"), "{luns}");
    let whole = daemon.lunar(&["ctl", "targets", "--print-toml"]);
    let pasted = daemon.scratch.file("pasted.toml", &whole.stdout);
    let same = daemon.lunar(&["apply", &pasted, "--dry-run", "--json"]);
    assert_eq!(lines(&json(&same)), Vec::<String>::new(), "{whole:?}");

    assert_eq!(daemon.apply(&all).len(), 1);
    assert_eq!(runtime.block_on(protect(&session)), None);
    assert_eq!(daemon.tsih_of(ONE), tsih);
    runtime.block_on(session.log_out()).unwrap();
    assert_exit(&daemon.server.stop().0, 0);
}

/// Goal: `lunar serve` accepts administrators, and reports them; invalid names are refused.
#[test]
fn serve_reports_administrators() {
    let serve = ["serve", "mem:1M", "--listen", "127.0.0.1:0", "--api", "none"];
    let started = |more: &[&str]| {
        let server = Server::start_command(lunar(&[&serve[..], more].concat()));
        let shown = server.report["targets"][0]["administer"].clone();
        assert_exit(&server.stop().0, 0);
        shown
    };
    assert_eq!(started(&[]), Value::Null);
    let names = ["--administer", "iqn.2026-11.org.example:A", "--administer", "iqn.2026-11.org.b"];
    assert_eq!(
        started(&names),
        serde_json::json!(["iqn.2026-11.org.example:a", "iqn.2026-11.org.b"])
    );
    assert_eq!(started(&["--administer", "none"]), serde_json::json!([]));
    for wrong in [
        &["--administer", "x"][..],
        &["--administer", "none", "--administer", "iqn.2026-11.org.b"],
        &["--administer", "iqn.2026-11.org.b", "--initiator", "iqn.2026-11.org.a"],
    ] {
        assert_exit(&run(&[&serve[..], wrong].concat()), 2);
    }
}

/// Goal: a dry run reports the difference and applies none of it.
#[test]
fn a_dry_run_changes_nothing() {
    let one = target(ONE, &lun(0, "mem:1M"));
    let daemon = Daemon::start("dry", |_| (), &one);
    let wanted = daemon.other(&target(ONE, &(lun(0, "mem:1M") + &lun(1, "mem:1M"))));
    let differences = daemon.lunar(&["apply", &wanted, "--dry-run"]);
    assert_exit(&differences, 0);
    let differences = String::from_utf8(differences.stdout).unwrap();
    let expected =
        format!("+ {ONE} LUN 1: device = \"mem:1MiB\"\n--dry-run: no changes were made\n");
    assert_eq!(differences, expected);
    assert_exit(&run(&["info", &daemon.url(ONE, 1)]), 1);
    assert!(daemon.drift().is_empty());
}

/// Goal: a device that cannot be opened, or an invalid file, prevents the whole change, and leaves
/// nothing behind.
#[test]
fn all_or_nothing() {
    let prepare = |scratch: &Scratch| drop(scratch.file("disk.img", &[0; 1 << 20]));
    let one = target(ONE, &lun(0, "disk.img"));
    let daemon = Daemon::start("nothing", prepare, &one);
    let session = Session::start(&daemon.url(ONE, 0));
    let new = format!("{}size = \"1MiB\"\n", lun(1, "new.img"));
    let broken = format!("{}size = \"1MiB\"\n", lun(2, "no/such/dir.img"));
    let written_back = format!("{}cache = \"write-back\"\n", lun(0, "disk.img"));
    let error = daemon.refused(&target(ONE, &(written_back + &new + &broken)));
    assert!(error.contains("no/such"), "{error}");
    session.still_works();
    assert!(!daemon.scratch.path().join("new.img").exists());
    assert!(!daemon.scratch.path().join("new.img.lunar").exists());
    assert!(daemon.drift().is_empty());

    let error = daemon.refused("[[target]]\nname = \"x\"\ncahce = 1\n");
    let other = daemon.scratch.path().join("other.toml").display().to_string();
    assert!(error.contains(&format!("{other}:4:8: invalid target name")), "{error}");
    assert!(error.contains(&format!("{other}:5:1: unknown key `cahce`")), "{error}");
    session.still_works();
    assert_eq!(session.end(), Vec::<String>::new());
    assert_exit(&daemon.server.stop().0, 0);
}

/// Goal: a unit whose settings change is closed and reopened, with its data; a removed unit is
/// closed, so that others can open it.
#[test]
fn units_are_opened_again_and_closed() {
    let prepare = |scratch: &Scratch| drop(scratch.file("disk.img", &pattern(2, 1 << 20)));
    let plain = target(ONE, &lun(0, "disk.img"));
    let daemon = Daemon::start("again", prepare, &plain);
    let uuid = || daemon.ctl(&["luns"])["luns"][0]["uuid"].clone();
    let before = uuid();
    let changed = daemon.apply(&format!("{plain}cache = \"write-back\"\nthin = false\n"));
    assert_eq!(changed.len(), 2);
    assert!(changed[0].contains("closed and reopened"), "{changed:?}");
    let luns = daemon.ctl(&["luns"]);
    assert_eq!((&luns["luns"][0]["cache"], uuid()), (&"write-back".into(), before));
    let read = run(&["read", &daemon.url(ONE, 0), "--offset", "0", "--length", "1M"]);
    assert_eq!(read.stdout, pattern(2, 1 << 20));

    let disk = daemon.scratch.path().join("disk.img").display().to_string();
    let refused = run(&["serve", &disk, "--listen", "127.0.0.1:0"]);
    assert_exit(&refused, 1);
    daemon.apply(&target(TWO, &lun(0, "mem:1M")));
    assert_exit(&Server::start(&[&disk]).stop().0, 0);
}

/// Goal: changes by ctl are reported as drift, with lines to paste, and the next apply undoes them;
/// but no disk shrinks without the option for it, as the drift says.
#[test]
fn drift_is_shown_and_undone() {
    let one = target(ONE, &format!("{}size = \"1MiB\"\n", lun(0, "disk.img")));
    let daemon = Daemon::start("drift", |_| (), &one);
    daemon.ctl(&["add-lun", "mem:2M", "--id", "7"]);
    daemon.ctl(&["redirect", "192.0.2.8:3260"]);
    assert_eq!(
        daemon.drift(),
        [
            format!("~ {ONE} redirect: none -> \"192.0.2.8:3260\" (affected sessions end)"),
            format!("+ {ONE} LUN 7: device = \"mem:2MiB\""),
        ]
    );
    let undone = daemon.apply(&one);
    assert_eq!(undone.len(), 2, "{undone:?}");
    assert!(daemon.drift().is_empty());

    let answer = daemon.ctl(&["resize", "0", "2M"]);
    assert!(text(&answer["toml"]).contains("size = \"2MiB\""), "{answer}");
    let drift = daemon.drift();
    assert_eq!(drift.len(), 1, "{drift:?}");
    let line = "LUN 0 size: \"1MiB\" -> \"2MiB\" (until `lunar apply --shrink`)";
    assert!(drift[0].contains(line), "{drift:?}");
    let refused = daemon.refused(&one);
    assert!(refused.contains("a disk would shrink"), "{refused}");
    let dry = |more: &[&str]| {
        daemon.lunar(&[&["apply", &daemon.other(&one), "--dry-run"], more].concat())
    };
    let output = printed(&dry(&[]));
    assert!(output.contains("warning: the change is refused without --shrink: a disk"), "{output}");
    assert_eq!(json(&dry(&["--json"]))["warnings"].as_array().unwrap().len(), 1);
    assert!(!printed(&dry(&["--shrink"])).contains("warning"));
    let size = || daemon.ctl(&["luns"])["luns"][0]["size_bytes"].clone();
    assert_eq!(size(), 2 << 20);
    let shrunk = daemon.lunar(&["apply", &daemon.other(&one), "--shrink"]);
    assert_exit(&shrunk, 0);
    assert_eq!(size(), 1 << 20);
    assert!(daemon.drift().is_empty());
    // The file has the new size, so the running disk grows.
    let grown = daemon.apply(&one.replace("1MiB", "3MiB"));
    assert!(grown[0].contains("initiators are notified"), "{grown:?}");
    assert_eq!(size(), 3 << 20);
}

/// Goal: a setting that requires a restart is reported, all other settings are applied; the drift
/// says how long it lasts.
#[test]
fn changes_that_require_a_restart_are_reported() {
    let one = target(ONE, &lun(0, "mem:1M"));
    let daemon = Daemon::start("restart", |_| (), &one);
    let wanted = format!(
        "[limits]\nconnections = 5\n{}",
        target(ONE, &(lun(0, "mem:1M") + &lun(1, "mem:1M")))
    );
    let changed = daemon.apply(&wanted);
    let restart_needed = "~ limits.connections: 16384 -> 5 (requires a restart)".to_owned();
    assert_eq!(changed, [restart_needed, format!("+ {ONE} LUN 1: device = \"mem:1MiB\"")]);
    assert_eq!(daemon.drift(), ["~ limits.connections: 5 -> 16384 (until a restart)"]);
}

/// Goal: SIGHUP applies the daemon's own file; an invalid file is reported and changes nothing; the
/// log names the origin of each change.
#[test]
fn sighup_applies_the_file() {
    let one = target(ONE, &lun(0, "mem:1M"));
    let daemon = Daemon::start("sighup", |_| (), &one);
    let config = |text: &str| daemon.scratch.file("lunar.toml", with_portal(text).as_bytes());
    let hang_up = || crate::common::signal(daemon.server.pid(), "HUP");
    config("[[target]]\nname = 1\n");
    hang_up();
    let file = config(&target(ONE, &(lun(0, "mem:1M") + &lun(1, "mem:1M"))));
    let text = std::fs::read(&file).unwrap();
    let start = Instant::now();
    while daemon.ctl(&["luns"])["luns"].as_array().unwrap().len() < 2 {
        assert!(start.elapsed() < TEST_TIMEOUT, "SIGHUP changed nothing");
        hang_up();
        std::thread::sleep(Duration::from_millis(100));
    }
    assert_eq!(std::fs::read(&file).unwrap(), text, "the daemon never writes it");
    let (stopped, _) = daemon.server.stop();
    assert_exit(&stopped, 0);
    let output = printed(&stopped);
    assert!(output.contains("lunar.toml applied, changes: 1"), "{output}");
    let audit = output.lines().find(|line| line.contains("audit")).unwrap_or_default();
    for part in ["added", "by=signal", ONE, "lun=1"] {
        assert!(audit.contains(part), "{part} in {output}");
    }
}

/// Goal: a running daemon does not wait for the writer of a pipe that replaces its configuration, a
/// secret or its state: it reports the pipe, accepts the next change, and shuts down in order.
/// Commands do not wait for a pipe without a writer either.
#[test]
fn a_pipe_in_place_of_a_file_blocks_nothing() {
    let one = target(ONE, &lun(0, "mem:1M"));
    let daemon = Daemon::start("pipe", |_| (), &one);
    let pipe = |name: &str| {
        let path = daemon.scratch.path().join(name);
        let _ = std::fs::remove_file(&path);
        assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success());
        path.display().to_string()
    };
    let own = pipe("lunar.toml");
    crate::common::signal(daemon.server.pid(), "HUP");
    let secret = pipe("secret");
    let chap = format!("chap = {{ user = \"u\", secret_file = {secret:?} }}\n");
    let error = daemon.refused(&target(ONE, &(chap + &lun(0, "mem:1M"))));
    assert!(error.contains("it is a pipe, not a regular file"), "{error}");
    for command in [&["check", &own][..], &["apply", &own, "--dry-run"]] {
        let output = daemon.lunar(command);
        assert_exit(&output, 1);
        assert!(printed(&output).contains("a pipe without a writer"), "{}", printed(&output));
    }
    daemon.ctl(&["resize", "0", "2M"]);
    let (stopped, _) = daemon.server.stop();
    assert_exit(&stopped, 0);
    let output = printed(&stopped);
    let refused = format!("not applied: cannot read {own}: it is a pipe, not a regular file");
    assert!(output.contains(&refused), "{output}");
}

/// Goal: a configuration that a shell passes through a pipe (`| … /dev/stdin`) is read as before.
#[test]
fn a_command_reads_a_configuration_from_a_pipe() {
    let text = target(ONE, &lun(0, "mem:1M"));
    let output = crate::common::run_with_input(&["check", "/dev/stdin"], text.as_bytes());
    assert_exit(&output, 0);
}

/// Goal: a server without a configuration file refuses to apply one, and names the remedy.
#[test]
fn apply_to_serve_is_refused() {
    let scratch = Scratch::new("serve-apply");
    let mut command = lunar(&["serve", "--listen", "127.0.0.1:0", "mem:1M"]);
    command.env("XDG_RUNTIME_DIR", scratch.path());
    let server = Server::start_command(command);
    let file = scratch.file("lunar.toml", target(ONE, &lun(0, "mem:1M")).as_bytes());
    let mut apply = lunar(&["apply", &file]);
    apply.env("XDG_RUNTIME_DIR", scratch.path());
    let refused = finish(apply, b"");
    assert_exit(&refused, 1);
    assert!(printed(&refused).contains("started without a configuration"), "{}", printed(&refused));
    assert_exit(&server.stop().0, 0);
}

/// Goal: a file that equals the running configuration has no differences, whatever its name: its
/// paths are resolved against its directory. A setting that requires a restart, here metrics, is
/// reported, and is drift until the file drops it again.
#[test]
fn a_file_that_equals_the_running_configuration_has_no_differences() {
    let scratch = Scratch::new("apply-same");
    scratch.file("secret", b"a-secret-of-the-test");
    let chap = "chap = { user = \"u\", secret_file = \"secret\" }\n";
    let disk = lun(0, "file:disk.img") + "size = \"1MiB\"\n";
    let same =
        format!("state = \"state\"\n{}", with_portal(&target(ONE, &(chap.to_owned() + &disk))));
    scratch.file("lunar.toml", same.as_bytes());
    let here = |arguments: &[&str]| {
        let mut command = lunar(arguments);
        command.env("XDG_RUNTIME_DIR", scratch.path()).current_dir(scratch.path());
        command
    };
    let server = Server::start_command(here(&["target", "--config", "lunar.toml"]));
    let whole = scratch.path().join("lunar.toml").display().to_string();
    for file in ["lunar.toml", "./lunar.toml", &whole] {
        let output = finish(here(&["apply", file, "--dry-run"]), b"");
        assert_exit(&output, 0);
        assert!(printed(&output).starts_with("no differences"), "{}", printed(&output));
    }
    let status = || json(&finish(here(&["ctl", "status", "--json"]), b""));
    for (text, lines) in
        [(format!("{same}[metrics]\nlisten = \"127.0.0.1:0\"\n"), 1), (same.clone(), 0)]
    {
        scratch.file("lunar.toml", text.as_bytes());
        let output = finish(here(&["apply", "lunar.toml", "--json"]), b"");
        assert_exit(&output, 0);
        let drift: Vec<_> = status()["drift"].as_array().unwrap().iter().map(self::text).collect();
        assert_eq!(drift.len(), lines, "{drift:?}");
        let changes = self::lines(&json(&output));
        let restart_needed = "metrics.listen: none -> \"127.0.0.1:0\" (requires a restart)";
        assert_eq!(
            changes.iter().filter(|line| line.ends_with(restart_needed)).count(),
            lines,
            "{changes:?}"
        );
    }
    assert_exit(&server.stop().0, 0);
}
