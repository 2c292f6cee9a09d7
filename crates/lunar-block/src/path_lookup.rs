//! Path lookup that follows no symbolic link of another user, neither as the last component nor
//! above it. See docs/decisions/091-state-folders-are-opened-by-descriptor.md.

use crate::FileIdentity;
use crate::trusted::{SharedFolder, UntrustedFile, check_folder, is_in_proc, is_ours, open_o_path};
use rustix::fs::{AtFlags, CWD, Mode, OFlags};
use rustix::fs::{mkdirat, openat, readlinkat, unlinkat};
use rustix::io::Errno;
use rustix::path::Arg;
use std::ffi::{OsStr, OsString};
use std::fs::{File, Metadata};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{self, Path, PathBuf};

/// Maximum number of symbolic links followed in one lookup, the same as in the kernel;
/// path_resolution(7).
const LINKS_MAX: usize = 40;

/// The last component of a path, and its open parent folder. The component itself may be missing.
#[derive(Debug)]
pub(crate) struct PathEntry {
    /// The folder, opened with `O_PATH`.
    pub(crate) folder: File,
    /// The plain name; `.` if the path ends in `/`, `.` or `..`.
    pub(crate) name: OsString,
    /// The path after its symbolic links were followed.
    pub(crate) path: PathBuf,
    /// The file with that name, opened with `O_PATH`; `None` if there is none.
    pub(crate) found: Option<(File, Metadata)>,
    /// True when the last component of the given path is a symbolic link.
    pub(crate) by_link: bool,
}

impl PathEntry {
    /// Looks up a path. A link in /proc of this user or root is not followed at the end of the
    /// path, because it leads to a file that a process has open, whatever its text says.
    ///
    /// # Errors
    /// [`UntrustedFile`] if another user made a link on the way; `NotFound` if a folder on the way
    /// is missing; any other error of the system.
    pub(crate) fn find(path: &Path) -> io::Result<Self> {
        let mut lookup = Lookup::new(path)?;
        let mut by_link = false;
        loop {
            let component = lookup.pending.pop().ok_or(Errno::NOENT)?;
            let name = component.name;
            let is_last = lookup.pending.is_empty();
            if !is_last || is_dots(&name) {
                lookup.enter(&name)?;
                if !is_last {
                    continue;
                }
                let name = OsString::from(".");
                let found = open_o_path(&lookup.folder, &name)?;
                return lookup.end(name, found, by_link);
            }
            let Some(found) = open_o_path(&lookup.folder, &name)? else {
                return lookup.end(name, None, by_link);
            };
            let metadata = found.metadata()?;
            if !metadata.is_symlink() {
                return lookup.end(name, Some(found), by_link);
            }
            let target = lookup.link_target(&found, &metadata, &name)?;
            if is_in_proc(&found) {
                return lookup.end(name, Some(found), by_link);
            }
            by_link = true;
            lookup.push(&target, true)?;
        }
    }
}

/// Returns the absolute path without symbolic links. Its last component may be missing.
///
/// # Errors
/// [`UntrustedFile`] if another user made a symbolic link on the way; any other error of the
/// system.
pub fn resolve_path(path: &Path) -> io::Result<PathBuf> {
    let path = match path.is_absolute() {
        true => path.to_owned(),
        false => std::env::current_dir()?.join(path),
    };
    let entry = PathEntry::find(&path)?;
    match entry.found {
        Some((_, metadata)) if metadata.is_symlink() => std::fs::canonicalize(entry.path),
        _ => Ok(entry.path),
    }
}

/// The folder of the system's device nodes.
const DEVICES: &str = "/dev";
/// A file system in memory for files of programs; shm_overview(7).
const SHARED_MEMORY: &str = "/dev/shm";

/// Returns true when a file at `path` would lie among device nodes: in `/dev` or below, with
/// symbolic links to the folder followed. Such a file would take the place of a missing device, and
/// would be lost at a reboot. `/dev/shm` has no device nodes and is meant for files.
pub fn is_among_devices(path: &Path) -> bool {
    let Ok(path) = resolve_path(path) else { return false };
    let Some(folder) = path.parent() else { return false };
    let devices = std::fs::canonicalize(DEVICES).unwrap_or_else(|_| DEVICES.into());
    folder.starts_with(devices) && !folder.starts_with(SHARED_MEMORY)
}

/// A folder that was looked up.
#[derive(Debug)]
pub(crate) struct FolderEntry {
    /// The folder itself, opened with `O_PATH`.
    pub(crate) folder: File,
    /// The parent folder, opened with `O_PATH`.
    parent: File,
    /// The name in the parent; `.` if the path has no plain name.
    name: OsString,
    /// The path after its symbolic links were followed.
    pub(crate) path: PathBuf,
}

impl FolderEntry {
    /// Looks up a folder; `None` if it or one of its parents is missing. With `create`, missing
    /// folders are created with that mode, but not below a symbolic link: a target that is missing
    /// there may be a file system that is not mounted.
    ///
    /// # Errors
    /// [`UntrustedFile`] if another user made a link on the way, or if a file that is not a folder
    /// has the name; any other error of the system.
    pub(crate) fn find(path: &Path, create: Option<u32>) -> io::Result<Option<Self>> {
        let mut lookup = Lookup::new(path)?;
        let (mut parent, mut last) = (lookup.folder.try_clone()?, OsString::from("."));
        while let Some(Component { name, is_from_link }) = lookup.pending.pop() {
            if !is_dots(&name) {
                parent = lookup.folder.try_clone()?;
                last.clone_from(&name);
            } else if name == ".." {
                last = OsString::from(".");
            }
            let mut entered = lookup.enter(&name);
            if let Some(mode) = create
                && !is_from_link
                && entered.as_ref().is_err_and(is_missing)
            {
                match mkdirat(&lookup.folder, &name, Mode::from_raw_mode(mode)) {
                    Ok(()) | Err(Errno::EXIST) => entered = lookup.enter(&name),
                    Err(error) => return Err(error.into()),
                }
            }
            match entered {
                Ok(()) => {}
                Err(error) if create.is_none() && is_missing(&error) => return Ok(None),
                Err(error) if lookup.pending.is_empty() => {
                    return Err(lookup.no_folder(&name, error));
                }
                Err(error) => return Err(error),
            }
        }
        Ok(Some(Self { folder: lookup.folder, parent, name: last, path: lookup.path }))
    }

    /// Removes the folder, which must be empty, wherever its parent is now. Does nothing if another
    /// folder has its name.
    ///
    /// # Errors
    /// The folder is not empty, or cannot be removed.
    pub(crate) fn remove(&self) -> io::Result<()> {
        let identity_of = |file: &File| file.metadata().map(|metadata| FileIdentity::of(&metadata));
        match open_o_path(&self.parent, &self.name)? {
            Some(found) if identity_of(&found)? == identity_of(&self.folder)? => {
                Ok(unlinkat(&self.parent, &self.name, AtFlags::REMOVEDIR)?)
            }
            _ => Ok(()),
        }
    }
}

/// A file that this process created, with the folder in which it was created.
#[derive(Debug)]
pub struct CreatedFile {
    folder: File,
    name: OsString,
    identity: FileIdentity,
}

impl CreatedFile {
    pub(crate) fn new(folder: File, name: OsString, file: &File) -> io::Result<Self> {
        Ok(Self { folder, name, identity: FileIdentity::of(&file.metadata()?) })
    }

    /// Removes the file, wherever its folder is now, unless another file has its name.
    ///
    /// # Errors
    /// The file cannot be removed.
    pub fn remove(self) -> io::Result<()> {
        match open_o_path(&self.folder, &self.name)? {
            Some(found) if FileIdentity::of(&found.metadata()?) == self.identity => {
                Ok(unlinkat(&self.folder, &self.name, AtFlags::empty())?)
            }
            _ => Ok(()),
        }
    }
}

struct Component {
    name: OsString,
    /// True when a symbolic link led here.
    is_from_link: bool,
}

/// The state of a lookup in progress.
struct Lookup {
    /// The folder reached so far, opened with `O_PATH`.
    folder: File,
    path: PathBuf,
    /// The remaining components, the next one last.
    pending: Vec<Component>,
    links: usize,
}

impl Lookup {
    fn new(path: &Path) -> io::Result<Self> {
        let (folder, shown) = match path.is_absolute() {
            true => (enter(CWD, "/", OFlags::empty())?, "/"),
            false => (enter(CWD, ".", OFlags::empty())?, ""),
        };
        let mut lookup = Self { folder, path: shown.into(), pending: Vec::new(), links: 0 };
        lookup.push(path, false)?;
        Ok(lookup)
    }

    /// Adds the components of `path`, which is the target of a link (`is_from_link`) or the path
    /// itself.
    fn push(&mut self, path: &Path, is_from_link: bool) -> io::Result<()> {
        if path.as_os_str().is_empty() {
            return Err(Errno::NOENT.into());
        }
        if path.is_absolute() {
            self.folder = enter(CWD, "/", OFlags::empty())?;
            self.path = "/".into();
        }
        let names = path.as_os_str().as_bytes().rsplit(|byte| *byte == b'/');
        self.pending.extend(
            names.map(|name| Component { name: OsStr::from_bytes(name).to_owned(), is_from_link }),
        );
        Ok(())
    }

    /// Enters a folder; if the name is that of a symbolic link, the components of its target become
    /// pending.
    fn enter(&mut self, name: &OsStr) -> io::Result<()> {
        match name.as_bytes() {
            b"" | b"." => return Ok(()),
            b".." => {
                self.folder = enter(&self.folder, "..", OFlags::empty())?;
                match self.path.components().next_back() {
                    Some(path::Component::Normal(_)) => _ = self.path.pop(),
                    Some(path::Component::RootDir) => {}
                    _ => self.path.push(".."),
                }
                return Ok(());
            }
            _ => {}
        }
        match enter(&self.folder, name, OFlags::NOFOLLOW) {
            Ok(folder) => self.folder = folder,
            // A symbolic link is not a folder either.
            Err(Errno::NOTDIR | Errno::LOOP) => {
                let link = open_o_path(&self.folder, name)?.ok_or(Errno::NOENT)?;
                let metadata = link.metadata()?;
                if !metadata.is_symlink() {
                    return Err(Errno::NOTDIR.into());
                }
                let target = self.link_target(&link, &metadata, name)?;
                if !is_in_proc(&link) {
                    return self.push(&target, true);
                }
                self.folder = enter(&self.folder, name, OFlags::empty())?;
                self.path.push(target);
                return Ok(());
            }
            Err(error) => return Err(error.into()),
        }
        self.path.push(name);
        Ok(())
    }

    /// Returns the target of the symbolic link `name`, if this user or root made the link.
    fn link_target(&mut self, link: &File, made: &Metadata, name: &OsStr) -> io::Result<PathBuf> {
        if !is_ours(made) {
            let (uid, path) = (made.uid(), self.path.join(name));
            let path = path.display();
            let what = format!(
                "the symbolic link {path} belongs to uid {uid}, who can point it at any file"
            );
            return Err(UntrustedFile::error(what, "remove it, or replace it by your own link"));
        }
        self.links += 1;
        if self.links > LINKS_MAX {
            return Err(Errno::LOOP.into());
        }
        let target = readlinkat(link, "", Vec::new())?;
        Ok(PathBuf::from(OsString::from_vec(target.into_bytes())))
    }

    /// Returns the error for a `name` that is not entered: `error`, or a refusal if `name` is not a
    /// folder.
    fn no_folder(&self, name: &OsStr, error: io::Error) -> io::Error {
        let look = || open_o_path(&self.folder, name).ok()??.metadata().ok();
        match look().filter(|_| Errno::from_io_error(&error) == Some(Errno::NOTDIR)) {
            Some(found) => {
                let checked = check_folder(&self.path.join(name), &found, SharedFolder::Refused);
                checked.err().unwrap_or(error)
            }
            None => error,
        }
    }

    fn end(self, name: OsString, found: Option<File>, by_link: bool) -> io::Result<PathEntry> {
        let path = if name == "." { self.path } else { self.path.join(&name) };
        let found = match found {
            Some(found) => {
                let metadata = found.metadata()?;
                Some((found, metadata))
            }
            None => None,
        };
        Ok(PathEntry { folder: self.folder, name, path, found, by_link })
    }
}

/// Opens a folder with `O_PATH`.
fn enter(folder: impl AsFd, name: impl Arg, more: OFlags) -> Result<File, Errno> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC | more;
    openat(folder, name, flags, Mode::empty()).map(File::from)
}

fn is_dots(name: &OsStr) -> bool {
    matches!(name.as_bytes(), b"" | b"." | b"..")
}

fn is_missing(error: &io::Error) -> bool {
    Errno::from_io_error(error) == Some(Errno::NOENT)
}

#[cfg(test)]
mod tests;
