//! Commands that hold claims for which other owners wait, or delay a claim whose command others
//! wait for.

use super::{Claim, Claims, owner_key};
use crate::abort::AbortSignal;
use crate::awaited::AwaitedCommands;

impl Claims {
    /// Makes the command that holds a claim awaited if an eligible claim of another owner waits for
    /// the claim.
    pub(super) fn mark_awaited_if_waited_for(&mut self, slot: u32) {
        let entry = &self.entries[slot as usize];
        if self.waiting > 0 && entry.command.is_some() && self.is_waited_for(&entry.claim) {
            self.set_awaited(slot);
        }
    }

    /// True if an eligible claim of another owner waits for this held one.
    fn is_waited_for(&self, held: &Claim) -> bool {
        self.eligible_index.any(&held.blocks, held.exclusive, |slot| {
            let waiting = self.claim(slot);
            !waiting.is_of(&held.owner) && waiting.excludes(held)
        })
    }

    /// Makes the commands awaited that hold the claims for which this eligible one waits.
    pub(super) fn mark_holders_awaited(&mut self, waiting: &Claim) {
        for (slot, _) in self.excluded_by(&self.held_index, waiting) {
            if !self.claim(slot).is_of(&waiting.owner) {
                self.set_awaited(slot);
            }
        }
    }

    /// Does the same as [`mark_holders_awaited`](Self::mark_holders_awaited) for many claims. It
    /// looks once at each held claim from the first block of these to the last one.
    pub(super) fn mark_holders_awaited_around(&mut self, waiting: &[u32]) {
        let mut held = Vec::new();
        self.held_index.any(&self.blocks_around(waiting), true, |slot| {
            held.push(slot);
            false
        });
        held.into_iter().for_each(|slot| self.mark_awaited_if_waited_for(slot));
    }

    /// Makes the commands awaited whose earlier claims of the same owner keep this claim waiting,
    /// directly or because they keep others of them waiting. Each claim is looked at once, however
    /// often this is called for those that wait for it. [`take_awaited`](Self::take_awaited) has to
    /// follow.
    pub(in super::super) fn mark_own_blockers_awaited(&mut self, slot: u32) {
        let mut found = vec![slot];
        while let Some(slot) = found.pop() {
            let entry = self.entry_mut(slot);
            if entry.held_at.is_some() || entry.turn.is_some() {
                continue; // no claim of its owner keeps it waiting
            }
            entry.has_awaited_blockers = true;
            for blocker in self.own_blockers(slot) {
                if self.set_awaited(blocker) {
                    found.push(blocker);
                }
            }
        }
    }

    /// The earlier claims of its owner that exclude a claim which is not eligible.
    fn own_blockers(&self, slot: u32) -> Vec<u32> {
        let claim = self.claim(slot);
        let queue = self.owners.get(&owner_key(&claim.owner));
        let indexes = [&self.held_index, &self.eligible_index].into_iter();
        let found = indexes.chain(queue.map(|queue| &queue.fronts));
        let found = found.flat_map(|index| self.excluded_by(index, claim));
        let is_blocker = |slot: &u32| {
            let other = self.claim(*slot);
            other.id < claim.id && other.is_of(&claim.owner)
        };
        found.map(|(slot, _)| slot).filter(is_blocker).collect()
    }

    /// Makes the command of a claim awaited. Returns false if it was awaited for this claim, or if
    /// there is none. [`take_awaited`](Self::take_awaited) has to follow.
    pub(super) fn set_awaited(&mut self, slot: u32) -> bool {
        let entry = self.entry_mut(slot);
        let Some(command) = entry.command.clone().filter(|_| !entry.is_awaited) else {
            return false;
        };
        entry.is_awaited = true;
        command.count_awaited();
        self.awaited.push(command);
        true
    }

    /// Sets the command that made a claim.
    pub(in super::super) fn set_command(&mut self, slot: u32, command: Option<&AbortSignal>) {
        self.entry_mut(slot).command = command.cloned();
    }

    /// Takes the commands whose connections are to be signalled, once the claims are unlocked.
    pub(in super::super) fn take_awaited(&mut self) -> AwaitedCommands {
        std::mem::take(&mut self.awaited)
    }
}
