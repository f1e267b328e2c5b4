//! The facts that a gateway is given for INFO, and its own status.

use alloc::string::String;

use concord_client::Client;
use concord_core::{Duration, Instant, SEC};

use crate::commands::latencies::Latencies;
use crate::gateway::Gateway;
use crate::process::Process;
use crate::setup::GatewayCounters;

/// For so long after a command that was not answered in time, with no answer since, a gateway
/// counts as failing.
const FAILING_NS: Duration = 10 * SEC;

impl Gateway {
    /// What INFO says about the rack, in lines of `name:value` that end with CRLF.
    pub fn set_rack_info(&mut self, text: String) {
        self.core.rack_info = text;
    }

    /// The limit of the data that the rack is configured with, for CONFIG GET; 0 for none.
    pub fn set_memory_bytes_max(&mut self, bytes: u64) {
        self.core.memory_bytes_max = bytes;
    }

    /// What the gateway's process is and has used by now, for INFO.
    pub fn process_mut(&mut self) -> &mut Process {
        &mut self.core.process
    }

    /// What was counted.
    #[must_use]
    pub fn counters(&self) -> &GatewayCounters {
        &self.core.count
    }

    /// Calls and refused calls by command, in lower case, of those that were called.
    pub fn command_counts(&self) -> impl Iterator<Item = (&str, u64, u64)> {
        self.core.commands.called().map(|entry| (entry.name.as_str(), entry.calls, entry.refused))
    }

    /// The rack's client, for what it counted.
    #[must_use]
    pub fn client(&self) -> &Client {
        &self.core.client
    }

    /// Latencies of reads and of writes since the start, as seen by the gateway.
    #[must_use]
    pub fn latencies(&self) -> (&Latencies, &Latencies) {
        (&self.core.reads, &self.core.writes)
    }

    /// Whether clients wait for each other that have not shown that they read long replies, or that
    /// owe the rest of long commands.
    #[must_use]
    pub fn is_crowded(&self) -> bool {
        self.core.memory.is_crowded() || self.core.inputs.are_short()
    }

    /// Bytes of replies that clients have not read yet, those included that were asked for: now,
    /// and the most so far.
    #[must_use]
    pub fn reply_bytes(&self) -> (usize, usize) {
        self.core.memory.held_and_most_bytes()
    }

    /// Long replies that have room and are on their way from replicas.
    #[must_use]
    pub fn replies_fetched(&self) -> usize {
        self.core.fetched
    }

    /// Whether commands are served: the session is registered, and the command table is known.
    #[must_use]
    pub fn is_serving(&self) -> bool {
        self.core.client.is_registered() && !self.core.wants_table && !self.is_shut_down
    }

    /// Whether the rack keeps another password of the user `default` than `requirepass`: the kept
    /// one counts.
    #[must_use]
    pub fn keeps_another_password(&self) -> bool {
        self.core.users.keep_another_password()
    }

    /// Whether the rack left the last command of the last seconds (`FAILING_NS`) without an
    /// answer, and has answered none since: a load balancer does better with another gateway. Some
    /// seconds later it may try again.
    #[must_use]
    pub fn is_failing(&self, now: Instant) -> bool {
        self.core.failed_at.is_some_and(|at| now.since(at) < FAILING_NS)
    }

    /// Number of connections.
    #[must_use]
    pub fn connection_count(&self) -> usize {
        self.core.connected
    }
}
