//! The shim's plan for each command: inner commands without a time to live, and what their replies
//! mean for the key's deadline. Rules and errors are those of Redis 7.0 (`expire.c`, `t_string.c`);
//! IFEQ is that of Valkey 8.1.

use alloc::boxed::Box;
use alloc::format;
use alloc::vec;
use alloc::vec::Vec;

use crate::backend::TtlChange;
use crate::command::{ARGS_MAX, Command, CommandBuf};
use crate::table::UpperName;
use crate::{Class, Context, keys, resp};

/// The execution plan of one command.
#[derive(Debug)]
pub(crate) struct Plan {
    /// The encoded commands for the backend; `None`: the command as it came.
    pub(crate) inner: Option<Vec<Vec<u8>>>,
    pub(crate) after: After,
    /// The backend shall say whether the key exists afterwards.
    pub(crate) want_exists: bool,
    /// `inner` was chosen by the present deadline: an earlier command of the same step must not
    /// have changed it.
    pub(crate) needs_known_deadline: bool,
}

/// The step after the replies of a plan's inner commands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum After {
    /// Nothing.
    Pass,
    /// This is the reply, whatever the backend's is.
    Answer(Vec<u8>),
    /// This error is the reply, unless there is no such key or the backend failed.
    RefuseIfFound(Vec<u8>),
    /// The deadline goes if the key has gone, as the step's `exists` says.
    MayRemove,
    /// The same as `MayRemove`; the last reply is that of an EXISTS and is cut off.
    Probed,
    /// If the first reply shows that the write was performed, the deadline changes.
    Set(When, TtlChange),
    /// The same as these (`Set` or `OkIf`), of a SET with a time in the past.
    Past(Box<After>),
    /// The reply is that of EXISTS or DEL; `+OK` if it is this integer, else null.
    OkIf(i64, TtlChange),
    /// EXPIRE: the reply is that of EXISTS.
    Expire { deadline_ms: u64, condition: Condition },
    /// PERSIST: the reply is that of EXISTS.
    Persist,
    /// TTL and its kin: the reply is that of EXISTS.
    Ttl { absolute: bool, seconds: bool },
    /// EVAL and its kin: the backend says what became of the deadline.
    Script,
}

/// The condition on a write's reply that shows that it was performed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum When {
    NotError,
    Ok,
    /// The same, of RESTORE.
    Restored,
    Null,
    NotNull,
    /// The same, of GETEX PERSIST.
    Persisted,
    /// The reply is the integer 1.
    One,
    Equals(Vec<u8>),
}

/// The condition of an EXPIRE.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Condition {
    nx: bool,
    xx: bool,
    gt: bool,
    lt: bool,
}

impl Condition {
    /// Redis 7.0 `expireGenericCommand`: no deadline counts as infinite for GT and LT.
    fn holds(self, old: Option<u64>, new: u64) -> bool {
        !(self.nx && old.is_some()
            || self.xx && old.is_none()
            || self.gt && old.is_none_or(|old| new <= old)
            || self.lt && old.is_some_and(|old| new >= old))
    }
}

/// The outcome for the key's deadline and the reply.
#[derive(Debug)]
pub(crate) struct Settled {
    pub(crate) change: TtlChange,
    answer: Answer,
    /// An event of the key beside the backend's ([`mod@crate::events`]).
    pub(crate) event: Option<Happened>,
}

/// A change of a key's time to live.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Happened {
    Expire,
    Persist,
    /// Redis sets the key, and the next who looks finds it due: here it has gone at once, or was
    /// not set at all.
    SetInThePast,
}

#[derive(Debug)]
enum Answer {
    AsIs,
    /// The first bytes alone.
    Prefix(usize),
    Integer(i64),
    Bytes(Vec<u8>),
}

impl Settled {
    /// How much of a backend's reply of so many bytes the client gets; `None`: something else.
    pub(crate) fn kept_bytes(&self, length: usize) -> Option<usize> {
        match self.answer {
            Answer::AsIs => Some(length),
            Answer::Prefix(kept) => Some(kept),
            Answer::Integer(_) | Answer::Bytes(_) => None,
        }
    }

    /// Makes of `reply[start..]` what the client gets.
    pub(crate) fn write(self, reply: &mut Vec<u8>, start: usize) {
        match self.answer {
            Answer::AsIs => {}
            Answer::Prefix(length) => reply.truncate(start + length),
            Answer::Integer(value) => {
                reply.truncate(start);
                resp::integer(reply, value);
            }
            Answer::Bytes(bytes) => {
                reply.truncate(start);
                reply.extend_from_slice(&bytes);
            }
        }
    }
}

impl After {
    /// Whether the key's deadline may be another afterwards.
    pub(crate) fn changes_deadline(&self) -> bool {
        match self {
            After::Pass | After::Answer(_) | After::RefuseIfFound(_) | After::Ttl { .. } => false,
            After::MayRemove | After::Probed | After::Persist | After::Script => true,
            After::Set(_, change) | After::OkIf(_, change) => *change != TtlChange::Keep,
            After::Expire { .. } | After::Past(_) => true,
        }
    }

    /// Whether the outcome changes or depends on the key's deadline.
    pub(crate) fn touches_deadline(&self) -> bool {
        self.changes_deadline() || matches!(self, After::Ttl { .. })
    }

    /// Reads the outcome from the inner replies, which stand back to back in `replies`.
    /// `deadline_ms` is the key's before this command.
    pub(crate) fn settle(
        &self,
        context: &Context,
        deadline_ms: Option<u64>,
        replies: &[u8],
        exists: Option<bool>,
    ) -> Settled {
        let gone = |gone: bool| if gone { TtlChange::Clear } else { TtlChange::Keep };
        let settled = |change, answer| Settled { change, answer, event: None };
        let as_is = |change| settled(change, Answer::AsIs);
        let integer = |change, value| settled(change, Answer::Integer(value));
        let present = replies == b":1\r\n";
        match self {
            After::Pass => as_is(TtlChange::Keep),
            After::Answer(bytes) => settled(TtlChange::Keep, Answer::Bytes(bytes.clone())),
            After::MayRemove | After::Script => as_is(gone(exists == Some(false))),
            After::Probed => {
                let first = resp::value_length(replies).unwrap_or(replies.len());
                let change = gone(&replies[first..] == b":0\r\n");
                settled(change, Answer::Prefix(first))
            }
            After::Set(when, change) => {
                let first = resp::value_length(replies).unwrap_or(replies.len());
                let performed = when.holds(&replies[..first]);
                let change = if performed { *change } else { TtlChange::Keep };
                let event = match change {
                    TtlChange::Set(_) if *when != When::Restored => Some(Happened::Expire),
                    TtlChange::Clear if *when == When::Persisted && deadline_ms.is_some() => {
                        Some(Happened::Persist)
                    }
                    TtlChange::Keep | TtlChange::Clear | TtlChange::Set(_) => None,
                };
                Settled { event, ..settled(change, Answer::Prefix(first)) }
            }
            After::Past(after) => {
                let own = after.settle(context, deadline_ms, replies, exists);
                let first = resp::value_length(replies).unwrap_or(replies.len());
                let performed = match &**after {
                    After::Set(when, _) => when.holds(&replies[..first]),
                    After::OkIf(wanted, _) => present == (*wanted == 1),
                    _ => false,
                };
                let event = performed.then_some(Happened::SetInThePast);
                Settled { event, ..own }
            }
            // From here on, an error of the backend's passes as it is.
            _ if replies.starts_with(b"-") => as_is(TtlChange::Keep),
            After::RefuseIfFound(_) if resp::is_null(replies) => as_is(TtlChange::Keep),
            After::RefuseIfFound(error) => settled(TtlChange::Keep, Answer::Bytes(error.clone())),
            After::OkIf(wanted, change) => {
                let mut bytes = Vec::new();
                if present == (*wanted == 1) {
                    bytes.extend_from_slice(resp::OK);
                    return settled(*change, Answer::Bytes(bytes));
                }
                resp::null(&mut bytes, context.resp3);
                settled(TtlChange::Keep, Answer::Bytes(bytes))
            }
            After::Expire { deadline_ms: new, condition } => {
                if present && condition.holds(deadline_ms, *new) {
                    let event = Some(Happened::Expire);
                    return Settled { event, ..integer(TtlChange::Set(*new), 1) };
                }
                integer(TtlChange::Keep, 0)
            }
            After::Persist => {
                let is_taken = present && deadline_ms.is_some();
                let event = is_taken.then_some(Happened::Persist);
                Settled { event, ..integer(gone(present), i64::from(is_taken)) }
            }
            After::Ttl { absolute, seconds } => {
                let value = match (present, deadline_ms) {
                    (false, _) => -2,
                    (true, None) => -1,
                    (true, Some(at)) => {
                        let base = if *absolute { 0 } else { context.now_ms };
                        let ms = at.saturating_sub(base).min(i64::MAX as u64);
                        if *seconds { (ms.saturating_add(500) / 1000) as i64 } else { ms as i64 }
                    }
                };
                integer(TtlChange::Keep, value)
            }
        }
    }
}

impl When {
    pub(crate) fn holds(&self, reply: &[u8]) -> bool {
        if reply.starts_with(b"-") {
            return false;
        }
        match self {
            When::NotError => true,
            When::Ok | When::Restored => reply == resp::OK,
            When::Null => resp::is_null(reply),
            When::NotNull | When::Persisted => !resp::is_null(reply),
            When::One => reply == b":1\r\n",
            When::Equals(value) => resp::bulk_payload(reply) == Some(value),
        }
    }
}

impl Plan {
    fn pass() -> Plan {
        Plan { inner: None, after: After::Pass, want_exists: false, needs_known_deadline: false }
    }

    fn after(after: After) -> Plan {
        Plan { after, ..Plan::pass() }
    }

    fn inner(commands: Vec<Vec<u8>>, after: After) -> Plan {
        Plan { inner: Some(commands), after, ..Plan::pass() }
    }

    /// A plan without commands for the backend, with this reply.
    pub(crate) fn answer(reply: &[u8]) -> Plan {
        Plan::inner(Vec::new(), After::Answer(reply.to_vec()))
    }

    /// A plan without commands for the backend, with an error as the reply.
    fn error(text: &[u8]) -> Plan {
        let mut bytes = Vec::new();
        resp::error(&mut bytes, text);
        Plan::inner(Vec::new(), After::Answer(bytes))
    }

    fn arity(name: &UpperName) -> Plan {
        let name = name.lower();
        Plan::error(format!("ERR wrong number of arguments for '{name}' command").as_bytes())
    }
}

const SYNTAX: &[u8] = b"ERR syntax error";
const NOT_AN_INTEGER: &[u8] = b"ERR value is not an integer or out of range";

/// Whether a command of class `Read` looks at the key's deadline; all others pass the shim.
pub(crate) fn reads_deadline(name: &UpperName) -> bool {
    matches!(
        name.bytes(),
        b"TTL"
            | b"PTTL"
            | b"EXPIRETIME"
            | b"PEXPIRETIME"
            | b"CONCORD.EXEC"
            | b"CONCORD.INFO"
            | b"CONCORD.DIGEST"
            | b"CONCORD.USERS"
            | b"CONCORD.EVENTS"
            | b"EVAL_RO"
            | b"EVALSHA_RO"
            | b"FCALL_RO"
    )
}

/// Writes that never remove their key: they need no look at whether it still exists.
fn keeps_key(name: &[u8]) -> bool {
    matches!(
        name,
        b"INCR"
            | b"DECR"
            | b"INCRBY"
            | b"DECRBY"
            | b"INCRBYFLOAT"
            | b"APPEND"
            | b"SETNX"
            | b"SETRANGE"
            | b"SETBIT"
            | b"CAS"
            | b"HSET"
            | b"HMSET"
            | b"HSETNX"
            | b"HINCRBY"
            | b"HINCRBYFLOAT"
            | b"LPUSH"
            | b"RPUSH"
            | b"LPUSHX"
            | b"RPUSHX"
            | b"LSET"
            | b"LINSERT"
            | b"SADD"
            | b"ZADD"
            | b"ZINCRBY"
            | b"PFADD"
            | b"XADD"
            | b"SORT"
            | b"GEOADD"
            | b"GEORADIUS"
            | b"GEORADIUSBYMEMBER"
            | b"BITFIELD"
            | b"XDEL"
            | b"XTRIM"
            | b"XSETID"
            | b"XGROUP"
            | b"XREADGROUP"
            | b"XACK"
            | b"XCLAIM"
            | b"XAUTOCLAIM"
    )
}

/// The effect of a write of several keys on their deadlines; `None` if it is not known here.
pub(crate) fn after_several(name: &UpperName) -> Option<After> {
    match name.bytes() {
        b"DEL" | b"UNLINK" => Some(After::Set(When::NotError, TtlChange::Clear)),
        b"MSET" => Some(After::Set(When::Ok, TtlChange::Clear)),
        // None of the keys existed.
        b"MSETNX" => Some(After::Set(When::One, TtlChange::Clear)),
        // A read that came the way of writes.
        b"MGET" | b"EXISTS" | b"TOUCH" | b"SINTER" | b"SUNION" | b"SDIFF" | b"SINTERCARD"
        | b"ZINTER" | b"ZUNION" | b"ZDIFF" | b"ZINTERCARD" | b"PFCOUNT" | b"LCS" | b"XREAD" => {
            Some(After::Pass)
        }
        _ => None,
    }
}

/// The plan for `command` on a key with this deadline.
pub(crate) fn plan_command(
    context: &Context,
    class: Class,
    name: &UpperName,
    command: &Command<'_>,
    deadline_ms: Option<u64>,
) -> Plan {
    // It changes nothing, in a transaction of reads too; the backend refuses it if it could.
    if class == Class::Read && !reads_deadline(name) {
        return Plan::pass();
    }
    let plan = plan_any(context, name, command, deadline_ms);
    if class == Class::Read && plan.after.changes_deadline() {
        return Plan::error(b"ERR a write was submitted as a read");
    }
    plan
}

fn plan_any(
    context: &Context,
    name: &UpperName,
    command: &Command<'_>,
    deadline_ms: Option<u64>,
) -> Plan {
    match name.bytes() {
        b"SET" => plan_set(context, command, deadline_ms),
        b"SETEX" => plan_setex(context, name, command, EX),
        b"PSETEX" => plan_setex(context, name, command, PX),
        b"GETEX" => plan_getex(context, name, command),
        b"EXPIRE" => plan_expire(context, name, command, EX, deadline_ms),
        b"PEXPIRE" => plan_expire(context, name, command, PX, deadline_ms),
        b"EXPIREAT" => plan_expire(context, name, command, EXAT, deadline_ms),
        b"PEXPIREAT" => plan_expire(context, name, command, PXAT, deadline_ms),
        b"PERSIST" => plan_exists(name, command, After::Persist),
        b"TTL" => plan_exists(name, command, After::Ttl { absolute: false, seconds: true }),
        b"PTTL" => plan_exists(name, command, After::Ttl { absolute: false, seconds: false }),
        b"EXPIRETIME" => plan_exists(name, command, After::Ttl { absolute: true, seconds: true }),
        b"PEXPIRETIME" => plan_exists(name, command, After::Ttl { absolute: true, seconds: false }),
        b"EVAL" | b"EVALSHA" | b"FCALL" => {
            Plan { want_exists: deadline_ms.is_some(), ..Plan::after(After::Script) }
        }
        b"EVAL_RO" | b"EVALSHA_RO" => Plan::pass(),
        b"RESTORE" if command.argc() > 3 => plan_restore(context, command, deadline_ms),
        b"HEXPIRE" | b"HPEXPIRE" | b"HEXPIREAT" | b"HPEXPIREAT" | b"HSETEX" | b"HGETEX"
        | b"HPERSIST" => Plan::error(
            b"ERR times to live of fields are not supported: they would expire by a local clock",
        ),
        _ if deadline_ms.is_none() => Plan::pass(),
        // The overwritten key is a new one; an empty result removes it.
        b"GETSET" | b"MSET" | b"BITOP" | b"SINTERSTORE" | b"SUNIONSTORE" | b"SDIFFSTORE"
        | b"ZINTERSTORE" | b"ZUNIONSTORE" | b"ZDIFFSTORE" | b"ZRANGESTORE" | b"GEOSEARCHSTORE" => {
            Plan::after(After::Set(When::NotError, TtlChange::Clear))
        }
        b"SORT" if keys::sort(&command.args().collect::<Vec<_>>()).len() > 1 => {
            Plan::after(After::Set(When::NotError, TtlChange::Clear))
        }
        b"GEORADIUS" | b"GEORADIUSBYMEMBER"
            if keys::radius(&command.args().collect::<Vec<_>>()).len() > 1 =>
        {
            Plan::after(After::Set(When::NotError, TtlChange::Clear))
        }
        other if keeps_key(other) => Plan::pass(),
        _ => Plan { want_exists: true, ..Plan::after(After::MayRemove) },
    }
}

fn encode(key_index: u8, args: &[&[u8]]) -> Vec<u8> {
    CommandBuf::new().encode(key_index, args.iter().copied()).to_vec()
}

/// EXISTS, and the rest from its reply.
fn plan_exists(name: &UpperName, command: &Command<'_>, after: After) -> Plan {
    match (command.argc(), command.args().nth(1)) {
        (2, Some(key)) => Plan::inner(vec![encode(1, &[b"EXISTS", key])], after),
        _ => Plan::arity(name),
    }
}

/// The form in which a deadline was given.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Unit {
    ms: i64,
    absolute: bool,
}

const EX: Unit = Unit { ms: 1000, absolute: false };
const PX: Unit = Unit { ms: 1, absolute: false };
const EXAT: Unit = Unit { ms: 1000, absolute: true };
const PXAT: Unit = Unit { ms: 1, absolute: true };

impl Unit {
    fn of(option: &UpperName) -> Option<Unit> {
        match option.bytes() {
            b"EX" => Some(EX),
            b"PX" => Some(PX),
            b"EXAT" => Some(EXAT),
            b"PXAT" => Some(PXAT),
            _ => None,
        }
    }
}

/// Redis 7.0 `getExpireMillisecondsOrReply`.
fn deadline(context: &Context, name: &UpperName, text: &[u8], unit: Unit) -> Result<u64, Vec<u8>> {
    let invalid = || format!("ERR invalid expire time in '{}' command", name.lower()).into_bytes();
    let value = resp::number(text).ok_or(NOT_AN_INTEGER)?;
    if value <= 0 {
        return Err(invalid());
    }
    let ms = value.checked_mul(unit.ms).ok_or_else(invalid)?;
    let base = if unit.absolute { 0 } else { context.now_ms as i64 };
    ms.checked_add(base).map(|at| at as u64).ok_or_else(invalid)
}

/// The options of SET and GETEX (Redis 7.0 `parseExtendedStringArgumentsOrReply`).
#[derive(Default)]
struct StringOptions<'a> {
    nx: bool,
    xx: bool,
    get: bool,
    keep_ttl: bool,
    persist: bool,
    if_equal: Option<&'a [u8]>,
    expire: Option<(Unit, &'a [u8])>,
}

impl<'a> StringOptions<'a> {
    fn parse(mut args: impl Iterator<Item = &'a [u8]>, is_set: bool) -> Option<Self> {
        let mut o = StringOptions::default();
        while let Some(arg) = args.next() {
            let option = UpperName::of(arg);
            let conditional = o.nx || o.xx || o.if_equal.is_some();
            match option.bytes() {
                b"NX" if is_set && (o.nx || !conditional) => o.nx = true,
                b"XX" if is_set && (o.xx || !conditional) => o.xx = true,
                b"IFEQ" if is_set && !conditional => o.if_equal = Some(args.next()?),
                b"GET" if is_set => o.get = true,
                b"KEEPTTL" if is_set && o.expire.is_none() => o.keep_ttl = true,
                b"PERSIST" if !is_set && o.expire.is_none() => o.persist = true,
                _ => {
                    let unit = Unit::of(&option)?;
                    let other = o.expire.is_some_and(|(old, _)| old != unit);
                    if o.keep_ttl || o.persist || other {
                        return None;
                    }
                    o.expire = Some((unit, args.next()?));
                }
            }
        }
        Some(o)
    }

    /// The condition on the reply of SET that shows that it was performed.
    fn when(&self) -> When {
        match (self.get, self.if_equal) {
            (true, Some(value)) => When::Equals(value.to_vec()),
            (true, None) if self.nx => When::Null,
            (true, None) if self.xx => When::NotNull,
            (true, None) => When::NotError,
            (false, _) => When::Ok,
        }
    }
}

fn plan_set(context: &Context, command: &Command<'_>, deadline_ms: Option<u64>) -> Plan {
    let mut args = command.args().skip(1);
    let (Some(key), Some(value)) = (args.next(), args.next()) else { return Plan::pass() };
    if command.argc() == 3 {
        return match deadline_ms {
            None => Plan::pass(),
            Some(_) => Plan::after(After::Set(When::Ok, TtlChange::Clear)),
        };
    }
    let Some(options) = StringOptions::parse(args, true) else { return Plan::error(SYNTAX) };
    let mut inner: Vec<&[u8]> = vec![b"SET", key, value];
    if options.nx {
        inner.push(b"NX");
    }
    if options.xx {
        inner.push(b"XX");
    }
    if let Some(old) = options.if_equal {
        inner.extend([&b"IFEQ"[..], old]);
    }
    if options.get {
        inner.push(b"GET");
    }
    let set = encode(1, &inner);
    let Some((unit, text)) = options.expire else {
        let clears = deadline_ms.is_some() && !options.keep_ttl;
        let change = if clears { TtlChange::Clear } else { TtlChange::Keep };
        let after = if clears { After::Set(options.when(), change) } else { After::Pass };
        return Plan::inner(vec![set], after);
    };
    match deadline(context, &UpperName::of(b"SET"), text, unit) {
        Err(text) => Plan::error(&text),
        Ok(at) if at <= context.now_ms && options.if_equal.is_none() => {
            plan_set_past(key, set, &options)
        }
        Ok(at) => Plan::inner(vec![set], After::Set(options.when(), TtlChange::Set(at))),
    }
}

/// SET with a time in the past: the key is gone at once if the write is performed.
fn plan_set_past(key: &[u8], set: Vec<u8>, options: &StringOptions<'_>) -> Plan {
    let past = |commands, after| Plan::inner(commands, After::Past(Box::new(after)));
    let one = |name: &[u8], after| past(vec![encode(1, &[name, key])], after);
    match (options.nx, options.xx, options.get) {
        (true, _, false) => one(b"EXISTS", After::OkIf(0, TtlChange::Keep)),
        (true, _, true) => one(b"GET", After::Set(When::Null, TtlChange::Keep)),
        (_, true, false) => one(b"DEL", After::OkIf(1, TtlChange::Clear)),
        (_, true, true) => one(b"GETDEL", After::Set(When::NotNull, TtlChange::Clear)),
        (false, false, false) => {
            let delete = encode(1, &[b"DEL", key]);
            past(vec![set, delete], After::Set(When::Ok, TtlChange::Clear))
        }
        // GETDEL fails where SET GET does, and leaves the key there as that does.
        (false, false, true) => one(b"GETDEL", After::Set(When::NotError, TtlChange::Clear)),
    }
}

/// RESTORE: the backend is told no time to live but one that is over whatever the clock says.
/// Options may stand in any order, and what is wrong with them, or with the time, is the backend's
/// to say.
fn plan_restore(context: &Context, command: &Command<'_>, deadline_ms: Option<u64>) -> Plan {
    let mut args: Vec<&[u8]> = command.args().collect();
    let ttl_ms = match resp::number(args[2]) {
        Some(0) if deadline_ms.is_none() => return Plan::pass(),
        Some(0) => return Plan::after(After::Set(When::Ok, TtlChange::Clear)),
        Some(ttl_ms) if ttl_ms > 0 => ttl_ms,
        Some(_) | None => return Plan::pass(),
    };
    let is_absolute = args[4..].iter().any(|arg| arg.eq_ignore_ascii_case(b"ABSTTL"));
    let base_ms = if is_absolute { 0 } else { context.now_ms as i64 };
    // As in Redis, a sum that overflows is in the past.
    let change = match u64::try_from(ttl_ms.wrapping_add(base_ms)) {
        Ok(at) if at > context.now_ms => {
            args[2] = b"0";
            TtlChange::Set(at)
        }
        _ if args.len() == ARGS_MAX => return Plan::error(SYNTAX),
        _ => {
            args[2] = b"1";
            args.insert(4, b"ABSTTL");
            TtlChange::Clear
        }
    };
    Plan::inner(vec![encode(1, &args)], After::Set(When::Restored, change))
}

fn plan_setex(context: &Context, name: &UpperName, command: &Command<'_>, unit: Unit) -> Plan {
    let args: Vec<&[u8]> = command.args().collect();
    let &[_, key, time, value] = &args[..] else { return Plan::arity(name) };
    let set = encode(1, &[b"SET", key, value]);
    match deadline(context, name, time, unit) {
        Err(text) => Plan::error(&text),
        Ok(at) => Plan::inner(vec![set], After::Set(When::Ok, TtlChange::Set(at))),
    }
}

fn plan_getex(context: &Context, name: &UpperName, command: &Command<'_>) -> Plan {
    let mut args = command.args().skip(1);
    let Some(key) = args.next() else { return Plan::arity(name) };
    let Some(options) = StringOptions::parse(args, false) else { return Plan::error(SYNTAX) };
    let get = |name: &[u8], after| Plan::inner(vec![encode(1, &[name, key])], after);
    if options.persist {
        return get(b"GET", After::Set(When::Persisted, TtlChange::Clear));
    }
    let Some((unit, text)) = options.expire else { return get(b"GET", After::Pass) };
    match deadline(context, name, text, unit) {
        Err(text) => {
            let mut error = Vec::new();
            resp::error(&mut error, &text);
            get(b"GET", After::RefuseIfFound(error))
        }
        Ok(at) if at <= context.now_ms => {
            get(b"GETDEL", After::Set(When::NotNull, TtlChange::Clear))
        }
        Ok(at) => get(b"GET", After::Set(When::NotNull, TtlChange::Set(at))),
    }
}

/// EXPIRE and its kin (Redis 7.0 `expireGenericCommand`); one in the past deletes at once.
fn plan_expire(
    context: &Context,
    name: &UpperName,
    command: &Command<'_>,
    unit: Unit,
    deadline_ms: Option<u64>,
) -> Plan {
    let mut args = command.args().skip(1);
    let (Some(key), Some(time)) = (args.next(), args.next()) else { return Plan::arity(name) };
    let mut condition = Condition::default();
    for arg in args {
        match UpperName::of(arg).bytes() {
            b"NX" => condition.nx = true,
            b"XX" => condition.xx = true,
            b"GT" => condition.gt = true,
            b"LT" => condition.lt = true,
            _ => {
                let shown = arg.split(|&b| b == 0).next().unwrap_or_default();
                return Plan::error(&[b"ERR Unsupported option ", shown].concat());
            }
        }
    }
    if condition.nx && (condition.xx || condition.gt || condition.lt) {
        let text = b"ERR NX and XX, GT or LT options at the same time are not compatible";
        return Plan::error(text);
    }
    if condition.gt && condition.lt {
        return Plan::error(b"ERR GT and LT options at the same time are not compatible");
    }
    let Some(value) = resp::number(time) else { return Plan::error(NOT_AN_INTEGER) };
    let base_ms = if unit.absolute { 0 } else { context.now_ms as i64 };
    let at = value.checked_mul(unit.ms).and_then(|ms| ms.checked_add(base_ms));
    let Some(at) = at else {
        let text = format!("ERR invalid expire time in '{}' command", name.lower());
        return Plan::error(text.as_bytes());
    };
    plan_expire_at(context.now_ms, key, at, condition, deadline_ms)
}

fn plan_expire_at(
    now_ms: u64,
    key: &[u8],
    at: i64,
    condition: Condition,
    deadline_ms: Option<u64>,
) -> Plan {
    let one = |name: &[u8], after| Plan::inner(vec![encode(1, &[name, key])], after);
    match u64::try_from(at) {
        Ok(deadline_ms) if deadline_ms > now_ms => {
            one(b"EXISTS", After::Expire { deadline_ms, condition })
        }
        // In the past: the key goes at once, if the condition holds.
        _ => {
            let needs_known_deadline = condition != Condition::default();
            let plan = if condition.holds(deadline_ms, at.max(0) as u64) {
                one(b"DEL", After::Set(When::NotError, TtlChange::Clear))
            } else {
                Plan::inner(Vec::new(), After::Answer(b":0\r\n".to_vec()))
            };
            Plan { needs_known_deadline, ..plan }
        }
    }
}
