//! The load generator: many pending operations from one thread, in a closed loop (as many as there
//! are clients) or an open loop (arrivals at a rate, whatever the store does).

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock};

use concord_core::{Instant, MS, Now, SEC};
use concord_runtime::{Error, clock};
use hdrhistogram::Histogram;

use super::workload::{Kind, Workload};

/// The maximum latency that a histogram distinguishes from longer ones, in ns.
const LATENCY_NS_MAX: u64 = 120 * SEC;
/// The number of significant digits of latencies.
const DIGITS: u8 = 3;
/// The maximum time for replies after the end of a run, in ns.
const DRAIN_NS_MAX: u64 = 30 * SEC;
/// The maximum wait in one iteration, in ns, and so the delay with which a signal is seen.
const ITERATION_NS_MAX: u64 = 10 * MS;

/// Set by SIGINT and SIGTERM: the running benchmark ends, and cleans up.
pub static STOP: LazyLock<Arc<AtomicBool>> = LazyLock::new(Arc::default);

/// Fails once a signal has come.
///
/// # Errors
/// A signal has come; the error makes every level above clean up.
pub fn check_stop() -> Result<(), Error> {
    match STOP.load(Ordering::Relaxed) {
        true => Err(Error::new("interrupted")),
        false => Ok(()),
    }
}

/// A reply.
#[derive(Clone, Copy, Debug)]
pub struct Answer {
    /// The slot, as given to [`Target::submit`].
    pub slot: u32,
    /// Whether it is not an error, and in time.
    pub ok: bool,
    /// Whether one replica answered the read alone (fast path); never known through RESP.
    pub fast: bool,
}

/// A request.
#[derive(Clone, Copy, Debug)]
pub struct Ask<'a> {
    /// The slot of the generator: each has at most one pending request.
    pub slot: u32,
    /// The key.
    pub key: &'a [u8],
    /// The value to SET; `None` for a GET.
    pub value: Option<&'a [u8]>,
}

/// The target of a load.
pub trait Target {
    /// Queues a request; returns `false` if there is no room before the next reply.
    ///
    /// # Errors
    /// If the target is gone.
    fn submit(&mut self, now: Now, ask: Ask<'_>) -> Result<bool, Error>;

    /// Sends queued requests, waits for replies until `until`, and adds them to `answers`.
    ///
    /// # Errors
    /// If the target is gone.
    fn iterate(&mut self, until: Instant, answers: &mut Vec<Answer>) -> Result<(), Error>;
}

impl<T: Target + ?Sized> Target for &mut T {
    fn submit(&mut self, now: Now, ask: Ask<'_>) -> Result<bool, Error> {
        (**self).submit(now, ask)
    }

    fn iterate(&mut self, until: Instant, answers: &mut Vec<Answer>) -> Result<(), Error> {
        (**self).iterate(until, answers)
    }
}

/// The parameters of a run.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// The maximum number of pending operations.
    pub clients: u32,
    /// The length of values, in bytes.
    pub value_bytes: usize,
    /// Arrivals per second; `None` for a closed loop.
    pub rate: Option<f64>,
    /// The duration of the warm-up, in ns.
    pub warmup_ns: u64,
    /// The duration of the measurement after it, in ns.
    pub measure_ns: u64,
}

/// The measurements of a run after its warm-up.
#[derive(Clone, Debug)]
pub struct Measured {
    /// The latencies of reads, in ns.
    pub reads: Histogram<u64>,
    /// The latencies of all other operations, in ns; a read-modify-write counts as a whole.
    pub writes: Histogram<u64>,
    /// The number of reads that one replica answered alone.
    pub fast: u64,
    /// The number of operations that failed or got no answer in time.
    pub failed: u64,
    /// The duration of the measurement, in seconds.
    pub seconds: f64,
}

impl Measured {
    fn new() -> Result<Measured, Error> {
        let histogram = || {
            Histogram::new_with_bounds(1_000, LATENCY_NS_MAX, DIGITS)
                .map_err(|e| Error::new(format!("no histogram: {e}")))
        };
        Ok(Measured { reads: histogram()?, writes: histogram()?, fast: 0, failed: 0, seconds: 0.0 })
    }

    /// Operations per second.
    pub fn rate(&self) -> f64 {
        (self.reads.len() + self.writes.len()) as f64 / self.seconds
    }

    /// The share of reads that one replica answered alone, 0 to 1.
    pub fn fast_share(&self) -> f64 {
        self.fast as f64 / (self.reads.len() as f64).max(1.0)
    }
}

/// The name of key `number`.
pub fn key(number: u64) -> [u8; 12] {
    let mut key = *b"user00000000";
    let mut rest = number;
    for digit in key[4..].iter_mut().rev() {
        *digit = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
    key
}

#[derive(Clone, Copy, Debug)]
struct Slot {
    kind: Kind,
    key: u64,
    /// The time of its arrival, which in an open loop may be before it was sent.
    began: Instant,
    /// Whether it is a read-modify-write whose read is answered.
    is_second: bool,
}

/// The state of a run.
struct Run<'a, T> {
    target: &'a mut T,
    workload: &'a mut Workload,
    plan: Plan,
    value: Vec<u8>,
    slots: Vec<Slot>,
    free: Vec<u32>,
    /// The slots whose requests wait for room at the target.
    waiting: VecDeque<u32>,
    next_arrival: Instant,
    from: Instant,
    end: Instant,
    measured: Measured,
}

/// Runs `workload` on `target`.
///
/// # Errors
/// If the target is gone, does not answer, or a signal came.
pub fn run(
    target: &mut impl Target,
    workload: &mut Workload,
    plan: Plan,
) -> Result<Measured, Error> {
    let begin = clock::now().instant;
    let from = begin.after(plan.warmup_ns);
    let slot = Slot { kind: Kind::Read, key: 0, began: begin, is_second: false };
    let mut run = Run {
        target,
        workload,
        plan,
        value: vec![b'x'; plan.value_bytes],
        slots: vec![slot; plan.clients as usize],
        free: (0..plan.clients).rev().collect(),
        waiting: VecDeque::new(),
        next_arrival: begin,
        from,
        end: from.after(plan.measure_ns),
        measured: Measured::new()?,
    };
    run.all()?;
    let mut measured = run.measured;
    measured.seconds = plan.measure_ns as f64 / SEC as f64;
    Ok(measured)
}

impl<T: Target> Run<'_, T> {
    fn all(&mut self) -> Result<(), Error> {
        let mut answers = Vec::new();
        loop {
            check_stop()?;
            let now = clock::now();
            let is_over = now.instant >= self.end;
            if !is_over {
                self.arrive(now.instant);
            }
            self.send(now)?;
            if is_over && self.free.len() == self.slots.len() {
                return Ok(());
            }
            if now.instant >= self.end.after(DRAIN_NS_MAX) {
                let lost = self.slots.len() - self.free.len();
                return Err(Error::new(format!("no answer to {lost} operations")));
            }
            let mut until = now.instant.after(ITERATION_NS_MAX);
            if self.plan.rate.is_some() && !self.free.is_empty() {
                until = until.min(self.next_arrival);
            }
            self.target.iterate(until, &mut answers)?;
            let at = clock::now().instant;
            for answer in answers.drain(..) {
                self.answered(at, answer);
            }
        }
    }

    /// Begins the operations that are due.
    fn arrive(&mut self, now: Instant) {
        while let Some(&slot) = self.free.last() {
            let mut began = now;
            if let Some(rate) = self.plan.rate {
                if self.next_arrival > now {
                    return;
                }
                began = self.next_arrival;
                self.next_arrival = began.after(self.workload.gap_ns(rate));
            }
            self.free.pop();
            let (kind, key) = self.workload.draw();
            self.slots[slot as usize] = Slot { kind, key, began, is_second: false };
            self.waiting.push_back(slot);
        }
    }

    fn send(&mut self, now: Now) -> Result<(), Error> {
        while let Some(&slot) = self.waiting.front() {
            let Slot { kind, key: number, is_second, .. } = self.slots[slot as usize];
            let is_write = match kind {
                Kind::Read => false,
                Kind::Update | Kind::Insert => true,
                Kind::ReadModifyWrite => is_second,
            };
            let value = is_write.then_some(self.value.as_slice());
            if !self.target.submit(now, Ask { slot, key: &key(number), value })? {
                return Ok(());
            }
            self.waiting.pop_front();
        }
        Ok(())
    }

    fn answered(&mut self, at: Instant, answer: Answer) {
        let slot = &mut self.slots[answer.slot as usize];
        let in_time = at >= self.from && at < self.end;
        let is_read = slot.kind == Kind::Read;
        if slot.kind == Kind::ReadModifyWrite && !slot.is_second && answer.ok {
            slot.is_second = true;
            self.waiting.push_back(answer.slot);
            return;
        }
        self.free.push(answer.slot);
        if !in_time {
            return;
        }
        if !answer.ok {
            self.measured.failed += 1;
            return;
        }
        self.measured.fast += u64::from(is_read && answer.fast);
        let histogram = if is_read { &mut self.measured.reads } else { &mut self.measured.writes };
        histogram.saturating_record(at.since(slot.began));
    }
}

/// SETs keys `0..keys`.
///
/// # Errors
/// If the target is gone, refuses or does not answer.
pub fn fill(
    target: &mut impl Target,
    keys: u64,
    value_bytes: usize,
    clients: u32,
) -> Result<(), Error> {
    let value = vec![b'x'; value_bytes];
    let mut free: Vec<u32> = (0..clients).collect();
    let mut answers = Vec::new();
    let (mut next, mut answered_at) = (0, clock::now().instant);
    while next < keys || free.len() < clients as usize {
        check_stop()?;
        let now = clock::now();
        while let Some(&slot) = free.last()
            && next < keys
            && target.submit(now, Ask { slot, key: &key(next), value: Some(&value) })?
        {
            free.pop();
            next += 1;
        }
        target.iterate(now.instant.after(ITERATION_NS_MAX), &mut answers)?;
        if !answers.is_empty() {
            answered_at = now.instant;
        }
        if now.instant.since(answered_at) > DRAIN_NS_MAX {
            return Err(Error::new("no answers while the keys were loaded"));
        }
        for answer in answers.drain(..) {
            if !answer.ok {
                return Err(Error::new("a write was refused while the keys were loaded"));
            }
            free.push(answer.slot);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::workload::{Choice, Mix};

    /// A target that answers everything in the next iteration, a few at once.
    struct Echo {
        queued: Vec<(u32, bool)>,
        reads: u64,
        writes: u64,
    }

    impl Target for Echo {
        fn submit(&mut self, _: Now, ask: Ask<'_>) -> Result<bool, Error> {
            if self.queued.len() >= 4 {
                return Ok(false);
            }
            self.queued.push((ask.slot, ask.value.is_some()));
            Ok(true)
        }

        fn iterate(&mut self, until: Instant, answers: &mut Vec<Answer>) -> Result<(), Error> {
            if self.queued.is_empty() {
                let wait = until.since(clock::now().instant).min(MS);
                std::thread::sleep(std::time::Duration::from_nanos(wait));
            }
            for (slot, is_write) in self.queued.drain(..) {
                self.reads += u64::from(!is_write);
                self.writes += u64::from(is_write);
                answers.push(Answer { slot, ok: true, fast: !is_write });
            }
            Ok(())
        }
    }

    fn measure(mix: Mix, rate: Option<f64>) -> (Measured, Echo) {
        let mut echo = Echo { queued: Vec::new(), reads: 0, writes: 0 };
        let mut workload = Workload::new(mix, Choice::Uniform, 100, 1).unwrap();
        let plan =
            Plan { clients: 8, value_bytes: 10, rate, warmup_ns: 20 * MS, measure_ns: 300 * MS };
        (run(&mut echo, &mut workload, plan).unwrap(), echo)
    }

    #[test]
    fn a_read_modify_write_is_one_operation_of_two_requests() {
        let (measured, echo) = measure(Mix::YCSB[4], None);
        let (reads, writes) = (measured.reads.len(), measured.writes.len());
        assert!(reads > 0 && writes > 0);
        // Every operation begins with a read; half of them go on with a write.
        let share = echo.writes as f64 / echo.reads as f64;
        assert!((0.4..0.6).contains(&share), "{share}");
        assert_eq!(measured.fast, reads);
    }

    #[test]
    fn an_open_loop_keeps_its_rate() {
        let (measured, _) = measure(Mix::YCSB[2], Some(2_000.0));
        assert!((1_600.0..2_400.0).contains(&measured.rate()), "{}", measured.rate());
    }

    #[test]
    fn keys_are_of_one_length() {
        assert_eq!(&key(0), b"user00000000");
        assert_eq!(&key(12_345_678), b"user12345678");
    }
}
