//! The lobby, in which connections begin, and the listener: descriptors with a poller of their own,
//! which gets a bounded part of each event-loop iteration. Thousands of connections that arrive at
//! once with many requests are ready all the time; among them, each established connection would
//! have to wait for a round of all the others. A connection leaves the lobby when it asks again
//! after it was answered.

use std::os::fd::AsFd;
use std::rc::Rc;

use concord_core::{Duration, Instant, MS};
use rustix::event::epoll;

use crate::error::Error;
use crate::poller::{Event, Interest, Poller, Token};

/// The time for which the lobby is served in one iteration, and the number of descriptors between
/// two reads of the clock.
const ITERATION_NS: Duration = MS / 10;
const EVENTS_MAX: usize = 4;
/// The time for which it rests after an iteration that was not enough for a crowd, if other
/// connections asked for something recently.
const REST_NS: Duration = MS * 9 / 10;
const OF_LATE_NS: Duration = 100 * MS;
const NOTHING: Interest = Interest { read: false, write: false, end: false };

/// The lobby; see the module.
#[derive(Debug)]
pub(crate) struct Lobby {
    own: Poller,
    /// The loop's poller, which watches the lobby as one descriptor.
    outer: Rc<Poller>,
    token: Token,
    iteration_ends_at: Instant,
    rests_until: Instant,
    others_at: Instant,
}

impl Lobby {
    /// An empty lobby. `outer` reports `token` when a connection in it is ready.
    ///
    /// # Errors
    /// The system's.
    pub(crate) fn new(outer: Rc<Poller>, token: Token) -> Result<Lobby, Error> {
        let own = Poller::with_events(EVENTS_MAX)?;
        outer.add(&own, token, Interest::READ)?;
        let (iteration_ends_at, others_at) = (Instant(0), Instant(0));
        Ok(Lobby { own, outer, token, iteration_ends_at, rests_until: Instant::NEVER, others_at })
    }

    /// The poller of its descriptors.
    pub(crate) fn poller(&self) -> &Poller {
        &self.own
    }

    /// Moves a descriptor to the loop's poller.
    ///
    /// # Errors
    /// The system's.
    pub(crate) fn leave(
        &self,
        fd: impl AsFd,
        token: Token,
        interest: Interest,
    ) -> Result<(), Error> {
        self.own.remove(&fd);
        self.outer.add(fd, token, interest)
    }

    /// Notes that a connection outside of the lobby asked for something.
    pub(crate) fn note_others(&mut self, now: Instant) {
        self.others_at = now;
    }

    /// Begins the lobby's part of an iteration.
    pub(crate) fn begin(&mut self, now: Instant) {
        self.iteration_ends_at = now.after(ITERATION_NS);
    }

    /// The next ready descriptor in it; `None` once its part of the iteration is over.
    ///
    /// # Errors
    /// The system's.
    pub(crate) fn poll(
        &mut self,
        now: Instant,
        is_crowded: bool,
        raw: &mut Vec<epoll::Event>,
        events: &mut Vec<Event>,
    ) -> Result<(), Error> {
        if now < self.iteration_ends_at {
            return self.own.wait(now, now, raw, events);
        }
        events.clear();
        if is_crowded && now.since(self.others_at) < OF_LATE_NS {
            self.rests_until = now.after(REST_NS);
            self.outer.change(&self.own, self.token, NOTHING)?;
        }
        Ok(())
    }

    /// The time at which [`Lobby::wake`] is due.
    pub(crate) fn wakes_at(&self) -> Instant {
        self.rests_until
    }

    /// Ends the lobby's rest, if that is over.
    ///
    /// # Errors
    /// The system's.
    pub(crate) fn wake(&mut self, now: Instant) -> Result<(), Error> {
        if now < self.rests_until {
            return Ok(());
        }
        self.rests_until = Instant::NEVER;
        self.outer.change(&self.own, self.token, Interest::READ)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::net::UnixStream;

    use super::*;

    const LOBBY: Token = Token(1);

    fn ready(poller: &Poller) -> Vec<u64> {
        let (mut raw, mut events) = (vec![], vec![]);
        poller.wait(Instant(0), Instant(0), &mut raw, &mut events).unwrap();
        events.iter().map(|event| event.token.0).collect()
    }

    #[test]
    fn bug_16_4i_beside_a_crowd_the_lobby_rests_while_others_ask() {
        let outer = Rc::new(Poller::new().unwrap());
        let mut lobby = Lobby::new(Rc::clone(&outer), LOBBY).unwrap();
        let (mut here, there) = UnixStream::pair().unwrap();
        lobby.poller().add(&there, Token(7), Interest::READ).unwrap();
        assert!(ready(&outer).is_empty());
        here.write_all(b"much").unwrap();
        assert_eq!(ready(&outer), [LOBBY.0]);
        let (mut raw, mut events, now) = (vec![], vec![], Instant(5_000 * MS));
        lobby.begin(now);
        lobby.poll(now, true, &mut raw, &mut events).unwrap();
        assert_eq!(events.len(), 1);
        // Nobody else asks.
        let later = now.after(ITERATION_NS);
        lobby.poll(later, true, &mut raw, &mut events).unwrap();
        assert_eq!((events.len(), lobby.wakes_at()), (0, Instant::NEVER));
        lobby.note_others(now);
        lobby.poll(later, false, &mut raw, &mut events).unwrap();
        assert_eq!(lobby.wakes_at(), Instant::NEVER, "there is no crowd");
        assert_eq!(ready(&outer), [LOBBY.0]);
        lobby.poll(later, true, &mut raw, &mut events).unwrap();
        assert!(ready(&outer).is_empty());
        lobby.wake(later).unwrap();
        assert!(ready(&outer).is_empty(), "it rests");
        lobby.wake(lobby.wakes_at()).unwrap();
        assert_eq!(ready(&outer), [LOBBY.0]);
        lobby.leave(&there, Token(7), Interest::READ).unwrap();
        assert_eq!(ready(&outer), [7]);
    }
}
