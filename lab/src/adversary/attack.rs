//! One attack as a value.

use super::attacker::Attacker;
use anyhow::Result;

/// Declaration of one attack in the list of attacks.
#[derive(Clone, Copy, Debug)]
pub struct Attack {
    /// Its name on the command line and in the table.
    pub name: &'static str,
    /// Summary in one line.
    pub summary: &'static str,
    /// Number of the fault in the server's history that this attack reproduces; 0: a class of its
    /// own.
    pub fault: u8,
    /// Connections that the attack keeps busy; the benign load has as many.
    pub connections: usize,
    /// Hosts that the connections come from; the benign load has as many.
    pub hosts: usize,
    /// True when the attack needs full feature phase: a run without one login proves nothing.
    pub logs_in: bool,
    /// Lines for the server's `[limits]`.
    pub limits: &'static str,
    /// True when the attacker's own target has a LUN on a slow disk.
    pub slow_disk: bool,
    /// Slow file system for LUNs of the attacker's own target.
    pub slow_ext4: Option<SlowExt4>,
    /// True when the LUN of the well-behaved client is a disk in the server's memory, not a file.
    pub memory_lun: bool,
    /// Lines for the LUN of the well-behaved client.
    pub shared_lun: &'static str,
    /// Owners that share the limit of that LUN, including the well-behaved client, which must get
    /// its equal share.
    pub limit_owners: u32,
    /// True when each new session of the well-behaved host also resets
    /// [`LUN_NEIGHBOUR`](super::server::LUN_NEIGHBOUR).
    pub resets_neighbour: bool,
    /// True when the server has a target of many files.
    pub many_files: bool,
    /// Files that the server may have open (RLIMIT_NOFILE); 0: as many as this process.
    pub descriptors: u32,
    /// Runs the attack until its stop flag is set.
    pub run: fn(&Attacker) -> Result<()>,
}

/// An ext4 file system on a slow disk, with files that are LUNs with a write-back cache.
#[derive(Clone, Copy, Debug)]
pub struct SlowExt4 {
    /// Size of the file system in MiB.
    pub room_mib: u64,
    /// Length of each LUN in MiB; its file is sparse.
    pub lun_mib: u64,
}

impl Attack {
    /// Creates an attack over this many connections that log in.
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
            resets_neighbour: false,
            many_files: false,
            descriptors: 0,
            run,
        }
    }

    /// Sets the summary of the attack.
    #[must_use]
    pub const fn summary(mut self, summary: &'static str) -> Self {
        self.summary = summary;
        self
    }

    /// Spreads the connections over this many hosts.
    #[must_use]
    pub const fn from_hosts(mut self, hosts: usize) -> Self {
        self.hosts = hosts;
        self
    }

    /// Names the fault that the attack reproduces.
    #[must_use]
    pub const fn fault(mut self, fault: u8) -> Self {
        self.fault = fault;
        self
    }

    /// Declares that the attack never reaches full feature phase.
    #[must_use]
    pub const fn before_login(mut self) -> Self {
        self.logs_in = false;
        self
    }

    /// Declares that the attack uses [`Destination::Slow`](super::attacker::Destination::Slow).
    #[must_use]
    pub const fn on_a_slow_disk(mut self) -> Self {
        self.slow_disk = true;
        self
    }

    /// Declares that the attack uses
    /// [`Destination::SlowExt4`](super::attacker::Destination::SlowExt4).
    #[must_use]
    pub const fn on_a_slow_ext4(mut self, slow_ext4: SlowExt4) -> Self {
        self.slow_ext4 = Some(slow_ext4);
        self
    }

    /// Makes the LUN of the well-behaved client a disk in the server's memory. The disk is gone
    /// with the server, so only the data that the client reads is compared with the data that it
    /// wrote.
    #[must_use]
    pub const fn on_a_memory_lun(mut self) -> Self {
        self.memory_lun = true;
        self
    }

    /// Gives the LUN of the well-behaved client this limit, which this many owners share.
    #[must_use]
    pub const fn on_a_limited_lun(mut self, shared_lun: &'static str, owners: u32) -> Self {
        self.shared_lun = shared_lun;
        self.limit_owners = owners;
        self
    }

    /// Makes each new session of the well-behaved host also reset the neighbour LUN.
    #[must_use]
    pub const fn beside_resets_of_the_neighbour(mut self) -> Self {
        self.resets_neighbour = true;
        self
    }

    /// Declares that the attack uses [`Destination::Files`](super::attacker::Destination::Files).
    #[must_use]
    pub const fn on_many_files(mut self) -> Self {
        self.many_files = true;
        self
    }

    /// Limits the files that the server may have open.
    #[must_use]
    pub const fn descriptors(mut self, descriptors: u32) -> Self {
        self.descriptors = descriptors;
        self
    }

    /// Runs the server with these limits.
    #[must_use]
    pub const fn limits(mut self, limits: &'static str) -> Self {
        self.limits = limits;
        self
    }
}
