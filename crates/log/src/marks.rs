//! The identity of a directory, and the marks that a replica keeps beside its data.

use alloc::vec::Vec;

use concord_wire::control::{Config, LogEnd};
use concord_wire::vr::{CrashVectorEntry, SwitchIncarnation};
use serde::{Deserialize, Serialize};

/// The version of the format that is written, and the only one that is read.
const FORMAT: u8 = 1;
/// The bytes of `view`, `owes` and `vote` in their default values.
const ADDED_BYTES: usize = 3;

/// The kind of engine that made a state. Another kind cannot read the parts of its snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum EngineKind {
    /// The memory engine.
    Memory = 1,
    /// A redis-server.
    Redis = 2,
}

impl EngineKind {
    /// Its name in the rack file.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            EngineKind::Memory => "memory",
            EngineKind::Redis => "redis",
        }
    }

    fn from_byte(byte: u8) -> Option<EngineKind> {
        [EngineKind::Memory, EngineKind::Redis].into_iter().find(|kind| *kind as u8 == byte)
    }
}

/// The identity of a directory, the same in the first frame of each of its segments.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// The directory's number, drawn at random when it was created.
    pub storage: u64,
    /// The node that owns the data.
    pub node: u16,
    /// The engine that made the state. `None` if an earlier version wrote the segment, which did
    /// not say.
    #[serde(skip)]
    pub engine: Option<EngineKind>,
}

/// The body of a segment's first frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SegmentHdr {
    format: u8,
    pub(crate) identity: Identity,
    pub(crate) segment: u64,
    /// [`Identity::engine`]. It is left out if it is 0.
    engine: u8,
}

impl SegmentHdr {
    pub(crate) fn new(identity: Identity, segment: u64) -> SegmentHdr {
        let engine = identity.engine.map_or(0, |engine| engine as u8);
        SegmentHdr { format: FORMAT, identity, segment, engine }
    }

    pub(crate) fn to_bytes(self) -> Vec<u8> {
        let mut bytes = postcard::to_allocvec(&self).unwrap_or_default();
        if self.engine == 0 {
            bytes.pop();
        }
        bytes
    }

    pub(crate) fn parse(bytes: &[u8]) -> Option<SegmentHdr> {
        let mut padded = bytes.to_vec();
        padded.push(0);
        let mut hdr: SegmentHdr = postcard::from_bytes(&padded).ok()?;
        hdr.identity.engine = match hdr.engine {
            0 => None,
            engine => Some(EngineKind::from_byte(engine)?),
        };
        (hdr.format == FORMAT).then_some(hdr)
    }
}

/// The marks that are kept beside the data. The last ones of a log are in force.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Marks {
    /// The number of processes that have started on this directory, this one included.
    pub run: u64,
    /// The longest lease in ns that any of these processes may have granted.
    pub lease_ns: u64,
    /// The last epoch in which the replica had all that was agreed, or 0 if the directory does not
    /// hold that state.
    pub held_epoch: u32,
    /// The newest configuration that the replica has heard of.
    pub config: Option<Config>,
    /// The promises of a replica whose group chooses its views by itself.
    pub view: Option<ViewMarks>,
    /// Whether records that the replica has acknowledged may be missing at the end: it syncs only
    /// from time to time, and was not shut down in order.
    pub owes: bool,
    /// Raft: the node that has this replica's vote in the term `view`, or 0 if none has it.
    pub vote: u16,
}

/// The state with which a new rack begins, from a backup or from what an earlier rack left. The
/// entry follows that state, which is the same at all replicas of the rack.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Origin {
    /// Its number, drawn at random when it was made. Replicas that begin together have the same.
    pub id: u64,
    /// The end of the log with that state.
    pub end: LogEnd,
    /// The highest switch id that the earlier rack may have used. The new rack uses higher ones.
    pub switch_id: u32,
}

impl Origin {
    pub(crate) fn to_bytes(self) -> Vec<u8> {
        postcard::to_allocvec(&self).unwrap_or_default()
    }

    pub(crate) fn parse(bytes: &[u8]) -> Option<Origin> {
        postcard::from_bytes(bytes).ok()
    }
}

/// The promises of a replica of VR or NOPaxos, and what it relies on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ViewMarks {
    /// The view that it is in or is changing to. It takes part in no earlier one.
    pub view: u32,
    /// The latest view in which its status was normal. The log is of that view.
    pub last_normal: u32,
    /// The switch of that view.
    pub switch: SwitchIncarnation,
    /// NOPaxos: the replica does not wait for messages up to this sequence number.
    pub floor: u64,
    /// The newest incarnation that it knows of each member, itself included.
    pub crash_vector: Vec<CrashVectorEntry>,
}

impl Marks {
    /// Encodes the marks. Trailing fields with their default values are left out.
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = postcard::to_allocvec(self).unwrap_or_default();
        if self.vote == 0 {
            bytes.pop();
            if !self.owes {
                bytes.pop();
            }
        }
        bytes
    }

    /// Parses the marks. An earlier version wrote none of the trailing fields, not even `view`.
    pub(crate) fn parse(bytes: &[u8]) -> Option<Marks> {
        let mut padded = bytes.to_vec();
        padded.extend_from_slice(&[0; ADDED_BYTES]);
        postcard::from_bytes(&padded).ok()
    }
}
