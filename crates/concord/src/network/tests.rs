use clap::Parser;

use super::*;

#[derive(Parser)]
struct Command {
    #[command(flatten)]
    args: NetArgs,
}

const RACK: &str = "\
[topology]
kind = \"dumbbell\"
pairs = 2
host_gbps = 10
between_gbps = 10
propagation_ns = 1000
[workload]
kind = \"poisson\"
sizes = \"imc10\"
duration_us = 1000
[run]
transports = [\"newreno\"]
loads = [0.2, 0.4]
seeds = 3
first_seed = 5
";

fn plan(flags: &str, text: &str) -> Result<Plan, String> {
    let scenario = Scenario::parse(text, &|name| Err(format!("cannot read {name}"))).unwrap();
    let words = ["net", "rack.toml"].into_iter().chain(flags.split_whitespace());
    Plan::new(&Command::try_parse_from(words).unwrap().args, &scenario)
}

/// Flags override the file, and the file overrides defaults.
#[test]
fn flags_win_over_the_file() {
    let file = plan("", RACK).unwrap();
    assert_eq!((file.points.len(), &*file.seeds), (6, &[5, 6, 7][..]));
    let flags =
        plan("--transport windowed,newreno --load 0.9 --seeds 2 --first-seed 1", RACK).unwrap();
    assert_eq!((flags.points.len(), &*flags.seeds), (4, &[1, 2][..]));
    assert_eq!(plan("--quick", RACK).unwrap().seeds, [5]);
    let patterns =
        RACK.replace("poisson", "permutation").replace("sizes = \"imc10\"", "bytes = 1000");
    let patterns = patterns.replace("duration_us = 1000\n", "").replace("loads = [0.2, 0.4]\n", "");
    assert_eq!(plan("", &patterns).unwrap().loads, [None]);
    let why = plan("--find-load", &patterns).unwrap_err();
    assert!(why.contains("only Poisson arrivals"), "{why}");
}

/// A request for more memory or disk than there is is refused before anything runs.
#[test]
fn too_much_is_refused() {
    let loads = vec!["0.5"; 1_000].join(",");
    let why = plan(&format!("--seeds 1000 --load {loads}"), RACK).unwrap_err();
    assert!(why.contains("1000000 runs: at most 100000"), "{why}");
    let why = plan(&format!("--seeds 300 --load {loads} --ports"), RACK).unwrap_err();
    assert!(why.contains("--ports: 3000000 rows"), "{why}");
    let why = plan(&format!("--first-seed {} --seeds 2", u64::MAX), RACK).unwrap_err();
    assert!(why.contains("run over the largest number"), "{why}");
    let many = RACK.replace("duration_us = 1000", "duration_us = 3000000000");
    let why = plan("", &many).unwrap_err();
    assert!(why.contains("at most 10000000"), "{why}");
}
