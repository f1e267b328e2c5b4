//! Figures without a network: round trips, bounds, the share of slots that find virtual links, and
//! the adversary of trap H1.

use concord_runtime::Error;
use concord_sim::engine::NS;
use concord_sim::net::{
    Allocation, Choice, LeafSpine, LinkSpec, Topology, allocated_share, worst_queue,
};

use super::row::{Given, Row};
use crate::reproduce::claims::Paper;
use crate::reproduce::runner::Mean;
use crate::results::{Mark, Plot, Scale, Table};

const BITS_PER_S: u64 = 100_000_000_000;
/// The sizes of the paper's packets, in bytes: data, and control (its footnote 2).
const PACKET_BYTES: u32 = 1_500;
const CONTROL_BYTES: u32 = 40;

/// The unloaded round trips and bandwidth-delay products of the two networks (§5).
pub fn round_trips(_: &Given<'_>) -> Result<Vec<Row>, Error> {
    let link = |bits_per_s| LinkSpec { bits_per_s, propagation_ps: 200 * NS, queue_bytes_max: 1 };
    let spine = Topology::leaf_spine(&LeafSpine {
        tors: 9,
        hosts_per_tor: 16,
        spines: 4,
        host_link: link(BITS_PER_S),
        spine_link: link(4 * BITS_PER_S),
        pipeline_ps: 450 * NS,
    });
    let tree = Topology::fat_tree(16, link(BITS_PER_S), 450 * NS);
    let mut rows = Vec::new();
    for (name, topology, us, kb) in
        [("leaf-spine, four spines of 400 Gb/s", spine, 4.6, 56.0), ("fat tree", tree, 7.6, 93.0)]
    {
        let ps = topology.round_trip_ps_max(PACKET_BYTES, CONTROL_BYTES);
        let (own_us, own_kb) = (ps as f64 / 1e6, ps as f64 * BITS_PER_S as f64 / 8e12 / 1e3);
        rows.push(Row::exact("§5", format!("{name}: round trip, us"), us, own_us));
        rows.push(Row::exact("§5", format!("{name}: bandwidth-delay product, KB"), kb, own_kb));
    }
    Ok(rows)
}

/// K* and the delays for K = 8 (§3.3), by the paper's bound, #H (K-1) p at each switch, and by that
/// of trap H1, 2^(h-1) (K-1) p at the h-th switch.
pub fn bounds(_: &Given<'_>) -> Result<Vec<Row>, Error> {
    let networks = [(22e6, 32.0, 1e11, 91.0, 12.6), (113e6, 64.0, 4e11, 235.0, 3.15)];
    let (hops, slots, packet) = (5, 8.0, f64::from(PACKET_BYTES));
    let mut rows = Vec::new();
    for (buffer, ports, rate, k_max, delay_us) in networks {
        let gbps = rate / 1e9;
        let h = f64::from(hops);
        let paper = buffer / (h * packet * ports);
        let ours = buffer / (2f64.powi(hops - 1) * packet * ports);
        let us = |packets: f64| packets * (slots - 1.0) * packet * 8.0 / rate * 1e6;
        let why = "by network calculus a packet waits for 2^(h-1) (K-1) others at the h-th switch, and \
                   the adversary (h1) finds more than the paper allows";
        rows.push(Row::exact("§3.3", format!("{gbps} Gb/s: K*, by its formula"), k_max, paper));
        rows.push(Row::exact("§3.3", format!("{gbps} Gb/s: K*"), k_max, ours).because(why));
        let sum = us(h * (h + 1.0) / 2.0);
        rows.push(Row::exact(
            "§3.3",
            format!("{gbps} Gb/s, K = 8: queueing delay, by its formula, us"),
            delay_us,
            sum,
        ));
        let sum = us(2f64.powi(hops) - 1.0);
        let says = format!("{gbps} Gb/s, K = 8: queueing delay, us");
        rows.push(Row::exact("§3.3", says, delay_us, sum).because(why));
    }
    Ok(rows)
}

/// The values of K in Figure 4.
const SLOTS: [u8; 6] = [1, 2, 4, 8, 16, 32];
const SPINES: u32 = 32;

/// Figure 4: f(K, 32) by the formula, and with the shipped switches.
pub fn allocation(given: &Given<'_>) -> Result<Vec<Row>, Error> {
    let tors = if given.is_quick { 16 } else { 62 };
    let mut points = Vec::new();
    for choice in [Choice::Fifo, Choice::Hash] {
        for slots in SLOTS {
            points.extend((1..=given.repeats).map(|seed| (choice, slots, seed)));
        }
    }
    let shares = given.runner.each("figure 4", &points, |&(choice, slots, seed)| {
        let network = Allocation::new(tors, SPINES, slots, choice);
        Ok(network.ok_or("no such switches")?.share(seed))
    })?;
    let name = |choice| if choice == Choice::Fifo { "fifo" } else { "hash" };
    let mut table = Table::new(&["choice", "slots", "seed", "share", "formula"]);
    for ((choice, slots, seed), share) in points.iter().zip(&shares) {
        table.row(vec![
            name(*choice).into(),
            slots.to_string(),
            seed.to_string(),
            format!("{share:.5}"),
            format!("{:.5}", allocated_share((*slots).into(), SPINES)),
        ]);
    }
    given.results.csv("figure-4", &table)?;
    let of = |choice: Choice, slots: u8| -> Vec<f64> {
        let own = points.iter().zip(&shares);
        own.filter(|((c, s, _), _)| (*c, *s) == (choice, slots)).map(|(_, x)| *x).collect()
    };
    let series = |choice| {
        let mark = |&slots: &u8| Mark::at_mean(slots.into(), &of(choice, slots));
        (format!("switches, {}", name(choice)), SLOTS.iter().filter_map(mark).collect())
    };
    let formula = |&slots: &u8| Mark::one(slots.into(), allocated_share(slots.into(), SPINES));
    given.results.plot(
        "figure-4",
        &Plot {
            title: format!(
                "Figure 4: slots that find virtual links, {SPINES} spines, {tors} ToR switches"
            ),
            x: "virtual links of a link, K",
            y: "share of a perfect allocation",
            x_names: Vec::new(),
            scale: Scale::Values,
            series: vec![
                ("formula".into(), SLOTS.iter().map(formula).collect()),
                series(Choice::Fifo),
                series(Choice::Hash),
            ],
        },
    )?;
    let row = |choice: Choice, slots: u8| Row {
        figure: "4",
        says: format!("f({slots}, {SPINES}), switches that choose by {}", name(choice)),
        paper: Paper::Is((allocated_share(slots.into(), SPINES) * 1e4).round() / 1e4),
        ours: Mean::of(&of(choice, slots)),
        reason: match choice {
            Choice::Fifo => {
                "a FIFO hands out each spine's links equally often, which is no uniform choice"
            }
            Choice::Hash => "an uplink without a free link is passed over, up to eight times",
        }
        .into(),
    };
    let mut rows = vec![
        Row::exact("4", "K = 1: ~63%, by the formula", 0.63, allocated_share(1, SPINES)),
        Row::exact("4", "f(8, 32), by the formula", 0.8626, allocated_share(8, SPINES)),
    ];
    for slots in [1, 8, 32] {
        rows.extend([row(Choice::Fifo, slots), row(Choice::Hash, slots)]);
    }
    Ok(rows)
}

/// The longest queue that an adversary finds against Theorem 3.1 (trap H1), in packets.
pub fn adversary(given: &Given<'_>) -> Result<Vec<Row>, Error> {
    let tries = if given.is_quick { (20, 4_000) } else { (60, 20_000) };
    let points: Vec<(u64, u32)> =
        [2, 4, 8].into_iter().flat_map(|slots| (1..=3).map(move |hops| (slots, hops))).collect();
    let found = given
        .runner
        .each("h1", &points, |&(slots, hops)| Ok(worst_queue(hops, slots, tries, 1)))?;
    let mut table = Table::new(&["slots", "switches", "tried", "waiting", "paper", "proved"]);
    let mut rows = Vec::new();
    for ((slots, hops), worst) in points.iter().zip(&found) {
        let (paper, proved) = (u64::from(*hops) * (slots - 1), (1 << (hops - 1)) * (slots - 1));
        let cells = [*slots, u64::from(*hops), worst.tried, worst.waiting, paper, proved];
        table.row(cells.map(|cell| cell.to_string()).to_vec());
        let reason = format!("the most that an adversary found; 2^(h-1) (K-1) is {proved}");
        rows.push(Row {
            figure: "Thm 3.1",
            says: format!("K = {slots}: at most {hops} (K-1) packets wait at switch {hops}"),
            paper: Paper::Below(paper as f64 + 0.5),
            ours: Mean { mean: worst.waiting as f64, half: 0.0 },
            reason,
        });
    }
    given.results.csv("h1", &table)?;
    Ok(rows)
}
