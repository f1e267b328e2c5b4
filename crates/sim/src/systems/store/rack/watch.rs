//! Invariants that are checked after every event, for the node that it concerned.
//!
//! - Epochs, the ends of logs, and execution and commit points never decrease in one incarnation of
//!   a node, unless it joins and copies the state anew, and committed <= executed <= end of the
//!   log. In CRAQ, which executes only what is committed, both are at most the end of the log.
//! - No two members of an epoch have different records at a position, by their running hashes.
//! - The log of a replica never extends beyond what its predecessor has executed (T15), or in CRAQ
//!   beyond the predecessor's log; after a power cut, beyond that of a predecessor that has caught
//!   up.
//! - What a replica calls committed has been executed by every living member, unless it was
//!   committed in an earlier epoch; and a replica that counts as caught up has executed all that
//!   was. In CRAQ they have it in their logs, and the tail has executed it.
//! - Once every member has opened an epoch, no node outside it holds a lease (T2).
//! - No replica leaves that has caught up and whose engine was not lost. (A new member that has
//!   never had the complete log may be told to copy anew.)
//! - No member is removed while all members are alive and nothing makes any of them look dead: the
//!   controller's own faults are no reason.
//! - The switch's last-committed point is never ahead of what is committed, and a read that it
//!   makes fast is of an object without a pending write (Algorithm 1).

use concord_control::State;
use concord_core::{ObjectId, Seq};
use concord_protocols::Phase;
use concord_wire::control::{Config, Member, Protocol};
use concord_wire::record::Record;
use concord_wire::{Flags, GroupId, Op, Packet};
use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;

use super::inject::HEARD_AGAIN_NS;
use super::watch_vr::WatchVr;
use super::{Rack, Replica, Replicas, Role};
use crate::world::{REPLICAS, SWITCH};

/// The loss rate above which four successive keepalives are lost too often, per million.
const LOSS_PPM_MAX: u64 = 10_000;

type Map<K, V> = HashMap<K, V, FxBuildHasher>;

/// The last observed state of a replica.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Seen {
    incarnation: u64,
    epoch: u32,
    is_open: bool,
    is_joining: bool,
    is_caught_up: bool,
    executed: u64,
    committed: u64,
    end: u64,
}

/// All observations so far.
#[derive(Debug)]
pub(super) struct Watch {
    replicas: Vec<Seen>,
    /// The running hash at a position of an epoch, as the first member had it.
    hashes: Map<(u32, u64), u64>,
    /// The position of every sequenced write in the log, by epoch of the record.
    pub(super) positions: Map<u64, u64>,
    /// The last record that any replica called committed, and the epoch in which it did.
    pub(super) committed: (u32, u64),
    /// The newest epoch that every member has opened.
    opened: Option<Config>,
    /// The observations of quorum protocols.
    pub(super) vr: WatchVr,
    /// The observations of the two switches.
    switches: [SeenSwitch; 2],
}

/// The last observed state of a switch.
#[derive(Debug, Default)]
struct SeenSwitch {
    id: u32,
    /// The last number that the switch gave to each object, and to all objects at once.
    sequenced: Map<ObjectId, u32>,
    sequenced_all: u32,
}

impl Watch {
    pub(super) fn new(replicas: usize) -> Watch {
        Watch {
            replicas: vec![Seen::default(); replicas],
            hashes: Map::default(),
            positions: Map::default(),
            committed: (0, 0),
            opened: None,
            vr: WatchVr::default(),
            switches: [SeenSwitch::default(), SeenSwitch::default()],
        }
    }
}

impl Rack<'_> {
    /// Checks a node after it has handled an input, before others receive its packets.
    pub(super) fn look(&mut self, node: usize) {
        if self.broken.is_some() {
            return;
        }
        let found = if self.is_replica(node) && self.plan.protocol.is_quorum() {
            self.look_at_vr(node)
        } else if self.is_replica(node) {
            self.look_at_replica(node)
        } else if self.is_switch(node) {
            self.look_at_switch(node)
        } else if self.is_false_alarm(node) {
            Some("replicas' states differ, and none was damaged".into())
        } else {
            None
        };
        if let Some(what) = found {
            let why = format!("invariant broken at {}: {what}", self.name_of(node));
            self.broken = Some(self.standing(&why));
        }
    }

    fn look_at_replica(&mut self, node: usize) -> Option<String> {
        let replica = self.slots[node].replica()?;
        let end = replica.log().end();
        let epoch = replica.config().map_or(0, |c| c.epoch);
        let now = Seen {
            incarnation: replica.member().incarnation,
            epoch,
            is_open: replica.phase() == Phase::Open,
            is_joining: replica.phase() == Phase::Joining,
            is_caught_up: matches!(replica, Replicas::Replica(replica) if replica.is_caught_up()),
            executed: replica.executed().0,
            committed: replica.committed().0,
            end: end.position,
        };
        let before = self.watch.replicas[node - REPLICAS];
        let same_incarnation = before.incarnation == now.incarnation;
        let was_caught_up = same_incarnation && before.is_caught_up;
        let is_to_leave = self.slots[node].engine_lost
            || self.slots[node].retiring_for_ns.is_some()
            || self.lacks_what_none_keeps(node, end.position);
        if replica.phase() == Phase::Left && was_caught_up && !is_to_leave {
            return Some("it left, and its engine was not lost".into());
        }
        if self.is_leased_outside(node, replica) {
            return Some("it holds a lease, and an epoch without it is open".into());
        }
        if same_incarnation && before == now {
            return None;
        }
        let wrong = went_back(&before, &now, same_incarnation)
            .or_else(|| is_disordered(replica, &now))
            .or_else(|| self.disagrees(replica, end.hash, &now))
            .or_else(|| self.overtakes(replica, &now))
            .or_else(|| self.commits_alone(replica, &now, before.committed))
            .or_else(|| self.lacks_committed(passed(replica), &now, &before));
        if wrong.is_some() {
            return wrong;
        }
        let opens = now.is_open && (!before.is_open || before.epoch != now.epoch);
        let config = replica.config().filter(|_| opens).cloned();
        self.note_records(node, if same_incarnation { before.end } else { 0 }, now.end);
        self.note_replica(node, now, end.hash);
        config.and_then(|config| self.note_opened(config))
    }

    /// Notes the numbers of the records that a replica got since it was last looked at, as far as
    /// it still has them.
    fn note_records(&mut self, node: usize, from: u64, to: u64) {
        let Some(replica) = self.slots[node].replica() else { return };
        for position in from + 1..=to {
            let record = replica.log().record(concord_core::Position(position));
            if let Some(record) = record.and_then(|r| Record::parse(r).ok())
                && record.seq.is_some()
            {
                self.watch.positions.entry(record.seq.to_u64()).or_insert(position);
            }
        }
    }

    fn note_replica(&mut self, node: usize, now: Seen, hash: u64) {
        if now.is_open {
            self.watch.hashes.insert((now.epoch, now.end), hash);
            if now.committed > self.watch.committed.1 {
                self.watch.committed = (now.epoch, now.committed);
            }
        }
        self.watch.replicas[node - REPLICAS] = now;
    }

    /// Checks that no other member of the epoch had another record at this position.
    fn disagrees(&self, replica: &Replica, hash: u64, now: &Seen) -> Option<String> {
        let known = *self.watch.hashes.get(&(now.epoch, now.end)).filter(|_| now.is_open)?;
        (known != hash).then(|| {
            format!(
                "record {} of epoch {} is not what others hold",
                now.end,
                replica_epoch(replica)
            )
        })
    }

    /// Checks that the log of a replica is a prefix of its predecessor's (T15).
    fn overtakes(&self, replica: &Replica, now: &Seen) -> Option<String> {
        let config = replica.config().filter(|_| now.is_open)?;
        let place = config.members.iter().position(|m| m.node == replica.member().node)?;
        let before = match config.protocol()? {
            Protocol::Chain | Protocol::Craq => place.checked_sub(1)?,
            Protocol::PrimaryBackup | Protocol::Vr | Protocol::NoPaxos | Protocol::Raft
                if place == 0 =>
            {
                return None;
            }
            Protocol::PrimaryBackup | Protocol::Vr | Protocol::NoPaxos | Protocol::Raft => 0,
        };
        let before = self.living(&config.members[before])?;
        let same_epoch = replica_epoch(before) == config.epoch && before.phase() == Phase::Open;
        let passed = passed(before);
        // A replica that was in the chain before, and returns, may have more than its predecessor
        // until that has caught up.
        let is_caught_up = matches!(before, Replicas::Replica(replica) if replica.is_caught_up());
        (same_epoch && is_caught_up && passed < now.end)
            .then(|| format!("it has record {}, its predecessor passed on {passed}", now.end))
    }

    /// Checks that what is committed was executed by every living member when the first replica
    /// calls it committed. Others may do so later, when a member of their epoch has discarded its
    /// log to be admitted anew, or a new one has not copied it yet and answers nothing until then.
    /// A member that returned with its disk, and has not caught up, answers nothing either, and has
    /// it in its log.
    fn commits_alone(&self, replica: &Replica, now: &Seen, before: u64) -> Option<String> {
        let is_known = now.committed <= self.watch.committed.1;
        if !now.is_open || now.committed <= before || is_known {
            return None;
        }
        let config = replica.config()?;
        let tail = config.reader().map(|m| m.node);
        let lacks = |m: &&Member| {
            self.living(m).is_some_and(|r| {
                let is_caught_up =
                    matches!(r, Replicas::Replica(replica) if replica.is_caught_up());
                let has = if self.plan.disks.is_on() && !is_caught_up {
                    r.log().end().position
                } else if tail == Some(m.node) {
                    r.executed().0
                } else {
                    passed(r)
                };
                has < now.committed
            })
        };
        config.members.iter().find(lacks).map(|m| {
            format!("it calls {} committed, replica-{} does not have it", now.committed, m.node)
        })
    }

    /// Checks that a caught-up member of a later epoch has everything that was committed before.
    fn lacks_committed(&self, has: u64, now: &Seen, before: &Seen) -> Option<String> {
        let (epoch, position) = self.watch.committed;
        let opens = now.is_caught_up && (!before.is_caught_up || before.epoch != now.epoch);
        (opens && now.epoch > epoch && has < position)
            .then(|| format!("it is whole in epoch {} with {has} of {position}", now.epoch))
    }

    fn is_leased_outside(&self, node: usize, replica: &Replica) -> bool {
        let Some(opened) = &self.watch.opened else { return false };
        let me = replica.member();
        let is_member =
            opened.members.iter().any(|m| m.node == me.node && m.incarnation == me.incarnation);
        !is_member
            && replica.phase() == Phase::Open
            && replica_epoch(replica) < opened.epoch
            && replica.holds_lease(self.world.clock(node))
    }

    /// Notes an epoch that every member has opened, and checks that no node outside it holds a
    /// lease.
    fn note_opened(&mut self, config: Config) -> Option<String> {
        let is_open = |m: &Member| {
            let replica = self.living(m);
            replica.is_some_and(|r| r.phase() == Phase::Open && replica_epoch(r) == config.epoch)
        };
        let is_newer = self.watch.opened.as_ref().is_none_or(|o| o.epoch < config.epoch);
        if !is_newer || !config.members.iter().all(is_open) {
            return None;
        }
        let epoch = config.epoch;
        self.watch.opened = Some(config);
        let outside = (0..self.replicas).map(|r| REPLICAS + r).find(|node| {
            let replica = self.slots[*node].replica();
            replica.is_some_and(|r| self.is_leased_outside(*node, r))
        });
        outside.map(|node| {
            format!("epoch {epoch} is open, and {} holds a lease outside it", self.name_of(node))
        })
    }

    /// Whether no other replica that returned with its data has the records after `end` any more:
    /// they are in its snapshot, and a replica that lags that far has to copy the state.
    fn lacks_what_none_keeps(&self, node: usize, end: u64) -> bool {
        let others = (REPLICAS..REPLICAS + self.replicas).filter(|other| *other != node);
        let mut logs = others.filter_map(|other| self.slots[other].replica().map(Replica::log));
        self.keeps(node) && logs.any(|log| log.base().position > end)
    }

    /// A member that the next state removes although all are well.
    pub(super) fn removes_healthy(&self, next: &State) -> Option<String> {
        if self.plan.loss_ppm > LOSS_PPM_MAX || self.plan.protocol.is_quorum() {
            // Several successive keepalives may be lost by chance.
            return None;
        }
        if self.healed_ns.is_some_and(|at| self.world.now_ns < at + HEARD_AGAIN_NS) {
            // Decisions about the faults are still to come.
            return None;
        }
        let old = self.config()?;
        let is_well = |m: &Member| {
            let slot = &self.slots[REPLICAS + usize::from(m.node)];
            self.living(m).is_some()
                && !slot.engine_lost
                && slot.retiring_for_ns.is_none()
                && slot.troubled_until_ns <= self.world.now_ns
        };
        if !old.members.iter().all(is_well) {
            return None;
        }
        let next = next.config(GroupId::FIRST)?;
        let gone = old.members.iter().find(|m| !next.members.contains(m))?;
        Some(format!("epoch {} takes out replica-{}, and all are well", next.epoch, gone.node))
    }

    fn look_at_switch(&mut self, node: usize) -> Option<String> {
        let Role::Switch(switch) = &self.slots[node].role else { return None };
        let program = switch.program();
        let (id, last_committed) = (program.switch_id().0, program.view().last_committed);
        let seen = &mut self.watch.switches[usize::from(node != SWITCH)];
        if id != seen.id {
            if id != 0 && id < seen.id {
                return Some(format!("its id went from {} to {id}", seen.id));
            }
            *seen = SeenSwitch { id, ..SeenSwitch::default() };
        }
        let seq = Seq::new(concord_core::SwitchId(id), last_committed);
        if let Some(position) = self.watch.positions.get(&seq.to_u64())
            && *position > self.watch.committed.1
        {
            let committed = self.watch.committed.1;
            return Some(format!(
                "its last-committed point {seq} is record {position}; {committed} are committed"
            ));
        }
        self.look_at_forwarded(node)
    }

    /// Checks the packets that the switch is about to send.
    fn look_at_forwarded(&mut self, node: usize) -> Option<String> {
        let seen = &mut self.watch.switches[usize::from(node != SWITCH)];
        for (_, bytes) in &self.outgoing.packets {
            let Ok(packet) = Packet::parse(bytes) else { continue };
            let repr = packet.repr();
            if repr.op == Op::Write && repr.seq.is_some() {
                if repr.flags.has(Flags::WILDCARD) {
                    seen.sequenced_all = repr.seq.counter;
                } else if !repr.flags.has(Flags::NOOP) {
                    // A write of several objects may be overtaken, and keep its number (NOPaxos).
                    for obj_id in repr.further.as_slice().iter().chain([&repr.obj_id]) {
                        let newest = seen.sequenced.entry(*obj_id).or_insert(0);
                        *newest = repr.seq.counter.max(*newest);
                    }
                }
            }
            if repr.op == Op::Read && repr.flags.has(Flags::FAST) {
                // Each of several objects was clean in its own pass; this was the pass of the last
                // one.
                let last = repr.further.as_slice().last().unwrap_or(&repr.obj_id);
                let own = seen.sequenced.get(last).copied().unwrap_or(0);
                let newest = own.max(seen.sequenced_all);
                if newest > repr.last_committed.counter {
                    return Some(format!(
                        "a read is fast at {} though write {newest} of its object is in flight",
                        repr.last_committed
                    ));
                }
            }
        }
        None
    }
}

fn replica_epoch(replica: &Replica) -> u32 {
    replica.config().map_or(0, |c| c.epoch)
}

fn went_back(before: &Seen, now: &Seen, same_incarnation: bool) -> Option<String> {
    let fell = now.epoch < before.epoch
        || now.executed < before.executed
        || now.committed < before.committed
        || now.end < before.end;
    if same_incarnation && fell && (now.epoch < before.epoch || !now.is_joining) {
        return Some(format!("it went back from {before:?} to {now:?}"));
    }
    None
}

/// Whether the replica runs CRAQ, which executes only what is committed.
fn is_craq(replica: &Replica) -> bool {
    replica.config().is_some_and(|c| c.protocol() == Some(Protocol::Craq))
}

/// The position up to which a replica may pass records on.
fn passed(replica: &Replica) -> u64 {
    if is_craq(replica) { replica.log().end().position } else { replica.executed().0 }
}

fn is_disordered(replica: &Replica, now: &Seen) -> Option<String> {
    let committed = if is_craq(replica) { now.end } else { now.executed };
    let is_ordered = now.committed <= committed && now.executed <= now.end;
    (!is_ordered).then(|| format!("committed <= executed <= end does not hold: {now:?}"))
}
