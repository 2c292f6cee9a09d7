//! The relay of a connection, with sockets to storage in the task of the connection.

use super::Connection;
use crate::relay::{ConnectionRelay, RelayFactory, RelayHost};
use lunar_iscsi::text::ConnectionParameters;
use lunar_net::{OwnerId, SocketGroup, SocketGroupHandle};
use std::rc::Rc;
use std::sync::Arc;
use tokio::net::TcpStream;

/// The relay of a connection, once it has logged in.
pub(super) struct Relaying {
    relays: Arc<dyn RelayFactory>,
    sockets: SocketGroupHandle,
    relay: Option<Rc<dyn ConnectionRelay>>,
}

impl Drop for Relaying {
    fn drop(&mut self) {
        if let Some(relay) = &self.relay {
            relay.close();
        }
    }
}

/// Drives a connection with a relay until it ends, and the relay's sockets as well.
pub(super) async fn drive(
    mut connection: Connection,
    tcp: TcpStream,
    relays: Arc<dyn RelayFactory>,
) {
    let group = SocketGroup::new();
    let sockets = group.handle();
    connection.relaying = Some(Relaying { relays, sockets: group.handle(), relay: None });
    sockets.add(super::drive(connection, tcp));
    group.run().await;
}

impl Connection {
    /// Has the data of later commands relayed, if the server has relays and the session serves
    /// units.
    pub(super) fn begin_relaying(&mut self, parameters: &ConnectionParameters) {
        let (owner, buffers) = (OwnerId(self.memory.owner_id), self.memory.control.clone());
        let Some(relaying) = self.relaying.as_mut().filter(|_| self.in_normal_session) else {
            return;
        };
        let (sockets, clock) = (relaying.sockets.clone(), self.services.clock);
        let burst_bytes_max =
            self.session.as_ref().map(|(session, _)| session.parameters().max_burst_bytes);
        let digest_bytes_max = burst_bytes_max
            .filter(|_| parameters.digests.data)
            .map(|bytes| bytes.min(parameters.send_data_segment_bytes_max));
        let host = RelayHost { sockets, owner, clock, buffers, digest_bytes_max };
        let relay = relaying.relays.relay(host);
        relaying.relay = Some(Rc::clone(&relay));
        self.tasks.set_relay(Some(relay));
    }
}
