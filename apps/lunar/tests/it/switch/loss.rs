//! Storages that become unreachable, come back, or lose a write cache.

use super::{
    MIB, Rig, RigOptions, block_on, command, extent, extents, lun, read, try_read, try_write, write,
};
use crate::common::pattern;
use lunar_initiator::blocking::Connector;

const LINEAR: [(&str, u64, u64); 2] = [("a", 1, 1), ("b", 4, 1)];

fn linear() -> String {
    extents(&LINEAR.map(|(storage, start, length)| extent(storage, start, length)))
}

/// Goal: with `wait`, I/O to a storage that was killed waits and succeeds when it is back; I/O to
/// the other storage does not wait. The host's session stays.
#[test]
fn io_waits_for_a_storage() {
    let luns = lun(0, &linear());
    let keys = "on_storage_loss = \"wait 60s\"";
    let options = RigOptions { luns: &luns, storage_keys: keys, ..RigOptions::default() };
    let mut rig = Rig::new("switch-wait", options);
    let connector = Connector::start().unwrap();
    let disk = rig.open(&connector, 1, 0);
    let data = pattern(1, 64 << 10);
    block_on(async {
        write(&disk, 0, &data).await;
        write(&disk, MIB, &data).await;
    });
    rig.kill_storage(1);
    let waiting = std::thread::scope(|scope| {
        let waiting = scope.spawn(|| block_on(read(&disk, MIB, 64 << 10)));
        // The storage is started only after the other one has answered.
        assert_eq!(block_on(read(&disk, 0, 64 << 10)), data);
        rig.start_storage(1, &[]);
        waiting.join().unwrap()
    });
    assert_eq!(waiting, data);
    block_on(write(&disk, MIB, &data));
}

/// Goal: with `fail`, I/O to a storage that is unreachable fails, and works again when it is back.
/// The host's session stays.
#[test]
fn io_fails_without_a_storage() {
    let luns = lun(0, &linear());
    let keys = "on_storage_loss = \"fail\"";
    let options = RigOptions { luns: &luns, storage_keys: keys, ..RigOptions::default() };
    let mut rig = Rig::new("switch-fail", options);
    let connector = Connector::start().unwrap();
    let disk = rig.open(&connector, 1, 0);
    let data = pattern(2, 4096);
    block_on(write(&disk, MIB, &data));
    rig.kill_storage(1);
    block_on(async {
        try_read(&disk, MIB, 4096).await.unwrap_err();
        try_write(&disk, MIB, &data).await.unwrap_err();
        read(&disk, 0, 4096).await;
    });
    rig.start_storage(1, &[]);
    let back = block_on(async {
        loop {
            if let Ok(back) = try_read(&disk, MIB, 4096).await {
                break back;
            }
        }
    });
    assert_eq!(back, data);
}

/// Goal: a LUN whose storage is unreachable at the start of the switch waits, beside others that
/// are served, and appears when the storage starts.
#[test]
fn a_lun_waits_for_its_storages() {
    let luns = lun(0, &linear()) + &lun(1, &extents(&[extent("a", 8, 1)]));
    // The switch stops while the storage is unreachable.
    let keys = "on_storage_loss = \"fail\"";
    let options = RigOptions { luns: &luns, storage_keys: keys, ..RigOptions::default() };
    let mut rig = Rig::new("switch-unreachable", options);
    let data = pattern(4, 64 << 10);
    let connector = Connector::start().unwrap();
    block_on(write(&rig.open(&connector, 1, 0), MIB, &data));
    rig.kill_storage(1);
    rig.restart_switch();
    assert_eq!(rig.switch.report["waiting"][0]["lun"], 0);
    block_on(write(&rig.open(&connector, 1, 1), 0, &data));
    rig.start_storage(1, &[]);
    rig.switch.until_said("its storage has returned");
    assert_eq!(block_on(read(&rig.open(&connector, 1, 0), MIB, data.len())), data);
}

/// Sends SYNCHRONIZE CACHE (10). Returns true for GOOD, false for MEDIUM ERROR, WRITE ERROR.
pub(super) async fn synchronize(disk: &lunar_initiator::RemoteDisk) -> bool {
    let (status, sense) = command(disk, &[0x35, 0, 0, 0, 0, 0, 0, 0, 0, 0], &[]).await;
    if status != 0 {
        assert_eq!((sense[2], sense[12], sense[13]), (3, 0x0c, 0), "{sense:02x?}");
    }
    status == 0
}

/// Goal: a write cache that one storage has lost becomes a failed SYNCHRONIZE CACHE for every host,
/// once.
#[test]
fn every_host_gets_a_loss_reported() {
    let luns = lun(0, &format!("cache = \"write-back\"\n{}", linear()));
    let cached = ["--cache", "write-back"];
    let options = RigOptions { luns: &luns, storage: &cached, ..RigOptions::default() };
    let mut rig = Rig::new("switch-loss", options);
    let connector = Connector::start().unwrap();
    let hosts = [1, 2].map(|number| rig.open(&connector, number, 0));
    block_on(async {
        for (host, at) in hosts.iter().zip([0, 1]) {
            write(host, MIB + at * 4096, &pattern(at, 4096)).await;
        }
    });
    rig.kill_storage(1);
    rig.start_storage(1, &cached);
    block_on(async {
        for (number, host) in hosts.iter().enumerate() {
            assert!(!synchronize(host).await, "the write of host {number} may be lost");
            assert!(synchronize(host).await, "host {number}: reported once");
        }
        write(&hosts[0], MIB, &pattern(3, 4096)).await;
        assert!(synchronize(&hosts[1]).await, "later writes are kept");
    });
}
