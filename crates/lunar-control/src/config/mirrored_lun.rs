//! The key `mirror` of a LUN: its extents alone, or a table of them with spares and options.

use super::file::{Problems, TableReader, TextSpan};
use super::model::{PoolConfig, PoolMemberConfig};
use super::pools::MirrorOptionKeys;
use super::resolve::Resolver;
use super::setting::Value;
use super::virtual_lun::{ExtentConfig, LocatedExtents, extents, extents_over};
use crate::device_url::{DeviceOptions, DeviceUrl};

/// The value of the key `mirror`.
pub struct MirroredExtents {
    /// The copies, then the spares.
    pub extents: Vec<ExtentConfig>,
    copies: usize,
    options: MirrorOptionKeys,
}

/// Reads the key `mirror`; the positions are those of the extents.
pub fn mirror(
    table: &mut TableReader<'_, '_>,
    resolver: &mut Resolver<'_>,
) -> Option<(MirroredExtents, Vec<TextSpan>)> {
    let span = table.span_of("mirror")?;
    let (copies, spares, options) = match table.is_table("mirror") {
        false => (extents("mirror", table, resolver)?, LocatedExtents::default(), None),
        true => mirror_table(table, resolver)?,
    };
    let count = copies.0.len();
    if count < 2 {
        let hint = "add an extent of another storage".to_owned();
        resolver.problems.add(&span, "a mirror needs at least two extents", Some(hint));
        return None;
    }
    let all = |a: LocatedExtents, b: LocatedExtents| ([a.0, b.0].concat(), [a.1, b.1].concat());
    let (extents, spans) = all(copies, spares);
    refuse_shared_storage(&extents, &span, &mut resolver.problems)?;
    let options = options.unwrap_or_default();
    Some((MirroredExtents { extents, copies: count, options }, spans))
}

/// Copies, spares, and the other keys.
type MirrorParts = (LocatedExtents, LocatedExtents, Option<MirrorOptionKeys>);

fn mirror_table(
    table: &mut TableReader<'_, '_>,
    resolver: &mut Resolver<'_>,
) -> Option<MirrorParts> {
    let mut table = table.table("mirror", &mut resolver.problems)?;
    let copies = extents_over(&mut table, "mirror", resolver);
    let spares = extents("spares", &mut table, resolver);
    let options = MirrorOptionKeys::read(&mut table, resolver);
    table.finish(&[], &mut resolver.problems);
    let spares = match table.has("spares") {
        true => spares?,
        false => LocatedExtents::default(),
    };
    Some((copies?, spares, Some(options)))
}

/// Refuses two copies on one storage; a spare there would become a second copy.
fn refuse_shared_storage(
    extents: &[ExtentConfig],
    span: &TextSpan,
    problems: &mut Problems<'_>,
) -> Option<()> {
    let names: Vec<&str> = extents.iter().map(|extent| &*extent.storage.name).collect();
    let twice = names.iter().enumerate().find(|(at, name)| names[..*at].contains(name));
    let Some((_, name)) = twice else { return Some(()) };
    let what = format!("two copies are on the storage {name}: both are lost with it");
    problems.add(span, what, Some("put each copy on a storage of its own".to_owned()));
    None
}

impl MirroredExtents {
    /// The pool of the copies, with the name of the LUN.
    pub fn pool(self, name: String, read_only: bool) -> PoolConfig {
        let member = |extent| PoolMemberConfig {
            device: DeviceUrl::Extent(extent),
            options: DeviceOptions { read_only, ..DeviceOptions::default() },
        };
        let mut members: Vec<_> = self.extents.into_iter().map(member).collect();
        let spares = members.split_off(self.copies);
        let MirrorOptionKeys { degraded, member_wait, resync_bytes_per_second } = self.options;
        PoolConfig {
            name,
            members,
            spares,
            degraded,
            member_wait,
            resync_bytes_per_second,
            lease: None,
            // Extents have no owner: their storage has one session for all.
            state: None,
        }
    }
}

/// The value of the key `mirror`: the extents alone unless another key of the table is set.
pub fn mirror_value(pool: &PoolConfig) -> Value {
    let list = |members: &[PoolMemberConfig]| {
        let extents = members.iter().filter_map(|member| match &member.device {
            DeviceUrl::Extent(extent) => Some(extent.value()),
            _ => None,
        });
        Value::List(extents.collect())
    };
    let copies = list(&pool.members);
    let options = [
        ("spares", (!pool.spares.is_empty()).then(|| list(&pool.spares))),
        ("degraded", pool.degraded.then_some(Value::Flag(true))),
        ("member_wait_seconds", pool.member_wait.map(|wait| Value::Number(wait.as_secs()))),
        ("resync_rate", pool.resync_bytes_per_second.map(|rate| Value::Rate(rate.get()))),
    ];
    let mut options = options.into_iter().filter_map(|(key, value)| Some((key, value?))).peekable();
    match options.peek() {
        None => copies,
        Some(_) => Value::Table([("over", copies)].into_iter().chain(options).collect()),
    }
}
