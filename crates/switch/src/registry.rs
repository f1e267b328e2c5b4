//! The registry of programs that a switch can run, one a line.

use concord_core::SwitchId;

use crate::concordia::Concordia;
use crate::craq::Craq;
use crate::falcon::Falcon;
use crate::flair::Flair;
use crate::forward::Forward;
use crate::harmonia::{Harmonia, View};
use crate::harmony::Harmony;
use crate::netcraq::NetCraq;
use crate::nopaxos::NoPaxos;
use crate::nopaxos_harmonia::NoPaxosHarmonia;
use crate::store::Store;

/// Declares an enum of programs, each with the name that loads it, and delegates every method to
/// the program inside.
#[macro_export]
macro_rules! hosted {
    (
        $(#[$doc:meta])*
        $vis:vis enum $host:ident { $($(#[$about:meta])* $name:ident($program:ty),)+ }
    ) => {
        $(#[$doc])*
        $vis enum $host { $($(#[$about])* $name($program),)+ }

        const _: () = {
            use $crate::hosted::*;

            impl $crate::Host for $host {
                fn host(program: Program, settings: &Settings) -> Result<$host, LoadError> {
                    match program {
                        $(Program::$name => <$program>::load(settings).map($host::$name),)+
                        #[allow(unreachable_patterns, reason = "a host of all programs has no other")]
                        other => Err(LoadError::NotHere(other)),
                    }
                }

                fn program(&self) -> Program {
                    match self { $($host::$name(_) => Program::$name,)+ }
                }

                #[inline]
                fn pass(
                    &mut self,
                    fabric: &mut Fabric,
                    now: Now,
                    arrival: Arrival,
                    packet: &mut [u8],
                    sink: &mut impl Sink,
                ) -> Wants {
                    match self {
                        $($host::$name(p) => {
                            fabric.pass(p, now, arrival, packet, sink);
                            if fabric.looks_with_pass() {
                                p.look(now.instant)
                            } else {
                                Wants::Nothing
                            }
                        })+
                    }
                }
            }

            impl SwitchProgram for $host {
                /// The program inside has counted the drop.
                type Reason = ();

                #[inline]
                fn takes(&self, kind: Kind) -> Takes {
                    match self { $($host::$name(p) => p.takes(kind),)+ }
                }

                fn install(&mut self, now: Now, c: &Config) -> Result<Option<Injection>, Refused> {
                    match self { $($host::$name(p) => p.install(now, c),)+ }
                }

                fn uninstall(&mut self) {
                    match self { $($host::$name(p) => p.uninstall(),)+ }
                }

                #[inline]
                fn process(&mut self, ingress: &Ingress<'_>, packet: &mut [u8]) -> Verdict<()> {
                    match self {
                        $($host::$name(p) => p.process(ingress, packet).without_reason(),)+
                    }
                }

                #[inline]
                fn member(&self, group: u16, index: usize) -> Option<Addr> {
                    match self { $($host::$name(p) => p.member(group, index),)+ }
                }

                fn uses_ports(&self) -> bool {
                    match self { $($host::$name(p) => p.uses_ports(),)+ }
                }

                #[inline]
                fn rewrites_copies(&self) -> bool {
                    match self { $($host::$name(p) => p.rewrites_copies(),)+ }
                }

                fn egress(&mut self, copy: &Copied, packet: &mut [u8]) {
                    match self { $($host::$name(p) => p.egress(copy, packet),)+ }
                }

                fn malformed(&mut self, error: WireError) {
                    match self { $($host::$name(p) => p.malformed(error),)+ }
                }

                fn control(
                    &mut self,
                    now: Now,
                    packet: &[u8],
                ) -> Result<Option<Injection>, WireError> {
                    match self { $($host::$name(p) => p.control(now, packet),)+ }
                }

                fn speak(&mut self, sink: &mut impl Sink) {
                    match self { $($host::$name(p) => p.speak(sink),)+ }
                }

                #[inline]
                fn look(&mut self, now: Instant) -> Wants {
                    match self { $($host::$name(p) => p.look(now),)+ }
                }

                fn upkeep(&mut self, now: Instant) -> Option<Injection> {
                    match self { $($host::$name(p) => p.upkeep(now),)+ }
                }

                fn deadline(&self) -> Deadline {
                    match self { $($host::$name(p) => p.deadline(),)+ }
                }

                fn is_ready(&self) -> bool {
                    match self { $($host::$name(p) => p.is_ready(),)+ }
                }

                fn gauges(&self) -> Vec<Gauge> {
                    match self { $($host::$name(p) => p.gauges(),)+ }
                }

                fn counts(&self) -> Vec<Count> {
                    match self { $($host::$name(p) => p.counts(),)+ }
                }

                fn describe(&self) -> Report {
                    match self { $($host::$name(p) => p.describe(),)+ }
                }
            }
        };
    };
}

hosted! {
    /// One of the programs of this crate.
    #[derive(Clone, Debug)]
    pub enum Hosted {
        /// Plain forwarding.
        Forward(Forward),
        /// Harmonia.
        Harmonia(Harmonia),
        /// CRAQ.
        Craq(Craq),
        /// NOPaxos.
        NoPaxos(NoPaxos),
        /// NOPaxos with Harmonia.
        NoPaxosHarmonia(NoPaxosHarmonia),
        /// Falcon.
        Falcon(Falcon),
        /// FLAIR.
        Flair(Flair),
        /// NetCRAQ.
        NetCraq(NetCraq),
        /// Concordia.
        Concordia(Concordia),
        /// Harmony.
        Harmony(Harmony),
    }
}

impl Hosted {
    /// NetCRAQ's store, if it is the program.
    #[must_use]
    pub fn chain(&self) -> Option<&NetCraq> {
        if let Hosted::NetCraq(chain) = self { Some(chain) } else { None }
    }

    /// The part that programs for replicas share; an empty one for other programs.
    #[must_use]
    pub fn store(&self) -> &Store {
        match self {
            Hosted::Forward(p) => p.store(),
            Hosted::Harmonia(p) => p.store(),
            Hosted::Craq(p) => p.store(),
            Hosted::NoPaxos(p) => p.store(),
            Hosted::NoPaxosHarmonia(p) => p.harmonia().store(),
            Hosted::Falcon(_) | Hosted::NetCraq(_) | Hosted::Concordia(_) | Hosted::Harmony(_) => {
                &Store::EMPTY
            }
            Hosted::Flair(p) => p.store(),
        }
    }

    /// The dirty set, if the program has one.
    #[must_use]
    pub fn dirty_set(&self) -> Option<&Harmonia> {
        match self {
            Hosted::Harmonia(p) => Some(p),
            Hosted::NoPaxosHarmonia(p) => Some(p.harmonia()),
            Hosted::Forward(_)
            | Hosted::Craq(_)
            | Hosted::NoPaxos(_)
            | Hosted::Falcon(_)
            | Hosted::Flair(_)
            | Hosted::NetCraq(_)
            | Hosted::Concordia(_)
            | Hosted::Harmony(_) => None,
        }
    }

    /// The dirty set's registers of one cell; zeroes if the program has none.
    #[must_use]
    pub fn view(&self) -> View {
        self.dirty_set().map(Harmonia::view).unwrap_or_default()
    }

    /// The switch id of the program's configuration; 0 if it has none.
    #[must_use]
    pub fn switch_id(&self) -> SwitchId {
        self.store().routes().map_or(SwitchId(0), |routes| routes.switch_id)
    }
}
