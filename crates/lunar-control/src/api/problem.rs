//! Error responses.

use crate::{Failure, FailureKind};
use axum::Json;
use axum::http::header::{RETRY_AFTER, WWW_AUTHENTICATE};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Body of an error response.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize, ToSchema)]
pub struct ProblemBody {
    /// The failure and its cause, in one line.
    pub error: String,
    /// The remedy.
    pub hint: Option<String>,
    /// The single problems of a refused configuration.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub problems: Option<Vec<serde_json::Value>>,
}

/// An error response with its status.
#[derive(Debug)]
pub struct Problem {
    pub(crate) status: StatusCode,
    body: ProblemBody,
    /// Whether the same request may succeed soon.
    is_temporary: bool,
}

impl Problem {
    pub(crate) fn new(status: StatusCode, error: impl Into<String>) -> Self {
        let body = ProblemBody { error: error.into(), hint: None, problems: None };
        Self { status, body, is_temporary: false }
    }

    /// A refusal of a request that may succeed in a second.
    pub(crate) fn busy(what: impl Into<String>) -> Self {
        Self { is_temporary: true, ..Self::new(StatusCode::SERVICE_UNAVAILABLE, what) }
    }

    pub(crate) fn not_found(what: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, what)
    }

    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.body.hint = Some(hint.into());
        self
    }
}

/// Maps failures to statuses: an invalid request is the client's fault; other failures depend on
/// the state of the server.
impl From<Failure> for Problem {
    fn from(failure: Failure) -> Self {
        let status = match failure.kind {
            FailureKind::Usage => StatusCode::UNPROCESSABLE_ENTITY,
            FailureKind::NotFound => StatusCode::NOT_FOUND,
            FailureKind::Stopping => StatusCode::SERVICE_UNAVAILABLE,
            FailureKind::Conflict | FailureKind::Failed | FailureKind::Unavailable => {
                StatusCode::CONFLICT
            }
        };
        let problems = failure.parts.and_then(|parts| match parts.list {
            ("problems", serde_json::Value::Array(list)) => Some(list),
            _ => None,
        });
        let body = ProblemBody { error: failure.what, hint: failure.hint, problems };
        Self { status, body, is_temporary: false }
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let mut response = (self.status, Json(self.body)).into_response();
        if self.status == StatusCode::UNAUTHORIZED {
            let scheme = HeaderValue::from_static("Bearer realm=\"lunar\"");
            response.headers_mut().insert(WWW_AUTHENTICATE, scheme);
        }
        if self.is_temporary {
            response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("1"));
        }
        response
    }
}
