//! Free ports for servers that cannot choose one themselves, or are restarted on the same port.

use anyhow::{Context, Result};
use std::net::TcpListener;
use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering};

/// Range below the ports that Linux gives to outgoing connections (`ip_local_port_range`), so that
/// no client takes a port between its choice and its use.
const PORTS: Range<u32> = 20_000..32_000;

/// Returns a free port of loopback, which no other call in this process gets soon.
///
/// # Errors
/// No port is free.
pub fn free_port() -> Result<u16> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let count = PORTS.end - PORTS.start;
    // Processes that run at the same time begin far apart.
    let begin = std::process::id().wrapping_mul(61) % count;
    let mut tries = PORTS.map(|_| (begin + NEXT.fetch_add(1, Ordering::Relaxed)) % count);
    let found = tries.find_map(|at| {
        let port = u16::try_from(PORTS.start + at).ok()?;
        TcpListener::bind(("127.0.0.1", port)).ok().map(|_| port)
    });
    found.context("no free port from 20000 to 32000")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    /// Goal: ports differ, can be listened on, and are outside of the range that the system gives
    /// to clients.
    /// Fault: istgt found its control port in use by a client.
    #[test]
    fn ports_are_reserved_for_the_tests() -> Result<()> {
        let range = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range")?;
        let first: u16 = range.split_whitespace().next().context("two numbers")?.parse()?;
        let mut seen = HashSet::new();
        for _ in 0..100 {
            let port = free_port()?;
            anyhow::ensure!(seen.insert(port), "{port} twice");
            anyhow::ensure!(port < first || first < 32_768, "{port} is one for clients");
            TcpListener::bind(("127.0.0.1", port))?;
        }
        Ok(())
    }
}
