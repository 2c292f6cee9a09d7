//! One scene: a load through the relay on one target, and cuts at every kind of PDU.

use crate::cuts::load::{CommandInterface, DISK_BLOCKS, Load, LoadResults, verify};
use crate::cuts::peers::{Keys, Peer};
use crate::cuts::recorder::Account;
use crate::cuts::sampler::Sampler;
use crate::targets::TargetKind;
use anyhow::{Context, Result, bail, ensure};
use lunar_initiator::{Initiator, RemoteDisk, SessionOptions, Unit, Url, discover};
use lunar_iscsi::text::Digest;
use lunar_lab::random::Random;
use lunar_lab::wire::cutter::{ConnectionCut, Cut, CutCounts, CutPosition, Cutter, Flip, PduKind};
use lunar_wire::Lun;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Time limit much longer than any step: a long write to tgt takes dozens of round trips, each as
/// long as a busy machine makes it.
const WAIT_MAX: Duration = Duration::from_secs(60);
/// Time that commands wait for a session; longer than any recovery here.
const RECOVERY_SECONDS: u32 = 120;
const POLL: Duration = Duration::from_millis(2);
/// Time after which a PDU kind that did not occur is provoked again.
const AGAIN: Duration = Duration::from_millis(500);
/// Number of steps of each worker in scenes without cuts.
const QUIET_STEPS: u64 = 40;
/// Maximum delay of packets of a connection that lingers, in milliseconds.
const LATE_MAX: u64 = 150;
/// Time within which a session notices the end of a connection.
const NOTICED: Duration = Duration::from_millis(250);

/// Events besides the load.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Plot {
    /// None.
    Quiet,
    /// Connections are cut.
    Cuts,
    /// Bits are inverted, which digests have to detect.
    Flips,
}

/// Parameters of a scene.
#[derive(Clone, Copy, Debug)]
pub struct Scene {
    pub who: TargetKind,
    pub connections: u16,
    /// True for raw commands, which are never repeated, instead of a disk's.
    pub raw: bool,
    pub plot: Plot,
    pub keys: Keys,
    pub seed: u64,
}

/// Results of scenes.
#[derive(Debug, Default)]
pub struct Outcome {
    pub cuts: BTreeMap<PduKind, u64>,
    pub cut_anyhow: u64,
    /// Bits that were inverted.
    pub flips: u64,
    /// Kinds that can occur.
    pub kinds: Vec<PduKind>,
    pub rejects: u64,
    pub results: LoadResults,
    pub samples: u64,
    pub repetitions: u64,
    pub executions_max: u64,
}

impl Outcome {
    fn count(&mut self, counts: &CutCounts) {
        for (kind, cuts) in &counts.cut {
            *self.cuts.entry(*kind).or_default() += cuts;
        }
        self.cut_anyhow += counts.cut_anyhow;
        self.flips += counts.flipped.values().sum::<u64>();
        self.rejects += counts.seen.get(&PduKind::Reject).copied().unwrap_or(0);
    }

    /// Adds the results of another scene.
    pub fn add(&mut self, other: Self) {
        for (kind, cuts) in other.cuts {
            *self.cuts.entry(kind).or_default() += cuts;
        }
        self.cut_anyhow += other.cut_anyhow;
        self.flips += other.flips;
        self.kinds.extend(other.kinds);
        self.rejects += other.rejects;
        self.results.add(other.results);
        self.samples += other.samples;
        self.repetitions += other.repetitions;
        self.executions_max = self.executions_max.max(other.executions_max);
    }

    /// Checks that connections were cut at each kind that can occur.
    pub fn all_kinds_were_cut(&self) -> Result<()> {
        let missing: Vec<_> = self.kinds.iter().filter(|k| !self.cuts.contains_key(k)).collect();
        ensure!(missing.is_empty(), "never cut: {missing:?}");
        Ok(())
    }

    /// Prints the results for the log of the test.
    pub fn print(&self, name: &str) {
        let results = &self.results;
        let cuts: u64 = self.cuts.values().sum();
        println!(
            "{name}: {cuts} cuts at a PDU and {} others, {} bits; {} writes acknowledged, {} \
             reads, {} flushes ({} reported a lost cache), {} abandoned, {} raw ones lost; {} \
             samples; {} repetitions, {} executions at most; longest latency {:.2?}; {} rejects",
            self.cut_anyhow,
            self.flips,
            results.acknowledged,
            results.reads,
            results.flushes,
            results.lost_caches,
            results.abandoned,
            results.lost,
            self.samples,
            self.repetitions,
            self.executions_max,
            results.longest,
            self.rejects,
        );
        for (kind, cuts) in &self.cuts {
            println!("    {kind:<20} {cuts}");
        }
    }
}

/// True for kinds that a load causes all the time.
fn is_frequent(kind: PduKind) -> bool {
    matches!(
        kind,
        PduKind::CommandRead
            | PduKind::CommandImmediate
            | PduKind::CommandWrite
            | PduKind::DataOutUnsolicited
            | PduKind::DataOutSolicited
            | PduKind::ReadyToTransfer
            | PduKind::DataIn
            | PduKind::ScsiResponse
    )
}

/// A running scene.
struct Stage {
    scene: Scene,
    peer: Peer,
    cutter: Arc<Cutter>,
    options: SessionOptions,
    initiator: Initiator,
    load: Load,
    random: Random,
}

impl Scene {
    /// Runs the scene, in a runtime of its own.
    pub fn play(self) -> Result<Outcome> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let played = runtime.block_on(self.run()).with_context(|| format!("{self:?}"));
        drop(runtime);
        let (outcome, peer) = played?;
        peer.check_no_sessions()?;
        Ok(outcome)
    }

    /// False for istgt 0.4, which leaves out a StatSN for each command that it aborts, and may
    /// request data of an aborted one; both cost the session. No more commands are cancelled there
    /// than needed.
    fn abandons(self) -> bool {
        self.who != TargetKind::Istgt
    }

    /// Checks the logout; istgt 0.4 now and then closes the connection without a Logout Response.
    fn check_logout(self, logged_out: Result<(), lunar_initiator::Error>) -> Result<()> {
        match logged_out {
            Err(error) if self.who != TargetKind::Istgt => Err(error).context("the last logout"),
            _ => Ok(()),
        }
    }

    fn options(self) -> SessionOptions {
        let name = format!("iqn.2026-11.org.lunarsan.test:cuts-{}", self.seed);
        let mut options = SessionOptions::new(name);
        let (header, data) = self.keys.digests();
        options.header_digest = vec![header];
        options.data_digest = vec![data];
        options.recovery_seconds = RECOVERY_SECONDS;
        options.connections = self.connections;
        options
    }

    async fn run(self) -> Result<(Outcome, Peer)> {
        let keys = self.keys;
        let peer = Peer::start(self.who, keys, DISK_BLOCKS, self.seed)?;
        let cutter = Arc::new(Cutter::to(peer.address())?);
        let options = self.options();
        let url = peer.url(&cutter.address().to_string())?;
        let initiator = Initiator::connect(&url, &options).await?;
        let negotiated = initiator.established().session;
        ensure!(negotiated.immediate_data == keys.immediate_data, "{negotiated:?}");
        let digests = initiator.established().connection.digests;
        ensure!((digests.header, digests.data) == (keys.header_digest, keys.data_digest));
        ensure!(initiator.connections() == usize::from(self.connections));
        let hand = if self.raw {
            CommandInterface::Raw(initiator.clone(), Lun::new(peer.lun))
        } else {
            let unit = Unit::new(initiator.clone(), peer.lun);
            CommandInterface::Disk(Arc::new(RemoteDisk::open(unit, &url).await?))
        };
        // Our own target reports the loss of the nexus; other targets report a power-on, or
        // nothing.
        let may_lose_cache = self.who != TargetKind::Own;
        let load = Load::start(&hand, &cutter, self.seed, may_lose_cache);
        load.set_abandoning(self.abandons());
        let sampler = Sampler::start(&peer, &load.ledger)?;
        drop(hand);
        let random = Random::new(self.seed ^ 0xc075);
        let mut stage = Stage { scene: self, peer, cutter, options, initiator, load, random };
        match self.plot {
            Plot::Quiet => stage.use_it().await?,
            Plot::Cuts => stage.cut_everywhere().await?,
            Plot::Flips => stage.flip_everywhere().await?,
        }
        stage.finish(sampler).await
    }
}

impl Stage {
    /// Cuts connections at each kind of PDU, at each position of frequent kinds, in another order
    /// for each seed.
    async fn cut_everywhere(&mut self) -> Result<()> {
        let mut cuts = Vec::new();
        for kind in self.kinds() {
            // With istgt each cut costs a second.
            let positions =
                if is_frequent(kind) && self.scene.who != TargetKind::Istgt { 4 } else { 1 };
            let first = self.random.below(4);
            cuts.extend((0..positions).map(|position| (kind, first + position)));
        }
        for at in (1..cuts.len()).rev() {
            cuts.swap(at, self.random.below(at as u64 + 1) as usize);
        }
        for (kind, position) in cuts {
            let cut = self.choose(kind, position % 4);
            if let Err(error) = self.cut(cut).await {
                let last = self.cutter.counts().last;
                let up = self.initiator.connections();
                let what = format!("{cut:?}, {up} connections, last seen: {last:?}");
                return Err(error.context(format!("{what}\n{}", self.peer.log())));
            }
        }
        Ok(())
    }

    /// Inverts bits in each kind of PDU, in its data and in its header as far as digests protect
    /// them.
    async fn flip_everywhere(&mut self) -> Result<()> {
        let keys = self.scene.keys;
        for kind in self.peer.kinds(keys).into_iter().filter(|kind| is_frequent(*kind)) {
            let brings_data = matches!(
                kind,
                PduKind::CommandImmediate
                    | PduKind::DataOutUnsolicited
                    | PduKind::DataOutSolicited
                    | PduKind::DataIn
            );
            for in_data in [false, true] {
                let protected = if in_data { keys.data_digest } else { keys.header_digest };
                if !protected || (in_data && !brings_data) {
                    continue;
                }
                let skip = self.random.below(12) as u32;
                let bit = self.random.below(1 << 20) as usize;
                let flip = Flip { kind, skip, in_data, bit };
                if let Err(error) = self.flip(flip).await {
                    return Err(error.context(format!("{flip:?}\n{}", self.peer.log())));
                }
            }
        }
        Ok(())
    }

    async fn flip(&mut self, flip: Flip) -> Result<()> {
        let began = Instant::now();
        self.cutter.flip(flip);
        while self.cutter.is_to_flip() {
            ensure!(began.elapsed() < WAIT_MAX, "it has not come about in {WAIT_MAX:?}");
            self.load.check().await?;
            tokio::time::sleep(POLL).await;
        }
        self.load.wait_for_steps(WAIT_MAX).await
    }

    /// Runs only the load, for a while.
    async fn use_it(&mut self) -> Result<()> {
        for _ in 0..QUIET_STEPS / 2 {
            self.load.wait_for_steps(WAIT_MAX).await?;
        }
        Ok(())
    }

    /// Returns the kinds that are to be cut.
    fn kinds(&self) -> Vec<PduKind> {
        use PduKind::{CommandOther, ManagementRequest, ManagementResponse};
        let disk_only =
            |kind| matches!(kind, CommandOther | ManagementRequest | ManagementResponse);
        let mut kinds = self.peer.kinds(self.scene.keys);
        kinds
            .retain(|kind| self.scene.plot == Plot::Cuts && (!self.scene.raw || !disk_only(*kind)));
        kinds
    }

    fn choose(&mut self, kind: PduKind, position: u64) -> Cut {
        let random = &mut self.random;
        let position = match position {
            0 => CutPosition::Before,
            1 => CutPosition::InHeader(1 + random.below(47) as usize),
            2 => CutPosition::InData(random.below(1000) as usize),
            _ => CutPosition::After,
        };
        // Neither tgt 1.0.85 nor istgt 0.4 ends a connection that lingers when its session is
        // replaced. tgt executes writes that arrive there late, over data written since; the disk
        // of istgt waits for the data of that connection's write.
        let manners = if self.scene.who == TargetKind::Own { 3 } else { 2 };
        let manner = match random.below(manners) {
            0 => ConnectionCut::Close,
            1 => ConnectionCut::Reset,
            _ => ConnectionCut::Linger(Duration::from_millis(random.below(LATE_MAX))),
        };
        let skip = if is_frequent(kind) { random.below(12) as u32 } else { 0 };
        Cut { kind, skip, position, manner }
    }

    /// Makes this cut, and waits until all workers have continued.
    async fn cut(&mut self, cut: Cut) -> Result<()> {
        let began = Instant::now();
        if self.scene.connections > 1 {
            // The network caused the cuts so far: conclusions from them about the target's order of
            // commands are dropped, so that all connections are used.
            let wanted = self.scene.connections;
            within(self.initiator.set_connections(wanted)).await?.context("all connections")?;
        }
        self.cutter.arm(cut);
        while self.cutter.is_armed() {
            ensure!(began.elapsed() < WAIT_MAX, "it has not come about in {WAIT_MAX:?}");
            self.provoke(cut.kind).await?;
            let again = Instant::now() + AGAIN;
            while self.cutter.is_armed() && Instant::now() < again {
                self.load.check().await?;
                tokio::time::sleep(POLL).await;
            }
        }
        self.load.go_on();
        self.load.set_abandoning(self.scene.abandons());
        if let ConnectionCut::Linger(late) = cut.manner {
            // The other connections of the session continue meanwhile, and their commands are
            // repeated when the loss is noticed: no worker is past the cut before.
            tokio::time::sleep(late + NOTICED).await;
        }
        self.load.wait_for_steps(WAIT_MAX).await
    }

    /// Causes a PDU of this kind, if the load does not.
    async fn provoke(&mut self, kind: PduKind) -> Result<()> {
        match kind {
            PduKind::LoginRequest | PduKind::LoginResponse => self.cutter.cut_all(),
            PduKind::ManagementRequest | PduKind::ManagementResponse => {
                self.load.set_abandoning(true);
            }
            PduKind::Reject => {
                let (kind, bit) = (PduKind::DataOutSolicited, 0);
                self.cutter.flip(Flip { kind, skip: 0, in_data: true, bit });
            }
            // Both sides ping during silence. A session that tgt ends while no caller waits for a
            // response is only re-established when a caller needs it (decision 076).
            PduKind::NopOut | PduKind::NopIn if self.initiator.connections() == 0 => {
                self.load.go_on();
            }
            PduKind::NopOut | PduKind::NopIn => self.load.pause(),
            PduKind::TextRequest | PduKind::TextResponse => self.discover().await?,
            PduKind::LogoutRequest | PduKind::LogoutResponse if self.scene.connections > 1 => {
                let fewer = self.scene.connections - 1;
                within(self.initiator.set_connections(fewer)).await?.context("one less")?;
                within(self.initiator.set_connections(fewer + 1)).await?.context("one more")?;
            }
            PduKind::LogoutRequest | PduKind::LogoutResponse => self.log_out_of_another().await?,
            PduKind::AsyncMessage => {
                let tsih = self.initiator.established().tsih;
                let server = self.peer.server().context("our own target")?;
                within(server.log_out(tsih)).await?;
            }
            _ => {}
        }
        Ok(())
    }

    fn relayed(&self) -> Result<Url> {
        self.peer.url(&self.cutter.address().to_string())
    }

    /// Sends SendTargets, which is not repeated when it is lost; a second request must succeed.
    async fn discover(&self) -> Result<()> {
        let mut url = self.relayed()?;
        url.unit = None;
        let mut options = self.options.clone();
        options.initiator_name += "-asks";
        options.connections = 1;
        // tgt negotiates digests for targets only, and a discovery session has none.
        options.header_digest.push(Digest::None);
        options.data_digest.push(Digest::None);
        let first = within(discover(&url, &options)).await?;
        let found = match first {
            Ok(found) => found,
            Err(error) if self.cutter.is_armed() => return Err(error).context("discovery"),
            Err(_) => within(discover(&url, &options)).await?.context("discovery after a cut")?,
        };
        let target = self.peer.target();
        ensure!(
            found.iter().any(|record| record.name == target),
            "{target} is not among {found:?}"
        );
        Ok(())
    }

    /// Ends another session by a logout that is cut: the caller gets a result in time, success or
    /// error.
    async fn log_out_of_another(&self) -> Result<()> {
        let mut options = self.options.clone();
        options.initiator_name += "-leaves";
        let disk = within(RemoteDisk::connect(&self.relayed()?, &options)).await??;
        let _ = within(disk.close()).await?; // the logout itself may be lost
        Ok(())
    }

    async fn finish(mut self, sampler: Sampler) -> Result<(Outcome, Peer)> {
        self.load.wait_for_steps(WAIT_MAX).await?;
        let kinds = self.kinds();
        if self.scene.connections > 1 {
            self.all_connections_are_back().await?;
        }
        let (results, ledger) = within(self.load.finish()).await??;
        let samples = sampler.finish()?;
        let logged_out = within(self.initiator.log_out()).await?;
        let seen = || format!("{:?}\n{}", self.cutter.counts().last, self.peer.log());
        self.scene.check_logout(logged_out).with_context(seen)?;
        let mut outcome = Outcome { samples, kinds, ..Outcome::default() };
        outcome.count(&self.cutter.counts());
        let direct = self.peer.url(self.peer.address())?;
        let fresh = within(RemoteDisk::connect(&direct, &self.options)).await??;
        verify(&fresh, &ledger, &results).await?;
        let logged_out = within(fresh.close()).await?;
        self.scene.check_logout(logged_out).context("of the fresh session")?;
        if let Some(recorder) = self.peer.recorder() {
            recorder.nothing_went_back()?;
            let account = match self.scene.raw {
                true => recorder.check_raw(&results.writes)?,
                false => recorder.check_repeated(&results.writes)?,
            };
            let Account { writes, repetitions, executions_max } = account;
            ensure!(writes >= results.acknowledged, "{account:?}");
            (outcome.repetitions, outcome.executions_max) = (repetitions, executions_max);
        }
        outcome.results = results;
        Ok((outcome, self.peer))
    }

    async fn all_connections_are_back(&self) -> Result<()> {
        let until = Instant::now() + WAIT_MAX;
        while self.initiator.connections() != usize::from(self.scene.connections) {
            if Instant::now() > until {
                bail!("{} of {}", self.initiator.connections(), self.scene.connections);
            }
            tokio::time::sleep(POLL).await;
        }
        Ok(())
    }
}

async fn within<T>(future: impl Future<Output = T>) -> Result<T> {
    tokio::time::timeout(WAIT_MAX, future).await.with_context(|| format!("not in {WAIT_MAX:?}"))
}
