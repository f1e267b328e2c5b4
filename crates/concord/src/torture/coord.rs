//! `concord torture --coord`: several clients of a chain of switches use its keys, with times to
//! live and a lock, while the tester kills switches. Their history has to be linearizable, and no
//! two of them may hold the lock at the same time.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use concord_check::{History, Operation, Recorder, Reply};
use concord_client::coord::Ended;
use concord_client::coord_commands::{CoordCall, Said};
use concord_core::Rng;
use concord_runtime::Error;
use concord_runtime::coord::{CoordClient, CoordPlace};

use super::workload::{TTL_MS, key};

/// The minimum and the maximum lease of the lock, in ms.
const LEASE_MS: (u64, u64) = (100, 600);
/// A holder stops relying on the lock when this part of its lease is left, since clocks differ by
/// less.
const DRIFT: u32 = 50;
/// The share of calls that use the lock, in percent.
const LOCKS_PERCENT: u64 = 6;

type Words = Vec<Vec<u8>>;

/// The parameters of a run.
#[derive(Debug)]
pub(super) struct Wanted<'a> {
    pub clients: u64,
    pub ops: u64,
    pub duration: Option<Duration>,
    pub keys: u64,
    pub writes_percent: u64,
    pub seed: u64,
    /// The prefix of the keys.
    pub prefix: &'a str,
    /// The maximum length of a value, in bytes.
    pub value_bytes: usize,
    /// The time after its deadline for which a key may exist according to the history, in ns.
    pub grace_ns: fn(&[Operation]) -> u64,
}

/// The result of a run.
#[derive(Debug)]
pub(super) struct Seen {
    pub elapsed: Duration,
    pub history: History,
    pub grace_ns: u64,
    /// Counts of error replies.
    pub errors: BTreeMap<String, u64>,
    /// The first time that two clients held the lock.
    pub twice: Option<String>,
    /// The number of times that the lock was held.
    pub holds: u64,
}

/// The state that all clients share.
struct Shared<'a> {
    args: &'a Wanted<'a>,
    recorder: Recorder,
    begun: AtomicU64,
    ends_at: Option<Instant>,
    /// The client that holds the lock, and the time until when.
    held: Mutex<Option<(u64, Instant)>>,
    /// The first time that two clients held the lock.
    twice: Mutex<Option<String>>,
    holds: AtomicU64,
    errors: Mutex<BTreeMap<String, u64>>,
    expiring: Mutex<BTreeSet<Vec<u8>>>,
}

impl Shared<'_> {
    fn is_over(&self) -> bool {
        self.begun.load(Ordering::Relaxed) >= self.args.ops
            || self.ends_at.is_some_and(|end| Instant::now() >= end)
    }
}

fn lock<T>(of: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A client, and its hold of the lock.
struct Client<'a, 'b> {
    shared: &'a Shared<'b>,
    number: u64,
    coord: CoordClient,
    /// The value with which it has taken the lock, and the time until which it relies on the lock.
    holds: Option<(Vec<u8>, Instant)>,
}

/// Runs the clients.
///
/// # Errors
/// If no switch answers.
pub(super) fn run(args: &Wanted<'_>, place: &CoordPlace) -> Result<Seen, Error> {
    let began = Instant::now();
    let shared = Shared {
        args,
        recorder: Recorder::new(),
        begun: AtomicU64::new(0),
        ends_at: args.duration.map(|duration| began + duration),
        held: Mutex::default(),
        twice: Mutex::default(),
        holds: AtomicU64::new(0),
        errors: Mutex::default(),
        expiring: Mutex::default(),
    };
    let mut first = Client::new(&shared, args.clients, place)?;
    first.prepare()?;
    let clients = (0..args.clients).map(|number| Client::new(&shared, number, place));
    let clients = clients.collect::<Result<Vec<_>, Error>>()?;
    let results: Vec<Result<(), Error>> = std::thread::scope(|scope| {
        let switches = place.switches.len();
        let clients = clients.into_iter();
        let running: Vec<_> =
            clients.map(|client| scope.spawn(move || client.hammer(switches))).collect();
        running.into_iter().filter_map(|client| client.join().ok()).collect()
    });
    results.into_iter().collect::<Result<(), Error>>()?;
    let elapsed = began.elapsed();
    first.look()?;
    Ok(Seen {
        elapsed,
        grace_ns: shared.recorder.look(args.grace_ns),
        errors: shared.errors.into_inner().unwrap_or_else(PoisonError::into_inner),
        twice: shared.twice.into_inner().unwrap_or_else(PoisonError::into_inner),
        holds: shared.holds.into_inner(),
        history: shared.recorder.into_history(),
    })
}

impl<'a, 'b> Client<'a, 'b> {
    fn new(
        shared: &'a Shared<'b>,
        number: u64,
        place: &CoordPlace,
    ) -> Result<Client<'a, 'b>, Error> {
        Ok(Client { shared, number, coord: CoordClient::new(place)?, holds: None })
    }

    /// Deletes the keys, so that the history starts with empty ones.
    fn prepare(&mut self) -> Result<(), Error> {
        let args = self.shared.args;
        let keys = (0..args.keys).map(|number| key(args.prefix, number));
        for key in keys.chain([self.lock_name()]) {
            let call = self.call_of(&vec![b"DEL".to_vec(), key])?;
            if self.coord.call(call.packet)? == Ended::Unknown {
                return Err(Error::new("no switch of the chain answers"));
            }
        }
        Ok(())
    }

    fn lock_name(&self) -> Vec<u8> {
        format!("{}lock", self.shared.args.prefix).into_bytes()
    }

    fn call_of(&self, cmd: &Words) -> Result<CoordCall, Error> {
        let words: Vec<&[u8]> = cmd.iter().map(Vec::as_slice).collect();
        CoordCall::new(&words, self.shared.args.value_bytes, 0)
            .map_err(|why| Error::new(format!("--coord: {why}")))
    }

    fn hammer(mut self, switches: usize) -> Result<(), Error> {
        let args = self.shared.args;
        let mut rng = Rng::new(args.seed.wrapping_mul(1_000_003) ^ self.number);
        while !self.shared.is_over() {
            let unique = self.shared.begun.fetch_add(1, Ordering::Relaxed);
            // Clients go from one switch to another, since one may lag behind.
            self.coord.prefer(rng.below(switches as u64) as usize);
            if rng.below(100) < LOCKS_PERCENT {
                self.call_lock(&mut rng, unique)?;
            } else {
                let cmd = draw(&mut rng, args, unique);
                self.call(cmd)?;
            }
        }
        Ok(())
    }

    /// Makes a call, and records it.
    fn call(&mut self, cmd: Words) -> Result<Option<Reply>, Error> {
        let call = self.call_of(&cmd)?;
        if cmd.iter().any(|word| word == b"PX") {
            lock(&self.shared.expiring).insert(cmd[1].clone());
        }
        let pending = self.shared.recorder.begin(self.number, cmd);
        let ended = self.coord.call(call.packet)?;
        let Some(said) = call.said(&ended) else {
            pending.unknown();
            return Ok(None);
        };
        let reply = match said {
            Said::Nil => Reply::Nil,
            Said::Simple(_) => Reply::Ok,
            Said::Int(number) => Reply::Int(number),
            Said::Bulk(value) => Reply::bulk(value),
            Said::Error(why) => {
                *lock(&self.shared.errors).entry(why.clone()).or_default() += 1;
                Reply::Error(why)
            }
        };
        pending.returned(reply.clone());
        Ok(Some(reply))
    }

    /// Takes the lock, or releases it.
    fn call_lock(&mut self, rng: &mut Rng, unique: u64) -> Result<(), Error> {
        let name = self.lock_name();
        let now = Instant::now();
        if let Some((own, _)) = self.holds.take().filter(|(_, until)| now < *until) {
            let mut held = lock(&self.shared.held);
            if held.is_some_and(|(client, _)| client == self.number) {
                *held = None;
            }
            drop(held);
            self.call(vec![b"CAD".to_vec(), name, own])?;
            return Ok(());
        }
        let own = format!("l{unique}").into_bytes();
        let lease_ms = rng.between(LEASE_MS.0, LEASE_MS.1);
        let text = lease_ms.to_string();
        let words: [&[u8]; 6] = [b"SET", &name, &own, b"NX", b"PX", text.as_bytes()];
        // Counted from before the request (hole N9).
        let asked_at = Instant::now();
        let reply = self.call(words.map(<[u8]>::to_vec).to_vec())?;
        let lease = Duration::from_millis(lease_ms);
        let (until, now) = (asked_at + lease - lease / DRIFT, Instant::now());
        if reply != Some(Reply::Ok) || now >= until {
            return Ok(());
        }
        self.shared.holds.fetch_add(1, Ordering::Relaxed);
        let mut held = lock(&self.shared.held);
        // Checked again, now that no other client changes it.
        let now = Instant::now();
        if now >= until {
            return Ok(());
        }
        if let Some((other, _)) = held.filter(|(_, other)| now < *other) {
            let number = self.number;
            let why = format!("client {number} has taken the lock while client {other} holds it");
            lock(&self.shared.twice).get_or_insert(why);
        }
        *held = Some((self.number, until));
        self.holds = Some((own, until));
        Ok(())
    }

    /// Reads all keys once those with a time to live must have expired.
    fn look(&mut self) -> Result<(), Error> {
        let expiring = std::mem::take(&mut *lock(&self.shared.expiring));
        for key in &expiring {
            let ttl = TTL_MS.1.to_string();
            let words: [&[u8]; 5] = [b"SET", key, b"end", b"PX", ttl.as_bytes()];
            self.call(words.map(<[u8]>::to_vec).to_vec())?;
        }
        let grace = Duration::from_nanos(self.shared.recorder.look(self.shared.args.grace_ns));
        if !expiring.is_empty() {
            std::thread::sleep(Duration::from_millis(TTL_MS.1) + grace);
        }
        for key in expiring {
            self.call(vec![b"GET".to_vec(), key])?;
        }
        Ok(())
    }
}

/// Draws a command. Every third key is a counter.
fn draw(rng: &mut Rng, args: &Wanted<'_>, unique: u64) -> Words {
    let number = rng.below(args.keys);
    let key = key(args.prefix, number);
    let cmd = |words: &[&[u8]]| words.iter().map(|word| word.to_vec()).collect::<Words>();
    if !rng.chance(args.writes_percent, 100) {
        return cmd(&[if rng.chance(1, 8) { b"EXISTS" } else { b"GET" }, &key]);
    }
    // Now and then a counter is used as a string: INCR is then refused.
    let is_counter = number.is_multiple_of(3) != rng.chance(1, 100);
    if is_counter {
        return match rng.below(16) {
            0 => cmd(&[b"DEL", &key]),
            1 | 2 => cmd(&[b"DECR", &key]),
            _ => cmd(&[b"INCR", &key]),
        };
    }
    let own = format!("v{unique}").into_bytes();
    // Sometimes a value that the key had recently.
    let old = format!("v{}", unique.saturating_sub(1 + rng.below(args.clients))).into_bytes();
    let ttl = rng.between(TTL_MS.0, TTL_MS.1).to_string().into_bytes();
    match rng.below(14) {
        0 => cmd(&[b"SET", &key, &own, b"NX"]),
        1 => cmd(&[b"SET", &key, &own, b"XX"]),
        2 => cmd(&[b"SET", &key, &own, b"IFEQ", &old]),
        3 => cmd(&[b"CAS", &key, &old, &own]),
        4 => cmd(&[b"CAD", &key, &old]),
        5 => cmd(&[b"DEL", &key]),
        6 | 7 => cmd(&[b"SET", &key, &own, b"PX", &ttl]),
        8 => cmd(&[b"SET", &key, &own, b"KEEPTTL"]),
        9 => cmd(&[b"PEXPIRE", &key, &ttl]),
        10 => cmd(&[b"PERSIST", &key]),
        _ => cmd(&[b"SET", &key, &own]),
    }
}
