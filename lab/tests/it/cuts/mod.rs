//! The initiator with connections that break: at each kind of PDU, before it, in its header, in its
//! data and after it, closed, reset, or still open for the target; and with bits that are inverted
//! on the way. Against our own target, tgt and istgt.
//!
//! `LUNAR_SEEDS` is the number of seeds; `LUNAR_SEED` selects a single one.
#![allow(clippy::unwrap_used)] // a test may unwrap

mod load;
mod old_session;
mod peers;
mod recorder;
mod sampler;
mod scene;

use crate::targets::TargetKind;
use anyhow::{Result, ensure};
use peers::Keys;
use scene::{Outcome, Plot, Scene};

/// Returns the seeds: a few, or one for each 50 of `LUNAR_SEEDS`.
fn seeds(few: u64) -> std::ops::Range<u64> {
    lunar_lab::random::seeds(few, 50)
}

/// Runs scenes with cuts everywhere, with this many connections in a session.
fn play(name: &str, who: TargetKind, connections: u16) -> Result<()> {
    let scene = |seed| {
        let keys = Keys::of(seed);
        Scene { who, connections, raw: false, plot: Plot::Cuts, keys, seed }
    };
    // Scenes with other targets spend much of their time waiting for them.
    let at_once = if who == TargetKind::Own { 1 } else { 2 };
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
    all.print(name);
    all.all_kinds_were_cut()
}

/// Goal: a connection may break at any PDU, and the caller sees latency and no error; reads return
/// the data written, no late write replaces a later one, and only writes in flight are executed
/// again.
#[test]
fn our_target_one_connection() -> Result<()> {
    play("own target, one connection", TargetKind::Own, 1)
}

/// Goal: the guarantees hold with four connections, of which one breaks.
#[test]
fn our_target_four_connections() -> Result<()> {
    play("own target, four connections", TargetKind::Own, 4)
}

/// Goal: a raw command is executed once if it was answered, never if it was not sent, and never
/// twice, even if its session is lost or its data damaged; over one connection and over four.
#[test]
fn raw_commands_are_never_repeated() -> Result<()> {
    let (who, raw) = (TargetKind::Own, true);
    let mut all = Outcome::default();
    for seed in seeds(2) {
        let (keys, connections) = (Keys::of(seed), if seed % 2 == 0 { 1 } else { 4 });
        all.add(Scene { who, connections, raw, plot: Plot::Cuts, keys, seed }.play()?);
        let keys = Keys { header_digest: true, data_digest: true, ..keys };
        all.add(Scene { who, connections, raw, plot: Plot::Flips, keys, seed }.play()?);
    }
    all.print("own target, raw commands");
    ensure!(all.results.lost > 0 && all.flips > 0, "nothing was lost or damaged");
    ensure!(all.executions_max == 1, "{} executions", all.executions_max);
    all.all_kinds_were_cut()
}

/// Goal: the guarantees hold against tgt; an independent reader sees no block go back.
#[test]
fn tgt() -> Result<()> {
    play("tgt", TargetKind::Tgt, 1)
}

/// Goal: the guarantees hold against istgt.
#[test]
fn istgt() -> Result<()> {
    play("istgt", TargetKind::Istgt, 1)
}

/// Checks that reads return the data written, with each choice of digests, and that no command is
/// executed twice if no connection is cut.
fn integrity(name: &str, who: TargetKind) -> Result<()> {
    let mut all = Outcome::default();
    for (seed, (header_digest, data_digest)) in
        (1000..).zip([(false, false), (true, false), (false, true), (true, true)])
    {
        let keys = Keys { header_digest, data_digest, ..Keys::of(seed) };
        all.add(Scene { who, connections: 1, raw: false, plot: Plot::Quiet, keys, seed }.play()?);
    }
    all.print(name);
    ensure!(all.repetitions == 0, "{} repetitions", all.repetitions);
    Ok(())
}

/// Goal: see [`integrity`], with our own target.
#[test]
fn integrity_own_target() -> Result<()> {
    integrity("own target, nothing cut", TargetKind::Own)
}

/// Goal: see [`integrity`], with tgt.
#[test]
fn integrity_tgt() -> Result<()> {
    integrity("tgt, nothing cut", TargetKind::Tgt)
}

/// Goal: see [`integrity`], with istgt.
#[test]
fn integrity_istgt() -> Result<()> {
    integrity("istgt, nothing cut", TargetKind::Istgt)
}

/// Checks that each inverted bit is detected by a digest, and causes a delay at most: an immediate
/// write that the target rejects (RFC 7143 §7.8) and one that it ends with PROTOCOL SERVICE CRC
/// ERROR are sent again.
fn flips(name: &str, who: TargetKind, connections: [u16; 2]) -> Result<()> {
    let mut all = Outcome::default();
    for seed in seeds(2) {
        let keys = Keys { header_digest: true, data_digest: true, ..Keys::of(seed) };
        let connections = connections[(seed % 2) as usize];
        all.add(Scene { who, connections, raw: false, plot: Plot::Flips, keys, seed }.play()?);
    }
    all.print(name);
    ensure!(all.flips > 0, "no bit was flipped");
    Ok(())
}

/// Goal: with our own target, over one connection and over four, a bit that is inverted on the way
/// causes no error for the caller, and no wrong data is read or stored.
#[test]
fn flipped_bits_own_target() -> Result<()> {
    flips("own target, bits turned over", TargetKind::Own, [1, 4])
}

/// Goal: inverted bits are handled as well with tgt.
#[test]
fn flips_tgt() -> Result<()> {
    flips("tgt, bits turned over", TargetKind::Tgt, [1, 1])
}
