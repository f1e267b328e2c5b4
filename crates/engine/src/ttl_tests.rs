//! Times to live: the decisions of the shim, and that a backend that answers late changes none.

use super::*;
use crate::Memory;
use crate::backend::{Effect, Told};
use crate::command::CommandBuf;
use crate::copy::{BadChunk, Copied, Object, PLACE_END, next_place};
use crate::table::CommandTable;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use concord_core::rng::Rng;

/// A backend that executes at once and answers when it is told to.
struct Late {
    memory: Memory,
    unanswered: VecDeque<BackendDone>,
    answerable: usize,
    /// (key, had commands, delete_first) of each step.
    steps: Vec<(Option<Vec<u8>>, usize, bool)>,
}

impl Late {
    fn new() -> Late {
        let memory = Memory::new(0);
        Late { memory, unanswered: VecDeque::new(), answerable: 0, steps: Vec::new() }
    }
}

impl Backend for Late {
    fn submit(&mut self, context: &Context, step: &Step<'_>, _: &mut Vec<u8>) -> Submitted {
        let mut reply = Vec::new();
        let submitted = self.memory.submit(context, step, &mut reply);
        let Submitted::Done(outcome) = submitted else { panic!("memory answers at once") };
        self.steps.push((step.key.map(<[u8]>::to_vec), step.commands.len(), step.delete_first));
        self.unanswered.push_back(BackendDone { reply, outcome, copied: None });
        Submitted::Pending
    }

    fn poll(&mut self) -> Option<BackendDone> {
        self.answerable = self.answerable.checked_sub(1)?;
        self.unanswered.pop_front()
    }

    fn prepare_copy(&mut self) -> bool {
        true
    }

    fn end_copy(&mut self) {}

    fn copy(&mut self, from: u64, bytes_max: usize) -> Option<Copied> {
        assert!(self.unanswered.is_empty(), "alone");
        let copied = self.memory.copy(from, bytes_max);
        self.unanswered.push_back(BackendDone { copied, ..BackendDone::default() });
        None
    }

    fn copy_keys(&mut self, keys: &[Vec<u8>], wanted: (usize, usize), onto: u64) -> Option<Copied> {
        let copied = self.memory.copy_keys(keys, wanted, onto);
        self.unanswered.push_back(BackendDone { copied, ..BackendDone::default() });
        None
    }

    fn make_ready(&mut self, keys: &[&[u8]]) -> bool {
        self.memory.make_ready(keys)
    }

    fn fork_copy(&mut self, cursor: u64) -> u64 {
        self.memory.fork_copy(cursor)
    }

    fn release_copy(&mut self, cursor: u64) {
        self.memory.release_copy(cursor);
    }

    fn install(&mut self, objects: &[Object<'_>]) -> Result<Submitted, BadChunk> {
        assert!(self.unanswered.is_empty(), "alone");
        self.memory.install(objects)?;
        self.unanswered.push_back(BackendDone::default());
        Ok(Submitted::Pending)
    }

    fn clear(&mut self) -> Submitted {
        assert!(self.unanswered.is_empty(), "alone");
        self.memory.clear();
        self.unanswered.push_back(BackendDone::default());
        Submitted::Pending
    }

    fn lost(&self) -> bool {
        false
    }

    fn keys(&self) -> u64 {
        self.memory.keys()
    }

    fn memory_bytes(&self) -> u64 {
        self.memory.memory_bytes()
    }

    fn digest(&self) -> Option<u64> {
        self.memory.digest()
    }
}

fn encode(line: &str) -> Vec<u8> {
    let args: Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
    let keyless = matches!(args[0], b"FLUSHALL" | b"DBSIZE" | b"SCAN" | b"RANDOMKEY")
        || several::names_keys(&UpperName::of(args[0])) && args.len() > 2;
    CommandBuf::new().encode(u8::from(args.len() > 1 && !keyless), args).to_vec()
}

fn encode_exec(lines: &[&str]) -> Vec<u8> {
    let parts: Vec<Vec<u8>> = lines.iter().map(|line| encode(line)).collect();
    let all = [EXEC_COMMAND].into_iter().chain(parts.iter().map(Vec::as_slice));
    CommandBuf::new().encode(0, all).to_vec()
}

fn class_of(line: &str) -> Class {
    let name = line.split(' ').next().unwrap();
    CommandTable::memory().class_of(name.as_bytes()).unwrap_or(Class::Write)
}

fn context(now_ms: u64) -> Context {
    Context { now_ms, entropy: now_ms, ..Context::default() }
}

struct Rig(Shimmed<Memory>);

impl Rig {
    fn new() -> Rig {
        Rig(Shimmed::new(Memory::new(0)))
    }

    fn submit(&mut self, now_ms: u64, class: Class, bytes: &[u8]) -> String {
        let mut reply = Vec::new();
        let command = Command::parse(bytes).unwrap();
        assert_eq!(self.0.submit(&context(now_ms), class, &command, &mut reply), Progress::Done);
        String::from_utf8(reply).unwrap().replace("\r\n", " ").trim().to_string()
    }

    fn call(&mut self, now_ms: u64, line: &str) -> String {
        self.submit(now_ms, class_of(line), &encode(line))
    }

    /// Executes and compares, one line each: `now_ms command => reply`.
    fn script(&mut self, script: &str) {
        for line in script.lines().map(str::trim).filter(|line| !line.is_empty()) {
            let (request, expected) = line.split_once(" => ").unwrap();
            let (now_ms, command) = request.split_once(' ').unwrap();
            assert_eq!(self.call(now_ms.parse().unwrap(), command), expected, "{line}");
        }
    }
}

/// A due key stays visible to reads until the numbered delete.
#[test]
fn t12_due_key_is_visible_until_its_sequenced_delete() {
    let mut rig = Rig::new();
    rig.script(
        "1000 SET k v PX 500 => +OK
         1000 PTTL k => :500
         1600 GET k => $1 v
         1600 TTL k => :0
         1600 EXISTS k => :1
         1600 CONCORD.EXPIRE k 1499 => :0
         1600 GET k => $1 v
         1499 CONCORD.EXPIRE k 1500 => :0
         1500 CONCORD.EXPIRE k 1500 => :1
         1500 GET k => $-1
         1500 CONCORD.EXPIRE k 1500 => :0
         1500 PTTL k => :-2",
    );
    assert_eq!(rig.0.next_expiry_ms(), None);
}

#[test]
fn a_write_on_a_due_key_deletes_it_first() {
    let mut rig = Rig::new();
    rig.script(
        "1000 RPUSH k a b => :2
         1000 PEXPIRE k 500 => :1
         1499 RPUSH k c => :3
         1500 RPUSH k d => :1
         1500 TTL k => :-1
         1500 PEXPIRE k 10 => :1
         1510 PEXPIRE k 10 => :0
         1510 EXISTS k => :0
         1510 SET k v PX 5 => +OK
         1515 SET k w XX => $-1
         1515 EXISTS k => :0",
    );
}

#[test]
fn an_expiry_that_was_put_off_is_not_carried_out() {
    let mut rig = Rig::new();
    rig.script("1 SET k v PX 10 => +OK");
    let mut due = Vec::new();
    rig.0.due(11, None, 5, &|_, _| false, &mut due);
    assert_eq!(due, [(b"k".to_vec(), 11)]);
    rig.script(
        "10 PEXPIRE k 100 => :1
         12 CONCORD.EXPIRE k 11 => :0
         12 PTTL k => :98",
    );
}

#[test]
fn a_key_that_its_last_element_leaves_loses_its_deadline() {
    let mut rig = Rig::new();
    rig.script(
        "1 RPUSH k a => :1
         1 EXPIRE k 100 => :1
         1 LPOP k => $1 a
         1 RPUSH k b => :1
         1 TTL k => :-1
         1 EXPIRE k 100 => :1
         1 DEL k => :1
         1 SET k v => +OK
         1 TTL k => :-1",
    );
    assert_eq!(rig.0.next_expiry_ms(), None);
}

/// What replaces a value clears its deadline and what changes it does not.
#[test]
fn replacing_clears_a_deadline_and_changing_does_not() {
    let mut rig = Rig::new();
    rig.script(
        "1 SET k 1 EX 100 => +OK
         1 INCR k => :2
         1 TTL k => :100
         1 SET k 5 KEEPTTL => +OK
         1 TTL k => :100
         1 SET k 5 NX => $-1
         1 TTL k => :100
         1 SET k 6 XX GET EX 50 => $1 5
         1 TTL k => :50
         1 CAS k 6 7 => :1
         1 TTL k => :50
         1 GETSET k 8 => $1 7
         1 TTL k => :-1
         1 SET k 9 IFEQ 8 EX 10 => +OK
         1 SET k 0 IFEQ 8 EX 99 => $-1
         1 TTL k => :10
         1 SET k 0 IFEQ 8 GET => $1 9
         1 TTL k => :10
         1 GETEX k PERSIST => $1 9
         1 TTL k => :-1
         1 GETEX k PX 700 => $1 9
         1 PTTL k => :700
         1 PERSIST k => :1
         1 PERSIST k => :0
         1 CAD k 9 => :1",
    );
}

#[test]
fn conditions_of_expire_are_those_of_redis() {
    let mut rig = Rig::new();
    rig.script(
        "1 SET k v => +OK
         1 EXPIRE k 10 XX => :0
         1 EXPIRE k 10 GT => :0
         1 EXPIRE k 10 LT => :1
         1 EXPIRE k 20 NX => :0
         1 EXPIRE k 5 GT => :0
         1 EXPIRE k 20 GT => :1
         1 EXPIRE k -1 GT => :0
         1 EXPIRE k -1 NX => :0
         1 EXPIRE k -1 LT => :1
         1 EXISTS k => :0
         1 EXPIRE k 10 => :0",
    );
}

#[test]
fn a_write_submitted_as_a_read_is_refused() {
    let mut rig = Rig::new();
    rig.script("1 SET k v => +OK");
    for line in ["SET k w", "DEL k", "EXPIRE k 10", "PERSIST k", "GETEX k EX 5", "FLUSHALL"] {
        assert!(rig.submit(1, Class::Read, &encode(line)).starts_with("-ERR"), "{line}");
    }
    let exec = encode_exec(&["GET k", "EXPIRE k 10", "DEL k"]);
    let reply = rig.submit(1, Class::Read, &exec);
    assert_eq!(reply.matches("-ERR").count(), 2, "{reply}");
    rig.script("1 TTL k => :-1");
}

#[test]
fn what_would_put_a_time_to_live_into_a_server_is_refused() {
    let mut rig = Rig::new();
    for line in ["HEXPIRE k 5 FIELDS 1 f", "HSETEX k EX 5 FIELDS 1 f v"] {
        assert!(rig.call(1, line).contains("supported"), "{line}");
    }
}

#[test]
fn a_transaction_sees_its_own_deadlines() {
    let mut rig = Rig::new();
    rig.script("1 SET k old PX 5 => +OK");
    let lines = ["GET k", "SET k v EX 9", "TTL k", "PERSIST k", "TTL k", "EXPIRE k 7 NX"];
    let reply = rig.submit(6, Class::Write, &encode_exec(&lines));
    assert_eq!(reply, "*6 $-1 +OK :9 :1 :-1 :1");
    let reply =
        rig.submit(6, Class::Write, &encode_exec(&["DEL k", "RPUSH k a", "TTL k", "INCR k"]));
    let wrong = "-WRONGTYPE Operation against a key holding the wrong kind of value";
    assert_eq!(reply, alloc::format!("*4 :1 :1 :-1 {wrong}"));
    let torn = CommandBuf::new().encode(0, [EXEC_COMMAND, &b"torn"[..]]).to_vec();
    assert_eq!(rig.submit(6, Class::Write, &torn), "-ERR CONCORD.EXEC: malformed");
}

#[test]
fn a_transaction_of_several_keys_knows_the_deadline_of_each() {
    let mut rig = Rig::new();
    rig.script(
        "1 SET due old PX 5 => +OK
         1 SET a 1 PX 90 => +OK
         1 SET b 2 PX 90 => +OK",
    );
    let lines =
        ["INCR due", "TTL due", "PERSIST a", "PTTL a", "PTTL b", "DEL a b nosuch", "PTTL b"];
    let reply = rig.submit(6, Class::Write, &encode_exec(&lines));
    assert_eq!(reply, "*7 :1 :-1 :1 :-1 :85 :2 :-2");
    rig.script("6 SET a 1 PX 90 => +OK\n6 SET b 2 => +OK");
    let lines = [
        "FLUSHALL",
        "SET a 3",
        "EXPIRE a 9 GT",
        "PTTL a",
        "EXPIRE b 9",
        "MSET b 1 c 2",
        "MGET a b c",
    ];
    let reply = rig.submit(6, Class::Write, &encode_exec(&lines));
    assert_eq!(reply, "*7 +OK +OK :0 :-1 :0 +OK *3 $1 3 $1 1 $1 2");
    assert_eq!(rig.0.next_expiry_ms(), None);
    let reply = [REPLY_COMMAND, b"+PONG\r\n"];
    let reply = CommandBuf::new().encode(0, reply).to_vec();
    let exec = CommandBuf::new().encode(0, [EXEC_COMMAND, &reply, &encode("GET a")]).to_vec();
    assert_eq!(rig.submit(6, Class::Write, &exec), "*2 +PONG $1 3");
}

/// A write of several keys changes the deadline of each and deletes those that are due.
#[test]
fn several_keys_deadlines_and_due_deletes() {
    let mut rig = Rig::new();
    rig.script(
        "1 SET a 1 PX 5 => +OK
         1 SET b 2 PX 50 => +OK
         1 SET c 3 PX 50 => +OK
         6 MSETNX a 7 c 8 => :0
         6 EXISTS a b c => :2
         6 PTTL c => :45
         6 MSETNX a 7 d 8 => :1
         6 MSET a 9 b 9 => +OK
         6 PTTL b => :-1
         6 PTTL c => :45
         6 UNLINK b c nosuch => :2
         7 MGET a b c d => *4 $1 9 $-1 $-1 $1 8",
    );
    assert_eq!(rig.0.next_expiry_ms(), None);
    assert_eq!(rig.0.expired, 1);
}

/// Lines of what CONCORD.INFO answers, read at `now_ms`.
fn figures(rig: &mut Rig, now_ms: u64) -> Vec<String> {
    let info = CommandBuf::new().encode(0, [INFO_COMMAND]).to_vec();
    let reply = rig.submit(now_ms, Class::Read, &info);
    assert!(reply.starts_with('$'), "{reply}");
    reply.split(' ').skip(1).map(str::to_string).collect()
}

/// Info tells what the data takes and which keys expire.
#[test]
fn bug_16_8_info_shows_data_and_expiring_keys() {
    let mut rig = Rig::new();
    let nothing = ["used_memory:0", "used_memory_peak:0", "maxmemory:0"];
    let no_keys = ["keys:0", "expires:0", "avg_ttl:0", "expired_keys:0"];
    assert_eq!(figures(&mut rig, 1), [&nothing[..], &no_keys].concat());
    rig.script(
        "1000 SET stays v => +OK
         1000 SET a v PX 1000 => +OK
         1000 SET b v PX 5000 => +OK
         1000 SET c v PX 9000 => +OK
         1000 PEXPIRE c 3000 => :1",
    );
    // 2,000, 6,000 and 4,000.
    let told = figures(&mut rig, 1_500);
    assert_eq!(told[3..], ["keys:4", "expires:3", "avg_ttl:2500", "expired_keys:0"]);
    let used = rig.0.memory_bytes();
    assert_eq!(told[..2], [format!("used_memory:{used}"), format!("used_memory_peak:{used}")]);
    rig.script("2000 CONCORD.EXPIRE a 2000 => :1");
    assert_eq!(figures(&mut rig, 2_000)[4..], ["expires:2", "avg_ttl:3000", "expired_keys:1"]);
    rig.script(
        "7000 SET b w => +OK
         7000 PERSIST c => :0",
    );
    // `a` went by its numbered delete, `b` and `c` by a write after their time.
    let told = figures(&mut rig, 7_000);
    assert_eq!(told[3..], ["keys:2", "expires:0", "avg_ttl:0", "expired_keys:3"]);
    let peak = format!("used_memory_peak:{}", used - rig.0.deadlines.memory_bytes());
    assert!(told[0] < format!("used_memory:{used}") && told[1] < peak, "{told:?}");
    rig.call(7_000, "FLUSHALL");
    assert_eq!(figures(&mut rig, 7_000)[0], "used_memory:0");
}

#[test]
fn the_digest_covers_deadlines_and_not_the_order_of_keys() {
    let (mut a, mut b) = (Rig::new(), Rig::new());
    a.script("1 SET x 1 => +OK\n1 SET y 2 EX 5 => +OK");
    b.script("1 SET y 2 => +OK\n1 SET x 1 => +OK");
    assert_ne!(a.0.digest(), b.0.digest());
    b.script("1 EXPIRE y 5 => :1");
    assert_eq!(a.0.digest(), b.0.digest());
}

/// Every write reaches the backend even if nothing is to be done.
#[test]
fn every_write_reaches_the_backend() {
    let mut shim = Shimmed::new(Late::new());
    let lines = ["CONCORD.EXPIRE k 5", "SET k v EX 0", "SET k v BAD", "EXPIRE k", "SETEX k"];
    for line in lines {
        let bytes = encode(line);
        let command = Command::parse(&bytes).unwrap();
        let progress = shim.submit(&context(9), Class::Write, &command, &mut Vec::new());
        assert_eq!(progress, Progress::Pending);
    }
    assert_eq!(shim.backend().steps.len(), lines.len());
    assert!(shim.backend().steps.iter().all(|(_, commands, delete)| *commands == 0 && !delete));
}

/// Commands without deadlines are pipelined and only what needs one waits.
#[test]
fn commands_without_deadlines_are_pipelined() {
    let mut shim = Shimmed::new(Late::new());
    let submit = |shim: &mut Shimmed<Late>, line: &str| {
        let bytes = encode(line);
        let command = Command::parse(&bytes).unwrap();
        shim.submit(&context(1), class_of(line), &command, &mut Vec::new());
        shim.backend().steps.len()
    };
    for (at, line) in
        ["SET a 1", "INCR a", "GET a", "SET b 1 EX 5", "SET c 1 EX 5"].iter().enumerate()
    {
        assert_eq!(submit(&mut shim, line), at + 1, "{line}");
    }
    assert_eq!(submit(&mut shim, "GET b"), 6, "a read does not need the deadline");
    assert_eq!(submit(&mut shim, "DEL b"), 6, "a write does");
    assert_eq!(submit(&mut shim, "SET d 1"), 6, "order is kept");
    shim.backend_mut().answerable = 4;
    let replies: Vec<Vec<u8>> = core::iter::from_fn(|| shim.poll()).map(|c| c.reply).collect();
    assert_eq!(replies.len(), 4);
    assert_eq!(shim.backend().steps.len(), 8);
}

fn encode_digest(key: &[u8]) -> Vec<u8> {
    CommandBuf::new().encode(0, [DIGEST_COMMAND, key]).to_vec()
}

/// A transaction of one command that wants `key` to have this digest.
fn encode_watching(key: &[u8], digest: &[u8], line: &str) -> Vec<u8> {
    let watched = CommandBuf::new().encode(0, [WATCHED_COMMAND, key, digest]).to_vec();
    CommandBuf::new().encode(0, [EXEC_COMMAND, &watched, &encode(line)]).to_vec()
}

/// What is in a bulk string.
fn bulk(reply: &[u8]) -> Vec<u8> {
    let line = reply.iter().position(|byte| *byte == b'\n').unwrap();
    reply[line + 1..reply.len() - 2].to_vec()
}

#[test]
fn a_transaction_runs_if_what_it_watches_is_as_it_was() {
    let mut rig = Rig::new();
    let digest = |rig: &mut Rig, now_ms| {
        let reply = rig.submit(now_ms, Class::Read, &encode_digest(b"k"));
        reply.rsplit(' ').next().unwrap().to_string()
    };
    let exec = |rig: &mut Rig, now_ms, digest: &str| {
        rig.submit(now_ms, Class::Write, &encode_watching(b"k", digest.as_bytes(), "INCR n"))
    };
    let none = digest(&mut rig, 1);
    assert_eq!(exec(&mut rig, 1, &none), "*1 :1");
    rig.script("1 SET k v => +OK");
    assert_eq!(exec(&mut rig, 1, &none), "*-1");
    let v = digest(&mut rig, 1);
    assert_eq!(exec(&mut rig, 1, &v), "*1 :2");
    // A time to live is a change; the same value again is none.
    rig.script("1 PEXPIRE k 9 => :1");
    assert_eq!(exec(&mut rig, 1, &v), "*-1");
    rig.script("1 PERSIST k => :1\n1 SET k v => +OK");
    assert_eq!(exec(&mut rig, 1, &v), "*1 :3");
    // It is due, though nobody has deleted it.
    rig.script("1 PEXPIRE k 9 => :1");
    let mortal = digest(&mut rig, 5);
    assert_eq!(exec(&mut rig, 9, &mortal), "*1 :4");
    assert_eq!(exec(&mut rig, 10, &mortal), "*-1");
    assert_eq!(exec(&mut rig, 10, &none), "*1 :5");
    rig.script("10 GET n => $1 5\n10 DEL k => :0\n10 RPUSH k a b => :2");
    let list = digest(&mut rig, 10);
    rig.script("10 LPOP k => $1 a\n10 RPUSH k b => :2");
    assert_eq!(exec(&mut rig, 10, &list), "*-1");
    // Torn, and what is no digest.
    let torn = CommandBuf::new().encode(0, [WATCHED_COMMAND, &b"k"[..]]).to_vec();
    let torn = CommandBuf::new().encode(0, [EXEC_COMMAND, &torn, &encode("INCR n")]).to_vec();
    assert!(rig.submit(10, Class::Write, &torn).contains("ERR"));
    assert_eq!(exec(&mut rig, 10, ""), "*-1");
}

/// A random operation at `time`, an expiry first if one is due.
fn random_operation(rng: &mut Rng, time: u64, now: &Shimmed<Memory>) -> (Vec<u8>, Class) {
    const LINES: [&str; 29] = [
        "SET {} 1",
        "SET {} 2 PX 30",
        "SET {} 3 NX PX 9",
        "SET {} 4 XX GET PX 20",
        "GET {}",
        "INCR {}",
        "DEL {}",
        "RPUSH {} a",
        "LPOP {}",
        "PEXPIRE {} 15",
        "PEXPIRE {} 40 GT",
        "PTTL {}",
        "PERSIST {}",
        "GETDEL {}",
        "GETEX {} PX 12",
        "GETSET {} x",
        "EXISTS {}",
        "PEXPIRE {} -1 NX",
        "SET {} 5 KEEPTTL",
        "PEXPIRETIME {}",
        "FLUSHALL",
        "DBSIZE",
        "SADD {} a b",
        "SPOP {}",
        "DEL {} x y",
        "MSET {} 7 y 8",
        "MSETNX z 7 {} 8",
        "EXISTS {} x z",
        "MGET z {}",
    ];
    let mut due = Vec::new();
    now.due(time, None, 1, &|_, _| false, &mut due);
    if let Some((key, at)) = due.pop() {
        let key = String::from_utf8(key).unwrap();
        return (encode(&alloc::format!("CONCORD.EXPIRE {key} {at}")), Class::Write);
    }
    if time.is_multiple_of(14) {
        let lines =
            ["SET x 1 PX 3", "PTTL y", "DEL x z", "FLUSHALL", "PEXPIRE z 7", "MSET x 1 y 2"];
        return (encode_exec(&lines[rng.below(6) as usize..]), Class::Write);
    }
    if time.is_multiple_of(9) {
        let lines = ["SET x 1 PX 3", "TTL x", "DEL x", "SADD x y", "PEXPIRE x 7", "SPOP x"];
        return (encode_exec(&lines[time as usize % 6..]), Class::Write);
    }
    let line = LINES[rng.below(LINES.len() as u64) as usize];
    let line = line.replace("{}", ["x", "y", "z"][rng.below(3) as usize]);
    (encode(&line), class_of(&line))
}

/// Random commands at one engine that answers at once and one that answers late: the same
/// replies in the same order, and the same state.
#[test]
fn t10_late_answers_change_no_decision() {
    for seed in 0..300 {
        let mut rng = Rng::new(seed);
        let mut now = Shimmed::new(Memory::new(0));
        let mut late = Shimmed::new(Late::new());
        let (mut expected, mut got) = (Vec::new(), Vec::new());
        let mut seen: Option<(Vec<u8>, Vec<u8>)> = None;
        for time in 0..200 {
            let (mut bytes, mut class) = random_operation(&mut rng, time, &now);
            if rng.chance(1, 16) {
                // WATCH, or an EXEC that has watched some operations ago.
                (bytes, class) = match seen.take() {
                    Some((key, digest)) => {
                        (encode_watching(&key, &digest, "RPUSH l x"), Class::Write)
                    }
                    None => (encode_digest(&[b'x' + rng.below(3) as u8]), Class::Read),
                };
            }
            let command = Command::parse(&bytes).unwrap();
            let mut reply = Vec::new();
            now.submit(&context(time), class, &command, &mut reply);
            if command.name() == DIGEST_COMMAND {
                let digest = crate::resp_scan::elements(&reply).next().unwrap();
                seen = Some((command.args().nth(1).unwrap().to_vec(), bulk(digest)));
            }
            expected.push(reply);
            late.submit(&context(time), class, &command, &mut Vec::new());
            if rng.chance(1, 3) {
                late.backend_mut().answerable += rng.below(4) as usize;
            }
            got.extend(core::iter::from_fn(|| late.poll()).map(|c| c.reply));
            // What is left over is for completions to come, not for those of later calls.
            late.backend_mut().answerable = 0;
        }
        for _ in 0..1000 {
            late.backend_mut().answerable = 1;
            got.extend(late.poll().map(|c| c.reply));
        }
        assert_eq!(got.len(), expected.len(), "seed {seed}");
        for (at, (got, expected)) in got.iter().zip(&expected).enumerate() {
            let (got, expected) = (String::from_utf8_lossy(got), String::from_utf8_lossy(expected));
            assert_eq!(got, expected, "seed {seed}, operation {at}");
        }
        assert_eq!(late.digest(), now.digest(), "seed {seed}");
        assert!(late.unsettled.is_empty() && late.flushes_pending == 0);
    }
}

#[test]
fn an_effect_replaces_its_command_in_a_transaction() {
    let original = encode_exec(&["SET k v EX 5", "SPOP s", "GET k"]);
    let parts = [(After::Pass, 1), (After::Probed, 2), (After::Pass, 1)];
    let parts = Parts::of(original, &parts);
    let effects = [Effect { index: 1, command: encode("SREM s m") }];
    let replaced = parts.effect(&effects).unwrap();
    assert_eq!(replaced, encode_exec(&["SET k v EX 5", "SREM s m", "GET k"]));
    assert_eq!(parts.effect(&[]), None);
    assert_eq!(parts.effect(&[Effect { index: 9, ..effects[0].clone() }]), None);
}

/// Answers each EVAL with the next change of the deadline, and notes the one it was told.
struct Scripts {
    changes: VecDeque<TtlChange>,
    told: Vec<Option<u64>>,
}

impl Backend for Scripts {
    fn submit(&mut self, _: &Context, step: &Step<'_>, reply: &mut Vec<u8>) -> Submitted {
        self.told.push(step.deadline_ms);
        reply.extend_from_slice(resp::OK);
        let key = || step.key.unwrap_or_default().to_vec();
        let due = |deadline_ms| Told::Due { key: key(), deadline_ms };
        let told = match self.changes.pop_front().unwrap_or_default() {
            TtlChange::Keep => Vec::new(),
            TtlChange::Clear => [due(None)].to_vec(),
            TtlChange::Set(at) => [due(Some(at))].to_vec(),
        };
        let exists = step.want_exists.then_some(true);
        Submitted::Done(Outcome { exists, told, ..Outcome::default() })
    }

    fn poll(&mut self) -> Option<BackendDone> {
        None
    }

    fn prepare_copy(&mut self) -> bool {
        false
    }

    fn end_copy(&mut self) {}

    fn copy(&mut self, _: u64, _: usize) -> Option<Copied> {
        None
    }

    fn copy_keys(&mut self, _: &[Vec<u8>], _: (usize, usize), _: u64) -> Option<Copied> {
        None
    }

    fn fork_copy(&mut self, cursor: u64) -> u64 {
        cursor
    }

    fn release_copy(&mut self, _: u64) {}

    fn install(&mut self, _: &[Object<'_>]) -> Result<Submitted, BadChunk> {
        Err(BadChunk)
    }

    fn clear(&mut self) -> Submitted {
        Submitted::Done(Outcome::default())
    }

    fn lost(&self) -> bool {
        false
    }

    fn keys(&self) -> u64 {
        0
    }

    fn memory_bytes(&self) -> u64 {
        0
    }

    fn digest(&self) -> Option<u64> {
        None
    }
}

#[test]
fn a_script_is_told_the_deadline_and_may_change_it() {
    let changes = [TtlChange::Set(50), TtlChange::Keep, TtlChange::Set(70), TtlChange::Clear];
    let backend = Scripts { changes: changes.into(), told: Vec::new() };
    let mut shim = Shimmed::new(backend);
    let bytes = CommandBuf::new().encode(3, [&b"EVAL"[..], b"x", b"1", b"k"]).to_vec();
    let command = Command::parse(&bytes).unwrap();
    let mut left = Vec::new();
    for _ in 0..changes.len() {
        shim.submit(&context(1), Class::Write, &command, &mut Vec::new());
        left.push(shim.next_expiry_ms());
    }
    assert_eq!(shim.backend().told, [None, Some(50), Some(50), Some(70)]);
    assert_eq!(left, [Some(50), Some(50), Some(70), None]);
}

/// A write behind a copy may delete a key that is due; the copy must still show its deadline.
#[test]
fn copy_waits_and_holds_up_in_order() {
    let mut shim = Shimmed::new(Late::new());
    let submit = |shim: &mut Shimmed<Late>, now_ms, line: &str| {
        let bytes = encode(line);
        let command = Command::parse(&bytes).unwrap();
        shim.submit(&context(now_ms), class_of(line), &command, &mut Vec::new())
    };
    assert_eq!(submit(&mut shim, 1, "SET k v PX 10"), Progress::Pending);
    assert_eq!(shim.copy(0, 1_000, &mut Vec::new()), Progress::Pending);
    assert_eq!(submit(&mut shim, 20, "APPEND k w"), Progress::Pending);
    assert_eq!(shim.backend().steps.len(), 1, "the rest waits");
    shim.backend_mut().answerable = 3;
    assert_eq!(shim.poll().unwrap().reply, resp::OK);
    let chunk = shim.poll().unwrap().reply;
    assert_eq!(next_place(&chunk), Ok(PLACE_END));
    let objects = crate::copy::objects(&chunk).unwrap();
    assert_eq!((objects.len(), objects[0].key, objects[0].deadline_ms), (1, &b"k"[..], 11));
    assert_eq!(shim.poll().unwrap().reply, b":1\r\n");
    assert_eq!(shim.poll(), None);

    let mut other = Shimmed::new(Late::new());
    assert_eq!(other.install(&chunk), Ok(Progress::Pending));
    assert_eq!(submit(&mut other, 5, "PTTL k"), Progress::Pending);
    other.backend_mut().answerable = 2;
    assert_eq!(other.poll(), Some(Completion::default()));
    assert_eq!(other.poll().unwrap().reply, b":6\r\n");
    assert_eq!(other.clear(), Progress::Pending);
    other.backend_mut().answerable = 1;
    assert_eq!(other.poll(), Some(Completion::default()));
    assert_eq!((other.keys(), other.next_expiry_ms()), (0, None));
}

#[test]
fn commands_of_several_keys_move_and_clear_times_to_live() {
    use alloc::format;
    let mut shim = Shimmed::new(crate::Memory::new(0));
    let mut call = |line: &str| {
        let args: Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
        let table = crate::CommandTable::memory();
        let spec = table.find(args[0]).unwrap();
        let places = crate::keys::places(spec, args[0], &args);
        let key_index = if places.len() == 1 { places[0] as u8 } else { 0 };
        let bytes = CommandBuf::new().encode(key_index, args).to_vec();
        let context = Context { now_ms: 1_000, position: 1, ..Context::default() };
        let class = spec.class().unwrap();
        let mut reply = Vec::new();
        let command = Command::parse(&bytes).unwrap();
        assert_eq!(shim.submit(&context, class, &command, &mut reply), Progress::Done);
        format!("{}", alloc::string::String::from_utf8_lossy(&reply))
    };
    // Line by line: what is asked, and the reply.
    for line in [
        "SET a 1 PX 500 => +OK",
        "SET b 2 PX 900 => +OK",
        "RENAME a b => +OK",
        "PTTL b => :500",
        "PTTL a => :-2",
        "SET a 1 => +OK",
        "RENAMENX a b => :0",
        "PTTL b => :500",
        "RENAME a b => +OK",
        "PTTL b => :-1",
        "PEXPIRE b 700 => :1",
        "COPY b c => :1",
        "PTTL c => :700",
        "COPY b c => :0",
        "PTTL b => :700",
        "RPUSH l x => :1",
        "PEXPIRE l 300 => :1",
        "LMOVE l m LEFT LEFT => $1 x",
        "RPUSH l x => :1",
        "PTTL l => :-1",
        "SADD s x y => :2",
        "PEXPIRE s 300 => :1",
        "SMOVE s t x => :1",
        "PTTL s => :300",
        "PEXPIRE t 400 => :1",
        "SUNIONSTORE t s => :1",
        "PTTL t => :-1",
        "PEXPIRE t 400 => :1",
        "SUNIONSTORE t b => -WRONGTYPE Operation against a key holding the wrong kind of value",
        "PTTL t => :400",
        "ZADD z 1 x => :1",
        "PEXPIRE z 300 => :1",
        "ZMPOP 2 z y MIN => *2 $1 z *1 *2 $1 x $1 1",
        "ZADD z 1 x => :1",
        "PTTL z => :-1",
    ] {
        let (asked, expected) = line.split_once(" => ").unwrap();
        assert_eq!(call(asked).trim_end().replace("\r\n", " "), expected, "{asked}");
    }
}

#[test]
fn a_transaction_of_reads_reads_keys_with_times_to_live() {
    let mut shim = Shimmed::new(crate::Memory::new(0));
    let encode = |key_index, args: &[&[u8]]| {
        CommandBuf::new().encode(key_index, args.iter().copied()).to_vec()
    };
    let mut call = |class, bytes: &[u8]| {
        let context = Context { now_ms: 1_000, position: 1, ..Context::default() };
        let mut reply = Vec::new();
        let command = Command::parse(bytes).unwrap();
        assert_eq!(shim.submit(&context, class, &command, &mut reply), Progress::Done);
        reply
    };
    call(Class::Write, &encode(1, &[b"SET", b"k", b"v", b"PX", b"500"]));
    let (get, ttl) = (encode(1, &[b"GET", b"k"]), encode(1, &[b"PTTL", b"k"]));
    let reads = encode(0, &[b"CONCORD.EXEC", &get, &ttl]);
    assert_eq!(call(Class::Read, &reads), b"*2\r\n$1\r\nv\r\n:500\r\n");
    let delete = encode(1, &[b"DEL", b"k"]);
    let forged = encode(0, &[b"CONCORD.EXEC", &get, &delete]);
    let said = call(Class::Read, &forged);
    assert!(said.ends_with(b"-ERR a write was submitted as a read\r\n"));
}

/// Each key was looked for among all others: seconds, at each replica.
#[test]
fn a_command_of_many_keys_plans_them_in_one_pass() {
    let mut shim = Shimmed::new(Memory::new(0));
    let names: Vec<String> = (0..60_000).map(|n| format!("key-{n}")).collect();
    let mut run = |name: &str, args: &[&str]| {
        let all = [name].into_iter().chain(args.iter().copied()).map(str::as_bytes);
        let command = CommandBuf::new().encode(0, all).to_vec();
        let command = Command::parse(&command).unwrap();
        let mut reply = Vec::new();
        let context = Context { now_ms: 5, position: 1, ..Context::default() };
        let progress = shim.submit(&context, Class::Write, &command, &mut reply);
        assert_eq!(progress, Progress::Done);
        String::from_utf8(reply).unwrap()
    };
    let pairs: Vec<&str> = names.iter().take(30_000).flat_map(|name| [&name[..], "v"]).collect();
    assert_eq!(run("MSET", &pairs), "+OK\r\n");
    let all: Vec<&str> = names.iter().map(String::as_str).collect();
    for _ in 0..20 {
        run("DEL", &all);
    }
    let twice: Vec<&str> = all[..30_000].iter().chain(&all[..30_000]).copied().collect();
    assert_eq!(run("EXISTS", &twice), ":0\r\n");
    assert_eq!(run("MSET", &pairs), "+OK\r\n");
    assert_eq!(run("DEL", &twice), ":30000\r\n");
}
