//! A lock on a directory of sockets that only one user's processes can take.

use lunar_block::UntrustedFile;
use rustix::fs::{AtFlags, FlockOperation, Mode, OFlags, flock, openat, unlinkat};
use rustix::io::Errno;
use std::fs::{File, Metadata};
use std::io::{Error, ErrorKind};
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant};

/// Maximum wait for another process that starts in the same directory.
const LOCK_TIME: Duration = Duration::from_secs(5);
const LOCK_POLL: Duration = Duration::from_millis(20);
/// The mode bits of group and others: users who may open the file may lock it.
const OPEN_TO_OTHERS: u32 = 0o077;

/// Lock held while a process finds and replaces sockets without a listener.
///
/// The lock is on a file of its own that only its owner can open, as any user with read permission
/// can lock the directory itself. The file exists while the lock is held or awaited.
#[derive(Debug)]
pub(super) struct DirectoryLock<'d> {
    directory: &'d File,
    name: String,
    /// The file, locked until it is closed.
    _file: File,
}

impl<'d> DirectoryLock<'d> {
    /// Takes the lock; waits for other processes of this user, up to [`LOCK_TIME`].
    ///
    /// # Errors
    /// [`UntrustedFile`] if something else has the name of the lock file; `TimedOut`; any other
    /// error of the system.
    pub(super) fn take(directory: &'d File) -> Result<Self, Error> {
        let name = format!(".lunar-{}.lock", rustix::process::geteuid().as_raw());
        let until = Instant::now() + LOCK_TIME;
        loop {
            let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::NONBLOCK;
            let mode = Mode::RUSR | Mode::WUSR;
            let file = openat(directory, &name, flags | OFlags::CLOEXEC | OFlags::NOCTTY, mode);
            let file: File = file.map_err(|error| refused(&name, error))?.into();
            check(&name, &file.metadata()?)?;
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                // The previous holder has removed the file: the name may belong to another file
                // now.
                Ok(()) if file.metadata()?.nlink() == 0 => continue,
                Ok(()) => return Ok(Self { directory, name, _file: file }),
                Err(Errno::WOULDBLOCK) if Instant::now() < until => std::thread::sleep(LOCK_POLL),
                Err(Errno::WOULDBLOCK) => {
                    let what = "another process that is starting in this directory holds its lock";
                    return Err(Error::new(ErrorKind::TimedOut, what));
                }
                Err(error) => return Err(error.into()),
            }
        }
    }
}

impl Drop for DirectoryLock<'_> {
    fn drop(&mut self) {
        // A file that remains can be used by the next process.
        let _ = unlinkat(self.directory, &self.name, AtFlags::empty());
    }
}

/// Checks that no other user can open the file by any name.
fn check(name: &str, file: &Metadata) -> Result<(), Error> {
    let is_own = file.uid() == rustix::process::geteuid().as_raw();
    if file.is_file() && is_own && file.mode() & OPEN_TO_OTHERS == 0 && file.nlink() <= 1 {
        return Ok(());
    }
    Err(not_ours(name))
}

fn refused(name: &str, error: Errno) -> Error {
    match error {
        // A symbolic link, a directory, a socket, or a file of another user.
        Errno::LOOP | Errno::ISDIR | Errno::NXIO | Errno::ACCESS => not_ours(name),
        error => error.into(),
    }
}

fn not_ours(name: &str) -> Error {
    let what = format!("{name} is not a private file of this user, or cannot be created");
    UntrustedFile { what, remedy: "remove it if it exists".to_owned() }.into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};

    /// Goal: the lock belongs to one user, is held by one process at a time, and leaves no file; a
    /// file that others can open or have put in its place is refused and left unchanged.
    #[test]
    fn only_the_owner_may_lock() {
        let scratch = std::env::temp_dir().join(format!("lunar-lock-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&scratch);
        std::fs::create_dir(&scratch).unwrap();
        let directory = File::open(&scratch).unwrap();
        let lock = DirectoryLock::take(&directory).unwrap();
        let path = scratch.join(&lock.name);
        assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o7777, 0o600);
        let second = File::open(&path).unwrap();
        assert!(second.try_lock().is_err());
        // A waiting process locks a file that has the name, even if the first file was removed.
        std::thread::scope(|scope| {
            let next = scope.spawn(|| DirectoryLock::take(&directory).map(drop));
            drop(lock);
            next.join().unwrap().unwrap();
        });
        assert!(!path.exists());
        std::fs::write(&path, "").unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o604)).unwrap();
        let is_refused = || {
            let error = DirectoryLock::take(&directory).unwrap_err();
            assert!(UntrustedFile::of(&error).is_some(), "{error}");
            assert!(path.is_symlink() || path.exists());
        };
        is_refused();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).unwrap();
        std::fs::hard_link(&path, scratch.join("other")).unwrap();
        is_refused();
        std::fs::remove_file(&path).unwrap();
        symlink("other", &path).unwrap();
        is_refused();
        std::fs::remove_file(&path).unwrap();
        std::fs::create_dir(&path).unwrap();
        is_refused();
        std::fs::remove_dir_all(&scratch).unwrap();
    }
}
