//! A relay between a Lunar target and the initiator that parses PDUs: it delays responses, replaces
//! them, and cuts connections.

use crate::server::{HEADER_BYTES, read_pdu};
use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::io::AsyncWriteExt;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::AbortHandle;

const SCSI_COMMAND: u8 = 0x01;
const SCSI_RESPONSE: u8 = 0x21;
const DATA_IN: u8 = 0x25;
/// Data-In that also is the response.
const STATUS: u8 = 0x01;
const CHECK_CONDITION: u8 = 0x02;

/// Action for the next response to a command.
pub struct Rule {
    /// Operation code of the command.
    pub opcode: u8,
    /// Applies only if the response is CHECK CONDITION.
    pub failed: bool,
    /// Replaces the response by CHECK CONDITION with this sense data.
    pub sense: Option<Vec<u8>>,
    /// Replaces the response by one with this status and status qualifier, without data.
    pub status: Option<(u8, u16)>,
    /// Delays the response, and all that follows on its connection, until [`Relay::release_held`].
    pub held: bool,
    /// Ends the connection instead of passing the response.
    pub cut: bool,
    /// Cuts the data of the response, which is one Data-In PDU, to this number of bytes.
    pub data_bytes: Option<usize>,
}

impl Rule {
    pub fn of(opcode: u8) -> Self {
        Self {
            opcode,
            failed: false,
            sense: None,
            status: None,
            held: false,
            cut: false,
            data_bytes: None,
        }
    }
}

#[derive(Default)]
struct State {
    rules: Mutex<VecDeque<Rule>>,
    connections: Mutex<Vec<AbortHandle>>,
    /// Number of rules that were not applied yet.
    unapplied: watch::Sender<usize>,
    /// Operation codes of commands that were sent.
    sent: Mutex<Vec<u8>>,
    /// Operation codes of commands that were answered.
    answered: watch::Sender<Vec<u8>>,
    /// True after [`Relay::release_held`], until the next rule.
    released: watch::Sender<bool>,
    /// Portal of new connections, if it differs from the first one.
    portal: Mutex<Option<SocketAddr>>,
}

pub struct Relay {
    pub address: SocketAddr,
    state: Arc<State>,
}

impl Relay {
    pub async fn to(portal: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let state = Arc::<State>::default();
        let shared = Arc::clone(&state);
        tokio::spawn(async move {
            while let Ok((initiator, _)) = listener.accept().await {
                let portal = shared.portal.lock().unwrap().unwrap_or(portal);
                let Ok(target) = TcpStream::connect(portal).await else { continue };
                let task = tokio::spawn(carry(initiator, target, Arc::clone(&shared)));
                shared.connections.lock().unwrap().push(task.abort_handle());
            }
        });
        Self { address, state }
    }

    /// Adds a rule that applies from now on.
    pub fn rule(&self, rule: Rule) {
        self.clear_answered();
        self.state.unapplied.send_modify(|unapplied| *unapplied += 1);
        self.state.released.send_replace(false);
        self.state.rules.lock().unwrap().push_back(rule);
    }

    /// Connects to another portal from now on, and ends all connections.
    pub fn redirect(&self, portal: SocketAddr) {
        *self.state.portal.lock().unwrap() = Some(portal);
        self.cut_all();
    }

    /// Waits until all rules were applied.
    pub async fn until_all_applied(&self) {
        let mut unapplied = self.state.unapplied.subscribe();
        unapplied.wait_for(|unapplied| *unapplied == 0).await.unwrap();
    }

    /// Forgets the responses passed so far.
    pub fn clear_answered(&self) {
        self.state.answered.send_replace(Vec::new());
    }

    /// Waits until the initiator has had time to process the response to a command.
    pub async fn until_answered(&self, opcode: u8) {
        let mut answered = self.state.answered.subscribe();
        answered.wait_for(|answered| answered.contains(&opcode)).await.unwrap();
        tokio::time::sleep(Duration::from_millis(300)).await;
    }

    /// Returns the number of commands with this operation code that were sent so far.
    pub fn sent(&self, opcode: u8) -> usize {
        self.state.sent.lock().unwrap().iter().filter(|sent| **sent == opcode).count()
    }

    /// Releases delayed responses.
    pub fn release_held(&self) {
        self.state.released.send_replace(true);
    }

    /// Number of connections that were accepted since the last [`Relay::cut_all`].
    pub fn connections(&self) -> usize {
        self.state.connections.lock().unwrap().len()
    }

    /// Ends all connections.
    pub fn cut_all(&self) {
        self.state.connections.lock().unwrap().drain(..).for_each(|task| task.abort());
    }
}

/// Carries PDUs both ways until one end closes, or a rule ends the connection.
async fn carry(initiator: TcpStream, target: TcpStream, state: Arc<State>) {
    let ((initiator_in, initiator_out), (target_in, target_out)) =
        (initiator.into_split(), target.into_split());
    let commands = Mutex::<HashMap<[u8; 4], u8>>::default();
    tokio::select! {
        _ = carry_requests(initiator_in, target_out, &commands, &state) => {}
        _ = carry_responses(target_in, initiator_out, &commands, &state) => {}
    }
}

async fn carry_requests(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    commands: &Mutex<HashMap<[u8; 4], u8>>,
    state: &State,
) -> std::io::Result<()> {
    loop {
        let pdu = read_pdu(&mut from).await?;
        if pdu[0] & 0x3f == SCSI_COMMAND {
            state.sent.lock().unwrap().push(pdu[32]);
            commands.lock().unwrap().insert(tag(&pdu), pdu[32]);
        }
        to.write_all(&pdu).await?;
    }
}

async fn carry_responses(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    commands: &Mutex<HashMap<[u8; 4], u8>>,
    state: &State,
) -> std::io::Result<()> {
    loop {
        let mut pdu = read_pdu(&mut from).await?;
        let response = match pdu[0] & 0x3f {
            SCSI_RESPONSE => true,
            DATA_IN => pdu[1] & STATUS != 0,
            _ => false,
        };
        let opcode = commands.lock().unwrap().get(&tag(&pdu)).copied().filter(|_| response);
        let rule = opcode.and_then(|opcode| take_rule(state, opcode, pdu[3] == CHECK_CONDITION));
        if let Some(rule) = rule {
            state.unapplied.send_modify(|unapplied| *unapplied -= 1);
            if rule.held {
                let _ = state.released.subscribe().wait_for(|released| *released).await;
            }
            if rule.cut {
                return Ok(());
            }
            if let Some(bytes) = rule.data_bytes {
                cut_data(&mut pdu, bytes);
            }
            if let Some(sense) = &rule.sense {
                fail(&mut pdu, sense);
            }
            if let Some((status, qualifier)) = rule.status {
                end_with(&mut pdu, status, qualifier);
            }
        }
        to.write_all(&pdu).await?;
        if let Some(opcode) = opcode {
            state.answered.send_modify(|answered| answered.push(opcode));
        }
    }
}

fn take_rule(state: &State, opcode: u8, failed: bool) -> Option<Rule> {
    let mut rules = state.rules.lock().unwrap();
    let applies = |rule: &Rule| rule.opcode == opcode && (failed || !rule.failed);
    let at = rules.iter().position(applies)?;
    rules.remove(at)
}

/// Turns a SCSI Response into CHECK CONDITION. RFC 7143 §11.4.
fn fail(pdu: &mut Vec<u8>, sense: &[u8]) {
    pdu.truncate(HEADER_BYTES);
    pdu[1] = 0x80;
    pdu[3] = CHECK_CONDITION;
    pdu[36..].fill(0);
    let data_bytes = (2 + sense.len()) as u32;
    pdu[4..8].copy_from_slice(&data_bytes.to_be_bytes());
    pdu.extend_from_slice(&(sense.len() as u16).to_be_bytes());
    pdu.extend_from_slice(sense);
    pdu.resize(pdu.len().next_multiple_of(4), 0);
}

/// Turns a SCSI Response into one with this status, without data. RFC 7143 §11.4, RFC 7144 §5.2.
fn end_with(pdu: &mut Vec<u8>, status: u8, qualifier: u16) {
    pdu.truncate(HEADER_BYTES);
    (pdu[1], pdu[3]) = (0x80, status);
    pdu[4..8].fill(0);
    pdu[8..10].copy_from_slice(&qualifier.to_be_bytes());
    pdu[36..].fill(0);
}

/// Cuts the data of a Data-In PDU that also is the response, as a residual underflow. RFC 7143
/// §11.7.
fn cut_data(pdu: &mut Vec<u8>, bytes: usize) {
    const UNDERFLOW: u8 = 0x02;
    assert_eq!(pdu[0] & 0x3f, DATA_IN);
    let field = |at: usize| u32::from_be_bytes(pdu[at..at + 4].try_into().unwrap());
    let had = (field(4) & 0x00ff_ffff) as usize;
    let residual = field(44) + had.saturating_sub(bytes) as u32;
    let bytes = bytes.min(had);
    pdu[1] |= UNDERFLOW;
    pdu[4..8].copy_from_slice(&(bytes as u32).to_be_bytes());
    pdu[44..48].copy_from_slice(&residual.to_be_bytes());
    pdu.resize(HEADER_BYTES + bytes.next_multiple_of(4), 0);
}

fn tag(pdu: &[u8]) -> [u8; 4] {
    pdu[16..20].try_into().unwrap()
}
