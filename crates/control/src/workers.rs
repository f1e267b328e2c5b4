//! The rules of a group of workers: a worker that registers is a member until it is silent,
//! restarts or announces that it leaves. Workers hold no data, so that no epoch waits for a member.

use alloc::collections::BTreeSet;
use alloc::vec::Vec;

use concord_wire::control::{Config, GroupKind, Member, PLACES_MAX, Program, Standing};

use crate::Problem;
use crate::group::{Left, Look, Places, Rules};

/// Workers.
#[derive(Clone, Copy, Debug)]
pub struct Workers {
    /// The switch program that serves them.
    pub program: Program,
}

impl Rules for Workers {
    fn template(&self) -> (GroupKind, Program) {
        (GroupKind::Workers, self.program)
    }

    /// All registered workers, as soon as there is one. A group without workers is not a problem.
    fn founders(&self, look: &Look<'_>) -> Result<Vec<Member>, Option<Problem>> {
        let mut members = Vec::new();
        add_newcomers(look, &mut members);
        if members.is_empty() { Err(None) } else { Ok(members) }
    }

    /// Members that stay keep their places in the order; new ones follow, by node number. If no
    /// member is left, the old list stays until others register, since a configuration cannot be
    /// empty.
    fn survivors(&self, look: &Look<'_>, old: &Config) -> Places {
        let stays = |m: &&Member| look.gone(old.epoch, m).is_none();
        let mut members: Vec<Member> = old.members.iter().filter(stays).copied().collect();
        add_newcomers(look, &mut members);
        if members.is_empty() {
            members.clone_from(&old.members);
        }
        Places { members, joining: Vec::new() }
    }

    fn go_on(
        &self,
        _look: &Look<'_>,
        _old: &Config,
        _members: &[Member],
    ) -> Result<Vec<u16>, Option<Problem>> {
        Ok(Vec::new())
    }

    fn tells_switch(&self) -> bool {
        true
    }

    fn holds_data(&self) -> bool {
        false
    }

    fn problem(&self, _look: &Look<'_>, _config: &Config) -> Option<Problem> {
        None
    }

    /// The members that are heard; others register later.
    fn left(&self, look: &Look<'_>, newest: &Config, gone: &[u16]) -> Result<Left, Problem> {
        Ok(look.left_of_heard(newest, gone))
    }
}

/// Appends the workers that are heard and do not leave to those that have a place. Runs with each
/// keepalive, for hundreds of workers.
fn add_newcomers(look: &Look<'_>, members: &mut Vec<Member>) {
    let placed: BTreeSet<u16> = members.iter().map(|m| m.node).collect();
    let stay = look.nodes.values().filter(|n| n.standing != Standing::Leaving && look.is_heard(n));
    let room = PLACES_MAX.saturating_sub(members.len());
    let newcomers = stay.map(|n| n.member).filter(|m| !placed.contains(&m.node)).take(room);
    members.extend(newcomers);
}
