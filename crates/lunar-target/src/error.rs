//! Errors of the server itself.

/// A failure of the server itself: what failed, and what to do.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The server cannot listen on an address.
    #[error(
        "cannot listen on {address} ({source}): choose another --listen address, or stop the \
         server that uses it"
    )]
    Listen {
        /// The address.
        address: std::net::SocketAddr,
        /// The cause.
        source: std::io::Error,
    },
    /// The state directory cannot be used.
    #[error("state file {}: {what}", path.display())]
    State {
        /// The file or directory.
        path: std::path::PathBuf,
        /// The problem, and what to do.
        what: String,
    },
    /// A device failed.
    #[error(transparent)]
    Device(#[from] lunar_block::Error),
    /// The options contradict themselves.
    #[error("{0}")]
    Options(String),
    /// A thread or runtime could not be started.
    #[error("cannot start a data-plane thread")]
    Thread(#[source] std::io::Error),
}
