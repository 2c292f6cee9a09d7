//! Tests of labels and intent pages on a device.

use super::*;
use crate::format::{History, MemberSet, PoolKind, RegionSet};
use lunar_block::{Effect, Fault, FaultDevice, FaultOperation, MemoryDevice};

const BLOCKS: u64 = 2048 + 1024 + 8;

fn label(generation: u64) -> Label {
    Label {
        kind: PoolKind::MIRROR,
        pool: PoolId([3; 16]),
        slot: 0,
        member_count: 2,
        block_bytes: 512,
        data_blocks: 1024,
        unit_blocks: 128,
        generation,
        current: MemberSet::first(2),
        history: History::new(9),
        vacant: MemberSet::default(),
    }
}

struct Rig {
    faults: Arc<FaultDevice>,
    member: MemberDevice,
    buffers: BufferPool,
}

impl Rig {
    fn new() -> Self {
        let memory = MemoryDevice::new(BLOCKS * 512, 512, 512).unwrap();
        let faults = FaultDevice::new(Arc::new(memory), 1);
        let member = MemberDevice::new(Arc::clone(&faults) as Arc<dyn BlockDevice>);
        Self { faults, member, buffers: BufferPool::default() }
    }

    async fn generation(&self) -> Option<u64> {
        match self.member.read_label(&self.buffers).await.unwrap() {
            FoundLabel::Valid(label) => Some(label.generation),
            _ => None,
        }
    }
}

/// Goal: whichever write or flush of a label fails, torn or whole, the label before or the new one
/// is found; a second attempt succeeds.
#[tokio::test]
async fn one_label_is_always_intact() {
    for failing in 0..4 {
        let rig = Rig::new();
        rig.member.write_label(&label(1), &rig.buffers).await.unwrap();
        for generation in 2..6 {
            let (operation, after) = match failing {
                0 | 1 => (FaultOperation::Write, failing),
                _ => (FaultOperation::Flush, failing - 2),
            };
            let effect = match operation {
                FaultOperation::Write => Effect::Tear { blocks: 3 },
                _ => Effect::Fail(ErrorKind::Medium),
            };
            rig.faults.inject(Fault::new(effect).on(operation).after(after).times(1));
            let written = rig.member.write_label(&label(generation), &rig.buffers).await;
            assert!(written.is_err(), "generation {generation}");
            let found = rig.generation().await;
            assert!(
                found == Some(generation - 1) || found == Some(generation),
                "generation {generation}: {found:?}"
            );
            rig.faults.heal();
            rig.member.write_label(&label(generation), &rig.buffers).await.unwrap();
            assert_eq!(rig.generation().await, Some(generation));
        }
        assert_eq!(rig.buffers.in_use_bytes(), 0);
    }
}

/// Goal: an unreadable copy does not hide the other one, and a device without a valid copy is not
/// taken for an empty one.
#[tokio::test]
async fn unreadable_labels() {
    let rig = Rig::new();
    assert_eq!(rig.member.read_label(&rig.buffers).await.unwrap(), FoundLabel::None);
    rig.member.write_label(&label(1), &rig.buffers).await.unwrap();
    let unreadable = Fault::new(Effect::Fail(ErrorKind::Medium)).on(FaultOperation::Read);
    rig.faults.inject(unreadable.at(BlockRange::new(0, 8)));
    assert_eq!(rig.generation().await, Some(1));
    rig.faults.inject(unreadable.at(BlockRange::new(BLOCKS - 8, 8)));
    let found = rig.member.read_label(&rig.buffers).await.unwrap();
    assert!(matches!(found, FoundLabel::Unusable(Unusable::Unreadable(_))), "{found:?}");
    let refused = rig.member.refuse_labelled(&rig.buffers).await;
    assert!(matches!(refused, Err(PoolError::InUnknownUse { .. })), "{refused:?}");
    rig.faults.heal();
    let refused = rig.member.refuse_labelled(&rig.buffers).await;
    assert!(matches!(refused, Err(PoolError::InUse { .. })), "{refused:?}");
    rig.member.clear_labels().await.unwrap();
    rig.member.refuse_labelled(&rig.buffers).await.unwrap();
    rig.faults.inject(Fault::new(Effect::Fail(ErrorKind::Disconnected)));
    let kind = rig.member.read_label(&rig.buffers).await.map_err(|error| error.kind);
    assert_eq!(kind, Err(ErrorKind::Disconnected), "it is not known whether it has a label");
}

/// Goal: a device that grew keeps its label.
#[tokio::test]
async fn a_grown_device_keeps_its_label() {
    let memory = Arc::new(MemoryDevice::new(BLOCKS * 512, 512, 512).unwrap());
    let member = MemberDevice::new(Arc::clone(&memory) as Arc<dyn BlockDevice>);
    let buffers = BufferPool::default();
    member.write_label(&label(1), &buffers).await.unwrap();
    memory.resize().unwrap().resize(2 * BLOCKS * 512).await.unwrap();
    assert_eq!(member.read_label(&buffers).await.unwrap(), FoundLabel::Valid(label(1)));
    member.write_label(&label(2), &buffers).await.unwrap();
    memory.write(BlockRange::new(0, 8), vec![0; 4096].into(), false).await.unwrap();
    assert_eq!(member.read_label(&buffers).await.unwrap(), FoundLabel::Valid(label(2)));
}

/// Goal: of two pages the newer counts; an unreadable page may have been the newer.
#[tokio::test]
async fn the_newer_page_counts() {
    let rig = Rig::new();
    let page = |sequence: u64, region: u32| {
        let mut marked = RegionSet::new(8);
        marked.insert(region);
        IntentPage { pool: PoolId([3; 16]), sequence, marked }
    };
    let read = async || {
        let page = rig.member.read_intent(PoolId([3; 16]), 8, &rig.buffers).await.unwrap();
        page.map(|page| page.sequence)
    };
    assert_eq!(read().await, None);
    for sequence in [4, 5, 6] {
        let bytes = Bytes::copy_from_slice(&page(sequence, 1).encode());
        rig.member.write_intent(sequence, bytes).await.unwrap();
        assert_eq!(read().await, Some(sequence));
    }
    let unreadable = Fault::new(Effect::Fail(ErrorKind::Medium)).on(FaultOperation::Read);
    rig.faults.inject(unreadable.at(BlockRange::new(256, 8)));
    assert_eq!(read().await, None);
}

/// Goal: a failed flush counts as a loss, whoever asked for it.
#[tokio::test]
async fn failed_flushes_count() {
    let rig = Rig::new();
    let fault = Fault::new(Effect::Fail(ErrorKind::Medium)).on(FaultOperation::Flush);
    rig.faults.inject(fault.times(1));
    assert_eq!(rig.member.losses(), 0);
    assert!(rig.member.write_label(&label(1), &rig.buffers).await.is_err());
    assert_eq!(rig.member.losses(), 1);
}
