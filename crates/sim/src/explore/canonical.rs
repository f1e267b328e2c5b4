//! A fingerprint of a machine: the hash of its `Debug` output, without the parts that do not
//! influence its behaviour (counters, reused buffers).

use std::fmt::{self, Debug, Write};
use std::hash::{DefaultHasher, Hasher};

/// Fields with these names are left out, with everything in them: buffers, counts, the sizes of
/// full packets in batches of several (a batch is one packet here), and FLAIR's forwarding tables,
/// which follow from other fields.
pub(super) const UNSEEN: [&str; 11] = [
    "scratch",
    "reply",
    "spare",
    "buffer",
    "buffers",
    "resent",
    "measured",
    "unsent_bytes",
    "local_ms",
    "rows",
    "rings",
];
/// Fields that decide nothing in the explorer: a client's round-trip times (its time-outs are
/// fixed), a link's window (few packets are in flight), and when members were heard of (no member
/// is cut off for as long as it takes to report that).
pub(super) const IDLE: [&str; 3] = ["rtt", "window", "reach"];
/// Fields that decide nothing once no time passes any more: the times when something is due.
pub(super) const TIMERS: [&str; 8] = [
    "next_alive",
    "next_retry",
    "next_keepalive",
    "next_request",
    "next_beat",
    "next_switch",
    "alive_at",
    "noop_at",
];
/// Fields that then decide only whether a record is sent once more. If none is lost, it is in
/// flight or has arrived.
pub(super) const LINK_TIMES: [&str; 5] =
    ["rtt_ns", "deviation_ns", "timeouts", "sent_at", "first_sent_at"];
/// Values are left out if the name of their type ends so.
const COUNTERS: &str = "Counters";

/// The hash of a machine's state without these fields: two hashes with different seeds, so that a
/// collision among millions of states is out of the question.
pub(crate) fn fingerprint(machine: &impl Debug, left_out: &[&[&str]]) -> u128 {
    let mut text = Filter::new(left_out);
    // Writing to memory does not fail.
    let _ = write!(text, "{machine:?}");
    fingerprint_of(text.kept.as_bytes())
}

/// SipHash, twice: `hash64` is faster, and has collisions if two words differ in few bits.
pub(super) fn fingerprint_of(bytes: &[u8]) -> u128 {
    let half = |key: u8| {
        let mut hasher = DefaultHasher::new();
        hasher.write_u8(key);
        hasher.write(bytes);
        u128::from(hasher.finish())
    };
    half(1) << 64 | half(2)
}

/// A filter of the output of a derived `Debug`, where a field is its name, then `": "`, then its
/// value.
struct Filter<'a> {
    left_out: &'a [&'a [&'a str]],
    kept: String,
    /// The text written last: the name of a field if `": "` follows.
    last: String,
    /// The number of open brackets.
    depth: usize,
    /// The depth of the field that is being left out.
    skipping: Option<usize>,
}

impl<'a> Filter<'a> {
    fn new(left_out: &'a [&'a [&'a str]]) -> Filter<'a> {
        let (kept, last) = (String::new(), String::new());
        Filter { left_out, kept, last, depth: 0, skipping: None }
    }

    fn skip(&mut self, text: &str) {
        for (at, byte) in text.bytes().enumerate() {
            match byte {
                b'{' | b'[' | b'(' => self.depth += 1,
                b'}' | b']' | b')' => self.depth -= 1,
                _ => {}
            }
            let Some(own) = self.skipping else { return };
            let ends = self.depth < own || (self.depth == own && byte == b',');
            if ends {
                self.skipping = None;
                self.kept.push_str(&text[at..]);
                let rest = &text[at + 1..];
                self.depth += rest.bytes().filter(|b| b"{[(".contains(b)).count();
                self.depth -= rest.bytes().filter(|b| b"}])".contains(b)).count();
                return;
            }
        }
    }
}

impl Write for Filter<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        if self.skipping.is_some() {
            self.skip(text);
            return Ok(());
        }
        if text == ": " && self.left_out.iter().any(|names| names.contains(&self.last.as_str())) {
            self.skipping = Some(self.depth);
            return Ok(());
        }
        if text.ends_with(COUNTERS) {
            self.skipping = Some(self.depth);
            return Ok(());
        }
        for byte in text.bytes() {
            match byte {
                b'{' | b'[' | b'(' => self.depth += 1,
                b'}' | b']' | b')' => self.depth -= 1,
                _ => {}
            }
        }
        self.kept.push_str(text);
        self.last.clear();
        self.last.push_str(text);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug)]
    #[expect(dead_code, reason = "`Debug` reads the fields")]
    struct Inner {
        spare: (u8, Vec<u8>),
        kept: u8,
    }

    #[derive(Debug)]
    #[expect(dead_code, reason = "`Debug` reads the fields")]
    struct SomeCounters {
        some: (u8, Vec<u8>),
    }

    #[derive(Debug)]
    #[expect(dead_code, reason = "`Debug` reads the fields")]
    struct Outer {
        scratch: Vec<Inner>,
        inner: Option<Inner>,
        some: SomeCounters,
    }

    fn shown(value: &impl Debug) -> String {
        let mut text = Filter::new(&[&UNSEEN]);
        write!(text, "{value:?}").unwrap();
        text.kept
    }

    #[test]
    fn what_is_left_out_changes_nothing_and_all_else_does() {
        let value = |n: u8, kept: u8| Outer {
            scratch: (0..n).map(|kept| Inner { spare: (n, vec![]), kept }).collect(),
            inner: Some(Inner { spare: (n, vec![n; n.into()]), kept }),
            some: SomeCounters { some: (n, vec![n; n.into()]) },
        };
        assert_eq!(
            shown(&value(1, 3)),
            "Outer { scratch, inner: Some(Inner { spare, kept: 3 }), some: }"
        );
        let fingerprint = |value: &Outer| fingerprint(value, &[&UNSEEN]);
        assert_eq!(fingerprint(&value(1, 3)), fingerprint(&value(7, 3)));
        assert_ne!(fingerprint(&value(1, 3)), fingerprint(&value(1, 4)));
    }
}
