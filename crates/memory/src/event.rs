//! A coherence event of a requester: from its request until its unlock is answered (§5.1.1).

use alloc::vec::Vec;
use core::hash::{Hash, Hasher};

use concord_core::{Duration, Instant, MS};
use concord_wire::concordia::{Copyset, GlobalStatus, Op, Tag};

use crate::blocks::Assembly;

/// The purpose of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Aim {
    /// To get a copy to read.
    Read,
    /// To get the only copy, to write.
    Write,
    /// To give up the copy, because its place is needed.
    Evict,
}

/// The progress of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Stage {
    /// The request or its answers are on their way.
    Asking,
    /// It failed, and is retried at its time `at`, with another number.
    Waiting,
    /// It has everything, but the cache has no place (only without the guard `RoomFirst`).
    Placing,
    /// The block is being written back to its home.
    WritingBack,
    /// It has taken effect, and the owner is being told.
    Unlocking,
}

/// A coherence event.
#[derive(Clone, Debug)]
pub struct Event {
    /// The purpose of the event.
    pub aim: Aim,
    /// The operation of the request.
    pub op: Op,
    /// The block.
    pub tag: Tag,
    /// The number of the event in its lane.
    pub number: u64,
    /// The progress of the event.
    pub stage: Stage,
    /// When the awaited packet was last requested; in [`Stage::Waiting`], when the event goes on.
    pub at: Instant,
    /// Whether a packet was sent again: then its answer does not measure a round trip.
    pub is_resent: bool,
    /// Status, version and copyset, which the owner filled into the request.
    pub metadata: Option<(GlobalStatus, u64, Copyset)>,
    /// The nodes whose copies are invalidated.
    pub invalidated: Copyset,
    /// The parts of the data that have arrived.
    pub assembly: Assembly,
    /// The data, once it is complete.
    pub data: Option<Vec<u8>>,
    /// The status and copyset that the unlock sets.
    pub new: (GlobalStatus, Copyset),
}

impl Event {
    /// The status, version and copyset that the owner found; before its answer, those of a block
    /// that no node has.
    #[must_use]
    pub fn found(&self) -> (GlobalStatus, u64, Copyset) {
        self.metadata.unwrap_or((GlobalStatus::Unshared, 0, Copyset(0)))
    }

    /// Hashes what distinguishes its states; times do not.
    pub fn hash_state(&self, hasher: &mut impl Hasher) {
        (self.aim, self.op, self.tag, self.number, self.stage).hash(hasher);
        (self.metadata, self.invalidated, &self.assembly, &self.data, self.new).hash(hasher);
    }
}

/// The measured round trip, in ns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RoundTrip(Duration);

impl RoundTrip {
    /// The initial value, before any measurement.
    pub const INITIAL: RoundTrip = RoundTrip(MS);
    /// The number of round trips after which a request is sent again (§5.3.1).
    pub const REQUEST: u64 = 6;
    /// The number of round trips after which an unlock is sent again (§5.3.1).
    pub const UNLOCK: u64 = 3;
    /// The minimum value, in ns.
    const MIN_NS: Duration = 20_000;
    /// The maximum value, in ns: one answer that was late for another reason must not stop a node.
    const MAX_NS: Duration = 100 * MS;

    /// Adds a measurement: the time until a request was answered, in ns.
    pub fn measured(&mut self, ns: Duration) {
        self.0 = ((7 * self.0 + ns) / 8).clamp(RoundTrip::MIN_NS, RoundTrip::MAX_NS);
    }

    /// `count` round trips, in ns.
    #[must_use]
    pub fn times(self, count: u64) -> Duration {
        self.0.saturating_mul(count)
    }
}
