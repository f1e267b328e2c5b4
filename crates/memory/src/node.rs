//! A node: its requesters, its cache agent, and its home (Concordia §4, §5.1).
//!
//! A requester is a lane of the node, not a thread of a program: calls wait in the node, and a lane
//! has one event in progress. A node has at most one event in progress for a block, and its calls
//! take effect before the event's unlock leaves: a fetched block is used before it can be taken
//! away.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;
use core::hash::{Hash, Hasher};

use concord_core::machine::{Deadline, Machine};
use concord_core::{Addr, Duration, Guard, Instant, MS, Nothing, Now, Sink};
use concord_wire::concordia::{Copyset, GlobalStatus, NUMBER_MAX, Op, Outcome, Repr, Tag};

use crate::access::{Access, Call, Done, Failure};
use crate::agent::{Answer, CacheAgent};
use crate::blocks::{Assembly, parts};
use crate::cache::{Cache, Line, LineState};
use crate::directory::{Directory, Doubt, Move, Owner, Passed};
use crate::event::{Aim, Event, RoundTrip, Stage};
use crate::gathers::Gathers;
use crate::home::{Home, Range};
use crate::report::Item;
use crate::settings::{Coherence, NodeSettings, SettingsError};

mod gather;
mod moves;

/// The maximum number of calls that wait at a node.
pub const CALLS_MAX: usize = 4_096;
/// The window in which heat is measured (§5.2.2), in ns.
const WINDOW_NS: Duration = 10 * MS;
/// The maximum number of blocks whose heat a node reports in a window.
const HEATS_MAX: usize = 1_000;

concord_core::counters! {
    /// Counts of a node's calls, events and packets.
    pub struct NodeCounters {
        /// Calls that the cache answered at once.
        hits,
        /// Calls that waited for a coherence event.
        misses,
        /// Coherence events that took effect.
        events,
        /// Coherence requests that failed and were tried again; mostly because their block was
        /// locked.
        failed,
        /// Requests, unlocks and blocks sent again because no answer came.
        resent,
        /// Blocks written back to their homes.
        written_back,
        /// Copies invalidated by the events of other nodes.
        invalidated,
        /// Coherence requests that this node served as the home of their blocks.
        served,
        /// Blocks that this node, their home, moved to the switch or took back.
        moved,
        /// Packets dropped because they are malformed.
        malformed,
        /// Packets dropped because they belong to another epoch.
        other_epoch,
        /// Packets dropped because the event that they belong to is over.
        stale,
    }
}

/// What remains of a node when its epoch is over.
#[derive(Clone, Debug, Default)]
pub struct Remains {
    /// The copies in its cache, and on their way: its report to the homes.
    pub copies: Vec<Item>,
    /// The blocks whose value at the home may not be the newest.
    pub doubts: BTreeMap<Tag, Doubt>,
    /// The node's ranges.
    pub ranges: BTreeMap<u16, Range>,
    /// The calls that have had no effect.
    pub calls: VecDeque<Call>,
}

/// A node of a shared memory, in one epoch.
#[derive(Clone, Debug)]
pub struct Node {
    settings: NodeSettings,
    cache: Cache,
    agent: CacheAgent,
    home: Home,
    directory: Directory,
    /// How many requests reached this cache's copy of a block since the last window.
    heat: BTreeMap<Tag, u64>,
    /// When the window ends.
    window_at: Instant,
    /// The invalidations that this home waits for, in the coherence of GAM.
    gathers: Gathers,
    /// The event of each lane.
    events: Vec<Option<Event>>,
    /// The number of each lane's newest event.
    numbers: Vec<u64>,
    /// The waiting calls, in order.
    calls: VecDeque<Call>,
    done: VecDeque<Done>,
    round_trip: RoundTrip,
    counters: NodeCounters,
}

impl Node {
    /// A node with an empty cache, and a range of zeroes.
    ///
    /// # Errors
    /// [`SettingsError`] if no node can have these settings.
    pub fn new(settings: NodeSettings) -> Result<Node, SettingsError> {
        Node::with_ranges(settings, BTreeMap::new())
    }

    /// A node with an empty cache, and the given ranges.
    ///
    /// # Errors
    /// [`SettingsError`] if no node can have these settings.
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
            gathers: Gathers::default(),
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

    /// The place of the node.
    #[must_use]
    pub fn place(&self) -> u8 {
        self.settings.place
    }

    /// Whether this node is the home of a block.
    #[must_use]
    pub fn is_home(&self, tag: Tag) -> bool {
        let home = self.settings.homes.get(usize::from(tag.range()));
        home == Some(&self.settings.place)
    }

    /// The address of a block's home.
    fn home_of(&self, tag: Tag) -> Option<Addr> {
        let place = *self.settings.homes.get(usize::from(tag.range()))?;
        self.settings.nodes.get(usize::from(place)).copied()
    }

    /// Sets a block of its ranges to zeroes, if it was lost; returns whether it was.
    pub fn renew(&mut self, tag: Tag) -> bool {
        self.home.renew(tag)
    }

    /// Sets all lost blocks of its ranges to zeroes; returns their number.
    pub fn renew_all(&mut self) -> u64 {
        self.home.renew_all(self.settings.range_blocks)
    }

    /// The number of lost blocks in its ranges.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.home.lost(self.settings.range_blocks)
    }

    /// The number of blocks in its ranges that are not all zeroes.
    #[must_use]
    pub fn kept(&self) -> usize {
        self.home.kept()
    }

    /// Cancels a call. If the result is true, the call has had no effect, and will have none.
    pub fn cancel(&mut self, id: u64) -> bool {
        let is_it = |call: &Call| call.id == id && !call.access.is_posted();
        let at = self.calls.iter().position(is_it);
        at.is_some_and(|at| self.calls.remove(at).is_some())
    }

    /// The owner of a block of its ranges, and the heat of the block in the last window.
    #[must_use]
    pub fn ownership(&self, tag: Tag) -> (Owner, u64) {
        (self.directory.owner(tag), self.directory.heat(tag))
    }

    /// Whether a block of its ranges is lost.
    #[must_use]
    pub fn is_lost(&self, tag: Tag) -> bool {
        self.home.is_lost(tag)
    }

    /// Ends the epoch; returns what remains of the node. A copy in its cache is the newest value,
    /// since a write that took effect would have invalidated it. So is a copy that arrived for an
    /// event, which holds the lock of its block, and one that was given to an event that still
    /// waits for it.
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

    /// Makes a program's call. Its outcome comes out of [`Node::poll_done`].
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
        self.post();
    }

    /// The outcome of a call.
    pub fn poll_done(&mut self) -> Option<Done> {
        self.done.pop_front()
    }

    /// The lines of the cache.
    pub fn lines(&self) -> impl Iterator<Item = &Line> {
        self.cache.lines()
    }

    /// The events in progress, by lane.
    pub fn events(&self) -> impl Iterator<Item = (usize, &Event)> {
        self.events.iter().enumerate().filter_map(|(lane, event)| Some((lane, event.as_ref()?)))
    }

    /// The number of waiting calls.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.calls.len()
    }

    /// The content of a block of its ranges, as the home has it.
    #[must_use]
    pub fn home_data(&self, tag: Tag) -> Vec<u8> {
        self.home.data(tag)
    }

    /// Status, version and copyset of a block of its ranges, and whether it is locked; `None` if
    /// the switch owns it.
    #[must_use]
    pub fn owned(&self, tag: Tag) -> Option<(GlobalStatus, u64, Copyset, bool)> {
        self.directory.peek(tag)
    }

    /// Whether a block of its ranges is moving to another owner.
    #[must_use]
    pub fn is_moving(&self, tag: Tag) -> bool {
        !matches!(self.directory.owner(tag), Owner::Home | Owner::Switch)
    }

    /// Whether a writer of a block that it owns was refused since the last writer had the lock.
    #[must_use]
    pub fn is_wanted(&self, tag: Tag) -> bool {
        self.directory.is_wanted(tag)
    }

    /// The move that is in progress.
    #[must_use]
    pub fn moves(&self) -> Option<Move> {
        self.directory.moving().map(|(moving, _)| moving)
    }

    /// The counters of the node.
    #[must_use]
    pub fn counters(&self) -> &NodeCounters {
        &self.counters
    }

    /// Hashes what distinguishes its states: all except times, counters, and uses of the cache.
    pub fn hash_state(&self, hasher: &mut impl Hasher) {
        self.cache.hash_state(hasher);
        self.agent.hash_state(hasher);
        self.home.hash_state(hasher);
        self.directory.hash_state(hasher);
        self.gathers.hash(hasher);
        for event in &self.events {
            match event {
                Some(event) => event.hash_state(hasher),
                None => u8::MAX.hash(hasher),
            }
        }
        (&self.numbers, &self.calls, &self.done).hash(hasher);
    }

    /// The event of a block, and its lane.
    fn event_of(&self, tag: Tag) -> Option<(usize, &Event)> {
        self.events().find(|(_, event)| event.tag == tag)
    }

    fn free_lane(&self) -> Option<usize> {
        self.events.iter().position(Option::is_none)
    }

    /// Serves the calls that the cache can serve, and begins events for the others. Calls to the
    /// same block keep their order.
    fn pump(&mut self, now: Now, sink: &mut impl Sink) {
        let overtakes = self.gathers_here() && !self.has(Guard::OwnWriteFirst);
        let mut blocked: Vec<Tag> = Vec::new();
        let mut is_unfenced = false;
        for _ in 0..self.calls.len() {
            let Some(call) = self.calls.pop_front() else { break };
            if call.access == Access::Fence {
                if is_unfenced && self.has(Guard::FenceWaits) {
                    self.calls.push_back(call);
                } else {
                    self.done.push_back(Done { id: call.id, result: Ok(Vec::new()) });
                }
                continue;
            }
            let waits = blocked.contains(&call.tag);
            if !waits || overtakes && call.access.is_read() {
                if self.hit(&call) {
                    continue;
                }
                if !waits {
                    self.miss(now, &call, sink);
                    blocked.push(call.tag);
                }
            }
            is_unfenced |= call.access.is_posted();
            self.calls.push_back(call);
        }
    }

    /// Serves a call from the cache, if the cache has a sufficient copy.
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
        if !call.access.is_posted() {
            self.done.push_back(Done { id: call.id, result });
        }
        self.counters.hits += 1;
        true
    }

    /// Begins the event that a call needs, or the eviction that has to come first.
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

    /// Begins an event with the next number of its lane; table 1.
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

    /// A packet of this node about its own event.
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

    /// Sends a request or an unlock through the switch, which owns the block or passes the packet
    /// on to its home; without the switch's part directly to the home, which recognises copies of a
    /// request itself.
    fn send_owner(&self, packet: &Repr, sink: &mut impl Sink) {
        match self.settings.coherence {
            Coherence::Concordia => sink.send(self.settings.switch, &packet.packet(&[])),
            Coherence::Base | Coherence::Gam => {
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

    /// The event that an answer belongs to; an answer with another number is stale.
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

    /// Handles an acknowledgement: an agent has invalidated its copy, the owner grants a request
    /// that needs no data, or the request failed.
    fn on_ack(&mut self, now: Now, packet: &Repr, sink: &mut impl Sink) {
        let round_trip = self.round_trip;
        let Some((lane, event)) = self.awaited(packet, Stage::Asking) else { return };
        match packet.outcome {
            Outcome::Busy | Outcome::Invalid | Outcome::Full => {
                // Nodes whose requests failed together must not retry together.
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

    /// Fails the calls that wait for a block whose only copy was at a node that is gone.
    fn on_lost(&mut self, lane: usize) {
        let Some(event) = self.events[lane].take() else { return };
        if self.cache.line(event.tag).is_some_and(|line| !line.is_valid()) {
            self.cache.remove(event.tag);
        }
        let done = &mut self.done;
        self.calls.retain(|call| {
            let is_for_it = call.is_for(event.tag);
            if is_for_it {
                done.push_back(Done { id: call.id, result: Err(Failure::Lost) });
            }
            !is_for_it
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

    /// Notes the metadata that the owner filled into the request; once all answers have arrived,
    /// the event takes effect.
    fn answered(&mut self, now: Now, lane: usize, packet: &Repr, sink: &mut impl Sink) {
        let (own, waits) = (Copyset::of(self.settings.place), self.has(Guard::AllInvalidated));
        let is_granted = self.gathers_here() && packet.provider.is_none();
        let Some(event) = &mut self.events[lane] else { return };
        if event.metadata.is_none() && !event.is_resent {
            let ns = now.instant.0.saturating_sub(event.at.0);
            self.round_trip.measured(ns);
        }
        let metadata = (packet.status, packet.version, packet.copyset);
        let (_, _, copyset) = *event.metadata.get_or_insert(metadata);
        let has_data = event.data.is_some();
        if is_granted {
            event.invalidated = copyset;
        }
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

    /// Completes an event that has all its answers.
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
            // Without the guard `RoomFirst`: the block's lock is held while another block is
            // evicted.
            event.stage = Stage::Placing;
            self.events[lane] = Some(event);
            return self.make_room(now, tag, sink);
        }
        let has_copy = self.cache.line(tag).is_some_and(Line::is_valid);
        if event.data.is_none() && !has_copy {
            // The owner granted a copy that is not here: no owner of this epoch does this.
            (event.stage, event.at) = (Stage::Waiting, now.instant);
            self.events[lane] = Some(event);
            self.counters.stale += 1;
            return;
        }
        let (status, version, copyset) = event.found();
        let is_stale = matches!(status, GlobalStatus::Modified | GlobalStatus::SharedStale);
        let (state, version, new) = match aim {
            Aim::Write => (LineState::Modified, version + 1, (GlobalStatus::Modified, own)),
            // A modified block that is shared is not written back: the home's value is old (C1).
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
        // Waiting calls take effect before the unlock leaves (trap C14).
        let (mut waits, mut is_served) = (VecDeque::new(), true);
        while let Some(call) = self.calls.pop_front() {
            let is_for_it = call.is_for(tag);
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

    /// Removes the copy, now that the home has what it needs, and unlocks.
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

    /// Handles a request that the block's owner has forwarded to this node.
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
            Answer::Data(data) => {
                send_data(requester, &answer, &data, sink);
                if self.gathers_here() && packet.op == Op::ReadMiss {
                    self.send_downgraded(&answer, &data, sink);
                }
            }
            Answer::Invalidated => {
                self.counters.invalidated += 1;
                let ack = Repr { op: Op::Ack, outcome: Outcome::Done, ..answer };
                let home = self.home_of(packet.tag).filter(|_| self.gathers_here());
                sink.send(home.unwrap_or(requester), &ack.packet(&[]));
            }
        }
    }

    /// Handles a request for a block of this home that the switch does not own: the home does what
    /// the switch does for its own blocks.
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
        let is_newest = self.gathers_here() && status == GlobalStatus::Shared;
        let provider = if packet.op == Op::WriteShared || is_newest {
            None
        } else {
            // Each copy of a request has the same provider (trap C7).
            let name = packet.tag.0 ^ packet.number << 8 ^ u64::from(packet.place);
            others.choose((name.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as u32)
        };
        let to = match (packet.op, provider) {
            (Op::EvictShared | Op::EvictModified, _) => Copyset::default(),
            (Op::ReadMiss, provider) => provider.map_or(Copyset::default(), Copyset::of),
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
        let to = if self.gathers_here() { self.gather(&asked, to, sink) } else { to };
        for other in to {
            match self.settings.nodes.get(usize::from(other)).copied() {
                Some(_) if other == place => self.on_request(&asked, sink),
                Some(addr) => sink.send(addr, &asked.packet(&[])),
                None => {}
            }
        }
    }

    /// Handles an unlock of a block of this home that the switch does not own.
    fn on_unlock(&mut self, packet: &Repr, sink: &mut impl Sink) {
        let NodeSettings { node, .. } = self.settings;
        let requester = self.settings.nodes.get(usize::from(packet.place)).copied();
        if self.is_home(packet.tag)
            && let Some(requester) = requester
            && self.directory.unlock(packet)
        {
            if self.gathers_here() {
                self.directory.refreshed(packet.tag, self.home.version(packet.tag));
            }
            let unlocked = Repr { op: Op::Unlocked, from: node, ..*packet };
            sink.send(requester, &unlocked.packet(&[]));
        }
    }

    fn on_write_back(&mut self, packet: &Repr, data: &[u8], sink: &mut impl Sink) {
        let is_home = self.is_home(packet.tag);
        let evictor = self.settings.nodes.get(usize::from(packet.place)).copied();
        if let (true, Some(evictor)) = (is_home, evictor)
            && self.home.write_back(packet, data)
        {
            if packet.provider.is_some() {
                // Of a copy that was downgraded: nobody waits for an answer.
                return self.directory.refreshed(packet.tag, packet.version);
            }
            let from = self.settings.node;
            let written = Repr { op: Op::Written, from, offset_bytes: 0, ..*packet };
            sink.send(evictor, &written.packet(&[]));
        }
    }

    /// Continues a lane's event: retries it, or sends the packet again to which it has no answer. A
    /// driver uses [`Machine::tick`] instead.
    pub fn wake(&mut self, now: Now, lane: usize, sink: &mut impl Sink) {
        let Some(event) = self.events.get_mut(lane).and_then(Option::as_mut) else { return };
        let (tag, aim) = (event.tag, event.aim);
        event.is_resent = true;
        match event.stage {
            Stage::Waiting => {
                let is_gone = !self.cache.line(tag).is_some_and(Line::is_valid);
                if aim == Aim::Evict && is_gone {
                    // An event of another node took the copy: there is room.
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

    /// When a lane's event goes on if there is no answer.
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

/// Sends a block, in parts.
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
            Op::Ack if self.gathers_here() && packet.provider.is_some() => {
                self.on_gathered(&packet, sink);
            }
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
