//! `concord status` and `concord explain`: what a running rack says of itself.

use std::io::{ErrorKind, Write};
use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use concord_runtime::{Context, Error};
use serde_json::{Map, Value, json};

use crate::cli::{ExplainArgs, StatusArgs, WaitArgs};
use crate::net::{Redis, Reply, http_get};
use crate::rack::Rack;

const ASK_TIMEOUT: Duration = Duration::from_millis(1_500);
const WAIT_INTERVAL: Duration = Duration::from_millis(50);
const EXPLAIN_TIMEOUT: Duration = Duration::from_secs(10);

/// A role of the rack, and where it says how it is.
struct Role {
    name: &'static str,
    node: u16,
    addr: String,
    http: Option<SocketAddr>,
}

/// `concord status`: 0 if all is well, 1 if a role does not answer, a replica is missing, or the
/// controller has a PROBLEM.
///
/// # Errors
/// One line for a person; roles that do not answer are shown as such, and are no error.
pub fn run(args: &StatusArgs) -> Result<ExitCode, Error> {
    let rack = Rack::read(&args.config)?;
    let roles = roles(&rack);
    let started = Instant::now();
    let before = ask_all(&roles);
    std::thread::sleep(Duration::from_millis(args.interval_ms));
    let after = ask_all(&roles);
    let report = report(&rack, &roles, &before, &after, started.elapsed().as_secs_f64());
    print(&if args.json { format!("{report:#}\n") } else { describe_all(&report) })?;
    let is_well = report["wrong"].as_array().is_some_and(Vec::is_empty);
    Ok(if is_well { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// `concord wait`: until nothing is wrong, or the time is over.
///
/// # Errors
/// One line with what is still wrong when the time is over.
pub fn wait(args: &WaitArgs) -> Result<(), Error> {
    let rack = Rack::read(&args.config)?;
    let roles = roles(&rack);
    let started = Instant::now();
    loop {
        let seen = ask_all(&roles);
        let report = report(&rack, &roles, &seen, &seen, 1.0);
        let wrong: Vec<_> =
            report["wrong"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        if wrong.is_empty() {
            return Ok(());
        }
        if started.elapsed() >= Duration::from_secs(args.timeout_s) {
            let seconds = args.timeout_s;
            return Err(Error::new(format!("not well after {seconds} s: {}", wrong.join("; "))));
        }
        std::thread::sleep(WAIT_INTERVAL);
    }
}

fn roles(rack: &Rack) -> Vec<Role> {
    let mut roles = Vec::new();
    if let Some(c) = &rack.controller {
        roles.push(Role { name: "controller", node: 1, addr: c.addr.to_string(), http: c.http });
    }
    if let Some(s) = &rack.switch {
        roles.push(Role { name: "switch", node: 1, addr: s.addr.to_string(), http: s.http });
    }
    for s in &rack.standby {
        let addr = s.addr.to_string();
        roles.push(Role { name: "standby", node: s.node, addr, http: s.http });
    }
    for r in &rack.replica {
        let addr = r.addr.to_string();
        roles.push(Role { name: "replica", node: r.node, addr, http: r.http });
    }
    for g in &rack.gateway {
        let addr = g.listen.to_string();
        roles.push(Role { name: "gateway", node: g.node, addr, http: g.http });
    }
    roles
}

/// The `/status` of each, at the same time; `None` for who does not answer.
fn ask_all(roles: &[Role]) -> Vec<Option<Value>> {
    let ask = |http: Option<SocketAddr>| {
        let body = http_get(http?, "/status", ASK_TIMEOUT).ok()?;
        serde_json::from_slice(&body).ok()
    };
    std::thread::scope(|scope| {
        let asked: Vec<_> = roles.iter().map(|role| scope.spawn(move || ask(role.http))).collect();
        asked.into_iter().map(|thread| thread.join().ok().flatten()).collect()
    })
}

fn counter(status: &Value, name: &str) -> f64 {
    status["counters"][name].as_f64().unwrap_or(0.0)
}

/// What is shown, as one JSON object.
fn report(
    rack: &Rack,
    roles: &[Role],
    before: &[Option<Value>],
    after: &[Option<Value>],
    seconds: f64,
) -> Value {
    let (mut shown, mut fast, mut slow) = (Vec::new(), 0.0, 0.0);
    let (mut clean, mut dirty) = (0.0, 0.0);
    for (i, role) in roles.iter().enumerate() {
        let mut entry = Map::new();
        entry.insert("role".to_string(), role.name.into());
        entry.insert("node".to_string(), role.node.into());
        entry.insert("addr".to_string(), role.addr.clone().into());
        entry.insert("reachable".to_string(), after[i].is_some().into());
        if let (Some(now), "replica") = (&after[i], role.name) {
            fast += counter(now, "reads_fast");
            slow += counter(now, "reads_slow");
            clean += counter(now, "reads_clean");
            dirty += counter(now, "reads_dirty");
        }
        let none = Value::Null;
        let now = after[i].as_ref().unwrap_or(&none);
        entry.insert("rates".to_string(), rates(before[i].as_ref(), now, seconds));
        entry.insert("latencies".to_string(), latencies(before[i].as_ref(), now));
        entry.insert("status".to_string(), now.clone());
        shown.push(Value::Object(entry));
    }
    let wrong = wrong(rack, &shown);
    let share = |some: f64, others: f64| {
        if some + others > 0.0 { json!(some / (some + others)) } else { Value::Null }
    };
    json!({
        "protocol": rack.protocol,
        "accel": rack.accel,
        "engine": rack.engine,
        "fast_read_share": share(fast, slow),
        "clean_read_share": share(clean, dirty),
        "interval_seconds": seconds,
        "wrong": wrong,
        "roles": shown,
    })
}

/// A clock that is wrong by more is a PROBLEM, in seconds.
const CLOCK_ERROR_SECONDS: f64 = 1.0;

/// Clocks that a role does not believe, or only follows.
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

/// What needs somebody's attention: a line each.
fn wrong(rack: &Rack, roles: &[Value]) -> Vec<String> {
    let mut wrong = Vec::new();
    for role in roles.iter().filter(|role| role["reachable"] == false) {
        wrong.push(format!("{} is not reachable", name_of(role)));
    }
    for role in roles.iter().filter(|role| role["role"] != "controller") {
        if let Some(why) = role["status"]["unhealthy"].as_str() {
            wrong.push(format!("{}: {why}", name_of(role)));
        }
    }
    wrong.extend(roles.iter().flat_map(clock_problems));
    let controller = roles.iter().find(|role| role["role"] == "controller");
    let Some(status) = controller.map(|c| &c["status"]).filter(|s| s.is_object()) else {
        return wrong;
    };
    if let Some(problem) = status["problem"].as_str() {
        wrong.push(format!("PROBLEM: {problem}"));
    }
    let Some(members) = status["members"].as_array() else { return wrong };
    for replica in &rack.replica {
        if !members.iter().any(|m| m.as_u64() == Some(replica.node.into())) {
            wrong.push(format!("replica {} is not a member", replica.node));
        }
    }
    wrong
}

/// The median and the 99th percentile of what was counted between two looks, in ms, for each
/// histogram; null where nothing was. They are upper bounds, within a doubling.
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

/// Per second, of every counter that moved.
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

/// Prints, and takes no offence at a reader that has seen enough.
///
/// # Errors
/// The system's.
pub fn print(text: &str) -> Result<(), Error> {
    match std::io::stdout().write_all(text.as_bytes()) {
        Err(e) if e.kind() != ErrorKind::BrokenPipe => Err(e).cannot("write to standard output"),
        Ok(()) | Err(_) => Ok(()),
    }
}

fn name_of(role: &Value) -> String {
    match role["role"].as_str() {
        Some(name @ ("standby" | "replica" | "gateway")) => format!("{name} {}", role["node"]),
        name => name.unwrap_or("?").to_string(),
    }
}

fn describe_all(report: &Value) -> String {
    let text = |v: &Value| v.as_str().unwrap_or("?").to_string();
    let mut out = format!(
        "{}, {}, {} engine\n",
        text(&report["protocol"]),
        text(&report["accel"]),
        text(&report["engine"])
    );
    let share = |name: &str| report[name].as_f64().map(|share| share * 100.0);
    out += &match (share("fast_read_share"), share("clean_read_share")) {
        (_, Some(clean)) => format!("reads of clean objects: {clean:.1}%\n\n"),
        (Some(fast), None) => format!("reads on the fast path: {fast:.1}%\n\n"),
        (None, None) => "no reads yet\n\n".to_string(),
    };
    for role in report["roles"].as_array().into_iter().flatten() {
        let line =
            if role["reachable"] == true { describe(role) } else { "NOT REACHABLE".to_string() };
        out += &format!("  {:<12} {:<22} {line}\n", name_of(role), text(&role["addr"]));
    }
    let wrong: Vec<_> = report["wrong"].as_array().into_iter().flatten().map(text).collect();
    if !wrong.is_empty() {
        out += &format!("\n  {}\n", wrong.join("\n  "));
    }
    out
}

/// One line about a role that answered.
fn describe(role: &Value) -> String {
    let status = &role["status"];
    let gauge = |name: &str| status["gauges"][name].as_f64().unwrap_or(0.0);
    let rate = |name: &str| role["rates"][name].as_f64().unwrap_or(0.0);
    match role["role"].as_str() {
        Some("controller") => describe_controller(status),
        Some("standby") if status["switch_id"] == 0 => "stands by".to_string(),
        Some("switch" | "standby") => format!(
            "epoch {}, switch id {}, {}, dirty set {} of {} slots",
            status["epoch"],
            status["switch_id"],
            if status["ready"] == true { "ready" } else { "not ready" },
            gauge("dirty_set_occupied"),
            gauge("dirty_set_slots"),
        ),
        Some("replica") => format!(
            "{}, epoch {}, {}, {} keys, {}, {:.0} writes/s",
            where_it_stands(status),
            status["epoch"],
            if status["leased"] == true { "leased" } else { "no lease" },
            gauge("keys"),
            reads(role),
            rate("records_applied"),
        ),
        _ => format!(
            "{} connections, {:.0} commands/s, reads {}, writes {}",
            gauge("connections_open"),
            rate("commands"),
            latency(&role["latencies"]["read_seconds"]),
            latency(&role["latencies"]["write_seconds"]),
        ),
    }
}

/// "p50 0.13 p99 0.52 ms", or "none" where nothing was counted.
fn latency(seen: &Value) -> String {
    match (seen["p50_ms"].as_f64(), seen["p99_ms"].as_f64()) {
        (Some(p50), Some(p99)) => format!("p50 {p50:.2} p99 {p99:.2} ms"),
        _ => "none".to_string(),
    }
}

/// How a replica reads: by Harmonia and the normal protocol, or by CRAQ.
fn reads(role: &Value) -> String {
    let rate = |name: &str| role["rates"][name].as_f64().unwrap_or(0.0);
    let seen = |name: &str| counter(&role["status"], name) > 0.0;
    if seen("reads_clean") || seen("reads_dirty") {
        let (clean, dirty) = (rate("reads_clean"), rate("reads_dirty"));
        return format!("{clean:.0} clean and {dirty:.0} dirty reads/s");
    }
    format!("{:.0} fast and {:.0} slow reads/s", rate("reads_fast"), rate("reads_slow"))
}

fn describe_controller(status: &Value) -> String {
    let nodes = |name: &str| -> Vec<String> {
        status[name].as_array().into_iter().flatten().map(ToString::to_string).collect()
    };
    let mut line = format!(
        "epoch {}, switch id {}, replicas {}",
        status["epoch"],
        status["switch_id"],
        nodes("members").join(" ")
    );
    if !nodes("joining").is_empty() {
        line += &format!(", joining {}", nodes("joining").join(" "));
    }
    if let Some(problem) = status["problem"].as_str() {
        line += &format!("; PROBLEM: {problem}");
    }
    line
}

/// "open, tail", or "joining, 43% copied".
fn where_it_stands(status: &Value) -> String {
    let phase = status["phase"].as_str().unwrap_or("?");
    match status["copied_percent"].as_u64() {
        Some(percent) => format!("{phase}, {percent}% copied"),
        None => format!("{phase}, {}", status["place"].as_str().unwrap_or("?")),
    }
}

/// `concord explain`.
///
/// # Errors
/// One line for a person.
pub fn explain(args: &ExplainArgs) -> Result<(), Error> {
    let rack = match args.gateway {
        Some(_) if !args.config.exists() => Rack::default(),
        _ => Rack::read(&args.config)?,
    };
    let gateway = args.gateway.or(rack.gateway.first().map(|g| g.listen));
    let gateway = gateway.ok_or_else(|| Error::new("the rack file names no gateway"))?;
    let mut redis = Redis::connect(gateway, &rack.requirepass, EXPLAIN_TIMEOUT)
        .cannot(format!("ask the gateway at {gateway}"))?;
    let mut command: Vec<&[u8]> = vec![b"CONCORD", b"EXPLAIN"];
    command.extend(args.command.iter().map(String::as_bytes));
    match redis.call(&command).cannot(format!("ask the gateway at {gateway}"))? {
        Reply::Error(why) => Err(Error::new(why)),
        Reply::Array(fields) => {
            let line = |field: &[Reply]| {
                let texts: Vec<String> = field.iter().map(|f| f.lines().join("\n  ")).collect();
                texts.join(": ").replace('_', " ") + "\n"
            };
            print(&fields.chunks(2).map(line).collect::<String>())
        }
        reply @ Reply::Text(_) => print(&(reply.lines().join("\n") + "\n")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn replica(fast: u64, slow: u64) -> Value {
        json!({"role": "replica", "counters": {"reads_fast": fast, "reads_slow": slow},
               "gauges": {"keys": 3.0}, "phase": "open", "place": "tail", "epoch": 1,
               "leased": true})
    }

    #[test]
    fn the_report_has_shares_rates_and_who_is_gone() {
        let role = |node| Role { name: "replica", node, addr: "a".to_string(), http: None };
        let roles = [role(1), role(2)];
        let before = [Some(replica(10, 0)), None];
        let after = [Some(replica(30, 10)), None];
        let report = report(&Rack::default(), &roles, &before, &after, 2.0);
        assert_eq!(report["fast_read_share"], json!(0.75));
        assert_eq!(report["clean_read_share"], Value::Null);
        assert_eq!(report["roles"][0]["rates"], json!({"reads_fast": 10.0, "reads_slow": 5.0}));
        assert_eq!(report["roles"][1]["reachable"], json!(false));
        assert_eq!(report["roles"][1]["status"], Value::Null);
        assert_eq!(report["wrong"], json!(["replica 2 is not reachable"]));
        let line = describe(&report["roles"][0]);
        assert!(line.starts_with("open, tail, epoch 1, leased, 3 keys, 10 fast"), "{line}");
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
        let controller = json!({"role": "controller", "status": {"epoch": 3, "switch_id": 1,
                                "members": [1, 3], "joining": [2], "problem": null}});
        assert_eq!(describe(&controller), "epoch 3, switch id 1, replicas 1 3, joining 2");
    }

    #[test]
    fn what_is_wrong_is_said_and_what_is_not_is_not() {
        let place = |node: u16| {
            let addr = "127.0.0.1:1".parse().unwrap();
            crate::rack::ReplicaPlace {
                node,
                addr,
                http: None,
                directory: None,
                data_dir: None,
                cpu_share: None,
            }
        };
        let rack = Rack { replica: vec![place(1), place(2)], ..Rack::default() };
        let controller = |members: &[u16], problem: Option<&str>| {
            vec![json!({"role": "controller", "node": 1, "reachable": true,
                        "status": {"members": members, "problem": problem}})]
        };
        assert_eq!(wrong(&rack, &controller(&[1, 2], None)), Vec::<String>::new());
        let both = wrong(&rack, &controller(&[1], Some("p")));
        assert_eq!(both, ["PROBLEM: p", "replica 2 is not a member"]);
        let clocks = |wall: f64, log: f64| {
            let gauges = json!({"wall_clock_ahead_seconds": wall, "log_behind_seconds": log});
            vec![json!({"role": "replica", "node": 2, "reachable": true,
                        "status": {"gauges": gauges}})]
        };
        assert_eq!(wrong(&rack, &clocks(-0.999, 0.999)), Vec::<String>::new());
        let problems = wrong(&rack, &clocks(86_400.0, -2.5));
        let set =
            "PROBLEM: the wall clock of replica 2 was set, by 86400.0 s; its time follows slowly";
        assert_eq!(problems[0], set);
        assert!(problems[1].contains("-2.5 s behind the clock of replica 2"), "{}", problems[1]);
    }

    #[test]
    fn latencies_are_of_the_interval_and_of_nothing_where_nothing_was() {
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
}
