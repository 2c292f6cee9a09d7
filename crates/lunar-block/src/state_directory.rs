//! A folder for state that outlives a server: opened by descriptor, and durable.

use crate::durable;
use crate::path_lookup::FolderEntry;
use crate::trusted::{self, SharedFolder, check_file, open_o_path};
use rustix::fs::{AtFlags, Dir, FlockOperation, Mode, OFlags, RenameFlags};
use rustix::fs::{flock, linkat, openat, renameat, renameat_with, unlinkat};
use rustix::io::Errno;
use std::fs::{File, Metadata};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The mode of new files: only the owner may read them.
const FILE_MODE: u32 = 0o600;

/// An open folder that only this user and root can change.
///
/// * All files are reached from the folder's descriptor: renaming or replacing the folder meanwhile
///   has no effect.
/// * Names are plain file names. Symbolic links are never followed. Only a regular file of this
///   user or root with one name (hard link) is read; any other file gives an
///   [`UntrustedFile`](crate::UntrustedFile) and is not opened.
/// * New files are created exclusively, and only their owner may read them.
#[derive(Debug)]
pub struct StateDirectory {
    path: PathBuf,
    folder: File,
    entry: FolderEntry,
}

/// A lock of a file in a [`StateDirectory`]; unlocked on drop, and when the process ends.
#[derive(Debug)]
pub struct StateLock(File);

impl Drop for StateLock {
    /// Unlocks before the file is closed: a process that was forked at this moment holds a
    /// duplicate of the descriptor until it runs its own program.
    fn drop(&mut self) {
        // If this fails, the close that follows unlocks.
        let _ = flock(&self.0, FlockOperation::Unlock);
    }
}

impl StateDirectory {
    /// Opens the folder; `None` if it does not exist. Symbolic links on the way and at the end are
    /// followed if this user or root made them.
    ///
    /// # Errors
    /// [`UntrustedFile`](crate::UntrustedFile) if others own the folder or a link, or may write to
    /// the folder; any other error of the system.
    pub fn open(path: &Path) -> io::Result<Option<Self>> {
        FolderEntry::find(path, None)?.map(|entry| Self::of(path, entry)).transpose()
    }

    fn of(path: &Path, entry: FolderEntry) -> io::Result<Self> {
        let folder = trusted::open_entry(&entry, SharedFolder::Refused)?;
        Ok(Self { path: path.to_owned(), folder, entry })
    }

    /// Opens the folder, creating it and its missing parents. The folder and every name in it are
    /// durable when this returns.
    ///
    /// A folder that exists already need not be durable: its creator may have been killed before a
    /// sync, or may not sync at all (a socket needs a folder, too). The folders up to the root are
    /// therefore synced each time.
    ///
    /// # Errors
    /// The errors of [`open`](Self::open); the folder cannot be created or synced. A folder that
    /// this call has created is then removed.
    pub fn create(path: &Path) -> io::Result<Self> {
        if let Some(there) = Self::open(path)? {
            durable::sync_folder_and_parents(&there.folder)?;
            return Ok(there);
        }
        // The umask can only reduce this mode.
        let entry = FolderEntry::find(path, Some(trusted::FOLDER_MODE))?;
        let made = Self::of(path, entry.ok_or(ErrorKind::NotFound)?)?;
        match durable::sync_folder_and_parents(&made.folder) {
            Ok(()) => Ok(made),
            Err(error) => {
                // A failure to remove the folder must not hide the first error.
                let _ = made.entry.remove();
                Err(error)
            }
        }
    }

    /// Returns the path by which the folder was opened.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns true when any kind of file has this name.
    ///
    /// # Errors
    /// The name cannot be looked up.
    pub fn has(&self, name: &str) -> io::Result<bool> {
        self.metadata(name).map(|found| found.is_some())
    }

    /// Returns true when the folder is empty.
    ///
    /// # Errors
    /// The folder cannot be listed.
    pub fn is_empty(&self) -> io::Result<bool> {
        Ok(self.names()?.is_empty())
    }

    /// Returns the content of a file of at most `bytes_max` bytes; `None` if it does not exist.
    ///
    /// # Errors
    /// [`UntrustedFile`](crate::UntrustedFile), `InvalidData` if the file is longer, any other
    /// error of the system.
    pub fn read(&self, name: &str, bytes_max: u64) -> io::Result<Option<Vec<u8>>> {
        let Some(file) = self.open_file(name)? else { return Ok(None) };
        let mut bytes = Vec::new();
        file.take(bytes_max.saturating_add(1)).read_to_end(&mut bytes)?;
        if bytes.len() as u64 > bytes_max {
            let what = format!("{name} is longer than the maximum of {bytes_max} bytes");
            return Err(io::Error::new(ErrorKind::InvalidData, what));
        }
        Ok(Some(bytes))
    }

    /// Opens a file for reading; `None` if it does not exist.
    fn open_file(&self, name: &str) -> io::Result<Option<File>> {
        let Some(mut found) = self.metadata(name)? else { return Ok(None) };
        if found.nlink() > 1 {
            self.remove_asides(name, found.ino())?;
            found = self.metadata(name)?.ok_or(ErrorKind::NotFound)?;
        }
        // Checked before the open, because opening a device may have effects and opening a pipe may
        // block.
        check_file(name.as_ref(), &found)?;
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file: File = openat(&self.folder, name, flags, Mode::empty())?.into();
        // The file may have been replaced since the first check.
        check_file(name.as_ref(), &file.metadata()?)?;
        Ok(Some(file))
    }

    /// Sets the content of `name`; durable when this returns. If the call fails, the old content
    /// stays wherever possible: after the rename only the medium can fail.
    ///
    /// # Errors
    /// The errors of [`read`](Self::read) for a file left under `NAME.new`; the file cannot be
    /// written.
    pub fn save(&self, name: &str, bytes: &[u8]) -> io::Result<()> {
        plain(name)?;
        let (next, file) = trusted::create_next(&self.folder, name.as_ref(), FILE_MODE)?;
        write_durably(file, bytes)?;
        renameat(&self.folder, &next, &self.folder, name)?;
        self.folder.sync_all()
    }

    /// Gives `name` this content unless a file has the name already. The file with the name is
    /// durable when this returns. `aside` begins with `NAME.` and is used by this caller only.
    ///
    /// # Errors
    /// The file cannot be written; `aside` exists.
    pub fn save_first(&self, name: &str, aside: &str, bytes: &[u8]) -> io::Result<()> {
        plain(name).and(plain(aside))?;
        let file = trusted::create(&self.folder, aside.as_ref(), FILE_MODE)?;
        let named = write_durably(file, bytes).and_then(|()| self.name_first(aside, name));
        if named.is_err() {
            // The file is of no further use.
            let _ = unlinkat(&self.folder, aside, AtFlags::empty());
        }
        match named {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => Err(error),
            _ => self.folder.sync_all(),
        }
    }

    /// Renames without replacing a file; uses a hard link if the file system does not support that.
    fn name_first(&self, aside: &str, name: &str) -> io::Result<()> {
        let folder = &self.folder;
        match renameat_with(folder, aside, folder, name, RenameFlags::NOREPLACE) {
            Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => {
                linkat(folder, aside, folder, name, AtFlags::empty())?;
                Ok(unlinkat(folder, aside, AtFlags::empty())?)
            }
            renamed => Ok(renamed?),
        }
    }

    /// Creates `name` if it is missing, and makes the name durable. Durability of its content is
    /// not promised: the disk below may be unable to sync data.
    ///
    /// # Errors
    /// The file cannot be created, or its name cannot be made durable.
    pub fn save_name(&self, name: &str, bytes: &[u8]) -> io::Result<()> {
        plain(name)?;
        match trusted::create(&self.folder, name.as_ref(), FILE_MODE) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            created => created?.write_all(bytes)?,
        }
        self.folder.sync_all()
    }

    /// Locks a file of this folder until the lock is dropped. Returns `None` if another user of the
    /// folder, in this process or another one, holds the lock, or there is no such file. The file
    /// must never be replaced.
    ///
    /// # Errors
    /// [`UntrustedFile`](crate::UntrustedFile) as for [`read`](Self::read); the file system has no
    /// locks.
    pub fn lock(&self, name: &str) -> io::Result<Option<StateLock>> {
        let Some(file) = self.open_file(name)? else { return Ok(None) };
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Some(StateLock(file))),
            Err(Errno::WOULDBLOCK) => Ok(None),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Removes a name, unless a folder has it; durable when this returns, even if the name did not
    /// exist.
    ///
    /// # Errors
    /// The name cannot be removed.
    pub fn remove(&self, name: &str) -> io::Result<()> {
        plain(name)?;
        match unlinkat(&self.folder, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => self.folder.sync_all(),
            Err(error) => Err(error.into()),
        }
    }

    /// Removes the folder and its files.
    ///
    /// # Errors
    /// The folder contains a folder, or cannot be removed.
    pub fn discard(self) -> io::Result<()> {
        for name in self.names()? {
            unlinkat(&self.folder, name.as_str(), AtFlags::empty())?;
        }
        self.entry.remove()
    }

    fn metadata(&self, name: &str) -> io::Result<Option<Metadata>> {
        plain(name)?;
        open_o_path(&self.folder, name)?.map(|found| found.metadata()).transpose()
    }

    /// Removes further names of the file `inode`, which a killed [`save_first`](Self::save_first)
    /// has left.
    fn remove_asides(&self, name: &str, inode: u64) -> io::Result<()> {
        let prefix = format!("{name}.");
        for aside in self.names()?.iter().filter(|aside| aside.starts_with(&prefix)) {
            if self.metadata(aside)?.is_some_and(|found| found.ino() == inode) {
                unlinkat(&self.folder, aside.as_str(), AtFlags::empty())?;
            }
        }
        Ok(())
    }

    /// Returns the names in the folder. Names that are not UTF-8 are changed; names of state files
    /// are UTF-8.
    fn names(&self) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in Dir::read_from(&self.folder)? {
            let name = entry?.file_name().to_string_lossy().into_owned();
            if ![".", ".."].contains(&name.as_str()) {
                names.push(name);
            }
        }
        Ok(names)
    }
}

fn write_durably(mut file: File, bytes: &[u8]) -> io::Result<()> {
    file.write_all(bytes)?;
    file.sync_all()
}

/// Refuses a string that is not the name of a file in the folder itself.
fn plain(name: &str) -> io::Result<()> {
    if name.is_empty() || name.contains(['/', '\0']) || [".", ".."].contains(&name) {
        let what = format!("`{name}` is not a plain file name");
        return Err(io::Error::new(ErrorKind::InvalidInput, what));
    }
    Ok(())
}

#[cfg(test)]
mod tests;
