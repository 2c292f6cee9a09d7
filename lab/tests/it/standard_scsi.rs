//! Tests of SCSI that libiscsi 1.19 does not have, against the text of the standards, over real
//! sessions.

use anyhow::{Result, ensure};
use lunar_lab::peers::lunar::Lunar;
use lunar_lab::random::pattern;
use lunar_lab::system::scratch::Scratch;
use lunar_lab::wire::extended_copy::{command, cscd, naa_designation, segment};
use lunar_testkit::raw::{RawClient, RawOutcome};

const TARGET: &str = "iqn.2026-11.org.lunarsan.test:standard";
const CHECK_CONDITION: u8 = 2;
const ILLEGAL_REQUEST: u8 = 5;
const MISCOMPARE: u8 = 0x0e;
const INVALID_FIELD_IN_CDB: u16 = 0x2400;

/// Served disks that are removed with their test.
struct Served {
    lunar: Lunar,
    _scratch: Scratch,
}

impl Served {
    fn new(name: &str, options: &[&str]) -> Result<Self> {
        let scratch = Scratch::new(name)?;
        let disk = scratch.path("disk.img");
        let arguments = [&[&disk, "--size", "64M", "--name", TARGET], options].concat();
        Ok(Self { lunar: Lunar::serve(&arguments)?, _scratch: scratch })
    }

    fn log_in(&self) -> Result<RawClient> {
        RawClient::log_in(self.lunar.address(), TARGET)
    }
}

fn refused_as(outcome: &RawOutcome, key: u8, code: u16) -> Result<()> {
    let refused = outcome.status == CHECK_CONDITION && outcome.sense_codes() == (key, code);
    ensure!(refused, "not {key:02x}h, {code:04x}h: {outcome:02x?}");
    Ok(())
}

fn u32_at(data: &[u8], at: usize) -> u32 {
    data[at..at + 4].iter().fold(0, |number, byte| (number << 8) | u32::from(*byte))
}

fn u16_at(data: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([data[at], data[at + 1]])
}

fn inquiry(page: u8, allocation: u16) -> [u8; 6] {
    let [high, low] = allocation.to_be_bytes();
    [0x12, 1, page, high, low, 0]
}

/// Goal: SPC-4 §7.8.13, "the supported VPD page list shall contain a list of all VPD page codes …
/// in ascending order beginning with page code 00h": other codes are refused, and each page has its
/// own code and length.
/// Method: all 256 codes, on disks of three kinds; and a page cut to each length.
#[test]
fn vpd_pages_in_ascending_order() -> Result<()> {
    for options in [&[][..], &["--no-thin"], &["--removable", "--block-size", "4096"]] {
        let served = Served::new("vpd", options)?;
        let mut raw = served.log_in()?;
        let listed = raw.run(&inquiry(0, 255), 255)?.data[4..].to_vec();
        ensure!(listed[0] == 0 && listed.is_sorted_by(|a, b| a < b), "{listed:02x?}");
        ensure!(listed.contains(&0x80) && listed.contains(&0x83), "{listed:02x?}");
        for code in 0..=255_u8 {
            let outcome = raw.run(&inquiry(code, 4096), 4096)?;
            if listed.contains(&code) {
                let data = &outcome.data;
                ensure!(outcome.status == 0 && data[1] == code, "{code:02x}: {outcome:02x?}");
                ensure!(usize::from(u16_at(data, 2)) == data.len() - 4, "{code:02x}: {data:02x?}");
            } else {
                refused_as(&outcome, ILLEGAL_REQUEST, INVALID_FIELD_IN_CDB)?;
            }
        }
        let whole = raw.run(&inquiry(0, 255), 255)?.data;
        for allocation in 0..whole.len() {
            let cut = raw.run(&inquiry(0, u16::try_from(allocation)?), 255)?.data;
            ensure!(cut == whole[..allocation], "PAGE LENGTH is not cut, SPC-4 §4.3.5.6");
        }
    }
    Ok(())
}

fn report_luns(select: u8, allocation: u32) -> [u8; 12] {
    let [a, b, c, d] = allocation.to_be_bytes();
    [0xa0, 0, select, 0, 0, 0, a, b, c, d, 0, 0]
}

/// Starts a daemon with LUNs 0, 1 and 300 of one target.
fn three_luns(scratch: &Scratch) -> Result<Lunar> {
    let luns = [0, 1, 300].map(|id| {
        let file = scratch.path(&format!("disk-{id}.img"));
        format!("[[target.lun]]\nid = {id}\ndevice = \"file:{file}\"\nsize = \"{}MiB\"\n", id + 1)
    });
    let config = scratch.path("lunar.toml");
    let text = format!(
        "state = \"{}\"\n[listen]\nportals = [\"127.0.0.1:0\"]\n[[target]]\n\
         name = \"{TARGET}\"\n{}",
        scratch.path("state"),
        luns.concat()
    );
    std::fs::write(&config, text)?;
    Lunar::start(&["target", "--config", &config])
}

const LUN_0: u64 = 0;
const LUN_1: u64 = 0x0001 << 48;
/// Flat space addressing: 300 is 12Ch, in 14 bits after 01b. SAM-5 §4.7.7.3.
const LUN_300: u64 = 0x412c << 48;
/// Well known logical unit: C1h, then 01h. SAM-5 §4.7.7.5.1.
const WELL_KNOWN: u64 = 0xc101 << 48;

/// Goal: REPORT LUNS returns the LUNs that SELECT REPORT selects, SPC-4 §6.33; an allocation length
/// under 16 "shall" be refused, and a longer one cuts the list without changing its length field.
/// Method: three units, every SELECT REPORT; sent to each unit and to no unit.
#[test]
fn report_luns_selects() -> Result<()> {
    let scratch = Scratch::new("report-luns")?;
    let lunar = three_luns(&scratch)?;
    let mut raw = RawClient::log_in(lunar.address(), TARGET)?;
    for (select, expected) in [
        (0x00, &[LUN_0, LUN_1, LUN_300][..]),
        (0x01, &[WELL_KNOWN]),
        (0x02, &[LUN_0, LUN_1, LUN_300, WELL_KNOWN]),
        // Only administrative units: there are none.
        (0x10, &[]),
        // Administrative units, and units that belong to no conglomerate.
        (0x11, &[LUN_0, LUN_1, LUN_300]),
    ] {
        for asked in [LUN_0, LUN_300, WELL_KNOWN, 0x0005 << 48] {
            raw.lun = asked.to_be_bytes();
            let RawOutcome { status, data, .. } = raw.run(&report_luns(select, 4096), 4096)?;
            ensure!(status == 0, "{select:02x} of {asked:016x}: status {status}");
            let luns = data[8..].chunks(8).map(|lun| u64::from_be_bytes(lun.try_into().unwrap()));
            let luns: Vec<u64> = luns.collect();
            ensure!(luns == expected, "{select:02x} of {asked:016x}: {luns:016x?}");
            ensure!(u32_at(&data, 0) as usize == expected.len() * 8);
        }
    }
    raw.lun = [0; 8];
    // 12h asks an administrative unit for its subsidiaries; this unit is not an administrative one.
    for select in (0x03..=0x0f).chain(0x12..=0xff) {
        let outcome = raw.run(&report_luns(select, 4096), 4096)?;
        refused_as(&outcome, ILLEGAL_REQUEST, INVALID_FIELD_IN_CDB)?;
    }
    for allocation in 0..16 {
        let outcome = raw.run(&report_luns(0, allocation), 4096)?;
        refused_as(&outcome, ILLEGAL_REQUEST, INVALID_FIELD_IN_CDB)?;
    }
    let cut = raw.run(&report_luns(0, 16), 4096)?;
    ensure!(cut.data.len() == 16 && u32_at(&cut.data, 0) == 24, "{cut:02x?}");
    Ok(())
}

/// Goal: a unit is reached by each form of its number that SAM-5 §4.7 defines, and by no other
/// field.
/// Method: READ CAPACITY (10): each unit has a size of its own.
#[test]
fn lun_addressing_forms() -> Result<()> {
    const NOT_SUPPORTED: u16 = 0x2500;
    let scratch = Scratch::new("lun-forms")?;
    let lunar = three_luns(&scratch)?;
    let mut raw = RawClient::log_in(lunar.address(), TARGET)?;
    let mut last_block = |lun: u64| -> Result<RawOutcome> {
        raw.lun = lun.to_be_bytes();
        raw.run(&[0x25, 0, 0, 0, 0, 0, 0, 0, 0, 0], 8)
    };
    let flat = |number: u64| (0x4000 | number) << 48;
    for (lun, mebibytes) in [(LUN_0, 1), (flat(0), 1), (LUN_1, 2), (flat(1), 2), (LUN_300, 301)] {
        let outcome = last_block(lun)?;
        ensure!(outcome.status == 0, "{lun:016x}: {outcome:02x?}");
        ensure!(u32_at(&outcome.data, 0) == mebibytes * 2048 - 1, "{lun:016x}: {outcome:02x?}");
    }
    // Another bus; logical unit addressing; extended addressing; a second level; no such unit.
    for lun in [0x0100 << 48, 0x8001 << 48, 0xd200 << 48, LUN_1 | 1, 0x0002 << 48, flat(301)] {
        refused_as(&last_block(lun)?, ILLEGAL_REQUEST, NOT_SUPPORTED)?;
    }
    Ok(())
}

/// Goal: REPORT TARGET PORT GROUPS has every portal group, SPC-4 §6.37, and page 83h names the same
/// group and port for the port that a session uses, SPC-4 §7.8.6: otherwise no multipath driver
/// finds its path.
/// Method: three portals in two groups, both forms of the response, cut to each length.
#[test]
fn target_port_groups_and_device_identification_agree() -> Result<()> {
    let listen = ["--listen", "127.0.0.1:0", "--listen", "127.0.0.1:0"];
    let groups = ["--portal-group", "7", "--portal-group", "9", "--portal-group", "7"];
    let served = Served::new("rtpg", &[&listen[..], &groups].concat())?;
    let mut seen = Vec::new();
    for address in served.lunar.addresses(3)? {
        let mut raw = RawClient::log_in(&address, TARGET)?;
        let ask = |format: u8, allocation: u16| {
            let [high, low] = allocation.to_be_bytes();
            [0xa3, format | 0x0a, 0, 0, 0, 0, 0, 0, high, low, 0, 0]
        };
        let plain = raw.run(&ask(0, 1024), 1024)?.data;
        ensure!(u32_at(&plain, 0) as usize == plain.len() - 4, "{plain:02x?}");
        let extended = raw.run(&ask(0x20, 1024), 1024)?.data;
        ensure!(extended[4] >> 4 == 1 && extended[8..] == plain[4..], "{extended:02x?}");
        for allocation in [0, 1, 4, 11] {
            let cut = raw.run(&ask(0, allocation), 1024)?.data;
            ensure!(cut == plain[..usize::from(allocation)], "{cut:02x?}");
        }
        for format in 2..8 {
            let outcome = raw.run(&ask(format << 5, 1024), 1024)?;
            refused_as(&outcome, ILLEGAL_REQUEST, INVALID_FIELD_IN_CDB)?;
        }
        let reported = port_groups(&plain[4..])?;
        let tags: Vec<u16> = reported.iter().map(|(tag, _)| *tag).collect();
        ensure!(tags == [7, 9], "{tags:?}");
        let page = raw.run(&inquiry(0x83, 4096), 4096)?.data;
        let own = (designator(&page, 0x5)?, designator(&page, 0x4)?);
        ensure!(reported.contains(&own), "{own:?} is not among {reported:?}");
        seen.push(own);
    }
    ensure!(seen[0] == seen[2] && seen[0].0 == 7 && seen[1].0 == 9, "{seen:?}");
    ensure!(seen[0].1 != seen[1].1, "two ports of one number: {seen:?}");
    Ok(())
}

/// Returns (group, relative port) of descriptors with one port each, all active/optimized.
fn port_groups(mut data: &[u8]) -> Result<Vec<(u16, u16)>> {
    let mut groups = Vec::new();
    while !data.is_empty() {
        ensure!(data.len() >= 12 && data[7] == 1, "{data:02x?}");
        ensure!(data[0] & 0x0f == 0, "not active/optimized: {data:02x?}");
        ensure!(data[1] & 1 != 0, "a state it is in and does not support: {data:02x?}");
        groups.push((u16_at(data, 2), u16_at(data, 10)));
        data = &data[12..];
    }
    Ok(groups)
}

/// Returns the number in the target port's designator of this type.
fn designator(page: &[u8], kind: u8) -> Result<u16> {
    let mut at = 4;
    while at + 4 <= page.len() {
        let length = usize::from(page[at + 3]);
        if page[at + 1] & 0x3f == 0x10 | kind {
            return Ok(u16_at(page, at + 6));
        }
        at += 4 + length;
    }
    anyhow::bail!("no designator of type {kind}: {page:02x?}")
}

/// Builds COMPARE AND WRITE of some blocks from block 8 on.
fn compare_and_write(blocks: u8) -> [u8; 16] {
    [0x89, 0, 0, 0, 0, 0, 0, 0, 0, 8, 0, 0, 0, blocks, 0, 0]
}

/// Goal: "the offset from the start of the Data-Out Buffer to the first byte of data that was not
/// equal shall be reported in the INFORMATION field" (SBC-3 §5.2), in both formats of sense data,
/// and nothing is written.
/// Method: one byte changed, at the ends of blocks and within; then a matching one.
#[test]
fn a_miscompare_reports_its_offset() -> Result<()> {
    let served = Served::new("miscompare", &[])?;
    let mut raw = served.log_in()?;
    let before = pattern(7, 2048);
    raw.write_blocks(8, &before)?;
    for descriptor_sense in [false, true] {
        // The control mode page with TST 001b and D_SENSE, SPC-4 §7.5.8.
        let d_sense = if descriptor_sense { 0x26 } else { 0x22 };
        let page = [0, 0, 0, 0, 0x0a, 0x0a, d_sense, 0x10, 0, 0, 0, 0, 0, 0, 0, 0];
        let outcome = raw.execute_with(&[0x15, 0x10, 0, 0, 16, 0], &page)?;
        ensure!(outcome.status == 0, "MODE SELECT: {outcome:02x?}");
        for offset in [0, 1, 511, 512, 700, 2047] {
            let mut list = before.clone();
            list[offset] ^= 0x80;
            list.extend(pattern(9, 2048));
            let outcome = raw.execute_with(&compare_and_write(4), &list)?;
            refused_as(&outcome, MISCOMPARE, 0x1d00)?;
            let sense = &outcome.sense;
            let (valid, information) = if descriptor_sense {
                ensure!(sense[0] == 0x72 && sense[8..10] == [0, 0x0a], "{sense:02x?}");
                (sense[10] & 0x80 != 0, u32_at(sense, 16))
            } else {
                (sense[0] == 0xf0, u32_at(sense, 3))
            };
            ensure!(valid && information as usize == offset, "{offset}: {sense:02x?}");
        }
    }
    ensure!(raw.read_blocks(8, 4)? == before, "a miscompare wrote");
    let after = pattern(9, 2048);
    let outcome = raw.execute_with(&compare_and_write(4), &[before, after.clone()].concat())?;
    ensure!(outcome.status == 0 && raw.read_blocks(8, 4)? == after, "{outcome:02x?}");
    Ok(())
}

/// Goal: EXTENDED COPY copies segments of the greatest length that their 16 bits allow, block for
/// block, several in one command, and RECEIVE COPY RESULTS reports them: SPC-4 §6.4, §6.24.
/// Method: two units; two segments of 65,535 blocks and a last one with the rest.
#[test]
fn extended_copy_of_large_segments() -> Result<()> {
    const LONGEST: u16 = 0xffff;
    const REST: u16 = 777;
    const BLOCKS: u64 = 2 * LONGEST as u64 + REST as u64;
    let scratch = Scratch::new("large-copy")?;
    let source = scratch.pattern("source.img", 11, 65 << 20)?;
    let copy = scratch.path("copy.img");
    let lunar = Lunar::serve(&[&source, &copy, "--size", "65M", "--name", TARGET])?;
    let mut raw = RawClient::log_in(lunar.address(), TARGET)?;
    let mut cscds = Vec::new();
    for lun in 0..2 {
        raw.lun[1] = lun;
        cscds.extend(cscd(&naa_designation(&mut raw)?, 512));
    }
    raw.lun = [0; 8];
    let longest = u64::from(LONGEST);
    let segments = [
        segment([0, 1], LONGEST, 0, 8),
        segment([0, 1], LONGEST, longest, 8 + longest),
        segment([0, 1], REST, 2 * longest, 8 + 2 * longest),
    ]
    .concat();
    let (cdb, list) = command(0x5a, &cscds, &segments)?;
    let outcome = raw.execute_with(&cdb, &list)?;
    ensure!(outcome.status == 0, "EXTENDED COPY: {outcome:02x?}");
    let status = raw.run(&[0x84, 0, 0x5a, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0], 256)?.data;
    ensure!(status[4] & 0x7f == 1 && u16_at(&status, 5) == 3, "copy status: {status:02x?}");
    drop(raw);
    lunar.stop(std::time::Duration::from_secs(60))?;
    let (source, copy) = (std::fs::read(source)?, std::fs::read(copy)?);
    let bytes = usize::try_from(BLOCKS * 512)?;
    ensure!(copy[4096..4096 + bytes] == source[..bytes], "the copy is another");
    let untouched = copy[..4096].iter().chain(&copy[4096 + bytes..]);
    ensure!(untouched.into_iter().all(|byte| *byte == 0), "more was written");
    Ok(())
}
