//! The lobby, in which connections begin, and the listener: descriptors with a poller of their own,
//! which gets a bounded part of each turn of the loop. Thousands of connections that come at once
//! and have much to say are ready all the time; among all others each of these would have its turn
//! after a round of all of them. A connection leaves when it asks again after it was answered.

use std::os::fd::AsFd;
use std::rc::Rc;

use concord_core::{Duration, Instant, MS};
use rustix::event::epoll;

use crate::error::Error;
use crate::poller::{Event, Interest, Poller, Token};

/// How long the lobby is served in one turn, and how many descriptors are in between two looks at
/// the clock.
const ITERATION_NS: Duration = MS / 10;
const EVENTS_MAX: usize = 4;
/// Beside a crowd it rests after a turn that was not enough, if others asked for anything of late.
const REST_NS: Duration = MS * 9 / 10;
const OF_LATE_NS: Duration = 100 * MS;
const NOTHING: Interest = Interest { read: false, write: false, end: false };

/// See the module.
#[derive(Debug)]
pub(crate) struct Lobby {
    own: Poller,
    /// The loop's, which watches the lobby as one descriptor.
    outer: Rc<Poller>,
    token: Token,
    iteration_ends_at: Instant,
    rests_until: Instant,
    others_at: Instant,
}

impl Lobby {
    /// Nobody is in it; `outer` says `token` when somebody is ready.
    ///
    /// # Errors
    /// The system's.
    pub(crate) fn new(outer: Rc<Poller>, token: Token) -> Result<Lobby, Error> {
        let own = Poller::with_events(EVENTS_MAX)?;
        outer.add(&own, token, Interest::READ)?;
        let (iteration_ends_at, others_at) = (Instant(0), Instant(0));
        Ok(Lobby { own, outer, token, iteration_ends_at, rests_until: Instant::NEVER, others_at })
    }

    /// Where its descriptors are registered.
    pub(crate) fn poller(&self) -> &Poller {
        &self.own
    }

    /// A descriptor is watched with all others from now on.
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

    /// Somebody else asks for something.
    pub(crate) fn note_others(&mut self, now: Instant) {
        self.others_at = now;
    }

    /// The lobby has its turn.
    pub(crate) fn begin(&mut self, now: Instant) {
        self.iteration_ends_at = now.after(ITERATION_NS);
    }

    /// Who is next in it; nobody once its turn has ended.
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

    /// When [`Lobby::wake`] is due.
    pub(crate) fn wakes_at(&self) -> Instant {
        self.rests_until
    }

    /// It has rested, if it has.
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
