//! A machine of one group: what is for others does not reach it, and what it sends is of its group.

use core::ops::{Deref, DerefMut};

use concord_core::addr::Patch;
use concord_core::machine::{Deadline, Persist, Relevance};
use concord_core::{Addr, Machine, Now, Sink};

use crate::GroupId;
use crate::header::{Kind, at, group, is_of_other_group, kind};

concord_core::counters! {
    /// The counters of packets that were dropped before they reached the machine.
    pub struct OfGroupCounters {
        /// Packets dropped because they belong to another group than this node.
        other_group,
    }
}

/// A machine with the group that it is in. It sends as if it was in the first: packets are made so.
/// It may be a client of a chain of switches, which is a group of its own.
#[derive(Clone, Debug)]
pub struct OfGroup<M> {
    group: GroupId,
    /// The chain whose client it is: packets of these kinds name that group themselves.
    chain: Option<GroupId>,
    machine: M,
    count: OfGroupCounters,
}

impl<M> OfGroup<M> {
    /// `machine`, in `group`.
    pub fn new(group: GroupId, machine: M) -> OfGroup<M> {
        OfGroup { group, chain: None, machine, count: OfGroupCounters::default() }
    }

    /// The same, which is a client of the chain with this group.
    #[must_use]
    pub fn with_chain(self, chain: Option<GroupId>) -> OfGroup<M> {
        OfGroup { chain, ..self }
    }

    fn is_of_other(&self, packet: &[u8]) -> bool {
        let is_chains = is_of_chain(packet) && self.chain == Some(group(packet));
        is_of_other_group(packet, self.group) && !is_chains
    }

    /// The machine, and what it sends into: for inputs of its own.
    pub fn input<'a, S: Sink>(&'a mut self, sink: &'a mut S) -> (&'a mut M, InGroup<'a, S>) {
        (&mut self.machine, InGroup { group: self.group, sink })
    }

    /// The counters of packets that did not reach the machine.
    pub fn of_group_counters(&self) -> &OfGroupCounters {
        &self.count
    }
}

impl<M> Deref for OfGroup<M> {
    type Target = M;

    fn deref(&self) -> &M {
        &self.machine
    }
}

impl<M> DerefMut for OfGroup<M> {
    fn deref_mut(&mut self) -> &mut M {
        &mut self.machine
    }
}

impl<M: Machine> Machine for OfGroup<M> {
    type Persist = M::Persist;

    #[inline]
    fn handle(&mut self, now: Now, from: Addr, packet: &mut [u8], sink: &mut impl Sink) {
        if self.is_of_other(packet) {
            self.count.other_group += 1;
            return;
        }
        let (machine, mut sink) = self.input(sink);
        machine.handle(now, from, packet, &mut sink);
    }

    fn tick(&mut self, now: Now, sink: &mut impl Sink) {
        let (machine, mut sink) = self.input(sink);
        machine.tick(now, &mut sink);
    }

    fn deadline(&self) -> Deadline {
        self.machine.deadline()
    }

    fn flush(&mut self, now: Now, sink: &mut impl Sink) {
        let (machine, mut sink) = self.input(sink);
        machine.flush(now, &mut sink);
    }

    fn poll_persist(&mut self) -> Option<Persist<M::Persist>> {
        self.machine.poll_persist()
    }

    fn persisted(&mut self, now: Now, number: u64, sink: &mut impl Sink) {
        let (machine, mut sink) = self.input(sink);
        machine.persisted(now, number, &mut sink);
    }

    fn relevance(&self, packet: &[u8]) -> Relevance {
        if self.is_of_other(packet) {
            return Relevance::Stale;
        }
        self.machine.relevance(packet)
    }
}

/// Whether a packet is to a chain's switches, or from them.
fn is_of_chain(packet: &[u8]) -> bool {
    matches!(kind(packet), Ok(Kind::NetCraq | Kind::Chain))
}

/// A sink that says of each packet which group it is of.
#[derive(Debug)]
pub struct InGroup<'a, S> {
    group: GroupId,
    sink: &'a mut S,
}

impl<S: Sink> Sink for InGroup<'_, S> {
    #[inline]
    fn send(&mut self, to: Addr, packet: &[u8]) {
        // Packets are made in the first group, but those to a chain.
        if self.group == GroupId::FIRST || is_of_chain(packet) {
            return self.sink.send(to, packet);
        }
        let patch = Patch { at: at::GROUP.start, bytes: self.group.0.to_be_bytes() };
        self.sink.send_patched(to, packet, patch);
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec;
    use alloc::vec::Vec;

    use concord_core::Nothing;

    use super::*;
    use crate::{Header, header};

    /// Answers with a packet of its own whatever is done with it.
    #[derive(Default)]
    struct Talker {
        ops: Vec<u8>,
        entries: u64,
    }

    impl Talker {
        fn say(&mut self, sink: &mut impl Sink) {
            self.entries += 1;
            sink.send(Addr::default(), &Header::new(Kind::Link, 7).bytes(16));
        }
    }

    impl Machine for Talker {
        type Persist = Nothing;

        fn handle(&mut self, _now: Now, _from: Addr, packet: &mut [u8], sink: &mut impl Sink) {
            self.ops.push(header::op(packet));
            self.say(sink);
        }

        fn tick(&mut self, _now: Now, sink: &mut impl Sink) {
            self.say(sink);
        }

        fn deadline(&self) -> Deadline {
            Deadline::NONE
        }

        fn flush(&mut self, _now: Now, sink: &mut impl Sink) {
            self.say(sink);
        }

        fn persisted(&mut self, _now: Now, _number: u64, sink: &mut impl Sink) {
            self.say(sink);
        }
    }

    #[test]
    fn a_client_of_a_chain_hears_that_too_and_speaks_in_it() {
        let (own, chain) = (GroupId(2), GroupId(7));
        let mut node = OfGroup::new(own, Talker::default()).with_chain(Some(chain));
        let (now, from, mut out) = (Now::default(), Addr::default(), vec![]);
        let of = |group, kind| Header { group, ..Header::new(kind, 1) }.bytes(16);
        node.handle(now, from, &mut of(chain, Kind::NetCraq), &mut out);
        node.handle(now, from, &mut of(chain, Kind::Link), &mut out);
        node.handle(now, from, &mut of(GroupId(8), Kind::Chain), &mut out);
        assert_eq!((out.len(), node.of_group_counters().other_group), (1, 2));
        let (_, mut sink) = node.input(&mut out);
        sink.send(from, &of(chain, Kind::Chain));
        assert_eq!(header::group(&out[1].1), chain);
        assert_eq!(header::group(&out[0].1), own);
    }

    #[test]
    fn a_node_hears_of_its_own_group_alone_and_speaks_in_it() {
        for own in [GroupId::FIRST, GroupId(0x0103)] {
            let mut node = OfGroup::new(own, Talker::default());
            let (now, from, mut out) = (Now::default(), Addr::default(), vec![]);
            // Of another group, of its own, and of nobody's making.
            let of = |group, op| Header { group, ..Header::new(Kind::Link, op) }.bytes(16);
            node.handle(now, from, &mut of(GroupId(4), 1), &mut out);
            assert_eq!((out.len(), node.of_group_counters().other_group), (0, 1));
            node.handle(now, from, &mut of(own, 3), &mut out);
            node.handle(now, from, &mut b"this is no packet of ours".to_vec(), &mut out);
            node.tick(now, &mut out);
            node.flush(now, &mut out);
            node.persisted(now, 1, &mut out);
            let (machine, mut sink) = node.input(&mut out);
            machine.say(&mut sink);
            assert_eq!(node.ops, [3, b' '], "what is malformed the machine counts itself");
            assert_eq!((node.entries, out.len()), (6, 6));
            assert!(out.iter().all(|(_, bytes)| header::group(bytes) == own), "{own:?}");
        }
    }
}
