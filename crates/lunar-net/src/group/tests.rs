//! Tests over real loopback sockets, with handlers that pass each PDU on to another socket.

use super::*;
use crate::owner_turns::{COUNTED_MAX, time_share};
use crate::{Clock, ConnectionHandler, DrivenSocket, Outbox, OwnerId, drive};
use lunar_iscsi::framing::{Header, Pdu, SegmentDigest};
use lunar_wire::Time;
use std::collections::VecDeque;
use std::future::poll_fn;
use std::io::{Read, Write};
use std::time::{Duration, Instant};
use tokio::net::TcpStream;
use tokio::task::LocalSet;

/// PDUs for a socket, and the state that its driver shares with the others.
#[derive(Default)]
struct Inbox {
    pdus: RefCell<VecDeque<Pdu>>,
    waker: RefCell<Option<Waker>>,
    ends: Cell<bool>,
    is_detaching: Cell<bool>,
}

impl Inbox {
    fn wake(&self) {
        self.waker.borrow_mut().take().into_iter().for_each(Waker::wake);
    }
}

/// Forwards each PDU to the other socket, and sends the PDUs that the other handler has forwarded.
#[derive(Default)]
struct ForwardingHandler {
    inbox: Rc<Inbox>,
    other: Rc<Inbox>,
    header: Vec<u8>,
    data: Vec<u8>,
    /// Number of bytes of `data` that have arrived.
    filled: Rc<Cell<usize>>,
    owner: Option<OwnerId>,
    /// Number of turns of another task of the core; `log` has this number at each PDU that was
    /// received or sent.
    other_task_turns: Rc<Cell<usize>>,
    log: Rc<RefCell<Vec<usize>>>,
    ended: bool,
}

impl ForwardingHandler {
    fn forward(&mut self) {
        self.log.borrow_mut().push(self.other_task_turns.get());
        let header = self.header[..].try_into().unwrap();
        let pdu = Pdu::with_data(header, std::mem::take(&mut self.data).into());
        self.other.pdus.borrow_mut().push_back(pdu);
        self.other.wake();
    }
}

impl ConnectionHandler for ForwardingHandler {
    fn header(&mut self, _: Time, header: Header, _: &mut Outbox) {
        self.header = header.bhs.to_vec();
        self.data = vec![0; header.data_segment_bytes() as usize];
        self.filled.set(0);
        if self.data.is_empty() {
            self.forward();
        }
    }
    fn header_digest_error(&mut self, _: Time, _: &mut Outbox) {}
    fn payload_buffer(&mut self, _: usize) -> &mut [u8] {
        &mut self.data[self.filled.get()..]
    }
    fn payload_filled(&mut self, bytes: usize) {
        self.filled.set(self.filled.get() + bytes);
    }
    fn payload_end(&mut self, _: Time, _: SegmentDigest, _: &mut Outbox) {
        self.forward();
    }
    fn poll_work(&mut self, _: Time, context: &mut Context<'_>, out: &mut Outbox) -> Poll<()> {
        *self.inbox.waker.borrow_mut() = Some(context.waker().clone());
        let pdus = self.inbox.pdus.take();
        let ready = !pdus.is_empty() || self.inbox.ends.get() || self.inbox.is_detaching.get();
        for pdu in pdus {
            self.log.borrow_mut().push(self.other_task_turns.get());
            out.push(pdu);
        }
        if ready { Poll::Ready(()) } else { Poll::Pending }
    }
    fn deadline(&self) -> Option<Time> {
        None
    }
    fn elapsed(&mut self, _: Time, _: &mut Outbox) {}
    fn peer_closed(&mut self, _: Time, _: &mut Outbox) {
        self.ended = true;
    }
    fn owner(&self) -> Option<OwnerId> {
        self.owner
    }
    fn can_receive(&self) -> bool {
        true
    }
    fn is_over(&self) -> bool {
        self.ended || self.inbox.ends.get()
    }
    fn is_detaching(&self) -> bool {
        self.inbox.is_detaching.get()
    }
}

/// A socket on the core, and its peer.
fn connected() -> (TcpStream, std::net::TcpStream) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let peer = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (tcp, _) = listener.accept().unwrap();
    tcp.set_nonblocking(true).unwrap();
    peer.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    (TcpStream::from_std(tcp).unwrap(), peer)
}

/// Two handlers that pass PDUs to each other.
fn forwarding_pair() -> (ForwardingHandler, ForwardingHandler) {
    let host = ForwardingHandler::default();
    let storage = ForwardingHandler {
        inbox: Rc::clone(&host.other),
        other: Rc::clone(&host.inbox),
        other_task_turns: Rc::clone(&host.other_task_turns),
        log: Rc::clone(&host.log),
        ..ForwardingHandler::default()
    };
    (host, storage)
}

/// Runs `test` on a core.
fn on_core<F: Future<Output = ()>>(test: impl FnOnce() -> F) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    LocalSet::new().block_on(&runtime, async { test().await });
}

fn request(bytes: usize) -> Vec<u8> {
    let mut pdu = vec![0; 48 + bytes];
    pdu[5..8].copy_from_slice(&(bytes as u32).to_be_bytes()[1..]);
    pdu.iter_mut().skip(48).enumerate().for_each(|(at, byte)| *byte = (at % 251) as u8);
    pdu
}

/// Reads `bytes` on a thread of its own, while the core works.
async fn read_all(peer: &std::net::TcpStream, bytes: usize) -> Vec<u8> {
    let mut peer = peer.try_clone().unwrap();
    let reading = tokio::task::spawn_blocking(move || {
        let mut read = vec![0; bytes];
        peer.read_exact(&mut read).map(|()| read)
    });
    reading.await.unwrap().unwrap()
}

/// Goal: a PDU that is received from one socket is sent on the other in the same turn, in both
/// directions. Method: another task of the core always has work and counts its turns; each PDU is
/// received and sent between two turns of that task.
#[test]
fn data_is_sent_on_in_the_same_turn() {
    on_core(|| async {
        let ((host_tcp, host), (storage_tcp, storage)) = (connected(), connected());
        let (mut host_handler, mut storage_handler) = forwarding_pair();
        let (other_task_turns, log) =
            (Rc::clone(&host_handler.other_task_turns), Rc::clone(&host_handler.log));
        let group = SocketGroup::new();
        group.handle().add(async move {
            drive(host_tcp, &mut host_handler, Clock::start()).await;
        });
        group.handle().add(async move {
            drive(storage_tcp, &mut storage_handler, Clock::start()).await;
        });
        let other_task = tokio::task::spawn_local(async move {
            loop {
                other_task_turns.set(other_task_turns.get() + 1);
                tokio::task::yield_now().await;
            }
        });
        let running = tokio::task::spawn_local(group.run());
        const ROUNDS: usize = 20;
        for round in 0..ROUNDS {
            let (mut from, to) = if round % 2 == 0 { (&host, &storage) } else { (&storage, &host) };
            let sent = request(round * 1000 / 4 * 4);
            from.write_all(&sent).unwrap();
            assert!(read_all(to, sent.len()).await == sent);
        }
        drop((host, storage));
        running.await.unwrap();
        other_task.abort();
        assert_eq!(log.borrow().len(), 2 * ROUNDS);
        for turns in log.borrow().chunks(2) {
            assert_eq!(turns[0], turns[1], "received in this turn, sent in a later one");
        }
    });
}

/// Goal: other tasks add members while the group runs, and members end, also members that linger.
/// Method: the peer of a storage socket that has ended does not close; the next storage socket
/// answers the host meanwhile.
#[test]
fn members_come_and_go() {
    on_core(|| async {
        let ((host_tcp, host), (storage_tcp, storage), (next_tcp, next)) =
            (connected(), connected(), connected());
        let (mut host_handler, mut storage_handler) = forwarding_pair();
        let storage_inbox = Rc::clone(&storage_handler.inbox);
        let group = SocketGroup::new();
        let handle = group.handle();
        handle.add(async move {
            drive(storage_tcp, &mut storage_handler, Clock::start()).await;
        });
        handle.add(async move {
            drive(host_tcp, &mut host_handler, Clock::start()).await;
        });
        let running = tokio::task::spawn_local(group.run());
        (&host).write_all(&request(8)).unwrap();
        read_all(&storage, 56).await;
        storage_inbox.ends.set(true);
        storage_inbox.wake();
        // The half-closed socket: its driver lingers from now on.
        let mut ended = storage.try_clone().unwrap();
        let read = tokio::task::spawn_blocking(move || ended.read(&mut [0]).unwrap());
        assert_eq!(read.await.unwrap(), 0);

        storage_inbox.ends.set(false);
        let mut next_handler =
            ForwardingHandler { inbox: storage_inbox, ..ForwardingHandler::default() };
        handle.add(async move {
            drive(next_tcp, &mut next_handler, Clock::start()).await;
        });
        (&host).write_all(&request(16)).unwrap();
        assert!(read_all(&next, 64).await == request(16));
        assert_eq!(handle.members(), 3, "the first storage socket lingers");
        drop((host, storage, next));
        running.await.unwrap();
        assert_eq!(handle.members(), 0);
    });
}

/// Goal: a socket that is handed back continues in another group, with the rest of a segment and
/// the data that was not sent. Method: the socket is handed back within a data segment, while its
/// peer does not read.
#[test]
fn a_socket_is_handed_back() {
    /// More than both socket buffers take.
    const SENT_BYTES: usize = 12 << 20;
    on_core(|| async {
        let (tcp, peer) = connected();
        let mut handler = ForwardingHandler::default();
        let (inbox, other) = (Rc::clone(&handler.inbox), Rc::clone(&handler.other));
        let filled = Rc::clone(&handler.filled);
        let returned: Rc<Cell<Option<(DrivenSocket, ForwardingHandler)>>> = Rc::default();
        let to = Rc::clone(&returned);
        let group = SocketGroup::new();
        group.handle().add(async move {
            let socket = drive(tcp, &mut handler, Clock::start()).await;
            to.set(socket.map(|socket| (socket, handler)));
        });
        let sent = request(1000);
        (&peer).write_all(&sent[..300]).unwrap();
        let half = async {
            while filled.get() < 300 - 48 {
                tokio::task::yield_now().await;
            }
            let pdu = Pdu::with_data([7; 48], vec![7; SENT_BYTES].into());
            inbox.pdus.borrow_mut().push_back(pdu);
            inbox.is_detaching.set(true);
            inbox.wake();
        };
        tokio::join!(group.run(), half);
        let (socket, mut handler) = returned.take().expect("the socket is handed back");
        inbox.is_detaching.set(false);

        let next = SocketGroup::new();
        next.handle().add(async move {
            assert!(drive(socket, &mut handler, Clock::start()).await.is_none());
        });
        let running = tokio::task::spawn_local(next.run());
        (&peer).write_all(&sent[300..]).unwrap();
        let read = read_all(&peer, 48 + SENT_BYTES).await;
        assert!(read[48..].iter().all(|byte| *byte == 7));
        while other.pdus.borrow().is_empty() {
            tokio::task::yield_now().await;
        }
        assert!(other.pdus.borrow()[0].data == sent[48..]);
        drop(peer);
        running.await.unwrap();
    });
}

/// Always has work, which takes 100 us, and logs its owner and the time charged for the turn.
struct BusyHandler(OwnerId, Rc<RefCell<Vec<(OwnerId, Duration)>>>);

impl ConnectionHandler for BusyHandler {
    fn header(&mut self, _: Time, _: Header, _: &mut Outbox) {}
    fn header_digest_error(&mut self, _: Time, _: &mut Outbox) {}
    fn payload_buffer(&mut self, _: usize) -> &mut [u8] {
        &mut []
    }
    fn payload_filled(&mut self, _: usize) {}
    fn payload_end(&mut self, _: Time, _: SegmentDigest, _: &mut Outbox) {}
    fn poll_work(&mut self, _: Time, _: &mut Context<'_>, _: &mut Outbox) -> Poll<()> {
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_micros(100) {}
        self.1.borrow_mut().push((self.0, begun.elapsed().min(COUNTED_MAX)));
        Poll::Ready(())
    }
    fn owner(&self) -> Option<OwnerId> {
        Some(self.0)
    }
    fn deadline(&self) -> Option<Time> {
        None
    }
    fn elapsed(&mut self, _: Time, _: &mut Outbox) {}
    fn peer_closed(&mut self, _: Time, _: &mut Outbox) {}
    fn can_receive(&self) -> bool {
        true
    }
    fn is_over(&self) -> bool {
        self.1.borrow().len() >= 2000
    }
}

/// Goal: a group of 20 sockets gets as much time of the core as the single socket of another owner.
#[test]
fn all_sockets_of_a_group_count_for_its_owner() {
    let log: Rc<RefCell<Vec<(OwnerId, Duration)>>> = Rc::default();
    on_core(|| async {
        let mut running = Vec::new();
        let mut peers = Vec::new();
        for (owner, sockets) in [(7, 20), (8, 1)] {
            let group = SocketGroup::new();
            for _ in 0..sockets {
                let (tcp, peer) = connected();
                peers.push(peer);
                let mut handler = BusyHandler(OwnerId(owner), Rc::clone(&log));
                group.handle().add(async move {
                    drive(tcp, &mut handler, Clock::start()).await;
                });
            }
            running.push(tokio::task::spawn_local(group.run()));
        }
        while log.borrow().len() < 2000 {
            tokio::task::yield_now().await;
        }
        running.into_iter().for_each(|running| running.abort());
    });
    let share = time_share(&log.borrow(), OwnerId(8));
    assert!((0.4..=0.6).contains(&share), "the single socket had {share} of the time, not half");
}

/// Goal: the last members of a large group are polled in the same turn as the first. Fault: all
/// members shared the budget that tokio gives to one task, 128 operations.
#[test]
fn a_large_group_is_polled_in_one_turn() {
    const MEMBERS: usize = 500;
    on_core(|| async {
        let group = SocketGroup::new();
        let ended = Rc::new(Cell::new(0));
        for _ in 0..MEMBERS {
            let ended = Rc::clone(&ended);
            group.handle().add(async move {
                tokio::task::consume_budget().await;
                ended.set(ended.get() + 1);
            });
        }
        let mut running = std::pin::pin!(group.run());
        let ready = poll_fn(|context| Poll::Ready(running.as_mut().poll(context).is_ready()));
        assert!(ready.await);
        assert_eq!(ended.get(), MEMBERS);
    });
}

/// Goal: two members that always wake each other leave processor time to other tasks of the core; a
/// member is woken from another thread; a dropped group drops its members.
#[test]
fn members_are_woken_from_anywhere() {
    on_core(|| async {
        let group = SocketGroup::new();
        let polls = Rc::new(Cell::new(0_usize));
        let wakers: Rc<RefCell<[Option<Waker>; 2]>> = Rc::default();
        for own in 0..2 {
            let (polls, wakers) = (Rc::clone(&polls), Rc::clone(&wakers));
            group.handle().add(poll_fn(move |context| {
                polls.set(polls.get() + 1);
                let mut wakers = wakers.borrow_mut();
                wakers[own] = Some(context.waker().clone());
                wakers[1 - own].iter().for_each(Waker::wake_by_ref);
                Poll::Pending
            }));
        }
        let (sender, receiver) = tokio::sync::oneshot::channel();
        let (report, received) = tokio::sync::oneshot::channel();
        group.handle().add(async move {
            let _ = report.send(receiver.await);
        });
        let handle = group.handle();
        let running = tokio::task::spawn_local(group.run());
        for _ in 0..100 {
            let before = polls.get();
            tokio::task::yield_now().await;
            let turns = (polls.get() - before).div_ceil(2 * PASSES_MAX);
            assert!(turns <= 2, "{turns} turns while another task waits for one");
        }
        assert!(polls.get() > 2 * PASSES_MAX);
        std::thread::spawn(move || sender.send(7)).join().unwrap().unwrap();
        assert_eq!(received.await, Ok(Ok(7)));
        running.abort();
        assert!(running.await.is_err());
        assert_eq!((Rc::strong_count(&polls), handle.members()), (1, 0));
        handle.add(async {}); // dropped
    });
}
