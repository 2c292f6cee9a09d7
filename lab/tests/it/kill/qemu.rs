//! QEMU's initiator at work: one program that stays connected from before the kill till after it.

use anyhow::{Context, Result, anyhow, ensure};
use lunar_lab::peers::qemu_io::QemuIo;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};
use tokio::runtime::{Builder, Runtime};
use tokio::time::timeout;

/// Parts of texts in which qemu-io reports an error.
const ERRORS: [&str; 3] = ["failed", "Failed", "rror"];
/// Writes in flight at once.
const DEPTH: u64 = 8;
/// Number of turns whose areas on the disk do not overlap.
const TURNS_APART: u64 = 64;
const KIB_EACH: u64 = 64;
const POLL: Duration = Duration::from_millis(10);

/// Results of its work.
#[derive(Clone, Copy, Debug)]
pub struct WorkResults {
    pub commands: u64,
    /// Maximum time of one command.
    pub longest: Duration,
}

/// `qemu-io` on a disk, at work until [`finish`](Self::finish).
pub struct Qemu {
    stop: Arc<AtomicBool>,
    turns: Arc<AtomicU64>,
    thread: JoinHandle<Result<WorkResults>>,
}

impl Qemu {
    /// Opens the disk, and begins. Returns only after the first response, since a program that
    /// opens a disk while no server runs gets an error at once and ends.
    pub fn start(url: &str, limit: Duration) -> Result<Self> {
        let (stop, turns) = (Arc::<AtomicBool>::default(), Arc::<AtomicU64>::default());
        let mut session = Session::open(url, limit)?;
        let (until, count) = (Arc::clone(&stop), Arc::clone(&turns));
        let thread = thread::spawn(move || {
            while !until.load(Ordering::Relaxed) {
                session.turn(count.load(Ordering::Relaxed))?;
                count.fetch_add(1, Ordering::Relaxed);
            }
            session.end()
        });
        Ok(Self { stop, turns, thread })
    }

    /// Waits for a turn that began after this call, and ends the program.
    pub fn finish(self, limit: Duration) -> Result<WorkResults> {
        let (from, until) = (self.turns.load(Ordering::Relaxed), Instant::now() + limit);
        while self.turns.load(Ordering::Relaxed) < from + 2 && !self.thread.is_finished() {
            ensure!(Instant::now() < until, "QEMU did not go on within {limit:?}");
            thread::sleep(POLL);
        }
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().map_err(|_| anyhow!("QEMU's thread panicked"))?
    }
}

/// The program, which receives one command after the other.
struct Session {
    runtime: Runtime,
    program: QemuIo,
    limit: Duration,
    done: WorkResults,
}

impl Session {
    fn open(url: &str, limit: Duration) -> Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let opened = async { timeout(limit, QemuIo::open(url, "none", None)).await };
        let program = runtime.block_on(opened).context("QEMU opening the disk")??;
        let done = WorkResults { commands: 0, longest: Duration::ZERO };
        let mut session = Self { runtime, program, limit, done };
        session.ask("read 0 4k")?;
        Ok(session)
    }

    /// Writes at depth, flushes, and reads every byte back.
    fn turn(&mut self, turn: u64) -> Result<()> {
        let byte = 1 + turn % 255;
        let at = |step| (turn % TURNS_APART * DEPTH + step) * KIB_EACH;
        for step in 0..DEPTH {
            self.ask(&format!("aio_write -P {byte} {}k {KIB_EACH}k", at(step)))?;
        }
        self.ask("aio_flush")?;
        self.ask("flush")?;
        for step in 0..DEPTH {
            self.ask(&format!("read -P {byte} {}k {KIB_EACH}k", at(step)))?;
        }
        Ok(())
    }

    fn ask(&mut self, command: &str) -> Result<()> {
        let asked = Instant::now();
        let Self { runtime, program, limit, .. } = self;
        let answered = async { timeout(*limit, program.ask(command)).await };
        let answer = runtime.block_on(answered).with_context(|| command.to_owned())?;
        let answer = answer.with_context(|| command.to_owned())?;
        self.done.longest = self.done.longest.max(asked.elapsed());
        self.done.commands += 1;
        check(command, &answer)
    }

    fn end(self) -> Result<WorkResults> {
        let printed = self.runtime.block_on(self.program.end())?;
        check("its error output", &printed)?;
        Ok(self.done)
    }
}

/// Fails if a text of qemu-io reports an error.
fn check(command: &str, answer: &str) -> Result<()> {
    let is_error = ERRORS.iter().any(|word| answer.contains(word));
    ensure!(!is_error, "{command}: QEMU met an error: {answer}");
    Ok(())
}
