//! Sessions of initiators.

use super::extract::PathParameters;
use super::problem::Problem;
use super::shared::{ApiState, blocking};
use super::streamed;
use crate::Caller;
use crate::time::rfc3339;
use axum::extract::State;
use axum::response::Response;
use axum::{BoxError, Extension, Json};
use lunar_iscsi::text::{SessionParameters, TaskReporting};
use lunar_target::SessionInfo;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

/// All sessions.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
pub struct Sessions {
    /// All sessions, ordered by their handles.
    pub sessions: Vec<Session>,
}

/// State of a session at the time of the request.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
pub struct Session {
    /// The session's handle (TSIH), which identifies it in this API.
    #[schema(minimum = 1, maximum = 65535)]
    pub tsih: u16,
    /// iSCSI name of the initiator.
    pub initiator: String,
    /// The initiator part of the session identifier (ISID), 12 hexadecimal digits.
    pub isid: String,
    /// iSCSI name of the target; null: a discovery session.
    pub target: Option<String>,
    /// Tag of the portal group that the session was opened through.
    pub portal_group: u16,
    /// Time of the login, RFC 3339.
    #[schema(format = DateTime)]
    pub since: String,
    /// Number of SCSI commands that have not ended.
    pub commands_in_flight: usize,
    /// Numbers of the LUNs that the session sees.
    pub luns: Vec<u16>,
    /// Its connections, ordered by their identifiers.
    pub connections: Vec<Connection>,
    /// Negotiated keys.
    pub negotiated: Negotiated,
}

/// A connection of a session.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
pub struct Connection {
    /// Connection identifier (CID), chosen by the initiator.
    pub cid: u16,
    /// Address of the initiator, `address:port`.
    pub initiator_address: String,
    /// Address of the portal that the connection reached, `address:port`.
    pub portal_address: String,
    /// HeaderDigest: whether a CRC32C follows each header.
    pub header_digest: bool,
    /// DataDigest: whether a CRC32C follows the data of each PDU.
    pub data_digest: bool,
    /// The initiator's MaxRecvDataSegmentLength, as declared at login: the target sends no more in
    /// one PDU.
    pub initiator_max_recv_data_segment_bytes: u32,
    /// The target's MaxRecvDataSegmentLength: the initiator sends no more in one PDU.
    pub target_max_recv_data_segment_bytes: u32,
}

/// The keys that both sides agreed on for the session, RFC 7143 section 13.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
pub struct Negotiated {
    /// MaxConnections.
    pub max_connections: u16,
    /// ErrorRecoveryLevel.
    pub error_recovery_level: u8,
    /// InitialR2T.
    pub initial_r2t: bool,
    /// ImmediateData.
    pub immediate_data: bool,
    /// MaxBurstLength.
    pub max_burst_bytes: u32,
    /// FirstBurstLength.
    pub first_burst_bytes: u32,
    /// MaxOutstandingR2T.
    pub max_outstanding_r2t: u16,
    /// DefaultTime2Wait.
    pub time_to_wait_seconds: u16,
    /// DefaultTime2Retain.
    pub time_to_retain_seconds: u16,
    /// DataPDUInOrder.
    pub data_pdu_in_order: bool,
    /// DataSequenceInOrder.
    pub data_sequence_in_order: bool,
    /// TaskReporting: `RFC3720`, `ResponseFence` or `FastAbort`.
    pub task_reporting: String,
    /// iSCSIProtocolLevel.
    pub protocol_level: u8,
}

/// A session that was ended.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, ToSchema)]
pub struct LoggedOut {
    /// Handle of the session.
    pub tsih: u16,
}

impl Session {
    fn new(info: SessionInfo) -> Self {
        let connections = info.connections.iter().map(|connection| Connection {
            cid: connection.cid,
            initiator_address: connection.peer.to_string(),
            portal_address: connection.local.to_string(),
            header_digest: connection.parameters.digests.header,
            data_digest: connection.parameters.digests.data,
            initiator_max_recv_data_segment_bytes: connection
                .parameters
                .send_data_segment_bytes_max,
            target_max_recv_data_segment_bytes: connection
                .parameters
                .receive_data_segment_bytes_max,
        });
        Self {
            tsih: info.tsih,
            initiator: info.initiator_name,
            isid: info.isid.iter().map(|byte| format!("{byte:02x}")).collect(),
            target: info.target_name,
            portal_group: info.portal_group_tag,
            since: rfc3339(info.since),
            commands_in_flight: info.commands,
            luns: info.luns,
            connections: connections.collect(),
            negotiated: Negotiated::new(&info.parameters),
        }
    }
}

impl Negotiated {
    fn new(keys: &SessionParameters) -> Self {
        let task_reporting = match keys.task_reporting {
            TaskReporting::Rfc3720 => "RFC3720",
            TaskReporting::ResponseFence => "ResponseFence",
            TaskReporting::FastAbort => "FastAbort",
        };
        Self {
            max_connections: keys.max_connections,
            error_recovery_level: keys.error_recovery_level,
            initial_r2t: keys.initial_r2t,
            immediate_data: keys.immediate_data,
            max_burst_bytes: keys.max_burst_bytes,
            first_burst_bytes: keys.first_burst_bytes,
            max_outstanding_r2t: keys.max_outstanding_r2t,
            time_to_wait_seconds: keys.time_to_wait_seconds,
            time_to_retain_seconds: keys.time_to_retain_seconds,
            data_pdu_in_order: keys.data_pdu_in_order,
            data_sequence_in_order: keys.data_sequence_in_order,
            task_reporting: task_reporting.to_owned(),
            protocol_level: keys.protocol_level,
        }
    }
}

/// The sessions, each looked up when the one before it is encoded.
fn all(served: ApiState) -> impl Iterator<Item = Result<Session, BoxError>> + Send {
    let mut last = 0;
    std::iter::from_fn(move || {
        let session = served.daemon.server().session_after(last)?;
        last = session.tsih;
        Some(Ok(Session::new(session)))
    })
}

pub(super) fn routes() -> OpenApiRouter<ApiState> {
    OpenApiRouter::new().routes(routes!(sessions)).routes(routes!(session, log_out))
}

/// All sessions
#[utoipa::path(get, path = "/sessions", tag = "sessions",
    responses((status = 200, description = "All sessions", body = Sessions)))]
async fn sessions(State(served): State<ApiState>) -> Result<Response, Problem> {
    streamed::list("sessions", all(served)).await
}

/// One session
#[utoipa::path(get, path = "/sessions/{tsih}", tag = "sessions",
    params(("tsih" = u16, Path, description = "The session's handle", minimum = 1,
        maximum = 65535)),
    responses((status = 200, description = "The session", body = Session)))]
async fn session(
    State(served): State<ApiState>,
    PathParameters(tsih): PathParameters<u16>,
) -> Result<Json<Session>, Problem> {
    let found = blocking(&served, move |served| served.daemon.server().session(tsih)).await?;
    found.map(Session::new).map(Json).ok_or_else(|| no_session(tsih))
}

/// Requests a logout from the initiator and ends the session if none comes; the initiator may log
/// in again
#[utoipa::path(delete, path = "/sessions/{tsih}", tag = "sessions",
    params(("tsih" = u16, Path, description = "The session's handle", minimum = 1,
        maximum = 65535)),
    responses((status = 200, description = "The session has ended", body = LoggedOut)))]
async fn log_out(
    State(served): State<ApiState>,
    Extension(by): Extension<Caller>,
    PathParameters(tsih): PathParameters<u16>,
) -> Result<Json<LoggedOut>, Problem> {
    blocking(&served, move |served| served.daemon.log_out(tsih, &by)).await??;
    Ok(Json(LoggedOut { tsih }))
}

fn no_session(tsih: u16) -> Problem {
    Problem::not_found(format!("there is no session {tsih}"))
        .hint("it may have ended: see `lunar ctl sessions` for the current sessions")
}
