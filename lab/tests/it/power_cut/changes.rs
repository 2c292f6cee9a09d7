//! Changes of the served units while a server runs, with a power cut after the change was reported
//! done.

use crate::power_cut::rig::{LOST, TARGET, after_the_cut, kill, log_in, seeds};
use anyhow::{Result, ensure};
use lunar_lab::lunar::{Lunar, binary};
use lunar_lab::powercut::PowerCutDisk;
use lunar_lab::process::must;
use lunar_lab::scratch::Scratch;
use std::time::Duration;

const TOOL_MAX: Duration = Duration::from_secs(20);
const MIB: usize = 1 << 20;

/// A disk, a configuration that can change, and the socket of the API.
struct Machine {
    disk: PowerCutDisk,
    beside: Scratch,
}

impl Machine {
    fn new(name: &str) -> Result<Self> {
        Ok(Self { disk: PowerCutDisk::mount(name)?, beside: Scratch::new(name)? })
    }

    /// Writes a configuration with these LUNs, a file each; returns its path.
    fn configuration(&self, luns: &[(u32, &str)]) -> Result<String> {
        let mut text = format!(
            "[listen]\nportals = [\"127.0.0.1:0\"]\n[api]\nlisten = \"{}\"\n\
             [[target]]\nname = \"{TARGET}\"\n",
            self.api()
        );
        for (id, file) in luns {
            let path = self.disk.path(file);
            text += &format!(
                "[[target.lun]]\nid = {id}\ndevice = \"{path}\"\ncache = \"write-back\"\n"
            );
        }
        self.beside.secret("lunar.toml", &text)
    }

    fn api(&self) -> String {
        format!("unix:{}", self.beside.path("api.sock"))
    }

    /// Starts a server of these LUNs, whose files are 1 MiB long, and writes one block of LUN 0
    /// without a sync.
    fn written_back(&self, luns: &[(u32, &str)]) -> Result<Lunar> {
        for (_, file) in luns {
            let file = std::fs::File::create(self.disk.path(file))?;
            file.set_len(MIB as u64)?;
            file.sync_all()?;
        }
        std::fs::File::open(self.disk.folder())?.sync_all()?;
        let lunar = Lunar::start(&["target", "--config", &self.configuration(luns)?])?;
        log_in(&lunar, 0)?.write_blocks(7, &[0x77; 512])?;
        Ok(lunar)
    }

    /// Runs `lunar ARGUMENTS`, which must report success.
    fn tell(&self, arguments: &[&str]) -> Result<()> {
        let api = self.api();
        must(&binary()?, &[arguments, &["--api", &api]].concat(), TOOL_MAX)?;
        Ok(())
    }
}

/// Goal: a unit removed from a running server is synced when the removal is reported done: its file
/// can be moved elsewhere.
/// Method: a write-back disk, removed by `lunar ctl` and by `lunar apply`, opened again by `lunar
/// apply` with another cache mode.
#[test]
fn a_unit_that_is_taken_away_is_synced() -> Result<()> {
    let luns = [(0, "disk.img"), (1, "other.img")];
    for way in ["ctl remove-lun", "apply", "apply of another cache mode"] {
        let machine = Machine::new("power-away")?;
        let lunar = machine.written_back(&luns)?;
        match way {
            "ctl remove-lun" => machine.tell(&["ctl", "remove-lun", "0"])?,
            "apply" => machine.tell(&["apply", &machine.configuration(&luns[1..])?])?,
            _ => {
                let path = machine.configuration(&luns)?;
                let text = std::fs::read_to_string(&path)?;
                std::fs::write(&path, text.replacen("write-back", "write-through", 1))?;
                machine.tell(&["apply", &path])?;
            }
        }
        for seed in seeds(3) {
            let found = after_the_cut(machine.disk.after_cut(seed, "disk.img"), seed)?;
            let kept = found.get(7 * 512..).is_some_and(|rest| rest.starts_with(&[0x77; 512]));
            ensure!(kept, "{LOST}: the block of what was taken away, {way}, seed {seed}");
        }
        kill(lunar)?;
    }
    Ok(())
}

/// Goal: a size that `lunar ctl resize` reported is the size after a power cut, and data promised
/// before is there.
#[test]
fn a_resize_that_was_told_done_is_kept() -> Result<()> {
    let luns = [(0, "disk.img")];
    for (size, bytes) in [("3M", 3 * MIB), ("512K", MIB / 2)] {
        let machine = Machine::new("power-resize")?;
        let lunar = machine.written_back(&luns)?;
        let synced = log_in(&lunar, 1)?.execute(&[0x35, 0, 0, 0, 0, 0, 0, 0, 0, 0], 0)?;
        ensure!(synced.0 == 0, "SYNCHRONIZE CACHE");
        machine.tell(&["ctl", "resize", "0", size, "--shrink"])?;
        let moment = machine.disk.volume();
        machine.disk.freeze();
        kill(lunar)?;
        for seed in seeds(3) {
            machine.disk.cut_from(moment.clone(), seed);
            let start = Lunar::start(&["target", "--config", &machine.configuration(&luns)?]);
            let lunar = after_the_cut(start, seed)?;
            let mut raw = log_in(&lunar, 1)?;
            let capacity = raw.execute(&[0x25, 0, 0, 0, 0, 0, 0, 0, 0, 0], 8)?.1;
            let last = (bytes as u32 / 512 - 1).to_be_bytes();
            ensure!(capacity[..4] == last, "{LOST}: the size {size}, seed {seed}: {capacity:02x?}");
            let found = after_the_cut(raw.read_block(7), seed)?;
            ensure!(found == [0x77; 512], "{LOST}: a block, resized to {size}, seed {seed}");
            kill(lunar)?;
        }
    }
    Ok(())
}
