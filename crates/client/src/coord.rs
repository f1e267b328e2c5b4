//! The client of a chain of switches that hold the keys themselves (NetCRAQ,
//! docs/internals/netcraq.md), as a state machine without I/O: one session, one call at a time.
//!
//! It knows in which cell each name's key is once it was told, and asks the head if it does not, or
//! if a switch says that the cell is another name's. A request that is not answered goes to another
//! switch (trap T21), with the same number, so that a write happens at most once. One that was
//! answered "busy" is sent again, too. After so many attempts the outcome is unknown.
//!
//! **A session** is begun before the first write: the head names one that is free, and the client's
//! OPEN makes it its own, as a write that changes no key. What the chain has committed for it says
//! which number the client had drawn: if that is another client's, the session is that one's
//! (`Guard::SessionDrawn`), as after a head that died with what it had given. An answer to another
//! process that had this address before has another number, too.
//!
//! **A request that was sent** may be executed whenever it arrives, so that its own answer alone
//! says how it ended. A late answer to the question where its name is, "no cell is left" say, ends
//! nothing any more (`Guard::SentRequest`).
//!
//! ```
//! use concord_client::coord::{Coord, CoordConfig, get};
//! use concord_core::{Now, Rng};
//! use concord_wire::netcraq::Name;
//! use concord_wire::{Addr, GroupId};
//!
//! let addr = |port| Addr { ip: 0x7f00_0001, port };
//! let config = CoordConfig::new(addr(1), GroupId(3), vec![addr(7), addr(8)]);
//! let mut client = Coord::new(config, Rng::new(42));
//! let mut sent = Vec::new();
//! let key = Name::new(b"leader").unwrap();
//! client.submit(Now::default(), get(key), &mut sent).unwrap();
//! assert_eq!(sent[0].0, addr(7), "where is it?");
//! ```

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use concord_core::machine::Deadline;
use concord_core::{Duration, Epoch, Guard, Guards, Instant, MS, NodeId, Now, Rng, SEC};
use concord_wire::control::{ChainMessage, Finding, Message as _};
use concord_wire::netcraq::{
    Command, Condition, Name, Op, Outcome, Repr, Stamp, State, WORDS_MAX, Words,
};
use concord_wire::{Addr, GroupId, Sink};

/// Most names whose cells it remembers.
const NAMES_MAX: usize = 1 << 16;
/// Most that the time between two attempts doubles.
const BACKOFF_MAX: u32 = 5;
/// How long it stays with a switch that answered when the nearest one did not, in ns.
const STAYS_NS: Duration = SEC;
/// The number of an OPEN in its session.
const OPENS: u32 = 1;

/// What a client is told.
#[derive(Clone, Debug)]
pub struct CoordConfig {
    /// Where it is answered.
    pub addr: Addr,
    /// Which chain.
    pub group: GroupId,
    /// The chain's switches, the nearest first.
    pub switches: Vec<Addr>,
    /// How many words the chain's values have: 2, 4 or 8.
    pub words: u8,
    /// It asks again after so long, in ns, the next time after twice as long.
    pub patience_ns: Duration,
    /// After so many attempts the outcome is unknown.
    pub attempts: u32,
    /// Which guards are on.
    pub guards: Guards,
}

impl CoordConfig {
    /// Values of 64 bytes and the default times.
    #[must_use]
    pub const fn new(addr: Addr, group: GroupId, switches: Vec<Addr>) -> CoordConfig {
        let (words, guards) = (WORDS_MAX as u8, Guards::ALL);
        CoordConfig { addr, group, switches, words, patience_ns: 10 * MS, attempts: 40, guards }
    }
}

/// Why a call was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CoordRefused {
    /// There is one under way.
    Pending,
    /// There are no switches to ask.
    NoSwitches,
    /// The value is longer than those of the chain.
    TooLong,
}

/// How a call ended.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::large_enum_variant, reason = "there is one, and nearly always an answer")]
pub enum Ended {
    /// With this answer: its outcome, and what belongs to that. It is a READ or a WRITE if the
    /// head's control plane has answered that no cell is the name's, or none is left.
    Answer(Repr),
    /// Names that have a key, in order: fewer than [`concord_wire::control::NAMES_MAX`] are the
    /// last.
    Names(Vec<Name>),
    /// Nobody answered: a write may have been done, or be done yet; later than the session's next
    /// request it is not.
    Unknown,
}

/// A read of a key.
#[must_use]
pub const fn get(name: Name) -> Repr {
    Repr { name, ..Repr::new(Op::Read, 0, 0) }
}

/// A write of a key that sets it to these words; `state` says how long the value is, and whether it
/// is a number.
#[must_use]
pub const fn set(name: Name, condition: Condition, state: State, value: Words) -> Repr {
    Repr { name, condition, state, value, ..Repr::new(Op::Write, 0, 0) }
}

/// Deletes a key.
#[must_use]
pub const fn del(name: Name, condition: Condition) -> Repr {
    Repr { name, condition, command: Command::Del, ..Repr::new(Op::Write, 0, 0) }
}

/// Adds to a number.
#[must_use]
pub const fn incr(name: Name, by: i64) -> Repr {
    Repr { name, command: Command::Incr, number: by as u64, ..Repr::new(Op::Write, 0, 0) }
}

/// Gives a key this time to live, in ns; 0: it lives without end.
#[must_use]
pub const fn expire(name: Name, ttl_ns: Duration) -> Repr {
    let expire = Repr { name, command: Command::Expire, ..Repr::new(Op::Write, 0, 0) };
    Repr { deadline: ttl_ns, ..expire }
}

/// How long a key that was read is to live yet, in ns; `None`: without end. It may be less, by as
/// long as the answer was on its way, and by the way of the last write to the switch that answered.
#[must_use]
pub fn left_ns(answer: &Repr) -> Option<Duration> {
    (answer.op == Op::ReadReply && answer.deadline != 0).then_some(answer.deadline)
}

/// Where a name's key is: the cell, and the epoch and its version when the head said so.
#[derive(Clone, Copy, Debug)]
struct Found {
    cell: u32,
    epoch: Epoch,
    version: u64,
}

/// A session: its slot, and which session of the slot it is.
type Session = (u16, u32);

/// A call that is not answered.
#[derive(Clone, Copy, Debug)]
struct Pending {
    packet: Repr,
    /// Which names there are after the one in `packet`.
    lists: bool,
    /// Attempts that waited.
    attempt: u32,
    again_at: Instant,
}

impl Pending {
    fn writes(&self) -> bool {
        self.packet.op == Op::Write
    }
}

/// The client.
#[derive(Clone, Debug)]
pub struct Coord {
    config: CoordConfig,
    rng: Rng,
    /// What it has drawn, so that nobody else's session is taken for its own.
    drawn: u64,
    /// What is asked now; its answer has that number.
    question: u64,
    /// Its session, once that is begun, and how many requests that has had.
    session: Option<Session>,
    requests: u32,
    /// The one that it tries to begin.
    opening: Option<Session>,
    names: BTreeMap<Name, Found>,
    pending: Option<Pending>,
    ended: Option<Ended>,
    /// When the last call was made, how long what it sets is to live, and when it was answered.
    asked_at: Instant,
    ttl_ns: Duration,
    answered_at: Instant,
    /// How often its last call asked, or was sent.
    attempts: u32,
    /// Which switch it asks first, and until when.
    at: usize,
    stays_until: Instant,
    scratch: Vec<u8>,
}

impl Coord {
    /// A client that has asked for nothing yet. No two have the same `rng`.
    #[must_use]
    pub fn new(config: CoordConfig, mut rng: Rng) -> Coord {
        Coord {
            config,
            drawn: rng.below(u64::MAX),
            question: rng.below(u64::MAX),
            rng,
            session: None,
            requests: 0,
            opening: None,
            names: BTreeMap::new(),
            pending: None,
            ended: None,
            asked_at: Instant(0),
            ttl_ns: 0,
            answered_at: Instant(0),
            attempts: 0,
            at: 0,
            stays_until: Instant(0),
            scratch: Vec::new(),
        }
    }

    /// Begins a call: one of [`get`], [`set`], [`del`] and [`incr`], with what it expects.
    ///
    /// # Errors
    /// [`CoordRefused`], and nothing was sent.
    pub fn submit(
        &mut self,
        now: Now,
        call: Repr,
        sink: &mut impl Sink,
    ) -> Result<(), CoordRefused> {
        self.begin(now, call, false, sink)
    }

    /// Asks which names have a key, above this one.
    ///
    /// # Errors
    /// [`CoordRefused`], and nothing was sent.
    pub fn list(
        &mut self,
        now: Now,
        after: Name,
        sink: &mut impl Sink,
    ) -> Result<(), CoordRefused> {
        self.begin(now, get(after), true, sink)
    }

    fn begin(
        &mut self,
        now: Now,
        call: Repr,
        lists: bool,
        sink: &mut impl Sink,
    ) -> Result<(), CoordRefused> {
        if self.pending.is_some() || self.ended.is_some() {
            return Err(CoordRefused::Pending);
        }
        if self.config.switches.is_empty() {
            return Err(CoordRefused::NoSwitches);
        }
        if usize::from(call.state.length_bytes()) > 8 * usize::from(self.config.words) {
            return Err(CoordRefused::TooLong);
        }
        let (client, group, words) = (self.config.addr, self.config.group, self.config.words);
        let packet = Repr { client, group, words, from: NodeId(0), ..call };
        if now.instant >= self.stays_until {
            self.at = 0;
        }
        (self.asked_at, self.ttl_ns) = (now.instant, call.deadline);
        self.pending = Some(Pending { packet, lists, attempt: 0, again_at: now.instant });
        self.number();
        self.ask(now.instant, sink);
        Ok(())
    }

    /// Asks a switch first, for a second: by its number in the list.
    pub fn prefer(&mut self, now: Instant, switch: usize) {
        (self.at, self.stays_until) = (switch, now.after(STAYS_NS));
    }

    /// Until when a key is there that the last call has set, with a time to live, if that was done
    /// and nobody else changes it: counted from the question, since the chain's time began with
    /// the write at the earliest then (hole N9).
    #[must_use]
    pub fn holds_until(&self) -> Instant {
        let counts_from_question = self.config.guards.on(Guard::LeaseAsked);
        let from = if counts_from_question { self.asked_at } else { self.answered_at };
        from.after(self.ttl_ns)
    }

    /// How often the last call was sent, with the questions where its name is: 1 if nothing was
    /// lost, and no switch was busy.
    #[must_use]
    pub fn attempts(&self) -> u32 {
        self.attempts
    }

    /// How the call ended, once.
    pub fn poll(&mut self) -> Option<Ended> {
        self.ended.take()
    }

    /// The call that is under way is given up, and its outcome unknown.
    pub fn give_up(&mut self) {
        if self.pending.is_some() {
            self.ends(Ended::Unknown);
        }
    }

    /// Gives the call that is under way the next numbers: of the question, and of the session's
    /// request, unless it has yet to be begun.
    fn number(&mut self) {
        self.question = self.question.wrapping_add(1);
        if self.requests >= Stamp::NUMBER_MAX {
            self.session = None;
        }
        let Some(pending) = &mut self.pending else { return };
        if !pending.writes() {
            pending.packet.number = self.question;
        } else if let Some((slot, generation)) = self.session {
            self.requests += 1;
            pending.packet.stamp = Stamp::new(slot, generation, self.requests);
        }
    }

    fn ends(&mut self, how: Ended) {
        self.pending = None;
        self.ended = Some(how);
    }

    /// Sends the request, or what it has to know first, to the switch whose turn it is.
    fn ask(&mut self, now: Instant, sink: &mut impl Sink) {
        let Some(pending) = &mut self.pending else { return };
        if pending.attempt >= self.config.attempts {
            return self.ends(Ended::Unknown);
        }
        self.attempts = pending.attempt + 1;
        let wait_ns = self.config.patience_ns << pending.attempt.min(BACKOFF_MAX);
        pending.again_at = now.after(wait_ns + self.rng.below(wait_ns.max(1)));
        let pending = *pending;
        let packet = pending.packet;
        let to = self.config.switches[self.at % self.config.switches.len()];
        let (client, number, name) = (packet.client, self.question, packet.name);
        let (epoch, from) = (0, 0);
        let question = match (self.session, self.opening, self.names.get(&name)) {
            _ if pending.lists => ChainMessage::List { epoch, from, client, number, after: name },
            (None, Some((slot, generation)), _) if pending.writes() => {
                let open = Repr {
                    command: Command::Open,
                    stamp: Stamp::new(slot, generation, OPENS),
                    number: self.drawn,
                    client,
                    group: packet.group,
                    ..Repr::new(Op::Write, self.drawn as u32, packet.words)
                };
                return sink.send(to, &open.packet());
            }
            (None, None, _) if pending.writes() => {
                ChainMessage::AskSession { epoch, from, client, number }
            }
            (_, _, Some(&Found { cell, epoch, version })) => {
                let is_given = packet.op == Op::Write;
                let state = if is_given { packet.state.as_version(version) } else { packet.state };
                let request = Repr { cell, epoch, state, is_given, ..packet };
                return sink.send(to, &request.packet());
            }
            (_, _, None) => {
                let gives = makes_key(&packet);
                ChainMessage::Find { epoch, from, client, number, name, gives }
            }
        };
        question.emit_in(packet.group, &mut self.scratch);
        sink.send(to, &self.scratch);
    }

    /// Takes a packet that came. What belongs to no call says nothing.
    pub fn handle(&mut self, now: Now, packet: &[u8], sink: &mut impl Sink) {
        let Some(pending) = self.pending else { return };
        if let Ok(message) = ChainMessage::parse(packet) {
            return self.on_message(now.instant, pending, message, sink);
        }
        let Ok(answer) = Repr::parse(packet) else { return };
        let is_own = match answer.op {
            Op::ReadReply => !pending.writes() && !pending.lists && answer.number == self.question,
            Op::WriteReply if pending.writes() && self.session.is_none() => {
                return self.on_opened(now.instant, answer, sink);
            }
            Op::WriteReply => pending.writes() && answer.stamp == pending.packet.stamp,
            _ => false,
        };
        if is_own {
            self.on_answer(now.instant, pending, answer);
        }
    }

    /// The answer to a request.
    fn on_answer(&mut self, now: Instant, pending: Pending, answer: Repr) {
        self.answered_at = now;
        match answer.outcome {
            // The next attempt comes by itself.
            Outcome::Busy => {}
            Outcome::Stale => {
                self.session = None;
                self.ends(Ended::Unknown);
            }
            Outcome::Taken => {
                self.names.remove(&pending.packet.name);
                // That is the outcome of this request: the next one is another.
                let again_at = now.after(self.rng.below(self.config.patience_ns));
                self.pending = Some(Pending { again_at, ..pending });
                self.number();
            }
            Outcome::Done
            | Outcome::Absent
            | Outcome::Refused
            | Outcome::NotNumber
            | Outcome::NoCell => self.ends(Ended::Answer(answer)),
        }
    }

    /// The answer to an OPEN: the session is this client's if what it has drawn is there.
    fn on_opened(&mut self, now: Instant, answer: Repr, sink: &mut impl Sink) {
        let Some((slot, generation)) = self.opening else { return };
        if answer.stamp != Stamp::new(slot, generation, OPENS) || answer.outcome == Outcome::Busy {
            return;
        }
        let is_own = answer.number == self.drawn || !self.config.guards.on(Guard::SessionDrawn);
        self.opening = None;
        if answer.outcome == Outcome::Refused && is_own {
            (self.session, self.requests) = (Some((slot, generation)), OPENS);
            self.number();
            return self.ask(now, sink);
        }
        // Another client was faster: it asks for another one.
        if let Some(pending) = &mut self.pending {
            pending.again_at = now.after(self.rng.below(self.config.patience_ns));
        }
    }

    fn on_message(
        &mut self,
        now: Instant,
        pending: Pending,
        message: ChainMessage,
        sink: &mut impl Sink,
    ) {
        match message {
            ChainMessage::Found { epoch, from, number, finding } if number == self.question => {
                let (from, epoch) = (NodeId(from), Epoch(epoch));
                self.on_found(now, Repr { from, epoch, ..pending.packet }, finding, sink);
            }
            ChainMessage::Session { number, slot, generation, .. } => {
                let waits = pending.writes() && (self.session, self.opening) == (None, None);
                if waits && number == self.question {
                    self.opening = Some((slot, generation));
                    self.ask(now, sink);
                }
            }
            ChainMessage::Listed { number, names, .. }
                if pending.lists && number == self.question =>
            {
                self.ends(Ended::Names(names));
            }
            _ => {}
        }
    }

    /// The head's control plane says where a name is; `packet` has who that is.
    fn on_found(&mut self, now: Instant, packet: Repr, finding: Finding, sink: &mut impl Sink) {
        // It was asked more than once, and was told before: the request itself is on its way.
        let is_sent = self.names.contains_key(&packet.name);
        let says_where = matches!(finding, Finding::At { .. });
        if is_sent && (says_where || self.config.guards.on(Guard::SentRequest)) {
            return;
        }
        match finding {
            Finding::At { cell, version } => {
                if self.names.len() >= NAMES_MAX {
                    self.names.clear();
                }
                let epoch = packet.epoch;
                self.names.insert(packet.name, Found { cell, epoch, version });
                self.ask(now, sink);
            }
            Finding::Absent if !makes_key(&packet) => {
                self.ends(Ended::Answer(Repr { outcome: Outcome::Absent, ..packet }));
            }
            Finding::Absent => {}
            Finding::Full => {
                self.ends(Ended::Answer(Repr { outcome: Outcome::NoCell, ..packet }));
            }
        }
    }

    /// Asks again, once its time has come.
    pub fn tick(&mut self, now: Now, sink: &mut impl Sink) {
        let Some(pending) = &mut self.pending else { return };
        if now.instant < pending.again_at {
            return;
        }
        pending.attempt += 1;
        self.at = (self.at + 1) % self.config.switches.len();
        self.stays_until = now.instant.after(STAYS_NS);
        self.ask(now.instant, sink);
    }

    /// When to be woken.
    #[must_use]
    pub fn deadline(&self) -> Deadline {
        let at = self.pending.as_ref().map_or(Instant::NEVER, |pending| pending.again_at);
        Deadline { at, reason: "a request that is not answered" }
    }
}

/// Whether a call may make a key that is not there: then its name is to have a cell.
fn makes_key(packet: &Repr) -> bool {
    let makes = matches!(packet.condition, Condition::Always | Condition::Absent);
    let is_of_value = matches!(packet.command, Command::Set | Command::Incr);
    packet.op == Op::Write && is_of_value && makes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addr(port: u16) -> Addr {
        Addr { ip: 1, port }
    }

    fn client() -> Coord {
        let config = CoordConfig::new(addr(9), GroupId(3), alloc::vec![addr(1), addr(2), addr(3)]);
        Coord::new(CoordConfig { words: 2, attempts: 4, ..config }, Rng::new(1))
    }

    fn at(ns: u64) -> Now {
        Now { instant: Instant(ns), unix_ms: 0 }
    }

    fn name() -> Name {
        Name::new(b"leader").unwrap_or_default()
    }

    fn write() -> Repr {
        set(name(), Condition::Always, State::present(0, 1, false), Words([7, 0, 0, 0, 0, 0, 0, 0]))
    }

    fn found(client: &Coord, cell: u32) -> Vec<u8> {
        let number = client.question;
        let finding = Finding::At { cell, version: 4 };
        let mut bytes = Vec::new();
        ChainMessage::Found { epoch: 6, from: 1, number, finding }.emit_in(GroupId(3), &mut bytes);
        bytes
    }

    type Sent = Vec<(Addr, Vec<u8>)>;

    /// The head names a session, and the chain says whose it is.
    fn opens(client: &mut Coord, number: Option<u64>, sent: &mut Sent) {
        let Ok(ChainMessage::AskSession { number: question, .. }) =
            ChainMessage::parse(&sent.last().unwrap().1)
        else {
            panic!("it asks for a session")
        };
        let (epoch, from, slot, generation) = (6, 1, 5, 7);
        let session = ChainMessage::Session { epoch, from, number: question, slot, generation };
        let mut bytes = Vec::new();
        session.emit_in(GroupId(3), &mut bytes);
        client.handle(at(1), &bytes, sent);
        let open = last(sent);
        assert_eq!((open.command, open.stamp), (Command::Open, Stamp::new(5, 7, 1)));
        let number = number.unwrap_or(open.number);
        answer(client, Repr { number, ..open }, Outcome::Refused, sent);
    }

    fn last(sent: &Sent) -> Repr {
        Repr::parse(&sent.last().unwrap().1).unwrap()
    }

    fn answer(client: &mut Coord, packet: Repr, outcome: Outcome, sent: &mut Sent) {
        let op = if packet.op == Op::Read { Op::ReadReply } else { Op::WriteReply };
        let words = if op == Op::Read { packet.words } else { 0 };
        let words = if op == Op::ReadReply { packet.words } else { words };
        client.handle(at(5), &Repr { op, outcome, words, ..packet }.packet(), sent);
    }

    /// A known name costs no look-up; the first write of a name says that the cell was given to it.
    #[test]
    fn a_name_is_looked_up_once() {
        let (mut client, mut sent) = (client(), Sent::new());
        client.submit(at(0), write(), &mut sent).unwrap();
        opens(&mut client, None, &mut sent);
        let Ok(ChainMessage::Find { gives, .. }) = ChainMessage::parse(&sent[2].1) else {
            panic!("it asks where the name is")
        };
        assert!(gives);
        let told = found(&client, 11);
        client.handle(at(1), &told, &mut sent);
        client.handle(at(1), &told, &mut sent);
        assert_eq!(sent.len(), 4, "an answer that comes twice sends nothing");
        let packet = last(&sent);
        assert_eq!((packet.cell, packet.epoch, packet.is_given), (11, Epoch(6), true));
        assert_eq!((packet.state.version(), packet.value.0[0]), (4, 7));
        answer(&mut client, packet, Outcome::Done, &mut sent);
        assert!(matches!(client.poll(), Some(Ended::Answer(a)) if a.outcome == Outcome::Done));
        client.submit(at(9), get(name()), &mut sent).unwrap();
        assert_eq!((last(&sent).op, last(&sent).cell), (Op::Read, 11));
        assert_eq!(client.submit(at(9), write(), &mut sent), Err(CoordRefused::Pending));
    }

    /// A retry has the same number and another switch (trap T21); after the last one the outcome is
    /// unknown.
    #[test]
    fn t21_each_attempt_goes_to_another_switch() {
        let (mut client, mut sent) = (client(), Sent::new());
        client.submit(at(0), write(), &mut sent).unwrap();
        opens(&mut client, None, &mut sent);
        let told = found(&client, 11);
        client.handle(at(1), &told, &mut sent);
        let first = last(&sent);
        let mut asked = alloc::vec![sent.last().unwrap().0];
        while client.poll().is_none() {
            let due = client.deadline().at;
            let before = sent.len();
            client.tick(Now { instant: due, unix_ms: 0 }, &mut sent);
            if sent.len() > before {
                assert_eq!(last(&sent), first);
                asked.push(sent.last().unwrap().0);
            }
        }
        assert_eq!(asked, [addr(1), addr(2), addr(3), addr(1)]);
        assert_eq!(client.deadline().at, Instant::NEVER);
    }

    /// A cell that is another name's: it asks anew, and the next request has another number, since
    /// that one is decided. A session that is another's is lost.
    #[test]
    fn a_name_that_moved_is_looked_up_again() {
        let (mut client, mut sent) = (client(), Sent::new());
        client.submit(at(0), write(), &mut sent).unwrap();
        opens(&mut client, None, &mut sent);
        let told = found(&client, 11);
        client.handle(at(1), &told, &mut sent);
        let first = last(&sent);
        answer(&mut client, first, Outcome::Busy, &mut sent);
        assert_eq!(client.poll(), None);
        answer(&mut client, first, Outcome::Taken, &mut sent);
        client.tick(Now { instant: client.deadline().at, unix_ms: 0 }, &mut sent);
        assert!(matches!(
            ChainMessage::parse(&sent.last().unwrap().1),
            Ok(ChainMessage::Find { .. })
        ));
        let told = found(&client, 12);
        client.handle(at(1), &told, &mut sent);
        let second = last(&sent);
        assert_eq!(second.cell, 12);
        assert!(second.stamp > first.stamp);
        answer(&mut client, first, Outcome::Done, &mut sent);
        assert_eq!(client.poll(), None, "of the request before");
        answer(&mut client, second, Outcome::Stale, &mut sent);
        assert_eq!(client.poll(), Some(Ended::Unknown));
        client.submit(at(9), write(), &mut sent).unwrap();
        opens(&mut client, None, &mut sent);
    }

    /// How a write ends that was sent since the head had said where its cell is, and then, asked
    /// once more, said something else.
    fn ends_by_a_late_finding(guards: Guards, call: Repr, finding: Finding) -> Option<Outcome> {
        let (mut client, mut sent) = (client(), Sent::new());
        client.config.guards = guards;
        client.submit(at(0), call, &mut sent).unwrap();
        opens(&mut client, None, &mut sent);
        let told = found(&client, 11);
        client.handle(at(1), &told, &mut sent);
        assert_eq!((last(&sent).op, last(&sent).cell), (Op::Write, 11), "it is on its way");
        let number = client.question;
        let mut bytes = Vec::new();
        ChainMessage::Found { epoch: 7, from: 2, number, finding }.emit_in(GroupId(3), &mut bytes);
        client.handle(at(2), &bytes, &mut sent);
        match client.poll() {
            Some(Ended::Answer(answer)) => Some(answer.outcome),
            _ => None,
        }
    }

    /// docs/internals/bugs.md, 24.43: a write ended as refused for want of a cell, or for want of a
    /// key, by a late answer to where its name is, and was executed all the same.
    #[test]
    fn bug_24_43_a_write_that_was_sent_ends_by_its_own_answer() {
        let del = del(name(), Condition::Always);
        assert_eq!(ends_by_a_late_finding(Guards::ALL, write(), Finding::Full), None);
        assert_eq!(ends_by_a_late_finding(Guards::ALL, del, Finding::Absent), None);
    }

    #[cfg(feature = "mutants")]
    #[test]
    fn without_the_guard_a_late_finding_ends_a_write_that_was_sent() {
        let without = Guards::without(Guard::SentRequest);
        let del = del(name(), Condition::Always);
        let ends = |call, finding| ends_by_a_late_finding(without, call, finding);
        assert_eq!(ends(write(), Finding::Full), Some(Outcome::NoCell));
        assert_eq!(ends(del, Finding::Absent), Some(Outcome::Absent));
    }

    /// What a client asks after the chain has another client's number for the session that it was
    /// given: for a session, or, taking that one, for its key.
    fn asks_after_anothers_session(guards: Guards) -> ChainMessage {
        let (mut client, mut sent) = (client(), Sent::new());
        client.config.guards = guards;
        client.submit(at(0), write(), &mut sent).unwrap();
        opens(&mut client, Some(99), &mut sent);
        client.tick(Now { instant: client.deadline().at, unix_ms: 0 }, &mut sent);
        ChainMessage::parse(&sent.last().unwrap().1).unwrap()
    }

    /// Two heads give one session to two clients: it is whose OPEN the chain has committed.
    #[test]
    fn n7_a_session_is_whose_number_the_chain_has() {
        let asks = asks_after_anothers_session(Guards::ALL);
        assert!(matches!(asks, ChainMessage::AskSession { .. }), "{asks:?}");
    }

    /// Without the guard both have it, and the second one's first write is taken for the first
    /// one's.
    #[cfg(feature = "mutants")]
    #[test]
    fn n7_without_the_guard_two_clients_have_one_session() {
        let asks = asks_after_anothers_session(Guards::without(Guard::SessionDrawn));
        assert!(matches!(asks, ChainMessage::Find { .. }), "{asks:?}");
    }

    /// What was an answer to an earlier process at this address is none to this one's read.
    #[test]
    fn an_answer_to_another_question_is_none() {
        let (mut client, mut sent) = (client(), Sent::new());
        client.submit(at(0), get(name()), &mut sent).unwrap();
        let told = found(&client, 11);
        client.handle(at(1), &told, &mut sent);
        let read = last(&sent);
        answer(&mut client, Repr { number: read.number - 1, ..read }, Outcome::Done, &mut sent);
        assert_eq!(client.poll(), None);
        answer(&mut client, read, Outcome::Done, &mut sent);
        assert!(client.poll().is_some());
        client.list(at(9), Name::default(), &mut sent).unwrap();
        let listed =
            ChainMessage::Listed { epoch: 6, from: 1, number: client.question, names: Vec::new() };
        let mut bytes = Vec::new();
        listed.emit_in(GroupId(3), &mut bytes);
        client.handle(at(10), &bytes, &mut sent);
        assert_eq!(client.poll(), Some(Ended::Names(Vec::new())));
    }
}
