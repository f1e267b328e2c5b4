//! The watchdog of the engine. An engine that owes an answer and is silent for too long is given
//! up: a replica that waits for it neither answers nor takes part, and its packets pile up.

use alloc::collections::BTreeSet;

use concord_core::{Duration, Instant, RequestNumber, SessionId};

/// The number of checks within the longest silence.
const LOOKS: u64 = 8;
/// The largest number of reads that wait for the engine; others are dropped, and their clients try
/// another replica.
pub(crate) const READS_MAX: usize = 16_384;

/// The time for which the engine has owed an answer.
///
/// Each check adds at most the interval of two checks to the silence: a replica that was paused
/// itself finds the answer when it continues.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EngineWatch {
    silence_max_ns: Duration,
    silent_ns: Duration,
    looked_at: Instant,
}

impl EngineWatch {
    pub(crate) fn new(silence_max_ns: Duration) -> EngineWatch {
        EngineWatch { silence_max_ns, silent_ns: 0, looked_at: Instant(0) }
    }

    fn step_ns(&self) -> Duration {
        (self.silence_max_ns / LOOKS).max(1)
    }

    /// Notes an answer of the engine.
    pub(crate) fn answered(&mut self) {
        self.silent_ns = 0;
    }

    /// The time of the next check.
    pub(crate) fn next_at(&self, owes: bool) -> Instant {
        if owes { self.looked_at.after(self.step_ns()) } else { Instant::NEVER }
    }

    /// Checks, if it is time.
    pub(crate) fn look(&mut self, now: Instant, owes: bool) {
        if !owes {
            self.silent_ns = 0;
        } else if now >= self.next_at(owes) {
            self.silent_ns += now.since(self.looked_at).min(self.step_ns());
            self.looked_at = now;
        }
    }

    /// Whether the engine has been silent for too long.
    pub(crate) fn is_dead(&self) -> bool {
        self.silent_ns >= self.silence_max_ns
    }

    /// Whether the engine has been silent for half as long: other members should take over its
    /// work.
    pub(crate) fn is_silent(&self) -> bool {
        self.silent_ns >= self.silence_max_ns / 2
    }
}

/// Reads that wait for the engine, so that a retry is not executed again.
#[derive(Clone, Debug, Default)]
pub(crate) struct Reading(BTreeSet<(SessionId, RequestNumber)>);

impl Reading {
    /// Whether the read may begin: there is room, and it does not wait already.
    pub(crate) fn may_begin(&self, session: SessionId, request: RequestNumber) -> bool {
        self.0.is_empty() || (self.0.len() < READS_MAX && !self.0.contains(&(session, request)))
    }

    pub(crate) fn begin(&mut self, session: SessionId, request: RequestNumber) {
        self.0.insert((session, request));
    }

    pub(crate) fn end(&mut self, session: SessionId, request: RequestNumber) {
        self.0.remove(&(session, request));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STEP: u64 = 100;

    #[test]
    fn an_engine_is_given_up_when_it_owes_an_answer_for_too_long() {
        let mut watch = EngineWatch::new(LOOKS * STEP);
        let mut now = Instant(5_000);
        assert_eq!(watch.next_at(false), Instant::NEVER);
        for looks in 1..=LOOKS {
            assert_eq!((watch.is_silent(), watch.is_dead()), (looks > LOOKS / 2, false));
            now = now.after(STEP);
            watch.look(now, true);
        }
        assert!(watch.is_dead());
        watch.answered();
        assert!(!watch.is_silent());
    }

    #[test]
    fn a_replica_that_slept_does_not_take_its_sleep_for_silence() {
        let mut watch = EngineWatch::new(LOOKS * STEP);
        watch.look(Instant(STEP), true);
        watch.look(Instant(1_000_000), true);
        assert!(!watch.is_silent());
        watch.look(Instant(1_000_000 + STEP), false);
        watch.look(Instant(2_000_000), true);
        assert!(!watch.is_silent());
    }

    #[test]
    fn many_looks_in_a_short_time_are_one() {
        let mut watch = EngineWatch::new(LOOKS * STEP);
        for ns in 0..3 * STEP {
            watch.look(Instant(ns), true);
        }
        assert_eq!((watch.silent_ns, watch.looked_at), (2 * STEP, Instant(2 * STEP)));
        assert_eq!(watch.next_at(true), Instant(3 * STEP));
        assert_eq!(EngineWatch::new(LOOKS - 1).next_at(true), Instant(1), "time passes in between");
    }

    #[test]
    fn a_read_waits_once_and_no_more_than_so_many() {
        let (session, mut reading) = (SessionId(7), Reading::default());
        let may = |reading: &Reading, session, n| reading.may_begin(session, RequestNumber(n));
        for n in 0..READS_MAX as u64 {
            assert!(may(&reading, session, n));
            reading.begin(session, RequestNumber(n));
            assert!(!may(&reading, session, n));
        }
        assert!(!may(&reading, session, READS_MAX as u64));
        reading.end(session, RequestNumber(3));
        assert!(may(&reading, session, 3) && may(&reading, SessionId(8), 5));
        assert!(!may(&reading, session, 5));
    }
}
