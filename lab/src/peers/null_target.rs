//! The *null target*: the cost of a target that does nothing.
//!
//! A ceiling for real targets. It logs initiators in, and answers READ from one piece of memory and
//! WRITE by discarding the data. It does **not** do the work of a target: there is no store and no
//! SCSI behind it (INQUIRY, capacity and the like are canned, LUNs and addresses are ignored), no
//! access control, no digests, no task management, no closed windows, no recovery, no second
//! connection of a session, one R2T of a write at a time, no discovery, and a protocol error ends
//! the connection. It must not serve real data.
//!
//! One thread serves all sessions. It reads up to 512 KiB from a socket in one system call, answers
//! all requests in it in one vectored send (eight requests at a time if no other session has any),
//! and waits in `poll` when no socket has data.

mod commands;
mod connection;
mod login;

use self::connection::NullConnection;
use crate::system::process::{ServerProcess, on_core};
use anyhow::{Context, Result};
use lunar_control::units::parse_size;
use rustix::event::{PollFd, PollFlags, poll};
use std::io::{ErrorKind, Write};
use std::net::{SocketAddr, TcpListener};
use std::time::Duration;

/// Maximum number of sessions at once; more connections wait in the listener.
const SESSIONS_MAX: usize = 64;
/// Name of the target in our URLs; a login with any other name succeeds, too.
pub const TARGET: &str = "iqn.2026-11.org.lunarsan.bench:null";
/// Maximum time until it listens.
const START_MAX: Duration = Duration::from_secs(60);
/// Text that the program prints before its address.
const LISTENING: &str = "listening on ";

/// A minimal target that initiators can log in to and read from: an upper bound for targets, on one
/// thread
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  \
    cargo run --release -p lunar-lab -- null-target --listen 127.0.0.1:3261 --size 1G\n\n\
    It stores no data: reads return a fixed pattern, writes are discarded.")]
pub struct NullTarget {
    /// Address to listen on; port 0: a free one
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:0")]
    listen: SocketAddr,
    /// Size of the disk that it reports
    #[arg(long, value_parser = parse_size, default_value = "256M")]
    size: u64,
}

impl NullTarget {
    /// Serves until the process is killed.
    ///
    /// # Errors
    /// The address cannot be used.
    pub fn run(&self) -> Result<()> {
        let listener = TcpListener::bind(self.listen)
            .with_context(|| format!("listening on {}: is the port taken?", self.listen))?;
        let mut out = std::io::stdout();
        writeln!(out, "{LISTENING}{}", listener.local_addr()?)?;
        out.flush()?;
        serve(&listener, self.size)
    }
}

/// Serves all connections.
///
/// # Errors
/// The system gives no more sockets.
fn serve(listener: &TcpListener, disk_bytes: u64) -> Result<()> {
    listener.set_nonblocking(true)?;
    let mut connections: Vec<NullConnection> = Vec::new();
    let mut ready: Vec<bool> = Vec::new();
    loop {
        ready.clear();
        let mut waiting: Vec<PollFd<'_>> = connections
            .iter()
            .map(|connection| PollFd::new(connection.socket(), PollFlags::IN))
            .collect();
        if connections.len() < SESSIONS_MAX {
            waiting.push(PollFd::new(listener, PollFlags::IN));
        }
        match poll(&mut waiting, None) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error).context("waiting for sockets"),
        }
        ready.extend(waiting.iter().map(|one| !one.revents().is_empty()));
        drop(waiting);
        let sockets = connections.len();
        let is_alone = ready[..sockets].iter().filter(|is_ready| **is_ready).count() == 1;
        let mut at = 0;
        connections.retain_mut(|connection| {
            at += 1;
            // An error or the end of a session affects that session alone.
            !ready[at - 1] || connection.turn(is_alone).is_ok()
        });
        if ready.get(sockets) == Some(&true) {
            match listener.accept() {
                Ok((socket, _)) => connections.push(NullConnection::new(socket, disk_bytes)?),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => return Err(error).context("taking a connection"),
            }
        }
    }
}

/// A null target in a process of its own, which ends with its owner.
pub struct NullServer {
    server: ServerProcess,
    address: String,
}

impl NullServer {
    /// Starts the server on a free port, on one processor core if one is named.
    ///
    /// # Errors
    /// The server does not listen.
    pub fn start(core: Option<u16>, disk_bytes: u64) -> Result<Self> {
        let own = std::env::current_exe()?;
        let own = own.to_str().context("a path in UTF-8")?;
        let (by, size) = (on_core(core), disk_bytes.to_string());
        let mut line: Vec<&str> = by.iter().map(String::as_str).collect();
        line.extend([own, "null-target", "--size", &size]);
        let mut server = ServerProcess::start(line[0], &line[1..])?;
        let line = server.wait_for_line(LISTENING, START_MAX)?;
        let address =
            line.strip_prefix(LISTENING).context("the null target did not print its address")?;
        Ok(Self { address: address.trim().to_owned(), server })
    }

    /// Returns the URL `iscsi://127.0.0.1:PORT/TARGET/0`.
    pub fn url(&self) -> String {
        format!("iscsi://{}/{TARGET}/0", self.address)
    }

    /// Returns its address.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Returns the number of its process.
    pub fn pid(&self) -> u32 {
        self.server.id()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use lunar_block::{BlockDevice, BlockRange, Buffer, BufferPool};
    use lunar_initiator::{RemoteDisk, SessionOptions, Url};

    const DISK_BYTES: u64 = 64 << 20;

    /// Goal: our initiator logs in, several times at once, sees a disk, and reads and writes in all
    /// sizes that cells have, with and without R2T.
    #[test]
    fn our_initiator_reads_through_it() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("iscsi://{}/{TARGET}/0", listener.local_addr().unwrap());
        // This server ends with the test's process.
        std::thread::spawn(move || serve(&listener, DISK_BYTES));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let url: Url = url.parse().unwrap();
            let options = SessionOptions::new("iqn.2026-11.org.lunarsan:test");
            let first = RemoteDisk::connect(&url, &options).await.unwrap();
            let second = RemoteDisk::connect(&url, &options).await.unwrap();
            assert_eq!(first.geometry().size_bytes(), DISK_BYTES);
            for disk in [&first, &second] {
                for bytes in [512, 4096, 65_536, 1 << 20] {
                    let read = read(disk, bytes).await;
                    assert!(read.iter().all(|byte| *byte == commands::CANNED), "{bytes}");
                }
                let range = BlockRange::new(8, 8);
                disk.write(range, Bytes::from(vec![1; 4096]), false).await.unwrap();
                disk.flush().await.unwrap();
                let large = Bytes::from(vec![1; 1 << 20]);
                disk.write(BlockRange::new(0, 2048), large, false).await.unwrap();
                read(disk, 4096).await;
            }
            first.close().await.unwrap();
            read(&second, 4096).await;
            second.close().await.unwrap();
        });
    }

    /// Goal: a read beyond the limit is refused, however long its expected length is.
    #[test]
    fn reads_have_a_limit() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("iscsi://{}/{TARGET}/0", listener.local_addr().unwrap());
        std::thread::spawn(move || serve(&listener, DISK_BYTES));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let options = SessionOptions::new("iqn.2026-11.org.lunarsan:test");
            let disk = RemoteDisk::connect(&url.parse().unwrap(), &options).await.unwrap();
            for (blocks, status) in [(32_768_u32, 0x00), (32_769, 0x02)] {
                let mut cdb = vec![0x88, 0, 0, 0, 0, 0, 0, 0, 0, 0];
                cdb.extend_from_slice(&blocks.to_be_bytes());
                cdb.extend_from_slice(&[0, 0]);
                let unit = disk.unit();
                let reply = unit.initiator().execute(unit.lun(), cdb, Bytes::new(), blocks * 512);
                assert_eq!(reply.await.unwrap().result.status, status, "{blocks} blocks");
            }
            read(&disk, 4096).await;
            disk.close().await.unwrap();
        });
    }

    async fn read(disk: &RemoteDisk, bytes: usize) -> Buffer {
        let range = BlockRange::new(0, (bytes / 512) as u64);
        disk.read(range, BufferPool::default().take(bytes)).await.unwrap()
    }
}
