//! Attachment of a session's nexus to units with its first command to them.

use super::*;
use crate::Limits;
use crate::catalogue::IndexedCatalogue;
use crate::connection::ConnectionServices;
use crate::disk_unit::{DiskUnit, DiskUnitOptions};
use crate::join::{JoiningConnection, session_key};
use crate::manage::TaskManager;
use crate::options::{LunOptions, Portal, ServerOptions, TargetOptions};
use crate::replace::apply_to_sessions;
use crate::server::Server;
use crate::session_table::SessionTable;
use lunar_block::{BufferPool, MemoryBudget, MemoryDevice};
use lunar_iscsi::login::{Claim, Join, SessionType};
use lunar_iscsi::pdu::{ManagementFunction, ManagementResponse};
use lunar_iscsi::text::{Offer, SessionParameters};
use lunar_scsi::plan::Refusal;
use std::pin::pin;
use std::sync::Barrier;
use std::task::{Context as TaskContext, Waker};
use std::time::Duration;

pub(crate) const TARGET: &str = "iqn.2026-11.org.lunarsan.test:many";
const UNITS: u16 = 256;
/// Size of a unit: four pieces in which it is zeroed.
const UNIT_BYTES: u64 = 256 << 10;

const POWER_ON: u16 = 0x2900;
const RESET_BY_FUNCTION: u16 = 0x2903;
const NEXUS_LOSS: u16 = 0x2907;
const CAPACITY_CHANGED: u16 = 0x2a09;
const INQUIRY_CHANGED: u16 = 0x3f03;
pub(crate) const LUNS_CHANGED: u16 = 0x3f0e;

/// A server of one target, and sessions without connections.
pub(crate) struct Rig {
    server: Server,
    pub(crate) units: Vec<Arc<DiskUnit>>,
    pub(crate) runtime: tokio::runtime::Runtime,
}

impl Rig {
    pub(crate) fn new() -> Self {
        Self::with_buffers(BufferPool::default())
    }

    /// A server whose target has so many units.
    pub(crate) fn of_units(units: u16) -> Self {
        Self::with(BufferPool::default(), units, UNIT_BYTES)
    }

    /// A server with one unit of this size.
    pub(crate) fn of_unit_bytes(unit_bytes: u64) -> Self {
        Self::with(BufferPool::default(), 1, unit_bytes)
    }

    /// The same, with so much memory.
    pub(crate) fn with_small_budget(unit_bytes: u64, memory_bytes_max: usize) -> Self {
        let budget = MemoryBudget::new(memory_bytes_max);
        Self::with(BufferPool::with_budget(&budget), 1, unit_bytes)
    }

    pub(crate) fn with_buffers(buffers: BufferPool) -> Self {
        Self::with(buffers, UNITS, UNIT_BYTES)
    }

    /// A server of one unit that offers this ErrorRecoveryLevel.
    pub(crate) fn of_recovery_level(error_recovery_level: u8) -> Self {
        let offer = Offer { error_recovery_level, ..Offer::default() };
        Self::with_offer(offer, BufferPool::default(), 1, UNIT_BYTES)
    }

    fn with(buffers: BufferPool, units: u16, unit_bytes: u64) -> Self {
        Self::with_offer(Offer::default(), buffers, units, unit_bytes)
    }

    fn with_offer(offer: Offer, buffers: BufferPool, units: u16, unit_bytes: u64) -> Self {
        let unit = |id| {
            let device = Arc::new(MemoryDevice::new(unit_bytes, 512, 4096).unwrap());
            let uuid = uuid::Uuid::from_u128(u128::from(id) + 1);
            DiskUnit::open(DiskUnitOptions::new(uuid, device)).unwrap()
        };
        let units: Vec<_> = (0..units).map(unit).collect();
        let luns = (0..).zip(&units);
        let luns =
            luns.map(|(id, unit)| LunOptions::new(id, Arc::<DiskUnit>::clone(unit))).collect();
        let target = TargetOptions { luns, offer, ..TargetOptions::for_test(TARGET, 1) };
        let options = ServerOptions {
            relays: None,
            portals: vec![Portal::new("127.0.0.1:0".parse().unwrap())],
            targets: vec![target],
            discovery_chap: None,
            cores: 1,
            latency_mode: false,
            limits: Limits::default(),
            buffers,
        };
        let server = Server::start(options).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        Self { server, units, runtime }
    }

    pub(crate) fn services(&self) -> &Arc<ConnectionServices> {
        &self.server.services
    }

    pub(crate) fn management(&self) -> &Arc<TaskManager> {
        &self.server.manager
    }

    pub(crate) fn sessions(&self) -> &Arc<SessionTable> {
        &self.server.manager.sessions
    }

    pub(crate) fn buffers(&self) -> &BufferPool {
        self.server.buffers()
    }

    /// Path of a connection.
    pub(crate) fn path(&self) -> ConnectionPath {
        let peer = "127.0.0.1:9".parse().unwrap();
        ConnectionPath { peer, local: self.server.addresses()[0], portal: 0 }
    }

    /// Logs in a session of the initiator with this number, which is an owner of its own.
    pub(crate) fn log_in(&self, number: u8) -> Arc<Session> {
        self.log_in_of(number, number)
    }

    /// Logs in a session of the initiator with this number, which belongs to `owner`.
    pub(crate) fn log_in_of(&self, number: u8, owner: u8) -> Arc<Session> {
        let path = self.path();
        let claim = Claim {
            initiator_name: format!("iqn.2026-11.org.lunarsan.test:initiator-{number}"),
            initiator_alias: None,
            target_name: Some(TARGET.to_owned()),
            session_type: SessionType::Normal,
            isid: [0; 6],
            tsih: 0,
            cid: 1,
        };
        let asked = Join {
            claim,
            user: None,
            portal_group_tag: 1,
            session: SessionParameters::default(),
            connection: ConnectionParameters::default(),
            cmd_sn: lunar_wire::SerialNumber(1),
        };
        let (mailbox, _) = tokio::sync::mpsc::unbounded_channel();
        let memory = self.buffers().clone();
        let joiner = JoiningConnection { path, mailbox, memory, time_owner: OwnerId(owner.into()) };
        let key = session_key(&asked, path);
        let logins = Arc::clone(&self.services().session_logins);
        let joined = self.runtime.block_on(logins.join(asked, key, joiner));
        joined.unwrap().1
    }

    /// Ends a session whose connection is lost.
    pub(crate) fn lose(&self, session: &Arc<Session>) {
        session.lose(1);
        session.end();
        assert!(session.has_ended());
    }

    /// Number of nexuses attached to each unit.
    fn known(&self) -> Vec<usize> {
        self.units.iter().map(|unit| unit.scsi().nexus_count()).collect()
    }

    /// A unit as sessions know it.
    pub(crate) fn shown(&self, at: usize) -> Arc<dyn Unit> {
        Arc::<DiskUnit>::clone(&self.units[at])
    }

    /// Units whose SCSI state is locked by `act`.
    fn touched_by(&self, act: impl FnOnce()) -> Vec<usize> {
        let locks = || self.units.iter().map(|unit| unit.times_locked()).collect::<Vec<_>>();
        let before = locks();
        act();
        let after = locks();
        (0..self.units.len()).filter(|at| before[*at] != after[*at]).collect()
    }

    /// Sends TEST UNIT READY to a LUN until it ends GOOD; returns the unit attentions before that.
    pub(crate) fn take_attentions(session: &Session, lun: u16) -> Vec<u16> {
        let view = session.view();
        let nexus = view.nexus(Lun::new(lun)).unwrap();
        let mut codes = Vec::new();
        loop {
            let planned =
                session.scsi_at(nexus).plan(session.nexus, &session.context(&view), &[0; 6]);
            match planned {
                Ok(_) => return codes,
                Err(Refusal::Check(sense)) => codes.push(sense.code),
                Err(other) => panic!("{other:?}"),
            }
        }
    }

    /// Serves the target with a change from now on.
    pub(crate) fn replace(&self, change: impl FnOnce(&mut TargetOptions)) {
        let mut catalogue = self.server.catalogue();
        let mut target = (*catalogue.targets[0]).clone();
        change(&mut target);
        catalogue.targets = vec![Arc::new(target)];
        self.runtime.block_on(self.server.replace(catalogue)).unwrap();
    }

    pub(crate) fn end(self) {
        self.server.shutdown(Duration::from_secs(1), &mut |_| {});
    }
}

/// Fault: a login attached the nexus to all units of the target, and its end detached it: 0.4 ms
/// for 256 units. Beside hosts that only logged in and out, the request rate of another host fell
/// to 6 %.
#[test]
fn a_login_touches_no_unit() {
    let rig = Rig::new();
    let touched = rig.touched_by(|| {
        let session = rig.log_in(1);
        rig.lose(&session);
    });
    assert_eq!(touched, []);
    let session = rig.log_in(1);
    assert_eq!(rig.known().iter().sum::<usize>(), 0);
    rig.lose(&session);
    rig.end();
}

/// Goal: the end of a session visits only the units that it has used, and so does REPORT LUNS after
/// a change of the LUNs. Fault: REPORT LUNS visited all 2,000 units of a target; alongside 16 hosts
/// that sent it, the request rate of another host fell to 2 %.
#[test]
fn the_end_touches_the_units_that_were_used() {
    let rig = Rig::new();
    let session = rig.log_in(1);
    for lun in [3, 77] {
        assert_eq!(Rig::take_attentions(&session, lun), [POWER_ON]);
    }
    assert_eq!(rig.touched_by(|| session.luns_were_reported(&session.view())), []);
    rig.replace(|target| target.luns.truncate(200));
    assert_eq!(rig.touched_by(|| session.luns_were_reported(&session.view())), [3, 77]);
    assert_eq!(rig.touched_by(|| session.luns_were_reported(&session.view())), []);
    assert_eq!(Rig::take_attentions(&session, 3), []);
    assert_eq!(rig.touched_by(|| rig.lose(&session)), [3, 77]);
    assert_eq!(rig.known().iter().sum::<usize>(), 0);
    rig.end();
}

/// Goal: first commands on several threads at once attach the nexus once, with one power-on
/// attention; and none of them attaches it after the end of the session.
#[test]
fn first_commands_come_at_once() {
    const THREADS: usize = 4;
    let rig = Rig::new();
    for ends in [false, true] {
        let session = rig.log_in(1);
        let barrier = Barrier::new(THREADS + 1);
        let counts: Vec<_> = std::thread::scope(|scope| {
            let first = |_| {
                scope.spawn(|| {
                    let view = session.view();
                    let context = session.context(&view);
                    barrier.wait();
                    let tell = |lun| {
                        let mut scsi = session.scsi_at(view.nexus(Lun::new(lun)).unwrap());
                        scsi.plan(session.nexus, &context, &[0; 6]).is_err()
                    };
                    (0..UNITS).filter(|lun| tell(*lun)).count()
                })
            };
            let threads: Vec<_> = (0..THREADS).map(first).collect();
            barrier.wait();
            if ends {
                rig.lose(&session);
            }
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        if !ends {
            assert_eq!(counts.iter().sum::<usize>(), usize::from(UNITS));
            assert!(rig.known().iter().all(|known| *known == 1));
            rig.lose(&session);
        }
        assert_eq!(rig.known().iter().sum::<usize>(), 0, "{ends}");
    }
    rig.end();
}

/// Goal: events between a login and the first command to a unit are reported there: unit
/// attentions, a change of the LUNs, and a change of the initiator's rights.
#[test]
fn events_since_the_login_are_reported_with_the_first_command() {
    let rig = Rig::new();
    let sessions = [1, 2].map(|number| rig.log_in(number));
    rig.units[5].scsi().raise(CAPACITY_CHANGED, None);
    assert_eq!(Rig::take_attentions(&sessions[0], 5), [POWER_ON, CAPACITY_CHANGED]);
    let third = rig.log_in(3);
    assert_eq!(Rig::take_attentions(&third, 5), [POWER_ON]);
    rig.replace(|target| {
        target.luns.truncate(200);
        let administrator = vec![format!("iqn.2026-11.org.lunarsan.test:initiator-{}", 2)];
        target.luns[6].administer = Some(administrator);
    });
    assert_eq!(Rig::take_attentions(&sessions[0], 5), [LUNS_CHANGED]);
    assert_eq!(Rig::take_attentions(&sessions[0], 6), [POWER_ON, INQUIRY_CHANGED, LUNS_CHANGED]);
    assert_eq!(Rig::take_attentions(&sessions[1], 6), [POWER_ON, LUNS_CHANGED]);
    // A unit that comes back counts as seen from now on.
    rig.units[230].scsi().raise(CAPACITY_CHANGED, None);
    rig.replace(|target| {
        let unit = |id: u16| LunOptions::new(id, rig.shown(usize::from(id)));
        target.luns.extend((200..UNITS).map(unit));
    });
    assert_eq!(Rig::take_attentions(&sessions[0], 230), [POWER_ON]);
    sessions.iter().chain([&third]).for_each(|session| rig.lose(session));
    assert_eq!(rig.known().iter().sum::<usize>(), 0);
    rig.end();
}

/// Goal: a change of the LUNs visits only the units that have the session's nexus attached, which
/// report it; the other units will, until the initiator reads its list of LUNs. Without this, a
/// change attached the nexuses of all sessions at all units, in one piece: seconds for 1,000
/// sessions at 1,000 units.
#[test]
fn a_change_of_the_luns_attaches_no_nexus() {
    let rig = Rig::new();
    let sessions: Vec<_> = (1..=20).map(|number| rig.log_in(number)).collect();
    assert_eq!(Rig::take_attentions(&sessions[0], 3), [POWER_ON]);
    let mut touched = rig.touched_by(|| rig.replace(|target| target.luns.truncate(200)));
    touched.retain(|unit| *unit < 200); // the others are no longer served
    assert_eq!(touched, [3]);
    assert_eq!(rig.known().iter().sum::<usize>(), 1);
    assert_eq!(Rig::take_attentions(&sessions[0], 3), [LUNS_CHANGED]);
    assert_eq!(Rig::take_attentions(&sessions[5], 7), [POWER_ON, LUNS_CHANGED]);
    assert_eq!(Rig::take_attentions(&rig.log_in(21), 7), [POWER_ON]);
    sessions[5].luns_were_reported(&sessions[5].view());
    assert_eq!(Rig::take_attentions(&sessions[5], 8), [POWER_ON]);
    sessions.iter().for_each(|session| rig.lose(session));
    rig.end();
}

/// Fault: a report of the LUNs before a change cleared the unit attention of the change, and the
/// initiator kept its old list. Method: the LUNs change while the report is being made.
#[test]
fn a_report_of_the_old_luns_clears_no_attention() {
    let rig = Rig::new();
    let session = rig.log_in(1);
    assert_eq!(Rig::take_attentions(&session, 3), [POWER_ON]);
    rig.replace(|target| target.luns.truncate(200));
    let reported = Arc::clone(&session.view());
    rig.replace(|target| target.luns.truncate(100));
    session.luns_were_reported(&reported);
    assert_eq!(Rig::take_attentions(&session, 3), [LUNS_CHANGED]);
    assert_eq!(Rig::take_attentions(&session, 4), [POWER_ON, LUNS_CHANGED]);
    session.luns_were_reported(&session.view());
    assert_eq!(Rig::take_attentions(&session, 5), [POWER_ON]);
    rig.lose(&session);
    rig.end();
}

/// Goal: a change that affects no list of administrators visits no unit because of rights. Without
/// this, each change looked up the rights of all sessions at all units.
#[test]
fn a_change_that_leaves_the_administrators_touches_no_unit() {
    let rig = Rig::new();
    let session = rig.log_in(1);
    assert_eq!(Rig::take_attentions(&session, 3), [POWER_ON]);
    assert_eq!(rig.touched_by(|| rig.replace(|target| target.alias = Some("other".into()))), []);
    let nobody = |target: &mut TargetOptions| target.luns[3].administer = Some(Vec::new());
    assert_eq!(rig.touched_by(|| rig.replace(nobody)), [3]);
    assert_eq!(Rig::take_attentions(&session, 3), [INQUIRY_CHANGED]);
    rig.lose(&session);
    rig.end();
}

/// Goal: between two pieces of a change other work of the core has its turn.
#[test]
fn a_change_is_settled_in_pieces() {
    let rig = Rig::new();
    let sessions: Vec<_> = (1..=20).map(|number| rig.log_in(number)).collect();
    let mut catalogue = rig.server.catalogue();
    let mut target = (*catalogue.targets[0]).clone();
    target.luns.truncate(200);
    catalogue.targets = vec![Arc::new(target)];
    let new = Arc::new(IndexedCatalogue::new(catalogue).unwrap());
    let old = rig.server.catalogue.swap(Arc::clone(&new));
    let table = Arc::clone(rig.sessions());
    let mut settled = pin!(apply_to_sessions(&table, &old, &new));
    let mut context = TaskContext::from_waker(Waker::noop());
    let turns = (1..).find(|_| settled.as_mut().poll(&mut context).is_ready()).unwrap();
    // Each session has a view of 256 units that is replaced; 1,024 units are a piece.
    assert!((5..50).contains(&turns), "{turns}");
    assert!(sessions.iter().all(|session| session.view().units().len() == 200));
    sessions.iter().for_each(|session| rig.lose(session));
    rig.end();
}

/// Goal: a session whose nexus is not attached to the units requests a reset of them, and they do
/// not report it to that session later; they report it to the other sessions, whether these had
/// used them or not.
#[test]
fn a_reset_before_the_first_command_is_not_reported() {
    let rig = Rig::new();
    let TaskManager { sessions: table, target_resets, .. } = &**rig.management();
    let [by, other] = [1, 2].map(|number| rig.log_in(number));
    let lost = rig.log_in(3);
    assert_eq!(Rig::take_attentions(&lost, 9), [POWER_ON]);
    rig.lose(&lost);
    let lost = rig.log_in(3);
    assert_eq!(Rig::take_attentions(&other, 8), [POWER_ON]);
    rig.runtime.block_on(crate::resets::reset_target(table, target_resets, &by));
    assert_eq!(Rig::take_attentions(&by, 8), [POWER_ON]);
    assert_eq!(Rig::take_attentions(&other, 8), [RESET_BY_FUNCTION]);
    assert_eq!(Rig::take_attentions(&other, 9), [POWER_ON]);
    assert_eq!(Rig::take_attentions(&lost, 9), [RESET_BY_FUNCTION], "its nexus was lost before");
    for session in [by, other, lost] {
        rig.lose(&session);
    }
    rig.end();
}

/// Goal: an initiator that requested a TARGET COLD RESET gets no report of it from any unit that
/// its next session uses, at whatever time; the session after that one does, and other initiators
/// do.
#[test]
fn a_cold_reset_is_not_reported_to_its_requester() {
    let rig = Rig::new();
    let TaskManager { sessions: table, target_resets, .. } = &**rig.management();
    let session = rig.log_in(1);
    rig.runtime.block_on(crate::resets::reset_target(table, target_resets, &session));
    target_resets.expect_login_after_reset(&session);
    rig.units.iter().for_each(|unit| unit.scsi().expect_login_after_reset(session.nexus));
    rig.lose(&session);
    let other = rig.log_in(2);
    assert_eq!(Rig::take_attentions(&other, 4), [POWER_ON]);
    let back = rig.log_in(1);
    assert_eq!(Rig::take_attentions(&back, 4), []);
    back.lose_nexus();
    assert_eq!(Rig::take_attentions(&back, 200), [NEXUS_LOSS]);
    rig.units[100].scsi().raise(CAPACITY_CHANGED, None);
    assert_eq!(Rig::take_attentions(&back, 100), [NEXUS_LOSS, CAPACITY_CHANGED]);
    [other, back].iter().for_each(|session| rig.lose(session));
    rig.end();
}

fn visits(sessions: &[Arc<Session>]) -> Vec<u64> {
    sessions.iter().map(|session| session.visits.load(Relaxed)).collect()
}

/// Fault: LOGICAL UNIT RESET and PREEMPT AND ABORT visited all sessions of the server.
#[test]
fn functions_visit_the_sessions_that_they_concern() {
    let rig = Rig::new();
    let sessions: Vec<_> = (0..20).map(|number| rig.log_in(number)).collect();
    for session in &sessions[2..5] {
        assert_eq!(Rig::take_attentions(session, 7), [POWER_ON]);
    }
    rig.runtime.block_on(crate::resets::reset_unit(rig.sessions(), &sessions[2], &rig.shown(7)));
    let of_reset = visits(&sessions);
    assert_eq!(of_reset[..6], [0, 0, 0, 1, 1, 0]);
    assert_eq!(of_reset.iter().sum::<u64>(), 2);
    let (by, unit) = (Arc::clone(&sessions[2]), rig.shown(7));
    let nexuses = vec![by.nexus, sessions[4].nexus, NexusId(u64::MAX)];
    let preempt = crate::manage::abort_tasks_of(Arc::clone(rig.sessions()), by, unit, nexuses);
    rig.runtime.block_on(preempt);
    assert_eq!(visits(&sessions)[..6], [0, 0, 0, 1, 2, 0]);
    assert_eq!(visits(&sessions).iter().sum::<u64>(), 3);
    sessions.iter().for_each(|session| rig.lose(session));
    rig.end();
}

/// Fault: each unit let its resets visit 64 sessions at a time; with resets of 256 units in
/// progress, a core visited 16,384 sessions before other work had its turn.
#[test]
fn many_resets_do_not_delay_other_sessions() {
    const USED: u16 = 64;
    const ONE_MOMENT: u64 = 64;
    let rig = Rig::new();
    let sessions: Vec<_> = (0..40).map(|number| rig.log_in(number)).collect();
    for session in &sessions {
        (0..USED).for_each(|lun| assert_eq!(Rig::take_attentions(session, lun), [POWER_ON]));
    }
    let local = tokio::task::LocalSet::new();
    let most_at_once = local.block_on(&rig.runtime, async {
        let resets: Vec<_> = (0..usize::from(USED))
            .map(|at| {
                let (table, unit) = (Arc::clone(rig.sessions()), rig.shown(at));
                let by = Arc::clone(&sessions[at % sessions.len()]);
                tokio::task::spawn_local(async move {
                    crate::resets::reset_unit(&table, &by, &unit).await;
                })
            })
            .collect();
        let (mut visited, mut most_at_once) = (0, 0);
        while !resets.iter().all(|reset| reset.is_finished()) {
            tokio::task::yield_now().await;
            let now = visits(&sessions).iter().sum::<u64>();
            most_at_once = most_at_once.max(now - visited);
            visited = now;
        }
        most_at_once
    });
    let all = u64::from(USED) * (sessions.len() as u64 - 1);
    assert_eq!(visits(&sessions).iter().sum::<u64>(), all);
    assert!(most_at_once <= ONE_MOMENT, "{most_at_once} visits at once");
    sessions.iter().for_each(|session| rig.lose(session));
    rig.end();
}

/// Fault: functions of all owners took turns visit by visit: a reset of one unit waited for as many
/// visits of each reset of another owner as it made itself.
#[test]
fn a_reset_waits_for_few_visits_of_another_owner() {
    const BUSY: usize = 200;
    const TURN_VISITS: u64 = 64;
    let rig = Rig::new();
    let sessions: Vec<_> = (0..40).map(|number| rig.log_in(number)).collect();
    for session in &sessions {
        (0..=BUSY as u16)
            .for_each(|lun| assert_eq!(Rig::take_attentions(session, lun), [POWER_ON]));
    }
    let reset = |by: &Arc<Session>, at: usize| {
        let (table, by, unit) = (Arc::clone(rig.sessions()), Arc::clone(by), rig.shown(at));
        async move { crate::resets::reset_unit(&table, &by, &unit).await }
    };
    let local = tokio::task::LocalSet::new();
    let others_visits = local.block_on(&rig.runtime, async {
        let busy: Vec<_> = (1..=BUSY)
            .map(|at| reset(&sessions[0], at))
            .map(|first| tokio::task::spawn_local(first))
            .collect();
        tokio::task::yield_now().await;
        let before = visits(&sessions).iter().sum::<u64>();
        reset(&sessions[1], 0).await;
        let after = visits(&sessions).iter().sum::<u64>();
        busy.iter().for_each(tokio::task::JoinHandle::abort);
        after - before - 39
    });
    // A turn visits one session at least: the reset itself makes 41 visits.
    assert!(others_visits <= 42 * TURN_VISITS, "{others_visits} visits");
    sessions.iter().for_each(|session| rig.lose(session));
    rig.end();
}

/// Fault: a reset of a shared unit was served by runs in turns of the owner that came first, behind
/// resets of all its other units.
#[test]
fn a_reset_of_a_shared_unit_waits_for_few_visits_of_another_owner() {
    const BUSY: usize = 200;
    const TURN_VISITS: u64 = 64;
    let rig = Rig::new();
    let sessions: Vec<_> = (0..40).map(|number| rig.log_in(number)).collect();
    for session in &sessions {
        (0..=BUSY as u16)
            .for_each(|lun| assert_eq!(Rig::take_attentions(session, lun), [POWER_ON]));
    }
    let reset_again = |at: usize| {
        let (table, by) = (Arc::clone(rig.sessions()), Arc::clone(&sessions[0]));
        let unit = rig.shown(at);
        tokio::task::spawn_local(async move {
            loop {
                crate::resets::reset_unit(&table, &by, &unit).await;
            }
        })
    };
    let local = tokio::task::LocalSet::new();
    let others_visits = local.block_on(&rig.runtime, async {
        // One request for the shared unit is being served, and one waits.
        let busy: Vec<_> = [0, 0].into_iter().chain(1..=BUSY).map(reset_again).collect();
        for _ in 0..10 {
            tokio::task::yield_now().await;
        }
        let before = visits(&sessions).iter().sum::<u64>();
        crate::resets::reset_unit(rig.sessions(), &sessions[1], &rig.shown(0)).await;
        let after = visits(&sessions).iter().sum::<u64>();
        busy.iter().for_each(tokio::task::JoinHandle::abort);
        after - before
    });
    // Two runs of 42 visits are waited for, of which a turn makes one at least.
    assert!(others_visits <= 2 * 42 * (1 + TURN_VISITS), "{others_visits} visits");
    sessions.iter().for_each(|session| rig.lose(session));
    rig.end();
}

/// Fault: functions whose command was aborted continued uncharged, in any number; so did resets
/// whose session was over.
#[test]
fn functions_are_charged_until_they_end() {
    const FUNCTIONS: usize = 100;
    const LEAST_BYTES: usize = 4 << 10;
    let rig = Rig::new();
    let sessions: Vec<_> = (0..2).map(|number| rig.log_in(number)).collect();
    sessions.iter().for_each(|session| assert_eq!(Rig::take_attentions(session, 0), [POWER_ON]));
    let used = || rig.buffers().budget().usage().used_bytes;
    let before = used();
    let mut context = TaskContext::from_waker(Waker::noop());
    let is_over = std::cell::Cell::new(false);
    let busy = (0..).take_while(|_| !is_over.get());
    let mut busy = Box::pin(rig.sessions().visits.visit_all(OwnerId(9), busy, |_: u64| 0));
    assert!(busy.as_mut().poll(&mut context).is_pending(), "it has its turn");
    let local = tokio::task::LocalSet::new();
    local.block_on(&rig.runtime, async {
        for _ in 0..FUNCTIONS {
            let (by, unit) = (Arc::clone(&sessions[0]), rig.shown(0));
            let nexuses = vec![sessions[1].nexus];
            let aborts =
                crate::manage::abort_tasks_of(Arc::clone(rig.sessions()), by, unit, nexuses);
            drop(tokio::task::spawn_local(aborts));
        }
        let preempts = used() - before;
        assert!(preempts >= FUNCTIONS * LEAST_BYTES, "{preempts} bytes");
        let reset = ManagementFunction::LOGICAL_UNIT_RESET;
        for id in 0..FUNCTIONS as u64 {
            Arc::clone(rig.management()).manage(Arc::clone(&sessions[0]), id, reset, Lun::new(0));
        }
        let resets = used() - before - preempts;
        assert!(resets >= FUNCTIONS * LEAST_BYTES, "{resets} bytes");
        is_over.set(true);
        busy.await;
    });
    rig.runtime.block_on(local);
    assert_eq!(used(), before);
    sessions.iter().for_each(|session| rig.lose(session));
    rig.end();
}

/// Goal: resets are refused while their owner must give memory back, before they do anything, and
/// the session continues. Functions that take no memory for long are carried out.
#[test]
fn resets_are_refused_when_their_owner_must_give_memory_back() {
    let rig = Rig::with_buffers(BufferPool::with_budget(&MemoryBudget::new(64 << 20)));
    let session = rig.log_in(1);
    let (_sender, mut events) = tokio::sync::mpsc::unbounded_channel();
    let mut response_at_once = |function| {
        let request = Arrival::Management {
            initiator_task_tag: 7,
            function,
            lun: Lun::new(0),
            referenced_task_tag: u32::MAX,
            ref_cmd_sn: lunar_wire::SerialNumber(0),
        };
        let cmd_sn = lunar_wire::SerialNumber(1);
        let arrived = ToSession::Arrived { ticket: 1, immediate: true, cmd_sn, request };
        let mut pending_events = VecDeque::new();
        session.handle_message(session.clock.now(), 1, arrived, &mut events, &mut pending_events);
        pending_events.into_iter().find_map(|event| match event {
            ConnectionEvent::Session(ToConnection::ManagementDone { response, .. }) => {
                Some(response)
            }
            _ => None,
        })
    };
    let local = tokio::task::LocalSet::new();
    local.block_on(&rig.runtime, async {
        let held = rig.buffers().charge(60 << 20);
        let used = || rig.buffers().budget().usage().used_bytes;
        let before = used();
        for function in [
            ManagementFunction::LOGICAL_UNIT_RESET,
            ManagementFunction::TARGET_WARM_RESET,
            ManagementFunction::TARGET_COLD_RESET,
        ] {
            let response = response_at_once(function);
            assert_eq!(response, Some(ManagementResponse::FUNCTION_REJECTED), "{function:?}");
            assert_eq!(used(), before, "no function has begun");
        }
        assert_eq!(response_at_once(ManagementFunction::ABORT_TASK_SET), None, "it has begun");
        while used() > before {
            tokio::task::yield_now().await;
        }
        drop(held);
        assert_eq!(response_at_once(ManagementFunction::TARGET_COLD_RESET), None, "it has begun");
        assert!(used() > before - (60 << 20));
    });
    rig.runtime.block_on(local);
    rig.lose(&session);
    rig.end();
}
