//! Network namespaces with cables between them, by `ip` of iproute2.

use super::process;
use anyhow::{Context, Result, anyhow};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::fs::File;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// Directory of the namespaces of `ip netns`.
const NAMESPACES: &str = "/run/netns";
/// Prefix of the namespaces' names; the ID of the process that created them follows.
const NAME: &str = "lunar-bench-";
/// Ends of the names of namespaces.
const SIDES: [&str; 5] = ["target", "client", "host", "switch", "storage"];

/// A network namespace, removed when dropped.
#[derive(Debug)]
pub struct Namespace {
    name: String,
}

impl Namespace {
    /// Creates the namespace of this process for one of the sides `target`, `client`, `host`,
    /// `switch` and `storage`, with a loopback.
    ///
    /// # Errors
    /// Returns the message of `ip`.
    pub fn create(side: &str) -> Result<Self, String> {
        let namespace = Self { name: format!("{NAME}{}-{side}", std::process::id()) };
        ip(&["netns", "add", &namespace.name])?;
        ip(&["-n", &namespace.name, "link", "set", "lo", "up"])?;
        Ok(namespace)
    }

    /// Returns its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    fn path(&self) -> PathBuf {
        Path::new(NAMESPACES).join(&self.name)
    }

    /// Returns the words before a command that run it in the namespace; mounts stay those of this
    /// process.
    pub fn words(&self) -> Vec<String> {
        vec!["nsenter".to_owned(), format!("--net={}", self.path().display()), "--".to_owned()]
    }

    /// Moves this thread into the namespace: its further sockets belong there.
    ///
    /// # Errors
    /// The system refuses.
    pub fn enter(&self) -> Result<()> {
        let path = self.path();
        let file = File::open(&path).with_context(|| path.display().to_string())?;
        Ok(move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network))?)
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        // A namespace that was not created cannot be removed.
        if self.path().exists()
            && let Err(why) = ip(&["netns", "delete", &self.name])
        {
            eprintln!("cannot remove a network namespace: {why}");
        }
    }
}

/// Connects two namespaces by a cable with this name in both; each has an address `IP/LENGTH`
/// there. `options` are further ones of `ip link set`.
///
/// # Errors
/// Returns the message of `ip`.
pub fn connect(name: &str, sides: [(&Namespace, &str); 2], options: &[&str]) -> Result<(), String> {
    let [one, other] = sides.map(|(namespace, _)| namespace.name());
    let add = ["link", "add", name, "netns", one, "type", "veth", "peer", "name", name];
    ip(&[&add[..], &["netns", other]].concat())?;
    for (namespace, address) in sides {
        let namespace = namespace.name();
        ip(&["-n", namespace, "address", "add", address, "dev", name])?;
        ip(&[&["-n", namespace, "link", "set", name], options, &["up"]].concat())?;
    }
    Ok(())
}

/// Limits the rate at which a namespace sends on a cable, by a token bucket (`tc-tbf(8)`).
///
/// # Errors
/// Returns the message of `tc`.
pub fn limit_rate(namespace: &Namespace, cable: &str, rate: &str) -> Result<(), String> {
    let add = ["-n", namespace.name(), "qdisc", "add", "dev", cable, "root", "tbf"];
    let bucket = ["rate", rate, "burst", "256kb", "latency", "50ms"];
    tool("tc", &[&add[..], &bucket].concat()).map(drop)
}

/// Removes the namespaces of killed runs; returns a message that names them.
pub fn clear_up() -> Option<String> {
    let all = std::fs::read_dir(NAMESPACES).into_iter().flatten().flatten();
    let names = all.filter_map(|entry| entry.file_name().into_string().ok());
    let left = names.filter(|name| maker(name).is_some_and(|pid| !process::exists(pid)));
    let (mut removed, mut kept) = (Vec::new(), Vec::new());
    for name in left {
        match ip(&["netns", "delete", &name]) {
            Ok(_) => removed.push(name),
            Err(why) => kept.push(why),
        }
    }
    let removed = (!removed.is_empty())
        .then(|| format!("removed leftovers of a killed run: {}", removed.join(", ")));
    let kept = (!kept.is_empty())
        .then(|| format!("namespaces of a killed run remain: {}", kept.join(", ")));
    let messages: Vec<String> = [removed, kept].into_iter().flatten().collect();
    (!messages.is_empty()).then(|| messages.join("; "))
}

/// The ID of the process that created a namespace with this name; `None`: another program did.
fn maker(name: &str) -> Option<u32> {
    let (pid, side) = name.strip_prefix(NAME)?.split_once('-')?;
    SIDES.contains(&side).then(|| pid.parse().ok())?
}

/// Runs `ip` of iproute2; returns its output.
///
/// # Errors
/// Returns its error message, on one line.
pub fn ip(arguments: &[&str]) -> Result<String, String> {
    tool("ip", arguments)
}

fn tool(program: &str, arguments: &[&str]) -> Result<String, String> {
    let ran = Command::new(program).args(arguments).stdin(Stdio::null()).output();
    let Output { status, stdout, stderr } = ran.map_err(|error| format!("`{program}`: {error}"))?;
    match status.success() {
        true => Ok(String::from_utf8_lossy(&stdout).into_owned()),
        false => {
            let printed = String::from_utf8_lossy(&stderr);
            let printed = printed.lines().next().unwrap_or_default().to_owned();
            Err(format!("`{program} {}`: {printed}", arguments.join(" ")))
        }
    }
}

/// Explains a failure to create namespaces.
pub fn explained(why: &str) -> anyhow::Error {
    anyhow!(
        "this requires network namespaces, which root (CAP_NET_ADMIN and CAP_SYS_ADMIN) can create \
         with iproute2: {why}"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: namespaces of other programs, and of running ones, are not touched.
    #[test]
    fn namespaces_of_others_are_not_touched() {
        assert_eq!(maker("lunar-bench-17-target"), Some(17));
        assert_eq!(maker("lunar-bench-17-client"), Some(17));
        for name in ["lunar-bench-17", "lunar-bench-x-target", "lunar-bench-17-other", "other"] {
            assert_eq!(maker(name), None, "{name}");
        }
        assert!(process::exists(std::process::id()) && !process::exists(u32::MAX));
    }
}
