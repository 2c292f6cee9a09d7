//! The contract of a disk, over every kind of pool and nesting.

use crate::common::{Device, OVERHEAD_BYTES, memory};
use lunar_block::contract::Contract;
use lunar_block::{FaultDevice, Geometry};
use lunar_pool::{OpenOptions, Pool, PoolSpec};
use std::sync::Arc;

const UNIT_BYTES: u32 = 4096;

/// Creates a pool and opens it.
fn pool(spec: PoolSpec, members: Vec<Device>) -> Device {
    let made = async {
        Pool::create(spec, members.clone()).await.unwrap();
        Pool::open("pool", members, OpenOptions::default()).await.unwrap()
    };
    block_on(made)
}

/// Waits inside the runtime of the test. Memory disks never wait, except between pieces of work.
fn block_on<T>(future: impl Future<Output = T>) -> T {
    let mut future = std::pin::pin!(future);
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    loop {
        if let std::task::Poll::Ready(done) = future.as_mut().poll(&mut context) {
            return done;
        }
    }
}

/// Makes a disk of `bytes` of which the geometry is otherwise that of `shape`.
type MakeMember = fn(u64, Geometry) -> Device;

fn plain(bytes: u64, shape: Geometry) -> Device {
    memory(bytes, shape.block_bytes, shape.physical_block_bytes)
}

fn stripe_of(members: u64, member: MakeMember, bytes: u64, shape: Geometry) -> Device {
    let part = bytes / members;
    assert_eq!(part * members, bytes);
    let members = (0..members).map(|_| member(part, shape)).collect();
    pool(PoolSpec::Stripe { unit_bytes: UNIT_BYTES }, members)
}

fn concat_of(member: MakeMember, bytes: u64, shape: Geometry) -> Device {
    let first = (bytes / 3).next_multiple_of(u64::from(UNIT_BYTES));
    pool(PoolSpec::Concat, vec![member(first, shape), member(bytes - first, shape)])
}

/// Goal: a concatenation of two members of different sizes is a disk.
#[test]
fn concat() {
    Contract::new(&|shape| concat_of(plain, shape.size_bytes(), shape))
        .size_multiple_of(2 * UNIT_BYTES)
        .run();
}

/// Goal: a stripe over two members is a disk.
#[test]
fn stripe_of_two() {
    Contract::new(&|shape| stripe_of(2, plain, shape.size_bytes(), shape))
        .size_multiple_of(2 * UNIT_BYTES)
        .run();
}

/// Goal: a stripe over five members is a disk.
#[test]
fn stripe_of_five() {
    Contract::new(&|shape| stripe_of(5, plain, shape.size_bytes(), shape))
        .size_multiple_of(5 * UNIT_BYTES)
        .run();
}

/// Goal: a stripe over members that cannot transfer without waiting is a disk.
#[test]
fn stripe_that_waits() {
    let slow: MakeMember = |bytes, shape| FaultDevice::new(plain(bytes, shape), 1);
    Contract::new(&|shape| stripe_of(2, slow, shape.size_bytes(), shape))
        .size_multiple_of(2 * UNIT_BYTES)
        .run();
}

/// Goal: a stripe over concatenations, and a concatenation of stripes, are disks.
#[test]
fn nested() {
    let member: MakeMember = |bytes, shape| concat_of(plain, bytes + OVERHEAD_BYTES, shape);
    Contract::new(&|shape| stripe_of(2, member, shape.size_bytes(), shape))
        .size_multiple_of(4 * UNIT_BYTES)
        .run();
    let member: MakeMember = |bytes, shape| {
        let bytes = bytes + OVERHEAD_BYTES;
        stripe_of(2, plain, bytes.next_multiple_of(2 * u64::from(UNIT_BYTES)), shape)
    };
    Contract::new(&|shape| {
        let bytes = shape.size_bytes();
        let first = bytes / 2;
        // The stripe has room for one more unit, because of its own labels.
        let rest = bytes - first - u64::from(UNIT_BYTES);
        let members = vec![member(first, shape), plain(rest, shape)];
        pool(PoolSpec::Concat, members)
    })
    .size_multiple_of(4 * UNIT_BYTES)
    .run();
}

fn mirror_of(members: usize, member: MakeMember, bytes: u64, shape: Geometry) -> Device {
    let members = (0..members).map(|_| member(bytes, shape)).collect();
    pool(PoolSpec::Mirror { erase: true }, members)
}

/// Goal: a mirror of two members is a disk, and of members that cannot transfer without waiting.
#[test]
fn mirror() {
    Contract::new(&|shape| mirror_of(2, plain, shape.size_bytes(), shape)).run();
    let slow: MakeMember = |bytes, shape| FaultDevice::new(plain(bytes, shape), 1);
    Contract::new(&|shape| mirror_of(2, slow, shape.size_bytes(), shape)).run();
}

/// Goal: a mirror with a member that often declines to transfer at once is a disk.
#[test]
fn mirror_of_unequal_members() {
    Contract::new(&|shape| {
        let bytes = shape.size_bytes();
        let members = vec![plain(bytes, shape), FaultDevice::new(plain(bytes, shape), 1) as Device];
        pool(PoolSpec::Mirror { erase: true }, members)
    })
    .run();
}

/// Goal: stripes of mirrors (RAID 10) are disks.
#[test]
fn stripes_of_mirrors() {
    let member: MakeMember = |bytes, shape| mirror_of(2, plain, bytes + OVERHEAD_BYTES, shape);
    Contract::new(&|shape| stripe_of(2, member, shape.size_bytes(), shape))
        .size_multiple_of(2 * UNIT_BYTES)
        .run();
}

/// Goal: mirrors of concatenations are disks.
#[test]
fn mirrors_of_concats() {
    let member: MakeMember = |bytes, shape| concat_of(plain, bytes + OVERHEAD_BYTES, shape);
    Contract::new(&|shape| mirror_of(2, member, shape.size_bytes(), shape)).run();
}

/// Goal: no pool keeps a device of its members when it is dropped.
#[tokio::test]
async fn members_are_released() {
    let members: Vec<Device> = vec![memory(1 << 20, 512, 512), memory(1 << 20, 512, 512)];
    let mirror = PoolSpec::Mirror { erase: true };
    for spec in [PoolSpec::Concat, PoolSpec::Stripe { unit_bytes: 8192 }, mirror] {
        Pool::create(spec, members.clone()).await.unwrap();
        let opened = Pool::open("pool", members.clone(), OpenOptions::default()).await.unwrap();
        assert!(Arc::strong_count(&members[0]) > 1);
        drop(opened);
        assert!(members.iter().all(|member| Arc::strong_count(member) == 1));
        for member in &members {
            Pool::clear_label(Arc::clone(member)).await.unwrap();
        }
    }
}
