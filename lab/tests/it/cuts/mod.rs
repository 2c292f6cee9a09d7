//! The initiator and connections that break: at each kind of PDU, before it, in its header, in its
//! data and behind it, closed, reset, or still open for the target; and bits that turn over on the
//! way. Against our own target, tgt and istgt.
//!
//! `LUNAR_SEEDS` says how many seeds are played, `LUNAR_SEED` plays one of them.
#![allow(clippy::unwrap_used)] // a test may unwrap

mod load;
mod old_session;
mod peers;
mod recorder;
mod sampler;
mod scene;

use anyhow::{Result, ensure};
use peers::{Keys, Who};
use scene::{Outcome, Plot, Scene};

/// How many seeds: a few, or `LUNAR_SEEDS` of them.
fn seeds(few: u64) -> std::ops::Range<u64> {
    let one = std::env::var("LUNAR_SEED").ok().and_then(|seed| seed.parse().ok());
    if let Some(seed) = one {
        return seed..seed + 1;
    }
    let asked = std::env::var("LUNAR_SEEDS").ok().and_then(|count| count.parse().ok());
    // A seed here takes seconds, where others of the house only run a machine.
    const OF_ASKED: u64 = 50;
    0..asked.map_or(few, |asked: u64| (asked / OF_ASKED).max(few))
}

/// Cuts everywhere, with so many connections in a session.
fn play(name: &str, who: Who, connections: u16) -> Result<()> {
    let scene = |seed| {
        let keys = Keys::of(seed);
        Scene { who, connections, raw: false, plot: Plot::Cuts, keys, seed }
    };
    // With others much of the time is spent waiting for them.
    let at_once = if who == Who::Own { 1 } else { 2 };
    let all_seeds: Vec<u64> = seeds(2).collect();
    let mut all = Outcome::default();
    for some in all_seeds.chunks(at_once) {
        let played: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> =
                some.iter().map(|seed| scope.spawn(|| scene(*seed).play())).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        for outcome in played {
            all.add(outcome?);
        }
    }
    all.tell(name);
    all.all_kinds_were_cut()
}

/// Goal: whatever PDU a connection breaks at, the caller sees latency and no error; reads give
/// what was written, no late write overtakes a later one, and what is executed again was in flight.
#[test]
fn our_target_one_connection() -> Result<()> {
    play("own target, one connection", Who::Own, 1)
}

/// Goal: the same with four connections, of which one breaks.
#[test]
fn our_target_four_connections() -> Result<()> {
    play("own target, four connections", Who::Own, 4)
}

/// Goal: a raw command is executed once if it was answered, never if it was not sent, and never
/// twice, though its session is lost or its data damaged; over one connection and over four.
#[test]
fn raw_commands_are_never_repeated() -> Result<()> {
    let (who, raw) = (Who::Own, true);
    let mut all = Outcome::default();
    for seed in seeds(2) {
        let (keys, connections) = (Keys::of(seed), if seed % 2 == 0 { 1 } else { 4 });
        all.add(Scene { who, connections, raw, plot: Plot::Cuts, keys, seed }.play()?);
        let keys = Keys { header_digest: true, data_digest: true, ..keys };
        all.add(Scene { who, connections, raw, plot: Plot::Flips, keys, seed }.play()?);
    }
    all.tell("own target, raw commands");
    ensure!(all.deeds.lost > 0 && all.flips > 0, "nothing was lost or damaged");
    ensure!(all.executions_max == 1, "{} executions", all.executions_max);
    all.all_kinds_were_cut()
}

/// Goal: the same against tgt; an independent reader sees no block go back.
#[test]
fn tgt() -> Result<()> {
    play("tgt", Who::Tgt, 1)
}

/// Goal: the same against istgt.
#[test]
fn istgt() -> Result<()> {
    play("istgt", Who::Istgt, 1)
}

/// What is read is what was written, with each choice of digests; nothing is executed twice where
/// nothing is cut.
fn integrity(name: &str, who: Who) -> Result<()> {
    let mut all = Outcome::default();
    for (seed, (header_digest, data_digest)) in
        (1000..).zip([(false, false), (true, false), (false, true), (true, true)])
    {
        let keys = Keys { header_digest, data_digest, ..Keys::of(seed) };
        all.add(Scene { who, connections: 1, raw: false, plot: Plot::Quiet, keys, seed }.play()?);
    }
    all.tell(name);
    ensure!(all.repetitions == 0, "{} repetitions", all.repetitions);
    Ok(())
}

/// Goal: as [`integrity`] says, with our own target.
#[test]
fn integrity_own_target() -> Result<()> {
    integrity("own target, nothing cut", Who::Own)
}

/// Goal: with tgt.
#[test]
fn integrity_tgt() -> Result<()> {
    integrity("tgt, nothing cut", Who::Tgt)
}

/// Goal: with istgt.
#[test]
fn integrity_istgt() -> Result<()> {
    integrity("istgt, nothing cut", Who::Istgt)
}

/// Each bit that is turned over is noticed by a digest, and costs time at most: an immediate write
/// that the target rejects (RFC 7143 §7.8) and one that it ends with PROTOCOL SERVICE CRC ERROR are
/// sent again.
fn flips(name: &str, who: Who, connections: [u16; 2]) -> Result<()> {
    let mut all = Outcome::default();
    for seed in seeds(2) {
        let keys = Keys { header_digest: true, data_digest: true, ..Keys::of(seed) };
        let connections = connections[(seed % 2) as usize];
        all.add(Scene { who, connections, raw: false, plot: Plot::Flips, keys, seed }.play()?);
    }
    all.tell(name);
    ensure!(all.flips > 0, "no bit was turned over");
    Ok(())
}

/// Goal: with our own target, over one connection and over four, a bit that is turned over on the
/// way is no error for the caller, and nothing wrong is read or kept.
#[test]
fn flips_own_target() -> Result<()> {
    flips("own target, bits turned over", Who::Own, [1, 4])
}

/// Goal: the same with tgt.
#[test]
fn flips_tgt() -> Result<()> {
    flips("tgt, bits turned over", Who::Tgt, [1, 1])
}
