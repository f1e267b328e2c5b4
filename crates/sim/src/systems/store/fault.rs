//! The faults that a plan injects, and the nodes that they hit.

use std::fmt;
use std::str::FromStr;

use concord_core::{Duration, SEC};
use serde::{Deserialize, Serialize};

/// The duration of a disk's hang from which on its replica leaves the group
/// ([`concord_protocols::Limits::disk_silence_ns`]).
const LONG_HANG_NS: Duration = 10 * SEC;

/// A node of the rack, as faults and traces name it; replicas and clients are counted from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Node {
    /// The controller.
    Controller,
    /// The second controller, once [`Fault::SecondController`] has started it.
    OtherController,
    /// The switch.
    Switch,
    /// The second switch, once [`Fault::ReplaceSwitch`] has started it.
    OtherSwitch,
    /// A replica. Those that join are numbered after those of the start.
    Replica(usize),
    /// A client process.
    Client(usize),
}

impl fmt::Display for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Node::Controller => f.write_str("controller"),
            Node::OtherController => f.write_str("other-controller"),
            Node::Switch => f.write_str("switch"),
            Node::OtherSwitch => f.write_str("other-switch"),
            Node::Replica(n) => write!(f, "replica-{n}"),
            Node::Client(n) => write!(f, "client-{n}"),
        }
    }
}

impl From<Node> for String {
    fn from(node: Node) -> String {
        node.to_string()
    }
}

impl TryFrom<String> for Node {
    type Error = String;

    fn try_from(text: String) -> Result<Node, String> {
        text.parse()
    }
}

impl FromStr for Node {
    type Err = String;

    fn from_str(text: &str) -> Result<Node, String> {
        let sequenced = |prefix: &str| text.strip_prefix(prefix).and_then(|n| n.parse().ok());
        match text {
            "controller" => Ok(Node::Controller),
            "other-controller" => Ok(Node::OtherController),
            "switch" => Ok(Node::Switch),
            "other-switch" => Ok(Node::OtherSwitch),
            _ => sequenced("replica-")
                .map(Node::Replica)
                .or_else(|| sequenced("client-").map(Node::Client))
                .ok_or_else(|| {
                    format!(
                        "no node {text:?}: controller, other-controller, switch, \
                         other-switch, replica-N or client-N"
                    )
                }),
        }
    }
}

/// A fault. Faults with a duration end by themselves after `for_ns`, or at the end of the safety
/// phase.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Fault {
    /// A node pauses; its packets wait for it (trap T1).
    Pause {
        /// The node.
        node: Node,
        /// The duration, in ns.
        for_ns: Duration,
    },
    /// A replica dies, and does not return.
    Kill {
        /// The replica, from 0.
        replica: usize,
    },
    /// A replica dies and restarts at once, without its data (trap T4): it joins again.
    Restart {
        /// The replica, from 0.
        replica: usize,
    },
    /// A replica is told to shut down: it leaves the group in order, ends, and is restarted without
    /// its data.
    Retire {
        /// The replica, from 0.
        replica: usize,
        /// The time between its end and its restart, in ns.
        for_ns: Duration,
    },
    /// The host of a replica or of the switch reboots: the node restarts without its data, and its
    /// monotonic clock (time since boot) begins anew.
    Reboot {
        /// The node.
        node: Node,
    },
    /// A new replica starts, and joins.
    Join,
    /// A replica's storage engine loses its state, so that the replica must leave (traps T4, T11).
    LoseEngine {
        /// The replica, from 0.
        replica: usize,
    },
    /// A replica's storage engine accepts no further command, though its connection stays open: the
    /// replica must leave by itself.
    HangEngine {
        /// The replica, from 0.
        replica: usize,
    },
    /// A replica's storage engine does not answer for a while.
    StallEngine {
        /// The replica, from 0.
        replica: usize,
        /// The duration, in ns; less than the time after which an engine is given up, unless it
        /// reports that it works.
        for_ns: Duration,
    },
    /// The connection to a replica's storage engine is cut in the middle of a command. Commands
    /// that were not executed are sent again; the reply of a write that was executed is lost (trap
    /// T11).
    CutEngine {
        /// The replica, from 0.
        replica: usize,
        /// The time until the connection is open again, in ns.
        for_ns: Duration,
        /// Whether pending writes were executed before the cut.
        executed: bool,
    },
    /// A replica is cut off from the other replicas and the controller, but not from the switch
    /// (trap T2).
    Isolate {
        /// The replica, from 0.
        replica: usize,
        /// The duration, in ns.
        for_ns: Duration,
        /// Whether the controller cannot reach the switch meanwhile, either.
        stale_switch: bool,
    },
    /// Packets from one node to another are lost; those in the other direction arrive.
    Cut {
        /// The node whose packets are lost.
        from: Node,
        /// The node that they do not reach.
        to: Node,
        /// The duration, in ns.
        for_ns: Duration,
    },
    /// Packets from one node to another are delayed for long; later ones overtake them.
    Hold {
        /// The sender.
        from: Node,
        /// The destination.
        to: Node,
        /// The period from now in which packets are sent that are delayed, in ns.
        for_ns: Duration,
        /// The time of their arrival, in ns from now.
        late_ns: Duration,
    },
    /// The rack is partitioned: a replica, the switch and every second client are on one side, all
    /// others with another switch on the other (trap T2, Harmonia §6.3).
    Split {
        /// The replica on the side of the old switch, from 0.
        replica: usize,
        /// The duration, in ns.
        for_ns: Duration,
    },
    /// The whole network loses more packets than usual.
    LossBurst {
        /// The share of packets that are lost, per million.
        loss_ppm: u64,
        /// The duration, in ns.
        for_ns: Duration,
    },
    /// The whole network duplicates more packets than usual.
    DuplicateBurst {
        /// The share of packets that are duplicated, per million.
        duplicate_ppm: u64,
        /// The duration, in ns.
        for_ns: Duration,
    },
    /// A replica takes longer for every packet.
    Slow {
        /// The replica, from 0.
        replica: usize,
        /// The additional time for each packet, in ns.
        extra_ns: Duration,
        /// The duration, in ns.
        for_ns: Duration,
    },
    /// A node's wall clock is set. (Monotonic clocks are never set. They drift, see
    /// [`crate::Plan::drift_ppm`], and go on while their node is paused.)
    ClockJump {
        /// The node.
        node: Node,
        /// The change in ms: forward, or back if negative.
        by_ms: i64,
    },
    /// Completions are lost on their way to the switch, so that the dirty set fills up.
    FillTable {
        /// The duration, in ns.
        for_ns: Duration,
    },
    /// Records on their way to a replica are lost, and all other packets arrive, as if large
    /// packets were lost because of a wrong MTU. An epoch opens meanwhile, and its members lag.
    LoseRecords {
        /// The replica, from 0.
        replica: usize,
        /// The duration, in ns.
        for_ns: Duration,
    },
    /// A replica receives nothing from the other replicas and the controller; its own packets
    /// arrive.
    Deaf {
        /// The replica, from 0.
        replica: usize,
        /// The duration, in ns.
        for_ns: Duration,
    },
    /// Some of the sequenced writes do not arrive at a replica, but do at others (NOPaxos
    /// multicasts them).
    LoseWrites {
        /// The replica, from 0.
        replica: usize,
        /// The duration, in ns.
        for_ns: Duration,
    },
    /// The active switch restarts, without its state.
    RestartSwitch,
    /// The active switch pauses, and continues beside another one that was started meanwhile
    /// (Harmonia §6.3).
    ReplaceSwitch {
        /// Whether the other switch takes over once the first is silent; otherwise it does so at
        /// once.
        standby: bool,
        /// The duration of the pause, in ns.
        for_ns: Duration,
    },
    /// The controller pauses, and continues beside another one that was started meanwhile from the
    /// same stored state (trap T3).
    SecondController {
        /// The duration of the pause, in ns.
        for_ns: Duration,
    },
    /// The controller is cut off from all nodes, including a standby and another controller; with
    /// `with_switch` the switch is cut off from all nodes, too.
    CutController {
        /// Whether the switch is cut off as well.
        with_switch: bool,
        /// The duration, in ns.
        for_ns: Duration,
    },
    /// The controller is restarted without its file, or with the file as it was at the beginning;
    /// later the operator has the state made anew.
    OldState {
        /// Whether the file is missing, rather than old.
        gone: bool,
        /// The time until the operator acts, in ns.
        for_ns: Duration,
    },
    /// The disk with the controller's state is full, or refuses to store it.
    FullController {
        /// The duration, in ns.
        for_ns: Duration,
    },
    /// Two replicas cannot reach each other; all other nodes reach both.
    CutPair {
        /// The first replica, from 0.
        one: usize,
        /// The second replica, from 0.
        other: usize,
        /// The duration, in ns.
        for_ns: Duration,
    },
    /// A replica loses power; once power is back, it has what its disk had stored.
    PowerCut {
        /// The replica, from 0.
        replica: usize,
        /// The duration, in ns.
        for_ns: Duration,
    },
    /// All replicas lose power (trap T7).
    PowerCutAll {
        /// The duration, in ns.
        for_ns: Duration,
    },
    /// The next sync of a replica's disk fails: the replica leaves the group.
    FailSync {
        /// The replica, from 0.
        replica: usize,
    },
    /// A replica's disk has room for only a few more bytes; writes are refused until it has room
    /// again (trap T14).
    FullDisk {
        /// The replica, from 0.
        replica: usize,
        /// The duration, in ns.
        for_ns: Duration,
        /// The number of bytes that the disk still has room for.
        bytes: usize,
    },
    /// A replica's disk hangs: no sync ends.
    HangDisk {
        /// The replica, from 0.
        replica: usize,
        /// The duration, in ns.
        for_ns: Duration,
    },
    /// A replica loses power, and one of its synced bits is flipped when power is back.
    FlipBit {
        /// The replica, from 0.
        replica: usize,
        /// The duration, in ns.
        for_ns: Duration,
    },
    /// A replica loses power, and a part of its disk cannot be read when power is back.
    Unreadable {
        /// The replica, from 0.
        replica: usize,
        /// The duration, in ns.
        for_ns: Duration,
    },
    /// A replica's data directory is copied while its process runs.
    CopyDisk {
        /// The replica, from 0.
        replica: usize,
    },
    /// A replica loses power, and the last copy of its data directory ([`Fault::CopyDisk`]) has
    /// replaced the directory when power is back (trap T4).
    PutBack {
        /// The replica, from 0.
        replica: usize,
        /// The duration, in ns.
        for_ns: Duration,
        /// The time that all other replicas are without power as well, in ns; 0 if they keep it.
        others_ns: Duration,
    },
    /// A client process dies with its pending requests, and a new one takes its place.
    RestartClient {
        /// The client process, from 0.
        client: usize,
    },
    /// Raft: an operator makes a member a voter that was none, or the reverse, and repeats the
    /// request to the current leader.
    ChangeVoter {
        /// The replica, from 0.
        replica: usize,
        /// The time for which the request is repeated, in ns.
        for_ns: Duration,
    },
}

impl Fault {
    /// The names of the kinds of faults, in the order of [`Fault::kind`].
    pub const KINDS: [&'static str; 40] = [
        "pause",
        "kill",
        "restart",
        "lose-engine",
        "isolate",
        "cut",
        "loss-burst",
        "duplicate-burst",
        "slow",
        "clock-jump",
        "fill-table",
        "restart-switch",
        "restart-client",
        "join",
        "replace-switch",
        "second-controller",
        "lose-records",
        "hold",
        "split",
        "hang-engine",
        "stall-engine",
        "cut-engine",
        "cut-controller",
        "cut-pair",
        "reboot",
        "deaf",
        "lose-writes",
        "retire",
        "old-state",
        "power-cut",
        "power-cut-all",
        "fail-sync",
        "full-disk",
        "flip-bit",
        "change-voter",
        "hang-disk",
        "copy-disk",
        "put-back",
        "full-controller",
        "unreadable",
    ];

    /// The kind of the fault: an index in [`Fault::KINDS`].
    #[must_use]
    pub fn kind(&self) -> usize {
        match self {
            Fault::Pause { .. } => 0,
            Fault::Kill { .. } => 1,
            Fault::Restart { .. } => 2,
            Fault::LoseEngine { .. } => 3,
            Fault::Isolate { .. } => 4,
            Fault::Cut { .. } => 5,
            Fault::LossBurst { .. } => 6,
            Fault::DuplicateBurst { .. } => 7,
            Fault::Slow { .. } => 8,
            Fault::ClockJump { .. } => 9,
            Fault::FillTable { .. } => 10,
            Fault::RestartSwitch => 11,
            Fault::RestartClient { .. } => 12,
            Fault::Join => 13,
            Fault::ReplaceSwitch { .. } => 14,
            Fault::SecondController { .. } => 15,
            Fault::LoseRecords { .. } => 16,
            Fault::Hold { .. } => 17,
            Fault::Split { .. } => 18,
            Fault::HangEngine { .. } => 19,
            Fault::StallEngine { .. } => 20,
            Fault::CutEngine { .. } => 21,
            Fault::CutController { .. } => 22,
            Fault::CutPair { .. } => 23,
            Fault::Reboot { .. } => 24,
            Fault::Deaf { .. } => 25,
            Fault::LoseWrites { .. } => 26,
            Fault::Retire { .. } => 27,
            Fault::OldState { .. } => 28,
            Fault::PowerCut { .. } => 29,
            Fault::PowerCutAll { .. } => 30,
            Fault::FailSync { .. } => 31,
            Fault::FullDisk { .. } => 32,
            Fault::FlipBit { .. } => 33,
            Fault::ChangeVoter { .. } => 34,
            Fault::HangDisk { .. } => 35,
            Fault::CopyDisk { .. } => 36,
            Fault::PutBack { .. } => 37,
            Fault::FullController { .. } => 38,
            Fault::Unreadable { .. } => 39,
        }
    }

    /// The duration of the fault, in ns; 0 for one that has no duration.
    #[must_use]
    pub fn for_ns(&self) -> Duration {
        match *self {
            Fault::Pause { for_ns, .. }
            | Fault::Isolate { for_ns, .. }
            | Fault::Cut { for_ns, .. }
            | Fault::LossBurst { for_ns, .. }
            | Fault::DuplicateBurst { for_ns, .. }
            | Fault::Slow { for_ns, .. }
            | Fault::StallEngine { for_ns, .. }
            | Fault::CutEngine { for_ns, .. }
            | Fault::FillTable { for_ns }
            | Fault::LoseRecords { for_ns, .. }
            | Fault::Deaf { for_ns, .. }
            | Fault::LoseWrites { for_ns, .. }
            | Fault::Retire { for_ns, .. }
            | Fault::Hold { for_ns, .. }
            | Fault::Split { for_ns, .. }
            | Fault::CutController { for_ns, .. }
            | Fault::OldState { for_ns, .. }
            | Fault::CutPair { for_ns, .. }
            | Fault::PowerCut { for_ns, .. }
            | Fault::PowerCutAll { for_ns }
            | Fault::FullDisk { for_ns, .. }
            | Fault::HangDisk { for_ns, .. }
            | Fault::FlipBit { for_ns, .. }
            | Fault::Unreadable { for_ns, .. }
            | Fault::FullController { for_ns }
            | Fault::ChangeVoter { for_ns, .. }
            | Fault::ReplaceSwitch { for_ns, .. }
            | Fault::SecondController { for_ns } => for_ns,
            Fault::PutBack { for_ns, others_ns, .. } => for_ns.max(others_ns),
            Fault::Kill { .. }
            | Fault::Restart { .. }
            | Fault::Reboot { .. }
            | Fault::Join
            | Fault::LoseEngine { .. }
            | Fault::HangEngine { .. }
            | Fault::ClockJump { .. }
            | Fault::RestartSwitch
            | Fault::FailSync { .. }
            | Fault::CopyDisk { .. }
            | Fault::RestartClient { .. } => 0,
        }
    }

    /// Whether the fault destroys a replica's data. The rack skips such a fault if too few other
    /// replicas are well: nothing is promised beyond the failure bound.
    #[must_use]
    pub fn is_lethal(&self) -> bool {
        matches!(
            self,
            Fault::Kill { .. }
                | Fault::Restart { .. }
                | Fault::Retire { .. }
                | Fault::LoseEngine { .. }
                | Fault::HangEngine { .. }
                | Fault::PowerCut { .. }
                | Fault::PowerCutAll { .. }
                | Fault::FlipBit { .. }
                | Fault::Unreadable { .. }
                | Fault::PutBack { .. }
                | Fault::FailSync { .. }
                | Fault::CutEngine { executed: true, .. }
                | Fault::Reboot { node: Node::Replica(_) }
        ) || self.is_long_hang()
    }

    /// Whether a disk hangs for so long that its replica may leave.
    pub(crate) fn is_long_hang(&self) -> bool {
        matches!(self, Fault::HangDisk { for_ns, .. } if *for_ns >= LONG_HANG_NS)
    }

    /// Whether the fault may make live replicas look dead. The rack skips such a fault while a
    /// member is dead and the controller does not know it: if a live member were removed first, the
    /// group would wait for the dead one.
    #[must_use]
    pub fn is_troubling(&self) -> bool {
        match self {
            Fault::Pause { node: Node::Replica(_), .. }
            | Fault::CutPair { .. }
            | Fault::Isolate { .. }
            | Fault::Deaf { .. }
            | Fault::LossBurst { .. }
            | Fault::PowerCut { .. }
            | Fault::PowerCutAll { .. }
            | Fault::FlipBit { .. }
            | Fault::Unreadable { .. }
            | Fault::PutBack { .. }
            | Fault::Slow { .. } => true,
            Fault::Cut { from, to, .. } => {
                let is_controller =
                    |node: &Node| matches!(node, Node::Controller | Node::OtherController);
                let is_replica = |node: &Node| matches!(node, Node::Replica(_));
                (is_replica(from) && (is_controller(to) || is_replica(to)))
                    || (is_controller(from) && is_replica(to))
            }
            _ => false,
        }
    }

    /// The nodes that the fault names.
    #[must_use]
    pub fn nodes(&self) -> Vec<Node> {
        match *self {
            Fault::Pause { node, .. } | Fault::ClockJump { node, .. } | Fault::Reboot { node } => {
                vec![node]
            }
            Fault::Kill { replica }
            | Fault::Restart { replica }
            | Fault::LoseEngine { replica }
            | Fault::HangEngine { replica }
            | Fault::StallEngine { replica, .. }
            | Fault::CutEngine { replica, .. }
            | Fault::Isolate { replica, .. }
            | Fault::LoseRecords { replica, .. }
            | Fault::Split { replica, .. }
            | Fault::Deaf { replica, .. }
            | Fault::LoseWrites { replica, .. }
            | Fault::Retire { replica, .. }
            | Fault::PowerCut { replica, .. }
            | Fault::FullDisk { replica, .. }
            | Fault::HangDisk { replica, .. }
            | Fault::FlipBit { replica, .. }
            | Fault::FailSync { replica }
            | Fault::Unreadable { replica, .. }
            | Fault::CopyDisk { replica }
            | Fault::PutBack { replica, .. }
            | Fault::ChangeVoter { replica, .. }
            | Fault::Slow { replica, .. } => vec![Node::Replica(replica)],
            Fault::Cut { from, to, .. } | Fault::Hold { from, to, .. } => vec![from, to],
            Fault::CutPair { one, other, .. } => vec![Node::Replica(one), Node::Replica(other)],
            Fault::RestartClient { client } => vec![Node::Client(client)],
            Fault::RestartSwitch | Fault::ReplaceSwitch { .. } => vec![Node::Switch],
            Fault::SecondController { .. }
            | Fault::OldState { .. }
            | Fault::FullController { .. }
            | Fault::CutController { .. } => vec![Node::Controller],
            Fault::LossBurst { .. }
            | Fault::DuplicateBurst { .. }
            | Fault::FillTable { .. }
            | Fault::PowerCutAll { .. }
            | Fault::Join => vec![],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_read_as_they_are_written() {
        for node in [
            Node::Controller,
            Node::OtherController,
            Node::Switch,
            Node::OtherSwitch,
            Node::Replica(3),
            Node::Client(0),
        ] {
            assert_eq!(node.to_string().parse(), Ok(node));
        }
        for bad in ["", "replica", "replica-", "replica-x", "gateway-1"] {
            assert!(bad.parse::<Node>().is_err(), "{bad}");
        }
    }
}
