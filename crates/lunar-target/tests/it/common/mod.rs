//! A server over a disk with injectable faults, and raw access to its sockets.
#![allow(dead_code)] // every test file uses only a part
#![allow(clippy::unwrap_used)] // a test may unwrap

pub mod chap;
pub mod copy;

use lunar_block::{BlockDevice, FaultDevice, MemoryDevice};
use lunar_target::{
    Access, DiskUnit, DiskUnitOptions, Limits, LunOptions, Portal, Server, ServerOptions,
    TargetOptions, Unit,
};
use lunar_testkit::raw::{RawAnswer, RawClient, RawPdu, opcode};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::{Duration, Instant};

pub const TARGET: &str = "iqn.2026-11.org.lunarsan.test:life";
/// Time limit that nothing here should reach, even on a busy machine.
pub const TEST_TIMEOUT: Duration = Duration::from_secs(8);
/// Time limit for events that must happen eventually and are polled until then.
pub const MINUTE: Duration = Duration::from_secs(60);

pub const ABORT_TASK: u8 = 1;
pub const ABORT_TASK_SET: u8 = 2;
pub const CLEAR_TASK_SET: u8 = 4;
pub const LOGICAL_UNIT_RESET: u8 = 5;
pub const TARGET_WARM_RESET: u8 = 6;
pub const TARGET_COLD_RESET: u8 = 7;

/// A server of one target with one LUN of 64 MiB.
pub struct Rig {
    server: Option<Server>,
    pub address: String,
    /// Addresses of all portals; the first one is `address`.
    pub addresses: Vec<String>,
    pub device: Arc<FaultDevice>,
    _use: ProcessUse,
}

/// Lock on the resources of the test process: shared by most tests, held alone by those that
/// measure the process as a whole.
static PROCESS: RwLock<()> = RwLock::new(());

/// Part of [`PROCESS`] that a test holds.
pub enum ProcessUse {
    Shared(RwLockReadGuard<'static, ()>),
    Alone(RwLockWriteGuard<'static, ()>),
}

impl ProcessUse {
    /// Waits until no test measures the process.
    pub fn shared() -> Self {
        Self::Shared(PROCESS.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Waits until no other test uses the process.
    fn alone() -> Self {
        Self::Alone(PROCESS.write().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Rig {
    pub fn new() -> Self {
        Self::with(|_| {})
    }

    /// Starts a server with changed options.
    pub fn with(change: impl FnOnce(&mut ServerOptions)) -> Self {
        Self::start(ProcessUse::shared(), change)
    }

    /// Starts a server like [`with`](Self::with) while no other server of the tests runs: for
    /// tests that measure memory or CPU time of the process.
    pub fn alone_with(change: impl FnOnce(&mut ServerOptions)) -> Self {
        Self::start(ProcessUse::alone(), change)
    }

    fn start(process: ProcessUse, change: impl FnOnce(&mut ServerOptions)) -> Self {
        let memory = MemoryDevice::new(64 << 20, 512, 4096).unwrap();
        let device = FaultDevice::new(Arc::new(memory), 1);
        let mut options = options_of(unit(Arc::<FaultDevice>::clone(&device)));
        change(&mut options);
        let server = Server::start(options).unwrap();
        let addresses: Vec<_> = server.addresses().iter().map(ToString::to_string).collect();
        let address = addresses[0].clone();
        Self { server: Some(server), address, addresses, device, _use: process }
    }

    /// Returns the server, while it runs.
    pub fn server(&self) -> &Server {
        self.server.as_ref().unwrap()
    }

    /// Replaces the targets of the server.
    pub fn replace(&self, change: impl FnOnce(&mut Vec<TargetOptions>)) -> lunar_target::Replaced {
        let mut catalogue = self.server().catalogue();
        let mut targets = catalogue.targets.iter().map(|t| (**t).clone()).collect();
        change(&mut targets);
        catalogue.targets = targets.into_iter().map(Arc::new).collect();
        block_on(self.server().replace(catalogue)).unwrap()
    }

    /// Returns the addresses on which the server listens, portal by portal.
    pub fn addresses(&self) -> Vec<String> {
        let server = self.server.as_ref().unwrap();
        server.addresses().iter().map(ToString::to_string).collect()
    }

    /// Logs in under the initiator name of this number and takes the first unit attention.
    pub fn log_in(&self, number: u32) -> RawClient {
        let mut raw = RawClient::log_in_as(&self.address, TARGET, number).unwrap();
        assert_eq!(raw.execute(&[0; 6], 0).unwrap().0, 0, "TEST UNIT READY");
        raw
    }

    /// Waits until `is` holds.
    #[track_caller]
    pub fn wait_for(&self, what: &str, is: impl Fn(&Self) -> bool) {
        let until = Instant::now() + TEST_TIMEOUT;
        while !is(self) {
            assert!(Instant::now() < until, "timed out waiting until {what}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Returns the number of sessions.
    pub fn sessions(&self) -> usize {
        self.server.as_ref().unwrap().sessions().len()
    }

    /// Waits until no session and no connection is left.
    #[track_caller]
    pub fn wait_until_alone(&self) {
        self.wait_for("no session exists", |rig| {
            let server = rig.server.as_ref().unwrap();
            server.sessions().is_empty() && server.connections() == 0
        });
    }

    /// Returns the unit that the server shows as LUN 0.
    pub fn unit(&self) -> Arc<DiskUnit> {
        DiskUnit::of(&self.server.as_ref().unwrap().unit(TARGET, 0).unwrap()).unwrap()
    }

    /// Stops the server; returns the number of disks whose last sync failed.
    pub fn failed_syncs(mut self) -> usize {
        let grace = Duration::from_secs(3);
        self.server.take().unwrap().shutdown(grace, &mut |_| {}).failed_syncs.len()
    }

    /// Stops the server as it is; returns the number of connections that had to be cut.
    pub fn stop(mut self, grace: Duration) -> usize {
        let report = self.server.take().unwrap().shutdown(grace, &mut |_| {});
        assert!(report.failed_syncs.is_empty(), "{report:?}");
        report.connections_cut
    }

    /// Stops the server and asserts that nothing is left.
    #[track_caller]
    pub fn stop_cleanly(mut self) {
        if std::thread::panicking() {
            return;
        }
        self.device.heal();
        self.device.release();
        let began = IdleTimeClock::now();
        let buffers = self.server().buffers().clone();
        let report = self.server.take().unwrap().shutdown(Duration::from_secs(3), &mut |_| {});
        assert!(report.failed_syncs.is_empty(), "{report:?}");
        assert!(began.elapsed() < Duration::from_secs(6), "took {:?}", began.elapsed());
        self.wait_for("every buffer is back", |_| buffers.in_use_bytes() == 0);
    }
}

/// A clock that stands still while the machine is busy: it counts one thread's short sleeps.
pub struct IdleTimeClock(Arc<AtomicU32>);

impl IdleTimeClock {
    const STEP: Duration = Duration::from_millis(10);

    pub fn now() -> Self {
        let steps = Arc::new(AtomicU32::new(0));
        let counted = Arc::downgrade(&steps);
        std::thread::spawn(move || {
            while let Some(steps) = counted.upgrade() {
                steps.fetch_add(1, Relaxed);
                drop(steps);
                std::thread::sleep(Self::STEP);
            }
        });
        Self(steps)
    }

    pub fn elapsed(&self) -> Duration {
        Self::STEP * self.0.load(Relaxed)
    }
}

/// Runs a future like the control plane: on a runtime that does not belong to the server.
pub fn block_on<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.unwrap().block_on(future)
}

/// Runs a future like [`block_on`], but with a clock that advances when all tasks are idle.
pub fn block_on_without_waiting<T>(future: impl Future<Output = T>) -> T {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    runtime.enable_all().start_paused(true).build().unwrap().block_on(future)
}

/// Opens a unit on `device`.
pub fn unit(device: Arc<dyn BlockDevice>) -> Arc<DiskUnit> {
    DiskUnit::open(DiskUnitOptions::new(uuid::Uuid::from_u128(1), device)).unwrap()
}

/// Returns options of a server with one target that shows `unit` as LUN 0, on a free port.
pub fn options_of(unit: Arc<DiskUnit>) -> ServerOptions {
    ServerOptions {
        relays: None,
        portals: vec![Portal::new("127.0.0.1:0".parse().unwrap())],
        targets: vec![target(TARGET, unit)],
        discovery_chap: None,
        cores: 2,
        latency_mode: false,
        limits: Limits::default(),
        buffers: lunar_block::BufferPool::default(),
    }
}

/// Returns a target open to all that shows `unit` as LUN 0.
pub fn target(name: &str, unit: Arc<dyn Unit>) -> TargetOptions {
    TargetOptions {
        name: name.to_owned(),
        alias: None,
        portal_group: 1,
        access: Access::default(),
        administer: None,
        chap: Vec::new(),
        offer: lunar_iscsi::text::Offer {
            max_connections: 4,
            ..lunar_iscsi::text::Offer::default()
        },
        redirect: None,
        initiator_limits: Vec::new(),
        luns: vec![LunOptions::new(0, unit)],
    }
}

/// Returns a CDB of ten bytes with an LBA and a number of blocks.
pub fn ten(operation: u8, lba: u32, blocks: u16) -> [u8; 10] {
    let mut cdb = [operation, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    cdb[2..6].copy_from_slice(&lba.to_be_bytes());
    cdb[7..9].copy_from_slice(&blocks.to_be_bytes());
    cdb
}

/// Sends READ (10) without waiting; returns its tag.
pub fn send_read(raw: &mut RawClient, lba: u32, blocks: u16) -> u32 {
    let pdu = raw.command(0xc1, &ten(0x28, lba, blocks), u32::from(blocks) * 512);
    raw.send(&pdu).unwrap();
    pdu.u32_at(16)
}

/// Sends WRITE (10) of blocks full of `byte`, all immediate, without waiting; returns its tag.
pub fn send_write(raw: &mut RawClient, lba: u32, blocks: u16, byte: u8) -> u32 {
    let bytes = usize::from(blocks) * 512;
    let pdu = raw.command(0xa1, &ten(0x2a, lba, blocks), bytes as u32);
    raw.send(&pdu.clone().with_data(vec![byte; bytes])).unwrap();
    pdu.u32_at(16)
}

/// Sends an immediate task management function; returns its tag.
pub fn send_function(raw: &mut RawClient, function: u8, referenced: u32) -> u32 {
    let tag = raw.new_tag();
    let pdu = RawPdu::new(0x40 | opcode::TASK_MANAGEMENT, 0x80 | function)
        .put_u32(16, tag)
        .put_u32(20, referenced)
        .put_u32(24, raw.cmd_sn)
        .put_u32(28, raw.exp_stat_sn);
    raw.send(&pdu).unwrap();
    tag
}

/// Returns the next PDU with this tag; skips NOP-Ins and Asynchronous Messages.
#[track_caller]
pub fn answer_to(raw: &mut RawClient, tag: u32) -> RawPdu {
    let until = Instant::now() + TEST_TIMEOUT;
    loop {
        let left = until.saturating_duration_since(Instant::now());
        match raw.answer(left).unwrap() {
            RawAnswer::Pdu(pdu) if pdu.u32_at(16) == tag => {
                if pdu.u32_at(24) != u32::MAX {
                    raw.exp_stat_sn = pdu.u32_at(24).wrapping_add(1);
                }
                return pdu;
            }
            RawAnswer::Pdu(_) => {}
            other => panic!("{other:?} instead of an answer to {tag}"),
        }
    }
}

/// Logs out; waits for the reply and the end of the connection.
#[track_caller]
pub fn log_out(mut raw: RawClient) {
    let tag = raw.new_tag();
    let logout = RawPdu::new(0x40 | opcode::LOGOUT, 0x80)
        .put_u32(16, tag)
        .put_u32(24, raw.cmd_sn)
        .put_u32(28, raw.exp_stat_sn);
    raw.send(&logout).unwrap();
    assert_eq!(answer_to(&mut raw, tag).opcode(), 0x26, "a Logout Response");
    raw.wait_until_closed(TEST_TIMEOUT).unwrap();
}

/// Logs in to the target under the initiator name of this number, with this TSIH and CID; returns
/// the status and the TSIH.
pub fn join(raw: &mut RawClient, number: u32, tsih: u16, cid: u16) -> (u16, u16) {
    let text = format!(
        "InitiatorName=iqn.2026-11.org.lunarsan.test:raw-{number}\0TargetName={TARGET}\0\
         MaxConnections=4\0"
    );
    let login = raw.login(text.as_bytes()).put(14, &tsih.to_be_bytes()).put(20, &cid.to_be_bytes());
    raw.send(&login).unwrap();
    let RawAnswer::Pdu(answer) = raw.answer(TEST_TIMEOUT).unwrap() else {
        panic!("no Login Response")
    };
    raw.exp_stat_sn = answer.u32_at(24).wrapping_add(1);
    let number = |at: usize| u16::from_be_bytes([answer.header[at], answer.header[at + 1]]);
    (number(36), number(14))
}

/// Returns the result of SendTargets=All for the initiator of this number, in a discovery session,
/// or in a normal session with `target`.
pub fn send_targets(address: &str, number: u32, target: Option<&str>) -> String {
    send_targets_over(RawClient::connect(address).unwrap(), number, target)
}

/// Calls SendTargets as [`send_targets`] does, over this connection.
pub fn send_targets_over(mut raw: RawClient, number: u32, target: Option<&str>) -> String {
    let mut text = format!("InitiatorName=iqn.2026-11.org.lunarsan.test:raw-{number}\0");
    match target {
        Some(name) => text += &format!("SessionType=Normal\0TargetName={name}\0"),
        None => text += "SessionType=Discovery\0",
    }
    raw.send(&raw.login(text.as_bytes())).unwrap();
    let answer = raw.expect(opcode::LOGIN_RESPONSE).unwrap();
    assert_eq!(answer.header[36..38], [0, 0]);
    raw.exp_stat_sn = answer.u32_at(24).wrapping_add(1);
    let ask = RawPdu::new(opcode::TEXT, 0x80)
        .put_u32(16, raw.new_tag())
        .put_u32(20, u32::MAX)
        .put_u32(24, raw.cmd_sn)
        .put_u32(28, raw.exp_stat_sn)
        .with_data(b"SendTargets=All\0");
    raw.send(&ask).unwrap();
    String::from_utf8(raw.expect(opcode::TEXT_RESPONSE).unwrap().data).unwrap()
}

/// Connects from this local address.
pub fn connect_from(source: &str, address: &str) -> RawClient {
    let source: std::net::SocketAddr = format!("{source}:0").parse().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().unwrap();
    let tcp = runtime.block_on(async {
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        socket.bind(source).unwrap();
        socket.connect(address.parse().unwrap()).await.unwrap().into_std().unwrap()
    });
    tcp.set_nonblocking(false).unwrap();
    RawClient::from_tcp(tcp).unwrap()
}

/// Returns the CPU seconds that this process has used.
pub fn cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    let (_, fields) = stat.rsplit_once(')').unwrap();
    let ticks = |at: usize| fields.split_whitespace().nth(at).unwrap().parse::<f64>().unwrap();
    (ticks(11) + ticks(12)) / 100.0 // USER_HZ
}
