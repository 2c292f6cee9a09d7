//! Who a unit is: a UUID that is made once and kept with the unit's state.
//!
//! See docs/decisions/020-where-a-units-identity-lives.md.

use crate::Failure;
use crate::small_file::{self, Readable};
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use uuid::Uuid;

/// The file that holds a unit's UUID, in the unit's directory.
const UUID_FILE: &str = "uuid";
/// More than any spelling of a UUID takes.
const UUID_BYTES_MAX: u64 = 256;
/// The longest name of a directory entry on all usual file systems.
const NAME_BYTES_MAX: usize = 255;

/// The directory of one unit's state.
///
/// * With a UUID of its own (a configuration's `uuid`): `STATE/<uuid>`; nothing else counts.
/// * With a common state directory: `STATE/<path of the file, percent-encoded>`.
/// * Else beside the file: `<file>.lunar`.
///
/// # Errors
/// For a device node under /dev without a state directory: what lies in /dev is lost at a reboot.
pub fn directory(
    file: &Path,
    state: Option<&Path>,
    uuid: Option<Uuid>,
) -> Result<PathBuf, Failure> {
    match (state, uuid) {
        (Some(state), Some(uuid)) => Ok(state.join(uuid.to_string())),
        (Some(state), None) => {
            let name = encode(&canonical(file)?);
            if name.len() > NAME_BYTES_MAX {
                return Err(Failure::new(format!(
                    "the path of {} is too long to name its state",
                    file.display()
                ))
                .hint("give the unit a uuid in a configuration, or use a shorter path"));
            }
            Ok(state.join(name))
        }
        (None, _) => {
            let file = canonical(file)?;
            if file.starts_with("/dev") && !file.is_file() {
                return Err(Failure::new(format!(
                    "the state of {} cannot lie in /dev, which is lost at a reboot",
                    file.display()
                ))
                .hint("give --state DIR (in a configuration: state = \"DIR\")"));
            }
            let mut name = file.into_os_string();
            name.push(".lunar");
            Ok(PathBuf::from(name))
        }
    }
}

/// The UUID kept in `directory`; a new one is made, and kept, where there is none.
///
/// The directory is made as well. When this returns, the UUID survives a power cut: the file is
/// written aside, synced, linked under its name (which two processes cannot both do), and the
/// directory synced.
///
/// # Errors
/// When the directory cannot be written, or the file holds no UUID.
pub fn load_or_create(directory: &Path) -> Result<Uuid, Failure> {
    create_directory(directory)?;
    let path = directory.join(UUID_FILE);
    if let Some(uuid) = read(&path)? {
        return Ok(uuid);
    }
    let uuid = Uuid::new_v4();
    let aside = directory.join(format!("{UUID_FILE}.{}", uuid.simple()));
    let written = write_synced(&aside, &format!("{uuid}\n"))
        .and_then(|()| fs::hard_link(&aside, &path).or_else(|_| rename_new(&aside, &path)));
    // The name aside is of no more use, whatever happened.
    let _ = fs::remove_file(&aside);
    match written {
        Ok(()) => {}
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
        Err(error) => return Err(cannot_keep(directory, &error)),
    }
    File::open(directory).and_then(|d| d.sync_all()).map_err(|e| cannot_keep(directory, &e))?;
    read(&path)?.ok_or_else(|| Failure::new(format!("{} vanished", path.display())))
}

/// Whether a unit has left its identity, or more, in `directory`. Where the configuration says
/// `uuid`, the directory itself is that: it is made after the disk is durable.
///
/// # Errors
/// When it cannot be looked at.
pub fn is_kept(directory: &Path, uuid: Option<Uuid>) -> Result<bool, Failure> {
    match fs::read_dir(directory) {
        Ok(mut entries) => Ok(uuid.is_some() || entries.next().is_some()),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(cannot_keep(directory, &error)),
    }
}

/// Makes a unit's directory, durably, with what a former run put into it.
///
/// # Errors
/// When that is not possible.
pub fn create_directory(directory: &Path) -> Result<(), Failure> {
    block::durable::make_directory(directory).map_err(|error| cannot_keep(directory, &error))
}

fn cannot_keep(directory: &Path, error: &std::io::Error) -> Failure {
    Failure::new(format!("cannot keep the unit's identity in {}: {error}", directory.display()))
        .hint("give a writable --state DIR (in a configuration: state = \"DIR\")")
}

fn read(path: &Path) -> Result<Option<Uuid>, Failure> {
    match small_file::read(path, UUID_BYTES_MAX, Readable::Regular) {
        Ok((text, _)) => match Uuid::parse_str(String::from_utf8_lossy(&text).trim()) {
            Ok(uuid) if !uuid.is_nil() => Ok(Some(uuid)),
            _ => Err(Failure::new(format!("{} holds no UUID", path.display())).hint(
                "restore the file: initiators know the disk by it; removed, the disk becomes a \
                 new one to them",
            )),
        },
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(Failure::new(format!("cannot read {}: {error}", path.display()))),
    }
}

fn write_synced(path: &Path, text: &str) -> std::io::Result<()> {
    let mut file = File::options().write(true).create_new(true).open(path)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()
}

/// For file systems without hard links.
fn rename_new(from: &Path, to: &Path) -> std::io::Result<()> {
    if to.exists() { Err(std::io::ErrorKind::AlreadyExists.into()) } else { fs::rename(from, to) }
}

/// The absolute path without symbolic links. The file need not exist yet, its directory must.
fn canonical(file: &Path) -> Result<PathBuf, Failure> {
    let resolved = fs::canonicalize(file).or_else(|error| {
        let name = file.file_name().ok_or(error)?;
        let parent = match file.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
        Ok(fs::canonicalize(parent)?.join(name))
    });
    resolved.map_err(|error: std::io::Error| {
        Failure::new(format!("cannot find {}: {error}", file.display()))
            .hint("the directory of a new file must exist: make it with mkdir -p")
    })
}

/// Percent-encoding: letters, digits, `.`, `_` and `-` stand for themselves.
fn encode(path: &Path) -> String {
    let mut name = String::new();
    for &byte in path.as_os_str().as_bytes() {
        if byte.is_ascii_alphanumeric() || b"._-".contains(&byte) {
            name.push(char::from(byte));
        } else {
            name.push_str(&format!("%{byte:02X}"));
        }
    }
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scratch(name: &str) -> PathBuf {
        let path =
            std::env::temp_dir().join(format!("lunar-identity-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap();
        path
    }

    /// Goal: a unit keeps its identity, and nothing but the uuid file is left in its directory.
    #[test]
    fn made_once_and_kept() {
        let base = scratch("kept");
        let unit = base.join("a/b");
        let first = load_or_create(&unit).unwrap();
        assert_eq!(load_or_create(&unit).unwrap(), first);
        assert_ne!(load_or_create(&base.join("other")).unwrap(), first);
        let left: Vec<_> = fs::read_dir(&unit).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert_eq!(left, [UUID_FILE]);
        fs::write(unit.join(UUID_FILE), "nonsense").unwrap();
        assert!(load_or_create(&unit).is_err(), "a damaged identity is never replaced silently");
        fs::remove_dir_all(base).unwrap();
    }

    /// Goal: processes that start at once agree on one identity.
    #[test]
    fn racers_agree() {
        let base = scratch("race");
        let uuids: Vec<Uuid> = std::thread::scope(|scope| {
            let threads: Vec<_> =
                (0..16).map(|_| scope.spawn(|| load_or_create(&base).unwrap())).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert!(uuids.iter().all(|uuid| *uuid == uuids[0]));
        assert_eq!(fs::read_dir(&base).unwrap().count(), 1);
        fs::remove_dir_all(base).unwrap();
    }

    /// Goal: the directory depends on the file alone, not on how or in which order it was named.
    #[test]
    fn one_file_one_directory() {
        let base = scratch("where");
        let file = base.join("disk 1.img");
        let state = Path::new("/var/lib/lunar");
        let before = directory(&file, Some(state), None).unwrap();
        fs::write(&file, "").unwrap();
        let roundabout = base.join("../").join(base.file_name().unwrap()).join("disk 1.img");
        assert_eq!(directory(&roundabout, Some(state), None).unwrap(), before);
        assert!(before.to_str().unwrap().ends_with("%2Fdisk%201.img"));
        let link = base.join("link");
        std::os::unix::fs::symlink(&file, &link).unwrap();
        assert_eq!(directory(&link, Some(state), None).unwrap(), before);
        assert_eq!(
            directory(&link, None, None).unwrap(),
            fs::canonicalize(&base).unwrap().join("disk 1.img.lunar")
        );
        let uuid = Uuid::new_v4();
        assert_eq!(
            directory(&link, Some(state), Some(uuid)).unwrap(),
            state.join(uuid.to_string())
        );
        assert!(directory(Path::new("/dev/null"), None, None).is_err());
        assert!(directory(&base.join("no/such"), None, None).is_err());
        fs::remove_dir_all(base).unwrap();
    }
}
