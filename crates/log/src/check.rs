//! Checking a segment as it is read, frame by frame, without holding all of it.

use crate::frame::{self, BODY_BYTES_MAX, HEADER_BYTES, Place, padded};

/// Checks the frames of a segment, one behind the other.
#[derive(Clone, Copy, Debug)]
pub struct Check {
    place: Place,
}

impl Check {
    /// From the beginning of a segment of the directory `storage` on.
    #[must_use]
    pub fn new(storage: u64, segment: u64) -> Check {
        Check { place: Place { storage, segment, offset: 0 } }
    }

    /// Where the next frame begins.
    #[must_use]
    pub fn offset(&self) -> u64 {
        self.place.offset
    }

    /// How many bytes the frame takes that begins with this header; `None` if no frame is as long.
    #[must_use]
    pub fn frame_bytes(header: &[u8; HEADER_BYTES]) -> Option<usize> {
        let body = frame::body_bytes(header);
        (body <= BODY_BYTES_MAX).then(|| padded(HEADER_BYTES + body))
    }

    /// Whether these bytes are the frame that belongs here; then the next one is behind it.
    pub fn take(&mut self, bytes: &[u8]) -> bool {
        let is_valid =
            frame::parse_at(bytes, self.place).is_some_and(|f| f.size_bytes() == bytes.len());
        self.place.offset += if is_valid { bytes.len() as u64 } else { 0 };
        is_valid
    }
}
