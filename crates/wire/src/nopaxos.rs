//! NOPaxos' own message: what the leader tells the switch that orders, since the switch has neither
//! the log's time nor the data. The writes that it numbers are [`crate::rpc`]'s.
//!
//! | offset | bytes | field |
//! |---|---|---|
//! | 0 | 16 | what all headers have: op 1; the leader's node and view |
//! | 16 | 8 | the log's time in ms |
//! | 24 | 1 | 1 if the leader's data takes more than its limit |
//! | 25 | 1 | 1 if a disk has no room |
//! | 26 | 6 | reserved |

use alloc::vec::Vec;

use concord_core::{Epoch, NodeId};

use crate::header::{Header, Kind, set_length};
use crate::{WireError, u64_at};

/// Operation of [`Stamp`].
pub const OP_STAMP: u8 = 1;
/// Length of the packet in bytes.
pub const STAMP_BYTES: usize = 32;

/// The offsets of the fields.
mod at {
    pub(super) const NOW_MS: usize = 16;
    pub(super) const MEMORY_FULL: usize = 24;
    pub(super) const DISK_FULL: usize = 25;
}

/// Leader to the switch that orders, periodically: what it stamps on writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    /// The leader's view.
    pub view: Epoch,
    /// The leader.
    pub from: NodeId,
    /// The log's time now, in ms since the Unix epoch.
    pub now_ms: u64,
    /// The leader's data takes more than its limit.
    pub memory_full: bool,
    /// The disk of a replica has no room: writes are refused.
    pub disk_full: bool,
}

impl Stamp {
    /// Reads a packet.
    ///
    /// # Errors
    /// [`WireError`], which the caller counts.
    pub fn parse(bytes: &[u8]) -> Result<Stamp, WireError> {
        let (header, b) = Header::parse_kind(bytes, Kind::NoPaxos, STAMP_BYTES)?;
        if header.op != OP_STAMP {
            return Err(WireError::Op);
        }
        let flag = |at: usize| match b[at] {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(WireError::Field),
        };
        let (memory_full, disk_full) = (flag(at::MEMORY_FULL)?, flag(at::DISK_FULL)?);
        let now_ms = u64_at(b, at::NOW_MS);
        Ok(Stamp { view: header.epoch, from: header.node, now_ms, memory_full, disk_full })
    }

    /// Writes the packet into `out`, replacing what was there.
    pub fn emit(&self, out: &mut Vec<u8>) {
        let header = Header::new(Kind::NoPaxos, OP_STAMP);
        Header { node: self.from, epoch: self.view, ..header }.begin(out);
        out.extend_from_slice(&self.now_ms.to_be_bytes());
        let (memory, disk) = (u8::from(self.memory_full), u8::from(self.disk_full));
        out.extend_from_slice(&[memory, disk, 0, 0, 0, 0, 0, 0]);
        set_length(out);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stamp_survives_the_wire_and_golden_bytes_hold() {
        let (memory_full, disk_full) = (true, false);
        let stamp =
            Stamp { view: Epoch(3), from: NodeId(2), now_ms: 0x18b_0000, memory_full, disk_full };
        let mut out = Vec::new();
        stamp.emit(&mut out);
        crate::golden("nopaxos.hex", &[out.clone()]);
        assert_eq!(Stamp::parse(&out), Ok(stamp));
        for cut in 0..STAMP_BYTES {
            assert_eq!(Stamp::parse(&out[..cut]), Err(WireError::Truncated));
        }
        out[at::MEMORY_FULL] = 2;
        assert_eq!(Stamp::parse(&out), Err(WireError::Field));
        out[crate::header::at::OP] = 2;
        assert_eq!(Stamp::parse(&out), Err(WireError::Op));
    }
}
