//! The folder that keeps what has to outlive a server: opened by descriptor, and durable.

use crate::durable;
use crate::path_lookup::FolderEntry;
use crate::trusted::{self, SharedFolder, check_file, look_at};
use rustix::fs::{AtFlags, Dir, Mode, OFlags, RenameFlags};
use rustix::fs::{linkat, openat, renameat, renameat_with, unlinkat};
use rustix::io::Errno;
use std::fs::{File, Metadata};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The mode of new files: what is kept there is its owner's business.
const FILE_MODE: u32 = 0o600;

/// A folder that nobody but this user and root can change, open.
///
/// * All files are reached from the folder's descriptor: renaming or replacing the folder meanwhile
///   leads nowhere else.
/// * Names are plain file names. Symbolic links are never followed. What is read is a regular file
///   of this user or root with one name (hard link); anything else gives an
///   [`UntrustedFile`](crate::UntrustedFile) and is not opened.
/// * New files are created exclusively, and only their owner may read them.
#[derive(Debug)]
pub struct StateDirectory {
    path: PathBuf,
    folder: File,
    entry: FolderEntry,
}

impl StateDirectory {
    /// Opens the folder; `None` if there is none. Symbolic links on the way and at the end are
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

    /// Opens the folder, and makes it and all above it that are missing; durable when this
    /// returns, as is every name that was in it.
    ///
    /// That the folder exists already does not make it durable: whoever made it may have been
    /// killed before that, or promises nothing (a socket needs a folder, too). So the way up is
    /// synced each time.
    ///
    /// # Errors
    /// As [`open`](Self::open); the folder cannot be made or synced. One that this has made is
    /// removed then.
    pub fn create(path: &Path) -> io::Result<Self> {
        if let Some(there) = Self::open(path)? {
            durable::keep_folder(&there.folder)?;
            return Ok(there);
        }
        // Whatever the umask, never more than that.
        let entry = FolderEntry::find(path, Some(trusted::FOLDER_MODE))?;
        let made = Self::of(path, entry.ok_or(ErrorKind::NotFound)?)?;
        match durable::keep_folder(&made.folder) {
            Ok(()) => Ok(made),
            Err(error) => {
                // That it cannot be removed either is no reason for another error.
                let _ = made.entry.remove();
                Err(error)
            }
        }
    }

    /// The path that the folder was opened by.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether anything has this name, whatever it is.
    ///
    /// # Errors
    /// It cannot be told.
    pub fn has(&self, name: &str) -> io::Result<bool> {
        self.look(name).map(|found| found.is_some())
    }

    /// Whether the folder holds nothing.
    ///
    /// # Errors
    /// It cannot be listed.
    pub fn is_empty(&self) -> io::Result<bool> {
        Ok(self.names()?.is_empty())
    }

    /// The content of a file of at most `bytes_max` bytes; `None` if there is none.
    ///
    /// # Errors
    /// [`UntrustedFile`](crate::UntrustedFile), `InvalidData` if it is longer, any other error of
    /// the system.
    pub fn read(&self, name: &str, bytes_max: u64) -> io::Result<Option<Vec<u8>>> {
        let Some(mut found) = self.look(name)? else { return Ok(None) };
        if found.nlink() > 1 {
            self.remove_asides(name, found.ino())?;
            found = self.look(name)?.ok_or(ErrorKind::NotFound)?;
        }
        // Before it is opened: to open a device may do something, to open a pipe may wait.
        check_file(name.as_ref(), &found)?;
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file: File = openat(&self.folder, name, flags, Mode::empty())?.into();
        // What was looked at may have been replaced since.
        check_file(name.as_ref(), &file.metadata()?)?;
        let mut bytes = Vec::new();
        file.take(bytes_max.saturating_add(1)).read_to_end(&mut bytes)?;
        if bytes.len() as u64 > bytes_max {
            let what = format!("{name} is longer than {bytes_max} bytes, which none ever is");
            return Err(io::Error::new(ErrorKind::InvalidData, what));
        }
        Ok(Some(bytes))
    }

    /// Replaces the content of `name`, or gives it its first; durable when this returns. When it
    /// fails, the old content stays as far as that is in our hands: after the rename only the
    /// medium can fail.
    ///
    /// # Errors
    /// As [`read`](Self::read) for what is left under `NAME.new`; it cannot be written.
    pub fn save(&self, name: &str, bytes: &[u8]) -> io::Result<()> {
        plain(name)?;
        let (next, file) = trusted::create_next(&self.folder, name.as_ref(), FILE_MODE)?;
        write_durably(file, bytes)?;
        renameat(&self.folder, &next, &self.folder, name)?;
        self.folder.sync_all()
    }

    /// Gives `name` this content unless anything has the name already; what has it then is durable
    /// when this returns. `aside` begins with `NAME.`; nobody else uses it.
    ///
    /// # Errors
    /// It cannot be written; `aside` is there.
    pub fn save_first(&self, name: &str, aside: &str, bytes: &[u8]) -> io::Result<()> {
        plain(name).and(plain(aside))?;
        let file = trusted::create(&self.folder, aside.as_ref(), FILE_MODE)?;
        let named = write_durably(file, bytes).and_then(|()| self.name_first(aside, name));
        if named.is_err() {
            // It is of no more use.
            let _ = unlinkat(&self.folder, aside, AtFlags::empty());
        }
        match named {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => Err(error),
            _ => self.folder.sync_all(),
        }
    }

    /// Renames without replacing anything; where the file system cannot, by a hard link.
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

    /// Makes `name` durable where it is missing. Of its content nothing is promised: there may be a
    /// disk below that can sync no data.
    ///
    /// # Errors
    /// The file cannot be made, or its name not be made durable.
    pub fn save_name(&self, name: &str, bytes: &[u8]) -> io::Result<()> {
        plain(name)?;
        match trusted::create(&self.folder, name.as_ref(), FILE_MODE) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            created => created?.write_all(bytes)?,
        }
        self.folder.sync_all()
    }

    /// Removes a name, whatever has it unless it is a folder; durable when this returns, also when
    /// nothing had the name.
    ///
    /// # Errors
    /// It cannot be removed.
    pub fn remove(&self, name: &str) -> io::Result<()> {
        plain(name)?;
        match unlinkat(&self.folder, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => self.folder.sync_all(),
            Err(error) => Err(error.into()),
        }
    }

    /// Removes the folder and what is in it.
    ///
    /// # Errors
    /// It holds a folder, or cannot be removed.
    pub fn discard(self) -> io::Result<()> {
        for name in self.names()? {
            unlinkat(&self.folder, name.as_str(), AtFlags::empty())?;
        }
        self.entry.remove()
    }

    fn look(&self, name: &str) -> io::Result<Option<Metadata>> {
        plain(name)?;
        look_at(&self.folder, name)?.map(|found| found.metadata()).transpose()
    }

    /// Removes the further names that [`save_first`](Self::save_first) has left for the file
    /// `inode` when it was killed.
    fn remove_asides(&self, name: &str, inode: u64) -> io::Result<()> {
        let prefix = format!("{name}.");
        for aside in self.names()?.iter().filter(|aside| aside.starts_with(&prefix)) {
            if self.look(aside)?.is_some_and(|found| found.ino() == inode) {
                unlinkat(&self.folder, aside.as_str(), AtFlags::empty())?;
            }
        }
        Ok(())
    }

    /// The names in it, as far as they are in UTF-8, as ours are.
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

/// Refuses what is no name of a file in the folder itself.
fn plain(name: &str) -> io::Result<()> {
    if name.is_empty() || name.contains(['/', '\0']) || [".", ".."].contains(&name) {
        let what = format!("`{name}` is no plain file name");
        return Err(io::Error::new(ErrorKind::InvalidInput, what));
    }
    Ok(())
}

#[cfg(test)]
mod tests;
