//! Asymmetric access (ALUA) as reported by a unit. SPC-4 §5.15.2.

use crate::commands::{Unit, is_illegal};
use crate::{Error, ErrorKind};
use bytes::Bytes;
use lunar_scsi::cdb::spc::ReportTargetPortGroups;
use lunar_scsi::commands::{opcode, service_action};
use lunar_scsi::ports::AccessState;
use lunar_scsi::sense::SenseKey;
use lunar_wire::Field;
use std::collections::BTreeMap;

const REPORT_TARGET_PORT_GROUPS: u8 = opcode("REPORT TARGET PORT GROUPS");
const REPORT_TARGET_PORT_GROUPS_ACTION: u8 = service_action("REPORT TARGET PORT GROUPS");
/// Allocation length for 256 groups of several ports each.
const ANSWER_BYTES: u32 = 8 << 10;
/// Bytes before the first descriptor: the length of the data that follows.
const HEADER_BYTES: usize = 4;
/// Length of a descriptor without its ports, and of a port in it.
const DESCRIPTOR_BYTES: usize = 8;
const PORT_BYTES: usize = 4;
/// Association of designators of a target port, and type of its target port group. SPC-4 §7.8.6.
const OF_A_PORT: u8 = 1;
const TARGET_PORT_GROUP: u8 = 5;

/// Target port groups and their access states.
pub(crate) type TargetPortGroups = BTreeMap<u16, AccessState>;

/// NOT READY because of the state of the port: its additional sense codes. SPC-4 §5.15.2.
pub(crate) const TRANSITION: u16 = 0x040a;
const STANDBY: u16 = 0x040b;
const UNAVAILABLE: u16 = 0x040c;

impl Unit {
    /// Reads the target port group of the port in use; `None` if the unit does not report it.
    ///
    /// # Errors
    /// The errors of [`command`](Self::command).
    pub(crate) async fn port_group(&self) -> Result<Option<u16>, Error> {
        let designators = self.designators().await?;
        let group = designators.iter().find(|designator| {
            (designator.association, designator.kind) == (OF_A_PORT, TARGET_PORT_GROUP)
        });
        Ok(group.and_then(|group| u32::from_str_radix(&group.text, 16).ok()).map(|id| id as u16))
    }

    /// Sends REPORT TARGET PORT GROUPS, SPC-4 §6.37; empty if the unit does not support it.
    ///
    /// # Errors
    /// The errors of [`command`](Self::command).
    pub(crate) async fn port_groups(&self) -> Result<TargetPortGroups, Error> {
        let cdb = ReportTargetPortGroups {
            opcode: REPORT_TARGET_PORT_GROUPS,
            format: REPORT_TARGET_PORT_GROUPS_ACTION,
            allocation_bytes: ANSWER_BYTES,
            control: 0,
        };
        match self.command(cdb.encode().to_vec(), Bytes::new(), ANSWER_BYTES).await {
            Ok(reply) => Ok(parse(&reply.data_in)),
            Err(error) if is_illegal(&error) => Ok(TargetPortGroups::new()),
            Err(error) => Err(error),
        }
    }
}

/// Parses the descriptors up to the first incomplete one.
fn parse(data: &[u8]) -> TargetPortGroups {
    let mut groups = TargetPortGroups::new();
    let Some((length, mut rest)) = data.split_at_checked(HEADER_BYTES) else { return groups };
    rest = rest.get(..u32::get(length) as usize).unwrap_or(rest);
    while let Some((head, behind)) = rest.split_at_checked(DESCRIPTOR_BYTES) {
        groups.insert(u16::get(&head[2..4]), AccessState(head[0] & 0x0f));
        let ports_bytes = usize::from(head[7]) * PORT_BYTES;
        let Some(next) = behind.get(ports_bytes..) else { break };
        rest = next;
    }
    groups
}

/// Returns the access state of the port, if that is why the command failed.
pub(crate) fn access_state_of_error(error: &Error) -> Option<AccessState> {
    let ErrorKind::Sense(Some(sense)) = &error.kind else { return None };
    match (sense.key, sense.code) {
        (SenseKey::NOT_READY, TRANSITION) => Some(TRANSITIONING),
        (SenseKey::NOT_READY, STANDBY) => Some(AccessState::STANDBY),
        (SenseKey::NOT_READY, UNAVAILABLE) => Some(AccessState::UNAVAILABLE),
        _ => None,
    }
}

/// Transition between two states. SPC-4 table 246.
pub(crate) const TRANSITIONING: AccessState = AccessState(0x0f);
/// Some blocks optimized, others not. SPC-4 table 246.
const LBA_DEPENDENT: AccessState = AccessState(0x04);

/// Preference of an access state for commands, 0 the best; `None` if commands are refused.
pub(crate) fn rank(state: AccessState) -> Option<u8> {
    match state {
        AccessState::ACTIVE_OPTIMIZED => Some(0),
        AccessState::ACTIVE_NON_OPTIMIZED | LBA_DEPENDENT => Some(1),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: groups are parsed past their ports, and a malformed response does no harm.
    #[test]
    fn descriptors_end_where_the_answer_ends() {
        let answer = [
            0, 0, 0, 32, // four bytes are not counted
            0x80, 0xff, 0, 1, 0, 1, 0, 2, 0, 0, 0, 1, 0, 0, 0, 2, // two ports
            0x02, 0xff, 0, 7, 0, 1, 0, 1, 0, 0, 0, 3, // one
            0x01, 0xff, 0, 9, // incomplete
        ];
        let wanted =
            TargetPortGroups::from([(1, AccessState::ACTIVE_OPTIMIZED), (7, AccessState::STANDBY)]);
        assert_eq!(parse(&answer), wanted);
        for end in 0..answer.len() {
            let groups = parse(&answer[..end]);
            assert!(groups.iter().all(|(group, state)| wanted.get(group) == Some(state)));
        }
        let mut many = answer;
        many[11] = 255; // more ports than the data holds
        assert_eq!(parse(&many).len(), 1);
        many[..4].fill(0xff);
        assert_eq!(parse(&many).len(), 1);
    }

    #[test]
    fn optimized_paths_come_first() {
        assert!(rank(AccessState::ACTIVE_OPTIMIZED) < rank(AccessState::ACTIVE_NON_OPTIMIZED));
        assert_eq!(rank(AccessState::STANDBY), None);
        assert_eq!(rank(TRANSITIONING), None);
    }
}
