//! Commands over several keys that are executed key by key (not atomic), and how the parts' replies
//! become one.

use alloc::format;
use alloc::vec;
use alloc::vec::Vec;

use concord_client::Class;
use concord_core::ObjectId;
use concord_engine::resp;

use crate::replies::Ended;

/// How the parts of a command over several keys become one reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Combine {
    /// DEL, EXISTS, ...: the sum.
    Sum,
    /// MGET: an array.
    Array,
    /// MSET: OK.
    AllOk,
}

/// How a command over several keys is taken apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Split {
    /// The command of each part, if it is another one.
    pub part: Option<&'static [u8]>,
    pub class: Class,
    pub combine: Combine,
    /// Arguments of each part.
    pub step: usize,
}

impl Split {
    /// Whether the reply of the only part is that of the whole.
    pub(crate) fn is_whole_with_one(self) -> bool {
        self.combine != Combine::Array
    }
}

/// The split of a command, by its name in capitals.
pub(crate) fn split_of(name: &[u8]) -> Option<Split> {
    let (part, class, combine, step): (Option<&'static [u8]>, _, _, _) = match name {
        b"MGET" => (Some(b"GET"), Class::Read, Combine::Array, 1),
        b"MSET" => (Some(b"SET"), Class::Write, Combine::AllOk, 2),
        b"EXISTS" | b"TOUCH" => (None, Class::Read, Combine::Sum, 1),
        b"DEL" | b"UNLINK" => (None, Class::Write, Combine::Sum, 1),
        _ => return None,
    };
    Some(Split { part, class, combine, step })
}

/// A command over several keys: what was sent, and the replies so far.
#[derive(Debug)]
pub(crate) struct Parts {
    pub combine: Combine,
    /// The objects of the parts that were sent.
    pub objects: Vec<ObjectId>,
    replies: Vec<Option<(Ended, Vec<u8>)>>,
    missing: usize,
}

impl Parts {
    pub(crate) fn new(combine: Combine, count: usize) -> Parts {
        Parts { combine, objects: Vec::new(), replies: vec![None; count], missing: count }
    }

    pub(crate) fn is_missing(&self) -> bool {
        self.missing > 0
    }

    /// Whether a part about `object` was sent and is not answered.
    pub(crate) fn holds(&self, object: ObjectId) -> bool {
        let mut sent = self.objects.iter().zip(&self.replies);
        sent.any(|(o, reply)| *o == object && reply.is_none())
    }

    pub(crate) fn fill(&mut self, part: u32, ended: Ended, reply: Vec<u8>) {
        if let Some(place @ None) = self.replies.get_mut(part as usize) {
            *place = Some((ended, reply));
            self.missing -= 1;
        }
    }

    /// The reply of the whole: an error if a part has one.
    pub(crate) fn write_reply(&self, resp3: bool, out: &mut Vec<u8>) {
        let ended = |wanted: Ended| {
            move || self.replies.iter().flatten().filter(move |(ended, _)| *ended == wanted)
        };
        // One part of unknown outcome makes the whole unknown.
        if let Some((_, error)) = ended(Ended::Unknown)().next() {
            return out.extend_from_slice(error);
        }
        let refused = ended(Ended::NotExecuted)().count();
        if refused > 0 && refused < self.replies.len() && self.combine != Combine::Array {
            let (done, all) = (self.replies.len() - refused, self.replies.len());
            let text = format!("PARTIAL executed on {done} of {all} keys, not on the others");
            return resp::error(out, text.as_bytes());
        }
        if let Some((_, error)) = ended(Ended::NotExecuted)().next() {
            return out.extend_from_slice(error);
        }
        let replies = || self.replies.iter().flatten().map(|(_, reply)| reply.as_slice());
        // MGET answers nil for what is no string.
        let is_nil = |r: &[u8]| self.combine == Combine::Array && r.starts_with(b"-WRONGTYPE");
        if let Some(error) =
            replies().find(|r| matches!(r.first(), Some(b'-' | b'!')) && !is_nil(r))
        {
            return out.extend_from_slice(error);
        }
        match self.combine {
            Combine::Array => {
                resp::array(out, self.replies.len());
                for reply in replies() {
                    if is_nil(reply) {
                        resp::null(out, resp3)
                    } else {
                        out.extend_from_slice(reply)
                    }
                }
            }
            Combine::Sum => {
                let number = |r: &[u8]| resp::number(r.strip_prefix(b":")?.strip_suffix(b"\r\n")?);
                resp::integer(out, replies().filter_map(number).sum());
            }
            Combine::AllOk => out.extend_from_slice(resp::OK),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::String;

    fn whole(combine: Combine, replies: &[(Ended, &str)]) -> String {
        let mut parts = Parts::new(combine, replies.len());
        for (part, (ended, reply)) in replies.iter().enumerate() {
            assert!(parts.is_missing());
            parts.fill(part as u32, *ended, reply.as_bytes().to_vec());
        }
        let mut out = Vec::new();
        parts.write_reply(false, &mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn parts_are_summed_listed_or_all_ok() {
        use Ended::Reply;
        assert_eq!(whole(Combine::Sum, &[(Reply, ":1\r\n"), (Reply, ":0\r\n")]), ":1\r\n");
        let values = [(Reply, "$1\r\na\r\n"), (Reply, "-WRONGTYPE x\r\n"), (Reply, "$-1\r\n")];
        assert_eq!(whole(Combine::Array, &values), "*3\r\n$1\r\na\r\n$-1\r\n$-1\r\n");
        assert_eq!(whole(Combine::AllOk, &[(Reply, "+OK\r\n"), (Reply, "+OK\r\n")]), "+OK\r\n");
        let oom = [(Reply, "+OK\r\n"), (Reply, "-OOM x\r\n")];
        assert_eq!(whole(Combine::AllOk, &oom), "-OOM x\r\n");
    }

    #[test]
    fn a_part_that_is_not_known_or_not_executed_is_never_hidden() {
        use Ended::{NotExecuted, Reply, Unknown};
        let (ok, no, what) = ((Reply, "+OK\r\n"), (NotExecuted, "-TRYAGAIN\r\n"), "-UNKNOWN\r\n");
        assert_eq!(whole(Combine::AllOk, &[ok, no, (Unknown, what)]), what);
        assert_eq!(whole(Combine::AllOk, &[no, no]), "-TRYAGAIN\r\n");
        let partial = "-PARTIAL executed on 1 of 2 keys, not on the others\r\n";
        assert_eq!(whole(Combine::AllOk, &[ok, no]), partial);
        let read = [(Reply, "$1\r\na\r\n"), (NotExecuted, "-TIMEOUT\r\n")];
        assert_eq!(whole(Combine::Array, &read), "-TIMEOUT\r\n");
    }
}
