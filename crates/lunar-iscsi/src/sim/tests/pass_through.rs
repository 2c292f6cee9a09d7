//! Commands that a target passes on to another target, with their data in pieces.

use super::{Pair, Rng, random_options, seeds, with_digests};
use crate::connection::initiator::{CommandResult, RequestFailure};
use crate::framing::TaskId;
use crate::sim::{
    BLOCK_BYTES, COMMANDS_MAX, PairOptions, PassThrough, RELAY_BYTES_MAX, Side, SimAnswer,
};
use std::time::Duration;
use std::vec::Vec;

/// Number of blocks that one command may use; each has its own.
const REGION_BLOCKS: usize = 128;

/// The only link of each pair.
const LINK: usize = 0;

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Kind {
    Read,
    Write,
    Exchange,
}

/// A command, and the contents of its blocks before and after it.
struct Operation {
    id: TaskId,
    kind: Kind,
    at: usize,
    old: Vec<u8>,
    new: Vec<u8>,
}

/// Bytes without a zero, so that zeroes in their place are noticed.
fn nonzero(rng: &mut Rng, count: usize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(count.next_multiple_of(8));
    while bytes.len() < count {
        bytes.extend_from_slice(&(rng.bits() | 0x0101_0101_0101_0101).to_be_bytes());
    }
    bytes.truncate(count);
    bytes
}

/// A relay with random options, and digests on both sides, on either, or on none.
fn relay(seed: u64, rng: &mut Rng) -> PassThrough {
    let options = |rng: &mut Rng| match rng.once_in(2) {
        true => with_digests(random_options(rng)),
        false => PairOptions { ..random_options(rng) },
    };
    let (front, back) = (options(rng), options(rng));
    PassThrough::new(seed, front, back)
}

/// Starts commands of all kinds on the host.
fn start(relay: &mut PassThrough, rng: &mut Rng, count: usize) -> Vec<Operation> {
    (0..count)
        .map(|number| {
            let lba = number * REGION_BLOCKS;
            let (at, bytes) = (lba * BLOCK_BYTES, (1 + rng.below(REGION_BLOCKS)) * BLOCK_BYTES);
            let (old, new) = (nonzero(rng, bytes), nonzero(rng, bytes));
            relay.back.disk(1).fill(at, &old);
            let kind = *rng.pick(&[Kind::Read, Kind::Write, Kind::Exchange]);
            let id = match kind {
                Kind::Read => relay.front.start_read(LINK, lba as u64, bytes),
                Kind::Write => relay.front.start_write(LINK, lba as u64, &new),
                Kind::Exchange => relay.front.start_exchange(LINK, lba as u32, &new),
            };
            Operation { id, kind, at, old, new }
        })
        .collect()
}

/// Checks a command that has ended: data of a good one is right and on the disk, and whatever its
/// end, its blocks hold what they held before or what was written. Returns whether it was good.
fn check(relay: &mut PassThrough, operation: &Operation, seed: u64) -> bool {
    let Operation { id, kind, at, old, new } = operation;
    let (result, buffer) = relay.front.result(*id);
    let is_good = |result: &Result<CommandResult, RequestFailure>| {
        result.as_ref().is_ok_and(|result| result.status == 0)
    };
    let good = is_good(&result);
    let blocks = relay.back.disk(1).bytes(*at..*at + old.len());
    let (is_old, is_new) = (blocks == old, blocks == new);
    assert!(is_old || is_new && *kind != Kind::Read, "seed {seed}: {kind:?} left other data");
    if good {
        assert!(is_new || *kind == Kind::Read, "seed {seed}: {kind:?} was lost");
        assert!(*kind == Kind::Write || buffer == *old, "seed {seed}: {kind:?} got wrong data");
    }
    good
}

/// Lets every time limit pass.
fn pass_time_limits(relay: &mut PassThrough) {
    relay.run();
    for _ in 0..4 {
        relay.pass(Duration::from_secs(60));
    }
}

/// Goal: commands of both directions pass through unchanged, whatever was negotiated on both sides,
/// although the relay holds little of their data at a time; each side may be the slower one.
/// Method: random commands; the relay asserts what it holds after every step.
#[test]
fn data_passes_in_pieces() {
    let (mut cut_through, mut over_limit) = (0, 0);
    for seed in seeds(60) {
        let mut rng = Rng::new(seed);
        let mut relay = relay(seed, &mut rng);
        let operations = start(&mut relay, &mut rng, 12);
        relay.run();
        let mut bytes = 0;
        for operation in &operations {
            assert!(check(&mut relay, operation, seed), "seed {seed}: {:?}", operation.kind);
            bytes += operation.old.len();
        }
        cut_through += relay.cut_through_segments;
        over_limit += u32::from(bytes > RELAY_BYTES_MAX);
        relay.assert_nothing_left();
    }
    assert!(cut_through > 100, "{cut_through} segments were passed on as they arrived");
    assert!(over_limit > 10, "the commands must move more than may be held");
}

/// Goal: a side that receives nothing stops the other one: the relay stops reading from it, within
/// its limits, and continues when the side does.
#[test]
fn a_slow_side_stops_the_other() {
    for seed in seeds(20) {
        let mut rng = Rng::new(seed);
        let mut relay = relay(seed, &mut rng);
        let bytes = REGION_BLOCKS * BLOCK_BYTES;
        let data = nonzero(&mut rng, bytes);
        let (slow, other) = match seed % 2 {
            0 => (Side::Host, Side::Storage),
            _ => (Side::Storage, Side::Host),
        };
        relay.back.disk(1).fill(0, &data);
        let mut ids = Vec::new();
        for number in 0..COMMANDS_MAX as usize {
            let lba = (number * REGION_BLOCKS) as u64;
            ids.push(match slow {
                Side::Host => relay.front.start_read(LINK, 0, bytes),
                Side::Storage => relay.front.start_write(LINK, lba, &data),
            });
        }
        relay.run_stalled(slow);
        assert!(ids.iter().all(|id| !relay.front.is_answered(*id)));
        if slow == Side::Host {
            assert!(relay.unread_bytes(other) > 0, "seed {seed}: all was read");
        }
        relay.run();
        for id in ids {
            let (result, buffer) = relay.front.result(id);
            assert_eq!(result.expect("a status").status, 0, "seed {seed}");
            assert!(slow == Side::Storage || buffer == data, "seed {seed}");
        }
        relay.assert_nothing_left();
    }
}

/// Goal: a link cut at any byte on either side ends every command; what was acknowledged is on the
/// disk, nothing else than old or new data is, and nothing is left.
#[test]
fn a_cut_on_either_side_loses_nothing_acknowledged() {
    let (mut good, mut failed) = (0, 0);
    for seed in seeds(120) {
        let mut rng = Rng::new(seed);
        let mut relay = relay(seed, &mut rng);
        let operations = start(&mut relay, &mut rng, 10);
        let pair: &mut Pair = if rng.once_in(2) { &mut relay.front } else { &mut relay.back };
        let soon = pair.delivered(LINK) + rng.below(400_000) as u64;
        pair.cut_after(LINK, soon);
        pass_time_limits(&mut relay);
        for operation in &operations {
            match check(&mut relay, operation, seed) {
                true => good += 1,
                false => failed += 1,
            }
        }
        relay.assert_nothing_left();
        if relay.front.closed(LINK).is_none() {
            let id = relay.front.start_read(LINK, 0, BLOCK_BYTES);
            pass_time_limits(&mut relay);
            let status = relay.front.result(id).0.expect("a status").status;
            let is_cut = relay.back.closed(LINK).is_some();
            assert_eq!(status, if is_cut { 2 } else { 0 }, "seed {seed}");
            relay.assert_nothing_left();
        }
    }
    assert!(good > 50 && failed > 50, "{good} were good, {failed} failed");
}

/// Goal: a bit flipped on a link with digests never becomes data on the other side, checked or
/// passed on as it arrives.
#[test]
fn a_flipped_bit_does_not_pass() {
    let mut flipped = 0;
    for seed in seeds(120) {
        let mut rng = Rng::new(seed);
        let at_front = rng.once_in(2);
        let (mut front, mut back) = (random_options(&mut rng), random_options(&mut rng));
        match at_front {
            true => front = with_digests(front),
            false => back = with_digests(back),
        }
        let mut relay = PassThrough::new(seed, front, back);
        let operations = start(&mut relay, &mut rng, 8);
        let to_target = rng.once_in(2);
        let bit = rng.below(150_000 * 8) as u64;
        let pair = if at_front { &mut relay.front } else { &mut relay.back };
        pair.flip(LINK, to_target, bit);
        pass_time_limits(&mut relay);
        let pair = if at_front { &mut relay.front } else { &mut relay.back };
        let is_flipped = pair.is_flipped(LINK);
        let mut all_good = true;
        for operation in &operations {
            all_good &= check(&mut relay, operation, seed);
        }
        let closed = relay.front.closed(LINK).is_some() || relay.back.closed(LINK).is_some();
        if is_flipped {
            flipped += 1;
            assert!(closed || !all_good, "seed {seed}: the fault was not detected");
        }
        relay.assert_nothing_left();
    }
    assert!(flipped > 30, "the flips must hit: {flipped}");
}

/// Goal: damage in the memory of the relay, after the check of a digest, is noticed behind it: no
/// command ends GOOD with it, and it never gets to the disk, if both sides use data digests and
/// segments are kept whole.
#[test]
fn damage_in_the_relay_is_noticed() {
    let (mut damaged, mut failed) = (0, 0);
    for seed in seeds(60) {
        let mut rng = Rng::new(seed);
        let immediate_data = rng.once_in(2);
        let whole = |rng: &mut Rng| {
            let mut options = with_digests(random_options(rng));
            for offer in [&mut options.initiator, &mut options.target] {
                (offer.initial_r2t, offer.immediate_data) = (true, immediate_data);
                offer.max_recv_data_segment_bytes = 8192;
                (offer.first_burst_bytes, offer.max_burst_bytes) = (8192, 65_536);
            }
            options
        };
        let (front, back) = (whole(&mut rng), whole(&mut rng));
        let mut relay = PassThrough::new(seed, front, back);
        relay.damages_from = Some(*rng.pick(&[Side::Host, Side::Storage]));
        let operations = start(&mut relay, &mut rng, 3);
        pass_time_limits(&mut relay);
        for operation in &operations {
            failed += u32::from(!check(&mut relay, operation, seed));
        }
        damaged += relay.damaged_segments;
        relay.assert_nothing_left();
    }
    assert!(
        damaged > 60 && failed > 60,
        "{damaged} segments were damaged, {failed} commands failed"
    );
}

/// Goal: a host that disappears in the middle of its writes leaves nothing: open PDUs to the
/// storage target never become data.
/// Method: the host's link is frozen after a random number of steps, until all limits have passed.
#[test]
fn a_host_that_stops_half_way() {
    let mut unanswered = 0;
    for seed in seeds(60) {
        let mut rng = Rng::new(seed);
        let mut relay = relay(seed, &mut rng);
        let operations = start(&mut relay, &mut rng, 8);
        for _ in 0..rng.below(600) {
            relay.step();
        }
        relay.front.freeze(LINK);
        pass_time_limits(&mut relay);
        relay.front.ask(LINK, crate::connection::initiator::Input::PeerClosed);
        pass_time_limits(&mut relay);
        for operation in &operations {
            let answer = relay.front.answer(operation.id);
            let SimAnswer::Completed(result, _) = answer else { panic!() };
            unanswered += u32::from(result.is_err());
            let end = operation.at + operation.old.len();
            let blocks = relay.back.disk(1).bytes(operation.at..end);
            assert!(blocks.iter().all(|byte| *byte != 0), "seed {seed}: zeroes on the disk");
        }
        relay.assert_nothing_left();
    }
    assert!(unanswered > 50, "{unanswered}");
}
