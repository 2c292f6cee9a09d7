//! Which crate may use which: the rows and arrows of ARCHITECTURE.md.

use super::Problem;
use anyhow::{Context, Result};
use serde::Deserialize;
use std::path::Path;
use std::process::Command;

/// Rows from the bottom up. A crate may use any crate of a lower row.
const ROWS: &[&[&str]] = &[
    &["wire"],
    &["iscsi", "isns", "scsi"],
    &["net"],
    &["block", "pool", "osd", "ceph", "monitor"],
    &["target", "initiator", "switch", "osd-client"],
    &["control", "load", "attach", "security-manager", "osdfs"],
    &["lunar", "xtask", "bench", "interop", "sim", "fuzz"],
];

/// What a crate may use within its own row.
const WITHIN: &[(&str, &[&str])] = &[
    ("pool", &["block"]),
    ("osd", &["block"]),
    ("ceph", &["block", "osd"]),
    ("monitor", &["block"]),
    ("switch", &["target", "initiator"]),
    ("osd-client", &["initiator"]),
    ("osdfs", &["osd-client"]),
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
        for (name, what) in judge(package) {
            let line = text.lines().position(|line| line.starts_with(&name)).map_or(1, |at| at + 1);
            problems.push(Problem { file: file.clone(), line, what });
        }
    }
    Ok(problems)
}

/// The forbidden dependencies of one package: name and complaint.
fn judge(package: &Package) -> Vec<(String, String)> {
    let Some(row) = row_of(&package.name) else {
        let what = format!("crate {} stands in no row of xtask/src/tidy/arrows.rs", package.name);
        return vec![(String::from("name"), what)];
    };
    let mut found = Vec::new();
    for dependency in package.dependencies.iter().filter(|dependency| dependency.path.is_some()) {
        let Some(other) = row_of(&dependency.name) else { continue };
        // Tests may join what stands beside each other, but never look up.
        let for_tests = dependency.kind.as_deref() == Some("dev");
        let beside = WITHIN.iter().any(|(name, allowed)| {
            *name == package.name && allowed.contains(&dependency.name.as_str())
        });
        if other < row || (other == row && (beside || for_tests)) {
            continue;
        }
        let what = format!("{} may not use {}: see ARCHITECTURE.md", package.name, dependency.name);
        found.push((dependency.name.clone(), what));
    }
    found
}

/// services use roles, `osd-client` uses `osd`: all of that is a lower row.
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
        judge(&Package { name, manifest_path, dependencies: vec![dependency] }).len()
    }

    /// Goal: down is allowed, up and sideways are not, tests may look sideways but not up.
    #[test]
    fn arrows_are_judged() {
        assert_eq!(verdict("target", "iscsi", None), 0);
        assert_eq!(verdict("pool", "block", None), 0);
        assert_eq!(verdict("block", "pool", None), 1);
        assert_eq!(verdict("iscsi", "scsi", None), 1);
        assert_eq!(verdict("net", "target", None), 1);
        assert_eq!(verdict("target", "initiator", None), 1);
        assert_eq!(verdict("target", "initiator", Some("dev")), 0);
        assert_eq!(verdict("net", "target", Some("dev")), 1);
        assert_eq!(verdict("unheard-of", "wire", None), 1);
    }
}
