//! ECHO commands that return their data as it arrives.

use super::*;
use futures_util::future::join_all;
use lunar_block::BufferPool;
use lunar_iscsi::text::Digest;
use lunar_target::{DATA_OUT_RANGE_BYTES_MAX, DATA_OUT_TASK_BYTES_MAX};

const MIB: u32 = 1 << 20;
const BUSY: u8 = 8;
const CONFLICT: u8 = 0x18;
/// The most unsolicited data of a command.
const FIRST_BURST_BYTES: usize = 256 << 10;
/// The most memory of the data-out of a command: each range is charged, and each segment has a
/// buffer.
const MEMORY_MAX: usize = {
    let ranges = (DATA_OUT_TASK_BYTES_MAX / DATA_OUT_RANGE_BYTES_MAX) as usize;
    // A page for each segment of at least 64 KiB.
    DATA_OUT_TASK_BYTES_MAX as usize + FIRST_BURST_BYTES + (4 * ranges + 5) * 4096
};

fn stream_of(bytes: u32) -> Echo {
    Echo { stream: true, ..Echo::of(bytes) }
}

impl EchoRig {
    fn data_out_bytes(&self) -> usize {
        let usage = self.rig.server().buffers().budget().usage();
        usage.by_kind[MemoryKind::DataOut as usize]
    }
}

/// Goal: data of any length comes back, changed or not, and a command holds no more memory than its
/// limit; the bytes are counted once.
#[test]
fn data_comes_back_as_it_arrives() {
    let rig = EchoRig::new();
    let lengths = [0, 1, 511, 8192, 65_537, 300_000, 4 * MIB + 3];
    block_on(async {
        let initiator = rig.connect().await;
        for bytes in lengths {
            for key in [0, 0xa5] {
                let echo = Echo { key, ..stream_of(bytes) };
                let sent = pattern(bytes as usize);
                let reply = execute(&initiator, echo.cdb(), &sent, bytes).await;
                assert_eq!(reply.result.status, GOOD, "{bytes}");
                let expected: Vec<u8> = sent.iter().map(|byte| byte ^ key).collect();
                assert!(reply.data_in == expected, "{bytes}");
                let residuals = (reply.result.residual, reply.result.read_residual);
                assert_eq!(residuals, (Residual::None, Residual::None), "{bytes}");
            }
        }
        drop(initiator);
    });
    rig.rig.wait_until_alone();
    let peak = rig.state().data_out_most.load(SeqCst);
    assert!((MIB as usize..=MEMORY_MAX).contains(&peak), "{peak} bytes");
    assert_eq!(rig.data_out_bytes(), 0);
    let statistics = rig.rig.server().observer().statistics().unwrap();
    let echoes = &statistics.targets[0].luns[1].operations[OperationClass::Write as usize];
    let all = 2 * lengths.iter().map(|bytes| u64::from(*bytes)).sum::<u64>();
    assert_eq!((echoes.received_bytes, echoes.sent_bytes, echoes.in_flight), (all, all, 0));
    rig.end();
}

/// Goal: lengths that differ become residuals, and a command may fail after its data, as without
/// streams.
#[test]
fn lengths_that_differ_become_residuals_of_streams() {
    let rig = EchoRig::new();
    block_on(async {
        use Residual::{None, Overflow, Underflow};
        let initiator = rig.connect().await;
        let cases = [
            ((1000, 1000), (1200, 1000), (Underflow(200), None), 1000),
            ((1000, 1000), (700, 700), (Overflow(300), None), 700),
            ((1000, 400), (1000, 1000), (None, Underflow(600)), 400),
            ((1000, 1000), (1000, 100), (None, Overflow(900)), 100),
            ((0, 0), (64, 64), (Underflow(64), Underflow(64)), 0),
        ];
        for ((data_out_bytes, allocation_bytes), (sent, room), residuals, received) in cases {
            let echo = Echo { data_out_bytes, allocation_bytes, ..stream_of(0) };
            let data = pattern(sent);
            let reply = execute(&initiator, echo.cdb(), &data, room).await;
            let case = format!("{echo:?} with {sent} bytes, and room for {room}");
            assert_eq!(reply.result.status, GOOD, "{case}");
            assert_eq!((reply.result.residual, reply.result.read_residual), residuals, "{case}");
            assert_eq!(reply.data_in, data[..received], "{case}");
        }
        let echo = Echo { fail: true, ..stream_of(100_000) };
        let reply = execute(&initiator, echo.cdb(), &pattern(100_000), 100_000).await;
        assert_eq!((sense_code(&reply), reply.data_in.len()), (FAILED.code, 100_000));
        drop(initiator);
    });
    rig.end();
}

/// Goal: several commands at once each get their own data, within their limits.
#[test]
fn several_streams_at_once() {
    const COMMANDS: usize = 6;
    let rig = EchoRig::new();
    block_on(async {
        let initiator = rig.connect().await;
        let sent = pattern(4 * MIB as usize);
        let commands = (0..COMMANDS).map(|number| {
            let echo = Echo { key: number as u8, ..stream_of(4 * MIB) };
            execute(&initiator, echo.cdb(), &sent, 4 * MIB)
        });
        for (number, reply) in join_all(commands).await.into_iter().enumerate() {
            assert_eq!(reply.result.status, GOOD);
            let mut bytes = reply.data_in.iter().zip(&sent);
            assert!(bytes.all(|(got, sent)| *got == sent ^ number as u8));
            assert_eq!(reply.data_in.len(), sent.len());
        }
        drop(initiator);
    });
    let peak = rig.state().data_out_most.load(SeqCst);
    // One more command may be arriving: it has a buffer for all its data until it is checked.
    let arriving = BufferPool::charged_bytes(4 * MIB as usize);
    assert!(peak <= COMMANDS * MEMORY_MAX + arriving, "{peak} bytes");
    rig.end();
}

/// Goal: a piece that is one segment comes with the digest that was checked.
#[test]
fn pieces_come_with_their_digests() {
    let rig = EchoRig::new();
    block_on(async {
        let url = format!("iscsi://{}/{TARGET}/{LUN}", rig.rig.address).parse().unwrap();
        let mut options = SessionOptions::new("iqn.2026-11.org.lunarsan.test:echo");
        options.data_digest = vec![Digest::Crc32c];
        let initiator = Initiator::connect(&url, &options).await.unwrap();
        assert_eq!(attentions(&initiator).await, [POWER_ON]);
        let sent = pattern(2 * MIB as usize);
        let reply = execute(&initiator, stream_of(2 * MIB).cdb(), &sent, 2 * MIB).await;
        assert!(reply.data_in == sent);
        drop(initiator);
    });
    let count = |counter: &std::sync::atomic::AtomicUsize| counter.load(SeqCst);
    let (pieces, digests) = (count(&rig.state().pieces), count(&rig.state().digests));
    assert!(digests > 0 && digests + 1 >= pieces, "{digests} of {pieces}, all but the first");
    rig.end();
}

/// A stream of the raw client, and what came back.
struct RawStream {
    tag: u32,
    /// Data that was sent.
    sent_bytes: u32,
    data_in: Vec<u8>,
    /// The status, once it has come.
    status: Option<u8>,
    /// R2Ts that were not answered: tag, offset and length.
    requests: Vec<(u32, u32, u32)>,
    sense: Vec<u8>,
}

impl RawStream {
    /// Sends the command, without data.
    fn begin(raw: &mut RawClient, echo: Echo) -> Self {
        let cdb = echo.cdb();
        let mut pdu = raw.command(0xe1, &cdb[..16], echo.data_out_bytes);
        pdu.segments = ((CDB_BYTES - 15) as u16).to_be_bytes().to_vec();
        pdu.segments.extend([1, 0]);
        pdu.segments.extend(&cdb[16..]);
        pdu.segments.extend([0, 5, 2, 0]);
        pdu.segments.extend(echo.allocation_bytes.to_be_bytes());
        raw.send(&pdu).unwrap();
        let (tag, sent_bytes, data_in, sense) = (pdu.u32_at(16), 0, Vec::new(), Vec::new());
        Self { tag, sent_bytes, data_in, status: None, requests: Vec::new(), sense }
    }

    /// Takes a PDU of the command.
    fn take(&mut self, pdu: RawPdu) {
        match pdu.opcode() {
            opcode::DATA_IN => {
                assert_eq!(pdu.u32_at(40) as usize, self.data_in.len());
                self.data_in.extend(&pdu.data);
                if pdu.header[1] & 1 != 0 {
                    self.status = Some(pdu.header[3]);
                }
            }
            opcode::R2T => self.requests.push((pdu.u32_at(20), pdu.u32_at(40), pdu.u32_at(44))),
            opcode::SCSI_RESPONSE => {
                self.status = Some(pdu.header[3]);
                self.sense = pdu.data;
            }
            other => panic!("{other:#x}"),
        }
    }

    /// Waits for the next PDU of the command.
    fn receive(&mut self, raw: &mut RawClient) {
        let pdu = answer_to(raw, self.tag);
        self.take(pdu);
    }

    /// Takes the PDUs that come before the answer to another command.
    fn receive_all(&mut self, raw: &mut RawClient) {
        let pdu = raw.command(0x80, &[0; 6], 0);
        raw.send(&pdu).unwrap();
        loop {
            let RawAnswer::Pdu(answer) = raw.answer(TEST_TIMEOUT).unwrap() else { panic!() };
            if answer.u32_at(24) != u32::MAX && answer.opcode() != opcode::R2T {
                raw.exp_stat_sn = answer.u32_at(24).wrapping_add(1);
            }
            if answer.u32_at(16) == pdu.u32_at(16) {
                return assert_eq!(answer.header[3], GOOD);
            }
            self.take(answer);
        }
    }

    /// Answers the oldest R2T in segments of this length.
    fn answer(&mut self, raw: &mut RawClient, segment_bytes: u32) {
        let (transfer_tag, start, bytes) = self.requests.remove(0);
        let all = pattern((start + bytes) as usize);
        let mut at = start;
        for number in 0.. {
            let end = (at + segment_bytes).min(start + bytes);
            let is_last = end == start + bytes;
            raw.send(&self.data_out(raw, transfer_tag, number, (at, end), is_last, &all)).unwrap();
            self.sent_bytes += end - at;
            at = end;
            if is_last {
                return;
            }
        }
    }

    fn data_out(
        &self,
        raw: &RawClient,
        transfer_tag: u32,
        number: u32,
        (at, end): (u32, u32),
        is_last: bool,
        all: &[u8],
    ) -> RawPdu {
        RawPdu::new(opcode::DATA_OUT, if is_last { 0x80 } else { 0 })
            .put(8, &raw.lun)
            .put_u32(16, self.tag)
            .put_u32(20, transfer_tag)
            .put_u32(28, raw.exp_stat_sn)
            .put_u32(36, number)
            .put_u32(40, at)
            .with_data(&all[at as usize..end as usize])
    }

    /// Goes on to the end; returns the status.
    fn run(&mut self, raw: &mut RawClient, segment_bytes: u32) -> u8 {
        loop {
            if let Some(status) = self.status {
                return status;
            }
            match self.requests.is_empty() {
                true => self.receive(raw),
                false => self.answer(raw, segment_bytes),
            }
        }
    }

    /// Goes on until the command, which is held, requests nothing more.
    fn run_until_it_stops(&mut self, raw: &mut RawClient) {
        loop {
            self.receive_all(raw);
            if self.requests.is_empty() {
                return;
            }
            self.answer(raw, 65_536);
        }
    }
}

/// Goal: the first data comes back before the rest has been sent, in segments of any length.
#[test]
fn the_first_data_comes_back_first() {
    let rig = EchoRig::new();
    let mut raw = rig.log_in(1);
    for segment_bytes in [262_144, 65_536, 8192, 5000, 1000] {
        let mut stream = RawStream::begin(&mut raw, stream_of(4 * MIB));
        while stream.data_in.len() < 100_000 {
            if !stream.requests.is_empty() && stream.sent_bytes == 0 {
                stream.answer(&mut raw, segment_bytes);
            }
            stream.receive(&mut raw);
        }
        assert_eq!(stream.sent_bytes, DATA_OUT_RANGE_BYTES_MAX, "one of 16 ranges");
        assert_eq!(stream.run(&mut raw, segment_bytes), GOOD);
        assert!(stream.data_in == pattern(4 * MIB as usize), "{segment_bytes}");
        assert_eq!(stream.sent_bytes, 4 * MIB);
    }
    log_out(raw);
    rig.end();
}

/// Goal: while a unit keeps its first piece, the connection requests no more than the limit, other
/// commands continue, and the command continues when the unit does.
#[test]
fn a_slow_unit_is_sent_no_more_than_the_limit() {
    let rig = EchoRig::new();
    let mut raw = rig.log_in(1);
    let mut stream = RawStream::begin(&mut raw, Echo { hold: true, ..stream_of(4 * MIB) });
    stream.run_until_it_stops(&mut raw);
    assert_eq!(stream.sent_bytes, DATA_OUT_TASK_BYTES_MAX);
    let held = rig.data_out_bytes();
    assert!((MIB as usize..=MEMORY_MAX).contains(&held), "{held} bytes");
    assert_eq!((stream.data_in.len(), stream.status), (0, None));
    rig.state().release();
    assert_eq!(stream.run(&mut raw, 65_536), GOOD);
    assert!(stream.data_in == pattern(4 * MIB as usize));
    assert_eq!(rig.data_out_bytes(), 0);
    log_out(raw);
    rig.end();
}

/// Goal: an abort, a reset and a lost connection end the reader, whether the unit keeps data or
/// waits for some, and nothing is held afterwards.
#[test]
fn streams_that_are_aborted_hold_nothing() {
    let rig = EchoRig::new();
    let (mut raw, mut other) = (rig.log_in(1), rig.log_in(2));
    let held = Echo { hold: true, ..stream_of(4 * MIB) };
    let mut stream = RawStream::begin(&mut raw, held);
    stream.run_until_it_stops(&mut raw);
    assert_eq!(manage(&mut raw, ABORT_TASK, stream.tag), 0, "FUNCTION COMPLETE");
    assert_eq!((rig.state().aborted.load(SeqCst), rig.data_out_bytes()), (1, 0));

    let mut stream = RawStream::begin(&mut raw, held);
    stream.run_until_it_stops(&mut raw);
    assert_eq!(reset(&mut other), 0, "FUNCTION COMPLETE");
    assert_eq!((rig.state().aborted.load(SeqCst), rig.data_out_bytes()), (2, 0));
    assert_eq!(codes(&mut raw), [RESET_BY_FUNCTION]);

    // The unit waits for data that does not come, in the middle of a segment.
    let mut stream = RawStream::begin(&mut raw, stream_of(4 * MIB));
    stream.receive_all(&mut raw);
    let (transfer_tag, start, bytes) = stream.requests.remove(0);
    let pdu = stream.data_out(&raw, transfer_tag, 0, (start, bytes), true, &pattern(MIB as usize));
    raw.send_bytes(&pdu.bytes()[..100_000]).unwrap();
    assert!(rig.data_out_bytes() > 0);
    drop(raw);
    rig.rig.wait_for("it is aborted", |_| rig.state().aborted.load(SeqCst) == 3);
    rig.rig.wait_for("nothing is held", |_| rig.data_out_bytes() == 0);
    log_out(other);
    rig.end();
}

/// Goal: data that is withheld for too long ends the reader with its connection.
#[test]
fn late_data_ends_the_stream() {
    let rig = EchoRig::with(|options| options.limits.data_out_seconds = 1);
    let mut raw = rig.log_in(1);
    let mut stream = RawStream::begin(&mut raw, stream_of(MIB));
    stream.receive_all(&mut raw);
    assert!(!stream.requests.is_empty() && rig.data_out_bytes() > 0);
    raw.wait_until_closed(TEST_TIMEOUT).unwrap();
    rig.rig.wait_for("it is aborted", |_| rig.state().aborted.load(SeqCst) == 1);
    rig.rig.wait_for("nothing is held", |_| rig.data_out_bytes() == 0);
    rig.end();
}

/// Goal: a transfer that fails ends the reader, and the command with the sense data of the fault.
#[test]
fn a_transfer_that_fails_ends_the_stream() {
    let rig = EchoRig::new();
    let mut raw = rig.log_in(1);
    let mut stream = RawStream::begin(&mut raw, stream_of(MIB));
    stream.receive_all(&mut raw);
    let (transfer_tag, start, bytes) = stream.requests.remove(0);
    let all = pattern(MIB as usize);
    let end = start + bytes;
    raw.send(&stream.data_out(&raw, transfer_tag, 0, (start, 65_536), false, &all)).unwrap();
    // A DataSN that shows that a PDU is missing.
    raw.send(&stream.data_out(&raw, transfer_tag, 2, (65_536, end), true, &all)).unwrap();
    assert_eq!(stream.run(&mut raw, MIB), CHECK_CONDITION);
    assert_eq!(stream.sense[14..16], [0x47, 0x05]);
    assert_eq!((rig.state().failed.load(SeqCst), rig.data_out_bytes()), (1, 0));
    log_out(raw);
    rig.end();
}

/// Goal: the streams of a connection share its limit; a command that gets nothing in time ends
/// BUSY, and the other one continues.
#[test]
fn streams_share_the_limit_of_their_connection() {
    const LIMIT: u32 = 64 << 10;
    let rig = EchoRig::with(|options| {
        options.limits.data_out_bytes = LIMIT as usize;
        options.limits.memory_wait_seconds = 1;
    });
    let mut raw = rig.log_in(1);
    let mut first = RawStream::begin(&mut raw, Echo { hold: true, ..stream_of(MIB) });
    first.run_until_it_stops(&mut raw);
    assert_eq!(first.sent_bytes, LIMIT);
    let mut second = RawStream::begin(&mut raw, stream_of(MIB));
    assert_eq!(second.run(&mut raw, LIMIT), BUSY);
    assert_eq!(second.sent_bytes, 0);
    let held = rig.data_out_bytes();
    assert!(held <= 2 * BufferPool::charged_bytes(LIMIT as usize), "{held} bytes");
    rig.state().release();
    assert_eq!(first.run(&mut raw, LIMIT), GOOD);
    assert!(first.data_in == pattern(MIB as usize));
    log_out(raw);
    rig.end();
}

/// Goal: a change of the unit between a command and its first data counts.
#[test]
fn a_stream_is_checked_again_with_its_first_data() {
    let rig = EchoRig::new();
    let mut raw = rig.log_in(1);
    let mut stream = RawStream::begin(&mut raw, stream_of(MIB));
    stream.receive_all(&mut raw);
    rig.state().refuses.store(true, SeqCst);
    assert_eq!(stream.run(&mut raw, 65_536), CONFLICT);
    assert_eq!((stream.data_in.len(), rig.state().pieces.load(SeqCst)), (0, 0));
    rig.state().refuses.store(false, SeqCst);
    assert_eq!(RawStream::begin(&mut raw, stream_of(MIB)).run(&mut raw, 65_536), GOOD);
    log_out(raw);
    rig.end();
}
