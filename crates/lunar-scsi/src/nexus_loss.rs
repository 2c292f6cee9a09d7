//! Task management functions of a unit for one nexus: the loss of an I_T nexus by I_T
//! NEXUS RESET, and QUERY ASYNCHRONOUS EVENT. SAM-5 §6.3.4, §7.

use crate::attention::{Attention, AttentionQueue, ByNexus};
use crate::plan::NexusId;
use crate::primary::PrimaryUnit;
use crate::reservations::ItNexus;
use crate::share::Shares;
use alloc::collections::VecDeque;
use alloc::sync::Arc;

/// Maximum number of nexuses lost by I_T NEXUS RESET whose initiators are remembered until they
/// return; initiators of older ones receive a power-on instead, which implies the loss.
pub const LOST_NEXUSES_MAX: usize = 128;
/// Limits per initiator and per origin: an initiator that loses many nexuses must not cause
/// power-on reports for the others.
const SHARES: Shares = Shares { of_all: LOST_NEXUSES_MAX, of_initiator: 32, of_origin: 64 };

/// Unit attentions for initiators that return after an I_T NEXUS RESET.
#[derive(Debug, Default)]
pub(crate) struct LostNexuses {
    /// Lost nexuses, oldest first.
    lost: VecDeque<(Arc<ItNexus>, AttentionQueue)>,
}

impl LostNexuses {
    pub(crate) fn remember(&mut self, ports: Arc<ItNexus>, attentions: AttentionQueue) {
        self.lost.retain(|(known, _)| *known != ports);
        let owners = self.lost.iter().map(|(known, _)| known.owner());
        if let Some(at) = SHARES.displaced(owners, ports.owner()) {
            self.lost.remove(at);
        }
        self.lost.push_back((ports, attentions));
    }

    /// Removes the lost nexus between these ports, because it returns; returns its pending unit
    /// attentions.
    pub(crate) fn take(&mut self, ports: &ItNexus) -> Option<AttentionQueue> {
        let at = self.lost.iter().position(|(known, _)| **known == *ports)?;
        self.lost.remove(at).map(|(_, attentions)| attentions)
    }

    /// Establishes a unit attention for all lost nexuses.
    pub(crate) fn establish(&mut self, attention: Attention) {
        for (_, attentions) in &mut self.lost {
            attentions.establish(attention);
        }
    }

    /// Establishes for each lost nexus the unit attentions that concern it.
    pub(crate) fn establish_each(&mut self, by_nexus: &ByNexus<ItNexus>) {
        for (ports, attentions) in &mut self.lost {
            for attention in by_nexus.of(ports) {
                attentions.establish(attention);
            }
        }
    }
}

impl PrimaryUnit {
    /// I_T nexus loss by I_T NEXUS RESET: state of this nexus alone is removed (PREVENT, RESERVE
    /// (6)); persistent reservations stay; its initiator receives I_T NEXUS LOSS OCCURRED, in the
    /// next session if this one ends first. SAM-5 §6.3.4.
    pub fn nexus_loss(&mut self, nexus: NexusId) {
        self.nexuses.set_prevented(nexus, false);
        self.raise_for(Attention::NEXUS_LOSS.0, nexus);
        if let Some(state) = self.nexuses.get_mut(nexus) {
            state.is_lost = true;
            self.access.reservations.nexus_lost(&state.ports);
        }
    }

    /// QUERY ASYNCHRONOUS EVENT: the Additional Response Information of SAM-5 §7 for the next unit
    /// attention of this nexus, which stays pending. `None`: none is pending.
    ///
    /// Byte 0 contains UADE DEPTH in bits 5 and 4 (1 if one is pending, 2 for more) and the sense
    /// key in the low four bits; the additional sense code and its qualifier follow.
    pub fn pending_event(&mut self, nexus: NexusId) -> Option<[u8; 3]> {
        const ONE: u8 = 0x10;
        const SEVERAL: u8 = 0x20;
        let attentions = self.nexuses.attentions(nexus)?;
        let sense = attentions.peek()?.sense();
        let [code, qualifier] = sense.code.to_be_bytes();
        let depth = if attentions.len() > 1 { SEVERAL } else { ONE };
        Some([depth | sense.key.0, code, qualifier])
    }
}
