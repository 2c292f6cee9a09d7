//! Creation, lookup and reinstatement of sessions at the end of a login. RFC 7143 §6.3.

use crate::access::{self, AccessRules};
use crate::catalogue::CurrentCatalogue;
use crate::connection_shares::{ConnectionPermit, ConnectionShares};
use crate::connection_table::SessionRelation;
use crate::lun_table::LunTable;
use crate::manage::TaskManager;
use crate::memory::OwnerKey;
use crate::options::{Limits, TargetOptions};
use crate::peer_network::PeerNetwork;
use crate::portals::{self, ConnectionPath};
use crate::quota::{InitiatorKey, InitiatorLimiters, SessionQuota};
use crate::session::{
    ConnectionEventSender, Discovery, JoinError, Member, Session, SessionHost, SessionKey,
    SessionParts, UNIT_BYTES,
};
use crate::session_table::{SessionTable, Sessions};
use lunar_block::BufferPool;
use lunar_iscsi::login::{Join, Joined, SessionType};
use lunar_iscsi::pdu::LoginStatus;
use lunar_iscsi::session::target::{SessionLimits, TargetSession};
use lunar_net::{Clock, OwnerId};
use lunar_scsi::share::{Origin, Owner};
use lunar_scsi::unit::TargetPort;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// Time for which a login waits until the session or connection that it replaces is quiet.
const REPLACE_SECONDS_MAX: Duration = Duration::from_secs(10);
/// Interval of the checks whether the old connection has gone.
const REPLACE_POLL: Duration = Duration::from_millis(2);
/// Lower bound of the connection limit of one initiator, which is otherwise half of all
/// connections.
const CONNECTIONS_OF_INITIATOR_MIN: usize = 64;

/// Creates the sessions of logins, and finds those that further connections join.
#[derive(Debug)]
pub(crate) struct SessionLogins {
    rules: Arc<AccessRules>,
    /// The host of the sessions, with the table of all of them.
    manager: Arc<TaskManager>,
    shares: ConnectionShares,
    /// Limit on the number of connections of an initiator that has proven its name.
    connections_of_initiator_max: usize,
    window_commands: u32,
    clock: Clock,
}

/// The connection that a login is for.
#[derive(Clone)]
pub(crate) struct JoiningConnection {
    pub(crate) path: ConnectionPath,
    pub(crate) mailbox: ConnectionEventSender,
    /// Account for the memory of the session.
    pub(crate) memory: BufferPool,
    /// Owner that is charged for processor time.
    pub(crate) time_owner: OwnerId,
}

impl JoiningConnection {
    fn member(self, join: &Join, permit: ConnectionPermit) -> Member {
        let Self { path, mailbox, .. } = self;
        Member { mailbox, path, parameters: join.connection, _permit: Arc::new(permit) }
    }
}

/// Key of the session that a login is for.
pub(crate) fn session_key(join: &Join, path: ConnectionPath) -> SessionKey {
    let named = join.claim.target_name.as_ref().map(|name| name.to_ascii_lowercase());
    let (target_name, discovery) = match join.claim.session_type {
        SessionType::Normal => (named, None),
        SessionType::Discovery => {
            (None, Some(named.map_or(Discovery::Unnamed(path.local), Discovery::Named)))
        }
    };
    SessionKey {
        initiator_name: join.claim.initiator_name.to_ascii_lowercase(),
        isid: join.claim.isid,
        target_name,
        portal_group_tag: join.portal_group_tag,
        discovery,
    }
}

impl SessionLogins {
    pub(crate) fn new(
        limits: &Limits,
        rules: Arc<AccessRules>,
        manager: Arc<TaskManager>,
        connections_max: usize,
        clock: Clock,
    ) -> Self {
        Self {
            rules,
            manager,
            shares: ConnectionShares::default(),
            connections_of_initiator_max: (connections_max / 2).max(CONNECTIONS_OF_INITIATOR_MIN),
            window_commands: limits.window_commands,
            clock,
        }
    }

    /// Relation of a login to the existing sessions.
    pub(crate) fn relation(&self, key: &SessionKey, tsih: u16) -> SessionRelation {
        let sessions = self.sessions().lock();
        match tsih {
            0 if sessions.find(key).is_some() => SessionRelation::Again,
            0 => SessionRelation::New,
            tsih if sessions.get(tsih).is_some_and(|session| session.key == *key) => {
                SessionRelation::Further
            }
            _ => SessionRelation::New,
        }
    }

    /// Returns the session of the login: a new one, or an existing one that gets a further
    /// connection.
    pub(crate) async fn join(
        self: Arc<Self>,
        join: Join,
        key: SessionKey,
        joiner: JoiningConnection,
    ) -> Result<(Joined, Arc<Session>), LoginStatus> {
        let cid = join.claim.cid;
        let session = match join.claim.tsih {
            0 => self.create(&join, key, joiner).await?,
            tsih => self.find(&join, &key, tsih, joiner).await?,
        };
        Ok((session.joined(cid), session))
    }

    async fn create(
        &self,
        join: &Join,
        key: SessionKey,
        joiner: JoiningConnection,
    ) -> Result<Arc<Session>, LoginStatus> {
        let (session, permit) = loop {
            self.replace_session(&key).await?;
            let admission = Admission::of(&self.rules, join, &key, joiner.path)?;
            let owner = Owner { name: &key.initiator_name, origin: admission.origin };
            let permit = self.take_permit(join, owner)?;
            let mut sessions = self.sessions().lock();
            // Of two simultaneous logins for the same session the later one replaces the other. The
            // catalogue may also have changed meanwhile.
            if sessions.find(&key).is_none() && admission.is_current(&self.rules.catalogue, &key) {
                break (self.insert(&mut sessions, join, key, &joiner, admission)?, permit);
            }
        };
        tracing::info!(
            initiator = session.key.initiator_name,
            target = session.key.target_name,
            peer = %session.path.peer,
            tsih = session.tsih,
            "session started"
        );
        // A session is in use once it can be found; no other login can know its TSIH yet.
        session
            .join(join.claim.cid, joiner.member(join, permit))
            .map_err(|_| LoginStatus::TARGET_ERROR)?;
        Ok(session)
    }

    fn insert(
        &self,
        sessions: &mut Sessions,
        join: &Join,
        key: SessionKey,
        joiner: &JoiningConnection,
        admission: Admission,
    ) -> Result<Arc<Session>, LoginStatus> {
        let Admission { target, origin, luns, port, ports } = admission;
        let units_charge = joiner
            .memory
            .try_charge(luns.len() * UNIT_BYTES)
            .ok_or(LoginStatus::OUT_OF_RESOURCES)?;
        let limits = SessionLimits { window_commands: self.window_commands };
        let tsih = sessions.free_tsih().ok_or(LoginStatus::OUT_OF_RESOURCES)?;
        let machine = TargetSession::new(tsih, join.session, join.cmd_sn, limits);
        let max_connections = join.session.max_connections;
        let nexus = self.sessions().next_nexus();
        let owner = OwnerKey::new(PeerNetwork::of(joiner.path.peer.ip()), join.user.clone());
        let quota = self.quota(&key, origin, owner, joiner.memory.clone());
        let returns_from = self.manager.target_resets.take_awaited_login(&key);
        let session = Session::new(SessionParts {
            key,
            tsih,
            nexus,
            target,
            luns,
            returns_from,
            max_connections,
            path: joiner.path,
            origin,
            time_owner: joiner.time_owner,
            quota,
            port,
            ports,
            units_charge,
            machine,
            host: Arc::downgrade(&self.manager) as Weak<dyn SessionHost>,
            clock: self.clock,
        });
        sessions.insert(Arc::clone(&session));
        Ok(session)
    }

    /// Takes a connection from the share of the initiator. Refuses a login with proof if the
    /// initiator has its share of all connections. The share of those without proof is limited by
    /// their addresses alone, see `connection_table`.
    fn take_permit(&self, join: &Join, owner: Owner<'_>) -> Result<ConnectionPermit, LoginStatus> {
        if join.user.is_none() {
            return Ok(self.shares.enter(owner));
        }
        let permit = self.shares.try_enter(owner, self.connections_of_initiator_max);
        permit.ok_or(LoginStatus::OUT_OF_RESOURCES)
    }

    /// Quota of a session; `owner` is that of the leading connection.
    fn quota(
        &self,
        key: &SessionKey,
        origin: Option<Origin>,
        owner: OwnerKey,
        memory: BufferPool,
    ) -> SessionQuota {
        let gates = match &key.target_name {
            Some(target) => self.rules.catalogue.quotas.of(target),
            None => Arc::<InitiatorLimiters>::default(),
        };
        let initiator = InitiatorKey { name: key.initiator_name.clone(), origin };
        SessionQuota::new(initiator, owner, &gates, memory)
    }

    /// Session reinstatement: ends the old session first, with all its tasks.
    async fn replace_session(&self, key: &SessionKey) -> Result<(), LoginStatus> {
        let Some(old) = self.sessions().lock().find(key) else { return Ok(()) };
        old.end();
        if tokio::time::timeout(REPLACE_SECONDS_MAX, old.ended()).await.is_err() {
            tracing::warn!(
                initiator = key.initiator_name,
                "login refused: the old session of the initiator does not end"
            );
            return Err(LoginStatus::OUT_OF_RESOURCES);
        }
        Ok(())
    }

    async fn find(
        &self,
        join: &Join,
        key: &SessionKey,
        tsih: u16,
        joiner: JoiningConnection,
    ) -> Result<Arc<Session>, LoginStatus> {
        let session =
            self.sessions().lock().get(tsih).ok_or(LoginStatus::SESSION_DOES_NOT_EXIST)?;
        if session.key != *key || key.target_name.is_none() {
            return Err(LoginStatus::SESSION_DOES_NOT_EXIST);
        }
        // The leading connection may have come from an address that may see more LUNs than this
        // one.
        let name = key.target_name.as_deref().unwrap_or_default();
        let served = self.rules.catalogue.load();
        let served = served.target(name).ok_or(LoginStatus::TARGET_REMOVED)?;
        let luns = served.visible_luns(&key.initiator_name, joiner.path.peer.ip());
        if !session.view().shows(&luns) {
            return Err(LoginStatus::CANT_INCLUDE_IN_SESSION);
        }
        let cid = join.claim.cid;
        // A connection that replaces another one is not an additional one.
        let permit = match session.members().contains_key(&cid) {
            true => self.shares.enter(session.owner()),
            false => self.take_permit(join, session.owner())?,
        };
        let member = joiner.member(join, permit);
        let until = Instant::now() + REPLACE_SECONDS_MAX;
        loop {
            if session.has_ended() {
                return Err(LoginStatus::SESSION_DOES_NOT_EXIST);
            }
            match session.join(cid, member.clone()) {
                Ok(()) => return Ok(session),
                Err(JoinError::Full) => return Err(LoginStatus::TOO_MANY_CONNECTIONS),
                Err(JoinError::Taken) => {}
            }
            // Connection reinstatement: the old connection closes first, with all its tasks.
            session.replace_connection(cid);
            if Instant::now() > until {
                session.end();
                return Err(LoginStatus::CANT_INCLUDE_IN_SESSION);
            }
            tokio::time::sleep(REPLACE_POLL).await;
        }
    }

    fn sessions(&self) -> &SessionTable {
        &self.manager.sessions
    }
}

/// Result of the access check of a login against the catalogue.
struct Admission {
    /// The target; `None` for a discovery session.
    target: Option<Arc<TargetOptions>>,
    /// Origin of the initiator; `None` if its name is proven.
    origin: Option<Origin>,
    luns: Arc<LunTable>,
    port: TargetPort,
    ports: Vec<TargetPort>,
}

impl Admission {
    fn of(
        rules: &AccessRules,
        join: &Join,
        key: &SessionKey,
        path: ConnectionPath,
    ) -> Result<Self, LoginStatus> {
        let Some(name) = key.target_name.as_deref() else {
            let (origin, luns) = (origin(None, join, path), Arc::default());
            return Ok(Self { target: None, origin, luns, port: discovery_port(), ports: vec![] });
        };
        let served = rules.catalogue.load();
        let served = served.target(name).ok_or(LoginStatus::TARGET_REMOVED)?;
        // The catalogue may have changed since the login began.
        if !served.admits(&key.initiator_name, path.peer.ip()) {
            return Err(LoginStatus::NOT_FOUND);
        }
        let target = Arc::clone(served.options);
        Ok(Self {
            origin: origin(Some(&target), join, path),
            luns: served.visible_luns(&key.initiator_name, path.peer.ip()),
            port: portals::target_port(&target, key.portal_group_tag),
            ports: rules.portals.ports_of(&target),
            target: Some(target),
        })
    }

    /// True when the target is still served with the same options.
    fn is_current(&self, catalogue: &CurrentCatalogue, key: &SessionKey) -> bool {
        let now = key.target_name.as_deref().and_then(|name| catalogue.target(name));
        match (&self.target, &now) {
            (Some(target), Some(now)) => Arc::ptr_eq(target, now),
            (None, None) => true,
            _ => false,
        }
    }
}

/// Origin of an initiator that has not proven its name.
fn origin(target: Option<&TargetOptions>, join: &Join, path: ConnectionPath) -> Option<Origin> {
    let (name, user) = (&join.claim.initiator_name, join.user.as_deref());
    let is_proven = target.is_some_and(|target| access::proves_name(target, name, user));
    (!is_proven).then(|| PeerNetwork::of(path.peer.ip()).origin())
}

/// Port of discovery sessions, which have no target and no units.
fn discovery_port() -> TargetPort {
    TargetPort { name: String::new(), portal_group_tag: 1, relative_id: 1 }
}
