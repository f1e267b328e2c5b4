//! The gateway's clients of a chain: each does one call at a time, in a session of its own.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use concord_client::coord::Ended;
use concord_client::coord::{Coord, CoordConfig};
use concord_client::coord_commands::{CoordCall, Said, Way};
use concord_core::{Duration, Instant, Now, Rng, SEC};
use concord_engine::resp;
use concord_wire::{Addr, GroupId, Sink};

use crate::chain::shadowed::Shadowed;
use crate::connection::id::ConnectionId;

/// Calls that are under way at a time, each in a session of its own.
const CALLERS: usize = 64;
/// After so long the outcome of a call is unknown.
const GIVE_UP_NS: Duration = 5 * SEC;

/// The chain that a gateway's clients reach.
#[derive(Clone, Debug)]
pub struct ChainSetup {
    /// What its keys begin with; not empty.
    pub prefix: Vec<u8>,
    /// Its group.
    pub group: GroupId,
    /// Its switches, the nearest first: one at least.
    pub switches: Vec<Addr>,
    /// The maximum length of its values, in bytes: 16, 32 or 64.
    pub value_bytes: u8,
}

/// A call that is not answered.
#[derive(Debug)]
pub(crate) struct Underway {
    /// `None`: its client is gone.
    pub connection: Option<ConnectionId>,
    pub call: CoordCall,
    pub resp3: bool,
    /// Whether its way is told with the reply.
    pub is_explained: bool,
    pub began: Instant,
}

impl Underway {
    fn give_up_at(&self) -> Instant {
        self.began.after(GIVE_UP_NS)
    }
}

/// A client of the chain, which does one call at a time.
#[derive(Debug)]
struct Caller {
    coord: Coord,
    underway: Option<Underway>,
}

/// The way to the chain.
#[derive(Debug)]
pub(crate) struct Chain {
    pub setup: ChainSetup,
    callers: Vec<Caller>,
    /// Connections whose command waits for a caller.
    pub waiting: VecDeque<ConnectionId>,
    /// Calls that have ended: the connection, and its reply.
    pub ended: VecDeque<(ConnectionId, Vec<u8>)>,
    /// Keys of the store that nobody reaches.
    pub shadowed: Shadowed,
}

impl Chain {
    pub(crate) fn new(setup: ChainSetup, own: Addr, rng: &mut Rng) -> Chain {
        assert!(!setup.switches.is_empty() && !setup.prefix.is_empty(), "a chain has both");
        let caller = |_| {
            let words = setup.value_bytes / 8;
            let config = CoordConfig::new(own, setup.group, setup.switches.clone());
            let config = CoordConfig { words, attempts: u32::MAX, ..config };
            Caller { coord: Coord::new(config, Rng::new(rng.next_u64())), underway: None }
        };
        let callers = (0..CALLERS).map(caller).collect();
        let shadowed = Shadowed::new(&setup.prefix);
        Chain { setup, callers, waiting: VecDeque::new(), ended: VecDeque::new(), shadowed }
    }

    /// Begins a call; false if all callers have one under way.
    pub(crate) fn begin(&mut self, now: Now, underway: Underway, sink: &mut impl Sink) -> bool {
        let Some(caller) = self.callers.iter_mut().find(|caller| caller.underway.is_none()) else {
            return false;
        };
        let packet = underway.call.packet;
        caller.underway = Some(underway);
        let submitted = caller.coord.submit(now, packet, sink);
        assert_eq!(submitted, Ok(()), "a free caller takes a call whose value fits");
        true
    }

    /// The connection whose command is the next to have a caller, if one is free.
    pub(crate) fn next_waiting(&mut self) -> Option<ConnectionId> {
        let is_free = self.callers.iter().any(|caller| caller.underway.is_none());
        if is_free { self.waiting.pop_front() } else { None }
    }

    /// Takes calls that have ended.
    fn take_ended(&mut self, now: Instant) {
        for caller in &mut self.callers {
            let Some(ended) = caller.coord.poll() else { continue };
            let Some(underway) = caller.underway.take() else { continue };
            let Underway { connection, ref call, resp3, is_explained, began } = underway;
            let Some(connection) = connection else { continue };
            let mut reply = Vec::new();
            match call.said(&ended) {
                Some(said) => write(&mut reply, &said, resp3),
                None => resp::error(&mut reply, unknown(call).as_bytes()),
            }
            if is_explained && let Ended::Answer(answer) = &ended {
                let latency_ns = now.0.saturating_sub(began.0);
                let told = (caller.coord.attempts(), latency_ns);
                reply = explained(&Way::of(answer), told, &reply, resp3);
            }
            self.ended.push_back((connection, reply));
        }
    }

    pub(crate) fn handle(&mut self, now: Now, packet: &[u8], sink: &mut impl Sink) {
        for caller in self.callers.iter_mut().filter(|caller| caller.underway.is_some()) {
            caller.coord.handle(now, packet, sink);
        }
        self.take_ended(now.instant);
    }

    pub(crate) fn tick(&mut self, now: Now, sink: &mut impl Sink) {
        for Caller { coord, underway } in &mut self.callers {
            let Some(underway) = underway else { continue };
            if now.instant >= underway.give_up_at() {
                coord.give_up();
            } else if now.instant >= coord.deadline().at {
                coord.tick(now, sink);
            }
        }
        self.take_ended(now.instant);
    }

    pub(crate) fn deadline(&self) -> Instant {
        let of = |caller: &Caller| {
            let underway = caller.underway.as_ref()?;
            Some(caller.coord.deadline().at.min(underway.give_up_at()))
        };
        self.callers.iter().filter_map(of).min().unwrap_or(Instant::NEVER)
    }

    pub(crate) fn forget(&mut self, id: ConnectionId) {
        self.waiting.retain(|waiting| *waiting != id);
        self.ended.retain(|(ended, _)| *ended != id);
        let all = self.callers.iter_mut().filter_map(|caller| caller.underway.as_mut());
        for underway in all.filter(|underway| underway.connection == Some(id)) {
            underway.connection = None;
        }
    }

    pub(crate) fn is_own(&self, key: &[u8]) -> bool {
        key.starts_with(&self.setup.prefix)
    }
}

/// What a client is told of a call that nobody answered.
fn unknown(call: &CoordCall) -> &'static str {
    match call.is_read() {
        true => "TIMEOUT no switch of the chain answered in time; nothing was executed",
        false => {
            "UNKNOWN the outcome of this write is not known: it may or may not have been executed; \
             do not blindly retry"
        }
    }
}

/// The reply of CONCORD EXPLAIN: a map, flat in RESP2. `told`: how often the call was sent, and how
/// long it took, in ns.
fn explained(way: &Way, told: (u32, Duration), reply: &[u8], resp3: bool) -> Vec<u8> {
    let mut out = Vec::new();
    resp::map(&mut out, 8, resp3);
    for (name, value) in [("path", way.path), ("reason", &way.reason)] {
        resp::bulk(&mut out, name.as_bytes());
        resp::bulk(&mut out, value.as_bytes());
    }
    for (name, value) in [
        ("switch", u64::from(way.switch.0)),
        ("attempts", u64::from(told.0)),
        ("epoch", u64::from(way.epoch.0)),
        ("latency_us", told.1 / 1_000),
        ("version", way.version),
    ] {
        resp::bulk(&mut out, name.as_bytes());
        resp::integer(&mut out, value as i64);
    }
    resp::bulk(&mut out, b"reply");
    out.extend_from_slice(reply);
    out
}

fn write(out: &mut Vec<u8>, said: &Said, resp3: bool) {
    match said {
        Said::Nil => resp::null(out, resp3),
        Said::Simple(text) => resp::simple(out, text),
        Said::Int(number) => resp::integer(out, *number),
        Said::Bulk(value) => resp::bulk(out, value),
        Said::Error(text) => resp::error(out, text.as_bytes()),
    }
}
