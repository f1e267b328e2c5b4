//! Measures Falcon's program without sockets, in nanoseconds per pass, in the default layout: tasks
//! that are added and taken, and tasks that are handed to waiting executors.
//!
//! `cargo run --release -p concord-switch --example falcon`

use std::time::Instant as Clock;

use concord_core::Addr;
use concord_core::{Incarnation, Instant, Now, SEC, SessionId};
use concord_pisa::Verdict;
use concord_switch::{
    AgentConfig, Falcon, Form, Ingress, Load as _, LoadError, PortTable, QueueLayout,
    SwitchProgram as _,
};
use concord_wire::GroupId;
use concord_wire::control::{Config, GroupKind, Member, Program};
use concord_wire::falcon::{Asker, Request, Submission, Task};

const RUNS: usize = 101;
/// Packets in a timed batch, which is short compared to a scheduler's time slice.
const BATCH: usize = 2_000;
/// The target in ns per pass.
const TARGET_NS: f64 = 40.0;

fn addr(node: u16) -> Addr {
    Addr { ip: 0x7f00_0001, port: 7_000 + node }
}

fn config() -> Config {
    Config {
        epoch: 1,
        group: GroupId(0),
        rack: 1,
        switch_id: 1,
        switch_incarnation: 1,
        switch: addr(0),
        kind: GroupKind::Workers,
        program: Program::Falcon,
        members: vec![Member { node: 1, incarnation: 1, addr: addr(1) }],
        joining: Vec::new(),
    }
}

fn submission(tid: u32) -> Vec<u8> {
    let mut bytes = Vec::new();
    let tasks = vec![Task { tid, ..Task::default() }];
    let uid = SessionId(1);
    Submission { uid, owner: addr(2), tasks, ..Submission::default() }.emit(&mut bytes);
    bytes
}

fn request(number: u32, wait_us: u32) -> Vec<u8> {
    let asker = Asker { session: SessionId(2), number, slot: 0, addr: addr(1) };
    let mut bytes = Vec::new();
    Request { asker, wait_us, ..Request::default() }.emit(&mut bytes);
    bytes
}

/// Processes a batch; returns ns per packet.
fn batch(falcon: &mut Falcon, packets: &mut [Vec<u8>]) -> f64 {
    let ports = PortTable::default();
    let now = Now { instant: Instant(SEC), unix_ms: 0 };
    let begin = Clock::now();
    let mut done = 0;
    for packet in &mut *packets {
        let verdict = falcon.process(&Ingress::first(now, addr(2), &ports), packet);
        done += usize::from(!matches!(verdict, Verdict::Drop(_)));
    }
    let ns = begin.elapsed().as_nanos() as f64 / packets.len() as f64;
    assert_eq!(done, packets.len());
    ns
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn main() -> Result<(), LoadError> {
    for form in [Form::Paired, Form::Repair] {
        let mut config_of = AgentConfig::new(Incarnation(1), addr(0), addr(9));
        config_of.sections.queue = match form {
            Form::Paired => QueueLayout::DEFAULT,
            Form::Repair | Form::Printed => QueueLayout::one(1 << 17, 1 << 17, form),
        };
        let mut falcon = Falcon::load(&config_of.settings())?;
        let _ = falcon.install(Now::default(), &config());
        let mut times = vec![Vec::new(); 4];
        for _ in 0..RUNS {
            let many = |make: &dyn Fn(u32) -> Vec<u8>| (0..BATCH as u32).map(make).collect();
            let mut adds: Vec<Vec<u8>> = many(&submission);
            let mut takes: Vec<Vec<u8>> = many(&|number| request(number, 0));
            let mut waits: Vec<Vec<u8>> = many(&|number| request(number, 9_000_000));
            let mut hands: Vec<Vec<u8>> = many(&submission);
            times[0].push(batch(&mut falcon, &mut adds));
            times[1].push(batch(&mut falcon, &mut takes));
            times[2].push(batch(&mut falcon, &mut waits));
            times[3].push(batch(&mut falcon, &mut hands));
        }
        let times: Vec<f64> = times.into_iter().map(median).collect();
        let names = ["added", "taken", "waiting", "handed"];
        for (name, ns) in names.iter().zip(&times) {
            println!("{form:?}, {name}: {ns:.1} ns a pass");
        }
        let worst = times.iter().copied().fold(0.0, f64::max);
        let met = if worst <= TARGET_NS { "met" } else { "missed" };
        println!("{form:?}: {worst:.1} ns at most, target {TARGET_NS} ns: {met}");
    }
    Ok(())
}
