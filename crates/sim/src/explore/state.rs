//! A state of the rack, the possible next actions, and the invariants.

use std::collections::VecDeque;

use concord_check::{Operation, Options, Reply, check};
use concord_core::Position;
use concord_protocols::{Node, Phase};
use concord_wire::control::Protocol;

use super::canonical::fingerprint_of;
use super::order::{Event, has_order};
use super::registers::Registers;
use super::rig::{
    At, Flight, Input, MOMENT_MS, MachineId, NOBODY, PacketId, Rig, STEP_MS, WAIT_STEPS,
};
use super::setup::{Budget, Call, Over, Prepared, Write};
use super::sort::Sort;
use super::travel::{Passage, Travel};
use crate::world::{CONTROLLER, REPLICAS, SWITCH};

/// The maximum number of calls of a client.
const CALLS_MAX: usize = 4;
/// The maximum number of time steps until the rack must be ready.
const STEPS_MAX: u16 = 50;

/// A possible next action.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    Call(u8),
    Deliver(PacketId),
    /// A fast read arrives at that replica: Algorithm 1, line 12, draws one.
    Read(PacketId, u8),
    /// The recirculated packet of that switch makes its next pass.
    Round(u8),
    Duplicate(PacketId),
    Lose(PacketId),
    Crash(u8),
    Restart(u8),
    Isolate(u8),
    Replace,
    Rival,
    Moment,
    Wait,
}

impl Action {
    pub(super) fn describe(self, rig: &Rig) -> String {
        match self {
            Action::Call(client) => format!("client-{client} calls"),
            Action::Deliver(packet) => rig.describe(packet),
            Action::Read(packet, replica) => {
                format!("{} (at replica-{replica})", rig.describe(packet))
            }
            Action::Round(switch) => format!("a packet comes round in {}", rig.name(switch.into())),
            Action::Duplicate(packet) => format!("first of two, {}", rig.describe(packet)),
            Action::Lose(packet) => format!("lost, {}", rig.describe(packet)),
            Action::Crash(replica) => format!("replica-{replica} dies"),
            Action::Restart(replica) => format!("replica-{replica} dies and comes back, empty"),
            Action::Isolate(replica) => {
                format!("replica-{replica} is cut off, not from the switch")
            }
            Action::Replace => "the switch is replaced".into(),
            Action::Rival => "another switch takes over".into(),
            Action::Moment => "a moment passes".into(),
            Action::Wait => "time passes".into(),
        }
    }
}

/// A call: the calls that had returned before it was made, and its reply.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Called {
    begun: bool,
    after: u32,
    reply: Option<u32>,
}

#[derive(Clone, Debug)]
pub(super) struct State {
    /// The machine of each node.
    pub(super) machines: Vec<MachineId>,
    /// The packets in flight, in the order in which they were sent.
    net: Vec<PacketId>,
    /// The time.
    pub(super) at: At,
    /// The replica that is cut off, and whether it has been since before the last wait.
    cut: Option<(u8, bool)>,
    /// Whether the first switch is cut off with it.
    is_split: bool,
    pub(super) left: Budget,
    calls: Vec<[Called; CALLS_MAX]>,
}

impl State {
    /// A rack that is ready: the first epoch is open, leases are held, clients are registered, and
    /// a first completion was seen.
    pub(super) fn first(rig: &mut Rig) -> Result<State, String> {
        let nodes = rig.nodes();
        let mut state = State {
            machines: (0..nodes).map(|node| rig.first(node)).collect(),
            net: Vec::new(),
            at: At { ms: 0, is_over: false },
            cut: None,
            is_split: false,
            left: rig.setup.budget,
            calls: vec![[Called::default(); CALLS_MAX]; rig.setup.scripts.len()],
        };
        for step in 0..STEPS_MAX {
            state.at.ms += STEP_MS;
            state.tick(rig, Travel::Starting);
            let ready = state.machines.iter().all(|id| rig.is_ready(*id, state.at));
            if ready && step > 4 {
                for client in 0..state.calls.len() {
                    if !rig.is_warm(client) {
                        continue;
                    }
                    let node = rig.client(client);
                    let (id, sent) = rig.warm_up(node, state.machines[node], state.at);
                    state.machines[node] = id;
                    state.send(rig, &sent, Travel::Starting);
                }
                state.at.ms += STEP_MS;
                state.tick(rig, Travel::Starting);
                state.end_time(rig);
                return Ok(state);
            }
        }
        Err("the rack never was ready".into())
    }

    /// The initial state that `how` describes, made from one that is ready.
    pub(super) fn prepared(&self, rig: &mut Rig, how: Prepared) -> State {
        let mut next = self.clone();
        next.call(rig, 0);
        match how {
            Prepared::Missed { missed, leader_dies } => next.miss(rig, missed, leader_dies),
            Prepared::Session { write, over } => next.end_session(rig, write, over),
        }
        if rig.setup.reduced {
            next.forget_stale(rig);
        }
        next
    }

    fn miss(&mut self, rig: &mut Rig, missed: u8, leader_dies: bool) {
        for packet in std::mem::take(&mut self.net) {
            let to = rig.packets[packet as usize].to;
            let is_missed = rig.is_replica(to) && missed >> (to - REPLICAS) & 1 == 1;
            if !is_missed {
                self.arrive(rig, packet);
            }
        }
        if let Some(leader) = self.leader(rig).filter(|_| leader_dies) {
            self.crash(rig, leader);
        }
        self.wait(rig);
    }

    fn end_session(&mut self, rig: &mut Rig, write: Write, over: Over) {
        if write == Write::Executed {
            for packet in std::mem::take(&mut self.net) {
                let to = rig.packets[packet as usize].to;
                self.take(rig, to, Input::Packet(packet), Travel::Changing);
            }
        }
        match over {
            Over::LeaderDied => {
                if let Some(leader) = self.leader(rig) {
                    self.crash(rig, leader);
                }
            }
            Over::Replaced => self.start_switch(rig, SWITCH, 1, Travel::Changing),
            Over::Rival => self.start_switch(rig, rig.other_switch(), 1, Travel::Changing),
            Over::Split => {
                self.cut = Some((rig.setup.replicas as u8 - 1, false));
                self.is_split = true;
                self.start_switch(rig, rig.other_switch(), 1, Travel::Changing);
            }
        }
        let has_other = matches!(over, Over::Rival | Over::Split);
        let mut steps = 0..STEPS_MAX;
        while !(self.session_begins(rig) && (!has_other || self.asks_other_switch(rig))) {
            assert!(steps.next().is_some(), "no other session begins");
            self.at.ms += STEP_MS;
            self.tick(rig, Travel::Changing);
            self.cut = self.cut.map(|(replica, _)| (replica, true));
        }
        self.end_time(rig);
    }

    /// Whether a leader's announcement of a new session is in flight.
    fn session_begins(&self, rig: &Rig) -> bool {
        self.net.iter().any(|packet| rig.sorts[*packet as usize] == Sort::Session)
    }

    /// Whether a client's request is in flight to the other switch.
    fn asks_other_switch(&self, rig: &Rig) -> bool {
        let flights = self.net.iter().map(|packet| &rig.packets[*packet as usize]);
        flights.into_iter().any(|f| rig.is_client(f.from) && f.to == rig.other_switch())
    }

    fn leader(&self, rig: &Rig) -> Option<usize> {
        let leads = |id: MachineId| matches!(rig.replica(id), Some(Node::Vr(vr)) if vr.leads());
        (REPLICAS..REPLICAS + rig.setup.replicas).find(|node| leads(self.machines[*node]))
    }

    pub(super) fn fingerprint(&self) -> u128 {
        let mut bytes = Vec::with_capacity(128);
        self.machines.iter().for_each(|id| bytes.extend_from_slice(&id.to_be_bytes()));
        let mut net = self.net.clone();
        net.sort_unstable();
        net.iter().for_each(|packet| bytes.extend_from_slice(&packet.to_be_bytes()));
        bytes.extend_from_slice(&u32::MAX.to_be_bytes());
        bytes.extend_from_slice(&self.at.ms.to_be_bytes());
        let (cut, is_old) = self.cut.unwrap_or((u8::MAX, false));
        let b = self.left;
        bytes.extend_from_slice(&[
            cut,
            u8::from(is_old) | u8::from(self.is_split) << 1,
            b.losses,
            b.duplicates,
            b.crashes,
            b.restarts,
            b.isolations,
            b.replacements,
            b.rivals,
            b.moments,
            b.waits,
        ]);
        for call in self.calls.iter().flatten().filter(|call| call.begun) {
            bytes.extend_from_slice(&call.after.to_be_bytes());
            bytes.extend_from_slice(&call.reply.unwrap_or(u32::MAX).to_be_bytes());
        }
        fingerprint_of(&bytes)
    }

    /// All possible next actions.
    pub(super) fn actions(&self, rig: &mut Rig) -> Vec<Action> {
        let mut actions = Vec::new();
        for (client, script) in rig.setup.scripts.iter().enumerate() {
            let begun = self.calls[client].iter().filter(|c| c.begun).count();
            let is_idle = begun == 0 || self.calls[client][begun - 1].reply.is_some();
            if begun < script.len() && is_idle {
                actions.push(Action::Call(client as u8));
            }
        }
        let arriving = if rig.setup.ordered { self.net.len().min(1) } else { self.net.len() };
        for packet in &self.net[..arriving] {
            if self.left.losses > 0 {
                actions.push(Action::Lose(*packet));
            }
            if self.is_early(rig, *packet) {
                continue;
            }
            self.push_delivery(rig, *packet, &mut actions);
            if self.left.duplicates > 0 {
                actions.push(Action::Duplicate(*packet));
            }
        }
        for switch in [SWITCH, rig.other_switch()] {
            if rig.has_round(self.machines[switch], self.at) {
                actions.push(Action::Round(switch as u8));
            }
        }
        for replica in 0..rig.setup.replicas {
            let is_alive = self.machines[REPLICAS + replica] != NOBODY;
            if self.left.crashes > 0 && is_alive {
                actions.push(Action::Crash(replica as u8));
            }
            if self.left.restarts > 0 && is_alive {
                actions.push(Action::Restart(replica as u8));
            }
            if self.left.isolations > 0 && is_alive && self.cut.is_none() {
                actions.push(Action::Isolate(replica as u8));
            }
        }
        if self.left.replacements > 0 {
            actions.push(Action::Replace);
        }
        if self.left.rivals > 0 {
            actions.push(Action::Rival);
        }
        if self.left.moments > 0 {
            actions.push(Action::Moment);
        }
        if self.left.waits > 0 {
            actions.push(Action::Wait);
        }
        actions
    }

    fn push_delivery(&self, rig: &Rig, packet: PacketId, actions: &mut Vec<Action>) {
        let from_switch = rig.is_switch(rig.packets[packet as usize].from);
        if !(from_switch && rig.sorts[packet as usize] == Sort::FastRead) {
            return actions.push(Action::Deliver(packet));
        }
        let among = rig.packets[packet as usize].among;
        for replica in 0..rig.setup.replicas {
            let may_get = among == 0 || among >> replica & 1 == 1;
            if may_get && self.machines[REPLICAS + replica] != NOBODY {
                actions.push(Action::Read(packet, replica as u8));
            }
        }
    }

    /// Whether the receiver of a packet is dead.
    fn is_lost(&self, rig: &Rig, packet: PacketId) -> bool {
        let Flight { to, among, .. } = rig.packets[packet as usize];
        let is_dead = |replica: usize| self.machines[REPLICAS + replica] == NOBODY;
        match among {
            0 => self.machines[to] == NOBODY,
            _ => (0..rig.setup.replicas).all(|r| among >> r & 1 == 0 || is_dead(r)),
        }
    }

    /// The state after `action`.
    pub(super) fn after(&self, rig: &mut Rig, action: Action) -> State {
        let mut next = self.clone();
        match action {
            Action::Call(client) => next.call(rig, usize::from(client)),
            Action::Deliver(packet) => {
                next.forget(packet);
                next.arrive(rig, packet);
            }
            Action::Read(packet, replica) => {
                next.forget(packet);
                let node = REPLICAS + usize::from(replica);
                next.take(rig, node, Input::Packet(packet), Travel::Free);
            }
            Action::Round(switch) => next.take(rig, switch.into(), Input::Round, Travel::Free),
            Action::Duplicate(packet) => {
                next.left.duplicates -= 1;
                next.arrive(rig, packet);
            }
            Action::Lose(packet) => {
                next.left.losses -= 1;
                next.forget(packet);
            }
            Action::Crash(replica) => {
                next.left.crashes -= 1;
                next.crash(rig, REPLICAS + usize::from(replica));
            }
            Action::Restart(replica) => {
                next.left.restarts -= 1;
                let node = REPLICAS + usize::from(replica);
                let restarts = rig.setup.budget.restarts - next.left.restarts;
                next.machines[node] = rig.new_replica(node, restarts);
                next.take(rig, node, Input::Tick, Travel::Free);
            }
            Action::Isolate(replica) => {
                next.left.isolations -= 1;
                next.cut = Some((replica, false));
            }
            Action::Replace => {
                next.left.replacements -= 1;
                next.start_switch(rig, SWITCH, next.switches(rig), Travel::Free);
            }
            Action::Rival => {
                next.left.rivals -= 1;
                next.start_switch(rig, rig.other_switch(), next.switches(rig), Travel::Free);
            }
            Action::Moment => {
                next.left.moments -= 1;
                next.at.ms += MOMENT_MS;
                next.tick(rig, Travel::Free);
                next.end_time(rig);
            }
            Action::Wait => {
                next.left.waits -= 1;
                next.wait(rig);
            }
        }
        if rig.setup.reduced {
            next.forget_stale(rig);
        }
        next
    }

    fn crash(&mut self, rig: &Rig, node: usize) {
        self.machines[node] = NOBODY;
        let mut net = std::mem::take(&mut self.net);
        net.retain(|packet| !self.is_lost(rig, *packet));
        self.net = net;
    }

    fn wait(&mut self, rig: &mut Rig) {
        for _ in 0..WAIT_STEPS {
            self.at.ms += STEP_MS;
            self.tick(rig, Travel::Waiting);
            self.cut = self.cut.map(|(replica, _)| (replica, true));
        }
        self.end_time(rig);
    }

    /// If no more time will pass, forgets the times when things are due.
    fn end_time(&mut self, rig: &mut Rig) {
        if rig.setup.reduced && self.left.waits == 0 && self.left.moments == 0 {
            self.at.is_over = true;
            self.machines.iter_mut().for_each(|id| *id = rig.without_time(*id));
        }
    }

    fn forget_stale(&mut self, rig: &mut Rig) {
        let mut net = std::mem::take(&mut self.net);
        net.retain(|packet| !self.is_stale(rig, *packet));
        self.net = net;
    }

    fn call(&mut self, rig: &mut Rig, client: usize) {
        let returned = |c: &Called| u32::from(c.reply.is_some());
        let all = self.calls.iter().flatten().enumerate();
        let after = all.map(|(bit, call)| returned(call) << bit).sum();
        let number = self.calls[client].iter().filter(|c| c.begun).count();
        self.calls[client][number] = Called { begun: true, after, reply: None };
        self.take(rig, rig.client(client), Input::Call(number as u8), Travel::Calling);
    }

    /// The number of switches that were started after the first one; a prepared state may have one
    /// more.
    fn switches(&self, rig: &Rig) -> u8 {
        let (all, left) = (rig.setup.budget, self.left);
        let prepared = u8::from(!rig.setup.prepared.is_empty());
        prepared + all.replacements - left.replacements + all.rivals - left.rivals
    }

    fn start_switch(&mut self, rig: &mut Rig, node: usize, before: u8, travel: Travel) {
        self.machines[node] = rig.switch(node, before);
        self.take(rig, node, Input::Tick, travel);
    }

    fn forget(&mut self, packet: PacketId) {
        if let Some(at) = self.net.iter().position(|p| *p == packet) {
            self.net.remove(at);
        }
    }

    fn arrive(&mut self, rig: &mut Rig, packet: PacketId) {
        let to = rig.packets[packet as usize].to;
        self.take(rig, to, Input::Packet(packet), Travel::Free);
    }

    /// Wakes every node whose deadline has passed.
    fn tick(&mut self, rig: &mut Rig, travel: Travel) {
        for node in 0..self.machines.len() {
            if rig.deadline(self.machines[node]) <= self.at.instant() {
                self.take(rig, node, Input::Tick, travel);
            }
        }
    }

    /// Gives a node an input; the packets that it sends are then in flight, or arrive at once.
    fn take(&mut self, rig: &mut Rig, node: usize, input: Input, travel: Travel) {
        let sent = self.step(rig, node, input);
        self.send(rig, &sent, travel);
    }

    fn send(&mut self, rig: &mut Rig, sent: &[PacketId], travel: Travel) {
        let mut arriving: VecDeque<PacketId> = VecDeque::new();
        self.route(rig, sent, travel, &mut arriving);
        while let Some(packet) = arriving.pop_front() {
            let to = rig.packets[packet as usize].to;
            let sent = self.step(rig, to, Input::Packet(packet));
            self.route(rig, &sent, travel, &mut arriving);
        }
    }

    fn step(&mut self, rig: &mut Rig, node: usize, input: Input) -> Vec<PacketId> {
        let step = rig.step(node, self.machines[node], input, self.at);
        self.machines[node] = step.next;
        for reply in &step.replies {
            let client = node - rig.client(0);
            // The reply to the write that registers the client belongs to no call.
            if let Some(call) = self.calls[client].iter_mut().rfind(|call| call.begun) {
                call.reply = call.reply.or(Some(*reply));
            }
        }
        step.sent.clone()
    }

    fn route(
        &mut self,
        rig: &Rig,
        sent: &[PacketId],
        travel: Travel,
        arriving: &mut VecDeque<PacketId>,
    ) {
        for packet in sent {
            if self.is_lost(rig, *packet) {
                continue;
            }
            match self.passage(rig, *packet, travel) {
                Passage::AtOnce => arriving.push_back(*packet),
                Passage::UnderWay if !self.net.contains(packet) => self.net.push(*packet),
                Passage::UnderWay | Passage::Cut => {}
            }
        }
    }

    fn passage(&self, rig: &Rig, packet: PacketId, travel: Travel) -> Passage {
        let flight = &rig.packets[packet as usize];
        let (from, to, sort) = (flight.from, flight.to, rig.sorts[packet as usize]);
        if let Some((replica, is_old)) = self.cut {
            let own = REPLICAS + usize::from(replica);
            let is_own = |node: usize| node == own || (self.is_split && node == SWITCH);
            let is_peer = |node: usize| {
                (rig.is_replica(node) && node != own)
                    || node == CONTROLLER
                    || (self.is_split && node == rig.other_switch())
            };
            if (is_own(from) && is_peer(to)) || (is_own(to) && is_peer(from)) {
                // The lease that it last asked for is granted, and in flight to it.
                return match sort {
                    Sort::LeaseRequest if from == own && !is_old => Passage::AtOnce,
                    Sort::LeaseGrant if to == own && !is_old => Passage::UnderWay,
                    _ => Passage::Cut,
                };
            }
        }
        let is_ack = sort == Sort::Ack;
        // In a chain, acknowledgements have no effect that a client could see.
        let is_idle_ack = is_ack && rig.setup.protocol == Protocol::Chain;
        // A later reply, or a call that reaches the switch later than it was made, leaves more
        // orders open: nothing is missed if they arrive at once. A reply may be lost, though.
        let is_hurried = match sort {
            Sort::ReadReply => true,
            Sort::WriteReply => rig.is_switch(from) && self.left.losses == 0,
            Sort::Request | Sort::FastRead => travel == Travel::Calling && rig.is_switch(to),
            _ => false,
        };
        let is_periodic = match sort {
            Sort::Periodic | Sort::LeaseRequest | Sort::LeaseGrant => true,
            // To a client that asked for it; or repeated by a leader to the switch.
            Sort::Configure => {
                rig.is_client(to) || (rig.is_replica(from) && travel == Travel::Waiting)
            }
            _ => false,
        };
        let at_once = match travel {
            Travel::Free | Travel::Calling => is_periodic || is_idle_ack || is_hurried,
            Travel::Waiting => is_periodic || is_ack || is_hurried,
            Travel::Changing => {
                let of_switch = rig.is_switch(flight.from) || rig.is_switch(flight.to);
                is_periodic || sort == Sort::Configure || !of_switch
            }
            Travel::Starting => true,
        };
        if at_once { Passage::AtOnce } else { Passage::UnderWay }
    }

    /// The replies that clients received.
    pub(super) fn replies(&self) -> Vec<(usize, u32)> {
        let all = self.calls.iter().enumerate();
        all.flat_map(|(client, calls)| calls.iter().filter_map(move |c| Some((client, c.reply?))))
            .collect()
    }

    /// Whether every call was answered and no packet is in flight.
    pub(super) fn is_end(&self, rig: &Rig) -> bool {
        let scripts = rig.setup.scripts.iter().map(Vec::len).sum::<usize>();
        self.net.is_empty() && self.replies().len() == scripts
    }

    /// Whether the history so far is linearizable.
    fn has_order(&self, rig: &mut Rig) -> bool {
        let mut key = Vec::new();
        for call in self.calls.iter().flatten() {
            let reply = call.reply.unwrap_or(u32::MAX);
            key.extend(
                [u32::from(call.begun), call.after, reply].iter().flat_map(|n| n.to_be_bytes()),
            );
        }
        let key = fingerprint_of(&key);
        if let Some(known) = rig.orders.get(&key) {
            return *known;
        }
        let is_of_several = |call: &Call| call.keys().len() > 1;
        let has_order = if rig.setup.scripts.iter().flatten().any(is_of_several) {
            has_order(&self.events(rig))
        } else {
            let history = self.history(rig);
            check(&history, &Options::default()).is_ok_and(|report| report.is_ok())
        };
        rig.orders.insert(key, has_order);
        has_order
    }

    /// The calls that were made, and not refused.
    fn events(&self, rig: &Rig) -> Vec<Event> {
        let calls = self.calls.iter().flatten().enumerate().filter(|(_, call)| call.begun);
        let event = |(bit, called): (usize, &Called)| Event {
            bit: 1 << bit,
            after: called.after,
            call: rig.setup.scripts[bit / CALLS_MAX][bit % CALLS_MAX],
            reply: rig.known(called.reply),
        };
        calls.map(event).filter(|event| !matches!(event.reply, Some(Reply::Error(_)))).collect()
    }

    /// The calls as a history, with times that tell only which call returned before which was made.
    fn history(&self, rig: &Rig) -> Vec<Operation> {
        let mut levels: Vec<u32> =
            self.calls.iter().flatten().filter(|c| c.begun).map(|c| c.after).collect();
        // A later call has all calls before it that had returned before an earlier one.
        levels.sort_unstable_by_key(|after| after.count_ones());
        levels.dedup();
        let level = |fits: &dyn Fn(u32) -> bool| levels.iter().position(|after| fits(*after));
        let mut history = Vec::new();
        for (client, calls) in self.calls.iter().enumerate() {
            for (number, call) in calls.iter().enumerate().filter(|(_, call)| call.begun) {
                let bit = 1 << (client * CALLS_MAX + number);
                let called = level(&|after| after == call.after).unwrap_or(0);
                let returned = level(&|after| after & bit != 0).unwrap_or(levels.len());
                let args = rig.setup.scripts[client][number].args();
                let reply = rig.known(call.reply);
                history.push(Operation {
                    client: client as u64,
                    ordinal: None,
                    call_ns: 10 * called as u64 + 10,
                    return_ns: reply.as_ref().map(|_| 10 * returned as u64 + 5),
                    cmd: args.iter().map(|arg| arg.as_bytes().to_vec()).collect(),
                    reply,
                    path: None,
                });
            }
        }
        history
    }

    /// The violation of an invariant, if there is one: a history without an order, members of one
    /// epoch (view) with different ends of their logs, replicas of a quorum that call different
    /// records committed.
    pub(super) fn is_wrong(&self, rig: &mut Rig) -> Option<String> {
        let is_unknown = |(_, reply): &(usize, u32)| matches!(&rig.replies[*reply as usize], Reply::Error(text) if text.starts_with("ERR"));
        if self.replies().iter().any(is_unknown) {
            return Some("the engine does not know a command".into());
        }
        if !self.has_order(rig) {
            return Some("the history has no order".into());
        }
        let replicas: Vec<_> = self.machines.iter().filter_map(|id| rig.replica(*id)).collect();
        for (at, one) in replicas.iter().enumerate() {
            for other in &replicas[..at] {
                if differ_at_end(one, other) {
                    return Some("two members of an epoch differ in a record".into());
                }
                if rig.setup.protocol.is_quorum() && differ_in_committed(one, other) {
                    return Some("two replicas call different records committed".into());
                }
            }
        }
        None
    }
}

fn differ_at_end(one: &Node<Registers>, other: &Node<Registers>) -> bool {
    let (mine, theirs) = (one.log().end(), other.log().end());
    let both_open = one.phase() == Phase::Open && other.phase() == Phase::Open;
    both_open
        && epoch_of(one) == epoch_of(other)
        && mine.position == theirs.position
        && mine != theirs
}

/// The epoch, or the view of a quorum protocol.
fn epoch_of(replica: &Node<Registers>) -> u32 {
    match replica {
        Node::Replica(replica) => replica.config().map_or(0, |c| c.epoch),
        Node::Vr(vr) => vr.view().0,
    }
}

fn differ_in_committed(one: &Node<Registers>, other: &Node<Registers>) -> bool {
    let both = one.committed().0.min(other.committed().0);
    let hash = |replica: &Node<Registers>| replica.log().hash_at(Position(both));
    hash(one).zip(hash(other)).is_some_and(|(mine, theirs)| mine != theirs)
}
