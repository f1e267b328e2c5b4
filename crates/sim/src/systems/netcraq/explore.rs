//! The exploration of every interleaving of a few calls over a chain of switches, breadth first, so
//! that a violation is shown by a shortest trace.
//!
//! A state consists of the registers of all switches, the packets in flight, and the calls and
//! faults that are left. Any packet may arrive next, however late, or be lost or duplicated; any
//! client may make a call, or repeat one; a member's control plane may send a version again; a
//! member may be removed from the chain.
//!
//! A chain assigns each answer a rank: the number of writes that the tail had committed with the
//! one that the answer shows. An answer shows nothing that the tail has not committed when the
//! answer leaves, and nothing older than what any client had seen when the call was made. If no
//! further call or fault occurred, every call would be answered, and every member would become
//! clean.

use std::fmt::Debug;
use std::hash::Hash;

use rustc_hash::FxHasher;

use crate::systems::frame;
pub use crate::systems::frame::Explored;

/// A client's call: its operation, and the member that receives it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Call<D> {
    /// The member that receives it.
    pub at: usize,
    /// The operation.
    pub does: D,
}

/// An answer to a client.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Answer {
    /// The client that made the call.
    pub client: usize,
    /// The number of the call among that client's calls.
    pub number: usize,
    /// The rank that the answer shows; `None` if the call had no effect, and is to be repeated.
    pub rank: Option<u64>,
    /// The description of the answer for the trace.
    pub says: String,
}

/// A packet that leaves a member.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Flight<P> {
    /// A packet for a member.
    To(usize, P),
    /// An answer.
    Answer(Answer),
}

/// A chain of switches, as the explorer sees it.
pub trait Chain: Clone {
    /// A packet in flight.
    type Packet: Clone + Ord + Hash + Debug;
    /// An operation of a client.
    type Does: Copy + Debug;

    /// The packet of a client's call.
    fn packet(&self, client: usize, number: usize, call: Call<Self::Does>) -> Self::Packet;

    /// Whether calls of this operation are answered.
    fn is_answered(does: Self::Does) -> bool;

    /// Delivers a packet to a member.
    ///
    /// # Errors
    /// The description of a violation by the member, or in an answer that leaves.
    fn comes(
        &mut self,
        at: usize,
        packet: Self::Packet,
    ) -> Result<Vec<Flight<Self::Packet>>, String>;

    /// Lets a member's control plane send again what is not acknowledged.
    ///
    /// # Errors
    /// As [`Chain::comes`].
    fn resend(&mut self, at: usize) -> Result<Vec<Flight<Self::Packet>>, String>;

    /// Removes a member, and tells the others; returns `false` if there is no such member, or only
    /// one.
    ///
    /// # Errors
    /// The description of what the others have lost. `shown` is the highest rank that a client has
    /// seen.
    fn take_out(&mut self, at: usize, shown: u64) -> Result<bool, String>;

    /// The number of members at the start.
    fn members(&self) -> usize;

    /// Checks that every member is clean and has the same content.
    ///
    /// # Errors
    /// The description of the difference.
    fn is_settled(&self) -> Result<(), String>;

    /// Checks the invariants of a state.
    ///
    /// # Errors
    /// The description of the violation.
    fn check(&self) -> Result<(), String>;

    /// Hashes everything that distinguishes states.
    fn fingerprint(&self, hasher: &mut FxHasher);
}

/// The configuration of an exploration.
#[derive(Clone, Debug)]
pub struct Setup<C: Chain> {
    /// The chain in its initial state.
    pub chain: C,
    /// The calls of each client, made one after the other.
    pub calls: Vec<Vec<Call<C::Does>>>,
    /// The maximum number of lost packets.
    pub losses: u8,
    /// The maximum number of duplicated packets.
    pub doubles: u8,
    /// The maximum number of calls that clients repeat.
    pub retries: u8,
    /// The maximum number of times that members send again what is not acknowledged.
    pub resends: u8,
    /// The maximum number of members that are removed.
    pub take_outs: u8,
    /// Whether each state is checked to come to rest.
    pub settles: bool,
    /// The maximum number of states.
    pub states_max: usize,
}

impl<C: Chain> Setup<C> {
    /// These calls without faults: only packets are reordered.
    #[must_use]
    pub fn new(chain: C, calls: Vec<Vec<Call<C::Does>>>) -> Setup<C> {
        Setup {
            chain,
            calls,
            losses: 0,
            doubles: 0,
            retries: 0,
            resends: 0,
            take_outs: 0,
            settles: true,
            states_max: 5_000_000,
        }
    }
}

/// A possible next action.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    /// A client makes its next call.
    Call(usize),
    /// A client repeats its call.
    Retry(usize),
    /// A packet arrives.
    Come(usize),
    /// A packet arrives, and stays in flight for another arrival.
    Double(usize),
    /// A packet is lost.
    Lose(usize),
    /// A member sends again what is not acknowledged.
    Resend(usize),
    /// A member is removed.
    TakeOut(usize),
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Client {
    /// The number of calls that it has made.
    made: usize,
    /// The highest rank that any client had seen when it made its last call, if that is not
    /// answered.
    floor: Option<u64>,
    /// Whether it was told to repeat the call.
    again: bool,
}

#[derive(Clone)]
struct State<C: Chain> {
    chain: C,
    /// The packets in flight, sorted, so that equal states are equal however they were reached.
    flights: Vec<Flight<C::Packet>>,
    clients: Vec<Client>,
    /// The highest rank that a client has seen.
    shown: u64,
    losses: u8,
    doubles: u8,
    retries: u8,
    resends: u8,
    take_outs: u8,
}

/// The maximum number of rounds until the remaining calls are answered and acknowledged.
const ROUNDS_MAX: usize = 40;

impl<C: Chain> frame::State for State<C> {
    type Setup = Setup<C>;
    type Action = Action;

    fn begin(setup: &Setup<C>) -> Result<State<C>, String> {
        Ok(State {
            chain: setup.chain.clone(),
            flights: Vec::new(),
            clients: vec![Client::default(); setup.calls.len()],
            shown: 0,
            losses: setup.losses,
            doubles: setup.doubles,
            retries: setup.retries,
            resends: setup.resends,
            take_outs: setup.take_outs,
        })
    }

    fn states_max(setup: &Setup<C>) -> usize {
        setup.states_max
    }

    fn hash_state(&self, hasher: &mut FxHasher) {
        self.chain.fingerprint(hasher);
        (&self.flights, &self.clients, self.shown).hash(hasher);
        let left = [self.losses, self.doubles, self.retries, self.resends, self.take_outs];
        left.hash(hasher);
    }

    fn actions(&self, setup: &Setup<C>) -> Vec<Action> {
        let mut all = Vec::new();
        for (index, client) in self.clients.iter().enumerate() {
            match client.floor {
                None if client.made < setup.calls[index].len() => all.push(Action::Call(index)),
                Some(_) if client.again || self.retries > 0 => all.push(Action::Retry(index)),
                _ => {}
            }
        }
        for (index, flight) in self.flights.iter().enumerate() {
            if index > 0 && self.flights[index - 1] == *flight {
                continue;
            }
            all.push(Action::Come(index));
            if self.losses > 0 {
                all.push(Action::Lose(index));
            }
            // A client accepts only the first answer, so that a duplicate of it makes no
            // difference.
            if self.doubles > 0 && matches!(flight, Flight::To(..)) {
                all.push(Action::Double(index));
            }
        }
        for member in 0..self.chain.members() {
            if self.resends > 0 {
                all.push(Action::Resend(member));
            }
            if self.take_outs > 0 {
                all.push(Action::TakeOut(member));
            }
        }
        all
    }

    /// Takes a step; returns its description.
    fn step(&mut self, action: Action, setup: &Setup<C>) -> Result<String, String> {
        Ok(match action {
            Action::Call(index) => {
                let call = setup.calls[index][self.clients[index].made];
                self.clients[index].made += 1;
                if C::is_answered(call.does) {
                    self.clients[index].floor = Some(self.shown);
                }
                self.send(index, setup);
                format!("client {index} calls {:?} at {}", call.does, call.at)
            }
            Action::Retry(index) => {
                if !std::mem::take(&mut self.clients[index].again) {
                    self.retries -= 1;
                }
                self.send(index, setup);
                format!("client {index} asks again")
            }
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
                format!("lost: {:?}", self.flights.remove(index))
            }
            Action::Resend(member) => {
                self.resends -= 1;
                let sent = self.chain.resend(member)?;
                self.add(sent);
                format!("{member} sends again")
            }
            Action::TakeOut(member) => {
                self.take_outs -= 1;
                let was = self.chain.take_out(member, self.shown)?;
                format!("{member} is taken out{}", if was { "" } else { " (it was not there)" })
            }
        })
    }

    fn check(&self, setup: &Setup<C>) -> Result<(), String> {
        self.chain.check()?;
        if setup.settles { self.settles(setup) } else { Ok(()) }
    }
}

impl<C: Chain> State<C> {
    fn send(&mut self, index: usize, setup: &Setup<C>) {
        let number = self.clients[index].made - 1;
        let call = setup.calls[index][number];
        let packet = self.chain.packet(index, number, call);
        self.add(vec![Flight::To(call.at, packet)]);
    }

    fn add(&mut self, sent: Vec<Flight<C::Packet>>) {
        frame::add_in_order(&mut self.flights, sent);
    }

    fn comes(&mut self, flight: Flight<C::Packet>) -> Result<String, String> {
        match flight {
            Flight::To(at, packet) => {
                let said = format!("{at} gets {packet:?}");
                let sent = self.chain.comes(at, packet)?;
                self.add(sent);
                Ok(said)
            }
            Flight::Answer(answer) => {
                let client = &mut self.clients[answer.client];
                let says = format!("client {} hears {}", answer.client, answer.says);
                let is_awaited = client.made == answer.number + 1;
                let (Some(floor), true) = (client.floor, is_awaited) else {
                    return Ok(format!("{says} (late)"));
                };
                let Some(rank) = answer.rank else {
                    client.again = true;
                    return Ok(says);
                };
                if rank < floor {
                    return Err(format!(
                        "{says}, which is older than what was seen before it called"
                    ));
                }
                (client.floor, client.again) = (None, false);
                self.shown = self.shown.max(rank);
                Ok(says)
            }
        }
    }

    /// Checks that without further calls and faults all calls would be answered, and every member
    /// become clean.
    fn settles(&self, setup: &Setup<C>) -> Result<(), String> {
        let mut rest = self.clone();
        for _ in 0..ROUNDS_MAX {
            while let Some(flight) = rest.flights.pop() {
                rest.comes(flight).map_err(|why| format!("then {why}"))?;
            }
            for member in 0..rest.chain.members() {
                let sent = rest.chain.resend(member)?;
                rest.add(sent);
            }
            for index in 0..rest.clients.len() {
                if rest.clients[index].floor.is_some() {
                    rest.send(index, setup);
                }
            }
            if rest.flights.is_empty() {
                return rest.chain.is_settled().map_err(|why| format!("at rest {why}"));
            }
        }
        Err("it does not come to rest".into())
    }
}

/// Explores all states.
///
/// # Panics
/// Never: a chain always has an initial state.
pub fn explore<C: Chain>(setup: &Setup<C>) -> Explored {
    frame::explore::<State<C>>(setup).expect("a chain is a state to begin with")
}
