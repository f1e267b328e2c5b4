//! dcPIM's matching of one phase: what every host has requested, granted and accepted. The
//! transport decides which host hears of it, and when.

use concord_core::Rng;

/// Channels that a host requests from, or grants to, another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Offer {
    /// The index of the other host.
    pub(super) peer: u32,
    pub(super) channels: u32,
    /// The number of packets that the shortest flow between them has left.
    pub(super) left: u32,
}

/// A host in both roles.
#[derive(Clone, Debug, Default)]
struct Host {
    /// The requests that it got as a sender, with their round.
    requests: Vec<(u16, Offer)>,
    /// The number of channels that it gave, as their grants were accepted.
    given: u32,
    /// The grants that it got as a receiver, with their round.
    grants: Vec<(u16, Offer)>,
    /// The senders and channels that it accepted.
    accepted: Vec<(u32, u32)>,
}

/// A matching in progress.
pub(super) struct Matching {
    channels: u32,
    rng: Rng,
    hosts: Vec<Host>,
}

impl Matching {
    pub(super) fn new(channels: u32, rng: Rng) -> Matching {
        Matching { channels, rng, hosts: Vec::new() }
    }

    fn host(&mut self, host: u32) -> &mut Host {
        let place = host as usize;
        if self.hosts.len() <= place {
            self.hosts.resize_with(place + 1, Host::default);
        }
        &mut self.hosts[place]
    }

    pub(super) fn on_request(&mut self, sender: u32, round: u16, request: Offer) {
        self.host(sender).requests.push((round, request));
    }

    pub(super) fn on_grant(&mut self, receiver: u32, round: u16, grant: Offer) {
        self.host(receiver).grants.push((round, grant));
    }

    pub(super) fn on_accept(&mut self, sender: u32, accept: Offer) {
        self.host(sender).given += accept.channels;
    }

    /// The number of free channels of a receiver.
    pub(super) fn free_at_receiver(&self, receiver: u32) -> u32 {
        let accepted = self.hosts.get(receiver as usize).map(|host| &host.accepted);
        let used: u32 = accepted.into_iter().flatten().map(|entry| entry.1).sum();
        self.channels.saturating_sub(used)
    }

    /// The number of channels that a receiver has accepted from a sender.
    pub(super) fn matched(&self, receiver: u32, sender: u32) -> u32 {
        let accepted = self.hosts.get(receiver as usize).map(|host| &host.accepted);
        accepted.into_iter().flatten().filter(|entry| entry.0 == sender).map(|entry| entry.1).sum()
    }

    /// Grants the requests of a round that arrived in time: pairs of sender and grant.
    pub(super) fn grants(&mut self, round: u16) -> Vec<(u32, Offer)> {
        let mut all = Vec::new();
        for sender in 0..self.hosts.len() {
            let host = &mut self.hosts[sender];
            let offers = std::mem::take(&mut host.requests);
            let free = self.channels.saturating_sub(host.given);
            let chosen = choose(offers, round, free, &mut self.rng);
            all.extend(chosen.into_iter().map(|offer| (sender as u32, offer)));
        }
        all
    }

    /// Accepts the grants of a round that arrived in time: pairs of receiver and accept.
    pub(super) fn accepts(&mut self, round: u16) -> Vec<(u32, Offer)> {
        let mut all = Vec::new();
        for receiver in 0..self.hosts.len() {
            let free = self.free_at_receiver(receiver as u32);
            let host = &mut self.hosts[receiver];
            let offers = std::mem::take(&mut host.grants);
            for offer in choose(offers, round, free, &mut self.rng) {
                match host.accepted.iter_mut().find(|entry| entry.0 == offer.peer) {
                    Some(entry) => entry.1 += offer.channels,
                    None => host.accepted.push((offer.peer, offer.channels)),
                }
                all.push((receiver as u32, offer));
            }
        }
        all
    }

    /// Ends the matching, and begins the next one; returns receivers, senders and channels.
    pub(super) fn take(&mut self) -> Vec<(u32, u32, u32)> {
        let mut all = Vec::new();
        for (receiver, host) in self.hosts.iter_mut().enumerate() {
            let of = |(sender, channels)| (receiver as u32, sender, channels);
            all.extend(std::mem::take(&mut host.accepted).into_iter().map(of));
            *host = Host::default();
        }
        all
    }
}

/// Chooses offers of this round for at most `free` channels: in the first round those of the
/// shortest flows, then random ones.
fn choose(offers: Vec<(u16, Offer)>, round: u16, mut free: u32, rng: &mut Rng) -> Vec<Offer> {
    let in_time = offers.into_iter().filter(|offer| offer.0 == round).map(|offer| offer.1);
    let mut offers: Vec<Offer> = in_time.collect();
    if round == 0 {
        offers.sort_by_key(|offer| std::cmp::Reverse((offer.left, offer.peer)));
    }
    let mut chosen = Vec::new();
    while free > 0 && !offers.is_empty() {
        let place = match round {
            0 => offers.len() - 1,
            _ => rng.below(offers.len() as u64) as usize,
        };
        let mut offer = offers.swap_remove(place);
        offer.channels = offer.channels.min(free);
        free -= offer.channels;
        chosen.push(offer);
    }
    chosen
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offer(peer: u32, channels: u32, left: u32) -> Offer {
        Offer { peer, channels, left }
    }

    /// In the first round the shortest flow goes first; no host gives or takes more channels than
    /// it has.
    #[test]
    fn shortest_first_and_never_too_many() {
        let mut matching = Matching::new(4, Rng::new(1));
        matching.on_request(7, 0, offer(1, 3, 90));
        matching.on_request(7, 0, offer(2, 3, 10));
        matching.on_request(7, 0, offer(3, 3, 50));
        assert_eq!(matching.grants(0), [(7, offer(2, 3, 10)), (7, offer(3, 1, 50))]);
        matching.on_grant(2, 0, offer(7, 3, 10));
        matching.on_grant(2, 0, offer(8, 4, 5));
        assert_eq!(matching.accepts(0), [(2, offer(8, 4, 5))]);
        assert_eq!((matching.free_at_receiver(2), matching.matched(2, 8)), (0, 4));
        // A grant of an earlier round arrived too late.
        matching.on_grant(3, 0, offer(7, 1, 50));
        assert_eq!(matching.accepts(1), []);
        assert_eq!(matching.take(), [(2, 8, 4)]);
        assert_eq!((matching.free_at_receiver(2), matching.take()), (4, Vec::new()));
    }

    /// Accepted channels are taken for the phase.
    #[test]
    fn accepted_channels_are_given() {
        let mut matching = Matching::new(2, Rng::new(1));
        matching.on_accept(5, offer(1, 1, 0));
        matching.on_request(5, 1, offer(2, 2, 9));
        assert_eq!(matching.grants(1), [(5, offer(2, 1, 9))]);
    }
}
