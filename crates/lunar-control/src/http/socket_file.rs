//! A socket in the file system: nobody else's, nobody else may connect, none left behind.

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

/// Connections that wait until they are accepted.
const BACKLOG: i32 = 64;
/// How often a server that is just starting or ending is looked at again.
const RIVALS_MAX: usize = 3;
/// Entries of a directory that are looked at.
const ENTRIES_MAX: usize = 10_000;

/// A socket that is there; taken away when dropped, unless somebody else has put another there.
///
/// It is dropped before its listener: a socket that lives is replaced by nobody, so that no lock is
/// needed to take it away.
#[derive(Debug)]
pub struct SocketFile {
    path: PathBuf,
    device: u64,
    inode: u64,
    directory: File,
    /// The file, whatever its name is now.
    file: OwnedFd,
}

impl SocketFile {
    /// Where it was made.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Whether no name leads to it any more, be it its own or its directory's that was removed. One
    /// that was moved is still there for those who know where.
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
            // A new start takes one that stays for what it is.
            let _ = unlinkat(&self.directory, name, AtFlags::empty());
        }
    }
}

/// Listens at `path`. A socket that nobody listens on any more is replaced, a live one is not.
///
/// # Errors
/// A live server there, something that is no socket, a directory that others may write to.
pub(super) fn listen(path: &Path) -> Result<(UnixListener, SocketFile), Failure> {
    let path = std::path::absolute(path)
        .map_err(|error| Failure::new(format!("unix:{}: {error}", path.display())))?;
    let directory = path.parent().unwrap_or(Path::new("/"));
    // Two that start at once must not both replace what a third has left.
    let opened = make_directory(directory)?;
    let lock = DirectoryLock::take(&opened).map_err(|error| no_place(directory, &error))?;
    remove_stale(&path)?;
    sweep(directory);
    let failed = |error: Errno| {
        let text = std::io::Error::from(error);
        Failure::new(format!("cannot listen on unix:{}: {text}", path.display()))
            .hint("name a socket in a directory of yours: --api unix:PATH, or none")
    };
    let socket = unix_socket().map_err(failed)?;
    let address = socket_address(&path)?;
    // The file that bind makes has the mode of the socket: no name is followed to set it.
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

/// Listens again at `path`, whose socket was removed, its directory perhaps as well.
///
/// # Errors
/// As [`listen`]; where the place of its directory is gone too.
pub(super) fn listen_again(path: &Path) -> Result<(UnixListener, SocketFile), Failure> {
    // A whole tree that was removed is not wanted back.
    if !path.parent().and_then(Path::parent).is_some_and(Path::is_dir) {
        return Err(Failure::new(format!("the directory of unix:{} is gone", path.display())));
    }
    listen(path)
}

fn unix_socket() -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
}

fn socket_address(path: &Path) -> Result<SocketAddrUnix, Failure> {
    SocketAddrUnix::new(path).map_err(|_| {
        Failure::new(format!("unix:{} is too long for a socket", path.display()))
            .hint("name a shorter path (at most 107 bytes): --api unix:PATH")
    })
}

/// Whether somebody listens on the socket `path`, without waiting.
///
/// # Errors
/// That one may not connect to it, or that there is no such socket.
pub(crate) fn is_live(path: &Path) -> std::io::Result<bool> {
    let address = SocketAddrUnix::new(path)?;
    match rustix::net::connect(unix_socket()?, &address) {
        // Its queue is full: it lives.
        Ok(()) | Err(Errno::AGAIN) => Ok(true),
        Err(Errno::CONNREFUSED) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

fn remove_stale(path: &Path) -> Result<(), Failure> {
    for _ in 0..RIVALS_MAX {
        let metadata = match std::fs::symlink_metadata(path) {
            Ok(metadata) => metadata,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(Failure::new(format!("unix:{}: {error}", path.display()))),
        };
        if !metadata.file_type().is_socket() {
            let what = format!("{} is there, and is no socket", path.display());
            return Err(Failure::new(what).hint("name another path: --api unix:PATH"));
        }
        match is_live(path) {
            Ok(false) => std::fs::remove_file(path).map_err(|error| {
                Failure::new(format!("cannot replace the old socket {}: {error}", path.display()))
            })?,
            Ok(true) => {
                let what = format!("another server listens on unix:{}", path.display());
                return Err(
                    Failure::new(what).hint("stop it, or name another path: --api unix:PATH")
                );
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => {
                let what = format!("unix:{} is somebody else's: {error}", path.display());
                return Err(Failure::new(what).hint("name another path: --api unix:PATH"));
            }
        }
    }
    Ok(())
}

/// Removes what killed servers have left that had names of their own: nobody would come to replace
/// it. `directory` is locked.
fn sweep(directory: &Path) {
    let Ok(entries) = std::fs::read_dir(directory) else { return };
    for path in entries.take(ENTRIES_MAX).flatten().map(|entry| entry.path()) {
        let is_socket = path.symlink_metadata().is_ok_and(|data| data.file_type().is_socket());
        if is_socket && address::is_of_process(&path) && is_live(&path).is_ok_and(|live| !live) {
            let _ = std::fs::remove_file(&path); // it disturbs nobody
        }
    }
}

/// Makes the directory where it is missing, for its owner alone, and checks that nobody else can
/// put a socket of theirs in the place of ours.
fn make_directory(directory: &Path) -> Result<File, Failure> {
    // In a sticky directory each may take away their own files only.
    create_folder(directory, SharedFolder::AllowedIfSticky)
        .map_err(|error| no_place(directory, &error))
}

fn no_place(directory: &Path, error: &std::io::Error) -> Failure {
    let hint = "name a socket in a directory of yours: --api unix:PATH";
    match UntrustedFile::of(error) {
        Some(UntrustedFile { what, remedy }) => {
            Failure::new(format!("no place for the API's socket: {what}"))
                .hint(format!("{remedy}, or {hint}"))
        }
        None => {
            let directory = directory.display();
            Failure::new(format!("no directory {directory} for the API's socket: {error}"))
                .hint(format!("{hint}, or none"))
        }
    }
}

/// What a path leads to: another file, another identity.
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

    /// Goal: only the owner may connect, the directory is the owner's alone, and nothing is left.
    #[test]
    fn a_socket_is_its_owners_and_goes_with_it() {
        let scratch = Scratch::new("owner");
        let path = scratch.0.join("new/deep/api.sock");
        let (listener, file) = listen(&path).unwrap();
        assert_eq!(path.metadata().unwrap().mode() & 0o777, 0o600);
        assert_eq!(path.parent().unwrap().metadata().unwrap().mode() & 0o777, 0o700);
        assert!(is_live(&path).unwrap());
        drop((listener, file));
        assert!(!path.exists());
    }

    /// Goal: a socket that was removed with its directory is known to be gone, and made again under
    /// the same rules; one that was moved is not gone; trees that were removed stay so.
    #[test]
    fn a_socket_that_was_removed_is_made_again() {
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

    /// Goal: what a killed server left is replaced, a live one's socket never.
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
        // Somebody moved ours and put theirs there: it is not ours to take away.
        std::fs::remove_file(&path).unwrap();
        let theirs = UnixListener::bind(&path).unwrap();
        drop(first);
        assert!(path.exists());
        drop(theirs);
        // Names of processes that are gone are swept, others are not.
        let (left, other) = (scratch.0.join("serve-1.sock"), scratch.0.join("a.sock"));
        drop((UnixListener::bind(&left).unwrap(), UnixListener::bind(&other).unwrap()));
        let alive = scratch.0.join("serve-2.sock");
        let _alive = UnixListener::bind(&alive).unwrap();
        drop(listen(&path).unwrap());
        assert_eq!([&left, &other, &alive].map(|path| path.exists()), [false, true, true]);
    }

    /// Fault: whoever could read the directory could lock it, and a start failed or a stop waited
    /// for seconds. Now neither needs a lock that others can take, and nothing but the socket is
    /// there meanwhile.
    #[test]
    fn a_lock_on_the_directory_stops_nobody() {
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

    /// Goal: of many that start at once on one stale socket, exactly one gets it.
    #[test]
    fn one_of_many_wins() {
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
        assert!(listen(&file).unwrap_err().what.contains("no socket"));
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
