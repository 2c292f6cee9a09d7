//! The README's chapters, run as written, in namespaces where their ports and addresses are free.

use anyhow::{Context, Result, ensure};
use interop::process::run;
use interop::scratch::Scratch;
use interop::{lunar, readme};
use std::path::Path;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(600);

/// The addresses that the README's examples listen on besides loopback (RFC 5737: documentation).
const ADDRESSES: [&str; 2] = ["192.0.2.7/32", "198.51.100.7/32"];

/// Runs a chapter in an empty folder, with `lunar` in the search path.
fn walk(title: &str) -> Result<()> {
    let scratch = Scratch::new("readme")?;
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let document = std::fs::read_to_string(root.join("README.md"))?;
    std::fs::write(scratch.path("walk"), readme::script(&document, title)?)?;
    let lunar = std::fs::canonicalize(lunar::binary()?)?;
    std::fs::create_dir(scratch.path("bin"))?;
    std::os::unix::fs::symlink(&lunar, scratch.path("bin/lunar"))?;
    std::fs::create_dir(scratch.path("home"))?;
    let mut inside = String::from("ip link set lo up\n");
    for address in ADDRESSES {
        inside.push_str(&format!("ip address add {address} dev lo\n"));
    }
    let folder = scratch.folder().to_str().context("a path in UTF-8")?;
    inside.push_str(&format!(
        "cd {folder}/home && export PATH={folder}/bin:$PATH HOME=$PWD XDG_RUNTIME_DIR=$PWD\n\
         exec bash ../walk\n"
    ));
    let mut arguments = vec!["--net", "--pid", "--fork", "--kill-child", "--mount-proc"];
    if !rustix::process::geteuid().is_root() {
        arguments.extend(["--user", "--map-root-user"]);
    }
    arguments.extend(["bash", "-ec", &inside]);
    let walked = run("unshare", &arguments, LIMIT)?;
    ensure!(
        walked.succeeded() && walked.stdout.ends_with("walked\n"),
        "{title}: {}",
        walked.outputs()
    );
    Ok(())
}

#[test]
fn use_the_demo_disk() -> Result<()> {
    walk("Use the demo disk")
}

#[test]
fn use_the_disks_of_other_targets() -> Result<()> {
    walk("Use the disks of other targets")
}

#[test]
fn serve_disks_of_your_own() -> Result<()> {
    walk("Serve disks of your own")
}

#[test]
fn who_may_use_what() -> Result<()> {
    walk("Who may use what")
}

#[test]
fn operation() -> Result<()> {
    walk("Operation")
}
