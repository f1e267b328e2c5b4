//! NewReno (RFC 5681, RFC 6582): the window grows by a packet per round trip, and a loss halves it.

use super::packet::Ecn;
use super::tcp::{Acked, Congestion, Window};

/// The congestion state of a flow: only its window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NewReno;

impl Congestion for NewReno {
    const NAME: &'static str = "newreno";
    const ECN: Ecn = Ecn::Not;

    fn on_acked(&mut self, window: &mut Window, acked: Acked, is_recovering: bool) {
        if !is_recovering && acked.bytes > 0 {
            window.grow(acked.bytes);
        }
    }

    /// RFC 5681 equation (4).
    fn after_loss(&mut self, _window: &Window, in_flight_bytes: u64) -> u64 {
        in_flight_bytes / 2
    }
}
