//! The ceiling of direct I/O: io_uring on the file itself, without any target.
//!
//! `unsafe`: the kernel writes to buffers that are passed by address.

use super::CommandTurn;
use crate::bench::target::cells::DISK_BYTES;
use crate::bench::target::results::Sample;
use crate::random::Random;
use crate::system::cores::{self, CLIENT_CORE, on_a_thread};
use anyhow::{Context, Result, ensure};
use io_uring::{IoUring, opcode, types};
use lunar_load::{AccessPattern, Latency};
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::Instant;

/// Alignment of addresses that `O_DIRECT` requires, on any disk of today.
const ALIGNMENT: usize = 4096;

/// Runs random reads with the depth of the cell, from the client's core.
///
/// # Errors
/// The kernel refuses io_uring, the file system `O_DIRECT`, or a read fails.
pub fn turn(turn: &CommandTurn<'_>, path: &Path) -> Result<Sample> {
    ensure!(
        turn.cell.pattern == AccessPattern::RandomRead,
        "the local io_uring supports only random reads"
    );
    on_a_thread(|| {
        cores::pin(CLIENT_CORE)?;
        let direct = rustix::fs::OFlags::DIRECT.bits().cast_signed();
        let file = File::options().read(true).custom_flags(direct).open(path)?;
        Reader::new(turn, &file)?.run(turn)
    })
}

/// Reads under way, each with a part of one buffer.
struct Reader<'a> {
    ring: IoUring,
    file: &'a File,
    /// Buffer that the kernel writes to until the last read has completed.
    buffer: Vec<u8>,
    /// The aligned part of the buffer.
    aligned: *mut u8,
    io_bytes: u32,
    begun: Vec<Instant>,
    offsets: Random,
    under_way: usize,
}

impl<'a> Reader<'a> {
    fn new(turn: &CommandTurn<'_>, file: &'a File) -> Result<Self> {
        let (depth, io_bytes) = (usize::from(turn.cell.depth), turn.cell.io_bytes);
        let ring = IoUring::new(turn.cell.depth.into());
        let ring =
            ring.context("io_uring is not available: the kernel refuses it (often in containers)")?;
        let mut buffer = vec![0_u8; depth * io_bytes as usize + ALIGNMENT];
        let from = buffer.as_ptr().align_offset(ALIGNMENT);
        ensure!(from < ALIGNMENT, "cannot allocate aligned memory");
        let aligned = buffer.as_mut_ptr().wrapping_add(from);
        Ok(Self {
            ring,
            file,
            buffer,
            aligned,
            io_bytes,
            begun: vec![Instant::now(); depth],
            offsets: Random::new(turn.seed),
            under_way: 0,
        })
    }

    fn run(mut self, turn: &CommandTurn<'_>) -> Result<Sample> {
        let begin = Instant::now();
        let from = begin + turn.times.warm_up;
        let to = from + turn.times.measured;
        let spent = lunar_load::processor_time();
        let mut latency = Latency::default();
        let measured = self.until(from, to, &mut latency);
        // After any result: no read may continue into memory that is freed.
        let drained = self.drain();
        if drained.is_err() {
            // Reads may still be under way: their memory is never freed.
            std::mem::forget(std::mem::take(&mut self.buffer));
        }
        measured.and(drained)?;
        let spent = lunar_load::processor_time().saturating_sub(spent).as_secs_f64();
        let iops = latency.count() as f64 / turn.times.measured.as_secs_f64();
        Ok(Sample {
            client_busy: Some(spent / begin.elapsed().as_secs_f64()),
            ..Sample::of(&latency, iops, iops * f64::from(self.io_bytes))
        })
    }

    fn until(&mut self, from: Instant, to: Instant, latency: &mut Latency) -> Result<()> {
        for slot in 0..self.begun.len() {
            self.begin(slot)?;
        }
        loop {
            self.ring.submit_and_wait(1)?;
            let now = Instant::now();
            for (slot, result) in self.completed() {
                self.check_result(result)?;
                if now >= from && now < to {
                    latency.record(now - self.begun[slot]);
                }
                if now < to {
                    self.begin(slot)?;
                }
            }
            if now >= to {
                return Ok(());
            }
        }
    }

    fn drain(&mut self) -> Result<()> {
        while self.under_way > 0 {
            self.ring.submit_and_wait(1)?;
            self.completed();
        }
        Ok(())
    }

    /// Returns the completed reads: slot and result.
    fn completed(&mut self) -> Vec<(usize, i32)> {
        let queue = self.ring.completion();
        let done: Vec<_> = queue.map(|one| (one.user_data() as usize, one.result())).collect();
        self.under_way -= done.len();
        done
    }

    fn check_result(&self, result: i32) -> Result<()> {
        let failed = || std::io::Error::from_raw_os_error(-result);
        ensure!(result >= 0, "a direct read failed: {}", failed());
        ensure!(
            result.cast_unsigned() == self.io_bytes,
            "a direct read returned only {result} bytes"
        );
        Ok(())
    }

    fn begin(&mut self, slot: usize) -> Result<()> {
        let io = u64::from(self.io_bytes);
        let offset = self.offsets.below(DISK_BYTES / io) * io;
        let into = self.aligned.wrapping_add(slot * self.io_bytes as usize);
        let read = opcode::Read::new(types::Fd(self.file.as_raw_fd()), into, self.io_bytes)
            .offset(offset)
            .build()
            .user_data(slot as u64);
        self.begun[slot] = Instant::now();
        // SAFETY: `into` is `io_bytes` bytes of `buffer` (a part for each slot, behind the
        // alignment), which is never resized or read, and which no other read uses: a slot starts
        // again only when its read has completed. Buffer and file outlive the read: `run` drains
        // the ring before either is dropped, and leaks the buffer if it cannot.
        let pushed = unsafe { self.ring.submission().push(&read) };
        pushed.context("the ring is full")?;
        self.under_way += 1;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::target::cells::{CELLS, RING};
    use crate::bench::target::clients::TurnTimes;
    use crate::bench::target::servers::SetupPortal;
    use crate::system::files::ScratchFile;
    use std::time::Duration;

    /// Goal: the ring reads a file, or reports that it is not permitted; any other error fails.
    /// Method: repeats until a read ends in time, on a machine that may be busy.
    #[test]
    fn a_file_is_read() {
        let cell = CELLS.iter().find(|cell| cell.setups.contains(&RING)).unwrap();
        let portal = SetupPortal { url: String::new(), pid: 0, program: None };
        let folder = std::env::temp_dir();
        let file = ScratchFile::new(&folder, "ring", DISK_BYTES).unwrap();
        let ask = |milliseconds| {
            let measured = Duration::from_millis(milliseconds);
            let times = TurnTimes { warm_up: Duration::ZERO, measured };
            turn(&CommandTurn { cell, setup: &RING, seed: 1, times, portal: &portal }, file.path())
        };
        let mut results = [20, 200, 2000, 20_000].into_iter().map(ask);
        let done = results.find(|result| result.as_ref().map_or(true, |sample| sample.iops > 0.0));
        match done.expect("a read ends in 20 s") {
            Ok(sample) => assert!(sample.iops > 0.0 && sample.p50_us > Some(0.0), "{sample:?}"),
            Err(error) => {
                let text = format!("{error:#}");
                assert!(text.contains("io_uring") || text.contains("Invalid argument"), "{text}");
            }
        }
    }
}
