//! ACL, and how a client says who it is.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use concord_client::Class;
use concord_engine::acl::Selector;
use concord_engine::resp;
use concord_engine::table::UpperName;
use concord_engine::table::categories::{CATEGORIES, bit_of};

use crate::commands::{Failure, no_subcommand};
use crate::connection::client::help;
use crate::connection::local::{REDIS_VERSION, check_name, wrong_arity};
use crate::connection::{Connection, Slot, SlotState, Subject, Wait};
use crate::state::{CommandContext, Core};
use crate::users::access::dry_run;
use crate::users::user::User;
use crate::users::{Change, DEFAULT, PendingChange, log_ms};

/// The largest password of ACL GENPASS, in bits.
const PASSWORD_BITS_MAX: i64 = 4_096;
const NO_FILE: &str = "ERR This Redis instance is not configured to use an ACL file. You may want to specify users via \
     the ACL SETUSER command and then issue a CONFIG REWRITE (assuming you have a Redis configuration \
     file set) in order to store users in the Redis configuration.";
const WRONG_PASSWORD: &str = "WRONGPASS invalid username-password pair or user is disabled.";

const HELP: [&str; 29] = [
    "ACL <subcommand> [<arg> [value] [opt] ...]. Subcommands are:",
    "CAT [<category>]",
    "    List all commands that belong to <category>, or all command categories",
    "    when no category is specified.",
    "DELUSER <username> [<username> ...]",
    "    Delete a list of users.",
    "DRYRUN <username> <command> [<arg> ...]",
    "    Returns whether the user can execute the given command without executing the command.",
    "GETUSER <username>",
    "    Get the user's details.",
    "GENPASS [<bits>]",
    "    Generate a secure 256-bit user password. The optional `bits` argument can",
    "    be used to specify a different size.",
    "LIST",
    "    Show users details in config file format.",
    "LOAD",
    "    Reload users from the ACL file.",
    "LOG [<count> | RESET]",
    "    Show the ACL log entries.",
    "SAVE",
    "    Save the current config to the ACL file.",
    "SETUSER <username> <attribute> [<attribute> ...]",
    "    Create or modify a user with the specified attributes.",
    "USERS",
    "    List all the registered usernames.",
    "WHOAMI",
    "    Return the current connection username.",
    "HELP",
    "",
];

pub(crate) fn acl(
    core: &mut Core,
    call: &mut CommandContext<'_>,
    args: &[&[u8]],
) -> Result<(), Failure> {
    let sub = UpperName::of(args[1]);
    let resp3 = call.connection.resp3;
    match (sub.bytes(), &args[2..]) {
        (b"WHOAMI", []) => {
            let name = call.connection.user.name.clone();
            call.connection.answer(|out| resp::bulk(out, &name));
        }
        (b"SETUSER", [name, rules @ ..]) => {
            if name.iter().any(|byte| byte.is_ascii_whitespace() || *byte == 0) {
                return Err("ERR Usernames can't contain spaces or null characters".into());
            }
            let rules = rules.iter().map(|rule| rule.to_vec()).collect();
            return core.change_users(call, Change::Set(name.to_vec(), rules));
        }
        (b"DELUSER", names @ [_, ..]) => {
            if names.contains(&DEFAULT) {
                return Err("ERR The 'default' user cannot be removed".into());
            }
            let names = names.iter().map(|name| name.to_vec()).collect();
            return core.change_users(call, Change::Delete(names));
        }
        (b"GETUSER", [name]) => match core.users.find(name) {
            Some(user) => {
                let user = user.clone();
                call.connection.answer(|out| show_user(core, &user, out, resp3));
            }
            None => call.connection.answer(|out| resp::null(out, resp3)),
        },
        (b"LIST", []) => {
            let users = &core.users;
            call.connection.answer(|out| {
                resp::array(out, users.table().len());
                let lines = users.table().values().map(|user| user.describe(&users.catalogue));
                lines.for_each(|line| resp::bulk(out, &line));
            });
        }
        (b"USERS", []) => call.connection.answer(|out| {
            resp::array(out, core.users.table().len());
            core.users.table().keys().for_each(|name| resp::bulk(out, name));
        }),
        (b"CAT", []) => call.connection.answer(|out| {
            resp::array(out, CATEGORIES.len());
            CATEGORIES.iter().for_each(|name| resp::bulk(out, name.as_bytes()));
        }),
        (b"CAT", [category]) => {
            let name = String::from_utf8_lossy(category);
            let bit = bit_of(&name.to_ascii_lowercase());
            let bit = bit.ok_or_else(|| Failure::from(format!("ERR Unknown category '{name}'")))?;
            let names: Vec<&str> = core.users.catalogue.of_category(bit).collect();
            call.connection.answer(|out| {
                resp::array(out, names.len());
                names.iter().for_each(|name| resp::bulk(out, name.as_bytes()));
            });
        }
        (b"GENPASS", [] | [_]) => {
            let bits = args.get(2).map_or(Some(256), |bits| resp::number(bits));
            let bits = bits.ok_or("ERR value is not an integer or out of range")?;
            if !(1..=PASSWORD_BITS_MAX).contains(&bits) {
                return Err("ERR ACL GENPASS argument must be the number of bits for the output \
                            password, a positive number up to 4096"
                    .into());
            }
            let password = core.users.draw((bits as usize).div_ceil(4));
            call.connection.answer(|out| resp::bulk(out, password.as_bytes()));
        }
        (b"DRYRUN", [name, command @ ..]) if !command.is_empty() => {
            return dry_run_of(core, call, name, command);
        }
        (b"LOG", [] | [_]) => return log(core, call, args.get(2).copied()),
        (b"LOAD" | b"SAVE", []) => return Err(NO_FILE.into()),
        (b"HELP", []) => help(call, &HELP[..HELP.len() - 1]),
        (
            b"WHOAMI" | b"SETUSER" | b"DELUSER" | b"GETUSER" | b"LIST" | b"USERS" | b"CAT"
            | b"GENPASS" | b"DRYRUN" | b"LOG" | b"LOAD" | b"SAVE" | b"HELP",
            _,
        ) => return Err(wrong_arity(&format!("acl|{}", sub.lower()))),
        _ => return Err(no_subcommand("acl", args[1])),
    }
    Ok(())
}

impl Core {
    /// Users are changed in the order in which clients ask for it; the connection waits for the
    /// reply.
    pub(crate) fn change_users(
        &mut self,
        call: &mut CommandContext<'_>,
        change: Change,
    ) -> Result<(), Failure> {
        let connection = &mut *call.connection;
        if connection.multi.is_some() {
            return Err("ERR Concord does not change users inside MULTI".into());
        }
        let asked = PendingChange { id: connection.id, slot: connection.next_slot(), change };
        let waiting = Slot::waiting(Class::Read, Subject::AllKeys, connection.resp3);
        connection.push_slot(Slot { state: SlotState::Gated(Vec::new()), ..waiting });
        connection.wait = Wait::Users;
        self.users.changes.push_back(asked);
        Ok(())
    }

    /// Whether a connection has to say who it is before all else.
    pub(crate) fn must_log_in(&self, connection: &Connection) -> bool {
        !connection.authenticated && !self.users.are_open()
    }

    /// The user of this name with this password belongs to the connection from now on.
    pub(crate) fn log_in(
        &mut self,
        call: &mut CommandContext<'_>,
        by: &[u8],
        name: Option<&[u8]>,
        password: &[u8],
    ) -> Result<(), Failure> {
        if name.is_none() && self.users.default_user().no_password {
            return Err("ERR AUTH <password> called without any password configured \
                 for the default user. Are you sure your configuration is correct?"
                .into());
        }
        let name = name.unwrap_or(DEFAULT);
        let Some(user) = self.users.log_in(name, password) else {
            let context = if call.connection.multi.is_some() { "multi" } else { "toplevel" };
            self.note_refused(call, "auth", context, by.to_vec(), name.to_vec());
            return Err(WRONG_PASSWORD.into());
        };
        call.connection.user = user;
        call.connection.authenticated = true;
        Ok(())
    }
}

pub(crate) fn auth(
    core: &mut Core,
    call: &mut CommandContext<'_>,
    args: &[&[u8]],
) -> Result<(), Failure> {
    match args {
        [by, password] => core.log_in(call, by, None, password)?,
        [by, user, password] => core.log_in(call, by, Some(user), password)?,
        [..] => return Err("ERR syntax error".into()),
    }
    call.connection.ok();
    Ok(())
}

/// HELLO [2|3 [AUTH user password] [SETNAME name]]. Nothing changes if it fails.
pub(crate) fn hello(
    core: &mut Core,
    call: &mut CommandContext<'_>,
    args: &[&[u8]],
) -> Result<(), Failure> {
    let resp3 = match args.get(1).copied() {
        None => call.connection.resp3,
        Some(b"2") => false,
        Some(b"3") => true,
        Some(version) if resp::number(version).is_none() => {
            return Err("ERR Protocol version is not an integer or out of range".into());
        }
        Some(_) => return Err("NOPROTO unsupported protocol version".into()),
    };
    let (mut name, mut credentials) = (None, None);
    let mut rest = args.get(2..).unwrap_or_default();
    while let Some(word) = rest.first() {
        rest = match (UpperName::of(word).bytes(), rest) {
            (b"AUTH", [_, user, password, rest @ ..]) => {
                credentials = Some((*user, *password));
                rest
            }
            (b"SETNAME", [_, value, rest @ ..]) => {
                check_name(value)?;
                name = Some(*value);
                rest
            }
            _ => {
                let word = String::from_utf8_lossy(word);
                return Err(format!("ERR Syntax error in HELLO option '{word}'").into());
            }
        };
    }
    if let Some((user, password)) = credentials {
        core.log_in(call, args[0], Some(user), password)?;
    }
    if core.must_log_in(call.connection) {
        return Err(
            "NOAUTH HELLO must be called with the client already authenticated, otherwise \
             the HELLO <proto> AUTH <user> <pass> option can be used to authenticate the client \
             and select the RESP protocol version at the same time"
                .into(),
        );
    }
    let connection = &mut *call.connection;
    connection.resp3 = resp3;
    if let Some(name) = name {
        connection.name = name.to_vec();
    }
    let id = connection.id.0 as i64;
    connection.answer(|out| {
        resp::map(out, 7, resp3);
        for (name, value) in [("server", "redis"), ("version", REDIS_VERSION)] {
            resp::bulk(out, name.as_bytes());
            resp::bulk(out, value.as_bytes());
        }
        for (name, value) in [("proto", if resp3 { 3 } else { 2 }), ("id", id)] {
            resp::bulk(out, name.as_bytes());
            resp::integer(out, value);
        }
        for (name, value) in [("mode", "standalone"), ("role", "master")] {
            resp::bulk(out, name.as_bytes());
            resp::bulk(out, value.as_bytes());
        }
        resp::bulk(out, b"modules");
        resp::array(out, 0);
    });
    Ok(())
}

/// ACL DRYRUN user command [arg ...]
fn dry_run_of(
    core: &mut Core,
    call: &mut CommandContext<'_>,
    name: &[u8],
    command: &[&[u8]],
) -> Result<(), Failure> {
    let shown = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let Some(user) = core.users.find(name) else {
        return Err(format!("ERR User '{}' not found", shown(name)).into());
    };
    let Some(index) = core.commands.find(&UpperName::of(command[0])) else {
        return Err(format!("ERR Command '{}' not found", shown(command[0])).into());
    };
    let entry = core.commands.entry(index);
    if !entry.accepts(command.len()) {
        return Err(entry.wrong_arity());
    }
    match dry_run(core, user, command) {
        Ok(()) => call.connection.ok(),
        Err(text) => call.connection.answer(|out| resp::bulk(out, text.as_bytes())),
    }
    Ok(())
}

/// ACL LOG [count | RESET]
fn log(core: &mut Core, call: &mut CommandContext<'_>, arg: Option<&[u8]>) -> Result<(), Failure> {
    let mut most = 10;
    match arg {
        Some(arg) if arg.eq_ignore_ascii_case(b"RESET") => {
            core.users.clear_log();
            call.connection.ok();
            return Ok(());
        }
        Some(arg) => {
            let count = resp::number(arg).ok_or("ERR value is not an integer or out of range")?;
            most = usize::try_from(count).unwrap_or(0);
        }
        None => {}
    }
    let (now_ms, resp3) = (log_ms(call.now), call.connection.resp3);
    let users = &core.users;
    call.connection.answer(|out| {
        resp::array(out, users.log().take(most).count());
        for entry in users.log().take(most) {
            resp::map(out, 7, resp3);
            resp::bulk(out, b"count");
            resp::integer(out, entry.count as i64);
            for (name, value) in [
                ("reason", entry.reason.as_bytes()),
                ("context", entry.context.as_bytes()),
                ("object", &entry.object),
                ("username", &entry.user),
            ] {
                resp::bulk(out, name.as_bytes());
                resp::bulk(out, value);
            }
            resp::bulk(out, b"age-seconds");
            let age_ms = now_ms.saturating_sub(entry.at_ms);
            resp::double(out, age_ms as f64 / 1_000.0, resp3);
            resp::bulk(out, b"client-info");
            resp::bulk(out, entry.client.as_bytes());
        }
    });
    Ok(())
}

fn show_user(core: &Core, user: &User, out: &mut Vec<u8>, resp3: bool) {
    resp::map(out, 6, resp3);
    resp::bulk(out, b"flags");
    let flags = user.flags();
    resp::set(out, flags.len(), resp3);
    flags.iter().for_each(|flag| resp::bulk(out, flag.as_bytes()));
    resp::bulk(out, b"passwords");
    resp::array(out, user.passwords.len());
    user.passwords.iter().for_each(|hash| resp::bulk(out, hash.as_bytes()));
    show_selector(core, &user.rights.root, out);
    resp::bulk(out, b"selectors");
    resp::array(out, user.rights.selectors.len());
    for selector in &user.rights.selectors {
        resp::map(out, 3, resp3);
        show_selector(core, selector, out);
    }
}

fn show_selector(core: &Core, selector: &Selector, out: &mut Vec<u8>) {
    let commands = selector.commands_text(&core.users.catalogue);
    for (name, text) in [
        ("commands", commands.as_bytes()),
        ("keys", &selector.keys_text()),
        ("channels", &selector.channels_text()),
    ] {
        resp::bulk(out, name.as_bytes());
        resp::bulk(out, text);
    }
}
