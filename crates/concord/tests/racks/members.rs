//! A rack on hosts of its own (network namespaces on a bridge) whose links fail: nobody leaves for
//! the controller's own troubles, and writes go on. And a controller whose state file is not the
//! newest.
//!
//! Where the machine does not allow namespaces, the tests over them say so and pass. With
//! `CONCORD_LONG=1` the longest cut (20 s) is made too.

use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::common::*;
use serde_json::Value;

/// A link that is down: for how long writes may stand still (issue: two replicas cut from each
/// other).
const WRITES_GO_ON: Duration = Duration::from_secs(2);
const HOSTS: [(&str, u8); 6] = [
    ("controller", 1),
    ("switch", 2),
    ("replica-1", 11),
    ("replica-2", 12),
    ("replica-3", 13),
    ("gateway", 21),
];

fn ip(args: &str) -> bool {
    let mut command = Command::new("ip");
    command.args(args.split(' ')).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

/// Hosts on a bridge, each in a namespace of its own; gone with the test.
struct Hosts {
    name: String,
    net: u8,
}

impl Hosts {
    /// `None` where the machine does not allow it.
    fn make(test: u8) -> Option<Hosts> {
        let hosts = Hosts { name: format!("cm{}-{test}", std::process::id()), net: 100 + test };
        if hosts.build() {
            return Some(hosts);
        }
        println!("SKIPPED: this machine allows no network namespaces");
        None
    }

    fn of(&self, host: &str) -> String {
        format!("{}-{host}", self.name)
    }

    fn build(&self) -> bool {
        let (bridge, net) = (self.of("bridge"), self.net);
        let mut ok = ip(&format!("netns add {bridge}"))
            && ip(&format!("-n {bridge} link add bridge0 type bridge"))
            && ip(&format!("-n {bridge} link set bridge0 up"));
        for (host, last) in HOSTS {
            let own = self.of(host);
            ok = ok
                && ip(&format!("netns add {own}"))
                && ip(&format!("-n {own} link add eth type veth peer name p{last} netns {bridge}"))
                && ip(&format!("-n {bridge} link set p{last} master bridge0 up"))
                && ip(&format!("-n {own} addr add 10.99.{net}.{last}/24 dev eth"))
                && ip(&format!("-n {own} link set eth up"))
                && ip(&format!("-n {own} link set lo up"));
        }
        // The test is a host as well.
        let own = format!("cmt{}", std::process::id() % 100_000 * 10 + u32::from(net - 100));
        ok && ip(&format!("link add {own} type veth peer name ptest netns {bridge}"))
            && ip(&format!("-n {bridge} link set ptest master bridge0 up"))
            && ip(&format!("addr add 10.99.{net}.99/24 dev {own}"))
            && ip(&format!("link set {own} up"))
    }

    fn link(&self, host: &str, state: &str) {
        let last = HOSTS.iter().find(|(name, _)| *name == host).unwrap().1;
        assert!(ip(&format!("-n {} link set p{last} {state}", self.of("bridge"))));
    }

    /// What one host sends another goes nowhere, or where it should again.
    fn cut(&self, from: &str, to: &str, is_cut: bool) {
        let (own, net) = (self.of(from), self.net);
        let last = HOSTS.iter().find(|(name, _)| *name == to).unwrap().1;
        let target = format!("10.99.{net}.{last} dev eth");
        if is_cut {
            assert!(ip(&format!(
                "-n {own} neigh replace {target} lladdr 02:00:00:00:00:99 nud permanent"
            )));
        } else {
            assert!(ip(&format!("-n {own} neigh del {target}")));
        }
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        for (host, _) in HOSTS {
            ip(&format!("netns del {}", self.of(host)));
        }
        ip(&format!("netns del {}", self.of("bridge")));
    }
}

/// Its roles, each on its host.
struct Spread {
    roles: Vec<Child>,
    run: Directory,
    hosts: Hosts,
}

impl Spread {
    fn start(name: &str, test: u8) -> Option<Spread> {
        let hosts = Hosts::make(test)?;
        let run = directory(name);
        let (net, state) = (hosts.net, run.join("controller.state"));
        let at = |role: &str, last: u8, more: &str| {
            format!(
                "{role}\n{more}addr = \"10.99.{net}.{last}:7400\"\nhttp = \"10.99.{net}.{last}:7500\"\n"
            )
        };
        let mut text = "durability = \"none\"\n".to_string();
        text += &at("[controller]", 1, &format!("state = {state:?}\n"));
        text += &at("[switch]", 2, "");
        for node in 1..=3 {
            text += &at("[[replica]]", 10 + node, &format!("node = {node}\n"));
        }
        text += &at("[[gateway]]", 21, &format!("node = 1\nlisten = \"10.99.{net}.21:7379\"\n"));
        std::fs::write(run.join("rack.toml"), text).unwrap();
        let mut rack = Spread { roles: Vec::new(), run, hosts };
        for (host, _) in HOSTS {
            let (role, node) = host.split_once('-').unwrap_or((host, ""));
            let mut args = vec![role.to_string(), "--config".to_string(), rack.file()];
            if !node.is_empty() {
                args.extend(["--node".to_string(), node.to_string()]);
            }
            let log = std::fs::File::create(rack.run.join(format!("{host}.log"))).unwrap();
            let mut command = Command::new("ip");
            command.args(["netns", "exec", &rack.hosts.of(host)]).arg(CONCORD).args(args);
            let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn();
            rack.roles.push(child.unwrap());
        }
        until("rack that serves", || rack.controller()["members"] == serde_json::json!([1, 2, 3]));
        Some(rack)
    }

    fn file(&self) -> String {
        self.run.join("rack.toml").display().to_string()
    }

    fn status(&self) -> Value {
        let args = ["status", "--json", "--interval-ms", "10", "--config", &self.file()];
        serde_json::from_slice(&concord(&args).stdout).unwrap_or_default()
    }

    fn controller(&self) -> Value {
        controller_of(&self.status())
    }

    /// Writes all the time, while something is done; the longest time without a write that ended.
    fn while_writing(&self, doing: impl FnOnce()) -> Duration {
        let target = format!("10.99.{}.21:7379", self.hosts.net).parse().unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&stop);
        let writer = std::thread::spawn(move || {
            let mut client = Resp::open(target);
            let (mut n, mut longest) = (0u64, Duration::ZERO);
            let mut last = Instant::now();
            while !seen.load(Ordering::Relaxed) {
                n += 1;
                let line = client.say(&format!("SET key:{} {n}", n % 100));
                if line == "+OK" {
                    longest = longest.max(last.elapsed());
                    last = Instant::now();
                }
            }
            longest.max(last.elapsed())
        });
        std::thread::sleep(Duration::from_millis(500));
        doing();
        stop.store(true, Ordering::Relaxed);
        writer.join().unwrap()
    }
}

impl Drop for Spread {
    fn drop(&mut self) {
        for role in &mut self.roles {
            let _ = role.kill();
            let _ = role.wait();
        }
    }
}

fn controller_of(status: &Value) -> Value {
    let roles = status["roles"].as_array().cloned().unwrap_or_default();
    let of = roles.iter().find(|r| r["role"] == "controller");
    of.map_or(Value::Null, |r| r["status"].clone())
}

fn cuts() -> &'static [u64] {
    if setting("CONCORD_LONG", 0) > 0 { &[2, 6, 20] } else { &[2, 6] }
}

#[test]
fn bug_16_1_a_controller_whose_link_was_down_removes_nobody() {
    let Some(rack) = Spread::start("members-controller", 1) else { return };
    let epoch = rack.controller()["epoch"].clone();
    for seconds in cuts() {
        for with_switch in [false, true] {
            let links = if with_switch { &["controller", "switch"][..] } else { &["controller"] };
            let longest = rack.while_writing(|| {
                links.iter().for_each(|host| rack.hosts.link(host, "down"));
                std::thread::sleep(Duration::from_secs(*seconds));
                links.iter().for_each(|host| rack.hosts.link(host, "up"));
                // For longer than a failure takes.
                std::thread::sleep(Duration::from_secs(4));
            });
            println!("{links:?} cut for {seconds} s: longest pause {longest:?}");
            until("controller", || !rack.controller().is_null());
            let status = rack.status();
            let now = controller_of(&status);
            assert_eq!((&now["members"], &now["epoch"]), (&serde_json::json!([1, 2, 3]), &epoch));
            assert_eq!(Rack::counter(&status, "replica", "copies_begun"), 0);
            if !with_switch {
                assert!(longest < WRITES_GO_ON, "writes stood still for {longest:?}");
            }
        }
    }
}

/// Writes go on while two replicas are cut from each other.
#[test]
fn bug_16_2_writes_go_on_while_two_replicas_are_cut() {
    let Some(rack) = Spread::start("members-pair", 2) else { return };
    for (one, other) in [(1, 2), (2, 3), (1, 3)] {
        let hosts = [format!("replica-{one}"), format!("replica-{other}")];
        let cut = |is_cut| {
            rack.hosts.cut(&hosts[0], &hosts[1], is_cut);
            rack.hosts.cut(&hosts[1], &hosts[0], is_cut);
        };
        let mut problem = String::new();
        let longest = rack.while_writing(|| {
            cut(true);
            std::thread::sleep(Duration::from_secs(6));
            problem = rack.controller()["problem"].as_str().unwrap_or_default().to_string();
            cut(false);
        });
        println!("{hosts:?} cut: longest pause {longest:?}; {problem}");
        assert!(longest < WRITES_GO_ON, "writes stood still for {longest:?}");
        assert!(problem.contains("do not hear each other"), "{problem:?}");
        until("all members", || {
            let now = rack.controller();
            now["members"].as_array().map(Vec::len) == Some(3) && now["problem"].is_null()
        });
    }
}

/// A controller with that file says why it decides nothing: in the status, and in one line.
fn is_refused(rack: &Rack, what: &str, words: &str) {
    let again = ByHand::start(rack, &["controller"]);
    until(what, || {
        let problem = controller_of(&rack.status())["problem"].clone();
        problem.as_str().is_some_and(|line| line.contains(words))
    });
    let log = std::fs::read_to_string(&again.1).unwrap();
    let lines = log.lines().filter(|line| line.contains("PROBLEM") && line.contains(words)).count();
    assert_eq!(lines, 1, "{what}: {log}");
}

/// A state file that is gone old or anothers is refused and made anew.
#[test]
fn bug_16_3_lost_old_or_foreign_state_file_is_refused() {
    let rack = Rack::start("members-file", &[]);
    let other = Rack::start("members-other", &[]);
    let mut client = rack.client();
    assert_eq!(client.say("SET k before"), "+OK");
    let file = rack.run.join("controller.state");
    let yesterday = std::fs::read(&file).unwrap();
    // An epoch that the file of yesterday does not know.
    Rack::signal(rack.pid("replica-3"), "-9");
    until("epoch without it", || {
        controller_of(&rack.status())["members"] == serde_json::json!([1, 2])
    });
    let epoch = controller_of(&rack.status())["epoch"].as_u64().unwrap();
    Rack::signal(rack.pid("controller"), "-9");
    std::fs::remove_file(&file).unwrap();
    is_refused(&rack, "refusal without a file", "there is no state");
    assert!(!file.exists(), "it wrote nothing");
    std::fs::write(&file, &yesterday).unwrap();
    is_refused(&rack, "refusal of an old file", "nodes have heard of epoch");
    std::fs::write(&file, std::fs::read(other.run.join("controller.state")).unwrap()).unwrap();
    is_refused(&rack, "refusal of another rack's file", "of another rack");
    // The data path goes on meanwhile, and a state is made anew above all that was used.
    assert_eq!(client.say("SET k meanwhile"), "+OK");
    std::fs::remove_file(&file).unwrap();
    let again = ByHand::start(&rack, &["controller", "--recover"]);
    until("state that was made anew", || {
        let now = controller_of(&rack.status());
        now["members"] == serde_json::json!([1, 2]) && now["epoch"].as_u64() > Some(epoch + 1_000)
    });
    let log = std::fs::read_to_string(&again.1).unwrap();
    assert!(log.contains("made the state anew") && log.contains("no data is lost"), "{log}");
    assert_eq!(client.say("GET k"), "meanwhile");
    assert_eq!(client.say("SET k after"), "+OK");
}
