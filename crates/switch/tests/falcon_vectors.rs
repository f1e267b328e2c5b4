//! Golden vectors of Falcon: for each pass the packet in, the verdict, the packets out and the
//! registers, in `vectors/switch/falcon_*.txt`. Every rendering of the program must give the same.
//! `CONCORD_REGENERATE=1` rewrites them.
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

/// A comment, the time in us, and the packet.
type Step = (String, u64, Vec<u8>);

fn submit(tids: std::ops::Range<u32>) -> Vec<u8> {
    submit_to((0, 0), tids)
}

/// A submission to a queue, with a priority.
fn submit_to((queue, priority): (u8, u8), tids: std::ops::Range<u32>) -> Vec<u8> {
    let task = |tid: u32| Task {
        tid,
        attempt: 1,
        function: 3,
        flags: TaskFlags::ONCE,
        needs: queue,
        limit_ms: 2_000,
        parameters: Parameters::new(&tid.to_be_bytes()).unwrap(),
        tag: 0x7a65 + u64::from(tid),
    };
    let mut bytes = Vec::new();
    let (uid, tasks) = (SessionId(0xa11c_e001), tids.map(task).collect());
    let said = Submission { uid, jid: 5, owner: CLIENT, number: 9, tasks, ..Submission::default() };
    Submission { queue, priority, ..said }.emit(&mut bytes);
    bytes
}

fn ask(slot: u16, wait_us: u32) -> Vec<u8> {
    ask_of(0, slot, wait_us)
}

fn ask_of(queue: u8, slot: u16, wait_us: u32) -> Vec<u8> {
    let asker = Asker { session: SessionId(0xb0b), number: 40, slot, addr: replica(slot) };
    let mut bytes = Vec::new();
    Request { asker, queue, wait_us, ..Request::default() }.emit(&mut bytes);
    bytes
}

fn registers(falcon: &Falcon) -> String {
    if falcon.layout().queues > 1 {
        return registers_of_queues(falcon);
    }
    let ((add, retrieve), is_repairing) = (falcon.pointers(), falcon.is_repairing());
    let waiting: Vec<u32> = falcon.waiting().iter().map(|waiter| waiter.1).collect();
    format!(
        "add_ptr={add} retrieve_ptr={retrieve} is_repairing={} tasks={:?} waiting={waiting:?}",
        u8::from(is_repairing),
        falcon.tasks()
    )
}

/// add_ptr and retrieve_ptr of each queue, the most urgent priority first.
fn registers_of_queues(falcon: &Falcon) -> String {
    let mut text = String::from("pointers=");
    for queue in 0..falcon.layout().queues {
        for priority in (0..falcon.layout().priorities).rev() {
            let (add, retrieve) = falcon.pointers_of(queue, priority);
            write!(text, "{queue}.{priority}:{add}/{retrieve} ").unwrap();
        }
    }
    let waiting: Vec<u32> = falcon.waiting().iter().map(|waiter| waiter.1).collect();
    write!(text, "tasks={:?} waiting={waiting:?}", falcon.tasks()).unwrap();
    text
}

fn render(form: Form, description: &str, steps: &[Step]) -> String {
    render_in(QueueLayout::one(4, 3, form), description, steps)
}

/// Runs the steps, and renders all of them.
fn render_in(layout: QueueLayout, description: &str, steps: &[Step]) -> String {
    let mut told = AgentConfig::new(Incarnation(LIFE), SWITCH, CONTROLLER);
    let QueueLayout { slots, capacity, queues, priorities, form } = layout;
    told.sections.queue = layout;
    let mut falcon = Falcon::load(&told.settings()).unwrap();
    let kind = GroupKind::Workers;
    let config = Config { kind, program: Program::Falcon, ..common::config(1, OWN.0) };
    common::install(&mut falcon, &config);
    let mut text =
        format!("# {description}\n\nlayout: slots={slots} capacity={capacity} form={form:?}");
    if queues > 1 {
        write!(text, " queues={queues} priorities={priorities}").unwrap();
    }
    writeln!(text, "\ntables: switch_id={OWN} switch={SWITCH}").unwrap();
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
    let sweep = |ticket, switch_id| {
        Sweep { ticket, switch_id: SwitchId(switch_id), queue: 0 }.bytes().to_vec()
    };
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

/// Two queues of four priorities.
fn queues() -> QueueLayout {
    let layout = QueueLayout::one(32, 3, Form::Paired);
    QueueLayout { queues: 2, priorities: 4, ..layout }
}

fn scenario_of_queues() -> Vec<Step> {
    let step = |comment: &str, at_us, bytes| (comment.to_string(), at_us, bytes);
    let sweep = Sweep { ticket: 2, switch_id: OWN, queue: 1 }.bytes().to_vec();
    vec![
        step("a task of the lowest priority", 1, submit_to((0, 0), 1..2)),
        step("two of the highest", 2, submit_to((0, 3), 2..4)),
        step("one of another queue", 3, submit_to((1, 1), 4..5)),
        step("the highest come first", 4, ask(1, 0)),
        step("both of them", 5, ask(1, 0)),
        step("then the lowest", 6, ask(1, 1_000)),
        step("the other queue's are not for who asks this one", 7, ask(1, 0)),
        step("but for who asks it", 8, ask_of(1, 1, 0)),
        step("somebody waits in each", 9, ask_of(1, 2, 1_000)),
        step("for this one too", 10, ask(3, 90_000)),
        step("who waits gets the next, whatever its priority", 11, submit_to((1, 2), 5..7)),
        step("which leaves no ticket without a task", 12, ask_of(1, 1, 0)),
        step("there are two slots for each", 13, submit_to((1, 3), 7..11)),
        step("the others have room", 14, submit_to((1, 0), 11..12)),
        step("and are taken after them", 15, ask_of(1, 1, 0)),
        step("the second", 16, ask_of(1, 1, 0)),
        step("and then the lowest", 17, ask_of(1, 1, 0)),
        step("one waits", 18, ask_of(1, 1, 1_000)),
        step("and is swept away", 5_000, sweep),
        step("a question", 5_001, submit_to((1, 3), 0..0)),
        step("there is no such queue", 5_002, submit_to((2, 0), 12..14)),
        step("nor such a priority", 5_003, submit_to((1, 4), 12..13)),
        step("for executors neither", 5_004, ask_of(31, 1, 1_000)),
    ]
}

/// Packets for both queues drawn from a seed.
fn random_of_queues() -> Vec<Step> {
    let mut rng = Rng::new(22);
    let mut tid = 100;
    let mut steps = Vec::new();
    for index in 0..300 {
        let queue = rng.below(2) as u8;
        let bytes = if rng.chance(2, 5) {
            let tasks = rng.between(0, 3) as u32;
            tid += tasks;
            submit_to((queue, rng.below(4) as u8), tid - tasks..tid)
        } else {
            let wait_us = if rng.chance(1, 3) { 0 } else { rng.between(10, 1_000) as u32 };
            ask_of(queue, rng.between(1, 3) as u16, wait_us)
        };
        steps.push((format!("{index}"), 10 + 100 * index, bytes));
    }
    steps
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
    let described = "Falcon's queues: two, of four priorities each";
    golden("falcon_queues", &render_in(queues(), described, &scenario_of_queues()));
    golden("falcon_queues_random", &render_in(queues(), described, &random_of_queues()));
}
