//! Tests of the fair sharing of a device.

use super::*;
use crate::contract::Contract;
use crate::{Effect, Fault, FaultDevice, FaultOperation, MemoryDevice, MemoryOwner};
use std::collections::{HashMap, VecDeque};

const BLOCK: usize = 512;

type ReadFuture = Pin<Box<dyn Future<Output = Result<Buffer, ErrorKind>>>>;

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
    fn read_bytes(&self, owner: &Arc<MemoryOwner>, bytes: usize) -> ReadFuture {
        let (device, buffer) = (Arc::clone(&self.device), self.pool.take(bytes));
        let context = IoContext::new(owner);
        let mut read: ReadFuture = Box::pin(async move {
            let range = BlockRange::new(0, (bytes / BLOCK) as u64);
            context.scope(device.read(range, buffer)).await.map_err(|error| error.kind)
        });
        assert!((&mut read).now_or_never().is_none());
        read
    }

    fn read(&self, owner: &Arc<MemoryOwner>) -> ReadFuture {
        self.read_bytes(owner, BLOCK)
    }

    /// Lets tasks run that finish dropped commands.
    async fn run_other_tasks(&self) {
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
    Contract::new(&|geometry| {
        let (size, physical) = (geometry.size_bytes(), geometry.physical_block_bytes);
        FairDevice::new(Arc::new(MemoryDevice::new(size, geometry.block_bytes, physical).unwrap()))
    })
    .run();
}

/// Fault: a LUN of another target had one queue for all hosts, so eight commands of one host waited
/// behind a thousand commands of another host. Method: all commands hang.
#[test]
fn one_owner_does_not_take_all_permits() {
    block_on(async {
        let rig = Rig::new();
        rig.hang(FaultOperation::Read);
        let (first, second) = (owner(), owner());
        let many: Vec<ReadFuture> = (0..1000).map(|_| rig.read(&first)).collect();
        assert_eq!(rig.hanging(), 1 + COMMANDS.shared_max / 2);
        assert_eq!(rig.device.commands.waiting(), 1000 - rig.hanging());
        let before = rig.hanging();
        let few: Vec<ReadFuture> = (0..8).map(|_| rig.read(&second)).collect();
        assert_eq!(rig.hanging(), before + 8, "commands of the second owner do not wait");
        let others: Vec<ReadFuture> = (0..100).map(|_| rig.read(&owner())).collect();
        assert_eq!(rig.device.commands.running(), COMMANDS.owners_max + COMMANDS.shared_max);
        assert_eq!(rig.hanging(), COMMANDS.owners_max + COMMANDS.shared_max);
        drop((many, few, others));
    });
}

/// Goal: while another owner is active, an owner with many commands has few in progress, so that
/// the commands of the other owner do not wait behind them in the device; the queue serves the
/// owners alternately.
#[test]
fn owners_are_served_alternately() {
    block_on(async {
        let rig = Rig::new();
        rig.hang(FaultOperation::Read);
        let (first, second) = (owner(), owner());
        let few = rig.read(&second);
        let mut many: Vec<ReadFuture> = (0..100).map(|_| rig.read(&first)).collect();
        assert_eq!(rig.hanging(), 1 + COMMANDS.contended_max);
        let more: Vec<ReadFuture> = (0..100).map(|_| rig.read(&second)).collect();
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

/// Takes permits for commands of this owner until none is free.
fn fill(queue: &Arc<FairQueue>, owner: &Arc<MemoryOwner>, permits: &mut VecDeque<FairPermit>) {
    permits.extend(std::iter::from_fn(|| queue.enter(Some(Arc::clone(owner)), 512, false).ok()));
}

/// Fault: eight hosts that always had allocation queries waiting held all permits for first
/// commands forever, and a ninth host got none. Goal: if there are more owners than permits, each
/// owner gets a permit in turn.
#[test]
fn owners_do_not_keep_their_permits() {
    for (limits, owners) in [(ALLOCATION_QUERIES, 9), (ALLOCATION_QUERIES, 40), (COMMANDS, 150)] {
        let queue = FairQueue::new(limits);
        let owners: Vec<_> = (0..owners).map(|_| owner()).collect();
        let (mut running, mut waiting) = (VecDeque::new(), Vec::new());
        let mut counts = HashMap::new();
        let enter = |at: usize, running: &mut VecDeque<_>, waiting: &mut Vec<_>| {
            let entered = queue.enter(Some(Arc::clone(&owners[at])), 0, false);
            entered.map_or_else(
                |queued| waiting.push((at, queued)),
                |permit| running.push_back((at, permit)),
            );
        };
        for at in 0..owners.len() {
            (0..8).for_each(|_| enter(at, &mut running, &mut waiting));
        }
        // The commands end in the order in which they began, and a new one follows each.
        for _ in 0..20 * owners.len() {
            assert!(queue.running() <= limits.owners_max + limits.shared_max);
            let (at, permit) = running.pop_front().unwrap();
            *counts.entry(at).or_insert(0) += 1;
            enter(at, &mut running, &mut waiting);
            drop(permit);
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
/// time in which other owners have commands, and these always find a free permit.
#[test]
fn rarely_active_owners_limit_others_little() {
    let alone_max = 1 + COMMANDS.shared_max / 2;
    for (busy, idle, range) in [(10, 90, 37..alone_max), (50, 50, 28..37), (100, 1, 26..28)] {
        block_on(async {
            let queue = FairQueue::new(COMMANDS);
            let (heavy, light) = (owner(), owner());
            let millis = std::time::Duration::from_millis;
            for _ in 0..20 {
                let permit = queue.enter(Some(Arc::clone(&light)), 512, false).unwrap();
                tokio::time::advance(millis(busy)).await;
                drop(permit);
                tokio::time::advance(millis(idle)).await;
            }
            let mut permits = VecDeque::new();
            let permit = queue.enter(Some(Arc::clone(&light)), 512, false);
            tokio::time::advance(millis(busy / 2)).await;
            fill(&queue, &heavy, &mut permits);
            assert!(range.contains(&permits.len()), "{busy} ms: {}", permits.len());
            assert!(queue.enter(Some(Arc::clone(&light)), 512, false).is_ok());
            drop(permit);
            tokio::time::advance(millis(1000)).await;
            fill(&queue, &heavy, &mut permits);
            assert_eq!(permits.len(), alone_max, "the other owner has been idle for a second");
        });
    }
}

/// Fault: the limit of an owner depended on the durations of other owners' commands. If a second
/// host sent short commands, a host with many commands was allowed 41 of them; a host that
/// alternated between short and long commands halved the limit of another. Goal: the limit does not
/// depend on durations. Method: one owner always has one command in progress, which takes 1 ms or
/// 20 ms; another one begins as many as the limit allows.
#[test]
fn limits_do_not_depend_on_command_durations() {
    block_on(async {
        let queue = FairQueue::new(COMMANDS);
        let (heavy, light) = (owner(), owner());
        let begin = || queue.enter(Some(Arc::clone(&light)), 512, false).unwrap();
        let (mut permit, mut permits) = (begin(), VecDeque::new());
        for step in 0..400 {
            fill(&queue, &heavy, &mut permits);
            assert_eq!(permits.len(), COMMANDS.contended_max, "step {step}");
            let millis = if step / 100 % 2 == 0 { 1 } else { 20 };
            tokio::time::advance(std::time::Duration::from_millis(millis)).await;
            drop(permit);
            permit = begin();
            permits.pop_front();
        }
    });
}

/// Fault: a host that always had one command in progress, however short, reduced the limit of
/// another host from 41 commands to 16. Goal: the limits under contention are more than half of the
/// limits without contention.
#[test]
fn contended_limits_are_more_than_half_of_uncontended_limits() {
    for limits in [COMMANDS, ALLOCATION_QUERIES] {
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
        let many: Vec<ReadFuture> = (0..100).map(|_| rig.read_bytes(&first, 1 << 20)).collect();
        assert_eq!(rig.hanging(), COMMANDS.owner_bytes_max >> 20);
        let long: Vec<ReadFuture> = (0..2).map(|_| rig.read_bytes(&second, 16 << 20)).collect();
        assert_eq!(rig.hanging(), (COMMANDS.owner_bytes_max >> 20) + 1);
        drop((many, long));

        let rig = Rig::new();
        rig.hang(FaultOperation::Read);
        let other = rig.read(&second);
        let many: Vec<ReadFuture> = (0..100).map(|_| rig.read_bytes(&first, 1 << 20)).collect();
        assert_eq!(rig.hanging(), 1 + (COMMANDS.contended_bytes_max >> 20));
        drop((other, many));
    });
}

/// Fault: while four hosts had one WRITE of 8 MiB each in progress, every other host could have
/// only one command at a time, even one of 4 KiB. Goal: while much data is in progress, an owner
/// may begin commands within an even share of the limit.
#[test]
fn owners_may_use_their_share_beside_long_commands() {
    block_on(async {
        let rig = Rig::new();
        rig.hang(FaultOperation::Read);
        let heavy: Vec<_> = (0..4).map(|_| owner()).collect();
        let long: Vec<ReadFuture> = heavy
            .iter()
            .flat_map(|owner| [(); 2].map(|()| rig.read_bytes(owner, 8 << 20)))
            .collect();
        assert_eq!(rig.hanging(), heavy.len(), "{} MiB", COMMANDS.bytes_max >> 20);
        let small = owner();
        let many: Vec<ReadFuture> = (0..100).map(|_| rig.read(&small)).collect();
        assert_eq!(rig.hanging(), heavy.len() + COMMANDS.contended_max);
        let bulk = owner();
        let pieces: Vec<ReadFuture> = (0..100).map(|_| rig.read_bytes(&bulk, 1 << 20)).collect();
        let share = COMMANDS.bytes_max / 6;
        let begun = rig.hanging() - heavy.len() - COMMANDS.contended_max;
        assert_eq!(begun, COMMANDS.contended_bytes_max.min(share).div_ceil(1 << 20));
        drop((long, many, pieces));
    });
}

/// Goal: a waiting command that is dropped leaves the queue; one in progress keeps its permit until
/// the inner device has completed it.
#[test]
fn dropped_commands() {
    block_on(async {
        let rig = Rig::new();
        rig.hang(FaultOperation::Read);
        let owner = owner();
        let many: Vec<ReadFuture> = (0..100).map(|_| rig.read(&owner)).collect();
        let running = rig.hanging();
        drop(many);
        rig.run_other_tasks().await;
        assert_eq!(rig.device.commands.waiting(), 0);
        assert_eq!(rig.hanging(), running, "the inner device still works on the dropped commands");
        assert_eq!(rig.device.commands.running(), running);
        let later = rig.read(&owner);
        assert_eq!(
            rig.device.commands.waiting(),
            1,
            "the dropped commands still hold their permits"
        );
        rig.faults.heal();
        rig.faults.release();
        rig.run_other_tasks().await;
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
        assert!(!writes[0].0.cancel(), "the write is in progress at the inner device");
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

/// A `ForeignWaiters` whose result a test sets.
#[derive(Debug, Default)]
struct SettableWaiters(std::sync::atomic::AtomicBool);

impl crate::ForeignWaiters for SettableWaiters {
    fn are_waiting(&self) -> bool {
        self.0.load(std::sync::atomic::Ordering::SeqCst)
    }
}

/// Goal: a command for which other owners wait comes before the other commands of its owner, also
/// if it becomes urgent while it waits.
#[test]
fn urgent_commands_come_first() {
    block_on(async {
        let rig = Rig::new();
        rig.hang(FaultOperation::Read);
        let owner = owner();
        let mut many: Vec<ReadFuture> = (0..100).map(|_| rig.read(&owner)).collect();
        let running = rig.hanging();
        let (waiters, device, buffer) =
            (Arc::<SettableWaiters>::default(), Arc::clone(&rig.device), rig.pool.take(BLOCK));
        let context = IoContext::with_foreign_waiters(&owner, Some(Arc::clone(&waiters) as _));
        let read = context.scope(device.read(BlockRange::new(0, 1), buffer));
        let mut read = std::pin::pin!(read);
        assert!(read.as_mut().now_or_never().is_none());
        waiters.0.store(true, std::sync::atomic::Ordering::SeqCst);
        assert!(read.as_mut().now_or_never().is_none());
        rig.faults.heal();
        rig.faults.release();
        (&mut many[0]).await.unwrap();
        read.await.unwrap();
        assert_eq!(rig.device.commands.waiting(), 99 - running);
        drop(many);
    });
}

/// Goal: when a command fails because the device was unreachable for as long as the command could
/// wait, queued commands that have waited as long also fail, and later ones do not.
#[test]
fn queued_commands_fail_with_one_that_waited_no_longer() {
    block_on(async {
        let rig = Rig::new();
        rig.hang(FaultOperation::Read);
        let first = owner();
        let mut many: Vec<ReadFuture> = (0..100).map(|_| rig.read(&first)).collect();
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
        assert!(seen < 100, "{seen} commands were sent; queued ones must fail unsent");
    });
}

/// A device with a settable count of lost writes.
#[derive(Debug)]
struct LosingDevice {
    inner: Arc<FaultDevice>,
    losses: std::sync::atomic::AtomicU64,
}

impl BlockDevice for LosingDevice {
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
fn waiting_flushes_fail_after_a_loss() {
    block_on(async {
        let rig = Rig::new();
        rig.hang(FaultOperation::Flush);
        let losing = Arc::new(LosingDevice { inner: Arc::clone(&rig.faults), losses: 0.into() });
        let device = FairDevice::new(Arc::<LosingDevice>::clone(&losing));
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

/// Goal: allocation queries have their own limit and use no permits of other commands.
#[test]
fn allocation_queries_do_not_delay_other_commands() {
    block_on(async {
        let rig = Rig::new();
        rig.hang(FaultOperation::Status);
        let owner = owner();
        let mut queries = HashMap::new();
        for number in 0..1000 {
            let (context, device) = (IoContext::new(&owner), Arc::clone(&rig.device));
            let mut query = Box::pin(async move {
                let status = device.sparse().unwrap().status(BlockRange::new(0, 1), 1);
                context.scope(status).await.map(drop)
            });
            assert!((&mut query).now_or_never().is_none());
            queries.insert(number, query);
        }
        assert_eq!(rig.hanging(), 1 + ALLOCATION_QUERIES.shared_max / 2);
        let buffer = rig.pool.take(BLOCK);
        let context = IoContext::new(&owner);
        let read = context.scope(rig.device.read(BlockRange::new(0, 1), buffer));
        read.now_or_never().expect("the read does not wait").unwrap();
        drop(queries);
    });
}

/// Fault: a command that waited in a remote disk used 8 KiB, twice the memory that a server
/// reserves for it.
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

/// Fault: clears did not count as data, so one owner could have dozens of long ones in progress.
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
