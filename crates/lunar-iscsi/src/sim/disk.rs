//! The executor behind the target's machines: block disks in memory that answer in any order.

use super::rng::Rng;
use crate::connection::target::{Outcome, Task};
use crate::framing::TaskId;
use alloc::collections::BTreeMap;
use alloc::vec;
use alloc::vec::Vec;
use bytes::Bytes;
use lunar_wire::{Lun, LunForm};

/// Length of a block.
pub const BLOCK_BYTES: usize = 512;

/// A disk of [`BLOCK_BYTES`] blocks.
pub struct SimDisk {
    blocks: Vec<u8>,
}

impl core::fmt::Debug for SimDisk {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "Disk({} bytes)", self.blocks.len())
    }
}

impl SimDisk {
    /// Creates a disk of zeroes.
    pub fn new(block_count: usize) -> Self {
        Self { blocks: vec![0; block_count * BLOCK_BYTES] }
    }

    /// Returns the bytes in this range.
    pub fn bytes(&self, range: core::ops::Range<usize>) -> &[u8] {
        &self.blocks[range]
    }

    /// Writes bytes at this offset.
    pub fn fill(&mut self, at_bytes: usize, bytes: &[u8]) {
        self.blocks[at_bytes..at_bytes + bytes.len()].copy_from_slice(bytes);
    }
}

/// The operation of a CDB.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Plan {
    Read {
        at: usize,
        bytes: usize,
    },
    Write {
        at: usize,
        bytes: usize,
    },
    Ready,
    /// Sense key and additional sense code.
    Refuse(u8, u16),
}

impl Plan {
    fn of(cdb: &[u8], disk: Option<&SimDisk>) -> Self {
        let Some(disk) = disk else { return Self::Refuse(5, 0x2500) };
        let number = |range: core::ops::Range<usize>| {
            cdb[range].iter().fold(0u64, |value, byte| value << 8 | u64::from(*byte))
        };
        let (lba, count) = match cdb[0] {
            0x00 => return Self::Ready,
            0x28 | 0x2a => (number(2..6), number(7..9)),
            0x88 | 0x8a => (number(2..10), number(10..14)),
            _ => return Self::Refuse(5, 0x2000),
        };
        let end = lba.checked_add(count).and_then(|end| end.checked_mul(BLOCK_BYTES as u64));
        if end.is_none_or(|end| end > disk.blocks.len() as u64) {
            return Self::Refuse(5, 0x2100);
        }
        let (at, bytes) = (lba as usize * BLOCK_BYTES, count as usize * BLOCK_BYTES);
        if cdb[0] & 0x02 != 0 { Self::Write { at, bytes } } else { Self::Read { at, bytes } }
    }
}

/// Identifies a task over all connections.
pub(super) type Key = (usize, TaskId);

/// State of the executor.
#[derive(Debug, Default)]
pub(super) struct Executor {
    disks: BTreeMap<u16, SimDisk>,
    plans: BTreeMap<Key, (Lun, Plan)>,
    /// Data-out buffers, by task.
    pub(super) buffers: BTreeMap<Key, Vec<u8>>,
    /// Jobs that are ready to be answered, in any order.
    jobs: Vec<Job>,
    /// Every command started, in order: its connection and its CDB.
    pub(super) started: Vec<(usize, Bytes)>,
}

#[derive(Clone, Copy, Debug)]
enum Job {
    Run(Key),
    Aborted(Key),
}

impl Executor {
    pub(super) fn add_disk(&mut self, lun: u16, disk: SimDisk) {
        self.disks.insert(lun, disk);
    }

    pub(super) fn disk(&mut self, lun: u16) -> &mut SimDisk {
        self.disks.get_mut(&lun).expect("a disk of that number")
    }

    pub(super) fn has_disk(&self, lun: u16) -> bool {
        self.disks.contains_key(&lun)
    }

    /// Starts a command; returns the length of the data-out it needs, if any.
    pub(super) fn start(&mut self, link: usize, task: &Task) -> Option<u32> {
        let disk = match task.lun.form() {
            LunForm::Unit(number) => self.disks.get(&number),
            _ => None,
        };
        let plan = Plan::of(&task.cdb, disk);
        let key = (link, task.id);
        assert!(self.plans.insert(key, (task.lun, plan)).is_none(), "started twice: {task:?}");
        self.started.push((link, Bytes::copy_from_slice(&task.cdb)));
        match plan {
            Plan::Write { bytes, .. } if bytes > 0 => {
                let most = if task.write { task.expected_bytes as usize } else { 0 };
                Some(bytes.min(most) as u32)
            }
            _ => {
                self.jobs.push(Job::Run(key));
                None
            }
        }
    }

    pub(super) fn run(&mut self, key: Key) {
        assert!(self.plans.contains_key(&key), "run before start");
        self.jobs.push(Job::Run(key));
    }

    /// Stops a task and frees its buffer at once, because nothing else uses it. `false`: the task
    /// is unknown.
    pub(super) fn abort(&mut self, key: Key) -> bool {
        self.buffers.remove(&key);
        self.jobs.retain(|job| !matches!(job, Job::Run(other) if *other == key));
        let was_here = self.plans.remove(&key).is_some();
        if was_here {
            self.jobs.push(Job::Aborted(key));
        }
        was_here
    }

    /// Discards the aborts of a closed connection, which are the only jobs it may have left.
    pub(super) fn forget(&mut self, link: usize) {
        self.jobs.retain(|job| !matches!(job, Job::Aborted((of, _)) if *of == link));
    }

    pub(super) fn is_due(&self) -> bool {
        !self.jobs.is_empty()
    }

    /// True if there is no task, no buffer and no job.
    pub(super) fn is_idle(&self) -> bool {
        self.plans.is_empty() && self.buffers.is_empty() && self.jobs.is_empty()
    }

    /// Carries out a random job.
    pub(super) fn work(&mut self, rng: &mut Rng) -> (Key, Outcome) {
        match self.jobs.swap_remove(rng.below(self.jobs.len())) {
            Job::Run(key) => {
                let fenced = rng.once_in(10);
                (key, Outcome { fenced, ..self.carry_out(key) })
            }
            Job::Aborted(key) => (key, Outcome::default()),
        }
    }

    fn carry_out(&mut self, key: Key) -> Outcome {
        let (lun, plan) = self.plans.remove(&key).expect("a planned task");
        let buffer = self.buffers.remove(&key).unwrap_or_default();
        let LunForm::Unit(number) = lun.form() else { return refusal(5, 0x2500) };
        match plan {
            Plan::Ready => Outcome::default(),
            Plan::Refuse(key, code) => refusal(key, code),
            Plan::Read { at, bytes } => {
                let data = self.disk(number).bytes(at..at + bytes).to_vec();
                Outcome { data_in: data.into(), ..Outcome::default() }
            }
            Plan::Write { at, bytes } => {
                let whole = bytes.min(buffer.len()) / BLOCK_BYTES * BLOCK_BYTES;
                self.disk(number).fill(at, &buffer[..whole]);
                Outcome { data_out_bytes: bytes as u32, ..Outcome::default() }
            }
        }
    }
}

/// Builds a CHECK CONDITION with fixed format sense data.
pub(super) fn refusal(key: u8, code: u16) -> Outcome {
    let mut sense = [0; 18];
    let [code, qualifier] = code.to_be_bytes();
    (sense[0], sense[2], sense[7], sense[12], sense[13]) = (0x70, key, 10, code, qualifier);
    Outcome { status: 2, sense: Bytes::copy_from_slice(&sense), ..Outcome::default() }
}
