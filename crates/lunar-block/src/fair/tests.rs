//! Tests of the fair sharing of a device.

use super::*;
use crate::contract::Contract;
use crate::{Effect, Fault, FaultDevice, FaultOperation, MemoryDevice, MemoryOwner};
use std::collections::{HashMap, VecDeque};

const BLOCK: usize = 512;

type Reading = Pin<Box<dyn Future<Output = Result<Buffer, ErrorKind>>>>;

/// A fair device whose commands hang until they are released, in a runtime.
struct Rig {
    faults: Arc<FaultDevice>,
    device: Arc<FairDevice>,
    pool: BufferPool,
}

impl Rig {
    fn new() -> Self {
        let memory = MemoryDevice::new(16 << 20, 512, 512).unwrap();
        let faults = FaultDevice::new(Arc::new(memory), 0);
        let device = FairDevice::new(Arc::<FaultDevice>::clone(&faults));
        Self { faults, device, pool: BufferPool::default() }
    }

    fn hang(&self, operation: FaultOperation) {
        self.faults.inject(Fault::new(Effect::Hang).on(operation));
    }

    /// Number of commands at the inner device.
    fn hanging(&self) -> usize {
        self.faults.hanging()
    }

    /// Begins a read of `bytes` by this owner.
    fn read_bytes(&self, owner: &Arc<MemoryOwner>, bytes: usize) -> Reading {
        let (device, buffer) = (Arc::clone(&self.device), self.pool.take(bytes));
        let context = IoContext::new(owner);
        let mut read: Reading = Box::pin(async move {
            let range = BlockRange::new(0, (bytes / BLOCK) as u64);
            context.scope(device.read(range, buffer)).await.map_err(|error| error.kind)
        });
        assert!((&mut read).now_or_never().is_none());
        read
    }

    fn read(&self, owner: &Arc<MemoryOwner>) -> Reading {
        self.read_bytes(owner, BLOCK)
    }

    /// Lets tasks run that finish dropped commands.
    async fn settle(&self) {
        for _ in 0..8 {
            tokio::task::yield_now().await;
        }
    }
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    runtime.enable_time().start_paused(true).build().unwrap().block_on(future)
}

fn owner() -> Arc<MemoryOwner> {
    Arc::default()
}

/// Goal: the device keeps the contract of the inner one.
#[test]
fn contract() {
    Contract::new(&|shape| {
        let (size, physical) = (shape.size_bytes(), shape.physical_block_bytes);
        FairDevice::new(Arc::new(MemoryDevice::new(size, shape.block_bytes, physical).unwrap()))
    })
    .run();
}

/// Fault: a LUN of another target had one queue for all hosts. A host with a thousand commands in
/// it kept the eight of another host waiting. Method: all commands hang.
#[test]
fn commands_of_one_owner_leave_places_for_others() {
    block_on(async {
        let rig = Rig::new();
        rig.hang(FaultOperation::Read);
        let (first, second) = (owner(), owner());
        let many: Vec<Reading> = (0..1000).map(|_| rig.read(&first)).collect();
        assert_eq!(rig.hanging(), 1 + COMMANDS.shared_max / 2);
        assert_eq!(rig.device.commands.waiting(), 1000 - rig.hanging());
        let before = rig.hanging();
        let few: Vec<Reading> = (0..8).map(|_| rig.read(&second)).collect();
        assert_eq!(rig.hanging(), before + 8, "they do not wait");
        let others: Vec<Reading> = (0..100).map(|_| rig.read(&owner())).collect();
        assert_eq!(rig.device.commands.running(), COMMANDS.owners_max + COMMANDS.shared_max);
        assert_eq!(rig.hanging(), COMMANDS.owners_max + COMMANDS.shared_max);
        drop((many, few, others));
    });
}

/// Goal: while another owner is active, an owner with many commands has few in progress, so that
/// the commands of the other owner do not wait behind them in the device; the queue serves the
/// owners alternately.
#[test]
fn owners_take_turns() {
    block_on(async {
        let rig = Rig::new();
        rig.hang(FaultOperation::Read);
        let (first, second) = (owner(), owner());
        let few = rig.read(&second);
        let mut many: Vec<Reading> = (0..100).map(|_| rig.read(&first)).collect();
        assert_eq!(rig.hanging(), 1 + COMMANDS.contended_max);
        let more: Vec<Reading> = (0..100).map(|_| rig.read(&second)).collect();
        assert_eq!(rig.hanging(), 2 * COMMANDS.contended_max);
        // When the commands in progress have ended, the next commands of both owners begin.
        rig.faults.release();
        for read in &mut many[..COMMANDS.contended_max] {
            read.await.unwrap();
        }
        assert_eq!(rig.device.commands.running(), 2 * COMMANDS.contended_max);
        drop((few, many, more));
    });
}

/// Takes places for commands of this owner until none is free.
fn fill(queue: &Arc<FairQueue>, owner: &Arc<MemoryOwner>, places: &mut VecDeque<Place>) {
    places.extend(std::iter::from_fn(|| queue.enter(Some(Arc::clone(owner)), 512, false).ok()));
}

/// Fault: eight hosts that always had maps waiting occupied all places of owners forever, and a
/// ninth host got none. Goal: if there are more owners than places, each owner gets a place in
/// turn.
#[test]
fn owners_do_not_keep_their_places() {
    for (limits, owners) in [(MAPS, 9), (MAPS, 40), (COMMANDS, 150)] {
        let queue = FairQueue::new(limits);
        let owners: Vec<_> = (0..owners).map(|_| owner()).collect();
        let (mut running, mut waiting) = (VecDeque::new(), Vec::new());
        let mut counts = HashMap::new();
        let enter = |at: usize, running: &mut VecDeque<_>, waiting: &mut Vec<_>| {
            let entered = queue.enter(Some(Arc::clone(&owners[at])), 0, false);
            entered.map_or_else(
                |queued| waiting.push((at, queued)),
                |place| running.push_back((at, place)),
            );
        };
        for at in 0..owners.len() {
            (0..8).for_each(|_| enter(at, &mut running, &mut waiting));
        }
        // The commands end in the order in which they began, and a new one follows each.
        for _ in 0..20 * owners.len() {
            assert!(queue.running() <= limits.owners_max + limits.shared_max);
            let (at, place) = running.pop_front().unwrap();
            *counts.entry(at).or_insert(0) += 1;
            enter(at, &mut running, &mut waiting);
            drop(place);
            waiting.retain_mut(|(at, queued)| {
                let Ok(admitted) = queued.admitted.try_recv() else { return true };
                running.push_back((*at, admitted.unwrap()));
                false
            });
        }
        let counts: Vec<_> = (0..owners.len()).map(|at| counts.get(&at).copied()).collect();
        assert!(counts.iter().all(|count| (10..=30).contains(&count.unwrap_or(0))), "{counts:?}");
    }
}

/// Fault: a host with eleven reads a second made the device count as contended for all others all
/// the time: their limit fell from 41 commands to 16, and a host that used a LUN with 10 ms of
/// latency reached 39 % of its former reads. Goal: the limit of an owner depends on the share of
/// time in which other owners have commands, and these always find a free place.
#[test]
fn owners_that_seldom_use_the_device_limit_others_little() {
    let alone_max = 1 + COMMANDS.shared_max / 2;
    for (busy, idle, range) in [(10, 90, 37..alone_max), (50, 50, 28..37), (100, 1, 26..28)] {
        block_on(async {
            let queue = FairQueue::new(COMMANDS);
            let (heavy, light) = (owner(), owner());
            let millis = std::time::Duration::from_millis;
            for _ in 0..20 {
                let place = queue.enter(Some(Arc::clone(&light)), 512, false).unwrap();
                tokio::time::advance(millis(busy)).await;
                drop(place);
                tokio::time::advance(millis(idle)).await;
            }
            let mut places = VecDeque::new();
            let place = queue.enter(Some(Arc::clone(&light)), 512, false);
            tokio::time::advance(millis(busy / 2)).await;
            fill(&queue, &heavy, &mut places);
            assert!(range.contains(&places.len()), "{busy} ms: {}", places.len());
            assert!(queue.enter(Some(Arc::clone(&light)), 512, false).is_ok());
            drop(place);
            tokio::time::advance(millis(1000)).await;
            fill(&queue, &heavy, &mut places);
            assert_eq!(places.len(), alone_max, "the other owner is gone");
        });
    }
}

/// Fault: the limit of an owner depended on the durations of other owners' commands. If a second
/// host sent short commands, a host with many commands was allowed 41 of them; a host that
/// alternated between short and long commands halved the limit of another. Goal: the limit does not
/// depend on durations. Method: one owner always has one command in progress, which takes 1 ms or
/// 20 ms; another one begins as many as the limit allows.
#[test]
fn limits_do_not_follow_the_times_of_commands() {
    block_on(async {
        let queue = FairQueue::new(COMMANDS);
        let (heavy, light) = (owner(), owner());
        let begin = || queue.enter(Some(Arc::clone(&light)), 512, false).unwrap();
        let (mut place, mut places) = (begin(), VecDeque::new());
        for step in 0..400 {
            fill(&queue, &heavy, &mut places);
            assert_eq!(places.len(), COMMANDS.contended_max, "step {step}");
            let millis = if step / 100 % 2 == 0 { 1 } else { 20 };
            tokio::time::advance(std::time::Duration::from_millis(millis)).await;
            drop(place);
            place = begin();
            places.pop_front();
        }
    });
}

/// Fault: a host that always had one command in progress, however short, reduced the limit of
/// another host from 41 commands to 16. Goal: the limits under contention are more than half of the
/// limits without it.
#[test]
fn limits_beside_others_are_more_than_half() {
    for limits in [COMMANDS, MAPS] {
        let alone_max = 1 + limits.shared_max / 2;
        assert!(2 * limits.contended_max > alone_max, "{limits:?}");
        assert!(2 * limits.contended_bytes_max > limits.owner_bytes_max, "{limits:?}");
    }
}

/// Goal: the data in progress is limited, but one command of any length may run.
#[test]
fn data_in_progress_is_limited() {
    block_on(async {
        let rig = Rig::new();
        rig.hang(FaultOperation::Read);
        let (first, second) = (owner(), owner());
        let many: Vec<Reading> = (0..100).map(|_| rig.read_bytes(&first, 1 << 20)).collect();
        assert_eq!(rig.hanging(), COMMANDS.owner_bytes_max >> 20);
        let long: Vec<Reading> = (0..2).map(|_| rig.read_bytes(&second, 16 << 20)).collect();
        assert_eq!(rig.hanging(), (COMMANDS.owner_bytes_max >> 20) + 1);
        drop((many, long));

        let rig = Rig::new();
        rig.hang(FaultOperation::Read);
        let other = rig.read(&second);
        let many: Vec<Reading> = (0..100).map(|_| rig.read_bytes(&first, 1 << 20)).collect();
        assert_eq!(rig.hanging(), 1 + (COMMANDS.contended_bytes_max >> 20));
        drop((other, many));
    });
}

/// Fault: while four hosts had one WRITE of 8 MiB each in progress, every other host could have
/// only one command at a time, even one of 4 KiB. Goal: while much data is in progress, an owner
/// may begin commands within an even share of the limit.
#[test]
fn long_commands_leave_small_ones_their_share() {
    block_on(async {
        let rig = Rig::new();
        rig.hang(FaultOperation::Read);
        let heavy: Vec<_> = (0..4).map(|_| owner()).collect();
        let long: Vec<Reading> = heavy
            .iter()
            .flat_map(|owner| [(); 2].map(|()| rig.read_bytes(owner, 8 << 20)))
            .collect();
        assert_eq!(rig.hanging(), heavy.len(), "{} MiB", COMMANDS.bytes_max >> 20);
        let small = owner();
        let many: Vec<Reading> = (0..100).map(|_| rig.read(&small)).collect();
        assert_eq!(rig.hanging(), heavy.len() + COMMANDS.contended_max);
        let bulk = owner();
        let pieces: Vec<Reading> = (0..100).map(|_| rig.read_bytes(&bulk, 1 << 20)).collect();
        let share = COMMANDS.bytes_max / 6;
        let begun = rig.hanging() - heavy.len() - COMMANDS.contended_max;
        assert_eq!(begun, COMMANDS.contended_bytes_max.min(share).div_ceil(1 << 20));
        drop((long, many, pieces));
    });
}

/// Goal: a waiting command that is dropped leaves the queue; one in progress keeps its place until
/// the inner device has completed it.
#[test]
fn dropped_commands() {
    block_on(async {
        let rig = Rig::new();
        rig.hang(FaultOperation::Read);
        let owner = owner();
        let many: Vec<Reading> = (0..100).map(|_| rig.read(&owner)).collect();
        let running = rig.hanging();
        drop(many);
        rig.settle().await;
        assert_eq!(rig.device.commands.waiting(), 0);
        assert_eq!(rig.hanging(), running, "the inner device still works on them");
        assert_eq!(rig.device.commands.running(), running);
        let later = rig.read(&owner);
        assert_eq!(rig.device.commands.waiting(), 1, "their places are in use");
        rig.faults.heal();
        rig.faults.release();
        rig.settle().await;
        later.await.unwrap();
        assert_eq!((rig.hanging(), rig.device.commands.running()), (0, 0));
        assert_eq!(rig.pool.in_use_bytes(), 0);
    });
}

/// Goal: a change that waits can be cancelled, and one in progress cannot.
#[test]
fn waiting_changes_can_be_cancelled() {
    block_on(async {
        let rig = Rig::new();
        rig.hang(FaultOperation::Write);
        let (owner, mut writes) = (owner(), Vec::new());
        for _ in 0..100 {
            let (context, device) = (IoContext::new(&owner), Arc::clone(&rig.device));
            let scoped = Arc::clone(&context);
            let mut write = Box::pin(async move {
                let data = Bytes::from(vec![1; BLOCK]);
                scoped.scope(device.write(BlockRange::new(0, 1), data, false)).await
            });
            assert!((&mut write).now_or_never().is_none());
            writes.push((context, write));
        }
        let running = rig.hanging();
        assert!(!writes[0].0.cancel(), "it is at the inner device");
        assert!(writes[running].0.cancel());
        assert!(writes[99].0.cancel());
        let (_, mut last) = writes.remove(98);
        rig.faults.heal();
        rig.faults.release();
        for (_, write) in writes.iter_mut().take(running) {
            write.await.unwrap();
        }
        let mut rest = writes.split_off(running);
        for (context, write) in &mut rest {
            assert_eq!(write.await.is_ok(), !context.cancel() || context.begin());
        }
        (&mut last).await.unwrap();
    });
}

/// A `ForeignWaiters` whose answer a test sets.
#[derive(Debug, Default)]
struct Switch(std::sync::atomic::AtomicBool);

impl crate::ForeignWaiters for Switch {
    fn are_waiting(&self) -> bool {
        self.0.load(std::sync::atomic::Ordering::SeqCst)
    }
}

/// Goal: a command that others wait for comes before the others of its owner, also if it becomes
/// urgent while it waits.
#[test]
fn urgent_commands_come_first() {
    block_on(async {
        let rig = Rig::new();
        rig.hang(FaultOperation::Read);
        let owner = owner();
        let mut many: Vec<Reading> = (0..100).map(|_| rig.read(&owner)).collect();
        let running = rig.hanging();
        let (switch, device, buffer) =
            (Arc::<Switch>::default(), Arc::clone(&rig.device), rig.pool.take(BLOCK));
        let context = IoContext::with_foreign_waiters(&owner, Some(Arc::clone(&switch) as _));
        let read = context.scope(device.read(BlockRange::new(0, 1), buffer));
        let mut read = std::pin::pin!(read);
        assert!(read.as_mut().now_or_never().is_none());
        switch.0.store(true, std::sync::atomic::Ordering::SeqCst);
        assert!(read.as_mut().now_or_never().is_none());
        rig.faults.heal();
        rig.faults.release();
        (&mut many[0]).await.unwrap();
        read.await.unwrap();
        assert_eq!(rig.device.commands.waiting(), 99 - running);
        drop(many);
    });
}

/// Goal: when a command fails because the device was unreachable for the whole time that the
/// command waits, queued commands that have waited as long fail too, and later ones do not.
#[test]
fn commands_fail_that_waited_as_long_as_one_that_failed() {
    block_on(async {
        let rig = Rig::new();
        rig.hang(FaultOperation::Read);
        let first = owner();
        let mut many: Vec<Reading> = (0..100).map(|_| rig.read(&first)).collect();
        let running = rig.hanging();
        rig.faults.heal();
        let disconnected =
            Fault::new(Effect::Fail(ErrorKind::Disconnected)).on(FaultOperation::Read);
        rig.faults.inject(disconnected);
        rig.faults.release();
        for read in &mut many[..running] {
            read.await.unwrap();
        }
        let kinds = futures_util::future::join_all(many.split_off(running)).await;
        assert!(kinds.iter().all(|read| matches!(read, Err(ErrorKind::Disconnected))));
        assert_eq!(rig.device.commands.waiting(), 0);
        let seen = rig.faults.seen(FaultOperation::Read);
        assert!(seen < 100, "{seen} commands were sent: the others failed without");
    });
}

/// A device with a count of lost writes.
#[derive(Debug)]
struct Losing {
    inner: Arc<FaultDevice>,
    losses: std::sync::atomic::AtomicU64,
}

impl BlockDevice for Losing {
    fn name(&self) -> &str {
        self.inner.name()
    }
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }
    fn read(&self, range: BlockRange, into: Buffer) -> BoxFuture<'_, Result<Buffer, Error>> {
        self.inner.read(range, into)
    }
    fn write(
        &self,
        range: BlockRange,
        from: Bytes,
        durable: bool,
    ) -> BoxFuture<'_, Result<(), Error>> {
        self.inner.write(range, from, durable)
    }
    fn flush(&self) -> BoxFuture<'_, Result<(), Error>> {
        self.inner.flush()
    }
    fn cache_losses(&self) -> Option<u64> {
        Some(self.losses.load(std::sync::atomic::Ordering::SeqCst))
    }
    fn io_tier(&self) -> String {
        self.inner.io_tier()
    }
}

/// Goal: a flush that waits while a loss is reported to another flush fails as well.
#[test]
fn a_loss_while_a_flush_waits_fails_it() {
    block_on(async {
        let rig = Rig::new();
        rig.hang(FaultOperation::Flush);
        let losing = Arc::new(Losing { inner: Arc::clone(&rig.faults), losses: 0.into() });
        let device = FairDevice::new(Arc::<Losing>::clone(&losing));
        let mut flushes: Vec<_> = (0..100).map(|_| device.flush()).collect();
        for flush in &mut flushes {
            assert!(flush.now_or_never().is_none());
        }
        losing.losses.store(1, std::sync::atomic::Ordering::SeqCst);
        rig.faults.heal();
        rig.faults.release();
        for flushed in futures_util::future::join_all(flushes).await {
            assert_eq!(flushed.map_err(|error| error.kind), Err(ErrorKind::Medium));
        }
        device.flush().await.unwrap();
    });
}

/// Goal: maps have their own limit and use no places of other commands.
#[test]
fn maps_do_not_delay_other_commands() {
    block_on(async {
        let rig = Rig::new();
        rig.hang(FaultOperation::Status);
        let owner = owner();
        let mut maps = HashMap::new();
        for number in 0..1000 {
            let (context, device) = (IoContext::new(&owner), Arc::clone(&rig.device));
            let mut map = Box::pin(async move {
                let status = device.sparse().unwrap().status(BlockRange::new(0, 1), 1);
                context.scope(status).await.map(drop)
            });
            assert!((&mut map).now_or_never().is_none());
            maps.insert(number, map);
        }
        assert_eq!(rig.hanging(), 1 + MAPS.shared_max / 2);
        let buffer = rig.pool.take(BLOCK);
        let context = IoContext::new(&owner);
        let read = context.scope(rig.device.read(BlockRange::new(0, 1), buffer));
        read.now_or_never().expect("it does not wait").unwrap();
        drop(maps);
    });
}

/// Fault: a command that waited in a remote disk took twice the 4 KiB that a server charges for it.
#[test]
fn waiting_commands_are_small() {
    let rig = Rig::new();
    let (device, range) = (&*rig.device, BlockRange::new(0, 1));
    let sparse = device.sparse().unwrap();
    let sizes = [
        size_of_val(&*device.read(range, rig.pool.take(BLOCK))),
        size_of_val(&*device.write(range, Bytes::new(), false)),
        size_of_val(&*device.flush()),
        size_of_val(&*sparse.status(range, 1)),
        size_of_val(&*sparse.unmap(range, false)),
    ];
    assert!(sizes.iter().all(|bytes| *bytes <= 512), "{sizes:?}");
}

/// Fault: a clear counted as no data, so one owner could have dozens of long ones in progress.
/// Goal: a clear counts as data of its length, up to a limit.
#[test]
fn clears_count_as_data() {
    block_on(async {
        for (blocks, expected) in [(1 << 14, 4), (8, 1 + COMMANDS.shared_max / 2)] {
            let rig = Rig::new();
            rig.hang(FaultOperation::WriteZeroes);
            let owner = owner();
            let clears: Vec<_> = (0..100)
                .map(|_| {
                    let (device, context) = (Arc::clone(&rig.device), IoContext::new(&owner));
                    let mut clear = Box::pin(async move {
                        let (range, clear) =
                            (BlockRange::new(0, blocks), Clear::Zero { may_unmap: false });
                        let sparse = device.sparse().unwrap();
                        context.scope(sparse.clear_piece(vec![range], clear, false)).await.is_ok()
                    });
                    assert!((&mut clear).now_or_never().is_none());
                    clear
                })
                .collect();
            assert_eq!(rig.hanging(), expected);
            drop(clears);
        }
    });
}
