//! NOPaxos' sequencer (Li et al., OSDI 2016; Harmonia §8.3): every write gets the next number and
//! the log's time, and goes to all replicas. Its only register array is `seq`.
//!
//! Switch id and session number are one number, and so are their counters (trap T23).

use alloc::vec::Vec;

use concord_core::{Epoch, Instant, LogClock, Now, Seq, SwitchId};
use concord_pisa::{Copies, Pass, RegisterArray, Report, Verdict};
use concord_wire::control::Config;
use concord_wire::nopaxos::Stamp;
use concord_wire::{Addr, Kind, Op, PacketMut, WireError};

use crate::harmonia::{Layout, next_number, noop, wants};
use crate::program::{
    Count, Gauge, Ingress, Injection, Load, LoadError, Refused, Settings, SwitchProgram, Takes,
    Wants,
};
use crate::store::{DropReason, Store};

/// The multicast group of all replicas.
pub(crate) const REPLICAS: u16 = 0;

/// The stamp of a sequencer on writes, which its leader provides.
#[derive(Clone, Debug, Default)]
pub(crate) struct Stamper {
    /// The switch's own id, to which the stamp belongs.
    id: SwitchId,
    /// The log's time; without it writes are dropped.
    clock: LogClock,
    /// The view of the leader's newest stamp, and whether its data exceeds the memory limit.
    stamped_in: Epoch,
    memory_full: bool,
    /// Whether a disk is full.
    disk_full: bool,
}

impl Stamper {
    /// Takes a leader's stamp, and returns whether it is the first. The time never falls: if the
    /// leader is ahead, the switch follows.
    pub(crate) fn on_stamp(&mut self, now: Now, packet: &[u8]) -> Result<bool, WireError> {
        let Stamp { view, now_ms, memory_full, disk_full, .. } = Stamp::parse(packet)?;
        if view < self.stamped_in {
            return Ok(false);
        }
        self.stamped_in = view;
        (self.memory_full, self.disk_full) = (memory_full, disk_full);
        let is_first = self.clock.is_unset();
        if is_first || now_ms > self.clock.read(now.unix_ms) {
            self.clock.note(now_ms, now.unix_ms);
        }
        Ok(is_first)
    }

    /// Installs a configuration. Stamps under another id, or in the views of a group that was since
    /// founded anew, no longer count: the log's time may be far behind the one that was stamped
    /// then.
    pub(crate) fn begin(&mut self, config: &Config) {
        if config.switch_id != self.id.0 {
            *self = Stamper { id: SwitchId(config.switch_id), ..Stamper::default() };
        }
        let view = Epoch(config.epoch);
        if view < self.stamped_in {
            self.stamped_in = view;
            (self.memory_full, self.disk_full) = (false, false);
        }
    }

    /// Stamps a write with the log's time of its arrival, from the leader's stamp and the switch's
    /// own clock.
    #[inline]
    pub(crate) fn stamp(&self, wall_ms: u64, write: &mut PacketMut<'_>) -> Result<(), DropReason> {
        if self.clock.is_unset() {
            return Err(DropReason::Unstamped);
        }
        write.set_time_ms(self.clock.read(wall_ms));
        write.set_full(self.memory_full, self.disk_full);
        Ok(())
    }
}

/// NOPaxos' switch program.
#[derive(Clone, Debug)]
pub struct NoPaxos {
    addr: Addr,
    layout: Layout,
    store: Store,
    stamper: Stamper,
    /// The last number given out.
    seq: RegisterArray<u32>,
}

impl NoPaxos {
    /// The part that it shares with the other programs for replicas.
    #[must_use]
    pub fn store(&self) -> &Store {
        &self.store
    }

    fn on_write(&mut self, wall_ms: u64, packet: &mut PacketMut<'_>) -> Result<(), DropReason> {
        let routes = self.store.routes.as_ref().ok_or(DropReason::Unconfigured)?;
        self.stamper.stamp(wall_ms, packet)?;
        let mut pass = Pass::begin();
        let counter = next_number(self.seq.port(), &mut pass, self.layout.counter_max());
        packet.set_seq(Seq::new(routes.switch_id, counter.ok_or(DropReason::SeqExhausted)?));
        self.store.counters.writes_unaided += 1;
        Ok(())
    }
}

impl Load for NoPaxos {
    fn load(settings: &Settings) -> Result<NoPaxos, LoadError> {
        let layout = settings.sections.table.layout;
        layout.check()?;
        Ok(NoPaxos {
            addr: settings.addr,
            layout,
            store: Store::default(),
            stamper: Stamper::default(),
            seq: RegisterArray::new("seq", 0, 1),
        })
    }
}

impl SwitchProgram for NoPaxos {
    type Reason = DropReason;

    #[inline]
    fn takes(&self, kind: Kind) -> Takes {
        sequencer_takes(kind)
    }

    fn install(&mut self, _: Now, config: &Config) -> Result<Option<Injection>, Refused> {
        if self.store.install(config)? {
            self.seq.reset();
        }
        self.stamper.begin(config);
        Ok(None)
    }

    fn uninstall(&mut self) {
        self.store.routes = None;
        self.seq.reset();
    }

    fn process(&mut self, ingress: &Ingress<'_>, bytes: &mut [u8]) -> Verdict<DropReason> {
        let mut packet = match PacketMut::parse(bytes) {
            Ok(packet) => packet,
            Err(error) => return self.store.malformed(error),
        };
        let size_bytes = packet.view().bytes().len();
        if packet.view().op() == Op::Write {
            return match self.on_write(ingress.wall_ms, &mut packet) {
                Ok(()) => Verdict::Multicast { to: Copies::Group(REPLICAS), size_bytes },
                Err(reason) => self.store.drop(reason),
            };
        }
        let hdr = packet.view().repr();
        let to = self.store.pass_on(&hdr, &mut packet);
        self.store.verdict(to, size_bytes)
    }

    #[inline]
    fn member(&self, _group: u16, index: usize) -> Option<Addr> {
        self.store.replica_at(index)
    }

    fn malformed(&mut self, error: WireError) {
        let _: Verdict<_> = self.store.malformed(error);
    }

    /// A leader's first stamp lets writes through: then the switch sends a no-op.
    fn control(&mut self, now: Now, packet: &[u8]) -> Result<Option<Injection>, WireError> {
        let begins = self.stamper.on_stamp(now, packet)? && self.store.routes.is_some();
        self.store.counters.noops_sent += u64::from(begins);
        Ok(begins.then(|| noop(self.addr)))
    }

    #[inline]
    fn look(&mut self, _: Instant) -> Wants {
        wants(&self.seq, &self.layout)
    }

    fn gauges(&self) -> Vec<Gauge> {
        let help = "The last sequence number given out.";
        alloc::vec![Gauge { name: "sequence", help, value: self.seq.peek(0).into() }]
    }

    fn counts(&self) -> Vec<Count> {
        self.store.counters.each().collect()
    }

    fn describe(&self) -> Report {
        Report { multicast_groups: 1, ..Report::new("nopaxos", alloc::vec![self.seq.report()]) }
    }
}

/// Writes go through the pipeline, stamps to the control plane.
#[inline]
pub(crate) fn sequencer_takes(kind: Kind) -> Takes {
    match kind {
        Kind::Store => Takes::Data,
        Kind::NoPaxos => Takes::Control,
        _ => Takes::Nothing,
    }
}
