//! What a server takes that has nothing to do.

use anyhow::{Result, ensure};
use interop::lunar::Lunar;
use interop::process::must;
use interop::scratch::Scratch;
use interop::{lunar, scratch};
use std::time::Duration;

/// The most that an idle server may have resident, in bytes.
const RESIDENT_MAX: u64 = 16 << 20;

const LIMIT: Duration = Duration::from_secs(60);

fn small(lunar: &mut Lunar, when: &str) -> Result<()> {
    let resident = lunar.server().resident_bytes()?;
    println!("{when}: {} KiB resident", resident >> 10);
    ensure!(resident <= RESIDENT_MAX, "{when}: {resident} bytes resident");
    Ok(())
}

/// Goal: a server that has only been started is small, and one that has worked gets small again.
/// Method: VmRSS of the release build, before and after 64 MiB went each way.
#[test]
fn idle_servers_are_small() -> Result<()> {
    let scratch = Scratch::new("idle")?;
    let mut lunar = Lunar::serve(&[&scratch.path("disk.img"), "--size", "1G"])?;
    small(&mut lunar, "started")?;
    let url = lunar.url("iqn.2026-11.org.lunarsan:disk", 0);
    let data = scratch::pattern(1, 64 << 20);
    let binary = lunar::binary()?;
    let written = interop::process::run_with_input(&binary, &["write", &url], data.clone(), LIMIT)?;
    ensure!(written.succeeded(), "{}", written.outputs());
    let length = data.len().to_string();
    let (_, read, said, _) = interop::process::run_for_bytes(
        &binary,
        &["read", &url, "--length", &length],
        Vec::new(),
        LIMIT,
    )?;
    ensure!(read == data, "{said}");
    must(&binary, &["info", &url], LIMIT)?;
    small(&mut lunar, "after work")?;
    lunar.stop(LIMIT)?;
    Ok(())
}
