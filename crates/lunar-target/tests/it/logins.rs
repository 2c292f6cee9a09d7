//! Tests of the slots and memory that connections may take before they log in or prove their name.

use crate::common::*;
use lunar_testkit::raw::{RawAnswer, RawClient, RawPdu, opcode};
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::Instant;
use tokio::net::{TcpSocket, TcpStream};

/// Connections from one address that never log in and are renewed without end.
struct Flood {
    stop: Arc<AtomicBool>,
    opened: Arc<AtomicUsize>,
    thread: JoinHandle<()>,
}

impl Flood {
    /// Keeps `open` connections open, and opens more.
    fn start(source: &str, to: &str, open: usize) -> Self {
        let (stop, opened): (Arc<AtomicBool>, Arc<AtomicUsize>) = Default::default();
        let (source, to) = (address(source), to.parse().unwrap());
        let (stopped, count) = (Arc::clone(&stop), Arc::clone(&opened));
        let thread = std::thread::spawn(move || {
            block_on(async {
                let mut held = VecDeque::new();
                while !stopped.load(Relaxed) {
                    // A connection that comes too fast may be refused by the system.
                    held.extend(connect(source, to).await);
                    held.drain(..held.len().saturating_sub(open));
                    count.fetch_add(1, Relaxed);
                }
            });
        });
        Self { stop, opened, thread }
    }

    fn until_opened(&self, more: usize) {
        let until = self.opened.load(Relaxed) + more;
        while self.opened.load(Relaxed) < until {
            assert!(!self.thread.is_finished());
            std::thread::yield_now();
        }
    }

    fn end(self) {
        self.stop.store(true, Relaxed);
        self.thread.join().unwrap();
    }
}

fn address(ip: &str) -> SocketAddr {
    SocketAddr::new(ip.parse().unwrap(), 0)
}

async fn connect(source: SocketAddr, to: SocketAddr) -> Option<TcpStream> {
    let socket = if to.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }.unwrap();
    socket.bind(source).unwrap();
    socket.connect(to).await.ok()
}

/// Connects from this address with a small receive buffer, so that few unread replies fit.
fn connect_small(source: &str, to: &str) -> RawClient {
    let (source, to): (_, SocketAddr) = (address(source), to.parse().unwrap());
    let tcp = block_on(async {
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_recv_buffer_size(4096).unwrap();
        socket.bind(source).unwrap();
        socket.connect(to).await.unwrap().into_std().unwrap()
    });
    tcp.set_nonblocking(false).unwrap();
    RawClient::from_tcp(tcp).unwrap()
}

/// Logs in under the initiator name of this number and uses the disk.
fn use_disk(mut raw: RawClient, number: u32) -> RawClient {
    assert_eq!(join(&mut raw, number, 0, 0).0, 0);
    raw.execute(&[0; 6], 0).unwrap();
    raw.read_block(0).unwrap();
    raw
}

/// Goal: connections from one address that never log in and are renewed without end keep out no
/// other address, no IPv6 address, and no returning session of the same address; and they end no
/// session. Fault: 16,384 idle connections locked out all initiators.
#[test]
fn idle_connections_of_one_address_exclude_no_other_address() {
    let rig = Rig::with(|options| {
        options.portals.push(lunar_target::Portal::new("[::1]:0".parse().unwrap()));
        options.limits.connections = 256;
        // No connection ends because its time is over.
        options.limits.login_seconds = 3600;
    });
    assert_eq!(rig.server().connections_max(), 256);
    let mut same = use_disk(connect_from("127.0.0.2", &rig.address), 2);
    let flood = Flood::start("127.0.0.2", &rig.address, 300);
    flood.until_opened(600);
    for number in 10..30 {
        let raw = use_disk(connect_from("127.0.0.1", &rig.address), number);
        log_out(raw);
        let raw = use_disk(RawClient::connect(&rig.addresses[1]).unwrap(), number);
        drop(raw);
        flood.until_opened(20);
        same.read_block(0).unwrap();
    }
    // The flood can take only its own share from others of its address: some login of another
    // session succeeds before its slot is taken.
    let again = (0..1000).find_map(|_| {
        let mut raw = connect_from("127.0.0.2", &rig.address);
        let text =
            format!("InitiatorName=iqn.2026-11.org.lunarsan.test:raw-2\0TargetName={TARGET}\0");
        raw.send(&raw.login(text.as_bytes())).ok()?;
        matches!(raw.answer(TEST_TIMEOUT), Ok(RawAnswer::Pdu(pdu)) if pdu.header[36..38] == [0, 0])
            .then_some(raw)
    });
    assert!(again.is_some(), "a session of the flood's address logs in again");
    same.wait_until_closed(TEST_TIMEOUT).unwrap();
    assert!(rig.server().connections() <= 256);
    flood.end();
    drop(again);
    rig.stop_cleanly();
}

/// Goal: with idle connections from more addresses than there are slots, each new login still
/// succeeds: it takes the slot of the connection that has waited longest.
#[test]
fn idle_connections_of_many_addresses_are_closed_for_new_ones() {
    let rig = Rig::with(|options| {
        options.limits.connections = 256;
        options.limits.login_seconds = 3600;
    });
    let idle: Vec<_> =
        (1..=100u8).map(|host| connect_from(&format!("127.0.1.{host}"), &rig.address)).collect();
    rig.wait_for("the room for logins is full", |rig| rig.server().connections() == 32);
    for number in 0..10 {
        log_out(use_disk(connect_from("127.0.0.1", &rig.address), number));
    }
    drop(idle);
    rig.stop_cleanly();
}

/// Goal: a discovery session without proof makes room like a login does, and leaves nothing behind.
#[test]
fn an_unproven_discovery_session_may_be_evicted() {
    let rig = Rig::with(|options| {
        options.limits.connections = 256;
        options.limits.logins_per_address = 4;
    });
    let mut listing: Vec<RawClient> = (0..8)
        .map(|number| {
            let mut raw = connect_from("127.0.0.2", &rig.address);
            let text = format!(
                "InitiatorName=iqn.2026-11.org.lunarsan.test:raw-{number}\0SessionType=Discovery\0"
            );
            raw.send(&raw.login(text.as_bytes())).unwrap();
            assert_eq!(raw.expect(opcode::LOGIN_RESPONSE).unwrap().header[36..38], [0, 0]);
            raw
        })
        .collect();
    for raw in &mut listing[..4] {
        raw.wait_until_closed(TEST_TIMEOUT).unwrap();
    }
    rig.wait_for("four are left", |rig| (rig.sessions(), rig.server().connections()) == (4, 4));
    drop(listing);
    rig.stop_cleanly();
}

/// Goal: an initiator that logs in and out, or is refused, and does not close its side holds no
/// more slots than its address has.
#[test]
fn ended_connections_hold_no_slot() {
    let rig = Rig::with(|options| {
        options.limits.connections = 256;
        options.limits.logins_per_address = 4;
    });
    let over: Vec<_> = (0..40)
        .map(|_| {
            let mut raw = use_disk(connect_from("127.0.0.2", &rig.address), 2);
            let tag = raw.new_tag();
            let logout = RawPdu::new(0x40 | opcode::LOGOUT, 0x80)
                .put_u32(16, tag)
                .put_u32(24, raw.cmd_sn)
                .put_u32(28, raw.exp_stat_sn);
            raw.send(&logout).unwrap();
            assert_eq!(answer_to(&mut raw, tag).opcode(), 0x26, "a Logout Response");
            raw
        })
        .collect();
    // A slot is released before the Logout Response is sent.
    assert!(rig.server().connections() <= 4, "{}", rig.server().connections());
    drop(over);
    rig.stop_cleanly();
}

/// Goal: discovery sessions whose replies are never read hold little memory. Fault: 300 of them
/// held 7 to 8 MiB each. Method: 300 sessions with small receive buffers each request a long list
/// forty times. Once all have waiting replies, other sessions on both cores get a hundred replies.
#[test]
fn answers_that_are_not_read_hold_little() {
    const SESSIONS: usize = 300;
    const HELD_BYTES_MAX: usize = 32 << 10;
    let rig = Rig::with(|options| {
        options.limits.logins_per_address = SESSIONS;
        let unit = Arc::clone(&options.targets[0].luns[0].unit);
        options.targets.extend((0..120).map(|number| {
            target(&format!("iqn.2026-11.org.lunarsan.test:listed-{number}"), Arc::clone(&unit))
        }));
    });
    let mut others = [rig.log_in(1), rig.log_in(2)];
    let mut unread: Vec<RawClient> = (0..SESSIONS as u32)
        .map(|number| {
            let mut raw = connect_small("127.0.0.2", &rig.address);
            let text = format!(
                "InitiatorName=iqn.2026-11.org.lunarsan.test:raw-{}\0SessionType=Discovery\0",
                number + 10
            );
            raw.send(&raw.login(text.as_bytes())).unwrap();
            let answer = raw.expect(opcode::LOGIN_RESPONSE).unwrap();
            assert_eq!(answer.header[36..38], [0, 0]);
            raw
        })
        .collect();
    for raw in &mut unread {
        let ask = RawPdu::new(0x40 | opcode::TEXT, 0x80)
            .put_u32(16, raw.new_tag())
            .put_u32(20, u32::MAX)
            .put_u32(24, raw.cmd_sn)
            .with_data(b"SendTargets=All\0");
        raw.send_bytes(&ask.bytes().repeat(40)).unwrap();
    }
    let holds = |rig: &Rig| rig.server().unsent_bytes();
    let until = Instant::now() + MINUTE;
    while holds(&rig) < SESSIONS * 8192 {
        assert!(Instant::now() < until, "{} bytes wait", holds(&rig));
        others.iter_mut().for_each(|other| _ = other.read_block(0).unwrap());
    }
    let mut peak = 0;
    for _ in 0..100 {
        for other in &mut others {
            other.read_block(0).unwrap();
        }
        peak = peak.max(holds(&rig));
    }
    assert!(peak <= SESSIONS * HELD_BYTES_MAX, "{} a session", peak / SESSIONS);
    drop((unread, others));
    rig.stop_cleanly();
}

/// Goal: a list that is longer than a response arrives whole, and whole again after the catalogue
/// has changed in between: targets that exist all the time are listed once.
#[test]
fn a_list_that_changes_is_consistent() {
    let name = |number: usize| format!("iqn.2026-11.org.lunarsan.test:listed-{number:04}");
    let rig = Rig::with(|options| {
        let unit = Arc::clone(&options.targets[0].luns[0].unit);
        options.targets.extend((0..400).map(|number| target(&name(number), Arc::clone(&unit))));
        options.targets.reverse();
    });
    for changes in [false, true] {
        let mut raw = RawClient::connect(&rig.address).unwrap();
        let text = "InitiatorName=iqn.2026-11.org.lunarsan.test:raw-9\0SessionType=Discovery\0";
        raw.send(&raw.login(text.as_bytes())).unwrap();
        raw.expect(opcode::LOGIN_RESPONSE).unwrap();
        let (mut list, mut transfer_tag) = (String::new(), u32::MAX);
        for part in 0.. {
            let data = if part == 0 { &b"SendTargets=All\0"[..] } else { b"" };
            let ask = RawPdu::new(0x40 | opcode::TEXT, 0x80)
                .put_u32(16, 7)
                .put_u32(20, transfer_tag)
                .put_u32(24, raw.cmd_sn)
                .with_data(data);
            raw.send(&ask).unwrap();
            let answer = raw.expect(opcode::TEXT_RESPONSE).unwrap();
            list += std::str::from_utf8(&answer.data).unwrap();
            if answer.header[1] & 0x80 != 0 {
                assert!(part > 2, "several responses");
                break;
            }
            transfer_tag = answer.u32_at(20);
            if changes && part == 0 {
                rig.replace(|targets| {
                    targets.retain(|target| !target.name.ends_with('7'));
                    targets.sort_by(|a, b| a.name.cmp(&b.name));
                });
            }
        }
        let names: Vec<_> =
            list.split('\0').filter_map(|pair| pair.strip_prefix("TargetName=")).collect();
        assert!(names.is_sorted(), "{names:?}");
        for number in (0..400).filter(|number| !changes || number % 10 != 7) {
            let listed = names.iter().filter(|listed| **listed == name(number)).count();
            assert_eq!(listed, 1, "{number}");
        }
        log_out_of_discovery(raw);
    }
    rig.stop_cleanly();
}

fn log_out_of_discovery(mut raw: RawClient) {
    let logout = RawPdu::new(0x40 | opcode::LOGOUT, 0x80).put_u32(16, 9).put_u32(24, raw.cmd_sn);
    raw.send(&logout).unwrap();
    assert_eq!(raw.expect(0x26).unwrap().header[2], 0, "closed");
    raw.wait_until_closed(TEST_TIMEOUT).unwrap();
}
