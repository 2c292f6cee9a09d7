//! All attacks, by the feature that they misuse.

mod ahs;
mod copy;
mod drip;
mod floods;
mod half_open;
mod held_blocks;
mod limits;
mod logins;
mod long_operations;
mod management;
mod many_hosts;
mod many_sessions;
mod many_units;
mod numbering;
mod reservations;
mod slow_writes;
mod text;
mod unread;
mod withheld;

use super::attack::Attack;

/// Every attack, in the order of the table.
pub fn all() -> Vec<Attack> {
    [
        floods::CONTROL,
        unread::ATTACKS,
        withheld::ATTACKS,
        half_open::ATTACKS,
        drip::ATTACKS,
        logins::ATTACKS,
        many_sessions::ATTACKS,
        many_units::ATTACKS,
        many_hosts::ATTACKS,
        held_blocks::ATTACKS,
        text::ATTACKS,
        ahs::ATTACKS,
        numbering::ATTACKS,
        floods::ATTACKS,
        management::ATTACKS,
        reservations::ATTACKS,
        copy::ATTACKS,
        long_operations::ATTACKS,
        limits::ATTACKS,
        slow_writes::ATTACKS,
    ]
    .concat()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    /// Goal: each attack has a unique name and a summary that fits into a table.
    #[test]
    fn attacks_are_declared_well() {
        let mut names = HashSet::new();
        for attack in all() {
            let name = attack.name;
            assert!(names.insert(name), "{name} is there twice");
            assert!(name.chars().all(|c| c.is_ascii_lowercase() || "-0123456789".contains(c)));
            assert!(attack.summary.len() > 20 && !attack.summary.contains('|'), "{name}");
            assert!(attack.connections > 0 && attack.fault <= 7, "{name}");
        }
        let faults: HashSet<u8> = all().iter().map(|attack| attack.fault).collect();
        for fault in [1, 2, 3, 4, 5, 7] {
            assert!(faults.contains(&fault), "no attack stands for fault {fault}");
        }
    }
}
