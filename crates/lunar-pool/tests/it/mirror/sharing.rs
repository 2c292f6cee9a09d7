//! Work of a mirror for which several users wait.

use super::rig::{BLOCKS, REGION, Rig};
use crate::common::{Device, filled, memories};
use futures_util::future::join_all;
use futures_util::poll;
use lunar_block::{
    BlockDevice, BlockRange, BufferPool, Effect, FairDevice, Fault, FaultDevice, FaultOperation,
    ForeignWaiters, IoContext, MemoryOwner,
};
use lunar_pool::{OpenOptions, Pool, PoolSpec};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

/// Lets tasks of the pool run, in virtual time.
async fn run_pool_tasks() {
    tokio::time::sleep(Duration::from_millis(1)).await;
}

fn release(faults: &[Arc<FaultDevice>]) {
    faults.iter().for_each(|fault| {
        fault.heal();
        fault.release();
    });
}

/// Fault: each SYNCHRONIZE CACHE flushed all members, so a flood of one host kept them busy. Goal:
/// flushes that wait share the next one, which begins after all of them.
#[tokio::test(start_paused = true)]
async fn waiting_flushes_share_the_next_one() {
    let rig = Rig::new(2).await;
    rig.write(0, 1).await;
    let seen = |rig: &Rig| [0, 1].map(|at| rig.faults[at].seen(FaultOperation::Flush));
    let before = seen(&rig);
    for member in 0..2 {
        rig.inject(member, Effect::Hang, FaultOperation::Flush);
    }
    let mut first = rig.pool.flush();
    assert!(poll!(&mut first).is_pending());
    run_pool_tasks().await;
    assert_eq!(seen(&rig), before.map(|seen| seen + 1));
    let mut later: Vec<_> = (0..1000).map(|_| rig.pool.flush()).collect();
    for flush in &mut later {
        assert!(poll!(flush).is_pending());
    }
    run_pool_tasks().await;
    assert_eq!(seen(&rig), before.map(|seen| seen + 1), "the members are flushed once at a time");
    rig.faults.iter().for_each(|fault| fault.release());
    first.await.unwrap();
    run_pool_tasks().await;
    for flush in &mut later {
        assert!(poll!(flush).is_pending(), "the first flush began before");
    }
    release(&rig.faults);
    assert!(join_all(later).await.iter().all(Result::is_ok));
    assert_eq!(seen(&rig), before.map(|seen| seen + 2), "no flush for a page without marks");
}

/// Goal: all users who share a flush that fails get its error, with its cause.
#[tokio::test(start_paused = true)]
async fn a_failed_flush_fails_for_all() {
    let rig = Rig::new(2).await;
    rig.write(0, 1).await;
    for member in 0..2 {
        rig.inject(member, Effect::Fail(lunar_block::ErrorKind::Medium), FaultOperation::Flush);
    }
    for flushed in join_all((0..3).map(|_| rig.pool.flush())).await {
        let error = flushed.unwrap_err();
        assert!(error.to_string().contains("a member failed"), "{error}");
        assert!(std::error::Error::source(&error).is_some());
    }
    release(&rig.faults);
}

/// Fault: the page with the marks was written by the first change that needed it; while the future
/// of that change was not polled, the changes of all other hosts waited. Goal: changes wait for the
/// members only.
#[tokio::test(start_paused = true)]
async fn changes_do_not_wait_for_one_that_is_not_polled() {
    let rig = Rig::new(2).await;
    for member in 0..2 {
        rig.inject(member, Effect::Hang, FaultOperation::Write);
    }
    let mut first = Box::pin(rig.try_write(0, 1));
    assert!(poll!(&mut first).is_pending());
    run_pool_tasks().await;
    rig.pool.flush().await.expect("no flush waits for a page");
    release(&rig.faults);
    let others = (1..BLOCKS / REGION).map(|region| rig.try_write(region * REGION, 2));
    let others = tokio::time::timeout(Duration::from_secs(60), join_all(others));
    assert!(others.await.expect("no change waits for the first one").iter().all(Result::is_ok));
    let other = tokio::time::timeout(Duration::from_secs(60), rig.pool.flush());
    other.await.expect("no flush waits for the first change").unwrap();
    first.await.unwrap();
}

/// A `ForeignWaiters` whose result a test sets.
#[derive(Debug, Default)]
struct SettableWaiters(AtomicBool);

impl ForeignWaiters for SettableWaiters {
    fn are_waiting(&self) -> bool {
        self.0.load(SeqCst)
    }
}

/// Fault: members did not learn that other hosts wait for a transfer, such as one of a COMPARE AND
/// WRITE: the transfer waited in their queues behind all other transfers of its own host. Method:
/// the members are shared devices; another user of the same owner fills their queues.
#[tokio::test(start_paused = true)]
async fn members_know_that_others_wait() {
    let disks = memories(2, BLOCKS * 512);
    Pool::create(PoolSpec::Mirror { erase: true }, disks.clone()).await.unwrap();
    let faults: Vec<_> = disks.into_iter().map(|disk| FaultDevice::new(disk, 1)).collect();
    let members: Vec<_> =
        faults.iter().map(|fault| FairDevice::new(Arc::clone(fault) as Device)).collect();
    let devices = members.iter().map(|member| Arc::clone(member) as Device).collect();
    let pool = Pool::open("pool", devices, OpenOptions::default()).await.unwrap();
    pool.write(BlockRange::new(0, 1), filled(1, 1), false).await.unwrap();
    let owner = Arc::<MemoryOwner>::default();
    let hang = || Fault::new(Effect::Hang).on(FaultOperation::Read);
    faults.iter().for_each(|fault| fault.inject(hang()));
    let buffers = BufferPool::default();
    let mut queued = Vec::new();
    for member in &members {
        for _ in 0..100 {
            let (context, buffer) = (IoContext::new(&owner), buffers.take(512));
            let mut read =
                Box::pin(
                    async move { context.scope(member.read(BlockRange::new(0, 1), buffer)).await },
                );
            assert!(poll!(&mut read).is_pending());
            queued.push(read);
        }
    }
    let waiters = Arc::new(SettableWaiters::default());
    let context = IoContext::with_foreign_waiters(&owner, Some(Arc::clone(&waiters) as _));
    let write = pool.write(BlockRange::new(0, 1), filled(2, 1), false);
    let mut write = Box::pin(context.scope(write));
    assert!(poll!(&mut write).is_pending());
    waiters.0.store(true, SeqCst);
    assert!(poll!(&mut write).is_pending());
    // One read of each member ends, and the write is next.
    faults.iter().for_each(|fault| fault.release());
    for at in [0, 100] {
        drop(queued[at].as_mut().await.unwrap());
    }
    let written = tokio::time::timeout(Duration::from_secs(60), write).await;
    written.expect("the write comes before the queued reads").unwrap();
    release(&faults);
    drop(queued);
}
