//! Losses of acknowledged writes in the cache of a device, and their report to each I_T nexus.
//!
//! A flush that finds a loss fails for its own caller only, and the caller may be a background sync
//! or a command of another nexus. Every nexus may have written data that is lost: the next
//! SYNCHRONIZE CACHE of each nexus that has used the unit before the loss fails, whichever flush
//! has found the loss. A nexus is known by its ports, so that a new session of an initiator port
//! also gets the report.

use crate::lock::lock;
use crate::session::SessionKey;
use std::collections::HashMap;
use std::sync::Mutex;

/// Maximum number of nexuses of a unit whose reports are recorded. Without a record, the next
/// SYNCHRONIZE CACHE fails if the device has ever lost writes.
const NEXUSES_MAX: usize = 1024;

/// The number of losses that each nexus of one unit knows of.
#[derive(Debug, Default)]
pub(crate) struct CacheLosses {
    known: Mutex<HashMap<SessionKey, u64>>,
}

impl CacheLosses {
    /// Records that `nexus` begins to use the unit, whose device has lost writes `losses` times.
    pub(crate) fn begin(&self, nexus: &SessionKey, losses: u64) {
        let mut known = lock(&self.known);
        if !known.contains_key(nexus) {
            make_room(&mut known, losses);
            known.insert(nexus.clone(), losses);
        }
    }

    /// Returns true if `nexus` does not know of all losses. It does from then on.
    pub(crate) fn take(&self, nexus: &SessionKey, losses: u64) -> bool {
        let mut known = lock(&self.known);
        match known.get_mut(nexus) {
            Some(reported) => std::mem::replace(reported, losses) != losses,
            None => {
                make_room(&mut known, losses);
                known.insert(nexus.clone(), losses);
                losses > 0
            }
        }
    }
}

/// Removes a nexus if there are too many: one that knows of all losses, if there is any.
fn make_room(known: &mut HashMap<SessionKey, u64>, losses: u64) {
    if known.len() < NEXUSES_MAX {
        return;
    }
    let knows_all = known.iter().find(|(_, reported)| **reported == losses);
    let removed = knows_all.or_else(|| known.iter().next()).map(|(nexus, _)| nexus.clone());
    if let Some(nexus) = removed {
        known.remove(&nexus);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nexus(number: usize) -> SessionKey {
        SessionKey {
            initiator_name: format!("iqn.2026-11.org.example:{number}"),
            isid: [0; 6],
            target_name: Some("iqn.2026-11.org.example:t".into()),
            portal_group_tag: 1,
            discovery: None,
        }
    }

    /// Goal: each nexus gets each loss reported once; one that begins after a loss does not get it.
    #[test]
    fn each_nexus_gets_each_loss_once() {
        let losses = CacheLosses::default();
        losses.begin(&nexus(1), 0);
        losses.begin(&nexus(2), 0);
        assert!(!losses.take(&nexus(1), 0));
        assert!(losses.take(&nexus(1), 1));
        losses.begin(&nexus(3), 1);
        losses.begin(&nexus(2), 1); // a new session of the same ports
        assert!(losses.take(&nexus(2), 1), "it used the unit before the loss");
        assert!(!losses.take(&nexus(1), 1) && !losses.take(&nexus(2), 1));
        assert!(!losses.take(&nexus(3), 1), "it came after the loss");
        assert!(losses.take(&nexus(3), 3), "two losses, one report");
        assert!(!losses.take(&nexus(3), 3));
    }

    /// Goal: records are bounded, and no report is lost with a record.
    #[test]
    fn records_are_bounded() {
        let losses = CacheLosses::default();
        (0..NEXUSES_MAX).for_each(|number| losses.begin(&nexus(number), 0));
        assert!(losses.take(&nexus(0), 1));
        losses.begin(&nexus(NEXUSES_MAX), 1);
        assert_eq!(lock(&losses.known).len(), NEXUSES_MAX);
        assert!(!lock(&losses.known).contains_key(&nexus(0)), "it knew of all losses");
        (1..NEXUSES_MAX).for_each(|number| assert!(losses.take(&nexus(number), 1), "{number}"));
        assert!(losses.take(&nexus(0), 1), "without a record");
        assert!(!losses.take(&nexus(0), 1));
    }
}
