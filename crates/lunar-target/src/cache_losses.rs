//! Losses of acknowledged writes in the cache of a device, and their report to each I_T nexus.
//!
//! A flush that finds a loss fails for its own caller only, and the caller may be a background sync
//! or a command of another nexus. Every nexus may have written data that is lost: the next
//! SYNCHRONIZE CACHE of each nexus that has used the unit before the loss fails, whichever flush
//! has found the loss. A nexus is known by its ports, so that a new session of an initiator port
//! also gets the report.

use crate::lock::lock;
use crate::session::SessionKey;
use lunar_scsi::reservations::ItNexus;
use lunar_scsi::share::Origin;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Mutex;

/// Maximum number of nexuses of a unit that are gone and whose reports are recorded. Without a
/// record, the next SYNCHRONIZE CACHE of a nexus that returns fails if the device has ever lost
/// writes. Attached nexuses always have a record: the limits of sessions bound their number.
const GONE_NEXUSES_MAX: usize = 1024;

/// The number of losses that each nexus of one unit knows of.
#[derive(Debug, Default)]
pub(crate) struct CacheLosses {
    nexuses: Mutex<Nexuses>,
}

#[derive(Debug, Default)]
struct Nexuses {
    known: HashMap<SessionKey, KnownLosses>,
    /// Number of nexuses that are gone.
    gone: usize,
    /// Losses of the device, as last reported.
    losses: u64,
}

#[derive(Debug)]
struct KnownLosses {
    losses: u64,
    /// Number of attached nexuses: 0 if the nexus is gone, 2 for a moment while a session is
    /// replaced.
    attached: u32,
    /// Origin of an initiator whose name is not proven.
    origin: Option<Origin>,
}

impl CacheLosses {
    /// Records that a nexus begins to use the unit, whose device has lost writes `losses` times.
    pub(crate) fn begin(&self, ports: &ItNexus, losses: u64) {
        let mut nexuses = lock(&self.nexuses);
        let nexuses = &mut *nexuses;
        nexuses.losses = losses;
        match nexuses.known.entry(SessionKey::of_nexus(ports)) {
            Entry::Occupied(mut known) => {
                nexuses.gone -= usize::from(known.get().attached == 0);
                known.get_mut().attached += 1;
            }
            Entry::Vacant(new) => {
                new.insert(KnownLosses { losses, attached: 1, origin: ports.owner().origin });
            }
        }
    }

    /// Records that a nexus is gone.
    pub(crate) fn end(&self, nexus: &SessionKey) {
        let mut nexuses = lock(&self.nexuses);
        let Some(known) = nexuses.known.get_mut(nexus).filter(|known| known.attached > 0) else {
            return;
        };
        known.attached -= 1;
        nexuses.gone += usize::from(known.attached == 0);
        if nexuses.gone > GONE_NEXUSES_MAX {
            nexuses.forget_one();
        }
    }

    /// Returns true if an attached nexus does not know of all losses. It does from then on.
    pub(crate) fn take(&self, nexus: &SessionKey, losses: u64) -> bool {
        let mut nexuses = lock(&self.nexuses);
        nexuses.losses = losses;
        match nexuses.known.get_mut(nexus) {
            Some(known) => std::mem::replace(&mut known.losses, losses) != losses,
            None => losses > 0,
        }
    }
}

impl Nexuses {
    /// Forgets a nexus that is gone: of the origin with the most of them, so that no other host
    /// loses a record; if possible one that knows of all losses.
    #[cold]
    fn forget_one(&mut self) {
        let gone = || self.known.iter().filter(|(_, known)| known.attached == 0);
        let mut counts = HashMap::<_, usize>::new();
        gone().for_each(|(_, known)| *counts.entry(known.origin).or_default() += 1);
        let Some((origin, _)) = counts.into_iter().max_by_key(|(_, count)| *count) else { return };
        let of_origin = gone().filter(|(_, known)| known.origin == origin);
        let forgotten = of_origin.max_by_key(|(_, known)| known.losses == self.losses);
        if let Some(nexus) = forgotten.map(|(nexus, _)| nexus.clone()) {
            self.known.remove(&nexus);
            self.gone -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lunar_scsi::primary::{InitiatorPort, TargetPort};

    /// The nexus of the initiator with this number, from this origin.
    fn ports(number: usize, origin: u128) -> ItNexus {
        let name = format!("iqn.2026-11.org.example:{number}");
        let initiator = InitiatorPort { name, isid: [0; 6] };
        let name = "iqn.2026-11.org.example:t".into();
        let port = TargetPort { name, portal_group_tag: 1, relative_id: 1 };
        ItNexus::new(&initiator, &port).from_origin(Some(Origin(origin)))
    }

    fn key(number: usize) -> SessionKey {
        SessionKey::of_nexus(&ports(number, 0))
    }

    /// Goal: each nexus gets each loss reported once; one that begins after a loss does not get it.
    #[test]
    fn each_nexus_gets_each_loss_once() {
        let losses = CacheLosses::default();
        losses.begin(&ports(1, 0), 0);
        losses.begin(&ports(2, 0), 0);
        assert!(!losses.take(&key(1), 0));
        assert!(losses.take(&key(1), 1));
        losses.begin(&ports(3, 0), 1);
        losses.end(&key(2));
        losses.begin(&ports(2, 0), 1); // a new session of the same ports
        assert!(losses.take(&key(2), 1), "it used the unit before the loss");
        assert!(!losses.take(&key(1), 1) && !losses.take(&key(2), 1));
        assert!(!losses.take(&key(3), 1), "it came after the loss");
        assert!(losses.take(&key(3), 3), "two losses, one report");
        assert!(!losses.take(&key(3), 3));
        assert!(losses.take(&key(4), 3), "without a record");
    }

    /// Fault: 1,024 new names displaced the record of an attached nexus, so each of its SYNCHRONIZE
    /// CACHEs failed as long as a host logged in with new names, once the device had lost writes.
    /// Goal: attached nexuses keep their records, and hosts that are gone keep theirs alongside a
    /// host with many names; the number of records is bounded.
    #[test]
    fn new_names_displace_no_record_of_others() {
        let losses = CacheLosses::default();
        losses.begin(&ports(0, 1), 0);
        losses.begin(&ports(1, 2), 0);
        losses.end(&key(1));
        assert!(losses.take(&key(0), 1));
        for number in 2..3 * GONE_NEXUSES_MAX {
            losses.begin(&ports(number, 3), 1);
            losses.end(&key(number));
            assert!(!losses.take(&key(0), 1), "reported again");
        }
        let known = lock(&losses.nexuses).known.len();
        assert_eq!(known, GONE_NEXUSES_MAX + 1);
        assert_eq!(lock(&losses.nexuses).gone, GONE_NEXUSES_MAX);
        losses.begin(&ports(1, 2), 1);
        assert!(losses.take(&key(1), 1), "it used the unit before the loss");
        assert!(!losses.take(&key(1), 1));
    }

    /// Goal: a session that replaces another one of the same ports keeps the record, in whatever
    /// order they begin and end.
    #[test]
    fn a_replaced_session_keeps_its_record() {
        let losses = CacheLosses::default();
        losses.begin(&ports(0, 1), 1);
        losses.begin(&ports(0, 1), 1);
        losses.end(&key(0));
        assert_eq!(lock(&losses.nexuses).gone, 0);
        losses.end(&key(0));
        losses.end(&key(0));
        assert_eq!(lock(&losses.nexuses).gone, 1);
    }
}
