//! How many connections there is room for: each is an open file, of which systems give a process
//! few unless it asks, and takes memory.

use crate::memory::CONNECTION_BYTES;
use rustix::process::{Resource, getrlimit};

/// Open files of a server besides those of its cores, connections and units: listeners, state, log,
/// the API, metrics, and units that come later.
const OPEN_FILES_KEPT: usize = 256;
/// A core has a runtime and a ring.
const OPEN_FILES_OF_CORE: usize = 8;
/// A unit has its device and its state open.
const OPEN_FILES_OF_UNIT: usize = 4;
/// Connections that made room for others and are not closed yet; no more are accepted meanwhile.
pub(crate) const EVICTED_MAX: usize = 64;

/// How many connections the soft limit of open files leaves room for.
pub(crate) fn connections_max(cores: usize, units: usize) -> usize {
    let limit = getrlimit(Resource::Nofile).current.and_then(|limit| usize::try_from(limit).ok());
    limit.map_or(usize::MAX, |limit| connections_within(limit, cores, units))
}

/// Of a limit that is too low for all else, a quarter.
fn connections_within(limit: usize, cores: usize, units: usize) -> usize {
    let of_server = OPEN_FILES_OF_CORE * cores + OPEN_FILES_OF_UNIT * units;
    limit.saturating_sub(OPEN_FILES_KEPT + EVICTED_MAX + of_server).max(limit / 4)
}

/// How many connections take half of so much memory while nothing is asked of them: the other half
/// is for what is.
pub(crate) fn connections_in_memory(limit_bytes: usize) -> usize {
    (limit_bytes / 2 / CONNECTION_BYTES).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_kept_for_all_else() {
        for (limit, connections) in [(1024, 684), (65_536, 65_196), (64, 16), (400, 100), (0, 0)] {
            assert_eq!(connections_within(limit, 2, 1), connections, "of {limit}");
        }
    }
}
