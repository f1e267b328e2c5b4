//! The node's clocks (trap T1) and its randomness.

use std::io;
use std::time::{SystemTime, UNIX_EPOCH};

use concord_core::{Instant, Now};
use rustix::time::{ClockId, Timespec, clock_gettime};

const NS_PER_SEC: u64 = 1_000_000_000;

fn ns(t: Timespec) -> u64 {
    (t.tv_sec.max(0) as u64).saturating_mul(NS_PER_SEC).saturating_add(t.tv_nsec.max(0) as u64)
}

/// The clocks as they are now. A driver calls this after an input was received, never before
/// (trap T1); CLOCK_BOOTTIME runs through a suspend, the wall clock is for times to live.
#[must_use]
pub fn now() -> Now {
    let unix_ms = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_millis() as u64);
    Now { instant: Instant(ns(clock_gettime(ClockId::Boottime))), unix_ms }
}

/// CPU time that the calling thread has used since it began, in ns, its system calls included.
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
