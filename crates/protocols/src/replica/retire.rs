//! A replica of primary-backup, chain or CRAQ that is told to end ([`crate::retire`]). It says so
//! to the controller, and goes on as before until it hears of an epoch without it. Then it answers
//! nothing any more, and gives back the leases that it held, so that the epoch opens at once (trap
//! T2). Its incarnation has given them back for good: it never takes part again.

use concord_core::{Duration, Instant, Now};
use concord_engine::Engine;
use concord_wire::Sink;
use concord_wire::control::{LeaseMessage, Standing};

use super::Replica;
use crate::retire::{RELEASES, Retired, Retiring};
use crate::setup::{ALIVE_NS, Phase, RETRY_NS};

impl<E: Engine> Replica<E> {
    /// Tells it to end. It leaves, and its driver lets it go on until [`Replica::retired`] returns
    /// the outcome.
    pub fn retire(&mut self, now: Now) {
        if self.retiring.is_none() {
            self.retiring = Some(Retiring::begin(now.instant));
            self.report.hurry(now.instant);
        }
    }

    /// The outcome of leaving, if it was told to end.
    #[must_use]
    pub fn retired(&self, now: Now) -> Option<Retired> {
        let retiring = self.retiring.as_ref()?;
        let Some(config) = &self.role.config else {
            let is_told = self.report.said() == Some(Standing::Leaving);
            return is_told.then_some(Retired::InOrder);
        };
        let (has_place, has_released) = (self.role.has_place(), retiring.releases >= RELEASES);
        if !has_place && has_released {
            return Some(Retired::InOrder);
        }
        if config.members.len() == 1 && config.joining.is_empty() && has_place {
            return Some(Retired::Alone);
        }
        (has_released && now.instant >= retiring.until).then_some(Retired::InVain)
    }

    /// The interval of its reports to the controller; shorter while it leaves.
    pub(super) fn alive_ns(&self) -> Duration {
        if self.retiring.is_some() { RETRY_NS } else { ALIVE_NS }
    }

    /// Gives back the leases that it held, once it can use none any more.
    pub(super) fn tick_retiring(&mut self, now: Instant, sink: &mut impl Sink) {
        if self.retiring.is_some_and(|r| now >= r.until) {
            self.fail_stop();
        }
        let may_answer = !matches!(self.phase, Phase::Out | Phase::Left);
        let Some(retiring) = &mut self.retiring else { return };
        if !retiring.is_due(now) || may_answer || retiring.releases >= RELEASES {
            return;
        }
        retiring.releases += 1;
        let me = self.setup.me;
        let release = LeaseMessage::Release { from: me.node, incarnation: me.incarnation };
        self.tell_others(&release, sink);
    }
}
