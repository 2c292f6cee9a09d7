//! Targets that do not do all that RFC 7143 demands, and the initiator's way with them.
#![allow(clippy::unwrap_used, clippy::expect_used)] // a test may unwrap

mod server;
mod stand_in;

use block::{BlockDevice, BlockRange};
use initiator::{Error, RemoteDisk, SessionOptions, Url};
use server::{NAME, serve};
use stand_in::{Habit, Login, StandIn};
use std::time::Duration;
use target::Server;

const BLOCK_BYTES: usize = 512;
/// Longer than anything here should take, even on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

fn block_on<T>(future: impl Future<Output = T>) -> T {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    runtime
        .enable_all()
        .build()
        .unwrap()
        .block_on(async { tokio::time::timeout(PATIENCE, future).await.expect("nothing hangs") })
}

fn options(connections: u16) -> SessionOptions {
    let mut options = SessionOptions::new("iqn.2026-11.org.lunarsan:odd-targets");
    options.connections = connections;
    options
}

async fn open(stand_in: &StandIn, options: &SessionOptions) -> Result<RemoteDisk, Error> {
    let url: Url = format!("iscsi://{}/{NAME}/0", stand_in.address).parse().unwrap();
    RemoteDisk::connect(&url, options).await
}

async fn read(disk: &RemoteDisk, block: u64) -> Vec<u8> {
    let buffer = disk.unit().initiator().pool().take(BLOCK_BYTES);
    disk.read(BlockRange::new(block, 1), buffer).await.unwrap().to_vec()
}

/// Nothing is left.
async fn end(server: Server) {
    let end = move || server.shutdown(Duration::from_secs(5), &mut |_| {});
    let report = tokio::task::spawn_blocking(end).await.unwrap();
    assert!(report.failed_syncs.is_empty(), "{report:?}");
}

const NEWER_KEYS: [&str; 2] = ["TaskReporting", "iSCSIProtocolLevel"];

fn names_newer_keys(login: &Login) -> bool {
    NEWER_KEYS.into_iter().any(|key| login.names(key))
}

/// Fault: a target that closes the connection over keys it does not know could not be used.
///
/// Goal: it is asked once more without TaskReporting and iSCSIProtocolLevel, and later sessions
/// do not name them any more.
#[test]
fn a_target_that_closes_over_newer_keys() {
    block_on(async {
        let server = serve();
        let stand_in = StandIn::of(server.addresses()[0], Habit::ClosesOverNewerKeys).await;
        let disk = open(&stand_in, &options(2)).await.expect("it can do without the keys");
        assert_eq!(disk.connections(), 2);
        let named = |logins: &[Login]| logins.iter().map(names_newer_keys).collect::<Vec<_>>();
        assert_eq!(named(&stand_in.logins()), [true, false, false]);
        stand_in.cut_all();
        assert_eq!(read(&disk, 1).await, [0; BLOCK_BYTES]);
        assert_eq!(stand_in.leading_logins(), 3);
        assert!(named(&stand_in.logins())[3..].iter().all(|named| !named));
        assert_eq!(disk.unit().initiator().established().session.protocol_level, 1);
        disk.close().await.unwrap();
        end(server).await;
    });
}

/// Goal: at protocol level 1 the keys are not named in the first place, and a login that ends
/// without an answer is not tried again. It is tried again once where they were named, and the
/// next initiator names them anew.
#[test]
fn a_login_without_an_answer_is_tried_twice_at_most() {
    block_on(async {
        let server = serve();
        let stand_in = StandIn::of(server.addresses()[0], Habit::ClosesOverNewerKeys).await;
        let level_one = SessionOptions { protocol_level: 1, ..options(1) };
        let disk = open(&stand_in, &level_one).await.unwrap();
        assert!(!names_newer_keys(&stand_in.logins()[0]));
        assert_eq!(stand_in.logins().len(), 1);
        disk.close().await.unwrap();

        for (options, named) in [(options(1), vec![true, false]), (level_one, vec![false])] {
            let stand_in = StandIn::of(server.addresses()[0], Habit::ClosesEveryLogin).await;
            let error = open(&stand_in, &options).await.expect_err("nothing lets us in");
            assert!(error.to_string().contains("closed the connection"), "{error}");
            let said: Vec<bool> = stand_in.logins().iter().map(names_newer_keys).collect();
            assert_eq!(said, named);
        }
        end(server).await;
    });
}
