//! Invariants, looked at after every step of the replica that took it, before anybody hears of it.
//!
//! - What two replicas call committed at one position is one record (by the running hash), whatever
//!   their epochs or views; and members of one epoch hold one record at one position.
//! - Who is whole in an epoch, or leads a view, has everything that was committed in an earlier one.
//! - No lease of an older epoch (view) is valid once every member has opened a newer one (a newer one
//!   has begun).
//! - Epochs, logs, what is executed and what is committed never go back in one incarnation, unless it
//!   copies the state anew.
//! - A switch's last-committed point is never ahead of what is committed, and a read that it makes fast
//!   is of an object without a write in flight (Algorithm 1).
//! - Nobody leaves for good that has everything and whose engine was not lost.

use concord_core::{ObjectId, Position, Seq, SwitchId};
use concord_protocols::{Node, Phase};
use concord_wire::control::{Config, Member, Protocol};
use concord_wire::record::Record;
use concord_wire::{Addr, Flags, Op, Packet};
use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;

use super::group::{Group, Replica, Role};
use crate::world::{REPLICAS, SWITCH};

type Map<K, V> = HashMap<K, V, FxBuildHasher>;

/// What was last seen of a replica.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Seen {
    incarnation: u64,
    /// The epoch, or the view.
    epoch: u32,
    is_open: bool,
    /// It has all that its epoch began with; it leads its view.
    is_whole: bool,
    /// It copies the state, and may go back.
    is_copying: bool,
    executed: u64,
    committed: u64,
    end: u64,
}

/// What was seen so far.
#[derive(Debug)]
pub(super) struct Watch {
    replicas: Vec<Seen>,
    /// The running hash at every position that somebody called committed.
    committed: Map<u64, u64>,
    /// The first epoch or view in which that position and all before were, by rising position.
    committed_in: Vec<(u32, u64)>,
    /// The running hash at the ends of the members' logs, by epoch and position.
    ends: Map<(u32, u64), u64>,
    /// The newest epoch that every member has opened.
    opened: Option<Config>,
    /// The latest view that has begun.
    begun: u32,
    /// The position of every sequenced write in the log.
    positions: Map<u64, u64>,
    switches: [SeenSwitch; 2],
}

/// What was last seen of a switch.
#[derive(Debug, Default)]
struct SeenSwitch {
    id: u32,
    /// The last number that it gave to each object.
    numbered: Map<ObjectId, u32>,
}

impl Watch {
    pub(super) fn new(replicas: usize) -> Watch {
        Watch {
            replicas: vec![Seen::default(); replicas],
            committed: Map::default(),
            committed_in: Vec::new(),
            ends: Map::default(),
            opened: None,
            begun: 0,
            positions: Map::default(),
            switches: [SeenSwitch::default(), SeenSwitch::default()],
        }
    }

    /// Where the sequenced writes are that a replica got.
    fn note_positions(&mut self, replica: &Replica, from: u64, to: u64) {
        for position in from + 1..=to {
            let record = replica.log().record(Position(position));
            if let Some(Ok(record)) = record.map(Record::parse)
                && record.seq.is_some()
            {
                self.positions.insert(record.seq.to_u64(), position);
            }
        }
    }

    /// Up to where records were committed in an epoch before `epoch`.
    fn committed_before(&self, epoch: u32) -> u64 {
        let earlier = self.committed_in.iter().filter(|(of, _)| *of < epoch);
        earlier.map(|(_, position)| *position).max().unwrap_or(0)
    }

    /// What a replica newly calls committed is what others called so.
    fn note_committed(
        &mut self,
        replica: &Replica,
        epoch: u32,
        from: u64,
        to: u64,
    ) -> Option<String> {
        for position in from + 1..=to {
            // Where a state was copied, or records are not kept any more, there is no hash.
            let Some(hash) = replica.log().hash_at(Position(position)) else { continue };
            if *self.committed.entry(position).or_insert(hash) != hash {
                return Some(format!(
                    "record {position} is committed, and is not what another called so"
                ));
            }
        }
        let newest = self.committed_in.iter().map(|(_, position)| *position).max().unwrap_or(0);
        if to > newest {
            self.committed_in.push((epoch, to));
        }
        None
    }

    /// Whether a replica that opens `epoch` with all of it has what was committed before.
    fn lacks(&self, replica: &Replica, epoch: u32) -> Option<String> {
        let position = self.committed_before(epoch);
        let end = replica.log().end();
        if end.position < position {
            return Some(format!(
                "it has {} records in epoch {epoch}, and {position} were committed before",
                end.position
            ));
        }
        let mine = replica.log().hash_at(Position(position));
        let theirs = self.committed.get(&position).copied();
        let differs = mine.zip(theirs).is_some_and(|(mine, theirs)| mine != theirs);
        differs.then(|| format!("record {position} in epoch {epoch} is not what was committed"))
    }
}

impl Group {
    /// Looks at a replica after it took an input.
    pub(super) fn look(&mut self, node: usize) -> Option<String> {
        let replica = self.slots[node].replica()?;
        let before = self.watch.replicas[node - REPLICAS];
        let now = seen(replica, self.now(node));
        let is_same = before.incarnation == now.incarnation;
        let before = if is_same { before } else { Seen::default() };
        let is_to_leave = self.slots[node].engine_lost || self.slots[node].retires;
        if replica.phase() == Phase::Left && !is_to_leave {
            // A member of an epoch that lacks something may be told to copy anew.
            if replica_is_vr(replica) || (is_same && before.is_whole) {
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
        let opens = now.is_whole && (!before.is_whole || before.epoch != now.epoch);
        let (slots, watch) = (&self.slots, &mut self.watch);
        let replica = slots[node].replica()?;
        // Under a quorum another view may give a write another place until it is committed.
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

    /// Looks at a switch after it took an input, and at what it is about to send.
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
                seen.numbered.insert(repr.obj_id, repr.seq.counter);
            }
            let newest = seen.numbered.get(&repr.obj_id).copied().unwrap_or(0);
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

    /// A lease that its holder must not have any more.
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

    /// An epoch is open, or a view begins: nobody may hold a lease of an earlier one.
    fn note_opened(&mut self, node: usize, now: &Seen, before: &Seen) -> Option<String> {
        let replica = self.slots[node].replica()?;
        if replica_is_vr(replica) {
            if !now.is_whole || now.epoch <= self.watch.begun {
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

fn seen(replica: &Replica, now: concord_core::Now) -> Seen {
    let is_open = replica.phase() == Phase::Open;
    let (epoch, is_whole, is_copying) = match replica {
        Node::Replica(r) => {
            let epoch = r.config().map_or(0, |c| c.epoch);
            (epoch, r.status(now).whole, r.phase() == Phase::Joining)
        }
        Node::Vr(vr) => (vr.view().0, vr.leads(), !vr.is_intact()),
    };
    Seen {
        incarnation: replica.member().incarnation,
        epoch,
        is_open,
        is_whole: is_whole && is_open,
        is_copying,
        executed: replica.executed().0,
        committed: replica.committed().0,
        end: replica.log().end().position,
    }
}

/// Members of an epoch hold one record at each position; replicas of a quorum may differ in what is
/// not committed.
fn note_end(watch: &mut Watch, replica: &Replica, now: &Seen) -> Option<String> {
    if !now.is_open || replica_is_vr(replica) {
        return None;
    }
    let hash = replica.log().end().hash;
    let known = *watch.ends.entry((now.epoch, now.end)).or_insert(hash);
    (known != hash).then(|| {
        format!("record {} of epoch {} is not what another member holds", now.end, now.epoch)
    })
}

fn replica_is_vr(replica: &Replica) -> bool {
    matches!(replica, Node::Vr(_))
}

/// In CRAQ and under a quorum what is executed is committed; else the other way round.
fn is_ordered(replica: &Replica, now: &Seen) -> bool {
    let is_craq = replica.config().is_some_and(|c| c.protocol() == Some(Protocol::Craq));
    if replica_is_vr(replica) {
        return now.executed <= now.committed && now.committed <= now.end;
    }
    let has = if is_craq { now.end } else { now.executed };
    now.committed <= has && now.executed <= now.end
}
