//! Whose a directory is, and what is to be remembered beside the data.

use alloc::vec::Vec;

use concord_wire::control::Config;
use serde::{Deserialize, Serialize};

/// The format that is written and read.
const FORMAT: u8 = 1;

/// Whose a directory is: the same in the first frame of each of its segments.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// The directory's number, drawn when it was made.
    pub storage: u64,
    /// The node whose data it has.
    pub node: u16,
}

/// What a segment's first frame says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SegmentHdr {
    format: u8,
    pub(crate) identity: Identity,
    pub(crate) segment: u64,
}

impl SegmentHdr {
    pub(crate) fn new(identity: Identity, segment: u64) -> SegmentHdr {
        SegmentHdr { format: FORMAT, identity, segment }
    }

    pub(crate) fn to_bytes(self) -> Vec<u8> {
        postcard::to_allocvec(&self).unwrap_or_default()
    }

    pub(crate) fn parse(bytes: &[u8]) -> Option<SegmentHdr> {
        postcard::from_bytes::<SegmentHdr>(bytes).ok().filter(|hdr| hdr.format == FORMAT)
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
}

impl Marks {
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        postcard::to_allocvec(self).unwrap_or_default()
    }

    pub(crate) fn parse(bytes: &[u8]) -> Option<Marks> {
        postcard::from_bytes(bytes).ok()
    }
}
