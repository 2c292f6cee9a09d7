//! A host, a relay and two storage targets over real sockets. All relay work is one task on one
//! core; bytes in flight beyond a limit panic there.

use super::*;
use crate::{
    BufferLimits, Clock, DrivenSocket, InFlightMeter, SocketGroup, SocketGroupHandle, drive,
};
use bytes::Bytes;
use lunar_iscsi::connection::initiator::{
    Command, CommandResult, Input as InitiatorInput, Management, RequestFailure, StreamingCommand,
};
use lunar_iscsi::connection::target::{Input as TargetInput, Outcome, Task, TransferFault};
use lunar_iscsi::framing::TaskId;
use lunar_iscsi::pdu::{LogoutReason, ManagementFunction, TaskAttribute};
use lunar_iscsi::text::{Digest, Offer};
use lunar_wire::Lun;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use tokio::net::TcpStream;
use tokio::task::{JoinHandle, LocalSet, spawn_local};

const BLOCK_BYTES: usize = 512;
const DISK_BYTES: usize = 32 << 20;
const SEGMENT_BYTES: usize = 64 << 10;
const TASK_BYTES_MAX: usize = 512 << 10;
const CONNECTION_BYTES_MAX: usize = 1 << 20;

const LIMITS: RelayLimits = RelayLimits {
    task_bytes_max: TASK_BYTES_MAX,
    connection_bytes_max: CONNECTION_BYTES_MAX,
    range_bytes_max: 128 << 10,
    segment_bytes_max: SEGMENT_BYTES,
};

/// Limits of the socket buffers: little data is on the way.
const BUFFERS: BufferLimits =
    BufferLimits { socket_bytes_max: Some(32 << 10), ..BufferLimits::LARGEST };

/// The most that lies in the buffers of a connection: those of both ends, which the system doubles.
const SOCKET_BYTES_MAX: usize = 2 * 2 * (32 << 10);

/// The requests of the host, and their results.
#[derive(Clone, Default)]
struct Host(Rc<RefCell<HostState>>);

#[derive(Default)]
struct HostState {
    inputs: VecDeque<InitiatorInput>,
    waker: Option<Waker>,
    commands: BTreeMap<TaskId, HostCommand>,
    last_id: u64,
    pauses: bool,
    /// Number of bytes that R2Ts asked for.
    wanted_bytes: usize,
    received_bytes: usize,
}

struct HostCommand {
    data_out: Bytes,
    data_in: Vec<u8>,
    result: Option<Result<CommandResult, RequestFailure>>,
}

impl Host {
    fn start(&self, lun: u16, cdb: &[u8], data_out: Bytes, data_in_bytes: usize) -> TaskId {
        let state = &mut *self.0.borrow_mut();
        state.last_id += 1;
        let id = TaskId(state.last_id);
        let data_out_bytes = data_out.len() as u32;
        let command = Command {
            id,
            lun: Lun::new(lun),
            cdb: cdb.into(),
            attribute: TaskAttribute::SIMPLE,
            priority: 0,
            data_out: Bytes::new(),
            data_in_bytes_max: data_in_bytes as u32,
            immediate: false,
        };
        let data_in = vec![0; data_in_bytes];
        state.commands.insert(id, HostCommand { data_out, data_in, result: None });
        let command = StreamingCommand { command, data_out_bytes, prefix_digest: None };
        state.push(InitiatorInput::Stream(Box::new(command)));
        id
    }

    fn read(&self, lun: u16, at: usize, bytes: usize) -> TaskId {
        self.start(lun, &cdb(0x88, at, bytes), Bytes::new(), bytes)
    }

    fn write(&self, lun: u16, at: usize, data: &[u8]) -> TaskId {
        self.start(lun, &cdb(0x8a, at, data.len()), Bytes::copy_from_slice(data), 0)
    }

    /// Waits for the end of a command; returns its data, or its sense key.
    async fn result(&self, id: TaskId) -> Result<Vec<u8>, u8> {
        until(|| self.0.borrow().commands[&id].result.is_some()).await;
        let command = self.0.borrow_mut().commands.remove(&id).unwrap();
        let result = command.result.unwrap().expect("a response");
        if result.status == 0 { Ok(command.data_in) } else { Err(result.sense[2]) }
    }

    fn is_ended(&self, id: TaskId) -> bool {
        self.0.borrow().commands[&id].result.is_some()
    }

    fn set_pauses(&self, pauses: bool) {
        let state = &mut *self.0.borrow_mut();
        state.pauses = pauses;
        state.waker.take().into_iter().for_each(Waker::wake);
    }

    fn abort(&self, lun: u16, referenced: TaskId) {
        let state = &mut *self.0.borrow_mut();
        state.last_id += 1;
        state.push(InitiatorInput::Manage(Management {
            id: TaskId(state.last_id),
            function: ManagementFunction::ABORT_TASK,
            lun: Lun::new(lun),
            referenced: Some(referenced),
        }));
    }

    fn log_out(&self) {
        let logout = InitiatorInput::Logout { reason: LogoutReason::CLOSE_SESSION, cid: None };
        self.0.borrow_mut().push(logout);
    }
}

impl HostState {
    fn push(&mut self, input: InitiatorInput) {
        self.inputs.push_back(input);
        self.waker.take().into_iter().for_each(Waker::wake);
    }
}

impl Requester for Host {
    fn poll_input(&mut self, context: &mut Context<'_>) -> Poll<InitiatorInput> {
        let mut state = self.0.borrow_mut();
        state.waker = Some(context.waker().clone());
        state.inputs.pop_front().map_or(Poll::Pending, Poll::Ready)
    }
    fn wants(&mut self, id: TaskId, offset_bytes: u32, bytes: u32) {
        let state = &mut *self.0.borrow_mut();
        state.wanted_bytes += bytes as usize;
        let at = offset_bytes as usize;
        let data = state.commands[&id].data_out.slice(at..at + bytes as usize);
        state.push(InitiatorInput::DataOut { id, offset_bytes, data, digest: None });
    }
    fn data_in(&mut self, id: TaskId, offset_bytes: u32, data: Vec<u8>) {
        let state = &mut *self.0.borrow_mut();
        state.received_bytes += data.len();
        let Some(command) = state.commands.get_mut(&id) else { return };
        command.data_in[offset_bytes as usize..][..data.len()].copy_from_slice(&data);
    }
    fn completed(&mut self, id: TaskId, result: Result<CommandResult, RequestFailure>) {
        if let Some(command) = self.0.borrow_mut().commands.get_mut(&id) {
            command.result = Some(result);
        }
    }
    fn may_receive(&self) -> bool {
        !self.0.borrow().pauses
    }
}

/// A disk of a storage target.
#[derive(Clone)]
struct Disk(Rc<RefCell<DiskState>>);

struct DiskState {
    blocks: Vec<u8>,
    inputs: VecDeque<TargetInput>,
    waker: Option<Waker>,
    /// Writes: start on the disk, length, and number of bytes that have arrived.
    writes: BTreeMap<TaskId, (usize, usize, usize)>,
    pauses: bool,
    /// Data of reads that the socket has not taken; it is cut into pieces of a segment.
    unsent: std::sync::Arc<InFlightMeter>,
    given_bytes: usize,
    started: usize,
    aborted: usize,
}

impl Disk {
    fn new(seed: u8) -> Self {
        Self(Rc::new(RefCell::new(DiskState {
            blocks: (0..DISK_BYTES).map(|at| (at / BLOCK_BYTES * 7 + at) as u8 ^ seed).collect(),
            inputs: VecDeque::new(),
            waker: None,
            writes: BTreeMap::new(),
            pauses: false,
            unsent: InFlightMeter::for_connection(usize::MAX >> 1),
            given_bytes: 0,
            started: 0,
            aborted: 0,
        })))
    }

    fn bytes(&self, at: usize, bytes: usize) -> Vec<u8> {
        self.0.borrow().blocks[at..at + bytes].to_vec()
    }

    fn set_pauses(&self, pauses: bool) {
        let state = &mut *self.0.borrow_mut();
        state.pauses = pauses;
        state.waker.take().into_iter().for_each(Waker::wake);
    }

    /// Number of bytes of reads that the socket has taken.
    fn sent_bytes(&self) -> usize {
        let state = self.0.borrow();
        state.given_bytes - state.unsent.bytes()
    }
}

impl TaskExecutor for Disk {
    fn start(&mut self, task: &Task) {
        let state = &mut *self.0.borrow_mut();
        state.started += 1;
        let (id, cdb) = (task.id, &*task.cdb);
        let at = u64::from_be_bytes(cdb[2..10].try_into().unwrap()) as usize * BLOCK_BYTES;
        let bytes = u32::from_be_bytes(cdb[10..14].try_into().unwrap()) as usize * BLOCK_BYTES;
        if cdb[0] == 0x8a {
            state.writes.insert(id, (at, bytes, 0));
            let wants = TargetInput::Wants { task: id, offset_bytes: 0, bytes: bytes as u32 };
            return state.inputs.push_back(wants);
        }
        for offset in (0..bytes).step_by(SEGMENT_BYTES) {
            let start = at + offset;
            let data = state.blocks[start..start + SEGMENT_BYTES.min(bytes - offset)].to_vec();
            state.given_bytes += data.len();
            let data = state.unsent.try_add(data.len()).unwrap().attach(data);
            state.inputs.push_back(TargetInput::DataIn {
                task: id,
                offset_bytes: offset as u32,
                data,
                digest: None,
            });
        }
        let outcome = Outcome { data_in_bytes: bytes as u32, ..Outcome::default() };
        state.inputs.push_back(TargetInput::Done { task: id, outcome });
    }
    fn data_out(&mut self, task: TaskId, offset_bytes: u32, data: Vec<u8>) {
        let state = &mut *self.0.borrow_mut();
        let Some((at, bytes, arrived)) = state.writes.get_mut(&task) else { return };
        state.blocks[*at + offset_bytes as usize..][..data.len()].copy_from_slice(&data);
        *arrived += data.len();
        if arrived == bytes {
            let outcome = Outcome { data_out_bytes: *bytes as u32, ..Outcome::default() };
            state.inputs.push_back(TargetInput::Done { task, outcome });
            state.writes.remove(&task);
        }
        state.waker.take().into_iter().for_each(Waker::wake);
    }
    fn end(&mut self, task: TaskId, _fault: Option<TransferFault>) {
        let state = &mut *self.0.borrow_mut();
        state.aborted += 1;
        state.writes.remove(&task);
        state.inputs.push_back(TargetInput::Done { task, outcome: Outcome::default() });
        state.waker.take().into_iter().for_each(Waker::wake);
    }
    fn poll_input(&mut self, context: &mut Context<'_>) -> Poll<TargetInput> {
        let mut state = self.0.borrow_mut();
        state.waker = Some(context.waker().clone());
        state.inputs.pop_front().map_or(Poll::Pending, Poll::Ready)
    }
    fn may_receive(&self) -> bool {
        !self.0.borrow().pauses
    }
}

/// Builds a READ(16) or WRITE(16).
fn cdb(opcode: u8, at: usize, bytes: usize) -> [u8; 16] {
    let mut cdb = [0; 16];
    cdb[0] = opcode;
    cdb[2..10].copy_from_slice(&((at / BLOCK_BYTES) as u64).to_be_bytes());
    cdb[10..14].copy_from_slice(&((bytes / BLOCK_BYTES) as u32).to_be_bytes());
    cdb
}

thread_local! {
    /// True after a panic in a task of the test.
    static HAS_PANICKED: Cell<bool> = const { Cell::new(false) };
}

/// Notes a panic of the task that owns this.
struct PanicNote;

impl Drop for PanicNote {
    fn drop(&mut self) {
        HAS_PANICKED.set(HAS_PANICKED.get() || std::thread::panicking());
    }
}

/// Lets the core work until something is true.
async fn until(mut is_true: impl FnMut() -> bool) {
    /// More than any test needs.
    const TURNS_MAX: usize = 50_000_000;
    for _ in 0..TURNS_MAX {
        if is_true() {
            return;
        }
        assert!(!HAS_PANICKED.get(), "a task has panicked");
        tokio::task::yield_now().await;
    }
    panic!("nothing happens");
}

/// Runs the group in a task.
fn run_group(group: SocketGroup) -> JoinHandle<()> {
    spawn_local(async move {
        let _note = PanicNote;
        group.run().await;
    })
}

fn on_core<F: Future<Output = ()>>(test: impl FnOnce() -> F) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    LocalSet::new().block_on(&runtime, async { test().await });
}

/// Both ends of a connection.
fn connected() -> (TcpStream, TcpStream) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let one = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (other, _) = listener.accept().unwrap();
    crate::prepare(&one).unwrap();
    crate::prepare(&other).unwrap();
    (TcpStream::from_std(one).unwrap(), TcpStream::from_std(other).unwrap())
}

fn offer(has_digests: bool) -> Offer {
    let digest = vec![if has_digests { Digest::Crc32c } else { Digest::None }];
    Offer {
        header_digest: digest.clone(),
        data_digest: digest,
        max_recv_data_segment_bytes: SEGMENT_BYTES as u32,
        max_burst_bytes: 16_777_215, // one R2T of a storage target for a whole WRITE
        max_connections: 1,
        ..Offer::target()
    }
}

/// Sockets of storage targets that were handed back.
type HandedBack = Rc<RefCell<Vec<(DrivenSocket, InitiatorSocket<RelayedStorage>)>>>;

/// A host, a relay and two storage targets.
struct Rig {
    host: Host,
    relay: TestRelay,
    disks: [Disk; 2],
    targets: [JoinHandle<()>; 2],
    initiator: JoinHandle<()>,
    sockets: SocketGroupHandle,
    group: JoinHandle<()>,
    handed_back: HandedBack,
}

/// Adds a host's connection to a relay.
fn add_host(
    group: &SocketGroupHandle,
    relay: &TestRelay,
    has_digests: bool,
) -> (Host, JoinHandle<()>) {
    let (host_tcp, relay_tcp) = connected();
    let mut served = TargetSocket::new(relay.host(), offer(has_digests));
    served.limits = BUFFERS;
    group.add(async move {
        drive(relay_tcp, &mut served, Clock::start()).await;
    });
    let host = Host::default();
    let mut initiator =
        InitiatorSocket::new(host.clone(), "iqn.2026-01.example:host", offer(has_digests));
    initiator.limits = BUFFERS;
    let running = spawn_local(async move {
        drive(host_tcp, &mut initiator, Clock::start()).await;
    });
    (host, running)
}

/// Drives a storage target's connection in a group.
fn add_storage(
    group: &SocketGroupHandle,
    socket: DrivenSocket,
    mut storage: InitiatorSocket<RelayedStorage>,
    handed_back: &HandedBack,
) {
    let handed_back = Rc::clone(handed_back);
    group.add(async move {
        if let Some(socket) = drive(socket, &mut storage, Clock::start()).await {
            handed_back.borrow_mut().push((socket, storage));
        }
    });
}

impl Rig {
    /// `digests`: of the host's connection, and of those of the storage targets.
    fn new(keeps_storage: bool, digests: [bool; 2]) -> Self {
        let relay = TestRelay::new(LIMITS, 0, keeps_storage);
        let group = SocketGroup::new();
        let handed_back = HandedBack::default();
        let disks = [Disk::new(1), Disk::new(2)];
        let targets = [&disks[0], &disks[1]].map(|disk| {
            let (target_tcp, relay_tcp) = connected();
            let name = "iqn.2026-01.example:relay";
            let mut storage = InitiatorSocket::new(relay.add_storage(), name, offer(digests[1]));
            storage.limits = BUFFERS;
            add_storage(&group.handle(), relay_tcp.into(), storage, &handed_back);
            let mut target = TargetSocket::new(disk.clone(), offer(digests[1]));
            target.limits = BUFFERS;
            spawn_local(async move {
                drive(target_tcp, &mut target, Clock::start()).await;
            })
        });
        let (host, initiator) = add_host(&group.handle(), &relay, digests[0]);
        let (sockets, group) = (group.handle(), run_group(group));
        Self { host, relay, disks, targets, initiator, sockets, group, handed_back }
    }

    /// Logs the host out; asserts that everything ends and nothing is left in flight.
    async fn end(self) {
        self.host.log_out();
        self.initiator.await.unwrap();
        self.group.await.unwrap();
        for target in self.targets {
            let _ = target.await; // one that was aborted is an error
        }
        assert_eq!(self.relay.tasks(), 0);
        for storage in 0..2 {
            let left = self.relay.in_flight(storage).map(|meter| meter.bytes());
            assert_eq!(left, [0, 0], "storage target {storage}");
        }
    }
}

/// A pseudorandom number generator (xorshift).
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 16) as usize % end
    }
}

/// Goal: READs and WRITEs of up to several MiB arrive whole, in pieces, whatever the digests of the
/// two sides are. Method: random commands to both storage targets at once, each on blocks of its
/// own; the limits are checked with each piece.
#[test]
fn commands_move_in_pieces() {
    const COMMANDS: usize = 12;
    const RANGE_BYTES: usize = 2 << 20;
    let seed = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap().as_nanos() as u64 | 1;
    eprintln!("seed {seed}");
    for digests in [[false, false], [true, false], [false, true], [true, true]] {
        let mut random = Random(seed);
        on_core(|| async move {
            let rig = Rig::new(false, digests);
            let mut reads = Vec::new();
            let mut writes = Vec::new();
            for number in 0..COMMANDS {
                let lun = random.below(2);
                let bytes = (1 + random.below(RANGE_BYTES / BLOCK_BYTES)) * BLOCK_BYTES;
                let at = number * RANGE_BYTES;
                if random.below(2) == 0 {
                    let expected = rig.disks[lun].bytes(at, bytes);
                    reads.push((rig.host.read(lun as u16 + 1, at, bytes), expected));
                } else {
                    let data: Vec<u8> = (0..bytes).map(|at| (at + number * 31) as u8).collect();
                    let id = rig.host.write(lun as u16 + 1, at, &data);
                    writes.push((id, lun, at, data));
                }
            }
            for (id, expected) in reads {
                assert!(rig.host.result(id).await.unwrap() == expected, "seed {seed}");
            }
            for (id, lun, at, data) in writes {
                rig.host.result(id).await.unwrap();
                assert!(rig.disks[lun].bytes(at, data.len()) == data, "seed {seed}");
            }
            let peaks = [0, 1].map(|at| rig.relay.in_flight(at).map(|meter| meter.peak_bytes()));
            assert!(peaks.as_flattened().iter().all(|bytes| *bytes <= CONNECTION_BYTES_MAX));
            rig.end().await;
        });
    }
}

/// Goal: data that a host does not read stays with the storage target, and follows when it reads.
/// Method: the relay reports that it holds the storage target's socket; then the target's socket
/// has taken no more than the limit and the socket buffers.
#[test]
fn a_host_that_does_not_read_holds_its_storage_up() {
    const BYTES: usize = 8 << 20;
    on_core(|| async {
        let rig = Rig::new(false, [false, false]);
        rig.host.result(rig.host.read(1, 0, BLOCK_BYTES)).await.unwrap();
        rig.host.set_pauses(true);
        let (before, received) = (rig.disks[0].sent_bytes(), rig.host.0.borrow().received_bytes);
        let id = rig.host.read(1, 0, BYTES);
        until(|| rig.relay.is_held(0)).await;
        let bound = TASK_BYTES_MAX + 2 * SOCKET_BYTES_MAX + SEGMENT_BYTES;
        // The socket buffers fill further.
        for _ in 0..1000 {
            tokio::task::yield_now().await;
            let sent = rig.disks[0].sent_bytes() - before;
            assert!(sent <= bound, "{sent} of {BYTES} bytes");
            assert!(!rig.host.is_ended(id));
        }
        // The relay continues for a moment whenever a socket buffer has taken more.
        until(|| rig.relay.is_held(0)).await;
        let peak = rig.relay.most_bytes_of_a_task();
        assert!((TASK_BYTES_MAX - SEGMENT_BYTES + 1..=TASK_BYTES_MAX).contains(&peak), "{peak}");
        assert_eq!(rig.host.0.borrow().received_bytes, received);

        rig.host.set_pauses(false);
        assert!(rig.host.result(id).await.unwrap() == rig.disks[0].bytes(0, BYTES));
        assert_eq!(rig.disks[0].sent_bytes() - before, BYTES);
        rig.end().await;
    });
}

/// Goal: an aborted READ does not delay the other commands of its storage target: its data is read
/// and dropped. Method: the host does not read while it aborts the READ.
#[test]
fn data_of_an_aborted_read_is_dropped() {
    const BYTES: usize = 8 << 20;
    on_core(|| async {
        let rig = Rig::new(false, [false, false]);
        rig.host.result(rig.host.read(1, 0, BLOCK_BYTES)).await.unwrap();
        rig.host.set_pauses(true);
        let id = rig.host.read(1, 0, BYTES);
        // Further answers fill the socket buffers, until nothing leaves for a while.
        for _ in 0..3 {
            rig.host.read(9, 0, BLOCK_BYTES);
            let mut turns = 0;
            until(|| {
                turns = if rig.relay.is_held(0) { turns + 1 } else { 0 };
                turns == 1000
            })
            .await;
        }
        rig.host.abort(1, id);
        until(|| rig.relay.tasks() == 0).await;
        assert_eq!(rig.disks[0].sent_bytes(), BYTES + BLOCK_BYTES);
        rig.host.set_pauses(false);
        until(|| rig.host.is_ended(id)).await;
        let result = rig.host.0.borrow().commands[&id].result.clone();
        assert_eq!(result, Some(Err(RequestFailure::Aborted)));
        assert!(rig.host.0.borrow().received_bytes < BYTES);
        rig.end().await;
    });
}

/// Goal: for a storage target that does not read, no further data is requested from the host, and
/// other storage targets are not delayed. Method: the storage target asks for a whole WRITE with
/// one R2T and does not read on; meanwhile the other storage target executes WRITEs and READs of
/// several MiB.
#[test]
fn a_storage_target_that_does_not_read_stops_requests_for_it() {
    const BYTES: usize = 8 << 20;
    on_core(|| async {
        let rig = Rig::new(false, [false, false]);
        let data: Vec<u8> = (0..BYTES).map(|at| (at / 5) as u8).collect();
        let slow = rig.host.write(1, 0, &data);
        until(|| rig.disks[0].0.borrow().started == 1).await;
        rig.disks[0].set_pauses(true);
        let [data_out, _] = rig.relay.in_flight(0);
        until(|| data_out.peak_bytes() == TASK_BYTES_MAX).await;

        for round in 0..2 {
            let write = rig.host.write(2, round * BYTES, &data);
            let read = rig.host.read(2, (2 + round) * BYTES / 2, BYTES / 2);
            rig.host.result(read).await.unwrap();
            rig.host.result(write).await.unwrap();
            assert!(rig.disks[1].bytes(round * BYTES, BYTES) == data);
        }
        assert!(!rig.host.is_ended(slow));
        let arrived: usize = rig.disks[0].0.borrow().writes.values().map(|write| write.2).sum();
        let requested = rig.host.0.borrow().wanted_bytes - 2 * BYTES;
        let bound = arrived + TASK_BYTES_MAX + SOCKET_BYTES_MAX + SEGMENT_BYTES;
        assert!(
            requested <= bound && requested < BYTES,
            "{requested} requested, {arrived} arrived"
        );

        rig.disks[0].set_pauses(false);
        rig.host.result(slow).await.unwrap();
        assert!(rig.disks[0].bytes(0, BYTES) == data);
        rig.end().await;
    });
}

/// Goal: the loss of a storage target's connection ends its tasks only, and later ones at once.
/// Method: the connection is cut while the target reads nothing of a WRITE and a READ waits behind
/// it; tasks of the other target continue.
#[test]
fn a_lost_storage_target_ends_its_tasks_only() {
    const BYTES: usize = 4 << 20;
    const ABORTED_COMMAND: u8 = 0x0b;
    on_core(|| async {
        let rig = Rig::new(false, [true, true]);
        let data = vec![7; BYTES];
        let lost_write = rig.host.write(1, 0, &data);
        until(|| rig.disks[0].0.borrow().started == 1).await;
        rig.disks[0].set_pauses(true);
        let lost_read = rig.host.read(1, 0, BYTES);
        let (write, read) = (rig.host.write(2, 0, &data), rig.host.read(2, BYTES, BYTES));
        let [data_out, _] = rig.relay.in_flight(0);
        until(|| data_out.peak_bytes() == TASK_BYTES_MAX).await;
        rig.targets[0].abort();
        assert_eq!(rig.host.result(lost_write).await, Err(ABORTED_COMMAND));
        assert_eq!(rig.host.result(lost_read).await, Err(ABORTED_COMMAND));
        rig.host.result(write).await.unwrap();
        assert!(rig.host.result(read).await.unwrap() == rig.disks[1].bytes(BYTES, BYTES));
        assert!(rig.disks[1].bytes(0, BYTES) == data);
        assert_eq!(rig.host.result(rig.host.read(1, 0, BYTES)).await, Err(ABORTED_COMMAND));
        assert_eq!(data_out.bytes(), 0);

        // A target that is lost before its login.
        let (target_tcp, relay_tcp) = connected();
        let storage = rig.relay.add_storage();
        let storage = InitiatorSocket::new(storage, "iqn.2026-01.example:relay", offer(false));
        add_storage(&rig.sockets, relay_tcp.into(), storage, &rig.handed_back);
        let id = rig.host.read(3, 0, BYTES);
        until(|| rig.relay.tasks() == 1).await;
        drop(target_tcp);
        assert_eq!(rig.host.result(id).await, Err(ABORTED_COMMAND));
        rig.end().await;
    });
}

/// Goal: a lost host's tasks are aborted at the storage targets, whose connections are handed back
/// and serve the relay of another host. Method: the host is cut with a READ that it does not take
/// and a WRITE that it does not complete.
#[test]
fn storage_connections_outlive_their_host() {
    const BYTES: usize = 8 << 20;
    on_core(|| async {
        let rig = Rig::new(true, [false, false]);
        rig.host.result(rig.host.read(2, 0, BLOCK_BYTES)).await.unwrap();
        let write = rig.host.write(2, 0, &vec![7; BYTES]);
        until(|| rig.disks[1].0.borrow().started == 2).await;
        rig.host.set_pauses(true);
        rig.host.read(1, 0, BYTES);
        until(|| rig.relay.is_held(0)).await;
        assert!(!rig.host.is_ended(write));
        rig.initiator.abort();
        rig.group.await.unwrap();
        assert_eq!(rig.relay.tasks(), 0);
        for storage in 0..2 {
            assert_eq!(rig.relay.in_flight(storage).map(|meter| meter.bytes()), [0, 0]);
        }
        assert_eq!(rig.disks[1].0.borrow().aborted, 1);

        let relay = TestRelay::new(LIMITS, 1, false);
        let group = SocketGroup::new();
        let handed_back = rig.handed_back.take();
        assert_eq!(handed_back.len(), 2);
        // In the order in which they were handed back.
        let mut disks = Vec::new();
        for (socket, storage) in handed_back {
            disks.push(rig.disks[storage.requester.index()].clone());
            let storage = storage.with_requester(relay.add_storage());
            add_storage(&group.handle(), socket, storage, &HandedBack::default());
        }
        let (host, initiator) = add_host(&group.handle(), &relay, true);
        let group = run_group(group);
        for (lun, disk) in (1..).zip(&disks) {
            let data = vec![lun as u8; BYTES];
            host.result(host.write(lun, BYTES, &data)).await.unwrap();
            assert!(disk.bytes(BYTES, BYTES) == data);
            assert!(host.result(host.read(lun, 0, BYTES)).await.unwrap() == disk.bytes(0, BYTES));
        }
        host.log_out();
        initiator.await.unwrap();
        group.await.unwrap();
        for target in rig.targets {
            target.await.unwrap();
        }
    });
}
