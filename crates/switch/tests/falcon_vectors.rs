//! Golden vectors of Falcon: packets in, each pass's verdict, packets out and registers, in
//! `vectors/switch/falcon_*.txt`. Every rendering of the program must give the same.
//! `CONCORD_REGENERATE=1` writes them anew.
#![allow(clippy::unwrap_used)]

mod common;

use std::fmt::Write as _;

use common::{CLIENT, CONTROLLER, LIFE, OWN, SWITCH, golden, hex, replica};
use concord_core::{Incarnation, Instant, Now, Rng, SessionId, SwitchId, US};
use concord_pisa::{Metadata, Verdict};
use concord_switch::program::Copied;
use concord_switch::{
    AgentConfig, Falcon, Form, Ingress, Load as _, PortTable, QueueLayout, SwitchProgram as _,
};
use concord_wire::control::{Config, GroupKind, Program};
use concord_wire::falcon::{Asker, Parameters, Request, Submission, Sweep, Task, TaskFlags};

/// What comes, at which time in us.
type Step = (String, u64, Vec<u8>);

fn submit(tids: std::ops::Range<u32>) -> Vec<u8> {
    let task = |tid: u32| Task {
        tid,
        attempt: 1,
        function: 3,
        flags: TaskFlags::ONCE,
        limit_ms: 2_000,
        parameters: Parameters::new(&tid.to_be_bytes()).unwrap(),
        tag: 0x7a65 + u64::from(tid),
    };
    let mut bytes = Vec::new();
    let (uid, tasks) = (SessionId(0xa11c_e001), tids.map(task).collect());
    Submission { uid, jid: 5, owner: CLIENT, number: 9, tasks, ..Submission::default() }
        .emit(&mut bytes);
    bytes
}

fn ask(slot: u16, wait_us: u32) -> Vec<u8> {
    let asker = Asker { session: SessionId(0xb0b), number: 40, slot, addr: replica(slot) };
    let mut bytes = Vec::new();
    Request { asker, wait_us, ..Request::default() }.emit(&mut bytes);
    bytes
}

fn registers(falcon: &Falcon) -> String {
    let ((add, retrieve), is_repairing) = (falcon.pointers(), falcon.is_repairing());
    let waiting: Vec<u32> = falcon.waiting().iter().map(|waiter| waiter.1).collect();
    format!(
        "add_ptr={add} retrieve_ptr={retrieve} is_repairing={} tasks={:?} waiting={waiting:?}",
        u8::from(is_repairing),
        falcon.tasks()
    )
}

/// Runs the steps, and writes down all of it.
fn render(form: Form, description: &str, steps: &[Step]) -> String {
    let mut told = AgentConfig::new(Incarnation(LIFE), SWITCH, CONTROLLER);
    told.sections.queue = QueueLayout { slots: 4, capacity: 3, form };
    let mut falcon = Falcon::load(&told.settings()).unwrap();
    let kind = GroupKind::Workers;
    let config = Config { kind, program: Program::Falcon, ..common::config(1, OWN.0) };
    common::install(&mut falcon, &config);
    let mut text = format!(
        "# {description}\n\nlayout: slots=4 capacity=3 form={form:?}\ntables: switch_id={OWN} switch={SWITCH}\n"
    );
    for (comment, at_us, bytes) in steps {
        let (mut packet, ports) = (bytes.clone(), PortTable::default());
        let now = Now { instant: Instant(at_us * US), unix_ms: 0 };
        let is_sweep = Sweep::parse(bytes).is_ok();
        let sender = if is_sweep { SWITCH } else { CLIENT };
        let mut ingress = Ingress::first(now, sender, &ports);
        writeln!(text, "\nstep: {comment}\nat_us: {at_us}\npacket: {}", hex(bytes)).unwrap();
        loop {
            let verdict = falcon.process(&ingress, &mut packet);
            let mut round = None;
            match verdict {
                Verdict::Forward { to, size_bytes } => {
                    writeln!(text, "verdict: forward {to}").unwrap();
                    writeln!(text, "out: {}", hex(&packet[..size_bytes])).unwrap();
                }
                Verdict::Mirror { to, copy_bytes, metadata, size_bytes } => {
                    let mut copy = packet[..copy_bytes].to_vec();
                    falcon.egress(&Copied { index: 0, port: None, to }, &mut copy);
                    writeln!(text, "verdict: mirror {to}\ncopy: {}", hex(&copy)).unwrap();
                    round = Some((metadata, size_bytes));
                }
                Verdict::Recirculate { metadata, size_bytes } => {
                    writeln!(text, "verdict: recirculate").unwrap();
                    round = Some((metadata, size_bytes));
                }
                Verdict::Drop(why) => writeln!(text, "verdict: drop {why:?}").unwrap(),
                other => panic!("Falcon does not do so: {other:?}"),
            }
            let comes_round = round.is_some();
            if let Some((metadata, size_bytes)) = round {
                let Metadata([first, second]) = metadata;
                packet.truncate(size_bytes);
                writeln!(text, "metadata: {first:x} {second:x}\nout: {}", hex(&packet)).unwrap();
                ingress = Ingress { passes: ingress.passes + 1, metadata, ..ingress };
            }
            writeln!(text, "registers: {}", registers(&falcon)).unwrap();
            if !comes_round {
                break;
            }
        }
    }
    text
}

fn scenario() -> Vec<Step> {
    let step = |comment: &str, at_us, bytes| (comment.to_string(), at_us, bytes);
    let sweep =
        |ticket, switch_id| Sweep { ticket, switch_id: SwitchId(switch_id) }.bytes().to_vec();
    let mut short = submit(0..1);
    short.truncate(150);
    vec![
        step("two tasks, the second in its next pass", 1, submit(1..3)),
        step("of two there is room for one", 2, submit(3..5)),
        step("a full queue takes none", 3, submit(5..6)),
        step("a request takes the first task", 4, ask(1, 0)),
        step("another the second", 5, ask(2, 1_000)),
        step("a question", 6, submit(0..0)),
        step("another the third", 7, ask(1, 0)),
        step("there is none any more", 8, ask(1, 0)),
        step("who can wait, waits", 9, ask(1, 1_000)),
        step("and another one, for longer", 10, ask(2, 90_000)),
        step("the first has waited too long: the second gets the task", 5_000, submit(6..7)),
        step("one waits", 5_001, ask(3, 1_000)),
        step("a sweep for another ticket takes nobody", 9_000, sweep(1, OWN.0)),
        step("a sweep of another switch neither", 9_001, sweep(5, OWN.0 - 1)),
        step("a sweep takes it away", 9_002, sweep(5, OWN.0)),
        step("a packet that is cut short", 9_003, short),
        step("a task is queued again", 9_004, submit(8..9)),
    ]
}

/// Packets drawn from a seed.
fn random() -> Vec<Step> {
    let mut rng = Rng::new(21);
    let mut tid = 100;
    let mut steps = Vec::new();
    for index in 0..200 {
        let bytes = match rng.below(6) {
            0..=1 => {
                let tasks = rng.between(0, 3) as u32;
                tid += tasks;
                submit(tid - tasks..tid)
            }
            2 => ask(rng.between(1, 3) as u16, 0),
            _ => ask(rng.between(1, 3) as u16, rng.between(10, 1_000) as u32),
        };
        steps.push((format!("{index}"), 10 + 100 * index, bytes));
    }
    steps
}

#[test]
fn golden_vectors_of_falcon() {
    for (form, name) in [(Form::Paired, "paired"), (Form::Repair, "repair")] {
        let described = format!("Falcon's queue, pointers {name}");
        golden(&format!("falcon_{name}"), &render(form, &described, &scenario()));
        golden(&format!("falcon_{name}_random"), &render(form, &described, &random()));
    }
}
