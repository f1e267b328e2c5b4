//! The dispatch of one command: answered here, refused, or sent to the rack.

use alloc::boxed::Box;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::ops::Range;

use concord_client::Class;
use concord_core::hash;
use concord_engine::table::UpperName;
use concord_engine::{CommandSpec, resp, several};
use concord_wire::Sink;

use crate::commands::keys::{Keys, keys};
use crate::commands::split_reads::{Ended, Parts, Several, Split};
use crate::commands::{
    CROSS_KEY, Failure, Handling, Local, class_of, handling_of, no_subcommand, unknown,
};
use crate::connection::{Connection, Multi, Replies, Slot, SlotState, Subject, Wait};
use crate::scripts::functions::Planned;
use crate::state::{CommandContext, Core, Flow, NAME_BYTES_MAX, Place, Sent, TOO_LARGE_NAME};
use crate::{
    commands::command, commands::config, commands::monitor, commands::slow, connection::client,
    connection::local, scripts::eval, users::acl,
};

/// Answers a command without the rack. An error becomes the reply.
pub(crate) type Handler = fn(&mut Core, &mut CommandContext<'_>, &[&[u8]]) -> Result<(), Failure>;

/// The largest number of arguments that are kept on the stack.
const ARGS_INLINE: usize = 16;
/// A read of more arguments is not split into reads of one key: each time that it has to wait, all
/// of them would be examined anew.
const SPLIT_ARGS_MAX: usize = 65_535;
/// The longest name of a subcommand that is shown, in bytes.
const SUB_BYTES_MAX: usize = 32;
/// The first words of the lines of an HTTP request: a page in a browser may have been made to send
/// commands in the body (redis-server closes the connection on the same two).
const HTTP_WORDS: [&[u8]; 2] = [b"POST", b"HOST:"];

impl Core {
    /// Handles one request of a connection. `ranges` are its arguments within `bytes`, at least
    /// one.
    #[inline]
    pub(crate) fn run(
        &mut self,
        call: &mut CommandContext<'_>,
        bytes: &[u8],
        ranges: &[Range<usize>],
        sink: &mut impl Sink,
    ) -> Flow {
        let mut few: [&[u8]; ARGS_INLINE] = [&[]; ARGS_INLINE];
        let many: Vec<&[u8]>;
        let args: &[&[u8]] = if ranges.len() <= ARGS_INLINE {
            for (arg, range) in few.iter_mut().zip(ranges) {
                *arg = &bytes[range.clone()];
            }
            &few[..ranges.len()]
        } else {
            many = ranges.iter().map(|r| &bytes[r.clone()]).collect();
            &many
        };
        if HTTP_WORDS.iter().any(|word| args[0].eq_ignore_ascii_case(word)) {
            // As in redis-server: nothing of it is executed, and there is no reply.
            self.count.http_refused += 1;
            call.connection.closing = true;
            return Flow::Went;
        }
        let mut name = UpperName::default();
        name.set(args[0]);
        let found = self.commands.find(&name);
        let replies = call.connection.replies;
        call.connection.is_silent = replies != Replies::On;
        if replies == Replies::SkipNext {
            call.connection.replies = Replies::On;
        }
        let unread = call.connection.output.len();
        self.note_command(call.connection, found, args);
        call.is_executed = false;
        let answered_here = self.count.commands_local;
        let result = self.dispatch(call, found, &name, args, sink);
        if self.count.commands_local != answered_here {
            self.slow_log.note_local(call.now, call.connection, args);
        }
        if result == Ok(Flow::Waits) {
            call.connection.replies = replies;
            return Flow::Waits;
        }
        self.count.commands += 1;
        call.connection.commands += 1;
        if let Some(index) = found {
            self.commands.entry_mut(index).calls += 1;
        }
        let is_refused = result.is_err() && !call.is_executed;
        if let Err(failure) = result {
            if let Some(index) = found {
                let entry = self.commands.entry_mut(index);
                *(if is_refused { &mut entry.refused } else { &mut entry.failed }) += 1;
            }
            self.count.commands_refused += 1;
            self.errors.note(failure.as_bytes());
            call.connection.abort_multi();
            call.connection.refuse(&failure);
        }
        if !is_refused {
            self.show_command(call, &name, args);
        }
        after_command(call.connection, &name, unread);
        Flow::Went
    }

    /// Notes the current command for CLIENT LIST.
    fn note_command(&self, connection: &mut Connection, found: Option<usize>, args: &[&[u8]]) {
        connection.last_command = found;
        connection.last_sub.clear();
        let has_subs = found.is_some_and(|index| self.commands.entry(index).handling.has_subs());
        if let Some(sub) = args.get(1).filter(|sub| has_subs && sub.len() < SUB_BYTES_MAX) {
            connection.last_sub = String::from_utf8_lossy(sub).to_ascii_lowercase();
        }
    }

    #[inline]
    fn dispatch(
        &mut self,
        call: &mut CommandContext<'_>,
        found: Option<usize>,
        name: &UpperName,
        args: &[&[u8]],
        sink: &mut impl Sink,
    ) -> Result<Flow, Failure> {
        let handling = found.map(|index| self.commands.entry(index).handling);
        let always = matches!(handling, Some(Handling::Always(_)));
        if !always && self.must_log_in(call.connection) {
            return Err("NOAUTH Authentication required.".into());
        }
        let (Some(index), Some(handling)) = (found, handling) else { return Err(unknown(args)) };
        let entry = self.commands.entry(index);
        if !entry.accepts(args.len()) {
            return Err(entry.wrong_arity());
        }
        if args.iter().any(|arg| arg.len() > NAME_BYTES_MAX) {
            self.must_be_short(handling, name, args)?;
        }
        // A command that was sent in part goes on, even if the user's rules have changed.
        if !call.connection.is_splitting {
            self.must_be_allowed(call, handling, args)?;
        }
        if self.must_pause(call, handling) {
            call.connection.wait = Wait::Paused;
            return Ok(Flow::Waits);
        }
        if let Some(failure) = self.must_not_mix(call.connection, name.bytes()) {
            return Err(failure);
        }
        if let Some(failure) = self.must_only_look(call.connection, name.bytes()) {
            return Err(failure);
        }
        if self.chain.is_some()
            && let Some(flow) = self.on_chain(call, handling, name, args, sink)?
        {
            return Ok(flow);
        }
        let entry = self.commands.entry(index);
        let localized = match self.localize(call, entry, name, args) {
            // As in Redis, which checks it when EXEC is executed.
            Err(failure) if call.connection.multi.is_some() && !is_of_concord(&failure) => {
                return self.queue_error(call, &failure);
            }
            localized => localized?,
        };
        let kept: Vec<&[u8]>;
        let args = match &localized {
            None => args,
            Some(all) => {
                kept = all.iter().map(|arg| &**arg).collect();
                &kept
            }
        };
        let database = call.connection.database;
        call.footprint = self.footprint(call.connection, handling, name, args);
        if call.connection.multi.is_some() && !always {
            return self.in_multi(call, index, handling, args, sink);
        }
        call.is_executed = !matches!(handling, Handling::Refused(_));
        match handling {
            Handling::Always(local) | Handling::Local(local) => {
                self.count.commands_local += 1;
                handler_of(local)(self, call, args).map(|()| Flow::Went)
            }
            Handling::OneKey(class, key) => {
                let subject = self.encode(key, args)?;
                self.surround(&mut call.footprint, class);
                Ok(self.submit(call, class, subject, SlotState::Waiting, sink))
            }
            // Cached keys are read as one command.
            Handling::Several(&Several { split: Some(split), .. })
                if args.len() <= SPLIT_ARGS_MAX
                    && call.footprint.as_ref().is_none_or(|footprint| !footprint.asks())
                    && self.setup.splits_reads
                    && (args.len() > 2 || call.connection.is_splitting) =>
            {
                self.split(call, split, args, sink)
            }
            Handling::PubSub(what) => self.pubsub(call, what, args),
            Handling::Blocks(blocking) if blocking.waits(args) => {
                self.block(call, index, blocking, args, sink)
            }
            Handling::Wait => self.wait(call, args, sink),
            Handling::Container if let Some(reply) = command::memory_reply(name, args) => {
                call.connection.answer(|out| out.extend_from_slice(&reply));
                Ok(Flow::Went)
            }
            Handling::Container if command::asks_for_help(name, args) => {
                command::container_help(call, name, args).map(|()| Flow::Went)
            }
            Handling::Several(_)
            | Handling::Blocks(_)
            | Handling::Keys(_)
            | Handling::AllKeys(_)
            | Handling::Cursor
            | Handling::Container => {
                let (class, subject) = self.plan(database, index, handling, args)?;
                self.surround(&mut call.footprint, class);
                Ok(self.submit(call, class, subject, SlotState::Waiting, sink))
            }
            Handling::Script { by_sha, read_only } => {
                let user = &call.connection.user;
                let subject = self.encode_script(database, user, by_sha, read_only, args)?;
                let class = if read_only { Class::Read } else { Class::Write };
                self.surround(&mut call.footprint, class);
                Ok(self.submit(call, class, subject, SlotState::Waiting, sink))
            }
            Handling::Call { .. } | Handling::Function => {
                match self.plan_functions(
                    call.now.instant,
                    database,
                    &call.connection.user,
                    handling,
                    args,
                )? {
                    Planned::Rack(class) => {
                        self.surround(&mut call.footprint, class);
                        let subject = Subject::AllKeys;
                        Ok(self.submit(call, class, subject, SlotState::Waiting, sink))
                    }
                    Planned::Here(reply) => {
                        call.connection.answer(|out| out.extend_from_slice(&reply));
                        Ok(Flow::Went)
                    }
                }
            }
            Handling::Explain => self.explain(call, args, sink),
            Handling::Info => Ok(self.info(call, args, sink)),
            Handling::Multi => {
                call.connection.multi = Some(Box::new(Multi { database, ..Multi::default() }));
                call.connection.ok();
                Ok(Flow::Went)
            }
            Handling::Exec => Err("ERR EXEC without MULTI".into()),
            Handling::Discard => Err("ERR DISCARD without MULTI".into()),
            Handling::Watch => self.watch(call, args, sink),
            Handling::Refused(refusal) => Err(refusal.text(&self.commands.entry(index).name)),
        }
    }

    /// Checks that only values are longer than [`NAME_BYTES_MAX`]: the arguments of a command for
    /// the rack other than keys and scripts.
    #[cold]
    fn must_be_short(
        &self,
        handling: Handling,
        name: &UpperName,
        args: &[&[u8]],
    ) -> Result<(), Failure> {
        let is_short = |at: usize| args.get(at).is_none_or(|arg| arg.len() <= NAME_BYTES_MAX);
        let of_spec = || {
            let spec = self.setup.table.find(name.bytes());
            spec.map_or(Keys::None, |spec| keys(spec, name.bytes(), args))
        };
        let are_short = match handling {
            Handling::OneKey(_, key) => is_short(0) && is_short(key.into()),
            Handling::Several(several) => (1..args.len()).step_by(several.step).all(is_short),
            Handling::Script { .. } | Handling::Call { .. } => {
                let keys = args.get(2).and_then(|count| resp::number(count)).unwrap_or(0);
                (0..2).chain(3..3 + keys.clamp(0, args.len() as i64) as usize).all(is_short)
            }
            Handling::Blocks(_) | Handling::Keys(_) => match of_spec() {
                Keys::One(key) => is_short(0) && is_short(key.into()),
                Keys::Several(at) | Keys::AndOthers(at) => at.into_iter().all(is_short),
                Keys::BadNumber | Keys::None | Keys::Unsupported => false,
            },
            _ => false,
        };
        if are_short { Ok(()) } else { Err(TOO_LARGE_NAME.into()) }
    }

    /// The class and the subject of a command on one key or on all; it is encoded into
    /// `self.command`.
    pub(crate) fn plan(
        &mut self,
        database: u8,
        index: usize,
        handling: Handling,
        args: &[&[u8]],
    ) -> Result<(Class, Subject), Failure> {
        let name = UpperName::of(args[0]);
        let lower = || self.commands.entry(index).name.clone();
        match handling {
            Handling::OneKey(class, key) => Ok((class, self.encode(key, args)?)),
            Handling::AllKeys(class) => {
                self.encode(0, args)?;
                self.command.set_database(database);
                Ok((class, Subject::AllKeys))
            }
            Handling::Cursor => {
                self.encode(1, args)?;
                Ok((Class::Read, Subject::AllKeys))
            }
            Handling::Blocks(blocking) => {
                let spec = self.setup.table.find(name.bytes());
                let class = spec.and_then(class_of).unwrap_or(Class::Write);
                // The engine reports its errors.
                let tried = blocking.without_waiting(args);
                let is_right = blocking.timeout_ms(args).is_ok()
                    && spec.is_some_and(|spec| spec.accepts(tried.len()));
                let args = if is_right { &tried[..] } else { args };
                self.plan(database, index, Handling::Keys(class), args)
            }
            Handling::Keys(class) => {
                let spec = self.setup.table.find(name.bytes());
                let found = spec.map_or(Keys::None, |spec| keys(spec, name.bytes(), args));
                Ok((class, self.encode_keyed(found, class, &lower(), args)?))
            }
            Handling::Several(&Several { class, step, .. }) => {
                if !(args.len() - 1).is_multiple_of(step) {
                    return Err(self.commands.entry(index).wrong_arity());
                }
                if args.len() == 1 + step {
                    return Ok((class, self.encode(1, args)?));
                }
                let keys = args[1..].iter().step_by(step);
                Ok((class, self.encode_several(Subject::of_keys(keys.copied()), args)?))
            }
            Handling::Container => {
                let sub = args.get(1).copied().unwrap_or_default();
                let Some(spec) = self.setup.table.find_sub(name.bytes(), sub) else {
                    return Err(no_subcommand(&lower(), sub));
                };
                let (found, class) = subcommand(spec, name.bytes(), args)?;
                Ok((class, self.encode_keyed(found, class, &lower(), args)?))
            }
            Handling::Refused(refusal) => Err(refusal.text(&lower())),
            _ => Err(format!("ERR Concord does not support '{}' here", lower()).into()),
        }
    }

    fn encode_keyed(
        &mut self,
        found: Keys,
        class: Class,
        name: &str,
        args: &[&[u8]],
    ) -> Result<Subject, Failure> {
        match found {
            Keys::One(key) => self.encode(key, args),
            // A read does not change times to live; the engine knows by a write's name how the
            // write changes them.
            Keys::Several(at)
                if class == Class::Read || several::names_keys(&UpperName::of(args[0])) =>
            {
                let subject = Subject::of_keys(at.into_iter().map(|at| args[at]));
                self.encode_several(subject, args)
            }
            Keys::AndOthers(_) => {
                self.encode(0, args)?;
                Ok(Subject::AllKeys)
            }
            Keys::Several(_) => Err(CROSS_KEY.into()),
            Keys::BadNumber => Err("ERR numkeys should be greater than 0".into()),
            Keys::None => Err(format!("ERR Concord does not support the command '{name}'").into()),
            Keys::Unsupported => Err(format!(
                "ERR Concord does not support this form of '{name}': it concerns several keys"
            )
            .into()),
        }
    }

    /// Encodes a command of several keys, none of which stands for all keys.
    fn encode_several(&mut self, subject: Subject, args: &[&[u8]]) -> Result<Subject, Failure> {
        self.encode(0, args)?;
        Ok(subject)
    }

    /// Executes MGET a b, EXISTS a b, TOUCH a b key by key, each atomic by itself. A command that
    /// had to wait continues with its next part.
    fn split(
        &mut self,
        call: &mut CommandContext<'_>,
        split: Split,
        args: &[&[u8]],
        sink: &mut impl Sink,
    ) -> Result<Flow, Failure> {
        let rest = &args[1..];
        let count = rest.len();
        if !call.connection.is_splitting {
            let parts = Box::new(Parts::new(split.combine, count));
            let slot = Slot::waiting(Class::Read, Subject::AllKeys, call.connection.resp3);
            let slot = Slot { state: SlotState::Parts(parts), ..slot };
            call.connection.push_slot(slot);
            call.connection.is_splitting = true;
        }
        let slot = call.connection.next_slot() - 1;
        let name = split.part.unwrap_or(args[0]);
        let mut sent = match call.connection.slots.back() {
            Some(Slot { state: SlotState::Parts(parts), .. }) => parts.objects.len(),
            Some(_) | None => count,
        };
        while sent < count {
            if let Some(wait) = self.wait_of(call.connection) {
                call.connection.wait = wait;
                return Ok(Flow::Waits);
            }
            let object = hash::object_id(rest[sent]);
            self.command.encode(1, [name, rest[sent]]);
            let place = Place { slot, part: sent as u32 };
            let went = self.send(call, place, Class::Read, Subject::Object(object), sink);
            if went == Sent::Waits {
                return Ok(Flow::Waits);
            }
            if let Some(Slot { state: SlotState::Parts(parts), .. }) =
                call.connection.slots.back_mut()
            {
                parts.objects.push(object);
                if let Sent::Refused(text) = went {
                    let mut error = Vec::new();
                    resp::error(&mut error, text.as_bytes());
                    let before = parts.held_bytes();
                    parts.fill(sent as u32, Ended::Reply, error);
                    call.connection.ready_bytes += parts.held_bytes() - before;
                }
            }
            sent += 1;
        }
        call.connection.is_splitting = false;
        call.connection.write_in_turn();
        Ok(Flow::Went)
    }

    /// CONCORD EXPLAIN read-command ..., CONCORD HELP.
    fn explain(
        &mut self,
        call: &mut CommandContext<'_>,
        args: &[&[u8]],
        sink: &mut impl Sink,
    ) -> Result<Flow, Failure> {
        const HELP: [&str; 5] = [
            "CONCORD <subcommand> [<arg> ...]. Subcommands are:",
            "EXPLAIN <read command, or any on a key of a chain> [<arg> ...]",
            "    Executes the command and says which path it took and why.",
            "HELP",
            "    Prints this help.",
        ];
        let sub = UpperName::of(args[1]);
        match sub.bytes() {
            b"EXPLAIN" if args.len() > 2 => {}
            b"HELP" => {
                call.connection.answer(|out| {
                    resp::array(out, HELP.len());
                    HELP.iter().for_each(|line| resp::simple(out, line));
                });
                return Ok(Flow::Went);
            }
            _ => return Err(no_subcommand("concord", args[1])),
        }
        let args = &args[2..];
        let name = UpperName::of(args[0]);
        let Some(index) = self.commands.find(&name) else {
            return Err(unknown(args));
        };
        let entry = self.commands.entry(index);
        if !entry.accepts(args.len()) {
            return Err(entry.wrong_arity());
        }
        let handling = entry.handling;
        let localized = self.localize(call, entry, &name, args)?;
        let kept: Vec<&[u8]> = localized.iter().flatten().map(|arg| &**arg).collect();
        let args = if localized.is_some() { &kept } else { args };
        let (class, subject) = self.plan(call.connection.database, index, handling, args)?;
        if class == Class::Write {
            return Err("ERR CONCORD EXPLAIN is for commands that only read".into());
        }
        Ok(self.submit(call, class, subject, SlotState::Explaining, sink))
    }
}

/// Ends the handling of a command: removes its reply if it is to have none, and resets the settings
/// for this command.
fn after_command(connection: &mut Connection, name: &UpperName, unread: usize) {
    if connection.is_silent {
        connection.output.cut(unread);
    }
    if !name.is(b"CLIENT")
        && connection.multi.is_none()
        && let Some(tracking) = &mut connection.tracking
    {
        tracking.caching = None;
    }
}

/// Whether an error says that Concord lacks something that Redis has.
fn is_of_concord(failure: &Failure) -> bool {
    failure.starts_with("ERR Concord")
}

fn subcommand(spec: &CommandSpec, name: &[u8], args: &[&[u8]]) -> Result<(Keys, Class), Failure> {
    if !spec.accepts(args.len()) {
        return Err(format!("ERR wrong number of arguments for '{}' command", spec.name).into());
    }
    match (handling_of(spec), class_of(spec)) {
        (Handling::Refused(refusal), _) => Err(refusal.text(&spec.name)),
        (_, Some(class)) => Ok((keys(spec, name, args), class)),
        (_, None) => {
            Err(format!("ERR Concord does not support the command '{}'", spec.name).into())
        }
    }
}

/// The function that answers a command here.
pub(crate) fn handler_of(local: Local) -> Handler {
    match local {
        Local::Ping => local::ping,
        Local::Echo => local::echo,
        Local::Select => local::select,
        Local::Time => local::time,
        Local::Client => client::client,
        Local::Monitor => monitor::monitor,
        Local::Command => command::command,
        Local::Config => config::config,
        Local::Acl => acl::acl,
        Local::Unwatch => local::unwatch,
        Local::Script => eval::script,
        Local::SlowLog => slow::slowlog,
        Local::Latency => slow::latency,
        Local::Role => local::role,
        Local::Module => local::module,
        Local::Debug => local::debug,
        Local::LastSave => local::last_save,
        Local::Lolwut => local::lolwut,
        Local::ReplicaOf => local::replica_of,
        Local::Hello => acl::hello,
        Local::Auth => acl::auth,
        Local::Quit => local::quit,
        Local::Reset => local::reset,
    }
}
