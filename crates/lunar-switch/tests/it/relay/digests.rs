//! Data digests of whole segments, which pass through the switch.

use super::tamperer::{DIGEST_BYTES, HEADER_BYTES};
use super::{BLOCK, BLOCKS, LINEAR, Random, Rig, RigOptions, TestCommand, changed};
use crate::memory;
use bytes::Bytes;
use lunar_block::{BoxFuture, BufferPool, RelayPart};
use lunar_initiator::{Initiator, SessionOptions};
use lunar_switch::relay::SwitchRelays;
use lunar_target::{
    ConnectionRelay, PartReader, PartWriteEvent, PartWriter, RelayFactory, RelayFailure, RelayHost,
    RelayedPiece,
};
use lunar_wire::Lun;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering::SeqCst};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

/// Both digests, on both sides.
const DIGESTS: RigOptions = RigOptions { digests: true, ..LINEAR };

/// Damage to one piece in the memory of a switch.
#[derive(Debug)]
struct PieceDamage {
    /// Number of pieces before the damaged one; negative: none will be damaged.
    pieces_before: AtomicI32,
}

impl PieceDamage {
    fn forward(&self, piece: RelayedPiece) -> RelayedPiece {
        if piece.data.is_empty() || self.pieces_before.fetch_sub(1, SeqCst) != 0 {
            return piece;
        }
        let mut data = piece.data.to_vec();
        data[0] ^= 1;
        RelayedPiece { data: data.into(), ..piece }
    }

    fn damage(&self, pieces_before: i32) {
        self.pieces_before.store(pieces_before, SeqCst);
    }

    fn is_done(&self) -> bool {
        self.pieces_before.load(SeqCst) < 0
    }
}

/// Relays that damage pieces.
#[derive(Debug)]
struct DamagingRelays(SwitchRelays, Arc<PieceDamage>);

#[derive(Debug)]
struct DamagingRelay(Rc<dyn ConnectionRelay>, Arc<PieceDamage>);

struct DamagingReader(Box<dyn PartReader>, Arc<PieceDamage>);

struct DamagingWriter(Box<dyn PartWriter>, Arc<PieceDamage>);

impl RelayFactory for DamagingRelays {
    fn relay(&self, host: RelayHost) -> Rc<dyn ConnectionRelay> {
        Rc::new(DamagingRelay(self.0.relay(host), Arc::clone(&self.1)))
    }
}

impl ConnectionRelay for DamagingRelay {
    fn is_ready(&self, parts: &[RelayPart], is_write: bool) -> bool {
        self.0.is_ready(parts, is_write)
    }

    fn read(&self, part: &RelayPart, buffers: &BufferPool) -> Option<Box<dyn PartReader>> {
        let reader = self.0.read(part, buffers)?;
        Some(Box::new(DamagingReader(reader, Arc::clone(&self.1))))
    }

    fn write(
        &self,
        part: &RelayPart,
        prefix: RelayedPiece,
        is_durable: bool,
    ) -> Option<Box<dyn PartWriter>> {
        let writer = self.0.write(part, self.1.forward(prefix), is_durable)?;
        Some(Box::new(DamagingWriter(writer, Arc::clone(&self.1))))
    }

    fn close(&self) {
        self.0.close();
    }
}

impl PartReader for DamagingReader {
    fn poll_next(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Result<Option<RelayedPiece>, RelayFailure>> {
        let next = self.0.poll_next(context);
        next.map_ok(|piece| piece.map(|piece| self.1.forward(piece)))
    }
}

impl PartWriter for DamagingWriter {
    fn poll_event(&mut self, context: &mut Context<'_>) -> Poll<PartWriteEvent> {
        self.0.poll_event(context)
    }

    fn give(&mut self, offset_bytes: u32, piece: RelayedPiece) {
        self.0.give(offset_bytes, self.1.forward(piece));
    }

    fn ended(&mut self) -> BoxFuture<'static, ()> {
        self.0.ended()
    }
}

/// A switch that damages pieces, and a host with relayed READs.
fn damaging_rig() -> (Rig, Initiator, Arc<PieceDamage>) {
    let device = || memory(BLOCKS * BLOCK as u64, 512, 512);
    let session = SessionOptions::new("iqn.2026-11.org.lunarsan.test:switch");
    let damage = Arc::new(PieceDamage { pieces_before: AtomicI32::new(-1) });
    let of_relays = Arc::clone(&damage);
    let factory =
        |relays| Some(Arc::new(DamagingRelays(relays, of_relays)) as Arc<dyn RelayFactory>);
    let rig = Rig::with_relays([device(), device()], session, DIGESTS, false, factory);
    let host = rig.host(true);
    rig.until_relayed(&host);
    (rig, host, damage)
}

fn read(blocks: u32) -> TestCommand {
    TestCommand::transfer(0x88, 0, 0, blocks, None, blocks * BLOCK as u32)
}

fn write(data: &Bytes) -> TestCommand {
    let blocks = (data.len() / BLOCK) as u32;
    TestCommand::transfer(0x8a, 0, 0, blocks, Some(data.clone()), 0)
}

/// Writes until a WRITE is relayed.
pub fn until_writes_are_relayed(rig: &Rig, host: &Initiator, data: &Bytes) {
    let (before, end) = (rig.relayed().commands, Instant::now() + Duration::from_secs(20));
    while rig.relayed().commands == before {
        assert!(Instant::now() < end, "no WRITE is relayed");
        assert_eq!(rig.execute(host, &write(data)).0, 0);
    }
}

/// Goal: a host notices data-in that was damaged in the memory of the switch, in the first, a
/// middle or the last segment of a READ: the data of a READ that ends GOOD is right.
#[test]
fn damaged_data_in_is_noticed() {
    const SEGMENT_BLOCKS: u32 = 128;
    let (rig, host, damage) = damaging_rig();
    let data = Random(3).bytes(4 * SEGMENT_BLOCKS as usize * BLOCK);
    assert_eq!(rig.execute(&host, &write(&data)).0, 0);
    let cases =
        [(1, 0), (8, 0), (SEGMENT_BLOCKS, 0), (SEGMENT_BLOCKS + 1, 1), (4 * SEGMENT_BLOCKS, 2)];
    for (blocks, pieces_before) in cases {
        rig.until_relayed(&host);
        damage.damage(pieces_before);
        let TestCommand { cdb, data_in, .. } = read(blocks);
        let reply = host.execute(Lun::new(0), cdb, Bytes::new(), data_in);
        let reply = rig.runtime.block_on(reply);
        assert!(damage.is_done(), "the READ of {blocks} blocks was not relayed");
        if let Ok(reply) = reply {
            assert_eq!(reply.result.status, 0);
            assert!(reply.data_in == data[..reply.data_in.len()], "{blocks} blocks");
        }
    }
    rig.end(vec![host]);
}

/// Goal: a storage notices data-out that was damaged in the memory of the switch: immediate data,
/// and data for an R2T. What a WRITE that ends GOOD leaves is right.
#[test]
fn damaged_data_out_is_noticed() {
    let (rig, host, damage) = damaging_rig();
    // The storages ask for 128 KiB at a time. Immediate data is at most 256 KiB long: two pieces.
    for (blocks, pieces_before) in [(1, 0), (16, 0), (256, 0), (2000, 2), (2000, 5)] {
        let data = Random(blocks as u64 + pieces_before as u64).bytes(blocks * BLOCK);
        until_writes_are_relayed(&rig, &host, &Random(1).bytes(blocks * BLOCK));
        let errors = || {
            let statistics = rig.storages[0].observer().statistics().unwrap();
            statistics.targets[0].data_digest_errors
        };
        let before = errors();
        damage.damage(pieces_before);
        let (status, ..) = rig.execute(&host, &write(&data));
        assert!(damage.is_done(), "the WRITE of {blocks} blocks was not relayed");
        assert_eq!(errors(), before + 1, "the storage has not noticed it");
        if status == 0 {
            let back = rig.execute(&host, &read(blocks as u32));
            assert!(back.0 == 0 && back.2 == data, "{blocks} blocks");
        }
    }
    rig.end(vec![host]);
}

/// Goal: data of a storage that does not match its digest never reaches the host as good data.
/// Method: a proxy that changes a bit of a segment, whose digests it leaves.
#[test]
fn wrong_digests_of_a_storage_are_noticed() {
    for blocks in [8, 256] {
        let rig = Rig::behind(DIGESTS, true, true);
        let host = rig.host(true);
        let data = Random(5).bytes(blocks * BLOCK);
        rig.until_relayed(&host);
        assert_eq!(rig.execute(&host, &write(&data)).0, 0);
        rig.tamperers[0]
            .change(Some(|pdu| changed(pdu, |pdu| pdu[HEADER_BYTES + DIGEST_BYTES + 100] ^= 1)));
        let (status, _, back, _) = rig.execute(&host, &read(blocks as u32));
        assert!(rig.tamperers[0].has_changed(), "the READ was not relayed");
        match status {
            0 => assert!(back == data, "{blocks} blocks"),
            _ => assert!(back.is_empty(), "{blocks} blocks"),
        }
        rig.tamperers[0].change(None);
        let (status, _, back, _) = rig.execute(&host, &read(blocks as u32));
        assert!(status == 0 && back == data, "{blocks} blocks");
        rig.end(vec![host]);
    }
}
