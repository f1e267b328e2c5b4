//! Accesses to a block, and their outcomes. Each is linearizable, and concerns a single block.

use alloc::vec::Vec;
use core::hash::{Hash, Hasher};

use concord_wire::concordia::Tag;

/// The function that a program applies to a whole block in one atomic access.
#[derive(Clone, Copy, Debug)]
pub enum Work {
    /// Returns a result computed from the block and an argument; a copy to read is enough.
    View(fn(block: &[u8], argument: &[u8]) -> Vec<u8>),
    /// The same, and changes the block.
    Update(fn(block: &mut [u8], argument: &[u8]) -> Vec<u8>),
}

/// A [`Work`] with a name; two of the same name are equal.
#[derive(Clone, Copy, Debug)]
pub struct Function {
    /// The name of the function.
    pub name: &'static str,
    /// The function itself.
    pub work: Work,
}

impl PartialEq for Function {
    fn eq(&self, other: &Function) -> bool {
        self.name == other.name
    }
}

impl Eq for Function {}

impl Hash for Function {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        self.name.hash(hasher);
    }
}

/// An access to a block.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Access {
    /// Reads bytes.
    Read {
        /// The offset of the first byte in the block, in bytes.
        offset_bytes: usize,
        /// The number of bytes.
        size_bytes: usize,
    },
    /// Writes bytes; returns none.
    Write {
        /// The offset of the first byte in the block, in bytes.
        offset_bytes: usize,
        /// The bytes that are written.
        data: Vec<u8>,
    },
    /// Writes bytes, and its caller has its outcome already: what [`Access::Write`] becomes while
    /// it waits, where writes are asynchronous ([`Coherence::Gam`](crate::Coherence::Gam)). If it
    /// fails its failure is a second outcome of the call, before that of any later fence.
    Posted {
        /// The offset of the first byte in the block, in bytes.
        offset_bytes: usize,
        /// The bytes that are written.
        data: Vec<u8>,
    },
    /// Waits until all writes of this node before it have taken effect, whatever their block;
    /// returns none.
    Fence,
    /// Adds to a 64-bit word, and returns its previous value.
    FetchAdd {
        /// The offset of the word, in bytes: a multiple of 8.
        offset_bytes: usize,
        /// The number that is added, modulo 2^64.
        add: u64,
    },
    /// Sets a 64-bit word if it has the expected value, and returns its previous value.
    CompareSwap {
        /// The offset of the word, in bytes: a multiple of 8.
        offset_bytes: usize,
        /// The value that the word must have.
        expected: u64,
        /// The value that the word gets.
        new: u64,
    },
    /// Applies a program's function to the whole block, and returns its result.
    Apply {
        /// The function.
        function: Function,
        /// The function's argument.
        argument: Vec<u8>,
    },
}

impl Access {
    /// Whether a copy to read is enough.
    #[must_use]
    pub fn is_read(&self) -> bool {
        match self {
            Access::Read { .. } | Access::Fence => true,
            Access::Apply { function, .. } => matches!(function.work, Work::View(_)),
            Access::Write { .. }
            | Access::Posted { .. }
            | Access::FetchAdd { .. }
            | Access::CompareSwap { .. } => false,
        }
    }

    /// Whether its caller has its outcome already.
    #[must_use]
    pub fn is_posted(&self) -> bool {
        matches!(self, Access::Posted { .. })
    }

    /// Checks that the access lies within a block, and that a word is aligned.
    ///
    /// # Errors
    /// [`Failure`] if it is not valid.
    pub fn check(&self, block_bytes: usize) -> Result<(), Failure> {
        let (offset, size, is_word) = match self {
            Access::Read { offset_bytes, size_bytes } => (*offset_bytes, *size_bytes, false),
            Access::Write { offset_bytes, data } | Access::Posted { offset_bytes, data } => {
                (*offset_bytes, data.len(), false)
            }
            Access::Fence => (0, 0, false),
            Access::FetchAdd { offset_bytes, .. } | Access::CompareSwap { offset_bytes, .. } => {
                (*offset_bytes, 8, true)
            }
            Access::Apply { .. } => (0, block_bytes, false),
        };
        if is_word && !offset.is_multiple_of(8) {
            return Err(Failure::Misaligned);
        }
        let end = offset.checked_add(size).ok_or(Failure::Outside)?;
        if end > block_bytes { Err(Failure::Outside) } else { Ok(()) }
    }

    /// Performs the access, which was checked before; returns its result.
    pub(crate) fn perform(&self, block: &mut [u8]) -> Vec<u8> {
        let word = |block: &[u8], at: usize| {
            let mut bytes = [0; 8];
            bytes.copy_from_slice(&block[at..at + 8]);
            u64::from_le_bytes(bytes)
        };
        match self {
            Access::Read { offset_bytes, size_bytes } => {
                block[*offset_bytes..offset_bytes + size_bytes].to_vec()
            }
            Access::Fence => Vec::new(),
            Access::Write { offset_bytes, data } | Access::Posted { offset_bytes, data } => {
                block[*offset_bytes..offset_bytes + data.len()].copy_from_slice(data);
                Vec::new()
            }
            Access::FetchAdd { offset_bytes, add } => {
                let (at, was) = (*offset_bytes, word(block, *offset_bytes));
                block[at..at + 8].copy_from_slice(&was.wrapping_add(*add).to_le_bytes());
                was.to_le_bytes().to_vec()
            }
            Access::CompareSwap { offset_bytes, expected, new } => {
                let (at, was) = (*offset_bytes, word(block, *offset_bytes));
                if was == *expected {
                    block[at..at + 8].copy_from_slice(&new.to_le_bytes());
                }
                was.to_le_bytes().to_vec()
            }
            Access::Apply { function, argument } => match function.work {
                Work::View(view) => view(block, argument),
                Work::Update(update) => update(block, argument),
            },
        }
    }
}

/// A program's access to a block.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Call {
    /// The number by which the caller identifies the call.
    pub id: u64,
    /// The block.
    pub tag: Tag,
    /// The access.
    pub access: Access,
}

impl Call {
    /// Whether it accesses a block; a fence accesses none.
    pub(crate) fn is_for(&self, tag: Tag) -> bool {
        self.tag == tag && self.access != Access::Fence
    }
}

/// The outcome of a call.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Done {
    /// The number of the call.
    pub id: u64,
    /// The result of the access, or the reason why it was not performed.
    pub result: Result<Vec<u8>, Failure>,
}

/// The reason why an access was not performed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Failure {
    /// The address is in no node's range, or beyond the end of a range.
    NoBlock,
    /// The access does not lie within its block.
    Outside,
    /// The word is not at a multiple of 8 bytes.
    Misaligned,
    /// Too many calls wait at this node: try again.
    Busy,
    /// This node is leaving the memory: ask another one.
    NoNode,
    /// The only copy was at a node that is gone: the block must be renewed first.
    Lost,
}
