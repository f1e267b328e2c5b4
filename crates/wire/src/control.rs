//! Rare messages: with the controller, and among replicas about epochs and leases. Encoded by
//! postcard behind `magic, version, op, length: u32`.

use alloc::vec::Vec;

use serde::{Deserialize, Serialize};

use crate::addr::Addr;
use crate::vr::VrMessage;
use crate::{MAGIC, VERSION, WireError, u32_at};

/// Operation byte.
pub const OP_CONTROL: u8 = 48;
const HEADER_BYTES: usize = 8;

/// A member of an epoch: a node in one of its lives (trap T4), and where it listens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    /// The node's number.
    pub node: u16,
    /// Which life of it.
    pub incarnation: u64,
    /// Its UDP address.
    pub addr: Addr,
}

/// How replicas replicate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Protocol {
    /// The primary orders, all backups acknowledge to it.
    PrimaryBackup,
    /// The head orders, the tail acknowledges.
    Chain,
    /// Viewstamped Replication: the leader of the view orders, a majority acknowledges.
    Vr,
    /// CRAQ: as a chain, and every member answers reads; of objects with a write under way it asks
    /// the tail first.
    Craq,
    /// NOPaxos: the switch orders and multicasts, a majority acknowledges to the leader of the view.
    NoPaxos,
}

impl Protocol {
    /// Whether a majority decides, and the replicas choose who leads by themselves.
    #[must_use]
    pub const fn is_quorum(self) -> bool {
        match self {
            Protocol::PrimaryBackup | Protocol::Chain | Protocol::Craq => false,
            Protocol::Vr | Protocol::NoPaxos => true,
        }
    }

    /// Whether the switch orders the writes and sends them to every replica.
    #[must_use]
    pub const fn is_sequenced(self) -> bool {
        matches!(self, Protocol::NoPaxos)
    }
}

/// Who is who, from an epoch number on. The first member orders writes (head, primary).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Config {
    /// The number of this configuration.
    pub epoch: u32,
    /// Which rack it is of: drawn when its first configuration was made, so that another rack's
    /// state file is told apart.
    pub rack: u64,
    /// The one switch whose numbers and fast reads are accepted (Harmonia §6.3).
    pub switch_id: u32,
    /// The switch's life to which that id was granted.
    pub switch_incarnation: u64,
    /// Where the switch listens.
    pub switch: Addr,
    /// How the members replicate.
    pub protocol: Protocol,
    /// Whether the switch helps.
    pub accelerated: bool,
    /// The members in order: head first, tail last. From a VR leader to the switch: itself first,
    /// and whom it hears of.
    pub members: Vec<Member>,
    /// Who copies the state from a member, to become one: they answer nothing, and nobody waits for
    /// them (trap T4).
    pub joining: Vec<Member>,
}

impl Config {
    /// Who orders writes.
    #[must_use]
    pub fn head(&self) -> Option<&Member> {
        self.members.first()
    }

    /// Who answers reads of the normal protocol: the tail of a chain, else who orders. In CRAQ it is
    /// who the others ask.
    #[must_use]
    pub fn reader(&self) -> Option<&Member> {
        match self.protocol {
            Protocol::Chain | Protocol::Craq => self.members.last(),
            Protocol::PrimaryBackup | Protocol::Vr | Protocol::NoPaxos => self.members.first(),
        }
    }
}

/// Where a replica stands, as it tells the controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Standing {
    /// In no epoch; it asks to be let in.
    Out,
    /// It joins, and lacks a part of the state.
    Copying,
    /// It joins, and has all of the state.
    Copied,
    /// A member; the epoch is not open here.
    Opening {
        /// It was whole in the epoch before, and so has everything that was ever committed.
        whole: bool,
    },
    /// A member; the epoch is open here.
    Open {
        /// All that the members agreed on, at the opening of some epoch since it became one, is
        /// executed here. Only a whole member can go on without the others.
        whole: bool,
    },
    /// It asks to be removed: it was told to end, or it lost its engine, or its log is not the others'
    /// (traps T4, T11).
    Leaving,
}

/// What a node has heard of, whoever said it: a controller whose state knows less has lost its file,
/// or has another's (trap T3).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Heard {
    /// The rack of its configuration; 0 if it has none.
    pub rack: u64,
    /// The highest epoch; 0 if none, and from a switch whose epochs are views.
    pub epoch: u32,
    /// The highest switch id; 0 if none.
    pub switch_id: u32,
}

/// A complete state that a replica has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Held {
    /// The last epoch in which it had all that was agreed; 0 if what is here is not complete.
    pub epoch: u32,
    /// The end of its log.
    pub position: u64,
}

/// The end of a replica's log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogEnd {
    /// The last record applied; 0 if none.
    pub position: u64,
    /// The running hash there.
    pub hash: u64,
}

/// A rare message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Control {
    /// Replica to controller, periodically: I live.
    ReplicaAlive {
        /// Who, in which life, and where.
        member: Member,
        /// Its clock when it said so, in ns: what arrives late is told apart.
        sent_at: u64,
        /// What it heard of; it stands in that epoch.
        heard: Heard,
        /// Where it stands in it.
        standing: Standing,
        /// The data that it has.
        held: Held,
        /// Members that it has not heard of lately, though it should; of one that joins, all members
        /// that did not answer lately.
        unheard: Vec<u16>,
    },
    /// Switch to controller, periodically: I live.
    SwitchAlive {
        /// The switch's life.
        incarnation: u64,
        /// Where it listens.
        addr: Addr,
        /// Its clock when it said so, in ns.
        sent_at: u64,
        /// The configuration it runs; 0 if none.
        epoch: u32,
        /// What it heard of.
        heard: Heard,
        /// It takes over when the active switch is silent, not before.
        standby: bool,
    },
    /// Controller to replicas, and to the switch once open.
    Configure(Config),
    /// Replica to replica: where my log ends, in this epoch (trap T5).
    EpochState {
        /// The epoch that is to open.
        epoch: u32,
        /// Who says so.
        from: u16,
        /// Where its log ends.
        end: LogEnd,
        /// Whether the receiver's own end is wanted in return.
        ask: bool,
    },
    /// Head to a member whose log is longer: send me records from here on.
    Fetch {
        /// The epoch that is to open.
        epoch: u32,
        /// Who asks.
        from: u16,
        /// The record that is wanted.
        position: u64,
        /// The first fragment of it that is missing.
        index: u32,
        /// Which are: bit i is fragment `index + i`.
        missing: u64,
    },
    /// A piece of an encoded record, for [`Control::Fetch`].
    Fetched {
        /// The epoch that is to open.
        epoch: u32,
        /// Which record.
        position: u64,
        /// Its running hash: fragments of two records are never mixed.
        hash: u64,
        /// Length of the whole record in bytes.
        total_bytes: u32,
        /// Which fragment of it.
        index: u32,
        /// The fragment.
        piece: Vec<u8>,
    },
    /// Head to members: the epoch is open; the log up to here is agreed.
    Open {
        /// The epoch.
        epoch: u32,
        /// Who says so.
        from: u16,
        /// The end of the agreed log.
        end: LogEnd,
    },
    /// Member to head: I opened it.
    Opened {
        /// The epoch.
        epoch: u32,
        /// Who says so.
        from: u16,
    },
    /// Replica to the other members: grant me a lease, counted from when I asked (trap T2).
    LeaseRequest {
        /// The epoch.
        epoch: u32,
        /// Who asks.
        from: u16,
        /// The asker's clock when it asked, echoed.
        asked_at: u64,
    },
    /// The grant.
    LeaseGrant {
        /// The epoch.
        epoch: u32,
        /// Who grants.
        from: u16,
        /// Echo of the request.
        asked_at: u64,
    },
    /// Gateway or client to controller: which configuration is in force? Controller to a replica, to
    /// recover: which one is yours?
    WhoIsWho {
        /// Where the answer goes.
        client: Addr,
    },
    /// Controller to a switch in a life whose place another has: it may come again as a new life.
    SwitchRetired {
        /// That life.
        incarnation: u64,
        /// Where the active switch listens.
        switch: Addr,
    },
    /// Joining replica to its feeder: my state is that of this log end; send me the records behind.
    Resume {
        /// The epoch.
        epoch: u32,
        /// Who asks.
        from: u16,
        /// Which copy of the state it is; counted up by the joining replica.
        attempt: u64,
        /// Where its log ends.
        end: LogEnd,
    },
    /// Feeder to joining replica: the records come.
    Resumed {
        /// The epoch.
        epoch: u32,
        /// Who says so.
        from: u16,
        /// Echo of the request.
        attempt: u64,
    },
    /// To a replica whose log is not the sender's, or ends before what the sender kept (trap T5): a
    /// joining one copies anew, a member leaves.
    Apart {
        /// The epoch.
        epoch: u32,
        /// Who says so.
        from: u16,
        /// Which copy of a joining replica; 0 for a member.
        attempt: u64,
    },
    /// Joining replica to its feeder: send me a part of the state, from this fragment on.
    CopyAsk {
        /// The epoch.
        epoch: u32,
        /// Who asks.
        from: u16,
        /// Which copy.
        attempt: u64,
        /// Which part; parts are asked for in rising order.
        part: u64,
        /// The first fragment wanted.
        index: u32,
    },
    /// A fragment of a part of the state. Its place in the part is that of a
    /// [`crate::fragment::FragmentHdr`].
    CopyPiece {
        /// The epoch.
        epoch: u32,
        /// Which copy.
        attempt: u64,
        /// Which part.
        part: u64,
        /// The log position at which the part was taken.
        position: u64,
        /// Length of the whole part in bytes.
        total_bytes: u32,
        /// Which fragment.
        index: u32,
        /// The fragment.
        piece: Vec<u8>,
    },
    /// Between VR replicas.
    Vr(VrMessage),
    /// Leader to the switch that orders (NOPaxos), periodically: what it stamps on writes, since it
    /// has neither the log's time nor the data.
    Stamp {
        /// The leader's view.
        epoch: u32,
        /// The log's time now, in ms since the Unix epoch.
        now_ms: u64,
        /// The leader's data takes more than its limit.
        memory_full: bool,
    },
    /// Joining replica to members: do you hear me? And the answer.
    Reach {
        /// The epoch.
        epoch: u32,
        /// Who says so.
        from: u16,
        /// Whether an answer is wanted.
        ask: bool,
    },
    /// Replica that goes to those that may have granted it a lease: this incarnation holds none any
    /// more, and never will again. Nobody waits for its end (trap T2).
    Release {
        /// Which node.
        from: u16,
        /// Which incarnation of it.
        incarnation: u64,
    },
}

impl Control {
    /// The member of an epoch that says this to another one, and the epoch: a sign that it is heard.
    #[must_use]
    pub fn member_heard(&self) -> Option<(u32, u16)> {
        match *self {
            Control::EpochState { epoch, from, .. }
            | Control::Fetch { epoch, from, .. }
            | Control::Open { epoch, from, .. }
            | Control::Opened { epoch, from }
            | Control::LeaseRequest { epoch, from, .. }
            | Control::LeaseGrant { epoch, from, .. }
            | Control::Reach { epoch, from, .. } => Some((epoch, from)),
            _ => None,
        }
    }

    /// Writes the message into `out`, replacing what was there.
    pub fn emit(&self, out: &mut Vec<u8>) {
        out.clear();
        out.extend_from_slice(&MAGIC.to_be_bytes());
        out.extend_from_slice(&[VERSION, OP_CONTROL, 0, 0, 0, 0]);
        let taken = core::mem::take(out);
        if let Ok(mut bytes) = postcard::to_extend(self, taken) {
            let length = (bytes.len() - HEADER_BYTES) as u32;
            bytes[4..8].copy_from_slice(&length.to_be_bytes());
            *out = bytes;
        }
    }

    /// Reads a message; padding behind it is allowed.
    ///
    /// # Errors
    /// [`WireError`], which the caller counts.
    pub fn parse(bytes: &[u8]) -> Result<Control, WireError> {
        if bytes.len() < HEADER_BYTES {
            return Err(WireError::Truncated);
        }
        if bytes[3] != OP_CONTROL {
            return Err(WireError::Op);
        }
        let end = HEADER_BYTES.saturating_add(u32_at(bytes, 4) as usize);
        let body = bytes.get(HEADER_BYTES..end).ok_or(WireError::Truncated)?;
        postcard::from_bytes(body).map_err(|_| WireError::Field)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    #[test]
    fn messages_survive_the_wire_and_golden_bytes_hold() {
        let config = Config {
            epoch: 2,
            rack: 0x7ac4,
            switch_id: 3,
            switch_incarnation: 5,
            switch: Addr { ip: 0x7f00_0001, port: 9 },
            protocol: Protocol::Chain,
            accelerated: true,
            members: vec![Member { node: 1, incarnation: 77, addr: Addr { ip: 1, port: 2 } }],
            joining: vec![],
        };
        assert_eq!(config.head(), config.reader());
        let mut out = vec![];
        // The protocol is one byte.
        let protocols = [
            Protocol::PrimaryBackup,
            Protocol::Chain,
            Protocol::Vr,
            Protocol::Craq,
            Protocol::NoPaxos,
        ];
        for (byte, protocol) in (0..).zip(protocols) {
            assert_eq!(postcard::to_allocvec(&protocol).unwrap(), [byte]);
        }
        Control::Configure(config.clone()).emit(&mut out);
        let hex: alloc::string::String = out.iter().map(|b| alloc::format!("{b:02x}")).collect();
        assert_eq!(hex, include_str!("../../../vectors/wire/control.hex").trim());
        out.extend_from_slice(&[0; 9]);
        assert_eq!(Control::parse(&out).unwrap(), Control::Configure(config));
        assert_eq!(Control::parse(&out[..20]).unwrap_err(), WireError::Truncated);
        let piece = Control::CopyPiece {
            epoch: u32::MAX,
            attempt: u64::MAX,
            part: u64::MAX,
            position: u64::MAX,
            total_bytes: u32::MAX,
            index: u32::MAX,
            piece: vec![0; crate::fragment::FRAGMENT_BYTES],
        };
        piece.emit(&mut out);
        assert!(out.len() <= crate::DATAGRAM_BYTES_MAX, "the longest message fits a datagram");
        assert_eq!(Control::parse(&out).unwrap(), piece);
        out[8] = 250;
        assert_eq!(Control::parse(&out).unwrap_err(), WireError::Field);
    }
}
