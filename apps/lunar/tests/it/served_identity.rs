//! A LUN of another server, served with the identity that it has there.

use crate::common::{
    ELSEWHERE, Scratch, Server, TEST_TIMEOUT, assert_exit, json, lunar, printed, run,
};
use serde_json::Value;
use std::time::{Duration, Instant};

const STORAGE: &str = "iqn.2026-11.org.lunarsan.test:storage";
const FIRST: &str = "0b0f3c1e-7d55-4f0e-9b1d-2f6c5c1f9a10";
const SECOND: &str = "5d0f3c1e-7d55-4f0e-9b1d-2f6c5c1f9a11";

/// Starts a server of one file with this identity.
fn storage(scratch: &Scratch, address: &str, uuid: &str) -> Server {
    let file = scratch.path().join("disk.img");
    let text = format!(
        "state = \"{}\"\n[listen]\nportals = [\"{address}\"]\n[[target]]\nname = \"{STORAGE}\"\n\
         [[target.lun]]\nid = 0\nuuid = \"{uuid}\"\ndevice = \"{}\"\nsize = \"8MiB\"\n",
        scratch.path().join("state").display(),
        file.display()
    );
    let config = scratch.file("storage.toml", text.as_bytes());
    Server::start_command(lunar(&["target", "--config", &config]))
}

/// The identity that a LUN reports: vendor, product, revision, serial number, and the designators
/// of the unit itself.
fn identity(url: &str) -> (Vec<Value>, Vec<Value>) {
    let unit = json(&run(&["info", url, "--json"]))["unit"].clone();
    let texts = ["vendor", "product", "revision", "serial_number"];
    let designators = unit["designators"].as_array().unwrap().clone();
    (
        texts.iter().map(|key| unit[key].clone()).collect(),
        designators.into_iter().filter(|designator| designator["of"] == "unit").collect(),
    )
}

/// The link of the only unit of a server.
fn link(api: &str) -> Value {
    json(&run(&["ctl", "--api", api, "status", "--json"]))["units"][0]["link"].clone()
}

/// Goal: a served LUN has the identity of the remote LUN if that is asked for, and else its own;
/// another disk in the place of the remote LUN is neither used nor shown under that identity.
/// Method: the front is asked for the identity; then the storage is restarted as another disk, and
/// as the first one.
#[test]
fn the_identity_of_the_storage_is_passed_on() {
    let scratch = Scratch::new("served-identity");
    let first = storage(&scratch, ELSEWHERE, FIRST);
    let address = first.portal().strip_prefix("iscsi://").unwrap().to_owned();
    let remote = first.lun(0);
    let expected = identity(&remote);
    assert_eq!(expected.1.len(), 4, "{expected:?}");

    let own = Server::start(&[&remote]);
    assert_ne!(identity(&own.lun(0)), expected);
    assert_exit(&own.stop().0, 0);

    let api = format!("unix:{}", scratch.path().join("api.sock").display());
    let front = Server::start(&[&remote, "--identity", "device", "--api", &api]);
    assert_eq!(identity(&front.lun(0)), expected);
    let until_link = |state: &str| {
        let begin = Instant::now();
        while link(&api) != state {
            assert!(begin.elapsed() < TEST_TIMEOUT, "{}, not {state}", link(&api));
            std::thread::sleep(Duration::from_millis(50));
        }
    };
    drop(first.stop_by("KILL"));
    let second = storage(&scratch, &address, SECOND);
    until_link("failed");
    let shown = json(&run(&["ctl", "--api", &api, "luns", "--json"]));
    assert_eq!(shown["luns"][0]["identity"], "device", "{shown}");
    drop(second.stop_by("KILL"));
    let _again = storage(&scratch, &address, FIRST);
    until_link("connected");
    assert_eq!(identity(&front.lun(0)), expected);
}

/// Goal: an identity is passed on only where hosts cannot take two disks of one server for one, and
/// only of a device that has one.
#[test]
fn identities_that_are_refused() {
    let scratch = Scratch::new("served-identity-refused");
    let storage = storage(&scratch, ELSEWHERE, FIRST);
    let remote = storage.lun(0);
    let serve = |devices: &[&str]| {
        let options = ["--identity", "device", "--listen", "127.0.0.1:0"];
        run(&[&["serve"], devices, &options[..]].concat())
    };
    let local = serve(&["mem:1M"]);
    assert_exit(&local, 2);
    assert!(printed(&local).contains("mem:1MiB has no identity"), "{}", printed(&local));

    // A second path to the same disk: a front that reports its identity.
    let front = Server::start(&[&remote, "--identity", "device"]);
    let twice = serve(&[&remote, &front.lun(0)]);
    assert_exit(&twice, 1);
    assert!(printed(&twice).contains("reports the same identity as"), "{}", printed(&twice));
}

/// Goal: a check of a file with a remote LUN sends nothing to the network unless it is asked to;
/// with `--connect` it tells each LUN that can be served, and each that cannot, with the reason.
/// Method: the storage runs, and then does not.
#[test]
fn remote_luns_are_checked() {
    let scratch = Scratch::new("served-check");
    let storage = storage(&scratch, ELSEWHERE, FIRST);
    let (remote, absent) = (storage.lun(0), storage.lun(0).replace("/0", "/9"));
    let config = |luns: &[&str]| {
        let luns = luns
            .iter()
            .enumerate()
            .map(|(id, device)| format!("[[target.lun]]\nid = {id}\ndevice = \"{device}\"\n"));
        let head = "[[target]]\nname = \"iqn.2026-11.org.lunarsan.test:front\"\n";
        let text = head.to_owned() + &luns.collect::<String>();
        scratch.file("lunar.toml", text.as_bytes())
    };
    let both = config(&["mem:1M", &remote, &absent]);
    let checked = run(&["check", &both]);
    assert_exit(&checked, 0);
    let text = printed(&checked);
    assert!(text.contains("LUNs: 3 (2 remote, not checked: see --connect)"), "{text}");
    let checked = json(&run(&["check", &both, "--json"]));
    assert_eq!(
        checked["devices"],
        serde_json::json!({ "file": 0, "mem": 1, "iscsi": 2, "pool": 0, "virtual": 0 })
    );
    assert!(checked["remote_luns"].is_null());

    let failed = run(&["check", &both, "--connect", "--json"]);
    assert_exit(&failed, 1);
    let failed = json(&failed);
    let problems = failed["problems"].as_array().unwrap();
    assert_eq!(problems.len(), 1, "{failed}");
    assert_eq!(problems[0]["lun"], 2);
    assert!(problems[0]["error"].as_str().unwrap().contains("no such LUN"), "{failed}");

    let one = config(&["mem:1M", &remote]);
    let reached = json(&run(&["check", &one, "--connect", "--json"]));
    assert_eq!(reached["remote_luns"][0]["size_bytes"], 8 << 20, "{reached}");
    let text = printed(&run(&["check", &one, "--connect"]));
    assert!(text.contains("(1 remote, reached)") && text.contains("LUN 1: iscsi://"), "{text}");

    assert_exit(&storage.stop().0, 0);
    assert_exit(&run(&["check", &one]), 0);
    let unavailable = run(&["check", &one, "--connect"]);
    assert_exit(&unavailable, 1);
    assert!(printed(&unavailable).contains("front LUN 1: "), "{}", printed(&unavailable));
}

/// Goal: the key is checked where it stands.
#[test]
fn the_key_is_checked() {
    let scratch = Scratch::new("served-identity-key");
    let check = |keys: &str| {
        let text = format!(
            "[[target]]\nname = \"iqn.2026-11.org.lunarsan.test:front\"\n[[target.lun]]\nid = 0\n\
             {keys}\n"
        );
        run(&["check", &scratch.file("lunar.toml", text.as_bytes())])
    };
    let remote = format!("device = \"iscsi://192.0.2.1/{STORAGE}/0\"\n");
    assert_exit(&check(&format!("{remote}identity = \"device\"")), 0);
    assert_exit(&check(&format!("{remote}identity = \"own\"\nuuid = \"{FIRST}\"")), 0);
    assert_exit(&check("device = \"mem:1M\"\nidentity = \"own\""), 0);
    for (keys, words) in [
        (format!("{remote}identity = \"remote\""), ":6:12: identity: \"remote\""),
        (
            "device = \"mem:1M\"\nidentity = \"device\"".to_owned(),
            ":6:12: mem:1MiB has no identity",
        ),
        (
            format!("{remote}identity = \"device\"\nuuid = \"{FIRST}\""),
            ":6:12: `uuid` is an identity of its own",
        ),
    ] {
        let checked = check(&keys);
        assert_exit(&checked, 1);
        assert!(printed(&checked).contains(words), "{}", printed(&checked));
    }
}
