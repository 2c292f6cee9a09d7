//! Exclusive ownership of a remote disk, against a real target.

use crate::lost_writes::block_on;
use crate::relay::{Relay, Rule};
use crate::server::{NAME, serve_device};
use crate::warnings::Warnings;
use futures_util::future::join_all;
use lunar_block::{
    BlockDevice, BlockRange, Error, ErrorKind, MemoryDevice, OwnershipClaim, OwnershipFence,
    OwnershipGrant, WriteLease,
};
use lunar_initiator::{RemoteDisk, SessionOptions, Url};
use lunar_target::Server;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

const PERSISTENT_RESERVE_IN: u8 = 0x5e;
const PERSISTENT_RESERVE_OUT: u8 = 0x5f;
const WRITE_16: u8 = 0x8a;
const RESERVATION_CONFLICT: u8 = 0x18;
const HOST_A: &str = "iqn.2026-11.org.lunarsan:host-a";
const HOST_B: &str = "iqn.2026-11.org.lunarsan:host-b";

/// A target that two hosts share.
struct SharedTarget {
    device: Arc<MemoryDevice>,
    server: Server,
}

impl SharedTarget {
    fn new() -> Self {
        let device = Arc::new(MemoryDevice::new(1 << 20, 512, 4096).unwrap());
        Self { server: serve_device(device.clone()), device }
    }

    async fn relay(&self) -> Relay {
        Relay::to(self.server.addresses()[0]).await
    }

    /// Restarts the target, which keeps no reservations.
    async fn restart(self) -> Self {
        let Self { device, server } = self;
        shut_down(server).await;
        Self { server: serve_device(device.clone()), device }
    }
}

async fn shut_down(server: Server) {
    let end = move || server.shutdown(Duration::from_secs(5), &mut |_| {});
    tokio::task::spawn_blocking(end).await.unwrap();
}

/// A host with the shared disk.
struct Host {
    disk: RemoteDisk,
    fence: Arc<OwnershipFence>,
    key: u64,
}

impl Host {
    async fn new(relay: &Relay, name: &str, key: u64, connections: u16) -> Self {
        let url: Url = format!("iscsi://{}/{NAME}/0", relay.address).parse().unwrap();
        let mut options = SessionOptions::new(name);
        options.connections = connections;
        let disk = RemoteDisk::connect(&url, &options).await.unwrap();
        Self { disk, fence: Arc::default(), key }
    }

    async fn acquire(&self, take_over: bool) -> Result<OwnershipGrant, Error> {
        let (key, fence) = (NonZeroU64::new(self.key << 32).unwrap(), Arc::clone(&self.fence));
        let claim = OwnershipClaim { key, take_over, fence };
        self.disk.ownership().unwrap().acquire(claim).await
    }

    async fn check(&self) -> Result<(), Error> {
        self.disk.ownership().unwrap().check().await
    }

    async fn release(&self) {
        self.disk.ownership().unwrap().release().await.unwrap();
    }

    async fn write(&self) -> Result<(), Error> {
        self.disk.write(BlockRange::new(1, 1), vec![self.key as u8; 512].into(), false).await
    }

    async fn read(&self) -> Result<u8, Error> {
        let buffer = self.disk.unit().initiator().pool().take(512);
        self.disk.read(BlockRange::new(1, 1), buffer).await.map(|data| data[0])
    }

    async fn assert_fenced(&self) {
        assert_eq!(self.write().await.unwrap_err().kind, ErrorKind::Fenced);
        assert!(self.fence.is_lost());
        assert_eq!(self.read().await.unwrap_err().kind, ErrorKind::Fenced);
        assert_eq!(self.disk.flush().await.unwrap_err().kind, ErrorKind::Fenced);
        assert_eq!(self.check().await.unwrap_err().kind, ErrorKind::Fenced);
        assert_eq!(self.acquire(true).await.unwrap_err().kind, ErrorKind::Fenced);
    }
}

fn owned_by(name: &str) -> OwnershipGrant {
    OwnershipGrant::OwnedBy(name.to_owned())
}

/// Goal: one host owns the disk; the other one learns its name, reads, and cannot write. After a
/// release the other one acquires it.
#[test]
fn one_host_owns_the_disk() {
    block_on(async {
        let target = SharedTarget::new();
        let relay = target.relay().await;
        let a = Host::new(&relay, HOST_A, 1, 1).await;
        let b = Host::new(&relay, HOST_B, 2, 1).await;
        b.check().await.expect("nothing to check");
        assert_eq!(a.acquire(false).await.unwrap(), OwnershipGrant::Acquired);
        assert_eq!(b.acquire(false).await.unwrap(), owned_by(HOST_A));
        a.write().await.unwrap();
        assert_eq!(b.read().await.unwrap(), 1);
        b.write().await.expect_err("only the owner writes");
        assert!(!b.fence.is_lost(), "the host never owned the disk");
        a.check().await.unwrap();
        assert!(matches!(a.acquire(false).await.unwrap(), OwnershipGrant::OwnedBy(_)));
        a.release().await;
        assert_eq!(b.acquire(false).await.unwrap(), OwnershipGrant::Acquired);
        assert_eq!(a.acquire(false).await.unwrap(), owned_by(HOST_B));
        b.write().await.unwrap();
        a.write().await.expect_err("the owner has released the disk");
        b.release().await;
        a.write().await.expect("nobody owns the disk");
        shut_down(target.server).await;
    });
}

/// Goal: after a take-over the former owner cannot write, and notices it with its next command, a
/// read included; its release does not affect the new owner.
#[test]
fn a_take_over_fences_the_former_owner() {
    block_on(async {
        let target = SharedTarget::new();
        let relay = target.relay().await;
        for connections in [1, 5] {
            let a = Host::new(&relay, HOST_A, 1, connections).await;
            let b = Host::new(&relay, HOST_B, 2, connections).await;
            assert_eq!(a.acquire(false).await.unwrap(), OwnershipGrant::Acquired);
            join_all((0..8).map(|_| a.write())).await.into_iter().for_each(Result::unwrap);
            assert_eq!(b.acquire(true).await.unwrap(), OwnershipGrant::Acquired);
            assert_eq!(a.read().await.unwrap_err().kind, ErrorKind::Fenced);
            a.assert_fenced().await;
            a.release().await;
            a.assert_fenced().await;
            b.check().await.unwrap();
            b.write().await.unwrap();
            assert_eq!(b.read().await.unwrap(), 2);
            b.release().await;
        }
        shut_down(target.server).await;
    });
}

/// Goal: a reservation conflict proves nothing while the reservation and the keys are still those
/// of the owner: the command is sent again, once, and a second failure does not count as loss of
/// the disk. Fault: one false conflict of a member of a mirror ended the whole pool.
#[test]
fn a_conflict_is_verified() {
    block_on(async {
        let target = SharedTarget::new();
        let relay = target.relay().await;
        let conflict = || Rule { status: Some((RESERVATION_CONFLICT, 0)), ..Rule::of(WRITE_16) };
        for connections in [1, 5] {
            let a = Host::new(&relay, HOST_A, 1, connections).await;
            assert_eq!(a.acquire(false).await.unwrap(), OwnershipGrant::Acquired);
            relay.rule(conflict());
            a.write().await.expect("the second attempt succeeds");
            relay.rule(conflict());
            relay.rule(conflict());
            let error = a.write().await.unwrap_err();
            assert_eq!(error.kind, ErrorKind::Medium, "{error}");
            relay.until_all_applied().await;
            assert!(!a.fence.is_lost());
            a.write().await.unwrap();
            a.check().await.unwrap();
            a.release().await;
        }
        shut_down(target.server).await;
    });
}

/// Goal: nothing is written after the lease of the disk has ended, neither at once nor again in
/// another session; COMPARE AND WRITE, which renews the lease, and reads are sent.
#[test]
fn a_disk_without_its_lease_is_not_written_to() {
    block_on(async {
        let target = SharedTarget::new();
        let relay = target.relay().await;
        let a = Host::new(&relay, HOST_A, 1, 1).await;
        let lease = Arc::<WriteLease>::default();
        let ownership = a.disk.ownership().unwrap();
        ownership.set_lease(Some(Arc::clone(&lease)));
        a.write().await.unwrap();
        lease.end();
        let error = a.write().await.unwrap_err();
        assert_eq!(error.kind, ErrorKind::Disconnected, "{error}");
        assert_eq!(relay.sent(WRITE_16), 1);
        assert_eq!(a.read().await.unwrap(), 1);
        lease.set_until(Instant::now() + Duration::from_secs(600));
        a.write().await.unwrap();
        relay.rule(Rule { cut: true, ..Rule::of(WRITE_16) });
        let end = async {
            relay.until_all_applied().await;
            lease.end();
        };
        let (written, ()) = tokio::join!(a.write(), end);
        written.expect_err("the write is not sent again");
        assert_eq!(relay.sent(WRITE_16), 3);
        ownership.set_lease(None);
        a.write().await.unwrap();
        shut_down(target.server).await;
    });
}

/// Goal: each path of the owner can write, also one that is added later, and after all sessions
/// were lost.
#[test]
fn all_paths_of_the_owner_write() {
    block_on(async {
        let target = SharedTarget::new();
        let relay = target.relay().await;
        let a = Host::new(&relay, HOST_A, 1, 5).await;
        let b = Host::new(&relay, HOST_B, 2, 1).await;
        assert_eq!(a.disk.paths(), 2);
        assert_eq!(a.acquire(false).await.unwrap(), OwnershipGrant::Acquired);
        let write = async || {
            let written = join_all((0..32).map(|_| a.write())).await;
            written.into_iter().for_each(Result::unwrap);
        };
        write().await;
        a.disk.set_connections(9).await;
        assert_eq!(a.disk.paths(), 3);
        write().await;
        relay.cut_all();
        write().await;
        assert_eq!(b.acquire(false).await.unwrap(), owned_by(HOST_A));
        a.release().await;
        assert_eq!(b.acquire(false).await.unwrap(), OwnershipGrant::Acquired);
        shut_down(target.server).await;
    });
}

/// Goal: after a restart of a target that has forgotten the reservation, the owner returns if
/// nobody else owned the disk meanwhile. Otherwise the owner is fenced, even if the other owner has
/// released the disk.
#[test]
fn a_target_forgets_the_reservation() {
    block_on(async {
        for is_used_meanwhile in [false, true] {
            let target = SharedTarget::new();
            let relay = target.relay().await;
            let a = Host::new(&relay, HOST_A, 1, 1).await;
            assert_eq!(a.acquire(false).await.unwrap(), OwnershipGrant::Acquired);
            let target = target.restart().await;
            let direct = target.relay().await;
            let b = Host::new(&direct, HOST_B, 2, 1).await;
            if is_used_meanwhile {
                assert_eq!(b.acquire(false).await.unwrap(), OwnershipGrant::Acquired);
                b.release().await;
                relay.redirect(target.server.addresses()[0]);
                a.assert_fenced().await;
                assert_eq!(b.acquire(false).await.unwrap(), OwnershipGrant::Acquired);
            } else {
                relay.redirect(target.server.addresses()[0]);
                a.write().await.expect("the disk is reserved again");
                assert_eq!(b.acquire(false).await.unwrap(), owned_by(HOST_A));
            }
            shut_down(target.server).await;
        }
    });
}

/// Goal: an owner that was killed gets its disk back with its key, without a take-over, and its
/// former run is fenced.
#[test]
fn an_owner_returns_with_its_key() {
    block_on(async {
        let target = SharedTarget::new();
        let relay = target.relay().await;
        let former = Host::new(&relay, HOST_A, 1, 5).await;
        assert_eq!(former.acquire(false).await.unwrap(), OwnershipGrant::Acquired);
        former.write().await.unwrap();
        let a = Host::new(&relay, HOST_A, 1, 5).await;
        assert_eq!(a.acquire(false).await.unwrap(), OwnershipGrant::Acquired);
        a.write().await.unwrap();
        former.assert_fenced().await;
        shut_down(target.server).await;
    });
}

/// Goal: a response that is lost with its session does not end an acquisition.
#[test]
fn a_query_with_a_lost_response_is_repeated() {
    block_on(async {
        let target = SharedTarget::new();
        let relay = target.relay().await;
        let a = Host::new(&relay, HOST_A, 1, 1).await;
        for rule in [PERSISTENT_RESERVE_OUT, PERSISTENT_RESERVE_IN] {
            relay.rule(Rule { cut: true, ..Rule::of(rule) });
            assert_eq!(a.acquire(false).await.unwrap(), OwnershipGrant::Acquired);
            relay.until_all_applied().await;
            a.write().await.unwrap();
            a.release().await;
        }
        shut_down(target.server).await;
    });
}

/// Goal: if a target truncates the data of PERSISTENT RESERVE IN, the error says so; the disk is
/// not owned then, and does not count as free. The next attempt succeeds.
#[test]
fn short_reservation_data_is_an_error() {
    block_on(async {
        let target = SharedTarget::new();
        let relay = target.relay().await;
        let a = Host::new(&relay, HOST_A, 1, 1).await;
        let b = Host::new(&relay, HOST_B, 2, 1).await;
        assert_eq!(b.acquire(false).await.unwrap(), OwnershipGrant::Acquired);
        for bytes in [0, 4, 7, 8, 20] {
            relay.rule(Rule { data_bytes: Some(bytes), ..Rule::of(PERSISTENT_RESERVE_IN) });
            let error = a.acquire(true).await.unwrap_err();
            let text = error.to_string();
            assert!(text.contains("PERSISTENT RESERVE IN (READ RESERVATION)"), "{text}");
            assert!(!a.fence.is_lost());
            b.check().await.expect("nothing was taken over");
        }
        assert_eq!(a.acquire(false).await.unwrap(), owned_by(HOST_B));
        assert_eq!(a.acquire(true).await.unwrap(), OwnershipGrant::Acquired);
        a.write().await.unwrap();
        shut_down(target.server).await;
    });
}

/// Goal: an initiator that is registered without a reservation is removed, because it could write;
/// a warning names it. Registrations of the same owner are removed without a warning.
#[test]
fn other_registrants_are_removed_by_name() {
    let warnings = Warnings::default();
    let run = async {
        let target = SharedTarget::new();
        let relay = target.relay().await;
        let a = Host::new(&relay, HOST_A, 1, 1).await;
        let b = Host::new(&relay, HOST_B, 2, 1).await;
        let register = |key: u64| {
            let mut list = vec![0; 24];
            list[8..16].copy_from_slice(&key.to_be_bytes());
            // REGISTER AND IGNORE EXISTING KEY.
            let cdb = vec![PERSISTENT_RESERVE_OUT, 6, 0, 0, 0, 0, 0, 0, 24, 0];
            b.disk.unit().command(cdb, list.into(), 0)
        };
        for (key, warned) in [(1 << 32 | 9, 0), (7 << 32, 1)] {
            register(key).await.unwrap();
            assert_eq!(a.acquire(false).await.unwrap(), OwnershipGrant::Acquired);
            assert_eq!(warnings.containing(&format!("{HOST_B} was registered")), warned);
            b.write().await.expect_err("only the owner writes");
            a.release().await;
        }
        shut_down(target.server).await;
    };
    tracing::subscriber::with_default(warnings.clone(), || block_on(run));
}
