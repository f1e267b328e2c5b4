//! From a history to a verdict: the history is split by key, and each key is searched by itself.

use std::collections::{BTreeMap, BTreeSet};
use std::io::BufRead;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::command::{Command, parse};
use crate::minimise::minimise;
use crate::model::{Calm, Moment, PREDICTED_ERRORS, State, Value};
use crate::op::Op;
use crate::plan::Plan;
use crate::report::{Expiries, GaveUp, Report, Verdict, Violation};
use crate::search::{Budget, Outcome, Search};
use crate::start::{Tries, changes, latest_start, until};
use crate::{History, HistoryError, Operation, Reply};

/// The number of configurations that a search visits without progress before a proof of a violation
/// is tried, and again between such tries.
const STALL_BEFORE_PROOF: usize = 1 << 16;
const STALL_MAX: usize = 1 << 20;
/// The number of violations that are minimised. Further ones are reported as they are found.
const MINIMISED_MAX: usize = 3;

/// The largest number of key counts (DBSIZE) of a history that are checked: each takes a search of
/// every key.
const COUNTS_MAX: usize = 256;
/// The budget of each of these searches, beside a multiple of what the search of the key took; and
/// the largest number of configurations that all of them visit.
const COUNT_BUDGET: Budget =
    Budget { configs_max: 1_000_000, memory_bytes_max: 1 << 28, time_max: None };
const COUNT_TIMES: usize = 4;
const COUNT_EFFORT_MAX: usize = 20_000_000;

/// The precision of expiry, and the limits of the search.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// The time in ns after its deadline by which a key must be gone for operations called later:
    /// the deadline is decided when the write is ordered, and the deletion is a write of its own
    /// (trap T12).
    pub grace_ns: u64,
    /// A period at the end of the history in which a smaller grace is enough.
    pub calm: Option<Calm>,
    /// The time in ns by which a key may vanish before its time to live has passed since the call:
    /// deadlines are in whole ms.
    pub early_ns: u64,
    /// The largest number of configurations visited for one key.
    pub configs_max: usize,
    /// The approximate limit of the memory in bytes that the search of one key takes.
    pub memory_bytes_max: usize,
    /// The longest search of one key. With `None` there is no limit, and the verdict depends on
    /// nothing but the history.
    pub time_max: Option<Duration>,
    /// The number of threads, each of which searches one key at a time.
    pub threads: usize,
    /// Whether to look for a small counterexample of a violation.
    pub minimise: bool,
    /// The percentage of operations that must be judged, and at least one of them. With fewer the
    /// verdict is [`Verdict::TooLittle`]. With 0, an empty history is ok.
    pub judged_percent_min: usize,
}

/// The value of [`Options::judged_percent_min`] for `concord check` and `concord torture`.
pub const JUDGED_PERCENT_MIN: usize = 10;

/// Whether too few of the operations were judged to conclude anything.
#[must_use]
pub fn is_too_little(judged: usize, issued: usize) -> bool {
    judged == 0 || judged.saturating_mul(100) < issued.saturating_mul(JUDGED_PERCENT_MIN)
}

impl Default for Options {
    fn default() -> Options {
        Options {
            grace_ns: 5_000_000_000,
            calm: None,
            early_ns: 1_000_000,
            configs_max: 20_000_000,
            memory_bytes_max: 1 << 30,
            time_max: Some(Duration::from_secs(60)),
            threads: 1,
            minimise: true,
            judged_percent_min: 0,
        }
    }
}

/// Reads a history (JSON Lines, see the crate's docs) and checks it.
///
/// # Errors
/// The first line that is not an operation or has no model, with its number.
pub fn check_file(reader: impl BufRead, options: &Options) -> Result<Report, HistoryError> {
    check(&History::read(reader)?.operations, options)
}

/// Checks operations, in any order. The verdict is [`Verdict::Ok`] only if an order was found for
/// every key.
///
/// # Errors
/// The first operation that has no model, or whose times or reply are impossible. Its `line` is its
/// position in the slice, from 1.
pub fn check(operations: &[Operation], options: &Options) -> Result<Report, HistoryError> {
    let started = Instant::now();
    let split = Split::new(operations, options)?;
    let keys: Vec<&[u8]> = split.keys.keys().copied().collect();
    let mut report = Report {
        verdict: Verdict::Ok,
        operations: operations.len(),
        keys: keys.len(),
        unknown: split.unknown,
        refused: split.refused,
        judged: operations.len() - split.unknown - split.refused,
        expiries: Expiries::default(),
        configurations: 0,
        elapsed_ms: 0,
        violations: Vec::new(),
        gave_up: Vec::new(),
    };
    let mut answers = in_parallel(options.threads.clamp(1, keys.len().max(1)), keys.len(), |at| {
        check_key(keys[at], &split, operations, options)
    });
    answers.sort_by_key(|answer| answer.0);
    let mut effort = Effort { left: COUNT_EFFORT_MAX, found: BTreeMap::new() };
    for (at, answer) in answers {
        effort.found.insert(keys[at], (answer.configurations, answer.order));
        report.configurations += answer.configurations;
        report.expiries.add(answer.expiries);
        report.violations.extend(answer.violation);
        report.gave_up.extend(answer.gave_up);
    }
    if report.violations.is_empty() {
        named_twice(&split, operations, &mut report);
        wrong_counts(&split, operations, &mut effort, &mut report);
    }
    if options.minimise {
        for violation in report.violations.iter_mut().take(MINIMISED_MAX) {
            let ops = split.ops(&violation.key);
            minimise(violation, &ops, operations);
        }
    }
    report.verdict = match (report.violations.is_empty(), report.gave_up.is_empty()) {
        (false, _) => Verdict::Violation,
        (true, false) => Verdict::Unknown,
        (true, true) if options.judged_percent_min > 0 && report.is_too_little() => {
            Verdict::TooLittle
        }
        (true, true) => Verdict::Ok,
    };
    report.elapsed_ms = u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX);
    Ok(report)
}

/// The result of the search of one key.
struct Answer {
    configurations: usize,
    /// The order that was found, where the history counts keys.
    order: Vec<Existence>,
    expiries: Expiries,
    violation: Option<Violation>,
    gave_up: Option<GaveUp>,
}

/// Whether the key exists after an operation of an order that was found.
struct Existence {
    /// The times of the operation.
    call_ns: u64,
    return_ns: u64,
    exists: bool,
    /// The time after which the key is gone.
    latest_ns: u64,
}

/// Whether the key exists, or is missing, at some point of the order that an operation of this time
/// may be at.
fn is_seen_in(order: &[Existence], moment: &Moment, exists: bool) -> bool {
    let first = order.iter().rposition(|own| own.return_ns < moment.call_ns);
    let last = order.iter().position(|own| own.call_ns > moment.return_ns).unwrap_or(order.len());
    // Before the first operation there is no key.
    if first.is_none() && !exists {
        return true;
    }
    let range = first.unwrap_or(0)..last;
    let mut points = order.get(range).unwrap_or(&[]).iter();
    points.any(|own| own.exists == exists && (!exists || moment.call_ns <= own.latest_ns))
}

/// Counts the times to live that the operations of a key set, and those that could be judged: the
/// next operation that looked at the key was called when the key had to be gone, and no write had
/// come in between.
fn expiries(ops: &[Op<'_>]) -> Expiries {
    let mut expiries = Expiries::default();
    if !ops.iter().any(Op::has_lifetime) {
        return expiries;
    }
    let mut ops: Vec<&Op<'_>> = ops.iter().collect();
    ops.sort_by_key(|op| (op.moment.call_ns, op.source));
    for (at, op) in ops.iter().enumerate() {
        let Some(ttl_ms) = op.lifetime_ms().filter(|_| op.reply.is_some() && !op.inert) else {
            continue;
        };
        expiries.set += 1;
        let latest_ns = op.moment.expiry(ttl_ms).latest_ns;
        let mut next = ops[at + 1..].iter().copied().filter(|next| next.reply.is_some());
        let looks = |next: &Op<'_>| next.moment.call_ns > latest_ns && !next.overwrites;
        let decisive = next.find(|next| changes(next) || looks(next));
        expiries.judged += usize::from(decisive.is_some_and(looks));
    }
    expiries
}

fn check_key(key: &[u8], split: &Split<'_>, operations: &[Operation], options: &Options) -> Answer {
    let budget = Budget {
        configs_max: options.configs_max,
        memory_bytes_max: options.memory_bytes_max,
        time_max: options.time_max,
    };
    let ops = split.ops(key);
    let expiries = expiries(&ops);
    let mut answer =
        Answer { configurations: 0, order: Vec::new(), expiries, violation: None, gave_up: None };
    let gave_up =
        |why: &str, suspect| Some(GaveUp { key: key.to_vec(), why: why.to_owned(), suspect });
    let plan = match Plan::new(ops) {
        Ok(plan) => plan,
        Err(why) => return Answer { gave_up: gave_up(why, None), ..answer },
    };
    let mut search = Search::new(&plan, budget);
    let mut outcome = search.run(STALL_BEFORE_PROOF);
    if outcome == Outcome::Stuck {
        // A violation is likely, and most are proven by the last operations alone.
        let end_ns = plan.done[search.furthest_prefix()].until_ns;
        let near = until(&split.ops(key), end_ns);
        if latest_start(&near, &mut Tries::new()).is_some() {
            outcome = Outcome::Violation;
        } else {
            outcome = search.run(STALL_MAX);
        }
    }
    if outcome == Outcome::Stuck {
        outcome = search.run_thoroughly();
    }
    answer.configurations = search.configs();
    let furthest = || Some(Violation::new(key, &plan, &search.furthest(), operations));
    match outcome {
        Outcome::Linearizable if !split.sizes.is_empty() => {
            let existence = |(op, state): (u32, &State)| Existence {
                call_ns: plan.done[op as usize].moment.call_ns,
                return_ns: plan.done[op as usize].moment.return_ns,
                exists: state.value != Value::Missing,
                latest_ns: state.expiry.map_or(u64::MAX, |expiry| expiry.latest_ns),
            };
            answer.order = search.states_along().into_iter().map(existence).collect();
        }
        Outcome::Linearizable => {}
        Outcome::Stuck => answer.gave_up = gave_up("effort", furthest()),
        Outcome::GaveUp(why) => answer.gave_up = gave_up(why, furthest()),
        Outcome::Violation => answer.violation = furthest(),
    }
    answer
}

/// Runs `work` for `0..count` on `threads` threads. The results come in any order.
fn in_parallel<T: Send>(
    threads: usize,
    count: usize,
    work: impl Fn(usize) -> T + Sync,
) -> Vec<(usize, T)> {
    if threads <= 1 {
        return (0..count).map(|at| (at, work(at))).collect();
    }
    let next = AtomicUsize::new(0);
    let answers = Mutex::new(Vec::with_capacity(count));
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let at = next.fetch_add(1, Ordering::Relaxed);
                    if at >= count {
                        return;
                    }
                    let answer = work(at);
                    answers.lock().unwrap_or_else(PoisonError::into_inner).push((at, answer));
                }
            });
        }
    });
    answers.into_inner().unwrap_or_else(PoisonError::into_inner)
}

/// The keys that a KEYS or a call of SCAN named.
struct Named<'h> {
    keys: BTreeSet<&'h [u8]>,
    /// Whether a key that it does not name did not exist. A part of a scan says nothing of other
    /// keys.
    is_whole: bool,
    /// A key that KEYS named twice. SCAN may do so.
    twice: Option<&'h [u8]>,
}

impl<'h> Named<'h> {
    fn new(cmd: &[Vec<u8>], reply: &'h Reply) -> Option<Named<'h>> {
        let Reply::Array(items) = reply else { return None };
        let is_scan = cmd.first()?.eq_ignore_ascii_case(b"SCAN");
        let (items, is_whole) = match items.as_slice() {
            [Reply::Bulk(next), Reply::Array(items)] if is_scan => {
                (items, next == b"0" && cmd.get(1)? == b"0")
            }
            _ if is_scan => return None,
            _ => (items, true),
        };
        let key = |item: &'h Reply| match item {
            Reply::Bulk(key) => Some(key.as_slice()),
            _ => None,
        };
        let items = items.iter().map(key).collect::<Option<Vec<&[u8]>>>()?;
        let mut keys = BTreeSet::new();
        let twice = items.into_iter().filter(|key| !keys.insert(*key)).last();
        Some(Named { keys, is_whole, twice: twice.filter(|_| !is_scan) })
    }
}

/// Reports keys that KEYS named twice.
fn named_twice(split: &Split<'_>, operations: &[Operation], report: &mut Report) {
    for (source, named) in &split.named {
        let Some(key) = named.twice else { continue };
        report.violations.push(Violation::of_keys(operations[*source as usize].clone(), key));
    }
}

/// Reports counts of keys that no moment between their call and return explains. Each key may have
/// existed then or not, independently of the others: any sum between the least and the most is
/// accepted.
fn wrong_counts<'h>(
    split: &Split<'h>,
    operations: &[Operation],
    effort: &mut Effort<'h>,
    report: &mut Report,
) {
    for (at, source) in split.sizes.iter().enumerate() {
        let operation = &operations[*source as usize];
        let Some(reply) = &operation.reply else { continue };
        let gave_up = |why: &str| GaveUp { key: Vec::new(), why: why.to_owned(), suspect: None };
        if at >= COUNTS_MAX {
            return report.gave_up.push(gave_up("counts of keys that are checked"));
        }
        let may_be = match reply {
            Reply::Unseen => Some(true),
            Reply::Int(count) => may_be_count(split, *source, *count, effort),
            _ => Some(false),
        };
        match may_be {
            Some(true) => continue,
            Some(false) => {}
            None => {
                report.gave_up.push(gave_up("effort to find out which keys a count of them saw"));
                continue;
            }
        }
        let (mut least, mut most) = (0, 0);
        for key in split.keys.keys() {
            let mut may = |exists| may_exist(split, key, *source, exists, effort) != Some(false);
            least += i64::from(!may(false));
            most += i64::from(may(true));
        }
        report.violations.push(Violation::of_count(operation.clone(), least, most));
    }
}

/// Whether `count` keys may have existed for an operation of that time: at least that many may
/// have, and all the others may not have. `None` if it could not be decided.
fn may_be_count<'h>(
    split: &Split<'h>,
    source: u32,
    count: i64,
    effort: &mut Effort<'h>,
) -> Option<bool> {
    let Ok(count) = usize::try_from(count) else { return Some(false) };
    let Some(others) = split.keys.len().checked_sub(count) else { return Some(false) };
    let mut are_enough = |needed: usize, exists: bool| {
        let (mut sure, mut open) = (0, 0);
        for key in split.keys.keys() {
            if sure >= needed {
                break;
            }
            match may_exist(split, key, source, exists, effort) {
                Some(true) => sure += 1,
                Some(false) => {}
                None => open += 1,
            }
        }
        match (sure >= needed, sure + open >= needed) {
            (true, _) => Some(true),
            (false, true) => None,
            (false, false) => Some(false),
        }
    };
    match (are_enough(count, true), are_enough(others, false)) {
        (Some(false), _) | (_, Some(false)) => Some(false),
        (Some(true), Some(true)) => Some(true),
        (None, _) | (_, None) => None,
    }
}

/// What is known, and what may be searched, to find out which keys a count of them saw.
struct Effort<'h> {
    /// The configurations that may be visited yet.
    left: usize,
    /// What the search of each key took, and the order that it found.
    found: BTreeMap<&'h [u8], (usize, Vec<Existence>)>,
}

/// Whether `key` may have existed (`exists`) or been missing for an operation of that time. `None`
/// if it could not be decided within the budget.
fn may_exist(
    split: &Split<'_>,
    key: &[u8],
    source: u32,
    exists: bool,
    effort: &mut Effort<'_>,
) -> Option<bool> {
    let seen = split.exists(source, exists);
    let found = effort.found.get(key);
    if found.is_some_and(|(_, order)| is_seen_in(order, &seen.moment, exists)) {
        return Some(true);
    }
    let plan = Plan::new(split.ops(key).into_iter().chain([seen])).ok()?;
    let taken = found.map_or(0, |(taken, _)| *taken);
    let configs_max = (COUNT_BUDGET.configs_max + COUNT_TIMES * taken).min(effort.left);
    let mut search = Search::new(&plan, Budget { configs_max, ..COUNT_BUDGET });
    let outcome = search.run_thoroughly();
    effort.left = effort.left.saturating_sub(search.configs());
    match outcome {
        Outcome::Linearizable => Some(true),
        Outcome::Violation => Some(false),
        Outcome::Stuck | Outcome::GaveUp(_) => None,
    }
}

/// The history by key (linearizability is local: Horn and Kroening, "Faster linearizability
/// checking via P-compositionality", 2015).
struct Split<'h> {
    operations: &'h [Operation],
    options: Options,
    /// For each key, indices into the history.
    keys: BTreeMap<&'h [u8], Vec<u32>>,
    /// FLUSHALL, KEYS and the like, which are part of every key's history.
    all_keys: Vec<u32>,
    /// The keys that each KEYS or SCAN named.
    named: BTreeMap<u32, Named<'h>>,
    /// Operations that count keys: DBSIZE.
    sizes: Vec<u32>,
    unknown: usize,
    refused: usize,
}

impl<'h> Split<'h> {
    fn new(operations: &'h [Operation], options: &Options) -> Result<Split<'h>, HistoryError> {
        let mut split = Split {
            operations,
            options: *options,
            keys: BTreeMap::new(),
            all_keys: Vec::new(),
            named: BTreeMap::new(),
            sizes: Vec::new(),
            unknown: 0,
            refused: 0,
        };
        for (index, operation) in operations.iter().enumerate() {
            let fail = |message: String| HistoryError { line: index + 1, message };
            let source = u32::try_from(index).map_err(|_| fail("too many operations".into()))?;
            match (&operation.reply, operation.return_ns) {
                (Some(_), None) => return Err(fail("a reply without a return time".into())),
                (None, Some(_)) => return Err(fail("a return time without a reply".into())),
                (None, None) => split.unknown += 1,
                (Some(_), Some(at)) if at < operation.call_ns => {
                    return Err(fail("it returned before it was called".into()));
                }
                (Some(Reply::Error(text)), Some(_))
                    if !PREDICTED_ERRORS.iter().any(|prefix| text.starts_with(prefix)) =>
                {
                    split.refused += 1;
                    continue;
                }
                (Some(_), Some(_)) => {}
            }
            match parse(&operation.cmd).map_err(fail)? {
                (Some(key), _) => split.keys.entry(key).or_default().push(source),
                (None, Command::Dbsize) => split.sizes.push(source),
                (None, Command::Keys) => {
                    let Some(reply) = operation.reply.as_ref().filter(|r| **r != Reply::Unseen)
                    else {
                        continue;
                    };
                    let named = Named::new(&operation.cmd, reply)
                        .ok_or_else(|| fail("a reply that names no keys".into()))?;
                    // A key that no operation wrote is not ordered relative to it.
                    for key in &named.keys {
                        split.keys.entry(key).or_default();
                    }
                    split.named.insert(source, named);
                    split.all_keys.push(source);
                }
                (None, _) => split.all_keys.push(source),
            }
        }
        Ok(split)
    }

    /// The operations on `key`, including those on all keys.
    fn ops(&self, key: &[u8]) -> Vec<Op<'h>> {
        let own = self.keys.get(key).map_or(&[][..], Vec::as_slice);
        let own = own.iter().filter_map(|source| self.op(*source));
        let all = self.all_keys.iter().filter_map(|source| self.op_of_all(*source, key));
        let mut ops: Vec<Op<'h>> = own.chain(all).collect();
        self.keep_order(&mut ops);
        ops
    }

    /// Notes for each operation of a pipeline the earlier ones that it must not overtake.
    fn keep_order(&self, ops: &mut [Op<'h>]) {
        let place = |(index, op): (usize, &Op<'_>)| {
            let Operation { client, ordinal, .. } = &self.operations[op.source as usize];
            let is_completed = op.moment.return_ns < u64::MAX;
            ordinal.filter(|_| is_completed).map(|ordinal| (*client, ordinal, index))
        };
        let mut placed: Vec<(u64, u64, usize)> = ops.iter().enumerate().filter_map(place).collect();
        placed.sort_unstable();
        for (at, (client, _, index)) in placed.iter().enumerate() {
            let op = &ops[*index];
            let is_under_way = |before: &Op<'_>| before.moment.return_ns >= op.moment.call_ns;
            let earlier =
                placed[..at].iter().rev().map(|(client, _, index)| (client, &ops[*index]));
            let earlier = earlier.take_while(|(of, before)| *of == client && is_under_way(before));
            let ordered = earlier.filter(|(_, before)| {
                before.moment.call_ns <= op.moment.call_ns
                    && !(before.command.is_read() && op.command.is_read())
            });
            let after = ordered.map(|(_, before)| before.source).collect();
            ops[*index].after = after;
        }
    }

    /// The effect on `key` of an operation on all keys, if it has one.
    fn op_of_all(&self, source: u32, key: &[u8]) -> Option<Op<'h>> {
        match self.named.get(&source) {
            None => self.op(source),
            Some(named) if named.keys.contains(key) => Some(self.exists(source, true)),
            Some(named) if named.is_whole => Some(self.exists(source, false)),
            Some(_) => None,
        }
    }

    /// An operation that sees whether a key exists.
    fn exists(&self, source: u32, exists: bool) -> Op<'h> {
        let reply = if exists { &Reply::Int(1) } else { &Reply::Int(0) };
        Op::new(source, Command::Exists, self.moment(source), Some(reply))
    }

    fn moment(&self, source: u32) -> Moment {
        let operation = &self.operations[source as usize];
        Moment {
            call_ns: operation.call_ns,
            return_ns: operation.return_ns.unwrap_or(u64::MAX),
            early_ns: self.options.early_ns,
            grace_ns: self.options.grace_ns,
            calm: self.options.calm,
        }
    }

    fn op(&self, source: u32) -> Option<Op<'h>> {
        let operation = &self.operations[source as usize];
        let (_, command): (_, Command) = parse(&operation.cmd).ok()?;
        // An executed operation of unseen reply counts as an open operation that was seen.
        let reply = operation.reply.as_ref().filter(|reply| **reply != Reply::Unseen);
        Some(Op::new(source, command, self.moment(source), reply))
    }
}
