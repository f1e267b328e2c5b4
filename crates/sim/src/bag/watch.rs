//! The observed states of replicas and switches: the invariants (`look`) compare with it.

use concord_core::{ObjectId, Position};
use concord_engine::Shimmed;
use concord_protocols::{Node, Phase};
use concord_wire::control::{Config, Protocol};
use concord_wire::record::Record;
use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;

use crate::systems::store::storage::Store;

/// A replica of the group.
pub(super) type Replica = Node<Shimmed<Store>>;
type Map<K, V> = HashMap<K, V, FxBuildHasher>;

/// The last observed state of a replica.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Seen {
    pub incarnation: u64,
    /// The epoch, or the view.
    pub epoch: u32,
    pub is_open: bool,
    /// Whether it has all that its epoch began with, or leads its view.
    pub is_caught_up: bool,
    /// Whether it copies the state, and may go back.
    pub is_copying: bool,
    pub executed: u64,
    pub committed: u64,
    pub end: u64,
}

/// All observations so far.
#[derive(Debug)]
pub(super) struct Watch {
    pub replicas: Vec<Seen>,
    /// The running hash at every position that some replica called committed.
    pub committed: Map<u64, u64>,
    /// The first epoch or view in which a position and all before it were committed, by rising
    /// position.
    pub committed_in: Vec<(u32, u64)>,
    /// The running hash at the ends of the members' logs, by epoch and position.
    pub ends: Map<(u32, u64), u64>,
    /// The newest epoch that every member has opened.
    pub opened: Option<Config>,
    /// The latest view that has begun.
    pub begun: u32,
    /// The position of every sequenced write in the log.
    pub positions: Map<u64, u64>,
    pub switches: [SeenSwitch; 2],
}

/// The last observed state of a switch.
#[derive(Debug, Default)]
pub(super) struct SeenSwitch {
    pub id: u32,
    /// The last number that it gave to each object.
    pub sequenced: Map<ObjectId, u32>,
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

    /// Notes the positions of the sequenced writes that a replica got.
    pub(super) fn note_positions(&mut self, replica: &Replica, from: u64, to: u64) {
        for position in from + 1..=to {
            let record = replica.log().record(Position(position));
            if let Some(Ok(record)) = record.map(Record::parse)
                && record.seq.is_some()
            {
                self.positions.insert(record.seq.to_u64(), position);
            }
        }
    }

    /// The position up to which records were committed in an epoch before `epoch`.
    fn committed_before(&self, epoch: u32) -> u64 {
        let earlier = self.committed_in.iter().filter(|(of, _)| *of < epoch);
        earlier.map(|(_, position)| *position).max().unwrap_or(0)
    }

    /// Checks that what a replica newly calls committed is what others called committed.
    pub(super) fn note_committed(
        &mut self,
        replica: &Replica,
        epoch: u32,
        from: u64,
        to: u64,
    ) -> Option<String> {
        for position in from + 1..=to {
            // A replica that copied the state, or discarded old records, has no hash for the
            // position.
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

    /// Checks that a replica that has opened `epoch` with all of its data has what was committed
    /// before.
    pub(super) fn lacks(&self, replica: &Replica, epoch: u32) -> Option<String> {
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

pub(super) fn seen(replica: &Replica, now: concord_core::Now) -> Seen {
    let is_open = replica.phase() == Phase::Open;
    let (epoch, is_caught_up, is_copying) = match replica {
        Node::Replica(r) => {
            let epoch = r.config().map_or(0, |c| c.epoch);
            (epoch, r.status(now).caught_up, r.phase() == Phase::Joining)
        }
        Node::Vr(vr) => (vr.view().0, vr.leads(), !vr.is_intact()),
    };
    Seen {
        incarnation: replica.member().incarnation,
        epoch,
        is_open,
        is_caught_up: is_caught_up && is_open,
        is_copying,
        executed: replica.executed().0,
        committed: replica.committed().0,
        end: replica.log().end().position,
    }
}

/// Checks that members of an epoch have one record at each position; replicas of a quorum may
/// differ in records that are not committed.
pub(super) fn note_end(watch: &mut Watch, replica: &Replica, now: &Seen) -> Option<String> {
    if !now.is_open || replica_is_vr(replica) {
        return None;
    }
    let hash = replica.log().end().hash;
    let known = *watch.ends.entry((now.epoch, now.end)).or_insert(hash);
    (known != hash).then(|| {
        format!("record {} of epoch {} is not what another member holds", now.end, now.epoch)
    })
}

pub(super) fn replica_is_vr(replica: &Replica) -> bool {
    matches!(replica, Node::Vr(_))
}

/// Checks the order of a replica's execution and commit points: executed <= committed <= end of the
/// log with a quorum protocol; committed <= executed <= end in a chain; both at most the end in
/// CRAQ.
pub(super) fn is_ordered(replica: &Replica, now: &Seen) -> bool {
    let is_craq = replica.config().is_some_and(|c| c.protocol() == Some(Protocol::Craq));
    if replica_is_vr(replica) {
        return now.executed <= now.committed && now.committed <= now.end;
    }
    let has = if is_craq { now.end } else { now.executed };
    now.committed <= has && now.executed <= now.end
}
