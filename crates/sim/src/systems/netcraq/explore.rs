//! Every interleaving of a few calls over a chain of switches, breadth first: what goes wrong is
//! shown by a shortest trace.
//!
//! A state is the registers of all switches, the packets that are on their way, and what may still
//! be called or go wrong. Any packet may come next, however late, or be lost, or come twice; any
//! client may call, or ask again; a member's control plane may send a version again; a member may
//! be taken out of the chain.
//!
//! A chain says of each answer which rank it shows: how many writes the tail had committed with it.
//! An answer shows nothing that the tail has not committed when it leaves, and nothing older than
//! what any client had seen when it was called for. If nothing else came, every call would be
//! answered, and every member clean.

use std::fmt::Debug;
use std::hash::Hash;

use rustc_hash::FxHasher;

use crate::systems::frame;
pub use crate::systems::frame::Explored;

/// A client's call: what is called, and at which member it enters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Call<D> {
    /// Which member gets it.
    pub at: usize,
    /// What it does.
    pub does: D,
}

/// An answer to a client.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Answer {
    /// Who called.
    pub client: usize,
    /// Which of its calls.
    pub number: usize,
    /// What it shows; `None`: nothing was done, and the call is to be made again.
    pub rank: Option<u64>,
    /// For the trace.
    pub says: String,
}

/// What leaves a member.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Flight<P> {
    /// A packet for a member.
    To(usize, P),
    /// An answer.
    Answer(Answer),
}

/// A chain of switches, as the explorer knows it.
pub trait Chain: Clone {
    /// What travels.
    type Packet: Clone + Ord + Hash + Debug;
    /// What clients do.
    type Does: Copy + Debug;

    /// A client's call, as it is sent.
    fn packet(&self, client: usize, number: usize, call: Call<Self::Does>) -> Self::Packet;

    /// Whether a call is answered.
    fn is_answered(does: Self::Does) -> bool;

    /// A packet comes to a member.
    ///
    /// # Errors
    /// What is wrong with what the member did, or with the answer that leaves.
    fn comes(
        &mut self,
        at: usize,
        packet: Self::Packet,
    ) -> Result<Vec<Flight<Self::Packet>>, String>;

    /// A member's control plane sends what is not acknowledged again.
    ///
    /// # Errors
    /// As [`Chain::comes`].
    fn resend(&mut self, at: usize) -> Result<Vec<Flight<Self::Packet>>, String>;

    /// Takes a member out, and tells the others: `false` if there is no such member, or only one.
    ///
    /// # Errors
    /// What the others have lost. `shown` is the highest rank that a client has seen.
    fn take_out(&mut self, at: usize, shown: u64) -> Result<bool, String>;

    /// How many members there were at first.
    fn members(&self) -> usize;

    /// Whether every member is clean, and has the same.
    ///
    /// # Errors
    /// What is not so.
    fn is_settled(&self) -> Result<(), String>;

    /// What is so in every state.
    ///
    /// # Errors
    /// What is not so.
    fn check(&self) -> Result<(), String>;

    /// What tells states apart.
    fn fingerprint(&self, hasher: &mut FxHasher);
}

/// What is explored.
#[derive(Clone, Debug)]
pub struct Setup<C: Chain> {
    /// The chain as it is at first.
    pub chain: C,
    /// What each client calls, one after the other.
    pub calls: Vec<Vec<Call<C::Does>>>,
    /// How often a packet may be lost.
    pub losses: u8,
    /// How often one may come twice.
    pub doubles: u8,
    /// How often clients may ask again.
    pub retries: u8,
    /// How often a member may send what is not acknowledged again.
    pub resends: u8,
    /// How many members may be taken out.
    pub take_outs: u8,
    /// Whether it is looked at how things end.
    pub settles: bool,
    /// Most states.
    pub states_max: usize,
}

impl<C: Chain> Setup<C> {
    /// These calls, where nothing goes wrong but the order.
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

/// What may happen next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    /// A client makes its next call.
    Call(usize),
    /// It asks again.
    Retry(usize),
    /// A packet comes.
    Come(usize),
    /// It comes, and will come once more.
    Double(usize),
    /// It is lost.
    Lose(usize),
    /// A member sends again.
    Resend(usize),
    /// A member is taken out.
    TakeOut(usize),
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Client {
    /// How many calls it has made.
    made: usize,
    /// What had been seen when it made the last one, if that is not answered.
    floor: Option<u64>,
    /// It was told to ask again.
    again: bool,
}

#[derive(Clone)]
struct State<C: Chain> {
    chain: C,
    /// In their order, so that states are alike however they came to be.
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

/// Most rounds in which what is left is answered and acknowledged.
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
            // A client takes the first answer.
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

    /// Takes a step, and says what it was.
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
        for flight in sent {
            let at = self.flights.partition_point(|other| *other < flight);
            self.flights.insert(at, flight);
        }
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

    /// If nothing else came, all would be answered, and every member clean.
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

/// Goes through all states.
///
/// # Panics
/// Never: a chain always has a first state.
pub fn explore<C: Chain>(setup: &Setup<C>) -> Explored {
    frame::explore::<State<C>>(setup).expect("a chain is a state to begin with")
}
