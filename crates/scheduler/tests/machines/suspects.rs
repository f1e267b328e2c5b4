//! Tasks whose workers go silent, tasks that are not submitted yet, and retries.

use super::*;

fn of_worker(session: u64, run: u32) -> Run {
    Run { session, run, worker: WORKER }
}

/// A submission's tasks are in the queue and run at a worker.
fn started(owner: &mut Owner, ms: u64, session: u64, given: &[Submission], ticket: &mut u32) {
    for submission in given {
        let count = submission.tasks.len() as u32;
        tell(owner, ms, &answer(submission, count as usize, *ticket, *ticket + count));
        *ticket += count;
        for task in &submission.tasks {
            let of = Attempt { tid: task.tid, jid: submission.jid, ..attempt(task.attempt) };
            let message =
                TaskMessage::Running { of, run: of_worker(session, task.tid), asked_at: 0 };
            assert!(matches!(say(owner, ms, &message), TaskMessage::Extended { .. }));
        }
    }
}

/// What is submitted until then.
fn until(owner: &mut Owner, ms: &mut u64, end: u64) -> Vec<Submission> {
    let mut all = vec![];
    while *ms < end {
        *ms += 5;
        all.extend(submitted(owner, *ms));
    }
    all
}

fn tids(of: &[Submission]) -> Vec<u32> {
    of.iter().flat_map(|submission| &submission.tasks).map(|task| task.tid).collect()
}

fn lost(owner: &mut Owner) -> Vec<u32> {
    let told: Vec<_> = std::iter::from_fn(|| owner.poll_outcome()).collect();
    told.into_iter().filter(|told| told.outcome == Outcome::Lost).map(|told| told.tid).collect()
}

/// A task that ends its worker is given up with the second worker, and not tried on a third one.
#[test]
fn bug_21_70_a_task_that_killed_two_workers_is_lost() {
    let mut owner = owner(Guards::ALL);
    owner.submit(at(0), job(1, false));
    let (mut ms, mut ticket) = (0, 0);
    let first = submitted(&mut owner, ms);
    started(&mut owner, ms, 1, &first, &mut ticket);
    let second = until(&mut owner, &mut ms, 1_200);
    started(&mut owner, ms, 2, &second, &mut ticket);
    assert_eq!(attempts(&until(&mut owner, &mut ms, 3_000)), []);
    assert_eq!((lost(&mut owner), owner.counters().suspects_given_up), (vec![0], 1));
}

/// The same worker, or an owner that was stopped itself, is no second worker.
#[test]
fn bug_21_70_a_worker_that_pauses_twice_kills_no_task() {
    let mut owner = owner(Guards::ALL);
    owner.submit(at(0), job(1, false));
    let (mut ms, mut ticket) = (0, 0);
    let mut given = submitted(&mut owner, ms);
    for _ in 0..3 {
        started(&mut owner, ms, 1, &given, &mut ticket);
        let end = ms + 1_200;
        given = until(&mut owner, &mut ms, end);
    }
    started(&mut owner, ms, 2, &given, &mut ticket);
    ms += 3_000;
    let again = submitted(&mut owner, ms);
    assert_eq!((again.len(), lost(&mut owner)), (1, vec![]));
}

/// Of the tasks that a dead worker ran one is tried first; the others are not given up with the one
/// that ended it.
#[test]
fn bug_21_70_tasks_beside_the_one_that_kills_are_done() {
    let mut owner = owner(Guards::ALL);
    owner.submit(at(0), job(8, false));
    let (mut ms, mut ticket, mut session) = (0, 0, 1);
    let mut given = submitted(&mut owner, ms);
    let mut deaths = 0;
    while owner.open() > 0 {
        started(&mut owner, ms, session, &given, &mut ticket);
        let all: Vec<_> = given.iter().flat_map(|s| s.tasks.clone()).collect();
        // Task 5 ends whichever worker has it. Others are done in time.
        if all.iter().any(|task| task.tid == 5) {
            (deaths, session) = (deaths + 1, session + 1);
            let end = ms + 1_200;
            given = until(&mut owner, &mut ms, end);
            continue;
        }
        for task in all {
            let of = Attempt { tid: task.tid, ..attempt(task.attempt) };
            let run = of_worker(session, task.tid);
            let output = vec![];
            let result =
                TaskMessage::Result { of, run, ended: Ended::Done, output_bytes: 0, output };
            say(&mut owner, ms, &result);
        }
        let end = ms + 20;
        given = until(&mut owner, &mut ms, end);
        assert!(ms < 60_000, "{:?}", tids(&given));
    }
    let told: Vec<_> = std::iter::from_fn(|| owner.poll_outcome()).collect();
    let lost: Vec<_> = told.iter().filter(|t| t.outcome == Outcome::Lost).map(|t| t.tid).collect();
    assert_eq!((lost, told.len()), (vec![5], 8));
    assert!(deaths <= 3, "{deaths} workers died of it");
}

/// `running_max` tasks are under way, and the next one when one is over.
#[test]
fn of_a_job_so_many_tasks_are_under_way() {
    let mut owner = owner(Guards::ALL);
    owner.submit(at(0), Job { running_max: 2, ..job(5, false) });
    let mut given = submitted(&mut owner, 0);
    let (mut ticket, mut order) = (0, vec![]);
    for ms in 1..6 {
        order.push(tids(&given));
        started(&mut owner, ms, 1, &given, &mut ticket);
        let next: Vec<_> = given.iter().flat_map(|s| s.tasks.clone()).collect();
        given = vec![];
        for task in next {
            let of = Attempt { tid: task.tid, ..attempt(task.attempt) };
            let run = of_worker(1, task.tid);
            let result = TaskMessage::Result {
                of,
                run,
                ended: Ended::Done,
                output_bytes: 0,
                output: vec![],
            };
            let (mut bytes, mut sent) = (Vec::new(), Sent::new());
            result.emit(&mut bytes);
            owner.handle(at(ms), WORKER, &mut bytes, &mut sent);
            given.extend(submissions(&sent));
        }
    }
    assert_eq!(order.concat(), [0, 1, 2, 3, 4]);
    assert_eq!((order[0].len(), owner.open()), (2, 0));
}

/// A job that waits for another one, a task of it that may begin, and one that is cancelled.
#[test]
fn held_tasks_begin_when_they_are_released() {
    let mut owner = owner(Guards::ALL);
    owner.submit(at(0), Job { is_held: true, ..job(4, false) });
    assert!(submitted(&mut owner, 0).is_empty());
    assert_eq!(
        owner.explain(1, 0).unwrap().0,
        "waits for another job, or until fewer tasks of its own run"
    );
    let mut sent = Sent::new();
    assert!(owner.cancel_task(at(1), 1, 3, true, &mut sent));
    assert!(!owner.cancel_task(at(1), 1, 3, true, &mut sent), "it is over");
    owner.release_task(at(1), 1, 2, &mut sent);
    assert_eq!(tids(&submissions(&sent)), [2]);
    sent.clear();
    owner.release(at(2), 1, &mut sent);
    assert_eq!(tids(&submissions(&sent)), [0, 1]);
    assert_eq!(owner.open(), 3);
}

/// Retries wait twice as long each time.
#[test]
fn a_task_that_fails_waits_longer_each_time() {
    let mut owner = owner(Guards::ALL);
    owner.submit(at(0), Job { retries: 3, retry_ns: 100 * MS, ..job(1, false) });
    let (mut ms, mut ticket, mut pauses) = (0, 0, vec![]);
    let mut given = submitted(&mut owner, 0);
    while owner.open() > 0 {
        let number = given[0].tasks[0].attempt;
        started(&mut owner, ms, 1, &given, &mut ticket);
        let (of, run) = (attempt(number), of_worker(1, 0));
        let (ended, output) = (Ended::Exited(1), vec![]);
        say(&mut owner, ms, &TaskMessage::Result { of, run, ended, output_bytes: 0, output });
        let failed_at = ms;
        while owner.open() > 0 && given[0].tasks[0].attempt == number {
            ms += 1;
            let next = submitted(&mut owner, ms);
            if !next.is_empty() {
                pauses.push(ms - failed_at);
                given = next;
            }
        }
    }
    let grows = |(at, pause): (u32, &u64)| {
        let most = 100 << at;
        (most * 3 / 4..most + 6).contains(pause)
    };
    assert!(pauses.len() == 3 && (0..).zip(&pauses).all(grows), "{pauses:?}");
}

/// A worker that is told to end gives back what it still runs, but for tasks that are never run
/// twice: nobody takes them for tasks that ended it.
#[test]
fn a_worker_that_ends_gives_back_what_it_runs() {
    let mut worker = worker(Guards::ALL);
    assign(&mut worker, 0, plain(), 1);
    assert_eq!(orders(&mut worker), ["start"]);
    let mut sent = Sent::new();
    worker.retire();
    worker.return_runs(at(1), &mut sent);
    assert_eq!(orders(&mut worker), ["kill"]);
    let said = messages(&sent);
    assert!(matches!(said[..], [TaskMessage::Returned { .. }]), "{said:?}");
    let mut owner = owner(Guards::ALL);
    owner.submit(at(0), job(1, false));
    let (mut ticket, given) = (0, submitted(&mut owner, 0));
    started(&mut owner, 1, 1, &given, &mut ticket);
    let back = TaskMessage::Returned { of: attempt(1), run: of_worker(1, 0) };
    let (mut bytes, mut sent) = (Vec::new(), Sent::new());
    back.emit(&mut bytes);
    owner.handle(at(2), WORKER, &mut bytes, &mut sent);
    assert_eq!(attempts(&submissions(&sent)), [2], "at once");
}

/// What an attempt said before it was over, and comes after that, is no run that goes on: nobody
/// would run the task, and its worker would count as silent.
#[test]
fn bug_21_83_late_word_of_a_run_that_is_over() {
    let said = |once: bool, over: &dyn Fn(Attempt, Run) -> TaskMessage| {
        let mut owner = owner(Guards::ALL);
        let retries = if once { 0 } else { 1 };
        owner.submit(at(0), Job { retries, ..job(1, once) });
        submitted(&mut owner, 0);
        let (of, run) = (attempt(1), of_worker(1, 0));
        let before = match once {
            false => TaskMessage::Running { of, run, asked_at: 0 },
            true => TaskMessage::Claim { of, run, asked_at: 0 },
        };
        say(&mut owner, 1, &before);
        say(&mut owner, 2, &over(of, run));
        let late = say(&mut owner, 2, &before);
        let again = until(&mut owner, &mut 2, 40);
        (late, attempts(&again), owner.explain(1, 0).map(|told| told.0))
    };
    let (of, run) = (attempt(1), of_worker(1, 0));
    let ended = Ended::Exited(1);
    let failed = |of, run| TaskMessage::Result { of, run, ended, output_bytes: 0, output: vec![] };
    let back = |of, run| TaskMessage::Returned { of, run };
    let granted = false;
    let refused = TaskMessage::Claimed { of, run, asked_at: 0, granted };
    for (once, over) in [(false, &failed as &dyn Fn(_, _) -> _), (false, &back), (true, &back)] {
        let (late, again, stands) = said(once, over);
        assert_eq!(late, if once { refused.clone() } else { TaskMessage::Cancel { of, run } });
        assert!(!again.is_empty() && stands != Some("runs"), "once {once}: {stands:?}");
    }
}
