//! Each connection is an open file, and systems give programs few of them unless they ask.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Files of a server besides those of its connections and units: runtimes, listeners, state, log.
const OTHERS: u64 = 128;
/// A unit has its device and its state open.
const OF_UNIT: u64 = 4;

/// Takes as many open files as the system grants, if `connections` and `units` want more than there
/// are; warns when they are too few all the same.
pub fn prepare(connections: usize, units: usize) {
    let wanted = OTHERS + connections as u64 + OF_UNIT * units as u64;
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current.is_none_or(|current| current >= wanted) {
        return;
    }
    let got = maximum.map_or(wanted, |maximum| maximum.min(wanted));
    let raised = setrlimit(Resource::Nofile, Rlimit { current: Some(got), maximum });
    let got = if raised.is_ok() { got } else { current.unwrap_or(wanted) };
    if got < wanted {
        tracing::warn!(
            "the system grants {got} open files, and {connections} connections may want {wanted}: \
             raise the hard limit (ulimit -Hn, LimitNOFILE=) or lower [limits] connections"
        );
    }
}
