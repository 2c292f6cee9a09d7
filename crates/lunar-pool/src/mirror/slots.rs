//! The slots of a mirror, whose members change while it is open.

use super::member::MirrorMember;
use lunar_block::BlockDevice;
use std::sync::{Arc, PoisonError, RwLock};

/// The slots of a mirror. They change only behind the membership lock, held alone.
#[derive(Debug)]
pub(super) struct MemberSlots(RwLock<Arc<[MemberSlot]>>);

/// A slot of a mirror.
#[derive(Clone, Debug)]
pub(super) enum MemberSlot {
    /// The member was removed.
    Vacant,
    /// The device of the member is missing.
    Missing,
    Taken(Arc<MirrorMember>),
}

impl MemberSlot {
    pub(super) fn member(&self) -> Option<&Arc<MirrorMember>> {
        match self {
            Self::Taken(member) => Some(member),
            Self::Vacant | Self::Missing => None,
        }
    }
}

impl MemberSlots {
    pub(super) fn new(slots: Vec<MemberSlot>) -> Self {
        Self(RwLock::new(slots.into()))
    }

    /// Returns all slots as they are now.
    pub(super) fn all(&self) -> Arc<[MemberSlot]> {
        Arc::clone(&self.0.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Returns the members whose devices are present, in the order of their slots.
    pub(super) fn present(&self) -> impl Iterator<Item = Arc<MirrorMember>> + use<> {
        let all = self.all();
        (0..all.len()).filter_map(move |at| all[at].member().cloned())
    }

    /// Returns the number of members, also missing ones.
    pub(super) fn members(&self) -> usize {
        self.all().iter().filter(|slot| !matches!(slot, MemberSlot::Vacant)).count()
    }

    /// Changes a slot, which may be a new one.
    pub(super) fn set(&self, at: u16, slot: MemberSlot) {
        let mut slots = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let mut all = slots.to_vec();
        let at = usize::from(at);
        all.resize(all.len().max(at + 1), MemberSlot::Vacant);
        all[at] = slot;
        *slots = all.into();
    }
}

/// Members that have lost their slots, while changes of their devices are open. Such a change
/// could reach the device after newer data if the device got a slot again.
#[derive(Debug, Default)]
pub(super) struct FormerMembers(Vec<Arc<MirrorMember>>);

impl FormerMembers {
    pub(super) fn add(&mut self, member: Arc<MirrorMember>) {
        self.0.push(member);
        self.0.retain(|member| member.has_open_changes());
    }

    pub(super) fn has_open_changes(&mut self, device: &Arc<dyn BlockDevice>) -> bool {
        self.0.retain(|member| member.has_open_changes());
        self.0.iter().any(|member| Arc::ptr_eq(member.device.given(), device))
    }
}
