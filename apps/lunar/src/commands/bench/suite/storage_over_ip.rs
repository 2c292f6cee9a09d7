//! The suite `storage-over-ip`.

use super::Suite;
use crate::output::Failure;

/// Runs it.
pub(super) async fn run(suite: &mut Suite<'_>) -> Result<(), Failure> {
    suite.report.title = "Storage over IP".to_owned();
    Err(Failure::usage("this suite is not in this version"))
}
