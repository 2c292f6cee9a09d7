//! Rights of initiators: the lists of administrators, as they apply to targets and units.

use crate::options::{LunOptions, TargetOptions};
use crate::unit::Unit;
use lunar_scsi::rights::Rights;
use std::collections::HashSet;
use std::net::IpAddr;
use std::sync::Arc;

/// Rights of an initiator to operations that affect all users of the units of a target.
#[derive(Debug)]
pub(crate) struct UnitRights {
    administers_target: bool,
    /// Addresses of the units that the initiator does not administer.
    others: HashSet<usize>,
}

impl UnitRights {
    /// The rights of the initiator with this name at this address. A LUN's own list of
    /// administrators replaces the target's list. A unit with several LUNs is administered by
    /// initiators that may administer it through each of the LUNs that they see.
    pub(crate) fn new(target: &TargetOptions, initiator: &str, address: IpAddr) -> Self {
        let administers_target = may_administer(target.administer.as_ref(), initiator);
        let may = |lun: &LunOptions| match &lun.administer {
            None => administers_target,
            list => may_administer(list.as_ref(), initiator),
        };
        let is_seen = |lun: &LunOptions| lun.access.allows(initiator, address);
        let others = target.luns.iter().filter(|lun| !may(lun) && is_seen(lun));
        Self {
            administers_target,
            others: others.map(|lun| Arc::as_ptr(&lun.unit).addr()).collect(),
        }
    }

    pub(crate) fn of(&self, unit: &Arc<dyn Unit>) -> Rights {
        Rights {
            administers_unit: !self.others.contains(&Arc::as_ptr(unit).addr()),
            administers_target: self.administers_target,
        }
    }
}

/// True when the rights of initiators at a target may have changed: the lists of administrators
/// differ, or apply to other units or initiators.
pub(crate) fn may_change_rights(old: &TargetOptions, new: &TargetOptions) -> bool {
    if old.administer != new.administer {
        return true;
    }
    let has_lists = |target: &TargetOptions| target.luns.iter().any(|lun| lun.administer.is_some());
    if !has_lists(old) && !has_lists(new) {
        return false;
    }
    // A unit is administered through all its LUNs: a LUN without a list counts when the target has
    // one.
    let counts = |lun: &&LunOptions| lun.administer.is_some() || new.administer.is_some();
    let key = |lun: &LunOptions| Arc::as_ptr(&lun.unit).addr();
    let (before, after) = (old.luns.iter().filter(counts), new.luns.iter().filter(counts));
    let before = before.map(|lun| (key(lun), &lun.administer, &lun.access));
    !before.eq(after.map(|lun| (key(lun), &lun.administer, &lun.access)))
}

/// True when a list of administrators names the initiator. Without a list all initiators are
/// administrators.
pub(crate) fn may_administer(list: Option<&Vec<String>>, initiator: &str) -> bool {
    list.is_none_or(|names| names.iter().any(|name| name.eq_ignore_ascii_case(initiator)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::DiskUnit;

    const TARGET: &str = "iqn.2026-11.org.example:a";

    /// Goal: a change of the catalogue counts as a change of rights only if a list of
    /// administrators differs, or applies to another unit or to other initiators.
    #[test]
    fn rights_may_change_with_the_lists_alone() {
        let unit = |number| {
            let device = Arc::new(lunar_block::MemoryDevice::new(64 << 10, 512, 4096).unwrap());
            let uuid = uuid::Uuid::from_u128(number);
            DiskUnit::open(crate::DiskUnitOptions::new(uuid, device)).unwrap()
        };
        let [one, two] = [1, 2].map(unit);
        let name = || Some(vec!["iqn.2026-11.org.example:admin".to_owned()]);
        let lun = |id, unit: &Arc<DiskUnit>, administer| LunOptions {
            administer,
            ..LunOptions::new(id, Arc::<DiskUnit>::clone(unit))
        };
        let with = |administer, luns| TargetOptions {
            administer,
            luns,
            ..TargetOptions::for_test(TARGET, 1)
        };
        let plain = with(None, vec![lun(0, &one, None)]);
        let grown = with(None, vec![lun(0, &one, None), lun(1, &two, None)]);
        assert!(!may_change_rights(&plain, &grown) && !may_change_rights(&grown, &plain));
        let listed = with(name(), plain.luns.clone());
        assert!(may_change_rights(&plain, &listed));
        assert!(!may_change_rights(&listed, &with(name(), grown.luns.clone())));
        let own = with(None, vec![lun(0, &one, name()), lun(1, &two, None)]);
        assert!(may_change_rights(&grown, &own));
        assert!(!may_change_rights(&own, &with(None, vec![lun(5, &one, name())])));
        assert!(may_change_rights(&own, &with(None, vec![lun(0, &two, name())])));
        assert!(may_change_rights(&own, &with(None, vec![lun(0, &one, Some(Vec::new()))])));
        let mut narrowed = own.clone();
        narrowed.luns[0].access.initiators = vec!["iqn.2026-11.org.example:a".to_owned()];
        assert!(may_change_rights(&own, &narrowed));
        // A second LUN of the unit, to which the target's list applies.
        let both = with(Some(Vec::new()), vec![lun(0, &one, name()), lun(1, &one, None)]);
        assert!(may_change_rights(&with(Some(Vec::new()), vec![lun(0, &one, name())]), &both));
    }
}
