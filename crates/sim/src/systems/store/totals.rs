//! Totals over runs, so that runs that exercise too little are noticed.

use std::fmt;

use concord_control::ControllerCounters;
use concord_core::counters;
use concord_gateway::GatewayCounters;
use concord_protocols::{QuorumCounters, ReplicaCounters};
use concord_switch::Counters as SwitchCounters;

use crate::odd::OddCounts;
use crate::systems::store::fault::Fault;
use crate::systems::store::seen::Large;

counters! {
    /// Counts of what the clients of gateways did.
    pub struct RedisCounters {
        /// Pipelines of more than one command.
        pipelines,
        /// Transactions sent to be executed.
        transactions,
        /// Commands with several keys.
        splits,
        /// Pops that wait for an element.
        waits,
        /// Scripts.
        scripts,
        /// Scripts that run twice if the memory engine keeps an interpreter.
        long,
        /// Calls of functions.
        calls,
        /// Moves between lists, pops of sorted sets, and similar commands.
        moves,
        /// Transactions on several keys.
        together,
        /// Transactions on several keys that were not executed because a watched key had changed.
        aborted,
        /// Reads of clients that cache what they read.
        cached,
        /// Messages published.
        published,
        /// Messages that subscribers received.
        delivered,
        /// Pipelines on another database than 0.
        databases,
        /// Commands sent in the inline format.
        inline,
        /// Pipelines that ended in RESP version 3.
        resp3,
        /// Periods in which a client did not read its replies.
        slow,
        /// Pipelines sent in such periods.
        ahead,
        /// Pipelines that ended in garbage.
        garbage,
        /// Connections that clients closed in the middle of a command.
        torn,
        /// Pipelines after which the client closed its sending side.
        shut,
        /// Of these, connections that the gateway closed while their commands waited for others.
        over,
        /// Gateways that died.
        died,
    }
}

/// The number of faults of each kind, by its index in [`Fault::KINDS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FaultCounts(pub [u64; Fault::KINDS.len()]);

impl Default for FaultCounts {
    fn default() -> FaultCounts {
        FaultCounts([0; Fault::KINDS.len()])
    }
}

/// The counts of a run, or the sums over several runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Runs.
    pub runs: u64,
    /// Operations in the histories.
    pub operations: u64,
    /// Operations of unknown outcome.
    pub unknown: u64,
    /// Operations and transactions whose replies were compared with the model.
    pub judged: u64,
    /// Operations that were refused.
    pub refused: u64,
    /// Times to live that were set, and how many of these could be checked.
    pub expiries: [u64; 2],
    /// Runs in which too few operations were checked.
    pub runs_too_little: u64,
    /// The longest period in which no read, or no write, ended while some nodes were at fault and
    /// the others could go on, in ns.
    pub stalled_ns_max: u64,
    /// The total duration of the periods in which the others could go on, in ns.
    pub watched_ns: u64,
    /// Reads answered on the fast path.
    pub fast_reads: u64,
    /// The counters of the replicas.
    pub replicas: ReplicaCounters,
    /// The counters of replicas of quorum protocols.
    pub vr: QuorumCounters,
    /// The counters of the switch program.
    pub switch: SwitchCounters,
    /// The counters of the controllers.
    pub control: ControllerCounters,
    /// Times that a client learned that another switch is active.
    pub switches_heard_of: u64,
    /// The counters of the gateways.
    pub gateway: GatewayCounters,
    /// Counts of what Redis clients did.
    pub redis: RedisCounters,
    /// Packets sent.
    pub packets: u64,
    /// Packets lost.
    pub lost: u64,
    /// Packets duplicated.
    pub duplicated: u64,
    /// Packets received in one batch with a later packet: their machine was not flushed in between.
    pub batched: u64,
    /// Operations with something large.
    pub large: Large,
    /// Times that a client learned that its session was evicted.
    pub sessions_lost: u64,
    /// Invalid packets.
    pub odd: OddCounts,
    /// Runs on the packet-level network.
    pub with_links: u64,
    /// Packets dropped at full ports of the packet-level network.
    pub dropped_port: u64,
    /// Packets dropped because too many waited at a node.
    pub queue_full: u64,
    /// Faults injected, by [`Fault::kind`].
    pub faults: FaultCounts,
    /// Replicas that were told to shut down: those that waited in vain for the others to go on
    /// without them, and those that left in order.
    pub retired: [u64; 2],
    /// Replicas that started with data on their disks.
    pub restored: u64,
    /// Disks whose damage was found at a start.
    pub damaged: u64,
    /// Replicas whose data was damaged, which the comparison of states has to find.
    pub damaged_states: u64,
    /// Damages that the comparison of states found within the run.
    pub damages_found: u64,
    /// Faults skipped because they would have exceeded the failure bound.
    pub faults_skipped: u64,
    /// Events handled.
    pub events: u64,
    /// Virtual time, in ns.
    pub virtual_ns: u64,
}

impl Totals {
    /// Adds the counts of another run.
    pub fn add(&mut self, other: &Totals) {
        self.runs += other.runs;
        self.operations += other.operations;
        self.unknown += other.unknown;
        self.judged += other.judged;
        self.refused += other.refused;
        self.expiries[0] += other.expiries[0];
        self.expiries[1] += other.expiries[1];
        self.runs_too_little += other.runs_too_little;
        self.stalled_ns_max = self.stalled_ns_max.max(other.stalled_ns_max);
        self.watched_ns += other.watched_ns;
        self.fast_reads += other.fast_reads;
        self.replicas.add(&other.replicas);
        self.vr.add(&other.vr);
        self.switch.add(&other.switch);
        self.control.add(&other.control);
        self.switches_heard_of += other.switches_heard_of;
        self.gateway.add(&other.gateway);
        self.redis.add(&other.redis);
        self.packets += other.packets;
        self.lost += other.lost;
        self.duplicated += other.duplicated;
        self.with_links += other.with_links;
        self.dropped_port += other.dropped_port;
        self.batched += other.batched;
        self.large.add(&other.large);
        self.sessions_lost += other.sessions_lost;
        self.odd.add(&other.odd);
        self.queue_full += other.queue_full;
        for (mine, theirs) in self.faults.0.iter_mut().zip(other.faults.0) {
            *mine += theirs;
        }
        self.restored += other.restored;
        self.damaged += other.damaged;
        self.damaged_states += other.damaged_states;
        self.damages_found += other.damages_found;
        self.retired[0] += other.retired[0];
        self.retired[1] += other.retired[1];
        self.faults_skipped += other.faults_skipped;
        self.events += other.events;
        self.virtual_ns += other.virtual_ns;
    }

    /// The number of injected faults of all kinds.
    #[must_use]
    pub fn faults_injected(&self) -> u64 {
        self.faults.0.iter().sum()
    }
}

impl fmt::Display for Totals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let r = &self.replicas;
        let mut line = |name: &str, values: &[(&str, u64)]| {
            write!(f, "{name:<12}")?;
            for (at, (what, value)) in values.iter().enumerate() {
                let (comma, space) =
                    (if at == 0 { "" } else { ", " }, if what.is_empty() { "" } else { " " });
                write!(f, "{comma}{}{space}{what}", grouped(*value))?;
            }
            writeln!(f)
        };
        line(
            "runs",
            &[
                ("", self.runs),
                ("s of virtual time", self.virtual_ns / concord_core::SEC),
                ("events", self.events),
            ],
        )?;
        line(
            "operations",
            &[
                ("", self.operations),
                ("judged", self.judged),
                ("refused", self.refused),
                ("of unknown outcome", self.unknown),
                ("fast reads", self.fast_reads),
                ("slow reads", r.reads_slow),
            ],
        )?;
        line(
            "expiries",
            &[
                ("set", self.expiries[0]),
                ("judged", self.expiries[1]),
                ("runs of which too little was judged", self.runs_too_little),
            ],
        )?;
        line(
            "craq",
            &[
                ("clean reads", r.reads_clean),
                ("dirty", r.reads_dirty),
                ("version queries", r.version_queries),
                ("answers", r.version_answers),
                ("refused", r.version_refused),
            ],
        )?;
        line(
            "refused",
            &[
                ("newer write", r.refused_newer),
                ("no lease", r.refused_lease),
                ("other switch", r.refused_switch),
                ("requests", r.refused_requests),
                ("out of order", r.writes_out_of_order),
                ("answered from the table", r.duplicates),
            ],
        )?;
        line(
            "packets",
            &[
                ("", self.packets),
                ("lost", self.lost),
                ("duplicated", self.duplicated),
                ("received before others of their batch", self.batched),
                ("queue full", self.queue_full),
                ("port full", self.dropped_port),
                ("dirty set full", self.switch.dropped_table_full),
                ("resent between replicas", r.link_resent),
            ],
        )?;
        line(
            "large",
            &[
                ("of all keys", self.large.of_all_keys),
                ("long keys", self.large.keys),
                ("huge values", self.large.values),
                ("long replies", self.large.replies),
                ("lives of days", self.large.lifetimes),
                ("due at once", self.large.due),
            ],
        )?;
        line(
            "bounds",
            &[
                ("refused at full memory", self.large.out_of_memory),
                ("refused at full disks", self.large.disk_full),
                ("damaged disks", self.damaged),
                ("damaged states", self.damaged_states),
                ("of them found", self.damages_found),
                ("at a full log", r.writes_log_full),
                ("sessions lost", self.sessions_lost),
            ],
        )?;
        line(
            "progress",
            &[
                ("ms beside nodes at fault", self.watched_ns / concord_core::MS),
                ("ms without an end, at most", self.stalled_ns_max / concord_core::MS),
            ],
        )?;
        line(
            "odd packets",
            &[
                ("truncated", self.odd.truncated),
                ("forged", self.odd.forged),
                ("own writes", self.odd.own),
                ("padded", self.odd.padded),
                ("late", self.odd.late),
            ],
        )?;
        line(
            "epochs",
            &[
                ("put in force", self.control.epochs),
                ("opened", r.epochs_opened),
                ("records fetched", r.records_fetched),
                ("switch ids", self.control.switch_ids_granted),
                ("standbys", self.control.standbys_taken),
                ("controllers too late", self.control.superseded),
            ],
        )?;
        line(
            "joining",
            &[
                ("let in", self.control.admitted),
                ("became members", self.control.promoted),
                ("copies begun", r.copies_begun),
                ("chunks", r.chunks_installed),
                ("went on from records", r.copies_resumed),
                ("reads refused as not whole", r.reads_not_whole),
                ("with disks", self.restored),
                ("left in order", self.retired[1]),
                ("left in vain", self.retired[0]),
            ],
        )?;
        let (g, c) = (&self.gateway, &self.redis);
        line(
            "gateways",
            &[
                ("commands", g.commands),
                ("pipelines", c.pipelines),
                ("transactions", c.transactions),
                ("over several keys", c.splits),
                ("that wait", c.waits),
                ("tried together", g.tries_together),
                ("scripts", c.scripts),
                ("long ones", c.long),
                ("calls of functions", c.calls),
                ("moves and sorted sets", c.moves),
                ("transactions of several keys", c.together),
                ("aborted", c.aborted),
                ("reads to be cached", c.cached),
                ("messages published", c.published),
                ("delivered", c.delivered),
                ("of other databases", c.databases),
                ("inline", c.inline),
                ("in RESP3", c.resp3),
                ("died", c.died),
            ],
        )?;
        line(
            "  held back",
            &[
                ("by their order", g.commands_waited),
                ("by the window", g.window_full),
                ("by unanswered commands", g.slots_full),
                ("by replies not read", g.output_full),
            ],
        )?;
        line(
            "  clients",
            &[
                ("did not read", c.slow),
                ("sent ahead", c.ahead),
                ("sent garbage", c.garbage),
                ("closed in mid-command", c.torn),
                ("sent no more", c.shut),
                ("and waited for others", c.over),
            ],
        )?;
        let v = &self.vr;
        line(
            "views",
            &[
                ("led", v.views_led),
                ("joined", v.views_joined),
                ("recoveries", v.recovered),
                ("of older lives dropped", v.stale_lives),
                ("fast reads refused as behind", v.refused_behind),
                ("voters changed", v.voters_changed),
                ("leaders voted out", v.voted_out),
            ],
        )?;
        line(
            "numbers",
            &[
                ("asked for", v.gaps_asked),
                ("sent to a leader", v.gaps_filled),
                ("agreed to be lost", v.gaps_agreed),
                ("without a slot", self.switch.writes_as_noop),
            ],
        )?;
        let faults: Vec<(&str, u64)> = Fault::KINDS.into_iter().zip(self.faults.0).collect();
        line("faults", &[("", self.faults_injected()), ("left out", self.faults_skipped)])?;
        line("  by kind", &faults)
    }
}

/// A number with a comma between every three digits.
fn grouped(value: u64) -> String {
    let digits = value.to_string();
    let mut out = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn totals_add_up_and_read_well() {
        let mut sum = Totals::default();
        let mut one = Totals { operations: 1_234_567, ..Totals::default() };
        one.faults.0[0] = 2;
        sum.add(&one);
        sum.add(&one);
        assert_eq!(sum.faults_injected(), 4);
        assert!(sum.to_string().contains("2,469,134"), "{sum}");
    }
}
