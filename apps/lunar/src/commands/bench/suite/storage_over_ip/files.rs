//! The measured files, in their own folder.

use crate::output::{self, Failure};
use rustix::fs::statvfs;
use std::fs::{DirBuilder, File};
use std::os::unix::fs::{DirBuilderExt, FileExt};
use std::path::{Path, PathBuf};

/// Maximum number of files of the configured size at once.
const FILES_MAX: u64 = 3;
/// Size of the pieces that are written and checked.
const PIECE_BYTES: usize = 1 << 20;

/// A folder that is removed with its contents when dropped.
#[derive(Debug)]
pub(super) struct Room {
    pub(super) folder: PathBuf,
    pub(super) size_bytes: u64,
}

/// A fully written file that is removed when dropped.
#[derive(Debug)]
pub(super) struct Disk {
    pub(super) path: PathBuf,
}

impl Room {
    /// Creates a folder below `directory`, which must have enough space for the files.
    pub(super) fn new(directory: &Path, size_bytes: u64) -> Result<Self, Failure> {
        let failed = |what: &str, error: &dyn std::fmt::Display| {
            Failure::new(format!("{what} {}: {error}", directory.display()))
                .hint("--directory names a folder that exists and may be written to")
        };
        let directory = directory.canonicalize().map_err(|error| failed("cannot use", &error))?;
        let free = statvfs(&directory).map_err(|error| failed("cannot look at", &error))?;
        let free_bytes = free.f_bavail.saturating_mul(free.f_frsize);
        let wanted_bytes = size_bytes.saturating_mul(FILES_MAX).saturating_add(64 << 20);
        if free_bytes < wanted_bytes {
            return Err(Failure::new(format!(
                "{} has {} free, and {FILES_MAX} files of {} are to lie there",
                directory.display(),
                output::size(free_bytes),
                output::size(size_bytes)
            ))
            .hint("name a folder with more room (--directory), or measure less (--size 256M)"));
        }
        let folder = directory.join(format!("lunar-storage-over-ip-{}", std::process::id()));
        let made = make_folder(&folder);
        made.map_err(|error| failed("cannot make a folder in", &error))?;
        Ok(Self { folder, size_bytes })
    }

    /// Description for the report.
    pub(super) fn text(&self) -> String {
        let kind = file_system(&self.folder).unwrap_or_else(|| "an unknown file system".to_owned());
        let size = output::size(self.size_bytes);
        let folder = self.folder.parent().unwrap_or(&self.folder).display();
        format!(
            "{size} each, one for each way, in {folder} ({kind}); written just before, so the page \
             cache holds what fits of them"
        )
    }

    /// Creates a file in the folder.
    pub(super) fn disk(&self, name: &str) -> Result<Disk, Failure> {
        self.disk_in(&self.folder, name)
    }

    /// Creates a file in another folder.
    pub(super) fn disk_in(&self, folder: &Path, name: &str) -> Result<Disk, Failure> {
        let name = format!("lunar-{}-{name}", std::process::id());
        let path = folder.join(name);
        let failed = |error| Failure::new(format!("cannot write {}: {error}", path.display()));
        let file = File::create_new(&path).map_err(failed)?;
        let disk = Disk { path: path.clone() };
        let piece = vec![0x5a; PIECE_BYTES];
        let mut at = 0;
        while at < self.size_bytes {
            let bytes = (self.size_bytes - at).min(piece.len() as u64);
            file.write_all_at(&piece[..bytes as usize], at).map_err(failed)?;
            at += bytes;
        }
        file.sync_all().map_err(failed)?;
        Ok(disk)
    }
}

/// Creates a folder that no other user may write to, whatever the umask.
pub(super) fn make_folder(folder: &Path) -> std::io::Result<()> {
    DirBuilder::new().mode(0o755).create(folder)
}

impl Drop for Room {
    fn drop(&mut self) {
        // An error cannot be reported here; the name of the folder shows its owner.
        drop(std::fs::remove_dir_all(&self.folder));
    }
}

impl Disk {
    /// The path as an argument of a command line.
    pub(super) fn path_text(&self) -> Result<String, Failure> {
        let text = self.path.to_str().map(str::to_owned);
        text.ok_or_else(|| {
            Failure::new(format!("{} is not in UTF-8", self.path.display()))
                .hint("name another folder (--directory)")
        })
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        drop(std::fs::remove_file(&self.path));
    }
}

/// Checks that the first `length_bytes` of a file all hold `byte`, so that all writes have arrived.
pub(super) fn check(path: &Path, length_bytes: u64, byte: u8) -> Result<(), Failure> {
    let failed = |error| Failure::new(format!("cannot read {}: {error}", path.display()));
    let file = File::open(path).map_err(failed)?;
    let (mut piece, wanted) = (vec![0; PIECE_BYTES], vec![byte; PIECE_BYTES]);
    let mut at = 0;
    while at < length_bytes {
        let bytes = (length_bytes - at).min(PIECE_BYTES as u64) as usize;
        file.read_exact_at(&mut piece[..bytes], at).map_err(failed)?;
        if piece[..bytes] != wanted[..bytes] {
            return Err(Failure::new(format!(
                "{} does not hold what was written, within {bytes} bytes from {at} on",
                path.display()
            )));
        }
        at += bytes as u64;
    }
    Ok(())
}

/// Type and device of the file system: `ext4 on /dev/vda`.
fn file_system(folder: &Path) -> Option<String> {
    let mounts = std::fs::read_to_string("/proc/self/mounts").ok()?;
    let mut best = None;
    for line in mounts.lines() {
        let mut fields = line.split_whitespace();
        let (device, at, kind) = (fields.next()?, fields.next()?, fields.next()?);
        if folder.starts_with(at) && best.as_ref().is_none_or(|(longest, _)| at.len() >= *longest) {
            best = Some((at.len(), format!("{kind} on {device}")));
        }
    }
    best.map(|(_, text)| text)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a wrong byte is found, also as the first and the last one; no files remain.
    #[test]
    fn what_did_not_arrive_is_found() {
        let room = Room::new(&std::env::temp_dir(), (1 << 20) + 512).unwrap();
        let disk = room.disk("a.img").unwrap();
        check(&disk.path, room.size_bytes, 0x5a).unwrap();
        check(&disk.path, room.size_bytes, 0x5b).unwrap_err();
        for at in [0, room.size_bytes - 1] {
            let file = File::options().write(true).open(&disk.path).unwrap();
            file.write_all_at(&[0], at).unwrap();
            check(&disk.path, room.size_bytes, 0x5a).unwrap_err();
            file.write_all_at(&[0x5a], at).unwrap();
        }
        let (folder, path) = (room.folder.clone(), disk.path.clone());
        drop((disk, room));
        assert!(!folder.exists() && !path.exists());
    }
}
