//! The effect that a packet on its way to a replica may still have
//! ([`Machine::relevance`](concord_core::Machine)). Each rule says why
//! (docs/internals/exhaustive.md).

use concord_core::machine::Relevance;
use concord_core::{Guard, Seq};
use concord_engine::Engine;
use concord_wire::control::{LeaseMessage, Membership, Message as _};
use concord_wire::link::{Ack, Data, OP_ACK, OP_DATA};
use concord_wire::rpc::READ_BIT;
use concord_wire::vr::{VrBody, VrMessage};
use concord_wire::{FurtherIds, Kind, Op, Packet, Repr, kind, op};

use crate::quorum::QuorumReplica;
use crate::replica::Replica;
use crate::setup::Phase;

/// The condition under which a packet becomes irrelevant.
enum Use {
    /// Members accept the packet in this epoch (view) alone, and epochs never decrease.
    Epoch(u32),
    /// The packet opens this epoch, or a later one has begun.
    Config(u32),
    /// The packet acknowledges records in this epoch: receivers keep the maximum.
    Ack(u32),
    /// A client's read, and the answer to it.
    Read(Relevance),
    /// A sequenced write: numbers are accepted in order.
    Write(Seq),
    /// There is no rule for it.
    Any,
}

fn use_of(bytes: &[u8]) -> Use {
    match kind(bytes) {
        Ok(Kind::Link) if op(bytes) == OP_DATA => {
            Data::parse(bytes).map_or(Use::Any, |d| Use::Epoch(d.epoch.0))
        }
        Ok(Kind::Link) if op(bytes) == OP_ACK => {
            Ack::parse(bytes).map_or(Use::Any, |a| Use::Ack(a.epoch.0))
        }
        Ok(Kind::Membership) => match Membership::parse(bytes) {
            Ok(Membership::Configure(part)) => Use::Config(part.common().epoch),
            Ok(Membership::Open { epoch, .. }) => Use::Epoch(epoch),
            Ok(_) | Err(_) => Use::Any,
        },
        Ok(Kind::Lease) => match LeaseMessage::parse(bytes) {
            Ok(LeaseMessage::Grant { epoch, .. }) => Use::Epoch(epoch),
            Ok(LeaseMessage::Request { .. } | LeaseMessage::Release { .. }) | Err(_) => Use::Any,
        },
        Ok(Kind::Vr) => VrMessage::parse(bytes).map_or(Use::Any, |m| use_of_view(&m)),
        Ok(Kind::Store) => Packet::parse(bytes).map_or(Use::Any, |p| use_of_request(&p.repr())),
        _ => Use::Any,
    }
}

fn use_of_request(repr: &Repr) -> Use {
    match repr.op {
        Op::Write => Use::Write(repr.seq),
        Op::Read if repr.request.0 & READ_BIT != 0 => {
            let answer = Repr { op: Op::ReadReply, further: FurtherIds::NONE, ..*repr };
            let packet = answer.header(0).to_vec();
            Use::Read(Relevance::AsAnswer { to: repr.client, packet })
        }
        _ => Use::Any,
    }
}

fn use_of_view(message: &VrMessage) -> Use {
    match message.body {
        VrBody::StartViewChange
        | VrBody::DoViewChange { .. }
        | VrBody::StartView { .. }
        | VrBody::Lacks { .. }
        | VrBody::LeaseGrant { .. }
        | VrBody::ReadLease { .. }
        | VrBody::Follow { .. } => Use::Epoch(message.view),
        // These also carry crash vectors.
        VrBody::Suspect
        | VrBody::LeaseRequest { .. }
        | VrBody::LogMismatch { .. }
        | VrBody::Retire { .. }
        | VrBody::Recovery
        | VrBody::RecoveryResponse { .. }
        | VrBody::VotersAre { .. }
        // The answer to a late one carries a later term.
        | VrBody::PreVote { .. }
        | VrBody::PreVoted { .. }
        | VrBody::RequestVote { .. }
        | VrBody::Voted { .. }
        | VrBody::TimeoutNow
        | VrBody::AskLogEnd { .. }
        | VrBody::LogEndIs { .. } => Use::Any,
    }
}

fn stale_if(is_over: bool) -> Relevance {
    if is_over { Relevance::Stale } else { Relevance::Relevant }
}

impl<E: Engine> Replica<E> {
    pub(crate) fn relevance(&self, packet: &[u8]) -> Relevance {
        let (epoch, active) = self.config().map_or((0, 0), |c| (c.epoch, c.switch_id));
        match use_of(packet) {
            Use::Ack(of) if of == epoch && self.phase() == Phase::Open => Relevance::AsNow,
            Use::Epoch(of) | Use::Ack(of) => stale_if(of < epoch),
            Use::Config(of) => stale_if(of <= epoch),
            Use::Write(seq) => {
                let is_taken = self.guards().on(Guard::InOrderWrites) && seq <= self.last_seq();
                stale_if(seq.is_some() && (seq.switch_id.0 < active || is_taken))
            }
            Use::Read(answer) => answer,
            Use::Any => Relevance::Relevant,
        }
    }
}

impl<E: Engine> QuorumReplica<E> {
    pub(crate) fn relevance(&self, packet: &[u8]) -> Relevance {
        let view = self.view().0;
        match use_of(packet) {
            Use::Ack(of) if of == view && self.leads() => Relevance::AsNowButTime,
            // A message of any view may carry new incarnations.
            Use::Epoch(of) | Use::Ack(of)
                if of < view && self.guards().on(Guard::View) && !self.elects() =>
            {
                Relevance::StaleButIncarnations
            }
            Use::Config(of) => stale_if(self.config().is_some_and(|c| of <= c.epoch)),
            Use::Read(answer) => answer,
            Use::Epoch(_) | Use::Ack(_) | Use::Write(_) | Use::Any => Relevance::Relevant,
        }
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use concord_core::{Machine, Now, RequestNumber, SwitchId};
    use concord_engine::Shimmed;
    use concord_engine::memory::Memory;
    use concord_wire::control::{Config, Member, Program, Protocol};
    use concord_wire::{Addr, GroupId};

    use super::*;
    use crate::{Node, ReplicaConfig};

    const ME: Member = Member { node: 1, incarnation: 10, addr: Addr { ip: 1, port: 1 } };
    const SWITCH: Addr = Addr { ip: 1, port: 9 };

    fn configure(epoch: u32) -> vec::Vec<u8> {
        let config = Config {
            group: GroupId::FIRST,
            epoch,
            rack: 1,
            switch_id: 4,
            switch_incarnation: 1,
            switch: SWITCH,
            kind: Protocol::Chain.into(),
            program: Program::Harmonia,
            members: vec![ME],
            joining: vec![],
        };
        let mut bytes = vec![];
        Membership::Configure(config.into()).emit(&mut bytes);
        bytes
    }

    fn request(repr: Repr) -> vec::Vec<u8> {
        let mut bytes = vec![];
        repr.emit(b"", &mut bytes);
        bytes
    }

    #[test]
    fn what_is_of_an_epoch_or_a_switch_that_is_over_is_stale() {
        let setup = ReplicaConfig::new(ME, Addr { ip: 1, port: 8 });
        let mut node = Node::new(Protocol::Chain, setup, Shimmed::new(Memory::new(0)));
        let write = |id| Repr { seq: Seq::new(SwitchId(id), 7), ..Repr::new(Op::Write) };
        let (old, new) = (configure(2), configure(3));
        assert_eq!(node.relevance(&old), Relevance::Relevant);
        assert_eq!(node.relevance(&request(write(3))), Relevance::Relevant);
        node.handle(Now::default(), SWITCH, &mut configure(2), &mut vec![]);
        let told = (node.relevance(&old), node.relevance(&new));
        assert_eq!(told, (Relevance::Stale, Relevance::Relevant));
        assert_eq!(node.relevance(&request(write(3))), Relevance::Stale);
        assert_eq!(node.relevance(&request(write(4))), Relevance::Relevant);
        let read = Repr { request: RequestNumber(READ_BIT | 1), ..Repr::new(Op::Read) };
        let answer = node.relevance(&request(Repr { client: SWITCH, ..read }));
        assert!(matches!(answer, Relevance::AsAnswer { to: SWITCH, .. }), "{answer:?}");
    }
}
