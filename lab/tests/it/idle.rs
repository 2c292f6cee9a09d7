//! Memory of an idle server.

use anyhow::{Context, Result, ensure};
use lunar_lab::peers::lunar;
use lunar_lab::peers::lunar::Lunar;
use lunar_lab::random::pattern;
use lunar_lab::system::process::run_checked;
use lunar_lab::system::scratch::Scratch;
use std::time::{Duration, Instant};

/// Maximum resident memory of an idle server in an optimized build, in bytes; most of it is the
/// program.
const RESIDENT_MAX: u64 = 16 << 20;

/// Maximum resident memory of an idle server besides its program, in bytes.
const PRIVATE_MAX: u64 = 5 << 20;

const LIMIT: Duration = Duration::from_secs(60);

fn small(lunar: &mut Lunar, when: &str) -> Result<()> {
    // The server frees the memory of a client a moment after it leaves.
    let until = Instant::now() + LIMIT;
    let resident_max = if lunar::is_debug_build()? { u64::MAX } else { RESIDENT_MAX };
    loop {
        let server = lunar.server();
        let (resident, private) = (server.resident_bytes()?, server.private_bytes()?);
        if resident <= resident_max && private <= PRIVATE_MAX {
            println!("{when}: {} KiB resident, {} private", resident >> 10, private >> 10);
            return Ok(());
        }
        let late = Instant::now() >= until;
        ensure!(!late, "{when}: {resident} bytes resident, {private} private");
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// Goal: a server is small after its start, and gets small again after work.
/// Method: resident memory before and after 64 MiB went each way.
#[test]
fn idle_servers_are_small() -> Result<()> {
    let scratch = Scratch::new("idle")?;
    let mut lunar = Lunar::serve(&[&scratch.path("disk.img"), "--size", "1G"])?;
    small(&mut lunar, "started")?;
    let url = lunar.url("iqn.2026-11.org.lunarsan:disk", 0);
    let data = pattern(1, 64 << 20);
    let binary = lunar::binary()?;
    let written =
        lunar_lab::system::process::run_with_input(&binary, &["write", &url], data.clone(), LIMIT)?;
    ensure!(written.succeeded(), "{}", written.outputs());
    let length = data.len().to_string();
    let (_, read, printed, _) = lunar_lab::system::process::run_for_bytes(
        &binary,
        &["read", &url, "--length", &length],
        Vec::new(),
        LIMIT,
    )?;
    ensure!(read == data, "{printed}");
    run_checked(&binary, &["info", &url], LIMIT)?;
    small(&mut lunar, "after work")?;
    lunar.stop(LIMIT)?;
    Ok(())
}

/// Uses the API and the metrics of a server once.
fn read_status(lunar: &Lunar) -> Result<()> {
    let api = lunar.api().context("no API")?;
    let status = run_checked(&lunar::binary()?, &["ctl", "--api", &api, "status"], LIMIT)?;
    ensure!(status.contains("health"), "{status}");
    let metrics = lunar.metrics().context("no metrics")?;
    let page = run_checked("curl", &["-sSf", &metrics], LIMIT)?;
    ensure!(page.contains("lunar_build_info"), "{page}");
    Ok(())
}

/// Goal: a server is as small after use of its API and metrics, whether it serves one disk by its
/// arguments or several from a configuration.
#[test]
fn idle_servers_with_api_and_metrics_are_small() -> Result<()> {
    let scratch = Scratch::new("idle-api")?;
    let api = format!("unix:{}", scratch.path("serve.sock"));
    let options = ["--size", "1G", "--api", &api, "--metrics", "127.0.0.1:0"];
    let disk = scratch.path("disk.img");
    let mut lunar = Lunar::serve(&[&[disk.as_str()], &options[..]].concat())?;
    read_status(&lunar)?;
    small(&mut lunar, "lunar serve, API and metrics used")?;
    lunar.stop(LIMIT)?;

    let mut text = format!(
        "[listen]\nportals = [\"127.0.0.1:0\"]\n[metrics]\nlisten = \"127.0.0.1:0\"\n\
         [api]\nlisten = \"unix:{}\"\n",
        scratch.path("target.sock")
    );
    for name in ["a", "b"] {
        text += &format!("[[target]]\nname = \"iqn.2026-11.org.lunarsan.test:{name}\"\n");
        for lun in 0..4 {
            let device = format!("file:{name}{lun}.img");
            text += &format!("[[target.lun]]\nid = {lun}\ndevice = \"{device}\"\n");
            text += "size = \"1GiB\"\n";
        }
    }
    let config = scratch.path("lunar.toml");
    std::fs::write(&config, text)?;
    let mut lunar = Lunar::start(&["target", "--config", &config])?;
    read_status(&lunar)?;
    small(&mut lunar, "lunar target with 8 LUNs, API and metrics used")?;
    lunar.stop(LIMIT)?;
    Ok(())
}
