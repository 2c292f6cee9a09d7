//! Memory available to this process: that of the machine or of its control groups.

use std::fs;
use std::path::{Path, PathBuf};

/// Minimum of the default of `[limits] memory_bytes_max`, for small machines.
pub const MEMORY_BYTES_MAX_DEFAULT_MIN: usize = 256 << 20;

/// Divisor of the memory for that default.
const MEMORY_DIVISOR: u64 = 4;

/// The default of `[limits] memory_bytes_max`: a quarter of the machine's memory, or of the lowest
/// limit of a control group of this process (version 1 and 2), and at least 256 MiB.
pub fn memory_bytes_max_default() -> usize {
    let bytes = process_memory_bytes() / MEMORY_DIVISOR;
    usize::try_from(bytes).unwrap_or(usize::MAX).max(MEMORY_BYTES_MAX_DEFAULT_MIN)
}

/// The memory of the machine, or the lowest limit of a control group of this process.
pub fn process_memory_bytes() -> u64 {
    // /proc/meminfo does not exist with ProcSubset=pid (systemd.exec(5)).
    let machine = rustix::system::sysinfo();
    let machine_bytes = machine.totalram.saturating_mul(machine.mem_unit.into());
    memory_bytes(Path::new("/"), machine_bytes)
}

/// The memory of the machine, or the lower limit of a control group, according to `/proc` below
/// `root`.
fn memory_bytes(root: &Path, machine_bytes: u64) -> u64 {
    let read = |path: &str| fs::read_to_string(root.join(path)).unwrap_or_default();
    let groups = group_directories(&read("proc/self/cgroup"), &read("proc/self/mountinfo"));
    let limits = groups.iter().flat_map(|group| group.limits(root));
    limits.fold(machine_bytes, u64::min)
}

/// A control group of this process.
#[derive(Debug, Eq, PartialEq)]
struct Group {
    /// The mount point of the hierarchy.
    mount: PathBuf,
    /// The group's directory below the mount point.
    below: PathBuf,
    /// The file with the limit.
    file: &'static str,
}

impl Group {
    /// The limits of the group and its parents in bytes; a group without a limit has none.
    fn limits(&self, root: &Path) -> Vec<u64> {
        let mount = root.join(relative(&self.mount));
        let files = self.below.ancestors().map(|group| mount.join(group).join(self.file));
        let texts = files.filter_map(|file| fs::read_to_string(file).ok());
        texts.filter_map(|text| text.trim().parse().ok()).collect()
    }
}

/// The groups that `/proc/self/cgroup` names, at their mount points in `/proc/self/mountinfo`.
fn group_directories(cgroup: &str, mountinfo: &str) -> Vec<Group> {
    let mut groups = Vec::new();
    for line in cgroup.lines() {
        let mut fields = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else { continue };
        let (kind, file) = match controllers {
            "" => ("cgroup2", "memory.max"),
            names if names.split(',').any(|name| name == "memory") => {
                ("cgroup", "memory.limit_in_bytes")
            }
            _ => continue,
        };
        let mounts = mountinfo.lines().filter_map(|line| mount_of(line, kind));
        groups.extend(mounts.map(|(top, mount)| {
            // In a container, the mount may show only a part of the hierarchy.
            let below = Path::new(path).strip_prefix(top).unwrap_or(Path::new(""));
            Group { mount: mount.into(), below: relative(below).into(), file }
        }));
    }
    groups
}

/// The mounted part of a hierarchy of control groups, and its mount point: fields 4 and 5 of a line
/// of proc(5) mountinfo. Of version 1 only the hierarchy of the memory controller counts.
fn mount_of<'l>(line: &'l str, kind: &str) -> Option<(&'l str, &'l str)> {
    let (mount, system) = line.split_once(" - ")?;
    let mut system = system.split(' ');
    let is_kind = system.next() == Some(kind);
    let options = system.nth(1).unwrap_or_default();
    let has_memory = kind == "cgroup2" || options.split(',').any(|option| option == "memory");
    let mut fields = mount.split(' ').skip(3);
    (is_kind && has_memory).then_some((fields.next()?, fields.next()?))
}

fn relative(path: &Path) -> &Path {
    path.strip_prefix("/").unwrap_or(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MACHINE: u64 = 16 << 30;
    const MOUNTS_1: &str = "\
        30 25 0:26 / /sys/fs/cgroup ro - tmpfs tmpfs ro,mode=755\n\
        31 30 0:27 / /sys/fs/cgroup/cpu rw shared:8 - cgroup cgroup rw,cpu\n\
        32 30 0:28 / /sys/fs/cgroup/memory rw,nosuid shared:9 - cgroup cgroup rw,memory\n";
    const MOUNTS_2: &str =
        "29 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n";

    /// Memory according to a `/proc` and control group files in a directory of their own.
    fn machine(name: &str, cgroup: &str, mounts: &str, files: &[(&str, &str)]) -> u64 {
        let root = std::env::temp_dir().join(format!("memory-{name}-{}", std::process::id()));
        let own = [("proc/self/cgroup", cgroup)];
        for (path, text) in own.iter().chain(&[("proc/self/mountinfo", mounts)]).chain(files) {
            let path = root.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let bytes = memory_bytes(&root, MACHINE);
        fs::remove_dir_all(&root).unwrap();
        bytes
    }

    /// Goal: the lowest limit up to the root counts, in both versions; without limits the machine's
    /// memory does.
    #[test]
    fn the_lowest_limit_counts() {
        let none = machine("none", "0::/\n", MOUNTS_2, &[]);
        assert_eq!(none, MACHINE);
        let files = [
            ("sys/fs/cgroup/a.slice/memory.max", "1073741824\n"),
            ("sys/fs/cgroup/a.slice/b.service/memory.max", "max\n"),
        ];
        let two = machine("two", "0::/a.slice/b.service\n", MOUNTS_2, &files);
        assert_eq!(two, 1 << 30);
        let files = [
            ("sys/fs/cgroup/memory/a/memory.limit_in_bytes", "536870912\n"),
            ("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"),
            ("sys/fs/cgroup/cpu/a/memory.limit_in_bytes", "1\n"),
        ];
        let one = machine("one", "5:cpu:/a\n4:memory:/a\n0::/\n", MOUNTS_1, &files);
        assert_eq!(one, 512 << 20);
    }

    /// Goal: in a container, whose mount shows only its own part of the hierarchy, the limit is
    /// found.
    #[test]
    fn the_limit_of_a_container_is_found() {
        let mounts = "9 8 0:28 /docker/x /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n";
        let files = [("sys/fs/cgroup/memory/memory.limit_in_bytes", "805306368\n")];
        assert_eq!(machine("part", "4:memory:/docker/x\n", mounts, &files), 768 << 20);
    }

    #[test]
    fn the_default_is_at_least_the_minimum() {
        assert!(memory_bytes_max_default() >= MEMORY_BYTES_MAX_DEFAULT_MIN);
    }
}
