//! Who uses what is served.

use super::extract::At;
use super::operator::{Shared, blocking};
use super::problem::Problem;
use axum::Json;
use axum::extract::State;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

/// All sessions.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
pub struct Sessions {
    /// Ordered by their handles.
    pub sessions: Vec<Session>,
}

/// A session, as it is at the moment.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
pub struct Session {
    /// Its handle (TSIH), which names it here.
    #[schema(minimum = 1, maximum = 65535)]
    pub tsih: u16,
    /// iSCSI name of the initiator.
    pub initiator: String,
    /// The initiator's part of the session identifier, 12 hexadecimal digits.
    pub isid: String,
    /// iSCSI name of the target; null: a discovery session.
    pub target: Option<String>,
    /// Tag of the portal group it came through.
    pub portal_group: u16,
    /// When it began, RFC 3339.
    #[schema(format = DateTime)]
    pub since: String,
    /// SCSI commands that have not ended.
    pub commands_in_flight: usize,
    /// Numbers of the LUNs it sees.
    pub luns: Vec<u16>,
    /// Its connections, ordered by their identifiers.
    pub connections: Vec<Connection>,
    /// What was negotiated.
    pub negotiated: Negotiated,
}

/// A connection of a session.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
pub struct Connection {
    /// The initiator's number for it (CID).
    pub cid: u16,
    /// Where it came from, `address:port`.
    pub initiator_address: String,
    /// Which of our addresses it reached, `address:port`.
    pub portal_address: String,
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
}

pub(super) fn routes() -> OpenApiRouter<Shared> {
    OpenApiRouter::new().routes(routes!(sessions)).routes(routes!(session))
}

/// The sessions there are
#[utoipa::path(get, path = "/sessions", tag = "sessions",
    responses((status = 200, description = "All sessions", body = Sessions)))]
async fn sessions(State(operator): State<Shared>) -> Result<Json<Sessions>, Problem> {
    let sessions = blocking(&operator, |operator| operator.sessions()).await?;
    Ok(Json(Sessions { sessions }))
}

/// One session
#[utoipa::path(get, path = "/sessions/{tsih}", tag = "sessions",
    params(("tsih" = u16, Path, description = "The session's handle")),
    responses((status = 200, description = "The session", body = Session)))]
async fn session(
    State(operator): State<Shared>,
    At(tsih): At<u16>,
) -> Result<Json<Session>, Problem> {
    let sessions = blocking(&operator, |operator| operator.sessions()).await?;
    let found = sessions.into_iter().find(|session| session.tsih == tsih);
    found.map(Json).ok_or_else(|| no_session(tsih))
}

pub(super) fn no_session(tsih: u16) -> Problem {
    Problem::not_found(format!("there is no session {tsih}"))
        .hint("it may have ended: GET /api/v1/sessions lists those there are")
}
