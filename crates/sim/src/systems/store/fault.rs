//! The faults that a plan injects, and at which node.

use std::fmt;
use std::str::FromStr;

use concord_core::{Duration, SEC};
use serde::{Deserialize, Serialize};

/// A replica whose disk owes a sync for so long leaves its group
/// ([`concord_protocols::Limits::disk_silence_ns`]).
const LONG_HANG_NS: Duration = 10 * SEC;

/// A node of the rack, as faults and traces name it; replicas and clients count from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Node {
    /// The controller.
    Controller,
    /// Another controller, once [`Fault::SecondController`] started it.
    OtherController,
    /// The switch.
    Switch,
    /// The switch that [`Fault::ReplaceSwitch`] starts.
    OtherSwitch,
    /// A replica. Those that join count on behind those of the start.
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

/// One fault, at a time of the run. What heals does so by itself after `for_ns`, or when the run's
/// safety phase ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Fault {
    /// A node stops for so long and goes on, its packets waiting for it (trap T1).
    Pause {
        /// Which node.
        node: Node,
        /// For how long, in ns.
        for_ns: Duration,
    },
    /// A replica dies for good.
    Kill {
        /// Which replica, from 0.
        replica: usize,
    },
    /// A replica dies and is back at once, empty (trap T4): it joins again.
    Restart {
        /// Which replica, from 0.
        replica: usize,
    },
    /// A replica is told to end: it leaves in order, goes, and is started again, empty, so long
    /// after it went.
    Retire {
        /// Which replica, from 0.
        replica: usize,
        /// How long it is gone, in ns.
        for_ns: Duration,
    },
    /// The host of a replica or of the switch is started again: the node comes back empty, and its
    /// monotonic clock (time since boot) begins anew.
    Reboot {
        /// Which node.
        node: Node,
    },
    /// A replica that never was there starts, and joins.
    Join,
    /// A replica's engine loses its state, so that the replica must leave (traps T4, T11).
    LoseEngine {
        /// Which replica, from 0.
        replica: usize,
    },
    /// A replica's engine takes no command any more, though its connection stands: the replica must
    /// leave by itself.
    HangEngine {
        /// Which replica, from 0.
        replica: usize,
    },
    /// A replica's engine answers nothing for a while.
    StallEngine {
        /// Which replica, from 0.
        replica: usize,
        /// For how long, in ns; shorter than an engine's longest silence, if it is not at work.
        for_ns: Duration,
    },
    /// The connection to a replica's engine is cut in the middle of a command: what was not
    /// executed is sent again, and the reply of a write that was is lost (trap T11).
    CutEngine {
        /// Which replica, from 0.
        replica: usize,
        /// Until it stands again, in ns.
        for_ns: Duration,
        /// Writes under way were executed.
        executed: bool,
    },
    /// A replica is cut off from the other replicas and the controller, not from the switch (T2).
    Isolate {
        /// Which replica, from 0.
        replica: usize,
        /// For how long, in ns.
        for_ns: Duration,
        /// The controller does not reach the switch meanwhile either.
        stale_switch: bool,
    },
    /// Packets of one node no longer reach another; those of the other still reach it.
    Cut {
        /// Who sends in vain.
        from: Node,
        /// Who hears nothing.
        to: Node,
        /// For how long, in ns.
        for_ns: Duration,
    },
    /// Packets of one node to another are on their way for long; later ones overtake them.
    Hold {
        /// Who sends.
        from: Node,
        /// To whom.
        to: Node,
        /// Packets sent within this time from now, in ns.
        for_ns: Duration,
        /// When they arrive, in ns from now.
        late_ns: Duration,
    },
    /// The rack falls in two: a replica, the switch and every second client on one side, all others
    /// with another switch on the other (trap T2, Harmonia §6.3).
    Split {
        /// Which replica, from 0.
        replica: usize,
        /// For how long, in ns.
        for_ns: Duration,
    },
    /// The whole network loses more packets than usual.
    LossBurst {
        /// Packets lost, per million.
        loss_ppm: u64,
        /// For how long, in ns.
        for_ns: Duration,
    },
    /// The whole network duplicates more packets than usual.
    DuplicateBurst {
        /// Packets duplicated, per million.
        duplicate_ppm: u64,
        /// For how long, in ns.
        for_ns: Duration,
    },
    /// A replica takes longer for every packet.
    Slow {
        /// Which replica, from 0.
        replica: usize,
        /// Longer by, in ns.
        extra_ns: Duration,
        /// For how long, in ns.
        for_ns: Duration,
    },
    /// A node's wall clock is set. (Nobody sets monotonic clocks: they drift, see
    /// [`crate::Plan::drift_ppm`], and go on while their node is paused.)
    ClockJump {
        /// Which node.
        node: Node,
        /// Forward by, in ms; back if negative.
        by_ms: i64,
    },
    /// Completions are lost on their way to the switch, so that the dirty set fills up.
    FillTable {
        /// For how long, in ns.
        for_ns: Duration,
    },
    /// Records on their way to a replica are lost, and all else arrives: as large packets vanish
    /// where somebody set the wrong MTU. An epoch opens meanwhile, and its members lag.
    LoseRecords {
        /// Which replica, from 0.
        replica: usize,
        /// For how long, in ns.
        for_ns: Duration,
    },
    /// A replica hears nothing of the other replicas and of the controller; what it sends arrives.
    Deaf {
        /// Which replica, from 0.
        replica: usize,
        /// For how long, in ns.
        for_ns: Duration,
    },
    /// Some of the writes that the switch numbered do not get to a replica; others get them
    /// (NOPaxos multicasts them).
    LoseWrites {
        /// Which replica, from 0.
        replica: usize,
        /// For how long, in ns.
        for_ns: Duration,
    },
    /// The active switch is started again, and knows nothing.
    RestartSwitch,
    /// The active switch stops for so long and wakes up beside another one, which was started
    /// meanwhile (Harmonia §6.3).
    ReplaceSwitch {
        /// The other one takes over when the first is silent; else at once.
        standby: bool,
        /// For how long, in ns.
        for_ns: Duration,
    },
    /// The controller stops for so long and wakes up beside another one, which was started
    /// meanwhile from the same stored state (trap T3).
    SecondController {
        /// For how long, in ns.
        for_ns: Duration,
    },
    /// The controller is cut off from everybody, and from a standby or another controller; the
    /// switch too, from everybody, if that is said.
    CutController {
        /// The switch's link is down as well.
        with_switch: bool,
        /// For how long, in ns.
        for_ns: Duration,
    },
    /// The controller is started without its file, or with the one of the beginning; after so long
    /// the operator has the state made anew.
    OldState {
        /// The file is gone.
        gone: bool,
        /// For how long, in ns.
        for_ns: Duration,
    },
    /// The disk of the controller's state is full, or refuses it.
    FullController {
        /// For how long, in ns.
        for_ns: Duration,
    },
    /// Two replicas do not reach each other; everybody else reaches both.
    CutPair {
        /// One, from 0.
        one: usize,
        /// The other one, from 0.
        other: usize,
        /// For how long, in ns.
        for_ns: Duration,
    },
    /// The power of a replica goes, and comes back: it has what its disk has.
    PowerCut {
        /// Which replica, from 0.
        replica: usize,
        /// For how long, in ns.
        for_ns: Duration,
    },
    /// The power of all replicas goes, and comes back (trap T7).
    PowerCutAll {
        /// For how long, in ns.
        for_ns: Duration,
    },
    /// The next sync of a replica's disk fails: the replica leaves.
    FailSync {
        /// Which replica, from 0.
        replica: usize,
    },
    /// A replica's disk has no room but for a few bytes: writes are refused until it has (trap
    /// T14).
    FullDisk {
        /// Which replica, from 0.
        replica: usize,
        /// For how long, in ns.
        for_ns: Duration,
        /// How many bytes it takes all the same.
        bytes: usize,
    },
    /// A replica's disk stands still: no sync ends.
    HangDisk {
        /// Which replica, from 0.
        replica: usize,
        /// For how long, in ns.
        for_ns: Duration,
    },
    /// The power of a replica goes, and a bit of what was synced is another one when it comes back.
    FlipBit {
        /// Which replica, from 0.
        replica: usize,
        /// For how long, in ns.
        for_ns: Duration,
    },
    /// The power of a replica goes, and a place of its disk cannot be read when it comes back.
    Unreadable {
        /// Which replica, from 0.
        replica: usize,
        /// For how long, in ns.
        for_ns: Duration,
    },
    /// A replica's data directory is copied, as it is while its process runs.
    CopyDisk {
        /// Which replica, from 0.
        replica: usize,
    },
    /// The power of a replica goes, and when it comes back the copy that was made last
    /// ([`Fault::CopyDisk`]) is in the place of its directory (trap T4).
    PutBack {
        /// Which replica, from 0.
        replica: usize,
        /// For how long, in ns.
        for_ns: Duration,
        /// The power of all others goes as well, for so long, in ns; 0: it does not.
        others_ns: Duration,
    },
    /// A client process dies with its requests under way, and a new one takes its place.
    RestartClient {
        /// Which client process, from 0.
        client: usize,
    },
    /// Raft: an operator has a member vote that did not, or vote no more that did, and asks whoever
    /// leads for so long.
    ChangeVoter {
        /// Which replica, from 0.
        replica: usize,
        /// For how long, in ns.
        for_ns: Duration,
    },
}

impl Fault {
    /// A name for each kind, in the order of [`Fault::kind`].
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

    /// Which kind it is: a place in [`Fault::KINDS`].
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

    /// How long it lasts, in ns; 0 for what happens at once.
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

    /// Whether it takes a replica's data with it. The rack skips such a fault when too few other
    /// replicas are well: beyond the failure bound nothing is promised.
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

    /// Whether it may make live replicas look dead. The rack skips such a fault while a member is
    /// dead and the controller does not know it: were a live one taken out first, the group would
    /// wait for the dead one.
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

    /// The nodes that it names.
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
