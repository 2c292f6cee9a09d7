//! Limits of LUNs and initiators, until an apply or a restart.

use super::changes::{ChangeResult, LunQuery, change};
use super::extract::{Body, PathParameters, QueryParameters};
use super::problem::Problem;
use super::shared::ApiState;
use crate::Caller;
use crate::daemon::{LimitSettings, LunSelector};
use axum::extract::State;
use axum::{Extension, Json};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

#[derive(Debug, Deserialize, IntoParams, Serialize, ToSchema)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
struct InitiatorQuery {
    /// The initiator's name; without one the limit applies to each initiator that no other limit
    /// names
    #[param(nullable = false)]
    initiator: Option<String>,
}

/// Query parameters for LUN and initiator, in one type: a query is read by a single type, which
/// refuses unknown keys.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
struct LunAndInitiatorQuery {
    /// Device of the LUN, where several LUNs have this number, each for other initiators
    #[param(nullable = false)]
    device: Option<String>,
    /// The initiator's name; without one the limit applies to each initiator that no other limit
    /// names
    #[param(nullable = false)]
    initiator: Option<String>,
}

pub(super) fn routes() -> OpenApiRouter<ApiState> {
    OpenApiRouter::new()
        .routes(routes!(limit))
        .routes(routes!(limit_initiator))
        .routes(routes!(limit_initiator_at))
}

/// Limits all initiators together at a LUN
#[utoipa::path(put, path = "/targets/{target}/luns/{lun}/limit", tag = "luns",
    request_body = LimitSettings,
    params(
        ("target" = String, Path, description = "The target's iSCSI name"),
        ("lun" = u16, Path, description = "The LUN's number", maximum = 16383),
        LunQuery,
    ),
    responses((status = 200, description = "The limit is in force", body = ChangeResult)))]
async fn limit(
    State(served): State<ApiState>,
    Extension(by): Extension<Caller>,
    PathParameters((target, id)): PathParameters<(String, u16)>,
    QueryParameters(LunQuery { device }): QueryParameters<LunQuery>,
    Body(settings, _charge): Body<LimitSettings>,
) -> Result<Json<ChangeResult>, Problem> {
    change(&served, move |daemon| {
        let at = LunSelector { target: &target, id, device: device.as_deref() };
        daemon.limit(&at, &settings, &by)
    })
    .await
}

/// Limits an initiator at a LUN
#[utoipa::path(put, path = "/targets/{target}/luns/{lun}/initiator-limit", tag = "luns",
    request_body = LimitSettings,
    params(
        ("target" = String, Path, description = "The target's iSCSI name"),
        ("lun" = u16, Path, description = "The LUN's number", maximum = 16383),
        LunAndInitiatorQuery,
    ),
    responses((status = 200, description = "The limit is in force", body = ChangeResult)))]
async fn limit_initiator_at(
    State(served): State<ApiState>,
    Extension(by): Extension<Caller>,
    PathParameters((target, id)): PathParameters<(String, u16)>,
    QueryParameters(LunAndInitiatorQuery { device, initiator }): QueryParameters<
        LunAndInitiatorQuery,
    >,
    Body(settings, _charge): Body<LimitSettings>,
) -> Result<Json<ChangeResult>, Problem> {
    change(&served, move |daemon| {
        let at = LunSelector { target: &target, id, device: device.as_deref() };
        daemon.limit_initiator_at(&at, initiator.as_deref(), &settings, &by)
    })
    .await
}

/// Limits an initiator at a target, at all its LUNs together
#[utoipa::path(put, path = "/targets/{target}/limit", tag = "targets",
    request_body = LimitSettings,
    params(("target" = String, Path, description = "The target's iSCSI name"), InitiatorQuery),
    responses((status = 200, description = "The limit is in force", body = ChangeResult)))]
async fn limit_initiator(
    State(served): State<ApiState>,
    Extension(by): Extension<Caller>,
    PathParameters(target): PathParameters<String>,
    QueryParameters(InitiatorQuery { initiator }): QueryParameters<InitiatorQuery>,
    Body(settings, _charge): Body<LimitSettings>,
) -> Result<Json<ChangeResult>, Problem> {
    change(&served, move |daemon| {
        daemon.limit_initiator(&target, initiator.as_deref(), &settings, &by)
    })
    .await
}
