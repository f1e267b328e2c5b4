//! The node's clocks (trap T1) and its randomness.

use std::cell::Cell;
use std::io;
use std::time::{SystemTime, UNIX_EPOCH};

use concord_core::{Instant, Now, SteadyClock};
use rustix::time::{ClockId, Timespec, clock_gettime};

const NS_PER_SEC: u64 = 1_000_000_000;
const NS_PER_MS: u64 = 1_000_000;

fn ns(t: Timespec) -> u64 {
    (t.tv_sec.max(0) as u64).saturating_mul(NS_PER_SEC).saturating_add(t.tv_nsec.max(0) as u64)
}

thread_local! {
    /// This thread's clock. Each role runs in one thread.
    static STEADY: Cell<SteadyClock> = const { Cell::new(SteadyClock::NEW) };
}

/// The current clocks. A driver calls this after it received an input, never before (trap T1).
/// CLOCK_BOOTTIME runs on while the host is suspended. The clock for times to live advances with
/// it, and follows the wall clock ([`SteadyClock`]).
#[must_use]
pub fn now() -> Now {
    let wall = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_nanos() as u64);
    let instant = Instant(ns(clock_gettime(ClockId::Boottime)));
    let mut steady = STEADY.get();
    let unix_ms = steady.read(instant, wall) / NS_PER_MS;
    STEADY.set(steady);
    Now { instant, unix_ms }
}

/// A clock that is cheap to read and advances by some milliseconds at a time, in ns.
#[must_use]
pub fn coarse() -> u64 {
    ns(clock_gettime(ClockId::MonotonicCoarse))
}

/// The difference between the wall clock and [`now`] at the last call of [`now`] in this thread.
#[must_use]
pub fn steady() -> SteadyClock {
    STEADY.get()
}

/// The CPU time that the calling thread has used since it began, system calls included, in ns.
#[must_use]
pub fn thread_cpu_ns() -> u64 {
    ns(clock_gettime(ClockId::ThreadCPUTime))
}

/// 64 bits from the operating system's entropy, never 0: incarnations, session ids, seeds.
///
/// # Errors
/// If the kernel gives none.
pub fn entropy() -> io::Result<u64> {
    let mut bytes = [0u8; 8];
    loop {
        let filled = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
        let word = u64::from_ne_bytes(bytes);
        if filled == bytes.len() && word != 0 {
            return Ok(word);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_passes_and_entropy_differs() {
        let before = now();
        std::thread::sleep(std::time::Duration::from_millis(2));
        let after = now();
        assert!(after.instant.since(before.instant) >= 2_000_000);
        assert!(after.unix_ms >= before.unix_ms && before.unix_ms > 1_600_000_000_000);
        assert_ne!(entropy().unwrap(), entropy().unwrap());
    }

    #[test]
    fn sleeping_costs_no_cpu_time() {
        let before = thread_cpu_ns();
        std::thread::sleep(std::time::Duration::from_millis(20));
        assert!(thread_cpu_ns() - before < 10_000_000);
    }
}
