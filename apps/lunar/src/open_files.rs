//! Each connection is an open file, and systems give programs few of them unless they ask.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Takes as many open files as the system grants, and says so; the server then sees how many
/// connections they leave room for.
pub fn raise_limit() {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let Some(before) = current.filter(|_| current != maximum) else { return };
    let after = maximum.map_or_else(|| "unlimited".to_owned(), |maximum| maximum.to_string());
    match setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }) {
        Ok(()) => tracing::info!("open files: the limit is raised from {before} to {after}"),
        Err(error) => tracing::warn!("open files: the limit stays at {before}: {error}"),
    }
}
