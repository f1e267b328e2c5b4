//! Owners and workers, a message at a time.
#![allow(clippy::unwrap_used)]

mod drains;
mod inquiries;
mod journal;
mod outputs;
mod queues;
mod suspects;

use std::collections::BTreeMap;
use std::sync::Arc;

use concord_core::{Guard, Guards, Instant, Key, MS, Machine, Now, SessionId, SwitchId};
use concord_scheduler::{
    Job, Order, Outcome, Output, Owner, OwnerConfig, TaskSpec, Worker, WorkerConfig,
};
use concord_wire::Addr;
use concord_wire::GroupId;
use concord_wire::control::{
    Config, GroupKind, Member, Membership, Message as _, Program, ReplicaAlive, Standing,
};
use concord_wire::falcon::{Answer, Assigned, Reply, Request, Submission, Task, TaskFlags};
use concord_wire::tasks::{Attempt, BodyName, Ended, JOB_BODY, Run, TaskMessage};

use queues::given;

const OWNER: Addr = Addr { ip: 1, port: 1 };
const WORKER: Addr = Addr { ip: 2, port: 2 };
const SWITCH: Addr = Addr { ip: 3, port: 3 };
const UID: SessionId = SessionId(11);

type Sent = Vec<(Addr, Vec<u8>)>;

fn at(ms: u64) -> Now {
    Now { instant: Instant(ms * MS), unix_ms: 0 }
}

fn owner(guards: Guards) -> Owner {
    let config = OwnerConfig::new(UID, OWNER, SWITCH);
    Owner::new(OwnerConfig { guards, known_ns: 0, ..config })
}

fn job(tasks: usize, once: bool) -> Job {
    Job { tasks: vec![TaskSpec::default(); tasks], once, ..Job::default() }
}

/// What an owner submits when it is woken.
fn submitted(owner: &mut Owner, ms: u64) -> Vec<Submission> {
    let mut sent = Sent::new();
    owner.tick(at(ms), &mut sent);
    submissions(&sent)
}

fn submissions(sent: &Sent) -> Vec<Submission> {
    let parsed = sent.iter().filter_map(|(_, bytes)| Submission::parse(bytes).ok());
    parsed.filter(|submission| !submission.tasks.is_empty()).collect()
}

/// The switch's answer: so many were added, from that ticket on, and retrieve_ptr.
fn answer(of: &Submission, added: usize, ticket: u32, retrieve_ptr: u32) -> Submission {
    let answer = if added == of.tasks.len() { Answer::Added } else { Answer::Full };
    Submission {
        answer,
        switch_id: SwitchId(1),
        tickets: (ticket..).take(added).collect(),
        tasks: of.tasks[added..].to_vec(),
        retrieve_ptr,
        add_ptr: ticket + added as u32,
        ..of.clone()
    }
}

fn tell(owner: &mut Owner, ms: u64, answer: &Submission) -> Vec<Submission> {
    let (mut bytes, mut sent) = (Vec::new(), Sent::new());
    answer.emit(&mut bytes);
    owner.handle(at(ms), WORKER, &mut bytes, &mut sent);
    submissions(&sent)
}

/// What an owner says to a worker's message.
fn say(owner: &mut Owner, ms: u64, message: &TaskMessage) -> TaskMessage {
    let (mut bytes, mut sent) = (Vec::new(), Sent::new());
    message.emit(&mut bytes);
    owner.handle(at(ms), WORKER, &mut bytes, &mut sent);
    owner.flush(at(ms), &mut sent);
    let said = sent.iter().find_map(|(_, bytes)| TaskMessage::parse(bytes).ok());
    said.unwrap()
}

fn attempt(attempt: u16) -> Attempt {
    Attempt { uid: UID.0, jid: 1, tid: 0, attempt }
}

fn run(run: u32) -> Run {
    Run { session: 77, run, worker: WORKER }
}

fn attempts(of: &[Submission]) -> Vec<u16> {
    of.iter().flat_map(|submission| &submission.tasks).map(|task| task.attempt).collect()
}

#[test]
fn after_a_full_queue_it_pauses_and_submits_what_was_not_added() {
    let mut owner = owner(Guards::ALL);
    owner.submit(at(0), job(10, false));
    let first = submitted(&mut owner, 0);
    assert_eq!((first.len(), attempts(&first)), (1, vec![1; 10]));
    assert!(tell(&mut owner, 1, &answer(&first[0], 3, 0, 0)).is_empty(), "it pauses");
    assert_eq!(owner.deadline().reason, "a full queue");
    let rest = submitted(&mut owner, 3);
    assert_eq!(attempts(&rest), [2; 7], "the submission may come twice, and find room");
    assert_eq!(rest[0].tasks[0].tid, 3);
}

#[test]
fn a_task_of_which_nobody_says_that_it_runs_is_submitted_again() {
    let mut owner = owner(Guards::ALL);
    owner.submit(at(0), job(2, false));
    let first = submitted(&mut owner, 0);
    tell(&mut owner, 1, &answer(&first[0], 2, 0, 0));
    for ms in 2..100 {
        assert!(submitted(&mut owner, ms).is_empty(), "they wait in the queue, however long");
    }
    // The switch is asked, and says that one of them was taken.
    let question = Submission { tasks: vec![], number: 0, ..first[0].clone() };
    tell(&mut owner, 100, &Submission { tickets: vec![], ..answer(&question, 0, 2, 1) });
    assert!(submitted(&mut owner, 104).is_empty());
    assert_eq!(attempts(&submitted(&mut owner, 105)), [2]);
    assert_eq!(owner.counters().tasks_unheard, 1);
}

/// A task that no worker will have is submitted less and less often.
#[test]
fn unwanted_task_is_submitted_less_often() {
    let mut owner = owner(Guards::ALL);
    owner.submit(at(0), job(1, false));
    let (mut times, mut ticket) = (vec![], 0);
    for ms in 0..2_000 {
        for submission in submitted(&mut owner, ms) {
            times.push(ms);
            tell(&mut owner, ms, &answer(&submission, 1, ticket, ticket + 1));
            ticket += 1;
        }
    }
    assert_eq!(times, [0, 5, 20, 45, 90, 175, 340, 665, 990, 1_315, 1_640, 1_965]);
    // It is not lost by that: whoever says that it runs has it.
    let of = attempt(12);
    let said = say(&mut owner, 2_000, &TaskMessage::Running { of, run: run(1), asked_at: 5 });
    assert_eq!(said, TaskMessage::Extended { of, run: run(1), asked_at: 5 });
}

#[test]
fn another_switch_id_makes_it_submit_what_has_not_begun() {
    let mut owner = owner(Guards::ALL);
    owner.submit(at(0), job(3, false));
    let first = submitted(&mut owner, 0);
    tell(&mut owner, 1, &answer(&first[0], 3, 0, 0));
    let said =
        say(&mut owner, 2, &TaskMessage::Running { of: attempt(1), run: run(1), asked_at: 5 });
    assert_eq!(said, TaskMessage::Extended { of: attempt(1), run: run(1), asked_at: 5 });
    let other = Submission { switch_id: SwitchId(2), number: 0, ..answer(&first[0], 3, 0, 0) };
    let again = tell(&mut owner, 3, &Submission { tickets: vec![], ..other });
    assert_eq!(attempts(&again), [2, 2], "one of three runs");
}

fn unanswered(guards: Guards) -> Vec<u16> {
    let mut owner = owner(guards);
    owner.submit(at(0), job(2, false));
    let first = submitted(&mut owner, 0);
    let other = Submission { number: first[0].number + 7, ..answer(&first[0], 2, 5, 3) };
    tell(&mut owner, 1, &other);
    assert!(submitted(&mut owner, 6).is_empty(), "it pauses");
    attempts(&submitted(&mut owner, 8))
}

#[test]
fn the_answer_to_another_submission_says_nothing_of_this_one() {
    assert_eq!(unanswered(Guards::ALL), [2, 2]);
}

/// Of two claims the first is granted and again if it is asked again.
#[test]
fn first_claim_is_granted_and_repeated() {
    let mut owner = owner(Guards::ALL);
    owner.submit(at(0), job(1, true));
    submitted(&mut owner, 0);
    let claim = |number| TaskMessage::Claim { of: attempt(1), run: run(number), asked_at: 9 };
    let claimed = |number, granted| TaskMessage::Claimed {
        of: attempt(1),
        run: run(number),
        asked_at: 9,
        granted,
    };
    assert_eq!(say(&mut owner, 1, &claim(1)), claimed(1, true));
    assert_eq!(say(&mut owner, 1, &claim(2)), claimed(2, false));
    assert_eq!(say(&mut owner, 2, &claim(1)), claimed(1, true));
    let running = TaskMessage::Running { of: attempt(1), run: run(2), asked_at: 9 };
    assert_eq!(say(&mut owner, 2, &running), TaskMessage::Cancel { of: attempt(1), run: run(2) });
    // Its worker is silent: nobody knows.
    submitted(&mut owner, 1_126);
    submitted(&mut owner, 1_127);
    assert_eq!(owner.poll_outcome().map(|told| told.outcome), Some(Outcome::Unknown));
    assert_eq!(say(&mut owner, 1_200, &claim(3)), claimed(3, false));
}

fn outcomes(guards: Guards) -> usize {
    let mut owner = owner(guards);
    owner.submit(at(0), job(2, false));
    submitted(&mut owner, 0);
    for number in [1, 2] {
        let result = TaskMessage::Result {
            of: attempt(1),
            run: run(number),
            ended: Ended::Done,
            output_bytes: 1,
            output: vec![number as u8],
        };
        let known = TaskMessage::Known { of: attempt(1), run: run(number) };
        assert_eq!(say(&mut owner, 1, &result), known);
    }
    let told = owner.poll_outcome().unwrap();
    assert_eq!(told.outcome, Outcome::Done(vec![1]));
    1 + usize::from(owner.poll_outcome().is_some())
}

#[test]
fn the_first_result_wins_and_is_told_once() {
    assert_eq!(outcomes(Guards::ALL), 1);
}

/// Results that come soon after one another are acknowledged together.
#[test]
fn close_results_are_acknowledged_together() {
    let config = OwnerConfig::new(UID, OWNER, SWITCH);
    let mut owner = Owner::new(config);
    owner.submit(at(0), job(3, false));
    let first = submitted(&mut owner, 0);
    tell(&mut owner, 1, &answer(&first[0], 3, 0, 3));
    let (mut sent, mut told) = (Sent::new(), vec![]);
    for tid in 0..3 {
        let (of, ended) = (Attempt { tid, ..attempt(1) }, Ended::Done);
        let result =
            TaskMessage::Result { of, run: run(tid), ended, output_bytes: 0, output: vec![] };
        let mut bytes = Vec::new();
        result.emit(&mut bytes);
        owner.handle(at(5), WORKER, &mut bytes, &mut sent);
        owner.flush(at(5), &mut sent);
        told.push(messages(&sent).len());
    }
    assert_eq!((told, owner.outcomes_left()), (vec![1, 1, 1], 3));
    assert_eq!(owner.deadline().at, at(5).instant.after(config.known_ns));
    owner.tick(at(6), &mut sent);
    owner.flush(at(6), &mut sent);
    assert_eq!((messages(&sent).len(), owner.deadline().at), (3, Instant::NEVER));
}

#[test]
fn a_task_that_fails_is_tried_as_often_as_it_may() {
    let mut owner = owner(Guards::ALL);
    owner.submit(at(0), Job { retries: 1, ..job(1, false) });
    submitted(&mut owner, 0);
    let ended = Ended::Failed;
    let failed =
        |of| TaskMessage::Result { of, run: run(1), ended, output_bytes: 0, output: vec![] };
    say(&mut owner, 1, &failed(attempt(1)));
    say(&mut owner, 1, &failed(attempt(1)));
    assert_eq!(owner.poll_outcome(), None, "it is the same failure");
    assert_eq!(attempts(&submitted(&mut owner, 10)), [2]);
    say(&mut owner, 11, &failed(attempt(2)));
    let told = owner.poll_outcome().unwrap();
    assert_eq!((told.outcome, told.attempts), (Outcome::Failed(Ended::Failed, vec![]), 2));
}

/// A job that is cancelled ends at once and what runs is stopped.
#[test]
fn cancelled_job_ends_and_stops_its_tasks() {
    let mut owner = owner(Guards::ALL);
    owner.submit(at(0), job(3, false));
    let first = submitted(&mut owner, 0);
    tell(&mut owner, 1, &answer(&first[0], 2, 0, 0));
    say(&mut owner, 2, &TaskMessage::Running { of: attempt(1), run: run(1), asked_at: 5 });
    let mut sent = Sent::new();
    assert!(
        owner.cancel(at(3), 1, &mut sent)
            && !owner.cancel(at(3), 1, &mut sent)
            && !owner.cancel(at(3), 9, &mut sent)
    );
    assert_eq!(messages(&sent), [TaskMessage::Cancel { of: attempt(1), run: run(1) }]);
    let told: Vec<Outcome> =
        std::iter::from_fn(|| owner.poll_outcome()).map(|t| t.outcome).collect();
    assert_eq!(told, vec![Outcome::Cancelled; 3]);
    assert!(submitted(&mut owner, 10).is_empty());
    assert_eq!((owner.open(), owner.deadline().at), (0, Instant::NEVER));
    // Who gets it from the queue is told to stop, or that it may not start.
    let of = Attempt { tid: 1, ..attempt(1) };
    let said = say(&mut owner, 11, &TaskMessage::Running { of, run: run(2), asked_at: 5 });
    assert_eq!(said, TaskMessage::Cancel { of, run: run(2) });
}

#[test]
fn an_owner_that_ends_stops_what_runs() {
    let mut owner = owner(Guards::ALL);
    owner.submit(at(0), job(2, false));
    owner.submit(at(0), job(1, true));
    submitted(&mut owner, 0);
    say(&mut owner, 2, &TaskMessage::Running { of: attempt(1), run: run(1), asked_at: 5 });
    let of = Attempt { jid: 2, ..attempt(1) };
    say(&mut owner, 2, &TaskMessage::Claim { of, run: run(2), asked_at: 5 });
    let mut sent = Sent::new();
    owner.retire(at(3), &mut sent);
    let cancel = |of, number| TaskMessage::Cancel { of, run: run(number) };
    assert_eq!(messages(&sent), [cancel(attempt(1), 1), cancel(of, 2)]);
    assert_eq!(owner.open(), 0);
}

// Workers.

fn worker(guards: Guards) -> Worker {
    Worker::new(WorkerConfig { guards, ..WorkerConfig::new(SessionId(77), WORKER, SWITCH, 1) })
}

/// An executor asks, and gets that task.
fn assign(worker: &mut Worker, ms: u64, task: Task, switch_id: u32) -> Vec<TaskMessage> {
    let mut sent = Sent::new();
    worker.tick(at(ms), &mut sent);
    let mut bytes = sent.into_iter().find(|(_, b)| Request::parse(b).is_ok()).map_or_else(
        || {
            let mut bytes = Vec::new();
            Request { asker: asker(), wait_us: 0, ..Request::default() }.emit(&mut bytes);
            bytes
        },
        |(_, bytes)| bytes,
    );
    let assigned = Assigned {
        uid: UID,
        jid: 1,
        owner: OWNER,
        ticket: 4,
        switch_id: SwitchId(switch_id),
        queue: 0,
        task,
    };
    Reply::Task(assigned).put(&mut bytes).unwrap();
    let mut sent = Sent::new();
    worker.handle(at(ms), OWNER, &mut bytes, &mut sent);
    worker.flush(at(ms), &mut sent);
    messages(&sent)
}

fn asker() -> concord_wire::falcon::Asker {
    concord_wire::falcon::Asker { session: SessionId(77), number: 1, slot: 0, addr: WORKER }
}

fn messages(sent: &Sent) -> Vec<TaskMessage> {
    sent.iter().filter_map(|(_, bytes)| TaskMessage::parse(bytes).ok()).collect()
}

fn heard(worker: &mut Worker, ms: u64, message: &TaskMessage) -> Vec<TaskMessage> {
    let (mut bytes, mut sent) = (Vec::new(), Sent::new());
    message.emit(&mut bytes);
    worker.handle(at(ms), OWNER, &mut bytes, &mut sent);
    worker.flush(at(ms), &mut sent);
    messages(&sent)
}

fn ticked(worker: &mut Worker, ms: u64) -> Vec<TaskMessage> {
    let mut sent = Sent::new();
    worker.tick(at(ms), &mut sent);
    messages(&sent)
}

fn orders(worker: &mut Worker) -> Vec<&'static str> {
    let name = |order| match order {
        Order::Start { .. } => "start",
        Order::Kill { .. } => "kill",
        Order::Stop { .. } => "stop",
    };
    std::iter::from_fn(|| worker.poll_order()).map(name).collect()
}

fn plain() -> Task {
    Task { attempt: 1, ..Task::default() }
}

fn once() -> Task {
    Task { flags: TaskFlags::ONCE, ..plain() }
}

#[test]
fn a_task_runs_at_once_and_its_result_is_told_until_it_is_known() {
    let mut worker = worker(Guards::ALL);
    let said = assign(&mut worker, 0, plain(), 1);
    assert!(matches!(said[..], [TaskMessage::Running { .. }]));
    assert_eq!(orders(&mut worker), ["start"]);
    let mut sent = Sent::new();
    worker.finished(at(1), 1, Ended::Done, Output::from(&b"out"[..]), &mut sent);
    let result = TaskMessage::Result {
        of: attempt(1),
        run: run(1),
        ended: Ended::Done,
        output_bytes: 3,
        output: b"out".to_vec(),
    };
    assert_eq!(messages(&sent), std::slice::from_ref(&result));
    assert_eq!(sent.len(), 2, "and the executor asks for the next task");
    assert_eq!(ticked(&mut worker, 7), [result]);
    heard(&mut worker, 8, &TaskMessage::Known { of: attempt(1), run: run(1) });
    assert!(ticked(&mut worker, 100).is_empty() && worker.is_idle());
}

/// Of a run that is over in the batch in which it began the result is told alone.
#[test]
fn run_over_in_its_first_batch_reports_once() {
    let mut worker = worker(Guards::ALL);
    let (mut bytes, mut sent) = (Vec::new(), Sent::new());
    Request { asker: asker(), wait_us: 0, ..Request::default() }.emit(&mut bytes);
    given(0, 0, 0).put(&mut bytes).unwrap();
    worker.handle(at(0), SWITCH, &mut bytes, &mut sent);
    assert_eq!((orders(&mut worker), messages(&sent)), (vec!["start"], vec![]));
    worker.finished(at(0), 1, Ended::Done, Output::default(), &mut sent);
    worker.flush(at(0), &mut sent);
    assert!(matches!(messages(&sent)[..], [TaskMessage::Result { .. }]));
    assert_eq!(worker.deadline().at, at(2).instant, "of the switch's answer");
}

fn old_switch(guards: Guards) -> Vec<&'static str> {
    let mut worker = worker(guards);
    let mut bytes = Vec::new();
    Request { asker: asker(), wait_us: 0, ..Request::default() }.emit(&mut bytes);
    let noop = Reply::NoOp { answer: Answer::Empty, ticket: 0, switch_id: SwitchId(2) };
    noop.put(&mut bytes).unwrap();
    worker.handle(at(0), OWNER, &mut bytes, &mut Sent::new());
    assign(&mut worker, 5, plain(), 1);
    orders(&mut worker)
}

#[test]
fn an_old_switchs_assignment_is_refused() {
    assert!(old_switch(Guards::ALL).is_empty());
}

fn without_lease(guards: Guards) -> Vec<&'static str> {
    let mut worker = worker(guards);
    assign(&mut worker, 0, plain(), 1);
    // Asked at 500, answered at 900: it holds until 1,500.
    let (of, asked_at) = (attempt(1), 500 * MS);
    heard(&mut worker, 900, &TaskMessage::Extended { of, run: run(1), asked_at });
    ticked(&mut worker, 1_499);
    assert_eq!(orders(&mut worker), ["start"]);
    // It stood still, and a result that came just then counts no more.
    let mut sent = Sent::new();
    worker.finished(at(1_500), 1, Ended::Done, Output::default(), &mut sent);
    orders(&mut worker)
}

#[test]
fn what_has_no_lease_any_more_is_killed_before_anything_else() {
    assert_eq!(without_lease(Guards::ALL), ["kill"]);
}

fn claims(guards: Guards) -> Vec<&'static str> {
    let mut worker = worker(guards);
    assign(&mut worker, 0, once(), 1);
    orders(&mut worker)
}

/// A task that is never run twice starts only when its owner says so.
#[test]
fn once_task_starts_with_its_owners_word() {
    assert!(claims(Guards::ALL).is_empty());
    let claimed = |number, granted| TaskMessage::Claimed {
        of: attempt(1),
        run: run(number),
        asked_at: 0,
        granted,
    };
    let mut asks = worker(Guards::ALL);
    let said = assign(&mut asks, 0, once(), 1);
    assert!(matches!(said[..], [TaskMessage::Claim { .. }]));
    heard(&mut asks, 1, &claimed(9, true));
    assert!(orders(&mut asks).is_empty(), "that is another run's");
    heard(&mut asks, 1, &claimed(1, true));
    heard(&mut asks, 1, &claimed(1, true));
    assert_eq!(orders(&mut asks), ["start"]);

    let mut refused = worker(Guards::ALL);
    assign(&mut refused, 0, once(), 1);
    heard(&mut refused, 1, &claimed(1, false));
    heard(&mut refused, 2, &claimed(1, true));
    assert!(orders(&mut refused).is_empty());

    let mut late = worker(Guards::ALL);
    assign(&mut late, 0, once(), 1);
    let returned = TaskMessage::Returned { of: attempt(1), run: run(1) };
    assert_eq!(ticked(&mut late, 50), [returned]);
    heard(&mut late, 51, &claimed(1, true));
    assert!(orders(&mut late).is_empty(), "it said that it never starts it");
}

/// A task that takes too long is killed and so is one that is cancelled.
#[test]
fn late_and_cancelled_tasks_are_killed() {
    let mut worker = worker(Guards::ALL);
    assign(&mut worker, 0, Task { limit_ms: 20, ..plain() }, 1);
    assert!(ticked(&mut worker, 19).iter().all(|m| matches!(m, TaskMessage::Running { .. })));
    assert_eq!(orders(&mut worker), ["start"]);
    ticked(&mut worker, 20);
    assert_eq!(orders(&mut worker), ["stop"]);
    let mut sent = Sent::new();
    let so_far = Output::from(&b"so far"[..]);
    worker.finished(at(20), 1, Ended::TimedOut, so_far, &mut sent);
    let said = messages(&sent);
    assert!(
        matches!(&said[..], [TaskMessage::Result { ended: Ended::TimedOut, output, .. }]
            if output == b"so far"),
        "{said:?}"
    );
    heard(&mut worker, 21, &TaskMessage::Known { of: attempt(1), run: run(1) });
    assign(&mut worker, 30, Task { tid: 0, attempt: 2, ..Task::default() }, 1);
    assert_eq!(orders(&mut worker), ["start"]);
    heard(&mut worker, 31, &TaskMessage::Cancel { of: attempt(2), run: run(2) });
    assert_eq!(orders(&mut worker), ["kill"]);
    assert!(ticked(&mut worker, 40).is_empty(), "and nothing more is said of it");
}

/// Starting takes long: what is to be stopped does not wait for what is to be begun, and what was
/// not begun never is.
#[test]
fn bug_21_55_a_run_is_stopped_before_others_begin_and_not_begun() {
    let config = WorkerConfig::new(SessionId(77), WORKER, SWITCH, 3);
    let mut worker = Worker::new(config);
    for tid in 0..3 {
        assign(&mut worker, 0, Task { tid, ..plain() }, 1);
    }
    let begun = |order: Option<Order>| match order {
        Some(Order::Start { of, .. }) => of.tid,
        other => panic!("{other:?}"),
    };
    assert_eq!(begun(worker.poll_order()), 0);
    for (number, tid) in [(2, 1), (1, 0)] {
        let of = Attempt { tid, ..attempt(1) };
        heard(&mut worker, 1, &TaskMessage::Cancel { of, run: run(number) });
    }
    assert!(matches!(worker.poll_order(), Some(Order::Kill { run: 1, .. })));
    assert_eq!(begun(worker.poll_order()), 2);
    assert!(!worker.has_orders());
}

/// Which tasks run is looked up among those that were handed out, however many wait.
#[test]
fn bug_21_63_what_runs_is_counted_by_job_and_by_worker() {
    let mut owner = owner(Guards::ALL);
    owner.submit(at(0), job(3, false));
    owner.submit(at(0), job(2, false));
    submitted(&mut owner, 0);
    let running = |jid, tid, number| {
        let of = Attempt { jid, tid, ..attempt(1) };
        TaskMessage::Running { of, run: run(number), asked_at: 5 }
    };
    for (number, (jid, tid)) in [(1, 0), (1, 2), (2, 1)].into_iter().enumerate() {
        // Again and again: its lease is extended, and it is counted once.
        for ms in 1..4 {
            say(&mut owner, ms, &running(jid, tid, number as u32 + 1));
        }
    }
    assert_eq!(owner.running().into_iter().collect::<Vec<_>>(), [(1, 2), (2, 1)]);
    assert_eq!(owner.held_by().into_iter().collect::<Vec<_>>(), [(WORKER, 3)]);
    owner.cancel(at(5), 1, &mut Sent::new());
    assert_eq!(owner.running().into_iter().collect::<Vec<_>>(), [(2, 1)]);
}

#[test]
fn a_task_that_finds_its_executor_busy_is_given_back() {
    let mut worker = worker(Guards::ALL);
    assign(&mut worker, 0, plain(), 1);
    assert!(assign(&mut worker, 0, plain(), 1).is_empty(), "it came twice");
    let said = assign(&mut worker, 1, Task { tid: 5, ..plain() }, 1);
    let returned = |m: &TaskMessage| matches!(m, TaskMessage::Returned { of, .. } if of.tid == 5);
    assert_eq!(said.iter().filter(|m| returned(m)).count(), 1);
    assert_eq!(orders(&mut worker), ["start"]);
}

const CONTROLLER: Addr = Addr { ip: 4, port: 4 };

fn configure(epoch: u32, switch_id: u32, switch: Addr) -> Vec<u8> {
    let config = Config {
        epoch,
        group: GroupId(0),
        rack: 7,
        switch_id,
        switch_incarnation: 1,
        switch,
        kind: GroupKind::Workers,
        program: Program::Falcon,
        members: vec![Member { node: 5, incarnation: 77, addr: WORKER }],
        joining: vec![],
    };
    let mut bytes = Vec::new();
    Membership::Configure(config.into()).emit(&mut bytes);
    bytes
}

/// A worker says that it lives and follows the newest configuration.
#[test]
fn worker_keepalive_and_newest_configuration() {
    let config = WorkerConfig::new(SessionId(77), WORKER, SWITCH, 1);
    let mut worker = Worker::new(WorkerConfig { controller: Some((5, CONTROLLER)), ..config });
    let alive = |worker: &mut Worker, ms| {
        let mut sent = Sent::new();
        worker.tick(at(ms), &mut sent);
        let said = sent.iter().find(|(to, _)| *to == CONTROLLER);
        said.map(|(_, bytes)| match Membership::parse(bytes).unwrap() {
            Membership::ReplicaAlive(ReplicaAlive { member, heard, standing, .. }) => {
                assert_eq!((member.node, member.incarnation, member.addr), (5, 77, WORKER));
                (heard.epoch, heard.switch_id, standing)
            }
            other => panic!("{other:?}"),
        })
    };
    assert_eq!(alive(&mut worker, 0), Some((0, 0, Standing::Out)));
    assert_eq!(alive(&mut worker, 99), None);
    let other = Addr { ip: 8, port: 8 };
    for (epoch, switch_id, switch) in [(3, 2, other), (2, 1, SWITCH)] {
        let mut bytes = configure(epoch, switch_id, switch);
        worker.handle(at(100), CONTROLLER, &mut bytes, &mut Sent::new());
    }
    let open = Standing::Open { caught_up: true };
    assert_eq!(alive(&mut worker, 100), Some((3, 2, open)));
    let mut sent = Sent::new();
    worker.tick(at(200), &mut sent);
    assert!(
        sent.iter().any(|(to, b)| *to == other && Request::parse(b).is_ok()),
        "asks the new one"
    );
    worker.retire();
    assert_eq!(alive(&mut worker, 300), Some((3, 2, Standing::Leaving)));
}

#[test]
fn an_owner_asks_who_the_switch_is_and_soon_if_that_is_silent() {
    let config = OwnerConfig::new(UID, OWNER, SWITCH);
    let mut owner = Owner::new(OwnerConfig { controller: Some(CONTROLLER), ..config });
    let asks = |owner: &mut Owner, ms| {
        let mut sent = Sent::new();
        owner.tick(at(ms), &mut sent);
        sent.iter().any(|(to, _)| *to == CONTROLLER)
    };
    assert!(!asks(&mut owner, 0), "it has nothing to submit");
    owner.submit(at(0), job(1, false));
    let first = submitted(&mut owner, 1);
    tell(&mut owner, 2, &answer(&first[0], 1, 0, 0));
    assert!(asks(&mut owner, 51), "nobody had answered when it asked first");
    assert!(!(52..551).any(|ms| asks(&mut owner, ms)) && asks(&mut owner, 551));
    // Another switch: its task is submitted there, and is not answered.
    let mut sent = Sent::new();
    let other = Addr { ip: 8, port: 8 };
    owner.handle(at(552), CONTROLLER, &mut configure(2, 1, other), &mut sent);
    owner.handle(at(552), CONTROLLER, &mut configure(3, 2, other), &mut sent);
    assert_eq!(sent.iter().filter(|(to, _)| *to == other).count(), 1);
    assert!((553..610).any(|ms| asks(&mut owner, ms)));
}

/// A rack's secret; the owner's tasks are tagged with it, and the worker runs nothing else.
fn keyed(guards: Guards) -> (Owner, Worker) {
    let key = Some(Key::from_bytes(*b"the rack's key.."));
    let config = OwnerConfig::new(UID, OWNER, SWITCH);
    let owner = Owner::new(OwnerConfig { key, known_ns: 0, ..config });
    let config = WorkerConfig::new(SessionId(77), WORKER, SWITCH, 1);
    (owner, Worker::new(WorkerConfig { key, guards, ..config }))
}

/// What the worker says goes to the owner, and the answers back, until nobody says anything.
fn converse(owner: &mut Owner, worker: &mut Worker, ms: u64, mut said: Vec<TaskMessage>) -> usize {
    let mut count = 0;
    while !said.is_empty() {
        let mut sent = Sent::new();
        for message in &said {
            count += 1;
            let mut bytes = Vec::new();
            message.emit(&mut bytes);
            owner.handle(at(ms), WORKER, &mut bytes, &mut sent);
            owner.flush(at(ms), &mut sent);
        }
        said = messages(&sent).iter().flat_map(|m| heard(worker, ms, m)).collect();
    }
    count
}

/// A job whose body takes forty fragments, and the second of whose tasks has long parameters.
fn large() -> Job {
    let body: Vec<u8> = (0..40_000u32).map(|at| (at / 1_000) as u8).collect();
    let long = BTreeMap::from([(1, Arc::from(&b"more than sixteen bytes"[..]))]);
    Job { body: Some(body.into()), long, ..job(2, false) }
}

/// A task begins when its jobs body and its parameters are here.
#[test]
fn t17_task_begins_when_body_and_parameters_are_here() {
    let (mut owner, mut worker) = keyed(Guards::ALL);
    owner.submit(at(0), large());
    let tasks = submitted(&mut owner, 0)[0].tasks.clone();
    assert_eq!(tasks[1].flags, TaskFlags::FETCH.with(TaskFlags::JOB_BODY));
    let said = assign(&mut worker, 0, tasks[1], 1);
    assert!(matches!(
        said[..],
        [TaskMessage::Fetch { .. }, TaskMessage::Fetch { .. }, TaskMessage::Running { .. }]
    ));
    assert!(worker.poll_order().is_none(), "it holds a lease, and waits");
    converse(&mut owner, &mut worker, 1, said);
    let Some(Order::Start { job, parameters, .. }) = worker.poll_order() else { panic!("start") };
    assert_eq!(parameters.as_deref(), Some(&b"more than sixteen bytes"[..]));
    assert_eq!(job.as_deref(), large().body.as_deref());
    // The next task of the job needs nothing more.
    let mut sent = Sent::new();
    worker.finished(at(2), 1, Ended::Done, Output::default(), &mut sent);
    let known = messages(&sent);
    converse(&mut owner, &mut worker, 2, known);
    let said = assign(&mut worker, 2, tasks[0], 1);
    assert!(matches!(said[..], [TaskMessage::Running { .. }]));
    assert_eq!((orders(&mut worker), worker.counters().tags_wrong), (vec!["start"], 0));
}

/// A run that is cancelled before it began is not killed and fetches no more.
#[test]
fn run_cancelled_before_it_began() {
    let (mut owner, mut worker) = keyed(Guards::ALL);
    owner.submit(at(0), large());
    let task = submitted(&mut owner, 0)[0].tasks[0];
    assign(&mut worker, 0, task, 1);
    heard(&mut worker, 1, &TaskMessage::Cancel { of: attempt(1), run: run(1) });
    assert!(orders(&mut worker).is_empty() && worker.is_idle());
    let fetches =
        |said: &[TaskMessage]| said.iter().any(|m| matches!(m, TaskMessage::Fetch { .. }));
    assert!((2..200).all(|ms| !fetches(&ticked(&mut worker, ms))));
}

/// What a worker with a key does with tasks that somebody else made or changed.
fn forged(guards: Guards) -> Vec<&'static str> {
    let (mut owner, mut worker) = keyed(guards);
    owner.submit(at(0), job(1, false));
    let task = submitted(&mut owner, 0)[0].tasks[0];
    let forgeries =
        [Task { tag: 0, ..task }, Task { limit_ms: 1, ..task }, Task { function: 3, ..task }];
    for forgery in forgeries {
        let said = assign(&mut worker, 0, forgery, 1);
        assert!(!guards.on(Guard::TaskTag) || said.is_empty(), "nobody is told: {said:?}");
    }
    let dropped = worker.counters().tags_wrong;
    assign(&mut worker, 0, task, 1);
    assert!(!guards.on(Guard::TaskTag) || dropped == 3);
    orders(&mut worker)
}

/// What was not tagged with the racks key is dropped and counted.
#[test]
fn untagged_task_is_dropped_and_counted() {
    assert_eq!(forged(Guards::ALL), ["start"]);
    let (mut owner, mut worker) = keyed(Guards::ALL);
    owner.submit(at(0), large());
    let task = submitted(&mut owner, 0)[0].tasks[0];
    // Somebody else answers first: the body is another one, and is not kept.
    assign(&mut worker, 0, task, 1);
    let name = BodyName { uid: UID.0, jid: 1, tid: JOB_BODY };
    let bytes = b"rm -rf".to_vec();
    heard(&mut worker, 1, &TaskMessage::Fragment { name, total_bytes: 6, index: 0, bytes });
    assert!(orders(&mut worker).is_empty() && worker.is_idle());
    let said = assign(&mut worker, 2, Task { attempt: 1, ..task }, 1);
    converse(&mut owner, &mut worker, 3, said);
    assert_eq!((orders(&mut worker), worker.counters().tags_wrong), (vec!["start"], 1));
}

fn repeated(guards: Guards) -> usize {
    let (mut owner, mut worker) = keyed(guards);
    owner.submit(at(0), job(1, false));
    let task = submitted(&mut owner, 0)[0].tasks[0];
    for run in 1..=3 {
        assign(&mut worker, 0, task, 1);
        worker.finished(at(1), run, Ended::Done, Output::default(), &mut Sent::new());
    }
    orders(&mut worker).len()
}

#[test]
fn under_a_key_an_attempt_is_begun_once() {
    assert_eq!(repeated(Guards::ALL), 1);
}

#[test]
fn a_tasks_way_is_known_while_it_goes_and_when_it_is_over() {
    let mut owner = owner(Guards::ALL);
    owner.submit(at(1), job(2, false));
    assert_eq!(owner.explain(1, 1).map(|(stands, ..)| stands), Some("waits to be submitted"));
    let first = submitted(&mut owner, 2);
    tell(&mut owner, 3, &answer(&first[0], 2, 7, 7));
    say(&mut owner, 9, &TaskMessage::Running { of: attempt(1), run: run(1), asked_at: 5 });
    let (stands, attempts, trace) = owner.explain(1, 0).unwrap();
    assert_eq!((stands, attempts, trace.ticket, trace.worker), ("runs", 1, 7, WORKER));
    let times = [trace.taken_at, trace.queued_at, trace.started_at].map(|at| at.0 / MS);
    assert_eq!(times, [1, 3, 9]);
    // Its worker goes silent; then it fails, and may not be tried again.
    submitted(&mut owner, 1_500);
    let (of, run, ended) = (attempt(2), run(2), Ended::Exited(3));
    let output = b"no answer".to_vec();
    say(&mut owner, 1_600, &TaskMessage::Result { of, run, ended, output_bytes: 9, output });
    let told = owner.poll_outcome().unwrap();
    assert_eq!((told.attempts, told.output_bytes), (2, 9));
    let again: Vec<_> = told.trace.again.each().filter(|(_, times)| *times > 0).collect();
    assert_eq!(again, [("its worker went silent", 1)]);
    assert_eq!(told.trace.over_at, Instant(1_600 * MS));
    assert_eq!((owner.explain(1, 2), owner.explain(2, 0)), (None, None));
}

#[cfg(feature = "mutants")]
#[test]
fn each_guard_is_caught_when_removed() {
    let without = Guards::without;
    assert_ne!(unanswered(without(Guard::SubmissionAnswer)), [2, 2]);
    assert_eq!(outcomes(without(Guard::FirstResult)), 2);
    assert_eq!(old_switch(without(Guard::AssignmentSwitch)), ["start"]);
    assert!(without_lease(without(Guard::TaskLease)).is_empty());
    assert_eq!(claims(without(Guard::Claim)), ["start"]);
    assert_eq!(forged(without(Guard::TaskTag))[0], "start");
    assert!(forged(without(Guard::TaskTag)).len() == 1, "the executor is busy with the first");
    assert_eq!(repeated(without(Guard::TaskRepeat)), 3);
    assert_eq!(inquiries::begun_twice(without(Guard::InquiredRun)), 2);
    assert_eq!(queues::of_another_class(without(Guard::TaskClass)), (["start"].to_vec(), 0));
}
