//! Executes the verdicts of programs as an ASIC does: packets leave by ports, multicasts are
//! copied, and recirculated packets wait. In user space this is done here.

use alloc::vec::Vec;

use concord_core::{Instant, Now};
use concord_pisa::{Copies, Metadata, PortSet, Verdict};
use concord_wire::{Addr, Sink};

use crate::faults::Faults;
use crate::ports::PortTable;
use crate::program::{Copied, Ingress, SwitchProgram};
use crate::recirculation::Recirculation;

/// The maximum number of copies of a packet.
const COPIES_MAX: usize = 1 << 16;

concord_core::counters! {
    /// Counts of packets by their fate after the programs.
    pub struct FabricCounters {
        /// Passes of packets beyond their first one (recirculations).
        recirculations,
        /// Packets lost because too many others were being recirculated.
        recirculations_lost,
        /// Packets dropped because they were recirculated more often than their program declares;
        /// must stay 0.
        recirculations_excess,
        /// Copies of packets dropped because no node is configured at their port.
        ports_empty,
    }
}

/// A packet that is to enter a pipeline, except its bytes.
#[derive(Clone, Copy, Debug)]
pub struct Arrival {
    /// The seat of the program that gets the packet.
    pub(crate) seat: usize,
    pub(crate) sender: Addr,
    /// The number of passes that the packet has made, and how often it may still be recirculated.
    pub(crate) passes: u8,
    pub(crate) rounds_left: u8,
    /// The metadata that the previous pass left.
    pub(crate) metadata: Metadata,
}

/// The ports, the recirculation path, and the injected faults.
#[derive(Clone, Debug)]
pub struct Fabric {
    pub(crate) ports: PortTable,
    pub(crate) recirculation: Recirculation,
    pub(crate) faults: Faults,
    pub(crate) counters: FabricCounters,
    /// A buffer for copies that are rewritten.
    buffer: Vec<u8>,
    looks_with_pass: bool,
}

impl Fabric {
    pub(crate) fn new(
        recirculation: Recirculation,
        faults: Faults,
        looks_with_pass: bool,
    ) -> Fabric {
        Fabric {
            ports: PortTable::default(),
            recirculation,
            faults,
            counters: FabricCounters::default(),
            buffer: Vec::new(),
            looks_with_pass,
        }
    }

    /// Whether programs read their registers with each pass.
    #[inline]
    #[must_use]
    pub fn looks_with_pass(&self) -> bool {
        self.looks_with_pass
    }

    /// Runs one packet through a program's pipeline, and executes the verdict.
    #[inline]
    pub fn pass<P: SwitchProgram>(
        &mut self,
        program: &mut P,
        now: Now,
        arrival: Arrival,
        packet: &mut [u8],
        sink: &mut impl Sink,
    ) {
        let Arrival { sender, passes, metadata, .. } = arrival;
        let first = Ingress::first(now, sender, &self.ports);
        match program.process(&Ingress { passes, metadata, ..first }, packet) {
            Verdict::Forward { to, size_bytes } => {
                let packet = packet.get(..size_bytes).unwrap_or(&[]);
                self.faults.sink(now.instant, sink).send(to, packet);
            }
            Verdict::Reply { size_bytes } => {
                let packet = packet.get(..size_bytes).unwrap_or(&[]);
                self.faults.sink(now.instant, sink).send(sender, packet);
            }
            Verdict::Multicast { to, size_bytes } => {
                let packet = packet.get(..size_bytes).unwrap_or(&[]);
                self.cast(program, now.instant, to, packet, sink);
            }
            Verdict::Mirror { to, copy_bytes, metadata, size_bytes } => {
                let copy = packet.get(..copy_bytes).unwrap_or(&[]);
                self.mirror(program, now.instant, to, copy, sink);
                let packet = packet.get(..size_bytes).unwrap_or(&[]);
                self.send_round(now.instant, Arrival { metadata, ..arrival }, packet);
            }
            Verdict::Recirculate { metadata, size_bytes } => {
                let packet = packet.get(..size_bytes).unwrap_or(&[]);
                self.send_round(now.instant, Arrival { metadata, ..arrival }, packet);
            }
            // The program has counted the drop.
            Verdict::Drop(_) => {}
        }
    }

    /// Sends a copy, which egress rewrites.
    fn mirror<P: SwitchProgram>(
        &mut self,
        program: &mut P,
        now: Instant,
        to: Addr,
        copy: &[u8],
        sink: &mut impl Sink,
    ) {
        self.buffer.clear();
        self.buffer.extend_from_slice(copy);
        program.egress(&Copied { index: 0, port: None, to }, &mut self.buffer);
        self.faults.sink(now, sink).send(to, &self.buffer);
    }

    /// Sends a copy of a packet to each member of a multicast.
    fn cast<P: SwitchProgram>(
        &mut self,
        program: &mut P,
        now: Instant,
        to: Copies,
        packet: &[u8],
        sink: &mut impl Sink,
    ) {
        let rewrites = program.rewrites_copies();
        let mut left = match to {
            Copies::Ports(ports) => ports,
            Copies::Group(_) => PortSet::default(),
        };
        for index in 0..COPIES_MAX {
            let (port, to) = match to {
                Copies::Group(group) => (None, program.member(group, index)),
                Copies::Ports(_) => match left.next() {
                    Some(port) => (Some(port), self.ports.addr_of(port)),
                    None => return,
                },
            };
            let Some(to) = to else {
                if port.is_none() {
                    return;
                }
                self.counters.ports_empty += 1;
                continue;
            };
            let mut out = self.faults.sink(now, sink);
            if !rewrites {
                out.send(to, packet);
                continue;
            }
            self.buffer.clear();
            self.buffer.extend_from_slice(packet);
            program.egress(&Copied { index, port, to }, &mut self.buffer);
            out.send(to, &self.buffer);
        }
    }

    /// Recirculates a packet.
    fn send_round(&mut self, now: Instant, arrival: Arrival, packet: &[u8]) {
        let Some(rounds_left) = arrival.rounds_left.checked_sub(1) else {
            self.counters.recirculations_excess += 1;
            return;
        };
        let again = Arrival { passes: arrival.passes + 1, rounds_left, ..arrival };
        if self.recirculation.push(now, again, packet) {
            self.counters.recirculations += 1;
        } else {
            self.counters.recirculations_lost += 1;
        }
    }
}
