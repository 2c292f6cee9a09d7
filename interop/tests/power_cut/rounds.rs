//! Many commands at a time, a power cut in their midst, and another start.

use crate::deeds::{Author, CHANGES, Deed, Means, SYNCS};
use crate::rig::{LOST, MODES, Mode, after_the_cut, identity, kill, log_in, read_all, seeds};
use anyhow::{Context, Result, ensure};
use interop::extended_copy::naa_designation;
use interop::ledger::Ledger;
use interop::lunar::Lunar;
use interop::powercut::PowerCutDisk;
use interop::raw_queue::Queue;
use interop::scratch::Random;

const BLOCKS: usize = 1024;
const HOT: u64 = 300;
const ROUNDS: u64 = 3;
const DEPTH_MAX: usize = 16;

/// Commands until the power is gone; then no more answers are awaited than come.
fn load(
    lunar: &Lunar,
    disk: &PowerCutDisk,
    mode: Mode,
    ledger: &mut Ledger,
    random: &mut Random,
) -> Result<u64> {
    let mut raw = log_in(lunar, 1)?;
    let designation = naa_designation(&mut raw)?;
    let mut queue: Queue<(Deed, Means)> = Queue::over(raw);
    let mut acknowledged = 0;
    disk.freeze_after(random.below(400));
    let depth = 1 + random.below(DEPTH_MAX as u64) as usize;
    while !disk.is_frozen() {
        while queue.depth() < depth {
            let deed = match random.below(20) {
                0 => SYNCS[random.below(SYNCS.len() as u64) as usize],
                1..5 => CHANGES[random.below(CHANGES.len() as u64) as usize],
                _ => Deed::Write,
            };
            let author = Author { mode, ledger, random, designation: &designation, hot: HOT };
            let mut author = author;
            let Some(order) = author.write(deed) else { continue };
            if order.read_bytes > 0 {
                queue.send_read(&order.cdb, order.read_bytes, (deed, order.means))?;
            } else {
                queue.send(&order.cdb, &order.data, (deed, order.means))?;
            }
        }
        let Some(((deed, means), outcome)) = queue.wait()? else { break };
        match means.happened(ledger, &outcome) {
            Ok(()) => acknowledged += 1,
            Err(_) if disk.is_frozen() => break,
            Err(error) => return Err(error.context(format!("{deed:?}"))),
        }
    }
    Ok(acknowledged)
}

/// Goal: whatever is under way when the power goes, what was acknowledged is there after the next
/// start, every block is old or new, and the disk is the same one to initiators.
/// Method: by seed, commands of all kinds at some depth, a cut after some of the disk's calls,
/// SIGKILL, another start; three times each.
#[test]
fn a_cut_amid_commands_takes_nothing_that_was_promised() -> Result<()> {
    for seed in seeds(6) {
        let mode = MODES[seed as usize % MODES.len()];
        play(mode, seed).with_context(|| format!("seed {seed}, {mode:?}"))?;
    }
    Ok(())
}

fn play(mode: Mode, seed: u64) -> Result<()> {
    let mut random = Random(seed);
    let disk = PowerCutDisk::mount("power-rounds")?;
    let mut ledger = Ledger::new(BLOCKS, mode.block_bytes);
    let mut lunar = mode.serve(&disk, BLOCKS)?;
    let known_by = identity(&mut log_in(&lunar, 1)?)?;
    for round in 0..ROUNDS {
        load(&lunar, &disk, mode, &mut ledger, &mut random)?;
        disk.freeze();
        kill(lunar)?;
        // The worst is tried once in each play.
        let cut = if round == 0 { 0 } else { random.next_u64() };
        disk.cut(cut);
        lunar = after_the_cut(mode.serve(&disk, BLOCKS), cut)?;
        let mut raw = log_in(&lunar, 1)?;
        let same = identity(&mut raw)? == known_by;
        ensure!(same, "{LOST}: the disk is another one after a cut with seed {cut}");
        let found = after_the_cut(read_all(&mut raw, BLOCKS as u64, mode.block_bytes), cut)?;
        let settled = ledger.settle(&found).map_err(anyhow::Error::msg);
        let torn = settled.with_context(|| format!("{LOST}: round {round}, cut {cut}"))?;
        ensure!(torn.is_empty() || mode.block_bytes > 512, "{LOST}: torn: {torn:?}");
        repair(&lunar, mode, &mut ledger, &torn)?;
    }
    Ok(())
}

/// Writes blocks anew that were torn, so that each has a content that is known.
fn repair(lunar: &Lunar, mode: Mode, ledger: &mut Ledger, torn: &[u64]) -> Result<()> {
    let mut raw = log_in(lunar, 1)?;
    for lba in torn {
        let content = interop::ledger::Content::Stamp(ledger.stamp());
        let entry = ledger.begin([*lba], content);
        let mut cdb = vec![0x8a, 0];
        cdb.extend(lba.to_be_bytes());
        cdb.extend([0, 0, 0, 1, 0, 0]);
        let outcome = raw.execute_with(&cdb, &content.bytes(*lba, mode.block_bytes))?;
        ensure!(outcome.status == 0, "{outcome:02x?}");
        ledger.acknowledge(entry, mode.writes_through());
    }
    Ok(())
}
