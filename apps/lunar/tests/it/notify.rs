//! Messages of a server to a service manager (sd_notify).

use crate::common::{Scratch, Server, TEST_TIMEOUT, assert_exit, lunar, run};
use std::net::TcpStream;
use std::os::unix::net::UnixDatagram;
use std::time::{Duration, Instant};

/// A service manager that receives one datagram at a time.
struct Manager {
    socket: UnixDatagram,
    path: std::path::PathBuf,
}

impl Manager {
    fn listen(scratch: &Scratch) -> Self {
        let path = scratch.path().join("notify");
        let socket = UnixDatagram::bind(&path).unwrap();
        socket.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
        Self { socket, path }
    }

    /// Receives the assignments of the next datagram.
    fn receives(&self) -> Vec<String> {
        let mut bytes = [0; 4096];
        let length = self.socket.recv(&mut bytes).expect("a datagram in time");
        let text = std::str::from_utf8(&bytes[..length]).unwrap();
        text.lines().map(str::to_owned).collect()
    }

    /// Receives until this assignment; returns all assignments up to it.
    fn receives_until(&self, assignment: &str) -> Vec<String> {
        let mut all = Vec::new();
        while !all.iter().any(|received| received == assignment) {
            all.extend(self.receives());
        }
        all
    }

    fn start(&self, arguments: &[&str]) -> Server {
        let mut command = lunar(&[&["serve", "--listen", "127.0.0.1:0"], arguments].concat());
        command.env("NOTIFY_SOCKET", &self.path);
        Server::start_command(command)
    }
}

/// Goal: READY=1 means that connections are accepted, and names the address; STOPPING=1 comes at
/// SIGTERM. Method: the first message names the address; a command uses the disk there at once.
#[test]
fn ready_when_connections_are_accepted() {
    let scratch = Scratch::new("notify-ready");
    let manager = Manager::listen(&scratch);
    let server = manager.start(&["mem:1M"]);
    let first = manager.receives();
    assert_eq!(first[0], "READY=1", "{first:?}");
    let address = server.portal().replace("iscsi://", "");
    assert_eq!(first[1], format!("STATUS=targets: 1, LUNs: 1, listening on {address}"));
    TcpStream::connect(&address).expect("it accepts");
    assert_exit(&run(&["info", &server.lun(0)]), 0);
    let stopped = std::thread::spawn(move || server.stop());
    let words = manager.receives_until("STOPPING=1");
    assert_eq!(words, ["STOPPING=1"]);
    assert_exit(&stopped.join().unwrap().0, 0);
}

/// Goal: a manager that waits for the end repeatedly gets a longer timeout and the current step.
/// Method: a connection that stays open delays the shutdown for seconds.
#[test]
fn a_long_shutdown_extends_the_timeout() {
    let scratch = Scratch::new("notify-end");
    let manager = Manager::listen(&scratch);
    let disk = scratch.file("disk.img", &[0; 1 << 20]);
    let server = manager.start(&[&disk]);
    manager.receives_until("READY=1");
    let address = server.portal().replace("iscsi://", "");
    let stays = TcpStream::connect(address).unwrap();
    assert_exit(&run(&["info", &server.lun(0)]), 0);
    let begun = Instant::now();
    let stopped = std::thread::spawn(move || server.stop());
    manager.receives_until("STOPPING=1");
    let mut words = manager.receives_until(&format!("STATUS=syncing {disk}"));
    assert!(begun.elapsed() > Duration::from_secs(2), "the connection did not keep it waiting");
    assert_exit(&stopped.join().unwrap().0, 0);
    words.retain(|word| word == "EXTEND_TIMEOUT_USEC=30000000");
    assert!(words.len() >= 2, "at once, and again: {words:?}");
    drop(stays);
}

/// Goal: a server without a manager, or whose manager is gone, serves normally.
#[test]
fn a_missing_service_manager_is_no_error() {
    let scratch = Scratch::new("notify-nobody");
    let manager = Manager::listen(&scratch);
    drop(std::fs::remove_file(&manager.path));
    let server = manager.start(&["mem:1M"]);
    assert_exit(&run(&["info", &server.lun(0)]), 0);
    assert_exit(&server.stop().0, 0);
}

/// Goal: SIGHUP is reported as a reload, whose end is reported even if the file is invalid.
#[test]
fn a_reload_is_reported() {
    let scratch = Scratch::new("notify-reload");
    let manager = Manager::listen(&scratch);
    let text = "[listen]\nportals = [\"127.0.0.1:0\"]\n[[target]]\n\
        name = \"iqn.2026-11.org.example:a\"\n[[target.lun]]\nid = 0\ndevice = \"mem:1M\"\n";
    let file = scratch.file("lunar.toml", text.as_bytes());
    let mut command = lunar(&["target", "--config", &file, "--api", "none"]);
    command.env("NOTIFY_SOCKET", &manager.path);
    let server = Server::start_command(command);
    manager.receives_until("READY=1");
    for (text, status) in [(text, "applied, changes: 0"), ("x = 1", "not applied")] {
        scratch.file("lunar.toml", text.as_bytes());
        crate::common::signal(server.pid(), "HUP");
        let words = manager.receives();
        assert_eq!(words[0], "RELOADING=1", "{words:?}");
        assert!(words[1].starts_with("MONOTONIC_USEC="), "{words:?}");
        let words = manager.receives();
        assert_eq!(words[0], "READY=1", "{words:?}");
        assert!(words[1].starts_with("STATUS=") && words[1].contains(status), "{words:?}");
    }
    assert_exit(&server.stop().0, 0);
}
