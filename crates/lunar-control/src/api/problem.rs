//! Answers to requests that were not done.

use crate::{Failure, FailureKind};
use axum::Json;
use axum::http::header::WWW_AUTHENTICATE;
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// What an answer says that is not a success.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize, ToSchema)]
pub struct ProblemBody {
    /// What failed and why, in one line.
    pub error: String,
    /// What to do.
    pub hint: Option<String>,
    /// The single problems of a configuration, where it is one that is refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub problems: Option<Vec<serde_json::Value>>,
}

/// A refusal with its status.
#[derive(Debug)]
pub struct Problem {
    pub(crate) status: StatusCode,
    body: ProblemBody,
}

impl Problem {
    pub(crate) fn new(status: StatusCode, error: impl Into<String>) -> Self {
        Self { status, body: ProblemBody { error: error.into(), hint: None, problems: None } }
    }

    pub(crate) fn not_found(what: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, what)
    }

    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.body.hint = Some(hint.into());
        self
    }
}

/// What makes no sense is the request's fault; what failed is for the state of things.
impl From<Failure> for Problem {
    fn from(failure: Failure) -> Self {
        let status = match failure.kind {
            FailureKind::Usage => StatusCode::UNPROCESSABLE_ENTITY,
            FailureKind::NotFound => StatusCode::NOT_FOUND,
            FailureKind::Stopping => StatusCode::SERVICE_UNAVAILABLE,
            FailureKind::Conflict | FailureKind::Failed => StatusCode::CONFLICT,
        };
        let problems = failure.parts.and_then(|parts| match parts.list {
            ("problems", serde_json::Value::Array(list)) => Some(list),
            _ => None,
        });
        let body = ProblemBody { error: failure.what, hint: failure.hint, problems };
        Self { status, body }
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let mut response = (self.status, Json(self.body)).into_response();
        if self.status == StatusCode::UNAUTHORIZED {
            let scheme = HeaderValue::from_static("Bearer realm=\"lunar\"");
            response.headers_mut().insert(WWW_AUTHENTICATE, scheme);
        }
        response
    }
}
