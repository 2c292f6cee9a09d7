//! Processor time of this process, and of the process of the target.

use rustix::time::{ClockId, clock_gettime};
use std::fs;
use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::time::Duration;

/// State of a listening socket in /proc/net/tcp.
const LISTENING: &str = "0A";

/// "No such process": the process ended between two reads.
const ESRCH: i32 = rustix::io::Errno::SRCH.raw_os_error();

/// Returns the processor time that this process has used so far.
pub fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    let (seconds, nanos) = (u64::try_from(time.tv_sec), u32::try_from(time.tv_nsec));
    Duration::new(seconds.unwrap_or_default(), nanos.unwrap_or_default())
}

/// A process of this machine that listens on an address.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct ListeningProcess {
    /// Process ID.
    pub pid: u32,
}

impl ListeningProcess {
    /// Returns the process that listens on `address`; `None` if there is none on this machine, or
    /// its files are not readable.
    pub fn of_listener(address: SocketAddr) -> Option<Self> {
        let tables = ["/proc/net/tcp", "/proc/net/tcp6"];
        let text: String =
            tables.iter().map(|path| fs::read_to_string(path).unwrap_or_default()).collect();
        // Only addresses of this machine can be bound.
        let is_ours = UdpSocket::bind((address.ip(), 0)).is_ok();
        let socket = format!("socket:[{}]", inode(&text, address, is_ours)?);
        let processes = fs::read_dir("/proc").ok()?;
        processes.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).find_map(
            |pid: u32| {
                let files = fs::read_dir(format!("/proc/{pid}/fd")).ok()?;
                let mut links = files.filter_map(|file| fs::read_link(file.ok()?.path()).ok());
                links.any(|link| link.as_os_str() == socket.as_str()).then_some(Self { pid })
            },
        )
    }

    /// Returns user and system time of its threads so far; `None` if the process has ended or is
    /// not readable. Exact to the nanosecond if the kernel keeps such statistics
    /// (`/proc/PID/task/*/schedstat`, without threads that have ended), else in steps of its clock
    /// tick (10 ms).
    pub fn processor_time(&self) -> Option<Duration> {
        self.time_of_threads().or_else(|| self.time_in_ticks())
    }

    fn time_of_threads(&self) -> Option<Duration> {
        let tasks = fs::read_dir(format!("/proc/{}/task", self.pid)).ok()?;
        let mut sum = 0;
        for task in tasks {
            // A thread that ends meanwhile has no statistics.
            let path = task.ok()?.path().join("schedstat");
            match fs::read_to_string(path) {
                Ok(text) => sum += on_core_nanos(&text)?,
                Err(error) if error.raw_os_error() == Some(ESRCH) => {}
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(_) => return None,
            }
        }
        // A kernel without these statistics reports zeroes, or has no such file.
        (sum > 0).then(|| Duration::from_nanos(sum))
    }

    fn time_in_ticks(&self) -> Option<Duration> {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.pid)).ok()?;
        let ticks = ticks(&stat)?;
        Some(
            Duration::from_secs(ticks)
                / u32::try_from(rustix::param::clock_ticks_per_second()).ok()?,
        )
    }
}

/// Parses the first field of /proc/PID/task/TID/schedstat: nanoseconds on a core. proc(5).
fn on_core_nanos(text: &str) -> Option<u64> {
    text.split_whitespace().next()?.parse().ok()
}

/// Parses utime and stime of /proc/PID/stat: its fields 14 and 15. proc_pid_stat(5).
fn ticks(stat: &str) -> Option<u64> {
    // The second field is a name in brackets that may contain anything.
    let (_, fields) = stat.rsplit_once(')')?;
    let mut times = fields.split_whitespace().skip(11).map(|field| field.parse::<u64>().ok());
    Some(times.next()?? + times.next()??)
}

/// Finds the inode of the socket that listens on `address` in lines of /proc/net/tcp and tcp6. A
/// socket that listens on all addresses counts if the address is one of this machine.
fn inode(lines: &str, address: SocketAddr, is_ours: bool) -> Option<&str> {
    let mut wildcard_inode = None;
    for line in lines.lines() {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let [_, local, _, LISTENING, _, _, _, _, _, inode, ..] = fields[..] else { continue };
        match socket_address(local) {
            Some(local) if local.port() != address.port() => {}
            Some(local) if local.ip() == address.ip().to_canonical() => return Some(inode),
            Some(local) if local.ip().is_unspecified() && is_ours => wildcard_inode = Some(inode),
            _ => {}
        }
    }
    wildcard_inode
}

/// Parses `0100007F:0CBC`: words of four bytes as this machine's numbers, and the port. proc(5).
fn socket_address(text: &str) -> Option<SocketAddr> {
    let (ip, port) = text.split_once(':')?;
    let word = |at: usize| {
        let number = u32::from_str_radix(ip.get(at..at + 8)?, 16).ok()?;
        Some(u32::from_be(number))
    };
    let ip = match ip.len() {
        8 => IpAddr::from(Ipv4Addr::from_bits(word(0)?)),
        32 => {
            let words = [word(0)?, word(8)?, word(16)?, word(24)?];
            let bits = words.into_iter().fold(0, |bits: u128, word| bits << 32 | u128::from(word));
            IpAddr::from(Ipv6Addr::from_bits(bits)).to_canonical()
        }
        _ => return None,
    };
    Some(SocketAddr::new(ip, u16::from_str_radix(port, 16).ok()?))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // a test may unwrap

    use super::*;
    use std::net::TcpListener;

    /// Goal: the listening process is found, on one address and on all of them; without a listener
    /// none is found.
    #[test]
    fn listeners_have_owners() {
        let ours = Some(ListeningProcess { pid: std::process::id() });
        let one = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        assert_eq!(ListeningProcess::of_listener(one), None, "it is closed");
        let one = TcpListener::bind("127.0.0.1:0").unwrap();
        assert_eq!(ListeningProcess::of_listener(one.local_addr().unwrap()), ours);
        let all = TcpListener::bind("0.0.0.0:0").unwrap();
        let port = all.local_addr().unwrap().port();
        assert_eq!(ListeningProcess::of_listener(([127, 0, 0, 1], port).into()), ours);
        // An address of no host (RFC 5737): its port belongs to another machine.
        assert_eq!(ListeningProcess::of_listener(([192, 0, 2, 1], port).into()), None);
        if let Ok(six) = TcpListener::bind("[::1]:0") {
            assert_eq!(ListeningProcess::of_listener(six.local_addr().unwrap()), ours);
        }
    }

    /// Goal: the time charged to a process is the time it used, to a tick of the kernel's clock, or
    /// exactly if the kernel has statistics.
    #[test]
    fn processor_time_is_read() {
        let stat = "7 (a) b) S 1 7 7 0 -1 4194304 1 2 3 4 250 50 6 7 20 0 1 0 9 10 11";
        assert_eq!(ticks(stat), Some(300));
        assert_eq!(ticks("7 (a"), None);
        let this = ListeningProcess { pid: std::process::id() };
        // Only this thread is measured: the time of other threads that end meanwhile is lost.
        while clock_gettime(ClockId::ThreadCPUTime).tv_nsec < 50_000_000 {
            std::hint::spin_loop();
        }
        let (reported, exact) = (this.processor_time().unwrap(), processor_time());
        assert!(
            reported >= Duration::from_millis(30) && reported <= exact,
            "{reported:?} of {exact:?}"
        );
        let ticks = this.time_in_ticks().unwrap();
        assert!(ticks >= Duration::from_millis(30) && ticks <= processor_time(), "{ticks:?}");
        assert_eq!(on_core_nanos("1030493 506333 7\n"), Some(1_030_493));
        assert_eq!(ListeningProcess { pid: u32::MAX }.processor_time(), None);
    }
}
