//! The suite `multi-connection`.

use super::Suite;
use crate::output::Failure;

/// Runs it.
pub(super) async fn run(suite: &mut Suite<'_>) -> Result<(), Failure> {
    suite.report.title = "One against several connections".to_owned();
    Err(Failure::usage("this suite is not in this version"))
}
