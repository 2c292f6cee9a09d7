//! Faults derived from checks, and checks that hang.

use super::*;
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};

const TEST_TIMEOUT: Duration = Duration::from_secs(60);
const AS_OPENED: BackingState =
    BackingState { is_deleted: false, path: BackingPath::Same, file_bytes: 8192, disk_bytes: 8192 };

/// A backing file in a state that the test sets. A check reports that it has begun, and waits for
/// permission.
#[derive(Debug)]
struct TestBacking {
    found: Mutex<BackingState>,
    begun: Mutex<Sender<()>>,
    leave: Mutex<Receiver<()>>,
}

impl BackingProbe for TestBacking {
    fn read_state(&self) -> io::Result<BackingState> {
        let _ = lock(&self.begun).send(());
        let _ = lock(&self.leave).recv();
        Ok(lock(&self.found).clone())
    }

    fn open_path(&self) -> PathBuf {
        "/proc/1/fd/2".into()
    }

    fn path(&self) -> PathBuf {
        "/disk.img".into()
    }

    fn new_path(&self) -> Option<PathBuf> {
        None
    }
}

struct File {
    backing: Arc<BackingHealth>,
    test_backing: Arc<TestBacking>,
    begun: Receiver<()>,
    /// Gives permission for ever when dropped.
    leave: Sender<()>,
}

impl File {
    fn new() -> Self {
        let ((begins, begun), (leave, leaves)) = (channel(), channel());
        let test_backing = Arc::new(TestBacking {
            found: Mutex::new(AS_OPENED),
            begun: Mutex::new(begins),
            leave: Mutex::new(leaves),
        });
        let probe = Some(Arc::clone(&test_backing) as Arc<dyn BackingProbe>);
        let backing =
            BackingHealth { device: "disk.img".to_owned(), probe, state: Mutex::default() };
        Self { backing: Arc::new(backing), test_backing, begun, leave }
    }

    fn becomes(&self, found: BackingState) -> Vec<BackingFault> {
        *lock(&self.test_backing.found) = found;
        self.leave.send(()).unwrap();
        assert!(self.backing.claim_check());
        self.backing.check();
        self.backing.faults()
    }
}

/// Goal: each state has its fault, a repaired file has none, and a longer file is no fault.
#[test]
fn states_become_faults() {
    let file = File::new();
    let path = || Path::new("/disk.img").to_owned();
    let renamed = |is_replaced| BackingFault::Renamed { path: path(), new_path: None, is_replaced };
    let deleted = BackingFault::Deleted { open_path: "/proc/1/fd/2".into(), path: path() };
    for (found, faults) in [
        (AS_OPENED, vec![]),
        (BackingState { path: BackingPath::Missing, ..AS_OPENED }, vec![renamed(false)]),
        (BackingState { path: BackingPath::Other, ..AS_OPENED }, vec![renamed(true)]),
        (BackingState { file_bytes: 9000, ..AS_OPENED }, vec![]),
        (BackingState { is_deleted: true, path: BackingPath::Missing, ..AS_OPENED }, vec![deleted]),
        (AS_OPENED, vec![]),
    ] {
        assert_eq!(file.becomes(found.clone()), faults, "{found:?}");
    }
}

/// Goal: the fault of a truncated file stays when a write makes the file as long as before, until
/// an operator accepts the loss.
#[test]
fn a_truncation_is_not_forgotten() {
    let file = File::new();
    let truncated = |file_bytes| vec![BackingFault::Truncated { file_bytes, disk_bytes: 8192 }];
    for (file_bytes, smallest) in [(4096, 4096), (0, 0), (4096, 0), (8192, 0)] {
        let faults = file.becomes(BackingState { file_bytes, ..AS_OPENED });
        assert_eq!(faults, truncated(smallest));
    }
    assert!(file.backing.was_truncated());
    file.backing.recovered();
    assert!(file.backing.faults().is_empty() && !file.backing.was_truncated());
    assert!(file.becomes(AS_OPENED).is_empty());
}

/// Goal: the result of a check that began before a recovery does not count after it.
#[test]
fn a_check_begun_before_a_recovery_does_not_count() {
    let file = File::new();
    *lock(&file.test_backing.found) = BackingState { file_bytes: 0, ..AS_OPENED };
    assert!(file.backing.claim_check() && !file.backing.claim_check(), "one at a time");
    std::thread::scope(|scope| {
        let check = scope.spawn(|| file.backing.check());
        file.begun.recv_timeout(TEST_TIMEOUT).unwrap();
        file.backing.recovered();
        file.leave.send(()).unwrap();
        check.join().unwrap();
    });
    assert!(!file.backing.was_truncated() && file.backing.claim_check());
}

/// Goal: a check that hangs blocks no check of another file, and takes one thread however many
/// rounds there are; files whose checks hang take [`CHECK_THREADS_MAX`] threads together, and all
/// of them are checked again when their file systems respond.
#[test]
fn a_check_that_hangs_blocks_no_other_check() {
    let checks = Arc::new(CheckQueue::default());
    let (hanging, good) = (File::new(), File::new());
    let files = [Arc::clone(&hanging.backing), Arc::clone(&good.backing)];
    checks.begin_round(&files);
    hanging.begun.recv_timeout(TEST_TIMEOUT).unwrap();
    for _ in 0..3 {
        good.leave.send(()).unwrap();
        checks.begin_round(&files);
        good.begun.recv_timeout(TEST_TIMEOUT).unwrap();
        until(|| {
            lock(&good.backing.state).check_began.is_none()
                && lock(&checks.queue).running_threads == 1
        });
    }
    let more: Vec<_> = (0..2 * CHECK_THREADS_MAX).map(|_| File::new()).collect();
    let backings: Vec<_> = more.iter().map(|file| Arc::clone(&file.backing)).collect();
    for _ in 0..2 * CHECK_THREADS_MAX {
        checks.begin_round(&backings);
    }
    assert_eq!(lock(&checks.queue).running_threads, CHECK_THREADS_MAX);
    assert!(lock(&checks.queue).is_stuck);
    let begun: Vec<_> = more.into_iter().map(|file| (file.begun, drop(file.leave)).0).collect();
    begun.iter().for_each(|begun| begun.recv_timeout(TEST_TIMEOUT).unwrap());
    drop(hanging.leave);
    until(|| lock(&checks.queue).running_threads == 0);
}

fn until(done: impl Fn() -> bool) {
    let begun = Instant::now();
    while !done() {
        assert!(begun.elapsed() < TEST_TIMEOUT);
        std::thread::yield_now();
    }
}
