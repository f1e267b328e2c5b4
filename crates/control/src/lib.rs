//! The controller as a machine: who is who. Epochs, switch ids, failure detection.
//!
//! Read [`Controller`] and [`State`] first. A configuration exists only after it was persisted by
//! compare-and-swap (trap T3): `poll_persist` gives the state to write, and nobody
//! hears of it before `persisted`. Leases are not the controller's (trap T8): the data
//! path goes on without it.
//!
//! A replica is let in by two epochs: in the first it is among those who join, and copies the state
//! while nobody waits for it; when it has all, the second makes it the last member. Until it said
//! that all which was agreed is executed there, the group cannot go on with it alone.
//!
//! A rack has several groups, each with a number, an epoch, members and a program of its own: a
//! change in one opens no epoch in another. What is common to all of them is in [`Controller`]:
//! hearing, the state, the switch and its ids. What a kind of group decides itself is in a file of
//! its own, as `replicas` is.
//!
//! What it decides by is what it hears, and it may be the one that hears nothing, or the one whose
//! file is not the newest: the module `hear` says when it decides nothing.
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;

mod decide;
mod group;
mod hear;
mod recover;
mod replicas;
mod state;
mod switches;
mod workers;

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use concord_core::machine::{Deadline, Persist};
use concord_core::{Duration, Guard, Guards, Instant, MS, Machine, Now, SEC, counters};
use concord_wire::control::{
    Config, DataDir, Heard, Member, Membership, Message as _, ReplicaAlive, Standing, Voting,
};
use concord_wire::{Addr, GroupId, Kind, Sink};

use group::{Group, Node};
pub use group::{GroupSetup, Members, Mistrust};
use hear::Hearing;
use recover::Recovery;
pub use recover::{Recover, Recovered};
pub use replicas::Replicas;
use state::Trouble;
pub use state::{GroupState, NotStored, Problem, State, Storage};
use switches::Switch;
pub use workers::Workers;

const TICK_NS: Duration = 50 * MS;
/// After a state that could not be stored nothing is decided for so long.
const STORE_AGAIN_NS: Duration = 100 * MS;
const RETIRED_MAX: usize = 64;
/// Most members and joining replicas.
const REPLICAS_MAX: usize = 64;
/// Most switches that are known of at a time.
const SWITCHES_MAX: usize = 8;

/// What the controller is told at its start.
#[derive(Clone, Debug)]
pub struct ControllerConfig {
    /// The rack's groups.
    pub groups: Vec<GroupSetup>,
    /// A node that is not heard of for so long is removed, in ns.
    pub failure_ns: Duration,
    /// A switch that is not heard of for so long is replaced by one that stands by, in ns; at the
    /// latest after `failure_ns`.
    pub switch_failure_ns: Duration,
    /// Start anew with whoever registers: the data of earlier members is given up. Epochs and
    /// switch ids go on.
    pub fresh: bool,
    /// Make the state anew from what the members have heard.
    pub recover: Option<Recover>,
    /// The rack's number, where this controller makes its first configuration: drawn at random.
    pub rack: u64,
    /// Where the controller listens, as its peers reach it.
    pub addr: Addr,
    /// Which guards are on; all of them outside tests.
    pub guards: Guards,
}

impl ControllerConfig {
    /// The defaults, for a controller of `groups` that listens at `addr`. It has no rack's number.
    #[must_use]
    pub fn new(groups: Vec<GroupSetup>, addr: Addr) -> ControllerConfig {
        ControllerConfig {
            groups,
            failure_ns: 2 * SEC,
            switch_failure_ns: Duration::MAX,
            fresh: false,
            recover: None,
            rack: 0,
            addr,
            guards: Guards::ALL,
        }
    }

    /// Time until a silent switch is replaced.
    fn switch_failure_ns(&self) -> Duration {
        self.switch_failure_ns.min(self.failure_ns)
    }
}

counters! {
    /// What the controller counted.
    pub struct ControllerCounters {
        /// Configurations put in force.
        epochs,
        /// Replicas removed because they were silent.
        removed_silent,
        /// Replicas removed because they restarted.
        removed_restarted,
        /// Replicas removed because they asked for it.
        removed_leaving,
        /// Replicas removed because they and another member did not hear each other.
        removed_cut,
        /// Times that nobody was heard, for so long that the controller must have been cut off.
        deaf,
        /// Packets of another rack's nodes, ignored.
        foreign,
        /// Packets of a group that the rack file does not have, dropped.
        unknown_group,
        /// Signs of life that came later than newer ones, ignored.
        stale,
        /// Replicas that started again with all that they had on disk, and kept their places.
        returned,
        /// Replicas let in, to copy the state.
        admitted,
        /// Replicas made members after they had copied the state.
        promoted,
        /// Joining replicas given up because they were silent, restarted or asked for it.
        joining_removed,
        /// Switch ids granted.
        switch_ids_granted,
        /// Standby switches that took over from a silent one.
        standbys_taken,
        /// States refused because another controller was faster (trap T3).
        superseded,
        /// States that the disk did not take; what they said is decided again.
        not_stored,
        /// Malformed datagrams dropped.
        malformed,
        /// Packets of no use here dropped.
        unexpected,
    }
}

/// The controller.
#[derive(Clone, Debug)]
pub struct Controller {
    setup: ControllerConfig,
    state: State,
    /// Written but not yet known to be persisted.
    proposed: Option<State>,
    /// Whether `proposed` was handed to the driver.
    handed_out: bool,
    /// What was counted, and how many members were told to be mistrusted, before `proposed`.
    before_proposal: (ControllerCounters, usize),
    /// The last state could not be stored: nothing is decided before then.
    store_again_at: Instant,
    groups: Vec<Group>,
    /// Every switch that was heard of, by its address; the active one among them.
    switches: BTreeMap<Addr, Switch>,
    problem: Option<Trouble>,
    hearing: Hearing,
    /// The rack whose groups begin anew; 0 if none do, or it is not known.
    rack_before: u64,
    /// While the state is made anew.
    recovery: Option<Recovery>,
    recovered: Vec<Recovered>,
    /// Members that were removed since they were started again without what they had; told once.
    mistrusted: Vec<(GroupId, u16, Mistrust)>,
    next_tick: Instant,
    scratch: Vec<u8>,
    count: ControllerCounters,
}

impl Controller {
    /// A controller that goes on from `state`, or begins.
    #[must_use]
    pub fn new(setup: ControllerConfig, state: Option<State>) -> Controller {
        let mut state = state.unwrap_or_default();
        let rack_before = if setup.fresh { state.rack } else { 0 };
        if setup.fresh {
            // The next epoch of each group is the first of a new one; its number goes on.
            state.rack = 0;
            for group in &mut state.groups {
                group.config.members.clear();
                group.config.joining.clear();
                group.caught_up.clear();
                group.storages.clear();
            }
        }
        let groups = setup.groups.iter().map(|g| Group::new(g.clone(), setup.fresh)).collect();
        let recovery = setup.recover.clone().map(Recovery::new);
        Controller {
            setup,
            state,
            proposed: None,
            handed_out: false,
            before_proposal: (ControllerCounters::ZERO, 0),
            store_again_at: Instant(0),
            groups,
            switches: BTreeMap::new(),
            problem: None,
            hearing: Hearing::default(),
            rack_before,
            recovery,
            recovered: Vec::new(),
            mistrusted: Vec::new(),
            next_tick: Instant(0),
            scratch: Vec::new(),
            count: ControllerCounters::default(),
        }
    }

    fn on_alive(
        &mut self,
        now: Now,
        index: usize,
        alive: ReplicaAlive,
        voting: Option<Voting>,
        sink: &mut impl Sink,
    ) {
        let ReplicaAlive { member, sent_at, heard, standing, held, data_dir, unheard } = alive;
        let (epoch, heard_at) = (heard.epoch, now.instant);
        let unheard = unheard.into_iter().map(|node| (node, heard_at)).collect();
        let steady_since = heard_at;
        let own = |DataDir { id, run }| Storage { node: member.node, id, run };
        let storage = data_dir.map(own);
        let was_kept = standing == Standing::Returning { intact: true } && held.epoch > 0;
        #[rustfmt::skip]
        let node = Node { member, sent_at, rack: heard.rack, epoch, standing, held, was_kept, storage, voting, unheard, heard_at, steady_since };
        let group = &self.groups[index];
        let known = group.nodes.get(&member.node);
        if known.is_some_and(|n| n.member == member && sent_at < n.sent_at) {
            // Late: it says nothing of now, nor that anything can be heard now.
            self.count.stale += 1;
            return;
        }
        let configs = self.state.config(group.id()).into_iter();
        let mut places = configs.flat_map(|c| c.members.iter().chain(&c.joining));
        let is_placed = places.any(|m| *m == member);
        if self.hears(now, index, member.addr, &heard, is_placed) {
            self.on_node(now, index, node, sink);
        }
    }

    fn on_node(&mut self, now: Now, index: usize, mut node: Node, sink: &mut impl Sink) {
        let group = &mut self.groups[index];
        let (id, addr, epoch) = (group.id(), node.member.addr, node.epoch);
        let node_of = node.member.node;
        let is_open = matches!(node.standing, Standing::Open { .. });
        let is_told = group.is_told(self.state.group(id), &node);
        if let Standing::Founding { switch_id, .. } = node.standing {
            group.highest.switch_id = group.highest.switch_id.max(switch_id);
        }
        // While the state is made anew it says nothing about who is late: its newest configuration
        // may never have been heard of.
        if self.recovery.is_some() || !is_stray(self.state.config(id), &node) {
            if let Some(config) = self.state.config(id) {
                group.note_return(now.instant, self.setup.failure_ns, &config.members, &node);
            }
            group.go_on(self.setup.failure_ns, &mut node);
            group.durable.hear(&node);
            group.nodes.insert(node.member.node, node);
            self.reconsider(now);
        }
        if self.is_mute() {
            return;
        }
        self.tell_put_back(now, (index, node_of), sink);
        let Some(config) = self.state.config(id) else { return };
        if config.epoch > epoch && !config.members.is_empty() && is_told {
            config.send(addr, &mut self.scratch, sink);
        } else if config.epoch == epoch && is_open {
            self.configure_switch(now.instant, sink);
        }
    }

    /// Where a group chooses its leaders by itself: a member that was started again with an older
    /// directory than it had is told so, and recovers as one that lost everything. In other groups
    /// it has no place.
    fn tell_put_back(&mut self, now: Now, (index, node): (usize, u16), sink: &mut impl Sink) {
        let group = &self.groups[index];
        let is_quorum = self.state.config(group.id()).is_some_and(|c| c.kind.is_quorum());
        let Some(own) = group.nodes.get(&node).filter(|n| is_quorum && n.is_kept()) else { return };
        let look = self.look(now.instant, group);
        let Some(held) = look.durable.of(node).filter(|_| !look.has_durable(own)) else { return };
        let (incarnation, addr, id) = (own.member.incarnation, own.member.addr, group.id());
        Membership::WasDurable { incarnation, held }.emit_in(id, &mut self.scratch);
        sink.send(addr, &self.scratch);
        if self.groups[index].durable.is_news(node, incarnation)
            && self.mistrusted.len() < REPLICAS_MAX
        {
            self.mistrusted.push((id, node, Mistrust::OlderDirectory));
        }
    }

    /// What was handed out does not follow what is stored: another controller was faster, and
    /// `stored` is what it wrote. This one goes on from there (trap T3).
    pub fn superseded(&mut self, stored: State) {
        self.count.superseded += 1;
        self.proposed = None;
        // Whom the other one let in was perhaps heard of by that one alone: silence counts from now
        // on.
        self.hearing.since = None;
        let before = core::mem::replace(&mut self.state, stored);
        for group in &mut self.groups {
            // A file of yesterday does not take back what this controller gave out itself.
            if self.setup.guards.on(Guard::StateHeard) {
                let epoch = before.config(group.id()).map_or(0, |c| c.epoch);
                let switch_id = before.last_switch_id;
                group.note_ahead(&self.state, &Heard { epoch, switch_id, ..Heard::default() });
            }
            group.is_confirmed = false;
            group.know(&self.state);
        }
    }

    /// What was handed out is not known to be stored. If it is certain that it is not, it is
    /// dropped, since nobody has heard of it, and a moment later the next state is decided by what
    /// is known then. If it may be stored, nothing is decided any more: the configurations in force
    /// are told as before.
    pub fn not_stored(&mut self, now: Now, why: NotStored) {
        if self.proposed.is_none() {
            return;
        }
        self.problem = Some(Problem::NotStored(why).into());
        if why == NotStored::Unknown {
            return;
        }
        (self.proposed, self.handed_out) = (None, false);
        let mistrusted = self.before_proposal.1;
        self.count = self.before_proposal.0;
        self.mistrusted.truncate(mistrusted);
        if self.recovery.is_some() {
            self.recovered.clear();
        }
        self.count.not_stored += 1;
        self.store_again_at = now.instant.after(STORE_AGAIN_NS);
    }

    /// Whether nodes have heard of more than the state says (trap T3): another controller may have
    /// stored a newer one, to be handed to [`Controller::superseded`].
    #[must_use]
    pub fn is_behind(&self) -> bool {
        self.groups.iter().any(|group| group.ahead.is_some())
    }

    /// How the groups' state was made anew, once it was.
    #[must_use]
    pub fn recovered(&self) -> &[Recovered] {
        &self.recovered
    }

    /// Members that lost their places since this was asked last, because they were started again
    /// without the data that they had.
    pub fn take_mistrusted(&mut self) -> Vec<(GroupId, u16, Mistrust)> {
        core::mem::take(&mut self.mistrusted)
    }

    /// Why it cannot do what it should, if it cannot.
    #[must_use]
    pub fn problem(&self) -> Option<Problem> {
        self.problem.map(|trouble| trouble.problem)
    }

    /// Which group that problem is of; `None` if there is none, or it is the rack's.
    #[must_use]
    pub fn problem_group(&self) -> Option<GroupId> {
        self.problem?.group
    }

    /// The state in force.
    #[must_use]
    pub fn state(&self) -> &State {
        &self.state
    }

    /// What was counted.
    #[must_use]
    pub fn counters(&self) -> &ControllerCounters {
        &self.count
    }

    /// The groups' numbers.
    pub fn groups(&self) -> impl Iterator<Item = GroupId> + '_ {
        self.groups.iter().map(Group::id)
    }

    /// Every node of a group that was heard of: who, epoch, where it stands, ns since it was heard.
    pub fn nodes(
        &self,
        group: GroupId,
        now: Now,
    ) -> impl Iterator<Item = (Member, u32, Standing, Duration)> + '_ {
        let known = self.groups.iter().filter(move |g| g.id() == group);
        let known = known.flat_map(|g| g.nodes.values());
        known.map(move |n| (n.member, n.epoch, n.standing, now.instant.since(n.heard_at)))
    }

    /// Every switch that was heard of: its life, its address, whether it stands by, ns since it was
    /// heard.
    pub fn switches(&self, now: Now) -> impl Iterator<Item = (u64, Addr, bool, Duration)> + '_ {
        let known = self.switches.values();
        known.map(move |s| (s.incarnation, s.addr, s.standby, now.instant.since(s.heard_at)))
    }
}

impl Machine for Controller {
    type Persist = State;

    fn handle(&mut self, now: Now, from: Addr, bytes: &mut [u8], sink: &mut impl Sink) {
        let message = match concord_wire::kind(bytes) {
            Ok(Kind::Membership) => Membership::parse(bytes),
            Ok(_) => {
                self.count.unexpected += 1;
                return;
            }
            Err(error) => Err(error),
        };
        let Ok(message) = message else {
            self.count.malformed += 1;
            return;
        };
        let group = concord_wire::group(bytes);
        // A switch that is in no group yet speaks for number 0, which the rack need not have.
        let is_switch = matches!(message, Membership::SwitchAlive { .. });
        let own = self.groups.iter().position(|g| g.id() == group);
        let speaks_for_none = is_switch && group == GroupId::FIRST && !self.groups.is_empty();
        let Some(index) = own.or(speaks_for_none.then_some(0)) else {
            self.count.unknown_group += 1;
            return;
        };
        match message {
            Membership::ReplicaAlive(alive) => self.on_alive(now, index, alive, None, sink),
            Membership::VoterAlive { alive, voting } => {
                self.on_alive(now, index, alive, Some(voting), sink);
            }
            Membership::SwitchAlive { incarnation, addr, sent_at, epoch, heard, standby } => {
                let known = self.switches.get(&addr).filter(|s| s.incarnation == incarnation);
                if known.is_some_and(|s| sent_at < s.sent_at) {
                    self.count.stale += 1;
                    return;
                }
                let is_placed = incarnation == self.state.switch_incarnation;
                if self.hears(now, index, addr, &heard, is_placed) {
                    let (epochs, heard_at) = (alloc::vec![(group, epoch)], now.instant);
                    let switch = Switch { incarnation, addr, sent_at, epochs, standby, heard_at };
                    self.on_switch(now, switch, sink);
                }
            }
            Membership::Configure(part) => {
                if let Some(config) = self.groups[index].assembly.take(part) {
                    self.on_config(config, from);
                }
            }
            Membership::WhoIsWho { client } => {
                if let Some(config) = self.state.config(group).filter(|_| !self.is_mute()) {
                    config.send(client, &mut self.scratch, sink);
                }
            }
            Membership::SwitchRetired { .. }
            | Membership::EpochState { .. }
            | Membership::Open { .. }
            | Membership::Opened { .. }
            | Membership::ChangeVoter { .. }
            | Membership::VotersTold(_)
            | Membership::WasDurable { .. }
            | Membership::Reach { .. } => self.count.unexpected += 1,
        }
    }

    fn tick(&mut self, now: Now, sink: &mut impl Sink) {
        if now.instant < self.next_tick {
            return;
        }
        self.next_tick = now.instant.after(TICK_NS);
        self.ask_configs(sink);
        self.reconsider(now);
        if !self.is_mute() {
            self.configure_switch(now.instant, sink);
        }
    }

    fn deadline(&self) -> Deadline {
        Deadline { at: self.next_tick, reason: "failure detection" }
    }

    /// The state to persist, if there is one: write it durably if and only if the stored version is
    /// one less, then call `persisted`; else [`Controller::superseded`].
    fn poll_persist(&mut self) -> Option<Persist<State>> {
        if self.handed_out {
            return None;
        }
        let what = self.proposed.clone()?;
        self.handed_out = true;
        Some(Persist { number: what.version, what })
    }

    /// What was handed out is durable: now everybody may hear of it.
    fn persisted(&mut self, _now: Now, version: u64, sink: &mut impl Sink) {
        let is_it = |state: &mut State| state.version <= version;
        let Some(state) = self.proposed.take_if(is_it) else { return };
        let before = core::mem::replace(&mut self.state, state);
        self.recovery = None;
        for group in &mut self.groups {
            group.know(&self.state);
            let Some(config) = self.state.config(group.id()) else { continue };
            if before.config(group.id()).is_some_and(|c| c.epoch == config.epoch) {
                continue;
            }
            // From here on whoever knows more knows of a newer state.
            group.is_fresh = false;
            // A group that begins has no configuration but this one. Any other is as certain as the
            // one before.
            group.is_confirmed |= before.config(group.id()).is_none();
            self.count.epochs += 1;
            for part in config.parts() {
                Membership::Configure(part).emit_in(config.group, &mut self.scratch);
                let known = self.state.group(group.id());
                for node in group.nodes.values().filter(|node| group.is_told(known, node)) {
                    sink.send(node.member.addr, &self.scratch);
                }
            }
        }
    }
}

/// Whether it may be a late packet of an earlier life of a node that has its place in another:
/// only who has heard of the configuration in force, or of a later one, has certainly begun since.
fn is_stray(config: Option<&Config>, node: &Node) -> bool {
    let Some(config) = config else { return false };
    let mut places = config.members.iter().chain(&config.joining);
    let own = places.find(|m| m.node == node.member.node);
    own.is_some_and(|m| m.incarnation != node.member.incarnation) && node.epoch < config.epoch
}

#[cfg(test)]
mod tests;
