//! The tables `[[storage]]`, and the keys of LUNs whose blocks lie on extents of storages.

use super::file::{Located, Problems, TableReader, TextSpan, mismatch};
use super::mirrored_lun::{MirroredExtents, mirror, mirror_value};
use super::model::{ChapConfig, UnitConfig};
use super::moved_extents::{MovedExtents, MovedExtentsUse, WrittenExtents};
use super::resolve::Resolver;
use super::resolve_chap::login_chap;
use super::resolve_remote::RemoteLunKeys;
use super::setting::{Setting, Value};
use crate::device_url::{DeviceOptions, DeviceUrl, is_pool_name};
use crate::units::size_text;
use lunar_block::Geometry;
use lunar_initiator::{Url, parse_portal};
use lunar_pool::{STRIPE_UNIT_BYTES, STRIPE_UNIT_BYTES_MAX};
use lunar_switch::blocks_of;
use std::collections::BTreeMap;
use std::fmt;
use std::num::{NonZeroU32, NonZeroU64};
use std::sync::Arc;
use toml::de::DeValue;
use uuid::Uuid;

/// Maximum number of extents of a LUN.
const LUN_EXTENTS_MAX: usize = 1024;
/// Smallest block of a disk, and thus of an extent.
const BLOCK_BYTES_MIN: u64 = 512;
/// Default time for which I/O waits for a storage that cannot be reached.
const STORAGE_WAIT_SECONDS: NonZeroU32 = NonZeroU32::new(60).unwrap();
/// Maximum of this time.
const STORAGE_WAIT_SECONDS_MAX: u32 = 3600;

/// A LUN of another target, on which extents of virtual LUNs lie.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct StorageConfig {
    /// Name in the configuration.
    pub name: String,
    /// The LUN.
    pub url: Url,
    /// Credentials for the login to its target.
    pub chap: Option<ChapConfig>,
    /// Other portals of the target, each a path to the LUN.
    pub portals: Vec<(String, u16)>,
    /// Handling of I/O while the storage cannot be reached.
    pub on_loss: StorageLossPolicy,
}

/// Handling of I/O while a storage cannot be reached. Sessions of hosts stay in any case.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum StorageLossPolicy {
    /// I/O waits for the storage, at most for this number of seconds.
    Wait(NonZeroU32),
    /// I/O fails at once.
    Fail,
}

impl StorageLossPolicy {
    /// Time in seconds for which I/O waits; 0: it fails at once.
    pub const fn wait_seconds(self) -> u32 {
        match self {
            Self::Wait(seconds) => seconds.get(),
            Self::Fail => 0,
        }
    }

    fn parse(text: &str) -> Result<Self, String> {
        let seconds = |text: &str| text.trim().strip_suffix('s')?.trim_end().parse().ok();
        match text.trim().split_once(' ') {
            None if text.trim() == "fail" => return Ok(Self::Fail),
            Some(("wait", time)) => {
                let seconds: Option<NonZeroU32> = seconds(time);
                let fits = |seconds: &NonZeroU32| seconds.get() <= STORAGE_WAIT_SECONDS_MAX;
                if let Some(seconds) = seconds.filter(fits) {
                    return Ok(Self::Wait(seconds));
                }
            }
            _ => {}
        }
        Err(format!("write \"fail\", or \"wait 60s\" (1s to {STORAGE_WAIT_SECONDS_MAX}s)"))
    }
}

impl fmt::Display for StorageLossPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Wait(seconds) => write!(f, "wait {seconds}s"),
            Self::Fail => f.write_str("fail"),
        }
    }
}

/// Consecutive blocks of a storage.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct ExtentConfig {
    /// The storage.
    pub storage: Arc<StorageConfig>,
    /// First byte.
    pub start_bytes: u64,
    /// Number of bytes.
    pub length_bytes: u64,
}

impl ExtentConfig {
    /// First byte behind it.
    pub fn end_bytes(&self) -> u64 {
        self.start_bytes.saturating_add(self.length_bytes)
    }

    /// True if both have a block.
    pub fn overlaps(&self, other: &Self) -> bool {
        self.storage.name == other.storage.name
            && self.start_bytes < other.end_bytes()
            && other.start_bytes < self.end_bytes()
    }

    pub(super) fn value(&self) -> Value {
        Value::Table(vec![
            ("storage", Value::text(&self.storage.name)),
            ("start", Value::Size(self.start_bytes)),
            ("length", Value::Size(self.length_bytes)),
        ])
    }
}

impl fmt::Display for ExtentConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (start, length) = (bytes_text(self.start_bytes), bytes_text(self.length_bytes));
        write!(f, "{}:{start}+{length}", self.storage.name)
    }
}

/// A number of bytes as in the configuration.
pub fn bytes_text(bytes: u64) -> String {
    size_text(bytes).unwrap_or_else(|| bytes.to_string())
}

/// A disk on extents, without labels.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct VirtualDiskConfig {
    /// Stripe unit; `None`: the extents follow each other.
    pub stripe_unit_bytes: Option<NonZeroU64>,
    /// The extents, in order.
    pub extents: Vec<ExtentConfig>,
}

impl VirtualDiskConfig {
    /// The size of the disk.
    pub fn size_bytes(&self) -> u64 {
        self.extents.iter().fold(0, |sum, extent| sum.saturating_add(extent.length_bytes))
    }

    /// The key of the LUN, and its value.
    pub fn setting(&self) -> (&'static str, Value) {
        let list = Value::List(self.extents.iter().map(ExtentConfig::value).collect());
        match self.stripe_unit_bytes {
            None => ("extents", list),
            Some(unit) => {
                let unit = ("unit", Value::Size(unit.get()));
                ("stripe", Value::Table(vec![unit, ("over", list)]))
            }
        }
    }

    /// The line of the configuration.
    pub fn line(&self) -> String {
        let (key, value) = self.setting();
        format!("{key} = {}", value.toml())
    }

    /// True if all blocks of `old` are where they were: the disk can grow while it is used.
    pub fn extends(&self, old: &Self) -> bool {
        let is_striped = self.stripe_unit_bytes.is_some();
        let last = old.extents.len().saturating_sub(1);
        let stays = |(at, old): (usize, &ExtentConfig)| {
            self.extents.get(at).is_some_and(|new| {
                let may_grow = is_striped || at == last;
                let longer = may_grow && old.length_bytes < new.length_bytes;
                old.storage == new.storage
                    && old.start_bytes == new.start_bytes
                    && (longer || old.length_bytes == new.length_bytes)
            })
        };
        self.stripe_unit_bytes == old.stripe_unit_bytes
            && (!is_striped || self.extents.len() == old.extents.len())
            && old.extents.iter().enumerate().all(stays)
    }
}

/// The blocks of a virtual LUN, as the configuration describes them.
enum ConfiguredBlocks {
    Disk(VirtualDiskConfig),
    Mirror(MirroredExtents),
}

/// The value of the key that lists the extents of a LUN, and its position.
pub struct VirtualLunKeys {
    blocks: ConfiguredBlocks,
    span: TextSpan,
}

/// An extent that a LUN uses.
#[derive(Debug)]
pub struct UsedExtent {
    extent: ExtentConfig,
    /// The LUN, for messages.
    lun: String,
}

/// The storages, as far as they are read, and the extents that are used.
#[derive(Debug)]
pub struct StorageTable {
    /// The storages, in the order of the configuration.
    pub list: Vec<Arc<StorageConfig>>,
    /// The geometries of the storages that were reached, by name.
    pub reached: BTreeMap<String, Geometry>,
    /// The extents that were moved, and what becomes of their former locations.
    pub moved: (MovedExtents, MovedExtentsUse),
    used: Vec<UsedExtent>,
}

impl StorageTable {
    /// Creates an empty table.
    pub fn new(uses: MovedExtentsUse) -> Self {
        let (list, reached, used) = Default::default();
        Self { list, reached, moved: (MovedExtents::default(), uses), used }
    }
}

/// Reads all storages.
pub fn storages(top: &mut TableReader<'_, '_>, resolver: &mut Resolver<'_>) {
    for mut table in top.tables("storage", &mut resolver.problems) {
        let Some(storage) = storage(&mut table, resolver) else { continue };
        if resolver.storages.list.iter().any(|other| other.name == storage.name) {
            let what = format!("the storage {} is configured twice", storage.name);
            let hint = "give each storage its own name".to_owned();
            resolver.problems.add(&table.span, what, Some(hint));
            continue;
        }
        resolver.storages.list.push(Arc::new(storage));
    }
    moved_extents(resolver);
}

/// Reads the extents that were moved. Blocks to which an extent is being moved are in use.
fn moved_extents(resolver: &mut Resolver<'_>) {
    let (Some(state), storages) = (&resolver.state, &mut resolver.storages) else { return };
    let uses = storages.moved.1;
    if storages.list.is_empty() || uses == MovedExtentsUse::Ignore {
        return;
    }
    match MovedExtents::load(state) {
        Ok(moved) => storages.moved.0 = moved,
        Err(why) => {
            let hint = "the file has the locations of extents that were moved: make it readable";
            resolver.problems.add(&(0..0), why, Some(hint.to_owned()));
            return;
        }
    }
    if uses == MovedExtentsUse::Replace {
        return;
    }
    for lun in storages.moved.0.luns() {
        let to = lun.pending.as_ref().and_then(|pending| pending.to.on(&storages.list));
        storages.used.extend(to.map(|extent| UsedExtent {
            extent,
            lun: format!("{}, which is being moved there", lun.name),
        }));
    }
}

fn storage(table: &mut TableReader<'_, '_>, resolver: &mut Resolver<'_>) -> Option<StorageConfig> {
    let name = table.required("name", &mut resolver.problems);
    let url = table.required("url", &mut resolver.problems);
    let chap = login_chap("chap", table, resolver);
    let portals = portals(table, resolver);
    let on_loss = table.string("on_storage_loss", &mut resolver.problems).and_then(|text| {
        resolver.ok_or_report("on_storage_loss", &text, StorageLossPolicy::parse(&text.value))
    });
    table.finish(&[], &mut resolver.problems);
    let name = name?;
    let named = is_pool_name(&name.value).then_some(());
    let expected = "use 1 to 64 letters, digits, `-`, `_` and `.`".to_owned();
    resolver.ok_or_report("invalid name of a storage", &name, named.ok_or(expected))?;
    let Located { value: url, span } = url?;
    let url = match DeviceUrl::parse(&url) {
        Ok(DeviceUrl::Iscsi(url)) => url,
        Ok(other) => {
            let hint = "write iscsi://HOST[:PORT]/TARGET/LUN".to_owned();
            resolver.problems.add(&span, format!("{other} cannot be a storage"), Some(hint));
            return None;
        }
        Err(failure) => {
            resolver.problems.add(&span, failure.what, failure.hint);
            return None;
        }
    };
    let keys = RemoteLunKeys::of_storage(chap);
    keys.check(table, &DeviceUrl::Iscsi(url.clone()), &span, resolver)?;
    Some(StorageConfig {
        name: name.value,
        url,
        chap: keys.chap(),
        portals,
        on_loss: on_loss.unwrap_or(StorageLossPolicy::Wait(STORAGE_WAIT_SECONDS)),
    })
}

fn portals(table: &mut TableReader<'_, '_>, resolver: &mut Resolver<'_>) -> Vec<(String, u16)> {
    let texts = table.strings("portals", &mut resolver.problems).unwrap_or_default();
    let portal = |text: &Located<String>| {
        let parsed = parse_portal(&text.value).map_err(|error| error.hint);
        resolver.ok_or_report("portals", text, parsed)
    };
    texts.iter().filter_map(portal).collect()
}

/// True if a LUN has extents instead of a device.
pub fn is_virtual(table: &TableReader<'_, '_>) -> bool {
    ["extents", "stripe", "mirror"].iter().any(|key| table.has(key))
}

/// Reads the extents of a LUN; `lun` names it in messages, and `name` in the state directory.
pub fn virtual_lun(
    table: &mut TableReader<'_, '_>,
    (lun, name): (&str, &str),
    resolver: &mut Resolver<'_>,
) -> Option<VirtualLunKeys> {
    table.string("device", &mut resolver.problems);
    let present = ["device", "extents", "stripe", "mirror"].map(|key| table.span_of(key));
    let mut present = present.into_iter().flatten();
    let first = present.next();
    if let Some(second) = present.next() {
        let what = "the LUN has several of `device`, `extents`, `stripe` and `mirror`";
        resolver.problems.add(&second, what, Some("keep one of them".to_owned()));
    }
    let all = [
        extents("extents", table, resolver).map(|(extents, spans)| {
            (ConfiguredBlocks::Disk(VirtualDiskConfig { stripe_unit_bytes: None, extents }), spans)
        }),
        stripe(table, resolver).map(|(disk, spans)| (ConfiguredBlocks::Disk(disk), spans)),
        mirror(table, resolver).map(|(mirror, spans)| (ConfiguredBlocks::Mirror(mirror), spans)),
    ];
    let (mut blocks, spans) = all.into_iter().flatten().next()?;
    let extents = match &mut blocks {
        ConfiguredBlocks::Disk(disk) => {
            replace_former(disk, (name, &spans), resolver)?;
            &disk.extents
        }
        ConfiguredBlocks::Mirror(mirror) => &mirror.extents,
    };
    let checked = extents.iter().zip(&spans).map(|(extent, span)| {
        check_extent(extent, span, lun, resolver) // all of them
    });
    let valid = checked.filter(Option::is_some).count() == spans.len();
    valid.then_some(VirtualLunKeys { blocks, span: first? })
}

/// Replaces extents that were moved by those in force, or refuses them.
fn replace_former(
    disk: &mut VirtualDiskConfig,
    (name, spans): (&str, &[TextSpan]),
    resolver: &mut Resolver<'_>,
) -> Option<()> {
    let (moved, uses) = &resolver.storages.moved;
    let Some(lun) = moved.lun(name) else { return Some(()) };
    let (at, in_force) = match lun.compare(disk, &resolver.storages.list) {
        WrittenExtents::Valid => return Some(()),
        WrittenExtents::Former(at, in_force) => (at, in_force),
    };
    if let (MovedExtentsUse::Replace, Some(in_force)) = (uses, &in_force) {
        *disk = in_force.clone();
        return Some(());
    }
    let what = format!("the extent {} was moved while the LUN was in use", disk.extents[at]);
    let hint = match in_force {
        Some(in_force) => format!("write {}", in_force.line()),
        None => format!("the extents of the LUN are {}", lun.locations()),
    };
    resolver.problems.add(&spans[at], what, Some(hint));
    None
}

fn stripe(
    table: &mut TableReader<'_, '_>,
    resolver: &mut Resolver<'_>,
) -> Option<(VirtualDiskConfig, Vec<TextSpan>)> {
    let mut table = table.table("stripe", &mut resolver.problems)?;
    let range = BLOCK_BYTES_MIN..=STRIPE_UNIT_BYTES_MAX.into();
    let unit = table.size("unit", range, &mut resolver.problems);
    let extents = extents_over(&mut table, "stripe", resolver);
    table.finish(&[], &mut resolver.problems);
    let unit_bytes = match &unit {
        Some(unit) => unit.value,
        None if table.has("unit") => return None,
        None => STRIPE_UNIT_BYTES.into(),
    };
    let (extents, spans) = extents?;
    let (problems, length) = (&mut resolver.problems, extents[0].length_bytes);
    if !unit_bytes.is_multiple_of(BLOCK_BYTES_MIN) {
        let what = format!("`unit` is {unit_bytes} bytes");
        let hint = format!("write a multiple of {BLOCK_BYTES_MIN}");
        problems.add(&table.span_of("unit")?, what, Some(hint));
        return None;
    }
    let hint = format!(
        "give all of them one length, a multiple of the stripe unit of {}",
        bytes_text(unit_bytes)
    );
    let same = extents.iter().all(|extent| extent.length_bytes == length);
    if !same || !length.is_multiple_of(unit_bytes) {
        let what = match same {
            true => "the length of the extents is no whole number of stripe units",
            false => "the extents of the stripe have different lengths",
        };
        problems.add(&table.span_of("over")?, what, Some(hint));
        return None;
    }
    let stripe_unit_bytes = NonZeroU64::new(unit_bytes);
    Some((VirtualDiskConfig { stripe_unit_bytes, extents }, spans))
}

/// Extents and their positions in the text.
pub(super) type LocatedExtents = (Vec<ExtentConfig>, Vec<TextSpan>);

/// Reads the extents of a stripe or mirror that is written as a table.
pub(super) fn extents_over(
    table: &mut TableReader<'_, '_>,
    kind: &str,
    resolver: &mut Resolver<'_>,
) -> Option<LocatedExtents> {
    if !table.has("over") {
        let hint = "add over = [{ storage = \"…\", start = 0, length = \"…\" }, …]".to_owned();
        resolver.problems.add(&table.span, format!("the {kind} has no `over`"), Some(hint));
    }
    extents("over", table, resolver)
}

/// Reads a list of extents, which is not empty; `None` if there is a problem, or no such key.
pub(super) fn extents(
    key: &'static str,
    table: &mut TableReader<'_, '_>,
    resolver: &mut Resolver<'_>,
) -> Option<LocatedExtents> {
    let items = table.items(key);
    let span = table.span_of(key)?;
    table.refuse_empty(key, &mut resolver.problems);
    if items.len() > LUN_EXTENTS_MAX {
        let what = format!("`{key}` has {} extents", items.len());
        let hint = format!("a LUN can have {LUN_EXTENTS_MAX}");
        resolver.problems.add(&span, what, Some(hint));
        return None;
    }
    let (mut extents, mut spans) = (Vec::new(), Vec::new());
    let count = items.len();
    for item in items {
        let DeValue::Table(inner) = item.get_ref() else {
            let wanted = "{ storage = \"…\", start = 0, length = \"10GiB\" }";
            mismatch(key, wanted, item.get_ref(), &item.span(), &mut resolver.problems);
            continue;
        };
        let mut reader = TableReader::new(inner, item.span(), "an extent");
        extents.extend(extent(&mut reader, resolver));
        spans.push(item.span());
    }
    let sizes = extents.iter().try_fold(0u64, |sum, one| sum.checked_add(one.length_bytes));
    if sizes.is_none_or(|bytes| i64::try_from(bytes).is_err()) {
        let hint = "use fewer or shorter extents".to_owned();
        resolver.problems.add(&span, "the extents together are too long for a disk", Some(hint));
        return None;
    }
    (count > 0 && extents.len() == count).then_some((extents, spans))
}

fn extent(table: &mut TableReader<'_, '_>, resolver: &mut Resolver<'_>) -> Option<ExtentConfig> {
    let name = table.required("storage", &mut resolver.problems);
    let start = table.size("start", 0..=i64::MAX as u64, &mut resolver.problems);
    let length = table.size("length", 1..=i64::MAX as u64, &mut resolver.problems);
    if !table.has("length") {
        let hint = "add length = \"10GiB\"".to_owned();
        resolver.problems.add(&table.span, "an extent has no `length`", Some(hint));
    }
    table.finish(&[], &mut resolver.problems);
    for (key, value) in [("start", &start), ("length", &length)] {
        if let Some(value) = value.as_ref().filter(|one| !one.value.is_multiple_of(BLOCK_BYTES_MIN))
        {
            let hint = format!("write a multiple of {BLOCK_BYTES_MIN}, the smallest block");
            let what = format!("`{key}` is {} bytes", value.value);
            resolver.problems.add(&value.span, what, Some(hint));
            return None;
        }
    }
    if start.is_none() && table.has("start") {
        return None;
    }
    let (name, length) = (name?, length?.value);
    let storages = &resolver.storages.list;
    let found = storages.iter().find(|storage| storage.name == name.value).cloned();
    let storage = found.ok_or_else(|| match storages.is_empty() {
        true => format!("add a [[storage]] with name = {:?} and its url", name.value),
        false => {
            let known: Vec<&str> = storages.iter().map(|storage| &*storage.name).collect();
            format!("the configured storages are {}", known.join(", "))
        }
    });
    let storage = resolver.ok_or_report("there is no storage", &name, storage)?;
    let start_bytes = start.map_or(0, |start| start.value);
    Some(ExtentConfig { storage, start_bytes, length_bytes: length })
}

/// Checks an extent against the others, and against its storage if that was reached.
fn check_extent(
    extent: &ExtentConfig,
    at: &TextSpan,
    lun: &str,
    resolver: &mut Resolver<'_>,
) -> Option<()> {
    let (storages, problems) = (&mut resolver.storages, &mut resolver.problems);
    let name = &extent.storage.name;
    let reached = storages.reached.get(name);
    let checked =
        reached.map(|storage| blocks_of(*storage, extent.start_bytes, extent.length_bytes));
    if let Some(Err(error)) = checked {
        let hint = reached.map(|storage| {
            format!(
                "the storage {name} has {} bytes in blocks of {}",
                storage.size_bytes(),
                storage.block_bytes
            )
        });
        problems.add(at, format!("the storage {name}: {error}"), hint);
    }
    if let Some(other) = storages.used.iter().find(|other| other.extent.overlaps(extent)) {
        let (start, end) = (other.extent.start_bytes, other.extent.end_bytes());
        let whose = match other.lun == lun {
            true => "another extent of this LUN".to_owned(),
            false => format!("an extent of {}", other.lun),
        };
        let what = format!("the extent overlaps {whose} on the storage {name}");
        let hint = format!(
            "that one has the bytes {} to {}: use others",
            bytes_text(start),
            bytes_text(end)
        );
        problems.add(at, what, Some(hint));
        return None;
    }
    storages.used.push(UsedExtent { extent: extent.clone(), lun: lun.to_owned() });
    Some(())
}

/// Keys that a virtual LUN must not have, with the reason.
const REFUSED_KEYS: [(&str, &str); 5] = [
    ("io", "the targets of the storages determine how they store data"),
    ("block_size", "the storages determine it"),
    ("physical_block_size", "the storages determine it"),
    ("thin_threshold", "only a thin disk in a sparse file can have a threshold"),
    ("size", "the extents determine it"),
];

impl VirtualLunKeys {
    /// Position of the extents.
    pub fn span(&self) -> &TextSpan {
        &self.span
    }

    /// The device of the LUN, and the options for opening it. `name` is that of the LUN.
    pub fn device(
        self,
        table: &TableReader<'_, '_>,
        name: String,
        options: DeviceOptions,
        problems: &mut Problems<'_>,
    ) -> (DeviceUrl, DeviceOptions) {
        for (key, why) in REFUSED_KEYS {
            if let Some(span) = table.span_of(key) {
                let what = format!("`{key}` is not allowed for a virtual LUN");
                problems.add(&span, what, Some(format!("omit `{key}`: {why}")));
            }
        }
        let usual = DeviceOptions::default();
        let options = DeviceOptions {
            block_bytes: usual.block_bytes,
            physical_block_bytes: usual.physical_block_bytes,
            direct: usual.direct,
            size_bytes: None,
            ..options
        };
        let options = match self.blocks {
            ConfiguredBlocks::Disk(disk) => DeviceOptions {
                size_bytes: Some(disk.size_bytes()),
                virtual_disk: Some(Arc::new(disk)),
                ..options
            },
            ConfiguredBlocks::Mirror(mirror) => {
                let pool = mirror.pool(name.clone(), options.read_only);
                DeviceOptions { pool: Some(Arc::new(pool)), ..options }
            }
        };
        (DeviceUrl::Virtual(name), options)
    }
}

/// The name of a virtual LUN: its UUID, or its target and number.
pub fn lun_name(target: &str, id: u16, uuid: Option<Uuid>) -> String {
    uuid.map_or_else(|| format!("{target}/{id}"), |uuid| uuid.to_string())
}

/// The keys `extents`, `stripe` and `mirror` of a LUN.
pub fn settings_of(unit: &UnitConfig) -> [Setting; 3] {
    let (mut linear, mut striped, mut mirror) = (None, None, None);
    if let Some(disk) = &unit.options.virtual_disk {
        match disk.setting() {
            ("extents", value) => linear = Some(value),
            (_, value) => striped = Some(value),
        }
    } else if let (DeviceUrl::Virtual(_), Some(pool)) = (&unit.device, &unit.options.pool) {
        mirror = Some(mirror_value(pool));
    }
    [
        Setting::optional("extents", linear),
        Setting::optional("stripe", striped),
        Setting::optional("mirror", mirror),
    ]
}

/// The keys of `[[storage]]`, without its credentials.
pub fn storage_values(storage: &StorageConfig) -> [Setting; 4] {
    let portal = |(host, port): &(String, u16)| {
        Value::Text(match host.contains(':') {
            true => format!("[{host}]:{port}"),
            false => format!("{host}:{port}"),
        })
    };
    [
        Setting::new("name", Some(Value::text(&storage.name)), false),
        Setting::new("url", Some(Value::Text(storage.url.to_string())), false),
        Setting::list("portals", storage.portals.iter().map(portal).collect()),
        Setting::with_default(
            "on_storage_loss",
            storage.on_loss,
            StorageLossPolicy::Wait(STORAGE_WAIT_SECONDS),
            |policy| Value::Text(policy.to_string()),
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policies() {
        for (text, seconds) in [
            ("fail", Some(0)),
            ("wait 60s", Some(60)),
            (" wait  5 s ", Some(5)),
            ("wait 3600s", Some(3600)),
        ] {
            let policy = StorageLossPolicy::parse(text).ok();
            assert_eq!(policy.map(StorageLossPolicy::wait_seconds), seconds, "{text}");
            let again = policy.map(|policy| StorageLossPolicy::parse(&policy.to_string()));
            assert_eq!(again, policy.map(Ok), "{text}");
        }
        for text in
            ["", "wait", "wait 0s", "wait 3601s", "wait 5", "wait 5m", "fail 5s", "wait -1s"]
        {
            assert!(StorageLossPolicy::parse(text).is_err(), "{text}");
        }
    }

    fn extent(name: &str, start_bytes: u64, length_bytes: u64) -> ExtentConfig {
        let storage = StorageConfig {
            name: name.to_owned(),
            url: format!("iscsi://192.0.2.1/iqn.2026-11.org.example:{name}/0").parse().unwrap(),
            chap: None,
            portals: Vec::new(),
            on_loss: StorageLossPolicy::Fail,
        };
        ExtentConfig { storage: Arc::new(storage), start_bytes, length_bytes }
    }

    /// Goal: a disk grows in use only if each block stays where it is.
    #[test]
    fn growths() {
        let disk = |unit: u64, extents: &[(&str, u64, u64)]| VirtualDiskConfig {
            stripe_unit_bytes: NonZeroU64::new(unit),
            extents: extents.iter().map(|(name, at, length)| extent(name, *at, *length)).collect(),
        };
        let (a, b) = (("a", 0, 4096), ("b", 8192, 4096));
        let linear = disk(0, &[a, b]);
        for (unit, extents, extends) in [
            (0, vec![a, b], true),
            (0, vec![a, ("b", 8192, 8192)], true),
            (0, vec![a, b, ("a", 4096, 512)], true),
            (0, vec![a, ("b", 8192, 8192), ("c", 0, 512)], true),
            (0, vec![("a", 0, 8192), b], false),
            (0, vec![b, a], false),
            (0, vec![a], false),
            (0, vec![a, ("b", 8192, 512)], false),
            (0, vec![a, ("b", 4096, 4096)], false),
            (0, vec![a, ("c", 8192, 4096)], false),
            (512, vec![a, b], false),
        ] {
            assert_eq!(disk(unit, &extents).extends(&linear), extends, "{unit} {extents:?}");
        }
        let striped = disk(512, &[a, b]);
        for (unit, extents, extends) in [
            (512, vec![("a", 0, 8192), ("b", 8192, 8192)], true),
            (512, vec![a, b, ("c", 0, 4096)], false),
            (1024, vec![a, b], false),
        ] {
            assert_eq!(disk(unit, &extents).extends(&striped), extends, "{unit} {extents:?}");
        }
    }
}
