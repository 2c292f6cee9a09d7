//! The file system as a value, without a kernel, a clock or a thread.

use super::file::{CutRandom, File};
use super::image::SECTOR_BYTES;
use super::names::Names;
use crate::random::Random;
use rustix::io::Errno;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::ops::Range;
use std::path::{Component, Path};

/// Inode of the root directory.
pub const ROOT: u64 = 1;

/// Bits of a mode.
const MODE_MAX: u16 = 0o7777;

/// Maximum length of a file, so that offsets can be added.
const FILE_BYTES_MAX: u64 = 1 << 50;

/// A file system on a disk with a cache: at a power cut, unsynced changes may be lost, in part and
/// out of order.
#[derive(Clone, Debug)]
pub struct Volume {
    nodes: BTreeMap<u64, Node>,
    names: Names,
    next_inode: u64,
    next_call: u64,
    room_bytes: u64,
    /// The sector length in units of [`SECTOR_BYTES`]: a sector is written whole or not at all.
    sector_units: u64,
}

/// Type of an inode.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum InodeKind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A socket.
    Socket,
}

#[derive(Clone, Debug)]
struct Node {
    kind: InodeKind,
    mode: u16,
    /// Content; empty if the inode is not a file.
    file: File,
}

/// Attributes as in stat(2).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct FileStatus {
    /// Inode number, which is never used again.
    pub inode: u64,
    /// Type.
    pub kind: InodeKind,
    /// Permissions.
    pub mode: u16,
    /// Length in bytes.
    pub len: u64,
    /// Space that it takes on the disk.
    pub room_bytes: u64,
    /// Number of its names.
    pub links: u32,
}

/// A sync that has begun: when it is done, the changes made before its begin are on the disk.
#[derive(Clone, Copy, Debug)]
pub struct Sync {
    inode: u64,
    before: u64,
}

/// Result of a call.
pub type CallAnswer<T> = Result<T, Errno>;

impl Volume {
    /// Creates an empty file system of this capacity.
    pub fn new(room_bytes: u64) -> Self {
        let root = Node { kind: InodeKind::Directory, mode: 0o755, file: File::default() };
        Self {
            nodes: BTreeMap::from([(ROOT, root)]),
            names: Names::default(),
            next_inode: ROOT + 1,
            next_call: 0,
            room_bytes,
            sector_units: 1,
        }
    }

    /// Returns the capacity and the free space, in bytes.
    pub fn room(&self) -> (u64, u64) {
        let used: u64 = self.nodes.values().map(|node| node.file.image().room_bytes()).sum();
        (self.room_bytes, self.room_bytes.saturating_sub(used))
    }

    /// Changes the capacity.
    pub fn set_room(&mut self, bytes: u64) {
        self.room_bytes = bytes;
    }

    /// Sets the sector length, a multiple of [`SECTOR_BYTES`].
    pub fn set_sector_bytes(&mut self, bytes: u64) {
        self.sector_units = (bytes / SECTOR_BYTES).max(1);
    }

    /// Returns the inode that a directory has under a name.
    pub fn look_up(&self, directory: u64, name: &OsStr) -> CallAnswer<u64> {
        self.names.get(directory, name).ok_or(Errno::NOENT)
    }

    /// Returns the attributes of an inode.
    pub fn status(&self, inode: u64) -> CallAnswer<FileStatus> {
        let node = self.nodes.get(&inode).ok_or(Errno::STALE)?;
        let image = node.file.image();
        Ok(FileStatus {
            inode,
            kind: node.kind,
            mode: node.mode,
            len: image.len(),
            room_bytes: image.room_bytes(),
            links: if node.kind == InodeKind::Directory { 2 } else { self.names.links(inode) },
        })
    }

    /// Returns the inode of a path from the root.
    pub fn find(&self, path: &Path) -> CallAnswer<u64> {
        let parts = path.components().filter_map(|component| match component {
            Component::Normal(part) => Some(part),
            _ => None,
        });
        parts.into_iter().try_fold(ROOT, |directory, part| self.look_up(directory, part))
    }

    /// Returns the entries of a directory.
    pub fn list(&self, directory: u64) -> impl Iterator<Item = (&OsStr, u64)> {
        self.names.list(directory)
    }

    /// Creates an inode with this name.
    pub fn make(
        &mut self,
        parent: u64,
        name: &OsStr,
        mode: u16,
        kind: InodeKind,
    ) -> CallAnswer<u64> {
        self.check_new(parent, name)?;
        let inode = self.next_inode;
        self.next_inode += 1;
        let node = Node { kind, mode: mode & MODE_MAX, file: File::default() };
        self.nodes.insert(inode, node);
        self.names.set(parent, name, Some(inode));
        Ok(inode)
    }

    /// Adds another name to a file.
    pub fn link(&mut self, inode: u64, parent: u64, name: &OsStr) -> CallAnswer<()> {
        self.check_new(parent, name)?;
        self.file(inode).map_err(|_| Errno::PERM)?;
        self.names.set(parent, name, Some(inode));
        Ok(())
    }

    fn check_new(&self, parent: u64, name: &OsStr) -> CallAnswer<()> {
        if self.status(parent)?.kind != InodeKind::Directory {
            return Err(Errno::NOTDIR);
        }
        if self.names.get(parent, name).is_some() { Err(Errno::EXIST) } else { Ok(()) }
    }

    /// Removes the name of a file, or of an empty directory.
    pub fn remove(&mut self, parent: u64, name: &OsStr, directory: bool) -> CallAnswer<()> {
        let inode = self.look_up(parent, name)?;
        self.check_removable(inode, directory)?;
        self.names.set(parent, name, None);
        Ok(())
    }

    fn check_removable(&self, inode: u64, directory: bool) -> CallAnswer<()> {
        match (self.status(inode)?.kind == InodeKind::Directory, directory) {
            (true, false) => Err(Errno::ISDIR),
            (false, true) => Err(Errno::NOTDIR),
            (true, true) if self.list(inode).next().is_some() => Err(Errno::NOTEMPTY),
            _ => Ok(()),
        }
    }

    /// Renames, and replaces the target; with `keep`, the target must not exist.
    pub fn rename(&mut self, from: (u64, &OsStr), to: (u64, &OsStr), keep: bool) -> CallAnswer<()> {
        let inode = self.look_up(from.0, from.1)?;
        let directory = self.status(inode)?.kind == InodeKind::Directory;
        match self.look_up(to.0, to.1) {
            Ok(_) if keep => return Err(Errno::EXIST),
            Ok(there) if there == inode => return Ok(()),
            Ok(there) => self.check_removable(there, directory)?,
            Err(_) => self.check_new(to.0, to.1)?,
        }
        self.names.rename(from, to, inode);
        Ok(())
    }

    /// Sets permissions.
    pub fn set_mode(&mut self, inode: u64, mode: u16) -> CallAnswer<()> {
        self.nodes.get_mut(&inode).ok_or(Errno::STALE)?.mode = mode & MODE_MAX;
        Ok(())
    }

    fn file(&self, inode: u64) -> CallAnswer<&File> {
        match self.nodes.get(&inode).ok_or(Errno::STALE)? {
            Node { kind: InodeKind::File, file, .. } => Ok(file),
            _ => Err(Errno::ISDIR),
        }
    }

    fn file_mut(&mut self, inode: u64) -> CallAnswer<(u64, &mut File)> {
        match self.nodes.get_mut(&inode).ok_or(Errno::STALE)? {
            Node { kind: InodeKind::File, file, .. } => {
                self.next_call += 1;
                Ok((self.next_call, file))
            }
            _ => Err(Errno::ISDIR),
        }
    }

    /// Reads bytes of a file, fewer at its end.
    pub fn read(&self, inode: u64, range: Range<u64>) -> CallAnswer<Vec<u8>> {
        Ok(self.file(inode)?.image().read(range))
    }

    /// Writes bytes, past the end as well.
    pub fn write(&mut self, inode: u64, offset: u64, data: &[u8]) -> CallAnswer<()> {
        let end = offset.checked_add(data.len() as u64).ok_or(Errno::FBIG)?;
        if end > FILE_BYTES_MAX {
            return Err(Errno::FBIG);
        }
        let image = self.file(inode)?.image();
        let new = image.additional_bytes(offset..end);
        if new > 0 && new > self.room().1 {
            return Err(Errno::NOSPC);
        }
        let (call, file) = self.file_mut(inode)?;
        file.write(call, offset, data);
        Ok(())
    }

    /// Makes bytes read as zeroes, and frees their space.
    pub fn clear(&mut self, inode: u64, range: Range<u64>) -> CallAnswer<()> {
        let (call, file) = self.file_mut(inode)?;
        file.clear(call, range);
        Ok(())
    }

    /// Makes a file longer or shorter.
    pub fn set_len(&mut self, inode: u64, len: u64) -> CallAnswer<()> {
        if len > FILE_BYTES_MAX {
            return Err(Errno::FBIG);
        }
        let (call, file) = self.file_mut(inode)?;
        file.set_len(call, len);
        Ok(())
    }

    /// Returns the first data at or after `offset`, or the first hole.
    pub fn seek(&self, inode: u64, offset: u64, hole: bool) -> CallAnswer<u64> {
        let image = self.file(inode)?.image();
        let found = if hole { image.next_hole(offset) } else { image.next_data(offset) };
        found.ok_or(Errno::NXIO)
    }

    /// Begins a sync of a file or directory.
    pub fn begin_sync(&self, inode: u64) -> CallAnswer<Sync> {
        self.status(inode)?;
        Ok(Sync { inode, before: self.next_call + 1 })
    }

    /// Ends a sync. After a sync of a directory its entries are on the disk, not the inodes they
    /// name.
    pub fn end_sync(&mut self, sync: Sync) -> CallAnswer<()> {
        let node = self.nodes.get_mut(&sync.inode).ok_or(Errno::STALE)?;
        node.file.sync(sync.before);
        if node.kind == InodeKind::Directory {
            self.names.sync(sync.inode);
        }
        Ok(())
    }

    /// Ends a sync with an error: a part of the changes is not on the disk, and later syncs do not
    /// report it.
    pub fn fail_sync(&mut self, sync: Sync, random: &mut Random) {
        let units = self.sector_units;
        if let Ok((_, file)) = self.file_mut(sync.inode) {
            file.fail_sync(units, random);
        }
    }

    /// Turns the power off and on again: synced data is there, and of the unsynced changes those
    /// that the seed selects: 0 none, 1 all, others some.
    pub fn cut(&mut self, seed: u64) {
        let mut chance = CutRandom::new(seed);
        self.names.cut(&mut chance);
        let reachable = self.reachable();
        self.names.retain_reachable(&reachable);
        self.nodes.retain(|inode, _| reachable.contains(inode));
        for node in self.nodes.values_mut() {
            node.file.cut(self.sector_units, &mut chance);
        }
    }

    fn reachable(&self) -> BTreeSet<u64> {
        let mut reachable = BTreeSet::new();
        let mut left = vec![ROOT];
        while let Some(inode) = left.pop() {
            if reachable.insert(inode) {
                left.extend(self.list(inode).map(|(_, of)| of));
            }
        }
        reachable
    }
}

#[cfg(test)]
mod tests;
