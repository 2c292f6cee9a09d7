//! Comparison of commands that run without waiting with the same commands on the general path.

use super::*;
use crate::detached_writes::DetachedWriteGuard;
use crate::disk_unit::{CacheMode, DiskUnit, DiskUnitOptions};
use crate::peer_network::PeerNetwork;
use crate::ranges::{RangeGuard, RangeQueued};
use crate::session::tests::{LUNS_CHANGED, Rig};
use crate::thin_space::HeldWriteGuard;
use bytes::Bytes;
use lunar_block::{BlockDevice, BlockRange, BoxFuture, Geometry, MemoryBudget, MemoryDevice};
use lunar_iscsi::connection::target::HeaderCdb;
use lunar_iscsi::pdu::TaskAttribute;
use lunar_scsi::attention::{Attention, LogicalTime};
use lunar_scsi::long_operation::{LongOperation, OperationKind, OperationWork};
use lunar_scsi::plan::{LbaRange, NexusId};
use lunar_scsi::unit::{InitiatorPort, TargetPort};
use lunar_wire::Lun;
use proptest::prelude::*;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::task::{Wake, Waker};

const BLOCKS: u64 = 8;
const BLOCK_BYTES: usize = 512;
/// Another nexus of the units.
const OTHER: NexusId = NexusId(u64::MAX);

/// A disk in memory that counts its syncs. One block may be bad.
#[derive(Debug)]
struct Disk {
    memory: MemoryDevice,
    /// True when it transfers without waiting if it can.
    is_immediate: AtomicBool,
    bad: Mutex<Option<u64>>,
    flushes: AtomicUsize,
    /// Number of transfers without waiting.
    immediate: AtomicUsize,
}

impl Disk {
    fn check(&self, range: BlockRange) -> Result<(), lunar_block::Error> {
        let is_in = |bad: u64| (range.lba..range.lba + range.count).contains(&bad);
        if self.bad.lock().unwrap().is_some_and(is_in) {
            let kind = lunar_block::ErrorKind::Medium;
            return Err(lunar_block::Error::new(kind, self.name(), "a bad block").at(range));
        }
        Ok(())
    }

    fn try_now(&self, range: BlockRange, transfer: impl FnOnce() -> bool) -> bool {
        let done = self.is_immediate.load(SeqCst) && self.check(range).is_ok() && transfer();
        self.immediate.fetch_add(done.into(), SeqCst);
        done
    }
}

impl BlockDevice for Disk {
    fn name(&self) -> &str {
        self.memory.name()
    }

    fn geometry(&self) -> Geometry {
        self.memory.geometry()
    }

    fn read(
        &self,
        range: BlockRange,
        into: Buffer,
    ) -> BoxFuture<'_, Result<Buffer, lunar_block::Error>> {
        Box::pin(async move {
            self.check(range)?;
            self.memory.read(range, into).await
        })
    }

    fn try_read_now(&self, range: BlockRange, into: &mut [u8]) -> bool {
        self.try_now(range, || self.memory.try_read_now(range, into))
    }

    fn write(
        &self,
        range: BlockRange,
        from: Bytes,
        durable: bool,
    ) -> BoxFuture<'_, Result<(), lunar_block::Error>> {
        Box::pin(async move {
            self.check(range)?;
            self.memory.write(range, from, durable).await
        })
    }

    fn try_write_now(&self, range: BlockRange, from: &[u8], durable: bool) -> bool {
        self.try_now(range, || self.memory.try_write_now(range, from, durable))
    }

    fn flush(&self) -> BoxFuture<'_, Result<(), lunar_block::Error>> {
        self.flushes.fetch_add(1, SeqCst);
        self.memory.flush()
    }

    fn io_tier(&self) -> String {
        self.memory.io_tier()
    }
}

/// A READ or WRITE.
#[derive(Clone, Debug)]
struct Transfer {
    writes: bool,
    /// Index of the length of its CDB.
    form: usize,
    fua: bool,
    lba: u8,
    count: u8,
    /// Blocks that the initiator announces.
    announced: u8,
    attribute: TaskAttribute,
    /// Data that comes with it; a read has no use for it.
    data: SentData,
    /// True when it has entered its task set before it is started.
    has_permit: bool,
    /// Changes after the request for its data, or after its start.
    between: Vec<Change>,
}

/// Data that comes with a command.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum SentData {
    None,
    Part,
    All,
}

/// A change of the state of a unit or of the connection.
#[derive(Clone, Debug)]
enum Change {
    /// Claims blocks: exclusively, or blocked for readers, or shared.
    Claim {
        lba: u8,
        count: u8,
        exclusive: bool,
        blocks_readers: bool,
    },
    Release,
    Reserve,
    ReleaseReservation,
    Protect(bool),
    Resize(u8),
    BeginOperation,
    FailOperation,
    EndOperation,
    Recover,
    /// Detaches as many writes as one owner may have: this one, or another one.
    Detach {
        own: bool,
    },
    Reattach,
    /// Holds a write: of this nexus, or of another one.
    Hold {
        lba: u8,
        own: bool,
    },
    EndHold,
    Break(Option<u8>),
    /// Keeps replies in memory, or drops those that were kept.
    Keep(bool),
}

#[derive(Clone, Debug)]
enum Step {
    Transfer(Transfer),
    Change(Change),
}

#[derive(Debug, PartialEq)]
enum Event {
    Wants(TaskId, u32),
    Done(TaskId, Outcome),
}

/// Whether a task asked to be polled again.
#[derive(Default)]
struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, SeqCst);
    }
}

/// The tasks of a connection at one unit.
struct TaskQueue {
    session: Arc<Session>,
    disk: Arc<Disk>,
    unit: Arc<DiskUnit>,
    nexus: ItlNexus,
    tasks: Tasks,
    other_owner: WorkMemory,
    started: u64,
    claims: VecDeque<Claim>,
    detached: Vec<DetachedWriteGuard>,
    held: Vec<HeldWriteGuard>,
    keeps: bool,
    kept: Vec<Bytes>,
}

enum Claim {
    Held { _guard: RangeGuard },
    Queued { _queued: RangeQueued },
}

impl TaskQueue {
    /// Creates tasks whose data has room for a few `buffers` of a block, at a new unit.
    fn new(rig: &Rig, session: &Arc<Session>, write_back: bool, buffers: usize) -> Self {
        let cache = if write_back { CacheMode::WriteBack } else { CacheMode::WriteThrough };
        let memory = MemoryDevice::new(BLOCKS * BLOCK_BYTES as u64, 512, 4096).unwrap();
        let disk = Arc::new(Disk {
            memory,
            is_immediate: AtomicBool::new(true),
            bad: Mutex::default(),
            flushes: AtomicUsize::new(0),
            immediate: AtomicUsize::new(0),
        });
        let device = Arc::<Disk>::clone(&disk);
        let options = DiskUnitOptions::new(uuid::Uuid::from_u128(1), device);
        let unit = DiskUnit::open(DiskUnitOptions { cache, ..options }).unwrap();
        let initiator = InitiatorPort { name: "iqn.other".into(), isid: [0; 6] };
        unit.scsi().attach(OTHER, initiator, port());
        // Owners of this queue only, so that no other queue has their memory.
        let network = || PeerNetwork::of("127.0.0.1".parse().unwrap());
        let queue = Arc::as_ptr(&unit).addr();
        let accounts = |user: &str| {
            let user = format!("{user} {queue}");
            rig.services().memory.accounts(network(), Some(user))
        };
        let other = accounts("other").data_in;
        let other_owner = WorkMemory { buffers: other, wait_max: Duration::from_secs(1) };
        let bytes = buffers * BufferPool::charged_bytes(BLOCK_BYTES);
        let limits = Limits { data_in_bytes: bytes, data_out_bytes: bytes, ..Limits::default() };
        Self {
            session: Arc::clone(session),
            disk,
            nexus: ItlNexus::new(Arc::<DiskUnit>::clone(&unit), LogicalTime::next()),
            unit,
            tasks: Tasks::new(Arc::clone(&rig.services().tasks), &limits, &accounts("this")),
            other_owner,
            started: 0,
            claims: VecDeque::new(),
            detached: Vec::new(),
            held: Vec::new(),
            keeps: false,
            kept: Vec::new(),
        }
    }

    fn step(&mut self, step: &Step) -> Vec<Event> {
        let mut events = Vec::new();
        match step {
            Step::Transfer(transfer) => self.start(transfer, &mut events),
            Step::Change(change) => self.change(change),
        }
        self.poll(&mut events);
        // Commands that do not wait for each other may end in any order.
        events.sort_by_key(|event| match event {
            Event::Wants(task, _) => (*task, false),
            Event::Done(task, _) => (*task, true),
        });
        events
    }

    fn start(&mut self, transfer: &Transfer, events: &mut Vec<Event>) {
        self.started += 1;
        let task = transfer.task(TaskId(self.started));
        let sent_bytes = match transfer.data {
            SentData::None => 0,
            SentData::Part => task.expected_bytes / 2,
            SentData::All => task.expected_bytes,
        };
        if sent_bytes > 0 {
            self.tasks.reserve(task.id, task.expected_bytes);
            self.fill(task.id, sent_bytes);
        }
        let permit = transfer.has_permit.then(|| self.nexus.task_set.enter(task.attribute));
        let view = self.session.view();
        let command_context = CommandContext { session: &self.session, view: &view };
        let started = self.tasks.start(&command_context, Some(&self.nexus), &task, permit);
        drop(view);
        transfer.between.iter().for_each(|change| self.change(change));
        if let Some(input) = started {
            self.take(input, events);
        }
    }

    fn fill(&mut self, task: TaskId, bytes: u32) {
        self.tasks.room(task, 0, bytes as usize).fill(task.0 as u8);
    }

    /// Handles a result of the tasks; sends the data that a task wants.
    fn take(&mut self, input: Input, events: &mut Vec<Event>) {
        match input {
            Input::Wants { task, bytes, .. } => {
                events.push(Event::Wants(task, bytes));
                self.fill(task, bytes);
                if let Some(done) = self.tasks.run(&self.session, task) {
                    self.take(done, events);
                }
            }
            Input::Done { task, outcome } => {
                if self.keeps {
                    self.kept.push(outcome.data_in.clone());
                }
                // The memory of the data is free unless it is kept.
                let data_in = Bytes::copy_from_slice(&outcome.data_in);
                events.push(Event::Done(task, Outcome { data_in, ..outcome }));
            }
            other => panic!("{other:?}"),
        }
    }

    /// Polls the tasks until none continues.
    fn poll(&mut self, events: &mut Vec<Event>) {
        let woken = Arc::<Woken>::default();
        let waker = Waker::from(Arc::clone(&woken));
        let mut context = Context::from_waker(&waker);
        loop {
            woken.0.store(false, SeqCst);
            let mut inputs = self.tasks.start_deferred(&self.session, &mut context);
            inputs.extend(self.tasks.poll_finished(&mut context));
            if inputs.is_empty() && !woken.0.load(SeqCst) {
                return;
            }
            inputs.into_iter().for_each(|input| self.take(input, events));
        }
    }

    fn change(&mut self, change: &Change) {
        let unit = Arc::clone(&self.unit);
        match *change {
            Change::Claim { lba, count, exclusive, blocks_readers } => {
                let queued = unit.ranges.queue(range(lba, count), exclusive);
                self.claims.push_back(if queued.is_granted() {
                    let guard = queued.granted().now_or_never().unwrap();
                    if blocks_readers {
                        guard.block_readers();
                    }
                    Claim::Held { _guard: guard }
                } else {
                    Claim::Queued { _queued: queued }
                });
            }
            Change::Release => drop(self.claims.pop_front()),
            Change::Reserve => self.send_other(&[0x16, 0, 0, 0, 0, 0], &[]),
            Change::ReleaseReservation => self.send_other(&[0x17, 0, 0, 0, 0, 0], &[]),
            Change::Protect(protect) => {
                let mut page = [0x0a, 0x0a, 0x22, 0x10, 0, 0, 0, 0, 0, 0, 0, 0];
                page[4] = u8::from(protect) << 3;
                let list = [&[0; 4][..], &page].concat();
                self.send_other(&[0x15, 0x10, 0, 0, list.len() as u8, 0], &list);
            }
            Change::Resize(blocks) => unit.scsi().resize(blocks.into()),
            Change::BeginOperation => {
                let (kind, work) = (OperationKind::SANITIZE, OperationWork::Zero);
                let operation = LongOperation { kind, unrestricted_exit: true, work };
                let _ = unit.scsi().begin_operation(operation, OTHER); // one may run already
            }
            Change::FailOperation => unit.scsi().fail_operation(),
            Change::EndOperation => unit.scsi().end_operation(),
            Change::Recover => {
                let mut scsi = unit.scsi();
                unit.recoveries.fetch_add(1, SeqCst);
                scsi.raise(Attention::MEDIUM_MAY_HAVE_CHANGED.0, None);
            }
            Change::Detach { own } => {
                let memory = if own { &self.tasks.work } else { &self.other_owner };
                let owner = memory.buffers.owner();
                while !unit.detached_writes.are_too_many(owner) {
                    self.detached.push(DetachedWriteGuard::new(Arc::clone(&unit), owner));
                }
            }
            Change::Reattach => self.detached.clear(),
            Change::Hold { lba, own } => {
                let nexus = if own { self.session.nexus } else { OTHER };
                self.held.extend(unit.hold(nexus, range(lba, 1).into()));
            }
            Change::EndHold => self.held.clear(),
            Change::Break(block) => *self.disk.bad.lock().unwrap() = block.map(u64::from),
            Change::Keep(keeps) => {
                self.keeps = keeps;
                if !keeps {
                    self.kept.clear();
                }
            }
        }
    }

    /// Executes a command of the other nexus, once its unit attentions are reported.
    fn send_other(&self, cdb: &[u8], list: &[u8]) {
        let port = port();
        let context = lunar_scsi::unit::Context::new(&[], &port);
        let mut scsi = self.unit.scsi();
        let plan = loop {
            match scsi.plan(OTHER, &context, cdb) {
                Err(Refusal::Check(sense)) if sense.key == SenseKey::UNIT_ATTENTION => {}
                plan => break plan,
            }
        };
        if let Ok(Plan::Parameters { awaiting, .. }) = plan {
            let done = scsi.resume(OTHER, &context, awaiting, list);
            assert_eq!(done, Ok(Plan::Reply(Vec::new())));
        }
    }

    /// Ends all states for which commands wait. Returns how these ended.
    fn release(&mut self) -> Vec<Event> {
        self.claims.clear();
        self.held.clear();
        self.detached.clear();
        self.step(&Step::Change(Change::Keep(false)))
    }

    /// Lets commands end whose time to wait for memory is over: commands that wait for memory may
    /// wait for each other. Returns how these ended.
    fn end(&mut self) -> Vec<Event> {
        let events = self.step(&Step::Change(Change::Keep(false)));
        assert!(self.tasks.are_quiet() && self.tasks.begun() == 0);
        assert!(self.tasks.buffers.is_empty() && self.tasks.arrived.is_empty());
        let all = self.unit.ranges.lock(range(0, BLOCKS as u8), true).now_or_never();
        assert!(all.is_some(), "no block is locked");
        assert_eq!((self.unit.held_writes(), self.unit.detached_write_count()), (0, 0));
        events
    }

    fn content(&self) -> Vec<u8> {
        let mut content = vec![0; BLOCKS as usize * BLOCK_BYTES];
        assert!(self.disk.memory.try_read_now(BlockRange::new(0, BLOCKS), &mut content));
        content
    }
}

impl Transfer {
    fn task(&self, id: TaskId) -> Task {
        let opcode = [[0x08, 0x28, 0xa8, 0x88], [0x0a, 0x2a, 0xaa, 0x8a]];
        let mut cdb = [0; 16];
        cdb[0] = opcode[usize::from(self.writes)][self.form];
        let (lba_at, count_at) = [(3, 4), (5, 8), (5, 9), (9, 13)][self.form];
        (cdb[lba_at], cdb[count_at]) = (self.lba, self.count);
        if self.form > 0 {
            cdb[1] = u8::from(self.fua) << 3;
        }
        Task {
            id,
            lun: Lun::new(0),
            cdb: HeaderCdb::new(cdb, &[]),
            attribute: self.attribute,
            priority: 0,
            read: !self.writes,
            write: self.writes,
            expected_bytes: u32::from(self.announced) * BLOCK_BYTES as u32,
            expected_read_bytes: None,
            has_all_data: self.writes && self.data == SentData::All && self.announced > 0,
        }
    }
}

fn range(lba: u8, count: u8) -> LbaRange {
    LbaRange { lba: lba.into(), count: count.into() }
}

/// A runtime whose clock stands still.
fn paused() -> tokio::runtime::Runtime {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    runtime.enable_all().start_paused(true).build().unwrap()
}

fn port() -> TargetPort {
    TargetPort { name: "iqn.target".into(), portal_group_tag: 1, relative_id: 1 }
}

fn changes() -> impl Strategy<Value = Change> {
    let lba = 0..BLOCKS as u8;
    let claim = (lba.clone(), 1..3_u8, 0..3_u8).prop_map(|(lba, count, kind)| Change::Claim {
        lba,
        count,
        exclusive: kind == 1,
        blocks_readers: kind == 2,
    });
    let blocks = [BLOCKS as u8 / 2, BLOCKS as u8];
    prop_oneof![
        4 => claim,
        4 => Just(Change::Release),
        1 => Just(Change::Reserve),
        2 => Just(Change::ReleaseReservation),
        2 => prop::sample::select(vec![true, false, false]).prop_map(Change::Protect),
        1 => prop::sample::select(blocks.to_vec()).prop_map(Change::Resize),
        1 => Just(Change::BeginOperation),
        1 => Just(Change::FailOperation),
        3 => Just(Change::EndOperation),
        1 => Just(Change::Recover),
        1 => any::<bool>().prop_map(|own| Change::Detach { own }),
        2 => Just(Change::Reattach),
        2 => (lba.clone(), any::<bool>()).prop_map(|(lba, own)| Change::Hold { lba, own }),
        3 => Just(Change::EndHold),
        1 => prop::option::of(lba).prop_map(Change::Break),
        3 => any::<bool>().prop_map(Change::Keep),
    ]
}

fn transfers() -> impl Strategy<Value = Transfer> {
    let blocks = (0..BLOCKS as u8 + 1, 0..4_u8, prop_oneof![4 => Just(0_i8), 1 => -1..2_i8]);
    let attributes = vec![
        TaskAttribute::SIMPLE,
        TaskAttribute::SIMPLE,
        TaskAttribute::SIMPLE,
        TaskAttribute::ORDERED,
        TaskAttribute::HEAD_OF_QUEUE,
    ];
    let data = prop_oneof![
        3 => Just(SentData::None),
        1 => Just(SentData::Part),
        3 => Just(SentData::All),
    ];
    let flags = (any::<bool>(), prop::bool::weighted(0.2), data, prop::bool::weighted(0.2));
    let between = prop::collection::vec(changes(), 0..2);
    (flags, 0..4_usize, blocks, prop::sample::select(attributes), between).prop_map(
        |((writes, fua, data, has_permit), form, (lba, count, off), attribute, between)| Transfer {
            writes,
            form,
            fua,
            lba,
            count,
            announced: count.saturating_add_signed(off),
            attribute,
            data,
            has_permit,
            between,
        },
    )
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        3 => transfers().prop_map(Step::Transfer),
        2 => changes().prop_map(Step::Change),
    ];
    prop::collection::vec(step, 0..40)
}

proptest! {
    /// Goal: a command that runs without waiting ends as on the general path, and only if it does
    /// not have to wait there. Method: random commands and changes of all states that the general
    /// path checks or waits for, with two equal units. The disk of one of them transfers without
    /// waiting, that of the other one never does. After each step the same commands have ended,
    /// with the same results; in the end the disks have the same content, and as many syncs.
    #[test]
    fn commands_end_alike_on_both_paths(
        steps in steps(), write_back: bool, buffers in 1..5_usize,
    ) {
        let rig = Rig::of_units(0);
        let session = rig.log_in(1);
        let runtime = paused();
        let _entered = runtime.enter();
        let mut immediate = TaskQueue::new(&rig, &session, write_back, buffers);
        let mut general = TaskQueue::new(&rig, &session, write_back, buffers);
        general.disk.is_immediate.store(false, SeqCst);
        for step in &steps {
            prop_assert_eq!(immediate.step(step), general.step(step), "{:?}", step);
            prop_assert_eq!(immediate.content(), general.content(), "{:?}", step);
        }
        prop_assert_eq!(immediate.release(), general.release());
        runtime.block_on(tokio::time::advance(immediate.tasks.work.wait_max));
        prop_assert_eq!(immediate.end(), general.end());
        prop_assert_eq!(immediate.content(), general.content());
        let flushes = |queue: &TaskQueue| queue.disk.flushes.load(SeqCst);
        prop_assert_eq!(flushes(&immediate), flushes(&general));
        prop_assert_eq!(general.disk.immediate.load(SeqCst), 0);
    }
}

/// Goal: the comparison above compares two paths. Method: a WRITE and a READ of a unit at rest.
#[test]
fn the_two_paths_are_two() {
    let rig = Rig::of_units(0);
    let session = rig.log_in(1);
    let runtime = paused();
    let _entered = runtime.enter();
    for (is_immediate, data, transfers) in [
        (true, SentData::None, 2),
        (true, SentData::All, 2),
        (false, SentData::None, 0),
        (false, SentData::All, 0),
    ] {
        let mut queue = TaskQueue::new(&rig, &session, false, 1);
        queue.disk.is_immediate.store(is_immediate, SeqCst);
        let transfer = |writes| Transfer {
            writes,
            form: 1,
            fua: false,
            lba: 1,
            count: 1,
            announced: 1,
            attribute: TaskAttribute::SIMPLE,
            data,
            has_permit: false,
            between: Vec::new(),
        };
        let mut last = Event::Wants(TaskId(0), 0);
        // The first command gets the unit attention of the power-on.
        for writes in [false, true, false] {
            last = queue.step(&Step::Transfer(transfer(writes))).pop().unwrap();
        }
        assert!(matches!(last, Event::Done(_, outcome) if outcome.data_in == [2; BLOCK_BYTES][..]));
        assert_eq!(queue.disk.immediate.load(SeqCst), transfers);
        assert!(queue.end().is_empty());
    }
}

/// Fault: REPORT LUNS that ended BUSY for lack of memory cleared the unit attention of changed
/// LUNs, and the initiator kept its old list.
#[test]
fn a_busy_report_of_the_luns_clears_no_attention() {
    const LIMIT_BYTES: usize = 64 << 20;
    const LIST_BYTES: u32 = 8 + 8 * 200;
    let rig = Rig::with_buffers(BufferPool::with_budget(&MemoryBudget::new(LIMIT_BYTES)));
    let _entered = rig.runtime.enter();
    let session = rig.log_in(1);
    let memory = rig.services().memory.accounts(PeerNetwork::of(rig.path().peer.ip()), None);
    let mut tasks = Tasks::new(Arc::clone(&rig.services().tasks), &Limits::default(), &memory);
    Rig::take_attentions(&session, 3); // the power-on
    rig.replace(|target| target.luns.truncate(200));
    let mut cdb = [0; 16];
    cdb[0] = 0xa0;
    cdb[6..10].copy_from_slice(&LIST_BYTES.to_be_bytes());
    let mut report = |id| {
        let task = Task {
            id: TaskId(id),
            lun: Lun::new(3),
            cdb: HeaderCdb::new(cdb, &[]),
            attribute: TaskAttribute::SIMPLE,
            priority: 0,
            read: true,
            write: false,
            expected_bytes: LIST_BYTES,
            expected_read_bytes: None,
            has_all_data: false,
        };
        let view = session.view();
        let asker = CommandContext { session: &session, view: &view };
        let nexus = view.nexus(task.lun).map(|nexus| &**nexus);
        let ended = tasks.start(&asker, nexus, &task, None);
        let mut context = Context::from_waker(Waker::noop());
        match ended.or_else(|| tasks.poll_finished(&mut context)) {
            Some(Input::Done { outcome, .. }) => (outcome.status, outcome.data_in.len()),
            other => panic!("{other:?}"),
        }
    };
    let held = rig.buffers().charge(LIMIT_BYTES);
    assert_eq!(report(1), (Status::BUSY.0, 0));
    assert_eq!(Rig::take_attentions(&session, 3), [LUNS_CHANGED]);
    drop(held);
    rig.replace(|target| target.luns.truncate(199));
    assert_eq!(report(2), (Status::GOOD.0, LIST_BYTES as usize - 8));
    assert_eq!(Rig::take_attentions(&session, 3), []);
    rig.lose(&session);
    rig.end();
}

/// Fault: the answer of a planned command that was cut to its allocation length kept the rest of
/// its memory uncharged while the command waited.
#[test]
fn a_planned_answer_keeps_no_more_than_its_length() {
    let rig = Rig::of_units(0);
    let session = rig.log_in(1);
    let queue = TaskQueue::new(&rig, &session, false, 1);
    let mut answer = vec![1; 4096];
    answer.truncate(4);
    let mut work = Work::Reply(answer);
    assert!(queue.tasks.charge_reply(&mut work).is_ok());
    let Work::Reply(answer) = work else { panic!("{work:?}") };
    assert_eq!((answer.len(), answer.capacity()), (4, 4));
}

/// Goal: a write takes the data that has arrived only if all of it has, and only as much as it
/// writes.
#[test]
fn data_at_hand_is_whole() {
    let rig = Rig::of_units(0);
    let session = rig.log_in(1);
    let mut queue = TaskQueue::new(&rig, &session, false, 8);
    let transfer = Transfer {
        writes: true,
        form: 1,
        fua: false,
        lba: 1,
        count: 2,
        announced: 2,
        attribute: TaskAttribute::SIMPLE,
        data: SentData::All,
        has_permit: false,
        between: Vec::new(),
    };
    let mut taken = |blocks: u64, arrived_blocks: u32, has_all_data: bool| {
        let accepted = AcceptedCommand {
            collect_bytes: blocks as usize * BLOCK_BYTES,
            ..AcceptedCommand::new(Work::Reply(Vec::new()))
        };
        let task = Task { has_all_data, ..transfer.task(TaskId(7)) };
        queue.tasks.reserve(task.id, arrived_blocks * BLOCK_BYTES as u32);
        let data = queue.tasks.data_at_hand(&accepted, &task);
        drop(queue.tasks.take_buffer(task.id));
        data.map(|data| data.split().1.len() / BLOCK_BYTES)
    };
    assert_eq!(taken(2, 2, true), Some(2));
    assert_eq!(taken(1, 2, true), Some(1), "the rest is not written");
    assert_eq!(taken(2, 2, false), None, "it has not all arrived");
    assert_eq!(taken(2, 1, true), None, "it was not all kept");
    assert_eq!(taken(0, 2, true), None, "there is nothing to write");
}
