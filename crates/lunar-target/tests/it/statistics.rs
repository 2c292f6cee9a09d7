//! Tests that statistics match the operations.

use crate::common::*;
use lunar_block::{Effect, ErrorKind, Fault, FaultDevice, FaultOperation as Disk, MemoryDevice};
use lunar_target::{
    CommandErrors, LunStatistics, OperationClass, OperationStatistics, Server, Statistics,
};
use lunar_testkit::raw::RawClient;
use std::sync::Arc;
use std::time::Duration;

/// A server of two targets, each with its own unit.
struct Watched {
    server: Option<Server>,
    address: String,
    device: Arc<FaultDevice>,
    _use: ProcessUse,
}

impl Watched {
    fn start() -> Self {
        let process = ProcessUse::shared();
        let memory = || MemoryDevice::new(64 << 20, 512, 4096).unwrap();
        let device = FaultDevice::new(Arc::new(memory()), 1);
        let mut options = options_of(unit(Arc::<FaultDevice>::clone(&device)));
        let mut other = target("iqn.2026-11.org.lunarsan.test:other", unit(Arc::new(memory())));
        other.access.networks = vec![lunar_target::Network::parse("192.0.2.0/24").unwrap()];
        options.targets.push(other);
        options.limits.login_failures_free = 100;
        let server = Server::start(options).unwrap();
        let address = server.addresses()[0].to_string();
        Self { server: Some(server), address, device, _use: process }
    }

    fn log_in(&self) -> RawClient {
        let mut raw = RawClient::log_in_as(&self.address, TARGET, 1).unwrap();
        assert_eq!(raw.execute(&[0; 6], 0).unwrap().0, 0, "TEST UNIT READY");
        raw
    }

    fn statistics(&self) -> Statistics {
        self.server.as_ref().unwrap().observer().statistics().unwrap()
    }

    fn lun(&self) -> LunStatistics {
        self.statistics().targets[0].luns[0].clone()
    }

    /// Waits until `is` holds, because the commands of a connection are counted when it has ended.
    #[track_caller]
    fn wait_for(&self, what: &str, is: impl Fn(&Statistics) -> bool) {
        let until = std::time::Instant::now() + TEST_TIMEOUT;
        while !is(&self.statistics()) {
            let now = self.statistics();
            assert!(std::time::Instant::now() < until, "timed out waiting until {what}: {now:#?}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.device.release();
        self.server.take().unwrap().shutdown(Duration::from_secs(3), &mut |_| {});
    }
}

fn of(lun: &LunStatistics, operation: OperationClass) -> OperationStatistics {
    *lun.operations.iter().find(|one| one.operation == operation).unwrap()
}

/// Goal: operations and bytes are exact, in their direction, and count for their LUN only.
#[test]
fn operations_and_bytes_are_exact() {
    let watched = Watched::start();
    let mut raw = watched.log_in();
    for lba in 0..100 {
        raw.write_blocks(lba * 8, &[7; 4096]).unwrap();
    }
    for lba in 0..30 {
        raw.read_blocks(lba, 3).unwrap();
    }
    // The initiator expects less than the command would return: sent bytes count.
    raw.run(&ten(0x28, 0, 8), 512).unwrap();
    let lun = watched.lun();
    let write = of(&lun, OperationClass::Write);
    assert_eq!((write.durations.count(), write.received_bytes), (100, 100 * 4096));
    assert_eq!((write.sent_bytes, write.in_flight), (0, 0));
    assert!(write.durations.sum_nanos > 0);
    let read = of(&lun, OperationClass::Read);
    assert_eq!((read.durations.count(), read.sent_bytes), (31, 30 * 3 * 512 + 512));
    assert_eq!(read.received_bytes, 0);
    // The first unit attention is an error of TEST UNIT READY, which was then retried.
    let other = of(&lun, OperationClass::Other);
    assert_eq!(other.durations.count(), 2, "{lun:#?}");
    assert_eq!(of(&lun, OperationClass::Flush).durations.count(), 0);
    let statistics = watched.statistics();
    assert_eq!(statistics.targets.len(), 2);
    let idle = &statistics.targets[1].luns[0];
    assert!(idle.operations.iter().all(|one| one.durations.count() == 0), "{idle:#?}");
    drop(raw);
}

/// Goal: failures are counted by command, status and sense; a command for a LUN that does not exist
/// counts for no LUN.
#[test]
fn errors_are_counted_by_sense() {
    let watched = Watched::start();
    let mut raw = watched.log_in();
    watched.device.inject(Fault::new(Effect::Fail(ErrorKind::Medium)).on(Disk::Read).times(2));
    for _ in 0..2 {
        assert!(raw.read_block(0).is_err());
    }
    let (status, _) = raw.execute(&[0xfe; 6], 0).unwrap();
    assert_eq!(status, 2);
    let lun = watched.lun();
    let error = |operation, key, code, count| CommandErrors {
        operation,
        status: Some(2),
        sense: Some((key, code)),
        count,
    };
    assert!(lun.errors.contains(&error(OperationClass::Read, 3, 0x1100, 2)), "{:?}", lun.errors);
    assert!(lun.errors.contains(&error(OperationClass::Other, 5, 0x2000, 1)), "{:?}", lun.errors);
    let read = of(&lun, OperationClass::Read);
    assert_eq!((read.durations.count(), read.sent_bytes), (2, 0), "failed ones moved nothing");

    let absent = raw.command(0x81, &[0; 16], 0).put(8, &[0, 9]);
    raw.send(&absent).unwrap();
    let (status, ..) = raw.outcome().unwrap();
    assert_eq!(status, 2);
    let target = &watched.statistics().targets[0];
    let absent = error(OperationClass::Other, 5, 0x2500, 1);
    assert_eq!(target.absent_lun_errors, [absent]);
    assert_eq!(watched.lun().errors, lun.errors);
}

/// Goal: hanging commands are in flight; when their connection ends they no longer are, and count
/// as aborted.
#[test]
fn commands_in_flight_are_reported() {
    let watched = Watched::start();
    let mut raw = watched.log_in();
    watched.device.inject(Fault::new(Effect::Hang).on(Disk::Read));
    for lba in 0..3 {
        send_read(&mut raw, lba, 1);
    }
    watched.wait_for("three reads hang", |_| watched.device.hanging() == 3);
    let read = of(&watched.lun(), OperationClass::Read);
    assert_eq!((read.in_flight, read.durations.count()), (3, 0));
    let statistics = watched.statistics();
    assert_eq!((statistics.connections, statistics.discovery_sessions), (1, 0));
    let target = &statistics.targets[0];
    assert_eq!((target.sessions, target.connections, target.logins), (1, 1, 1));
    drop(raw);
    watched.wait_for("nothing is left", |now| {
        of(&now.targets[0].luns[0], OperationClass::Read).in_flight == 0 && now.connections == 0
    });
    let lun = watched.lun();
    assert_eq!(of(&lun, OperationClass::Read).durations.count(), 3);
    let aborted =
        CommandErrors { operation: OperationClass::Read, status: None, sense: None, count: 3 };
    assert!(lun.errors.contains(&aborted), "{:?}", lun.errors);
    assert_eq!(watched.statistics().targets[0].sessions, 0);
}

/// Goal: a refused login counts under its reason, and a name chosen by a peer creates no series.
#[test]
fn login_failures_are_counted_by_reason() {
    let watched = Watched::start();
    assert!(RawClient::log_in(&watched.address, "iqn.2026-11.org.lunarsan.test:none").is_err());
    for _ in 0..2 {
        assert!(
            RawClient::log_in(&watched.address, "iqn.2026-11.org.lunarsan.test:other").is_err()
        );
    }
    let mut early = RawClient::connect(&watched.address).unwrap();
    let login = early.login(b"InitiatorName=iqn.x\0TargetName=iqn.y\0").put(2, &[7, 7]);
    early.send(&login).unwrap();
    early.wait_until_closed(TEST_TIMEOUT).unwrap_or_default();
    watched.wait_for("four were refused", |now| now.login_failures.values().sum::<u64>() == 4);
    let statistics = watched.statistics();
    let failures: Vec<_> =
        statistics.login_failures.iter().filter(|(_, count)| **count > 0).collect();
    assert_eq!(failures, [(&"access_list", &2), (&"no_target", &1), (&"protocol", &1)]);
    assert_eq!(statistics.targets.len(), 2);
}

/// Goal: a disk whose sync failed is shown as poisoned by each of its LUNs.
#[test]
fn poison_is_reported() {
    let watched = Watched::start();
    let mut raw = watched.log_in();
    assert!(!watched.lun().syncs.unwrap().poisoned);
    watched.device.inject(Fault::new(Effect::Fail(ErrorKind::Medium)).on(Disk::Flush).times(1));
    let (status, _) = raw.execute(&ten(0x35, 0, 0), 0).unwrap();
    assert_eq!(status, 2);
    assert!(watched.lun().syncs.unwrap().poisoned);
    assert_eq!(of(&watched.lun(), OperationClass::Flush).durations.count(), 1);
    watched.device.heal();
}
