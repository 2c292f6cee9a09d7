//! A mirror of LUNs of two servers, which are killed and return, with or without the data in their
//! write caches, while initiators write, read and flush; all programs are the real binary.
//!
//! `LUNAR_MEMBER_ROUNDS` sets the number of rounds, `LUNAR_SEED` their seed.

use super::load::Load;
use super::pool_rig::{MIRROR, Rig};
use super::{number, pause, seed};
use anyhow::{Context, Result, ensure};
use lunar_lab::random::Random;
use std::time::Instant;

const ROUNDS: u64 = 4;
/// Number of rounds after which the server of the mirror is killed, too.
const ROUNDS_OF_SERVER: u64 = 3;
/// Number of initiators that write to the same blocks.
const INITIATORS: u32 = 2;

/// Event of a round.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Event {
    /// One server is killed, and its disk keeps what was written.
    Kill,
    /// One server loses its power, and with it the data in its cache.
    PowerCut,
    /// Both servers lose their power, one shortly after the other.
    PowerCutOfBoth,
}

impl Event {
    fn pick(random: &mut Random) -> Self {
        match random.below(5) {
            0..2 => Self::Kill,
            2..4 => Self::PowerCut,
            _ => Self::PowerCutOfBoth,
        }
    }
}

fn round(rig: &mut Rig, load: &mut Load, event: Event, random: &mut Random) -> Result<()> {
    let first = random.below(2) as usize;
    load.start(rig.front()?.address(), random)?;
    load.wait_for_answers()?;
    match event {
        Event::Kill => rig.storages[first].kill()?,
        Event::PowerCut => rig.storages[first].lose_power(random.next_u64())?,
        Event::PowerCutOfBoth => {
            load.expect_loss();
            rig.storages[first].lose_power(random.next_u64())?;
            pause(random);
            rig.storages[1 - first].lose_power(random.next_u64())?;
        }
    }
    pause(random);
    for at in [first, 1 - first] {
        rig.storages[at].start()?;
    }
    load.wait_for_answers()?;
    // Idle initiators would not answer the pings of the server.
    rig.until_healthy()?;
    load.finish()?;
    load.check(rig.front()?.address())
}

/// Goal: no command fails while one member of a mirror is unreachable or returns without the data
/// in its cache, and reads are current. If both members lose their caches, the flush of each
/// initiator reports it, or nothing is lost; data that a flush has promised is always there.
/// Method: rounds by seed; a ledger of all blocks checks each read and, after each round, all
/// blocks. Between rounds, the server of the mirror is killed as well.
#[test]
fn members_that_are_killed_and_return_lose_nothing() -> Result<()> {
    let rounds = number("LUNAR_MEMBER_ROUNDS")?.unwrap_or(ROUNDS);
    let seed = seed()?;
    println!("LUNAR_SEED={seed} LUNAR_MEMBER_ROUNDS={rounds}");
    let (mut random, begun) = (Random::new(seed), Instant::now());
    let mut rig = Rig::new()?;
    let mut load = Load::new(MIRROR, INITIATORS);
    for number in 0..rounds {
        // The sample of `make test` has each event.
        let event = match number {
            0 => Event::PowerCut,
            1 => Event::PowerCutOfBoth,
            2 => Event::Kill,
            _ => Event::pick(&mut random),
        };
        round(&mut rig, &mut load, event, &mut random).with_context(|| {
            format!("round {number}, {event:?}, LUNAR_SEED={seed}:\n{}", rig.log())
        })?;
        if number % ROUNDS_OF_SERVER == ROUNDS_OF_SERVER - 1 {
            rig.restart()?;
            rig.until_healthy()?;
        }
    }
    println!("{rounds} rounds in {:.0?}: {}", begun.elapsed(), load.totals());
    ensure!(load.totals().acknowledged > 0, "the load was none");
    rig.stop()?;
    rig.check_equal()
}
