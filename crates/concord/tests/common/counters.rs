//! Keys that are counted up while something happens to the rack.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::{PATIENCE, Rack};

/// Writes of each connection that must be acknowledged after the change.
const MORE: u64 = 10;

/// A key that one connection counts up, one INCR at a time, reading it in between.
pub struct Counter {
    key: String,
    pub acknowledged: u64,
    pub unknown: u64,
    pub longest_pause: Duration,
}

impl Counter {
    /// A value must be between what is acknowledged and that with all of unknown outcome.
    fn check(&self, value: &str) {
        let value: u64 = value.parse().unwrap_or_else(|_| panic!("{}: {value}", self.key));
        let (low, high) = (self.acknowledged, self.acknowledged + self.unknown);
        assert!((low..=high).contains(&value), "{}: {value} not in {low}..={high}", self.key);
    }

    /// Counts until `changed`, and some more.
    fn count_up(&mut self, rack: &Rack, changed: &AtomicBool) {
        let mut client = rack.client();
        let mut last = Instant::now();
        let mut since_change = None;
        loop {
            if changed.load(Ordering::Relaxed) {
                let (at, before) = *since_change.get_or_insert((Instant::now(), self.acknowledged));
                if self.acknowledged >= before + MORE {
                    return;
                }
                assert!(at.elapsed() < PATIENCE, "{}: writes do not go on", self.key);
            }
            match client.call(&[b"INCR", self.key.as_bytes()]) {
                Ok((line, _)) if line.starts_with(':') => {
                    self.acknowledged += 1;
                    self.check(&line[1..]);
                    self.longest_pause = self.longest_pause.max(last.elapsed());
                    last = Instant::now();
                }
                Ok((line, _)) if line.starts_with("-UNKNOWN") => self.unknown += 1,
                Ok((line, _)) => assert!(line.starts_with("-TRYAGAIN"), "{}: {line}", self.key),
                Err(_) => {
                    self.unknown += 1;
                    std::thread::sleep(Duration::from_millis(50));
                    client = rack.client();
                }
            }
            let read = client.call(&[b"GET", self.key.as_bytes()]);
            if let Ok((line, value)) = read
                && line.starts_with('$')
                && line != "$-1"
            {
                self.check(&String::from_utf8_lossy(&value));
            }
        }
    }
}

/// Runs `change` while as many connections write; writes must go on behind it, and then all that
/// was acknowledged must be there. Prints the longest pause.
pub fn while_counting(name: &str, rack: &Rack, connections: usize, change: impl FnOnce()) {
    let changed = AtomicBool::new(false);
    let counter = |n: usize| Counter {
        key: format!("counter:{n}"),
        acknowledged: 0,
        unknown: 0,
        longest_pause: Duration::ZERO,
    };
    let mut counters: Vec<Counter> = (0..connections).map(counter).collect();
    std::thread::scope(|scope| {
        for counter in &mut counters {
            let changed = &changed;
            scope.spawn(move || counter.count_up(rack, changed));
        }
        // Connections end when the change fails, too.
        let outcome = catch_unwind(AssertUnwindSafe(change));
        changed.store(true, Ordering::Relaxed);
        if let Err(why) = outcome {
            resume_unwind(why);
        }
    });
    let mut client = rack.client();
    for counter in &counters {
        counter.check(&client.say(&format!("GET {}", counter.key)));
    }
    let pause = counters.iter().map(|c| c.longest_pause).max().unwrap_or_default();
    let unknown: u64 = counters.iter().map(|c| c.unknown).sum();
    let acknowledged: u64 = counters.iter().map(|c| c.acknowledged).sum();
    println!("{name}: paused for {pause:?}, {acknowledged} writes, {unknown} of unknown outcome");
}
