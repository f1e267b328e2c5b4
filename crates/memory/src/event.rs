//! A coherence event of a requester: from its request to the end of its unlock (§5.1.1).

use alloc::vec::Vec;
use core::hash::{Hash, Hasher};

use concord_core::{Duration, Instant, MS};
use concord_wire::concordia::{Copyset, GlobalStatus, Op, Tag};

use crate::blocks::Assembly;

/// What an event is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Aim {
    /// A copy to read.
    Read,
    /// The only copy, to write.
    Write,
    /// No copy: its place is needed.
    Evict,
}

/// How far an event is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Stage {
    /// The request is on its way, or answers are.
    Asking,
    /// It failed, and is tried again then, with another number.
    Waiting,
    /// All is there, but the cache has no place (only without the guard `RoomFirst`).
    Placing,
    /// The block goes to its home.
    WritingBack,
    /// It has taken effect; the owner is told.
    Unlocking,
}

/// An event.
#[derive(Clone, Debug)]
pub struct Event {
    /// What it is for.
    pub aim: Aim,
    /// The request.
    pub op: Op,
    /// Which block.
    pub tag: Tag,
    /// Its number, of its lane.
    pub number: u64,
    /// How far it is.
    pub stage: Stage,
    /// When what it waits for was sent last; in [`Stage::Waiting`], when it goes on.
    pub at: Instant,
    /// Whether something was sent again: then its answer measures no round trip.
    pub is_resent: bool,
    /// Status, version and copyset, as the owner filled them into the request.
    pub metadata: Option<(GlobalStatus, u64, Copyset)>,
    /// Whose copies are invalidated.
    pub invalidated: Copyset,
    /// The data, as far as it is there.
    pub assembly: Assembly,
    /// The data, once it is whole.
    pub data: Option<Vec<u8>>,
    /// The unlock's status and copyset.
    pub new: (GlobalStatus, Copyset),
}

impl Event {
    /// Status, version and copyset that the owner found; of a block that nobody has, before it said
    /// so.
    #[must_use]
    pub fn found(&self) -> (GlobalStatus, u64, Copyset) {
        self.metadata.unwrap_or((GlobalStatus::Unshared, 0, Copyset(0)))
    }

    /// What tells its states apart: times do not.
    pub fn hash_state(&self, hasher: &mut impl Hasher) {
        (self.aim, self.op, self.tag, self.number, self.stage).hash(hasher);
        (self.metadata, self.invalidated, &self.assembly, &self.data, self.new).hash(hasher);
    }
}

/// The round trip as it is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RoundTrip(Duration);

impl RoundTrip {
    /// Before anything was measured.
    pub const INITIAL: RoundTrip = RoundTrip(MS);
    /// A request is sent again after as many round trips (§5.3.1).
    pub const REQUEST: u64 = 6;
    /// An unlock is (§5.3.1).
    pub const UNLOCK: u64 = 3;
    /// The shortest that is believed, in ns.
    const MIN_NS: Duration = 20_000;
    /// The longest, in ns: one answer that was late for another reason does not stop a node.
    const MAX_NS: Duration = 100 * MS;

    /// A request was answered after as long.
    pub fn measured(&mut self, ns: Duration) {
        self.0 = ((7 * self.0 + ns) / 8).clamp(RoundTrip::MIN_NS, RoundTrip::MAX_NS);
    }

    /// As many of them, in ns.
    #[must_use]
    pub fn times(self, count: u64) -> Duration {
        self.0.saturating_mul(count)
    }
}
