//! A fingerprint of a machine: the hash of what `Debug` shows of it, without what has no part in what
//! it will do (counters, buffers that are reused).

use std::fmt::{self, Debug, Write};

use concord_core::hash::hash64;

/// Fields of that name are left out, with all that is inside.
const LEFT_OUT: [&str; 6] = ["scratch", "reply", "spare", "buffer", "buffers", "resent"];
/// So are values of types with names that end so.
const COUNTERS: &str = "Counters";

/// The hash of a machine's state: two seeds, so that a collision among millions is out of the
/// question.
pub(super) fn fingerprint(machine: &impl Debug) -> u128 {
    let mut text = Filter::default();
    // Writing to memory does not fail.
    let _ = write!(text, "{machine:?}");
    fingerprint_of(text.kept.as_bytes())
}

pub(super) fn fingerprint_of(bytes: &[u8]) -> u128 {
    u128::from(hash64(1, bytes)) << 64 | u128::from(hash64(2, bytes))
}

/// What derived `Debug` writes: a field is its name, then `": "`, then its value.
#[derive(Default)]
struct Filter {
    kept: String,
    /// What was written last: a field's name if `": "` follows.
    last: String,
    /// Brackets that are open.
    depth: usize,
    /// The depth of the field that is being left out.
    skipping: Option<usize>,
}

impl Filter {
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

impl Write for Filter {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        if self.skipping.is_some() {
            self.skip(text);
            return Ok(());
        }
        if text == ": " && LEFT_OUT.contains(&self.last.as_str()) {
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
        let mut text = Filter::default();
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
        assert_eq!(fingerprint(&value(1, 3)), fingerprint(&value(7, 3)));
        assert_ne!(fingerprint(&value(1, 3)), fingerprint(&value(1, 4)));
    }
}
