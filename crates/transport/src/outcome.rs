//! The entries of a host's queues: a message that was delivered, and what became of one that was
//! submitted (§4).

use alloc::vec::Vec;
use core::fmt;

use concord_wire::harmony::Reason;

/// What became of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It was delivered, once.
    Complete,
    /// It was not admitted: it was not delivered.
    Reject(Reason),
    /// It was not seen to be delivered in its time. It may have been, once.
    Failure(Reason),
}

/// An entry of the completion queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// The message's number, as [`crate::Host::submit`] gave it.
    pub number: u64,
    /// The place of its receiver.
    pub to: u16,
    /// What became of it.
    pub outcome: Outcome,
}

/// A message that was delivered here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Delivered {
    /// The place of its sender.
    pub from: u16,
    /// Which start of the sender.
    pub incarnation: u32,
    /// Its number.
    pub number: u64,
    /// Its bytes.
    pub data: Vec<u8>,
}

/// A message that is not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SubmitError {
    /// There is no host at that place, or it is this one.
    Host(u16),
    /// It is empty, or too long.
    Size(usize),
    /// Too many messages wait.
    Full,
}

impl fmt::Display for SubmitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SubmitError::Host(place) => write!(f, "there is no other host at place {place}"),
            SubmitError::Size(bytes) => {
                write!(f, "a message of {bytes} bytes is none, or too long")
            }
            SubmitError::Full => f.write_str("too many messages wait: take completions first"),
        }
    }
}

impl core::error::Error for SubmitError {}
