//! Extractors for the parts of a request, with limits; errors are answered in JSON.

use super::problem::Problem;
use super::shared::ApiState;
use axum::extract::{FromRequest, FromRequestParts, Path, Query, Request};
use axum::http::request::Parts;
use axum::http::{HeaderMap, StatusCode, header};
use lunar_block::MemoryCharge;
use serde::de::DeserializeOwned;

/// Extractor for a JSON body. The value and its charge live as long as the handler.
pub(crate) struct Body<T>(pub(crate) T, pub(crate) MemoryCharge);

impl<T: DeserializeOwned> FromRequest<ApiState> for Body<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, served: &ApiState) -> Result<Self, Problem> {
        if !is_json(request.headers()) {
            let what = "the request body is not declared as JSON";
            return Err(Problem::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, what)
                .hint("send `Content-Type: application/json`"));
        }
        let body = served.bodies.receive(request.into_body()).await?;
        let value = serde_json::from_slice(body.bytes()).map_err(|error| {
            let status = match error.classify() {
                serde_json::error::Category::Data => StatusCode::UNPROCESSABLE_ENTITY,
                _ => StatusCode::BAD_REQUEST,
            };
            Problem::new(status, format!("the request body is invalid: {error}"))
                .hint("see GET /api/v1/openapi.json for the body of each request")
        })?;
        Ok(Self(value, body.into_charge()))
    }
}

fn is_json(headers: &HeaderMap) -> bool {
    let value = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let kind = value.and_then(|value| value.split(';').next()).unwrap_or_default();
    kind.trim().eq_ignore_ascii_case("application/json")
}

/// Extractor for parameters in the path.
pub(crate) struct PathParameters<T>(pub(crate) T);

impl<T: DeserializeOwned + Send, S: Send + Sync> FromRequestParts<S> for PathParameters<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        match Path::from_request_parts(parts, state).await {
            Ok(Path(value)) => Ok(Self(value)),
            Err(error) => Err(Problem::new(StatusCode::BAD_REQUEST, error.body_text())),
        }
    }
}

/// Extractor for parameters in the query.
pub(crate) struct QueryParameters<T>(pub(crate) T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequestParts<S> for QueryParameters<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        match Query::from_request_parts(parts, state).await {
            Ok(Query(value)) => Ok(Self(value)),
            Err(error) => Err(Problem::new(StatusCode::BAD_REQUEST, error.body_text())),
        }
    }
}
