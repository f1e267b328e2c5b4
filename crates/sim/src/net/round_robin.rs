//! Round-robin over the flows of a host at its link: a packet is sent when the previous one has
//! left, so that a new flow waits for one packet of each other flow, and not for their windows.

use std::collections::VecDeque;

use super::topology::HostIndex;
use super::transport::Wire;
use crate::engine::{SEC, Time};

/// The link of a host.
#[derive(Clone, Debug, Default)]
struct Link {
    /// The bandwidth; 0 until it is known.
    bits_per_s: u64,
    free_at: Time,
    is_timer_set: bool,
    /// The flows with a packet to send, the next one first.
    waiting: VecDeque<u32>,
}

/// The links of all hosts.
#[derive(Clone, Debug)]
pub(super) struct RoundRobin {
    /// The token of the timer at which a link becomes free; its flow is the host.
    token: u32,
    links: Vec<Link>,
}

impl RoundRobin {
    pub(super) fn new(token: u32) -> RoundRobin {
        RoundRobin { token, links: Vec::new() }
    }

    fn link(&mut self, host: HostIndex) -> &mut Link {
        let place = host.0 as usize;
        if place >= self.links.len() {
            self.links.resize_with(place + 1, Link::default);
        }
        &mut self.links[place]
    }

    /// Adds a flow that has a packet to send.
    pub(super) fn add(&mut self, host: HostIndex, flow: u32) {
        self.link(host).waiting.push_back(flow);
    }

    /// Marks the host's link as free: its timer has expired.
    pub(super) fn is_free(&mut self, host: HostIndex) {
        self.link(host).is_timer_set = false;
    }

    /// The flow that sends a packet now, and then calls [`RoundRobin::sent`]. `None` if no flow
    /// waits, or if the link is busy: then a timer tells when it is free.
    pub(super) fn next<H>(&mut self, wire: &mut Wire<'_, H>, host: HostIndex) -> Option<u32> {
        let token = self.token;
        let link = self.link(host);
        if link.waiting.is_empty() {
            return None;
        }
        if link.free_at > wire.now() {
            if !link.is_timer_set {
                link.is_timer_set = true;
                wire.timer(link.free_at, host.0, token);
            }
            return None;
        }
        link.waiting.pop_front()
    }

    /// Notes that the flow in turn has sent a packet.
    pub(super) fn sent<H>(&mut self, wire: &mut Wire<'_, H>, host: HostIndex, size_bytes: u32) {
        // Rounded down, as ports round, so that the link never idles.
        let link = self.link(host);
        if link.bits_per_s == 0 {
            link.bits_per_s = wire.network.host_bits_per_s(host).max(1);
        }
        let ps = u128::from(size_bytes) * 8 * u128::from(SEC) / u128::from(link.bits_per_s);
        link.free_at = wire.now().after(ps as u64);
    }
}
