//! Changes of the medium, and what becomes of them when there is no room.

use super::{Run, Step, Stop, write_failed};
use crate::clear_limit::ClearPermit;
use crate::leftovers::{Change, TrackedChange};
use crate::ranges::RangeGuard;
use crate::room::{HOLD_INTERVAL, OutOfSpace};
use lunar_block::ErrorKind;

impl Run<'_> {
    /// Does `work`; where the unit is to hold writes, again and again until there is room for it,
    /// or the command is aborted. `guard` is held meanwhile and given back; but a long operation
    /// that begins overtakes it: that waits for it, and may be what makes room. `permit` is given
    /// back before the first wait for room, which another UNMAP may make.
    pub(super) async fn with_room(
        &self,
        guard: RangeGuard,
        permit: Option<ClearPermit>,
        work: impl Fn() -> Change,
    ) -> Step<RangeGuard> {
        let (guard, done) = self.try_with_room(guard, permit, work).await?;
        done.map_err(write_failed)?;
        Ok(guard)
    }

    /// The same, with what the disk said.
    pub(super) async fn try_with_room(
        &self,
        guard: RangeGuard,
        mut permit: Option<ClearPermit>,
        work: impl Fn() -> Change,
    ) -> Step<(RangeGuard, Result<(), lunar_block::Error>)> {
        let (mut guard, mut held) = (guard, None);
        loop {
            let (locked, done) = self.change(guard, work()).await?;
            guard = locked;
            let no_space = done.as_ref().is_err_and(|error| error.kind == ErrorKind::NoSpace);
            if !no_space || self.unit.options().out_of_space != OutOfSpace::Hold {
                return Ok((guard, done));
            }
            drop(permit.take());
            if held.is_none() {
                held = Some(self.unit.hold().ok_or(Stop::Busy)?);
            }
            self.abort.unless(tokio::time::sleep(HOLD_INTERVAL)).await?;
            self.check_generation()?;
        }
    }

    /// Begins `work` and waits for it. Aborted meanwhile, it cancels what the system has not begun;
    /// it waits a moment for the rest, and then leaves that to itself, with its range secluded.
    pub(super) async fn change(
        &self,
        guard: RangeGuard,
        work: Change,
    ) -> Step<(RangeGuard, Result<(), lunar_block::Error>)> {
        self.abort.check()?;
        let owner = self.memory.buffers.owner();
        if self.unit.leftovers.are_too_many(owner) {
            return Err(Stop::Busy);
        }
        let mut change = TrackedChange::new(owner, work);
        let ended = self.abort.unless(change.ended()).await;
        match ended {
            Ok(done) => Ok((guard, done)),
            Err(aborted) => {
                let finished = self.unit.finish_or_leave(guard, change).await;
                finished.ok_or(Stop::from(aborted))
            }
        }
    }
}
