//! Concatenations and stripes against a model in memory.

use crate::common::{Device, filled, memories, memory, read};
use futures_util::poll;
use lunar_block::{
    BlockDevice, BlockRange, BufferPool, Effect, ErrorKind, Extent, ExtentState, Fault,
    FaultDevice, FaultOperation, IoContext, MemoryDevice,
};
use lunar_pool::{OpenOptions, Pool, PoolError, PoolSpec};
use proptest::prelude::*;
use std::sync::Arc;

async fn open(spec: PoolSpec, members: Vec<Device>) -> Arc<Pool> {
    Pool::create(spec, members.clone()).await.unwrap();
    Pool::open("pool", members, OpenOptions::default()).await.unwrap()
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Write,
    Read,
    Unmap,
    Zero,
}

fn specs() -> impl Strategy<Value = (PoolSpec, Vec<u64>)> {
    let sizes = proptest::collection::vec(1u64..40, 2..6);
    let concat = sizes.prop_map(|sizes| (PoolSpec::Concat, sizes));
    let stripe = (1u32..9, 1u64..6, 2usize..6).prop_map(|(unit, units, members)| {
        let spec = PoolSpec::Stripe { unit_bytes: unit * 512 };
        (spec, vec![u64::from(unit) * units; members])
    });
    prop_oneof![concat, stripe]
}

fn steps() -> impl Strategy<Value = Vec<(Step, u64, u64, u8)>> {
    let kinds = [Step::Write, Step::Read, Step::Unmap, Step::Zero];
    let step = (0usize..4).prop_map(move |kind| kinds[kind]);
    proptest::collection::vec((step, any::<u64>(), any::<u64>(), 1u8..), 1..40)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Goal: every pool of every shape holds what a vector holds after the same operations, and
    /// opened again with its members in another order.
    #[test]
    fn pools_are_like_vectors((spec, sizes) in specs(), steps in steps(), turn in 0usize..6) {
        let run = async move {
            let mut members: Vec<Device> =
                sizes.iter().map(|blocks| memory(blocks * 512, 512, 512)).collect();
            let pool = open(spec, members.clone()).await;
            let blocks = pool.geometry().block_count;
            assert_eq!(blocks, sizes.iter().sum::<u64>());
            let mut model = vec![0u8; blocks as usize];
            for (step, lba, count, value) in steps {
                let lba = lba % blocks;
                let range = BlockRange::new(lba, count % (blocks - lba) + 1);
                let part = lba as usize..(lba + range.count) as usize;
                let data: Vec<u8> = part.clone().map(|at| value ^ at as u8).collect();
                match step {
                    Step::Write => {
                        let bytes: Vec<u8> = data.iter().flat_map(|byte| [*byte; 512]).collect();
                        pool.write(range, bytes.into(), false).await.unwrap();
                        model[part].copy_from_slice(&data);
                    }
                    Step::Read => {
                        let want: Vec<u8> =
                            model[part].iter().flat_map(|byte| [*byte; 512]).collect();
                        assert_eq!(read(&*pool, lba, range.count).await, want);
                    }
                    Step::Unmap | Step::Zero => {
                        let sparse = pool.sparse().unwrap();
                        match step {
                            Step::Unmap => sparse.unmap(range, false).await.unwrap(),
                            _ => sparse.write_zeroes(range, false, true).await.unwrap(),
                        }
                        model[part].fill(0);
                    }
                }
            }
            drop(pool);
            let count = members.len();
            members.rotate_left(turn % count);
            let pool = Pool::open("again", members, OpenOptions::default()).await.unwrap();
            let want: Vec<u8> = model.iter().flat_map(|byte| [*byte; 512]).collect();
            assert_eq!(read(&*pool, 0, blocks).await, want);
        };
        runtime().block_on(run);
    }
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

/// Goal: physical blocks and optimal transfers follow the members and the unit, so that hosts
/// align.
#[tokio::test]
async fn geometry_follows_members_and_unit() {
    let physical =
        |bytes: u32| -> Device { Arc::new(MemoryDevice::new(2 << 20, 512, bytes).unwrap()) };
    let stripe = |unit_bytes| PoolSpec::Stripe { unit_bytes };
    let pool = open(stripe(64 << 10), vec![physical(512), physical(4096), physical(512)]).await;
    let geometry = pool.geometry();
    assert_eq!(geometry.physical_block_bytes, 4096);
    assert_eq!(geometry.optimal_transfer_bytes, 3 * (64 << 10));
    let members = vec![physical(512), physical(4096)];
    let refused = Pool::create(stripe(2048), members).await;
    assert!(matches!(refused, Err(PoolError::Unit { physical_block_bytes: 4096, .. })));
    let pool = open(PoolSpec::Concat, vec![physical(4096), physical(512)]).await;
    assert_eq!(pool.geometry().physical_block_bytes, 4096);
    assert_eq!(pool.geometry().optimal_transfer_bytes, 1 << 20);
    let pool = open(stripe(512), memories(2, 1 << 20)).await;
    assert_eq!(pool.geometry().physical_block_bytes, 512);
}

/// Goal: a request that lies within one member is passed on without waiting; others are not.
#[tokio::test]
async fn requests_of_one_member_do_not_wait() {
    let pool = open(PoolSpec::Stripe { unit_bytes: 4096 }, memories(2, 1 << 20)).await;
    let data = filled(7, 8);
    assert!(pool.try_write_now(BlockRange::new(8, 8), &data, false));
    assert!(!pool.try_write_now(BlockRange::new(4, 8), &data, false));
    let mut into = vec![0; 4096];
    assert!(pool.try_read_now(BlockRange::new(8, 8), &mut into));
    assert_eq!(into, data);
    assert!(!pool.try_read_now(BlockRange::new(4, 8), &mut into));
    assert!(!pool.try_read_now(BlockRange::new(0, 0), &mut into));
}

/// Goal: the failure of a member is an error of the pool with the blocks of the pool, and no other
/// part of the request is left behind.
#[tokio::test]
async fn errors_name_the_pool_and_the_member() {
    let faults: Vec<Arc<FaultDevice>> =
        memories(2, 1 << 20).into_iter().map(|memory| FaultDevice::new(memory, 1)).collect();
    let members: Vec<Device> = faults.iter().map(|fault| Arc::clone(fault) as Device).collect();
    let pool = open(PoolSpec::Stripe { unit_bytes: 4096 }, members).await;
    let range = BlockRange::new(0, 64);
    let fault = Fault::new(Effect::Fail(ErrorKind::NoSpace)).on(FaultOperation::Write);
    faults[1].inject(fault.times(1));
    let error = pool.write(range, filled(1, 64), false).await.unwrap_err();
    assert_eq!((error.kind, error.range), (ErrorKind::NoSpace, Some(range)));
    assert!(error.to_string().starts_with("pool: a member failed: mem:"), "{error}");
    assert_eq!(read(&*pool, 0, 8).await, filled(1, 8), "the other member has its part");
    let fault = Fault::new(Effect::Fail(ErrorKind::Medium)).on(FaultOperation::Read);
    faults[1].inject(fault.times(1));
    let buffers = BufferPool::default();
    let error = pool.read(range, buffers.take(64 * 512)).await.unwrap_err();
    assert_eq!((error.kind, error.range), (ErrorKind::Medium, Some(range)));
    assert_eq!(buffers.in_use_bytes(), 0);
}

/// Fault: a write over several mirrors could not be cancelled while it waited for its turn, so
/// those of a host that was gone took one turn after the other. Goal: it is cancelled if no part of
/// it has begun.
#[tokio::test]
async fn waiting_writes_of_several_mirrors_can_be_cancelled() {
    let mut mirrors: Vec<Device> = Vec::new();
    let mut slow = Vec::new();
    for seed in 0..2 {
        let members = memories(2, 4 << 20);
        Pool::create(PoolSpec::Mirror { erase: true }, members.clone()).await.unwrap();
        let fault = FaultDevice::new(Arc::clone(&members[1]), seed);
        let members = vec![Arc::clone(&members[0]), Arc::clone(&fault) as Device];
        mirrors.push(Pool::open("mirror", members, OpenOptions::default()).await.unwrap());
        slow.push(fault);
    }
    let pool = open(PoolSpec::Stripe { unit_bytes: 4096 }, mirrors).await;
    pool.write(BlockRange::new(0, 64), filled(1, 64), false).await.unwrap();
    let hang = Fault::new(Effect::Hang).on(FaultOperation::Write).times(1);
    slow.iter().for_each(|fault| fault.inject(hang));
    let contexts: Vec<_> = (0..3).map(|_| IoContext::new(&Arc::default())).collect();
    let mut writes: Vec<_> = (2..)
        .zip(&contexts)
        .map(|(value, context)| {
            let write = pool.write(BlockRange::new(0, 64), filled(value, 64), false);
            Box::pin(context.scope(write))
        })
        .collect();
    for write in &mut writes {
        assert!(poll!(write).is_pending());
    }
    assert!(slow.iter().all(|fault| fault.hanging() == 1));
    assert!(!contexts[0].cancel(), "it has begun");
    assert!(contexts[1].cancel());
    let last = writes.remove(2);
    drop(writes.remove(1));
    slow.iter().for_each(|fault| fault.release());
    writes.remove(0).await.unwrap();
    last.await.unwrap();
    assert!(!contexts[2].cancel());
    assert_eq!(read(&*pool, 0, 64).await, filled(4, 64));
    let seen: Vec<u64> = slow.iter().map(|fault| fault.seen(FaultOperation::Write)).collect();
    pool.write(BlockRange::new(0, 64), filled(5, 64), false).await.unwrap();
    let written: Vec<u64> = slow.iter().map(|fault| fault.seen(FaultOperation::Write)).collect();
    assert_eq!(written, [seen[0] + 1, seen[1] + 1], "the cancelled write reached no member");
}

/// Goal: the state of a long range of short units is found in few steps, and is right at every
/// boundary.
#[tokio::test]
async fn states_of_long_ranges() {
    const UNITS: u64 = 1 << 14;
    let pool = open(PoolSpec::Stripe { unit_bytes: 4096 }, memories(2, UNITS * 4096)).await;
    let sparse = pool.sparse().unwrap();
    let all = BlockRange::new(0, 2 * UNITS * 8);
    let unmapped =
        |lba, count| Extent { range: BlockRange::new(lba, count), state: ExtentState::Unmapped };
    assert_eq!(sparse.status(all, 9).await.unwrap(), [unmapped(0, all.count)]);
    pool.write(BlockRange::new(80, 16), filled(1, 16), false).await.unwrap();
    pool.write(BlockRange::new(112, 8), filled(1, 8), false).await.unwrap();
    let mapped = |lba, count| Extent { state: ExtentState::Mapped, ..unmapped(lba, count) };
    let want = [
        unmapped(0, 80),
        mapped(80, 16),
        unmapped(96, 16),
        mapped(112, 8),
        unmapped(120, all.count - 120),
    ];
    for extents_max in 1..7 {
        let found = sparse.status(all, extents_max).await.unwrap();
        assert_eq!(found, want[..extents_max.min(want.len())]);
    }
}
