//! The executor behind the target's machines: block disks in memory that answer in any order.

use super::rng::Rng;
use crate::connection::target::{Outcome, Task};
use crate::framing::TaskId;
use alloc::collections::BTreeMap;
use alloc::vec;
use alloc::vec::Vec;
use bytes::Bytes;
use lunar_wire::{Lun, LunForm};

/// Operation code of XDWRITEREAD(10), with which the simulated disk writes blocks and returns their
/// former contents.
pub const EXCHANGE: u8 = 0x53;

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
    /// Writes, and returns what was there.
    Exchange {
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
            EXCHANGE => (number(2..6), number(7..9)),
            _ => return Self::Refuse(5, 0x2000),
        };
        let end = lba.checked_add(count).and_then(|end| end.checked_mul(BLOCK_BYTES as u64));
        if end.is_none_or(|end| end > disk.blocks.len() as u64) {
            return Self::Refuse(5, 0x2100);
        }
        let (at, bytes) = (lba as usize * BLOCK_BYTES, count as usize * BLOCK_BYTES);
        if cdb[0] == EXCHANGE {
            return Self::Exchange { at, bytes };
        }
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
    /// Writes whose data is taken as it arrives.
    streams: BTreeMap<Key, Streamed>,
    /// Data-in that is sent in pieces, by task.
    reads: BTreeMap<Key, Reading>,
    /// Jobs that are ready to be answered, in any order.
    jobs: Vec<Job>,
    /// Every command started, in order: its connection and its CDB.
    pub(super) started: Vec<(usize, Bytes)>,
}

/// Data-out that is taken as it arrives.
#[derive(Debug, Default)]
struct Streamed {
    /// The segment that is arriving.
    arriving: Vec<u8>,
    wanted_bytes: usize,
    checked_bytes: usize,
}

/// Data-in that is sent in pieces.
#[derive(Debug)]
struct Reading {
    data: Bytes,
    at: usize,
    /// Number of announced bytes that are not sent.
    open_bytes: usize,
    outcome: Outcome,
}

/// Way in which a task takes its data-out.
#[derive(Clone, Copy, Debug)]
pub(super) enum Takes {
    Nothing,
    Whole { bytes: u32 },
    Stream { bytes: u32 },
}

/// Result of a job.
#[derive(Debug)]
pub(super) enum Work {
    Piece { offset_bytes: u32, data: Bytes },
    Begin { offset_bytes: u32, bytes: u32 },
    Part { data: Bytes },
    End(Outcome),
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

    /// Starts a command; returns how it takes its data-out. One in three takes it as it arrives.
    pub(super) fn start(&mut self, link: usize, task: &Task) -> Takes {
        let disk = match task.lun.form() {
            LunForm::Unit(number) => self.disks.get(&number),
            _ => None,
        };
        let plan = Plan::of(&task.cdb, disk);
        let key = (link, task.id);
        assert!(self.plans.insert(key, (task.lun, plan)).is_none(), "started twice: {task:?}");
        self.started.push((link, Bytes::copy_from_slice(&task.cdb)));
        match plan {
            Plan::Write { bytes, .. } | Plan::Exchange { bytes, .. } if bytes > 0 => {
                let bytes_max = if task.write { task.expected_bytes as usize } else { 0 };
                let wanted_bytes = bytes.min(bytes_max);
                if !task.id.0.is_multiple_of(3) || bytes_max == 0 {
                    return Takes::Whole { bytes: wanted_bytes as u32 };
                }
                self.buffers.entry(key).or_insert_with(|| vec![0; bytes_max]);
                self.streams.insert(key, Streamed { wanted_bytes, ..Streamed::default() });
                Takes::Stream { bytes: wanted_bytes as u32 }
            }
            _ => {
                self.jobs.push(Job::Run(key));
                Takes::Nothing
            }
        }
    }

    pub(super) fn run(&mut self, key: Key) {
        assert!(self.plans.contains_key(&key), "run before start");
        self.jobs.push(Job::Run(key));
    }

    /// Begins a segment that arrives as a stream.
    pub(super) fn begin_segment(&mut self, key: Key) {
        if let Some(stream) = self.streams.get_mut(&key) {
            stream.arriving.clear();
        }
    }

    /// Takes bytes of a stream.
    pub(super) fn take_streamed(&mut self, key: Key, bytes: &[u8]) {
        let stream = self.streams.get_mut(&key).expect("a task that streams");
        stream.arriving.extend_from_slice(bytes);
    }

    /// Takes in a checked range; the task runs when it has all that it wants.
    pub(super) fn checked(&mut self, key: Key, offset: usize, bytes: usize) {
        let stream = self.streams.get_mut(&key).expect("a task that streams");
        let arrived = core::mem::take(&mut stream.arriving);
        if !arrived.is_empty() {
            assert_eq!(arrived.len(), bytes);
            let buffer = self.buffers.get_mut(&key).expect("a buffer");
            buffer[offset..offset + bytes].copy_from_slice(&arrived);
        }
        let wanted = |end: usize| end.min(stream.wanted_bytes);
        let before = stream.checked_bytes;
        let after = before + wanted(offset + bytes) - wanted(offset);
        stream.checked_bytes = after;
        if before < after && after == stream.wanted_bytes {
            self.jobs.push(Job::Run(key));
        }
    }

    /// Stops a task and frees its buffer at once, because nothing else uses it. `false`: the task
    /// is unknown.
    pub(super) fn abort(&mut self, key: Key) -> bool {
        self.buffers.remove(&key);
        self.streams.remove(&key);
        self.reads.remove(&key);
        self.jobs.retain(|job| !matches!(job, Job::Run(other) if *other == key));
        let was_here = self.plans.remove(&key).is_some();
        if was_here {
            self.jobs.push(Job::Aborted(key));
        }
        was_here
    }

    /// Discards the aborts of a closed connection, which are the only jobs it may have left.
    pub(super) fn forget(&mut self, link: usize) {
        self.jobs.retain(|job| !matches!(job, Job::Aborted((owner, _)) if *owner == link));
    }

    pub(super) fn is_due(&self) -> bool {
        !self.jobs.is_empty()
    }

    /// True if there is no task, no buffer and no job.
    pub(super) fn is_idle(&self) -> bool {
        self.plans.is_empty()
            && self.buffers.is_empty()
            && self.jobs.is_empty()
            && self.streams.is_empty()
            && self.reads.is_empty()
    }

    /// Carries out a random job, or a part of one.
    pub(super) fn work(&mut self, rng: &mut Rng) -> (Key, Work) {
        match self.jobs.swap_remove(rng.below(self.jobs.len())) {
            Job::Run(key) => {
                if !self.reads.contains_key(&key) {
                    let fenced = rng.once_in(10);
                    let outcome = Outcome { fenced, ..self.carry_out(key) };
                    if outcome.data_in.is_empty() {
                        return (key, Work::End(outcome));
                    }
                    let (data, at, open_bytes) = (outcome.data_in.clone(), 0, 0);
                    self.reads.insert(key, Reading { data, at, open_bytes, outcome });
                }
                (key, self.read_on(key, rng))
            }
            Job::Aborted(key) => (key, Work::End(Outcome::default())),
        }
    }

    /// Sends the next piece of data-in, or the rest.
    fn read_on(&mut self, key: Key, rng: &mut Rng) -> Work {
        let reading = self.reads.get_mut(&key).expect("a task with data-in");
        let (offset_bytes, left) = (reading.at as u32, reading.data.len() - reading.at);
        if reading.open_bytes > 0 {
            let bytes = 1 + rng.below(reading.open_bytes);
            let data = reading.data.slice(reading.at..reading.at + bytes);
            reading.at += bytes;
            reading.open_bytes -= bytes;
            self.jobs.push(Job::Run(key));
            return Work::Part { data };
        }
        if left == 0 || rng.once_in(2) {
            let reading = self.reads.remove(&key).expect("it was there");
            let data_in = reading.data.slice(reading.at..);
            self.plans.remove(&key);
            return Work::End(Outcome { data_in, ..reading.outcome });
        }
        self.jobs.push(Job::Run(key));
        let bytes = 1 + rng.below(left);
        if rng.once_in(2) {
            reading.open_bytes = bytes;
            return Work::Begin { offset_bytes, bytes: bytes as u32 };
        }
        let data = reading.data.slice(reading.at..reading.at + bytes);
        reading.at += bytes;
        Work::Piece { offset_bytes, data }
    }

    fn carry_out(&mut self, key: Key) -> Outcome {
        // A task with data-in keeps its plan until all of it is given.
        let (lun, plan) = *self.plans.get(&key).expect("a planned task");
        if !matches!(plan, Plan::Read { bytes, .. } | Plan::Exchange { bytes, .. } if bytes > 0) {
            self.plans.remove(&key);
        }
        self.streams.remove(&key);
        let buffer = self.buffers.remove(&key).unwrap_or_default();
        let LunForm::Unit(number) = lun.form() else { return refusal(5, 0x2500) };
        match plan {
            Plan::Ready => Outcome::default(),
            Plan::Refuse(key, code) => refusal(key, code),
            Plan::Read { at, bytes } => {
                let data = self.disk(number).bytes(at..at + bytes).to_vec();
                Outcome { data_in: data.into(), ..Outcome::default() }
            }
            Plan::Exchange { at, bytes } => {
                let data = self.disk(number).bytes(at..at + bytes).to_vec();
                let whole = bytes.min(buffer.len()) / BLOCK_BYTES * BLOCK_BYTES;
                self.disk(number).fill(at, &buffer[..whole]);
                let data_out_bytes = bytes as u32;
                Outcome { data_in: data.into(), data_out_bytes, ..Outcome::default() }
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
