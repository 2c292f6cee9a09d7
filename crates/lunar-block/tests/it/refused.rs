//! Files are read and written even if the system refuses io_uring, as containers do.

use crate::common::{Scratch, options};
use lunar_block::{BlockDevice, BlockRange, BufferPool, FileDevice, FileOptions, with_ring};
use std::collections::BTreeMap;

/// The number of the system call, the same on all processors.
const IO_URING_SETUP: i64 = 425;

/// Makes the system refuse io_uring to this thread with EPERM.
fn refuse_io_uring() {
    use seccompiler::{BpfProgram, SeccompAction, SeccompFilter};
    let filter = SeccompFilter::new(
        BTreeMap::from([(IO_URING_SETUP, Vec::new())]),
        SeccompAction::Allow,
        SeccompAction::Errno(1),
        std::env::consts::ARCH.try_into().unwrap(),
    );
    let program: BpfProgram = filter.unwrap().try_into().unwrap();
    seccompiler::apply_filter(&program).unwrap();
}

/// Goal: workers serve files that were opened for rings if there is no ring, either because the
/// system permits none at all, or because one thread does not get its own. Method: the test runs
/// alone in its process; a seccomp filter stands in for the container's.
#[test]
fn workers_serve_files_without_a_ring() {
    let scratch = Scratch::new();
    let pool = BufferPool::default();
    let open = |name: &str| {
        let path = scratch.0.join(name);
        let how = FileOptions { direct: true, io_uring: true, ..options(&path, Some(1 << 20)) };
        FileDevice::open(how).unwrap()
    };
    let use_it = |device: &FileDevice| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(with_ring(async {
            for lba in (0..2048).step_by(8) {
                let range = BlockRange::new(lba, 8);
                let mut data = pool.take(4096);
                data.fill(lba as u8 ^ 0x5a);
                let data = data.freeze();
                device.write(range, data.clone(), lba % 64 == 0).await.unwrap();
                let read = device.read(range, pool.take(4096)).await.unwrap();
                assert!(read[..] == data[..], "block {lba}");
            }
        }));
    };
    // In the opposite order the first result stays, because the system is asked once.
    if std::env::var_os("LUNAR_TEST_PERMITTED").is_some() {
        let permitted = open("permitted.img");
        std::thread::scope(|scope| {
            scope.spawn(|| {
                refuse_io_uring();
                use_it(&permitted);
            });
        });
        return;
    }
    std::thread::scope(|scope| {
        scope.spawn(|| {
            refuse_io_uring();
            let refused = open("refused.img");
            assert_eq!(refused.io_tier(), "direct, pool");
            use_it(&refused);
        });
    });
    // Only one thread gets no ring: this needs a process that has not asked the system yet.
    let mut again = std::process::Command::new(std::env::current_exe().unwrap());
    again.env("LUNAR_TEST_PERMITTED", "1");
    again.args(["--exact", "refused::workers_serve_files_without_a_ring"]);
    let output = again.output().unwrap();
    let printed = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && printed.contains("1 passed"), "{printed}");
}
