//! Charge for running commands, apart from their data, made as they begin.
//!
//! A connection may begin all commands of its window before it waits, and many connections may do
//! so at the same time: charging them when they wait would be too late.

use lunar_block::{BufferPool, MemoryCharge};

/// Upper bound of the memory of a running command: its future, and its entries in tables. 4,070
/// bytes were measured, with the protocol machine's part.
pub(super) const COMMAND_BYTES: usize = 4 << 10;

/// Number of commands in which the charge grows.
const STEP: usize = 4;

/// The charge for the running commands of one connection.
pub(super) struct RunningCharge {
    charge: MemoryCharge,
    /// Account of the same owner.
    account: BufferPool,
}

impl RunningCharge {
    pub(super) fn new(charge: MemoryCharge, account: BufferPool) -> Self {
        Self { charge, account }
    }

    /// Charges one more command beside `running` ones. Returns `false` if memory is exhausted, and
    /// the owner holds more than its share.
    pub(super) fn may_begin(&mut self, running: usize) -> bool {
        if (running + 1) * COMMAND_BYTES <= self.charge.bytes() {
            return true;
        }
        if self.account.must_release_memory() {
            return false;
        }
        self.charge.set((running + STEP) * COMMAND_BYTES);
        true
    }

    /// Charges `running` commands, and returns the charge in bytes.
    pub(super) fn charge_running(&mut self, running: usize) -> usize {
        self.charge.set(running.next_multiple_of(STEP) * COMMAND_BYTES);
        self.charge.bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lunar_block::MemoryBudget;

    const MIB: usize = 1 << 20;

    /// Goal: an owner that begins many commands at once is refused before the limit is exceeded.
    /// Without this, 2,500 sessions that sent 124 ORDERED commands each within a second took 1,183
    /// MiB of 256: their commands were charged only when their connections waited.
    #[test]
    fn commands_are_charged_as_they_begin() {
        let pool = BufferPool::with_budget(&MemoryBudget::new(64 * MIB));
        let budget = pool.budget().clone();
        let others = pool.charge(63 * MIB);
        let owner = std::sync::Arc::default();
        let account = pool.account(&owner, lunar_block::MemoryKind::Session);
        let mut connections: Vec<RunningCharge> =
            (0..8).map(|_| RunningCharge::new(account.charge(0), account.clone())).collect();
        let begun: Vec<usize> = connections
            .iter_mut()
            .map(|charge| (0..128).take_while(|running| charge.may_begin(*running)).count())
            .collect();
        assert!((100..200).contains(&begun.iter().sum::<usize>()), "{begun:?}");
        assert!(budget.usage().used_bytes <= 64 * MIB);
        drop(others);
        assert!(connections[7].may_begin(0));
        for charge in &mut connections {
            assert_eq!(charge.charge_running(1), STEP * COMMAND_BYTES);
            assert_eq!(charge.charge_running(0), 0);
        }
        assert_eq!(budget.usage().used_bytes, 0);
    }
}
