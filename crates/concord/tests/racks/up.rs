//! `concord` as a person meets it: real processes, real ports.

use std::net::TcpListener;
use std::path::Path;

use crate::common::*;

#[test]
fn bad_flags_and_files_are_one_line_and_a_failure() {
    let dir = directory("bad");
    let file = dir.join("rack.toml");
    let path = file.to_str().unwrap();
    std::fs::write(&file, "protocol = \"chain\"\nreplcas = 3\n").unwrap();
    let line = refused(&["up", "--config", path]);
    assert!(line.contains("rack.toml:2: unknown key `replcas`"), "{line}");
    assert!(refused(&["up", "--config", "/nowhere.toml"]).contains("cannot read /nowhere.toml"));
    assert!(refused(&["up", "--table-slots", "1000"]).contains("table:"));
    let line = refused(&["up", "--protocol", "craq"]);
    assert!(line.contains("craq runs without the switch's help: say --accel none"), "{line}");
    std::fs::write(&file, "").unwrap();
    assert!(refused(&["switch", "--config", path]).contains("[switch]"));
    assert!(refused(&["status", "--config", "/nowhere.toml"]).contains("/nowhere.toml"));
    assert!(!concord(&["up", "--replicas", "none"]).status.success());
}

#[test]
fn a_taken_port_is_one_line_and_leaves_nothing_running() {
    let dir = directory("taken");
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = taken.local_addr().unwrap().to_string();
    let line = refused(&["up", "--listen", &addr, "--run-dir", dir.to_str().unwrap()]);
    let expected = "address in use; choose another with --listen";
    assert_eq!(line, format!("concord: cannot listen on {addr}: {expected}"));
    assert!(!Path::new(&dir.join("pids")).exists());
}

#[test]
fn t3_a_second_controller_on_the_same_state_is_refused() {
    let rack = Rack::start("controller", &["--replicas", "1"]);
    let line = refused(&["controller", "--config", &rack.file()]);
    assert!(line.contains("another controller holds"), "{line}");
}

#[test]
fn when_up_is_killed_no_role_outlives_it() {
    let mut rack = Rack::start("killed", &["--replicas", "2"]);
    let pids = rack.pids();
    assert_eq!(pids.len(), 5);
    assert!(pids.iter().all(|(_, pid)| is_alive(*pid)));
    rack.up.kill().unwrap();
    rack.up.wait().unwrap();
    until("end of the roles", || pids.iter().all(|(_, pid)| !is_alive(*pid)));
}

#[test]
fn sigterm_stops_all_of_it_cleanly() {
    let mut rack = Rack::start("term", &["--replicas", "2"]);
    let pids = rack.pids();
    Rack::signal(rack.up.id(), "-TERM");
    assert!(rack.up.wait().unwrap().success());
    assert!(pids.iter().all(|(_, pid)| !is_alive(*pid)));
}

#[test]
fn ctrl_c_stops_all_of_it_cleanly() {
    use std::os::unix::process::CommandExt;
    let run = directory("ctrl-c");
    let listen = std::net::SocketAddr::from(([127, 0, 0, 1], free_ports()));
    // A terminal sends SIGINT to the whole foreground group, the roles included.
    let up = std::process::Command::new(CONCORD)
        .args(["up", "--replicas", "2", "--durability", "none", "--listen", &listen.to_string()])
        .arg("--run-dir")
        .arg(&run)
        .stdin(std::process::Stdio::null())
        .stdout(std::process::Stdio::null())
        .process_group(0)
        .spawn()
        .unwrap();
    let mut rack = Rack { up, run, listen };
    until("roles", || rack.run.join("pids").exists());
    until("service", || std::net::TcpStream::connect(listen).is_ok());
    // Both replicas run then, too.
    until("a write", || rack.client().say("SET k v") == "+OK");
    let roles = rack.pids();
    assert_eq!(roles.len(), 5);
    let group = format!("-{}", rack.up.id());
    let began = std::time::Instant::now();
    let kill = std::process::Command::new("kill").args(["-INT", "--", &group]).status().unwrap();
    assert!(kill.success());
    assert!(rack.up.wait().unwrap().success());
    println!("Ctrl-C: all ended after {:?}", began.elapsed());
    assert!(roles.iter().all(|(_, pid)| !is_alive(*pid)));
    // A replica that goes alone waits until the others go on without it. Here nobody does.
    for node in 1..=2 {
        let log = std::fs::read_to_string(rack.run.join(format!("replica-{node}.log"))).unwrap();
        assert!(log.contains("stopped") && !log.contains("leaves"), "{log}");
    }
}

#[test]
fn what_the_gateway_has_read_is_answered_before_it_ends() {
    use std::io::{Read, Write};
    let mut rack = Rack::start("drain", &[]);
    let mut client = std::net::TcpStream::connect(rack.listen).unwrap();
    client.write_all("SET key value\r\n".repeat(500).as_bytes()).unwrap();
    let mut first = [0; 5];
    client.read_exact(&mut first).unwrap();
    Rack::signal(rack.up.id(), "-TERM");
    let mut rest = String::new();
    client.read_to_string(&mut rest).unwrap();
    assert_eq!(rest, "+OK\r\n".repeat(499));
    assert!(rack.up.wait().unwrap().success());
}

#[test]
fn when_up_is_killed_no_redis_server_outlives_it() {
    let mut rack = Rack::start("killed-redis", &["--replicas", "2", "--engine", "redis"]);
    let replicas = [rack.pid("replica-1"), rack.pid("replica-2")];
    let servers: Vec<u32> = replicas.iter().flat_map(|pid| children(*pid)).collect();
    assert_eq!(servers.len(), 2);
    rack.up.kill().unwrap();
    rack.up.wait().unwrap();
    until("end of the redis-servers", || servers.iter().all(|pid| !is_alive(*pid)));
}

#[test]
fn when_a_replica_is_killed_its_redis_server_ends() {
    let rack = Rack::start("killed-replica", &["--engine", "redis"]);
    let servers = children(rack.pid("replica-2"));
    assert_eq!(servers.len(), 1);
    Rack::signal(rack.pid("replica-2"), "-9");
    until("end of the redis-server", || servers.iter().all(|pid| !is_alive(*pid)));
}

/// Status shows every role and who died and a killed gateway comes back.
#[test]
fn status_shows_roles_deaths_and_restarted_gateway() {
    let rack = Rack::start("status", &["--restart-gateways"]);
    let status = || {
        let output =
            concord(&["status", "--json", "--interval-ms", "50", "--config", &rack.file()]);
        serde_json::from_slice::<serde_json::Value>(&output.stdout).unwrap()
    };
    let first = status();
    let roles = first["roles"].as_array().unwrap();
    assert_eq!(roles.len(), 6);
    assert!(roles.iter().all(|role| role["reachable"] == true), "{first}");
    let gateway = rack.pid("gateway-1");
    Rack::signal(gateway, "-KILL");
    Rack::signal(rack.pid("replica-2"), "-KILL");
    // It is in no list before it was started again.
    let is_new = |(name, pid): &(String, u32)| name == "gateway-1" && *pid != gateway;
    until("new gateway", || rack.pids().iter().any(is_new));
    until("epoch without replica 2", || {
        let now = status();
        let role = |name: &str, node: u64| {
            let roles = now["roles"].as_array().unwrap();
            roles.iter().find(|r| r["role"] == name && r["node"] == node).unwrap().clone()
        };
        role("replica", 2)["reachable"] == false
            && role("gateway", 1)["reachable"] == true
            && role("controller", 1)["status"]["members"] == serde_json::json!([1, 3])
    });
}

#[test]
fn bug_19_8_up_tells_of_a_lost_state_and_makes_it_anew() {
    let more = ["--durability", "fsync"];
    let mut rack = Rack::start("lost-state", &more);
    assert_eq!(rack.client().say("SET k v"), "+OK");
    Rack::signal(rack.up.id(), "-TERM");
    assert!(rack.up.wait().unwrap().success());
    std::fs::remove_file(rack.run.join("controller.state")).unwrap();
    let (listen, run) = (rack.listen.to_string(), rack.run.to_str().unwrap().to_string());
    let line = refused(&["up", "--listen", &listen, "--run-dir", &run]);
    assert!(line.contains("PROBLEM: there is no state, but nodes have heard of epoch"), "{line}");
    let rack = rack.again("lost-state", &[&more[..], &["--recover"]].concat());
    assert_eq!(rack.client().say("GET k"), "v");
}

/// It reaches every process of the terminal at once.
#[test]
fn bug_19_9_the_end_of_a_terminal_ends_a_rack_in_order() {
    // Bit 0 of what is ignored, which a rack inherits, as it should.
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).unwrap().trim();
    if u64::from_str_radix(ignored, 16).unwrap() & 1 == 1 {
        println!("not tested: SIGHUP is ignored here (nohup)");
        return;
    }
    let more = ["--durability", "interval"];
    let mut rack = Rack::start("hangup", &more);
    assert_eq!(rack.client().say("SET k v"), "+OK");
    rack.pids().into_iter().for_each(|(_, pid)| Rack::signal(pid, "-HUP"));
    Rack::signal(rack.up.id(), "-HUP");
    assert!(rack.up.wait().unwrap().success());
    let rack = rack.again("hangup", &more);
    assert_eq!(rack.client().say("GET k"), "v");
    assert!(!rack.run.join("controller.state.before").exists(), "nothing was lost");
}
