//! A storage that is hostile in the sessions of relays only: a proxy in front of an honest one,
//! which changes PDUs on their way to the switch.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::thread;

pub const HEADER_BYTES: usize = 48;
pub const DIGEST_BYTES: usize = 4;

/// A change of a PDU; returns what is sent instead.
pub type Change = fn(Vec<u8>) -> Vec<u8>;

/// A proxy, which ends with the process.
#[derive(Debug)]
pub struct Tamperer {
    pub address: SocketAddr,
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    change: Mutex<Option<Change>>,
    connections: AtomicUsize,
    has_changed: AtomicBool,
}

impl Tamperer {
    /// Listens, and passes connections on to `storage`, which use both digests after the login if
    /// `digests` is true. The first one is never changed: it is that of the slow path.
    pub fn start(storage: SocketAddr, digests: bool) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (address, shared) = (listener.local_addr().unwrap(), Arc::<Shared>::default());
        let of_connections = Arc::clone(&shared);
        thread::spawn(move || {
            for host in listener.incoming().map_while(Result::ok) {
                let Ok(target) = TcpStream::connect(storage) else { return };
                let is_first = of_connections.connections.fetch_add(1, SeqCst) == 0;
                forward((host, target), digests, is_first, &of_connections);
            }
        });
        Self { address, shared }
    }

    /// Changes the next PDUs of one opcode, `None`: no longer.
    pub fn change(&self, change: Option<Change>) {
        self.shared.has_changed.store(false, SeqCst);
        *self.shared.change.lock().unwrap() = change;
    }

    /// True if a PDU was changed since the last call of [`change`](Self::change).
    pub fn has_changed(&self) -> bool {
        self.shared.has_changed.load(SeqCst)
    }
}

fn forward(
    (host, target): (TcpStream, TcpStream),
    digests: bool,
    is_first: bool,
    shared: &Arc<Shared>,
) {
    let (mut from_host, mut to_target) = (host.try_clone().unwrap(), target.try_clone().unwrap());
    thread::spawn(move || {
        let _ = std::io::copy(&mut from_host, &mut to_target);
        let _ = to_target.shutdown(Shutdown::Write);
    });
    let (mut from_target, mut to_host, shared) = (target, host, Arc::clone(shared));
    thread::spawn(move || {
        let mut digest_bytes = 0;
        while let Some(pdu) = next_pdu(&mut from_target, digest_bytes) {
            if digests && is_end_of_login(&pdu) {
                digest_bytes = DIGEST_BYTES;
            }
            let change = shared.change.lock().unwrap().filter(|_| !is_first);
            let sent = match change {
                Some(change) => {
                    let changed = change(pdu.clone());
                    if changed != pdu {
                        shared.has_changed.store(true, SeqCst);
                    }
                    changed
                }
                None => pdu,
            };
            if to_host.write_all(&sent).is_err() {
                break;
            }
        }
        let _ = to_host.shutdown(Shutdown::Both);
    });
}

/// True for a Login Response to full feature phase.
fn is_end_of_login(pdu: &[u8]) -> bool {
    pdu[0] & 0x3f == 0x23 && pdu[1] & 0x83 == 0x83
}

/// Reads a PDU with digests of this length.
fn next_pdu(from: &mut TcpStream, digest_bytes: usize) -> Option<Vec<u8>> {
    let mut pdu = vec![0; HEADER_BYTES];
    from.read_exact(&mut pdu).ok()?;
    let data_bytes = u32::from_be_bytes([0, pdu[5], pdu[6], pdu[7]]) as usize;
    let data_digest_bytes = if data_bytes > 0 { digest_bytes } else { 0 };
    let header_rest = usize::from(pdu[4]) * 4 + digest_bytes;
    let rest = header_rest + data_bytes.next_multiple_of(4) + data_digest_bytes;
    pdu.resize(HEADER_BYTES + rest, 0);
    from.read_exact(&mut pdu[HEADER_BYTES..]).ok()?;
    Some(pdu)
}
