//! A trace of a session, read by tshark, a decoder independent of this project.

use anyhow::{Context, Result, ensure};
use lunar_lab::peers::lunar::{Lunar, binary};
use lunar_lab::system::process::run_checked;
use lunar_lab::system::scratch::Scratch;
use lunar_testkit::raw::{RawClient, RawPdu, opcode};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

const COMMAND_MAX: Duration = Duration::from_secs(60);
const TARGET: &str = "iqn.2026-11.org.lunarsan.test:trace";
const LOGOUT_RESPONSE: u8 = 0x26;
/// READ (10) and WRITE (10) of 128 blocks, 64 KiB.
const READ: [u8; 10] = [0x28, 0, 0, 0, 0, 0, 0, 0, 128, 0];
const WRITE: [u8; 10] = [0x2a, 0, 0, 0, 0, 0, 0, 0, 128, 0];
const BYTES: usize = 64 << 10;

/// A server whose sessions can be traced.
struct Traced {
    lunar: Lunar,
    scratch: Scratch,
    api: String,
}

impl Traced {
    fn start(name: &str) -> Result<Self> {
        let scratch = Scratch::new(name)?;
        let api = format!("unix:{}", scratch.path("api.sock"));
        let lunar = Lunar::serve(&["mem:64M", "mem:8M", "--name", TARGET, "--api", &api])?;
        Ok(Self { lunar, scratch, api })
    }

    /// Begins a trace with these options; it runs when this function returns.
    fn trace(&self, options: &[&str]) -> Result<Running> {
        let file = self.scratch.path("trace.pcapng");
        let tsih = self.lunar.session()?;
        let mut child = Command::new(binary()?)
            .args(["ctl", "--api", &self.api, "trace", &tsih, "--file", &file])
            .args(["--seconds", "60"])
            .args(options)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()?;
        let mut line = String::new();
        let stderr = child.stderr.take().context("no stderr")?;
        BufReader::new(stderr).read_line(&mut line)?;
        let running = Running { child, file, port: self.lunar.address().to_owned() };
        ensure!(line.starts_with("tracing session"), "{line}");
        Ok(running)
    }
}

/// A running trace; dropping it ends it.
struct Running {
    child: Child,
    file: String,
    port: String,
}

impl Running {
    /// Waits for the end of the trace.
    fn end(mut self) -> Result<Trace> {
        let mut output = String::new();
        self.child.stdout.take().context("no stdout")?.read_to_string(&mut output)?;
        ensure!(self.child.wait()?.success(), "{output}");
        let number = |word: &str| -> Result<usize> {
            let before = output.split(word).next().unwrap_or_default();
            let number = before.rsplit([' ', ',']).find(|part| !part.is_empty());
            number.and_then(|number| number.parse().ok()).with_context(|| output.clone())
        };
        let (pdus, dropped) = (number(" PDUs,")?, number(" dropped,")?);
        let mode = std::fs::metadata(&self.file)?.permissions().mode() & 0o777;
        ensure!(mode == 0o600, "the file has mode {mode:o}");
        let port = self.port.rsplit(':').next().unwrap_or_default();
        let decode = format!("tcp.port=={port},iscsi");
        ensure!(
            output.contains(&format!("-d {decode}")),
            "the output contains the tshark command: {output}"
        );
        Ok(Trace { file: self.file.clone(), decode, pdus, dropped })
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill(); // it may have ended
        let _ = self.child.wait();
    }
}

/// A finished trace.
struct Trace {
    file: String,
    decode: String,
    pdus: usize,
    dropped: usize,
}

impl Trace {
    fn tshark(&self, more: &[&str]) -> Result<String> {
        let arguments = [&["-r", &self.file, "-d", &self.decode], more].concat();
        run_checked("tshark", &arguments, COMMAND_MAX)
    }

    /// Returns fields of each PDU, except the artificial one.
    fn fields(&self, names: &[&str]) -> Result<Vec<Vec<String>>> {
        let mut arguments = vec!["-Y", "iscsi && !frame.comment", "-T", "fields"];
        names.iter().for_each(|name| arguments.extend(["-e", name]));
        let output = self.tshark(&arguments)?;
        Ok(output.lines().map(|line| line.split('\t').map(str::to_owned).collect()).collect())
    }

    /// Checks that tshark finds every PDU and its end, and reports nothing unusual about any of
    /// them.
    fn is_clean(&self) -> Result<()> {
        let odd = [
            "_ws.malformed",
            "iscsi.opcode.invalid",
            "(tcp.flags.push == 1 && !iscsi)",
            "(tcp.flags.push == 0 && iscsi)",
            "tcp.analysis.flags",
            "(frame.comment && frame.number > 1)",
            "ip.checksum.status == Bad",
            "tcp.checksum.status == Bad",
        ];
        let checks = ["-o", "ip.check_checksum:TRUE", "-o", "tcp.check_checksum:TRUE"];
        let output = self.tshark(&[&checks[..], &["-Y", &odd.join(" || ")]].concat())?;
        ensure!(output.is_empty(), "{output}");
        // Comments are of a lower severity.
        let output = self.tshark(&["-q", "-z", "expert,chat"])?;
        ensure!(output.trim().is_empty(), "{output}");
        let found = self.fields(&["iscsi.opcode"])?.len();
        ensure!((found, 0) == (self.pdus, self.dropped), "{found} of {} PDUs", self.pdus);
        Ok(())
    }
}

/// Exchanges raw PDUs; returns the opcode and task tag of each.
fn speak(raw: &mut RawClient) -> Result<Vec<(u8, u32)>> {
    let mut spoken = Vec::new();
    let expect = |raw: &mut RawClient, spoken: &mut Vec<_>, opcode| {
        let pdu = raw.expect(opcode)?;
        spoken.push((pdu.opcode(), pdu.u32_at(16)));
        anyhow::Ok(pdu)
    };
    let ping = RawPdu::new(0x40 | opcode::NOP_OUT, 0x80)
        .put_u32(16, raw.new_tag())
        .put_u32(20, u32::MAX)
        .put_u32(24, raw.cmd_sn)
        .put_u32(28, raw.exp_stat_sn)
        .with_data(*b"five!");
    let read = raw.command(0xc0, &READ, BYTES as u32);
    let write = raw.command(0xa0, &WRITE, BYTES as u32);
    for (sent, answer) in [(&ping, opcode::NOP_IN), (&read, opcode::DATA_IN)] {
        raw.send(sent)?;
        spoken.push((sent.opcode(), sent.u32_at(16)));
        expect(raw, &mut spoken, answer)?;
    }
    raw.send(&write)?;
    spoken.push((write.opcode(), write.u32_at(16)));
    let r2t = expect(raw, &mut spoken, opcode::R2T)?;
    for (number, start) in (0..).zip([0, BYTES / 2]) {
        let data = RawPdu::new(opcode::DATA_OUT, if start > 0 { 0x80 } else { 0 })
            .put(8, &r2t.header[8..16])
            .put_u32(16, r2t.u32_at(16))
            .put(20, &r2t.header[20..24])
            .put_u32(36, number)
            .put_u32(40, start as u32)
            .with_data(vec![0x5a; BYTES / 2]);
        raw.send(&data)?;
        spoken.push((data.opcode(), data.u32_at(16)));
    }
    expect(raw, &mut spoken, opcode::SCSI_RESPONSE)?;
    let logout = RawPdu::new(0x40 | opcode::LOGOUT, 0x80)
        .put_u32(16, raw.new_tag())
        .put_u32(24, raw.cmd_sn)
        .put_u32(28, raw.exp_stat_sn);
    raw.send(&logout)?;
    spoken.push((logout.opcode(), logout.u32_at(16)));
    expect(raw, &mut spoken, LOGOUT_RESPONSE)?;
    Ok(spoken)
}

/// Goal: tshark finds the PDUs that were sent and received, each with its opcode, tag and LUN, in
/// this order; if only headers are traced, it finds no whole PDU.
#[test]
fn tshark_decodes_the_trace() -> Result<()> {
    for (snaplen, lun) in [(None, 0), (None, 1), (Some("48"), 0)] {
        let traced = Traced::start("trace-said")?;
        let mut raw = RawClient::log_in(traced.lunar.address(), TARGET)?;
        raw.lun[1] = lun;
        raw.execute(&[0; 6], 0)?; // the unit attention after power on
        let options: Vec<&str> = snaplen.iter().flat_map(|bytes| ["--snaplen", bytes]).collect();
        let running = traced.trace(&options)?;
        let spoken = speak(&mut raw)?;
        let trace = running.end()?;
        let fields = trace.fields(&["iscsi.opcode", "iscsi.initiatortasktag"])?;
        let wanted: Vec<_> = spoken
            .iter()
            .map(|(opcode, tag)| vec![format!("0x{opcode:02x}"), format!("0x{tag:08x}")])
            .collect();
        ensure!(fields == wanted, "{snaplen:?}: {fields:?} instead of {wanted:?}");
        if snaplen.is_none() {
            trace.is_clean()?;
            let luns =
                trace.tshark(&["-Y", "iscsi.opcode == 1", "-T", "fields", "-e", "scsi.lun"])?;
            let wanted = format!("0x{lun:04x}");
            ensure!(luns.lines().all(|line| line.split(',').all(|one| one == wanted)), "{luns}");
            let ping = trace.tshark(&["-Y", "iscsi.pingdata == \"five!\" && !frame.comment"])?;
            ensure!(ping.lines().count() == 2, "NOP-Out and NOP-In: {ping}");
        } else {
            let bytes = std::fs::read(&trace.file)?;
            ensure!(!bytes.windows(8).any(|piece| *piece == [0x5a; 8]), "users' data are there");
        }
        traced.lunar.stop(COMMAND_MAX)?;
    }
    Ok(())
}

/// Goal: PDUs far longer than a packet are reassembled, with digests that tshark finds right.
/// Method: our initiator writes 5 MB with each choice of digests.
#[test]
fn tshark_finds_digests_right() -> Result<()> {
    for digests in ["", "?data_digest=crc32c", "?header_digest=crc32c&data_digest=crc32c"] {
        let traced = Traced::start("trace-digests")?;
        let mut writer = Command::new(binary()?)
            .args(["write", &format!("{}{digests}", traced.lunar.url(TARGET, 0))])
            .stdin(Stdio::piped())
            .spawn()?;
        let mut stdin = writer.stdin.take().context("no stdin")?;
        let running = traced.trace(&[])?;
        stdin.write_all(&lunar_lab::random::pattern(1, 5_000_001))?;
        drop(stdin);
        ensure!(writer.wait()?.success(), "lunar write");
        let trace = running.end()?;
        trace.is_clean()?;
        let fields = trace.fields(&["iscsi.opcode", "iscsi.datasegmentlength"])?;
        for opcode in ["0x01", "0x05", "0x21", "0x25", "0x31", "0x06", "0x26"] {
            ensure!(fields.iter().any(|pdu| pdu[0] == opcode), "no {opcode}: {fields:?}");
        }
        let long = fields.iter().filter(|pdu| pdu[1].parse::<usize>().is_ok_and(|n| n > 65_536));
        ensure!(long.count() > 5, "PDUs longer than a packet: {fields:?}");
        let output = trace.tshark(&["-V", "-Y", "iscsi && !frame.comment"])?;
        let count = |words: &str| output.matches(words).count();
        let with_data = fields.iter().filter(|pdu| pdu[1] != "0").count();
        let good = output.lines().filter(|line| line.contains("Digest: 0x"));
        ensure!(good.clone().all(|line| line.contains("(Good CRC32)")), "a digest is wrong");
        let wanted_header = if digests.contains("header") { fields.len() } else { 0 };
        let wanted_data = if digests.contains("data") { with_data } else { 0 };
        let found = (count("HeaderDigest: 0x"), count("DataDigest: 0x"));
        ensure!(found == (wanted_header, wanted_data), "{digests}: {found:?}");
        traced.lunar.stop(COMMAND_MAX)?;
    }
    Ok(())
}
