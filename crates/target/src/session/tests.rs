//! Units come to know a session with its first command to them.

use super::*;
use crate::join::{Joiner, join, session_key};
use crate::options::{LunOptions, Portal, ServerOptions};
use crate::server::Server;
use crate::unit::LogicalUnitOptions;
use crate::{Access, Limits};
use block::{BufferPool, MemoryDevice};
use iscsi::login::{Claim, Join, SessionType};
use iscsi::text::{Offer, SessionParameters};
use std::time::Duration;

const TARGET: &str = "iqn.2026-11.org.lunarsan.test:many";
const UNITS: u16 = 256;

/// A server of one target, and sessions that no connection carries.
struct Rig {
    server: Server,
    units: Vec<Arc<LogicalUnit>>,
    runtime: tokio::runtime::Runtime,
}

impl Rig {
    fn new() -> Self {
        let unit = |id| {
            let device = Arc::new(MemoryDevice::new(64 << 10, 512, 4096).unwrap());
            let uuid = uuid::Uuid::from_u128(u128::from(id) + 1);
            LogicalUnit::open(LogicalUnitOptions::new(uuid, device)).unwrap()
        };
        let units: Vec<_> = (0..UNITS).map(unit).collect();
        let luns = (0..UNITS).zip(&units);
        let target = TargetOptions {
            name: TARGET.to_owned(),
            alias: None,
            portal_group: 1,
            access: Access::default(),
            administer: None,
            chap: Vec::new(),
            offer: Offer::default(),
            redirect: None,
            initiator_limits: Vec::new(),
            luns: luns.map(|(id, unit)| LunOptions::new(id, Arc::clone(unit))).collect(),
        };
        let options = ServerOptions {
            portals: vec![Portal::new("127.0.0.1:0".parse().unwrap())],
            targets: vec![target],
            discovery_chap: None,
            cores: 1,
            latency_mode: false,
            limits: Limits::default(),
            buffers: BufferPool::default(),
        };
        let server = Server::start(options).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        Self { server, units, runtime }
    }

    /// A session of the initiator of this number.
    fn log_in(&self, number: u8) -> Arc<Session> {
        let shared = &self.server.shared;
        let path = Path {
            peer: "127.0.0.1:9".parse().unwrap(),
            local: self.server.addresses()[0],
            portal: 0,
        };
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
            cmd_sn: wire::SerialNumber(1),
        };
        let (mailbox, _) = tokio::sync::mpsc::unbounded_channel();
        let joiner = Joiner { path, mailbox, memory: shared.memory.buffers().clone() };
        let key = session_key(&asked, path);
        let joined = self.runtime.block_on(join(Arc::clone(shared), asked, key, joiner));
        joined.unwrap().1
    }

    /// Ends a session, whose connection is closed.
    fn log_out(&self, session: &Arc<Session>) {
        session.lose(&self.server.shared, 1);
        session.end(&self.server.shared);
        assert!(session.has_ended());
    }

    /// How many nexuses each unit knows.
    fn known(&self) -> Vec<usize> {
        self.units.iter().map(|unit| unit.scsi().nexus_count()).collect()
    }

    /// Units whose SCSI state is locked by `act`.
    fn touched_by(&self, act: impl FnOnce()) -> Vec<usize> {
        let locks = || self.units.iter().map(|unit| unit.times_locked()).collect::<Vec<_>>();
        let before = locks();
        act();
        let after = locks();
        (0..self.units.len()).filter(|at| before[*at] != after[*at]).collect()
    }

    fn end(self) {
        self.server.shutdown(Duration::from_secs(1), &mut |_| {});
    }
}

/// Fault: a login made all units of the target know the session, and its end made them forget it:
/// 0.4 ms for 256 units. Hosts that only logged in and out left another host 6 % of its requests.
#[test]
fn a_login_touches_no_unit() {
    let rig = Rig::new();
    let touched = rig.touched_by(|| {
        let session = rig.log_in(1);
        rig.log_out(&session);
    });
    assert_eq!(touched, []);
    let session = rig.log_in(1);
    assert_eq!(rig.known().iter().sum::<usize>(), 0);
    rig.log_out(&session);
    rig.end();
}
