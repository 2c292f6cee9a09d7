//! Task management that a unit itself carries out for one nexus: the loss of an I_T nexus by
//! I_T NEXUS RESET, and QUERY ASYNCHRONOUS EVENT. SAM-5 §6.3.4, §7.

use crate::attention::{Attention, AttentionQueue, ByNexus};
use crate::plan::NexusId;
use crate::reservations::ItNexus;
use crate::share::Shares;
use crate::unit::BlockUnit;
use alloc::collections::VecDeque;
use alloc::sync::Arc;

/// Nexuses lost by I_T NEXUS RESET whose initiators are remembered until they are back; of older
/// ones the initiator is told of a power-on instead, which says more.
pub const LOST_NEXUSES_MAX: usize = 128;
/// Those of one initiator, and of one origin: nobody makes the others look powered on by losing
/// nexus after nexus.
const SHARES: Shares = Shares { of_all: LOST_NEXUSES_MAX, of_initiator: 32, of_origin: 64 };

/// What initiators are to be told once they are back after an I_T NEXUS RESET.
#[derive(Debug, Default)]
pub(crate) struct LostNexuses {
    /// The one that was lost first at the front.
    waiting: VecDeque<(Arc<ItNexus>, AttentionQueue)>,
}

impl LostNexuses {
    pub(crate) fn remember(&mut self, ports: Arc<ItNexus>, attentions: AttentionQueue) {
        self.waiting.retain(|(known, _)| *known != ports);
        let taken = self.waiting.iter().map(|(known, _)| known.owner());
        if let Some(at) = SHARES.displaced(taken, ports.owner()) {
            self.waiting.remove(at);
        }
        self.waiting.push_back((ports, attentions));
    }

    /// Takes the unit attentions of a nexus that is back after it was lost, up to now.
    pub(crate) fn find_again(&mut self, ports: &ItNexus) -> Option<AttentionQueue> {
        let at = self.waiting.iter().position(|(known, _)| **known == *ports)?;
        self.waiting.remove(at).map(|(_, attentions)| attentions)
    }

    /// Something to be told to all of them.
    pub(crate) fn establish(&mut self, attention: Attention) {
        for (_, attentions) in &mut self.waiting {
            attentions.establish(attention);
        }
    }

    /// To each of them what concerns it.
    pub(crate) fn establish_each(&mut self, by_nexus: &ByNexus<ItNexus>) {
        for (ports, attentions) in &mut self.waiting {
            for attention in by_nexus.of(ports) {
                attentions.establish(attention);
            }
        }
    }
}

impl BlockUnit {
    /// I_T nexus loss, asked for by I_T NEXUS RESET: what belongs to this nexus alone goes
    /// (PREVENT, RESERVE (6)); persistent reservations stay; its initiator is told I_T NEXUS LOSS
    /// OCCURRED, by the session that follows if this one ends first. SAM-5 §6.3.4.
    pub fn nexus_loss(&mut self, nexus: NexusId) {
        self.nexuses.set_prevented(nexus, false);
        self.raise_for(Attention::NEXUS_LOSS.0, nexus);
        if let Some(state) = self.nexuses.get_mut(nexus) {
            state.is_lost = true;
            self.conditions.reservations.nexus_lost(&state.ports);
        }
    }

    /// QUERY ASYNCHRONOUS EVENT: the Additional Response Information of SAM-5 §7 for what this
    /// nexus would be told next, which waits on. `None`: nothing waits.
    ///
    /// Byte 0: how many wait in bits 5 and 4 (1 one, 2 more) and the sense key in the low four;
    /// then the additional sense code and its qualifier.
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
