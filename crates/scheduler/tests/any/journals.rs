//! Journals that are changed at random from a seed, also where their checksums are right: no input
//! is a panic, what is found is what is written anew, and an owner goes on with it.
use concord_core::hash::hash64;
use concord_core::{Instant, MS, Machine, Now, Rng};
use concord_scheduler::{Found, Job, Journal, JournaledOwner, OwnerConfig, TaskSpec};
use concord_wire::control::Message as _;
use concord_wire::tasks::{Attempt, Ended, Run, TaskMessage};

use super::{OWNER, SWITCH, Sent, UID, WORKER, inputs};

const HEADER_BYTES: usize = 24;
const FRAME_HEADER_BYTES: usize = 16;
fn at(ms: u64) -> Now {
    Now { instant: Instant(ms * MS), unix_ms: 1_000 + ms }
}

fn resume(bytes: &[u8]) -> Option<(JournaledOwner, Found)> {
    let config = OwnerConfig { known_ns: 0, ..OwnerConfig::new(UID, OWNER, SWITCH) };
    let found = Journal::recover(bytes).ok()??;
    Some((JournaledOwner::resume(config, at(0), Journal::resume(&found), &found), found))
}

fn sync(owner: &mut JournaledOwner, bytes: &mut Vec<u8>) {
    let mut sent = Sent::new();
    while let Some(persist) = owner.poll_persist() {
        bytes.extend(persist.what);
        owner.persisted(at(1), persist.number, &mut sent);
    }
}

/// A journal of jobs of all sorts, some tasks of which were begun, and are over.
fn written(number: u64) -> Vec<u8> {
    let mut bytes = Journal::create(number).1;
    let (mut owner, _) = resume(&bytes).unwrap();
    sync(&mut owner, &mut bytes);
    for n in 0..4_u8 {
        let tasks = vec![TaskSpec::default(); 1 + usize::from(n)];
        let mut job = Job { tasks, once: n == 1, retries: u16::from(n), ..Job::default() };
        if n == 2 {
            job.long.insert(1, vec![9; 40].into());
            job.body = Some(b"body"[..].into());
        }
        let jid = owner.submit(at(0), job, b"note").unwrap();
        sync(&mut owner, &mut bytes);
        let of = Attempt { uid: UID.0, jid, tid: 0, attempt: 1 };
        let run = Run { session: 77, run: 1, worker: WORKER };
        let ended = if n == 3 { Ended::Exited(3) } else { Ended::Done };
        for message in [
            TaskMessage::Claim { of, run, asked_at: 0 },
            TaskMessage::Result { of, run, ended, output_bytes: 3, output: b"out".to_vec() },
        ] {
            let mut packet = Vec::new();
            message.emit(&mut packet);
            owner.handle(at(1), WORKER, &mut packet, &mut Sent::new());
        }
        owner.flush(at(1), &mut Sent::new());
        sync(&mut owner, &mut bytes);
    }
    bytes
}

/// Where frames begin, and the end.
fn frames(bytes: &[u8]) -> Vec<usize> {
    let mut all = vec![HEADER_BYTES];
    loop {
        let at = all[all.len() - 1];
        let Some(length) = bytes.get(at + 4..at + 8) else { return all };
        let length = u32::from_be_bytes(length.try_into().unwrap()) as usize;
        all.push(at + FRAME_HEADER_BYTES + length);
    }
}

fn change(rng: &mut Rng, bytes: &mut Vec<u8>) {
    let at = rng.below(bytes.len() as u64) as usize;
    match rng.below(4) {
        0 => bytes[at] ^= 1 << rng.below(8),
        1 => bytes[at] = [0, 1, 0x7f, 0x80, 0xff][rng.below(5) as usize],
        2 => bytes.truncate(at + 1),
        _ => {
            let more = bytes[at..(at + rng.below(40) as usize).min(bytes.len())].to_vec();
            bytes.splice(at..at, more);
        }
    }
}

/// Changes what a frame says, and makes its checksum right again.
fn change_body(rng: &mut Rng, number: u64, bytes: &[u8]) -> Vec<u8> {
    let frames = frames(bytes);
    let chosen = rng.below(frames.len() as u64 - 1) as usize;
    let (from, to) = (frames[chosen], frames[chosen + 1]);
    let mut body = bytes[from + FRAME_HEADER_BYTES..to].to_vec();
    for _ in 0..=rng.below(3) {
        change(rng, &mut body);
    }
    let mut all = bytes[..from].to_vec();
    for (n, body) in [&body[..]]
        .into_iter()
        .chain(
            frames[chosen + 1..]
                .windows(2)
                .map(|frame| &bytes[frame[0] + FRAME_HEADER_BYTES..frame[1]]),
        )
        .enumerate()
    {
        // What follows may be left out.
        if n > 0 && rng.chance(1, 8) {
            break;
        }
        let sum = hash64(number ^ (all.len() as u64).rotate_left(32), body);
        all.extend_from_slice(b"CJF1");
        all.extend_from_slice(&(body.len() as u32).to_be_bytes());
        all.extend_from_slice(&sum.to_be_bytes());
        all.extend_from_slice(body);
    }
    all
}

/// No journal is a panic and an owner goes on with what is found.
#[test]
fn any_journal_is_handled_without_panic() {
    let mut rng = Rng::new(0x10a1);
    let number = 7;
    let whole = written(number);
    let (_, found) = resume(&whole).unwrap();
    assert_eq!((found.jobs.len(), found.cut), (4, 0));
    assert!(found.jobs.values().any(|job| !job.outcomes.is_empty()), "a task is over");
    let (mut refused, mut cut, mut changed) = (0, 0, 0);
    for _ in 0..inputs() {
        let mut bytes = whole.clone();
        if rng.chance(1, 2) {
            bytes = change_body(&mut rng, number, &bytes);
        } else {
            for _ in 0..=rng.below(3) {
                change(&mut rng, &mut bytes);
            }
        }
        let Some((mut owner, found)) = resume(&bytes) else {
            refused += 1;
            continue;
        };
        assert_eq!(found.length + found.cut, bytes.len());
        cut += u64::from(found.cut > 0);
        changed += u64::from(found.cut == 0 && bytes != whole);
        let again = Journal::recover(&Journal::rewritten(8, &found, 100)).unwrap().unwrap();
        assert_eq!(again.next_jid(), found.next_jid());
        assert!(again.jobs.iter().all(|(jid, job)| found.jobs.get(jid) == Some(job)));
        let tasks = |job: &concord_scheduler::FoundJob| job.job.tasks.len();
        for job in found.jobs.values() {
            let mut over: Vec<u32> = job.outcomes.iter().map(|told| told.tid).collect();
            over.sort_unstable();
            over.dedup();
            assert_eq!(over.len(), job.outcomes.len(), "a task ends once");
            assert!(over.iter().all(|tid| (*tid as usize) < tasks(job)));
        }
        owner.tick(at(2), &mut Sent::new());
        owner.submit(at(2), Job { tasks: vec![TaskSpec::default()], ..Job::default() }, b"");
        sync(&mut owner, &mut bytes);
    }
    println!("journals: {refused} refused, {cut} cut, {changed} changed and believed");
    assert!(refused > 0 && cut > 0 && changed > 0);
}
