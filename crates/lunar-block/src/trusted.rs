//! Which folders and files are trusted: those that nobody but this user and root can have put
//! there. See docs/decisions/091-state-folders-are-opened-by-descriptor.md.

use crate::path_lookup::FolderEntry;
use rustix::fs::{AtFlags, Mode, OFlags, PROC_SUPER_MAGIC};
use rustix::fs::{fstatfs, openat, unlinkat};
use rustix::io::Errno;
use rustix::path::Arg;
use std::ffi::{OsStr, OsString};
use std::fs::{File, FileType, Metadata};
use std::io::{self, ErrorKind};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

/// The owner who may do everything anyway.
const ROOT: u32 = 0;
/// The mode of a new folder: what is kept there is its owner's business.
pub(crate) const FOLDER_MODE: u32 = 0o700;
/// The mode bits of group and others that let them change the names in a folder.
const WRITABLE_BY_OTHERS: u32 = 0o022;
/// In a folder with this bit each user removes and renames their own files only.
const STICKY: u32 = 0o1000;

/// Why a file or folder is not used: what was found and why that is refused, then what to do.
///
/// It comes inside of an [`io::Error`] of the kind `PermissionDenied`; [`UntrustedFile::of`] finds
/// it there.
#[derive(Debug, thiserror::Error)]
#[error("{what}; {remedy}")]
pub struct UntrustedFile {
    /// What was found, and why it is refused.
    pub what: String,
    /// What to do.
    pub remedy: String,
}

impl UntrustedFile {
    /// The refusal that an I/O error stands for, if it is one.
    pub fn of(error: &io::Error) -> Option<&Self> {
        error.get_ref()?.downcast_ref()
    }

    pub(crate) fn error(what: String, remedy: impl Into<String>) -> io::Error {
        Self { what, remedy: remedy.into() }.into()
    }
}

impl From<UntrustedFile> for io::Error {
    fn from(refusal: UntrustedFile) -> Self {
        Self::new(ErrorKind::PermissionDenied, refusal)
    }
}

/// Whether a folder in which everybody may create names is taken.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum SharedFolder {
    /// Such a folder is refused.
    Refused,
    /// It is taken if it is sticky, as /tmp: nobody else removes or renames what we create.
    AllowedIfSticky,
}

/// Opens a folder that nobody but this user and root can change; `None` if there is none.
///
/// Symbolic links on the way and at the end are followed if this user or root made them. The
/// descriptor stays with the folder that was checked, whatever becomes of its path.
///
/// # Errors
/// [`UntrustedFile`] if there is something else than a folder, if another user owns the folder or
/// a link on the way, or if group or others may write to the folder; any other error of the system.
pub fn open_folder(path: &Path, shared: SharedFolder) -> io::Result<Option<File>> {
    FolderEntry::find(path, None)?.map(|entry| open_entry(&entry, shared)).transpose()
}

/// As [`open_folder`], and makes the folder and all above it that are missing, for this user alone;
/// none where a symbolic link leads.
///
/// # Errors
/// As [`open_folder`]; it cannot be made.
pub fn create_folder(path: &Path, shared: SharedFolder) -> io::Result<File> {
    let entry = FolderEntry::find(path, Some(FOLDER_MODE))?.ok_or(ErrorKind::NotFound)?;
    open_entry(&entry, shared)
}

/// Opens a folder that was looked up, if nobody but this user and root can change it.
pub(crate) fn open_entry(entry: &FolderEntry, shared: SharedFolder) -> io::Result<File> {
    check_folder(&entry.path, &entry.folder.metadata()?, shared)?;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(openat(&entry.folder, ".", flags, Mode::empty())?.into())
}

/// What has a name, without opening or following it; `None` if nothing has.
pub(crate) fn look_at(folder: impl AsFd, name: impl Arg) -> io::Result<Option<File>> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    match openat(folder, name, flags, Mode::empty()) {
        Ok(found) => Ok(Some(found.into())),
        Err(Errno::NOENT) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Links in /proc lead to what a process has open, whatever their text says.
pub(crate) fn is_in_proc(link: &File) -> bool {
    fstatfs(link).is_ok_and(|system| system.f_type == PROC_SUPER_MAGIC)
}

/// Whether this user or root owns it.
pub(crate) fn is_ours(metadata: &Metadata) -> bool {
    [own_uid(), ROOT].contains(&metadata.uid())
}

fn own_uid() -> u32 {
    rustix::process::geteuid().as_raw()
}

pub(crate) fn check_folder(path: &Path, folder: &Metadata, shared: SharedFolder) -> io::Result<()> {
    let path = path.display();
    if !folder.is_dir() {
        let what = format!("{path} is {}, not a folder", kind(folder.file_type()));
        return Err(UntrustedFile::error(what, "move it away"));
    }
    if !is_ours(folder) {
        let (theirs, ours) = (folder.uid(), own_uid());
        return Err(UntrustedFile::error(
            format!("uid {theirs} owns the folder {path} and may change whatever is in it"),
            format!("look at what is in it, then make it yours: chown {ours} {path}"),
        ));
    }
    let is_sticky = folder.mode() & STICKY != 0;
    let writers = match folder.mode() & WRITABLE_BY_OTHERS {
        0 => return Ok(()),
        _ if is_sticky && shared == SharedFolder::AllowedIfSticky => return Ok(()),
        0o020 => format!("the group {}", folder.gid()),
        _ => "everybody".to_owned(),
    };
    Err(UntrustedFile::error(
        format!("{writers} may write to the folder {path} and change whatever is in it"),
        format!("look at what is in it, then close it: chmod go-w {path}"),
    ))
}

/// Checks that a file in a trusted folder is a regular one of this user or root, with one name.
///
/// The folder may have been another user's before: what that user put there is still in it.
///
/// # Errors
/// [`UntrustedFile`].
pub(crate) fn check_file(name: &OsStr, file: &Metadata) -> io::Result<()> {
    let (name, kind_of) = (name.display(), file.file_type());
    let what = if !kind_of.is_file() {
        let why = match kind_of.is_symlink() {
            true => ": another file would be read or changed through it",
            false => "",
        };
        format!("{name} is {}, not a regular file{why}", kind(kind_of))
    } else if !is_ours(file) {
        format!("{name} belongs to uid {}, who may change it at any time", file.uid())
    } else if file.nlink() > 1 {
        let names = file.nlink();
        format!("{name} is one of {names} names (hard links) of a file, which others may change")
    } else {
        return Ok(());
    };
    Err(UntrustedFile::error(what, "put a regular file of your own in its place, or remove it"))
}

/// Checks that a pipe or device that a user named is of this user or root: another user would read
/// what is written to it, or never read it.
///
/// # Errors
/// [`UntrustedFile`].
pub(crate) fn check_stream(path: &Path, stream: &Metadata) -> io::Result<()> {
    if is_ours(stream) {
        return Ok(());
    }
    let (kind, uid) = (kind(stream.file_type()), stream.uid());
    let what = format!("{} is {kind} of uid {uid}", path.display());
    Err(UntrustedFile::error(what, "name a file in a folder of yours"))
}

fn kind(kind: FileType) -> &'static str {
    if kind.is_dir() {
        "a folder"
    } else if kind.is_file() {
        "a regular file"
    } else if kind.is_symlink() {
        "a symbolic link"
    } else if kind.is_fifo() {
        "a pipe"
    } else if kind.is_socket() {
        "a socket"
    } else {
        "a device"
    }
}

/// Creates the file `NAME.new`, in which the next content of `name` is written; what a crash has
/// left under that name is removed before.
///
/// # Errors
/// [`UntrustedFile`] if something else than a file that we may have left has the name; any other
/// error of the system.
pub(crate) fn create_next(folder: &File, name: &OsStr, mode: u32) -> io::Result<(OsString, File)> {
    let mut next = name.to_owned();
    next.push(".new");
    match create(folder, &next, mode) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        created => return Ok((next, created?)),
    }
    if let Some(left) = look_at(folder, &next)? {
        check_file(&next, &left.metadata()?)?;
        unlinkat(folder, &next, AtFlags::empty())?;
    }
    let created = create(folder, &next, mode)?;
    Ok((next, created))
}

/// Creates a file for writing; follows nothing and opens nothing that is there.
///
/// # Errors
/// `AlreadyExists` if anything has the name, a symbolic link included; open(2), `O_EXCL`.
pub(crate) fn create(folder: &File, name: &OsStr, mode: u32) -> io::Result<File> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(openat(folder, name, flags, Mode::from_raw_mode(mode))?.into())
}
