//! Randomly changed packets of Falcon, from a seed: no input causes a panic, and no malformed one
//! changes a register. `CONCORD_FALCON_INPUTS` sets the number of inputs per format; `make
//! fuzz-falcon` runs many.
#![allow(clippy::unwrap_used)]

mod common;

use std::collections::hash_map::DefaultHasher;
use std::hash::Hasher;

use common::{CLIENT, CONTROLLER, LIFE, OWN, SWITCH, replica};
use concord_core::{Incarnation, Instant, Now, Rng, SessionId, SwitchId};
use concord_pisa::Verdict;
use concord_switch::falcon::DropReason;
use concord_switch::{
    AgentConfig, Falcon, Form, Ingress, Load as _, PortTable, QueueLayout, SwitchProgram as _,
};
use concord_wire::control::{Config, GroupKind, Program};
use concord_wire::falcon::{Asker, Parameters, Request, Submission, Sweep, Task, TaskFlags};
use concord_wire::{Header, Kind};

const INPUTS: u64 = 50_000;
/// The number of inputs after which the queues are emptied.
const INPUTS_OF_ONE: u64 = 500;

fn inputs() -> u64 {
    let told = std::env::var("CONCORD_FALCON_INPUTS").ok();
    told.and_then(|told| told.parse().ok()).unwrap_or(INPUTS)
}

fn falcon(layout: QueueLayout) -> Falcon {
    let mut told = AgentConfig::new(Incarnation(LIFE), SWITCH, CONTROLLER);
    told.sections.queue = layout;
    let mut falcon = Falcon::load(&told.settings()).unwrap();
    let kind = GroupKind::Workers;
    let config = Config { kind, program: Program::Falcon, ..common::config(1, OWN.0) };
    common::install(&mut falcon, &config);
    falcon
}

fn registers(falcon: &Falcon) -> u64 {
    let mut hasher = DefaultHasher::new();
    falcon.hash_state(&mut hasher);
    hasher.finish()
}

fn submission(rng: &mut Rng) -> Vec<u8> {
    let task = |tid: u32| Task {
        tid,
        attempt: 1,
        flags: TaskFlags(tid as u8),
        needs: (tid % 8) as u8,
        parameters: Parameters::new(&tid.to_be_bytes()).unwrap(),
        ..Task::default()
    };
    let mut bytes = Vec::new();
    let (queue, priority) = (rng.below(3) as u8, rng.below(5) as u8);
    let tasks = (0..rng.below(17) as u32).map(task).collect();
    let uid = SessionId(rng.next_u64());
    Submission { uid, owner: CLIENT, queue, priority, tasks, ..Submission::default() }
        .emit(&mut bytes);
    bytes
}

fn request(rng: &mut Rng) -> Vec<u8> {
    let asker = Asker { session: SessionId(5), number: 1, slot: 3, addr: replica(1) };
    let mut bytes = Vec::new();
    let (queue, wait_us) = (rng.below(3) as u8, rng.below(3_000) as u32);
    Request { asker, queue, wait_us, ..Request::default() }.emit(&mut bytes);
    bytes
}

fn sweep(rng: &mut Rng) -> Vec<u8> {
    let (ticket, queue) = (rng.below(4) as u32, rng.below(3) as u8);
    let switch_id = SwitchId(OWN.0 - rng.below(2) as u32);
    Sweep { ticket, switch_id, queue }.bytes().to_vec()
}

fn anything(rng: &mut Rng) -> Vec<u8> {
    let length = rng.below(400) as usize;
    let mut bytes = Header::new(Kind::Falcon, rng.below(9) as u8).bytes(16 + length).to_vec();
    bytes.extend((0..length).map(|_| rng.below(256) as u8));
    bytes
}

/// Changes up to three bytes, or cuts the packet.
fn corrupt(rng: &mut Rng, bytes: &mut Vec<u8>) {
    for _ in 0..rng.below(4) {
        let at = rng.below(bytes.len() as u64) as usize;
        bytes[at] = if rng.chance(1, 2) { rng.below(256) as u8 } else { bytes[at] ^ 1 };
    }
    if rng.chance(1, 8) {
        bytes.truncate(rng.below(bytes.len() as u64 + 1) as usize);
    }
}

/// A format's name, and the function that draws a packet of it.
type Format = (&'static str, fn(&mut Rng) -> Vec<u8>);

#[test]
fn no_packet_is_a_panic_and_malformed_ones_change_no_register() {
    let formats: [Format; 4] = [
        ("submissions", submission),
        ("requests", request),
        ("sweeps", sweep),
        ("anything", anything),
    ];
    let queues = QueueLayout { queues: 2, priorities: 4, ..QueueLayout::one(32, 2, Form::Paired) };
    let layouts = [queues, QueueLayout::one(4, 3, Form::Repair)];
    for (seed, (name, make)) in (21..).zip(formats) {
        let rng = &mut Rng::new(seed);
        let (mut malformed, mut taken) = (0, 0);
        for round in 0..inputs().div_ceil(INPUTS_OF_ONE) {
            let mut switch = falcon(layouts[(round % 2) as usize]);
            for _ in 0..INPUTS_OF_ONE {
                let before = registers(&switch);
                let mut bytes = make(rng);
                corrupt(rng, &mut bytes);
                match passes(&mut switch, rng, &mut bytes) {
                    true => taken += 1,
                    false => {
                        malformed += 1;
                        assert_eq!(registers(&switch), before, "{name}: {bytes:02x?}");
                    }
                }
            }
        }
        println!("{name}: {malformed} malformed, {taken} taken");
        assert!(malformed > 0 && (taken > 0 || name == "anything"), "{name}");
    }
}

/// Runs a packet until it is no longer recirculated. Returns whether it was one of Falcon's.
fn passes(falcon: &mut Falcon, rng: &mut Rng, bytes: &mut Vec<u8>) -> bool {
    let ports = PortTable::default();
    let now = Now { instant: Instant(rng.below(1 << 40)), unix_ms: 0 };
    let sender = if rng.chance(1, 2) { SWITCH } else { CLIENT };
    let mut ingress = Ingress::first(now, sender, &ports);
    loop {
        let (metadata, size_bytes) = match falcon.process(&ingress, bytes) {
            Verdict::Drop(DropReason::Malformed(_)) => {
                assert_eq!(ingress.passes, 0, "it was looked at before it did anything");
                return false;
            }
            Verdict::Recirculate { metadata, size_bytes }
            | Verdict::Mirror { metadata, size_bytes, .. } => (metadata, size_bytes),
            Verdict::Drop(_) | Verdict::Forward { .. } => return true,
            other => panic!("Falcon does not do so: {other:?}"),
        };
        bytes.truncate(size_bytes);
        ingress = Ingress { passes: ingress.passes + 1, metadata, ..ingress };
    }
}
