//! NetChain (NSDI 2018, as described by NetCRAQ §II.B.2): chain replication whose packets carry the
//! chain, with reads at the tail. It is the baseline of NetCRAQ's figures.
//!
//! | stage | array | a packet does |
//! |---|---|---|
//! | 0 | `seq` | WRITE: the head counts it up, others compare and set; READ: nothing |
//! | 1 | `value`, two of them | WRITE: sets, READ: reads |

use concord_pisa::{Pass, RegisterArray};
use concord_wire::Addr;
use concord_wire::netchain::{Op, Repr};

/// The width of SEQ.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SeqWidth {
    /// 16 bits, as published.
    Published,
    /// 48 bits.
    Wide,
}

impl SeqWidth {
    const fn mask(self) -> u64 {
        match self {
            SeqWidth::Published => 0xffff,
            SeqWidth::Wide => (1 << 48) - 1,
        }
    }
}

/// A switch of the chain.
#[derive(Clone, Debug)]
pub struct NetChain {
    own: Addr,
    is_head: bool,
    width: SeqWidth,
    seq: RegisterArray<u64>,
    value: [RegisterArray<u64>; 2],
}

impl NetChain {
    /// A switch for `keys` keys (a power of two), with empty registers.
    #[must_use]
    pub fn new(own: Addr, is_head: bool, width: SeqWidth, keys: usize) -> NetChain {
        let value = ["value_0", "value_1"].map(|name| RegisterArray::new(name, 1, keys));
        NetChain { own, is_head, width, seq: RegisterArray::new("seq", 0, keys), value }
    }

    /// For tests: sets the number of a key as if that many writes had been made.
    pub fn begin_at(&mut self, key: u32, seq: u64) {
        self.seq.port().access(&mut Pass::begin(), key, |cell| *cell = seq & self.width.mask());
    }

    /// The sequence number and the value of a key.
    #[must_use]
    pub fn peek(&self, key: u32) -> (u64, u128) {
        let [high, low] = [0, 1].map(|half| u128::from(self.value[half].peek(key)));
        (self.seq.peek(key), high << 64 | low)
    }

    /// One pass of a packet: returns its next destination, if it is not dropped. The last switch of
    /// its chain answers.
    pub fn process(&mut self, packet: &mut Repr) -> Option<Addr> {
        if packet.chain.first() != Some(&self.own) {
            return None;
        }
        let (mut pass, mask) = (Pass::begin(), self.width.mask());
        match packet.op {
            Op::Read => {
                let mut all = 0_u128;
                for array in &mut self.value {
                    let word = array.port().access(&mut pass, packet.key, |cell| *cell);
                    all = all << 64 | u128::from(word);
                }
                packet.value = all.to_be_bytes();
            }
            Op::Write => {
                let (seq, is_head) = (packet.seq & mask, self.is_head);
                let taken = self.seq.port().access(&mut pass, packet.key, |cell| {
                    let number = if is_head { (*cell + 1) & mask } else { seq };
                    let takes = is_head || number > *cell;
                    if takes {
                        *cell = number;
                    }
                    takes.then_some(number)
                });
                packet.seq = taken?;
                let all = u128::from_be_bytes(packet.value);
                for (word, array) in [(all >> 64) as u64, all as u64].iter().zip(&mut self.value) {
                    array.port().access(&mut pass, packet.key, |cell| *cell = *word);
                }
            }
            Op::Reply => return None,
        }
        packet.chain.remove(0);
        let next = packet.chain.first().copied();
        if next.is_none() {
            packet.op = Op::Reply;
        }
        Some(next.unwrap_or(packet.client))
    }
}
