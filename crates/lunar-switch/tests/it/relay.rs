//! The fast path compared with the slow path, over sockets within the process.

mod digests;
mod lost_sessions;
mod silent_storages;
mod slow_hosts;
mod tamperer;

use crate::memory;
use bytes::Bytes;
use lunar_block::{BlockDevice, BufferPool};
use lunar_initiator::{Initiator, RemoteDisk, SessionOptions, Url};
use lunar_iscsi::text::{Digest, Offer};
use lunar_switch::relay::{COMMAND_BYTES_MAX, SwitchRelays};
use lunar_switch::{DeviceExtent, ExtentOrder, VirtualDisk, extent};
use lunar_target::{
    Access, CacheMode, DiskUnit, DiskUnitOptions, Limits, LunOptions, Portal, RelayFactory,
    RelayStatistics, Server, ServerOptions, TargetOptions,
};
use lunar_testkit::raw::{RawAnswer, RawClient};
use lunar_wire::Lun;
use std::net::SocketAddr;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tamperer::{Change, Tamperer};

const NAME: &str = "iqn.2026-11.org.lunarsan.test:relay";
const BLOCK: usize = 512;
/// Blocks of each virtual disk.
const BLOCKS: u64 = 4096;

/// Options of a switch and its storages.
#[derive(Clone, Copy, Debug)]
struct RigOptions {
    order: ExtentOrder,
    /// MaxRecvDataSegmentLength and MaxBurstLength of the storages.
    segment_bytes: u32,
    burst_bytes: u32,
    digests: bool,
    cache: CacheMode,
}

/// Extents that follow each other, on storages that take long segments.
const LINEAR: RigOptions = RigOptions {
    order: ExtentOrder::Linear,
    segment_bytes: 262_144,
    burst_bytes: 1 << 20,
    digests: false,
    cache: CacheMode::WriteThrough,
};

/// Two storages with a switch in front of them.
struct Rig {
    runtime: tokio::runtime::Runtime,
    storages: Vec<Server>,
    disks: Vec<Arc<RemoteDisk>>,
    disk: Arc<VirtualDisk>,
    switch: Server,
    relays: SwitchRelays,
    /// The proxies in front of the storages, if there are any.
    tamperers: Vec<Tamperer>,
}

fn serve(
    id: u128,
    device: Arc<dyn BlockDevice>,
    offer: Offer,
    cache: CacheMode,
    relays: Option<Arc<dyn RelayFactory>>,
) -> Server {
    let unit = DiskUnitOptions::new(uuid::Uuid::from_u128(id), device);
    let unit = DiskUnit::open(DiskUnitOptions { cache, ..unit }).unwrap();
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
        luns: vec![LunOptions::new(0, unit)],
    };
    Server::start(ServerOptions {
        portals: vec![Portal::new("127.0.0.1:0".parse().unwrap())],
        targets: vec![target],
        discovery_chap: None,
        cores: 1,
        latency_mode: false,
        limits: Limits::default(),
        buffers: BufferPool::default(),
        relays,
    })
    .unwrap()
}

fn url(address: SocketAddr) -> Url {
    format!("iscsi://{address}/{NAME}/0").parse().unwrap()
}

impl Rig {
    fn new(options: RigOptions, is_fast: bool) -> Self {
        Self::behind(options, is_fast, false)
    }

    fn behind(options: RigOptions, is_fast: bool, has_tamperers: bool) -> Self {
        let device = || memory(BLOCKS * BLOCK as u64, 512, 512);
        let session = SessionOptions::new("iqn.2026-11.org.lunarsan.test:switch");
        Self::on_devices([device(), device()], session, options, is_fast, has_tamperers)
    }

    /// Serves these devices, of which each has [`BLOCKS`] blocks.
    fn on_devices(
        devices: [Arc<dyn BlockDevice>; 2],
        session: SessionOptions,
        options: RigOptions,
        is_fast: bool,
        has_tamperers: bool,
    ) -> Self {
        let factory =
            |relays| is_fast.then(|| Arc::<SwitchRelays>::new(relays) as Arc<dyn RelayFactory>);
        Self::with_relays(devices, session, options, has_tamperers, factory)
    }

    /// Serves these devices, with the relays that `factory` returns.
    fn with_relays(
        devices: [Arc<dyn BlockDevice>; 2],
        mut session: SessionOptions,
        options: RigOptions,
        has_tamperers: bool,
        factory: impl FnOnce(SwitchRelays) -> Option<Arc<dyn RelayFactory>>,
    ) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread();
        let runtime = { runtime }.worker_threads(1).enable_all().build().unwrap();
        let offer = Offer {
            max_recv_data_segment_bytes: options.segment_bytes,
            max_burst_bytes: options.burst_bytes,
            first_burst_bytes: options.burst_bytes.min(8192),
            ..Offer::target()
        };
        let bytes = BLOCKS * BLOCK as u64;
        let storage = |(id, device)| serve(id, device, offer.clone(), options.cache, None);
        let storages: Vec<Server> = (1..).zip(devices).map(storage).collect();
        if options.digests {
            session.header_digest = vec![Digest::Crc32c];
            session.data_digest = vec![Digest::Crc32c];
        }
        let addresses: Vec<_> = storages.iter().map(|storage| storage.addresses()[0]).collect();
        let tamperers: Vec<_> = match has_tamperers {
            true => {
                addresses.iter().map(|address| Tamperer::start(*address, options.digests)).collect()
            }
            false => Vec::new(),
        };
        let addresses = match has_tamperers {
            true => tamperers.iter().map(|tamperer| tamperer.address).collect(),
            false => addresses,
        };
        let open = |address: &SocketAddr| {
            let url = url(*address);
            let disk = RemoteDisk::connect(&url, &session);
            Arc::new(runtime.block_on(disk).unwrap())
        };
        let disks: Vec<_> = addresses.iter().map(open).collect();
        let half = bytes / 2;
        let part = |disk: &Arc<RemoteDisk>| {
            let device = Arc::clone(disk) as Arc<dyn BlockDevice>;
            extent(&device, half / 2, half).unwrap()
        };
        let extents: Vec<DeviceExtent> = disks.iter().map(part).collect();
        let disk = Arc::new(VirtualDisk::new("virtual", &extents, options.order).unwrap());
        let relays = SwitchRelays::new().with_reset_after(Duration::ZERO);
        let served = Arc::<VirtualDisk>::clone(&disk);
        let switch = serve(3, served, Offer::target(), options.cache, factory(relays.clone()));
        Self { runtime, storages, disks, disk, switch, relays, tamperers }
    }

    fn host(&self, digests: bool) -> Initiator {
        let mut options = SessionOptions::new("iqn.2026-11.org.lunarsan.test:host");
        if digests {
            options.header_digest = vec![Digest::Crc32c];
            options.data_digest = vec![Digest::Crc32c];
        }
        self.runtime
            .block_on(Initiator::connect(&url(self.switch.addresses()[0]), &options))
            .unwrap()
    }

    /// Executes a command: status, sense, data, and residuals as text.
    fn execute(&self, host: &Initiator, command: &TestCommand) -> (u8, Vec<u8>, Bytes, String) {
        let TestCommand { cdb, data_out, data_in } = command.clone();
        let reply = host.execute(Lun::new(0), cdb, data_out, data_in);
        let reply = self.runtime.block_on(reply).unwrap();
        let residuals = format!("{:?} {:?}", reply.result.residual, reply.result.read_residual);
        (reply.result.status, reply.result.sense.to_vec(), reply.data_in, residuals)
    }

    fn relayed(&self) -> RelayStatistics {
        let statistics = self.switch.observer().statistics().unwrap();
        statistics.targets[0].luns[0].relayed.unwrap()
    }

    /// Reads until a READ of both storages is relayed.
    fn until_relayed(&self, host: &Initiator) {
        let end = Instant::now() + Duration::from_secs(20);
        let read = |lba: u64| TestCommand::transfer(0x88, 0, lba, 8, None, 8 * BLOCK as u32);
        for lba in [0, BLOCKS - 8] {
            let before = self.relayed().commands;
            while self.relayed().commands == before {
                assert!(Instant::now() < end, "nothing is relayed");
                self.execute(host, &read(lba));
            }
        }
    }

    /// Ends everything; nothing is left.
    fn end(self, hosts: Vec<Initiator>) {
        for host in hosts {
            self.runtime.block_on(host.log_out()).unwrap();
        }
        let end = Instant::now() + Duration::from_secs(20);
        while self.relays.links() > 0 {
            assert!(Instant::now() < end, "sessions of relays are left");
            std::thread::yield_now();
        }
        self.switch.shutdown(Duration::from_secs(5), &mut |_| {});
        for disk in &self.disks {
            self.runtime.block_on(disk.log_out()).unwrap();
        }
        for storage in &self.storages {
            let report = storage.shutdown(Duration::from_secs(5), &mut |_| {});
            assert_eq!(report.connections_cut, 0);
        }
    }
}

#[derive(Clone, Debug)]
struct TestCommand {
    cdb: Vec<u8>,
    data_out: Bytes,
    data_in: u32,
}

impl TestCommand {
    /// READ or WRITE with this operation code.
    fn transfer(
        opcode: u8,
        flags: u8,
        lba: u64,
        count: u32,
        data_out: Option<Bytes>,
        data_in: u32,
    ) -> Self {
        let cdb = match opcode >> 5 {
            0 => {
                let [_, _, _, _, _, high, middle, low] = lba.to_be_bytes();
                vec![opcode, high & 0x1f, middle, low, count as u8, 0]
            }
            4 => {
                let (lba, count) = (lba.to_be_bytes(), count.to_be_bytes());
                [&[opcode, flags][..], &lba, &count, &[0, 0]].concat()
            }
            5 => {
                let (lba, count) = ((lba as u32).to_be_bytes(), count.to_be_bytes());
                [&[opcode, flags][..], &lba, &count, &[0, 0]].concat()
            }
            _ => {
                let (lba, count) = ((lba as u32).to_be_bytes(), (count as u16).to_be_bytes());
                [&[opcode, flags][..], &lba, &[0], &count, &[0]].concat()
            }
        };
        Self { cdb, data_out: data_out.unwrap_or_default(), data_in }
    }

    /// A random command: mostly READs and WRITEs that are right, of lengths around the limits of
    /// segments, bursts, stripe units and extents; some with other lengths than announced, some
    /// past the end, and some of other kinds.
    fn random(random: &mut Random) -> Self {
        const LENGTHS: [u32; 10] = [0, 1, 2, 8, 16, 17, 128, 129, 600, 1100];
        let count = LENGTHS[random.below(LENGTHS.len())];
        let lba = match random.below(8) {
            0 => BLOCKS / 2 - u64::from(count) / 2,
            1 => BLOCKS - u64::from(count) / 2, // past the end
            _ => random.below(BLOCKS as usize - count as usize) as u64,
        };
        let opcodes = [0x08, 0x28, 0xa8, 0x88, 0x0a, 0x2a, 0xaa, 0x8a];
        let opcode = opcodes[random.below(opcodes.len())];
        let count = if opcode >> 5 == 0 { count.min(255) } else { count };
        let flags = [0, 0, 0x08, 0x10][random.below(4)]; // FUA, DPO
        let blocks = if opcode >> 5 == 0 && count == 0 { 256 } else { count };
        let other = [0, 0, 0, 1, BLOCK as u32][random.below(5)];
        let bytes = blocks * BLOCK as u32;
        let bytes = if random.below(2) == 0 { bytes + other } else { bytes.saturating_sub(other) };
        if random.below(20) == 0 {
            let sync = vec![0x35, 0, 0, 0, 0, 0, 0, 0, 0, 0];
            return Self { cdb: sync, data_out: Bytes::new(), data_in: 0 };
        }
        match opcode & 0x0f {
            0x08 => Self::transfer(opcode, flags, lba, count, None, bytes),
            _ => {
                let data = random.bytes(bytes as usize);
                Self::transfer(opcode, flags, lba, count, Some(data), 0)
            }
        }
    }
}

/// Numbers of a linear congruential generator.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        ((self.0 >> 33) % bound as u64) as usize
    }

    fn bytes(&mut self, count: usize) -> Bytes {
        let first = self.below(251);
        (0..count).map(|at| ((at / BLOCK * 7 + at + first) % 251) as u8).collect()
    }
}

/// Goal: without faults, any mix of commands has the same statuses, sense data, residuals and data
/// through the fast path and through the slow path alone, and leaves the same blocks.
/// Method: random commands by seed, one after the other, at two switches, for several limits of the
/// storages, with and without digests.
#[test]
fn both_paths_give_the_same_results() {
    let linear = LINEAR;
    let striped = ExtentOrder::Striped(NonZeroU64::new(16).unwrap());
    for (seed, options) in (1..).zip([
        linear,
        RigOptions { order: striped, cache: CacheMode::WriteBack, ..linear },
        RigOptions { segment_bytes: 1024, burst_bytes: 4096, digests: true, ..linear },
        RigOptions { order: striped, segment_bytes: 8192, burst_bytes: 8192, ..linear },
        RigOptions { order: striped, digests: true, ..linear },
        RigOptions { digests: true, ..linear },
    ]) {
        let rigs = [true, false].map(|is_fast| Rig::new(options, is_fast));
        let hosts = rigs.each_ref().map(|rig| rig.host(options.digests));
        rigs[0].until_relayed(&hosts[0]);
        // The power-on unit attention of the slow one, which has had no command yet.
        let test = TestCommand { cdb: vec![0; 6], data_out: Bytes::new(), data_in: 0 };
        rigs[1].execute(&hosts[1], &test);
        let before = rigs[0].relayed();
        let mut random = Random(seed);
        for round in 0..150 {
            let command = TestCommand::random(&mut random);
            let [fast, slow] = [0, 1].map(|at| rigs[at].execute(&hosts[at], &command));
            assert!(fast == slow, "seed {seed}, round {round}: {:02x?}", command.cdb);
        }
        let after = rigs[0].relayed();
        assert!(after.commands - before.commands > 50, "seed {seed}: {after:?}");
        assert_eq!(after.taken_over, 0, "seed {seed}");
        let all =
            TestCommand::transfer(0x88, 0, 0, BLOCKS as u32, None, BLOCKS as u32 * BLOCK as u32);
        let [fast, slow] = [0, 1].map(|at| rigs[at].execute(&hosts[at], &all));
        assert!(fast == slow, "seed {seed}: the blocks differ");
        for (rig, host) in rigs.into_iter().zip(hosts) {
            rig.end(vec![host]);
        }
    }
}

/// Goal: of each relayed READ at most 512 KiB are held, however long it is and however slowly the
/// host takes its data, and the host gets all of it.
/// Method: a host that looks at the memory of the switch after each PDU that it takes.
#[test]
fn a_slow_host_holds_little_memory() {
    const READS: usize = 6;
    let rig = Rig::new(LINEAR, true);
    let address = rig.switch.addresses()[0].to_string();
    let mut raw = RawClient::log_in(&address, NAME).unwrap();
    let end = Instant::now() + Duration::from_secs(20);
    for lba in [0, BLOCKS as u32 - 1] {
        let before = rig.relayed().commands;
        while rig.relayed().commands == before {
            assert!(Instant::now() < end, "nothing is relayed");
            raw.read_block(lba).unwrap();
        }
    }
    // All of a storage, without its first blocks: one part, which cannot be in memory as a whole.
    let blocks = BLOCKS as u32 / 2;
    let bytes = blocks * BLOCK as u32;
    for at in 0..READS as u32 {
        let lba = if at.is_multiple_of(2) { 0 } else { blocks };
        let cdb = TestCommand::transfer(0x88, 0, lba.into(), blocks, None, bytes).cdb;
        let command = raw.command(0xc1, &cdb, bytes);
        raw.send(&command).unwrap();
    }
    let (mut ended, mut received, mut most) = (0, 0, 0);
    while ended < READS {
        let RawAnswer::Pdu(pdu) = raw.answer(Duration::from_secs(20)).unwrap() else {
            panic!("no answer");
        };
        received += pdu.data.len();
        let has_status = pdu.opcode() == 0x21 || pdu.header[1] & 1 != 0;
        if has_status {
            assert_eq!(pdu.header[3], 0, "GOOD");
            ended += 1;
        }
        most = most.max(rig.switch.buffers().in_use_bytes());
    }
    assert_eq!(received, READS * bytes as usize);
    // With the page that aligns each buffer.
    let limit = READS * (COMMAND_BYTES_MAX + COMMAND_BYTES_MAX / 8);
    assert!((1..=limit).contains(&most), "{most} of {limit} bytes");
    assert_eq!(rig.relayed().taken_over, 0);
    drop(raw);
    rig.end(Vec::new());
}

/// A change of the first Data-In with data of a transfer, which are 64 KiB long.
fn changed(mut pdu: Vec<u8>, change: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    const DATA_IN: u8 = 0x25;
    let data_bytes = u32::from_be_bytes([0, pdu[5], pdu[6], pdu[7]]);
    if pdu[0] & 0x3f == DATA_IN && data_bytes >= 4096 {
        change(&mut pdu);
    }
    pdu
}

/// Adds to the 32-bit field at this position.
fn add(pdu: &mut [u8], at: usize, value: u32) {
    let field: [u8; 4] = pdu[at..at + 4].try_into().unwrap();
    let value = u32::from_be_bytes(field).wrapping_add(value);
    pdu[at..at + 4].copy_from_slice(&value.to_be_bytes());
}

/// Goal: a storage that answers a relayed READ with wrong tags, numbers, offsets, more data than
/// asked, or data twice is cut off. The host gets CHECK CONDITION, HARDWARE ERROR, LOGICAL UNIT
/// COMMUNICATION FAILURE, and never foreign data; its next commands take the slow path.
/// Method: a proxy that changes PDUs in the sessions of relays, for each fault a new switch.
#[test]
fn hostile_storages_are_cut_off() {
    let faults: [(&str, Change); 6] = [
        ("tag", |pdu| changed(pdu, |pdu| add(pdu, 16, 1))),
        ("data number", |pdu| changed(pdu, |pdu| add(pdu, 36, 1))),
        ("offset", |pdu| changed(pdu, |pdu| add(pdu, 40, 512))),
        ("twice", |pdu| changed(pdu, |pdu| *pdu = [&pdu[..], &pdu[..]].concat())),
        ("more data", |pdu| {
            changed(pdu, |pdu| {
                pdu.extend_from_slice(&[7; 65536]);
                let bytes = (pdu.len() - 48) as u32;
                pdu[5..8].copy_from_slice(&bytes.to_be_bytes()[1..]);
            })
        }),
        ("opcode", |pdu| changed(pdu, |pdu| pdu[0] = 0x3f)),
    ];
    for (name, fault) in faults {
        let options = RigOptions {
            order: ExtentOrder::Linear,
            segment_bytes: 262_144,
            burst_bytes: 262_144,
            digests: false,
            cache: CacheMode::WriteThrough,
        };
        let rig = Rig::behind(options, true, true);
        let host = rig.host(false);
        // Two segments, of which the first one is kept until the second one has come.
        const COUNT: u32 = 256;
        let data = Random(5).bytes(COUNT as usize * BLOCK);
        let write = TestCommand::transfer(0x8a, 0, 0, COUNT, Some(data.clone()), 0);
        rig.until_relayed(&host);
        assert_eq!(rig.execute(&host, &write).0, 0, "{name}");
        let read = TestCommand::transfer(0x88, 0, 0, COUNT, None, COUNT * BLOCK as u32);
        rig.tamperers[0].change(Some(fault));
        let (status, sense, back, _) = rig.execute(&host, &read);
        assert!(rig.tamperers[0].has_changed(), "{name}: the READ was not relayed");
        assert_eq!(status, 2, "{name}");
        assert_eq!((sense[2] & 0x0f, sense[12]), (4, 8), "{name}: {sense:02x?}");
        assert!(back.is_empty(), "{name}: {} bytes", back.len());
        // The slow path, with an honest session.
        let before = rig.relayed();
        let (status, _, back, _) = rig.execute(&host, &read);
        assert!(status == 0 && back == data, "{name}");
        assert_eq!(rig.relayed(), before, "{name}: the storage is avoided");
        rig.end(vec![host]);
    }
}

/// Fault: the data that came with a WRITE was not passed on with it, so each WRITE cost an R2T of
/// the storage, and its time.
#[test]
fn immediate_data_is_passed_on_with_its_command() {
    const R2T: u8 = 0x31;
    let rig = Rig::behind(LINEAR, true, true);
    let host = rig.host(false);
    rig.until_relayed(&host);
    // FirstBurstLength of the storages is 8 KiB.
    for count in [1, 8, 16] {
        let data = Random(u64::from(count)).bytes(count as usize * BLOCK);
        digests::until_writes_are_relayed(&rig, &host, &data);
        let write = TestCommand::transfer(0x8a, 0, 0, count, Some(data), 0);
        // A changed R2T also ends the session.
        let change: Change = |mut pdu| {
            pdu[0] ^= u8::from(pdu[0] & 0x3f == R2T);
            pdu
        };
        rig.tamperers[0].change(Some(change));
        let before = rig.relayed().commands;
        assert_eq!(rig.execute(&host, &write).0, 0, "{count} blocks");
        assert_eq!(rig.relayed().commands, before + 1);
        assert!(!rig.tamperers[0].has_changed(), "{count} blocks: the storage sent an R2T");
        rig.tamperers[0].change(None);
    }
    rig.end(vec![host]);
}
