//! A target that violates RFC 7143: a Lunar target behind a relay that imitates one deviation.

use crate::server::{HEADER_BYTES, read_pdu};
use std::net::SocketAddr;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::io::AsyncWriteExt;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::AbortHandle;

const IMMEDIATE: u8 = 0x40;
const LOGIN_REQUEST: u8 = 0x03;
const DATA_OUT: u8 = 0x05;
const LOGIN_RESPONSE: u8 = 0x23;
/// Flags of the Login Response that ends a login: Transit, and the full feature phase as NSG.
const LAST_RESPONSE: u8 = 0x83;
/// Delay of a detour in the network.
const DETOUR_TIME: Duration = Duration::from_millis(2);

/// Deviation from RFC 7143 that the target imitates.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Deviation {
    /// Closes the connection when a login contains a key that RFC 3720 lacks.
    ClosesOverNewerKeys,
    /// Closes every connection whose login it has read.
    ClosesEveryLogin,
    /// Closes the connections of this number of first logins after reading them, and none later.
    CutsLogins(usize),
    /// Closes every connection once its login is complete.
    ClosesAfterLogin,
    /// Accepts commands only in the order of their CmdSN: closes the connection on which one
    /// arrives too early.
    ClosesOnGap,
    /// Closes the connection when a login joins a session.
    RefusesJoin,
    /// Lets connections join a session, and then closes them.
    DropsJoinedConnection,
    /// Ends the whole session when a login joins it.
    EndsSessionOnJoin,
    /// Lets connections join a session, and then ends the whole session.
    EndsJoinedSession,
}

/// A Login Request as received.
#[derive(Clone, Debug)]
pub struct Login {
    pub tsih: u16,
    pub cid: u16,
    cmd_sn: u32,
    /// Data segment, with `;` for the zero byte.
    pub text: String,
}

impl Login {
    fn of(pdu: &[u8]) -> Self {
        let field = |at: usize| u16::from_be_bytes([pdu[at], pdu[at + 1]]);
        let bytes = u32::from_be_bytes([0, pdu[5], pdu[6], pdu[7]]) as usize;
        let text = String::from_utf8_lossy(&pdu[HEADER_BYTES..HEADER_BYTES + bytes]);
        let text = text.replace('\0', ";");
        Self { tsih: field(14), cid: field(20), cmd_sn: cmd_sn(pdu), text }
    }

    pub fn is_leading(&self) -> bool {
        self.tsih == 0
    }

    pub fn has_key(&self, key: &str) -> bool {
        self.text.split(';').any(|pair| pair.split('=').next() == Some(key))
    }

    fn has_newer_keys(&self) -> bool {
        self.has_key("TaskReporting") || self.has_key("iSCSIProtocolLevel")
    }
}

/// Next expected CmdSN of the session that was begun last.
#[derive(Default)]
struct ExpectedCmdSn {
    session: u64,
    cmd_sn: u32,
}

struct State {
    deviation: Mutex<Deviation>,
    logins: watch::Sender<Vec<Login>>,
    expected: Mutex<ExpectedCmdSn>,
    connections: Mutex<Vec<AbortHandle>>,
}

pub struct DeviatingTarget {
    pub address: SocketAddr,
    state: Arc<State>,
}

impl DeviatingTarget {
    /// Starts a relay with this deviation in front of `portal`.
    pub async fn of(portal: SocketAddr, deviation: Deviation) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let state = Arc::new(State {
            deviation: Mutex::new(deviation),
            logins: watch::Sender::default(),
            expected: Mutex::default(),
            connections: Mutex::default(),
        });
        let shared = Arc::clone(&state);
        tokio::spawn(async move {
            while let Ok((near, _)) = listener.accept().await {
                let Ok(far) = TcpStream::connect(portal).await else { continue };
                let task = tokio::spawn(carry(near, far, Arc::clone(&shared)));
                shared.connections.lock().unwrap().push(task.abort_handle());
            }
        });
        Self { address, state }
    }

    /// Changes the deviation.
    pub fn change(&self, deviation: Deviation) {
        *self.state.deviation.lock().unwrap() = deviation;
    }

    /// Returns all Login Requests so far.
    pub fn logins(&self) -> Vec<Login> {
        self.state.logins.borrow().clone()
    }

    /// Waits until `wanted` Login Requests joined a session.
    pub async fn until_joins(&self, wanted: usize) {
        let joins = |all: &Vec<Login>| all.iter().filter(|login| !login.is_leading()).count();
        self.state.logins.subscribe().wait_for(|all| joins(all) >= wanted).await.unwrap();
    }

    /// Ends all connections.
    pub fn cut_all(&self) {
        self.state.connections.lock().unwrap().drain(..).for_each(|task| task.abort());
    }

    /// Number of sessions that were begun.
    pub fn leading_logins(&self) -> usize {
        self.logins().iter().filter(|login| login.is_leading()).count()
    }
}

/// Carries one connection until one end or the deviation closes it.
async fn carry(near: TcpStream, far: TcpStream, state: Arc<State>) {
    let ((near_in, near_out), (far_in, far_out)) = (near.into_split(), far.into_split());
    let joins = AtomicBool::new(false);
    tokio::select! {
        _ = carry_requests(near_in, far_out, &state, &joins) => {}
        _ = carry_responses(far_in, near_out, &state, &joins) => {}
    }
}

async fn carry_requests(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    state: &State,
    joins: &AtomicBool,
) -> std::io::Result<()> {
    let (mut session, mut cid) = (0, 0);
    loop {
        let pdu = read_pdu(&mut from).await?;
        let immediate = pdu[0] & IMMEDIATE != 0;
        match pdu[0] & !IMMEDIATE {
            LOGIN_REQUEST => {
                let login = Login::of(&pdu);
                joins.store(!login.is_leading(), Relaxed);
                cid = login.cid;
                session = state.begin(&login);
                if !state.takes_login(login) {
                    return state.close();
                }
            }
            DATA_OUT => {}
            _ if immediate || state.deviation() != Deviation::ClosesOnGap => {}
            _ => {
                if cid % 2 == 1 {
                    // This route is longer than that of the other connections.
                    tokio::time::sleep(DETOUR_TIME).await;
                }
                if !state.takes_number(session, cmd_sn(&pdu)) {
                    return Ok(());
                }
            }
        }
        to.write_all(&pdu).await?;
    }
}

async fn carry_responses(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    state: &State,
    joins: &AtomicBool,
) -> std::io::Result<()> {
    loop {
        let pdu = read_pdu(&mut from).await?;
        to.write_all(&pdu).await?;
        let complete = pdu[0] == LOGIN_RESPONSE && pdu[1] & LAST_RESPONSE == LAST_RESPONSE;
        if complete && state.deviation() == Deviation::ClosesAfterLogin {
            return state.close();
        }
        let drops = matches!(
            state.deviation(),
            Deviation::DropsJoinedConnection | Deviation::EndsJoinedSession
        );
        if drops && joins.load(Relaxed) {
            return state.close();
        }
    }
}

fn cmd_sn(pdu: &[u8]) -> u32 {
    u32::from_be_bytes([pdu[24], pdu[25], pdu[26], pdu[27]])
}

impl State {
    fn deviation(&self) -> Deviation {
        *self.deviation.lock().unwrap()
    }

    fn takes_login(&self, login: Login) -> bool {
        let mut deviation = self.deviation.lock().unwrap();
        let takes = match &mut *deviation {
            Deviation::ClosesOverNewerKeys => !login.has_newer_keys(),
            Deviation::ClosesEveryLogin => false,
            Deviation::CutsLogins(left) => {
                let through = *left == 0;
                *left = left.saturating_sub(1);
                through
            }
            Deviation::RefusesJoin | Deviation::EndsSessionOnJoin => login.is_leading(),
            Deviation::ClosesAfterLogin
            | Deviation::ClosesOnGap
            | Deviation::DropsJoinedConnection
            | Deviation::EndsJoinedSession => true,
        };
        self.logins.send_modify(|logins| logins.push(login));
        takes
    }

    /// Closes the current connection, by returning `Ok` to its task, and all other connections if
    /// the deviation ends sessions.
    fn close(&self) -> std::io::Result<()> {
        if matches!(self.deviation(), Deviation::EndsSessionOnJoin | Deviation::EndsJoinedSession) {
            self.connections.lock().unwrap().drain(..).for_each(|task| task.abort());
        }
        Ok(())
    }

    /// Returns the number of the session that a login begins or joins. A new session begins with
    /// the CmdSN of its login.
    fn begin(&self, login: &Login) -> u64 {
        let mut expected = self.expected.lock().unwrap();
        if login.is_leading() {
            *expected = ExpectedCmdSn { session: expected.session + 1, cmd_sn: login.cmd_sn };
        }
        expected.session
    }

    fn takes_number(&self, session: u64, cmd_sn: u32) -> bool {
        let mut expected = self.expected.lock().unwrap();
        let due = (expected.session, expected.cmd_sn) == (session, cmd_sn);
        if due {
            expected.cmd_sn = cmd_sn.wrapping_add(1);
        }
        due
    }
}
