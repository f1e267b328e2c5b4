//! Tests of Falcon in its seat: packets in, packets out.
#![allow(clippy::unwrap_used)]

mod common;

use common::{CLIENT, CONTROLLER, LIFE, OWN, SWITCH, replica};
use concord_core::{Guards, Incarnation, Instant, MS, Machine, Now, Rng, SEC, SessionId, SwitchId};
use concord_pisa::Verdict;
use concord_switch::falcon::FalconCounters;
use concord_switch::{
    Agent, AgentConfig, Falcon, Form, Hosted, Ingress, Load as _, PortTable, QueueLayout,
    SwitchProgram as _,
};
use concord_wire::control::{Config, GroupKind, Membership, Message as _, Program};
use concord_wire::falcon::{
    Answer, Asker, Parameters, Reply, Request, Submission, TASKS_MAX, Task,
};
use concord_wire::{Addr, Kind};

const FORMS: [Form; 2] = [Form::Paired, Form::Repair];
const OWNER: Addr = CLIENT;

type Sent = Vec<(Addr, Vec<u8>)>;

struct Switch {
    agent: Agent,
    now_ns: u64,
}

fn config(switch_id: u32) -> Config {
    let kind = GroupKind::Workers;
    Config { kind, program: Program::Falcon, ..common::config(switch_id, switch_id) }
}

fn task(tid: u32) -> Task {
    let parameters = Parameters::new(&tid.to_be_bytes()).unwrap();
    Task { tid, attempt: 1, function: 2, limit_ms: 50, parameters, tag: 9, ..Task::default() }
}

fn submission(tids: impl IntoIterator<Item = u32>) -> Submission {
    let tasks = tids.into_iter().map(task).collect();
    Submission {
        uid: SessionId(0xa11ce),
        jid: 3,
        owner: OWNER,
        number: 1,
        tasks,
        ..Submission::default()
    }
}

fn asker(slot: u16, number: u32) -> Asker {
    Asker { session: SessionId(0xb0b), number, slot, addr: replica(slot) }
}

impl Switch {
    fn new(slots: u32, capacity: u32, form: Form) -> Switch {
        let mut told = AgentConfig::new(Incarnation(LIFE), SWITCH, CONTROLLER);
        told.sections.queue = QueueLayout::one(slots, capacity, form);
        told.program = Program::Falcon;
        let agent = Agent::new(told).unwrap();
        let mut switch = Switch { agent, now_ns: MS };
        switch.configure(OWN.0);
        switch
    }

    fn now(&self) -> Now {
        Now { instant: Instant(self.now_ns), unix_ms: 0 }
    }

    fn configure(&mut self, switch_id: u32) {
        let mut bytes = Vec::new();
        Membership::Configure(config(switch_id).into()).emit(&mut bytes);
        self.agent.handle(self.now(), CONTROLLER, &mut bytes, &mut Sent::new());
        assert_eq!(self.agent.switch_id(), SwitchId(switch_id));
    }

    /// Handles a packet; returns all packets that leave until none is recirculated.
    fn packet(&mut self, mut bytes: Vec<u8>) -> Sent {
        let mut sent = Sent::new();
        self.agent.handle(self.now(), OWNER, &mut bytes, &mut sent);
        self.settle(&mut sent);
        sent
    }

    fn settle(&mut self, sent: &mut Sent) {
        for _ in 0..40 {
            self.now_ns += 2_000;
            self.agent.tick(self.now(), sent);
        }
        sent.retain(|(to, _)| *to != CONTROLLER);
    }

    fn submit(&mut self, tids: impl IntoIterator<Item = u32>) -> (Submission, Vec<(Asker, Reply)>) {
        let mut bytes = Vec::new();
        submission(tids).emit(&mut bytes);
        let mut sent = self.packet(bytes);
        let (to, answer) = sent.pop().unwrap();
        assert_eq!(to, OWNER);
        let handed = sent.iter().map(|(to, bytes)| {
            let (asker, reply) = Reply::parse(bytes).unwrap();
            assert_eq!(asker.addr, *to);
            (asker, reply)
        });
        (Submission::parse(&answer).unwrap(), handed.collect())
    }

    fn ask(&mut self, slot: u16, number: u32, wait_us: u32) -> Reply {
        let mut bytes = Vec::new();
        Request { asker: asker(slot, number), wait_us, ..Request::default() }.emit(&mut bytes);
        let sent = self.packet(bytes);
        let [(to, bytes)] = &sent[..] else { panic!("{sent:?}") };
        let (found, reply) = Reply::parse(bytes).unwrap();
        assert_eq!((*to, found), (replica(slot), asker(slot, number)));
        reply
    }

    fn poll(&mut self) -> Option<u32> {
        match self.ask(1, 1, 0) {
            Reply::Task(assigned) => Some(assigned.task.tid),
            Reply::NoOp { answer: Answer::Empty, .. } => None,
            other => panic!("{other:?}"),
        }
    }

    fn counters(&self) -> FalconCounters {
        let Hosted::Falcon(falcon) = self.agent.program() else { panic!("another program") };
        *falcon.counters()
    }
}

#[test]
fn tasks_come_out_as_they_went_in_each_with_its_ticket() {
    for form in FORMS {
        let mut switch = Switch::new(8, 8, form);
        let (answer, handed) = switch.submit(10..15);
        assert_eq!(
            (answer.answer, answer.tickets, answer.tasks),
            (Answer::Added, vec![0, 1, 2, 3, 4], vec![])
        );
        assert_eq!((answer.retrieve_ptr, answer.add_ptr, answer.switch_id), (0, 5, OWN));
        assert_eq!(handed, []);
        let Reply::Task(first) = switch.ask(4, 7, 0) else { panic!("no task") };
        assert_eq!((first.task, first.ticket, first.switch_id), (task(10), 0, OWN));
        assert_eq!((first.uid, first.jid, first.owner), (SessionId(0xa11ce), 3, OWNER));
        let rest: Vec<u32> = std::iter::from_fn(|| switch.poll()).collect();
        assert_eq!(rest, [11, 12, 13, 14]);
        let (question, _) = switch.submit([]);
        assert_eq!(
            (question.answer, question.retrieve_ptr, question.add_ptr),
            (Answer::Added, 5, 5)
        );
    }
}

/// A full queue answers with the tasks that it did not add.
#[test]
fn falcon_3_3_3_full_queue_returns_the_tasks_not_added() {
    for form in FORMS {
        let mut switch = Switch::new(4, 3, form);
        assert_eq!(switch.submit([1, 2]).0.answer, Answer::Added);
        let (answer, _) = switch.submit([3, 4, 5]);
        assert_eq!((answer.answer, answer.tickets), (Answer::Full, vec![2]));
        assert_eq!(answer.tasks, [task(4), task(5)]);
        assert_eq!(switch.poll(), Some(1));
        assert_eq!(switch.submit([6]).0.answer, Answer::Added);
        let rest: Vec<u32> = std::iter::from_fn(|| switch.poll()).collect();
        assert_eq!(rest, [2, 3, 6]);
    }
}

#[test]
fn a_task_goes_to_the_executor_that_waits_longest() {
    for form in FORMS {
        let mut switch = Switch::new(4, 4, form);
        for slot in 1..=3 {
            let waits = Reply::NoOp { answer: Answer::Waiting, ticket: slot - 1, switch_id: OWN };
            assert_eq!(switch.ask(slot as u16, 5, 1_000_000), waits);
        }
        let (answer, handed) = switch.submit([21, 22]);
        assert_eq!((answer.answer, answer.tickets), (Answer::Added, vec![0, 1]));
        let to: Vec<_> = handed.iter().map(|(asker, _)| *asker).collect();
        assert_eq!(to, [asker(1, 5), asker(2, 5)]);
        let tasks = handed.iter().map(|(_, reply)| match reply {
            Reply::Task(assigned) => (assigned.task, assigned.ticket, assigned.owner),
            Reply::NoOp { .. } => panic!("no task"),
        });
        let tasks: Vec<_> = tasks.collect();
        assert_eq!(tasks, [(task(21), 0, OWNER), (task(22), 1, OWNER)]);
        // One executor still waits: of three tasks two are queued.
        let (answer, handed) = switch.submit([23, 24, 25]);
        assert_eq!((answer.tickets, handed.len()), (vec![2, 3, 4], 1));
        assert_eq!((switch.poll(), switch.poll(), switch.poll()), (Some(24), Some(25), None));
    }
}

/// A full submission goes on after one of its tasks is handed out (docs/internals/bugs.md, 21.1).
#[test]
fn bug_21_1_full_submission_continues_after_a_hand_out() {
    for form in FORMS {
        for waiting in [1, 2, 16] {
            let mut switch = Switch::new(32, 32, form);
            for slot in 1..=waiting {
                switch.ask(slot, 5, 1_000_000);
            }
            let tids = 1..=TASKS_MAX as u32;
            let (answer, handed) = switch.submit(tids);
            assert_eq!((answer.answer, handed.len()), (Answer::Added, usize::from(waiting)));
            assert_eq!(answer.tickets, (0..TASKS_MAX as u32).collect::<Vec<_>>());
            assert_eq!(switch.counters().malformed, 0);
        }
    }
}

#[test]
fn no_more_executors_wait_than_there_are_slots() {
    for form in FORMS {
        let mut switch = Switch::new(4, 2, form);
        let ask = |switch: &mut Switch, slot| match switch.ask(slot, 1, 1_000_000) {
            Reply::NoOp { answer, .. } => answer,
            Reply::Task(_) => panic!("no task is there"),
        };
        assert_eq!(
            [1, 2, 3].map(|slot| ask(&mut switch, slot)),
            [Answer::Waiting, Answer::Waiting, Answer::Full]
        );
        assert_eq!(switch.submit([1, 2, 3]).1.len(), 2);
        assert_eq!(switch.poll(), Some(3));
    }
}

#[test]
fn who_waited_too_long_gets_no_task_and_is_swept() {
    for form in FORMS {
        let mut switch = Switch::new(4, 4, form);
        switch.ask(1, 1, 1_000);
        switch.ask(2, 1, 5_000_000);
        assert_eq!(switch.agent.program().clone().gauge("queue_executors"), 2);
        // The control plane sleeps; the task itself skips executors that waited too long.
        switch.now_ns += 2 * MS;
        let mut bytes = Vec::new();
        submission([7]).emit(&mut bytes);
        let mut sent = Sent::new();
        let Hosted::Falcon(falcon) = switch.agent.program() else { panic!("another program") };
        assert_eq!(falcon.waiting().len(), 2);
        switch.agent.handle(switch.now(), OWNER, &mut bytes, &mut sent);
        switch.settle(&mut sent);
        let to: Vec<Addr> = sent.iter().map(|(to, _)| *to).collect();
        assert_eq!(to, [replica(2), OWNER]);
        assert_eq!(switch.counters().waits_expired, 1);
        // No task is submitted: the control plane removes the waiting executor when its time is
        // over.
        switch.ask(3, 1, 3_000);
        assert_eq!(switch.agent.program().gauge("queue_executors"), 1);
        switch.now_ns += 5 * MS;
        switch.agent.tick(switch.now(), &mut sent);
        assert_eq!(
            (switch.agent.program().gauge("queue_executors"), switch.counters().waits_swept),
            (0, 1)
        );
        assert_eq!(switch.submit([8]).1, []);
        assert_eq!(switch.poll(), Some(8));
    }
}

#[test]
fn a_sweep_from_outside_takes_nobody_away() {
    let mut switch = Switch::new(4, 4, Form::Paired);
    switch.ask(1, 1, 1_000_000);
    let sweep = concord_wire::falcon::Sweep { ticket: 0, switch_id: OWN, queue: 0 };
    assert_eq!(switch.packet(sweep.bytes().to_vec()), []);
    assert_eq!(switch.submit([7]).1.len(), 1);
}

#[test]
fn a_submission_for_another_switch_id_is_not_taken() {
    let mut switch = Switch::new(4, 4, Form::Paired);
    let mut bytes = Vec::new();
    Submission { switch_id: SwitchId(OWN.0 - 1), ..submission([7, 8]) }.emit(&mut bytes);
    let sent = switch.packet(bytes);
    let answer = Submission::parse(&sent[0].1).unwrap();
    assert_eq!(
        (answer.answer, answer.switch_id, answer.tasks.len()),
        (Answer::OtherSwitch, OWN, 2)
    );
    assert_eq!(switch.poll(), None);
}

/// A new switch id begins with an empty queue, and drops recirculated packets of the old one.
#[test]
fn new_switch_id_begins_with_an_empty_queue() {
    let mut switch = Switch::new(4, 4, Form::Paired);
    switch.submit([1]);
    let mut bytes = Vec::new();
    submission([2, 3]).emit(&mut bytes);
    let mut sent = Sent::new();
    switch.agent.handle(switch.now(), OWNER, &mut bytes, &mut sent);
    switch.configure(OWN.0 + 1);
    switch.settle(&mut sent);
    assert_eq!(sent, [], "its owner learns by the new switch id that it has to begin anew");
    assert_eq!((switch.counters().dropped_other_life, switch.poll()), (1, None));
}

#[test]
fn a_submission_that_comes_round_too_often_says_what_is_left() {
    let mut switch = Switch::new(32, 32, Form::Paired);
    for slot in 0..20 {
        switch.ask(slot, 1, 1);
    }
    // All waiting executors are late by now, and the control plane has swept none.
    let late: Vec<u16> = (100..120).collect();
    for slot in late {
        let mut bytes = Vec::new();
        Request { asker: asker(slot, 1), wait_us: 1, ..Request::default() }.emit(&mut bytes);
        switch.agent.handle(switch.now(), OWNER, &mut bytes, &mut Sent::new());
    }
    switch.now_ns += MS;
    let mut bytes = Vec::new();
    submission([1]).emit(&mut bytes);
    let mut sent = Sent::new();
    // Only passes, no sweeps: nothing is due for the control plane before a tick.
    switch.agent.handle(switch.now(), OWNER, &mut bytes, &mut sent);
    for _ in 0..20 {
        switch.now_ns += 2_000;
        let mut other = vec![0; 16];
        concord_wire::Header::new(Kind::Falcon, 2).begin(&mut other);
        switch.agent.handle(switch.now(), OWNER, &mut other, &mut sent);
    }
    let answer = Submission::parse(&sent[0].1).unwrap();
    assert_eq!((answer.answer, answer.tasks.len()), (Answer::Rounds, 1));
    assert_eq!(switch.counters().waits_expired, 16);
}

/// Malformed packets change no register.
#[test]
fn malformed_packets_change_no_register() {
    let rng = &mut Rng::new(1);
    let mut switch = Switch::new(4, 4, Form::Repair);
    switch.submit([1, 2]);
    let registers = |switch: &Switch| {
        let Hosted::Falcon(falcon) = switch.agent.program() else { panic!("another program") };
        (falcon.pointers(), falcon.tasks(), falcon.waiting(), falcon.is_repairing())
    };
    let before = registers(&switch);
    for _ in 0..20_000 {
        let mut bytes = Vec::new();
        match rng.below(3) {
            0 => submission([9]).emit(&mut bytes),
            1 => Request { asker: asker(1, 1), wait_us: 9, ..Request::default() }.emit(&mut bytes),
            _ => {
                let header = concord_wire::Header::new(Kind::Falcon, rng.below(9) as u8);
                bytes = header.bytes(16 + 200).to_vec();
                bytes.extend((0..200).map(|_| rng.below(256) as u8));
                // A packet without an address for its answer.
                bytes[32..38].fill(0);
            }
        }
        if bytes[4] == 1 {
            bytes[34] = bytes[34].wrapping_add(17);
        }
        bytes.truncate(rng.below(bytes.len() as u64) as usize);
        if bytes.len() > 7 && rng.chance(1, 2) {
            bytes[6..8].fill(0);
        }
        assert_eq!(switch.packet_alone(bytes), []);
    }
    assert_eq!(registers(&switch), before);
}

impl Switch {
    fn packet_alone(&mut self, mut bytes: Vec<u8>) -> Sent {
        let mut sent = Sent::new();
        self.agent.handle(self.now(), OWNER, &mut bytes, &mut sent);
        sent
    }
}

#[test]
fn waiting_is_bounded() {
    let mut switch = Switch::new(4, 4, Form::Paired);
    switch.ask(1, 1, u32::MAX);
    let Hosted::Falcon(falcon) = switch.agent.program() else { panic!("another program") };
    assert!(falcon.waiting()[0].2 <= Instant(switch.now_ns + 10 * SEC));
}

/// A queue's priority has room for its capacity, limited by its slots.
#[test]
fn queue_priorities_fit_their_slots() {
    let mut told = AgentConfig::new(Incarnation(LIFE), SWITCH, CONTROLLER);
    let one = QueueLayout::one(64, 20, Form::Paired);
    told.sections.queue = QueueLayout { queues: 2, priorities: 2, ..one };
    let falcon = Falcon::load(&told.settings()).unwrap();
    // The lowest priority of the first queue has half of the slots, the others an eighth each.
    assert_eq!((falcon.room(0, 0), falcon.room(0, 1), falcon.room(1, 1)), (20, 8, 8));
}

/// A program without a seat, so that a test can lose recirculated packets.
fn alone(form: Form, (add_ptr, retrieve_ptr): (u32, u32)) -> Falcon {
    let mut told = AgentConfig::new(Incarnation(LIFE), SWITCH, CONTROLLER);
    told.sections.queue = QueueLayout::one(2, 2, form);
    let mut falcon = Falcon::load(&told.settings()).unwrap();
    common::install(&mut falcon, &config(OWN.0));
    falcon.begin_at(add_ptr, retrieve_ptr);
    falcon
}

/// Runs a submission of one task until it is answered, or until it would be recirculated and
/// `comes_round` is false.
fn submit(falcon: &mut Falcon, tid: u32, comes_round: bool) -> Option<Answer> {
    let mut bytes = Vec::new();
    submission([tid]).emit(&mut bytes);
    let ports = PortTable::default();
    let mut ingress = Ingress::first(Now::default(), OWNER, &ports);
    loop {
        match falcon.process(&ingress, &mut bytes) {
            Verdict::Forward { size_bytes, .. } => {
                return Some(Submission::parse(&bytes[..size_bytes]).unwrap().answer);
            }
            Verdict::Recirculate { metadata, size_bytes } if comes_round => {
                bytes.truncate(size_bytes);
                ingress = Ingress { passes: ingress.passes + 1, metadata, ..ingress };
            }
            _ => return None,
        }
    }
}

fn poll(falcon: &mut Falcon) -> Option<u32> {
    let mut bytes = Vec::new();
    Request { asker: asker(1, 1), ..Request::default() }.emit(&mut bytes);
    let _ = common::process(falcon, &mut bytes);
    match Reply::parse(&bytes).unwrap().1 {
        Reply::Task(assigned) => Some(assigned.task.tid),
        Reply::NoOp { .. } => None,
    }
}

#[test]
fn hole_a_lost_repair_leaves_its_flag_set_for_ever() {
    let lose_a_repair = |form| {
        let mut falcon = alone(form, (0, 0));
        assert_eq!([1, 2].map(|tid| submit(&mut falcon, tid, true)), [Some(Answer::Added); 2]);
        assert_eq!(submit(&mut falcon, 3, false), None);
        assert_eq!([poll(&mut falcon), poll(&mut falcon)], [Some(1), Some(2)]);
        falcon
    };
    let mut printed = lose_a_repair(Form::Printed);
    for tid in 4..100 {
        submit(&mut printed, tid, true);
    }
    assert!(printed.is_repairing() && printed.counters().repairs == 1, "nobody sends another one");
    assert_eq!(submit(&mut printed, 100, true), Some(Answer::Full));
    let mut repair = lose_a_repair(Form::Repair);
    assert!(repair.is_repairing());
    assert_eq!(submit(&mut repair, 4, true), Some(Answer::Added), "the next task brings one");
    assert_eq!((repair.is_repairing(), poll(&mut repair)), (false, Some(4)));
}

/// As printed, empty polls drive retrieve_ptr ahead until the sign flips; here they do not move it.
#[test]
fn hole_empty_polls_drive_retrieve_ptr_ahead() {
    let mut printed = alone(Form::Printed, (0, 0));
    for _ in 0..100 {
        assert_eq!(poll(&mut printed), None);
    }
    assert_eq!(printed.pointers(), (0, 100));
    for form in FORMS {
        let mut falcon = alone(form, (0, 0));
        for _ in 0..100 {
            assert_eq!(poll(&mut falcon), None);
        }
        assert_eq!(falcon.pointers(), (0, 0), "{form:?}");
    }
    // After 2^31 of them the difference is positive: the empty queue counts as full, for ever.
    let mut flipped = alone(Form::Printed, (0, (1 << 31) + 1));
    assert_eq!([1, 2, 3].map(|tid| submit(&mut flipped, tid, true)), [Some(Answer::Full); 3]);
    assert_eq!((flipped.tasks(), poll(&mut flipped)), (vec![], None));
}

/// A task of a higher priority that is handed to a waiting executor leaves a ticket without a task.
/// The packet that skips the ticket arrives twice, and another task is queued in between: returns
/// the task that the next executor gets.
fn skipped_twice(guards: Guards) -> Option<u32> {
    let mut told = AgentConfig::new(Incarnation(LIFE), SWITCH, CONTROLLER);
    let layout = QueueLayout::one(8, 2, Form::Paired);
    told.sections.queue = QueueLayout { priorities: 2, ..layout };
    told.guards = guards;
    let mut falcon = Falcon::load(&told.settings()).unwrap();
    common::install(&mut falcon, &config(OWN.0));
    let ports = PortTable::default();
    let first = Ingress::first(Now::default(), OWNER, &ports);
    let mut bytes = Vec::new();
    Request { asker: asker(1, 1), wait_us: 9_000, ..Request::default() }.emit(&mut bytes);
    let _ = falcon.process(&first, &mut bytes);
    Submission { priority: 1, ..submission([5]) }.emit(&mut bytes);
    let Verdict::Mirror { metadata, .. } = falcon.process(&first, &mut bytes) else {
        panic!("nobody waits")
    };
    assert_eq!((falcon.pointers_of(0, 1), falcon.skipped(0, 1)), ((1, 0), 1));
    let skips = Ingress { passes: 1, metadata, ..first };
    let (mut once, mut again) = (bytes.clone(), bytes);
    let _ = falcon.process(&skips, &mut once);
    assert_eq!((falcon.pointers_of(0, 1), falcon.skipped(0, 1)), ((1, 1), 0));
    let mut bytes = Vec::new();
    Submission { priority: 1, ..submission([6]) }.emit(&mut bytes);
    let _ = falcon.process(&first, &mut bytes);
    let _ = falcon.process(&skips, &mut again);
    poll(&mut falcon)
}

#[test]
fn a_ticket_without_a_task_is_skipped_once() {
    assert_eq!(skipped_twice(Guards::ALL), Some(6));
}

/// Without the check of retrieve_ptr's position, a duplicated skip loses a task.
#[cfg(feature = "mutants")]
#[test]
fn skip_without_looking_at_retrieve_ptr_is_caught() {
    assert_eq!(skipped_twice(Guards::without(concord_core::Guard::SkippedTicket)), None);
}

/// A day has more than 2^32 tasks at 3.2 M/s: the pointers wrap every 22 minutes.
#[test]
fn hole_pointers_wrap_and_tasks_come_out_in_order_all_the_same() {
    for form in FORMS {
        let mut falcon = alone(form, (u32::MAX, u32::MAX));
        for tid in (0..20).step_by(2) {
            assert_eq!(
                [tid, tid + 1].map(|t| submit(&mut falcon, t, true)),
                [Some(Answer::Added); 2]
            );
            assert_eq!(submit(&mut falcon, 99, true), Some(Answer::Full));
            assert_eq!([poll(&mut falcon), poll(&mut falcon)], [Some(tid), Some(tid + 1)]);
        }
        assert_eq!(falcon.pointers(), (19, 19));
    }
}
