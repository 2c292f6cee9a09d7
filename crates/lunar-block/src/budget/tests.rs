//! Tests of shares, waiting requests and counts of a budget.

use super::*;
use crate::BufferPool;
use futures_util::FutureExt;
use std::pin::{Pin, pin};
use std::task::{Context, Waker};

const LIMIT: usize = 16 << 20;
/// Bytes charged for a buffer of one mebibyte.
const PIECE: usize = (1 << 20) + crate::PAGE_BYTES;

fn pool() -> BufferPool {
    BufferPool::with_budget(&MemoryBudget::new(LIMIT))
}

fn owner(pool: &BufferPool) -> BufferPool {
    pool.account(&Arc::default(), MemoryKind::DataIn)
}

/// Takes buffers of one mebibyte until one is refused.
fn take_all(pool: &BufferPool) -> Vec<crate::Buffer> {
    std::iter::from_fn(|| pool.try_take(1 << 20)).collect()
}

/// Goal: one owner gets half of 15 usable mebibytes, the next owner half of the rest, and each new
/// owner some; a refusal charges nothing, and all memory returns.
#[test]
fn owners_share_scarce_memory() {
    let pool = pool();
    let owners: Vec<_> = (0..4).map(|_| owner(&pool)).collect();
    let held: Vec<_> = owners.iter().map(take_all).collect();
    let counts: Vec<_> = held.iter().map(Vec::len).collect();
    assert_eq!(counts, [7, 4, 2, 1]);
    assert!(pool.budget().usage().used_bytes <= LIMIT);
    assert_eq!(owners[0].held_bytes(), 7 * PIECE);
    drop(held);
    let usage = pool.budget().usage();
    assert_eq!(usage.used_bytes, usage.idle_bytes);
    assert_eq!(usage.by_kind, [0; MemoryKind::ALL.len()]);
    assert_eq!(take_all(&owners[3]).len(), 7, "freed memory is available to another owner");
}

/// Goal: several accounts of one owner count as one.
#[test]
fn further_accounts_give_an_owner_no_more_memory() {
    let pool = pool();
    let initiator = Arc::new(MemoryOwner::default());
    let accounts: Vec<_> = (0..8).map(|_| pool.account(&initiator, MemoryKind::DataIn)).collect();
    let held: Vec<_> = accounts.iter().flat_map(take_all).collect();
    assert_eq!(held.len(), 7);
    assert_eq!(initiator.held_bytes(), 7 * PIECE);
}

/// Goal: as memory is released, waiting requests are served in ascending order of what their owners
/// hold.
#[test]
fn the_owner_with_the_least_memory_goes_first() {
    let pool = pool();
    let (greedy, modest) = (owner(&pool), owner(&pool));
    let mut held = take_all(&greedy);
    let mut rest: Vec<_> = (0..7).map(|_| pool.take(1 << 20)).collect();
    let mut greedy_waits = pin!(greedy.take_when_free(1 << 20));
    let mut modest_waits = pin!(modest.take_when_free(1 << 20));
    let mut context = Context::from_waker(Waker::noop());
    assert!(greedy_waits.as_mut().poll(&mut context).is_pending());
    assert!(modest_waits.as_mut().poll(&mut context).is_pending());
    assert_eq!(pool.budget().usage().waiting, 2);
    held.pop();
    assert!(
        greedy_waits.as_mut().poll(&mut context).is_pending(),
        "the earlier request, whose owner holds more"
    );
    assert!(modest_waits.as_mut().poll(&mut context).is_ready());
    rest.clear();
    assert!(greedy_waits.as_mut().poll(&mut context).is_ready());
    assert_eq!(pool.budget().usage().waiting, 0);
}

/// Goal: a new request does not overtake requests that wait for scarce memory, unless its owner
/// holds less than theirs.
#[test]
fn waiting_requests_come_before_new_ones() {
    let pool = pool();
    // Includes the part of the limit that is reserved for small requests.
    let held = (pool.take(15 << 20), pool.charge(LIMIT / 32));
    let (first, second) = (owner(&pool), owner(&pool));
    let mut waits = pin!(first.take_when_free(8 << 20));
    assert!((&mut waits).now_or_never().is_none());
    assert!(second.try_take(4096).is_none());
    drop(held);
    assert!(waits.now_or_never().is_some());
    assert!(second.try_take(4096).is_some());

    let pool = self::pool();
    let (greedy, newcomer) = (owner(&pool), owner(&pool));
    let _held = take_all(&greedy);
    let mut waits = pin!(greedy.take_when_free(1 << 20));
    assert!((&mut waits).now_or_never().is_none());
    assert!(newcomer.try_take(1 << 20).is_some());
    assert!((&mut waits).now_or_never().is_none());
}

/// Goal: a request that is cancelled leaves nothing behind, whether or not it was granted already.
#[test]
fn dropped_requests_hold_no_memory() {
    let pool = pool();
    for granted in [false, true] {
        let held: Vec<_> = (0..15).map(|_| pool.take(1 << 20)).collect();
        let asks = owner(&pool);
        let mut waits = Box::pin(asks.take_when_free(1 << 20));
        assert!((&mut waits).now_or_never().is_none());
        if granted {
            drop(held);
            drop(waits);
        } else {
            drop(waits);
            assert_eq!(pool.budget().usage().waiting, 0);
            drop(held);
        }
        let usage = pool.budget().usage();
        assert_eq!((usage.waiting, usage.used_bytes), (0, usage.idle_bytes));
    }
}

/// Goal: idle memory is freed for any request, and none is kept while memory is scarce.
#[test]
fn idle_memory_is_freed_for_requests() {
    let pool = pool();
    drop((0..4).map(|_| pool.take(1 << 20)).collect::<Vec<_>>());
    assert!(pool.budget().usage().idle_bytes > 2 << 20);
    let large = owner(&pool).try_take(8 << 20);
    assert!(large.is_some());
    assert_eq!(pool.budget().usage().idle_bytes, 0);
    drop(pool.take(1 << 20));
    assert_eq!(pool.budget().usage().idle_bytes, 0);
}

/// Goal: charges for memory outside the pool count until they are dropped; a charge attached to
/// bytes counts until their last share is dropped.
#[test]
fn charges_count_while_they_live() {
    let pool = pool().account(&Arc::default(), MemoryKind::Control);
    let mut charge = pool.charge(1000);
    charge.set(3000);
    charge.set(2000);
    assert_eq!((charge.bytes(), pool.held_bytes()), (2000, 2000));
    let bytes: Bytes = pool.charge_vec(vec![7; 500]);
    let share = bytes.slice(499..);
    drop((bytes, charge));
    assert_eq!(pool.budget().usage().by_kind[MemoryKind::Control as usize], 500);
    drop(share);
    assert_eq!(pool.budget().usage().used_bytes, 0);
}

/// Goal: threads that take, wait and drop at random never exceed the limit and leave nothing
/// behind; a request that can be met is met in the end. Method: by seed; each thread is an owner.
#[test]
fn many_threads_keep_the_limit() {
    let pool = pool();
    std::thread::scope(|scope| {
        for seed in 1..5u64 {
            let mine = owner(&pool);
            scope.spawn(move || {
                let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
                let (mut random, mut held) = (seed, Vec::new());
                for _ in 0..500 {
                    random = random.wrapping_mul(6364136223846793005).wrapping_add(1);
                    let len = (random >> 33) as usize % (4 << 20);
                    match mine.try_take(len) {
                        Some(buffer) => held.push(buffer),
                        None => {
                            // Holds nothing while waiting, so that the other threads can finish.
                            held.clear();
                            held.push(runtime.block_on(mine.take_when_free(len)));
                        }
                    }
                    assert!(mine.budget().usage().used_bytes <= LIMIT, "seed {seed}");
                }
            });
        }
    });
    let usage = pool.budget().usage();
    assert_eq!((usage.used_bytes, usage.waiting), (usage.idle_bytes, 0));
    assert_eq!(pool.in_use_bytes(), 0);
}

/// Creates `count` waiting requests of 8 MiB that do not fit, each of an owner that holds nothing.
fn unfulfillable(
    pool: &BufferPool,
    count: usize,
) -> Vec<Pin<Box<dyn Future<Output = crate::Buffer>>>> {
    (0..count)
        .map(|_| {
            let asks = owner(pool);
            let mut waits: Pin<Box<dyn Future<Output = _>>> =
                Box::pin(async move { asks.take_when_free(8 << 20).await });
            assert!((&mut waits).now_or_never().is_none());
            waits
        })
        .collect()
}

/// Fault: 17 addresses that held nothing requested 8 MiB each, again and again. Releases looked
/// only at the first 16 of them, new requests of all owners that held memory were refused, and a
/// host with ten sessions got one answer per second.
#[test]
fn unfulfillable_requests_block_no_others() {
    let pool = pool();
    let victim = owner(&pool);
    let session = victim.charge(16 << 10);
    let mut held: Vec<_> = (0..3).map(|_| take_all(&owner(&pool))).collect();
    assert_eq!(held.iter().map(Vec::len).sum::<usize>(), 13);
    let _waiting = unfulfillable(&pool, 17);
    assert!(victim.try_take(4096).is_some(), "a new request");
    let mut waits = pin!(victim.take_when_free(2 << 20));
    assert!((&mut waits).now_or_never().is_none());
    held[2].pop();
    assert!(waits.now_or_never().is_some(), "one that waits");
    assert_eq!(pool.budget().usage().waiting, 17);
    drop(session);
}

/// Fault: one waiting request of an address that held little caused new sessions of all owners that
/// held more to be refused (0302h), because new sessions do not wait.
#[test]
fn an_unfulfillable_request_does_not_block_sessions() {
    let pool = pool();
    let (victim, other) = (owner(&pool), owner(&pool));
    let _sessions = victim.charge(256 << 10);
    let _rest = pool.charge(14 << 20);
    let mut waits = pin!(other.take_when_free(1 << 20));
    assert!((&mut waits).now_or_never().is_none());
    assert!(victim.try_charge(256 << 10).is_some());
    assert!(victim.try_charge(600 << 10).is_none(), "more than its share");
}

/// Goal: an owner that has given memory back moves forward in the queue, past a request that cannot
/// be met.
#[test]
fn owners_that_returned_memory_are_preferred() {
    let pool = pool();
    let victim = owner(&pool);
    let session = victim.charge(2 << 20);
    let mut rest = pool.charge(13 << 20);
    let mut waits = pin!(victim.take_when_free(64 << 10));
    assert!((&mut waits).now_or_never().is_none());
    let blocking = owner(&pool);
    let mut blocks = pin!(blocking.take_when_free(1 << 20));
    assert!((&mut blocks).now_or_never().is_none());
    rest.set(LIMIT / 32 * 31);
    drop(session);
    assert!((&mut waits).now_or_never().is_none());
    rest.set(LIMIT / 32 * 31 - (200 << 10));
    assert!(waits.now_or_never().is_some());
    assert!(blocks.now_or_never().is_none());
}

/// Fault: requests granted by one release did not count as held by their owner until the requesting
/// tasks ran, so one owner got all free memory.
#[test]
fn grants_count_before_they_are_taken() {
    let pool = pool();
    let greedy = owner(&pool);
    let rest = pool.charge(15 << 20);
    let mut waiting: Vec<_> = (0..12).map(|_| Box::pin(greedy.take_when_free(1 << 20))).collect();
    for waits in &mut waiting {
        assert!(waits.now_or_never().is_none());
    }
    drop(rest);
    assert_eq!(pool.budget().usage().waiting, 5, "7 of 15, and not all");
    assert_eq!(greedy.owner_bytes(), 7 * PIECE);
    drop(waiting);
    assert_eq!((greedy.owner_bytes(), pool.budget().usage().used_bytes), (0, 0));
}

/// Fault: owners of less than 1/512 of the limit were never required to give memory back: 2,500
/// addresses that held 380 KiB each took 645 MiB of 256 MiB.
#[test]
fn many_small_owners_keep_the_limit() {
    const OWNERS: usize = 1024;
    let pool = pool();
    let accounts: Vec<_> =
        (0..OWNERS).map(|_| pool.account(&pool.budget().owner(), MemoryKind::Session)).collect();
    let mut charges: Vec<_> = accounts.iter().map(|account| account.charge(0)).collect();
    for bytes in (4096..LIMIT / 512).step_by(4096) {
        charges.iter_mut().for_each(|charge| charge.set(bytes));
        for (account, charge) in accounts.iter().zip(&mut charges) {
            if account.must_release_memory() {
                charge.set(0);
            }
        }
        let used = pool.budget().usage().used_bytes;
        assert!(used <= LIMIT, "{used} of {LIMIT} bytes where each holds {bytes}");
    }
    let remaining = charges.iter().filter(|charge| charge.bytes() > 0).count();
    assert!(remaining > OWNERS / 3, "{remaining}");
    drop((accounts, charges));
    let few = pool.account(&pool.budget().owner(), MemoryKind::Session);
    let _all = pool.charge(LIMIT);
    let _little = few.charge(LIMIT / 512);
    assert!(!few.must_release_memory(), "owners that are gone do not count");
}

/// Fault: charges that no owner is required to give back took the rest of the memory for requests,
/// and a host that held little got no buffer of 4 KiB while others held all memory.
#[test]
fn small_requests_get_memory_when_all_is_in_use() {
    let pool = pool();
    let account = || pool.account(&pool.budget().owner(), MemoryKind::DataIn);
    let (victim, greedy) = (account(), account());
    let held = take_all(&greedy);
    let _rest = pool.charge(LIMIT / 16 * 15 - held.len() * PIECE);
    let small = victim.try_take(4096);
    assert!(small.is_some());
    assert!(victim.try_take(LIMIT / 64).is_none(), "a request that is not small");
    assert!(greedy.try_take(4096).is_none(), "an owner that holds more");
    assert!(greedy.must_release_memory() && greedy.must_release_data());
    assert!(!victim.must_release_memory() && !victim.must_release_data());
    drop(small);
    assert!(!greedy.must_release_data(), "requests use no more than they may");
    let _all = pool.charge(LIMIT / 32);
    assert!(victim.try_take(4096).is_none(), "the rest is reserved for unconditional charges");
}

/// Goal: the bytes of a kind add up, whichever threads charge and release them.
#[test]
fn kinds_are_counted_across_threads() {
    let pool = pool().account(&Arc::default(), MemoryKind::DataOut);
    let of_kind = || pool.budget().usage().by_kind[MemoryKind::DataOut as usize];
    let charged: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..40).map(|_| scope.spawn(|| pool.charge(100))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert_eq!((of_kind(), pool.held_bytes()), (4000, 4000));
    std::thread::scope(|scope| {
        for charge in charged {
            scope.spawn(move || drop(charge));
        }
    });
    assert_eq!(pool.budget().usage().by_kind, [0; MemoryKind::ALL.len()]);
}

/// Goal: the idle memory of a class is counted, whatever classes there are.
#[test]
fn idle_memory_is_counted_by_class() {
    let pool = pool();
    let lens = [1, 4096, 5000, 100_000, 1 << 20];
    drop(lens.map(|len| pool.take(len)));
    let charged: usize = lens.into_iter().map(BufferPool::charged_bytes).sum();
    let usage = pool.budget().usage();
    assert_eq!((usage.idle_bytes, usage.used_bytes), (charged, charged));
}
