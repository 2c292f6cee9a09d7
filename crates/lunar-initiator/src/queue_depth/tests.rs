//! Tests of the number of commands in progress, with simulated storages.

use super::*;
use crate::commands::{Attempt, RetryDecision};
use crate::{Error, ErrorKind};
use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::{join, join_all, select};
use lunar_iscsi::connection::initiator::{CommandResult, Residual};
use lunar_iscsi::pdu::ServiceResponse;
use std::cell::{Cell, RefCell};
use std::pin::pin;
use tokio::time::{advance, sleep, sleep_until};

/// Time from the sending of a command to its arrival at the storage, and of its answer back.
const ONE_WAY: Duration = Duration::from_millis(5);
/// Time that the storage takes for a command; it executes one after the other.
const SERVICE: Duration = Duration::from_millis(2);
/// Number of commands that a served LUN sends to its storage.
const COMMANDS: usize = 112;
/// Number of commands that are sent while one travels to the storage and back.
const PER_ROUND_TRIP: usize = 5;
/// Bytes that a short command counts for, and a long one.
const SHORT: u64 = 512;
const LONG: u64 = 8 << 20;

/// A storage that refuses commands beyond a number.
struct Storage {
    commands_max: Cell<usize>,
    commands: Cell<usize>,
    service: tokio::sync::Mutex<()>,
    /// Numbers of the commands in the order of their execution.
    executed: RefCell<Vec<usize>>,
    /// Times of the refusals.
    refusals: RefCell<Vec<Instant>>,
}

impl Storage {
    fn new(commands_max: usize) -> Self {
        Self {
            commands_max: Cell::new(commands_max),
            commands: Cell::new(0),
            service: tokio::sync::Mutex::default(),
            executed: RefCell::default(),
            refusals: RefCell::default(),
        }
    }

    async fn execute(&self, number: usize) -> Status {
        sleep(ONE_WAY).await;
        let status = if self.commands.get() >= self.commands_max.get() {
            self.refusals.borrow_mut().push(Instant::now());
            Status::TASK_SET_FULL
        } else {
            self.commands.set(self.commands.get() + 1);
            let serving = self.service.lock().await;
            sleep(SERVICE).await;
            drop(serving);
            self.commands.set(self.commands.get() - 1);
            self.executed.borrow_mut().push(number);
            Status::GOOD
        };
        sleep(ONE_WAY).await;
        status
    }
}

fn result(status: Status) -> CommandResult {
    CommandResult {
        response: ServiceResponse::COMMAND_COMPLETED,
        status: status.0,
        status_qualifier: 0,
        sense: Bytes::new(),
        data_in_bytes: 0,
        residual: Residual::None,
        read_residual: Residual::None,
    }
}

/// Sends a short command until it is executed, see [`send_bytes`].
async fn send<F: Future<Output = Status>>(
    depth: &QueueDepth,
    execute: impl Fn() -> F,
) -> Result<Duration, Error> {
    send_bytes(depth, SHORT, execute).await
}

/// Sends a command as a remote disk does until it is executed. Returns the time that it took.
async fn send_bytes<F: Future<Output = Status>>(
    depth: &QueueDepth,
    bytes: u64,
    execute: impl Fn() -> F,
) -> Result<Duration, Error> {
    let began = Instant::now();
    let mut attempt = Attempt::default();
    loop {
        let in_progress = match attempt.turn.refusals > 0 || depth.is_limited() {
            true => depth.wait(&mut attempt.turn, bytes, sleep_until).await,
            false => depth.begin(bytes),
        };
        let result = result(execute().await);
        in_progress.end(Some(UnitAnswer::of(result.status)));
        match attempt.interpret_end(None, &[0x88], &result)? {
            RetryDecision::Good => return Ok(began.elapsed()),
            RetryDecision::Again => unreachable!("no unit attention"),
            RetryDecision::Refused => {}
        }
    }
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    runtime.enable_time().start_paused(true).build().unwrap().block_on(future)
}

fn assert_is_empty(depth: &QueueDepth) {
    let state = depth.state();
    for (class, limit) in state.limits.iter().enumerate() {
        let left = (limit.waiting.len(), limit.pausing.len(), depth.commands(class));
        assert_eq!(left, (0, 0, 0));
    }
    assert_eq!(depth.outstanding_bytes(), 0);
}

/// Fault: refused commands paused for up to a second, and new ones took each permit that became
/// free at the storage meanwhile. Goal: commands are executed in their order, each after the time
/// that the storage needs for those before it.
#[test]
fn refused_commands_are_executed_in_order() {
    for commands_max in [1, 2, 25, 97, COMMANDS] {
        block_on(async {
            let (depth, storage) = (QueueDepth::default(), Storage::new(commands_max));
            let began = Instant::now();
            let commands = (0..COMMANDS).map(|n| {
                let (depth, storage) = (&depth, &storage);
                send(depth, move || storage.execute(n))
            });
            let times = join_all(commands).await;
            assert!(times.iter().all(Result::is_ok), "{commands_max}: none is abandoned");
            let executed = storage.executed.borrow();
            assert_eq!(executed.len(), COMMANDS);
            for (at, number) in executed.iter().enumerate() {
                // A command that was refused again is overtaken by those sent meanwhile.
                let limit = 2 * PER_ROUND_TRIP;
                assert!(at.abs_diff(*number) <= limit, "{commands_max}: {executed:?}");
            }
            // Few commands do not use the storage all the time: each takes a round trip.
            let each = SERVICE.max((2 * ONE_WAY + SERVICE) / commands_max as u32);
            let time_max = each * (COMMANDS as u32 * 5 / 4) + 4 * ONE_WAY;
            assert!(began.elapsed() <= time_max, "{commands_max}: {:?}", began.elapsed());
            assert_is_empty(&depth);
        });
    }
}

/// Fault: alongside hosts with many commands a host with one at a time waited for seconds, and
/// after ten seconds commands ended with BUSY. Goal: it waits for the commands that were there
/// before it.
#[test]
fn a_late_command_is_not_starved() {
    for commands_max in [1, 25, 97] {
        block_on(async {
            let (depth, storage) = (QueueDepth::default(), Storage::new(commands_max));
            let (worst, end) = (Cell::new(Duration::ZERO), Instant::now() + 30 * STALL_TIME);
            let host = |n: usize| {
                let (depth, storage, worst) = (&depth, &storage, &worst);
                async move {
                    while Instant::now() < end {
                        let took = send(depth, || storage.execute(n)).await.expect("no BUSY");
                        worst.set(worst.get().max(took));
                    }
                }
            };
            join_all((0..COMMANDS).map(host)).await;
            let each = SERVICE.max((2 * ONE_WAY + SERVICE) / commands_max as u32);
            let round = each * COMMANDS as u32;
            assert!(worst.get() <= round * 3 / 2, "{commands_max}: {:?} of {round:?}", worst.get());
            let (executed, refused) =
                (storage.executed.borrow().len(), storage.refusals.borrow().len());
            assert!(refused * 8 <= executed, "{commands_max}: {refused} refused of {executed}");
            assert_is_empty(&depth);
        });
    }
}

/// Goal: a command that is refused while no other is in progress is sent again after pauses, for
/// ten seconds.
#[test]
fn a_storage_that_refuses_everything_gets_pauses() {
    block_on(async {
        let (depth, storage) = (QueueDepth::default(), Storage::new(0));
        let error = send(&depth, || storage.execute(0)).await.unwrap_err();
        assert_eq!(error.kind, ErrorKind::Status(Status::TASK_SET_FULL.0));
        let refusals = storage.refusals.borrow();
        let pauses = refusals.windows(2).map(|two| two[1] - two[0] - 2 * ONE_WAY);
        let pauses: Vec<_> = pauses.map(|pause| pause.as_millis()).collect();
        assert_eq!(pauses[..8], [20, 40, 80, 160, 320, 640, 1000, 1000]);
        let time = refusals[refusals.len() - 1] - refusals[0];
        assert!((10..12).contains(&time.as_secs()), "{time:?}");
        assert_is_empty(&depth);
    });
}

/// Goal: many commands end with BUSY after ten seconds, the last pause and a round trip for each of
/// them; each is sent about as often as a single one.
#[test]
fn many_commands_end_after_ten_seconds() {
    block_on(async {
        let (depth, storage) = (QueueDepth::default(), Storage::new(0));
        let began = Instant::now();
        let end_busy = |n: usize| {
            let (depth, storage) = (&depth, &storage);
            async move {
                send(depth, || storage.execute(n)).await.expect_err("it is refused");
                began.elapsed()
            }
        };
        for time in join_all((0..COMMANDS).map(end_busy)).await {
            assert!((10..13).contains(&time.as_secs()), "{time:?}");
        }
        let refused = storage.refusals.borrow().len();
        assert!(refused <= COMMANDS * 20, "{refused}");
        assert_is_empty(&depth);
    });
}

/// Goal: a storage that has refused all commands is used at its full depth soon after it accepts
/// commands again.
#[test]
fn a_storage_that_works_again_is_used() {
    block_on(async {
        let (depth, storage) = (QueueDepth::default(), Storage::new(0));
        let time = Duration::from_secs(3);
        let recover = async {
            sleep(time).await;
            storage.commands_max.set(usize::MAX);
        };
        let began = Instant::now();
        let commands = (0..COMMANDS).map(|n| {
            let (depth, storage) = (&depth, &storage);
            send(depth, move || storage.execute(n))
        });
        let (times, ()) = join(join_all(commands), recover).await;
        assert!(times.iter().all(Result::is_ok));
        let took = began.elapsed() - time;
        // The pause of a command, a round trip for each doubling, and the execution.
        let time_max = STALL_TIME + 7 * (2 * ONE_WAY + SERVICE) + SERVICE * COMMANDS as u32;
        assert!(took <= time_max, "{took:?}");
        assert_is_empty(&depth);
    });
}

/// Goal: a storage that refuses commands of one kind always, and has room for others, executes the
/// others about as fast as without the refused ones.
#[test]
fn refused_commands_of_one_kind_do_not_delay_others() {
    let reads_during = |writes: usize| {
        block_on(async {
            let (depth, storage) = (QueueDepth::default(), Storage::new(usize::MAX));
            let end = Instant::now() + 20 * STALL_TIME;
            let reader = |n: usize| {
                let (depth, storage) = (&depth, &storage);
                async move {
                    while Instant::now() < end {
                        send(depth, || storage.execute(n)).await.expect("there is room");
                    }
                }
            };
            let refuse = || async {
                sleep(2 * ONE_WAY).await;
                Status::BUSY
            };
            let refused = join_all((0..writes).map(|_| send(&depth, refuse)));
            join(join_all((0..64).map(reader)), refused).await;
            storage.executed.borrow().len()
        })
    };
    let (alone, concurrent) = (reads_during(0), reads_during(32));
    assert!(
        concurrent * 10 >= alone * 9,
        "{concurrent} reads during refused writes, {alone} without; at least 90 % expected"
    );
}

/// A storage that executes all commands at once, with memory for a number of long ones.
struct SmallStorage {
    memory: Cell<usize>,
}

impl SmallStorage {
    async fn execute(&self, is_long: bool) -> Status {
        let needed = usize::from(is_long);
        let Some(left) = self.memory.get().checked_sub(needed) else {
            sleep(2 * ONE_WAY).await;
            return Status::BUSY;
        };
        self.memory.set(left);
        sleep(2 * ONE_WAY + SERVICE).await;
        self.memory.set(self.memory.get() + needed);
        Status::GOOD
    }
}

/// Returns the number of short commands that `short` hosts execute at a storage with memory for
/// `memory` long commands, while `long` hosts send long ones, and the number of commands that each
/// of the hosts with long commands executes.
fn short_and_long(short: usize, long: usize, memory: usize) -> (usize, Vec<usize>) {
    block_on(async {
        let depth = QueueDepth::default();
        let storage = SmallStorage { memory: Cell::new(memory) };
        let end = Instant::now() + 20 * STALL_TIME;
        let host = |n: usize| {
            let (depth, storage, is_long) = (&depth, &storage, n >= short);
            async move {
                let mut executed = 0;
                while Instant::now() < end {
                    let bytes = if is_long { LONG } else { SHORT };
                    let sent = send_bytes(depth, bytes, || storage.execute(is_long)).await;
                    executed += usize::from(sent.is_ok());
                }
                executed
            }
        };
        let mut executed = join_all((0..short + long).map(host)).await;
        assert_is_empty(&depth);
        let long = executed.split_off(short);
        (executed.iter().sum(), long)
    })
}

/// Fault: when a storage lacked memory for the long WRITEs of some hosts, all other hosts could
/// have only one command at a time, because each refusal lowered the limit of commands for all.
/// Goal: refusals of long commands limit only long commands, and hosts with long commands take
/// turns.
#[test]
fn refusals_of_long_commands_do_not_limit_short_ones() {
    let (alone, _) = short_and_long(26, 0, 0);
    for (long, memory) in [(4, 1), (26, 2), (4, 0)] {
        let (concurrent, executed) = short_and_long(26, long, memory);
        assert!(
            concurrent * 100 >= alone * 99,
            "{long} hosts with long commands, memory for {memory}: {concurrent} short commands \
             during them, {alone} without; at least 99 % expected"
        );
        let (all, least) = (executed.iter().sum::<usize>(), executed.iter().min());
        assert!(least.is_some_and(|least| least * 2 >= all / long), "{executed:?}");
        assert!(all >= memory * alone / 26 / 2, "{executed:?}");
    }
}

/// Goal: at a storage that limits the number of commands, hosts with long commands and hosts with
/// short ones wait equally long.
#[test]
fn commands_of_all_lengths_share_a_short_queue() {
    for commands_max in [1, 4, 25, 97] {
        block_on(async {
            let (depth, storage) = (QueueDepth::default(), Storage::new(commands_max));
            let (worst, end) = (Cell::new(Duration::ZERO), Instant::now() + 30 * STALL_TIME);
            let host = |n: usize| {
                let (depth, storage, worst) = (&depth, &storage, &worst);
                let bytes = SHORT << (4 * (n % 4));
                async move {
                    let mut executed = 0;
                    while Instant::now() < end {
                        let took = send_bytes(depth, bytes, || storage.execute(n)).await;
                        worst.set(worst.get().max(took.expect("no BUSY")));
                        executed += 1;
                    }
                    executed
                }
            };
            let executed: Vec<usize> = join_all((0..COMMANDS).map(host)).await;
            let by_length = |length| executed.iter().skip(length).step_by(4).sum::<usize>();
            let by_length: Vec<usize> = (0..4).map(by_length).collect();
            let each = SERVICE.max((2 * ONE_WAY + SERVICE) / commands_max as u32);
            let round = each * COMMANDS as u32;
            assert!(worst.get() <= round * 3, "{commands_max}: {:?} of {round:?}", worst.get());
            let even = executed.iter().sum::<usize>() / 4;
            assert!(by_length.iter().all(|count| count * 2 >= even), "{by_length:?}");
            assert_is_empty(&depth);
        });
    }
}

/// Returns a limit of `count` commands, all in progress.
fn limited(depth: &QueueDepth, count: usize) -> Vec<CommandInProgress<'_>> {
    let in_progress: Vec<_> = (0..count).map(|_| depth.begin(SHORT)).collect();
    depth.begin(SHORT).end(Some(UnitAnswer::Refused));
    assert_eq!((depth.state().limits[0].commands_max, depth.is_limited()), (count, true));
    in_progress
}

/// Goal: a command that waits leaves the queue when it is dropped, also when it has a permit that
/// it has not used; a command in progress that is dropped, for example with its session, returns
/// its permit.
#[test]
fn dropped_commands_leave() {
    block_on(async {
        let depth = QueueDepth::default();
        let mut in_progress = limited(&depth, 2);
        let mut turns: [RetryState; 3] = Default::default();
        let [first, second, third] = &mut turns;
        let mut first = Box::pin(depth.wait(first, SHORT, sleep_until));
        let mut second = Box::pin(depth.wait(second, SHORT, sleep_until));
        let mut third = Box::pin(depth.wait(third, SHORT, sleep_until));
        assert!((&mut first).now_or_never().is_none());
        assert!((&mut second).now_or_never().is_none());
        assert!((&mut third).now_or_never().is_none());
        drop(second);
        in_progress.pop();
        assert_eq!(
            (depth.state().limits[0].waiting.len(), depth.commands(0)),
            (1, 2),
            "the first has it"
        );
        drop(first);
        let third = third.now_or_never().expect("it was returned");
        assert_eq!(depth.commands(0), 2);
        drop((third, in_progress));
        assert_is_empty(&depth);
    });
}

/// Goal: refused commands come before new ones, in their order.
#[test]
fn refused_commands_come_first() {
    block_on(async {
        let depth = QueueDepth::default();
        let mut in_progress = limited(&depth, 3);
        let mut turns: [RetryState; 3] = Default::default();
        turns[1].record_refusal(SERVICE);
        turns[2].record_refusal(SERVICE);
        let order = RefCell::new(Vec::new());
        let waits = turns.iter_mut().enumerate().map(|(at, turn)| {
            let (depth, order) = (&depth, &order);
            async move {
                let in_progress = depth.wait(turn, SHORT, sleep_until).await;
                order.borrow_mut().push(at);
                in_progress
            }
        });
        let mut all = join_all(waits);
        for expected in [&[][..], &[1], &[1, 2]] {
            assert!((&mut all).now_or_never().is_none());
            assert_eq!(*order.borrow(), expected);
            in_progress.pop();
        }
        assert_eq!(all.now_or_never().unwrap().len(), 3);
        assert_is_empty(&depth);
    });
}

/// Goal: commands that have ended, but whose futures nobody polls, stop no others.
#[test]
fn commands_do_not_wait_for_ever() {
    block_on(async {
        let depth = QueueDepth::default();
        let unpolled = limited(&depth, 2);
        let began = Instant::now();
        let mut turns: [RetryState; 2] = Default::default();
        let [first, second] = &mut turns;
        let (first, second) =
            (depth.wait(first, SHORT, sleep_until), depth.wait(second, SHORT, sleep_until));
        let (first, second) = (pin!(first), pin!(second));
        let (granted, second) = select(first, second).await.factor_first();
        assert_eq!(began.elapsed().as_secs(), STALL_TIME.as_secs());
        drop((granted, second.await, unpolled));
        assert_is_empty(&depth);
    });
}

/// Goal: a long command that waits for others whose futures nobody polls is sent, also while short
/// ones are executed all the time.
#[test]
fn long_commands_do_not_wait_for_ever() {
    block_on(async {
        let depth = QueueDepth::default();
        let unpolled = depth.begin(LONG);
        depth.begin(LONG).end(Some(UnitAnswer::Refused));
        let began = Instant::now();
        let mut turn = RetryState::default();
        let mut long = pin!(depth.wait(&mut turn, LONG, sleep_until));
        let short = async {
            loop {
                send(&depth, || async { Status::GOOD }).await.unwrap();
                sleep(SERVICE).await;
            }
        };
        let granted = select(&mut long, pin!(short)).await.factor_first().0;
        assert_eq!(began.elapsed().as_secs(), STALL_TIME.as_secs());
        drop((granted, unpolled));
        assert_is_empty(&depth);
    });
}

/// Goal: the classes separate lengths of a factor of four, from 16 KiB to 4 MiB.
#[test]
fn lengths() {
    let classes = [0, 512, 8704, 16_896, 66_048, 262_656, 1 << 20, 4 << 20, 16 << 20];
    assert_eq!(classes.map(length_class), [0, 0, 0, 1, 2, 3, 4, 5, 5]);
}

/// Goal: the limit grows by one after a number of commands, and ends after a time without refusal.
#[test]
fn the_limit_grows_and_ends() {
    block_on(async {
        let depth = QueueDepth::default();
        let in_progress = limited(&depth, 2);
        for executed in 1..=2 * GROWTH_COMMANDS {
            depth.begin(SHORT).end(Some(UnitAnswer::Executed));
            let grown = 2 + (executed / GROWTH_COMMANDS) as usize;
            assert_eq!(depth.state().limits[0].commands_max, grown);
        }
        advance(QUIET_TIME).await;
        depth.begin(SHORT).end(None);
        assert!(depth.is_limited(), "no answer is no sign of room");
        depth.begin(SHORT).end(Some(UnitAnswer::Executed));
        assert!(!depth.is_limited());
        drop(in_progress);
        assert_is_empty(&depth);
    });
}
