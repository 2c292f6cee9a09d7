//! A Lunar target in the process of the test, and functions to read its PDUs.

use lunar_block::BlockDevice;
use lunar_iscsi::text::Offer;
use lunar_target::{
    Access, CacheMode, DiskUnit, DiskUnitOptions, Limits, LunOptions, Portal, Server,
    ServerOptions, TargetOptions,
};
use std::sync::Arc;
use tokio::io::AsyncReadExt;
use tokio::net::tcp::OwnedReadHalf;

pub const NAME: &str = "iqn.2026-11.org.lunarsan.test:initiator";
pub const HEADER_BYTES: usize = 48;

/// Starts a server of one LUN in write-back mode.
pub fn serve() -> Server {
    serve_device(Arc::new(lunar_block::MemoryDevice::new(1 << 20, 512, 4096).unwrap()))
}

/// Starts a server of this device in write-back mode.
pub fn serve_device(device: Arc<dyn BlockDevice>) -> Server {
    let unit = DiskUnitOptions::new(uuid::Uuid::from_u128(1), device);
    let unit = DiskUnitOptions { cache: CacheMode::WriteBack, ..unit };
    let unit = DiskUnit::open(unit).unwrap();
    let target = TargetOptions {
        name: NAME.to_owned(),
        alias: None,
        portal_group: 1,
        access: Access::default(),
        administer: None,
        chap: Vec::new(),
        offer: Offer { max_connections: 4, time_to_wait_seconds: 0, ..Offer::default() },
        redirect: None,
        initiator_limits: Vec::new(),
        luns: vec![LunOptions::new(0, unit)],
    };
    let options = ServerOptions {
        portals: vec![Portal::new("127.0.0.1:0".parse().unwrap())],
        targets: vec![target],
        discovery_chap: None,
        cores: 1,
        latency_mode: false,
        limits: Limits::default(),
        buffers: lunar_block::BufferPool::default(),
        relays: None,
    };
    Server::start(options).unwrap()
}

/// Reads one whole PDU without digests.
pub async fn read_pdu(from: &mut OwnedReadHalf) -> std::io::Result<Vec<u8>> {
    let mut pdu = vec![0; HEADER_BYTES];
    from.read_exact(&mut pdu).await?;
    let data_bytes = u32::from_be_bytes([0, pdu[5], pdu[6], pdu[7]]) as usize;
    let rest = usize::from(pdu[4]) * 4 + data_bytes.next_multiple_of(4);
    pdu.resize(HEADER_BYTES + rest, 0);
    from.read_exact(&mut pdu[HEADER_BYTES..]).await?;
    Ok(pdu)
}
