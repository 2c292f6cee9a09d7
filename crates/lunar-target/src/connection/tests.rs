//! Behaviour of a connection while its owner has no turn.

use super::*;
use crate::session::tests::{Rig, TARGET};
use lunar_iscsi::pdu::Opcode;
use lunar_iscsi::session::target::DataDue;
use std::task::Waker;

/// A connection without a socket.
struct Client {
    connection: Connection,
    out: Outbox,
    cmd_sn: u32,
    mailbox: ConnectionEventSender,
}

impl Client {
    /// Logs in over a new connection as initiator 9.
    fn log_in(rig: &Rig) -> Self {
        let shared = rig.shared();
        let path = rig.path();
        let (mailbox, mail) = unbounded_channel();
        let (presence, _abort) = shared.enter(path.peer, &mailbox).unwrap();
        let connection = Connection::new(Arc::clone(shared), presence, path, mailbox.clone(), mail);
        let mut client = Self { connection, out: Outbox::default(), cmd_sn: 1, mailbox };
        let text = format!(
            "InitiatorName=iqn.2026-11.org.lunarsan.test:initiator-9\0TargetName={TARGET}\0"
        );
        let mut login = [0; 48];
        login[..2].copy_from_slice(&[0x40 | Opcode::LOGIN_REQUEST.0, 0x87]);
        login[5..8].copy_from_slice(&(text.len() as u32).to_be_bytes()[1..]);
        login[27] = 1; // CmdSN
        client.send(login, text.as_bytes());
        while !client.connection.in_normal_session {
            client.turn();
        }
        client
    }

    fn send(&mut self, header: [u8; 48], mut data: &[u8]) {
        let (connection, out) = (&mut self.connection, &mut self.out);
        connection.header(Time::ZERO, Header::new(header), out);
        if data.is_empty() {
            return;
        }
        while !data.is_empty() {
            let room = connection.payload_room(data.len());
            let bytes = room.len().min(data.len());
            room[..bytes].copy_from_slice(&data[..bytes]);
            connection.payload_filled(bytes);
            data = &data[bytes..];
        }
        connection.payload_end(Time::ZERO, true, out);
    }

    /// Sends a command to LUN 0 that moves no data.
    fn command(&mut self, cdb: &[u8]) {
        let mut command = [0; 48];
        command[..2].copy_from_slice(&[Opcode::SCSI_COMMAND.0, 0x81]);
        command[16..20].copy_from_slice(&self.cmd_sn.to_be_bytes());
        command[24..28].copy_from_slice(&self.cmd_sn.to_be_bytes());
        command[32..32 + cdb.len()].copy_from_slice(cdb);
        self.cmd_sn += 1;
        self.send(command, &[]);
    }

    /// Sends a VERIFY, which waits for a turn in which it may move data.
    fn verify(&mut self) {
        let turn = MovingTurn::begin();
        lunar_net::count_moved(TURN_BYTES);
        self.command(&[0x2f, 0, 0, 0, 0, 0, 0, 0, 8, 0]);
        drop(turn);
        assert!(!self.connection.tasks.are_quiet(), "it waits");
    }

    fn turn(&mut self) {
        let mut context = Context::from_waker(Waker::noop());
        let _ = self.connection.poll_work(Time::ZERO, &mut context, &mut self.out);
    }

    /// Waits for `work` while the owner of the connection has no turn.
    async fn has_no_turn<T>(&mut self, work: impl Future<Output = T>) -> T {
        let mut work = std::pin::pin!(work);
        for _ in 0..1000 {
            if let Some(done) = (&mut work).now_or_never() {
                return done;
            }
            let mut context = Context::from_waker(Waker::noop());
            self.connection.poll_out_of_turn(Time::ZERO, &mut context, &mut self.out);
            tokio::task::yield_now().await;
        }
        panic!("it waits for a turn of the connection");
    }
}

/// Fault: connections processed their sessions' messages to abort tasks only in their owners'
/// turns. LOGICAL UNIT RESET and PREEMPT AND ABORT of another host waited for one to three turns of
/// each of the thousands of busy connections of the host that was to be shut out.
#[test]
fn tasks_are_aborted_out_of_turn() {
    let rig = Rig::new();
    let shared = rig.shared();
    let mut client = Client::log_in(&rig);
    client.command(&[0; 6]); // the first unit attention
    let (session, _) = client.connection.session.clone().unwrap();
    let other = rig.log_in(2);
    client.verify();
    let reset = crate::resets::reset_unit(shared, &other, &rig.units[0]);
    rig.runtime.block_on(client.has_no_turn(reset));
    client.command(&[0; 6]); // the unit attention of the reset
    client.verify();
    let (by, unit) = (Arc::clone(&other), Arc::clone(&rig.units[0]));
    let preempt = crate::manage::abort_tasks_of(Arc::clone(shared), by, unit, vec![session.nexus]);
    rig.runtime.block_on(client.has_no_turn(preempt));
    assert!(client.connection.tasks.are_quiet());
    assert_eq!(session.tasks(), 0);
    drop(client);
    rig.lose(&other);
    rig.end();
}

/// Goal: out of turn only aborts are processed; other mail waits for the turn, in its order.
#[test]
fn other_mail_waits_for_the_turn() {
    let rig = Rig::new();
    let mut client = Client::log_in(&rig);
    client.command(&[0; 6]);
    client.verify();
    let task = client.connection.tasks.any_running().unwrap();
    let before = client.out.bytes();
    let shutdown = || ConnectionEvent::Shutdown { within_seconds: 3 };
    let abort = ToConnection::AbortTask { task, data: DataDue::Discarded };
    for mail in [shutdown(), ConnectionEvent::Session(abort), ConnectionEvent::Cut] {
        client.mailbox.send(mail).unwrap();
    }
    let mut context = Context::from_waker(Waker::noop());
    assert!(client.connection.poll_out_of_turn(Time::ZERO, &mut context, &mut client.out));
    assert!(client.connection.tasks.are_quiet());
    let waiting = client.connection.heard.make_contiguous();
    assert!(
        matches!(waiting, [ConnectionEvent::Shutdown { .. }, ConnectionEvent::Cut, ..]),
        "{waiting:?}"
    );
    assert_eq!(client.out.bytes(), before);
    client.turn();
    assert!(client.connection.heard.is_empty() && client.connection.over.is_some());
    drop(client);
    rig.end();
}
