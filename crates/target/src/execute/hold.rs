//! Changes of the medium, and what becomes of them when there is no room.

use super::{Run, Step, Stop, write_failed};
use crate::room::{HOLD_INTERVAL, OutOfSpace};
use block::{BoxFuture, ErrorKind};

impl Run<'_> {
    /// Does `work`; where the unit is to hold writes, again and again until there is room for it,
    /// or the command is aborted. Ranges that it locked stay locked meanwhile; but a long operation
    /// that begins overtakes it: that waits for them, and may be what makes room.
    pub(super) async fn with_room<'w>(
        &self,
        work: impl Fn() -> BoxFuture<'w, Result<(), block::Error>>,
    ) -> Step<()> {
        let mut held = None;
        loop {
            let error = match work().await {
                Ok(()) => return Ok(()),
                Err(error) => error,
            };
            let holds = self.unit.options().out_of_space == OutOfSpace::Hold;
            if error.kind != ErrorKind::NoSpace || !holds {
                return Err(write_failed(error).into());
            }
            if held.is_none() {
                held = Some(self.unit.hold().ok_or(Stop::Busy)?);
            }
            self.abort.unless(tokio::time::sleep(HOLD_INTERVAL)).await?;
            self.check_generation()?;
        }
    }
}

#[cfg(test)]
mod tests;
