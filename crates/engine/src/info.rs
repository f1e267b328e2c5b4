//! Figures of the data, as a replica tells them to INFO: lines of `name:value` that end with CRLF,
//! of the replica that answers. A counter counts from the start of that replica.

use alloc::format;
use alloc::vec::Vec;

use crate::databases::DATABASES;
use crate::resp;

/// The fields of a Redis server's INFO that are passed on unchanged.
const PASSED: [&str; 3] = ["used_memory_rss", "mem_fragmentation_ratio", "mem_allocator"];

/// The shim's figures of the data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Figures {
    /// The size of the deadlines, beside the memory that the backend reports, in bytes.
    pub(crate) deadlines_bytes: u64,
    pub(crate) memory_bytes_max: u64,
    pub(crate) expires: u64,
    pub(crate) average_ttl_ms: u64,
    pub(crate) expired: u64,
    /// By database: the number of keys with a time to live, and their average rest of it, in ms.
    pub(crate) of_databases: [(u64, u64); DATABASES as usize],
}

/// The value of a field; `name` is without the colon.
#[must_use]
pub fn field<'a>(info: &'a [u8], name: &str) -> Option<&'a [u8]> {
    let mut lines = info.split(|byte| *byte == b'\n');
    lines.find_map(|line| {
        let value = line.strip_prefix(name.as_bytes())?.strip_prefix(b":")?;
        Some(value.trim_ascii_end())
    })
}

/// A field that is a number without a sign.
#[must_use]
pub fn number(info: &[u8], name: &str) -> Option<u64> {
    u64::try_from(resp::number(field(info, name)?)?).ok()
}

/// The reply to `CONCORD.INFO`, of the backend's replies to INFO and DBSIZE; `None` if one failed.
pub(crate) fn reply(figures: &Figures, replies: &[u8]) -> Option<Vec<u8>> {
    let (info, keys) = replies.split_at_checked(resp::value_length(replies)?)?;
    let info = resp::bulk_payload(info)?;
    let keys = resp::number(keys.strip_prefix(b":")?.strip_suffix(b"\r\n")?)?;
    let used = number(info, "used_memory")? + figures.deadlines_bytes;
    // Deadlines are not the backend's.
    let peak = number(info, "used_memory_peak").unwrap_or(0).max(used);
    let mut text = Vec::new();
    for (name, value) in [
        ("used_memory", used),
        ("used_memory_peak", peak),
        ("maxmemory", figures.memory_bytes_max),
        ("keys", keys.unsigned_abs()),
        ("expires", figures.expires),
        ("avg_ttl", figures.average_ttl_ms),
        ("expired_keys", figures.expired),
    ] {
        text.extend_from_slice(format!("{name}:{value}\r\n").as_bytes());
    }
    // Where the backend tells how many keys each database has.
    for (database, (expires, average_ms)) in figures.of_databases.iter().enumerate() {
        if let Some(keys @ 1..) = number(info, &format!("keys_db{database}")) {
            let line =
                format!("db{database}:keys={keys},expires={expires},avg_ttl={average_ms}\r\n");
            text.extend_from_slice(line.as_bytes());
        }
    }
    for name in PASSED {
        if let Some(value) = field(info, name) {
            text.extend_from_slice(&[name.as_bytes(), b":", value, b"\r\n"].concat());
        }
    }
    let mut out = Vec::new();
    resp::bulk(&mut out, &text);
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_those_of_the_backend_and_of_the_deadlines() {
        let figures = Figures { deadlines_bytes: 7, expires: 2, ..Figures::default() };
        let mut replies = Vec::new();
        let info = b"# Memory\r\nused_memory:100\r\nused_memory_human:1\r\nused_memory_rss:9\r\n";
        resp::bulk(&mut replies, info);
        resp::integer(&mut replies, 3);
        let whole = reply(&figures, &replies).unwrap();
        let text = resp::bulk_payload(&whole).unwrap();
        assert_eq!((number(text, "used_memory"), number(text, "keys")), (Some(107), Some(3)));
        assert_eq!(
            (number(text, "expires"), field(text, "used_memory_rss")),
            (Some(2), Some(&b"9"[..]))
        );
        assert_eq!(field(text, "mem_allocator"), None);
        assert_eq!(reply(&figures, b"-ERR x\r\n:1\r\n"), None);
        assert_eq!(reply(&figures, b"-LOADING x\r\n"), None);
    }
}
