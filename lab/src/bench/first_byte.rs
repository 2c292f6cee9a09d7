//! Time from a READ to the first byte of its answer, and to the last.

use crate::peers::lunar::{Lunar, release_binary};
use anyhow::{Context, Result, ensure};
use lunar_load::Spread;
use lunar_load::report::{Column, Table, TableCell};
use lunar_testkit::raw::RawClient;
use std::io::Read;
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::time::Instant;

const TARGET: &str = "iqn.2026-11.org.lunarsan.bench:first-byte";
const BLOCK_BYTES: u32 = 512;
const HEADER_BYTES: usize = 48;

/// Time from a READ to the first byte of its answer, and to the last, of two builds of Lunar: READs
/// alternate, one at a time.
#[derive(Debug, clap::Args)]
pub struct FirstByteBench {
    /// The other build; ours is LUNAR_BIN, or a build of the source
    #[arg(long, value_name = "PROGRAM")]
    base: PathBuf,
    /// Bytes of a READ, a multiple of 512
    #[arg(long, default_value_t = 1 << 20, value_parser = clap::value_parser!(u32).range(512..))]
    bytes: u32,
    /// READs of each build
    #[arg(long, default_value_t = 2000, value_parser = clap::value_parser!(u32).range(1..))]
    reads: u32,
    /// Disk of each server, as for `lunar serve`, with its options
    #[arg(last = true, default_value = "mem:64M")]
    disk: Vec<String>,
}

impl FirstByteBench {
    /// Runs the comparison.
    ///
    /// # Errors
    /// A server cannot be started, or a READ fails.
    pub fn run(&self) -> Result<()> {
        ensure!(self.bytes.is_multiple_of(BLOCK_BYTES), "--bytes is a multiple of 512");
        let mut lunar = Reader::start(&release_binary()?, self)?;
        let mut base = Reader::start(&self.base, self)?;
        for _ in 0..self.reads {
            lunar.read(self.bytes)?;
            base.read(self.bytes)?;
        }
        let mut table = Table::new([
            Column::text("build", "build"),
            Column::number("first_us", "first byte, us"),
            Column::number("last_us", "last byte, us"),
        ]);
        for (name, reader) in [("lunar", &lunar), ("base", &base)] {
            let figures = [&reader.first_us, &reader.last_us]
                .map(|times| TableCell::number(Spread::of(times.iter().copied()).median, 1));
            let [first, last] = figures;
            table.row([TableCell::text(name), first, last]);
        }
        print!("medians of {} READs of {} bytes\n{}", self.reads, self.bytes, table.text());
        Ok(())
    }
}

/// A client of one server, with the times it has measured.
struct Reader {
    _server: Lunar,
    raw: RawClient,
    /// The connection of `raw`.
    tcp: TcpStream,
    /// Header and data segment of the last PDU.
    pdu: Vec<u8>,
    first_us: Vec<f64>,
    last_us: Vec<f64>,
}

impl Reader {
    fn start(program: &Path, command: &FirstByteBench) -> Result<Self> {
        let disk: Vec<&str> = command.disk.iter().map(String::as_str).collect();
        let options = [&disk[..], &["--name", TARGET]].concat();
        let server = Lunar::serve_measured(None, program, &options)?;
        let tcp = TcpStream::connect(server.address())?;
        let mut raw = RawClient::log_in_from_tcp(tcp.try_clone()?, TARGET, 1)?;
        raw.read_block(0)?; // takes the first unit attention
        tcp.set_read_timeout(None)?;
        let pdu = vec![0; HEADER_BYTES];
        let (first_us, last_us) = (Vec::new(), Vec::new());
        Ok(Self { _server: server, raw, tcp, pdu, first_us, last_us })
    }

    fn read(&mut self, bytes: u32) -> Result<()> {
        let blocks = u16::try_from(bytes / BLOCK_BYTES)?;
        let mut cdb = [0x28, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        cdb[7..9].copy_from_slice(&blocks.to_be_bytes());
        let command = self.raw.command(0xc1, &cdb, bytes);
        let began = Instant::now();
        self.raw.send(&command)?;
        self.tcp.read_exact(&mut self.pdu[..1])?;
        self.first_us.push(began.elapsed().as_secs_f64() * 1e6);
        self.tcp.read_exact(&mut self.pdu[1..HEADER_BYTES])?;
        let mut received = self.read_data()?;
        while self.pdu[1] & 1 == 0 {
            self.tcp.read_exact(&mut self.pdu[..HEADER_BYTES])?;
            received += self.read_data()?;
        }
        self.last_us.push(began.elapsed().as_secs_f64() * 1e6);
        ensure!(received == bytes as usize && self.pdu[3] == 0, "a READ ends without all its data");
        let stat_sn = self.pdu[24..28].first_chunk().context("a StatSN")?;
        self.raw.exp_stat_sn = u32::from_be_bytes(*stat_sn).wrapping_add(1);
        Ok(())
    }

    /// Reads the data segment of a Data-In PDU whose header was read; returns its length.
    fn read_data(&mut self) -> Result<usize> {
        let header = &self.pdu[..HEADER_BYTES];
        ensure!(header[0] == 0x25, "a READ is not answered by Data-In: {header:02x?}");
        let length = u32::from_be_bytes([0, header[5], header[6], header[7]]) as usize;
        self.pdu.resize(HEADER_BYTES + length.next_multiple_of(4), 0);
        self.tcp.read_exact(&mut self.pdu[HEADER_BYTES..])?;
        Ok(length)
    }
}
