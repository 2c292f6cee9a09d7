//! Our initiator's commands (`lunar discover, info, read, write`), first against tgt, then
//! against our own target.

use anyhow::{Context, Result, ensure};
use lunar_lab::peers::lunar::{Lunar, binary};
use lunar_lab::peers::tgt::Tgt;
use lunar_lab::random::pattern;
use lunar_lab::system::process::{End, run, run_checked, run_for_bytes};
use lunar_lab::system::scratch::Scratch;
use std::time::Duration;

const COMMAND_MAX: Duration = Duration::from_secs(60);
const TARGET: &str = "iqn.2026-11.org.lunarsan.test:initiator";
const DIGESTS: [&str; 4] = [
    "",
    "?header_digest=crc32c",
    "?data_digest=crc32c",
    "?header_digest=crc32c&data_digest=crc32c",
];

fn write(url: &str, offset: usize, data: &[u8], options: &[&str]) -> Result<()> {
    let offset = offset.to_string();
    let arguments = [&["write", url, "--offset", &offset], options].concat();
    let (end, _, stderr, _) = run_for_bytes(&binary()?, &arguments, data.to_vec(), COMMAND_MAX)?;
    let good = matches!(end, End::Exited(status) if status.success());
    ensure!(good, "lunar {}: {end:?}\n{stderr}", arguments.join(" "));
    Ok(())
}

fn read(url: &str, offset: usize, bytes: usize, options: &[&str]) -> Result<Vec<u8>> {
    let (offset, length) = (offset.to_string(), bytes.to_string());
    let arguments = [&["read", url, "--offset", &offset, "--length", &length], options].concat();
    let (end, data, stderr, _) = run_for_bytes(&binary()?, &arguments, Vec::new(), COMMAND_MAX)?;
    let good = matches!(end, End::Exited(status) if status.success());
    ensure!(good, "lunar {}: {end:?}\n{stderr}", arguments.join(" "));
    Ok(data)
}

/// Writes and reads back pieces of odd offsets and sizes, by every choice of digests.
fn copies_with_all_digests(url: &str, options: &[&str]) -> Result<()> {
    for (seed, digests) in (1..).zip(DIGESTS) {
        let url = format!("{url}{digests}");
        for (offset, bytes) in [(0, 512), (1 << 20, 5_000_192), (777, 70_001), (12 << 20, 1)] {
            let data = pattern(seed, bytes);
            write(&url, offset, &data, options)?;
            let back = read(&url, offset, bytes, options)?;
            ensure!(back == data, "{url} at {offset}: {bytes} bytes were read back changed");
        }
        let output =
            run_checked(&binary()?, &[&["info", &url, "--json"], options].concat(), COMMAND_MAX)?;
        let header = digests.contains("header_digest");
        let data = digests.contains("data_digest");
        let document: serde_json::Value = serde_json::from_str(&output).context(output)?;
        for (key, wanted) in [("header_digest", header), ("data_digest", data)] {
            let wanted = if wanted { "crc32c" } else { "none" };
            let negotiated =
                find(&document, key).with_context(|| format!("no {key} in {document}"))?;
            ensure!(negotiated == wanted, "{url}: {key} is {negotiated}");
        }
    }
    Ok(())
}

/// Returns the text under `key`, at any place in the document.
fn find<'a>(document: &'a serde_json::Value, key: &str) -> Option<&'a str> {
    match document {
        serde_json::Value::Object(members) => {
            let here = members.get(key).and_then(serde_json::Value::as_str);
            here.or_else(|| members.values().find_map(|value| find(value, key)))
        }
        serde_json::Value::Array(values) => values.iter().find_map(|value| find(value, key)),
        _ => None,
    }
}

fn disk_file(scratch: &Scratch) -> Result<String> {
    let path = scratch.path("disk.img");
    std::fs::File::create(&path)?.set_len(64 << 20)?;
    Ok(path)
}

/// Goal: our initiator reads back its writes on tgt, with every choice of digests.
#[test]
fn tgt_with_digests() -> Result<()> {
    let scratch = Scratch::new("tgt")?;
    let tgt = Tgt::start(&disk_file(&scratch)?)?;
    tgt.allow_digests()?;
    copies_with_all_digests(&tgt.url(), &[])?;
    let portal = tgt.url().split("/iqn").next().unwrap_or_default().to_owned();
    let listed = run_checked(&binary()?, &["discover", &portal], COMMAND_MAX)?;
    ensure!(listed.contains(Tgt::TARGET), "{listed}");
    Ok(())
}

/// Goal: our initiator authenticates itself to tgt, and reports tgt's refusal of a wrong secret.
#[test]
fn tgt_with_chap() -> Result<()> {
    let scratch = Scratch::new("tgt-chap")?;
    let tgt = Tgt::start(&disk_file(&scratch)?)?;
    tgt.require_chap("user", "a-secret-of-tgt")?;
    let right = scratch.secret("right", "a-secret-of-tgt\n")?;
    let wrong = scratch.secret("wrong", "not-that-secret\n")?;
    let data = pattern(9, 100_000);
    // tgt 1.0.85 takes number 7 for SHA-1; IANA assigned it to SHA-256.
    let md5 = ["--chap-user", "user", "--chap-algorithm", "md5", "--chap-secret-file"];
    let options = [&md5[..], &[&right]].concat();
    write(&tgt.url(), 4096, &data, &options)?;
    ensure!(
        read(&tgt.url(), 4096, data.len(), &options)? == data,
        "the data was read back changed"
    );
    let any = ["--chap-user", "user", "--chap-secret-file"];
    for (options, hint) in [
        ([&md5[..], &[&wrong]].concat(), ""),
        ([&any[..], &[&right]].concat(), "use --chap-algorithm md5"),
    ] {
        let refused =
            run(&binary()?, &[&["info", &tgt.url()], &options[..]].concat(), COMMAND_MAX)?;
        ensure!(refused.end != End::TimedOut && !refused.succeeded(), "{}", refused.outputs());
        ensure!(refused.outputs().contains(hint), "{}", refused.outputs());
    }
    Ok(())
}

/// Goal: our target and initiator work together: digests, mutual CHAP, discovery, and the same
/// bytes in the backing file.
#[test]
fn our_own_target() -> Result<()> {
    let scratch = Scratch::new("own")?;
    let secret = scratch.secret("secret", "the-initiators-secret")?;
    let mutual = scratch.secret("mutual", "the-targets-own-secret")?;
    let disk = scratch.path("disk.img");
    let chap = ["--chap-user", "user", "--chap-secret-file", &secret];
    let proof = ["--mutual-chap-user", "disk", "--mutual-chap-secret-file", &mutual];
    let options = [chap, proof].concat();
    let serve = [&[&disk, "--size", "64M", "--name", TARGET], &options[..]].concat();
    let lunar = Lunar::serve(&serve)?;
    copies_with_all_digests(&lunar.url(TARGET, 0), &options)?;
    for algorithm in ["md5", "sha-1", "sha-256", "sha3-256"] {
        let options = [&options[..], &["--chap-algorithm", algorithm]].concat();
        ensure!(read(&lunar.url(TARGET, 0), 0, 512, &options)?.len() == 512, "{algorithm}");
    }
    let data = pattern(77, 3 << 20);
    write(&lunar.url(TARGET, 0), 30 << 20, &data, &options)?;
    ensure!(std::fs::read(&disk)?[30 << 20..][..data.len()] == data, "the file differs");
    let portal = lunar.portal_url();
    let discover = [&["discover", portal.as_str()], &options[..]].concat();
    ensure!(run_checked(&binary()?, &discover, COMMAND_MAX)?.contains(TARGET), "not discovered");
    let unproven = run(&binary()?, &["discover", &portal], COMMAND_MAX)?;
    ensure!(unproven.end != End::TimedOut && !unproven.succeeded(), "{}", unproven.outputs());
    let refused = run(&binary()?, &["info", &lunar.url(TARGET, 0)], COMMAND_MAX)?;
    ensure!(refused.end != End::TimedOut && !refused.succeeded(), "{}", refused.outputs());
    lunar.stop(Duration::from_secs(60))?;
    Ok(())
}

/// Goal: a disk is moved from one tgt server to another. Both report the same identifiers for their
/// first disks, since tgt derives identifiers from the numbers of target and LUN; a disk is never
/// copied onto itself.
#[test]
fn a_disk_moves_between_two_tgt_servers() -> Result<()> {
    const OTHER: &str = "iqn.2026-11.org.lunarsan.test:other";
    let scratch = Scratch::new("two-tgt")?;
    let (from, to) = (scratch.path("from.img"), scratch.path("to.img"));
    let data = pattern(7, 4 << 20);
    std::fs::write(&from, &data)?;
    std::fs::write(&to, vec![0; 4 << 20])?;
    let (old, new) = (Tgt::start(&from)?, Tgt::start(&to)?);
    new.admin(&["delete", "--mode", "target", "--tid", "1", "--force"])?;
    new.admin(&["new", "--mode", "target", "--tid", "1", "-T", OTHER])?;
    new.admin(&["new", "--mode", "logicalunit", "--tid", "1", "--lun", "1", "-b", &to])?;
    new.admin(&["bind", "--mode", "target", "--tid", "1", "-I", "ALL"])?;
    let url = format!("iscsi://{}/{OTHER}/1", new.address());
    run_checked(&binary()?, &["copy", "--verify", &old.url(), &url], COMMAND_MAX)?;
    ensure!(std::fs::read(&to)? == data, "the copy differs");
    let refused = run(&binary()?, &["copy", &old.url(), &old.url()], COMMAND_MAX)?;
    let is_reported = refused.stderr.contains("the same disk");
    ensure!(!refused.succeeded() && is_reported, "{}", refused.outputs());
    Ok(())
}
