//! The machines of all states: each distinct machine and packet is stored once, and each step of a
//! machine is executed once. A step is a function of the machine, its input and the time.

use std::collections::HashMap;
use std::rc::Rc;

use concord_check::Reply;
use concord_client::{Class, Client, ClientConfig, Request};
use concord_control::ControllerConfig;
use concord_core::hash;
use concord_core::machine::{Persist, Relevance};
use concord_core::{Instant, MS, Machine, Now, Rng, SEC, Sink};
use concord_engine::CommandBuf;
use concord_protocols::{Node, Phase, ReplicaConfig};
use concord_switch::agent::AgentConfig;
use concord_switch::settings::Sections;
use concord_switch::{Loop, TableSettings};
use concord_wire::rpc::at;
use concord_wire::{Flags, FurtherIds};
use rustc_hash::FxBuildHasher;

use super::canonical::{IDLE, LINK_TIMES, TIMERS, UNSEEN, fingerprint};
use super::registers::Registers;
use super::setup::{Call, Setup};
use super::sort::Sort;
use crate::describe::describe;
use crate::systems::KEY_GROUPS;
use crate::systems::store::build::Blueprint;
use crate::systems::store::role;
use crate::systems::store::workload::parse_reply;
use crate::world::{CONTROLLER, Outgoing, REPLICAS, SWITCH, addr, node_of};

/// The unit in which time passes, in ms.
pub(super) const STEP_MS: u32 = 40;
const STEP_NS: u64 = STEP_MS as u64 * MS;
/// The number of units in one wait: enough that silent nodes are removed and all time-outs have
/// passed.
pub(super) const WAIT_STEPS: u16 = 5;
/// The duration of a moment, in ms: packets that were delayed to share a datagram are sent, and
/// nothing times out.
pub(super) const MOMENT_MS: u32 = 1;
/// The time of silence after which a node is removed, in ns: less than a wait, and more than a
/// lease, so that a removed node holds no lease any more, unless it waited.
const FAILURE_NS: u64 = 150 * MS;
const LEASE_NS: u64 = 100 * MS;
/// The interval at which requests and no-ops are sent again, in ns: once in a wait.
const RETRY_NS: u64 = 150 * MS;
/// A recirculated packet makes its next pass when it is chosen, however soon that is.
const ROUND: Loop = Loop { delay_ns: 1, ..Loop::DEFAULT };
/// The maximum number of times in a row that a machine may ask to be woken at once.
const TICKS_MAX: usize = 16;
/// The distance between the incarnations of one node: more than the streams, copies or recoveries
/// that an exploration counts, whose tags begin with the incarnation or are combined with it
/// (`CrashVectorEntry::tag`), so that no tags collide. It applies to switches, too: one that is
/// deposed increments its incarnation, which must not become that of another switch.
const INCARNATIONS_APART: u64 = 0x100;

/// The configurations of the machines of a setup.
fn blueprint(setup: &Setup) -> Blueprint {
    let of = Blueprint::new(setup.protocol, setup.program, setup.replicas, setup.guards);
    Blueprint {
        controller: ControllerConfig { failure_ns: FAILURE_NS, ..of.controller },
        replica: ReplicaConfig { lease_ns: LEASE_NS, copy_bytes: 1_000, ..of.replica },
        switch: AgentConfig {
            alive_interval_ns: STEP_NS,
            recirculation: ROUND,
            sections: Sections {
                table: TableSettings {
                    layout: setup.layout,
                    noop_interval_ns: RETRY_NS,
                    sweep_interval_ns: MS,
                    sweep_chunk: setup.layout.slots,
                },
                key_groups: KEY_GROUPS,
                ..of.switch.sections
            },
            ..of.switch
        },
        client: ClientConfig {
            window: 4,
            reads_max: 4,
            write_deadline_ns: 60 * SEC,
            read_deadline_ns: 60 * SEC,
            retry_min_ns: RETRY_NS,
            retry_max_ns: RETRY_NS,
            keepalive_ns: 600 * SEC,
            ..of.client
        },
        ..of
    }
}

/// The index of a machine in [`Rig::machines`]; 0 stands for no machine.
pub(super) type MachineId = u32;
/// The index of a packet in [`Rig::packets`].
pub(super) type PacketId = u32;

pub(super) const NOBODY: MachineId = 0;

/// The machine of a node; a dead node has none.
pub(super) type Role = crate::systems::store::role::Role<Registers, Client>;

/// A packet in flight.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Flight {
    pub from: usize,
    pub to: usize,
    pub bytes: Vec<u8>,
    /// The replicas, by bits, to which FLAIR's switch could have sent the packet as well; none for
    /// a packet that goes to `to` alone, or wherever a replica is.
    pub among: u8,
}

/// An input of a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Input {
    Packet(PacketId),
    Tick,
    /// For a switch: its recirculated packet makes its next pass.
    Round,
    /// For a client: the call with this number in its script.
    Call(u8),
}

/// The result of a step: the machine after it, and its outputs.
#[derive(Debug)]
pub(super) struct Step {
    pub next: MachineId,
    pub sent: Vec<PacketId>,
    /// For a client: its replies, by their index in [`Rig::replies`].
    pub replies: Vec<u32>,
}

/// The machines, packets, replies and steps of all states.
pub(super) struct Rig {
    pub setup: Setup,
    blueprint: Blueprint,
    pub machines: Vec<Role>,
    ids: HashMap<u128, MachineId, FxBuildHasher>,
    pub packets: Vec<Flight>,
    /// The sort of each packet.
    pub sorts: Vec<Sort>,
    packet_ids: HashMap<Flight, PacketId, FxBuildHasher>,
    steps: HashMap<(usize, MachineId, Input, At), Rc<Step>, FxBuildHasher>,
    relevances: HashMap<(MachineId, PacketId), Relevance, FxBuildHasher>,
    pub replies: Vec<Reply>,
    /// The histories that were searched, and whether they have an order.
    pub orders: HashMap<u128, bool, FxBuildHasher>,
    out: Outgoing,
}

/// A time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct At {
    /// The time since the start, in ms.
    pub ms: u32,
    /// Whether no more time will pass: deadlines in the future are never reached.
    pub is_over: bool,
}

impl At {
    /// The reading of all nodes' clocks.
    pub(super) fn instant(self) -> Instant {
        Instant(u64::from(self.ms) * MS)
    }
}

impl Rig {
    pub(super) fn new(setup: Setup) -> Rig {
        Rig {
            blueprint: blueprint(&setup),
            setup,
            machines: vec![Role::Dead],
            ids: HashMap::default(),
            packets: Vec::new(),
            sorts: Vec::new(),
            relevances: HashMap::default(),
            packet_ids: HashMap::default(),
            steps: HashMap::default(),
            replies: Vec::new(),
            orders: HashMap::default(),
            out: Outgoing::default(),
        }
    }

    /// The number of nodes: the controller, the switch, the replicas, the clients, the second
    /// switch.
    pub(super) fn nodes(&self) -> usize {
        REPLICAS + self.setup.replicas + self.setup.scripts.len() + 1
    }

    pub(super) fn client(&self, client: usize) -> usize {
        REPLICAS + self.setup.replicas + client
    }

    pub(super) fn other_switch(&self) -> usize {
        self.nodes() - 1
    }

    pub(super) fn is_switch(&self, node: usize) -> bool {
        node == SWITCH || node == self.other_switch()
    }

    pub(super) fn is_client(&self, node: usize) -> bool {
        (self.client(0)..self.other_switch()).contains(&node)
    }

    pub(super) fn is_replica(&self, node: usize) -> bool {
        (REPLICAS..REPLICAS + self.setup.replicas).contains(&node)
    }

    pub(super) fn replica(&self, id: MachineId) -> Option<&Node<Registers>> {
        match &self.machines[id as usize] {
            Role::Replica(replica) => Some(&**replica),
            _ => None,
        }
    }

    /// The machine of a node at the start.
    pub(super) fn first(&mut self, node: usize) -> MachineId {
        let machine = match node {
            CONTROLLER => Role::Controller(Box::new(self.blueprint.controller(None, None))),
            SWITCH => return self.switch(SWITCH, 0),
            _ if self.is_replica(node) => return self.new_replica(node, 0),
            _ if node == self.other_switch() => Role::Dead,
            _ => Role::Client(Box::new(self.blueprint.client(node, Rng::new(node as u64)))),
        };
        self.keep(machine, false)
    }

    /// A new replica at `node`, after `restarts` restarts of any replica.
    pub(super) fn new_replica(&mut self, node: usize, restarts: u8) -> MachineId {
        let (replica, incarnation) = (node - REPLICAS, incarnation_after(restarts));
        let replica = self.blueprint.replica(replica, incarnation, Registers::default());
        self.keep(Role::Replica(replica), false)
    }

    /// A new switch at `node`, after `before` other switches.
    pub(super) fn switch(&mut self, node: usize, before: u8) -> MachineId {
        let incarnation = 1 + INCARNATIONS_APART * u64::from(before);
        let agent = self.blueprint.switch(node, incarnation, false);
        self.keep(agent.map_or(Role::Dead, |agent| Role::Switch(Box::new(agent))), false)
    }

    /// The reading of all nodes' clocks. No protocol uses the wall clock except for keys that
    /// expire. It stands still, so that a record is the same whenever it was ordered.
    fn now(&self, at: At) -> Now {
        let ms = if self.setup.reduced { 0 } else { u64::from(at.ms) };
        Now { instant: at.instant(), unix_ms: 1_700_000_000_000 + ms }
    }

    /// The machine in the form that it has once no more time will pass.
    pub(super) fn without_time(&mut self, id: MachineId) -> MachineId {
        if id == NOBODY {
            return NOBODY;
        }
        self.keep(self.machines[id as usize].clone(), true)
    }

    fn keep(&mut self, machine: Role, is_over: bool) -> MachineId {
        let loses = self.setup.budget.losses > 0;
        let leave_out: &[&[&str]] = match (self.setup.reduced, is_over) {
            (false, _) => &[&UNSEEN],
            (true, false) => &[&UNSEEN, &IDLE],
            (true, true) if loses => &[&UNSEEN, &IDLE, &TIMERS],
            (true, true) => &[&UNSEEN, &IDLE, &TIMERS, &LINK_TIMES],
        };
        let machines = &mut self.machines;
        *self.ids.entry(fingerprint(&machine, leave_out)).or_insert_with(|| {
            machines.push(machine);
            machines.len() as MachineId - 1
        })
    }

    pub(super) fn keep_packet(&mut self, flight: Flight) -> PacketId {
        if let Some(id) = self.packet_ids.get(&flight) {
            return *id;
        }
        let id = self.packets.len() as PacketId;
        self.sorts.push(Sort::of(&flight.bytes));
        self.packets.push(flight.clone());
        self.packet_ids.insert(flight.clone(), id);
        id
    }

    /// Stores the packets that a node has sent to nodes that exist.
    fn keep_sent(&mut self, node: usize) -> Vec<PacketId> {
        let packets = std::mem::take(&mut self.out.packets);
        let nodes = self.nodes();
        let flights = packets.into_iter().map(|(to, bytes)| Flight {
            from: node,
            to: node_of(to),
            bytes,
            among: 0,
        });
        let flights = flights.filter(|f| f.to < nodes);
        flights.map(|flight| self.keep_packet(self.plain(flight))).collect()
    }

    /// The ways in which a switch that runs FLAIR may forward a read: a hash of the read's number
    /// picks one of the replicas that may answer. The switch is given the read with other numbers
    /// as well.
    fn drawn(
        &mut self,
        before: &mut Role,
        packet: PacketId,
        now: Now,
        sent: Vec<PacketId>,
    ) -> Vec<PacketId> {
        let Flight { from, bytes, .. } = self.packets[packet as usize].clone();
        let mut among = 0;
        for draw in 0..DRAWS {
            let mut bytes = bytes.clone();
            bytes[at::REQUEST.end - 1] ^= draw;
            role::deliver(before, now, addr(from), &mut bytes, &mut self.out);
            for (to, bytes) in std::mem::take(&mut self.out.packets) {
                if self.is_replica(node_of(to)) && Sort::of(&bytes) == Sort::FastRead {
                    among |= 1 << (node_of(to) - REPLICAS);
                }
            }
        }
        let among = |flight: Flight| Flight { among, ..flight };
        let sent = sent.into_iter().map(|sent| match self.sorts[sent as usize] {
            Sort::FastRead => self.keep_packet(among(self.packets[sent as usize].clone())),
            _ => sent,
        });
        sent.collect()
    }

    /// The effect that a packet in flight may still have on a machine.
    pub(super) fn relevance(&mut self, id: MachineId, packet: PacketId) -> Relevance {
        let (machine, bytes) = (&self.machines[id as usize], &self.packets[packet as usize].bytes);
        let known = self.relevances.entry((id, packet));
        known.or_insert_with(|| machine.relevance(bytes)).clone()
    }

    /// The deadline of a machine.
    pub(super) fn deadline(&self, id: MachineId) -> Instant {
        self.machines[id as usize].deadline().at
    }

    /// Whether the machine is a switch with a recirculated packet.
    pub(super) fn has_round(&self, id: MachineId, at: At) -> bool {
        let soon = at.instant().after(MS);
        matches!(self.machines[id as usize], Role::Switch(_))
            && (at.instant()..soon).contains(&self.deadline(id))
    }

    /// Executes one step of a machine.
    pub(super) fn step(&mut self, node: usize, id: MachineId, input: Input, at: At) -> Rc<Step> {
        if let Some(step) = self.steps.get(&(node, id, input, at)) {
            return Rc::clone(step);
        }
        let mut machine = self.machines[id as usize].clone();
        let before = self.draws(&machine, input).map(|packet| (machine.clone(), packet));
        let mut replies = Vec::new();
        let now = self.now(at);
        self.take(&mut machine, node, input, now);
        for _ in 0..TICKS_MAX {
            if machine.deadline().at > now.instant {
                break;
            }
            role::wake(&mut machine, now, &mut self.out);
        }
        if let Some(Persist { number, .. }) = machine.poll_persist() {
            machine.persisted(now, number, &mut self.out);
        }
        if let Role::Client(client) = &mut machine {
            while let Some(done) = client.poll() {
                let reply = parse_reply(&done.reply);
                let reply = reply.unwrap_or_else(|| Reply::Error(format!("{:?}", done.outcome)));
                let known = self.replies.iter().position(|r| *r == reply);
                replies.push(known.unwrap_or(self.replies.len()) as u32);
                if known.is_none() {
                    self.replies.push(reply);
                }
            }
        }
        let next = self.keep(machine, at.is_over);
        let mut sent = self.keep_sent(node);
        if let Some((mut before, packet)) = before {
            sent = self.drawn(&mut before, packet, now, sent);
        }
        let step = Rc::new(Step { next, sent, replies });
        self.steps.insert((node, id, input, at), Rc::clone(&step));
        step
    }

    /// The read that a switch is given and sends to a replica of its choice, if it may not choose
    /// all of them.
    fn draws(&self, machine: &Role, input: Input) -> Option<PacketId> {
        let Input::Packet(packet) = input else { return None };
        let is_drawn = self.setup.program.checks_replies()
            && matches!(machine, Role::Switch(_))
            && self.is_client(self.packets[packet as usize].from)
            && self.sorts[packet as usize] == Sort::Request;
        is_drawn.then_some(packet)
    }

    fn take(&mut self, machine: &mut Role, node: usize, input: Input, now: Now) {
        let out = &mut self.out;
        match input {
            Input::Tick => role::wake(machine, now, out),
            Input::Round => {
                let instant = machine.deadline().at;
                role::wake(machine, Now { instant, ..now }, out);
            }
            Input::Packet(packet) => {
                let Flight { from, mut bytes, .. } = self.packets[packet as usize].clone();
                role::deliver(machine, now, addr(from), &mut bytes, out);
            }
            Input::Call(number) => {
                let client = node - REPLICAS - self.setup.replicas;
                let call = self.setup.scripts[client][usize::from(number)];
                if let Role::Client(machine) = machine {
                    let (client, mut out) = machine.input(out);
                    submit(client, now, &call, &mut out);
                }
            }
        }
    }

    /// Whether a client is registered before its first call. Under FLAIR a client that only reads
    /// need not be, so that numbers stay small: the numbers of two sessions are then soon equal.
    pub(super) fn is_warm(&self, client: usize) -> bool {
        !self.setup.program.checks_replies()
            || self.setup.scripts[client].iter().any(Call::is_write)
    }

    /// Submits a write of an object of its own, which registers the client.
    pub(super) fn warm_up(
        &mut self,
        node: usize,
        id: MachineId,
        at: At,
    ) -> (MachineId, Vec<PacketId>) {
        let (mut machine, now) = (self.machines[id as usize].clone(), self.now(at));
        if let Role::Client(client) = &mut machine {
            let (client, mut out) = client.input(&mut self.out);
            submit(client, now, &Call::Set("warm", "0"), &mut out);
        }
        let sent = self.keep_sent(node);
        (self.keep(machine, false), sent)
    }

    /// Whether the epoch is open at the machine, with a lease; for FLAIR's switch, whether its
    /// session is active.
    pub(super) fn is_ready(&self, id: MachineId, at: At) -> bool {
        if let Role::Switch(switch) = &self.machines[id as usize]
            && self.setup.program.checks_replies()
        {
            return switch.is_ready();
        }
        self.replica(id).is_none_or(|r| r.phase() == Phase::Open && r.holds_lease(self.now(at)))
    }

    /// The reply with this number; `None` for a write of unknown outcome.
    pub(super) fn known(&self, reply: Option<u32>) -> Option<Reply> {
        let reply = reply.map(|reply| self.replies[reply as usize].clone());
        reply.filter(|reply| *reply != Reply::Error("WriteUnknown".into()))
    }

    /// The description of a packet in a line.
    pub(super) fn describe(&self, packet: PacketId) -> String {
        let Flight { from, to, bytes, .. } = &self.packets[packet as usize];
        format!("{} to {}: {}", self.name(*from), self.name(*to), describe(bytes).1)
    }

    pub(super) fn name(&self, node: usize) -> String {
        match node {
            CONTROLLER => "controller".into(),
            SWITCH => "switch".into(),
            _ if self.is_replica(node) => format!("replica-{}", node - REPLICAS),
            _ if node == self.other_switch() => "other-switch".into(),
            _ => format!("client-{}", node - self.client(0)),
        }
    }
}

/// The incarnation of a replica after `restarts` restarts of any replica.
const fn incarnation_after(restarts: u8) -> u64 {
    INCARNATIONS_APART * (1 + restarts as u64)
}

fn submit(client: &mut Client, now: Now, call: &Call, out: &mut impl Sink) {
    let ids: Vec<_> = call.keys().iter().map(|key| hash::object_id(key.as_bytes())).collect();
    let mut command = CommandBuf::new();
    let request = Request {
        class: if call.is_write() { Class::Write } else { Class::Read },
        obj_id: ids[0],
        // At most two keys.
        further: FurtherIds::new(&ids[1..]).unwrap_or(FurtherIds::NONE),
        flags: Flags(0),
        after: None,
        command: command.encode(u8::from(ids.len() == 1), call.args().iter().map(|a| a.as_bytes())),
    };
    // The window has room: a client makes one call at a time.
    let _ = client.submit(now, request, out);
}

/// The number of numbers with which a switch is asked where a read goes. Of its 256 rows, each
/// replica of a set has at least as many.
const DRAWS: u8 = 64;

#[cfg(test)]
mod tests {
    use concord_wire::vr::CrashVectorEntry;

    use super::*;

    #[test]
    fn no_two_incarnations_share_a_tag_or_the_number_of_a_stream() {
        const RECOVERIES: u32 = 16;
        const STREAMS: u64 = 64;
        for (one, other) in [(0, 1), (0, 2), (1, 2), (1, 3), (254, 255)] {
            let incarnations = (incarnation_after(one), incarnation_after(other));
            for count in 0..RECOVERIES {
                let tag = CrashVectorEntry { count, incarnation: incarnations.0 }.tag();
                let is_shared =
                    |count| CrashVectorEntry { count, incarnation: incarnations.1 }.tag() == tag;
                assert!(!(0..RECOVERIES).any(is_shared), "{one} and {other}, {count} recoveries");
            }
            let streams = (incarnations.0 as u16, incarnations.1 as u16);
            let apart = u64::from(streams.0.abs_diff(streams.1));
            assert!(apart >= STREAMS, "{one} and {other}");
        }
    }
}
