//! Attachment of a session's nexus to units: from its first command there, or the first other event
//! that concerns the nexus at the unit, until the session ends or no longer sees the unit.
//!
//! A unit has no state for a nexus that is not attached. When it attaches the nexus, it reports the
//! unit attentions that it would have reported if the nexus had been attached since the login.

use super::Session;
use crate::itl_nexus::ItlNexus;
use crate::options::TargetOptions;
use crate::pieces::{Pieces, REACHED_UNITS};
use crate::rights::{self, UnitRights};
use crate::session::SessionKey;
use crate::unit::{NexusAttachment, Unit, UnitNexuses};
use crate::view::View;
use lunar_scsi::attention::LogicalTime;
use lunar_scsi::rights::Rights;
use lunar_scsi::unit::NexusOptions;
use std::fmt;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, OnceLock};

/// Units of work that attaching a nexus counts as.
const ATTACHED_UNITS: usize = 16;

/// REPORTED LUNS DATA HAS CHANGED.
const LUNS_CHANGED: u16 = 0x3f0e;

/// The rights of a session's initiator, by the configuration of the target.
pub(super) struct SessionRights {
    /// The target; `None` for a discovery session, which has no units.
    target: Option<Arc<TargetOptions>>,
    of_units: OnceLock<UnitRights>,
}

impl SessionRights {
    pub(super) fn new(target: Option<Arc<TargetOptions>>) -> Self {
        Self { target, of_units: OnceLock::new() }
    }

    /// True when the initiator administers the target.
    pub(super) fn administers(&self, key: &SessionKey) -> bool {
        let list = self.target.as_ref().and_then(|target| target.administer.as_ref());
        rights::may_administer(list, &key.initiator_name)
    }

    fn of(&self, session: &Session, unit: &Arc<dyn Unit>) -> Rights {
        let Some(target) = &self.target else { return Rights::default() };
        let (name, address) = (&session.key.initiator_name, session.path.peer.ip());
        self.of_units.get_or_init(|| UnitRights::new(target, name, address)).of(unit)
    }
}

impl fmt::Debug for SessionRights {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("SessionRights").finish_non_exhaustive()
    }
}

impl Session {
    /// Calls `work` with the state of the nexuses of a unit, under the lock of the unit. Attaches
    /// the nexus before, if the session sees the unit and is not over.
    pub(crate) fn nexuses_of<R: Default>(
        &self,
        unit: &Arc<dyn Unit>,
        work: impl FnOnce(&mut dyn UnitNexuses) -> R,
    ) -> R {
        unit.nexuses(|nexuses| {
            self.attach_to(unit, nexuses);
            work(nexuses)
        })
    }

    /// Attaches the nexus to `unit`, whose nexuses are given, if the session sees the unit.
    pub(crate) fn attach_to<U: ?Sized>(&self, unit: &Arc<U>, nexuses: &mut dyn NexusAttachment) {
        if let Some(nexus) = self.view.load().nexus_of(unit) {
            self.attach(nexus, nexuses);
        }
    }

    /// Attaches `nexus` for a command that waits there before it is checked.
    pub(crate) fn make_known(&self, nexus: &ItlNexus) {
        if nexus.is_unknown() {
            nexus.unit.nexuses(|nexuses| self.attach(nexus, nexuses));
        }
    }

    /// Attaches the nexus. `nexuses` are those of the unit of `nexus`.
    pub(crate) fn attach(&self, nexus: &ItlNexus, nexuses: &mut dyn NexusAttachment) {
        if !nexus.is_unknown() {
            return;
        }
        let options = NexusOptions {
            ports: Arc::clone(&self.it_nexus),
            rights: self.rights.load().of(self, &nexus.unit),
            logged_in: nexus.seen_since(),
            returns_from: self.returns_from,
        };
        nexuses.attach(self.nexus, options);
        nexus.set_attached();
        if self.luns_changed.load(SeqCst) && nexus.seen_since() < self.view.load().since() {
            nexuses.raise_for(LUNS_CHANGED, self.nexus);
        }
    }

    /// Detaches `nexus` when the session no longer sees its unit.
    pub(super) fn detach(&self, nexus: &ItlNexus) {
        nexus.unit.nexuses(|nexuses| {
            if nexus.set_detached() {
                nexuses.detach(self.nexus);
            }
        });
    }

    /// Detaches the nexus from all units when the session ends.
    pub(super) fn detach_all(&self, logged_out: bool) {
        for nexus in self.view().nexuses().end() {
            nexus.unit.nexuses(|nexuses| {
                if !nexus.set_detached() {
                    return;
                }
                if !logged_out {
                    // If it got a power-on attention, a returning initiator would take the cache
                    // for lost.
                    nexuses.nexus_loss(self.nexus);
                }
                nexuses.detach(self.nexus);
            });
        }
    }

    /// Handles I_T NEXUS RESET. A unit to which the nexus is not attached has no state to lose;
    /// once attached, it reports a power-on, or the loss of an earlier nexus. If the reason for the
    /// initiator's return is known, all units are attached before.
    pub(crate) fn lose_nexus(&self) {
        if self.returns_from.is_some() {
            self.view().units().iter().for_each(|unit| self.nexuses_of(unit, |_| ()));
        }
        for nexus in self.view().nexuses().all() {
            nexus.unit.nexuses(|nexuses| nexuses.nexus_loss(self.nexus));
        }
    }

    /// Marks that the view shows other LUNs than the one before: units of both views that attach
    /// the nexus from now on report it to the initiator.
    pub(super) fn set_luns_changed(&self) {
        self.luns_changed.store(true, SeqCst);
    }

    /// Raises the unit attention for changed LUNs at a unit, if the nexus is attached there and the
    /// unit was in the view before `since`.
    pub(super) fn raise_luns_changed(&self, nexus: &ItlNexus, since: LogicalTime) {
        if nexus.seen_since() < since {
            // An unknown nexus is also attached under the lock of the unit.
            nexus.unit.nexuses(|nexuses| {
                if nexus.is_attached() {
                    nexuses.raise_for(LUNS_CHANGED, self.nexus);
                }
            });
        }
    }

    /// Called when the initiator has read the list of LUNs of `view`. A unit that attaches the
    /// nexus later has no change of LUNs to report, unless the session has another view by now.
    pub(crate) fn luns_were_reported(&self, view: &View) {
        let is_current = || self.view().since() == view.since();
        // A session may use thousands of units, and read the list again and again.
        if !is_current() || !self.luns_changed.swap(false, SeqCst) {
            return;
        }
        for nexus in view.nexuses().all() {
            let is_cleared = nexus.unit.nexuses(|nexuses| {
                // A later change raises its attention, under this lock, when the view is replaced.
                let is_current = is_current();
                if is_current {
                    nexuses.luns_were_reported(self.nexus);
                }
                is_current
            });
            if !is_cleared {
                break;
            }
        }
        if !is_current() {
            self.set_luns_changed();
        }
    }

    /// Gives the initiator the rights of the current `target`. `may_differ` is true if they may
    /// differ from the previous ones.
    pub(crate) async fn set_rights(
        &self,
        target: &Arc<TargetOptions>,
        may_differ: bool,
        pieces: &mut Pieces,
    ) {
        let new = Arc::new(SessionRights::new(Some(Arc::clone(target))));
        if !may_differ {
            // Releases the old target, which may no longer be served.
            self.rights.store(new);
            return;
        }
        self.machine().set_administers(new.administers(&self.key));
        let (old, view) = (self.rights.load_full(), Arc::clone(&self.view()));
        pieces.count(2 * target.luns.len()).await;
        for unit in view.units() {
            // Attaches with the old rights, so that the change is reported.
            if old.of(self, unit).administers_unit != new.of(self, unit).administers_unit {
                self.nexuses_of(unit, |_| ());
                pieces.count(ATTACHED_UNITS).await;
            }
            pieces.count(1).await;
        }
        self.rights.store(Arc::clone(&new));
        for nexus in view.nexuses().all() {
            let rights = new.of(self, &nexus.unit);
            nexus.unit.nexuses(|nexuses| nexuses.set_rights(self.nexus, rights));
            pieces.count(REACHED_UNITS).await;
        }
    }
}
