//! Explores every interleaving of a few calls on a shared memory, breadth first: a violation is
//! shown by a shortest trace.
//!
//! A state consists of the registers of the switch, the nodes, the packets in flight, and the calls
//! and faults that are still possible. Any packet may arrive next, however late, or be lost, or be
//! duplicated; any program may make a call; any lane may send its packet again, or retry once its
//! lock may be free.

use std::hash::Hash as _;

use concord_memory::Call;
use concord_wire::concordia::Tag;
use rustc_hash::FxHasher;

use super::rack::{Rack, Shape, describe};
use crate::systems::frame;
pub use crate::systems::frame::Explored;

/// The setup of an exploration.
#[derive(Clone, Debug)]
pub struct Setup {
    /// The rack.
    pub shape: Shape,
    /// The blocks that the switch owns.
    pub blocks: Vec<Tag>,
    /// The blocks that their homes own.
    pub at_home: Vec<Tag>,
    /// The blocks that may move to the other owner, each once and in this order.
    pub moves: Vec<Tag>,
    /// The calls made before, one after the other, each until everything is at rest.
    pub before: Vec<(usize, Call)>,
    /// The calls of each node, one after the other.
    pub calls: Vec<Vec<Call>>,
    /// The maximum number of calls that a node has in progress.
    pub under_way: usize,
    /// The maximum number of lost packets.
    pub losses: u8,
    /// The maximum number of duplicated packets.
    pub doubles: u8,
    /// The maximum number of retransmissions by lanes.
    pub resends: u8,
    /// Whether and how the epoch ends at some time.
    pub end: End,
    /// The maximum number of states.
    pub states_max: usize,
}

/// How an epoch ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The epoch does not end.
    Never,
    /// Each node hears of another epoch at some time, and all nodes stay.
    AllStay,
    /// One node dies at some time, and each of the others hears of that at some time.
    Dies(usize),
}

/// A step from a state.
#[derive(Clone, Copy, Debug)]
enum Action {
    Call(usize),
    Come(usize),
    Double(usize),
    Lose(usize),
    Resend(usize, usize),
    Retry(usize, usize),
    Move,
    ResendMove(usize),
    Stop(usize),
}

#[derive(Clone)]
struct State {
    rack: Rack,
    /// The number of calls that each node has got.
    made: Vec<usize>,
    moved: usize,
    losses: u8,
    doubles: u8,
    resends: u8,
}

impl frame::State for State {
    type Setup = Setup;
    type Action = Action;

    fn begin(setup: &Setup) -> Result<State, String> {
        let mut rack = Rack::new(&setup.shape, &setup.blocks, &setup.at_home);
        let all: Vec<Vec<Call>> = (0..rack.nodes.len())
            .map(|place| {
                setup.before.iter().filter(|(at, _)| *at == place).map(|(_, c)| c.clone()).collect()
            })
            .collect();
        for (place, call) in &setup.before {
            rack.call(*place, call.clone());
            rack.settle(&all)?;
        }
        rack.done.fill(0);
        let made = vec![0; rack.nodes.len()];
        let Setup { losses, doubles, resends, .. } = *setup;
        Ok(State { rack, made, moved: 0, losses, doubles, resends })
    }

    fn states_max(setup: &Setup) -> usize {
        setup.states_max
    }

    fn hash_state(&self, hasher: &mut FxHasher) {
        self.rack.hash_state(hasher);
        (&self.made, self.moved, self.losses, self.doubles, self.resends).hash(hasher);
    }

    fn actions(&self, setup: &Setup) -> Vec<Action> {
        let mut all = Vec::new();
        for (place, calls) in setup.calls.iter().enumerate() {
            let under_way = self.made[place] - self.rack.done[place];
            let is_up = !self.rack.stopped[place];
            if is_up && self.made[place] < calls.len() && under_way < setup.under_way {
                all.push(Action::Call(place));
            }
        }
        for index in 0..self.rack.flights.len() {
            if index > 0 && self.rack.flights[index - 1] == self.rack.flights[index] {
                continue;
            }
            all.push(Action::Come(index));
            if self.losses > 0 {
                all.push(Action::Lose(index));
            }
            if self.doubles > 0 {
                all.push(Action::Double(index));
            }
        }
        for (place, lane, is_free) in self.rack.lanes() {
            if is_free {
                all.push(Action::Retry(place, lane));
            } else if self.resends > 0 {
                all.push(Action::Resend(place, lane));
            }
        }
        let is_up = |place: &usize| !self.rack.stopped[*place];
        if setup.end != End::Never {
            all.extend((0..self.rack.nodes.len()).filter(is_up).map(Action::Stop));
        }
        let mut nodes = self.rack.nodes.iter().enumerate().filter(|(place, _)| is_up(place));
        if let Some((place, _)) = nodes.find(|(_, node)| node.moves().is_some()) {
            if self.resends > 0 {
                all.push(Action::ResendMove(place));
            }
        } else if self.moved < setup.moves.len()
            && is_up(&usize::from(setup.moves[self.moved].range()))
        {
            all.push(Action::Move);
        }
        all
    }

    /// Takes a step; returns its description.
    fn step(&mut self, action: Action, setup: &Setup) -> Result<String, String> {
        let said = match action {
            Action::Call(place) => {
                let call = setup.calls[place][self.made[place]].clone();
                self.made[place] += 1;
                let said = format!("node {place} is called: {call:?}");
                self.rack.call(place, call);
                said
            }
            Action::Come(index) => {
                let flight = self.rack.flights.remove(index);
                self.rack.comes(&flight)?;
                describe(&flight)
            }
            Action::Double(index) => {
                self.doubles -= 1;
                let flight = self.rack.flights[index].clone();
                self.rack.comes(&flight)?;
                format!("{} (and once more)", describe(&flight))
            }
            Action::Lose(index) => {
                self.losses -= 1;
                format!("lost: {}", describe(&self.rack.flights.remove(index)))
            }
            Action::Resend(place, lane) => {
                self.resends -= 1;
                self.rack.wake(place, lane);
                format!("node {place}, lane {lane} sends again")
            }
            Action::Move => {
                let tag = setup.moves[self.moved];
                // A locked block does not move; the failed attempt does not make another state.
                self.moved += usize::from(self.rack.migrate(tag));
                format!("block {:x} begins to move", tag.0)
            }
            Action::ResendMove(place) => {
                self.resends -= 1;
                self.rack.send_move(place);
                format!("node {place} sends its move again")
            }
            Action::Stop(place) => {
                self.rack.stopped[place] = true;
                let is_dead = setup.end == End::Dies(place);
                format!("node {place} {}", if is_dead { "dies" } else { "hears of another epoch" })
            }
            Action::Retry(place, lane) => {
                self.rack.wake(place, lane);
                format!("node {place}, lane {lane} tries again")
            }
        };
        for (place, calls) in setup.calls.iter().enumerate() {
            self.rack.hear(place, calls).map_err(|why| format!("{said}: {why}"))?;
        }
        self.rack.check().map_err(|why| format!("{said}: {why}"))?;
        Ok(said)
    }

    fn check(&self, setup: &Setup) -> Result<(), String> {
        if self.rack.stopped.iter().all(|is_stopped| *is_stopped) {
            let dead = if let End::Dies(place) = setup.end { Some(place) } else { None };
            return self.rack.ends(dead);
        }
        if self.rack.stopped.contains(&true) {
            return Ok(());
        }
        self.rack.clone().settle(&setup.calls).map_err(|why| format!("then {why}"))
    }
}

/// Explores all states.
///
/// # Panics
/// If the calls made before do not come to rest.
#[must_use]
pub fn explore(setup: &Setup) -> Explored {
    frame::explore::<State>(setup).expect("a state to begin with")
}
