//! Packets that owners and workers are sent, changed at random from a seed: no input is a panic,
//! what has no end is bounded, and a task ends once.
use std::collections::BTreeSet;

use concord_core::{Instant, MS, Machine, Now, Rng, SessionId, SwitchId};
use concord_scheduler::{Job, Owner, OwnerConfig, TaskSpec, Worker, WorkerConfig};
use concord_wire::control::Message as _;
use concord_wire::falcon::{Answer, Asker, Assigned, Reply, Request, Submission, Task, TaskFlags};
use concord_wire::tasks::{Attempt, BodyName, Ended, JOB_BODY, Run, TaskMessage};

use super::{OWNER, SWITCH, Sent, UID, WORKER, inputs};

/// Inputs of one owner and one worker.
const INPUTS_OF_ONE: u64 = 1_000;
const SESSION: SessionId = SessionId(77);

fn few(rng: &mut Rng) -> u32 {
    rng.below(5) as u32
}

fn answer(rng: &mut Rng) -> Vec<u8> {
    let tasks = vec![Task::default(); rng.below(9) as usize];
    let mut bytes = Vec::new();
    Submission {
        uid: UID,
        number: few(rng),
        switch_id: SwitchId(few(rng)),
        answer: Answer::ALL[1 + rng.below(Answer::ALL.len() as u64 - 1) as usize],
        queue: few(rng) as u8,
        priority: few(rng) as u8,
        retrieve_ptr: few(rng),
        tickets: (0..rng.below(8) as u32).collect(),
        tasks,
        ..Submission::default()
    }
    .emit(&mut bytes);
    bytes
}

fn assignment(rng: &mut Rng) -> Vec<u8> {
    let slot = rng.below(3) as u16;
    let asker = Asker { session: SESSION, number: few(rng), slot, addr: WORKER };
    let mut bytes = Vec::new();
    Request { asker, ..Request::default() }.emit(&mut bytes);
    let (ticket, switch_id) = (few(rng), SwitchId(few(rng)));
    let reply = if rng.chance(2, 3) {
        let (tid, needs) = (few(rng), few(rng) as u8);
        let flags = TaskFlags(rng.below(8) as u8);
        let task = Task { tid, needs, flags, attempt: 1, limit_ms: few(rng), ..Task::default() };
        let (uid, jid, owner, queue) = (UID, 1, OWNER, few(rng) as u8);
        Reply::Task(Assigned { uid, jid, owner, ticket, switch_id, queue, task })
    } else {
        Reply::NoOp { answer: Answer::ALL[few(rng) as usize + 1], ticket, switch_id }
    };
    reply.put(&mut bytes).unwrap();
    bytes
}

fn message(rng: &mut Rng) -> Vec<u8> {
    let (jid, tid) = (1, few(rng));
    let of = Attempt { uid: UID.0, jid, tid, attempt: few(rng) as u16 };
    let run = Run { session: SESSION.0, run: few(rng), worker: WORKER };
    let asked_at = rng.below(1 << 32);
    let (index, count) = (few(rng), few(rng) as u8);
    let total_bytes = rng.below(1 << 21);
    let name = BodyName { uid: UID.0, jid, tid: if rng.chance(1, 2) { JOB_BODY } else { tid } };
    let bytes = vec![7; rng.below(1_100) as usize];
    let ended = [Ended::Done, Ended::Failed, Ended::TimedOut][rng.below(3) as usize];
    let message = match rng.below(12) {
        0 => TaskMessage::Claim { of, run, asked_at },
        1 => TaskMessage::Running { of, run, asked_at },
        2 => TaskMessage::Returned { of, run },
        3 => TaskMessage::Result { of, run, ended, output_bytes: total_bytes, output: bytes },
        4 => TaskMessage::Fetch { name, worker: WORKER, first: index, count },
        5 => TaskMessage::OutputFragment { run, total_bytes: total_bytes as u32, index, bytes },
        6 => TaskMessage::Fragment { name, total_bytes: total_bytes as u32, index, bytes },
        7 => TaskMessage::Claimed { of, run, asked_at, granted: rng.chance(1, 2) },
        8 => TaskMessage::Extended { of, run, asked_at },
        9 => TaskMessage::Known { of, run },
        10 => TaskMessage::FetchOutput { run, first: index, count },
        // One that is to end takes no tasks any more: seldom.
        11 if rng.chance(1, 200) => {
            TaskMessage::Drain { owner: OWNER, session: run.session, within_ms: Some(asked_at) }
        }
        11 if rng.chance(1, 2) => {
            let (session, is_draining) = (run.session, rng.chance(1, 2));
            TaskMessage::Draining { worker: WORKER, session, is_draining, tasks: index }
        }
        _ => TaskMessage::Cancel { of, run },
    };
    let mut bytes = Vec::new();
    message.emit(&mut bytes);
    bytes
}

fn corrupt(rng: &mut Rng, bytes: &mut Vec<u8>) {
    for _ in 0..rng.below(3) {
        let at = rng.below(bytes.len() as u64) as usize;
        bytes[at] = if rng.chance(1, 2) { rng.below(256) as u8 } else { bytes[at] ^ 1 };
    }
    if rng.chance(1, 16) {
        bytes.truncate(rng.below(bytes.len() as u64 + 1) as usize);
    }
}

fn owner() -> Owner {
    let mut owner = Owner::new(OwnerConfig::new(UID, OWNER, SWITCH));
    let job = |once| Job { tasks: vec![TaskSpec::default(); 4], once, ..Job::default() };
    owner.submit(Now::default(), Job { body: Some(vec![1; 3_000].into()), ..job(false) });
    owner.submit(Now::default(), Job { priority: 3, near: Some(2), ..job(true) });
    owner
}

fn worker(prefetch: u8) -> Worker {
    let config = WorkerConfig::new(SESSION, WORKER, SWITCH, 2);
    Worker::new(WorkerConfig { queues: 0b101, prefetch, ..config })
}

/// A name, and what draws a packet of it.
type Format = (&'static str, fn(&mut Rng) -> Vec<u8>);

#[test]
fn no_packet_is_a_panic_and_a_task_ends_once() {
    let formats: [Format; 3] =
        [("answers", answer), ("assignments", assignment), ("messages", message)];
    for (seed, (name, make)) in (31..).zip(formats) {
        let rng = &mut Rng::new(seed);
        let (mut sent, mut orders, mut over) = (0, 0, 0);
        for round in 0..inputs().div_ceil(INPUTS_OF_ONE) {
            let (mut owner, mut worker) = (owner(), worker(u8::from(round % 2 == 0) * 2));
            let (mut told, mut at) = (BTreeSet::new(), 0);
            for _ in 0..INPUTS_OF_ONE {
                at += rng.below(2 * MS);
                let now = Now { instant: Instant(at), unix_ms: 0 };
                let mut bytes = make(rng);
                corrupt(rng, &mut bytes);
                let mut out = Sent::new();
                owner.handle(now, SWITCH, &mut bytes.clone(), &mut out);
                worker.handle(now, SWITCH, &mut bytes, &mut out);
                owner.tick(now, &mut out);
                owner.flush(now, &mut out);
                worker.tick(now, &mut out);
                worker.flush(now, &mut out);
                assert!(out.len() < 2_000, "{name}: one packet made {}", out.len());
                sent += out.len();
                orders += std::iter::from_fn(|| worker.poll_order()).count();
                assert!(worker.runs().count() <= 2, "{name}");
                while let Some(outcome) = owner.poll_outcome() {
                    over += 1;
                    assert!(told.insert((outcome.jid, outcome.tid)), "{name}: ended twice");
                }
            }
        }
        println!("{name}: {sent} packets sent, {orders} orders, {over} tasks over");
        assert!(sent > 0);
    }
}
