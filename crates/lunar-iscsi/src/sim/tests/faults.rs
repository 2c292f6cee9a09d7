//! Tests with link failures.

use super::{Pair, PairOptions, Rng, pattern, random_load, random_options, seeds, with_digests};
use crate::connection::target::{CloseReason, Input as Serve};
use crate::sim::SimAnswer;
use std::time::Duration;
use std::vec;

/// Goal: a link cut at any byte, during login or I/O, leaves nothing behind on either side, and
/// every request has its answer. Method: random load over one or two connections, a cut after a
/// random number of bytes; then a new session works.
#[test]
fn a_cut_at_any_byte_leaves_nothing() {
    for seed in seeds(80) {
        let mut rng = Rng::new(seed);
        let mut pair = Pair::new(seed, random_options(&mut rng));
        let first = pair.connect(0, 0);
        let mut links = vec![first];
        if rng.once_in(5) {
            pair.cut_after(first, rng.below(700) as u64);
        }
        pair.run();
        let mut ids = vec![];
        if pair.is_logged_in(first) && pair.closed(first).is_none() {
            if rng.once_in(2) {
                links.push(pair.connect(0, 1));
                pair.run();
            }
            ids = random_load(&mut pair, &mut rng, &links, 12);
            let soon = pair.delivered(first) + rng.below(60_000) as u64;
            pair.cut_after(first, soon);
            pair.run();
        }
        pair.cut(first);
        pair.run();
        pair.pass(Duration::from_secs(60));
        for link in links.into_iter().skip(1) {
            pair.cut(link);
        }
        pair.run();
        for id in ids {
            assert!(pair.is_answered(id), "seed {seed}: {id:?}");
        }
        pair.pass(Duration::from_secs(60));
        pair.assert_nothing_left();
        assert_eq!(pair.served_sessions(), 0, "seed {seed}");

        let host = pair.add_host("iqn.2026-01.example:again", [0x80, 0, 0, 7, 0, 1]);
        let link = pair.connect(host, 0);
        pair.run();
        let data = pattern(seed, 4096);
        assert_eq!(pair.write(link, 0, &data).expect("a status").status, 0, "seed {seed}");
        pair.assert_nothing_left();
    }
}

/// Goal: with both digests on, a flipped bit anywhere is detected and never becomes data.
/// Method: one flipped bit during I/O; commands reported GOOD must have the right data, and
/// something must have failed.
#[test]
fn a_flipped_bit_is_detected() {
    let mut flipped = 0;
    for seed in seeds(120) {
        let mut rng = Rng::new(seed);
        let mut pair = Pair::new(seed, with_digests(random_options(&mut rng)));
        let link = pair.login();
        let (old, new) = (pattern(seed, 40 * 512), pattern(seed + 1, 40 * 512));
        pair.disk(1).fill(0, &old);
        let to_target = rng.once_in(2);
        pair.flip(link, to_target, rng.below(30_000 * 8) as u64);
        let reads = [pair.start_read(link, 0, old.len()), pair.start_read(link, 0, 512)];
        let writes = [pair.start_write(link, 100, &new), pair.start_write(link, 200, &new[..512])];
        pair.run();
        if !pair.is_flipped(link) {
            continue;
        }
        flipped += 1;
        pair.pass(Duration::from_secs(120));
        let mut noticed = pair.closed(link).is_some();
        for id in reads {
            let SimAnswer::Completed(result, buffer) = pair.answer(id) else { panic!() };
            match result {
                Ok(result) if result.status == 0 => {
                    assert!(buffer[..] == old[..buffer.len()], "seed {seed}: wrong data");
                }
                _ => noticed = true,
            }
        }
        for (id, (at, bytes)) in writes.into_iter().zip([(100, new.len()), (200, 512)]) {
            match pair.result(id).0 {
                Ok(result) if result.status == 0 => {
                    let lies = pair.disk(1).bytes(at * 512..at * 512 + bytes);
                    assert!(lies == &new[..bytes], "seed {seed}: wrong data");
                }
                _ => noticed = true,
            }
        }
        assert!(noticed, "seed {seed}: the fault was not detected");
        if pair.closed(link).is_none() {
            assert_eq!(pair.write(link, 0, &new).expect("a status").status, 0, "seed {seed}");
        }
        pair.assert_nothing_left();
    }
    assert!(flipped > 20, "the flips must hit: {flipped}");
}

/// Goal: both sides detect a silent peer in time, on the virtual clock.
#[test]
fn silence_is_noticed() {
    for seed in seeds(5) {
        let mut options = PairOptions::default();
        options.initiator_limits.ping_interval = Some(Duration::from_secs(5));
        let mut pair = Pair::new(seed, options);
        let link = pair.login();
        pair.pass(Duration::from_secs(600));
        assert_eq!(pair.closed(link), None, "seed {seed}");
        assert_eq!(pair.closed_by_target(link), None, "seed {seed}");
        let pings = pair.log().headers(crate::pdu::Opcode::NOP_OUT).count();
        assert!((100..=130).contains(&pings), "seed {seed}: {pings}");
        pair.freeze(link);
        let id = pair.start_read(link, 0, 512);
        pair.pass(Duration::from_secs(120));
        assert!(pair.closed(link).is_some() && pair.closed_by_target(link).is_some());
        assert!(pair.result(id).0.is_err());
        pair.assert_nothing_left();
    }
}

/// Goal: an initiator that falls silent during its writes is disconnected for the data it owes,
/// without a ping; the unit serves the next initiator, and nothing is left. An initiator that owes
/// nothing stays.
/// Method: writes of random sizes, frozen after a random number of steps.
#[test]
fn a_write_that_stops_half_way_ends() {
    let mut late = 0;
    for seed in seeds(60) {
        let mut rng = Rng::new(seed);
        let mut options = random_options(&mut rng);
        options.target_limits.ping_after_seconds = 1_000_000;
        options.initiator_limits.ping_interval = Some(Duration::from_secs(5));
        let seconds = u64::from(options.target_limits.data_out_seconds);
        let mut pair = Pair::new(seed, options);
        let link = pair.login();
        for lba in 0..6 {
            let blocks = 1 + rng.below(40);
            let data = rng.bytes(blocks * 512);
            pair.start_write(link, 100 * lba, &data);
        }
        pair.run_steps(rng.below(80));
        pair.freeze(link);
        // Data that arrived before may count at the minimum rate: it is little.
        pair.pass(Duration::from_secs(seconds + 5));
        match pair.closed_by_target(link) {
            None => {}
            Some(CloseReason::TimedOut(why)) if why.contains("data_out") => late += 1,
            Some(other) => panic!("seed {seed}: {other:?}"),
        }
        let host = pair.add_host("iqn.2026-01.example:again", [0x80, 0, 0, 7, 0, 1]);
        let again = pair.connect(host, 0);
        pair.run();
        let data = pattern(seed, 4096);
        assert_eq!(pair.write(again, 0, &data).expect("a status").status, 0, "seed {seed}");
        pair.handle_at_target(link, Serve::PeerClosed);
        pair.run();
        pair.assert_nothing_left();
    }
    assert!(late > 20, "some must owe something: {late}");
}

/// Goal: the target's own pings are answered, so that an idle session stays alive.
#[test]
fn pings_of_the_target_are_answered() {
    let mut pair = Pair::new(1, PairOptions::default());
    let link = pair.login();
    pair.pass(Duration::from_secs(600));
    assert_eq!(pair.closed_by_target(link), None);
    assert!(pair.log().headers(crate::pdu::Opcode::NOP_IN).count() >= 10);
    pair.assert_nothing_left();
}

/// Goal: if nothing is delivered during a login, both sides time out.
#[test]
fn a_login_without_any_delivery_times_out() {
    let mut pair = Pair::new(1, PairOptions::default());
    let link = pair.connect(0, 0);
    pair.freeze(link);
    pair.pass(Duration::from_secs(60));
    assert!(pair.closed(link).is_some() && pair.closed_by_target(link).is_some());
    pair.assert_nothing_left();
}
