//! The unit for systemd, checked by systemd's own tools.

use lunar_lab::system::process::{run, run_checked};
use lunar_lab::system::scratch::Scratch;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(60);

/// Maximum exposure by `systemd-analyze security`, in tenths: the network, which a server needs,
/// and related items. A service without any hardening counts 96.
const EXPOSURE_TENTHS_MAX: u32 = 11;

fn unit() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../dist/systemd/lunar.service"))
}

/// Goal: systemd accepts each line.
/// Method: `systemd-analyze verify` below a root with all files that the unit names; it prints
/// nothing.
#[test]
fn systemd_accepts_the_unit() -> anyhow::Result<()> {
    let scratch = Scratch::new("unit")?;
    let root = scratch.folder();
    std::fs::create_dir_all(root.join("usr/lib/systemd/system"))?;
    std::fs::create_dir_all(root.join("usr/bin"))?;
    std::fs::copy(unit(), root.join("usr/lib/systemd/system/lunar.service"))?;
    for program in ["lunar", "kill"] {
        let path = root.join("usr/bin").join(program);
        std::fs::write(&path, "#!/bin/sh\n")?;
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755))?;
    }
    for target in ["network-online.target", "sysinit.target", "basic.target", "shutdown.target"] {
        let text = format!("[Unit]\nDescription={target}\n");
        std::fs::write(root.join("usr/lib/systemd/system").join(target), text)?;
    }
    let root = format!("--root={}", root.display());
    let arguments = ["verify", "--man=no", "--recursive-errors=one", &root, "lunar.service"];
    let verified = run("systemd-analyze", &arguments, LIMIT)?;
    assert!(verified.succeeded(), "{}", verified.outputs());
    let printed = format!("{}{}", verified.stdout, verified.stderr);
    let printed: Vec<_> = printed.lines().filter(|line| line.contains("lunar.service")).collect();
    assert!(printed.is_empty(), "{printed:?}");
    Ok(())
}

/// Goal: the unit stays hardened.
/// Method: `systemd-analyze security` rates its exposure.
#[test]
fn the_unit_is_hardened() -> anyhow::Result<()> {
    let unit = unit();
    let arguments = ["security", "--offline=yes", "--no-pager", unit.to_str().unwrap()];
    let report = run_checked("systemd-analyze", &arguments, LIMIT)?;
    let overall = report.lines().find(|line| line.contains("Overall exposure level")).unwrap();
    let level = overall.rsplit(": ").next().unwrap().split(' ').next().unwrap();
    let (ones, tenths) = level.split_once('.').unwrap();
    let tenths = ones.parse::<u32>()? * 10 + tenths.parse::<u32>()?;
    assert!(tenths <= EXPOSURE_TENTHS_MAX, "{overall}");
    Ok(())
}
