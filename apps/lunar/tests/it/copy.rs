//! `lunar copy`, between files and LUNs of servers.

use crate::common::{
    ELSEWHERE, Scratch, Server, TEST_TIMEOUT, assert_exit, finish, json, lunar, pattern, printed,
    run,
};
use rustix::pty::OpenptFlags;
use rustix::termios::Winsize;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

const SIZE: usize = 24 << 20;

/// Creates a file of 24 MiB with data in a few places, some of it zeroes, and holes between.
fn source(scratch: &Scratch) -> (String, Vec<u8>) {
    let path = scratch.path().join("source.img");
    let file = std::fs::File::create_new(&path).unwrap();
    file.set_len(SIZE as u64).unwrap();
    let mut all = vec![0; SIZE];
    for (at, length) in [(0, 5000), (1 << 20, 3 << 20), (9 << 20, 700), (SIZE - 4096, 4096)] {
        all[at..at + length].copy_from_slice(&pattern(at as u64 + 1, length));
        file.write_all_at(&all[at..at + length], at as u64).unwrap();
    }
    file.write_all_at(&vec![0; 2 << 20], 12 << 20).unwrap();
    (path.to_str().unwrap().to_owned(), all)
}

fn copy(arguments: &[&str]) -> serde_json::Value {
    let output = run(&[&["copy", "--json", "--verify"], arguments].concat());
    assert_exit(&output, 0);
    json(&output)
}

fn allocated_bytes(path: &Path) -> u64 {
    path.metadata().unwrap().blocks() * 512
}

/// Waits until `done` returns true.
#[track_caller]
fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !done() {
        assert!(begin.elapsed() < TEST_TIMEOUT, "{what}: not within {TEST_TIMEOUT:?}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Goal: a disk is copied unchanged through several stages: file, LUN with large blocks, larger LUN
/// full of other data, file. Holes stay holes, and zeroes become holes.
#[test]
fn a_disk_copied_through_several_stages_is_unchanged() {
    let scratch = Scratch::new("copy");
    let (path, all) = source(&scratch);
    let image = scratch.path().join("served.img");
    let size = SIZE.to_string();
    let large = Server::start(&[image.to_str().unwrap(), "--size", &size, "--block-size", "4096"]);
    let counts = copy(&[&path, &large.lun(0)]);
    assert_eq!(counts["copied_bytes"], SIZE);
    assert_eq!(counts["verified"], true);
    assert!(counts["zero_bytes"].as_u64().unwrap() > 16 << 20, "{counts}");
    assert!(allocated_bytes(&image) < 8 << 20, "{}", allocated_bytes(&image));

    let full = Server::start(&["mem:32M"]);
    let filled = crate::common::run_with_input(&["write", &full.lun(0)], &pattern(99, 32 << 20));
    assert_exit(&filled, 0);
    copy(&[&large.lun(0), &full.lun(0), "--connections", "3", "--depth", "32"]);
    let there = run(&["read", &full.lun(0)]);
    assert_exit(&there, 0);
    assert!(there.stdout[..SIZE] == all, "the copied data");
    assert!(there.stdout[SIZE..] == pattern(99, 32 << 20)[SIZE..], "the data behind the copy");

    let back = scratch.path().join("back.img");
    let output = run(&["copy", &full.lun(0), back.to_str().unwrap()]);
    assert_exit(&output, 0);
    let text = printed(&output);
    assert!(text.starts_with("copied 32 MiB: "), "{text}");
    assert!(std::fs::read(&back).unwrap()[..SIZE] == all);
    for server in [large, full] {
        assert_exit(&server.stop().0, 0);
    }
}

/// Goal: invalid arguments are refused before anything is written.
#[test]
fn nonsense_is_refused() {
    let scratch = Scratch::new("copy-refused");
    let (path, _) = source(&scratch);
    let small = Server::start(&["mem:8M", "mem:8M"]);
    let odd = scratch.file("odd.img", &vec![1; 4096 + 512]);
    let blocks = Server::start(&["mem:8M", "--block-size", "4096"]);
    for (from, to, why) in [
        (path.as_str(), small.lun(0).as_str(), "the source has 24 MiB"),
        (&small.lun(1), &small.lun(1), "are the same disk"),
        (&odd, &blocks.lun(0), "is not a multiple of the block size"),
        (&path, &path, "source.img"),
        ("nowhere.img", &small.lun(0), "nowhere.img"),
    ] {
        let output = run(&["copy", from, to]);
        assert_ne!(output.status.code(), Some(0), "{from} to {to}");
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(stderr.contains(why), "{from} to {to}: {stderr}");
    }
    assert!(!Path::new("nowhere.img").exists());
}

/// Goal: a copy continues after the server of its destination is killed and restarted, and data
/// lost with the server's volatile cache is copied again. Method: a limit slows the copy down, with
/// at least six seconds left after the event that the test waits for before the kill.
#[test]
fn a_copy_outlives_its_server() {
    let scratch = Scratch::new("copy-restart");
    let (path, mut all) = source(&scratch);
    let (from, more) = (15 << 20, pattern(7, 8 << 20));
    all[from..from + more.len()].copy_from_slice(&more);
    let source = File::options().write(true).open(&path).unwrap();
    source.write_all_at(&more, from as u64).unwrap();
    let served = scratch.path().join("served.img");
    let image = served.to_str().unwrap();
    let serve = |listen: &str, limit: &[&str]| {
        let size = SIZE.to_string();
        let options = ["--size", &size, "--listen", listen];
        let name = ["--name", "iqn.2026-11.org.lunarsan.test:copy", "--cache", "write-back"];
        Server::start_command(lunar(&[&["serve", image], &options[..], &name, limit].concat()))
    };
    let server = serve(ELSEWHERE, &["--limit-bandwidth", "10Mbit"]);
    let listen = server.portal().strip_prefix("iscsi://").unwrap().to_owned();
    let command = lunar(&["copy", "--json", "--verify", &path, &server.lun(0)]);
    let copying = std::thread::spawn(move || finish(command, b""));
    wait_until("there is something to lose", || allocated_bytes(&served) >= 3 << 20);
    assert!(!copying.is_finished(), "and something to copy");
    server.stop_by("KILL");
    let server = serve(&listen, &[]);
    let output = copying.join().unwrap();
    assert_exit(&output, 0);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(stderr.contains("data not yet flushed may be lost: copying it again"), "{stderr}");
    assert_eq!(json(&output)["copied_bytes"], SIZE);
    // The rate is that of the copy; the time of the comparison is reported separately.
    assert!(json(&output)["verify_seconds"].as_f64().unwrap() > 0.0);
    assert_exit(&server.stop().0, 0);
    assert!(std::fs::read(image).unwrap() == all);
}

/// Collects the output to a terminal as it arrives: an unread terminal fills up, and then its
/// writer blocks.
fn read_terminal(mut ours: File) -> (Arc<Mutex<Vec<u8>>>, std::thread::JoinHandle<()>) {
    let shown = Arc::<Mutex<Vec<u8>>>::default();
    let all = Arc::clone(&shown);
    let reader = std::thread::spawn(move || {
        let mut piece = [0; 4096];
        // After its last user is gone, a terminal returns an error instead of an end.
        while let Ok(bytes @ 1..) = ours.read(&mut piece) {
            all.lock().unwrap().extend_from_slice(&piece[..bytes]);
        }
    });
    (shown, reader)
}

/// Goal: on a terminal, a log line is printed on its own line, not behind the bar, and an
/// interrupted copy removes its bar. Method: kill the server during a copy.
#[test]
fn a_terminal_stays_readable() {
    let scratch = Scratch::new("copy-terminal");
    let path = scratch.file("noise.img", &pattern(1, SIZE));
    let server = Server::start(&["mem:24M", "--limit-bandwidth", "10Mbit"]);
    let ours = rustix::pty::openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    rustix::pty::grantpt(&ours).unwrap();
    rustix::pty::unlockpt(&ours).unwrap();
    let name = rustix::pty::ptsname(&ours, Vec::new()).unwrap().into_string().unwrap();
    let size = Winsize { ws_row: 24, ws_col: 200, ws_xpixel: 0, ws_ypixel: 0 };
    rustix::termios::tcsetwinsize(&ours, size).unwrap();
    let theirs = File::options().read(true).write(true).open(name).unwrap();
    let mut command = lunar(&["copy", &path, &server.lun(0)]);
    let mut child = command.env("TERM", "xterm").stderr(theirs).spawn().unwrap();
    drop(command);
    let (shown, reader) = read_terminal(File::from(ours));
    let shows = |words: &str| String::from_utf8_lossy(&shown.lock().unwrap()).contains(words);
    wait_until("a bar", || shows("copying "));
    server.stop_by("KILL");
    wait_until("something is logged", || shows("WARN"));
    crate::common::signal(child.id(), "INT");
    assert_eq!(child.wait().unwrap().code(), Some(1));
    reader.join().unwrap();
    let text = String::from_utf8_lossy(&shown.lock().unwrap()).into_owned();
    let at = text.find("WARN").unwrap();
    let line = text[..at].rsplit(['\r', '\n']).next().unwrap_or_default();
    assert!(!line.contains("copying "), "behind the bar: {text:?}");
    let last = text.rsplit("\u{1b}[2K").next().unwrap_or_default();
    assert!(last.trim_start().starts_with("lunar: interrupted"), "{text:?}");
}
