//! Whether a connection's user may run a command, with its keys and channels. Scripts and functions are looked at as a
//! whole, since replicas, which run them, know of no users.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use concord_engine::keys as places;
use concord_engine::table::UpperName;

use crate::client::describe;
use crate::commands::{Failure, Handling};
use crate::connection::Connection;
use crate::locality::{called_on_first_key, touches_first_key_alone};
use crate::rules::{Access, Call, Denied, User};
use crate::state::{Core, Turn};
use crate::table::accesses;
use crate::users::{LogEntry, log_ms};

const NO_KEY: &str =
    "NOPERM this user has no permissions to access one of the keys used as arguments";
const NO_CHANNEL: &str =
    "NOPERM this user has no permissions to access one of the channels used as arguments";
const NO_SCRIPT: &str = "NOPERM Concord runs scripts and functions only for users who may run every command on data, on \
     all keys and channels, or if their text shows that they touch only one key, which they name";

/// What is wrong with a command of a user, and the argument that it hangs on.
type Refused = (Denied, Failure);

impl Core {
    /// Refuses what the connection's user may not do, and notes it for ACL LOG.
    pub(crate) fn must_be_allowed(
        &mut self,
        turn: &Turn<'_>,
        handling: Handling,
        args: &[&[u8]],
    ) -> Result<(), Failure> {
        let connection = &*turn.connection;
        if connection.user.may_all() || matches!(handling, Handling::Always(_)) {
            return Ok(());
        }
        let Err((denied, failure)) = self.check_user(&connection.user, handling, args) else {
            return Ok(());
        };
        let object = match denied {
            Denied::Command => self.name_of_call(args).into_bytes(),
            Denied::Key(at) | Denied::Channel(at) => args[at].to_vec(),
        };
        let context = if connection.multi.is_some() { "multi" } else { "toplevel" };
        let user = connection.user.name.clone();
        self.note_refused(turn, reason_of(denied), context, object, user);
        Err(failure)
    }

    /// The name of a command and its subcommand, as refusals show it.
    pub(crate) fn name_of_call(&self, args: &[&[u8]]) -> String {
        match self.users.catalogue.find_call(args) {
            Some(command) => self.users.catalogue.name(command).into(),
            None => String::from_utf8_lossy(args[0]).to_ascii_lowercase(),
        }
    }

    fn check_user(&self, user: &User, handling: Handling, args: &[&[u8]]) -> Result<(), Refused> {
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
        let name = UpperName::of(args[0]);
        self.with_call(args, |call| {
            user.check(call).map_err(refuse)?;
            if (name.is(b"SORT") || name.is(b"SORT_RO"))
                && !user.may_on_all_keys(call)
                && let Some(option) = pattern_of_sort(args)
            {
                let text = format!(
                    "ERR {option} option of SORT denied due to insufficient ACL permissions."
                );
                return Err((Denied::Command, text.into()));
            }
            Ok(())
        })?;
        match handling {
            Handling::Script { by_sha, .. } if !self.may_run(user, by_sha, args) => {
                Err((Denied::Command, NO_SCRIPT.into()))
            }
            Handling::Call { .. } if !user.may_what_scripts_may(&self.users.catalogue) => {
                Err((Denied::Command, NO_SCRIPT.into()))
            }
            // What is explained is executed.
            Handling::Explain => match args.get(2..).filter(|inner| !inner.is_empty()) {
                Some(inner) => self.check_user(user, Handling::Info, inner),
                None => Ok(()),
            },
            _ => Ok(()),
        }
    }

    /// Hands a command with its keys and channels to `look`.
    pub(crate) fn with_call<T>(&self, args: &[&[u8]], look: impl FnOnce(&Call<'_>) -> T) -> T {
        let name = UpperName::of(args[0]);
        let keys = accesses(&self.setup.table, args);
        let (channels, are_patterns): (Vec<usize>, bool) = match name.bytes() {
            b"PUBLISH" | b"SPUBLISH" if args.len() > 1 => (alloc::vec![1], false),
            b"SUBSCRIBE" | b"SSUBSCRIBE" => ((1..args.len()).collect(), false),
            b"PSUBSCRIBE" => ((1..args.len()).collect(), true),
            _ => (Vec::new(), false),
        };
        let command = self.users.catalogue.find_call(args);
        look(&Call { command, args, keys: &keys, channels: &channels, are_patterns })
    }

    /// Whether a user may run this script: one that may do everything; or one that may run each command that the
    /// script's text names, all on its only key. That a script touches no other key the engine sees to.
    fn may_run(&self, user: &User, by_sha: bool, args: &[&[u8]]) -> bool {
        let all = &self.users.catalogue;
        if user.may_what_scripts_may(all) {
            return true;
        }
        let found = self.scripts.get(args[1]).map(|script| &script.text[..]);
        let text = if by_sha { found } else { Some(args[1]) };
        let Some(text) = text.filter(|_| args.get(2) == Some(&&b"1"[..])) else {
            // One that is not known is refused as such.
            return by_sha && found.is_none();
        };
        let may = |name: &&[u8]| {
            let args = [*name, args.get(3).copied().unwrap_or_default()];
            let command = all.find_call(&args[..1]);
            let (keys, channels) = (&[(1, Access::BOTH)], &[]);
            let call = Call { command, args: &args, keys, channels, are_patterns: false };
            user.check(&call).is_ok()
        };
        touches_first_key_alone(text, &self.setup.table)
            && called_on_first_key(text).is_some_and(|names| names.iter().all(may))
    }

    /// An entry of ACL LOG.
    pub(crate) fn note_refused(
        &mut self,
        turn: &Turn<'_>,
        reason: &'static str,
        context: &'static str,
        object: Vec<u8>,
        user: Vec<u8>,
    ) {
        let client = describe(self, turn.now, turn.connection);
        let client = client.trim_end().into();
        let at_ms = log_ms(turn.now);
        self.users.note(LogEntry { count: 0, reason, context, object, user, at_ms, client });
    }
}

/// What ACL LOG says.
fn reason_of(denied: Denied) -> &'static str {
    match denied {
        Denied::Command => "command",
        Denied::Key(_) => "key",
        Denied::Channel(_) => "channel",
    }
}

/// The option by which SORT looks at keys that it does not name.
fn pattern_of_sort(args: &[&[u8]]) -> Option<&'static str> {
    if !places::sorts_by_keys(args) {
        return None;
    }
    let is_by = |pair: &[&[u8]]| pair[0].eq_ignore_ascii_case(b"BY") && pair[1].contains(&b'*');
    Some(if args[2..].windows(2).any(is_by) { "BY" } else { "GET" })
}

/// Whether a connection's subscriptions are all allowed to its user.
pub(crate) fn may_listen(user: &User, connection: &Connection) -> bool {
    let subscriber = &connection.subscriber;
    let plain = subscriber.channels.iter().chain(&subscriber.shards).map(|name| (name, false));
    let all = plain.chain(subscriber.patterns.iter().map(|name| (name, true)));
    let mut all = all;
    all.all(|(name, is_pattern)| {
        user.all_selectors().any(|selector| selector.allows_channel(name, is_pattern))
    })
}

/// What a dry run says.
pub(crate) fn dry_run(core: &Core, user: &User, args: &[&[u8]]) -> Result<(), String> {
    let found = core.commands.find(&UpperName::of(args[0]));
    if found.is_some_and(|index| matches!(core.commands.entry(index).handling, Handling::Always(_)))
    {
        return Ok(());
    }
    core.with_call(args, |call| user.check(call)).map_err(|denied| {
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
