//! Finding the server that runs on this machine.

use super::listening;
use crate::Failure;
use crate::http::{Address, is_live, runtime_directories};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

/// Directories for the socket of a server that systemd started, the same for every user.
pub(super) const SYSTEM_DIRECTORIES: [&str; 2] = ["/run/lunar", "/var/lib/lunar"];
/// File extension of the state directory that `lunar serve disk.img` creates.
const STATE_EXTENSION: &str = "lunar";
/// User ID of root, whose sockets are always trusted.
const ROOT: u32 = 0;
/// Maximum number of directory entries that are examined.
const ENTRIES_MAX: usize = 10_000;

/// Sockets found in the directories where servers create them.
#[derive(Debug, Default)]
struct FoundSockets {
    live: Vec<PathBuf>,
    /// Sockets owned by neither this user nor root, in directories that anybody may write to.
    foreign: Vec<PathBuf>,
    denied: Vec<PathBuf>,
    /// The searched sockets, as patterns for people.
    tried: Vec<PathBuf>,
}

/// Paths that are searched for sockets of servers.
#[derive(Debug, Default)]
pub(super) struct SearchPaths {
    /// Directories in which users put no sockets for others to find.
    pub(super) trusted: Vec<PathBuf>,
    /// Directories in which only sockets of this user and of root count.
    pub(super) shared: Vec<PathBuf>,
    /// Single sockets.
    pub(super) sockets: Vec<PathBuf>,
}

/// Finds the only running server: in the directories of the environment, in those of the system,
/// and in the state directories of disks in the current directory.
///
/// # Errors
/// Fails if there is no server, if there are several (which are listed), or if the socket belongs
/// to another user or permits no access.
pub fn find() -> Result<Address, Failure> {
    let mut trusted = runtime_directories();
    trusted.extend(SYSTEM_DIRECTORIES.map(PathBuf::from));
    let here = std::env::current_dir().unwrap_or_else(|_| PathBuf::from("."));
    let shared = state_directories(&here);
    find_in(&SearchPaths { trusted, shared, sockets: Vec::new() })
}

/// Finds the only running server in `paths`.
///
/// # Errors
/// Same as [`find`].
pub(super) fn find_in(paths: &SearchPaths) -> Result<Address, Failure> {
    let owners = [rustix::process::geteuid().as_raw(), ROOT];
    select_server(find_sockets(paths, owners))
}

fn select_server(mut found: FoundSockets) -> Result<Address, Failure> {
    let list = |paths: &[PathBuf]| {
        let all: Vec<_> = paths.iter().map(|path| format!("unix:{}", path.display())).collect();
        all.join(" ")
    };
    if found.live.len() > 1 {
        return Err(Failure::usage(format!(
            "{} servers are running on this machine",
            found.live.len()
        ))
        .hint(format!("select one with --api: {}", list(&found.live))));
    }
    match (found.live.pop(), found.denied.is_empty()) {
        (Some(path), _) => Ok(Address::Unix(path)),
        _ if !found.foreign.is_empty() => {
            let what = format!(
                "the only running server belongs to another user: {}",
                list(&found.foreign)
            );
            Err(Failure::new(what).hint("to use it, select it with --api"))
        }
        (None, false) => Err(Failure::new(format!("permission denied: {}", list(&found.denied)))
            .hint(
                "only its owner may use the socket: run this command as the server's user, or \
                 with sudo",
            )),
        (None, true) => {
            let what =
                format!("no running server was found: none listens on {}", list(&found.tried));
            let elsewhere = listening::sockets();
            Err(Failure::new(what).hint(match elsewhere.is_empty() {
                true => "start one (lunar serve DEVICE), or give the API address that the server \
                         printed: --api unix:PATH or --api ADDRESS:PORT"
                    .to_owned(),
                false => format!("select a server that runs here with --api: {}", list(&elsewhere)),
            }))
        }
    }
}

/// Searches the paths. In shared directories, only sockets of `owners` count.
fn find_sockets(paths: &SearchPaths, owners: [u32; 2]) -> FoundSockets {
    let SearchPaths { trusted, shared, sockets } = paths;
    let mut found = FoundSockets::default();
    for socket in sockets {
        found.tried.push(socket.clone());
        look_at(socket.clone(), None, &mut found);
    }
    let mut seen = Vec::new();
    let trusted = trusted.iter().map(|directory| (directory, None));
    for (directory, owners) in trusted.chain(shared.iter().map(|shared| (shared, Some(owners)))) {
        found.tried.push(directory.join("*.sock"));
        // A directory that is listed under two names counts once.
        let Ok(directory) = directory.canonicalize() else { continue };
        if seen.contains(&directory) {
            continue;
        }
        match std::fs::read_dir(&directory) {
            Ok(entries) => {
                for path in entries.take(ENTRIES_MAX).flatten().map(|entry| entry.path()) {
                    if path.extension().is_some_and(|extension| extension == "sock") {
                        look_at(path, owners, &mut found);
                    }
                }
            }
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                found.denied.push(directory.join("api.sock"));
            }
            Err(_) => {}
        }
        seen.push(directory);
    }
    found.live.sort();
    found
}

fn look_at(path: PathBuf, owners: Option<[u32; 2]>, found: &mut FoundSockets) {
    let Ok(metadata) = path.symlink_metadata() else { return };
    if !metadata.file_type().is_socket() {
        return;
    }
    let is_foreign = owners.is_some_and(|owners| !owners.contains(&metadata.uid()));
    match is_live(&path) {
        Ok(true) if is_foreign => found.foreign.push(path),
        Ok(true) => found.live.push(path),
        Ok(false) => {} // left by a killed server
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => found.denied.push(path),
        Err(_) => {}
    }
}

fn state_directories(directory: &Path) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(directory) else { return Vec::new() };
    let paths = entries.take(ENTRIES_MAX).flatten().map(|entry| entry.path());
    paths
        .filter(|path| path.extension().is_some_and(|extension| extension == STATE_EXTENSION))
        .filter(|path| path.is_dir())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;

    /// Goal: a live server is found, sockets left by killed servers are ignored, several live ones
    /// are listed.
    #[test]
    fn the_only_live_server_is_found() {
        let name = format!("lunar-find-{}", std::process::id());
        let scratch = std::env::temp_dir().canonicalize().unwrap().join(name);
        let state = scratch.join("disk.img.lunar");
        std::fs::create_dir_all(&state).unwrap();
        let me = [rustix::process::geteuid().as_raw(), ROOT];
        let paths = |trusted: &[&PathBuf], shared: Vec<PathBuf>| SearchPaths {
            trusted: trusted.iter().map(|path| (*path).clone()).collect(),
            shared,
            sockets: Vec::new(),
        };
        let looked = || find_sockets(&paths(&[&scratch], state_directories(&scratch)), me);
        assert!(select_server(looked()).is_err());
        drop(UnixListener::bind(scratch.join("stale.sock")).unwrap());
        std::fs::write(scratch.join("file.sock"), "").unwrap();
        let _other = UnixListener::bind(scratch.join("other")).unwrap();
        let none = select_server(looked()).unwrap_err();
        assert!(none.hint.unwrap().contains("--api"));
        let tried = format!("unix:{}/*.sock", state.display());
        assert!(none.what.contains(&tried), "{}", none.what);
        let first = UnixListener::bind(state.join("serve-1.sock")).unwrap();
        let twice = paths(&[&state, &scratch, &state], Vec::new());
        let found = Address::Unix(state.join("serve-1.sock"));
        assert_eq!(select_server(find_sockets(&twice, me)).unwrap(), found);
        assert_eq!(select_server(looked()).unwrap(), found);
        // Another user who may write to this directory could have put the socket there to obtain
        // the token.
        let others = [me[0] + 1, me[0] + 1];
        let foreign = paths(&[], state_directories(&scratch));
        let foreign = select_server(find_sockets(&foreign, others)).unwrap_err();
        assert!(foreign.what.contains("another user"), "{foreign}");
        let trusted = paths(&[&state], Vec::new());
        assert_eq!(select_server(find_sockets(&trusted, others)).unwrap(), found);
        let second = UnixListener::bind(scratch.join("api.sock")).unwrap();
        let hint = select_server(looked()).unwrap_err().hint.unwrap();
        assert!(hint.contains("serve-1.sock") && hint.contains("api.sock"), "{hint}");
        drop((first, second));
        std::fs::remove_dir_all(&scratch).unwrap();
    }
}
