//! A running server: its listeners, its data-plane threads, and its shutdown.

use crate::Error;
use crate::access::ConnectionPath;
use crate::backing::BackingWatcher;
use crate::backoff::LoginBackoff;
use crate::catalogue::{Catalogue, Indexed};
use crate::cold_resets::ColdResets;
use crate::connection;
use crate::connection_shares::ConnectionShares;
use crate::connection_table::{ConnectionTable, TableLimits};
use crate::final_sync;
use crate::log_budget::LogBudget;
use crate::login::printable;
use crate::memory::MemoryOwners;
use crate::open_files::{self, EVICTED_MAX};
use crate::operation_slots::OperationSlots;
use crate::options::{Limits, Portal, ServerOptions, TargetOptions};
use crate::presence::ConnectionControl;
use crate::quota::{InitiatorLimit, TargetQuotas};
use crate::registration_room::RegistrationRoom;
use crate::resets::TargetResets;
use crate::room;
use crate::session::{ConnectionEvent, Session, SessionKey};
use crate::statistics::{Counters, Observer};
use crate::trace::TraceLimit;
use crate::unit::LogicalUnit;
use crate::visit_pace::VisitPace;
use arc_swap::ArcSwap;
use lunar_block::BufferPool;
use lunar_net::{Clock, CoreOptions, Cores};
use lunar_scsi::plan::NexusId;
use std::collections::{BTreeMap, HashMap};
use std::net::{SocketAddr, TcpListener};
use std::ops::Bound;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// Pause before accepting again when the system has no descriptor left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// Pause before accepting again while evicted connections are not closed yet.
const EVICTED_PAUSE: Duration = Duration::from_millis(1);
/// Time that connections may take to become quiet after they were cut.
const CUT_GRACE: Duration = Duration::from_millis(500);
/// Interval of the checks whether a shutdown is done.
const SHUTDOWN_POLL: Duration = Duration::from_millis(10);

/// A server that accepts connections until it is shut down.
#[derive(Debug)]
pub struct Server {
    pub(crate) shared: Arc<Shared>,
    pub(crate) cores: Arc<Cores>,
    /// Held by the one caller that replaces the catalogue.
    pub(crate) replacing: tokio::sync::Mutex<()>,
    stop_accepting: watch::Sender<bool>,
    acceptor: Mutex<Option<JoinHandle<()>>>,
    _backing_watcher: BackingWatcher,
}

/// Result of a shutdown.
#[derive(Debug, Default)]
pub struct ShutdownReport {
    /// Connections that had to be cut because they did not log out in time.
    pub connections_cut: usize,
    /// Units whose final sync failed, with the reason.
    pub failed_syncs: Vec<(String, String)>,
}

impl Server {
    /// Listens and serves; returns once connections are accepted.
    ///
    /// # Errors
    /// An address is in use, or options contradict themselves.
    pub fn start(options: ServerOptions) -> Result<Self, Error> {
        let mut listeners = Vec::new();
        let mut addresses = Vec::new();
        for portal in &options.portals {
            let failed = |source| Error::Listen { address: portal.listen, source };
            let listener = lunar_net::listen(portal.listen).map_err(failed)?;
            addresses.push(listener.local_addr().map_err(failed)?);
            listeners.push(listener);
        }
        let core_options = CoreOptions { count: options.cores, latency_mode: options.latency_mode };
        let cores = Cores::start(core_options, with_ring).map_err(Error::Thread)?;
        let cores = Arc::new(cores);
        let shared = Shared::new(options, addresses)?;
        shared.units().into_iter().for_each(|unit| begin(&shared, &cores, unit));
        let (stop_accepting, stop) = watch::channel(false);
        let (watched, stopped) = (Arc::clone(&shared), stop.clone());
        cores.spawn(move || room::watch(watched, stopped));
        let acceptor = accept(listeners, Arc::clone(&shared), Arc::clone(&cores), stop)?;
        let _backing_watcher = BackingWatcher::start(&shared).map_err(Error::Thread)?;
        let replacing = tokio::sync::Mutex::default();
        let acceptor = Mutex::new(Some(acceptor));
        Ok(Self { shared, cores, replacing, stop_accepting, acceptor, _backing_watcher })
    }

    /// The listening addresses, in the order of the portals, with the actual ports.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.shared.addresses
    }

    /// The memory that all units and connections of the server draw on.
    pub fn buffers(&self) -> &BufferPool {
        self.shared.memory.buffers()
    }

    /// Limits of each initiator at `target`.
    pub fn initiator_limits(&self, target: &str) -> Vec<InitiatorLimit> {
        self.shared.quotas.of(target).limits()
    }

    /// Sets the limits of each initiator at `target`, from now on; sessions are not affected
    /// otherwise.
    pub fn set_initiator_limits(&self, target: &str, limits: Vec<InitiatorLimit>) {
        self.shared.quotas.of(target).set(limits);
    }

    /// An observer of the server's statistics. It may outlive the server, and reports its end.
    pub fn observer(&self) -> Observer {
        Observer { shared: Arc::downgrade(&self.shared) }
    }

    /// The unit that `target` shows as `lun` to some initiator.
    pub fn unit(&self, target: &str, lun: u16) -> Option<Arc<LogicalUnit>> {
        let target = self.shared.target(target)?;
        let lun = target.luns.iter().find(|shown| shown.id == lun)?;
        Some(Arc::clone(&lun.unit))
    }

    /// Stops accepting, requests initiators to log out, lets running commands finish, cuts
    /// remaining connections after `grace`, then syncs every unit. `progress` receives descriptions
    /// of the current step.
    pub fn shutdown(&self, grace: Duration, progress: &mut dyn FnMut(&str)) -> ShutdownReport {
        self.shared.stopping.store(true, Ordering::Release);
        self.stop_accepting.send_replace(true);
        self.shared.units().iter().for_each(|unit| unit.stop_operation(true));
        let acceptor = lock(&self.acceptor).take();
        if let Some(acceptor) = acceptor {
            let _ = acceptor.join(); // a panic was already printed
        }
        let connections_cut = self.end_connections(grace, progress);
        let operating = self.wait_for_operations(CUT_GRACE);
        self.tell_hanging(progress);
        let failed_syncs = final_sync::sync_all(self.shared.units(), progress);
        if operating || self.shared.connection_count() > 0 {
            // A device hangs: its thread cannot be waited for.
            std::mem::forget(Arc::clone(&self.cores));
        }
        ShutdownReport { connections_cut, failed_syncs }
    }

    fn end_connections(&self, grace: Duration, progress: &mut dyn FnMut(&str)) -> usize {
        let within_seconds = u16::try_from(grace.as_secs()).unwrap_or(u16::MAX).max(1);
        let open = self.shared.tell_all(|| ConnectionEvent::Shutdown { within_seconds });
        if open > 0 {
            progress(&format!("asking {open} connection(s) to log out"));
        }
        if self.wait_for_connections(grace.saturating_sub(CUT_GRACE)) {
            return 0;
        }
        let cut = self.shared.tell_all(|| ConnectionEvent::Cut);
        progress(&format!("{cut} connection(s) did not log out: closing them"));
        self.wait_for_connections(CUT_GRACE);
        cut
    }

    fn wait_for_connections(&self, limit: Duration) -> bool {
        let until = Instant::now() + limit;
        loop {
            if self.shared.connection_count() == 0 {
                return true;
            }
            if Instant::now() >= until {
                return false;
            }
            std::thread::sleep(SHUTDOWN_POLL);
        }
    }

    /// Waits until long operations have stopped between two pieces, and saves have ended. Returns
    /// `true` if one does not.
    fn wait_for_operations(&self, limit: Duration) -> bool {
        let until = Instant::now() + limit;
        let units = self.shared.units();
        while units.iter().any(|unit| unit.operates() || unit.saves()) {
            if Instant::now() >= until {
                return true;
            }
            std::thread::sleep(SHUTDOWN_POLL);
        }
        false
    }

    /// Reports the disks that hang.
    fn tell_hanging(&self, progress: &mut dyn FnMut(&str)) {
        for unit in self.shared.units() {
            let (device, writes) = (unit.device().name(), unit.leftover_writes());
            if writes > 0 {
                progress(&format!(
                    "{device} is NOT RESPONDING: {writes} aborted write(s) still pending"
                ));
            }
            if unit.saves() {
                progress(&format!(
                    "the state directory of {device} is NOT RESPONDING: a save is still pending"
                ));
            }
        }
    }
}

/// State shared by all connections of a server.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) portals: Vec<Portal>,
    pub(crate) limits: Limits,
    catalogue: ArcSwap<Indexed>,
    pub(crate) addresses: Vec<SocketAddr>,
    pub(crate) clock: Clock,
    pub(crate) backoff: LoginBackoff,
    pub(crate) memory: MemoryOwners,
    pub(crate) quotas: TargetQuotas,
    pub(crate) counters: Counters,
    /// Budget of log lines about failed logins.
    pub(crate) login_lines: LogBudget,
    /// Budget of log lines about connections that ended with an error.
    pub(crate) connection_lines: LogBudget,
    pub(crate) traces: TraceLimit,
    pub(crate) target_resets: TargetResets,
    pub(crate) cold_resets: ColdResets,
    pub(crate) visits: VisitPace,
    sessions: Mutex<Sessions>,
    pub(crate) registration_room: RegistrationRoom,
    /// Slots of long operations.
    operation_slots: Arc<OperationSlots>,
    pub(crate) shares: ConnectionShares,
    pub(crate) connections: Mutex<ConnectionTable<ConnectionControl>>,
    next_id: AtomicU64,
    stopping: AtomicBool,
}

impl Shared {
    fn new(options: ServerOptions, addresses: Vec<SocketAddr>) -> Result<Arc<Self>, Error> {
        if options.portals.iter().any(|portal| portal.portal_group == Some(0)) {
            return Err(Error::Options("a portal group tag must be 1 to 65535".to_owned()));
        }
        let targets = options.targets.into_iter().map(Arc::new).collect();
        let catalogue =
            Indexed::new(Catalogue { targets, discovery_chap: options.discovery_chap })?;
        let backoff = LoginBackoff::new(&options.limits);
        let cores = cores_of(options.cores);
        let connections_max = open_files::connections_max(cores, catalogue.catalogue.units().len());
        let wanted = options.limits.connections;
        if connections_max < wanted {
            tracing::warn!(
                "the limit of open files is too low for {wanted} connections: at most \
                 {connections_max} are served. Raise the hard limit (ulimit -Hn, LimitNOFILE=) or \
                 lower [limits] connections"
            );
        }
        let in_memory = open_files::connections_in_memory(options.buffers.budget().limit_bytes());
        if in_memory < wanted {
            tracing::warn!(
                "memory_bytes_max is too low for {wanted} connections: at most {in_memory} are \
                 served. Raise it, or lower [limits] connections"
            );
        }
        let connections_max = connections_max.min(in_memory);
        let table_limits = TableLimits::new(&options.limits, connections_max);
        let quotas = TargetQuotas::default();
        quotas.replace(&[], &catalogue.catalogue.targets);
        Ok(Arc::new(Self {
            portals: options.portals,
            limits: options.limits,
            catalogue: ArcSwap::from_pointee(catalogue),
            addresses,
            clock: Clock::start(),
            backoff,
            registration_room: RegistrationRoom::new(&options.buffers),
            operation_slots: Arc::default(),
            memory: MemoryOwners::new(options.buffers),
            quotas,
            counters: Counters::default(),
            login_lines: LogBudget::default(),
            connection_lines: LogBudget::default(),
            traces: TraceLimit::default(),
            target_resets: TargetResets::default(),
            cold_resets: ColdResets::default(),
            visits: VisitPace::default(),
            sessions: Mutex::default(),
            shares: ConnectionShares::default(),
            connections: Mutex::new(ConnectionTable::new(table_limits)),
            next_id: AtomicU64::new(1),
            stopping: AtomicBool::new(false),
        }))
    }

    /// The target of this name, compared without case.
    pub(crate) fn target(&self, name: &str) -> Option<Arc<TargetOptions>> {
        self.catalogue.load().target(name).map(|target| Arc::clone(target.options))
    }

    /// The current catalogue.
    pub(crate) fn catalogue(&self) -> Arc<Indexed> {
        self.catalogue.load_full()
    }

    /// Serves `new` from now on; returns the old catalogue.
    pub(crate) fn swap_catalogue(&self, new: Arc<Indexed>) -> Arc<Indexed> {
        let old = self.catalogue.swap(Arc::clone(&new));
        self.quotas.replace(&old.catalogue.targets, &new.catalogue.targets);
        old
    }

    /// Returns a number that was not returned before.
    pub(crate) fn next_id(&self) -> u64 {
        self.next_id.fetch_add(1, Ordering::Relaxed)
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    pub(crate) fn sessions(&self) -> MutexGuard<'_, Sessions> {
        lock(&self.sessions)
    }

    /// The sessions in the order of their TSIHs. Each step locks the table for itself, so that a
    /// walk of many sessions delays no login: sessions that begin or end meanwhile may be missing.
    pub(crate) fn each_session(&self) -> impl Iterator<Item = Arc<Session>> {
        let mut last = 0;
        std::iter::from_fn(move || {
            let session = self.sessions().after(last)?;
            last = session.tsih;
            Some(session)
        })
    }

    /// Logs the reason why a connection was closed, unless such lines come in a flood.
    pub(crate) fn warn_of_connection(&self, peer: Option<SocketAddr>, why: &str) {
        if let Some(untold) = self.connection_lines.line(self.clock.now()) {
            let untold = (untold > 0).then_some(untold);
            let peer = peer.map(tracing::field::display);
            tracing::warn!(peer, untold, "connection closed: {}", printable(why));
        }
    }

    /// The units of the catalogue, each once.
    pub(crate) fn units(&self) -> Vec<Arc<LogicalUnit>> {
        self.catalogue().catalogue.units()
    }
}

/// Wraps a core with a ring, for the files among its disks.
fn with_ring(core: lunar_net::LocalFuture) -> lunar_net::LocalFuture {
    Box::pin(lunar_block::with_ring(core))
}

/// Counts the registrations of a unit that begins to be served, and resumes its unfinished long
/// operation.
pub(crate) fn begin(shared: &Shared, cores: &Cores, unit: Arc<LogicalUnit>) {
    unit.count_registrations(&unit.scsi(), &shared.registration_room);
    unit.share_operation_slots(&shared.operation_slots);
    unit.stop_operation(false);
    if unit.scsi().operation().is_some() {
        cores.spawn(move || unit.resume_operation());
    }
}

/// Number of threads for the option `cores`; 0: one for each processor.
fn cores_of(cores: usize) -> usize {
    match cores {
        0 => std::thread::available_parallelism().map_or(1, usize::from),
        cores => cores,
    }
}

/// The sessions by TSIH, by nexus, and by the key that makes two logins the same session.
#[derive(Debug, Default)]
pub(crate) struct Sessions {
    by_tsih: BTreeMap<u16, Arc<Session>>,
    by_key: HashMap<SessionKey, Arc<Session>>,
    by_nexus: HashMap<NexusId, Arc<Session>>,
    last_tsih: u16,
}

impl Sessions {
    /// A free TSIH. 0 is reserved, RFC 7143 §11.12.6.
    pub(crate) fn free_tsih(&mut self) -> Option<u16> {
        for _ in 0..u16::MAX {
            self.last_tsih = self.last_tsih.checked_add(1).unwrap_or(1);
            if !self.by_tsih.contains_key(&self.last_tsih) {
                return Some(self.last_tsih);
            }
        }
        None
    }

    /// Adds a session; no session may have its key yet.
    pub(crate) fn insert(&mut self, session: Arc<Session>) {
        let other = self.by_key.insert(session.key.clone(), Arc::clone(&session));
        debug_assert!(other.is_none());
        self.by_nexus.insert(session.nexus, Arc::clone(&session));
        self.by_tsih.insert(session.tsih, session);
    }

    pub(crate) fn find(&self, key: &SessionKey) -> Option<Arc<Session>> {
        self.by_key.get(key).cloned()
    }

    pub(crate) fn get(&self, tsih: u16) -> Option<Arc<Session>> {
        self.by_tsih.get(&tsih).cloned()
    }

    /// The session with the smallest TSIH greater than `tsih`.
    pub(crate) fn after(&self, tsih: u16) -> Option<Arc<Session>> {
        let mut later = self.by_tsih.range((Bound::Excluded(tsih), Bound::Unbounded));
        later.next().map(|(_, session)| Arc::clone(session))
    }

    pub(crate) fn count(&self) -> usize {
        self.by_tsih.len()
    }

    pub(crate) fn remove(&mut self, tsih: u16) {
        if let Some(session) = self.by_tsih.remove(&tsih) {
            self.by_key.remove(&session.key);
            self.by_nexus.remove(&session.nexus);
        }
    }

    /// The session of a nexus, if it exists.
    pub(crate) fn of_nexus(&self, nexus: NexusId) -> Option<Arc<Session>> {
        self.by_nexus.get(&nexus).cloned()
    }

    pub(crate) fn all(&self) -> Vec<Arc<Session>> {
        self.by_tsih.values().cloned().collect()
    }
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Accepts on every listener, on a thread of its own, and spreads connections over the cores.
fn accept(
    listeners: Vec<TcpListener>,
    shared: Arc<Shared>,
    cores: Arc<Cores>,
    stop: watch::Receiver<bool>,
) -> Result<JoinHandle<()>, Error> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(Error::Thread)?;
    let mut accepting = Vec::new();
    for (portal, listener) in listeners.into_iter().enumerate() {
        let _guard = runtime.enter();
        let listener = tokio::net::TcpListener::from_std(listener).map_err(Error::Thread)?;
        accepting.push((portal, listener));
    }
    std::thread::Builder::new()
        .name("accept".into())
        .spawn(move || {
            let mut tasks = tokio::task::JoinSet::new();
            for (portal, listener) in accepting {
                let work = accept_on(
                    listener,
                    portal,
                    Arc::clone(&shared),
                    Arc::clone(&cores),
                    stop.clone(),
                );
                tasks.spawn_on(work, runtime.handle());
            }
            runtime.block_on(async { while tasks.join_next().await.is_some() {} });
        })
        .map_err(Error::Thread)
}

async fn accept_on(
    listener: tokio::net::TcpListener,
    portal: usize,
    shared: Arc<Shared>,
    cores: Arc<Cores>,
    mut stop: watch::Receiver<bool>,
) {
    loop {
        while shared.evicted_count() >= EVICTED_MAX {
            tokio::time::sleep(EVICTED_PAUSE).await;
        }
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = stop.wait_for(|stop| *stop) => return,
        };
        let accepted = accepted.and_then(|(tcp, peer)| {
            let local = tcp.local_addr()?;
            // IPv4 addresses are given as IPv4, also on a socket of both families.
            let peer = SocketAddr::new(peer.ip().to_canonical(), peer.port());
            Ok((tcp.into_std()?, ConnectionPath { peer, local, portal }))
        });
        match accepted {
            Ok((tcp, path)) => connection::spawn(&shared, &cores, tcp, path),
            Err(error) => {
                if is_out_of_files(&error) {
                    shared.make_room();
                }
                shared.warn_of_connection(None, &format!("cannot accept the connection: {error}"));
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

fn is_out_of_files(error: &std::io::Error) -> bool {
    let errno = rustix::io::Errno::from_io_error(error);
    matches!(errno, Some(rustix::io::Errno::MFILE | rustix::io::Errno::NFILE))
}
