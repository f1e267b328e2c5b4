//! Shared memory in a rack: the nodes, each with a part of the memory and a cache. The switch
//! decides which node may have which copy (Concordia, `concord_switch::concordia`).
//!
//! Read [`Node`] first, a node in one epoch, then [`Event`]; [`MemoryNode`] takes it through
//! epochs. The law is that of every node: `handle(now, packet)`, `tick` and `deadline`, and all
//! packets that they send go into the sink. A program's accesses go in by [`Node::call`], and their
//! outcomes come out of [`Node::poll_done`].
//!
//! ```
//! use concord_core::{Epoch, Guards, NodeId, Now};
//! use concord_memory::{Access, Call, Coherence, Node, NodeSettings};
//! use concord_wire::concordia::Tag;
//! use concord_wire::{Addr, GroupId};
//!
//! let addr = |port| Addr { ip: 0x7f00_0001, port };
//! let settings = NodeSettings {
//!     node: NodeId(1),
//!     place: 0,
//!     group: GroupId(0),
//!     epoch: Epoch(1),
//!     nodes: vec![addr(9000), addr(9001)],
//!     homes: vec![0, 1],
//!     switch: addr(7000),
//!     coherence: Coherence::Concordia,
//!     block_bytes: 512,
//!     range_blocks: 1 << 20,
//!     cache_sets: 1_024,
//!     cache_ways: 8,
//!     lanes: 4,
//!     guards: Guards::ALL,
//! };
//! let mut node = Node::new(settings).unwrap();
//! let mut sink = Vec::new();
//! let access = Access::Read { offset_bytes: 0, size_bytes: 8 };
//! node.call(Now::default(), Call { id: 1, tag: Tag::new(1, 7), access }, &mut sink);
//! assert_eq!(sink[0].0, addr(7000), "a miss asks the switch");
//! assert_eq!(node.poll_done(), None);
//! ```
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;

mod access;
mod agent;
mod blocks;
mod cache;
mod directory;
mod event;
mod gathers;
mod home;
mod member;
mod node;
mod report;
mod settings;
mod store;
#[cfg(test)]
mod tests;

pub use access::{Access, Call, Done, Failure, Function, Work};
pub use cache::{Line, LineState};
pub use concord_wire::concordia::LANES_MAX;
pub use directory::{Doubt, Move, Owner};
pub use event::{Aim, Event, RoundTrip, Stage};
pub use gathers::POSTED_MAX;
pub use home::{Block, Range};
pub use member::{MemberCounters, MemberSettings, MemoryNode};
pub use node::{CALLS_MAX, Node, NodeCounters, Remains};
pub use report::{Item, Report, of_range, rebuild};
pub use settings::{Coherence, NodeSettings, SettingsError};
pub use store::{Store, StoreCounters, WAIT_NS, place_of_key};
