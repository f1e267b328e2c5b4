//! NOPaxos with Harmonia (Harmonia §8.3): sequencer and dirty set in one pass. The number that
//! orders a write is also the one in its slot (trap T23). A write that finds no slot is not
//! dropped, since all replicas would miss its number: it goes on as a no-op.

use alloc::vec::Vec;

use concord_core::machine::Deadline;
use concord_core::{Instant, Now};
use concord_pisa::{Copies, Report, Verdict};
use concord_wire::control::Config;
use concord_wire::{Addr, Kind, Op, PacketMut, WireError};

use crate::harmonia::{Harmonia, OnFull, Way};
use crate::nopaxos::{REPLICAS, Stamper, sequencer_takes};
use crate::program::{
    Count, Gauge, Ingress, Injection, Load, LoadError, Refused, Settings, SwitchProgram, Takes,
    Wants,
};
use crate::store::DropReason;

/// The switch program of NOPaxos with Harmonia.
#[derive(Clone, Debug)]
pub struct NoPaxosHarmonia {
    harmonia: Harmonia,
    stamper: Stamper,
}

impl NoPaxosHarmonia {
    /// The dirty set, for its registers.
    #[must_use]
    pub fn harmonia(&self) -> &Harmonia {
        &self.harmonia
    }

    fn on_write(
        &mut self,
        ingress: &Ingress<'_>,
        packet: &mut PacketMut<'_>,
    ) -> Result<Way, DropReason> {
        if self.harmonia.store.routes.is_none() {
            return Err(DropReason::Unconfigured);
        }
        // A recirculated write is already stamped.
        if ingress.passes == 0 {
            self.stamper.stamp(ingress.wall_ms, packet)?;
        }
        let hdr = packet.view().repr();
        if !hdr.further.is_empty() {
            return self.harmonia.several(ingress, &hdr, packet, OnFull::Noop);
        }
        self.harmonia.on_write(&hdr, packet, OnFull::Noop).map(Way::To)
    }
}

impl Load for NoPaxosHarmonia {
    fn load(settings: &Settings) -> Result<NoPaxosHarmonia, LoadError> {
        let harmonia = Harmonia::load(settings)?;
        Ok(NoPaxosHarmonia { harmonia, stamper: Stamper::default() })
    }
}

impl SwitchProgram for NoPaxosHarmonia {
    type Reason = DropReason;

    #[inline]
    fn takes(&self, kind: Kind) -> Takes {
        sequencer_takes(kind)
    }

    fn install(&mut self, now: Now, config: &Config) -> Result<Option<Injection>, Refused> {
        let injected = self.harmonia.install(now, config)?;
        self.stamper.begin(config);
        Ok(injected)
    }

    fn uninstall(&mut self) {
        self.harmonia.uninstall();
    }

    fn process(&mut self, ingress: &Ingress<'_>, bytes: &mut [u8]) -> Verdict<DropReason> {
        let mut packet = match PacketMut::parse(bytes) {
            Ok(packet) => packet,
            Err(error) => return self.harmonia.store.malformed(error),
        };
        let size_bytes = packet.view().bytes().len();
        if packet.view().op() == Op::Write {
            return match self.on_write(ingress, &mut packet) {
                Ok(Way::To(_)) => Verdict::Multicast { to: Copies::Group(REPLICAS), size_bytes },
                Ok(Way::Round(metadata)) => Verdict::Recirculate { metadata, size_bytes },
                Err(reason) => self.harmonia.store.drop(reason),
            };
        }
        let hdr = packet.view().repr();
        if !hdr.further.is_empty() {
            return match self.harmonia.several(ingress, &hdr, &mut packet, OnFull::Noop) {
                Ok(Way::To(to)) => Verdict::Forward { to, size_bytes },
                Ok(Way::Round(metadata)) => Verdict::Recirculate { metadata, size_bytes },
                Err(reason) => self.harmonia.store.drop(reason),
            };
        }
        let to = self.harmonia.other(&hdr, &mut packet);
        self.harmonia.store.verdict(to, size_bytes)
    }

    #[inline]
    fn member(&self, _group: u16, index: usize) -> Option<Addr> {
        self.harmonia.store.replica_at(index)
    }

    fn malformed(&mut self, error: WireError) {
        self.harmonia.malformed(error);
    }

    /// A leader's first stamp lets writes through: then the switch sends a no-op.
    fn control(&mut self, now: Now, packet: &[u8]) -> Result<Option<Injection>, WireError> {
        let begins = self.stamper.on_stamp(now, packet)? && self.harmonia.store.routes.is_some();
        Ok(begins.then(|| self.harmonia.noop(now.instant)))
    }

    #[inline]
    fn look(&mut self, now: Instant) -> Wants {
        self.harmonia.look(now)
    }

    fn upkeep(&mut self, now: Instant) -> Option<Injection> {
        self.harmonia.upkeep(now)
    }

    fn deadline(&self) -> Deadline {
        self.harmonia.deadline()
    }

    fn is_ready(&self) -> bool {
        self.harmonia.is_ready()
    }

    fn gauges(&self) -> Vec<Gauge> {
        self.harmonia.gauges()
    }

    fn counts(&self) -> Vec<Count> {
        self.harmonia.counts()
    }

    fn describe(&self) -> Report {
        let program = "nopaxos+harmonia";
        Report { program: program.into(), multicast_groups: 1, ..self.harmonia.describe() }
    }
}
