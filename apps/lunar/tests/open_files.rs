//! A server takes the open files that its connections want, and what the system grants it.
#![allow(clippy::unwrap_used, clippy::expect_used)] // a test may unwrap

mod common;

use common::{Server, assert_exit, lunar, said};
use std::process::{Command, Stdio};

/// `lunar serve` in a shell that has set the limits of open files.
fn limited(soft: u64, hard: Option<u64>) -> Server {
    let lunar = lunar(&["serve", "--listen", "127.0.0.1:0", "--api", "none", "mem:1M"]);
    let hard = hard.map_or_else(String::new, |hard| format!("ulimit -Hn {hard};"));
    let mut shell = Command::new("sh");
    shell.args(["-c", &format!("ulimit -Sn {soft}; {hard} exec \"$@\""), "sh"]);
    shell.arg(lunar.get_program()).args(lunar.get_args());
    for (name, value) in lunar.get_envs() {
        match value {
            Some(value) => shell.env(name, value),
            None => shell.env_remove(name),
        };
    }
    shell.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    Server::start_command(shell)
}

/// The soft limit that a process has, as proc_pid_limits(5) tells it.
fn soft_limit(server: &Server) -> u64 {
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", server.pid())).unwrap();
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files")).unwrap();
    line.split_whitespace().next().unwrap().parse().unwrap()
}

/// Goal: a server that was given few open files takes more, as many as its connections may want or
/// as there are, and says when those are too few.
#[test]
fn a_server_takes_the_files_it_wants() {
    let server = limited(64, Some(2000));
    assert_eq!(soft_limit(&server), 2000);
    let (output, _) = server.stop();
    assert_exit(&output, 0);
    let told = said(&output) + &String::from_utf8_lossy(&output.stderr);
    assert!(told.contains("grants 2000 open files, and 16384 connections"), "{told}");

    let server = limited(64, None);
    let taken = soft_limit(&server);
    let (output, _) = server.stop();
    assert_exit(&output, 0);
    // Where the system grants fewer than that, it says so.
    let told = said(&output) + &String::from_utf8_lossy(&output.stderr);
    assert!(taken > 16384 || told.contains("open files"), "{taken}: {told}");
}
