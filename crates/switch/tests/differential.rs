//! The program against Algorithm 1 over a plain map, on random traces: verdict and header are
//! equal packet by packet. `CONCORD_TRACE_PACKETS` sets the length of each trace.
#![allow(clippy::unwrap_used)]

mod common;

use std::collections::HashMap;

use common::*;
use concord_core::{Guards, ObjectId, RequestNumber, Rng, Seq, SessionId, SwitchId};
use concord_pisa::Crc32;
use concord_pisa::hash::POLYNOMIALS;
use concord_switch::harmonia::cell_index;
use concord_switch::{DropReason, Harmonia, Layout};
use concord_wire::{Flags, Op, Reason, Repr};

/// Algorithm 1 as the paper writes it, with the additional rules of §6.2, §6.3, T13, T18 and T20.
struct Model {
    switch_id: SwitchId,
    layout: Layout,
    seq: u32,
    last_committed: u32,
    wildcard_seq: u32,
    dirty_set: HashMap<u32, u32>,
}

impl Model {
    fn new(switch_id: SwitchId, layout: Layout) -> Model {
        let dirty_set = HashMap::new();
        Model { switch_id, layout, seq: 0, last_committed: 0, wildcard_seq: 0, dirty_set }
    }

    /// The expected outcome. `full` is whether the program dropped a write because it found no
    /// slot: the only outcome that a map cannot predict.
    fn process(&mut self, hdr: &Repr, full: bool) -> Outcome {
        match hdr.op {
            Op::Write => self.write(hdr, full),
            Op::Read => Ok(self.read(hdr)),
            Op::WriteCompletion => {
                self.complete(hdr);
                Err(DropReason::Consumed)
            }
            Op::WriteReply => {
                if hdr.flags.has(Flags::COMPLETION) {
                    self.complete(hdr);
                }
                Ok((hdr.client, *hdr))
            }
            _ => Err(DropReason::Consumed),
        }
    }

    fn write(&mut self, hdr: &Repr, full: bool) -> Outcome {
        if self.seq == self.layout.counter_max() {
            return Err(DropReason::SeqExhausted);
        }
        self.seq += 1;
        if hdr.flags.has(Flags::WILDCARD) {
            self.wildcard_seq = self.seq;
        } else if !hdr.flags.has(Flags::NOOP) {
            if full && hdr.attempt < 3 {
                return Err(DropReason::TableFull);
            }
            if full {
                self.wildcard_seq = self.seq;
                let (seq, flags) =
                    (Seq::new(self.switch_id, self.seq), hdr.flags.with(Flags::WILDCARD));
                return Ok((replica(1), Repr { seq, flags, ..*hdr }));
            }
            self.dirty_set.insert(hdr.obj_id.0, self.seq);
        }
        Ok((replica(1), Repr { seq: Seq::new(self.switch_id, self.seq), ..*hdr }))
    }

    fn complete(&mut self, hdr: &Repr) {
        let counter = hdr.seq.counter;
        if hdr.seq.switch_id != self.switch_id || counter == 0 || counter > self.seq {
            return;
        }
        if self.dirty_set.get(&hdr.obj_id.0).is_some_and(|c| counter >= *c) {
            self.dirty_set.remove(&hdr.obj_id.0);
        }
        self.last_committed = self.last_committed.max(counter);
    }

    fn live(&self, obj_id: u32) -> bool {
        self.dirty_set.get(&obj_id).is_some_and(|c| *c > self.last_committed)
    }

    fn read(&self, hdr: &Repr) -> (concord_wire::Addr, Repr) {
        let reason = if hdr.flags.has(Flags::WILDCARD) {
            Reason::SlowAllKeys
        } else if self.last_committed == 0 {
            Reason::SlowNotReady
        } else if self.wildcard_seq > self.last_committed {
            Reason::SlowWildcard
        } else if self.live(hdr.obj_id.0) {
            Reason::SlowDirty
        } else {
            Reason::Fast
        };
        if reason != Reason::Fast {
            return (replica(3), Repr { reason, flags: hdr.flags.without(Flags::FAST), ..*hdr });
        }
        let (s, r) = (hdr.session.0, hdr.request.0 >> self.layout.run_bits);
        let words = [(s >> 32) as u32, s as u32, (r >> 32) as u32, r as u32];
        let hash = Crc32::new(POLYNOMIALS[8]).of(words);
        let choice = hash.wrapping_add(u32::from(hdr.attempt)) % 1_024;
        // 1,023 is divisible by three: the last row must not repeat the first.
        let choice = if choice == 1_023 { 1 } else { choice % 3 };
        let last_committed = Seq::new(self.switch_id, self.last_committed);
        let flags = hdr.flags.with(Flags::FAST);
        (replica(1 + choice as u16), Repr { reason, flags, last_committed, ..*hdr })
    }
}

/// The parameters of a trace.
struct Trace {
    seed: u64,
    layout: Layout,
    objects: u64,
    /// The maximum number of writes in flight.
    in_flight: usize,
    guards: Guards,
}

#[derive(Debug, Default)]
struct Seen {
    fast: u64,
    dirty: u64,
    full: u64,
    exhausted: u64,
}

/// The network and the replicas of a trace: the packets in flight, in the order of their numbers.
struct Load<'a> {
    rng: Rng,
    trace: &'a Trace,
    in_flight: Vec<(u32, Seq)>,
}

impl Load<'_> {
    fn next(&mut self, switch_id: SwitchId) -> Repr {
        let obj_id = self.rng.below(self.trace.objects) as u32;
        let room = self.in_flight.len() < self.trace.in_flight;
        let mut hdr = match self.rng.below(100) {
            0..=27 if room => request(Op::Write, obj_id),
            0..=46 => self.completion(switch_id, obj_id),
            47..=48 => Repr {
                index: self.rng.below(u64::from(self.trace.layout.slots)) as u32,
                ..request(Op::Sweep, 0)
            },
            _ => request(Op::Read, obj_id),
        };
        let special = match hdr.op {
            Op::Write => [Flags::NOOP, Flags::WILDCARD],
            _ => [Flags::FAST, Flags::WILDCARD],
        };
        let reply = Flags::COMPLETION.0 * u16::from(hdr.op == Op::WriteReply && self.half());
        hdr.flags = Flags(reply).with(Flags(Flags::RESP3.0 * u16::from(self.half())));
        // A write of all keys keeps reads slow until all earlier writes are completed.
        if self.rng.chance(1, 20 * self.trace.in_flight as u64) {
            hdr.flags = hdr.flags.with(special[self.rng.below(2) as usize]);
        }
        hdr.session = SessionId(self.rng.next_u64());
        hdr.request = RequestNumber(self.rng.next_u64());
        hdr.attempt = self.rng.below(4) as u16;
        hdr
    }

    fn half(&mut self) -> bool {
        self.rng.chance(1, 2)
    }

    /// Mostly the completion of the oldest write in flight; sometimes out of order, of a write that
    /// is no longer in flight, of another switch, or with a number that was not given out. Some
    /// writes are lost.
    fn completion(&mut self, switch_id: SwitchId, obj_id: u32) -> Repr {
        let op = if self.half() { Op::WriteCompletion } else { Op::WriteReply };
        let any = self.rng.below(self.in_flight.len() as u64) as usize;
        let (obj_id, seq) = match self.rng.below(20) {
            0 => (obj_id, Seq::new(SwitchId(switch_id.0 - 1), self.rng.below(300) as u32)),
            1 => (obj_id, Seq::new(switch_id, u32::MAX - self.rng.below(3) as u32)),
            2 => self.in_flight.get(any).copied().unwrap_or((obj_id, Seq::NONE)),
            _ if self.in_flight.is_empty() => (obj_id, Seq::NONE),
            3 => self.in_flight.remove(any),
            4 => {
                self.in_flight.remove(any);
                (obj_id, Seq::NONE)
            }
            _ => self.in_flight.remove(0),
        };
        Repr { seq, ..request(op, obj_id) }
    }
}

/// Whether every stage's cell for `obj_id` holds another object that is in flight.
fn truly_full(p: &Harmonia, obj_id: ObjectId) -> bool {
    let slots = p.layout().slots;
    let at = |stage: usize| (cell_index(stage, obj_id) & (slots - 1)) as usize;
    let taken = |stage: usize| {
        p.entries().any(|e| {
            (e.0, e.1) == (stage, at(stage)) && e.2 != obj_id.0 && e.3 > p.view().last_committed
        })
    };
    (0..usize::from(p.layout().table_stages)).all(taken)
}

/// The invariants between the registers and the map.
fn check_registers(p: &Harmonia, model: &Model) -> Result<(), String> {
    let cells: Vec<_> = p.entries().collect();
    if cells.len() as u32 != p.view().occupied {
        return Err(format!("{} cells in use, occupied says {}", cells.len(), p.view().occupied));
    }
    let state = (p.view().seq, p.view().last_committed, p.view().wildcard_seq);
    if state != (model.seq, model.last_committed, model.wildcard_seq) {
        return Err(format!("registers {state:?}"));
    }
    for (obj_id, counter) in model.dirty_set.iter().filter(|(o, _)| model.live(**o)) {
        let held = cells.iter().filter(|c| c.2 == *obj_id).map(|c| c.3).max();
        if held != Some(*counter) {
            return Err(format!("object {obj_id}: {held:?} in the table, {counter} in the map"));
        }
    }
    Ok(())
}

fn run_trace(trace: &Trace, packets: u64) -> Result<Seen, String> {
    let mut p = guarded(trace.layout, trace.guards);
    let mut model = Model::new(OWN, trace.layout);
    let mut load = Load { rng: Rng::new(trace.seed), trace, in_flight: vec![] };
    let mut seen = Seen::default();
    for i in 0..packets {
        let hdr = load.next(model.switch_id);
        let got = run(&mut p, hdr);
        let became_all_keys = |(_, out): &(_, Repr)| {
            out.op == Op::Write && out.flags.has(Flags::WILDCARD) && !hdr.flags.has(Flags::WILDCARD)
        };
        let full = got == Err(DropReason::TableFull) || got.as_ref().is_ok_and(became_all_keys);
        if full && !truly_full(&p, hdr.obj_id) {
            return Err(format!("packet {i}: dropped though there was a slot: {hdr:?}"));
        }
        let expected = model.process(&hdr, full);
        if got != expected {
            return Err(format!("packet {i}: {hdr:?}\n     got {got:?}\nexpected {expected:?}"));
        }
        match got {
            Ok((_, out)) if hdr.op == Op::Write => load.in_flight.push((hdr.obj_id.0, out.seq)),
            Ok((_, out)) if out.reason == Reason::Fast => seen.fast += 1,
            Ok((_, out)) if out.reason == Reason::SlowDirty => seen.dirty += 1,
            Err(DropReason::TableFull) => seen.full += 1,
            Err(DropReason::SeqExhausted) => seen.exhausted += 1,
            _ => {}
        }
        if got == Err(DropReason::SeqExhausted) && load.rng.chance(1, 10) {
            model = Model::new(SwitchId(model.switch_id.0 + 1), model.layout);
            install(&mut p, &config(1, model.switch_id.0));
            load.in_flight.clear();
        }
        if i % 4_096 == 0 {
            check_registers(&p, &model)?;
        }
    }
    check_registers(&p, &model)?;
    Ok(seen)
}

fn packets() -> u64 {
    let set = std::env::var("CONCORD_TRACE_PACKETS").ok();
    set.map_or(1_000_000, |n| n.parse().expect("CONCORD_TRACE_PACKETS is a number"))
}

fn trace(seed: u64, layout: Layout, objects: u64, in_flight: usize) -> Trace {
    Trace { seed, layout, objects, in_flight, guards: Guards::ALL }
}

#[test]
fn the_default_table_equals_a_map_and_never_fills() {
    let seen = run_trace(&trace(1, Layout::DEFAULT, 3_000, 1_000), packets()).unwrap();
    assert_eq!((seen.full, seen.exhausted), (0, 0), "{seen:?}");
    assert!(seen.fast > packets() / 20 && seen.dirty > packets() / 100, "{seen:?}");
}

/// Small tables equal a map, except for the writes that find no slot.
#[test]
fn small_tables_equal_a_map_except_without_slots() {
    for (seed, stages, slots) in [(2, 1, 16), (3, 2, 16), (4, 3, 16), (5, 8, 4)] {
        let cells = u64::from(stages) * u64::from(slots);
        let t = trace(seed, layout(stages, slots), 2 * cells, cells as usize);
        let seen = run_trace(&t, packets() / 3).unwrap();
        assert!(seen.fast > 100 && seen.dirty > 100 && seen.full > 100, "{stages}: {seen:?}");
    }
}

#[test]
fn a_single_cell_equals_a_map_too() {
    let seen = run_trace(&trace(6, layout(1, 1), 3, 2), packets() / 3).unwrap();
    assert!(seen.fast > 100 && seen.dirty > 100 && seen.full > 100, "{seen:?}");
}

#[test]
fn t20_8_bit_counters_equal_a_map_over_many_switch_ids() {
    let narrow = Layout { counter_bits: 8, ..layout(3, 16) };
    let seen = run_trace(&trace(7, narrow, 50, 20), packets() / 3).unwrap();
    assert!(seen.fast > 100 && seen.dirty > 100 && seen.exhausted > 1_000, "{seen:?}");
}

#[cfg(feature = "mutants")]
#[test]
fn each_removed_guard_is_caught() {
    use concord_core::Guard;
    for guard in [Guard::DropOnFull, Guard::DirtySet, Guard::FirstCompletion] {
        let guards = Guards::without(guard);
        let t = Trace { guards, ..trace(8, layout(2, 16), 60, 20) };
        assert!(run_trace(&t, 10_000).is_err(), "{guard:?}");
    }
}
