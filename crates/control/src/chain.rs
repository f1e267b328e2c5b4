//! A group of switches that hold the data themselves: a chain, the head first. Its members are
//! switches, so that it needs no switch of the rack, and a new one there makes no epoch here.
//!
//! Members are those that were there at first; whoever is silent, has started again, says that it
//! goes, or is not heard by the others, loses its place, and while the chain is shorter than it
//! should be, a switch that is there and has none is let in: it copies from the tail, and is the
//! tail in the epoch after that. Nothing is on a disk: what all members held is lost with the last
//! one that has all of it.

use alloc::vec::Vec;

use concord_core::{Duration, Guard, Instant, MS};
use concord_wire::control::{Config, GroupKind, Member, Program, Standing};
use concord_wire::netcraq::CHAIN_NUMBER_MAX;

use crate::Problem;
use crate::group::{Left, Look, Places, Rules};
use crate::replicas::{cut_off, has_copied, is_caught_up, says_caught_up};

/// Most switches of a chain.
pub const CHAIN_MAX: usize = 8;

/// A chain of switches.
#[derive(Clone, Debug)]
pub struct Chain {
    /// Every switch that may have a place, in order: the first ones found the chain, head first,
    /// the others are spares.
    pub switches: Vec<u16>,
    /// How long the chain is, as long as there are so many: 1 to [`CHAIN_MAX`].
    pub length: usize,
    /// A member that is silent for so long is removed, in ns.
    pub failure_ns: Duration,
}

impl Chain {
    /// Time until a silent member is removed, where nothing else is said.
    pub const FAILURE_NS: Duration = 300 * MS;

    /// A chain of all these switches, the first one its head.
    #[must_use]
    pub fn new(switches: Vec<u16>) -> Chain {
        let length = switches.len().clamp(1, CHAIN_MAX);
        Chain { switches, length, failure_ns: Chain::FAILURE_NS }
    }

    fn length(&self) -> usize {
        self.length.clamp(1, CHAIN_MAX)
    }
}

impl Rules for Chain {
    fn template(&self) -> (GroupKind, Program) {
        (GroupKind::Switches, Program::NetCraq)
    }

    /// The first ones, once all of them are there.
    fn founders(&self, look: &Look<'_>) -> Result<Vec<Member>, Option<Problem>> {
        let founders = &self.switches[..self.length().min(self.switches.len())];
        let stays = |node: &u16| {
            let node = look.nodes.get(node).filter(|n| n.standing != Standing::Leaving)?;
            look.is_heard(node).then_some(node.member)
        };
        let mut missing = founders.iter().filter(|node| stays(node).is_none());
        if let Some(node) = missing.next() {
            let others = u16::try_from(missing.count()).unwrap_or(u16::MAX);
            return Err(Some(Problem::WaitsForSwitches { node: *node, others }));
        }
        Ok(founders.iter().filter_map(stays).collect())
    }

    fn survivors(&self, look: &Look<'_>, old: &Config) -> Places {
        let keeps_place = look.keep_their_places(old);
        let stays = |m: &&Member| keeps_place(m);
        let mut members: Vec<Member> = old.members.iter().filter(stays).copied().collect();
        let mut joining: Vec<Member> = old.joining.iter().filter(stays).copied().collect();
        if members.is_empty() {
            return Places { members, joining };
        }
        if let Some(node) = cut_off(look, old, &members) {
            members.retain(|m| m.node != node);
        }
        let room = self.length().saturating_sub(members.len());
        let copied: Vec<Member> = joining
            .iter()
            .filter(|m| has_copied(look, old, &members, m))
            .take(room)
            .copied()
            .collect();
        joining.retain(|m| !copied.contains(m));
        members.extend(copied);
        // One change at a time: the last must be over before others come. Nor does anybody copy
        // for whom there is no place.
        let room = self.length().saturating_sub(members.len());
        joining.truncate(room);
        if look.is_open_everywhere(old) {
            for node in self.switches.iter().filter_map(|node| look.nodes.get(node)) {
                let known = members.iter().chain(&joining).any(|m| m.node == node.member.node);
                let asks = node.standing == Standing::Out && node.epoch == old.epoch;
                if asks && look.is_heard(node) && !known && joining.len() < room {
                    joining.push(node.member);
                }
            }
        }
        Places { members, joining }
    }

    /// With whoever has all that was committed, once all who stay were heard.
    fn go_on(
        &self,
        look: &Look<'_>,
        old: &Config,
        members: &[Member],
    ) -> Result<Vec<u16>, Option<Problem>> {
        let caught_up = members.iter().filter(|m| is_caught_up(look, old, m));
        let caught_up: Vec<u16> = caught_up.map(|m| m.node).collect();
        if caught_up.is_empty() {
            return Err(Some(Problem::ChainLost));
        }
        let since = look.hearing.since.unwrap_or(Instant(0)).max(look.back_since);
        let heard = |m: &Member| {
            let own = look.nodes.get(&m.node).filter(|n| n.heard_at >= since);
            own.is_some_and(|n| n.member.incarnation == m.incarnation)
        };
        let has_heard = members.iter().all(heard) || !look.guards.on(Guard::Deaf);
        if has_heard { Ok(caught_up) } else { Err(None) }
    }

    fn needs_switch(&self) -> bool {
        false
    }

    fn takes_number(&self, switch_id: u32) -> bool {
        switch_id <= CHAIN_NUMBER_MAX
    }

    fn failure_ns(&self) -> Option<Duration> {
        Some(self.failure_ns)
    }

    fn tells_switch(&self) -> bool {
        false
    }

    fn holds_data(&self) -> bool {
        true
    }

    fn problem(&self, look: &Look<'_>, config: &Config) -> Option<Problem> {
        let is_lost = !config.members.is_empty()
            && config.members.iter().all(|m| look.gone(config.epoch, m).is_some());
        is_lost.then_some(Problem::ChainLost)
    }

    /// Every member that is not said to be gone has to be there. Those that have started again hold
    /// nothing.
    fn left(&self, look: &Look<'_>, newest: &Config, gone: &[u16]) -> Result<Left, Problem> {
        let heard = |m: &Member| look.nodes.get(&m.node).filter(|n| look.is_heard(n));
        let mut missing = newest.members.iter().filter(|m| heard(m).is_none());
        if let Some(missing) = missing.find(|m| !gone.contains(&m.node)) {
            return Err(Problem::NotHeard { node: Some(missing.node), epoch: newest.epoch });
        }
        let stays = |m: &&Member| {
            heard(m).is_some_and(|n| n.member == **m && n.standing != Standing::Leaving)
        };
        let members: Vec<Member> = newest.members.iter().filter(stays).copied().collect();
        let has_all = |m: &&Member| heard(m).is_some_and(says_caught_up);
        let caught_up: Vec<u16> = members.iter().filter(has_all).map(|m| m.node).collect();
        if caught_up.is_empty() {
            return Err(Problem::ChainLost);
        }
        Ok(Left { members, caught_up, lost_behind: None })
    }
}
