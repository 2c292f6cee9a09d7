//! The HTTP API: one file for each resource, and one OpenAPI document that describes them all.

mod backing;
mod bodies;
pub mod bound;
pub mod changes;
pub mod configuration;
mod documents;
mod extract;
pub mod health;
mod limits;
pub mod migrations;
mod openapi;
pub mod pools;
mod problem;
pub mod sessions;
mod shared;
pub mod status;
mod streamed;
pub mod targets;
pub mod traces;

use crate::auth::{Guard, Token, guard};
use crate::daemon::Daemon;
use crate::http::charged;
use crate::slot::Slot;
use axum::http::StatusCode;
use axum::{Json, Router, middleware};
use bodies::RequestBodies;
use documents::Documents;
use lunar_block::MemoryKind;
use shared::{ApiState, Served, WorkLimit, disks_are_busy};
use std::sync::Arc;
use std::time::{Instant, SystemTime};
use utoipa::openapi::OpenApi;
use utoipa_axum::router::OpenApiRouter;

pub use bodies::{BODY_BYTES_MAX, BODY_TIME_MAX};
pub use problem::{Problem, ProblemBody};

/// Prefix of all paths of this version of the API.
pub const PREFIX: &str = "/api/v1";

/// Every route, with its description.
fn resources() -> OpenApiRouter<ApiState> {
    let all = OpenApiRouter::new()
        .merge(openapi::routes())
        .merge(status::routes())
        .merge(sessions::routes())
        .merge(traces::routes())
        .merge(targets::routes())
        .merge(pools::routes())
        .merge(migrations::routes())
        .merge(changes::routes())
        .merge(limits::routes())
        .merge(configuration::routes());
    OpenApiRouter::with_openapi(openapi::base_document()).nest(PREFIX, all)
}

/// The description of every route, as it is served at `/api/v1/openapi.json`.
pub fn document() -> OpenApi {
    openapi::finish(resources().split_for_parts().1)
}

/// The routes of the API over `daemon`, which has just started. Over TCP, changes require `token`;
/// if a token is set, reading requires it too.
pub fn router(daemon: Arc<Daemon>, token: Option<Token>) -> Router {
    router_with(daemon, Slot::new(token))
}

/// Like [`router`], with a token that can be replaced later.
pub(crate) fn router_with(daemon: Arc<Daemon>, token: Arc<Slot<Token>>) -> Router {
    let account = daemon.server().buffers().sibling(MemoryKind::Api);
    let served = Served {
        daemon,
        started: SystemTime::now(),
        since: Instant::now(),
        changes: WorkLimit::new(1, || disks_are_busy("another change is in progress")),
        recoveries: WorkLimit::new(2, || disks_are_busy("two recoveries are in progress")),
        bodies: RequestBodies::new(&account),
        documents: Documents::new(account.sibling(MemoryKind::Api)),
    };
    let (router, _) = resources().split_for_parts();
    router
        .method_not_allowed_fallback(async || {
            Problem::new(StatusCode::METHOD_NOT_ALLOWED, "this path does not support the method")
                .hint("see GET /api/v1/openapi.json for the API")
        })
        .fallback(async || {
            Problem::not_found("there is no resource at this path")
                .hint("see GET /api/v1/openapi.json for the API")
        })
        .with_state(Arc::new(served))
        .layer(middleware::from_fn_with_state(Arc::new(Guard::new(token)), guard))
        .layer(middleware::map_response(move |response| {
            std::future::ready(charged(account.clone(), response))
        }))
}

/// Response type of the route that serves the document.
pub(crate) type Document = Json<OpenApi>;
