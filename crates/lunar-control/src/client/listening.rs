//! The sockets of all servers that this user may examine, wherever they are.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// Name of the program.
const PROGRAM: &str = "lunar";
/// `SO_ACCEPTCON` in `/proc/net/unix`: the socket listens.
const LISTENS: &str = "00010000";
/// Maximum number of processes, and of open files of a process, that are examined.
const ENTRIES_MAX: usize = 100_000;

/// The unix sockets on which servers listen, as the kernel lists them; no socket is connected to,
/// as that could start a service.
pub(super) fn sockets() -> Vec<PathBuf> {
    let inodes = open_sockets();
    let table = fs::read_to_string("/proc/net/unix").unwrap_or_default();
    let paths = table.lines().filter_map(|line| listening_path(line, &inodes));
    let all: BTreeSet<_> = paths.filter(|path| path.exists()).collect();
    all.into_iter().collect()
}

/// The path in a line of `/proc/net/unix`, if the socket listens and is one of `inodes`.
fn listening_path(line: &str, inodes: &BTreeSet<String>) -> Option<PathBuf> {
    // Padded columns: Num RefCount Protocol Flags Type St Inode Path. A path may contain spaces.
    let mut rest = line;
    let mut column = || {
        let (column, after) = rest.trim_start().split_once(' ')?;
        rest = after;
        Some(column)
    };
    let columns: Vec<_> = std::iter::from_fn(&mut column).take(7).collect();
    let &[_, _, _, flags, _, _, inode] = &columns[..] else { return None };
    (flags == LISTENS && inodes.contains(inode) && rest.starts_with('/')).then(|| rest.into())
}

/// The inodes of the sockets that processes of the program have open.
fn open_sockets() -> BTreeSet<String> {
    let processes = entries(Path::new("/proc"));
    let is_program = |process: &PathBuf| {
        fs::read_to_string(process.join("comm")).is_ok_and(|name| name.trim_end() == PROGRAM)
    };
    let files = processes.filter(is_program).flat_map(|process| entries(&process.join("fd")));
    let links =
        files.filter_map(|file| fs::read_link(file).ok()?.into_os_string().into_string().ok());
    let inode = |link: String| Some(link.strip_prefix("socket:[")?.strip_suffix(']')?.to_owned());
    links.filter_map(inode).collect()
}

fn entries(directory: &Path) -> impl Iterator<Item = PathBuf> + use<> {
    let entries = fs::read_dir(directory).into_iter().flatten();
    entries.take(ENTRIES_MAX).flatten().map(|entry| entry.path())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listening_sockets_of_the_program_are_listed() {
        let inodes = BTreeSet::from(["77".to_owned()]);
        let path = |line: &str| listening_path(line, &inodes);
        let listens =
            "000000002a28bb22: 00000002 00000000 00010000 0001 01    77 /srv/a b/api.sock";
        assert_eq!(path(listens), Some("/srv/a b/api.sock".into()));
        assert_eq!(path(&listens.replace("00010000", "00000000")), None);
        assert_eq!(path(&listens.replace(" 77 ", " 78 ")), None);
        assert_eq!(path(&listens.replace("/srv", "@srv")), None);
        assert_eq!(path("Num       RefCount Protocol Flags    Type St Inode Path"), None);
    }
}
