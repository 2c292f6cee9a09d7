//! Requests that change the running server: adding, removing and resizing LUNs and redirecting
//! logins, until the next apply or restart; adding and removing targets, which the state directory
//! may keep; stopping the server.

use super::extract::{Body, PathParameters, QueryParameters};
use super::problem::Problem;
use super::shared::ApiState;
use crate::config::lun::LunSettings;
use crate::config::target::TargetSettings;
use crate::daemon::{Applied, Daemon, LunSelector};
use crate::{Caller, Failure};
use axum::extract::State;
use axum::{Extension, Json};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

/// The result of a change.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
pub struct ChangeResult {
    /// The change itself.
    #[serde(flatten)]
    pub applied: Applied,
    /// The lines (TOML) to paste into the configuration, so that the next apply keeps the changes
    /// made since the last one.
    pub toml: String,
}

/// A request to resize a LUN.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Resize {
    /// The new size, a multiple of the block size.
    #[schema(minimum = 512, maximum = 9223372036854775807u64)]
    pub size_bytes: u64,
    /// Permits a smaller size, which loses the data beyond it; a smaller size is refused without
    /// this.
    #[serde(default)]
    pub shrink: bool,
}

/// A request that a unit accepts writes again after a failed sync.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RecoverRequest {
    /// Confirms that data written since the last successful sync may be lost; the request is
    /// refused without it.
    pub accept_loss: bool,
}

/// A unit that accepts writes again.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
pub struct RecoverResult {
    /// The target's iSCSI name, as given in the request.
    pub target: String,
    /// The LUN's number.
    pub lun: u16,
}

/// The address that logins are redirected to.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Redirect {
    /// `host:port`, or an address in brackets and a port.
    pub address: String,
}

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct LunQuery {
    /// Device of the LUN, where several LUNs have this number, each for other initiators
    #[param(nullable = false)]
    pub(super) device: Option<String>,
}

/// A target to add.
#[derive(Clone, Debug, Default, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AddTarget {
    /// The target.
    pub target: TargetSettings,
    /// Keeps the target in the state directory: an apply and a restart leave it as it is.
    #[serde(default)]
    pub persist: bool,
}

/// A server that stops.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, ToSchema)]
pub struct StopResult {
    /// The server's process ID.
    pub process: u32,
}

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct PersistQuery {
    /// Removes the target also from the state directory
    #[serde(default)]
    #[param(required = false)]
    persist: bool,
}

pub(super) fn routes() -> OpenApiRouter<ApiState> {
    OpenApiRouter::new()
        .routes(routes!(stop))
        .routes(routes!(add_target))
        .routes(routes!(remove_target))
        .routes(routes!(add_lun))
        .routes(routes!(remove_lun))
        .routes(routes!(resize))
        .routes(routes!(recover))
        .routes(routes!(redirect, no_redirect))
}

/// Runs a change and returns its result.
pub(super) async fn change(
    served: &ApiState,
    work: impl FnOnce(&Daemon) -> Result<Applied, Failure> + Send + 'static,
) -> Result<Json<ChangeResult>, Problem> {
    let changed = served.changes.blocking(served, move |served| {
        let applied = work(&served.daemon)?;
        Ok::<_, Failure>(ChangeResult { applied, toml: served.daemon.toml_of_drift() })
    });
    Ok(Json(changed.await??))
}

/// Stops the server: sessions are logged out, commands finish, disks are synced
#[utoipa::path(post, path = "/stop", tag = "status",
    responses((status = 200, description = "The server has begun to stop", body = StopResult)))]
async fn stop(
    State(served): State<ApiState>,
    Extension(by): Extension<Caller>,
) -> Json<StopResult> {
    served.daemon.request_stop(&by);
    Json(StopResult { process: std::process::id() })
}

/// Adds a target; one that exists with the same settings is left as it is
#[utoipa::path(post, path = "/targets", tag = "targets", request_body = AddTarget,
    responses((status = 200, description = "The target is served", body = ChangeResult)))]
async fn add_target(
    State(served): State<ApiState>,
    Extension(by): Extension<Caller>,
    Body(AddTarget { target, persist }, _charge): Body<AddTarget>,
) -> Result<Json<ChangeResult>, Problem> {
    change(&served, move |daemon| daemon.add_target(&target, persist, &by)).await
}

/// Removes a target and ends its sessions; its devices stay as they are. Succeeds if there is none
#[utoipa::path(delete, path = "/targets/{target}", tag = "targets",
    params(("target" = String, Path, description = "The target's iSCSI name"), PersistQuery),
    responses((status = 200, description = "The target is no longer served", body = ChangeResult)))]
async fn remove_target(
    State(served): State<ApiState>,
    Extension(by): Extension<Caller>,
    PathParameters(target): PathParameters<String>,
    QueryParameters(PersistQuery { persist }): QueryParameters<PersistQuery>,
) -> Result<Json<ChangeResult>, Problem> {
    change(&served, move |daemon| daemon.remove_target(&target, persist, &by)).await
}

/// Adds a LUN
#[utoipa::path(post, path = "/targets/{target}/luns", tag = "luns", request_body = LunSettings,
    params(("target" = String, Path, description = "The target's iSCSI name")),
    responses((status = 200, description = "The LUN is served", body = ChangeResult)))]
async fn add_lun(
    State(served): State<ApiState>,
    Extension(by): Extension<Caller>,
    PathParameters(target): PathParameters<String>,
    Body(settings, _charge): Body<LunSettings>,
) -> Result<Json<ChangeResult>, Problem> {
    change(&served, move |daemon| daemon.add_lun(&target, &settings, &by)).await
}

/// Removes a LUN; the device stays as it is
#[utoipa::path(delete, path = "/targets/{target}/luns/{lun}", tag = "luns",
    params(
        ("target" = String, Path, description = "The target's iSCSI name"),
        ("lun" = u16, Path, description = "The LUN's number", maximum = 16383),
        LunQuery,
    ),
    responses((status = 200, description = "The LUN is no longer served", body = ChangeResult)))]
async fn remove_lun(
    State(served): State<ApiState>,
    Extension(by): Extension<Caller>,
    PathParameters((target, id)): PathParameters<(String, u16)>,
    QueryParameters(LunQuery { device }): QueryParameters<LunQuery>,
) -> Result<Json<ChangeResult>, Problem> {
    change(&served, move |daemon| {
        let at = LunSelector { target: &target, id, device: device.as_deref() };
        daemon.remove_lun(&at, &by)
    })
    .await
}

/// Resizes a LUN while it is in use
#[utoipa::path(post, path = "/targets/{target}/luns/{lun}/resize", tag = "luns",
    request_body = Resize,
    params(
        ("target" = String, Path, description = "The target's iSCSI name"),
        ("lun" = u16, Path, description = "The LUN's number", maximum = 16383),
        LunQuery,
    ),
    responses((status = 200, description = "The LUN has the new size", body = ChangeResult)))]
async fn resize(
    State(served): State<ApiState>,
    Extension(by): Extension<Caller>,
    PathParameters((target, id)): PathParameters<(String, u16)>,
    QueryParameters(LunQuery { device }): QueryParameters<LunQuery>,
    Body(resize, _charge): Body<Resize>,
) -> Result<Json<ChangeResult>, Problem> {
    change(&served, move |daemon| {
        let at = LunSelector { target: &target, id, device: device.as_deref() };
        daemon.resize(&at, resize.size_bytes, resize.shrink, &by)
    })
    .await
}

/// Makes a LUN accept writes again after a failed sync
#[utoipa::path(post, path = "/targets/{target}/luns/{lun}/recover", tag = "luns",
    request_body = RecoverRequest,
    params(
        ("target" = String, Path, description = "The target's iSCSI name"),
        ("lun" = u16, Path, description = "The LUN's number", maximum = 16383),
        LunQuery,
    ),
    responses((
        status = 200,
        description = "The LUN accepts writes again; its initiators are notified of the change",
        body = RecoverResult,
    )))]
async fn recover(
    State(served): State<ApiState>,
    Extension(by): Extension<Caller>,
    PathParameters((target, id)): PathParameters<(String, u16)>,
    QueryParameters(LunQuery { device }): QueryParameters<LunQuery>,
    Body(RecoverRequest { accept_loss }, _charge): Body<RecoverRequest>,
) -> Result<Json<RecoverResult>, Problem> {
    let recovered = served.recoveries.blocking(&served, move |served| {
        if !accept_loss {
            let what = "`accept_loss` must be true: data written since the last successful sync \
                        may be lost";
            return Err(Failure::usage(what));
        }
        let at = LunSelector { target: &target, id, device: device.as_deref() };
        served.daemon.recover(&at, &by)?;
        Ok(RecoverResult { target, lun: id })
    });
    Ok(Json(recovered.await??))
}

/// Redirects logins to another address
#[utoipa::path(put, path = "/targets/{target}/redirect", tag = "targets",
    request_body = Redirect,
    params(("target" = String, Path, description = "The target's iSCSI name")),
    responses((status = 200, description = "Logins are redirected", body = ChangeResult)))]
async fn redirect(
    State(served): State<ApiState>,
    Extension(by): Extension<Caller>,
    PathParameters(target): PathParameters<String>,
    Body(to, _charge): Body<Redirect>,
) -> Result<Json<ChangeResult>, Problem> {
    change(&served, move |daemon| daemon.redirect(&target, Some(&to.address), &by)).await
}

/// Stops redirecting logins
#[utoipa::path(delete, path = "/targets/{target}/redirect", tag = "targets",
    params(("target" = String, Path, description = "The target's iSCSI name")),
    responses((status = 200, description = "Logins are redirected no more", body = ChangeResult)))]
async fn no_redirect(
    State(served): State<ApiState>,
    Extension(by): Extension<Caller>,
    PathParameters(target): PathParameters<String>,
) -> Result<Json<ChangeResult>, Problem> {
    change(&served, move |daemon| daemon.redirect(&target, None, &by)).await
}
