//! Power cuts of a mirror: at any write and flush of its labels, its intent log, its data and the
//! copies after the cut before, also while a member is replaced.

use crate::power_cut::rig::{LOST, MODES, seeds};
use crate::power_cut::rounds::{Control, RoundScene, SceneCounts};
use crate::power_cut::served::Backing;
use anyhow::{Result, bail, ensure};

/// Number of initiators that write to the same blocks.
const SEVERAL: u32 = 2;

fn play(backing: Backing, few_seeds: u64, initiators: u32) -> Result<SceneCounts> {
    let mut counts = SceneCounts::default();
    for seed in seeds(few_seeds) {
        let mode = MODES[seed as usize % MODES.len()];
        let scene = RoundScene { backing, mode, initiators, control: None };
        counts.add(scene.run(seed)?);
    }
    let SceneCounts { acknowledged, replaced, .. } = counts;
    let plays = seeds(few_seeds).count();
    println!("counted: plays={plays} acknowledged={acknowledged} replaced={replaced}");
    Ok(counts)
}

/// Goal: data that a mirror has acknowledged as durable is there after a power cut of both members,
/// every block is old or new, reads agree with each other, and both members become equal.
#[test]
fn a_mirror_that_loses_its_power_keeps_its_promises() -> Result<()> {
    play(Backing::Mirror, 4, 1).map(drop)
}

/// Goal: the same with several initiators that write to the same blocks.
#[test]
fn a_mirror_keeps_its_promises_to_several_initiators() -> Result<()> {
    play(Backing::Mirror, 2, SEVERAL).map(drop)
}

/// Goal: no command fails when one member loses its power, and what was acknowledged since is there
/// after the other one has lost it, too.
#[test]
fn members_that_lose_their_power_in_turn_lose_nothing() -> Result<()> {
    play(Backing::MirrorOfDisks, 4, 1).map(drop)
}

/// Goal: the same while a member is replaced: at any moment of the replacement and of the copy to
/// the new member.
#[test]
fn a_mirror_whose_members_are_replaced_keeps_its_promises() -> Result<()> {
    let counts = play(Backing::ReplacedMirror, 4, 1)?;
    ensure!(counts.replaced > 0, "no member was replaced");
    Ok(())
}

/// Goal: these scenes detect a loss.
/// Method: disks acknowledge syncs without an effect, or the mirror has no intent log: some scene
/// has to fail.
#[test]
fn mirrors_without_syncs_or_intent_log_are_detected() -> Result<()> {
    const TRIES: u64 = 4;
    let controls = [
        (Backing::Mirror, Control::IgnoredSyncs),
        (Backing::MirrorOfDisks, Control::IgnoredSyncs),
        (Backing::Mirror, Control::EmptyIntentLog),
    ];
    for (backing, control) in controls {
        let mut found = false;
        for seed in 0..TRIES {
            let mode = MODES[seed as usize % MODES.len()];
            let scene = RoundScene { backing, mode, initiators: 1, control: Some(control) };
            match scene.run(seed) {
                Err(error) if format!("{error:#}").contains(LOST) => found = true,
                Err(error) => return Err(error),
                Ok(_) => {}
            }
            if found {
                break;
            }
        }
        if !found {
            bail!("no scene of {backing:?} has noticed {control:?}");
        }
    }
    Ok(())
}
