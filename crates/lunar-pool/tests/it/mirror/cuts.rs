//! Power cuts while the members of a mirror change.

use super::rig::{BLOCKS, REGION, Rig, without_recovery};
use crate::common::{DATA_START, Device, LineDevice, PowerLine, filled, memories, read, snapshot};
use lunar_block::{
    BlockDevice, BlockRange, Effect, Error, ErrorKind, Fault, FaultDevice, FaultOperation,
};
use lunar_pool::{OpenOptions, Pool, PoolError, PoolHealth, PoolSpec};
use std::sync::Arc;
use std::time::Duration;

/// A change of the members.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Operation {
    /// The third disk gets the slot of the second one, which is current.
    Replace,
    /// The same, while the second one is stale.
    ReplaceStale,
    /// The third disk becomes a member.
    Add,
    /// The second of three disks is removed.
    Remove,
    /// The last of three disks is removed.
    RemoveLast,
}

impl Operation {
    const ALL: [Self; 5] =
        [Self::Replace, Self::ReplaceStale, Self::Add, Self::Remove, Self::RemoveLast];

    /// The members before and after.
    fn lists(self) -> [&'static [usize]; 2] {
        match self {
            Self::Replace | Self::ReplaceStale => [&[0, 1], &[0, 2]],
            Self::Add => [&[0, 1], &[0, 1, 2]],
            Self::Remove => [&[0, 1, 2], &[0, 2]],
            Self::RemoveLast => [&[0, 1, 2], &[0, 1]],
        }
    }

    async fn run(self, pool: &Pool, third: Device) -> Result<(), PoolError> {
        match self {
            Self::Replace | Self::ReplaceStale => pool.replace(1, third).await,
            Self::Add => pool.add(third).await.map(|slot| assert_eq!(slot, 2)),
            Self::Remove => pool.remove(1).await,
            Self::RemoveLast => pool.remove(2).await,
        }
    }
}

/// Disks on a power line, some of which are a mirror.
struct CutBench {
    operation: Operation,
    disks: Vec<Device>,
    line: Arc<PowerLine>,
    devices: Vec<Arc<LineDevice>>,
}

impl CutBench {
    async fn new(operation: Operation) -> Self {
        let disks = memories(3, BLOCKS * 512);
        let members = operation.lists()[0].len();
        Pool::create(PoolSpec::Mirror { erase: true }, disks[..members].to_vec()).await.unwrap();
        let line = PowerLine::new();
        let devices = LineDevice::all(&line, &disks);
        Self { operation, disks, line, devices }
    }

    /// Changes the members alongside writes, until the power fails after `steps` writes and
    /// flushes. Returns the last content of block 0 that was acknowledged as durable, and true if
    /// the change had returned before.
    async fn run(&self, steps: u64) -> (u8, bool) {
        let fault = FaultDevice::new(self.devices[1].clone(), 1);
        let mut members: Vec<Device> = vec![self.devices[0].clone(), fault.clone()];
        if self.operation.lists()[0].len() > 2 {
            members.push(self.devices[2].clone());
        }
        let mut options = without_recovery();
        options.mirror.mark_time = Duration::ZERO;
        let pool = Pool::open("pool", members, options).await.unwrap();
        write(&pool, 1).await.unwrap();
        if self.operation == Operation::ReplaceStale {
            fault.inject(Fault::new(Effect::Fail(ErrorKind::Medium)).on(FaultOperation::Write));
            pool.write(BlockRange::new(REGION, 1), filled(7, 1), false).await.unwrap();
        }
        self.line.cut_after(steps);
        let mut durable = 1;
        let writes = async {
            for value in 2..8 {
                if write(&pool, value).await.is_ok() && !self.line.is_off() {
                    durable = value;
                }
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        let change = async {
            let changed = self.operation.run(&pool, self.devices[2].clone()).await;
            (changed, !self.line.is_off())
        };
        let ((changed, was_in_time), ()) = futures_util::future::join(change, writes).await;
        assert!(changed.is_ok() || self.line.is_off(), "{changed:?}");
        let is_changed = changed.is_ok() && was_in_time;
        while !self.line.is_off() && pool.status().health != PoolHealth::Healthy {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        (durable, is_changed)
    }

    fn is_removal(&self) -> bool {
        matches!(self.operation, Operation::Remove | Operation::RemoveLast)
    }

    /// Opens copies of some disks, and checks them. Returns false if they do not open, because a
    /// disk has no label, or none that is complete, or is missing.
    async fn check(&self, which: &[usize], durable: u8, when: &str) -> bool {
        let when = format!("{when}, members {which:?}");
        let mut copies = Vec::new();
        for at in which {
            copies.push(snapshot(&*self.disks[*at]).await);
        }
        let rig = match Rig::open(copies.clone(), 1, OpenOptions::default()).await {
            Ok(rig) => rig,
            Err(PoolError::NotAMember { .. } | PoolError::Missing { .. }) => return false,
            // The first label of the new device was being written.
            Err(PoolError::Unusable { .. }) if which.contains(&2) && !self.is_removal() => {
                return false;
            }
            Err(error) => panic!("{when}: {error}"),
        };
        // A write or flush that was not acknowledged may have ended.
        let value = rig.byte(0).await;
        assert!((durable..8).contains(&value), "{when}: {value} after {durable}");
        let status = rig.pool.status();
        let slots = status.members.iter().filter(|one| !one.device.is_empty()).count();
        let is_current = async || {
            let status = rig.pool.status();
            let mut present = status.members.iter().filter(|one| !one.device.is_empty());
            present.all(|one| one.state == lunar_pool::MemberState::Current)
        };
        while !is_current().await {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        assert_eq!(rig.byte(0).await, value, "{when}");
        let all = read(&*rig.pool, 0, BLOCKS).await;
        let mut same = 0;
        for copy in &copies {
            same += usize::from(read(&**copy, DATA_START, BLOCKS).await == all);
        }
        assert!(same >= slots, "{when}: {same} of {slots} members are equal");
        true
    }
}

async fn write(pool: &Pool, value: u8) -> Result<(), Error> {
    pool.write(BlockRange::new(0, 1), filled(value, 1), false).await?;
    pool.flush().await
}

/// Returns true if the power failed before the end.
async fn trial(operation: Operation, seed: u64, steps: u64) -> bool {
    let when = format!("{operation:?}, seed {seed}, step {steps}");
    let rig = CutBench::new(operation).await;
    let (durable, is_changed) = rig.run(steps).await;
    let was_cut = rig.line.is_off();
    let mut random = seed * 1000 + steps;
    for device in &rig.devices {
        device.lose_unflushed(&mut random).await;
    }
    let [before, after] = operation.lists();
    let old = rig.check(before, durable, &when).await;
    let new = rig.check(after, durable, &when).await;
    assert!(old || new, "{when}");
    assert!(new || !is_changed, "{when}: the change had returned");
    assert!(is_changed || was_cut, "{when}");
    if new {
        // With all devices, unless a label was cleared.
        rig.check(&[1, 2, 0], durable, &when).await;
    }
    was_cut
}

/// Goal: wherever the power fails while the members change, the mirror opens with the members
/// before or after the change, and with those after it once it has returned; it has everything that
/// was durable, and its members become equal. Method: the power fails after each write and each
/// flush of the change and of the writes alongside it; each device loses some of its unflushed
/// blocks, by seed.
#[test]
fn power_cuts() {
    for operation in Operation::ALL {
        for seed in 0..2 {
            let mut steps = 0;
            loop {
                let mut runtime = tokio::runtime::Builder::new_current_thread();
                let runtime = runtime.enable_time().start_paused(true).build().unwrap();
                if !runtime.block_on(trial(operation, seed, steps)) {
                    break;
                }
                steps += 1;
            }
            println!("{operation:?}: {steps} writes and flushes");
            assert!(steps > 30, "there are more writes and flushes: {steps}");
        }
    }
}
