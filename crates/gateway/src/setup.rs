//! A gateway's configuration at its start, and its counters.

use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::vec::Vec;

use concord_client::ClientConfig;
use concord_core::counters;
use concord_engine::CommandTable;
use concord_wire::{Addr, VALUE_BYTES_MAX};

use crate::connection::SLOTS_MAX;
use crate::memory::{REPLIES_BYTES_MAX, REPLIES_BYTES_MIN, SHARE};

/// Parameters that CONFIG SET was given, by their names, with their values
/// ([`crate::commands::config`]).
pub(crate) type Settings = BTreeMap<&'static str, String>;

/// When the input of a connection waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The largest number of unanswered commands.
    pub commands_max: usize,
    /// The largest size of unwritten replies, in bytes.
    pub output_bytes_max: usize,
    /// The largest total size of unread replies of all connections, in bytes; at least
    /// [`REPLIES_BYTES_MIN`].
    pub replies_bytes_max: usize,
    /// The longest argument, in bytes, until CONFIG SET proto-max-bulk-len says another; at most
    /// [`VALUE_BYTES_MAX`].
    pub value_bytes_max: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits::of_replies(REPLIES_BYTES_MAX)
    }
}

impl Limits {
    /// The limits for this total size of unread replies, of which one connection may take its
    /// share.
    #[must_use]
    pub fn of_replies(replies_bytes_max: usize) -> Limits {
        let replies_bytes_max = replies_bytes_max.max(REPLIES_BYTES_MIN);
        let output_bytes_max = replies_bytes_max / SHARE;
        Limits {
            commands_max: SLOTS_MAX,
            output_bytes_max,
            replies_bytes_max,
            value_bytes_max: VALUE_BYTES_MAX,
        }
    }
}

/// The configuration of a gateway at its start.
#[derive(Clone, Debug)]
pub struct GatewayConfig {
    /// The rack's client.
    pub client: ClientConfig,
    /// MGET, EXISTS and TOUCH are executed key by key, each at whichever replica: faster, and not
    /// atomic.
    pub splits_reads: bool,
    /// Password that clients must give by AUTH or HELLO.
    pub requirepass: Option<Vec<u8>>,
    /// The command table that is used until the engine has sent its own.
    pub table: CommandTable,
    /// The engine is a Redis server: ask it for its own table at the start.
    pub redis: bool,
    /// The largest number of connections.
    pub connections_max: usize,
    /// The limits of each connection.
    pub limits: Limits,
    /// The other gateways of the group: their numbers and addresses.
    pub others: Vec<(u16, Addr)>,
    /// The gateway's number in the rack.
    pub node: u16,
    /// The TCP port that clients use, for INFO.
    pub port: u16,
}

counters! {
    /// The counters of a gateway.
    pub struct GatewayCounters {
        /// Connections accepted.
        connections,
        /// Connections refused: too many.
        connections_refused,
        /// Commands received.
        commands,
        /// Commands answered by the gateway itself.
        commands_local,
        /// Commands that went to a chain of switches.
        commands_chain,
        /// Commands refused with an error by the gateway.
        commands_refused,
        /// Requests refused and dropped as they came: larger than the limit.
        requests_too_large,
        /// Times that a command waited for earlier ones of its connection.
        commands_waited,
        /// Tries of clients that wait for an element, in one request with others'.
        tries_together,
        /// Times that a command waited because the rack's window was full.
        window_full,
        /// Times that a connection's input waited: too many unanswered commands.
        slots_full,
        /// Times that a connection's input waited: its client does not read.
        output_full,
        /// Connections closed because their clients read nothing, or did not send the rest of a
        /// long command, while others waited for the memory.
        clients_given_up,
        /// Connections closed because their clients read nothing while they had sent further
        /// commands and left as much unread as one client may.
        clients_over_limit,
        /// Long replies given at the pace of clients that have not shown that they read, beside
        /// many that do not.
        replies_paced,
        /// Reads that were not sent at once, since there was no room for their replies, which were
        /// long the last time.
        reads_put_off,
        /// Protocol errors.
        protocol_errors,
        /// Connections closed because HTTP came in.
        http_refused,
        /// Messages published by clients here.
        published,
        /// Messages given to clients here.
        messages,
        /// Invalidations given to clients here.
        invalidations,
        /// Subscribers disconnected because they left too much unread.
        subscribers_given_up,
        /// Packets of other gateways that could not be parsed; dropped.
        packets_malformed,
        /// Reads that timed out.
        read_timeouts,
        /// Reads of one or several keys that found a value.
        keyspace_hits,
        /// Reads of one or several keys that found none.
        keyspace_misses,
        /// Commands that were refused since the replicas work on one operation.
        commands_busy,
        /// Writes reported as not executed.
        writes_not_executed,
        /// Writes reported as of unknown outcome.
        writes_unknown,
    }
}
