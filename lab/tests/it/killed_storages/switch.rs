//! A switch over two storages: its process, the storages and their connections are killed and
//! return, while hosts write, read and flush, and an extent is moved.

use super::load::Load;
use super::switch_rig::{LINEAR, MIRROR, SwitchRig};
use super::{number, pause, seed};
use anyhow::{Context, Result, ensure};
use lunar_lab::random::Random;
use std::time::Instant;

const ROUNDS: u64 = 4;
/// Number of initiators of each LUN.
const INITIATORS: u32 = 2;
/// Number of times that the connections to storages are broken in one round.
const CUTS: u64 = 3;

/// Event of a round.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Event {
    /// The switch is killed.
    SwitchKill,
    /// The connections to both storages are broken.
    Cuts,
    /// The server of one storage is killed, and its disk keeps what was written.
    StorageKill,
    /// One storage loses its power, and with it the data in its cache.
    StoragePowerCut,
}

impl Event {
    fn pick(random: &mut Random) -> Self {
        match random.below(4) {
            0 => Self::SwitchKill,
            1 => Self::Cuts,
            2 => Self::StorageKill,
            _ => Self::StoragePowerCut,
        }
    }
}

fn happen(rig: &mut SwitchRig, linear: &Load, event: Event, random: &mut Random) -> Result<()> {
    let storage = random.below(2) as usize;
    match event {
        Event::SwitchKill => rig.kill()?,
        Event::Cuts => {
            for _ in 0..CUTS {
                rig.cutters[random.below(2) as usize].cut_all();
                pause(random);
            }
        }
        Event::StorageKill => {
            linear.expect_loss();
            rig.storages[storage].kill()?;
        }
        Event::StoragePowerCut => {
            linear.expect_loss();
            rig.storages[storage].lose_power(random.next_u64())?;
        }
    }
    pause(random);
    rig.storages[storage].start()
}

/// Runs one round. Returns the number of commands that the last process of the switch relayed.
fn round(
    path: &str,
    rig: &mut SwitchRig,
    loads: &mut [Load; 2],
    (event, moves): (Event, bool),
    random: &mut Random,
) -> Result<u64> {
    rig.start(path)?;
    for load in loads.iter_mut() {
        load.start(rig.address(), random)?;
    }
    if moves {
        rig.move_second_extent(random)?;
        pause(random);
    }
    for load in loads.iter() {
        load.wait_for_answers()?;
    }
    happen(rig, &loads[0], event, random)?;
    rig.start(path)?;
    for load in loads.iter() {
        load.wait_for_answers()?;
    }
    // Idle initiators would not answer the pings of the switch.
    if moves {
        rig.until_moved()?;
    }
    rig.until_healthy()?;
    for load in loads.iter_mut() {
        load.finish()?;
        load.check(rig.address())?;
    }
    let relayed = rig.relayed_commands()?;
    rig.kill()?; // the next round may have another path
    Ok(relayed)
}

/// Goal: nothing that was acknowledged is lost by a switch, on either path, when its process, a
/// storage or connections are killed, also while an extent is moved. Reads are current. If a
/// storage loses its cache, the flush of each initiator of a linear LUN reports it, or nothing is
/// lost; a mirror loses nothing.
/// Method: rounds by seed; a ledger of all blocks of each LUN checks each read and, after each
/// round, all blocks.
#[test]
fn a_switch_loses_nothing() -> Result<()> {
    let rounds = number("LUNAR_SWITCH_ROUNDS")?.unwrap_or(ROUNDS);
    let seed = seed()?;
    println!("LUNAR_SEED={seed} LUNAR_SWITCH_ROUNDS={rounds}");
    let (mut random, begun) = (Random::new(seed), Instant::now());
    let mut rig = SwitchRig::new()?;
    let mut loads = [LINEAR, MIRROR].map(|disk| Load::new(disk, INITIATORS));
    let mut relayed = 0;
    for number in 0..rounds {
        let path = if number < 3 || random.below(2) == 0 { "fast" } else { "slow" };
        // The sample of `make test` has each event, and two kills during a move.
        let event = match number {
            0 => (Event::SwitchKill, true),
            1 => (Event::StoragePowerCut, false),
            2 => (Event::Cuts, true),
            3 => (Event::StorageKill, false),
            _ => (Event::pick(&mut random), random.below(2) == 0),
        };
        relayed += round(path, &mut rig, &mut loads, event, &mut random).with_context(|| {
            format!("round {number}, {path} {event:?}, LUNAR_SEED={seed}:\n{}", rig.log())
        })?;
    }
    let [linear, mirror] = loads.each_ref().map(Load::totals);
    println!(
        "{rounds} rounds in {:.0?}: {relayed} commands relayed; linear: {linear}; mirror: {mirror}",
        begun.elapsed()
    );
    ensure!(linear.acknowledged > 0 && mirror.acknowledged > 0, "the load was none");
    ensure!(relayed > 0, "no command took the fast path");
    rig.start("slow")?;
    rig.until_healthy()?;
    rig.stop()?;
    rig.check_equal()
}
