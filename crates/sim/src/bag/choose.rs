//! The choice of the next step, drawn from a seed, such that the group makes progress and that
//! events which are rare on a real network are frequent.

use concord_core::{MS, Rng, US};
use concord_protocols::Phase;

use super::calls::KEYS;
use super::group::{Group, Role, Step};
use super::packets::{Flight, PacketId};
use crate::world::{CONTROLLER, REPLICAS, SWITCH};

/// The maximum number of draws for a packet of the wanted kind from the bag.
const TRIES: usize = 24;
/// The number of steps at the end of a run in which no node dies, and none is cut off: late packets
/// can then do damage that no later failure hides.
const ENDING_STEPS: u64 = 80;
/// The maximum time that passes at once while no node has a deadline, in ns.
const IDLE_NS: u64 = 50 * MS;

/// The old packets that are delivered again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Replay {
    Any,
    /// Those sent by, or to, an earlier incarnation.
    OtherIncarnation,
    /// Those sent in an earlier epoch or view than the receiver's.
    OtherEpoch,
    /// Those of one kind.
    Sort(u8),
}

/// The conditions for a number of steps: nodes that do not take part, and old packets that arrive
/// again.
#[derive(Clone, Debug)]
struct Mood {
    steps_left: u64,
    /// The nodes that are paused: they receive nothing and do not read the clock (a bit for each).
    asleep: u64,
    /// The nodes that only switches reach, and that only switches receive packets from.
    deaf: u64,
    mute: u64,
    /// A link on which nothing arrives, as sender and receiver.
    cut: Option<(u8, u8)>,
    /// A kind of packets that do not arrive (they may do so later, as old packets).
    withheld: Option<u8>,
    replay: Replay,
    old_permille: u64,
}

/// The frequencies of events in a run, per thousand steps; a run has about half of the kinds.
#[derive(Clone, Copy, Debug, Default)]
struct Rates {
    old: u64,
    pass: u64,
    call: u64,
    /// The share of writes among the calls, in percent.
    writes_percent: u64,
    restart: u64,
    kill: u64,
    retire: u64,
    switch: u64,
    controller: u64,
    client: u64,
    engine_loss: u64,
}

/// The generator of steps.
pub(super) struct Chooser {
    rng: Rng,
    rates: Rates,
    /// The number of fresh packets among which the next one is chosen, which bounds how many a
    /// packet overtakes.
    window: usize,
    mood: Mood,
    /// The number of steps until the run ends.
    left: u64,
    /// The replica that died last.
    victim: Option<usize>,
}

impl Chooser {
    pub(super) fn new(seed: u64, steps: u64) -> Chooser {
        let mut rng = Rng::new(seed);
        let mut some = |permille: u64| if rng.chance(1, 2) { permille } else { 0 };
        let rates = Rates {
            old: 10 + some(50),
            pass: some(15),
            call: 30 + some(120),
            writes_percent: 30 + some(40) / 2,
            restart: some(10),
            kill: some(2),
            switch: some(3),
            controller: some(2),
            client: some(2),
            engine_loss: some(1),
            retire: some(4),
        };
        let window = if rng.chance(1, 2) { 1 } else { rng.between(2, 12) as usize };
        let mood = Mood::calm(rates.old);
        Chooser { rng, rates, window, mood, left: steps, victim: None }
    }

    /// Chooses the next step of a run.
    pub(super) fn next(&mut self, group: &mut Group) -> Step {
        self.left = self.left.saturating_sub(1);
        if self.left == ENDING_STEPS {
            self.end(group);
        }
        if self.mood.steps_left == 0 {
            self.mood = self.draw_mood(group);
        }
        self.mood.steps_left -= 1;
        let rates = self.rates;
        let chance = self.rng.below(1_000);
        let mut upto = 0;
        let mut is = |permille: u64| {
            upto += permille;
            chance < upto
        };
        let rare = if is(rates.call) {
            self.draw_call(group)
        } else if is(self.mood.old_permille) {
            self.draw_old(group)
        } else if is(rates.pass) {
            Some(Step::Pass(self.draw_time()))
        } else if is(rates.restart) {
            self.draw_restart(group)
        } else if is(rates.kill) {
            self.draw_victim(group).map(|r| Step::Kill(r as u8))
        } else if is(rates.switch) {
            Some(self.draw_switch())
        } else if is(rates.controller) {
            Some(Step::RestartController)
        } else if is(rates.client) {
            let client = self.rng.below(group.plan.clients as u64) as u8;
            Some(Step::RestartClient { client, tag: self.rng.next_u64() })
        } else if is(rates.engine_loss) {
            self.draw_victim(group).map(|r| Step::LoseEngine(r as u8))
        } else if is(rates.retire) {
            self.draw_victim(group).map(|r| Step::Retire(r as u8))
        } else {
            None
        };
        rare.unwrap_or_else(|| self.go_on(group))
    }

    /// Begins the end of a run: only packets of one kind, or any, arrive again.
    fn end(&mut self, group: &Group) {
        let replay = match self.rng.chance(2, 3) {
            true => draw_sort(&mut self.rng, group),
            false => Replay::Any,
        };
        let old_permille = self.rng.between(50, 500);
        let steps_left = ENDING_STEPS + 1;
        self.mood = Mood { steps_left, replay, old_permille, ..Mood::calm(0) };
        let Rates { call, writes_percent, .. } = self.rates;
        self.rates = Rates { call, writes_percent, ..Rates::default() };
    }

    /// The next step of normal operation: a packet, a completion, a timer.
    fn go_on(&mut self, group: &mut Group) -> Step {
        let fresh = self.fresh(group);
        let awake = |node: usize| self.mood.asleep & (1 << node) == 0 && !group.is_dead(node);
        let nodes = group.slots.len();
        let mut soonest: Option<(u64, usize)> = None;
        let first = self.rng.below(nodes as u64) as usize;
        for node in (first..nodes).chain(0..first).filter(|n| awake(*n)) {
            if group.engine_waits(node) && self.rng.chance(1, 3) {
                return Step::Engine(node as u8);
            }
            if let Some(due_in) = group.due_in(node)
                && soonest.is_none_or(|(before, _)| due_in < before)
            {
                soonest = Some((due_in, node));
            }
        }
        if let Some((0, node)) = soonest
            && self.rng.chance(1, 3)
        {
            return Step::Tick(node as u8);
        }
        if let Some(id) = fresh {
            return Step::Deliver(group.bag.name(id));
        }
        soonest.map_or(Step::Pass(IDLE_NS), |(due_in, node)| match due_in {
            0 => Step::Tick(node as u8),
            _ => Step::Pass(due_in.min(IDLE_NS)),
        })
    }

    /// A fresh packet that may be delivered, if there is one.
    fn fresh(&mut self, group: &mut Group) -> Option<PacketId> {
        let mood = &self.mood;
        let replicas = group.plan.replicas;
        let slots = &group.slots;
        let may = |flight: &Flight| {
            mood.lets(flight, replicas) && !matches!(slots[usize::from(flight.to)].role, Role::Dead)
        };
        group.bag.next_fresh(&mut self.rng, self.window, may)
    }

    fn draw_call(&mut self, group: &Group) -> Option<Step> {
        let client = self.rng.below(group.plan.clients as u64) as usize;
        let asleep = self.mood.asleep & (1 << group.client_node(client)) != 0;
        if asleep || !group.calls.has_room(client) {
            return None;
        }
        let writes = self.rng.chance(self.rates.writes_percent, 100);
        let key = self.rng.below(u64::from(KEYS) * 3) as u8;
        // The long key is rare.
        let key = if key + 1 == KEYS { key } else { key % (KEYS - 1) };
        Some(Step::Call { client: client as u8, key, writes })
    }

    fn draw_old(&mut self, group: &Group) -> Option<Step> {
        let mut found = None;
        for _ in 0..TRIES {
            let by_sort = self.rng.chance(1, 2);
            let id = match self.mood.replay {
                Replay::Sort(sort) => group.bag.any_of(&mut self.rng, sort)?,
                _ => group.bag.any(&mut self.rng, by_sort)?,
            };
            let flight = &group.bag.flights[id as usize];
            let to = usize::from(flight.to);
            if group.is_dead(to) || self.mood.asleep & (1 << to) != 0 {
                continue;
            }
            found = Some(id);
            let fits = match self.mood.replay {
                Replay::Any | Replay::Sort(_) => true,
                Replay::OtherIncarnation => {
                    let from = usize::from(flight.from);
                    let now = (group.incarnation_of(from), group.incarnation_of(to));
                    flight.incarnations != now
                }
                Replay::OtherEpoch => flight.epoch > 0 && flight.epoch < group.epoch_of(to),
            };
            if fits {
                break;
            }
        }
        found.map(|id| Step::Deliver(group.bag.name(id)))
    }

    fn draw_time(&mut self) -> u64 {
        match self.rng.below(12) {
            0..=4 => self.rng.between(1, 1_000) * US,
            5..=8 => self.rng.between(1, 25) * MS,
            9..=10 => self.rng.between(25, 160) * MS,
            _ => self.rng.between(160, 1_200) * MS,
        }
    }

    fn draw_restart(&mut self, group: &Group) -> Option<Step> {
        let dead = (0..group.plan.replicas).find(|r| group.is_dead(REPLICAS + r));
        let replica = match dead {
            Some(dead) if self.rng.chance(2, 3) => dead,
            _ => self.draw_victim(group)?,
        };
        // The same replica once more, before it has anything back.
        let again = self.victim.filter(|v| self.rng.chance(1, 3) && group.can_lose(REPLICAS + v));
        let replica = again.unwrap_or(replica);
        self.victim = Some(replica);
        let host = self.rng.chance(1, 4);
        Some(Step::Restart { replica: replica as u8, tag: self.rng.next_u64(), host })
    }

    /// Draws a replica that the group can lose.
    fn draw_victim(&mut self, group: &Group) -> Option<usize> {
        let victim = self.rng.below(group.plan.replicas as u64) as usize;
        group.can_lose(REPLICAS + victim).then_some(victim)
    }

    fn draw_switch(&mut self) -> Step {
        let is_other = self.rng.chance(1, 2);
        let standby = is_other && self.rng.chance(1, 3);
        Step::RestartSwitch { is_other, standby, tag: self.rng.next_u64() }
    }

    /// Draws conditions; every second ones are calm, so that the group makes progress.
    fn draw_mood(&mut self, group: &Group) -> Mood {
        let rng = &mut self.rng;
        let mut mood = Mood { steps_left: rng.between(20, 200), ..Mood::calm(self.rates.old) };
        if rng.chance(1, 2) {
            return mood;
        }
        let replicas = group.plan.replicas as u64;
        let leader = group.who_orders();
        let replica = |rng: &mut Rng| match leader {
            Some(leader) if rng.chance(1, 3) => leader as u64,
            _ => REPLICAS as u64 + rng.below(replicas),
        };
        match rng.below(10) {
            0 | 1 => mood.asleep = 1 << replica(rng),
            2 => mood.deaf = 1 << replica(rng),
            3 => mood.mute = 1 << replica(rng),
            4 => {
                let cut = 1 << replica(rng);
                (mood.deaf, mood.mute) = (cut, cut);
                // A minority, if more than one replica may fail.
                if replicas >= 5 && rng.chance(1, 2) {
                    let cut = cut | 1 << replica(rng);
                    (mood.deaf, mood.mute) = (cut, cut);
                }
            }
            5 => mood.cut = Some((replica(rng) as u8, replica(rng) as u8)),
            6 => mood.asleep = 1 << rng.below(group.slots.len() as u64),
            7 => {
                mood.asleep = 1
                    << *[CONTROLLER, SWITCH, group.other_switch()]
                        .get(rng.below(3) as usize)
                        .unwrap_or(&CONTROLLER)
            }
            8 => {
                let any = group.bag.any(rng, true);
                mood.withheld = any.map(|id| group.bag.flights[id as usize].sort);
            }
            _ => {}
        }
        if rng.chance(1, 2) {
            mood.old_permille = rng.between(50, 400);
            mood.replay = match rng.below(4) {
                0 => Replay::Any,
                1 => Replay::OtherIncarnation,
                2 => Replay::OtherEpoch,
                _ => draw_sort(rng, group),
            };
        }
        mood
    }
}

/// Draws a kind of packets that arrive again.
fn draw_sort(rng: &mut Rng, group: &Group) -> Replay {
    let any = group.bag.any(rng, true);
    any.map_or(Replay::Any, |id| Replay::Sort(group.bag.flights[id as usize].sort))
}

impl Mood {
    fn calm(old_permille: u64) -> Mood {
        Mood {
            steps_left: 0,
            asleep: 0,
            deaf: 0,
            mute: 0,
            cut: None,
            withheld: None,
            replay: Replay::Any,
            old_permille,
        }
    }

    /// Whether the conditions allow a packet to be delivered.
    fn lets(&self, flight: &Flight, replicas: usize) -> bool {
        let (from, to) = (flight.from, flight.to);
        let is_peer = |node: u8| {
            usize::from(node) == CONTROLLER
                || (REPLICAS..REPLICAS + replicas).contains(&usize::from(node))
        };
        let bit = |node: u8| 1u64 << node;
        let is_apart = is_peer(from)
            && is_peer(to)
            && (self.deaf & bit(to) != 0 || self.mute & bit(from) != 0);
        self.asleep & bit(to) == 0
            && !is_apart
            && self.cut != Some((from, to))
            && self.withheld != Some(flight.sort)
    }
}

impl Group {
    /// Whether the group survives the loss of a replica's data: another one has everything; or, for
    /// quorum protocols, a majority of others has lost nothing.
    pub(super) fn can_lose(&self, node: usize) -> bool {
        let others = (REPLICAS..REPLICAS + self.plan.replicas).filter(|n| *n != node);
        let well = others.filter(|n| self.has_everything(*n)).count();
        well >= if self.plan.protocol.is_quorum() { self.plan.replicas / 2 + 1 } else { 1 }
    }

    /// The replica that orders writes in the newest epoch or view that any node knows.
    fn who_orders(&self) -> Option<usize> {
        use concord_protocols::Node;
        let replicas = REPLICAS..REPLICAS + self.plan.replicas;
        if !self.plan.protocol.is_quorum() {
            let head = self.config()?.head()?;
            return Some(REPLICAS + usize::from(head.node));
        }
        let leads =
            |node: &usize| matches!(self.slots[*node].replica(), Some(Node::Vr(vr)) if vr.leads());
        replicas.filter(leads).max_by_key(|node| self.epoch_of(*node))
    }

    /// Whether a replica is a member of the newest epoch with all of its data; for quorum
    /// protocols, whether it has lost nothing, or has it back.
    pub(super) fn has_everything(&self, node: usize) -> bool {
        use concord_protocols::Node;
        if self.slots[node].engine_lost || self.slots[node].retires {
            return false;
        }
        match self.slots[node].replica() {
            Some(Node::Vr(vr)) => vr.is_intact(),
            Some(Node::Replica(r)) => {
                let newest = self.config().map_or(0, |c| c.epoch);
                r.phase() == Phase::Open
                    && r.config().is_some_and(|c| c.epoch == newest)
                    && r.status(self.now(node)).caught_up
            }
            None => false,
        }
    }
}
