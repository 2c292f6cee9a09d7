//! A running server: its listeners, its data-plane threads, and its shutdown.

mod accept;
mod sessions;

use crate::Error;
use crate::access::AccessRules;
use crate::admission::Connections;
use crate::backing::BackingWatcher;
use crate::catalogue::{Catalogue, CurrentCatalogue};
use crate::connection::ConnectionServices;
use crate::connection_table::TableLimits;
use crate::disk_unit::DiskUnit;
use crate::final_sync;
use crate::join::SessionLogins;
use crate::lock::lock;
use crate::login::LoginPolicy;
use crate::manage::TaskManager;
use crate::memory::MemoryOwners;
use crate::observer::{Observed, Observer};
use crate::open_files;
use crate::operation_slots::OperationSlots;
use crate::options::{Limits, ServerOptions};
use crate::portals::Portals;
use crate::quota::InitiatorLimit;
use crate::registration_room::RegistrationRoom;
use crate::session::ConnectionEvent;
use crate::statistics::Counters;
use crate::tasks::TaskServices;
use crate::thin_space;
use crate::trace::TraceLimit;
use crate::unit::Unit;
use lunar_block::BufferPool;
use lunar_net::{Clock, CoreOptions, Cores};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// Time that connections may take to become quiet after they were cut.
const CUT_GRACE: Duration = Duration::from_millis(500);
/// Interval of the checks whether a shutdown is done.
const SHUTDOWN_POLL: Duration = Duration::from_millis(10);

/// A server that accepts connections until it is shut down.
#[derive(Debug)]
pub struct Server {
    pub(crate) catalogue: Arc<CurrentCatalogue>,
    /// The host of the sessions, with the table of all of them.
    pub(crate) manager: Arc<TaskManager>,
    pub(crate) services: Arc<ConnectionServices>,
    pub(crate) cores: Arc<Cores>,
    /// Held by the one caller that replaces the catalogue.
    pub(crate) replacing: tokio::sync::Mutex<()>,
    /// Slots of long operations.
    operation_slots: Arc<OperationSlots>,
    traces: TraceLimit,
    observed: Arc<Observed>,
    /// True when the server stops.
    stop: watch::Sender<bool>,
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
        let portals = Portals::new(options.portals, addresses)?;
        let (targets, discovery_chap) = (options.targets, options.discovery_chap);
        let targets = targets.into_iter().map(Arc::new).collect();
        let catalogue = Arc::new(CurrentCatalogue::new(Catalogue { targets, discovery_chap })?);
        let (limits, buffers) = (options.limits, options.buffers);
        let relays = options.relays;
        let connections_max = connections_max(&limits, options.cores, &catalogue, &buffers);
        let rules = Arc::new(AccessRules {
            catalogue: Arc::clone(&catalogue),
            portals,
            relays: relays.is_some(),
        });
        let manager = Arc::<TaskManager>::default();
        let (stop, stopped) = watch::channel(false);
        let services =
            connection_services(limits, buffers, connections_max, rules, &manager, &stopped);
        let observed = Observed {
            catalogue: Arc::clone(&catalogue),
            sessions: Arc::clone(&manager.sessions),
            connections: Arc::clone(&services.connections),
            counters: Arc::clone(&services.counters),
            buffers: services.memory.buffers().clone(),
        };
        let watched = Arc::downgrade(&catalogue);
        let backing_watcher = BackingWatcher::start(move || {
            let disks = watched.upgrade()?.disks();
            disks.iter().for_each(|disk| disk.follow_device_size());
            Some(disks.iter().map(|disk| Arc::clone(disk.backing())).collect())
        });
        let server = Self {
            catalogue,
            manager,
            services: Arc::new(ConnectionServices { relays, ..services }),
            cores,
            replacing: tokio::sync::Mutex::default(),
            operation_slots: Arc::default(),
            traces: TraceLimit::default(),
            observed: Arc::new(observed),
            stop,
            acceptor: Mutex::default(),
            _backing_watcher: backing_watcher.map_err(Error::Thread)?,
        };
        server.catalogue.units().iter().for_each(|unit| server.begin(unit));
        let (watched, until) = (Arc::clone(&server.catalogue), stopped.clone());
        server.cores.spawn(move || thin_space::watch(move || watched.disks(), until));
        let (services, cores) = (Arc::clone(&server.services), Arc::clone(&server.cores));
        *lock(&server.acceptor) = Some(accept::accept(listeners, services, cores, stopped)?);
        Ok(server)
    }

    /// Counts the registrations of a unit that begins to be served, and resumes its unfinished long
    /// operation.
    pub(crate) fn begin(&self, unit: &Arc<dyn Unit>) {
        unit.stop_operation(false);
        let Some(disk) = DiskUnit::of(unit) else { return };
        disk.count_registrations(&disk.scsi(), &self.services.tasks.registration_room);
        disk.share_operation_slots(&self.operation_slots);
        if disk.scsi().operation().is_some() {
            self.cores.spawn(move || disk.resume_operation());
        }
    }

    /// The listening addresses, in the order of the portals, with the actual ports.
    pub fn addresses(&self) -> &[SocketAddr] {
        self.services.rules.portals.addresses()
    }

    /// The memory that all units and connections of the server draw on.
    pub fn buffers(&self) -> &BufferPool {
        self.services.memory.buffers()
    }

    /// Limits of each initiator at `target`.
    pub fn initiator_limits(&self, target: &str) -> Vec<InitiatorLimit> {
        self.catalogue.quotas.of(target).limits()
    }

    /// Sets the limits of each initiator at `target`, from now on; sessions are not affected
    /// otherwise.
    pub fn set_initiator_limits(&self, target: &str, limits: Vec<InitiatorLimit>) {
        self.catalogue.quotas.of(target).set(limits);
    }

    /// Number of connections, logged in or not.
    pub fn connections(&self) -> usize {
        self.services.connections.count()
    }

    /// Limit on the number of connections: the limit `connections`, or fewer if the system grants
    /// the process too few open files.
    pub fn connections_max(&self) -> usize {
        self.services.connections.connections_max()
    }

    /// Bytes of PDUs that wait in this process to be sent, of all connections.
    pub fn unsent_bytes(&self) -> usize {
        self.services.connections.unsent_bytes()
    }

    /// An observer of the server's statistics. It may outlive the server, and reports its end.
    pub fn observer(&self) -> Observer {
        Observer::new(&self.observed)
    }

    /// The unit that `target` shows as `lun` to some initiator.
    pub fn unit(&self, target: &str, lun: u16) -> Option<Arc<dyn Unit>> {
        let target = self.catalogue.target(target)?;
        let lun = target.luns.iter().find(|shown| shown.id == lun)?;
        Some(Arc::clone(&lun.unit))
    }

    /// Stops accepting, requests initiators to log out, lets running commands finish, cuts
    /// remaining connections after `grace`, then syncs every unit. `progress` receives descriptions
    /// of the current step.
    pub fn shutdown(&self, grace: Duration, progress: &mut dyn FnMut(&str)) -> ShutdownReport {
        self.stop.send_replace(true);
        self.catalogue.units().iter().for_each(|unit| unit.stop_operation(true));
        let acceptor = lock(&self.acceptor).take();
        if let Some(acceptor) = acceptor {
            let _ = acceptor.join(); // a panic was already printed
        }
        let connections_cut = self.end_connections(grace, progress);
        let is_busy = self.wait_for_operations(CUT_GRACE);
        self.report_hanging(progress);
        let failed_syncs = final_sync::sync_all(self.catalogue.units(), progress);
        if is_busy || self.services.connections.count() > 0 {
            // A device hangs: its thread cannot be waited for.
            std::mem::forget(Arc::clone(&self.cores));
        }
        ShutdownReport { connections_cut, failed_syncs }
    }

    fn end_connections(&self, grace: Duration, progress: &mut dyn FnMut(&str)) -> usize {
        let within_seconds = u16::try_from(grace.as_secs()).unwrap_or(u16::MAX).max(1);
        let open =
            self.services.connections.send_to_all(|| ConnectionEvent::Shutdown { within_seconds });
        if open > 0 {
            progress(&format!("asking {open} connection(s) to log out"));
        }
        if self.wait_for_connections(grace.saturating_sub(CUT_GRACE)) {
            return 0;
        }
        let cut = self.services.connections.send_to_all(|| ConnectionEvent::Cut);
        progress(&format!("{cut} connection(s) did not log out: closing them"));
        self.wait_for_connections(CUT_GRACE);
        cut
    }

    fn wait_for_connections(&self, limit: Duration) -> bool {
        let until = Instant::now() + limit;
        loop {
            if self.services.connections.count() == 0 {
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
        let units = self.catalogue.units();
        while units.iter().any(|unit| unit.has_running_operation() || unit.saves()) {
            if Instant::now() >= until {
                return true;
            }
            std::thread::sleep(SHUTDOWN_POLL);
        }
        false
    }

    /// Reports the disks that hang.
    fn report_hanging(&self, progress: &mut dyn FnMut(&str)) {
        for unit in self.catalogue.units() {
            let device = unit.name();
            let writes = DiskUnit::of(&unit).map_or(0, |disk| disk.detached_write_count());
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

/// Wraps a core with a ring, for the files among its disks.
fn with_ring(core: lunar_net::LocalFuture) -> lunar_net::LocalFuture {
    Box::pin(lunar_block::with_ring(core))
}

/// The parts that connections use; at most `connections_max` are served.
fn connection_services(
    limits: Limits,
    buffers: BufferPool,
    connections_max: usize,
    rules: Arc<AccessRules>,
    manager: &Arc<TaskManager>,
    stopped: &watch::Receiver<bool>,
) -> ConnectionServices {
    let (clock, counters) = (Clock::start(), Arc::<Counters>::default());
    let table_limits = TableLimits::new(&limits, connections_max);
    let connections = Connections::new(table_limits, Arc::clone(&counters), clock, stopped.clone());
    let logins = LoginPolicy::new(
        &limits,
        Arc::clone(&rules),
        Arc::clone(&counters),
        clock,
        stopped.clone(),
    );
    let connections_max = connections.connections_max();
    let session_logins = SessionLogins::new(
        &limits,
        Arc::clone(&rules),
        Arc::clone(manager),
        connections_max,
        clock,
    );
    let tasks = TaskServices {
        sessions: Arc::clone(&manager.sessions),
        registration_room: RegistrationRoom::new(&buffers),
    };
    ConnectionServices {
        limits,
        clock,
        memory: MemoryOwners::new(buffers),
        counters,
        connections: Arc::new(connections),
        rules,
        logins: Arc::new(logins),
        session_logins: Arc::new(session_logins),
        tasks: Arc::new(tasks),
        relays: None,
    }
}

/// Limit on the number of connections by the open files and the memory of the process; logs a
/// warning if it is lower than the one of `limits`.
fn connections_max(
    limits: &Limits,
    cores: usize,
    catalogue: &CurrentCatalogue,
    buffers: &BufferPool,
) -> usize {
    let wanted = limits.connections;
    let connections_max = open_files::connections_max(cores_of(cores), catalogue.units().len());
    if connections_max < wanted {
        tracing::warn!(
            "the limit of open files is too low for {wanted} connections: at most \
             {connections_max} are served. Raise the hard limit (ulimit -Hn, LimitNOFILE=) or \
             lower [limits] connections"
        );
    }
    let in_memory = open_files::connections_in_memory(buffers.budget().limit_bytes());
    if in_memory < wanted {
        tracing::warn!(
            "memory_bytes_max is too low for {wanted} connections: at most {in_memory} are \
             served. Raise it, or lower [limits] connections"
        );
    }
    connections_max.min(in_memory)
}

/// Number of threads for the option `cores`; 0: one for each processor.
fn cores_of(cores: usize) -> usize {
    match cores {
        0 => std::thread::available_parallelism().map_or(1, usize::from),
        cores => cores,
    }
}
