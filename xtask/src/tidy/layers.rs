//! Checks the dependencies between crates: the rows and arrows of ARCHITECTURE.md.

use super::Problem;
use anyhow::{Context, Result};
use serde::Deserialize;
use std::path::Path;
use std::process::Command;

/// Rows from the bottom up. A crate may use any crate of a lower row.
const ROWS: &[&[&str]] = &[
    &["lunar-wire", "lunar-testkit"],
    &["lunar-iscsi", "lunar-isns", "lunar-scsi"],
    &["lunar-net"],
    &["lunar-block", "lunar-pool", "lunar-osd", "lunar-ceph", "lunar-monitor"],
    &["lunar-target", "lunar-initiator", "lunar-switch", "lunar-osd-client"],
    &["lunar-control", "lunar-load", "lunar-attach", "lunar-security-manager", "lunar-osdfs"],
    &["lunar-san", "xtask", "lunar-lab", "sim", "lunar-fuzz"],
];

/// Dependencies that are allowed within a row.
const WITHIN: &[(&str, &[&str])] = &[
    ("lunar-pool", &["lunar-block"]),
    ("lunar-osd", &["lunar-block"]),
    ("lunar-ceph", &["lunar-block", "lunar-osd"]),
    ("lunar-monitor", &["lunar-block"]),
    ("lunar-switch", &["lunar-target", "lunar-initiator"]),
    ("lunar-osd-client", &["lunar-initiator"]),
    ("lunar-osdfs", &["lunar-osd-client"]),
];

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
}

#[derive(Deserialize)]
struct Package {
    name: String,
    manifest_path: String,
    dependencies: Vec<Dependency>,
}

#[derive(Deserialize)]
struct Dependency {
    name: String,
    kind: Option<String>,
    path: Option<String>,
}

pub(super) fn check(root: &Path) -> Result<Vec<Problem>> {
    let output = Command::new(option_env!("CARGO").unwrap_or("cargo"))
        .args(["metadata", "--no-deps", "--format-version", "1", "--offline"])
        .current_dir(root)
        .output()
        .context("running cargo metadata")?;
    anyhow::ensure!(
        output.status.success(),
        "cargo metadata failed: {}",
        String::from_utf8_lossy(&output.stderr).trim()
    );
    let metadata: Metadata = serde_json::from_slice(&output.stdout)?;
    let mut problems = Vec::new();
    for package in &metadata.packages {
        let manifest = Path::new(&package.manifest_path);
        let file = manifest.strip_prefix(root).unwrap_or(manifest).display().to_string();
        let text = std::fs::read_to_string(manifest)?;
        for (name, what) in forbidden_dependencies(package) {
            let line = text.lines().position(|line| line.starts_with(&name)).map_or(1, |at| at + 1);
            problems.push(Problem { file: file.clone(), line, what });
        }
    }
    Ok(problems)
}

/// Returns the forbidden dependencies of one package: name and complaint.
fn forbidden_dependencies(package: &Package) -> Vec<(String, String)> {
    let Some(row) = row_of(&package.name) else {
        let what = format!("crate {} has no row in xtask/src/tidy/layers.rs", package.name);
        return vec![(String::from("name"), what)];
    };
    let mut found = Vec::new();
    for dependency in package.dependencies.iter().filter(|dependency| dependency.path.is_some()) {
        let Some(other) = row_of(&dependency.name) else { continue };
        // Tests may use crates of the same row, but not of a higher one.
        let for_tests = dependency.kind.as_deref() == Some("dev");
        let is_within = WITHIN.iter().any(|(name, allowed)| {
            *name == package.name && allowed.contains(&dependency.name.as_str())
        });
        if other < row || (other == row && (is_within || for_tests)) {
            continue;
        }
        let what =
            format!("{} must not depend on {}: see ARCHITECTURE.md", package.name, dependency.name);
        found.push((dependency.name.clone(), what));
    }
    found
}

/// Returns the index of a crate's row in [`ROWS`]; `None` if no row has the crate.
fn row_of(name: &str) -> Option<usize> {
    ROWS.iter().position(|row| row.contains(&name))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(name: &str, dependency: &str, kind: Option<&str>) -> usize {
        let dependency = Dependency {
            name: dependency.into(),
            kind: kind.map(str::to_owned),
            path: Some(String::new()),
        };
        let (name, manifest_path) = (name.into(), String::new());
        forbidden_dependencies(&Package { name, manifest_path, dependencies: vec![dependency] })
            .len()
    }

    /// Goal: a lower row is allowed, a higher and the same one are not; tests may use the same row,
    /// but not a higher one.
    #[test]
    fn forbidden_dependencies_are_found() {
        assert_eq!(verdict("lunar-target", "lunar-iscsi", None), 0);
        assert_eq!(verdict("lunar-pool", "lunar-block", None), 0);
        assert_eq!(verdict("lunar-block", "lunar-pool", None), 1);
        assert_eq!(verdict("lunar-iscsi", "lunar-scsi", None), 1);
        assert_eq!(verdict("lunar-net", "lunar-target", None), 1);
        assert_eq!(verdict("lunar-target", "lunar-initiator", None), 1);
        assert_eq!(verdict("lunar-target", "lunar-initiator", Some("dev")), 0);
        assert_eq!(verdict("lunar-net", "lunar-target", Some("dev")), 1);
        assert_eq!(verdict("unheard-of", "lunar-wire", None), 1);
    }
}
