//! `lunar check`: validates a configuration.

use crate::device_url::ServedDevices;
use crate::output::{self, Failure, Format};
use lunar_control::ErrorList;
use lunar_control::config::model::{Configuration, UnitConfig};
use lunar_control::config::{self, persisted_targets, settings};
use lunar_control::device_url::{DeviceUrl, Opener, REMOTE_OPEN_TIME_MAX, RemoteOpening};
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Validate a configuration: print every problem with line, column and remedy
///
/// Nothing is sent to the network without --connect.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  lunar check /etc/lunar/lunar.toml\n  \
                        lunar check /etc/lunar/lunar.toml --connect")]
pub struct Check {
    /// The configuration
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Also log in to the target of each remote LUN (a device iscsi://…) and each storage, and
    /// check that they can be served: credentials, device type, block size, the identity if it is
    /// passed on, and the ends of extents. Nothing is written
    #[arg(long)]
    connect: bool,
}

/// Numbers of LUNs by kind of device.
#[derive(Debug, Default, Serialize)]
struct DeviceKinds {
    file: usize,
    mem: usize,
    iscsi: usize,
    pool: usize,
    r#virtual: usize,
}

impl DeviceKinds {
    fn of(configuration: &Configuration) -> Self {
        let mut kinds = Self::default();
        for lun in configuration.targets.iter().flat_map(|target| &target.luns) {
            *match &lun.unit.device {
                DeviceUrl::File(_) => &mut kinds.file,
                DeviceUrl::Memory { .. } => &mut kinds.mem,
                DeviceUrl::Iscsi(_) | DeviceUrl::Extent(_) => &mut kinds.iscsi,
                DeviceUrl::Virtual(_) => &mut kinds.r#virtual,
                DeviceUrl::Pool(_) => &mut kinds.pool,
            } += 1;
        }
        kinds
    }
}

/// A remote LUN that can be served.
#[derive(Debug, Serialize)]
struct RemoteLun {
    target: String,
    lun: u16,
    device: String,
    size_bytes: u64,
    block_bytes: u32,
}

/// A storage that was reached.
#[derive(Debug, Serialize)]
struct ReachedStorage {
    name: String,
    url: String,
    size_bytes: u64,
    block_bytes: u32,
}

/// The LUNs of other targets that were reached.
#[derive(Debug)]
struct Reached {
    luns: Vec<RemoteLun>,
    storages: Vec<ReachedStorage>,
}

/// Runs the command.
///
/// # Errors
/// Returns all problems of the file; with `--connect`, also of its remote LUNs and storages.
pub fn run(args: &Check, format: Format) -> Result<(), Failure> {
    let mut configuration = config::load(&args.file)?;
    let warnings = add_persisted_targets(&mut configuration)?;
    let targets = configuration.targets.len();
    let luns: usize = configuration.targets.iter().map(|target| target.luns.len()).sum();
    let kinds = DeviceKinds::of(&configuration);
    let reached = match args.connect {
        true => Some(connect(&configuration, &args.file)?),
        false => None,
    };
    let reached = reached.as_ref();
    match format {
        Format::Json => output::print_json(&serde_json::json!({
            "valid": true,
            "targets": targets,
            "luns": luns,
            "devices": kinds,
            "warnings": warnings,
            "remote_luns": reached.map(|reached| &reached.luns),
            "storages": reached.map(|reached| &reached.storages),
            "configuration": settings::json(&configuration),
        })),
        Format::Human => {
            let note = match (kinds.iscsi + configuration.storages.len(), reached) {
                (0, _) => String::new(),
                (count, None) => format!(" ({count} remote, not checked: see --connect)"),
                (count, Some(_)) => format!(" ({count} remote, reached)"),
            };
            let file = args.file.display();
            let mut text = format!("{file}: valid, targets: {targets}, LUNs: {luns}{note}\n");
            for storage in reached.iter().flat_map(|reached| &reached.storages) {
                text.push_str(&format!(
                    "storage {}: {}, {}, blocks of {}\n",
                    storage.name,
                    storage.url,
                    output::size(storage.size_bytes),
                    storage.block_bytes
                ));
            }
            for lun in reached.iter().flat_map(|reached| &reached.luns) {
                text.push_str(&format!(
                    "{} LUN {}: {}, {}, blocks of {}\n",
                    lun.target,
                    lun.lun,
                    lun.device,
                    output::size(lun.size_bytes),
                    lun.block_bytes
                ));
            }
            text.extend(warnings.iter().map(|warning| format!("warning: {warning}\n")));
            output::print_text(&text)
        }
    }
}

/// Adds the targets in the state directory, as a server does at its start. Returns warnings; one of
/// them if only the user of the server can read the targets.
fn add_persisted_targets(configuration: &mut Configuration) -> Result<Vec<String>, Failure> {
    match persisted_targets::read(configuration.state.as_deref()) {
        Ok(persisted) => persisted_targets::add(configuration, persisted, &[]),
        Err(failure) => {
            Ok(vec![format!("{}: run this command as the user of the server", failure.what)])
        }
    }
}

/// Opens each remote LUN and storage as a server would, and closes it again.
fn connect(configuration: &Configuration, file: &Path) -> Result<Reached, Failure> {
    let luns = connect_luns(configuration, file)?;
    let devices = ServedDevices::default();
    let mut storages = Vec::new();
    let mut geometries = BTreeMap::new();
    for storage in &configuration.storages {
        let geometry = devices.open_storage(storage)?.geometry();
        geometries.insert(storage.name.clone(), geometry);
        storages.push(ReachedStorage {
            name: storage.name.clone(),
            url: storage.url.to_string(),
            size_bytes: geometry.size_bytes(),
            block_bytes: geometry.block_bytes,
        });
    }
    config::load_with_geometries(file, geometries)?;
    Ok(Reached { luns, storages })
}

/// Opens each remote LUN.
fn connect_luns(configuration: &Configuration, file: &Path) -> Result<Vec<RemoteLun>, Failure> {
    let (mut reached, mut failed) = (Vec::new(), Vec::new());
    for target in &configuration.targets {
        for lun in target.luns.iter().filter(|lun| lun.unit.device.portal().is_some()) {
            match describe(&lun.unit) {
                Ok((size_bytes, block_bytes)) => reached.push(RemoteLun {
                    target: target.name.clone(),
                    lun: lun.id,
                    device: lun.unit.device.to_string(),
                    size_bytes,
                    block_bytes,
                }),
                Err(failure) => failed.push((target.name.clone(), lun.id, failure)),
            }
        }
    }
    if failed.is_empty() {
        return Ok(reached);
    }
    let line = |(target, lun, failure): &(String, u16, Failure)| {
        format!("{}: {target} LUN {lun}: {failure}", file.display())
    };
    let problem = |(target, lun, failure): &(String, u16, Failure)| {
        serde_json::json!({
            "target": target, "lun": lun, "error": failure.what, "hint": failure.hint,
        })
    };
    let lines: Vec<_> = failed.iter().map(line).collect();
    let list = ("problems", failed.iter().map(problem).collect());
    let what = format!("{}: remote LUNs that cannot be served: {}", file.display(), failed.len());
    Err(Failure { parts: Some(Box::new(ErrorList { lines, list })), ..Failure::new(what) })
}

/// The size and block length of a remote LUN that can be served.
fn describe(unit: &UnitConfig) -> Result<(u64, u32), Failure> {
    // The session ends with the opener.
    let devices = ServedDevices::default();
    let Some(url) = unit.device.portal() else {
        return Err(Failure::new(format!("{} is not a remote LUN", unit.device)));
    };
    let opening = RemoteOpening { identity: unit.identity, time_max: REMOTE_OPEN_TIME_MAX };
    let geometry = devices.open_remote(url, &unit.options, opening)?.device.geometry();
    Ok((geometry.size_bytes(), geometry.block_bytes))
}
