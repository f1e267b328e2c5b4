//! The switch model: what a match-action pipeline with register arrays (PISA) allows, by
//! construction (Harmonia §7.1, "Switch data plane structure").
//!
//! A program is a parser, stages with [`RegisterArray`]s, and a [`Verdict`]. A packet touches an
//! array at most once a pass, with a read-compare-update of one cell of up to 64 bits; what needs
//! more recirculates, and pays for it.
//!
//! Read [`RegisterArray`] and [`Port`] first. The law: the code that handles a packet is handed
//! [`Port`]s, never the arrays; a port is consumed by its one access.
//!
//! ```
//! use concord_pisa::{Pass, RegisterArray};
//!
//! let mut seq: RegisterArray<u32> = RegisterArray::new("seq", 0, 1);
//! let mut pass = Pass::begin();
//! let numbered = seq.port().access(&mut pass, 0, |cell| {
//!     *cell += 1;
//!     *cell
//! });
//! assert_eq!(numbered, 1);
//! ```
//!
//! A second touch in the same pass does not compile:
//!
//! ```compile_fail,E0382
//! use concord_pisa::{Pass, Port};
//!
//! fn twice(seq: Port<'_, u32>, pass: &mut Pass) -> u32 {
//!     let read = seq.access(pass, 0, |cell| *cell);
//!     seq.access(pass, 0, |cell| *cell = read + 1); // use of moved value: `seq`
//!     read
//! }
//! ```
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;

pub mod hash;
pub mod register;
pub mod report;
pub mod verdict;

pub use hash::Crc32;
pub use register::{Cell, Pass, Port, Ports, RegisterArray};
pub use report::{ASIC, ArrayReport, Asic, Report, TableReport};
pub use verdict::{Copies, Metadata, PORTS_MAX, PortId, PortSet, Verdict};
