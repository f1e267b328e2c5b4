//! Expiry: how late it may be, and a last look at what has to be gone.
//!
//! A key is deleted by a write of its own, by the log's time. While no write is acknowledged none
//! need be: the grace is the longest time that none was, and [`BASE`].

use std::sync::PoisonError;
use std::time::{Duration, Instant};

use concord_check::{Expiries, Operation, Reply};

use super::resp::{Link, words};
use super::workload::TTL_MS;
use super::{RETRY_PAUSE, Shared, pipeline};

/// How late a key may be deleted beside: it is looked for at least each second, and again when it
/// is lost.
const BASE: Duration = Duration::from_secs(2);
/// Longest wait for what has to be gone.
const LOOK_MAX: Duration = Duration::from_secs(30);
/// From so many times to live on, one has to be judged.
const SET_MIN: usize = 20;

/// Whether none of many times to live was judged.
pub(super) fn are_too_few(expiries: &Expiries) -> bool {
    expiries.set >= SET_MIN && expiries.judged == 0
}

/// How long after its time a key may be there, in ns.
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

/// Writes until all that was given a time to live has to be gone, and looks at it. The phase ends
/// after [`LOOK_MAX`], or when no target takes a connection.
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
    let mut keys = expiring.into_iter();
    let mut key = keys.next();
    let mut is_due = false;
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
        let grace_ns = if is_due { 0 } else { shared.recorder.look(grace_ns) };
        is_due |= began.elapsed() > ttl + Duration::from_nanos(grace_ns);
        let command = match (&key, is_due) {
            (None, true) => return,
            (Some(own), true) => vec![b"GET".to_vec(), own.clone()],
            _ => {
                std::thread::sleep(RETRY_PAUSE);
                number += 1;
                words(&["SET", &write, &format!("end{number}")])
            }
        };
        if pipeline(shared, open, client, &[command]).is_err() {
            (link, at) = (None, at + 1);
        } else if is_due {
            key = keys.next();
        }
    }
}
