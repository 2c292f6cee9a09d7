//! The entries of all directories: durable ones, current ones, and the changes between them.

use super::file::{CutRandom, WrittenPart};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};

/// A directory, and a name in it.
type Entry = (u64, OsString);

/// Directory entries. A change reaches the disk when a directory that it touches is synced, and
/// possibly at a power cut; syncing the file that an entry names does not help.
#[derive(Clone, Debug, Default)]
pub(super) struct Names {
    durable: BTreeMap<Entry, u64>,
    current: BTreeMap<Entry, u64>,
    pending: Vec<Change>,
}

/// Entries that change to another inode, or to none, all at once or not at all.
type Change = Vec<(Entry, Option<u64>)>;

impl Names {
    pub(super) fn get(&self, directory: u64, name: &OsStr) -> Option<u64> {
        self.current.get(&(directory, name.to_owned())).copied()
    }

    /// Returns the entries of a directory, in order.
    pub(super) fn list(&self, directory: u64) -> impl Iterator<Item = (&OsStr, u64)> {
        let all = self.current.range((directory, OsString::new())..);
        all.take_while(move |((of, _), _)| *of == directory)
            .map(|((_, name), inode)| (name.as_os_str(), *inode))
    }

    /// Returns the number of entries that name this inode.
    pub(super) fn links(&self, inode: u64) -> u32 {
        self.current.values().filter(|of| **of == inode).count() as u32
    }

    /// Sets or removes an entry.
    pub(super) fn set(&mut self, directory: u64, name: &OsStr, inode: Option<u64>) {
        self.change(vec![((directory, name.to_owned()), inode)]);
    }

    /// Renames an entry, whole or not at all.
    pub(super) fn rename(&mut self, from: (u64, &OsStr), to: (u64, &OsStr), inode: u64) {
        let (from, to) = ((from.0, from.1.to_owned()), (to.0, to.1.to_owned()));
        self.change(vec![(from, None), (to, Some(inode))]);
    }

    fn change(&mut self, change: Change) {
        apply(&mut self.current, &change);
        self.pending.push(change);
    }

    /// Makes the changes of a directory durable, and earlier changes of the same entries in other
    /// directories.
    pub(super) fn sync(&mut self, directory: u64) {
        let mut entries = BTreeSet::new();
        let mut reaches = vec![false; self.pending.len()];
        for (change, reaches) in self.pending.iter().zip(&mut reaches).rev() {
            *reaches = change.iter().any(|(e, _)| e.0 == directory || entries.contains(e));
            if *reaches {
                entries.extend(change.iter().map(|(entry, _)| entry.clone()));
            }
        }
        let pending = std::mem::take(&mut self.pending);
        for (change, reaches) in pending.into_iter().zip(reaches) {
            if reaches {
                apply(&mut self.durable, &change);
            } else {
                self.pending.push(change);
            }
        }
    }

    /// Turns the power off and on again. A journal keeps changes in order; other disks need not.
    pub(super) fn cut(&mut self, chance: &mut CutRandom) {
        let fate = chance.fate();
        let random = &mut chance.random;
        let journal = random.below(2) == 0;
        let first = random.below(self.pending.len() as u64 + 1) as usize;
        for (number, change) in std::mem::take(&mut self.pending).into_iter().enumerate() {
            let reaches = match fate {
                WrittenPart::Lost => false,
                WrittenPart::Kept => true,
                WrittenPart::Torn(_) if journal => number < first,
                WrittenPart::Torn(eighths) => random.below(8) < eighths,
            };
            if reaches {
                apply(&mut self.durable, &change);
            }
        }
        self.current = self.durable.clone();
    }

    /// Drops the entries of directories that are not in `reachable`.
    pub(super) fn retain_reachable(&mut self, reachable: &BTreeSet<u64>) {
        self.durable.retain(|(directory, _), _| reachable.contains(directory));
        self.current.retain(|(directory, _), _| reachable.contains(directory));
    }
}

fn apply(entries: &mut BTreeMap<Entry, u64>, change: &Change) {
    for (entry, inode) in change {
        match inode {
            Some(inode) => entries.insert(entry.clone(), *inode),
            None => entries.remove(entry),
        };
    }
}
