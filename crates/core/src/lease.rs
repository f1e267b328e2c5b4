//! Leases among the members of an epoch (traps T2, T8): a replica that answers a read alone holds
//! one, granted by every other member, which counts from the time of its request. The controller
//! takes no part, so that the data path works without it. Independent of protocol and store: any
//! system whose nodes answer alone has a [`Leases`] and sends its requests and grants.

use alloc::vec::Vec;

use crate::{Duration, Guard, Guards, Instant, NodeId};

/// The leases that a replica holds and has granted.
#[derive(Clone, Debug)]
pub struct Leases {
    duration_ns: Duration,
    /// When each other member's last grant was asked for.
    held: Vec<(NodeId, Option<Instant>)>,
    /// The grants to each incarnation of each node; kept across epochs.
    granted: Vec<Grant>,
    next_request: Instant,
}

/// A lease that was granted.
#[derive(Clone, Copy, Debug)]
struct Grant {
    node: NodeId,
    /// The incarnation that may use it, and so may give it back.
    holder: u64,
    /// Until when it may be used.
    until: Instant,
}

impl Leases {
    /// Leases of `duration_ns`; asked for three times in that time.
    #[must_use]
    pub fn new(duration_ns: Duration) -> Leases {
        Leases { duration_ns, held: Vec::new(), granted: Vec::new(), next_request: Instant::NEVER }
    }

    /// A new epoch opens with these other members: nothing is held, what was granted stays.
    pub fn open(&mut self, now: Instant, others: impl Iterator<Item = NodeId>) {
        self.held.clear();
        self.held.extend(others.map(|node| (node, None)));
        self.next_request = now;
    }

    /// The epoch is left: nothing is held and nothing asked for.
    pub fn close(&mut self) {
        self.held.clear();
        self.next_request = Instant::NEVER;
    }

    /// When to ask again.
    #[must_use]
    pub fn next_request(&self) -> Instant {
        self.next_request
    }

    /// Asks now.
    pub fn on_requested(&mut self, now: Instant) {
        self.next_request = now.after(self.duration_ns / 3);
    }

    /// `from` granted what was asked for at `asked_at`. A time in the future is of a clock that has
    /// been reset since: CLOCK_BOOTTIME begins anew when the host reboots.
    pub fn on_grant(&mut self, now: Instant, from: NodeId, asked_at: Instant) {
        if asked_at > now {
            return;
        }
        if let Some((_, held)) = self.held.iter_mut().find(|(node, _)| *node == from) {
            *held = Some(held.map_or(asked_at, |h| h.max(asked_at)));
        }
    }

    /// Grants incarnation `holder` of `node` a lease now.
    pub fn grant(&mut self, now: Instant, node: NodeId, holder: u64) {
        let until = now.after(self.duration_ns);
        let mut known = self.granted.iter_mut();
        if let Some(grant) = known.find(|g| g.node == node && g.holder == holder) {
            grant.until = grant.until.max(until);
            return;
        }
        // As many stay as there are incarnations that asked within one lease.
        self.granted.retain(|g| now < g.until);
        self.granted.push(Grant { node, holder, until });
    }

    /// Notes that incarnation `holder` of `node` holds no lease any more, and never will again, so
    /// that no member has to wait for its end. Another incarnation may hold one.
    pub fn release(&mut self, node: NodeId, holder: u64, guards: Guards) {
        let is_its_own = |g: &Grant| g.holder == holder || !guards.on(Guard::Release);
        self.granted.retain(|g| g.node != node || !is_its_own(g));
    }

    /// Whether this replica may answer alone at `now`. The holder counts a tenth less than the
    /// granter, so that clocks may drift by as much.
    #[must_use]
    pub fn is_held(&self, now: Instant) -> bool {
        let use_ns = self.duration_ns - self.duration_ns / 10;
        self.held.iter().all(|(_, asked)| asked.is_some_and(|a| now < a.after(use_ns)))
    }

    /// Until when this replica may answer alone, as far as it knows: [`Instant::NEVER`] if it is
    /// the only member. For a data plane, which compares it with a packet's time.
    #[must_use]
    pub fn held_until(&self) -> Instant {
        let use_ns = self.duration_ns - self.duration_ns / 10;
        let of = |asked: &Option<Instant>| asked.map_or(Instant(0), |a| a.after(use_ns));
        self.held.iter().map(|(_, asked)| of(asked)).min().unwrap_or(Instant::NEVER)
    }

    /// The number of other members, among those that count, whose grants are valid at `now`. If a
    /// majority decides, enough are so many that any quorum has one of them, or the holder.
    #[must_use]
    pub fn held_of(&self, now: Instant, counts: impl Fn(NodeId) -> bool) -> usize {
        let use_ns = self.duration_ns - self.duration_ns / 10;
        let held = self.held.iter().filter(|(node, _)| counts(*node));
        held.filter(|(_, asked)| asked.is_some_and(|a| now < a.after(use_ns))).count()
    }

    /// The newest time such that so many of the other members that count have granted what was
    /// asked for then, or later: they were members of this epoch after that. [`Instant::NEVER`] if
    /// none has to.
    #[must_use]
    pub fn confirmed_by(&self, count: usize, counts: impl Fn(NodeId) -> bool) -> Option<Instant> {
        if count == 0 {
            return Some(Instant::NEVER);
        }
        let held = self.held.iter().filter(|(node, _)| counts(*node));
        let mut asked: Vec<Instant> = held.filter_map(|(_, asked)| *asked).collect();
        asked.sort_unstable();
        asked.len().checked_sub(count).map(|index| asked[index])
    }

    /// Until when a node that is not in `members` may still answer alone.
    #[must_use]
    pub fn others_until(&self, is_member: impl Fn(NodeId) -> bool) -> Instant {
        let outside = self.granted.iter().filter(|g| !is_member(g.node));
        outside.map(|g| g.until).max().unwrap_or(Instant(0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A lease needs every other member and counts from when it was asked for.
    #[test]
    fn t2_lease_needs_all_members_and_counts_from_the_request() {
        let mut l = Leases::new(100);
        l.open(Instant(0), [NodeId(2), NodeId(3)].into_iter());
        l.on_grant(Instant(20), NodeId(2), Instant(10));
        assert!(!l.is_held(Instant(20)));
        l.on_grant(Instant(20), NodeId(3), Instant(5));
        assert!(l.is_held(Instant(94)));
        assert!(!l.is_held(Instant(95)));
        assert_eq!(l.held_until(), Instant(95));
        l.on_grant(Instant(95), NodeId(9), Instant(50));
        assert!(!l.is_held(Instant(95)));
    }

    /// A grant from the future is of a clock that was reset and counts nothing.
    #[test]
    fn bug_15_19_future_grant_counts_nothing() {
        let mut l = Leases::new(100);
        l.open(Instant(0), [NodeId(2)].into_iter());
        l.on_grant(Instant(20), NodeId(2), Instant(1_000));
        assert!(!l.is_held(Instant(20)));
        assert_eq!(l.held_of(Instant(20), |_| true), 0);
        assert!(!l.is_held(Instant(1_050)), "nor when its time has come");
        l.on_grant(Instant(30), NodeId(2), Instant(25));
        assert!(l.is_held(Instant(30)));
    }

    #[test]
    fn t2_a_granter_knows_how_long_a_removed_member_may_answer() {
        let mut l = Leases::new(100);
        l.grant(Instant(7), NodeId(3), 30);
        l.grant(Instant(9), NodeId(2), 20);
        assert_eq!(l.others_until(|n| n == NodeId(2)), Instant(107));
        l.open(Instant(20), [NodeId(2)].into_iter());
        assert_eq!(l.others_until(|n| n == NodeId(2)), Instant(107));
    }

    /// A lease is given back by the incarnation that held it and by no other.
    #[test]
    fn t2_lease_is_returned_by_its_incarnation_only() {
        let mut l = Leases::new(100);
        l.grant(Instant(0), NodeId(3), 30);
        l.grant(Instant(10), NodeId(3), 31);
        l.grant(Instant(5), NodeId(2), 20);
        l.release(NodeId(3), 30, Guards::ALL);
        assert_eq!(l.others_until(|n| n == NodeId(2)), Instant(110), "the later one holds its own");
        l.release(NodeId(3), 31, Guards::ALL);
        assert_eq!(l.others_until(|n| n == NodeId(2)), Instant(0));
        assert_eq!(l.others_until(|_| false), Instant(105), "nobody spoke for another node");
    }

    #[test]
    fn alone_in_an_epoch_needs_nobody() {
        let mut l = Leases::new(100);
        l.open(Instant(0), core::iter::empty());
        assert!(l.is_held(Instant(1_000)));
        assert_eq!(l.held_until(), Instant::NEVER);
    }
}
