//! Accesses to a block, and their outcomes. Each is linearizable; none concerns two blocks.

use alloc::vec::Vec;
use core::hash::{Hash, Hasher};

use concord_wire::concordia::Tag;

/// What a program does with a whole block, in one access: nobody else's comes between.
#[derive(Clone, Copy, Debug)]
pub enum Work {
    /// Gives what it makes of the block and of its argument; a copy to read is enough.
    View(fn(block: &[u8], argument: &[u8]) -> Vec<u8>),
    /// The same, and changes the block.
    Update(fn(block: &mut [u8], argument: &[u8]) -> Vec<u8>),
}

/// [`Work`] by its name: two of one name are the same.
#[derive(Clone, Copy, Debug)]
pub struct Function {
    /// Its name.
    pub name: &'static str,
    /// What it does.
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

/// What is done with a block.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Access {
    /// Reads so many bytes.
    Read {
        /// Where they begin in the block.
        offset_bytes: usize,
        /// How many.
        size_bytes: usize,
    },
    /// Writes bytes; gives none.
    Write {
        /// Where they begin in the block.
        offset_bytes: usize,
        /// What is written.
        data: Vec<u8>,
    },
    /// Adds to a word of 64 bits, and gives what it was.
    FetchAdd {
        /// Where the word is: a multiple of 8.
        offset_bytes: usize,
        /// What is added; it wraps.
        add: u64,
    },
    /// Sets a word of 64 bits if it has the expected value, and gives what it was.
    CompareSwap {
        /// Where the word is: a multiple of 8.
        offset_bytes: usize,
        /// The value that it must have.
        expected: u64,
        /// The value that it gets.
        new: u64,
    },
    /// Does what a program wants with the whole block, and gives what it gives.
    Apply {
        /// What is done.
        function: Function,
        /// Its argument.
        argument: Vec<u8>,
    },
}

impl Access {
    /// Whether a copy to read is enough.
    #[must_use]
    pub fn is_read(&self) -> bool {
        match self {
            Access::Read { .. } => true,
            Access::Apply { function, .. } => matches!(function.work, Work::View(_)),
            Access::Write { .. } | Access::FetchAdd { .. } | Access::CompareSwap { .. } => false,
        }
    }

    /// Whether it lies within a block, and its word where words are.
    ///
    /// # Errors
    /// [`Failure`] if not.
    pub fn check(&self, block_bytes: usize) -> Result<(), Failure> {
        let (offset, size, is_word) = match self {
            Access::Read { offset_bytes, size_bytes } => (*offset_bytes, *size_bytes, false),
            Access::Write { offset_bytes, data } => (*offset_bytes, data.len(), false),
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

    /// Does it, and gives what it gives. It was checked before.
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
            Access::Write { offset_bytes, data } => {
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

/// A call of a program.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Call {
    /// Its number: whoever calls tells its calls apart by it.
    pub id: u64,
    /// Which block.
    pub tag: Tag,
    /// What is done with it.
    pub access: Access,
}

/// What became of a call.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Done {
    /// Which call.
    pub id: u64,
    /// What it gave, or why nothing was done.
    pub result: Result<Vec<u8>, Failure>,
}

/// Why nothing was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Failure {
    /// The address is of no block: of no node's range, or beyond its end.
    NoBlock,
    /// It does not lie within its block.
    Outside,
    /// A word begins at a multiple of 8 bytes.
    Misaligned,
    /// Too many calls wait at this node: to be tried again.
    Busy,
    /// This node leaves the memory: to be asked of another one.
    NoNode,
    /// The only copy was at a node that is gone: to be renewed first.
    Lost,
}
