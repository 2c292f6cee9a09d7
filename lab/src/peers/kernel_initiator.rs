//! The initiator of the Linux kernel with open-iscsi, in a QEMU guest (lab/kernel), which uses the
//! disk of one portal after the other.

use crate::system::process::run;
use anyhow::{Result, ensure};
use std::time::Duration;

/// Time after which the guest is killed.
const GUEST_SECONDS_MAX: u64 = 600;
const RUN_MAX: Duration = Duration::from_secs(GUEST_SECONDS_MAX + 30);

/// Work of the guest: a range of a LUN that it writes and reads back.
pub struct KernelRequest<'a> {
    /// Name of the target of all portals; its LUN 0 is its only disk.
    pub target: &'a str,
    /// Ports of the portals on the loopback interface.
    pub ports: &'a [&'a str],
    /// A file with the data for each port, one after the other.
    pub data: &'a str,
    /// Length of the range.
    pub mebibytes: usize,
    /// Beginning of the range.
    pub offset_mebibytes: usize,
}

/// Results of the guest.
pub struct KernelReply {
    /// Versions of the kernel and of open-iscsi.
    pub version: String,
    /// Result of each port: an error, or `None`.
    pub errors: Vec<Option<String>>,
}

/// Boots the guest, which uses all portals, and waits for its end. `folder` holds the files that
/// `lab/kernel/fetch` has made.
///
/// # Errors
/// The guest does not boot or does not end in time; the message holds its console.
pub fn use_portals(folder: &str, request: &KernelRequest<'_>) -> Result<KernelReply> {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/kernel/guest");
    let arguments = [
        &format!("GUEST_DISK={}", request.data),
        &format!("GUEST_SECONDS_MAX={GUEST_SECONDS_MAX}"),
        script,
        folder,
        "switch",
        &format!("target={}", request.target),
        &format!("ports={}", request.ports.join(",")),
        &format!("mebibytes={}", request.mebibytes),
        &format!("offset_mebibytes={}", request.offset_mebibytes),
    ];
    let finished = run("env", &arguments, RUN_MAX)?;
    ensure!(finished.succeeded(), "the guest failed: {}", finished.outputs());
    Ok(parse(&finished.stdout, request.ports))
}

fn parse(printed: &str, ports: &[&str]) -> KernelReply {
    let find = |prefix: &str| printed.lines().find_map(|line| line.trim().strip_prefix(prefix));
    let error = |port: &&str| match find(&format!("GUEST: port {port}: ")) {
        Some("pass") => None,
        other => Some(other.unwrap_or("the guest printed no result").to_owned()),
    };
    let version = find("GUEST: version: ").unwrap_or("unknown").to_owned();
    KernelReply { version, errors: ports.iter().map(error).collect() }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: each port has its own result, and a missing one is an error.
    #[test]
    fn results_of_ports() {
        let printed = "GUEST: version: Linux 6.1\nGUEST: port 1: pass\nGUEST: port 12: FAIL: x\n";
        let reply = parse(printed, &["12", "1", "2"]);
        assert_eq!(reply.version, "Linux 6.1");
        let errors: Vec<_> = reply.errors.iter().map(Option::as_deref).collect();
        assert_eq!(errors, [Some("FAIL: x"), None, Some("the guest printed no result")]);
    }
}
