//! Moves of extents of a LUN whose commands are relayed.

use super::super::fast_path::{FAST, count, until_relayed};
use super::{PIECE, Writer, migrate, two_extents};
use crate::common::{assert_exit, json, pattern, run};
use crate::switch::{MIB, Rig, RigOptions, block_on, read, write};
use lunar_initiator::RemoteDisk;
use lunar_initiator::blocking::Connector;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};

/// Two hosts, each with the pieces that it writes.
struct WritingHosts {
    disks: [Arc<RemoteDisk>; 2],
    writers: [Writer; 2],
}

impl WritingHosts {
    fn new(rig: &Rig, connector: &Connector) -> Self {
        let disks = [1, 2].map(|number| rig.open(connector, number, 0));
        let writers =
            [0, 1].map(|host| Writer { random: 7 + host, hosts: 2, host, ..Writer::default() });
        Self { disks, writers }
    }

    /// Runs `meanwhile` while both hosts read and write; it gets a function that waits until both
    /// have written several pieces more.
    fn run(&mut self, meanwhile: impl FnOnce(&dyn Fn())) {
        let (stop, written) = (AtomicBool::new(false), [0, 0].map(AtomicU64::new));
        std::thread::scope(|scope| {
            let all = self.writers.iter_mut().zip(&self.disks).zip(&written);
            let hosts: Vec<_> = all
                .map(|((writer, disk), written)| {
                    scope.spawn(|| block_on(writer.run(disk, &stop, written)))
                })
                .collect();
            let wait = || {
                for (host, written) in hosts.iter().zip(&written) {
                    let before = written.load(SeqCst);
                    while written.load(SeqCst) < before + 20 {
                        assert!(!host.is_finished(), "a host's command has failed");
                        std::thread::yield_now();
                    }
                }
            };
            wait();
            meanwhile(&wait);
            wait();
            stop.store(true, SeqCst);
        });
    }

    /// Checks all data, each host that of the other one.
    fn check(&mut self) {
        let [one, other] = &mut self.writers;
        block_on(async {
            one.check_all(&self.disks[1]).await;
            other.check_all(&self.disks[0]).await;
        });
    }

    /// Reads until commands of both hosts to both extents are relayed.
    fn until_relayed(&self, rig: &Rig) {
        for disk in &self.disks {
            for offset in [0, 4 * MIB] {
                until_relayed(rig, disk, 0, offset, 4096);
            }
        }
    }
}

fn state(rig: &Rig) -> String {
    json(&migrate(rig, &["--json"]))["state"].as_str().unwrap().to_owned()
}

/// Goal: an extent moves while two hosts read and write by the relay: no data is lost or old.
/// Nothing is relayed while it moves; after the move, and after one that was cancelled, commands
/// are relayed again, to the blocks that the extent has. Method: data that only one host writes;
/// the counts of the metrics; the data at the storage.
#[test]
fn an_extent_moves_under_relayed_commands() {
    let luns = two_extents();
    let options = RigOptions { luns: &luns, switch: FAST, ..RigOptions::default() };
    let rig = Rig::new("switch-migrate-fast", options);
    let connector = Connector::start().unwrap();
    let mut hosts = WritingHosts::new(&rig, &connector);
    hosts.until_relayed(&rig);
    hosts.run(|wait| {
        // The rate is too low for the move to end before it is cancelled.
        let arguments = ["--extent", "0", "--to", "b:9MiB", "--rate", "600kbit"];
        assert_exit(&migrate(&rig, &arguments), 0);
        while state(&rig) != "copying" {}
        let before = count(&rig, 0, "relayed");
        wait();
        assert_eq!(count(&rig, 0, "relayed"), before, "relayed past the copy");
        assert_exit(&migrate(&rig, &["--cancel", "--wait"]), 0);
    });
    assert_eq!(state(&rig), "cancelled");
    hosts.check();
    hosts.until_relayed(&rig);
    hosts.run(|_| {
        let arguments = ["--extent", "0", "--to", "b:9MiB", "--rate", "1Gbit", "--wait"];
        assert_exit(&migrate(&rig, &arguments), 0);
    });
    assert_eq!(state(&rig), "moved");
    hosts.check();
    hosts.until_relayed(&rig);

    let disk = &hosts.disks[0];
    let (before, data) = (count(&rig, 0, "relayed"), pattern(3, PIECE));
    block_on(write(disk, MIB, &data));
    let first = block_on(read(disk, 0, 4 << 20));
    assert_eq!(count(&rig, 0, "relayed"), before + 2);
    assert_eq!(first[1 << 20..][..PIECE], data);
    let arguments = ["read", &rig.storage_url(1), "--offset", "9M", "--length", "4M"];
    assert!(run(&arguments).stdout == first, "the destination has other data");
}
