//! Finds out whether the kernel permits rings: tested and logged once.

use io_uring::{IoUring, Probe, opcode};
use std::io;
use std::sync::OnceLock;

/// Returns true when rings can be created; logs the reason if not. A result that may be temporary,
/// such as a lack of descriptors, is not cached.
pub(in crate::file) fn is_permitted() -> bool {
    static PERMITTED: OnceLock<bool> = OnceLock::new();
    if let Some(permitted) = PERMITTED.get() {
        return *permitted;
    }
    match probe() {
        Ok(()) => {
            tracing::info!("io_uring is permitted: each core has a ring for direct I/O");
            *PERMITTED.get_or_init(|| true)
        }
        Err(error) => {
            let why = meaning(&error);
            tracing::warn!(
                %error,
                why,
                "io_uring is not available: worker threads read and write files"
            );
            let permanent_errors =
                [libc::EPERM, libc::EACCES, libc::ENOSYS, libc::EINVAL].map(Some);
            if permanent_errors.contains(&error.raw_os_error()) {
                PERMITTED.get_or_init(|| false);
            }
            false
        }
    }
}

fn probe() -> io::Result<()> {
    let ring = IoUring::new(1)?;
    let mut probe = Probe::new();
    ring.submitter().register_probe(&mut probe)?;
    if probe.is_supported(opcode::Read::CODE) && probe.is_supported(opcode::Write::CODE) {
        return Ok(());
    }
    Err(io::Error::from_raw_os_error(libc::ENOSYS))
}

/// Returns the meaning of an error of `io_uring_setup`.
fn meaning(error: &io::Error) -> &'static str {
    match error.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => {
            "blocked by the seccomp profile of the container or service, or by the sysctl \
             kernel.io_uring_disabled"
        }
        Some(libc::ENOSYS | libc::EINVAL) => {
            "not supported by this kernel, or only an older version, or hidden by the seccomp \
             profile of the container"
        }
        Some(libc::ENOMEM) => "its memory cannot be locked: raise RLIMIT_MEMLOCK",
        Some(libc::EMFILE | libc::ENFILE) => {
            "no file descriptors left: raise the limit of open files"
        }
        _ => "refused by the kernel",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: each refusal by a kernel, a container or a limit is explained by name.
    #[test]
    fn refusals_are_explained() {
        let meaning_of = |errno| meaning(&io::Error::from_raw_os_error(errno));
        assert!(meaning_of(libc::EPERM).contains("seccomp"));
        assert!(meaning_of(libc::ENOSYS).contains("kernel"));
        assert!(meaning_of(libc::ENOSYS).contains("container"), "as podman and Docker do");
        assert!(meaning_of(libc::ENOMEM).contains("RLIMIT_MEMLOCK"));
        assert!(meaning_of(libc::EMFILE).contains("open files"));
    }
}
