//! Tests of features particular to files; the contract test covers features of all disks.

use super::*;
use crate::ExtentState;
use crate::contract::Contract;
use futures_util::{FutureExt, TryFutureExt};
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Time limit for events that must happen eventually.
pub(super) const MINUTE: Duration = Duration::from_secs(60);

/// A directory that is removed after the test.
pub(super) struct Scratch(pub(super) PathBuf);

impl Scratch {
    pub(super) fn new() -> Self {
        Self::in_directory(&std::env::temp_dir())
    }

    pub(super) fn in_directory(directory: &std::path::Path) -> Self {
        use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("block-{}-{}", std::process::id(), NEXT.fetch_add(1, Relaxed));
        let path = directory.join(name);
        std::fs::create_dir(&path).unwrap();
        Self(path)
    }

    pub(super) fn options(&self, size_bytes: u64) -> FileOptions {
        FileOptions {
            path: self.0.join("disk.img"),
            create_size_bytes: Some(size_bytes),
            block_bytes: 512,
            physical_block_bytes: 4096,
            direct: false,
            io_uring: false,
            read_only: false,
            thin: true,
        }
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future)
}

/// Asserts that closing waits for transfers in progress, but not forever: on a slow disk the rest
/// ends later.
#[track_caller]
pub(super) fn closes(close: impl FnOnce(), mut is_over: impl FnMut() -> bool) {
    let begun = Instant::now();
    close();
    let waited = begun.elapsed();
    let mut over = is_over();
    assert!(over || waited >= CLOSING_WAIT_MAX, "it waited for {waited:?} only");
    while !over {
        assert!(begun.elapsed() < MINUTE, "something is left");
        std::thread::sleep(Duration::from_millis(1));
        over = is_over();
    }
}

/// Creates a pool for tests; a single owner gets one thread and half of the shared ones.
pub(super) fn test_workers(owners_max: usize, shared_max: usize) -> Workers {
    test_workers_within(owners_max, shared_max, &ComputingSlots::new(usize::MAX))
}

/// Creates a pool as [`test_workers`] does, with these slots for CPU-bound jobs.
pub(super) fn test_workers_within(
    owners_max: usize,
    shared_max: usize,
    slots: &ComputingSlots,
) -> Workers {
    static BUDGET: ThreadBudget = ThreadBudget::new(usize::MAX);
    let limits = RunningLimits { owners_max, shared_max };
    Workers::new("test", limits, &BUDGET, slots.clone())
}

/// Opens a device with these slots for CPU-bound jobs, and a slot of its own for maps.
pub(super) fn open_with_slots(options: &FileOptions, slots: &ComputingSlots) -> Arc<FileDevice> {
    open_with_map_slots(options, slots, &ComputingSlots::new(1))
}

/// Opens a device with these slots for maps and for other CPU-bound jobs.
pub(super) fn open_with_map_slots(
    options: &FileOptions,
    slots: &ComputingSlots,
    map_slots: &ComputingSlots,
) -> Arc<FileDevice> {
    let disk = Arc::new(open_disk(options));
    let synced = Arc::clone(&disk);
    FileDevice::with_slots(disk, slots.clone(), map_slots.clone(), move || synced.sync())
}

/// Opens a disk without a device.
pub(super) fn open_disk(options: &FileOptions) -> Disk {
    open::open(options, &FileSystems::default()).unwrap().0
}

fn refused(options: FileOptions) -> String {
    let error = FileDevice::open(options).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Open);
    error.to_string()
}

/// Goal: reads of a disk do not update the access time of its file. Method: an access time older
/// than the file's last change, which any file system with access times would update.
#[test]
fn reads_leave_the_access_time() {
    let scratch = Scratch::new();
    let options = scratch.options(1 << 20);
    drop(FileDevice::open(options.clone()).unwrap());
    let old = std::time::SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(1);
    let file = std::fs::File::open(&options.path).unwrap();
    file.set_times(std::fs::FileTimes::new().set_accessed(old)).unwrap();
    let pool = crate::BufferPool::default();
    let device = FileDevice::open(options).unwrap();
    drop(block_on(device.read(BlockRange::new(0, 8), pool.take(4096))).unwrap());
    assert_eq!(file.metadata().unwrap().accessed().unwrap(), old);
}

/// Goal: a new file has its size and takes no room; it keeps its data and its size when opened
/// again.
#[test]
fn created_and_kept() {
    let scratch = Scratch::new();
    let pool = crate::BufferPool::default();
    let device = FileDevice::open(scratch.options(15 << 40)).unwrap();
    assert_eq!(device.geometry().size_bytes(), 15 << 40);
    let last = BlockRange::new(device.geometry().block_count - 1, 1);
    block_on(device.write(last, Bytes::from(vec![9; 512]), true)).unwrap();
    drop(device);
    let device = FileDevice::open(scratch.options(1 << 20)).unwrap();
    assert_eq!(device.geometry().size_bytes(), 15 << 40);
    let read = block_on(device.read(last, pool.take(512))).unwrap();
    assert_eq!(read[..], [9; 512]);
    drop(read);
    assert_eq!(pool.in_use_bytes(), 0);
}

/// Goal: a file that cannot be opened is refused with a message that gives the reason, and no file
/// is created or changed.
#[test]
fn refusals() {
    let scratch = Scratch::new();
    let options = scratch.options(1 << 20);
    let missing = FileOptions { create_size_bytes: None, ..options.clone() };
    assert!(refused(missing.clone()).contains("does not exist"));
    for bad in [0, 1000] {
        refused(FileOptions { create_size_bytes: Some(bad), ..options.clone() });
    }
    refused(FileOptions { block_bytes: 520, ..options.clone() });
    refused(FileOptions { physical_block_bytes: 256, ..options.clone() });
    assert!(!options.path.exists());
    std::fs::write(&options.path, b"").unwrap();
    assert!(refused(missing.clone()).contains("empty"));
    std::fs::write(&options.path, [1; 1000]).unwrap();
    assert!(refused(missing.clone()).contains("not a multiple"));
    assert_eq!(std::fs::read(&options.path).unwrap(), [1; 1000]);
    let directory = FileOptions { path: scratch.0.clone(), ..options };
    assert!(refused(directory).contains("neither"));
}

/// Goal: a file is never created through a link. None is opened, given a size or served through
/// another user's link. A link and a descriptor of this user lead to the disk.
#[test]
fn links_of_others_are_not_followed() {
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::{lchown, symlink};
    let scratch = Scratch::new();
    let options = scratch.options(1 << 20);
    let (victim, dangling) = (scratch.0.join("victim"), scratch.0.join("dangling"));
    symlink(&dangling, &options.path).unwrap();
    let text = refused(options.clone());
    assert!(text.contains("a symbolic link to a file that does not exist"), "{text}");
    assert!(!dangling.exists() && options.path.is_symlink());
    std::fs::remove_file(&options.path).unwrap();
    std::fs::write(&victim, "").unwrap();
    symlink(&victim, &options.path).unwrap();
    if lchown(&options.path, Some(65534), Some(65534)).is_ok() {
        let error = FileDevice::open(options.clone()).unwrap_err();
        let text = std::error::Error::source(&error).unwrap().to_string();
        assert!(text.contains("belongs to uid 65534, who can point it"), "{text}");
        assert_eq!(std::fs::metadata(&victim).unwrap().len(), 0);
    }
    std::fs::remove_file(&options.path).unwrap();
    symlink("victim", &options.path).unwrap();
    drop(FileDevice::open(options.clone()).unwrap());
    assert_eq!(std::fs::metadata(&victim).unwrap().len(), 1 << 20);
    let file = std::fs::File::open(&victim).unwrap();
    std::fs::remove_file(&victim).unwrap();
    let path = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
    let descriptor = FileOptions { path, create_size_bytes: None, ..options };
    assert_eq!(FileDevice::open(descriptor).unwrap().geometry().block_count, 2048);
}

/// Fault: a new image that could not take its room was removed by its path. A user who had
/// meanwhile moved its folder away, and put a link in its place, chose which file was removed.
#[test]
fn a_new_file_is_removed_in_its_own_directory() {
    use super::open::Opening;
    use crate::path_lookup::PathEntry;
    use std::os::unix::fs::symlink;
    let scratch = Scratch::new();
    let (folder, moved) = (scratch.0.join("folder"), scratch.0.join("moved"));
    let precious = scratch.0.join("elsewhere/precious");
    std::fs::create_dir(scratch.0.join("elsewhere")).unwrap();
    std::fs::write(&precious, "precious").unwrap();
    let options = FileOptions { path: folder.join("precious"), ..scratch.options(1 << 20) };
    let exchange = || {
        std::fs::rename(&folder, &moved).unwrap();
        symlink("elsewhere", &folder).unwrap();
    };
    let put_back = || {
        assert_eq!(std::fs::read(&precious).unwrap(), b"precious");
        assert_eq!(std::fs::read_dir(&moved).unwrap().count(), 0, "the new file is gone");
        std::fs::remove_file(&folder).unwrap();
        std::fs::rename(&moved, &folder).unwrap();
    };
    std::fs::create_dir(&folder).unwrap();
    let opening = Opening::new(&options);
    let entry = PathEntry::find(&options.path).unwrap();
    let (file, created) = opening.create(&entry).unwrap();
    exchange();
    // The size exceeds the limit of any file system.
    opening.initialize(&file, &entry, created, i64::MAX as u64).unwrap_err();
    put_back();
    // The file is also removed there when the opener of the device does not want it after all.
    let device = FileDevice::open(options.clone()).unwrap();
    let created = device.take_created().unwrap();
    assert!(device.take_created().is_none());
    exchange();
    created.remove().unwrap();
    put_back();
    // Another file that has the name by then stays.
    let created = FileDevice::open(options.clone()).unwrap().take_created().unwrap();
    std::fs::rename(&options.path, scratch.0.join("other name")).unwrap();
    std::fs::write(&options.path, "another").unwrap();
    created.remove().unwrap();
    assert_eq!(std::fs::read(&options.path).unwrap(), b"another");
    assert!(FileDevice::open(scratch.options(1 << 20)).unwrap().take_created().is_some());
    assert!(FileDevice::open(scratch.options(1 << 20)).unwrap().take_created().is_none());
}

/// Fault: a server waited without end when a pipe replaced the image between the check and the
/// open. The open now never waits, but transfers of the disk do.
#[test]
fn opening_waits_for_no_pipe() {
    use super::open::Opening;
    use crate::path_lookup::PathEntry;
    let scratch = Scratch::new();
    let options =
        FileOptions { read_only: true, create_size_bytes: None, ..scratch.options(1 << 20) };
    std::fs::write(&options.path, [1; 4096]).unwrap();
    let entry = PathEntry::find(&options.path).unwrap();
    std::fs::remove_file(&options.path).unwrap();
    crate::scratch::make_pipe(&options.path);
    let error = Opening::new(&options).existing(&entry).err().unwrap();
    assert!(error.to_string().contains("it was replaced while it was being opened"), "{error}");
    std::fs::remove_file(&options.path).unwrap();
    std::fs::write(&options.path, [1; 4096]).unwrap();
    let device = FileDevice::open(options).unwrap();
    let flags = rustix::fs::fcntl_getfl(&device.disk.file).unwrap();
    assert!(!flags.contains(rustix::fs::OFlags::NONBLOCK));
}

/// Fault: each range of an UNMAP was a separate job, and 64 sessions with 250 ranges each made the
/// core change threads instead of serving other hosts.
#[test]
fn a_list_is_unmapped_in_a_few_jobs() {
    const RANGES: u64 = 250;
    let scratch = Scratch::new();
    let slots = ComputingSlots::new(1);
    let device = open_with_slots(&scratch.options(RANGES * 8192), &slots);
    let all = BlockRange::new(0, RANGES * 16);
    let ones = Bytes::from(vec![1; (RANGES * 8192) as usize]);
    block_on(device.write(all, ones, false)).unwrap();
    let before = device.workers.jobs();
    let ranges: Vec<_> = (0..RANGES).map(|at| BlockRange::new(at * 16, 8)).collect();
    block_on(device.unmap_all(ranges.clone(), true)).unwrap();
    let jobs = device.workers.jobs() - before;
    // One further job is the sync.
    assert!(jobs <= RANGES.div_ceil(CLEAR_JOB_RANGES as u64) + 1, "{jobs} jobs");
    let read = block_on(device.read(all, BufferPool::default().take(all.count as usize * 512)));
    let read = read.unwrap();
    assert!(read.chunks(4096).enumerate().all(|(at, half)| half == [(at % 2) as u8; 4096]));
    let past_the_end = vec![ranges[0], BlockRange::new(RANGES * 16, 1)];
    let refused = block_on(device.unmap_all(past_the_end, false)).unwrap_err();
    assert_eq!(refused.kind, ErrorKind::OutOfRange);
}

/// Fault: all threads of a device made maps of a file of many extents at once, which is CPU-bound
/// in the kernel: one connection had sixteen times as much processor time as a core.
#[test]
fn few_maps_are_made_at_once() {
    let scratch = Scratch::new();
    let device = FileDevice::open(scratch.options(1 << 20)).unwrap();
    let all = BlockRange::new(0, 2048);
    let held: Vec<_> = (0..DEVICE_MAPS_MAX).map(|_| device.maps.try_permit().unwrap()).collect();
    let before = device.workers.jobs();
    let mut maps: Vec<_> = (0..20).map(|_| device.status(all, 9)).collect();
    assert!(maps.iter_mut().all(|map| map.now_or_never().is_none()));
    assert_eq!(device.maps.waiting(), 20, "all jobs wait, and no thread waits");
    drop(held);
    for map in maps {
        assert_eq!(block_on(map).unwrap().len(), 1);
    }
    assert_eq!(device.workers.jobs(), before + 20);
}

/// Fault: all threads of a device zeroed and unmapped at once, which the kernel does for one at a
/// time. Beside 64 sessions with UNMAP lists, the read rate of another host fell to 20 %.
#[test]
fn one_job_of_a_device_clears_at_a_time() {
    let scratch = Scratch::new();
    let device = FileDevice::open(scratch.options(1 << 20)).unwrap();
    let context = IoContext::new(&Arc::default());
    let held = device.clears.try_permit();
    let range = |at: u64| BlockRange::new(8 * at, 8);
    let mut clears: Vec<_> = (0..20).map(|at| device.unmap(range(at), false)).collect();
    clears.extend((20..40).map(|at| device.write_zeroes(range(at), false, false)));
    let mut waits = context.scope(device.unmap(range(40), false)).boxed();
    assert!((&mut waits).now_or_never().is_none());
    assert!(context.cancel(), "a waiting transfer can be cancelled");
    drop(waits);
    let before = device.workers.jobs();
    assert!(clears.iter_mut().all(|clear| clear.now_or_never().is_none()));
    assert_eq!(device.clears.waiting(), 40, "all jobs wait, and no thread waits");
    drop(held);
    for clear in clears {
        block_on(clear).unwrap();
    }
    assert_eq!(device.workers.jobs(), before + 40);
}

/// Fault: sixteen threads and all cores wrote to one file, where the kernel admits one writer and
/// the others spin. Beside four sessions with WRITE SAME, the request rate of another host fell to
/// 18 %.
#[test]
fn one_long_write_of_a_file_is_with_the_kernel_at_a_time() {
    let scratch = Scratch::new();
    let device = FileDevice::open(scratch.options(1 << 30)).unwrap();
    for bytes in [LONG_WRITE_BYTES, INLINE_BYTES_MAX, INLINE_BYTES_MAX + 4096] {
        let held = device.writes.try_permit();
        let range = |at: usize| BlockRange::new((at * bytes / 512) as u64, (bytes / 512) as u64);
        let data = Bytes::from(vec![1; bytes]);
        let mut writes: Vec<_> =
            (0..20).map(|at| device.write(range(at), data.clone(), false)).collect();
        assert!(writes.iter_mut().all(|write| write.now_or_never().is_none()), "{bytes}");
        assert_eq!(device.writes.waiting(), 20, "all jobs wait, and no thread waits");
        drop(held);
        block_on(futures_util::future::join_all(writes)).into_iter().for_each(Result::unwrap);
    }
}

/// Fault: sixteen threads copied cached data at once, for reads of 8 MiB whose sessions were closed
/// immediately; the request rate of another host fell to 12 %.
#[test]
fn few_long_reads_of_a_file_are_with_workers_at_a_time() {
    let bytes = INLINE_BYTES_MAX + 4096;
    let scratch = Scratch::new();
    let device = FileDevice::open(scratch.options(1 << 20 << 5)).unwrap();
    let held: Vec<_> = std::iter::from_fn(|| device.long_reads.try_permit()).collect();
    assert!((1..=LONG_READS_MAX).contains(&held.len()));
    let before = device.workers.jobs();
    let pool = BufferPool::default();
    let range = BlockRange::new(0, (bytes / 512) as u64);
    let mut reads: Vec<_> = (0..20).map(|_| device.read(range, pool.take(bytes))).collect();
    assert!(reads.iter_mut().all(|read| read.now_or_never().is_none()));
    assert_eq!(device.long_reads.waiting(), 20, "all jobs wait, and no thread waits");
    drop(held);
    block_on(futures_util::future::join_all(reads))
        .into_iter()
        .for_each(|read| drop(read.unwrap()));
    assert_eq!(device.workers.jobs(), before + 20);
}

/// Fault: a permit was granted to the future of a transfer, which waits for the turn of its owner
/// before it begins. With 64 owners each long write kept all other writes waiting for some
/// milliseconds. Method: the future of a transfer is not polled any more after it has queued.
#[test]
fn a_future_that_is_not_polled_blocks_no_other() {
    type Begin = fn(&FileDevice) -> BoxFuture<'_, Result<(), Error>>;
    type Case = (fn(&FileDevice) -> &ComputingLimit, Begin);
    const LONG: usize = INLINE_BYTES_MAX + 4096;
    const RANGE: BlockRange = BlockRange { lba: 0, count: (LONG / 512) as u64 };
    let cases: [Case; 5] = [
        (|device| &device.maps, |device| device.status(RANGE, 9).map_ok(drop).boxed()),
        (|device| &device.clears, |device| device.unmap(RANGE, false)),
        (|device| &device.writes, |device| device.write(RANGE, vec![1; LONG].into(), false)),
        (
            |device| &device.writes,
            |device| device.write(BlockRange::new(0, 256), vec![1; LONG_WRITE_BYTES].into(), false),
        ),
        (
            |device| &device.long_reads,
            |device| device.read(RANGE, BufferPool::default().take(LONG)).map_ok(drop).boxed(),
        ),
    ];
    let scratch = Scratch::new();
    let device = FileDevice::open(scratch.options(16 << 20)).unwrap();
    for (limit, begin) in cases {
        let held: Vec<_> = std::iter::from_fn(|| limit(&device).try_permit()).collect();
        let mut unpolled: Vec<_> = held.iter().map(|_| begin(&device)).collect();
        assert!(unpolled.iter_mut().all(|first| first.now_or_never().is_none()));
        let mut next = begin(&device);
        assert!((&mut next).now_or_never().is_none());
        drop(held);
        within_a_minute(next).unwrap();
        within_a_minute(futures_util::future::join_all(unpolled));
    }
}

fn within_a_minute<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let ended = runtime.block_on(async { tokio::time::timeout(MINUTE, future).await });
    ended.expect("the future waits for one that is not polled")
}

/// Goal: an empty file, such as a crash leaves, is given its size; the whole of a huge file is
/// unmapped and mapped quickly.
#[test]
fn empty_and_huge() {
    let scratch = Scratch::new();
    let options = scratch.options(15 << 40);
    std::fs::write(&options.path, b"").unwrap();
    let device = FileDevice::open(options).unwrap();
    assert_eq!(device.geometry().size_bytes(), 15 << 40);
    let middle = BlockRange::new(7 << 30, 8);
    let all = BlockRange::new(0, device.geometry().block_count);
    block_on(device.write(middle, Bytes::from(vec![7; 4096]), false)).unwrap();
    let extents = block_on(device.status(all, 9)).unwrap();
    let mapped: Vec<_> = extents.iter().filter(|e| e.state == ExtentState::Mapped).collect();
    assert!(matches!(mapped[..], [one] if one.range == middle), "{extents:?}");
    let begin = std::time::Instant::now();
    block_on(device.unmap(all, true)).unwrap();
    assert!(begin.elapsed() < std::time::Duration::from_secs(10), "{:?}", begin.elapsed());
    let unmapped = Extent { range: all, state: ExtentState::Unmapped };
    assert_eq!(block_on(device.status(all, 9)).unwrap(), [unmapped]);
}

fn keeps_the_contract(how: impl Fn(FileOptions) -> FileOptions, size_unit_bytes: u32) {
    keeps_the_contract_in(&Scratch::new(), how, size_unit_bytes);
}

fn keeps_the_contract_in(
    scratch: &Scratch,
    how: impl Fn(FileOptions) -> FileOptions,
    size_unit_bytes: u32,
) {
    let next = std::sync::atomic::AtomicU32::new(0);
    let last = std::sync::Mutex::new(None);
    let make = |geometry: Geometry| -> Arc<dyn BlockDevice> {
        let number = next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let options = how(FileOptions {
            path: scratch.0.join(format!("{number}.img")),
            block_bytes: geometry.block_bytes,
            physical_block_bytes: geometry.physical_block_bytes,
            ..scratch.options(geometry.size_bytes())
        });
        *last.lock().unwrap() = Some(FileOptions { create_size_bytes: None, ..options.clone() });
        FileDevice::open(options).unwrap()
    };
    let reopen = |device: Arc<dyn BlockDevice>| -> Arc<dyn BlockDevice> {
        drop(device);
        FileDevice::open(last.lock().unwrap().clone().unwrap()).unwrap()
    };
    Contract::new(&make).reopening(&reopen).size_multiple_of(size_unit_bytes).run();
}

/// Goal: the contract holds through the page cache, with a thin file.
#[test]
fn contract_buffered() {
    keeps_the_contract(|options| options, 512);
}

/// Goal: the contract holds for a file in memory, where reads never block.
#[test]
fn contract_on_tmpfs() {
    let memory = std::path::Path::new("/dev/shm");
    if !memory.is_dir() {
        eprintln!("SKIPPED: contract_on_tmpfs: there is no {}", memory.display());
        return;
    }
    keeps_the_contract_in(&Scratch::in_directory(memory), |options| options, 512);
}

/// Goal: the contract holds through the page cache, with all room taken at once.
#[test]
fn contract_thick() {
    keeps_the_contract(|options| FileOptions { thin: false, ..options }, 512);
}

/// Goal: the contract holds with direct I/O.
#[test]
fn contract_direct() {
    keeps_the_contract(|options| FileOptions { direct: true, ..options }, 4096);
}

/// Goal: the contract holds if direct I/O goes in units larger than a block: neighbours in one unit
/// do not lose each other's writes.
#[test]
fn contract_direct_in_larger_units() {
    let scratch = Scratch::new();
    let next = std::sync::atomic::AtomicU32::new(0);
    let make = |geometry: Geometry| -> Arc<dyn BlockDevice> {
        let number = next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let options = FileOptions {
            path: scratch.0.join(format!("{number}.img")),
            block_bytes: geometry.block_bytes,
            physical_block_bytes: geometry.physical_block_bytes,
            direct: true,
            ..scratch.options(geometry.size_bytes())
        };
        let mut disk = open_disk(&options);
        let alignment = direct::DirectAlignment { memory_bytes: 4096, offset_bytes: 8192 };
        disk.direct = Some(alignment);
        FileDevice::with_sync(Arc::new(disk), || Ok(()))
    };
    Contract::new(&make).size_multiple_of(8192).run();
}

/// Goal: unmapping gives room back, zeroing takes or keeps it; a thick file always keeps its room,
/// and its map shows that.
#[test]
fn room() {
    use std::os::unix::fs::MetadataExt;
    let scratch = Scratch::new();
    let thick_path = scratch.0.join("thick.img");
    let thick = FileOptions { thin: false, path: thick_path.clone(), ..scratch.options(1 << 20) };
    let room = |path: &PathBuf| std::fs::metadata(path).unwrap().blocks() * 512;
    let all = BlockRange::new(0, 2048);
    let half = BlockRange::new(1024, 1024);
    let write = |device: &FileDevice| {
        block_on(device.write(all, Bytes::from(vec![7; 1 << 20]), true)).unwrap();
    };
    let path = scratch.options(1 << 20).path;
    let device = FileDevice::open(scratch.options(1 << 20)).unwrap();
    assert!(room(&path) < 64 << 10);
    write(&device);
    assert!(room(&path) >= 1 << 20);
    block_on(device.unmap(half, true)).unwrap();
    assert!((1 << 19..(1 << 19) + (64 << 10)).contains(&room(&path)), "{}", room(&path));
    let mapped = Extent { range: BlockRange::new(0, 1024), state: ExtentState::Mapped };
    let unmapped = Extent { range: half, state: ExtentState::Unmapped };
    assert_eq!(block_on(device.status(all, 9)).unwrap(), [mapped, unmapped]);
    block_on(device.write_zeroes(all, true, true)).unwrap();
    assert!(room(&path) < 64 << 10);

    let device = FileDevice::open(thick).unwrap();
    write(&device);
    block_on(device.unmap(half, true)).unwrap();
    assert!(room(&thick_path) >= 1 << 20);
    let mapped = Extent { range: all, state: ExtentState::Mapped };
    assert_eq!(block_on(device.status(all, 9)).unwrap(), [mapped]);
}

/// Goal: durable writes of many tasks share syncs. Method: the first sync takes until all tasks
/// wait; one more sync serves all that the first does not cover.
#[test]
fn syncs_are_shared() {
    use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
    let scratch = Scratch::new();
    let disk = Arc::new(open_disk(&scratch.options(1 << 20)));
    let syncs = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&syncs);
    let (go, may_go) = std::sync::mpsc::channel();
    let may_go = std::sync::Mutex::new(may_go);
    let device =
        FileDevice::with_sync(Arc::clone(&disk), move || match count.fetch_add(1, SeqCst) {
            0 => may_go.lock().unwrap().recv_timeout(2 * MINUTE).map_err(io::Error::other),
            _ => Ok(()),
        });
    let write = |lba| device.write(BlockRange::new(lba, 1), Bytes::from(vec![1; 512]), true);
    let all_wait =
        || device.sync_counts().unwrap().requests + device.commit.waiting() as u64 == 500;
    let results = std::thread::scope(|scope| {
        let writes = scope.spawn(|| block_on(futures_util::future::join_all((0..500).map(write))));
        let begun = Instant::now();
        while !all_wait() {
            assert!(begun.elapsed() < MINUTE, "not all wait for a sync");
            std::thread::sleep(Duration::from_millis(1));
        }
        go.send(()).unwrap();
        writes.join().unwrap()
    });
    assert!(results.iter().all(Result::is_ok));
    let syncs = syncs.load(SeqCst);
    assert!((1..=2).contains(&syncs), "{syncs} syncs for 500 writes");
}

/// Goal: after a failed sync, the requests of that sync fail with `Medium` and all later changes
/// with `Poisoned`. Reads continue, and no request that waited for that sync succeeds.
#[test]
fn poisoned() {
    let scratch = Scratch::new();
    let disk = Arc::new(open_disk(&scratch.options(1 << 20)));
    let device = FileDevice::with_sync(disk, || Err(io::Error::from_raw_os_error(5)));
    let one = BlockRange::new(0, 1);
    let write = |durable| device.write(one, Bytes::from(vec![1; 512]), durable);
    let both = async { futures_util::future::join(write(true), write(true)).await };
    let (first, second) = block_on(both);
    assert_eq!(first.unwrap_err().kind, ErrorKind::Medium);
    let second = second.unwrap_err().kind;
    assert!(matches!(second, ErrorKind::Medium | ErrorKind::Poisoned));
    for durable in [false, true] {
        assert_eq!(block_on(write(durable)).unwrap_err().kind, ErrorKind::Poisoned);
        let zeroed = block_on(device.write_zeroes(one, true, durable));
        assert_eq!(zeroed.unwrap_err().kind, ErrorKind::Poisoned);
    }
    assert_eq!(block_on(device.flush()).unwrap_err().kind, ErrorKind::Poisoned);
    let pool = crate::BufferPool::default();
    block_on(device.read(one, pool.take(512))).unwrap();
}

/// Goal: a poisoned disk takes writes again after a recovery, and only if its sync succeeds.
#[test]
fn recovered() {
    use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
    let scratch = Scratch::new();
    let disk = Arc::new(open_disk(&scratch.options(1 << 20)));
    let broken = Arc::new(AtomicBool::new(true));
    let fails = Arc::clone(&broken);
    let device = FileDevice::with_sync(disk, move || match fails.load(SeqCst) {
        true => Err(io::Error::from_raw_os_error(5)),
        false => Ok(()),
    });
    let write = || block_on(device.write(BlockRange::new(0, 1), Bytes::from(vec![1; 512]), true));
    let poisoned = || device.sync_counts().unwrap().poisoned;
    assert_eq!(write().unwrap_err().kind, ErrorKind::Medium);
    assert_eq!(block_on(device.recover()).unwrap_err().kind, ErrorKind::Medium);
    assert!(poisoned());
    broken.store(false, SeqCst);
    assert_eq!(write().unwrap_err().kind, ErrorKind::Poisoned, "never by itself");
    block_on(device.recover()).unwrap();
    assert!(!poisoned());
    write().unwrap();
    block_on(device.flush()).unwrap();
}

/// Goal: a recovery hides no failure from the requests concerned, neither a needless recovery nor a
/// second one beside the first. Method: the sync of a needless recovery fails; then, of two
/// recoveries at once, that of the first succeeds and that of the second fails.
#[test]
fn a_recovery_does_not_hide_failures() {
    use std::sync::Mutex;
    let scratch = Scratch::new();
    let disk = Arc::new(open_disk(&scratch.options(1 << 20)));
    let (begun, syncs) = std::sync::mpsc::channel();
    let (send_result, results) = std::sync::mpsc::channel();
    let results = Mutex::new(results);
    let device = FileDevice::with_sync(disk, move || {
        begun.send(()).map_err(io::Error::other)?;
        match results.lock().unwrap().recv() {
            Ok(true) => Ok(()),
            _ => Err(io::Error::from_raw_os_error(5)),
        }
    });
    let poisoned = || device.sync_counts().unwrap().poisoned;
    send_result.send(false).unwrap();
    assert_eq!(block_on(device.recover()).unwrap_err().kind, ErrorKind::Medium);
    assert!(poisoned(), "an unneeded recovery detects the failure");
    assert_eq!(block_on(device.flush()).unwrap_err().kind, ErrorKind::Poisoned);
    assert_eq!(device.sync_counts().unwrap().failures, 1);
    syncs.recv().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| block_on(device.recover()));
        syncs.recv().unwrap();
        scope.spawn(|| block_on(device.recover()));
        send_result.send(true).unwrap();
        send_result.send(false).unwrap();
    });
    assert!(poisoned(), "the second has seen it fail");
    assert_eq!(block_on(device.flush()).unwrap_err().kind, ErrorKind::Poisoned);
    assert_eq!(device.sync_counts().unwrap().failures, 2);
}

/// Goal: reads of a file that was truncated under the device fail with `Medium` and the blocks, and
/// return no zeroes.
#[test]
fn shrunk() {
    let scratch = Scratch::new();
    let pool = crate::BufferPool::default();
    for direct in [false, true] {
        let options = FileOptions {
            direct,
            path: scratch.0.join(format!("{direct}.img")),
            ..scratch.options(1 << 20)
        };
        let device = FileDevice::open(options.clone()).unwrap();
        let other = std::fs::OpenOptions::new().write(true).open(&options.path).unwrap();
        other.set_len(1 << 19).unwrap();
        let range = BlockRange::new(1000, 1000);
        let error = block_on(device.read(range, pool.take(512_000))).unwrap_err();
        assert_eq!((error.kind, error.range), (ErrorKind::Medium, Some(range)));
    }
    assert_eq!(pool.in_use_bytes(), 0);
}

/// Goal: no runtime is needed, and a future that is dropped half-way returns its buffers.
#[test]
fn without_a_runtime() {
    struct Unpark(std::thread::Thread);
    impl std::task::Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let scratch = Scratch::new();
    let pool = crate::BufferPool::default();
    let device =
        FileDevice::open(FileOptions { direct: true, ..scratch.options(1 << 20) }).unwrap();
    let waker = Arc::new(Unpark(std::thread::current())).into();
    let mut context = std::task::Context::from_waker(&waker);
    for lba in 0..20 {
        let range = BlockRange::new(lba * 8, 8);
        let mut write = device.write(range, pool.take_zeroed(4096).freeze(), lba % 2 == 0);
        while write.as_mut().poll(&mut context).is_pending() {
            std::thread::park();
        }
        // A read is begun and abandoned.
        let mut read = device.read(range, pool.take(4096));
        let _ = read.as_mut().poll(&mut context);
    }
    closes(|| drop(device), || pool.in_use_bytes() == 0);
}

/// Fault: a missing device, given with a size, became a regular file in /dev.
#[test]
fn no_file_is_created_in_dev() {
    use std::path::Path;
    const BYTES: u64 = 1 << 20;
    let scratch = Scratch::new();
    let name = format!("lunar-test-{}", std::process::id());
    let made = Path::new("/dev").join(&name);
    std::os::unix::fs::symlink("/dev", scratch.0.join("link")).unwrap();
    let up = "../".repeat(std::env::current_dir().unwrap().components().count());
    let link = scratch.0.join("link");
    for folder in [Path::new("/dev"), Path::new("/dev/shm/.."), &link, Path::new(&(up + "dev"))] {
        let path = folder.join(&name);
        for create_size_bytes in [Some(BYTES), None] {
            let options = scratch.options(BYTES);
            let opened =
                FileDevice::open(FileOptions { path: path.clone(), create_size_bytes, ..options });
            let was_made = std::fs::remove_file(&made).is_ok();
            let error = opened.err().map(|error| error.to_string()).unwrap_or_default();
            assert!(error.contains("files are not created in /dev"), "{path:?}: {error}");
            assert!(!was_made, "{path:?} was made");
        }
    }
    let memory = Path::new("/dev/shm");
    if memory.is_dir() {
        let scratch = Scratch::in_directory(memory);
        drop(FileDevice::open(scratch.options(BYTES)).unwrap());
    }
}
