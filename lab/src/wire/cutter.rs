//! A relay that parses PDUs and breaks connections at a chosen one.

mod pdu;

pub use pdu::PduKind;

use anyhow::{Context, Result};
use pdu::{HEADER_BYTES, NegotiatedForm, RelayedPdu};
use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// Time after which a connection that lingers at the target is closed.
const LINGER_MAX: Duration = Duration::from_secs(20);
/// Maximum number of delayed bytes that the initiator had sent and the relay had not passed on.
const LATE_BYTES_MAX: usize = 4 << 20;

/// Number of PDUs that are remembered.
const LAST_PDUS: usize = 16;
/// Header bytes that hold neither lengths nor the opcode.
const FLIPPED_BYTES: std::ops::Range<usize> = 16..HEADER_BYTES;

/// PduDirection of a PDU.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum PduDirection {
    /// From the initiator.
    ToTarget,
    /// From the target.
    ToInitiator,
}

/// Position within a PDU.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum CutPosition {
    /// Before the PDU: no byte is passed on.
    Before,
    /// After this many bytes of the header, from 1 on.
    InHeader(usize),
    /// After this many thousandths of its data; a PDU without data is cut in its header.
    InData(usize),
    /// After the PDU.
    After,
}

/// End of a connection at a cut.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ConnectionCut {
    /// FIN to both sides.
    Close,
    /// RST to both sides.
    Reset,
    /// RST to the initiator. The connection to the target stays, and the bytes that the initiator
    /// had sent arrive after this delay, as from a network that holds packets back.
    Linger(Duration),
}

/// Description of a cut of one connection.
#[derive(Clone, Copy, Debug)]
pub struct Cut {
    /// Kind of PDU at which the connection is cut.
    pub kind: PduKind,
    /// Number of PDUs of that kind that pass before.
    pub skip: u32,
    /// Position within the PDU.
    pub position: CutPosition,
    /// End of the connection.
    pub manner: ConnectionCut,
}

/// One bit that is to be inverted.
#[derive(Clone, Copy, Debug)]
pub struct Flip {
    /// Kind of PDU that is changed.
    pub kind: PduKind,
    /// Number of PDUs of that kind that pass before.
    pub skip: u32,
    /// True for a bit in the data, false for one in the header; a PDU without data is skipped if
    /// true.
    pub in_data: bool,
    /// Index of the bit among those that do not affect lengths.
    pub bit: usize,
}

/// Counts of PDUs that passed and connections that were broken.
#[derive(Clone, Debug, Default)]
pub struct CutCounts {
    /// PDUs by kind.
    pub seen: BTreeMap<PduKind, u64>,
    /// Connections broken at a PDU of this kind.
    pub cut: BTreeMap<PduKind, u64>,
    /// PDUs of this kind with an inverted bit.
    pub flipped: BTreeMap<PduKind, u64>,
    /// Connections broken by [`Cutter::cut_all`].
    pub cut_anyhow: u64,
    /// The last PDUs, in the order in which they were passed on.
    pub last: VecDeque<PduKind>,
    /// The ISID of the last login. RFC 7143 §11.12.5.
    pub isid: Option<[u8; 6]>,
    /// Connections that are in full feature phase.
    pub logged_in: u32,
    /// The largest value that `logged_in` has had.
    pub logged_in_most: u32,
}

impl CutCounts {
    /// Returns the number of connections that were broken, or may have been because of an inverted
    /// bit.
    pub fn cuts(&self) -> u64 {
        self.cut.values().chain(self.flipped.values()).sum::<u64>() + self.cut_anyhow
    }
}

/// The relay: initiators connect to [`address`](Self::address). It runs in a thread of its own,
/// until it is dropped.
pub struct Cutter {
    shared: Arc<Shared>,
    address: SocketAddr,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    state: Mutex<State>,
    /// Counter that increases to break every connection; `None`: the relay ends.
    break_all: watch::Sender<Option<u64>>,
}

#[derive(Default)]
struct State {
    /// Cuts to be made; the first one is active.
    armed: VecDeque<Cut>,
    flip: Option<Flip>,
    counts: CutCounts,
}

impl Cutter {
    /// Starts a relay to the target at `address`.
    ///
    /// # Errors
    /// The system has no port or no thread.
    pub fn to(address: &str) -> Result<Self> {
        let target: SocketAddr = address.parse().with_context(|| address.to_owned())?;
        let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let shared =
            Arc::new(Shared { state: Mutex::default(), break_all: watch::Sender::new(Some(0)) });
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let relay = Arc::clone(&shared);
        let thread = thread::Builder::new().name("cutter".to_owned()).spawn(move || {
            let local = tokio::task::LocalSet::new();
            local.block_on(&runtime, relay.accept(listener, target));
        })?;
        Ok(Self { shared, address, thread: Some(thread) })
    }

    /// Returns the address that the relay listens on.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Adds one cut, which is made once.
    pub fn arm(&self, cut: Cut) {
        self.arm_in_sequence([cut]);
    }

    /// Replaces all cuts: the second one becomes active once the first was made, and so on.
    pub fn arm_in_sequence(&self, cuts: impl IntoIterator<Item = Cut>) {
        self.shared.state().armed = cuts.into_iter().collect();
    }

    /// True while a cut is still to be made.
    pub fn is_armed(&self) -> bool {
        self.active_cut().is_some()
    }

    /// Returns the active cut.
    pub fn active_cut(&self) -> Option<Cut> {
        self.shared.state().armed.front().copied()
    }

    /// Adds one bit to be inverted, once.
    pub fn flip(&self, flip: Flip) {
        self.shared.state().flip = Some(flip);
    }

    /// True while a bit is still to be inverted.
    pub fn is_to_flip(&self) -> bool {
        self.shared.state().flip.is_some()
    }

    /// Breaks all connections that are logged in.
    pub fn cut_all(&self) {
        self.shared.break_all.send_modify(|turn| *turn = turn.map(|turn| turn + 1));
    }

    /// Returns the counts so far.
    pub fn counts(&self) -> CutCounts {
        self.shared.state().counts.clone()
    }
}

impl Drop for Cutter {
    fn drop(&mut self) {
        self.shared.break_all.send_replace(None);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join(); // a panic there was printed
        }
    }
}

/// Cause of a connection's end.
enum End {
    /// Closed by one of the peers, or the relay.
    Closed,
    /// Cut in that manner, with the rest of the PDU if the target is to receive it.
    Cut(ConnectionCut, Vec<u8>),
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn accept(self: Arc<Self>, listener: std::net::TcpListener, target: SocketAddr) {
        let Ok(listener) = TcpListener::from_std(listener) else { return };
        let mut turns = self.break_all.subscribe();
        loop {
            tokio::select! {
                accepted = listener.accept() => {
                    let Ok((near, _)) = accepted else { continue };
                    tokio::task::spawn_local(Arc::clone(&self).relay(near, target));
                }
                _ = turns.wait_for(|turn| turn.is_none()) => return,
            }
        }
    }

    async fn relay(self: Arc<Self>, mut near: TcpStream, target: SocketAddr) {
        let Ok(mut far) = TcpStream::connect(target).await else { return };
        let (_, _) = (near.set_nodelay(true), far.set_nodelay(true));
        let mut turns = self.break_all.subscribe();
        let form = RefCell::new(NegotiatedForm::default());
        let end = {
            let (mut near_in, mut near_out) = near.split();
            let (mut far_in, mut far_out) = far.split();
            tokio::select! {
                end = self.pass(&mut near_in, &mut far_out, PduDirection::ToTarget, &form) => end,
                end = self.pass(&mut far_in, &mut near_out, PduDirection::ToInitiator, &form) => {
                    end
                }
                () = wait_until_broken(&mut turns, &form) => {
                    self.state().counts.cut_anyhow += 1;
                    End::Cut(ConnectionCut::Reset, Vec::new())
                }
            }
        };
        if form.borrow().full_feature {
            self.state().counts.logged_in -= 1;
        }
        match end {
            End::Closed | End::Cut(ConnectionCut::Close, _) => {}
            End::Cut(ConnectionCut::Reset, _) => {
                let (_, _) = (near.set_zero_linger(), far.set_zero_linger());
            }
            End::Cut(ConnectionCut::Linger(late), mut rest) => {
                drain(&near, &mut rest);
                let _ = near.set_zero_linger();
                drop(near);
                let _ = tokio::time::timeout(LINGER_MAX, linger(far, late, rest)).await;
            }
        }
    }

    /// Relays PDUs until one of them is to be cut.
    async fn pass(
        &self,
        from: &mut (impl AsyncReadExt + Unpin),
        to: &mut (impl AsyncWriteExt + Unpin),
        way: PduDirection,
        form: &RefCell<NegotiatedForm>,
    ) -> End {
        while let Some(mut pdu) = pdu::read(from, way, form).await {
            self.read_login_response(&pdu, form);
            self.disturb(&mut pdu);
            let Some(cut) = self.next_cut(&pdu) else {
                if to.write_all(&pdu.bytes).await.is_err() {
                    return End::Closed;
                }
                continue;
            };
            let (passed, rest) = pdu.bytes.split_at(split(cut.position, &pdu));
            let _ = to.write_all(passed).await; // broken either way
            let rest = if way == PduDirection::ToTarget { rest.to_vec() } else { Vec::new() };
            return End::Cut(cut.manner, rest);
        }
        End::Closed
    }

    /// Reads a Login Response; a connection counts once it is in full feature phase.
    fn read_login_response(&self, pdu: &RelayedPdu, form: &RefCell<NegotiatedForm>) {
        let mut form = form.borrow_mut();
        let was_logged_in = form.full_feature;
        form.read_login_response(pdu);
        if form.full_feature && !was_logged_in {
            let counts = &mut self.state().counts;
            counts.logged_in += 1;
            counts.logged_in_most = counts.logged_in_most.max(counts.logged_in);
        }
    }

    /// Inverts a bit of the PDU if one is to be inverted in it.
    fn disturb(&self, pdu: &mut RelayedPdu) {
        let mut state = self.state();
        let Some(flip) = &mut state.flip else { return };
        if flip.kind != pdu.kind || (flip.in_data && pdu.data.is_empty()) {
            return;
        }
        if flip.skip > 0 {
            flip.skip -= 1;
            return;
        }
        let bytes = if flip.in_data { pdu.data.clone() } else { FLIPPED_BYTES };
        let bit = flip.bit % (bytes.len() * 8);
        pdu.bytes[bytes.start + bit / 8] ^= 1 << (bit % 8);
        state.flip = None;
        *state.counts.flipped.entry(pdu.kind).or_default() += 1;
    }

    /// Counts the PDU; `Some`: the connection is to be broken here. A cut is counted before either
    /// peer can notice it.
    fn next_cut(&self, pdu: &RelayedPdu) -> Option<Cut> {
        let mut state = self.state();
        *state.counts.seen.entry(pdu.kind).or_default() += 1;
        state.counts.last.push_back(pdu.kind);
        if state.counts.last.len() > LAST_PDUS {
            state.counts.last.pop_front();
        }
        if pdu.kind == PduKind::LoginRequest {
            state.counts.isid = pdu.bytes[8..14].try_into().ok();
        }
        let armed = state.armed.front_mut().filter(|cut| cut.kind == pdu.kind)?;
        if armed.skip > 0 {
            armed.skip -= 1;
            return None;
        }
        let cut = state.armed.pop_front()?;
        *state.counts.cut.entry(pdu.kind).or_default() += 1;
        Some(cut)
    }
}

/// Returns when a connection that is logged in is to be broken, or, when the relay ends, any
/// connection.
async fn wait_until_broken(
    turns: &mut watch::Receiver<Option<u64>>,
    form: &RefCell<NegotiatedForm>,
) {
    while turns.changed().await.is_ok() {
        if turns.borrow().is_none() || form.borrow().full_feature {
            return;
        }
    }
}

/// Returns the number of bytes of a PDU that pass.
fn split(position: CutPosition, pdu: &RelayedPdu) -> usize {
    match position {
        CutPosition::Before => 0,
        CutPosition::After => pdu.bytes.len(),
        CutPosition::InData(thousandths) if !pdu.data.is_empty() => {
            pdu.data.start + pdu.data.len() * thousandths.min(999) / 1000
        }
        CutPosition::InHeader(bytes) | CutPosition::InData(bytes) => 1 + bytes % (HEADER_BYTES - 1),
    }
}

/// Reads the bytes that the initiator has sent and that were not read yet.
fn drain(near: &TcpStream, rest: &mut Vec<u8>) {
    let mut piece = [0; 16 << 10];
    while rest.len() < LATE_BYTES_MAX {
        match near.try_read(&mut piece) {
            Ok(bytes @ 1..) => rest.extend_from_slice(&piece[..bytes]),
            _ => return,
        }
    }
}

/// Sends the remaining bytes after the delay, and keeps the connection until the target has closed
/// it.
async fn linger(mut far: TcpStream, late: Duration, rest: Vec<u8>) {
    tokio::time::sleep(late).await;
    let (mut far_in, mut far_out) = far.split();
    let _ = far_out.write_all(&rest).await; // the target may have closed
    let mut piece = [0; 16 << 10];
    while let Ok(1..) = far_in.read(&mut piece).await {}
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};

    /// Opens a connection through the relay, with a scripted target that accepts the login.
    fn log_in(cutter: &Cutter, target: &std::net::TcpListener) -> Result<[std::net::TcpStream; 2]> {
        let mut near = std::net::TcpStream::connect(cutter.address())?;
        let (mut far, _) = target.accept()?;
        let mut header = [0; HEADER_BYTES];
        header[0] = 0x43;
        near.write_all(&header)?;
        far.read_exact(&mut header)?;
        (header[0], header[1]) = (0x23, 0x87);
        far.write_all(&header)?;
        near.read_exact(&mut header)?;
        Ok([near, far])
    }

    /// Goal: connections count from their login to their end, and cuts are made one after the
    /// other.
    #[test]
    fn connections_are_counted_and_cut_one_by_one() -> Result<()> {
        let target = std::net::TcpListener::bind("127.0.0.1:0")?;
        let cutter = Cutter::to(&target.local_addr()?.to_string())?;
        let mut connections = [log_in(&cutter, &target)?, log_in(&cutter, &target)?];
        assert_eq!((cutter.counts().logged_in, cutter.counts().logged_in_most), (2, 2));
        let cut = |kind| Cut {
            kind,
            skip: 0,
            position: CutPosition::Before,
            manner: ConnectionCut::Close,
        };
        cutter.arm_in_sequence([cut(PduKind::NopOut), cut(PduKind::LogoutRequest)]);
        // A NOP-Out and a Logout Request. RFC 7143 §11.18, §11.14.
        for ([near, far], opcode) in connections.iter_mut().zip([0x40, 0x46]) {
            let mut header = [0; HEADER_BYTES];
            header[0] = opcode;
            near.write_all(&header)?;
            assert_eq!(near.read(&mut header)?, 0, "the connection is still open");
            assert_eq!(far.read(&mut header)?, 0, "the PDU came through");
        }
        let counts = cutter.counts();
        assert!(!cutter.is_armed());
        assert_eq!((counts.cuts(), counts.logged_in, counts.logged_in_most), (2, 0, 2));
        Ok(())
    }
}
