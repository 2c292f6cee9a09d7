//! The Debian package: built, checked by lintian, installed below a root of its own, and used
//! there.

use anyhow::Result;
use lunar_lab::peers::lunar;
use lunar_lab::system::process::{End, Finished, run, run_checked};
use lunar_lab::system::scratch::Scratch;
use std::path::Path;
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(600);

/// Builds the package once for all tests here, in a folder below the one of the build.
fn package() -> Result<&'static str> {
    static PACKAGE: OnceLock<std::result::Result<String, String>> = OnceLock::new();
    let built = PACKAGE.get_or_init(|| build("package-test").map_err(|error| error.to_string()));
    built.as_deref().map_err(anyhow::Error::msg)
}

fn build(folder: &str) -> Result<String> {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(folder);
    let output = Command::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../scripts/package"))
        .arg(&folder)
        .env("LUNAR_BIN", std::fs::canonicalize(lunar::binary()?)?)
        .env("DEBFULLNAME", "Somebody")
        // Which bytes are packed matters here, and not their number.
        .env("LUNAR_PACKAGE_LEVEL", "0")
        .output()?;
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Ok(String::from_utf8(output.stdout)?.trim().to_owned())
}

/// Creates a separate root for dpkg, with an empty package database.
fn dpkg_root(scratch: &Scratch) -> Result<String> {
    let root = scratch.folder().join("root");
    std::fs::create_dir_all(root.join("var/lib/dpkg/updates"))?;
    std::fs::create_dir_all(root.join("var/lib/dpkg/info"))?;
    std::fs::write(root.join("var/lib/dpkg/status"), "")?;
    Ok(root.display().to_string())
}

/// Runs dpkg below `root`; package scripts run outside of the root, and can detect that.
fn dpkg(root: &str, arguments: &[&str]) -> Result<Finished> {
    let force = "--force-not-root,script-chrootless,depends,confold,bad-path";
    let root = format!("--root={root}");
    let log = "--log=/dev/null";
    run("dpkg", &[&[&root, force, log, "--no-pager"], arguments].concat(), LIMIT)
}

/// Goal: lintian reports no error and no warning.
#[test]
fn lintian_reports_no_problem() -> Result<()> {
    let report = run("lintian", &["--fail-on", "error,warning", package()?], LIMIT)?;
    assert!(report.succeeded() && report.stdout.is_empty(), "{}", report.outputs());
    Ok(())
}

/// Goal: the same sources give the same bytes, so that a package can be verified.
#[test]
fn packages_are_reproducible() -> Result<()> {
    let (once, again) = (std::fs::read(package()?)?, std::fs::read(build("package-again")?)?);
    assert!(once == again, "two builds differ");
    Ok(())
}

/// Goal: the installed program runs and accepts the installed configuration; an upgrade keeps a
/// changed configuration, a removal leaves it, a purge deletes it, and disks always stay.
#[test]
fn installed_upgraded_and_removed() -> Result<()> {
    let scratch = Scratch::new("dpkg")?;
    let root = dpkg_root(&scratch)?;
    let installed = dpkg(&root, &["--install", package()?])?;
    assert!(installed.succeeded(), "{}", installed.outputs());
    let (lunar, toml) = (format!("{root}/usr/bin/lunar"), format!("{root}/etc/lunar/lunar.toml"));
    let version = run_checked(&lunar, &["--version"], LIMIT)?;
    let package_version = run_checked("dpkg-deb", &["-f", package()?, "Version"], LIMIT)?;
    assert_eq!(version.trim(), format!("lunar {}", package_version.trim().trim_end_matches("-1")));
    run_checked(&lunar, &["check", &toml], LIMIT)?;

    let disk = format!("{root}/var/lib/lunar/disk.img");
    std::fs::create_dir_all(format!("{root}/var/lib/lunar"))?;
    std::fs::write(&disk, "data")?;
    let changed = std::fs::read_to_string(&toml)?.replace(":3260", ":3261");
    std::fs::write(&toml, &changed)?;
    let upgraded = dpkg(&root, &["--install", package()?])?;
    assert!(upgraded.succeeded(), "{}", upgraded.outputs());
    assert_eq!(std::fs::read_to_string(&toml)?, changed, "the upgrade kept it");
    let removed = dpkg(&root, &["--remove", "lunar"])?;
    assert!(removed.succeeded() && !Path::new(&lunar).exists(), "{}", removed.outputs());
    assert_eq!(std::fs::read_to_string(&toml)?, changed, "the removal kept it");
    let purged = dpkg(&root, &["--purge", "lunar"])?;
    assert!(purged.succeeded() && !Path::new(&toml).exists(), "{}", purged.outputs());
    assert_eq!(std::fs::read_to_string(&disk)?, "data", "disks are not the package's");
    Ok(())
}

/// Goal: the package's service works as the unit and its comments say.
/// Method: a real systemd, in namespaces of its own, installs, starts, kills, upgrades and removes
/// it; see lab/systemd.
#[test]
fn the_service_works_under_systemd() -> Result<()> {
    /// Exit status of the script if the machine does not permit the test.
    const CANNOT: i32 = 77;
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/systemd/run");
    let played = run(script, &[package()?], 2 * LIMIT)?;
    if matches!(played.end, End::Exited(status) if status.code() == Some(CANNOT)) {
        eprintln!("NOT TESTED: {}", played.stderr);
        return Ok(());
    }
    assert!(played.succeeded(), "{}", played.outputs());
    assert!(played.stdout.lines().count() >= 8, "every part of the scene: {}", played.stdout);
    Ok(())
}

/// Goal: the links of the installed README.md lead to installed documents, and theirs too.
#[test]
fn links_of_the_documents_lead_somewhere() -> Result<()> {
    let scratch = Scratch::new("documents")?;
    run_checked("dpkg-deb", &["-x", package()?, &scratch.path("")], LIMIT)?;
    let folder = scratch.folder().join("usr/share/doc/lunar").canonicalize()?;
    let mut documents = vec![folder.join("README.md")];
    let mut next = 0;
    while let Some(document) = documents.get(next).cloned() {
        next += 1;
        let text = std::fs::read_to_string(&document)?;
        for link in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            let path = link.split('#').next().unwrap_or_default();
            // The licence belongs to another package.
            if path.is_empty() || path.contains("://") || path == "LICENSE" {
                continue;
            }
            let linked = document.with_file_name(path).canonicalize();
            let linked = linked.unwrap_or_else(|error| panic!("{document:?}: {link}: {error}"));
            if path.ends_with(".md") && !documents.contains(&linked) {
                documents.push(linked);
            }
        }
    }
    assert!(documents.len() > 10, "{documents:?}");
    Ok(())
}

/// Goal: the manual pages are well formed.
/// Method: mandoc prints no warning.
#[test]
fn manual_pages_are_well_formed() -> Result<()> {
    let scratch = Scratch::new("man")?;
    run_checked("dpkg-deb", &["-x", package()?, &scratch.path("")], LIMIT)?;
    let mut pages = 0;
    for section in ["man1", "man5"] {
        for page in std::fs::read_dir(scratch.path(&format!("usr/share/man/{section}")))? {
            let page = page?.path().display().to_string();
            let report = run("mandoc", &["-Tlint", "-Wwarning", &page], LIMIT)?;
            assert!(report.succeeded() && report.stdout.is_empty(), "{}", report.outputs());
            pages += 1;
        }
    }
    assert!(pages > 5, "{pages}");
    Ok(())
}

/// Goal: shell completions of our commands work.
/// Method: queries bash and fish; zsh parses its script.
#[test]
fn shells_complete() -> Result<()> {
    let scratch = Scratch::new("completions")?;
    run_checked("dpkg-deb", &["-x", package()?, &scratch.path("")], LIMIT)?;
    let share = scratch.path("usr/share");
    let bash = format!(
        ". {share}/bash-completion/completions/lunar; COMP_WORDS=(lunar serv); COMP_CWORD=1; \
         _lunar lunar serv lunar; echo \"${{COMPREPLY[@]}}\""
    );
    assert_eq!(run_checked("bash", &["--norc", "-c", &bash], LIMIT)?.trim(), "serve");
    let script = format!("{share}/fish/vendor_completions.d/lunar.fish");
    let fish = format!("source {script}; complete -C 'lunar serv'");
    let printed = run_checked("fish", &["--no-config", "-c", &fish], LIMIT)?;
    assert!(printed.starts_with("serve\t"), "{printed}");
    run_checked("zsh", &["-n", &format!("{share}/zsh/vendor-completions/_lunar")], LIMIT)?;
    Ok(())
}
