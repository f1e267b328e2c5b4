//! A state made anew from what the members have heard: the file was lost, or all members of the
//! configuration in force are.
//!
//! Safe by itself only if every member of the newest configuration that anybody has heard of is heard:
//! none of them has heard of a later one, so none was opened, and nothing acknowledged there. Where one
//! is gone for good the operator says so, and may lose what only it had acknowledged.

use alloc::vec::Vec;
use core::fmt;

use concord_core::{Duration, Instant};
use concord_wire::Sink;
use concord_wire::control::{Config, Held, Member, Membership, Message as _, Standing};

use crate::{Controller, Problem, Replica, State};

/// Numbers that are left out, for those of a state that only a lost node has heard of (trap T3).
const NUMBERS_SPARED: u32 = 1_024;

/// What the operator says for the recovery.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recover {
    /// Replicas that are gone for good, with their data.
    pub gone: Vec<u16>,
}

/// While the state is made anew.
#[derive(Clone, Debug)]
pub(crate) struct Recovery {
    gone: Vec<u16>,
    /// The newest configuration that a replica gave.
    newest: Option<Config>,
}

impl Recovery {
    pub(crate) fn new(asked: Recover) -> Recovery {
        Recovery { gone: asked.gone, newest: None }
    }
}

/// How the state was made anew; for a person to read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recovered {
    /// The newest epoch that was heard of.
    pub heard_epoch: u32,
    /// The epoch to go on with.
    pub epoch: u32,
    /// Its members.
    pub members: Vec<u16>,
    /// Where no member with all the data was left: the data of the one that was, with what was
    /// acknowledged later lost.
    pub lost_behind: Option<Held>,
    /// Members that were said to be gone.
    pub gone: Vec<u16>,
}

impl fmt::Display for Recovered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
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
    /// A replica's configuration.
    pub(crate) fn on_config(&mut self, config: Config) {
        let Some(recovery) = &mut self.recovery else {
            self.count.unexpected += 1;
            return;
        };
        if recovery.newest.as_ref().is_none_or(|newest| newest.epoch < config.epoch) {
            recovery.newest = Some(config);
        }
    }

    /// Asks all replicas for their configurations.
    pub(crate) fn ask_configs(&mut self, sink: &mut impl Sink) {
        if self.recovery.is_none() {
            return;
        }
        Membership::WhoIsWho { client: self.setup.addr }.emit(&mut self.scratch);
        for replica in self.replicas.values().filter(|r| r.epoch > 0) {
            sink.send(replica.member.addr, &self.scratch);
        }
    }

    /// How long it listens before it makes a state: everybody who is there was heard by then.
    fn listen_ns(&self) -> Duration {
        2 * self.setup.failure_ns
    }

    /// Makes the state anew, once that can be done.
    pub(crate) fn try_recover(&mut self, now: Instant) {
        let Some(recovery) = self.recovery.clone() else { return };
        let listened = self.hearing.since.is_some_and(|at| now.since(at) >= self.listen_ns());
        if !listened || self.is_deaf(now) {
            self.problem = Some(Problem::Recovering);
            return;
        }
        let own = self.state.config.clone();
        let rack = recovery.newest.as_ref().map(|c| c.rack);
        let own = own.filter(|c| rack.is_none_or(|rack| rack == c.rack) && !c.members.is_empty());
        // Of two of the same number the members', who have it.
        let newest = own.into_iter().chain(recovery.newest).max_by_key(|c| c.epoch);
        let Some(newest) = newest else {
            self.problem = Some(Problem::NothingHeard);
            return;
        };
        if newest.epoch < self.replicas.values().map(|r| r.epoch).max().unwrap_or(0) {
            // Its configuration was asked for, and is yet to come.
            self.problem = Some(Problem::Recovering);
            return;
        }
        match self.members_left(now, &newest, &recovery.gone) {
            Ok((members, whole, lost_behind)) => {
                let heard_epoch = newest.epoch;
                let members_named = members.iter().map(|m| m.node).collect();
                let gone = newest.members.iter().map(|m| m.node);
                let gone = gone.filter(|node| recovery.gone.contains(node)).collect();
                let Some(state) = self.state_anew(newest, members, whole) else {
                    self.problem = Some(Problem::EpochsExhausted);
                    return;
                };
                let epoch = state.config.as_ref().map_or(0, |c| c.epoch);
                let members = members_named;
                self.recovered = Some(Recovered { heard_epoch, epoch, members, lost_behind, gone });
                self.proposed = Some(state);
                self.handed_out = false;
            }
            Err(problem) => self.problem = Some(problem),
        }
    }

    /// With whom to go on, and who of them is whole; and what they have, if that is not all.
    #[expect(clippy::type_complexity, reason = "its only caller takes it apart")]
    fn members_left(
        &self,
        now: Instant,
        newest: &Config,
        gone: &[u16],
    ) -> Result<(Vec<Member>, Vec<u16>, Option<Held>), Problem> {
        let heard = |m: &Member| {
            let own = self.replicas.get(&m.node);
            own.filter(|r| now.since(r.heard_at) <= self.setup.failure_ns)
        };
        let is_gone = |m: &Member| gone.contains(&m.node);
        if self.setup.protocol.is_quorum() {
            // The group stays; a majority has heard of every switch that it accepts.
            let count = newest.members.iter().filter(|m| heard(m).is_some()).count();
            if count <= newest.members.len() / 2 {
                return Err(Problem::NotHeard { node: None, epoch: newest.epoch });
            }
            let whole = newest.members.iter().map(|m| m.node).collect();
            return Ok((newest.members.clone(), whole, None));
        }
        let missing = newest.members.iter().find(|m| !is_gone(m) && heard(m).is_none());
        if let Some(missing) = missing {
            return Err(Problem::NotHeard { node: Some(missing.node), epoch: newest.epoch });
        }
        // Another life of a node has nothing of what the one before had.
        let stays = |m: &&Member| {
            !is_gone(m)
                && heard(m).is_some_and(|r| {
                    r.member.incarnation == m.incarnation && r.standing != Standing::Leaving
                })
        };
        let kept: Vec<Member> = newest.members.iter().filter(stays).copied().collect();
        let is_whole = |m: &&Member| {
            let whole = |r: &Replica| {
                matches!(
                    r.standing,
                    Standing::Open { whole: true } | Standing::Opening { whole: true }
                )
            };
            heard(m).is_some_and(whole)
        };
        let whole: Vec<u16> = kept.iter().filter(is_whole).map(|m| m.node).collect();
        if !whole.is_empty() {
            return Ok((kept, whole, None));
        }
        let rest = self.replicas.values().filter(|r| !is_gone(&r.member));
        let rest = rest.filter(|r| heard(&r.member).is_some() && r.held.epoch > 0);
        let best = rest.max_by_key(|r| r.held).ok_or(Problem::NothingLeft)?;
        Ok((alloc::vec![best.member], alloc::vec![best.member.node], Some(best.held)))
    }

    /// The state that goes on with these members, above all that was heard of.
    fn state_anew(&self, newest: Config, members: Vec<Member>, whole: Vec<u16>) -> Option<State> {
        let highest = &self.hearing.highest;
        let epoch = newest.epoch.max(highest.epoch).checked_add(NUMBERS_SPARED)?;
        let switch_id = highest.switch_id.max(newest.switch_id).max(self.state.last_switch_id);
        let mut state = self.state.clone();
        state.version += 1;
        state.whole = whole;
        state.switch_incarnation = newest.switch_incarnation;
        state.retired_switches.retain(|life| *life != newest.switch_incarnation);
        state.last_switch_id = switch_id.checked_add(NUMBERS_SPARED)?;
        let (protocol, program) = (self.setup.protocol, self.setup.program);
        state.config =
            Some(Config { epoch, members, joining: Vec::new(), protocol, program, ..newest });
        Some(state)
    }
}
