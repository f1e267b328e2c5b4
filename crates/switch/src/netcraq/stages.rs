//! The pipeline, stage by stage: the header vector of a packet, and its accesses in each stage.
//!
//! | stage | arrays | of |
//! |---|---|---|
//! | 0 | `state`: version, length, kind, whether it is there, whether it is dirty | a cell |
//! | 0 | `clock`: what the chain's time is ahead of the switch's own | the switch |
//! | 1, 2 | `name_0` to `name_3` | a cell |
//! | 3 | `writer`: the request that wrote its version | a cell |
//! | 3 | `session`: its last request | a session |
//! | 4 | `result`, `number`: the outcome of that request | a session |
//! | 5 to 8 | `word_0` to `word_7`: the value | a cell |
//! | 9 | `deadline`: when the key ends, in the chain's time | a cell |
//!
//! The state comes first: whether a packet changes it decides the accesses in all other stages.

use alloc::vec::Vec;

use concord_core::{Guard, Guards, Instant};
use concord_pisa::{ArrayReport, Pass, RegisterArray};
use concord_wire::netcraq::{NAME_WORDS, Name, Outcome, Stamp, State, WORDS_MAX, Words};

use super::layout::ChainLayout;

/// The number of stages, with values of 64 bytes.
pub(super) const STAGES: u8 = DEADLINE + 1;
/// The stage of the deadlines.
const DEADLINE: u8 = 5 + WORDS_MAX as u8 / 2;

const NAMES: [&str; NAME_WORDS] = ["name_0", "name_1", "name_2", "name_3"];
const WORDS: [&str; WORDS_MAX] =
    ["word_0", "word_1", "word_2", "word_3", "word_4", "word_5", "word_6", "word_7"];

/// The request of a packet to the registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ask {
    /// To read all of them.
    Look,
    /// The head's second pass: to write a new version, if the state is the one that the first pass
    /// saw.
    Claim(State),
    /// The head's second pass of a request that changes no cell: to write the session's entry, if
    /// the state is the one that the first pass saw.
    Hold(State),
    /// A numbered write: to write state and content, and the session's entry, each if it is newer.
    Apply,
    /// A numbered write that concerns the session alone.
    Record,
    /// An acknowledgement: to mark the version clean, if the cell still has it.
    Clean,
    /// At a tail that inherited a version which was never acknowledged: to mark it clean, and to
    /// read everything.
    Inherit,
}

impl Ask {
    fn looks(self) -> bool {
        matches!(self, Ask::Look | Ask::Inherit)
    }

    /// Whether the packet comes from a predecessor, whose time this switch takes over.
    fn tells_time(self) -> bool {
        matches!(self, Ask::Apply | Ask::Record)
    }

    fn is_about_the_session(self) -> bool {
        matches!(self, Ask::Claim(_) | Ask::Hold(_) | Ask::Apply | Ask::Record)
    }
}

/// The header vector of a packet (P4): its state on the way through the pipeline, beside its bytes.
#[derive(Debug)]
pub(super) struct Phv {
    pub(super) pass: Pass,
    pub(super) ask: Ask,
    /// Whether the packet's version is committed once it is here: at the tail, and at a switch that
    /// copies from it.
    pub(super) is_tail: bool,
    pub(super) cell: u32,
    /// The state that the packet carries, and then the one that it found.
    pub(super) state: State,
    /// Whether the packet's condition on the state held, so that it changed the state.
    pub(super) has_state: bool,
    pub(super) name: Name,
    pub(super) writer: Stamp,
    pub(super) stamp: Stamp,
    /// The session's stamp before the pass.
    pub(super) session: Stamp,
    /// Whether the packet is now the session's last request.
    pub(super) has_session: bool,
    pub(super) outcome: Outcome,
    /// The version to which the outcome refers.
    pub(super) basis: u64,
    pub(super) number: u64,
    pub(super) value: Words,
    /// The key's deadline, in the chain's time.
    pub(super) deadline: u64,
    /// The packet's time of arrival, by the switch's own clock.
    pub(super) at: Instant,
    /// The chain's time: as a packet of a predecessor says, and then as this switch has it.
    pub(super) time: u64,
}

/// The register arrays.
#[derive(Clone, Debug)]
pub(super) struct Stages {
    guards: Guards,
    state: RegisterArray<u64>,
    clock: RegisterArray<u64>,
    names: Vec<RegisterArray<u64>>,
    writer: RegisterArray<u64>,
    session: RegisterArray<u64>,
    result: RegisterArray<u64>,
    number: RegisterArray<u64>,
    words: Vec<RegisterArray<u64>>,
    deadline: RegisterArray<u64>,
}

impl Stages {
    pub(super) fn new(layout: &ChainLayout, guards: Guards) -> Stages {
        let (cells, sessions) = (layout.cells as usize, layout.sessions as usize);
        let of = |names: &[&'static str], first: u8| -> Vec<RegisterArray<u64>> {
            // Two arrays in each stage.
            let places = (2 * first..).map(|half| half / 2);
            names.iter().zip(places).map(|(n, stage)| RegisterArray::new(n, stage, cells)).collect()
        };
        Stages {
            guards,
            state: RegisterArray::new("state", 0, cells),
            clock: RegisterArray::new("clock", 0, 1),
            names: of(&NAMES, 1),
            writer: RegisterArray::new("writer", 3, cells),
            session: RegisterArray::new("session", 3, sessions),
            result: RegisterArray::new("result", 4, sessions),
            number: RegisterArray::new("number", 4, sessions),
            words: of(&WORDS[..usize::from(layout.words())], 5),
            deadline: RegisterArray::new("deadline", DEADLINE, cells),
        }
    }

    pub(super) fn reset(&mut self) {
        let cells = self.names.iter_mut().chain(&mut self.words);
        let others = [
            &mut self.state,
            &mut self.clock,
            &mut self.deadline,
            &mut self.writer,
            &mut self.session,
            &mut self.result,
            &mut self.number,
        ];
        cells.chain(others).for_each(RegisterArray::reset);
    }

    /// Runs a packet's pass.
    #[inline]
    pub(super) fn run(&mut self, phv: &mut Phv) {
        for stage in 0..STAGES {
            self.stage(stage, phv);
        }
    }

    /// Runs a packet's access in one stage.
    #[inline]
    pub(super) fn stage(&mut self, stage: u8, phv: &mut Phv) {
        match stage {
            0 => {
                self.clock(phv);
                self.state(phv);
            }
            1 | 2 => self.names(2 * usize::from(stage - 1), phv),
            3 => self.request(phv),
            4 => self.result(phv),
            DEADLINE => self.deadline(phv),
            5.. => self.words(2 * usize::from(stage - 5), phv),
        }
    }

    /// Stage 0: the state.
    fn state(&mut self, phv: &mut Phv) {
        let (ask, brought, is_tail, guards) = (phv.ask, phv.state, phv.is_tail, self.guards);
        let new = if is_tail { brought.clean() } else { brought.dirty() };
        let access = |cell: &mut u64| {
            let was = State(*cell);
            let is_seen = |seen| was == seen || !guards.on(Guard::SecondPass);
            let (has, becomes) = match ask {
                Ask::Look | Ask::Record => (false, was),
                Ask::Claim(seen) => (is_seen(seen), new),
                Ask::Hold(seen) => (is_seen(seen), was),
                // The dirty bit is the lowest: a version is not newer than itself, clean or dirty.
                Ask::Apply => (brought.clean() > was || !guards.on(Guard::NewerVersion), new),
                Ask::Clean if guards.on(Guard::AcknowledgedVersion) => {
                    (was == brought.dirty(), brought.clean())
                }
                Ask::Clean => (true, was.clean()),
                Ask::Inherit => (was == brought.dirty(), brought.clean()),
            };
            if has {
                *cell = becomes.0;
            }
            (has, was)
        };
        let (has, was) = self.state.port().access(&mut phv.pass, phv.cell, access);
        phv.has_state = has;
        if ask.looks() {
            phv.state = was;
        }
    }

    /// Stage 0: the chain's time. It is the head's: each other member takes over what an UPDATE
    /// says, which may be late and is never early, and goes on from there by its own clock. So does
    /// a member that is the head then (hole N9).
    fn clock(&mut self, phv: &mut Phv) {
        let (at, told, tells) = (phv.at.0, phv.time, phv.ask.tells_time());
        let goes_on = self.guards.on(Guard::ChainClock);
        phv.time = self.clock.port().access(&mut phv.pass, 0, |ahead| {
            if tells && goes_on {
                *ahead = told.wrapping_sub(at);
            }
            at.wrapping_add(*ahead)
        });
    }

    /// Whether the packet writes the cell's content.
    fn writes(phv: &Phv) -> bool {
        phv.has_state && matches!(phv.ask, Ask::Claim(_) | Ask::Apply)
    }

    /// Stages 1 and 2: two words of the name.
    fn names(&mut self, first: usize, phv: &mut Phv) {
        let (writes, looks) = (Stages::writes(phv), phv.ask.looks());
        if !writes && !looks {
            return;
        }
        for (array, word) in self.names[first..].iter_mut().zip(&mut phv.name.0[first..]).take(2) {
            array.port().access(&mut phv.pass, phv.cell, |cell| {
                if writes { *cell = *word } else { *word = *cell }
            });
        }
    }

    /// Stage 3: the request that wrote the version, and the session's last request.
    fn request(&mut self, phv: &mut Phv) {
        if Stages::writes(phv) {
            let stamp = phv.stamp;
            self.writer.port().access(&mut phv.pass, phv.cell, |cell| *cell = stamp.0);
        } else if phv.ask.looks() {
            phv.writer = Stamp(self.writer.port().access(&mut phv.pass, phv.cell, |cell| *cell));
        }
        let (stamp, slot) = (phv.stamp, u32::from(phv.stamp.slot()));
        let is_second = matches!(phv.ask, Ask::Claim(_) | Ask::Hold(_));
        let is_lost = is_second && !phv.has_state;
        let replicates = is_second || self.guards.on(Guard::ReplicatedRequest);
        let records = phv.ask.is_about_the_session() && !is_lost && replicates;
        // A version that is sent again without its request has no session.
        let records = records && stamp != Stamp(0);
        if !records && !phv.ask.looks() {
            return;
        }
        let access = |cell: &mut u64| {
            let was = *cell;
            let is_newer = records && stamp.0 > was;
            if is_newer {
                *cell = stamp.0;
            }
            (is_newer, Stamp(was))
        };
        (phv.has_session, phv.session) = self.session.port().access(&mut phv.pass, slot, access);
    }

    /// Stage 4: the outcome of the session's last request.
    fn result(&mut self, phv: &mut Phv) {
        let (slot, writes) = (u32::from(phv.stamp.slot()), phv.has_session);
        if !writes && !phv.ask.looks() {
            return;
        }
        let mut result = phv.basis << 8 | phv.outcome as u64;
        let mut number = phv.number;
        for (array, word) in [(&mut self.result, &mut result), (&mut self.number, &mut number)] {
            array.port().access(&mut phv.pass, slot, |cell| {
                if writes { *cell = *word } else { *word = *cell }
            });
        }
        if !writes {
            // Only outcomes are written there.
            phv.outcome = Outcome::from_byte(result as u8).unwrap_or(Outcome::Stale);
            (phv.basis, phv.number) = (result >> 8, number);
        }
    }

    /// Stages 5 to 8: two words of the value.
    fn words(&mut self, first: usize, phv: &mut Phv) {
        let (writes, looks) = (Stages::writes(phv), phv.ask.looks());
        if !writes && !looks || first >= self.words.len() {
            return;
        }
        for (array, word) in self.words[first..].iter_mut().zip(&mut phv.value.0[first..]).take(2) {
            array.port().access(&mut phv.pass, phv.cell, |cell| {
                if writes { *cell = *word } else { *word = *cell }
            });
        }
    }

    /// Stage 9: the key's deadline.
    fn deadline(&mut self, phv: &mut Phv) {
        let (writes, looks) = (Stages::writes(phv), phv.ask.looks());
        if !writes && !looks {
            return;
        }
        let deadline = &mut phv.deadline;
        self.deadline.port().access(&mut phv.pass, phv.cell, |cell| {
            if writes { *cell = *deadline } else { *deadline = *cell }
        });
    }

    /// A cell's state, as the control plane reads it.
    pub(super) fn peek_state(&self, cell: u32) -> State {
        State(self.state.peek(cell))
    }

    /// A cell's deadline, as the control plane reads it.
    pub(super) fn peek_deadline(&self, cell: u32) -> u64 {
        self.deadline.peek(cell)
    }

    /// The chain's time, as the control plane knows it.
    pub(super) fn time(&self, now: Instant) -> u64 {
        now.0.wrapping_add(self.clock.peek(0))
    }

    /// A slot's last request, as the control plane reads it.
    pub(super) fn peek_session(&self, slot: u32) -> Stamp {
        Stamp(self.session.peek(slot))
    }

    /// A cell's name and value, as the control plane reads them.
    pub(super) fn peek(&self, cell: u32) -> (Name, Words) {
        let name = Name(core::array::from_fn(|word| self.names[word].peek(cell)));
        let word = |word: usize| self.words.get(word).map_or(0, |array| array.peek(cell));
        (name, Words(core::array::from_fn(word)))
    }

    /// The content of a cell, acknowledged or not: equal at two switches with the same content.
    pub(super) fn words_of_cell(&self, cell: u32) -> impl Iterator<Item = u64> + '_ {
        let content = self.names.iter().chain([&self.writer, &self.deadline]).chain(&self.words);
        let state = self.peek_state(cell).clean().0;
        core::iter::once(state).chain(content.map(move |array| array.peek(cell)))
    }

    /// The words of a session's last request.
    pub(super) fn words_of_session(&self, slot: u32) -> impl Iterator<Item = u64> + '_ {
        [&self.session, &self.result, &self.number].into_iter().map(move |array| array.peek(slot))
    }

    /// All registers, as the control plane reads them.
    pub(super) fn cells(&self) -> impl Iterator<Item = u64> + '_ {
        let of_sessions = [&self.session, &self.result, &self.number];
        let of_cells = [&self.state, &self.writer, &self.deadline]
            .into_iter()
            .chain(&self.names)
            .chain(&self.words);
        of_cells.chain(of_sessions).flat_map(RegisterArray::cells)
    }

    pub(super) fn report(&self) -> Vec<ArrayReport> {
        let of_sessions = [&self.session, &self.result, &self.number];
        let of_cells = [&self.state, &self.writer, &self.deadline]
            .into_iter()
            .chain(&self.names)
            .chain(&self.words);
        let all = of_cells.chain(of_sessions).chain([&self.clock]);
        let mut all: Vec<_> = all.map(RegisterArray::report).collect();
        all.sort_by_key(|array| array.stage);
        all
    }
}
