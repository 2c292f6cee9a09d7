//! Software bill of materials of a release, in the JSON form of CycloneDX 1.5: the crates that are
//! compiled into `lunar`, and the Java modules with their direct dependencies.

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

/// Targets of a release.
const TARGETS: [&str; 3] =
    ["x86_64-unknown-linux-gnu", "x86_64-unknown-linux-musl", "aarch64-unknown-linux-musl"];

/// The crate of the program.
const PROGRAM: &str = "lunar-san";

/// Group of the only foreign library that a Java module needs: the test kit for devices.
const JUNIT: &str = "org.junit.jupiter";

/// Components by their package URL, and what each depends on.
#[derive(Debug, Default)]
struct Components {
    listed: BTreeMap<String, Value>,
    dependencies: BTreeMap<String, BTreeSet<String>>,
}

/// Returns the bill of materials of the workspace in `root`.
pub fn bill_of_materials(root: &Path) -> Result<Value> {
    let mut components = Components::default();
    let program = add_crates(root, &mut components)?;
    add_java_modules(root, &mut components)?;
    let main = components.listed.remove(&program).context("the program is a component")?;
    let dependencies: Vec<_> = components
        .dependencies
        .iter()
        .map(|(from, to)| json!({ "ref": from, "dependsOn": to }))
        .collect();
    Ok(json!({
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": { "component": main },
        "components": components.listed.into_values().collect::<Vec<_>>(),
        "dependencies": dependencies,
    }))
}

/// Adds the crates in the dependency tree of the program; returns the URL of the program.
fn add_crates(root: &Path, components: &mut Components) -> Result<String> {
    let checksums = checksums(root)?;
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root).args(["tree", "--locked", "-p", PROGRAM, "-e", "normal"]);
    command.args(["--prefix", "depth", "--format", "|{p}|{l}|{r}"]);
    command.args(TARGETS.iter().flat_map(|target| ["--target", target]));
    let output = command.output().context("running cargo tree")?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let mut path: Vec<String> = Vec::new();
    for line in String::from_utf8(output.stdout)?.lines().filter(|line| !line.is_empty()) {
        let fields: Vec<_> = line.split('|').collect();
        let [depth, package, licence, repository] = fields[..] else { bail!("cargo tree: {line}") };
        let mut words = package.split(' ');
        let name = words.next().context("a name")?;
        let version = words.next().and_then(|word| word.strip_prefix('v')).context("a version")?;
        let url = format!("pkg:cargo/{name}@{version}");
        // A line whose dependencies stand elsewhere in the tree ends with this mark.
        let repository = repository.trim_end_matches(" (*)");
        let component = component(&url, name, version, licence);
        let checksum = checksums.get(&(name.to_owned(), version.to_owned()));
        let is_program = name == PROGRAM;
        let component = with_source(component, checksum, repository, is_program);
        components.listed.insert(url.clone(), component);
        components.dependencies.entry(url.clone()).or_default();
        path.truncate(depth.parse().with_context(|| format!("depth of {line}"))?);
        if let Some(parent) = path.last() {
            components.dependencies.entry(parent.clone()).or_default().insert(url.clone());
        }
        path.push(url);
    }
    path.into_iter().next().context("cargo tree printed nothing")
}

fn component(url: &str, name: &str, version: &str, licence: &str) -> Value {
    json!({
        "type": "library",
        "bom-ref": url,
        "name": name,
        "version": version,
        "purl": url,
        // Older crates separate alternatives by a slash, which SPDX does not know.
        "licenses": [{ "expression": licence.replace('/', " OR ") }],
    })
}

fn with_source(mut to: Value, checksum: Option<&String>, source: &str, is_program: bool) -> Value {
    if let Some(checksum) = checksum {
        to["hashes"] = json!([{ "alg": "SHA-256", "content": checksum }]);
    }
    if !source.is_empty() {
        to["externalReferences"] = json!([{ "type": "vcs", "url": source }]);
    }
    if is_program {
        to["type"] = json!("application");
    }
    to
}

/// Returns the SHA-256 sums of `Cargo.lock` by name and version.
fn checksums(root: &Path) -> Result<BTreeMap<(String, String), String>> {
    let text = std::fs::read_to_string(root.join("Cargo.lock"))?;
    let value = |block: &str, key: &str| {
        let line = block.lines().find_map(|line| line.strip_prefix(key));
        line.map(|value| value.trim_matches(['"', ' ', '=']).to_owned())
    };
    let blocks = text.split("[[package]]").skip(1).filter_map(|block| {
        Some(((value(block, "name")?, value(block, "version")?), value(block, "checksum")?))
    });
    Ok(blocks.collect())
}

/// Adds the modules that `java/pom.xml` names.
fn add_java_modules(root: &Path, components: &mut Components) -> Result<()> {
    let read = |path: &str| std::fs::read_to_string(root.join("java").join(path));
    let parent = read("pom.xml")?;
    let version = element(&parent, "version").context("a version in java/pom.xml")?;
    let url = |module: &str| format!("pkg:maven/org.lunarsan/{module}@{version}");
    for folder in elements(&parent, "module") {
        let pom = read(&format!("{folder}/pom.xml"))?;
        let own = pom.split_once("</parent>").context("a parent")?.1;
        let name = element(own, "artifactId").context("an artifactId")?;
        components.listed.insert(url(name), component(&url(name), name, version, "Apache-2.0"));
        let mut needed = BTreeSet::new();
        for dependency in elements(own, "dependency") {
            if element(dependency, "scope") == Some("test") {
                continue;
            }
            let group = element(dependency, "groupId").context("a groupId")?;
            let artifact = element(dependency, "artifactId").context("an artifactId")?;
            if group == "org.lunarsan" {
                needed.insert(url(artifact));
                continue;
            }
            ensure!(group == JUNIT, "{folder}: the licence of {group} is not known here");
            let version = element(&parent, "junit.version").context("a version of JUnit")?;
            let junit = format!("pkg:maven/{group}/{artifact}@{version}");
            let described = component(&junit, artifact, version, "EPL-2.0");
            components.listed.insert(junit.clone(), described);
            components.dependencies.entry(junit.clone()).or_default();
            needed.insert(junit);
        }
        components.dependencies.insert(url(name), needed);
    }
    Ok(())
}

/// Returns the content of each element with a tag.
fn elements<'a>(xml: &'a str, tag: &str) -> Vec<&'a str> {
    let (open, close) = (format!("<{tag}>"), format!("</{tag}>"));
    let parts = xml.split(open.as_str()).skip(1);
    parts.filter_map(|part| Some(part.split_once(close.as_str())?.0)).collect()
}

fn element<'a>(xml: &'a str, tag: &str) -> Option<&'a str> {
    elements(xml, tag).first().copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: each crate in the program is described, with a checksum unless it is part of this
    /// workspace, and nothing that only tests use.
    #[test]
    fn every_crate_is_described() -> Result<()> {
        let bill = bill_of_materials(&crate::workspace_root())?;
        let components = bill["components"].as_array().context("components")?;
        let listed: BTreeSet<_> = components.iter().map(|one| one["bom-ref"].as_str()).collect();
        let named = |name: &str| components.iter().any(|one| one["name"] == name);
        for name in ["lunar-target", "lunar-iscsi", "tokio", "rustls", "lunar-initiator"] {
            assert!(named(name), "{name} is missing");
        }
        assert!(!named("proptest"));
        for one in components {
            let (name, url) = (&one["name"], one["purl"].as_str().context("a purl")?);
            assert!(one["licenses"][0]["expression"].as_str().is_some_and(|it| !it.is_empty()));
            let is_own = name.as_str().is_some_and(|name| name.starts_with("lunar-"));
            let is_described_only = is_own || url.starts_with("pkg:maven/");
            assert!(
                is_described_only || one["hashes"][0]["content"].is_string(),
                "{url} has no checksum"
            );
        }
        for dependency in bill["dependencies"].as_array().context("dependencies")? {
            for needed in dependency["dependsOn"].as_array().context("dependsOn")? {
                assert!(listed.contains(&needed.as_str()), "{needed} is not listed");
            }
        }
        assert_eq!(bill["metadata"]["component"]["type"], "application");
        Ok(())
    }
}
