//! The program's configuration: the number of key groups, the longest time without a heartbeat, and
//! the balancing of reads.

use core::fmt;

use concord_core::{Duration, MS};

use crate::harmonia::RUN_BITS_MAX;

/// The maximum number of key groups, as a power of two: a stage of an ASIC has room for that many
/// log indices.
pub const GROUP_BITS_MAX: u8 = 17;
/// The minimum, as a power of two: all groups of a chunk exist.
pub const GROUP_BITS_MIN: u8 = 6;

/// The settings of the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyGroupSettings {
    /// The number of key groups, as a power of two: that many of the most significant bits of an
    /// object id name its group.
    pub group_bits: u8,
    /// The width of the counter in a sequence number, in bits; fewer than 32 to test its exhaustion
    /// (trap T20).
    pub counter_bits: u8,
    /// How many reads of a client in a row go to one follower, as a power of two.
    pub run_bits: u8,
    /// switch_stepdown: the maximum age of the probe in the last heartbeat, in ns.
    pub stepdown_ns: Duration,
    /// Leader avoidance (§4.4.2): while a write is pending, the leader gets no read that a follower
    /// can answer.
    pub avoid_leader: bool,
    /// Follower load awareness (§4.4.2): reads are distributed by weights, which the leader
    /// computes from the replicas' queues; without it, evenly.
    pub load_awareness: bool,
    /// The time between two steps of the scan for unstable groups, in ns. A group that two scans
    /// find with the same number is repaired.
    pub repair_interval_ns: Duration,
}

impl KeyGroupSettings {
    /// The defaults: 4,096 groups, as in the paper, and six heartbeats of 25 ms.
    pub const DEFAULT: KeyGroupSettings = KeyGroupSettings {
        group_bits: 12,
        counter_bits: 32,
        run_bits: 4,
        stepdown_ns: 150 * MS,
        avoid_leader: true,
        load_awareness: false,
        repair_interval_ns: 50 * MS,
    };

    /// The number of key groups.
    #[must_use]
    pub const fn groups(&self) -> u32 {
        1 << self.group_bits
    }

    /// The last number of a session.
    #[must_use]
    pub const fn counter_max(&self) -> u32 {
        (((1u64) << self.counter_bits) - 1) as u32
    }

    /// Trap T20: the number at which a successor of the switch id, and with it another session, is
    /// requested.
    pub(super) const fn ask_at(&self) -> u32 {
        self.counter_max() - self.counter_max() / 16
    }

    /// Checks that a switch can have these settings.
    ///
    /// # Errors
    /// [`FlairError`] if it cannot.
    pub fn check(&self) -> Result<(), FlairError> {
        if !(GROUP_BITS_MIN..=GROUP_BITS_MAX).contains(&self.group_bits) {
            return Err(FlairError::GroupBits(self.group_bits));
        }
        if !(2..=32).contains(&self.counter_bits) {
            return Err(FlairError::CounterBits(self.counter_bits));
        }
        if self.run_bits > RUN_BITS_MAX {
            return Err(FlairError::RunBits(self.run_bits));
        }
        if self.stepdown_ns == 0 || self.repair_interval_ns == 0 {
            return Err(FlairError::Interval);
        }
        Ok(())
    }
}

/// The reason why no switch can run such a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlairError {
    /// There are too few or too many key groups.
    GroupBits(u8),
    /// The counter's width is not within 2 to 32.
    CounterBits(u8),
    /// The runs of reads are too long.
    RunBits(u8),
    /// A time is 0.
    Interval,
}

impl fmt::Display for FlairError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FlairError::GroupBits(n) => write!(
                f,
                "2^{n} key groups cannot be: give it 2^{GROUP_BITS_MIN} to 2^{GROUP_BITS_MAX}"
            ),
            FlairError::CounterBits(n) => {
                write!(f, "the counter has {n} bits: give it 2 to 32")
            }
            FlairError::RunBits(n) => {
                write!(f, "2^{n} reads in a row are too many: give it up to 2^{RUN_BITS_MAX}")
            }
            FlairError::Interval => f.write_str("stepdown and repair interval are above 0"),
        }
    }
}

impl core::error::Error for FlairError {}
