//! Traces: the PDUs of a session as they pass.

use super::extract::{Body, PathParameters};
use super::problem::Problem;
use super::shared::{ApiState, blocking};
use crate::Caller;
use crate::trace::{CONTENT_TYPE, TRACE_BYTES, TRACE_SECONDS, TraceBody};
use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use serde::{Deserialize, Serialize};
use std::time::Duration;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

/// Parameters of a trace.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TraceOrder {
    /// Duration in seconds.
    #[serde(default = "default_seconds")]
    #[schema(minimum = 1, maximum = 600, default = 10)]
    pub seconds: u32,
    /// Number of bytes of each PDU that are kept, headers first; not given: all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, minimum = 48, maximum = 16779264)]
    pub snap_bytes: Option<u32>,
    /// Size limit in bytes; the PDU that reaches it is the last.
    #[serde(default = "default_bytes")]
    #[schema(minimum = 0, default = 1073741824)]
    pub max_bytes: u64,
}

/// A trace that was ended by request.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, ToSchema)]
pub struct TraceEnded {
    /// Handle of the traced session.
    pub tsih: u16,
}

fn default_bytes() -> u64 {
    TRACE_BYTES
}

fn default_seconds() -> u32 {
    TRACE_SECONDS
}

pub(super) fn routes() -> OpenApiRouter<ApiState> {
    OpenApiRouter::new().routes(routes!(trace, end_trace))
}

/// Traces a session: its PDUs as they pass, including user data, until the time is over, the trace
/// is ended, or the session ends. The answer begins at once and grows while the trace runs
#[utoipa::path(post, path = "/sessions/{tsih}/trace", tag = "sessions",
    request_body = TraceOrder,
    params(("tsih" = u16, Path, description = "The session's handle", minimum = 1,
        maximum = 65535)),
    responses((status = 200, description = "pcapng: one or more raw IP packets for each PDU",
        content_type = "application/vnd.tcpdump.pcap", body = Vec<u8>)))]
async fn trace(
    State(served): State<ApiState>,
    Extension(by): Extension<Caller>,
    PathParameters(tsih): PathParameters<u16>,
    Body(TraceOrder { seconds, snap_bytes, max_bytes }, _charge): Body<TraceOrder>,
) -> Result<Response, Problem> {
    let caller = by.to_string();
    let trace =
        blocking(&served, move |served| served.daemon.trace(tsih, seconds, snap_bytes, &by));
    let trace = trace.await??;
    let body = TraceBody::new(trace, caller, Duration::from_secs(seconds.into()), max_bytes);
    Ok(([(header::CONTENT_TYPE, CONTENT_TYPE)], axum::body::Body::new(body)).into_response())
}

/// Ends the trace of a session early; its reader receives a complete file
#[utoipa::path(delete, path = "/sessions/{tsih}/trace", tag = "sessions",
    params(("tsih" = u16, Path, description = "The session's handle", minimum = 1,
        maximum = 65535)),
    responses((status = 200, description = "The trace has ended", body = TraceEnded)))]
async fn end_trace(
    State(served): State<ApiState>,
    Extension(by): Extension<Caller>,
    PathParameters(tsih): PathParameters<u16>,
) -> Result<Json<TraceEnded>, Problem> {
    blocking(&served, move |served| served.daemon.end_trace(tsih, &by)).await??;
    Ok(Json(TraceEnded { tsih }))
}
