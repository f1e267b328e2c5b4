//! Reads of several keys that are executed key by key (not atomically), if the rack is configured
//! so, and the combination of the parts' replies.

use alloc::vec;
use alloc::vec::Vec;

use concord_client::Class;
use concord_core::ObjectId;
use concord_engine::resp;

use crate::memory::output::append;

/// The result of a part of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    /// It has a reply.
    Reply,
    /// It was not executed, or only read, or that is unknown.
    NotExecuted,
}

/// The way in which the parts' replies are combined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Combine {
    /// EXISTS, TOUCH: the sum.
    Sum,
    /// MGET: an array.
    Array,
}

/// The way in which a read of several keys is split.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Split {
    /// The command of each part, if it differs.
    pub part: Option<&'static [u8]>,
    pub combine: Combine,
}

/// A command in which every argument, or every second one, is a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Several {
    pub class: Class,
    /// The number of arguments of each key, itself included.
    pub step: usize,
    /// The way in which it is split, if that is wanted.
    pub split: Option<Split>,
}

/// The command with this name (in capitals), if it is such a one.
pub(crate) fn several_of(name: &[u8]) -> Option<&'static Several> {
    const GETS: Split = Split { part: Some(b"GET"), combine: Combine::Array };
    const SUM: Split = Split { part: None, combine: Combine::Sum };
    Some(match name {
        b"MGET" => &Several { class: Class::Read, step: 1, split: Some(GETS) },
        b"EXISTS" | b"TOUCH" => &Several { class: Class::Read, step: 1, split: Some(SUM) },
        b"DEL" | b"UNLINK" => &Several { class: Class::Write, step: 1, split: None },
        b"MSET" | b"MSETNX" => &Several { class: Class::Write, step: 2, split: None },
        _ => return None,
    })
}

/// A command over several keys: the parts that were sent, and their replies so far.
#[derive(Debug)]
pub(crate) struct Parts {
    combine: Combine,
    /// The objects of the parts that were sent.
    pub objects: Vec<ObjectId>,
    is_answered: Vec<bool>,
    missing: usize,
    /// For an array, the replies that are not written yet; their bytes; the number of written ones.
    replies: Vec<Option<Vec<u8>>>,
    held_bytes: usize,
    written: usize,
    is_begun: bool,
    /// For a sum, the sum of numbers.
    sum: i64,
    /// The errors of the lowest parts that were not executed, and of those whose reply was an
    /// error.
    errors: [Option<(u32, Vec<u8>)>; 2],
}

const NOT_EXECUTED: usize = 0;
const REPLY: usize = 1;

impl Parts {
    pub(crate) fn new(combine: Combine, count: usize) -> Parts {
        let is_array = combine == Combine::Array;
        Parts {
            combine,
            objects: Vec::new(),
            is_answered: vec![false; count],
            missing: count,
            replies: vec![None; if is_array { count } else { 0 }],
            held_bytes: 0,
            written: 0,
            is_begun: false,
            sum: 0,
            errors: [None, None],
        }
    }

    /// The bytes of replies that wait for earlier ones.
    pub(crate) fn held_bytes(&self) -> usize {
        self.held_bytes
    }

    /// Whether the reply to `part` is the next to be written.
    pub(crate) fn is_next(&self, part: u32) -> bool {
        self.combine != Combine::Array || part as usize == self.written
    }

    /// Whether a part about `object` was sent and is unanswered.
    pub(crate) fn holds(&self, object: ObjectId) -> bool {
        let mut sent = self.objects.iter().zip(&self.is_answered);
        sent.any(|(o, is_answered)| *o == object && !is_answered)
    }

    pub(crate) fn fill(&mut self, part: u32, ended: Ended, reply: Vec<u8>) {
        let Some(is_answered @ false) = self.is_answered.get_mut(part as usize) else { return };
        *is_answered = true;
        self.missing -= 1;
        if let Some(place) = self.replies.get_mut(part as usize) {
            // Each key has one reply, which may be an error.
            self.held_bytes += reply.len();
            *place = Some(reply);
            return;
        }
        let kind = match ended {
            Ended::NotExecuted => NOT_EXECUTED,
            Ended::Reply if matches!(reply.first(), Some(b'-' | b'!')) => REPLY,
            Ended::Reply => {
                let number = |r: &[u8]| resp::number(r.strip_prefix(b":")?.strip_suffix(b"\r\n")?);
                self.sum += number(&reply).unwrap_or(0);
                return;
            }
        };
        let error = &mut self.errors[kind];
        if error.as_ref().is_none_or(|(of, _)| part < *of) {
            *error = Some((part, reply));
        }
    }

    /// Writes the part of the reply that can be written. Returns whether that was the end. An array
    /// is written element by element; the others as a whole, as an error if a part has one.
    pub(crate) fn write(&mut self, resp3: bool, out: &mut Vec<u8>) -> bool {
        if self.combine == Combine::Array {
            return self.write_elements(resp3, out);
        }
        if self.missing > 0 {
            return false;
        }
        match self.errors.iter().flatten().next() {
            Some((_, error)) => out.extend_from_slice(error),
            None => resp::integer(out, self.sum),
        }
        true
    }

    fn write_elements(&mut self, resp3: bool, out: &mut Vec<u8>) -> bool {
        if !self.is_begun {
            self.is_begun = true;
            resp::array(out, self.replies.len());
        }
        while let Some(reply) = self.replies.get_mut(self.written).and_then(Option::take) {
            self.held_bytes -= reply.len();
            self.written += 1;
            // MGET replies nil for a value that is not a string.
            if reply.starts_with(b"-WRONGTYPE") {
                resp::null(out, resp3);
            } else {
                append(out, &reply);
            }
        }
        self.written == self.replies.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::String;

    fn whole(combine: Combine, replies: &[(Ended, &str)]) -> String {
        let mut parts = Parts::new(combine, replies.len());
        for (part, (ended, reply)) in replies.iter().enumerate() {
            if combine != Combine::Array {
                assert!(!parts.write(false, &mut Vec::new()));
            }
            parts.fill(part as u32, *ended, reply.as_bytes().to_vec());
        }
        let mut out = Vec::new();
        assert!(parts.write(false, &mut out));
        assert_eq!(parts.held_bytes(), 0);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn parts_are_summed_or_listed() {
        use Ended::Reply;
        assert_eq!(whole(Combine::Sum, &[(Reply, ":1\r\n"), (Reply, ":0\r\n")]), ":1\r\n");
        let values = [(Reply, "$1\r\na\r\n"), (Reply, "-WRONGTYPE x\r\n"), (Reply, "$-1\r\n")];
        assert_eq!(whole(Combine::Array, &values), "*3\r\n$1\r\na\r\n$-1\r\n$-1\r\n");
    }

    #[test]
    fn a_part_that_is_not_executed_is_never_hidden() {
        use Ended::{NotExecuted, Reply};
        let late = (NotExecuted, "-TIMEOUT\r\n");
        assert_eq!(whole(Combine::Sum, &[(Reply, ":1\r\n"), late, (Reply, "-ERR\r\n")]), late.1);
        // One reply for each key: an error is that of its key.
        let read = [(Reply, "$1\r\na\r\n"), late];
        assert_eq!(whole(Combine::Array, &read), "*2\r\n$1\r\na\r\n-TIMEOUT\r\n");
    }

    /// An array is written as its elements come and nothing is held longer.
    #[test]
    fn bug_16_4_array_is_written_as_elements_arrive() {
        let mut parts = Parts::new(Combine::Array, 3);
        let mut out = Vec::new();
        assert!(!parts.write(false, &mut out) && parts.is_next(0));
        parts.fill(1, Ended::Reply, b"$1\r\nb\r\n".to_vec());
        assert!(!parts.write(false, &mut out));
        assert_eq!((out.as_slice(), parts.held_bytes()), (&b"*3\r\n"[..], 7));
        parts.fill(0, Ended::Reply, b"$1\r\na\r\n".to_vec());
        assert!(!parts.write(false, &mut out) && parts.is_next(2));
        assert_eq!(parts.held_bytes(), 0);
        assert!(out.ends_with(b"a\r\n$1\r\nb\r\n"));
    }
}
