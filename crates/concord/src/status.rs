//! `concord status`, `concord wait` and `concord explain`: the state of a running rack, as its
//! roles report it.

use std::io::{ErrorKind, Write};
use std::net::{SocketAddr, SocketAddrV4};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use concord_runtime::{Context, Error};
use serde_json::{Map, Value, json};

use crate::cli::{StatusArgs, WaitArgs};
use crate::net::http_get;
use crate::problems;
use crate::rack::{Group, Kind, Rack, STORE};
use crate::systems::{self, store};

const ASK_TIMEOUT: Duration = Duration::from_millis(1_500);
const WAIT_INTERVAL: Duration = Duration::from_millis(50);

/// A role of the rack, and the address of its status.
#[derive(Clone, Debug)]
pub struct Role {
    name: &'static str,
    node: u16,
    /// Its group, if it has one: the name in the rack file, and whether the names of members leave
    /// it out.
    group: Option<(String, bool)>,
    addr: String,
    /// The UDP address at which its peers reach it.
    udp: SocketAddrV4,
    http: Option<SocketAddr>,
}

impl Role {
    /// A role that is no member of a group.
    #[must_use]
    pub fn new(name: &'static str, node: u16, udp: SocketAddrV4, http: Option<SocketAddr>) -> Role {
        Role { name, node, group: None, addr: udp.to_string(), udp, http }
    }

    /// The same role, with the address by which others know it.
    #[must_use]
    pub fn known_as(self, addr: impl ToString) -> Role {
        Role { addr: addr.to_string(), ..self }
    }

    /// A member of a group.
    #[must_use]
    pub fn member(
        group: &Group<'_>,
        name: &'static str,
        node: u16,
        udp: SocketAddrV4,
        http: Option<SocketAddr>,
    ) -> Role {
        let group = Some((group.name.to_string(), group.is_store()));
        Role { group, ..Role::new(name, node, udp, http) }
    }

    /// A description of what answers in place of this role, according to its `status`: a role of
    /// another rack, no role at all, or only the role's HTTP thread.
    fn stranger(&self, status: &Value) -> Option<String> {
        let said = |field: &str| match &status[field] {
            Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        if let Some(busy) = status[BUSY].as_str() {
            return Some(busy.to_string());
        }
        let http = self.http?;
        // A standby reports itself as a switch.
        let role = if self.name == "standby" { "switch" } else { self.name };
        if !status["counters"].is_object() {
            return Some(format!("what answers at {http} is no role of a rack"));
        }
        let is_it = said("role") == role
            && status["node"] == self.node
            && said("addr") == self.udp.to_string();
        (!is_it).then(|| {
            format!(
                "at {http} answers {} {} of {}, which is of another rack, or has another place than the \
                 rack file says",
                said("role"),
                said("node"),
                said("addr")
            )
        })
    }

    /// The name of the role as people write it.
    fn title(&self) -> String {
        let (name, node) = (self.name, self.node);
        match &self.group {
            Some((group, false)) => format!("{group} {name} {node}"),
            _ if ["controller", "switch"].contains(&name) => name.to_string(),
            _ => format!("{name} {node}"),
        }
    }
}

/// `concord status`: 0 if all is well; 1 if a role does not answer, a replica is missing, or the
/// controller has a PROBLEM.
///
/// # Errors
/// One line for a person. Roles that do not answer are shown as such, and are no error.
pub fn run(args: &StatusArgs) -> Result<ExitCode, Error> {
    let rack = Rack::read_whole(&args.config)?;
    let roles = roles(&rack)?;
    let started = Instant::now();
    let before = ask_all(&roles);
    std::thread::sleep(Duration::from_millis(args.interval_ms));
    let after = ask_all(&roles);
    let report = report(&rack, &roles, &before, &after, started.elapsed().as_secs_f64())?;
    print(&if args.json { format!("{report:#}\n") } else { describe_all(&report) })?;
    let is_well = report["wrong"].as_array().is_some_and(Vec::is_empty);
    Ok(if is_well { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// `concord wait`: returns when there is no problem any more, or the time is over.
///
/// # Errors
/// One line with the remaining problems when the time is over.
pub fn wait(args: &WaitArgs) -> Result<(), Error> {
    let rack = Rack::read_whole(&args.config)?;
    let roles = roles(&rack)?;
    let started = Instant::now();
    loop {
        let seen = ask_all(&roles);
        let report = report(&rack, &roles, &seen, &seen, 1.0)?;
        let wrong: Vec<_> =
            report["wrong"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        if wrong.is_empty() {
            return Ok(());
        }
        if let Some(line) = wrong.iter().find(|line| line.contains(KEEPS)) {
            return Err(Error::new(format!("not well: {line}")));
        }
        if started.elapsed() >= Duration::from_secs(args.timeout_s) {
            let seconds = args.timeout_s;
            return Err(Error::new(format!("not well after {seconds} s: {}", wrong.join("; "))));
        }
        std::thread::sleep(WAIT_INTERVAL);
    }
}

fn roles(rack: &Rack) -> Result<Vec<Role>, Error> {
    let mut roles = Vec::new();
    if let Some(c) = &rack.controller {
        roles.push(Role::new("controller", 1, c.addr, c.http));
    }
    if let Some(s) = &rack.switch {
        roles.push(Role::new("switch", 1, s.addr, s.http));
    }
    for s in &rack.standby {
        roles.push(Role::new("standby", s.node, s.addr, s.http));
    }
    for system in systems::all() {
        roles.extend(system.roles(rack)?);
    }
    Ok(roles)
}

/// The `/status` of each role, all queried at the same time; `None` for a role that does not
/// answer.
fn ask_all(roles: &[Role]) -> Vec<Option<Value>> {
    let ask = |http: Option<SocketAddr>| match http_get(http?, "/status", ASK_TIMEOUT) {
        Ok(body) => serde_json::from_slice(&body).ok(),
        Err(e) => busy(&e.to_string()),
    };
    std::thread::scope(|scope| {
        let asked: Vec<_> = roles.iter().map(|role| scope.spawn(move || ask(role.http))).collect();
        asked.into_iter().map(|thread| thread.join().ok().flatten()).collect()
    })
}

/// The key that replaces `/status` while a role's event loop does not answer.
const BUSY: &str = "busy";

/// The answer of a role's HTTP thread if its event loop does not answer, with the time since when.
fn busy(error: &str) -> Option<Value> {
    let at = error.find("its event loop is busy")?;
    Some(json!({ BUSY: error[at..] }))
}

/// A counter in a role's `/status`; 0 if there is none of that name.
#[must_use]
pub fn counter(status: &Value, name: &str) -> f64 {
    status["counters"][name].as_f64().unwrap_or(0.0)
}

/// The report as one JSON object. The content of the first group stands beside `groups`, too.
fn report(
    rack: &Rack,
    roles: &[Role],
    before: &[Option<Value>],
    after: &[Option<Value>],
    seconds: f64,
) -> Result<Value, Error> {
    let mut shown = Vec::new();
    for (i, role) in roles.iter().enumerate() {
        let stranger = after[i].as_ref().and_then(|status| role.stranger(status));
        let known = |seen: &Option<Value>| {
            let own = seen.clone().filter(|status| role.stranger(status).is_none());
            own.unwrap_or(Value::Null)
        };
        let (before, now) = (known(&before[i]), known(&after[i]));
        let before = Some(&before).filter(|status| status.is_object());
        shown.push(json!({
            "role": role.name,
            "node": role.node,
            "group": role.group.as_ref().map(|(name, _)| name),
            "name": role.title(),
            "addr": role.addr,
            "reachable": role.http.map(|_| now.is_object()),
            "stranger": stranger,
            "rates": rates(before, &now, seconds),
            "latencies": latencies(before, &now),
            "status": now,
        }));
    }
    let groups = rack.groups()?;
    let told: Vec<Map<String, Value>> = groups.iter().map(|group| told(group, &shown)).collect();
    let mut report = told.first().cloned().unwrap_or_default();
    report.insert("groups".to_string(), told.into());
    report.insert("interval_seconds".to_string(), seconds.into());
    let wrong = wrong(&groups, &shown);
    let help: Vec<String> = wrong.iter().map(|line| problems::section(line)).collect();
    report.insert("wrong".to_string(), wrong.into());
    report.insert("help".to_string(), help.into());
    report.insert("roles".to_string(), shown.into());
    Ok(report.into())
}

/// The report of a group: its description, and counts over all its members.
fn told(group: &Group<'_>, roles: &[Value]) -> Map<String, Value> {
    let system = systems::of(group.kind);
    let own = roles.iter().filter(|role| role["group"] == group.name);
    let members: Vec<&Value> = own.map(|role| &role["status"]).collect();
    let mut told = system.settings(group);
    told.append(&mut system.figures(&members));
    told.insert("name".to_string(), group.name.into());
    told.insert("kind".to_string(), group.kind.name().into());
    told
}

/// `some` as a share of `some` and `others` together; null if both are 0.
#[must_use]
pub fn share(some: f64, others: f64) -> Value {
    if some + others > 0.0 { json!(some / (some + others)) } else { Value::Null }
}

/// The error of a clock above which it is a PROBLEM, in seconds.
const CLOCK_ERROR_SECONDS: f64 = 1.0;
/// The duration of a pending sync from which on it is reported, in ns.
const DISK_WAITS_NS: u64 = 1_000_000_000;

/// Problems with clocks: those that a role does not believe, or only follows slowly.
fn clock_problems(role: &Value) -> Vec<String> {
    let (name, gauges) = (name_of(role), &role["status"]["gauges"]);
    let wrong = |gauge: &str| gauges[gauge].as_f64().filter(|s| s.abs() >= CLOCK_ERROR_SECONDS);
    let mut problems = Vec::new();
    if let Some(seconds) = wrong("wall_clock_ahead_seconds") {
        problems.push(format!(
            "PROBLEM: the wall clock of {name} was set, by {seconds:.1} s; its time follows slowly"
        ));
    }
    if let Some(seconds) = wrong("log_behind_seconds") {
        problems.push(format!(
            "PROBLEM: the time that keys expire by is {seconds:.1} s behind the clock of {name}: keys \
             with EXAT, PXAT and EXPIREAT go by it until it has caught up"
        ));
    }
    problems
}

/// The problem of a group that runs another protocol or program than the rack file says; a running
/// rack does not change these.
fn other_program(group: &Group<'_>, told: &Value) -> Option<String> {
    let (protocol, program) = (told["protocol"].as_str()?, told["program"].as_str()?);
    let said = (format!("{:?}", group.protocol), group.program.name());
    (said.0 != protocol || said.1 != program).then(|| {
        format!(
            "PROBLEM: by the rack file {} runs {} with the switch program {}, and it runs {protocol} with {program}: a rack \
             keeps what it began with; change the file back, or begin a new rack (`concord backup`, `concord restore`)",
            group.name, said.0, said.1,
        )
    })
}

/// Problems with replicas that answer here, but whose packets do not reach the controller.
fn unheard(group: &Group<'_>, told: &Value, roles: &[Value]) -> Vec<String> {
    let Some(known) = told["replicas"].as_array() else { return Vec::new() };
    let is_known = |node: &Value| known.iter().any(|k| k["node"] == *node);
    let own = roles.iter().filter(|role| role["role"] == "replica" && role["group"] == group.name);
    own.filter(|role| role["reachable"] == true && !is_known(&role["node"]))
        .map(|role| {
            format!(
                "PROBLEM: {} runs, and the controller does not hear it: has its rack file the right [controller] addr, and \
                 does UDP pass between them?",
                name_of(role)
            )
        })
        .collect()
}

/// The problems that need attention, one per line.
fn wrong(groups: &[Group<'_>], roles: &[Value]) -> Vec<String> {
    let mut wrong = Vec::new();
    for role in roles.iter().filter(|role| role["reachable"] == false) {
        wrong.push(match role["stranger"].as_str() {
            Some(who) => format!("{} is not reachable: {who}", name_of(role)),
            None => format!("{} is not reachable", name_of(role)),
        });
    }
    for role in roles.iter().filter(|role| role["role"] != "controller") {
        if let Some(why) = role["status"]["unhealthy"].as_str() {
            wrong.push(format!("{}: {why}", name_of(role)));
        }
        if role["status"]["disk_failed"] == true {
            let why = "its disk failed, and it has left its group: see its log; restart it once the disk is repaired";
            wrong.push(format!("PROBLEM: {}: {why}", name_of(role)));
        }
        let waits_ns = role["status"]["disk_waits_ns"].as_u64().unwrap_or(0);
        if waits_ns >= DISK_WAITS_NS && role["status"]["disk_full"] != true {
            let seconds = waits_ns / 1_000_000_000;
            let why = format!(
                "its disk has not answered for {seconds} s: in a chain, under CRAQ and primary-backup it leaves after 10 s or more, elsewhere it leads no more after 5 s"
            );
            wrong.push(format!("PROBLEM: {}: {why}", name_of(role)));
        }
        if let Some(damage) = role["status"]["scrub_damage"].as_str() {
            let why = "its log on disk is damaged, and another snapshot takes its place";
            wrong.push(format!("PROBLEM: {}: {why}: {damage}", name_of(role)));
        }
        if let Some(key) = role["status"]["shadowed_key"].as_str() {
            let why = format!(
                "the store has keys that begin with coord_prefix, as {key}: no client reaches them"
            );
            wrong.push(format!("PROBLEM: {}: {why}", name_of(role)));
        }
        if role["status"]["disk_full"] == true {
            let why =
                "its disk has no room, so that writes are refused: make room where its data_dir is";
            wrong.push(format!("PROBLEM: {}: {why}", name_of(role)));
        }
    }
    let mut switches = roles.iter().filter(|role| is_switch(role) && role["reachable"] == true);
    let is_idle = |role: &Value| role["status"]["stands_by"] == true;
    if switches.clone().next().is_some() && switches.all(is_idle) {
        wrong.push("no switch is active: all that are reachable stand by".to_string());
    }
    wrong.extend(roles.iter().flat_map(clock_problems));
    for group in groups {
        let own = roles.iter().filter(|role| role["group"] == group.name);
        let members: Vec<&Value> = own.map(|role| &role["status"]).collect();
        wrong.extend(systems::of(group.kind).wrong(group, &members));
    }
    let controller = roles.iter().find(|role| role["role"] == "controller");
    let Some(status) = controller.map(|c| &c["status"]).filter(|s| s.is_object()) else {
        return wrong;
    };
    if let Some(problem) = status["problem"].as_str() {
        wrong.push(format!("PROBLEM: {problem}"));
    } else if status["disk_full"] == true {
        let why = "the disk of its state has no room: it acts with what it held back, and not at all once that is \
                   gone: make room where `state` is";
        wrong.push(format!("PROBLEM: controller: {why}"));
    }
    for group in groups {
        let told = status["groups"].as_array().into_iter().flatten();
        let own = told.clone().find(|told| told["group"] == group.id.0);
        let Some(own) = own else { continue };
        wrong.extend(other_program(group, own));
        wrong.extend(unheard(group, own, roles));
        let Some(members) = own["members"].as_array() else { continue };
        let outside = |node: &u16| !members.iter().any(|m| m.as_u64() == Some((*node).into()));
        let replicas = group.replicas.iter().map(|r| r.node).filter(outside);
        let workers = group.workers.iter().map(|w| w.node).filter(outside);
        // Spares are no members while the chain is as long as it should be.
        let is_short = members.len() < group.chain_length();
        let switches = group.switches.iter().filter(|_| is_short).map(|s| s.node).filter(outside);
        let replicas = replicas.map(|node| group.member_name("replica", node));
        let nodes = group.nodes.iter().map(|n| n.node).filter(outside);
        let nodes = nodes.map(|node| group.member_name("node", node));
        let workers = workers.map(|node| group.member_name("worker", node));
        let switches = switches.map(|node| group.member_name("switch", node));
        // A worker that is drained leaves because it was told to.
        let drains = |name: &String| {
            let is_its = |role: &&Value| role["name"] == name.as_str();
            roles.iter().find(is_its).is_some_and(|role| role["status"]["draining"] == true)
        };
        let names = replicas.chain(workers).chain(nodes).chain(switches);
        let names = names.filter(|name| !drains(name));
        let fixed = keeps_its_members(group, members);
        wrong.extend(names.map(|name| match &fixed {
            Some(fixed) => format!("{name} is not a member, and will not be one: {fixed}"),
            None => format!("{name} is not a member"),
        }));
        wrong.extend(not_in_file(group, members));
    }
    wrong
}

/// The text of a problem that does not change by waiting.
const KEEPS: &str = "group keeps the replicas that it began with";

/// The reason why no replica joins a group that decides by majority and has begun.
fn keeps_its_members(group: &Group<'_>, members: &[Value]) -> Option<String> {
    let is_fixed = group.kind == Kind::Replicas && group.protocol.has_leader();
    let numbers: Vec<String> = members.iter().map(Value::to_string).collect();
    let (protocol, numbers) = (group.protocol.name(), numbers.join(" "));
    (is_fixed && !members.is_empty()).then(|| {
        format!("a {protocol} {KEEPS} ({numbers}); a group with others begins with a backup")
    })
}

/// Members that the rack file does not name.
fn not_in_file(group: &Group<'_>, members: &[Value]) -> Vec<String> {
    if group.kind != Kind::Replicas {
        return Vec::new();
    }
    let nodes = members.iter().filter_map(|node| u16::try_from(node.as_u64()?).ok());
    let is_missing = |node: &u16| !group.replicas.iter().any(|replica| replica.node == *node);
    nodes.filter(is_missing).filter_map(|node| store::missing_in_file(group, node)).collect()
}

/// The median and the 99th percentile of the samples between two looks, in ms, for each histogram;
/// null if there were none. They are upper bounds, at most twice the true value.
fn latencies(before: Option<&Value>, now: &Value) -> Value {
    let empty = Map::new();
    let histograms = now["histograms"].as_object().unwrap_or(&empty);
    let each = histograms.iter().map(|(name, now)| {
        let earlier = before.map(|before| &before["histograms"][name]);
        let seen = |h: &Value, at: usize| h["buckets"][at][1].as_u64().unwrap_or(0);
        let counted = |h: &Value| h["count"].as_u64().unwrap_or(0);
        let count = counted(now).saturating_sub(earlier.map_or(0, counted));
        let bounds = now["buckets"].as_array().map_or(0, Vec::len);
        let percentile_ms = |percent: u64| {
            let wanted = (count * percent).div_ceil(100);
            let reached = |at: &usize| {
                seen(now, *at).saturating_sub(earlier.map_or(0, |h| seen(h, *at))) >= wanted
            };
            let at = (0..bounds).find(reached).filter(|_| count > 0)?;
            Some(now["buckets"][at][0].as_f64()? * 1_000.0)
        };
        let value =
            json!({"count": count, "p50_ms": percentile_ms(50), "p99_ms": percentile_ms(99)});
        (name.clone(), value)
    });
    Value::Object(each.collect())
}

/// The rate per second of every counter that changed.
fn rates(before: Option<&Value>, now: &Value, seconds: f64) -> Value {
    let mut rates = Map::new();
    if let (Some(before), Some(counters)) = (before, now["counters"].as_object()) {
        for name in counters.keys() {
            let moved = counter(now, name) - counter(before, name);
            if moved > 0.0 {
                rates.insert(name.clone(), json!((moved / seconds * 10.0).round() / 10.0));
            }
        }
    }
    Value::Object(rates)
}

/// Prints to standard output; a reader that closes the pipe is no error.
///
/// # Errors
/// The system's.
pub fn print(text: &str) -> Result<(), Error> {
    match std::io::stdout().write_all(text.as_bytes()) {
        Err(e) if e.kind() != ErrorKind::BrokenPipe => Err(e).cannot("write to standard output"),
        Ok(()) | Err(_) => Ok(()),
    }
}

fn is_switch(role: &Value) -> bool {
    matches!(role["role"].as_str(), Some("switch" | "standby"))
}

fn name_of(role: &Value) -> &str {
    role["name"].as_str().unwrap_or("?")
}

fn describe_all(report: &Value) -> String {
    let text = |v: &Value| v.as_str().unwrap_or("?").to_string();
    let mut out = String::new();
    let groups = report["groups"].as_array().into_iter().flatten();
    let width = if groups.clone().count() > 1 { 24 } else { 12 };
    for group in groups {
        let system = systems::all().find(|system| system.kind().name() == group["kind"]);
        let name = group["name"].as_str().filter(|name| *name != STORE);
        let of = name.map_or(String::new(), |name| format!("{name}: "));
        let words = |system: &dyn systems::System| system.describe_group(group);
        out += &format!("{of}{}\n", system.map_or(String::new(), words));
    }
    out += "\n";
    for role in report["roles"].as_array().into_iter().flatten() {
        let line = match role["reachable"].as_bool() {
            Some(true) => describe(role),
            Some(false) => "NOT REACHABLE".to_string(),
            None => "not asked: it has no http in the rack file".to_string(),
        };
        out += &format!("  {:<width$} {:<22} {line}\n", name_of(role), text(&role["addr"]));
    }
    let lines = |key: &str| report[key].as_array().into_iter().flatten().map(text);
    for (i, (line, section)) in lines("wrong").zip(lines("help")).enumerate() {
        let gap = if i == 0 { "\n" } else { "" };
        out += &format!("{gap}  {line}\n    see {section}\n");
    }
    out
}

/// The description of a role that answered, in one line.
fn describe(role: &Value) -> String {
    let status = &role["status"];
    match role["role"].as_str() {
        Some("controller") => describe_controller(status),
        Some("switch" | "standby") if status["stands_by"] == true => "stands by".to_string(),
        Some("switch" | "standby") => describe_switch(status),
        _ => systems::all().find_map(|system| system.describe(role)).unwrap_or_default(),
    }
}

/// The position of a switch in its chain.
fn where_in_chain(chain: &Value) -> String {
    let number = |name: &str| chain[name].as_u64();
    let (Some(index), Some(length)) = (number("index"), number("length")) else {
        return "no member".to_string();
    };
    let which = match (index, index + 1 == length) {
        (0, true) => "alone".to_string(),
        (0, false) => format!("head of {length}"),
        (_, true) => format!("tail of {length}"),
        (_, false) => format!("{} of {length}", index + 1),
    };
    let how = if chain["open"] == true { "open" } else { "not open" };
    format!("{which}, epoch {}, {how}", chain["epoch"])
}

/// The programs of a switch's groups.
fn describe_switch(status: &Value) -> String {
    let programs = status["programs"].as_array().into_iter().flatten();
    let each = programs.map(|program| {
        let of = match (program["name"].as_str(), &program["group"]) {
            (_, group) if *group == 0 => String::new(),
            (name, _) => format!("{}: ", name.unwrap_or("?")),
        };
        let mut line = format!(
            "{of}epoch {}, switch id {}, {}",
            program["epoch"],
            program["switch_id"],
            if program["ready"] == true { "ready" } else { "not ready" },
        );
        let gauge = |name: &str| program["gauges"][name].as_f64();
        if let Some(keys) = gauge("chain_keys") {
            return format!("{of}{}, {keys} keys", where_in_chain(&status["chain"]));
        }
        if let (Some(taken), Some(all)) = (gauge("dirty_set_occupied"), gauge("dirty_set_slots")) {
            line += &format!(", dirty set {taken} of {all} slots");
        }
        if let (Some(tasks), Some(idle)) = (gauge("queue_tasks"), gauge("queue_executors")) {
            line += &format!(", {tasks} tasks in the queue, {idle} executors wait");
        }
        line
    });
    each.collect::<Vec<_>>().join("; ")
}

/// "p50 0.13 p99 0.52 ms", or "none" if there were no samples.
#[must_use]
pub fn latency(seen: &Value) -> String {
    match (seen["p50_ms"].as_f64(), seen["p99_ms"].as_f64()) {
        (Some(p50), Some(p99)) => format!("p50 {p50:.2} p99 {p99:.2} ms"),
        _ => "none".to_string(),
    }
}

/// The epochs and members of the controller's groups.
fn describe_controller(status: &Value) -> String {
    let groups = status["groups"].as_array().into_iter().flatten();
    let each = groups.map(|group| {
        let nodes = |name: &str| -> Vec<String> {
            group[name].as_array().into_iter().flatten().map(ToString::to_string).collect()
        };
        let of = match (group["name"].as_str(), &group["group"]) {
            (_, group) if *group == 0 => String::new(),
            (name, _) => format!("{}: ", name.unwrap_or("?")),
        };
        let mut line = format!(
            "{of}epoch {}, switch id {}, {} {}",
            group["epoch"],
            group["switch_id"],
            group["kind"].as_str().unwrap_or("members"),
            nodes("members").join(" ")
        );
        if !nodes("joining").is_empty() {
            line += &format!(", joining {}", nodes("joining").join(" "));
        }
        line
    });
    let mut line = each.collect::<Vec<_>>().join("; ");
    if let Some(problem) = status["problem"].as_str() {
        line += &format!("; PROBLEM: {problem}");
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::systems::store::ReplicaPlace;

    fn replica(fast: u64, slow: u64) -> Value {
        json!({"role": "replica", "node": 1, "addr": "127.0.0.1:1", "counters": {"reads_fast": fast, "reads_slow": slow},
               "gauges": {"keys": 3.0}, "phase": "open", "place": "tail", "epoch": 1,
               "leased": true})
    }

    #[test]
    fn the_report_has_shares_rates_and_who_is_gone() {
        let rack = Rack::default();
        let addr = "127.0.0.1:1".parse().unwrap();
        let http = Some("127.0.0.1:2".parse().unwrap());
        let role = |node, http| Role::member(&rack.store(), "replica", node, addr, http);
        let roles = [role(1, http), role(2, http), role(3, None)];
        let before = [Some(replica(10, 0)), None, None];
        let after = [Some(replica(30, 10)), None, None];
        let report = report(&rack, &roles, &before, &after, 2.0).unwrap();
        assert_eq!(report["fast_read_share"], json!(0.75));
        assert_eq!(report["clean_read_share"], Value::Null);
        assert_eq!(report["roles"][0]["rates"], json!({"reads_fast": 10.0, "reads_slow": 5.0}));
        assert_eq!(report["roles"][1]["reachable"], json!(false));
        assert_eq!(report["roles"][1]["status"], Value::Null);
        // A role without an HTTP port is not queried, so that its state is unknown.
        assert_eq!(report["roles"][2]["reachable"], Value::Null);
        assert_eq!(report["wrong"], json!(["replica 2 is not reachable"]));
        let line = describe(&report["roles"][0]);
        assert!(line.starts_with("open, tail, epoch 1, leased, 3 keys, 10 fast"), "{line}");
        let mut durable = report["roles"][0].clone();
        durable["status"]["log_bytes"] = json!(2_340_000);
        durable["status"]["last_sync_ns"] = json!(1_250_000);
        let line = describe(&durable);
        assert!(line.ends_with("writes/s, 2.3 MB on disk, synced in 1.2 ms"), "{line}");
        let mut craq = report["roles"][0].clone();
        craq["status"]["counters"]["reads_clean"] = json!(7);
        craq["rates"]["reads_clean"] = json!(5.0);
        assert!(describe(&craq).contains("5 clean and 0 dirty reads/s"));
        let joining = json!({"role": "replica", "status": {"phase": "joining", "place": "joining",
                             "copied_percent": 43, "epoch": 3, "gauges": {}}});
        assert!(describe(&joining).starts_with("joining, 43% copied, epoch 3, no lease"));
        let gateway = json!({"role": "gateway", "status": {"gauges": {"connections_open": 1}},
                             "latencies": {"read_seconds": {"p50_ms": 0.12, "p99_ms": 0.9}}});
        let line = "1 connections, 0 commands/s, reads p50 0.12 p99 0.90 ms, writes none";
        assert_eq!(describe(&gateway), line);
        let controller = json!({"role": "controller", "status": {"problem": null, "groups": [
            {"group": 0, "name": "store", "kind": "replicas", "epoch": 3, "switch_id": 1,
             "members": [1, 3], "joining": [2]}]}});
        assert_eq!(describe(&controller), "epoch 3, switch id 1, replicas 1 3, joining 2");
    }

    #[test]
    fn whoever_else_answers_in_a_roles_place_is_not_believed() {
        let rack = Rack::default();
        let udp = "10.0.0.3:7003".parse().unwrap();
        let http = "10.0.0.3:8003".parse().unwrap();
        let role = Role::member(&rack.store(), "replica", 2, udp, Some(http));
        let told = |role: &str, node: u16, addr: &str| json!({"role": role, "node": node, "addr": addr, "counters": {}});
        let asked = [Some(told("replica", 2, "10.0.0.3:7003"))];
        let own = report(&rack, std::slice::from_ref(&role), &asked, &asked, 1.0).unwrap();
        assert_eq!(own["wrong"], json!([]), "{own}");
        for (who, line) in [
            (told("replica", 2, "10.0.0.9:7003"), "answers replica 2 of 10.0.0.9:7003, which is"),
            (told("replica", 3, "10.0.0.3:7003"), "answers replica 3 of 10.0.0.3:7003, which is"),
            (told("gateway", 2, "10.0.0.3:7003"), "answers gateway 2 of 10.0.0.3:7003, which is"),
            (json!({"status": "ok"}), "what answers at 10.0.0.3:8003 is no role of a rack"),
            (json!([]), "what answers at 10.0.0.3:8003 is no role of a rack"),
        ] {
            let asked = [Some(who)];
            let report = report(&rack, std::slice::from_ref(&role), &asked, &asked, 1.0).unwrap();
            let wrong = report["wrong"][0].as_str().unwrap();
            assert!(wrong.starts_with("replica 2 is not reachable: "), "{wrong}");
            assert!(wrong.contains(line), "{wrong}");
            assert_eq!(report["roles"][0]["status"], Value::Null);
        }
        let standby = Role::new("standby", 2, udp, Some(http));
        assert_eq!(standby.stranger(&told("switch", 2, "10.0.0.3:7003")), None);
    }

    #[test]
    fn what_is_wrong_is_said_and_what_is_not_is_not() {
        let place = |node: u16| {
            let addr = "127.0.0.1:1".parse().unwrap();
            let (http, directory, data_dir, cpu_share) = (None, None, None, None);
            ReplicaPlace { node, addr, http, directory, data_dir, cpu_share }
        };
        let rack = Rack { replica: vec![place(1), place(2)], ..Rack::default() };
        let wrong = |roles: &[Value]| super::wrong(&rack.groups().unwrap(), roles);
        let controller = |members: &[u16], problem: Option<&str>| {
            let groups = json!([{"group": 0, "members": members}]);
            vec![json!({"role": "controller", "node": 1, "reachable": true,
                        "status": {"groups": groups, "problem": problem}})]
        };
        assert_eq!(wrong(&controller(&[1, 2], None)), Vec::<String>::new());
        let both = wrong(&controller(&[1], Some("p")));
        assert_eq!(both, ["PROBLEM: p", "replica 2 is not a member"]);
        let drained = json!({"name": "replica 2", "reachable": true, "status": {"draining": true}});
        let drained = [&controller(&[1], None)[..], &[drained]].concat();
        assert_eq!(wrong(&drained), Vec::<String>::new());
        let clocks = |wall: f64, log: f64| {
            let gauges = json!({"wall_clock_ahead_seconds": wall, "log_behind_seconds": log});
            vec![json!({"role": "replica", "node": 2, "name": "replica 2", "reachable": true,
                        "status": {"gauges": gauges}})]
        };
        let disk = json!({"role": "replica", "node": 2, "name": "replica 2", "reachable": true,
                          "status": {"gauges": {}, "disk_failed": true}});
        assert!(wrong(&[disk])[0].starts_with("PROBLEM: replica 2: its disk failed"));
        let disk = json!({"role": "replica", "node": 2, "name": "replica 2", "reachable": true,
                          "status": {"gauges": {}, "scrub_damage": "a file: damaged"}});
        let line = "PROBLEM: replica 2: its log on disk is damaged, and another snapshot takes its place: a file: damaged";
        assert_eq!(wrong(&[disk]), [line]);
        let disk = json!({"role": "replica", "node": 2, "name": "replica 2", "reachable": true,
                          "status": {"gauges": {}, "disk_waits_ns": 3_200_000_000_u64}});
        assert!(
            wrong(&[disk])[0].starts_with("PROBLEM: replica 2: its disk has not answered for 3 s")
        );
        let disk = json!({"role": "replica", "node": 2, "name": "replica 2", "reachable": true,
                          "status": {"gauges": {}, "disk_full": true}});
        assert!(wrong(&[disk])[0].starts_with("PROBLEM: replica 2: its disk has no room"));
        assert_eq!(wrong(&clocks(-0.999, 0.999)), Vec::<String>::new());
        let switch = |role: &str, stands_by: bool| {
            json!({"role": role, "node": 1, "name": role, "reachable": true,
                   "status": {"gauges": {}, "stands_by": stands_by}})
        };
        assert_eq!(
            wrong(&[switch("switch", true), switch("standby", false)]),
            Vec::<String>::new()
        );
        let idle = wrong(&[switch("switch", true), switch("standby", true)]);
        assert_eq!(idle, ["no switch is active: all that are reachable stand by"]);
        let problems = wrong(&clocks(86_400.0, -2.5));
        let set =
            "PROBLEM: the wall clock of replica 2 was set, by 86400.0 s; its time follows slowly";
        assert_eq!(problems[0], set);
        assert!(problems[1].contains("-2.5 s behind the clock of replica 2"), "{}", problems[1]);
    }

    /// A node that the controller does not hear, and a different protocol, are problems.
    #[test]
    fn bug_16_22_unheard_nodes_and_other_protocol_are_problems() {
        let text = "protocol = \"primary-backup\"\n[[replica]]\nnode = 1\naddr = \"127.0.0.1:1\"\n";
        let rack = Rack::parse(text).unwrap();
        let replica = json!({"role": "replica", "node": 1, "group": "store", "name": "replica 1", "reachable": true,
                             "status": {"gauges": {}}});
        let wrong = |known: Value, protocol: Value, program: Value| {
            let groups = json!([{"group": 0, "members": [1], "replicas": known, "protocol": protocol,
                                 "program": program}]);
            let controller = json!({"role": "controller", "node": 1, "reachable": true,
                                    "status": {"groups": groups}});
            super::wrong(&rack.groups().unwrap(), &[replica.clone(), controller])
        };
        let heard = json!([{"node": 1}]);
        let runs =
            |protocol: &str, program: &str| wrong(heard.clone(), protocol.into(), program.into());
        assert_eq!(runs("PrimaryBackup", "harmonia"), Vec::<String>::new());
        assert_eq!(wrong(heard.clone(), Value::Null, Value::Null), Vec::<String>::new());
        let line = &runs("Chain", "harmonia")[0];
        assert!(line.contains("runs PrimaryBackup") && line.contains("it runs Chain"), "{line}");
        assert!(runs("PrimaryBackup", "forward")[0].contains("it runs PrimaryBackup with forward"));
        let unheard = wrong(json!([]), Value::Null, Value::Null);
        assert!(
            unheard[0].starts_with("PROBLEM: replica 1 runs, and the controller does not hear it")
        );
    }

    #[test]
    fn bug_19_10_a_majority_that_lost_what_it_promised_is_a_problem() {
        let text = |protocol: &str| {
            let replica = |n: u16| format!("[[replica]]\nnode = {n}\naddr = \"127.0.0.1:{n}\"\n");
            format!("protocol = \"{protocol}\"\n{}{}{}", replica(1), replica(2), replica(3))
        };
        let role = |node: u16, place: &str| {
            json!({"role": "replica", "node": node, "group": "store", "name": format!("replica {node}"),
                   "reachable": true, "status": {"node": node, "gauges": {}, "place": place}})
        };
        let wrong = |protocol: &str, third: &str| {
            let rack = Rack::parse(&text(protocol)).unwrap();
            let roles = [role(1, "recovering"), role(2, "view change"), role(3, third)];
            super::wrong(&rack.groups().unwrap(), &roles)
        };
        let line = &wrong("vr", "recovering")[0];
        assert!(
            line.starts_with("PROBLEM: replicas 1 and 3 of 3 have lost what they had promised")
        );
        assert_eq!(wrong("vr", "returning"), Vec::<String>::new());
        assert_eq!(wrong("chain", "recovering"), Vec::<String>::new());
    }

    /// Latencies are those of the interval, and null if it has no samples.
    #[test]
    fn latencies_are_of_the_interval() {
        let counted = |buckets: [u64; 3], count: u64| {
            let buckets: Vec<_> = [0.001, 0.002, 0.004].iter().zip(buckets).collect();
            json!({"histograms": {"write_seconds": {"count": count, "buckets": buckets}}})
        };
        let (before, now) = (counted([50, 50, 50], 50), counted([50, 148, 150], 150));
        let seen = &latencies(Some(&before), &now)["write_seconds"];
        assert_eq!(*seen, json!({"count": 100, "p50_ms": 2.0, "p99_ms": 4.0}));
        let none = &latencies(Some(&now), &now)["write_seconds"];
        assert_eq!(*none, json!({"count": 0, "p50_ms": null, "p99_ms": null}));
        assert_eq!(latency(none), "none");
        assert_eq!(latency(seen), "p50 2.00 p99 4.00 ms");
    }

    /// A role that is busy for long is not taken for one that is gone.
    #[test]
    fn bug_24_13_a_busy_role_is_said_to_be_busy() {
        let said = "HTTP/1.1 503 Service Unavailable: the role does not answer: its event loop is busy, for at \
                    least 2.0 s";
        let status = busy(said).unwrap();
        let role = Role::new("replica", 2, "127.0.0.1:1".parse().unwrap(), None);
        let busy = "its event loop is busy, for at least 2.0 s";
        assert_eq!(role.stranger(&status).as_deref(), Some(busy));
        assert!(super::busy("connection refused").is_none());
    }
}
