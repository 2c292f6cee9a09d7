//! Concurrent writes and reads of the same blocks: members end equal, and every history is
//! linearizable.

use super::rig::Rig;
use crate::common::{next, read};
use lunar_block::{BlockDevice, BlockRange, Effect, Fault, FaultDevice, FaultOperation};
use lunar_pool::ScrubOptions;
use std::cell::{Cell, RefCell};
use std::time::Duration;

/// Number of contended blocks.
const BLOCKS: u64 = 3;
const TASKS: u64 = 6;
const STEPS: u64 = 16;
const SEEDS: u64 = 60;

/// An operation on one block, from `begin` to `end` in a common order.
#[derive(Clone, Copy, Debug)]
struct Operation {
    is_write: bool,
    /// Number of the write, from 1; 0 is the content before all writes.
    value: u32,
    begin: u64,
    end: u64,
}

/// Checks that a history of a block with unique values is linearizable: the order that operations
/// force on writes has no circle (Gibbons, Korach 1997).
fn check(history: &[Operation]) -> Result<(), String> {
    let zero = Operation { is_write: true, value: 0, begin: 0, end: 0 };
    let mut writes = vec![zero];
    writes.extend(history.iter().filter(|operation| operation.is_write));
    writes.sort_by_key(|write| write.value);
    // The zone of a value: its write and its reads.
    let index = |value: u32| writes.iter().position(|write| write.value == value);
    let mut first_end: Vec<u64> = writes.iter().map(|write| write.end).collect();
    let mut last_begin: Vec<u64> = writes.iter().map(|write| write.begin).collect();
    for read in history.iter().filter(|operation| !operation.is_write) {
        let at = index(read.value).ok_or_else(|| format!("{read:?} was never written"))?;
        if read.end < writes[at].begin {
            return Err(format!("{read:?} came before its write"));
        }
        first_end[at] = first_end[at].min(read.end);
        last_begin[at] = last_begin[at].max(read.begin);
    }
    // One value comes before another if an operation of it ended before one of the other began.
    let before = |one: usize, other: usize| one != other && first_end[one] < last_begin[other];
    let count = writes.len();
    let mut indegree = vec![0; count];
    for one in 0..count {
        (0..count).filter(|other| before(one, *other)).for_each(|other| indegree[other] += 1);
    }
    let mut open: Vec<usize> = (0..count).filter(|at| indegree[*at] == 0).collect();
    let mut done = 0;
    while let Some(one) = open.pop() {
        done += 1;
        for other in (0..count).filter(|other| before(one, *other)) {
            indegree[other] -= 1;
            if indegree[other] == 0 {
                open.push(other);
            }
        }
    }
    if done == count { Ok(()) } else { Err(format!("no order fits {history:?}")) }
}

/// Goal: the checker accepts what is linearizable and finds stale and inverted reads.
#[test]
fn the_checker_finds_violations() {
    let write = |value, begin, end| Operation { is_write: true, value, begin, end };
    let read = |value, begin, end| Operation { is_write: false, value, begin, end };
    assert!(check(&[write(1, 1, 5), read(0, 2, 3), read(1, 4, 6)]).is_ok());
    assert!(check(&[write(1, 1, 2), read(0, 3, 4)]).is_err(), "stale");
    assert!(check(&[write(1, 1, 9), read(1, 2, 3), read(0, 4, 5)]).is_err(), "new, then old");
    assert!(check(&[write(1, 1, 9), write(2, 1, 9), read(1, 2, 3), read(2, 4, 5)]).is_ok());
    let flips = [read(1, 2, 3), read(2, 4, 5), read(1, 6, 7)];
    assert!(check(&[&[write(1, 1, 9), write(2, 1, 9)], &flips[..]].concat()).is_err());
}

struct Histories {
    clock: Cell<u64>,
    values: Cell<u32>,
    of_blocks: RefCell<Vec<Vec<Operation>>>,
}

impl Histories {
    fn tick(&self) -> u64 {
        self.clock.set(self.clock.get() + 1);
        self.clock.get()
    }

    fn add(&self, range: BlockRange, operation: impl Fn(u64) -> Operation) {
        for lba in range.lba..range.lba + range.count {
            self.of_blocks.borrow_mut()[lba as usize].push(operation(lba));
        }
    }
}

async fn task(rig: &Rig, histories: &Histories, mut random: u64) {
    for _ in 0..STEPS {
        let lba = next(&mut random) % BLOCKS;
        let range = BlockRange::new(lba, 1 + next(&mut random) % (BLOCKS - lba));
        let begin = histories.tick();
        if next(&mut random).is_multiple_of(2) {
            histories.values.set(histories.values.get() + 1);
            let value = histories.values.get();
            let block = value.to_be_bytes().repeat(128);
            let data = block.repeat(range.count as usize);
            rig.pool.write(range, data.into(), false).await.unwrap();
            let end = histories.tick();
            histories.add(range, |_| Operation { is_write: true, value, begin, end });
        } else {
            let data = read(&*rig.pool, range.lba, range.count).await;
            let end = histories.tick();
            histories.add(range, |lba| {
                let at = (lba - range.lba) as usize * 512;
                let value =
                    u32::from_be_bytes([data[at], data[at + 1], data[at + 2], data[at + 3]]);
                assert_eq!(data[at..at + 512], value.to_be_bytes().repeat(128), "a torn block");
                Operation { is_write: false, value, begin, end }
            });
        }
        tokio::time::sleep(Duration::from_millis(next(&mut random) % 20)).await;
    }
}

/// Goal: a read that began before a write, and found the new data on the member that has it first,
/// is not followed by a read of the old data on the other one.
#[tokio::test(start_paused = true)]
async fn a_read_is_not_ahead_of_a_write() {
    let rig = Rig::new(2).await;
    rig.write(0, 1).await;
    // The first member is slower, so that reads use the second.
    let slow = Fault::new(Effect::Delay(Duration::from_millis(5))).on(FaultOperation::Read);
    rig.faults[0].inject(slow);
    for _ in 0..3 {
        rig.byte(0).await;
    }
    rig.faults[0].heal();
    let delay = |millis| Effect::Delay(Duration::from_millis(millis));
    rig.inject(0, delay(50), FaultOperation::Write);
    rig.faults[1].inject(Fault::new(delay(10)).on(FaultOperation::Read).times(1));
    let write = async {
        tokio::time::sleep(Duration::from_millis(1)).await;
        rig.write(0, 2).await;
    };
    let later = async {
        tokio::time::sleep(Duration::from_millis(20)).await;
        rig.byte(0).await
    };
    let (first, (), second) = futures_util::future::join3(rig.byte(0), write, later).await;
    assert_eq!(rig.faults[1].fired(), 1, "the first read began on the second member");
    assert_ne!((first, second), (2, 1), "new data, then old");
    assert_eq!(rig.byte(0).await, 2);
}

/// Makes each operation of a member take another time: reads are short alongside writes, so that
/// many fall between the ends of one write on the members.
fn inject_delays(fault: &FaultDevice) {
    let delays = [(FaultOperation::Read, [1, 2, 3, 30]), (FaultOperation::Write, [3, 20, 40, 60])];
    for (operation, all) in delays {
        for (millis, per_million) in all.into_iter().zip([300_000, 400_000, 500_000, 1_000_000]) {
            let delay = Effect::Delay(Duration::from_millis(millis));
            fault.inject(Fault::new(delay).on(operation).per_million(per_million));
        }
    }
}

/// Goal: whatever the order in which members finish, all members are equal at the end, and no read
/// returns old data after new data.
/// Method: tasks write and read the same blocks while each operation of each member takes another
/// time, by seed; in some runs a member fails or is silent in between. A scrub runs during them.
#[test]
fn overlapping_operations_are_linearizable() {
    for seed in 0..SEEDS {
        println!("seed {seed}");
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_time().start_paused(true).build().unwrap();
        runtime.block_on(async {
            let rig = Rig::new(2 + (seed % 2) as usize).await;
            rig.faults.iter().for_each(|fault| inject_delays(fault));
            let mut random = seed;
            if seed % 3 > 0 {
                let member = next(&mut random) as usize % rig.faults.len();
                let effect = match seed % 3 {
                    1 => Effect::Tear { blocks: next(&mut random) % 3 },
                    _ => Effect::Hang,
                };
                let fault = Fault::new(effect).after(20 + next(&mut random) % 40).times(1);
                // The first fault that fits counts.
                rig.faults[member].heal();
                rig.faults[member].inject(fault);
                inject_delays(&rig.faults[member]);
            }
            let histories = Histories {
                clock: Cell::new(0),
                values: Cell::new(0),
                of_blocks: RefCell::new(vec![Vec::new(); BLOCKS as usize]),
            };
            let tasks = (0..TASKS).map(|at| task(&rig, &histories, seed * 1000 + at));
            let all = futures_util::future::join_all(tasks);
            let scrub = rig.pool.scrub(ScrubOptions::default());
            let (_, report) = futures_util::future::join(all, scrub).await;
            assert_eq!(report.unwrap().different_blocks, 0, "seed {seed}");
            for (lba, history) in histories.of_blocks.borrow().iter().enumerate() {
                check(history).unwrap_or_else(|why| panic!("seed {seed}, block {lba}: {why}"));
            }
            rig.faults.iter().for_each(|fault| {
                fault.heal();
                fault.release();
            });
            rig.until_healthy().await;
            rig.assert_same().await;
        });
    }
}
