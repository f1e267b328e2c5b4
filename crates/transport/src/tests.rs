#![allow(clippy::unwrap_used)]

use alloc::vec::Vec;

use concord_core::{Addr, Guards, Instant, MS, Machine as _, NodeId, Now, US};
use concord_wire::harmony::{Op, Reason, Repr};

use super::*;

type Sent = Vec<(Addr, Vec<u8>)>;

fn addr(place: u16) -> Addr {
    Addr { ip: 2, port: 10 + place }
}

fn at(ns: u64) -> Now {
    Now { instant: Instant(ns), unix_ms: 0 }
}

/// Two slots, packets of 100 bytes every microsecond, messages of up to 10 kB.
fn settings(place: u16, incarnation: u32, guards: Guards) -> HostSettings {
    HostSettings {
        node: NodeId(1 + place),
        place,
        incarnation,
        hosts: (0..4).map(addr).collect(),
        slots: 2,
        phase_ns: 1_000,
        fragment_bytes: 100,
        admission_ns: 200 * US,
        life_ns: MS,
        round_ns: 20 * US,
        extra_bytes: 500,
        message_bytes_max: 10_000,
        pending_max: 3,
        submissions_max: 8,
        guards,
        ..HostSettings::EXAMPLE
    }
}

fn host(place: u16, incarnation: u32, guards: Guards) -> Host {
    Host::new(settings(place, incarnation, guards)).unwrap()
}

/// A packet comes; what the host sends.
fn comes(host: &mut Host, ns: u64, packet: &Repr, data: &[u8]) -> Vec<Repr> {
    let mut sent = Sent::new();
    host.handle(at(ns), addr(9), &mut packet.packet(data), &mut sent);
    parsed(&sent)
}

fn ticks(host: &mut Host, ns: u64) -> Vec<Repr> {
    let mut sent = Sent::new();
    host.tick(at(ns), &mut sent);
    parsed(&sent)
}

fn parsed(sent: &Sent) -> Vec<Repr> {
    sent.iter().map(|(_, bytes)| Repr::parse(bytes).unwrap().0).collect()
}

/// From host 0 to host 1.
fn packet(op: Op, number: u64) -> Repr {
    let receiver_incarnation = u32::from(op != Op::Request);
    Repr { receiver_incarnation, ..Repr::new(op, 0, 1, number) }
}

fn request(number: u64, bytes: u32) -> Repr {
    Repr { bytes, ..packet(Op::Request, number) }
}

fn rsvp(number: u64, slot: u8, grant: u32, bytes: u32) -> Repr {
    Repr { slot, grant, bytes, span: 500, ..packet(Op::Rsvp, number) }
}

fn ops(packets: &[Repr]) -> Vec<Op> {
    packets.iter().map(|packet| packet.op).collect()
}

/// Both hosts beside each other, each packet at once; what was sent, by operation, until both rest.
fn run(hosts: &mut [Host; 2], ns: &mut u64) -> Vec<(u64, Repr)> {
    let mut all = Vec::new();
    let end = *ns + 20 * MS;
    while *ns < end && hosts.iter().any(|host| !host.is_idle()) {
        let mut under_way: Sent = Sent::new();
        for host in &mut *hosts {
            host.tick(at(*ns), &mut under_way);
        }
        while !under_way.is_empty() {
            for (to, mut bytes) in core::mem::take(&mut under_way) {
                all.push((*ns, Repr::parse(&bytes).unwrap().0));
                let index = usize::from(to.port - 10);
                hosts[index].handle(at(*ns), addr(9), &mut bytes, &mut under_way);
            }
        }
        let due = hosts.iter().map(|host| host.deadline().at.0).min().unwrap();
        *ns = due.max(*ns + 1);
    }
    all
}

fn pair(guards: Guards) -> [Host; 2] {
    [host(0, 1, guards), host(1, 1, guards)]
}

/// A message of ten packets: `request`, `rsvp`, data in both slots, `complete` of both ends.
#[test]
fn message_is_delivered_and_all_slots_are_free() {
    let mut hosts = pair(Guards::ALL);
    let data: Vec<u8> = (0..1_000_u32).map(|n| n as u8).collect();
    let (mut ns, number) = (0, hosts[0].submit(at(0), 1, data.clone()).unwrap());
    let sent = run(&mut hosts, &mut ns);
    let delivered = hosts[1].poll_delivered().unwrap();
    assert_eq!((delivered.from, delivered.number, delivered.data), (0, number, data));
    assert_eq!(hosts[0].poll_completion().unwrap().outcome, Outcome::Complete);
    assert_eq!((hosts[0].poll_completion(), hosts[1].poll_delivered()), (None, None));
    assert!(hosts.iter().all(Host::is_idle));
    let count = |op: Op, to_sender: bool| {
        sent.iter().filter(|(_, p)| p.op == op && p.to_sender == to_sender).count()
    };
    assert_eq!((count(Op::Request, false), count(Op::Data, false)), (1, 10));
    assert_eq!(count(Op::Complete, true), 1);
    assert_eq!(count(Op::Rsvp, false), count(Op::Complete, false), "each reservation is closed");
    assert!(count(Op::Rsvp, false) >= 2, "a free slot goes to a message that has one");
}

/// H3: packets of all slots leave a phase apart, also of a sender that is late.
#[test]
fn h3_late_sender_does_not_catch_up() {
    let burst = |guards| {
        let mut sender = host(0, 1, guards);
        sender.submit(at(0), 1, alloc::vec![0; 2_000]).unwrap();
        ticks(&mut sender, 0);
        comes(&mut sender, 10, &rsvp(1, 0, 1, 1_000), &[]);
        comes(&mut sender, 10, &rsvp(1, 1, 1, 1_000), &[]);
        assert_eq!(ops(&ticks(&mut sender, 1_000)), [Op::Data]);
        assert_eq!(ops(&ticks(&mut sender, 1_500)), [], "not before its phase");
        // It is late by seven phases.
        let late = ops(&ticks(&mut sender, 9_300)).len();
        assert_eq!(ops(&ticks(&mut sender, 10_299)), [], "nor sooner after a late one");
        late
    };
    assert_eq!(burst(Guards::ALL), 1);
    #[cfg(feature = "mutants")]
    {
        let unguarded = std_catch(|| burst(Guards::without(concord_core::Guard::NoCatchUp)));
        assert!(unguarded.is_none_or(|late| late > 1), "{unguarded:?}");
    }
}

/// What a scenario gives; `None` if one of its own assertions fails.
#[cfg(feature = "mutants")]
fn std_catch<T>(scenario: impl FnOnce() -> T) -> Option<T> {
    extern crate std;
    std::panic::catch_unwind(core::panic::AssertUnwindSafe(scenario)).ok()
}

/// H1: the slot's last packet holds it for a packet's time: `complete` leaves in its next phase.
#[test]
fn h1_last_packet_holds_its_slot() {
    let with_last = |guards| {
        let mut sender = host(0, 1, guards);
        sender.submit(at(0), 1, alloc::vec![0; 100]).unwrap();
        ticks(&mut sender, 0);
        comes(&mut sender, 10, &rsvp(1, 0, 1, 100), &[]);
        let first = ops(&ticks(&mut sender, 2_000));
        let first = if first.is_empty() { ops(&ticks(&mut sender, 3_000)) } else { first };
        let rest = (4..10).flat_map(|n| ops(&ticks(&mut sender, n * 1_000))).collect::<Vec<_>>();
        (first, rest)
    };
    let (first, rest) = with_last(Guards::ALL);
    assert_eq!((&first[..], &rest[..]), (&[Op::Data][..], &[Op::Complete][..]));
    #[cfg(feature = "mutants")]
    {
        let (first, _) = with_last(Guards::without(concord_core::Guard::LastPacketHolds));
        assert_eq!(first, [Op::Data, Op::Complete]);
    }
}

/// H4: an `rsvp` that comes twice, or after its grant was closed, opens no second slot.
#[test]
fn h4_rsvp_opens_one_slot() {
    let slots = |guards| {
        let mut sender = host(0, 1, guards);
        sender.submit(at(0), 1, alloc::vec![0; 1_000]).unwrap();
        ticks(&mut sender, 0);
        let grant = rsvp(1, 0, 7, 500);
        assert_eq!(comes(&mut sender, 10, &grant, &[]), []);
        assert_eq!(comes(&mut sender, 20, &grant, &[]), [], "it gives nothing back either");
        sender.slots_held().0
    };
    assert_eq!(slots(Guards::ALL), 1);
    #[cfg(feature = "mutants")]
    assert_eq!(slots(Guards::without(concord_core::Guard::GrantOnce)), 2);
}

/// An `rsvp` that comes again once its message is over, while its slot waits for its last phase: it
/// gives nothing back, which would free the virtual links a cycle too early (trap H1).
#[test]
fn bug_23_42_doubled_rsvp_of_an_ended_message_is_ignored() {
    let given_back = |guards| {
        let mut sender = host(0, 1, guards);
        sender.submit(at(0), 1, alloc::vec![0; 100]).unwrap();
        ticks(&mut sender, 0);
        let grant = rsvp(1, 0, 7, 500);
        assert_eq!(comes(&mut sender, 10, &grant, &[]), []);
        assert_eq!(ops(&ticks(&mut sender, 20)), [Op::Data]);
        let over = Repr { to_sender: true, ..packet(Op::Complete, 1) };
        assert_eq!(comes(&mut sender, 30, &over, &[]), []);
        assert_eq!(sender.slots_held().0, 1, "its next phase closes it");
        ops(&comes(&mut sender, 40, &grant, &[]))
    };
    assert_eq!(given_back(Guards::ALL), []);
    #[cfg(feature = "mutants")]
    assert_eq!(given_back(Guards::without(concord_core::Guard::GrantOnce)), [Op::Reject]);
}

/// A reservation for which the sender has no slot, or no message, goes back along its path.
#[test]
fn rsvp_without_slot_or_message_is_given_back() {
    let mut sender = host(0, 1, Guards::ALL);
    sender.submit(at(0), 1, alloc::vec![0; 1_000]).unwrap();
    ticks(&mut sender, 0);
    for slot in 0..2 {
        assert_eq!(comes(&mut sender, 10, &rsvp(1, slot, 1, 500), &[]), []);
    }
    let back = comes(&mut sender, 20, &rsvp(1, 2, 1, 500), &[]);
    assert_eq!(
        (back[0].op, back[0].reason, back[0].to_sender),
        (Op::Reject, Reason::NoSlot, false)
    );
    let back = comes(&mut sender, 20, &rsvp(9, 3, 1, 500), &[]);
    assert_eq!((back[0].op, back[0].reason), (Op::Reject, Reason::Over));
    let other = Repr { sender_incarnation: 4, ..rsvp(1, 4, 1, 500) };
    assert_eq!(comes(&mut sender, 20, &other, &[])[0].reason, Reason::Over, "of another start");
}

/// H12: a host that stood still sends nothing on a reservation whose time is over.
#[test]
fn h12_old_reservation_is_not_used() {
    let after_pause = |guards| {
        let mut sender = host(0, 1, guards);
        sender.submit(at(0), 1, alloc::vec![0; 1_000]).unwrap();
        ticks(&mut sender, 0);
        comes(&mut sender, 10, &rsvp(1, 0, 1, 1_000), &[]);
        // Its life was 500 us.
        let sent = [700, 701].map(|us| ops(&ticks(&mut sender, us * US)));
        sent.into_iter().flatten().filter(|op| *op == Op::Data).count()
    };
    assert_eq!(after_pause(Guards::ALL), 0);
    #[cfg(feature = "mutants")]
    assert!(after_pause(Guards::without(concord_core::Guard::ReservationEnds)) > 0);
}

/// H5: a receiver that has begun anew may have delivered the message before: it fails.
#[test]
fn h5_message_stays_with_one_incarnation_of_its_receiver() {
    let outcome = |guards| {
        let mut sender = host(0, 1, guards);
        sender.submit(at(0), 1, alloc::vec![0; 100]).unwrap();
        ticks(&mut sender, 0);
        comes(&mut sender, 10, &rsvp(1, 0, 1, 100), &[]);
        for us in 1..8 {
            ticks(&mut sender, us * US);
        }
        // All of it was sent; the answer was lost, and the receiver begins anew.
        let again = Repr { receiver_incarnation: 2, ..rsvp(1, 0, 2, 100) };
        let back = ops(&comes(&mut sender, 30 * US, &again, &[]));
        (back, sender.poll_completion().map(|completion| completion.outcome))
    };
    let failed = Some(Outcome::Failure(Reason::Restarted));
    assert_eq!(outcome(Guards::ALL), (alloc::vec![Op::Reject], failed));
    #[cfg(feature = "mutants")]
    assert_eq!(outcome(Guards::without(concord_core::Guard::ReceiverBound)).1, None);
}

/// A message's packets come again after it was delivered, the request first.
#[test]
fn h5_message_is_delivered_once() {
    let delivered = |guards| {
        let mut receiver = host(1, 1, guards);
        for ns in [0, 90 * US] {
            comes(&mut receiver, ns, &request(1, 100), &[]);
            comes(&mut receiver, ns, &packet(Op::Data, 1), &[7; 100]);
        }
        core::iter::from_fn(|| receiver.poll_delivered()).count()
    };
    assert_eq!(delivered(Guards::ALL), 1);
    #[cfg(feature = "mutants")]
    assert_eq!(delivered(Guards::without(concord_core::Guard::MessageOnce)), 2);
}

/// H5: an outcome is forgotten once its sender says that the message is over; the request of such
/// a message, and of an earlier start of its sender, opens nothing.
#[test]
fn h5_late_request_opens_nothing() {
    let mut receiver = host(1, 1, Guards::ALL);
    comes(&mut receiver, 0, &request(3, 100), &[]);
    comes(&mut receiver, 0, &packet(Op::Data, 3), &[7; 100]);
    let newer = Repr { span: 0, ..request(9, 100) };
    comes(&mut receiver, 10, &newer, &[]);
    assert_eq!(comes(&mut receiver, 20, &request(3, 100), &[]), [], "it is below the floor");
    let slots = |guards| {
        let mut receiver = host(1, 1, guards);
        let second = Repr { sender_incarnation: 2, ..request(1, 100) };
        comes(&mut receiver, 0, &second, &[]);
        let answers = comes(&mut receiver, 10, &request(2, 100), &[]);
        ops(&answers)
    };
    assert_eq!(slots(Guards::ALL), []);
    #[cfg(feature = "mutants")]
    assert_eq!(slots(Guards::without(concord_core::Guard::OlderSender)), [Op::Rsvp]);
}

/// H5: a host of a later incarnation grants nothing until what it forgot is over.
#[test]
fn h5_restarted_host_waits() {
    let answers = |guards| {
        let mut receiver = host(1, 2, guards);
        let wait_ns = receiver.settings().restart_ns();
        let early =
            [0, wait_ns - 1].map(|ns| ops(&comes(&mut receiver, ns, &request(1, 100), &[])));
        let late = ops(&comes(&mut receiver, wait_ns, &request(1, 100), &[]));
        (early.concat(), late)
    };
    let (early, late) = answers(Guards::ALL);
    assert_eq!((&early[..], &late[..]), (&[][..], &[Op::Rsvp][..]));
    #[cfg(feature = "mutants")]
    assert_eq!(answers(Guards::without(concord_core::Guard::HostRestart)).0, [Op::Rsvp]);
}

/// H4: what closes a grant, come again when the slot has another one, closes nothing.
#[test]
fn h4_complete_closes_its_own_grant() {
    let held = |guards| {
        let mut receiver = host(1, 1, guards);
        let first = comes(&mut receiver, 0, &request(1, 100), &[])[0];
        let complete = Repr { op: Op::Complete, bytes: 0, ..first };
        comes(&mut receiver, 10, &complete, &[]);
        let held = receiver.slots_held().1;
        comes(&mut receiver, 20, &complete, &[]);
        let granted = receiver.granted().map(|(_, grant)| grant).max();
        (held, granted)
    };
    // Nothing was sent on the first: the message gets another one.
    assert_eq!(held(Guards::ALL), (1, Some(2)));
    #[cfg(feature = "mutants")]
    assert_eq!(held(Guards::without(concord_core::Guard::GrantNamed)), (1, Some(3)));
}

/// H9: the rejection of a further slot leaves the message as it is, and the slot is granted again.
#[test]
fn h9_rejected_further_slot_rejects_no_message() {
    let shared = |guards| {
        let settings = HostSettings { tries_again: false, ..settings(1, 1, guards) };
        let mut receiver = Host::new(settings).unwrap();
        let granted = comes(&mut receiver, 0, &request(1, 5_000), &[]);
        assert_eq!(ops(&granted), [Op::Rsvp, Op::Rsvp]);
        assert_eq!(
            (granted[0].bytes, granted[1].bytes),
            (5_000, 500),
            "one BDP for the further one"
        );
        let extra = Repr { op: Op::Reject, reason: Reason::NoLink, ..granted[1] };
        ops(&comes(&mut receiver, 20, &extra, &[]))
    };
    assert_eq!(shared(Guards::ALL), [Op::Rsvp]);
    #[cfg(feature = "mutants")]
    assert_eq!(shared(Guards::without(concord_core::Guard::ExtraRejected)), [Op::Reject]);
}

/// A message of which a part was sent, and whose next part finds no virtual link until δ_admission
/// is over, is rejected, and not failed: its receiver knows that it was not delivered.
#[test]
fn bug_23_41_message_without_link_for_a_later_part_is_rejected() {
    let mut sender = host(0, 1, Guards::ALL);
    sender.submit(at(0), 1, alloc::vec![0; 1_000]).unwrap();
    ticks(&mut sender, 0);
    comes(&mut sender, 10, &rsvp(1, 0, 1, 500), &[]);
    assert_eq!(ops(&[ticks(&mut sender, 1_000), ticks(&mut sender, 2_000)].concat()), [Op::Data]);
    let told = Repr { reason: Reason::NoLink, to_sender: true, ..packet(Op::Reject, 1) };
    comes(&mut sender, 3_000, &told, &[]);
    let outcome = sender.poll_completion().unwrap().outcome;
    assert_eq!(outcome, Outcome::Reject(Reason::NoLink));

    let one = HostSettings { slots: 1, ..settings(1, 1, Guards::ALL) };
    let mut receiver = Host::new(one).unwrap();
    let granted = comes(&mut receiver, 0, &request(1, 1_000), &[]);
    comes(&mut receiver, 10, &packet(Op::Data, 1), &[7; 100]);
    let reject = |rsvp: &Repr| Repr { op: Op::Reject, reason: Reason::NoLink, ..*rsvp };
    let mut answers = comes(&mut receiver, 20, &reject(&granted[0]), &[]);
    assert_eq!(ops(&answers), [Op::Rsvp], "it is tried again");
    answers.extend(comes(&mut receiver, 200 * US, &reject(&answers[0]), &[]));
    let told: Vec<_> = answers.iter().filter(|p| p.to_sender).map(|p| (p.op, p.reason)).collect();
    assert_eq!(told, [(Op::Reject, Reason::NoLink)]);
}

/// §3.1: requests wait oldest first, and are rejected after δ_admission, or if too many wait.
#[test]
fn pending_requests_are_served_oldest_first_or_rejected() {
    let mut receiver = host(1, 1, Guards::ALL);
    let from = |sender: u16, number: u64| Repr { sender, ..request(number, 100) };
    let mut granted = Vec::new();
    for (ns, number) in (1..=6).enumerate() {
        let sender = if number % 2 == 0 { 2 } else { 0 };
        granted.extend(comes(&mut receiver, ns as u64, &from(sender, number), &[]));
    }
    assert_eq!(ops(&granted), [Op::Rsvp, Op::Rsvp, Op::Reject], "two slots, three that wait");
    assert_eq!((granted[2].number, granted[2].reason), (6, Reason::Pending));
    let data = Repr { op: Op::Data, bytes: 0, ..granted[0] };
    comes(&mut receiver, 50, &data, &[1; 100]);
    let complete = Repr { op: Op::Complete, bytes: 100, ..granted[0] };
    let next = comes(&mut receiver, 60, &complete, &[]);
    assert_eq!((next[0].op, next[0].number), (Op::Rsvp, 3));
    let late = ticks(&mut receiver, 200 * US + 3);
    let late = late.iter().filter(|p| p.op == Op::Reject);
    let late: Vec<_> = late.map(|p| (p.number, p.reason)).collect();
    assert_eq!(late, [(4, Reason::Admission)], "the fifth has waited one nanosecond less");
}

/// A grant of which nothing is heard ends by its time, and its message fails.
#[test]
fn silent_grant_expires_and_its_message_fails() {
    let mut receiver = host(1, 1, Guards::ALL);
    let granted = comes(&mut receiver, 0, &request(1, 100), &[])[0];
    let until = receiver.deadline().at.0;
    assert!(until > u64::from(granted.span) << 10, "later than the switches forget it");
    assert_eq!(ticks(&mut receiver, until - 1), []);
    let told = ticks(&mut receiver, until);
    assert_eq!((told[0].op, told[0].reason), (Op::Failure, Reason::Lost));
    assert!(receiver.is_idle());
    let again = comes(&mut receiver, until, &request(1, 100), &[]);
    assert_eq!(ops(&again), [Op::Failure], "and is told again");
}

/// Every message has an outcome in its time, whatever is not answered.
#[test]
fn unanswered_message_fails_in_its_time() {
    let mut sender = host(0, 1, Guards::ALL);
    sender.submit(at(0), 1, alloc::vec![0; 100]).unwrap();
    let (mut ns, mut requests) = (0, 0);
    let end = sender.settings().outcome_ns(100);
    while sender.poll_completion().is_none() {
        requests += ticks(&mut sender, ns).len();
        assert!(ns <= end, "no outcome");
        ns = sender.deadline().at.0.max(ns + 1);
    }
    assert!(requests > 3 && sender.is_idle());
}

/// A submission that cannot be is refused, and those that wait are bounded.
#[test]
fn submissions_are_checked_and_bounded() {
    let mut sender = host(0, 1, Guards::ALL);
    let mut submit = |to, bytes| sender.submit(at(0), to, alloc::vec![0; bytes]);
    assert_eq!(submit(0, 1), Err(SubmitError::Host(0)));
    assert_eq!(submit(4, 1), Err(SubmitError::Host(4)));
    assert_eq!(submit(1, 0), Err(SubmitError::Size(0)));
    assert_eq!(submit(1, 10_001), Err(SubmitError::Size(10_001)));
    for number in 1..=8 {
        assert_eq!(submit(1, 1), Ok(number));
    }
    assert_eq!(submit(1, 1), Err(SubmitError::Full));
}

/// A message longer than one reservation can carry takes several, one after the other.
#[test]
fn long_message_takes_several_grants() {
    let short = |place| HostSettings { life_ns: 60 * US, ..settings(place, 1, Guards::ALL) };
    let mut hosts = [0, 1].map(|place| Host::new(short(place)).unwrap());
    assert!(hosts[0].settings().quota_bytes_max() < 1_000);
    let data: Vec<u8> = (0..10_000_u32).map(|n| (n % 251) as u8).collect();
    let mut ns = 0;
    hosts[0].submit(at(0), 1, data.clone()).unwrap();
    let sent = run(&mut hosts, &mut ns);
    assert_eq!(hosts[1].poll_delivered().unwrap().data, data);
    let grants = sent.iter().filter(|(_, p)| p.op == Op::Rsvp).count();
    assert!(grants > 10, "{grants}");
    assert!(hosts.iter().all(Host::is_idle));
}

/// Settings that there cannot be are refused in words.
#[test]
fn settings_are_checked() {
    let fine = settings(0, 1, Guards::ALL);
    assert_eq!(fine.check(), Ok(()));
    let refused = |change: fn(&mut HostSettings)| {
        let mut other = settings(0, 1, Guards::ALL);
        change(&mut other);
        Host::new(other).unwrap_err()
    };
    assert_eq!(refused(|s| s.place = 4), SettingsError::Hosts { hosts: 4, place: 4 });
    assert_eq!(refused(|s| s.slots = 33), SettingsError::Slots(33));
    assert_eq!(refused(|s| s.fragment_bytes = 0), SettingsError::Fragment(0));
    assert_eq!(refused(|s| s.incarnation = 0), SettingsError::Zero);
    assert_eq!(refused(|s| s.life_ns = 41_000), SettingsError::Lifetime { life_ns: 41_000 });
}

/// A million fuzzed packets would do no more: no panic, and slots stay within their number.
#[test]
fn any_packet_leaves_a_host_whole() {
    let mut rng = concord_core::Rng::new(52);
    let mut host = host(1, 1, Guards::ALL);
    let mut sent = Sent::new();
    let mut newest = 0_u64;
    for ns in 0..40_000 {
        let op = Op::ALL[rng.below(Op::ALL.len() as u64) as usize];
        let (sender, receiver) = if rng.chance(1, 2) { (0, 1) } else { (1, 0) };
        let packet = Repr {
            sender_incarnation: rng.between(1, 3) as u32,
            receiver_incarnation: rng.between(u64::from(op != Op::Request), 2) as u32,
            grant: rng.below(6) as u32,
            slot: rng.below(4) as u8,
            reason: Reason::ALL[rng.below(8) as usize],
            bytes: 100 * rng.below(4) as u32,
            span: rng.below(600) as u32,
            to_sender: rng.chance(1, 2),
            ..Repr::new(
                op,
                sender,
                receiver,
                rng.between(newest.saturating_sub(8).max(1), newest + 2),
            )
        };
        let data = alloc::vec![1; if op == Op::Data { 100 } else { 0 }];
        let data_out = alloc::vec![2; rng.between(1, 400) as usize];
        newest = host.submit(at(ns * 700), 0, data_out).unwrap_or(newest);
        host.handle(at(ns * 700), addr(9), &mut packet.packet(&data), &mut sent);
        host.tick(at(ns * 700), &mut sent);
        let (sends, receives) = host.slots_held();
        assert!(sends <= 2 && receives <= 2);
        while host.poll_completion().is_some() || host.poll_delivered().is_some() {}
        sent.clear();
    }
    let (sender, receiver, _) = host.counters();
    assert!(sender.completed > 0 && sender.slots_opened > 0 && receiver.delivered > 0);
}
