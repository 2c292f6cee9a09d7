//! The setup script names missing tools before anything is built.

use anyhow::{Result, ensure};
use lunar_lab::system::scratch::Scratch;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

/// Goal: with a cargo that is too old, or none, `make run` names the version that is needed and
/// where to get it. Fault: Debian's cargo failed with an error about the manifest.
/// Method: a cargo of Debian 12 that prints its version, and one that fails, come first in the
/// search path.
#[test]
fn an_old_cargo_is_refused_with_a_remedy() -> Result<()> {
    let scratch = Scratch::new("setup")?;
    let cargo = scratch.folder().join("cargo");
    let path = format!("{}:{}", scratch.path(""), std::env::var("PATH")?);
    for (script, named) in [
        ("#!/bin/sh\necho 'cargo 1.65.0 (4bc8f24d3 2022-10-20)'\n", "cargo here: 1.65.0"),
        ("#!/bin/sh\nexit 127\n", "cargo here: none"),
    ] {
        std::fs::write(&cargo, script)?;
        std::fs::set_permissions(&cargo, std::fs::Permissions::from_mode(0o755))?;
        let root = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
        let mut make = Command::new("make");
        make.args(["-C", root, "run"]).env("PATH", &path).env_remove("CARGO");
        let output = make.output()?;
        let printed = String::from_utf8_lossy(&output.stderr);
        ensure!(!output.status.success(), "{printed}");
        for words in ["Rust 1.95 or later is needed", named, "https://rustup.rs"] {
            ensure!(printed.contains(words), "{words}: {printed}");
        }
    }
    Ok(())
}
