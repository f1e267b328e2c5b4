//! Tasks that are never run twice, when their owner is started again: what its journal says was
//! granted, it asks the worker for.

use concord_scheduler::JournaledOwner;

use super::journal::{hear_of, journaled, journaled_as, sync, ticked, told};
use super::*;

/// A task was granted to the first run of worker 77 by a process that then died: the next process,
/// its journal, and whom it asks first.
fn next_process() -> (JournaledOwner, Vec<u8>, Vec<TaskMessage>) {
    let (mut owner, mut bytes) = journaled(&[]);
    owner.submit(at(0), job(1, true), b"").unwrap();
    ticked(&mut owner, 0);
    sync(&mut owner, 0, &mut bytes);
    hear_of(&mut owner, 1, &claim());
    sync(&mut owner, 1, &mut bytes);
    let (mut owner, mut bytes) = journaled_as(SessionId(12), &bytes);
    let mut sent = ticked(&mut owner, 1);
    sent.extend(sync(&mut owner, 1, &mut bytes));
    let asked = told(&sent);
    (owner, bytes, asked)
}

fn claim() -> TaskMessage {
    TaskMessage::Claim { of: attempt(1), run: run(1), asked_at: 0 }
}

fn inquiry() -> TaskMessage {
    TaskMessage::Inquire { of: attempt(1), run: run(1), owner: OWNER }
}

fn granted() -> TaskMessage {
    TaskMessage::Claimed { of: attempt(1), run: run(1), asked_at: 0, granted: true }
}

/// The worker's answer goes to the owner; what it says to that, and what it submits later.
fn answered(owner: &mut JournaledOwner, bytes: &mut Vec<u8>, answer: &TaskMessage) -> Sent {
    let mut sent = hear_of(owner, 10, answer);
    sent.extend(sync(owner, 10, bytes));
    sent.extend(ticked(owner, 400));
    sent.extend(sync(owner, 400, bytes));
    sent
}

/// It was granted, and its worker never heard of it: it begins with the next process.
#[test]
fn bug_21_93_claim_under_way_is_granted_by_the_next_process() {
    let (mut owner, mut bytes, asked) = next_process();
    assert_eq!(asked, [inquiry()]);
    let mut worker = worker(Guards::ALL);
    assign(&mut worker, 0, once(), 1);
    let said = heard(&mut worker, 5, &inquiry());
    assert!(matches!(said[..], [TaskMessage::Claim { .. }]), "{said:?}");
    let sent = answered(&mut owner, &mut bytes, &said[0]);
    let grants = told(&sent);
    assert!(matches!(grants[..], [TaskMessage::Claimed { granted: true, .. }]), "{grants:?}");
    heard(&mut worker, 11, &grants[0]);
    assert_eq!(orders(&mut worker), ["start"]);
    // Another run of it is not granted.
    let other = TaskMessage::Claim { of: attempt(1), run: run(2), asked_at: 0 };
    let refused = told(&hear_of(&mut owner, 12, &other));
    assert!(matches!(refused[..], [TaskMessage::Claimed { granted: false, .. }]));
}

/// It was granted and given back, and nobody runs it: it is begun again, and not unknown.
#[test]
fn bug_21_93_run_that_did_not_begin_is_begun_again() {
    let (mut owner, mut bytes, _) = next_process();
    let mut worker = worker(Guards::ALL);
    assign(&mut worker, 0, once(), 1);
    let returned = TaskMessage::Returned { of: attempt(1), run: run(1) };
    assert!(ticked_worker(&mut worker, 60).contains(&returned), "it has waited for long enough");
    heard(&mut worker, 61, &TaskMessage::Known { of: attempt(1), run: run(1) });
    let said = heard(&mut worker, 70, &inquiry());
    assert_eq!(said, [returned]);
    let sent = answered(&mut owner, &mut bytes, &said[0]);
    assert_eq!(attempts(&submissions(&sent)).len(), 1);
    assert_eq!(owner.poll_outcome(), None);
    // A third process knows that nobody has it, also if the worker is gone by then.
    let (mut owner, _) = journaled_as(SessionId(13), &bytes);
    assert!(told(&ticked(&mut owner, 1)).is_empty());
    assert_eq!(owner.owner().running().len(), 0);
}

fn ticked_worker(worker: &mut Worker, ms: u64) -> Vec<TaskMessage> {
    let mut sent = Sent::new();
    worker.tick(at(ms), &mut sent);
    messages(&sent)
}

/// What began and was killed, for want of a lease, may have run: how often it begins.
pub(super) fn begun_twice(guards: Guards) -> usize {
    let (mut owner, mut bytes, _) = next_process();
    let mut worker = worker(guards);
    assign(&mut worker, 0, once(), 1);
    heard(&mut worker, 1, &granted());
    assert_eq!(orders(&mut worker), ["start"]);
    ticked_worker(&mut worker, 1_100);
    assert_eq!(orders(&mut worker), ["kill"]);
    let said = heard(&mut worker, 1_200, &inquiry());
    let sent = answered(&mut owner, &mut bytes, &said[0]);
    1 + attempts(&submissions(&sent)).len()
}

#[test]
fn run_that_began_and_was_killed_is_unknown() {
    assert_eq!(begun_twice(Guards::ALL), 1);
    let (mut owner, mut bytes, _) = next_process();
    answered(&mut owner, &mut bytes, &TaskMessage::Gone { of: attempt(1), run: run(1) });
    assert_eq!(owner.poll_outcome().unwrap().outcome, Outcome::Unknown);
}

/// A worker that was started again knows nothing of a run; one that is gone says nothing.
#[test]
fn run_whose_worker_is_gone_is_unknown() {
    let config = WorkerConfig::new(SessionId(78), WORKER, SWITCH, 1);
    let mut worker = Worker::new(config);
    let gone = TaskMessage::Gone { of: attempt(1), run: run(1) };
    assert_eq!(heard(&mut worker, 5, &inquiry()), [gone]);
    let (mut owner, mut bytes, _) = next_process();
    assert_eq!(told(&ticked(&mut owner, 100)), [inquiry()], "it is asked again");
    sync(&mut owner, 1_900, &mut bytes);
    assert_eq!(owner.poll_outcome(), None);
    ticked(&mut owner, 2_001);
    sync(&mut owner, 2_001, &mut bytes);
    assert_eq!(owner.poll_outcome().unwrap().outcome, Outcome::Unknown);
}

/// A result that was not acknowledged is told to the next process.
#[test]
fn result_is_told_when_asked() {
    let mut worker = worker(Guards::ALL);
    assign(&mut worker, 0, once(), 1);
    heard(&mut worker, 1, &granted());
    assert_eq!(orders(&mut worker), ["start"]);
    let said = heard(&mut worker, 2, &inquiry());
    assert!(matches!(said[..], [TaskMessage::Running { .. }, ..]), "{said:?}");
    worker.finished(at(3), 1, Ended::Done, Output::from(&b"ok"[..]), &mut Sent::new());
    let said = heard(&mut worker, 4, &inquiry());
    assert!(matches!(said[..], [TaskMessage::Result { ended: Ended::Done, .. }]), "{said:?}");
}

/// A run that is held, lacks its data and loses its lease never begins, and its owner hears of it.
#[test]
fn bug_21_94_lease_that_ends_before_the_start_is_given_back() {
    let mut worker = worker(Guards::ALL);
    let task = Task { flags: TaskFlags::ONCE.with(TaskFlags::JOB_BODY), ..plain() };
    assign(&mut worker, 0, task, 1);
    heard(&mut worker, 1, &granted());
    assert!(orders(&mut worker).is_empty(), "its body is not here");
    let said = ticked_worker(&mut worker, 1_100);
    assert!(said.contains(&TaskMessage::Returned { of: attempt(1), run: run(1) }), "{said:?}");
    assert!(orders(&mut worker).is_empty());
}

/// An executor waits for a grant as long as the owner says that its disk is at work.
#[test]
fn bug_21_93_executor_waits_for_a_slow_disk() {
    let mut worker = worker(Guards::ALL);
    assign(&mut worker, 0, once(), 1);
    let wait = TaskMessage::Wait { of: attempt(1), run: run(1) };
    for ms in [40, 80, 120, 160] {
        heard(&mut worker, ms, &wait);
        ticked_worker(&mut worker, ms + 1);
        assert!(!worker.is_idle(), "{ms}");
    }
    heard(&mut worker, 170, &granted());
    assert_eq!(orders(&mut worker), ["start"]);
    // A disk that hangs does not keep it for ever.
    let mut worker = super::worker(Guards::ALL);
    assign(&mut worker, 0, once(), 1);
    let returned = TaskMessage::Returned { of: attempt(1), run: run(1) };
    let mut said = Vec::new();
    for ms in (0..12_000).step_by(40) {
        heard(&mut worker, ms, &wait);
        said.extend(ticked_worker(&mut worker, ms + 1));
    }
    assert!(said.contains(&returned), "{}", said.len());
}

/// A run that goes on with the next process may lack its data, which that process has.
#[test]
fn bug_21_95_next_process_sends_the_bodies_of_the_one_before() {
    let (mut owner, mut bytes) = journaled(&[]);
    let job = Job { body: Some(Arc::from(&b"command"[..])), ..job(1, false) };
    owner.submit(at(0), job, b"").unwrap();
    sync(&mut owner, 0, &mut bytes);
    let (mut owner, _) = journaled_as(SessionId(12), &bytes);
    let name = BodyName { uid: UID.0, jid: 1, tid: JOB_BODY };
    let fetch = TaskMessage::Fetch { name, worker: WORKER, first: 0, count: 1 };
    let said = told(&hear_of(&mut owner, 1, &fetch));
    assert!(matches!(said[..], [TaskMessage::Fragment { total_bytes: 7, .. }]), "{said:?}");
}

/// A run goes on however often its owner is started again.
#[test]
fn bug_21_96_run_outlives_many_restarts() {
    let (_, mut bytes, _) = next_process();
    let running = TaskMessage::Running { of: attempt(1), run: run(1), asked_at: 5 };
    for uid in 12..100 {
        let (mut owner, next) = journaled_as(SessionId(uid), &bytes);
        bytes = next;
        let said = told(&hear_of(&mut owner, 1, &running));
        assert!(matches!(said[..], [TaskMessage::Extended { .. }]), "{uid}: {said:?}");
    }
}
