//! The configuration as text: reading the running one, applying another.

use super::documents::document;
use super::extract::Body;
use super::problem::Problem;
use super::shared::ApiState;
use crate::Caller;
use crate::daemon::{Applied, ApplyOptions, ConfigSource};
use axum::extract::State;
use axum::response::Response;
use axum::{Extension, Json};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

/// The running configuration as text (TOML).
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
pub struct ConfigurationText {
    /// The whole configuration.
    pub running: String,
    /// Changes since the last configuration was applied: the lines to paste into it.
    pub drift: String,
}

/// A configuration to be applied.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Apply {
    /// The configuration to apply; null: the file that the server started with, read again.
    #[schema(nullable)]
    pub configuration: Option<SentConfiguration>,
    /// Only report the changes, without making them.
    #[serde(default)]
    pub dry_run: bool,
    /// Disks may shrink: data beyond their new ends is lost.
    #[serde(default)]
    pub shrink: bool,
}

/// A configuration that is sent with the request.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SentConfiguration {
    /// TOML.
    pub text: String,
    /// The file it came from, absolute: relative paths in the text are resolved against its
    /// directory, and problems name it.
    pub path: String,
}

pub(super) fn routes() -> OpenApiRouter<ApiState> {
    OpenApiRouter::new().routes(routes!(configuration)).routes(routes!(apply))
}

/// The running configuration as text
#[utoipa::path(get, path = "/configuration", tag = "configuration",
    responses((status = 200, description = "The running configuration, and its drift",
        body = ConfigurationText)))]
async fn configuration(
    State(served): State<ApiState>,
    Extension(by): Extension<Caller>,
) -> Result<Response, Problem> {
    let make = |served: &super::shared::Served| ConfigurationText {
        running: served.daemon.toml(),
        drift: served.daemon.toml_of_drift(),
    };
    document(&served, by, make).await
}

/// Applies a configuration, all of it or nothing
#[utoipa::path(post, path = "/apply", tag = "configuration", request_body = Apply,
    responses((status = 200, description = "The changes that were made, or would be made",
        body = Applied)))]
async fn apply(
    State(served): State<ApiState>,
    Extension(by): Extension<Caller>,
    Body(apply, _charge): Body<Apply>,
) -> Result<Json<Applied>, Problem> {
    let source = match apply.configuration {
        None => ConfigSource::OwnFile,
        Some(sent) => ConfigSource::Text { text: sent.text, path: sent.path.into() },
    };
    let options = ApplyOptions { dry_run: apply.dry_run, shrink: apply.shrink };
    let work = move |served: &super::shared::Served| served.daemon.apply(&source, options, &by);
    Ok(Json(served.changes.blocking(&served, work).await??))
}
