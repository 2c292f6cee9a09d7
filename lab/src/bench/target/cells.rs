//! Table of all measured cells, each with its setups.
//!
//! A *cell* is a store and a kind of requests to it. A *setup* is a server and a client. In each
//! round all setups of a cell have their turn, so that two of them can be compared round by round.

use lunar_load::AccessPattern::{self, RandomRead, RandomWrite, Read, Write};
use lunar_load::report::size_text;

/// Size of the part of every disk that is used.
pub const DISK_BYTES: u64 = 256 << 20;

/// BackingStore behind a target, and its mode.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct BackingStore {
    /// Its name in keys.
    pub name: &'static str,
    pub medium: StorageMedium,
    /// True when GOOD means that the bytes are durable.
    pub is_write_through: bool,
    /// True for I/O past the page cache (`O_DIRECT`).
    pub is_direct: bool,
}

/// Location of the bytes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum StorageMedium {
    /// A file in /dev/shm.
    Tmpfs,
    /// A file in the folder of `--directory`.
    Disk,
    /// `mem:`, which only Lunar supports.
    Memory,
}

pub const TMPFS: BackingStore = store("tmpfs", StorageMedium::Tmpfs, false, false);
pub const DISK: BackingStore = store("disk", StorageMedium::Disk, false, false);
pub const DISK_THROUGH: BackingStore = store("disk-through", StorageMedium::Disk, true, false);
pub const DISK_DIRECT: BackingStore = store("disk-direct", StorageMedium::Disk, false, true);
pub const DISK_DIRECT_THROUGH: BackingStore =
    store("disk-direct-through", StorageMedium::Disk, true, true);
pub const MEMORY: BackingStore = store("mem", StorageMedium::Memory, false, false);

const fn store(
    name: &'static str,
    medium: StorageMedium,
    through: bool,
    direct: bool,
) -> BackingStore {
    BackingStore { name, medium, is_write_through: through, is_direct: direct }
}

/// Server of a setup.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Contestant {
    Lunar,
    /// Another build of Lunar, to compare with.
    Base,
    /// Debian's tgt, its default backing store (`rdwr`).
    Tgt,
    /// Debian's tgt with the backing store `aio`, which is always direct.
    TgtAio,
    /// Login and canned answers, no SCSI and no store behind them.
    Null,
    /// No target: io_uring on the same file, in this process.
    Ring,
}

impl Contestant {
    /// True when it stores written data in the file of the store.
    pub const fn has_store(self) -> bool {
        !matches!(self, Self::Null | Self::Ring)
    }
}

/// Client of a setup.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum LoadClient {
    /// Our initiator (crates/lunar-initiator, crates/lunar-load), in this process.
    Ours,
    /// The generator on libiscsi (lab/libiscsi).
    Libiscsi,
    /// `lunar bench` of the build that serves.
    Own,
    /// Debian's `iscsi-perf`: reads only, reports no latencies.
    Perf,
}

/// Server, client, and the sessions between them.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Setup {
    pub contestant: Contestant,
    pub client: LoadClient,
    /// Number of sessions, each with the depth of the cell.
    pub sessions: u16,
    /// Number of connections of each session; they share its depth.
    pub connections: u16,
    /// True for header and data digests (CRC32C).
    pub digests: bool,
}

pub const LUNAR: Setup = setup(Contestant::Lunar);
pub const BASE: Setup = setup(Contestant::Base);
pub const TGT: Setup = setup(Contestant::Tgt);
pub const TGT_AIO: Setup = setup(Contestant::TgtAio);
pub const NULL: Setup = setup(Contestant::Null);
pub const RING: Setup = setup(Contestant::Ring);

const fn setup(contestant: Contestant) -> Setup {
    Setup { contestant, client: LoadClient::Ours, sessions: 1, connections: 1, digests: false }
}

impl Setup {
    /// Uses libiscsi's generator as the client.
    pub const fn libiscsi(self) -> Self {
        Self { client: LoadClient::Libiscsi, ..self }
    }

    /// Uses iscsi-perf as the client.
    pub const fn perf(self) -> Self {
        Self { client: LoadClient::Perf, ..self }
    }

    /// Uses `lunar bench` of the same build as the client.
    pub const fn own_client(self) -> Self {
        Self { client: LoadClient::Own, ..self }
    }

    /// Sets the number of sessions.
    pub const fn sessions(self, sessions: u16) -> Self {
        Self { sessions, ..self }
    }

    /// Sets the number of connections of each session.
    pub const fn connections(self, connections: u16) -> Self {
        Self { connections, ..self }
    }

    /// Enables digests.
    pub const fn digests(self) -> Self {
        Self { digests: true, ..self }
    }

    /// Returns the name: `lunar`, `tgt by libiscsi`, `lunar, 4 sessions`.
    pub fn name(&self) -> String {
        let mut name = match self.contestant {
            Contestant::Lunar => "lunar",
            Contestant::Base => "base",
            Contestant::Tgt => "tgt",
            Contestant::TgtAio => "tgt aio",
            Contestant::Null => "null target",
            Contestant::Ring => "local io_uring",
        }
        .to_owned();
        match self.client {
            LoadClient::Ours => {}
            LoadClient::Libiscsi => name += " by libiscsi",
            LoadClient::Own => name += " by its own client",
            LoadClient::Perf => name += " by iscsi-perf",
        }
        for (count, what) in [(self.sessions, "sessions"), (self.connections, "connections")] {
            if count > 1 {
                name += &format!(", {count} {what}");
            }
        }
        if self.digests {
            name += ", digests";
        }
        name
    }
}

/// One cell.
#[derive(Clone, Copy, Debug)]
pub struct Cell {
    /// Special feature that distinguishes cells with otherwise equal keys; empty: none.
    pub about: &'static str,
    pub store: BackingStore,
    pub pattern: AccessPattern,
    pub io_bytes: u32,
    /// Requests under way at once in each session.
    pub depth: u16,
    /// True when target and client share all cores, instead of one core each.
    pub is_shared: bool,
    /// True for a part of the short form: some goal needs it.
    pub is_short: bool,
    pub setups: &'static [Setup],
}

impl Cell {
    /// Returns its key: `rand-read-4Ki-32-tmpfs`.
    pub fn key(&self) -> String {
        let (pattern, size) = (self.pattern.name(), size_text(self.io_bytes.into()));
        let dash = if self.about.is_empty() { "" } else { "-" };
        format!("{pattern}-{size}-{}-{}{dash}{}", self.depth, self.store.name, self.about)
    }

    /// Returns the maximum of a figure over its setups.
    pub fn most(&self, count: impl Fn(&Setup) -> u16) -> u16 {
        self.setups.iter().map(count).max().unwrap_or(1).max(1)
    }

    /// Returns the shape of the raw TCP probe that shows whether the machine was quiet.
    pub fn probe_kind(&self) -> ProbeKind {
        match (self.depth, self.io_bytes) {
            (1, _) => ProbeKind::Ping,
            (_, STREAM_BYTES..) => ProbeKind::Stream,
            _ => ProbeKind::Exchange,
        }
    }
}

/// Request size from which on throughput is bound by bytes and not by the number of requests.
const STREAM_BYTES: u32 = 64 << 10;

/// A shape of the probe.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ProbeKind {
    /// One request at a time.
    Ping,
    /// The same number of requests at once as the cell.
    Exchange,
    /// A stream in the direction of the data.
    Stream,
}

impl ProbeKind {
    pub const fn text(self) -> &'static str {
        match self {
            Self::Ping => "ping-pong",
            Self::Exchange => "pipelined exchange",
            Self::Stream => "stream",
        }
    }
}

const K4: u32 = 4 << 10;
const K64: u32 = 64 << 10;
const K256: u32 = 256 << 10;
const M1: u32 = 1 << 20;

const PAIR: &[Setup] = &[LUNAR, TGT];
const WITH_NULL: &[Setup] = &[LUNAR, TGT, NULL];
const LIBISCSI: &[Setup] = &[LUNAR.libiscsi(), TGT.libiscsi()];
const LIBISCSI_NULL: &[Setup] = &[LUNAR.libiscsi(), TGT.libiscsi(), NULL.libiscsi()];
const MEMORY_NULL: &[Setup] = &[LUNAR, NULL];
const PERF: &[Setup] = &[LUNAR.perf(), TGT.perf()];
const DIGESTS: &[Setup] = &[LUNAR, LUNAR.digests()];
const SESSIONS: &[Setup] = &[LUNAR.sessions(4), NULL.sessions(4)];
const TGT_SESSIONS: &[Setup] = &[LUNAR.sessions(4), TGT.sessions(4)];
const CONNECTIONS: &[Setup] = &[LUNAR, LUNAR.connections(4)];
const DIRECT_READ: &[Setup] = &[LUNAR, RING, TGT, TGT_AIO];
const DIRECT: &[Setup] = &[LUNAR, TGT, TGT_AIO];

/// All cells. `make bench` measures those with `short`.
#[rustfmt::skip] // a table
pub const CELLS: &[Cell] = &[
    // File in memory: the cost of the request path.
    short("", TMPFS, RandomRead, K4, 1, PAIR),
    short("", TMPFS, RandomRead, K4, 32, WITH_NULL),
    short("libiscsi", TMPFS, RandomRead, K4, 32, LIBISCSI_NULL),
    short("", TMPFS, RandomWrite, K4, 1, PAIR),
    short("", TMPFS, RandomWrite, K4, 32, WITH_NULL),
    short("", TMPFS, Read, K256, 8, PAIR),
    short("", TMPFS, Write, K256, 8, PAIR),
    short("", TMPFS, Read, M1, 8, PAIR),
    short("digests", TMPFS, RandomRead, K4, 32, DIGESTS),
    short("digests", TMPFS, Read, K256, 8, DIGESTS),
    short("sessions", TMPFS, RandomRead, K4, 32, SESSIONS),
    short("connections", TMPFS, RandomRead, K4, 32, CONNECTIONS),
    short("connections", TMPFS, RandomWrite, K4, 32, CONNECTIONS),
    shared(short("two-cores", TMPFS, RandomRead, K4, 32, CONNECTIONS)),
    full("", TMPFS, RandomRead, K4, 8, WITH_NULL),
    full("", TMPFS, RandomWrite, K4, 8, WITH_NULL),
    full("libiscsi", TMPFS, RandomRead, K4, 1, LIBISCSI),
    full("libiscsi", TMPFS, RandomRead, K4, 8, LIBISCSI),
    full("libiscsi", TMPFS, RandomWrite, K4, 1, LIBISCSI),
    full("libiscsi", TMPFS, RandomWrite, K4, 8, LIBISCSI),
    full("libiscsi", TMPFS, RandomWrite, K4, 32, LIBISCSI),
    full("libiscsi", TMPFS, Read, K256, 8, LIBISCSI),
    full("libiscsi", TMPFS, Write, K256, 8, LIBISCSI),
    full("iscsi-perf", TMPFS, RandomRead, K4, 1, PERF),
    full("iscsi-perf", TMPFS, RandomRead, K4, 32, PERF),
    full("iscsi-perf", TMPFS, Read, K256, 8, PERF),
    full("", TMPFS, Read, K64, 8, PAIR),
    full("", TMPFS, Write, K64, 8, PAIR),
    full("", TMPFS, Write, M1, 8, PAIR),
    full("digests", TMPFS, RandomWrite, K4, 32, DIGESTS),
    full("digests", TMPFS, Write, K256, 8, DIGESTS),
    full("tgt-sessions", TMPFS, RandomRead, K4, 32, TGT_SESSIONS),
    full("tgt-sessions", TMPFS, RandomWrite, K4, 32, TGT_SESSIONS),
    shared(full("two-cores", TMPFS, RandomWrite, K4, 32, CONNECTIONS)),
    shared(full("two-cores-pair", TMPFS, RandomRead, K4, 32, PAIR)),
    // No file at all, as behind the null target: the cost of sockets, iSCSI and SCSI remains.
    full("null", MEMORY, RandomRead, K4, 32, MEMORY_NULL),
    full("sessions", MEMORY, RandomRead, K4, 32, SESSIONS),
    // File on a disk, in the page cache.
    short("", DISK, RandomRead, K4, 32, PAIR),
    full("", DISK, RandomRead, K4, 1, PAIR),
    full("", DISK, RandomRead, K4, 8, PAIR),
    full("", DISK, RandomWrite, K4, 1, PAIR),
    full("", DISK, RandomWrite, K4, 8, PAIR),
    full("", DISK, RandomWrite, K4, 32, PAIR),
    full("", DISK, Read, K64, 8, PAIR),
    full("", DISK, Read, K256, 8, PAIR),
    full("", DISK, Read, M1, 8, PAIR),
    full("", DISK, Write, K64, 8, PAIR),
    full("", DISK, Write, K256, 8, PAIR),
    full("", DISK, Write, M1, 8, PAIR),
    // GOOD means durable.
    short("", DISK_THROUGH, RandomWrite, K4, 32, PAIR),
    full("", DISK_THROUGH, RandomWrite, K4, 1, PAIR),
    full("", DISK_THROUGH, RandomWrite, K4, 8, PAIR),
    full("", DISK_THROUGH, Write, K256, 8, PAIR),
    // Past the page cache.
    short("", DISK_DIRECT, RandomRead, K4, 32, DIRECT_READ),
    full("", DISK_DIRECT, RandomRead, K4, 1, DIRECT_READ),
    full("", DISK_DIRECT, RandomRead, K4, 8, DIRECT_READ),
    full("", DISK_DIRECT, RandomWrite, K4, 32, DIRECT),
    full("", DISK_DIRECT, Read, K256, 8, DIRECT),
    full("", DISK_DIRECT, Write, K256, 8, DIRECT),
    full("", DISK_DIRECT_THROUGH, RandomWrite, K4, 32, PAIR),
];

const BUILDS: &[Setup] = &[LUNAR, BASE];
const BOTH_ENDS: &[Setup] = &[LUNAR.own_client(), BASE.own_client()];

/// Cells for the comparison of two builds, on disks in memory and files in tmpfs: the target alone,
/// with our client, and both ends, each target with the client of its build.
#[rustfmt::skip] // a table
pub const COMPARED: &[Cell] = &[
    short("", MEMORY, RandomRead, K4, 1, BUILDS),
    short("", MEMORY, RandomRead, K4, 32, BUILDS),
    short("", MEMORY, RandomWrite, K4, 1, BUILDS),
    short("", MEMORY, RandomWrite, K4, 32, BUILDS),
    short("", MEMORY, Read, K256, 8, BUILDS),
    short("", MEMORY, Write, K256, 8, BUILDS),
    short("both-ends", MEMORY, RandomRead, K4, 1, BOTH_ENDS),
    short("both-ends", MEMORY, RandomRead, K4, 32, BOTH_ENDS),
    short("both-ends", MEMORY, RandomWrite, K4, 32, BOTH_ENDS),
    short("both-ends", MEMORY, Read, K256, 8, BOTH_ENDS),
    short("both-ends", MEMORY, Write, K256, 8, BOTH_ENDS),
    short("", TMPFS, RandomRead, K4, 32, BUILDS),
    short("", TMPFS, RandomWrite, K4, 32, BUILDS),
    short("", TMPFS, Read, M1, 8, BUILDS),
];

const fn full(
    about: &'static str,
    store: BackingStore,
    pattern: AccessPattern,
    io_bytes: u32,
    depth: u16,
    setups: &'static [Setup],
) -> Cell {
    Cell { about, store, pattern, io_bytes, depth, is_shared: false, is_short: false, setups }
}

const fn short(
    about: &'static str,
    store: BackingStore,
    pattern: AccessPattern,
    io_bytes: u32,
    depth: u16,
    setups: &'static [Setup],
) -> Cell {
    Cell { is_short: true, ..full(about, store, pattern, io_bytes, depth, setups) }
}

const fn shared(cell: Cell) -> Cell {
    Cell { is_shared: true, ..cell }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    /// Goal: a key names one cell, and a name one setup of it; clients only get cells that they
    /// support.
    #[test]
    fn keys_are_unique() {
        for table in [CELLS, COMPARED] {
            let keys: BTreeSet<String> = table.iter().map(Cell::key).collect();
            assert_eq!(keys.len(), table.len());
            for cell in table {
                let names: BTreeSet<String> = cell.setups.iter().map(Setup::name).collect();
                assert_eq!(names.len(), cell.setups.len(), "{}", cell.key());
                let perf = cell.setups.iter().any(|setup| setup.client == LoadClient::Perf);
                assert!(!perf || !cell.pattern.writes(), "{}", cell.key());
                assert!(!cell.store.is_direct || cell.store.medium == StorageMedium::Disk);
            }
        }
        assert_eq!(CELLS[0].key(), "rand-read-4Ki-1-tmpfs");
        assert_eq!(LUNAR.libiscsi().sessions(4).name(), "lunar by libiscsi, 4 sessions");
    }
}
