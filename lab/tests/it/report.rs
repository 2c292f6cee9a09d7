//! The HTML report of `lunar bench`, in a headless browser.

use anyhow::{Context, Result, ensure};
use lunar_lab::peers::lunar::{Lunar, binary};
use lunar_lab::system::process::{must, run};
use lunar_lab::system::scratch::Scratch;
use std::time::Duration;

const TARGET: &str = "iqn.2026-11.org.example:disk";
const COMMAND_MAX: Duration = Duration::from_secs(120);

/// Returns the page in a browser after its scripts have run, offline and in a folder of its own.
fn page_in_browser(scratch: &Scratch, page: &str) -> Result<String> {
    let profile = format!("--user-data-dir={}", scratch.path("profile"));
    let url = format!("file://{page}");
    let options = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", &profile];
    // Any address that the page would load is mapped to an unused one.
    let offline = ["--host-resolver-rules=MAP * 192.0.2.1", "--dump-dom", &url];
    must("chromium", &[&options[..], &offline].concat(), COMMAND_MAX)
}

/// Goal: every plot with figures in the run is drawn, no script fails, and the tables have every
/// combination.
/// Method: a run with two points on each axis, and one with a single point.
#[test]
fn every_plot_is_drawn() -> Result<()> {
    let scratch = Scratch::new("report")?;
    let lunar = Lunar::serve(&["mem:8M", "--name", TARGET])?;
    let (url, page) = (lunar.url(TARGET, 0), scratch.path("report.html"));
    let quick = ["bench", &url, "--seconds", "0.25", "--warm-up", "0", "--rounds", "2"];
    let axes = ["--depth", "1,4", "--io-size", "4K,16K", "--connections", "1,2", "--html", &page];
    must(&binary()?, &[&quick[..], &axes].concat(), COMMAND_MAX)?;
    let shown = page_in_browser(&scratch, &page)?;
    ensure!(!shown.contains("data-error"), "a script failed: {shown}");
    // Size, depth, connections, percentiles, distribution.
    ensure!(shown.matches("<canvas").count() == 5, "{}", shown.matches("<canvas").count());
    ensure!(shown.matches("data-drawn=\"yes\"").count() == 5, "not all are drawn");
    let table = shown.split("<h2>Disks</h2>").nth(1).context("no table of disks")?;
    let rows = table.split("</section>").next().unwrap_or_default();
    ensure!(rows.matches("<td class=\"name\">rand-read</td>").count() == 8, "{rows}");

    let single = ["--depth", "1", "--html", &page];
    must(&binary()?, &[&quick[..], &single].concat(), COMMAND_MAX)?;
    let shown = page_in_browser(&scratch, &page)?;
    ensure!(!shown.contains("data-error"), "a script failed: {shown}");
    ensure!(shown.matches("<canvas").count() == 1, "the distribution alone has several points");
    lunar.stop(Duration::from_secs(60))?;
    Ok(())
}

/// Goal: the name of a disk cannot become a part of the page.
/// Method: a file with a name that is HTML and script; the browser executes none of it.
#[test]
fn peer_names_stay_unchanged() -> Result<()> {
    let scratch = Scratch::new("report-names")?;
    let page = scratch.path("report.html");
    let name = "<img src=x onerror=\"document.documentElement.dataset.error=1\"><!--";
    let disk = scratch.path(name);
    std::fs::write(&disk, vec![0; 1 << 20])?;
    let quick = ["bench", &disk, "--seconds", "0.25", "--warm-up", "0", "--rounds", "1"];
    must(&binary()?, &[&quick[..], &["--depth", "1,2", "--html", &page]].concat(), COMMAND_MAX)?;
    let shown = page_in_browser(&scratch, &page)?;
    ensure!(!shown.contains("<img") && !shown.contains("data-error"), "{shown}");
    ensure!(shown.contains("&lt;img src=x"), "the name is shown");
    ensure!(shown.matches("data-drawn=\"yes\"").count() == 3, "depth, percentiles, distribution");
    let nowhere = scratch.path("no/such/folder.html");
    let refused = run(&binary()?, &[&quick[..], &["--html", &nowhere]].concat(), COMMAND_MAX)?;
    ensure!(!refused.succeeded() && refused.stderr.contains("--html"), "{}", refused.outputs());
    Ok(())
}
