//! Client processes that are gateways, and the behaviour of their Redis clients.

use concord_core::rng::splitmix64;
use concord_core::{Duration, MS, Rng};
use concord_wire::WINDOW_MAX;
use serde::{Deserialize, Serialize};

use crate::systems::store::edges::Within;

/// The maximum number of commands that a client sends without waiting for replies.
pub const PIPELINE_MAX: u64 = 64;
/// The maximum time that a client does not read its replies, in ns.
pub const SLOW_NS_MAX: Duration = 1_000 * MS;

/// The gateways of a plan. Their clients speak RESP and pipeline commands, and some read replies
/// late.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Gateways {
    /// The number of client processes that are gateways: the last ones.
    pub count: usize,
    /// The maximum number of commands in a pipeline.
    pub pipeline_max: u64,
    /// The share of transactions (MULTI to EXEC, or DISCARD) among commands, in percent.
    pub multi_percent: u64,
    /// The share of commands with several keys (MGET, MSET, DEL, ...) among commands, in percent.
    pub split_percent: u64,
    /// The share of pops that wait for an element for a while (BLPOP, BRPOP) among pops of lists,
    /// in percent.
    pub waiting_percent: u64,
    /// The share of pipelines with keys of another database than 0 (SELECT), in percent.
    pub databases_percent: u64,
    /// The share of commands with one key that are sent as scripts, or as calls of functions, in
    /// percent.
    pub scripts_percent: u64,
    /// The share of transactions on several keys among commands, in percent. They have keys of
    /// their own, and are made of MULTI, WATCH, scripts, MGET and MSET, and XREAD that waits.
    pub together_percent: u64,
    /// The share of moves between lists, pops of sorted sets and similar commands, some of which
    /// wait, among commands, in percent.
    pub moves_percent: u64,
    /// Whether a client of each gateway caches what it reads (CLIENT TRACKING).
    pub caches: bool,
    /// Whether gateways share users, whom clients change (ACL).
    pub users: bool,
    /// Whether gateways know each other, and each has clients that subscribe and one that
    /// publishes.
    pub subscribers: bool,
    /// The share of pipelines during which the client does not read for a while, in percent.
    pub slow_percent: u64,
    /// The maximum time that a client does not read, in ns.
    pub slow_ns: Duration,
    /// The share of pipelines that end in garbage, in the middle of a command, or with a closed
    /// sending side, per thousand.
    pub broken_permille: u64,
    /// The maximum number of unanswered commands of a connection.
    pub commands_max: usize,
    /// The maximum number of bytes of unwritten replies of a connection.
    pub output_bytes_max: usize,
    /// The maximum number of unanswered writes, and of unanswered reads, of a gateway.
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
    /// Draws for each client process whether it is a gateway.
    pub(crate) fn draw(rng: &mut Rng, clients: usize) -> Gateways {
        let some = |rng: &mut Rng, most: u64| if rng.chance(1, 2) { rng.below(most) } else { 0 };
        let count = (0..clients).filter(|_| rng.chance(1, 2)).count();
        let narrow = rng.chance(1, 2);
        Gateways {
            count,
            pipeline_max: rng.between(1, 8),
            multi_percent: some(rng, 25),
            split_percent: some(rng, 25),
            // Drawn by a generator of their own, so that the other draws stay as they were.
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
