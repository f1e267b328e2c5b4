//! Client processes that are gateways, and what Redis clients do to them.

use concord_core::rng::splitmix64;
use concord_core::{Duration, MS, Rng};
use concord_wire::WINDOW_MAX;
use serde::{Deserialize, Serialize};

use crate::systems::store::edges::Within;

/// Most commands that a client sends without waiting for replies.
pub const PIPELINE_MAX: u64 = 64;
/// Longest time that a client does not read its replies.
pub const SLOW_NS_MAX: Duration = 1_000 * MS;

/// The gateways of a plan. Their clients speak RESP, pipeline, and read when they like.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Gateways {
    /// Client processes that are gateways: the last ones.
    pub count: usize,
    /// Most commands of a pipeline.
    pub pipeline_max: u64,
    /// Transactions (MULTI to EXEC, or DISCARD) among 100 commands.
    pub multi_percent: u64,
    /// Commands over several keys (MGET, MSET, DEL, ...) among 100.
    pub split_percent: u64,
    /// Pops of lists among 100 that wait for an element, for a while (BLPOP, BRPOP).
    pub waiting_percent: u64,
    /// Pipelines among 100 whose keys are of another database than 0 (SELECT).
    pub databases_percent: u64,
    /// Commands of one key among 100 that are sent as scripts, or as calls of functions.
    pub scripts_percent: u64,
    /// Transactions of several keys among 100 commands, on keys of their own: by MULTI, WATCH,
    /// scripts, MGET and MSET, and XREAD that waits.
    pub together_percent: u64,
    /// Moves between lists, pops of sorted sets and the like among 100 commands, some of which
    /// wait.
    pub moves_percent: u64,
    /// A client of each gateway caches what it reads (CLIENT TRACKING).
    pub caches: bool,
    /// Gateways share users, whom clients change (ACL).
    pub users: bool,
    /// Gateways hear each other, and each has clients that subscribe and one that publishes.
    pub subscribers: bool,
    /// Pipelines among 100 whose client does not read for a while.
    pub slow_percent: u64,
    /// The longest such while, in ns.
    pub slow_ns: Duration,
    /// Pipelines among 1,000 that end in garbage, in mid-command, or with the end of what the
    /// client sends.
    pub broken_permille: u64,
    /// Most unanswered commands of a connection.
    pub commands_max: usize,
    /// Most bytes of unwritten replies of a connection.
    pub output_bytes_max: usize,
    /// Most unanswered writes, and reads, of a gateway.
    pub window: u64,
}

impl Default for Gateways {
    fn default() -> Gateways {
        Gateways {
            count: 0,
            pipeline_max: 8,
            multi_percent: 10,
            split_percent: 10,
            waiting_percent: 0,
            databases_percent: 0,
            scripts_percent: 0,
            together_percent: 0,
            moves_percent: 0,
            caches: false,
            users: false,
            subscribers: false,
            slow_percent: 0,
            slow_ns: 20 * MS,
            broken_permille: 0,
            commands_max: 1_024,
            output_bytes_max: 4 << 20,
            window: 64,
        }
    }
}

impl Gateways {
    /// Each of so many client processes is a gateway or not.
    pub(crate) fn draw(rng: &mut Rng, clients: usize) -> Gateways {
        let some = |rng: &mut Rng, most: u64| if rng.chance(1, 2) { rng.below(most) } else { 0 };
        let count = (0..clients).filter(|_| rng.chance(1, 2)).count();
        let narrow = rng.chance(1, 2);
        Gateways {
            count,
            pipeline_max: rng.between(1, 8),
            multi_percent: some(rng, 25),
            split_percent: some(rng, 25),
            // Drawn beside, so that the rest of the plan is what it was.
            waiting_percent: some(&mut Rng::new(splitmix64(rng.clone().next_u64())), 100),
            databases_percent: 0,
            scripts_percent: 0,
            together_percent: 0,
            moves_percent: 0,
            caches: false,
            users: false,
            subscribers: false,
            slow_percent: some(rng, 20),
            slow_ns: rng.between(1, 30) * MS,
            broken_permille: some(rng, 40),
            commands_max: if narrow { rng.between(1, 6) as usize } else { 1_024 },
            output_bytes_max: if narrow { rng.between(1, 100) as usize } else { 4 << 20 },
            window: if rng.chance(1, 2) { rng.between(1, 8) } else { 64 },
        }
    }

    pub(crate) fn validate(&self, clients: usize, within: Within<'_>) -> Result<(), String> {
        within("gateways.count", self.count as u64, 0, clients as u64)?;
        within("gateways.pipeline_max", self.pipeline_max, 1, PIPELINE_MAX)?;
        within("gateways.multi_percent", self.multi_percent, 0, 100)?;
        within("gateways.split_percent", self.split_percent, 0, 100)?;
        within("gateways.waiting_percent", self.waiting_percent, 0, 100)?;
        within("gateways.databases_percent", self.databases_percent, 0, 100)?;
        within("gateways.scripts_percent", self.scripts_percent, 0, 100)?;
        within("gateways.together_percent", self.together_percent, 0, 100)?;
        within("gateways.moves_percent", self.moves_percent, 0, 100)?;
        within("gateways.slow_percent", self.slow_percent, 0, 100)?;
        within("gateways.slow_ns", self.slow_ns, 1, SLOW_NS_MAX)?;
        within("gateways.broken_permille", self.broken_permille, 0, 1_000)?;
        within("gateways.commands_max", self.commands_max as u64, 1, 1 << 20)?;
        within("gateways.output_bytes_max", self.output_bytes_max as u64, 1, 1 << 30)?;
        within("gateways.window", self.window, 1, WINDOW_MAX)
    }
}
