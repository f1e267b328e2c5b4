//! What the controller is told, and when. Which members a replica hears of is part of it: the controller
//! takes one of two that do not hear each other out of the group, for which all writes would wait
//! otherwise.
//!
//! Members hear of each other by what they say anyway: where their logs end while an epoch opens, and
//! requests for leases and their grants from then on. A joining replica asks them.

use alloc::vec::Vec;

use concord_core::{Duration, Instant};
use concord_wire::control::{Member, Standing};

/// What was told last, and what there is to tell.
#[derive(Clone, Debug)]
pub(super) struct Report {
    reach: Reach,
    /// Where it stood when the controller was told last.
    said: Option<Standing>,
    next_alive: Instant,
}

/// When each other member was heard of last, in the epoch in force.
#[derive(Clone, Debug, Default)]
struct Reach {
    heard: Vec<(u16, Option<Instant>)>,
    /// What the controller was told last.
    told: Vec<u16>,
}

impl Default for Report {
    fn default() -> Report {
        Report { reach: Reach::default(), said: None, next_alive: Instant(0) }
    }
}

impl Report {
    /// The controller is to hear something now.
    pub(super) fn hurry(&mut self, now: Instant) {
        self.next_alive = now;
    }

    /// When to tell it.
    pub(super) fn next_at(&self) -> Instant {
        self.next_alive
    }

    /// What it was told last.
    pub(super) fn said(&self) -> Option<Standing> {
        self.said
    }

    /// Whether it is to be told now where this replica stands, and again `every_ns`.
    pub(super) fn is_due(&mut self, now: Instant, standing: Standing, every_ns: Duration) -> bool {
        let is_due = now >= self.next_alive || self.said != Some(standing);
        if is_due {
            self.next_alive = now.after(every_ns);
            self.said = Some(standing);
        }
        is_due
    }

    /// A new epoch with these other members. They have not said anything yet; among members that is no
    /// silence, one that joins must first hear of them.
    pub(super) fn begin<'a>(
        &mut self,
        now: Instant,
        others: impl Iterator<Item = &'a Member>,
        is_member: bool,
    ) {
        self.reach.heard.clear();
        self.reach.heard.extend(others.map(|m| (m.node, is_member.then_some(now))));
    }

    /// `node` said something. If it was called silent, it is not any more, and the controller hears of
    /// that at once.
    pub(super) fn hear(&mut self, now: Instant, node: u16) {
        let own = self.reach.heard.iter_mut().find(|(other, _)| *other == node);
        let Some((_, heard)) = own else { return };
        *heard = Some(now);
        if self.reach.told.contains(&node) {
            self.next_alive = now;
        }
    }

    /// Who has said nothing for so long, to be told to the controller.
    pub(super) fn unheard(&mut self, now: Instant, silent_ns: Duration) -> Vec<u16> {
        let is_silent = |heard: Option<Instant>| heard.is_none_or(|at| now.since(at) > silent_ns);
        let Reach { heard, told } = &mut self.reach;
        told.clear();
        told.extend(heard.iter().filter(|(_, h)| is_silent(*h)).map(|(node, _)| *node));
        told.clone()
    }
}
