//! The parameters of Harmony in a simulated network.

use std::fmt;

use concord_core::Guards;
use concord_switch::harmony::Choice;
use concord_wire::harmony::{FRAGMENT_BYTES_MAX, HEAD_BYTES};

use crate::engine::{MS, US};

/// The longest message, in bytes: hosts hold a message in memory until its outcome.
pub const MESSAGE_BYTES_MAX: u64 = 1 << 30;

/// The parameters of Harmony.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HarmonyConfig {
    /// K: the number of slots of a host each way, and of virtual links of a link with the bandwidth
    /// of a host's.
    pub slots: u8,
    /// The payload of a full packet, in bytes.
    pub payload_bytes: u32,
    /// The size on the wire of a packet without payload, in bytes.
    pub header_bytes: u32,
    /// By how much a phase is longer than a packet's transmission time, in percent (trap H2).
    pub headroom_percent: u32,
    /// δ_admission: the time after which a request without a slot is rejected, in ps.
    pub admission_ps: u64,
    /// The maximum lifetime of a reservation, in ps.
    pub life_ps: u64,
    /// The number of bytes of data for which a further slot is granted to a message that has one
    /// (§3.2). By default what a host's link carries in the longest idle round trip; 0: no further
    /// slots.
    pub extra_bytes: Option<u32>,
    /// The longest round trip of control packets, in ps. By default twice that of an idle network,
    /// plus twice the bound of the time that data waits.
    pub round_trip_ps: Option<u64>,
    /// Whether a message whose `rsvp` was rejected waits for another slot (trap H9).
    pub tries_again: bool,
    /// How an `rsvp` on its way up gets a virtual link (trap H8).
    pub choice: Choice,
    /// The guards of hosts and switches that are on.
    pub guards: Guards,
}

impl Default for HarmonyConfig {
    fn default() -> HarmonyConfig {
        HarmonyConfig {
            slots: 8,
            payload_bytes: FRAGMENT_BYTES_MAX as u32,
            // Harmony's header, UDP, IP, and Ethernet with preamble and gap.
            header_bytes: HEAD_BYTES as u32 + 8 + 20 + 38,
            headroom_percent: 3,
            admission_ps: 63 * US,
            life_ps: 10 * MS,
            extra_bytes: None,
            round_trip_ps: None,
            tries_again: true,
            choice: Choice::Fifo,
            guards: Guards::ALL,
        }
    }
}

impl HarmonyConfig {
    /// p: the size of a full packet on the wire, in bytes.
    #[must_use]
    pub fn packet_bytes(&self) -> u32 {
        self.payload_bytes + self.header_bytes
    }
}

/// The reason why a network cannot run Harmony, in one line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HarmonyError(pub(super) String);

impl fmt::Display for HarmonyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for HarmonyError {}
