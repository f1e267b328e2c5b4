//! The replicated store, with any of its protocols and switch programs.
//!
//! | part | content |
//! |---|---|
//! | `plan.rs`, `draw.rs`, `draw_disks.rs`, `smaller.rs` | the plan of a run, its drawing from a seed, and smaller plans |
//! | `experiment.rs`, `written.rs` | plans as files, and the notation of names in them |
//! | `build.rs`, `role.rs`, `storage.rs` | the machines of a rack, and their storage engines |
//! | `workload.rs`, `gateways.rs`, `edges.rs` | the requests of clients |
//! | `disks.rs`, `links.rs` | the disks of replicas, and the links of the rack |
//! | `fault.rs` | the faults |
//! | `totals.rs`, `seen.rs` | the counts of runs |
//! | `rack/` | the rack in a [`World`](crate::world::World): its run, its invariants, its history |

pub(crate) mod build;
pub(crate) mod disks;
pub(crate) mod draw;
mod draw_disks;
pub(crate) mod edges;
pub(crate) mod experiment;
pub(crate) mod fault;
pub(crate) mod gateways;
pub(crate) mod links;
pub(crate) mod plan;
pub(crate) mod rack;
pub(crate) mod role;
pub(crate) mod seen;
pub(crate) mod smaller;
pub(crate) mod storage;
pub(crate) mod totals;
pub(crate) mod workload;
pub(crate) mod written;

use super::{Tally, Trial};
use plan::Plan;
use totals::Totals;

impl Trial for Plan {
    type Totals = Totals;

    fn seed(&self) -> u64 {
        self.seed
    }

    fn with_seed(&self, seed: u64) -> Plan {
        Plan { seed, ..self.clone() }
    }

    fn run(&self) -> (Totals, Option<String>) {
        let outcome = rack::run(self);
        (outcome.totals, outcome.violation)
    }

    fn smaller(&self) -> Vec<Plan> {
        smaller::candidates(self)
    }
}

impl Tally for Totals {
    fn add(&mut self, other: &Totals) {
        Totals::add(self, other);
    }

    fn steps(&self) -> u64 {
        self.events
    }
}
