//! `--explain-flow`: where the time of a flow went.
//!
//! A flow ends when its last missing packet arrives. The time of the flow is that packet's: until
//! it was first sent, until it was last sent, and at each port on its path.

use concord_runtime::Error;
use concord_sim::engine::{Time, US};
use concord_sim::net::scenario::{Options, Point, Scenario};
use concord_sim::net::{FlowSpec, Outcome, Visit};

/// The visits of the packet that ended a flow, from its sender on.
fn way(outcome: &Outcome, spec: FlowSpec, ended: Time) -> Vec<Visit> {
    let mut way: Vec<Visit> = Vec::new();
    for visit in outcome.visits.iter().rev() {
        let port = &outcome.ports[visit.port as usize];
        let is_next = match way.last() {
            None => visit.arrives_ps == ended.0 && port.to.0 == spec.to.0,
            Some(next) => {
                let here = outcome.ports[next.port as usize].from;
                visit.arrives_ps == next.came_ps && port.to == here && visit.number == next.number
            }
        };
        if is_next && visit.number.is_some() {
            way.push(*visit);
            if port.from.0 == spec.from.0 {
                break;
            }
        }
    }
    way.reverse();
    way
}

fn us(ps: u64) -> String {
    format!("{:>12.3} us", ps as f64 / US as f64)
}

/// Runs the point, and shows where the time of the flow went.
///
/// # Errors
/// The flow does not exist.
pub fn run(scenario: &Scenario, point: &Point, flow: u32) -> Result<(), Error> {
    for line in lines(scenario, point, flow)? {
        println!("{line}");
    }
    Ok(())
}

/// The lines to show.
pub fn lines(scenario: &Scenario, point: &Point, flow: u32) -> Result<Vec<String>, Error> {
    let options = Options { watch: Some(flow), ..Options::default() };
    let run = scenario.run(point, &options);
    let (experiment, outcome) = run.map_err(|e| Error::new(e.to_string()))?;
    let Some(report) = outcome.flows.get(flow as usize) else {
        let last = outcome.flows.len().saturating_sub(1);
        return Err(Error::new(format!("--explain-flow {flow}: the point has flows 0 to {last}")));
    };
    let spec = experiment.flows[flow as usize].spec;
    let name = |node| scenario.names.of(node);
    let load = point.load.map(|load| format!(" at load {load}")).unwrap_or_default();
    let mut lines = vec![format!(
        "flow {flow} of {}{load}, seed {}: {} bytes from {} to {}",
        point.transport.name(),
        point.seed,
        spec.bytes,
        name(spec.from.into()),
        name(spec.to.into())
    )];
    let Some(began) = report.began else {
        lines.push("It never began: the flow that it waits for did not end.".into());
        return Ok(lines);
    };
    let Some(ended) = report.ended else {
        lines.push(format!(
            "It began at {}, and had not ended when the run did, at {}; {} bytes had arrived.",
            us(began.0).trim(),
            us(outcome.ended.0).trim(),
            report.received_bytes
        ));
        return Ok(lines);
    };
    let (took, ideal) = (ended.since(began), report.ideal_ps);
    let slowdown = took as f64 / ideal.max(1) as f64;
    lines.push(format!(
        "began{}   ideal{}   took{}   slowdown {slowdown:.3}",
        us(began.0),
        us(ideal),
        us(took)
    ));
    let way = way(&outcome, spec, ended);
    let Some(sent) = way.first() else {
        lines.push("The stays of its last packet at ports were not recorded.".into());
        return Ok(lines);
    };
    let is_first = |visit: &&Visit| visit.port == sent.port && visit.number == sent.number;
    let first_ps = outcome.visits.iter().find(is_first).map_or(sent.came_ps, |visit| visit.came_ps);
    let number = sent.number.unwrap_or(0);
    lines.push(format!(
        "{}  sender: window, pacing or tokens, until packet {number} was first sent",
        us(first_ps.saturating_sub(began.0))
    ));
    lines.push(format!(
        "{}  lost copies of it, until it was sent for the last time",
        us(sent.came_ps - first_ps.min(sent.came_ps))
    ));
    if let Some(way) = &outcome.way {
        let hops = way.hops.iter().map(|(switch, link)| format!("{} ({link})", name(*switch)));
        lines.push(format!(
            "    reserved by slot {} of its receiver, of {} reservations; switches, and virtual links at them: {}",
            way.slot,
            way.reservations,
            hops.collect::<Vec<_>>().join(", ")
        ));
    }
    let mut queued = 0;
    for visit in &way {
        let port = &outcome.ports[visit.port as usize];
        let (from, to) = (name(port.from), name(port.to));
        queued += visit.left_ps - visit.came_ps;
        lines.push(format!("{}  queue at {from}, port to {to}", us(visit.left_ps - visit.came_ps)));
        lines.push(format!(
            "{}  link {from} to {to}, and the pipeline there",
            us(visit.arrives_ps - visit.left_ps)
        ));
    }
    lines.push(format!("{}  in all; of it in queues{}", us(took), us(queued)));
    Ok(lines)
}
