//! Theorem 3.2 of the paper: the share of a matching of hosts' slots that finds virtual links, by
//! its formula and with the shipped switch programs.

use concord_core::{Guards, Instant, Now, Rng};
use concord_pisa::{Metadata, Verdict};
use concord_switch::harmony::{Choice, Route};
use concord_switch::{
    Harmony as Program, Ingress, LinkTables, LinksLayout, PortTable, SwitchProgram as _,
};
use concord_wire::harmony::{Op, Repr};

use super::wiring::{addr, node_of};

/// f(K, C): KC requests for a ToR switch pick one of C spines each, and K requests of each spine
/// find a virtual link. The share of requests that do, 0 to 1.
#[must_use]
pub fn allocated_share(slots: u32, spines: u32) -> f64 {
    let (k, c) = (f64::from(slots), f64::from(spines));
    if spines < 2 {
        return 1.0;
    }
    let mut probability = (1.0 - 1.0 / c).powf(k * c);
    let mut sum = 0.0;
    for i in 0..=slots * spines {
        let i = f64::from(i);
        sum += i.min(k) * probability;
        probability *= (k * c - i) / ((i + 1.0) * (c - 1.0));
    }
    sum / k
}

/// A full-bisection leaf-spine network of switch programs, with as many hosts below a ToR switch as
/// there are spines, and without the links between them: an `rsvp` is complete before the next one
/// begins.
pub struct Allocation {
    tors: u32,
    spines: u32,
    slots: u8,
    /// The ToR switches, then the spines.
    switches: Vec<Program>,
    ports: PortTable,
}

impl Allocation {
    /// A network without reservations; `None` if its switches are not possible.
    #[must_use]
    pub fn new(tors: u32, spines: u32, slots: u8, choice: Choice) -> Option<Allocation> {
        let hosts = tors * spines;
        let layout = LinksLayout {
            hosts: u16::try_from(hosts).ok()?,
            slots,
            links: u16::try_from(2 * spines.max(tors.div_ceil(2)) * u32::from(slots)).ok()?,
            choice,
            ..LinksLayout::DEFAULT
        };
        let mut switches = Vec::new();
        for switch in 0..tors + spines {
            let own = switch * spines..(switch + 1) * spines;
            let is_tor = switch < tors;
            let below = if is_tor { own.clone() } else { hosts..hosts + tors };
            let above = if is_tor { hosts + tors..hosts + tors + spines } else { 0..0 };
            let down = |host: u32| match is_tor {
                true if own.contains(&host) => Route::Down((host - own.start) as u8),
                true => Route::Up,
                false => Route::Down((host / spines) as u8),
            };
            let neighbours: Vec<_> = below.clone().chain(above.clone()).map(addr).collect();
            let first_up = below.len() as u8;
            let tables = LinkTables {
                switch: switch as u16,
                own: addr(hosts + switch),
                links: neighbours.iter().map(|_| slots.into()).collect(),
                neighbours,
                uplinks: (first_up..first_up + above.len() as u8).collect(),
                routes: (0..hosts).map(down).collect(),
            };
            let mut program = Program::new(layout, tables.own, Guards::ALL).ok()?;
            program.fill(Instant(0), tables, false).ok()?;
            switches.push(program);
        }
        Some(Allocation { tors, spines, slots, switches, ports: PortTable::default() })
    }

    /// The share of the slots of a random matching for which virtual links up to the sender are
    /// reserved, if the `rsvp`s come in random order. The matching pairs each host's K receiving
    /// slots with K sending slots of hosts below other ToR switches.
    #[must_use]
    pub fn share(&mut self, seed: u64) -> f64 {
        let mut rng = Rng::new(seed);
        let hosts = self.tors * self.spines;
        let mut rsvps: Vec<(u32, u32, u8)> = Vec::new();
        for slot in 0..self.slots {
            // The hosts in a random circle: each sends to the one a fixed number of places away.
            let mut order: Vec<u32> = (0..hosts).collect();
            shuffle(&mut rng, &mut order);
            let away = 1 + rng.below(u64::from(hosts) - 1) as usize;
            let pairs =
                (0..hosts as usize).map(|at| (order[at], order[(at + away) % hosts as usize]));
            let is_apart = |&(a, b): &(u32, u32)| a / self.spines != b / self.spines;
            rsvps.extend(pairs.filter(is_apart).map(|(from, to)| (from, to, slot)));
        }
        shuffle(&mut rng, &mut rsvps);
        let count = rsvps.len().max(1);
        let reserved = rsvps.into_iter().filter(|&(from, to, slot)| self.reserves(from, to, slot));
        reserved.count() as f64 / count as f64
    }

    /// Whether a receiver's `rsvp` reaches the sender; if not, a `reject` returns the way that it
    /// came.
    fn reserves(&mut self, sender: u32, receiver: u32, slot: u8) -> bool {
        let hosts = self.tors * self.spines;
        let rsvp = Repr {
            receiver_incarnation: 1,
            grant: 1,
            slot,
            span: 1 << 20,
            ..Repr::new(Op::Rsvp, sender as u16, receiver as u16, 1 + u64::from(slot))
        };
        let mut bytes = rsvp.packet(&[]);
        let (mut from, mut at) = (receiver, hosts + receiver / self.spines);
        loop {
            let Some(to) = self.pass(at, from, &mut bytes) else { return false };
            (from, at) = (at, to);
            if to < hosts {
                return to == sender;
            }
        }
    }

    /// Runs all passes of a packet through a switch; returns the node to which it goes next.
    fn pass(&mut self, node: u32, from: u32, bytes: &mut Vec<u8>) -> Option<u32> {
        let switch = &mut self.switches[(node - self.tors * self.spines) as usize];
        let (mut passes, mut metadata) = (0, Metadata::default());
        loop {
            let first = Ingress::first(Now::default(), addr(from), &self.ports);
            let ingress = Ingress { passes, metadata, ..first };
            match switch.process(&ingress, bytes) {
                Verdict::Forward { to, size_bytes } => {
                    bytes.truncate(size_bytes);
                    return Some(node_of(to));
                }
                Verdict::Recirculate { metadata: next, size_bytes } => {
                    bytes.truncate(size_bytes);
                    (passes, metadata) = (passes + 1, next);
                }
                _ => return None,
            }
        }
    }
}

fn shuffle<T>(rng: &mut Rng, all: &mut [T]) {
    for at in (1..all.len()).rev() {
        all.swap(at, rng.below(at as u64 + 1) as usize);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// §3.3, Figure 4: f(8, 32) = 0.8626; with K = 1 the share is 1 - 1/e for many spines.
    #[test]
    fn formula_has_the_papers_values() {
        assert!((allocated_share(8, 32) - 0.8626).abs() < 1e-4, "{}", allocated_share(8, 32));
        assert!((allocated_share(1, 4_096) - 0.632).abs() < 1e-3);
        assert!((1..32).all(|k| allocated_share(k, 32) < allocated_share(k + 1, 32)));
    }

    /// Trap H8: two ToR switches find all links, since each spine sees each of them as often as it
    /// has links; many come near the formula.
    #[test]
    fn h8_switches_come_near_the_formula() {
        let share = |tors, choice| Allocation::new(tors, 8, 4, choice).unwrap().share(1);
        let two = share(2, Choice::Fifo);
        assert!(two > 0.99, "{two}");
        for choice in [Choice::Fifo, Choice::Hash] {
            let (many, formula) = (share(32, choice), allocated_share(4, 8));
            println!("{choice:?}: {many}, {formula}");
            assert!((many - formula).abs() < 0.08, "{choice:?}: {many}, {formula}");
            let mut whole = Allocation::new(62, 32, 8, choice).unwrap();
            let (many, formula) = (whole.share(1), allocated_share(8, 32));
            println!("{choice:?}, Figure 4: {many}, {formula}");
            assert!((many - formula).abs() < 0.08, "{choice:?}: {many}, {formula}");
        }
    }
}
