//! Acknowledged writes that a target has lost, or wrongly seems to have lost.

use crate::relay::{Relay, Rule};
use crate::server::{NAME, serve_device};
use bytes::Bytes;
use futures_util::future::join_all;
use lunar_block::{BlockDevice, BlockRange};
use lunar_initiator::{Error, ErrorKind, RemoteDisk, SessionOptions, Url};
use lunar_scsi::sense::{Sense, SenseFormat};
use lunar_target::Server;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinHandle;

const TEST_UNIT_READY: u8 = 0x00;
const SYNCHRONIZE_CACHE: u8 = 0x35;
const WRITE_16: u8 = 0x8a;
/// Longer than any test should take, even on a busy machine.
const TEST_TIMEOUT: Duration = Duration::from_secs(60);

pub struct Rig {
    pub relay: Relay,
    pub disk: Arc<RemoteDisk>,
    server: Server,
}

impl Rig {
    pub async fn new(connections: u16) -> Self {
        let memory = lunar_block::MemoryDevice::new(1 << 20, 512, 4096).unwrap();
        Self::with(Arc::new(memory), |options| options.connections = connections).await
    }

    /// Serves `device`, and opens it with options that `change` has changed.
    pub async fn with(
        device: Arc<dyn BlockDevice>,
        change: impl FnOnce(&mut SessionOptions),
    ) -> Self {
        let server = serve_device(device);
        let relay = Relay::to(server.addresses()[0]).await;
        let url: Url = format!("iscsi://{}/{NAME}/0", relay.address).parse().unwrap();
        let mut options = SessionOptions::new("iqn.2026-11.org.lunarsan:lost-writes");
        change(&mut options);
        let disk = Arc::new(RemoteDisk::connect(&url, &options).await.unwrap());
        assert_eq!(disk.connections(), usize::from(options.connections));
        assert!(disk.has_write_cache());
        Self { relay, disk, server }
    }

    async fn write(&self) {
        let data = Bytes::from(vec![5; 512]);
        self.disk.write(BlockRange::new(1, 1), data, false).await.unwrap();
    }

    async fn read(&self) -> Vec<u8> {
        let buffer = self.disk.unit().initiator().pool().take(512);
        self.disk.read(BlockRange::new(1, 1), buffer).await.unwrap().to_vec()
    }

    /// Sends TEST UNIT READY on the first idle connection.
    fn test_ready(&self) -> JoinHandle<Result<(), Error>> {
        let unit = self.disk.unit().clone();
        tokio::spawn(async move { unit.test_ready().await })
    }

    fn flush(&self) -> JoinHandle<Result<(), lunar_block::Error>> {
        let disk = Arc::clone(&self.disk);
        tokio::spawn(async move { disk.flush().await })
    }

    /// Closes the disk and shuts the server down; nothing is left.
    pub async fn end(self) {
        Arc::into_inner(self.disk).unwrap().close().await.unwrap();
        let end = move || self.server.shutdown(Duration::from_secs(5), &mut |_| {});
        let report = tokio::task::spawn_blocking(end).await.unwrap();
        assert!(report.failed_syncs.is_empty(), "{report:?}");
        assert_eq!(report.connections_cut, 0, "{report:?}");
    }
}

pub fn block_on<T>(future: impl Future<Output = T>) -> T {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    runtime.enable_all().build().unwrap().block_on(async {
        tokio::time::timeout(TEST_TIMEOUT, future).await.expect("nothing hangs")
    })
}

fn assert_cache_lost(flushed: Result<(), lunar_block::Error>) {
    let error = flushed.expect_err("acknowledged writes may be lost");
    let source = std::error::Error::source(&error).unwrap();
    let kind = &source.downcast_ref::<Error>().unwrap().kind;
    assert_eq!(*kind, ErrorKind::CacheLost, "{error}");
}

fn fixed(sense: &Sense) -> Vec<u8> {
    sense.encode(SenseFormat::Fixed)
}

/// Encodes sense data as a deferred error. SPC-4 §4.5.1.
fn deferred(sense: &Sense, format: SenseFormat) -> Vec<u8> {
    let mut bytes = sense.encode(format);
    bytes[0] |= 1;
    bytes
}

/// Delays the response to a command on one connection by the rule `late`. A flush on the other
/// connection is answered before it, but after the target has executed the command.
async fn flush_during_a_late_answer(rig: &Rig, late: Rule, is_abandoned: bool) {
    rig.write().await;
    rig.relay.rule(Rule { held: true, ..late });
    let pending = rig.test_ready();
    rig.relay.until_all_applied().await;
    let flushed = rig.flush();
    rig.relay.until_answered(SYNCHRONIZE_CACHE).await;
    if is_abandoned {
        pending.abort();
    }
    rig.relay.release_held();
    assert_cache_lost(flushed.await.unwrap());
    let _ = pending.await;
}

/// Goal: a flush does not overtake the report of a reset that arrives on another connection.
#[test]
fn a_flush_does_not_overtake_a_reset() {
    block_on(async {
        let rig = Rig::new(2).await;
        let sense = Some(fixed(&Sense::POWER_ON_RESET));
        flush_during_a_late_answer(&rig, Rule { sense, ..Rule::of(TEST_UNIT_READY) }, false).await;
        rig.disk.flush().await.expect("the loss is reported once");
        rig.end().await;
    });
}

/// Goal: a flush does not overtake the report of a reset even if the caller has abandoned the
/// command that delivers the report.
#[test]
fn a_reset_reported_to_an_abandoned_command_fails_the_flush() {
    block_on(async {
        let rig = Rig::new(2).await;
        let sense = Some(fixed(&Sense::POWER_ON_RESET));
        flush_during_a_late_answer(&rig, Rule { sense, ..Rule::of(TEST_UNIT_READY) }, true).await;
        rig.disk.flush().await.expect("the loss is reported once");
        rig.end().await;
    });
}

/// Goal: a flush does not succeed if the report of a reset may be lost with its connection.
#[test]
fn a_flush_fails_if_responses_were_lost() {
    block_on(async {
        let rig = Rig::new(2).await;
        flush_during_a_late_answer(&rig, Rule { cut: true, ..Rule::of(TEST_UNIT_READY) }, false)
            .await;
        rig.disk.flush().await.expect("the loss is reported once");
        rig.write().await;
        rig.disk.flush().await.expect("the next session has lost nothing");
        rig.end().await;
    });
}

/// Goal: a flush without anything to make durable does not wait, and no flush waits forever: a late
/// response without a report is no loss.
#[test]
fn a_late_answer_is_no_loss() {
    block_on(async {
        let rig = Rig::new(2).await;
        rig.write().await;
        rig.disk.flush().await.unwrap();
        rig.relay.rule(Rule { held: true, ..Rule::of(TEST_UNIT_READY) });
        let pending = rig.test_ready();
        rig.relay.until_all_applied().await;
        rig.disk.flush().await.expect("nothing was written since the last flush");
        assert!(!pending.is_finished());
        rig.write().await;
        rig.relay.clear_answered();
        let flushed = rig.flush();
        rig.relay.until_answered(SYNCHRONIZE_CACHE).await;
        assert!(!flushed.is_finished(), "the other connection may still report a reset");
        rig.relay.release_held();
        flushed.await.unwrap().expect("the other connection reported no loss");
        pending.await.unwrap().unwrap();
        rig.end().await;
    });
}

/// Goal: if many callers use a new session at once, the unit attention that reports its start does
/// not count as a reset, even if another connection returns GOOD before the unit attention is read.
/// Method: Lunar's target does not behave like that (RFC 7143 §4.2.2.3.3), so the relay replaces
/// its unit attention by another response, and the next response by the unit attention.
#[test]
fn a_late_unit_attention_of_a_new_session_is_no_reset() {
    block_on(async {
        let rig = Rig::new(2).await;
        rig.write().await;
        let harmless = Some(fixed(&Sense::MODE_PARAMETERS_CHANGED));
        rig.relay.rule(Rule { failed: true, sense: harmless, ..Rule::of(TEST_UNIT_READY) });
        let sense = Some(fixed(&Sense::NEXUS_LOSS));
        rig.relay.rule(Rule { sense, held: true, ..Rule::of(TEST_UNIT_READY) });
        rig.relay.cut_all();
        let reads = join_all((0..8).map(|_| rig.read()));
        let late_attention = async {
            rig.relay.until_all_applied().await;
            rig.relay.until_answered(TEST_UNIT_READY).await;
            rig.relay.release_held();
        };
        let (reads, ()) = tokio::join!(reads, late_attention);
        assert!(reads.iter().flatten().all(|byte| *byte == 5));
        rig.disk.flush().await.expect("the nexus was lost, the cache was not");
        rig.end().await;
    });
}

/// Goal: a deferred error of an earlier command does not fail the command that delivers it, which
/// is sent again; the next flush fails once, whatever was flushed before. Both formats of sense
/// data.
#[test]
fn a_deferred_error_fails_the_flush_and_not_the_command() {
    block_on(async {
        for (connections, format) in [(1, SenseFormat::Fixed), (2, SenseFormat::Descriptor)] {
            let rig = Rig::new(connections).await;
            rig.write().await;
            rig.disk.flush().await.unwrap();
            for opcode in [WRITE_16, TEST_UNIT_READY, SYNCHRONIZE_CACHE] {
                let sense = deferred(&Sense::WRITE_ERROR.with_information(1), format);
                rig.relay.rule(Rule { sense: Some(sense), ..Rule::of(opcode) });
                match opcode {
                    WRITE_16 => rig.write().await,
                    TEST_UNIT_READY => rig.test_ready().await.unwrap().unwrap(),
                    _ => {}
                }
                assert_cache_lost(rig.disk.flush().await);
                rig.disk.flush().await.expect("the loss is reported once");
            }
            let sense =
                deferred(&Sense::new(lunar_scsi::sense::SenseKey::RECOVERED_ERROR, 0), format);
            rig.relay.rule(Rule { sense: Some(sense), ..Rule::of(WRITE_16) });
            rig.write().await;
            rig.disk.flush().await.expect("a recovered error is no loss");
            assert_eq!(rig.read().await, [5; 512]);
            rig.end().await;
        }
    });
}

/// Goal: a failed flush also fails concurrent flushes, which the target may answer with GOOD,
/// because each of them promises durability of the same writes. If there is no concurrent flush,
/// the next flush fails. Another user of the disk can read the count of losses.
#[test]
fn a_failed_flush_fails_concurrent_flushes() {
    block_on(async {
        let rig = Rig::new(2).await;
        rig.write().await;
        assert_eq!(rig.disk.losses(), 0);
        let failed =
            || Rule { sense: Some(fixed(&Sense::WRITE_ERROR)), ..Rule::of(SYNCHRONIZE_CACHE) };
        rig.relay.rule(Rule { held: true, ..failed() });
        let first = rig.flush();
        rig.relay.until_all_applied().await;
        let concurrent = rig.flush();
        rig.relay.until_answered(SYNCHRONIZE_CACHE).await;
        rig.relay.release_held();
        let error = first.await.unwrap().expect_err("the flush failed");
        assert_eq!(error.kind, lunar_block::ErrorKind::Medium, "{error}");
        assert_cache_lost(concurrent.await.unwrap());
        assert_eq!(rig.disk.losses(), 1);
        rig.disk.flush().await.expect("the loss was reported");

        rig.relay.rule(failed());
        rig.disk.flush().await.expect_err("the flush failed");
        assert_eq!(rig.disk.losses(), 2);
        assert_cache_lost(rig.disk.flush().await);
        rig.disk.flush().await.expect("the loss was reported");
        assert_eq!(rig.disk.losses(), 2);
        rig.end().await;
    });
}
