//! The handle of a connection, for its users.

use crate::shared_session_state::{ConnectionMessage, ConnectionMessageSender};
use crate::{Error, ErrorKind};
use bytes::Bytes;
use lunar_block::Buffer;
use lunar_iscsi::connection::initiator::{Cdb, CommandResult};
use lunar_iscsi::connection::target::TargetRecord;
use lunar_iscsi::framing::TaskId;
use lunar_iscsi::pdu::ServiceResponse;
use lunar_scsi::sense::Status;
use lunar_wire::Lun;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use tokio::sync::{mpsc, oneshot, watch};

/// Load that a command counts for besides its data, in bytes.
const COMMAND_BYTES: u64 = 512;

/// Handle of a connection, for sending requests. The session is logged out when the last handle is
/// dropped.
#[derive(Debug)]
pub(crate) struct ConnectionHandle {
    pub(crate) requests: mpsc::Sender<HandleRequest>,
    pub(crate) state: Arc<ConnectionState>,
    /// Closed when the connection has ended for good.
    pub(crate) alive: watch::Receiver<()>,
}

impl ConnectionHandle {
    /// True when the session continues without this connection, or is over.
    pub(crate) fn is_gone(&self) -> bool {
        self.alive.has_changed().is_err()
    }

    /// Removes the connection from the session; returns when its commands and the connection itself
    /// have ended.
    pub(crate) async fn dismiss(&self) {
        self.state.set_up(false);
        self.state.retired.store(true, Ordering::Release);
        // A connection that has already ended has nothing to retire.
        let _ = self.state.mailbox.put(ConnectionMessage::Retire);
        let mut alive = self.alive.clone();
        while alive.changed().await.is_ok() {}
    }
}

/// A request from a handle.
pub(crate) enum HandleRequest {
    /// Execute a command; data-in goes to `data_in`, whose length is the expected one.
    Execute {
        id: TaskId,
        lun: Lun,
        cdb: Cdb,
        data_out: Bytes,
        data_in: Option<Buffer>,
        load: CommandLoad,
        answer: oneshot::Sender<Result<Executed, Error>>,
    },
    /// List the targets.
    SendTargets { answer: oneshot::Sender<Result<Vec<TargetRecord>, Error>> },
    /// Log out and end.
    Logout { answer: oneshot::Sender<Result<(), Error>> },
}

impl HandleRequest {
    /// Answers that the request was not sent because of `error`.
    pub(crate) fn refuse(self, error: &Error) {
        // The receiver of the answer may be dropped.
        match self {
            Self::Execute { answer, .. } => drop(answer.send(Err(error.clone().not_sent()))),
            Self::SendTargets { answer } => drop(answer.send(Err(error.clone()))),
            Self::Logout { answer } => drop(answer.send(Ok(()))),
        }
    }
}

/// A command that the target answered.
pub(crate) struct Executed {
    pub(crate) result: CommandResult,
    pub(crate) data_in: Option<Buffer>,
}

impl Executed {
    /// True when the command completed with status GOOD.
    pub(crate) fn is_good(&self) -> bool {
        let done = self.result.response == ServiceResponse::COMMAND_COMPLETED;
        done && Status(self.result.status) == Status::GOOD
    }

    /// Returns the received data.
    pub(crate) fn data_in(&self) -> &[u8] {
        let data = self.data_in.as_deref().unwrap_or_default();
        data.get(..self.result.data_in_bytes as usize).unwrap_or(data)
    }
}

/// State shared by a connection's task and its handles.
#[derive(Debug)]
pub(crate) struct ConnectionState {
    pub(crate) cid: u16,
    pub(crate) mailbox: Arc<ConnectionMessageSender>,
    /// True while the connection is logged in and takes requests.
    up: AtomicBool,
    /// True when the session continues without the connection.
    retired: AtomicBool,
    outstanding_bytes: AtomicU64,
    next_id: AtomicU64,
}

impl ConnectionState {
    /// Returns the state of a connection that is not logged in.
    pub(crate) fn new(cid: u16) -> Arc<Self> {
        Arc::new(Self {
            cid,
            mailbox: Arc::default(),
            up: AtomicBool::new(false),
            retired: AtomicBool::new(false),
            outstanding_bytes: AtomicU64::new(0),
            next_id: AtomicU64::new(0),
        })
    }

    pub(crate) fn is_up(&self) -> bool {
        self.up.load(Ordering::Acquire)
    }

    pub(crate) fn set_up(&self, up: bool) {
        self.up.store(up, Ordering::Release);
    }

    pub(crate) fn is_retired(&self) -> bool {
        self.retired.load(Ordering::Acquire)
    }

    /// Returns an ID for a task, unique on this connection.
    pub(crate) fn new_id(&self) -> TaskId {
        TaskId(self.next_id.fetch_add(1, Ordering::Relaxed))
    }

    /// Bytes of commands and data that were queued on the connection and are not answered.
    pub(crate) fn outstanding_bytes(&self) -> u64 {
        self.outstanding_bytes.load(Ordering::Relaxed)
    }

    /// Counts a command with `data_bytes` of data as outstanding until the result is dropped.
    pub(crate) fn load(self: &Arc<Self>, data_bytes: usize) -> CommandLoad {
        let bytes = COMMAND_BYTES + data_bytes as u64;
        self.outstanding_bytes.fetch_add(bytes, Ordering::Relaxed);
        CommandLoad { link: Arc::clone(self), bytes }
    }
}

/// Load that one command adds to its connection; subtracted on drop.
#[derive(Debug)]
pub(crate) struct CommandLoad {
    link: Arc<ConnectionState>,
    bytes: u64,
}

impl Drop for CommandLoad {
    fn drop(&mut self) {
        self.link.outstanding_bytes.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// Returns the error for a session that is over.
pub(crate) fn session_over_error(portal: &str) -> Error {
    Error::new(ErrorKind::SessionLost, format!("the session with {portal} has ended"))
}
