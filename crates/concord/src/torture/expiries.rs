//! Expiry: the grace period, and a final check of keys that must have expired.
//!
//! A key is deleted by a write of its own, at a time of the log. While no write is acknowledged,
//! none may be possible: the grace period is the longest time without an acknowledged write, plus
//! [`BASE`].

use std::sync::PoisonError;
use std::time::{Duration, Instant};

use concord_check::{Expiries, Operation, Reply};

use super::resp::{Command, Link, words};
use super::workload::TTL_MS;
use super::{RETRY_PAUSE, Shared, pipeline};

/// The grace period without an outage: expired keys are looked for at least every second, and again
/// if a deletion is lost.
const BASE: Duration = Duration::from_secs(2);
/// The maximum time to wait for the keys to expire.
const LOOK_MAX: Duration = Duration::from_secs(30);
/// The number of times to live from which on at least one must be checked.
const SET_MIN: usize = 20;

/// Whether none of many times to live was checked.
pub(super) fn are_too_few(expiries: &Expiries) -> bool {
    expiries.set >= SET_MIN && expiries.judged == 0
}

/// The time after its deadline for which a key may exist, in ns.
pub(super) fn grace_ns(operations: &[Operation]) -> u64 {
    let reads = [&b"GET"[..], b"EXISTS", b"STRLEN", b"LLEN", b"LRANGE"];
    let is_write = |operation: &&Operation| {
        let is_refused = matches!(operation.reply, None | Some(Reply::Error(_)));
        !is_refused && !operation.cmd.first().is_some_and(|name| reads.contains(&&name[..]))
    };
    let mut returns: Vec<u64> =
        operations.iter().filter(is_write).filter_map(|operation| operation.return_ns).collect();
    returns.sort_unstable();
    let gap_ns = returns.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap_or(0);
    BASE.as_nanos() as u64 + gap_ns
}

/// Gives all keys that had a time to live another one, writes until they must have expired, and
/// reads them. The phase ends after [`LOOK_MAX`].
pub(super) fn look(shared: &Shared<'_>) {
    let expiring =
        std::mem::take(&mut *shared.expiring.lock().unwrap_or_else(PoisonError::into_inner));
    if expiring.is_empty() {
        return;
    }
    let began = Instant::now();
    let client = shared.next_client.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    let (mut link, mut at, mut number) = (None::<Link>, 0, 0_u64);
    let write = format!("{}end", shared.args.prefix);
    let ttl = Duration::from_millis(TTL_MS.1);
    let keys: Vec<Vec<u8>> = expiring.into_iter().collect();
    let mut commands = keys.iter().map(|key| {
        let set = words(&["SET", "", "end", "PX", &TTL_MS.1.to_string()]);
        with_key(set, key)
    });
    let mut looks = keys.iter().map(|key| with_key(words(&["GET", ""]), key));
    let mut next = commands.next();
    let (mut set_at, mut is_due) = (None::<Instant>, false);
    while began.elapsed() < LOOK_MAX {
        let target = shared.args.target[at % shared.args.target.len()];
        let Some(open) = &mut link else {
            match Link::open(target, Duration::from_secs(shared.args.timeout)) {
                Ok(open) => link = Some(open),
                Err(_) => {
                    at += 1;
                    std::thread::sleep(RETRY_PAUSE);
                }
            }
            continue;
        };
        let command = match (&next, set_at) {
            (Some(command), _) => command.clone(),
            (None, _) if is_due => return,
            (None, None) => {
                set_at = Some(Instant::now());
                continue;
            }
            (None, Some(set_at)) => {
                let grace = Duration::from_nanos(shared.recorder.look(grace_ns));
                if set_at.elapsed() > ttl + grace {
                    (is_due, next) = (true, looks.next());
                    continue;
                }
                std::thread::sleep(RETRY_PAUSE);
                number += 1;
                words(&["SET", &write, &format!("end{number}")])
            }
        };
        if pipeline(shared, open, client, &[command]).is_err() {
            (link, at) = (None, at + 1);
        } else if next.is_some() {
            next = if is_due { looks.next() } else { commands.next() };
        }
    }
}

fn with_key(mut command: Command, key: &[u8]) -> Command {
    command[1] = key.to_vec();
    command
}
