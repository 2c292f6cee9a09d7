//! The disk as tests use it: its mount point, its power cuts and its faults.

use super::faults::{CallKind, Faults, Refusal};
use super::fuse::FuseAdapter;
use super::loop_device::{self, mounts_of, unmount_lazily};
use super::volume::Volume;
use crate::random::Random;
use crate::system::scratch::Scratch;
use anyhow::{Context, Result, ensure};
use fuser::{BackgroundSession, Config, MountOption};
use rustix::io::Errno;
use std::ops::Range;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Capacity of a new disk.
const ROOM_BYTES: u64 = 1 << 30;

/// Device name that mount(8) shows.
const SOURCE: &str = "lunar-powercut";

/// Interval at which a held call checks its state, if it receives no notification.
const HELD_POLL: Duration = Duration::from_secs(5);

/// Interval of polls.
const POLL: Duration = Duration::from_millis(5);

/// Current state of the file system.
pub(super) struct State {
    pub(super) volume: Volume,
    pub(super) faults: Faults,
    /// Number of cuts so far. A handle opened before a cut is invalid after it.
    pub(super) epoch: u64,
    pub(super) random: Random,
}

/// The state, and a condition variable for waiting calls.
pub(super) struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

impl Shared {
    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Executes or refuses a call: at once, or on a thread of its own if the call has to wait.
    pub(super) fn run(
        self: &Arc<Self>,
        operation: CallKind,
        call: impl FnOnce(&mut State, Result<(), Refusal>) + Send + 'static,
    ) {
        let mut state = self.lock();
        let Some(delay) = state.faults.wait(operation) else {
            let verdict = state.faults.admit(operation);
            call(&mut state, verdict);
            self.changed.notify_all();
            return;
        };
        let (shared, epoch, due) = (Arc::clone(self), state.epoch, Instant::now() + delay);
        self.changed.notify_all();
        drop(state);
        std::thread::spawn(move || {
            let mut state = shared.wait(operation, epoch, due);
            state.faults.waited(operation);
            let verdict = if state.epoch == epoch {
                state.faults.admit(operation)
            } else {
                Err(Refusal::Frozen)
            };
            call(&mut state, verdict);
            shared.changed.notify_all();
        });
    }

    /// Waits until the time has come and the call is not held, or the power is off.
    fn wait(&self, operation: CallKind, epoch: u64, due: Instant) -> MutexGuard<'_, State> {
        let mut state = self.lock();
        loop {
            let left = due.saturating_duration_since(Instant::now());
            let held = state.faults.is_held(operation);
            let gone = state.faults.is_frozen() || state.epoch != epoch;
            if gone || (!held && left.is_zero()) {
                return state;
            }
            let left = if held { HELD_POLL } else { left };
            let waited = self.changed.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

/// A mounted disk. Dropping it unmounts it; held calls end with an error.
pub struct PowerCutDisk {
    shared: Arc<Shared>,
    session: Option<BackgroundSession>,
    mount: Scratch,
}

impl PowerCutDisk {
    /// Mounts an empty disk; `name` identifies it in failures.
    ///
    /// # Errors
    /// There is no /dev/fuse, or it may not be used: other users than root need fusermount3
    /// (`scripts/setup test` installs it).
    pub fn mount(name: &str) -> Result<Self> {
        ensure!(
            Path::new("/dev/fuse").exists(),
            "/dev/fuse is missing, which the power-cut tests require: modprobe fuse, or start the \
             container with --device /dev/fuse --cap-add SYS_ADMIN"
        );
        clear_up();
        let mount = Scratch::new(name)?;
        let state = State {
            volume: Volume::new(ROOM_BYTES),
            faults: Faults::default(),
            epoch: 0,
            random: Random::new(0),
        };
        let shared = Arc::new(Shared { state: Mutex::new(state), changed: Condvar::new() });
        let mut config = Config::default();
        config.mount_options = vec![MountOption::FSName(SOURCE.into())];
        let session = fuser::spawn_mount(FuseAdapter::new(&shared), mount.folder(), &config)
            .context("cannot mount the power-cut file system (see scripts/setup test)")?;
        Ok(Self { shared, session: Some(session), mount })
    }

    /// Returns the path of a file on the disk, as text for a command line.
    pub fn path(&self, name: &str) -> String {
        self.mount.path(name)
    }

    /// Returns the mount point.
    pub fn folder(&self) -> &Path {
        self.mount.folder()
    }

    /// Turns the power off: every call fails from now on, also held ones.
    pub fn freeze(&self) {
        self.shared.lock().faults.freeze();
        self.shared.changed.notify_all();
    }

    /// Turns the power off after this many more changes (writes, syncs, new names) and before the
    /// next.
    pub fn freeze_after(&self, changes: u64) {
        self.shared.lock().faults.freeze_after(changes);
    }

    /// True while the power is off.
    pub fn is_frozen(&self) -> bool {
        self.shared.lock().faults.is_frozen()
    }

    /// Turns the power on again: synced data is there, and of the remaining data the part that this
    /// seed selects: 0 none, 1 all, others some. Handles opened before are invalid; faults are
    /// over. The programs that use the disk must end between [`Self::freeze`] and this call.
    pub fn cut(&self, seed: u64) {
        let volume = self.volume();
        self.cut_from(volume, seed);
    }

    /// Turns the power on again from a state that was taken before, so that one state has several
    /// futures.
    pub fn cut_from(&self, mut volume: Volume, seed: u64) {
        volume.cut(seed);
        self.resume_from(volume);
    }

    /// Returns to a state, as if only the programs that used the disk had ended there: no data is
    /// lost, and none becomes more durable.
    pub fn resume_from(&self, volume: Volume) {
        let mut state = self.shared.lock();
        state.volume = volume;
        state.faults.heal();
        state.epoch += 1;
        drop(state);
        self.shared.changed.notify_all();
    }

    /// Returns the current state, durable and not.
    pub fn volume(&self) -> Volume {
        self.shared.lock().volume.clone()
    }

    /// Returns the content of a file if the power was cut now.
    ///
    /// # Errors
    /// The file would not exist.
    pub fn after_cut(&self, seed: u64, name: &str) -> Result<Vec<u8>> {
        let mut volume = self.volume();
        volume.cut(seed);
        let inode = volume
            .find(Path::new(name))
            .with_context(|| format!("{name} does not exist any more"))?;
        Ok(volume.read(inode, 0..u64::MAX)?)
    }

    /// Makes syncs succeed without an effect until [`Self::heal`]. A test on such a disk has to
    /// fail, which shows that it would notice a missing sync.
    pub fn ignore_syncs(&self) {
        self.shared.lock().faults.ignore_syncs();
    }

    /// Sets the sector length of the disk, 512 bytes at first: an aligned sector is written whole
    /// or not at all.
    pub fn set_sector_bytes(&self, bytes: u64) {
        self.shared.lock().volume.set_sector_bytes(bytes);
    }

    /// Makes calls of this kind fail until [`Self::heal`].
    pub fn fail(&self, operation: CallKind, errno: Errno) {
        self.shared.lock().faults.fail(operation, errno, false);
    }

    /// Makes the next call of this kind fail. If it is a sync, at most a part of the written data
    /// is on the disk, and the next sync will not report an error.
    pub fn fail_once(&self, operation: CallKind, errno: Errno) {
        self.shared.lock().faults.fail(operation, errno, true);
    }

    /// Makes these bytes of a file unreadable (EIO), also as a part of a longer read.
    ///
    /// # Errors
    /// There is no such file.
    pub fn make_bad(&self, name: &str, bytes: Range<u64>) -> Result<()> {
        let mut state = self.shared.lock();
        let inode = state.volume.find(Path::new(name))?;
        state.faults.set_bad(inode, bytes);
        Ok(())
    }

    /// Makes each call of this kind take at least this long.
    pub fn slow(&self, operation: CallKind, delay: Duration) {
        self.shared.lock().faults.delay(operation, delay);
    }

    /// Makes calls of this kind hang until the result is dropped, or the power is off. A process
    /// that hangs so cannot be killed, as with a real disk.
    pub fn hold(&self, operation: CallKind) -> HangGuard<'_> {
        self.shared.lock().faults.hold(operation, true);
        HangGuard { disk: self, operation }
    }

    /// Changes the capacity: a write beyond it gives ENOSPC.
    pub fn set_room(&self, bytes: u64) {
        self.shared.lock().volume.set_room(bytes);
    }

    /// Ends all faults, and lets held calls continue.
    pub fn heal(&self) {
        self.shared.lock().faults.heal();
        self.shared.changed.notify_all();
    }

    /// Returns the number of calls of this kind since the last cut.
    pub fn calls(&self, operation: CallKind) -> u64 {
        self.shared.lock().faults.calls(operation)
    }
}

/// Unmounts the disks of tests that were killed.
fn clear_up() {
    loop_device::clear_up();
    for path in mounts_of(SOURCE) {
        if Scratch::is_left_over(Path::new(&path)) {
            unmount_lazily(&path);
            drop(std::fs::remove_dir(path));
        }
    }
}

/// Guard: calls of one kind hang as long as it lives.
pub struct HangGuard<'a> {
    disk: &'a PowerCutDisk,
    operation: CallKind,
}

impl HangGuard<'_> {
    /// Waits until this many calls hang.
    ///
    /// # Errors
    /// Fewer calls hang within `limit`.
    pub fn wait_for(&self, calls: usize, limit: Duration) -> Result<()> {
        let until = Instant::now() + limit;
        loop {
            let waiting = self.disk.shared.lock().faults.waiting(self.operation);
            if waiting >= calls {
                return Ok(());
            }
            ensure!(Instant::now() < until, "{waiting} of {calls} {:?} calls hang", self.operation);
            std::thread::sleep(POLL);
        }
    }
}

impl Drop for HangGuard<'_> {
    fn drop(&mut self) {
        self.disk.shared.lock().faults.hold(self.operation, false);
        self.disk.shared.changed.notify_all();
    }
}

impl Drop for PowerCutDisk {
    fn drop(&mut self) {
        self.freeze();
        let Some(session) = self.session.take() else { return };
        if let Err(error) = session.umount_and_join() {
            // The disk is still in use: it is removed when that ends.
            eprintln!("{}: {error}", self.mount.folder().display());
            unmount_lazily(&self.mount.path(""));
        }
    }
}
