//! The facts for INFO that a gateway is given, and its own status.

use alloc::string::String;

use concord_client::Client;
use concord_core::{Duration, Instant, SEC};

use crate::commands::latencies::Latencies;
use crate::gateway::Gateway;
use crate::process::Process;
use crate::setup::GatewayCounters;

/// The time after an unanswered command, without an answer since, for which a gateway counts as
/// failing.
const FAILING_NS: Duration = 10 * SEC;

impl Gateway {
    /// Sets INFO's lines about the rack: `name:value`, each followed by CRLF.
    pub fn set_rack_info(&mut self, text: String) {
        self.core.rack_info = text;
    }

    /// Sets the configured limit of the rack's data in bytes, for CONFIG GET; 0 for none.
    pub fn set_memory_bytes_max(&mut self, bytes: u64) {
        self.core.memory_bytes_max = bytes;
    }

    /// The gateway's process and its resource usage, for INFO.
    pub fn process_mut(&mut self) -> &mut Process {
        &mut self.core.process
    }

    /// The counters.
    #[must_use]
    pub fn counters(&self) -> &GatewayCounters {
        &self.core.count
    }

    /// For each command that was called, in lower case, the numbers of calls and of refused calls.
    pub fn command_counts(&self) -> impl Iterator<Item = (&str, u64, u64)> {
        self.core.commands.called().map(|entry| (entry.name.as_str(), entry.calls, entry.refused))
    }

    /// The rack's client, for its counters.
    #[must_use]
    pub fn client(&self) -> &Client {
        &self.core.client
    }

    /// Latencies of reads and of writes since the start, as the gateway saw them.
    #[must_use]
    pub fn latencies(&self) -> (&Latencies, &Latencies) {
        (&self.core.reads, &self.core.writes)
    }

    /// Whether clients wait for room that have not shown that they read long replies, or that owe
    /// the rest of long commands.
    #[must_use]
    pub fn is_crowded(&self) -> bool {
        self.core.memory.is_crowded() || self.core.inputs.are_short()
    }

    /// The bytes of replies that clients have not read yet or that were requested: now, and the
    /// maximum so far.
    #[must_use]
    pub fn reply_bytes(&self) -> (usize, usize) {
        self.core.memory.held_and_most_bytes()
    }

    /// The number of long replies that have room and are being fetched from replicas.
    #[must_use]
    pub fn replies_fetched(&self) -> usize {
        self.core.fetched
    }

    /// Whether commands are served: the session is registered, and the command table is known.
    #[must_use]
    pub fn is_serving(&self) -> bool {
        self.core.client.is_registered() && !self.core.wants_table && !self.is_shut_down
    }

    /// Whether the rack keeps another password of the user `default` than `requirepass`; the rack's
    /// one is in force.
    #[must_use]
    pub fn keeps_another_password(&self) -> bool {
        self.core.users.keep_another_password()
    }

    /// A key of the store that begins with the chain's prefix, so that no client reaches it, if one
    /// was found; and the prefix.
    #[must_use]
    pub fn shadowed_key(&self) -> Option<(&[u8], &[u8])> {
        let chain = self.core.chain.as_ref()?;
        Some((chain.shadowed.found()?, &chain.setup.prefix))
    }

    /// Whether the rack did not answer the last command of the last seconds (`FAILING_NS`), nor any
    /// since, so that a load balancer should choose another gateway. Some seconds later it may try
    /// this one again.
    #[must_use]
    pub fn is_failing(&self, now: Instant) -> bool {
        self.core.failed_at.is_some_and(|at| now.since(at) < FAILING_NS)
    }

    /// The number of connections.
    #[must_use]
    pub fn connection_count(&self) -> usize {
        self.core.connected
    }
}
