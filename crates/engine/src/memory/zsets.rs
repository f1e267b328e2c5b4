//! Sorted sets (Redis 7.0 `t_zset.c`). Every range, by rank, score or name, is turned into one of
//! ranks first.

use alloc::vec::Vec;
use core::cmp::Ordering;
use core::ops::Range;

use super::scan::{ScanOptions, window};
use super::sorted::{Scored, Sorted};
use super::{
    Call, Failure, Handler, NOT_A_FLOAT, OUT_OF_RANGE, SYNTAX, count, fixed, float, integer,
    random_count, random_indices, range_of,
};
use crate::events::Classes;
use crate::resp;
use crate::table::UpperName;

pub(super) const HANDLERS: [(&[u8], Handler); 23] = [
    (b"ZADD", zadd),
    (b"ZINCRBY", zincrby),
    (b"ZREM", zrem),
    (b"ZSCORE", zscore),
    (b"ZMSCORE", zmscore),
    (b"ZCARD", zcard),
    (b"ZCOUNT", |call| zcount(call, By::Score)),
    (b"ZLEXCOUNT", |call| zcount(call, By::Lex)),
    (b"ZRANK", |call| zrank(call, false)),
    (b"ZREVRANK", |call| zrank(call, true)),
    (b"ZRANGE", |call| zrange(call, None, None)),
    (b"ZREVRANGE", |call| zrange(call, Some(By::Rank), Some(true))),
    (b"ZRANGEBYSCORE", |call| zrange(call, Some(By::Score), Some(false))),
    (b"ZREVRANGEBYSCORE", |call| zrange(call, Some(By::Score), Some(true))),
    (b"ZRANGEBYLEX", |call| zrange(call, Some(By::Lex), Some(false))),
    (b"ZREVRANGEBYLEX", |call| zrange(call, Some(By::Lex), Some(true))),
    (b"ZPOPMIN", |call| zpop(call, false)),
    (b"ZPOPMAX", |call| zpop(call, true)),
    (b"ZRANDMEMBER", zrandmember),
    (b"ZREMRANGEBYRANK", |call| zremrange(call, By::Rank)),
    (b"ZREMRANGEBYSCORE", |call| zremrange(call, By::Score)),
    (b"ZREMRANGEBYLEX", |call| zremrange(call, By::Lex)),
    (b"ZSCAN", zscan),
];

const SCORE_NAN: Failure = fixed(b"ERR resulting score is not a number (NaN)");

/// Redis keeps sets up to this size in its packed encoding (`zset-max-listpack-entries`).
const PACKED_MAX: usize = 128;

/// Scores and members, as given.
type Pairs<'a> = &'a [[&'a [u8]; 2]];

/// The flags of ZADD.
#[derive(Clone, Copy, Default)]
struct AddOptions {
    nx: bool,
    xx: bool,
    gt: bool,
    lt: bool,
    changed: bool,
    increment: bool,
}

/// What ZADD did with one member.
enum Added {
    Nothing,
    New(f64),
    /// The score, and whether it is another than before.
    Present(f64, bool),
}

impl AddOptions {
    /// The options of ZADD and the arguments behind them.
    fn parse<'a>(args: &'a [&'a [u8]]) -> Result<(AddOptions, Pairs<'a>), Failure> {
        let mut o = AddOptions::default();
        let mut at = 0;
        while let Some(arg) = args.get(at) {
            match UpperName::of(arg).bytes() {
                b"NX" => o.nx = true,
                b"XX" => o.xx = true,
                b"GT" => o.gt = true,
                b"LT" => o.lt = true,
                b"CH" => o.changed = true,
                b"INCR" => o.increment = true,
                _ => break,
            }
            at += 1;
        }
        let (pairs, rest) = args[at..].as_chunks::<2>();
        if pairs.is_empty() || !rest.is_empty() {
            return Err(SYNTAX);
        }
        if o.nx && o.xx {
            return Err(fixed(b"ERR XX and NX options at the same time are not compatible"));
        }
        if o.nx && (o.gt || o.lt) || o.gt && o.lt {
            let text = b"ERR GT, LT, and/or NX options at the same time are not compatible";
            return Err(fixed(text));
        }
        if o.increment && pairs.len() > 1 {
            return Err(fixed(b"ERR INCR option supports a single increment-element pair"));
        }
        Ok((o, pairs))
    }

    /// Redis 7.0 `zsetAdd`.
    fn add(self, set: &mut Sorted, score: f64, member: &[u8]) -> Result<Added, Failure> {
        let Some(old) = set.score(member) else {
            if self.xx {
                return Ok(Added::Nothing);
            }
            set.set(member, score);
            return Ok(Added::New(score));
        };
        if self.nx {
            return Ok(Added::Nothing);
        }
        let score = if self.increment { old + score } else { score };
        if score.is_nan() {
            return Err(SCORE_NAN);
        }
        if self.lt && score >= old || self.gt && score <= old {
            return Ok(Added::Nothing);
        }
        set.set(member, score);
        Ok(Added::Present(score, score != old))
    }
}

pub(super) fn zadd(call: &mut Call<'_>) -> Result<(), Failure> {
    let (options, pairs) = AddOptions::parse(&call.args[2..])?;
    add(call, options, pairs)
}

fn zincrby(call: &mut Call<'_>) -> Result<(), Failure> {
    let options = AddOptions { increment: true, ..AddOptions::default() };
    add(call, options, &[[call.args[2], call.args[3]]])
}

fn add(call: &mut Call<'_>, options: AddOptions, pairs: Pairs<'_>) -> Result<(), Failure> {
    for [score, _] in pairs {
        float::double(score).ok_or(NOT_A_FLOAT)?;
    }
    let (mut added, mut updated, mut last) = (0, 0, None);
    let result = call.store.write(call.args[1], |set: &mut Sorted| {
        for [score, member] in pairs {
            let score = float::double(score).ok_or(NOT_A_FLOAT)?;
            match options.add(set, score, member)? {
                Added::Nothing => {}
                Added::New(score) => {
                    added += 1;
                    last = Some(score);
                }
                Added::Present(score, changed) => {
                    updated += i64::from(changed);
                    last = Some(score);
                }
            }
        }
        Ok(())
    })?;
    result?;
    if added + updated > 0 {
        let name = if options.increment { "zincr" } else { "zadd" };
        call.raise(Classes::SORTED, name, call.args[1]);
    }
    match (options.increment, last) {
        (false, _) => call.integer(if options.changed { added + updated } else { added }),
        (true, Some(score)) => resp::double(call.reply, score, call.resp3),
        (true, None) => call.null(),
    }
    Ok(())
}

fn zrem(call: &mut Call<'_>) -> Result<(), Failure> {
    let members = &call.args[2..];
    let removed = call.store.write_existing(call.args[1], |set: &mut Sorted| {
        members.iter().filter(|member| set.remove(member)).count()
    })?;
    if removed.is_some_and(|removed| removed > 0) {
        call.raise_taken(Classes::SORTED, "zrem", call.args[1]);
    }
    call.integer(removed.unwrap_or(0) as i64);
    Ok(())
}

fn score_or_null(call: &mut Call<'_>, score: Option<f64>) {
    match score {
        Some(score) => resp::double(call.reply, score, call.resp3),
        None => call.null(),
    }
}

fn zscore(call: &mut Call<'_>) -> Result<(), Failure> {
    let score = call.store.read::<Sorted>(call.args[1])?.and_then(|set| set.score(call.args[2]));
    score_or_null(call, score);
    Ok(())
}

fn zmscore(call: &mut Call<'_>) -> Result<(), Failure> {
    call.store.read::<Sorted>(call.args[1])?;
    resp::array(call.reply, call.args.len() - 2);
    for member in &call.args[2..] {
        let set = call.store.read::<Sorted>(call.args[1])?;
        let score = set.and_then(|set| set.score(member));
        score_or_null(call, score);
    }
    Ok(())
}

fn zcard(call: &mut Call<'_>) -> Result<(), Failure> {
    let length = call.store.read::<Sorted>(call.args[1])?.map_or(0, Sorted::len);
    call.integer(length as i64);
    Ok(())
}

fn zrank(call: &mut Call<'_>, reverse: bool) -> Result<(), Failure> {
    let set = call.store.read::<Sorted>(call.args[1])?;
    let rank = set.and_then(|set| {
        let rank = set.rank(call.args[2])?;
        Some(if reverse { set.len() - 1 - rank } else { rank })
    });
    match rank {
        Some(rank) => call.integer(rank as i64),
        None => call.null(),
    }
    Ok(())
}

/// By what a range is given.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum By {
    Rank,
    Score,
    Lex,
}

/// A range before it is known how long the set is.
pub(super) enum Bounds<'a> {
    Rank(i64, i64),
    Score(ScoreBound, ScoreBound),
    Lex(LexBound<'a>, LexBound<'a>),
}

#[derive(Clone, Copy)]
pub(super) struct ScoreBound {
    score: f64,
    exclusive: bool,
}

impl ScoreBound {
    fn parse(text: &[u8]) -> Option<ScoreBound> {
        let (exclusive, number) = match text {
            [b'(', number @ ..] => (true, number),
            number => (false, number),
        };
        Some(ScoreBound { score: float::bound(number)?, exclusive })
    }
}

#[derive(Clone, Copy)]
pub(super) enum LexBound<'a> {
    Lowest,
    Highest,
    At { member: &'a [u8], exclusive: bool },
}

impl<'a> LexBound<'a> {
    fn parse(text: &'a [u8]) -> Option<LexBound<'a>> {
        match text {
            b"-" => Some(LexBound::Lowest),
            b"+" => Some(LexBound::Highest),
            [b'(', member @ ..] => Some(LexBound::At { member, exclusive: true }),
            [b'[', member @ ..] => Some(LexBound::At { member, exclusive: false }),
            _ => None,
        }
    }

    /// Where a member stands relative to this bound.
    fn order(self, member: &[u8]) -> Ordering {
        match self {
            LexBound::Lowest => Ordering::Greater,
            LexBound::Highest => Ordering::Less,
            LexBound::At { member: bound, .. } => member.cmp(bound),
        }
    }

    fn excludes(self, order: Ordering) -> bool {
        order == Ordering::Equal && matches!(self, LexBound::At { exclusive: true, .. })
    }
}

impl<'a> Bounds<'a> {
    fn parse(by: By, low: &'a [u8], high: &'a [u8]) -> Result<Bounds<'a>, Failure> {
        match by {
            By::Rank => Ok(Bounds::Rank(integer(low)?, integer(high)?)),
            By::Score => match (ScoreBound::parse(low), ScoreBound::parse(high)) {
                (Some(low), Some(high)) => Ok(Bounds::Score(low, high)),
                _ => Err(fixed(b"ERR min or max is not a float")),
            },
            By::Lex => match (LexBound::parse(low), LexBound::parse(high)) {
                (Some(low), Some(high)) => Ok(Bounds::Lex(low, high)),
                _ => Err(fixed(b"ERR min or max not valid string range item")),
            },
        }
    }

    /// The ranks in this range; by rank they count from the highest if `reverse`.
    fn ranks(&self, set: &Sorted, reverse: bool) -> Range<usize> {
        let range = match *self {
            Bounds::Rank(start, stop) => {
                let range = range_of(start, stop, set.len());
                if reverse { set.len() - range.end..set.len() - range.start } else { range }
            }
            Bounds::Score(low, high) => {
                let is_below =
                    |own: &Scored| own.score < low.score || low.exclusive && own.score == low.score;
                let is_within = |own: &Scored| {
                    own.score < high.score || !high.exclusive && own.score == high.score
                };
                set.count_while(is_below)..set.count_while(is_within)
            }
            Bounds::Lex(low, high) => {
                let is_below = |own: &Scored| {
                    let order = low.order(&own.member);
                    order.is_lt() || low.excludes(order)
                };
                let is_within = |own: &Scored| {
                    let order = high.order(&own.member);
                    order.is_lt() || order.is_eq() && !high.excludes(order)
                };
                set.count_while(is_below)..set.count_while(is_within)
            }
        };
        if range.start < range.end { range } else { 0..0 }
    }
}

fn zcount(call: &mut Call<'_>, by: By) -> Result<(), Failure> {
    let bounds = Bounds::parse(by, call.args[2], call.args[3])?;
    let set = call.store.read::<Sorted>(call.args[1])?;
    let ranks = set.map_or(0..0, |set| bounds.ranks(set, false));
    call.integer(ranks.len() as i64);
    Ok(())
}

fn zremrange(call: &mut Call<'_>, by: By) -> Result<(), Failure> {
    let bounds = Bounds::parse(by, call.args[2], call.args[3])?;
    let removed = call.store.write_existing(call.args[1], |set: &mut Sorted| {
        let ranks = bounds.ranks(set, false);
        let entries = set.range(ranks.start, ranks.end);
        let members: Vec<_> = entries.iter().map(|own| own.member.clone()).collect();
        members.iter().filter(|member| set.remove(member)).count()
    })?;
    if removed.is_some_and(|removed| removed > 0) {
        let name = match by {
            By::Rank => "zremrangebyrank",
            By::Score => "zremrangebyscore",
            By::Lex => "zremrangebylex",
        };
        call.raise_taken(Classes::SORTED, name, call.args[1]);
    }
    call.integer(removed.unwrap_or(0) as i64);
    Ok(())
}

/// The options of ZRANGE and its kin (Redis 7.0 `zrangeGenericCommand`).
pub(super) struct RangeOptions {
    by: By,
    reverse: bool,
    with_scores: bool,
    offset: i64,
    /// Negative: none.
    limit: i64,
}

impl RangeOptions {
    fn parse(
        args: &[&[u8]],
        mut by: Option<By>,
        mut reverse: Option<bool>,
    ) -> Result<RangeOptions, Failure> {
        let (mut with_scores, mut offset, mut limit) = (false, 0, -1);
        let mut at = 0;
        while let Some(arg) = args.get(at) {
            match UpperName::of(arg).bytes() {
                b"WITHSCORES" => with_scores = true,
                b"LIMIT" if args.len() - at > 2 => {
                    (offset, limit) = (integer(args[at + 1])?, integer(args[at + 2])?);
                    at += 2;
                }
                b"REV" if reverse.is_none() => reverse = Some(true),
                b"BYLEX" if by.is_none() => by = Some(By::Lex),
                b"BYSCORE" if by.is_none() => by = Some(By::Score),
                _ => return Err(SYNTAX),
            }
            at += 1;
        }
        let (by, reverse) = (by.unwrap_or(By::Rank), reverse.unwrap_or(false));
        if limit != -1 && by == By::Rank {
            return Err(fixed(
                b"ERR syntax error, LIMIT is only supported in combination with either BYSCORE \
                  or BYLEX",
            ));
        }
        if with_scores && by == By::Lex {
            return Err(fixed(
                b"ERR syntax error, WITHSCORES not supported in combination with BYLEX",
            ));
        }
        Ok(RangeOptions { by, reverse, with_scores, offset, limit })
    }

    /// Cuts a range of ranks down to the limit.
    fn limited(&self, ranks: Range<usize>) -> Range<usize> {
        let Ok(offset) = usize::try_from(self.offset) else { return 0..0 };
        let skipped = offset.min(ranks.len());
        let left = ranks.len() - skipped;
        let taken = usize::try_from(self.limit).map_or(left, |limit| limit.min(left));
        if self.reverse {
            let end = ranks.end - skipped;
            return end - taken..end;
        }
        let start = ranks.start + skipped;
        start..start + taken
    }
}

/// A range and its options: `low high [option ...]`.
pub(super) fn range_of_args<'a>(
    args: &[&'a [u8]],
    by: Option<By>,
    reverse: Option<bool>,
    may_have_scores: bool,
) -> Result<(RangeOptions, Bounds<'a>), Failure> {
    let options = RangeOptions::parse(&args[2..], by, reverse)?;
    if options.with_scores && !may_have_scores {
        return Err(SYNTAX);
    }
    let swapped = options.reverse && options.by != By::Rank;
    let (low, high) = if swapped { (args[1], args[0]) } else { (args[0], args[1]) };
    let bounds = Bounds::parse(options.by, low, high)?;
    Ok((options, bounds))
}

impl RangeOptions {
    /// What is in the range, in the order that is wanted.
    pub(super) fn entries<'s>(&self, bounds: &Bounds<'_>, set: &'s Sorted) -> Vec<&'s Scored> {
        let mut ranks = bounds.ranks(set, self.reverse);
        if self.by != By::Rank {
            ranks = self.limited(ranks);
        }
        let mut entries = set.range(ranks.start, ranks.end);
        if self.reverse {
            entries.reverse();
        }
        entries
    }
}

fn zrange(call: &mut Call<'_>, by: Option<By>, reverse: Option<bool>) -> Result<(), Failure> {
    let (options, bounds) = range_of_args(&call.args[2..], by, reverse, true)?;
    let Some(set) = call.store.read::<Sorted>(call.args[1])? else {
        resp::array(call.reply, 0);
        return Ok(());
    };
    let entries = options.entries(&bounds, set);
    write_entries(call.reply, &entries, options.with_scores, call.resp3, call.resp3);
    Ok(())
}

/// Members, or members and scores: in pairs if `nested`.
pub(super) fn write_entries(
    reply: &mut Vec<u8>,
    entries: &[&Scored],
    with_scores: bool,
    nested: bool,
    resp3: bool,
) {
    let flat = with_scores && !nested;
    resp::array(reply, entries.len() * if flat { 2 } else { 1 });
    for entry in entries {
        if with_scores && nested {
            resp::array(reply, 2);
        }
        resp::bulk(reply, &entry.member);
        if with_scores {
            resp::double(reply, entry.score, resp3);
        }
    }
}

fn zpop(call: &mut Call<'_>, highest: bool) -> Result<(), Failure> {
    let wanted = match call.args {
        [_, _] => 1,
        [_, _, wanted] => count(wanted)?,
        _ => return Err(SYNTAX),
    };
    let nested = call.resp3 && call.args.len() == 3;
    let resp3 = call.resp3;
    let reply = &mut *call.reply;
    let popped = call.store.write_existing(call.args[1], |set: &mut Sorted| {
        pop_entries(set, wanted, highest, nested, resp3, reply);
    })?;
    match popped {
        None => resp::array(call.reply, 0),
        Some(()) if wanted > 0 => raise_popped(call, highest, call.args[1]),
        Some(()) => {}
    }
    Ok(())
}

/// Members were taken from an end.
pub(super) fn raise_popped(call: &mut Call<'_>, highest: bool, key: &[u8]) {
    let name = if highest { "zpopmax" } else { "zpopmin" };
    call.raise_taken(Classes::SORTED, name, key);
}

/// Removes members from one end and appends them with their scores.
pub(super) fn pop_entries(
    set: &mut Sorted,
    wanted: usize,
    highest: bool,
    nested: bool,
    resp3: bool,
    reply: &mut Vec<u8>,
) {
    let length = set.len();
    let taken = wanted.min(length);
    let ranks = if highest { length - taken..length } else { 0..taken };
    let mut entries = set.range(ranks.start, ranks.end);
    if highest {
        entries.reverse();
    }
    write_entries(reply, &entries, true, nested, resp3);
    let members: Vec<_> = entries.iter().map(|own| own.member.clone()).collect();
    for member in members {
        set.remove(&member);
    }
}

fn zrandmember(call: &mut Call<'_>) -> Result<(), Failure> {
    let mut rng = call.rng();
    let wanted = match call.args.get(2) {
        Some(wanted) => Some(random_count(wanted)?),
        None => None,
    };
    let with_scores = match call.args.get(3..).unwrap_or_default() {
        [] => false,
        [option] if option.eq_ignore_ascii_case(b"WITHSCORES") => true,
        _ => return Err(SYNTAX),
    };
    if with_scores && wanted.is_some_and(|n| n.unsigned_abs() > i64::MAX as u64 / 2) {
        return Err(OUT_OF_RANGE);
    }
    let Some(set) = call.store.read::<Sorted>(call.args[1])? else {
        match wanted {
            None => resp::null(call.reply, call.resp3),
            Some(_) => resp::array(call.reply, 0),
        }
        return Ok(());
    };
    let all = set.range(0, set.len());
    let chosen = random_indices(&mut rng, wanted.unwrap_or(-1), all.len());
    let entries: Vec<&Scored> = chosen.iter().map(|&index| all[index]).collect();
    match wanted {
        None => resp::bulk(call.reply, &entries[0].member),
        Some(_) => write_entries(call.reply, &entries, with_scores, call.resp3, call.resp3),
    }
    Ok(())
}

fn zscan(call: &mut Call<'_>) -> Result<(), Failure> {
    let cursor = super::scan::cursor(call.args[2])?;
    let Some(set) = call.store.read::<Sorted>(call.args[1])? else {
        super::scan::empty(call.reply);
        return Ok(());
    };
    let options = ScanOptions::parse(&call.args[3..], false)?;
    let window = window(cursor, options.count, set.len());
    let chosen = || {
        let wanted = |member: &[u8]| window.contains(member) && options.matches(member);
        set.iter().filter(move |own| wanted(&own.member))
    };
    window.header(call.reply, chosen().count() * 2);
    for own in chosen() {
        resp::bulk(call.reply, &own.member);
        // Scores are text here in RESP3 too; in Redis' packed encoding integers are integers.
        let is_packed_integer = set.len() <= PACKED_MAX
            && own.score.abs() < (1i64 << 62) as f64
            && own.score == own.score as i64 as f64;
        if is_packed_integer {
            let mut text = Vec::new();
            resp::decimal(&mut text, own.score as i64);
            resp::bulk(call.reply, &text);
        } else {
            resp::bulk(call.reply, resp::double_text(own.score).as_bytes());
        }
    }
    Ok(())
}
