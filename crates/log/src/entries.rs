//! Reads the entries of a segment again.

use concord_wire::control::LogEnd;
use concord_wire::record::Record;

use crate::batch::{self, Part};
use crate::frame::{self, Kind, Place};
use crate::marks::{Identity, Marks, Origin, SegmentHdr};

/// An entry of a batch, as it is read again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Entry<'a> {
    /// An encoded record.
    Record(&'a [u8]),
    /// The marks that are kept beside the data.
    Marks(Marks),
    /// A part of a snapshot.
    Part(Part<'a>),
    /// Everything before is discarded.
    Reset,
    /// The log was known to be committed up to this position.
    Committed(u64),
    /// The log was truncated to this end: what came after it is discarded.
    Cut(LogEnd),
    /// A new rack begins with the state up to here, and without the sessions of the rack before.
    Origin(Origin),
}

/// The identity in the first frame of a segment, or `None` if that frame is missing or invalid.
#[must_use]
pub fn identity(storage: u64, segment: u64, bytes: &[u8]) -> Option<Identity> {
    let frame = frame::parse(bytes, Place { storage, segment, offset: 0 })?;
    let hdr = SegmentHdr::parse(frame.body).filter(|_| frame.kind == Kind::Segment)?;
    (hdr.identity.storage == storage && hdr.segment == segment).then_some(hdr.identity)
}

/// The entries of a segment of the directory `storage` from the offset `from` on, each with the
/// offset of its frame, up to the first invalid frame. [`crate::Recovery`] says which of them can
/// be trusted.
pub fn entries(
    storage: u64,
    segment: u64,
    bytes: &[u8],
    from: u64,
) -> impl Iterator<Item = (u64, Entry<'_>)> {
    let mut offset = from;
    let frames = core::iter::from_fn(move || {
        let at = offset;
        let place = Place { storage, segment, offset };
        let frame = frame::parse(bytes, place)?;
        offset += frame.size_bytes() as u64;
        Some((at, frame))
    });
    frames.flat_map(|(at, frame)| {
        let mut rest = if frame.kind == Kind::Records { frame.body } else { &[] };
        let records = core::iter::from_fn(move || {
            let (record, behind) = Record::split_first(rest)?;
            rest = behind;
            Some((at, Entry::Record(record)))
        });
        let other = match frame.kind {
            Kind::Segment | Kind::Records => None,
            Kind::Marks => Marks::parse(frame.body).map(Entry::Marks),
            Kind::Part => Part::parse(frame.body).map(Entry::Part),
            Kind::Reset => Some(Entry::Reset),
            Kind::Committed => batch::position(frame.body).map(Entry::Committed),
            Kind::Cut => batch::log_end(frame.body).map(Entry::Cut),
            Kind::Origin => Origin::parse(frame.body).map(Entry::Origin),
        };
        other.map(|entry| (at, entry)).into_iter().chain(records)
    })
}
