//! `concord net` as a process: its tables, files and errors.
#![cfg(feature = "lab")]
#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const RACK: &str = "\
[topology]
kind = \"leaf-spine\"
tors = 2
hosts_per_tor = 4
spines = 2
host_gbps = 10
propagation_ns = 200

[buffers]
port_bytes = 300000
ecn_bytes = 30000

[workload]
kind = \"poisson\"
sizes = 20000
duration_us = 2000
warm_up_us = 200

[run]
transports = [\"dctcp\", \"newreno\"]
loads = [0.3, 0.6]
seeds = 2
";

/// An empty directory of this test.
fn directory(test: &str) -> PathBuf {
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("net-{test}"));
    drop(fs::remove_dir_all(&path));
    fs::create_dir_all(&path).unwrap();
    path
}

/// `concord net`, in that directory.
fn net(directory: &Path, args: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_concord"));
    command.current_dir(directory).arg("net").args(args.split_whitespace());
    command.output().unwrap()
}

/// What it prints, and that it ends with 0.
fn printed(directory: &Path, args: &str) -> String {
    let output = net(directory, args);
    let errors = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{args}: {errors}");
    String::from_utf8(output.stdout).unwrap()
}

/// The rows of a CSV file by column, and the lines above them.
fn csv(path: &Path) -> (Vec<Vec<String>>, Vec<String>, String) {
    let text = fs::read_to_string(path).unwrap();
    let (head, rest): (Vec<&str>, Vec<&str>) = text.lines().partition(|line| line.starts_with('#'));
    let cells = |line: &&str| line.split(',').map(str::to_owned).collect();
    let rows: Vec<Vec<String>> = rest.iter().skip(1).map(cells).collect();
    let columns = rest[0].split(',').map(str::to_owned).collect();
    (rows, columns, head.join("\n"))
}

fn column(columns: &[String], name: &str) -> usize {
    columns.iter().position(|column| column == name).unwrap()
}

/// A point has a row with its digest, whatever runs beside it; every output says where it comes
/// from; the files of flows have what the table says.
#[test]
fn points_leave_tables_files_and_plots() {
    let at = directory("points");
    fs::write(at.join("rack.toml"), RACK).unwrap();
    let args = "rack.toml --flows --fct --ports --pcap h0:s0 --threads";
    let shown = printed(&at, &format!("{args} 2"));
    for says in ["warm-up: 200 us", "ideal time: ", "command: ", "seeds 1 to 2", "digest"] {
        assert!(shown.contains(says), "{says}: {shown}");
    }
    assert!(!shown.contains("UNFINISHED"), "{shown}");
    let results = at.join("results/net/rack");
    let (rows, columns, head) = csv(&results.join("points.csv"));
    assert_eq!(rows.len(), 8);
    for says in ["# command: ", "# warm-up: 200 us", "# ideal time: ", "seeds 1 to 2"] {
        assert!(head.contains(says), "{says}: {head}");
    }
    for row in &rows {
        let number = |name| row[column(&columns, name)].parse::<f64>().unwrap();
        assert!(number("flows") > 10.0 && number("unfinished") == 0.0, "{row:?}");
        assert!(number("min") >= 1.0 && number("p99") >= number("p50"), "{row:?}");
        assert!(number("use_max") <= 1.0 && number("goodput_gbps") > 0.0, "{row:?}");
    }
    for file in ["sizes.csv", "counters.csv", "ports.csv", "about.txt", "slowdown-p99.svg"] {
        let text = fs::read_to_string(results.join(file)).unwrap();
        assert!(text.contains("concord net") || text.contains(" net rack.toml"), "{file}");
    }
    let (flows, columns, _) = csv(&results.join("flows-dctcp-load0.3-seed1.csv"));
    let measured = flows.iter().filter(|row| row[column(&columns, "measured")] == "true").count();
    assert_eq!(measured.to_string(), rows[0][3]);
    let fct = fs::read_to_string(results.join("fct-dctcp-load0.3-seed1.txt")).unwrap();
    assert_eq!(fct.lines().count(), flows.len());
    assert!(fct.lines().all(|line| line.split(' ').count() == 8), "{fct}");
    let pcap = fs::read(results.join("dctcp-load0.3-seed1.pcap")).unwrap();
    assert!(pcap.len() > 24 && pcap.starts_with(&[0x4d, 0x3c, 0xb2, 0xa1]));
    let digests = |rows: &[Vec<String>]| -> Vec<String> {
        rows.iter().map(|row| row.last().unwrap().clone()).collect()
    };
    let before = digests(&rows);
    printed(&at, &format!("{args} 1"));
    let (rows, _, _) = csv(&results.join("points.csv"));
    assert_eq!(digests(&rows), before, "the number of threads changes nothing");
    assert_ne!(before[0], before[1], "another seed is another run");
}

/// The parts of a flow's time add up to it.
#[test]
fn explained_parts_add_up_to_the_flows_time() {
    let at = directory("explain");
    fs::write(at.join("rack.toml"), RACK).unwrap();
    for flow in [0, 7, 30] {
        let shown = printed(&at, &format!("rack.toml --load 0.6 --explain-flow {flow}"));
        let us = |line: &str| line.trim().split(" us").next()?.parse::<f64>().ok();
        let parts: Vec<f64> = shown.lines().filter_map(us).collect();
        let (all, parts) = parts.split_last().unwrap();
        let sum: f64 = parts.iter().sum();
        assert!((sum - all).abs() < 0.01, "{sum} {shown}");
        assert!(shown.contains("queue at") && shown.contains("slowdown"), "{shown}");
    }
    let output = net(&at, "rack.toml --load 0.6 --explain-flow 1000000");
    let why = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success() && why.contains("has flows 0 to"), "{why}");
}

/// Flows that have no end are said, and are in the files.
#[test]
fn unfinished_flows_are_reported() {
    let at = directory("unfinished");
    let text = RACK.replace("duration_us = 2000", "duration_us = 2000\ndrain_us = 0");
    fs::write(at.join("rack.toml"), text).unwrap();
    let shown = printed(&at, "rack.toml --load 0.9 --transport dctcp --seeds 1 --flows");
    assert!(shown.contains("UNFINISHED: "), "{shown}");
    let (rows, columns, _) = csv(&at.join("results/net/rack/flows-dctcp-load0.9-seed1.csv"));
    let took = column(&columns, "took_ns");
    assert!(rows.iter().any(|row| row[took].is_empty()));
    let none = RACK.split("[workload]").next().unwrap().to_owned()
        + "[workload]\nkind = \"incast\"\nsenders = 7\nbytes = 100000\nlimit_us = 1\n";
    fs::write(at.join("none.toml"), none).unwrap();
    let shown = printed(&at, "none.toml --transport dctcp,newreno,windowed --ports");
    assert!(shown.contains("UNFINISHED: 21 measured flows"), "{shown}");
}

/// Headers alone keep a transport from a load of 1; Fastpass carries a load of which it rejects
/// none.
#[test]
fn the_highest_load_is_found() {
    let at = directory("load");
    let text = RACK.replace("duration_us = 2000", "duration_us = 4000");
    fs::write(at.join("rack.toml"), text).unwrap();
    let shown = printed(&at, "rack.toml --find-load --transport dctcp,fastpass --seeds 1");
    let (rows, columns, _) = csv(&at.join("results/net/rack/find-load.csv"));
    for transport in ["dctcp", "fastpass"] {
        let begins = format!("{transport}: highest load ");
        let highest = shown.lines().find_map(|line| line.strip_prefix(&begins)).unwrap();
        let highest: f64 = highest.parse().unwrap();
        assert!((0.1..1.0).contains(&highest), "{shown}");
        for row in rows.iter().filter(|row| row[0] == transport) {
            let number = |name| row[column(&columns, name)].parse::<f64>();
            let is_carried = row[column(&columns, "carried")] == "true";
            assert_eq!(is_carried, number("load").unwrap() <= highest, "{row:?}");
            let enough = number("arrived_share").unwrap() >= 0.99;
            assert_eq!(is_carried, number("rejected").map_or(enough, |count| count == 0.0));
        }
    }
}

/// Each mistake is one line on standard error that says what is wrong, and a status of its own.
#[test]
fn mistakes_are_one_line() {
    let at = directory("mistakes");
    fs::write(at.join("rack.toml"), RACK).unwrap();
    fs::write(at.join("key.toml"), RACK.replace("spines = 2", "spines = 2\nspine_gpbs = 4"))
        .unwrap();
    let links = "[topology]\nkind = \"links\"\nhosts = 2\nswitches = 2\n\
                 links = [[\"h0\", \"s0\", 10, 100], [\"h1\", \"s1\", 10, 100]]\n\
                 [workload]\nkind = \"permutation\"\nbytes = 1000\n";
    fs::write(at.join("cut.toml"), links).unwrap();
    let host = links
        .replace("[\"h1\", \"s1\", 10, 100]", "[\"h1\", \"s0\", 10, 100], [\"s0\", \"s1\", 1, 1]")
        .replace(
            "kind = \"permutation\"\nbytes = 1000",
            "kind = \"flows\"\nflows = [[\"h0\", \"h9\", 1, 0]]",
        );
    fs::write(at.join("host.toml"), host).unwrap();
    fs::write(at.join("a.cm"), "Nodes 8\nConnections 2\n0->1 start 0 size 10\n").unwrap();
    let (head, _) = RACK.split_once("[workload]").unwrap();
    fs::write(at.join("cm.toml"), format!("{head}[workload]\nkind = \"htsim\"\nfile = \"a.cm\"\n"))
        .unwrap();
    fs::write(
        at.join("none.toml"),
        format!("{head}[workload]\nkind = \"htsim\"\nfile = \"b.cm\"\n"),
    )
    .unwrap();
    for (args, says) in [
        ("absent.toml", "cannot read absent.toml"),
        ("key.toml", "[topology] spine_gpbs: unknown key; did you mean `spine_gbps`?"),
        ("cut.toml --transport dctcp", "no path from h0 to h1"),
        ("host.toml --transport dctcp", "unknown host \"h9\": "),
        (
            "cm.toml --transport dctcp",
            "a.cm: the header says 2 connections, the file has 1: it is truncated",
        ),
        ("none.toml --transport dctcp", "cannot read b.cm"),
        ("rack.toml --load 1.2", "a load of 1.2"),
        ("rack.toml --load 0", "a load of 0"),
        ("rack.toml --transport dtcp", "no transport dtcp: did you mean `dctcp`?"),
        ("rack.toml --pcap h0:s1", "no link from h0 to s1"),
        ("rack.toml --pcap h99:s1", "unknown host or switch h99"),
        ("rack.toml --pcap h0", "write FROM:TO"),
    ] {
        let output = net(&at, args);
        let why = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{args}: {why}");
        assert!(why.starts_with("concord: ") && why.contains(says), "{args}: {why}");
        assert_eq!(why.lines().count(), 1, "{args}: {why}");
    }
}

/// The guide's file is one, and its first command runs.
#[test]
fn the_guides_example_runs() {
    let at = directory("guide");
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/guides/network.md");
    let page = fs::read_to_string(page).unwrap();
    let file = page.split("```toml\n").nth(1).unwrap().split("```").next().unwrap();
    let small =
        file.replace("tors = 9", "tors = 2").replace("duration_us = 5000", "duration_us = 1500");
    assert!(small.len() == file.len() && small != file);
    fs::write(at.join("rack.toml"), small).unwrap();
    assert!(printed(&at, "rack.toml --quick").contains("slowdown"));
}
