//! Changes of the served units while a server runs, with a power cut after the change was reported
//! done.

use crate::power_cut::rig::{LOST, Machine, after_each_cut, after_the_cut, kill, log_in, seeds};
use anyhow::{Result, ensure};
use lunar_lab::peers::lunar::Lunar;

const MIB: usize = 1 << 20;

/// Writes a configuration with these LUNs, a file each; returns its path.
fn configuration(machine: &Machine, luns: &[(u32, &str)]) -> Result<String> {
    let lun = |(id, file): &(u32, &str)| {
        let path = machine.disk.path(file);
        format!("[[target.lun]]\nid = {id}\ndevice = \"{path}\"\ncache = \"write-back\"\n")
    };
    machine.configuration(&luns.iter().map(lun).collect::<String>())
}

/// Starts a server of these LUNs, whose files are 1 MiB long, and writes one block of LUN 0 without
/// a sync.
fn written_back(machine: &Machine, luns: &[(u32, &str)]) -> Result<Lunar> {
    for (_, file) in luns {
        let file = std::fs::File::create(machine.disk.path(file))?;
        file.set_len(MIB as u64)?;
        file.sync_all()?;
    }
    std::fs::File::open(machine.disk.folder())?.sync_all()?;
    let lunar = Lunar::start(&["target", "--config", &configuration(machine, luns)?])?;
    log_in(&lunar, 0)?.write_blocks(7, &[0x77; 512])?;
    Ok(lunar)
}

/// Goal: a unit removed from a running server is synced when the removal is reported done: its file
/// can be moved elsewhere.
/// Method: a write-back disk, removed by `lunar ctl` and by `lunar apply`, opened again by `lunar
/// apply` with another cache mode.
#[test]
fn a_removed_unit_is_synced() -> Result<()> {
    let luns = [(0, "disk.img"), (1, "other.img")];
    for way in ["ctl remove-lun", "apply", "apply of another cache mode"] {
        let machine = Machine::new("power-away")?;
        let lunar = written_back(&machine, &luns)?;
        let changed = match way {
            "ctl remove-lun" => machine.run_lunar(&["ctl", "remove-lun", "0"]),
            "apply" => machine.run_lunar(&["apply", &configuration(&machine, &luns[1..])?]),
            _ => {
                let path = configuration(&machine, &luns)?;
                let text = std::fs::read_to_string(&path)?;
                std::fs::write(&path, text.replacen("write-back", "write-through", 1))?;
                machine.run_lunar(&["apply", &path])
            }
        };
        changed?;
        for seed in seeds(3) {
            let found = after_the_cut(machine.disk.after_cut(seed, "disk.img"), seed)?;
            let kept = found.get(7 * 512..).is_some_and(|rest| rest.starts_with(&[0x77; 512]));
            ensure!(kept, "{LOST}: the block of the removed unit, {way}, seed {seed}");
        }
        kill(lunar)?;
    }
    Ok(())
}

/// Goal: a size that `lunar ctl resize` reported is the size after a power cut, and data promised
/// before is there.
#[test]
fn a_resize_reported_as_done_is_durable() -> Result<()> {
    let luns = [(0, "disk.img")];
    for (size, bytes) in [("3M", 3 * MIB), ("512K", MIB / 2)] {
        let machine = Machine::new("power-resize")?;
        let lunar = written_back(&machine, &luns)?;
        let synced = log_in(&lunar, 1)?.execute(&[0x35, 0, 0, 0, 0, 0, 0, 0, 0, 0], 0)?;
        ensure!(synced.0 == 0, "SYNCHRONIZE CACHE");
        machine.run_lunar(&["ctl", "resize", "0", size, "--shrink"])?;
        let start = || Lunar::start(&["target", "--config", &configuration(&machine, &luns)?]);
        after_each_cut(&machine.disk, lunar, 3, start, |lunar, seed| {
            let mut raw = log_in(lunar, 1)?;
            let capacity = raw.execute(&[0x25, 0, 0, 0, 0, 0, 0, 0, 0, 0], 8)?.1;
            let last = (bytes as u32 / 512 - 1).to_be_bytes();
            ensure!(capacity[..4] == last, "{LOST}: the size {size}, seed {seed}: {capacity:02x?}");
            let found = after_the_cut(raw.read_block(7), seed)?;
            ensure!(found == [0x77; 512], "{LOST}: a block, resized to {size}, seed {seed}");
            Ok(())
        })?;
    }
    Ok(())
}
