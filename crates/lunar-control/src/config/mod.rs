//! The configuration: read from a file or a command line, checked, then opened.

mod api_options;
pub mod conflict;
mod defaults;
pub mod file;
pub mod limit_settings;
pub mod lun;
mod mirrored_lun;
pub mod model;
pub mod moved_extents;
pub mod named_limits;
pub mod persisted_targets;
pub mod pools;
pub mod resolve;
mod resolve_access;
mod resolve_api;
mod resolve_chap;
pub mod resolve_limits;
mod resolve_remote;
pub mod rules;
pub mod setting;
pub mod settings;
pub mod target;
pub mod virtual_lun;

use crate::small_file::{self, Readable};
use crate::{ErrorList, Failure};
use lunar_block::Geometry;
use model::Configuration;
use moved_extents::MovedExtentsUse;
use std::collections::BTreeMap;
use std::path::Path;
use virtual_lun::StorageTable;

pub use api_options::{ApiListen, ApiOptions};
pub use defaults::{default_offer, default_portal};
pub use file::ConfigProblem;
pub use resolve_chap::check_user;

/// Reads and checks the configuration in `path`.
///
/// # Errors
/// Fails if the file cannot be read; else returns one failure that lists all problems.
pub fn load(path: &Path) -> Result<Configuration, Failure> {
    parse(&read(path)?, path)
}

/// Like [`load`], with the geometries of storages that were reached: also checks that the extents
/// lie within these storages.
///
/// # Errors
/// Same as [`load`].
pub fn load_with_geometries(
    path: &Path,
    reached: BTreeMap<String, Geometry>,
) -> Result<Configuration, Failure> {
    let mut storages = StorageTable::new(MovedExtentsUse::Refuse);
    storages.reached = reached;
    parse_with(&read(path)?, path, Readable::Any, storages)
}

/// Like [`load`], for the start of a server: extents that were moved have their present locations,
/// as `moved` says.
///
/// # Errors
/// Same as [`load`].
pub fn load_to_serve(path: &Path, moved: MovedExtentsUse) -> Result<Configuration, Failure> {
    parse_with(&read(path)?, path, Readable::Any, StorageTable::new(moved))
}

/// Like [`load`], for a running server: reads regular files only, as a pipe could block the server.
///
/// # Errors
/// Same as [`load`]; also fails for a file of another kind.
pub fn load_running(path: &Path) -> Result<Configuration, Failure> {
    parse_running(&read_kind(path, Readable::Regular)?, path)
}

/// Reads the text in `path`.
///
/// # Errors
/// Fails if the file cannot be read or is not valid text.
pub fn read(path: &Path) -> Result<String, Failure> {
    read_kind(path, Readable::Any)
}

fn read_kind(path: &Path, readable: Readable) -> Result<String, Failure> {
    let cannot = |why: String| {
        Failure::new(format!("cannot read {}: {why}", path.display()))
            .hint("use a readable configuration file in TOML format")
    };
    let (bytes, _) = small_file::read(path, file::FILE_BYTES_MAX + 1, readable)
        .map_err(|error| cannot(error.to_string()))?;
    if bytes.len() as u64 > file::FILE_BYTES_MAX {
        return Err(cannot("it is too long for a configuration".to_owned()));
    }
    String::from_utf8(bytes).map_err(|_| cannot("it is not UTF-8".to_owned()))
}

/// Checks the configuration `text`, read from `path`: relative paths in it are resolved against the
/// directory of `path`.
///
/// # Errors
/// Returns one failure that lists all problems.
pub fn parse(text: &str, path: &Path) -> Result<Configuration, Failure> {
    parse_with(text, path, Readable::Any, StorageTable::new(MovedExtentsUse::Refuse))
}

/// Like [`parse`], for a running server: the files named by the text must be regular files.
///
/// # Errors
/// Same as [`parse`].
pub fn parse_running(text: &str, path: &Path) -> Result<Configuration, Failure> {
    parse_with(text, path, Readable::Regular, StorageTable::new(MovedExtentsUse::Refuse))
}

fn parse_with(
    text: &str,
    path: &Path,
    readable: Readable,
    storages: StorageTable,
) -> Result<Configuration, Failure> {
    if text.len() as u64 > file::FILE_BYTES_MAX {
        return Err(Failure::new(format!("{} is too long for a configuration", path.display())));
    }
    resolve::resolve(text, path, readable, storages).map_err(|problems| failure(path, &problems))
}

/// Combines all problems into one failure: one line each for people, a list for programs.
pub fn failure(path: &Path, problems: &[ConfigProblem]) -> Failure {
    let file = path.display();
    let lines: Vec<String> = problems
        .iter()
        .map(|problem| {
            let hint =
                problem.hint.as_ref().map_or_else(String::new, |hint| format!(" (hint: {hint})"));
            format!("{file}:{}:{}: {}{hint}", problem.line, problem.column, problem.error)
        })
        .collect();
    let list = serde_json::to_value(problems).unwrap_or_default();
    let count = problems.len();
    let what = format!("{file}: {count} {}", if count == 1 { "problem" } else { "problems" });
    let parts = ErrorList { lines, list: ("problems", list) };
    Failure { parts: Some(Box::new(parts)), ..Failure::new(what) }
}
