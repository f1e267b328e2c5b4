//! Injected faults: a sink in front of the driver's that loses, duplicates and reorders packets, by
//! integer ratios and from one seed.

use alloc::vec::Vec;

use concord_core::machine::Deadline;
use concord_core::{Duration, Instant, MS, Rng};
use concord_wire::{Addr, Sink};

const MILLION: u64 = 1_000_000;
/// The maximum number of packets held back at a time; beyond it packets pass in order.
pub const HELD_MAX: usize = 64;
/// The maximum number of packets that overtake a packet that is held back.
pub const OVERTAKEN_MAX: u64 = 8;
/// The longest time that a packet is held back if no others come, in ns.
pub const HELD_NS_MAX: Duration = 5 * MS;

/// The rates of faults: per million packets that pass the switch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FaultRates {
    /// The seed of every decision.
    pub seed: u64,
    /// Packets lost: half of them before the switch reads them, half after it.
    pub drop_ppm: u32,
    /// Packets sent twice.
    pub duplicate_ppm: u32,
    /// Packets overtaken by 1 to [`OVERTAKEN_MAX`] later packets.
    pub reorder_ppm: u32,
}

concord_core::counters! {
    /// Counts of injected faults.
    pub struct FaultCounters {
        /// Packets dropped by fault injection before they entered the switch.
        faults_dropped_in,
        /// Packets dropped by fault injection after they left the switch.
        faults_dropped_out,
        /// Packets duplicated by fault injection.
        faults_duplicated,
        /// Packets delayed by fault injection, so that others overtake them.
        faults_reordered,
    }
}

#[derive(Clone, Debug)]
struct Held {
    to: Addr,
    bytes: Vec<u8>,
    /// The number of packets that are still to overtake this one.
    overtakers_left: u64,
    /// When it is sent in any case.
    release_at: Instant,
}

/// The fault injector: its random source, and the packets held back.
#[derive(Clone, Debug)]
pub struct Faults {
    rates: FaultRates,
    rng: Rng,
    /// Packets held back, in order of arrival; at most [`HELD_MAX`].
    held: Vec<Held>,
    /// Buffers of released packets, for reuse.
    spare: Vec<Vec<u8>>,
    counters: FaultCounters,
}

impl Faults {
    /// An injector with these rates; if all are 0, everything passes unchanged.
    #[must_use]
    pub fn new(rates: FaultRates) -> Faults {
        Faults {
            rates,
            rng: Rng::new(rates.seed),
            held: Vec::new(),
            spare: Vec::new(),
            counters: FaultCounters::default(),
        }
    }

    /// Whether all rates are 0.
    #[must_use]
    #[inline]
    pub fn quiet(&self) -> bool {
        let r = &self.rates;
        r.drop_ppm | r.duplicate_ppm | r.reorder_ppm == 0
    }

    /// Whether an arriving packet is lost before the switch reads it.
    #[inline]
    pub fn loses_input(&mut self) -> bool {
        if self.rates.drop_ppm == 0 {
            return false;
        }
        let lost = self.happens(self.rates.drop_ppm / 2);
        self.counters.faults_dropped_in += u64::from(lost);
        lost
    }

    /// A sink that applies the rates to packets, and passes the rest to `inner`.
    #[inline]
    pub fn sink<'a, S: Sink>(&'a mut self, now: Instant, inner: &'a mut S) -> FaultySink<'a, S> {
        FaultySink { faults: self, now, inner }
    }

    /// Releases the packets whose delay ends by `now`; [`Instant::NEVER`] releases all of them.
    pub fn flush(&mut self, now: Instant, inner: &mut impl Sink) {
        let mut i = 0;
        while i < self.held.len() {
            if self.held[i].release_at <= now {
                self.release(i, inner);
            } else {
                i += 1;
            }
        }
    }

    /// When [`Faults::flush`] is due.
    #[must_use]
    pub fn deadline(&self) -> Deadline {
        let at = self.held.iter().map(|h| h.release_at).min();
        at.map_or(Deadline::NONE, |at| Deadline { at, reason: "release packets held back" })
    }

    /// The counters of the injected faults.
    #[must_use]
    pub fn counters(&self) -> &FaultCounters {
        &self.counters
    }

    fn happens(&mut self, ppm: u32) -> bool {
        ppm != 0 && self.rng.chance(u64::from(ppm), MILLION)
    }

    fn send(&mut self, now: Instant, to: Addr, packet: &[u8], inner: &mut impl Sink) {
        let dropped = self.happens(self.rates.drop_ppm.div_ceil(2));
        let reordered =
            !dropped && self.held.len() < HELD_MAX && self.happens(self.rates.reorder_ppm);
        if dropped {
            self.counters.faults_dropped_out += 1;
        } else if !reordered {
            inner.send(to, packet);
            if self.happens(self.rates.duplicate_ppm) {
                self.counters.faults_duplicated += 1;
                inner.send(to, packet);
            }
        }
        self.overtake(inner);
        if reordered {
            self.hold(now, to, packet);
        }
    }

    /// Notes that another packet overtook those that are held back.
    fn overtake(&mut self, inner: &mut impl Sink) {
        let mut i = 0;
        while i < self.held.len() {
            self.held[i].overtakers_left -= 1;
            if self.held[i].overtakers_left == 0 {
                self.release(i, inner);
            } else {
                i += 1;
            }
        }
    }

    fn hold(&mut self, now: Instant, to: Addr, packet: &[u8]) {
        self.counters.faults_reordered += 1;
        let mut bytes = self.spare.pop().unwrap_or_default();
        bytes.clear();
        bytes.extend_from_slice(packet);
        let overtakers_left = self.rng.between(1, OVERTAKEN_MAX);
        self.held.push(Held { to, bytes, overtakers_left, release_at: now.after(HELD_NS_MAX) });
    }

    fn release(&mut self, index: usize, inner: &mut impl Sink) {
        let held = self.held.remove(index);
        inner.send(held.to, &held.bytes);
        self.spare.push(held.bytes);
    }
}

/// The sink that [`Faults::sink`] makes.
#[derive(Debug)]
pub struct FaultySink<'a, S> {
    faults: &'a mut Faults,
    now: Instant,
    inner: &'a mut S,
}

impl<S: Sink> Sink for FaultySink<'_, S> {
    #[inline]
    fn send(&mut self, to: Addr, packet: &[u8]) {
        if self.faults.quiet() {
            self.inner.send(to, packet);
        } else {
            self.faults.send(self.now, to, packet, self.inner);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TO: Addr = Addr { ip: 1, port: 2 };

    fn run(rates: FaultRates, packets: u32) -> (Vec<u32>, Faults) {
        let mut faults = Faults::new(rates);
        let mut out: Vec<(Addr, Vec<u8>)> = Vec::new();
        for i in 0..packets {
            faults.sink(Instant(u64::from(i)), &mut out).send(TO, &i.to_be_bytes());
        }
        faults.flush(Instant::NEVER, &mut out);
        let number = |p: &(Addr, Vec<u8>)| u32::from_be_bytes(p.1[..].try_into().unwrap());
        (out.iter().map(number).collect(), faults)
    }

    #[test]
    fn without_rates_everything_passes_in_order() {
        let (out, faults) = run(FaultRates::default(), 100);
        assert!(out.into_iter().eq(0..100));
        assert!(faults.quiet());
    }

    #[test]
    fn rates_are_met_and_every_packet_is_accounted_for() {
        let rates =
            FaultRates { seed: 1, drop_ppm: 20_000, duplicate_ppm: 10_000, reorder_ppm: 10_000 };
        let (mut out, mut faults) = run(rates, 100_000);
        let c = *faults.counters();
        let lost = u64::from(100_000 - out.iter().max().unwrap() - 1);
        assert!(lost < 20);
        assert_eq!(out.len() as u64, 100_000 - c.faults_dropped_out + c.faults_duplicated);
        let about = |n: u64| (800..1_200).contains(&n);
        assert!(about(c.faults_dropped_out), "half of the losses are behind the switch: {c:?}");
        assert!(about(c.faults_duplicated) && about(c.faults_reordered), "{c:?}");
        let input_losses = (0..100_000).filter(|_| faults.loses_input()).count() as u64;
        assert!(about(input_losses), "and half are before it: {input_losses}");
        out.dedup();
        let late = out.windows(2).filter(|w| w[1] < w[0]).count() as u64;
        assert!(late > c.faults_reordered / 2, "packets held back do arrive late: {late}");
        assert_eq!(run(rates, 100_000).0.len(), run(rates, 100_000).0.len(), "a seed replays");
    }

    /// A packet that is held back is sent at its deadline if no other overtakes it.
    #[test]
    fn held_packet_leaves_at_its_deadline() {
        let rates = FaultRates { seed: 1, reorder_ppm: 1_000_000, ..FaultRates::default() };
        let mut faults = Faults::new(rates);
        let mut out: Vec<(Addr, Vec<u8>)> = Vec::new();
        faults.sink(Instant(7), &mut out).send(TO, b"late");
        assert!(out.is_empty());
        let at = faults.deadline().at;
        assert_eq!(at, Instant(7).after(HELD_NS_MAX));
        faults.flush(Instant(at.0 - 1), &mut out);
        assert!(out.is_empty());
        faults.flush(at, &mut out);
        assert_eq!(out, [(TO, b"late".to_vec())]);
        assert_eq!(faults.deadline(), Deadline::NONE);
    }

    #[test]
    fn what_is_held_back_is_bounded() {
        let rates = FaultRates { seed: 3, reorder_ppm: 1_000_000, ..FaultRates::default() };
        let (out, _) = run(rates, 10_000);
        assert_eq!(out.len(), 10_000);
    }
}
