//! The tables, CSV files and plots of all points.

use concord_runtime::{Context, Error};
use concord_sim::net::Slowdowns;
use concord_sim::net::scenario::{Point, Scenario, TransportKind};

use super::runs::{Run, classes, name};
use super::{NetArgs, Plan};
use crate::results::{Mark, Plot, Results, Scale, Table, provenance};

fn number(value: f64) -> String {
    if value.is_nan() { "-".into() } else { format!("{value:.3}") }
}

fn bytes(value: u64) -> String {
    if value == u64::MAX { "-".into() } else { value.to_string() }
}

/// The cells of a row for transport, load and seed.
fn of_point(point: &Point) -> Vec<String> {
    let load = point.load.map_or("-".into(), |load| load.to_string());
    vec![point.transport.name().into(), load, point.seed.to_string()]
}

/// The cells of a row for slowdowns, from the number of flows to the maximum.
fn of_slowdowns(s: &Slowdowns) -> Vec<String> {
    let mut cells = vec![s.flows.to_string(), s.unfinished.to_string()];
    cells.extend([s.min, s.mean, s.p50, s.p99, s.p999, s.max].map(number));
    cells
}

/// Prints and writes the results of all points.
///
/// # Errors
/// A file that cannot be written.
pub fn write(
    args: &NetArgs,
    scenario: &Scenario,
    plan: &Plan,
    runs: &[Run],
    results: &Results,
) -> Result<(), Error> {
    let (points, sizes) = (points(&plan.points, runs), by_size(scenario, &plan.points, runs));
    println!(
        "\nmin to max are slowdowns: a flow's time over its ideal time. goodput is payload that \
         arrived. wait, use: of the switch port with the most, in bytes, and as a share."
    );
    points.print();
    println!("\nSlowdowns by size of flow, in bytes:");
    sizes.print();
    for line in remarks(&plan.points, runs) {
        println!("{line}");
    }
    println!();
    results.csv("points", &points)?;
    results.csv("sizes", &sizes)?;
    results.csv("counters", &counters(&plan.points, runs))?;
    if args.ports {
        results.csv("ports", &ports(scenario, &plan.points, runs))?;
    }
    if scenario.has_load() {
        let of_load = |title: &str, value| plot_of_load(plan, runs, title, value);
        results
            .plot("slowdown-p99", &of_load("Slowdown, 99th percentile", |s: &Slowdowns| s.p99))?;
        results.plot("slowdown-mean", &of_load("Slowdown, mean", |s: &Slowdowns| s.mean))?;
    }
    for (at, &load) in plan.loads.iter().enumerate() {
        let plot = plot_of_sizes(scenario, plan, runs, load);
        let file = load.map_or("sizes-p99".into(), |load| format!("sizes-p99-load{load}"));
        if at < PLOTS_MAX {
            results.plot(&file, &plot)?;
        }
    }
    // Files in formats of other programs have no place for the description.
    let about = results.path("about.txt");
    let text = format!("{}{}\n", provenance(), results.about_text());
    std::fs::write(&about, text).cannot(format!("write {}", about.display()))?;
    results.say(&about);
    let each =
        [(args.flows, "flows-*.csv"), (args.fct, "fct-*.txt"), (!args.pcap.is_empty(), "*.pcap")];
    for (_, files) in each.iter().filter(|(is_written, _)| *is_written) {
        println!("wrote {} of each point", results.path(files).display());
    }
    Ok(())
}

/// The maximum number of plots over sizes.
const PLOTS_MAX: usize = 16;

fn points(points: &[Point], runs: &[Run]) -> Table {
    let mut table = Table::new(&[
        "transport",
        "load",
        "seed",
        "flows",
        "unfinished",
        "min",
        "mean",
        "p50",
        "p99",
        "p99.9",
        "max",
        "goodput_gbps",
        "wait_mean",
        "wait_max",
        "use_max",
        "dropped",
        "marked",
        "would_pause",
        "ended_us",
        "digest",
    ]);
    for (point, run) in points.iter().zip(runs) {
        let mut row = of_point(point);
        row.extend(of_slowdowns(&run.all));
        row.push(number(run.goodput_gbps));
        row.push(format!("{:.0}", run.waiting_bytes_mean));
        row.push(run.waiting_bytes_max.to_string());
        row.push(number(run.use_max));
        row.extend([run.dropped, run.marked, run.would_pause].map(|count| count.to_string()));
        row.push(number(run.ended_us));
        row.push(format!("{:016x}", run.digest));
        table.row(row);
    }
    table
}

fn by_size(scenario: &Scenario, points: &[Point], runs: &[Run]) -> Table {
    let mut table = Table::new(&[
        "transport",
        "load",
        "seed",
        "above",
        "up_to",
        "flows",
        "unfinished",
        "min",
        "mean",
        "p50",
        "p99",
        "p99.9",
        "max",
    ]);
    let classes = classes(scenario);
    for (point, run) in points.iter().zip(runs) {
        for ((above, to), slowdowns) in classes.iter().zip(&run.by_size) {
            if slowdowns.flows == 0 {
                continue;
            }
            let mut row = of_point(point);
            row.extend([above.to_string(), bytes(*to)]);
            row.extend(of_slowdowns(slowdowns));
            table.row(row);
        }
    }
    table
}

fn counters(points: &[Point], runs: &[Run]) -> Table {
    let mut table = Table::new(&["transport", "load", "seed", "counter", "count"]);
    for (point, run) in points.iter().zip(runs) {
        for (name, count) in &run.transport {
            let mut row = of_point(point);
            row.extend([(*name).to_string(), count.to_string()]);
            table.row(row);
        }
    }
    table
}

fn ports(scenario: &Scenario, points: &[Point], runs: &[Run]) -> Table {
    let mut table = Table::new(&[
        "transport",
        "load",
        "seed",
        "port",
        "from",
        "to",
        "gbps",
        "use",
        "wait_mean",
        "wait_max",
        "sent_bytes",
        "dropped",
        "marked",
        "would_pause",
    ]);
    for (point, run) in points.iter().zip(runs) {
        for (number_of_port, port) in run.ports.iter().enumerate() {
            let mut row = of_point(point);
            row.push(number_of_port.to_string());
            row.extend([port.from, port.to].map(|node| scenario.names.of(node)));
            row.push((port.bits_per_s as f64 / 1e9).to_string());
            row.extend([port.use_share(), port.waiting_bytes_mean()].map(number));
            let queue = &port.queue;
            let counts = [
                queue.waiting_bytes_max,
                queue.sent_bytes,
                queue.dropped,
                queue.marked,
                queue.would_pause,
            ];
            row.extend(counts.map(|count| count.to_string()));
            table.row(row);
        }
    }
    table
}

/// Remarks that must not be overlooked.
fn remarks(points: &[Point], runs: &[Run]) -> Vec<String> {
    let mut lines = Vec::new();
    let unfinished: usize = runs.iter().map(|run| run.all.unfinished).sum();
    if unfinished > 0 {
        lines.push(format!(
            "\nUNFINISHED: {unfinished} measured flows did not end before the run did. They are in no \
             slowdown, which so look too good; --flows says which, and what arrived of each."
        ));
    }
    for (point, run) in points.iter().zip(runs) {
        let failed = run.transport.iter().find(|(name, _)| *name == "failed messages");
        let failed = failed.map_or(0, |(_, count)| *count);
        let rejected = run.rejected.unwrap_or(0);
        if rejected + failed > 0 {
            let name = name(point);
            lines.push(format!("\n{name}: {rejected} messages rejected, {failed} failed."));
        }
    }
    lines.extend(points.iter().zip(runs).filter_map(|(point, run)| {
        let kept = run.kept.as_ref()?;
        let ((most, bound), (near, of)) = (kept.most(), kept.nearest());
        let (name, paper) = (name(point), kept.promise.paper_bytes);
        Some(format!(
            "\n{name}: at most {most} bytes with a reservation waited at a switch's port; the proved bound is \
             up to {bound}, and held at every port (nearest: {near} of {of}); #H(K-1)p is {paper}."
        ))
    }));
    let pauses: u64 = runs.iter().map(|run| run.would_pause).sum();
    if pauses > 0 {
        lines.push(format!(
            "\nA lossless network would have paused inputs {pauses} times. No pause is sent."
        ));
    }
    for (point, run) in points.iter().zip(runs).filter(|(_, run)| run.not_captured > 0) {
        let (name, count) = (name(point), run.not_captured);
        lines.push(format!("\n{name}.pcap is cut off: {count} packets are left out."));
    }
    for (point, run) in points.iter().zip(runs).filter(|(_, run)| run.not_written > 0) {
        let (name, count) = (name(point), run.not_written);
        lines.push(format!("\nThe flows of {name} are cut off: {count} lines are left out."));
    }
    lines
}

/// The runs of a point, one for each seed.
fn of<'a>(
    plan: &'a Plan,
    runs: &'a [Run],
    transport: TransportKind,
    load: Option<f64>,
) -> impl Iterator<Item = &'a Run> {
    let is_it = move |point: &Point| point.transport == transport && point.load == load;
    plan.points.iter().zip(runs).filter(move |(point, _)| is_it(point)).map(|(_, run)| run)
}

fn plot_of_load(plan: &Plan, runs: &[Run], title: &str, value: fn(&Slowdowns) -> f64) -> Plot {
    let line = |&transport: &TransportKind| {
        let mark = |&load: &Option<f64>| {
            let values = of(plan, runs, transport, load).map(|run| value(&run.all));
            let values: Vec<f64> = values.filter(|value| value.is_finite()).collect();
            Mark::at_median(load?, &values)
        };
        (transport.name().to_string(), plan.loads.iter().filter_map(mark).collect())
    };
    Plot {
        title: format!("{title}, median of {} seeds", plan.seeds.len()),
        x: "load",
        y: "slowdown",
        x_names: Vec::new(),
        scale: Scale::Values,
        series: plan.transports.iter().map(line).collect(),
    }
}

fn plot_of_sizes(scenario: &Scenario, plan: &Plan, runs: &[Run], load: Option<f64>) -> Plot {
    let classes = classes(scenario);
    let line = |&transport: &TransportKind| {
        let mark = |class: usize| {
            let values = of(plan, runs, transport, load).map(|run| run.by_size[class].p99);
            let values: Vec<f64> = values.filter(|value| value.is_finite()).collect();
            Mark::at_median(class as f64 + 1.0, &values)
        };
        (transport.name().to_string(), (0..classes.len()).filter_map(mark).collect())
    };
    let of_load = load.map(|load| format!(" at load {load}")).unwrap_or_default();
    Plot {
        title: format!("Slowdown, 99th percentile{of_load}, median of {} seeds", plan.seeds.len()),
        x: "size of flow, up to",
        y: "slowdown",
        x_names: classes
            .iter()
            .map(|&(above, to)| if to == u64::MAX { format!("> {above}") } else { to.to_string() })
            .collect(),
        scale: Scale::Places,
        series: plan.transports.iter().map(line).collect(),
    }
}
