use super::*;
use std::collections::BTreeSet;

fn disk(ledger: &Ledger, contents: &[Content]) -> Vec<u8> {
    let blocks = (0..).zip(contents);
    blocks.flat_map(|(lba, content)| content.bytes(lba, ledger.block_bytes())).collect()
}

/// Goal: before a promise the old and the new content are admissible, after it only the new one; a
/// block of one sector is never torn.
#[test]
fn old_or_new_until_promised() {
    use Content::{Stamp, Zeroes};
    let mut ledger = Ledger::new(2, 512);
    let first = ledger.begin([0], Stamp(1));
    assert!(ledger.is_busy(0) && !ledger.is_busy(1));
    ledger.check(&disk(&ledger, &[Zeroes, Zeroes])).unwrap();
    ledger.check(&disk(&ledger, &[Stamp(1), Zeroes])).unwrap();
    ledger.check(&disk(&ledger, &[Zeroes, Stamp(1)])).unwrap_err();
    let mut torn = disk(&ledger, &[Stamp(1), Zeroes]);
    torn[500] = 0;
    ledger.check(&torn).unwrap_err();
    ledger.acknowledge(first, false);
    ledger.check(&disk(&ledger, &[Zeroes, Zeroes])).unwrap();
    let sync = ledger.begin_sync();
    let second = ledger.begin([0, 1], Stamp(2));
    ledger.acknowledge(second, false);
    ledger.acknowledge_sync(sync, 0..1);
    ledger.check(&disk(&ledger, &[Zeroes, Zeroes])).unwrap_err();
    ledger.check(&disk(&ledger, &[Stamp(1), Zeroes])).unwrap();
    ledger.check(&disk(&ledger, &[Stamp(1), Stamp(2)])).unwrap();
    let third = ledger.begin([1], Zeroes);
    ledger.acknowledge(third, true);
    ledger.check(&disk(&ledger, &[Stamp(2), Stamp(2)])).unwrap_err();
    let found = disk(&ledger, &[Stamp(1), Zeroes]);
    assert_eq!(ledger.accept(&found), Ok(vec![]));
    ledger.check(&disk(&ledger, &[Stamp(2), Zeroes])).unwrap_err();
}

/// Goal: a block of several sectors may be torn between sectors of admissible versions.
#[test]
fn long_blocks_are_torn_between_sectors_only() {
    use Content::{Same, Stamp};
    let mut ledger = Ledger::new(1, 4096);
    let first = ledger.begin([0], Stamp(7));
    ledger.acknowledge(first, true);
    ledger.begin([0], Same(8));
    let mut found = disk(&ledger, &[Stamp(7)]);
    found[1024..2048].copy_from_slice(&disk(&ledger, &[Same(8)])[1024..2048]);
    assert_eq!(ledger.accept(&found), Ok(vec![0]));
    found.copy_within(512..1024, 0);
    ledger.check(&found).unwrap_err();
}

/// Goal: either of two overlapping writes is admissible, and the content that both overwrote is
/// not; a read while no write is under way shows which one came last.
#[test]
fn overlapping_writes_are_ordered_by_a_later_read() {
    use Content::{Stamp, Zeroes};
    let mut ledger = Ledger::new(1, 512);
    let found = |ledger: &Ledger, content| ledger.check(&disk(ledger, &[content]));
    let (one, two) = (ledger.begin([0], Stamp(1)), ledger.begin([0], Stamp(2)));
    ledger.acknowledge(one, true);
    let read = ledger.begin_read();
    ledger.acknowledge_read(read, 0..1, &Stamp(1).bytes(0, 512)).unwrap();
    found(&ledger, Zeroes).unwrap_err();
    found(&ledger, Stamp(2)).unwrap();
    ledger.acknowledge(two, true);
    found(&ledger, Stamp(1)).unwrap();
    found(&ledger, Stamp(2)).unwrap();
    let read = ledger.begin_read();
    ledger.acknowledge_read(read, 0..1, &Stamp(1).bytes(0, 512)).unwrap();
    found(&ledger, Stamp(1)).unwrap();
    found(&ledger, Stamp(2)).unwrap_err();
    let three = ledger.begin([0], Stamp(3));
    ledger.acknowledge(three, false);
    let read = ledger.begin_read();
    ledger.acknowledge_read(read, 0..1, &Stamp(1).bytes(0, 512)).unwrap_err();
    found(&ledger, Stamp(1)).unwrap();
}

/// Goal: a read that returns a block torn between two writes is an error.
#[test]
fn torn_reads_are_errors() {
    let mut ledger = Ledger::new(1, 4096);
    ledger.begin([0], Content::Stamp(1));
    let read = ledger.begin_read();
    let mut torn = Content::Stamp(1).bytes(0, 4096);
    torn[512..1024].fill(0);
    ledger.acknowledge_read(read, 0..1, &torn).unwrap_err();
}

/// Goal: a block is not torn between two promised writes; sectors of a write that was not promised
/// may lie over either.
#[test]
fn blocks_are_not_torn_between_promised_writes() {
    use Content::Stamp;
    let mut ledger = Ledger::new(1, 1024);
    let both = [ledger.begin([0], Stamp(1)), ledger.begin([0], Stamp(2))];
    both.into_iter().for_each(|entry| ledger.acknowledge(entry, true));
    let mix = |first: u64, second: u64| {
        [&Stamp(first).bytes(0, 1024)[..512], &Stamp(second).bytes(0, 1024)[512..]].concat()
    };
    ledger.check(&mix(1, 1)).unwrap();
    ledger.check(&mix(1, 2)).unwrap_err();
    ledger.begin([0], Stamp(3));
    ledger.check(&mix(3, 2)).unwrap();
    ledger.check(&mix(1, 3)).unwrap();
    ledger.check(&mix(1, 2)).unwrap_err();
}

/// An operation on one block, which took effect between two times.
#[derive(Clone, Copy, Debug)]
struct Op {
    kind: Kind,
    begun: u64,
    done: Option<u64>,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Kind {
    /// A write of this content; `durable` if its acknowledgement promises it.
    Write {
        stamp: u64,
        durable: bool,
    },
    Sync,
    /// A read that returned this content.
    Read {
        found: u64,
    },
}

impl Op {
    fn is_write(&self) -> bool {
        matches!(self.kind, Kind::Write { .. })
    }
}

/// Runs random operations on a disk of one block until the power is cut. Operations overlap; each
/// takes effect at some moment between its begin and its end.
fn play(random: &mut Random, ledger: &mut Ledger) -> Vec<Op> {
    enum Handle {
        Write(Entry),
        Sync(Sync),
        Read(ReadRecord),
    }
    let mut ops: Vec<Op> = Vec::new();
    let mut running: Vec<(usize, Handle, bool)> = Vec::new();
    let (mut current, mut now) = (0, 0);
    for _ in 0..4 + random.below(28) {
        now += 1;
        if running.is_empty() || (ops.len() < 8 && random.below(3) == 0) {
            let stamp = ops.len() as u64 + 1;
            let (kind, handle) = match random.below(8) {
                0 => (Kind::Sync, Handle::Sync(ledger.begin_sync())),
                1 | 2 => (Kind::Read { found: 0 }, Handle::Read(ledger.begin_read())),
                durable => {
                    let entry = ledger.begin([0], Content::Stamp(stamp));
                    (Kind::Write { stamp, durable: durable > 5 }, Handle::Write(entry))
                }
            };
            running.push((ops.len(), handle, false));
            ops.push(Op { kind, begun: now, done: None });
            continue;
        }
        let at = random.below(running.len() as u64) as usize;
        let (op, _, effective) = &mut running[at];
        let op = &mut ops[*op];
        if !std::mem::replace(effective, true) {
            match &mut op.kind {
                Kind::Write { stamp, .. } => current = *stamp,
                Kind::Read { found } => *found = current,
                Kind::Sync => {}
            }
            continue;
        }
        op.done = Some(now);
        match (running.swap_remove(at).1, op.kind) {
            (Handle::Write(entry), Kind::Write { durable, .. }) => {
                ledger.acknowledge(entry, durable);
            }
            (Handle::Sync(sync), _) => ledger.acknowledge_sync(sync, 0..1),
            (Handle::Read(read), Kind::Read { found }) => {
                ledger.acknowledge_read(read, 0..1, &content(found).bytes(0, 512)).unwrap();
            }
            _ => unreachable!(),
        }
    }
    ops
}

fn content(stamp: u64) -> Content {
    if stamp == 0 { Content::Zeroes } else { Content::Stamp(stamp) }
}

/// Collects the admissible contents by trying all orders of the operations that agree with time and
/// in which each read returns the last write before it. `order` holds the writes so far, `floor`
/// the index of the first one that is admissible.
fn search_all_orders(left: &[Op], order: &[u64], floor: usize, admissible: &mut BTreeSet<u64>) {
    if left.iter().all(|op| op.done.is_none()) {
        admissible.extend(&order[floor..]);
    }
    for (at, op) in left.iter().enumerate() {
        if left.iter().any(|other| other.done.is_some_and(|done| done < op.begun)) {
            continue;
        }
        let (mut order, mut floor) = (order.to_vec(), floor);
        match op.kind {
            Kind::Write { stamp, durable } => {
                order.push(stamp);
                if durable && op.done.is_some() {
                    floor = order.len() - 1;
                }
            }
            Kind::Sync => floor = order.len() - 1,
            Kind::Read { found } if order.last() != Some(&found) => continue,
            Kind::Read { .. } => {}
        }
        let mut left = left.to_vec();
        left.remove(at);
        search_all_orders(&left, &order, floor, admissible);
    }
}

/// Goal: the ledger admits a version exactly if some order of the operations does.
/// Method: random histories, and all orders of each. The search uses the reads that overlap no
/// write, as the ledger does, and the syncs that were acknowledged.
#[test]
fn the_rule_agrees_with_a_search_through_all_orders() {
    let mut overwritten = 0;
    for seed in 0..2_000 {
        let mut ledger = Ledger::new(1, 512);
        let mut ops = play(&mut Random::new(seed), &mut ledger);
        let writes: Vec<Op> = ops.iter().copied().filter(Op::is_write).collect();
        ops.retain(|op| match op.kind {
            Kind::Write { .. } => true,
            Kind::Sync => op.done.is_some(),
            Kind::Read { .. } => op.done.is_some_and(|end| {
                let apart = |w: &Op| w.begun > end || w.done.is_some_and(|done| done < op.begun);
                writes.iter().all(apart)
            }),
        });
        let mut admissible = BTreeSet::new();
        search_all_orders(&ops, &[0], 0, &mut admissible);
        for stamp in 0..=8 {
            let found = ledger.check(&content(stamp).bytes(0, 512)).is_ok();
            assert_eq!(found, admissible.contains(&stamp), "seed {seed}: {stamp} of {ops:#?}");
        }
        overwritten += writes.len() + 1 - admissible.len();
    }
    assert!(overwritten > 2_000, "too few versions were overwritten: {overwritten}");
}
