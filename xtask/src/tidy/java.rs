//! Additional rules for Java sources, and a check that Rust and Java have the same version.

use super::{Problem, Source};

/// Folders of programs, which may print.
const PROGRAMS: &[&str] = &["java/examples/", "lab/jscsi/"];

pub(super) fn check(source: &Source) -> Vec<Problem> {
    let mut problems = Vec::new();
    let test = source.path.contains("/src/test/");
    let is_program = PROGRAMS.iter().any(|folder| source.path.starts_with(folder));
    let library = source.path.contains("/src/main/") && !is_program;
    for (index, line) in source.text.lines().enumerate() {
        if line.starts_with("import ") && line.ends_with(".*;") {
            problems.push(
                source.problem(index + 1, "import the class instead of using its qualified name"),
            );
        }
        if library && (line.contains("System.out") || line.contains("System.err")) {
            problems.push(source.problem(index + 1, "a library must not print"));
        }
        if test && line.contains("Thread.sleep(") {
            problems.push(source.problem(index + 1, "wait for an event instead of sleeping"));
        }
    }
    problems
}

/// Checks that every pom.xml has the version of the workspace.
pub(super) fn check_versions(sources: &[Source]) -> Vec<Problem> {
    let workspace = sources.iter().find(|source| source.path == "Cargo.toml");
    let Some(version) = workspace.and_then(|source| workspace_version(&source.text)) else {
        return Vec::new();
    };
    let poms = sources.iter().filter(|source| source.path.ends_with("pom.xml"));
    poms.filter_map(|pom| {
        let mut lines = pom.text.lines().enumerate();
        lines.find(|(_, line)| line.contains("<artifactId>lunar-parent<"))?;
        let (index, line) = lines.find(|(_, line)| line.contains("<version>"))?;
        let same = line.trim() == format!("<version>{version}</version>");
        (!same).then(|| {
            pom.problem(index + 1, format!("the version must be that of the workspace, {version}"))
        })
    })
    .collect()
}

fn workspace_version(manifest: &str) -> Option<&str> {
    let (_, package) = manifest.split_once("[workspace.package]")?;
    let line = package.lines().find(|line| line.starts_with("version = "))?;
    line.split('"').nth(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(path: &str, text: &str) -> Source {
        Source { path: path.into(), text: text.into() }
    }

    /// Goal: each rule finds its violation, and permits exceptions for tests and programs.
    #[test]
    fn rules() {
        let found = |path: &str, text: &str| check(&source(path, text)).len();
        let library = "java/device/src/main/java/A.java";
        assert_eq!(found(library, "import java.util.*;\nimport java.util.List;\n"), 1);
        assert_eq!(found(library, "System.out.println();\n"), 1);
        assert_eq!(found("java/examples/src/main/java/A.java", "System.out.println();\n"), 0);
        assert_eq!(found("java/device/src/test/java/A.java", "Thread.sleep(1);\n"), 1);
    }

    /// Goal: a pom with another version than the workspace is found, with its line.
    #[test]
    fn versions() {
        let pom = |version: &str| {
            let text =
                format!("<artifactId>lunar-parent</artifactId>\n<version>{version}</version>");
            let cargo = "[workspace.package]\nversion = \"0.1.0\"\n";
            check_versions(&[source("Cargo.toml", cargo), source("java/pom.xml", &text)])
        };
        assert_eq!(pom("0.1.0"), []);
        assert_eq!(pom("0.2.0")[0].line, 2);
    }
}
