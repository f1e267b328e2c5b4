//! Figures 6 and 8: packet by packet, with the shipped hosts and switches.

use concord_runtime::Error;
use concord_sim::net::Slowdowns;
use concord_sim::net::scenario::{Options, Point, Scenario, TransportKind};

use super::row::{Given, Row};
use crate::reproduce::claims::Paper;
use crate::reproduce::runner::Mean;
use crate::results::{Mark, Plot, Scale, Table};

/// A network of the paper.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Net {
    /// Nine ToR switches of 16 hosts, with this ratio of hosts' links to links to spines.
    LeafSpine(u32),
    FatTree,
}

impl Net {
    fn name(self) -> String {
        match self {
            Net::LeafSpine(over) => format!("{over}:1"),
            Net::FatTree => "fat tree".into(),
        }
    }
}

/// A point: a network, a transport and a workload.
#[derive(Clone, Copy, Debug)]
struct Case {
    net: Net,
    transport: TransportKind,
    bytes: u32,
    slots: u8,
    admission_us: u32,
    /// The load, as a share of the hosts' links.
    load: f64,
    seed: u64,
}

impl Case {
    fn harmony(net: Net, bytes: u32, load: f64, seed: u64) -> Case {
        let transport = TransportKind::Harmony;
        Case { net, transport, bytes, slots: 8, admission_us: 63, load, seed }
    }

    fn scenario(&self, is_quick: bool) -> Result<Scenario, String> {
        let (tors, k) = if is_quick { (3, 6) } else { (9, 16) };
        let topology = match self.net {
            Net::LeafSpine(over) => format!(
                "kind = \"leaf-spine\"\ntors = {tors}\nhosts_per_tor = 16\nspines = 4\n\
                 oversubscription = {over}"
            ),
            Net::FatTree => format!("kind = \"fat-tree\"\nk = {k}"),
        };
        let duration_us = if is_quick { 400 } else { 4_000 };
        let Case { bytes, slots, admission_us, .. } = self;
        let text = format!(
            "[topology]\n{topology}\nhost_gbps = 100\npropagation_ns = 200\npipeline_ns = 450\n\
             [buffers]\nshared_bytes = 32000000\n\
             [workload]\nkind = \"poisson\"\nsizes = {bytes}\nduration_us = {duration_us}\n\
             warm_up_us = {}\ndrain_us = 10000\n\
             [transport.harmony]\nslots = {slots}\nadmission_us = {admission_us}\n\
             [transport.fastpass]\nadmission_us = {admission_us}\n",
            duration_us / 4
        );
        Scenario::parse(&text, &|_| Err("no files".into())).map_err(|e| e.to_string())
    }

    fn run(&self, is_quick: bool) -> Result<Ran, String> {
        let scenario = self.scenario(is_quick)?;
        let point = Point { transport: self.transport, load: Some(self.load), seed: self.seed };
        let (experiment, outcome) =
            scenario.run(&point, &Options::default()).map_err(|e| e.to_string())?;
        let failed = outcome.transport.iter().find(|(name, _)| *name == "failed messages");
        let kept = outcome.kept.as_ref();
        let (waited, bound) = kept.map_or((0, 0), |kept| kept.most());
        Ok(Ran {
            slowdowns: Slowdowns::of(&experiment, &outcome, 0..=u64::MAX),
            ideal_us: outcome.flows.first().map_or(0.0, |flow| flow.ideal_ps as f64 / 1e6),
            rejected: outcome.rejected.unwrap_or(0),
            failed: failed.map_or(0, |(_, count)| *count),
            waited,
            bound,
            paper: kept.map_or(0, |kept| kept.promise.paper_bytes),
        })
    }
}

/// The measurements of a point.
#[derive(Clone, Debug)]
struct Ran {
    slowdowns: Slowdowns,
    ideal_us: f64,
    rejected: u64,
    failed: u64,
    waited: u64,
    bound: u64,
    paper: u64,
}

fn raw(given: &Given<'_>, name: &str, cases: &[Case], ran: &[Ran]) -> Result<(), Error> {
    let mut table = Table::new(&[
        "transport",
        "network",
        "bytes",
        "slots",
        "admission_us",
        "load",
        "seed",
        "flows",
        "unfinished",
        "rejected",
        "failed",
        "min",
        "mean",
        "p99",
        "p99.9",
        "max",
        "waited_bytes",
        "bound_bytes",
        "paper_bound_bytes",
    ]);
    for (case, ran) in cases.iter().zip(ran) {
        let s = &ran.slowdowns;
        let mut row = vec![case.transport.name().into(), case.net.name()];
        row.extend([case.bytes, case.slots.into(), case.admission_us].map(|n| n.to_string()));
        row.extend([format!("{:.3}", case.load), case.seed.to_string()]);
        row.extend([s.flows, s.unfinished].map(|n| n.to_string()));
        row.extend([ran.rejected, ran.failed].map(|n| n.to_string()));
        row.extend([s.min, s.mean, s.p99, s.p999, s.max].map(|n| format!("{n:.3}")));
        row.extend([ran.waited, ran.bound, ran.paper].map(|n| n.to_string()));
        table.row(row);
    }
    given.results.csv(name, &table)
}

/// Runs all points, writes their raw data, and plots slowdowns over `x`.
fn each(
    given: &Given<'_>,
    name: &'static str,
    cases: &[Case],
    (x, x_of): (&'static str, fn(&Case) -> f64),
) -> Result<Vec<Ran>, Error> {
    let ran = given.runner.each(name, cases, |case| case.run(given.is_quick))?;
    raw(given, &format!("figure-{name}"), cases, &ran)?;
    let mut places: Vec<f64> = cases.iter().map(x_of).collect();
    places.sort_by(f64::total_cmp);
    places.dedup();
    let line = |title: &str, of: fn(&Slowdowns) -> f64| {
        let mark = |&place: &f64| {
            let own = cases.iter().zip(&ran).filter(|(case, _)| x_of(case) == place);
            let values: Vec<f64> = own.map(|(_, ran)| of(&ran.slowdowns)).collect();
            Mark::at_mean(place, &values)
        };
        (title.to_string(), places.iter().filter_map(mark).collect())
    };
    given.results.plot(
        &format!("figure-{name}"),
        &Plot {
            title: format!("Figure {name}: slowdowns of Harmony"),
            x,
            y: "slowdown",
            x_names: Vec::new(),
            scale: Scale::Values,
            series: vec![
                line("min", |s| s.min),
                line("mean", |s| s.mean),
                line("p99", |s| s.p99),
                line("p99.9", |s| s.p999),
                line("max", |s| s.max),
            ],
        },
    )?;
    Ok(ran)
}

/// The mean over the runs of the points that `is_it` selects.
fn mean(cases: &[Case], ran: &[Ran], is_it: impl Fn(&Case) -> bool, of: fn(&Ran) -> f64) -> Mean {
    let own = cases.iter().zip(ran).filter(|(case, _)| is_it(case));
    Mean::of(&own.map(|(_, ran)| of(ran)).collect::<Vec<_>>())
}

/// A row about which the paper has no number.
fn silent(figure: &'static str, says: String, ours: Mean, reason: &str) -> Row {
    Row { figure, says, paper: Paper::Silent, ours, reason: reason.into() }
}

/// Figure 8a: sizes of RPCs, at half of the hosts' links.
pub fn sizes(given: &Given<'_>) -> Result<Vec<Row>, Error> {
    const SIZES: [u32; 5] = [512, 4 << 10, 32 << 10, 128 << 10, 512 << 10];
    let net = Net::LeafSpine(1);
    let cases: Vec<Case> = SIZES
        .into_iter()
        .flat_map(|bytes| {
            let load = if bytes < 4 << 10 { 0.1 } else { 0.5 };
            (1..=given.repeats).map(move |seed| Case::harmony(net, bytes, load, seed))
        })
        .collect();
    let ran = each(given, "8a", &cases, ("size in bytes", |case| case.bytes.into()))?;
    let mut rows = vec![Row {
        figure: "8a",
        says: "4 KB at load 0.5 needs a delay of 20 x RTT".into(),
        paper: Paper::Is(20.0),
        ours: mean(
            &cases,
            &ran,
            |case| case.bytes == 4 << 10,
            |ran| ran.slowdowns.max * ran.ideal_us / 4.6,
        ),
        reason: "the longest time of a message over 4.6 us; a slot idles for a round trip a message (H10)"
            .into(),
    }];
    for bytes in SIZES {
        let is_it = |case: &Case| case.bytes == bytes;
        let worst = mean(&cases, &ran, is_it, |ran| ran.slowdowns.max);
        rows.push(silent("8a", format!("{bytes} bytes: longest slowdown"), worst, ""));
        let rejected = mean(&cases, &ran, is_it, |ran| ran.rejected as f64);
        rows.push(silent("8a", format!("{bytes} bytes: messages rejected a run"), rejected, ""));
    }
    Ok(rows)
}

/// Figure 8b: oversubscription, at half of the capacity of the links to the spines.
pub fn oversubscribed(given: &Given<'_>) -> Result<Vec<Row>, Error> {
    let case = |over: u32, seed| {
        Case::harmony(Net::LeafSpine(over), 128 << 10, 0.5 / f64::from(over), seed)
    };
    let cases: Vec<Case> = [1, 2, 4]
        .iter()
        .flat_map(|&over| (1..=given.repeats).map(move |s| case(over, s)))
        .collect();
    let over =
        |case: &Case| if let Net::LeafSpine(over) = case.net { f64::from(over) } else { 0.0 };
    let ran = each(given, "8b", &cases, ("hosts' links over links to spines", over))?;
    let bound = |over: u32| {
        let is_it = |case: &Case| case.net == Net::LeafSpine(over);
        mean(&cases, &ran, is_it, |ran| ran.bound as f64)
    };
    let worst = |over: u32| {
        let is_it = |case: &Case| case.net == Net::LeafSpine(over);
        mean(&cases, &ran, is_it, |ran| ran.slowdowns.max)
    };
    let ratio = |a: Mean, b: Mean| Mean { mean: a.mean / b.mean, half: 0.0 };
    Ok(vec![
        Row {
            figure: "8b",
            says: "4:1 has the same bound as 1:1 (ratio of the longest queues allowed)".into(),
            paper: Paper::Is(1.0),
            ours: ratio(bound(4), bound(1)),
            reason: "a link of a quarter of the bandwidth has a quarter of the virtual links (H7)"
                .into(),
        },
        silent("8b", "1:1: longest slowdown".into(), worst(1), ""),
        silent("8b", "2:1: longest slowdown".into(), worst(2), ""),
        silent("8b", "4:1: longest slowdown".into(), worst(4), ""),
    ])
}

/// Figure 8c: two and three tiers, at half of the hosts' links.
pub fn trees(given: &Given<'_>) -> Result<Vec<Row>, Error> {
    let nets = [Net::LeafSpine(1), Net::FatTree];
    let cases: Vec<Case> = nets
        .iter()
        .flat_map(|&net| (1..=given.repeats).map(move |s| Case::harmony(net, 128 << 10, 0.5, s)))
        .collect();
    let tiers = |case: &Case| if case.net == Net::FatTree { 3.0 } else { 2.0 };
    let ran = each(given, "8c", &cases, ("tiers", tiers))?;
    let mut rows = Vec::new();
    for net in nets {
        let name = if net == Net::FatTree { "fat tree" } else { "leaf-spine" };
        let worst = mean(&cases, &ran, |case| case.net == net, |ran| ran.slowdowns.max);
        rows.push(silent("8c", format!("{name}: longest slowdown"), worst, ""));
        let share = mean(
            &cases,
            &ran,
            |case| case.net == net,
            |ran| ran.waited as f64 / ran.bound.max(1) as f64,
        );
        let says = format!("{name}: most that waited, over the highest bound");
        rows.push(silent("8c", says, share, "no run may exceed 1"));
    }
    Ok(rows)
}

/// The step of the loads that are tried.
const STEP: f64 = 0.05;

/// The highest load, in steps, at which no message is rejected with any seed.
fn highest(given: &Given<'_>, case: Case) -> Result<(f64, Option<Ran>), String> {
    let (mut low, mut high, mut best) = (0, (1.0 / STEP).round() as u32, None);
    while high - low > 1 {
        let middle = low.midpoint(high);
        let load = f64::from(middle) * STEP;
        let mut is_carried = true;
        let mut last = None;
        for seed in 1..=given.repeats {
            let ran = Case { load, seed, ..case }.run(given.is_quick)?;
            is_carried &= ran.rejected + ran.failed == 0;
            last = Some(ran);
            if !is_carried {
                break;
            }
        }
        if is_carried {
            (low, best) = (middle, last);
        } else {
            high = middle;
        }
    }
    Ok((f64::from(low) * STEP, best))
}

/// Figure 6: the highest load by K and δ_admission, compared with Fastpass with the same
/// δ_admission.
pub fn feasible(given: &Given<'_>) -> Result<Vec<Row>, Error> {
    let admissions: &[u32] = if given.is_quick { &[63, 252] } else { &[16, 63, 126, 252] };
    let slots: &[u8] = if given.is_quick { &[4, 8] } else { &[2, 4, 8, 16] };
    let mut cases = Vec::new();
    for &admission_us in admissions {
        let own = Case::harmony(Net::LeafSpine(1), 128 << 10, 0.0, 1);
        let own = Case { admission_us, ..own };
        cases.push(Case { transport: TransportKind::Fastpass, ..own });
        cases.extend(slots.iter().map(|&slots| Case { slots, ..own }));
    }
    let found = given.runner.each("6", &cases, |case| highest(given, *case))?;
    let mut table = Table::new(&[
        "transport",
        "slots",
        "admission_us",
        "highest_load",
        "mean",
        "p99",
        "max",
        "longest_us",
    ]);
    for (case, (load, ran)) in cases.iter().zip(&found) {
        let s = ran.as_ref().map(|ran| (&ran.slowdowns, ran.ideal_us));
        let cell = |of: fn(&Slowdowns) -> f64| s.map_or("-".into(), |s| format!("{:.3}", of(s.0)));
        table.row(vec![
            case.transport.name().into(),
            case.slots.to_string(),
            case.admission_us.to_string(),
            format!("{load:.2}"),
            cell(|s| s.mean),
            cell(|s| s.p99),
            cell(|s| s.max),
            s.map_or("-".into(), |s| format!("{:.1}", s.0.max * s.1)),
        ]);
    }
    given.results.csv("figure-6", &table)?;
    let load = |transport, slots: Option<u8>, admission_us| {
        let is_it = |case: &&(&Case, &(f64, Option<Ran>))| {
            let case = case.0;
            case.transport == transport
                && case.admission_us == admission_us
                && slots.is_none_or(|slots| case.slots == slots)
        };
        let all: Vec<_> = cases.iter().zip(&found).collect();
        all.iter().find(is_it).map_or(f64::NAN, |(_, (load, _))| *load)
    };
    let mut rows = Vec::new();
    for &admission_us in admissions {
        let fastpass = load(TransportKind::Fastpass, None, admission_us);
        let harmony = load(TransportKind::Harmony, Some(8), admission_us);
        let ours = Mean { mean: harmony / fastpass, half: 0.0 };
        let reason = "Poisson arrivals as they are: the paper leaves out those that exceed a load of 1 \
                      within δ_admission (H9)";
        rows.push(Row {
            figure: "6a",
            says: format!("K = 8, δ_admission {admission_us} us: highest load over Fastpass'"),
            paper: Paper::Is(1.0),
            ours,
            reason: reason.into(),
        });
        let says = format!("K = 8, δ_admission {admission_us} us: highest load");
        rows.push(silent("6a", says, Mean { mean: harmony, half: 0.0 }, ""));
    }
    Ok(rows)
}
