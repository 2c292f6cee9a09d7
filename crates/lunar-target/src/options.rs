//! Options of a server: plain values, made from a command line or a configuration file.

use crate::access_list::Access;
use crate::disk_unit::{DiskUnit, TRANSFER_BYTES_MAX};
use crate::quota::InitiatorLimit;
use crate::relay::RelayFactory;
use crate::unit::Unit;
use lunar_block::BufferPool;
use lunar_iscsi::login::ChapRequirement;
use lunar_iscsi::text::Offer;
use std::net::SocketAddr;
use std::sync::Arc;

/// All options of one server process.
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// Addresses to listen on.
    pub portals: Vec<Portal>,
    /// The targets.
    pub targets: Vec<TargetOptions>,
    /// CHAP requirement for discovery sessions. If `None`, a discovery session needs no proof, and
    /// sees the targets that its initiator may log in to.
    pub discovery_chap: Option<ChapRequirement>,
    /// Number of data-plane threads; 0: one for each processor core.
    pub cores: usize,
    /// True when a thread that has just had work polls its sockets for a while before it sleeps:
    /// less latency, but more processor time.
    pub latency_mode: bool,
    /// Named limits.
    pub limits: Limits,
    /// Source of the server's buffers, with the memory budget of the process, to which memory used
    /// by peers is charged.
    pub buffers: BufferPool,
    /// Creates the relays of connections; `None`: devices move all data.
    pub relays: Option<Arc<dyn RelayFactory>>,
}

/// An address to listen on.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Portal {
    /// Listening address; port 0 takes a free one.
    pub listen: SocketAddr,
    /// Address in discovery answers instead of `listen` (`host:port`), for NAT and containers.
    pub advertise: Option<String>,
    /// Portal group tag, from 1, of every target at this portal; `None`: each target's own.
    pub portal_group: Option<u16>,
}

impl Portal {
    /// Creates a portal that listens on `listen` and advertises that address.
    pub fn new(listen: SocketAddr) -> Self {
        Self { listen, advertise: None, portal_group: None }
    }
}

/// Named limits of a server, all of which a configuration may set.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Limits {
    /// Maximum number of connections, logged in or not. An eighth of this number is reserved for
    /// connections that are not logged in and for discovery sessions without CHAP. Beyond it, the
    /// oldest of these is closed, from the address that has the most.
    pub connections: usize,
    /// Maximum number of connections of one address (IPv6: of one /64) that are not logged in or
    /// for discovery without CHAP, at most half of all of this kind; a further one replaces the
    /// oldest.
    pub logins_per_address: usize,
    /// Seconds that a login may take.
    pub login_seconds: u16,
    /// Failed logins in a row after which further ones from the same address (IPv6: the same /64)
    /// have to wait.
    pub login_failures_free: u32,
    /// Longest delay of a login after failed ones in seconds, at most half of `login_seconds`; 0:
    /// no delay.
    pub login_backoff_seconds_max: u16,
    /// Maximum length in bytes of a text in several Login or Text Requests; a longer one is
    /// refused.
    pub text_bytes: usize,
    /// Commands an initiator may have in flight in one session (MaxCmdSN window).
    pub window_commands: u32,
    /// Bytes of data-out buffers that one connection may hold, from the first byte until the
    /// command has ended. Further data is requested when some commands have ended; unsolicited data
    /// beyond the limit gets TASK SET FULL.
    pub data_out_bytes: usize,
    /// Seconds that an initiator may owe the data of a command without anything arriving on its
    /// connection, 1 to 3600; with [`DATA_OUT_BYTES_PER_SECOND_MIN`] it bounds the whole time.
    /// After it the connection is closed.
    ///
    /// [`DATA_OUT_BYTES_PER_SECOND_MIN`]:
    ///     lunar_iscsi::connection::target::DATA_OUT_BYTES_PER_SECOND_MIN
    pub data_out_seconds: u16,
    /// Bytes of read data that one connection may hold, until the socket has taken them; further
    /// reads wait.
    pub data_in_bytes: usize,
    /// Seconds for which a command waits for memory before it ends BUSY.
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
            transfer_bytes: TRANSFER_BYTES_MAX,
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
    /// Initiators that may log in.
    pub access: Access,
    /// Names of the initiators that may reset the target and administer its units; `None`: all that
    /// may log in. A name is only claimed unless CHAP proves it.
    pub administer: Option<Vec<String>>,
    /// CHAP requirements for initiators; the first entry that fits the initiator's name counts.
    /// Empty: no proof is required.
    pub chap: Vec<ChapEntry>,
    /// Offer of negotiated parameters.
    pub offer: Offer,
    /// Address to redirect logins to: `host:port[,tpgt]`.
    pub redirect: Option<String>,
    /// Limits of each initiator at this target, for all LUNs together.
    pub initiator_limits: Vec<InitiatorLimit>,
    /// LUNs of the target.
    pub luns: Vec<LunOptions>,
}

/// A CHAP credential for one initiator, or for all initiators that no other entry names.
#[derive(Clone, Debug)]
pub struct ChapEntry {
    /// Initiator name that the entry is restricted to.
    pub initiator: Option<String>,
    /// Proof that is required.
    pub requirement: ChapRequirement,
}

/// One LUN of a target.
#[derive(Clone, Debug)]
pub struct LunOptions {
    /// LUN number, 0 to 16,383. Several LUNs of a target may have the same number, each for other
    /// initiators: no initiator may see two of them.
    pub id: u16,
    /// The unit of the LUN; the same `Arc` under several numbers is one unit.
    pub unit: Arc<dyn Unit>,
    /// Initiators that see it, among those that may log in.
    pub access: Access,
    /// Names of the initiators that may administer the unit through this LUN, in place of the
    /// target's; `None`: the target's list.
    pub administer: Option<Vec<String>>,
}

impl LunOptions {
    /// Creates a LUN that all initiators see that may log in, administered as its target.
    pub fn new(id: u16, unit: Arc<dyn Unit>) -> Self {
        Self { id, unit, access: Access::default(), administer: None }
    }

    /// The unit, if it is a disk.
    pub fn disk(&self) -> Option<&DiskUnit> {
        DiskUnit::borrow(&*self.unit)
    }
}

impl TargetOptions {
    /// Tag of the group that `portal` is in for this target. The sessions of one portal group use
    /// one SCSI target port: its name is the target's name and this tag (RFC 7143 §4.4.1).
    pub fn portal_group_at(&self, portal: &Portal) -> u16 {
        portal.portal_group.unwrap_or(self.portal_group)
    }
}

#[cfg(test)]
impl TargetOptions {
    /// Returns a target without LUNs that any initiator may log in to.
    pub(crate) fn for_test(name: &str, portal_group: u16) -> Self {
        Self {
            name: name.to_owned(),
            alias: None,
            portal_group,
            access: Access::default(),
            administer: None,
            chap: Vec::new(),
            offer: Offer::default(),
            redirect: None,
            initiator_limits: Vec::new(),
            luns: Vec::new(),
        }
    }
}
