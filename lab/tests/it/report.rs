//! The HTML report of `lunar bench`, in a headless browser.

use anyhow::{Context, Result, ensure};
use lunar_lab::peers::lunar::{Lunar, binary};
use lunar_lab::system::process::{run, run_checked};
use lunar_lab::system::scratch::Scratch;
use std::time::Duration;

const TARGET: &str = "iqn.2026-11.org.example:disk";
const COMMAND_MAX: Duration = Duration::from_secs(120);
/// Widths of a phone, a laptop and a large screen.
const WIDTHS: [u32; 3] = [360, 1280, 1920];
const PICTURE_HEIGHT: u32 = 1200;

/// Returns the page in a browser after its scripts have run, offline and in a folder of its own.
fn page_in_browser(scratch: &Scratch, page: &str) -> Result<String> {
    let profile = format!("--user-data-dir={}", scratch.path("profile"));
    let url = format!("file://{page}");
    let options = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", &profile];
    // Any address that the page would load is mapped to an unused one.
    let offline = ["--host-resolver-rules=MAP * 192.0.2.1", "--dump-dom", &url];
    run_checked("chromium", &[&options[..], &offline].concat(), COMMAND_MAX)
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
    run_checked(&binary()?, &[&quick[..], &axes].concat(), COMMAND_MAX)?;
    let shown = page_in_browser(&scratch, &page)?;
    ensure!(!shown.contains("data-error"), "a script failed: {shown}");
    // Size, depth, connections, percentiles, distribution.
    ensure!(shown.matches("<canvas").count() == 5, "{}", shown.matches("<canvas").count());
    ensure!(shown.matches("data-drawn=\"yes\"").count() == 5, "not all are drawn");
    let table = shown.split("<h2>Disks</h2>").nth(1).context("no table of disks")?;
    let rows = table.split("</section>").next().unwrap_or_default();
    ensure!(rows.matches("<td class=\"name\">rand-read</td>").count() == 8, "{rows}");

    let single = ["--depth", "1", "--html", &page];
    run_checked(&binary()?, &[&quick[..], &single].concat(), COMMAND_MAX)?;
    let shown = page_in_browser(&scratch, &page)?;
    ensure!(!shown.contains("data-error"), "a script failed: {shown}");
    ensure!(shown.matches("<canvas").count() == 1, "the distribution alone has several points");
    lunar.stop(Duration::from_secs(60))?;
    Ok(())
}

/// Prints the page in a window of this width, and takes a picture of its beginning.
fn picture(scratch: &Scratch, page: &str, width: u32, picture: &str) -> Result<String> {
    let profile = format!("--user-data-dir={}", scratch.path("profile"));
    let (url, to) = (format!("file://{page}"), format!("--screenshot={picture}"));
    // A window of a desktop has at least 500 pixels, unless it fills a screen that is smaller.
    let screen = format!("--screen-info={{{width}x{PICTURE_HEIGHT}}}");
    let window = ["--start-fullscreen", "--kiosk", "--force-device-scale-factor=1", &screen];
    let options = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", &profile];
    let shown = ["--hide-scrollbars", &to, "--dump-dom", &url];
    run_checked("chromium", &[&options[..], &window, &shown].concat(), COMMAND_MAX)
}

/// Goal: the page fits windows from 360 to 1,920 px, has a date, says what was compared and that a
/// durable LUN and a file in the page cache are not alike, and names each line at its end.
/// Fault: the page was cut off at 1,280 px, had no date, and compared both without a word.
/// Method: a script in a copy of the page compares the widths of the document, and of each table
/// from 1,280 px on, with those of their places.
#[test]
fn the_page_fits_its_window() -> Result<()> {
    let scratch = Scratch::new("report-width")?;
    let (disk, file) = (scratch.path("disk.img"), scratch.path("file.img"));
    for path in [&disk, &file] {
        std::fs::File::create(path)?.set_len(8 << 20)?;
    }
    let lunar = Lunar::serve(&[&disk, "--name", TARGET])?;
    let (url, page) = (lunar.url(TARGET, 0), scratch.path("report.html"));
    let quick = ["--seconds", "0.25", "--warm-up", "0.05", "--rounds", "2"];
    let axes = ["--depth", "1,4,16", "--io-size", "4K,64K", "--pattern", "rand-read,rand-write"];
    // The pictures of the documents show the name of the file, and no folder.
    let (folder, lunar_program) = (scratch.path(""), binary()?);
    let bench = ["-C", &folder, &lunar_program, "bench", &url, "file.img", "--html", "report.html"];
    let printed = run_checked("env", &[&bench[..], &quick, &axes].concat(), COMMAND_MAX)?;
    ensure!(printed.contains("not compared like with like"), "{printed}");
    lunar.stop(Duration::from_secs(60))?;
    let html = std::fs::read_to_string(&page)?;
    for words in ["<dt>date</dt><dd>20", "What was compared", "not compared like with like"] {
        ensure!(html.contains(words), "{words}");
    }
    let script = "<script>addEventListener('load', () => {
        const over = (place) => place.scrollWidth - place.clientWidth;
        const scrolls = [...document.querySelectorAll('section > .scroll')].map(over);
        const root = document.documentElement;
        root.dataset.sizes = [innerWidth, over(root), Math.max(...scrolls)].join(' ');
    })</script></body>";
    let copy = scratch.path("copy.html");
    std::fs::write(&copy, html.replace("</body>", script))?;
    for width in WIDTHS {
        let file = format!("bench-{width}.png");
        let taken = scratch.path(&file);
        let shown = picture(&scratch, &copy, width, &taken)?;
        ensure!(!shown.contains("data-error"), "a script failed: {shown}");
        let sizes = shown.split("data-sizes=\"").nth(1).and_then(|rest| rest.split('"').next());
        let sizes = sizes.context("no sizes")?.split(' ').map(str::parse::<u32>);
        let sizes = sizes.collect::<std::result::Result<Vec<_>, _>>()?;
        ensure!(sizes[..2] == [width, 0], "window, and what is outside of it: {sizes:?}");
        ensure!(width < 1280 || sizes[2] == 0, "a table is cut off at {width} px: {sizes:?}");
        if std::env::var_os("LUNAR_WRITE_DOCS").is_some() {
            let images = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/images");
            std::fs::copy(&taken, format!("{images}/{file}"))?;
        }
    }
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
    run_checked(
        &binary()?,
        &[&quick[..], &["--depth", "1,2", "--html", &page]].concat(),
        COMMAND_MAX,
    )?;
    let shown = page_in_browser(&scratch, &page)?;
    ensure!(!shown.contains("<img") && !shown.contains("data-error"), "{shown}");
    ensure!(shown.contains("&lt;img src=x"), "the name is shown");
    ensure!(shown.matches("data-drawn=\"yes\"").count() == 3, "depth, percentiles, distribution");
    let nowhere = scratch.path("no/such/folder.html");
    let refused = run(&binary()?, &[&quick[..], &["--html", &nowhere]].concat(), COMMAND_MAX)?;
    ensure!(!refused.succeeded() && refused.stderr.contains("--html"), "{}", refused.outputs());
    Ok(())
}
