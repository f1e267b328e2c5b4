//! Keyspace events ([`concord_engine::events`]): the times of questions to the rack, and the place
//! up to which clients here have the events.
//!
//! Replicas keep the newest events in the order of the log. A gateway asks only while the rack's
//! setting enables some and a client here has subscribed to a channel or a pattern that may match:
//! at once after a write of its own clients was answered, otherwise every 10 ms. One question is in
//! flight at a time, and each continues after the last answer, so that a client gets each event
//! once. A subscription begins after the answer to a question that was sent later: earlier writes
//! are not announced to it, and writes after its reply are.

use alloc::collections::VecDeque;

use concord_core::{Duration, Instant, MS, RequestNumber};
use concord_engine::events::{Classes, Place};

use crate::connection::ConnectionId;
use crate::connection::subscriptions::Sort;

/// Time between two questions where nothing says that there may be something.
const ASK_NS: Duration = 10 * MS;
/// The same after a write was answered.
const ASK_SOON_NS: Duration = MS;
/// The beginning of the names of all channels of events.
const PREFIX: &[u8] = b"__key";

/// The state of events at this gateway.
#[derive(Debug, Default)]
pub(crate) struct Events {
    classes: Classes,
    /// Whether a client here may listen.
    is_listened: bool,
    /// The place up to which clients here have the events; `None` without subscribers.
    heard: Option<Place>,
    /// The question in flight, and whether it only asks for the end.
    question: Option<(RequestNumber, bool)>,
    /// Questions that were sent.
    asked: u64,
    asked_at: Instant,
    ask_at: Instant,
    /// Whether there may be events that the question in flight does not find.
    asks_again: bool,
    /// There was more than the last answer had room for.
    has_more: bool,
    /// Events are not wanted any more: what came before is still told.
    is_ending: bool,
    /// Connections whose subscriptions begin when a question is answered that was sent after so
    /// many others.
    waiting: VecDeque<(ConnectionId, u64)>,
}

impl Events {
    pub(crate) fn classes(&self) -> Classes {
        self.classes
    }

    /// The rack wants these from now on; `is_news`: it was known that it wanted others.
    pub(crate) fn want(&mut self, classes: Classes, is_news: bool) {
        let (was_on, is_on) = (self.is_on(), classes.are_told());
        self.classes = classes;
        match (was_on, is_on) {
            // Subscribers get everything from the beginning, which replicas still have.
            (false, true) if is_news && self.is_listened => {
                self.heard.get_or_insert_default();
                self.is_ending = false;
                self.hint();
            }
            (false, true) => self.is_ending = false,
            (true, false) => {
                self.is_ending = self.heard.is_some();
                self.hint();
            }
            (true, true) | (false, false) => {}
        }
    }

    /// Whether the rack wants any.
    pub(crate) fn is_on(&self) -> bool {
        self.classes.are_told()
    }

    /// Whether a client here may listen, from now on.
    pub(crate) fn listen(&mut self, is_listened: bool) {
        self.is_listened = is_listened;
        if !is_listened {
            (self.heard, self.is_ending) = (None, false);
        }
    }

    /// A subscription waits until the rack has said where events end.
    pub(crate) fn wait(&mut self, id: ConnectionId) {
        self.waiting.push_back((id, self.asked));
        self.ask_at = Instant(0);
        self.asks_again |= self.question.is_some();
    }

    /// A write was answered: there may be something.
    #[inline]
    pub(crate) fn hint(&mut self) {
        if self.is_asking() {
            self.ask_at = self.ask_at.min(self.asked_at.after(ASK_SOON_NS));
            self.asks_again |= self.question.is_some();
        }
    }

    fn is_asking(&self) -> bool {
        self.is_listened && (self.is_on() || self.is_ending) || !self.waiting.is_empty()
    }

    /// The place for a question that is due now, if one is; `None` inside asks for the end alone.
    pub(crate) fn next_question(&self, now: Instant) -> Option<Option<Place>> {
        let is_due = self.is_asking() && self.question.is_none() && now >= self.ask_at;
        is_due.then_some(self.heard)
    }

    /// Notes that the question was sent, or that there was no room for it.
    pub(crate) fn sent(&mut self, now: Instant, request: Option<RequestNumber>) {
        (self.asked_at, self.asks_again) = (now, false);
        self.ask_at = now.after(ASK_NS);
        if let Some(request) = request {
            self.question = Some((request, self.heard.is_none()));
            self.asked += 1;
        }
    }

    pub(crate) fn is_asked(&self, request: RequestNumber) -> bool {
        self.question.is_some_and(|(own, _)| own == request)
    }

    /// Takes the answer: the place up to which it goes, and whether there is more; `None` if there
    /// was none. Returns whether to announce its events.
    pub(crate) fn answered(&mut self, now: Instant, up_to: Option<(Place, bool)>) -> bool {
        let Some((_, only_end)) = self.question.take() else { return false };
        let is_told = !only_end && self.heard.is_some();
        let has_more = up_to.is_some_and(|(_, has_more)| has_more);
        self.has_more = has_more && is_told;
        if let Some((place, _)) = up_to
            && (is_told || only_end && self.heard.is_none() && self.is_listened)
        {
            self.heard = Some(place);
        }
        if up_to.is_some() && !has_more && self.is_ending && !self.is_on() {
            (self.heard, self.is_ending) = (None, false);
        }
        self.ask_at = match (has_more, self.asks_again) {
            (true, _) => now,
            (false, true) => self.asked_at.after(ASK_SOON_NS),
            (false, false) => now.after(ASK_NS),
        };
        is_told
    }

    /// A connection whose subscription begins now.
    pub(crate) fn next_begun(&mut self) -> Option<ConnectionId> {
        let is_settled = self.question.is_none() && !self.has_more;
        let is_due = is_settled && self.waiting.front()?.1 < self.asked;
        if is_due { self.waiting.pop_front().map(|(id, _)| id) } else { None }
    }

    pub(crate) fn deadline(&self) -> Instant {
        match self.is_asking() && self.question.is_none() {
            true => self.ask_at,
            false => Instant::NEVER,
        }
    }
}

/// Whether a subscription to this may be one to events.
pub(crate) fn may_be_of_events(sort: Sort, name: &[u8]) -> bool {
    let literal = match sort {
        Sort::Channel => return name.starts_with(PREFIX),
        Sort::Pattern => name.split(|byte| b"*?[\\".contains(byte)).next().unwrap_or_default(),
        Sort::Shard | Sort::Written => return false,
    };
    let is_whole = literal.len() == name.len();
    literal.starts_with(PREFIX) || !is_whole && PREFIX.starts_with(literal)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: ConnectionId = ConnectionId(1);

    fn place(position: u64) -> Place {
        Place { position, index: 1 }
    }

    /// Sends the question that is due; whether it is behind a place, and which.
    fn ask(events: &mut Events, at: Instant, number: u64) -> Option<Place> {
        let behind = events.next_question(at).expect("a question is due");
        events.sent(at, Some(RequestNumber(number)));
        assert!(events.is_asked(RequestNumber(number)) && events.next_question(at).is_none());
        behind
    }

    #[test]
    fn nothing_is_asked_while_nobody_listens_or_nothing_is_wanted() {
        let mut events = Events::default();
        let at = Instant(SEC_NS);
        assert!(events.next_question(at).is_none() && events.deadline() == Instant::NEVER);
        events.listen(true);
        assert!(events.next_question(at).is_none());
        events.listen(false);
        events.want(Classes::parse(b"KEA").unwrap(), true);
        assert!(events.next_question(at).is_none() && events.deadline() == Instant::NEVER);
    }

    const SEC_NS: u64 = 1_000_000_000;

    #[test]
    fn a_subscription_begins_behind_an_answer_to_a_later_question() {
        let mut events = Events::default();
        events.want(Classes::parse(b"KEA").unwrap(), true);
        events.listen(true);
        events.wait(ID);
        let at = Instant(SEC_NS);
        assert_eq!(ask(&mut events, at, 1), None);
        events.wait(ConnectionId(2));
        assert_eq!(events.next_begun(), None);
        assert!(!events.answered(at, Some((place(5), false))));
        assert_eq!((events.next_begun(), events.next_begun()), (Some(ID), None));
        let at = at.after(MS);
        assert_eq!(ask(&mut events, at, 2), Some(place(5)));
        assert!(events.answered(at, Some((place(6), true))));
        assert_eq!(events.next_begun(), None, "what is behind that is not for it either");
        assert_eq!(ask(&mut events, at, 3), Some(place(6)));
        // Not answered: it is asked again behind the same place, and nobody waits for it.
        assert!(events.answered(at, None));
        assert_eq!(events.next_begun(), Some(ConnectionId(2)));
        assert_eq!(ask(&mut events, at.after(ASK_NS), 4), Some(place(6)));
    }

    /// Whoever listens before events are wanted hears all and the last of them.
    #[test]
    fn listener_before_wanted_hears_all() {
        let mut events = Events::default();
        events.listen(true);
        events.want(Classes::parse(b"KEA").unwrap(), true);
        let at = Instant(SEC_NS);
        assert_eq!(ask(&mut events, at, 1), Some(Place::default()));
        assert!(events.answered(at, Some((place(5), false))));
        events.want(Classes::default(), true);
        let at = at.after(MS);
        assert_eq!(ask(&mut events, at, 2), Some(place(5)));
        assert!(events.answered(at, Some((place(6), false))));
        assert!(events.next_question(at.after(SEC_NS)).is_none());
    }

    #[test]
    fn names_that_may_be_of_events() {
        for (name, may_be) in [
            ("__keyspace@0__:k", true),
            ("__keyevent@*", true),
            ("*", true),
            ("_?key*", true),
            ("[_a]*", true),
            ("__k", false),
            ("__x*", false),
            ("news.*", false),
        ] {
            assert_eq!(may_be_of_events(Sort::Pattern, name.as_bytes()), may_be, "{name}");
        }
        assert!(may_be_of_events(Sort::Channel, b"__keyevent@0__:del"));
        assert!(!may_be_of_events(Sort::Channel, b"*"));
        assert!(!may_be_of_events(Sort::Shard, b"__keyevent@0__:del"));
    }
}
