//! The frame: a header that says what follows and where it belongs, and a body.
//!
//! | offset | bytes | field |
//! |---|---|---|
//! | 0 | 4 | check of the header, and of the frame's place |
//! | 4 | 4 | length of the body in bytes |
//! | 8 | 8 | number of the group |
//! | 16 | 1 | kind |
//! | 17 | 1 | bit 0: last frame of its group |
//! | 18 | 6 | reserved |
//! | 24 | 8 | hash of the body |
//! | 32 | | the body, and zeros up to a multiple of 8 |
//!
//! All integers are big-endian. The check covers the numbers of the directory and the segment and
//! the offset within it: a frame is valid only in its place, so that bytes of another file, or of
//! an earlier file on the same blocks of the disk, are not taken for a frame.

use concord_core::hash::hash64;

/// The length of a frame's header in bytes.
pub const HEADER_BYTES: usize = 32;
/// The largest body in bytes. [`crate::Batch::part`] writes none that is longer, since it could not
/// be read again.
pub const BODY_BYTES_MAX: usize = (1 << 30) + (1 << 16);
/// The alignment of frames in bytes.
pub(crate) const ALIGN: usize = 8;

const LAST: u8 = 1;

/// The offsets of the header's fields in bytes.
mod at {
    pub(super) const LENGTH: usize = 4;
    pub(super) const GROUP: usize = 8;
    pub(super) const KIND: usize = 16;
    pub(super) const FLAGS: usize = 17;
    pub(super) const RESERVED: core::ops::Range<usize> = 18..24;
    pub(super) const HASH: usize = 24;
}

/// The kind of a frame's contents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    /// The identity of the segment: its first frame.
    Segment = 1,
    /// Records, one after the other.
    Records = 2,
    /// Marks that are kept beside the data.
    Marks = 3,
    /// A part of a snapshot.
    Part = 4,
    /// Everything before is discarded.
    Reset = 5,
    /// The position up to which the log is known to be committed.
    Committed = 6,
    /// The log is truncated to this end.
    Cut = 7,
    /// A new rack begins with the state up to here.
    Origin = 8,
}

impl Kind {
    fn from_byte(byte: u8) -> Option<Kind> {
        [
            Kind::Segment,
            Kind::Records,
            Kind::Marks,
            Kind::Part,
            Kind::Reset,
            Kind::Committed,
            Kind::Cut,
            Kind::Origin,
        ]
        .into_iter()
        .find(|kind| *kind as u8 == byte)
    }
}

/// The place of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) storage: u64,
    pub(crate) segment: u64,
    pub(crate) offset: u64,
}

impl Place {
    fn seed(self) -> u64 {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&self.segment.to_be_bytes());
        bytes[8..].copy_from_slice(&self.offset.to_be_bytes());
        hash64(self.storage, &bytes)
    }
}

/// A valid frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Frame<'a> {
    pub(crate) kind: Kind,
    pub(crate) group: u64,
    pub(crate) is_last: bool,
    pub(crate) body: &'a [u8],
}

impl Frame<'_> {
    /// Its size in the file in bytes, padding included.
    pub(crate) fn size_bytes(&self) -> usize {
        padded(HEADER_BYTES + self.body.len())
    }
}

/// `bytes` rounded up to a multiple of [`ALIGN`].
pub(crate) fn padded(bytes: usize) -> usize {
    bytes.next_multiple_of(ALIGN)
}

fn word(bytes: &[u8], at: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[at..at + 8]);
    u64::from_be_bytes(word)
}

fn half(bytes: &[u8], at: usize) -> u32 {
    let mut half = [0; 4];
    half.copy_from_slice(&bytes[at..at + 4]);
    u32::from_be_bytes(half)
}

/// The length of the body according to its header, in bytes.
pub(crate) fn body_bytes(header: &[u8]) -> usize {
    half(header, at::LENGTH) as usize
}

/// Writes the kind and the length into a header whose frame has no place yet.
pub(crate) fn begin(kind: Kind, body_bytes: usize, header: &mut [u8]) {
    header[..HEADER_BYTES].fill(0);
    header[at::LENGTH..at::GROUP].copy_from_slice(&(body_bytes as u32).to_be_bytes());
    header[at::KIND] = kind as u8;
}

/// Completes a frame for its place. `frame` begins with the header that [`begin`] wrote.
pub(crate) fn seal(frame: &mut [u8], place: Place, group: u64, is_last: bool) {
    let body_end = HEADER_BYTES + body_bytes(frame);
    let hash = hash64(0, &frame[HEADER_BYTES..body_end]);
    frame[at::GROUP..at::KIND].copy_from_slice(&group.to_be_bytes());
    frame[at::FLAGS] = if is_last { LAST } else { 0 };
    frame[at::HASH..HEADER_BYTES].copy_from_slice(&hash.to_be_bytes());
    let check = hash64(place.seed(), &frame[at::LENGTH..HEADER_BYTES]) as u32;
    frame[..at::LENGTH].copy_from_slice(&check.to_be_bytes());
}

/// The valid frame at `place`, an offset into `bytes`, the contents of a segment; `None` if there
/// is none.
pub(crate) fn parse(bytes: &[u8], place: Place) -> Option<Frame<'_>> {
    parse_at(bytes.get(usize::try_from(place.offset).ok()?..)?, place)
}

/// The frame at the start of `bytes`, if it is valid at `place`.
pub(crate) fn parse_at(bytes: &[u8], place: Place) -> Option<Frame<'_>> {
    let header = bytes.get(..HEADER_BYTES)?;
    let check = hash64(place.seed(), &header[at::LENGTH..]) as u32;
    let is_known = header[at::FLAGS] & !LAST == 0 && header[at::RESERVED].iter().all(|b| *b == 0);
    if half(header, 0) != check || !is_known {
        return None;
    }
    let length = body_bytes(header);
    let end = HEADER_BYTES.checked_add(length).filter(|_| length <= BODY_BYTES_MAX)?;
    let body = bytes.get(HEADER_BYTES..end)?;
    let padding = bytes.get(end..padded(end))?;
    if hash64(0, body) != word(header, at::HASH) || padding.iter().any(|b| *b != 0) {
        return None;
    }
    Some(Frame {
        kind: Kind::from_byte(header[at::KIND])?,
        group: word(header, at::GROUP),
        is_last: header[at::FLAGS] & LAST != 0,
        body,
    })
}
