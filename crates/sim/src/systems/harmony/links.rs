//! The links between nodes: each sends one packet at a time, those of the highest priority first.

use std::collections::VecDeque;

use concord_wire::harmony::{HEAD_BYTES, Op, Repr};

/// The number of priority classes.
const CLASSES: usize = 3;

/// A packet that waits for its link.
#[derive(Clone, Debug)]
pub(super) struct Queued {
    pub(super) bytes: Vec<u8>,
    pub(super) is_data: bool,
    class: usize,
}

impl Queued {
    pub(super) fn new(bytes: Vec<u8>) -> Queued {
        let parsed = Repr::parse(&bytes);
        let (class, is_data) =
            parsed.map_or((CLASSES, false), |(p, _)| (usize::from(p.class()), p.op == Op::Data));
        Queued { bytes, is_data, class: class - 1 }
    }
}

/// One direction of a link. It sends one byte per nanosecond.
#[derive(Clone, Debug, Default)]
pub(super) struct Link {
    queues: [VecDeque<Queued>; CLASSES],
    /// The packet that is being sent, which none overtakes.
    sending: Option<Queued>,
    /// The bytes of waiting data with a reservation: now, and the maximum.
    waiting_bytes: usize,
    pub(super) most_bytes: usize,
}

impl Link {
    /// Queues a packet; returns the time that the link takes for it in ns, if the link was free.
    pub(super) fn push(&mut self, packet: Queued) -> Option<u64> {
        if self.sending.is_none() {
            return Some(self.begin(packet));
        }
        self.waiting_bytes += reserved_bytes(&packet);
        self.most_bytes = self.most_bytes.max(self.waiting_bytes);
        self.queues[packet.class].push_back(packet);
        None
    }

    /// Ends the transmission of a packet; returns it, and the time that the link takes for the next
    /// one in ns, if one waits.
    pub(super) fn done(&mut self) -> (Option<Queued>, Option<u64>) {
        let sent = self.sending.take();
        let next = self.queues.iter_mut().find_map(VecDeque::pop_front);
        let next = next.map(|packet| {
            self.waiting_bytes -= reserved_bytes(&packet);
            self.begin(packet)
        });
        (sent, next)
    }

    fn begin(&mut self, packet: Queued) -> u64 {
        let ns = packet.bytes.len() as u64;
        self.sending = Some(packet);
        ns
    }
}

fn reserved_bytes(packet: &Queued) -> usize {
    if packet.is_data && packet.class == 0 { packet.bytes.len() } else { 0 }
}

/// The length of a packet with `data_bytes` of data, in bytes, which is also its time in ns.
pub(super) fn packet_bytes(data_bytes: usize) -> u64 {
    (HEAD_BYTES + data_bytes) as u64
}
