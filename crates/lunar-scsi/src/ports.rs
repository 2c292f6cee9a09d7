//! Asymmetric logical unit access: how each target port group reaches a unit. SPC-4 §5.15.2.
//!
//! A portal group is a target port (RFC 7143 §4.4.3), and each is a target port group of its own,
//! identified by its tag. The states are the unit's, whichever target it is reached through: two
//! targets that show a unit under one tag have one group, as multipath drivers assume that know a
//! group by the unit's name and its number.

use crate::sense::Sense;
use crate::unit::TargetPort;
use alloc::collections::BTreeMap;

/// Ports of one target: no more fit into page 88h with the longest names.
pub const PORTS_MAX: usize = 256;

lunar_wire::wire_enum! {
    /// ASYMMETRIC ACCESS STATE, those there are here. Changes take no time, so that nothing is
    /// ever transitioning; offline is not a state one can be asked in. SPC-4 §6.37.
    pub struct AccessState(u8) {
        ACTIVE_OPTIMIZED = 0, ACTIVE_NON_OPTIMIZED = 1, STANDBY = 2, UNAVAILABLE = 3,
    }
}

lunar_wire::wire_enum! {
    /// STATUS CODE: what changed the state last. SPC-4 §6.37.
    pub struct StatusCode(u8) { NONE = 0, SET_TARGET_PORT_GROUPS = 1 }
}

impl AccessState {
    /// Through such a port blocks are read and written.
    pub fn is_active(self) -> bool {
        matches!(self, Self::ACTIVE_OPTIMIZED | Self::ACTIVE_NON_OPTIMIZED)
    }
}

/// The states of one unit's groups. All are active/optimized until SET TARGET PORT GROUPS says
/// otherwise, and again after a restart.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct PortGroups {
    /// Those that were set; their identifiers are tags of the configuration, so they are few.
    set: BTreeMap<u16, AccessState>,
}

impl PortGroups {
    /// How the group of this tag reaches the unit.
    pub fn state(&self, group: u16) -> AccessState {
        self.set.get(&group).copied().unwrap_or(AccessState::ACTIVE_OPTIMIZED)
    }

    /// What made it so.
    pub fn status_code(&self, group: u16) -> StatusCode {
        if self.set.contains_key(&group) {
            StatusCode::SET_TARGET_PORT_GROUPS
        } else {
            StatusCode::NONE
        }
    }

    /// Whether blocks could be reached through one of these ports.
    pub fn any_active(&self, ports: &[TargetPort]) -> bool {
        ports.iter().any(|port| self.state(port.portal_group_tag).is_active())
    }

    /// Sets a group's state.
    pub fn set(&mut self, group: u16, state: AccessState) {
        self.set.insert(group, state);
    }

    /// Whether a command may come through a port of this group. SPC-4 §5.15.2.4 lists what every
    /// state must let through, and lets all else end with NOT READY.
    ///
    /// # Errors
    /// LOGICAL UNIT NOT ACCESSIBLE, and in which state the port is.
    pub fn check(&self, group: u16, cdb: &[u8]) -> Result<(), Sense> {
        match self.state(group) {
            AccessState::STANDBY if !is_for_standby(cdb) => {
                Err(Sense::TARGET_PORT_IN_STANDBY_STATE)
            }
            AccessState::UNAVAILABLE if !is_for_unavailable(cdb) => {
                Err(Sense::TARGET_PORT_IN_UNAVAILABLE_STATE)
            }
            _ => Ok(()),
        }
    }
}

const ECHO_BUFFER: u8 = 0x0a;
const PORT_GROUPS: u8 = 0x0a;

/// INQUIRY, REPORT LUNS, REPORT and SET TARGET PORT GROUPS, REQUEST SENSE, and the echo buffer
/// modes of READ and WRITE BUFFER.
fn is_for_unavailable(cdb: &[u8]) -> bool {
    let (opcode, low) = match cdb {
        [opcode, second, ..] => (*opcode, second & 0x1f),
        _ => return false,
    };
    match opcode {
        0x03 | 0x12 | 0xa0 => true,
        0xa3 | 0xa4 => low == PORT_GROUPS,
        0x3b | 0x3c => low == ECHO_BUFFER,
        _ => false,
    }
}

/// Those, and LOG SELECT, LOG SENSE, MODE SELECT, MODE SENSE, RECEIVE DIAGNOSTIC RESULTS, SEND
/// DIAGNOSTIC, PERSISTENT RESERVE IN and OUT.
fn is_for_standby(cdb: &[u8]) -> bool {
    const MORE: [u8; 10] = [0x15, 0x1a, 0x1c, 0x1d, 0x4c, 0x4d, 0x55, 0x5a, 0x5e, 0x5f];
    is_for_unavailable(cdb) || cdb.first().is_some_and(|opcode| MORE.contains(opcode))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_are_active_until_set() {
        let mut groups = PortGroups::default();
        let port =
            |tag| TargetPort { name: "iqn.t".into(), portal_group_tag: tag, relative_id: tag };
        assert_eq!(groups.state(7), AccessState::ACTIVE_OPTIMIZED);
        assert_eq!(groups.status_code(7), StatusCode::NONE);
        groups.set(7, AccessState::STANDBY);
        assert_eq!(groups.state(7), AccessState::STANDBY);
        assert_eq!(groups.status_code(7), StatusCode::SET_TARGET_PORT_GROUPS);
        assert_eq!(groups.state(8), AccessState::ACTIVE_OPTIMIZED);
        assert!(groups.any_active(&[port(7), port(8)]));
        assert!(!groups.any_active(&[port(7)]));
        groups.set(7, AccessState::ACTIVE_NON_OPTIMIZED);
        assert!(groups.any_active(&[port(7)]));
    }

    /// Goal: exactly the listed commands pass. Method: every operation code with every service
    /// action or mode, in each state.
    #[test]
    fn what_passes_in_which_state() {
        let always = [0x03, 0x12, 0xa0];
        let standby = [0x15, 0x55, 0x1a, 0x5a, 0x4c, 0x4d, 0x1c, 0x1d, 0x5e, 0x5f];
        for state in [0, 1, 2, 3].map(AccessState) {
            let mut groups = PortGroups::default();
            groups.set(1, state);
            for opcode in 0..=255 {
                for low in 0..32 {
                    let exact = matches!((opcode, low), (0xa3 | 0xa4 | 0x3b | 0x3c, 0x0a));
                    let passes = match state {
                        AccessState::STANDBY => {
                            exact || always.contains(&opcode) || standby.contains(&opcode)
                        }
                        AccessState::UNAVAILABLE => exact || always.contains(&opcode),
                        _ => true,
                    };
                    let checked = groups.check(1, &[opcode, low | 0x20, 0, 0, 0, 0]);
                    assert_eq!(checked.is_ok(), passes, "{state:?} {opcode:02x}/{low:02x}");
                }
            }
            assert_eq!(groups.check(2, &[0x28, 0]), Ok(()), "another group");
        }
    }
}
