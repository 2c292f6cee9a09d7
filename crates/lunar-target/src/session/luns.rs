//! Changes of the LUNs that a session sees while it runs.

use super::{AbortedTasks, Session};
use crate::lun_table::LunChange;
use crate::pieces::{Pieces, REACHED_UNITS};
use crate::view::View;
use std::sync::Arc;

impl Session {
    /// Gives the session other LUNs from now on. Returns its tasks on LUNs that it no longer sees,
    /// which are aborted; once they are quiet, [`end_show`](Self::end_show) is to be called.
    pub(crate) fn begin_show(self: &Arc<Self>, change: &LunChange) -> Vec<AbortedTasks> {
        let luns = Arc::clone(change.new_luns());
        self.charge_units(luns.len());
        self.set_view(View::after(&self.view(), luns));
        self.abort_on_luns(|id| change.is_gone(id))
    }

    /// Detaches the session's nexus from units that it no longer sees. The other attached units
    /// report the change of LUNs to it, and those attached later will. SAM-5 §5.14, SPC-4 §6.33.
    pub(crate) async fn end_show(&self, pieces: &mut Pieces) {
        self.set_luns_changed();
        let view = Arc::clone(&self.view());
        for nexus in view.nexuses().all() {
            pieces.count(REACHED_UNITS).await;
            if view.has(&nexus.unit) {
                self.raise_luns_changed(&nexus, view.since());
            } else if let Some(nexus) = view.nexuses().take(&nexus.unit) {
                self.detach(&nexus);
            }
        }
        // Set again: a report of the LUNs in between has cleared it, and left the rest to the next
        // one.
        self.set_luns_changed();
    }
}
