//! Random commands through a whole rack and to a plain redis-server: the replies must be equal byte
//! for byte, or the command must stand in docs/reference/commands.md as refused or different.
//!
//! `CONCORD_DIFF_COMMANDS` sets how many, `CONCORD_DIFF_SEED` which, `CONCORD_DIFF_WRITE=1` writes
//! docs/reference/commands.md anew instead of comparing with it.
#![allow(clippy::unwrap_used)]

#[path = "../common/mod.rs"]
mod common;
mod compare;
mod events;
mod generator;
mod grammar;
mod known;
mod table;

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use common::{PlainRedis, Rack, setting};
use compare::{agree, is_refused_inside, refusal};
use concord_engine::resp;
use generator::{Drawn, Generator, Words};
use table::{BySeen, document, missing, write};

/// How many are sent before the first reply is read: the order within a pipeline is tested too.
const PIPELINE: usize = 24;
/// After so many differences a run has said what it can.
const DIFFERENCES_MAX: usize = 40;
/// How many commands are remembered to explain a difference, and how many of them are shown.
const LOG_MAX: usize = 4_000;
const SHOWN_MAX: usize = 25;
/// What must never reach the plain server, should the rack not refuse it: it would end it, or turn
/// the connection into something else.
const NEVER: &[&str] = &[
    "shutdown",
    "debug",
    "monitor",
    "sync",
    "psync",
    "replicaof",
    "slaveof",
    "failover",
    "migrate",
    "save",
    "bgsave",
    "bgrewriteaof",
    "replconf",
    "client reply",
    "client kill",
    "module load",
    "config set",
    "config rewrite",
];

/// A connection that sends many commands before it reads their replies.
struct Link {
    stream: TcpStream,
    input: Vec<u8>,
}

impl Link {
    fn open(target: SocketAddr) -> Link {
        let stream = TcpStream::connect(target).unwrap();
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        Link { stream, input: Vec::new() }
    }

    fn call(&mut self, commands: &[&Words]) -> Vec<Vec<u8>> {
        let mut request = Vec::new();
        for words in commands {
            resp::array(&mut request, words.len());
            words.iter().for_each(|word| resp::bulk(&mut request, word));
        }
        self.stream.write_all(&request).unwrap();
        commands.iter().map(|words| self.reply(words)).collect()
    }

    fn reply(&mut self, words: &Words) -> Vec<u8> {
        let mut chunk = [0; 65_536];
        loop {
            if let Some(length) = resp::value_length(&self.input) {
                return self.input.drain(..length).collect();
            }
            let read = self.stream.read(&mut chunk).unwrap_or(0);
            assert!(read > 0, "no reply to {}", show(words));
            self.input.extend_from_slice(&chunk[..read]);
        }
    }

    fn say(&mut self, line: &str) -> Vec<u8> {
        self.call(&[&words(line)]).remove(0)
    }
}

fn show(words: &Words) -> String {
    words.iter().map(|w| format!("{:?} ", String::from_utf8_lossy(w))).collect()
}

fn words(line: &str) -> Words {
    line.split(' ').map(|word| word.as_bytes().to_vec()).collect()
}

/// A rack and a plain server, and what was seen of them.
struct Run {
    rack: Link,
    plain: Link,
    seen: BySeen,
    differences: Vec<String>,
    commands: u64,
    /// The last commands that both executed, oldest first, since both were emptied.
    log: VecDeque<Words>,
    /// Who hears of events, where the engine tells of them.
    listeners: Option<events::Listeners>,
}

/// One command of a batch, on its way.
struct Sent<'a> {
    form: &'a str,
    words: &'a Words,
    ours: Vec<u8>,
    /// The rack refused it, or the transaction that it is part of: the plain server never sees it.
    skipped: bool,
}

impl Run {
    fn differ(&mut self, sent: &Sent<'_>, theirs: &[u8], resp3: bool) {
        let text =
            |reply: &[u8]| String::from_utf8_lossy(&reply[..reply.len().min(300)]).into_owned();
        let keys = all_keys();
        let is_key = |word: &&Vec<u8>| keys.iter().any(|key| key.as_bytes() == &word[..]);
        let touched: Vec<&Vec<u8>> = sent.words.iter().filter(is_key).collect();
        let before = self.log.iter().rev().filter(|c| c.iter().any(|w| touched.contains(&w)));
        let mut before: Vec<String> = before.take(SHOWN_MAX).map(show).collect();
        before.reverse();
        self.differences.push(format!(
            "{} (command {}, RESP{}): {}\n    rack  {:?}\n    redis {:?}\n    before it:\n      {}",
            sent.form,
            self.commands,
            if resp3 { 3 } else { 2 },
            show(sent.words),
            text(&sent.ours),
            text(theirs),
            before.join("\n      ")
        ));
    }

    /// Sends a batch to both; true if their contents may differ now.
    fn batch(&mut self, batch: &[Drawn], resp3: bool) -> bool {
        let hello = if resp3 { "HELLO 3" } else { "HELLO 2" };
        self.rack.say(hello);
        self.plain.say(hello);
        let all: Vec<&Words> = batch.iter().flat_map(|drawn| &drawn.commands).collect();
        let mut ours = self.rack.call(&all).into_iter();
        self.commands += all.len() as u64;
        let mut sent = Vec::new();
        let mut half = false;
        for drawn in batch {
            let replies: Vec<Vec<u8>> = ours.by_ref().take(drawn.commands.len()).collect();
            half |= self.note_refusals(drawn, replies, &mut sent);
        }
        // A key that is due is counted by Redis until something looks at it.
        let look = words(&format!("EXISTS {}", all_keys().join(" ")));
        let mut to_plain = Vec::new();
        for one in sent.iter().filter(|one| !one.skipped) {
            to_plain.extend((one.form == "dbsize").then_some(&look));
            to_plain.push(one.words);
        }
        let mut theirs = self.plain.call(&to_plain).into_iter();
        let mut queued: Vec<(&str, &Words)> = Vec::new();
        for one in sent.iter().filter(|one| !one.skipped) {
            if one.form == "dbsize" {
                theirs.next();
            }
            let theirs = theirs.next().unwrap();
            if self.log.len() == LOG_MAX {
                self.log.pop_front();
            }
            self.log.push_back(one.words.clone());
            match one.form {
                "multi" => queued.clear(),
                form if one.ours == b"+QUEUED\r\n" => queued.push((form, one.words)),
                _ => {}
            }
            let inside = (one.form == "exec").then(|| known_inside(&queued, &one.ours, &theirs));
            if agree(one.form, one.words, &one.ours, &theirs) {
                self.seen.entry(one.form.to_string()).or_default().equal += 1;
            } else if let Some(why) = known::known(one.form, one.words, &one.ours, &theirs) {
                self.seen.entry(one.form.to_string()).or_default().known.insert(why);
                half = true;
            } else if let Some((form, why)) = inside.flatten() {
                self.seen.entry(form.to_string()).or_default().known.insert(why);
                half = true;
            } else if !half {
                self.differ(one, &theirs, resp3);
                half = true;
            }
        }
        let told = self.listeners.as_mut().and_then(events::Listeners::compare);
        if let Some(told) = told.filter(|_| !half) {
            let sent: Vec<String> = to_plain.iter().map(|words| show(words)).collect();
            self.differences.push(format!("{told}\n    sent:\n      {}", sent.join("\n      ")));
            half = true;
        }
        half
    }

    /// Notes what the rack refused; true if a transaction was executed in part.
    fn note_refusals<'a>(
        &mut self,
        drawn: &'a Drawn,
        replies: Vec<Vec<u8>>,
        sent: &mut Vec<Sent<'a>>,
    ) -> bool {
        let transaction = drawn.forms[0] == "multi";
        let inside = transaction && replies.last().is_some_and(|exec| is_refused_inside(exec));
        let first = sent.len();
        for ((form, words), ours) in drawn.forms.iter().zip(&drawn.commands).zip(replies) {
            let mut why = refusal(form, words, &ours);
            if transaction && ours.starts_with(b"-ERR numkeys should be") {
                why = Some("a wrong numkeys in a transaction spoils it".into());
            }
            let never = NEVER.contains(&form.split(' ').next().unwrap_or_default())
                || (NEVER.contains(&&**form)
                    && !words.iter().any(|w| w.eq_ignore_ascii_case(b"on")));
            let is_no_one = words.len() == 3
                && words[1].eq_ignore_ascii_case(b"no")
                && words[2].eq_ignore_ascii_case(b"one");
            let never = never && !is_no_one;
            if never && why.is_none() && !ours.starts_with(b"-") {
                let one = Sent { form, words, ours: ours.clone(), skipped: true };
                self.differ(&one, b"(not asked: the rack must refuse it)", false);
            }
            let skipped = never || why.is_some();
            if let Some(why) = why {
                *self.seen.entry(form.clone()).or_default().refused.entry(why).or_default() += 1;
            }
            sent.push(Sent { form, words, ours, skipped });
        }
        let any = sent[first..].iter().any(|one| one.skipped);
        if transaction && (any || inside) {
            sent[first..].iter_mut().for_each(|one| one.skipped = true);
        }
        inside
    }

    /// What every key holds, at both.
    fn compare_contents(&mut self) {
        for key in all_keys() {
            let kind = self.plain.say(&format!("TYPE {key}"));
            let line = match &kind[..] {
                b"+string\r\n" => format!("GET {key}"),
                b"+hash\r\n" => format!("HGETALL {key}"),
                b"+list\r\n" => format!("LRANGE {key} 0 -1"),
                b"+set\r\n" => format!("SMEMBERS {key}"),
                b"+zset\r\n" => format!("ZRANGE {key} 0 -1 WITHSCORES"),
                b"+stream\r\n" => format!("XRANGE {key} - +"),
                _ => format!("EXISTS {key}"),
            };
            let words = words(&line);
            let form = String::from_utf8_lossy(&words[0]).to_lowercase();
            let (ours, theirs) = (self.rack.call(&[&words]), self.plain.call(&[&words]));
            let known = known::known(&form, &words, &ours[0], &theirs[0]);
            if !agree(&form, &words, &ours[0], &theirs[0]) && known.is_none() {
                let sent =
                    Sent { form: &form, words: &words, ours: ours[0].clone(), skipped: false };
                self.differ(&sent, &theirs[0], false);
            }
        }
    }
}

/// A command of a transaction whose replies differ for a known reason, and that, if all others are
/// equal or differ for one.
fn known_inside<'a>(
    queued: &[(&'a str, &Words)],
    ours: &[u8],
    theirs: &[u8],
) -> Option<(&'a str, &'static str)> {
    let (ours, theirs) = (resp::array_items(ours)?, resp::array_items(theirs)?);
    if ours.len() != queued.len() || theirs.len() != queued.len() {
        return None;
    }
    let mut found = None;
    for ((form, words), (ours, theirs)) in queued.iter().zip(ours.into_iter().zip(theirs)) {
        if !agree(form, words, ours, theirs) {
            found = Some((*form, known::known(form, words, ours, theirs)?));
        }
    }
    found
}

fn all_keys() -> Vec<String> {
    let prefixes = ["s", "h", "l", "t", "z", "x", "p"];
    let all = prefixes.iter().flat_map(|p| (0..3).map(move |n| format!("{p}{n}")));
    all.chain([generator::EQUAL_SCORES.to_string()]).collect()
}

/// Serialized values of some types, as the server writes them.
fn dumps(plain: &mut Link) -> Vec<Vec<u8>> {
    let mut all = vec![b"not a serialized value".to_vec(), Vec::new()];
    for (fill, key) in [("SET d 12345", "d"), ("RPUSH e a b c", "e"), ("ZADD f 1.5 m", "f")] {
        plain.say(fill);
        let dump = plain.say(&format!("DUMP {key}"));
        all.push(resp::bulk_payload(&dump).unwrap().to_vec());
    }
    plain.say("FLUSHALL");
    all
}

fn differential(engine: &str, seed: u64, count: u64) -> Run {
    let rack = Rack::start(&format!("diff-{engine}"), &["--engine", engine]);
    let server = PlainRedis::start();
    let (mut link, mut plain) = (Link::open(rack.listen), Link::open(server.listen));
    let forms = grammar::forms(&plain.say("COMMAND DOCS"));
    let tops = forms.iter().filter(|f| !f.name.contains(' ')).count();
    assert_eq!(plain.say("COMMAND COUNT"), format!(":{tops}\r\n").as_bytes());
    // The gateway learns the commands of the Redis engine shortly after it is ready; until then it
    // has those of the memory engine.
    let enough = if engine == "redis" { 200 } else { 100 };
    let count_of = |reply: Vec<u8>| resp::number(&reply[1..reply.len() - 2]);
    let learnt = || count_of(link.say("COMMAND COUNT")) > Some(enough);
    common::until("the engine's commands", learnt);
    let mut generator = Generator::new(seed, forms, dumps(&mut plain));
    let began = Instant::now();
    let mut run = Run {
        rack: link,
        plain,
        seen: BySeen::new(),
        differences: vec![],
        commands: 0,
        log: VecDeque::new(),
        listeners: Some(events::Listeners::open(rack.listen, server.listen)),
    };
    let mut told = 0;
    while run.commands < count && run.differences.len() < DIFFERENCES_MAX {
        let batch: Vec<Drawn> = (0..PIPELINE).map(|_| generator.draw()).collect();
        let resp3 = generator.rng.chance(1, 2);
        if run.batch(&batch, resp3) {
            run.rack.say("FLUSHALL");
            run.plain.say("FLUSHALL");
            run.log.clear();
        }
        let not_there = |seen: &table::Seen| seen.refused.contains_key(compare::NOT_THERE);
        for (form, _) in run.seen.iter().filter(|(_, seen)| not_there(seen)) {
            generator.seldom.insert(form.clone());
        }
        if run.commands / 10_000 > told {
            told = run.commands / 10_000;
            let rate = run.commands as f64 / began.elapsed().as_secs_f64();
            println!("{engine}: {} commands, {rate:.0}/s", run.commands);
        }
    }
    run.rack.say("HELLO 2");
    run.plain.say("HELLO 2");
    run.compare_contents();
    assert_eq!(run.rack.say("QUIT"), run.plain.say("QUIT"));
    assert_eq!(run.rack.stream.read(&mut [0]).unwrap(), 0, "QUIT closes the connection");
    run
}

#[test]
fn random_commands_get_the_replies_of_redis_or_are_documented() {
    let seed = setting("CONCORD_DIFF_SEED", 1);
    let count = setting("CONCORD_DIFF_COMMANDS", 20_000);
    let runs = std::thread::scope(|scope| {
        let start = |engine| scope.spawn(move || differential(engine, seed, count));
        let threads = ["memory", "redis"].map(start);
        threads.map(|thread| thread.join().unwrap())
    });
    let mut wrong = Vec::new();
    let writes = setting("CONCORD_DIFF_WRITE", 0) == 1;
    if writes {
        write(&document(&runs[0].seen, &runs[1].seen));
    }
    for (engine, run) in ["memory", "redis"].into_iter().zip(&runs) {
        let equal: u64 = run.seen.values().map(|s| s.equal).sum();
        let refused: u64 = run.seen.values().flat_map(|s| s.refused.values()).sum();
        println!(
            "{engine}: {} commands of {} forms, {equal} equal, {refused} refused, {} differ",
            run.commands,
            run.seen.len(),
            run.differences.len()
        );
        run.listeners.iter().for_each(|all| println!("{engine}: {} events equal", all.equal));
        wrong.extend(run.differences.iter().map(|d| format!("{engine}: {d}")));
        if !writes {
            wrong.extend(missing(engine, &run.seen).into_iter().map(|m| format!("{engine}: {m}")));
        }
    }
    assert!(
        wrong.is_empty(),
        "CONCORD_DIFF_SEED={seed} CONCORD_DIFF_COMMANDS={count}\n{}",
        wrong.join("\n")
    );
}
