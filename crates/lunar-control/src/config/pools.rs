//! The tables `[[pool]]`: devices that are combined into one, and served as `pool:NAME`.

use super::conflict::FileLocation;
use super::file::{Located, Problems, TableReader, TextSpan};
use super::model::{PoolConfig, PoolMemberConfig};
use super::resolve::Resolver;
use super::resolve_chap::login_chap;
use crate::device_url::{DeviceOptions, DeviceUrl, is_pool_name};
use crate::units::parse_rate;
use std::collections::BTreeMap;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::Duration;

/// Minimum and maximum of `member_wait_seconds`.
const MEMBER_WAIT_SECONDS: std::ops::RangeInclusive<u64> = 1..=300;

/// Minimum and maximum of `lease_seconds`.
const LEASE_SECONDS: std::ops::RangeInclusive<u64> = 3..=600;

/// Keys of a pool that a mirror of extents has, too.
#[derive(Default)]
pub struct MirrorOptionKeys {
    /// See [`PoolConfig::degraded`].
    pub degraded: bool,
    /// See [`PoolConfig::member_wait`].
    pub member_wait: Option<Duration>,
    /// See [`PoolConfig::resync_bytes_per_second`].
    pub resync_bytes_per_second: Option<NonZeroU64>,
}

impl MirrorOptionKeys {
    /// Reads the keys.
    pub fn read(table: &mut TableReader<'_, '_>, resolver: &mut Resolver<'_>) -> Self {
        let problems = &mut resolver.problems;
        let degraded = table.boolean("degraded", problems).unwrap_or(false);
        let wait = table.integer("member_wait_seconds", MEMBER_WAIT_SECONDS, problems);
        let resync = table.string("resync_rate", problems);
        let resync = resync.and_then(|text| {
            let rate = parse_rate(&text.value).and_then(|bytes| {
                NonZeroU64::new(bytes).ok_or_else(|| "write a rate above 0".to_owned())
            });
            resolver.ok_or_report("resync_rate", &text, rate)
        });
        Self {
            degraded,
            member_wait: wait.map(|seconds| Duration::from_secs(seconds.value)),
            resync_bytes_per_second: resync,
        }
    }
}

/// A pool as written; its members may be other pools.
struct WrittenPool {
    config: PoolConfig,
    span: TextSpan,
    /// Positions of the members, then of the spare devices.
    device_spans: Vec<TextSpan>,
}

impl WrittenPool {
    /// The members, then the spare devices.
    fn devices(&self) -> impl Iterator<Item = (&PoolMemberConfig, &TextSpan)> {
        self.config.members.iter().chain(&self.config.spares).zip(&self.device_spans)
    }

    /// Refuses pools as spare devices and removes them, so that no further problem is reported for
    /// them.
    fn refuse_spare_pools(&mut self, problems: &mut Problems<'_>) {
        let spans = self.device_spans.split_off(self.config.members.len());
        let spares = std::mem::take(&mut self.config.spares);
        for (spare, span) in spares.into_iter().zip(spans) {
            if let DeviceUrl::Pool(_) = spare.device {
                let what = format!("{} cannot be a spare device", spare.device);
                problems.add(&span, what, Some("use a file or a remote LUN".to_owned()));
            } else {
                self.config.spares.push(spare);
                self.device_spans.push(span);
            }
        }
    }
}

/// Reads all pools. A pool whose members are pools contains these as they are configured.
pub fn pools(top: &mut TableReader<'_, '_>, resolver: &mut Resolver<'_>) -> Vec<Arc<PoolConfig>> {
    let mut written: Vec<WrittenPool> = Vec::new();
    for mut table in top.tables("pool", &mut resolver.problems) {
        let Some(pool) = pool(&mut table, resolver) else { continue };
        if written.iter().any(|other| other.config.name == pool.config.name) {
            let what = format!("the pool {} is configured twice", pool.config.name);
            let hint = "give each pool its own name".to_owned();
            resolver.problems.add(&pool.span, what, Some(hint));
            continue;
        }
        written.push(pool);
    }
    refuse_shared_members(&written, &mut resolver.problems);
    for pool in &written {
        for (member, span) in pool.devices() {
            if let Some(url) = member.device.portal() {
                resolver.remote_luns.push(Located { value: url.clone(), span: span.clone() });
            }
        }
    }
    nest(written, &mut resolver.problems)
}

fn pool(table: &mut TableReader<'_, '_>, resolver: &mut Resolver<'_>) -> Option<WrittenPool> {
    let name = table.required("name", &mut resolver.problems);
    let texts = table.strings("members", &mut resolver.problems);
    if !table.has("members") {
        let hint = "add members = [\"/srv/a.img\", \"/srv/b.img\"]".to_owned();
        resolver.problems.add(&table.span, "the pool has no `members`", Some(hint));
    }
    let spares = table.strings("spares", &mut resolver.problems).unwrap_or_default();
    let direct = resolver.choice(table, "io", &[("buffered", false), ("direct", true)]);
    let (block_bytes, physical_block_bytes) = resolver.block_sizes(table);
    let MirrorOptionKeys { degraded, member_wait, resync_bytes_per_second } =
        MirrorOptionKeys::read(table, resolver);
    let lease = table.integer("lease_seconds", LEASE_SECONDS, &mut resolver.problems);
    let chap = login_chap("device_chap", table, resolver).map(|chap| chap.value);
    table.finish(&[], &mut resolver.problems);
    let name = name?;
    let named = is_pool_name(&name.value).then_some(());
    let expected = "use 1 to 64 letters, digits, `-`, `_` and `.`".to_owned();
    resolver.ok_or_report("invalid name of a pool", &name, named.ok_or(expected))?;
    let options = DeviceOptions {
        direct: direct.unwrap_or(false),
        block_bytes,
        physical_block_bytes,
        chap,
        ..DeviceOptions::default()
    };
    let texts = texts?;
    let mut device_spans = Vec::new();
    let mut all = |texts: Vec<Located<String>>, may_be_missing: bool| {
        let device = |text: Located<String>| {
            device_spans.push(text.span.clone());
            member(text, &options, may_be_missing, resolver)
        };
        texts.into_iter().map(device).collect::<Option<Vec<_>>>()
    };
    let (members, spares) = (all(texts, degraded)?, all(spares, true)?);
    let config = PoolConfig {
        name: name.value,
        members,
        spares,
        degraded,
        member_wait,
        resync_bytes_per_second,
        lease: lease.map(|seconds| Duration::from_secs(seconds.value)),
        state: resolver.state.clone(),
    };
    let mut pool = WrittenPool { config, span: table.span.clone(), device_spans };
    pool.refuse_spare_pools(&mut resolver.problems);
    Some(pool)
}

fn member(
    text: Located<String>,
    options: &DeviceOptions,
    degraded: bool,
    resolver: &mut Resolver<'_>,
) -> Option<PoolMemberConfig> {
    let device = match DeviceUrl::parse(&text.value) {
        // A member that may be missing.
        Ok(DeviceUrl::File(path)) if degraded => {
            let value = DeviceUrl::File(resolver.path(&path.to_string_lossy()));
            Located { value, span: text.span }
        }
        _ => resolver.device(text, None, options)?,
    };
    if let DeviceUrl::Memory { .. } = device.value {
        let what = format!("{} cannot be a member of a pool", device.value);
        let hint = "use a file or a remote LUN: memory has no label when the server starts";
        resolver.problems.add(&device.span, what, Some(hint.to_owned()));
        return None;
    }
    let mut options = options.clone();
    if device.value.portal().is_none() {
        options.chap = None;
    }
    Some(PoolMemberConfig { device: device.value, options })
}

/// Refuses a device that is a member twice, of one pool or of two.
fn refuse_shared_members(pools: &[WrittenPool], problems: &mut Problems<'_>) {
    let mut seen: Vec<(&PoolMemberConfig, Option<FileLocation>)> = Vec::new();
    for pool in pools {
        for (member, span) in pool.devices() {
            let location = member.device.path().map(FileLocation::of);
            let is_same = |(other, other_location): &(&PoolMemberConfig, Option<FileLocation>)| {
                (location.is_some() && location == *other_location) || member.device == other.device
            };
            if seen.iter().any(is_same) {
                let what = format!("{} is a member twice", member.device);
                problems.add(span, what, Some("name each device once".to_owned()));
            }
            seen.push((member, location));
        }
    }
}

/// Puts the pools that are members into the pools that they are members of.
fn nest(written: Vec<WrittenPool>, problems: &mut Problems<'_>) -> Vec<Arc<PoolConfig>> {
    let mut waiting = written;
    let mut done: BTreeMap<String, Arc<PoolConfig>> = BTreeMap::new();
    let mut order = Vec::new();
    loop {
        let before = waiting.len();
        let mut rest = Vec::new();
        for mut pool in waiting {
            let members = &mut pool.config.members;
            members.iter_mut().for_each(|member| {
                if let DeviceUrl::Pool(name) = &member.device {
                    member.options.pool = done.get(name).cloned();
                }
            });
            if members.iter().all(PoolMemberConfig::is_resolved) {
                let config = Arc::new(pool.config);
                order.push(config.name.clone());
                done.insert(config.name.clone(), config);
            } else {
                rest.push(pool);
            }
        }
        waiting = rest;
        if waiting.len() == before {
            break;
        }
    }
    for pool in &waiting {
        for (member, span) in pool.devices().filter(|(member, _)| !member.is_resolved()) {
            let known = waiting.iter().any(|other| is_named(&other.config, &member.device));
            let hint = match known {
                true => "a pool cannot be a member of itself",
                false => "add a [[pool]] with this name",
            };
            let what = format!("{} cannot be opened", member.device);
            problems.add(span, what, Some(hint.to_owned()));
        }
    }
    order.iter().filter_map(|name| done.get(name).cloned()).collect()
}

fn is_named(pool: &PoolConfig, device: &DeviceUrl) -> bool {
    matches!(device, DeviceUrl::Pool(name) if *name == pool.name)
}

/// Keys that a LUN on a pool must not have, each with the reason.
const KEYS_REFUSED_ON_POOLS: [(&str, &str); 4] = [
    ("io", "set it in the [[pool]]"),
    ("block_size", "set it in the [[pool]]"),
    ("physical_block_size", "set it in the [[pool]]"),
    ("thin_threshold", "only a thin disk in a sparse file can have a threshold"),
];

/// Checks the keys of a LUN and its device, which is named at `at`, against the pools; returns the
/// pool that the device names.
pub fn check_lun(
    table: &TableReader<'_, '_>,
    device: &DeviceUrl,
    at: &TextSpan,
    resolver: &mut Resolver<'_>,
) -> Option<Option<Arc<PoolConfig>>> {
    let problems = &mut resolver.problems;
    if let Some(pool) = pool_with_member(&resolver.pools, device) {
        let what = format!("{device} is a member of the pool {}", pool.name);
        let hint = format!("serve pool:{}, or take the member out of the pool", pool.name);
        problems.add(at, what, Some(hint));
        return None;
    }
    let DeviceUrl::Pool(name) = device else { return Some(None) };
    for (key, why) in KEYS_REFUSED_ON_POOLS {
        if let Some(span) = table.span_of(key) {
            let what = format!("`{key}` is not allowed for a pool");
            problems.add(&span, what, Some(format!("omit `{key}`: {why}")));
        }
    }
    match find(&resolver.pools, name) {
        Ok(pool) => Some(Some(pool)),
        Err(hint) => {
            problems.add(at, format!("there is no pool {name}"), Some(hint));
            None
        }
    }
}

/// The pool that a device names.
///
/// # Errors
/// Returns a hint if there is no such pool.
pub fn find(pools: &[Arc<PoolConfig>], name: &str) -> Result<Arc<PoolConfig>, String> {
    match pools.iter().find(|pool| pool.name == name) {
        Some(pool) => Ok(Arc::clone(pool)),
        None => {
            let known: Vec<&str> = pools.iter().map(|pool| &*pool.name).collect();
            Err(match known.is_empty() {
                true => format!("add a [[pool]] with name = {name:?} and its members"),
                false => format!("the configured pools are {}", known.join(", ")),
            })
        }
    }
}

/// Returns the pool that has this file, device or pool as a member.
pub fn pool_with_member<'p>(
    pools: &'p [Arc<PoolConfig>],
    device: &DeviceUrl,
) -> Option<&'p PoolConfig> {
    let location = device.path().map(FileLocation::of);
    let is_member = |member: &PoolMemberConfig| match (&location, member.device.path()) {
        (Some(location), Some(path)) => FileLocation::of(path) == *location,
        _ => member.device == *device,
    };
    pools
        .iter()
        .find(|pool| pool.members.iter().chain(&pool.spares).any(is_member))
        .map(|pool| &**pool)
}
