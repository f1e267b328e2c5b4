//! Commands over several keys (Redis 7.0 `db.c`, `t_list.c`, `t_set.c`, `t_zset.c`).

use alloc::format;
use alloc::vec::Vec;

use super::keys::delete_key;
use super::lists::{popped, pushed};
use super::sorted::Sorted;
use super::store::{Kind, List, Set, Store, Value, failure};
use super::{
    Call, Failure, Handler, NOT_AN_INTEGER, SYNTAX, WRONG_TYPE, fixed, float, integer, zsets,
};
use crate::blocking::timeout_ms;
use crate::databases::of_key;
use crate::events::Classes;
use crate::resp;
use crate::table::UpperName;

/// Arguments of a command.
type Args<'a> = &'a [&'a [u8]];

pub(super) const HANDLERS: [(&[u8], Handler); 23] = [
    (b"RENAME", |call| rename(call, false)),
    (b"RENAMENX", |call| rename(call, true)),
    (b"COPY", copy),
    (b"LMOVE", lmove),
    (b"RPOPLPUSH", |call| move_item(call, false, true)),
    (b"LMPOP", |call| mpop_items(call, 1)),
    (b"SMOVE", smove),
    (b"SINTER", |call| combine_sets(call, Combine::Inter, 1)),
    (b"SUNION", |call| combine_sets(call, Combine::Union, 1)),
    (b"SDIFF", |call| combine_sets(call, Combine::Diff, 1)),
    (b"SINTERSTORE", |call| combine_sets(call, Combine::Inter, 2)),
    (b"SUNIONSTORE", |call| combine_sets(call, Combine::Union, 2)),
    (b"SDIFFSTORE", |call| combine_sets(call, Combine::Diff, 2)),
    (b"SINTERCARD", sintercard),
    (b"ZINTER", |call| combine_sorted(call, Combine::Inter, false)),
    (b"ZUNION", |call| combine_sorted(call, Combine::Union, false)),
    (b"ZDIFF", |call| combine_sorted(call, Combine::Diff, false)),
    (b"ZINTERSTORE", |call| combine_sorted(call, Combine::Inter, true)),
    (b"ZUNIONSTORE", |call| combine_sorted(call, Combine::Union, true)),
    (b"ZDIFFSTORE", |call| combine_sorted(call, Combine::Diff, true)),
    (b"ZINTERCARD", zintercard),
    (b"ZRANGESTORE", zrangestore),
    (b"ZMPOP", |call| mpop_members(call, 1)),
];

const NO_KEY: Failure = fixed(b"ERR no such key");
const NO_NUMKEYS: Failure = fixed(b"ERR numkeys should be greater than 0");
const TOO_MANY_KEYS: Failure = fixed(b"ERR Number of keys can't be greater than number of args");
const NEGATIVE_LIMIT: Failure = fixed(b"ERR LIMIT can't be negative");
const NO_COUNT: Failure = fixed(b"ERR count should be greater than 0");

fn rename(call: &mut Call<'_>, only_new: bool) -> Result<(), Failure> {
    let (from, to) = (call.args[1], call.args[2]);
    if call.store.get(from).is_none() {
        return Err(NO_KEY);
    }
    let is_free = from != to && call.store.get(to).is_none();
    if from != to && (is_free || !only_new) && call.store.rename(from, to) {
        // As in Redis, a key that is overwritten is a new one; nothing tells that the old one is
        // gone.
        let moves = of_key(from) != of_key(to);
        let names = if moves { ["move_from", "move_to"] } else { ["rename_from", "rename_to"] };
        call.raise(Classes::GENERIC, names[0], from);
        call.raise(Classes::GENERIC, names[1], to);
    }
    if only_new {
        call.integer(i64::from(is_free));
    } else {
        call.reply.extend_from_slice(resp::OK);
    }
    Ok(())
}

fn copy(call: &mut Call<'_>) -> Result<(), Failure> {
    let (from, to) = (call.args[1], call.args[2]);
    let mut replace = false;
    let mut options = call.args[3..].iter();
    while let Some(option) = options.next() {
        match UpperName::of(option).bytes() {
            b"REPLACE" => replace = true,
            b"DB" => match options.next().map(|text| integer(text)).ok_or(SYNTAX)?? {
                0 => {}
                _ => return Err(fixed(b"ERR Concord has one database")),
            },
            _ => return Err(SYNTAX),
        }
    }
    if from == to {
        return Err(fixed(b"ERR source and destination objects are the same"));
    }
    let copied = call.store.get(from).cloned().filter(|_| replace || call.store.get(to).is_none());
    let is_copied = copied.is_some();
    if let Some(value) = copied {
        call.store.delete(to);
        call.store.put(to, value);
        call.raise(Classes::GENERIC, "copy_to", to);
    }
    call.integer(i64::from(is_copied));
    Ok(())
}

/// Whether LEFT; RIGHT if not.
pub(super) fn is_left(text: &[u8]) -> Result<bool, Failure> {
    match UpperName::of(text).bytes() {
        b"LEFT" => Ok(true),
        b"RIGHT" => Ok(false),
        _ => Err(SYNTAX),
    }
}

fn lmove(call: &mut Call<'_>) -> Result<(), Failure> {
    let (from_left, to_left) = (is_left(call.args[3])?, is_left(call.args[4])?);
    move_item(call, from_left, to_left)
}

pub(super) fn move_item(
    call: &mut Call<'_>,
    from_left: bool,
    to_left: bool,
) -> Result<(), Failure> {
    let (from, to) = (call.args[1], call.args[2]);
    if call.store.read::<List>(from)?.is_none() {
        call.null();
        return Ok(());
    }
    call.store.read::<List>(to)?;
    let item = if from == to {
        // The list must not vanish in between.
        let item = call.store.write(from, |list: &mut List| {
            let item = list.pop(from_left);
            if let Some(item) = &item {
                list.push(to_left, item);
            }
            item
        })?;
        call.raise(Classes::LIST, pushed(to_left), to);
        item
    } else {
        let item = call.store.write(from, |list: &mut List| list.pop(from_left))?;
        if let Some(item) = &item {
            call.store.write(to, |list: &mut List| list.push(to_left, item))?;
            call.raise(Classes::LIST, pushed(to_left), to);
        }
        item
    };
    if item.is_some() {
        call.raise_taken(Classes::LIST, popped(from_left), from);
    }
    match item {
        Some(item) => resp::bulk(call.reply, &item),
        None => call.null(),
    }
    Ok(())
}

/// Parses `numkeys key ...` at the argument `at`: the keys, and the arguments after them.
fn counted<'a>(
    call: &Call<'a>,
    at: usize,
    none: Failure,
    too_many: Failure,
) -> Result<(Args<'a>, Args<'a>), Failure> {
    let number = resp::number(call.args[at]);
    let number = number.and_then(|n| usize::try_from(n).ok()).filter(|n| *n > 0).ok_or(none)?;
    call.args[at + 1..].split_at_checked(number).ok_or(too_many)
}

/// `... where [COUNT count]` of LMPOP and ZMPOP.
fn pop_count(options: &[&[u8]]) -> Result<usize, Failure> {
    match options {
        [] => Ok(1),
        [name, count, rest @ ..] if name.eq_ignore_ascii_case(b"COUNT") => {
            let count = resp::number(count).and_then(|count| usize::try_from(count).ok());
            let count = count.filter(|count| *count > 0).ok_or(NO_COUNT)?;
            if rest.is_empty() { Ok(count) } else { Err(SYNTAX) }
        }
        _ => Err(SYNTAX),
    }
}

/// Looks at a time-out, which the engine does not wait for.
pub(super) fn timeout(text: &[u8]) -> Result<(), Failure> {
    timeout_ms(text).map(|_| ()).map_err(fixed)
}

/// LMPOP and BLMPOP; the number of keys stands at `at`.
pub(super) fn mpop_items(call: &mut Call<'_>, at: usize) -> Result<(), Failure> {
    let (keys, rest) = counted(call, at, NO_NUMKEYS, SYNTAX)?;
    let (end, options) = rest.split_first().ok_or(SYNTAX)?;
    let left = is_left(end)?;
    let wanted = pop_count(options)?;
    if at == 2 {
        timeout(call.args[1])?;
    }
    for key in keys {
        let Some(list) = call.store.read::<List>(key)? else { continue };
        let taken = wanted.min(list.items().len());
        resp::array(call.reply, 2);
        resp::bulk(call.reply, key);
        resp::array(call.reply, taken);
        let reply = &mut *call.reply;
        call.store.write(key, |list: &mut List| {
            for item in (0..taken).filter_map(|_| list.pop(left)).collect::<Vec<_>>() {
                resp::bulk(reply, &item);
            }
        })?;
        call.raise_taken(Classes::LIST, popped(left), key);
        return Ok(());
    }
    resp::null_array(call.reply, call.resp3);
    Ok(())
}

fn smove(call: &mut Call<'_>) -> Result<(), Failure> {
    let (from, to, member) = (call.args[1], call.args[2], call.args[3]);
    let Some(set) = call.store.read::<Set>(from)? else {
        call.integer(0);
        return Ok(());
    };
    let is_member = set.members().contains(member);
    call.store.read::<Set>(to)?;
    if is_member && from != to {
        call.store.write(from, |set: &mut Set| set.remove(member))?;
        call.raise_taken(Classes::SET, "srem", from);
        if call.store.write(to, |set: &mut Set| set.add(member))? {
            call.raise(Classes::SET, "sadd", to);
        }
    }
    call.integer(i64::from(is_member));
    Ok(())
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Combine {
    Inter,
    Union,
    Diff,
}

/// The sets of these keys; `None` for one that is not there.
fn sets<'a>(store: &'a Store, keys: &[&[u8]]) -> Result<Vec<Option<&'a Set>>, Failure> {
    keys.iter().map(|key| store.read::<Set>(key)).collect()
}

fn combined(sets: &[Option<&Set>], how: Combine) -> Set {
    let has = |set: &Option<&Set>, member: &[u8]| set.is_some_and(|s| s.members().contains(member));
    let mut sets = sets.to_vec();
    if how == Combine::Inter {
        // The smallest first, as in Redis.
        sets.sort_by_key(|set| set.map_or(0, |set| set.members().len()));
    }
    let mut result = Set::default();
    let Some((first, others)) = sets.split_first() else { return result };
    let kept = |member: &[u8]| match how {
        Combine::Union => true,
        Combine::Inter => others.iter().all(|set| has(set, member)),
        Combine::Diff => !others.iter().any(|set| has(set, member)),
    };
    let more = if how == Combine::Union { others } else { &[] };
    for member in first.iter().chain(more.iter().flatten()).flat_map(|set| set.members()) {
        if kept(member) {
            result.add(member);
        }
    }
    result
}

/// With a destination if the sources begin at 2.
fn combine_sets(call: &mut Call<'_>, how: Combine, sources_at: usize) -> Result<(), Failure> {
    let set = combined(&sets(call.store, &call.args[sources_at..])?, how);
    let count = set.members().len();
    if sources_at == 1 {
        resp::set(call.reply, count, call.resp3);
        set.members().iter().for_each(|member| resp::bulk(call.reply, member));
        return Ok(());
    }
    let name = match how {
        Combine::Inter => "sinterstore",
        Combine::Union => "sunionstore",
        Combine::Diff => "sdiffstore",
    };
    replace(call, call.args[1], set, (Classes::SET, name));
    call.integer(count as i64);
    Ok(())
}

/// Puts a value where any may have been, which is this event; none if it is vacant.
pub(super) fn replace<K: Kind>(
    call: &mut Call<'_>,
    key: &[u8],
    value: K,
    (class, name): (Classes, &'static str),
) {
    if value.is_vacant() {
        delete_key(call, key);
    } else {
        call.store.put(key, value.wrap());
        call.raise(class, name, key);
    }
}

/// `[LIMIT limit]`: 0 for none.
fn limit(options: &[&[u8]]) -> Result<usize, Failure> {
    match options {
        [] => Ok(0),
        [name, wanted, rest @ ..] if name.eq_ignore_ascii_case(b"LIMIT") => {
            let wanted = resp::number(wanted).and_then(|wanted| usize::try_from(wanted).ok());
            let wanted = wanted.ok_or(NEGATIVE_LIMIT)?;
            if rest.is_empty() { Ok(wanted) } else { limit(rest) }
        }
        _ => Err(SYNTAX),
    }
}

fn limited(count: usize, limit: usize) -> i64 {
    (if limit == 0 { count } else { count.min(limit) }) as i64
}

fn sintercard(call: &mut Call<'_>) -> Result<(), Failure> {
    let (keys, options) = counted(call, 1, NO_NUMKEYS, TOO_MANY_KEYS)?;
    let limit = limit(options)?;
    let count = combined(&sets(call.store, keys)?, Combine::Inter).members().len();
    call.integer(limited(count, limit));
    Ok(())
}

#[derive(Clone, Copy)]
enum Aggregate {
    Sum,
    Min,
    Max,
}

impl Aggregate {
    /// As in Redis, infinities of both signs add up to 0.
    fn join(self, a: f64, b: f64) -> f64 {
        match self {
            Aggregate::Sum if (a + b).is_nan() => 0.0,
            Aggregate::Sum => a + b,
            Aggregate::Min => a.min(b),
            Aggregate::Max => a.max(b),
        }
    }
}

/// Members and scores of a sorted set, or of a set, whose members score 1.
struct Source<'a> {
    value: Option<&'a Value>,
    weight: f64,
}

impl Source<'_> {
    fn len(&self) -> usize {
        match self.value {
            Some(Value::Sorted(sorted)) => sorted.len(),
            Some(Value::Set(set)) => set.members().len(),
            _ => 0,
        }
    }

    fn weighted(&self, score: f64) -> f64 {
        let weighted = self.weight * score;
        if weighted.is_nan() { 0.0 } else { weighted }
    }

    fn score(&self, member: &[u8]) -> Option<f64> {
        let score = match self.value {
            Some(Value::Sorted(sorted)) => sorted.score(member),
            Some(Value::Set(set)) => set.members().contains(member).then_some(1.0),
            _ => None,
        };
        score.map(|score| self.weighted(score))
    }

    fn each(&self, mut take: impl FnMut(&[u8], f64)) {
        match self.value {
            Some(Value::Sorted(sorted)) => {
                sorted.iter().for_each(|own| take(&own.member, self.weighted(own.score)));
            }
            Some(Value::Set(set)) => {
                set.members().iter().for_each(|member| take(member, self.weighted(1.0)));
            }
            _ => {}
        }
    }
}

fn sources<'a>(store: &'a Store, keys: &[&[u8]]) -> Result<Vec<Source<'a>>, Failure> {
    let source = |key: &&[u8]| match store.get(key) {
        value @ (None | Some(Value::Sorted(_) | Value::Set(_))) => {
            Ok(Source { value, weight: 1.0 })
        }
        Some(_) => Err(WRONG_TYPE),
    };
    keys.iter().map(source).collect()
}

/// The options after the keys.
struct SortedOptions {
    weights: Option<Vec<f64>>,
    aggregate: Aggregate,
    with_scores: bool,
}

impl SortedOptions {
    fn parse(
        mut options: &[&[u8]],
        keys: usize,
        how: Combine,
        stores: bool,
    ) -> Result<SortedOptions, Failure> {
        let mut parsed =
            SortedOptions { weights: None, aggregate: Aggregate::Sum, with_scores: false };
        while let Some((name, rest)) = options.split_first() {
            options = match UpperName::of(name).bytes() {
                b"WEIGHTS" if how != Combine::Diff && rest.len() >= keys => {
                    let (weights, rest) = rest.split_at(keys);
                    let weight = |text: &&[u8]| {
                        float::double(text).ok_or(fixed(b"ERR weight value is not a float"))
                    };
                    parsed.weights = Some(weights.iter().map(weight).collect::<Result<_, _>>()?);
                    rest
                }
                b"AGGREGATE" if how != Combine::Diff => {
                    let (which, rest) = rest.split_first().ok_or(SYNTAX)?;
                    parsed.aggregate = match UpperName::of(which).bytes() {
                        b"SUM" => Aggregate::Sum,
                        b"MIN" => Aggregate::Min,
                        b"MAX" => Aggregate::Max,
                        _ => return Err(SYNTAX),
                    };
                    rest
                }
                b"WITHSCORES" if !stores => {
                    parsed.with_scores = true;
                    rest
                }
                _ => return Err(SYNTAX),
            };
        }
        Ok(parsed)
    }
}

fn combined_sorted(sources: &mut [Source<'_>], how: Combine, aggregate: Aggregate) -> Sorted {
    let mut result = Sorted::default();
    if how == Combine::Diff {
        let Some((first, others)) = sources.split_first() else { return result };
        first.each(|member, score| {
            if !others.iter().any(|other| other.score(member).is_some()) {
                result.set(member, score);
            }
        });
        return result;
    }
    // The smallest first, as in Redis, since sums of floats depend on the order.
    sources.sort_by_key(Source::len);
    if how == Combine::Union {
        for source in &*sources {
            source.each(|member, score| {
                let joined = result.score(member).map_or(score, |old| aggregate.join(old, score));
                result.set(member, joined);
            });
        }
        return result;
    }
    let Some((first, others)) = sources.split_first() else { return result };
    first.each(|member, score| {
        let joined = others.iter().try_fold(score, |joined, other| {
            other.score(member).map(|score| aggregate.join(joined, score))
        });
        if let Some(score) = joined {
            result.set(member, score);
        }
    });
    result
}

/// The keys of ZUNION and the like, and the arguments after them.
fn sorted_keys<'a>(call: &Call<'a>, at: usize) -> Result<(Args<'a>, Args<'a>), Failure> {
    let number = resp::number(call.args[at]).ok_or(NOT_AN_INTEGER)?;
    if number < 1 {
        let name = UpperName::of(call.args[0]);
        let text = format!("ERR at least 1 input key is needed for '{}' command", name.lower());
        return Err(failure(text));
    }
    let number = usize::try_from(number).map_err(|_| SYNTAX)?;
    call.args[at + 1..].split_at_checked(number).ok_or(SYNTAX)
}

fn combine_sorted(call: &mut Call<'_>, how: Combine, stores: bool) -> Result<(), Failure> {
    let (keys, options) = sorted_keys(call, if stores { 2 } else { 1 })?;
    let mut sources = sources(call.store, keys)?;
    let options = SortedOptions::parse(options, keys.len(), how, stores)?;
    for (source, weight) in sources.iter_mut().zip(options.weights.iter().flatten()) {
        source.weight = *weight;
    }
    let result = combined_sorted(&mut sources, how, options.aggregate);
    if stores {
        let count = result.len();
        let name = match how {
            Combine::Inter => "zinterstore",
            Combine::Union => "zunionstore",
            Combine::Diff => "zdiffstore",
        };
        replace(call, call.args[1], result, (Classes::SORTED, name));
        call.integer(count as i64);
        return Ok(());
    }
    let entries = result.range(0, result.len());
    zsets::write_entries(call.reply, &entries, options.with_scores, call.resp3, call.resp3);
    Ok(())
}

fn zintercard(call: &mut Call<'_>) -> Result<(), Failure> {
    let (keys, options) = sorted_keys(call, 1)?;
    let mut sources = sources(call.store, keys)?;
    let limit = limit(options)?;
    let count = combined_sorted(&mut sources, Combine::Inter, Aggregate::Sum).len();
    call.integer(limited(count, limit));
    Ok(())
}

fn zrangestore(call: &mut Call<'_>) -> Result<(), Failure> {
    let (options, bounds) = zsets::range_of_args(&call.args[3..], None, None, false)?;
    let entries = match call.store.read::<Sorted>(call.args[2])? {
        Some(set) => options.entries(&bounds, set),
        None => Vec::new(),
    };
    let mut result = Sorted::default();
    entries.iter().for_each(|own| result.set(&own.member, own.score));
    let count = result.len();
    replace(call, call.args[1], result, (Classes::SORTED, "zrangestore"));
    call.integer(count as i64);
    Ok(())
}

/// ZMPOP and BZMPOP; the number of keys stands at `at`.
pub(super) fn mpop_members(call: &mut Call<'_>, at: usize) -> Result<(), Failure> {
    let (keys, rest) = counted(call, at, NO_NUMKEYS, SYNTAX)?;
    let (end, options) = rest.split_first().ok_or(SYNTAX)?;
    let highest = match UpperName::of(end).bytes() {
        b"MIN" => false,
        b"MAX" => true,
        _ => return Err(SYNTAX),
    };
    let wanted = pop_count(options)?;
    if at == 2 {
        timeout(call.args[1])?;
    }
    for key in keys {
        if call.store.read::<Sorted>(key)?.is_none() {
            continue;
        }
        resp::array(call.reply, 2);
        resp::bulk(call.reply, key);
        let (reply, resp3) = (&mut *call.reply, call.resp3);
        call.store.write_existing(key, |set: &mut Sorted| {
            zsets::pop_entries(set, wanted, highest, true, resp3, reply);
        })?;
        zsets::raise_popped(call, highest, key);
        return Ok(());
    }
    resp::null_array(call.reply, call.resp3);
    Ok(())
}
