//! Commands that hold claims for which other owners wait.

use super::{Claim, Claims};
use crate::abort::AbortSignal;
use crate::awaited::AwaitedCommands;

impl Claims {
    /// Makes the command that holds a claim awaited if an eligible claim of another owner waits for
    /// the claim.
    pub(super) fn await_if_waited_for(&mut self, slot: u32) {
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
    pub(super) fn await_held(&mut self, waiting: &Claim) {
        for (slot, _) in self.excluded_by(&self.held_index, waiting) {
            if !self.claim(slot).is_of(&waiting.owner) {
                self.set_awaited(slot);
            }
        }
    }

    /// Does the same as [`await_held`](Self::await_held) for many claims. It looks once at each
    /// held claim from the first block of these to the last one.
    pub(super) fn await_held_around(&mut self, waiting: &[u32]) {
        let mut held = Vec::new();
        self.held_index.any(&self.blocks_around(waiting), true, |slot| {
            held.push(slot);
            false
        });
        held.into_iter().for_each(|slot| self.await_if_waited_for(slot));
    }

    /// Makes the command that holds a claim awaited. [`take_awaited`](Self::take_awaited) has to
    /// follow.
    pub(super) fn set_awaited(&mut self, slot: u32) {
        let entry = self.entry_mut(slot);
        if let Some(command) = &entry.command
            && !entry.is_awaited
        {
            let command = command.clone();
            entry.is_awaited = true;
            command.count_awaited();
            self.awaited.push(command);
        }
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
