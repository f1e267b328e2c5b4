//! LCS: the longest common subsequence of two strings (Redis 7.0 `t_string.c`).

use alloc::vec;
use alloc::vec::Vec;
use core::ops::Range;

use super::store::Value;
use super::{Call, Failure, Handler, SYNTAX, fixed, integer};
use crate::resp;
use crate::table::UpperName;

pub(super) const HANDLERS: [(&[u8], Handler); 1] = [(b"LCS", lcs)];

const NOT_STRINGS: Failure = fixed(b"ERR The specified keys must contain string values");
const BOTH: Failure = fixed(b"ERR If you want both the length and indexes, please just use IDX.");
/// The number of pairs of bytes that are compared in the time of one element.
const PAIRS_OF_ONE: u64 = 32;

#[derive(Default)]
struct Options {
    length: bool,
    indexes: bool,
    with_length: bool,
    length_min: i64,
}

impl Options {
    fn parse(args: &[&[u8]]) -> Result<Options, Failure> {
        let mut options = Options::default();
        let mut args = args.iter();
        while let Some(arg) = args.next() {
            match UpperName::of(arg).bytes() {
                b"LEN" => options.length = true,
                b"IDX" => options.indexes = true,
                b"WITHMATCHLEN" => options.with_length = true,
                b"MINMATCHLEN" => {
                    options.length_min = integer(args.next().ok_or(SYNTAX)?)?.max(0);
                }
                _ => return Err(SYNTAX),
            }
        }
        if options.length && options.indexes { Err(BOTH) } else { Ok(options) }
    }
}

/// The step from a pair of places towards the beginning of the subsequence.
const BOTH_BACK: u8 = 0;
const FIRST_BACK: u8 = 1;
const SECOND_BACK: u8 = 2;

/// The ways from all pairs of places, two bits each.
struct Ways {
    packed: Vec<u8>,
    columns: usize,
}

impl Ways {
    fn set(&mut self, row: usize, column: usize, way: u8) {
        let at = row * self.columns + column;
        self.packed[at / 4] |= way << (at % 4 * 2);
    }

    fn get(&self, row: usize, column: usize) -> u8 {
        let at = row * self.columns + column;
        self.packed[at / 4] >> (at % 4 * 2) & 3
    }
}

/// The length of the subsequence, and the steps to it.
fn compare(a: &[u8], b: &[u8]) -> (usize, Ways) {
    let mut ways = Ways { packed: vec![0; (a.len() * b.len()).div_ceil(4)], columns: b.len() };
    // The lengths for the row above, which those of this one replace.
    let mut lengths = vec![0u32; b.len() + 1];
    for (row, of_a) in a.iter().enumerate() {
        let mut diagonal = 0;
        for (column, of_b) in b.iter().enumerate() {
            let (above, left) = (lengths[column + 1], lengths[column]);
            lengths[column + 1] = if of_a == of_b {
                diagonal + 1
            } else {
                ways.set(row, column, if above > left { FIRST_BACK } else { SECOND_BACK });
                above.max(left)
            };
            diagonal = above;
        }
    }
    (lengths[b.len()] as usize, ways)
}

/// A part that both strings have, by its places in each.
type Match = (Range<usize>, Range<usize>);

/// The matches, the last one first.
fn matches(a: &[u8], b: &[u8], ways: &Ways) -> Vec<Match> {
    let mut matches: Vec<Match> = Vec::new();
    let (mut row, mut column) = (a.len(), b.len());
    let mut goes_on = false;
    while row > 0 && column > 0 {
        match ways.get(row - 1, column - 1) {
            BOTH_BACK => {
                (row, column) = (row - 1, column - 1);
                match matches.last_mut().filter(|_| goes_on) {
                    Some((of_a, of_b)) => (of_a.start, of_b.start) = (row, column),
                    None => matches.push((row..row + 1, column..column + 1)),
                }
                goes_on = true;
                continue;
            }
            FIRST_BACK => row -= 1,
            _ => column -= 1,
        }
        goes_on = false;
    }
    matches
}

fn lcs(call: &mut Call<'_>) -> Result<(), Failure> {
    let string = |key: &[u8]| match call.store.get(key) {
        None => Ok(&[][..]),
        Some(Value::String(bytes)) => Ok(bytes.as_slice()),
        Some(_) => Err(NOT_STRINGS),
    };
    let (a, b) = (string(call.args[1])?, string(call.args[2])?);
    let options = Options::parse(&call.args[3..])?;
    call.store.work.spend((a.len() as u64).saturating_mul(b.len() as u64) / PAIRS_OF_ONE)?;
    let (length, ways) = compare(a, b);
    if options.length {
        resp::integer(call.reply, length as i64);
        return Ok(());
    }
    let mut matches = matches(a, b, &ways);
    if !options.indexes {
        let parts = matches.iter().rev().map(|(of_a, _)| &a[of_a.clone()]);
        resp::bulk(call.reply, &parts.collect::<Vec<_>>().concat());
        return Ok(());
    }
    matches.retain(|(of_a, _)| of_a.len() as i64 >= options.length_min);
    resp::map(call.reply, 2, call.resp3);
    resp::bulk(call.reply, b"matches");
    resp::array(call.reply, matches.len());
    for (of_a, of_b) in &matches {
        resp::array(call.reply, if options.with_length { 3 } else { 2 });
        for range in [of_a, of_b] {
            resp::array(call.reply, 2);
            resp::integer(call.reply, range.start as i64);
            resp::integer(call.reply, range.end as i64 - 1);
        }
        if options.with_length {
            resp::integer(call.reply, of_a.len() as i64);
        }
    }
    resp::bulk(call.reply, b"len");
    resp::integer(call.reply, length as i64);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_common_subsequence_and_where_it_is() {
        let (a, b) = (&b"ohmytext"[..], &b"mynewtext"[..]);
        let (length, ways) = compare(a, b);
        assert_eq!(length, 6);
        assert_eq!(matches(a, b, &ways), [(4..8, 5..9), (2..4, 0..2)]);
        assert_eq!(compare(b"", b"x").0, 0);
    }
}
