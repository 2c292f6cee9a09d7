//! The interface of a relay, which passes READ and WRITE commands on to the storage that has their
//! blocks. Decision 115.
//!
//! The unit checks a command as every other one, waits for its turn, holds its locks and counts it.
//! The relay only moves the data between the storage and the connection, in place of the device.

#[cfg(doc)]
use crate::memory::RelaySocketMemory;
use bytes::Bytes;
use lunar_block::{BoxFuture, BufferPool, RelayPart};
use lunar_net::{Clock, OwnerId, SocketGroupHandle};
use lunar_wire::Crc32c;
use std::fmt;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::task::{Context, Poll};

/// Creates the relays of a server, one for each connection.
pub trait RelayFactory: fmt::Debug + Send + Sync {
    /// Returns the relay of a connection that has logged in.
    fn relay(&self, host: RelayHost) -> Rc<dyn ConnectionRelay>;
}

/// A connection of a host, to its relay.
#[derive(Clone, Debug)]
pub struct RelayHost {
    /// The sockets that share the task of the connection: those to storage are added to them.
    pub sockets: SocketGroupHandle,
    /// Owner for whom these sockets take the time of the core.
    pub owner: OwnerId,
    /// The clock of the connection.
    pub clock: Clock,
    /// Account of the host for what these sockets buffer ([`RelaySocketMemory`]).
    pub buffers: BufferPool,
    /// Longest data segment that the host receives, if it uses data digests.
    pub digest_bytes_max: Option<u32>,
}

/// The relay of one connection. It uses sockets of its own to storage, on the connection's core.
pub trait ConnectionRelay: fmt::Debug {
    /// Returns whether a WRITE or a READ of these parts can be passed on now. If not, the relay
    /// begins to do what is necessary so that later ones can, such as a login.
    fn is_ready(&self, parts: &[RelayPart], is_write: bool) -> bool;

    /// Begins a READ of a part, whose data takes memory of `buffers`. Returns `None` if the relay
    /// cannot pass it on now.
    fn read(&self, part: &RelayPart, buffers: &BufferPool) -> Option<Box<dyn PartReader>>;

    /// Begins a WRITE of a part. `prefix` is the beginning of its data, as far as it is there; GOOD
    /// means durable if `is_durable`. Returns `None` if the relay cannot pass it on now.
    fn write(
        &self,
        part: &RelayPart,
        prefix: RelayedPiece,
        is_durable: bool,
    ) -> Option<Box<dyn PartWriter>>;

    /// Called when the connection is over: no command begins any more.
    fn close(&self);
}

/// Data that a relay moves.
#[derive(Clone, Debug, Default)]
pub struct RelayedPiece {
    /// The data.
    pub data: Bytes,
    /// Digest with which the data came as one data segment; it is sent on if the data is one
    /// segment again. `None`: there is none, or the data is not a whole segment.
    pub digest: Option<u32>,
}

impl RelayedPiece {
    /// Splits the piece if it is longer than `bytes`; returns the rest. The digest of a piece that
    /// is split is lost.
    pub(crate) fn split_off(&mut self, bytes: usize) -> Option<Self> {
        let rest = (self.data.len() > bytes).then(|| self.data.split_off(bytes))?;
        self.digest = None;
        Some(rest.into())
    }

    /// True unless the data was damaged since its digest was checked.
    pub(crate) fn is_intact(&self) -> bool {
        let padding = &[0; 3][..self.data.len().wrapping_neg() & 3];
        self.digest.is_none_or(|digest| {
            let mut crc = Crc32c::new();
            crc.update(&self.data);
            crc.update(padding);
            crc.value() == digest
        })
    }
}

impl From<Bytes> for RelayedPiece {
    fn from(data: Bytes) -> Self {
        Self { data, digest: None }
    }
}

/// Reason why a part was not transferred.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum RelayFailure {
    /// The storage did not execute the command, or not completely: the device is to move the data.
    NotExecuted,
    /// The connection to the storage was lost.
    Lost,
    /// The storage violated the protocol: none of its data is to be believed.
    Violated,
}

/// A READ that was passed on. The storage aborts it if this is dropped before its end.
pub trait PartReader {
    /// Returns the next piece of the data, in order; `None` when all of it has come and the
    /// storage has answered GOOD.
    ///
    /// # Errors
    /// No more data will come.
    fn poll_next(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Result<Option<RelayedPiece>, RelayFailure>>;
}

/// A WRITE that was passed on. The storage aborts it if this is dropped before its end.
pub trait PartWriter {
    /// Returns the next event.
    fn poll_event(&mut self, context: &mut Context<'_>) -> Poll<PartWriteEvent>;

    /// Gives data that [`PartWriteEvent::Wants`] asked for: all or the first part of the oldest
    /// range that was not given yet.
    fn give(&mut self, offset_bytes: u32, piece: RelayedPiece);

    /// Returns a future that ends when the WRITE can have no further effect: when the storage
    /// has answered it, its abort, or the login that replaces a lost session. To be called once,
    /// at first.
    fn ended(&mut self) -> BoxFuture<'static, ()>;
}

/// Event of a WRITE that was passed on.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum PartWriteEvent {
    /// The storage asks for this range of the data.
    Wants {
        /// Position in the data of the part.
        offset_bytes: u32,
        /// Length.
        bytes: u32,
    },
    /// The storage has answered GOOD, or the write has failed.
    End(Result<(), RelayFailure>),
}

/// Counts of the commands of one unit that a relay has passed on.
#[derive(Debug, Default)]
pub(crate) struct RelayCounts {
    commands: AtomicU64,
    taken_over: AtomicU64,
}

impl RelayCounts {
    /// Counts a command that was relayed to its end.
    pub(crate) fn relayed(&self) {
        self.commands.fetch_add(1, Relaxed);
    }

    /// Counts a command that the device finished, because the relay could not.
    pub(crate) fn taken_over(&self) {
        self.taken_over.fetch_add(1, Relaxed);
    }

    pub(crate) fn read(&self) -> RelayStatistics {
        let (commands, taken_over) = (&self.commands, &self.taken_over);
        RelayStatistics { commands: commands.load(Relaxed), taken_over: taken_over.load(Relaxed) }
    }
}

/// Numbers of commands of one unit that were given to a relay.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct RelayStatistics {
    /// Commands whose data was relayed.
    pub commands: u64,
    /// Commands that the device finished, because the relay could not.
    pub taken_over: u64,
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Goal: damage to a piece with a digest is detected, whatever its length; a piece that is
        /// split has no digest any more.
        #[test]
        fn damage_to_a_piece_is_detected(
            data in prop::collection::vec(any::<u8>(), 1..100),
            bit in any::<prop::sample::Index>(),
            at in any::<prop::sample::Index>(),
        ) {
            let mut padded = data.clone();
            padded.resize(data.len().next_multiple_of(4), 0);
            let digest = Some(lunar_wire::crc32c(&padded));
            let mut damaged = data.clone();
            let bit = bit.index(8 * data.len());
            damaged[bit / 8] ^= 1 << (bit % 8);
            let mut piece = RelayedPiece { data: data.clone().into(), digest };
            prop_assert!(piece.is_intact());
            let damaged = RelayedPiece { data: damaged.into(), digest };
            prop_assert!(!damaged.is_intact());
            prop_assert!(piece.split_off(data.len()).is_none());
            prop_assert_eq!(piece.digest, digest);
            let at = at.index(data.len());
            let rest = piece.split_off(at).unwrap();
            prop_assert_eq!((piece.digest, rest.digest), (None, None));
            prop_assert_eq!([&piece.data[..], &rest.data].concat(), data);
        }
    }
}
