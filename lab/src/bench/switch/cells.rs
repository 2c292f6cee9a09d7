//! Table of what is measured: scenes, and the loads in each of them.

use lunar_load::AccessPattern::{self, RandomRead, RandomWrite, Read, Write};
use lunar_load::report::size_text;
use serde::Serialize;

/// Storages, hosts and network of some cells.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct SceneKind {
    /// Its name in keys and options.
    pub key: &'static str,
    pub title: &'static str,
    pub storage: StorageKind,
    /// Number of hosts, and of storages: each host has a LUN on its own storage.
    pub hosts: usize,
    /// True if all are connected by links of 1 Gbit/s.
    pub is_linked: bool,
    pub loads: &'static [LoadGroup],
}

/// Target that the blocks are on.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum StorageKind {
    /// The null target: as little as possible besides the switch.
    Null,
    /// `lunar serve` with a disk in memory.
    Lunar,
    /// tgt with a file in memory.
    Tgt,
}

/// Loads of these patterns in all these sizes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct LoadGroup {
    pub patterns: &'static [AccessPattern],
    pub sizes: &'static [u32],
    /// Requests in flight of each host; `None`: [`depth`].
    pub depth: Option<usize>,
}

/// Way from hosts to storages.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum SwitchPath {
    /// No switch.
    Direct,
    /// A relay of bytes that knows no protocol.
    Bytes,
    /// `lunar switch --path slow`.
    Slow,
    /// `lunar switch --path fast`.
    Fast,
    /// tgt on a file that `qemu-storage-daemon` exports.
    Foreign,
}

/// All paths, in the order of the report.
pub const PATHS: [SwitchPath; 5] = [
    SwitchPath::Direct,
    SwitchPath::Bytes,
    SwitchPath::Slow,
    SwitchPath::Fast,
    SwitchPath::Foreign,
];

impl SwitchPath {
    pub const fn name(self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::Bytes => "byte relay",
            Self::Slow => "slow path",
            Self::Fast => "fast path",
            Self::Foreign => "tgt and QEMU",
        }
    }

    /// Returns its index in [`PATHS`].
    pub const fn index(self) -> usize {
        self as usize
    }
}

const K4: u32 = 4 << 10;
const K64: u32 = 64 << 10;
const K512: u32 = 512 << 10;
/// Request size from which on fewer requests are in flight.
const LARGE: u32 = K64;

/// Block sizes from those of a disk to 1 MiB.
const SIZES: &[u32] = &[512, K4, 16 << 10, K64, 256 << 10, K512, 1 << 20];
const FEW_SIZES: &[u32] = &[K4, K64, K512];
const RANDOM: &[AccessPattern] = &[RandomRead, RandomWrite];
const ALL: &[AccessPattern] = &[RandomRead, RandomWrite, Read, Write];

const fn group(patterns: &'static [AccessPattern], sizes: &'static [u32]) -> LoadGroup {
    LoadGroup { patterns, sizes, depth: None }
}

/// All scenes.
pub const SCENES: [SceneKind; 5] = [
    SceneKind {
        key: "null",
        title: "The null target as storage",
        storage: StorageKind::Null,
        hosts: 1,
        is_linked: false,
        loads: &[group(ALL, SIZES), LoadGroup { patterns: RANDOM, sizes: &[K4], depth: Some(1) }],
    },
    SceneKind {
        key: "lunar",
        title: "lunar serve as storage, a disk in memory",
        storage: StorageKind::Lunar,
        hosts: 1,
        is_linked: false,
        loads: &[group(RANDOM, FEW_SIZES)],
    },
    SceneKind {
        key: "tgt",
        title: "tgt as storage, a file in memory",
        storage: StorageKind::Tgt,
        hosts: 1,
        is_linked: false,
        loads: &[group(RANDOM, FEW_SIZES)],
    },
    SceneKind {
        key: "two",
        title: "Two hosts with two storages, both null targets",
        storage: StorageKind::Null,
        hosts: 2,
        is_linked: false,
        loads: &[group(RANDOM, FEW_SIZES)],
    },
    SceneKind {
        key: "link",
        title: "Links of 1 Gbit/s, as in the paper",
        storage: StorageKind::Lunar,
        hosts: 1,
        is_linked: true,
        loads: &[group(RANDOM, SIZES)],
    },
];

/// Load of one cell.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct CellLoad {
    pub pattern: AccessPattern,
    pub io_bytes: u32,
    /// Requests in flight of each host.
    pub depth: usize,
}

impl CellLoad {
    /// Returns its name: `rand-read, 4Ki, depth 32`.
    pub fn name(&self) -> String {
        let size = size_text(self.io_bytes.into());
        format!("{}, {size}, depth {}", self.pattern.name(), self.depth)
    }
}

/// Returns the requests in flight for requests of this size, enough for the highest throughput.
pub const fn depth(io_bytes: u32) -> usize {
    if io_bytes < LARGE { 32 } else { 8 }
}

impl SceneKind {
    /// Returns the loads of its cells; with `size` only those of this request size.
    pub fn cells(&self, size: Option<u64>) -> Vec<CellLoad> {
        let mut cells = Vec::new();
        for group in self.loads {
            for pattern in group.patterns {
                let sizes = group.sizes.iter();
                for io_bytes in sizes.filter(|one| size.is_none_or(|size| size == u64::from(**one)))
                {
                    let depth = group.depth.unwrap_or(depth(*io_bytes));
                    cells.push(CellLoad { pattern: *pattern, io_bytes: *io_bytes, depth });
                }
            }
        }
        cells
    }
}
