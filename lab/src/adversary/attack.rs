//! One attack as a value.

use super::attacker::Attacker;
use anyhow::Result;

/// One attack, as the list of attacks declares it.
#[derive(Clone, Copy, Debug)]
pub struct Attack {
    /// Its name on the command line and in the table.
    pub name: &'static str,
    /// What it does, in one line.
    pub summary: &'static str,
    /// The number of the fault in the server's history that it stands for; 0: a class of its own.
    pub fault: u8,
    /// Connections that it keeps busy; as many benign ones are compared with it.
    pub connections: usize,
    /// The hosts that they come from; those of the benign load are as many.
    pub hosts: usize,
    /// True when it needs full feature phase: a run without one login says nothing.
    pub logs_in: bool,
    /// Lines for the server's `[limits]`.
    pub limits: &'static str,
    /// The attacker's own target has a LUN on a slow disk.
    pub slow_disk: bool,
    /// The attacker's own target has LUNs on a slow file system.
    pub slow_ext4: Option<SlowExt4>,
    /// The LUN of the well-behaved client is a disk in the server's memory, not a file.
    pub memory_lun: bool,
    /// Lines for the LUN of the well-behaved client.
    pub shared_lun: &'static str,
    /// Owners that share the limit of that LUN, the well-behaved client included: it is to have
    /// one of as many parts.
    pub limit_owners: u32,
    /// The server has a target of many files.
    pub many_files: bool,
    /// Files that the server may have open (RLIMIT_NOFILE); 0: as many as we.
    pub descriptors: u32,
    /// Attacks until it is told to stop.
    pub run: fn(&Attacker) -> Result<()>,
}

/// An ext4 file system on a slow disk, with files that are LUNs with a write-back cache.
#[derive(Clone, Copy, Debug)]
pub struct SlowExt4 {
    /// Room of the file system in MiB.
    pub room_mib: u64,
    /// Length of each LUN in MiB; its file is sparse.
    pub lun_mib: u64,
}

impl Attack {
    /// An attack over this many connections that log in.
    pub const fn new(
        name: &'static str,
        connections: usize,
        run: fn(&Attacker) -> Result<()>,
    ) -> Self {
        Self {
            name,
            summary: "",
            fault: 0,
            connections,
            hosts: 1,
            logs_in: true,
            limits: "",
            slow_disk: false,
            slow_ext4: None,
            memory_lun: false,
            shared_lun: "",
            limit_owners: 1,
            many_files: false,
            descriptors: 0,
            run,
        }
    }

    /// Says what the attack does.
    #[must_use]
    pub const fn summary(mut self, summary: &'static str) -> Self {
        self.summary = summary;
        self
    }

    /// From so many hosts.
    #[must_use]
    pub const fn from_hosts(mut self, hosts: usize) -> Self {
        self.hosts = hosts;
        self
    }

    /// Names the fault that it stands for.
    #[must_use]
    pub const fn fault(mut self, fault: u8) -> Self {
        self.fault = fault;
        self
    }

    /// The attack never reaches full feature phase.
    #[must_use]
    pub const fn before_login(mut self) -> Self {
        self.logs_in = false;
        self
    }

    /// The attack uses [`Destination::Slow`](super::attacker::Destination::Slow).
    #[must_use]
    pub const fn on_a_slow_disk(mut self) -> Self {
        self.slow_disk = true;
        self
    }

    /// The attack uses [`Destination::SlowExt4`](super::attacker::Destination::SlowExt4).
    #[must_use]
    pub const fn on_a_slow_ext4(mut self, slow_ext4: SlowExt4) -> Self {
        self.slow_ext4 = Some(slow_ext4);
        self
    }

    /// The LUN of the well-behaved client is a disk in the server's memory. It is gone with the
    /// server: only what the client reads is compared with what it wrote.
    #[must_use]
    pub const fn on_a_memory_lun(mut self) -> Self {
        self.memory_lun = true;
        self
    }

    /// The LUN of the well-behaved client has this limit, which so many owners share.
    #[must_use]
    pub const fn on_a_limited_lun(mut self, shared_lun: &'static str, owners: u32) -> Self {
        self.shared_lun = shared_lun;
        self.limit_owners = owners;
        self
    }

    /// The attack uses [`Destination::Files`](super::attacker::Destination::Files).
    #[must_use]
    pub const fn on_many_files(mut self) -> Self {
        self.many_files = true;
        self
    }

    /// The server may have so many files open.
    #[must_use]
    pub const fn descriptors(mut self, descriptors: u32) -> Self {
        self.descriptors = descriptors;
        self
    }

    /// The server runs with these limits.
    #[must_use]
    pub const fn limits(mut self, limits: &'static str) -> Self {
        self.limits = limits;
        self
    }
}
