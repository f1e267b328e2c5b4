//! Invariants that are checked after every step, for the replica that took it, before others
//! receive its packets.
//!
//! - Records that two replicas call committed at one position are equal (by the running hash),
//!   whatever their epochs or views; and members of one epoch have equal records at one position.
//! - A replica that has caught up in an epoch, or leads a view, has everything that was committed
//!   in an earlier one.
//! - No lease of an earlier epoch (or view) is valid once every member has opened a later one (or a
//!   later one has begun).
//! - Epochs, the ends of logs, and execution and commit points never decrease in one incarnation,
//!   unless it copies the state anew.
//! - A switch's last-committed point is never ahead of what is committed, and a read that it makes
//!   fast is of an object without a pending write (Algorithm 1).
//! - No replica leaves for good that has everything and whose engine was not lost.

use concord_core::{Seq, SwitchId};
use concord_protocols::Phase;
use concord_wire::control::Member;
use concord_wire::{Addr, Flags, Op, Packet};

use super::group::{Group, Role};
use super::watch::{Seen, SeenSwitch, is_ordered, note_end, replica_is_vr, seen};
use crate::world::{REPLICAS, SWITCH};

impl Group {
    /// Checks a replica after it has handled an input.
    pub(super) fn look(&mut self, node: usize) -> Option<String> {
        let replica = self.slots[node].replica()?;
        let before = self.watch.replicas[node - REPLICAS];
        let now = seen(replica, self.now(node));
        let is_same = before.incarnation == now.incarnation;
        let before = if is_same { before } else { Seen::default() };
        let is_to_leave = self.slots[node].engine_lost || self.slots[node].retires;
        if replica.phase() == Phase::Left && !is_to_leave {
            // A member of an epoch that lacks something may be told to copy anew.
            if replica_is_vr(replica) || (is_same && before.is_caught_up) {
                return Some("it left, and its engine was not lost".into());
            }
        }
        if let Some(what) = self.holds_old_lease(node) {
            return Some(what);
        }
        if before == now {
            return None;
        }
        let gives_up = now.is_copying && now.executed <= before.executed;
        let fell = now.executed < before.executed
            || now.committed < before.committed
            || (now.end < before.end && !replica_is_vr(replica));
        if now.epoch < before.epoch || (fell && !gives_up) {
            return Some(format!("it went back from {before:?} to {now:?}"));
        }
        if !is_ordered(replica, &now) {
            return Some(format!("executed, committed and the log's end disagree: {now:?}"));
        }
        let from = if gives_up { 0 } else { before.committed };
        let opens = now.is_caught_up && (!before.is_caught_up || before.epoch != now.epoch);
        let (slots, watch) = (&self.slots, &mut self.watch);
        let replica = slots[node].replica()?;
        // With a quorum protocol, another view may move a write to another position until it is
        // committed.
        let noted = if replica_is_vr(replica) {
            (from, now.committed)
        } else {
            (before.end.min(now.end).max(from), now.end)
        };
        watch.note_positions(replica, noted.0, noted.1);
        let wrong = watch
            .note_committed(replica, now.epoch, from, now.committed)
            .or_else(|| opens.then(|| watch.lacks(replica, now.epoch)).flatten())
            .or_else(|| note_end(watch, replica, &now));
        self.watch.replicas[node - REPLICAS] = now;
        wrong.or_else(|| self.note_opened(node, &now, &before))
    }

    /// Checks a switch after it has handled an input, with the packets that it is about to send.
    pub(super) fn look_at_switch(
        &mut self,
        node: usize,
        sent: &[(Addr, Vec<u8>)],
    ) -> Option<String> {
        let Role::Switch(switch) = &self.slots[node].role else { return None };
        let program = switch.program();
        let id = program.switch_id().0;
        let last_committed = Seq::new(SwitchId(id), program.view().last_committed);
        let seen = &mut self.watch.switches[usize::from(node != SWITCH)];
        if id != seen.id {
            *seen = SeenSwitch { id, ..SeenSwitch::default() };
        }
        let committed = self.watch.committed_in.iter().map(|(_, position)| *position).max();
        let committed = committed.unwrap_or(0);
        let position = self.watch.positions.get(&last_committed.to_u64());
        if let Some(position) = position.filter(|position| **position > committed) {
            return Some(format!(
                "its last-committed point {last_committed} is record {position}; {committed} are \
                 committed"
            ));
        }
        for (_, bytes) in sent {
            let Ok(packet) = Packet::parse(bytes) else { continue };
            let repr = packet.repr();
            if repr.op == Op::Write && repr.seq.is_some() && !repr.flags.has(Flags::NOOP) {
                seen.sequenced.insert(repr.obj_id, repr.seq.counter);
            }
            let newest = seen.sequenced.get(&repr.obj_id).copied().unwrap_or(0);
            let is_fast = repr.op == Op::Read && repr.flags.has(Flags::FAST);
            if is_fast && newest > repr.last_committed.counter {
                return Some(format!(
                    "a read is fast at {} though write {newest} of its object is in flight",
                    repr.last_committed
                ));
            }
        }
        None
    }

    /// A lease that its holder must not have any more, if there is one.
    fn holds_old_lease(&self, node: usize) -> Option<String> {
        let replica = self.slots[node].replica()?;
        if !replica.holds_lease(self.now(node)) || replica.phase() != Phase::Open {
            return None;
        }
        let epoch = self.epoch_of(node);
        if replica_is_vr(replica) {
            let begun = self.watch.begun;
            return (epoch < begun)
                .then(|| format!("it holds a lease in view {epoch}, and view {begun} has begun"));
        }
        let opened = self.watch.opened.as_ref()?;
        let me = replica.member();
        let is_me = |m: &Member| m.node == me.node && m.incarnation == me.incarnation;
        (epoch < opened.epoch && !opened.members.iter().any(is_me)).then(|| {
            format!(
                "it holds a lease in epoch {epoch}, and epoch {} is open without it",
                opened.epoch
            )
        })
    }

    /// Notes that an epoch is open, or a view begins, and checks that no replica holds a lease of
    /// an earlier one.
    fn note_opened(&mut self, node: usize, now: &Seen, before: &Seen) -> Option<String> {
        let replica = self.slots[node].replica()?;
        if replica_is_vr(replica) {
            if !now.is_caught_up || now.epoch <= self.watch.begun {
                return None;
            }
            self.watch.begun = now.epoch;
        } else {
            let config = replica.config()?;
            let is_news = now.is_open && (!before.is_open || before.epoch != now.epoch);
            let is_newer = self.watch.opened.as_ref().is_none_or(|o| o.epoch < config.epoch);
            let is_open = |m: &Member| {
                let seen = &self.watch.replicas[usize::from(m.node)];
                seen.incarnation == m.incarnation && seen.is_open && seen.epoch == config.epoch
            };
            if !is_news || !is_newer || !config.members.iter().all(is_open) {
                return None;
            }
            self.watch.opened = Some(config.clone());
        }
        let replicas = REPLICAS..REPLICAS + self.plan.replicas;
        replicas.into_iter().find_map(|other| {
            self.holds_old_lease(other).map(|what| format!("{}: {what}", self.name_of(other)))
        })
    }
}
