//! Members of pools that were absent when the pool was opened.

use lunar_block::{BlockDevice, BlockRange, MemoryDevice};
use lunar_control::config::model::{PoolConfig, PoolMemberConfig};
use lunar_control::config::parse;
use lunar_control::daemon::{ConfigOrigin, Daemon, OpenedConfig, StartOptions, UnavailableStorage};
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
        let failure = Failure::new("it is unreachable");
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

const NESTED: &str = "[listen]\nportals = [\"127.0.0.1:0\"]\n[[pool]]\nname = \"inner\"\n\
    members = [\"iscsi://192.0.2.1/iqn.2026-11.org.example:c/0\", \
    \"iscsi://192.0.2.1/iqn.2026-11.org.example:d/0\"]\n[[pool]]\nname = \"safe\"\n\
    members = [\"iscsi://192.0.2.1/iqn.2026-11.org.example:a/0\", \"pool:inner\"]\n\
    degraded = true\n[[target]]\nname = \"iqn.2026-11.org.example:front\"\n[[target.lun]]\n\
    id = 0\ndevice = \"pool:safe\"\n";

/// A mirror of a device and of another mirror, which is absent at the opening.
#[derive(Debug)]
struct NestedOpener {
    mirror: MirrorOpener,
    parts: Vec<Arc<dyn BlockDevice>>,
    is_inner_open: Arc<AtomicU32>,
}

impl NestedOpener {
    fn new() -> Self {
        let mut mirror = MirrorOpener::new();
        let device = || Arc::new(MemoryDevice::new(8 << 20, 512, 4096).unwrap()) as _;
        let parts: Vec<Arc<dyn BlockDevice>> = vec![device(), device()];
        mirror.runtime.block_on(async {
            Pool::create(PoolSpec::Mirror { erase: true }, parts.clone()).await.unwrap();
            let inner = Pool::open("inner", parts.clone(), OpenOptions::default()).await.unwrap();
            mirror.devices[0] = device();
            let members: Vec<Arc<dyn BlockDevice>> =
                vec![Arc::clone(&mirror.devices[0]), Arc::<Pool>::clone(&inner)];
            Pool::create(PoolSpec::Mirror { erase: true }, members).await.unwrap();
            inner.close().await.unwrap();
        });
        Self { mirror, parts, is_inner_open: Arc::default() }
    }
}

impl Opener for NestedOpener {
    fn open(
        &self,
        url: &DeviceUrl,
        options: &DeviceOptions,
    ) -> Result<Arc<dyn BlockDevice>, Failure> {
        self.mirror.open(url, options)
    }

    fn open_pool(&self, config: &PoolConfig, time_max: Duration) -> Result<OpenPool, Failure> {
        if config.name != "inner" {
            return self.mirror.open_pool(config, time_max);
        }
        self.is_inner_open.fetch_add(1, SeqCst);
        let runtime = &self.mirror.runtime;
        let pool = Pool::open("inner", self.parts.clone(), OpenOptions::default());
        let pool = runtime.block_on(pool).map_err(|error| Failure::new(error.to_string()))?;
        Ok(OpenPool::new(pool, runtime.handle().clone(), PoolDevices::default()))
    }
}

/// Goal: a member that is a pool returns as any other does; it is served with the pool around it,
/// and closed after it.
#[test]
fn a_pool_inside_another_one_returns() {
    let opener = Arc::new(NestedOpener::new());
    let served: Arc<dyn Opener> = Arc::<NestedOpener>::clone(&opener);
    let daemon = Arc::new(open(NESTED, served).serve().unwrap());
    assert_eq!(daemon.pools().all().len(), 1);
    return_members(&daemon, &opener.mirror.runtime);
    let names: Vec<_> = daemon.pools().all().iter().map(|pool| pool.name().to_owned()).collect();
    assert_eq!(names, ["inner", "safe"]);
    assert_eq!(opener.is_inner_open.load(SeqCst), 1);
    let inner = Arc::clone(daemon.pools().all()[0].pool());
    let write = || {
        let data = vec![0; 512].into();
        opener.mirror.runtime.block_on(inner.write(BlockRange::new(0, 1), data, false))
    };
    write().unwrap();
    daemon.shutdown(Duration::from_secs(1), &mut |_| {});
    write().expect_err("it is closed");
}

/// Fault: an attempt without a result, such as one whose thread did not start, was the last one.
///
/// Goal: the next attempt gives the device its slot.
#[test]
fn an_attempt_without_a_result_is_repeated() {
    let opener = Arc::new(MirrorOpener::new());
    let served: Arc<dyn Opener> = Arc::<MirrorOpener>::clone(&opener);
    let daemon = Arc::new(open(TEXT, served).serve().unwrap());
    return_members(&daemon, &opener.runtime);
    daemon.shutdown(Duration::from_secs(1), &mut |_| {});
    assert_eq!(opener.attempts.load(SeqCst), 2);
}

fn open(text: &str, opener: Arc<dyn Opener>) -> OpenedConfig {
    let path = "/lunar.toml";
    let read = parse(text, path.as_ref()).unwrap();
    let origin = ConfigOrigin::File { path: path.into(), api: None };
    OpenedConfig::open(
        read,
        origin,
        opener,
        StartOptions { storage: UnavailableStorage::Waits, ..Default::default() },
    )
    .unwrap()
}

/// Lets absent members return, until the last pool has all.
fn return_members(daemon: &Arc<Daemon>, runtime: &Runtime) {
    let is_current = || {
        let pool = daemon.pools().all().pop().unwrap();
        pool.pool().status().members.iter().all(|member| member.state == MemberState::Current)
    };
    assert!(!is_current());
    std::thread::scope(|scope| {
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let weak = Arc::downgrade(daemon);
        scope.spawn(move || {
            let returning = runtime.spawn(Daemon::return_members(weak));
            let _ = runtime.block_on(stopped);
            returning.abort();
        });
        let begun = Instant::now();
        while !is_current() {
            assert!(begun.elapsed() < TEST_TIMEOUT, "no further attempt");
            std::thread::sleep(Duration::from_millis(10));
        }
        drop(stop);
    });
}
