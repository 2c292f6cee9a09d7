//! Commands that are sent again, and commands that are aborted.

use crate::lost_writes::{Rig, block_on};
use crate::relay::Rule;
use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::join_all;
use lunar_block::{
    BlockDevice, BlockRange, BufferPool, Effect, Fault, FaultDevice, FaultOperation, MemoryDevice,
};
use std::sync::Arc;

const READ_16: u8 = 0x88;
const WRITE_16: u8 = 0x8a;
const BUSY: u8 = 0x08;
const TASK_SET_FULL: u8 = 0x28;

async fn write(rig: &Rig) -> Result<(), lunar_block::Error> {
    rig.disk.write(BlockRange::new(1, 1), Bytes::from(vec![5; 512]), false).await
}

/// Fault: BUSY and TASK SET FULL were accepted eight times, within 2.5 s, and then reported as an
/// error of the medium.
#[test]
fn busy_commands_are_sent_again_until_their_time_is_over() {
    block_on(async {
        let memory = || Arc::new(MemoryDevice::new(1 << 20, 512, 4096).unwrap());
        let rig = Rig::with(memory(), |_| {}).await;
        for status in [(BUSY, 0), (TASK_SET_FULL, 1)].into_iter().cycle().take(10) {
            rig.relay.rule(Rule { status: Some(status), ..Rule::of(WRITE_16) });
        }
        write(&rig).await.expect("it was sent again");
        rig.relay.until_all_applied().await;
        rig.end().await;

        let rig = Rig::with(memory(), |options| options.command_seconds = 1).await;
        for _ in 0..1000 {
            rig.relay.rule(Rule { status: Some((TASK_SET_FULL, 1)), ..Rule::of(WRITE_16) });
        }
        let error = write(&rig).await.expect_err("its time is over");
        assert_eq!(error.kind, lunar_block::ErrorKind::Busy, "{error}");
        rig.end().await;
    });
}

/// Fault: a READ whose session was lost was repeated into a buffer that was charged to nobody.
#[test]
fn a_repeated_read_has_a_buffer_of_its_caller() {
    block_on(async {
        let rig = Rig::new(1).await;
        write(&rig).await.unwrap();
        let pool = BufferPool::default();
        rig.relay.rule(Rule { cut: true, ..Rule::of(READ_16) });
        let buffer = rig.disk.read(BlockRange::new(1, 1), pool.take(512)).await.unwrap();
        rig.relay.until_all_applied().await;
        assert_eq!(buffer[..], [5; 512]);
        let charged = BufferPool::charged_bytes(512);
        assert_eq!((pool.held_bytes(), buffer.pool().held_bytes()), (charged, charged));
        drop(buffer);
        rig.end().await;
    });
}

/// Fault: a hundred commands that were dropped at once were aborted with a hundred immediate
/// requests at once. A target accepts a few (Lunar's 16) and rejects the others, after which the
/// session was ended, and all users of the disk waited for the next one.
#[test]
fn many_dropped_commands_do_not_cost_the_session() {
    block_on(async {
        let memory = MemoryDevice::new(1 << 20, 512, 4096).unwrap();
        let faults = FaultDevice::new(Arc::new(memory), 0);
        let rig = Rig::with(Arc::<FaultDevice>::clone(&faults), |_| {}).await;
        write(&rig).await.unwrap(); // the first command examines the unit
        faults.inject(Fault::new(Effect::Hang).on(FaultOperation::Read));
        let pool = BufferPool::default();
        let mut reads: Vec<_> =
            (0..100).map(|_| rig.disk.read(BlockRange::new(0, 1), pool.take(512))).collect();
        for read in &mut reads {
            assert!(read.now_or_never().is_none());
        }
        while faults.hanging() < 100 {
            tokio::task::yield_now().await;
        }
        drop(reads);
        // All are aborted, and their buffers are returned.
        while faults.hanging() > 0 || pool.in_use_bytes() > 0 {
            tokio::task::yield_now().await;
        }
        faults.heal();
        write(&rig).await.unwrap();
        assert_eq!(rig.relay.connections(), 1, "it is still the first session");
        rig.end().await;
    });
}

/// Goal: commands that wait because the target has refused some are sent in the next session when
/// theirs is lost. Method: READs hang, so that a refused WRITE has others to wait for.
#[test]
fn refused_commands_outlive_their_session() {
    block_on(async {
        let memory = MemoryDevice::new(1 << 20, 512, 4096).unwrap();
        let faults = FaultDevice::new(Arc::new(memory), 0);
        let rig = Rig::with(Arc::<FaultDevice>::clone(&faults), |_| {}).await;
        write(&rig).await.unwrap(); // the first command examines the unit
        faults.inject(Fault::new(Effect::Hang).on(FaultOperation::Read));
        let pool = BufferPool::default();
        let mut reads: Vec<_> =
            (0..4).map(|_| rig.disk.read(BlockRange::new(0, 1), pool.take(512))).collect();
        for read in &mut reads {
            assert!(read.now_or_never().is_none());
        }
        while faults.hanging() < reads.len() {
            tokio::task::yield_now().await;
        }
        for _ in 0..4 {
            rig.relay.rule(Rule { status: Some((TASK_SET_FULL, 0x3ffe)), ..Rule::of(WRITE_16) });
        }
        let mut writes = Box::pin(join_all((0..8).map(|_| write(&rig))));
        tokio::select! {
            _ = &mut writes => panic!("four were refused"),
            () = rig.relay.until_all_applied() => {}
        }
        rig.relay.cut_all();
        faults.heal();
        faults.release();
        for written in writes.await {
            written.unwrap();
        }
        for read in reads {
            read.await.unwrap();
        }
        rig.end().await;
    });
}
