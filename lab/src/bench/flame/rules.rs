//! Rules that assign each call of a profile to a part of the work.
//!
//! A call that has no rule of its own counts to its caller, and a sample counts to the part of the
//! innermost call. So `memcpy` of the kernel below `tcp_recvmsg` counts as receiving, and a map of
//! the standard library below `iscsi` counts to that crate. The kernel's calls and those of the
//! program are separate: a system call counts to the kernel, whichever crate made it.

use super::CodeKind;
use super::stacks::{CodeLocation, Frame, Stack};
use std::borrow::Cow;
use std::collections::BTreeMap;

/// A part of the work, and the colour of its calls.
pub type Part = (Cow<'static, str>, CodeKind);

/// Parts of the kernel by the names of their outer calls. A star matches any text; `sys_` matches
/// the names that architectures give to the entries of system calls.
#[rustfmt::skip] // a table
const KERNEL: &[(&str, CodeKind, &[&str])] = &[
    ("kernel: waiting and waking", CodeKind::Kernel, &[
        "schedule*", "__schedule*", "preempt_schedule*", "io_schedule*", "finish_task_switch",
        "try_to_wake_up", "wake_up_*", "__wake_up*", "sock_def_readable", "sock_def_write_space",
        "sk_stream_write_space", "ep_*", "do_epoll_*", "__do_sys_epoll_*", "sys_epoll_*",
        "do_futex", "futex_*", "__futex_*", "sys_futex", "eventfd_*", "timerfd_*",
        "hrtimer_nanosleep", "do_nanosleep", "do_sys_poll", "sys_poll", "sys_ppoll",
        "io_cqring_wait*", "read_events", "do_sched_yield", "ret_from_fork*",
    ]),
    ("kernel: interrupts", CodeKind::Kernel, &[
        "asm_sysvec_*", "sysvec_*", "asm_common_interrupt", "common_interrupt", "asm_exc_nmi",
        "irq_exit_rcu", "__irq_exit_rcu", "el0_interrupt", "el1_interrupt",
    ]),
    ("kernel: memory", CodeKind::Kernel, &[
        "asm_exc_page_fault", "exc_page_fault", "do_mem_abort", "handle_mm_fault", "sys_mmap",
        "sys_munmap", "sys_brk", "sys_madvise", "sys_mprotect", "sys_mremap",
    ]),
    // Files are written at an offset (pwrite, pwritev): writev without one is a socket's. The
    // option that is set while requests continue is TCP_CORK, and clearing it sends.
    ("kernel: sockets, sending", CodeKind::Network, &[
        "tcp_sendmsg*", "inet_sendmsg", "inet6_sendmsg", "sock_sendmsg*", "__sock_sendmsg",
        "____sys_sendmsg", "___sys_sendmsg", "__sys_sendmsg", "__sys_sendto", "sys_sendmsg",
        "sys_sendto", "sock_write_iter", "do_writev", "__sys_setsockopt", "sys_setsockopt",
    ]),
    ("kernel: sockets, receiving", CodeKind::Network, &[
        "tcp_recvmsg*", "inet_recvmsg", "inet6_recvmsg", "sock_recvmsg*", "__sys_recvfrom",
        "__sys_recvmsg", "___sys_recvmsg", "____sys_recvmsg", "sys_recvfrom", "sys_recvmsg",
        "sock_read_iter", "do_readv",
    ]),
    ("kernel: files, syncing", CodeKind::Files, &[
        "vfs_fsync*", "do_fsync", "sys_fsync", "sys_fdatasync", "io_fsync", "*_sync_file",
    ]),
    ("kernel: files, reading", CodeKind::Files, &[
        "sys_pread64", "ksys_pread64", "do_preadv", "sys_preadv*", "io_read", "aio_read",
        "*_file_read_iter", "blkdev_read_iter", "filemap_read",
    ]),
    ("kernel: files, writing", CodeKind::Files, &[
        "sys_pwrite64", "ksys_pwrite64", "do_pwritev", "sys_pwritev*", "io_write", "aio_write",
        "*_file_write_iter", "blkdev_write_iter", "generic_perform_write",
    ]),
    ("kernel: files, the rest of io_uring and aio", CodeKind::Files, &[
        "sys_io_uring_*", "__do_sys_io_uring_*", "io_submit_sqe*", "io_issue_sqe", "io_wq_*",
        "io_uring_*", "io_run_task_work*", "tctx_task_work*", "io_do_iopoll", "sys_io_submit",
        "__io_submit_one*", "io_submit_one*", "sys_io_getevents", "do_io_getevents",
    ]),
];

const KERNEL_OTHER: Part = (Cow::Borrowed("kernel: everything else"), CodeKind::Kernel);
const LIBRARY: Part = (Cow::Borrowed("C library"), CodeKind::Library);
const RUNTIME: Part = (Cow::Borrowed("runtime (tokio, mio)"), CodeKind::Runtime);
const RUST: Part = (Cow::Borrowed("Rust's own libraries"), CodeKind::Runtime);
const UNKNOWN: Part = (Cow::Borrowed("unknown"), CodeKind::Unknown);

/// Crates of this repository that may be in a target, without their prefix, which older builds do
/// not have.
const OWN: &[&str] =
    &["wire", "iscsi", "scsi", "block", "net", "target", "control", "load", "lunar", "lab"];
const RUNTIMES: &[&str] = &["tokio", "mio", "tokio_util", "futures_util", "futures_core"];
/// Crates whose work counts to their callers: collections, memory, locks.
const SERVANTS: &[&str] = &["core", "alloc", "std", "hashbrown", "bytes", "parking_lot"];

/// Returns the part of each call of a stack, from the outermost on.
pub fn parts(stack: &Stack) -> Vec<Part> {
    let mut caller: Option<(&CodeLocation, Part)> = None;
    let mut parts = Vec::with_capacity(stack.frames.len());
    for frame in &stack.frames {
        let like = caller.as_ref().filter(|(location, _)| *location == &frame.location);
        let own = part(frame, like.map(|(_, part)| part));
        caller = Some((&frame.location, own.clone()));
        parts.push(own);
    }
    parts
}

/// Returns the part of one call; `caller` is the part of a caller in the same location.
fn part(frame: &Frame, caller: Option<&Part>) -> Part {
    let inherited = |other: Part| caller.cloned().unwrap_or(other);
    match &frame.location {
        CodeLocation::Kernel => kernel(&frame.name).unwrap_or_else(|| inherited(KERNEL_OTHER)),
        CodeLocation::Library => LIBRARY,
        CodeLocation::Unknown => UNKNOWN,
        CodeLocation::Program(file) => match crate_of(&frame.name) {
            Some(name) if OWN.contains(&unprefixed(name)) => {
                (format!("Lunar: {}", unprefixed(name)).into(), CodeKind::Own)
            }
            Some(name) if RUNTIMES.contains(&name) => RUNTIME,
            Some(name) if SERVANTS.contains(&name) => inherited(RUST),
            Some(name) => (format!("crate {name}").into(), CodeKind::Runtime),
            None => (file.clone().into(), CodeKind::Own),
        },
    }
}

fn kernel(name: &str) -> Option<Part> {
    let entry = ["__x64_", "__arm64_", "__se_"].iter().find_map(|of| name.strip_prefix(of));
    let name = entry.unwrap_or(name);
    let rule = |(_, _, names): &&(_, _, &[&str])| names.iter().any(|like| is_like(name, like));
    KERNEL.iter().find(rule).map(|(part, kind, _)| (Cow::Borrowed(*part), *kind))
}

fn is_like(name: &str, like: &str) -> bool {
    match (like.strip_prefix('*'), like.strip_suffix('*')) {
        (Some(end), _) => name.ends_with(end),
        (_, Some(begin)) => name.starts_with(begin),
        _ => name == like,
    }
}

fn unprefixed(name: &str) -> &str {
    name.strip_prefix("lunar_").unwrap_or(name)
}

/// Returns the crate of a Rust function; of `<T as a::B>::f` that of the trait. `None`: not Rust.
fn crate_of(name: &str) -> Option<&str> {
    let is_name = |letter: char| letter.is_alphanumeric() || letter == '_';
    let candidates = std::iter::once(name).chain(name.split_once(" as ").map(|(_, of)| of));
    candidates.into_iter().find_map(|part| {
        let part = part.trim_start_matches(['<', '&', '*', '[', '(', ' ']);
        let part = ["mut ", "const ", "dyn "]
            .iter()
            .fold(part, |part, word| part.strip_prefix(word).unwrap_or(part));
        let end = part.find(|letter| !is_name(letter))?;
        (end > 0 && part[end..].starts_with("::")).then(|| &part[..end])
    })
}

/// Returns the parts with their number of samples, the largest first.
pub fn shares(stacks: &[Stack]) -> Vec<(String, u64)> {
    let mut counts: BTreeMap<String, u64> = BTreeMap::new();
    for (part, _) in stacks.iter().filter_map(|stack| parts(stack).pop()) {
        *counts.entry(part.into_owned()).or_default() += 1;
    }
    let mut shares: Vec<(String, u64)> = counts.into_iter().collect();
    shares.sort_by_key(|(_, samples)| std::cmp::Reverse(*samples));
    shares
}

#[cfg(test)]
mod tests {
    use super::super::stacks::parse;
    use super::super::stacks::tests::SCRIPT;
    use super::*;

    fn share_of(frames: &str) -> String {
        let stacks = parse(&format!("core-0 1\n{frames}"));
        shares(&stacks)[0].0.clone()
    }

    /// Goal: real samples are assigned to the right parts, each to one part: none is lost or
    /// counted twice.
    #[test]
    fn real_samples_have_their_part() {
        let each: Vec<String> =
            parse(SCRIPT).iter().map(|stack| parts(stack).pop().unwrap().0.into_owned()).collect();
        assert_eq!(
            each,
            [
                "kernel: files, reading",
                "kernel: sockets, receiving",
                "kernel: everything else",
                "Lunar: iscsi",
                "kernel: sockets, sending",
                "kernel: waiting and waking",
                "Lunar: target",
                "kernel: waiting and waking",
                "C library",
                "C library",
                "runtime (tokio, mio)",
                "kernel: sockets, receiving",
            ]
        );
        let shares = shares(&parse(SCRIPT));
        assert_eq!(shares.iter().map(|(_, samples)| samples).sum::<u64>(), each.len() as u64);
        assert!(shares.windows(2).all(|pair| pair[0].1 >= pair[1].1), "{shares:?}");
    }

    /// Goal: the call nearest to the code that ran decides: waking a client is not sending, an
    /// interrupt does not count to the interrupted code, a sync does not count to the write that
    /// caused it.
    #[test]
    fn the_nearest_rule_decides() {
        let kernel = |names: &[&str]| {
            let frames = names.iter().map(|name| format!("\t1 {name} ([kernel.kallsyms])\n"));
            share_of(&frames.collect::<String>())
        };
        let waking = ["_raw_spin_lock", "try_to_wake_up", "sock_def_readable", "tcp_rcv", "x"];
        assert_eq!(kernel(&waking), "kernel: waiting and waking");
        let interrupted = ["ktime_get", "asm_sysvec_apic_timer_interrupt", "tcp_sendmsg_locked"];
        assert_eq!(kernel(&interrupted), "kernel: interrupts");
        let uncorked = ["tcp_write_xmit", "do_tcp_setsockopt", "__sys_setsockopt", "x"];
        assert_eq!(kernel(&uncorked), "kernel: sockets, sending");
        let sync = ["blk_mq_submit_bio", "ext4_sync_file", "ext4_file_write_iter", "do_pwritev"];
        assert_eq!(kernel(&sync), "kernel: files, syncing");
        assert_eq!(kernel(&["memset", "__arm64_sys_io_uring_enter"]), KERNEL[8].0);
        assert_eq!(kernel(&["copy", "tcp_recvmsg", "vfs_read", "ksys_read"]), KERNEL[4].0);
        assert_eq!(kernel(&["entry_SYSCALL_64"]), KERNEL_OTHER.0);
    }

    /// Goal: crates are recognized by the names of functions, also of traits and generic types;
    /// work of the standard library counts to its caller; programs that are not Rust have their
    /// name.
    #[test]
    fn samples_are_attributed_to_crates() {
        let user = |names: &[&str]| {
            let frames = names.iter().map(|name| format!("\t1 {name} (/opt/lunar)\n"));
            share_of(&frames.collect::<String>())
        };
        assert_eq!(
            user(&["<lunar_block::file::File as lunar_block::Device>::read"]),
            "Lunar: block"
        );
        assert_eq!(user(&["<&mut T as core::fmt::Debug>::fmt", "lunar_scsi::plan"]), "Lunar: scsi");
        assert_eq!(user(&["<alloc::vec::Vec<T> as core::ops::Drop>::drop"]), RUST.0);
        assert_eq!(user(&["crc_fast::update", "lunar_iscsi::digest"]), "crate crc_fast");
        assert_eq!(user(&["core::ptr::drop_in_place<mio::A>", "mio::poll::wait"]), RUNTIME.0);
        assert_eq!(user(&["bs_rdwr_request"]), "lunar");
        assert_eq!(user(&["std::time::now", "core::x"]), RUST.0);
        // A caller in the kernel or in another file does not pass on its part.
        let mixed = "\t1 _raw_spin_lock ([kernel.kallsyms])\n\t1 net::run (/opt/lunar)\n";
        assert_eq!(share_of(mixed), KERNEL_OTHER.0);
    }
}
