//! Counts of the large values and replies in a run.

use concord_check::{Operation, Reply};

/// The length above which a key does not fit into a packet with the rest of its command, in bytes.
const LONG_KEY_BYTES: usize = 1_200;
/// The length above which a value takes more packets than a window has, in bytes.
const HUGE_VALUE_BYTES: usize = 100_000;
const MANY_ELEMENTS: usize = 1_000;
/// The duration from which on a time to live counts as long: a day, in ms.
const LONG_TTL_MS: u64 = 24 * 3_600_000;

/// Counts of operations that ended with a reply, by what is large about them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Large {
    /// Reads of all keys.
    pub of_all_keys: u64,
    /// Operations on a key that is nearly as long as a packet, or longer.
    pub keys: u64,
    /// Writes and reads of values of more than 100,000 bytes.
    pub values: u64,
    /// Replies of a thousand elements or more.
    pub replies: u64,
    /// Times to live of a day or more.
    pub lifetimes: u64,
    /// Keys written so that they expire at the same time.
    pub due: u64,
    /// Writes refused because a disk was full.
    pub disk_full: u64,
    /// Writes refused because memory was full.
    pub out_of_memory: u64,
}

impl Large {
    /// Adds the counts of another run.
    pub fn add(&mut self, other: &Large) {
        self.of_all_keys += other.of_all_keys;
        self.keys += other.keys;
        self.values += other.values;
        self.replies += other.replies;
        self.lifetimes += other.lifetimes;
        self.due += other.due;
        self.out_of_memory += other.out_of_memory;
        self.disk_full += other.disk_full;
    }

    pub(crate) fn see(&mut self, operation: &Operation) {
        let (cmd, Some(reply)) = (&operation.cmd, &operation.reply) else { return };
        let arg = |at: usize| cmd.get(at).map_or(&b""[..], Vec::as_slice);
        let is_of_all = matches!(arg(0), b"KEYS" | b"SCAN" | b"DBSIZE");
        self.of_all_keys += u64::from(is_of_all);
        self.keys += u64::from(arg(1).len() > LONG_KEY_BYTES);
        let value_bytes = match reply {
            Reply::Bulk(value) => value.len(),
            Reply::Nil
            | Reply::Ok
            | Reply::Int(_)
            | Reply::Array(_)
            | Reply::Error(_)
            | Reply::Unseen => 0,
        };
        self.values += u64::from(value_bytes.max(arg(2).len()) > HUGE_VALUE_BYTES);
        self.replies +=
            u64::from(matches!(reply, Reply::Array(items) if items.len() >= MANY_ELEMENTS));
        let ttl = if arg(0) == b"PEXPIRE" { arg(2) } else { arg(4) };
        let ttl_ms = std::str::from_utf8(ttl).ok().and_then(|ttl| ttl.parse().ok());
        self.lifetimes += u64::from(ttl_ms.is_some_and(|ttl_ms: u64| ttl_ms >= LONG_TTL_MS));
        let is_full = matches!(reply, Reply::Error(text) if text.starts_with("OOM"));
        self.out_of_memory += u64::from(is_full);
        let is_short = matches!(reply, Reply::Error(text) if text.starts_with("DISKFULL"));
        self.disk_full += u64::from(is_short);
        self.due += u64::from(arg(1).starts_with(b"due") && arg(0) == b"SET");
    }
}

/// Whether an error reply says that a write was refused because memory or a disk was full.
pub(crate) fn is_short_of_room(error: &str) -> bool {
    error.starts_with("OOM") || error.starts_with("DISKFULL")
}
