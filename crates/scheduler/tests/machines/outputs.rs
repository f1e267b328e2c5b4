//! Outputs that are longer than what a result carries.

use concord_wire::tasks::{OUTPUT_BYTES_MAX, RESULT_BYTES_MAX};

use super::*;

/// What a run gave, as its result has it.
fn long_result(number: u32, output: &[u8]) -> TaskMessage {
    TaskMessage::Result {
        of: attempt(1),
        run: run(number),
        ended: Ended::Done,
        output_bytes: output.len() as u64,
        output: output[..RESULT_BYTES_MAX].to_vec(),
    }
}

/// All that an owner says to a worker's message.
fn told(owner: &mut Owner, ms: u64, message: &TaskMessage) -> Vec<TaskMessage> {
    let (mut bytes, mut sent) = (Vec::new(), Sent::new());
    message.emit(&mut bytes);
    owner.handle(at(ms), WORKER, &mut bytes, &mut sent);
    owner.flush(at(ms), &mut sent);
    messages(&sent)
}

/// An owner and a worker until nothing is on its way between them, which is known at `ms`.
fn exchange(
    owner: &mut Owner,
    worker: &mut Worker,
    ms: u64,
    mut to_owner: Vec<TaskMessage>,
) -> usize {
    let mut count = 0;
    while !to_owner.is_empty() {
        count += to_owner.len();
        let mut to_worker = Vec::new();
        for message in std::mem::take(&mut to_owner) {
            to_worker.extend(told(owner, ms, &message));
        }
        to_owner = to_worker.iter().flat_map(|message| heard(worker, ms, message)).collect();
    }
    count
}

/// A long output is fetched and one that is too long is cut and its length told.
#[test]
fn t17_long_output_is_fetched_or_cut() {
    for (bytes, more) in [(RESULT_BYTES_MAX + 1, 0), (300_000, 0), (OUTPUT_BYTES_MAX, 1 << 30)] {
        let output: Vec<u8> = (0..bytes).map(|n| (n % 251) as u8).collect();
        let (mut owner, mut worker) = (owner(Guards::ALL), worker(Guards::ALL));
        owner.submit(at(0), job(1, false));
        submitted(&mut owner, 0);
        let said = assign(&mut worker, 0, plain(), 1);
        exchange(&mut owner, &mut worker, 0, said);
        let mut sent = Sent::new();
        let total_bytes = bytes as u64 + more;
        let given = Output { bytes: &output, total_bytes };
        worker.finished(at(1), 1, Ended::Done, given, &mut sent);
        let said = messages(&sent);
        let [TaskMessage::Result { output: part, .. }] = &said[..] else { panic!("{said:?}") };
        assert_eq!(part.len(), RESULT_BYTES_MAX);
        let count = exchange(&mut owner, &mut worker, 2, said);
        assert_eq!(count, 1 + bytes.div_ceil(RESULT_BYTES_MAX));
        let told = owner.poll_outcome().unwrap();
        assert!(told.outcome == Outcome::Done(output), "{bytes} bytes came otherwise");
        assert_eq!(told.output_bytes, total_bytes);
        assert!(ticked(&mut worker, 1_000).is_empty() && worker.is_idle());
        assert_eq!((owner.open(), owner.poll_outcome()), (0, None));
    }
}

/// A worker that dies before its output was fetched has not run its task.
#[test]
fn worker_death_before_the_output_was_fetched() {
    let output = vec![7; 5_000];
    for once in [false, true] {
        let mut owner = owner(Guards::ALL);
        owner.submit(at(0), job(1, once));
        submitted(&mut owner, 0);
        say(&mut owner, 0, &TaskMessage::Claim { of: attempt(1), run: run(1), asked_at: 1 });
        let fetch = TaskMessage::FetchOutput { run: run(1), first: 0, count: 32 };
        assert_eq!(told(&mut owner, 1, &long_result(1, &output)), [fetch]);
        // Until its lease is over it is asked again and again.
        let (mut sent, mut again) = (Sent::new(), Vec::new());
        for ms in (2..1_200).step_by(2) {
            owner.tick(at(ms), &mut sent);
        }
        again.extend(messages(&sent));
        assert!(
            again.len() > 4 && again.iter().all(|m| matches!(m, TaskMessage::FetchOutput { .. }))
        );
        assert_eq!(submissions(&sent).first().map(|s| s.tasks[0].attempt), (!once).then_some(2));
        let outcome = owner.poll_outcome().map(|told| told.outcome);
        assert_eq!(outcome, once.then_some(Outcome::Unknown));
        let fragment = TaskMessage::OutputFragment {
            run: run(1),
            total_bytes: 5_000,
            index: 0,
            bytes: vec![7; 1_024],
        };
        let said = told(&mut owner, 1_300, &fragment);
        assert!(!once || said.is_empty(), "its outcome was told");
    }
}

/// Of two long outputs the first is fetched and a run that has not ended is stopped.
#[test]
fn first_of_two_outputs_is_fetched() {
    let output = vec![7; 2_000];
    let mut owner = owner(Guards::ALL);
    owner.submit(at(0), job(1, false));
    submitted(&mut owner, 0);
    let running = |number| TaskMessage::Running { of: attempt(1), run: run(number), asked_at: 5 };
    say(&mut owner, 1, &running(3));
    let fetch = TaskMessage::FetchOutput { run: run(1), first: 0, count: 32 };
    assert_eq!(told(&mut owner, 2, &long_result(1, &output)), [fetch]);
    assert!(told(&mut owner, 2, &long_result(2, &output)).is_empty(), "it is told again");
    let cancel = TaskMessage::Cancel { of: attempt(1), run: run(3) };
    assert_eq!(say(&mut owner, 3, &running(3)), cancel);
    let fragment = |run, total_bytes, index: u32| {
        let bytes = output[index as usize * 1_024..].chunks(1_024).next().unwrap().to_vec();
        TaskMessage::OutputFragment { run, total_bytes, index, bytes }
    };
    assert!(told(&mut owner, 4, &fragment(run(1), 2_000, 1)).is_empty());
    for odd in [fragment(run(2), 2_000, 0), fragment(run(1), 1_999, 0), fragment(run(9), 2_000, 0)]
    {
        assert!(told(&mut owner, 4, &odd).is_empty());
    }
    let known = |number| TaskMessage::Known { of: attempt(1), run: run(number) };
    assert_eq!(told(&mut owner, 4, &fragment(run(1), 2_000, 0)), [known(1)]);
    assert_eq!(told(&mut owner, 5, &long_result(2, &output)), [known(2)]);
    let told: Vec<Outcome> =
        std::iter::from_fn(|| owner.poll_outcome()).map(|t| t.outcome).collect();
    assert_eq!(told, [Outcome::Done(output.clone())]);
}

/// An owner that has no room takes no more outputs, and their worker keeps them.
#[test]
fn bug_21_50_outputs_stay_at_their_worker_without_room() {
    let output = vec![7; 3_000];
    let (mut owner, mut worker) = (owner(Guards::ALL), worker(Guards::ALL));
    owner.submit(at(0), job(1, false));
    submitted(&mut owner, 0);
    let said = assign(&mut worker, 0, plain(), 1);
    exchange(&mut owner, &mut worker, 0, said);
    owner.hold_outputs(true);
    let mut sent = Sent::new();
    worker.finished(at(1), 1, Ended::Done, Output::from(&output[..]), &mut sent);
    assert_eq!(exchange(&mut owner, &mut worker, 1, messages(&sent)), 1, "the result alone");
    // Far longer than a worker tells an owner that says nothing, and than a lease.
    for ms in (2..60_000).step_by(10) {
        let mut said = Sent::new();
        owner.tick(at(ms), &mut said);
        let said = ticked(&mut worker, ms);
        assert!(exchange(&mut owner, &mut worker, ms, said) <= 1);
    }
    assert_eq!((owner.open(), owner.counters().leases_over), (1, 0));
    owner.hold_outputs(false);
    for ms in (60_000..60_300).step_by(10) {
        let said = ticked(&mut worker, ms);
        exchange(&mut owner, &mut worker, ms, said);
    }
    let told = owner.poll_outcome().map(|told| told.outcome);
    assert!(told == Some(Outcome::Done(output)) && worker.is_idle());
}

/// While its driver has no room for outputs an owner takes none, however short: the run holds its
/// task, its worker tells it again in a while, and what gave nothing is over at once.
#[test]
fn outputs_wait_for_room_however_short() {
    let mut owner = owner(Guards::ALL);
    owner.submit(at(0), job(2, false));
    submitted(&mut owner, 0);
    owner.hold_outputs(true);
    let result = |tid: u32, output: &[u8]| TaskMessage::Result {
        of: Attempt { tid, ..attempt(1) },
        run: run(tid),
        ended: Ended::Done,
        output_bytes: output.len() as u64,
        output: output.to_vec(),
    };
    let later = TaskMessage::FetchOutput { run: run(0), first: 0, count: 0 };
    assert_eq!(told(&mut owner, 1, &result(0, b"x")), [later]);
    assert_eq!(owner.poll_outcome(), None);
    told(&mut owner, 1, &result(1, b""));
    assert_eq!(owner.poll_outcome().map(|told| told.tid), Some(1));
    owner.hold_outputs(false);
    told(&mut owner, 2, &result(0, b"x"));
    assert_eq!(owner.poll_outcome().map(|told| told.outcome), Some(Outcome::Done(b"x".to_vec())));
    // Its worker keeps it for as long as it is told to wait.
    let mut worker = worker(Guards::ALL);
    assign(&mut worker, 0, plain(), 1);
    let mut sent = Sent::new();
    worker.finished(at(1), 1, Ended::Done, Output::from(&b"x"[..]), &mut sent);
    let mut own = messages(&sent);
    let mut times = 0;
    for ms in 1..20_000 {
        for message in std::mem::take(&mut own) {
            let TaskMessage::Result { run, .. } = message else { continue };
            times += 1;
            heard(&mut worker, ms, &TaskMessage::FetchOutput { run, first: 0, count: 0 });
        }
        own = ticked(&mut worker, ms + 1);
    }
    assert!((100..=200).contains(&times) && !worker.is_idle(), "{times}");
}
