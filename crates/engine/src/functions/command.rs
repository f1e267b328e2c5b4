//! FUNCTION.

use alloc::string::String;

use super::{
    Arc, Class, Collision, Context, ENGINE, Functions, Library, Loader, OUT_OF_MEMORY, UpperName,
    Vec, dump, format, glob_matches, resp,
};

/// A subcommand of FUNCTION.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Subcommand {
    /// Its class; `None` if a gateway answers it.
    pub class: Option<Class>,
    /// The number of arguments with both names; the smallest number if negative.
    arity: i32,
}

impl Subcommand {
    /// Whether this number of arguments, with both names, is valid.
    #[must_use]
    pub fn accepts(self, argc: usize) -> bool {
        let wanted = self.arity.unsigned_abs() as usize;
        if self.arity < 0 { argc >= wanted } else { argc == wanted }
    }
}

/// The subcommand of this name.
#[must_use]
pub fn subcommand(name: &[u8]) -> Option<Subcommand> {
    let (class, arity) = match UpperName::of(name).bytes() {
        b"LOAD" => (Some(Class::Write), -3),
        b"DELETE" => (Some(Class::Write), 3),
        b"FLUSH" => (Some(Class::Write), -2),
        b"RESTORE" => (Some(Class::Write), -3),
        b"LIST" => (Some(Class::Read), -2),
        b"DUMP" | b"STATS" => (Some(Class::Read), 2),
        b"KILL" | b"HELP" => (None, 2),
        _ => return None,
    };
    Some(Subcommand { class, arity })
}

/// Whether a FUNCTION of these arguments is refused where memory is short.
pub(crate) fn needs_memory(args: &[&[u8]]) -> bool {
    let sub = args.get(1).copied().unwrap_or_default();
    sub.eq_ignore_ascii_case(b"LOAD") || sub.eq_ignore_ascii_case(b"RESTORE")
}

impl Functions {
    /// Executes FUNCTION with these arguments, its name first, and appends the reply.
    pub(crate) fn execute(
        &mut self,
        loader: Option<Loader>,
        context: &Context,
        class: Class,
        args: &[&[u8]],
        reply: &mut Vec<u8>,
    ) {
        let start = reply.len();
        if let Err(text) = self.try_execute(loader, context, class, args, reply) {
            reply.truncate(start);
            resp::error(reply, &text);
        }
    }

    fn try_execute(
        &mut self,
        loader: Option<Loader>,
        context: &Context,
        class: Class,
        args: &[&[u8]],
        reply: &mut Vec<u8>,
    ) -> Result<(), Vec<u8>> {
        let [_, name, rest @ ..] = args else {
            return Err(b"ERR wrong number of arguments for 'function' command".to_vec());
        };
        let shown = || String::from_utf8_lossy(name).into_owned();
        let Some(sub) = subcommand(name) else {
            let text = format!("ERR unknown subcommand '{}'. Try FUNCTION HELP.", shown());
            return Err(text.into_bytes());
        };
        if !sub.accepts(args.len()) {
            let name = UpperName::of(name).lower();
            let text = format!("ERR wrong number of arguments for 'function|{name}' command");
            return Err(text.into_bytes());
        }
        if sub.class == Some(Class::Write) && class == Class::Read {
            return Err(b"ERR a write was submitted as a read".to_vec());
        }
        if context.memory_full && needs_memory(args) {
            return Err(OUT_OF_MEMORY.to_vec());
        }
        let loader = || loader.ok_or_else(|| b"ERR functions are not supported here".to_vec());
        let wrong = || {
            let text = "unknown subcommand or wrong number of arguments for";
            format!("ERR {text} '{}'. Try FUNCTION HELP.", shown()).into_bytes()
        };
        match (UpperName::of(name).bytes(), rest) {
            (b"LOAD", [options @ .., text]) => {
                let mut collision = Collision::Refused;
                for option in options {
                    if !option.eq_ignore_ascii_case(b"REPLACE") {
                        return Err([b"ERR Unknown option given: ", *option].concat());
                    }
                    collision = Collision::Replaced;
                }
                let name = self.load(loader()?, &mut 0, text, collision)?;
                resp::bulk(reply, &name);
            }
            (b"DELETE", [name]) => {
                if !self.delete(name) {
                    return Err(b"ERR Library not found".to_vec());
                }
                reply.extend_from_slice(resp::OK);
            }
            (b"FLUSH", []) => {
                self.clear();
                reply.extend_from_slice(resp::OK);
            }
            (b"FLUSH", [mode]) => {
                if !mode.eq_ignore_ascii_case(b"SYNC") && !mode.eq_ignore_ascii_case(b"ASYNC") {
                    return Err(b"ERR FUNCTION FLUSH only supports SYNC|ASYNC option".to_vec());
                }
                self.clear();
                reply.extend_from_slice(resp::OK);
            }
            (b"RESTORE", [payload]) => self.restore_dump(loader()?, payload, b"APPEND", reply)?,
            (b"RESTORE", [payload, policy]) => {
                self.restore_dump(loader()?, payload, policy, reply)?;
            }
            (b"LIST", options) => self.list(options, context.resp3, reply)?,
            (b"DUMP", []) => {
                let texts = self.libraries.values().map(|library| &library.text[..]);
                resp::bulk(reply, &dump::dump(texts));
            }
            (b"STATS", []) => self.stats(context.resp3, reply),
            _ => return Err(wrong()),
        }
        Ok(())
    }

    /// All libraries of a payload, or none.
    fn restore_dump(
        &mut self,
        loader: Loader,
        payload: &[u8],
        policy: &[u8],
        reply: &mut Vec<u8>,
    ) -> Result<(), Vec<u8>> {
        let (mut all, collision) = match UpperName::of(policy).bytes() {
            b"FLUSH" => (Functions::default(), Collision::Refused),
            b"APPEND" => (self.clone(), Collision::Refused),
            b"REPLACE" => (self.clone(), Collision::Replaced),
            _ => {
                let text = "Wrong restore policy given, value should be either FLUSH, APPEND or";
                return Err(format!("ERR {text} REPLACE.").into_bytes());
            }
        };
        let mut cost = 0;
        let mut own = Functions::default();
        for text in dump::texts(payload)? {
            // Two libraries of a payload never replace each other.
            own.load(loader, &mut cost, &text, Collision::Refused)?;
        }
        all.merge(own, collision)?;
        *self = all;
        reply.extend_from_slice(resp::OK);
        Ok(())
    }

    /// Adds the libraries of others, which were loaded already.
    fn merge(&mut self, other: Functions, collision: Collision) -> Result<(), Vec<u8>> {
        for name in other.libraries.keys() {
            if self.libraries.contains_key(name) && collision == Collision::Refused {
                let shown = String::from_utf8_lossy(name);
                return Err(format!("ERR Library {shown} already exists").into_bytes());
            }
            self.delete(name);
        }
        for library in other.libraries.values() {
            let taken = library.functions.iter().find(|(key, _)| self.by_name.contains_key(*key));
            if let Some((_, function)) = taken {
                let shown = String::from_utf8_lossy(&function.name);
                return Err(format!("ERR Function {shown} already exists").into_bytes());
            }
        }
        if self.code_bytes + other.code_bytes > super::CODE_BYTES_MAX {
            return Err(b"ERR all libraries take more than 16 MiB (Concord's limit)".to_vec());
        }
        self.code_bytes += other.code_bytes;
        self.libraries.extend(other.libraries);
        self.by_name.extend(other.by_name);
        Ok(())
    }

    fn list(&self, mut options: &[&[u8]], resp3: bool, reply: &mut Vec<u8>) -> Result<(), Vec<u8>> {
        let (mut pattern, mut with_code) = (None, false);
        while let [option, rest @ ..] = options {
            options = rest;
            if !with_code && option.eq_ignore_ascii_case(b"WITHCODE") {
                with_code = true;
            } else if pattern.is_none() && option.eq_ignore_ascii_case(b"LIBRARYNAME") {
                let [value, rest @ ..] = rest else {
                    return Err(b"ERR library name argument was not given".to_vec());
                };
                pattern = Some(value.to_ascii_lowercase());
                options = rest;
            } else {
                return Err([b"ERR Unknown argument ", *option].concat());
            }
        }
        let is_wanted = |library: &&Arc<Library>| {
            let name = || library.name.to_ascii_lowercase();
            pattern.as_ref().is_none_or(|pattern| glob_matches(pattern, &name()))
        };
        resp::array(reply, self.libraries.values().filter(is_wanted).count());
        for library in self.libraries.values().filter(is_wanted) {
            resp::map(reply, if with_code { 4 } else { 3 }, resp3);
            resp::bulk(reply, b"library_name");
            resp::bulk(reply, &library.name);
            resp::bulk(reply, b"engine");
            resp::bulk(reply, ENGINE);
            resp::bulk(reply, b"functions");
            resp::array(reply, library.functions.len());
            for function in library.functions.values() {
                resp::map(reply, 3, resp3);
                resp::bulk(reply, b"name");
                resp::bulk(reply, &function.name);
                resp::bulk(reply, b"description");
                match &function.description {
                    Some(text) => resp::bulk(reply, text),
                    None => resp::null(reply, resp3),
                }
                resp::bulk(reply, b"flags");
                resp::set(reply, function.flags.names().count(), resp3);
                function.flags.names().for_each(|name| resp::simple(reply, name));
            }
            if with_code {
                resp::bulk(reply, b"library_code");
                resp::bulk(reply, &library.text);
            }
        }
        Ok(())
    }

    /// No function is running: a replica executes each operation to its end.
    fn stats(&self, resp3: bool, reply: &mut Vec<u8>) {
        resp::map(reply, 2, resp3);
        resp::bulk(reply, b"running_script");
        resp::null(reply, resp3);
        resp::bulk(reply, b"engines");
        resp::map(reply, 1, resp3);
        resp::bulk(reply, ENGINE);
        resp::map(reply, 2, resp3);
        resp::bulk(reply, b"libraries_count");
        resp::integer(reply, self.libraries.len() as i64);
        resp::bulk(reply, b"functions_count");
        resp::integer(reply, self.by_name.len() as i64);
    }
}
