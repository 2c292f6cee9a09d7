//! A LUN of our own server keeps the contract of a disk.
#![allow(clippy::unwrap_used, clippy::expect_used)] // a test may unwrap

mod common;

use block::{BlockDevice, Geometry, contract::Contract};
use common::Server;
use initiator::{RemoteDisk, SessionOptions, Url};
use std::sync::{Arc, Mutex, mpsc};

/// Connects on a thread of its own, which runs the session for as long as the test lives.
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
    Arc::new(disk.recv_timeout(common::PATIENCE).unwrap())
}

/// Goal: a remote disk is as good as a local one: splits, zeroes, unmapping, limits, concurrency.
/// Method: the contract every disk keeps, over real sessions with servers of memory.
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
        common::assert_exit(&last, 0);
    }
}
