//! Initiators with several commands in flight each, and a ledger of all blocks.

use crate::power_cut::commands::{CommandBuilder, CommandKind, LedgerEffect};
use crate::power_cut::rig::{LOST, Mode, read_all};
use anyhow::{Context, Result, bail, ensure};
use lunar_lab::ledger::Ledger;
use lunar_lab::random::Random;
use lunar_lab::wire::command_queue::Queue;
use lunar_testkit::raw::{RawClient, RawOutcome};
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

const BLOCK_BYTES: usize = 512;

const MODE: Mode = Mode { cache: "write-back", io: "buffered", block_bytes: BLOCK_BYTES };

/// Commands in flight of each initiator.
const DEPTH: usize = 4;

/// Maximum time for which a command waits for a member that returns.
const ANSWER_MAX: Duration = Duration::from_secs(60);

/// Number of answers that make a load count as running.
const ANSWERS: u64 = 100;

const POLL: Duration = Duration::from_millis(5);

/// Sense of a flush that reports lost writes: MEDIUM ERROR, WRITE ERROR.
const MEDIUM_ERROR: u8 = 3;

/// Statuses and sense key of commands that an initiator repeats. SAM-5 §5.3.1, SPC-4 §4.5.6.
const BUSY: u8 = 0x08;
const TASK_SET_FULL: u8 = 0x28;
const UNIT_ATTENTION: u8 = 6;

const SYNCHRONIZE_CACHE: [u8; 10] = [0x35, 0, 0, 0, 0, 0, 0, 0, 0, 0];

/// A disk that is tested, with logical blocks of 512 bytes.
#[derive(Clone, Copy, Debug)]
pub struct TestedDisk {
    pub target: &'static str,
    /// Number of blocks from 0 on whose content is known.
    pub blocks: usize,
    /// Number of blocks from 0 on that are written to.
    pub hot: u64,
    /// Number in the name of the first initiator.
    pub first_initiator: u32,
    /// True behind a switch: commands may end BUSY or with UNIT ATTENTION, and sessions may be
    /// lost.
    pub is_relayed: bool,
}

impl TestedDisk {
    /// Returns the length of the known blocks.
    pub const fn bytes(&self) -> usize {
        self.blocks * BLOCK_BYTES
    }

    /// Opens a session without pending unit attentions.
    fn log_in(&self, address: &str, number: u32) -> Result<RawClient> {
        let mut raw = RawClient::log_in_as(address, self.target, self.first_initiator + number)?;
        raw.execute(&[0; 6], 0)?;
        Ok(raw)
    }
}

/// Counts of all rounds.
#[derive(Clone, Copy, Debug, Default)]
pub struct Totals {
    pub acknowledged: u64,
    /// Flushes that reported a loss.
    pub reported_losses: u64,
    pub longest: Duration,
    /// Commands without an answer, because their session was lost.
    pub unanswered: u64,
    /// Commands that ended BUSY, TASK SET FULL or with UNIT ATTENTION.
    pub refused: u64,
}

impl fmt::Display for Totals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { acknowledged, reported_losses, longest, unanswered, refused } = self;
        write!(
            f,
            "{acknowledged} commands acknowledged, {refused} refused, {unanswered} unanswered, \
             {reported_losses} flushes reported a loss, longest latency {longest:.2?}"
        )
    }
}

/// State of the load that all initiators share.
struct Shared {
    ledger: Mutex<Ledger>,
    stop: AtomicBool,
    /// True from the moment on at which both members may lose their caches. Until a flush reports
    /// the loss, reads may return what was before it, and a flush promises only what its own
    /// initiator has written.
    may_lose: AtomicBool,
    answers: AtomicU64,
}

impl Shared {
    fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The load of all rounds.
pub struct Load {
    disk: TestedDisk,
    shared: Arc<Shared>,
    initiators: Vec<Initiator>,
    running: Vec<JoinHandle<Result<Initiator>>>,
    count: u32,
    totals: Totals,
}

/// A command in flight.
struct SentCommand {
    kind: CommandKind,
    effect: LedgerEffect,
    begun: Instant,
    /// Number of writes of its initiator that were acknowledged before.
    written: u64,
}

/// One initiator.
struct Initiator {
    disk: TestedDisk,
    address: String,
    number: u32,
    queue: Queue<SentCommand>,
    random: Random,
    counts: Totals,
    /// Number of acknowledged writes, and how many of them its flushes have covered.
    written: u64,
    flushed: u64,
    /// True if a flush or a durable write has reported a loss.
    was_told: bool,
}

impl Totals {
    fn add(&mut self, other: &Self) {
        self.acknowledged += other.acknowledged;
        self.reported_losses += other.reported_losses;
        self.longest = self.longest.max(other.longest);
        self.unanswered += other.unanswered;
        self.refused += other.refused;
    }
}

impl Load {
    pub fn new(disk: TestedDisk, count: u32) -> Self {
        let ledger = Mutex::new(Ledger::new(disk.blocks, BLOCK_BYTES));
        let [stop, may_lose] = [(); 2].map(|()| AtomicBool::default());
        let shared = Arc::new(Shared { ledger, stop, may_lose, answers: AtomicU64::default() });
        let (initiators, running) = (Vec::new(), Vec::new());
        Self { disk, shared, initiators, running, count, totals: Totals::default() }
    }

    pub fn totals(&self) -> Totals {
        self.totals
    }

    /// Starts the initiators, which log in to this address.
    pub fn start(&mut self, address: &str, random: &mut Random) -> Result<()> {
        self.shared.stop.store(false, SeqCst);
        self.shared.may_lose.store(false, SeqCst);
        for number in 0..self.count {
            let initiator = Initiator {
                disk: self.disk,
                address: address.to_owned(),
                number,
                queue: Queue::over(self.disk.log_in(address, number)?),
                random: Random::new(random.next_u64()),
                counts: Totals::default(),
                written: 0,
                flushed: 0,
                was_told: false,
            };
            let shared = Arc::clone(&self.shared);
            self.running.push(std::thread::spawn(move || initiator.run(&shared)));
        }
        Ok(())
    }

    /// Records that both members may lose their caches from now on.
    pub fn expect_loss(&self) {
        self.shared.may_lose.store(true, SeqCst);
    }

    /// Waits until more commands are answered, or until an initiator has ended.
    pub fn wait_for_answers(&self) -> Result<()> {
        let (from, until) = (self.shared.answers.load(SeqCst), Instant::now() + ANSWER_MAX);
        while self.shared.answers.load(SeqCst) < from + ANSWERS {
            if self.running.iter().any(JoinHandle::is_finished) {
                return Ok(());
            }
            ensure!(Instant::now() < until, "commands are not answered");
            std::thread::sleep(POLL);
        }
        Ok(())
    }

    /// Stops the initiators when all their commands are answered.
    pub fn finish(&mut self) -> Result<()> {
        self.shared.stop.store(true, SeqCst);
        for running in self.running.drain(..) {
            match running.join() {
                Ok(ended) => self.initiators.push(ended?),
                Err(_) => bail!("an initiator panicked"),
            }
        }
        Ok(())
    }

    /// Flushes, and compares all blocks with the ledger.
    pub fn check(&mut self, address: &str) -> Result<()> {
        let may_lose = self.shared.may_lose.load(SeqCst);
        let sync = self.shared.ledger().begin_sync();
        let mut told = Vec::new();
        for mut initiator in std::mem::take(&mut self.initiators) {
            if !initiator.was_told {
                initiator.flush()?;
            }
            told.push((
                initiator.number,
                initiator.was_told,
                initiator.written > initiator.flushed,
            ));
            self.totals.add(&initiator.counts);
            self.totals.reported_losses += u64::from(initiator.was_told);
        }
        let is_told = told.iter().any(|(_, was_told, _)| *was_told);
        ensure!(may_lose || !is_told, "{LOST}: a flush reports a loss: {told:?}");
        let is_left_out = told.iter().any(|(_, was_told, unflushed)| !was_told && *unflushed);
        ensure!(!(is_told && is_left_out), "{LOST}: not all writers were told: {told:?}");
        if !is_told {
            self.shared.ledger().acknowledge_sync(sync, 0..self.disk.blocks as u64);
        }
        let mut raw = self.disk.log_in(address, self.count)?;
        let found = read_all(&mut raw, self.disk.blocks as u64, BLOCK_BYTES)?;
        let torn = self.shared.ledger().accept(&found).map_err(anyhow::Error::msg);
        let torn = torn.with_context(|| format!("{LOST}: told {told:?}"))?;
        ensure!(torn.is_empty(), "{LOST}: torn blocks: {torn:?}");
        Ok(())
    }
}

impl Initiator {
    fn run(mut self, shared: &Shared) -> Result<Self> {
        loop {
            let goes_on = !shared.stop.load(SeqCst) && !self.was_told;
            while goes_on && self.queue.depth() < DEPTH {
                match self.send(shared) {
                    // A lost session is found when its answers are read.
                    Err(_) if self.disk.is_relayed => break,
                    sent => sent?,
                }
            }
            if self.queue.depth() == 0 {
                return Ok(self);
            }
            let Some((sent, outcome)) = self.queue.wait_within(ANSWER_MAX)? else {
                self.log_in_again()?;
                continue;
            };
            self.counts.longest = self.counts.longest.max(sent.begun.elapsed());
            self.record(shared, sent, &outcome)?;
            shared.answers.fetch_add(1, SeqCst);
        }
    }

    /// Replaces the lost session, whose commands remain without an answer.
    fn log_in_again(&mut self) -> Result<()> {
        ensure!(self.disk.is_relayed, "the connection has ended");
        self.counts.unanswered += self.queue.depth() as u64;
        let until = Instant::now() + ANSWER_MAX;
        loop {
            match self.disk.log_in(&self.address, self.number) {
                Ok(raw) => {
                    self.queue = Queue::over(raw);
                    return Ok(());
                }
                Err(error) if Instant::now() > until => return Err(error),
                Err(_) => std::thread::sleep(POLL),
            }
        }
    }

    fn send(&mut self, shared: &Shared) -> Result<()> {
        let kind = match self.random.below(20) {
            0 => CommandKind::Synchronize10,
            1 => CommandKind::WriteFua,
            2 => CommandKind::WriteSame,
            3..8 => CommandKind::Read,
            _ => CommandKind::Write,
        };
        let mut ledger = shared.ledger();
        let command = CommandBuilder {
            mode: MODE,
            ledger: &mut ledger,
            random: &mut self.random,
            designation: &[],
            hot: self.disk.hot,
            overlaps: true,
        }
        .build(kind);
        let Some(command) = command else { return Ok(()) };
        let what = self.sent(kind, command.effect);
        match command.read_bytes {
            0 => self.queue.send(&command.cdb, &command.data, what),
            bytes => self.queue.send_read(&command.cdb, bytes, what),
        }
    }

    fn sent(&self, kind: CommandKind, effect: LedgerEffect) -> SentCommand {
        SentCommand { kind, effect, begun: Instant::now(), written: self.written }
    }

    fn record(&mut self, shared: &Shared, sent: SentCommand, outcome: &RawOutcome) -> Result<()> {
        let SentCommand { kind, effect, written, .. } = sent;
        let is_durable = matches!(kind, CommandKind::Synchronize10 | CommandKind::WriteFua);
        if is_durable && outcome.status != 0 && outcome.sense_codes().0 == MEDIUM_ERROR {
            self.was_told = true;
            return Ok(());
        }
        let is_refused = matches!(outcome.status, BUSY | TASK_SET_FULL)
            || outcome.sense_codes().0 == UNIT_ATTENTION;
        if self.disk.is_relayed && is_refused {
            // The write may have been executed in part.
            self.counts.refused += 1;
            return Ok(());
        }
        let mut ledger = shared.ledger();
        let may_lose = shared.may_lose.load(SeqCst);
        let effect = match kind {
            CommandKind::Read | CommandKind::Synchronize10 if may_lose => LedgerEffect::Nothing,
            _ => effect,
        };
        effect.record(&mut ledger, outcome).with_context(|| format!("{kind:?}"))?;
        match kind {
            CommandKind::Synchronize10 => self.flushed = self.flushed.max(written),
            CommandKind::Write | CommandKind::WriteSame => self.written += 1,
            _ => {}
        }
        self.counts.acknowledged += 1;
        Ok(())
    }

    /// Sends a last flush, when nothing else is in flight.
    fn flush(&mut self) -> Result<()> {
        let what = self.sent(CommandKind::Synchronize10, LedgerEffect::Nothing);
        self.queue.send(&SYNCHRONIZE_CACHE, &[], what)?;
        let answer = self.queue.wait_within(ANSWER_MAX)?;
        let (_, outcome) = answer.context("the connection has ended")?;
        match outcome.status {
            0 => Ok(()),
            _ if outcome.sense_codes().0 == MEDIUM_ERROR => {
                self.was_told = true;
                Ok(())
            }
            _ => bail!("a flush fails: {outcome:02x?}"),
        }
    }
}
