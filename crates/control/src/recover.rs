//! A state that is rebuilt from the members' knowledge: the file was lost, or all members of the
//! configuration in force were.
//!
//! This is safe only if every member of the newest known configuration is heard: none has heard of
//! a later one, so that no later one was opened, and nothing was acknowledged in it. If a member is
//! gone for good, the operator says so, and may lose writes that only it had acknowledged.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::fmt;

use concord_core::{Duration, Instant};
use concord_wire::control::{Config, Held, Membership, Message as _};
use concord_wire::{Addr, GroupId, Sink};

use crate::group::Group;
use crate::state::Trouble;
use crate::{Controller, GroupState, Problem, State};

/// The number of skipped epochs and switch ids, in case only a lost node has heard of some (trap
/// T3).
const NUMBERS_SPARED: u32 = 1_024;

/// The operator's part of the recovery.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recover {
    /// Replicas that are gone for good with their data: the group and the node of each.
    pub gone: Vec<(GroupId, u16)>,
}

/// The progress of rebuilding the state.
#[derive(Clone, Debug)]
pub(crate) struct Recovery {
    gone: Vec<(GroupId, u16)>,
    /// The newest configuration of each group that a member sent, by its rack, with the sender.
    newest: BTreeMap<(u64, GroupId), (Config, Addr)>,
}

impl Recovery {
    pub(crate) fn new(asked: Recover) -> Recovery {
        Recovery { gone: asked.gone, newest: BTreeMap::new() }
    }
}

/// The result of rebuilding a group's state, for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recovered {
    /// The group.
    pub group: GroupId,
    /// The newest epoch that any node has heard of.
    pub heard_epoch: u32,
    /// The epoch with which it continues.
    pub epoch: u32,
    /// Its members.
    pub members: Vec<u16>,
    /// If no member with all the data was left: the position of the best one. Later acknowledged
    /// writes are lost.
    pub lost_behind: Option<Held>,
    /// The members that the operator named as gone.
    pub gone: Vec<u16>,
}

impl fmt::Display for Recovered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.group != GroupId::FIRST {
            write!(f, "group {}: ", self.group.0)?;
        }
        write!(
            f,
            "made the state anew: epoch {} was the newest that is known, epoch {} begins with ",
            self.heard_epoch, self.epoch
        )?;
        for (n, node) in self.members.iter().enumerate() {
            write!(f, "{}{node}", if n == 0 { "replicas " } else { " " })?;
        }
        if let Some(held) = self.lost_behind {
            write!(
                f,
                "; nobody has all the data: this one has it as of record {} in epoch {}, and what was \
                 acknowledged after that is lost",
                held.position, held.epoch
            )
        } else if self.gone.is_empty() {
            write!(f, "; no data is lost")
        } else {
            write!(f, "; what only those that are gone had acknowledged is lost")
        }
    }
}

impl Controller {
    /// Handles a member's configuration.
    pub(crate) fn on_config(&mut self, config: Config, from: Addr) {
        let is_known = self.groups.iter().any(|g| g.id() == config.group);
        let Some(recovery) = self.recovery.as_mut().filter(|_| is_known) else {
            self.count.unexpected += 1;
            return;
        };
        let key = (config.rack, config.group);
        let newest = recovery.newest.get(&key);
        if newest.is_none_or(|(newest, _)| newest.epoch < config.epoch) {
            recovery.newest.insert(key, (config, from));
        }
    }

    /// Asks all members for their configurations.
    pub(crate) fn ask_configs(&mut self, sink: &mut impl Sink) {
        if self.recovery.is_none() {
            return;
        }
        for group in &self.groups {
            let ask = Membership::WhoIsWho { client: self.setup.addr };
            ask.emit_in(group.id(), &mut self.scratch);
            for node in group.nodes.values().filter(|n| n.epoch > 0) {
                sink.send(node.member.addr, &self.scratch);
            }
        }
    }

    /// The time for which it listens before it builds a state: every running node was heard by
    /// then.
    fn listen_ns(&self) -> Duration {
        2 * self.setup.failure_ns
    }

    /// Rebuilds the state, once that is possible.
    pub(crate) fn try_recover(&mut self, now: Instant) {
        let listened = self.hearing.since.is_some_and(|at| now.since(at) >= self.listen_ns());
        let is_deaf = self.hearing.is_deaf(now, self.setup.switch_failure_ns(), self.setup.guards);
        let made = match &self.recovery {
            Some(recovery) if listened && !is_deaf => self.state_anew(now, recovery),
            _ => Err(Problem::Recovering.into()),
        };
        match made {
            Ok((state, recovered)) => {
                self.recovered = recovered;
                self.suggest(state);
            }
            Err(trouble) => self.problem = Some(trouble),
        }
    }

    /// The state that continues with the rest of each group, above all known numbers. A group
    /// without a known configuration begins later as usual.
    fn state_anew(
        &self,
        now: Instant,
        recovery: &Recovery,
    ) -> Result<(State, Vec<Recovered>), Trouble> {
        let mut state = self.state.clone();
        state.version += 1;
        let rack = self.rack_meant(recovery)?;
        let (mut recovered, mut newest_switch) = (Vec::new(), None);
        let mut unheard = Vec::new();
        for group in &self.groups {
            let highest = group.highest.switch_id;
            state.last_switch_id = state.last_switch_id.max(highest);
            let gone_of = |group: &Group| -> Vec<u16> {
                let own = recovery.gone.iter().filter(|(id, _)| *id == group.id());
                own.map(|(_, node)| *node).collect()
            };
            let trouble = |problem| Trouble::of(group.id(), problem);
            let Some(newest) = self.newest(group, rack, recovery).map_err(trouble)? else {
                state.groups.retain(|g| g.config.group != group.id());
                if group.nodes.is_empty() {
                    unheard.push(group);
                }
                continue;
            };
            let left = group.setup.rules().left(&self.look(now, group), newest, &gone_of(group));
            let left = left.map_err(trouble)?;
            let epoch = anew(group, newest).map_err(trouble)?;
            let is_left = |node: &u16| left.members.iter().any(|m| m.node == *node);
            let gone = newest.members.iter().map(|m| m.node).filter(|node| !is_left(node));
            recovered.push(Recovered {
                group: group.id(),
                heard_epoch: newest.epoch,
                epoch,
                members: left.members.iter().map(|m| m.node).collect(),
                lost_behind: left.lost_behind,
                gone: gone.filter(|node| gone_of(group).contains(node)).collect(),
            });
            state.rack = newest.rack;
            state.last_switch_id = state.last_switch_id.max(newest.switch_id);
            let switch = (newest.switch_id, newest.switch_incarnation, newest.switch);
            if group.setup.rules().needs_switch() {
                newest_switch = newest_switch.max(Some(switch));
            }
            let (kind, program) = group.setup.rules().template();
            let config = Config {
                epoch,
                members: left.members,
                joining: Vec::new(),
                kind,
                program,
                ..newest.clone()
            };
            let storages = group.storages(self.state.group(group.id()), &config);
            state.put(GroupState { config, caught_up: left.caught_up, storages });
        }
        if recovered.is_empty() {
            return Err(Problem::NothingHeard.into());
        }
        // Chains alone are of no switch.
        let (switch_id, active, switch) = newest_switch.unwrap_or_default();
        for group in unheard {
            // It begins, or is rebuilt, once a node registers; the other groups continue.
            let (kind, program) = group.setup.rules().template();
            let config = Config {
                epoch: NUMBERS_SPARED,
                group: group.id(),
                rack: state.rack,
                switch_id,
                switch_incarnation: active,
                switch,
                kind,
                program,
                members: Vec::new(),
                joining: Vec::new(),
            };
            state.put(GroupState { config, caught_up: Vec::new(), storages: Vec::new() });
        }
        state.switch_incarnation = active;
        state.retired_switches.retain(|incarnation| *incarnation != active);
        let spared = state.last_switch_id.checked_add(NUMBERS_SPARED);
        state.last_switch_id = spared.ok_or(Problem::EpochsExhausted)?;
        Ok((state, recovered))
    }

    /// The rack whose state is rebuilt: the state's, if any node belongs to it; otherwise the only
    /// one to which nodes belong. `None` if no node has a rack.
    pub(crate) fn rack_meant(&self, recovery: &Recovery) -> Result<Option<u64>, Trouble> {
        let mut racks = recovery.newest.keys().map(|(rack, _)| *rack);
        if racks.clone().any(|rack| rack == self.state.rack) {
            return Ok(Some(self.state.rack));
        }
        let Some(first) = racks.next() else { return Ok(None) };
        match recovery.newest.iter().find(|((rack, _), _)| *rack != first) {
            Some((_, (_, addr))) => Err(Problem::TwoRacks { addr: *addr }.into()),
            None => Ok(Some(first)),
        }
    }

    /// The newest known configuration of a group: a member's, or the state's.
    fn newest<'a>(
        &'a self,
        group: &Group,
        rack: Option<u64>,
        recovery: &'a Recovery,
    ) -> Result<Option<&'a Config>, Problem> {
        let heard = rack.and_then(|rack| recovery.newest.get(&(rack, group.id())));
        let heard = heard.map(|(config, _)| config);
        let own = self.state.config(group.id());
        let own = own.filter(|c| rack.is_none_or(|rack| rack == c.rack) && !c.members.is_empty());
        // Of two with the same number, the members'.
        let newest = own.into_iter().chain(heard).max_by_key(|c| c.epoch);
        let own_nodes = group.nodes.values().filter(|n| rack.is_none_or(|rack| n.rack == rack));
        let told = own_nodes.map(|n| n.epoch).max().unwrap_or(0);
        match newest {
            // Its configuration was requested and has not arrived.
            newest if newest.map_or(0, |c| c.epoch) < told => Err(Problem::Recovering),
            newest => Ok(newest),
        }
    }
}

/// The epoch with which a group continues.
fn anew(group: &Group, newest: &Config) -> Result<u32, Problem> {
    let highest = newest.epoch.max(group.highest.epoch);
    highest.checked_add(NUMBERS_SPARED).ok_or(Problem::EpochsExhausted)
}
