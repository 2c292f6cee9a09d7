//! A unix socket in the file system that only its owner can connect to, replace or remove.

use super::address;
use super::directory_lock::DirectoryLock;
use crate::Failure;
use lunar_block::{SharedFolder, UntrustedFile, create_folder};
use rustix::fs::{AtFlags, Mode, OFlags, fchmod, fstat, statat, unlinkat};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

/// Maximum number of connections that wait to be accepted.
const BACKLOG: i32 = 64;
/// Maximum number of attempts to replace a socket while other servers start or end.
const ATTEMPTS_MAX: usize = 3;
/// Maximum number of directory entries that are examined.
const ENTRIES_MAX: usize = 10_000;

/// A socket file, removed when dropped, unless the path leads to another file by then.
///
/// The file is dropped before its listener: no process replaces a live socket, so that its removal
/// requires no lock.
#[derive(Debug)]
pub struct SocketFile {
    path: PathBuf,
    device: u64,
    inode: u64,
    directory: File,
    /// The file, independent of its current name.
    file: OwnedFd,
}

impl SocketFile {
    /// The path at which it was created.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Whether the file has no name any more, as it or its directory was removed. A file that was
    /// moved still has one.
    pub(super) fn is_gone(&self) -> bool {
        fstat(&self.file).is_ok_and(|file| file.st_nlink == 0)
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if self.is_gone() {
            return;
        }
        let Some(name) = self.path.file_name() else { return };
        let found = statat(&self.directory, name, AtFlags::SYMLINK_NOFOLLOW);
        if found.is_ok_and(|found| (found.st_dev, found.st_ino) == (self.device, self.inode)) {
            // A socket file that remains is replaced at the next start.
            let _ = unlinkat(&self.directory, name, AtFlags::empty());
        }
    }
}

/// Listens at `path`. Replaces a socket without a listener, but not a live one.
///
/// # Errors
/// Fails if the path has a live server or is no socket, or if others may write to its directory.
pub(super) fn listen(path: &Path) -> Result<(UnixListener, SocketFile), Failure> {
    let path = std::path::absolute(path)
        .map_err(|error| Failure::new(format!("cannot use unix:{}: {error}", path.display())))?;
    let directory = path.parent().unwrap_or(Path::new("/"));
    // Two processes that start at once must not both replace the socket left by a third.
    let opened = make_directory(directory)?;
    let lock =
        DirectoryLock::take(&opened).map_err(|error| directory_failure(directory, &error))?;
    remove_stale(&path)?;
    sweep(directory);
    let failed = |error: Errno| {
        let text = std::io::Error::from(error);
        Failure::new(format!("cannot listen on unix:{}: {text}", path.display()))
            .hint("choose a socket in your own directory with --api unix:PATH, or use --api none")
    };
    let socket = unix_socket().map_err(failed)?;
    let address = socket_address(&path)?;
    // `bind` creates the file with the mode of the socket, so that no path is followed to set the
    // mode.
    fchmod(&socket, Mode::RUSR | Mode::WUSR).map_err(failed)?;
    rustix::net::bind(&socket, &address).map_err(failed)?;
    let Some((device, inode)) = identity(&path) else {
        return Err(failed(Errno::NOENT));
    };
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = rustix::fs::open(&path, flags, Mode::empty()).map_err(failed)?;
    rustix::net::listen(&socket, BACKLOG).map_err(failed)?;
    drop(lock);
    let file = SocketFile { path: path.clone(), device, inode, directory: opened, file };
    Ok((UnixListener::from(socket), file))
}

/// Listens again at `path`, whose socket was removed, perhaps together with its directory.
///
/// # Errors
/// Same as [`listen`]; also fails if the parent of the directory is gone.
pub(super) fn listen_again(path: &Path) -> Result<(UnixListener, SocketFile), Failure> {
    // A removed directory tree is not recreated.
    if !path.parent().and_then(Path::parent).is_some_and(Path::is_dir) {
        return Err(Failure::new(format!("the directory of unix:{} was removed", path.display())));
    }
    listen(path)
}

fn unix_socket() -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
}

fn socket_address(path: &Path) -> Result<SocketAddrUnix, Failure> {
    SocketAddrUnix::new(path).map_err(|_| {
        Failure::new(format!("the path unix:{} is too long for a socket", path.display()))
            .hint("choose a shorter path (at most 107 bytes) with --api unix:PATH")
    })
}

/// Whether a server listens on the socket `path`, without waiting.
///
/// # Errors
/// Fails if this process may not connect to it, or there is no such socket.
pub(crate) fn is_live(path: &Path) -> std::io::Result<bool> {
    let address = SocketAddrUnix::new(path)?;
    match rustix::net::connect(unix_socket()?, &address) {
        // A full queue means that the server is live.
        Ok(()) | Err(Errno::AGAIN) => Ok(true),
        Err(Errno::CONNREFUSED) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

fn remove_stale(path: &Path) -> Result<(), Failure> {
    for _ in 0..ATTEMPTS_MAX {
        let metadata = match std::fs::symlink_metadata(path) {
            Ok(metadata) => metadata,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
            Err(error) => {
                return Err(Failure::new(format!("cannot use unix:{}: {error}", path.display())));
            }
        };
        if !metadata.file_type().is_socket() {
            let what = format!("{} exists and is not a socket", path.display());
            return Err(Failure::new(what).hint("choose another path with --api unix:PATH"));
        }
        match is_live(path) {
            Ok(false) => std::fs::remove_file(path).map_err(|error| {
                Failure::new(format!("cannot replace the old socket {}: {error}", path.display()))
            })?,
            Ok(true) => {
                let what = format!("another server is listening on unix:{}", path.display());
                return Err(
                    Failure::new(what).hint("stop it, or choose another path with --api unix:PATH")
                );
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => {
                let what = format!("unix:{} is in use by another user: {error}", path.display());
                return Err(Failure::new(what).hint("choose another path with --api unix:PATH"));
            }
        }
    }
    Ok(())
}

/// Removes sockets of killed servers with per-process names, as no later server would replace them.
/// `directory` is locked.
fn sweep(directory: &Path) {
    let Ok(entries) = std::fs::read_dir(directory) else { return };
    for path in entries.take(ENTRIES_MAX).flatten().map(|entry| entry.path()) {
        let is_socket = path.symlink_metadata().is_ok_and(|data| data.file_type().is_socket());
        if is_socket && address::is_process_socket(&path) && is_live(&path).is_ok_and(|live| !live)
        {
            let _ = std::fs::remove_file(&path); // a socket that remains does no harm
        }
    }
}

/// Creates the directory if it is missing, for its owner alone, and checks that no other user can
/// replace the socket.
fn make_directory(directory: &Path) -> Result<File, Failure> {
    // In a sticky directory, users can remove their own files only.
    create_folder(directory, SharedFolder::AllowedIfSticky)
        .map_err(|error| directory_failure(directory, &error))
}

fn directory_failure(directory: &Path, error: &std::io::Error) -> Failure {
    let hint = "choose a socket in your own directory with --api unix:PATH";
    match UntrustedFile::of(error) {
        Some(UntrustedFile { what, remedy }) => {
            Failure::new(format!("cannot create the API socket: {what}"))
                .hint(format!("{remedy}, or {hint}"))
        }
        None => {
            let directory = directory.display();
            Failure::new(format!(
                "cannot create the directory {directory} of the API socket: {error}"
            ))
            .hint(format!("{hint}, or use --api none"))
        }
    }
}

/// Device and inode of the file at a path, without following a symbolic link.
fn identity(path: &Path) -> Option<(u64, u64)> {
    let metadata = std::fs::symlink_metadata(path).ok()?;
    Some((metadata.dev(), metadata.ino()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    struct Scratch(PathBuf);

    impl Scratch {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("lunar-{}-{name}", std::process::id()));
            let _ = std::fs::remove_dir_all(&path);
            std::fs::create_dir_all(&path).unwrap();
            Self(path)
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    /// Goal: only the owner may connect, the directory belongs to the owner alone, and nothing
    /// remains.
    #[test]
    fn a_socket_belongs_to_its_owner_and_is_removed_at_the_end() {
        let scratch = Scratch::new("owner");
        let path = scratch.0.join("new/deep/api.sock");
        let (listener, file) = listen(&path).unwrap();
        assert_eq!(path.metadata().unwrap().mode() & 0o777, 0o600);
        assert_eq!(path.parent().unwrap().metadata().unwrap().mode() & 0o777, 0o700);
        assert!(is_live(&path).unwrap());
        drop((listener, file));
        assert!(!path.exists());
    }

    /// Goal: a socket that was removed with its directory is detected and recreated under the same
    /// rules; a moved one does not count as removed; removed directory trees are not recreated.
    #[test]
    fn a_removed_socket_is_created_again() {
        let scratch = Scratch::new("again");
        let (directory, moved) = (scratch.0.join("disk.lunar"), scratch.0.join("moved.lunar"));
        let path = directory.join("api.sock");
        let (_listener, file) = listen(&path).unwrap();
        assert!(!file.is_gone());
        std::fs::rename(&directory, &moved).unwrap();
        assert!(!file.is_gone() && is_live(&moved.join("api.sock")).unwrap());
        std::fs::remove_dir_all(&moved).unwrap();
        assert!(file.is_gone());
        let again = listen_again(file.path()).unwrap();
        drop(file);
        assert!(is_live(&path).unwrap(), "the old one took nothing away");
        assert_eq!(path.metadata().unwrap().mode() & 0o777, 0o600);
        assert_eq!(directory.metadata().unwrap().mode() & 0o777, 0o700);
        drop(again);
        assert!(listen_again(&scratch.0.join("no/such/api.sock")).is_err());
        assert!(!scratch.0.join("no").exists());
    }

    /// Goal: a socket left by a killed server is replaced, that of a live server never.
    #[test]
    fn a_stale_socket_is_replaced_and_a_live_one_is_not() {
        let scratch = Scratch::new("stale");
        let path = scratch.0.join("api.sock");
        drop(UnixListener::bind(&path).unwrap());
        assert!(!is_live(&path).unwrap());
        let first = listen(&path).unwrap();
        let refused = listen(&path).unwrap_err();
        assert!(refused.what.contains("another server"), "{refused}");
        assert!(refused.hint.is_some());
        assert!(is_live(&path).unwrap(), "the refused one took nothing away");
        // Another process has moved our socket and put its own there, which must not be removed.
        std::fs::remove_file(&path).unwrap();
        let theirs = UnixListener::bind(&path).unwrap();
        drop(first);
        assert!(path.exists());
        drop(theirs);
        // Sockets with names of processes that are gone are removed, others are not.
        let (left, other) = (scratch.0.join("serve-1.sock"), scratch.0.join("a.sock"));
        drop((UnixListener::bind(&left).unwrap(), UnixListener::bind(&other).unwrap()));
        let alive = scratch.0.join("serve-2.sock");
        let _alive = UnixListener::bind(&alive).unwrap();
        drop(listen(&path).unwrap());
        assert_eq!([&left, &other, &alive].map(|path| path.exists()), [false, true, true]);
    }

    /// Fault: any user who could read the directory could lock it, so that a start failed or a stop
    /// waited for seconds. Now neither requires a lock that others can take, and the directory
    /// contains only the socket meanwhile.
    #[test]
    fn a_lock_on_the_directory_blocks_no_server() {
        let scratch = Scratch::new("locked");
        let directory = File::open(&scratch.0).unwrap();
        directory.lock().unwrap();
        let path = scratch.0.join("api.sock");
        let (listener, file) = listen(&path).unwrap();
        let names: Vec<_> = std::fs::read_dir(&scratch.0).unwrap().flatten().collect();
        assert!(names.len() == 1 && names[0].path() == path, "{names:?}");
        let dropped = std::thread::spawn(move || drop((file, listener)));
        dropped.join().unwrap();
        assert!(!path.exists());
    }

    /// Goal: of many processes that start at once on one stale socket, exactly one gets it.
    #[test]
    fn exactly_one_of_many_servers_gets_the_socket() {
        let scratch = Scratch::new("many");
        let path = scratch.0.join("api.sock");
        drop(UnixListener::bind(&path).unwrap());
        let threads: Vec<_> = (0..8)
            .map(|_| {
                let path = path.clone();
                std::thread::spawn(move || listen(&path))
            })
            .collect();
        let started: Vec<_> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
        assert_eq!(started.iter().filter(|result| result.is_ok()).count(), 1);
        assert!(is_live(&path).unwrap());
    }

    #[test]
    fn other_files_and_open_directories_are_refused() {
        let scratch = Scratch::new("refused");
        let file = scratch.0.join("file");
        std::fs::write(&file, "precious").unwrap();
        assert!(listen(&file).unwrap_err().what.contains("is not a socket"));
        assert_eq!(std::fs::read(&file).unwrap(), b"precious");
        let open = scratch.0.join("open");
        std::fs::create_dir(&open).unwrap();
        std::fs::set_permissions(&open, PermissionsExt::from_mode(0o777)).unwrap();
        assert!(listen(&open.join("a")).unwrap_err().what.contains("everybody"));
        std::fs::set_permissions(&open, PermissionsExt::from_mode(0o770)).unwrap();
        assert!(listen(&open.join("a")).unwrap_err().what.contains("the group"));
        std::fs::set_permissions(&open, PermissionsExt::from_mode(0o1777)).unwrap();
        assert!(listen(&open.join("a")).is_ok());
        let long = scratch.0.join("x".repeat(120));
        assert!(listen(&long).unwrap_err().what.contains("too long"));
    }
}
