//! SORT (Redis 7.0 `sort.c`).

use alloc::vec::Vec;
use core::cmp::Ordering;

use super::float::double;
use super::several::replace;
use super::sorted::Sorted;
use super::store::{Bytes, Hash, Kind, List, Set, Store, Value};
use super::{Call, Failure, Handler, SYNTAX, WRONG_TYPE, fixed, integer};
use crate::events::Classes;
use crate::resp;
use crate::table::UpperName;

pub(super) const HANDLERS: [(&[u8], Handler); 2] =
    [(b"SORT", |call| sort(call, true)), (b"SORT_RO", |call| sort(call, false))];

const NOT_NUMBERS: Failure = fixed(b"ERR One or more scores can't be converted into double");

/// The options of SORT.
#[derive(Default)]
struct Options<'a> {
    descending: bool,
    alpha: bool,
    limit: Option<(i64, i64)>,
    by: Option<&'a [u8]>,
    get: Vec<&'a [u8]>,
    store: Option<&'a [u8]>,
}

impl<'a> Options<'a> {
    fn parse(args: &[&'a [u8]], may_store: bool) -> Result<Options<'a>, Failure> {
        let mut options = Options::default();
        let mut at = 0;
        while let Some(option) = args.get(at) {
            let values = &args[at + 1..];
            at += match (UpperName::of(option).bytes(), values) {
                (b"ASC", _) => {
                    options.descending = false;
                    1
                }
                (b"DESC", _) => {
                    options.descending = true;
                    1
                }
                (b"ALPHA", _) => {
                    options.alpha = true;
                    1
                }
                (b"LIMIT", [start, count, ..]) => {
                    options.limit = Some((integer(start)?, integer(count)?));
                    3
                }
                (b"STORE", [key, ..]) if may_store => {
                    options.store = Some(key);
                    2
                }
                (b"BY", [pattern, ..]) => {
                    options.by = Some(pattern);
                    2
                }
                (b"GET", [pattern, ..]) => {
                    options.get.push(pattern);
                    2
                }
                _ => return Err(SYNTAX),
            };
        }
        Ok(options)
    }

    /// The part of `length` elements that is wanted.
    fn range(&self, length: usize) -> core::ops::Range<usize> {
        let Some((start, count)) = self.limit else { return 0..length };
        let start = usize::try_from(start).unwrap_or(0).min(length);
        let count = usize::try_from(count).unwrap_or(usize::MAX);
        start..start.saturating_add(count).min(length)
    }
}

/// The value that a pattern names for an element: a string, or with `->` a field of a hash.
fn look_up<'a>(store: &'a Store, pattern: &[u8], element: &'a [u8]) -> Option<&'a [u8]> {
    if pattern == b"#" {
        return Some(element);
    }
    let star = pattern.iter().position(|b| *b == b'*')?;
    let (head, tail) = (&pattern[..star], &pattern[star + 1..]);
    let arrow = tail.windows(2).position(|two| two == b"->");
    match arrow.filter(|arrow| arrow + 2 < tail.len()) {
        None => {
            let key = [head, element, tail].concat();
            Bytes::of(store.get(&key)?).map(|bytes| &bytes[..])
        }
        Some(arrow) => {
            let key = [head, element, &tail[..arrow]].concat();
            let hash = Hash::of(store.get(&key)?)?;
            hash.map().get(&tail[arrow + 2..]).map(|value| &value[..])
        }
    }
}

/// A number as C's `strtod` reads all of a text.
fn number(text: &[u8]) -> Option<f64> {
    let blanks = text.iter().take_while(|b| b.is_ascii_whitespace() || **b == 0x0b).count();
    if text.is_empty() { Some(0.0) } else { double(&text[blanks..]) }
}

/// The elements in the order of the collection, or against it; a set has none.
fn elements(value: Option<&Value>, descending: bool) -> Result<Vec<&[u8]>, Failure> {
    Ok(match value {
        None => Vec::new(),
        Some(Value::List(list)) => {
            let list: &List = list;
            let mut items: Vec<&[u8]> = list.items().iter().map(|item| &item[..]).collect();
            if descending {
                items.reverse();
            }
            items
        }
        Some(Value::Set(set)) => {
            let set: &Set = set;
            set.members().iter().map(|member| &member[..]).collect()
        }
        Some(Value::Sorted(sorted)) => {
            let sorted: &Sorted = sorted;
            let mut members: Vec<&[u8]> = sorted.iter().map(|scored| &scored.member[..]).collect();
            if descending {
                members.reverse();
            }
            members
        }
        Some(Value::String(_) | Value::Hash(_) | Value::Stream(_)) => return Err(WRONG_TYPE),
    })
}

fn order_alpha(elements: &mut [&[u8]], store: &Store, by: Option<&[u8]>, descending: bool) {
    match by {
        None if descending => elements.sort_by(|a, b| b.cmp(a)),
        None => elements.sort(),
        Some(by) => {
            let mut keyed: Vec<(Option<&[u8]>, &[u8])> =
                elements.iter().map(|element| (look_up(store, by, element), *element)).collect();
            // Equal weights leave the order as it is, whichever way they are sorted.
            keyed.sort_by(|(a, _), (b, _)| if descending { b.cmp(a) } else { a.cmp(b) });
            elements.iter_mut().zip(keyed).for_each(|(to, (_, element))| *to = element);
        }
    }
}

fn order_numbers(elements: &mut [&[u8]], store: &Store, by: Option<&[u8]>) -> Result<(), Failure> {
    let weight = |element: &&[u8]| match by {
        None => number(element),
        Some(by) => look_up(store, by, element).map_or(Some(0.0), number),
    };
    let weights: Option<Vec<f64>> = elements.iter().map(weight).collect();
    let mut weighed: Vec<(f64, &[u8])> =
        weights.ok_or(NOT_NUMBERS)?.into_iter().zip(elements.iter().copied()).collect();
    weighed.sort_by(|(a, one), (b, other)| {
        a.partial_cmp(b).unwrap_or(Ordering::Equal).then_with(|| one.cmp(other))
    });
    elements.iter_mut().zip(weighed).for_each(|(to, (_, element))| *to = element);
    Ok(())
}

fn sort(call: &mut Call<'_>, may_store: bool) -> Result<(), Failure> {
    let options = Options::parse(&call.args[2..], may_store)?;
    let store = &*call.store;
    let value = store.get(call.args[1]);
    let has_order = options.by.is_some_and(|by| !by.contains(&b'*'));
    // A stored result, or one for a script, must not depend on the order of a set. Otherwise any
    // order is right.
    let sorts_set = has_order && matches!(value, Some(Value::Set(_)));
    let mut found = elements(value, has_order && options.descending)?;
    if !has_order || sorts_set {
        let by = options.by.filter(|_| !sorts_set);
        if options.alpha || sorts_set {
            order_alpha(&mut found, store, by, options.descending);
        } else {
            order_numbers(&mut found, store, by)?;
            if options.descending {
                found.reverse();
            }
        }
    }
    let found = &found[options.range(found.len())];
    let mut out: Vec<Option<&[u8]>> = Vec::new();
    for element in found {
        if options.get.is_empty() {
            out.push(Some(*element));
        }
        for pattern in &options.get {
            out.push(look_up(store, pattern, element));
        }
    }
    let Some(target) = options.store else {
        resp::array(call.reply, out.len());
        for item in &out {
            match item {
                Some(item) => resp::bulk(call.reply, item),
                None => resp::null(call.reply, call.resp3),
            }
        }
        return Ok(());
    };
    let mut list = List::default();
    out.iter().for_each(|item| list.push(false, item.unwrap_or_default()));
    let length = list.items().len();
    replace(call, target, list, (Classes::LIST, "sortstore"));
    call.integer(length as i64);
    Ok(())
}
