//! Commands that the gateway answers itself, what it refuses and how it says so, scripts, and the
//! CONCORD family.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use concord_client::Class;
use concord_core::{Now, SEC, hash};
use concord_engine::table::{Flags, UpperName};
use concord_engine::{CommandSpec, resp};
use concord_wire::Sink;

use crate::connection::{Connection, ConnectionId, Slot};
use crate::gateway::{Gateway, SCRIPTS_MAX};

/// The Redis version whose commands and replies are followed.
pub(crate) const REDIS_VERSION: &str = "7.0.15";

pub(crate) fn unknown_command(args: &[&[u8]]) -> String {
    let show = |bytes: &[u8]| -> String {
        bytes.iter().take(128).map(|b| if *b < 32 { ' ' } else { *b as char }).collect()
    };
    let mut text = format!("ERR unknown command '{}', with args beginning with: ", show(args[0]));
    for arg in &args[1..] {
        if text.len() >= 128 + 50 {
            break;
        }
        text.push_str(&format!("'{}' ", show(arg)));
    }
    text
}

pub(crate) fn not_supported(name: &UpperName) -> String {
    format!("ERR Concord does not support the command '{}'", name.lower())
}

/// Why a command of the table cannot work here, if so.
pub(crate) fn unsupported(spec: &CommandSpec, name: &UpperName) -> Option<String> {
    let lower = name.lower();
    if spec.flags.has(Flags::BLOCKING) && !matches!(name.bytes(), b"XREAD" | b"XREADGROUP") {
        return Some(format!("ERR Concord does not support blocking commands: '{lower}'"));
    }
    if spec.flags.has(Flags::PUBSUB) {
        return Some(format!("ERR Concord does not support publish/subscribe: '{lower}'"));
    }
    if spec.flags.has(Flags::ADMIN) {
        return Some(format!("ERR Concord does not support administration by '{lower}'"));
    }
    None
}

/// Commands of a Redis server that are refused with a reason rather than as unknown.
fn refusal(name: &[u8]) -> Option<&'static str> {
    Some(match name {
        b"WATCH" => "ERR Concord does not support WATCH; use CAS, CAD, SET IFEQ or a script",
        b"SUBSCRIBE" | b"PSUBSCRIBE" | b"SSUBSCRIBE" | b"UNSUBSCRIBE" | b"PUNSUBSCRIBE"
        | b"SUNSUBSCRIBE" | b"PUBLISH" | b"SPUBLISH" | b"PUBSUB" => {
            "ERR Concord does not support publish/subscribe"
        }
        b"BLPOP" | b"BRPOP" | b"BLMOVE" | b"BRPOPLPUSH" | b"BLMPOP" | b"BZPOPMIN" | b"BZPOPMAX"
        | b"BZMPOP" => "ERR Concord does not support blocking commands",
        b"WAIT" | b"WAITAOF" => {
            "ERR Concord does not support WAIT: a write is at every replica when it is answered"
        }
        b"REPLICAOF" | b"SLAVEOF" | b"PSYNC" | b"SYNC" | b"FAILOVER" | b"CLUSTER" => {
            "ERR Concord replicates by itself; see concord status"
        }
        b"MOVE" | b"SWAPDB" | b"COPY" | b"RENAME" | b"RENAMENX" | b"MIGRATE" => {
            "ERR Concord does not support commands over several keys or databases"
        }
        b"SAVE" | b"BGSAVE" | b"BGREWRITEAOF" | b"LASTSAVE" | b"SHUTDOWN" | b"DEBUG"
        | b"MONITOR" | b"SLOWLOG" | b"LATENCY" | b"MODULE" | b"ROLE" | b"MEMORY" => {
            "ERR Concord does not support administration by Redis commands; see concord --help"
        }
        _ => return None,
    })
}

impl Gateway {
    /// Answers what needs nothing of the rack. False: it is not such a command.
    pub(crate) fn local(
        &mut self,
        now: Now,
        id: ConnectionId,
        name: &UpperName,
        args: &[&[u8]],
        _sink: &mut impl Sink,
    ) -> bool {
        let arity = match name.bytes() {
            b"PING" => 1..=2,
            b"ECHO" | b"SELECT" => 2..=2,
            b"QUIT" | b"CLIENT" | b"COMMAND" | b"CONFIG" | b"INFO" | b"HELLO" | b"SCRIPT"
            | b"ACL" => 1..=usize::MAX,
            b"AUTH" => 2..=3,
            b"RESET" | b"TIME" | b"MULTI" | b"EXEC" | b"DISCARD" | b"UNWATCH" => 1..=1,
            _ => return self.refused_by_name(id, name),
        };
        if !arity.contains(&args.len()) {
            let lower = name.lower();
            self.refuse(id, &format!("ERR wrong number of arguments for '{lower}' command"));
            return true;
        }
        match name.bytes() {
            b"CLIENT" => return self.client_command(now, id, args),
            b"COMMAND" => return self.command_command(id, args),
            b"CONFIG" => return self.config(id, args),
            b"INFO" => return self.info(now, id),
            b"HELLO" => return self.hello(id, args),
            b"AUTH" => return self.auth(id, args),
            b"SCRIPT" => return self.script(id, args),
            _ => {}
        }
        let authed = self.setup.requirepass.is_none();
        let Some(connection) = self.connections.get_mut(&id) else { return true };
        match name.bytes() {
            b"PING" => match args.get(1) {
                Some(text) => connection.answer(|out| resp::bulk(out, text)),
                None => connection.answer(|out| resp::simple(out, "PONG")),
            },
            b"ECHO" => connection.answer(|out| resp::bulk(out, args[1])),
            b"SELECT" if args[1] == b"0" => connection.answer(|out| resp::simple(out, "OK")),
            b"SELECT" if resp::number(args[1]).is_some() => {
                connection.error(b"ERR DB index is out of range");
            }
            b"SELECT" => connection.error(b"ERR value is not an integer or out of range"),
            b"QUIT" => {
                connection.answer(|out| resp::simple(out, "OK"));
                connection.closing = true;
            }
            b"RESET" => {
                connection.resp3 = false;
                connection.multi = None;
                connection.name.clear();
                connection.authed = authed;
                connection.answer(|out| resp::simple(out, "RESET"));
            }
            b"TIME" => connection.answer(|out| {
                resp::array(out, 2);
                let us = (now.instant.0 / 1_000) % 1_000;
                resp::bulk(out, format!("{}", now.unix_ms / 1_000).as_bytes());
                resp::bulk(out, format!("{}", now.unix_ms % 1_000 * 1_000 + us).as_bytes());
            }),
            b"MULTI" => Gateway::begin_multi(connection),
            b"EXEC" => connection.error(b"ERR EXEC without MULTI"),
            b"DISCARD" => connection.error(b"ERR DISCARD without MULTI"),
            b"UNWATCH" => connection.answer(|out| resp::simple(out, "OK")),
            b"ACL" if args.len() == 2 && args[1].eq_ignore_ascii_case(b"WHOAMI") => {
                connection.answer(|out| resp::bulk(out, b"default"));
            }
            _ => connection.error(b"ERR Concord has no access control lists; see requirepass"),
        }
        true
    }

    fn refused_by_name(&mut self, id: ConnectionId, name: &UpperName) -> bool {
        let internal = name.bytes().starts_with(b"CONCORD.");
        match refusal(name.bytes()) {
            _ if internal => self.refuse(id, "ERR this command is Concord's own"),
            Some(error) => self.refuse(id, error),
            None => false,
        }
    }

    fn password_fits(&self, user: Option<&[u8]>, password: &[u8]) -> Result<(), &'static str> {
        const WRONG: &str = "WRONGPASS invalid username-password pair or user is disabled.";
        match &self.setup.requirepass {
            None if user.is_none() => Err(
                "ERR AUTH <password> called without any password configured for the default user. \
                 Are you sure your configuration is correct?",
            ),
            None => Ok(()),
            Some(wanted) => {
                // Equal time for every wrong password of equal length.
                let differ = wanted.iter().zip(password).fold(0, |acc, (a, b)| acc | (a ^ b));
                let fits = wanted.len() == password.len() && differ == 0;
                let default = user.is_none_or(|u| u == b"default");
                if fits && default { Ok(()) } else { Err(WRONG) }
            }
        }
    }

    fn auth(&mut self, id: ConnectionId, args: &[&[u8]]) -> bool {
        let (user, password) = match args {
            [_, password] => (None, *password),
            [_, user, password, ..] => (Some(*user), *password),
            [..] => return true,
        };
        if let Err(error) = self.password_fits(user, password) {
            return self.refuse(id, error);
        }
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.authed = true;
            connection.answer(|out| resp::simple(out, "OK"));
        }
        true
    }

    /// HELLO [2|3 [AUTH user password] [SETNAME name]]
    fn hello(&mut self, id: ConnectionId, args: &[&[u8]]) -> bool {
        let Some(connection) = self.connections.get(&id) else { return true };
        let mut resp3 = connection.resp3;
        let mut authed = connection.authed;
        let mut name = None;
        if let Some(version) = args.get(1) {
            resp3 = match *version {
                b"2" => false,
                b"3" => true,
                v if resp::number(v).is_none() => {
                    return self
                        .refuse(id, "ERR Protocol version is not an integer or out of range");
                }
                _ => return self.refuse(id, "NOPROTO unsupported protocol version"),
            };
        }
        let mut rest = args.get(2..).unwrap_or_default();
        while !rest.is_empty() {
            rest = match rest {
                [word, user, password, tail @ ..] if word.eq_ignore_ascii_case(b"AUTH") => {
                    if let Err(error) = self.password_fits(Some(user), password) {
                        return self.refuse(id, error);
                    }
                    authed = true;
                    tail
                }
                [word, value, tail @ ..] if word.eq_ignore_ascii_case(b"SETNAME") => {
                    name = Some(value.to_vec());
                    tail
                }
                [word, ..] => {
                    let word = String::from_utf8_lossy(word).into_owned();
                    return self.refuse(id, &format!("ERR Syntax error in HELLO option '{word}'"));
                }
                [] => rest,
            };
        }
        if !authed {
            return self.refuse(
                id,
                "NOAUTH HELLO must be called with the client already authenticated, otherwise the \
                 HELLO <proto> AUTH <user> <pass> option can be used to authenticate the client \
                 and select the RESP protocol version at the same time",
            );
        }
        let Some(connection) = self.connections.get_mut(&id) else { return true };
        connection.resp3 = resp3;
        connection.authed = true;
        if let Some(name) = name {
            connection.name = name;
        }
        connection.answer(|out| {
            resp::map(out, 7, resp3);
            resp::bulk(out, b"server");
            resp::bulk(out, b"redis");
            resp::bulk(out, b"version");
            resp::bulk(out, REDIS_VERSION.as_bytes());
            resp::bulk(out, b"proto");
            resp::integer(out, if resp3 { 3 } else { 2 });
            resp::bulk(out, b"id");
            resp::integer(out, id.0 as i64);
            resp::bulk(out, b"mode");
            resp::bulk(out, b"standalone");
            resp::bulk(out, b"role");
            resp::bulk(out, b"master");
            resp::bulk(out, b"modules");
            resp::array(out, 0);
        });
        true
    }

    fn client_command(&mut self, now: Now, id: ConnectionId, args: &[&[u8]]) -> bool {
        let sub = UpperName::of(args.get(1).copied().unwrap_or_default());
        let list = match sub.bytes() {
            b"LIST" => {
                self.connections.iter().map(|(id, c)| describe(now, *id, c)).collect::<String>()
            }
            _ => String::new(),
        };
        let Some(connection) = self.connections.get_mut(&id) else { return true };
        let resp3 = connection.resp3;
        let bad_name = |name: &[u8]| name.iter().any(|b| !(b'!'..=b'~').contains(b));
        match (sub.bytes(), args.get(2)) {
            (b"SETNAME", Some(name)) if bad_name(name) => connection.error(
                b"ERR Client names cannot contain spaces, newlines or special characters.",
            ),
            (b"SETNAME", Some(name)) => {
                connection.name = name.to_vec();
                connection.answer(|out| resp::simple(out, "OK"));
            }
            (b"GETNAME", _) => {
                let name = connection.name.clone();
                connection.answer(|out| match name.is_empty() {
                    true => resp::null(out, resp3),
                    false => resp::bulk(out, &name),
                });
            }
            (b"ID", _) => connection.answer(|out| resp::integer(out, id.0 as i64)),
            (b"INFO", _) => {
                let text = describe(now, id, connection);
                connection.answer(|out| resp::bulk(out, text.as_bytes()));
            }
            (b"LIST", _) => connection.answer(|out| resp::bulk(out, list.as_bytes())),
            (b"SETINFO", Some(which)) if args.len() == 4 => {
                match UpperName::of(which).bytes() {
                    b"LIB-NAME" => connection.library.0 = args[3].to_vec(),
                    _ => connection.library.1 = args[3].to_vec(),
                }
                connection.answer(|out| resp::simple(out, "OK"));
            }
            (b"NO-EVICT" | b"NO-TOUCH", Some(_)) => {
                connection.answer(|out| resp::simple(out, "OK"));
            }
            (b"REPLY", Some(on)) if on.eq_ignore_ascii_case(b"ON") => {
                connection.answer(|out| resp::simple(out, "OK"));
            }
            (b"TRACKING" | b"CACHING" | b"PAUSE" | b"KILL" | b"REPLY" | b"UNPAUSE", _) => {
                let text =
                    format!("ERR Concord does not support CLIENT {}", sub.lower().to_uppercase());
                connection.error(text.as_bytes());
            }
            _ => connection.error(
                b"ERR unknown subcommand or wrong number of arguments for 'client'. Try CLIENT HELP.",
            ),
        }
        true
    }

    fn command_command(&mut self, id: ConnectionId, args: &[&[u8]]) -> bool {
        let Some(connection) = self.connections.get_mut(&id) else { return true };
        let (table, resp3) = (&self.setup.table, connection.resp3);
        let sub = UpperName::of(args.get(1).copied().unwrap_or_default());
        let names = args.get(2..).unwrap_or_default();
        match sub.bytes() {
            b"" => connection.answer(|out| table.encode_all(out, resp3)),
            b"COUNT" => connection.answer(|out| table.encode_count(out)),
            b"INFO" => connection.answer(|out| table.encode_info(out, names, resp3)),
            b"DOCS" => connection.answer(|out| table.encode_docs(out, names, resp3)),
            b"LIST" => connection.answer(|out| {
                let top = || table.specs().iter().filter(|s| !s.name.contains('|'));
                resp::array(out, top().count());
                for spec in top() {
                    resp::bulk(out, spec.name.as_bytes());
                }
            }),
            _ => {
                connection.error(b"ERR unknown subcommand of 'command'. Try COMMAND INFO or DOCS.")
            }
        }
        true
    }

    fn config(&mut self, id: ConnectionId, args: &[&[u8]]) -> bool {
        const KNOWN: [(&str, &str); 8] = [
            ("appendonly", "no"),
            ("databases", "1"),
            ("maxmemory", "0"),
            ("maxmemory-policy", "noeviction"),
            ("proto-max-bulk-len", "1048576"),
            ("save", ""),
            ("timeout", "0"),
            ("io-threads", "1"),
        ];
        let sub = UpperName::of(args.get(1).copied().unwrap_or_default());
        let Some(connection) = self.connections.get_mut(&id) else { return true };
        let resp3 = connection.resp3;
        match sub.bytes() {
            b"GET" if args.len() > 2 => connection.answer(|out| {
                let asked = |name: &str| {
                    args[2..].iter().any(|pattern| {
                        let pattern = pattern.to_ascii_lowercase();
                        match pattern.iter().position(|b| *b == b'*') {
                            Some(star) => name.as_bytes().starts_with(&pattern[..star]),
                            None => name.as_bytes() == pattern,
                        }
                    })
                };
                let found: Vec<_> = KNOWN.iter().filter(|(name, _)| asked(name)).collect();
                resp::map(out, found.len(), resp3);
                for (name, value) in found {
                    resp::bulk(out, name.as_bytes());
                    resp::bulk(out, value.as_bytes());
                }
            }),
            b"RESETSTAT" => connection.answer(|out| resp::simple(out, "OK")),
            _ => connection.error(
                b"ERR Concord is configured by its own file and flags; see concord up --help",
            ),
        }
        true
    }

    fn info(&mut self, now: Now, id: ConnectionId) -> bool {
        let started = self.started_at.unwrap_or(now.instant);
        let (reads, writes) = self.latencies();
        let client = self.client.counters();
        let (p50, p99) = (reads.percentile_ns(50) / 1_000, reads.percentile_ns(99) / 1_000);
        let (w50, w99) = (writes.percentile_ns(50) / 1_000, writes.percentile_ns(99) / 1_000);
        let lines = [
            "# Server".into(),
            format!("redis_version:{REDIS_VERSION}"),
            format!("concord_version:{}", env!("CARGO_PKG_VERSION")),
            "redis_mode:standalone".into(),
            format!("tcp_port:{}", self.setup.port),
            format!("uptime_in_seconds:{}", now.instant.since(started) / SEC),
            String::new(),
            "# Clients".into(),
            format!("connected_clients:{}", self.connections.len()),
            format!("maxclients:{}", self.setup.connections_max),
            String::new(),
            "# Persistence".into(),
            "loading:0".into(),
            "aof_enabled:0".into(),
            "concord_durable:0".into(),
            String::new(),
            "# Stats".into(),
            format!("total_connections_received:{}", self.count.connections),
            format!("total_commands_processed:{}", self.count.commands),
            format!("concord_reads:{}", client.read_replies),
            format!("concord_reads_fast:{}", client.fast_reads),
            format!("concord_writes:{}", client.write_replies),
            format!("concord_read_p50_us:{p50}"),
            format!("concord_read_p99_us:{p99}"),
            format!("concord_write_p50_us:{w50}"),
            format!("concord_write_p99_us:{w99}"),
            String::new(),
            "# Replication".into(),
            "role:master".into(),
            "connected_slaves:0".into(),
            String::new(),
        ];
        let text = lines.join("\r\n");
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.answer(|out| resp::bulk(out, text.as_bytes()));
        }
        true
    }

    /// SCRIPT LOAD, EXISTS, FLUSH: scripts are remembered here, replicas see their text only.
    fn script(&mut self, id: ConnectionId, args: &[&[u8]]) -> bool {
        let sub = UpperName::of(args.get(1).copied().unwrap_or_default());
        match (sub.bytes(), args.get(2)) {
            (b"LOAD", Some(script)) if args.len() == 3 => {
                let sha = self.remember(script);
                if let Some(connection) = self.connections.get_mut(&id) {
                    connection.answer(|out| resp::bulk(out, &sha));
                }
            }
            (b"EXISTS", Some(_)) => {
                let known: Vec<bool> = args[2..]
                    .iter()
                    .map(|sha| self.scripts.contains_key(&sha.to_ascii_lowercase()))
                    .collect();
                if let Some(connection) = self.connections.get_mut(&id) {
                    connection.answer(|out| {
                        resp::array(out, known.len());
                        known.iter().for_each(|k| resp::integer(out, i64::from(*k)));
                    });
                }
            }
            (b"FLUSH", _) => {
                self.scripts.clear();
                if let Some(connection) = self.connections.get_mut(&id) {
                    connection.answer(|out| resp::simple(out, "OK"));
                }
            }
            _ => return self.refuse(id, "ERR Concord supports SCRIPT LOAD, EXISTS and FLUSH"),
        }
        true
    }

    fn remember(&mut self, script: &[u8]) -> Vec<u8> {
        let sha = crate::local::sha1_hex(script);
        if self.scripts.len() >= SCRIPTS_MAX {
            self.scripts.pop_first();
        }
        self.scripts.insert(sha.clone(), script.to_vec());
        sha
    }

    /// EVAL script 1 key ...; EVALSHA becomes EVAL, so that replicas depend on no cache.
    pub(crate) fn eval(
        &mut self,
        now: Now,
        id: ConnectionId,
        name: &UpperName,
        args: &[&[u8]],
        sink: &mut impl Sink,
    ) -> bool {
        let read_only = name.bytes().ends_with(b"_RO");
        let plain: &[u8] = if read_only { b"EVAL_RO" } else { b"EVAL" };
        if self.setup.table.find(plain).is_none() {
            return self.refuse(id, "ERR scripts need the Redis engine: concord up --engine redis");
        }
        if args.len() < 3 {
            let lower = name.lower();
            return self
                .refuse(id, &format!("ERR wrong number of arguments for '{lower}' command"));
        }
        let script = if name.bytes().starts_with(b"EVALSHA") {
            match self.scripts.get(&args[1].to_ascii_lowercase()) {
                Some(script) => script.clone(),
                None => return self.refuse(id, "NOSCRIPT No matching script. Please use EVAL."),
            }
        } else {
            self.remember(args[1]);
            args[1].to_vec()
        };
        let numkeys = core::str::from_utf8(args[2]).ok().and_then(|n| n.parse::<usize>().ok());
        let keys = numkeys.and_then(|n| args.get(3..)?.get(..n));
        let key = match keys {
            Some([first, rest @ ..]) if rest.iter().all(|k| k == first) => *first,
            Some([]) => {
                return self.refuse(id, "ERR Concord supports scripts on one key: numkeys is 0");
            }
            Some(_) => return self.refuse(id, "CROSSKEY Concord supports scripts on one key only"),
            None => {
                return self.refuse(id, "ERR Number of keys can't be greater than number of args");
            }
        };
        let rewritten = [plain, script.as_slice()].into_iter().chain(args[2..].iter().copied());
        self.command.encode(3, rewritten);
        let class = if read_only { Class::Read } else { Class::Write };
        self.submit(now, id, class, Some(hash::object_id(key)), Slot::Waiting, sink)
    }

    /// CONCORD EXPLAIN command ..., CONCORD HELP.
    pub(crate) fn concord(
        &mut self,
        now: Now,
        id: ConnectionId,
        args: &[&[u8]],
        sink: &mut impl Sink,
    ) -> bool {
        const HELP: [&str; 4] = [
            "CONCORD EXPLAIN <read command> [<arg> ...]",
            "    Executes the command and says which path it took and why.",
            "CONCORD HELP",
            "    Prints this help.",
        ];
        let sub = UpperName::of(args.get(1).copied().unwrap_or_default());
        match sub.bytes() {
            b"EXPLAIN" if args.len() > 2 => {
                let name = UpperName::of(args[2]);
                match self.plan(&name, &args[2..]) {
                    Ok((class, obj_id)) => {
                        self.submit(now, id, class, obj_id, Slot::Explaining, sink)
                    }
                    Err(error) => self.refuse(id, &error),
                }
            }
            b"HELP" => {
                if let Some(connection) = self.connections.get_mut(&id) {
                    connection.answer(|out| {
                        resp::array(out, HELP.len());
                        HELP.iter().for_each(|line| resp::simple(out, line));
                    });
                }
                true
            }
            _ => self.refuse(id, "ERR unknown subcommand of 'concord'. Try CONCORD HELP."),
        }
    }
}

/// A line of CLIENT LIST.
fn describe(now: Now, id: ConnectionId, connection: &Connection) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    format!(
        "id={} addr={} laddr= fd=0 name={} age={} idle={} flags={} db=0 sub=0 psub=0 multi={} \
         qbuf={} obl={} tot-cmds={} cmd={} user=default lib-name={} lib-ver={} resp={}\n",
        id.0,
        connection.peer,
        text(&connection.name),
        now.instant.since(connection.since) / SEC,
        now.instant.since(connection.active_at) / SEC,
        if connection.multi.is_some() { "x" } else { "N" },
        connection.multi.as_ref().map_or(-1, |m| m.commands.len() as i64),
        connection.input.len(),
        connection.output.len(),
        connection.commands,
        connection.last_command.to_lowercase(),
        text(&connection.library.0),
        text(&connection.library.1),
        if connection.resp3 { 3 } else { 2 },
    )
}

/// SHA-1 in lower-case hex: the name of a script, as Redis gives it.
pub(crate) fn sha1_hex(bytes: &[u8]) -> Vec<u8> {
    use sha1::Digest;
    let digest = sha1::Sha1::digest(bytes);
    digest.iter().flat_map(|b| format!("{b:02x}").into_bytes()).collect()
}
