//! Chains of NetChain's switches: the baseline, with tests of its flaws.

use std::hash::Hash as _;

use concord_switch::netchain::{NetChain, SeqWidth};
use concord_wire::Addr;
use concord_wire::netchain::{Op, Repr};
use rustc_hash::FxHasher;

use super::explore::{Answer, Call, Chain, Flight};

/// An operation on the single key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Does {
    /// Reads, at the tail.
    Read,
    /// Writes this value, which no other call writes.
    Write(u8),
}

/// A chain of switches.
#[derive(Clone, Debug)]
pub struct NetChainChain {
    switches: Vec<NetChain>,
    /// The values that the tail has committed, in order.
    committed: Vec<u8>,
}

fn addr_of(index: usize) -> Addr {
    Addr { ip: 10, port: 1 + index as u16 }
}

/// The address of a client, which identifies its call.
fn client_of(client: usize, number: usize) -> Addr {
    Addr { ip: 20 + client as u32, port: 1 + number as u16 }
}

impl NetChainChain {
    /// A chain of this number of switches, whose key has had `writes` writes.
    #[must_use]
    pub fn new(switches: usize, width: SeqWidth, writes: u64) -> NetChainChain {
        let new = |index| {
            let mut switch = NetChain::new(addr_of(index), index == 0, width, 1);
            switch.begin_at(0, writes);
            switch
        };
        NetChainChain { switches: (0..switches).map(new).collect(), committed: Vec::new() }
    }

    fn value(&self, index: usize) -> u8 {
        self.switches[index].peek(0).1.to_be_bytes()[0]
    }
}

impl Chain for NetChainChain {
    type Packet = Repr;
    type Does = Does;

    fn packet(&self, client: usize, number: usize, call: Call<Does>) -> Repr {
        let count = self.switches.len();
        let (op, first, said) = match call.does {
            Does::Read => (Op::Read, count - 1, 0),
            Does::Write(value) => (Op::Write, 0, value),
        };
        let mut value = [0; 16];
        value[0] = said;
        let chain = (first..count).map(addr_of).collect();
        Repr { op, key: 0, seq: 0, value, chain, client: client_of(client, number) }
    }

    fn is_answered(_: Does) -> bool {
        true
    }

    fn comes(&mut self, at: usize, mut packet: Repr) -> Result<Vec<Flight<Repr>>, String> {
        let (tail, was) = (self.switches.len() - 1, self.switches[at].peek(0));
        let to = self.switches[at].process(&mut packet);
        if at == tail && self.switches[at].peek(0) != was {
            self.committed.push(packet.value[0]);
        }
        let Some(to) = to else { return Ok(Vec::new()) };
        if to.ip == 10 {
            return Ok(vec![Flight::To(usize::from(to.port - 1), packet)]);
        }
        let value = packet.value[0];
        let rank = self.committed.iter().rposition(|other| *other == value);
        let rank = match (value, rank) {
            (0, _) => 0,
            (_, Some(place)) => place as u64 + 1,
            (_, None) => return Err(format!("{at} shows {value}, which is not committed")),
        };
        let (client, number) = ((to.ip - 20) as usize, usize::from(to.port - 1));
        let says = format!("{value} from {at}");
        Ok(vec![Flight::Answer(Answer { client, number, rank: Some(rank), says })])
    }

    fn resend(&mut self, _: usize) -> Result<Vec<Flight<Repr>>, String> {
        Ok(Vec::new())
    }

    fn take_out(&mut self, _: usize, _: u64) -> Result<bool, String> {
        Ok(false)
    }

    fn members(&self) -> usize {
        self.switches.len()
    }

    fn is_settled(&self) -> Result<(), String> {
        Ok(())
    }

    /// Checks that each value is committed only once.
    fn check(&self) -> Result<(), String> {
        let mut sorted = self.committed.clone();
        sorted.sort_unstable();
        match sorted.windows(2).find(|pair| pair[0] == pair[1]) {
            Some(pair) => Err(format!("{} was written twice", pair[0])),
            None => Ok(()),
        }
    }

    fn fingerprint(&self, hasher: &mut FxHasher) {
        for index in 0..self.switches.len() {
            (self.switches[index].peek(0).0, self.value(index)).hash(hasher);
        }
        self.committed.hash(hasher);
    }
}
