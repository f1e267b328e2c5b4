//! The commands that a client draws: the number of a key determines its type; values are unique.

use concord_core::Rng;

/// The minimum and the maximum time to live, in ms.
pub(super) const TTL_MS: (u64, u64) = (20, 200);

/// A drawn command.
#[derive(Clone, Debug)]
pub struct Operation {
    /// The command with its arguments.
    pub cmd: Vec<Vec<u8>>,
}

/// Draws commands.
#[derive(Clone, Debug)]
pub struct Workload {
    prefix: String,
    keys: u64,
    writes_percent: u64,
    cas: bool,
    /// Whether only strings and counters are used, with the commands of a shared memory.
    strings: bool,
    /// The last value that this client saw or wrote, for compare-and-set that sometimes succeeds.
    last_value: Vec<u8>,
}

/// The name of key `number`.
pub fn key(prefix: &str, number: u64) -> Vec<u8> {
    format!("{prefix}{number}").into_bytes()
}

fn command(args: &[&[u8]]) -> Operation {
    Operation { cmd: args.iter().map(|a| a.to_vec()).collect() }
}

impl Workload {
    /// A workload over `keys` keys.
    pub fn new(prefix: &str, keys: u64, writes_percent: u64, cas: bool) -> Workload {
        let last_value = b"none".to_vec();
        let strings = false;
        Workload { prefix: prefix.into(), keys, writes_percent, cas, strings, last_value }
    }

    /// The same workload with strings and counters only.
    #[must_use]
    pub fn of_strings(self, strings: bool) -> Workload {
        Workload { strings, ..self }
    }

    /// Draws the next command; `unique` makes its value different from all others.
    pub fn draw(&mut self, rng: &mut Rng, unique: u64) -> Operation {
        let number = rng.below(self.keys);
        let key = key(&self.prefix, number);
        let value = format!("v{unique}").into_bytes();
        let write = rng.chance(self.writes_percent, 100);
        if self.strings {
            return self.plain(rng, &key, value, write);
        }
        // Now and then a command for another type: it must be refused and change nothing.
        let kind = if rng.chance(1, 200) { rng.below(3) } else { number % 3 };
        match kind {
            0 => self.string(rng, &key, value, write),
            1 => counter(rng, &key, write),
            _ => list(rng, &key, &value, write),
        }
    }

    /// Draws a command of a shared memory. Every other key is a counter; now and then one is used
    /// as a string.
    fn plain(&mut self, rng: &mut Rng, key: &[u8], value: Vec<u8>, write: bool) -> Operation {
        let is_counter = key.last().is_some_and(|digit| digit % 2 == 1) != rng.chance(1, 200);
        if !write {
            return command(&[if rng.chance(1, 8) { b"EXISTS" } else { b"GET" }, key]);
        }
        if is_counter {
            return match rng.below(16) {
                0 => command(&[b"DEL", key]),
                1 | 2 => command(&[b"DECR", key]),
                3 | 4 => command(&[b"INCRBY", key, b"7"]),
                _ => command(&[b"INCR", key]),
            };
        }
        let old = std::mem::replace(&mut self.last_value, value.clone());
        match rng.below(8) {
            0 => command(&[b"SET", key, &value, b"NX"]),
            1 => command(&[b"SET", key, &value, b"XX"]),
            2 => command(&[b"DEL", key]),
            3 | 4 if self.cas => command(&[b"CAS", key, &old, &value]),
            _ => command(&[b"SET", key, &value]),
        }
    }

    fn string(&mut self, rng: &mut Rng, key: &[u8], value: Vec<u8>, write: bool) -> Operation {
        if !write {
            return match rng.below(8) {
                0 => command(&[b"EXISTS", key]),
                1 => command(&[b"STRLEN", key]),
                _ => command(&[b"GET", key]),
            };
        }
        let old = std::mem::replace(&mut self.last_value, value.clone());
        match rng.below(16) {
            0 | 1 => command(&[b"APPEND", key, &value]),
            2 | 3 => command(&[b"SET", key, &value, b"NX"]),
            4 => command(&[b"SET", key, &value, b"XX"]),
            5 => {
                let ttl = rng.between(TTL_MS.0, TTL_MS.1).to_string();
                command(&[b"SET", key, &value, b"PX", ttl.as_bytes()])
            }
            6 | 7 => command(&[b"GETDEL", key]),
            8 => command(&[b"DEL", key]),
            9 if self.cas => command(&[b"CAS", key, &old, &value]),
            10 if self.cas => command(&[b"CAD", key, &old]),
            11 => command(&[b"GETSET", key, &value]),
            _ => command(&[b"SET", key, &value]),
        }
    }
}

fn counter(rng: &mut Rng, key: &[u8], write: bool) -> Operation {
    if !write {
        return command(&[b"GET", key]);
    }
    match rng.below(32) {
        0 => command(&[b"DEL", key]),
        1 => command(&[b"GETDEL", key]),
        2..=5 => command(&[b"INCRBY", key, rng.between(2, 9).to_string().as_bytes()]),
        6 | 7 => command(&[b"DECR", key]),
        _ => command(&[b"INCR", key]),
    }
}

fn list(rng: &mut Rng, key: &[u8], value: &[u8], write: bool) -> Operation {
    if !write {
        return match rng.below(3) {
            0 => command(&[b"LLEN", key]),
            _ => command(&[b"LRANGE", key, b"0", b"-1"]),
        };
    }
    // Pops are as frequent as pushes, so that lists stay short.
    match rng.below(16) {
        0 => command(&[b"DEL", key]),
        1..=7 => command(&[b"LPUSH", key, value]),
        8 => command(&[b"RPUSH", key, value]),
        9 => command(&[b"RPOP", key]),
        _ => command(&[b"LPOP", key]),
    }
}
