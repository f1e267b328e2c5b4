//! Chains of switches that run Algorithm 1 as the paper prints it, whose flaws tests show.

use std::hash::Hash as _;

use concord_switch::netcraq::printed::{PrintedForm, PrintedSwitch, Role, Sent};
use concord_wire::netcraq::{Printed, PrintedOp};
use rustc_hash::FxHasher;

use super::explore::{Answer, Call, Chain, Flight};

/// A packet with its sender. The paper's header does not name the sender: UDP's ports do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Packet {
    /// The header.
    pub header: Printed,
    /// The client, and the number of its call.
    pub caller: (usize, usize),
}

/// An operation on the single key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Does {
    /// Reads.
    Read,
    /// Writes this value, which no other call writes. It gets no answer (hole N10).
    Write(u8),
}

/// A chain of switches. The tail's writes, in order, are the committed ones.
#[derive(Clone, Debug)]
pub struct PrintedChain {
    switches: Vec<PrintedSwitch>,
    by_member: bool,
    committed: Vec<u8>,
}

impl PrintedChain {
    /// A chain of this number of switches.
    #[must_use]
    pub fn new(form: PrintedForm, switches: usize) -> PrintedChain {
        let role = |index| match index {
            0 => Role::Head,
            last if last + 1 == switches => Role::Tail,
            _ => Role::Replica,
        };
        PrintedChain {
            switches: (0..switches).map(|index| PrintedSwitch::new(form, role(index))).collect(),
            by_member: form.by_member,
            committed: Vec::new(),
        }
    }

    /// The switches, for tests that drive the chain by hand.
    pub fn switches(&mut self) -> &mut [PrintedSwitch] {
        &mut self.switches
    }

    fn tail(&self) -> usize {
        self.switches.len() - 1
    }

    /// The number of writes that are committed with a value; `None` if the value is not committed.
    fn rank(&self, value: u8) -> Option<u64> {
        if value == 0 {
            return Some(0);
        }
        self.committed.iter().rposition(|other| *other == value).map(|place| place as u64 + 1)
    }
}

/// The value of a write, whose first byte identifies it.
fn value_of(number: u8) -> [u8; 16] {
    let mut value = [0; 16];
    value[0] = number;
    value
}

impl Chain for PrintedChain {
    type Packet = Packet;
    type Does = Does;

    fn packet(&self, client: usize, number: usize, call: Call<Does>) -> Packet {
        let (op, value) = match call.does {
            Does::Read => (PrintedOp::Read, 0),
            Does::Write(value) => (PrintedOp::Write, value),
        };
        let header = Printed { op, key_id: 0, value: value_of(value) };
        Packet { header, caller: (client, number) }
    }

    fn is_answered(does: Does) -> bool {
        does == Does::Read
    }

    fn comes(&mut self, at: usize, packet: Packet) -> Result<Vec<Flight<Packet>>, String> {
        let sent = self.switches[at].process(packet.header);
        let to = |at: usize, header| Flight::To(at, Packet { header, ..packet });
        Ok(match sent {
            Sent::Dropped | Sent::Consumed => Vec::new(),
            Sent::Tail(header) => vec![to(self.tail(), header)],
            Sent::Onward(header) if self.by_member => vec![to(at + 1, header)],
            Sent::Onward(header) => vec![to(self.tail(), header)],
            Sent::Multicast(header) => {
                self.committed.push(header.value[0]);
                (0..self.switches.len())
                    .filter(|other| *other != at)
                    .map(|o| to(o, header))
                    .collect()
            }
            Sent::Reply(header) => {
                let value = header.value[0];
                let says = format!("{value} from {at}");
                let Some(rank) = self.rank(value) else {
                    return Err(format!("{at} shows {value}, which is not committed"));
                };
                let (client, number) = packet.caller;
                vec![Flight::Answer(Answer { client, number, rank: Some(rank), says })]
            }
        })
    }

    fn resend(&mut self, _: usize) -> Result<Vec<Flight<Packet>>, String> {
        // The paper has no repair.
        Ok(Vec::new())
    }

    fn take_out(&mut self, _: usize, _: u64) -> Result<bool, String> {
        Ok(false)
    }

    fn members(&self) -> usize {
        self.switches.len()
    }

    fn is_settled(&self) -> Result<(), String> {
        let tail = self.switches[self.tail()].value(0)[0];
        for (index, switch) in self.switches.iter().enumerate() {
            let value = switch.value(0)[0];
            if !switch.is_clean(0) {
                return Err(format!("{index} is dirty"));
            }
            if value != tail {
                return Err(format!("{index} has {value}, and the tail {tail}"));
            }
        }
        Ok(())
    }

    fn check(&self) -> Result<(), String> {
        Ok(())
    }

    fn fingerprint(&self, hasher: &mut FxHasher) {
        for switch in &self.switches {
            for cell in switch.cells() {
                cell.hash(hasher);
            }
        }
        self.committed.hash(hasher);
    }
}
