use super::*;
use crate::file::tests::{MINUTE, test_workers_within};
use crate::file::workers::{ComputingLimit, JobLimits, JobPanicked, Workers};
use crate::{ForeignWaiters, IoContext, MemoryOwner};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};

fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future)
}

/// Creates slots with time limits that jobs keep even on a slow machine.
fn patient_slots(jobs_max: usize) -> ComputingSlots {
    let times = SlotTimes { begin_max: MINUTE, computing_max: MINUTE, ..SlotTimes::default() };
    ComputingSlots::with_times(jobs_max, times)
}

/// A job that computes on a thread of a pool until the test ends it.
struct Computing<'a> {
    end: Arc<AtomicBool>,
    result: BoxFuture<'a, Result<(), JobPanicked>>,
}

impl<'a> Computing<'a> {
    fn begin(workers: &'a Workers) -> Self {
        let end = Arc::new(AtomicBool::new(false));
        let (begun, begins) = mpsc::channel();
        let is_over = Arc::clone(&end);
        let job = move || {
            begun.send(()).unwrap();
            while !is_over.load(SeqCst) {
                std::hint::spin_loop();
            }
        };
        let mut result = workers.run_within(workers.slot_limits(), job).boxed();
        assert!((&mut result).now_or_never().is_none());
        begins.recv().unwrap();
        Self { end, result }
    }

    fn end(self) {
        self.end.store(true, SeqCst);
        block_on(self.result).unwrap();
    }
}

/// Fault: the limits on CPU-bound jobs were per device: VERIFY of 256 files ran 256 threads in
/// addition to the threads of two cores, and the request rate of another host fell to 26 %. Method:
/// 256 pools get such jobs while all slots are taken.
#[test]
fn few_jobs_of_many_devices_compute_at_a_time() {
    const SLOTS: usize = 2;
    const POOLS: usize = 256;
    let slots = patient_slots(SLOTS);
    let pools: Vec<_> = (0..POOLS).map(|_| test_workers_within(1, 4, &slots)).collect();
    let held: Vec<_> = pools[..SLOTS].iter().map(Computing::begin).collect();
    let runs = Arc::new(AtomicUsize::new(0));
    let job = |pool| {
        let runs = Arc::clone(&runs);
        Workers::run_within(pool, pool.slot_limits(), move || runs.fetch_add(1, SeqCst)).boxed()
    };
    let mut jobs: Vec<_> = pools.iter().map(job).collect();
    assert!(jobs.iter_mut().all(|job| job.now_or_never().is_none()));
    assert_eq!(slots.waiting(), POOLS, "all jobs wait, and no thread waits");
    slots.grant(slots.state());
    assert_eq!((slots.waiting(), runs.load(SeqCst)), (POOLS, 0), "jobs got slots that are in use");
    held.into_iter().for_each(Computing::end);
    for result in block_on(futures_util::future::join_all(jobs)) {
        result.unwrap();
    }
    assert_eq!(runs.load(SeqCst), POOLS);
    drop(pools);
    assert_eq!((slots.waiting(), slots.state().in_use.len()), (0, 0));
}

/// Goal: jobs that wait for their disks, however many, keep no other jobs from computing, although
/// no event shows when they begin to wait and none of them ends.
#[test]
fn jobs_that_wait_for_a_disk_leave_their_slots() {
    let slots = patient_slots(1);
    let hanging = test_workers_within(1, 16, &slots);
    let gate = Arc::new(std::sync::RwLock::new(()));
    let closed = gate.write().unwrap();
    let mut hang: Vec<_> = (0..8)
        .map(|_| {
            let gate = Arc::clone(&gate);
            hanging.run_within(hanging.slot_limits(), move || drop(gate.read())).boxed()
        })
        .collect();
    assert!(hang.iter_mut().all(|job| job.now_or_never().is_none()));
    let other = test_workers_within(1, 0, &slots);
    assert_eq!(block_on(other.run_within(other.slot_limits(), || 7)).unwrap(), 7);
    drop(closed);
    block_on(futures_util::future::join_all(hang)).into_iter().for_each(Result::unwrap);
}

/// Goal: jobs that have slots, but whose pool has no free thread because all hang, keep no other
/// jobs from computing.
#[test]
fn jobs_that_wait_for_a_thread_leave_their_slots() {
    let slots = ComputingSlots::new(1);
    let hanging = test_workers_within(1, 0, &slots);
    let (stop, stopped) = mpsc::channel::<()>();
    let mut hangs = hanging.run(move || stopped.recv().is_err()).boxed();
    assert!((&mut hangs).now_or_never().is_none());
    let mut waits = hanging.run_within(hanging.slot_limits(), || 1).boxed();
    assert!((&mut waits).now_or_never().is_none());
    assert_eq!(slots.waiting(), 0, "it has the slot");
    let other = test_workers_within(1, 0, &slots);
    assert_eq!(block_on(other.run_within(other.slot_limits(), || 7)).unwrap(), 7);
    drop(stop);
    assert!(block_on(hangs).unwrap());
    assert_eq!(block_on(waits).unwrap(), 1);
}

/// Goal: owners take turns across devices; a job that is dropped or cancelled while it waits for a
/// slot is not run, and leaves its turn to the next.
#[test]
fn owners_take_turns_and_no_job_is_lost() {
    let slots = patient_slots(1);
    let pools: Vec<_> = (0..6).map(|_| test_workers_within(1, 0, &slots)).collect();
    let held = Computing::begin(&pools[0]);
    let order: Arc<Mutex<Vec<usize>>> = Arc::default();
    let (one, other): (Arc<MemoryOwner>, Arc<MemoryOwner>) = Default::default();
    let owners = [&one, &one, &one, &one, &other, &one];
    let mut jobs: Vec<_> = std::iter::zip(owners, &pools)
        .enumerate()
        .map(|(number, (owner, pool))| {
            let (order, context) = (Arc::clone(&order), IoContext::new(owner));
            let run =
                pool.run_within(pool.slot_limits(), move || order.lock().unwrap().push(number));
            let scope = Arc::clone(&context);
            (context, async move { scope.scope(run).await }.boxed())
        })
        .collect();
    assert!(jobs.iter_mut().all(|(_, job)| job.now_or_never().is_none()));
    drop(jobs.remove(1));
    assert_eq!(slots.waiting(), 5);
    let (context, cancelled) = jobs.remove(1);
    assert!(context.cancel());
    held.end();
    assert!(matches!(block_on(cancelled), Err(JobPanicked)));
    for (_, job) in jobs {
        block_on(job).unwrap();
    }
    assert_eq!(*order.lock().unwrap(), [0, 4, 3, 5]);
    drop(pools);
    assert_eq!((slots.waiting(), slots.state().in_use.len()), (0, 0));
}

/// Transfers that others wait for once the test says so.
#[derive(Debug, Default)]
struct Awaited(AtomicBool);

impl ForeignWaiters for Awaited {
    fn are_waiting(&self) -> bool {
        self.0.load(SeqCst)
    }
}

/// Fault: a command that has blocks which another host needs waited for a slot behind all jobs of
/// its own host, such as GET LBA STATUS of 256 other disks, and each host that did so delayed the
/// other one by a second. Method: a job becomes urgent while jobs of other disks wait before it.
#[test]
fn an_urgent_job_precedes_other_jobs_of_its_owner() {
    let slots = patient_slots(1);
    let pools: Vec<_> = (0..6).map(|_| test_workers_within(1, 0, &slots)).collect();
    let held = Computing::begin(&pools[0]);
    let (order, owner): (Arc<Mutex<Vec<usize>>>, _) = (Arc::default(), Arc::default());
    let awaited = Arc::<Awaited>::default();
    let mut jobs: Vec<_> = pools
        .iter()
        .enumerate()
        .map(|(number, pool)| {
            let waiters = (number >= 4).then(|| Arc::clone(&awaited) as Arc<dyn ForeignWaiters>);
            let context = IoContext::with_foreign_waiters(&owner, waiters);
            let order = Arc::clone(&order);
            let run =
                pool.run_within(pool.slot_limits(), move || order.lock().unwrap().push(number));
            async move { context.scope(run).await }.boxed()
        })
        .collect();
    // The last one is urgent before it is queued.
    assert!(jobs[..5].iter_mut().all(|job| job.now_or_never().is_none()));
    awaited.0.store(true, SeqCst);
    assert!(jobs[4..].iter_mut().all(|job| job.now_or_never().is_none()));
    held.end();
    for job in jobs {
        block_on(job).unwrap();
    }
    assert_eq!(*order.lock().unwrap(), [4, 5, 0, 1, 2, 3]);
}

/// Takes a slot for a job that begins when the test says so.
fn take_slot(slots: &ComputingSlots) -> ComputingSlot {
    let (sender, granted) = mpsc::channel();
    let start = Box::new(move |slot| drop(sender.send(slot)));
    slots.queue(&None, slots.next_number(), &Arc::default(), start);
    granted.recv().unwrap()
}

/// Jobs of one owner that record their order. Job 2 becomes urgent when the test says so.
#[derive(Default)]
struct OwnJobs<'a> {
    owner: Arc<MemoryOwner>,
    awaited: Arc<Awaited>,
    order: Arc<Mutex<Vec<usize>>>,
    jobs: Vec<BoxFuture<'a, Result<(), JobPanicked>>>,
}

impl<'a> OwnJobs<'a> {
    /// Queues the job with the next number.
    fn queue(&mut self, pool: &'a Workers, limits: JobLimits<'a>) {
        let number = self.jobs.len();
        let waiters = (number == 2).then(|| Arc::clone(&self.awaited) as Arc<dyn ForeignWaiters>);
        let context = IoContext::with_foreign_waiters(&self.owner, waiters);
        let order = Arc::clone(&self.order);
        let run = pool.run_within(limits, move || order.lock().unwrap().push(number));
        let mut job = async move { context.scope(run).await }.boxed();
        assert!((&mut job).now_or_never().is_none());
        self.jobs.push(job);
    }

    /// Makes job 2 urgent.
    fn promote(&mut self) {
        self.awaited.0.store(true, SeqCst);
        assert!(self.jobs[2].as_mut().now_or_never().is_none());
    }

    fn check_order(self, order: &[usize]) {
        for job in self.jobs {
            block_on(job).unwrap();
        }
        assert_eq!(*self.order.lock().unwrap(), order);
    }
}

/// Goal: a job that becomes urgent while it waits for a thread or for a permit comes before the
/// others of its owner.
#[test]
fn a_job_becomes_urgent_in_each_queue() {
    let slots = patient_slots(1);
    let pool = test_workers_within(1, 0, &slots);
    let (stop, stopped) = mpsc::channel::<()>();
    let mut hangs = pool.run(move || stopped.recv().is_err()).boxed();
    assert!((&mut hangs).now_or_never().is_none());
    let mut jobs = OwnJobs::default();
    (0..3).for_each(|_| jobs.queue(&pool, JobLimits::default()));
    jobs.promote();
    drop(stop);
    jobs.check_order(&[2, 0, 1]);
    assert!(block_on(hangs).unwrap());

    let limit = ComputingLimit::new(1);
    let permit = limit.try_permit();
    let pool = test_workers_within(4, 4, &slots);
    let mut jobs = OwnJobs::default();
    let limits = JobLimits { permits: Some(&limit), slots: None, is_continued: false };
    (0..3).for_each(|_| jobs.queue(&pool, limits));
    jobs.promote();
    drop(permit);
    jobs.check_order(&[2, 0, 1]);
}

/// Goal: a job that became urgent in one queue comes before the others of its owner in the next
/// one, too: in that for a slot after that for a permit, and in that for a thread after that for a
/// slot.
#[test]
fn an_urgent_job_is_urgent_in_later_queues() {
    let slots = patient_slots(1);
    let limit = ComputingLimit::new(1);
    let (permit, slot) = (limit.try_permit(), take_slot(&slots));
    let pool = test_workers_within(4, 4, &slots);
    let mut jobs = OwnJobs::default();
    jobs.queue(&pool, pool.slot_limits());
    jobs.queue(&pool, pool.slot_limits());
    jobs.queue(
        &pool,
        JobLimits { permits: Some(&limit), slots: Some(&slots), is_continued: false },
    );
    jobs.promote();
    drop(permit);
    assert_eq!((limit.waiting(), slots.waiting()), (0, 3));
    drop(slot);
    jobs.check_order(&[2, 0, 1]);

    let slots = patient_slots(1);
    let slot = take_slot(&slots);
    let pool = test_workers_within(1, 0, &slots);
    let (stop, stopped) = mpsc::channel::<()>();
    let mut hangs = pool.run(move || stopped.recv().is_err()).boxed();
    assert!((&mut hangs).now_or_never().is_none());
    let mut jobs = OwnJobs::default();
    jobs.queue(&pool, JobLimits::default());
    jobs.queue(&pool, JobLimits::default());
    jobs.queue(&pool, pool.slot_limits());
    jobs.promote();
    drop(slot);
    assert_eq!(slots.waiting(), 0, "it waits for the thread");
    drop(stop);
    jobs.check_order(&[2, 0, 1]);
    assert!(block_on(hangs).unwrap());
}

/// Goal: a job with a permit that only jobs of its owner wait for goes in its turn.
#[test]
fn a_permit_that_no_other_owner_waits_for_makes_no_job_urgent() {
    let slots = patient_slots(1);
    let (limit, slot) = (ComputingLimit::new(1), take_slot(&slots));
    let pool = test_workers_within(4, 4, &slots);
    let mut jobs = OwnJobs::default();
    jobs.queue(&pool, pool.slot_limits());
    jobs.queue(&pool, pool.slot_limits());
    let limits = JobLimits { permits: Some(&limit), slots: Some(&slots), is_continued: false };
    jobs.queue(&pool, limits);
    jobs.queue(&pool, limits);
    assert_eq!((limit.waiting(), slots.waiting()), (1, 3), "the third one has the permit");
    drop(slot);
    jobs.check_order(&[0, 1, 2, 3]);
}

/// Goal: jobs of an owner that pauses leave the slots to others, and continue after the pause.
#[test]
fn an_owner_that_pauses_leaves_the_slots_to_others() {
    let slots = patient_slots(1);
    let pool = test_workers_within(4, 4, &slots);
    let [one, other]: [Arc<MemoryOwner>; 2] = Default::default();
    let mut state = slots.state();
    // The pause is recorded in a minute, so it does not end during the test.
    let (now, later) = (Instant::now(), Instant::now() + MINUTE);
    for at in [now, later] {
        state.pauses.queued(&Some(Arc::clone(&other)), at);
    }
    state.pauses.ended(&Some(Arc::clone(&one)), MINUTE, Duration::ZERO, later);
    drop(state);
    let run = |owner: &Arc<MemoryOwner>| {
        let (context, run) = (IoContext::new(owner), pool.run_within(pool.slot_limits(), || ()));
        async move { context.scope(run).await }.boxed()
    };
    let mut waits = run(&one);
    assert!((&mut waits).now_or_never().is_none());
    block_on(run(&other)).unwrap();
    assert_eq!(slots.waiting(), 1, "the job of the other owner did not wait for it");
    slots.state().pauses = OwnerPauses::default();
    slots.grant(slots.state());
    block_on(waits).unwrap();
}

/// Computes for a moment; returns the time at which it began.
fn compute() -> Instant {
    let (begin, time) = (Instant::now(), thread_time());
    while thread_time() == time {}
    begin
}

/// Fault: a kernel without preemption left a thread that made a map its processor for 0.1 s, and
/// with one map after the other the threads of the cores waited there for up to 1 s. Goal: no job
/// gets a slot while the slots rest after a long one.
#[test]
fn slots_rest_after_a_long_job() {
    let times = SlotTimes { begin_max: MINUTE, time_slice: Duration::ZERO, ..Default::default() };
    for (rest_factor, waiting) in [(0, 0), (u32::MAX, 1)] {
        let slots = ComputingSlots::with_times(1, SlotTimes { rest_factor, ..times });
        let pool = test_workers_within(1, 0, &slots);
        block_on(pool.run_within(pool.slot_limits(), compute)).unwrap();
        drop(pool); // the slot is returned after the result
        let pool = test_workers_within(1, 0, &slots);
        let mut next = pool.run_within(pool.slot_limits(), || ()).boxed();
        let begun = (&mut next).now_or_never();
        assert_eq!(slots.waiting(), waiting);
        slots.state().rests_until = Instant::now();
        slots.grant(slots.state());
        begun.unwrap_or_else(|| block_on(next)).unwrap();
    }
}

/// Goal: the owner of a job pauses after it, if it has computed for longer than its slice; a job
/// that waits for a slot makes its owner one for whom others pause.
#[test]
fn jobs_with_slots_count_for_pauses() {
    let times = SlotTimes { begin_max: MINUTE, time_slice: Duration::ZERO, ..Default::default() };
    let slots = ComputingSlots::with_times(1, times);
    let pool = test_workers_within(1, 0, &slots);
    let [one, other]: [Arc<MemoryOwner>; 2] = Default::default();
    let context = IoContext::new(&one);
    let began = block_on(context.scope(pool.run_within(pool.slot_limits(), compute))).unwrap();
    // The slot is returned after the result.
    while !slots.state().in_use.is_empty() {
        std::thread::yield_now();
    }
    assert!(slots.state().pauses.is_paused(&Some(Arc::clone(&one)), began));

    let slot = take_slot(&slots);
    let context = IoContext::new(&other);
    let mut waits = context.scope(pool.run_within(pool.slot_limits(), || ())).boxed();
    assert!((&mut waits).now_or_never().is_none());
    assert!(slots.state().pauses.is_recorded(&Some(Arc::clone(&other))));
    drop(slot);
    block_on(waits).unwrap();
}

/// Fault: a job kept the only permit for the writes of a file while it waited for a slot behind
/// other jobs of its owner, and writes of other hosts waited for the permit. Method: a job of
/// another owner queues for the permit of a job behind three others.
#[test]
fn an_awaited_permit_precedes_jobs_of_its_owner() {
    let slots = patient_slots(1);
    let pools: Vec<_> = (0..5).map(|_| test_workers_within(4, 4, &slots)).collect();
    let held = Computing::begin(&pools[0]);
    let order: Arc<Mutex<Vec<usize>>> = Arc::default();
    let writes = ComputingLimit::new(1);
    let (one, other): (Arc<MemoryOwner>, Arc<MemoryOwner>) = Default::default();
    let run = |number: usize, owner: &Arc<MemoryOwner>| {
        let (order, context) = (Arc::clone(&order), IoContext::new(owner));
        let limits = match number {
            3.. => JobLimits { permits: Some(&writes), slots: Some(&slots), is_continued: false },
            _ => JobLimits { permits: None, slots: Some(&slots), is_continued: false },
        };
        let run =
            pools[number.min(3)].run_within(limits, move || order.lock().unwrap().push(number));
        let mut run = async move { context.scope(run).await }.boxed();
        assert!((&mut run).now_or_never().is_none());
        run
    };
    let mut jobs: Vec<_> = (0..5).map(|number| run(number, &one)).collect();
    assert_eq!((slots.waiting(), writes.waiting()), (4, 1), "the fourth one has the permit");
    jobs.push(run(5, &other));
    held.end();
    for job in jobs {
        block_on(job).unwrap();
    }
    let order = order.lock().unwrap();
    let at = |number: usize| order.iter().position(|job| *job == number).unwrap();
    assert_eq!(order[0], 3, "{order:?}");
    assert!(at(5) < at(2), "{order:?}");
}

/// Fault: a job with the only permit for the writes of a file waited until the pause of its owner
/// was over, so the pause also delayed the other host for which it is meant. Method: the owner of
/// two jobs pauses because a third one has jobs, and another owner queues for the permit.
#[test]
fn a_job_that_others_wait_for_does_not_pause() {
    let times = SlotTimes { begin_max: MINUTE, computing_max: MINUTE, ..SlotTimes::default() };
    let slots = ComputingSlots::with_times(1, SlotTimes { time_slice: MINUTE, ..times });
    let pool = test_workers_within(4, 4, &slots);
    let order: Arc<Mutex<Vec<usize>>> = Arc::default();
    let writes = ComputingLimit::new(1);
    let (one, other): (Arc<MemoryOwner>, Arc<MemoryOwner>) = Default::default();
    let mut state = slots.state();
    let later = Instant::now() + MINUTE;
    state.pauses.queued(&None, later);
    state.pauses.ended(&Some(Arc::clone(&one)), MINUTE, Duration::ZERO, later);
    drop(state);
    let run = |number: usize, owner: &Arc<MemoryOwner>, permits| {
        let (order, context) = (Arc::clone(&order), IoContext::new(owner));
        let limits = JobLimits { permits, slots: Some(&slots), is_continued: false };
        let run = pool.run_within(limits, move || order.lock().unwrap().push(number));
        let mut run = async move { context.scope(run).await }.boxed();
        assert!((&mut run).now_or_never().is_none());
        run
    };
    let pausing = run(0, &one, None);
    let awaited = run(1, &one, Some(&writes));
    assert_eq!((slots.waiting(), writes.waiting()), (2, 0));
    let no_job_ends = order.lock().unwrap();
    let waits = run(2, &other, Some(&writes));
    assert_eq!((slots.waiting(), writes.waiting()), (1, 1), "the job with the permit has a slot");
    drop(no_job_ends);
    block_on(awaited).unwrap();
    block_on(waits).unwrap();
    assert_eq!((&*order.lock().unwrap(), slots.waiting()), (&vec![1, 2], 1));
    drop(pausing);
    assert_eq!(slots.waiting(), 0);
}

/// Goal: a slice ends for each job that may run, which those of owners that pause may not. That of
/// an urgent job does not end for jobs of its owner that are not urgent.
#[test]
fn slices_end_for_jobs_that_may_run() {
    let slots = ComputingSlots::with_times(
        1,
        SlotTimes {
            begin_max: MINUTE,
            computing_max: MINUTE,
            time_slice: Duration::ZERO,
            ..SlotTimes::default()
        },
    );
    let job = Arc::<QueuedJob>::default();
    let (sender, granted) = mpsc::channel();
    let start = Box::new(move |slot| drop(sender.send(slot)));
    slots.queue(&None, slots.next_number(), &job, start);
    let slot = granted.recv().unwrap();
    slot.begin();
    let slice = slots.time_slice();
    assert!(!slice.is_over(), "no job waits");
    let wait = |owner: &JobOwner| {
        let number = slots.next_number();
        slots.queue(owner, number, &Arc::default(), Box::new(drop));
        number
    };
    let own = wait(&None);
    assert!(slice.is_over());
    job.promote();
    assert!(!slice.is_over(), "they are of one owner");
    slots.promote(&None, own);
    assert!(slice.is_over(), "both are urgent");
    assert!(slots.remove(&None, own).is_some());
    let other = Some(Arc::default());
    let number = wait(&other);
    assert!(slice.is_over());
    let later = Instant::now() + MINUTE;
    slots.state().pauses.queued(&None, later);
    slots.state().pauses.ended(&other, MINUTE, Duration::ZERO, later);
    assert!(!slice.is_over(), "the other owner pauses");
    slots.promote(&other, number);
    assert!(slice.is_over(), "its job is urgent");
    drop(slot);
    assert_eq!(slots.waiting(), 0);
}

/// Fault: prefetches had no limit as CPU-bound jobs, and four of a file ran for each owner:
/// alongside PRE-FETCH of 256 files the request rate of another host fell to 20 %, alongside
/// PRE-FETCH of one file to 35 %. Method: prefetches of 64 pools arrive while a job computes.
#[test]
fn prefetches_take_slots_and_run_once_per_file() {
    let slots = patient_slots(1);
    let pools: Vec<_> = (0..64).map(|_| test_workers_within(8, 8, &slots)).collect();
    let first = test_workers_within(1, 0, &slots);
    let held = Computing::begin(&first);
    let runs = Arc::new(AtomicUsize::new(0));
    let (ended, ends) = mpsc::channel();
    let owner = Arc::default();
    let mut accepted = 0;
    for pool in &pools {
        for _ in 0..100 {
            let (runs, ended) = (Arc::clone(&runs), ended.clone());
            let hint = move || {
                runs.fetch_add(1, SeqCst);
                ended.send(()).unwrap();
            };
            accepted += usize::from(IoContext::new(&owner).scope_sync(|| pool.run_hint(hint)));
        }
    }
    // Four wait, and a thread has taken one; another one may arrive in between.
    assert!(accepted <= pools.len() * 5, "{accepted} of {}", pools.len() * 100);
    // At most one waiting job belongs to each pool.
    assert!(slots.waiting() <= pools.len(), "{}", slots.waiting());
    assert_eq!(runs.load(SeqCst), 0, "a job computes");
    held.end();
    (0..accepted).for_each(|_| ends.recv().unwrap());
    assert_eq!(runs.load(SeqCst), accepted);
}
