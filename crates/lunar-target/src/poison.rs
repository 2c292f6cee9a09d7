//! Write refusal of a disk after a failed sync until an operator recovers it, also across a
//! restart, with unit attentions for the initiators.

use crate::Error;
use crate::disk_unit::DiskUnit;
use lunar_block::{PoisonWatcher, StateDirectory};
use lunar_scsi::attention::Attention;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Weak};

/// The name of the mark in the unit's state directory. docs/formats.md.
const MARK_NAME: &str = "poisoned";
/// Content of the mark, for people to read; only its existence counts. docs/formats.md.
const MARK: &[u8] = b"lunar poison mark, version 1\n";

/// Watcher of the poison state of a unit's disk.
#[derive(Debug)]
pub(crate) struct Poison {
    mark: Option<PoisonFile>,
    unit: Weak<DiskUnit>,
    device: String,
}

impl Poison {
    /// Poisons the disk of `unit` if an earlier run left the mark, and watches it from now on.
    ///
    /// # Errors
    /// The file system does not tell whether the mark exists.
    pub(crate) fn watch(unit: &Arc<DiskUnit>, state: Option<&Path>) -> Result<(), Error> {
        let device = unit.device();
        let mark = state.map(|directory| PoisonFile { directory: directory.to_owned() });
        let marked = mark.as_ref().map(PoisonFile::mark_exists).transpose()?.unwrap_or_default();
        if marked {
            device.poison();
        }
        if unit.is_poisoned() {
            tracing::error!(
                device = device.name(),
                "the disk refuses writes: a sync failed before it was opened. Check the device, \
                 then run `lunar ctl recover LUN --accept-loss`"
            );
        }
        let (unit, name) = (Arc::downgrade(unit), device.name().to_owned());
        device.watch_poison(Arc::new(Self { mark, unit, device: name }));
        Ok(())
    }
}

impl PoisonWatcher for Poison {
    fn poisoned(&self) {
        let put = self.mark.as_ref().map_or(Ok(()), PoisonFile::put);
        if let Err(error) = put {
            let device = &self.device;
            tracing::error!(
                device,
                %error,
                "cannot store that the disk refuses writes: after a restart it would accept them"
            );
        }
    }

    fn recovering(&self) -> io::Result<()> {
        self.mark.as_ref().map_or(Ok(()), PoisonFile::remove)?;
        let Some(unit) = self.unit.upgrade() else { return Ok(()) };
        // Both under one lock: a command checked before is overtaken, or it gets the unit attention
        // first.
        let mut scsi = unit.scsi();
        unit.recoveries.fetch_add(1, SeqCst);
        scsi.raise(Attention::MEDIUM_MAY_HAVE_CHANGED.0, None);
        Ok(())
    }
}

/// A file in the unit's state directory. Its name alone says that the disk takes no writes: the
/// content is not synced, and any other file of this name counts the same.
#[derive(Debug)]
struct PoisonFile {
    directory: PathBuf,
}

impl PoisonFile {
    /// True when the mark exists.
    ///
    /// # Errors
    /// [`Error::State`]: that cannot be determined, or other users may change the directory.
    fn mark_exists(&self) -> Result<bool, Error> {
        let has = || match StateDirectory::open(&self.directory)? {
            Some(directory) => directory.has(MARK_NAME),
            None => Ok(false),
        };
        has().map_err(|error| {
            let path = self.directory.join(MARK_NAME);
            Error::State { path, what: error.to_string() }
        })
    }

    fn put(&self) -> io::Result<()> {
        StateDirectory::create(&self.directory)?.save_name(MARK_NAME, MARK)
    }

    fn remove(&self) -> io::Result<()> {
        match StateDirectory::open(&self.directory)? {
            Some(directory) => directory.remove(MARK_NAME),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk_unit::DiskUnitOptions;
    use lunar_block::{BlockDevice, Effect, Fault, FaultDevice, FaultOperation, MemoryDevice};
    use std::fs;

    fn open(directory: &Path) -> (Arc<DiskUnit>, Arc<FaultDevice>) {
        let memory = Arc::new(MemoryDevice::new(1 << 20, 512, 4096).unwrap());
        let device = FaultDevice::new(memory, 0);
        let shown = Arc::clone(&device) as Arc<dyn BlockDevice>;
        let options = DiskUnitOptions::new(uuid::Uuid::from_u128(7), shown);
        let options = DiskUnitOptions { state: Some(directory.to_owned()), ..options };
        (DiskUnit::open(options).unwrap(), device)
    }

    /// Goal: a poisoned disk stays poisoned when it is opened anew, whatever the mark contains,
    /// until it is recovered; the bytes of the mark are those of docs/formats.md.
    #[test]
    fn a_poisoned_disk_is_opened_poisoned() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let directory = std::env::temp_dir().join(format!("lunar-poison-{}", std::process::id()));
        let (unit, device) = open(&directory);
        assert!(!unit.is_poisoned() && !directory.exists());
        device.inject(
            Fault::new(Effect::Fail(lunar_block::ErrorKind::Medium)).on(FaultOperation::Flush),
        );
        runtime.block_on(device.flush()).unwrap_err();
        runtime.block_on(unit.recover()).unwrap_err();
        assert_eq!(
            fs::read(directory.join("poisoned")).unwrap(),
            b"lunar poison mark, version 1\n"
        );
        drop((unit, device));
        fs::write(directory.join("poisoned"), b"").unwrap();
        let (unit, device) = open(&directory);
        assert!(unit.is_poisoned());
        let write = device.write(lunar_block::BlockRange::new(0, 1), vec![1; 512].into(), false);
        let refused = runtime.block_on(write).unwrap_err();
        assert_eq!(refused.kind, lunar_block::ErrorKind::Poisoned);
        runtime.block_on(unit.recover()).unwrap();
        assert!(!unit.is_poisoned() && unit.generation().recoveries == 1);
        drop((unit, device));
        assert!(!open(&directory).0.is_poisoned());
        fs::remove_dir_all(directory).unwrap();
    }

    /// Goal: if the mark cannot be removed the disk stays poisoned.
    #[test]
    fn a_mark_that_cannot_be_removed_keeps_the_disk_poisoned() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let directory = std::env::temp_dir().join(format!("lunar-marked-{}", std::process::id()));
        fs::create_dir_all(directory.join("poisoned")).unwrap();
        let (unit, _device) = open(&directory);
        assert!(unit.is_poisoned());
        runtime.block_on(unit.recover()).unwrap_err();
        assert!(unit.is_poisoned());
        fs::remove_dir_all(directory).unwrap();
    }

    /// Goal: any file that another user has put in the place of the mark counts as the mark, to be
    /// safe, and is neither opened nor written through; a recovery removes that name alone.
    #[test]
    fn a_planted_mark_is_not_written_through() {
        use std::os::unix::fs::{chown, symlink};
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let base = std::env::temp_dir().join(format!("lunar-mark-{}", std::process::id()));
        let (directory, victim) = (base.join("disk.img.lunar"), base.join("victim"));
        fs::create_dir(&base).unwrap();
        fs::write(&victim, b"precious").unwrap();
        let plants: [&dyn Fn(&Path); 4] = [
            &|at| symlink(&victim, at).unwrap(),
            &|at| fs::hard_link(&victim, at).unwrap(),
            &|at| assert!(std::process::Command::new("mkfifo").arg(at).status().unwrap().success()),
            &|at| {
                fs::write(at, b"theirs").unwrap();
                let _ = chown(at, Some(65534), None); // only root may
            },
        ];
        for plant in plants {
            let (unit, device) = open(&directory);
            assert!(!unit.is_poisoned());
            lunar_block::StateDirectory::create(&directory).unwrap();
            let at = directory.join(MARK_NAME);
            plant(&at);
            device.inject(
                Fault::new(Effect::Fail(lunar_block::ErrorKind::Medium)).on(FaultOperation::Flush),
            );
            runtime.block_on(device.flush()).unwrap_err();
            runtime.block_on(unit.recover()).unwrap_err();
            drop((unit, device));
            let (unit, _device) = open(&directory);
            assert!(unit.is_poisoned() && at.symlink_metadata().is_ok());
            assert_eq!(fs::read(&victim).unwrap(), b"precious");
            runtime.block_on(unit.recover()).unwrap();
            assert!(!unit.is_poisoned() && at.symlink_metadata().is_err());
            assert_eq!(fs::read(&victim).unwrap(), b"precious");
        }
        fs::remove_dir_all(base).unwrap();
    }
}
