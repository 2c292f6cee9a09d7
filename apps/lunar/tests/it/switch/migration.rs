//! Moves of extents to another storage while hosts write.

mod relayed;

use super::{
    MIB, Rig, RigOptions, VIRTUAL, block_on, extent, extents, lun, read, try_read, try_write, write,
};
use crate::common::{assert_exit, json, pattern, printed, run};
use lunar_initiator::blocking::Connector;
use lunar_initiator::{RemoteDisk, SessionOptions};
use serde_json::Value;
use std::collections::BTreeMap;
use std::process::Output;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::Duration;

/// Number of bytes that a host writes at once.
const PIECE: usize = 8 << 10;
/// Number of pieces of the tested LUN, which consists of two extents of 4 MiB.
const PIECES: u64 = 8 * MIB / PIECE as u64;

fn two_extents() -> String {
    lun(0, &extents(&[extent("a", 1, 4), extent("a", 8, 4)]))
}

/// Runs `lunar switch migrate` for LUN 0.
fn migrate(rig: &Rig, arguments: &[&str]) -> Output {
    let api = rig.api();
    run(&[&["switch", "migrate", VIRTUAL, "0", "--api", &api], arguments].concat())
}

fn refusal(output: &Output) -> String {
    assert_exit(output, 1);
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// A host that writes random pieces and reads them back, with the contents that each piece may
/// have.
#[derive(Debug, Default)]
struct Writer {
    random: u64,
    /// Number of hosts that write at the same time; 0 counts as 1.
    hosts: u64,
    /// Number of this host, from 0: the host writes the pieces whose number has this remainder
    /// modulo `hosts`.
    host: u64,
    /// Seeds of the patterns that a piece may have: that of the last acknowledged write, and those
    /// of later writes whose outcome is unknown.
    pieces: BTreeMap<u64, Vec<u64>>,
}

impl Writer {
    fn next(&mut self) -> u64 {
        self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        self.random >> 33
    }

    /// Returns the numbers of the pieces that this host writes.
    fn own_pieces(&self) -> std::iter::StepBy<std::ops::Range<u64>> {
        (self.host..PIECES).step_by(self.hosts.max(1) as usize)
    }

    /// Writes until `stop` or a failure; reads a piece from time to time.
    async fn run(&mut self, disk: &RemoteDisk, stop: &AtomicBool, written: &AtomicU64) {
        while !stop.load(SeqCst) {
            let hosts = self.hosts.max(1);
            let piece = self.next() % (PIECES / hosts) * hosts + self.host;
            let seed = self.next() | 1;
            let seeds = self.pieces.entry(piece).or_insert_with(|| vec![0]);
            seeds.push(seed);
            let offset = piece * PIECE as u64;
            if try_write(disk, offset, &pattern(seed, PIECE)).await.is_err() {
                return;
            }
            self.pieces.insert(piece, vec![seed]);
            written.fetch_add(1, SeqCst);
            if seed % 8 == 1 && !self.check(disk, piece).await {
                return;
            }
        }
    }

    /// Checks a piece; false if it cannot be read.
    async fn check(&mut self, disk: &RemoteDisk, piece: u64) -> bool {
        let Ok(data) = try_read(disk, piece * PIECE as u64, PIECE).await else { return false };
        let seeds = self.pieces.get(&piece).cloned().unwrap_or_else(|| vec![0]);
        let content = |seed: u64| if seed == 0 { vec![0; PIECE] } else { pattern(seed, PIECE) };
        let found = seeds.iter().find(|seed| content(**seed) == data);
        let found = found.unwrap_or_else(|| panic!("piece {piece} has lost its data"));
        self.pieces.insert(piece, vec![*found]);
        true
    }

    async fn check_all(&mut self, disk: &RemoteDisk) {
        for piece in self.own_pieces() {
            assert!(self.check(disk, piece).await);
        }
    }
}

/// Opens LUN 0 as a host that does not wait for a switch that was killed.
fn host_without_reconnection(rig: &Rig, connector: &Connector) -> Arc<RemoteDisk> {
    let name = "iqn.2026-11.org.lunarsan.test:impatient";
    let options = SessionOptions { recovery_seconds: 0, ..SessionOptions::new(name) };
    let disk = connector.open(&rig.switch.lun(0).parse().unwrap(), &options).unwrap();
    Arc::clone(disk.remote())
}

fn status(rig: &Rig) -> Value {
    json(&run(&["ctl", "status", "--json", "--api", &rig.api()]))
}

/// Goal: an extent moves to another storage while a host writes: the host sees nothing but its own
/// data, the destination has the data, and the blocks of the source can be overwritten. Afterwards
/// `check` and `apply` refuse a configuration that names the source and print the line to write; a
/// configuration with this line is accepted, and a restart with the outdated configuration serves
/// the destination.
#[test]
fn an_extent_moves_while_a_host_writes() {
    let luns = two_extents();
    let options = RigOptions { luns: &luns, ..RigOptions::default() };
    let mut rig = Rig::new("switch-migrate", options);
    let connector = Connector::start().unwrap();
    let disk = rig.open(&connector, 1, 0);
    let (stop, written, mut writer) =
        (AtomicBool::new(false), AtomicU64::new(0), Writer::default());
    std::thread::scope(|scope| {
        let host = scope.spawn(|| {
            block_on(writer.run(&disk, &stop, &written));
            writer
        });
        while written.load(SeqCst) < 20 {
            std::thread::yield_now();
        }
        let moved = migrate(&rig, &["--extent", "0", "--to", "b:9MiB", "--wait"]);
        let after = written.load(SeqCst);
        while written.load(SeqCst) < after + 20 && !host.is_finished() {
            std::thread::yield_now();
        }
        stop.store(true, SeqCst);
        let mut writer = host.join().unwrap();
        let text = printed(&moved);
        assert!(text.contains("from a:1MiB+4MiB to b:9MiB+4MiB: moved"), "{text}");
        let line = format!("extents = [{}, {}]", extent("b", 9, 4), extent("a", 8, 4));
        assert!(text.contains(&line), "{text}");
        // The source is not in use any more.
        let garbage = rig.scratch.file("garbage", &vec![0xee; 4 << 20]);
        let input = std::fs::read(garbage).unwrap();
        let arguments = ["write", &rig.storage_url(0), "--offset", "1M"];
        assert_exit(&crate::common::run_with_input(&arguments, &input), 0);
        block_on(writer.check_all(&disk));
        let first = block_on(read(&disk, 0, 4 << 20));
        let arguments = ["read", &rig.storage_url(1), "--offset", "9M", "--length", "4M"];
        assert!(run(&arguments).stdout == first, "the storage has other data");
    });

    let file = rig.scratch.path().join("switch.toml");
    let file = file.to_str().unwrap();
    for arguments in [&["check", file][..], &["apply", file, "--api", &rig.api()]] {
        let refused = refusal(&run(arguments));
        assert!(refused.contains("a:1MiB+4MiB was moved"), "{refused}");
        assert!(
            refused.contains("write extents = [{ storage = \"b\", start = \"9MiB\""),
            "{refused}"
        );
    }
    assert_eq!(status(&rig)["migrations"][0]["state"], "moved");
    assert!(!status(&rig)["drift"].as_array().unwrap().is_empty());
    let first = block_on(read(&disk, 0, PIECE));
    drop(disk);
    rig.restart_switch();
    let disk = rig.open(&connector, 1, 0);
    assert_eq!(block_on(read(&disk, 0, PIECE)), first);
    assert!(!status(&rig)["drift"].as_array().unwrap().is_empty(), "the file is outdated");

    // Another LUN may use the blocks of the source once the file names the destination.
    let luns = lun(0, &extents(&[extent("b", 9, 4), extent("a", 8, 4)]))
        + &lun(1, &extents(&[extent("a", 1, 4)]));
    let file = rig.configuration(RigOptions { luns: &luns, ..RigOptions::default() });
    assert_exit(&run(&["check", &file]), 0);
    assert_exit(&run(&["apply", &file, "--api", &rig.api()]), 0);
    assert!(status(&rig)["drift"].as_array().unwrap().is_empty());
    block_on(write(&disk, 0, &first));
}

/// Goal: a switch that is killed repeatedly while an extent moves loses no acknowledged write of a
/// host; each start begins the move again, until a move completes.
#[test]
fn a_killed_switch_begins_the_move_again() {
    let luns = two_extents();
    let options = RigOptions { luns: &luns, ..RigOptions::default() };
    let mut rig = Rig::new("switch-migrate-kill", options);
    let connector = Connector::start().unwrap();
    let mut writer = Writer { random: u64::from(std::process::id()), ..Writer::default() };
    println!("seed {}", writer.random);
    let begun = migrate(&rig, &["--extent", "1", "--to", "b:20MiB", "--rate", "80Mbit", "--json"]);
    assert_eq!(json(&begun)["size_bytes"], 4 * MIB);
    let mut rounds = 0;
    loop {
        let disk = host_without_reconnection(&rig, &connector);
        let (stop, written) = (AtomicBool::new(false), AtomicU64::new(0));
        let pause = Duration::from_millis(writer.next() % 700);
        let is_last = rounds == 6;
        let wait = || migrate(&rig, &["--wait", "--json"]);
        let ended = std::thread::scope(|scope| {
            let host = scope.spawn(|| block_on(writer.run(&disk, &stop, &written)));
            let ended = match is_last {
                true => Some(wait()),
                false => {
                    std::thread::sleep(pause); // the moment of the kill is random
                    crate::common::signal(rig.switch.pid(), "KILL");
                    None
                }
            };
            stop.store(true, SeqCst);
            host.join().unwrap();
            ended
        });
        drop(disk);
        if let Some(ended) = ended {
            assert_eq!(json(&ended)["state"], "moved");
            break;
        }
        rig.restart_killed_switch();
        block_on(writer.check_all(&rig.open(&connector, 2, 0)));
        rounds += 1;
        let moves = status(&rig)["migrations"].as_array().unwrap().len();
        if moves == 0 {
            break; // it had ended before the kill
        }
    }
    let file = rig.scratch.path().join("switch.toml");
    let refused = refusal(&run(&["check", file.to_str().unwrap()]));
    assert!(refused.contains("a:8MiB+4MiB was moved"), "{refused}");
    block_on(writer.check_all(&rig.open(&connector, 3, 0)));
}

/// Goal: a move can be cancelled: the extent stays where it was, the blocks of the destination are
/// free, and a restart does not begin the move again. An unreachable storage pauses the move but
/// not the I/O of the LUN.
#[test]
fn a_move_pauses_and_is_cancelled() {
    let luns = two_extents();
    let options = RigOptions { luns: &luns, ..RigOptions::default() };
    let mut rig = Rig::new("switch-migrate-cancel", options);
    let connector = Connector::start().unwrap();
    let disk = rig.open(&connector, 1, 0);
    let data = pattern(5, 8 << 20);
    block_on(write(&disk, 0, &data));
    assert_exit(&migrate(&rig, &["--extent", "0", "--to", "b:0", "--rate", "16Mbit"]), 0);
    rig.kill_storage(1);
    while json(&migrate(&rig, &["--json"]))["state"] != "paused" {
        std::thread::sleep(Duration::from_millis(20));
    }
    block_on(async {
        write(&disk, 0, &data[..PIECE]).await;
        assert_eq!(read(&disk, 0, PIECE).await, data[..PIECE]);
    });
    let file = rig.scratch.path().join("switch.toml");
    let luns = run(&["ctl", "luns", "--api", &rig.api()]);
    assert!(printed(&luns).contains("to b:0+4MiB: paused"), "{}", printed(&luns));
    // Changes of the moved LUN and of the destination's blocks are refused during the move.
    let wanted = two_extents() + &lun(1, &extents(&[extent("b", 3, 4)]));
    let other = rig.configuration(RigOptions { luns: &wanted, ..RigOptions::default() });
    for arguments in [&["check", &other][..], &["apply", &other, "--api", &rig.api()]] {
        let refused = refusal(&run(arguments));
        assert!(
            refused.contains("overlaps an extent of") && refused.contains("moved"),
            "{refused}"
        );
    }
    let grown = lun(0, &extents(&[extent("a", 1, 4), extent("a", 8, 5)]));
    let other = rig.configuration(RigOptions { luns: &grown, ..RigOptions::default() });
    let refused = refusal(&run(&["apply", &other, "--api", &rig.api()]));
    assert!(refused.contains("is being moved"), "{refused}");
    let luns = two_extents();
    rig.configuration(RigOptions { luns: &luns, ..RigOptions::default() });

    rig.start_storage(1, &[]);
    assert_exit(&migrate(&rig, &["--cancel", "--wait"]), 0);
    assert_eq!(json(&migrate(&rig, &["--json"]))["state"], "cancelled");
    assert_eq!(block_on(read(&disk, 0, data.len())), data);
    assert_exit(&run(&["check", file.to_str().unwrap()]), 0);
    drop(disk);
    rig.restart_switch();
    assert!(status(&rig)["migrations"].as_array().unwrap().is_empty());
}

/// Goal: requests that cannot be fulfilled are refused, with a remedy.
#[test]
fn moves_are_refused() {
    let mirror = format!("mirror = [{}, {}]", extent("a", 16, 8), extent("b", 16, 8));
    let luns = two_extents() + &lun(2, &extents(&[extent("b", 1, 1)]));
    let rig =
        Rig::new("switch-migrate-refused", RigOptions { luns: &luns, ..RigOptions::default() });
    for (arguments, why, remedy) in [
        (&["--to", "b:8MiB"][..], "the LUN has 2 extents", "--extent N"),
        (&["--extent", "2", "--to", "b:8MiB"], "no extent 2", "counted from 0"),
        (&["--extent", "0", "--to", "c:8MiB"], "no storage c", "the storages are a, b"),
        (&["--extent", "0", "--to", "b:0"], "overlaps b:1MiB+1MiB", "other blocks"),
        (&["--extent", "0", "--to", "a:6MiB"], "overlaps a:8MiB+4MiB", "other blocks"),
        (&["--extent", "0", "--to", "b:30MiB"], "ends at byte", "extents"),
        (&["--extent", "0", "--to", "b:16777316"], "multiples of the block size", "extents"),
        (&["--cancel"], "no extent of LUN 0", "lunar ctl status"),
        (&[], "no extent of LUN 0", "--to"),
    ] {
        let output = migrate(&rig, arguments);
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success(), "{arguments:?}");
        assert!(text.contains(why) && text.contains(remedy), "{arguments:?}: {text}");
    }
    let luns = luns + &lun(1, &mirror);
    let file = rig.configuration(RigOptions { luns: &luns, ..RigOptions::default() });
    assert_exit(&run(&["switch", "create-mirror", VIRTUAL, "1", "--config", &file]), 0);
    assert_exit(&run(&["apply", &file, "--api", &rig.api()]), 0);
    let arguments = ["switch", "migrate", VIRTUAL, "1", "--to", "b:4MiB", "--api", &rig.api()];
    let refused = refusal(&run(&arguments));
    assert!(refused.contains("is a mirror") && refused.contains("lunar pool replace"), "{refused}");
}

/// Goal: a copy of a mirrored LUN moves by replacing a member of its pool, in use.
#[test]
fn a_copy_of_a_mirror_is_replaced() {
    let mirror = |start| format!("mirror = [{}, {}]", extent("a", 16, 8), extent("b", start, 8));
    let luns = two_extents();
    let rig =
        Rig::new("switch-migrate-mirror", RigOptions { luns: &luns, ..RigOptions::default() });
    let with = |start| two_extents() + &lun(1, &mirror(start));
    let luns = with(16);
    let file = rig.configuration(RigOptions { luns: &luns, ..RigOptions::default() });
    assert_exit(&run(&["switch", "create-mirror", VIRTUAL, "1", "--config", &file]), 0);
    assert_exit(&run(&["apply", &file, "--api", &rig.api()]), 0);
    let connector = Connector::start().unwrap();
    let disk = rig.open(&connector, 1, 1);
    let data = pattern(9, 1 << 20);
    block_on(write(&disk, 0, &data));
    let luns = with(24);
    rig.configuration(RigOptions { luns: &luns, ..RigOptions::default() });
    let (pool, api) = (format!("{VIRTUAL}/1"), rig.api());
    let arguments = ["pool", "replace", &pool, "1", "extent:b:24MiB+8MiB", "--wait", "--api", &api];
    assert_exit(&run(&arguments), 0);
    assert_eq!(block_on(read(&disk, 0, data.len())), data);
    let applied = run(&["apply", &file, "--api", &rig.api()]);
    assert!(printed(&applied).contains("no differences"), "{}", printed(&applied));
}
