//! Explores every interleaving of a few messages over a small network, breadth first: a violation
//! is shown by a shortest trace.
//!
//! A state consists of the hosts and switches that ship, the packets in flight, the time, and the
//! messages and faults that are still possible. Any packet may arrive next, or be lost, or be
//! duplicated; a host may get its next message; a node may be restarted. Time passes from one
//! deadline to the next, and no further than a packet in flight may take ([`HOP_NS`]), unless that
//! is one of those that may be late. All clocks are equal.
//!
//! In every state: each virtual link of a switch is free, or held once; one sender at most sends by
//! it, and no more senders send to a host than it has slots; data passes a switch as reserved only
//! by its reservation; each message has at most one outcome, within its stated time, and is
//! delivered at most once, and not if it is rejected. If nothing else went wrong, every message
//! would have its outcome, and all slots and virtual links would be free.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::hash::Hash as _;

use concord_core::{Guards, Instant, Machine as _, NodeId, Now, US};
use concord_pisa::{Metadata, Verdict};
use concord_switch::harmony::Choice;
use concord_switch::{Harmony, Ingress, LinksLayout, PortTable, SwitchProgram as _};
use concord_transport::{Host, HostSettings};
use concord_wire::Addr;
use concord_wire::harmony::{Op, Repr};
use rustc_hash::FxHasher;

use super::seen::{Seen, content, salt};
use super::topology::{Topology, addr, node_of, twice};
use crate::explore::canonical;
use crate::systems::frame;
pub use crate::systems::frame::Explored;

/// The maximum time of a packet from one node to the next, in ns, unless it is late.
pub const HOP_NS: u64 = 2 * US;
/// The time between two packets of a sender, in ns.
const PHASE_NS: u64 = 10 * US;
/// The data of a packet, in bytes.
const FRAGMENT_BYTES: usize = 8;
/// The maximum number of steps until everything is at rest.
const STEPS_MAX: usize = 10_000;
/// The maximum number of packets that arrive at one time on the way there.
const AT_ONCE_MAX: usize = 40;

/// A message that a host is to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message {
    /// The place of its receiver.
    pub to: u16,
    /// Its length in packets.
    pub packets: usize,
}

/// The setup of an exploration.
#[derive(Clone, Debug)]
pub struct Setup {
    /// The hosts and switches.
    pub topology: Topology,
    /// The messages of each host, one after the other.
    pub messages: Vec<Vec<Message>>,
    /// How virtual links upwards are chosen.
    pub choice: Choice,
    /// Whether a rejected message is tried again: at once, which has no end where a switch rejects
    /// it for some time, since no time passes on the way.
    pub tries_again: bool,
    /// The maximum number of lost packets.
    pub losses: u8,
    /// The maximum number of duplicated packets.
    pub doubles: u8,
    /// The maximum number of packets that take as long as they like.
    pub lates: u8,
    /// The nodes that may be restarted, each once.
    pub restarts: Vec<usize>,
    /// The guards that are on.
    pub guards: Guards,
    /// The maximum number of states.
    pub states_max: usize,
}

impl Setup {
    /// These messages, and no fault.
    #[must_use]
    pub fn new(topology: Topology, messages: Vec<Vec<Message>>) -> Setup {
        Setup {
            topology,
            messages,
            choice: Choice::Fifo,
            tries_again: true,
            losses: 0,
            doubles: 0,
            lates: 0,
            restarts: Vec::new(),
            guards: Guards::ALL,
            states_max: 3_000_000,
        }
    }

    /// The time of a control packet there and back, in ns.
    fn round_ns(&self) -> u64 {
        let hops = if self.topology.spines == 0 { 2 } else { 4 };
        2 * hops * HOP_NS
    }

    fn settings(&self, host: usize, incarnation: u32) -> HostSettings {
        let (slots, round_ns) = (self.topology.slots, self.round_ns());
        let longest = self.messages.iter().flatten().map(|message| message.packets).max();
        let cycles = longest.unwrap_or(1) as u64 + 3;
        HostSettings {
            node: NodeId(1 + host as u16),
            place: host as u16,
            incarnation,
            hosts: (0..self.topology.hosts()).map(addr).collect(),
            switch: Some(addr(self.topology.tor_of(host))),
            slots,
            phase_ns: PHASE_NS,
            fragment_bytes: FRAGMENT_BYTES,
            admission_ns: 100 * US,
            life_ns: 2 * round_ns + cycles * PHASE_NS * u64::from(slots),
            round_ns,
            extra_bytes: FRAGMENT_BYTES as u32,
            tries_again: self.tries_again,
            guards: self.guards,
            ..HostSettings::EXAMPLE
        }
    }
}

/// A step from a state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    /// A host gets its next message.
    Submit(usize),
    /// A packet arrives.
    Come(usize),
    /// A packet arrives, and will arrive once more.
    Double(usize),
    /// A packet is lost.
    Lose(usize),
    /// A packet will take as long as it likes.
    Late(usize),
    /// Time passes to the next deadline.
    Wait,
    /// A node loses its state, and begins anew.
    Restart(usize),
}

/// A packet on its way, or in a switch before a further pass.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Flight {
    to: usize,
    from: Addr,
    bytes: Vec<u8>,
    passes: u8,
    metadata: [u64; 2],
    /// It arrives until then; `u64::MAX`: at any time.
    due_ns: u64,
}

/// What a sender sends on: its place, the receiver's place, its slot, and the number of the grant.
type Sending = (usize, u16, u8, u32);
/// A virtual link: the switch's number, and its own.
type Link = (u16, u16);

#[derive(Clone)]
enum Node {
    Host(Box<Host>),
    Switch(Box<Harmony>),
}

#[derive(Clone)]
struct State {
    now_ns: u64,
    nodes: Vec<Node>,
    incarnations: Vec<u32>,
    /// In their order, so that states are alike however they came to be.
    flights: Vec<Flight>,
    /// How many messages each host has got.
    submitted: Vec<usize>,
    seen: Seen,
    /// The virtual links that senders hold.
    paths: BTreeMap<Sending, Vec<Link>>,
    losses: u8,
    doubles: u8,
    lates: u8,
    /// Which of the restarts are left.
    restarts: Vec<usize>,
}

impl frame::State for State {
    type Setup = Setup;
    type Action = Action;

    fn begin(setup: &Setup) -> Result<State, String> {
        let count = setup.topology.nodes();
        let mut state = State {
            now_ns: 0,
            nodes: Vec::new(),
            incarnations: vec![1; count],
            flights: Vec::new(),
            submitted: vec![0; setup.topology.hosts()],
            seen: Seen::default(),
            paths: BTreeMap::new(),
            losses: setup.losses,
            doubles: setup.doubles,
            lates: setup.lates,
            restarts: setup.restarts.clone(),
        };
        for node in 0..count {
            let made = state.node(node, setup)?;
            state.nodes.push(made);
        }
        for node in 0..count {
            state.tick(node)?;
        }
        Ok(state)
    }

    fn states_max(setup: &Setup) -> usize {
        setup.states_max
    }

    fn hash_state(&self, hasher: &mut FxHasher) {
        // Settings do not change; a switch's rows follow from its tables.
        let of = |machine: &dyn Debug| canonical::fingerprint(&machine, &[&["settings", "rows"]]);
        for node in &self.nodes {
            match node {
                Node::Host(host) => of(host).hash(hasher),
                Node::Switch(program) => of(program).hash(hasher),
            }
        }
        of(&self.seen).hash(hasher);
        self.paths.hash(hasher);
        (self.now_ns, &self.incarnations, &self.flights, &self.submitted).hash(hasher);
        (self.losses, self.doubles, self.lates, &self.restarts).hash(hasher);
    }

    fn actions(&self, setup: &Setup) -> Vec<Action> {
        let mut all = Vec::new();
        for (host, messages) in setup.messages.iter().enumerate() {
            if self.submitted[host] < messages.len() {
                all.push(Action::Submit(host));
            }
        }
        for (index, flight) in self.flights.iter().enumerate() {
            if index > 0 && self.flights[index - 1] == *flight {
                continue;
            }
            all.push(Action::Come(index));
            // What passes through a switch again is in it.
            if flight.passes > 0 {
                continue;
            }
            if self.losses > 0 {
                all.push(Action::Lose(index));
            }
            if self.doubles > 0 {
                all.push(Action::Double(index));
            }
            if self.lates > 0 && flight.due_ns != u64::MAX {
                all.push(Action::Late(index));
            }
        }
        // Where nothing is under way, a restart or time changes nothing.
        if self.rests().is_some() || !self.seen.is_done() {
            all.extend(self.next_ns().map(|_| Action::Wait));
            all.extend(self.restarts.iter().map(|node| Action::Restart(*node)));
        }
        all
    }

    /// Takes a step, and says what it was.
    fn step(&mut self, action: Action, setup: &Setup) -> Result<String, String> {
        Ok(match action {
            Action::Submit(host) => self.submit(host, setup)?,
            Action::Come(index) => {
                let flight = self.flights.remove(index);
                self.comes(flight)?
            }
            Action::Double(index) => {
                self.doubles -= 1;
                let flight = self.flights[index].clone();
                format!("{} (and once more)", self.comes(flight)?)
            }
            Action::Lose(index) => {
                self.losses -= 1;
                format!("lost: {}", says(&self.flights.remove(index)))
            }
            Action::Late(index) => {
                self.lates -= 1;
                let flight = self.flights.remove(index);
                let said = format!("late: {}", says(&flight));
                self.add(Flight { due_ns: u64::MAX, ..flight });
                said
            }
            Action::Wait => self.wait()?,
            Action::Restart(node) => {
                self.restarts.retain(|own| *own != node);
                self.incarnations[node] += 1;
                self.nodes[node] = self.node(node, setup)?;
                if node < setup.topology.hosts() {
                    self.seen.died(node as u16);
                }
                self.tick(node)?;
                format!("{node} begins anew")
            }
        })
    }

    fn check(&self, setup: &Setup) -> Result<(), String> {
        for (node, machine) in self.nodes.iter().enumerate() {
            match machine {
                Node::Switch(program) => {
                    if let Some(link) = twice(program) {
                        return Err(format!(
                            "virtual link {link} of switch {node} is lost, or held twice"
                        ));
                    }
                }
                Node::Host(_) => {
                    let is_to = |(_, to, ..): &Sending| usize::from(*to) == node;
                    let senders = self.paths.keys().filter(|sending| is_to(sending)).count();
                    if senders > usize::from(setup.topology.slots) {
                        return Err(format!("{senders} slots of senders send to host {node}"));
                    }
                }
            }
        }
        let mut links: Vec<Link> = self.paths.values().flatten().copied().collect();
        links.sort_unstable();
        if let Some([(switch, link), _]) = links.array_windows().find(|[one, other]| one == other) {
            return Err(format!("two senders send by virtual link {link} of switch {switch}"));
        }
        self.settles()
    }
}

impl State {
    /// A new process of a node.
    fn node(&self, node: usize, setup: &Setup) -> Result<Node, String> {
        let incarnation = self.incarnations[node];
        if node < setup.topology.hosts() {
            let host = Host::new(setup.settings(node, incarnation));
            return Ok(Node::Host(Box::new(host.map_err(|why| why.to_string())?)));
        }
        let tables = setup.topology.tables(node);
        let layout = LinksLayout {
            hosts: setup.topology.hosts() as u16,
            slots: setup.topology.slots,
            links: tables.links.iter().sum(),
            choice: setup.choice,
            life_ns: setup.settings(0, 1).life_ns,
        };
        let program = Harmony::new(layout, addr(node), setup.guards);
        let mut program = program.map_err(|why| why.to_string())?;
        let filled = program.fill(Instant(self.now_ns), tables, incarnation > 1);
        filled.map_err(|_| "the tables do not fit".to_owned())?;
        Ok(Node::Switch(Box::new(program)))
    }

    fn now(&self) -> Now {
        Now { instant: Instant(self.now_ns), unix_ms: 0 }
    }

    fn add(&mut self, flight: Flight) {
        frame::add_in_order(&mut self.flights, [flight]);
    }

    fn sends(&mut self, from: usize, sent: Vec<(Addr, Vec<u8>)>) {
        let (due_ns, from) = (self.now_ns + HOP_NS, addr(from));
        for (to, bytes) in sent {
            let to = node_of(to);
            self.add(Flight { to, from, bytes, passes: 0, metadata: [0; 2], due_ns });
        }
    }

    /// Forgets the paths on which a host sends no more, and notes those on which it begins to: of
    /// the `rsvp` that has come.
    fn note_paths(&mut self, place: usize, rsvp: Option<Repr>) {
        let Node::Host(host) = &self.nodes[place] else { return };
        let sends: Vec<(u16, u8, u32)> = host.sends_on().collect();
        let is_own = |&(sender, to, slot, grant): &Sending| {
            sender != place || sends.contains(&(to, slot, grant))
        };
        if let Some(rsvp) = rsvp {
            let hops = rsvp.path.hops().iter().map(|hop| (hop.switch, hop.link)).collect();
            let key = (place, rsvp.receiver, rsvp.slot, rsvp.grant);
            self.paths.entry(key).or_insert(hops);
        }
        self.paths.retain(|sending, _| is_own(sending));
    }

    fn submit(&mut self, place: usize, setup: &Setup) -> Result<String, String> {
        let Message { to, packets } = setup.messages[place][self.submitted[place]];
        self.submitted[place] += 1;
        let (now, incarnation) = (self.now(), self.incarnations[place]);
        let Node::Host(host) = &mut self.nodes[place] else { return Err("no host".into()) };
        let settings = host.settings();
        let bytes = packets * FRAGMENT_BYTES;
        let stated_ns = settings.outcome_ns(bytes as u32) + settings.admission_ns;
        let due_ns = self.now_ns + stated_ns + settings.restart_ns();
        let name = (place as u16, incarnation, host.numbers() + 1);
        let data = content(salt(name), bytes);
        host.submit(now, to, data).map_err(|why| why.to_string())?;
        self.seen.submitted(name, to, bytes, due_ns);
        self.tick(place)?;
        Ok(format!("host {place} sends {packets} packets to {to}"))
    }

    /// A packet arrives at a node.
    fn comes(&mut self, flight: Flight) -> Result<String, String> {
        let said = says(&flight);
        let Flight { to, from, mut bytes, passes, metadata, .. } = flight;
        let now = self.now();
        match &mut self.nodes[to] {
            Node::Host(host) => {
                let rsvp = Repr::parse(&bytes).ok().map(|(packet, _)| packet);
                let mut sent = Vec::new();
                host.handle(now, from, &mut bytes, &mut sent);
                self.sends(to, sent);
                self.note_paths(to, rsvp.filter(|packet| packet.op == Op::Rsvp));
            }
            Node::Switch(_) => self.passes(to, from, bytes, (passes, Metadata(metadata)))?,
        }
        self.tick(to)?;
        Ok(said)
    }

    /// Runs a packet's pass through a switch.
    fn passes(
        &mut self,
        to: usize,
        from: Addr,
        mut bytes: Vec<u8>,
        pass: (u8, Metadata),
    ) -> Result<(), String> {
        let (now, ports) = (self.now(), PortTable::default());
        let Node::Switch(program) = &mut self.nodes[to] else { return Ok(()) };
        let first = Ingress::first(now, from, &ports);
        let ingress = Ingress { passes: pass.0, metadata: pass.1, ..first };
        match program.process(&ingress, &mut bytes) {
            Verdict::Forward { to: next, size_bytes } => {
                bytes.truncate(size_bytes);
                if !is_reserved(program, &bytes) {
                    return Err(format!("data passes switch {to} without its reservation"));
                }
                self.sends(to, vec![(next, bytes)]);
            }
            Verdict::Recirculate { metadata, size_bytes } => {
                bytes.truncate(size_bytes);
                let (passes, due_ns) = (pass.0 + 1, self.now_ns);
                self.add(Flight { to, from, bytes, passes, metadata: metadata.0, due_ns });
            }
            _ => {}
        }
        Ok(())
    }

    /// Does what is due at a node, and takes what it delivers.
    fn tick(&mut self, node: usize) -> Result<(), String> {
        let now = self.now();
        let (mut sent, mut sweeps, mut judged) = (Vec::new(), Vec::new(), Ok(()));
        match &mut self.nodes[node] {
            Node::Host(host) => {
                if host.deadline().at <= now.instant {
                    host.tick(now, &mut sent);
                }
                while let Some(got) = host.poll_delivered() {
                    judged = judged.and_then(|()| self.seen.delivered(node as u16, &got));
                }
                let process = (node as u16, self.incarnations[node]);
                while let Some(done) = host.poll_completion() {
                    judged = judged.and_then(|()| self.seen.completed(process, self.now_ns, &done));
                }
            }
            Node::Switch(program) => {
                while program.deadline().at <= now.instant {
                    let Some(mut sweep) = program.upkeep(now.instant) else { break };
                    sweeps.push(sweep.packet().to_vec());
                }
            }
        }
        for sweep in sweeps {
            self.passes(node, addr(node), sweep, (0, Metadata::default()))?;
        }
        self.sends(node, sent);
        self.note_paths(node, None);
        judged
    }

    /// The next deadline of a node, unless a packet has to arrive before.
    fn next_ns(&self) -> Option<u64> {
        let deadlines = self.nodes.iter().map(|node| match node {
            Node::Host(host) => host.deadline().at,
            Node::Switch(program) => program.deadline().at,
        });
        let next = deadlines.min().filter(|at| *at != Instant::NEVER)?;
        let next_ns = next.0.max(self.now_ns + 1);
        self.flights.iter().all(|flight| flight.due_ns >= next_ns).then_some(next_ns)
    }

    /// Time passes to the next deadline.
    fn wait(&mut self) -> Result<String, String> {
        let Some(next_ns) = self.next_ns() else { return Err("time stands still".into()) };
        self.now_ns = next_ns;
        self.ticks()?;
        Ok(format!("it is {next_ns} ns"))
    }

    /// Does what is due at all nodes.
    fn ticks(&mut self) -> Result<(), String> {
        for node in 0..self.nodes.len() {
            self.tick(node)?;
        }
        self.seen.overdue(self.now_ns).map_or(Ok(()), Err)
    }

    /// What is not at rest: a host that holds a slot or has a message, or a virtual link.
    fn rests(&self) -> Option<String> {
        self.nodes.iter().enumerate().find_map(|(node, machine)| match machine {
            Node::Host(host) => {
                (!host.is_idle()).then(|| format!("host {node} holds {:?}", host.slots_held()))
            }
            Node::Switch(program) => {
                program.reservations().next().map(|held| format!("{node} holds {held:?}"))
            }
        })
    }

    /// If nothing else went wrong, every message would have its outcome, and all slots and virtual
    /// links would be free.
    fn settles(&self) -> Result<(), String> {
        let (mut rest, mut at_once) = (self.clone(), 0);
        for _ in 0..STEPS_MAX {
            if at_once >= AT_ONCE_MAX {
                // A packet takes some time: what is asked for again and again ends by it.
                at_once = 0;
                rest.now_ns += HOP_NS;
                rest.ticks().map_err(|why| format!("then {why}"))?;
            } else if let Some(flight) = rest.flights.pop() {
                at_once += 1;
                rest.comes(flight).map_err(|why| format!("then {why}"))?;
            } else if rest.seen.is_done() && rest.rests().is_none() {
                return Ok(());
            } else {
                rest.wait().map_err(|why| format!("then {why}"))?;
            }
        }
        Err(format!("it does not come to rest: {:?}", rest.rests()))
    }
}

/// Whether a packet that leaves a switch is no data, or goes as best effort, or has a reservation
/// there.
fn is_reserved(program: &Harmony, bytes: &[u8]) -> bool {
    let Ok((packet, _)) = Repr::parse(bytes) else { return true };
    let own = (packet.receiver, packet.slot, packet.receiver_incarnation, packet.grant);
    packet.op != Op::Data
        || packet.is_best_effort
        || program.reservations().any(|r| (r.receiver, r.slot, r.incarnation, r.grant) == own)
}

/// A packet, for the trace.
fn says(flight: &Flight) -> String {
    let Ok((packet, _)) = Repr::parse(&flight.bytes) else { return "no packet".into() };
    let Repr { op, sender, receiver, number, slot, grant, .. } = packet;
    let again = if flight.passes > 0 { " again" } else { "" };
    format!(
        "{} gets{again} from {} {op:?} of {number} from {sender} to {receiver}, slot {slot}, grant {grant}",
        flight.to,
        node_of(flight.from),
    )
}

/// Explores all states.
///
/// # Errors
/// If there can be no such network.
pub fn explore(setup: &Setup) -> Result<Explored, String> {
    frame::explore::<State>(setup)
}
