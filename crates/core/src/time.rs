//! Integer time. A driver samples the clock after an input was received, never before the receive,
//! from a clock that runs through a suspend (trap T1).

/// A length of time in nanoseconds.
pub type Duration = u64;

/// One microsecond, in nanoseconds.
pub const US: Duration = 1_000;
/// One millisecond, in nanoseconds.
pub const MS: Duration = 1_000_000;
/// One second, in nanoseconds.
pub const SEC: Duration = 1_000_000_000;

/// A point in time: nanoseconds since an origin that only the node itself knows. Instants of two
/// nodes must never be compared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Instant(pub u64);

impl Instant {
    /// A point that no run reaches.
    pub const NEVER: Instant = Instant(u64::MAX);

    /// This point plus `ns` nanoseconds; stays at [`Instant::NEVER`] when it would pass it.
    #[must_use]
    pub const fn after(self, ns: Duration) -> Instant {
        Instant(self.0.saturating_add(ns))
    }

    /// Nanoseconds since `earlier`, zero if `earlier` is later.
    #[must_use]
    pub const fn since(self, earlier: Instant) -> Duration {
        self.0.saturating_sub(earlier.0)
    }
}

/// The time of an input: the node's monotonic clock, and a clock for times to live, which moves
/// with the monotonic one and follows the wall clock ([`crate::SteadyClock`]).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Now {
    /// The node's monotonic clock.
    pub instant: Instant,
    /// Milliseconds since the Unix epoch; never decreases in one incarnation of the node.
    pub unix_ms: u64,
}
