//! Starters of peers: one module for each program that a test or a measurement runs against.
//!
//! Targets: our own binary ([`lunar`]), Debian's [`tgt`] and [`istgt`], the kernel's LIO in a guest
//! ([`lio_guest`]), the [`null_target`], and an [`nfs`] server to compare with. Initiators: QEMU's
//! ([`qemu_io`], [`fuse_export`]), libiscsi's ([`iscsi_perf`], [`load_programs`]), the kernel's in
//! a guest ([`kernel_initiator`]). Between them: a [`byte_relay`].

pub mod byte_relay;
pub mod fuse_export;
pub mod iscsi_perf;
pub mod istgt;
pub mod kernel_initiator;
pub mod lio_guest;
pub mod load_programs;
pub mod lunar;
pub mod nfs;
pub mod null_target;
pub mod qemu_io;
pub mod tgt;
