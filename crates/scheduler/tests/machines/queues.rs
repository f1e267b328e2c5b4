//! Classes, priorities, nodes, and executors that ask for their next task.

use concord_wire::falcon::{Asker, queue_of_node};

use super::*;

fn in_line(submission: &Submission) -> (u8, u8) {
    (submission.queue, submission.priority)
}

#[test]
fn a_full_queue_keeps_no_task_of_another_one_waiting() {
    let mut owner = owner(Guards::ALL);
    owner.submit(at(0), job(400, false));
    let first = submitted(&mut owner, 0);
    assert_eq!(first.len(), 16, "no more are unanswered");
    for submission in &first {
        assert!(tell(&mut owner, 0, &answer(submission, 0, 0, 0)).is_empty());
    }
    owner.submit(at(0), Job { priority: 3, needs: 2, ..job(2, false) });
    let urgent = submitted(&mut owner, 0);
    assert_eq!((urgent.len(), in_line(&urgent[0]), urgent[0].tasks[0].needs), (1, (2, 3), 2));
}

/// The most urgent tasks are submitted first and asked for in their own queues.
#[test]
fn urgent_tasks_first_in_their_queues() {
    let mut owner = owner(Guards::ALL);
    for (priority, needs) in [(0, 0), (2, 0), (1, 5)] {
        owner.submit(at(0), Job { priority, needs, ..job(1, false) });
    }
    let first = submitted(&mut owner, 0);
    assert_eq!(first.iter().map(in_line).collect::<Vec<_>>(), [(0, 2), (5, 1), (0, 0)]);
    for submission in &first {
        tell(&mut owner, 0, &answer(submission, 1, 7, 7));
    }
    let mut sent = Sent::new();
    owner.tick(at(2), &mut sent);
    let asked = sent.iter().filter_map(|(_, bytes)| Submission::parse(bytes).ok());
    assert_eq!(asked.map(|asked| in_line(&asked)).collect::<Vec<_>>(), [(0, 0), (5, 1), (0, 2)]);
    // retrieve_ptr of one queue says nothing of the others.
    let question = Submission { tasks: vec![], number: 0, ..first[1].clone() };
    tell(&mut owner, 3, &Submission { tickets: vec![], ..answer(&question, 0, 8, 8) });
    assert_eq!(owner.explain(3, 0).unwrap().0, "was handed to an executor");
    assert_eq!(owner.explain(1, 0).unwrap().0, "is in the queue");
}

fn near() -> Job {
    Job { near: Some(4), locality_wait_ns: 50 * MS, ..job(3, false) }
}

/// Tasks that waited long enough for their node go where all executors look.
#[test]
fn task_that_waited_for_its_node_goes_to_all() {
    let mut owner = owner(Guards::ALL);
    owner.submit(at(0), near());
    let first = submitted(&mut owner, 0);
    assert_eq!((first.len(), in_line(&first[0])), (1, (queue_of_node(4), 0)));
    tell(&mut owner, 1, &answer(&first[0], 3, 0, 1));
    assert!(submitted(&mut owner, 4).is_empty());
    let again = submitted(&mut owner, 50);
    // The first was handed out, and nobody said that it runs: it waits for its node no longer
    // either.
    let mut moved: Vec<(u32, u16)> =
        again.iter().flat_map(|s| &s.tasks).map(|task| (task.tid, task.attempt)).collect();
    moved.sort_unstable();
    assert_eq!(moved, [(0, 2), (1, 2), (2, 2)]);
    assert_eq!(owner.counters().tasks_moved, 3);
    assert!(owner.explain(1, 1).unwrap().2.again.each().any(|(_, times)| times == 1));
}

/// A submission to a node that is answered late is not left there.
#[test]
fn late_answered_node_submission_is_withdrawn() {
    let mut owner = owner(Guards::ALL);
    owner.submit(at(0), near());
    let first = submitted(&mut owner, 48);
    assert!(submitted(&mut owner, 51).is_empty());
    let again = tell(&mut owner, 52, &answer(&first[0], 3, 0, 0));
    assert_eq!((again.len(), in_line(&again[0]), again[0].tasks.len()), (1, (0, 0), 3));
}

#[test]
fn a_queue_that_the_switch_does_not_have_is_tried_again_later() {
    let mut owner = owner(Guards::ALL);
    owner.submit(at(0), Job { needs: 7, ..job(1, false) });
    let first = submitted(&mut owner, 0);
    let none = Submission { answer: Answer::NoQueue, ..answer(&first[0], 0, 0, 0) };
    assert!(tell(&mut owner, 0, &none).is_empty());
    assert_eq!(submitted(&mut owner, 2).len(), 1);
}

// Workers.

fn of(queues: u32, slots: u16, prefetch: u8) -> Worker {
    let config = WorkerConfig::new(SessionId(77), WORKER, SWITCH, slots);
    Worker::new(WorkerConfig { queues, prefetch, ..config })
}

/// What it asks the switch for: slot, queue, and whether it waits there.
fn asked(sent: &Sent) -> Vec<(Asker, u8, bool)> {
    let parsed = sent.iter().filter_map(|(_, bytes)| Request::parse(bytes).ok());
    parsed.map(|request| (request.asker, request.queue, request.wait_us > 0)).collect()
}

fn tick(worker: &mut Worker, ms: u64) -> Vec<(Asker, u8, bool)> {
    let mut sent = Sent::new();
    worker.tick(at(ms), &mut sent);
    asked(&sent)
}

fn replied(worker: &mut Worker, ms: u64, to: (Asker, u8, bool), reply: &Reply) -> Sent {
    let mut bytes = Vec::new();
    Request { asker: to.0, queue: to.1, ..Request::default() }.emit(&mut bytes);
    reply.put(&mut bytes).unwrap();
    let mut sent = Sent::new();
    worker.handle(at(ms), SWITCH, &mut bytes, &mut sent);
    worker.flush(at(ms), &mut sent);
    sent
}

fn noop(answer: Answer) -> Reply {
    Reply::NoOp { answer, ticket: 0, switch_id: SwitchId(1) }
}

pub(super) fn given(queue: u8, tid: u32, needs: u8) -> Reply {
    let task = Task { tid, needs, ..plain() };
    let (uid, jid, owner, ticket) = (UID, 1, OWNER, tid);
    Reply::Task(Assigned { uid, jid, owner, ticket, switch_id: SwitchId(1), queue, task })
}

fn returned(sent: &Sent) -> usize {
    messages(sent).iter().filter(|m| matches!(m, TaskMessage::Returned { .. })).count()
}

/// An executor of several classes asks one after the other and waits in each.
#[test]
fn executor_of_several_classes_waits_in_each() {
    let mut worker = of(1 | 1 << 3 | 1 << 12, 1, 0);
    let mut next = tick(&mut worker, 0);
    for queue in [12, 3, 0] {
        assert_eq!((next.len(), next[0].1), (1, queue));
        next = asked(&replied(&mut worker, 0, next[0], &noop(Answer::Waiting)));
    }
    assert!(next.is_empty() && tick(&mut worker, 1).is_empty(), "it waits in all of them");
    let token = |queue| (asker(), queue, true);
    let sent = replied(&mut worker, 2, token(3), &given(3, 1, 3));
    assert_eq!((orders(&mut worker), returned(&sent)), (vec!["start"], 0));
    // A second one finds it busy.
    let sent = replied(&mut worker, 3, token(0), &given(0, 2, 0));
    assert_eq!((orders(&mut worker), returned(&sent)), (vec![], 1));
    let mut sent = Sent::new();
    worker.finished(at(4), 1, Ended::Done, Output::default(), &mut sent);
    let next = asked(&sent);
    assert_eq!((next.len(), next[0].1), (1, 3), "it waits at its node still");
    let next = asked(&replied(&mut worker, 4, next[0], &noop(Answer::Empty)));
    assert_eq!((next.len(), next[0].1), (1, 0));
}

#[test]
fn a_second_task_begins_in_another_slot_that_is_free() {
    let mut worker = of(1, 2, 0);
    let asks = tick(&mut worker, 0);
    assert_eq!(asks.len(), 2);
    replied(&mut worker, 0, asks[0], &given(0, 1, 0));
    let sent = replied(&mut worker, 0, asks[0], &given(0, 2, 0));
    assert_eq!((orders(&mut worker), returned(&sent)), (vec!["start", "start"], 0));
    let sent = replied(&mut worker, 0, asks[1], &given(0, 3, 0));
    assert_eq!((orders(&mut worker), returned(&sent)), (vec![], 1));
}

/// What a worker begins, and how many tasks it gives back.
pub(super) fn of_another_class(guards: Guards) -> (Vec<&'static str>, usize) {
    let config = WorkerConfig::new(SessionId(77), WORKER, SWITCH, 1);
    let mut worker = Worker::new(WorkerConfig { queues: 1 | 1 << 12, guards, ..config });
    let asks = tick(&mut worker, 0);
    let sent = replied(&mut worker, 0, asks[0], &given(0, 1, 2));
    (orders(&mut worker), returned(&sent))
}

#[test]
fn a_task_that_needs_a_class_that_a_worker_is_not_of_goes_back() {
    assert_eq!(of_another_class(Guards::ALL), (vec![], 1));
}

/// With prefetch an executor asks while it runs and begins when it is free.
#[test]
fn prefetch_asks_while_running() {
    let mut worker = of(1, 1, 1);
    let asks = tick(&mut worker, 0);
    assert_eq!((asks.len(), asks[0].2), (1, true));
    let next = asked(&replied(&mut worker, 0, asks[0], &given(0, 1, 0)));
    assert_eq!((next.len(), next[0].2), (1, false), "a task is not bound to who is busy");
    let sent = replied(&mut worker, 0, next[0], &given(0, 2, 0));
    assert!(asked(&sent).is_empty(), "one task, and one more");
    assert_eq!((orders(&mut worker), worker.counters().prefetched), (vec!["start"], 1));
    assert!(matches!(messages(&sent)[..], [TaskMessage::Running { .. }]), "its owner knows");
    assert!(worker.deadline().at > at(0).instant);
    let mut sent = Sent::new();
    worker.finished(at(1), 1, Ended::Done, Output::default(), &mut sent);
    assert_eq!(orders(&mut worker), ["start"]);
    assert_eq!(asked(&sent).len(), 1);
    // There is none: it asks again a little later, and when it is free it waits.
    let asks = asked(&sent);
    assert!(asked(&replied(&mut worker, 1, asks[0], &noop(Answer::Empty))).is_empty());
    let mut sent = Sent::new();
    worker.finished(at(1), 2, Ended::Done, Output::default(), &mut sent);
    assert!(asked(&sent).iter().any(|ask| ask.2));
}

/// A worker of two executors that may have four more tasks, as long as what it asks for comes and
/// ends at once: how many requests are under way, and how many of these wait in the switch.
#[test]
fn prefetch_asks_ahead_for_short_tasks() {
    let mut worker = of(1, 2, 2);
    let mut under_way = tick(&mut worker, 0);
    assert_eq!(under_way.len(), 2);
    for (run, most) in [(1, 3), (2, 5), (3, 6), (4, 6)] {
        let (ask, tid) = (under_way.remove(0), run);
        let mut sent = replied(&mut worker, 0, ask, &given(0, tid, 0));
        assert_eq!(orders(&mut worker), ["start"]);
        worker.finished(at(0), run, Ended::Done, Output::default(), &mut sent);
        worker.flush(at(0), &mut sent);
        under_way.extend(asked(&sent));
        assert_eq!(under_way.len(), most, "twice as many ahead each time, six in all");
    }
    assert!(under_way.iter().filter(|ask| ask.2).count() <= 2);
    // The queue is empty: as many as there are executors wait in the switch, and at once.
    let mut waiting = 0;
    while let Some(ask) = under_way.pop() {
        let answer = if ask.2 { Answer::Waiting } else { Answer::Empty };
        waiting += usize::from(ask.2);
        under_way.extend(asked(&replied(&mut worker, 0, ask, &noop(answer))));
    }
    assert_eq!(waiting, 2);
    assert!(tick(&mut worker, 50).is_empty(), "and nobody polls");
}

/// An executor that is free waits in all of its queues with prefetch too.
#[test]
fn bug_21_44_free_executor_with_prefetch_waits_in_all_queues() {
    let mut worker = of(1 | 1 << 12, 1, 1);
    let asks = tick(&mut worker, 0);
    let next = asked(&replied(&mut worker, 0, asks[0], &noop(Answer::Waiting)));
    assert_eq!((next[0].1, next[0].2), (0, true));
    // It gets a task, and asks for the next one while it runs it: there is none.
    let next = asked(&replied(&mut worker, 0, next[0], &given(0, 1, 0)));
    assert_eq!((next.len(), next[0].1, next[0].2), (1, 12, false));
    let next = asked(&replied(&mut worker, 0, next[0], &noop(Answer::Empty)));
    assert_eq!((next.len(), next[0].1, next[0].2), (1, 0, false));
    // The task is over before the switch has answered that.
    let mut sent = Sent::new();
    worker.finished(at(0), 1, Ended::Done, Output::default(), &mut sent);
    let mut under_way = [asked(&sent), next].concat();
    let mut waits = vec![];
    while let Some(ask) = under_way.pop() {
        let answer = if ask.2 { Answer::Waiting } else { Answer::Empty };
        waits.extend(ask.2.then_some(ask.1));
        under_way.extend(asked(&replied(&mut worker, 0, ask, &noop(answer))));
    }
    assert!(waits.contains(&0), "{waits:?}: a task of its class comes to it");
}

/// What was left in a nodes queue asks its owner before it begins.
#[test]
fn bug_21_39_leftover_in_a_nodes_queue_asks_its_owner() {
    let mut worker = of(1 | 1 << 12, 1, 0);
    let asks = tick(&mut worker, 0);
    let sent = replied(&mut worker, 0, asks[0], &given(12, 1, 0));
    assert!(orders(&mut worker).is_empty());
    let [TaskMessage::Claim { of, run, asked_at }] = messages(&sent)[..] else {
        panic!("it does not ask")
    };
    let (mut bytes, mut sent) = (Vec::new(), Sent::new());
    TaskMessage::Claimed { of, run, asked_at, granted: false }.emit(&mut bytes);
    worker.handle(at(1), OWNER, &mut bytes, &mut sent);
    assert!(orders(&mut worker).is_empty(), "it is over");
    // Of what is for all executors the first that has it begins.
    let next = asked(&sent);
    replied(&mut worker, 1, next[0], &given(0, 2, 0));
    assert_eq!(orders(&mut worker), ["start"]);
}

/// A run that cannot begin goes back and its slot pauses.
#[test]
fn bug_21_42_run_that_cannot_begin_returns_and_its_slot_pauses() {
    let mut worker = of(1, 1, 0);
    let asks = tick(&mut worker, 0);
    replied(&mut worker, 0, asks[0], &given(0, 1, 0));
    assert_eq!(orders(&mut worker), ["start"]);
    let mut sent = Sent::new();
    worker.returned(at(1), 1, &mut sent);
    assert_eq!((returned(&sent), asked(&sent).len(), worker.runs().count()), (1, 0, 0));
    assert!(tick(&mut worker, 50).is_empty());
    assert_eq!(tick(&mut worker, 51).len(), 1);
}
