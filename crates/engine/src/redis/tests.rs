//! The connection machine against a server in memory, whose connections break at every byte.

use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::String;
use alloc::vec;

use super::*;
use crate::CommandBuf;

/// One connection as the server sees it.
#[derive(Default)]
struct Link {
    id: usize,
    inbox: Vec<u8>,
    outbox: Vec<u8>,
    database: usize,
    /// The transaction, and whether a command in it was refused.
    queue: Option<(Vec<Vec<Vec<u8>>>, bool)>,
    killed: bool,
}

/// A little redis-server: counters in two databases.
#[derive(Default)]
struct Fake {
    data: [BTreeMap<Vec<u8>, i64>; 2],
    links: Vec<Link>,
    /// CLIENT KILL does nothing: to show that it is needed.
    ignores_kill: bool,
}

impl Fake {
    fn connect(&mut self) -> usize {
        let id = self.links.len();
        self.links.push(Link { id, ..Link::default() });
        id
    }

    /// The server reads `bytes` of connection `id`.
    fn read(&mut self, id: usize, bytes: &[u8]) {
        if self.links[id].killed {
            return;
        }
        self.links[id].inbox.extend_from_slice(bytes);
        while let Ok(Some(length)) = Scanner::new().scan(&self.links[id].inbox) {
            let request: Vec<u8> = self.links[id].inbox.drain(..length).collect();
            let args: Vec<Vec<u8>> = elements(&request).filter_map(text).map(Vec::from).collect();
            let reply = self.request(id, args);
            self.links[id].outbox.extend_from_slice(&reply);
        }
    }

    fn request(&mut self, id: usize, args: Vec<Vec<u8>>) -> Vec<u8> {
        let name = args[0].clone();
        let link = &mut self.links[id];
        match (&name[..], &mut link.queue) {
            (b"MULTI", queue) => {
                *queue = Some((Vec::new(), false));
                resp::OK.to_vec()
            }
            (b"EXEC", queue) => {
                let (commands, refused) = queue.take().unwrap();
                if refused {
                    return b"-EXECABORT Transaction discarded\r\n".to_vec();
                }
                let mut reply = format!("*{}\r\n", commands.len()).into_bytes();
                commands.into_iter().for_each(|args| reply.extend(self.execute(id, &args)));
                reply
            }
            (b"APPEND", Some((_, refused))) => {
                *refused = true;
                b"-ERR wrong number of arguments\r\n".to_vec()
            }
            (_, Some((commands, _))) => {
                commands.push(args);
                b"+QUEUED\r\n".to_vec()
            }
            (_, None) => self.execute(id, &args),
        }
    }

    fn execute(&mut self, id: usize, args: &[Vec<u8>]) -> Vec<u8> {
        let bulk = |text: &str| format!("${}\r\n{text}\r\n", text.len()).into_bytes();
        let integer = |value: i64| format!(":{value}\r\n").into_bytes();
        let key = args.get(1).cloned().unwrap_or_default();
        let data = &mut self.data[self.links[id].database];
        match &args[0][..] {
            b"INCR" => {
                let counter = data.entry(key).or_insert(0);
                *counter += 1;
                integer(*counter)
            }
            b"GET" => data.get(&key).map_or(b"$-1\r\n".to_vec(), |value| bulk(&format!("{value}"))),
            b"SET" => {
                data.insert(key, number(&args[2]).unwrap());
                resp::OK.to_vec()
            }
            b"DEL" => integer(i64::from(data.remove(&key).is_some())),
            b"EXISTS" => integer(i64::from(data.contains_key(&key))),
            b"DBSIZE" => integer(data.len() as i64),
            b"SELECT" => {
                self.links[id].database = number(&key).unwrap() as usize;
                resp::OK.to_vec()
            }
            b"HELLO" => b"%1\r\n+server\r\n+fake\r\n".to_vec(),
            b"CLIENT" if key == b"ID" => integer(id as i64),
            b"CLIENT" => {
                let victim = number(&args[3]).unwrap() as usize;
                assert_eq!(self.links[victim].id, victim);
                self.links[victim].killed = !self.ignores_kill;
                integer(1)
            }
            b"INFO" => bulk("run_id:abc\r\nused_memory:5\r\n"),
            b"CONFIG" if args[2] == b"maxmemory" => b"*2\r\n$1\r\nm\r\n$1\r\n0\r\n".to_vec(),
            b"CONFIG" => b"*2\r\n$1\r\nm\r\n$10\r\nnoeviction\r\n".to_vec(),
            b"COMMAND" => {
                let entry = |name: &str, flag: &str| {
                    format!("*10\r\n+{name}\r\n:2\r\n*1\r\n+{flag}\r\n:1\r\n:1\r\n:1\r\n")
                        + &"*0\r\n".repeat(4)
                };
                format!("*2\r\n{}{}", entry("incr", "write"), entry("get", "readonly")).into()
            }
            other => panic!("{}", String::from_utf8_lossy(other)),
        }
    }
}

/// Where a connection breaks, in bytes from its start.
#[derive(Clone, Copy, Debug)]
struct Cut {
    /// The server reads no more than so many bytes. What was sent behind them it reads after the
    /// next connection's greeting, if it still may.
    requests: usize,
    /// The engine receives no more than so many bytes.
    replies: usize,
}

const NEVER: Cut = Cut { requests: usize::MAX, replies: usize::MAX };

/// One operation of the test's program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Op {
    Incr { delete_first: bool, want_exists: bool },
    Refused,
    Get { resp3: bool },
}

const INCR: Op = Op::Incr { delete_first: false, want_exists: false };
const PROGRAM: [Op; 10] = [
    INCR,
    Op::Get { resp3: false },
    INCR,
    Op::Refused,
    Op::Get { resp3: true },
    Op::Incr { delete_first: false, want_exists: true },
    Op::Get { resp3: false },
    Op::Incr { delete_first: true, want_exists: true },
    INCR,
    Op::Get { resp3: true },
];

/// What each operation of the program must be answered.
const ANSWERS: [&str; 10] = [
    ":1\r\n",
    "$1\r\n1\r\n",
    ":2\r\n",
    "-ERR wrong number of arguments\r\n",
    "$1\r\n2\r\n",
    ":3\r\n",
    "$1\r\n3\r\n",
    ":1\r\n",
    ":2\r\n",
    "$1\r\n2\r\n",
];

fn submit(engine: &mut RedisEngine, op: Op, position: u64) {
    let mut buf = CommandBuf::new();
    let mut context = Context::default();
    let mut step = Step {
        class: Class::Write,
        key: Some(b"n"),
        keys: &[],
        due: &[],
        delete_first: false,
        commands: &[],
        want_exists: false,
        deadline_ms: None,
        reach: crate::Reach::OneKey,
        is_beside: false,
    };
    let bytes = match op {
        Op::Incr { delete_first, want_exists } => {
            (step.delete_first, step.want_exists) = (delete_first, want_exists);
            buf.encode(1, [&b"INCR"[..], b"n"])
        }
        Op::Refused => buf.encode(1, [&b"APPEND"[..], b"n"]),
        Op::Get { resp3 } => {
            (step.class, context.resp3) = (Class::Read, resp3);
            buf.encode(1, [&b"GET"[..], b"n"])
        }
    };
    let commands = [Command::parse(bytes).unwrap()];
    step.commands = &commands;
    context.position = if step.class == Class::Write { position } else { 0 };
    assert_eq!(engine.submit(&context, &step, &mut Vec::new()), Submitted::Pending);
}

/// Moves everything both ways over connection `link`, up to `cut`; the bytes that the server did
/// not read are returned.
fn exchange(engine: &mut RedisEngine, fake: &mut Fake, link: usize, cut: &mut Cut) -> Vec<u8> {
    let mut unread = Vec::new();
    loop {
        let out = engine.output().to_vec();
        engine.sent(out.len());
        let readable = out.len().min(cut.requests);
        cut.requests -= readable;
        fake.read(link, &out[..readable]);
        unread.extend_from_slice(&out[readable..]);
        let mut replies = core::mem::take(&mut fake.links[link].outbox);
        replies.truncate(cut.replies);
        cut.replies -= replies.len();
        if replies.is_empty() && engine.output().is_empty() {
            return unread;
        }
        // In two pieces, so that replies are cut too.
        let (a, b) = replies.split_at(replies.len() / 2);
        engine.input(a);
        engine.input(b);
    }
}

/// What one run came to.
struct Run {
    engine: RedisEngine,
    fake: Fake,
    answers: Vec<String>,
    /// The cut was behind the last byte of either direction.
    whole: bool,
}

/// The program, with the first connection broken at `cut` if the greeting is through by then.
fn run(cut: Cut, ignores_kill: bool) -> Run {
    let mut fake = Fake { ignores_kill, ..Fake::default() };
    let mut engine = RedisEngine::new();
    let link = fake.connect();
    engine.connected();
    exchange(&mut engine, &mut fake, link, &mut NEVER.clone());
    assert!(engine.ready());
    let mut position = 0;
    for op in PROGRAM {
        position += u64::from(!matches!(op, Op::Get { .. }));
        submit(&mut engine, op, position);
    }
    let mut cut = cut;
    let unread = exchange(&mut engine, &mut fake, link, &mut cut);
    engine.disconnected();
    let link = fake.connect();
    engine.connected();
    // The greeting of the new connection alone, as the server reads it first.
    let greeting = engine.output().to_vec();
    engine.sent(greeting.len());
    fake.read(link, &greeting);
    fake.read(0, &unread);
    exchange(&mut engine, &mut fake, link, &mut NEVER.clone());
    let mut answers = Vec::new();
    while let Some(done) = engine.poll() {
        answers.push(String::from_utf8(done.reply).unwrap());
    }
    Run { engine, fake, answers, whole: cut.requests > 0 && cut.replies > 0 }
}

/// What a run may come to.
#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    /// The cut was behind everything.
    Whole,
    /// All is done, after a reconnect.
    Done,
    /// A write was applied and its reply is lost.
    LostReply,
    /// A deletion may have overtaken a read.
    LostRead,
}

/// T11: whatever the cut, each write runs exactly once, in order, and each answer is the right one;
/// or the engine is lost, and then something was left unanswered.
fn check(cut: Cut, ignores_kill: bool) -> Result<Verdict, String> {
    let run = run(cut, ignores_kill);
    let answered = run.answers.len();
    if !run.answers.iter().zip(ANSWERS).all(|(got, wanted)| got == wanted) {
        return Err(format!("{cut:?}: {:?}", run.answers));
    }
    if let Some(why) = run.engine.lost_reason() {
        return match why {
            _ if answered == PROGRAM.len() => Err(format!("{cut:?}: lost for nothing")),
            _ if why.contains("a write's reply was lost") => Ok(Verdict::LostReply),
            _ if why.contains("between a read and a deletion") => Ok(Verdict::LostRead),
            other => Err(format!("{cut:?}: {other}")),
        };
    }
    let (count, applied) = (run.fake.data[0].get(&b"n"[..]), run.fake.data[1].get(APPLIED_KEY));
    if answered != PROGRAM.len() || count != Some(&2) || applied != Some(&6) {
        return Err(format!("{cut:?}: {answered} answers, {count:?} at {applied:?}"));
    }
    Ok(if run.whole { Verdict::Whole } else { Verdict::Done })
}

/// The verdicts at each cut, up to the end of the stream.
fn verdicts(cut_at: impl Fn(usize) -> Cut) -> Vec<Verdict> {
    let all = (0..).map(|at| check(cut_at(at), false).unwrap());
    all.take_while(|verdict| *verdict != Verdict::Whole).collect()
}

#[test]
fn t11_every_cut_of_the_requests_leaves_each_write_done_once() {
    let verdicts = verdicts(|requests| Cut { requests, ..NEVER });
    assert!(verdicts.len() > 1000, "{}", verdicts.len());
    let lost = verdicts.iter().filter(|verdict| **verdict == Verdict::LostReply).count();
    // What was executed was answered, except for an EXISTS behind its EXEC.
    let exists_bytes = "*2\r\n$6\r\nEXISTS\r\n$1\r\nn\r\n".len();
    assert_eq!(lost, 2 * exists_bytes);
}

/// Every cut of the replies leaves each write done once or the engine lost.
#[test]
fn t11_every_cut_of_replies_is_once_or_engine_lost() {
    let verdicts = verdicts(|replies| Cut { replies, ..NEVER });
    // All writes ran: only where no more than the last read was unanswered can it go on.
    let done = verdicts.iter().position(|verdict| *verdict == Verdict::Done).unwrap();
    assert!(done > 500, "{done}");
    assert!(verdicts[done..].iter().all(|verdict| *verdict == Verdict::Done));
}

#[test]
fn t11_cuts_of_both_directions_at_once() {
    let mut done = 0;
    for requests in (0..1300).step_by(13) {
        for replies in (0..900).step_by(17) {
            let verdict = check(Cut { requests, replies }, false).unwrap();
            done += u32::from(verdict == Verdict::Done);
        }
    }
    assert!(done > 300, "{done}");
}

/// Without the kill of the old connection a write runs twice.
#[test]
fn t11_without_killing_the_old_connection_a_write_repeats() {
    let broken = |requests| check(Cut { requests, ..NEVER }, true).is_err();
    assert!((0..1000).any(broken));
}

#[test]
fn every_cut_of_the_greeting_is_survived() {
    for at in 0.. {
        let mut fake = Fake::default();
        let mut engine = RedisEngine::new();
        let mut link = fake.connect();
        engine.connected();
        let mut cut = Cut { replies: at, ..NEVER };
        exchange(&mut engine, &mut fake, link, &mut cut);
        let whole = engine.ready();
        engine.disconnected();
        link = fake.connect();
        engine.connected();
        exchange(&mut engine, &mut fake, link, &mut NEVER.clone());
        submit(&mut engine, INCR, 1);
        exchange(&mut engine, &mut fake, link, &mut NEVER.clone());
        assert_eq!(engine.poll().unwrap().reply, b":1\r\n");
        assert_eq!(engine.lost_reason(), None);
        if whole {
            assert!(at > 200, "the greeting is longer than {at} bytes");
            return;
        }
    }
}

#[test]
fn an_aborted_write_needs_no_record_and_is_not_suspected_later() {
    let mut fake = Fake::default();
    let mut engine = RedisEngine::new();
    let link = fake.connect();
    engine.connected();
    exchange(&mut engine, &mut fake, link, &mut NEVER.clone());
    submit(&mut engine, INCR, 1);
    submit(&mut engine, Op::Refused, 2);
    exchange(&mut engine, &mut fake, link, &mut NEVER.clone());
    assert_eq!(fake.data[1].get(APPLIED_KEY), Some(&1));
    engine.disconnected();
    let link = fake.connect();
    engine.connected();
    exchange(&mut engine, &mut fake, link, &mut NEVER.clone());
    assert_eq!(engine.lost_reason(), None);
    assert!(engine.poll().is_some());
}

/// What is no reply or no transaction is the end of the engine and no panic.
#[test]
fn malformed_replies_end_the_engine_without_panic() {
    let inputs = [&b"hello\r\n"[..], b":1\r\n", b"*0\r\n", b"-NOAUTH\r\n"];
    let expected = ["no reply", "without a request", "without a request", "without a request"];
    for (bytes, why) in inputs.into_iter().zip(expected) {
        let mut fake = Fake::default();
        let mut engine = RedisEngine::new();
        let link = fake.connect();
        engine.connected();
        exchange(&mut engine, &mut fake, link, &mut NEVER.clone());
        engine.input(b">1\r\n+push\r\n");
        assert!(!engine.lost());
        engine.input(bytes);
        assert!(engine.lost_reason().unwrap().contains(why), "{bytes:?}");
        assert!(engine.output().is_empty());
    }
    let mut engine = RedisEngine::new();
    let mut reply = vec![];
    let step = Step {
        class: Class::Read,
        key: None,
        keys: &[],
        due: &[],
        delete_first: false,
        commands: &[],
        want_exists: false,
        deadline_ms: None,
        reach: crate::Reach::OneKey,
        is_beside: false,
    };
    engine.submit(&Context::default(), &step, &mut reply);
    assert!(reply.starts_with(b"-LOADING"));
}
