//! Scrubs of pools: comparisons of all members while the pool is in use.

use super::{PoolChanged, change};
use crate::api::extract::{Body, PathParameters};
use crate::api::problem::Problem;
use crate::api::shared::ApiState;
use crate::units::parse_rate;
use crate::{Caller, Failure, ScrubEnd};
use axum::extract::State;
use axum::{Extension, Json};
use lunar_pool::{ScrubOptions, ScrubProgress};
use serde::{Deserialize, Serialize};
use std::num::NonZeroU64;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

/// A scrub of a pool.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
pub struct PoolScrubReport {
    /// State: `running`, `complete`, `stopped` or `failed`.
    pub state: String,
    /// The reason of a failure; empty if there was none.
    pub error: String,
    /// Number of bytes of the pool.
    pub total_bytes: u64,
    /// Number of bytes that were compared.
    pub checked_bytes: u64,
    /// Number of bytes that were not compared, because fewer than two members had them.
    pub skipped_bytes: u64,
    /// Number of blocks in which members differed; they are equal now.
    pub different_blocks: u64,
    /// Number of these for which no majority of members agreed: the content of the first one was
    /// kept.
    pub undecided_blocks: u64,
    /// Number of blocks that no member could read.
    pub unreadable_blocks: u64,
    /// The members that were wrong, by slot.
    pub members: Vec<ScrubbedMemberReport>,
}

/// The blocks in which a member was wrong; they were repaired, or the member was left out.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
pub struct ScrubbedMemberReport {
    /// Slot of the member.
    pub slot: u16,
    /// Number of blocks that the member could not read, and another one could.
    pub unreadable_blocks: u64,
    /// Number of blocks in which most of at least three members had another content.
    pub outvoted_blocks: u64,
}

/// A request for a scrub.
#[derive(Clone, Debug, Default, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ScrubRequest {
    /// Maximum rate, like `800Mbit`; without one the scrub is as fast as the members, and slower
    /// while other commands use the pool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub rate: Option<String>,
}

impl PoolScrubReport {
    pub(super) fn of(progress: &ScrubProgress, end: Option<ScrubEnd>) -> Self {
        let (state, error) = match end {
            None => ("running", String::new()),
            Some(ScrubEnd::Complete) => ("complete", String::new()),
            Some(ScrubEnd::Stopped) => ("stopped", String::new()),
            Some(ScrubEnd::Failed(error)) => ("failed", error),
        };
        let report = &progress.report;
        let members = report.members.iter().map(|member| ScrubbedMemberReport {
            slot: member.slot,
            unreadable_blocks: member.unreadable_blocks,
            outvoted_blocks: member.outvoted_blocks,
        });
        Self {
            state: state.to_owned(),
            error,
            total_bytes: progress.total_bytes,
            checked_bytes: report.checked_bytes,
            skipped_bytes: report.skipped_bytes,
            different_blocks: report.different_blocks,
            undecided_blocks: report.undecided_blocks,
            unreadable_blocks: report.unreadable_blocks,
            members: members.collect(),
        }
    }
}

impl ScrubRequest {
    fn options(&self) -> Result<ScrubOptions, Failure> {
        let default = ScrubOptions::default();
        let Some(text) = &self.rate else { return Ok(default) };
        let invalid = |why: String| Failure::usage(format!("invalid rate {text:?}")).hint(why);
        let rate = parse_rate(text).map_err(invalid)?;
        let rate = NonZeroU64::new(rate).ok_or_else(|| invalid("write a rate above 0".into()))?;
        let busy = default.busy_bytes_per_second_max.map_or(rate, |busy| busy.min(rate));
        Ok(ScrubOptions { bytes_per_second_max: Some(rate), busy_bytes_per_second_max: Some(busy) })
    }
}

pub(super) fn routes() -> OpenApiRouter<ApiState> {
    OpenApiRouter::new().routes(routes!(scrub, stop))
}

/// Starts to compare and repair all members of a mirror while it is in use
#[utoipa::path(post, path = "/pools/{pool}/scrub", tag = "pools", request_body = ScrubRequest,
    params(("pool" = String, Path, description = "The pool's name")),
    responses((status = 200, description = "The scrub runs", body = PoolChanged)))]
async fn scrub(
    State(served): State<ApiState>,
    Extension(by): Extension<Caller>,
    PathParameters(pool): PathParameters<String>,
    Body(request, _charge): Body<ScrubRequest>,
) -> Result<Json<PoolChanged>, Problem> {
    change(&served, move |daemon| daemon.start_scrub(&pool, request.options()?, &by)).await
}

/// Stops the scrub of a mirror; its results so far are kept
#[utoipa::path(delete, path = "/pools/{pool}/scrub", tag = "pools",
    params(("pool" = String, Path, description = "The pool's name")),
    responses((status = 200, description = "The scrub has stopped", body = PoolChanged)))]
async fn stop(
    State(served): State<ApiState>,
    Extension(by): Extension<Caller>,
    PathParameters(pool): PathParameters<String>,
) -> Result<Json<PoolChanged>, Problem> {
    change(&served, move |daemon| daemon.stop_scrub(&pool, &by)).await
}
