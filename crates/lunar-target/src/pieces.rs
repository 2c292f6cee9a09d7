//! Work of one task on many sessions and units, done in pieces.

/// Units of work after which other work of the core has its turn: estimated at 50 us.
const PIECE_UNITS: usize = 1024;

/// Units of work that locking the SCSI state of a unit counts as.
pub(crate) const REACHED_UNITS: usize = 4;

/// Counts work in units that are visited, and yields to other work of the core in between.
#[derive(Debug, Default)]
pub(crate) struct Pieces {
    done: usize,
}

impl Pieces {
    /// Counts work, done or about to be done, that takes as long as visiting this many units. A
    /// single call should count no more than one piece.
    pub(crate) async fn count(&mut self, units: usize) {
        self.done = self.done.saturating_add(units);
        if self.done >= PIECE_UNITS {
            self.done = 0;
            tokio::task::yield_now().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    /// Goal: other work has its turn once in a piece.
    #[test]
    fn a_piece_is_bounded() {
        let mut pieces = Pieces::default();
        let mut work = pin!(async {
            for _ in 0..10 * PIECE_UNITS {
                pieces.count(1).await;
            }
        });
        let mut context = Context::from_waker(Waker::noop());
        let turns = (0..).find(|_| work.as_mut().poll(&mut context) == Poll::Ready(()));
        assert_eq!(turns, Some(10));
    }
}
