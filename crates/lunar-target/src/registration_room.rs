//! Room for the persistent registrations of all units together: they stay when their sessions end,
//! and take memory that no session is charged for.

use lunar_block::{BufferPool, MemoryCharge};
use lunar_scsi::reservations::RegistrationsVersion;
use lunar_scsi::share::Origin;
use lunar_scsi::unit::BlockUnit;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Memory of a registration: two names of 223 bytes and their containers. 900 bytes were measured.
const REGISTRATION_BYTES: usize = 1 << 10;
/// Divisor of all memory for the part that registrations may take.
const MEMORY_PART: usize = 8;
/// Divisor of the room for the part that is kept for initiators that have proven their names.
const PROVEN_KEPT: usize = 4;

/// Room for the registrations of all units of a server.
#[derive(Clone, Debug)]
pub(crate) struct RegistrationRoom(Arc<Mutex<RoomInUse>>);

#[derive(Debug)]
struct RoomInUse {
    registrations_max: usize,
    registrations: usize,
    of_origins: HashMap<Origin, usize>,
    charge: MemoryCharge,
}

/// The registrations of one unit, counted until this is dropped.
#[derive(Debug, Default)]
pub(crate) struct CountedRegistrations {
    room: Option<RegistrationRoom>,
    of_origins: HashMap<Option<Origin>, usize>,
    /// Version of the registrations that were counted.
    version: Option<RegistrationsVersion>,
    /// Number of walks over all registrations.
    #[cfg(test)]
    walks: usize,
}

impl RegistrationRoom {
    /// Room for the registrations that fit into this memory divided by [`MEMORY_PART`].
    pub(crate) fn new(memory: &BufferPool) -> Self {
        let registrations_max = memory.budget().limit_bytes() / MEMORY_PART / REGISTRATION_BYTES;
        let charge = memory.charge(0);
        let of_origins = HashMap::new();
        Self(Arc::new(Mutex::new(RoomInUse {
            registrations_max,
            registrations: 0,
            of_origins,
            charge,
        })))
    }

    /// Room without a limit.
    #[cfg(test)]
    pub(crate) fn unlimited() -> Self {
        Self::new(&BufferPool::new(0))
    }

    /// Number of further registrations that an initiator from `origin` may make; `None` if its name
    /// is proven. An unproven initiator may have as many as there would be left for others, so that
    /// some room remains.
    pub(crate) fn registrations_left_for(&self, origin: Option<Origin>) -> usize {
        let taken = self.taken();
        let Some(origin) = origin else {
            return taken.registrations_max.saturating_sub(taken.registrations);
        };
        let room = taken.registrations_max - taken.registrations_max / PROVEN_KEPT;
        let free = room.saturating_sub(taken.registrations);
        let own = taken.of_origins.get(&origin).copied().unwrap_or_default();
        free.saturating_sub(own) / 2
    }

    fn taken(&self) -> MutexGuard<'_, RoomInUse> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl CountedRegistrations {
    /// Counts the current registrations of `unit`, if they have changed.
    pub(crate) fn update(&mut self, room: &RegistrationRoom, unit: &BlockUnit) {
        let version = Some(unit.registrations_version());
        let is_counted = |counted: &RegistrationRoom| Arc::ptr_eq(&counted.0, &room.0);
        if self.version != version || !self.room.as_ref().is_some_and(is_counted) {
            self.set(room, unit.registration_origins());
            self.version = version;
        }
    }

    /// Counts the current registrations of `unit` after changes were rolled back.
    pub(crate) fn recount_after_rollback(&mut self, unit: &BlockUnit) {
        if let Some(room) = self.room.clone() {
            self.version = None;
            self.update(&room, unit);
        }
    }

    fn forget(&mut self) {
        if let Some(room) = self.room.take() {
            let of_origins = std::mem::take(&mut self.of_origins);
            room.taken().change(&of_origins, &HashMap::new());
        }
    }

    #[cfg(test)]
    pub(crate) fn walks(&self) -> usize {
        self.walks
    }

    /// Sets the current registrations of the unit, by origin.
    fn set(&mut self, room: &RegistrationRoom, origins: impl Iterator<Item = Option<Origin>>) {
        if self.room.as_ref().is_some_and(|counted| !Arc::ptr_eq(&counted.0, &room.0)) {
            self.forget(); // counted by another server
        }
        #[cfg(test)]
        {
            self.walks += 1;
        }
        let mut of_origins = HashMap::new();
        origins.for_each(|origin| *of_origins.entry(origin).or_default() += 1);
        if of_origins != self.of_origins {
            let before = std::mem::replace(&mut self.of_origins, of_origins);
            room.taken().change(&before, &self.of_origins);
        }
        self.room = Some(room.clone());
    }
}

impl Drop for CountedRegistrations {
    fn drop(&mut self) {
        self.forget();
    }
}

type Counts = HashMap<Option<Origin>, usize>;

impl RoomInUse {
    fn change(&mut self, before: &Counts, after: &Counts) {
        for (origin, count) in after {
            self.registrations += count;
            if let Some(origin) = origin {
                *self.of_origins.entry(*origin).or_default() += count;
            }
        }
        for (origin, count) in before {
            self.registrations -= count;
            let Some(origin) = origin else { continue };
            if let Some(own) = self.of_origins.get_mut(origin) {
                *own -= count;
                if *own == 0 {
                    self.of_origins.remove(origin);
                }
            }
        }
        self.charge.set(self.registrations * REGISTRATION_BYTES);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lunar_block::MemoryBudget;

    fn room(registrations: usize) -> RegistrationRoom {
        let bytes = registrations * REGISTRATION_BYTES * MEMORY_PART;
        RegistrationRoom::new(&BufferPool::with_budget(&MemoryBudget::new(bytes)))
    }

    fn taken(room: &RegistrationRoom, origin: Option<u128>, count: usize) -> CountedRegistrations {
        let mut counted = CountedRegistrations::default();
        counted.set(room, std::iter::repeat_n(origin.map(Origin), count));
        counted
    }

    /// Fault: 1,024 initiators of two addresses registered at 640 units, and the server was killed
    /// for lack of memory.
    #[test]
    fn no_origin_takes_all_registrations() {
        let room = room(1000);
        let mut held = Vec::new();
        for origin in 0..6 {
            while room.registrations_left_for(Some(Origin(origin))) > 0 {
                held.push(taken(&room, Some(origin), 1));
            }
        }
        assert!(held.len() <= 750, "{}", held.len());
        assert!(room.registrations_left_for(Some(Origin(9))) >= 1, "for a newcomer");
        assert!(room.registrations_left_for(None) >= 250, "for who proves its name");
        let proven = taken(&room, None, room.registrations_left_for(None));
        assert_eq!(
            (room.registrations_left_for(None), room.registrations_left_for(Some(Origin(9)))),
            (0, 0)
        );
        drop((held, proven));
        assert_eq!(room.registrations_left_for(None), 1000);
        assert!(room.taken().of_origins.is_empty());
    }

    /// Goal: only the current registrations of a unit count.
    #[test]
    fn removed_registrations_are_not_counted() {
        let room = room(100);
        let mut counted = taken(&room, Some(1), 40);
        let one = Some(Origin(1));
        assert_eq!(room.registrations_left_for(None), 60);
        counted.set(&room, [one, None].into_iter());
        assert_eq!(room.registrations_left_for(None), 98);
        assert_eq!(room.taken().of_origins[&Origin(1)], 1);
    }
}
