//! Whether a connection's user may run a command, with its keys and channels. What scripts and
//! functions call, replicas look at, by the rules that are sent with them.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use concord_engine::acl::{Denied, Refused, check, with_call};
use concord_engine::table::UpperName;

use crate::commands::{Failure, Handling};
use crate::connection::Connection;
use crate::connection::client::describe;
use crate::state::{CommandContext, Core};
use crate::users::user::User;
use crate::users::{LogEntry, log_ms};

const NO_KEY: &str =
    "NOPERM this user has no permissions to access one of the keys used as arguments";
const NO_CHANNEL: &str =
    "NOPERM this user has no permissions to access one of the channels used as arguments";

/// The reason for which a user's command is denied, and the argument to blame.
type Failed = (Denied, Failure);

impl Core {
    /// Refuses what the connection's user may not do, and notes it for ACL LOG.
    #[inline]
    pub(crate) fn must_be_allowed(
        &mut self,
        call: &CommandContext<'_>,
        handling: Handling,
        args: &[&[u8]],
    ) -> Result<(), Failure> {
        if call.connection.user.may_all() || matches!(handling, Handling::Always(_)) {
            return Ok(());
        }
        self.must_have_rights(call, handling, args)
    }

    fn must_have_rights(
        &mut self,
        call: &CommandContext<'_>,
        handling: Handling,
        args: &[&[u8]],
    ) -> Result<(), Failure> {
        let connection = &*call.connection;
        let Err((denied, failure)) = self.check_user(&connection.user, handling, args) else {
            return Ok(());
        };
        let object = match denied {
            Denied::Command => self.name_of_call(args).into_bytes(),
            Denied::Key(at) | Denied::Channel(at) => args[at].to_vec(),
        };
        let context = if connection.multi.is_some() { "multi" } else { "toplevel" };
        let user = connection.user.name.clone();
        self.note_refused(call, reason_of(denied), context, object, user);
        Err(failure)
    }

    /// The name of a command and its subcommand, as refusals show it.
    pub(crate) fn name_of_call(&self, args: &[&[u8]]) -> String {
        match self.users.catalogue.find_call(args) {
            Some(command) => self.users.catalogue.name(command).into(),
            None => String::from_utf8_lossy(args[0]).to_ascii_lowercase(),
        }
    }

    fn check_user(&self, user: &User, handling: Handling, args: &[&[u8]]) -> Result<(), Failed> {
        let refuse = |denied| {
            let text = match denied {
                Denied::Command => {
                    let name = self.name_of_call(args);
                    format!("NOPERM this user has no permissions to run the '{name}' command")
                        .into()
                }
                Denied::Key(_) => NO_KEY.into(),
                Denied::Channel(_) => NO_CHANNEL.into(),
            };
            (denied, text)
        };
        check(&self.users.catalogue, &self.setup.table, &user.rights, args).map_err(|refused| {
            match refused {
                Refused::Denied(denied) => refuse(denied),
                Refused::Sort(option) => {
                    let text = format!(
                        "ERR {option} option of SORT denied due to insufficient ACL permissions."
                    );
                    (Denied::Command, text.into())
                }
            }
        })?;
        match handling {
            // An explained command is executed.
            Handling::Explain => match args.get(2..).filter(|inner| !inner.is_empty()) {
                Some(inner) => self.check_user(user, Handling::Info, inner),
                None => Ok(()),
            },
            _ => Ok(()),
        }
    }

    /// An entry of ACL LOG.
    pub(crate) fn note_refused(
        &mut self,
        call: &CommandContext<'_>,
        reason: &'static str,
        context: &'static str,
        object: Vec<u8>,
        user: Vec<u8>,
    ) {
        let client = describe(self, call.now, call.connection);
        let client = client.trim_end().into();
        let at_ms = log_ms(call.now);
        self.users.note(LogEntry { count: 0, reason, context, object, user, at_ms, client });
    }
}

/// The reason in ACL LOG.
fn reason_of(denied: Denied) -> &'static str {
    match denied {
        Denied::Command => "command",
        Denied::Key(_) => "key",
        Denied::Channel(_) => "channel",
    }
}

/// Whether a connection's subscriptions are all allowed to its user.
pub(crate) fn may_listen(user: &User, connection: &Connection) -> bool {
    let subscriber = &connection.subscriber;
    let plain = subscriber.channels.iter().chain(&subscriber.shards).map(|name| (name, false));
    let all = plain.chain(subscriber.patterns.iter().map(|name| (name, true)));
    let mut all = all;
    all.all(|(name, is_pattern)| {
        user.rights.all_selectors().any(|selector| selector.allows_channel(name, is_pattern))
    })
}

/// The result of a dry run.
pub(crate) fn dry_run(core: &Core, user: &User, args: &[&[u8]]) -> Result<(), String> {
    let found = core.commands.find(&UpperName::of(args[0]));
    if found.is_some_and(|index| matches!(core.commands.entry(index).handling, Handling::Always(_)))
    {
        return Ok(());
    }
    let checked =
        with_call(&core.users.catalogue, &core.setup.table, args, |call| user.rights.check(call));
    checked.map_err(|denied| {
        let shown = |at: usize| String::from_utf8_lossy(args[at]).into_owned();
        match denied {
            Denied::Command => {
                let name = core.name_of_call(args);
                format!("This user has no permissions to run the '{name}' command")
            }
            Denied::Key(at) => {
                format!("This user has no permissions to access the '{}' key", shown(at))
            }
            Denied::Channel(at) => {
                format!("This user has no permissions to access the '{}' channel", shown(at))
            }
        }
    })
}
