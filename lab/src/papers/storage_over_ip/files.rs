//! The measured files, in their own folder.

use crate::system::files::file_system;
use anyhow::{Context, Result, ensure};
use lunar_load::report::size_text;
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
    pub(super) fn new(directory: &Path, size_bytes: u64) -> Result<Self> {
        const HINT: &str = "--directory must be an existing directory with write permission";
        let failed = |what: &str| format!("cannot {what} {} ({HINT})", directory.display());
        let directory = directory.canonicalize().with_context(|| failed("use"))?;
        let free = statvfs(&directory).with_context(|| failed("access"))?;
        let free_bytes = free.f_bavail.saturating_mul(free.f_frsize);
        let wanted_bytes = size_bytes.saturating_mul(FILES_MAX).saturating_add(64 << 20);
        ensure!(
            free_bytes >= wanted_bytes,
            "{} has {} of free space, but {FILES_MAX} files of {} are needed (choose a directory \
             with more space with --directory, or a smaller --size 256M)",
            directory.display(),
            size_text(free_bytes),
            size_text(size_bytes)
        );
        let folder = directory.join(format!("lunar-storage-over-ip-{}", std::process::id()));
        make_folder(&folder).with_context(|| failed("create a directory in"))?;
        Ok(Self { folder, size_bytes })
    }

    /// Description for the report.
    pub(super) fn text(&self) -> Result<String> {
        let kind = file_system(&self.folder)?;
        let size = size_text(self.size_bytes);
        let folder = self.folder.parent().unwrap_or(&self.folder).display();
        Ok(format!(
            "{size} each, one per access method, in {folder} ({kind}); written shortly before, so \
             the page cache contains as much of them as fits"
        ))
    }

    /// Creates a file in the folder.
    pub(super) fn disk(&self, name: &str) -> Result<Disk> {
        self.disk_in(&self.folder, name)
    }

    /// Creates a file in another folder.
    pub(super) fn disk_in(&self, folder: &Path, name: &str) -> Result<Disk> {
        let name = format!("lunar-{}-{name}", std::process::id());
        let path = folder.join(name);
        let failed = || format!("cannot write {}", path.display());
        let file = File::create_new(&path).with_context(failed)?;
        let disk = Disk { path: path.clone() };
        let piece = vec![0x5a; PIECE_BYTES];
        let mut at = 0;
        while at < self.size_bytes {
            let bytes = (self.size_bytes - at).min(piece.len() as u64);
            file.write_all_at(&piece[..bytes as usize], at).with_context(failed)?;
            at += bytes;
        }
        file.sync_all().with_context(failed)?;
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
    pub(super) fn path_text(&self) -> Result<String> {
        let text = self.path.to_str().map(str::to_owned);
        text.with_context(|| {
            format!(
                "{} is not in UTF-8: choose another directory (--directory)",
                self.path.display()
            )
        })
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        drop(std::fs::remove_file(&self.path));
    }
}

/// Checks that the first `length_bytes` of a file all hold `byte`, so that all writes have arrived.
pub(super) fn check(path: &Path, length_bytes: u64, byte: u8) -> Result<()> {
    let failed = || format!("cannot read {}", path.display());
    let file = File::open(path).with_context(failed)?;
    let (mut piece, wanted) = (vec![0; PIECE_BYTES], vec![byte; PIECE_BYTES]);
    let mut at = 0;
    while at < length_bytes {
        let bytes = (length_bytes - at).min(PIECE_BYTES as u64) as usize;
        file.read_exact_at(&mut piece[..bytes], at).with_context(failed)?;
        ensure!(
            piece[..bytes] == wanted[..bytes],
            "{} differs from the written data within {bytes} bytes from {at}",
            path.display()
        );
        at += bytes as u64;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a wrong byte is found, also as the first and the last one; no files remain.
    #[test]
    fn missing_records_are_detected() {
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
