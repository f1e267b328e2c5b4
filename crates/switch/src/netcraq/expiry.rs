//! The end of keys whose deadline has passed.
//!
//! A deadline is in the chain's time, which is the head's: each member has it by what its
//! predecessor says and its own clock, and goes on from there if it is the head next. What it has
//! may be late, by the way of a packet, and is never early (hole N9): clocks have to run at the
//! same speed, not to show the same.
//!
//! No member ends a key by itself. Once a deadline has passed, the head's control plane sends an
//! EXPIRE into its own pipeline. That is a write like any other: its first pass reads the
//! registers, and its second deletes the key if the cell has still the version that the first saw.
//! So expiry has a version, and passes the chain (trap T12). Until it is committed the key is there
//! for all who read. A client's write that finds a key due becomes its expiry: the client asks
//! again, and no key outlives its deadline since others write it all the time.

use concord_core::machine::Deadline;
use concord_core::{Duration, Guard, Instant, MS};
use concord_wire::Addr;
use concord_wire::netcraq::{Command, Op, Outcome, Repr, Stamp, State, TTL_MAX_NS, Words};

use super::stages::{Ask, Phv};
use super::{DropReason, Leaves, NetCraq, Place, Sweep};
use crate::program::Injection;

/// The time until the head looks again at keys that it has found due, in ns.
const AGAIN_NS: Duration = MS;
/// The maximum number of keys that one look ends.
const EXPIRED_MAX: usize = 64;

/// Whether the key that a packet has read is past its deadline.
pub(super) fn is_due(phv: &Phv) -> bool {
    phv.state.is_present() && phv.deadline != 0 && phv.deadline <= phv.time
}

/// How long the key that a packet has read is to live yet, in ns; 0: without end.
pub(super) fn left_ns(phv: &Phv) -> u64 {
    match phv.deadline {
        0 => 0,
        deadline => deadline.saturating_sub(phv.time).max(1),
    }
}

/// The deadline of a key that is to live for so long; 0: none.
pub(super) fn deadline(phv: &Phv, ttl_ns: u64) -> u64 {
    match ttl_ns.min(TTL_MAX_NS) {
        0 => 0,
        ttl_ns => phv.time.saturating_add(ttl_ns),
    }
}

impl Sweep {
    /// Notes the deadline of a key that was written.
    pub(super) fn notes(&mut self, phv: &Phv) {
        if phv.deadline != 0 {
            let at = phv.at.after(phv.deadline.saturating_sub(phv.time));
            self.expire_at = self.expire_at.min(at);
        }
    }
}

impl NetCraq {
    /// Whether a member takes a key for gone before the head has numbered that: never.
    pub(super) fn ends_by_itself(&self, phv: &Phv) -> bool {
        !self.guards.on(Guard::ExpiryNumbered) && is_due(phv)
    }

    /// The deadline that goes with a version, wherever it is sent.
    pub(super) fn kept(&self, phv: &Phv) -> u64 {
        if self.guards.on(Guard::DeadlineKept) { phv.deadline } else { 0 }
    }

    /// The first pass of an expiry at the head.
    pub(super) fn on_expiry(&mut self, place: &Place, packet: Repr) -> Result<Leaves, DropReason> {
        let mut phv = self.phv(place, Ask::Look, &packet);
        self.stages.run(&mut phv);
        let is_under_way = phv.state.is_dirty() && !place.is_tail();
        let has_version = phv.state.version() < place.versions.1;
        if !is_due(&phv) || is_under_way || !has_version {
            return Err(DropReason::Settled);
        }
        Ok(NetCraq::expires(place, packet, &phv))
    }

    /// Sends a packet round that has found a key due: its second pass deletes the key.
    pub(super) fn expires(place: &Place, packet: Repr, phv: &Phv) -> Leaves {
        let expiry = Repr {
            group: packet.group,
            from: place.node,
            epoch: place.epoch,
            command: Command::Del,
            name: phv.name,
            state: State::deleted(place.next(phv.state.version())),
            ..Repr::new(Op::Expire, packet.cell, packet.words)
        };
        Leaves::Round(expiry, phv.state)
    }

    /// After the second pass: a new version without a key goes down the chain, for no client.
    pub(super) fn on_expired(
        &mut self,
        place: &Place,
        packet: Repr,
        phv: &Phv,
    ) -> Result<Leaves, DropReason> {
        if !phv.has_state {
            return Err(DropReason::Settled);
        }
        self.counters.expired += 1;
        if place.is_tail() {
            return Err(DropReason::Consumed);
        }
        let (has_content, outcome, value) = (true, Outcome::Done, Words::default());
        let update = Repr { has_content, outcome, value, time: phv.time, ..packet };
        let update = Repr { client: Addr::default(), stamp: Stamp(0), ..update };
        Ok(NetCraq::to_member(place, self.next(place), Repr { op: Op::Update, ..update }))
    }

    /// The next packet that ends a key, at the head.
    pub(super) fn next_expiry(&mut self, now: Instant) -> Option<Injection> {
        if !self.place.as_ref().is_some_and(Place::is_head) {
            return None;
        }
        if self.sweep.expired.is_empty() && now >= self.sweep.expire_at {
            self.look_for_due(now);
        }
        let cell = self.sweep.expired.pop()?;
        Some(self.injection(Op::Expire, cell, State(0)))
    }

    /// Looks for keys whose deadlines have passed, and for the next deadline.
    fn look_for_due(&mut self, now: Instant) {
        let time = self.stages.time(now);
        let mut expire_at = Instant::NEVER;
        self.sweep.expired.clear();
        for cell in 0..self.layout.cells {
            let deadline = self.stages.peek_deadline(cell);
            if deadline == 0 || !self.stages.peek_state(cell).is_present() {
                continue;
            }
            let is_due = deadline <= time;
            let wait_ns = if is_due { AGAIN_NS } else { deadline - time };
            expire_at = expire_at.min(now.after(wait_ns));
            if is_due && self.sweep.expired.len() < EXPIRED_MAX {
                self.sweep.expired.push(cell);
            }
        }
        self.sweep.expire_at = expire_at;
    }

    /// When the head is to look for such keys.
    pub(super) fn next_look(&self) -> Deadline {
        let leads = self.place.as_ref().is_some_and(|place| place.is_open && place.is_head());
        match (leads, self.sweep.expired.is_empty()) {
            (false, _) => Deadline::NONE,
            (true, true) => Deadline { at: self.sweep.expire_at, reason: "a key's deadline" },
            (true, false) => Deadline { at: Instant(0), reason: "keys past their deadlines" },
        }
    }
}
