//! The container image: built by buildah from the Containerfile, run by runc with nothing allowed.

use anyhow::{Result, ensure};
use lunar_lab::lunar;
use lunar_lab::process::{End, run};
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(600);

/// What the script ends with where the machine does not let it.
const CANNOT: i32 = 77;

/// Goal: the image serves unprivileged, from a root file system that is only read, into its volume,
/// and stops in good order. Method: see lab/container/run.
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
