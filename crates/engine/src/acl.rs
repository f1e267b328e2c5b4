//! Access rules of users, as in Redis 7.0: rules for commands, keys and channels, and what is
//! allowed by them. Gateways look at what clients send; what the scripts of a client do, replicas
//! look at, by the rules that came with the script ([`mod@sent`]).

mod access;
mod rights;
mod rules;
pub mod sent;

pub(crate) use access::words;
pub use access::{accesses, flags, with_call};
pub use rights::{Rights, merged};
pub use rules::{Access, Call, Catalogue, Denied, Selector, Wrong};

use crate::keys;
use crate::table::{CommandTable, UpperName};

/// Why a command is not allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// The rules deny it.
    Denied(Denied),
    /// SORT looks at keys that it does not name, by this option, and not all keys are allowed.
    Sort(&'static str),
}

/// Whether the rules allow a command, by the table of all.
///
/// # Errors
/// Why not.
pub fn check(
    all: &Catalogue,
    table: &CommandTable,
    rights: &Rights,
    args: &[&[u8]],
) -> Result<(), Refused> {
    let name = UpperName::of(args[0]);
    with_call(all, table, args, |call| {
        rights.check(call).map_err(Refused::Denied)?;
        if (name.is(b"SORT") || name.is(b"SORT_RO"))
            && keys::sorts_by_keys(args)
            && !rights.may_on_all_keys(call)
        {
            let is_by =
                |pair: &[&[u8]]| pair[0].eq_ignore_ascii_case(b"BY") && pair[1].contains(&b'*');
            let option = if args[2..].windows(2).any(is_by) { "BY" } else { "GET" };
            return Err(Refused::Sort(option));
        }
        Ok(())
    })
}
