//! Identifiers as newtypes, in the papers' words.

use core::fmt;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub $inner);
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(&self.0, f)
            }
        }
    };
}

id!(
    /// A replica, a switch, a gateway or the controller, as the rack's configuration numbers it.
    NodeId(u16)
);
id!(
    /// One start of a process, drawn at random. A restarted node is a stranger (trap T4).
    Incarnation(u64)
);
id!(
    /// The id of a switch's incarnation, as granted by the controller: monotone, persisted, never 0
    /// (Harmonia §6.3).
    SwitchId(u32)
);
id!(
    /// The number of a configuration: members, their order, and the active switch. Never 0 once
    /// set.
    Epoch(u32)
);
id!(
    /// The number of a view of Viewstamped Replication: who leads. 0 is before the first.
    ViewNumber(u32)
);
id!(
    /// A client process, unique per start (trap T16 b). Never 0.
    SessionId(u64)
);
id!(
    /// The number of a request within its session, from 1.
    RequestNumber(u64)
);
id!(
    /// The 32-bit hash of a key, which is all that the switch knows of it (Harmonia §7.1).
    ObjectId(u32)
);
id!(
    /// The place of a record in the replicated log, contiguous from 1; 0 is "nothing yet".
    Position(u64)
);

/// A write's sequence number: the switch's id first, its counter second (Harmonia §6.3).
/// Counter 0 means "none".
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Seq {
    /// The switch that gave the number.
    pub switch_id: SwitchId,
    /// Its ordinal among those of that switch, from 1.
    pub counter: u32,
}

impl Seq {
    /// No sequence number: below every other.
    pub const NONE: Seq = Seq { switch_id: SwitchId(0), counter: 0 };

    /// The `counter`-th write that switch `switch_id` numbered.
    #[must_use]
    pub const fn new(switch_id: SwitchId, counter: u32) -> Seq {
        Seq { switch_id, counter }
    }

    /// Switch id in the upper 32 bits, counter in the lower: the order of numbers is kept.
    #[must_use]
    pub const fn to_u64(self) -> u64 {
        ((self.switch_id.0 as u64) << 32) | self.counter as u64
    }

    /// The inverse of [`Seq::to_u64`].
    #[must_use]
    pub const fn from_u64(raw: u64) -> Seq {
        Seq { switch_id: SwitchId((raw >> 32) as u32), counter: raw as u32 }
    }

    /// Whether this is a real number and not "none".
    #[must_use]
    pub const fn is_some(self) -> bool {
        self.counter != 0
    }
}

impl fmt::Display for Seq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.switch_id.0, self.counter)
    }
}
