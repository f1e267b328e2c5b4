//! A connection's database: its commands go to the rack with keys as they are stored, and replies
//! come back with the keys that the client knows (`concord_engine::databases`). Everything in
//! between sees the longer keys.

use alloc::format;
use alloc::vec::Vec;

use concord_engine::databases::{Localized, localize, may_change, of_key};
use concord_engine::table::UpperName;

use crate::commands::key_names::{Named, Shown};
use crate::commands::keys::{Keys, keys};
use crate::commands::{Entry, Failure, Handling};
use crate::state::{CommandContext, Core};

/// Whether the keys of a command are in its connection's database.
fn has_keys(handling: Handling) -> bool {
    match handling {
        Handling::OneKey(..)
        | Handling::Keys(_)
        | Handling::Blocks(_)
        | Handling::AllKeys(_)
        | Handling::Cursor
        | Handling::Several(_)
        | Handling::Script { .. }
        | Handling::Call { .. }
        | Handling::Container
        | Handling::Watch => true,
        Handling::Multi
        | Handling::Exec
        | Handling::Discard
        | Handling::Explain
        | Handling::Wait
        | Handling::Function
        | Handling::PubSub(_)
        | Handling::Info
        | Handling::Local(_)
        | Handling::Always(_)
        | Handling::Refused(_) => false,
    }
}

impl Core {
    /// The arguments of a command with its keys as they are stored, if that changes any. Also notes
    /// how its reply is to be shown.
    #[inline]
    pub(crate) fn localize<'a>(
        &self,
        call: &mut CommandContext<'_>,
        entry: &Entry,
        name: &UpperName,
        args: &[&'a [u8]],
    ) -> Result<Option<Localized<'a>>, Failure> {
        call.shown = Shown::AsIs;
        let changes = may_change(call.connection.database, args) || entry.is_across;
        if !changes && !entry.names.are_of_all() || !has_keys(entry.handling) {
            return Ok(None);
        }
        self.localize_keys(call, entry, name, args, changes)
    }

    fn localize_keys<'a>(
        &self,
        call: &mut CommandContext<'_>,
        entry: &Entry,
        name: &UpperName,
        args: &[&'a [u8]],
        changes: bool,
    ) -> Result<Option<Localized<'a>>, Failure> {
        let database = call.connection.database;
        call.shown = Shown::Of(Named { names: entry.names, database });
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
            // A command whose keys were not found must not reach the keys of another database.
            let name = &entry.name;
            return Err(format!(
                "ERR Concord does not support this form of '{name}' in databases other than 0"
            )
            .into());
        }
        Ok(Some(all))
    }
}
