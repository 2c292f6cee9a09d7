//! A LUN of a Lunar server fulfils the contract of a disk.

use crate::common::Server;
use lunar_block::{BlockDevice, Geometry, contract::Contract};
use lunar_initiator::{RemoteDisk, SessionOptions, Url};
use std::sync::{Arc, Mutex, mpsc};

/// Connects on a thread that runs the session as long as the test.
fn connect(url: &str) -> Arc<dyn BlockDevice> {
    let url: Url = url.parse().unwrap();
    let (made, disk) = mpsc::channel();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let options = SessionOptions::new("iqn.2026-11.org.lunarsan:contract");
            made.send(RemoteDisk::connect(&url, &options).await.unwrap()).unwrap();
            std::future::pending::<()>().await;
        });
    });
    Arc::new(disk.recv_timeout(crate::common::TEST_TIMEOUT).unwrap())
}

/// Goal: a remote disk behaves like a local one: splits, zeroes, unmapping, limits, concurrency.
/// Method: the contract of all disks, over real sessions with servers whose disks are in memory.
#[test]
fn a_remote_disk_keeps_the_contract() {
    let servers: Mutex<Vec<Server>> = Mutex::default();
    let make = |shape: Geometry| {
        let server = Server::start(&[
            &format!("mem:{}", shape.size_bytes()),
            "--block-size",
            &shape.block_bytes.to_string(),
            "--physical-block-size",
            &shape.physical_block_bytes.to_string(),
        ]);
        let disk = connect(&server.lun(0));
        servers.lock().unwrap().push(server);
        disk
    };
    Contract::new(&make).run();
    for server in servers.into_inner().unwrap() {
        let (last, _) = server.stop();
        crate::common::assert_exit(&last, 0);
    }
}

/// Goal: the future of a command fits the sizes that allocators cache; a larger future costs more
/// to allocate than all the rest of a read.
#[test]
fn a_command_under_way_is_small() {
    const ALLOCATOR_KEEPS_BYTES: usize = 1032; // glibc: maximum size of the thread cache
    let server = Server::start(&["mem:1M"]);
    let disk = connect(&server.lun(0));
    let range = lunar_block::BlockRange::new(0, 8);
    let buffer = lunar_block::BufferPool::default().take(4096);
    let read = std::mem::size_of_val(&*disk.read(range, buffer));
    let write = std::mem::size_of_val(&*disk.write(range, vec![0; 4096].into(), true));
    println!("a read takes {read} bytes, a write {write}");
    assert!(read.max(write) <= ALLOCATOR_KEEPS_BYTES, "a read {read}, a write {write}");
}
