//! A run of NetCRAQ as swarms take it, and plans that do a little less.

use super::plan::Plan;
use super::rack::{Totals, run};
use crate::systems::{Tally, Trial};

impl Tally for Totals {
    fn add(&mut self, other: &Totals) {
        Totals::add(self, other);
    }

    fn steps(&self) -> u64 {
        self.events
    }
}

impl Trial for Plan {
    type Totals = Totals;

    fn seed(&self) -> u64 {
        self.seed
    }

    fn with_seed(&self, seed: u64) -> Plan {
        Plan { seed, ..self.clone() }
    }

    fn run(&self) -> (Totals, Option<String>) {
        let ran = run(self);
        (ran.totals, ran.violation)
    }

    /// With half the calls, one client, member or key less, without a fault; without noise.
    fn smaller(&self) -> Vec<Plan> {
        let mut all = Vec::new();
        for index in 0..self.faults.len() {
            let mut faults = self.faults.clone();
            faults.remove(index);
            all.push(Plan { faults, ..self.clone() });
        }
        let with = |change: &dyn Fn(&mut Plan)| {
            let mut smaller = self.clone();
            change(&mut smaller);
            smaller
        };
        all.push(with(&|p| p.calls = p.calls.div_ceil(2)));
        all.push(with(&|p| p.clients = (p.clients - 1).max(1)));
        all.push(with(&|p| p.keys = (p.keys - 1).max(1)));
        all.push(with(&|p| p.members = (p.members - 1).max(1)));
        all.push(with(&|p| p.loss_ppm = 0));
        all.push(with(&|p| p.duplicate_ppm = 0));
        all.push(with(&|p| p.late_ppm = 0));
        all.push(with(&|p| p.think_ns = 0));
        all.retain(|smaller| smaller != self);
        all
    }
}
