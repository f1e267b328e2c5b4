//! The work of a redis-server: whether it works or hangs, and how long it may take.
//!
//! A server that executes a long command uses CPU time. One that uses none while it owes an answer
//! hangs, and counts as silent for those that wait for its replica. A script that has changed
//! nothing is stopped after [`BusyLimits::stop_ns`], since it may never end. A script that has
//! changed something cannot be stopped, and goes on.

use concord_core::{Duration, Instant, MS, SEC};

use crate::process::Stat;

/// The interval in ns of checks while a command takes long.
const LOOK_NS: Duration = 100 * MS;
/// The duration in ns after which a command is checked.
const LOOK_AFTER_NS: Duration = 500 * MS;
/// The time in ns that a working server may use no CPU time, on a host where others use all of it.
const IDLE_NS_MAX: Duration = SEC;
/// The time in ns until a server that could not stop its script is asked again.
const ASK_AGAIN_NS: Duration = SEC;
/// A replica may take this many times as long as the ordering node for a script that the latter ran
/// to its end: its server may be slower.
const FOLLOWED: u64 = 5;

/// The limits of scripts and other commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BusyLimits {
    /// The time in ns after which a script that has changed nothing is stopped.
    pub stop_ns: Duration,
    /// The time in ns after which an operation is taken to never end: a script that has changed
    /// something costs the server, and a server that does anything else no longer counts as
    /// working.
    pub longest_ns: Duration,
}

impl Default for BusyLimits {
    fn default() -> BusyLimits {
        BusyLimits { stop_ns: STOP_NS, longest_ns: 60 * SEC }
    }
}

/// Redis' `busy-reply-threshold`: the time after which other clients are told that it is busy.
const STOP_NS: Duration = 5 * SEC;

/// The operation that the server executes, and for how long.
#[derive(Debug, Default)]
pub(super) struct Busy {
    /// The number of operations answered before the oldest unanswered one, and when that one became
    /// the oldest.
    since: Option<(u64, Instant)>,
    /// The time of the next check, once it takes long.
    look_at: Option<Instant>,
    /// The CPU time that the server had used, in us, and when that was last seen to grow.
    used: Option<(u64, Instant)>,
    /// Whether SCRIPT KILL was sent and not answered.
    pub(super) is_told: bool,
    /// When it may be sent again.
    ask_at: Instant,
    /// Whether the time for operations is over.
    pub(super) is_over: bool,
}

/// The result of a check.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Look {
    /// The time since which the server works on one operation.
    pub(super) at_work_since: Option<Instant>,
    /// Whether its script is to be stopped, if it has changed nothing.
    pub(super) stops: bool,
}

/// The engine's part of a check.
#[derive(Clone, Copy, Debug)]
pub(super) struct Owed {
    /// Whether this node decides about its scripts.
    pub(super) decides: bool,
    /// Whether a stopped script leaves nothing behind.
    pub(super) stops_cleanly: bool,
}

impl Busy {
    /// The server owes nothing, or there is a new connection.
    pub(super) fn end(&mut self) {
        *self = Busy { is_told: self.is_told, ..Busy::default() };
    }

    /// The server owes the answer to an operation, after `answered` others. Returns whether that is
    /// another one than before.
    pub(super) fn begin(&mut self, answered: u64, now: Instant) -> bool {
        let is_new = self.since.is_none_or(|(at, _)| at != answered);
        if is_new {
            self.end();
            self.since = Some((answered, now));
        }
        is_new
    }

    /// The time of the next check.
    pub(super) fn look_at(&self) -> Instant {
        let Some((_, since)) = self.since else { return Instant::NEVER };
        self.look_at.unwrap_or(since.after(LOOK_AFTER_NS))
    }

    /// Checks the server, which has used `used_us` of CPU time.
    pub(super) fn look(
        &mut self,
        now: Instant,
        (owed, limits): (&Owed, &BusyLimits),
        used_us: Option<u64>,
    ) -> Look {
        let Some((_, since)) = self.since else { return Look::default() };
        self.look_at = Some(now.after(LOOK_NS));
        let longest_ns =
            if owed.decides { limits.longest_ns } else { FOLLOWED * limits.longest_ns };
        self.is_over = now >= since.after(longest_ns);
        let may_stop = owed.decides && owed.stops_cleanly;
        let stop_ns = if may_stop { limits.stop_ns.min(longest_ns) } else { longest_ns };
        let stops = !self.is_told && now >= self.ask_at && now >= since.after(stop_ns);
        let works = self.works(now, used_us) && !self.is_over;
        Look { at_work_since: works.then_some(since), stops }
    }

    fn works(&mut self, now: Instant, used_us: Option<u64>) -> bool {
        let Some(used_us) = used_us else { return false };
        match self.used {
            Some((before_us, at)) if before_us == used_us => now.since(at) < IDLE_NS_MAX,
            Some(_) => {
                self.used = Some((used_us, now));
                true
            }
            None => {
                // Nothing is known until it has grown.
                self.used = Some((used_us, now));
                false
            }
        }
    }

    /// The server could not stop its script.
    pub(super) fn runs_on(&mut self, now: Instant) {
        self.ask_at = now.after(ASK_AGAIN_NS);
    }
}

/// The CPU time that a process has used, in us.
pub(super) fn used_us(process_id: u32) -> Option<u64> {
    let used = Stat::of(process_id)?.used;
    Some(used.user_us + used.system_us)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: BusyLimits = BusyLimits { stop_ns: 5 * SEC, longest_ns: 60 * SEC };
    const DECIDES: Owed = Owed { decides: true, stops_cleanly: true };

    /// A server that uses processor time is at work, and one that uses none is not.
    #[test]
    fn bug_22_110_a_server_that_works_is_told_from_one_that_hangs() {
        let at = |ms: u64| Instant(1_000 * SEC + ms * MS);
        let mut busy = Busy::default();
        assert_eq!(busy.look_at(), Instant::NEVER);
        assert!(busy.begin(7, at(0)) && !busy.begin(7, at(1)));
        assert_eq!(busy.look_at(), at(500));
        let mut look = |ms, used| busy.look(at(ms), (&DECIDES, &LIMITS), used).at_work_since;
        assert_eq!(look(500, Some(1_000)), None, "it may have been used before");
        assert_eq!(look(600, Some(2_000)), Some(at(0)));
        assert_eq!(look(1_500, Some(2_000)), Some(at(0)), "others may use all of it");
        assert_eq!(look(1_600, Some(2_000)), None);
        assert_eq!(look(1_700, Some(3_000)), Some(at(0)));
        assert_eq!(look(1_800, None), None, "there is no such process");
        assert_eq!(look(60_000, Some(9_000)), None, "nothing takes that long");
        assert!(busy.begin(8, at(60_100)));
        assert_eq!(busy.look_at(), at(60_600));
    }

    /// Who decides stops a script that leaves nothing behind, and nobody any other one.
    #[test]
    fn bug_22_110_scripts_are_stopped_where_that_is_clean() {
        let since = Instant(1_000 * SEC);
        let at = |ms: u64| since.after(ms * MS);
        let unclean = Owed { stops_cleanly: false, ..DECIDES };
        let follows = Owed { decides: false, ..DECIDES };
        for (owed, stop_ms, over_ms) in
            [(DECIDES, 5_000, 60_000), (unclean, 60_000, 60_000), (follows, 300_000, 300_000)]
        {
            let mut busy = Busy::default();
            busy.begin(7, since);
            let mut look = |ms| busy.look(at(ms), (&owed, &LIMITS), Some(ms)).stops;
            assert!(!look(stop_ms - 1) && look(stop_ms) && look(stop_ms));
            assert_eq!(busy.is_over, stop_ms == over_ms);
            busy.runs_on(at(stop_ms));
            let mut look = |ms| busy.look(at(ms), (&owed, &LIMITS), Some(ms)).stops;
            assert!(!look(stop_ms + 999) && look(stop_ms + 1_000), "it is asked again");
            look(over_ms);
            assert!(busy.is_over);
        }
    }
}
