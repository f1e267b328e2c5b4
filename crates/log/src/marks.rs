//! Whose a directory is, and what is to be remembered beside the data.

use alloc::vec::Vec;

use concord_wire::control::{Config, LogEnd};
use concord_wire::vr::{CrashVectorEntry, SwitchIncarnation};
use serde::{Deserialize, Serialize};

/// The format that is written and read.
const FORMAT: u8 = 1;
/// Bytes of `view`, `owes` and `vote` where these are not there.
const ADDED_BYTES: usize = 3;

/// Which engine a state is of: another one cannot read the parts of its snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum EngineKind {
    /// The memory engine.
    Memory = 1,
    /// A redis-server.
    Redis = 2,
}

impl EngineKind {
    /// As the rack file calls it.
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

/// Whose a directory is: the same in the first frame of each of its segments.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// The directory's number, drawn when it was made.
    pub storage: u64,
    /// The node whose data it has.
    pub node: u16,
    /// The engine of the state. `None`: an earlier version wrote it, which did not say.
    #[serde(skip)]
    pub engine: Option<EngineKind>,
}

/// What a segment's first frame says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SegmentHdr {
    format: u8,
    pub(crate) identity: Identity,
    pub(crate) segment: u64,
    /// [`Identity::engine`]; 0 is not written.
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

/// What is remembered beside the data; the last of a log counts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Marks {
    /// How often a process has started on this directory, this time included.
    pub run: u64,
    /// The longest lease that any of them may have granted, in ns.
    pub lease_ns: u64,
    /// The last epoch in which the replica had all that was agreed; 0 if what is here is not that.
    pub held_epoch: u32,
    /// The newest configuration that it heard of.
    pub config: Option<Config>,
    /// What a replica promised whose group chooses its views by itself.
    pub view: Option<ViewMarks>,
    /// Records may be missing at the end that the replica has acknowledged: it syncs now and then,
    /// and has not been ended in order.
    pub owes: bool,
    /// Raft: the node that has this replica's vote in the term that `view` says; 0 if none has.
    pub vote: u16,
}

/// The state that a new rack begins with: of a backup, or of what was left. It stands behind that
/// state, which is the same at all replicas of the rack.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Origin {
    /// Its number, drawn when it was made: replicas that begin together have the same.
    pub id: u64,
    /// Where the log ends with it.
    pub end: LogEnd,
    /// The highest switch id that the rack before may have used; the new one goes on above it.
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

/// What a replica of VR or NOPaxos promised, and what it relies on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ViewMarks {
    /// The view that it is in, or on its way to: it takes part in none before.
    pub view: u32,
    /// The latest view in which its status was normal; the log is of that view.
    pub last_normal: u32,
    /// The switch of that view.
    pub switch: SwitchIncarnation,
    /// NOPaxos: numbers up to there are not waited for.
    pub floor: u64,
    /// The newest life that it knows of each member, its own too.
    pub crash_vector: Vec<CrashVectorEntry>,
}

impl Marks {
    /// What stands at the end and is not there is not written.
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

    /// A directory of an earlier version has no view, either.
    pub(crate) fn parse(bytes: &[u8]) -> Option<Marks> {
        let mut padded = bytes.to_vec();
        padded.extend_from_slice(&[0; ADDED_BYTES]);
        postcard::from_bytes(&padded).ok()
    }
}
