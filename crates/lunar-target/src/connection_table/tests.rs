use super::*;
use proptest::prelude::*;
use std::net::{IpAddr, Ipv4Addr};

/// The network with that number.
fn network(number: u32) -> PeerNetwork {
    PeerNetwork::of(IpAddr::V4(Ipv4Addr::from_bits(number)))
}

/// A table whose handles are the numbers of the connections.
struct Rig {
    table: ConnectionTable<u64>,
    next_id: u64,
}

impl Rig {
    fn new(connections: usize, logins_per_address: usize) -> Self {
        let limits = Limits { connections, logins_per_address, ..Limits::default() };
        let table = ConnectionTable::new(TableLimits::new(&limits, usize::MAX));
        Self { table, next_id: 1 }
    }

    /// Adds a connection. Returns its id and the evicted one's.
    fn enter(&mut self, from: u32) -> Result<(u64, Option<u64>), ConnectionLimit> {
        let id = self.next_id;
        self.next_id += 1;
        let evicted = self.table.enter(id, network(from), id)?;
        Ok((id, evicted))
    }

    fn log_in(
        &mut self,
        from: u32,
        phase: Phase,
        relation: SessionRelation,
    ) -> Result<u64, ConnectionLimit> {
        let (id, _) = self.enter(from)?;
        let result = self.table.log_in(id, phase, relation, true);
        if result.is_err() {
            self.table.remove(id);
        }
        result.map(|_| id)
    }

    /// Logs in until there is no room. Returns the number of successful logins.
    fn fill(&mut self, from: u32, phase: Phase) -> usize {
        (0..).take_while(|_| self.log_in(from, phase, SessionRelation::New).is_ok()).count()
    }
}

/// Goal: however many connections one address opens and renews, another address gets a connection
/// at once, and keeps it while it logs in.
#[test]
fn one_address_does_not_block_another() {
    let mut rig = Rig::new(1024, 32);
    for round in 0..1000 {
        rig.enter(1).unwrap();
        let (good, evicted) = rig.enter(2).unwrap();
        assert_eq!(evicted, None, "there is room kept for it");
        for _ in 0..50 {
            let (_, evicted) = rig.enter(1).unwrap();
            assert_ne!(evicted, Some(good), "in round {round}");
        }
        assert_eq!(rig.table.log_in(good, Phase::Proven, SessionRelation::New, true), Ok(()));
        rig.table.remove(good);
    }
    assert_eq!(rig.table.len(), 32, "its share");
}

/// Goal: silent connections of the same address do not evict a login that has to wait, neither
/// while it waits nor before it is done. Without this, 100 silent connections a second and a few
/// wrong logins shut out a host behind the same address that has a credential of its own.
#[test]
fn a_waiting_login_is_not_evicted() {
    let mut rig = Rig::new(1024, 8);
    let (good, _) = rig.enter(1).unwrap();
    rig.table.wait(good);
    for _ in 0..100 {
        assert_ne!(rig.enter(1).unwrap().1, Some(good));
    }
    assert_eq!(rig.table.log_in(good, Phase::Proven, SessionRelation::New, true), Ok(()));
    // Waiting logins may take half of the connections of the address.
    let waiting: Vec<u64> = (0..8).map(|_| rig.enter(1).unwrap().0).collect();
    waiting.iter().for_each(|id| rig.table.wait(*id));
    let gone: Vec<u64> = (0..4).filter_map(|_| rig.enter(1).unwrap().1).collect();
    assert_eq!(gone, waiting[4..]);
    let oldest = rig.enter(2).map(|_| rig.table.make_room());
    assert!(!waiting[..4].contains(&oldest.unwrap().unwrap()));
}

/// Goal: within an address the connection that was opened first is evicted first: a genuine login
/// is done before that, an idle connection is not.
#[test]
fn the_oldest_connection_of_an_address_is_evicted_first() {
    let mut rig = Rig::new(1024, 4);
    let first: Vec<u64> = (0..4).map(|_| rig.enter(1).unwrap().0).collect();
    let evicted: Vec<_> = (0..4).map(|_| rig.enter(1).unwrap().1.unwrap()).collect();
    assert_eq!(evicted, first);
    assert_eq!(rig.table.evicted(), 4);
    first.into_iter().for_each(|id| rig.table.remove(id));
    assert_eq!((rig.table.evicted(), rig.table.len()), (0, 4));
}

/// Goal: if many addresses take all the room for logins, the address with the most makes room, and
/// of several with as many the one whose connection is the oldest.
#[test]
fn the_address_with_the_most_connections_loses_one() {
    let mut rig = Rig::new(80, 5);
    let ids: Vec<u64> =
        [1, 2, 2, 3, 4, 5, 6, 7, 8, 9].map(|from| rig.enter(from).unwrap().0).into();
    assert_eq!(rig.enter(10).unwrap().1, Some(ids[1]), "2 has two");
    assert_eq!(rig.enter(11).unwrap().1, Some(ids[0]), "each has one");
    assert_eq!(rig.enter(12).unwrap().1, Some(ids[2]));
}

/// Goal: a logged-in connection is never evicted for others, and logged-in connections leave the
/// part for logins free; an existing session gets its connections even then.
#[test]
fn logged_in_connections_are_never_evicted() {
    let mut rig = Rig::new(800, 50);
    assert_eq!(rig.fill(1, Phase::Proven), 700);
    assert_eq!(rig.fill(2, Phase::Proven), 0);
    assert_eq!(rig.log_in(2, Phase::Unproven, SessionRelation::New), Err(ConnectionLimit::Table));
    for _ in 0..200 {
        assert!(rig.enter(3).is_ok(), "a login has its slot");
    }
    assert!(rig.log_in(1, Phase::Proven, SessionRelation::Again).is_ok());
    assert!((0..49).all(|_| rig.log_in(1, Phase::Proven, SessionRelation::Further).is_ok()));
    assert_eq!(rig.log_in(1, Phase::Proven, SessionRelation::Further), Err(ConnectionLimit::Table));
    assert_eq!(rig.table.len() - rig.table.not_logged_in.len(), 750);
    assert!(rig.enter(4).is_ok(), "the remaining slots are for logins");
}

/// Goal: sessions without proof leave free the part for those with proof; one address leaves room
/// for others, and however many addresses take theirs, there is some left for one more.
#[test]
fn sessions_without_proof_have_shares() {
    let mut rig = Rig::new(16_384, 256);
    // Of 16,384 an eighth is kept for logins, of the rest a quarter for sessions with proof, of the
    // rest a sixteenth for other addresses; one address may have four fifths of the remainder.
    assert_eq!(rig.fill(1, Phase::Unproven), 8064);
    assert_eq!(rig.log_in(1, Phase::Unproven, SessionRelation::New), Err(ConnectionLimit::Address));
    assert!(
        rig.log_in(1, Phase::Unproven, SessionRelation::Again).is_ok(),
        "the connection has a slot already"
    );
    for from in 2..80 {
        assert!(rig.fill(from, Phase::Unproven) >= NEWCOMER_CONNECTIONS, "address {from}");
    }
    while rig.log_in(rig.next_id as u32, Phase::Unproven, SessionRelation::New).is_ok() {}
    assert_eq!(rig.table.unproven.len(), 10_752);
    assert_eq!(rig.fill(1, Phase::Proven), 3584, "slots reserved for logins");

    let mut open_to_all = Rig::new(16_384, 256);
    let mut log_in = || {
        let (id, _) = open_to_all.enter(1).unwrap();
        open_to_all.table.log_in(id, Phase::Unproven, SessionRelation::New, false)
    };
    assert_eq!((0..).take_while(|_| log_in().is_ok()).count(), 10_752, "nothing is kept");
}

/// Goal: a discovery session without proof counts as a login, and makes room like one.
#[test]
fn an_unproven_discovery_session_may_be_evicted() {
    let mut rig = Rig::new(800, 50);
    for from in 0..100 {
        for _ in 0..10 {
            rig.log_in(from, Phase::NotLoggedIn, SessionRelation::New).unwrap();
        }
    }
    assert_eq!(rig.table.len(), 100);
    assert_eq!(rig.fill(1001, Phase::Proven), 700);
}

/// Goal: a connection that is no longer logged in counts like one that is not logged in yet, and
/// makes room likewise; otherwise an initiator that logs in and out would hold connections outside
/// any share.
#[test]
fn a_logged_out_connection_may_be_evicted() {
    let mut rig = Rig::new(1024, 8);
    for _ in 0..100 {
        let id = rig.log_in(1, Phase::Unproven, SessionRelation::New).unwrap();
        rig.table.log_out(id);
        assert_eq!(rig.table.log_out(id), None, "once");
    }
    assert_eq!((rig.table.len(), rig.table.not_logged_in.count(network(1))), (8, 8));
}

/// Goal: a small table serves as many connections as it has room for.
#[test]
fn small_tables_admit_all_their_connections() {
    for connections in 1..8 {
        let mut rig = Rig::new(connections, 256);
        assert_eq!(rig.fill(1, Phase::Proven), connections);
        assert_eq!(rig.enter(2), Err(ConnectionLimit::Table));
    }
    assert_eq!(Rig::new(0, 256).enter(1), Err(ConnectionLimit::Table));
}

/// An operation on a table.
#[derive(Clone, Debug)]
enum Step {
    Enter(u32),
    LogIn(usize, Phase, SessionRelation, bool),
    LogOut(usize),
    Remove(usize),
    MakeRoom,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let phase = prop_oneof![Just(Phase::NotLoggedIn), Just(Phase::Unproven), Just(Phase::Proven)];
    let relation = prop_oneof![
        Just(SessionRelation::New),
        Just(SessionRelation::Again),
        Just(SessionRelation::Further)
    ];
    let step = prop_oneof![
        6 => (0..6u32).prop_map(Step::Enter),
        5 => (any::<usize>(), phase, relation, any::<bool>())
            .prop_map(|(which, phase, relation, proof)| Step::LogIn(which, phase, relation, proof)),
        1 => any::<usize>().prop_map(Step::LogOut),
        2 => any::<usize>().prop_map(Step::Remove),
        1 => Just(Step::MakeRoom),
    ];
    prop::collection::vec(step, 0..120)
}

proptest! {
    /// Goal: after any sequence of operations the limits hold, the counts match the entries, and no
    /// logged-in connection is evicted.
    #[test]
    fn limits_always_hold(connections in 1usize..40, share in 1usize..6, steps in steps()) {
        let mut rig = Rig::new(connections, share);
        let mut phases: HashMap<u64, Phase> = HashMap::new();
        let pick = |phases: &HashMap<u64, Phase>, which: usize| {
            let mut ids: Vec<u64> = phases.keys().copied().collect();
            ids.sort_unstable();
            (!ids.is_empty()).then(|| ids[which % ids.len()])
        };
        for step in steps {
            let mut evicted = None;
            match step {
                Step::Enter(from) => {
                    let is_evictable = |p: &Phase| *p == Phase::NotLoggedIn;
                    let can_enter = phases.len() < connections || phases.values().any(is_evictable);
                    match rig.enter(from) {
                        Ok((id, gone)) => {
                            phases.insert(id, Phase::NotLoggedIn);
                            evicted = gone;
                        }
                        Err(_) => prop_assert!(!can_enter),
                    }
                }
                Step::LogIn(which, phase, relation, proof) => {
                    let waits = phases.iter().filter(|(_, p)| **p == Phase::NotLoggedIn);
                    let waits: HashMap<_, _> = waits.map(|(id, p)| (*id, *p)).collect();
                    let Some(id) = pick(&waits, which) else { continue };
                    if rig.table.log_in(id, phase, relation, proof).is_ok() {
                        phases.insert(id, phase);
                    }
                }
                Step::LogOut(which) => {
                    let Some(id) = pick(&phases, which) else { continue };
                    evicted = rig.table.log_out(id);
                    phases.insert(id, Phase::NotLoggedIn);
                }
                Step::Remove(which) => {
                    let Some(id) = pick(&phases, which) else { continue };
                    rig.table.remove(id);
                    phases.remove(&id);
                }
                Step::MakeRoom => evicted = rig.table.make_room(),
            }
            if let Some(id) = evicted {
                let phase = phases.remove(&id);
                prop_assert_eq!(phase, Some(Phase::NotLoggedIn));
            }
            let table = &rig.table;
            let count = |phase| phases.values().filter(|p| **p == phase).count();
            prop_assert_eq!(table.len(), phases.len());
            prop_assert!(table.len() <= connections);
            prop_assert_eq!(table.not_logged_in.len(), count(Phase::NotLoggedIn));
            prop_assert_eq!(table.unproven.len(), count(Phase::Unproven));
            prop_assert!(table.not_logged_in.len() <= table.limits.logins.max(1));
            for members in [&table.not_logged_in, &table.unproven] {
                let sum: usize = members.networks.values().map(BTreeSet::len).sum();
                prop_assert_eq!(sum, members.len);
                prop_assert_eq!(members.networks.len(), members.ranks.len());
            }
            for from in 0..6 {
                let of_network = table.not_logged_in.count(network(from));
                prop_assert!(of_network <= table.limits.logins_per_address);
            }
        }
    }
}
