//! Workers that are drained.

use super::*;
use concord_scheduler::Drained;

/// What one of them says goes to the other one, and back, until both are silent.
fn talk(owner: &mut Owner, worker: &mut Worker, ms: u64, mut said: Sent) {
    while let Some((to, mut bytes)) = said.pop() {
        match to {
            OWNER => owner.handle(at(ms), WORKER, &mut bytes, &mut said),
            WORKER => worker.handle(at(ms), OWNER, &mut bytes, &mut said),
            _ => {}
        }
    }
}

fn worker(session: u64) -> Worker {
    Worker::new(WorkerConfig::new(SessionId(session), WORKER, SWITCH, 2))
}

/// A worker takes no more tasks from then on, and its owner hears of it.
#[test]
fn a_worker_is_drained() {
    let (mut owner, mut worker) = (owner(Guards::ALL), worker(77));
    let mut sent = Sent::new();
    worker.tick(at(0), &mut sent);
    assert!(!sent.is_empty(), "it asks for tasks");
    let mut sent = Sent::new();
    owner.drain(at(1).instant, WORKER, Some(500), &mut sent);
    assert_eq!(worker.drain_until(), None);
    talk(&mut owner, &mut worker, 1, sent);
    assert_eq!(worker.drain_until(), Some(at(501).instant));
    assert_eq!(owner.poll_drained(), Some((WORKER, Drained::Takes(0))));
    assert_eq!(owner.poll_drained(), None);
    let mut sent = Sent::new();
    worker.tick(at(1_000), &mut sent);
    let asks = sent.iter().filter(|(_, bytes)| Request::parse(bytes).is_ok()).count();
    assert_eq!((asks, worker.is_idle()), (0, true));
}

/// What was said to a process that is gone ends no other one.
#[test]
fn a_late_drain_ends_no_other_process() {
    let (mut owner, mut first) = (owner(Guards::ALL), worker(77));
    let mut sent = Sent::new();
    owner.drain(at(1).instant, WORKER, None, &mut sent);
    // It says which one it is, and is gone.
    let mut answer = Sent::new();
    first.handle(at(1), OWNER, &mut sent[0].1, &mut answer);
    let mut second = worker(78);
    talk(&mut owner, &mut second, 2, answer);
    assert_eq!(second.drain_until(), Some(Instant::NEVER), "its owner asked for the one there");
    // Old packets, of both steps.
    let mut third = worker(79);
    for session in [0, 77, 78] {
        let message = TaskMessage::Drain { owner: OWNER, session, within_ms: None };
        let mut bytes = vec![];
        message.emit(&mut bytes);
        third.handle(at(3), OWNER, &mut bytes, &mut Sent::new());
        assert_eq!(third.drain_until(), None);
    }
}

/// One that does not answer is told so.
#[test]
fn a_silent_worker_is_told_to_be_so() {
    let mut owner = owner(Guards::ALL);
    let mut sent = Sent::new();
    owner.drain(at(0).instant, WORKER, None, &mut sent);
    for ms in 1..=2_000 {
        assert_eq!(owner.poll_drained(), None);
        owner.tick(at(ms), &mut sent);
    }
    assert_eq!(owner.poll_drained(), Some((WORKER, Drained::Silent)));
    assert_eq!(sent.len(), 40, "it was asked every 50 ms");
}
