//! The settings of a host, the times that follow from them, and the mistakes in them.

use alloc::vec::Vec;
use core::fmt;

use concord_core::{Duration, Guards, NodeId, US};
use concord_wire::harmony::{FRAGMENT_BYTES_MAX, HOSTS_MAX, SLOTS_MAX, SPAN_SHIFT};
use concord_wire::{Addr, GroupId};

/// Most open messages of a sender.
pub const OPEN_MAX: usize = 256;
/// Numbers between the oldest open message of a sender and its newest: a receiver remembers so many
/// outcomes of each sender.
pub const WINDOW: u64 = 1_024;
/// Parts of a thousand by which two clocks may differ over the life of a reservation.
const DRIFT_PER_MILLE: u64 = 1;

/// What a host is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostSettings {
    /// Its number.
    pub node: NodeId,
    /// Its place among the hosts.
    pub place: u16,
    /// Which network of hosts.
    pub group: GroupId,
    /// Which start of this host, from 1: higher than that of every earlier one.
    pub incarnation: u32,
    /// The hosts, by place.
    pub hosts: Vec<Addr>,
    /// Where all packets go; `None`: to the hosts themselves. Behind a single switch the hosts'
    /// slots are the only reservations, so that any switch will do.
    pub switch: Option<Addr>,
    /// Slots each way: K.
    pub slots: u8,
    /// Time from one data packet to the next, in ns: what the longest one takes on the access link,
    /// and headroom for control packets and clocks (trap H2).
    pub phase_ns: Duration,
    /// Data of a packet in bytes.
    pub fragment_bytes: usize,
    /// How long a request may wait for a slot: δ_admission, in ns.
    pub admission_ns: Duration,
    /// Longest life of a reservation in ns; the same for all hosts and switches.
    pub life_ns: Duration,
    /// Longest round trip of control packets in ns, with the hosts' own delays.
    pub round_ns: Duration,
    /// Data for which a further slot is granted to a message that has one: a BDP (§3.2), in bytes.
    pub extra_bytes: u32,
    /// Longest message in bytes.
    pub message_bytes_max: u32,
    /// Most requests that wait for a slot.
    pub pending_max: usize,
    /// Most submissions that wait to be opened.
    pub submissions_max: usize,
    /// Whether a message whose `rsvp` was rejected waits for another slot until δ_admission is over
    /// (trap H9: the paper leaves it unsaid).
    pub tries_again: bool,
    /// Which guards are on.
    pub guards: Guards,
}

impl HostSettings {
    /// The only host of its network, on an access link of 10 Gb/s, with 8 slots.
    pub const EXAMPLE: HostSettings = HostSettings {
        node: NodeId(1),
        place: 0,
        group: GroupId::FIRST,
        incarnation: 1,
        hosts: Vec::new(),
        switch: None,
        slots: 8,
        phase_ns: 1_200,
        fragment_bytes: FRAGMENT_BYTES_MAX,
        admission_ns: 100 * US,
        life_ns: 10_000 * US,
        round_ns: 50 * US,
        extra_bytes: 64 << 10,
        message_bytes_max: 64 << 20,
        pending_max: 1_024,
        submissions_max: 1_024,
        tries_again: true,
        guards: Guards::ALL,
    };

    /// Whether there can be such a host.
    ///
    /// # Errors
    /// [`SettingsError`] if not.
    pub fn check(&self) -> Result<(), SettingsError> {
        let hosts = self.hosts.len();
        if !(1..=HOSTS_MAX).contains(&hosts) || usize::from(self.place) >= hosts {
            return Err(SettingsError::Hosts { hosts, place: self.place });
        }
        if !(1..=SLOTS_MAX).contains(&usize::from(self.slots)) {
            return Err(SettingsError::Slots(self.slots));
        }
        if !(1..=FRAGMENT_BYTES_MAX).contains(&self.fragment_bytes) {
            return Err(SettingsError::Fragment(self.fragment_bytes));
        }
        if self.incarnation == 0 || self.phase_ns == 0 || self.message_bytes_max == 0 {
            return Err(SettingsError::Zero);
        }
        if self.quota_bytes_max() == 0 || self.life_ns >> SPAN_SHIFT >= 1 << 31 {
            return Err(SettingsError::Lifetime { life_ns: self.life_ns });
        }
        Ok(())
    }

    /// Time between two packets of one slot.
    #[must_use]
    pub fn cycle_ns(&self) -> Duration {
        self.phase_ns.saturating_mul(u64::from(self.slots))
    }

    /// Packets that so many bytes take.
    #[must_use]
    pub fn packets(&self, bytes: u32) -> u64 {
        u64::from(bytes).div_ceil(self.fragment_bytes as u64)
    }

    /// How long a reservation for so many bytes lives: a round trip until its first packet leaves,
    /// a cycle until the slot's next phase and one for what closes it, and the packets' cycles. At
    /// most [`HostSettings::life_ns`].
    #[must_use]
    pub fn life_of(&self, bytes: u32) -> Duration {
        let cycles = self.packets(bytes).saturating_add(2);
        let sending = cycles.saturating_mul(self.cycle_ns());
        let drift = sending / 1_000 * DRIFT_PER_MILLE;
        self.life_ns.min(sending.saturating_add(drift).saturating_add(2 * self.round_ns))
    }

    /// The most bytes that one reservation can carry within [`HostSettings::life_ns`].
    #[must_use]
    pub fn quota_bytes_max(&self) -> u32 {
        let left = self.life_ns.saturating_sub(2 * self.round_ns);
        let left = left - left / 1_000 * DRIFT_PER_MILLE;
        let packets = (left / self.cycle_ns().max(1)).saturating_sub(2);
        packets.saturating_mul(self.fragment_bytes as u64).min(u64::from(u32::MAX)) as u32
    }

    /// How long after its grant a receiver's slot is over at the latest: the reservation's life,
    /// and the time until a packet of it can have come.
    #[must_use]
    pub fn slot_ns(&self, life_ns: Duration) -> Duration {
        life_ns + life_ns / 1_000 * DRIFT_PER_MILLE + 2 * self.round_ns
    }

    /// How long a host that has begun anew waits until what it forgot is over (trap H5).
    #[must_use]
    pub fn restart_ns(&self) -> Duration {
        self.slot_ns(self.life_ns) + self.round_ns
    }

    /// How long after its request a message has an outcome at the latest: δ_admission, a grant for
    /// each part of it, a round trip for each of them, and a receiver that has begun anew.
    #[must_use]
    pub fn outcome_ns(&self, bytes: u32) -> Duration {
        let grants = u64::from(bytes.div_ceil(self.quota_bytes_max().max(1)));
        let each = self.slot_ns(self.life_ns) + self.round_ns;
        self.admission_ns + grants.saturating_mul(each) + self.restart_ns() + 2 * self.round_ns
    }
}

/// A host that there cannot be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SettingsError {
    /// No hosts, too many, or this one is not among them.
    Hosts {
        /// How many there are.
        hosts: usize,
        /// Its place.
        place: u16,
    },
    /// No slots, or too many.
    Slots(u8),
    /// Packets of a length that there is not.
    Fragment(usize),
    /// An incarnation, a phase or messages of nothing.
    Zero,
    /// A life in which no packet can be sent, or too long a one.
    Lifetime {
        /// It.
        life_ns: Duration,
    },
}

impl fmt::Display for SettingsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SettingsError::Hosts { hosts, place } => write!(
                f,
                "the network has {hosts} hosts, and this one is at place {place}: give it 1 to {HOSTS_MAX} hosts, \
                 and a place among them"
            ),
            SettingsError::Slots(slots) => {
                write!(f, "the host has {slots} slots: give it 1 to {SLOTS_MAX}")
            }
            SettingsError::Fragment(bytes) => {
                write!(f, "packets have {bytes} bytes of data: give them 1 to {FRAGMENT_BYTES_MAX}")
            }
            SettingsError::Zero => {
                f.write_str("incarnation, phase and longest message are at least 1")
            }
            SettingsError::Lifetime { life_ns } => write!(
                f,
                "a reservation lives {life_ns} ns: give it two round trips, three cycles of all slots, and at most \
                 36 minutes"
            ),
        }
    }
}

impl core::error::Error for SettingsError {}
