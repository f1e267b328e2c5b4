//! The client of a Concord rack, as a state machine without I/O: sessions, request numbers,
//! retries, deadlines, values of many packets. One for the gateway, the native client, the bench
//! and the simulator.
//!
//! Read [`Client`] and [`Outcome`] first.
//!
//! The law of the API is that of every [`Machine`](concord_core::Machine), with an input of its
//! own, [`Client::submit`]: after each input, [`Client::poll`] until it gives nothing. Each
//! submitted request ends in exactly one [`Done`].
//!
//! What it guarantees, together with the replicas' client table (trap T16): a write is executed at
//! most once; [`Outcome::Reply`] means exactly once.
//!
//! - Writes belong to a session, registered through the replicated stream before the first one.
//!   Every write says how far it is above the lowest unanswered one. One that is abandoned at its
//!   deadline falls below it and is refused from then on.
//! - Writes of one connection execute in their order (trap T22): each names the one before.
//! - A retry has the same number and another attempt (trap T21: the switch hashes both).
//!
//! ```
//! use concord_client::{Class, Client, ClientConfig, Request};
//! use concord_core::{Machine, Now, Rng, hash::object_id};
//! use concord_wire::{Addr, Flags, FurtherIds, Op, Packet};
//!
//! let addr = |port| Addr { ip: 0x7f00_0001, port };
//! let mut client = Client::new(ClientConfig::new(addr(1), addr(2)), Rng::new(42));
//! let mut sent = Vec::new();
//! let read = Request {
//!     class: Class::Read,
//!     obj_id: object_id(b"key"),
//!     further: FurtherIds::NONE,
//!     flags: Flags::default(),
//!     after: None,
//!     command: b"an encoded command",
//! };
//! let number = client.submit(Now::default(), read, &mut sent).unwrap();
//!
//! // What the rack would answer.
//! let mut reply = Packet::parse(&sent[0].1).unwrap().repr();
//! reply.op = Op::ReadReply;
//! let mut bytes = Vec::new();
//! reply.emit(b"value", &mut bytes);
//! client.handle(Now::default(), addr(2), &mut bytes, &mut sent);
//! let done = client.poll().unwrap();
//! assert_eq!((done.request, &done.reply[..]), (number, &b"value"[..]));
//! ```
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;

mod api;
mod client;
pub mod coord;
pub mod coord_commands;
mod flow;
mod order;
mod register;
mod route;
mod session;
mod slots;
mod timers;
mod transfer;
mod values;

pub use api::{
    Class, ClientConfig, ClientCounters, Done, Outcome, Request, Size, SubmitError, Trace,
    Withdrawn,
};
pub use client::Client;
