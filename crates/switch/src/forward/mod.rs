//! Plain forwarding: writes go to the node that orders them, reads to the node that answers them,
//! or to the one that their client chose, and replies to their clients. It has no register.

use alloc::vec::Vec;

use concord_core::Now;
use concord_pisa::{Report, Verdict};
use concord_wire::control::Config;
use concord_wire::{Addr, Flags, Kind, Op, PacketMut, Reason, Repr, WireError};

use crate::program::{
    Count, Ingress, Injection, Load, LoadError, Refused, Settings, SwitchProgram, Takes,
};
use crate::store::{DropReason, Store};

/// The forwarding program.
#[derive(Clone, Debug, Default)]
pub struct Forward {
    store: Store,
}

impl Forward {
    /// The part that it shares with the other programs for replicas.
    #[must_use]
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// The member that the client chose for a read (follower leases), if it still is one.
    #[inline]
    fn chosen(&self, hdr: &Repr) -> Option<Addr> {
        if hdr.op != Op::Read || !hdr.flags.has(Flags::CHOSEN) {
            return None;
        }
        let routes = self.store.routes.as_ref()?;
        routes.replicas.iter().find(|replica| replica.0 == hdr.node.0).map(|replica| replica.1)
    }
}

impl Load for Forward {
    fn load(_: &Settings) -> Result<Forward, LoadError> {
        Ok(Forward::default())
    }
}

impl SwitchProgram for Forward {
    type Reason = DropReason;

    #[inline]
    fn takes(&self, kind: Kind) -> Takes {
        if kind == Kind::Store { Takes::Data } else { Takes::Nothing }
    }

    fn install(&mut self, _: Now, config: &Config) -> Result<Option<Injection>, Refused> {
        self.store.install(config).map(|_| None)
    }

    fn uninstall(&mut self) {
        self.store.routes = None;
    }

    fn process(&mut self, _: &Ingress<'_>, bytes: &mut [u8]) -> Verdict<DropReason> {
        let mut packet = match PacketMut::parse(bytes) {
            Ok(packet) => packet,
            Err(error) => return self.store.malformed(error),
        };
        let (hdr, size_bytes) = (packet.view().repr(), packet.view().bytes().len());
        let to = match self.chosen(&hdr) {
            Some(to) => {
                packet.set_reason(Reason::None);
                self.store.counters.reads_spread += 1;
                Ok(to)
            }
            None => self.store.pass_on(&hdr, &mut packet),
        };
        self.store.verdict(to, size_bytes)
    }

    fn malformed(&mut self, error: WireError) {
        let _: Verdict<_> = self.store.malformed(error);
    }

    fn counts(&self) -> Vec<Count> {
        self.store.counters.each().collect()
    }

    fn describe(&self) -> Report {
        Report::new("forward", Vec::new())
    }
}

#[cfg(test)]
mod tests {
    use concord_core::NodeId;
    use concord_wire::control::{GroupKind, Member, Program, Protocol};
    use concord_wire::{GroupId, Packet};

    use super::*;

    fn addr(node: u16) -> Addr {
        Addr { ip: 1, port: 7_000 + node }
    }

    fn of_three() -> Forward {
        let member = |node| Member { node, incarnation: 1, addr: addr(node) };
        let config = Config {
            epoch: 1,
            group: GroupId::FIRST,
            rack: 1,
            switch_id: 1,
            switch_incarnation: 1,
            switch: addr(0),
            kind: GroupKind::Replicas(Protocol::Raft),
            program: Program::Forward,
            members: [1, 2, 3].map(member).to_vec(),
            joining: Vec::new(),
        };
        let mut program = Forward::default();
        program.store.install(&config).unwrap();
        program
    }

    /// The destination of a packet, and the reason that it carries.
    fn sent(program: &mut Forward, repr: &Repr) -> (Option<Addr>, Reason) {
        let mut bytes = Vec::new();
        repr.emit(b"", &mut bytes);
        let mut packet = PacketMut::parse(&mut bytes).unwrap();
        let to = match program.chosen(repr) {
            Some(to) => Some(to),
            None => program.store.pass_on(repr, &mut packet).ok(),
        };
        (to, Packet::parse(&bytes).unwrap().repr().reason)
    }

    /// A read goes to the member that its client chose; all other requests go to the leader.
    #[test]
    fn chosen_member_reads_else_the_leader() {
        let mut program = of_three();
        let read = |node| Repr { flags: Flags::CHOSEN, node: NodeId(node), ..Repr::new(Op::Read) };
        assert_eq!(sent(&mut program, &read(3)), (Some(addr(3)), Reason::None));
        let leader = (Some(addr(1)), Reason::SlowUnaided);
        assert_eq!(sent(&mut program, &read(9)), leader, "it is no member");
        let unchosen = Repr { node: NodeId(3), ..Repr::new(Op::Read) };
        assert_eq!(sent(&mut program, &unchosen), leader);
        let write = Repr { op: Op::Write, ..read(3) };
        assert_eq!(sent(&mut program, &write).0, Some(addr(1)));
    }
}
