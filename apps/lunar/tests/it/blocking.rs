//! Tests of the initiator in programs without an async runtime.

use crate::common::{Server, assert_exit, pattern};
use bytes::Bytes;
use lunar_initiator::SessionOptions;
use lunar_initiator::blocking::{Connector, READ_BYTES_MAX};

const INQUIRY: [u8; 6] = [0x12, 0, 0, 0, 36, 0];

/// Goal: threads share one disk, each gets its own answers, and nothing is left behind.
#[test]
fn threads_share_a_disk() {
    let server = Server::start(&["mem:4M"]);
    let url = server.lun(0).parse().unwrap();
    let options = SessionOptions::new("iqn.2026-11.org.lunarsan:blocking");
    let connector = Connector::start().unwrap();
    let disk = connector.open(&url, &options).unwrap();
    assert_eq!(connector.discover(&url, &options).unwrap().len(), 1);
    std::thread::scope(|scope| {
        for thread in 0..8_u64 {
            let disk = disk.clone();
            scope.spawn(move || {
                for round in 0..20 {
                    let data = pattern(thread * 100 + round, 3 * 512);
                    disk.write(thread * 1000, data.clone()).unwrap();
                    assert!(disk.read(thread * 1000, 3).unwrap() == data);
                }
            });
        }
    });
    disk.flush().unwrap();
    let reply = disk.execute(&INQUIRY[..], Bytes::new(), 36).unwrap();
    assert_eq!((reply.result.status, reply.data_in.len()), (0, 36));

    let kind = |result: Result<_, lunar_block::Error>| result.unwrap_err().kind;
    assert_eq!(kind(disk.read(8192, 1).map(drop)), lunar_block::ErrorKind::OutOfRange);
    assert_eq!(kind(disk.read(0, READ_BYTES_MAX).map(drop)), lunar_block::ErrorKind::OutOfRange);
    assert_eq!(kind(disk.write(0, vec![0; 100])), lunar_block::ErrorKind::Unaligned);
    assert_eq!(kind(disk.write(u64::MAX, vec![0; 512])), lunar_block::ErrorKind::OutOfRange);
    drop(connector);
    disk.read(0, 1).unwrap();
    disk.clone().close().unwrap();
    assert_eq!(kind(disk.flush()), lunar_block::ErrorKind::Disconnected);
    drop(disk);
    assert_exit(&server.stop().0, 0);
}
