//! The checker against a model and a brute force that share nothing with it but the format: both
//! are written anew here, and too simple to be wrong in the same way.
//!
//! `CONCORD_CHECK_HISTORIES` sets how many histories of each kind are compared (a few seconds'
//! worth without it); `CONCORD_RESULTS` names the directory to which the table of what is detected
//! is written.
#![allow(clippy::unwrap_used)]

mod detection;
mod keys;
mod transactions;

/// Histories of each kind.
fn histories() -> u64 {
    std::env::var("CONCORD_CHECK_HISTORIES").map_or(3_000, |text| text.parse().unwrap())
}

/// Moments of a few clients that call one after another: call, moment, return, sorted by moment.
fn moments(rng: &mut concord_core::Rng, count: u64, unit_ns: u64) -> Vec<(u64, [u64; 3])> {
    let clients = 2 + rng.below(3);
    let mut free = vec![0; clients as usize];
    let mut moments: Vec<(u64, [u64; 3])> = (0..count)
        .map(|_| {
            let client = rng.below(clients);
            let now = &mut free[client as usize];
            let call = *now + 1 + rng.below(2 * unit_ns);
            let moment = call + rng.below(3 * unit_ns);
            *now = moment + rng.below(3 * unit_ns);
            (client, [call, moment, *now])
        })
        .collect();
    moments.sort_by_key(|(_, times)| times[1]);
    moments
}
