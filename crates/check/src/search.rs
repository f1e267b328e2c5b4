//! The search for an order of the operations of one key.
//!
//! Wing and Gong's search ("Testing and verifying concurrent objects", 1993) with Lowe's
//! memoisation ("Testing for linearizability", 2017), made fit for long histories with operations
//! that stay open for ever:
//!
//! - Completed operations are numbered by their return. What is linearized is then a prefix of the
//!   numbers and a subset of the few operations that were pending when the first missing one
//!   returned: a number and a small bitmap ([`Plan`]). Open operations have a bitmap of their own.
//! - An operation that fits and changes nothing is taken at once, without an alternative: any order
//!   that takes it later also works with it taken now.
//! - An open operation, or an expiry, is only taken right before a completed operation that needs
//!   it: one that would not be answered so without it, or would not lead to the same state with the
//!   open operation after it instead. Nothing is lost: from any order, drop the open operations
//!   without which it still works and push the others back until they are needed.
//! - A configuration is skipped if it was visited before with a subset of its open operations used:
//!   open operations are never an obligation.
//! - Configurations and states are compared in full; hashes only find candidates.

use std::hash::{Hash, Hasher};
use std::time::{Duration, Instant};

use hashbrown::{HashMap, HashTable};
use rustc_hash::{FxBuildHasher, FxHasher};

use crate::Reply;
use crate::command::{Command, Condition};
use crate::model::{Next, State, Value, Want, step};
use crate::op::Op;
use crate::plan::Plan;

/// Index of a state in the table of states.
type StateId = u32;
/// The key is missing, as every key is at first.
const MISSING: StateId = 0;
/// No operation, no configuration.
pub(crate) const NONE: u32 = u32::MAX;
/// Time and memory are checked once in this many steps.
const BUDGET_STEPS: u32 = 1024;
/// The largest number of states to which open operations may lead from one configuration.
const LINKS_MAX: usize = 1 << 16;
/// The next pass makes more effort from this many operations before the place where a pass got
/// stuck.
const DEEPER_BEFORE: usize = 128;
/// The number of completed operations over which the use of open ones is limited.
const EFFORT_WINDOW: usize = 64;
/// From this many open operations on, the limit grows to all of them at once.
const EFFORT_STEPS: u16 = 4;
/// The number of configurations that a limited pass visits without progress, at first.
const STALL_MIN: usize = 1 << 14;

/// The limits of the search of one key.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Budget {
    pub(crate) configs_max: usize,
    pub(crate) memory_bytes_max: usize,
    pub(crate) time_max: Option<Duration>,
}

/// How a search ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// There is an order.
    Linearizable,
    /// Every order was ruled out.
    Violation,
    /// Not found with limited effort, not ruled out.
    Stuck,
    /// The budget ran out: of what.
    GaveUp(&'static str),
}

/// The longest order that was found.
#[derive(Clone, Debug, Default)]
pub(crate) struct Furthest {
    /// The linearized operations in order, as indices of completed operations.
    pub(crate) order: Vec<u32>,
    /// The state after them.
    pub(crate) state: State,
    /// The completed operations of which one should have come next, but none could.
    pub(crate) stuck: Vec<u32>,
}

/// The states by number, without duplicates.
struct States {
    states: Vec<State>,
    hashes: Vec<u64>,
    table: HashTable<StateId>,
    size_bytes: usize,
}

impl States {
    fn new() -> States {
        let mut states = States {
            states: Vec::new(),
            hashes: Vec::new(),
            table: HashTable::new(),
            size_bytes: 0,
        };
        states.intern(State::default());
        states
    }

    fn intern(&mut self, state: State) -> StateId {
        let mut hasher = FxHasher::default();
        state.hash(&mut hasher);
        let hash = hasher.finish();
        let same = |id: &StateId| self.states[*id as usize] == state;
        if let Some(id) = self.table.find(hash, same) {
            return *id;
        }
        let id = self.states.len() as StateId;
        self.size_bytes += state.size_bytes();
        self.states.push(state);
        self.hashes.push(hash);
        self.table.insert_unique(hash, id, |id| self.hashes[*id as usize]);
        id
    }
}

/// The visited configurations: the linearized operations, the state, the open operations used.
///
/// A configuration is a row of words: the prefix and the state, the bitmap of pending operations,
/// the bitmap of open operations used. Rows that differ only in the last part are chained.
struct Visited {
    stride: usize,
    /// The number of words before those of the open operations.
    base: usize,
    words: Vec<u64>,
    chain: Vec<u32>,
    /// For each configuration, the one before it and the operation that led from there.
    came_from: Vec<(u32, u32)>,
    table: HashTable<u32>,
}

fn hash_words(words: &[u64]) -> u64 {
    let mut hasher = FxHasher::default();
    words.hash(&mut hasher);
    hasher.finish()
}

fn is_subset(a: &[u64], b: &[u64]) -> bool {
    a.iter().zip(b).all(|(a, b)| a & !b == 0)
}

impl Visited {
    fn new(plan: &Plan) -> Visited {
        let base = 1 + plan.pending_words;
        Visited {
            stride: base + plan.open_words,
            base,
            words: Vec::new(),
            chain: Vec::new(),
            came_from: Vec::new(),
            table: HashTable::new(),
        }
    }

    fn row(&self, config: u32) -> &[u64] {
        &self.words[config as usize * self.stride..][..self.stride]
    }

    fn prefix(&self, config: u32) -> usize {
        (self.row(config)[0] >> 32) as usize
    }

    fn state(&self, config: u32) -> StateId {
        self.row(config)[0] as u32
    }

    fn pending(&self, config: u32) -> &[u64] {
        &self.row(config)[1..self.base]
    }

    fn open(&self, config: u32) -> &[u64] {
        &self.row(config)[self.base..]
    }

    /// Adds a configuration unless one that dominates it was visited before.
    fn insert(&mut self, row: &[u64], from: u32, via: u32) -> Option<u32> {
        let hash = hash_words(&row[..self.base]);
        let found = self.table.find(hash, |id| self.row(*id)[..self.base] == row[..self.base]);
        let id = self.chain.len() as u32;
        match found.copied() {
            Some(head) => {
                let mut at = head;
                while at != NONE {
                    if is_subset(self.open(at), &row[self.base..]) {
                        return None;
                    }
                    at = self.chain[at as usize];
                }
                self.chain.push(self.chain[head as usize]);
                self.chain[head as usize] = id;
            }
            None => {
                let (words, stride, base) = (&self.words, self.stride, self.base);
                self.table.insert_unique(hash, id, |id| {
                    hash_words(&words[*id as usize * stride..][..base])
                });
                self.chain.push(NONE);
            }
        }
        self.words.extend_from_slice(row);
        self.came_from.push((from, via));
        Some(id)
    }
}

/// A choice that is tried after the direct ones: open operations, then a completed one.
struct Detour {
    via: u32,
    state: StateId,
    /// The open operations used then, as a row of [`Search::detour_open`].
    open: u32,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Fresh,
    Direct,
    Detours,
    Spent,
}

/// A configuration on the current path, with the choices that are left.
struct Frame {
    config: u32,
    stage: Stage,
    cursor: u32,
    detours_from: u32,
}

/// A state reached from a configuration by open operations and expiry alone.
struct Link {
    state: StateId,
    before: u32,
    /// The open operation taken last, or `NONE` for an expiry.
    via: u32,
    depth: u16,
    /// The next link with the same state.
    same_state: u32,
}

pub(crate) struct Search<'p, 'h> {
    plan: &'p Plan<'h>,
    budget: Budget,
    states: States,
    visited: Visited,
    frames: Vec<Frame>,
    detours: Vec<Detour>,
    detour_open: Vec<u64>,
    /// For each completed operation, while it is the first missing one: the number of open
    /// operations that may be taken in a row, and in [`EFFORT_WINDOW`] completed ones.
    effort: Vec<u16>,
    /// The number of configurations that a pass may visit without progress.
    stall_max: usize,
    /// Whether a limit kept the pass from a choice, so that finding no order proves nothing.
    cut_off: bool,
    furthest: u32,
    /// The prefix of the furthest configuration, and the number of operations it has beyond that.
    furthest_prefix: usize,
    furthest_beyond: u32,
    row: Vec<u64>,
    links: Vec<Link>,
    link_open: Vec<u64>,
    link_of_state: HashMap<StateId, u32, FxBuildHasher>,
    started: Instant,
}

fn has_bit(words: &[u64], bit: usize) -> bool {
    words[bit / 64] >> (bit % 64) & 1 == 1
}

fn count_bits(words: &[u64]) -> u32 {
    words.iter().map(|word| word.count_ones()).sum()
}

fn set_bit(words: &mut [u64], bit: usize) {
    words[bit / 64] |= 1 << (bit % 64);
}

impl<'p, 'h> Search<'p, 'h> {
    pub(crate) fn new(plan: &'p Plan<'h>, budget: Budget) -> Search<'p, 'h> {
        Search {
            budget,
            states: States::new(),
            visited: Visited::new(plan),
            frames: Vec::new(),
            detours: Vec::new(),
            detour_open: Vec::new(),
            effort: vec![1; plan.done.len()],
            stall_max: STALL_MIN,
            cut_off: false,
            furthest: NONE,
            furthest_prefix: 0,
            furthest_beyond: 0,
            row: vec![0; 1 + plan.pending_words + plan.open_words],
            links: Vec::new(),
            link_open: Vec::new(),
            link_of_state: HashMap::default(),
            started: Instant::now(),
            plan,
        }
    }

    /// Searches as long as more effort at the place where it is stuck may help. Such passes use
    /// open operations sparingly and stop when they make no progress: they find an order of nearly
    /// every history that has one, whereas a generous search would patch up one wrong guess with
    /// the next. If they find none, that decides nothing. `stall_limit` is the number of
    /// configurations that the last passes may visit without progress.
    pub(crate) fn run(&mut self, stall_limit: usize) -> Outcome {
        if self.plan.done.is_empty() {
            return Outcome::Linearizable;
        }
        let mut stuck_at = usize::MAX;
        loop {
            let outcome = self.pass();
            if outcome != Outcome::Violation || !self.cut_off {
                return outcome;
            }
            let at = self.furthest_prefix;
            let allowed = self.effort[at];
            if at != stuck_at || allowed < u16::MAX {
                let more = if allowed < EFFORT_STEPS { allowed + 1 } else { u16::MAX };
                for effort in &mut self.effort[at.saturating_sub(DEEPER_BEFORE)..=at] {
                    *effort = more.max(*effort);
                }
            } else if self.stall_max < stall_limit {
                self.stall_max *= 4;
            } else {
                return Outcome::Stuck;
            }
            stuck_at = at;
        }
    }

    /// Searches with no limit but the budget.
    pub(crate) fn run_thoroughly(&mut self) -> Outcome {
        if self.plan.done.is_empty() {
            return Outcome::Linearizable;
        }
        self.effort.fill(u16::MAX);
        self.stall_max = usize::MAX;
        match self.pass() {
            Outcome::Violation if self.cut_off => Outcome::GaveUp("open operations in a row"),
            outcome => outcome,
        }
    }

    /// One depth-first search with the current limits.
    fn pass(&mut self) -> Outcome {
        self.visited = Visited::new(self.plan);
        self.frames.clear();
        self.detours.clear();
        self.detour_open.clear();
        self.cut_off = false;
        (self.furthest, self.furthest_prefix, self.furthest_beyond) = (NONE, 0, 0);
        self.row.fill(0);
        self.row[0] = u64::from(MISSING);
        let row = std::mem::take(&mut self.row);
        let root = self.visited.insert(&row, NONE, NONE);
        self.row = row;
        if let Some(config) = root {
            self.furthest = config;
            self.push(config);
        }
        let mut steps = 0;
        while let Some(frame) = self.frames.pop() {
            steps += 1;
            if steps % BUDGET_STEPS == 0
                && let Some(why) = self.exhausted()
            {
                return Outcome::GaveUp(why);
            }
            let Some((via, state, open)) = self.next_choice(frame) else { continue };
            let Some(from) = self.frames.last().map(|frame| frame.config) else { continue };
            if let Some(config) = self.advance(from, via, state, open) {
                if self.visited.prefix(config) == self.plan.done.len() {
                    return Outcome::Linearizable;
                }
                if (config - self.furthest) as usize > self.stall_max {
                    self.cut_off = true;
                    return Outcome::Violation;
                }
                self.push(config);
            }
        }
        Outcome::Violation
    }

    fn exhausted(&self) -> Option<&'static str> {
        let memory_bytes = self.states.size_bytes
            + (self.visited.stride * 8 + 16) * self.visited.chain.len()
            + self.detours.len() * 12;
        if self.visited.chain.len() > self.budget.configs_max {
            Some("configurations")
        } else if memory_bytes > self.budget.memory_bytes_max {
            Some("memory")
        } else if self.budget.time_max.is_some_and(|max| self.started.elapsed() > max) {
            Some("time")
        } else {
            None
        }
    }

    fn push(&mut self, config: u32) {
        let detours_from = self.detours.len() as u32;
        self.frames.push(Frame { config, stage: Stage::Fresh, cursor: 0, detours_from });
    }

    /// The next choice at the frame, which goes back on the stack unless no choice is left: the
    /// completed operation, the state after it, and the row of open operations used (`NONE` for the
    /// same as before).
    fn next_choice(&mut self, mut frame: Frame) -> Option<(u32, StateId, u32)> {
        let config = frame.config;
        let prefix = self.visited.prefix(config);
        let state = self.visited.state(config);
        let plan = self.plan;
        let pending = plan.pending(prefix);
        if frame.stage == Stage::Fresh {
            frame.stage = Stage::Direct;
            for &op in pending {
                let done = &plan.done[op as usize];
                if done.inert
                    && self.may_be_next(config, op)
                    && self.apply(state, done) == Some(state)
                {
                    frame.stage = Stage::Spent;
                    self.frames.push(frame);
                    return Some((op, state, NONE));
                }
            }
        }
        while frame.stage == Stage::Direct {
            let Some(&op) = pending.get(frame.cursor as usize) else {
                frame.stage = Stage::Detours;
                frame.cursor = self.detours.len() as u32;
                self.find_detours(config);
                break;
            };
            frame.cursor += 1;
            if !self.may_be_next(config, op) {
                continue;
            }
            if let Some(next) = self.apply(state, &plan.done[op as usize]) {
                self.frames.push(frame);
                return Some((op, next, NONE));
            }
        }
        if frame.stage == Stage::Detours
            && let Some(detour) = self.detours.get(frame.cursor as usize)
        {
            let choice = (detour.via, detour.state, detour.open);
            frame.cursor += 1;
            self.frames.push(frame);
            return Some(choice);
        }
        self.detours.truncate(frame.detours_from as usize);
        self.detour_open.truncate(self.detours.len() * plan.open_words);
        None
    }

    fn is_done(&self, config: u32, op: u32) -> bool {
        has_bit(self.visited.pending(config), self.plan.slot[op as usize] as usize)
    }

    /// Whether a pending operation is not linearized yet, and all that it must not overtake are.
    fn may_be_next(&self, config: u32, op: u32) -> bool {
        let prefix = self.visited.prefix(config);
        let is_in = |before: &u32| (*before as usize) < prefix || self.is_done(config, *before);
        !self.is_done(config, op) && self.plan.after(op).iter().all(is_in)
    }

    /// The state after a completed operation, if it may come next in `state` with its reply.
    fn apply(&mut self, state: StateId, op: &Op<'_>) -> Option<StateId> {
        let before = &self.states.states[state as usize];
        // A key whose time to live has certainly passed is gone before anything else.
        let overdue = before.expiry.is_some_and(|e| op.moment.call_ns > e.latest_ns);
        let state = if overdue { MISSING } else { state };
        let want = op.reply.map_or(Want::Anything, Want::Reply);
        match step(&self.states.states[state as usize], &op.command, want, &op.moment)? {
            Next::Same => Some(state),
            Next::State(next) => Some(self.states.intern(next)),
        }
    }

    /// The configuration after `via`, if it is worth visiting.
    fn advance(&mut self, from: u32, via: u32, state: StateId, open: u32) -> Option<u32> {
        let plan = self.plan;
        let mut row = std::mem::take(&mut self.row);
        row.copy_from_slice(self.visited.row(from));
        let (base, mut prefix) = (self.visited.base, self.visited.prefix(from));
        if open != NONE {
            let used = &self.detour_open[open as usize * plan.open_words..][..plan.open_words];
            row[base..].copy_from_slice(used);
            let before = self.frames[self.frames.len().saturating_sub(EFFORT_WINDOW)].config;
            let recent = count_bits(used) - count_bits(self.visited.open(before));
            if recent > u32::from(self.effort[prefix]) {
                self.cut_off = true;
                self.row = row;
                return None;
            }
        }
        set_bit(&mut row[1..base], plan.slot[via as usize] as usize);
        while let Some(&slot) = plan.slot.get(prefix)
            && has_bit(&row[1..base], slot as usize)
        {
            row[1 + slot as usize / 64] &= !(1 << (slot % 64));
            prefix += 1;
        }
        row[0] = (prefix as u64) << 32 | u64::from(state);
        let inserted = self.visited.insert(&row, from, via);
        let beyond = count_bits(&row[1..base]);
        self.row = row;
        let config = inserted?;
        if (prefix, beyond) > (self.furthest_prefix, self.furthest_beyond) {
            (self.furthest_prefix, self.furthest_beyond) = (prefix, beyond);
            self.furthest = config;
        }
        Some(config)
    }

    /// Finds every continuation from `config` that begins with open operations or an expiry,
    /// shortest first.
    fn find_detours(&mut self, config: u32) {
        let plan = self.plan;
        let prefix = self.visited.prefix(config);
        let now_ns = plan.done[prefix].until_ns;
        let state = self.visited.state(config);
        if plan.open.is_empty() && self.states.states[state as usize].expiry.is_none() {
            return;
        }
        let waiting: Vec<u32> = plan
            .pending(prefix)
            .iter()
            .copied()
            .filter(|op| self.may_be_next(config, *op))
            .collect();
        let direct: Vec<Option<StateId>> =
            waiting.iter().map(|op| self.apply(state, &plan.done[*op as usize])).collect();
        self.links.clear();
        self.link_open.clear();
        self.link_of_state.clear();
        let used = self.visited.open(config).to_vec();
        self.add_link(Link { state, before: NONE, via: NONE, depth: 0, same_state: NONE }, &used);
        let mut at = 0;
        while at < self.links.len() {
            if at > 0 {
                self.add_detours(at, &waiting, &direct);
            }
            if self.links[at].depth < self.effort[prefix] {
                self.extend_link(at, now_ns, &waiting);
            } else {
                self.cut_off |= self.can_extend(at, now_ns);
            }
            if self.links.len() > LINKS_MAX {
                self.cut_off = true;
                return;
            }
            at += 1;
        }
    }

    /// Adds a link unless one with the same state used a subset of its open operations.
    fn add_link(&mut self, mut link: Link, open: &[u64]) {
        let width = self.plan.open_words;
        let head = self.link_of_state.get(&link.state).copied().unwrap_or(NONE);
        let mut at = head;
        while at != NONE {
            if is_subset(&self.link_open[at as usize * width..][..width], open) {
                return;
            }
            at = self.links[at as usize].same_state;
        }
        link.same_state = head;
        self.link_of_state.insert(link.state, self.links.len() as u32);
        self.links.push(link);
        self.link_open.extend_from_slice(open);
    }

    /// The open operations that may be taken after link `at`; of a class of equal ones only the
    /// first unused.
    fn next_open(&self, at: usize, class: &[u32], now_ns: u64) -> Option<u32> {
        let width = self.plan.open_words;
        let used = &self.link_open[at * width..][..width];
        let first = class.iter().copied().find(|op| !has_bit(used, *op as usize))?;
        (self.plan.open[first as usize].moment.call_ns <= now_ns).then_some(first)
    }

    fn may_expire(&self, state: StateId, now_ns: u64) -> bool {
        self.states.states[state as usize].expiry.is_some_and(|e| e.earliest_ns <= now_ns)
    }

    /// Whether a longer chain could reach a new state. After the first link, an open operation that
    /// overwrites everything reaches the state that it reaches without the link.
    fn can_extend(&self, at: usize, now_ns: u64) -> bool {
        let useful = |class: &Vec<u32>| {
            self.next_open(at, class, now_ns)
                .is_some_and(|op| !self.plan.open[op as usize].overwrites)
        };
        self.may_expire(self.links[at].state, now_ns) || self.plan.classes.iter().any(useful)
    }

    fn extend_link(&mut self, at: usize, now_ns: u64, waiting: &[u32]) {
        let plan = self.plan;
        let width = plan.open_words;
        let Link { state, depth, .. } = self.links[at];
        let next =
            |state, via| Link { state, before: at as u32, via, depth: depth + 1, same_state: NONE };
        let used = self.link_open[at * width..][..width].to_vec();
        if self.may_expire(state, now_ns) {
            self.add_link(next(MISSING, NONE), &used);
        }
        // The latest first: an operation that takes effect late is rare.
        for class in plan.classes.iter().rev() {
            let Some(via) = self.next_open(at, class, now_ns) else { continue };
            if depth > 0 && plan.open[via as usize].overwrites {
                continue; // Leads where it leads without the chain before it.
            }
            let Some(after) = self.apply(state, &plan.open[via as usize]) else { continue };
            if after == state || (depth > 0 && !self.may_help(state, after, via, waiting)) {
                continue;
            }
            let mut open = used.clone();
            set_bit(&mut open, via as usize);
            self.add_link(next(after, via), &open);
        }
    }

    /// Whether a string that an open APPEND extended can still become what a waiting operation saw.
    /// If no open operation looks at the string, there is no other use in extending it.
    fn may_help(&self, before: StateId, after: StateId, via: u32, waiting: &[u32]) -> bool {
        let plan = self.plan;
        let states = &self.states.states;
        if plan.open_looks_at_strings
            || !matches!(plan.open[via as usize].command, Command::Append(_))
        {
            return true;
        }
        let (Value::Str(_), Value::Str(grown)) =
            (&states[before as usize].value, &states[after as usize].value)
        else {
            return true;
        };
        waiting.iter().any(|op| {
            let done = &plan.done[*op as usize];
            match (&done.command, done.reply) {
                // Whatever its reply was, it may append to the string what is seen later.
                (_, None) => true,
                (Command::Strlen | Command::Append(_), Some(Reply::Int(seen))) => {
                    *seen >= grown.len() as i64
                }
                (
                    Command::IncrBy(_) | Command::Cas { .. } | Command::Cad(_) | Command::Exec(_),
                    _,
                )
                | (Command::Set { condition: Condition::IfEqual(_), .. }, _) => true,
                (_, Some(Reply::Bulk(seen))) => seen.starts_with(grown),
                // These see only whether there is a string.
                _ => false,
            }
        })
    }

    /// Adds the completed operations that are worth taking after link `at`.
    fn add_detours(&mut self, at: usize, waiting: &[u32], direct: &[Option<StateId>]) {
        let plan = self.plan;
        let width = plan.open_words;
        let Link { state, before, via, .. } = self.links[at];
        let before = self.links[before as usize].state;
        for (op, direct) in waiting.iter().zip(direct) {
            let done = &plan.done[*op as usize];
            let Some(after) = self.apply(state, done) else { continue };
            if *direct == Some(after) {
                continue; // Works as well without any of the chain.
            }
            if via != NONE
                && let Some(first) = self.apply(before, done)
                && self.apply(first, &plan.open[via as usize]) == Some(after)
            {
                continue; // Works as well with the last of the chain after it.
            }
            let open = self.detours.len() as u32;
            self.detours.push(Detour { via: *op, state: after, open });
            self.detour_open.extend_from_slice(&self.link_open[at * width..][..width]);
        }
    }

    /// The longest order that was found, and the operations that could not follow it.
    pub(crate) fn furthest(&self) -> Furthest {
        let mut order = Vec::new();
        let mut at = self.furthest;
        while at != NONE {
            let (from, via) = self.visited.came_from[at as usize];
            if via != NONE {
                order.push(via);
            }
            at = from;
        }
        order.reverse();
        if self.furthest == NONE {
            return Furthest::default();
        }
        let prefix = self.visited.prefix(self.furthest);
        let pending = self.plan.pending(prefix).iter().copied();
        Furthest {
            order,
            state: self.states.states[self.visited.state(self.furthest) as usize].clone(),
            stuck: pending.filter(|op| !self.is_done(self.furthest, *op)).collect(),
        }
    }

    /// The completed operations of the longest order that was found, each with the state after it.
    pub(crate) fn states_along(&self) -> Vec<(u32, &State)> {
        let mut along = Vec::new();
        let mut at = self.furthest;
        while at != NONE {
            let (from, via) = self.visited.came_from[at as usize];
            if via != NONE {
                along.push((via, &self.states.states[self.visited.state(at) as usize]));
            }
            at = from;
        }
        along.reverse();
        along
    }

    /// The number of completed operations, by return, that the last pass got past.
    pub(crate) fn furthest_prefix(&self) -> usize {
        self.furthest_prefix
    }

    /// The number of configurations visited in the last pass.
    pub(crate) fn configs(&self) -> usize {
        self.visited.chain.len()
    }
}
