//! `permutation [RUNS] [SEED] [WINDOW]`: the 144-host permutation, and how fast the simulator is.

use std::time::Instant;

use concord_sim::engine::{SEC, US};
use concord_sim::net::{Permutation, PermutationReport};

fn main() {
    let args: Vec<u64> = std::env::args().skip(1).filter_map(|a| a.parse().ok()).collect();
    let runs = args.first().copied().unwrap_or(3).max(1);
    let mut permutation = Permutation::of_144_hosts(args.get(1).copied().unwrap_or(1));
    if let Some(&window) = args.get(2) {
        permutation.transport.window = window as u32;
    }
    let mut best: Option<(f64, PermutationReport)> = None;
    for run in 0..runs {
        let began = Instant::now();
        let report = match permutation.run() {
            Ok(report) => report,
            Err(error) => {
                eprintln!("{error}");
                std::process::exit(1);
            }
        };
        let seconds = began.elapsed().as_secs_f64();
        println!("run {run}: {seconds:.3} s, digest {:016x}", report.digest);
        if best.as_ref().is_none_or(|(s, _)| seconds < *s) {
            best = Some((seconds, report));
        }
    }
    if let Some((seconds, report)) = best {
        print(seconds, &report);
    }
}

fn print(seconds: f64, report: &PermutationReport) {
    let packets = report.network.sent;
    let rate = |count: u64| count as f64 / seconds / 1e6;
    println!("wall time of the best run   {seconds:.3} s");
    println!("simulated time              {:.3} us", report.ended.0 as f64 / US as f64);
    println!("events                      {} ({:.2} M/s)", report.events, rate(report.events));
    println!("packets                     {packets} ({:.2} M/s)", rate(packets));
    let hops = report.network.hops;
    println!("packets on a link           {hops} ({:.2} M/s)", rate(hops));
    println!("dropped                     {}", report.network.dropped_port);
    println!("sent again                  {} timeouts", report.transport.timeouts);
    println!("most bytes at a port        {}", report.backlog_bytes_max);
    println!("most events that waited     {}", report.waiting_max);
    println!("peak memory (VmHWM)         {}", peak_memory());
    let fct = &report.completion_ps;
    let at = |share: f64| match fct.len() {
        0 => f64::NAN,
        n => fct[((n - 1) as f64 * share).round() as usize] as f64 / US as f64,
    };
    let (min, median, p99, max) = (at(0.0), at(0.5), at(0.99), at(1.0));
    println!(
        "flow completion, us         min {min:.1} median {median:.1} p99 {p99:.1} max {max:.1}"
    );
    println!("unfinished flows            {}", report.unfinished);
    println!("digest                      {:016x}", report.digest);
    println!("real time per simulated     {:.0}", seconds / (report.ended.0 as f64 / SEC as f64));
}

fn peak_memory() -> String {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|l| l.strip_prefix("VmHWM:"));
    line.map_or("unknown".into(), |l| l.trim().into())
}
