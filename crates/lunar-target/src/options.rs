//! What a server is to serve: plain values, made from a command line or a configuration file.

use crate::LogicalUnit;
use crate::access_list::Access;
use crate::quota::InitiatorLimit;
use lunar_block::BufferPool;
use lunar_iscsi::login::ChapDemand;
use lunar_iscsi::text::Offer;
use std::net::SocketAddr;
use std::sync::Arc;

/// Everything one server process serves.
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// Where it listens.
    pub portals: Vec<Portal>,
    /// The targets.
    pub targets: Vec<TargetOptions>,
    /// What a discovery session must prove; `None`: nothing, and it is shown the targets that its
    /// initiator may log in to.
    pub discovery_chap: Option<ChapDemand>,
    /// How many data-plane threads; 0: one a core.
    pub cores: usize,
    /// A thread that has just had something to do polls its sockets for a while before it sleeps:
    /// less latency, for more of the processor.
    pub latency_mode: bool,
    /// Named limits.
    pub limits: Limits,
    /// Where its buffers come from, with the budget of the process: what peers cause is charged to
    /// it.
    pub buffers: BufferPool,
}

/// An address to listen on.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Portal {
    /// Where; port 0 takes a free one.
    pub listen: SocketAddr,
    /// What discovery names instead (`host:port`), for NAT and containers.
    pub advertise: Option<String>,
    /// Portal group tag, from 1, of every target here; `None`: each target's own.
    pub portal_group: Option<u16>,
}

impl Portal {
    /// Listens on `listen` and is what it seems.
    pub fn new(listen: SocketAddr) -> Self {
        Self { listen, advertise: None, portal_group: None }
    }
}

/// Named limits of a server, all of which a configuration may set.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Limits {
    /// Connections at once, logged in or not. An eighth of them is kept for those that are not
    /// logged in and for discovery sessions without proof; among these, the oldest one of the
    /// address with the most makes room.
    pub connections: usize,
    /// Such connections of one address (IPv6: of one /64), at most half of those there may be; one
    /// more takes the place of the oldest.
    pub logins_per_address: usize,
    /// Seconds until a login must be through.
    pub login_seconds: u16,
    /// Failed logins in a row after which further ones from the same address (IPv6: the same /64)
    /// have to wait.
    pub login_failures_free: u32,
    /// Seconds that such a login waits at most, at most half of `login_seconds`; 0: none waits.
    pub login_backoff_seconds_max: u16,
    /// Bytes of a text that comes in several Login or Text Requests; one that is longer is refused.
    pub text_bytes: usize,
    /// Commands an initiator may have in flight in one session (MaxCmdSN window).
    pub window_commands: u32,
    /// Bytes of data-out buffers one connection may hold, from the first byte until the command has
    /// ended; further data is asked for when some have, and what comes unasked gets TASK SET FULL.
    pub data_out_bytes: usize,
    /// Seconds an initiator may owe the data of a command without anything coming over its
    /// connection, 1 to 3600; with [`DATA_OUT_BYTES_PER_SECOND_MIN`] it bounds the whole time. Then
    /// the connection is closed.
    ///
    /// [`DATA_OUT_BYTES_PER_SECOND_MIN`]:
    ///     lunar_iscsi::connection::target::DATA_OUT_BYTES_PER_SECOND_MIN
    pub data_out_seconds: u16,
    /// Bytes of read data one connection may hold, until the socket has taken them; further reads
    /// wait.
    pub data_in_bytes: usize,
    /// Seconds that a command waits for memory before it ends BUSY.
    pub memory_wait_seconds: u16,
    /// The longest single transfer in bytes (VPD B0 MAXIMUM TRANSFER LENGTH).
    pub transfer_bytes: u32,
    /// Seconds of silence before the target pings.
    pub ping_after_seconds: u16,
    /// Seconds an initiator has to answer a ping.
    pub ping_timeout_seconds: u16,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 16_384,
            logins_per_address: 256,
            login_seconds: 15,
            login_failures_free: 5,
            login_backoff_seconds_max: 4,
            text_bytes: 16 << 10,
            window_commands: 128,
            data_out_bytes: 64 << 20,
            data_out_seconds: 30,
            data_in_bytes: 64 << 20,
            memory_wait_seconds: 5,
            transfer_bytes: 8 << 20,
            ping_after_seconds: 30,
            ping_timeout_seconds: 15,
        }
    }
}

/// One iSCSI target.
#[derive(Clone, Debug)]
pub struct TargetOptions {
    /// iSCSI name.
    pub name: String,
    /// TargetAlias.
    pub alias: Option<String>,
    /// Portal group tag, from 1, at the portals that have none of their own.
    pub portal_group: u16,
    /// Who may log in.
    pub access: Access,
    /// Names of the initiators that may reset it and administer its units; `None`: all that may
    /// log in. A name is a claim where it need not be proven by CHAP.
    pub administer: Option<Vec<String>>,
    /// What initiators must prove; the first entry that fits the initiator's name counts.
    /// Empty: nothing.
    pub chap: Vec<ChapEntry>,
    /// What is negotiated.
    pub offer: Offer,
    /// Send logins elsewhere: `host:port[,tpgt]`.
    pub redirect: Option<String>,
    /// How much each initiator may do here, at all LUNs together.
    pub initiator_limits: Vec<InitiatorLimit>,
    /// Its units.
    pub luns: Vec<LunOptions>,
}

/// A CHAP credential for one initiator, or for all that no other entry names.
#[derive(Clone, Debug)]
pub struct ChapEntry {
    /// Only for this initiator name.
    pub initiator: Option<String>,
    /// What it must prove.
    pub demand: ChapDemand,
}

/// One LUN of a target.
#[derive(Clone, Debug)]
pub struct LunOptions {
    /// Its number, 0 to 16,383. Several LUNs of a target may have the same, each for others: no
    /// initiator may see two of them.
    pub id: u16,
    /// The unit behind it; the same `Arc` under several numbers is one unit.
    pub unit: Arc<LogicalUnit>,
    /// Who of those that may log in sees it.
    pub access: Access,
    /// Names of the initiators that may administer the unit here, in place of the target's;
    /// `None`: as the target has it.
    pub administer: Option<Vec<String>>,
}

impl LunOptions {
    /// A LUN that everybody sees who may log in, administered as the target has it.
    pub fn new(id: u16, unit: Arc<LogicalUnit>) -> Self {
        Self { id, unit, access: Access::default(), administer: None }
    }
}

impl TargetOptions {
    /// Tag of the group that `portal` is in for this target. The sessions of one portal group meet
    /// one SCSI target port: its name is the target's name and this tag (RFC 7143 §4.4.1).
    pub fn portal_group_at(&self, portal: &Portal) -> u16 {
        portal.portal_group.unwrap_or(self.portal_group)
    }
}
