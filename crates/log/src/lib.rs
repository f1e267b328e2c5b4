//! The log that a replica keeps on its disk: its format, and how it is recovered after a crash. It
//! does no I/O: the caller, with a real or a simulated disk, writes the bytes that this crate
//! makes, and passes in those that it reads.
//!
//! Read [`Batch`], [`Writer`] and [`Recovery`] first. A replica puts what is to become durable into
//! a batch. The writer seals the batch, which becomes a *group* of frames in the newest segment.
//! The group is synced as one before the next is written. At a start, [`Recovery`] is shown every
//! segment, and says what can be trusted: all groups up to an incomplete last one, which is cut
//! off, or nothing at all if something is missing before the end, which is never cut off.
//! [`entries`] then gives what the segments hold.
//!
//! A snapshot is stored in the log: its parts, each as of a position, stand between the records, in
//! the order in which a joining replica receives them. Once a snapshot is complete and durable, the
//! segments before its first part are no longer needed.
//!
//! docs/operate/durability.md gives the format, the order in which things become durable, and the
//! guarantees.
//!
//! ```
//! use concord_log::{Batch, Identity, Recovery, Writer};
//!
//! let identity = Identity { storage: 7, node: 1, engine: None };
//! let mut writer = Writer::new(identity, 1, 1);
//! let mut file = Vec::new();
//! writer.begin_segment(&mut file);
//! let mut batch = Batch::default();
//! batch.reset();
//! writer.seal(batch.bytes());
//! file.extend_from_slice(batch.bytes());
//! // The end of the last group never got to the disk.
//! file.truncate(file.len() - 1);
//! let mut recovery = Recovery::new(7);
//! recovery.segment(1, &file);
//! let found = recovery.finish().unwrap();
//! assert_eq!(found.node, Some(1));
//! assert!(found.cut.is_some());
//! ```
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;

mod batch;
mod check;
mod entries;
mod frame;
mod marks;
mod recovery;
mod writer;

#[cfg(test)]
mod tests;

pub use batch::{Batch, PART_BYTES_MAX, Part, TooLong};
pub use check::Check;
pub use entries::{Entry, entries, identity};
pub use frame::{BODY_BYTES_MAX, HEADER_BYTES};
pub use marks::{EngineKind, Identity, Marks, Origin, ViewMarks};
pub use recovery::{Begin, Cut, Damage, Found, Recovery, What};
pub use writer::{SEGMENT_BYTES, Writer};
