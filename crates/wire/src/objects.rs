//! The object ids of a request and of a record: the first has a field in the header, up to seven
//! more follow the header. A request of all keys has a flag instead.

use alloc::vec::Vec;

use concord_core::ObjectId;

use crate::{WireError, u32_at};

/// The largest number of objects that one request names; a request of more counts as one of all
/// keys.
pub const OBJECTS_MAX: usize = 8;
/// The largest number of object ids after a header.
pub const FURTHER_MAX: usize = OBJECTS_MAX - 1;
/// Length of an object id in bytes.
pub const ID_BYTES: usize = 4;

/// The objects after the first.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct FurtherIds {
    ids: [ObjectId; FURTHER_MAX],
    count: u8,
}

impl FurtherIds {
    /// There is one object at most.
    pub const NONE: FurtherIds = FurtherIds { ids: [ObjectId(0); FURTHER_MAX], count: 0 };

    /// These objects; `None` if there are more than seven.
    #[must_use]
    pub fn new(ids: &[ObjectId]) -> Option<FurtherIds> {
        let mut all = FurtherIds::NONE;
        all.ids.get_mut(..ids.len())?.copy_from_slice(ids);
        all.count = ids.len() as u8;
        Some(all)
    }

    /// The objects.
    #[must_use]
    #[inline]
    pub fn as_slice(&self) -> &[ObjectId] {
        &self.ids[..usize::from(self.count)]
    }

    /// Whether there is no further id.
    #[must_use]
    #[inline]
    pub const fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The number of further ids.
    #[must_use]
    #[inline]
    pub const fn len(&self) -> usize {
        self.count as usize
    }

    /// Their length on the wire in bytes.
    #[must_use]
    #[inline]
    pub const fn size_bytes(&self) -> usize {
        self.len() * ID_BYTES
    }

    /// Reads `count` ids at the start of `bytes`.
    ///
    /// # Errors
    /// `Field` if there are too many, `Truncated` if they are not there.
    #[inline]
    pub(crate) fn parse(count: u8, bytes: &[u8]) -> Result<FurtherIds, WireError> {
        if count == 0 { Ok(FurtherIds::NONE) } else { FurtherIds::parse_some(count, bytes) }
    }

    /// Few requests name several objects: it is kept out of the way of those that do not.
    #[cold]
    fn parse_some(count: u8, bytes: &[u8]) -> Result<FurtherIds, WireError> {
        if usize::from(count) > FURTHER_MAX {
            return Err(WireError::Field);
        }
        let mut all = FurtherIds { count, ..FurtherIds::NONE };
        if bytes.len() < all.size_bytes() {
            return Err(WireError::Truncated);
        }
        for (i, id) in all.ids.iter_mut().take(usize::from(count)).enumerate() {
            *id = ObjectId(u32_at(bytes, i * ID_BYTES));
        }
        Ok(all)
    }

    /// Appends the ids.
    #[inline]
    pub(crate) fn emit(&self, out: &mut Vec<u8>) {
        for id in self.as_slice() {
            out.extend_from_slice(&id.0.to_be_bytes());
        }
    }
}

impl core::fmt::Debug for FurtherIds {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_list().entries(self.as_slice()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn up_to_seven_ids_survive_the_wire_and_eight_are_refused() {
        let ids: Vec<ObjectId> = (1..=8).map(ObjectId).collect();
        for count in 0..=FURTHER_MAX {
            let further = FurtherIds::new(&ids[..count]).unwrap();
            let mut out = Vec::new();
            further.emit(&mut out);
            assert_eq!(out.len(), further.size_bytes());
            assert_eq!(FurtherIds::parse(count as u8, &out), Ok(further));
            assert_eq!((further.len(), further.is_empty()), (count, count == 0));
            if count > 0 {
                let cut = FurtherIds::parse(count as u8, &out[1..]);
                assert_eq!(cut, Err(WireError::Truncated));
            }
        }
        assert_eq!(FurtherIds::new(&ids), None);
        assert_eq!(FurtherIds::parse(8, &[0; 64]), Err(WireError::Field));
    }
}
