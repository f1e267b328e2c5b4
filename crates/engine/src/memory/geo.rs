//! Places in sorted sets (Redis 7.0 `geo.c`): a member's score is the number of the cell that it
//! lies in ([`super::geohash`]).

use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;

use super::geohash::{self, LATITUDE_MAX, LONGITUDE_MAX, Place, STEPS, Search, Shape};
use super::several::replace;
use super::sorted::Sorted;
use super::zsets::zadd;
use super::{Call, Failure, Handler, NOT_A_FLOAT, SYNTAX, failure, fixed, float, integer};
use crate::events::Classes;
use crate::resp;
use crate::table::UpperName;

pub(super) const HANDLERS: [(&[u8], Handler); 10] = [
    (b"GEOADD", geoadd),
    (b"GEOPOS", geopos),
    (b"GEODIST", geodist),
    (b"GEOHASH", geohash),
    (b"GEOSEARCH", |call| search(call, Form::Search)),
    (b"GEOSEARCHSTORE", |call| search(call, Form::SearchStore)),
    (b"GEORADIUS", |call| search(call, Form::Radius { stores: true })),
    (b"GEORADIUS_RO", |call| search(call, Form::Radius { stores: false })),
    (b"GEORADIUSBYMEMBER", |call| search(call, Form::ByMember { stores: true })),
    (b"GEORADIUSBYMEMBER_RO", |call| search(call, Form::ByMember { stores: false })),
];

const NO_UNIT: Failure = fixed(b"ERR unsupported unit provided. please use M, KM, FT, MI");
const NO_MEMBER: Failure = fixed(b"ERR could not decode requested zset member");
/// The letters of a geohash.
const LETTERS: &[u8; 32] = b"0123456789bcdefghjkmnpqrstuvwxyz";
/// The number of letters of a geohash; the last one carries no information.
const LETTERS_COUNT: u32 = 11;
/// The cost of a place that was found: its distance is computed to the last bit.
const FOUND: u64 = 8;

/// Reads a number, or fails with the given error.
fn double(text: &[u8], otherwise: Failure) -> Result<f64, Failure> {
    float::double(text).ok_or(otherwise)
}

fn place(longitude: &[u8], latitude: &[u8]) -> Result<Place, Failure> {
    let longitude = double(longitude, NOT_A_FLOAT)?;
    let latitude = double(latitude, NOT_A_FLOAT)?;
    let is_there = |value: f64, max: f64| (-max..=max).contains(&value);
    if !is_there(longitude, LONGITUDE_MAX) || !is_there(latitude, LATITUDE_MAX) {
        let text = format!("ERR invalid longitude,latitude pair {longitude:.6},{latitude:.6}");
        return Err(failure(text));
    }
    Ok(Place { longitude, latitude })
}

/// A unit, in meters.
fn unit(text: &[u8]) -> Result<f64, Failure> {
    match UpperName::of(text).bytes() {
        b"M" => Ok(1.0),
        b"KM" => Ok(1000.0),
        b"FT" => Ok(0.3048),
        b"MI" => Ok(1609.34),
        _ => Err(NO_UNIT),
    }
}

fn geoadd(call: &mut Call<'_>) -> Result<(), Failure> {
    let is_option = |word: &&&[u8]| {
        [&b"NX"[..], b"XX", b"CH"].iter().any(|option| word.eq_ignore_ascii_case(option))
    };
    let options = call.args[2..].iter().take_while(is_option).count();
    let (options, members) = call.args[2..].split_at(options);
    let has = |wanted: &[u8]| options.iter().any(|option| option.eq_ignore_ascii_case(wanted));
    let (members, rest) = members.as_chunks::<3>();
    if !rest.is_empty() || has(b"NX") && has(b"XX") {
        return Err(SYNTAX);
    }
    let mut scores = Vec::with_capacity(members.len());
    for [longitude, latitude, _] in members {
        scores.push(format!("{}", geohash::score(place(longitude, latitude)?)));
    }
    let mut args: Vec<&[u8]> = call.args[..2].to_vec();
    args.extend_from_slice(options);
    for (score, [.., member]) in scores.iter().zip(members) {
        args.extend_from_slice(&[score.as_bytes(), member]);
    }
    zadd(&mut Call { store: &mut *call.store, args: &args, reply: &mut *call.reply, ..*call })
}

/// A number as C's `%.17Lf` prints it, without trailing zeros.
fn degrees(value: f64) -> String {
    let mut text = format!("{value:.17}");
    let kept = text.trim_end_matches('0').trim_end_matches('.').len();
    text.truncate(kept);
    if text == "-0" { String::from("0") } else { text }
}

fn put_place(call: &mut Call<'_>, place: Place) {
    resp::array(call.reply, 2);
    for value in [place.longitude, place.latitude] {
        let text = degrees(value);
        if call.resp3 {
            call.reply.push(b',');
            call.reply.extend_from_slice(text.as_bytes());
            call.reply.extend_from_slice(b"\r\n");
        } else {
            resp::bulk(call.reply, text.as_bytes());
        }
    }
}

/// Appends a distance with four decimals. As in Redis, ten thousand times the distance is rounded
/// to an integer, which is not quite `%.4f`.
fn put_distance(call: &mut Call<'_>, distance: f64) {
    let parts = libm::rint(distance * 10_000.0) as u64;
    resp::bulk(call.reply, format!("{}.{:04}", parts / 10_000, parts % 10_000).as_bytes());
}

/// The scores of some members of a key.
fn scores(call: &Call<'_>, members: &[&[u8]]) -> Result<Vec<Option<f64>>, Failure> {
    let set = call.store.read::<Sorted>(call.args[1])?;
    Ok(members.iter().map(|member| set.and_then(|set| set.score(member))).collect())
}

fn geopos(call: &mut Call<'_>) -> Result<(), Failure> {
    let scores = scores(call, &call.args[2..])?;
    resp::array(call.reply, scores.len());
    for score in scores {
        match score {
            Some(score) => put_place(call, geohash::place(score)),
            None => resp::null_array(call.reply, call.resp3),
        }
    }
    Ok(())
}

fn geohash(call: &mut Call<'_>) -> Result<(), Failure> {
    let scores = scores(call, &call.args[2..])?;
    resp::array(call.reply, scores.len());
    for score in scores {
        let Some(score) = score else {
            call.null();
            continue;
        };
        // A standard geohash goes to the poles.
        let bits = geohash::cell(geohash::place(score), 90.0, STEPS);
        let letter = |at: u32| match 52u32.checked_sub(5 * (at + 1)) {
            Some(shift) => LETTERS[(bits >> shift & 31) as usize],
            None => LETTERS[0],
        };
        let letters: Vec<u8> = (0..LETTERS_COUNT).map(letter).collect();
        resp::bulk(call.reply, &letters);
    }
    Ok(())
}

fn geodist(call: &mut Call<'_>) -> Result<(), Failure> {
    let unit = match call.args[4..] {
        [] => 1.0,
        [text] => unit(text)?,
        _ => return Err(SYNTAX),
    };
    match scores(call, &call.args[2..4])?[..] {
        [Some(from), Some(to)] => {
            let meters = geohash::distance(geohash::place(from), geohash::place(to));
            put_distance(call, meters / unit);
        }
        _ => call.null(),
    }
    Ok(())
}

/// The command.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    Search,
    SearchStore,
    Radius { stores: bool },
    ByMember { stores: bool },
}

impl Form {
    /// The index of the first option among the arguments.
    fn options_at(self) -> usize {
        match self {
            Form::Search => 2,
            Form::SearchStore => 3,
            Form::Radius { .. } => 6,
            Form::ByMember { .. } => 5,
        }
    }

    fn is_search(self) -> bool {
        matches!(self, Form::Search | Form::SearchStore)
    }

    fn stores(self) -> bool {
        matches!(self, Form::Radius { stores: true } | Form::ByMember { stores: true })
    }
}

/// The arguments of a search.
#[derive(Default)]
struct Wanted<'a> {
    center: Option<Place>,
    /// Whether a center was given; `center` stays empty if the key does not exist.
    has_center: bool,
    shape: Option<(Shape, f64)>,
    with_distance: bool,
    with_score: bool,
    with_place: bool,
    /// Nearest first, or farthest first; `None`: in no order.
    ascending: Option<bool>,
    /// The largest number of results; 0: all.
    count: usize,
    any: bool,
    store: Option<&'a [u8]>,
    stores_distance: bool,
}

fn circle(radius: &[u8], of: &[u8]) -> Result<(Shape, f64), Failure> {
    let radius = double(radius, fixed(b"ERR need numeric radius"))?;
    if radius < 0.0 {
        return Err(fixed(b"ERR radius cannot be negative"));
    }
    Ok((Shape::Circle { radius }, unit(of)?))
}

fn rectangle(width: &[u8], height: &[u8], of: &[u8]) -> Result<(Shape, f64), Failure> {
    let width = double(width, fixed(b"ERR need numeric width"))?;
    let height = double(height, fixed(b"ERR need numeric height"))?;
    if width < 0.0 || height < 0.0 {
        return Err(fixed(b"ERR height or width cannot be negative"));
    }
    Ok((Shape::Box { width, height }, unit(of)?))
}

fn count(text: &[u8]) -> Result<usize, Failure> {
    match integer(text)? {
        count if count <= 0 => Err(fixed(b"ERR COUNT must be > 0")),
        count => Ok(usize::try_from(count).unwrap_or(usize::MAX)),
    }
}

/// The place of a member; `None` if the key does not exist.
fn place_of(set: Option<&Sorted>, member: &[u8]) -> Result<Option<Place>, Failure> {
    let Some(set) = set else { return Ok(None) };
    set.score(member).map(|score| Some(geohash::place(score))).ok_or(NO_MEMBER)
}

impl<'a> Wanted<'a> {
    fn parse(form: Form, args: &[&'a [u8]], set: Option<&Sorted>) -> Result<Self, Failure> {
        let mut wanted = Wanted::default();
        match form {
            Form::Radius { .. } => {
                wanted.center = Some(place(args[2], args[3])?);
                wanted.shape = Some(circle(args[4], args[5])?);
            }
            Form::ByMember { .. } => {
                wanted.center = place_of(set, args[2])?;
                // As in Redis, the radius is not checked if the key does not exist.
                if set.is_some() {
                    wanted.shape = Some(circle(args[3], args[4])?);
                }
            }
            Form::Search => {}
            Form::SearchStore => wanted.store = Some(args[1]),
        }
        let mut options = &args[form.options_at()..];
        while let Some((name, rest)) = options.split_first() {
            options = wanted.option(form, UpperName::of(name).bytes(), rest, set)?;
        }
        if wanted.store.is_some()
            && (wanted.with_distance || wanted.with_score || wanted.with_place)
        {
            let which = match form {
                Form::SearchStore => "GEOSEARCHSTORE",
                _ => "STORE option in GEORADIUS",
            };
            return Err(failure(format!(
                "ERR {which} is not compatible with WITHDIST, WITHHASH and WITHCOORD options"
            )));
        }
        let exactly_one = |what: &[u8]| {
            failure([b"ERR exactly one of ", what, b" can be specified for ", args[0]].concat())
        };
        if form.is_search() && !wanted.has_center {
            return Err(exactly_one(b"FROMMEMBER or FROMLONLAT"));
        }
        if form.is_search() && wanted.shape.is_none() {
            return Err(exactly_one(b"BYRADIUS and BYBOX"));
        }
        if wanted.any && wanted.count == 0 {
            return Err(fixed(b"ERR the ANY argument requires COUNT argument"));
        }
        Ok(wanted)
    }

    /// Reads an option. Returns the arguments after it.
    fn option<'b>(
        &mut self,
        form: Form,
        name: &[u8],
        rest: &'b [&'a [u8]],
        set: Option<&Sorted>,
    ) -> Result<&'b [&'a [u8]], Failure> {
        let is_search = form.is_search();
        match (name, rest) {
            (b"WITHDIST", _) => self.with_distance = true,
            (b"WITHHASH", _) => self.with_score = true,
            (b"WITHCOORD", _) => self.with_place = true,
            (b"ANY", _) => self.any = true,
            (b"ASC", _) => self.ascending = Some(true),
            (b"DESC", _) => self.ascending = Some(false),
            (b"COUNT", [number, rest @ ..]) => {
                self.count = count(number)?;
                return Ok(rest);
            }
            (b"STORE" | b"STOREDIST", [key, rest @ ..]) if form.stores() => {
                (self.store, self.stores_distance) = (Some(*key), name == b"STOREDIST");
                return Ok(rest);
            }
            (b"STOREDIST", _) if form == Form::SearchStore => self.stores_distance = true,
            (b"FROMMEMBER", [member, rest @ ..]) if is_search && !self.has_center => {
                (self.center, self.has_center) = (place_of(set, member)?, true);
                return Ok(rest);
            }
            (b"FROMLONLAT", [longitude, latitude, rest @ ..]) if is_search && !self.has_center => {
                (self.center, self.has_center) = (Some(place(longitude, latitude)?), true);
                return Ok(rest);
            }
            (b"BYRADIUS", [radius, unit, rest @ ..]) if is_search && self.shape.is_none() => {
                self.shape = Some(circle(radius, unit)?);
                return Ok(rest);
            }
            (b"BYBOX", [width, height, unit, rest @ ..]) if is_search && self.shape.is_none() => {
                self.shape = Some(rectangle(width, height, unit)?);
                return Ok(rest);
            }
            _ => return Err(SYNTAX),
        }
        Ok(rest)
    }
}

/// A member that a search found.
struct Found {
    member: Arc<[u8]>,
    score: f64,
    /// The distance from the center, in units of the search.
    distance: f64,
}

/// The members within the shape, cell by cell; at most `limit` of them, unless that is 0.
fn find(
    call: &Call<'_>,
    set: &Sorted,
    search: &Search,
    limit: usize,
) -> Result<Vec<Found>, Failure> {
    let mut all = Vec::new();
    for scores in search.scores() {
        if limit > 0 && all.len() >= limit {
            break;
        }
        let rank = |score: u64| set.count_while(|own| own.score < score as f64);
        let ranks = rank(scores.start)..rank(scores.end);
        call.store.work.spend(ranks.len() as u64)?;
        let before = all.len();
        for own in set.range(ranks.start, ranks.end) {
            if limit > 0 && all.len() >= limit {
                break;
            }
            if let Some(meters) = search.within(geohash::place(own.score)) {
                let (member, distance) = (own.member.clone(), meters / search.unit);
                all.push(Found { member, score: own.score, distance });
            }
        }
        call.store.work.spend(FOUND * (all.len() - before) as u64)?;
    }
    Ok(all)
}

fn search(call: &mut Call<'_>, form: Form) -> Result<(), Failure> {
    let source = call.args[if form == Form::SearchStore { 2 } else { 1 }];
    let set = call.store.read::<Sorted>(source)?;
    let wanted = Wanted::parse(form, call.args, set)?;
    let mut found = match (set, wanted.center, wanted.shape) {
        (Some(set), Some(center), Some((shape, unit))) => {
            let limit = if wanted.any { wanted.count } else { 0 };
            find(call, set, &Search { center, shape, unit }, limit)?
        }
        _ => Vec::new(),
    };
    // With a count and no order, the nearest are returned, unless ANY is given.
    let nearest = (wanted.count > 0 && !wanted.any).then_some(true);
    if let Some(ascending) = wanted.ascending.or(nearest) {
        found.sort_by(|a, b| {
            let order = a.distance.total_cmp(&b.distance);
            if ascending { order } else { order.reverse() }
        });
    }
    if wanted.count > 0 {
        found.truncate(wanted.count);
    }
    match wanted.store {
        Some(key) => {
            let mut result = Sorted::default();
            for own in &found {
                let score = if wanted.stores_distance { own.distance } else { own.score };
                result.set(&own.member, score);
            }
            let name = if form.is_search() { "geosearchstore" } else { "georadiusstore" };
            replace(call, key, result, (Classes::SORTED, name));
            call.integer(found.len() as i64);
        }
        None => reply(call, &wanted, &found),
    }
    Ok(())
}

fn reply(call: &mut Call<'_>, wanted: &Wanted<'_>, found: &[Found]) {
    let more = [wanted.with_distance, wanted.with_score, wanted.with_place];
    let more = more.into_iter().filter(|with| *with).count();
    resp::array(call.reply, found.len());
    for own in found {
        if more > 0 {
            resp::array(call.reply, more + 1);
        }
        resp::bulk(call.reply, &own.member);
        if wanted.with_distance {
            put_distance(call, own.distance);
        }
        if wanted.with_score {
            call.integer(own.score as i64);
        }
        if wanted.with_place {
            put_place(call, geohash::place(own.score));
        }
    }
}
