//! A switch program, as the seat knows it.
//!
//! A program has two sides. The data plane is [`SwitchProgram::process`] and
//! [`SwitchProgram::egress`]: one atomic pass of one packet over tables and registers, no more than
//! an ASIC can do. The control plane is the rest: it runs on the switch's own processor, fills
//! tables, injects packets, and reads registers. It is in no packet's path, and what it reads may
//! be a millisecond old.

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

/// Longest packet that a program's control plane injects, in bytes.
pub const INJECTION_BYTES_MAX: usize = 160;
/// Most passes of a packet beside its first, whatever a program says.
pub const RECIRCULATIONS_MAX: u8 = 16;

/// What a program knows of a packet beside its bytes when it enters the pipeline.
#[derive(Clone, Copy, Debug)]
pub struct Ingress<'a> {
    /// The switch's own monotonic clock.
    pub at: Instant,
    /// A register with the time of the day in ms, as the agent set it last.
    pub wall_ms: u64,
    /// Who sent it.
    pub sender: Addr,
    /// How many passes it has behind it.
    pub passes: u8,
    /// What the pass before left; zeroes in the first.
    pub metadata: Metadata,
    /// Which addresses have ports.
    pub ports: &'a PortTable,
}

impl<'a> Ingress<'a> {
    /// A packet's first pass.
    #[must_use]
    #[inline]
    pub fn first(now: Now, sender: Addr, ports: &'a PortTable) -> Ingress<'a> {
        let (at, wall_ms) = (now.instant, now.unix_ms);
        Ingress { at, wall_ms, sender, passes: 0, metadata: Metadata::default(), ports }
    }

    /// The port that it came in by.
    #[must_use]
    pub fn port(&self) -> PortId {
        self.ports.port_of(self.sender)
    }
}

/// Which copy of a packet leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Copied {
    /// Its place among the copies, from 0.
    pub index: usize,
    /// The port it leaves by, if the copies go to ports.
    pub port: Option<PortId>,
    /// Where it goes.
    pub to: Addr,
}

/// A packet that a program's control plane sends through its own pipeline.
#[derive(Clone, Copy, Debug)]
pub struct Injection {
    bytes: [u8; INJECTION_BYTES_MAX],
    size_bytes: usize,
}

impl Injection {
    /// A packet; what is above [`INJECTION_BYTES_MAX`] is cut off.
    #[must_use]
    pub fn new(packet: &[u8]) -> Injection {
        let size_bytes = packet.len().min(INJECTION_BYTES_MAX);
        let mut bytes = [0; INJECTION_BYTES_MAX];
        bytes[..size_bytes].copy_from_slice(&packet[..size_bytes]);
        Injection { bytes, size_bytes }
    }

    /// Its bytes.
    pub fn packet(&mut self) -> &mut [u8] {
        &mut self.bytes[..self.size_bytes]
    }
}

/// What a program does with packets of a kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Takes {
    /// They go through its pipeline.
    Data,
    /// They are for its control plane.
    Control,
    /// They are not its own.
    Nothing,
}

/// What a program wants of the controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wants {
    /// Nothing.
    Nothing,
    /// A new switch id: the numbers of this one run out (trap T20).
    SwitchId,
}

/// A configuration with which a program cannot run. It is left as it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused;

/// A number that says how a program is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gauge {
    /// Its name.
    pub name: &'static str,
    /// What it says, for a person.
    pub help: &'static str,
    /// The value.
    pub value: u64,
}

/// Name, help and value of a counter.
pub type Count = (&'static str, &'static str, u64);

/// A program behind the seat. What a program has no use for it leaves out.
pub trait SwitchProgram {
    /// Why it drops packets; each reason is counted.
    type Reason: Copy + fmt::Debug;

    /// What it does with packets of `kind`.
    fn takes(&self, kind: Kind) -> Takes;

    /// Fills the tables from a configuration. A new switch id begins with empty registers. What is
    /// given back goes through the pipeline at once.
    ///
    /// # Errors
    /// [`Refused`], and nothing was changed.
    fn install(&mut self, now: Now, config: &Config) -> Result<Option<Injection>, Refused>;

    /// Empties tables and registers: every packet is dropped from now on.
    fn uninstall(&mut self);

    /// One pass of one packet, which it may rewrite. One that comes round may have left under
    /// another switch id: an ASIC's way round is not emptied with the registers.
    fn process(&mut self, ingress: &Ingress<'_>, packet: &mut [u8]) -> Verdict<Self::Reason>;

    /// A member of a multicast group by its place; `None` behind the last one.
    fn member(&self, _group: u16, _index: usize) -> Option<Addr> {
        None
    }

    /// Whether the members of a configuration get ports, so that bitmaps can name them.
    fn uses_ports(&self) -> bool {
        false
    }

    /// Whether [`SwitchProgram::egress`] does anything: each copy costs the time to make it.
    fn rewrites_copies(&self) -> bool {
        false
    }

    /// What is different in one copy: rewrites it, at the same length.
    fn egress(&mut self, _copy: &Copied, _packet: &mut [u8]) {}

    /// Counts a datagram that no parser takes.
    fn malformed(&mut self, _error: WireError) {}

    /// A message to the control plane. What is given back goes through the pipeline at once.
    ///
    /// # Errors
    /// [`WireError`] if it is malformed.
    fn control(&mut self, _now: Now, _packet: &[u8]) -> Result<Option<Injection>, WireError> {
        Err(WireError::Op)
    }

    /// Sends what its control plane has to say to other nodes. It follows each message to the
    /// control plane, and each [`SwitchProgram::upkeep`].
    fn speak(&mut self, _sink: &mut impl Sink) {}

    /// Reads registers, sets the timers that follow from them, and says what it wants of the
    /// controller. The later it is called, the later all that is: in user space it follows every
    /// pass, elsewhere the driver calls it once a millisecond.
    fn look(&mut self, _now: Instant) -> Wants {
        Wants::Nothing
    }

    /// Does what is due, and gives the next packet to inject. It is called until there is none.
    fn upkeep(&mut self, _now: Instant) -> Option<Injection> {
        None
    }

    /// When [`SwitchProgram::upkeep`] is due, and why.
    fn deadline(&self) -> Deadline {
        Deadline::NONE
    }

    /// Whether it does what it is there for, once it has a configuration.
    fn is_ready(&self) -> bool {
        true
    }

    /// How it is.
    fn gauges(&self) -> Vec<Gauge> {
        Vec::new()
    }

    /// One of its gauges; 0 if it has none of that name.
    fn gauge(&self, name: &str) -> u64 {
        self.gauges().iter().find(|gauge| gauge.name == name).map_or(0, |gauge| gauge.value)
    }

    /// What it counted.
    fn counts(&self) -> Vec<Count>;

    /// What it takes of an ASIC.
    fn describe(&self) -> Report;
}

/// A program that can be loaded into a switch.
pub trait Load: SwitchProgram + Sized {
    /// The program with empty tables and registers.
    ///
    /// # Errors
    /// [`LoadError`] if what it is told cannot be.
    fn load(settings: &Settings) -> Result<Self, LoadError>;
}

/// One of several programs: what a switch has to choose from. [`hosted!`](macro@crate::hosted)
/// makes them.
pub trait Host: SwitchProgram + Sized {
    /// Loads the program of that name.
    ///
    /// # Errors
    /// [`LoadError`] if what it is told cannot be, or there is no such program.
    fn host(program: Program, settings: &Settings) -> Result<Self, LoadError>;

    /// Which program it is.
    fn program(&self) -> Program;

    /// One packet through the pipeline of the program inside and out, and its look after that.
    fn pass(
        &mut self,
        fabric: &mut Fabric,
        now: Now,
        arrival: Arrival,
        packet: &mut [u8],
        sink: &mut impl Sink,
    ) -> Wants;
}
