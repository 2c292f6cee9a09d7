//! A running server and its configuration, and changes from one configuration to the next.

mod arrivals;
mod blocking;
mod catalogue;
mod change_transaction;
mod limits;
mod migrations;
pub(crate) mod pause;
mod plan;
mod pools;
mod remote_opening;
mod returning_members;
mod selection;
mod stopping;
mod targets;
mod toml;
mod trace;
mod units;
mod waiting;

use crate::config::lun::LunSettings;
use crate::config::model::{Configuration, LunConfig};
use crate::device_url::{DeviceUrl, Opener};
use crate::difference::{ChangeEffect, ChangeKind, ConfigChange, Difference, ShownUnit};
use crate::renewal::{ApiFiles, Renewed};
use crate::{Failure, OpenPool, ServedPools, config};
use blocking::block_on;
use catalogue::catalogue;
use change_transaction::{ArrivedLun, ChangeTransaction, Reverted};
use lunar_target::{DiskUnit, RelayFactory, Server, ServerOptions};
use plan::{Layout, Plan, unavailable_luns};
use remote_opening::open_remotes;
use selection::{find, lun_index};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use tokio::sync::Notify;
use units::{OpenUnit, UnitOpener, force_size, set_size};
use utoipa::ToSchema;

pub use limits::LimitSettings;
pub use migrations::{MigrationJob, MigrationJobState, MigrationRequest, Migrations};
pub use pools::MemberChange;
pub use remote_opening::UnavailableStorage;
pub use units::{SmallerFile, StartOptions};
pub use waiting::{WaitingLun, WaitingLuns};

/// The origin of the configuration that a server started with.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum ConfigOrigin {
    /// A configuration file, which can be read again.
    File {
        /// Path of the file.
        path: PathBuf,
        /// API options of the command line, which override those of the file.
        api: Option<config::ApiOptions>,
    },
    /// The arguments of a command.
    Arguments,
}

/// The configuration to apply.
#[derive(Clone, Debug)]
pub enum ConfigSource {
    /// The file that the server started with.
    OwnFile,
    /// A text.
    Text {
        /// TOML.
        text: String,
        /// The file it came from: relative paths in the text are resolved against its directory,
        /// and problems name it.
        path: PathBuf,
    },
}

/// Options for applying a configuration.
#[derive(Clone, Copy, Debug, Default)]
pub struct ApplyOptions {
    /// Only report the changes, without making them.
    pub dry_run: bool,
    /// Disks may shrink: data beyond their new ends is lost.
    pub shrink: bool,
}

/// The result of a change, or of a dry run.
#[derive(Clone, Debug, Default, Deserialize, Serialize, ToSchema)]
pub struct Applied {
    /// The changes.
    #[serde(flatten)]
    pub difference: Difference,
    /// Whether the changes were made; `false`: dry run.
    pub made: bool,
    /// Number of sessions whose LUNs have changed.
    pub sessions_changed: usize,
    /// Number of sessions that were ended.
    pub sessions_ended: usize,
    /// Warnings, one per line: failed syncs of units that are no longer served, changes that would
    /// be refused.
    pub warnings: Vec<String>,
}

/// Selects a LUN.
#[derive(Clone, Copy, Debug)]
pub struct LunSelector<'a> {
    /// The target's iSCSI name.
    pub target: &'a str,
    /// The LUN's number.
    pub id: u16,
    /// The LUN's device, where several LUNs have this number.
    pub device: Option<&'a str>,
}

/// Options of a change.
#[derive(Clone, Copy, Debug, Default)]
struct ChangeOptions {
    /// The result is an applied configuration, which drift is measured against from then on.
    becomes_applied: bool,
    /// Only report the changes.
    dry_run: bool,
    /// Disks may shrink.
    shrink: bool,
    /// Handling of new LUNs whose storages cannot be reached.
    storage: UnavailableStorage,
}

/// A running server and its configuration. Changes block and run one at a time; the state can be
/// read meanwhile.
#[derive(Debug)]
pub struct Daemon {
    server: Server,
    origin: ConfigOrigin,
    unit_opener: UnitOpener,
    /// Units that are open; locked during a change.
    entries: Mutex<Vec<OpenUnit>>,
    configurations: Mutex<Configurations>,
    /// The pools that are served, as of the end of the last change.
    pools: Arc<ServedPools>,
    /// LUNs of the running configuration that wait for their storages; set during a change.
    waiting: Arc<WaitingLuns>,
    migrations: Arc<Migrations>,
    /// True when the server stops: no more changes are accepted.
    stopping: AtomicBool,
    /// A request to stop, which the program carries out.
    stop_request: Notify,
    /// Held while the targets in the state directory are read or changed.
    target_files: Mutex<()>,
    /// Certificate and token of the API, read from files.
    files: OnceLock<ApiFiles>,
}

/// The configurations that the API reports.
#[derive(Clone, Debug)]
struct Configurations {
    /// The configuration applied last.
    applied: Configuration,
    /// The running configuration.
    running: Configuration,
}

/// A configuration whose devices are open but not served yet.
#[derive(Debug)]
pub struct OpenedConfig {
    configuration: Configuration,
    origin: ConfigOrigin,
    unit_opener: UnitOpener,
    entries: Vec<OpenUnit>,
    layout: Layout,
    unavailable: Vec<(DeviceUrl, Failure)>,
    relays: Option<Arc<dyn RelayFactory>>,
    migrations: Migrations,
    /// The configuration as the file has it, if extents were moved since.
    written: Option<Configuration>,
}

impl OpenedConfig {
    /// Opens the devices of `configuration`: local ones first, then remote ones, several at a time.
    ///
    /// # Errors
    /// Fails if a device cannot be opened (or is in use), or its state cannot be stored; if a
    /// storage cannot be reached, unless `start` lets its LUNs wait.
    pub fn open(
        configuration: Configuration,
        origin: ConfigOrigin,
        opener: Arc<dyn Opener>,
        start: StartOptions,
    ) -> Result<Self, Failure> {
        let StartOptions { storage, smaller } = start;
        let unit_opener = UnitOpener::new(&configuration, opener);
        let nothing = Configuration { targets: Vec::new(), ..configuration.clone() };
        let plan = Plan::new(&[], &nothing, &Layout::default(), &configuration, false)?;
        let mut entries: Vec<OpenUnit> = Vec::new();
        let mut slots = vec![None; plan.wanted.len()];
        let mut remote = Vec::new();
        for (index, wanted) in plan.wanted.iter().enumerate() {
            if wanted.config.may_be_unavailable() {
                remote.push((index, &wanted.config));
                continue;
            }
            let (entry, _) = unit_opener.open(&wanted.config, smaller, entries.iter())?;
            entries.push(entry);
            slots[index] = Some(entries.len() - 1);
        }
        let configs: Vec<_> = remote.iter().map(|(_, config)| *config).collect();
        let devices = open_remotes(&**unit_opener.opener(), &configs, storage);
        let mut unavailable = Vec::new();
        for ((index, config), device) in remote.into_iter().zip(devices) {
            let device = match device {
                Err(failure) if storage.lets_wait(&failure) => {
                    unavailable.push((config.device.clone(), failure));
                    continue;
                }
                device => device?,
            };
            let opened = unit_opener.open_over(config, smaller, Some(device), entries.iter());
            let (entry, _) = opened?;
            entries.push(entry);
            slots[index] = Some(entries.len() - 1);
        }
        let layout = plan.layout(&slots);
        let migrations = Migrations::open(&configuration)?;
        let written = migrations::written(&configuration, &origin);
        Ok(Self {
            configuration,
            origin,
            unit_opener,
            entries,
            layout,
            unavailable,
            relays: None,
            migrations,
            written,
        })
    }

    /// Has the data of commands relayed where their devices allow it.
    #[must_use]
    pub fn with_relays(self, relays: Arc<dyn RelayFactory>) -> Self {
        Self { relays: Some(relays), ..self }
    }

    /// Starts serving.
    ///
    /// # Errors
    /// Fails if an address cannot be listened on.
    pub fn serve(self) -> Result<Daemon, Failure> {
        let Self {
            configuration, origin, unit_opener, entries, layout, unavailable, relays, ..
        } = self;
        if let Err(error) = unit_opener.buffers().budget().start_heap_trimmer() {
            tracing::warn!(
                %error,
                "cannot start the thread that returns freed memory to the system: the process may \
                 use more than memory_bytes_max"
            );
        }
        let unit = |index: usize| entries.get(index).map(|entry| Arc::clone(&entry.unit));
        let catalogue = catalogue(&configuration, &layout, &unit);
        let mut running = configuration.clone();
        record_sizes(&mut running, &layout, &unit);
        set_limits(&running, &layout, &unit);
        let server = Server::start(ServerOptions {
            portals: configuration.portals.clone(),
            targets: catalogue.targets.iter().map(|target| (**target).clone()).collect(),
            discovery_chap: catalogue.discovery_chap,
            cores: configuration.cores,
            latency_mode: configuration.latency_mode,
            limits: configuration.limits.server.clone(),
            buffers: unit_opener.buffers().clone(),
            relays,
        })?;
        let waiting = Arc::<WaitingLuns>::default();
        waiting.set(&running, &unavailable_luns(&running, &entries, &unavailable));
        let applied = self.written.unwrap_or(configuration);
        let configurations = Mutex::new(Configurations { applied, running });
        let pools = Arc::<ServedPools>::default();
        pools.set(pools_of(&entries));
        Ok(Daemon {
            server,
            origin,
            unit_opener,
            entries: Mutex::new(entries),
            configurations,
            pools,
            waiting,
            migrations: Arc::new(self.migrations),
            stopping: AtomicBool::new(false),
            stop_request: Notify::new(),
            target_files: Mutex::default(),
            files: OnceLock::new(),
        })
    }
}

impl Daemon {
    /// The server.
    pub fn server(&self) -> &Server {
        &self.server
    }

    /// The origin of the configuration that the server started with.
    pub fn origin(&self) -> &ConfigOrigin {
        &self.origin
    }

    /// The pools that are served.
    pub fn pools(&self) -> &Arc<ServedPools> {
        &self.pools
    }

    /// The LUNs of the running configuration that wait for their storages.
    pub fn waiting(&self) -> &Arc<WaitingLuns> {
        &self.waiting
    }

    /// The running configuration.
    pub fn running(&self) -> Configuration {
        self.configurations().running.clone()
    }

    /// The configuration applied last.
    pub fn applied(&self) -> Configuration {
        self.configurations().applied.clone()
    }

    /// The difference from the configuration applied last to the running one.
    pub fn drift(&self) -> Difference {
        let Configurations { applied, running } = self.configurations().clone();
        let same =
            |_: Option<&LunConfig>, _: &LunConfig| ShownUnit { same: true, ..ShownUnit::default() };
        Difference::between(&applied, &running, &same)
    }

    /// The changes since the last configuration was applied, as TOML.
    pub fn toml_of_drift(&self) -> String {
        let Configurations { applied, running } = self.configurations().clone();
        toml::of_drift(&applied, &running)
    }

    /// The running configuration as TOML.
    pub fn toml(&self) -> String {
        toml::of(&self.configurations().running)
    }

    /// Applies the configuration `source`, all of it or nothing.
    ///
    /// # Errors
    /// Fails if the configuration is invalid, a device cannot be opened, or a disk would shrink
    /// without permission; in all of these cases nothing has changed.
    pub fn apply(
        &self,
        source: &ConfigSource,
        options: ApplyOptions,
        by: &dyn fmt::Display,
    ) -> Result<Applied, Failure> {
        let change = ChangeOptions {
            becomes_applied: true,
            dry_run: options.dry_run,
            shrink: options.shrink,
            // The next start with this configuration treats such a LUN in the same way.
            storage: UnavailableStorage::Waits,
        };
        // A file that cannot be used refuses the whole change before anything is done.
        let files = self.files.get();
        let mut renewed = Renewed::default();
        // The files are read inside the change: of two changes, the later one has the newer text.
        let _target_files = lock(&self.target_files);
        let mut warnings = Vec::new();
        let mut applied = self.change(&change, by, |_| {
            let mut wanted = self.read(source)?;
            warnings = self.add_kept_targets(&mut wanted)?;
            renewed = files.map(ApiFiles::read).transpose()?.unwrap_or_default();
            Ok(wanted)
        })?;
        let changes = renewed.changes.clone();
        if let Some(files) = files.filter(|_| applied.made) {
            audit(&changes, by);
            files.put(renewed);
        }
        applied.difference.changes.extend(changes);
        applied.warnings.extend(warnings);
        Ok(applied)
    }

    /// Registers the files that the API's certificate and token are read from again whenever a
    /// configuration is applied.
    pub(crate) fn renew_with(&self, files: ApiFiles) {
        // A daemon has one API, so this is set once.
        let _ = self.files.set(files);
    }

    fn read(&self, source: &ConfigSource) -> Result<Configuration, Failure> {
        let ConfigOrigin::File { path: own, api } = &self.origin else {
            return Err(Failure::conflict("this server was started without a configuration").hint(
                "change it with lunar ctl, or start the server with lunar target --config FILE",
            ));
        };
        let mut read = match source {
            ConfigSource::OwnFile => config::load_running(own)?,
            ConfigSource::Text { text, path } => config::parse_running(text, path)?,
        };
        if let Some(api) = api {
            read.api = api.clone();
        }
        Ok(read)
    }

    /// Adds a LUN to a target, until the next configuration is applied.
    ///
    /// # Errors
    /// Fails if there is no such target, the settings are invalid, the number is taken, or the
    /// device cannot be opened.
    pub fn add_lun(
        &self,
        target: &str,
        settings: &LunSettings,
        by: &dyn fmt::Display,
    ) -> Result<Applied, Failure> {
        self.change(&ChangeOptions::default(), by, |mut wanted| {
            let pools = wanted.pools.clone();
            let lun = config::lun::lun(settings, find(&mut wanted, target)?, &pools)?;
            find(&mut wanted, target)?.luns.push(lun);
            config::lun::check_together(&wanted)?;
            Ok(wanted)
        })
    }

    /// Removes a LUN, until the next configuration is applied.
    ///
    /// # Errors
    /// Fails if there is no such LUN.
    pub fn remove_lun(
        &self,
        at: &LunSelector<'_>,
        by: &dyn fmt::Display,
    ) -> Result<Applied, Failure> {
        self.change(&ChangeOptions::default(), by, |mut wanted| {
            let luns = &mut find(&mut wanted, at.target)?.luns;
            let index = lun_index(luns, at)?;
            luns.remove(index);
            Ok(wanted)
        })
    }

    /// Resizes the unit behind a LUN.
    ///
    /// # Errors
    /// Fails if there is no such LUN, the size is not possible, or it is smaller without permission
    /// to shrink.
    pub fn resize(
        &self,
        at: &LunSelector<'_>,
        bytes: u64,
        shrink: bool,
        by: &dyn fmt::Display,
    ) -> Result<Applied, Failure> {
        let options = ChangeOptions { shrink, ..ChangeOptions::default() };
        self.change(&options, by, |mut wanted| {
            let target = find(&mut wanted, at.target)?;
            let index = lun_index(&target.luns, at)?;
            self.refuse_waiting(&target.name, &target.luns[index])?;
            let block_bytes = target.luns[index].unit.options.block_bytes;
            config::rules::check_size(bytes, block_bytes).map_err(|why| {
                Failure::usage(format!("invalid size of {bytes} bytes")).hint(why)
            })?;
            let target = wanted.targets.iter().position(|t| t.name.eq_ignore_ascii_case(at.target));
            let size = |lun: &mut LunConfig| match &lun.unit.options.pool {
                // The size is in the labels of the members; it is removed from the configuration
                // after the change.
                Some(_) => lun.unit.options.size_bytes = Some(bytes),
                None => force_size(&mut lun.unit, bytes),
            };
            if let Some(target) = target {
                self.each_of_unit(&mut wanted, (target, index), &size);
            }
            Ok(wanted)
        })
    }

    /// Redirects logins at a target to `host:port[,portal group tag]`, or stops redirecting them.
    ///
    /// # Errors
    /// Fails if there is no such target or the address is invalid.
    pub fn redirect(
        &self,
        target: &str,
        to: Option<&str>,
        by: &dyn fmt::Display,
    ) -> Result<Applied, Failure> {
        if let Some(to) = to {
            config::rules::check_redirect(to).map_err(|why| {
                Failure::usage(format!("{to:?} is not a portal address")).hint(why)
            })?;
        }
        self.change(&ChangeOptions::default(), by, |mut wanted| {
            find(&mut wanted, target)?.redirect = to.map(str::to_owned);
            Ok(wanted)
        })
    }

    /// Makes the unit behind a LUN accept writes again after a failed sync: data written since the
    /// last successful sync may be lost.
    ///
    /// # Errors
    /// Fails if there is no such LUN, or the disk still cannot be synced.
    pub fn recover(&self, at: &LunSelector<'_>, by: &dyn fmt::Display) -> Result<(), Failure> {
        let entries = self.begin_change()?;
        let mut running = self.running();
        let target = find(&mut running, at.target)?;
        let (name, index) = (target.name.clone(), lun_index(&target.luns, at)?);
        self.refuse_waiting(&name, &target.luns[index])?;
        let index = self.served_indexes(target)[index];
        let catalogue = self.server.catalogue();
        let served = catalogue.targets.iter().find(|target| target.name == name);
        let lun = index.and_then(|index| served?.luns.get(index));
        let Some(unit) = lun.and_then(|lun| DiskUnit::of(&lun.unit)) else {
            return Err(Failure::not_found(format!("{name} has no LUN {}", at.id)));
        };
        drop(entries);
        block_on(unit.recover())??;
        tracing::info!(target: "audit", %by, target = name, lun = at.id, "recovered");
        Ok(())
    }

    /// Ends a session: requests a logout from the initiator and cuts the session after a few
    /// seconds.
    ///
    /// # Errors
    /// Fails if there is no such session.
    pub fn log_out(&self, tsih: u16, by: &dyn fmt::Display) -> Result<(), Failure> {
        if self.is_stopping() {
            return Err(Failure::stopping());
        }
        let session = self.server.session(tsih);
        let ended = block_on(self.server.log_out(tsih))?;
        match session.filter(|_| ended) {
            Some(session) => {
                let (initiator, target) = (session.initiator_name, session.target_name);
                tracing::info!(target: "audit", %by, tsih, initiator, target, "session logged out");
                Ok(())
            }
            None => Err(Failure::not_found(format!("there is no session {tsih}"))
                .hint("see `lunar ctl sessions` for the current sessions")),
        }
    }

    fn change(
        &self,
        options: &ChangeOptions,
        by: &dyn fmt::Display,
        wish: impl FnOnce(Configuration) -> Result<Configuration, Failure>,
    ) -> Result<Applied, Failure> {
        let changed = self.change_with(options, None, by, wish);
        if let Err((failure, true)) = &changed {
            tracing::warn!(target: "audit", %by, "change failed: {failure}");
        }
        changed.map_err(|(failure, _)| failure)
    }

    /// Makes a change. The error contains `true` if the change was begun and undone.
    fn change_with(
        &self,
        options: &ChangeOptions,
        arrived: Option<ArrivedLun>,
        by: &dyn fmt::Display,
        wish: impl FnOnce(Configuration) -> Result<Configuration, Failure>,
    ) -> Result<Applied, (Failure, bool)> {
        let early = |failure| (failure, false);
        let mut entries = self.begin_change().map_err(early)?;
        let running = self.running();
        let wanted = wish(running.clone()).map_err(early)?;
        let served = without_restart(&wanted, &running);
        // The open portals stay open, whatever the file says about them.
        config::lun::check_locked(&served).map_err(early)?;
        self.migrations.check(&running, &served).map_err(early)?;
        let layout = Layout::of(&running, &self.server.catalogue(), &entries, &self.waiting);
        let keeps_names = !options.becomes_applied;
        let plan = Plan::new(&entries, &running, &layout, &served, keeps_names).map_err(early)?;
        let difference = difference(&running, &wanted, &layout, &entries, &plan);
        if options.dry_run {
            return Ok(report_only(difference, options.shrink));
        }
        if !options.shrink {
            refuse_to_shrink(&difference).map_err(early)?;
        }
        let open = std::mem::take(&mut *entries);
        let mut work =
            ChangeTransaction::new(&self.server, &self.unit_opener, &running, layout, open);
        let start = StartOptions::of_change(options.storage, options.becomes_applied);
        let made = work.units(&plan, start, arrived).and_then(|positions| {
            work.grow(&plan)?;
            let layout = plan.layout(&positions);
            let replaced = work.switch(&served, &layout)?;
            work.shrink(&plan, options.shrink)?;
            Ok((replaced, layout))
        });
        let (replaced, layout) = match made {
            Ok(made) => made,
            Err(failure) => {
                let reverted = work.take_back(failure);
                return Err((self.keep_reverted(reverted, &mut entries), true));
            }
        };
        let mut running = served;
        record_sizes(&mut running, &layout, &|slot| work.unit(slot));
        set_limits(&running, &layout, &|slot| work.unit(slot));
        let mut applied = Applied {
            difference,
            made: true,
            sessions_changed: replaced.sessions_changed,
            sessions_ended: replaced.sessions_ended,
            warnings: std::mem::take(&mut work.warnings),
        };
        let unavailable = std::mem::take(&mut work.unavailable);
        self.put(&mut entries, work.into_entries(&layout));
        drop(replaced);
        self.waiting.set(&running, &unavailable_luns(&running, &entries, &unavailable));
        let mut configurations = self.configurations();
        configurations.running = running;
        if options.becomes_applied {
            configurations.applied = wanted;
        }
        drop(configurations);
        audit(&applied.difference.changes, by);
        applied.warnings.iter().for_each(|warning| tracing::error!("{warning}"));
        // The waits are logged already.
        applied.warnings.extend(unavailable.iter().map(wait_text));
        Ok(applied)
    }

    /// Replaces the open units and their pools after a change.
    fn put(&self, entries: &mut Vec<OpenUnit>, open: Vec<OpenUnit>) {
        self.pools.set(pools_of(&open));
        *entries = open;
    }

    /// Stores the state after a change that was undone. Returns the failure.
    fn keep_reverted(&self, reverted: Reverted, entries: &mut Vec<OpenUnit>) -> Failure {
        let Reverted { failure, running, entries: open, unavailable } = reverted;
        self.put(entries, open);
        self.waiting.set(&running, &unavailable_luns(&running, entries, &unavailable));
        self.configurations().running = running;
        failure
    }

    /// Applies a change to every LUN that shows the same unit as the given LUN.
    fn each_of_unit(
        &self,
        wanted: &mut Configuration,
        at: (usize, usize),
        change: &dyn Fn(&mut LunConfig),
    ) {
        let catalogue = self.server.catalogue();
        let served: Vec<_> = wanted.targets.iter().map(|t| self.served_indexes(t)).collect();
        let unit_of = |(target, lun): (usize, usize)| {
            let served = served.get(target)?.get(lun).copied().flatten()?;
            let unit = &catalogue.targets.get(target)?.luns.get(served)?.unit;
            Some(Arc::clone(unit))
        };
        let unit = unit_of(at);
        for (target, config) in wanted.targets.iter_mut().enumerate() {
            for (lun, config) in config.luns.iter_mut().enumerate() {
                let is_same = match (&unit, unit_of((target, lun))) {
                    (Some(unit), Some(other)) => Arc::ptr_eq(unit, &other),
                    // A LUN that waits is the only one of its unit.
                    _ => (target, lun) == at,
                };
                if is_same {
                    change(config);
                }
            }
        }
    }

    fn configurations(&self) -> MutexGuard<'_, Configurations> {
        lock(&self.configurations)
    }
}

fn wait_text((device, why): &(DeviceUrl, Failure)) -> String {
    format!("{device} waits for its storage: {why}")
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn pools_of(entries: &[OpenUnit]) -> impl Iterator<Item = &OpenPool> {
    entries.iter().filter_map(|entry| entry.pool.as_ref())
}

/// The wanted configuration, except settings that require a restart, which stay as they are.
fn without_restart(wanted: &Configuration, running: &Configuration) -> Configuration {
    Configuration {
        storages: wanted.storages.clone(),
        pools: wanted.pools.clone(),
        targets: wanted.targets.clone(),
        skipped_targets: wanted.skipped_targets.clone(),
        discovery_chap: wanted.discovery_chap.clone(),
        ..running.clone()
    }
}

/// Writes the actual size of each unit into the configuration, where a size was given.
fn record_sizes(
    running: &mut Configuration,
    layout: &Layout,
    unit: &dyn Fn(usize) -> Option<Arc<DiskUnit>>,
) {
    for (target, slots) in running.targets.iter_mut().zip(&layout.0) {
        for (lun, slot) in target.luns.iter_mut().zip(slots) {
            if lun.unit.options.pool.is_some() {
                lun.unit.options.size_bytes = None;
            }
            if let Some(unit) = slot.and_then(unit) {
                set_size(&mut lun.unit, unit.options().device.geometry().size_bytes());
            }
        }
    }
}

/// Sets the limits of each unit; sessions are not interrupted.
fn set_limits(
    running: &Configuration,
    layout: &Layout,
    unit: &dyn Fn(usize) -> Option<Arc<DiskUnit>>,
) {
    for (target, slots) in running.targets.iter().zip(&layout.0) {
        for (lun, slot) in target.luns.iter().zip(slots) {
            if let Some(unit) = slot.and_then(unit) {
                lun.set_limits(&unit);
            }
        }
    }
}

/// Writes the actual size of each file into the configuration, even if no size was given.
fn record_all_sizes(known: &mut Configuration, layout: &Layout, entries: &[OpenUnit]) {
    for (target, slots) in known.targets.iter_mut().zip(&layout.0) {
        for (lun, slot) in target.luns.iter_mut().zip(slots) {
            if let Some(entry) = slot.and_then(|index| entries.get(index))
                && entry.file.is_some()
            {
                lun.unit.options.size_bytes = Some(entry.size_bytes());
            }
        }
    }
}

/// The difference from the running configuration to the wanted one.
fn difference(
    running: &Configuration,
    wanted: &Configuration,
    layout: &Layout,
    entries: &[OpenUnit],
    plan: &Plan,
) -> Difference {
    let mut known = running.clone();
    record_all_sizes(&mut known, layout, entries);
    Difference::between(&known, wanted, &|_, lun| plan.shown(entries, wanted, lun))
}

/// The result of a dry run: the changes, and those that would be refused.
fn report_only(difference: Difference, shrink: bool) -> Applied {
    let refused = refuse_to_shrink(&difference).err().filter(|_| !shrink);
    let refused =
        refused.map(|why| format!("the change is refused without --shrink: {}", why.what));
    let warnings = refused.into_iter().collect();
    Applied { difference, warnings, ..Applied::default() }
}

fn refuse_to_shrink(difference: &Difference) -> Result<(), Failure> {
    let Some(change) = difference.changes.iter().find(|c| c.effect == ChangeEffect::Shrinks) else {
        return Ok(());
    };
    let line = change.line.trim_start_matches("~ ");
    Err(Failure::conflict(format!("a disk would shrink: {line}")).hint(
        "write the current size into the configuration (see lunar ctl status), or add --shrink to \
         discard the data beyond the new end",
    ))
}

/// Logs one line for each change, with its origin.
fn audit(changes: &[ConfigChange], by: &dyn fmt::Display) {
    for change in changes {
        let (target, lun, key) = (&change.target, change.lun, &change.key);
        let text = |value: &Option<serde_json::Value>| value.as_ref().map(ToString::to_string);
        let (from, to) = (text(&change.from), text(&change.to));
        let what = match (change.effect, change.change) {
            (ChangeEffect::Restart, _) => "requested, requires a restart",
            (_, ChangeKind::Add) => "added",
            (_, ChangeKind::Remove) => "removed",
            (_, ChangeKind::Change) => "changed",
        };
        tracing::info!(target: "audit", %by, target, lun, key, from, to, "{what}");
    }
}
