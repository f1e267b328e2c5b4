//! The controller of a rack, as a machine: epochs, switch ids, failure detection.
//!
//! Read [`Controller`] and [`State`] first. A configuration exists only after it was persisted by
//! compare-and-swap (trap T3): `poll_persist` returns the state to write, and no node is told
//! before `persisted`. The controller grants no leases (trap T8), so that the data path works
//! without it.
//!
//! A replica is admitted in two epochs. In the first it is joining, and copies the state while no
//! member waits for it. Once it has everything, the second makes it the last member. Until it has
//! reported that it has executed everything that was agreed, the group cannot continue with it
//! alone.
//!
//! A rack has several groups, each with its own number, epoch, members and program: a change in one
//! opens no epoch in another. [`Controller`] has the parts common to all: hearing, the state, the
//! switch and its ids. The decisions of each kind of group are in a file of their own, such as
//! `replicas`.
//!
//! The controller decides by the messages that it hears. It may itself be cut off, or its file may
//! not be the newest: the module `hear` says when it decides nothing.
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;

mod chain;
mod compare;
mod decide;
mod group;
mod hear;
mod memory;
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

pub use chain::{CHAIN_MAX, Chain};
use group::{Group, Node};
pub use group::{GroupSetup, Members, Mistrust};
use hear::Hearing;
pub use memory::Memory;
use recover::Recovery;
pub use recover::{Recover, Recovered};
pub use replicas::Replicas;
use state::Trouble;
pub use state::{GroupState, NotStored, Problem, State, Storage};
use switches::Switch;
pub use workers::Workers;

const TICK_NS: Duration = 50 * MS;
/// The time without decisions after a state that could not be stored.
const STORE_AGAIN_NS: Duration = 100 * MS;
const RETIRED_MAX: usize = 64;
/// The largest number of members and joining replicas.
const REPLICAS_MAX: usize = 64;
/// The largest number of switches that are remembered.
const SWITCHES_MAX: usize = 8;

/// The configuration of the controller at its start.
#[derive(Clone, Debug)]
pub struct ControllerConfig {
    /// The rack's groups.
    pub groups: Vec<GroupSetup>,
    /// The silence after which a node is removed, in ns.
    pub failure_ns: Duration,
    /// The silence after which a switch is replaced by a standby, in ns; at most `failure_ns`.
    pub switch_failure_ns: Duration,
    /// Whether to begin anew with the nodes that register, and give up the data of earlier members.
    /// Epochs and switch ids continue.
    pub fresh: bool,
    /// Set to rebuild the state from the members' knowledge.
    pub recover: Option<Recover>,
    /// The rack's number, drawn at random, in case this controller makes the first configuration.
    pub rack: u64,
    /// The address at which peers reach the controller.
    pub addr: Addr,
    /// The guards that are on: all of them outside tests.
    pub guards: Guards,
}

impl ControllerConfig {
    /// The defaults, for a controller of `groups` at `addr`, without a rack's number.
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

    /// The time after which a silent switch is replaced.
    fn switch_failure_ns(&self) -> Duration {
        self.switch_failure_ns.min(self.failure_ns)
    }
}

counters! {
    /// The counters of the controller.
    pub struct ControllerCounters {
        /// Configurations that came into force. A rise without maintenance means that members or
        /// switches fail.
        epochs,
        /// Replicas removed because they were silent.
        removed_silent,
        /// Replicas removed because they had restarted without their data.
        removed_restarted,
        /// Replicas removed because they asked to leave.
        removed_leaving,
        /// Replicas removed because they and another member could not hear each other.
        removed_cut,
        /// Times that no node was heard for so long that the controller itself must have been cut
        /// off.
        deaf,
        /// Packets ignored because they came from another rack.
        foreign,
        /// Packets dropped because the rack file does not have their group.
        unknown_group,
        /// Keepalives ignored because newer ones had arrived before.
        stale,
        /// Replicas that restarted with all of their data on disk, and kept their places.
        returned,
        /// Replicas admitted to copy the state.
        admitted,
        /// Replicas that became members after they had copied the state.
        promoted,
        /// Joining replicas removed because they were silent, had restarted, or asked to leave.
        joining_removed,
        /// Switch ids granted.
        switch_ids_granted,
        /// Standby switches that took over from a silent one.
        standbys_taken,
        /// States not stored because another controller had stored one before (trap T3).
        superseded,
        /// States that could not be written to disk; they are decided anew.
        not_stored,
        /// Digests of replicas' states compared with those of other replicas.
        digests_compared,
        /// Compared digests that differed: a replica's data differs from that of others. Must stay
        /// 0.
        digests_unequal,
        /// Datagrams dropped because they are malformed.
        malformed,
        /// Packets dropped because their kind is not for the controller.
        unexpected,
    }
}

/// The controller.
#[derive(Clone, Debug)]
pub struct Controller {
    setup: ControllerConfig,
    state: State,
    /// A state that is not known to be persisted yet.
    proposed: Option<State>,
    /// Whether `proposed` was handed to the driver.
    handed_out: bool,
    /// The counters and the length of `mistrusted` before `proposed`.
    before_proposal: (ControllerCounters, usize),
    /// After a state that could not be stored: the time of the next decision.
    store_again_at: Instant,
    groups: Vec<Group>,
    /// Every switch that was heard, by its address, with the active one.
    switches: BTreeMap<Addr, Switch>,
    problem: Option<Trouble>,
    hearing: Hearing,
    /// The earlier rack whose groups begin anew; 0 if there is none, or it is not known.
    rack_before: u64,
    /// The progress of rebuilding the state.
    recovery: Option<Recovery>,
    recovered: Vec<Recovered>,
    /// Members that were removed because they restarted without their data; reported once.
    mistrusted: Vec<(GroupId, u16, Mistrust)>,
    next_tick: Instant,
    scratch: Vec<u8>,
    count: ControllerCounters,
}

impl Controller {
    /// A controller that continues from `state`, or begins without one.
    #[must_use]
    pub fn new(setup: ControllerConfig, state: Option<State>) -> Controller {
        let mut state = state.unwrap_or_default();
        let rack_before = if setup.fresh { state.rack } else { 0 };
        if setup.fresh {
            // The next epoch of each group is the first of a new rack; epoch numbers continue.
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
            // A late packet shows neither the sender's present state nor that the controller can
            // hear.
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
        // While the state is rebuilt it does not show which packets are late: the nodes may never
        // have heard of its newest configuration.
        if self.recovery.is_some() || !is_stray(self.state.config(id), &node) {
            if let Some(config) = self.state.config(id) {
                let failure_ns = group.failure_ns(self.setup.failure_ns);
                group.note_return(now.instant, failure_ns, &config.members, &node);
                group.comparisons.meet(&node.member, &config.members);
            }
            group.go_on(group.failure_ns(self.setup.failure_ns), &mut node);
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

    /// In a group that chooses its leaders by itself: tells a member that was restarted with an
    /// older directory, which then recovers like one that lost everything. In other groups such a
    /// node has no place.
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

    /// Handles a refused compare-and-swap: another controller was faster and has written `stored`.
    /// This one continues from there (trap T3).
    pub fn superseded(&mut self, stored: State) {
        self.count.superseded += 1;
        self.proposed = None;
        // Only the other controller may have heard the nodes that it admitted: silence counts from
        // now on.
        self.hearing.since = None;
        let before = core::mem::replace(&mut self.state, stored);
        for group in &mut self.groups {
            // An older file does not take back numbers that this controller itself has given out.
            if self.setup.guards.on(Guard::StateHeard) {
                let epoch = before.config(group.id()).map_or(0, |c| c.epoch);
                let switch_id = before.last_switch_id;
                group.note_ahead(&self.state, &Heard { epoch, switch_id, ..Heard::default() });
            }
            group.is_confirmed = false;
            group.know(&self.state);
        }
    }

    /// Handles a state that is not known to be stored. If it certainly is not, it is dropped, since
    /// no node has heard of it, and a moment later the next state is decided anew. If it may be
    /// stored, nothing is decided any more, and the configurations in force are repeated as before.
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

    /// Whether nodes have heard of higher numbers than the state has (trap T3): another controller
    /// may have stored a newer state, which [`Controller::superseded`] takes.
    #[must_use]
    pub fn is_behind(&self) -> bool {
        self.groups.iter().any(|group| group.ahead.is_some())
    }

    /// The result of rebuilding the state, by group.
    #[must_use]
    pub fn recovered(&self) -> &[Recovered] {
        &self.recovered
    }

    /// Members that lost their places since the last call, because they restarted without their
    /// data.
    pub fn take_mistrusted(&mut self) -> Vec<(GroupId, u16, Mistrust)> {
        core::mem::take(&mut self.mistrusted)
    }

    /// The present problem, if there is one.
    #[must_use]
    pub fn problem(&self) -> Option<Problem> {
        self.problem.map(|trouble| trouble.problem)
    }

    /// The group of the present problem; `None` if there is no problem, or it concerns the rack.
    #[must_use]
    pub fn problem_group(&self) -> Option<GroupId> {
        self.problem?.group
    }

    /// The state in force.
    #[must_use]
    pub fn state(&self) -> &State {
        &self.state
    }

    /// The counters.
    #[must_use]
    pub fn counters(&self) -> &ControllerCounters {
        &self.count
    }

    /// The groups' numbers.
    pub fn groups(&self) -> impl Iterator<Item = GroupId> + '_ {
        self.groups.iter().map(Group::id)
    }

    /// Every node of a group that was heard: the node, its epoch, its standing, and the ns since it
    /// was heard.
    pub fn nodes(
        &self,
        group: GroupId,
        now: Now,
    ) -> impl Iterator<Item = (Member, u32, Standing, Duration)> + '_ {
        let known = self.groups.iter().filter(move |g| g.id() == group);
        let known = known.flat_map(|g| g.nodes.values());
        known.map(move |n| (n.member, n.epoch, n.standing, now.instant.since(n.heard_at)))
    }

    /// Every switch that was heard: its incarnation, its address, whether it stands by, and the ns
    /// since it was heard.
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
        // A switch without a group sends group number 0, which the rack may not have.
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
            Membership::Compared { node, incarnation, made } => {
                self.on_compared(index, (node, incarnation), &made);
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

    /// The state to persist, if there is one. Write it durably if and only if the stored version is
    /// one less, then call `persisted`; otherwise call [`Controller::superseded`].
    fn poll_persist(&mut self) -> Option<Persist<State>> {
        if self.handed_out {
            return None;
        }
        let what = self.proposed.clone()?;
        self.handed_out = true;
        Some(Persist { number: what.version, what })
    }

    /// Notes that the state is durable, and sends its configurations.
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
            // From now on, higher numbers belong to a newer state.
            group.is_fresh = false;
            // A new group has no other configuration. For others it is as certain as the one
            // before.
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

/// Whether this may be a late packet of an earlier incarnation of a member: only a process that has
/// heard of the configuration in force, or a later one, has certainly started since.
fn is_stray(config: Option<&Config>, node: &Node) -> bool {
    let Some(config) = config else { return false };
    let mut places = config.members.iter().chain(&config.joining);
    let own = places.find(|m| m.node == node.member.node);
    own.is_some_and(|m| m.incarnation != node.member.incarnation) && node.epoch < config.epoch
}

#[cfg(test)]
mod tests;
