//! A control group with a memory limit for the server, of cgroup v1 or v2. The adversary and the
//! well-behaved client stay outside of it.
//!
//! If no group can be made (no root, no such hierarchy), the resident memory of the process is
//! sampled instead, and the runner ends a server that passes the limit.

use anyhow::{Context, Result};
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// Usual mount point of the memory controller of v1.
const MOUNT_V1: &str = "/sys/fs/cgroup/memory";
/// Usual mount point of the single hierarchy of v2.
const MOUNT_V2: &str = "/sys/fs/cgroup";

/// Version of the hierarchy that a group belongs to.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Version {
    /// Version 1: sockets are counted separately (`memory.kmem.tcp.*`).
    V1,
    /// Version 2: one figure covers everything.
    V2,
}

/// A group of one server. Dropping it removes it; its processes must have ended before.
#[derive(Debug)]
pub struct MemoryGroup {
    folder: PathBuf,
    version: Version,
}

impl MemoryGroup {
    /// Makes a group with this limit; `None`: this machine does not allow it.
    pub fn new(limit_bytes: u64) -> Option<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("lunar-adversary-{}-{number}", std::process::id());
        Self::mounts().into_iter().find_map(|(mount, version)| {
            Self::make(Path::new(mount), version, &name, limit_bytes).ok()
        })
    }

    /// Mount points of the hierarchies of each version.
    pub fn mounts() -> [(&'static str, Version); 2] {
        [(MOUNT_V1, Version::V1), (MOUNT_V2, Version::V2)]
    }

    fn make(mount: &Path, version: Version, name: &str, limit_bytes: u64) -> Result<Self> {
        let has_controller = match version {
            Version::V1 => mount.join("memory.limit_in_bytes").exists(),
            Version::V2 => fs::read_to_string(mount.join("cgroup.controllers"))?.contains("memory"),
        };
        anyhow::ensure!(has_controller, "no memory controller at {}", mount.display());
        let folder = mount.join(name);
        fs::create_dir(&folder).with_context(|| folder.display().to_string())?;
        let group = Self { folder, version };
        let limit = limit_bytes.to_string();
        match version {
            Version::V1 => {
                group.write("memory.limit_in_bytes", &limit)?;
                // Sockets are only counted once they have a limit.
                group.write("memory.kmem.tcp.limit_in_bytes", &limit)?;
                // A kernel without swap accounting has no such file.
                drop(group.write("memory.memsw.limit_in_bytes", &limit));
            }
            Version::V2 => {
                group.write("memory.max", &limit)?;
                drop(group.write("memory.swap.max", "0"));
            }
        }
        Ok(group)
    }

    /// Returns the version of the group's hierarchy.
    pub fn version(&self) -> Version {
        self.version
    }

    /// Returns the file `cgroup.procs`, into which a process writes its PID to enter the group.
    pub fn procs_file(&self) -> String {
        self.folder.join("cgroup.procs").display().to_string()
    }

    /// Returns the memory in use by processes, by the kernel for them, and by their sockets,
    /// without the page cache, which the kernel frees under pressure.
    ///
    /// # Errors
    /// The group is gone.
    pub fn used_bytes(&self) -> Result<u64> {
        let stat = self.read("memory.stat")?;
        let (used, cache) = match self.version {
            Version::V1 => {
                let sockets = self.number("memory.kmem.tcp.usage_in_bytes")?;
                (self.number("memory.usage_in_bytes")? + sockets, field(&stat, "total_cache"))
            }
            Version::V2 => (self.number("memory.current")?, field(&stat, "file")),
        };
        Ok(used.saturating_sub(cache))
    }

    /// Returns the number of processes that the kernel has killed for lack of memory.
    ///
    /// # Errors
    /// The group is gone.
    pub fn killed(&self) -> Result<u64> {
        let file = match self.version {
            Version::V1 => "memory.oom_control",
            Version::V2 => "memory.events",
        };
        Ok(field(&self.read(file)?, "oom_kill"))
    }

    fn read(&self, file: &str) -> Result<String> {
        let path = self.folder.join(file);
        fs::read_to_string(&path).with_context(|| path.display().to_string())
    }

    fn number(&self, file: &str) -> Result<u64> {
        Ok(self.read(file)?.trim().parse()?)
    }

    fn write(&self, file: &str, text: &str) -> Result<()> {
        let path = self.folder.join(file);
        fs::write(&path, text).with_context(|| path.display().to_string())
    }
}

impl Drop for MemoryGroup {
    fn drop(&mut self) {
        // The kernel releases a group shortly after its last process.
        for _ in 0..50 {
            match fs::remove_dir(&self.folder) {
                Err(error) if error.kind() != ErrorKind::NotFound => {}
                _ => return,
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// Returns the number after a word at the beginning of a line; 0: there is no such line.
fn field(text: &str, name: &str) -> u64 {
    let number = |line: &str| line.strip_prefix(name)?.strip_prefix(' ')?.trim().parse().ok();
    text.lines().find_map(number).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::system::process::run;
    use crate::system::scratch::Scratch;

    /// Goal: if a group can be made, a program that exceeds its limit is killed and counted, and
    /// nothing remains of the group.
    #[test]
    fn a_group_holds_its_limit() -> Result<()> {
        let Some(group) = MemoryGroup::new(64 << 20) else { return Ok(()) };
        assert_eq!(group.killed()?, 0);
        let take = "taken = b'x' * (256 << 20)";
        let script = format!("echo $$ > {} && exec python3 -c \"{take}\"", group.procs_file());
        let finished = run("sh", &["-c", &script], Duration::from_secs(60))?;
        assert_eq!((finished.signal(), group.killed()?), (Some(9), 1), "{finished:?}");
        let folder = group.folder.clone();
        drop(group);
        assert!(!folder.exists());
        Ok(())
    }

    /// Goal: both versions are set up and read by their own files.
    /// Method: folders that look like a mounted hierarchy.
    #[test]
    fn both_versions_are_read() -> Result<()> {
        let scratch = Scratch::new("memory-group")?;
        let (v1, v2) = (scratch.folder().join("v1"), scratch.folder().join("v2"));
        fs::create_dir(&v1)?;
        fs::create_dir(&v2)?;
        fs::write(v1.join("memory.limit_in_bytes"), "9")?;
        fs::write(v2.join("cgroup.controllers"), "cpu memory io\n")?;
        assert!(MemoryGroup::make(&v1, Version::V2, "no", 1).is_err());
        assert!(MemoryGroup::make(&v2, Version::V1, "no", 1).is_err());
        let old = MemoryGroup::make(&v1, Version::V1, "a", 1000)?;
        assert_eq!(old.read("memory.limit_in_bytes")?, "1000");
        old.write("memory.usage_in_bytes", "700\n")?;
        old.write("memory.kmem.tcp.usage_in_bytes", "50\n")?;
        old.write("memory.stat", "cache 1\nrss 2\ntotal_cache 300\n")?;
        old.write("memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n")?;
        assert_eq!((old.used_bytes()?, old.killed()?), (450, 3));
        let new = MemoryGroup::make(&v2, Version::V2, "b", 1000)?;
        assert_eq!(new.read("memory.max")?, "1000");
        new.write("memory.current", "700\n")?;
        new.write("memory.stat", "anon 1\nfile 200\nfile_mapped 9\n")?;
        new.write("memory.events", "low 0\noom 1\noom_kill 1\noom_group_kill 0\n")?;
        assert_eq!((new.used_bytes()?, new.killed()?), (500, 1));
        // The kernel does not remove plain folders.
        fs::remove_dir_all(&old.folder)?;
        fs::remove_dir_all(&new.folder)?;
        Ok(())
    }
}
