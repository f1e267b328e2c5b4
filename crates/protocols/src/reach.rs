//! Which members a replica hears of: the controller is told, and takes one of two that do not hear
//! each other out of the group, for which all writes would wait otherwise.
//!
//! Members hear of each other by what they say anyway: where their logs end while an epoch opens, and
//! requests for leases and their grants from then on. A joining replica asks them.

use alloc::vec::Vec;

use concord_core::{Duration, Epoch, Instant, NodeId, Now};
use concord_engine::Engine;
use concord_wire::Sink;
use concord_wire::control::{Member, Membership, Standing};

use crate::replica::{Phase, Replica};

/// When each other member was heard of last, in the epoch in force.
#[derive(Clone, Debug, Default)]
pub(crate) struct Reach {
    heard: Vec<(u16, Option<Instant>)>,
    /// What the controller was told last.
    told: Vec<u16>,
}

impl Reach {
    /// A new epoch with these other members. They have not said anything yet; among members that is no
    /// silence, one that joins must first hear of them.
    pub(crate) fn begin<'a>(
        &mut self,
        now: Instant,
        others: impl Iterator<Item = &'a Member>,
        is_member: bool,
    ) {
        self.heard.clear();
        self.heard.extend(others.map(|m| (m.node, is_member.then_some(now))));
    }

    /// `node` said something; whether the controller was told that it does not.
    fn note(&mut self, now: Instant, node: u16) -> bool {
        let own = self.heard.iter_mut().find(|(other, _)| *other == node);
        let Some((_, heard)) = own else { return false };
        *heard = Some(now);
        self.told.contains(&node)
    }

    /// Who has said nothing for so long, to be told to the controller.
    fn unheard(&mut self, now: Instant, silent_ns: Duration) -> Vec<u16> {
        let is_silent = |heard: Option<Instant>| heard.is_none_or(|at| now.since(at) > silent_ns);
        self.told.clear();
        self.told.extend(self.heard.iter().filter(|(_, h)| is_silent(*h)).map(|(node, _)| *node));
        self.told.clone()
    }
}

impl<E: Engine> Replica<E> {
    /// A member said something in an epoch. One that was called silent is not any more, and the controller
    /// hears of that at once.
    pub(crate) fn note_heard(&mut self, now: Now, said: Option<(u32, u16)>) {
        if let Some((epoch, from)) = said
            && self.is_epoch(Epoch(epoch))
            && self.reach.note(now.instant, from)
        {
            self.next_alive = now.instant;
        }
    }

    /// Tells the controller that it lives, and all that the controller decides by.
    pub(crate) fn say_alive(&mut self, now: Now, standing: Standing, sink: &mut impl Sink) {
        if standing == Standing::Copied {
            self.held_epoch = self.epoch().0;
        }
        // Each member asks for leases three times in one: two of those were lost.
        let silent_ns = self.setup.lease_ns / 3 * 2;
        let takes_part = matches!(self.phase, Phase::Joining | Phase::Opening | Phase::Open);
        let unheard =
            if takes_part { self.reach.unheard(now.instant, silent_ns) } else { Vec::new() };
        let alive = Membership::ReplicaAlive {
            member: self.setup.me,
            sent_at: now.instant.0,
            heard: self.heard(),
            standing,
            held: self.held(),
            unheard,
        };
        self.send_control(self.setup.controller, &alive, sink);
        if self.phase == Phase::Joining {
            let (epoch, from) = (self.epoch().0, self.node().0);
            let reach = Membership::Reach { epoch, from, ask: true };
            for addr in self.members() {
                self.send_control(addr, &reach, sink);
            }
        }
    }

    fn members(&self) -> Vec<concord_wire::Addr> {
        self.config.iter().flat_map(|c| c.members.iter()).map(|m| m.addr).collect()
    }

    /// A joining replica asks whether it is heard.
    pub(crate) fn on_reach(&mut self, epoch: Epoch, from: NodeId, ask: bool, sink: &mut impl Sink) {
        let is_member = matches!(self.phase, Phase::Opening | Phase::Open);
        if ask
            && is_member
            && self.is_epoch(epoch)
            && let Some(addr) = self.joining_addr(from)
        {
            let answer = Membership::Reach { epoch: epoch.0, from: self.node().0, ask: false };
            self.send_control(addr, &answer, sink);
        }
    }
}
