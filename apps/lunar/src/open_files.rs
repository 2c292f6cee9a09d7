//! Each connection is an open file, and systems give programs few of them unless they ask.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Files of a server besides those of its cores, connections and units: listeners, state, log, and
/// units that come later.
const OTHERS: u64 = 256;
/// A core has a runtime and a ring.
const OF_CORE: u64 = 8;
/// A unit has its device and its state open.
const OF_UNIT: u64 = 4;

/// Takes as many open files as the system grants, if `cores` (0: all), `connections` and `units`
/// may want more than there are; warns when they are too few all the same.
pub fn prepare(cores: usize, connections: usize, units: usize) {
    let cores = match cores {
        0 => std::thread::available_parallelism().map_or(1, usize::from),
        cores => cores,
    };
    let wanted = OTHERS + OF_CORE * cores as u64 + connections as u64 + OF_UNIT * units as u64;
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current.is_none_or(|current| current >= wanted) {
        return;
    }
    let got = maximum.unwrap_or(wanted);
    let raised = setrlimit(Resource::Nofile, Rlimit { current: Some(got), maximum });
    let got = if raised.is_ok() { got } else { current.unwrap_or(wanted) };
    if got < wanted {
        tracing::warn!(
            "the system grants {got} open files, and {connections} connections may want {wanted}: \
             raise the hard limit (ulimit -Hn, LimitNOFILE=) or lower [limits] connections"
        );
    }
}
