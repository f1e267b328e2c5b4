//! DCTCP (Alizadeh et al. 2010, RFC 8257): the window is cut by the share of marked packets.

use super::packet::Ecn;
use super::tcp::{Acked, Congestion, Window};

/// The fixed-point representation of 1 for shares.
const ONE: u64 = 1 << 20;

/// The congestion state of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dctcp {
    /// The weight of the last round trip in `alpha` (§3.2: g = 1/16), as a shift.
    gain_shift: u32,
    /// The estimated share of marked bytes, in 1/[`ONE`]; never above it.
    alpha: u64,
    acked_bytes: u64,
    marked_bytes: u64,
    /// Whether the window was cut in this round trip (RFC 8257 §3.3: once per window).
    is_cut: bool,
}

impl Dctcp {
    /// The state of a new flow, with g = 2^-`gain_shift`. RFC 8257 §4.2: alpha begins at 1.
    #[must_use]
    pub fn new(gain_shift: u32) -> Dctcp {
        Dctcp { gain_shift, alpha: ONE, acked_bytes: 0, marked_bytes: 0, is_cut: false }
    }

    /// The estimated share of marked bytes, in millionths.
    #[must_use]
    pub fn alpha_millionths(&self) -> u64 {
        self.alpha * 1_000_000 / ONE
    }
}

impl Default for Dctcp {
    fn default() -> Dctcp {
        Dctcp::new(4)
    }
}

impl Congestion for Dctcp {
    const NAME: &'static str = "dctcp";
    const ECN: Ecn = Ecn::Capable;

    fn on_acked(&mut self, window: &mut Window, acked: Acked, is_recovering: bool) {
        self.acked_bytes += acked.bytes;
        if acked.is_marked {
            self.marked_bytes += acked.bytes;
        }
        if acked.ends_round {
            // RFC 8257 §3.3 steps 5 and 6.
            let share = self.marked_bytes * ONE / self.acked_bytes.max(1);
            self.alpha -= self.alpha >> self.gain_shift;
            self.alpha += share.min(ONE) >> self.gain_shift;
            (self.acked_bytes, self.marked_bytes, self.is_cut) = (0, 0, false);
        }
        if is_recovering {
            return;
        }
        if acked.is_marked && !self.is_cut {
            self.is_cut = true;
            let cut = u128::from(window.bytes) * u128::from(self.alpha) / u128::from(2 * ONE);
            window.set(window.bytes - cut as u64);
            return;
        }
        // The window does not grow while marks arrive (RFC 3168 §6.1.2).
        if acked.bytes > 0 && !acked.is_marked {
            window.grow(acked.bytes);
        }
    }

    fn after_loss(&mut self, _window: &Window, in_flight_bytes: u64) -> u64 {
        in_flight_bytes / 2
    }
}
