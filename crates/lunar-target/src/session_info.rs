//! Information about the current sessions.

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
