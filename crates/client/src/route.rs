//! The destination of packets: to the active switch, as far as is known. The controller is asked
//! which one that is when requests stay unanswered.

use concord_core::{Instant, MS};
use concord_wire::Addr;
use concord_wire::control::Config;

/// The number of attempts after which the client asks whether the switch is still active.
pub const ATTEMPTS_UNTIL_DOUBT: u16 = 3;
/// Shortest time between two questions which switch is active, in ns.
const DOUBT_INTERVAL_NS: u64 = 100 * MS;

/// The way to the rack.
#[derive(Clone, Debug)]
pub struct Route {
    switch: Addr,
    controller: Option<Addr>,
    /// The newest configuration that the controller told of; 0 if none.
    epoch: u32,
    /// When the controller may be asked again.
    next_doubt: Instant,
}

impl Route {
    /// By `switch`, until `controller` names another.
    pub fn new(switch: Addr, controller: Option<Addr>) -> Route {
        Route { switch, controller, epoch: 0, next_doubt: Instant(0) }
    }

    /// The destination of every packet.
    pub fn switch(&self) -> Addr {
        self.switch
    }

    /// Requests stay unanswered: perhaps another switch is active. Who is to be asked, if it is
    /// time to.
    pub fn doubt(&mut self, now: Instant) -> Option<Addr> {
        let controller = self.controller?;
        if now < self.next_doubt {
            return None;
        }
        self.next_doubt = now.after(DOUBT_INTERVAL_NS);
        Some(controller)
    }

    /// The controller told of a configuration. Whether another switch is active by it.
    pub fn on_config(&mut self, config: &Config) -> bool {
        if config.epoch <= self.epoch {
            return false;
        }
        self.epoch = config.epoch;
        let is_other = config.switch != self.switch;
        self.switch = config.switch;
        is_other
    }
}
