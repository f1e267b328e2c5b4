//! A chain of switches as real processes: keys, conditions, locks with fencing tokens, and a switch
//! that is killed while clients write.

use std::process::{Command, Output, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use concord_check::{Operation, Options, Reply, check};
use concord_client::coord::{Ended, get, incr, set};
use concord_runtime::coord::{CoordClient, CoordPlace, value_of};
use concord_wire::netcraq::{Condition, Name, Outcome, State, Words};
use concord_wire::{Addr, GroupId};

use crate::common::*;

struct Coord(Rack);

impl Coord {
    fn start(name: &str, switches: &str, more: &[&str]) -> Coord {
        let system = ["--system", "netcraq", "--switches", switches];
        Coord(Rack::start(name, &[&system[..], more].concat()))
    }

    fn args(&self, args: &[&str]) -> Vec<String> {
        let file = self.0.file();
        let all = [&["coord", "--config", &file][..], args].concat();
        all.into_iter().map(str::to_string).collect()
    }

    fn output(&self, args: &[&str]) -> Output {
        let args = self.args(args);
        concord(&args.iter().map(String::as_str).collect::<Vec<_>>())
    }

    /// What a command prints that must do what it says.
    fn done(&self, args: &[&str]) -> String {
        let output = self.output(args);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{args:?}: {errors}");
        String::from_utf8(output.stdout).unwrap().trim_end().to_string()
    }

    /// The exit status and the only line of one that must not.
    fn fails(&self, args: &[&str]) -> (i32, String) {
        let output = self.output(args);
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!(text.trim_end().lines().count(), 1, "one line, not: {text}");
        (output.status.code().unwrap(), text.trim_end().to_string())
    }

    /// The epoch, and the members of the chain, head first.
    fn members(&self) -> (u64, Vec<u64>) {
        let controller = self.0.role("controller", 1);
        let members = controller["members"].as_array().into_iter().flatten();
        let members = members.filter_map(serde_json::Value::as_u64).collect();
        (controller["epoch"].as_u64().unwrap_or(0), members)
    }

    fn client(&self) -> CoordClient {
        let status = self.0.status();
        let switches = status["roles"].as_array().unwrap().iter();
        let switches = switches.filter(|role| role["role"] == "switch");
        let addr = |text: &str| {
            let addr: std::net::SocketAddrV4 = text.parse().unwrap();
            Addr { ip: u32::from(*addr.ip()), port: addr.port() }
        };
        CoordClient::new(&CoordPlace {
            group: GroupId(1),
            switches: switches.map(|role| addr(role["addr"].as_str().unwrap())).collect(),
            words: 8,
            patience: Duration::from_secs(5),
        })
        .unwrap()
    }
}

#[test]
fn keys_are_read_written_and_refused_with_one_line() {
    let coord = Coord::start("coord-keys", "3", &[]);
    let first: u64 = coord.done(&["put", "leader", "host-a"]).parse().unwrap();
    assert_eq!(coord.done(&["get", "leader"]), "host-a");
    assert_eq!(coord.done(&["get", "leader", "--with-version"]), format!("{first} host-a"));
    let version = first.to_string();
    let second: u64 =
        coord.done(&["put", "leader", "host-b", "--if-version", &version]).parse().unwrap();
    assert!(second > first);
    let (status, line) = coord.fails(&["put", "leader", "host-c", "--if-version", &version]);
    assert_eq!((status, line), (1, format!("concord: leader has version {second}")));
    let (status, line) = coord.fails(&["put", "leader", "x", "--if-absent"]);
    assert_eq!((status, &line[..]), (1, "concord: there is a key leader already"));
    coord.done(&["cas", "leader", "host-b", "host-c"]);
    assert_eq!(coord.fails(&["cas", "leader", "host-b", "host-d"]).0, 1);
    for (by, sum) in [("1", "1"), ("41", "42"), ("-2", "40")] {
        assert_eq!(coord.done(&["incr", "tickets", by]), sum);
    }
    coord.done(&["put", "tickets", "-7"]);
    assert_eq!(coord.done(&["incr", "tickets"]), "-6");
    assert_eq!(coord.fails(&["incr", "leader"]).0, 1);
    for n in 0..30 {
        coord.done(&["put", &format!("jobs/{n:02}"), "x"]);
    }
    let listed = coord.done(&["ls", "jobs/"]);
    assert_eq!(listed.lines().count(), 30);
    assert!(listed.starts_with("jobs/00\njobs/01\n") && listed.ends_with("jobs/29"), "{listed}");
    assert_eq!(coord.done(&["ls"]).lines().count(), 32);
    coord.done(&["del", "jobs/00"]);
    assert_eq!(coord.fails(&["get", "jobs/00"]), (1, "concord: there is no key jobs/00".into()));
    assert_eq!(coord.fails(&["del", "jobs/00"]).0, 1);
    // A version does not come back after a delete.
    let last: u64 = coord
        .done(&["get", "leader", "--with-version"])
        .split(' ')
        .next()
        .unwrap()
        .parse()
        .unwrap();
    coord.done(&["del", "leader"]);
    let anew: u64 = coord.done(&["put", "leader", "host-a", "--if-absent"]).parse().unwrap();
    assert!(anew > last);
    let (status, line) = coord.fails(&["put", "k", &"x".repeat(65)]);
    assert_eq!(
        (status, &line[..]),
        (2, "concord: the value has 65 bytes; values of this chain have 64 at most")
    );
    assert_eq!(coord.fails(&["get", &"x".repeat(33)]).0, 2);
    for node in ["1", "2", "3"] {
        assert_eq!(coord.done(&["get", "leader", "--nearest", node]), "host-a");
    }
    let text = concord(&["status", "--config", &coord.0.file()]);
    assert!(text.status.success());
    let text = String::from_utf8(text.stdout).unwrap();
    for line in ["a chain of 3 switches, 3 of them open", "head of 3", "2 of 3", "tail of 3"] {
        assert!(text.contains(line), "no {line:?} in {text}");
    }
    assert!(concord(&["wait", "--config", &coord.0.file()]).status.success());
}

#[test]
fn a_chain_has_1_to_8_switches() {
    let run = directory("coord-none");
    let run = run.display().to_string();
    for count in ["0", "9"] {
        let line = refused(&["up", "--system", "netcraq", "--switches", count, "--run-dir", &run]);
        let expected = format!("concord: --switches {count}: a chain has 1 to 8 switches");
        assert_eq!(line, expected);
    }
    let line = refused(&["up", "--switches", "3", "--run-dir", &run]);
    assert!(line.ends_with("say --system netcraq"), "{line}");
}

/// What one client does until it is told to end; all of it goes into the history.
///
/// It ends by itself, too, where the test has failed meanwhile.
fn load(
    mut client: CoordClient,
    number: u64,
    began: Instant,
    is_over: &AtomicBool,
    history: &Mutex<Vec<Operation>>,
) -> Vec<Instant> {
    let mut written = Vec::new();
    let since = |at: Instant| at.duration_since(began).as_nanos() as u64;
    for round in 0.. {
        if is_over.load(Ordering::Relaxed) || began.elapsed() > 4 * PATIENCE {
            break;
        }
        let key = format!("k{}", (round + number) % 6);
        let name = Name::new(key.as_bytes()).unwrap();
        let counter = format!("n{}", round / 4 % 2);
        let counter_name = Name::new(counter.as_bytes()).unwrap();
        let value = format!("{number}-{round}");
        let (call, cmd): (_, Vec<&str>) = match round % 4 {
            0 | 2 => (get(name), vec!["GET", &key]),
            1 => {
                let words = Words::new(value.as_bytes()).unwrap();
                let state = State::present(0, value.len() as u8, false);
                (set(name, Condition::Always, state, words), vec!["SET", &key, &value])
            }
            _ => (incr(counter_name, 1), vec!["INCR", &counter]),
        };
        client.prefer((round % 3) as usize);
        let call_at = Instant::now();
        let ended = client.call(call).unwrap();
        let return_at = Instant::now();
        let reply = match ended {
            Ended::Answer(answer) => {
                let is_done = answer.outcome == Outcome::Done;
                if is_done && round % 2 == 1 {
                    written.push(return_at);
                }
                Some(match cmd[0] {
                    "GET" if is_done => Reply::bulk(value_of(&answer)),
                    "GET" => Reply::Nil,
                    "SET" if is_done => Reply::Ok,
                    "INCR" if is_done => Reply::Int(answer.number as i64),
                    _ => panic!("{cmd:?}: {answer:?}"),
                })
            }
            _ => None,
        };
        history.lock().unwrap().push(Operation {
            client: number,
            ordinal: None,
            call_ns: since(call_at),
            return_ns: reply.as_ref().map(|_| since(return_at)),
            cmd: cmd.iter().map(|part| part.as_bytes().to_vec()).collect(),
            reply,
            path: None,
        });
        // So that the history stays small.
        std::thread::sleep(Duration::from_millis(2));
    }
    written
}

/// The head is killed, a middle one stands still for longer than a lease, and the tail is killed,
/// while clients read and write through switches that lose, double and reorder packets: writes go
/// on, what the clients saw is linearizable, and the switch that comes back is a member.
#[test]
fn writes_go_on_when_a_switch_dies_and_nothing_is_lost() {
    let faults = ["--fault-drop", "5000", "--fault-duplicate", "10000", "--fault-reorder", "10000"];
    let coord = Coord::start("coord-dies", "4", &[&[RESTARTS][..], &faults].concat());
    let (is_over, history) = (AtomicBool::new(false), Mutex::new(Vec::new()));
    let began = Instant::now();
    let rounds = setting("CONCORD_COORD_ROUNDS", 1);
    std::thread::scope(|scope| {
        let clients: Vec<_> = (0..4)
            .map(|number| {
                let client = coord.client();
                let (is_over, history) = (&is_over, &history);
                scope.spawn(move || load(client, number, began, is_over, history))
            })
            .collect();
        let mut faults = Vec::new();
        for (place, signal) in (0..rounds).flat_map(|_| [(0, "-9"), (1, "-STOP"), (3, "-9")]) {
            std::thread::sleep(Duration::from_millis(500));
            let (epoch, members) = coord.members();
            let node = members[place];
            let pid = coord.0.pid(&format!("coord-switch-{node}"));
            faults.push((Instant::now(), signal));
            Rack::signal(pid, signal);
            if signal == "-STOP" {
                until("end of its place", || coord.members().1.len() < 4);
                std::thread::sleep(Duration::from_millis(300));
                Rack::signal(pid, "-CONT");
            }
            // One that is killed is back within moments.
            let is_whole = |(now, members): (u64, Vec<u64>)| now > epoch && members.len() == 4;
            until("four members", || is_whole(coord.members()));
            until("rest", || {
                let wait = ["wait", "--timeout", "1", "--config", &coord.0.file()];
                concord(&wait).status.success()
            });
        }
        is_over.store(true, Ordering::Relaxed);
        let written: Vec<_> = clients.into_iter().map(|client| client.join().unwrap()).collect();
        for (since, signal) in faults {
            // What was under way is answered yet: the longest time without a write from then on.
            let mut times: Vec<Instant> =
                written.iter().flatten().copied().filter(|at| *at > since).collect();
            times.push(since);
            times.sort_unstable();
            let pauses = times.windows(2).map(|pair| pair[1] - pair[0]);
            let longest = pauses.take(400).max().unwrap();
            println!("{signal}: at most {longest:?} without a write");
            assert!(longest < Duration::from_secs(5));
        }
    });
    let history = history.into_inner().unwrap();
    let answered = history.iter().filter(|operation| operation.reply.is_some()).count();
    println!("{} operations, {answered} answered", history.len());
    assert!(answered > 500 && answered * 10 > history.len() * 9);
    let report = check(&history, &Options::default()).unwrap();
    assert!(report.is_ok(), "{report}");
    // Each INCR that was answered happened once, and those of unknown outcome at most once.
    let of = |counter: &str| {
        let own = history.iter().filter(|o| o.cmd == [b"INCR".to_vec(), counter.into()]);
        let (known, all) = (own.clone().filter(|o| o.reply.is_some()).count(), own.count());
        let sum: usize = coord.done(&["get", counter]).parse().unwrap();
        assert!((known..=all).contains(&sum), "{counter} is {sum}, of {known} to {all}");
    };
    ["n0", "n1"].into_iter().for_each(of);
}

/// A key ends by itself, also if the head dies meanwhile, and not before its time.
#[test]
fn a_key_ends_at_its_time_to_live() {
    let coord = Coord::start("coord-ttl", "3", &[RESTARTS]);
    coord.done(&["put", "session", "a", "--ttl", "3s"]);
    let set_at = Instant::now();
    let version: u64 = coord.done(&["get", "session", "--with-version"])[..]
        .split(' ')
        .next()
        .unwrap()
        .parse()
        .unwrap();
    let line = coord.done(&["get", "session", "--with-ttl"]);
    let left: u64 = line.split(' ').next().unwrap().parse().unwrap();
    assert!(line.ends_with(" a") && (1..=3_000).contains(&left), "{line}");
    Rack::signal(coord.0.pid("coord-switch-1"), "-9");
    until("end of the key", || coord.output(&["get", "session"]).status.code() == Some(1));
    let lived = set_at.elapsed();
    println!("it lived for {lived:?}");
    // Set a moment before `set_at`.
    assert!(lived > Duration::from_millis(2_500) && lived < Duration::from_secs(8), "{lived:?}");
    let anew: u64 = coord.done(&["put", "session", "b", "--if-absent"]).parse().unwrap();
    assert!(anew > version + 1, "its end has a version, too");
    assert_eq!(coord.done(&["get", "session", "--with-ttl"]), "- b");
    let (status, line) = coord.fails(&["put", "session", "b", "--ttl", "0s"]);
    assert!(status == 2 && line.contains("--ttl: a key lives for 1ms to 100 years"), "{line}");
}

/// `concord torture --coord` while the head is killed, and the tail: linearizable, with times to
/// live, and a lock that nobody holds beside another.
#[test]
fn torture_of_a_chain_whose_members_are_killed() {
    let coord = Coord::start("coord-torture", "3", &[RESTARTS]);
    let file = coord.0.file();
    let seconds = setting("CONCORD_TORTURE_SECONDS", 6).to_string();
    let args = ["torture", "--json", "--coord", &file, "--clients", "4", "--keys", "60"];
    let more = ["--duration", &seconds, "--writes-percent", "60"];
    let output = std::thread::scope(|scope| {
        let torture = scope.spawn(|| concord(&[&args[..], &more].concat()));
        for place in [0, 2] {
            std::thread::sleep(Duration::from_millis(1_500));
            let (epoch, members) = coord.members();
            if let Some(node) = members.get(place) {
                Rack::signal(coord.0.pid(&format!("coord-switch-{node}")), "-9");
            }
            let is_whole = |(now, members): (u64, Vec<u64>)| now > epoch && members.len() == 3;
            until("three members", || is_whole(coord.members()));
        }
        torture.join().unwrap()
    });
    let errors = String::from_utf8_lossy(&output.stderr);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text} {errors}");
    let told: serde_json::Value = serde_json::from_str(&text).unwrap();
    println!("{told} {errors}");
    assert!(told["operations"].as_u64().unwrap() > 500, "{told}");
}

/// One holder at a time, whose token is above all earlier ones.
#[test]
fn a_lock_has_one_holder_and_its_tokens_rise() {
    let coord = Coord::start("coord-lock", "3", &[]);
    let file = coord.0.run.join("held");
    let script = "echo begin $CONCORD_TOKEN >> $0; sleep 0.05; echo end $CONCORD_TOKEN >> $0";
    let line = ["lock", "job", "--ttl", "2s", "--wait", "20s", "--", "sh", "-c", script];
    let start = || {
        let args = coord.args(&[&line[..], &[&file.display().to_string()]].concat());
        Command::new(CONCORD).args(args).stdin(Stdio::null()).spawn().unwrap()
    };
    let all: Vec<_> = (0..5).map(|_| start()).collect();
    for mut one in all {
        assert!(one.wait().unwrap().success());
    }
    let text = std::fs::read_to_string(&file).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    let mut before = 0;
    for pair in lines.chunks(2) {
        let token = pair[0].strip_prefix("begin ").unwrap();
        assert_eq!(pair[1], format!("end {token}"), "{text}");
        let token: u64 = token.parse().unwrap();
        assert!(token > before, "{text}");
        before = token;
    }
    assert_eq!(lines.len(), 10);
    assert_eq!(coord.fails(&["get", "job"]).0, 1, "the last one has released it");
    let ended = coord.output(&["lock", "job", "--", "sh", "-c", "exit 7"]);
    assert_eq!(ended.status.code(), Some(7));
}

/// A holder that is killed takes its command with it, and another has the lock once the lease is
/// over, not before.
#[test]
fn a_killed_holder_ends_its_command_and_the_lock_goes_on() {
    let coord = Coord::start("coord-killed", "2", &[]);
    let args = coord.args(&["lock", "job", "--ttl", "2s", "--", "sh", "-c", "echo $$; sleep 60"]);
    let mut holder = Command::new(CONCORD)
        .args(args)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = std::io::BufRead::lines(std::io::BufReader::new(holder.stdout.take().unwrap()));
    let command: u32 = lines.next().unwrap().unwrap().parse().unwrap();
    let (status, line) = coord.fails(&["lock", "job", "--", "true"]);
    assert!(status == 1 && line.contains("the lock job is held by 2000 "), "{line}");
    // It renews: the lock stays its own for longer than a lease.
    let (status, _) = coord.fails(&["lock", "job", "--wait", "3s", "--", "true"]);
    assert_eq!((status, is_alive(command)), (1, true));
    let killed_at = Instant::now();
    Rack::signal(holder.id(), "-9");
    holder.wait().unwrap();
    until("end of its command", || !is_alive(command));
    assert!(killed_at.elapsed() < Duration::from_secs(1), "long before the lock can be another's");
    let next = coord.output(&["lock", "job", "--wait", "20s", "--", "true"]);
    assert!(next.status.success());
    assert!(killed_at.elapsed() > Duration::from_millis(1_400), "{:?}", killed_at.elapsed());
}

/// A holder that cannot renew kills its command before the lease is over.
#[test]
fn a_holder_without_a_chain_kills_its_command() {
    let coord = Coord::start("coord-gone", "1", &[]);
    let args = coord.args(&["lock", "job", "--ttl", "1s", "--", "sh", "-c", "echo $$; sleep 60"]);
    let mut holder = Command::new(CONCORD)
        .args(args)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = std::io::BufRead::lines(std::io::BufReader::new(holder.stdout.take().unwrap()));
    let command: u32 = lines.next().unwrap().unwrap().parse().unwrap();
    Rack::signal(coord.0.pid("coord-switch-1"), "-STOP");
    let stopped_at = Instant::now();
    until("end of the command", || !is_alive(command));
    assert!(stopped_at.elapsed() < Duration::from_millis(1_500), "{:?}", stopped_at.elapsed());
    assert_eq!(holder.wait().unwrap().code(), Some(4));
    let output = coord.output(&["--timeout", "300ms", "put", "job", "x"]);
    assert_eq!(output.status.code(), Some(3), "nobody answers");
}

#[test]
fn a_watch_shows_the_last_change() {
    let coord = Coord::start("coord-watch", "3", &[]);
    coord.done(&["put", "leader", "a"]);
    let args = coord.args(&["watch", "leader", "--count", "3"]);
    let mut watch = Command::new(CONCORD)
        .args(args)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = std::io::BufRead::lines(std::io::BufReader::new(watch.stdout.take().unwrap()));
    let mut next = || lines.next().unwrap().unwrap();
    assert!(next().ends_with(" a"));
    coord.done(&["put", "leader", "b"]);
    assert!(next().ends_with(" b"));
    coord.done(&["del", "leader"]);
    assert_eq!(next(), "- there is no such key");
    assert!(watch.wait().unwrap().success());
}
