//! Mirrors of two files: creation, configuration, and their members after a stop.

use crate::power_cut::rig::Mode;
use anyhow::{Context, Result, bail, ensure};
use lunar_lab::peers::lunar::binary;
use lunar_lab::system::process::{run, run_checked};
use lunar_pool::format::{
    DATA_OFFSET_BYTES, FoundLabel, INTENT_PAGE_BYTES, IntentPage, LABEL_BYTES, Label, MemberLayout,
    RegionSet,
};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

/// Names of the members.
pub const MEMBERS: [&str; 2] = ["a.img", "b.img"];

/// Bytes that a member has beside its data.
const OVERHEAD_BYTES: u64 = DATA_OFFSET_BYTES + LABEL_BYTES as u64;

const TOOL_MAX: Duration = Duration::from_secs(20);
const HEALTHY_MAX: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(10);

/// Creates a mirror `p` with this many blocks.
pub fn create(members: &[String; 2], mode: Mode, blocks: usize) -> Result<()> {
    let size = member_bytes(mode, blocks).to_string();
    let block = mode.block_bytes.to_string();
    let what = ["pool", "create", "p", "--kind", "mirror", "--size", &size, "--block-size", &block];
    let [one, other] = members.each_ref().map(String::as_str);
    run_checked(&binary()?, &[&what[..], &[one, other]].concat(), TOOL_MAX)?;
    Ok(())
}

fn member_bytes(mode: Mode, blocks: usize) -> u64 {
    (blocks * mode.block_bytes) as u64 + OVERHEAD_BYTES
}

/// Makes a file that can become a member.
pub fn make_file(path: &str, mode: Mode, blocks: usize) -> Result<()> {
    let file = File::create(path)?;
    file.set_len(member_bytes(mode, blocks))?;
    Ok(file.sync_all()?)
}

/// Replaces a member. Returns false if that is refused: the member has the only current data, or
/// the disk has no power any more.
pub fn replace(api: &str, slot: u64, path: &str) -> Result<bool> {
    let what = ["pool", "replace", "p", &slot.to_string(), path, "--api", api];
    Ok(run(&binary()?, &what, TOOL_MAX)?.succeeded())
}

/// Returns the devices of the members, once all are current.
pub fn healthy_members(api: &str) -> Result<[String; 2]> {
    let document = until_healthy(api)?;
    let device = |slot: usize| {
        let device = document["pools"][0]["members"][slot]["device"].as_str();
        device.map(|device| device.trim_start_matches("file:").to_owned())
    };
    Ok([device(0).context("member 0")?, device(1).context("member 1")?])
}

/// Returns the table of the pool in a configuration. The server starts without a member whose
/// content a power cut has left behind.
pub fn table(members: &[String], options: &str) -> String {
    format!("[[pool]]\nname = \"p\"\nmembers = {members:?}\n{options}")
}

/// Waits until all members are current. Returns the status.
pub fn until_healthy(api: &str) -> Result<serde_json::Value> {
    let until = Instant::now() + HEALTHY_MAX;
    loop {
        let status =
            run_checked(&binary()?, &["pool", "status", "--json", "--api", api], TOOL_MAX)?;
        let document: serde_json::Value = serde_json::from_str(&status)?;
        if document["pools"][0]["health"] == "healthy" {
            return Ok(document);
        }
        ensure!(Instant::now() < until, "the mirror does not become healthy: {document:#}");
        std::thread::sleep(POLL);
    }
}

/// Checks that the members of a stopped mirror have the same data.
pub fn check_equal(members: &[String; 2]) -> Result<()> {
    let [one, other] = members.each_ref().map(std::fs::read);
    let (one, other) = (one?, other?);
    let data = DATA_OFFSET_BYTES as usize..one.len() - LABEL_BYTES;
    let first = data.clone().find(|at| one[*at] != other[*at]);
    ensure!(one.len() == other.len(), "the members have different lengths");
    match first {
        None => Ok(()),
        Some(at) => bail!("the members differ at byte {} of their data", at - data.start),
    }
}

/// Removes all marks from the members of a mirror that is not open.
pub fn empty_intent_log(members: &[String; 2]) -> Result<()> {
    for path in members {
        let file = File::options().read(true).write(true).open(path)?;
        let mut label = [0; LABEL_BYTES];
        file.read_exact_at(&mut label, 0)?;
        let label = match Label::decode(&label) {
            FoundLabel::Valid(label) => label,
            _ => continue,
        };
        let (len, block) = (file.metadata()?.len(), label.block_bytes);
        let layout = MemberLayout { block_bytes: block, block_count: len / u64::from(block) };
        let regions = label.regions();
        let mut pages = Vec::new();
        for slot in 0..2 {
            let mut page = [0; INTENT_PAGE_BYTES];
            file.read_exact_at(&mut page, layout.intent_page(slot) * u64::from(block))?;
            pages.extend(IntentPage::decode(&page, label.pool, regions));
        }
        let last = pages.iter().map(|page| page.sequence).max().context("an intent page")?;
        let (pool, sequence) = (label.pool, last + 1);
        let empty = IntentPage { pool, sequence, marked: RegionSet::new(regions) };
        let at = layout.intent_page(sequence) * u64::from(block);
        file.write_all_at(&empty.encode(), at)?;
    }
    Ok(())
}
