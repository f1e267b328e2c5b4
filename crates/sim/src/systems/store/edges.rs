//! Limits near which a run works: large sizes, small bounds, invalid packets.

use concord_core::{Duration, SEC, ViewNumber};
use concord_protocols::Limits;
use concord_wire::VALUE_BYTES_MAX;
use concord_wire::rpc::READ_BIT;
use serde::{Deserialize, Serialize};

/// The maximum length of a key, in bytes. The gateway accepts longer ones, which behave no
/// differently.
pub const KEY_BYTES_MAX: usize = 4_096;
/// The maximum number of elements that one command adds.
pub const ELEMENTS_MAX: usize = 10_000;
/// The maximum number of keys that expire at the same time.
pub const DUE_AT_ONCE_MAX: u64 = 100_000;
/// The maximum time to live, in ms: a year.
pub const TTL_MS_MAX: u64 = 365 * 24 * 3_600_000;
/// The maximum delay of a late packet, in ns.
pub const LATE_NS_MAX: Duration = 120 * SEC;
/// The minimum number of bits of the switch's counter.
pub const COUNTER_BITS_MIN: u8 = 6;
/// The minimum number of switch ids, epochs and views left at the start of a run, which may use
/// hundreds. Unit tests of the machines show what happens when they are used up.
const NUMBERS_LEFT_MIN: u32 = 4_096;
/// The end of the numbers of writes: those of reads have this bit set.
pub(super) const REQUESTS_END: u64 = READ_BIT;

/// The size of a chunk of the log, in bytes: a run writes some hundred kB, so that logs have many
/// chunks.
const LOG_CHUNK_BYTES: usize = 1_024;

pub(super) const MILLION: u64 = 1_000_000;

/// The sizes of keys, values and replies; 0 selects the size of a small run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Sizes {
    /// The maximum length of a key, in bytes; 0: names of a few bytes.
    pub key_bytes_max: usize,
    /// The maximum length of long values, in bytes; 0: a few packets.
    pub value_bytes_max: usize,
    /// The maximum number of elements that a command adds to a list, set or hash; 0: one, and only
    /// to lists.
    pub elements_max: usize,
    /// The maximum time to live, in ms; 0: each is 40 ms.
    pub ttl_ms_max: u64,
    /// The number of keys that expire at the same time.
    pub due_at_once: u64,
    /// The share of reads of all keys (KEYS, SCAN, DBSIZE) among operations, per thousand.
    pub all_keys_permille: u64,
}

/// Bounds that are smaller than shipped, and numbers that begin near their end; 0 stands for the
/// shipped value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Bounds {
    /// The number of bytes of data above which commands that need memory are refused.
    pub memory_bytes_max: u64,
    /// The maximum number of records that are retained for members that lag.
    pub log_records_max: usize,
    /// The maximum number of bytes of these records.
    pub log_bytes_max: usize,
    /// The approximate number of bytes of records that are retained, although all members have
    /// them, for replicas that were away; 0: none.
    pub log_memory_bytes: usize,
    /// The maximum number of sessions in the client table.
    pub sessions_max: usize,
    /// The number of bits of the switch's counter; a new switch id is requested before it ends
    /// (trap T20).
    pub counter_bits: u8,
    /// The last switch id that was granted before the run.
    pub last_switch_id: u32,
    /// The last epoch before the run, of an earlier group that was given up.
    pub last_epoch: u32,
    /// VR, NOPaxos: the first view; 0: 1.
    pub first_view: u32,
    /// The number of a session's first write; 0: 1.
    pub first_request: u64,
}

/// The shares of invalid packets beside those that are sent, per million. Roles trust each other's
/// packets, so that an invalid one never states anything that a role could act upon: it is cut
/// short, of another version, random after a valid header, padded, or a very late copy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Packets {
    /// Copies that are cut short.
    pub truncated_ppm: u64,
    /// Copies with another magic number, version or kind, and random bytes after a valid header.
    pub forged_ppm: u64,
    /// Copies of clients' writes that claim to be a replica's own write, and have no command; per
    /// million of all packets.
    pub own_ppm: u64,
    /// Packets with random bytes after their end, which receivers accept.
    pub padded_ppm: u64,
    /// Copies that arrive late.
    pub late_ppm: u64,
    /// The maximum delay of a late copy, in ns.
    pub late_ns_max: Duration,
}

pub(crate) type Within<'a> = &'a dyn Fn(&str, u64, u64, u64) -> Result<(), String>;

impl Sizes {
    pub(crate) fn validate(&self, within: Within<'_>) -> Result<(), String> {
        within("key_bytes_max", self.key_bytes_max as u64, 0, KEY_BYTES_MAX as u64)?;
        within("value_bytes_max", self.value_bytes_max as u64, 0, VALUE_BYTES_MAX as u64)?;
        within("elements_max", self.elements_max as u64, 0, ELEMENTS_MAX as u64)?;
        within("ttl_ms_max", self.ttl_ms_max, 0, TTL_MS_MAX)?;
        within("due_at_once", self.due_at_once, 0, DUE_AT_ONCE_MAX)?;
        within("all_keys_permille", self.all_keys_permille, 0, 1_000)
    }
}

impl Bounds {
    pub(crate) fn validate(&self, within: Within<'_>) -> Result<(), String> {
        let million = MILLION as usize;
        within("log_records_max", self.log_records_max as u64, 0, MILLION)?;
        within("log_bytes_max", self.log_bytes_max as u64, 0, (256 * million) as u64)?;
        within("log_memory_bytes", self.log_memory_bytes as u64, 0, (256 * million) as u64)?;
        within("sessions_max", self.sessions_max as u64, 0, MILLION)?;
        if self.counter_bits != 0 {
            within("counter_bits", self.counter_bits.into(), COUNTER_BITS_MIN.into(), 32)?;
        }
        let last = u32::MAX - NUMBERS_LEFT_MIN;
        within("last_switch_id", self.last_switch_id.into(), 0, last.into())?;
        within("last_epoch", self.last_epoch.into(), 0, last.into())?;
        within("first_view", self.first_view.into(), 0, last.into())?;
        within("first_request", self.first_request, 0, REQUESTS_END - MILLION)
    }

    /// The limits of the replicas.
    pub(crate) fn limits(&self) -> Limits {
        let shipped = Limits::default();
        let or = |bound: usize, shipped| if bound == 0 { shipped } else { bound };
        Limits {
            log_records_max: or(self.log_records_max, shipped.log_records_max),
            log_bytes_max: or(self.log_bytes_max, shipped.log_bytes_max),
            log_memory_bytes: self.log_memory_bytes,
            log_chunk_bytes: LOG_CHUNK_BYTES,
            sessions_max: or(self.sessions_max, shipped.sessions_max),
            first_view: ViewNumber(self.first_view.max(1)),
            ..shipped
        }
    }
}

impl Packets {
    pub(crate) fn validate(&self, within: Within<'_>) -> Result<(), String> {
        within("truncated_ppm", self.truncated_ppm, 0, MILLION)?;
        within("forged_ppm", self.forged_ppm, 0, MILLION)?;
        within("own_ppm", self.own_ppm, 0, MILLION)?;
        within("padded_ppm", self.padded_ppm, 0, MILLION)?;
        within("late_ppm", self.late_ppm, 0, MILLION)?;
        within("late_ns_max", self.late_ns_max, 0, LATE_NS_MAX)
    }
}
