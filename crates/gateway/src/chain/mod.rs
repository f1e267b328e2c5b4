//! Keys of a chain of switches (NetCRAQ), for Redis clients: those that begin with a prefix, in
//! whatever database. The chain answers them; the rack's replicas never hear of them.
//!
//! **Order within a connection** (trap T22) holds across both systems: a command for the chain
//! waits until all commands before it are answered, and those after it wait for its answer.
//!
//! **Refused** is whatever the chain cannot do, with one error, and without any effect: another
//! command, several keys, a transaction, a script, and clients that cache keys, since nobody would
//! invalidate theirs (hole N11).
//!
//! **CONCORD EXPLAIN** executes a command, a write too, and says which switch answered and why.

pub(crate) mod callers;
mod commands;
pub(crate) mod shadowed;
