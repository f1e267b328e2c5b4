//! The state that a controller persists, and the reasons for which it cannot go on.

use alloc::vec::Vec;
use core::fmt;

use concord_core::{Guard, Guards};
use concord_wire::control::Config;
use concord_wire::{Addr, GroupId};
use serde::{Deserialize, Serialize};

/// The persisted state: the rack, its switch and its groups. Each write increments `version`, which
/// is the compare-and-swap of the whole state.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct State {
    /// The number of this state.
    pub version: u64,
    /// The rack's number, drawn with its first configuration; 0 before. Every configuration has it,
    /// so that nodes and files of other racks are recognised.
    pub rack: u64,
    /// The incarnation of the switch to which the active switch id was granted.
    pub switch_incarnation: u64,
    /// The last switch id that was granted, for any group; never decreases (trap T20).
    pub last_switch_id: u32,
    /// Earlier incarnations of the switch, which are granted nothing again.
    pub retired_switches: Vec<u64>,
    /// The groups that have a configuration, ascending by number.
    pub groups: Vec<GroupState>,
}

/// The persisted state of a group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupState {
    /// The configuration in force. Changes in other groups leave it unchanged.
    pub config: Config,
    /// Replicas: the members that have everything that was committed before this configuration.
    /// Never empty once there is a configuration, since no later one would be safe. Empty in groups
    /// without data.
    pub caught_up: Vec<u16>,
    /// Replicas with data on disk: the directory of each, as of the configuration in force.
    pub storages: Vec<Storage>,
}

/// A replica's data directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Storage {
    /// The replica.
    pub node: u16,
    /// The directory's storage id.
    pub id: u64,
    /// The number of starts on the directory: a lower number, or the same one again, shows that an
    /// older directory was put back.
    pub run: u64,
}

impl State {
    /// The compare-and-swap: whether this state may replace the stored one (trap T3). Of two
    /// controllers that continue from the same state, one is refused.
    #[must_use]
    pub fn follows(&self, stored: Option<&State>, guards: Guards) -> bool {
        let before = stored.map_or(0, |stored| stored.version);
        let is_next = self.version == before + 1 && !stored.is_some_and(|s| self.goes_back_from(s));
        is_next || !guards.on(Guard::EpochSwap)
    }

    /// Whether a group would return to an earlier epoch. A rebuilt state begins with the first
    /// version, so that a controller that still runs on the lost state may come with the next one.
    fn goes_back_from(&self, stored: &State) -> bool {
        stored.groups.iter().map(|group| &group.config).any(|stored| {
            let own = self.config(stored.group).filter(|own| own.rack == stored.rack);
            own.is_some_and(|own| own.epoch < stored.epoch)
        })
    }

    /// The state of a group that has a configuration.
    #[must_use]
    pub fn group(&self, id: GroupId) -> Option<&GroupState> {
        self.groups.iter().find(|g| g.config.group == id)
    }

    /// A group's configuration in force; `None` before its first.
    #[must_use]
    pub fn config(&self, id: GroupId) -> Option<&Config> {
        self.group(id).map(|g| &g.config)
    }

    /// Replaces a group's state.
    pub(crate) fn put(&mut self, group: GroupState) {
        let id = group.config.group;
        match self.groups.binary_search_by_key(&id, |g| g.config.group) {
            Ok(index) => self.groups[index] = group,
            Err(index) => self.groups.insert(index, group),
        }
    }
}

/// The reason for which a state was not stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotStored {
    /// The disk has no room. The earlier state is still stored.
    Full,
    /// The disk refused it. The earlier state is still stored.
    Refused,
    /// The disk failed after the state was put in its place: after a power cut, this one or the
    /// earlier one is found.
    Unknown,
}

/// The reason for which the controller cannot do its work, for people.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Problem {
    /// A switch asks for an id, and every id was granted (trap T20).
    SwitchIdsExhausted,
    /// Every epoch number was used.
    EpochsExhausted,
    /// No member is left that has everything that was committed.
    NobodyCaughtUp,
    /// No heard member has all the data, and a member was restarted with an older directory than it
    /// had.
    OlderDirectory {
        /// Which one.
        node: u16,
    },
    /// All members and the controller were down, and a replica that may have newer data is not
    /// back.
    ColdStart {
        /// The first one that is not heard.
        node: u16,
        /// The epoch of the state.
        epoch: u32,
    },
    /// Nodes have heard of configurations or switch ids, and there is no state.
    StateLost {
        /// The highest epoch that a node has heard of.
        heard_epoch: u32,
        /// The highest switch id.
        heard_switch_id: u32,
    },
    /// Nodes have heard of higher numbers than the state has.
    StateOld {
        /// The state's epoch.
        epoch: u32,
        /// The highest epoch that a node has heard of.
        heard_epoch: u32,
        /// The highest switch id.
        heard_switch_id: u32,
    },
    /// A node of another rack sends here.
    Stranger {
        /// Where it listens.
        addr: Addr,
    },
    /// Two replicas that are both heard here do not hear each other.
    CutPair {
        /// One.
        one: u16,
        /// The other one.
        other: u16,
    },
    /// The state is being rebuilt: the controller listens.
    Recovering,
    /// The state cannot be rebuilt: no node has heard of a configuration.
    NothingHeard,
    /// The state cannot be rebuilt yet: a member of the newest configuration is not heard.
    NotHeard {
        /// The member; `None` if a majority is not heard.
        node: Option<u16>,
        /// The newest epoch.
        epoch: u32,
    },
    /// No node of this group was heard when the state was rebuilt, and now one with its data is.
    LeftOut,
    /// The state cannot be rebuilt: nodes of two racks are heard.
    TwoRacks {
        /// The address of one that is of another rack than the state, or than others.
        addr: Addr,
    },
    /// The state cannot be rebuilt: no heard replica has a complete state.
    NothingLeft,
    /// The first epoch waits for replicas that were not heard yet.
    WaitsForReplicas {
        /// The first of them.
        node: u16,
        /// The number of further ones.
        others: u16,
    },
    /// The first epoch of a chain waits for switches that were not heard of yet.
    WaitsForSwitches {
        /// The first of them.
        node: u16,
        /// How many there are beside it.
        others: u16,
    },
    /// No switch of a chain is left that holds its keys.
    ChainLost,
    /// The first epoch waits for a switch.
    WaitsForSwitch,
    /// The first epoch waits: replicas were not restored from one backup.
    OriginsDiffer {
        /// One that was restored.
        one: u16,
        /// One that was not, or from another backup.
        other: u16,
    },
    /// A replica was restored from a backup, and the rack continues with the others' data.
    Restored {
        /// Which one.
        node: u16,
    },
    /// A replica holds other data than most of the others.
    Differs {
        /// Which one.
        node: u16,
        /// The position at which that was seen.
        position: u64,
        /// The places of the keys, up to `end`: see `concord_engine::digest`.
        first: u16,
        /// The place after the last one.
        end: u16,
    },
    /// Replicas hold different data, and no majority of them agrees.
    Differ {
        /// One.
        one: u16,
        /// Another one.
        other: u16,
        /// The position at which that was seen.
        position: u64,
        /// The places of the keys, up to `end`.
        first: u16,
        /// The place after the last one.
        end: u16,
    },
    /// The next configuration cannot be stored, so that nothing changes meanwhile.
    NotStored(NotStored),
}

/// A problem, and the group that has it; `None` for the rack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Trouble {
    pub group: Option<GroupId>,
    pub problem: Problem,
}

impl Trouble {
    pub(crate) fn of(group: GroupId, problem: Problem) -> Trouble {
        Trouble { group: Some(group), problem }
    }
}

impl From<Problem> for Trouble {
    fn from(problem: Problem) -> Trouble {
        Trouble { group: None, problem }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lost = "the state file was lost, or `state` in the rack file names another place: bring the \
                    newest file back, or start with --recover to make it anew from what the replicas \
                    have heard";
        f.write_str(match *self {
            Problem::StateLost { heard_epoch, heard_switch_id } => {
                return write!(
                    f,
                    "there is no state, but nodes have heard of epoch {heard_epoch} and switch id \
                     {heard_switch_id}: {lost}"
                );
            }
            Problem::StateOld { epoch, heard_epoch, heard_switch_id } => {
                return write!(
                    f,
                    "the state is of epoch {epoch}, but nodes have heard of epoch {heard_epoch} and \
                     switch id {heard_switch_id}: {lost}"
                );
            }
            Problem::Stranger { addr } => {
                return write!(
                    f,
                    "the node at {addr} is of another rack than the state file: is `controller` in \
                     its rack file right, and `state` in this one? A node from before --fresh must be \
                     started again"
                );
            }
            Problem::CutPair { one, other } => {
                return write!(
                    f,
                    "replicas {one} and {other} do not hear each other, though the controller hears \
                     both: the network between them is down; one of them stays outside meanwhile"
                );
            }
            Problem::TwoRacks { addr } => {
                return write!(
                    f,
                    "the state cannot be made anew: nodes of two racks are heard, and there is no state \
                     that says which is meant; the one at {addr} is of another rack than others: is \
                     `controller` in its rack file right?"
                );
            }
            Problem::NotHeard { node: None, epoch } => {
                return write!(
                    f,
                    "the state cannot be made anew: fewer than a majority of the members of epoch \
                     {epoch} is heard; start them"
                );
            }
            Problem::NotHeard { node: Some(node), epoch } => {
                return write!(
                    f,
                    "the state cannot be made anew: replica {node}, a member of epoch {epoch}, is not \
                     heard; start again with --recover --gone {node} if it is gone for good (what only \
                     it acknowledged is lost)"
                );
            }
            Problem::OlderDirectory { node } => {
                return write!(
                    f,
                    "replica {node} was started with an older data directory than it had (was it put back?), and \
                     what was acknowledged since is on other members: start these; for each that is gone for good \
                     start the controller with --recover --gone N (what only it had is lost)"
                );
            }
            Problem::ColdStart { node, epoch } => {
                return write!(
                    f,
                    "all members of epoch {epoch} were down, as was the controller, and replica {node}, which may \
                     have newer data, is not back: start replica {node}, or, if it is gone for good, start the \
                     controller again with --recover --gone {node}"
                );
            }
            Problem::WaitsForReplicas { node, others: 0 } => {
                return write!(
                    f,
                    "the first epoch waits for replica {node}, which was not heard of yet: start it, \
                     or take it out of the rack file and start the controller again"
                );
            }
            Problem::WaitsForReplicas { node, others } => {
                return write!(
                    f,
                    "the first epoch waits for replica {node} and {others} more, which were not heard \
                     of yet: start them"
                );
            }
            Problem::WaitsForSwitches { node, others: 0 } => {
                return write!(
                    f,
                    "the first epoch of the chain waits for switch {node}, which was not heard of yet: \
                     start it, or take it out of the rack file and start the controller again"
                );
            }
            Problem::WaitsForSwitches { node, others } => {
                return write!(
                    f,
                    "the first epoch of the chain waits for switch {node} and {others} more, which were \
                     not heard of yet: start them"
                );
            }
            Problem::ChainLost => {
                "no switch of the chain is left that holds its keys: if none comes back that still runs, start \
                 the controller with --fresh, which begins an empty chain (what the chain held is lost)"
            }
            Problem::Differs { node, position, first, end } => {
                return write!(
                    f,
                    "replica {node} holds other data than the other replicas (seen at position {position}), among \
                     the keys of places {first} to {} of 4096, which `SCAN {first}` lists first: stop it, move its \
                     data directory away and start it again, so that it copies the state",
                    end.saturating_sub(1)
                );
            }
            Problem::Differ { one, other, position, first, end } => {
                return write!(
                    f,
                    "replicas {one} and {other} hold different data (seen at position {position}), among the keys of \
                     places {first} to {} of 4096, which `SCAN {first}` lists first: compare these keys at both, then \
                     stop the one that is wrong, move its data directory away and start it again",
                    end.saturating_sub(1)
                );
            }
            Problem::OriginsDiffer { one, other } => {
                return write!(
                    f,
                    "the first epoch waits: replica {one} was restored from a backup, and replica {other} \
                     was not, or from another one: restore all replicas from one backup"
                );
            }
            Problem::Restored { node } => {
                return write!(
                    f,
                    "replica {node} was restored from a backup, and stays outside: this rack goes on with \
                     what it has. Give it an empty data directory; to begin anew with the backup, restore \
                     all replicas, and start the controller with another state file"
                );
            }
            Problem::NotStored(NotStored::Full) => {
                "the disk of the controller's state is full: no failed replica is removed, none is let in, and \
                 no switch takes over before there is room; free some (what is in force goes on)"
            }
            Problem::NotStored(NotStored::Refused) => {
                "the disk of the controller's state refuses it, which is tried again: no failed replica is \
                 removed, none is let in, and no switch takes over meanwhile; the controller's log has the \
                 disk's error (what is in force goes on)"
            }
            Problem::NotStored(NotStored::Unknown) => {
                "the disk of the controller's state failed: this controller changes nothing any more (what is \
                 in force goes on); stop it, and start it with --recover and its state on another disk"
            }
            Problem::WaitsForSwitch => "the first epoch waits for a switch: start it",
            Problem::Recovering => "the state is being made anew: the controller listens to the replicas",
            Problem::NothingHeard => {
                "the state cannot be made anew: no replica has heard of a configuration; start without \
                 --recover"
            }
            Problem::LeftOut => {
                "nobody of this group was heard when the state was made anew, and some of its replicas have \
                 data: start all of them, and the controller with --recover again (--fresh gives the data up)"
            }
            Problem::NothingLeft => {
                "the state cannot be made anew: no replica that is heard has all the data of any \
                 epoch; --fresh gives the data up"
            }
            Problem::SwitchIdsExhausted => {
                "every switch id was granted: no other switch can take over; begin anew with another \
                 state file"
            }
            Problem::EpochsExhausted => {
                "every epoch number was used: nothing can change any more; begin anew with another \
                 state file"
            }
            Problem::NobodyCaughtUp => {
                "no member that has all the data is alive; if none comes back, start the controller \
                 with --recover --gone N for each of them: it goes on with the newest data that is \
                 left, and what was acknowledged later is lost (--fresh gives up all)"
            }
        })
    }
}
