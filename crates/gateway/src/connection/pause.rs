//! CLIENT PAUSE: the time until which commands of this gateway's clients wait; and the time after
//! which idle clients are disconnected (`timeout`).

use concord_core::Instant;

/// A pause: the commands that wait, and until when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Paused {
    until: Instant,
    /// Whether commands that only read go on.
    writes_only: bool,
}

/// The pause, and the limit for idle clients.
#[derive(Debug, Default)]
pub(crate) struct Pause {
    paused: Option<Paused>,
    /// Whether it is over, but the waiting commands have not gone on yet.
    pub is_news: bool,
    /// The time in seconds after which idle clients are disconnected; 0 for never.
    pub idle_seconds: u64,
    pub looks_at: Instant,
}

impl Pause {
    /// Pauses until this time, but does not shorten a pause.
    pub(crate) fn begin(&mut self, until: Instant, writes_only: bool) {
        let before = self.paused.unwrap_or(Paused { until, writes_only });
        self.paused = Some(Paused {
            until: until.max(before.until),
            writes_only: writes_only && before.writes_only,
        });
    }

    pub(crate) fn end(&mut self) {
        self.is_news |= self.paused.take().is_some();
    }

    /// Whether its time is over.
    pub(crate) fn is_over(&self, now: Instant) -> bool {
        self.paused.is_some_and(|own| own.until <= now)
    }

    /// Whether a command must wait.
    pub(crate) fn holds(&self, now: Instant, may_write: bool) -> bool {
        self.paused.is_some_and(|own| now < own.until && (may_write || !own.writes_only))
    }

    pub(crate) fn deadline(&self) -> Instant {
        let idle = if self.idle_seconds > 0 { self.looks_at } else { Instant::NEVER };
        self.paused.map_or(Instant::NEVER, |own| own.until).min(idle)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_gets_no_shorter_and_no_weaker() {
        let mut pause = Pause::default();
        pause.begin(Instant(10), true);
        assert!(pause.holds(Instant(9), true) && !pause.holds(Instant(9), false));
        pause.begin(Instant(5), false);
        assert!(pause.holds(Instant(9), false) && !pause.holds(Instant(10), true));
        pause.begin(Instant(20), true);
        assert!(pause.holds(Instant(19), false));
        pause.end();
        assert!(!pause.holds(Instant(0), true) && pause.is_news);
    }
}
