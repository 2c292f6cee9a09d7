//! One block logical unit as SCSI sees it: what it is, and what state it is in.
//!
//! A plain value with one owner; the target keeps it under the unit's lock and asks it to judge
//! each command. Nothing here does I/O.

use crate::cdb;
use crate::cdb::sbc::LbaStatus;
use crate::cdb::spc::{Inquiry, RequestSense};
use crate::commands::{self, Found, Request};
use crate::fault::{invalid_field, invalid_opcode, no_unit};
use crate::plan::inform::{cut, luns_reply};
use crate::plan::{LbaRange, NexusId, Parked, Plan, Refusal};
use crate::sense::Sense;
use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::vec::Vec;
use wire::Lun;

/// What a unit is; fixed while it is served, except for its size.
#[derive(Clone, Debug)]
pub struct UnitOptions {
    /// Identity: NAA 3, UUID designator and serial number come from here.
    pub uuid: [u8; 16],
    /// PRODUCT IDENTIFICATION, at most 16 characters of ASCII.
    pub product: String,
    /// Logical block length in bytes.
    pub block_bytes: u32,
    /// How many blocks.
    pub block_count: u64,
    /// Physical block length in bytes.
    pub physical_block_bytes: u32,
    /// MAXIMUM TRANSFER LENGTH, in blocks; longer commands are refused.
    pub transfer_blocks_max: u32,
    /// OPTIMAL TRANSFER LENGTH, in blocks.
    pub optimal_transfer_blocks: u32,
    /// Some: thin provisioned (LBPME=1), deallocating in runs of this many blocks.
    pub unmap_granularity_blocks: Option<u32>,
    /// Write protected by configuration.
    pub read_only: bool,
    /// RMB: PREVENT ALLOW, START STOP with LOEJ.
    pub removable: bool,
    /// WCE: the unit acknowledges writes before they are durable.
    pub write_back: bool,
}

/// Who is at the other end of a nexus; persistent reservations name it.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd)]
pub struct InitiatorPort {
    /// iSCSI name.
    pub name: String,
    /// ISID: together with the name the initiator port, RFC 7143 §4.4.3.
    pub isid: [u8; 6],
}

/// The port of ours a command came through.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct TargetPort {
    /// Target name.
    pub name: String,
    /// Target portal group tag.
    pub portal_group_tag: u16,
    /// Relative target port identifier, from 1.
    pub relative_id: u16,
}

/// What the planner may know of a command besides its CDB.
#[derive(Clone, Debug)]
pub struct Context<'a> {
    /// LUNs this initiator sees, in ascending order, for REPORT LUNS.
    pub luns: &'a [Lun],
    /// The port it came through.
    pub port: &'a TargetPort,
}

/// Extents as [`MapStatus`](crate::plan::Plan::MapStatus) found them.
pub type MappedRanges = Vec<(crate::plan::LbaRange, bool)>;

/// Why the state of a former run could not be taken up.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("{0}")]
pub struct StateError(pub &'static str);

/// One block logical unit: what it is, who uses it, and what they have done to it.
#[derive(Debug)]
pub struct BlockUnit {
    options: UnitOptions,
    nexuses: BTreeMap<NexusId, Nexus>,
}

#[derive(Debug)]
struct Nexus {
    #[allow(dead_code)]
    initiator: InitiatorPort,
    #[allow(dead_code)]
    port: TargetPort,
}

impl BlockUnit {
    /// A unit no one uses yet.
    pub fn new(options: UnitOptions) -> Self {
        Self { options, nexuses: BTreeMap::new() }
    }

    /// What it is.
    pub fn options(&self) -> &UnitOptions {
        &self.options
    }

    /// Takes up the state of a former run: reservations that persist, saved mode pages.
    ///
    /// # Errors
    /// When `state` is not what [`persistent_state`](Self::persistent_state) once gave.
    pub fn restore(&mut self, state: &[u8]) -> Result<(), StateError> {
        if state.is_empty() { Ok(()) } else { Err(StateError("unknown version")) }
    }

    /// What must survive the process.
    pub fn persistent_state(&self) -> Vec<u8> {
        Vec::new()
    }

    /// An initiator has logged in.
    pub fn attach(&mut self, nexus: NexusId, initiator: InitiatorPort, port: TargetPort) {
        self.nexuses.insert(nexus, Nexus { initiator, port });
    }

    /// A nexus is lost: what belongs to it alone goes, persistent reservations stay.
    pub fn detach(&mut self, nexus: NexusId) {
        self.nexuses.remove(&nexus);
    }

    /// Judges a command.
    ///
    /// # Errors
    /// The refusal to send, when the command may not run.
    pub fn plan(
        &mut self,
        nexus: NexusId,
        context: &Context<'_>,
        cdb: &[u8],
    ) -> Result<Plan, Refusal> {
        let command = match commands::find(&self.options, cdb) {
            Found::Command(command) => command,
            Found::NoServiceAction => return Err(invalid_field(1, Some(4)).into()),
            Found::NoOpcode => return Err(invalid_opcode().into()),
        };
        check_control(cdb, command.cdb_bytes())?;
        command.plan(self, &Request { nexus, context, cdb })
    }

    /// Goes on with a command whose parameter list has come.
    ///
    /// # Errors
    /// As [`plan`](Self::plan).
    pub fn resume(
        &mut self,
        _nexus: NexusId,
        _context: &Context<'_>,
        _parked: Parked,
        _data: &[u8],
    ) -> Result<Plan, Refusal> {
        Err(invalid_opcode().into())
    }

    /// Sense as the initiator gets it.
    pub fn encode_sense(&self, sense: &Sense) -> Vec<u8> {
        let [code, qualifier] = sense.code.to_be_bytes();
        alloc::vec![0x70, 0, sense.key.0, 0, 0, 0, 0, 10, 0, 0, 0, 0, code, qualifier, 0, 0, 0, 0]
    }

    /// LOGICAL UNIT RESET, or a reset of the target around it.
    pub fn reset(&mut self, _by: Option<NexusId>) {}

    /// Establishes a unit attention for every nexus but one.
    pub fn raise(&mut self, _attention_code: u16, _except: Option<NexusId>) {}

    /// WCE, as the caching page has it now.
    pub fn write_cache_enabled(&self) -> bool {
        self.options.write_back
    }

    /// Whether a write must be durable before GOOD.
    pub(crate) fn is_durable(&self, fua: bool) -> bool {
        fua || !self.write_cache_enabled()
    }
}

/// Judges a command for a LUN that has no unit, and for the REPORT LUNS well known unit.
///
/// INQUIRY answers that nothing is there (qualifier 3, type 1Fh), REPORT LUNS answers, REQUEST
/// SENSE tells LOGICAL UNIT NOT SUPPORTED as parameter data.
///
/// # Errors
/// Everything else: LOGICAL UNIT NOT SUPPORTED.
pub fn absent_unit_plan(_lun: Lun, context: &Context<'_>, cdb: &[u8]) -> Result<Plan, Refusal> {
    match cdb.first() {
        Some(0x12) => {
            let raw = Inquiry::decode(&cdb::first(cdb));
            if raw.flags & 1 != 0 || raw.page != 0 {
                return Err(invalid_field(2, Some(7)).into());
            }
            let mut reply = alloc::vec![0; 36];
            reply[0] = 0x7f;
            reply[2] = 6;
            reply[3] = 0x12;
            reply[4] = 31;
            reply[8..36].fill(b' ');
            Ok(Plan::Reply(cut(reply, raw.allocation_bytes.into())))
        }
        Some(0xa0) => Ok(Plan::Reply(luns_reply(context, cdb)?)),
        Some(0x03) => {
            let raw = RequestSense::decode(&cdb::first(cdb));
            let reply = alloc::vec![0x70, 0, 5, 0, 0, 0, 0, 10, 0, 0, 0, 0, 0x25, 0, 0, 0, 0, 0];
            Ok(Plan::Reply(cut(reply, raw.allocation_bytes.into())))
        }
        _ => Err(no_unit().into()),
    }
}

/// What GET LBA STATUS answers for these extents, cut to the allocation length. SBC-3 §5.3.2.
pub fn lba_status_reply(extents: &[(LbaRange, bool)], allocation_bytes: u32) -> Vec<u8> {
    let mut reply = alloc::vec![0; 8];
    for (range, mapped) in extents {
        let mut range = *range;
        while range.count > 0 && reply.len() < allocation_bytes as usize {
            let count = u32::try_from(range.count).unwrap_or(u32::MAX);
            let status = LbaStatus { lba: range.lba, count, status: u8::from(!mapped) };
            reply.extend_from_slice(&status.encode());
            range.lba = range.lba.saturating_add(count.into());
            range.count -= u64::from(count);
        }
    }
    // PARAMETER DATA LENGTH counts what follows it.
    let bytes = u32::try_from(reply.len() - 4).unwrap_or(u32::MAX);
    reply[..4].copy_from_slice(&bytes.to_be_bytes());
    cut(reply, allocation_bytes)
}

/// The CDB is long enough, and its CONTROL byte does not ask for auto contingent allegiance.
fn check_control(cdb: &[u8], bytes: usize) -> Result<(), Sense> {
    let last = bytes.saturating_sub(1);
    match cdb.get(last) {
        Some(control) if control & 0x04 == 0 => Ok(()),
        _ => Err(invalid_field(last as u16, Some(2))),
    }
}
