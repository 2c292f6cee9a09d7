//! Tests with a manual clock that only the tests advance, and with a stand-in for the system call
//! that blocks until the test releases it.

use super::dirty::INLINE_DIVISOR;
use super::*;
use crate::file::disk::{Disk, write_fully};
use crate::file::tests::{MINUTE, Scratch};
use crate::file::{FileDevice, FileOptions, open};
use crate::{BlockDevice, BlockRange, ErrorKind};
use bytes::Bytes;
use std::fs::File;
use std::io;
use std::sync::mpsc::{Receiver, Sender, channel};

const MIB: u64 = 1 << 20;

/// Disks of one file system, and their clock.
struct Rig {
    scratch: Scratch,
    file_systems: FileSystems,
    disks: std::cell::Cell<u32>,
}

impl Rig {
    fn new(memory_bytes: u64) -> Self {
        let clock = Clock::Manual { nanos: AtomicU64::new(1), waits: AtomicU64::new(0) };
        let file_systems = FileSystems::with_clock(memory_bytes, clock);
        Self { scratch: Scratch::new(), file_systems, disks: std::cell::Cell::new(0) }
    }

    fn options(&self, size_bytes: u64) -> FileOptions {
        let number = self.disks.replace(self.disks.get() + 1);
        let path = self.scratch.0.join(format!("{number}.img"));
        FileOptions { path, thin: false, ..self.scratch.options(size_bytes) }
    }

    /// Opens a disk whose bytes are counted, whatever file system holds the temporary folder.
    fn disk(&self) -> Disk {
        let mut disk = open::open(&self.options(MIB), &self.file_systems).unwrap().0;
        disk.writes = self.file_systems.disk(1, false);
        disk
    }

    /// Creates a device that syncs with this function.
    fn device(
        &self,
        sync: impl Fn(&Disk) -> io::Result<()> + Send + Sync + 'static,
    ) -> Arc<FileDevice> {
        let disk = Arc::new(self.disk());
        let synced = Arc::clone(&disk);
        FileDevice::with_sync(disk, move || {
            let _syncing = synced.writes.begin_sync();
            sync(&synced)
        })
    }

    fn advance(&self, time: Duration) {
        let Clock::Manual { nanos, .. } = &*self.file_systems.0.clock else { return };
        nanos.fetch_add(time.as_nanos() as u64, Relaxed);
    }

    fn wait(&self) {
        let Clock::Manual { waits, .. } = &*self.file_systems.0.clock else { return };
        waits.fetch_add(1, Relaxed);
    }

    /// Returns a write that waits in the kernel for `time`.
    fn waiting(&self, time: Duration) -> impl Fn(&File, &[u8], u64) -> io::Result<()> {
        move |file, from, offset| {
            self.wait();
            self.advance(time);
            write_fully(file, from, offset)
        }
    }

    /// Returns a write that does not get the processor for `time`.
    fn preempted(&self, time: Duration) -> impl Fn(&File, &[u8], u64) -> io::Result<()> {
        move |file, from, offset| {
            self.advance(time);
            write_fully(file, from, offset)
        }
    }
}

/// Returns a write that signals its start and blocks until the test releases it.
fn blocking(
    begun: Sender<()>,
    may_go: Receiver<()>,
) -> impl FnOnce(&File, &[u8], u64) -> io::Result<()> {
    move |file, from, offset| {
        begun.send(()).map_err(io::Error::other)?;
        may_go.recv_timeout(MINUTE).map_err(io::Error::other)?;
        write_fully(file, from, offset)
    }
}

fn writes_inline(disk: &Disk) -> bool {
    disk.write_inline(&(0..512), &[1; 512]).unwrap()
}

fn write(disk: &Disk) {
    disk.write(&(0..512), &[1; 512]).unwrap();
}

/// Fault: slowness was recorded per file, so the files of a slow file system delayed the core one
/// after the other.
#[test]
fn a_slow_write_stops_inline_writes_of_its_file_system() {
    let rig = Rig::new(1 << 30);
    let (first, second) = (rig.disk(), rig.disk());
    let mut elsewhere = rig.disk();
    elsewhere.writes = rig.file_systems.disk(2, false);
    assert!(writes_inline(&first) && writes_inline(&second));
    let slow = rig.waiting(Duration::from_millis(300));
    assert!(first.write_inline_by(&(0..512), &[1; 512], slow).unwrap());
    assert!(!writes_inline(&first) && !writes_inline(&second) && writes_inline(&elsewhere));
    rig.advance(Duration::from_millis(299));
    assert!(!writes_inline(&second));
    rig.advance(Duration::from_millis(1));
    assert!(writes_inline(&first) && writes_inline(&second));
}

/// Goal: a file system that is slow again and again blocks a core less and less often, and inline
/// writes resume only after quick writes of workers.
#[test]
fn pauses_of_inline_writes_double() {
    let rig = Rig::new(1 << 30);
    let disk = rig.disk();
    let slow = || {
        let slow = rig.waiting(Duration::from_millis(6));
        assert!(disk.write_inline_by(&(0..512), &[1; 512], slow).unwrap());
    };
    slow();
    rig.advance(Duration::from_millis(6));
    for seconds in [1, 2, 4, 8, 16, 32, 60, 60] {
        slow();
        rig.advance(Duration::from_secs(seconds) - Duration::from_nanos(1));
        (0..QUICK_WRITES_MIN).for_each(|_| write(&disk));
        assert!(!writes_inline(&disk), "{seconds} s");
        rig.advance(Duration::from_nanos(1));
    }
    slow();
    rig.advance(PAUSE_MAX);
    for _ in 0..QUICK_WRITES_MIN {
        assert!(!writes_inline(&disk));
        write(&disk);
    }
    assert!(writes_inline(&disk));
    rig.advance(STREAK_KEPT + Duration::from_nanos(1));
    slow();
    rig.advance(Duration::from_millis(6));
    assert!(writes_inline(&disk), "the write counts as the first slow one");
}

/// Goal: a slow write of a worker marks the file system as slow like one of a core does, and so
/// does a write that has not ended yet.
#[test]
fn slow_writes_of_workers_stop_inline_writes() {
    let rig = Rig::new(1 << 30);
    let (slow, other) = (rig.disk(), rig.disk());
    slow.write_by(&(0..512), &[1; 512], |_, _, _| {
        assert!(writes_inline(&other));
        let is_inline = slow.write_inline(&(4096..4608), &[1; 512]).unwrap();
        assert!(!is_inline, "the worker holds the lock of the file");
        rig.wait();
        rig.advance(SLOW_WRITE + Duration::from_micros(10));
        assert!(!writes_inline(&other));
        Ok(())
    })
    .unwrap();
    for _ in 0..QUICK_WRITES_MIN {
        assert!(!writes_inline(&other));
        write(&other);
    }
    assert!(writes_inline(&other) && writes_inline(&slow));
    // A long write may take more time.
    let long = vec![1; MIB as usize];
    slow.write_by(&(0..MIB), &long, rig.waiting(SLOW_WRITE + Duration::from_millis(4))).unwrap();
    assert!(writes_inline(&other));
}

/// Goal: a core that was preempted for a few milliseconds soon writes inline again, however often
/// that happens. Leaving all writes to workers for 200 ms each time had caused most of the tail
/// latency of small writes.
#[test]
fn a_preempted_core_soon_writes_inline_again() {
    let rig = Rig::new(1 << 30);
    let disk = rig.disk();
    let taken = || disk.write_inline_by(&(0..512), &[1; 512], rig.preempted(2 * SLOW_WRITE));
    assert!(taken().unwrap());
    assert!(!writes_inline(&disk), "the write may have waited: its waits were not counted");
    rig.advance(2 * SLOW_WRITE);
    assert!((0..9).all(|_| taken().unwrap()));
    disk.write_by(&(0..512), &[1; 512], rig.preempted(2 * SLOW_WRITE)).unwrap();
    assert!(writes_inline(&disk));
}

/// Goal: the kernel's count of waits distinguishes a wait from preemption.
#[test]
fn a_thread_that_waits_is_counted() {
    let (go, may_go) = channel::<()>();
    let (begun, begins) = channel();
    let waiter = std::thread::spawn(move || {
        let before = unsafe_rusage::thread_waits();
        begun.send(rustix::thread::gettid()).unwrap();
        may_go.recv_timeout(MINUTE).unwrap();
        unsafe_rusage::thread_waits() - before
    });
    let thread = begins.recv().unwrap().as_raw_nonzero();
    let is_asleep = || {
        let stat = std::fs::read_to_string(format!("/proc/self/task/{thread}/stat")).unwrap();
        stat.contains(") S ")
    };
    while !is_asleep() {
        std::thread::yield_now();
    }
    go.send(()).unwrap();
    assert!(waiter.join().unwrap() > 0);
}

/// Fault: while one core was blocked in a write, a second one waited for the lock of the same file,
/// or was blocked by another file.
#[test]
fn one_inline_write_of_a_file_system_runs_at_a_time() {
    let rig = Rig::new(1 << 30);
    let (first, second) = (rig.disk(), rig.disk());
    let mut elsewhere = rig.disk();
    elsewhere.writes = rig.file_systems.disk(2, false);
    let ((begun, begins), (go, may_go)) = (channel(), channel());
    let write = blocking(begun, may_go);
    std::thread::scope(|scope| {
        let blocked = scope.spawn(|| first.write_inline_by(&(0..512), &[1; 512], write));
        begins.recv_timeout(MINUTE).unwrap();
        let behind = 4096..4608;
        assert!(!first.write_inline(&behind, &[1; 512]).unwrap());
        assert!(!writes_inline(&second) && writes_inline(&elsewhere));
        go.send(()).unwrap();
        assert!(blocked.join().unwrap().unwrap());
    });
    assert!(writes_inline(&first) && writes_inline(&second));
}

/// Goal: for files in memory no write waits for a disk, and two cores may write to two files.
#[test]
fn file_systems_in_memory_have_no_limits() {
    let rig = Rig::new(MIB);
    let (mut first, mut second) = (rig.disk(), rig.disk());
    first.writes = rig.file_systems.disk(3, true);
    second.writes = rig.file_systems.disk(3, true);
    let ((begun, begins), (go, may_go)) = (channel(), channel());
    let write = blocking(begun, may_go);
    std::thread::scope(|scope| {
        let blocked = scope.spawn(|| first.write_inline_by(&(0..512), &[1; 512], write));
        begins.recv_timeout(MINUTE).unwrap();
        assert!((0..1024).all(|_| writes_inline(&second)));
        go.send(()).unwrap();
        assert!(blocked.join().unwrap().unwrap());
    });
    assert!(!first.writes.dirty.is_full());
}

/// Goal: while a sync of any disk of the file system takes long, no write goes inline, because it
/// might wait with the sync.
#[test]
fn no_inline_write_beside_a_long_sync() {
    let rig = Rig::new(1 << 30);
    let (synced, other) = (rig.disk(), rig.disk());
    let long = synced.writes.begin_sync();
    rig.advance(SLOW_SYNC / 2);
    let quick = other.writes.begin_sync();
    assert!(writes_inline(&other));
    rig.advance(SLOW_SYNC / 2 + Duration::from_nanos(1));
    assert!(!writes_inline(&other) && !writes_inline(&synced));
    drop(long);
    assert!(writes_inline(&other), "the remaining sync began later");
    drop(quick);
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future)
}

fn write_to(device: &FileDevice, blocks: u32) -> Result<(), crate::Error> {
    let data = Bytes::from(vec![1; 512 * blocks as usize]);
    block_on(device.write(BlockRange::new(0, u64::from(blocks)), data, false))
}

/// Fault: writes on cores filled the memory with data to be written back, until the kernel made the
/// cores wait. At the limit workers write, and the disk with most of the data is synced, whichever
/// disk is written; after the sync inline writes resume.
#[test]
fn dirty_data_at_the_limit_is_synced_and_workers_write() {
    let rig = Rig::new(INLINE_DIVISOR * 512 * 1024);
    let (begun, syncs) = channel();
    let (go, may_go) = channel::<()>();
    let may_go = Mutex::new(may_go);
    let full = rig.device(move |_| {
        begun.send(()).map_err(io::Error::other)?;
        may_go.lock().unwrap().recv_timeout(MINUTE).map_err(io::Error::other)
    });
    let other = rig.device(|_| Ok(()));
    let none_began = || syncs.try_recv().is_err();
    write_to(&full, 1024).unwrap();
    assert!(!full.disk.writes.dirty.is_full(), "the limit is not passed yet");
    write_to(&full, 8).unwrap();
    assert!(none_began() && full.disk.writes.dirty.is_full());
    let jobs = other.workers.jobs();
    write_to(&other, 8).unwrap();
    assert_eq!(other.workers.jobs(), jobs + 1, "a worker wrote");
    syncs.recv_timeout(MINUTE).unwrap();
    assert!(!writes_inline(&full.disk) && !writes_inline(&other.disk));
    go.send(()).unwrap();
    full.syncer.wait_until_idle(MINUTE);
    assert!(none_began());
    assert!(writes_inline(&full.disk) && writes_inline(&other.disk));
}

/// Goal: a flush covers data that was written before it, and no other data.
#[test]
fn a_flush_allows_inline_writes_again() {
    let rig = Rig::new(INLINE_DIVISOR * 512 * 8);
    let device = rig.device(|disk| {
        disk.write(&(0..512), &[2; 512])?;
        Ok(())
    });
    assert!((0..9).all(|_| writes_inline(&device.disk)));
    assert!(!writes_inline(&device.disk));
    block_on(device.flush()).unwrap();
    device.syncer.wait_until_idle(MINUTE);
    assert_eq!(device.disk.writes.bytes.unsynced(), 512);
    assert!(writes_inline(&device.disk));
}

/// Goal: a disk that is written repeatedly leaves at most its own size to be written back.
#[test]
fn rewritten_bytes_count_once() {
    let rig = Rig::new(INLINE_DIVISOR * MIB);
    let device = rig.device(|_| Ok(()));
    let all = vec![1; MIB as usize];
    assert!((0..9).all(|_| device.disk.write_inline(&(0..MIB), &all).unwrap()));
    block_on(device.flush()).unwrap();
    assert!(device.disk.writes.bytes.unsynced() == 0);
    let guard = device.disk.writes.begin_sync();
    assert!((0..9).all(|_| device.disk.write_inline(&(0..MIB), &all).unwrap()));
    drop(guard);
    assert_eq!(device.disk.writes.bytes.unsynced(), MIB);
}

/// Goal: the error of a sync without a request has the same effects as that of a flush; bytes of
/// that disk do not keep other disks from inline writes forever.
#[test]
fn an_error_while_writing_back_poisons_the_disk() {
    let rig = Rig::new(INLINE_DIVISOR * 512 * 8);
    let broken = rig.device(|_| Err(io::Error::from_raw_os_error(5)));
    let other = rig.device(|_| Ok(()));
    write_to(&broken, 16).unwrap();
    write_to(&other, 1).unwrap();
    broken.syncer.wait_until_idle(MINUTE);
    assert_eq!(block_on(broken.flush()).unwrap_err().kind, ErrorKind::Poisoned);
    assert_eq!(write_to(&broken, 1).unwrap_err().kind, ErrorKind::Poisoned);
    assert!(writes_inline(&other.disk));
}

/// Goal: bytes of a closed disk no longer count, and file systems share the memory.
#[test]
fn bytes_of_closed_disks_no_longer_count() {
    let rig = Rig::new(INLINE_DIVISOR * 512 * 8);
    let device = rig.device(|_| Ok(()));
    let other = rig.device(|_| Ok(()));
    write_to(&device, 16).unwrap();
    assert!(other.disk.writes.dirty.is_full());
    drop(device);
    assert!(!other.disk.writes.dirty.is_full());
    let elsewhere = rig.file_systems.disk(2, false);
    assert_eq!(elsewhere.limit_bytes(), 4 * 512);
    elsewhere.set_free_space(0);
    assert_eq!(elsewhere.limit_bytes(), 4 * 512);
    drop(elsewhere);
    assert_eq!(other.disk.writes.limit_bytes(), 8 * 512);
}

/// Goal: a worker waits for syncs when the memory is full of data to be written back.
#[test]
fn workers_wait_while_too_much_data_is_dirty() {
    let rig = Rig::new(INLINE_DIVISOR * 512 * 8);
    let (begun, syncs) = channel();
    let (go, may_go) = channel::<()>();
    let may_go = Mutex::new(may_go);
    let device = rig.device(move |_| {
        begun.send(()).map_err(io::Error::other)?;
        may_go.lock().unwrap().recv_timeout(MINUTE).map_err(io::Error::other)
    });
    write_to(&device, 64).unwrap();
    go.send(()).unwrap();
    write_to(&device, 1).unwrap();
    syncs.recv_timeout(MINUTE).unwrap();
    let left = device.disk.writes.bytes.unsynced();
    assert!(left <= 512, "{left} bytes are to be written back");
}
