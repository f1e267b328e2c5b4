//! The program for CRAQ (Terrace and Freedman, 2009): reads go to any replica, which itself asks
//! the tail where it has to. All other packets are passed on. It has no register.

use alloc::vec::Vec;

use concord_core::{Guard, Guards, Now};
use concord_pisa::{Report, Verdict};
use concord_wire::control::Config;
use concord_wire::{Addr, Flags, Kind, Op, PacketMut, Reason, Repr, WireError};

use crate::program::{
    Count, Ingress, Injection, Load, LoadError, Refused, Settings, SwitchProgram, Takes,
};
use crate::store::{DropReason, Store};

/// CRAQ's switch program.
#[derive(Clone, Debug)]
pub struct Craq {
    store: Store,
    guards: Guards,
    /// How many reads of a client in a row go to one replica, as a power of two.
    run_bits: u8,
}

impl Craq {
    /// The part that it shares with the other programs for replicas.
    #[must_use]
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// A read goes to any replica, unless it is of all keys: the cursor of one Redis server means
    /// nothing to another, so one reader answers those.
    #[inline]
    fn on_read(&mut self, hdr: &Repr, packet: &mut PacketMut<'_>) -> Result<Addr, DropReason> {
        let routes = self.store.routes.as_ref().ok_or(DropReason::Unconfigured)?;
        if hdr.flags.has(Flags::WILDCARD) && self.guards.on(Guard::OneReader) {
            return self.store.on_read(hdr, packet, Reason::SlowUnaided);
        }
        packet.set_flags(hdr.flags.without(Flags::FAST));
        packet.set_reason(Reason::None);
        self.store.counters.reads_spread += 1;
        Ok(routes.replica(hdr, self.run_bits))
    }
}

impl Load for Craq {
    fn load(settings: &Settings) -> Result<Craq, LoadError> {
        let layout = settings.sections.table.layout;
        layout.check()?;
        let (guards, run_bits) = (settings.guards, layout.run_bits);
        Ok(Craq { store: Store::default(), guards, run_bits })
    }
}

impl SwitchProgram for Craq {
    type Reason = DropReason;

    #[inline]
    fn takes(&self, kind: Kind) -> Takes {
        if kind == Kind::Store { Takes::Data } else { Takes::Nothing }
    }

    fn install(&mut self, _: Now, config: &Config) -> Result<Option<Injection>, Refused> {
        self.store.install(config).map(|_| None)
    }

    fn uninstall(&mut self) {
        self.store.routes = None;
    }

    fn process(&mut self, _: &Ingress<'_>, bytes: &mut [u8]) -> Verdict<DropReason> {
        let mut packet = match PacketMut::parse(bytes) {
            Ok(packet) => packet,
            Err(error) => return self.store.malformed(error),
        };
        let (hdr, size_bytes) = (packet.view().repr(), packet.view().bytes().len());
        let to = match hdr.op {
            Op::Read => self.on_read(&hdr, &mut packet),
            _ => self.store.pass_on(&hdr, &mut packet),
        };
        self.store.verdict(to, size_bytes)
    }

    fn malformed(&mut self, error: WireError) {
        let _: Verdict<_> = self.store.malformed(error);
    }

    fn counts(&self) -> Vec<Count> {
        self.store.counters.each().collect()
    }

    fn describe(&self) -> Report {
        Report::new("craq", Vec::new())
    }
}
