//! The limits near which a run works: sizes, bounds that are small, packets that nobody sent so.

use concord_core::{Duration, SEC, ViewNumber};
use concord_protocols::Limits;
use concord_wire::VALUE_BYTES_MAX;
use concord_wire::rpc::READ_BIT;
use serde::{Deserialize, Serialize};

/// Longest key, in bytes: the gateway takes longer ones, of which nothing else is new.
pub const KEY_BYTES_MAX: usize = 4_096;
/// Most elements that one command adds.
pub const ELEMENTS_MAX: usize = 10_000;
/// Most keys that come due at once.
pub const DUE_AT_ONCE_MAX: u64 = 100_000;
/// Longest time to live, in ms: a year.
pub const TTL_MS_MAX: u64 = 365 * 24 * 3_600_000;
/// Longest time that a packet is late, in ns.
pub const LATE_NS_MAX: Duration = 120 * SEC;
/// Fewest bits of the switch's counter.
pub const COUNTER_BITS_MIN: u8 = 6;
/// Fewest switch ids, epochs and views that are left at the start of a run: it may take hundreds.
/// What happens at the end itself is shown by tests of the machines.
const NUMBERS_LEFT_MIN: u32 = 4_096;
/// Where the numbers of writes end: those of reads have this bit.
pub(super) const REQUESTS_END: u64 = READ_BIT;

/// Of chunks of the log, in bytes: a run writes some hundred kB, so that logs have many.
const LOG_CHUNK_BYTES: usize = 1_024;

pub(super) const MILLION: u64 = 1_000_000;

/// How large things are. What is 0 is as in a small run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Sizes {
    /// Longest key, in bytes; 0: names of a few bytes.
    pub key_bytes_max: usize,
    /// Longest of the long values, in bytes; 0: some packets.
    pub value_bytes_max: usize,
    /// Most elements that a command adds to a list, set or hash; 0: one, and only lists.
    pub elements_max: usize,
    /// Longest time to live, in ms; 0: every one is 40 ms.
    pub ttl_ms_max: u64,
    /// Keys that come due at one time.
    pub due_at_once: u64,
    /// Reads of all keys (KEYS, SCAN, DBSIZE) among 1,000 operations.
    pub all_keys_permille: u64,
}

/// Bounds that are smaller than what ships, and numbers that begin near their end. 0: as shipped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Bounds {
    /// Commands that take memory are refused above so many bytes of data.
    pub memory_bytes_max: u64,
    /// Most records kept for members that lag.
    pub log_records_max: usize,
    /// Most bytes of them.
    pub log_bytes_max: usize,
    /// About so many bytes of records that all have are kept for replicas that were away; 0: none.
    pub log_memory_bytes: usize,
    /// Most sessions in the client table.
    pub sessions_max: usize,
    /// Bits of the switch's counter: a new id is asked for before it ends (trap T20).
    pub counter_bits: u8,
    /// The last switch id that was granted before the run.
    pub last_switch_id: u32,
    /// The group's last epoch before the run, of another group that was given up.
    pub last_epoch: u32,
    /// VR, NOPaxos: the first view; 0: 1.
    pub first_view: u32,
    /// The number of a session's first write; 0: 1.
    pub first_request: u64,
}

/// Packets beside those that were sent, per million of these. A role believes another role's
/// packets, so that none of them says what no role said: they are cut short, or of another version,
/// or random behind a right header, or padded, or what somebody sent long ago.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Packets {
    /// Copies without their end.
    pub truncated_ppm: u64,
    /// Copies with another magic number, version or kind, and random bytes behind a right header.
    pub forged_ppm: u64,
    /// Copies of clients' writes with the mark of a replica's own write, and no command: of all
    /// packets.
    pub own_ppm: u64,
    /// Packets with random bytes behind their end, which they may have.
    pub padded_ppm: u64,
    /// Copies that arrive late.
    pub late_ppm: u64,
    /// How late at most, in ns.
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

    /// What replicas hold.
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
