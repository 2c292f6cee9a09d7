//! The container image: built by buildah from the Containerfile, run by runc without privileges.

use anyhow::{Result, ensure};
use lunar_lab::peers::lunar;
use lunar_lab::system::process::{End, run};
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(600);

/// Exit status of the script if the machine does not permit the test.
const CANNOT: i32 = 77;

/// Goal: the image serves unprivileged, from a read-only root file system, into its volume, and
/// stops in good order.
/// Method: see lab/container/run.
#[test]
fn the_image_serves_unprivileged() -> Result<()> {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/container/run");
    let played = run(script, &[&lunar::binary()?], LIMIT)?;
    if matches!(played.end, End::Exited(status) if status.code() == Some(CANNOT)) {
        eprintln!("NOT TESTED: {}", played.stderr);
        return Ok(());
    }
    ensure!(played.succeeded(), "{}", played.outputs());
    ensure!(played.stdout.lines().count() == 4, "every part of it: {}", played.stdout);
    Ok(())
}
