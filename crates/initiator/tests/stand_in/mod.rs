//! A target that does not do all that RFC 7143 demands: one of ours behind a relay that has the
//! other's habit.

use crate::server::{HEADER_BYTES, read_pdu};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::AbortHandle;

const IMMEDIATE: u8 = 0x40;
const LOGIN_REQUEST: u8 = 0x03;

/// What such a target does.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Habit {
    /// It closes the connection when a login names a key that RFC 3720 does not know.
    ClosesOverNewerKeys,
    /// It closes the connection when the login is over, whatever was said.
    ClosesEveryLogin,
}

/// A Login Request as it came.
#[derive(Clone, Debug)]
pub struct Login {
    pub tsih: u16,
    /// Its data segment, with `;` for the zero byte.
    pub text: String,
}

impl Login {
    fn of(pdu: &[u8]) -> Self {
        let tsih = u16::from_be_bytes([pdu[14], pdu[15]]);
        let bytes = u32::from_be_bytes([0, pdu[5], pdu[6], pdu[7]]) as usize;
        let text = String::from_utf8_lossy(&pdu[HEADER_BYTES..HEADER_BYTES + bytes]);
        Self { tsih, text: text.replace('\0', ";") }
    }

    pub fn is_leading(&self) -> bool {
        self.tsih == 0
    }

    pub fn names(&self, key: &str) -> bool {
        self.text.split(';').any(|pair| pair.split('=').next() == Some(key))
    }

    fn names_newer_keys(&self) -> bool {
        self.names("TaskReporting") || self.names("iSCSIProtocolLevel")
    }
}

struct State {
    habit: Habit,
    logins: Mutex<Vec<Login>>,
    connections: Mutex<Vec<AbortHandle>>,
}

pub struct StandIn {
    pub address: SocketAddr,
    state: Arc<State>,
}

impl StandIn {
    /// It has this habit, and what it serves is that portal's.
    pub async fn of(portal: SocketAddr, habit: Habit) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let state =
            Arc::new(State { habit, logins: Mutex::default(), connections: Mutex::default() });
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

    /// All Login Requests so far.
    pub fn logins(&self) -> Vec<Login> {
        self.state.logins.lock().unwrap().clone()
    }

    /// Ends all connections there are.
    pub fn cut_all(&self) {
        self.state.connections.lock().unwrap().drain(..).for_each(|task| task.abort());
    }

    /// How many sessions were begun.
    pub fn leading_logins(&self) -> usize {
        self.logins().iter().filter(|login| login.is_leading()).count()
    }
}

/// Carries one connection until one end closes it, or the habit does.
async fn carry(near: TcpStream, far: TcpStream, state: Arc<State>) {
    let ((near_in, near_out), (far_in, far_out)) = (near.into_split(), far.into_split());
    tokio::select! {
        _ = there(near_in, far_out, &state) => {}
        _ = back(far_in, near_out) => {}
    }
}

async fn there(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    state: &State,
) -> std::io::Result<()> {
    loop {
        let pdu = read_pdu(&mut from).await?;
        if pdu[0] & !IMMEDIATE == LOGIN_REQUEST && !state.takes_login(Login::of(&pdu)) {
            return Ok(());
        }
        to.write_all(&pdu).await?;
    }
}

async fn back(mut from: OwnedReadHalf, mut to: OwnedWriteHalf) -> std::io::Result<()> {
    let mut buffer = vec![0; 64 << 10];
    while let bytes @ 1.. = from.read(&mut buffer).await? {
        to.write_all(&buffer[..bytes]).await?;
    }
    Ok(())
}

impl State {
    fn takes_login(&self, login: Login) -> bool {
        let takes = match self.habit {
            Habit::ClosesOverNewerKeys => !login.names_newer_keys(),
            Habit::ClosesEveryLogin => false,
        };
        self.logins.lock().unwrap().push(login);
        takes
    }
}
