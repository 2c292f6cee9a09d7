//! Output files named by a user: replaced as a whole, and never written through another user's
//! link.

use crate::FileIdentity;
use crate::path_lookup::PathEntry;
use crate::trusted::{check_stream, create_next};
use rustix::fs::{AtFlags, Mode, OFlags, fchmod};
use rustix::fs::{openat, renameat, unlinkat};
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// The mode of a new file, before the umask is applied.
const NEW_MODE: u32 = 0o666;
/// The mode bits that a new file takes over from the file that it replaces.
const PERMISSIONS: u32 = 0o777;

/// Writes a file as a whole: if the program ends meanwhile, the previous file stays.
///
/// The content goes to the new file `PATH.new`, which is then renamed to `PATH`. A symbolic link
/// that this user or root made is followed. A target that is not a regular file, such as a pipe or
/// /dev/stdout, is written directly.
///
/// # Errors
/// [`UntrustedFile`](crate::UntrustedFile) if another user made a link on the way, the pipe at
/// `PATH`, or the file at `PATH.new`; any error of writing.
pub fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let output = Output::find(path)?;
    let Kind::File { mode } = output.kind else { return output.open_stream()?.write_all(bytes) };
    let (next, mut file) = create_next(&output.folder, &output.name, NEW_MODE)?;
    let written = mode
        .map_or(Ok(()), |mode| Ok(fchmod(&file, Mode::from_raw_mode(mode))?))
        .and_then(|()| file.write_all(bytes))
        .and_then(|()| Ok(renameat(&output.folder, &next, &output.folder, &output.name)?));
    if written.is_err() {
        // A failure to remove the file must not hide the first error.
        let _ = unlinkat(&output.folder, &next, AtFlags::empty());
    }
    written
}

/// Checks, as far as possible, that [`write()`] can write a file; leaves nothing behind. This is
/// for programs that work for a while before they write.
///
/// # Errors
/// The errors of [`write()`].
pub fn check(path: &Path) -> io::Result<()> {
    let output = Output::find(path)?;
    // Opening and closing a pipe would signal an end of file to its reader.
    let Kind::File { .. } = output.kind else { return Ok(()) };
    let (next, _) = create_next(&output.folder, &output.name, NEW_MODE)?;
    Ok(unlinkat(&output.folder, &next, AtFlags::empty())?)
}

/// The target that a user named, after its links were followed.
struct Output {
    folder: File,
    name: OsString,
    kind: Kind,
}

enum Kind {
    /// A regular file with these permissions, or `None` for a file that does not exist yet.
    File { mode: Option<u32> },
    /// A pipe, a terminal or a device.
    Stream(FileIdentity),
    /// A descriptor of this process, by its name in /proc.
    Descriptor,
}

impl Output {
    fn find(path: &Path) -> io::Result<Self> {
        let PathEntry { folder, name, path, found, .. } = PathEntry::find(path)?;
        let kind = match &found {
            None => Kind::File { mode: None },
            Some((_, metadata)) if metadata.is_symlink() => Kind::Descriptor,
            Some((_, metadata)) if metadata.is_dir() => return Err(ErrorKind::IsADirectory.into()),
            Some((_, metadata)) if metadata.is_file() => {
                Kind::File { mode: Some(metadata.mode() & PERMISSIONS) }
            }
            Some((_, metadata)) => {
                check_stream(&path, metadata)?;
                Kind::Stream(FileIdentity::of(metadata))
            }
        };
        Ok(Self { folder, name, kind })
    }

    fn open_stream(&self) -> io::Result<File> {
        let open = |more: OFlags| {
            let flags = OFlags::WRONLY | OFlags::NOCTTY | OFlags::CLOEXEC | more;
            openat(&self.folder, &self.name, flags, Mode::empty()).map(File::from)
        };
        let Kind::Stream(wanted) = self.kind else { return Ok(open(OFlags::TRUNC)?) };
        let stream = open(OFlags::NOFOLLOW)?;
        if FileIdentity::of(&stream.metadata()?) != wanted {
            return Err(io::Error::other("it was replaced while it was being opened"));
        }
        Ok(stream)
    }
}

#[cfg(test)]
mod tests;
