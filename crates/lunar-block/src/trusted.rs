//! Trusted folders and files: those that only this user or root can have created. See
//! docs/decisions/091-state-folders-are-opened-by-descriptor.md.

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

/// The user root, who may access every file anyway.
const ROOT: u32 = 0;
/// The mode of a new folder: only the owner may access it.
pub(crate) const FOLDER_MODE: u32 = 0o700;
/// The mode bits that let group and others change the names in a folder.
const WRITABLE_BY_OTHERS: u32 = 0o022;
/// The mode bit of a folder in which each user can remove and rename only their own files.
const STICKY: u32 = 0o1000;

/// A refusal of a file or folder: the finding, the reason, and the remedy.
///
/// The refusal is wrapped in an [`io::Error`] of the kind `PermissionDenied`; [`UntrustedFile::of`]
/// extracts it.
#[derive(Debug, thiserror::Error)]
#[error("{what}; {remedy}")]
pub struct UntrustedFile {
    /// The finding, and the reason of the refusal.
    pub what: String,
    /// The remedy.
    pub remedy: String,
}

impl UntrustedFile {
    /// Returns the refusal that an I/O error wraps, if there is one.
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

/// Policy for folders in which all users may create files.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum SharedFolder {
    /// The folder is refused.
    Refused,
    /// The folder is accepted if it has the sticky bit, like /tmp: other users cannot remove or
    /// rename files of this user.
    AllowedIfSticky,
}

/// Opens a folder that only this user and root can change; `None` if it does not exist.
///
/// Symbolic links in the path are followed if this user or root owns them. The descriptor refers to
/// the folder that was checked, even if its path changes.
///
/// # Errors
/// [`UntrustedFile`] if the file is not a folder, if another user owns the folder or a link on the
/// way, or if group or others may write to the folder; any other error of the system.
pub fn open_folder(path: &Path, shared: SharedFolder) -> io::Result<Option<File>> {
    FolderEntry::find(path, None)?.map(|entry| open_entry(&entry, shared)).transpose()
}

/// Opens a folder as [`open_folder`] does, creating it and its missing parents for this user alone.
/// Folders below a symbolic link are not created.
///
/// # Errors
/// The errors of [`open_folder`]; the folder cannot be created.
pub fn create_folder(path: &Path, shared: SharedFolder) -> io::Result<File> {
    let entry = FolderEntry::find(path, Some(FOLDER_MODE))?.ok_or(ErrorKind::NotFound)?;
    open_entry(&entry, shared)
}

/// Opens a folder that was looked up, if only this user and root can change it.
pub(crate) fn open_entry(entry: &FolderEntry, shared: SharedFolder) -> io::Result<File> {
    check_folder(&entry.path, &entry.folder.metadata()?, shared)?;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(openat(&entry.folder, ".", flags, Mode::empty())?.into())
}

/// Opens a name with `O_PATH`, without following a symbolic link; `None` if the name does not
/// exist.
pub(crate) fn open_o_path(folder: impl AsFd, name: impl Arg) -> io::Result<Option<File>> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    match openat(folder, name, flags, Mode::empty()) {
        Ok(found) => Ok(Some(found.into())),
        Err(Errno::NOENT) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Returns true when the link is in /proc: such links lead to files that a process has open,
/// whatever their text says.
pub(crate) fn is_in_proc(link: &File) -> bool {
    fstatfs(link).is_ok_and(|system| system.f_type == PROC_SUPER_MAGIC)
}

/// Returns true when this user or root owns the file.
pub(crate) fn is_ours(metadata: &Metadata) -> bool {
    [own_uid(), ROOT].contains(&metadata.uid())
}

fn own_uid() -> u32 {
    rustix::process::geteuid().as_raw()
}

pub(crate) fn check_folder(path: &Path, folder: &Metadata, shared: SharedFolder) -> io::Result<()> {
    let path = path.display();
    if !folder.is_dir() {
        let what = format!("{path} is {}, not a directory", kind(folder.file_type()));
        return Err(UntrustedFile::error(what, "move it away"));
    }
    if !is_ours(folder) {
        let (theirs, ours) = (folder.uid(), own_uid());
        return Err(UntrustedFile::error(
            format!("the directory {path} belongs to uid {theirs}, who can change its contents"),
            format!("check its contents, then take ownership: chown {ours} {path}"),
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
        format!("{writers} can write to the directory {path} and change its contents"),
        format!("check its contents, then remove the permission: chmod go-w {path}"),
    ))
}

/// Checks that a file in a trusted folder is a regular file of this user or root, with one hard
/// link. Files of an earlier owner of the folder may still be in it.
///
/// # Errors
/// [`UntrustedFile`].
pub(crate) fn check_file(name: &OsStr, file: &Metadata) -> io::Result<()> {
    let (name, kind_of) = (name.display(), file.file_type());
    let what = if !kind_of.is_file() {
        let why = match kind_of.is_symlink() {
            true => ", which could lead to another file",
            false => "",
        };
        format!("{name} is {}, not a regular file{why}", kind(kind_of))
    } else if !is_ours(file) {
        format!("{name} belongs to uid {}, who can change it at any time", file.uid())
    } else if file.nlink() > 1 {
        let names = file.nlink();
        format!("{name} has {names} hard links, through which others could change it")
    } else {
        return Ok(());
    };
    Err(UntrustedFile::error(what, "replace it by a regular file of your own, or remove it"))
}

/// Checks that a pipe or device named by a user belongs to this user or root: another owner could
/// read the data written to it, or never read it.
///
/// # Errors
/// [`UntrustedFile`].
pub(crate) fn check_stream(path: &Path, stream: &Metadata) -> io::Result<()> {
    if is_ours(stream) {
        return Ok(());
    }
    let (kind, uid) = (kind(stream.file_type()), stream.uid());
    let what = format!("{} is {kind} of uid {uid}", path.display());
    Err(UntrustedFile::error(what, "choose a file in your own directory"))
}

fn kind(kind: FileType) -> &'static str {
    if kind.is_dir() {
        "a directory"
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

/// Creates the file `NAME.new` for the next content of `name`; removes a file that a crash has left
/// under that name.
///
/// # Errors
/// [`UntrustedFile`] if a file that this program cannot have left has the name; any other error of
/// the system.
pub(crate) fn create_next(folder: &File, name: &OsStr, mode: u32) -> io::Result<(OsString, File)> {
    let mut next = name.to_owned();
    next.push(".new");
    match create(folder, &next, mode) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        created => return Ok((next, created?)),
    }
    if let Some(leftover) = open_o_path(folder, &next)? {
        check_file(&next, &leftover.metadata()?)?;
        unlinkat(folder, &next, AtFlags::empty())?;
    }
    let created = create(folder, &next, mode)?;
    Ok((next, created))
}

/// Creates a file for writing; follows no link and opens no existing file.
///
/// # Errors
/// `AlreadyExists` if anything has the name, a symbolic link included; open(2), `O_EXCL`.
pub(crate) fn create(folder: &File, name: &OsStr, mode: u32) -> io::Result<File> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(openat(folder, name, flags, Mode::from_raw_mode(mode))?.into())
}
