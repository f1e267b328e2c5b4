//! A node: its requesters, its cache agent, and its home (Concordia §4, §5.1).
//!
//! A requester is a lane of the node, not a thread of a program: calls wait in the node, and a lane
//! has one event under way. A node has one event under way for a block, and what its calls do takes
//! effect before the event's unlock leaves: a block that was fetched is used, whoever waits for it.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;
use core::hash::{Hash, Hasher};

use concord_core::machine::{Deadline, Machine};
use concord_core::{Addr, Duration, Guard, Instant, MS, Nothing, Now, Sink};
use concord_wire::concordia::{Copyset, GlobalStatus, NUMBER_MAX, Op, Outcome, Repr, Tag};

use crate::access::{Call, Done, Failure};
use crate::agent::{Answer, CacheAgent};
use crate::blocks::{Assembly, parts};
use crate::cache::{Cache, Line, LineState};
use crate::directory::{Directory, Doubt, Move, Owner, Passed};
use crate::event::{Aim, Event, RoundTrip, Stage};
use crate::home::{Home, Range};
use crate::report::Item;
use crate::settings::{Coherence, NodeSettings, SettingsError};

/// Most calls that wait at a node.
pub const CALLS_MAX: usize = 4_096;
/// In which hotness is measured (§5.2.2), in ns.
const WINDOW_NS: Duration = 10 * MS;
/// Most blocks whose hotness a node tells in a window.
const HEATS_MAX: usize = 1_000;

concord_core::counters! {
    /// What happened at a node.
    pub struct NodeCounters {
        /// Calls that the cache served at once.
        hits,
        /// Calls that waited for an event.
        misses,
        /// Events that took effect.
        events,
        /// Requests that failed, and were tried again.
        failed,
        /// Requests, unlocks and blocks that were sent again.
        resent,
        /// Blocks that were written back.
        written_back,
        /// Copies that others' events took.
        invalidated,
        /// Requests that this node served as the home that owns their block.
        served,
        /// Blocks that this home gave to the switch, or took back.
        moved,
        /// Packets dropped because they are malformed.
        malformed,
        /// Packets dropped because they are of another epoch.
        other_epoch,
        /// Packets dropped because they are of an event that is over.
        stale,
    }
}

/// What a node has when its epoch is over.
#[derive(Clone, Debug, Default)]
pub struct Remains {
    /// Copies in its cache, and on their way: what homes are told.
    pub copies: Vec<Item>,
    /// Blocks of which the home's value may not be the newest.
    pub doubts: BTreeMap<Tag, Doubt>,
    /// Its ranges.
    pub ranges: BTreeMap<u16, Range>,
    /// Calls that have had no effect.
    pub calls: VecDeque<Call>,
}

/// A node of a shared memory.
#[derive(Clone, Debug)]
pub struct Node {
    settings: NodeSettings,
    cache: Cache,
    agent: CacheAgent,
    home: Home,
    directory: Directory,
    /// How many requests have reached this cache's copy of a block since the last window.
    heat: BTreeMap<Tag, u64>,
    /// When the window ends.
    window_at: Instant,
    /// By lane.
    events: Vec<Option<Event>>,
    /// The number of each lane's newest event.
    numbers: Vec<u64>,
    /// Calls that wait, in their order.
    calls: VecDeque<Call>,
    done: VecDeque<Done>,
    round_trip: RoundTrip,
    counters: NodeCounters,
}

impl Node {
    /// A node with an empty cache, and a range of zeroes.
    ///
    /// # Errors
    /// [`SettingsError`] if there can be no such node.
    pub fn new(settings: NodeSettings) -> Result<Node, SettingsError> {
        Node::with_ranges(settings, BTreeMap::new())
    }

    /// A node with an empty cache, and ranges as they are.
    ///
    /// # Errors
    /// [`SettingsError`] if there can be no such node.
    pub fn with_ranges(
        settings: NodeSettings,
        ranges: BTreeMap<u16, Range>,
    ) -> Result<Node, SettingsError> {
        settings.check()?;
        let (guards, lanes) = (settings.guards, settings.lanes);
        Ok(Node {
            cache: Cache::new(settings.cache_sets, settings.cache_ways),
            agent: CacheAgent::new(guards),
            home: Home::new(settings.block_bytes, ranges, guards),
            directory: Directory::new(guards),
            heat: BTreeMap::new(),
            window_at: Instant::NEVER,
            events: alloc::vec![None; lanes],
            numbers: alloc::vec![0; lanes],
            calls: VecDeque::new(),
            done: VecDeque::new(),
            round_trip: RoundTrip::INITIAL,
            counters: NodeCounters::default(),
            settings,
        })
    }

    fn has(&self, guard: Guard) -> bool {
        self.settings.guards.on(guard)
    }

    /// Its place.
    #[must_use]
    pub fn place(&self) -> u8 {
        self.settings.place
    }

    /// Whether a block is at home here.
    #[must_use]
    pub fn is_home(&self, tag: Tag) -> bool {
        let home = self.settings.homes.get(usize::from(tag.range()));
        home == Some(&self.settings.place)
    }

    /// Where the home of a block is.
    fn home_of(&self, tag: Tag) -> Option<Addr> {
        let place = *self.settings.homes.get(usize::from(tag.range()))?;
        self.settings.nodes.get(usize::from(place)).copied()
    }

    /// A block of its range is zeroes from now on, if it was lost; whether it was.
    pub fn renew(&mut self, tag: Tag) -> bool {
        self.home.renew(tag)
    }

    /// All blocks of its ranges that are lost are zeroes from now on; how many.
    pub fn renew_all(&mut self) -> u64 {
        self.home.renew_all(self.settings.range_blocks)
    }

    /// How many blocks of its ranges are lost.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.home.lost(self.settings.range_blocks)
    }

    /// How many blocks of its ranges are not zeroes.
    #[must_use]
    pub fn kept(&self) -> usize {
        self.home.kept()
    }

    /// Takes a call back; whether it could be: then it has had no effect, and will have none.
    pub fn cancel(&mut self, id: u64) -> bool {
        let at = self.calls.iter().position(|call| call.id == id);
        at.is_some_and(|at| self.calls.remove(at).is_some())
    }

    /// Who owns a block of its ranges, and how hot the block was in the last window.
    #[must_use]
    pub fn ownership(&self, tag: Tag) -> (Owner, u64) {
        (self.directory.owner(tag), self.directory.heat(tag))
    }

    /// Whether a block of its range is lost.
    #[must_use]
    pub fn is_lost(&self, tag: Tag) -> bool {
        self.home.is_lost(tag)
    }

    /// The epoch is over: what remains of the node. A copy in its cache is the newest value: a
    /// write that took effect has invalidated it before. So is one that came for an event, which
    /// holds its block's lock, and one that was given to an event that still waits for it.
    #[must_use]
    pub fn dissolve(self, tells_transit: bool) -> Remains {
        let place = self.settings.place;
        let mut copies: Vec<Item> = Vec::new();
        for line in self.cache.lines().filter(|line| line.is_valid()) {
            let (tag, version, data) = (line.tag, line.version, line.data.clone());
            copies.push(Item::Copy { tag, version, data });
        }
        for (lane, event) in self.events().filter(|_| tells_transit) {
            let (tag, (_, version, _)) = (event.tag, event.found());
            if !matches!(event.stage, Stage::Asking | Stage::Placing) || event.aim == Aim::Evict {
                continue;
            }
            match event.data.clone() {
                Some(data) => copies.push(Item::Copy { tag, version, data }),
                None => {
                    copies.push(Item::Taking { tag, event: (place, lane as u8, event.number) });
                }
            }
        }
        let doubts = self.directory.doubts(|tag| self.home.version(tag));
        for ((place, lane), given) in self.agent.into_given() {
            let (tag, version, data) = (given.tag, given.version, given.data);
            if tells_transit {
                copies.push(Item::Given { tag, version, to: (place, lane, given.number), data });
            }
        }
        Remains { copies, doubts, ranges: self.home.into_ranges(), calls: self.calls }
    }

    /// A program's call. What becomes of it comes out of [`Node::poll_done`].
    pub fn call(&mut self, now: Now, call: Call, sink: &mut impl Sink) {
        let has_home = self.home_of(call.tag).is_some();
        let is_block = has_home && call.tag.0 & NUMBER_MAX < self.settings.range_blocks;
        let checked = match call.access.check(self.settings.block_bytes) {
            _ if !is_block => Err(Failure::NoBlock),
            Ok(()) if self.calls.len() >= CALLS_MAX => Err(Failure::Busy),
            other => other,
        };
        if let Err(failure) = checked {
            return self.done.push_back(Done { id: call.id, result: Err(failure) });
        }
        self.calls.push_back(call);
        self.pump(now, sink);
    }

    /// What became of a call.
    pub fn poll_done(&mut self) -> Option<Done> {
        self.done.pop_front()
    }

    /// Its copies.
    pub fn lines(&self) -> impl Iterator<Item = &Line> {
        self.cache.lines()
    }

    /// Its events, by lane.
    pub fn events(&self) -> impl Iterator<Item = (usize, &Event)> {
        self.events.iter().enumerate().filter_map(|(lane, event)| Some((lane, event.as_ref()?)))
    }

    /// Calls that wait.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.calls.len()
    }

    /// What it has of its own range.
    #[must_use]
    pub fn home_data(&self, tag: Tag) -> Vec<u8> {
        self.home.data(tag)
    }

    /// Status, version and copyset of a block of its range, and whether it is locked; nothing if
    /// the switch owns it.
    #[must_use]
    pub fn owned(&self, tag: Tag) -> Option<(GlobalStatus, u64, Copyset, bool)> {
        self.directory.peek(tag)
    }

    /// Whether a block of its range is on its way to another owner.
    #[must_use]
    pub fn is_moving(&self, tag: Tag) -> bool {
        !matches!(self.directory.owner(tag), Owner::Home | Owner::Switch)
    }

    /// Whether a writer of a block that it owns was refused since the last one had the lock.
    #[must_use]
    pub fn is_wanted(&self, tag: Tag) -> bool {
        self.directory.is_wanted(tag)
    }

    /// The move that is under way.
    #[must_use]
    pub fn moves(&self) -> Option<Move> {
        self.directory.moving().map(|(moving, _)| moving)
    }

    /// Its counters.
    #[must_use]
    pub fn counters(&self) -> &NodeCounters {
        &self.counters
    }

    /// What tells its states apart: all but times, counters, and uses of the cache.
    pub fn hash_state(&self, hasher: &mut impl Hasher) {
        self.cache.hash_state(hasher);
        self.agent.hash_state(hasher);
        self.home.hash_state(hasher);
        self.directory.hash_state(hasher);
        for event in &self.events {
            match event {
                Some(event) => event.hash_state(hasher),
                None => u8::MAX.hash(hasher),
            }
        }
        (&self.numbers, &self.calls, &self.done).hash(hasher);
    }

    /// The lane and the event of a block.
    fn event_of(&self, tag: Tag) -> Option<(usize, &Event)> {
        self.events().find(|(_, event)| event.tag == tag)
    }

    fn free_lane(&self) -> Option<usize> {
        self.events.iter().position(Option::is_none)
    }

    /// Serves the calls that it can, and begins events for the others. Calls to a block keep their
    /// order.
    fn pump(&mut self, now: Now, sink: &mut impl Sink) {
        let mut blocked: Vec<Tag> = Vec::new();
        for _ in 0..self.calls.len() {
            let Some(call) = self.calls.pop_front() else { break };
            if !blocked.contains(&call.tag) {
                if self.hit(&call) {
                    continue;
                }
                self.miss(now, &call, sink);
                blocked.push(call.tag);
            }
            self.calls.push_back(call);
        }
    }

    /// Serves a call from the cache, if there is the copy that it needs.
    fn hit(&mut self, call: &Call) -> bool {
        let may_hit = match self.event_of(call.tag) {
            None => true,
            Some((_, event)) => match event.aim {
                _ if event.stage == Stage::Unlocking => true,
                Aim::Evict => !self.has(Guard::EvictedUnwritten),
                Aim::Read | Aim::Write => false,
            },
        };
        let needs_all = !call.access.is_read();
        let has_copy = |line: &Line| match line.state {
            LineState::Reserved => false,
            LineState::Shared => !needs_all,
            LineState::Modified => true,
        };
        if !may_hit || !self.cache.line(call.tag).is_some_and(has_copy) {
            return false;
        }
        let Some(line) = self.cache.use_line(call.tag) else { return false };
        let result = Ok(call.access.perform(&mut line.data));
        self.done.push_back(Done { id: call.id, result });
        self.counters.hits += 1;
        true
    }

    /// Begins the event that a call needs, or the eviction that has to go before it.
    fn miss(&mut self, now: Now, call: &Call, sink: &mut impl Sink) {
        let aim = if call.access.is_read() { Aim::Read } else { Aim::Write };
        if self.event_of(call.tag).is_some() && self.has(Guard::OneEvent) {
            return;
        }
        let Some(lane) = self.free_lane() else { return };
        if self.has(Guard::RoomFirst) && !self.cache.reserve(call.tag) {
            return self.make_room(now, call.tag, sink);
        }
        self.counters.misses += 1;
        self.begin(lane, aim, call.tag);
        self.send_request(now, lane, sink);
    }

    /// Begins to evict a block, so that `tag` has a place.
    fn make_room(&mut self, now: Now, tag: Tag, sink: &mut impl Sink) {
        let may_go = |line: &Line| line.is_valid() && self.event_of(line.tag).is_none();
        let is_going = self.cache.victim(tag, |line| {
            self.event_of(line.tag).is_some_and(|(_, event)| event.aim == Aim::Evict)
        });
        let (None, Some(victim), Some(lane)) =
            (is_going, self.cache.victim(tag, may_go), self.free_lane())
        else {
            return;
        };
        self.begin(lane, Aim::Evict, victim);
        self.send_request(now, lane, sink);
    }

    /// An event with the next number of its lane; table 1.
    fn begin(&mut self, lane: usize, aim: Aim, tag: Tag) {
        let state = self.cache.line(tag).map_or(LineState::Reserved, |line| line.state);
        let op = match (aim, state) {
            (Aim::Read, _) => Op::ReadMiss,
            (Aim::Write, LineState::Shared) => Op::WriteShared,
            (Aim::Write, _) => Op::WriteMiss,
            (Aim::Evict, LineState::Modified) => Op::EvictModified,
            (Aim::Evict, _) => Op::EvictShared,
        };
        self.numbers[lane] += 1;
        let number = self.numbers[lane];
        self.events[lane] = Some(Event {
            aim,
            op,
            tag,
            number,
            stage: Stage::Asking,
            at: Instant(0),
            is_resent: false,
            metadata: None,
            invalidated: Copyset::default(),
            assembly: Assembly::new(number, self.settings.block_bytes),
            data: None,
            new: (GlobalStatus::Unshared, Copyset::default()),
        });
    }

    /// A packet of this node about an event of its own.
    fn packet(&self, lane: usize, op: Op, event: &Event) -> Repr {
        let NodeSettings { node, place, group, epoch, .. } = self.settings;
        let (number, lane) = (event.number, lane as u8);
        Repr { group, from: node, epoch, place, lane, number, ..Repr::new(op, event.tag) }
    }

    fn send_request(&mut self, now: Now, lane: usize, sink: &mut impl Sink) {
        let Some(event) = &mut self.events[lane] else { return };
        event.at = now.instant;
        let event = event.clone();
        let packet = self.packet(lane, event.op, &event);
        self.send_owner(&packet, sink);
    }

    /// Where requests and unlocks go: past the switch, which has each block's owner, or knows it;
    /// in the base to the home, which tells copies of a request apart by itself.
    fn send_owner(&self, packet: &Repr, sink: &mut impl Sink) {
        match self.settings.coherence {
            Coherence::Concordia => sink.send(self.settings.switch, &packet.packet(&[])),
            Coherence::Base => {
                let is_first = packet.op.is_request();
                let Some(home) = self.home_of(packet.tag) else { return };
                sink.send(home, &Repr { is_first, ..*packet }.packet(&[]));
            }
        }
    }

    fn send_unlock(&mut self, now: Now, lane: usize, sink: &mut impl Sink) {
        let Some(event) = &mut self.events[lane] else { return };
        event.at = now.instant;
        let event = event.clone();
        let (status, copyset) = event.new;
        let (_, version, _) = event.found();
        let is_exclusive = !event.op.is_shared();
        let unlock = self.packet(lane, Op::Unlock, &event);
        self.send_owner(&Repr { status, copyset, version, is_exclusive, ..unlock }, sink);
    }

    fn send_write_back(&mut self, now: Now, lane: usize, sink: &mut impl Sink) {
        let Some(event) = &mut self.events[lane] else { return };
        event.at = now.instant;
        let event = event.clone();
        let (_, version, _) = event.found();
        let Some(line) = self.cache.line(event.tag) else { return };
        let Some(home) = self.home_of(event.tag) else { return };
        let packet = Repr { version, ..self.packet(lane, Op::WriteBack, &event) };
        for (offset_bytes, part) in parts(&line.data) {
            sink.send(home, &Repr { offset_bytes, ..packet }.packet(part));
        }
    }

    /// The event that an answer is for; one of another number is over.
    fn awaited(&mut self, packet: &Repr, stage: Stage) -> Option<(usize, &mut Event)> {
        let (lane, checks) = (usize::from(packet.lane), self.has(Guard::AnswerEvent));
        let is_own = packet.place == self.settings.place;
        let event = self.events.get_mut(lane).and_then(Option::as_mut);
        let is_for = |event: &&mut Event| {
            let is_number = event.number == packet.number || !checks;
            is_own && is_number && event.tag == packet.tag && event.stage == stage
        };
        let found = event.filter(is_for);
        self.counters.stale += u64::from(found.is_none());
        found.map(|event| (lane, event))
    }

    /// An agent has invalidated its copy; or the owner grants what only it has to say; or the
    /// request failed.
    fn on_ack(&mut self, now: Now, packet: &Repr, sink: &mut impl Sink) {
        let round_trip = self.round_trip;
        let Some((lane, event)) = self.awaited(packet, Stage::Asking) else { return };
        match packet.outcome {
            Outcome::Busy | Outcome::Invalid | Outcome::Full => {
                // Nodes that failed together do not ask together again.
                let spread = (u64::from(packet.place) + event.number) % 4;
                (event.stage, event.at) =
                    (Stage::Waiting, now.instant.after(round_trip.times(1 + spread) / 2));
                self.counters.failed += 1;
            }
            Outcome::Lost => self.on_lost(lane),
            Outcome::Done => {
                event.invalidated =
                    event.invalidated.with(packet.provider.map_or(Copyset(0), Copyset::of));
                self.answered(now, lane, packet, sink);
            }
        }
    }

    /// The block's only copy was at a node that is gone: who waits for it hears so.
    fn on_lost(&mut self, lane: usize) {
        let Some(event) = self.events[lane].take() else { return };
        if self.cache.line(event.tag).is_some_and(|line| !line.is_valid()) {
            self.cache.remove(event.tag);
        }
        let done = &mut self.done;
        self.calls.retain(|call| {
            if call.tag == event.tag {
                done.push_back(Done { id: call.id, result: Err(Failure::Lost) });
            }
            call.tag != event.tag
        });
    }

    fn on_data(&mut self, now: Now, packet: &Repr, data: &[u8], sink: &mut impl Sink) {
        let Some((lane, event)) = self.awaited(packet, Stage::Asking) else { return };
        if let Some(whole) = event.assembly.add(packet.offset_bytes, data) {
            event.data = Some(whole);
            event.invalidated =
                event.invalidated.with(packet.provider.map_or(Copyset(0), Copyset::of));
        }
        self.answered(now, lane, packet, sink);
    }

    /// Notes what the owner filled into the request; once all has come, the event takes effect.
    fn answered(&mut self, now: Now, lane: usize, packet: &Repr, sink: &mut impl Sink) {
        let (own, waits) = (Copyset::of(self.settings.place), self.has(Guard::AllInvalidated));
        let Some(event) = &mut self.events[lane] else { return };
        if event.metadata.is_none() && !event.is_resent {
            let ns = now.instant.0.saturating_sub(event.at.0);
            self.round_trip.measured(ns);
        }
        let metadata = (packet.status, packet.version, packet.copyset);
        let (_, _, copyset) = *event.metadata.get_or_insert(metadata);
        let has_data = event.data.is_some();
        let missing = copyset.without(own).without(event.invalidated);
        let is_complete = match event.op {
            Op::ReadMiss => has_data,
            Op::WriteMiss => has_data && (missing.is_empty() || !waits),
            Op::WriteShared => missing.is_empty() || !waits,
            _ => true,
        };
        if is_complete {
            self.complete(now, lane, sink);
        }
    }

    /// All answers are there.
    fn complete(&mut self, now: Now, lane: usize, sink: &mut impl Sink) {
        let Some(event) = &self.events[lane] else { return };
        let aim = event.aim;
        match aim {
            Aim::Evict => self.complete_eviction(now, lane, sink),
            Aim::Read | Aim::Write => self.complete_miss(now, lane, sink),
        }
    }

    fn complete_miss(&mut self, now: Now, lane: usize, sink: &mut impl Sink) {
        let own = Copyset::of(self.settings.place);
        let keeps_stale = self.has(Guard::HomeStale);
        let Some(mut event) = self.events[lane].take() else { return };
        let (tag, aim) = (event.tag, event.aim);
        if !self.cache.reserve(tag) {
            // Without the guard `RoomFirst`: the block's lock is held while another one goes.
            event.stage = Stage::Placing;
            self.events[lane] = Some(event);
            return self.make_room(now, tag, sink);
        }
        let has_copy = self.cache.line(tag).is_some_and(Line::is_valid);
        if event.data.is_none() && !has_copy {
            // Granted without a copy that is here: no owner of this epoch does so.
            (event.stage, event.at) = (Stage::Waiting, now.instant);
            self.events[lane] = Some(event);
            self.counters.stale += 1;
            return;
        }
        let (status, version, copyset) = event.found();
        let is_stale = matches!(status, GlobalStatus::Modified | GlobalStatus::SharedStale);
        let (state, version, new) = match aim {
            Aim::Write => (LineState::Modified, version + 1, (GlobalStatus::Modified, own)),
            // Nobody writes back when a modified block is shared: the home's value is old (C1).
            _ if is_stale && keeps_stale => {
                (LineState::Shared, version, (GlobalStatus::SharedStale, copyset.with(own)))
            }
            _ => (LineState::Shared, version, (GlobalStatus::Shared, copyset.with(own))),
        };
        if let Some(line) = self.cache.use_line(tag) {
            (line.state, line.version) = (state, version);
            if let Some(data) = event.data.take() {
                line.data = data;
            }
        }
        (event.stage, event.new, event.is_resent) = (Stage::Unlocking, new, false);
        self.events[lane] = Some(event);
        self.counters.events += 1;
        // What waits takes effect before the unlock leaves (trap C14).
        let (mut waits, mut is_served) = (VecDeque::new(), true);
        while let Some(call) = self.calls.pop_front() {
            let is_for_it = call.tag == tag;
            if is_for_it && is_served && self.hit(&call) {
                continue;
            }
            is_served &= !is_for_it;
            waits.push_back(call);
        }
        self.calls = waits;
        self.send_unlock(now, lane, sink);
    }

    fn complete_eviction(&mut self, now: Now, lane: usize, sink: &mut impl Sink) {
        let own = Copyset::of(self.settings.place);
        let (stale, awaits) = (self.has(Guard::HomeStale), self.has(Guard::WrittenBack));
        let Some(event) = &mut self.events[lane] else { return };
        let (status, _, copyset) = event.found();
        let is_last = stale && status == GlobalStatus::SharedStale && copyset == own;
        let line = self.cache.line(event.tag);
        if is_last || line.is_some_and(|line| line.state == LineState::Modified) {
            (event.stage, event.is_resent) = (Stage::WritingBack, false);
            self.send_write_back(now, lane, sink);
            self.counters.written_back += 1;
            if awaits {
                return;
            }
        }
        self.evicted(now, lane, sink);
    }

    /// The home has what it needs: the copy goes, and the event ends.
    fn evicted(&mut self, now: Now, lane: usize, sink: &mut impl Sink) {
        let own = Copyset::of(self.settings.place);
        let Some(event) = &mut self.events[lane] else { return };
        let (status, _, copyset) = event.found();
        let rest = copyset.without(own);
        let status = if rest.is_empty() { GlobalStatus::Unshared } else { status };
        (event.stage, event.new, event.is_resent) = (Stage::Unlocking, (status, rest), false);
        self.cache.remove(event.tag);
        self.counters.events += 1;
        self.send_unlock(now, lane, sink);
    }

    /// A request that the block's owner has forwarded to this node.
    fn on_request(&mut self, packet: &Repr, sink: &mut impl Sink) {
        let NodeSettings { place, node, epoch, .. } = self.settings;
        let Some(requester) = self.settings.nodes.get(usize::from(packet.place)).copied() else {
            return;
        };
        let is_home = self.is_home(packet.tag);
        let answer = Repr { from: node, epoch, provider: None, ..*packet };
        if !packet.is_locked {
            if is_home {
                self.on_passed(requester, packet, sink);
            }
            return;
        }
        if packet.status == GlobalStatus::Unshared {
            if is_home {
                self.directory.heats(packet.tag, 1);
                send_data(requester, &answer, &self.home.data(packet.tag), sink);
            }
            return;
        }
        let is_provider = packet.provider == Some(place);
        let keeps = self.event_of(packet.tag).is_some_and(|(_, e)| e.stage != Stage::Unlocking);
        let answer = Repr { provider: Some(place), ..answer };
        if self.heat.len() < HEATS_MAX || self.heat.contains_key(&packet.tag) {
            *self.heat.entry(packet.tag).or_default() += 1;
        }
        match self.agent.handle(&mut self.cache, packet, is_provider, keeps) {
            Answer::Nothing => self.counters.stale += 1,
            Answer::Data(data) => send_data(requester, &answer, &data, sink),
            Answer::Invalidated => {
                self.counters.invalidated += 1;
                let ack = Repr { op: Op::Ack, outcome: Outcome::Done, ..answer };
                sink.send(requester, &ack.packet(&[]));
            }
        }
    }

    /// A request for a block of this home that the switch does not own: the home does what the
    /// switch does for its own.
    fn on_passed(&mut self, requester: Addr, packet: &Repr, sink: &mut impl Sink) {
        let NodeSettings { place, node, epoch, .. } = self.settings;
        let answer = Repr { from: node, epoch, provider: None, is_first: false, ..*packet };
        let ack = |answer: Repr, outcome| Repr { op: Op::Ack, outcome, ..answer }.packet(&[]);
        let (status, version, copyset) =
            match self.directory.request(packet, self.home.is_lost(packet.tag)) {
                Passed::Over => {
                    self.counters.stale += 1;
                    return;
                }
                Passed::Failed(outcome) => return sink.send(requester, &ack(answer, outcome)),
                Passed::Locked(status, version, copyset) => (status, version, copyset),
            };
        self.counters.served += 1;
        let answer = Repr { is_locked: true, status, version, copyset, ..answer };
        let others = copyset.without(Copyset::of(packet.place));
        let provider = if packet.op == Op::WriteShared {
            None
        } else {
            // Each copy of a request has the same provider (trap C7).
            let name = packet.tag.0 ^ packet.number << 8 ^ u64::from(packet.place);
            others.choose((name.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as u32)
        };
        let to = match (packet.op, provider) {
            (Op::EvictShared | Op::EvictModified, _) => Copyset::default(),
            (Op::ReadMiss, Some(provider)) => Copyset::of(provider),
            _ => others,
        };
        let is_miss = matches!(packet.op, Op::ReadMiss | Op::WriteMiss);
        if is_miss && to.is_empty() {
            self.directory.heats(packet.tag, 1);
            send_data(requester, &answer, &self.home.data(packet.tag), sink);
        } else if to.is_empty() {
            sink.send(requester, &ack(answer, Outcome::Done));
        }
        let asked = Repr { provider, ..answer };
        for other in to {
            match self.settings.nodes.get(usize::from(other)).copied() {
                Some(_) if other == place => self.on_request(&asked, sink),
                Some(addr) => sink.send(addr, &asked.packet(&[])),
                None => {}
            }
        }
    }

    /// An unlock of a block of this home that the switch does not own.
    fn on_unlock(&mut self, packet: &Repr, sink: &mut impl Sink) {
        let NodeSettings { node, .. } = self.settings;
        let requester = self.settings.nodes.get(usize::from(packet.place)).copied();
        if self.is_home(packet.tag)
            && let Some(requester) = requester
            && self.directory.unlock(packet)
        {
            let unlocked = Repr { op: Op::Unlocked, from: node, ..*packet };
            sink.send(requester, &unlocked.packet(&[]));
        }
    }

    /// Begins to move a block of this home to the switch, or back; `false` if that cannot be now.
    pub fn migrate(&mut self, now: Now, tag: Tag, sink: &mut impl Sink) -> bool {
        let is_home = self.is_home(tag);
        let begins = is_home && self.directory.begin(now.instant, tag);
        if begins {
            self.send_move(now, sink);
        }
        begins
    }

    /// What is to be sent for the move that is under way, again if it was before. The driver's way
    /// there is [`Machine::tick`].
    pub fn send_move(&mut self, now: Now, sink: &mut impl Sink) {
        let NodeSettings { node, place, group, epoch, switch, .. } = self.settings;
        let Some((_, packet)) = self.directory.moving() else { return };
        let packet = Repr { group, from: node, epoch, place, ..packet };
        sink.send(switch, &packet.packet(&[]));
        self.directory.sent(now.instant);
    }

    /// The switch has answered a move: it goes on, or another one begins.
    fn on_moved(&mut self, now: Now, packet: &Repr, sink: &mut impl Sink) {
        let heat = self.directory.heat(packet.tag);
        if !self.directory.answered(packet) {
            return;
        }
        if packet.op == Op::Added && packet.outcome == Outcome::Full {
            self.displace(packet, heat, sink);
        }
        if self.directory.moving().is_some() {
            return self.send_move(now, sink);
        }
        self.counters.moved += 1;
        self.next_move(now, sink);
    }

    /// The block that is in the way of a hot one: its home takes it back, if it is colder.
    fn displace(&mut self, packet: &Repr, heat: u64, sink: &mut impl Sink) {
        let NodeSettings { node, place, group, epoch, .. } = self.settings;
        let Some(range) = packet.provider else { return };
        let tag = Tag::new(range.into(), packet.version);
        if self.is_home(tag) {
            return self.directory.displaces(tag, heat);
        }
        let Some(home) = self.home_of(tag) else { return };
        let number = heat.min(NUMBER_MAX);
        let told = Repr { group, from: node, epoch, place, ..Repr::new(Op::Displace, tag) };
        sink.send(home, &Repr { number, ..told }.packet(&[]));
    }

    fn next_move(&mut self, now: Now, sink: &mut impl Sink) {
        if let Some(tag) = self.directory.next_move() {
            self.migrate(now, tag, sink);
        }
    }

    /// A window is over: homes hear how hot their blocks are.
    fn turn_window(&mut self, now: Now, sink: &mut impl Sink) {
        let NodeSettings { node, place, group, epoch, .. } = self.settings;
        for (tag, count) in core::mem::take(&mut self.heat) {
            if self.is_home(tag) {
                self.directory.heats(tag, count);
            } else if let Some(home) = self.home_of(tag) {
                let told = Repr { group, from: node, epoch, place, ..Repr::new(Op::Heat, tag) };
                let number = count.min(NUMBER_MAX);
                sink.send(home, &Repr { number, ..told }.packet(&[]));
            }
        }
        self.window_at = Instant::NEVER;
        self.directory.turn_window();
        self.next_move(now, sink);
    }

    /// A window begins, if there is anything to measure.
    fn open_window(&mut self, now: Now) {
        let moves = self.settings.coherence == Coherence::Concordia;
        let has_any = moves && (!self.heat.is_empty() || self.directory.has_windows());
        if self.window_at == Instant::NEVER && has_any {
            self.window_at = now.instant.after(WINDOW_NS);
        }
    }

    fn on_write_back(&mut self, packet: &Repr, data: &[u8], sink: &mut impl Sink) {
        let is_home = self.is_home(packet.tag);
        let evictor = self.settings.nodes.get(usize::from(packet.place)).copied();
        if let (true, Some(evictor)) = (is_home, evictor)
            && self.home.write_back(packet, data)
        {
            let from = self.settings.node;
            let written = Repr { op: Op::Written, from, offset_bytes: 0, ..*packet };
            sink.send(evictor, &written.packet(&[]));
        }
    }

    /// A lane's event goes on: it is tried again, or what it waits for is sent again. The driver's
    /// way there is [`Machine::tick`].
    pub fn wake(&mut self, now: Now, lane: usize, sink: &mut impl Sink) {
        let Some(event) = self.events.get_mut(lane).and_then(Option::as_mut) else { return };
        let (tag, aim) = (event.tag, event.aim);
        event.is_resent = true;
        match event.stage {
            Stage::Waiting => {
                let is_gone = !self.cache.line(tag).is_some_and(Line::is_valid);
                if aim == Aim::Evict && is_gone {
                    // Another one's event took the copy: there is room.
                    self.cache.remove(tag);
                    self.events[lane] = None;
                } else {
                    self.begin(lane, aim, tag);
                    self.send_request(now, lane, sink);
                }
            }
            Stage::Asking => self.send_request(now, lane, sink),
            Stage::Placing => self.complete(now, lane, sink),
            Stage::WritingBack => self.send_write_back(now, lane, sink),
            Stage::Unlocking => self.send_unlock(now, lane, sink),
        }
        self.counters.resent += 1;
        self.pump(now, sink);
    }

    /// When a move is sent again if nothing comes.
    fn move_due(&self) -> Instant {
        let again = |moving: Move| moving.at.after(self.round_trip.times(RoundTrip::UNLOCK));
        self.moves().map_or(Instant::NEVER, again)
    }

    /// When a lane's event goes on if nothing comes.
    fn due(&self, event: &Event) -> Instant {
        match event.stage {
            Stage::Waiting => event.at,
            Stage::Unlocking => event.at.after(self.round_trip.times(RoundTrip::UNLOCK)),
            Stage::Asking | Stage::Placing | Stage::WritingBack => {
                event.at.after(self.round_trip.times(RoundTrip::REQUEST))
            }
        }
    }
}

/// A block, in parts.
fn send_data(to: Addr, answer: &Repr, data: &[u8], sink: &mut impl Sink) {
    for (offset_bytes, part) in parts(data) {
        sink.send(to, &Repr { op: Op::Data, offset_bytes, ..*answer }.packet(part));
    }
}

impl Machine for Node {
    type Persist = Nothing;

    fn handle(&mut self, now: Now, _from: Addr, packet: &mut [u8], sink: &mut impl Sink) {
        let Ok((packet, data)) = Repr::parse(packet) else {
            self.counters.malformed += 1;
            return;
        };
        let is_of_epoch = packet.epoch == self.settings.epoch || !self.has(Guard::CoherenceEpoch);
        if packet.group != self.settings.group || !is_of_epoch {
            self.counters.other_epoch += 1;
            return;
        }
        let is_home = self.is_home(packet.tag);
        match packet.op {
            op if op.is_request() => self.on_request(&packet, sink),
            Op::Ack => self.on_ack(now, &packet, sink),
            Op::Data => self.on_data(now, &packet, data, sink),
            Op::WriteBack => self.on_write_back(&packet, data, sink),
            Op::Written => {
                if let Some((lane, _)) = self.awaited(&packet, Stage::WritingBack) {
                    self.evicted(now, lane, sink);
                }
            }
            Op::Unlocked => {
                if let Some((lane, _)) = self.awaited(&packet, Stage::Unlocking) {
                    self.events[lane] = None;
                }
            }
            Op::Unlock => self.on_unlock(&packet, sink),
            Op::Added | Op::Removed | Op::Forgotten => self.on_moved(now, &packet, sink),
            Op::Heat if is_home => self.directory.heats(packet.tag, packet.number),
            Op::Displace if is_home => self.directory.displaces(packet.tag, packet.number),
            _ => {}
        }
        self.open_window(now);
        self.pump(now, sink);
    }

    fn tick(&mut self, now: Now, sink: &mut impl Sink) {
        for lane in 0..self.events.len() {
            let due = self.events[lane].as_ref().map(|event| self.due(event));
            if due.is_some_and(|due| due <= now.instant) {
                self.wake(now, lane, sink);
            }
        }
        if self.move_due() <= now.instant {
            self.send_move(now, sink);
        }
        if self.window_at <= now.instant {
            self.turn_window(now, sink);
            self.open_window(now);
        }
    }

    fn deadline(&self) -> Deadline {
        let due = |(_, event): (usize, &Event)| {
            let reason = match event.stage {
                Stage::Waiting => "a request that failed is tried again",
                Stage::Unlocking => "an unlock is not acknowledged",
                Stage::Asking | Stage::Placing => "a request is not answered",
                Stage::WritingBack => "a home has not taken a block",
            };
            Deadline { at: self.due(event), reason }
        };
        let moves = Deadline { at: self.move_due(), reason: "a move is not answered" };
        let window = Deadline { at: self.window_at, reason: "a window ends" };
        self.events().map(due).chain([moves, window]).fold(Deadline::NONE, Deadline::min)
    }
}
