#![allow(clippy::unwrap_used)]

use alloc::string::String;

use concord_core::{Incarnation, MS, Rng};
use concord_wire::control::{Member, Program};
use concord_wire::harmony::Path;

use super::stages::STAGES;
use super::*;
use crate::{AgentConfig, PortTable};

const OWN: Addr = Addr { ip: 1, port: 1 };
const LIFE_NS: u64 = MS;

/// The neighbour at a port: hosts 0 and 1, then two spines.
fn at_port(port: u16) -> Addr {
    Addr { ip: 2, port: 10 + port }
}

/// A ToR switch with K = 2: hosts 0 and 1 below it, hosts 2 to 5 elsewhere, two uplinks.
fn tables() -> LinkTables {
    LinkTables {
        switch: 7,
        own: OWN,
        neighbours: (0..4).map(at_port).collect(),
        links: alloc::vec![2; 4],
        uplinks: alloc::vec![2, 3],
        routes: (0..6).map(|host| if host < 2 { Route::Down(host) } else { Route::Up }).collect(),
    }
}

fn layout(choice: Choice) -> LinksLayout {
    LinksLayout { hosts: 6, slots: 2, links: 8, choice, life_ns: LIFE_NS }
}

struct Rig {
    program: Harmony,
    ports: PortTable,
    ns: u64,
    passes: usize,
}

impl Rig {
    fn new(choice: Choice, guards: Guards) -> Rig {
        let mut program = Harmony::new(layout(choice), OWN, guards).unwrap();
        program.fill(Instant(0), tables(), false).unwrap();
        Rig { program, ports: PortTable::default(), ns: 0, passes: 0 }
    }

    /// A packet arrives at a port; returns the port by which it left, and the packet.
    fn send(&mut self, port: u16, packet: &Repr) -> Option<(u16, Repr)> {
        self.comes(at_port(port), packet)
    }

    fn comes(&mut self, sender: Addr, packet: &Repr) -> Option<(u16, Repr)> {
        let data: &[u8] = if packet.op == Op::Data { &[1; 8] } else { &[] };
        let mut bytes = packet.packet(data);
        let now = Now { instant: Instant(self.ns), unix_ms: 0 };
        let mut ingress = Ingress::first(now, sender, &self.ports);
        loop {
            self.passes += 1;
            match self.program.process(&ingress, &mut bytes) {
                Verdict::Recirculate { metadata, size_bytes } => {
                    bytes.truncate(size_bytes);
                    ingress = Ingress { passes: ingress.passes + 1, metadata, ..ingress };
                }
                Verdict::Forward { to, size_bytes } => {
                    let (packet, left) = Repr::parse(&bytes[..size_bytes]).unwrap();
                    assert_eq!(left, data);
                    return Some((to.port - 10, packet));
                }
                Verdict::Drop(_) => return None,
                _ => panic!("a verdict that it does not give"),
            }
        }
    }

    /// Injects the control plane's packets, until there are none.
    fn sweep(&mut self) {
        while let Some(mut injection) = self.program.upkeep(Instant(self.ns)) {
            let packet = Repr::parse(injection.packet()).unwrap().0;
            assert_eq!(self.comes(OWN, &packet), None);
        }
    }

    /// Whether each virtual link is either free or held by exactly one slot.
    fn is_whole(&self) -> bool {
        let mut all = self.program.free();
        all.extend(self.program.reservations().filter_map(|held| held.link));
        all.sort_unstable();
        all.iter().copied().eq(0..self.program.links() as u16)
    }

    fn held(&self) -> usize {
        self.program.reservations().filter(|held| held.link.is_some()).count()
    }
}

/// An `rsvp` from host 0 to a sender elsewhere.
fn rsvp(grant: u32, slot: u8) -> Repr {
    let span = (LIFE_NS >> SPAN_SHIFT) as u32;
    let packet = Repr::new(Op::Rsvp, 4, 0, u64::from(grant));
    Repr { receiver_incarnation: 1, grant, slot, span, ..packet }
}

/// A packet of the same grant on its way back.
fn back(op: Op, reserved: &Repr) -> Repr {
    Repr { op, ahead: reserved.path.hops().len() as u8, span: 0, ..*reserved }
}

/// H6: an `rsvp` reserves the port by which it leaves, for the data that will arrive there; data
/// finds the reservation, and `complete` frees it, once.
#[test]
fn h6_link_is_counted_once_where_its_data_arrives() {
    let mut rig = Rig::new(Choice::Fifo, Guards::ALL);
    let (port, reserved) = rig.send(0, &rsvp(1, 0)).unwrap();
    let hop = reserved.path.hops()[0];
    assert!(port >= 2 && rig.program.port_of(hop.link) == Some(port as u8));
    assert_eq!((hop.switch, hop.back, rig.held()), (7, 0, 1));
    let (port, data) = rig.send(2, &back(Op::Data, &reserved)).unwrap();
    assert_eq!((port, data.ahead, data.is_best_effort), (0, 0, false));
    for _ in 0..2 {
        let (port, complete) = rig.send(2, &back(Op::Complete, &reserved)).unwrap();
        assert_eq!((port, complete.op, rig.held()), (0, Op::Complete, 0), "it passes on");
        assert!(rig.is_whole());
    }
    let counters = rig.program.counters();
    assert_eq!((counters.reserved, counters.freed, counters.freed_again), (1, 1, 1));
}

/// H4: a duplicated or late `rsvp` reserves nothing.
#[test]
fn h4_doubled_or_late_rsvp_reserves_nothing() {
    let held = |guards| {
        let mut rig = Rig::new(Choice::Fifo, guards);
        let (_, first) = rig.send(0, &rsvp(1, 0)).unwrap();
        rig.send(0, &rsvp(1, 0));
        rig.send(2, &back(Op::Complete, &first));
        rig.send(0, &rsvp(1, 0));
        rig.held()
    };
    assert_eq!(held(Guards::ALL), 0);
    #[cfg(feature = "mutants")]
    assert_eq!(held(Guards::without(Guard::RsvpOnce)), 1);
}

/// H4: a `complete` of the slot's previous grant, or of one that was never reserved here, frees
/// nothing.
#[test]
fn h4_only_the_owner_frees() {
    let free = |guards| {
        let mut rig = Rig::new(Choice::Fifo, guards);
        let (_, first) = rig.send(0, &rsvp(1, 0)).unwrap();
        rig.send(2, &back(Op::Complete, &first));
        rig.send(0, &rsvp(2, 0)).unwrap();
        rig.send(2, &back(Op::Complete, &first));
        rig.send(2, &back(Op::Reject, &Repr { grant: 9, slot: 1, ..first }));
        (rig.held(), rig.is_whole())
    };
    assert_eq!(free(Guards::ALL), (1, true));
    #[cfg(feature = "mutants")]
    assert_ne!(free(Guards::without(Guard::OwnerFrees)), (1, true));
}

/// H4: a slot whose `complete` was lost reserves nothing here until the old reservation has
/// expired: otherwise its virtual link would never be free again.
#[test]
fn h4_slot_reserves_again_once_it_is_freed() {
    let after_loss = |guards| {
        let mut rig = Rig::new(Choice::Fifo, guards);
        rig.send(0, &rsvp(1, 0)).unwrap();
        let (port, second) = rig.send(0, &rsvp(2, 0)).unwrap();
        let answered = (port, second.op);
        if second.op == Op::Rsvp {
            rig.send(2, &back(Op::Complete, &second));
        }
        rig.ns += 4 * LIFE_NS;
        rig.sweep();
        (answered, rig.held(), rig.is_whole())
    };
    assert_eq!(after_loss(Guards::ALL), ((0, Op::Reject), 0, true));
    #[cfg(feature = "mutants")]
    assert!(!after_loss(Guards::without(Guard::SlotFreed)).2);
}

/// H4: a reservation that is never freed expires at its time, and not before.
#[test]
fn h4_reservation_ends_by_its_time() {
    let held = |guards| {
        let mut rig = Rig::new(Choice::Fifo, guards);
        let (_, reserved) = rig.send(0, &rsvp(1, 0)).unwrap();
        rig.ns = LIFE_NS - (2 << SPAN_SHIFT);
        rig.sweep();
        let before = rig.held();
        rig.ns = LIFE_NS + LIFE_NS / 2;
        rig.sweep();
        // A `complete` that arrives after that frees nothing again.
        let after = rig.held();
        rig.send(2, &back(Op::Complete, &reserved));
        (before, after, rig.is_whole())
    };
    assert_eq!(held(Guards::ALL), (1, 0, true));
    #[cfg(feature = "mutants")]
    assert_eq!(held(Guards::without(Guard::ReservationExpires)), (1, 1, true));
}

/// H4: data whose reservation has expired goes on as best effort, and so does data that was never
/// reserved.
#[test]
fn h4_data_without_reservation_is_best_effort() {
    let is_best_effort = |guards| {
        let mut rig = Rig::new(Choice::Fifo, guards);
        let (_, reserved) = rig.send(0, &rsvp(1, 0)).unwrap();
        rig.send(2, &back(Op::Complete, &reserved));
        rig.send(2, &back(Op::Data, &reserved)).unwrap().1.is_best_effort
    };
    assert!(is_best_effort(Guards::ALL));
    #[cfg(feature = "mutants")]
    assert!(!is_best_effort(Guards::without(Guard::DataReserved)));
}

/// H5: a restarted switch reserves nothing until the reservations that it forgot have expired.
#[test]
fn h5_restarted_switch_waits() {
    let early = |guards| {
        let mut rig = Rig::new(Choice::Fifo, guards);
        rig.program.fill(Instant(0), tables(), true).unwrap();
        rig.ns = LIFE_NS;
        let early = rig.send(0, &rsvp(1, 0)).unwrap();
        rig.ns = rig.program.restart_ns();
        assert_eq!(rig.send(0, &rsvp(1, 1)).unwrap().1.op, Op::Rsvp);
        (early.0, early.1.op)
    };
    assert_eq!(early(Guards::ALL), (0, Op::Reject));
    #[cfg(feature = "mutants")]
    assert_eq!(early(Guards::without(Guard::SwitchRestart)).1, Op::Rsvp);
}

/// §3.1: without a free virtual link the `rsvp` becomes a `reject`, after another pass that closes
/// its slot; links that it had reserved at earlier switches are freed on the way back.
#[test]
fn rsvp_without_link_becomes_a_reject() {
    for choice in [Choice::Fifo, Choice::Hash] {
        let mut rig = Rig::new(choice, Guards::ALL);
        let from = |receiver: u16, grant: u32, slot: u8| Repr { receiver, ..rsvp(grant, slot) };
        let mut reserved = Vec::new();
        for (receiver, slot) in [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0)] {
            reserved.push(rig.send(receiver, &from(receiver, 1, slot)).unwrap());
        }
        let rejected: Vec<&Repr> =
            reserved.iter().map(|(_, p)| p).filter(|p| p.op == Op::Reject).collect();
        // There are four virtual links upwards; a choice by hash may miss a free one.
        assert!(!rejected.is_empty() && (rejected.len() == 1 || choice == Choice::Hash));
        assert!(rejected.iter().all(|p| p.reason == Reason::NoLink && p.ahead == 0));
        assert!(rig.is_whole());
        let held = rig.held();
        assert_eq!(rig.program.reservations().count(), held, "who found none holds no slot");
        let (_, first) = &reserved[0];
        rig.send(2, &back(Op::Complete, first));
        let again = rig.send(2, &from(2, 2, 0)).unwrap();
        assert!(again.1.op == Op::Rsvp || choice == Choice::Hash);
    }
}

/// A `reject` by a later switch frees the reservations at the switches before it.
#[test]
fn reject_frees_on_its_way_back() {
    let mut rig = Rig::new(Choice::Fifo, Guards::ALL);
    let (_, mut reserved) = rig.send(1, &Repr { receiver: 1, ..rsvp(1, 0) }).unwrap();
    // The next switch has no free link, and is not in the path.
    let reject = Repr { reason: Reason::NoLink, ..back(Op::Reject, &reserved) };
    let (port, left) = rig.send(3, &reject).unwrap();
    assert_eq!((port, left.ahead, rig.held()), (1, 0, 0));
    // A path that names another switch, or ports and links that do not exist, is refused.
    for hop in [
        Hop { switch: 8, ..reserved.path.hops()[0] },
        Hop { back: 9, ..reserved.path.hops()[0] },
        Hop { link: 99, ..reserved.path.hops()[0] },
    ] {
        reserved.path = Path::default();
        assert!(reserved.path.push(hop));
        assert_eq!(rig.send(3, &back(Op::Complete, &reserved)), None);
    }
    assert_eq!(rig.program.counters().dropped_misdirected, 3);
    assert!(rig.is_whole());
}

/// H8: the FIFO alternates between the uplinks; a hash reaches all of them.
#[test]
fn h8_both_choices_reach_every_uplink() {
    for choice in [Choice::Fifo, Choice::Hash] {
        let mut counts = [0; 4];
        for number in 1..=64 {
            let mut rig = Rig::new(choice, Guards::ALL);
            for slot in 0..2 {
                let packet = Repr { number, ..rsvp(number as u32, slot) };
                counts[usize::from(rig.send(0, &packet).unwrap().0)] += 1;
            }
        }
        assert_eq!(counts[..2], [0, 0]);
        assert!(counts[2..].iter().all(|count| (40..=88).contains(count)), "{counts:?}");
    }
}

/// Requests and packets to senders are routed by address, uplinks by hash, and change no register.
#[test]
fn other_packets_go_by_address() {
    let mut rig = Rig::new(Choice::Fifo, Guards::ALL);
    let cells: Vec<u64> = rig.program.stages.cells().collect();
    let request = Repr::new(Op::Request, 0, 1, 5);
    assert_eq!(rig.send(0, &request), Some((1, request)));
    let ports: Vec<u16> = (1..40)
        .map(|number| rig.send(0, &Repr::new(Op::Request, 0, 4, number)).unwrap().0)
        .collect();
    assert!(ports.contains(&2) && ports.contains(&3) && ports.iter().all(|port| *port >= 2));
    let told =
        Repr { to_sender: true, receiver_incarnation: 1, ..Repr::new(Op::Complete, 1, 4, 5) };
    assert_eq!(rig.send(3, &told), Some((1, told)));
    assert!(rig.program.stages.cells().eq(cells));
    assert_eq!(rig.send(0, &Repr::new(Op::Request, 0, 6, 5)), None, "no such host");
}

/// Packets that are in consecutive stages at the same time leave the registers as if they had
/// passed one after the other.
#[test]
fn harmony_packets_in_the_pipeline_do_not_mix() {
    for seed in 0..200 {
        let rig = Rig::new(Choice::Fifo, Guards::ALL);
        let rows = rig.program.rows.clone().unwrap();
        let packets = || -> Vec<Phv> {
            let mut rng = Rng::new(seed);
            let draw = |rng: &mut Rng| {
                let asks =
                    [Ask::Reserve, Ask::Free, Ask::Look, Ask::Close, Ask::Sweep, Ask::Expire];
                let ask = asks[rng.below(6) as usize];
                let mut phv = Phv::new(ask, rng.below(4) as u32, rng.between(1, 6), 9);
                phv.queue = [0, 1, 2][rng.below(3) as usize];
                phv.part = rows.queues[phv.queue as usize];
                phv.link = (ask == Ask::Free || ask == Ask::Expire).then_some(rng.below(8) as u16);
                phv
            };
            (0..32).map(|_| draw(&mut rng)).collect()
        };
        let (mut in_turn, mut staged) = (rig.program.stages.clone(), rig.program.stages.clone());
        packets().iter_mut().for_each(|phv| in_turn.run(phv));
        let mut other = packets();
        for tick in 0..32 + usize::from(STAGES) {
            for (index, phv) in other.iter_mut().enumerate() {
                if let Some(stage) = tick.checked_sub(index)
                    && stage < usize::from(STAGES)
                {
                    staged.stage(stage as u8, phv);
                }
            }
        }
        assert!(in_turn.cells().eq(staged.cells()), "seed {seed}");
    }
}

/// Reservations, the packets that end them, and duplicates, in any order and with any loss: a
/// virtual link is free, or held once; after the maximum lifetime all are free.
#[test]
fn any_order_leaves_each_link_free_or_held_once() {
    for seed in 0..60 {
        let mut rng = Rng::new(seed);
        let choice = if seed % 2 == 0 { Choice::Fifo } else { Choice::Hash };
        let mut rig = Rig::new(choice, Guards::ALL);
        let (mut sent, mut grants) = (Vec::new(), [[0_u32; 2]; 6]);
        for _ in 0..2_000 {
            rig.ns += rng.below(40_000);
            if rng.chance(1, 3) || sent.is_empty() {
                let (receiver, slot) = (rng.below(6) as u16, rng.below(2) as u8);
                let sender = (receiver + rng.between(1, 5) as u16) % 6;
                let grant = &mut grants[usize::from(receiver)][usize::from(slot)];
                *grant += 1;
                let port = if receiver < 2 { receiver } else { rng.between(2, 3) as u16 };
                sent.push((port, Repr { receiver, sender, ..rsvp(*grant, slot) }));
            }
            let (port, packet) = sent[rng.below(sent.len() as u64) as usize];
            if let Some((_, left)) = rig.send(port, &packet)
                && left.op == Op::Rsvp
            {
                let op = [Op::Complete, Op::Reject, Op::Data][rng.below(3) as usize];
                sent.push((2, back(op, &left)));
            }
            if rng.chance(1, 50) {
                rig.sweep();
            }
            if sent.len() > 60 {
                sent.remove(rng.below(60) as usize);
            }
            assert!(rig.is_whole(), "seed {seed}");
        }
        rig.ns += 2 * LIFE_NS;
        rig.sweep();
        assert_eq!((rig.held(), rig.is_whole()), (0, true), "seed {seed}");
        let counters = rig.program.counters();
        assert!(counters.reserved > 50 && counters.freed > 10 && counters.expired > 0);
    }
}

/// No input crashes the switch, and malformed packets change no register.
#[test]
fn any_bytes_leave_a_networks_switch_standing() {
    let mut rng = Rng::new(54);
    let mut rig = Rig::new(Choice::Hash, Guards::ALL);
    for _ in 0..100_000 {
        let op = Op::ALL[rng.below(Op::ALL.len() as u64) as usize];
        let data: &[u8] = if op == Op::Data { &[0; 64] } else { &[] };
        let mut bytes = Repr { op, ..rsvp(rng.below(8) as u32, 0) }.packet(data);
        for _ in 0..rng.below(8) {
            let at = rng.below(bytes.len() as u64) as usize;
            bytes[at] = rng.below(256) as u8;
        }
        let is_malformed = Repr::parse(&bytes).is_err();
        let before: Vec<u64> =
            if is_malformed { rig.program.stages.cells().collect() } else { Vec::new() };
        let metadata = Metadata([rng.below(1 << 12), rng.below(8)]);
        let sender = if rng.chance(1, 4) { OWN } else { at_port(rng.below(4) as u16) };
        let first = Ingress::first(Now::default(), sender, &rig.ports);
        let ingress = Ingress { passes: rng.below(2) as u8, metadata, ..first };
        let _ = rig.program.process(&ingress, &mut bytes);
        assert!(!is_malformed || rig.program.stages.cells().eq(before));
    }
}

fn load(layout: LinksLayout) -> Result<Harmony, LoadError> {
    let mut told = AgentConfig::new(Incarnation(1), OWN, OWN);
    told.sections.links = layout;
    Harmony::load(&told.settings())
}

/// In its seat it is the switch of a group of hosts: each has a port.
#[test]
fn one_switch_between_hosts_is_configured_by_its_group() {
    let mut program = load(layout(Choice::Fifo)).unwrap();
    let member = |node: u16| Member { node, incarnation: 1, addr: at_port(node - 1) };
    let config = Config {
        epoch: 1,
        group: concord_wire::GroupId(0),
        rack: 1,
        switch_id: 3,
        switch_incarnation: 1,
        switch: OWN,
        kind: GroupKind::Hosts,
        program: Program::Harmony,
        members: (1..=3).map(member).collect(),
        joining: Vec::new(),
    };
    assert!(matches!(program.install(Now::default(), &config), Ok(None)));
    assert_eq!((program.links(), program.free().len()), (6, 6));
    let other = Config { kind: GroupKind::Memory, ..config.clone() };
    assert!(program.install(Now::default(), &other).is_err());
    let many = Config { members: (1..=7).map(member).collect(), ..config };
    assert!(program.install(Now::default(), &many).is_err(), "more than its layout has");
    assert_eq!(program.links(), 6, "and nothing was changed");
    program.uninstall();
    assert_eq!(program.links(), 0);
}

/// With the default settings the program fits an ASIC: six stages, one recirculation.
#[test]
fn harmony_fits_an_asic_by_itself() {
    let report = load(LinksLayout::DEFAULT).unwrap().describe();
    assert_eq!(report.excess(&concord_pisa::ASIC), None);
    assert_eq!((report.stages(), report.recirculations_max), (6, 1));
    let hashed = LinksLayout { choice: Choice::Hash, ..LinksLayout::DEFAULT };
    assert_eq!(load(hashed).unwrap().describe().recirculations_max, 8);
}

#[test]
fn links_that_no_switch_can_have_are_refused_in_one_line() {
    for layout in [
        LinksLayout { hosts: 0, ..LinksLayout::DEFAULT },
        LinksLayout { hosts: 8_192, slots: 32, ..LinksLayout::DEFAULT },
        LinksLayout { slots: 33, ..LinksLayout::DEFAULT },
        LinksLayout { links: 0, ..LinksLayout::DEFAULT },
        LinksLayout { life_ns: 0, ..LinksLayout::DEFAULT },
    ] {
        let refused = load(layout).unwrap_err();
        assert_eq!(refused, LoadError::Links(LinksError(layout)));
        let said: String = alloc::format!("{refused}");
        assert!(said.starts_with("the network's switch") && !said.contains('\n'), "{said}");
    }
}
