//! Pools with members whose storages are unreachable at the start.

use crate::common::{
    ELSEWHERE, Scratch, Server, TEST_TIMEOUT, assert_exit, finish, get, json, lunar, pattern,
    printed, run,
};
use serde_json::Value;
use std::net::TcpListener;
use std::process::Output;
use std::time::{Duration, Instant};

const STORAGE: &str = "iqn.2026-11.org.lunarsan.test:storage";
const FRONT: &str = "iqn.2026-11.org.lunarsan.test:front";
const MIB: usize = 1 << 20;

/// A mirror of a file and of a LUN of another server.
struct UnreachableRig {
    scratch: Scratch,
    /// The address of the other server.
    address: String,
    api: String,
}

impl UnreachableRig {
    fn new(name: &str) -> Self {
        let scratch = Scratch::new(name);
        let address = TcpListener::bind(ELSEWHERE).unwrap().local_addr().unwrap().to_string();
        let api = format!("unix:{}", scratch.path().join("api.sock").display());
        let rig = Self { scratch, address, api };
        let storage = rig.storage();
        let created = run(&[
            "pool",
            "create",
            "p",
            "--kind",
            "mirror",
            "--size",
            "8M",
            &rig.local(),
            &rig.remote(),
        ]);
        assert_exit(&created, 0);
        assert_exit(&storage.stop().0, 0);
        rig
    }

    fn local(&self) -> String {
        self.scratch.path().join("local.img").display().to_string()
    }

    fn remote(&self) -> String {
        format!("iscsi://{}/{STORAGE}/0", self.address)
    }

    /// Starts the other server.
    fn storage(&self) -> Server {
        let file = self.scratch.path().join("remote.img").display().to_string();
        Server::start_command(lunar(&[
            "serve",
            &file,
            "--size",
            "8M",
            "--name",
            STORAGE,
            "--listen",
            &self.address,
        ]))
    }

    /// Starts the server of the pool.
    fn front(&self, keys: &str) -> Server {
        self.front_with("", keys)
    }

    fn front_with(&self, first: &str, keys: &str) -> Server {
        let text = format!(
            "{first}[listen]\nportals = [\"127.0.0.1:0\"]\n[api]\nlisten = \"{}\"\n\
             [metrics]\nlisten = \"127.0.0.1:0\"\n\
             [[pool]]\nname = \"p\"\n{keys}members = [{:?}, {:?}]\n\
             [[target]]\nname = \"{FRONT}\"\n[[target.lun]]\nid = 0\ndevice = \"pool:p\"\n\
             [[target.lun]]\nid = 1\ndevice = \"mem:4M\"\n",
            self.api,
            self.local(),
            self.remote()
        );
        let config = self.scratch.file("lunar.toml", text.as_bytes());
        Server::start_command(lunar(&["target", "--config", &config]))
    }

    fn lunar(&self, arguments: &[&str]) -> Output {
        finish(lunar(&[arguments, &["--api", &self.api]].concat()), b"")
    }

    fn pool(&self) -> Value {
        json(&self.lunar(&["pool", "status", "--json"]))["pools"][0].clone()
    }

    #[track_caller]
    fn until(&self, what: &str, is_reached: impl Fn(&Value) -> bool) {
        let begin = Instant::now();
        while !is_reached(&self.pool()) {
            assert!(begin.elapsed() < TEST_TIMEOUT, "{what}: {:#}", self.pool());
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

#[track_caller]
fn write(front: &Server, data: &[u8]) {
    assert_exit(&finish(lunar(&["write", &front.lun(0)]), data), 0);
}

fn read(front: &Server, bytes: usize) -> Vec<u8> {
    run(&["read", &front.lun(0), "--length", &bytes.to_string()]).stdout
}

/// Goal: a mirror whose member is unreachable opens without it by permission; when the member
/// returns, it gets what it has missed without a restart.
#[test]
fn a_member_returns_to_a_served_mirror() {
    let rig = UnreachableRig::new("pool-return");
    let front = rig.front("degraded = true\n");
    assert_eq!(rig.pool()["members"][1]["state"], "missing");
    assert_eq!(rig.pool()["others"][0]["state"], "absent");
    let metric = |line: &str| {
        let page = get(front.report["metrics"].as_str().unwrap());
        assert!(page.lines().any(|other| other == line), "{line}: {page}");
    };
    metric("lunar_pool_health{pool=\"p\",state=\"degraded\"} 1");
    metric("lunar_pool_members{pool=\"p\",state=\"missing\"} 1");
    let shown = printed(&rig.lunar(&["ctl", "status"]));
    assert!(shown.contains("pool:p is degraded: 1 of 2 members are current"), "{shown}");
    let data = pattern(1, 2 * MIB);
    write(&front, &data);
    let storage = rig.storage();
    rig.until("the member returns", |pool| pool["health"] == "healthy");
    assert_eq!(rig.pool()["others"], serde_json::json!([]));
    front.until_said("has returned to its pool");
    metric("lunar_pool_health{pool=\"p\",state=\"healthy\"} 1");
    metric("lunar_pool_member_missing_bytes{pool=\"p\",slot=\"1\"} 0");
    assert!(printed(&rig.lunar(&["ctl", "status"])).contains("health      good"));
    // The member that was unreachable has everything: the mirror opens without the other one.
    assert_exit(&front.stop().0, 0);
    std::fs::rename(rig.local(), rig.scratch.path().join("aside.img")).unwrap();
    let front = rig.front("degraded = true\n");
    assert_eq!(read(&front, data.len()), data);
    assert_exit(&front.stop().0, 0);
    assert_exit(&storage.stop().0, 0);
}

/// Goal: a mirror that may not open without its member waits, beside LUNs that are served, and is
/// served when the member returns.
#[test]
fn a_pool_waits_for_its_members() {
    let rig = UnreachableRig::new("pool-wait");
    let front = rig.front("");
    assert_eq!(front.report["waiting"][0]["device"], "pool:p");
    assert_eq!(rig.pool(), Value::Null);
    let luns = printed(&rig.lunar(&["ctl", "luns"]));
    assert!(luns.contains("pool:p") && luns.contains("waits for its storage"), "{luns}");
    let storage = rig.storage();
    rig.until("the pool is served", |pool| pool["health"] == "healthy");
    let data = pattern(2, 2 * MIB);
    write(&front, &data);
    assert_eq!(read(&front, data.len()), data);
    assert_exit(&front.stop().0, 0);
    assert_exit(&storage.stop().0, 0);
}

/// Goal: a member that was left out because it was unreachable is not needed at the next start.
#[test]
fn a_stale_member_is_not_waited_for() {
    let rig = UnreachableRig::new("pool-stale");
    let front = rig.front("degraded = true\n");
    let data = pattern(3, 2 * MIB);
    write(&front, &data);
    assert_exit(&front.stop().0, 0);
    // The labels record that the member that is present has all data: no permission is necessary.
    let front = rig.front("");
    assert_eq!(read(&front, data.len()), data);
    let storage = rig.storage();
    rig.until("the member returns", |pool| pool["health"] == "healthy");
    assert_exit(&front.stop().0, 0);
    assert_exit(&storage.stop().0, 0);
}

/// Fault: a member that nobody needed ended the server at its start, and all LUNs with it, by
/// showing the label of another pool. Goal: with a state directory the mirror is served without it;
/// else the mirror waits, and the other LUNs are served.
#[test]
fn a_member_that_shows_another_pool_closes_nothing() {
    let rig = UnreachableRig::new("pool-foreign");
    let state = rig.scratch.path().join("state");
    std::fs::create_dir(&state).unwrap();
    let state = format!("state = {:?}\n", state.display());
    let front = rig.front_with(&state, "degraded = true\n");
    let data = pattern(4, 2 * MIB);
    write(&front, &data);
    assert_exit(&front.stop().0, 0);
    let others = ["one.img", "two.img"].map(|name| rig.scratch.path().join(name));
    let others = others.map(|path| path.display().to_string());
    let created =
        run(&["pool", "create", "q", "--kind", "mirror", "--size", "8M", &others[0], &others[1]]);
    assert_exit(&created, 0);
    std::fs::copy(&others[0], rig.scratch.path().join("remote.img")).unwrap();
    let storage = rig.storage();
    let front = rig.front_with(&state, "degraded = true\n");
    assert_eq!(read(&front, data.len()), data);
    front.until_said("is a member of pool");
    assert_eq!(rig.pool()["health"], "degraded");
    assert_exit(&front.stop().0, 0);
    let front = rig.front("degraded = true\n");
    assert_eq!(front.report["waiting"][0]["device"], "pool:p");
    let luns = printed(&rig.lunar(&["ctl", "luns"]));
    assert!(luns.contains("mem:4194304"), "{luns}");
    assert_exit(&front.stop().0, 0);
    assert_exit(&storage.stop().0, 0);
}
