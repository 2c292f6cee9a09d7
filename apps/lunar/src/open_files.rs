//! The limit of open files: each connection is an open file, and the default limit is low.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Raises the limit of open files to the maximum of the system, and logs it; the server derives its
/// number of connections from the limit.
pub fn raise_limit() {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let Some(before) = current.filter(|_| current != maximum) else { return };
    let after = maximum.map_or_else(|| "unlimited".to_owned(), |maximum| maximum.to_string());
    match setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }) {
        Ok(()) => tracing::info!("open files: limit raised from {before} to {after}"),
        Err(error) => tracing::warn!("open files: cannot raise the limit of {before}: {error}"),
    }
}
