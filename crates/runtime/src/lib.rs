//! The only crate with system calls: UDP with trains, TCP, disk, clocks, and the loops that run the
//! machines of the other crates.
//!
//! Read [`driver::Driver`] first (the loop), then [`udp`] (trains) and [`roles`] (the processes of
//! a rack). The law: one thread per role; a machine gets one input at a time, with the clock
//! sampled after the input was received (trap T1).
#![deny(unsafe_code)]

pub mod clock;
pub mod coord;
pub mod cpu_share;
pub mod directory;
pub mod disk;
pub mod driver;
pub mod error;
pub mod falcon;
pub mod http;
pub mod key_file;
pub mod logging;
pub mod manifest;
pub mod memory;
pub mod origin;
pub mod poller;
mod process;
pub mod redis_server;
pub mod roles;
mod scrub;
pub mod state_file;
pub mod udp;

pub use error::{Context, Error};
pub use process::ignores_hangup;

/// The value of `GLIBC_TUNABLES` for roles that `concord up` starts, unless it is set: replicas
/// read all over their memory, and huge pages save the tenth of their time that is otherwise spent
/// on page tables (docs/internals/harmonia.md).
pub const TUNABLES: &str = "glibc.malloc.hugetlb=1";
