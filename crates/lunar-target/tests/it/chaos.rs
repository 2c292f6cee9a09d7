//! Random tests by seed: sessions of several connections read, write, reset, reserve, abort,
//! replace each other and break off at any point, on a disk that is slow, fails and hangs.

use crate::common::*;
use lunar_block::{
    BlockDevice, BlockRange, BoxFuture, Buffer, Effect, Error, ErrorKind, Fault, FaultOperation,
    Geometry, MemoryDevice,
};
use lunar_testkit::raw::{RawAnswer, RawClient, RawPdu, opcode};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Number of steps of each initiator.
const STEPS: u64 = 300;

/// A random number generator, splitmix64.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % end
    }
}

/// One initiator, with a session of one or two connections.
struct ChaosInitiator<'a> {
    rig: &'a Rig,
    number: u32,
    random: Random,
    session: Vec<RawClient>,
    tsih: u16,
    next_tag: u32,
    logins: u32,
    answers: u32,
}

impl ChaosInitiator<'_> {
    fn play(&mut self) {
        for _ in 0..STEPS {
            if self.session.is_empty() && !self.begin() {
                continue;
            }
            if self.step().is_none() {
                self.session.clear();
            }
            std::thread::sleep(Duration::from_millis(self.random.below(4)));
        }
    }

    fn connect(&mut self, tsih: u16, cid: u16) -> Option<RawClient> {
        let mut raw = RawClient::connect(&self.rig.address).unwrap();
        raw.cmd_sn = self.session.first().map_or(1, |raw| raw.cmd_sn);
        let text = format!(
            "InitiatorName=iqn.2026-11.org.lunarsan.test:raw-{}\0TargetName={TARGET}\0\
             MaxConnections=4\0InitialR2T=No\0",
            self.number
        );
        let login = raw.login(text.as_bytes());
        let login = login.put(14, &tsih.to_be_bytes()).put(20, &cid.to_be_bytes());
        raw.send(&login).ok()?;
        match raw.answer(Duration::from_secs(12)).unwrap() {
            RawAnswer::Pdu(pdu) if pdu.header[36..38] == [0, 0] => {
                raw.exp_stat_sn = pdu.u32_at(24).wrapping_add(1);
                self.tsih = u16::from_be_bytes([pdu.header[14], pdu.header[15]]);
                self.logins += 1;
                Some(raw)
            }
            RawAnswer::Pdu(_) | RawAnswer::Closed => None,
            RawAnswer::TimedOut => panic!("the server did not answer the login in time"),
        }
    }

    fn begin(&mut self) -> bool {
        let first = self.connect(0, 0);
        self.session.extend(first);
        if let Some(raw) = self.session.first_mut() {
            let ready = raw.command(0x80, &[0; 6], 0); // takes the unit attention of a new session
            raw.send(&ready).unwrap();
        }
        if !self.session.is_empty() && self.random.below(2) == 0 {
            let second = self.connect(self.tsih, 1);
            self.session.extend(second);
        }
        !self.session.is_empty()
    }

    /// Makes one random step; returns `None` when the session is over.
    fn step(&mut self) -> Option<()> {
        let what = self.random.below(100);
        match what {
            0 => return None, // every connection breaks off
            1 => return self.replace(),
            2 => {
                let other = self.random.below(2) as u16;
                let raw = self.connect(self.tsih, other)?;
                self.session.insert(0, raw);
                self.session.truncate(2);
                return Some(());
            }
            _ => {}
        }
        let at = self.random.below(self.session.len() as u64) as usize;
        let pdu = self.pdu(3 + what % 21);
        let raw = &mut self.session[at];
        let bytes = pdu.bytes();
        let cut = (self.random.below(80) == 0).then(|| self.random.below(bytes.len() as u64));
        raw.send_bytes(&bytes[..cut.map_or(bytes.len(), |cut| cut as usize)]).ok()?;
        if cut.is_some() {
            return None;
        }
        self.listen(at)
    }

    /// Reinstates the session while the old one is in use.
    fn replace(&mut self) -> Option<()> {
        let old = std::mem::take(&mut self.session);
        let new = self.connect(0, 0);
        drop(old);
        self.session.extend(new);
        Some(())
    }

    fn pdu(&mut self, what: u64) -> RawPdu {
        self.next_tag += 1;
        let tag = self.next_tag;
        let lba = self.random.below(64) as u32;
        let blocks = 1 + self.random.below(16) as u16;
        let bytes = u32::from(blocks) * 512;
        let attribute = [1, 1, 1, 2, 3][self.random.below(5) as usize];
        let cmd_sn = self.session[0].cmd_sn;
        let command = |flags: u8, cdb: &[u8], bytes: u32| {
            RawPdu::new(opcode::SCSI_COMMAND, flags | attribute).put_u32(20, bytes).put(32, cdb)
        };
        let immediate = |function: u8| {
            RawPdu::new(0x40 | opcode::TASK_MANAGEMENT, 0x80 | function)
                .put_u32(20, tag - 1 - lba % 4)
                .put_u32(32, cmd_sn.wrapping_sub(1))
        };
        let pdu = match what {
            3..=6 => command(0xc0, &ten(0x28, lba, blocks), bytes),
            7..=9 => command(0xa0, &ten(0x2a, lba, blocks), bytes)
                .with_data(vec![tag as u8; bytes as usize]),
            10..=12 => command(0xa0, &ten(0x2a, lba, blocks), bytes),
            13 => command(0x20, &ten(0x2a, lba, blocks), bytes), // unsolicited data never comes
            14 => command(0xa0, &ten(0x41, lba, blocks), 512).with_data(vec![tag as u8; 512]),
            15 => {
                let mut cdb = [0; 16];
                (cdb[0], cdb[9], cdb[13]) = (0x89, lba as u8, 1);
                command(0xa0, &cdb, 1024).with_data(vec![0; 1024])
            }
            16 => {
                let list = [&[0; 15][..], &[self.number as u8], &[0; 8]].concat();
                command(0xa0, &[0x5f, 6, 0, 0, 0, 0, 0, 0, 24, 0], 24).with_data(list)
            }
            17 => {
                let victim = self.random.below(4) as u8;
                let mut list = vec![0; 24];
                (list[7], list[15]) = (self.number as u8, victim);
                command(0xa0, &[0x5f, 5, 5, 0, 0, 0, 0, 0, 24, 0], 24).with_data(list)
            }
            18 => command(0x80, &ten(0x35, 0, 0), 0).put(33, &[lba as u8 & 2]),
            19 | 20 => immediate(ABORT_TASK),
            21 => immediate([2, CLEAR_TASK_SET][lba as usize % 2]),
            22 => immediate(LOGICAL_UNIT_RESET),
            _ if lba < 4 => immediate(TARGET_COLD_RESET),
            _ => RawPdu::new(opcode::NOP_OUT, 0x80).put_u32(20, u32::MAX).with_data(vec![1; 100]),
        };
        let numbered = pdu.header[0] & 0x40 == 0;
        for raw in &mut self.session {
            raw.cmd_sn = raw.cmd_sn.wrapping_add(u32::from(numbered));
        }
        let exp_stat_sn = self.session[0].exp_stat_sn;
        pdu.put_u32(16, tag).put_u32(24, cmd_sn).put_u32(28, exp_stat_sn)
    }

    /// Takes incoming PDUs and answers most R2Ts.
    fn listen(&mut self, at: usize) -> Option<()> {
        loop {
            let raw = &mut self.session[at];
            match raw.answer(Duration::from_millis(self.random.below(5))).unwrap() {
                RawAnswer::TimedOut => return Some(()),
                RawAnswer::Closed => return None,
                RawAnswer::Pdu(pdu) if pdu.opcode() == opcode::R2T => {
                    if self.random.below(4) == 0 {
                        continue;
                    }
                    let data = RawPdu::new(opcode::DATA_OUT, 0x80)
                        .put_u32(16, pdu.u32_at(16))
                        .put_u32(20, pdu.u32_at(20))
                        .put_u32(28, raw.exp_stat_sn)
                        .put_u32(40, pdu.u32_at(40))
                        .with_data(vec![9; pdu.u32_at(44) as usize]);
                    raw.send(&data).ok()?;
                }
                RawAnswer::Pdu(pdu) => {
                    self.answers += 1;
                    let stat_sn = pdu.u32_at(24).wrapping_add(1);
                    let shown = pdu.opcode() != opcode::DATA_IN || pdu.header[1] & 1 != 0;
                    if shown && pdu.u32_at(16) != u32::MAX {
                        raw.exp_stat_sn = stat_sn;
                    }
                }
            }
        }
    }
}

fn play(seed: u64) {
    let rig = Rig::with(|options| {
        options.limits.data_in_bytes = 16 << 10;
        options.limits.data_out_bytes = 64 << 10;
    });
    rig.device.inject(Fault::new(Effect::Hang).per_million(10_000));
    rig.device.inject(
        Fault::new(Effect::Fail(ErrorKind::Medium)).on(FaultOperation::Read).per_million(20_000),
    );
    let slow = Effect::Delay(Duration::from_millis(3));
    rig.device.inject(Fault::new(slow).per_million(500_000));
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        let players: Vec<_> = (0..3)
            .map(|number| {
                let rig = &rig;
                let random = Random(seed * 3 + u64::from(number));
                scope.spawn(move || {
                    let session = Vec::new();
                    let (tsih, next_tag, logins, answers) = (0, 100, 0, 0);
                    let mut player = ChaosInitiator {
                        rig,
                        number,
                        random,
                        session,
                        tsih,
                        next_tag,
                        logins,
                        answers,
                    };
                    player.play();
                    (player.logins, player.answers)
                })
            })
            .collect();
        scope.spawn(|| {
            // Hanging operations continue in the end; otherwise logins would wait for them forever.
            while !done.load(std::sync::atomic::Ordering::SeqCst) {
                std::thread::sleep(Duration::from_millis(100));
                rig.device.release();
            }
        });
        let began = Instant::now();
        let ends: Vec<_> = players.into_iter().map(|player| player.join()).collect();
        done.store(true, std::sync::atomic::Ordering::SeqCst);
        assert!(ends.iter().all(Result::is_ok), "seed {seed}");
        println!("seed {seed}: {:?}, logins and answers {ends:?}", began.elapsed());
    });
    rig.device.heal();
    rig.device.release();
    // The unit serves a new initiator: no lock and no permit of a task set is still held.
    for function in [LOGICAL_UNIT_RESET, TARGET_COLD_RESET] {
        let mut last = rig.log_in(9);
        let ordered = last.command(0xc2, &ten(0x28, 0, 64), 64 * 512);
        last.send(&ordered).unwrap();
        while answer_to(&mut last, ordered.u32_at(16)).header[1] & 1 == 0 {}
        let tag = send_function(&mut last, function, u32::MAX);
        assert_eq!(answer_to(&mut last, tag).header[2], 0, "seed {seed}");
    }
    rig.stop_cleanly();
}

/// Goal: after three initiators acted concurrently, the unit works, nothing is left behind, and the
/// server stops in time. Method: by seed; `LUNAR_TEST_SEED` repeats one seed, `LUNAR_SEEDS` gives
/// their number.
#[test]
fn everything_at_once() {
    let number = |name| std::env::var(name).ok().and_then(|text: String| text.parse().ok());
    match number("LUNAR_TEST_SEED") {
        Some(seed) => play(seed),
        None => (0..number("LUNAR_SEEDS").unwrap_or(4)).for_each(play),
    }
}

/// A disk with an injected bug: reading block 7 panics.
#[derive(Debug)]
struct Panics(MemoryDevice);

impl BlockDevice for Panics {
    fn name(&self) -> &str {
        "panics"
    }
    fn geometry(&self) -> Geometry {
        self.0.geometry()
    }
    fn read(&self, range: BlockRange, into: Buffer) -> BoxFuture<'_, Result<Buffer, Error>> {
        assert_ne!(range.lba, 7, "as it should");
        self.0.read(range, into)
    }
    fn write(
        &self,
        range: BlockRange,
        from: bytes::Bytes,
        durable: bool,
    ) -> BoxFuture<'_, Result<(), Error>> {
        self.0.write(range, from, durable)
    }
    fn flush(&self) -> BoxFuture<'_, Result<(), Error>> {
        self.0.flush()
    }
    fn io_tier(&self) -> String {
        self.0.io_tier()
    }
}

/// Goal: a connection that panics affects nothing else: its session ends and can be started again.
#[test]
fn a_panic_ends_its_session_only() {
    let rig = Rig::with(|options| {
        let device = Panics(MemoryDevice::new(1 << 20, 512, 4096).unwrap());
        options.targets = vec![target(TARGET, unit(Arc::new(device)))];
    });
    let mut other = rig.log_in(2);
    let mut raw = rig.log_in(1);
    send_read(&mut raw, 7, 1);
    raw.wait_until_closed(TEST_TIMEOUT).unwrap();
    let mut again = rig.log_in(1);
    again.read_block(0).unwrap();
    other.read_block(0).unwrap();
    log_out(again);
    log_out(other);
    rig.stop_cleanly();
}
