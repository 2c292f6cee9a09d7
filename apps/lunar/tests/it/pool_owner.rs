//! Pools over LUNs of another server: one host at a time has them open.

use crate::common::{
    ELSEWHERE, Scratch, Server, TEST_TIMEOUT, assert_exit, finish, json, lunar, pattern, printed,
    run, signal,
};
use serde_json::Value;
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::process::Output;
use std::time::{Duration, Instant};

const STORAGE: &str = "iqn.2026-11.org.lunarsan.test:storage";
const FRONT: &str = "iqn.2026-11.org.lunarsan.test:front";

/// A server of two LUNs, and hosts that serve the stripe on them.
struct OwnerRig {
    scratch: Scratch,
    address: String,
    _storage: Server,
}

/// A relay before the servers of LUNs. It makes them a target that does not know persistent
/// reservations: their operation codes are replaced by one that no target knows.
fn without_reservations(portal: String) -> String {
    let listener = TcpListener::bind(ELSEWHERE).unwrap();
    let address = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        for near in listener.incoming().flatten() {
            let Ok(far) = TcpStream::connect(&portal) else { continue };
            let (mut near_in, mut far_in) = (near.try_clone().unwrap(), far.try_clone().unwrap());
            std::thread::spawn(move || {
                let _ = carry_requests(&mut near_in, &far);
                let _ = far.shutdown(Shutdown::Both);
            });
            std::thread::spawn(move || {
                let _ = io::copy(&mut far_in, &mut &near);
                let _ = near.shutdown(Shutdown::Both);
            });
        }
    });
    address
}

fn carry_requests(from: &mut TcpStream, mut to: &TcpStream) -> io::Result<()> {
    const HEADER_BYTES: usize = 48;
    const SCSI_COMMAND: u8 = 0x01;
    const PERSISTENT_RESERVE: std::ops::RangeInclusive<u8> = 0x5e..=0x5f;
    const UNKNOWN: u8 = 0xc1;
    loop {
        let mut pdu = vec![0; HEADER_BYTES];
        from.read_exact(&mut pdu)?;
        let data_bytes = u32::from_be_bytes([0, pdu[5], pdu[6], pdu[7]]) as usize;
        let rest = usize::from(pdu[4]) * 4 + data_bytes.next_multiple_of(4);
        if pdu[0] & 0x3f == SCSI_COMMAND && PERSISTENT_RESERVE.contains(&pdu[32]) {
            pdu[32] = UNKNOWN;
        }
        pdu.resize(HEADER_BYTES + rest, 0);
        from.read_exact(&mut pdu[HEADER_BYTES..])?;
        to.write_all(&pdu)?;
    }
}

/// A host of the pool.
struct Host {
    config: String,
    api: String,
}

impl OwnerRig {
    fn new(name: &str) -> Self {
        Self::behind(name, |portal| portal)
    }

    /// Creates a rig whose hosts reach the server of LUNs at another address.
    fn behind(name: &str, address_of: impl FnOnce(String) -> String) -> Self {
        let scratch = Scratch::new(name);
        let address = TcpListener::bind(ELSEWHERE).unwrap().local_addr().unwrap().to_string();
        let storage = Server::start_command(lunar(&[
            "serve", "mem:8M", "mem:8M", "--name", STORAGE, "--listen", &address,
        ]));
        let rig = Self { scratch, address: address_of(address), _storage: storage };
        let [a, b] = [rig.lun(0), rig.lun(1)];
        assert_exit(&run(&["pool", "create", "p", "--kind", "stripe", &a, &b]), 0);
        rig
    }

    fn lun(&self, lun: u16) -> String {
        format!("iscsi://{}/{STORAGE}/{lun}", self.address)
    }

    fn host(&self, name: &str) -> Host {
        let within = |file: String| self.scratch.path().join(file).display().to_string();
        let api = format!("unix:{}", within(format!("{name}.sock")));
        let text = format!(
            "state = {:?}\n[listen]\nportals = [\"127.0.0.1:0\"]\n[api]\nlisten = \"{api}\"\n\
             [[pool]]\nname = \"p\"\nlease_seconds = 6\nmembers = [{:?}, {:?}]\n\
             [[target]]\nname = \"{FRONT}\"\n[[target.lun]]\nid = 0\ndevice = \"pool:p\"\n",
            within(format!("{name}.state")),
            self.lun(0),
            self.lun(1)
        );
        let config = self.scratch.file(&format!("{name}.toml"), text.as_bytes());
        Host { config, api }
    }
}

impl Host {
    fn start(&self, more: &[&str]) -> Server {
        Server::start_command(lunar(&[&["target", "--config", &self.config], more].concat()))
    }

    fn status(&self) -> Value {
        json(&finish(lunar(&["ctl", "status", "--json", "--api", &self.api]), b""))
    }

    fn pool_health(&self) -> String {
        let status = finish(lunar(&["pool", "status", "--json", "--api", &self.api]), b"");
        json(&status)["pools"][0]["health"].as_str().unwrap_or("not open").to_owned()
    }

    fn until_pool_is(&self, health: &str) {
        let begin = Instant::now();
        while self.pool_health() != health {
            assert!(begin.elapsed() < TEST_TIMEOUT, "{:#}", self.status());
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

#[track_caller]
fn write(front: &Server, data: &[u8]) -> Output {
    finish(lunar(&["write", &front.lun(0)]), data)
}

fn read(front: &Server, bytes: usize) -> Vec<u8> {
    run(&["read", &front.lun(0), "--length", &bytes.to_string()]).stdout
}

fn kill(server: Server) {
    signal(server.pid(), "KILL");
    drop(server.end());
}

/// Goal: a server that was killed has its pool again without a question, and the data is there.
#[test]
fn a_killed_server_gets_its_pool_back() {
    let rig = OwnerRig::new("pool-owner-killed");
    let host = rig.host("a");
    let front = host.start(&[]);
    let data = pattern(7, 1 << 20);
    assert_exit(&write(&front, &data), 0);
    kill(front);
    let front = host.start(&[]);
    assert_eq!(host.pool_health(), "healthy");
    assert!(read(&front, data.len()) == data);
    assert_exit(&front.stop().0, 0);
}

/// Goal: a second host waits while another one has the pool, names it, and serves the pool once it
/// is released.
#[test]
fn a_pool_that_another_host_has_is_waited_for() {
    let rig = OwnerRig::new("pool-owner-waits");
    let (first, second) = (rig.host("a"), rig.host("b"));
    let front = first.start(&[]);
    let data = pattern(8, 1 << 20);
    assert_exit(&write(&front, &data), 0);
    let standby = second.start(&[]);
    let status = second.status();
    let waiting = status["waiting"][0]["error"].as_str().unwrap().to_owned();
    assert!(waiting.contains("owned by"), "{status:#}");
    // Neither may a command of the first host have it beside the server.
    let other = finish(lunar(&["write", "pool:p", "--config", &first.config]), &data);
    assert_exit(&other, 1);
    let said = String::from_utf8_lossy(&other.stderr).into_owned();
    assert!(said.contains("open in another process on this machine"), "{said}");
    assert_exit(&write(&front, &data), 0);
    assert_exit(&front.stop().0, 0);
    second.until_pool_is("healthy");
    assert!(read(&standby, data.len()) == data);
    assert_exit(&standby.stop().0, 0);
}

/// Goal: after a take-over the former owner cannot write, its hosts are told that somebody has to
/// intervene, and its status says who has to do what.
#[test]
fn a_take_over_fences_the_former_server() {
    let rig = OwnerRig::new("pool-owner-taken");
    let (first, second) = (rig.host("a"), rig.host("b"));
    let former = first.start(&[]);
    assert_exit(&write(&former, &pattern(9, 1 << 20)), 0);
    let front = second.start(&["--take-over", "p"]);
    let data = pattern(10, 1 << 20);
    assert_exit(&write(&front, &data), 0);
    let refused = write(&former, &pattern(11, 1 << 20));
    assert_ne!(refused.status.code(), Some(0));
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(said.contains("04h/03h") || said.contains("manual intervention"), "{said}");
    assert_eq!(first.pool_health(), "fenced");
    let status = printed(&finish(lunar(&["pool", "status", "--api", &first.api]), b""));
    assert!(status.contains("--take-over p"), "{status}");
    assert!(read(&front, data.len()) == data);
    assert_exit(&front.stop().0, 0);
    drop(former.stop());
}

/// Goal: only pools of the configuration can be taken over.
#[test]
fn a_take_over_names_a_pool_of_the_configuration() {
    let rig = OwnerRig::new("pool-owner-unknown");
    let host = rig.host("a");
    let refused = run(&["target", "--config", &host.config, "--take-over", "q"]);
    assert_exit(&refused, 2);
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(said.contains("has no [[pool]] q"), "{said}");
}

/// Goal: a target without persistent reservations is shared by leases: a second host names the
/// owner and waits, a killed server gets its pool back, and a take-over fences the former owner.
#[test]
fn a_target_without_reservations_gets_leases() {
    let rig = OwnerRig::behind("pool-owner-leases", without_reservations);
    let (first, second) = (rig.host("a"), rig.host("b"));
    let former = first.start(&[]);
    assert_exit(&write(&former, &pattern(12, 1 << 20)), 0);
    kill(former);
    let former = first.start(&[]);
    let data = pattern(13, 1 << 20);
    assert_exit(&write(&former, &data), 0);
    let standby = second.start(&[]);
    let waiting = second.status()["waiting"][0]["error"].as_str().unwrap().to_owned();
    assert!(waiting.contains("owned by iqn."), "{waiting}");
    drop(standby.stop());
    let front = second.start(&["--take-over", "p"]);
    assert!(read(&front, data.len()) == data);
    assert_eq!(first.pool_health(), "fenced");
    assert_ne!(write(&former, &pattern(14, 1 << 20)).status.code(), Some(0));
    drop(former.stop());
    assert!(read(&front, data.len()) == data);
    assert_exit(&front.stop().0, 0);
    let front = first.start(&[]);
    assert!(read(&front, data.len()) == data);
    assert_exit(&front.stop().0, 0);
}
