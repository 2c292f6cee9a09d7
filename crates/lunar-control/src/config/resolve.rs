//! Converts TOML text to a [`Configuration`]: checks keys, types, and the rules that types cannot
//! express.

use super::api_options::ApiOptions;
use super::conflict::Disks;
use super::defaults::{default_offer, default_portal};
use super::file::{self, ConfigProblem, Located, Problems, TOP_TABLE_NAME, TableReader, TextSpan};
use super::model::{Configuration, LunConfig, PoolConfig, TargetConfig, UnitConfig};
use super::moved_extents::MovedExtentsUse;
use super::named_limits::NamedLimits;
use super::pools;
use super::resolve_api::api;
use super::resolve_chap::{chap_list, check_secrets_differ, discovery_chap};
use super::resolve_remote::{RemoteLunKeys, check_remote_luns, remote_lun_keys};
use super::rules;
use super::virtual_lun::{self, StorageTable, VirtualLunKeys};
use crate::Readable;
use crate::device_url::{DeviceOptions, DeviceUrl, missing_hint};
use crate::units::parse_rate;
use lunar_initiator::Url;
use lunar_iscsi::login::Secret;
use lunar_iscsi::text::{Digest, Offer};
use lunar_target::{Access, CacheMode, OutOfSpace, Portal};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use toml::de::DeValue;
use uuid::Uuid;

/// Settings of `[data_path]`.
struct DataPath {
    /// Number of threads; 0: one per core.
    cores: usize,
    /// Threads poll for a while before they sleep.
    latency_mode: bool,
    /// Each thread has a ring.
    io_uring: bool,
}

/// Reads and checks a configuration. `path` names the file that `text` came from: relative paths in
/// `text` are resolved against its directory. Files named by `text` must be of a kind that
/// `readable` permits. Extents are also checked against the storages that were reached, and those
/// that were moved.
///
/// # Errors
/// Returns all problems, in the order of the text.
pub fn resolve(
    text: &str,
    path: &Path,
    readable: Readable,
    storages: StorageTable,
) -> Result<Configuration, Vec<ConfigProblem>> {
    let mut problems = Problems::new(text);
    let document = file::parse(text, &mut problems);
    if !problems.is_empty() {
        // The keys of a text with syntax errors cannot be interpreted reliably.
        return Err(problems.into_sorted());
    }
    let base = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    // The path is absolute because messages may be read in another directory.
    let base = std::path::absolute(base).unwrap_or_else(|_| base.to_owned());
    let mut resolver = Resolver::new(base, problems, readable);
    resolver.storages = storages;
    let mut top = TableReader::new(document.get_ref(), 0..0, TOP_TABLE_NAME);
    let configuration = resolver.top(&mut top);
    let problems = resolver.problems.into_sorted();
    if problems.is_empty() { Ok(configuration) } else { Err(problems) }
}

/// State of reading: the base of relative paths, the problems found, and the secrets seen.
#[derive(Debug)]
pub struct Resolver<'t> {
    /// Directory that relative paths are resolved against.
    base: PathBuf,
    /// Directory for state that outlives a server.
    pub state: Option<PathBuf>,
    /// Kinds of files that may be read.
    pub readable: Readable,
    /// Problems found so far.
    pub problems: Problems<'t>,
    /// Secrets that targets authenticate with.
    pub own_secrets: Vec<Located<Secret>>,
    /// Secrets that initiators authenticate with.
    pub initiator_secrets: Vec<Secret>,
    /// The remote LUNs that are served, or are members of pools.
    pub remote_luns: Vec<Located<Url>>,
    /// The pools.
    pub pools: Vec<Arc<PoolConfig>>,
    /// The storages of virtual LUNs.
    pub storages: StorageTable,
}

impl<'t> Resolver<'t> {
    /// Creates a resolver without any secrets.
    pub(super) fn new(base: PathBuf, problems: Problems<'t>, readable: Readable) -> Self {
        Self {
            base,
            state: None,
            readable,
            problems,
            own_secrets: Vec::new(),
            initiator_secrets: Vec::new(),
            remote_luns: Vec::new(),
            pools: Vec::new(),
            storages: StorageTable::new(MovedExtentsUse::Refuse),
        }
    }
}

/// The keys that name the device of a LUN.
enum DeviceKeys {
    /// The text of `device`.
    Named(Option<Located<String>>),
    /// The extents of a virtual LUN, and its name.
    Virtual(Option<VirtualLunKeys>, String),
}

impl DeviceKeys {
    fn text(&self) -> Option<&Located<String>> {
        match self {
            Self::Named(text) => text.as_ref(),
            Self::Virtual(..) => None,
        }
    }
}

impl Resolver<'_> {
    /// Resolves a path of the file.
    pub fn path(&self, text: &str) -> PathBuf {
        self.base.join(text)
    }

    fn top(&mut self, top: &mut TableReader<'_, '_>) -> Configuration {
        let problems = &mut self.problems;
        let state = top.string("state", problems);
        self.state = state.map(|state| self.path(&state.value));
        let portals = self.portals(top);
        let discovery_chap = top.table("discovery", &mut self.problems).and_then(|mut table| {
            let chap = discovery_chap(&mut table, self);
            table.finish(&[], &mut self.problems);
            chap
        });
        let api = match top.table("api", &mut self.problems) {
            Some(mut table) => api(&mut table, self),
            None => ApiOptions::default(),
        };
        let limits = match top.table("limits", &mut self.problems) {
            Some(mut table) => NamedLimits::read(&mut table, &mut self.problems),
            None => NamedLimits::default(),
        };
        let data_path = self.data_path(top);
        let metrics = self.metrics(top);
        let exposed_portal = portals.iter().find(|p| !rules::is_loopback(&p.value.listen)).cloned();
        self.pools = pools::pools(top, self);
        virtual_lun::storages(top, self);
        let mut tables = top.tables("target", &mut self.problems);
        let targets: Vec<_> =
            tables.iter_mut().map(|table| (self.target(table), table.span.clone())).collect();
        if tables.is_empty() && !top.has("target") {
            let hint = "add a [[target]] with a [[target.lun]]".to_owned();
            self.problems.add(&(0..0), "no target is configured", Some(hint));
        }
        if let Some(portal) = exposed_portal {
            self.check_access_restricted(&targets, &portal);
        }
        self.check_unique(&targets);
        check_secrets_differ(self);
        top.finish(&[], &mut self.problems);
        let configuration = Configuration {
            state: self.state.clone(),
            portals: portals.into_iter().map(|portal| portal.value).collect(),
            discovery_chap,
            api,
            cores: data_path.cores,
            latency_mode: data_path.latency_mode,
            io_uring: data_path.io_uring,
            limits,
            metrics,
            storages: std::mem::take(&mut self.storages.list),
            pools: std::mem::take(&mut self.pools),
            targets: targets.into_iter().map(|(target, _)| target).collect(),
            skipped_targets: Vec::new(),
        };
        check_remote_luns(self, &configuration);
        configuration
    }

    fn data_path(&mut self, top: &mut TableReader<'_, '_>) -> DataPath {
        let mut data_path = DataPath { cores: 0, latency_mode: false, io_uring: true };
        if let Some(mut table) = top.table("data_path", &mut self.problems) {
            let cores = table.integer("cores", 0..=1024, &mut self.problems);
            data_path.cores = cores.map_or(data_path.cores, |cores| cores.value as usize);
            let latency_mode = table.boolean("latency_mode", &mut self.problems);
            data_path.latency_mode = latency_mode.unwrap_or(data_path.latency_mode);
            data_path.io_uring =
                table.boolean("io_uring", &mut self.problems).unwrap_or(data_path.io_uring);
            table.finish(&[], &mut self.problems);
        }
        data_path
    }

    fn metrics(&mut self, top: &mut TableReader<'_, '_>) -> Option<std::net::SocketAddr> {
        let mut table = top.table("metrics", &mut self.problems)?;
        let listen = table.required("listen", &mut self.problems);
        table.finish(&[], &mut self.problems);
        self.listen(&listen?)
    }

    fn portals(&mut self, top: &mut TableReader<'_, '_>) -> Vec<Located<Portal>> {
        let mut portals: Vec<Located<Portal>> = Vec::new();
        if let Some(mut listen) = top.table("listen", &mut self.problems) {
            listen.refuse_empty("portals", &mut self.problems);
            for item in listen.items("portals") {
                let portal = match item.get_ref() {
                    DeValue::Table(table) => {
                        let mut table = TableReader::new(table, item.span(), "a portal");
                        self.portal_table(&mut table)
                    }
                    _ => file::string_of(item, "portals", &mut self.problems)
                        .and_then(|text| self.listen(&text))
                        .map(Portal::new),
                };
                let Some(portal) = portal else { continue };
                let others = portals.iter().map(|other| &other.value);
                if let Some(what) = rules::check_portal_overlap(others.clone(), &portal) {
                    self.problems.add(&item.span(), what, None);
                }
                if let Some(what) = rules::check_one_portal_group(others, &portal) {
                    self.problems.add(
                        &item.span(),
                        what,
                        Some(rules::PORTAL_GROUP_HINT.to_owned()),
                    );
                }
                portals.push(Located { value: portal, span: item.span() });
            }
            listen.finish(&[], &mut self.problems);
            if portals.is_empty() && !listen.has("portals") {
                let hint = "add portals = [\"127.0.0.1:3260\"]".to_owned();
                self.problems.add(&listen.span, "[listen] has no `portals`", Some(hint));
            }
        } else if !top.has("listen") {
            portals.push(Located { value: default_portal(), span: 0..0 });
        }
        portals
    }

    fn portal_table(&mut self, table: &mut TableReader<'_, '_>) -> Option<Portal> {
        let listen = table.required("listen", &mut self.problems);
        let advertise = table.string("advertise", &mut self.problems);
        let group = table.integer("portal_group", 1..=65_535, &mut self.problems);
        table.finish(&[], &mut self.problems);
        if let Some(advertise) = &advertise {
            self.ok_or_report("advertise", advertise, rules::check_advertised(&advertise.value));
        }
        let listen = self.listen(&listen?)?;
        Some(Portal {
            listen,
            advertise: advertise.map(|text| text.value),
            portal_group: group.map(|group| group.value as u16),
        })
    }

    fn listen(&mut self, text: &Located<String>) -> Option<std::net::SocketAddr> {
        self.ok_or_report("invalid listen address", text, rules::parse_listen(&text.value))
    }

    /// Returns the value; `None` if `result` is an error, which is added to the problems.
    pub fn ok_or_report<T>(
        &mut self,
        what: &str,
        text: &Located<String>,
        result: Result<T, String>,
    ) -> Option<T> {
        match result {
            Ok(value) => Some(value),
            Err(hint) => {
                self.problems.add(&text.span, format!("{what}: {:?}", text.value), Some(hint));
                None
            }
        }
    }

    pub(super) fn target(&mut self, table: &mut TableReader<'_, '_>) -> TargetConfig {
        let name = table.required("name", &mut self.problems);
        if let Some(name) = &name {
            self.ok_or_report("invalid target name", name, rules::check_name(&name.value));
        }
        let alias = table.string("alias", &mut self.problems).map(|alias| alias.value);
        let access = self.access(table).without_spans();
        let administer = self.administer(table, &[&access]);
        let portal_group = table.integer("portal_group", 1..=65_535, &mut self.problems);
        let chap = chap_list(table, self);
        let offer = self.offer(table);
        let redirect = table.string("redirect", &mut self.problems);
        if let Some(redirect) = &redirect {
            self.ok_or_report("redirect", redirect, rules::check_redirect(&redirect.value));
        }
        let initiator_limits = self.initiator_limits(table, "limit");
        let mut luns: Vec<LunConfig> = Vec::new();
        for mut lun in table.tables("lun", &mut self.problems) {
            let target_name = name.as_ref().map_or("", |name| &*name.value);
            let Some(read) = self.lun(&mut lun, target_name, &access) else { continue };
            self.check_distinct_luns(&access, &luns, &read, &lun.span);
            luns.push(read);
        }
        if !table.has("lun") && redirect.is_none() {
            let hint = "add a [[target.lun]] with an id and a device".to_owned();
            self.problems.add(&table.span, "the target has no LUN", Some(hint));
        }
        table.finish(&[], &mut self.problems);
        TargetConfig {
            name: name.map_or_else(String::new, |name| name.value),
            alias,
            portal_group: portal_group.map_or(1, |group| group.value as u16),
            access,
            administer,
            chap,
            offer,
            redirect: redirect.map(|redirect| redirect.value),
            initiator_limits,
            luns,
            is_persisted: false,
        }
    }

    fn offer(&mut self, table: &mut TableReader<'_, '_>) -> Offer {
        let mut offer = default_offer();
        if let Some(connections) = table.integer("max_connections", 1..=64, &mut self.problems) {
            offer.max_connections = connections.value as u16;
        }
        if let Some(digests) = self.digests("header_digest", table) {
            offer.header_digest = digests;
        }
        if let Some(digests) = self.digests("data_digest", table) {
            offer.data_digest = digests;
        }
        if let Some(level) = table.integer("error_recovery_level", 0..=2, &mut self.problems)
            && level.value != 0
        {
            let what = format!("`error_recovery_level` is {}", level.value);
            let hint = "this version supports only 0".to_owned();
            self.problems.add(&level.span, what, Some(hint));
        }
        offer
    }

    fn digests(
        &mut self,
        key: &'static str,
        table: &mut TableReader<'_, '_>,
    ) -> Option<Vec<Digest>> {
        let list = table.strings(key, &mut self.problems)?;
        let mut digests = Vec::new();
        for item in &list {
            let digest = match item.value.to_ascii_lowercase().as_str() {
                "crc32c" => Ok(Digest::Crc32c),
                "none" => Ok(Digest::None),
                _ => Err("write \"crc32c\" or \"none\"".to_owned()),
            };
            match self.ok_or_report(key, item, digest) {
                Some(digest) if digests.contains(&digest) => {
                    self.problems.add(
                        &item.span,
                        format!("{:?} is listed twice", item.value),
                        None,
                    );
                }
                Some(digest) => digests.push(digest),
                None => {}
            }
        }
        if list.is_empty() {
            let hint = "list \"crc32c\", \"none\" or both".to_owned();
            self.problems.add(&table.span, format!("`{key}` is empty"), Some(hint));
        }
        Some(digests)
    }

    /// Reads a LUN of a target with this name and access.
    pub(super) fn lun(
        &mut self,
        table: &mut TableReader<'_, '_>,
        target_name: &str,
        target: &Access,
    ) -> Option<LunConfig> {
        let id = table.integer("id", 0..=u64::from(lunar_wire::Lun::UNIT_MAX), &mut self.problems);
        if !table.has("id") {
            let hint = "add a line id = 0".to_owned();
            self.problems.add(&table.span, "the LUN has no `id`", Some(hint));
        }
        let uuid = self.uuid(table);
        let number = id.as_ref().map_or(0, |id| id.value as u16);
        let device = self.device_keys(table, (target_name, number), uuid);
        let cache = self.choice(
            table,
            "cache",
            &[("write-through", CacheMode::WriteThrough), ("write-back", CacheMode::WriteBack)],
        );
        let direct = self.choice(table, "io", &[("buffered", false), ("direct", true)]);
        let sizes = self.block_sizes(table);
        let size = table.size("size", 512..=i64::MAX as u64, &mut self.problems);
        let problems = &mut self.problems;
        let read_only = table.boolean("read_only", problems).unwrap_or(false);
        let removable = table.boolean("removable", problems).unwrap_or(false);
        let thin = table.boolean("thin", problems).unwrap_or(true);
        let thin_threshold_percent = self.thin_threshold(table, thin, device.text());
        let maintenance_bytes_per_second = self.maintenance_rate(table);
        let out_of_space = self.choice(
            table,
            "out_of_space",
            &[("fail", OutOfSpace::Fail), ("hold", OutOfSpace::Hold)],
        );
        let remote = remote_lun_keys(table, self);
        let access = self.lun_access(table, target);
        let administer = self.administer(table, &[target, &access]);
        let limit = self.limit(table);
        let initiator_limits = self.initiator_limits(table, "initiator_limit");
        table.finish(&[], &mut self.problems);
        let options = DeviceOptions {
            size_bytes: size.as_ref().map(|size| size.value),
            direct: direct.unwrap_or(false),
            io_uring: false, // set from `[data_path]` for all
            block_bytes: sizes.0,
            physical_block_bytes: sizes.1,
            read_only,
            thin,
            chap: remote.chap(),
            ..DeviceOptions::default()
        };
        let (device, options) = self.lun_device(device, table, size, options, &remote)?;
        let unit = UnitConfig {
            uuid,
            identity: remote.identity(),
            device,
            options,
            cache: cache.unwrap_or_default(),
            thin_threshold_percent,
            out_of_space: out_of_space.unwrap_or_default(),
            maintenance_bytes_per_second,
            removable,
        };
        let id = id?.value as u16;
        Some(LunConfig { id, unit, access, administer, limit, initiator_limits })
    }

    fn uuid(&mut self, table: &mut TableReader<'_, '_>) -> Option<Uuid> {
        let text = table.string("uuid", &mut self.problems)?;
        let read = Uuid::parse_str(&text.value).ok().filter(|uuid| !uuid.is_nil());
        let expected = "write a UUID, as printed by `uuidgen`".to_owned();
        self.ok_or_report("uuid", &text, read.ok_or(expected))
    }

    fn device_keys(
        &mut self,
        table: &mut TableReader<'_, '_>,
        (target, id): (&str, u16),
        uuid: Option<Uuid>,
    ) -> DeviceKeys {
        if !virtual_lun::is_virtual(table) {
            return DeviceKeys::Named(table.required("device", &mut self.problems));
        }
        let name = virtual_lun::lun_name(target, id, uuid);
        let lun = format!("LUN {id} of {target}");
        DeviceKeys::Virtual(virtual_lun::virtual_lun(table, (&lun, &name), self), name)
    }

    /// Checks the device of a LUN; returns it, with the options for opening it.
    fn lun_device(
        &mut self,
        keys: DeviceKeys,
        table: &TableReader<'_, '_>,
        size: Option<Located<u64>>,
        options: DeviceOptions,
        remote: &RemoteLunKeys,
    ) -> Option<(DeviceUrl, DeviceOptions)> {
        match keys {
            DeviceKeys::Named(text) => {
                let Located { value: device, span } = self.device(text?, size, &options)?;
                remote.check(table, &device, &span, self)?;
                let pool = pools::check_lun(table, &device, &span, self)?;
                Some((device, DeviceOptions { pool, ..options }))
            }
            DeviceKeys::Virtual(keys, name) => {
                let keys = keys?;
                let span = keys.span().clone();
                let (device, options) = keys.device(table, name, options, &mut self.problems);
                remote.check(table, &device, &span, self)?;
                Some((device, options))
            }
        }
    }

    fn maintenance_rate(&mut self, table: &mut TableReader<'_, '_>) -> Option<u64> {
        let text = table.string("maintenance_rate", &mut self.problems)?;
        self.ok_or_report("maintenance_rate", &text, parse_rate(&text.value))
    }

    fn thin_threshold(
        &mut self,
        table: &mut TableReader<'_, '_>,
        thin: bool,
        device: Option<&Located<String>>,
    ) -> Option<u8> {
        let text = table.string("thin_threshold", &mut self.problems)?;
        let memory = device.is_some_and(|device| device.value.starts_with("mem:"));
        if memory || !thin {
            let what = if memory { "a memory disk" } else { "a disk with thin = false" };
            let hint = "omit it: only a thin disk in a sparse file can have a threshold".to_owned();
            self.problems.add(
                &text.span,
                format!("`thin_threshold` is not supported for {what}"),
                Some(hint),
            );
        }
        self.ok_or_report("thin_threshold", &text, rules::parse_threshold(&text.value))
    }

    pub(super) fn block_sizes(&mut self, table: &mut TableReader<'_, '_>) -> (u32, u32) {
        let defaults = DeviceOptions::default();
        let block = table.size("block_size", 1..=1 << 30, &mut self.problems);
        let physical = table.size("physical_block_size", 1..=1 << 30, &mut self.problems);
        let block_bytes = block.as_ref().map_or(u64::from(defaults.block_bytes), |b| b.value);
        let physical_bytes =
            physical.as_ref().map_or(u64::from(defaults.physical_block_bytes), |p| p.value);
        if let Err(hint) = rules::check_block_sizes(block_bytes, physical_bytes) {
            let span = physical.or(block).map_or_else(|| table.span.clone(), |size| size.span);
            let what = format!("invalid block sizes: {block_bytes}, physical {physical_bytes}");
            self.problems.add(&span, what, Some(hint));
            return (defaults.block_bytes, defaults.physical_block_bytes);
        }
        (block_bytes as u32, physical_bytes as u32)
    }

    pub(super) fn device(
        &mut self,
        text: Located<String>,
        size: Option<Located<u64>>,
        options: &DeviceOptions,
    ) -> Option<Located<DeviceUrl>> {
        let problems = &mut self.problems;
        let mut device = match DeviceUrl::parse(&text.value) {
            Ok(device) => device,
            Err(failure) => {
                problems.add(&text.span, failure.what, failure.hint);
                return None;
            }
        };
        let block = u64::from(options.block_bytes);
        match &mut device {
            DeviceUrl::File(path) => {
                *path = self.base.join(&*path);
                if size.is_none() && !path.exists() {
                    let hint =
                        "use an existing file, or give it a `size`, like 10GiB, to create it";
                    let what = format!("{} does not exist", path.display());
                    problems.add(&text.span, what, Some(missing_hint(path, hint)));
                }
            }
            DeviceUrl::Memory { size_bytes } => {
                if !size_bytes.is_multiple_of(block) {
                    let hint = format!("the size must be a multiple of the block size, {block}");
                    problems.add(&text.span, format!("{:?}", text.value), Some(hint));
                }
                if let Some(size) = &size {
                    let hint =
                        "omit `size`: the size of a memory disk is part of mem:SIZE".to_owned();
                    problems.add(&size.span, "`size` is not allowed for a memory disk", Some(hint));
                }
            }
            DeviceUrl::Iscsi(_) => {
                if let Some(size) = &size {
                    let hint = "omit `size`: the target of the LUN determines it".to_owned();
                    problems.add(&size.span, "`size` is not allowed for a remote LUN", Some(hint));
                }
            }
            // No text names these.
            DeviceUrl::Virtual(_) | DeviceUrl::Extent(_) => {}
            DeviceUrl::Pool(_) => {
                if let Some(size) = &size {
                    let hint = "omit `size`: the members of the pool determine it".to_owned();
                    problems.add(&size.span, "`size` is not allowed for a pool", Some(hint));
                }
            }
        }
        if let Some(size) = &size
            && !size.value.is_multiple_of(block)
        {
            let hint = format!("the size must be a multiple of the block size, {block}");
            problems.add(&size.span, format!("`size` is {} bytes", size.value), Some(hint));
        }
        Some(Located { value: device, span: text.span })
    }

    pub(super) fn choice<T: Copy>(
        &mut self,
        table: &mut TableReader<'_, '_>,
        key: &'static str,
        choices: &[(&str, T)],
    ) -> Option<T> {
        let text = table.string(key, &mut self.problems)?;
        let chosen = choices.iter().find(|(name, _)| *name == text.value);
        let names: Vec<_> = choices.iter().map(|(name, _)| format!("{name:?}")).collect();
        let expected = format!("write {}", names.join(" or "));
        self.ok_or_report(key, &text, chosen.map(|(_, value)| *value).ok_or(expected))
    }

    /// Checks that each name stands for one target, and each UUID for one disk.
    fn check_unique(&mut self, targets: &[(TargetConfig, TextSpan)]) {
        let mut names = BTreeMap::new();
        let mut disks = Disks::default();
        for (target, span) in targets {
            if !target.name.is_empty() && names.insert(&target.name, ()).is_some() {
                let what = format!("the target name {} is used twice", target.name);
                self.problems.add(span, what, Some("give each target its own name".to_owned()));
            }
            for lun in &target.luns {
                if let Some((what, hint)) = disks.add(lun) {
                    let what = format!("LUN {}: {what}", lun.id);
                    self.problems.add(span, what, Some(hint.to_owned()));
                }
            }
        }
    }
}
