//! The session that a command comes from: its nexus, its ports, and the LUNs it sees.

use super::PrimaryUnit;
use crate::attention::LogicalTime;
use crate::plan::NexusId;
use crate::reservations::ItNexus;
use crate::rights::Rights;
use alloc::string::String;
use alloc::sync::Arc;
use core::fmt;
use lunar_wire::Lun;

/// The initiator's end of a nexus, as named in persistent reservations.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd)]
pub struct InitiatorPort {
    /// iSCSI name.
    pub name: String,
    /// ISID: identifies the initiator port together with the name, RFC 7143 §4.4.3.
    pub isid: [u8; 6],
}

/// The target port that received a command.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct TargetPort {
    /// Target name.
    pub name: String,
    /// Target portal group tag.
    pub portal_group_tag: u16,
    /// Relative target port identifier, from 1.
    pub relative_id: u16,
}

/// Properties of a session's nexus.
#[derive(Clone, Debug)]
pub struct NexusOptions {
    /// Its two ports, and the origin of the initiator: the same for all units of a session.
    pub ports: Arc<ItNexus>,
    /// Rights of the initiator that affect all users of the unit.
    pub rights: Rights,
    /// Time at which the session began to see the unit. The nexus receives all unit attentions
    /// announced since then, even if it is attached later.
    pub logged_in: LogicalTime,
    /// The nexus whose TARGET COLD RESET ended the initiator's last session, if any.
    pub returns_from: Option<NexusId>,
}

impl NexusOptions {
    /// A nexus that begins now, of an initiator with a proven name and all rights.
    pub fn new(initiator: &InitiatorPort, port: &TargetPort) -> Self {
        Self {
            ports: Arc::new(ItNexus::new(initiator, port)),
            rights: Rights::default(),
            logged_in: LogicalTime::next(),
            returns_from: None,
        }
    }
}

/// Access to the sessions that see a unit but are not attached to it yet: a unit may attach a nexus
/// as late as its first command.
pub trait Logins: fmt::Debug {
    /// [Attaches](PrimaryUnit::attach_with) the nexus between these ports to `unit`, if there is
    /// such a session that is not attached.
    fn attach(&self, ports: &ItNexus, unit: &mut PrimaryUnit);
}

/// Sessions of a unit to which every nexus is attached at its beginning.
#[derive(Clone, Copy, Debug)]
pub struct AllAttached;

impl Logins for AllAttached {
    fn attach(&self, _: &ItNexus, _: &mut PrimaryUnit) {}
}

/// Data for planning a command besides its CDB.
#[derive(Clone, Debug)]
pub struct Context<'a> {
    /// LUNs visible to this initiator, in ascending order, for REPORT LUNS.
    pub luns: &'a [Lun],
    /// The port that received the command.
    pub port: &'a TargetPort,
    /// All ports of the target, including that one, ordered by their relative identifiers.
    pub ports: &'a [TargetPort],
    /// iSCSIProtocolLevel of the session, RFC 7144 §7.1.1: 0, 1 or 2.
    pub protocol_level: u16,
    /// Nexuses that may not be attached yet.
    pub logins: &'a dyn Logins,
    /// Returns the time of day, in milliseconds since 1970-01-01 00:00 UTC. Only few commands need
    /// it.
    pub now_milliseconds: fn() -> u64,
}

impl<'a> Context<'a> {
    /// A session of level 1 on a target with one port, at time 0; all nexuses are attached.
    pub fn new(luns: &'a [Lun], port: &'a TargetPort) -> Self {
        let ports = core::slice::from_ref(port);
        let logins = &AllAttached;
        Self { luns, port, ports, protocol_level: 1, logins, now_milliseconds: || 0 }
    }
}
