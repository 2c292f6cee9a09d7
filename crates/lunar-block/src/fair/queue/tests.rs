//! Comparison of the queue with a model that iterates over all owners for each command.

use super::*;
use proptest::prelude::*;
use std::time::Duration;

const LIMITS: FairLimits = FairLimits {
    owners_max: 3,
    shared_max: 8,
    contended_max: 4,
    owner_bytes_max: 64,
    contended_bytes_max: 40,
    bytes_max: 160,
};
const OWNERS: usize = 12;

/// An owner in the model: numbers of its commands, and the share of the time in which it has some.
struct ModelOwner {
    owner: usize,
    urgent: BTreeMap<usize, usize>,
    waiting: BTreeMap<usize, usize>,
    running: BTreeMap<usize, usize>,
    busy: BusyShare,
}

/// The owners in the order of their turns.
#[derive(Default)]
struct Model(Vec<ModelOwner>);

impl ModelOwner {
    fn bytes(&self) -> usize {
        self.running.values().sum()
    }

    fn has_waiting(&self) -> bool {
        !self.urgent.is_empty() || !self.waiting.is_empty()
    }

    fn update_busy(&mut self, now: Instant) {
        self.busy.set(!self.running.is_empty() || self.has_waiting(), now);
    }
}

impl Model {
    fn position(&mut self, owner: usize, now: Instant) -> usize {
        if let Some(at) = self.0.iter().position(|other| other.owner == owner) {
            return at;
        }
        self.0.retain(|other| other.busy.is_busy() || now < other.busy.forgotten_at());
        let (urgent, waiting, running) = Default::default();
        let busy = BusyShare::new(now);
        self.0.push(ModelOwner { owner, urgent, waiting, running, busy });
        self.0.len() - 1
    }

    fn may_run(&self, at: usize, now: Instant) -> bool {
        let own = &self.0[at];
        let running: usize = self.0.iter().map(|owner| owner.running.len()).sum();
        let owners = self.0.iter().filter(|owner| !owner.running.is_empty()).count();
        let free = LIMITS.shared_max.saturating_sub(running - owners.min(LIMITS.owners_max));
        if own.running.is_empty() {
            return owners < LIMITS.owners_max || free > 0;
        }
        let bytes: usize = self.0.iter().map(ModelOwner::bytes).sum();
        let has_room = bytes < LIMITS.bytes_max || own.bytes() < LIMITS.bytes_max / owners;
        let others = self.0.iter().enumerate().filter(|(other, _)| *other != at);
        let others: f64 = others.map(|(_, other)| other.busy.at(now)).sum();
        let is_within = |(count_max, bytes_max): (usize, usize)| {
            own.running.len() < count_max && own.bytes() < bytes_max
        };
        own.running.len() <= free
            && has_room
            && (is_within(LIMITS.of_owner(1.0)) || is_within(LIMITS.of_owner(others)))
    }

    fn begin(&mut self, at: usize, command: usize, bytes: usize, now: Instant) {
        let mut own = self.0.remove(at);
        own.running.insert(command, bytes);
        own.update_busy(now);
        self.0.push(own);
    }

    fn enter(&mut self, owner: usize, command: usize, bytes: usize, is_urgent: bool, now: Instant) {
        let at = self.position(owner, now);
        if !self.0[at].has_waiting() && self.may_run(at, now) {
            return self.begin(at, command, bytes, now);
        }
        let own = &mut self.0[at];
        let waiting = if is_urgent { &mut own.urgent } else { &mut own.waiting };
        waiting.insert(command, bytes);
        own.update_busy(now);
    }

    fn end(&mut self, command: usize, now: Instant) {
        for own in &mut self.0 {
            if own.running.remove(&command).is_some() {
                own.update_busy(now);
            }
        }
        let next = |model: &Self| {
            let mut owners = 0..model.0.len();
            owners.find(|at| model.0[*at].has_waiting() && model.may_run(*at, now))
        };
        while let Some(at) = next(self) {
            let own = &mut self.0[at];
            let next = own.urgent.pop_first().or_else(|| own.waiting.pop_first());
            let (command, bytes) = next.unwrap();
            self.begin(at, command, bytes, now);
        }
    }

    fn leave(&mut self, command: usize, now: Instant) {
        for own in &mut self.0 {
            own.urgent.remove(&command);
            own.waiting.remove(&command);
            own.update_busy(now);
        }
    }

    fn promote(&mut self, command: usize) {
        for own in &mut self.0 {
            let waiting = own.waiting.remove(&command);
            own.urgent.extend(waiting.map(|bytes| (command, bytes)));
        }
    }

    fn running(&self) -> Vec<usize> {
        let mut all: Vec<_> =
            self.0.iter().flat_map(|owner| owner.running.keys().copied()).collect();
        all.sort_unstable();
        all
    }
}

/// The queue, with the commands that the test has begun.
struct Commands {
    queue: Arc<FairQueue>,
    owners: Vec<CommandOwner>,
    running: BTreeMap<usize, FairPermit>,
    waiting: BTreeMap<usize, QueuedCommand>,
}

impl Commands {
    fn new(limits: FairLimits, owners: usize) -> Self {
        let others = (1..owners).map(|_| Some(Arc::<MemoryOwner>::default()));
        Self {
            queue: FairQueue::new(limits),
            owners: std::iter::once(None).chain(others).collect(),
            running: BTreeMap::new(),
            waiting: BTreeMap::new(),
        }
    }

    fn enter(&mut self, owner: usize, command: usize, bytes: usize, is_urgent: bool) {
        match self.queue.enter(self.owners[owner].clone(), bytes, is_urgent) {
            Ok(permit) => drop(self.running.insert(command, permit)),
            Err(queued) => drop(self.waiting.insert(command, queued)),
        }
    }

    /// Takes the permits that were granted to waiting commands.
    fn take_granted(&mut self) {
        let (running, waiting) = (&mut self.running, &mut self.waiting);
        waiting.retain(|command, queued| match queued.admitted.try_recv() {
            Ok(permit) => running.insert(*command, permit.unwrap()).is_some(),
            Err(_) => true,
        });
    }

    fn check(&self) {
        let state = self.queue.state();
        let limits = &self.queue.limits;
        assert!(state.waiting_running.len() <= limits.owners_max + limits.shared_max);
        for (key, commands) in &state.owners {
            let position = commands.position();
            let (idle, running) = (!position.is_running, position.is_running);
            let order = (position.turn, *key);
            assert_eq!(state.waiting_idle.contains(&order), position.is_waiting && idle);
            assert_eq!(state.waiting_running.contains(&order), position.is_waiting && running);
            let forgotten = (commands.busy.forgotten_at(), *key);
            assert_eq!(state.forgotten_at.contains(&forgotten), !commands.is_busy());
        }
        let waiting = state.owners.values().filter(|commands| commands.position().is_waiting);
        assert_eq!(waiting.count(), state.waiting_idle.len() + state.waiting_running.len());
        let idle = state.owners.values().filter(|commands| !commands.is_busy());
        assert_eq!(idle.count(), state.forgotten_at.len());
    }
}

#[derive(Clone, Debug)]
enum Step {
    Enter { owner: usize, bytes: usize, is_urgent: bool },
    End(prop::sample::Index),
    Leave(prop::sample::Index),
    Promote(prop::sample::Index),
    Advance(u64),
}

fn step() -> impl Strategy<Value = Step> {
    let enter = (0..OWNERS, 0_usize..50, prop::bool::weighted(0.2));
    prop_oneof![
        6 => enter.prop_map(|(owner, bytes, is_urgent)| Step::Enter { owner, bytes, is_urgent }),
        5 => any::<prop::sample::Index>().prop_map(Step::End),
        1 => any::<prop::sample::Index>().prop_map(Step::Leave),
        1 => any::<prop::sample::Index>().prop_map(Step::Promote),
        2 => (0_u64..200).prop_map(Step::Advance),
    ]
}

fn pick<T>(commands: &BTreeMap<usize, T>, index: prop::sample::Index) -> Option<usize> {
    (!commands.is_empty()).then(|| *commands.keys().nth(index.index(commands.len())).unwrap())
}

fn run(steps: Vec<Step>) {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_time().start_paused(true).build().unwrap();
    let (mut model, mut commands) = (Model::default(), Commands::new(LIMITS, OWNERS));
    runtime.block_on(async {
        for (number, step) in steps.into_iter().enumerate() {
            let now = Instant::now();
            match step {
                Step::Enter { owner, bytes, is_urgent } => {
                    model.enter(owner, number, bytes, is_urgent, now);
                    commands.enter(owner, number, bytes, is_urgent);
                }
                Step::End(index) => {
                    let Some(ended) = pick(&commands.running, index) else { continue };
                    model.end(ended, now);
                    commands.running.remove(&ended);
                }
                Step::Leave(index) => {
                    let Some(left) = pick(&commands.waiting, index) else { continue };
                    model.leave(left, now);
                    commands.waiting.remove(&left);
                }
                Step::Promote(index) => {
                    let Some(promoted) = pick(&commands.waiting, index) else { continue };
                    model.promote(promoted);
                    commands.waiting[&promoted].promote();
                }
                Step::Advance(millis) => {
                    tokio::time::advance(Duration::from_millis(millis)).await;
                }
            }
            commands.take_granted();
            commands.check();
            let running: Vec<_> = commands.running.keys().copied().collect();
            assert_eq!(running, model.running(), "step {number}");
            assert_eq!(commands.queue.owners(), model.0.len(), "step {number}");
        }
    });
}

proptest! {
    /// Goal: commands get permits in the same order as in the model.
    #[test]
    fn permits_are_granted_as_in_the_model(steps in prop::collection::vec(step(), 1..200)) {
        run(steps);
    }
}

/// Fault: each command iterated over all owners several times, and one initiator can create
/// thousands of owners. Goal: commands of 5,000 owners get permits in turn, without work per
/// command that grows with the number of owners; with such work, this test takes minutes.
#[test]
fn thousands_of_owners_take_turns() {
    const MANY: usize = 5_000;
    let mut commands = Commands::new(super::super::COMMANDS, MANY);
    for round in 0..2 {
        (0..MANY).for_each(|owner| commands.enter(owner, round * MANY + owner, 512, false));
    }
    let mut order = Vec::new();
    while let Some((command, permit)) = commands.running.pop_first() {
        order.push(command);
        drop(permit);
        if commands.running.is_empty() {
            commands.take_granted();
        }
    }
    assert_eq!(order.len(), 2 * MANY);
    let limits = super::super::COMMANDS;
    let second = order[..MANY].iter().filter(|command| **command >= MANY).count();
    assert!(
        second <= limits.owners_max + limits.shared_max,
        "{second} owners got a second permit before others got their first"
    );
    commands.check();
}
