//! A server in the test process, and a runtime to use it from.
#![allow(dead_code)] // every test file uses its own part
#![allow(clippy::unwrap_used, clippy::expect_used)] // a test may unwrap

use lunar_block::{FaultDevice, MemoryDevice};
use lunar_iscsi::text::Offer;
use lunar_target::{
    Access, CacheMode, DiskUnit, DiskUnitOptions, Limits, LunOptions, Portal, Server,
    ServerOptions, TargetOptions,
};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

pub const NAME: &str = "iqn.2026-11.org.lunarsan.test:nexus";
/// Timeout for everything in these tests, even on a busy machine.
pub const TEST_TIMEOUT: Duration = Duration::from_secs(60);

/// A server of one LUN, with a portal in group 1 and one in group 300.
pub struct InProcessServer {
    server: Server,
    pub unit: Arc<DiskUnit>,
    pub device: Arc<FaultDevice>,
}

impl InProcessServer {
    /// Starts in write-back mode.
    pub fn new() -> Self {
        Self::with(CacheMode::WriteBack, Offer::default())
    }

    /// Starts with this cache mode and this offer for logins.
    pub fn with(cache: CacheMode, offer: Offer) -> Self {
        let memory = MemoryDevice::new(8 << 20, 512, 4096).unwrap();
        let device = FaultDevice::new(Arc::new(memory), 1);
        let under = Arc::<FaultDevice>::clone(&device);
        let unit = DiskUnitOptions::new(uuid::Uuid::from_u128(1), under);
        let unit = DiskUnitOptions { cache, ..unit };
        let unit = DiskUnit::open(unit).unwrap();
        let portal = Portal::new("127.0.0.1:0".parse().unwrap());
        let other = Portal { portal_group: Some(300), ..portal.clone() };
        let target = TargetOptions {
            name: NAME.to_owned(),
            alias: None,
            portal_group: 1,
            access: Access::default(),
            administer: None,
            chap: Vec::new(),
            offer,
            redirect: None,
            initiator_limits: Vec::new(),
            luns: vec![LunOptions::new(0, Arc::<DiskUnit>::clone(&unit))],
        };
        let server = Server::start(ServerOptions {
            portals: vec![portal, other],
            targets: vec![target],
            discovery_chap: None,
            cores: 2,
            latency_mode: false,
            limits: Limits::default(),
            buffers: lunar_block::BufferPool::default(),
            relays: None,
        });
        Self { server: server.unwrap(), unit, device }
    }

    pub fn portal(&self, at: usize) -> SocketAddr {
        self.server.addresses()[at]
    }

    /// Number of sessions.
    pub fn sessions(&self) -> u64 {
        let statistics = self.server.observer().statistics().unwrap();
        statistics.targets.iter().map(|target| target.sessions).sum()
    }

    pub fn end(self) {
        self.device.heal();
        let report = self.server.shutdown(Duration::from_secs(3), &mut |_| {});
        assert!(report.failed_syncs.is_empty(), "{report:?}");
    }
}

/// Runs a future on this thread, with a timeout for tens of thousands of commands.
pub fn block_on<T>(future: impl Future<Output = T>) -> T {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    runtime.enable_all().build().unwrap().block_on(async {
        tokio::time::timeout(4 * TEST_TIMEOUT, future).await.expect("nothing hangs")
    })
}
