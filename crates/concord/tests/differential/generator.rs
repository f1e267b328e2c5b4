//! Random commands from their forms: options in every combination, edge cases, and now and then
//! something that does not fit the form at all.

use std::collections::BTreeSet;

use concord_core::Rng;
use concord_engine::blocking::{Blocking, Form as Timeout};
use concord_engine::resp;
use concord_engine::table::UpperName;

use crate::compare::{How, how};
use crate::grammar::{Arg, Form, Kind};

pub type Words = Vec<Vec<u8>>;

/// What is sent as one: a command, or a whole transaction.
#[derive(Clone, Debug)]
pub struct Drawn {
    /// The names of the forms, one for each command.
    pub forms: Vec<String>,
    pub commands: Vec<Words>,
}

impl Drawn {
    fn push(&mut self, form: &str, mut words: Words) {
        shorten_wait(&mut words);
        self.forms.push(form.into());
        self.commands.push(words);
    }
}

/// Nobody pushes what a command waits for, so it waits for a moment only.
fn shorten_wait(words: &mut Words) {
    let args: Vec<&[u8]> = words.iter().map(Vec::as_slice).collect();
    let name = UpperName::of(args.first().copied().unwrap_or_default());
    if name.is(b"WAIT") {
        let is_long = |arg: &&[u8]| resp::number(arg).is_some_and(|ms| ms == 0 || ms > 10);
        if args.get(2).is_some_and(is_long) {
            words[2] = b"10".to_vec();
        }
        return;
    }
    let Some(blocking) = Blocking::of(&name) else { return };
    let waits = blocking.timeout_ms(&args).is_ok_and(|ms| ms == 0 || ms > 10);
    let at = if blocking.form == Timeout::Counted { 1 } else { args.len() - 1 };
    if waits && at > 0 {
        words[at] = b"0.01".to_vec();
    }
}

const INTEGERS: &[&str] = &[
    "0",
    "-1",
    "9223372036854775807",
    "-9223372036854775808",
    "9223372036854775808",
    "1.5",
    "",
    "x",
    " 1",
    "01",
    "+1",
    "-0",
    "4294967296",
];
const DOUBLES: &[&str] = &[
    "0.1",
    "-0.1",
    "1e3",
    "3.0e-5",
    "inf",
    "-inf",
    "nan",
    "x",
    "",
    "1.5",
    "-2.25",
    "1e40",
    "5",
    "+3",
    "12345678901234567890",
    "0.30000000000000004",
    "1e17",
    ".5",
    "7.",
    "0",
    "-0",
    "3",
    "2",
];
const SCORES: &[&str] = &["-inf", "+inf", "(1", "(3", "2", "5", "x", "(", "inf", "0.5", "nan", "0"];
const LEX: &[&str] = &["-", "+", "[m1", "(m3", "[m5", "(m2", "[", "m1", "x", "(m9"];
const IDS: &[&str] = &[
    "1-1",
    "2-1",
    "3-5",
    "7-1",
    "5-*",
    "0-0",
    "0",
    "9",
    "-",
    "+",
    "$",
    "(2-1",
    "x",
    "1-x",
    "",
    "18446744073709551615-18446744073709551615",
];
const SCRIPTS: &[&str] = &[
    "return 1",
    "return redis.call('get', KEYS[1])",
    "return redis.call('set', KEYS[1], ARGV[1])",
    "return {KEYS[1], ARGV[1], 'x', 7, false, true}",
    "return redis.pcall('lpush', KEYS[1], 'a')",
    "redis.call('incr', KEYS[1]); return redis.call('get', KEYS[1])",
    "return redis.call('nosuch')",
    "return redis.error_reply('MY error')",
    "return redis.status_reply('FINE')",
    "return redis.call('mget', unpack(KEYS))",
    "return {redis.call('exists', unpack(KEYS)), redis.call('type', KEYS[1])}",
    "return redis.call('del', KEYS[1], 's1')",
    "return redis.call('copy', KEYS[1], 's2', 'replace')",
    "redis.call('set', 's0', ARGV[1], 'ex', 1000) return redis.call('ttl', 's0')",
    "if redis.call('exists', KEYS[1]) == 1 then redis.call('expire', KEYS[1], 1000) return redis.call('ttl', KEYS[1]) end",
    "redis.call('rename', KEYS[1], 's3') return redis.call('ttl', 's3')",
    "return {redis.call('persist', KEYS[1]), redis.call('ttl', KEYS[1])}",
    "return redis.pcall('getex', KEYS[1], 'ex', 1000)",
    "return {err='BAD'}",
    "error('thrown')",
    "not lua",
    "",
];
/// Those of the first two scripts, and one of none.
const SHAS: &[&str] = &[
    "e0e1f9fabfc9d4800c877a703b823ac0578ff8db",
    "E0E1F9FABFC9D4800C877A703B823AC0578FF8DB",
    "ffffffffffffffffffffffffffffffffffffffff",
    "x",
];
/// Not `s`, `m` and so on, which keys and members begin with, so that patterns match some.
const PATTERNS: &[&str] =
    &["*", "s*", "?1", "[a-m]*", "*[^1]", "\\*", "nosuch", "m?", "", "[", "f*"];
const CONFIGS: &[&str] = &["maxmemory", "save", "nosuch*", "appendonly", "nosuch"];
const BITFIELD_TYPES: &[&str] = &["u8", "i16", "u4", "i64", "u63", "u64", "i65", "x", "u1"];

/// A sorted set whose members all have the score 0.
pub const EQUAL_SCORES: &str = "y0";

/// Forms that are left out: they end or change the connection, which the test does by itself; and
/// WATCH, for which a key that was written as it was is unchanged here, and has changed in Redis.
const LEFT_OUT: &[&str] = &["quit", "multi", "exec", "discard", "watch"];
/// What would make of the connection a subscriber's, where messages stand among replies: compared
/// in tests/clients and tests/pubsub.rs.
pub const SUBSCRIBERS: &[&str] =
    &["subscribe", "psubscribe", "ssubscribe", "unsubscribe", "punsubscribe", "sunsubscribe"];
/// What changes whether replies come, or makes something else come between them, and what a gateway
/// keeps of its settings, and what would lock out or hold whoever compares: compared by
/// crates/gateway/tests and by Redis' own tests.
pub const UNDRAWN: &[&str] = &[
    "monitor",
    "client reply",
    "client tracking",
    "client kill",
    "config set",
    "client pause",
    "client unpause",
    "acl setuser",
    "acl deluser",
];

/// Draws commands from forms.
pub struct Generator {
    pub rng: Rng,
    forms: Vec<Form>,
    /// Serialized values for RESTORE, with different contents.
    dumps: Vec<Vec<u8>>,
    drawn: usize,
    /// What comes seldom after the first time.
    pub seldom: BTreeSet<String>,
    /// The key of all key arguments, if they are to be the same.
    key: Option<Vec<u8>>,
}

impl Generator {
    pub fn new(seed: u64, forms: Vec<Form>, dumps: Vec<Vec<u8>>) -> Generator {
        let forms = forms.into_iter().filter(|f| !LEFT_OUT.contains(&&*f.name));
        let forms = forms.filter(|f| !SUBSCRIBERS.contains(&&*f.name));
        let forms = forms.filter(|f| !UNDRAWN.contains(&&*f.name)).collect();
        Generator {
            rng: Rng::new(seed),
            forms,
            dumps,
            drawn: 0,
            seldom: BTreeSet::new(),
            key: None,
        }
    }

    /// The next command. The first ones are every form once, so that none is missed.
    pub fn draw(&mut self) -> Drawn {
        self.drawn += 1;
        if let Some(form) = self.forms.get(self.drawn - 1).cloned() {
            return self.command(&form);
        }
        if self.rng.chance(1, 40) {
            return self.transaction();
        }
        loop {
            let form = self.forms[self.rng.below(self.forms.len() as u64) as usize].clone();
            // What is mostly refused, or empties the store, comes seldom.
            let data = is_data(&form);
            let seldom = !data
                || self.seldom.contains(&form.name)
                || matches!(&*form.name, "flushall" | "flushdb");
            if !seldom || self.rng.chance(1, 20) {
                return self.command(&form);
            }
        }
    }

    fn command(&mut self, form: &Form) -> Drawn {
        let one_key = self.rng.chance(5, 6);
        self.key = one_key.then(|| self.new_key(&form.group));
        let mut words = self.words(form);
        let mut drawn = Drawn { forms: vec![], commands: vec![] };
        if form.name.contains("lex") || words.iter().any(|w| w.eq_ignore_ascii_case(b"bylex")) {
            // Only where all scores are equal does Redis say what these commands mean.
            self.key = Some(EQUAL_SCORES.into());
            words = self.words(form);
            let mut add = vec![b"ZADD".to_vec(), EQUAL_SCORES.into()];
            add.extend((0..3).flat_map(|_| [b"0".to_vec(), self.member(form).into_bytes()]));
            drawn.push("zadd", add);
        } else if self.rng.chance(1, 10) {
            self.corrupt(&mut words, form);
        }
        let name = self.form_of(&words);
        drawn.push(&name, words);
        // What is drawn at random or by the clock goes at once, so that it does not live on.
        let first = &drawn.commands[0];
        if draws(&form.name, first) && first.len() > 1 {
            let del = vec![b"DEL".to_vec(), first[1].clone()];
            drawn.push("del", del);
        }
        drawn
    }

    /// The form that the words are of, whatever they were meant to be.
    fn form_of(&self, words: &Words) -> String {
        let lower = |at: usize| {
            words.get(at).map(|w| String::from_utf8_lossy(w).to_lowercase()).unwrap_or_default()
        };
        let sub = format!("{} {}", lower(0), lower(1));
        if self.forms.iter().any(|form| form.name == sub) { sub } else { lower(0) }
    }

    /// MULTI, commands on one key, EXEC.
    fn transaction(&mut self) -> Drawn {
        let group = self.forms[self.rng.below(self.forms.len() as u64) as usize].group.clone();
        let key = self.new_key(&group);
        let mut drawn = Drawn { forms: vec![], commands: vec![] };
        drawn.push("multi", vec![b"MULTI".to_vec()]);
        let length = self.rng.between(0, 4);
        while drawn.commands.len() as u64 <= length {
            let form = self.forms[self.rng.below(self.forms.len() as u64) as usize].clone();
            if !is_data(&form) || (form.group != group && self.rng.chance(3, 4)) {
                continue;
            }
            self.key = Some(key.clone());
            let words = self.words(&form);
            let inner = form.name.starts_with("xinfo")
                || ["dump", "object encoding"].contains(&&*form.name);
            if how(&form.name) == How::Exact && !inner && !draws(&form.name, &words) {
                drawn.push(&form.name, words);
            }
        }
        let end = if self.rng.chance(1, 10) { "discard" } else { "exec" };
        drawn.push(end, vec![end.as_bytes().to_vec()]);
        drawn
    }

    fn words(&mut self, form: &Form) -> Words {
        let mut words: Words = form.name.split(' ').map(|w| w.as_bytes().to_vec()).collect();
        for word in &mut words {
            match self.rng.below(3) {
                0 => {}
                _ => word.make_ascii_uppercase(),
            }
        }
        if form.is_container {
            words.push(b"nosuch".to_vec());
        }
        let mut counted = None;
        for arg in &form.args {
            self.arg(form, arg, &mut words, &mut counted);
        }
        if let Some((at, keys)) = counted {
            let wrong = if self.rng.chance(1, 12) { self.rng.between(1, 2) } else { 0 };
            words[at] = (keys + wrong).to_string().into_bytes();
        }
        words
    }

    /// Appends an argument, if it is to be there. `counted`: where numkeys stands, and the keys
    /// behind it.
    fn arg(&mut self, form: &Form, arg: &Arg, out: &mut Words, counted: &mut Option<(usize, u64)>) {
        if arg.optional && self.rng.chance(11, 20) {
            return;
        }
        let times = if arg.multiple { self.rng.between(1, 3) } else { 1 };
        for time in 0..times {
            if let Some(token) = &arg.token
                && (time == 0 || arg.multiple_token)
                && !token.is_empty()
            {
                let lower = self.rng.chance(1, 4);
                out.push(if lower { token.to_ascii_lowercase() } else { token.clone() }.into());
            }
            match &arg.kind {
                Kind::Token => {}
                Kind::OneOf(all) => {
                    let one = &all[self.rng.below(all.len() as u64) as usize];
                    self.arg(form, &Arg { optional: false, ..one.clone() }, out, counted);
                }
                Kind::Block(all) => all.iter().for_each(|a| self.arg(form, a, out, counted)),
                Kind::Integer if arg.name == "numkeys" => {
                    *counted = Some((out.len(), 0));
                    out.push(Vec::new());
                }
                Kind::Key => {
                    if let Some((_, keys)) = counted {
                        *keys += 1;
                    }
                    let key = self.key.clone().unwrap_or_else(|| self.new_key(&form.group));
                    out.push(key);
                }
                Kind::Integer => out.push(self.integer(form, &arg.name).into_bytes()),
                Kind::Double => out.push(self.double(form, &arg.name).into_bytes()),
                Kind::UnixTime => out.push(self.unix_time(&arg.name).into_bytes()),
                Kind::Text => out.push(self.text(form, &arg.name)),
            }
        }
    }

    fn pick(&mut self, all: &[&str]) -> String {
        all[self.rng.below(all.len() as u64) as usize].to_string()
    }

    /// Mostly one of the command's own type.
    fn new_key(&mut self, group: &str) -> Vec<u8> {
        let own = match group {
            "string" | "bitmap" => "s",
            "hash" => "h",
            "list" => "l",
            "set" => "t",
            "sorted-set" | "geo" => "z",
            "stream" => "x",
            "hyperloglog" => "p",
            _ => "",
        };
        let any = own.is_empty() || self.rng.chance(1, 12);
        let prefix = if any { self.pick(&["s", "h", "l", "t", "z", "x", "p"]) } else { own.into() };
        format!("{prefix}{}", self.rng.below(3)).into_bytes()
    }

    fn integer(&mut self, form: &Form, name: &str) -> String {
        match name {
            // Far away, so that nothing expires on its own within the test; never small.
            "seconds" | "milliseconds" | "ttl" => match self.rng.below(8) {
                // None of them is a small positive number.
                0 => self.pick(INTEGERS),
                _ => self.rng.between(100_000_000, 900_000_000).to_string(),
            },
            "cursor" => {
                if self.rng.chance(5, 6) {
                    "0".into()
                } else {
                    self.pick(INTEGERS)
                }
            }
            "db" | "destination-db" => self.pick(&["0", "0", "1", "99", "x"]),
            "protover" => self.pick(&["2", "3", "3", "4", "x"]),
            _ if self.rng.chance(1, 6) => self.pick(INTEGERS),
            // A reply of so many items as one asks for must stay small.
            "count" if form.name.ends_with("scan") => self.pick(&["1000", "1000", "0", "-1"]),
            _ if self.rng.chance(1, 6) => format!("-{}", self.rng.below(8)),
            _ => self.rng.below(8).to_string(),
        }
    }

    fn double(&mut self, form: &Form, name: &str) -> String {
        let near = |rng: &mut Rng, top: u64| format!("{}.{}", rng.below(top), rng.below(1_000));
        match name {
            "min" | "max" if form.group == "sorted-set" => self.pick(SCORES),
            _ if self.rng.chance(1, 5) => self.pick(DOUBLES),
            "longitude" => near(&mut self.rng, 180),
            "latitude" => near(&mut self.rng, 85),
            "radius" | "width" | "height" => self.rng.below(20_000).to_string(),
            _ => self.rng.below(8).to_string(),
        }
    }

    fn unix_time(&mut self, name: &str) -> String {
        let zeros = if name.contains("milli") { "000" } else { "" };
        match self.rng.below(8) {
            0 => "1".into(),
            1 => self.pick(INTEGERS),
            _ => format!("{}{zeros}", self.rng.between(4_000_000_000, 4_000_000_005)),
        }
    }

    fn text(&mut self, form: &Form, name: &str) -> Vec<u8> {
        if name == "serialized-value" {
            let at = self.rng.below(self.dumps.len() as u64) as usize;
            return self.dumps[at].clone();
        }
        let stream = form.group == "stream";
        let text = match name {
            "field" | "member" | "member1" | "member2" => self.member(form),
            "min" | "max" if form.group == "sorted-set" => {
                if form.name.ends_with("lex") {
                    self.pick(LEX)
                } else {
                    self.either(SCORES, LEX)
                }
            }
            "id" | "start" | "end" | "stop" | "last-id" | "threshold" if stream => self.pick(IDS),
            "group" | "groupname" if stream => format!("g{}", self.rng.below(2)),
            "pattern" => self.pick(PATTERNS),
            "script" => self.pick(SCRIPTS),
            "sha1" => self.pick(SHAS),
            "parameter" => self.pick(CONFIGS),
            "encoding" => self.pick(BITFIELD_TYPES),
            "operation" => self.pick(&["AND", "OR", "XOR", "NOT", "nand"]),
            "type" => self.pick(&["string", "zset", "hash", "stream", "nosuch"]),
            "command" | "command-name" => self.pick(&["get", "SET", "mget", "xread", "nosuch"]),
            "section" => self.pick(&["server", "replication", "nosuch"]),
            _ => self.value(),
        };
        text.into_bytes()
    }

    fn member(&mut self, form: &Form) -> String {
        match self.rng.below(12) {
            0 => String::new(),
            1 => self.rng.below(5).to_string(),
            _ if form.group == "hash" => format!("f{}", self.rng.below(6)),
            _ => format!("m{}", self.rng.below(8)),
        }
    }

    fn either(&mut self, one: &[&str], other: &[&str]) -> String {
        if self.rng.chance(1, 2) { self.pick(one) } else { self.pick(other) }
    }

    fn value(&mut self) -> String {
        match self.rng.below(9) {
            0 => String::new(),
            1 => self.pick(DOUBLES),
            2 => self.pick(INTEGERS),
            3 => "line\r\nbreak \u{ff}\0".to_string(),
            4 => format!("m{}", self.rng.below(8)),
            5 => "x".repeat(self.rng.between(40, 64) as usize),
            _ => self.rng.below(12).to_string(),
        }
    }

    /// Drops, doubles, swaps or replaces an argument. Where a time to live is among them only what
    /// cannot make it a short one.
    fn corrupt(&mut self, words: &mut Words, form: &Form) {
        let last = words.len() as u64 - 1;
        if last == 0 {
            return words.push(b"more".to_vec());
        }
        let at = self.rng.between(1, last) as usize;
        let timed = has_time(&form.args);
        match self.rng.below(4) {
            0 => drop(words.remove(at)),
            1 => words.insert(at, words[at].clone()),
            2 if !timed => {
                let with = self.rng.between(1, last) as usize;
                words.swap(at, with);
            }
            _ => words[at] = self.either(INTEGERS, DOUBLES).into_bytes(),
        }
        if timed && words.len() > 3 {
            let small = |w: &Vec<u8>| w.len() < 8 && w.iter().all(u8::is_ascii_digit);
            // The last word may have become the time to live.
            words.iter_mut().skip(2).filter(|w| small(w)).for_each(|w| *w = b"value".to_vec());
        }
    }
}

fn has_time(args: &[Arg]) -> bool {
    args.iter().any(|arg| match &arg.kind {
        Kind::UnixTime => true,
        Kind::Integer => matches!(&*arg.name, "seconds" | "milliseconds" | "ttl"),
        Kind::OneOf(all) | Kind::Block(all) => has_time(all),
        Kind::Token | Kind::Key | Kind::Double | Kind::Text => false,
    })
}

/// Whether it is about data.
pub fn is_data(form: &Form) -> bool {
    let control = ["server", "pubsub", "scripting", "connection", "transactions", "cluster"];
    let generic = ["migrate", "wait", "move"];
    !control.contains(&&*form.group) && !generic.contains(&&*form.name)
}

/// Whether what it writes is drawn at random or by the clock.
fn draws(form: &str, words: &Words) -> bool {
    match form {
        "spop" => true,
        "xadd" => words.iter().any(|w| w == b"*"),
        _ => false,
    }
}
