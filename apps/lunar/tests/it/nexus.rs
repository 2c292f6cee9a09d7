//! Session guarantees of the initiator's disk, with a server in the test process.

use crate::in_process_server::{InProcessServer, NAME, block_on};
use bytes::Bytes;
use lunar_block::{BlockDevice, BlockRange, Effect, Fault, FaultOperation};
use lunar_initiator::{ErrorKind, RemoteDisk, SessionOptions, Url};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

/// A connection to a server that can be broken without notice to the server, and redirected.
struct RedirectedConnection {
    address: SocketAddr,
    to: Arc<Mutex<SocketAddr>>,
    cuts: tokio::sync::broadcast::Sender<()>,
    task: JoinHandle<()>,
}

impl RedirectedConnection {
    async fn new(to: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (to, (cuts, _)) = (Arc::new(Mutex::new(to)), tokio::sync::broadcast::channel(1));
        let (goal, cut) = (Arc::clone(&to), cuts.clone());
        let task = tokio::spawn(async move {
            while let Ok((near, _)) = listener.accept().await {
                let to = *goal.lock().unwrap();
                tokio::spawn(forward(near, to, cut.subscribe()));
            }
        });
        Self { address, to, cuts, task }
    }

    /// Breaks existing connections, and connects new ones to this portal.
    fn break_and_lead_to(&self, to: SocketAddr) {
        *self.to.lock().unwrap() = to;
        self.cuts.send(()).unwrap();
    }
}

impl Drop for RedirectedConnection {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// After a cut, the near side is closed; the far side stays open, as in a network failure.
async fn forward(
    mut near: TcpStream,
    to: SocketAddr,
    mut cut: tokio::sync::broadcast::Receiver<()>,
) {
    let Ok(mut far) = TcpStream::connect(to).await else { return };
    tokio::select! {
        _ = tokio::io::copy_bidirectional(&mut near, &mut far) => return,
        _ = cut.recv() => {}
    }
    drop(near);
    std::future::pending::<()>().await;
    drop(far);
}

async fn connect(address: SocketAddr, name: &str, recovery_seconds: u32) -> RemoteDisk {
    let url: Url = format!("iscsi://{address}/{NAME}/0").parse().unwrap();
    let mut options = SessionOptions::new(format!("iqn.2026-11.org.lunarsan:{name}"));
    options.recovery_seconds = recovery_seconds;
    RemoteDisk::connect(&url, &options).await.unwrap()
}

async fn write(disk: &RemoteDisk, byte: u8) -> Result<(), lunar_block::Error> {
    disk.write(BlockRange::new(0, 1), Bytes::from(vec![byte; 512]), false).await
}

fn kind_of(error: &lunar_block::Error) -> ErrorKind {
    let source = std::error::Error::source(error).unwrap();
    source.downcast_ref::<lunar_initiator::Error>().unwrap().kind.clone()
}

/// Goal: acknowledged data that was never synced, because another initiator's flush received the
/// error and an operator recovered the disk, is reported as lost, and not flushed with GOOD.
#[test]
fn a_recovered_disk_may_have_lost_the_cache() {
    let server = InProcessServer::new();
    block_on(async {
        let one = connect(server.portal(0), "one", 10).await;
        let two = connect(server.portal(0), "two", 10).await;
        write(&one, 1).await.unwrap();
        let failure = Fault::new(Effect::Fail(lunar_block::ErrorKind::Medium));
        server.device.inject(failure.on(FaultOperation::Flush).times(1));
        let error = two.flush().await.unwrap_err();
        assert!(matches!(kind_of(&error), ErrorKind::Sense(_)), "{error}");
        server.unit.recover().await.unwrap();
        let error = one.flush().await.unwrap_err();
        assert_eq!(kind_of(&error), ErrorKind::CacheLost, "{error}");
        write(&one, 1).await.unwrap();
        one.flush().await.expect("the loss is reported once");
    });
    server.end();
}

/// Goal: after a silent loss, nothing is resent through another portal group, where the lost
/// session lives on and could write later; through the same group it is.
#[test]
fn a_lost_session_is_followed_in_its_portal_group_only() {
    let server = InProcessServer::new();
    block_on(async {
        let way = RedirectedConnection::new(server.portal(0)).await;
        let disk = connect(way.address, "one", 10).await;
        write(&disk, 1).await.unwrap();
        way.break_and_lead_to(server.portal(1));
        let error = write(&disk, 2).await.expect_err("the other group is another nexus");
        assert_eq!(error.kind, lunar_block::ErrorKind::Disconnected);
        let printed = error.to_string();
        assert!(
            printed.contains("portal group 300") && printed.contains("was in portal group 1"),
            "{printed}"
        );
        way.break_and_lead_to(server.portal(0));
        write(&disk, 3).await.unwrap();
        let buffer = disk.unit().initiator().pool().take(512);
        let read = disk.read(BlockRange::new(0, 1), buffer).await.unwrap();
        assert!(read.iter().all(|byte| *byte == 3), "{:?}", &read[..4]);
    });
    server.end();
}
