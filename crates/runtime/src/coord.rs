//! A client of a chain of switches over a socket of its own: one call at a time, each of which
//! blocks until it is answered or its time is over.

use std::io::ErrorKind;
use std::net::UdpSocket;
use std::time::Duration;

use concord_client::coord::{Coord, CoordConfig, Ended, get};
use concord_core::{Instant, Now, Rng};
use concord_wire::control::NAMES_MAX;
use concord_wire::netcraq::{BYTES_MAX, Name, Op, Outcome, Repr};
use concord_wire::{Addr, GroupId};

use crate::error::{Context, Error};
use crate::{clock, udp};

/// Longest datagram that a switch sends to a client: names are in several packets.
const DATAGRAM_BYTES_MAX: usize = 2_048;
const _: () = assert!(BYTES_MAX <= DATAGRAM_BYTES_MAX);
/// So many attempts that the time is over first.
const ATTEMPTS: u32 = u32::MAX;
/// Shortest wait for a packet.
const WAIT_MIN: Duration = Duration::from_micros(100);

/// Which chain a client is of.
#[derive(Clone, Debug)]
pub struct CoordPlace {
    /// Its group.
    pub group: GroupId,
    /// Its switches, the nearest first; at least one.
    pub switches: Vec<Addr>,
    /// How many words its values have: 2, 4 or 8.
    pub words: u8,
    /// After so long the outcome of a call is unknown.
    pub patience: Duration,
}

/// A client.
#[derive(Debug)]
pub struct CoordClient {
    socket: UdpSocket,
    coord: Coord,
    patience: Duration,
    outbox: Vec<(Addr, Vec<u8>)>,
    buffer: Vec<u8>,
}

impl CoordClient {
    /// A client with a socket at the address from which this host reaches the first switch.
    ///
    /// # Errors
    /// If there is no socket, no way there, or no randomness.
    pub fn new(place: &CoordPlace) -> Result<CoordClient, Error> {
        let nearest = place.switches.first().ok_or_else(|| Error::new("no switches to ask"))?;
        let bind = |at: (std::net::IpAddr, u16)| UdpSocket::bind(at).cannot("open a UDP socket");
        let way = bind((std::net::Ipv4Addr::UNSPECIFIED.into(), 0))?;
        let nearest = udp::to_std(*nearest);
        way.connect(nearest).cannot(format!("find a way to {nearest}"))?;
        let own = way.local_addr().cannot("open a UDP socket")?;
        let socket = bind((own.ip(), 0))?;
        let addr = socket.local_addr().ok().and_then(udp::from_std);
        let addr = addr.ok_or_else(|| Error::new("cannot open a UDP socket with IPv4"))?;
        let config = CoordConfig {
            words: place.words,
            attempts: ATTEMPTS,
            ..CoordConfig::new(addr, place.group, place.switches.clone())
        };
        let drawn = clock::entropy().cannot("get randomness")?;
        Ok(CoordClient {
            socket,
            coord: Coord::new(config, Rng::new(drawn)),
            patience: place.patience,
            outbox: Vec::new(),
            buffer: vec![0; DATAGRAM_BYTES_MAX],
        })
    }

    /// Asks this switch first, by its number in the list.
    pub fn prefer(&mut self, switch: usize) {
        self.coord.prefer(clock::now().instant, switch);
    }

    /// A call: one of [`concord_client::coord`]'s.
    ///
    /// # Errors
    /// The system's. What nobody answers is no error, but [`Ended::Unknown`].
    pub fn call(&mut self, call: Repr) -> Result<Ended, Error> {
        self.call_within(call, self.patience)
    }

    /// The same, with a time of its own.
    ///
    /// # Errors
    /// The system's.
    pub fn call_within(&mut self, call: Repr, patience: Duration) -> Result<Ended, Error> {
        let now = clock::now();
        self.coord
            .submit(now, call, &mut self.outbox)
            .map_err(|e| Error::new(format!("cannot call: {e:?}")))?;
        self.finish(now, patience)
    }

    /// What the key has: the answer, whose outcome is "done" or "absent"; `None` if nobody answers.
    ///
    /// # Errors
    /// The system's.
    pub fn read(&mut self, name: Name) -> Result<Option<Repr>, Error> {
        match self.call(get(name))? {
            Ended::Answer(answer) => Ok(Some(answer)),
            Ended::Names(_) | Ended::Unknown => Ok(None),
        }
    }

    /// All names that have a key, in order; `None` if nobody answers. They are asked for page by
    /// page: what is written meanwhile may be there or not.
    ///
    /// # Errors
    /// The system's.
    pub fn names(&mut self) -> Result<Option<Vec<Name>>, Error> {
        let mut all: Vec<Name> = Vec::new();
        loop {
            let now = clock::now();
            let after = all.last().copied().unwrap_or_default();
            self.coord
                .list(now, after, &mut self.outbox)
                .map_err(|e| Error::new(format!("cannot call: {e:?}")))?;
            let Ended::Names(names) = self.finish(now, self.patience)? else { return Ok(None) };
            let is_last = names.len() < NAMES_MAX;
            all.extend(names);
            if is_last {
                return Ok(Some(all));
            }
        }
    }

    fn finish(&mut self, began: Now, patience: Duration) -> Result<Ended, Error> {
        let patience_ns = u64::try_from(patience.as_nanos()).unwrap_or(u64::MAX);
        let give_up_at = Instant(began.instant.0.saturating_add(patience_ns));
        loop {
            for (to, packet) in self.outbox.drain(..) {
                // What the network does not take is sent again later, as what it loses is.
                let _ = self.socket.send_to(&packet, udp::to_std(to));
            }
            if let Some(ended) = self.coord.poll() {
                return Ok(ended);
            }
            let now = clock::now();
            if now.instant >= give_up_at {
                self.coord.give_up();
                continue;
            }
            let due = self.coord.deadline().at.min(give_up_at);
            if now.instant >= due {
                self.coord.tick(now, &mut self.outbox);
                continue;
            }
            let wait = Duration::from_nanos(due.0 - now.instant.0).max(WAIT_MIN);
            self.socket.set_read_timeout(Some(wait)).cannot("wait for a packet")?;
            match self.socket.recv_from(&mut self.buffer) {
                Ok((size_bytes, _)) => {
                    let packet = &self.buffer[..size_bytes];
                    self.coord.handle(clock::now(), packet, &mut self.outbox);
                }
                Err(e) if is_no_packet(e.kind()) => {}
                Err(e) => return Err(e).cannot("receive a packet"),
            }
        }
    }
}

fn is_no_packet(kind: ErrorKind) -> bool {
    use ErrorKind::{ConnectionRefused, Interrupted, TimedOut, WouldBlock};
    matches!(kind, WouldBlock | TimedOut | Interrupted | ConnectionRefused)
}

/// The bytes of a value that an answer has: a number as text.
#[must_use]
pub fn value_of(answer: &Repr) -> Vec<u8> {
    if answer.state.is_number() {
        return (answer.value.0[0] as i64).to_string().into_bytes();
    }
    let bytes = answer.value.bytes();
    bytes[..usize::from(answer.state.length_bytes()).min(bytes.len())].to_vec()
}

/// Whether an answer is that there is such a key.
#[must_use]
pub fn is_there(answer: &Repr) -> bool {
    answer.op == Op::ReadReply && answer.outcome == Outcome::Done
}
