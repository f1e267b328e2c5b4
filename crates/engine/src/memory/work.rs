//! The bound on the work of one command. While a replica executes a command it does nothing else:
//! it sends no keepalive and grants no lease. A union of a thousand large sets, or a large SORT,
//! would keep it busy until the others take it for dead; each in turn, since all execute the same.
//!
//! So the work of a command is counted before it begins, in *elements*: one is about the time of a
//! look-up among a million keys. The count depends on the data alone, so that all replicas refuse
//! the same commands. Each command may use [`WORK_MAX`] elements. They count for the cost of a
//! script ([`ELEMENT_COST`]), as do the bytes that its commands add or remove: a script may do
//! much, in slices, but none of its commands is longer than that.
//!
//! Commands that only look at their own arguments, or once at all of one key, are not counted:
//! sending that data took longer. The reads of a transaction or a script end once their replies
//! exceed the longest reply.

use core::cell::Cell;

use super::store::{Store, Value};
use super::{Failure, fixed};
use crate::resp;

/// Elements that one command may look at.
pub const WORK_MAX: u64 = 2_000_000;
/// The cost of an element for a script, in the units of [`crate::script`].
const ELEMENT_COST: u64 = 10;
/// The number of bytes added to the data or removed from it that cost a script one unit.
const MOVED_BYTES_OF_ONE: u64 = 8;
/// Bytes of replies after which no more is read: no reply is longer.
const REPLIES_BYTES_MAX: usize = 64 << 20;
/// The number of a string's bytes that are read in the time of one element.
pub(super) const STRING_BYTES_OF_ONE: u64 = 128;
/// The number of adjacent elements that are read in the time of one.
pub(super) const IN_A_ROW_OF_ONE: u64 = 8;

/// The time to read the registers of a HyperLogLog, in elements.
const REGISTERS: u64 = 128;
/// The work of an element of a new set, which is looked up, created and inserted.
const MADE: u64 = 2;

const TOO_MUCH: Failure = fixed(
    b"ERR too much work for one command or script: it looks at more than 2000000 elements \
      (Concord's limit)",
);

pub(super) const TOO_LONG: Failure =
    fixed(b"ERR the reply is longer than 64 MiB (Concord's limit)");

/// The work that the present operation may still do.
#[derive(Debug)]
pub(super) struct Work {
    max: u64,
    left: Cell<u64>,
    reply_bytes: Cell<usize>,
    /// A read was not executed, since what was read before is too long.
    was_long: Cell<bool>,
    /// The cost of all operations, in the units of scripts.
    spent: Cell<u64>,
    /// The work that the transaction of a script may still do.
    beside: Cell<u64>,
}

impl Work {
    pub(super) fn new(max: u64) -> Work {
        Work {
            max,
            left: Cell::new(max),
            reply_bytes: Cell::new(0),
            was_long: Cell::new(false),
            spent: Cell::new(0),
            beside: Cell::new(max),
        }
    }

    /// An operation begins.
    pub(super) fn begin(&self) {
        self.begin_command();
        self.reply_bytes.set(0);
        self.was_long.set(false);
    }

    /// A command begins.
    pub(super) fn begin_command(&self) {
        self.left.set(self.max);
    }

    /// A script begins, perhaps in a transaction.
    pub(super) fn begin_script(&self) {
        self.beside.set(self.left.get());
    }

    /// It has ended.
    pub(super) fn end_script(&self) {
        self.left.set(self.beside.get());
    }

    /// Takes what a command costs, or nothing if that is more than is left.
    pub(super) fn spend(&self, cost: u64) -> Result<(), Failure> {
        let left = self.left.get().checked_sub(cost).ok_or(TOO_MUCH)?;
        self.left.set(left);
        self.spent.set(self.spent.get().saturating_add(cost.saturating_mul(ELEMENT_COST)));
        Ok(())
    }

    /// Counts bytes that were added to the data or removed from it.
    pub(super) fn moved(&self, bytes: u64) {
        self.spent.set(self.spent.get().saturating_add(bytes / MOVED_BYTES_OF_ONE));
    }

    pub(super) fn spent(&self) -> u64 {
        self.spent.get()
    }

    /// Counts bytes of a reply.
    pub(super) fn wrote(&self, reply_bytes: usize) {
        self.reply_bytes.set(self.reply_bytes.get().saturating_add(reply_bytes));
    }

    /// Whether a command that only reads is still executed.
    pub(super) fn may_read(&self) -> Result<(), Failure> {
        if self.reply_bytes.get() <= REPLIES_BYTES_MAX {
            return Ok(());
        }
        self.was_long.set(true);
        Err(TOO_LONG)
    }

    /// Whether one was not, since the operation began.
    pub(super) fn was_long(&self) -> bool {
        self.was_long.get()
    }
}

/// Commands whose work is counted.
const COUNTED: [&[u8]; 37] = [
    b"PFCOUNT",
    b"PFMERGE",
    b"BITOP",
    b"SUNION",
    b"SUNIONSTORE",
    b"SINTER",
    b"SINTERSTORE",
    b"SINTERCARD",
    b"SDIFF",
    b"SDIFFSTORE",
    b"ZUNION",
    b"ZUNIONSTORE",
    b"ZINTER",
    b"ZINTERSTORE",
    b"ZINTERCARD",
    b"ZDIFF",
    b"ZDIFFSTORE",
    b"ZRANGESTORE",
    b"SORT",
    b"SORT_RO",
    b"COPY",
    b"BITCOUNT",
    b"BITPOS",
    b"LINSERT",
    b"LREM",
    b"LTRIM",
    b"LPOS",
    b"HSCAN",
    b"SSCAN",
    b"ZSCAN",
    b"XPENDING",
    b"XCLAIM",
    b"XAUTOCLAIM",
    b"XTRIM",
    b"XINFO",
    b"KEYS",
    b"SCAN",
];

/// Whether the work of the command `name`, in capitals, is counted.
pub(super) fn is_counted(name: &[u8]) -> bool {
    COUNTED.contains(&name)
}

/// The work of the command `name`, in upper case, beside its arguments and one pass over the data
/// of a key.
pub(super) fn cost(store: &Store, name: &[u8], args: &[&[u8]]) -> u64 {
    let size = |at: usize| args.get(at).map_or(0, |key| elements(store, key));
    let behind = |at: usize| args.get(at..).unwrap_or_default();
    match name {
        b"PFCOUNT" | b"PFMERGE" => REGISTERS * behind(1).len() as u64,
        b"BITOP" => longest(store, behind(3)),
        b"SUNION" => MADE * all(store, behind(1)),
        b"SUNIONSTORE" => MADE * all(store, behind(2)),
        b"SINTER" => least(store, behind(1)),
        b"SINTERSTORE" => least(store, behind(2)),
        b"SDIFF" => first(store, behind(1)),
        b"SDIFFSTORE" => first(store, behind(2)),
        b"ZUNION" => 2 * MADE * all(store, counted(args, 1)),
        b"ZUNIONSTORE" => 2 * MADE * all(store, counted(args, 2)),
        b"SINTERCARD" | b"ZINTER" | b"ZINTERCARD" => least(store, counted(args, 1)),
        b"ZINTERSTORE" => least(store, counted(args, 2)),
        b"ZDIFF" => first(store, counted(args, 1)),
        b"ZDIFFSTORE" => first(store, counted(args, 2)),
        b"SORT" | b"SORT_RO" => sorting(size(1), args),
        b"ZRANGESTORE" => MADE * size(2),
        b"COPY" | b"BITCOUNT" | b"BITPOS" => size(1),
        b"LINSERT" | b"LREM" | b"LTRIM" | b"LPOS" | b"HSCAN" | b"SSCAN" | b"ZSCAN" => {
            size(1) / IN_A_ROW_OF_ONE
        }
        b"XPENDING" | b"XCLAIM" | b"XAUTOCLAIM" | b"XTRIM" => size(1) / IN_A_ROW_OF_ONE,
        b"XINFO" => size(2) / IN_A_ROW_OF_ONE,
        b"KEYS" => store.count() / 2,
        b"SCAN" => store.count().min(scan_count(args)) / 2,
        _ => 0,
    }
}

/// The number of elements of a key; for a string by its length.
fn elements(store: &Store, key: &[u8]) -> u64 {
    store.get(key).map_or(0, |value| match value {
        Value::String(bytes) => bytes.len() as u64 / STRING_BYTES_OF_ONE,
        Value::Hash(hash) => hash.map().len() as u64,
        Value::List(list) => list.items().len() as u64,
        Value::Set(set) => set.members().len() as u64,
        Value::Sorted(sorted) => sorted.len() as u64,
        Value::Stream(stream) => stream.len(),
    })
}

/// All elements of these keys, each as often as it is named.
fn all(store: &Store, keys: &[&[u8]]) -> u64 {
    keys.iter().fold(0, |sum: u64, key| sum.saturating_add(elements(store, key)))
}

/// Each of them is looked at as far as the longest goes.
fn longest(store: &Store, keys: &[&[u8]]) -> u64 {
    let longest = keys.iter().map(|key| elements(store, key)).max().unwrap_or(0);
    longest.saturating_mul(keys.len() as u64)
}

/// Each element of the smallest is looked for in all.
fn least(store: &Store, keys: &[&[u8]]) -> u64 {
    let least = keys.iter().map(|key| elements(store, key)).min().unwrap_or(0);
    least.saturating_mul(keys.len() as u64)
}

/// Each element of the first is looked for in all.
fn first(store: &Store, keys: &[&[u8]]) -> u64 {
    keys.first().map_or(0, |key| elements(store, key)).saturating_mul(keys.len() as u64)
}

/// The keys that are counted by the argument `at`.
fn counted<'a, 'b>(args: &'a [&'b [u8]], at: usize) -> &'a [&'b [u8]] {
    let number = args.get(at).and_then(|text| resp::number(text)).unwrap_or(0);
    let number = usize::try_from(number).unwrap_or(0);
    let behind = args.get(at + 1..).unwrap_or_default();
    &behind[..number.min(behind.len())]
}

/// Elements are compared about log n times each, and looked up for each pattern.
fn sorting(count: u64, args: &[&[u8]]) -> u64 {
    let is_pattern =
        |word: &&&[u8]| [&b"BY"[..], b"GET"].iter().any(|w| word.eq_ignore_ascii_case(w));
    let patterns = args.iter().skip(2).filter(is_pattern).count() as u64;
    let compared = count * u64::from(count.checked_ilog2().unwrap_or(0)) / IN_A_ROW_OF_ONE;
    compared.saturating_add(count.saturating_mul(1 + patterns))
}

/// COUNT of a SCAN.
fn scan_count(args: &[&[u8]]) -> u64 {
    let at = args.iter().rposition(|word| word.eq_ignore_ascii_case(b"COUNT"));
    let count = at.and_then(|at| resp::number(args.get(at + 1)?));
    count.and_then(|count| u64::try_from(count).ok()).unwrap_or(0)
}
