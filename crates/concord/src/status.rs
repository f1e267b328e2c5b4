//! `concord status` and `concord explain`: what a running rack says of itself.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use concord_runtime::{Context, Error};
use serde_json::{Map, Value, json};

use crate::cli::{ExplainArgs, StatusArgs};
use crate::net::{Redis, Reply, http_get};
use crate::rack::Rack;

const ASK_TIMEOUT: Duration = Duration::from_millis(1_500);
const EXPLAIN_TIMEOUT: Duration = Duration::from_secs(10);

/// A role of the rack, and where it says how it is.
struct Role {
    name: &'static str,
    node: u16,
    addr: String,
    http: Option<SocketAddr>,
}

/// `concord status`.
///
/// # Errors
/// One line for a person; roles that do not answer are shown as such, and are no error.
pub fn run(args: &StatusArgs) -> Result<(), Error> {
    let rack = Rack::read(&args.config)?;
    let roles = roles(&rack);
    let started = Instant::now();
    let before = ask_all(&roles);
    std::thread::sleep(Duration::from_millis(args.interval_ms));
    let after = ask_all(&roles);
    let report = report(&rack, &roles, &before, &after, started.elapsed().as_secs_f64());
    if args.json {
        println!("{report:#}");
    } else {
        print(&report);
    }
    Ok(())
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
        if let Some(now) = &after[i] {
            if role.name == "replica" {
                fast += counter(now, "reads_fast");
                slow += counter(now, "reads_slow");
                clean += counter(now, "reads_clean");
                dirty += counter(now, "reads_dirty");
            }
            entry.insert("rates".to_string(), rates(before[i].as_ref(), now, seconds));
            entry.insert("status".to_string(), now.clone());
        }
        shown.push(Value::Object(entry));
    }
    let share = |some: f64, others: f64| {
        if some + others > 0.0 { json!(some / (some + others)) } else { Value::Null }
    };
    json!({
        "protocol": rack.protocol,
        "accel": rack.accel,
        "engine": rack.engine,
        "fast_read_share": share(fast, slow),
        "clean_read_share": share(clean, dirty),
        "roles": shown,
    })
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

fn print(report: &Value) {
    let text = |v: &Value| v.as_str().unwrap_or("?").to_string();
    println!(
        "{}, {}, {} engine",
        text(&report["protocol"]),
        text(&report["accel"]),
        text(&report["engine"])
    );
    let share = |name: &str| report[name].as_f64().map(|share| share * 100.0);
    match (share("fast_read_share"), share("clean_read_share")) {
        (_, Some(clean)) => println!("reads of clean objects: {clean:.1}%"),
        (Some(fast), None) => println!("reads on the fast path: {fast:.1}%"),
        (None, None) => println!("no reads yet"),
    }
    println!();
    for role in report["roles"].as_array().into_iter().flatten() {
        let name = match role["role"].as_str() {
            Some(name @ ("standby" | "replica" | "gateway")) => format!("{name} {}", role["node"]),
            name => name.unwrap_or("?").to_string(),
        };
        let line =
            if role["reachable"] == true { describe(role) } else { "NOT REACHABLE".to_string() };
        println!("  {name:<12} {:<22} {line}", text(&role["addr"]));
    }
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
            "{} connections, {:.0} commands/s, {}, {}",
            gauge("connections_open"),
            rate("commands"),
            latencies(status, "read"),
            latencies(status, "write"),
        ),
    }
}

/// What a gateway's reads or writes took, if there were any.
fn latencies(status: &Value, class: &str) -> String {
    let ms = |percent: u8| {
        let us = status["gauges"][format!("{class}_p{percent}_us")].as_f64();
        us.unwrap_or(0.0) / 1_000.0
    };
    match status[format!("{class}s")].as_u64() {
        Some(0) => format!("no {class}s yet"),
        Some(_) | None => format!("{class}s p50 {:.2} p99 {:.2} ms", ms(50), ms(99)),
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
            for field in fields.chunks(2) {
                let texts: Vec<String> = field.iter().map(|f| f.lines().join("\n  ")).collect();
                println!("{}", texts.join(": ").replace('_', " "));
            }
            Ok(())
        }
        reply @ Reply::Text(_) => {
            println!("{}", reply.lines().join("\n"));
            Ok(())
        }
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
        let line = describe(&report["roles"][0]);
        assert!(line.starts_with("open, tail, epoch 1, leased, 3 keys, 10 fast"), "{line}");
        let mut craq = report["roles"][0].clone();
        craq["status"]["counters"]["reads_clean"] = json!(7);
        craq["rates"]["reads_clean"] = json!(5.0);
        assert!(describe(&craq).contains("5 clean and 0 dirty reads/s"));
        let joining = json!({"role": "replica", "status": {"phase": "joining", "place": "joining",
                             "copied_percent": 43, "epoch": 3, "gauges": {}}});
        assert!(describe(&joining).starts_with("joining, 43% copied, epoch 3, no lease"));
        let gateway = json!({"role": "gateway", "status": {"reads": 2, "writes": 0, "gauges":
                             {"connections_open": 1, "read_p50_us": 120.0, "read_p99_us": 900.0}}});
        let line = "1 connections, 0 commands/s, reads p50 0.12 p99 0.90 ms, no writes yet";
        assert_eq!(describe(&gateway), line);
        let controller = json!({"role": "controller", "status": {"epoch": 3, "switch_id": 1,
                                "members": [1, 3], "joining": [2], "problem": null}});
        assert_eq!(describe(&controller), "epoch 3, switch id 1, replicas 1 3, joining 2");
    }
}
