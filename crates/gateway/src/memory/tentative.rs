//! Reads whose replies may turn out to be long. A replica executes such a read in vain if there is
//! no room for its reply, while others wait. The number of such reads in flight begins small, and
//! doubles with each window of short replies until the first reply has to wait (slow start). It
//! halves with each reply that has to wait, and then grows by one with each window of short ones:
//! if all replies are short, soon only the client's own bound applies.
//!
//! A connection whose last reply was short is expected to get another short one: its reads are not
//! counted, and do not wait for long replies. Under pressure ([`crate::memory`]) the first read of
//! a connection does not wait for connections with long replies, either.

/// Bounds of how many reads of unknown length are out.
pub const TENTATIVE_MIN: usize = 16;
const TENTATIVE_START: usize = 64;
const TENTATIVE_MAX: usize = 16_384;
/// The number in flight while clients that do not read take the room ([`crate::memory`]): each is
/// likely to be executed in vain.
const TENTATIVE_PRESSED: usize = 2;
/// The number of first reads beside them.
const FIRST_PRESSED: usize = 4;

/// The expected reply to a read, by the earlier replies of its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Expected {
    Short,
    /// Unknown: there was no reply, and no read is in flight.
    First,
    /// Long, or the first read is in flight.
    Long,
}

#[derive(Debug)]
pub(crate) struct Tentative {
    first_out: usize,
    long_out: usize,
    max: usize,
    /// No reply has had to wait yet.
    is_starting: bool,
    /// Clients that do not read take the room, or those that have not shown that they read wait for
    /// each other.
    pub is_pressed: bool,
    /// Short replies to such reads since the window grew.
    short: usize,
}

impl Default for Tentative {
    fn default() -> Tentative {
        Tentative {
            first_out: 0,
            long_out: 0,
            max: TENTATIVE_START,
            is_starting: true,
            is_pressed: false,
            short: 0,
        }
    }
}

impl Tentative {
    /// Whether a read may be sent.
    pub(crate) fn has_room(&self, expected: Expected) -> bool {
        match expected {
            Expected::Short => true,
            Expected::First if self.is_pressed => self.first_out < FIRST_PRESSED,
            Expected::Long if self.is_pressed => self.long_out < TENTATIVE_PRESSED,
            Expected::First | Expected::Long => self.first_out + self.long_out < self.max,
        }
    }

    /// A read was sent.
    pub(crate) fn sent(&mut self, expected: Expected) {
        match expected {
            Expected::Short => {}
            Expected::First => self.first_out += 1,
            Expected::Long => self.long_out += 1,
        }
    }

    /// The length of a reply is known, or it is not waited for any more. Whether it was one of
    /// those that are counted.
    pub(crate) fn settle(&mut self, expected: &mut Expected) -> bool {
        let expected = core::mem::replace(expected, Expected::Short);
        match expected {
            Expected::Short => {}
            Expected::First => self.first_out -= 1,
            Expected::Long => self.long_out -= 1,
        }
        expected != Expected::Short
    }

    /// A read that was counted had a short reply.
    pub(crate) fn note_short_reply(&mut self) {
        self.short += 1;
        if self.short >= self.max {
            self.short = 0;
            let more = if self.is_starting { self.max } else { 1 };
            self.max = (self.max + more).min(TENTATIVE_MAX);
        }
    }

    pub(crate) fn note_long_reply(&mut self) {
        (self.short, self.is_starting) = (0, false);
        self.max = (self.max / 2).max(TENTATIVE_MIN);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The window doubles and later grows by one with each window of short replies.
    #[test]
    fn window_doubles_then_grows_by_one() {
        let mut tentative = Tentative::default();
        (0..TENTATIVE_START).for_each(|_| tentative.note_short_reply());
        assert_eq!(tentative.max, 2 * TENTATIVE_START);
        for _ in 0..100 {
            tentative.note_long_reply();
        }
        assert_eq!(tentative.max, TENTATIVE_MIN);
        for _ in 0..TENTATIVE_MIN + TENTATIVE_MIN + 1 {
            tentative.note_short_reply();
        }
        assert_eq!(tentative.max, TENTATIVE_MIN + 2);
    }
}
