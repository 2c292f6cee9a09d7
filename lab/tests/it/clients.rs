//! Common clients against `lunar serve`: the tools of libiscsi and QEMU.

use anyhow::{Result, ensure};
use lunar_lab::peers::lunar::{Lunar, binary};
use lunar_lab::system::process::{Finished, run, run_checked};
use lunar_lab::system::scratch::Scratch;
use std::time::Duration;

const TOOL_MAX: Duration = Duration::from_secs(60);
const TARGET: &str = "iqn.2026-11.org.lunarsan.test:clients";

/// Serves a disk of 64 MiB under the target's name, with additional options.
fn serve(scratch: &Scratch, options: &[&str]) -> Result<Lunar> {
    let disk = scratch.path("disk.img");
    Lunar::serve(&[&[disk.as_str(), "--size", "64M", "--name", TARGET], options].concat())
}

/// Runs a libiscsi tool or QEMU, which must fail in time.
fn must_fail(program: &str, arguments: &[&str]) -> Result<Finished> {
    let finished = run(program, arguments, TOOL_MAX)?;
    ensure!(!finished.succeeded(), "{program} {arguments:?} should fail: {}", finished.outputs());
    Ok(finished)
}

/// Goal: the first steps of the README work: list, query, copy in, compare.
#[test]
fn the_first_minutes() -> Result<()> {
    let scratch = Scratch::new("first-minutes")?;
    let mut lunar = serve(&scratch, &[])?;
    let url = lunar.url(TARGET, 0);
    let listed = run_checked("iscsi-ls", &["-s", &lunar.portal_url()], TOOL_MAX)?;
    ensure!(listed.contains(TARGET) && listed.contains("Lun:0"), "iscsi-ls: {listed}");
    let identity = run_checked("iscsi-inq", &[&url], TOOL_MAX)?;
    ensure!(identity.contains("DIRECT_ACCESS"), "iscsi-inq: {identity}");
    for page in ["0", "128", "131", "176", "177", "178"] {
        run_checked("iscsi-inq", &["-e", "1", "-c", page, &url], TOOL_MAX)?;
    }
    let capacity = run_checked("iscsi-readcapacity16", &[&url], TOOL_MAX)?;
    ensure!(capacity.contains("Total size:67108864"), "iscsi-readcapacity16: {capacity}");

    let image = scratch.pattern("image.raw", 1, 64 << 20)?;
    run_checked("qemu-img", &["convert", "-n", "-f", "raw", "-O", "raw", &image, &url], TOOL_MAX)?;
    run_checked("qemu-img", &["compare", "-f", "raw", "-F", "raw", &image, &url], TOOL_MAX)?;
    let stored = std::fs::read(scratch.path("disk.img"))?;
    ensure!(stored == std::fs::read(&image)?, "the backing file holds something else");

    let perf = ["-r", "-m", "8", "-b", "8", "-t", "2", &url];
    run_checked("iscsi-perf", &perf, TOOL_MAX)?;
    ensure!(lunar.server().is_running()?, "the server ended");
    lunar.stop(Duration::from_secs(60))?;
    Ok(())
}

/// Goal: an image compared with another one differs, so that the comparison above can fail.
#[test]
fn a_changed_disk_differs() -> Result<()> {
    let scratch = Scratch::new("differs")?;
    let lunar = serve(&scratch, &[])?;
    let url = lunar.url(TARGET, 0);
    let image = scratch.pattern("image.raw", 2, 64 << 20)?;
    run_checked("qemu-img", &["convert", "-n", "-f", "raw", "-O", "raw", &image, &url], TOOL_MAX)?;
    run_checked("qemu-io", &["-f", "raw", "-c", "write -P 7 1M 512", &url], TOOL_MAX)?;
    let finished = must_fail("qemu-img", &["compare", "-f", "raw", "-F", "raw", &image, &url])?;
    ensure!(finished.stdout.contains("offset 1048576"), "{}", finished.outputs());
    Ok(())
}

/// Goal: patterns, discard, write zeroes and flush behave as QEMU requires of a disk.
#[test]
fn qemu_io_operations() -> Result<()> {
    qemu_io_on_a_disk_with(&["--physical-block-size", "4096"])
}

/// Goal: the operations also work with blocks longer than QEMU's sectors, where QEMU fails on its
/// own allocation map unless the disk prevents that map.
#[test]
fn qemu_io_operations_on_long_blocks() -> Result<()> {
    for block_size in ["1024", "2048", "4096"] {
        qemu_io_on_a_disk_with(&["--block-size", block_size])?;
    }
    Ok(())
}

fn qemu_io_on_a_disk_with(options: &[&str]) -> Result<()> {
    let scratch = Scratch::new("qemu-io")?;
    let lunar = serve(&scratch, options)?;
    let url = lunar.url(TARGET, 0);
    let mut arguments = vec!["-f", "raw", "-d", "unmap"];
    for command in [
        "write -P 0xa5 0 1M",
        "write -P 0x5a 1M 3M",
        "write -P 0x11 -f 8M 64k",
        "flush",
        "read -P 0xa5 0 1M",
        "read -P 0x5a 1M 3M",
        "read -P 0x11 8M 64k",
        "write -z 512k 1M",
        "read -P 0 512k 1M",
        "read -P 0xa5 0 512k",
        "read -P 0x5a 1536k 2560k",
        "write -z -u 2M 1M",
        "read -P 0 2M 1M",
        "discard 0 512k",
        "read -P 0 0 512k",
        "read -P 0x5a 3M 1M",
        "aio_write -P 1 16M 4M",
        "aio_write -P 2 20M 4M",
        "aio_write -P 3 24M 4M",
        "aio_flush",
        "read -P 1 16M 4M",
        "read -P 2 20M 4M",
        "read -P 3 24M 4M",
        "write -P 9 66977792 131072",
        "read -P 9 66977792 131072",
    ] {
        arguments.extend(["-c", command]);
    }
    arguments.push(&url);
    let finished = run("qemu-io", &arguments, TOOL_MAX)?;
    let text = finished.outputs();
    ensure!(finished.succeeded(), "{text}");
    ensure!(!text.contains("failed") && !text.contains("verification"), "{text}");
    Ok(())
}

/// Goal: written data is in the backing file, and discarded blocks free their space.
#[test]
fn discarded_space_is_given_back() -> Result<()> {
    use std::os::unix::fs::MetadataExt;
    let scratch = Scratch::new("discard")?;
    let lunar = serve(&scratch, &[])?;
    let url = lunar.url(TARGET, 0);
    let allocated =
        || -> Result<u64> { Ok(std::fs::metadata(scratch.path("disk.img"))?.blocks() * 512) };
    let qemu_io = |command: &str| {
        run_checked(
            "qemu-io",
            &["-f", "raw", "-d", "unmap", "-c", command, "-c", "flush", &url],
            TOOL_MAX,
        )
    };
    ensure!(allocated()? < 1 << 20, "a new disk is not sparse");
    qemu_io("write -P 3 0 32M")?;
    ensure!(allocated()? >= 32 << 20, "the writes are not in the file");
    qemu_io("discard 0 32M")?;
    ensure!(allocated()? < 2 << 20, "discarded space is still allocated: {}", allocated()?);
    Ok(())
}

/// Goal: header digests work.
/// Method: libiscsi requests them; a copy both ways.
#[test]
fn header_digests() -> Result<()> {
    let scratch = Scratch::new("header-digest")?;
    let lunar = serve(&scratch, &[])?;
    let url = lunar.url(TARGET, 0);
    let image = scratch.pattern("image.raw", 3, 64 << 20)?;
    for digest in ["crc32c", "none", "crc32c-none", "none-crc32c"] {
        let options = format!(
            "driver=raw,file.driver=iscsi,file.transport=tcp,file.portal={},file.target={TARGET},\
             file.lun=0,file.header-digest={digest}",
            lunar.address()
        );
        let source = format!("driver=raw,file.driver=file,file.filename={image}");
        let convert = ["convert", "-n", "--image-opts", "--target-image-opts", &source, &options];
        run_checked("qemu-img", &convert, TOOL_MAX)?;
        run_checked("qemu-img", &["compare", "--image-opts", &source, &options], TOOL_MAX)?;
    }
    let url = format!("{url}?header_digest=crc32c");
    run_checked("iscsi-inq", &[&url], TOOL_MAX)?;
    Ok(())
}

/// Goal: the server also works over IPv6.
#[test]
fn ipv6() -> Result<()> {
    let scratch = Scratch::new("ipv6")?;
    let disk = scratch.path("disk.img");
    let lunar = Lunar::serve_on("[::1]:0", &[&disk, "--size", "8M", "--name", TARGET])?;
    ensure!(lunar.address().starts_with("[::1]:"), "{}", lunar.address());
    let listed = run_checked("iscsi-ls", &["-s", &lunar.portal_url()], TOOL_MAX)?;
    ensure!(listed.contains(TARGET) && listed.contains("[::1]"), "iscsi-ls: {listed}");
    let url = lunar.url(TARGET, 0);
    let commands = ["-f", "raw", "-c", "write -P 6 0 1M", "-c", "read -P 6 0 1M", &url];
    let text = run_checked("qemu-io", &commands, TOOL_MAX)?;
    ensure!(!text.contains("failed"), "{text}");
    Ok(())
}

/// Goal: with CHAP a login succeeds with the right secret, and fails with a wrong one or none, in
/// both directions.
#[test]
fn chap() -> Result<()> {
    let scratch = Scratch::new("chap")?;
    let (secret, other) = ("initiator-secret-1", "target-secret-22");
    let secret_file = scratch.secret("secret", secret)?;
    let other_file = scratch.secret("other", other)?;
    let chap = ["--chap-user", "user", "--chap-secret-file", &secret_file];
    let mutual = ["--mutual-chap-user", "disk", "--mutual-chap-secret-file", &other_file];
    let lunar = serve(&scratch, &[chap, mutual].concat())?;
    let (address, path) = (lunar.address().to_owned(), format!("{TARGET}/0"));
    let url = |login: &str, more: &str| format!("iscsi://{login}{address}/{path}{more}");
    run_checked("iscsi-inq", &[&url(&format!("user%{secret}@"), "")], TOOL_MAX)?;
    let proof = format!("?target_user=disk&target_password={other}");
    run_checked("iscsi-inq", &[&url(&format!("user%{secret}@"), &proof)], TOOL_MAX)?;
    for login in [String::new(), "user%not-the-secret-1@".into(), format!("other%{secret}@")] {
        must_fail("iscsi-inq", &[&url(&login, "")])?;
    }
    let disproof = "?target_user=disk&target_password=not-the-secret-2";
    must_fail("iscsi-inq", &[&url(&format!("user%{secret}@"), disproof)])?;
    run_checked("iscsi-inq", &[&url(&format!("user%{secret}@"), &proof)], TOOL_MAX)?;
    Ok(())
}

/// Goal: the lines that `lunar serve` prints work unchanged, in a separate shell, with any
/// authentication of discovery. CHAP names that begin like numbers, or contain a quote, are taken
/// as names.
#[test]
fn lines_to_paste() -> Result<()> {
    let scratch = Scratch::new("lines")?;
    let secret = scratch.secret("it's a secret", "initiator-secret-1")?;
    let other = scratch.secret("other", "discovery-secret-2")?;
    let chap = |user| ["--chap-user", user, "--chap-secret-file", &secret];
    let other = ["--discovery-chap-user", "0bfind", "--discovery-chap-secret-file", &other];
    let name = ["--initiator", "iqn.2026-11.org.lunarsan.test:me"];
    for options in [
        vec![],
        name.to_vec(),
        chap("0x12ab").to_vec(),
        [&chap("0b")[..], &["--no-discovery-chap"]].concat(),
        [&chap("it's")[..], &other].concat(),
        [&other[..], &name].concat(),
    ] {
        let lunar = serve(&scratch, &options)?;
        let lines = lunar.client_lines();
        ensure!(lines.len() >= 2, "{lines:?}");
        let path = std::env::var("PATH").unwrap_or_default();
        let lunar_bin = binary()?;
        let bin = std::path::Path::new(&lunar_bin).parent().map(|p| p.display().to_string());
        let script =
            format!("set -e\nPATH='{}':'{path}'\n{}\n", bin.unwrap_or_default(), lines.join("\n"));
        let printed = run_checked("sh", &["-c", &script], TOOL_MAX)?;
        ensure!(printed.contains(TARGET), "{printed}");
    }
    Ok(())
}

/// Goal: a client with a CHAP user can log in where no CHAP is required: in discovery sessions
/// without CHAP, and at a target without CHAP. libiscsi sends its names twice then.
#[test]
fn a_chap_user_at_a_target_without_chap() -> Result<()> {
    let scratch = Scratch::new("chap-unasked")?;
    let secret_file = scratch.secret("secret", "initiator-secret-1")?;
    let user = "user%initiator-secret-1@";
    let chap = ["--chap-user", "user", "--chap-secret-file", &secret_file, "--no-discovery-chap"];
    for chap in [&chap[..], &[]] {
        let lunar = serve(&scratch, chap)?;
        let portal = format!("iscsi://{user}{}", lunar.address());
        let listed = run_checked("iscsi-ls", &["-s", &portal], TOOL_MAX)?;
        ensure!(listed.contains(TARGET) && listed.contains("Lun:0"), "{listed}");
        run_checked("iscsi-inq", &[&format!("{portal}/{TARGET}/0")], TOOL_MAX)?;
        run_checked("qemu-img", &["info", &format!("{portal}/{TARGET}/0")], TOOL_MAX)?;
    }
    Ok(())
}

/// Goal: a disk in use is locked.
/// Method: a second server and QEMU try to open it.
#[test]
fn a_served_file_is_locked() -> Result<()> {
    let scratch = Scratch::new("locked")?;
    let mut lunar = serve(&scratch, &[])?;
    let disk = scratch.path("disk.img");
    let second = must_fail(&binary()?, &["serve", &disk, "--listen", "127.0.0.1:0"])?;
    ensure!(second.stderr.contains("disk.img"), "{}", second.outputs());
    ensure!(second.stderr.trim_end().lines().count() == 1, "not one line: {}", second.stderr);
    must_fail("qemu-io", &["-f", "raw", "-c", "write 0 512", &disk])?;
    ensure!(lunar.server().is_running()?, "the first server ended");
    lunar.stop(Duration::from_secs(60))?;
    run_checked("qemu-io", &["-f", "raw", "-c", "write 0 512", &disk], TOOL_MAX)?;
    Ok(())
}

/// Goal: a file that QEMU has open is not served.
#[test]
fn a_file_that_qemu_uses_is_not_served() -> Result<()> {
    let scratch = Scratch::new("locked-by-qemu")?;
    let disk = scratch.path("disk.img");
    run_checked("qemu-img", &["create", "-f", "raw", &disk, "8M"], TOOL_MAX)?;
    let hold = format!("driver=file,node-name=disk,filename={disk}");
    let socket = scratch.path("nbd.sock");
    let server = format!("addr.type=unix,addr.path={socket}");
    let export = "type=nbd,id=one,node-name=disk,writable=on";
    let mut qemu = lunar_lab::system::process::ServerProcess::start(
        "qemu-storage-daemon",
        &["--blockdev", &hold, "--nbd-server", &server, "--export", export],
    )?;
    let until = std::time::Instant::now() + Duration::from_secs(60);
    while !std::path::Path::new(&socket).exists() {
        let waiting = std::time::Instant::now() < until && qemu.is_running()?;
        ensure!(waiting, "qemu-storage-daemon does not serve: {}", qemu.log());
        std::thread::sleep(Duration::from_millis(20));
    }
    must_fail(&binary()?, &["serve", &disk, "--listen", "127.0.0.1:0"])?;
    drop(qemu);
    drop(Lunar::serve(&[&disk])?);
    Ok(())
}
