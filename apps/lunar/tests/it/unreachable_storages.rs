//! Servers of remote LUNs whose storages are unreachable at the start.

use crate::common::{
    ELSEWHERE, Scratch, Server, TEST_TIMEOUT, assert_exit, get, json, lunar, pattern, printed, run,
    run_with_input,
};
use bytes::Bytes;
use lunar_initiator::SessionOptions;
use lunar_initiator::blocking::Connector;
use serde_json::Value;
use std::net::TcpListener;
use std::time::{Duration, Instant};

const STORAGE: &str = "iqn.2026-11.org.lunarsan.test:storage";
/// Time limit of a login, as the initiator's documentation states.
const LOGIN_TIME: Duration = Duration::from_secs(15);

/// An address at which nothing listens.
fn free_address() -> String {
    TcpListener::bind(ELSEWHERE).unwrap().local_addr().unwrap().to_string()
}

fn url(address: &str) -> String {
    format!("iscsi://{address}/{STORAGE}/0")
}

fn storage(scratch: &Scratch, address: &str) -> Server {
    let file = scratch.path().join("disk.img");
    let file = file.to_str().unwrap();
    Server::start_command(lunar(&[
        "serve", file, "--size", "8M", "--name", STORAGE, "--listen", address,
    ]))
}

/// Executes TEST UNIT READY; returns additional sense code and qualifier of a unit attention.
fn unit_attention(disk: &lunar_initiator::blocking::BlockingDisk) -> Option<[u8; 2]> {
    let result = disk.execute([0; 6], Bytes::new(), 0).unwrap().result;
    let sense = result.sense;
    (result.status != 0 && sense[2] & 0x0f == 6).then(|| [sense[12], sense[13]])
}

fn status(api: &str) -> Value {
    json(&run(&["ctl", "--api", api, "status", "--json"]))
}

/// The number of LUNs that wait, in the metrics.
fn waiting_luns(metrics: &str) -> String {
    let page = get(metrics);
    let mut lines = page.lines().filter(|line| line.starts_with("lunar_waiting_luns"));
    lines.next().unwrap().rsplit(' ').next().unwrap().to_owned()
}

fn until(what: &str, mut is_reached: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !is_reached() {
        assert!(begin.elapsed() < TEST_TIMEOUT, "{what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Fault: a server did not start while the storage of one of its LUNs was unreachable.
///
/// Goal: the server serves its other LUNs, and shows which storages it waits for. When the storage
/// starts, the LUN appears with its data, and hosts get REPORTED LUNS DATA HAS CHANGED. Each event
/// is logged once.
#[test]
fn a_lun_appears_when_its_storage_starts() {
    let scratch = Scratch::new("unreachable");
    let address = free_address();
    let data = pattern(1, 64 << 10);
    let before = storage(&scratch, &address);
    assert_exit(&run_with_input(&["write", &before.lun(0)], &data), 0);
    assert_exit(&before.stop().0, 0);

    let api = format!("unix:{}", scratch.path().join("api.sock").display());
    let config = format!(
        "[listen]\nportals = [\"127.0.0.1:0\"]\n[api]\nlisten = \"{api}\"\n\
         [metrics]\nlisten = \"127.0.0.1:0\"\n\
         [[target]]\nname = \"iqn.2026-11.org.lunarsan.test:front\"\n\
         [[target.lun]]\nid = 0\ndevice = \"{}\"\n[[target.lun]]\nid = 1\ndevice = \"mem:4M\"\n",
        url(&address)
    );
    let config = scratch.file("lunar.toml", config.as_bytes());
    let front = Server::start_command(lunar(&["target", "--config", &config]));
    assert_eq!(front.report["waiting"][0]["lun"], 0);
    assert_exit(&run_with_input(&["write", &front.lun(1)], &data), 0);
    assert_eq!(run(&["read", &front.lun(1), "--length", "64K"]).stdout, data);
    let waits = "waits for its storage, and is served when it returns";
    let shown = run(&["ctl", "--api", &api, "status"]);
    assert!(printed(&shown).contains("waits for its storage since"), "{}", printed(&shown));
    let metrics = front.report["metrics"].as_str().unwrap().to_owned();
    assert_eq!(waiting_luns(&metrics), "1");
    let connector = Connector::start().unwrap();
    let options = SessionOptions::new("iqn.2026-11.org.lunarsan.test:host");
    let host = connector.open(&front.lun(1).parse().unwrap(), &options).unwrap();
    until("the first unit attentions", || unit_attention(&host).is_none());
    until("an attempt", || status(&api)["waiting"][0]["attempts"].as_u64().unwrap() > 2);

    let storage = storage(&scratch, &address);
    until("REPORTED LUNS DATA HAS CHANGED", || unit_attention(&host) == Some([0x3f, 0x0e]));
    assert_eq!(run(&["read", &front.lun(0), "--length", "64K"]).stdout, data);
    until("a good health", || status(&api)["health"] == "good");
    assert_eq!(status(&api)["waiting"], serde_json::json!([]));
    assert_eq!(waiting_luns(&metrics), "0");
    front.until_said("its storage has returned");
    host.close().unwrap();
    let stopped = front.stop().0;
    assert_exit(&stopped, 0);
    for once in [waits, "its storage has returned"] {
        assert_eq!(printed(&stopped).matches(once).count(), 1, "{once}: {}", printed(&stopped));
    }
    assert_exit(&storage.stop().0, 0);
}

/// Goal: without a configuration, an unreachable storage is an error, except with `--wait`. A
/// server that waits stops at once, also during an attempt.
#[test]
fn serve_waits_if_asked_to() {
    let listener = TcpListener::bind(ELSEWHERE).unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let refused = run(&["serve", &url(&free_address()), "--listen", "127.0.0.1:0"]);
    assert_exit(&refused, 1);
    assert!(printed(&refused).contains("cannot connect"), "{}", printed(&refused));

    // The storage accepts connections, and answers nothing.
    let front = Server::start(&[&url(&address), "mem:1M", "--wait"]);
    assert_eq!(front.report["waiting"][0]["lun"], 0);
    let first = listener.accept().unwrap();
    let second = listener.accept().unwrap();
    let (stopped, took) = front.stop();
    assert_exit(&stopped, 0);
    assert!(took < LOGIN_TIME, "the attempt is not waited for: {took:?}");
    drop((first, second));
}
