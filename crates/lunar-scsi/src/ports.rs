//! Asymmetric logical unit access: the access state of a unit for each target port group.
//! SPC-4 §5.15.2.
//!
//! A portal group is a target port (RFC 7143 §4.4.3), and each is its own target port group,
//! identified by its tag. The states belong to the unit, for every target that exports it: two
//! targets that export a unit under one tag have one group, because multipath drivers identify a
//! group by the unit's name and the group's number.

use crate::plan::buffers::BufferMode;
use crate::primary::TargetPort;
use crate::sense::Sense;
use alloc::collections::BTreeMap;

/// Maximum number of ports of one target: more would not fit into page 88h with the longest names.
pub const PORTS_MAX: usize = 256;

lunar_wire::wire_enum! {
    /// ASYMMETRIC ACCESS STATE, the supported values. Changes take no time, so there is no
    /// transitioning state; offline is a state that cannot be queried. SPC-4 §6.37.
    pub struct AccessState(u8) {
        ACTIVE_OPTIMIZED = 0, ACTIVE_NON_OPTIMIZED = 1, STANDBY = 2, UNAVAILABLE = 3,
    }
}

lunar_wire::wire_enum! {
    /// STATUS CODE: the cause of the last state change. SPC-4 §6.37.
    pub struct StatusCode(u8) { NONE = 0, SET_TARGET_PORT_GROUPS = 1 }
}

impl AccessState {
    /// True if blocks can be read and written on such a port.
    pub fn is_active(self) -> bool {
        matches!(self, Self::ACTIVE_OPTIMIZED | Self::ACTIVE_NON_OPTIMIZED)
    }
}

/// The states of one unit's groups. All are active/optimized until SET TARGET PORT GROUPS changes
/// them, and again after a restart.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct PortGroups {
    /// States set by SET TARGET PORT GROUPS, by portal group tag: at most one for each port.
    states: BTreeMap<u16, AccessState>,
}

impl PortGroups {
    /// The access state of the group with this tag.
    pub fn state(&self, group: u16) -> AccessState {
        self.states.get(&group).copied().unwrap_or(AccessState::ACTIVE_OPTIMIZED)
    }

    /// The cause of the last state change of this group.
    pub fn status_code(&self, group: u16) -> StatusCode {
        if self.states.contains_key(&group) {
            StatusCode::SET_TARGET_PORT_GROUPS
        } else {
            StatusCode::NONE
        }
    }

    /// True if blocks are accessible on at least one of these ports.
    pub fn any_active(&self, ports: &[TargetPort]) -> bool {
        ports.iter().any(|port| self.state(port.portal_group_tag).is_active())
    }

    /// Sets a group's state.
    pub fn set(&mut self, group: u16, state: AccessState) {
        self.states.insert(group, state);
    }

    /// Checks whether a command may be received on a port of this group. SPC-4 §5.15.2.4 lists the
    /// commands that every state must allow, and lets all others end with NOT READY.
    ///
    /// # Errors
    /// LOGICAL UNIT NOT ACCESSIBLE, with the state of the port.
    pub fn check(&self, group: u16, access: PortAccess, cdb: &[u8]) -> Result<(), Sense> {
        match self.state(group) {
            AccessState::STANDBY if access.of(cdb) == PortAccess::Active => {
                Err(Sense::TARGET_PORT_IN_STANDBY_STATE)
            }
            AccessState::UNAVAILABLE if access.of(cdb) != PortAccess::Unavailable => {
                Err(Sense::TARGET_PORT_IN_UNAVAILABLE_STATE)
            }
            _ => Ok(()),
        }
    }
}

/// The states of a port through which a command may come.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum PortAccess {
    /// Active states.
    Active,
    /// Active states and standby.
    Standby,
    /// All states.
    Unavailable,
    /// All states for the echo buffer modes of READ and WRITE BUFFER, else active ones.
    EchoBuffer,
}

impl PortAccess {
    /// The states for a specific CDB; never `EchoBuffer`.
    fn of(self, cdb: &[u8]) -> Self {
        const MODE: u8 = 0x1f;
        let is_echo = || cdb.get(1).is_some_and(|mode| mode & MODE == BufferMode::ECHO.0);
        match self {
            Self::EchoBuffer if is_echo() => Self::Unavailable,
            Self::EchoBuffer => Self::Active,
            fixed => fixed,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands;

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

    /// Goal: exactly the commands that the standard lists pass, as far as the table has them.
    /// Method: every operation code with every service action or mode, in each state.
    #[test]
    fn each_state_allows_exactly_the_listed_commands() {
        let always = [0x03, 0x12, 0xa0];
        let standby = [0x15, 0x55, 0x1a, 0x5a, 0x4c, 0x4d, 0x1c, 0x1d, 0x5e, 0x5f];
        for state in [0, 1, 2, 3].map(AccessState) {
            let mut groups = PortGroups::default();
            groups.set(1, state);
            for opcode in 0..=255 {
                for low in 0..32 {
                    let cdb = [opcode, low | 0x20, 0, 0, 0, 0];
                    let Some(command) = commands::row(&cdb) else { continue };
                    let is_listed = matches!((opcode, low), (0xa3 | 0xa4 | 0x3b | 0x3c, 0x0a));
                    let passes = match state {
                        AccessState::STANDBY => {
                            is_listed || always.contains(&opcode) || standby.contains(&opcode)
                        }
                        AccessState::UNAVAILABLE => is_listed || always.contains(&opcode),
                        _ => true,
                    };
                    let checked = groups.check(1, command.ports, &cdb);
                    assert_eq!(checked.is_ok(), passes, "{state:?} {opcode:02x}/{low:02x}");
                }
            }
            let another = groups.check(2, PortAccess::Active, &[0x28, 0]);
            assert_eq!(another, Ok(()), "another group");
        }
    }
}
