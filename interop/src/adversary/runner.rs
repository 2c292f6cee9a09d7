//! Runs one attack against one server: quiet, attack, aftermath, and a benign load to compare with
//! if the well-behaved client got less than half of its requests through.

use super::attacker::{Aim, Attack, Attacker};
use super::cdb;
use super::flood::Flood;
use super::good_client::{self, GoodClient, Request};
use super::measurement::{Death, Load, Measurement};
use super::meter::Meter;
use super::newcomer;
use super::session::flags;
use super::verdict::{IOPS_SHARE_MIN, longest_run};
use super::victim::{DISK_BLOCKS, Victim};
use crate::raw::opcode;
use anyhow::{Context, Result};
use load::Owner;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// How long the benign load lasts.
const BENIGN: Duration = Duration::from_secs(5);
/// How long the attack's and the client's connections have to settle before figures count.
const SETTLE: Duration = Duration::from_millis(500);
/// How often the runner looks whether the server lives.
const LOOK: Duration = Duration::from_millis(20);
/// Benign connections at most; each has [`good_client::DEPTH`] reads under way.
const BENIGN_CONNECTIONS_MAX: usize = 64;
/// Attackers and benign load give way to the server and the well-behaved client, as if they ran
/// on machines of their own.
const NICE: i32 = 5;

/// How to run attacks.
#[derive(Clone, Debug)]
pub struct Options {
    /// How long the well-behaved client works alone before the attack.
    pub quiet: Duration,
    /// How long each attack lasts.
    pub attack: Duration,
    /// How long the client is watched after the attack.
    pub aftermath: Duration,
    /// Folder for disks.
    pub parent: String,
    /// Determines every random choice.
    pub seed: u64,
}

/// What is watched while phases pass.
struct Watch<'a> {
    victim: &'a mut Victim,
    pid: u32,
    completed: &'a AtomicU64,
    death: Option<(Instant, String)>,
}

/// Runs `attack` against a server of its own.
///
/// # Errors
/// The server cannot be started, or the well-behaved client cannot log in before the attack.
pub fn run(attack: &Attack, options: &Options) -> Result<Measurement> {
    let mut victim = Victim::start(attack, &options.parent)?;
    let (server, pid, group) = (victim.address()?, victim.server().id(), victim.group());
    let (stop, completed, meter) = (AtomicBool::new(false), AtomicU64::new(0), Meter::default());
    let client = GoodClient::start(server, options.seed, &stop, &completed)?;
    let (mut measured, good, visits, begun, ended) = std::thread::scope(|scope| {
        let client = scope.spawn(|| client.run());
        let newcomer = scope.spawn(|| newcomer::run(server, &stop));
        scope.spawn(|| meter.run(pid, group, &stop));
        let mut watch = Watch { victim: &mut victim, pid, completed: &completed, death: None };
        let (measured, begun) = watch.phases(attack, server, options);
        let ended = Instant::now();
        stop.store(true, Ordering::Relaxed);
        let (good, visits) = (client.join(), newcomer.join());
        (measured, good, visits, begun, ended)
    });
    let good = good.ok().context("the well-behaved client panicked")?;
    let visits = visits.ok().context("the newcomer panicked")?;
    measured.peak_bytes = meter.peak_bytes();
    measured.has_group = victim.group().is_some();
    if let Some(death) = measured.death.as_mut().filter(|_| meter.has_ended_server()) {
        death.how = "it passed the memory limit".to_owned();
    }
    let alive = measured.death.is_none();
    measured.worst = worst(&good.requests, &good.unfinished, begun, ended);
    let unfinished: Vec<Instant> = visits.unfinished.into_iter().collect();
    measured.worst_visit = worst(&visits.visits, &unfinished, begun, ended);
    measured.visit_error = visits.last_error;
    measured.sessions_lost = good.sessions_lost;
    measured.refusals = good.refusals;
    measured.stop_error = match alive {
        true => victim.stop().err().map(|error| format!("{error:#}")),
        false => None,
    };
    measured.data_error = good.data_error;
    if visits.data_is_wrong {
        measured.data_error = Some("a new session read other data than was written".to_owned());
    }
    if measured.data_error.is_none() {
        let disk = victim.shared_disk()?;
        let own = &disk[..good_client::BLOCKS as usize * good_client::BLOCK_BYTES];
        measured.data_error = good.ledger.check(own).err();
    }
    Ok(measured)
}

/// The longest latency of requests that ended after `begun`; those without an end count until
/// `ended`.
fn worst(requests: &[Request], unfinished: &[Instant], begun: Instant, ended: Instant) -> Duration {
    let of_requests = requests.iter().filter(|request| request.ended >= begun);
    let of_unfinished = unfinished.iter().map(|sent| ended.saturating_duration_since(*sent));
    of_requests.map(|request| request.latency).chain(of_unfinished).max().unwrap_or_default()
}

impl Watch<'_> {
    /// All phases; also when the attack began.
    fn phases(
        &mut self,
        attack: &Attack,
        server: SocketAddr,
        options: &Options,
    ) -> (Measurement, Instant) {
        let mut measured = Measurement::new(attack);
        self.pass(SETTLE);
        measured.quiet = self.load(options.quiet);
        let begun = Instant::now();
        let stop = Arc::new(AtomicBool::new(false));
        let attacker = Attacker::new(server, options.seed, Arc::clone(&stop));
        let sent = Arc::clone(&attacker.sent);
        let run = attack.run;
        let attacking = std::thread::spawn(move || {
            give_way();
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
        let floor = measured.quiet.iops() * IOPS_SHARE_MIN;
        if self.death.is_none() && longest_run(&measured.attack_load.seconds, floor) > 0 {
            measured.benign = Some(self.benign(attack.connections, server, options.seed));
        }
        measured.death = self.death.take().map(|(at, how)| Death { after: at - begun, how });
        (measured, begun)
    }

    /// Lets time pass, until the server has died.
    fn pass(&mut self, time: Duration) {
        let until = Instant::now() + time;
        while self.death.is_none() && Instant::now() < until {
            std::thread::sleep(LOOK.min(until.saturating_duration_since(Instant::now())));
            if !self.victim.server().is_running().unwrap_or(false) {
                self.death = Some((Instant::now(), self.how_it_ended()));
            }
        }
    }

    fn how_it_ended(&mut self) -> String {
        let killed = self.victim.group().and_then(|group| group.killed().ok()).unwrap_or(0);
        if killed > 0 {
            return "out of memory".to_owned();
        }
        let log = self.victim.server().log();
        let panic = log.lines().find(|line| line.contains("panicked") || line.contains("alloc"));
        let end = self.victim.server().wait(Duration::ZERO);
        let end = end.map_or_else(|error| error.to_string(), |end| format!("{end:?}"));
        format!("{end} {}", panic.unwrap_or_default())
    }

    /// Lets time pass and counts what the client and the server's processors do meanwhile.
    fn load(&mut self, time: Duration) -> Load {
        let owner = Owner { pid: self.pid };
        let (begun, processor) = (Instant::now(), owner.processor_time());
        let mut seconds = Vec::new();
        while self.death.is_none() && begun.elapsed() < time {
            let (from, before) = (Instant::now(), self.completed.load(Ordering::Relaxed));
            self.pass(Duration::from_secs(1).min(time.saturating_sub(begun.elapsed())));
            let count = self.completed.load(Ordering::Relaxed) - before;
            seconds.push(count as f64 / from.elapsed().as_secs_f64());
        }
        let used = owner.processor_time().unwrap_or_default();
        let used = used.saturating_sub(processor.unwrap_or_default());
        let cores = used.as_secs_f64() / begun.elapsed().as_secs_f64();
        Load { seconds, cores: if self.death.is_none() { cores } else { 0.0 } }
    }

    /// As many connections as the attack has, each with as many reads under way as the client.
    fn benign(&mut self, connections: usize, server: SocketAddr, seed: u64) -> Load {
        let stop = Arc::new(AtomicBool::new(false));
        let attacker = Attacker::new(server, seed, Arc::clone(&stop));
        let reading = std::thread::spawn(move || {
            give_way();
            benign_readers(&attacker, connections.clamp(1, BENIGN_CONNECTIONS_MAX))
        });
        self.pass(SETTLE);
        let load = self.load(BENIGN);
        stop.store(true, Ordering::Relaxed);
        // A benign load that failed shows in its figures.
        drop(reading.join());
        load
    }
}

/// Lowers the priority of this thread and of those that it starts.
fn give_way() {
    // A system that refuses leaves the priority as it is.
    let _ = rustix::process::nice(NICE);
}

/// Sessions that read 4 KiB at random places of a LUN of their own and take the answers.
pub(super) fn benign_readers(attacker: &Attacker, connections: usize) -> Result<()> {
    const BLOCKS: u32 = 8;
    let mut under_way = std::collections::HashMap::new();
    let under_way = std::cell::RefCell::new(&mut under_way);
    Flood::new(connections, Aim::Neighbour).reading(
        attacker,
        |session| {
            let mut under_way = under_way.borrow_mut();
            let count: &mut usize = under_way.entry(session.negotiated.tsih).or_default();
            if *count < good_client::DEPTH {
                *count += 1;
                let lba = session.random.below(u64::from(DISK_BLOCKS / BLOCKS)) * u64::from(BLOCKS);
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
