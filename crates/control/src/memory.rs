//! A group of memory nodes: each has a part of the memory, and copies of the others'. An epoch is
//! the life of all coherence state: whoever dies, begins anew, comes or goes, and another switch,
//! make a further one. Which blocks outlive a member its nodes find out among themselves.

use alloc::vec::Vec;

use concord_core::Guard;
use concord_wire::control::{Config, GroupKind, MEMORY_NODES_MAX, Member, Program, Standing};

use crate::Problem;
use crate::group::{Gone, Left, Look, Places, Rules};

/// Nodes of a shared memory.
#[derive(Clone, Copy, Debug)]
pub struct Memory {
    /// What the switch runs for them.
    pub program: Program,
}

impl Rules for Memory {
    fn template(&self) -> (GroupKind, Program) {
        (GroupKind::Memory, self.program)
    }

    /// Whoever is there, as soon as there is one.
    fn founders(&self, look: &Look<'_>) -> Result<Vec<Member>, Option<Problem>> {
        let mut members = Vec::new();
        add_newcomers(look, &mut members);
        if members.is_empty() { Err(None) } else { Ok(members) }
    }

    /// Who stays keeps its place in the order; who comes is behind, once all have opened the epoch
    /// in force, so that those who come one after the other do not hold it up. Who leaves is no
    /// member any more, but the members wait for what it tells them: it is among those who join.
    /// Once they all have opened an epoch it has told everything.
    fn survivors(&self, look: &Look<'_>, old: &Config) -> Places {
        let gone = |m: &Member| look.gone(old.epoch, m);
        // Members who are only silent may go on, with leases of each other, unless one of those
        // whose leases they need grants none any more (trap C9).
        let grants_none = |m: &Member| gone(m) != Some(Gone::Silent);
        let may_go_on = old.members.iter().any(grants_none);
        if !may_go_on && look.guards.on(Guard::MemorySurvivor) {
            return Places { members: old.members.clone(), joining: old.joining.clone() };
        }
        let stays = |m: &&Member| gone(m).is_none();
        let is_told = look.is_open_everywhere(old);
        let mut members: Vec<Member> = old.members.iter().filter(stays).copied().collect();
        if is_told || members != old.members {
            add_newcomers(look, &mut members);
        }
        if members.is_empty() {
            // Nobody is there to take over.
            return Places { members: old.members.clone(), joining: old.joining.clone() };
        }
        if members == old.members && is_told {
            return Places { members, joining: old.joining.clone() };
        }
        let leaves = |m: &&Member| gone(m) == Some(Gone::Leaving);
        let tells = |m: &&Member| {
            let own = look.nodes.get(&m.node).filter(|n| n.member == **m && look.is_heard(n));
            own.is_some_and(|n| n.standing == Standing::Leaving)
        };
        let telling = old.joining.iter().filter(|m| !is_told && tells(m));
        let leaving = telling.chain(old.members.iter().filter(leaves));
        let is_back = |m: &&Member| members.iter().any(|own| own.node == m.node);
        let joining = leaving.filter(|m| !is_back(m)).copied().collect();
        Places { members, joining }
    }

    /// For another switch alone it waits until all have opened the epoch in force: a memory begins
    /// with zeroes in its first epoch, and somebody has to have heard of that one.
    fn go_on(
        &self,
        look: &Look<'_>,
        old: &Config,
        members: &[Member],
    ) -> Result<Vec<u16>, Option<Problem>> {
        let is_same = members == old.members && old.joining.is_empty();
        if is_same && !look.is_open_everywhere(old) { Err(None) } else { Ok(Vec::new()) }
    }

    fn tells_switch(&self) -> bool {
        true
    }

    /// The memory is not replicated: what a member had is lost with it, and its nodes say so.
    fn holds_data(&self) -> bool {
        false
    }

    fn problem(&self, _look: &Look<'_>, _config: &Config) -> Option<Problem> {
        None
    }

    /// Those who are there; who comes later registers.
    fn left(&self, look: &Look<'_>, newest: &Config, gone: &[u16]) -> Result<Left, Problem> {
        Ok(look.left_of_heard(newest, gone))
    }
}

/// Everybody who is there, and in no epoch. One that was a member, and has not heard that others
/// went on without it, waits until it has: then it is another incarnation, which has nothing. So a
/// member was one in all epochs since it came.
fn add_newcomers(look: &Look<'_>, members: &mut Vec<Member>) {
    let is_out = |n: &&crate::group::Node| n.standing == Standing::Out && look.is_heard(n);
    for node in look.nodes.values().filter(is_out) {
        let is_placed = members.iter().any(|m| m.node == node.member.node);
        if !is_placed && members.len() < MEMORY_NODES_MAX {
            members.push(node.member);
        }
    }
}
