//! Behaviour of a connection while its owner has no turn.

use super::*;
use crate::abort::AbortSignal;
use crate::quota::{BYTES_PER_SECOND_MIN, Cost, IOPS_MIN, Limit};
use crate::session::tests::{Rig, TARGET};
use lunar_block::BlockRange;
use lunar_iscsi::pdu::Opcode;
use lunar_scsi::plan::LbaRange;
use std::task::Waker;

mod long_reads;

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
        Self::log_in_with(rig, "")
    }

    /// The same, with further keys.
    fn log_in_with(rig: &Rig, keys: &str) -> Self {
        let services = rig.services();
        let path = rig.path();
        let (mailbox, events) = unbounded_channel();
        let (counted, _abort) = services.connections.enter(path.peer, &mailbox).unwrap();
        let connection =
            Connection::new(Arc::clone(services), counted, path, mailbox.clone(), events);
        let mut client = Self { connection, out: Outbox::default(), cmd_sn: 1, mailbox };
        let text = format!(
            "InitiatorName=iqn.2026-11.org.lunarsan.test:initiator-9\0TargetName={TARGET}\0{keys}"
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
            let room = connection.payload_buffer(data.len());
            let bytes = room.len().min(data.len());
            room[..bytes].copy_from_slice(&data[..bytes]);
            connection.payload_filled(bytes);
            data = &data[bytes..];
        }
        connection.payload_end(Time::ZERO, SegmentDigest::None, out);
    }

    /// Sends a command to LUN 0 that moves no data.
    fn command(&mut self, cdb: &[u8]) {
        self.command_with(cdb, &[]);
    }

    /// Sends a READ of so many blocks, from the first one on.
    fn read(&mut self, blocks: u16) {
        let [high, low] = blocks.to_be_bytes();
        let mut command = [0; 48];
        command[..2].copy_from_slice(&[Opcode::SCSI_COMMAND.0, 0xc1]);
        command[16..20].copy_from_slice(&self.cmd_sn.to_be_bytes());
        command[20..24].copy_from_slice(&(u32::from(blocks) * 512).to_be_bytes());
        command[24..28].copy_from_slice(&self.cmd_sn.to_be_bytes());
        command[32..42].copy_from_slice(&[0x28, 0, 0, 0, 0, 0, 0, high, low, 0]);
        self.cmd_sn += 1;
        self.send(command, &[]);
    }

    /// Sends a command to LUN 0, with its data-out.
    fn command_with(&mut self, cdb: &[u8], data: &[u8]) {
        let mut command = [0; 48];
        let flags = if data.is_empty() { 0x81 } else { 0xa1 };
        command[..2].copy_from_slice(&[Opcode::SCSI_COMMAND.0, flags]);
        command[4..8].copy_from_slice(&(data.len() as u32).to_be_bytes());
        command[20..24].copy_from_slice(&(data.len() as u32).to_be_bytes());
        command[16..20].copy_from_slice(&self.cmd_sn.to_be_bytes());
        command[24..28].copy_from_slice(&self.cmd_sn.to_be_bytes());
        command[32..32 + cdb.len()].copy_from_slice(cdb);
        self.cmd_sn += 1;
        self.send(command, data);
    }

    /// Sends a WRITE of one block, at the first one.
    fn write(&mut self) {
        self.command_with(&[0x2a, 0, 0, 0, 0, 0, 0, 0, 1, 0], &[7; 512]);
    }

    /// Sends an ORWRITE of one block, at the first one.
    fn or_write(&mut self) {
        let mut cdb = [0; 16];
        (cdb[0], cdb[13]) = (0x8b, 1);
        self.command_with(&cdb, &[7; 512]);
    }

    /// Sends a WRITE SAME of all blocks, with this one or with zeroes.
    fn write_same(&mut self, block: &[u8]) {
        let mut cdb = [0; 16];
        (cdb[0], cdb[1], cdb[12]) = (0x93, u8::from(block.is_empty()), 2);
        self.command_with(&cdb, block);
    }

    /// Sends a VERIFY, which waits for a turn in which it may move data.
    fn verify(&mut self) {
        let turn = MoveBudget::begin();
        lunar_net::count_moved(TURN_BYTES);
        self.command(&[0x2f, 0, 0, 0, 0, 0, 0, 0, 8, 0]);
        drop(turn);
        assert!(!self.connection.tasks.are_quiet(), "it waits");
    }

    fn turn(&mut self) {
        let mut context = Context::from_waker(Waker::noop());
        let _ = self.connection.poll_work(Time::ZERO, &mut context, &mut self.out);
    }

    /// Has turns until all commands have ended.
    async fn take_all_turns(&mut self) {
        for _ in 0..1000 {
            if self.connection.tasks.are_quiet() {
                return;
            }
            self.turn();
            tokio::task::yield_now().await;
        }
        panic!("a command does not end");
    }

    /// Polls the connection some times while its owner has no turn; its commands continue.
    async fn goes_on_in_turns_only(&mut self) {
        for _ in 0..20 {
            self.has_no_turn(tokio::task::yield_now()).await;
        }
        assert_eq!(self.connection.tasks.ended(), 0, "it has ended out of turn");
        self.take_all_turns().await;
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
    let mut client = Client::log_in(&rig);
    client.command(&[0; 6]); // the first unit attention
    let (session, _) = client.connection.session.clone().unwrap();
    let other = rig.log_in(2);
    client.verify();
    let unit = rig.shown(0);
    let reset = crate::resets::reset_unit(rig.sessions(), &other, &unit);
    rig.runtime.block_on(client.has_no_turn(reset));
    client.command(&[0; 6]); // the unit attention of the reset
    client.verify();
    let by = Arc::clone(&other);
    let preempt =
        crate::manage::abort_tasks_of(Arc::clone(rig.sessions()), by, unit, vec![session.nexus]);
    rig.runtime.block_on(client.has_no_turn(preempt));
    assert!(client.connection.tasks.are_quiet());
    assert_eq!(session.tasks(), 0);
    drop(client);
    rig.lose(&other);
    rig.end();
}

/// Goal: one rule of the session decides whether a command ends with its connection. At the levels
/// of error recovery below 2 it has no effect afterwards; at level 2, which this target does not
/// offer, it continues, and its effect is visible.
#[test]
fn a_rule_decides_whether_a_command_outlives_its_connection() {
    for (level, outlives) in [(0, false), (1, false), (2, true)] {
        let rig = Rig::of_recovery_level(level);
        let mut client = Client::log_in_with(&rig, "ErrorRecoveryLevel=2\0");
        client.command(&[0; 6]); // the first unit attention
        let (session, _) = client.connection.session.clone().unwrap();
        assert_eq!(session.parameters().error_recovery_level, level);
        let block = LbaRange { lba: 0, count: 1 };
        let device = Arc::clone(rig.units[0].device());
        let written = rig.runtime.block_on(async {
            let first = rig.units[0].ranges.lock(block, true).await;
            client.write();
            client.turn();
            assert_eq!(session.tasks(), 1, "it waits for its block");
            client.connection.peer_closed(Time::ZERO, &mut client.out);
            assert_eq!(client.connection.close_reason.is_some(), outlives, "level {level}");
            assert!(!session.has_ended(), "it has a task");
            assert!(!client.connection.is_over(), "the command is polled");
            drop(first);
            client.take_all_turns().await;
            device.read(BlockRange::new(0, 1), rig.buffers().take(512)).await.unwrap()
        });
        assert_eq!(written[..] == [7; 512], outlives, "level {level}");
        assert!(client.connection.is_over() && session.has_ended());
        drop(client);
        rig.end();
    }
}

/// Goal: a session ends, even if the executions of the tasks that were left to it are dropped.
#[test]
fn dropped_executions_end_their_tasks() {
    let rig = Rig::of_recovery_level(2);
    let mut client = Client::log_in_with(&rig, "ErrorRecoveryLevel=2\0");
    client.command(&[0; 6]); // the first unit attention
    let (session, _) = client.connection.session.clone().unwrap();
    let block = LbaRange { lba: 0, count: 1 };
    let first = rig.runtime.block_on(rig.units[0].ranges.lock(block, true));
    client.write();
    client.turn();
    client.connection.peer_closed(Time::ZERO, &mut client.out);
    assert_eq!(session.tasks(), 1);
    drop(client);
    assert!(session.has_ended());
    drop(first);
    rig.end();
}

/// Fault: a WRITE that was granted its blocks held them until its connection had its turn. Beside a
/// thousand busy sessions of its host, a command of a second host that needed one of the blocks
/// exclusively waited for 80 ms, and the writes of all hosts behind it.
#[test]
fn a_write_that_delays_others_ends_out_of_turn() {
    let rig = Rig::new();
    let mut client = Client::log_in(&rig);
    client.command(&[0; 6]); // the first unit attention
    let ranges = &rig.units[0].ranges;
    let block = LbaRange { lba: 0, count: 1 };
    rig.runtime.block_on(async {
        let first = ranges.lock(block, true).await;
        client.write();
        client.turn();
        let other = ranges.queue_for(&Arc::default(), block, true).unwrap();
        drop(first);
        drop(client.has_no_turn(other.granted()).await);
        // The blocks were granted before another host needs them.
        let first = ranges.lock(block, true).await;
        client.write();
        client.turn();
        drop(first);
        let other = ranges.queue_for(&Arc::default(), block, true).unwrap();
        drop(client.has_no_turn(other.granted()).await);
        assert_eq!(client.connection.tasks.ended(), 1, "it is answered in the turn");
        client.take_all_turns().await;
    });
    drop(client);
    rig.end();
}

/// Fault: a WRITE SAME that was granted the permit to zero held it, and its range, until its
/// connection had its turn: an UNMAP of another host waited for one turn of each busy host.
///
/// Goal: it zeroes one piece out of turn, and continues in its turns.
#[test]
fn a_clear_that_delays_others_does_a_piece_out_of_turn() {
    let rig = Rig::new();
    let mut client = Client::log_in(&rig);
    client.command(&[0; 6]); // the first unit attention
    let clear_limit = &rig.units[0].clear_limit;
    let (owners, abort): ([_; 2], _) = (Default::default(), AbortSignal::default());
    rig.runtime.block_on(async {
        let first = clear_limit.permit(&owners[0], &abort).await.unwrap();
        client.write_same(&[]);
        client.turn();
        let mut other = Box::pin(clear_limit.permit(&owners[1], &abort));
        assert!((&mut other).now_or_never().is_none());
        drop(first);
        drop(client.has_no_turn(other).await);
        client.goes_on_in_turns_only().await;
    });
    drop(client);
    rig.end();
}

/// Fault: a WRITE SAME with the permit waited for its blocks behind an ORWRITE of its own host, and
/// that one behind a WRITE that held them until its connection had its turn. For up to a second, an
/// UNMAP of another host waited for the permit.
///
/// Goal: the WRITE and the ORWRITE end, and one piece is zeroed, out of turn.
#[test]
fn blockers_of_a_clear_that_delays_others_end_out_of_turn() {
    let rig = Rig::new();
    let mut client = Client::log_in(&rig);
    client.command(&[0; 6]); // the first unit attention
    let (unit, block) = (&rig.units[0], LbaRange { lba: 0, count: 1 });
    let (other, abort) = (Arc::default(), AbortSignal::default());
    rig.runtime.block_on(async {
        let first = unit.ranges.lock(block, true).await;
        client.write();
        client.turn();
        client.or_write();
        client.turn();
        client.write_same(&[]);
        client.turn();
        let mut permit = Box::pin(unit.clear_limit.permit(&other, &abort));
        assert!((&mut permit).now_or_never().is_none());
        drop(first);
        drop(client.has_no_turn(permit).await);
        assert_eq!(client.connection.tasks.ended(), 2, "the WRITE and the ORWRITE");
        client.take_all_turns().await;
    });
    drop(client);
    rig.end();
}

/// Fault: a command whose turn at a limit had come passed the limit when its connection had a turn.
/// Each one of a host with a thousand busy sessions made the next command of another host wait for
/// 20 ms.
#[test]
fn commands_pass_a_limit_out_of_turn() {
    const COMMAND: Cost = Cost { commands: 1, bytes: 0 };
    let rig = Rig::new();
    let mut client = Client::log_in(&rig);
    client.command(&[0; 6]); // the first unit attention
    let (session, _) = client.connection.session.clone().unwrap();
    let (other, quota) = (rig.log_in(2), Arc::clone(rig.units[0].quota()));
    quota.set_limit(Limit::new(Some(IOPS_MIN), None).unwrap());
    let queue = other.quota.queue(&quota).unwrap();
    rig.runtime.block_on(async {
        assert!(queue.try_pass(Cost { commands: 1000, bytes: 0 }).is_ok(), "100 s of debt");
        client.write();
        client.turn();
        assert_eq!(session.quota.waiting(), 1);
        quota.set_limit(Limit::new(Some(1 << 60), None).unwrap());
        let passes = std::future::poll_fn(|_| match queue.try_pass(COMMAND) {
            Ok(()) => Poll::Ready(()),
            Err(_) => Poll::Pending,
        });
        client.has_no_turn(passes).await;
        assert_eq!(session.quota.waiting(), 1, "it begins in its turn");
        client.turn();
        assert_eq!(session.quota.waiting(), 0);
        client.take_all_turns().await;
    });
    drop(client);
    rig.lose(&other);
    rig.end();
}

/// Goal: a running command that is charged piece by piece passes a limit out of turn as well, and
/// writes its pieces in its turns.
#[test]
fn running_commands_pass_a_limit_out_of_turn() {
    const PIECE: Cost = Cost { commands: 0, bytes: 512 };
    let rig = Rig::new();
    let mut client = Client::log_in(&rig);
    client.command(&[0; 6]); // the first unit attention
    let (other, quota) = (rig.log_in(2), Arc::clone(rig.units[0].quota()));
    quota.set_limit(Limit::new(None, Some(BYTES_PER_SECOND_MIN)).unwrap());
    let queue = other.quota.queue(&quota).unwrap();
    rig.runtime.block_on(async {
        let debt = Cost { commands: 0, bytes: 100 * BYTES_PER_SECOND_MIN };
        assert!(queue.try_pass(debt).is_ok(), "100 s of debt");
        client.write_same(&[7; 512]);
        client.turn();
        assert!(!client.connection.tasks.are_quiet() && queue.try_pass(PIECE).is_err());
        quota.set_limit(Limit::new(None, Some(1 << 60)).unwrap());
        let passes = std::future::poll_fn(|_| match queue.try_pass(PIECE) {
            Ok(()) => Poll::Ready(()),
            Err(_) => Poll::Pending,
        });
        client.has_no_turn(passes).await;
        client.goes_on_in_turns_only().await;
    });
    drop(client);
    rig.lose(&other);
    rig.end();
}

/// Goal: out of turn only aborts are processed; other events wait for the turn, in their order.
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
    for event in [shutdown(), ConnectionEvent::Session(abort), ConnectionEvent::Cut] {
        client.mailbox.send(event).unwrap();
    }
    let mut context = Context::from_waker(Waker::noop());
    assert!(client.connection.poll_out_of_turn(Time::ZERO, &mut context, &mut client.out));
    assert!(client.connection.tasks.are_quiet());
    let waiting = client.connection.pending_events.make_contiguous();
    assert!(
        matches!(waiting, [ConnectionEvent::Shutdown { .. }, ConnectionEvent::Cut, ..]),
        "{waiting:?}"
    );
    assert_eq!(client.out.bytes(), before);
    client.turn();
    assert!(
        client.connection.pending_events.is_empty() && client.connection.close_reason.is_some()
    );
    drop(client);
    rig.end();
}
