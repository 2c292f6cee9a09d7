//! Targets that violate RFC 7143, and how the initiator handles them.

use crate::deviating_target::{DeviatingTarget, Deviation, Login};
use crate::server::{NAME, serve};
use crate::warnings::Warnings;
use futures_util::future::join_all;
use lunar_block::{BlockDevice, BlockRange};
use lunar_initiator::{Error, RemoteDisk, SessionOptions, Url};
use lunar_target::Server;
use std::time::Duration;

const BLOCK_BYTES: usize = 512;
/// Number of blocks that are written concurrently.
const BLOCKS: u64 = 64;
/// Lost sessions after which commands use one connection, as the library's documentation states.
const ORDER_LOSSES_MAX: usize = 3;
/// Sessions ended soon after a further connection joined, after which there is one connection.
const JOIN_LOSSES_MAX: usize = 3;
/// Attempts to re-establish a connection, as the library's documentation states.
const RETRIES_MAX: usize = 8;
/// Longer than any test should take, even on a busy machine.
const TEST_TIMEOUT: Duration = Duration::from_secs(60);

fn block_on<T>(future: impl Future<Output = T>) -> T {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    runtime.enable_all().build().unwrap().block_on(async {
        tokio::time::timeout(TEST_TIMEOUT, future).await.expect("nothing hangs")
    })
}

/// Runs `future` and collects the warnings that it logs.
fn block_on_with(warnings: &Warnings, future: impl Future<Output = ()>) {
    tracing::subscriber::with_default(warnings.clone(), || block_on(future));
}

fn options(connections: u16) -> SessionOptions {
    let mut options = SessionOptions::new("iqn.2026-11.org.lunarsan:odd-targets");
    options.connections = connections;
    options
}

async fn open(peer: &DeviatingTarget, options: &SessionOptions) -> Result<RemoteDisk, Error> {
    let url: Url = format!("iscsi://{}/{NAME}/0", peer.address).parse().unwrap();
    RemoteDisk::connect(&url, options).await
}

async fn read(disk: &RemoteDisk, block: u64) -> Vec<u8> {
    let buffer = disk.unit().initiator().pool().take(BLOCK_BYTES);
    disk.read(BlockRange::new(block, 1), buffer).await.unwrap().to_vec()
}

/// Shuts the server down; no data is left unsynced.
async fn end(server: Server) {
    let end = move || server.shutdown(Duration::from_secs(5), &mut |_| {});
    let report = tokio::task::spawn_blocking(end).await.unwrap();
    assert!(report.failed_syncs.is_empty(), "{report:?}");
}

/// Writes each of the first blocks of the disk concurrently, and reads them back.
async fn use_disk(disk: &RemoteDisk, seed: u8) {
    let data = |block: u64| vec![seed ^ block as u8; BLOCK_BYTES];
    let all = || 0..BLOCKS;
    let writes = all().map(|block| async move {
        disk.write(BlockRange::new(block, 1), data(block).into(), false).await.unwrap();
    });
    join_all(writes).await;
    let reads = all().map(|block| async move { assert_eq!(read(disk, block).await, data(block)) });
    join_all(reads).await;
    disk.flush().await.expect("nothing acknowledged was lost");
}

/// Fault: a target that closes a connection when CmdSN arrives out of order across the connections
/// of a session (SPDK does) lost session after session, without end.
///
/// Goal: after three lost sessions commands use one connection, which is logged once. Nothing is
/// lost from then on, and the user of the disk sees no error at any time, as with one connection.
#[test]
fn a_target_that_requires_commands_in_order() {
    for connections in [1, 2, 4] {
        let warnings = Warnings::default();
        block_on_with(&warnings, async {
            let server = serve();
            let peer = DeviatingTarget::of(server.addresses()[0], Deviation::ClosesOnGap).await;
            let disk = open(&peer, &options(connections)).await.unwrap();
            assert_eq!(disk.connections(), usize::from(connections));
            for round in 0..6 {
                use_disk(&disk, round).await;
            }
            let sessions = peer.leading_logins();
            let expected = if connections == 1 { 1 } else { 1 + ORDER_LOSSES_MAX };
            assert_eq!(sessions, expected, "{connections} connections");
            for round in 6..12 {
                use_disk(&disk, round).await;
            }
            assert_eq!(peer.leading_logins(), sessions, "nothing is lost any more");
            disk.close().await.unwrap();
            end(server).await;
        });
        let lines = warnings.containing("in CmdSN order");
        assert_eq!(lines, usize::from(connections > 1), "{connections} connections");
    }
}

/// Goal: connections that a target refuses are attempted once in a session, which is logged once;
/// the session continues with the existing ones.
#[test]
fn a_target_that_refuses_further_connections() {
    let warnings = Warnings::default();
    block_on_with(&warnings, async {
        let server = serve();
        let peer = DeviatingTarget::of(server.addresses()[0], Deviation::RefusesJoin).await;
        let disk = open(&peer, &options(4)).await.unwrap();
        assert_eq!(disk.connections(), 1);
        let tried = peer.logins().len();
        for round in 0..6 {
            use_disk(&disk, round).await;
        }
        assert_eq!(peer.logins().len(), tried);
        assert_eq!(peer.leading_logins(), 1);
        disk.close().await.unwrap();
        end(server).await;
    });
    assert_eq!(warnings.containing("connections"), 1, "{warnings:?}");
}

/// Fault: a connection that the target closed each time it had joined the session was
/// re-established every two seconds as long as the session lasted.
///
/// Goal: after eight attempts the session continues without it, which is logged once, and works
/// meanwhile and afterwards. Setting the number of connections starts new attempts.
#[test]
fn a_target_that_drops_further_connections() {
    const FURTHER: usize = 2;
    let warnings = Warnings::default();
    block_on_with(&warnings, async {
        let server = serve();
        let peer =
            DeviatingTarget::of(server.addresses()[0], Deviation::DropsJoinedConnection).await;
        let disk = open(&peer, &options(1 + FURTHER as u16)).await.unwrap();
        peer.until_joins(FURTHER * (1 + RETRIES_MAX)).await;
        // The longest pause between two attempts is two seconds.
        tokio::time::sleep(Duration::from_millis(2500)).await;
        let joins = peer.logins().len() - peer.leading_logins();
        assert_eq!((joins, disk.connections()), (FURTHER * (1 + RETRIES_MAX), 1));
        use_disk(&disk, 1).await;
        assert_eq!(peer.leading_logins(), 1, "the session continues");
        disk.set_connections(2).await;
        peer.until_joins(joins + 1).await;
        disk.close().await.unwrap();
        end(server).await;
    });
    assert_eq!(warnings.containing("closed or refused 8 times"), 1, "{warnings:?}");
}

/// Fault: a target that ends the whole session when a further connection logs in lost session after
/// session, without end.
///
/// Goal: after a few of them the disk continues with one connection, which is logged once. Nothing
/// is lost from then on, and the user of the disk sees no error at any time. Setting the number of
/// connections tries several again.
#[test]
fn a_target_that_ends_sessions_of_several_connections() {
    for deviation in [Deviation::EndsSessionOnJoin, Deviation::EndsJoinedSession] {
        let warnings = Warnings::default();
        block_on_with(&warnings, async {
            let server = serve();
            let peer = DeviatingTarget::of(server.addresses()[0], deviation).await;
            let disk = open(&peer, &options(4)).await.unwrap();
            for round in 0..6 {
                use_disk(&disk, round).await;
            }
            let sessions = peer.leading_logins();
            assert!(sessions <= 1 + JOIN_LOSSES_MAX + ORDER_LOSSES_MAX, "{sessions} sessions");
            for round in 6..12 {
                use_disk(&disk, round).await;
            }
            assert_eq!(peer.leading_logins(), sessions, "nothing is lost any more");
            assert_eq!(disk.connections(), 1);
            peer.change(Deviation::CutsLogins(0));
            disk.set_connections(2).await;
            assert_eq!(disk.connections(), 2);
            disk.close().await.unwrap();
            end(server).await;
        });
        assert_eq!(warnings.containing("sessions have one connection"), 1, "{warnings:?}");
    }
}

/// Goal: a re-established connection sends no more keys than one that joins for the first time:
/// keys of the leading login are left out (RFC 7143 §13).
#[test]
fn a_re_established_connection_sends_only_allowed_keys() {
    block_on(async {
        let server = serve();
        let peer =
            DeviatingTarget::of(server.addresses()[0], Deviation::DropsJoinedConnection).await;
        let disk = open(&peer, &options(2)).await.unwrap();
        peer.until_joins(3).await;
        let logins = peer.logins();
        assert!(logins[0].has_key("SessionType"));
        for login in logins.iter().filter(|login| !login.is_leading()) {
            let names: Vec<&str> =
                login.text.split(';').filter_map(|pair| pair.split('=').next()).collect();
            let joins = [
                "InitiatorName",
                "TargetName",
                "HeaderDigest",
                "DataDigest",
                "MaxRecvDataSegmentLength",
                "",
            ];
            assert_eq!((login.cid, &names[..]), (1, &joins[..]));
        }
        disk.close().await.unwrap();
        end(server).await;
    });
}

const NEWER_KEYS: [&str; 2] = ["TaskReporting", "iSCSIProtocolLevel"];

fn has_newer_keys(login: &Login) -> bool {
    NEWER_KEYS.into_iter().any(|key| login.has_key(key))
}

/// Returns for each login whether it contains the newer keys.
fn named(peer: &DeviatingTarget) -> Vec<bool> {
    peer.logins().iter().map(has_newer_keys).collect()
}

/// Fault: a target that closes the connection over unknown keys could not be used.
///
/// Goal: after it has done so twice, the initiator logs in without TaskReporting and
/// iSCSIProtocolLevel, and later sessions leave them out.
#[test]
fn a_target_that_closes_over_newer_keys() {
    block_on(async {
        let server = serve();
        let peer = DeviatingTarget::of(server.addresses()[0], Deviation::ClosesOverNewerKeys).await;
        let disk = open(&peer, &options(2)).await.expect("it can do without the keys");
        assert_eq!(disk.connections(), 2);
        assert_eq!(named(&peer), [true, true, false, false]);
        peer.cut_all();
        assert_eq!(read(&disk, 1).await, [0; BLOCK_BYTES]);
        assert_eq!(peer.leading_logins(), 4);
        assert!(named(&peer)[4..].iter().all(|named| !named));
        assert_eq!(disk.unit().initiator().established().session.protocol_level, 1);
        disk.close().await.unwrap();
        end(server).await;
    });
}

/// Fault: a single login that was cut by chance made the initiator leave out TaskReporting and
/// iSCSIProtocolLevel for good, although the target supports them.
///
/// Goal: the login is repeated with them, both the first one and when a session is re-established.
#[test]
fn one_interrupted_login_does_not_drop_newer_keys() {
    block_on(async {
        let server = serve();
        let peer = DeviatingTarget::of(server.addresses()[0], Deviation::CutsLogins(1)).await;
        let disk = open(&peer, &options(1)).await.unwrap();
        let level = || disk.unit().initiator().established().session.protocol_level;
        assert_eq!((named(&peer), level()), (vec![true, true], 2));
        peer.change(Deviation::CutsLogins(1));
        peer.cut_all();
        assert_eq!(read(&disk, 1).await, [0; BLOCK_BYTES]);
        assert_eq!((named(&peer), level()), (vec![true; 4], 2));
        disk.close().await.unwrap();
        end(server).await;
    });
}

/// Fault: a finding about a target held for good, even after the target was down and came back as a
/// newer version.
///
/// Goal: after a login without TaskReporting and iSCSIProtocolLevel fails, the next one contains
/// them.
#[test]
fn newer_keys_are_offered_anew_when_a_login_failed() {
    block_on(async {
        let server = serve();
        let peer = DeviatingTarget::of(server.addresses()[0], Deviation::ClosesOverNewerKeys).await;
        let disk = open(&peer, &options(1)).await.unwrap();
        assert_eq!(named(&peer), [true, true, false]);
        peer.change(Deviation::CutsLogins(1));
        peer.cut_all();
        assert_eq!(read(&disk, 1).await, [0; BLOCK_BYTES]);
        assert_eq!(named(&peer)[3..], [false, true]);
        assert_eq!(disk.unit().initiator().established().session.protocol_level, 2);
        disk.close().await.unwrap();
        end(server).await;
    });
}

/// Fault: a target that closes each connection right after its login, and requires no wait before
/// the next (DefaultTime2Wait), got 400 logins and 800 warnings per second.
///
/// Goal: the logins of a command's second are as few as the growing pauses allow, however fast the
/// machine, and the first session that answers a command is established as usual.
#[test]
fn a_target_that_closes_after_each_login() {
    // The shortest pauses: 25, 50, 100, 200, 400 and 800 ms.
    const LOGINS_MAX: usize = 6;
    let warnings = Warnings::default();
    block_on_with(&warnings, async {
        let server = serve();
        let peer = DeviatingTarget::of(server.addresses()[0], Deviation::CutsLogins(0)).await;
        let options = SessionOptions { recovery_seconds: 1, ..options(1) };
        let disk = open(&peer, &options).await.unwrap();
        peer.change(Deviation::ClosesAfterLogin);
        peer.cut_all();
        let before = peer.leading_logins();
        let buffer = disk.unit().initiator().pool().take(BLOCK_BYTES);
        let error = disk.read(BlockRange::new(0, 1), buffer).await.expect_err("no session lasts");
        assert_eq!(error.kind, lunar_block::ErrorKind::Disconnected, "{error}");
        assert!(error.to_string().contains("lost soon after"), "{error}");
        let logins = peer.leading_logins() - before;
        assert!((2..=LOGINS_MAX).contains(&logins), "{logins} logins");
        peer.change(Deviation::CutsLogins(0));
        // The pause may be longer than the recovery time of one command.
        let buffer = || disk.unit().initiator().pool().take(BLOCK_BYTES);
        while let Err(error) = disk.read(BlockRange::new(0, 1), buffer()).await {
            assert_eq!(error.kind, lunar_block::ErrorKind::Disconnected, "{error}");
        }
        disk.close().await.unwrap();
        end(server).await;
    });
    // For each loss until a session answers a command; they are at most as many as the logins.
    let lines = warnings.containing("session lost") + warnings.containing("session re-established");
    assert!((2..=2 * LOGINS_MAX).contains(&lines), "{lines} warnings");
}

/// Goal: at protocol level 1 the keys are never sent, and a login that ends without an answer is
/// not repeated. With the keys it is repeated twice, and the next initiator sends them again.
#[test]
fn a_login_without_an_answer_is_tried_three_times_at_most() {
    block_on(async {
        let server = serve();
        let peer = DeviatingTarget::of(server.addresses()[0], Deviation::ClosesOverNewerKeys).await;
        let level_one = SessionOptions { protocol_level: 1, ..options(1) };
        let disk = open(&peer, &level_one).await.unwrap();
        assert!(!has_newer_keys(&peer.logins()[0]));
        assert_eq!(peer.logins().len(), 1);
        disk.close().await.unwrap();

        for (options, named) in [(options(1), vec![true, true, false]), (level_one, vec![false])] {
            let peer =
                DeviatingTarget::of(server.addresses()[0], Deviation::ClosesEveryLogin).await;
            let error = open(&peer, &options).await.expect_err("nothing lets us in");
            assert!(error.to_string().contains("closed the connection"), "{error}");
            assert_eq!(self::named(&peer), named);
        }
        end(server).await;
    });
}
