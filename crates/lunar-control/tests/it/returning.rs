//! Members of pools that were absent when the pool was opened.

use lunar_block::{BlockDevice, MemoryDevice};
use lunar_control::config::model::{PoolConfig, PoolMemberConfig};
use lunar_control::config::parse;
use lunar_control::daemon::{AwayStorage, ConfigOrigin, Daemon, OpenedConfig};
use lunar_control::device_url::{DeviceOptions, DeviceUrl, Opener};
use lunar_control::{AbsentDevice, Failure, OpenPool, PoolDevices};
use lunar_pool::{MemberState, OpenOptions, Pool, PoolSpec};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;

const TEXT: &str = "[listen]\nportals = [\"127.0.0.1:0\"]\n[[pool]]\nname = \"safe\"\n\
    members = [\"iscsi://192.0.2.1/iqn.2026-11.org.example:a/0\", \
    \"iscsi://192.0.2.1/iqn.2026-11.org.example:b/0\"]\ndegraded = true\n[[target]]\n\
    name = \"iqn.2026-11.org.example:front\"\n[[target.lun]]\nid = 0\ndevice = \"pool:safe\"\n";

/// Longer than the return should take, even on a busy machine.
const TEST_TIMEOUT: Duration = Duration::from_secs(60);

/// A mirror of two devices that is opened without the second one. The first attempt to open that
/// one panics.
#[derive(Debug)]
struct MirrorOpener {
    runtime: Runtime,
    devices: [Arc<dyn BlockDevice>; 2],
    attempts: AtomicU32,
}

impl MirrorOpener {
    fn new() -> Self {
        // The pauses between attempts are skipped.
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_time().start_paused(true).build().unwrap();
        let device = || Arc::new(MemoryDevice::new(8 << 20, 512, 4096).unwrap());
        let devices: [Arc<dyn BlockDevice>; 2] = [device(), device()];
        let spec = PoolSpec::Mirror { erase: true };
        runtime.block_on(Pool::create(spec, devices.to_vec())).unwrap();
        Self { runtime, devices, attempts: AtomicU32::new(0) }
    }
}

impl Opener for MirrorOpener {
    fn open(&self, url: &DeviceUrl, _: &DeviceOptions) -> Result<Arc<dyn BlockDevice>, Failure> {
        Err(Failure::new(format!("{url} is not served")))
    }

    fn open_pool(&self, config: &PoolConfig, _: Duration) -> Result<OpenPool, Failure> {
        let options = OpenOptions { is_degraded: true, ..OpenOptions::default() };
        let present = vec![Arc::clone(&self.devices[0])];
        let pool = self.runtime.block_on(Pool::open(&config.name, present, options));
        let pool = pool.map_err(|error| Failure::new(error.to_string()))?;
        let config = config.members[1].clone();
        let failure = Failure::new("it is away");
        let absent = vec![AbsentDevice { config, failure, lacks_label: false }];
        let devices = PoolDevices { absent, ..PoolDevices::default() };
        Ok(OpenPool::new(pool, self.runtime.handle().clone(), devices))
    }

    fn open_member(
        &self,
        _: &PoolMemberConfig,
        _: Duration,
    ) -> Result<Arc<dyn BlockDevice>, Failure> {
        assert_ne!(self.attempts.fetch_add(1, SeqCst), 0, "the first attempt fails this way");
        Ok(Arc::clone(&self.devices[1]))
    }
}

/// Fault: an attempt without a result, such as one whose thread did not start, was the last one.
///
/// Goal: the next attempt gives the device its place.
#[test]
fn an_attempt_without_a_result_is_repeated() {
    let opener = Arc::new(MirrorOpener::new());
    let path = "/lunar.toml";
    let read = parse(TEXT, path.as_ref()).unwrap();
    let origin = ConfigOrigin::File { path: path.into(), api: None };
    let served: Arc<dyn Opener> = Arc::<MirrorOpener>::clone(&opener);
    let opened = OpenedConfig::open(read, origin, served, AwayStorage::Waits).unwrap();
    let daemon = Arc::new(opened.serve().unwrap());
    let is_current = || {
        let pool = daemon.pools().all().remove(0);
        pool.pool().status().members.iter().all(|member| member.state == MemberState::Current)
    };
    assert!(!is_current());
    std::thread::scope(|scope| {
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let (opener, weak) = (Arc::clone(&opener), Arc::downgrade(&daemon));
        scope.spawn(move || {
            opener.runtime.spawn(Daemon::return_members(weak));
            opener.runtime.block_on(stopped)
        });
        let begun = Instant::now();
        while !is_current() {
            assert!(begun.elapsed() < TEST_TIMEOUT, "no further attempt");
            std::thread::sleep(Duration::from_millis(10));
        }
        daemon.shutdown(Duration::from_secs(1), &mut |_| {});
        drop(stop);
    });
    assert_eq!(opener.attempts.load(SeqCst), 2);
}
