//! Owners with a journal, and the numbers of attempts.

use concord_scheduler::{Found, Journal, JournaledOwner};

use super::*;

/// An owner with a journal, and what is durable of it.
pub(super) fn journaled(bytes: &[u8]) -> (JournaledOwner, Vec<u8>) {
    journaled_as(UID, bytes)
}

pub(super) fn journaled_as(uid: SessionId, bytes: &[u8]) -> (JournaledOwner, Vec<u8>) {
    let config = OwnerConfig { known_ns: 0, ..OwnerConfig::new(uid, OWNER, SWITCH) };
    let (journal, found, mut bytes) = match Journal::recover(bytes).unwrap() {
        Some(found) => (Journal::resume(&found), found, bytes.to_vec()),
        None => {
            let (journal, header) = Journal::create(1);
            (journal, Found::default(), header)
        }
    };
    let mut owner = JournaledOwner::resume(config, at(0), journal, &found);
    sync(&mut owner, 0, &mut bytes);
    (owner, bytes)
}

/// Writes down what there is to write, at once.
pub(super) fn sync(owner: &mut JournaledOwner, ms: u64, bytes: &mut Vec<u8>) -> Sent {
    let mut sent = Sent::new();
    while let Some(persist) = owner.poll_persist() {
        bytes.extend(persist.what);
        owner.persisted(at(ms), persist.number, &mut sent);
    }
    sent
}

fn hear(owner: &mut JournaledOwner, ms: u64, mut bytes: Vec<u8>) -> Sent {
    let mut sent = Sent::new();
    owner.handle(at(ms), WORKER, &mut bytes, &mut sent);
    owner.flush(at(ms), &mut sent);
    sent
}

pub(super) fn hear_of(owner: &mut JournaledOwner, ms: u64, message: &TaskMessage) -> Sent {
    let mut bytes = Vec::new();
    message.emit(&mut bytes);
    hear(owner, ms, bytes)
}

pub(super) fn ticked(owner: &mut JournaledOwner, ms: u64) -> Sent {
    let mut sent = Sent::new();
    owner.tick(at(ms), &mut sent);
    sent
}

fn bytes_of(answer: &Submission) -> Vec<u8> {
    let mut bytes = Vec::new();
    answer.emit(&mut bytes);
    bytes
}

#[test]
fn bug_21_32_what_waits_for_a_slow_disk_is_submitted_once() {
    let (mut owner, _) = journaled(&[]);
    owner.submit(at(0), job(3, false), b"").unwrap();
    assert!(ticked(&mut owner, 0).is_empty());
    let first = owner.poll_persist().unwrap();
    // What is decided while the disk syncs waits for the next frame.
    owner.submit(at(1), job(1, false), b"").unwrap();
    assert!(ticked(&mut owner, 1).is_empty() && ticked(&mut owner, 7).is_empty());
    let mut sent = Sent::new();
    owner.persisted(at(8), first.number, &mut sent);
    assert_eq!(attempts(&submissions(&sent)), [1; 3]);
    let second = owner.poll_persist().unwrap();
    assert!(ticked(&mut owner, 12).is_empty(), "5 ms from when it was sent");
    let mut sent = Sent::new();
    owner.persisted(at(17), second.number, &mut sent);
    assert_eq!(attempts(&submissions(&sent)), [1], "of the second job");
    // The first one is not answered.
    assert_eq!(owner.owner().counters().submissions_unanswered, 0);
    assert!(ticked(&mut owner, 17).is_empty());
    assert_eq!(owner.owner().counters().submissions_unanswered, 1);
    assert_eq!(attempts(&submissions(&ticked(&mut owner, 19))), [2; 3]);
}

#[test]
fn bug_21_32_a_lease_is_extended_while_the_disk_syncs() {
    let (mut owner, mut bytes) = journaled(&[]);
    owner.submit(at(0), job(1, false), b"").unwrap();
    ticked(&mut owner, 0);
    sync(&mut owner, 0, &mut bytes);
    owner.submit(at(1), job(1, false), b"").unwrap();
    let _first = owner.poll_persist().unwrap();
    let (of, run) = (attempt(1), run(1));
    let sent = hear_of(&mut owner, 2, &TaskMessage::Running { of, run, asked_at: 5 });
    assert_eq!(
        TaskMessage::parse(&sent[0].1).unwrap(),
        TaskMessage::Extended { of, run, asked_at: 5 }
    );
    // A result waits: that it is known says that it is written.
    let (output_bytes, output) = (0, vec![]);
    let result = TaskMessage::Result { of, run, ended: Ended::Done, output_bytes, output };
    assert!(hear_of(&mut owner, 3, &result).is_empty());
}

/// A claim whose grant is not written yet is told to wait, however slow the disk is; if its worker
/// has given up, the grant to the next run is written too.
#[test]
fn bug_21_32_claim_waits_for_the_disk() {
    let (mut owner, mut bytes) = journaled(&[]);
    owner.submit(at(0), job(1, true), b"").unwrap();
    ticked(&mut owner, 0);
    sync(&mut owner, 0, &mut bytes);
    let of = attempt(1);
    let claim = |of, run| TaskMessage::Claim { of, run, asked_at: 5 };
    let wait = |of, run| [TaskMessage::Wait { of, run }];
    assert_eq!(told(&hear_of(&mut owner, 1, &claim(of, run(1)))), wait(of, run(1)));
    sync(&mut owner, 60, &mut bytes);
    // Its worker has given up, and it comes to another one.
    hear_of(&mut owner, 61, &TaskMessage::Returned { of, run: run(1) });
    let of = attempt(2);
    assert_eq!(told(&hear_of(&mut owner, 62, &claim(of, run(2)))), wait(of, run(2)));
    let granted = TaskMessage::Claimed { of, run: run(2), asked_at: 5, granted: true };
    assert!(told(&sync(&mut owner, 500, &mut bytes)).contains(&granted));
}

/// A frame is on its way to the disk, and there is more to write: its number.
fn busy(owner: &mut JournaledOwner, ms: u64) -> u64 {
    owner.submit(at(ms), job(1, false), b"").unwrap();
    let number = owner.poll_persist().unwrap().number;
    owner.submit(at(ms), job(1, false), b"").unwrap();
    number
}

pub(super) fn told(sent: &Sent) -> Vec<TaskMessage> {
    sent.iter().filter_map(|(_, bytes)| TaskMessage::parse(bytes).ok()).collect()
}

/// A grant waits for its own task alone however busy the disk is.
#[test]
fn bug_21_46_grant_waits_for_its_own_task_only() {
    let (mut owner, mut bytes) = journaled(&[]);
    owner.submit(at(0), job(1, true), b"").unwrap();
    ticked(&mut owner, 0);
    sync(&mut owner, 0, &mut bytes);
    let claim = |of, run, asked_at| TaskMessage::Claim { of, run, asked_at };
    let granted = |of, run, asked_at| TaskMessage::Claimed { of, run, asked_at, granted: true };
    let (of, first) = (attempt(1), run(1));
    let wait = |of, run| [TaskMessage::Wait { of, run }];
    assert_eq!(told(&hear_of(&mut owner, 1, &claim(of, first, 5))), wait(of, first));
    let number = busy(&mut owner, 2);
    assert_eq!(told(&hear_of(&mut owner, 50, &claim(of, first, 6))), wait(of, first));
    let mut sent = Sent::new();
    owner.persisted(at(60), number, &mut sent);
    assert_eq!(told(&sent), [granted(of, first, 5), granted(of, first, 6)]);
    // What else there is to write does not delay a grant that is written.
    busy(&mut owner, 61);
    assert_eq!(told(&hear_of(&mut owner, 62, &claim(of, first, 7))), [granted(of, first, 7)]);
}

/// What says nothing that is written does not wait for the disk.
#[test]
fn bug_21_46_unwritten_answers_do_not_wait_for_the_disk() {
    let (mut owner, mut bytes) = journaled(&[]);
    let with_body = Job { body: Some(vec![7; 100].into()), ..job(2, false) };
    owner.submit(at(0), with_body, b"").unwrap();
    ticked(&mut owner, 0);
    let submitted = submissions(&sync(&mut owner, 0, &mut bytes));
    hear(&mut owner, 1, bytes_of(&answer(&submitted[0], 2, 0, 0)));
    busy(&mut owner, 2);
    let asked = ticked(&mut owner, 10);
    assert!(asked.iter().any(|(to, _)| *to == SWITCH), "where retrieve_ptr is");
    let name = BodyName { uid: UID.0, jid: 1, tid: JOB_BODY };
    let fetch = TaskMessage::Fetch { name, worker: WORKER, first: 0, count: 1 };
    let sent = told(&hear_of(&mut owner, 11, &fetch));
    assert!(matches!(sent[..], [TaskMessage::Fragment { .. }]), "{sent:?}");
    let (of, run, ended) = (attempt(1), run(1), Ended::Done);
    let result =
        TaskMessage::Result { of, run, ended, output_bytes: 5_000, output: vec![7; 1_024] };
    let sent = told(&hear_of(&mut owner, 12, &result));
    assert!(matches!(sent[..], [TaskMessage::FetchOutput { .. }]), "{sent:?}");
}

/// The switch refuses one task so often; the attempts that were submitted.
fn refused(owner: &mut JournaledOwner, times: usize, bytes: &mut Vec<u8>) -> Vec<u16> {
    let mut all = vec![];
    for ms in (0..100_000_000).step_by(200) {
        let mut sent = ticked(owner, ms);
        sent.extend(sync(owner, ms, bytes));
        let submitted = submissions(&sent);
        all.extend(attempts(&submitted));
        if all.len() >= times {
            break;
        }
        for submission in submitted {
            hear(owner, ms, bytes_of(&answer(&submission, 0, 0, 0)));
        }
    }
    all
}

#[test]
fn bug_21_33_attempts_rise_however_many_a_process_has_begun() {
    let (mut owner, mut bytes) = journaled(&[]);
    owner.submit(at(0), job(1, false), b"").unwrap();
    assert_eq!(refused(&mut owner, 250, &mut bytes), (1..=250).collect::<Vec<u16>>());
    // It is killed, and goes on, twice: before it has submitted anything the second time.
    let (_, mut bytes) = journaled(&bytes);
    let found = Journal::recover(&bytes).unwrap().unwrap();
    assert_eq!(
        Journal::recover(&Journal::rewritten(3, &found, 9)).unwrap().unwrap().jobs,
        found.jobs
    );
    let (mut owner, _) = journaled(&bytes.clone());
    assert_eq!(refused(&mut owner, 2, &mut bytes), [301, 302]);
}

/// As often as there are hundreds of numbers, before it was submitted and after.
#[test]
fn bug_21_43_job_continues_across_restarts() {
    let (_, mut bytes) = journaled(&[]);
    for _ in 0..700 {
        (_, bytes) = journaled(&bytes);
    }
    let (mut owner, mut bytes) = journaled(&bytes);
    owner.submit(at(0), job(1, false), b"").unwrap();
    sync(&mut owner, 0, &mut bytes);
    for _ in 0..700 {
        (_, bytes) = journaled(&bytes);
    }
    let (mut owner, mut bytes) = journaled(&bytes);
    assert_eq!(refused(&mut owner, 1, &mut bytes), [101]);
}

#[test]
fn bug_21_33_a_silent_switch_is_asked_less_and_less_often() {
    let mut owner = owner(Guards::ALL);
    owner.submit(at(0), job(1, false));
    let submitted = (0..1_000).map(|ms| submitted(&mut owner, ms).len());
    let times: usize = submitted.sum();
    assert!((10..30).contains(&times), "{times} times in a second");
}

#[test]
fn bug_21_33_a_task_without_a_number_left_fails_and_says_why() {
    let (mut owner, mut bytes) = journaled(&[]);
    owner.submit(at(0), job(1, false), b"").unwrap();
    // However long the queue is full, nobody has had the last number.
    let all = refused(&mut owner, 65_600, &mut bytes);
    assert_eq!((all[65_534], all.last()), (u16::MAX, Some(&u16::MAX)));
    assert_eq!(owner.poll_outcome(), None);
    let of = attempt(u16::MAX);
    hear_of(&mut owner, 1 << 32, &TaskMessage::Running { of, run: run(1), asked_at: 5 });
    hear_of(&mut owner, 1 << 32, &TaskMessage::Returned { of, run: run(1) });
    ticked(&mut owner, 1 << 32);
    sync(&mut owner, 1 << 32, &mut bytes);
    let told = owner.poll_outcome().unwrap().outcome;
    assert!(told.output().starts_with(b"it was tried 65535 times"), "{told:?}");
}

#[test]
fn bug_21_36_what_no_executor_could_fetch_is_not_taken() {
    let mut owner = owner(Guards::ALL);
    let of = |bytes: usize| Job { body: Some(vec![0; bytes].into()), ..job(1, false) };
    assert_eq!(owner.submit(at(0), of((1 << 20) + 1)), None);
    let long = [(0, vec![0; (1 << 20) + 1].into())].into_iter().collect();
    assert_eq!(owner.submit(at(0), Job { long, ..job(1, false) }), None);
    assert_eq!((owner.open(), owner.submit(at(0), of(1 << 20))), (0, Some(1)));
}

/// How long a resumed task took counts from when it was taken.
#[test]
fn bug_21_42_resumed_tasks_time_counts_from_its_taking() {
    let (mut owner, mut bytes) = journaled(&[]);
    let taken = Now { instant: Instant(0), unix_ms: 1_000 };
    let jid = owner.submit(taken, job(1, false), b"").unwrap();
    sync(&mut owner, 0, &mut bytes);
    let found = Journal::recover(&bytes).unwrap().unwrap();
    let config = OwnerConfig::new(UID, OWNER, SWITCH);
    let now = Now { instant: Instant(50_000 * MS), unix_ms: 11_000 };
    let mut owner = JournaledOwner::resume(config, now, Journal::resume(&found), &found);
    assert!(owner.cancel(now, jid, &mut Sent::new()));
    sync(&mut owner, 50_000, &mut bytes);
    let trace = owner.poll_outcome().unwrap().trace;
    assert_eq!(trace.over_at.since(trace.taken_at), 10_000 * MS);
}

/// What runs when an owner is started again goes on: its worker is heard of before anything is
/// submitted, and its result is the task's, also of one that is never run twice.
#[test]
fn bug_21_72_what_runs_goes_on_with_the_next_owner() {
    let (mut owner, mut bytes) = journaled(&[]);
    owner.submit(at(0), job(3, false), b"").unwrap();
    owner.submit(at(0), job(2, true), b"").unwrap();
    ticked(&mut owner, 0);
    sync(&mut owner, 0, &mut bytes);
    let of = |jid, tid| Attempt { uid: UID.0, jid, tid, attempt: 1 };
    let running = |jid, tid| TaskMessage::Running { of: of(jid, tid), run: run(tid), asked_at: 5 };
    let claim = |tid| TaskMessage::Claim { of: of(2, tid), run: run(10 + tid), asked_at: 5 };
    hear_of(&mut owner, 1, &running(1, 0));
    for tid in 0..2 {
        hear_of(&mut owner, 1, &claim(tid));
    }
    sync(&mut owner, 1, &mut bytes);
    // Another process.
    let (mut owner, mut bytes) = journaled_as(SessionId(12), &bytes);
    assert!(submissions(&ticked(&mut owner, 1)).is_empty(), "what runs is heard of first");
    let said = |sent: &Sent| TaskMessage::parse(&sent[0].1).unwrap();
    let sent = hear_of(&mut owner, 100, &running(1, 0));
    assert!(matches!(said(&sent), TaskMessage::Extended { .. }));
    let once = TaskMessage::Running { of: of(2, 0), run: run(10), asked_at: 5 };
    assert!(matches!(said(&hear_of(&mut owner, 100, &once)), TaskMessage::Extended { .. }));
    // Another run of the same task is none.
    let other = TaskMessage::Running { of: of(2, 0), run: run(77), asked_at: 5 };
    let sent = hear_of(&mut owner, 100, &other);
    assert!(sent.is_empty() || matches!(said(&sent), TaskMessage::Cancel { .. }));
    // Nor is another claim of what the process before had granted; that one is granted again.
    let claims = |run| TaskMessage::Claim { of: of(2, 1), run, asked_at: 5 };
    for (number, is_its) in [(99, false), (11, true)] {
        let sent = hear_of(&mut owner, 100, &claims(run(number)));
        let is_right = |said: &TaskMessage| matches!(said, TaskMessage::Claimed { granted, .. } if *granted == is_its);
        assert!(is_right(&said(&sent)));
    }
    // What ended meanwhile is told.
    let (output_bytes, output) = (2, b"ok".to_vec());
    let result = TaskMessage::Result {
        of: of(2, 1),
        run: run(11),
        ended: Ended::Done,
        output_bytes,
        output,
    };
    hear_of(&mut owner, 110, &result);
    sync(&mut owner, 110, &mut bytes);
    let told = owner.poll_outcome().unwrap();
    assert_eq!((told.jid, told.tid, told.outcome), (2, 1, Outcome::Done(b"ok".to_vec())));
    // The others are submitted.
    let mut sent = ticked(&mut owner, 400);
    sent.extend(sync(&mut owner, 400, &mut bytes));
    let given = submissions(&sent);
    let tids: Vec<_> = given.iter().flat_map(|s| s.tasks.iter().map(|t| (s.jid, t.tid))).collect();
    assert_eq!(tids, [(1, 1), (1, 2)]);
    // The journal of both is as good as any.
    assert!(Journal::recover(&bytes).unwrap().is_some());
}
