//! Virtual time: integer picoseconds, so that a byte at 100 Gb/s (80 ps) or 400 Gb/s (20 ps) is
//! exact and no rounding depends on a machine.

/// One picosecond.
pub const PS: u64 = 1;
/// One nanosecond, in picoseconds.
pub const NS: u64 = 1_000;
/// One microsecond, in picoseconds.
pub const US: u64 = 1_000_000;
/// One millisecond, in picoseconds.
pub const MS: u64 = 1_000_000_000;
/// One second, in picoseconds.
pub const SEC: u64 = 1_000_000_000_000;

/// A point in virtual time: picoseconds since the start of the run (2^64 ps are 213 days).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time(pub u64);

impl Time {
    /// A time that no run reaches.
    pub const NEVER: Time = Time(u64::MAX);

    /// This time plus `ps` picoseconds; at most [`Time::NEVER`].
    #[must_use]
    pub const fn after(self, ps: u64) -> Time {
        Time(self.0.saturating_add(ps))
    }

    /// Picoseconds since `earlier`, zero if `earlier` is later.
    #[must_use]
    pub const fn since(self, earlier: Time) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}
