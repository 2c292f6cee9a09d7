//! Which folders and files are trusted: those that nobody but this user and root can have put
//! there. See docs/decisions/091-state-folders-are-opened-by-descriptor.md.

use rustix::fs::{AtFlags, CWD, Mode, OFlags, PROC_SUPER_MAGIC};
use rustix::fs::{fstatfs, openat, readlinkat, unlinkat};
use rustix::io::Errno;
use rustix::path::Arg;
use std::ffi::{OsStr, OsString};
use std::fs::{File, FileType, Metadata};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

/// The owner who may do everything anyway.
const ROOT: u32 = 0;
/// Symbolic links followed one after the other, as many as the kernel follows; path_resolution(7).
const LINKS_MAX: usize = 40;
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

    fn error(what: String, remedy: impl Into<String>) -> io::Error {
        let refusal = Self { what, remedy: remedy.into() };
        io::Error::new(io::ErrorKind::PermissionDenied, refusal)
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
/// A symbolic link at `path` is followed if this user or root made it. The descriptor stays with
/// the folder that was checked, whatever becomes of its path.
///
/// # Errors
/// [`UntrustedFile`] if there is something else than a folder, if another user owns the folder or
/// the link to it, or if group or others may write to the folder; any other error of the system.
pub fn open_folder(path: &Path, shared: SharedFolder) -> io::Result<Option<File>> {
    let (path, found) = follow_links(path, |_| false)?;
    let Some((found, metadata)) = found else { return Ok(None) };
    check_folder(&path, &metadata, shared)?;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(Some(openat(found, ".", flags, Mode::empty())?.into()))
}

/// What stands at the end of the symbolic links that begin at `path`, not opened, and its path;
/// `None` if nothing does. A link that `is_end` is not followed.
///
/// # Errors
/// [`UntrustedFile`] if another user made a link.
pub(crate) fn follow_links(
    path: &Path,
    is_end: impl Fn(&File) -> bool,
) -> io::Result<(PathBuf, Option<(File, Metadata)>)> {
    let mut path = path.to_owned();
    for _ in 0..=LINKS_MAX {
        let Some(found) = look_at(CWD, &path)? else { return Ok((path, None)) };
        let metadata = found.metadata()?;
        if !metadata.is_symlink() || is_end(&found) {
            return Ok((path, Some((found, metadata))));
        }
        path = link_target(&found, &metadata, &path)?;
    }
    Err(Errno::LOOP.into())
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

/// Where the symbolic link `found` at `path` leads.
fn link_target(found: &File, link: &Metadata, path: &Path) -> io::Result<PathBuf> {
    if !is_ours(link) {
        let (uid, path) = (link.uid(), path.display());
        let what = format!("uid {uid} made the symbolic link {path}, which may lead anywhere");
        return Err(UntrustedFile::error(what, "remove it, or make one of your own"));
    }
    let target = readlinkat(found, "", Vec::new())?;
    let target = PathBuf::from(OsString::from_vec(target.into_bytes()));
    Ok(path.parent().unwrap_or(Path::new("")).join(target))
}

/// Whether this user or root owns it.
fn is_ours(metadata: &Metadata) -> bool {
    [own_uid(), ROOT].contains(&metadata.uid())
}

fn own_uid() -> u32 {
    rustix::process::geteuid().as_raw()
}

fn check_folder(path: &Path, folder: &Metadata, shared: SharedFolder) -> io::Result<()> {
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
