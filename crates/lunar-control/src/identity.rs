//! Identity of a unit: a UUID that is generated once and stored with the unit's state.
//!
//! See docs/decisions/020-identity-of-a-unit.md.

use crate::Failure;
use crate::device_url::missing_hint;
use lunar_block::{StateDirectory, StateLock, UntrustedFile, is_among_devices, resolve_path};
use lunar_initiator::UnitPath;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use uuid::Uuid;

/// The file that holds a unit's UUID, in the unit's directory.
const UUID_FILE: &str = "uuid";
/// The file that holds a disk's logical block size in bytes, in the unit's directory, unless it is
/// the default.
const BLOCK_SIZE_FILE: &str = "block-size";
/// Logical block size of disks whose directory has no such file.
const DEFAULT_BLOCK_BYTES: u32 = 512;
/// Maximum length of a block size file.
const BLOCK_SIZE_BYTES_MAX: u64 = 16;
/// Namespace of the UUIDs of remote LUNs, a random UUID. RFC 9562.
const REMOTE_LUNS: Uuid = Uuid::from_u128(0x5b0c_1f4e_92a7_4d38_8c15_e07f_3d6a_b914);
/// Namespace of the UUIDs of virtual LUNs, a random UUID.
const VIRTUAL_LUNS: Uuid = Uuid::from_u128(0x1d0e_94c7_6ba3_4f52_9e68_24d1_80f7_5c3b);
/// Maximum length of a UUID file, above any spelling of a UUID.
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
/// Fails for a device node under /dev without a state directory, as files in /dev are lost at a
/// reboot, and for a file that does not exist.
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
                    "the path of {} is too long for the name of its state directory",
                    file.display()
                ))
                .hint("set a uuid in a configuration, or use a shorter path"));
            }
            Ok(state.join(name))
        }
        (None, _) => {
            let file = canonical(file)?;
            if is_among_devices(&file) && !file.exists() {
                return Err(Failure::new(format!("{} does not exist", file.display()))
                    .hint(missing_hint(&file, "")));
            }
            if is_among_devices(&file) && !file.is_file() {
                return Err(Failure::new(format!(
                    "the state of {} cannot be kept in /dev, which is lost at a reboot",
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

/// The UUID of a unit whose device is the LUN of another target. It is derived from the names of
/// target and LUN, so that it stays the same when the other target is reached at another address.
pub fn of_remote_lun(lun: &UnitPath) -> Uuid {
    let name = format!("iscsi:{}/{}", lun.target.to_ascii_lowercase(), lun.lun);
    Uuid::new_v5(&REMOTE_LUNS, name.as_bytes())
}

/// The UUID of a virtual LUN without a configured one, derived from its name.
pub fn of_virtual_lun(name: &str) -> Uuid {
    Uuid::new_v5(&VIRTUAL_LUNS, name.as_bytes())
}

/// The UUID stored in `directory`; if there is none, a new one is generated and stored.
///
/// When this returns, the UUID survives a power cut: the file is written under another name,
/// synced, renamed (which only one of two processes can do), and the directory synced.
///
/// # Errors
/// Fails if the directory cannot be written, the file holds no UUID, or others may change it.
pub fn load_or_create(directory: &StateDirectory) -> Result<Uuid, Failure> {
    if let Some(uuid) = read(directory)? {
        return Ok(uuid);
    }
    let uuid = Uuid::new_v4();
    let aside = format!("{UUID_FILE}.{}", uuid.simple());
    let saved = directory.save_first(UUID_FILE, &aside, format!("{uuid}\n").as_bytes());
    saved.map_err(|error| cannot_keep(directory.path(), &error))?;
    let path = directory.path().join(UUID_FILE);
    read(directory)?.ok_or_else(|| Failure::new(format!("{} vanished", path.display())))
}

/// The UUID as [`load_or_create`] returns it, and its lock; no lock if another process holds it.
///
/// # Errors
/// The errors of [`load_or_create`]; the file system has no locks.
pub fn load_and_lock(directory: &StateDirectory) -> Result<(Uuid, Option<StateLock>), Failure> {
    let uuid = load_or_create(directory)?;
    let lock = directory.lock(UUID_FILE);
    Ok((uuid, lock.map_err(|error| cannot_keep(directory.path(), &error))?))
}

/// Compares the logical block size of a disk with the one that its directory has; in an empty
/// directory, it is stored. With other blocks, partition tables and file systems are not found.
///
/// # Errors
/// Fails if the block size differs, or cannot be read or stored.
pub fn check_block_size(directory: &StateDirectory, block_bytes: u32) -> Result<(), Failure> {
    let known = || match directory.read(BLOCK_SIZE_FILE, BLOCK_SIZE_BYTES_MAX)? {
        Some(text) => Ok(Some(String::from_utf8_lossy(&text).trim().to_owned())),
        None if !directory.is_empty()? => Ok(Some(DEFAULT_BLOCK_BYTES.to_string())),
        None if block_bytes == DEFAULT_BLOCK_BYTES => Ok(None),
        None => {
            directory.save(BLOCK_SIZE_FILE, format!("{block_bytes}\n").as_bytes()).map(|()| None)
        }
    };
    let known = known().map_err(|error| cannot_keep(directory.path(), &error))?;
    match known.filter(|known| *known != block_bytes.to_string()) {
        None => Ok(()),
        Some(known) => Err(Failure::conflict(format!(
            "the disk of {} has blocks of {} bytes, but blocks of {block_bytes} bytes are \
             configured",
            directory.path().display(),
            known.escape_debug()
        ))
        .hint(format!(
            "use the block size of the disk; to change it, which makes partition tables and file \
             systems on the disk unreadable: echo {block_bytes} > {}",
            directory.path().join(BLOCK_SIZE_FILE).display()
        ))),
    }
}

/// Whether a unit has stored its identity or other state in `directory`. If the configuration sets
/// `uuid`, the directory itself is the identity: it is created after the disk is durable.
///
/// # Errors
/// Fails if the directory cannot be examined, or others may change it.
pub fn is_kept(directory: &Path, uuid: Option<Uuid>) -> Result<bool, Failure> {
    let is_kept = || match StateDirectory::open(directory)? {
        Some(kept) => Ok(uuid.is_some() || !kept.is_empty()?),
        None => Ok(false),
    };
    is_kept().map_err(|error| cannot_keep(directory, &error))
}

/// Opens a unit's directory with the state of earlier runs, or creates it durably.
///
/// # Errors
/// Fails if that is not possible, or others may change the directory.
pub fn create_directory(directory: &Path) -> Result<StateDirectory, Failure> {
    StateDirectory::create(directory).map_err(|error| cannot_keep(directory, &error))
}

fn cannot_keep(directory: &Path, error: &std::io::Error) -> Failure {
    let cannot = format!("cannot store the identity of the unit in {}", directory.display());
    match UntrustedFile::of(error) {
        Some(UntrustedFile { what, remedy }) => {
            Failure::new(format!("{cannot}: {what}")).hint(remedy.as_str())
        }
        None => Failure::new(format!("{cannot}: {error}"))
            .hint("give a writable --state DIR (in a configuration: state = \"DIR\")"),
    }
}

fn read(directory: &StateDirectory) -> Result<Option<Uuid>, Failure> {
    let text = directory.read(UUID_FILE, UUID_BYTES_MAX);
    let text = text.map_err(|error| cannot_keep(directory.path(), &error))?;
    let Some(text) = text else { return Ok(None) };
    match Uuid::parse_str(String::from_utf8_lossy(&text).trim()) {
        Ok(uuid) if !uuid.is_nil() => Ok(Some(uuid)),
        _ => {
            let path = directory.path().join(UUID_FILE);
            Err(Failure::new(format!("{} does not contain a UUID", path.display())).hint(
                "restore the file: initiators identify the disk by it. Without it they see a new \
                 disk",
            ))
        }
    }
}

/// The absolute path without symbolic links. The file may be missing, its directory must exist.
fn canonical(file: &Path) -> Result<PathBuf, Failure> {
    resolve_path(file).map_err(|error| match UntrustedFile::of(&error) {
        Some(UntrustedFile { what, remedy }) => {
            Failure::new(format!("cannot open {}: {what}", file.display())).hint(remedy.as_str())
        }
        None => Failure::new(format!("cannot find {}: {error}", file.display()))
            .hint(hint_of(error.kind())),
    })
}

/// Returns what to do about a path whose directory cannot be opened.
fn hint_of(kind: std::io::ErrorKind) -> &'static str {
    match kind {
        std::io::ErrorKind::PermissionDenied => {
            "this user may not search a directory of the path: change its permissions, or use \
             another directory"
        }
        _ => "the directory of a new file must exist: create it with mkdir -p",
    }
}

/// Percent-encodes all bytes but letters, digits, `.`, `_` and `-`.
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
    use std::fs;

    fn scratch(name: &str) -> PathBuf {
        let path =
            std::env::temp_dir().join(format!("lunar-identity-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap();
        path
    }

    fn load(directory: &Path) -> Result<Uuid, Failure> {
        load_or_create(&create_directory(directory)?)
    }

    /// Goal: a directory without permission is not reported as missing.
    #[test]
    fn hints_fit_the_cause() {
        let base = scratch("hints");
        let failure = canonical(&base.join("none/disk.img")).unwrap_err();
        fs::remove_dir_all(base).unwrap();
        assert!(failure.hint.unwrap().contains("mkdir"));
        let denied = hint_of(std::io::ErrorKind::PermissionDenied);
        assert!(denied.contains("permissions") && !denied.contains("mkdir"));
    }

    /// Goal: a unit keeps its identity, and its directory holds only the uuid file.
    #[test]
    fn an_identity_is_created_once_and_kept() {
        let base = scratch("kept");
        let unit = base.join("a/b");
        let first = load(&unit).unwrap();
        assert_eq!(load(&unit).unwrap(), first);
        assert_ne!(load(&base.join("other")).unwrap(), first);
        let left: Vec<_> = fs::read_dir(&unit).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert_eq!(left, [UUID_FILE]);
        fs::write(unit.join(UUID_FILE), "nonsense").unwrap();
        assert!(load(&unit).is_err(), "a damaged identity is never replaced silently");
        fs::remove_dir_all(base).unwrap();
    }

    /// Goal: processes that start at once agree on one identity.
    #[test]
    fn concurrent_processes_load_one_identity() {
        let base = scratch("race");
        let uuids: Vec<Uuid> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..16).map(|_| scope.spawn(|| load(&base).unwrap())).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert!(uuids.iter().all(|uuid| *uuid == uuids[0]));
        assert_eq!(fs::read_dir(&base).unwrap().count(), 1);
        fs::remove_dir_all(base).unwrap();
    }

    /// Goal: the directory depends on the file alone, not on the name or the order of use.
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

    /// Goal: an identity is neither read nor written through a file or directory that another user
    /// has put in its place, and the error names a remedy; a directory that is this user's own link
    /// is used.
    #[test]
    fn identities_planted_by_others_are_refused() {
        use std::os::unix::fs::{PermissionsExt, chown, symlink};
        let base = scratch("planted");
        let (unit, victim) = (base.join("disk.img.lunar"), base.join("victim"));
        let precious = format!("{}\n", Uuid::from_u128(1));
        fs::write(&victim, &precious).unwrap();
        let refused = |words: &str| {
            let failure = load(&unit).unwrap_err();
            assert!(failure.what.contains(words) && failure.hint.is_some(), "{failure}");
            assert_eq!(fs::read_to_string(&victim).unwrap(), precious);
        };
        let uuid = unit.join(UUID_FILE);
        create_directory(&unit).unwrap();
        symlink(&victim, &uuid).unwrap();
        refused("uuid is a symbolic link, not a regular file");
        fs::remove_file(&uuid).unwrap();
        symlink(base.join("dangling"), &uuid).unwrap();
        refused("uuid is a symbolic link, not a regular file");
        assert!(!base.join("dangling").exists());
        fs::remove_file(&uuid).unwrap();
        fs::hard_link(&victim, &uuid).unwrap();
        refused("uuid has 2 hard links");
        fs::remove_file(&uuid).unwrap();
        let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
        rustix::fs::mkfifoat(rustix::fs::CWD, &uuid, mode).unwrap();
        refused("uuid is a pipe, not a regular file");
        fs::remove_file(&uuid).unwrap();
        fs::write(&uuid, &precious).unwrap();
        match chown(&uuid, Some(65534), None) {
            Ok(()) => refused("uuid belongs to uid 65534"),
            Err(error) => println!("skipped: a file of another user ({error})"),
        }
        fs::remove_file(&uuid).unwrap();
        let real = base.join("real");
        fs::rename(&unit, &real).unwrap();
        symlink(&real, &unit).unwrap();
        let first = load(&unit).unwrap();
        assert_eq!(load(&real).unwrap(), first);
        fs::set_permissions(&real, PermissionsExt::from_mode(0o777)).unwrap();
        refused("everybody can write to the directory");
        assert!(is_kept(&unit, None).is_err());
        fs::remove_dir_all(base).unwrap();
    }
}
