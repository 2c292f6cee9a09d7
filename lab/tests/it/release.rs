//! The container image of a release, as an OCI archive.

use anyhow::{Context, Result, ensure};
use lunar_lab::system::process::run_checked;
use lunar_lab::system::scratch::Scratch;
use serde_json::Value;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(120);

/// Writes an archive with `binary`.
fn archive(binary: &str, file: &str) -> Result<()> {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../scripts/oci-archive");
    run_checked(script, &[binary, "amd64", file], LIMIT)?;
    Ok(())
}

/// An unpacked OCI archive.
struct Layout<'a>(&'a Scratch);

impl Layout<'_> {
    fn json(&self, path: &str) -> Result<Value> {
        let text = std::fs::read(self.0.path(path)).with_context(|| path.to_owned())?;
        serde_json::from_slice(&text).with_context(|| path.to_owned())
    }

    /// Returns the path of the blob of a descriptor; its size and digest must be those stated.
    fn blob(&self, descriptor: &Value) -> Result<String> {
        let digest = descriptor["digest"].as_str().context("a digest")?;
        let sum = digest.strip_prefix("sha256:").context("a SHA-256 digest")?;
        let path = format!("blobs/sha256/{sum}");
        let length = std::fs::metadata(self.0.path(&path))?.len();
        ensure!(descriptor["size"].as_u64() == Some(length), "{descriptor}: {length} bytes");
        let printed = run_checked("sha256sum", &[&self.0.path(&path)], LIMIT)?;
        ensure!(printed.starts_with(sum), "{descriptor}: {printed}");
        Ok(path)
    }
}

/// Goal: the archive is a valid image layout, its settings are those of the Containerfile, its user
/// owns the volume, and the same binary gives the same bytes.
/// Method: follows the descriptors from the index to the layer, and computes each digest.
#[test]
fn the_oci_archive_is_valid() -> Result<()> {
    let scratch = Scratch::new("oci")?;
    let (once, again) = (scratch.path("once.tar"), scratch.path("again.tar"));
    // Any file can be the program: it is not run here.
    let program = scratch.path("program");
    std::fs::write(&program, "#!/bin/sh\n")?;
    archive(&program, &once)?;
    archive(&program, &again)?;
    run_checked("cmp", &[&once, &again], LIMIT)?;
    run_checked("tar", &["-C", &scratch.path(""), "-xf", &once], LIMIT)?;
    let layout = Layout(&scratch);
    ensure!(layout.json("oci-layout")?["imageLayoutVersion"] == "1.0.0", "version of the layout");
    let manifest = layout.json(&layout.blob(&layout.json("index.json")?["manifests"][0])?)?;
    let config = layout.json(&layout.blob(&manifest["config"])?)?;
    let settings = &config["config"];
    ensure!(settings["User"] == "65532:65532" && config["architecture"] == "amd64", "{config}");
    ensure!(settings["Entrypoint"][0] == "/usr/bin/lunar", "{config}");
    ensure!(settings["Volumes"]["/var/lib/lunar"].is_object(), "{config}");
    let layer = scratch.path(&layout.blob(&manifest["layers"][0])?);
    let content = run_checked("sh", &["-c", "gzip -d <\"$1\" | sha256sum", "sh", &layer], LIMIT)?;
    let content = format!("sha256:{}", content.split(' ').next().unwrap_or_default());
    ensure!(config["rootfs"]["diff_ids"][0] == content.as_str(), "{config}");
    let files = run_checked("tar", &["--numeric-owner", "-tvzf", &layer], LIMIT)?;
    let owner = |path: &str| {
        let line = files.lines().find(|line| line.trim_end_matches('/').ends_with(path));
        line.and_then(|line| line.split_whitespace().nth(1))
    };
    ensure!(owner(" usr/bin/lunar") == Some("0/0"), "{files}");
    ensure!(owner(" var/lib/lunar") == Some("65532/65532"), "{files}");
    Ok(())
}
