//! The running configuration as TOML.

use crate::config::model::{Configuration, LunConfig, PoolConfig, TargetConfig};
use crate::config::setting::{Setting, Value};
use crate::config::settings;
use crate::difference::pair_luns;

/// The whole configuration.
pub(super) fn of(configuration: &Configuration) -> String {
    let mut text = String::new();
    for (section, keys) in settings::of_server(configuration) {
        let lines = lines(&keys, "");
        if !lines.is_empty() && !section.is_empty() {
            text.push_str(&format!("[{section}]\n"));
        }
        text.push_str(&lines);
    }
    for storage in &configuration.storages {
        text.push_str("[[storage]]\n");
        text.push_str(&lines(&settings::of_storage(storage), ""));
    }
    configuration.pools.iter().for_each(|pool| push_pool(&mut text, pool));
    for target in &configuration.targets {
        push_target(&mut text, target);
    }
    text
}

fn push_pool(text: &mut String, pool: &PoolConfig) {
    text.push_str("[[pool]]\n");
    text.push_str(&lines(&settings::of_pool(pool), ""));
}

/// Formats the differences between the applied and the running configuration; comments state where
/// each line belongs, and which lines have to be removed.
pub(super) fn of_drift(applied: &Configuration, running: &Configuration) -> String {
    let mut text = String::new();
    let find = |list: &[TargetConfig], name: &str| {
        list.iter().position(|target| target.name.eq_ignore_ascii_case(name))
    };
    for pool in &running.pools {
        if let Some(old) = applied.pools.iter().find(|old| old.name == pool.name) {
            let heading = format!("[[pool]] {}", pool.name);
            push_keys(&mut text, &heading, &settings::of_pool(old), &settings::of_pool(pool), "");
        }
    }
    for target in &running.targets {
        match find(&applied.targets, &target.name) {
            Some(old) => match &applied.targets[old] {
                old if old.is_persisted => push_drift_of_persisted(&mut text, old, target),
                old => push_drift(&mut text, old, target),
            },
            None => push_target(&mut text, target),
        }
    }
    for target in &applied.targets {
        if find(&running.targets, &target.name).is_none() {
            text.push_str(&format!("# remove the target {}\n", target.name));
        }
    }
    text
}

fn push_target(text: &mut String, target: &TargetConfig) {
    text.push_str("[[target]]\n");
    text.push_str(&lines(&settings::of_target(target), ""));
    for lun in &target.luns {
        push_lun(text, lun);
    }
}

fn push_lun(text: &mut String, lun: &LunConfig) {
    text.push_str("  [[target.lun]]\n");
    text.push_str(&lines(&settings::of_lun(lun), "  "));
}

fn push_drift(text: &mut String, old: &TargetConfig, new: &TargetConfig) {
    let heading = format!("target {}", new.name);
    push_keys(text, &heading, &settings::of_target(old), &settings::of_target(new), "");
    for (old_index, new_index) in pair_luns(&old.luns, &new.luns) {
        match (old_index.map(|index| &old.luns[index]), new_index.map(|index| &new.luns[index])) {
            (Some(old_lun), Some(new_lun)) => {
                let heading = format!("{heading}, LUN {} of {}", old_lun.id, old_lun.unit.device);
                push_keys(
                    text,
                    &heading,
                    &settings::of_lun(old_lun),
                    &settings::of_lun(new_lun),
                    "  ",
                );
            }
            (None, Some(new_lun)) => {
                text.push_str(&format!("# {heading}: add\n"));
                push_lun(text, new_lun);
            }
            (Some(old_lun), None) => {
                let device = &old_lun.unit.device;
                text.push_str(&format!("# {heading}: remove LUN {} of {device}\n", old_lun.id));
            }
            (None, None) => {}
        }
    }
}

/// Prints the whole target if it was changed: no lines of the configuration file could be changed.
fn push_drift_of_persisted(text: &mut String, old: &TargetConfig, new: &TargetConfig) {
    let mut changes = String::new();
    push_drift(&mut changes, old, new);
    if !changes.is_empty() {
        text.push_str(&format!(
            "# target {}: the state directory keeps it without its changes; add the whole target, \
             which takes precedence\n",
            new.name
        ));
        push_target(text, new);
    }
}

fn push_keys(text: &mut String, heading: &str, old: &[Setting], new: &[Setting], indent: &str) {
    let changed = old.iter().zip(new).filter(|(old, new)| !old.same(new));
    for (old, new) in changed {
        match (&old.value, &new.value) {
            (_, Some(value)) => {
                let line = format!("{indent}{} = {}", new.key, value.toml());
                text.push_str(&format!("# {heading}: set\n{line}\n"));
            }
            (Some(value), None) => {
                let line = format!("{} = {}", old.key, value.toml());
                text.push_str(&format!("# {heading}: remove {line}\n"));
            }
            (None, None) => {}
        }
    }
}

/// The keys with another value than the default, one per line.
fn lines(keys: &[Setting], indent: &str) -> String {
    let explicit = keys.iter().filter(|setting| !setting.default);
    let line = |s: &Setting| {
        let comment = comment(s).map(|comment| format!("{indent}# {comment}\n"));
        let line = format!("{indent}{} = {}\n", s.key, s.value.as_ref()?.toml());
        Some(comment.unwrap_or_default() + &line)
    };
    explicit.filter_map(line).collect()
}

/// A comment on a setting that its line does not explain.
fn comment(setting: &Setting) -> Option<&'static str> {
    let names_no_file = |value: &Value| match value {
        Value::Table(entries) => !entries.iter().any(|(key, _)| *key == "secret_file"),
        _ => false,
    };
    let lacks = match setting.value.as_ref().filter(|_| setting.key == "chap")? {
        Value::List(items) => items.iter().any(names_no_file),
        one => names_no_file(one),
    };
    lacks.then_some("the secret came from the environment: write it to a file and add secret_file")
}
