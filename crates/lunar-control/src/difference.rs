//! The difference between two configurations, and the effect of each change.

mod changed_object;

use crate::config::model::{Configuration, LunConfig, PoolConfig, TargetConfig, UnitConfig};
use crate::config::setting::{Setting, Value};
use crate::config::settings;
use crate::config::virtual_lun::StorageConfig;
use crate::device_url::DeviceUrl;
use changed_object::ChangedObject;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::sync::Arc;
use utoipa::ToSchema;

/// All changes, in the order of the configuration.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize, ToSchema)]
pub struct Difference {
    /// The changes.
    pub changes: Vec<ConfigChange>,
}

/// A single change.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize, ToSchema)]
pub struct ConfigChange {
    /// Kind of the change.
    pub change: ChangeKind,
    /// The storage; none: no storage.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub storage: Option<String>,
    /// The pool; none: no pool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pool: Option<String>,
    /// The target; none: the server, a storage or a pool.
    pub target: Option<String>,
    /// The LUN; none: the target itself.
    pub lun: Option<u16>,
    /// The configuration key; none: the whole target or LUN is added or removed.
    pub key: Option<String>,
    /// The old value. Sizes are bytes, rates bits per second; secrets are named by their files.
    #[schema(value_type = serde_json::Value)]
    pub from: Option<serde_json::Value>,
    /// The new value.
    #[schema(value_type = serde_json::Value)]
    pub to: Option<serde_json::Value>,
    /// The effect.
    pub effect: ChangeEffect,
    /// The change as a line for people.
    pub line: String,
}

/// Kind of a change.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ChangeKind {
    /// The object is new.
    Add,
    /// The object is removed.
    Remove,
    /// The value is different.
    Change,
}

/// When a change takes effect, and whom it concerns.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ChangeEffect {
    /// Effective at once; sessions that see it are notified.
    AtOnce,
    /// Effective from the next login on.
    NextLogin,
    /// Sessions of the target, or those that lose access, end.
    SessionsEnd,
    /// The unit gets larger.
    Grows,
    /// The unit gets smaller: data beyond its new end is lost.
    Shrinks,
    /// The unit is closed and opened again; sessions that see it lose it for that moment, and
    /// reservations without APTPL are released. Data in memory is lost.
    Reopens,
    /// The LUN shows another disk: initiators that have it open continue with other data. Data in
    /// memory is lost.
    OtherDisk,
    /// Effective after the daemon's next start.
    Restart,
}

impl ChangeEffect {
    /// The effect as a note for people; empty if there is nothing to say.
    fn note(self) -> &'static str {
        match self {
            Self::AtOnce => "",
            Self::NextLogin => "effective from the next login",
            Self::SessionsEnd => "affected sessions end",
            Self::Grows => "initiators are notified",
            Self::Shrinks => "the data beyond the new end is lost",
            Self::Reopens => {
                "the unit is closed and reopened: sessions lose access to it for a moment, and \
                 reservations without APTPL are released"
            }
            Self::OtherDisk => {
                "the LUN becomes a different disk: initiators that use it will see other data"
            }
            Self::Restart => "requires a restart",
        }
    }
}

/// The known facts about the unit that a LUN will show.
#[derive(Clone, Copy, Debug, Default)]
pub struct ShownUnit {
    /// Whether the same LUN shows the unit already, under any name of its file.
    pub same: bool,
    /// The current size, if some LUN shows the unit already.
    pub size_bytes: Option<u64>,
    /// Whether the unit is closed and opened again.
    pub reopens: bool,
}

/// Looks up the facts for an old LUN and the new LUN that replaces it.
type ShownUnits<'k> = dyn Fn(Option<&LunConfig>, &LunConfig) -> ShownUnit + 'k;

/// Context for describing differences.
struct DescriptionContext<'k> {
    known: &'k ShownUnits<'k>,
    /// The new configuration.
    new: &'k Configuration,
}

impl DescriptionContext<'_> {
    /// Whether the contents of the unit are lost when its LUN no longer shows it. The contents of
    /// memory are, unless another LUN shows the memory with that UUID.
    fn loses_contents(&self, old: &UnitConfig) -> bool {
        let memory = |unit: &UnitConfig| matches!(unit.device, DeviceUrl::Memory { .. });
        let mut luns = self.new.targets.iter().flat_map(|target| &target.luns);
        let mut stays = || luns.any(|lun| memory(&lun.unit) && lun.unit.uuid == old.uuid);
        memory(old) && (old.uuid.is_none() || !stays())
    }
}

impl ConfigChange {
    /// The change of a server key whose files have new contents.
    pub(crate) fn of_file(section: &str, setting: &Setting) -> Self {
        let (key, value) = (format!("{section}.{}", setting.key), setting.value.as_ref());
        let output = value.map_or_else(String::new, Value::toml);
        Self {
            change: ChangeKind::Change,
            storage: None,
            pool: None,
            target: None,
            lun: None,
            from: value.map(Value::json),
            to: value.map(Value::json),
            effect: ChangeEffect::AtOnce,
            line: format!("~ {key}: reloaded from {output}"),
            key: Some(key),
        }
    }

    /// The line for the list of drift: leaves out effects that have happened already, and names the
    /// command that undoes the change, if neither an apply nor a restart does.
    pub(crate) fn drift_line(&self) -> String {
        let lasts = match self.effect {
            // Without a size in the configuration, any size is as configured.
            ChangeEffect::Grows if self.from.is_some() => "until `lunar apply --shrink`",
            ChangeEffect::Restart => "until a restart",
            ChangeEffect::Reopens => return self.line_without_note().to_owned(),
            _ => return self.line.clone(),
        };
        format!("{} ({lasts})", self.line_without_note())
    }

    fn line_without_note(&self) -> &str {
        let note = format!(" ({})", self.effect.note());
        self.line.strip_suffix(&note).unwrap_or(&self.line)
    }
}

impl Difference {
    /// Whether there are no changes.
    pub fn is_empty(&self) -> bool {
        self.changes.is_empty()
    }

    /// The changes from `old` to `new`.
    pub fn between(old: &Configuration, new: &Configuration, known: &ShownUnits<'_>) -> Self {
        let mut difference = Self::default();
        let context = &DescriptionContext { known, new };
        difference.server(old, new);
        difference.storages(old, new);
        difference.pools(old, new);
        let find = |list: &[TargetConfig], name: &str| {
            list.iter().position(|target| target.name.eq_ignore_ascii_case(name))
        };
        for target in &new.targets {
            match find(&old.targets, &target.name) {
                Some(index) => difference.target(&old.targets[index], target, context),
                None => difference.whole_target(ChangeKind::Add, target, context),
            }
        }
        for target in &old.targets {
            if find(&new.targets, &target.name).is_none() {
                difference.whole_target(ChangeKind::Remove, target, context);
            }
        }
        difference
    }

    fn server(&mut self, old: &Configuration, new: &Configuration) {
        for ((section, old), (_, new)) in
            settings::of_server(old).into_iter().zip(settings::of_server(new))
        {
            for (old, new) in old.iter().zip(&new) {
                let key = match section {
                    "" => new.key.to_owned(),
                    _ => format!("{section}.{}", new.key),
                };
                let effect = if section == "discovery" {
                    ChangeEffect::NextLogin
                } else {
                    ChangeEffect::Restart
                };
                self.setting(&ChangedObject::default(), &key, old, new, effect);
            }
        }
    }

    fn storages(&mut self, old: &Configuration, new: &Configuration) {
        let named = |all: &[Arc<StorageConfig>], name: &str| {
            all.iter().find(|storage| storage.name == name).cloned()
        };
        for storage in &new.storages {
            let (object, all) = (ChangedObject::of_storage(storage), settings::of_storage(storage));
            match named(&old.storages, &storage.name) {
                None => self.whole(ChangeKind::Add, &object, &all, "name", ChangeEffect::AtOnce),
                Some(was) => {
                    for (old, new) in settings::of_storage(&was).iter().zip(&all) {
                        self.setting(&object, new.key, old, new, ChangeEffect::Reopens);
                    }
                }
            }
        }
        for gone in old.storages.iter().filter(|one| named(&new.storages, &one.name).is_none()) {
            let (object, all) = (ChangedObject::of_storage(gone), settings::of_storage(gone));
            self.whole(ChangeKind::Remove, &object, &all, "name", ChangeEffect::AtOnce);
        }
    }

    fn pools(&mut self, old: &Configuration, new: &Configuration) {
        let named = |all: &[Arc<PoolConfig>], name: &str| {
            all.iter().find(|pool| pool.name == name).cloned()
        };
        for pool in &new.pools {
            let object = ChangedObject::of_pool(pool);
            let Some(was) = named(&old.pools, &pool.name) else {
                let all = settings::of_pool(pool);
                self.whole(ChangeKind::Add, &object, &all, "name", ChangeEffect::AtOnce);
                continue;
            };
            let effect = match new.serves_pool(pool) {
                true => ChangeEffect::Reopens,
                false => ChangeEffect::AtOnce,
            };
            for (old, new) in settings::of_pool(&was).iter().zip(&settings::of_pool(pool)) {
                self.setting(&object, new.key, old, new, effect);
            }
        }
        for pool in old.pools.iter().filter(|pool| named(&new.pools, &pool.name).is_none()) {
            let (object, all) = (ChangedObject::of_pool(pool), settings::of_pool(pool));
            self.whole(ChangeKind::Remove, &object, &all, "name", ChangeEffect::AtOnce);
        }
    }

    fn target(&mut self, old: &TargetConfig, new: &TargetConfig, context: &DescriptionContext<'_>) {
        let object = ChangedObject::of(new);
        for (old, new) in settings::of_target(old).iter().zip(&settings::of_target(new)) {
            let effect = match new.key {
                "initiators" | "networks" | "portal_group" => ChangeEffect::SessionsEnd,
                "redirect" if new.value.is_some() => ChangeEffect::SessionsEnd,
                "administer" | "limit" => ChangeEffect::AtOnce,
                _ => ChangeEffect::NextLogin,
            };
            self.setting(&object, new.key, old, new, effect);
        }
        for (old_index, new_index) in pair_luns(&old.luns, &new.luns) {
            match (old_index.map(|index| &old.luns[index]), new_index.map(|index| &new.luns[index]))
            {
                (Some(old_lun), Some(new_lun)) => {
                    let shown = (context.known)(Some(old_lun), new_lun);
                    let loses_contents = match shown.same {
                        true => matches!(old_lun.unit.device, DeviceUrl::Memory { .. }),
                        false => context.loses_contents(&old_lun.unit),
                    };
                    let object = ChangedObject { loses_contents, ..object.lun(new_lun, &new.luns) };
                    self.lun(&object, old_lun, new_lun, shown);
                }
                (None, Some(new_lun)) => {
                    let object = object.lun(new_lun, &new.luns);
                    self.whole_lun(ChangeKind::Add, &object, new_lun);
                    self.describe_moved_disk(&object, new_lun, (context.known)(None, new_lun));
                }
                (Some(old_lun), None) => {
                    let loses_contents = context.loses_contents(&old_lun.unit);
                    let object = ChangedObject { loses_contents, ..object.lun(old_lun, &old.luns) };
                    self.whole_lun(ChangeKind::Remove, &object, old_lun);
                }
                (None, None) => {}
            }
        }
    }

    fn lun(&mut self, object: &ChangedObject, old: &LunConfig, new: &LunConfig, shown: ShownUnit) {
        let (old_size, new_size) = (size_of(&old.unit), size_of(&new.unit));
        let resize = if new_size < old_size { ChangeEffect::Shrinks } else { ChangeEffect::Grows };
        let memory = matches!(new.unit.device, DeviceUrl::Memory { .. });
        let disks =
            old.unit.options.virtual_disk.as_ref().zip(new.unit.options.virtual_disk.as_ref());
        let grows = disks.is_some_and(|(old, new)| new.extends(old));
        let shrinks = disks.is_some_and(|(old, new)| old.extends(new));
        let (same, open) = (shown.same, shown.size_bytes.is_some());
        let same_device = old.unit.device == new.unit.device;
        if !same && !open && same_device && !memory {
            self.reopened(object, new, "is now a different file");
        }
        for (old, new) in settings::of_lun(old).iter().zip(&settings::of_lun(new)) {
            let effect = match new.key {
                "initiators" | "networks" | "administer" | "limit" | "initiator_limit" => {
                    ChangeEffect::AtOnce
                }
                // Without a configured size the unit keeps its size.
                "size" if new.value.is_none() => continue,
                "size" if same => resize,
                "size" if open => continue,
                "extents" | "stripe" if same && grows => ChangeEffect::AtOnce,
                "extents" | "stripe" if same && shrinks => ChangeEffect::Reopens,
                "extents" | "stripe" => ChangeEffect::OtherDisk,
                "device" if same && memory => resize,
                "device" if same => ChangeEffect::AtOnce,
                // Only the UUID distinguishes memory of one size from other memory.
                "device" => ChangeEffect::OtherDisk,
                "uuid" if !same && memory && same_device => ChangeEffect::OtherDisk,
                _ if same => ChangeEffect::Reopens,
                // The LUN shows another disk.
                _ => ChangeEffect::AtOnce,
            };
            self.setting(object, new.key, old, new, effect);
        }
        if !same {
            self.describe_moved_disk(object, new, shown);
        }
    }

    /// Describes a disk that another LUN has shown so far.
    fn describe_moved_disk(&mut self, object: &ChangedObject, lun: &LunConfig, shown: ShownUnit) {
        let (Some(old_size), device) = (shown.size_bytes, &lun.unit.device) else { return };
        if shown.reopens {
            self.reopened(object, lun, "has changed settings");
        }
        let Some(new_size) = size_of(&lun.unit).filter(|size| *size != old_size) else { return };
        let effect = if new_size < old_size { ChangeEffect::Shrinks } else { ChangeEffect::Grows };
        let text = |bytes| Value::Size(bytes).toml();
        let note = effect.note();
        self.changes.push(ConfigChange {
            change: ChangeKind::Change,
            storage: object.storage.clone(),
            pool: object.pool.clone(),
            target: object.target.clone(),
            lun: object.lun,
            key: Some("size".to_owned()),
            from: Some(old_size.into()),
            to: Some(new_size.into()),
            effect,
            line: format!(
                "~ {object}size of {device}: {} -> {} ({note})",
                text(old_size),
                text(new_size)
            ),
        });
    }

    fn reopened(&mut self, object: &ChangedObject, lun: &LunConfig, why: &str) {
        let device = lun.unit.device.to_string();
        let note = ChangeEffect::Reopens.note();
        self.changes.push(ConfigChange {
            change: ChangeKind::Change,
            storage: object.storage.clone(),
            pool: object.pool.clone(),
            target: object.target.clone(),
            lun: object.lun,
            key: Some("device".to_owned()),
            from: Some(device.as_str().into()),
            to: Some(device.as_str().into()),
            effect: ChangeEffect::Reopens,
            line: format!("~ {object}device: {device:?} {why} ({note})"),
        });
    }

    fn setting(
        &mut self,
        object: &ChangedObject,
        key: &str,
        old: &Setting,
        new: &Setting,
        effect: ChangeEffect,
    ) {
        if old.same(new) {
            return;
        }
        let text = |value: &Option<Value>| value.as_ref().map_or("none".to_owned(), Value::toml);
        let mut line = match old.differs_in_secrets_only(new) {
            true => format!("~ {object}{key}: a secret in {}", text(&new.value)),
            false => format!("~ {object}{key}: {} -> {}", text(&old.value), text(&new.value)),
        };
        let loses_contents = matches!(effect, ChangeEffect::Reopens | ChangeEffect::OtherDisk)
            && object.loses_contents;
        line.push_str(&in_brackets(effect.note(), loses_contents));
        self.changes.push(ConfigChange {
            change: ChangeKind::Change,
            storage: object.storage.clone(),
            pool: object.pool.clone(),
            target: object.target.clone(),
            lun: object.lun,
            key: Some(key.to_owned()),
            from: old.value.as_ref().map(Value::json),
            to: new.value.as_ref().map(Value::json),
            effect,
            line,
        });
    }

    fn whole_target(
        &mut self,
        change: ChangeKind,
        target: &TargetConfig,
        context: &DescriptionContext<'_>,
    ) {
        let object = ChangedObject::of(target);
        self.whole(
            change,
            &object,
            &settings::of_target(target),
            "name",
            ChangeEffect::SessionsEnd,
        );
        for lun in &target.luns {
            let loses_contents = change == ChangeKind::Remove && context.loses_contents(&lun.unit);
            let object = ChangedObject { loses_contents, ..object.lun(lun, &target.luns) };
            self.whole_lun(change, &object, lun);
            if change == ChangeKind::Add {
                self.describe_moved_disk(&object, lun, (context.known)(None, lun));
            }
        }
    }

    fn whole_lun(&mut self, change: ChangeKind, object: &ChangedObject, lun: &LunConfig) {
        self.whole(change, object, &settings::of_lun(lun), "id", ChangeEffect::AtOnce);
    }

    /// Describes a whole target or LUN. `unsaid` is the key that the object contains already.
    fn whole(
        &mut self,
        change: ChangeKind,
        object: &ChangedObject,
        all: &[Setting],
        unsaid: &str,
        removed: ChangeEffect,
    ) {
        let shown_settings =
            || all.iter().filter(|setting| !setting.default && setting.key != unsaid);
        let value = |(key, value): (&str, &Value)| (key.to_owned(), value.json());
        let values = all.iter().filter_map(|s| s.value.as_ref().map(|v| value((s.key, v))));
        let document = serde_json::Value::Object(values.collect());
        let keys = shown_settings()
            .filter_map(|s| Some(format!("{} = {}", s.key, s.value.as_ref()?.toml())));
        let keys = keys.collect::<Vec<_>>().join(", ");
        let colon = if keys.is_empty() { "" } else { ": " };
        let (mark, from, to, effect) = match change {
            ChangeKind::Remove => ('-', Some(document), None, removed),
            _ => ('+', None, Some(document), ChangeEffect::AtOnce),
        };
        let note = in_brackets(effect.note(), object.loses_contents);
        let line = format!("{mark} {}{colon}{keys}{note}", object.to_string().trim_end());
        self.changes.push(ConfigChange {
            change,
            storage: object.storage.clone(),
            pool: object.pool.clone(),
            target: object.target.clone(),
            lun: object.lun,
            key: None,
            from,
            to,
            effect,
            line,
        });
    }
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.changes.iter().try_for_each(|change| writeln!(f, "{}", change.line))
    }
}

/// The note on a change, at the end of its line.
fn in_brackets(note: &str, loses_contents: bool) -> String {
    let lost = loses_contents.then_some("the data in memory is lost");
    match (note, lost) {
        ("", None) => String::new(),
        ("", Some(only)) | (only, None) => format!(" ({only})"),
        (note, Some(lost)) => format!(" ({note}, {lost})"),
    }
}

/// The size that the configuration sets.
fn size_of(unit: &UnitConfig) -> Option<u64> {
    match unit.device {
        DeviceUrl::Memory { size_bytes } => Some(size_bytes),
        _ => unit.options.size_bytes,
    }
}

/// Pairs the LUNs of `old` with those of `new`. LUNs with the same number belong together; of
/// several, first those over the same device, then the others in their order. New LUNs follow in
/// their order, then the removed ones.
pub fn pair_luns(old: &[LunConfig], new: &[LunConfig]) -> Vec<(Option<usize>, Option<usize>)> {
    let mut partner: Vec<Option<usize>> = vec![None; new.len()];
    let mut is_free: Vec<bool> = vec![true; old.len()];
    for same_device in [true, false] {
        for (new_index, lun) in new.iter().enumerate() {
            if partner[new_index].is_some() {
                continue;
            }
            let fits = |other: &LunConfig| {
                other.id == lun.id && (!same_device || other.unit.device == lun.unit.device)
            };
            let found = old
                .iter()
                .enumerate()
                .find(|(old_index, other)| is_free[*old_index] && fits(other));
            if let Some((old_index, _)) = found {
                is_free[old_index] = false;
                partner[new_index] = Some(old_index);
            }
        }
    }
    let kept =
        partner.into_iter().enumerate().map(|(new_index, old_index)| (old_index, Some(new_index)));
    let gone = is_free
        .iter()
        .enumerate()
        .filter(|(_, is_free)| **is_free)
        .map(|(old_index, _)| (Some(old_index), None));
    kept.chain(gone).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Readable;
    use crate::config::moved_extents::MovedExtentsUse;
    use crate::config::resolve::resolve;
    use crate::config::virtual_lun::StorageTable;
    use std::path::Path;

    /// A configuration of a portal and these lines.
    fn read(text: &str) -> Configuration {
        resolve(
            text,
            Path::new("/lunar.toml"),
            Readable::Regular,
            StorageTable::new(MovedExtentsUse::Refuse),
        )
        .unwrap()
    }

    fn target(rest: &str) -> String {
        format!("[[target]]\nname = \"iqn.2026-11.org.example:a\"\n{rest}")
    }

    fn lines(old: &str, new: &str) -> Vec<(String, ChangeEffect)> {
        let same = |old: Option<&LunConfig>, new: &LunConfig| {
            let memory = |lun: &LunConfig| matches!(lun.unit.device, DeviceUrl::Memory { .. });
            let same =
                |old: &LunConfig| memory(old) && memory(new) || old.unit.device == new.unit.device;
            ShownUnit { same: old.is_some_and(same), ..ShownUnit::default() }
        };
        let difference = Difference::between(&read(old), &read(new), &same);
        let text = serde_json::to_string(&difference).unwrap();
        assert_eq!(serde_json::from_str::<Difference>(&text).unwrap(), difference);
        difference.changes.into_iter().map(|change| (change.line, change.effect)).collect()
    }

    const LUN: &str = "[[target.lun]]\nid = 0\ndevice = \"mem:1M\"\n";

    /// Goal: changes of administrators are effective at once; an empty list differs from no list.
    #[test]
    fn changes_of_administrators_are_reported() {
        let last_line = |new: String| lines(&target(LUN), &new).pop().unwrap();
        let (line, effect) =
            last_line(target(&format!("administer = [\"iqn.2026-11.org.example:B\"]\n{LUN}")));
        assert!(line.ends_with(":a administer: none -> [\"iqn.2026-11.org.example:b\"]"), "{line}");
        assert_eq!(effect, ChangeEffect::AtOnce);
        let (line, effect) = last_line(target(&format!("{LUN}administer = []\n")));
        assert!(line.ends_with(":a LUN 0 administer: none -> []"), "{line}");
        assert_eq!(effect, ChangeEffect::AtOnce);
    }

    /// Goal: each kind of difference has its line and its effect; equal settings have none.
    #[test]
    fn differences_are_reported() {
        let base = target(LUN);
        assert_eq!(lines(&base, &base), []);
        let a = "~ iqn.2026-11.org.example:a";
        for (new, line, effect) in [
            (
                target(&format!("alias = \"x\\\"y\"\n{LUN}")),
                format!("{a} alias: none -> \"x\\\"y\" (effective from the next login)"),
                ChangeEffect::NextLogin,
            ),
            (
                target(&format!("redirect = \"h:1\"\n{LUN}")),
                format!("{a} redirect: none -> \"h:1\" (affected sessions end)"),
                ChangeEffect::SessionsEnd,
            ),
            (
                target(&format!("networks = [\"10.0.0.0/8\"]\n{LUN}")),
                format!("{a} networks: none -> [\"10.0.0.0/8\"] (affected sessions end)"),
                ChangeEffect::SessionsEnd,
            ),
            (
                target(&LUN.replace("1M", "2M")),
                format!("{a} LUN 0 device: \"mem:1MiB\" -> \"mem:2MiB\" (initiators are notified)"),
                ChangeEffect::Grows,
            ),
            (
                target(&LUN.replace("1M", "512K")),
                format!(
                    "{a} LUN 0 device: \"mem:1MiB\" -> \"mem:512KiB\" (the data beyond the new \
                     end is lost)"
                ),
                ChangeEffect::Shrinks,
            ),
            (
                target(&format!("{LUN}cache = \"write-back\"\n")),
                format!(
                    "{a} LUN 0 cache: \"write-through\" -> \"write-back\" (the unit is closed and \
                     reopened: sessions lose access to it for a moment, and reservations without \
                     APTPL are released, the data in memory is lost)"
                ),
                ChangeEffect::Reopens,
            ),
            (
                format!("[metrics]\nlisten = \"127.0.0.1:9860\"\n{base}"),
                "~ metrics.listen: none -> \"127.0.0.1:9860\" (requires a restart)".to_owned(),
                ChangeEffect::Restart,
            ),
            (
                format!("[limits]\nconnections = 5\n{base}"),
                "~ limits.connections: 16384 -> 5 (requires a restart)".to_owned(),
                ChangeEffect::Restart,
            ),
            (
                format!(
                    "[listen]\nportals = [{{ listen = \"[::1]:1\", portal_group = 3 }}]\n{base}"
                ),
                "~ listen.portals: [\"127.0.0.1:3260\"] -> [{ listen = \"[::1]:1\", portal_group \
                 = 3 }] (requires a restart)"
                    .to_owned(),
                ChangeEffect::Restart,
            ),
        ] {
            assert_eq!(lines(&base, &new), [(line, effect)], "{new}");
        }
    }

    /// Goal: whole targets and LUNs that are added or removed are described in full, and LUNs with
    /// the same number are distinguished.
    #[test]
    fn additions_and_removals_are_reported() {
        let base = target(LUN);
        let second = format!("{base}[[target.lun]]\nid = 1\ndevice = \"mem:2M\"\nthin = false\n");
        let added = "iqn.2026-11.org.example:a LUN 1: device = \"mem:2MiB\", thin = false";
        assert_eq!(lines(&base, &second), [(format!("+ {added}"), ChangeEffect::AtOnce)]);
        let gone = format!("- {added} (the data in memory is lost)");
        assert_eq!(lines(&second, &base), [(gone, ChangeEffect::AtOnce)]);
        let other = base.replace(":a", ":b");
        assert_eq!(
            lines(&base, &other),
            [
                ("+ iqn.2026-11.org.example:b".to_owned(), ChangeEffect::AtOnce),
                (
                    "+ iqn.2026-11.org.example:b LUN 0: device = \"mem:1MiB\"".to_owned(),
                    ChangeEffect::AtOnce
                ),
                (
                    "- iqn.2026-11.org.example:a (affected sessions end)".to_owned(),
                    ChangeEffect::SessionsEnd
                ),
                (
                    "- iqn.2026-11.org.example:a LUN 0: device = \"mem:1MiB\" (the data in memory \
                     is lost)"
                        .to_owned(),
                    ChangeEffect::AtOnce
                ),
            ]
        );
        let apart = |first: &str, second: &str| {
            let lun = |device: &str, network: &str| {
                format!(
                    "[[target.lun]]\nid = 7\ndevice = \"{device}\"\nnetworks = [\"{network}\"]\n"
                )
            };
            target(&(lun(first, "10.0.0.0/8") + &lun(second, "127.0.0.0/8")))
        };
        let gone = lines(&apart("mem:1M", "mem:2M"), &apart("mem:2M", "mem:3M"));
        let output: Vec<_> = gone.iter().map(|(line, _)| line.as_str()).collect();
        let a = "~ iqn.2026-11.org.example:a LUN 7 of";
        assert_eq!(
            output,
            [
                format!("{a} mem:2MiB networks: [\"127.0.0.0/8\"] -> [\"10.0.0.0/8\"]"),
                format!(
                    "{a} mem:3MiB device: \"mem:1MiB\" -> \"mem:3MiB\" (initiators are notified)"
                ),
                format!("{a} mem:3MiB networks: [\"10.0.0.0/8\"] -> [\"127.0.0.0/8\"]"),
            ]
        );
    }

    /// Goal: a LUN that will show another disk is reported with the data that is lost; memory that
    /// another LUN shows from then on is not lost.
    #[test]
    fn another_disk_is_reported() {
        const OTHER: &str =
            "the LUN becomes a different disk: initiators that use it will see other data";
        const UUID: &str = "uuid = \"6b1f1c1e-0000-4000-8000-000000000001\"\n";
        // Any two existing files.
        const A: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml");
        const B: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/src/lib.rs");
        let one = |device: &str| target(&format!("[[target.lun]]\nid = 0\ndevice = {device:?}\n"));
        let change = |from: &str, to: &str| {
            let changes = lines(&one(from), &one(to));
            let [(line, effect)] = &changes[..] else { panic!("{changes:?}") };
            assert_eq!(*effect, ChangeEffect::OtherDisk, "{line}");
            line.split_once(" device: ").unwrap().1.to_owned()
        };
        let files = change(A, B);
        assert_eq!(files, format!("\"file:{A}\" -> \"file:{B}\" ({OTHER})"));
        let memory = change("mem:1M", B);
        let lost = format!("({OTHER}, the data in memory is lost)");
        assert_eq!(memory, format!("\"mem:1MiB\" -> \"file:{B}\" {lost}"));

        let named =
            |id: u16| target(&format!("[[target.lun]]\nid = {id}\ndevice = \"mem:1M\"\n{UUID}"));
        let changes = lines(&named(0), &named(1));
        assert_eq!(changes.len(), 2, "{changes:?}");
        assert!(changes.iter().all(|(line, _)| !line.contains("lost")), "{changes:?}");
        let gone = lines(&named(0), &one(B).replace("id = 0", "id = 1"));
        assert!(gone[1].0.ends_with("(the data in memory is lost)"), "{gone:?}");
    }

    /// Goal: another secret in the same file is a difference, and the secret is not shown.
    #[test]
    fn changed_secrets_are_reported_without_their_text() {
        let file = std::env::temp_dir().join(format!("lunar-secret-{}", std::process::id()));
        let text = target(&format!(
            "chap = {{ user = \"u\", secret_file = {:?} }}\n{LUN}",
            file.display().to_string()
        ));
        std::fs::write(&file, "hunter2hunter2").unwrap();
        let old = read(&text);
        std::fs::write(&file, "hunter3hunter3").unwrap();
        let difference = Difference::between(&old, &read(&text), &|_, _| ShownUnit {
            same: true,
            ..ShownUnit::default()
        });
        let [change] = &difference.changes[..] else { panic!("{difference}") };
        assert!(change.line.contains("chap: a secret in { user = \"u\""), "{difference}");
        assert!(!format!("{difference:?}").contains("hunter"));
        std::fs::remove_file(file).unwrap();
    }
}
