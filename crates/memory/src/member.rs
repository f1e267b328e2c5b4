//! A node through the epochs of its memory. All coherence state ends with its epoch: at each
//! configuration the node of the previous epoch stops, and another one begins.
//!
//! 1. A configuration arrives: the node stops at once. What remains are its copies, including those
//!    that it gave or was given, and its ranges.
//! 2. Each member reports to the homes of the new epoch what it has, block by block, and then that
//!    the report is complete (hole C10). After that its cache is empty.
//! 3. A home that has all reports rebuilds its ranges: a copy at any member is the newest value.
//!    Without a copy it is the home's own value, unless a member that is gone had, or may have had,
//!    a newer one: then the block is lost. A node that leaves is not a member, but reports like
//!    one.
//! 4. A home announces that it is ready, once the leases that it granted to nodes outside have
//!    ended (trap T2). A member that has heard this of all members opens the epoch.
//!
//! A node that answers alone, from its cache or as a home, holds leases of all other members, which
//! it checks after the call, or the packet, has arrived (hole C9).

use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::vec::Vec;

use concord_core::lease::Leases;
use concord_core::machine::{Deadline, Machine};
use concord_core::{Addr, Duration, Epoch, Guard, Guards, Instant, MS, NodeId, Nothing, Now, Sink};
use concord_wire::concordia::{NODES_MAX, Op, Repr, Tag, home_place};
use concord_wire::control::{
    Assembly, Config, GroupKind, Heard, Held, LeaseMessage, Member as Place, Membership, Message,
    ReplicaAlive, Standing,
};
use concord_wire::{GroupId, Kind};

use crate::access::{Call, Done, Failure};
use crate::home::Range;
use crate::node::{CALLS_MAX, Node, NodeCounters};
use crate::report::{Item, Report, Telling};
use crate::settings::{Coherence, NodeSettings, SettingsError};

/// The time between two keepalives of a node, in ns.
const ALIVE_NS: Duration = 100 * MS;
/// The time after which unacknowledged packets are sent again while an epoch begins, in ns.
const RETRY_NS: Duration = 5 * MS;

/// The settings of a node for all epochs.
#[derive(Clone, Debug)]
pub struct MemberSettings {
    /// The number of the node. The home of range n is node n + 1, if that is a member.
    pub node: NodeId,
    /// The incarnation of its process.
    pub incarnation: u64,
    /// The address of the node.
    pub addr: Addr,
    /// The address of the controller.
    pub controller: Addr,
    /// The group of the memory.
    pub group: GroupId,
    /// The length of a block, in bytes.
    pub block_bytes: usize,
    /// The number of blocks in each range.
    pub range_blocks: u64,
    /// The number of sets in the cache.
    pub cache_sets: usize,
    /// The number of blocks in a set.
    pub cache_ways: usize,
    /// The maximum number of events that the node has in progress.
    pub lanes: usize,
    /// Whether the switch takes part in coherence; the same at all nodes.
    pub coherence: Coherence,
    /// The duration of a lease, in ns.
    pub lease_ns: Duration,
    /// The guards that are on.
    pub guards: Guards,
}

/// What remains of the last epoch that was opened here.
#[derive(Clone, Debug, Default)]
struct Remains {
    /// The number of that epoch; 0 if none was.
    label: u32,
    /// The members of that epoch, by place.
    members: Vec<Place>,
    /// What its node had beside the ranges, and which of its blocks are in doubt.
    node: crate::node::Remains,
}

concord_core::counters! {
    /// Counts of a node's epochs, and of the packets that it could not use.
    pub struct MemberCounters {
        /// Epochs that this node opened.
        epochs_opened,
        /// Coherence packets dropped because this node held no lease.
        unleased,
        /// Coherence packets dropped because this node had no open epoch.
        closed,
        /// Blocks found lost when an epoch began: their newest value was at a node that is gone.
        blocks_lost,
        /// Packets dropped because they were malformed, or not for this node.
        unexpected,
    }
}

/// A node of a shared memory, through epochs.
#[derive(Clone, Debug)]
pub struct MemoryNode {
    settings: MemberSettings,
    assembly: Assembly,
    heard: Heard,
    config: Option<Config>,
    /// The node of the open epoch.
    node: Option<Node>,
    remains: Remains,
    /// The ranges whose home is this node.
    ranges: BTreeMap<u16, Range>,
    /// The ranges that went to another home in an epoch for which this node was ready, or in which
    /// it was not a member.
    told_away: BTreeSet<u16>,
    /// The first epoch in which it was a member.
    since: Option<u32>,
    /// The first epoch after the last one that it opened for which it was ready, or to which it
    /// only reported without being a member: other nodes may have opened that epoch, or a later
    /// one.
    ready_from: Option<u32>,
    /// While an epoch begins: the report to each member, the reports of all members, and the
    /// members that are ready.
    telling: Vec<Telling>,
    reports: Vec<Report>,
    ready: BTreeSet<u16>,
    is_rebuilt: bool,
    retry_at: Instant,
    /// When the newest configuration arrived.
    began_at: Instant,
    leases: Leases,
    /// When the leases of an earlier incarnation have ended.
    quiet_until: Instant,
    /// Until when, at least, the node stands still without a lease.
    stalled_until: Instant,
    alive_at: Instant,
    /// Whether it is leaving the memory, and hands over what it has.
    is_leaving: bool,
    /// Calls that wait for an epoch, or for a lease.
    calls: VecDeque<Call>,
    done: VecDeque<Done>,
    counters: MemberCounters,
    /// The counters of its nodes in earlier epochs.
    past: NodeCounters,
    buffer: Vec<u8>,
}

impl MemoryNode {
    /// A node that is in no epoch.
    ///
    /// # Errors
    /// [`SettingsError`] if no node can have these settings.
    pub fn new(now: Now, settings: MemberSettings) -> Result<MemoryNode, SettingsError> {
        node_settings(&settings, Epoch(0), 0, alloc::vec![settings.addr], settings.addr).check()?;
        Ok(MemoryNode {
            assembly: Assembly::new(1),
            heard: Heard::default(),
            config: None,
            node: None,
            remains: Remains::default(),
            ranges: BTreeMap::new(),
            told_away: BTreeSet::new(),
            since: None,
            ready_from: None,
            telling: Vec::new(),
            reports: Vec::new(),
            ready: BTreeSet::new(),
            is_rebuilt: false,
            retry_at: Instant::NEVER,
            leases: Leases::new(settings.lease_ns),
            began_at: now.instant,
            quiet_until: now.instant.after(settings.lease_ns),
            stalled_until: now.instant,
            alive_at: now.instant,
            is_leaving: false,
            calls: VecDeque::new(),
            done: VecDeque::new(),
            counters: MemberCounters::default(),
            past: NodeCounters::default(),
            buffer: Vec::new(),
            settings,
        })
    }

    fn has(&self, guard: Guard) -> bool {
        self.settings.guards.on(guard)
    }

    /// Makes a program's call. Its outcome comes out of [`MemoryNode::poll_done`].
    pub fn call(&mut self, now: Now, call: Call, sink: &mut impl Sink) {
        let refused = match () {
            () if self.is_leaving => Some(Failure::NoNode),
            () if self.calls.len() >= CALLS_MAX => Some(Failure::Busy),
            () => None,
        };
        if let Some(failure) = refused {
            return self.done.push_back(Done { id: call.id, result: Err(failure) });
        }
        self.calls.push_back(call);
        self.pump(now, sink);
    }

    /// The outcome of a call.
    pub fn poll_done(&mut self) -> Option<Done> {
        self.done.pop_front()
    }

    /// The node of the open epoch.
    #[must_use]
    pub fn node(&self) -> Option<&Node> {
        self.node.as_ref()
    }

    /// The number of its newest epoch; 0 if it has heard of none.
    #[must_use]
    pub fn epoch(&self) -> u32 {
        self.config.as_ref().map_or(0, |config| config.epoch)
    }

    /// The counters of the member.
    #[must_use]
    pub fn counters(&self) -> &MemberCounters {
        &self.counters
    }

    /// The counters of its nodes, over all epochs.
    #[must_use]
    pub fn node_counters(&self) -> NodeCounters {
        let mut all = self.past;
        if let Some(node) = &self.node {
            all.add(node.counters());
        }
        all
    }

    /// The settings of the member.
    #[must_use]
    pub fn settings(&self) -> &MemberSettings {
        &self.settings
    }

    /// The members of its newest epoch, by place.
    pub fn members(&self) -> impl Iterator<Item = Place> + '_ {
        self.config.iter().flat_map(|config| &config.members).copied()
    }

    /// Whether no other node is a member, or is leaving: then there is none to hand anything over
    /// to.
    #[must_use]
    pub fn is_alone(&self) -> bool {
        let own = self.settings.node.0;
        self.config.as_ref().is_none_or(|c| MemoryNode::tellers(c).all(|m| m.node == own))
    }

    /// Cancels a call. If the result is true, the call has had no effect, and will have none.
    pub fn cancel(&mut self, id: u64) -> bool {
        let at = self.calls.iter().position(|call| call.id == id);
        match at {
            Some(at) => self.calls.remove(at).is_some(),
            None => self.node.as_mut().is_some_and(|node| node.cancel(id)),
        }
    }

    /// Whether it may answer alone (hole C9).
    #[must_use]
    pub fn is_leased(&self, now: Now) -> bool {
        self.leases.is_held(now.instant) || !self.has(Guard::MemoryLease)
    }

    /// Sets a block whose home is this node to zeroes, if it was lost; returns whether it was.
    /// Without a lease it does nothing, since a home answers alone.
    pub fn renew(&mut self, now: Now, tag: Tag) -> bool {
        self.is_leased(now) && self.node.as_mut().is_some_and(|node| node.renew(tag))
    }

    /// Sets all lost blocks whose home is this node to zeroes; returns their number, or `None` if
    /// no epoch is open or it holds no lease.
    pub fn renew_all(&mut self, now: Now) -> Option<u64> {
        if !self.is_leased(now) {
            return None;
        }
        self.node.as_mut().map(Node::renew_all)
    }

    /// Leaves the memory: it asks the controller to be removed, and reports to the others what it
    /// has. Waiting calls fail, without an effect.
    pub fn leave(&mut self, now: Now) {
        self.is_leaving = true;
        self.alive_at = now.instant;
        self.refuse();
    }

    /// Whether it has left: the others have what it had, or it had nothing. A member that is alone
    /// never leaves.
    #[must_use]
    pub fn has_left(&self) -> bool {
        let is_over = |config: &Config| {
            let is_member = MemoryNode::place_of(config, self.settings.node.0).is_some();
            !is_member && config.members.iter().all(|m| self.ready.contains(&m.node))
        };
        self.is_leaving && self.config.as_ref().is_none_or(is_over)
    }

    fn refuse(&mut self) {
        for call in core::mem::take(&mut self.calls) {
            self.done.push_back(Done { id: call.id, result: Err(Failure::NoNode) });
        }
    }

    /// Gives the waiting calls to the node, if it may serve them.
    fn pump(&mut self, now: Now, sink: &mut impl Sink) {
        if !self.is_leased(now) {
            return;
        }
        let Some(node) = &mut self.node else { return };
        while let Some(call) = self.calls.pop_front() {
            node.call(now, call, sink);
        }
        while let Some(done) = node.poll_done() {
            self.done.push_back(done);
        }
    }

    fn others(&self) -> impl Iterator<Item = Place> + '_ {
        let own = self.settings.node.0;
        self.config.iter().flat_map(|c| &c.members).filter(move |m| m.node != own).copied()
    }

    /// The nodes that report to homes: the members, by place, and those that leave.
    fn tellers(config: &Config) -> impl Iterator<Item = &Place> {
        config.members.iter().chain(&config.joining)
    }

    fn member_of(&self, node: u16) -> Option<Place> {
        self.config.as_ref()?.members.iter().find(|m| m.node == node).copied()
    }

    fn place_of(config: &Config, node: u16) -> Option<u8> {
        config.members.iter().position(|m| m.node == node).map(|place| place as u8)
    }

    /// Begins to install a new configuration.
    fn configure(&mut self, now: Now, config: Config, sink: &mut impl Sink) {
        let is_known = self.config.as_ref().is_some_and(|own| config.epoch <= own.epoch);
        if is_known || config.kind != GroupKind::Memory || config.epoch < self.heard.epoch {
            return;
        }
        self.heard = Heard {
            rack: config.rack,
            epoch: config.epoch,
            switch_id: self.heard.switch_id.max(config.switch_id),
        };
        self.alive_at = now.instant;
        self.stop();
        let own = (self.settings.node.0, self.settings.incarnation);
        let has_part = MemoryNode::tellers(&config).any(|m| (m.node, m.incarnation) == own);
        let had_part = self.config.is_some();
        self.config = has_part.then_some(config);
        if has_part {
            self.begin(now, sink);
        } else if had_part {
            self.forget();
        }
    }

    /// Stops the node: what it has remains, and its calls wait.
    fn stop(&mut self) {
        self.leases.close();
        self.retry_at = Instant::NEVER;
        let Some(mut node) = self.node.take() else { return };
        self.past.add(node.counters());
        while let Some(done) = node.poll_done() {
            self.done.push_back(done);
        }
        let mut remains = node.dissolve(self.has(Guard::InTransit));
        for call in remains.calls.drain(..).rev() {
            self.calls.push_front(call);
        }
        if self.is_leaving {
            self.refuse();
        }
        for (range, mut blocks) in core::mem::take(&mut remains.ranges) {
            if let Some(own) = self.ranges.get_mut(&range) {
                core::mem::swap(&mut own.blocks, &mut blocks.blocks);
                own.lost = blocks.lost;
                own.is_orphan = blocks.is_orphan;
            }
        }
        self.remains.node = remains;
    }

    /// Forgets everything, as the others go on without this node: what it has belongs to no epoch,
    /// and its incarnation is over.
    fn forget(&mut self) {
        self.remains = Remains::default();
        self.ranges.clear();
        self.told_away.clear();
        (self.since, self.ready_from) = (None, None);
        self.settings.incarnation += 1;
    }

    /// Begins an epoch, in which each member reports to the homes.
    fn begin(&mut self, now: Now, sink: &mut impl Sink) {
        let Some(config) = self.config.clone() else { return };
        self.ready.clear();
        (self.is_rebuilt, self.began_at) = (false, now.instant);
        self.telling = config.members.iter().map(|_| Telling::default()).collect();
        self.reports = MemoryNode::tellers(&config).map(|_| Report::default()).collect();
        let members: Vec<u16> = config.members.iter().map(|m| m.node).collect();
        let own = MemoryNode::place_of(&config, self.settings.node.0);
        if config.epoch == 1 {
            // A memory begins with zeroes.
            let is_here = |range: &u16| home_place(*range, &members) == own;
            let new = (0..NODES_MAX as u16).filter(is_here);
            self.ranges = new.map(|range| (range, Range::default())).collect();
        }
        if own.is_some() {
            self.since.get_or_insert(config.epoch);
        }
        let items = self.items(&config);
        for item in items {
            if let Some(place) = home_place(item.tag().range(), &members) {
                self.telling[usize::from(place)].items.push(item);
            }
        }
        let ready = self.ready_from.map(|from| Item::Ready { from });
        let since = self.since.unwrap_or(config.epoch);
        let end = Item::End { label: self.remains.label, since };
        for telling in &mut self.telling {
            telling.items.extend(ready.clone().into_iter().chain([end.clone()]));
        }
        if own.is_none() {
            // The members wait for the report of this node, but not for it to be ready.
            self.ready_from.get_or_insert(config.epoch);
            self.told_away.extend(self.ranges.keys());
        }
        if let Some(own) = own.map(usize::from) {
            let told = core::mem::take(&mut self.telling[own].items);
            self.reports[own] = Report::whole(told);
        }
        self.go_on(now, sink);
    }

    /// The items of this node's report.
    fn items(&self, config: &Config) -> Vec<Item> {
        let Remains { label, members, node } = &self.remains;
        let tells = |member: &Place| MemoryNode::tellers(config).any(|m| m == member);
        let stays = |place: u8| members.get(usize::from(place)).is_some_and(tells);
        let is_anybody_gone = !members.iter().all(tells);
        let mut items = Vec::new();
        for (range, own) in &self.ranges {
            let is_tainted = self.told_away.contains(range);
            let Range { base, is_orphan, .. } = *own;
            items.push(Item::Claim { range: *range, base, is_orphan, is_tainted });
            let is_in_doubt =
                base == *label && is_anybody_gone && self.settings.guards.on(Guard::LostKnown);
            let doubts = node.doubts.iter().filter(|_| is_in_doubt);
            items.extend(crate::report::of_range(*range, own, doubts, &stays));
        }
        items.extend(node.copies.iter().cloned());
        items
    }

    /// Sends what is not acknowledged, rebuilds, and opens, as far as possible now.
    fn go_on(&mut self, now: Now, sink: &mut impl Sink) {
        if self.node.is_some() || self.config.is_none() || self.has_left() {
            self.retry_at = Instant::NEVER;
            return;
        }
        self.retry_at = now.instant.after(RETRY_NS);
        self.tell(true, sink);
        self.rebuild(now);
        if self.is_rebuilt {
            self.ready.insert(self.settings.node.0);
        }
        let own = self.settings.node.0;
        let is_member =
            self.config.as_ref().is_some_and(|c| MemoryNode::place_of(c, own).is_some());
        if self.is_rebuilt || !is_member {
            self.say_ready(true, None, sink);
        }
        self.try_open(now, sink);
    }

    /// Sends homes the items that they have not acknowledged; without `again`, only those never
    /// sent.
    fn tell(&mut self, again: bool, sink: &mut impl Sink) {
        let Some(config) = &self.config else { return };
        let from = self.settings.node;
        let base = |op| Repr {
            group: self.settings.group,
            from,
            epoch: Epoch(config.epoch),
            ..Repr::new(op, Tag(0))
        };
        for (member, telling) in config.members.iter().zip(&mut self.telling) {
            telling.send(member.addr, again, &base, sink);
        }
    }

    /// Announces to all others, or to one, that this home has rebuilt its ranges. `asks`: whether
    /// the receiver is to answer if it has; a node that leaves only asks.
    fn say_ready(&self, asks: bool, to: Option<Addr>, sink: &mut impl Sink) {
        let Some(config) = &self.config else { return };
        let ready = Repr {
            group: self.settings.group,
            from: self.settings.node,
            epoch: Epoch(config.epoch),
            is_first: asks,
            ..Repr::new(Op::Ready, Tag(0))
        };
        let bytes = ready.packet(&[]);
        match to {
            Some(to) => sink.send(to, &bytes),
            None => self.others().for_each(|other| sink.send(other.addr, &bytes)),
        }
    }

    /// Rebuilds the ranges once all reports are complete; this home is then ready once the leases
    /// that were granted to nodes outside have ended.
    fn rebuild(&mut self, now: Now) {
        let Some(config) = self.config.clone() else { return };
        let waits = self.has(Guard::AllReports);
        let Some(own) = MemoryNode::place_of(&config, self.settings.node.0) else { return };
        let is_whole = |(place, report): (usize, &Report)| {
            report.is_whole() || !waits && place != usize::from(own)
        };
        if self.is_rebuilt || !self.reports.iter().enumerate().all(is_whole) {
            return;
        }
        // A node that has reported has stopped.
        let has_stopped = |node: NodeId| MemoryNode::tellers(&config).any(|m| m.node == node.0);
        let until = self.leases.others_until(has_stopped);
        // Perhaps none of the members that granted leases to outsiders is here.
        let is_new = self.reports.iter().all(Report::is_newcomers) && config.epoch > 1;
        let began_at = if is_new { self.began_at } else { Instant(0) };
        let quiet_until = self.quiet_until.max(began_at.after(self.settings.lease_ns));
        let is_quiet = now.instant < quiet_until && self.has(Guard::QuietStart);
        if now.instant < until && self.has(Guard::MemoryOutsiders) || is_quiet {
            return;
        }
        let members: Vec<u16> = config.members.iter().map(|m| m.node).collect();
        let mut ranges = BTreeMap::new();
        for range in 0..NODES_MAX as u16 {
            if home_place(range, &members) == Some(own) {
                let is_checked = self.has(Guard::UnopenedEpoch);
                let mut rebuilt =
                    crate::report::rebuild(range, config.epoch, &self.reports, is_checked);
                rebuilt.base = config.epoch;
                self.counters.blocks_lost += rebuilt.lost.len() as u64;
                ranges.insert(range, rebuilt);
            }
        }
        // Ranges that others may still need are reported once more if this epoch is not opened.
        let away = core::mem::take(&mut self.ranges);
        let stays = |(range, _): &(u16, Range)| !ranges.contains_key(range);
        let away: Vec<(u16, Range)> = away.into_iter().filter(stays).collect();
        self.told_away.retain(|range| !ranges.contains_key(range));
        self.told_away.extend(away.iter().map(|(range, _)| *range));
        ranges.extend(away);
        self.ranges = ranges;
        self.remains.node.doubts.retain(|tag, _| self.told_away.contains(&tag.range()));
        self.is_rebuilt = true;
        self.ready_from.get_or_insert(config.epoch);
    }

    /// Opens the epoch, if all homes are ready.
    fn try_open(&mut self, now: Now, sink: &mut impl Sink) {
        let Some(config) = self.config.clone() else { return };
        let is_ready = config.members.iter().all(|m| self.ready.contains(&m.node));
        if self.node.is_some() || !is_ready || !self.is_rebuilt {
            return;
        }
        let Some(place) = MemoryNode::place_of(&config, self.settings.node.0) else { return };
        let members: Vec<u16> = config.members.iter().map(|m| m.node).collect();
        let is_here = |range: u16| home_place(range, &members) == Some(place);
        self.ranges.retain(|range, _| is_here(*range));
        let addrs = config.members.iter().map(|m| m.addr).collect();
        let mut settings =
            node_settings(&self.settings, Epoch(config.epoch), place, addrs, config.switch);
        settings.homes =
            (0..NODES_MAX as u16).filter_map(|range| home_place(range, &members)).collect();
        let ranges = self.ranges.iter_mut().map(|(range, own)| (*range, own.open())).collect();
        let Ok(node) = Node::with_ranges(settings, ranges) else { return };
        self.node = Some(node);
        self.remains =
            Remains { label: config.epoch, members: config.members, ..Remains::default() };
        (self.reports, self.telling) = (Vec::new(), Vec::new());
        self.ready_from = None;
        self.told_away.clear();
        self.retry_at = Instant::NEVER;
        self.counters.epochs_opened += 1;
        let others: Vec<NodeId> = self.others().map(|m| NodeId(m.node)).collect();
        self.leases.open(now.instant, others.into_iter());
        self.alive_at = now.instant;
        self.request_leases(now, sink);
        self.pump(now, sink);
    }

    fn request_leases(&mut self, now: Now, sink: &mut impl Sink) {
        self.leases.on_requested(now.instant);
        let (epoch, from, asked_at) = (self.epoch(), self.settings.node.0, now.instant.0);
        let request = LeaseMessage::Request { epoch, from, asked_at };
        request.emit_in(self.settings.group, &mut self.buffer);
        let others: Vec<Place> = self.others().collect();
        others.iter().for_each(|other| sink.send(other.addr, &self.buffer));
    }

    fn on_lease(&mut self, now: Now, message: LeaseMessage, sink: &mut impl Sink) {
        match message {
            LeaseMessage::Request { epoch, from, asked_at } => {
                let Some(member) = self.member_of(from) else { return };
                if epoch != self.epoch() || self.node.is_none() {
                    return;
                }
                self.leases.grant(now.instant, NodeId(from), member.incarnation);
                let from = self.settings.node.0;
                let grant = LeaseMessage::Grant { epoch, from, asked_at };
                grant.emit_in(self.settings.group, &mut self.buffer);
                sink.send(member.addr, &self.buffer);
            }
            LeaseMessage::Grant { epoch, from, asked_at } => {
                if epoch == self.epoch() && self.node.is_some() {
                    self.leases.on_grant(now.instant, NodeId(from), Instant(asked_at));
                }
            }
            LeaseMessage::Release { .. } => {}
        }
    }

    /// Handles a message between members while an epoch begins.
    fn on_beginning(&mut self, now: Now, packet: &Repr, data: &[u8], sink: &mut impl Sink) {
        let Some(config) = &self.config else { return };
        let is_from = |member: &Place| member.node == packet.from.0;
        let of_epoch = (packet.epoch.0 == config.epoch).then_some(config);
        let from = of_epoch.and_then(|config| MemoryNode::tellers(config).position(is_from));
        let Some(from) = from else { return };
        let Some(addr) = MemoryNode::tellers(config).nth(from).map(|member| member.addr) else {
            return;
        };
        match packet.op {
            Op::Ready => {
                self.ready.insert(packet.from.0);
                if packet.is_first && self.is_rebuilt {
                    self.say_ready(false, Some(addr), sink);
                }
            }
            Op::Told => {
                if let Some(telling) = self.telling.get_mut(from) {
                    telling.acknowledged(packet.copyset.0);
                }
                self.tell(false, sink);
            }
            _ => {
                let block_bytes = self.settings.block_bytes;
                let report = self.reports.get_mut(from);
                // A member whose epoch is open has all reports.
                if report.is_none_or(|report| report.hear(packet, data, block_bytes)) {
                    let told = Repr { op: Op::Told, from: self.settings.node, ..*packet };
                    sink.send(addr, &Repr { offset_bytes: 0, ..told }.packet(&[]));
                }
            }
        }
        if self.node.is_none() {
            self.rebuild(now);
            if self.is_rebuilt && self.ready.insert(self.settings.node.0) {
                self.say_ready(true, None, sink);
            }
            self.try_open(now, sink);
        }
    }

    fn on_coherence(&mut self, now: Now, bytes: &mut [u8], sink: &mut impl Sink) {
        let Ok((packet, data)) = Repr::parse(bytes) else {
            self.counters.unexpected += 1;
            return;
        };
        if packet.group != self.settings.group {
            self.counters.unexpected += 1;
            return;
        }
        if packet.op.is_of_beginnings() {
            return self.on_beginning(now, &packet, data, sink);
        }
        if !self.is_leased(now) {
            // Whatever it is, it will be sent again.
            self.counters.unleased += 1;
            return;
        }
        match &mut self.node {
            Some(node) => node.handle(now, self.settings.addr, bytes, sink),
            None => self.counters.closed += 1,
        }
        self.pump(now, sink);
    }

    /// Sends a keepalive: a node that is heard becomes a member.
    fn live(&mut self, now: Now, sink: &mut impl Sink) {
        self.alive_at = now.instant.after(ALIVE_NS);
        let standing = match (self.is_leaving, &self.config, &self.node) {
            (true, ..) => Standing::Leaving,
            (false, None, _) => Standing::Out,
            (false, Some(_), None) => Standing::Opening { caught_up: true },
            (false, Some(_), Some(_)) => Standing::Open { caught_up: true },
        };
        let MemberSettings { node, incarnation, addr, group, controller, .. } = self.settings;
        let alive = Membership::ReplicaAlive(ReplicaAlive {
            member: Place { node: node.0, incarnation, addr },
            sent_at: now.instant.0,
            heard: self.heard,
            standing,
            held: Held::default(),
            data_dir: None,
            unheard: Vec::new(),
        });
        alive.emit_in(group, &mut self.buffer);
        sink.send(controller, &self.buffer);
    }
}

/// The settings of a node for one epoch.
fn node_settings(
    own: &MemberSettings,
    epoch: Epoch,
    place: u8,
    nodes: Vec<Addr>,
    switch: Addr,
) -> NodeSettings {
    NodeSettings {
        node: own.node,
        place,
        group: own.group,
        epoch,
        homes: alloc::vec![0; NODES_MAX],
        nodes,
        switch,
        block_bytes: own.block_bytes,
        range_blocks: own.range_blocks,
        cache_sets: own.cache_sets,
        cache_ways: own.cache_ways,
        lanes: own.lanes,
        coherence: own.coherence,
        guards: own.guards,
    }
}

impl Machine for MemoryNode {
    type Persist = Nothing;

    fn handle(&mut self, now: Now, _from: Addr, bytes: &mut [u8], sink: &mut impl Sink) {
        match concord_wire::kind(bytes) {
            Ok(Kind::Concordia) => self.on_coherence(now, bytes, sink),
            Ok(Kind::Membership) => match Membership::parse(bytes) {
                Ok(Membership::Configure(part)) => {
                    if let Some(config) = self.assembly.take(part) {
                        self.configure(now, config, sink);
                    }
                }
                Ok(_) | Err(_) => self.counters.unexpected += 1,
            },
            Ok(Kind::Lease) => match LeaseMessage::parse(bytes) {
                Ok(message) => {
                    self.on_lease(now, message, sink);
                    self.pump(now, sink);
                }
                Err(_) => self.counters.unexpected += 1,
            },
            Ok(_) | Err(_) => self.counters.unexpected += 1,
        }
    }

    fn tick(&mut self, now: Now, sink: &mut impl Sink) {
        if self.alive_at <= now.instant {
            self.live(now, sink);
        }
        if self.node.is_some() && self.leases.next_request() <= now.instant {
            self.request_leases(now, sink);
        }
        if self.retry_at <= now.instant {
            self.go_on(now, sink);
        }
        let is_leased = self.is_leased(now);
        if let Some(node) = self.node.as_mut().filter(|_| is_leased) {
            node.tick(now, sink);
        } else {
            self.stalled_until = now.instant.after(RETRY_NS);
        }
        self.pump(now, sink);
    }

    fn deadline(&self) -> Deadline {
        let at = |at, reason| Deadline { at, reason };
        let node = self.node.as_ref().map_or(Deadline::NONE, Node::deadline);
        let node = Deadline { at: node.at.max(self.stalled_until), ..node };
        let leases = if self.node.is_some() { self.leases.next_request() } else { Instant::NEVER };
        [
            at(self.alive_at, "a sign of life"),
            at(leases, "leases are asked for"),
            at(self.retry_at, "an epoch begins"),
        ]
        .into_iter()
        .fold(node, Deadline::min)
    }
}
