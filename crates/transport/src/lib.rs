//! A transport whose messages reserve their way before they are sent: the hosts of Harmony (NSDI
//! 2024). The switches between them are `concord_switch::harmony`.
//!
//! Read [`Host`] first, then [`HostSettings`], whose methods are the times by which everything
//! ends. The law is that of every node: `handle(now, packet)`, `tick`, `deadline`; what it sends
//! goes into the sink. A message goes in by [`Host::submit`]; its outcome, of each message exactly
//! one, comes out of [`Host::poll_completion`]. A message is delivered at most once.
//!
//! ```
//! use concord_core::{Addr, Guards, Machine as _, NodeId, Now};
//! use concord_transport::{Completion, Host, HostSettings, Outcome};
//!
//! let addr = |place| Addr { ip: 0x7f00_0001, port: 9000 + place };
//! let settings = |place| HostSettings {
//!     node: NodeId(1 + place),
//!     place,
//!     hosts: vec![addr(0), addr(1)],
//!     ..HostSettings::EXAMPLE
//! };
//! let mut hosts = [Host::new(settings(0)).unwrap(), Host::new(settings(1)).unwrap()];
//! let mut now = Now::default();
//! let number = hosts[0].submit(now, 1, b"hello".to_vec()).unwrap();
//! while hosts.iter().any(|host| !host.is_idle()) {
//!     for place in [0, 1] {
//!         let mut sent = Vec::new();
//!         hosts[place].tick(now, &mut sent);
//!         for (_, mut packet) in sent {
//!             let mut answers = Vec::new();
//!             let other = 1 - place;
//!             hosts[other].handle(now, addr(place as u16), &mut packet, &mut answers);
//!             for (_, mut answer) in answers {
//!                 hosts[place].handle(now, addr(other as u16), &mut answer, &mut Vec::new());
//!             }
//!         }
//!     }
//!     now.instant = now.instant.after(1_000);
//! }
//! assert_eq!(hosts[1].poll_delivered().unwrap().data, b"hello");
//! let completion = Completion { number, to: 1, outcome: Outcome::Complete };
//! assert_eq!(hosts[0].poll_completion(), Some(completion));
//! ```
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;

mod host;
mod message;
mod outcome;
mod receiving;
mod sending;
mod settings;
#[cfg(test)]
mod tests;

pub use host::Host;
pub use outcome::{Completion, Delivered, Outcome, SubmitError};
pub use receiving::ReceiverCounters;
pub use sending::SenderCounters;
pub use settings::{HostSettings, OPEN_MAX, SettingsError, WINDOW};
