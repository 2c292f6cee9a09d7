//! The limit of open files: a server raises it to the maximum, and derives its number of
//! connections from it.

use crate::common::{Scratch, Server, assert_exit, json, lunar, printed, run};
use std::net::TcpStream;
use std::process::{Command, Stdio};

/// Starts `lunar serve` with an API in a shell that has set the limits of open files.
fn limited(scratch: &Scratch, soft: u64, hard: Option<u64>) -> Server {
    let api = format!("unix:{}", scratch.path().join("api").display());
    let lunar = lunar(&["serve", "--listen", "127.0.0.1:0", "--api", &api, "mem:1M"]);
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

/// The soft limit of a process, from proc_pid_limits(5).
fn soft_limit(server: &Server) -> u64 {
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", server.pid())).unwrap();
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files")).unwrap();
    line.split_whitespace().next().unwrap().parse().unwrap()
}

/// The server's maximum number of connections, and the configured one.
fn connections(scratch: &Scratch) -> [u64; 2] {
    let api = format!("unix:{}", scratch.path().join("api").display());
    let output = run(&["ctl", "status", "--api", &api, "--json"]);
    assert_exit(&output, 0);
    let status = json(&output);
    ["connections_max", "connections_configured"].map(|key| status[key].as_u64().unwrap())
}

/// Goal: a server with a low limit of open files raises it to the maximum, and reports this and the
/// resulting number of connections in the log and in its status.
#[test]
fn a_server_raises_its_limit_of_open_files() {
    let scratch = Scratch::new("open-files");
    let server = limited(&scratch, 64, Some(2000));
    assert_eq!(soft_limit(&server), 2000);
    let [most, configured] = connections(&scratch);
    assert!((1000..2000).contains(&most) && configured == 16_384, "{most} {configured}");
    let (output, _) = server.stop();
    assert_exit(&output, 0);
    let output_text = printed(&output) + &String::from_utf8_lossy(&output.stderr);
    assert!(output_text.contains("limit raised from 64 to 2000"), "{output_text}");
    let words =
        format!("limit of open files is too low for 16384 connections: at most {most} are served");
    assert!(output_text.contains(&words), "{output_text}");

    let server = limited(&scratch, 64, None);
    let taken = soft_limit(&server);
    let [most, _] = connections(&scratch);
    let (output, _) = server.stop();
    assert_exit(&output, 0);
    // If the system grants too few files for that, the server reports it.
    let output_text = printed(&output) + &String::from_utf8_lossy(&output.stderr);
    assert!(
        most == 16_384 || output_text.contains("limit of open files is too low"),
        "{taken}: {output_text}"
    );
}

/// Goal: more idle connections than open files do not prevent logins. Fault: 1,100 connections
/// locked everyone out where 1,024 files were granted. Method: also with so few files that
/// accepting fails.
#[test]
fn idle_connections_do_not_take_all_files() {
    for (files, idle) in [(64, 200), (512, 600)] {
        let scratch = Scratch::new(&format!("idle-{files}"));
        let server = limited(&scratch, files, Some(files));
        let mut held = Vec::new();
        for _ in 0..idle {
            held.push(TcpStream::connect(server.portal().trim_start_matches("iscsi://")).unwrap());
        }
        assert_exit(&run(&["info", &server.lun(0)]), 0);
        let [most, _] = connections(&scratch);
        assert!(most < files, "{most}");
        drop(held);
        assert_exit(&server.stop().0, 0);
    }
}
