//! The interface between a switch program and its seat.
//!
//! A program has two sides. The data plane is [`SwitchProgram::process`] and
//! [`SwitchProgram::egress`]: one atomic pass of one packet over tables and registers, limited to
//! what an ASIC can do. The control plane is the rest: it runs on the switch's own processor, fills
//! tables, injects packets, and reads registers. It is on no packet's path, and its view of the
//! registers may be a millisecond old.

use alloc::vec::Vec;
use core::fmt;

use concord_core::machine::Deadline;
use concord_core::{Instant, Now};
use concord_pisa::{Metadata, PortId, Report, Verdict};
use concord_wire::control::{Config, Program};
use concord_wire::{Addr, Kind, Sink, WireError};

use crate::fabric::{Arrival, Fabric};
use crate::ports::PortTable;
pub use crate::settings::{LoadError, Settings};

/// The maximum length of a packet that a program's control plane injects, in bytes.
pub const INJECTION_BYTES_MAX: usize = 176;
/// The maximum number of passes of a packet after its first, for every program.
pub const RECIRCULATIONS_MAX: u8 = 16;

/// The context of a packet that enters the pipeline, beside its bytes.
#[derive(Clone, Copy, Debug)]
pub struct Ingress<'a> {
    /// The time of the switch's own monotonic clock.
    pub at: Instant,
    /// A register with the time of day in ms, as the agent last set it.
    pub wall_ms: u64,
    /// The sender of the packet.
    pub sender: Addr,
    /// The number of passes that the packet has made.
    pub passes: u8,
    /// The metadata that the previous pass left; zeroes in the first.
    pub metadata: Metadata,
    /// The addresses that have ports.
    pub ports: &'a PortTable,
}

impl<'a> Ingress<'a> {
    /// The context of a packet's first pass.
    #[must_use]
    #[inline]
    pub fn first(now: Now, sender: Addr, ports: &'a PortTable) -> Ingress<'a> {
        let (at, wall_ms) = (now.instant, now.unix_ms);
        Ingress { at, wall_ms, sender, passes: 0, metadata: Metadata::default(), ports }
    }

    /// The port at which the packet arrived.
    #[must_use]
    pub fn port(&self) -> PortId {
        self.ports.port_of(self.sender)
    }
}

/// One of the copies of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Copied {
    /// The index among the copies, from 0.
    pub index: usize,
    /// The port by which it leaves, if the copies go to ports.
    pub port: Option<PortId>,
    /// The address to which it goes.
    pub to: Addr,
}

/// A packet that a program's control plane sends through its own pipeline.
#[derive(Clone, Copy, Debug)]
pub struct Injection {
    bytes: [u8; INJECTION_BYTES_MAX],
    size_bytes: usize,
}

impl Injection {
    /// A packet to inject; bytes beyond [`INJECTION_BYTES_MAX`] are cut off.
    #[must_use]
    pub fn new(packet: &[u8]) -> Injection {
        let size_bytes = packet.len().min(INJECTION_BYTES_MAX);
        let mut bytes = [0; INJECTION_BYTES_MAX];
        bytes[..size_bytes].copy_from_slice(&packet[..size_bytes]);
        Injection { bytes, size_bytes }
    }

    /// The bytes of the packet.
    pub fn packet(&mut self) -> &mut [u8] {
        &mut self.bytes[..self.size_bytes]
    }
}

/// How a program treats packets of a kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Takes {
    /// They go through its pipeline.
    Data,
    /// They go to its control plane.
    Control,
    /// The program does not take them.
    Nothing,
}

/// A program's request to the controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wants {
    /// Nothing.
    Nothing,
    /// A new switch id: the numbers of this one are nearly exhausted (trap T20).
    SwitchId,
}

/// The program cannot run with a configuration, and was left unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused;

/// A value that describes a program's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gauge {
    /// The name of the gauge.
    pub name: &'static str,
    /// The meaning of the value, for a person.
    pub help: &'static str,
    /// The value.
    pub value: u64,
}

/// Name, help and value of a counter.
pub type Count = (&'static str, &'static str, u64);

/// A program in a seat. A program leaves out the methods that it does not need.
pub trait SwitchProgram {
    /// The reason for dropping a packet; each is counted.
    type Reason: Copy + fmt::Debug;

    /// How it treats packets of `kind`.
    fn takes(&self, kind: Kind) -> Takes;

    /// Fills the tables from a configuration. A new switch id begins with empty registers. The
    /// returned packet goes through the pipeline at once.
    ///
    /// # Errors
    /// [`Refused`] if the program cannot run with it; nothing was changed.
    fn install(&mut self, now: Now, config: &Config) -> Result<Option<Injection>, Refused>;

    /// Empties tables and registers: every packet is dropped from now on.
    fn uninstall(&mut self);

    /// One pass of one packet, which it may rewrite. A recirculated packet may have left under
    /// another switch id: the recirculation path of an ASIC is not emptied with the registers.
    fn process(&mut self, ingress: &Ingress<'_>, packet: &mut [u8]) -> Verdict<Self::Reason>;

    /// The member at an index of a multicast group; `None` after the last one.
    fn member(&self, _group: u16, _index: usize) -> Option<Addr> {
        None
    }

    /// Whether the members of a configuration get ports, so that bitmaps can name them.
    fn uses_ports(&self) -> bool {
        false
    }

    /// Whether [`SwitchProgram::egress`] rewrites copies: making a copy costs time.
    fn rewrites_copies(&self) -> bool {
        false
    }

    /// Rewrites one copy of a packet, at the same length.
    fn egress(&mut self, _copy: &Copied, _packet: &mut [u8]) {}

    /// Counts a datagram that no parser accepts.
    fn malformed(&mut self, _error: WireError) {}

    /// Processes a message to the control plane. The returned packet goes through the pipeline at
    /// once.
    ///
    /// # Errors
    /// [`WireError`] if the message is malformed.
    fn control(&mut self, _now: Now, _packet: &[u8]) -> Result<Option<Injection>, WireError> {
        Err(WireError::Op)
    }

    /// Sends the control plane's messages to other nodes. Called after each message to the control
    /// plane, and after each [`SwitchProgram::upkeep`].
    fn speak(&mut self, _sink: &mut impl Sink) {}

    /// Reads registers, sets the timers that depend on them, and returns what the program requests
    /// from the controller. The reaction is as late as the call: in user space it follows every
    /// pass, elsewhere the driver calls it once a millisecond.
    fn look(&mut self, _now: Instant) -> Wants {
        Wants::Nothing
    }

    /// Performs the tasks that are due, and returns the next packet to inject. Called until it
    /// returns none.
    fn upkeep(&mut self, _now: Instant) -> Option<Injection> {
        None
    }

    /// When [`SwitchProgram::upkeep`] is due, and why.
    fn deadline(&self) -> Deadline {
        Deadline::NONE
    }

    /// Whether the program is in effect, once it has a configuration.
    fn is_ready(&self) -> bool {
        true
    }

    /// The gauges that describe its state.
    fn gauges(&self) -> Vec<Gauge> {
        Vec::new()
    }

    /// The value of one of its gauges; 0 if it has none of that name.
    fn gauge(&self, name: &str) -> u64 {
        self.gauges().iter().find(|gauge| gauge.name == name).map_or(0, |gauge| gauge.value)
    }

    /// Its counters.
    fn counts(&self) -> Vec<Count>;

    /// The resources of an ASIC that it needs.
    fn describe(&self) -> Report;
}

/// A program that can be loaded into a switch.
pub trait Load: SwitchProgram + Sized {
    /// Loads the program with empty tables and registers.
    ///
    /// # Errors
    /// [`LoadError`] if its settings are not valid.
    fn load(settings: &Settings) -> Result<Self, LoadError>;
}

/// One of several programs that a switch can choose from. [`hosted!`](macro@crate::hosted)
/// generates the implementations.
pub trait Host: SwitchProgram + Sized {
    /// Loads the program of that name.
    ///
    /// # Errors
    /// [`LoadError`] if its settings are not valid, or there is no such program.
    fn host(program: Program, settings: &Settings) -> Result<Self, LoadError>;

    /// The name of the program.
    fn program(&self) -> Program;

    /// Runs one packet through the pipeline of the program and out, and lets it read its registers.
    fn pass(
        &mut self,
        fabric: &mut Fabric,
        now: Now,
        arrival: Arrival,
        packet: &mut [u8],
        sink: &mut impl Sink,
    ) -> Wants;
}
