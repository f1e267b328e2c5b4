//! An operator's view of a rack: metrics, health, logs, status and its exit code.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::common::pages::{page, sources};
use crate::common::*;

/// The HTTP addresses of all roles, by the name of each.
fn http_addresses(rack: &Rack) -> Vec<(String, SocketAddr)> {
    let text = std::fs::read_to_string(rack.run.join("rack.toml")).unwrap();
    let file: toml::Table = text.parse().unwrap();
    let mut found = Vec::new();
    for (name, value) in file {
        let places = match value {
            toml::Value::Array(places) => places,
            one @ toml::Value::Table(_) => vec![one],
            _ => continue,
        };
        for place in places {
            let Some(http) = place.get("http").and_then(|http| http.as_str()) else { continue };
            found.push((name.clone(), http.parse().unwrap()));
        }
    }
    found
}

fn get(addr: SocketAddr, path: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(addr).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: {addr}\r\nConnection: close\r\n\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_string())
}

/// Debian's promtool finds nothing to say about the metrics of any role.
#[test]
fn promtool_finds_nothing_wrong_with_the_metrics_of_any_role() {
    let rack = Rack::start("metrics", &["--replicas", "2", "--durability", "fsync"]);
    assert_eq!(rack.client().say("SET k v"), "+OK");
    assert_eq!(rack.client().say("GET k"), "v");
    let addresses = http_addresses(&rack);
    assert_eq!(addresses.len(), 5, "{addresses:?}");
    let mut all = String::new();
    for (role, addr) in addresses {
        let (status, metrics) = get(addr, "/metrics");
        assert_eq!(status, 200);
        all += &metrics;
        let mut promtool = Command::new("promtool")
            .args(["check", "metrics"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("promtool is needed: scripts/install-test-packages installs it");
        promtool.stdin.take().unwrap().write_all(metrics.as_bytes()).unwrap();
        let output = promtool.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned()
            + &String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && said.is_empty(), "{role}: {said}");
        assert!(metrics.contains("process_resident_memory_bytes "));
        assert!(metrics.contains("concord_build_info{version="));
        assert_eq!(get(addr, "/health"), (200, "ok\n".to_string()), "{role}");
    }
    rules_name_metrics(&all);
}

/// The rules of docs/operate/alerts.md are valid for promtool, and name metrics that the roles of a
/// store have; of workers and owners they name counters that the sources have.
fn rules_name_metrics(metrics: &str) {
    let page = page("operate/alerts.md");
    let block = page.split("```yaml\n").find(|block| block.starts_with("groups:")).unwrap();
    let rules = block.split("```").next().unwrap();
    let place = directory("alerts");
    let file = place.join("rules.yml");
    std::fs::write(&file, rules).unwrap();
    let output = Command::new("promtool").args(["check", "rules"]).arg(&file).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let names = rules.split(|c| !is_part(c)).filter(|word| word.starts_with("concord_"));
    let (mut seen, sources) = (0, sources());
    // `concord_(...)_healthy` stands for that of every role.
    for name in names.filter(|name| *name != "concord_") {
        seen += 1;
        let of_tasks = name.strip_prefix("concord_worker_").or(name.strip_prefix("concord_owner_"));
        let stem = of_tasks.map(|n| n.trim_end_matches("_total").trim_end_matches("_bucket"));
        let is_there = match stem {
            Some(stem) => sources.contains(stem),
            None => metrics.contains(&format!("\n{name}{{")),
        };
        assert!(is_there, "no role has {name}");
    }
    assert!(seen > 15 && metrics.contains("\nconcord_gateway_healthy{"), "{seen}");
}

/// Whoever opens connections and says nothing keeps nobody else from a role's status.
#[test]
fn idle_connections_leave_status_reachable() {
    let rack = Rack::start("idle", &["--replicas", "1"]);
    for (role, addr) in http_addresses(&rack) {
        let mut idle = Vec::new();
        for _ in 0..2_000 {
            // The test's own descriptors are bounded too: the oldest make room.
            if idle.len() >= 500 {
                idle.remove(0);
            }
            idle.push(TcpStream::connect(addr).unwrap());
        }
        let (status, body) = get(addr, "/status");
        assert_eq!(status, 200, "{role}: {body}");
        drop(idle);
        assert_eq!(get(addr, "/status").0, 200, "{role}");
    }
}

/// Status fails when a role is gone and its end is in the controllers log.
#[test]
fn status_and_log_show_a_dead_role() {
    let rack = Rack::start("gone", &["--log-format", "json"]);
    assert!(concord(&["wait", "--config", &rack.file()]).status.success());
    assert!(concord(&["status", "--config", &rack.file()]).status.success());
    Rack::signal(rack.pid("replica-2"), "-9");
    until("epoch without the replica", || {
        let status = rack.status();
        let controller = &status["roles"][0]["status"];
        controller["members"] == serde_json::json!([1, 3])
    });
    let output = concord(&["status", "--config", &rack.file()]);
    assert!(!output.status.success());
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("replica 2 is not reachable"), "{text}");
    assert!(text.contains("replica 2 is not a member"), "{text}");
    let line = refused(&["wait", "--timeout", "1", "--config", &rack.file()]);
    assert!(line.contains("not well after 1 s: replica 2 is not reachable"), "{line}");
    let log = std::fs::read_to_string(rack.run.join("controller.log")).unwrap();
    let lines: Vec<serde_json::Value> =
        log.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let removed = lines.iter().find(|line| line["message"] == "replica removed").unwrap();
    assert_eq!(removed["replica"], 2);
    assert_eq!(removed["level"], "WARN");
    assert_eq!(removed["span"]["name"], "controller");
    let epoch = lines.iter().rfind(|line| line["message"] == "new epoch").unwrap();
    assert_eq!((&epoch["members"], &epoch["epoch"]), (&"1 3".into(), &removed["epoch"]));
}

#[test]
fn status_takes_a_closed_pipe_calmly() {
    let rack = Rack::start("pipe", &["--replicas", "1"]);
    let mut status = Command::new(CONCORD)
        .args(["status", "--json", "--config", &rack.file()])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(status.stdout.take());
    let output = status.wait_with_output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert!(output.stderr.is_empty(), "{output:?}");
}
