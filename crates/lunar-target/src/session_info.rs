//! Information about the current sessions.

use crate::server::Server;
use crate::session::Session;
use lunar_iscsi::text::{ConnectionParameters, SessionParameters};
use std::net::SocketAddr;
use std::time::SystemTime;

/// Current state of one session.
#[derive(Clone, Debug)]
pub struct SessionInfo {
    /// TSIH of the session.
    pub tsih: u16,
    /// iSCSI name of the initiator.
    pub initiator_name: String,
    /// The initiator's part of the session identifier.
    pub isid: [u8; 6],
    /// `None` for a discovery session.
    pub target_name: Option<String>,
    /// Tag of the portal group that the session was opened through.
    pub portal_group_tag: u16,
    /// Negotiated parameters.
    pub parameters: SessionParameters,
    /// Time of its beginning.
    pub since: SystemTime,
    /// SCSI commands that have not ended.
    pub commands: usize,
    /// Numbers of the LUNs that the session sees.
    pub luns: Vec<u16>,
    /// Connections of the session, ordered by CID.
    pub connections: Vec<ConnectionInfo>,
}

/// One connection of a session.
#[derive(Clone, Copy, Debug)]
pub struct ConnectionInfo {
    /// CID, the initiator's number for the connection.
    pub cid: u16,
    /// Address of the peer.
    pub peer: SocketAddr,
    /// Local address that the connection reached.
    pub local: SocketAddr,
    /// Parameters negotiated at login; the initiator may declare another MaxRecvDataSegmentLength
    /// later.
    pub parameters: ConnectionParameters,
}

impl Server {
    /// The current sessions, ordered by TSIH. There may be thousands: a caller that needs one of
    /// them, or one after the other, uses [`session`](Self::session) or
    /// [`session_after`](Self::session_after).
    pub fn sessions(&self) -> Vec<SessionInfo> {
        self.shared.each_session().map(|session| info(&session)).collect()
    }

    /// The session with this TSIH.
    pub fn session(&self, tsih: u16) -> Option<SessionInfo> {
        let session = self.shared.sessions().get(tsih);
        session.map(|session| info(&session))
    }

    /// The session with the smallest TSIH greater than `tsih`; the first one comes after 0.
    pub fn session_after(&self, tsih: u16) -> Option<SessionInfo> {
        let session = self.shared.sessions().after(tsih);
        session.map(|session| info(&session))
    }

    /// Number of current sessions.
    pub fn session_count(&self) -> usize {
        self.shared.sessions().count()
    }
}

pub(crate) fn info(session: &Session) -> SessionInfo {
    let connections = session
        .members()
        .iter()
        .map(|(cid, member)| ConnectionInfo {
            cid: *cid,
            peer: member.path.peer,
            local: member.path.local,
            parameters: member.parameters,
        })
        .collect();
    SessionInfo {
        tsih: session.tsih,
        initiator_name: session.key.initiator_name.clone(),
        isid: session.key.isid,
        target_name: session.key.target_name.clone(),
        portal_group_tag: session.key.portal_group_tag,
        parameters: session.parameters(),
        since: session.since,
        commands: session.tasks(),
        luns: session.view().ids().collect(),
        connections,
    }
}
