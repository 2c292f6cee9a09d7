//! Sessions of relays that are lost with WRITEs.

use super::{BLOCK, LINEAR, Rig, TestCommand};
use bytes::Bytes;
use lunar_wire::Lun;
use std::time::{Duration, Instant};

/// Longest wait for anything.
const LIMIT: Duration = Duration::from_secs(30);

/// Names another portal group in a Login Response.
fn with_other_group(mut pdu: Vec<u8>) -> Vec<u8> {
    const KEY: &[u8] = b"TargetPortalGroupTag=1";
    if pdu[0] & 0x3f == 0x23
        && let Some(at) = pdu.windows(KEY.len()).position(|part| part == KEY)
    {
        pdu[at + KEY.len() - 1] = b'2';
    }
    pdu
}

/// Fault: the blocks of a WRITE whose session was lost stayed locked for ever if the storage named
/// another portal group from then on.
#[test]
fn a_portal_group_that_does_not_return_keeps_no_blocks_locked() {
    let rig = Rig::behind(LINEAR, true, true);
    let host = rig.host(false);
    rig.until_relayed(&host);
    let write = TestCommand::transfer(0x8a, 0, 7, 1, Some(Bytes::from(vec![1; BLOCK])), 0);
    let (before, end) = (rig.relayed().commands, Instant::now() + LIMIT);
    while rig.relayed().commands == before {
        assert!(Instant::now() < end, "no WRITE is relayed");
        assert_eq!(rig.execute(&host, &write).0, 0);
    }
    rig.tamperers[0].change(Some(|mut pdu| {
        if pdu[0] & 0x3f == 0x21 {
            pdu[0] = 0x3f; // a status, of the WRITE: the session is cut off
        }
        with_other_group(pdu)
    }));
    let reply = host.execute(Lun::new(0), write.cdb.clone(), write.data_out.clone(), 0);
    let cut = async {
        while !rig.tamperers[0].has_changed() {
            assert!(Instant::now() < end, "the WRITE was not relayed");
            tokio::task::yield_now().await;
        }
        rig.tamperers[0].change(Some(with_other_group));
    };
    let (written, ()) = rig.runtime.block_on(futures_util::future::join(reply, cut));
    written.unwrap();
    // COMPARE AND WRITE waits for the WRITE.
    let cdb = [&[0x89, 0][..], &7u64.to_be_bytes(), &[0, 0, 0, 1, 0, 0]].concat();
    let data = Bytes::from([[1; BLOCK], [2; BLOCK]].concat());
    let compare = host.execute(Lun::new(0), cdb, data, 0);
    let compared = rig.runtime.block_on(async { tokio::time::timeout(LIMIT, compare).await });
    assert!(compared.is_ok(), "the block is locked");
    rig.end(vec![host]);
}
