//! Targets that are added to a running server and removed from it.

use super::{Applied, ChangeOptions, ConfigOrigin, Daemon, lock};
use crate::Failure;
use crate::config::model::{Configuration, TargetConfig};
use crate::config::target::{self, TargetSettings};
use crate::config::{lun, persisted_targets, rules};
use std::fmt;
use std::path::PathBuf;

impl Daemon {
    /// Adds a target. If `persist` is true, the state directory keeps it until it is removed
    /// again, else it lasts until the next configuration is applied. A target that exists with the
    /// same settings is left as it is.
    ///
    /// # Errors
    /// Fails if the settings are invalid, the target exists with others, a device cannot be opened,
    /// or the state directory cannot be written; then the target is not served.
    pub fn add_target(
        &self,
        settings: &TargetSettings,
        persist: bool,
        by: &dyn fmt::Display,
    ) -> Result<Applied, Failure> {
        let _files = lock(&self.target_files);
        let state = self.state_for(persist)?;
        let has_name = |target: &TargetConfig| target.name.eq_ignore_ascii_case(&settings.name);
        let exists = self.running().targets.iter().any(has_name);
        let applied = match exists {
            true => self.check_same_target(settings, by)?,
            false => self.change(&ChangeOptions::default(), by, |wanted| with(settings, wanted))?,
        };
        let Some(state) = state else { return Ok(applied) };
        if self.applied().targets.iter().any(has_name) {
            return Ok(applied);
        }
        match self.keep_target(settings, &state) {
            Ok(()) => Ok(applied),
            Err(failure) => {
                if !exists {
                    self.drop_target(&settings.name, by)?;
                }
                Err(failure)
            }
        }
    }

    /// Removes a target; its sessions end. If `persist` is true, it is also removed from the state
    /// directory. A target that does not exist is no error.
    ///
    /// # Errors
    /// Fails if the target is in the configuration file and `persist` is true, or the state
    /// directory cannot be written.
    pub fn remove_target(
        &self,
        name: &str,
        persist: bool,
        by: &dyn fmt::Display,
    ) -> Result<Applied, Failure> {
        rules::check_name(&name.to_ascii_lowercase())
            .map_err(|why| Failure::usage(format!("invalid target name {name}")).hint(why))?;
        let _files = lock(&self.target_files);
        let state = self.state_for(persist)?;
        let has_name = |target: &&TargetConfig| target.name.eq_ignore_ascii_case(name);
        let kept = self.applied().targets.iter().find(has_name).map(|target| target.is_persisted);
        if persist && kept == Some(false) {
            return Err(Failure::conflict(format!("{name} is in the configuration file"))
                .hint("remove it from the file, and run `lunar apply FILE`"));
        }
        let mut applied = self.drop_target(name, by)?;
        if let Some(state) = state {
            persisted_targets::remove(&state, name)?;
            let mut configurations = self.configurations();
            configurations.applied.targets.retain(|target| !has_name(&target));
            forget_skipped(&mut configurations.running, name);
        } else if kept == Some(true) {
            applied.warnings.push(format!(
                "{name} returns with the next apply or restart; --persist removes it for good"
            ));
        }
        Ok(applied)
    }

    /// Adds the targets that the state directory keeps to a configuration that was read. Returns
    /// warnings.
    pub(super) fn add_kept_targets(
        &self,
        read: &mut Configuration,
    ) -> Result<Vec<String>, Failure> {
        let Configuration { state, targets: served, .. } = self.running();
        persisted_targets::add(read, persisted_targets::read(state.as_deref())?, &served)
    }

    /// Removes a target that is served; nothing happens if there is none.
    fn drop_target(&self, name: &str, by: &dyn fmt::Display) -> Result<Applied, Failure> {
        self.change(&ChangeOptions::default(), by, |mut wanted| {
            wanted.targets.retain(|target| !target.name.eq_ignore_ascii_case(name));
            Ok(wanted)
        })
    }

    /// Checks that the target exists with these settings.
    fn check_same_target(
        &self,
        settings: &TargetSettings,
        by: &dyn fmt::Display,
    ) -> Result<Applied, Failure> {
        let only_report = ChangeOptions { dry_run: true, ..ChangeOptions::default() };
        let compared = self.change(&only_report, by, |wanted| with(settings, wanted))?;
        if compared.difference.is_empty() {
            return Ok(Applied { made: true, ..Applied::default() });
        }
        let changes = compared.difference.changes.iter().map(|change| change.line.as_str());
        let changes = changes.collect::<Vec<_>>().join("; ");
        let what = format!("{} exists with other settings: {changes}", settings.name);
        Err(Failure::conflict(what).hint("remove the target first, or choose another name"))
    }

    /// Writes the file of a target that is served, and counts it as applied.
    fn keep_target(
        &self,
        settings: &TargetSettings,
        state: &std::path::Path,
    ) -> Result<(), Failure> {
        let text = settings.to_file()?;
        let mut configurations = self.configurations();
        let has_name =
            |target: &&mut TargetConfig| target.name.eq_ignore_ascii_case(&settings.name);
        let Some(target) = configurations.running.targets.iter_mut().find(has_name) else {
            return Err(Failure::conflict(format!("{} was removed meanwhile", settings.name)));
        };
        persisted_targets::save(state, target, &text)?;
        target.is_persisted = true;
        let target = target.clone();
        configurations.applied.targets.push(target);
        Ok(())
    }

    /// The state directory for a change that persists.
    fn state_for(&self, persist: bool) -> Result<Option<PathBuf>, Failure> {
        if !persist {
            return Ok(None);
        }
        let ConfigOrigin::File { path, .. } = self.origin() else {
            return Err(Failure::conflict("this server was started without a configuration")
                .hint("omit --persist, or start the server with lunar target --config FILE"));
        };
        self.running().state.map(Some).ok_or_else(|| {
            Failure::conflict("the configuration names no state directory, which keeps targets")
                .hint(format!(
                    "add `state = \"/var/lib/lunar\"` to {}, and restart the server",
                    path.display()
                ))
        })
    }
}

/// Removes a target from the list of those that are skipped.
fn forget_skipped(configuration: &mut Configuration, name: &str) {
    configuration.skipped_targets.retain(|target| !target.name.eq_ignore_ascii_case(name));
}

/// The configuration with the target, in place of the target with its name.
fn with(settings: &TargetSettings, mut wanted: Configuration) -> Result<Configuration, Failure> {
    let mut target = target::target(settings, &wanted)?;
    match wanted.targets.iter_mut().find(|other| other.name.eq_ignore_ascii_case(&target.name)) {
        Some(other) => {
            target.is_persisted = other.is_persisted;
            *other = target;
        }
        None => wanted.targets.push(target),
    }
    forget_skipped(&mut wanted, &settings.name);
    lun::check_together(&wanted)?;
    Ok(wanted)
}
