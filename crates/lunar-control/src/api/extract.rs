//! Extractors for the parts of a request, with limits; errors are answered in JSON.

use super::problem::Problem;
use super::shared::ApiState;
use axum::body::HttpBody;
use axum::extract::{FromRequest, FromRequestParts, Path, Query, Request};
use axum::http::request::Parts;
use axum::http::{HeaderMap, StatusCode, header};
use http_body_util::{BodyExt, Limited};
use lunar_block::MemoryKind;
use serde::de::DeserializeOwned;
use std::time::Duration;

/// Maximum size of a request's body in bytes; the largest body is a configuration.
pub const BODY_BYTES_MAX: usize = 4 << 20;
/// Maximum time for receiving a body.
pub const BODY_TIME_MAX: Duration = Duration::from_secs(20);

/// Extractor for a JSON body.
pub(crate) struct Body<T>(pub(crate) T);

impl<T: DeserializeOwned> FromRequest<ApiState> for Body<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, served: &ApiState) -> Result<Self, Problem> {
        if !is_json(request.headers()) {
            let what = "the request body is not declared as JSON";
            return Err(Problem::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, what)
                .hint("send `Content-Type: application/json`"));
        }
        let announced = request.body().size_hint().upper().and_then(|bytes| bytes.try_into().ok());
        let bytes = announced.unwrap_or(BODY_BYTES_MAX).min(BODY_BYTES_MAX);
        let api = served.daemon.server().buffers().sibling(MemoryKind::Api);
        let _charge = api.charge(bytes);
        let body = Limited::new(request.into_body(), BODY_BYTES_MAX).collect();
        let body = match tokio::time::timeout(BODY_TIME_MAX, body).await {
            Ok(Ok(body)) => body.to_bytes(),
            Ok(Err(error)) if error.is::<http_body_util::LengthLimitError>() => {
                let what = format!("the request body is longer than {BODY_BYTES_MAX} bytes");
                return Err(Problem::new(StatusCode::PAYLOAD_TOO_LARGE, what));
            }
            Ok(Err(error)) => {
                let what = format!("the request body cannot be received: {error}");
                return Err(Problem::new(StatusCode::BAD_REQUEST, what));
            }
            Err(_) => {
                let what =
                    format!("the request body took longer than {} s", BODY_TIME_MAX.as_secs());
                return Err(Problem::new(StatusCode::REQUEST_TIMEOUT, what));
            }
        };
        serde_json::from_slice(&body).map(Self).map_err(|error| {
            let status = match error.classify() {
                serde_json::error::Category::Data => StatusCode::UNPROCESSABLE_ENTITY,
                _ => StatusCode::BAD_REQUEST,
            };
            Problem::new(status, format!("the request body is invalid: {error}"))
                .hint("see GET /api/v1/openapi.json for the body of each request")
        })
    }
}

fn is_json(headers: &HeaderMap) -> bool {
    let value = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let kind = value.and_then(|value| value.split(';').next()).unwrap_or_default();
    kind.trim().eq_ignore_ascii_case("application/json")
}

/// Extractor for parameters in the path.
pub(crate) struct At<T>(pub(crate) T);

impl<T: DeserializeOwned + Send, S: Send + Sync> FromRequestParts<S> for At<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        match Path::from_request_parts(parts, state).await {
            Ok(Path(value)) => Ok(Self(value)),
            Err(error) => Err(Problem::new(StatusCode::BAD_REQUEST, error.body_text())),
        }
    }
}

/// Extractor for parameters in the query.
pub(crate) struct Asked<T>(pub(crate) T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequestParts<S> for Asked<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        match Query::from_request_parts(parts, state).await {
            Ok(Query(value)) => Ok(Self(value)),
            Err(error) => Err(Problem::new(StatusCode::BAD_REQUEST, error.body_text())),
        }
    }
}
