//! All login options, value by value: the initiator as a library against tgt, istgt and our own
//! target, each configured in every way that both sides support.
#![allow(clippy::unwrap_used)] // a test may unwrap

mod peers;
mod rows;

use crate::targets::TargetKind;
use anyhow::{Context, Result, ensure};
use lunar_block::{BlockDevice, BlockRange};
use lunar_initiator::{Chap, Error, ErrorKind, RemoteDisk, SessionOptions, Url, discover};
use lunar_iscsi::login::{ChapAlgorithm, Credential, Secret};
use lunar_iscsi::text::Digest;
use lunar_lab::random::pattern;
use lunar_lab::wire::cutter::Cutter;
use peers::{Peer, Setup, algorithms};
use rows::{ROWS, Row};
use std::time::Duration;

const USER: &str = "user";
const SECRET: &str = "a-secret-12345";
const PROOF_USER: &str = "target";
const PROOF: &str = "another-67890";
const INITIATOR: &str = "iqn.2026-11.org.lunarsan.test:login-options";
const WAIT_MAX: Duration = Duration::from_secs(60);
/// Number of blocks of the disks: 4 MiB.
const DISK_BLOCKS: u64 = 8192;
/// Number of rows that run at a time, since peers take their time to start and to log in.
const AT_ONCE: usize = 4;
/// Numbers of blocks that are written and read: sizes on both sides of every limit.
const SIZES: &[u64] = &[1, 2, 3, 16, 17, 33, 127, 129, 511, 1000, 2049];

fn block_on<T>(future: impl Future<Output = Result<T>>) -> Result<T> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async { tokio::time::timeout(WAIT_MAX, future).await.context("it hangs")? })
}

fn credential(user: &str, secret: &str) -> Credential {
    Credential { user: user.to_owned(), secret: Secret::new(secret) }
}

fn chap(algorithms: &[ChapAlgorithm], mutual: bool) -> Chap {
    let target = mutual.then(|| credential(PROOF_USER, PROOF));
    Chap { algorithms: algorithms.to_vec(), ..Chap::new(credential(USER, SECRET), target) }
}

fn options(row: &Row, who: TargetKind) -> SessionOptions {
    let mut options = SessionOptions::new(INITIATOR);
    options.header_digest = row.header_digest.to_vec();
    options.data_digest = row.data_digest.to_vec();
    options.chap = row.chap.map(|mutual| chap(algorithms(who), mutual));
    options
}

/// Writes pieces of odd offsets and sizes and reads them back.
async fn use_disk(disk: &RemoteDisk, seed: u64) -> Result<()> {
    for (at, blocks) in (1..).zip(SIZES) {
        let range = BlockRange::new(at * 37, *blocks);
        let data = pattern(seed + at, *blocks as usize * 512);
        disk.write(range, data.clone().into(), at % 3 == 0).await?;
        let buffer = disk.unit().initiator().pool().take(data.len());
        let back = disk.read(range, buffer).await?;
        ensure!(back[..] == data[..], "{range:?} was read back changed");
    }
    disk.flush().await?;
    Ok(())
}

/// Logs out. istgt 0.4 now and then closes the connection without a Logout Response.
async fn close(disk: RemoteDisk, who: TargetKind) -> Result<()> {
    match disk.close().await {
        Err(error) if who != TargetKind::Istgt => Err(error).context("the logout"),
        _ => Ok(()),
    }
}

/// Checks that the negotiated values are those that both sides require, and that I/O works.
async fn log_in(row: &Row, peer: &Peer, seed: u64) -> Result<()> {
    let disk = RemoteDisk::connect(&peer.url()?, &options(row, peer.who)).await?;
    let settled = disk.unit().initiator().established();
    let (session, connection) = (settled.session, settled.connection);
    let wanted = row.expects(peer.who);
    ensure!(session.immediate_data == wanted.immediate_data, "{session:?}");
    ensure!(session.initial_r2t == wanted.initial_r2t, "{session:?}");
    ensure!(session.max_burst_bytes == wanted.max_burst_bytes, "{session:?}");
    if wanted.immediate_data || !wanted.initial_r2t {
        ensure!(session.first_burst_bytes == wanted.first_burst_bytes, "{session:?}");
    }
    ensure!(session.max_outstanding_r2t == wanted.max_outstanding_r2t, "{session:?}");
    ensure!(session.time_to_wait_seconds == wanted.time_to_wait_seconds, "{session:?}");
    ensure!(
        connection.send_data_segment_bytes_max == wanted.send_data_segment_bytes_max,
        "{connection:?}"
    );
    ensure!(connection.digests.header == wanted.header_digest, "{connection:?}");
    ensure!(connection.digests.data == wanted.data_digest, "{connection:?}");
    use_disk(&disk, seed).await?;
    close(disk, peer.who).await
}

fn try_row(row: &Row, who: TargetKind, seed: u64) -> Result<()> {
    let peer = Peer::start(who, &row.setup(who))?;
    let logged_in = block_on(log_in(row, &peer, seed << 8));
    logged_in.with_context(|| format!("{who:?}, {row:?}\n{}", peer.log()))
}

fn all_rows(who: TargetKind) -> Result<()> {
    let rows: Vec<_> = (1..).zip(ROWS).filter(|(_, row)| row.fits(who)).collect();
    for some in rows.chunks(AT_ONCE) {
        let tried: Vec<Result<()>> = std::thread::scope(|scope| {
            let threads: Vec<_> =
                some.iter().map(|(seed, row)| scope.spawn(|| try_row(row, who, *seed))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        tried.into_iter().collect::<Result<()>>()?;
    }
    println!("{who:?}: {} of {} rows", rows.len(), ROWS.len());
    ensure!(rows.len() > ROWS.len() / 2);
    Ok(())
}

/// Goal: each option of our target works, in each value that matters.
#[test]
fn own_target() -> Result<()> {
    all_rows(TargetKind::Own)
}

/// Goal: each option of tgt works.
#[test]
fn tgt() -> Result<()> {
    all_rows(TargetKind::Tgt)
}

/// Goal: each option of istgt works.
#[test]
fn istgt() -> Result<()> {
    all_rows(TargetKind::Istgt)
}

/// Returns the error of a login of this kind.
async fn refusal(peer: &Peer, chap: Option<Chap>) -> Result<Error> {
    let mut options = SessionOptions::new(INITIATOR);
    options.chap = chap;
    let connected = RemoteDisk::connect(&peer.url()?, &options).await;
    connected.err().context("it was let in")
}

/// Goal: a login without credentials, with wrong ones, or with a target that has wrong ones fails
/// with that error, at each target; each CHAP algorithm that both sides support works.
#[test]
fn proofs() -> Result<()> {
    for who in [TargetKind::Own, TargetKind::Tgt, TargetKind::Istgt] {
        let setup = Setup { chap: true, mutual: true, ..Setup::default() };
        let peer = Peer::start(who, &setup)?;
        let played = block_on(async {
            let all = algorithms(who);
            let mut wrong = chap(all, false);
            wrong.initiator = credential(USER, "not-that-secret");
            let mut impostor = chap(all, true);
            impostor.target = Some(credential(PROOF_USER, "not-its-secret!"));
            let mut stranger = chap(all, true);
            stranger.target = Some(credential("somebody-else", PROOF));
            for (what, chap) in [
                ("nothing is proved", None),
                ("a wrong secret", Some(wrong)),
                ("the target proves a wrong secret", Some(impostor)),
                ("the target is somebody else", Some(stranger)),
            ] {
                let error = refusal(&peer, chap).await.context(what)?;
                let refused = matches!(error.kind, ErrorKind::Authentication | ErrorKind::Login);
                ensure!(refused, "{what}: {error:?}");
            }
            for algorithm in all {
                let mut options = SessionOptions::new(INITIATOR);
                options.chap = Some(chap(&[*algorithm], true));
                let disk = RemoteDisk::connect(&peer.url()?, &options).await;
                let disk = disk.with_context(|| format!("{algorithm:?}"))?;
                use_disk(&disk, 7).await?;
                close(disk, who).await?;
            }
            Ok(())
        });
        played.with_context(|| format!("{who:?}\n{}", peer.log()))?;
    }
    Ok(())
}

/// Goal: discovery works, open and by CHAP, one-way and mutual, if the peer supports it (istgt goes
/// into an endless loop).
#[test]
fn discoveries() -> Result<()> {
    for who in [TargetKind::Own, TargetKind::Tgt] {
        for (chap_wanted, mutual) in [(false, false), (true, false), (true, true)] {
            let setup = Setup { discovery_chap: chap_wanted, mutual, ..Setup::default() };
            let peer = Peer::start(who, &setup)?;
            let played = block_on(async {
                let portal = Url { unit: None, ..peer.url()? };
                let mut options = SessionOptions::new(INITIATOR);
                if chap_wanted {
                    let unproven = discover(&portal, &options).await;
                    let error = unproven.err().context("it was let in without a proof")?;
                    ensure!(error.kind == ErrorKind::Authentication, "{error:?}");
                    options.chap = Some(chap(algorithms(who), mutual));
                }
                let found = discover(&portal, &options).await?;
                let target = peer.target();
                let named = found.iter().find(|record| record.name == target);
                let addresses = &named.context("the target was not informed")?.addresses;
                ensure!(!addresses.is_empty(), "{found:?}");
                Ok(())
            });
            let what = format!("{who:?}, CHAP {chap_wanted}, mutual {mutual}");
            played.with_context(|| format!("{what}\n{}", peer.log()))?;
        }
    }
    Ok(())
}

/// Goal: the ISID on the wire is the configured one, or random of type 10b; two sessions that share
/// one replace each other at the target, and each recovers when it is used.
#[test]
fn isids() -> Result<()> {
    for who in [TargetKind::Own, TargetKind::Tgt, TargetKind::Istgt] {
        let peer = Peer::start(who, &Setup::default())?;
        let cutter = Cutter::to(peer.address())?;
        let played = block_on(async {
            let url = peer.url_at(&cutter.address().to_string())?;
            let mut options = SessionOptions::new(INITIATOR);
            let random = RemoteDisk::connect(&url, &options).await?;
            let isid = cutter.counts().isid.context("no login was seen")?;
            ensure!(isid[0] == 0x80, "{isid:02x?}");
            let fixed = [0x40, 0x00, 0x01, 0x37, 0x00, 0x05];
            options.isid = Some(fixed);
            let first = RemoteDisk::connect(&url, &options).await?;
            ensure!(cutter.counts().isid == Some(fixed), "{:02x?}", cutter.counts().isid);
            let second = RemoteDisk::connect(&url, &options).await?;
            for (seed, disk) in [(1, &second), (2, &first), (3, &second), (4, &random)] {
                use_disk(disk, seed).await.with_context(|| format!("use {seed}"))?;
            }
            Ok(())
        });
        played.with_context(|| format!("{who:?}\n{}", peer.log()))?;
    }
    Ok(())
}

/// Digest lists as they are offered.
const NO: &[Digest] = &[Digest::None];
const YES: &[Digest] = &[Digest::Crc32c];
const RATHER: &[Digest] = &[Digest::Crc32c, Digest::None];
const RATHER_NOT: &[Digest] = &[Digest::None, Digest::Crc32c];
