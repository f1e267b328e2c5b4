//! A connection's database: its commands go to the rack with keys as they are stored, and come back with the keys that
//! the client knows (`concord_engine::databases`). Everything between sees longer keys.

use alloc::boxed::Box;
use alloc::format;
use alloc::vec::Vec;

use concord_engine::databases::{self, Localized, Names, localize, may_change, of_key};
use concord_engine::table::UpperName;
use concord_engine::{resp, resp_scan};

use crate::commands::{Entry, Failure, Handling};
use crate::keys::{Keys, keys};
use crate::state::{Core, Turn};

/// Where a reply names keys, and of which database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Named {
    names: Names,
    database: u8,
}

impl Named {
    fn show(self, reply: Vec<u8>) -> Vec<u8> {
        databases::show(self.names, self.database, reply)
    }
}

/// What becomes of a reply on its way to the client.
#[derive(Debug, Default)]
pub(crate) enum Shown {
    /// Nothing.
    #[default]
    AsIs,
    Of(Named),
    /// Of a transaction, for each of its commands.
    Each(Box<[Option<Named>]>),
}

impl Shown {
    /// That of a transaction.
    pub(crate) fn each(of: &[Option<Named>]) -> Shown {
        if of.iter().all(Option::is_none) { Shown::AsIs } else { Shown::Each(of.into()) }
    }

    /// That of a single command.
    pub(crate) fn named(&self) -> Option<Named> {
        match self {
            Shown::Of(named) => Some(*named),
            Shown::AsIs | Shown::Each(_) => None,
        }
    }

    /// The reply as the client gets it.
    pub(crate) fn show(self, reply: Vec<u8>) -> Vec<u8> {
        match self {
            Shown::AsIs => reply,
            Shown::Of(named) => named.show(reply),
            Shown::Each(of) if reply.starts_with(b"*") && !resp::is_null(&reply) => {
                let mut out = Vec::with_capacity(reply.len());
                resp::array(&mut out, of.len());
                for (named, one) in of.iter().zip(resp_scan::elements(&reply)) {
                    match named {
                        None => out.extend_from_slice(one),
                        Some(named) => out.extend_from_slice(&named.show(one.to_vec())),
                    }
                }
                out
            }
            Shown::Each(_) => databases::show(Names::Errors, 0, reply),
        }
    }
}

/// Whether the keys of a command are those of its connection's database.
fn has_keys(handling: Handling) -> bool {
    match handling {
        Handling::OneKey(..)
        | Handling::Keys(_)
        | Handling::Blocks(_)
        | Handling::AllKeys(_)
        | Handling::Cursor
        | Handling::Several(_)
        | Handling::Script { .. }
        | Handling::Container
        | Handling::Watch => true,
        Handling::Multi
        | Handling::Exec
        | Handling::Discard
        | Handling::Explain
        | Handling::PubSub(_)
        | Handling::Info
        | Handling::Local(_)
        | Handling::Always(_)
        | Handling::Refused(_) => false,
    }
}

impl Core {
    /// The arguments of a command with its keys as they are stored, if that changes any; and notes how its reply is to be shown.
    pub(crate) fn localize<'a>(
        &self,
        turn: &mut Turn<'_>,
        entry: &Entry,
        name: &UpperName,
        args: &[&'a [u8]],
    ) -> Result<Option<Localized<'a>>, Failure> {
        let database = turn.connection.database;
        turn.shown = Shown::AsIs;
        let changes = may_change(database, args) || entry.is_across;
        if !has_keys(entry.handling) || !changes && !entry.names.are_of_all() {
            return Ok(None);
        }
        turn.shown = Shown::Of(Named { names: entry.names, database });
        if !changes {
            return Ok(None);
        }
        let spec = self.setup.table.spec_of(name.bytes(), args.get(1).copied());
        let all = localize(database, spec, name, args)?;
        let is_own = |at: usize| all.get(at).is_some_and(|key| of_key(key) == database);
        let name = UpperName::of(&all[0]);
        let args: Vec<&[u8]> = all.iter().map(|arg| &**arg).collect();
        let found = match entry.is_across {
            true => Keys::None,
            false => spec.map_or(Keys::None, |spec| keys(spec, name.bytes(), &args)),
        };
        let are_own = match found {
            Keys::One(at) => is_own(usize::from(at)),
            Keys::Several(at) | Keys::AndOthers(at) => at.into_iter().all(is_own),
            Keys::None | Keys::BadNumber | Keys::Unsupported => true,
        };
        if !are_own {
            // No command may reach the keys of another database because its own were not found.
            let name = &entry.name;
            return Err(format!(
                "ERR Concord does not support this form of '{name}' in databases other than 0"
            )
            .into());
        }
        Ok(Some(all))
    }
}
