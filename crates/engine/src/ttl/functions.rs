//! FUNCTION and FCALL: libraries are the shim's, beside the deadlines ([`mod@crate::functions`]).
//! They are changed and looked up when an operation starts, in the order of the log, so that a call
//! finds the library that it finds at every replica.

use alloc::sync::Arc;
use alloc::vec::Vec;

use super::exec::parts_of;
use super::{REPLY_COMMAND, Shimmed, Work, step_of};
use crate::acl::sent;
use crate::backend::Backend;
use crate::command::{ARGS_MAX, Command, CommandBuf, TOO_MANY_ARGS};
use crate::functions::{Declared, Functions, Library, Loader, needs_memory};
use crate::plan::After;
use crate::script::FULL;
use crate::table::UpperName;
use crate::{Class, Context, Progress, redis, resp};

/// A call of a function that may be executed.
pub(crate) struct Call<'a> {
    pub(crate) library: Arc<Library>,
    pub(crate) function: Declared,
    pub(crate) keys: &'a [&'a [u8]],
    pub(crate) args: &'a [&'a [u8]],
    /// It was called by FCALL_RO, or in a read.
    pub(crate) is_read: bool,
}

/// Whether the name is that of FCALL or FCALL_RO.
pub(crate) fn is_call(name: &UpperName) -> bool {
    name.is(b"FCALL") || name.is(b"FCALL_RO")
}

/// Whether a transaction has commands on libraries, or calls.
pub(super) fn has_functions(command: &Command<'_>) -> bool {
    let mut parts = command.args().skip(1).filter_map(|arg| Command::parse(arg).ok());
    parts.any(|part| {
        let name = UpperName::of(part.name());
        is_call(&name) || name.is(b"FUNCTION")
    })
}

/// Whether the command is one on libraries that needs memory.
pub(super) fn is_full_for(part: &Command<'_>) -> bool {
    let args: Vec<&[u8]> = part.args().take(2).collect();
    UpperName::of(part.name()).is(b"FUNCTION") && needs_memory(&args)
}

/// A transaction for a backend without functions.
#[derive(Clone, Default)]
pub(super) struct Resolved {
    /// Calls are scripts, and commands on libraries are their replies.
    pub(super) parts: Vec<Vec<u8>>,
    /// Of the calls: the names of their functions.
    pub(super) called: Vec<Option<Vec<u8>>>,
    /// A library may have changed.
    pub(super) is_changing: bool,
}

impl<B: Backend> Shimmed<B> {
    /// Has libraries loaded by `loader`. Without, there are none.
    #[must_use]
    pub fn with_functions(self, loader: Loader) -> Shimmed<B> {
        Shimmed { loader: Some(loader), ..self }
    }

    /// FUNCTION.
    pub(super) fn start_function(
        &mut self,
        context: &Context,
        class: Class,
        command: &Command<'_>,
        reply: &mut Vec<u8>,
    ) -> Progress {
        let mut answer = Vec::new();
        self.execute_function(context, class, command, &mut answer);
        if self.is_in_exec {
            reply.extend_from_slice(&answer);
            return Progress::Done;
        }
        let work = Work::One(After::Answer(answer));
        self.submit_step(context, &step_of(class, None, &[]), None, work, reply)
    }

    fn execute_function(
        &mut self,
        context: &Context,
        class: Class,
        command: &Command<'_>,
        reply: &mut Vec<u8>,
    ) {
        let args: Vec<&[u8]> = command.args().collect();
        self.functions.execute(self.loader, context, class, &args, reply);
    }

    /// What FCALL or FCALL_RO calls.
    pub(crate) fn call_of<'a>(
        &self,
        context: &Context,
        class: Class,
        args: &'a [&'a [u8]],
    ) -> Result<Call<'a>, Vec<u8>> {
        let [command, name, number, rest @ ..] = args else {
            return Err(b"ERR wrong number of arguments for 'fcall' command".to_vec());
        };
        let found = self.functions.find(name);
        let (library, function) = found.ok_or(&b"ERR Function not found"[..])?;
        let number = resp::number(number).ok_or(&b"ERR Bad number of keys provided"[..])?;
        let number = usize::try_from(number)
            .map_err(|_| b"ERR Number of keys can't be negative".to_vec())?;
        let (keys, args) = rest
            .split_at_checked(number)
            .ok_or(&b"ERR Number of keys can't be greater than number of args"[..])?;
        let is_read = class == Class::Read || command.eq_ignore_ascii_case(b"FCALL_RO");
        let flags = function.flags;
        if is_read && !flags.no_writes() {
            let text = b"ERR Can not execute a script with write flag using *_ro command.";
            return Err(text.to_vec());
        }
        if context.memory_full && !flags.allow_oom() && !flags.no_writes() {
            return Err(FULL.to_vec());
        }
        Ok(Call { library, function, keys, args, is_read })
    }

    /// FCALL as the EVAL that does the same, and the name of the function.
    fn resolve_call(
        &self,
        context: &Context,
        class: Class,
        command: &Command<'_>,
    ) -> Result<(Vec<u8>, Vec<u8>), Vec<u8>> {
        if command.argc() >= ARGS_MAX {
            return Err(TOO_MANY_ARGS.into());
        }
        let rules = command.args().nth(2).filter(|arg| arg.starts_with(sent::MARKER));
        let (args, _) = sent::split(command.args().collect());
        let call = self.call_of(context, class, &args)?;
        let (flags, name) = (call.function.flags, call.function.name);
        let text = redis::script_of_library(call.library.code(), flags);
        let eval: &[u8] = if call.is_read { b"EVAL_RO" } else { b"EVAL" };
        let head = [eval, &text].into_iter().chain(rules).chain([args[2]]);
        let all = head.chain(args[3..].iter().copied()).chain([&name[..]]);
        let mut encoded = CommandBuf::new();
        encoded.encode(0, all);
        Ok((encoded.set_database(command.database()).to_vec(), name))
    }

    /// FCALL, where the backend executes scripts.
    pub(super) fn start_call(
        &mut self,
        context: &Context,
        class: Class,
        command: &Command<'_>,
        reply: &mut Vec<u8>,
    ) -> Progress {
        match self.resolve_call(context, class, command) {
            Err(text) => self.refuse(context, class, &text, reply),
            Ok((eval, name)) => match Command::parse(&eval) {
                Ok(eval) => self.start_scripts(context, class, &eval, Some(name), reply),
                Err(_) => self.refuse(context, class, b"ERR FCALL: malformed", reply),
            },
        }
    }

    /// A transaction in which FCALL and FUNCTION are replaced by what the backend knows; `None` if
    /// a part is no command. Libraries are changed by it.
    pub(super) fn resolve(
        &mut self,
        context: &Context,
        class: Class,
        exec: &Command<'_>,
    ) -> Option<Resolved> {
        let mut all = Resolved { parts: Vec::new(), called: Vec::new(), is_changing: false };
        for part in parts_of(exec)? {
            let name = UpperName::of(part.name());
            let answered =
                |reply: &[u8]| CommandBuf::new().encode(0, [REPLY_COMMAND, reply]).to_vec();
            let (resolved, called) = if name.is(b"FUNCTION") {
                all.is_changing |= class == Class::Write;
                let mut reply = Vec::new();
                self.execute_function(context, class, &part, &mut reply);
                (answered(&reply), None)
            } else if is_call(&name) {
                match self.resolve_call(context, class, &part) {
                    Ok((eval, name)) => (eval, Some(name)),
                    Err(text) => {
                        let mut reply = Vec::new();
                        resp::error(&mut reply, &text);
                        (answered(&reply), None)
                    }
                }
            } else {
                (part.bytes().to_vec(), None)
            };
            all.parts.push(resolved);
            all.called.push(called);
        }
        Some(all)
    }

    /// What is there of libraries, for a copy; nothing if there are none.
    pub(super) fn saved_functions(&self) -> Option<Vec<u8>> {
        (!self.functions.is_empty()).then(|| self.functions.save())
    }

    /// Has the libraries of a copy in the place of the own ones.
    pub(super) fn install_functions(&mut self, saved: &[u8]) {
        match Functions::restore(saved) {
            Some(functions) => self.functions = functions,
            None => self.broken = true,
        }
    }
}

/// The error that a function ended by, where its library was executed as a script:
/// `script: name, on source:line.` in the place of what the server says of that script.
pub(super) fn name_function(reply: &mut Vec<u8>, start: usize, name: &[u8]) {
    const BEFORE: &[u8] = b" script: ";
    const SHA_BYTES: usize = 40;
    let own = &reply[start..];
    if !own.starts_with(b"-") {
        return;
    }
    let Some(at) = own.windows(BEFORE.len()).rposition(|part| part == BEFORE) else { return };
    let (before, rest) = own.split_at(at + BEFORE.len());
    let Some((sha, behind)) = rest.split_at_checked(SHA_BYTES) else { return };
    if !sha.iter().all(u8::is_ascii_hexdigit) {
        return;
    }
    let mut named = [before, name].concat();
    match behind.strip_prefix(b", on @user_script:") {
        Some(line) => {
            named.extend_from_slice(b", on @user_function:");
            named.extend_from_slice(line);
        }
        None => named.extend_from_slice(behind),
    }
    reply.truncate(start);
    reply.extend_from_slice(&named);
}
