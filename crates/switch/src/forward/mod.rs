//! Plain forwarding: writes to who orders them, reads to who answers them, replies to their clients. No
//! register at all.

use alloc::vec::Vec;

use concord_core::Now;
use concord_pisa::{Report, Verdict};
use concord_wire::control::Config;
use concord_wire::{Kind, PacketMut, WireError};

use crate::program::{
    Count, Ingress, Injection, Load, LoadError, Refused, Settings, SwitchProgram, Takes,
};
use crate::store::{DropReason, Store};

/// The program.
#[derive(Clone, Debug, Default)]
pub struct Forward {
    store: Store,
}

impl Forward {
    /// What it has in common with the other programs for replicas.
    #[must_use]
    pub fn store(&self) -> &Store {
        &self.store
    }
}

impl Load for Forward {
    fn load(_: &Settings) -> Result<Forward, LoadError> {
        Ok(Forward::default())
    }
}

impl SwitchProgram for Forward {
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
        let to = self.store.pass_on(&hdr, &mut packet);
        self.store.verdict(to, size_bytes)
    }

    fn malformed(&mut self, error: WireError) {
        let _: Verdict<_> = self.store.malformed(error);
    }

    fn counts(&self) -> Vec<Count> {
        self.store.counters.each().collect()
    }

    fn describe(&self) -> Report {
        Report::new("forward", Vec::new())
    }
}
