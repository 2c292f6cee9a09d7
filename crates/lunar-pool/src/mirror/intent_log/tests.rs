//! Tests of the write-intent log.

use super::*;
use crate::format::{History, MemberSet, PoolKind};
use crate::member_device::MemberDevice;
use lunar_block::{
    BlockDevice, BufferPool, Effect, ErrorKind, Fault, FaultDevice, FaultOperation, MemoryDevice,
};

struct Rig {
    log: IntentLog,
    faults: Arc<FaultDevice>,
    members: Vec<Arc<MirrorMember>>,
}

fn label() -> Label {
    Label {
        kind: PoolKind::MIRROR,
        pool: PoolId([1; 16]),
        slot: 0,
        member_count: 2,
        block_bytes: 512,
        data_blocks: 1280,
        unit_blocks: 128,
        generation: 1,
        current: MemberSet::first(2),
        history: History::new(1),
        vacant: MemberSet::default(),
    }
}

fn rig() -> Rig {
    let memory = Arc::new(MemoryDevice::new(2 << 20, 512, 512).unwrap());
    let faults = FaultDevice::new(memory, 0);
    let device = MemberDevice::new(Arc::clone(&faults) as Arc<dyn BlockDevice>);
    let members = vec![Arc::new(MirrorMember::new(0, device, true, 10, Duration::from_secs(2)))];
    let log = IntentLog::new(&label(), RegionSet::new(10), 1, &MirrorOptions::default());
    Rig { log, faults, members }
}

/// Lets marks become old.
async fn grow_old() {
    tokio::time::advance(MirrorOptions::default().mark_time).await;
}

impl Rig {
    /// Begins a change, and marks its regions. Returns the members that could not be marked.
    async fn begin(&self, range: BlockRange) -> Vec<FailedMember> {
        match self.log.begin(range) {
            true => Vec::new(),
            false => self.log.mark(range, &self.members).await,
        }
    }

    async fn change(&self, lba: u64) {
        let range = BlockRange::new(lba, 1);
        assert!(self.begin(range).await.is_empty());
        self.log.end(range);
    }

    fn flush(&self) {
        let interval = self.log.begin_flush();
        self.log.flushed(interval, |_| true);
    }

    async fn on_medium(&self) -> Vec<u32> {
        let buffers = BufferPool::default();
        let read = self.members[0].device.read_intent(PoolId([1; 16]), 10, &buffers);
        read.await.unwrap().map(|page| page.marked.iter().collect()).unwrap_or_default()
    }
}

/// Goal: a mark is on the medium before a change begins. After a flush the mark is settled; once it
/// is old, the next page that is written removes it, if the region was not changed since.
#[tokio::test(start_paused = true)]
async fn marks_come_first_and_go_late() {
    let rig = rig();
    rig.change(128).await;
    assert_eq!(rig.on_medium().await, [1]);
    let writes = rig.faults.seen(FaultOperation::Write);
    rig.change(130).await;
    assert_eq!(rig.faults.seen(FaultOperation::Write), writes, "it is marked already");
    assert_eq!(rig.log.unflushed().iter().collect::<Vec<_>>(), [1]);
    rig.flush();
    assert!(rig.log.unflushed().is_empty() && rig.log.marked().is_empty());
    rig.change(131).await;
    assert_eq!(rig.faults.seen(FaultOperation::Write), writes, "the mark is still there");
    assert!(rig.log.marked().contains(1), "members may differ again");
    rig.flush();
    rig.change(1279).await;
    assert_eq!(rig.on_medium().await, [1, 9], "the mark is young");
    rig.flush();
    grow_old().await;
    rig.change(1278).await;
    rig.change(0).await;
    assert_eq!(rig.on_medium().await, [0, 9], "the last region was changed since");
    let range = BlockRange::new(0, 129);
    assert!(rig.begin(range).await.is_empty());
    rig.flush();
    grow_old().await;
    assert!(rig.log.remove_old(&rig.members).await.is_empty());
    assert_eq!(rig.on_medium().await, [0, 1], "the change is open");
    rig.log.end(range);
    let interval = rig.log.begin_flush();
    assert!(rig.log.end_last_flush(interval, |_| true, &rig.members).await.is_empty());
    assert_eq!(rig.on_medium().await, Vec::<u32>::new());
}

/// Goal: a change that begins before a flush and ends after it is not covered, and regions in which
/// members differ are not settled.
#[tokio::test(start_paused = true)]
async fn marks_of_unflushed_and_different_regions_stay() {
    let rig = rig();
    let during = BlockRange::new(0, 1);
    assert!(rig.begin(during).await.is_empty());
    rig.change(128).await;
    rig.change(256).await;
    let interval = rig.log.begin_flush();
    rig.log.end(during);
    assert!(rig.log.flushed(interval, |region| region != 1), "a task is needed");
    assert_eq!(rig.log.marked().iter().collect::<Vec<_>>(), [0, 1]);
    rig.log.copied(2);
    grow_old().await;
    assert!(rig.log.remove_old(&rig.members).await.is_empty());
    assert_eq!(rig.on_medium().await, [0, 1]);
    assert!(rig.log.end_removing_if_none_settled(), "nothing is settled");
    rig.flush();
    assert!(!rig.log.end_removing_if_none_settled());
}

/// Goal: the number of settled marks of a large pool is limited. The next page removes the oldest
/// ones.
#[tokio::test(start_paused = true)]
async fn kept_marks_are_bounded() {
    const REGIONS: u32 = 2 * KEPT_MARKS as u32;
    // Regions of 8 MiB.
    let label = Label { unit_blocks: 16384, data_blocks: 16384 * u64::from(REGIONS), ..label() };
    let log = IntentLog::new(&label, RegionSet::new(REGIONS), 1, &MirrorOptions::default());
    let rig = Rig { log, ..rig() };
    for region in (0..u64::from(REGIONS)).rev() {
        rig.change(region * 16384).await;
        rig.flush();
        tokio::time::advance(Duration::from_millis(1)).await;
    }
    let kept: Vec<u32> = rig.log.on_members().iter().collect();
    assert_eq!(kept, (0..=KEPT_MARKS as u32).collect::<Vec<_>>(), "and that of the last change");
}

/// Goal: a change whose mark cannot be written is not sent, and its region does not count as
/// marked.
#[tokio::test]
async fn a_failed_mark_is_no_mark() {
    let rig = rig();
    let fault = Fault::new(Effect::Fail(ErrorKind::Medium)).on(FaultOperation::Write);
    rig.faults.inject(fault.times(1));
    let range = BlockRange::new(0, 1);
    let failed = rig.begin(range).await;
    assert!(matches!(failed[..], [FailedMember { failure: MemberFailure::Device(_), .. }]));
    rig.log.end(range);
    assert!(rig.log.marked().is_empty());
    rig.change(0).await;
    assert!(rig.log.marked().contains(0));
}

/// Goal: both pages of a member that gets a copy have all marks, and later pages are newer.
#[tokio::test]
async fn copies_have_all_marks() {
    let rig = rig();
    rig.change(0).await;
    rig.log.copy_to(&rig.members[0]).await.unwrap();
    let torn = Fault::new(Effect::Tear { blocks: 3 }).on(FaultOperation::Write);
    rig.faults.inject(torn.times(1));
    let range = BlockRange::new(256, 1);
    assert_eq!(rig.begin(range).await.len(), 1);
    assert_eq!(rig.on_medium().await, [0], "the other page is intact");
    rig.log.end(range);
    rig.change(384).await;
    assert_eq!(rig.on_medium().await, [0, 3]);
}
