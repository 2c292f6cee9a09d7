//! The API: one file for each resource, one document that describes them all.

mod extract;
mod openapi;
mod operator;
mod problem;
pub mod sessions;
pub mod status;
pub mod targets;

use crate::auth::{Guard, Token, guard};
use axum::http::StatusCode;
use axum::{Json, Router, middleware};
use std::sync::Arc;
use utoipa::openapi::OpenApi;
use utoipa_axum::router::OpenApiRouter;

pub use operator::Operator;
pub use problem::{Problem, ProblemBody};

/// Where everything of this version is.
pub const PREFIX: &str = "/api/v1";

/// Every route, with its description.
fn resources() -> OpenApiRouter<operator::Shared> {
    let all = OpenApiRouter::with_openapi(openapi::frame())
        .merge(openapi::routes())
        .merge(status::routes())
        .merge(sessions::routes())
        .merge(targets::routes());
    OpenApiRouter::new().nest(PREFIX, all)
}

/// The description of every route, as it is served at `/api/v1/openapi.json`.
pub fn document() -> OpenApi {
    openapi::finish(resources().split_for_parts().1)
}

/// The API over `operator`. Over TCP changes want `token`, and where there is one so does reading.
pub fn router(operator: Arc<dyn Operator>, token: Option<Token>) -> Router {
    let (router, _) = resources().split_for_parts();
    router
        .method_not_allowed_fallback(async || {
            Problem::new(StatusCode::METHOD_NOT_ALLOWED, "this can be asked for in another way")
                .hint("GET /api/v1/openapi.json describes the API")
        })
        .fallback(async || {
            Problem::not_found("there is nothing of this name")
                .hint("GET /api/v1/openapi.json describes the API")
        })
        .with_state(operator)
        .layer(middleware::from_fn_with_state(Arc::new(Guard { token }), guard))
}

/// The answer's type of the document's own route.
pub(crate) type Document = Json<OpenApi>;
