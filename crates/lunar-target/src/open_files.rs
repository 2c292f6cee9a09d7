//! Number of connections that there is room for. Each takes memory and an open file, of which
//! systems grant a process few by default.

use crate::memory::CONNECTION_BYTES;
use rustix::process::{Resource, getrlimit};

/// Open files of a server besides those of its cores, connections and units: listeners, state, log,
/// the API, metrics, and units added later.
const OPEN_FILES_KEPT: usize = 256;
/// Open files of a core, which has a runtime and a ring.
const OPEN_FILES_OF_CORE: usize = 8;
/// Open files of a unit: its device and its state.
const OPEN_FILES_OF_UNIT: usize = 4;
/// Number of evicted connections that are not closed yet, at which no more are accepted.
pub(crate) const EVICTED_MAX: usize = 64;

/// Number of connections that the soft limit of open files leaves room for.
pub(crate) fn connections_max(cores: usize, units: usize) -> usize {
    let limit = getrlimit(Resource::Nofile).current.and_then(|limit| usize::try_from(limit).ok());
    limit.map_or(usize::MAX, |limit| connections_within(limit, cores, units))
}

/// Number of connections within a limit of open files; a quarter of a limit that is too low for all
/// else.
fn connections_within(limit: usize, cores: usize, units: usize) -> usize {
    let of_server = OPEN_FILES_OF_CORE * cores + OPEN_FILES_OF_UNIT * units;
    limit.saturating_sub(OPEN_FILES_KEPT + EVICTED_MAX + of_server).max(limit / 4)
}

/// Number of idle connections that take half of this memory: the other half is for their work.
pub(crate) fn connections_in_memory(limit_bytes: usize) -> usize {
    (limit_bytes / 2 / CONNECTION_BYTES).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn open_files_are_reserved_for_other_uses() {
        for (limit, connections) in [(1024, 684), (65_536, 65_196), (64, 16), (400, 100), (0, 0)] {
            assert_eq!(connections_within(limit, 2, 1), connections, "of {limit}");
        }
    }
}
