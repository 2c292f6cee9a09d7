//! Runs one attack against one server: quiet, attack, aftermath, and a benign load for comparison
//! if the well-behaved client had less than half of its requests a second for long.

use super::attack::Attack;
use super::attacker::{Attacker, Destination};
use super::cdb;
use super::flood::Flood;
use super::good_client::{self, GoodClient, SucceededRequest};
use super::measurement::{MeasuredLoad, Measurement, ProcessEnd};
use super::memory_sampler::MemorySampler;
use super::new_sessions;
use super::server::{AttackedServer, DISK_BLOCKS};
use super::session::flags;
use super::verdict::{IOPS_SHARE_MIN, PAUSE_MAX, STARVED_SECONDS_MAX, longest_run};
use anyhow::{Context, Result};
use lunar_load::ListeningProcess;
use lunar_testkit::raw::opcode;
use std::net::SocketAddr;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Duration of the benign load.
const BENIGN: Duration = Duration::from_secs(5);
/// Time for the attack's and the client's connections to settle before figures count.
const SETTLE: Duration = Duration::from_millis(500);
/// Maximum number of runs of an attack.
const TRIES: usize = 3;
/// Interval at which the runner checks that the server lives.
const CHECK_INTERVAL: Duration = Duration::from_millis(20);
/// Maximum number of benign connections; each has [`good_client::DEPTH`] reads under way.
const BENIGN_CONNECTIONS_MAX: usize = 64;
/// Niceness of attackers and benign load, which yields the processor to the server and the
/// well-behaved client, as if they ran on machines of their own.
const NICE: i32 = 5;

/// Options of attack runs.
#[derive(Clone, Debug)]
pub struct AttackOptions {
    /// Time that the well-behaved client works alone before the attack.
    pub quiet: Duration,
    /// Duration of each attack.
    pub attack: Duration,
    /// Time that the client is watched after the attack.
    pub aftermath: Duration,
    /// Folder for disks.
    pub parent: String,
    /// Determines every random choice.
    pub seed: u64,
}

/// The phases of a run, while the clients work.
struct Timeline<'a> {
    attacked: &'a mut AttackedServer,
    pid: u32,
    completed: &'a AtomicU64,
    process_end: Option<(Instant, String)>,
}

/// Time span in which latencies of requests count.
#[derive(Clone, Copy)]
struct MeasuredSpan {
    /// Begin of the attack.
    from: Instant,
    /// End of the aftermath.
    to: Instant,
    /// Time at which the clients stopped.
    ended: Instant,
}

/// Runs `attack` against a server of its own; repeats if the machine paused the adversary
/// meanwhile.
///
/// # Errors
/// The server cannot be started, or the well-behaved client cannot log in before the attack.
pub fn run(attack: &Attack, options: &AttackOptions) -> Result<Measurement> {
    for _ in 1..TRIES {
        let measured = run_once(attack, options)?;
        if measured.pause <= PAUSE_MAX {
            return Ok(measured);
        }
    }
    run_once(attack, options)
}

fn run_once(attack: &Attack, options: &AttackOptions) -> Result<Measurement> {
    let mut attacked = AttackedServer::start(attack, &options.parent)?;
    let (address, pid, group) = (attacked.address()?, attacked.server().id(), attacked.group());
    let (stop, completed) = (AtomicBool::new(false), AtomicU64::new(0));
    let sampler = MemorySampler::default();
    let client = GoodClient::start(address, options.seed, &stop, &completed)?;
    let (mut measured, span, good, fresh) = std::thread::scope(|scope| {
        let good = scope.spawn(|| client.run());
        let fresh = scope.spawn(|| new_sessions::run(address, attack.resets_neighbour, &stop));
        scope.spawn(|| sampler.run(pid, group, &stop));
        let mut timeline =
            Timeline { attacked: &mut attacked, pid, completed: &completed, process_end: None };
        let (measured, from, to) = timeline.run(attack, address, options);
        let span = MeasuredSpan { from, to, ended: Instant::now() };
        stop.store(true, Ordering::Relaxed);
        (measured, span, good.join(), fresh.join())
    });
    measured.peak_bytes = sampler.peak_bytes();
    measured.pause = sampler.pause();
    measured.has_group = attacked.group().is_some();
    match &mut measured.process_end {
        Some(end) if sampler.has_ended_server() => end.how = "out of memory".to_owned(),
        Some(_) => {}
        None => measured.stop_error = attacked.stop().err().map(|error| format!("{error:#}")),
    }
    let good = good.ok().context("the well-behaved client panicked")?;
    let fresh = fresh.ok().context("the client of new sessions panicked")?;
    measured.data_error = data_error(&good, &fresh, &attacked)?;
    measured.worst = span.worst(&good.requests, good.unfinished);
    measured.worst_new_session = span.worst(&fresh.sessions, fresh.unfinished);
    measured.new_session_error = fresh.last_error;
    measured.sessions_lost = good.sessions_lost;
    measured.refusals = good.refusals;
    Ok(measured)
}

/// Describes wrong data in reads of the client or in the file at the end.
fn data_error(
    good: &good_client::ClientReport,
    fresh: &new_sessions::NewSessionReport,
    attacked: &AttackedServer,
) -> Result<Option<String>> {
    if good.data_error.is_some() {
        return Ok(good.data_error.clone());
    }
    if fresh.data_is_wrong {
        return Ok(Some("a new session read other data than was written".to_owned()));
    }
    let Some(disk) = attacked.shared_disk()? else { return Ok(None) };
    let own = good_client::BLOCKS as usize * good_client::BLOCK_BYTES;
    Ok(good.ledger.check(disk.get(..own).context("the disk is too short")?).err())
}

impl MeasuredSpan {
    /// Returns the longest latency of requests that were under way in this time; requests without
    /// an end count until the clients stopped.
    fn worst(
        &self,
        requests: &[SucceededRequest],
        unfinished: impl IntoIterator<Item = Instant>,
    ) -> Duration {
        let ended = requests.iter().map(|request| (request.ended - request.latency, request.ended));
        let unfinished = unfinished.into_iter().map(|sent| (sent, self.ended));
        let latencies = ended
            .chain(unfinished)
            .filter(|(sent, ended)| *ended >= self.from && *sent <= self.to)
            .map(|(sent, ended)| ended - sent);
        latencies.max().unwrap_or_default()
    }
}

impl Timeline<'_> {
    /// Runs all phases; returns also the begin of the attack and the end of its aftermath.
    fn run(
        &mut self,
        attack: &Attack,
        server: SocketAddr,
        options: &AttackOptions,
    ) -> (Measurement, Instant, Instant) {
        let mut measured = Measurement::new(attack);
        self.pass(SETTLE);
        measured.quiet = self.load(options.quiet);
        let begun = Instant::now();
        let stop = Arc::new(AtomicBool::new(false));
        let attacker = Attacker::new(server, options.seed, Arc::clone(&stop));
        let sent = Arc::clone(&attacker.sent);
        let run = attack.run;
        let attacking = std::thread::spawn(move || {
            lower_priority();
            run(&attacker)
        });
        measured.attack_load = self.load(options.attack);
        stop.store(true, Ordering::Relaxed);
        measured.attack_error = match attacking.join() {
            Ok(result) => result.err().map(|error| format!("{error:#}")),
            Err(_) => Some("the attack panicked".to_owned()),
        };
        measured.logins = sent.logins.load(Ordering::Relaxed);
        measured.sent = sent.text();
        self.pass(options.aftermath);
        let watched = Instant::now();
        // A benign load may only lower the rate that the client must have.
        let floor = measured.expected_iops() * IOPS_SHARE_MIN;
        let starved = longest_run(&measured.attack_load.seconds, floor);
        if self.process_end.is_none() && starved > STARVED_SECONDS_MAX {
            measured.benign = Some(self.benign(attack, server, options.seed));
        }
        let end = self.process_end.take();
        measured.process_end = end.map(|(at, how)| ProcessEnd { after: at - begun, how });
        (measured, begun, watched)
    }

    /// Waits for this time, or until the server's process has ended.
    fn pass(&mut self, time: Duration) {
        let until = Instant::now() + time;
        while self.process_end.is_none() && Instant::now() < until {
            std::thread::sleep(CHECK_INTERVAL.min(until.saturating_duration_since(Instant::now())));
            if !self.attacked.server().is_running().unwrap_or(false) {
                self.process_end = Some((Instant::now(), self.how_it_ended()));
            }
        }
    }

    fn how_it_ended(&mut self) -> String {
        let killed = self.attacked.group().and_then(|group| group.killed().ok()).unwrap_or(0);
        if killed > 0 {
            return "out of memory".to_owned();
        }
        let log = self.attacked.server().log();
        let panic = log.lines().find(|line| line.contains("panicked") || line.contains("alloc"));
        let end = self.attacked.server().wait(Duration::ZERO);
        let end = end.map_or_else(|error| error.to_string(), |end| format!("{end:?}"));
        format!("{end} {}", panic.unwrap_or_default())
    }

    /// Waits for this time and measures the client and the server's processors meanwhile.
    fn load(&mut self, time: Duration) -> MeasuredLoad {
        let owner = ListeningProcess { pid: self.pid };
        let used = || (owner.processor_time().unwrap_or_default(), lunar_load::processor_time());
        let (begun, before) = (Instant::now(), used());
        let mut seconds = Vec::new();
        while self.process_end.is_none() && begun.elapsed() < time {
            let (from, completed) = (Instant::now(), self.completed.load(Ordering::Relaxed));
            self.pass(Duration::from_secs(1).min(time.saturating_sub(begun.elapsed())));
            let count = self.completed.load(Ordering::Relaxed) - completed;
            seconds.push(count as f64 / from.elapsed().as_secs_f64());
        }
        // The processor time of a process that has ended is no longer available.
        let server = used().0.saturating_sub(before.0).as_secs_f64();
        let ours = used().1.saturating_sub(before.1).as_secs_f64();
        let time = begun.elapsed().as_secs_f64();
        MeasuredLoad { seconds, server_cores: server / time, cores: (server + ours) / time }
    }

    /// Runs as many connections as the attack has, each with as many reads under way as the client.
    fn benign(&mut self, attack: &Attack, server: SocketAddr, seed: u64) -> MeasuredLoad {
        let stop = Arc::new(AtomicBool::new(false));
        let attacker = Attacker::new(server, seed, Arc::clone(&stop));
        let connections = attack.connections.clamp(1, BENIGN_CONNECTIONS_MAX);
        let hosts = attack.hosts;
        let reading = std::thread::spawn(move || {
            lower_priority();
            benign_readers(&attacker, connections, hosts)
        });
        self.pass(SETTLE);
        let load = self.load(BENIGN);
        stop.store(true, Ordering::Relaxed);
        // A benign load that failed shows in its figures.
        drop(reading.join());
        load
    }
}

/// Lowers the priority of this thread and of the threads that it starts.
fn lower_priority() {
    // The priority stays unchanged if the system refuses.
    let _ = rustix::process::nice(NICE);
}

/// Runs sessions that read 4 KiB at random addresses of a LUN of their own and receive the data.
pub(super) fn benign_readers(attacker: &Attacker, connections: usize, hosts: usize) -> Result<()> {
    let threads = std::thread::available_parallelism()?.get().min(connections);
    attacker.in_threads(threads, |thread| {
        let share = connections / threads + usize::from(thread < connections % threads);
        // The flood returns no error, whatever happens to its sessions.
        let flood =
            Flood::new(share, Destination::Neighbour).numbered_from(thread << 16).from_hosts(hosts);
        drop(read_at_depth(attacker, flood, good_client::DEPTH, 0..DISK_BLOCKS));
    });
    Ok(())
}

/// Runs sessions that read 4 KiB at random addresses within these blocks, with this many reads
/// under way in each session, and receive the data.
pub(super) fn read_at_depth(
    attacker: &Attacker,
    flood: Flood,
    depth: usize,
    lbas: Range<u32>,
) -> Result<()> {
    const BLOCKS: u32 = 8;
    let mut under_way = std::collections::HashMap::new();
    let under_way = std::cell::RefCell::new(&mut under_way);
    flood.reading(
        attacker,
        |session| {
            let mut under_way = under_way.borrow_mut();
            let count: &mut usize = under_way.entry(session.negotiated.tsih).or_default();
            if *count < depth {
                *count += 1;
                let at = session.random.below(u64::from((lbas.end - lbas.start) / BLOCKS));
                let lba = u64::from(lbas.start) + at * u64::from(BLOCKS);
                let cdb = cdb::read(lba, BLOCKS);
                let command = session.command(flags::SIMPLE | flags::READ, &cdb, BLOCKS * 512);
                session.queue(&command);
            }
        },
        |session, pdu| {
            let has_ended = match pdu.opcode() {
                opcode::DATA_IN => pdu.header[1] & 1 != 0,
                opcode::SCSI_RESPONSE => true,
                _ => false,
            };
            if has_ended {
                let mut under_way = under_way.borrow_mut();
                let count = under_way.entry(session.negotiated.tsih).or_default();
                *count = count.saturating_sub(1);
            }
        },
    )
}
