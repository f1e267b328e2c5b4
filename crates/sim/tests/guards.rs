//! A check that guards safety is itself checked: with the guard removed, the same swarm that passes
//! with it finds a violation. Printed: the median number of seeds over several starts.
//!
//! The invariants are off, so that a client must see what is wrong: its history is not
//! linearizable, or, where the guard is about epochs and copies, the rack does not come to rest, or
//! replicas differ there. With CONCORD_GUARD_INVARIANTS=1 they are on, and judge first.
//!
//! The dirty set (with drop on full) and the last-committed check cover each other in read-ahead
//! protocols: a fast read that passes §8.2's check shows committed writes only, and a committed
//! write is at every replica. So the dirty set is shown where the paper says that it suffices by
//! itself (§6.2: "in an ideal network, where messages are processed in order"): without the
//! last-committed check, in an ordered network, the swarm passes; without the dirty set or drop on
//! full as well, it finds a violation.
//!
//! Nor is the floor of a copy missed alone: what a joining replica copied and others have not is
//! uncommitted, and so its object is in the dirty set.

use std::time::Instant;

use concord_core::guard::{Guard, Guards};
use concord_core::{MS, Rng, US};
use concord_sim::load::SlowReads;
use concord_sim::{
    Aim, Disks, Fault, Gateways, Node, Plan, Service, SwarmOptions, Timed, run, swarm_of,
};
use concord_wire::control::{Program, Protocol};

const SEEDS_MAX: u64 = 1_000;

type Draw = fn(u64) -> Plan;

/// The guards that this swarm must miss, one at a time.
const ALONE: [Guard; 9] = [
    Guard::InOrderWrites,
    Guard::LastCommitted,
    Guard::Prefix,
    Guard::Lease,
    Guard::ClientTable,
    Guard::FirstCompletion,
    Guard::Incarnation,
    Guard::EpochAgreement,
    Guard::CaughtUp,
];

/// A seed of a protocol, its clients and packets being plain: what guards the protocols is seldom
/// looked at by gateways' clients, which mostly wait for each other.
fn drawn(protocol: Protocol, seed: u64) -> Plan {
    drawn_at(seed, Aim { protocol: Some(protocol), ..Aim::default() })
}

fn drawn_at(seed: u64, aim: Aim) -> Plan {
    let (plan, plain) = (Plan::draw_aimed(seed, aim), Plan::default());
    Plan {
        gateways: plain.gateways,
        sizes: plain.sizes,
        bounds: plain.bounds,
        packets: plain.packets,
        ..plan
    }
}

/// A seed of primary-backup or of chain replication, in turn.
fn read_ahead(seed: u64) -> Plan {
    let chain = seed.is_multiple_of(2);
    drawn(if chain { Protocol::Chain } else { Protocol::PrimaryBackup }, seed)
}

fn vr(seed: u64) -> Plan {
    drawn(Protocol::Vr, seed)
}

fn nopaxos(seed: u64) -> Plan {
    drawn(Protocol::NoPaxos, seed)
}

fn raft(seed: u64) -> Plan {
    drawn(Protocol::Raft, seed)
}

/// Starts of which the median is taken; `CONCORD_GUARD_STARTS` sets another number.
fn starts() -> u64 {
    std::env::var("CONCORD_GUARD_STARTS").ok().and_then(|s| s.parse().ok()).unwrap_or(1)
}

fn median_seeds(name: &str, guards: Guards, draw: Draw) -> u64 {
    let began = Instant::now();
    let mut found: Vec<u64> =
        (1..=starts()).map(|s| seeds_until(s * 1_000_000, guards, draw)).collect();
    found.sort_unstable();
    let median = found[found.len() / 2];
    let seconds = began.elapsed().as_secs_f64();
    println!("without {name}: median {median} seeds over {found:?}, {seconds:.1} s");
    median
}

/// How many seeds from `first_seed` on until one fails; `u64::MAX` if none does.
fn seeds_until(first_seed: u64, guards: Guards, draw: Draw) -> u64 {
    let options = SwarmOptions {
        first_seed,
        seeds: Some(SEEDS_MAX),
        time: None,
        threads: std::thread::available_parallelism().map_or(1, usize::from),
        aim: Aim::default(),
        guards,
    };
    let invariants = std::env::var_os("CONCORD_GUARD_INVARIANTS").is_some();
    let draw = |seed| Plan { guards, invariants, ..draw(seed) };
    let Some(found) = swarm_of(&options, draw, |_| {}).found else { return u64::MAX };
    println!("  {:#x}: {}", found.plan.seed, found.violation.lines().next().unwrap_or_default());
    found.plan.seed - first_seed + 1
}

/// What the others grant to replica 2 is on its way for long, and it is cut off from them
/// meanwhile, not from the switch, which does not hear of the next epoch.
fn late_grants(seed: u64) -> Plan {
    let mut rng = Rng::new(seed);
    let plan = of_three(
        if seed.is_multiple_of(2) { Protocol::Chain } else { Protocol::PrimaryBackup },
        seed,
    );
    let lease = plan.lease_ns;
    let hold_at = rng.between(100, 300) * MS;
    let for_ns = rng.between(lease / 4, lease / 2);
    let late_ns = for_ns + rng.between(2 * lease, 4 * lease);
    let hold = |n| Fault::Hold { from: Node::Replica(n), to: Node::Replica(2), for_ns, late_ns };
    let isolate = Fault::Isolate { replica: 2, for_ns: 8 * lease, stale_switch: true };
    with(plan, [(hold_at, hold(0)), (hold_at, hold(1)), (hold_at + for_ns, isolate)])
}

/// Replica 2 is told to end, and comes again; that the first incarnation gave its leases back is on
/// its way until the second one is told to end, too. Of the epoch without it that one does not
/// hear, nor does the switch.
fn late_release(seed: u64) -> Plan {
    let mut rng = Rng::new(seed);
    let plan = of_three(
        if seed.is_multiple_of(2) { Protocol::Chain } else { Protocol::PrimaryBackup },
        seed,
    );
    let hold_at = rng.between(100, 200) * MS;
    let late_ns = rng.between(400, 600) * MS;
    let again_at = hold_at + late_ns - rng.between(2, 30) * MS;
    let (from, for_ns) = (Node::Replica(2), 100 * MS);
    let hold = |n| Fault::Hold { from, to: Node::Replica(n), for_ns, late_ns };
    let retire = Fault::Retire { replica: 2, for_ns: 5 * MS };
    let unheard = |to| Fault::Cut { from: Node::Controller, to, for_ns: 1_000 * MS };
    let faults = [
        (hold_at, hold(0)),
        (hold_at, hold(1)),
        (hold_at, retire),
        (again_at, unheard(Node::Switch)),
        (again_at, unheard(from)),
        (again_at, retire),
    ];
    with(plan, faults)
}

/// Fixed latency, nothing lost, small tables, and members that never fail.
fn ordered(seed: u64) -> Plan {
    let plan = read_ahead(seed);
    Plan {
        program: Program::of(plan.protocol, true),
        replicas: plan.replicas.max(3),
        loss_ppm: 0,
        duplicate_ppm: 0,
        reorder_ppm: 0,
        latency_ns: 50 * US,
        peer_latency_ns: plan.peer_latency_ns.max(500 * US),
        service: Service::default(),
        think_ns: plan.think_ns.min(MS),
        table_stages: 1,
        slots: 1 << (seed % 4),
        // What expires waits for a slot of a small table.
        calm_ns: 0,
        faults: Vec::new(),
        ..plan
    }
}

#[test]
fn every_guard_is_caught_when_removed() {
    for guard in ALONE {
        let median = median_seeds(&format!("{guard:?}"), Guards::without(guard), read_ahead);
        assert!(median <= SEEDS_MAX, "no violation in {SEEDS_MAX} seeds without {guard:?}");
    }
    let aimed: [(Guard, Draw); 2] =
        [(Guard::LeaseClock, late_grants), (Guard::EpochSwap, two_controllers)];
    are_caught("read-ahead", &[], &aimed);
}

/// A lease that another incarnation gave back is caught when that frees it.
#[test]
fn foreign_returned_lease_is_caught() {
    are_caught("read-ahead", &[], &[(Guard::Release, late_release)]);
}

/// A second controller decides while the first one sleeps, and a replica restarts about when that
/// one wakes up.
fn two_controllers(seed: u64) -> Plan {
    let mut rng = Rng::new(seed);
    let plan = read_ahead(seed);
    let mut faults: Vec<Timed> = plan.faults.clone();
    faults.retain(|f| !matches!(f.fault, Fault::OldState { .. }));
    for _ in 0..3 {
        let at = rng.between(50, 600) * MS;
        let for_ns = rng.between(5, 400) * MS;
        let replica = rng.below(plan.replicas as u64) as usize;
        let leaves_at = at + for_ns - rng.below(for_ns / 2);
        faults.push(Timed { at_ns: at, fault: Fault::SecondController { for_ns } });
        faults.push(Timed { at_ns: leaves_at, fault: Fault::Restart { replica } });
    }
    faults.sort_by_key(|f| f.at_ns);
    Plan { faults, ..plan }
}

/// All clients are Redis clients that pipeline, and some of their gateways die.
fn redis(seed: u64) -> Plan {
    let plan = read_ahead(seed);
    let gateways = Gateways {
        count: plan.clients,
        pipeline_max: plan.gateways.pipeline_max.max(4),
        ..plan.gateways
    };
    let mut rng = Rng::new(seed);
    let client = rng.below(plan.clients as u64) as usize;
    let at_ns = rng.between(100, 400) * MS;
    Plan { gateways, ..plan }.with_fault(at_ns, Fault::RestartClient { client })
}

/// The same, and they wait for what they pop of lists.
fn waiting(seed: u64) -> Plan {
    let plan = redis(seed);
    Plan { gateways: Gateways { waiting_percent: 100, ..plan.gateways }, ..plan }
}

/// What gateways and their clients check themselves.
#[test]
fn every_guard_of_gateways_is_caught_when_removed() {
    let guards = [Guard::FreshSession, Guard::WriteOrder, Guard::PipelineOrder, Guard::ReplyOrder];
    are_caught("gateways", &[], &guards.map(|guard| (guard, redis as Draw)));
    are_caught("pops that wait", &[], &[(Guard::LateElement, waiting as Draw)]);
}

/// In an ordered network the dirty set alone suffices and its removal is caught.
#[test]
fn ordered_network_needs_the_dirty_set() {
    let base = Guards::without(Guard::LastCommitted);
    for seed in 0..500 {
        let outcome = run(&Plan { guards: base, ..ordered(seed) });
        assert_eq!(outcome.violation, None, "seed {seed}");
    }
    for guard in [Guard::DirtySet, Guard::DropOnFull] {
        let median = median_seeds(&format!("{guard:?}"), base.and_without(guard), ordered);
        assert!(median <= SEEDS_MAX, "no violation in {SEEDS_MAX} seeds without {guard:?}");
    }
}

/// What VR's own swarm must miss, one at a time.
const VR_ALONE: [Guard; 7] = [
    Guard::InOrderWrites,
    Guard::ClientTable,
    Guard::Incarnation,
    Guard::Visibility,
    Guard::View,
    Guard::DirtySet,
    Guard::DropOnFull,
];

/// What NOPaxos' own swarm must miss, one at a time. Its order is the switch's: what keeps the
/// order of VR's writes is the rule of gaps here, and a write without a slot goes on as a no-op
/// (T23).
const NOPAXOS_ALONE: [Guard; 7] = [
    Guard::Gaps,
    Guard::ClientTable,
    Guard::Incarnation,
    Guard::Visibility,
    Guard::View,
    Guard::DirtySet,
    Guard::DropOnFull,
];

/// A group of three whose first leader is replica 0, without faults.
fn of_three(protocol: Protocol, seed: u64) -> Plan {
    let plan = drawn(protocol, seed);
    Plan {
        program: Program::of(protocol, true),
        replicas: 3,
        clients: plan.clients.max(2),
        loss_ppm: plan.loss_ppm / 4,
        faults: Vec::new(),
        ..plan
    }
}

fn with<const N: usize>(plan: Plan, faults: [(u64, Fault); N]) -> Plan {
    let mut faults: Vec<Timed> = faults.map(|(at_ns, fault)| Timed { at_ns, fault }).into();
    faults.sort_by_key(|f| f.at_ns);
    Plan { faults, ..plan }
}

/// The rack falls in two, a follower alone with the old switch on one side. With one switch, all
/// that asks a replica of an earlier view has passed the switch before it heard of the next: it is
/// concurrent with all that the next one acknowledges, and no lease is needed. A leader would leave
/// its view when it hears no quorum, about when its lease ends (`StepAside`).
fn split(protocol: Protocol, seed: u64) -> Plan {
    let mut rng = Rng::new(seed);
    let fault =
        Fault::Split { replica: rng.between(1, 2) as usize, for_ns: rng.between(500, 1_500) * MS };
    with(of_three(protocol, seed), [(rng.between(100, 300) * MS, fault)])
}

/// Replica 2 alone leaves the view, since it does not hear the leader; its vote for replica 1 is on
/// its way for long. It crashes, recovers, and is the only one whom the leader reaches.
fn late_vote(protocol: Protocol, seed: u64) -> Plan {
    let mut rng = Rng::new(seed);
    let plan = of_three(protocol, seed);
    let lease = plan.lease_ns;
    let silent_at = rng.between(100, 200) * MS;
    let replica = Node::Replica;
    let cut = |from, to, for_ns| Fault::Cut { from: replica(from), to: replica(to), for_ns };
    let crash_at = silent_at + 2 * lease + rng.below(2 * lease);
    let recovered_at = crash_at + lease + rng.between(10, 100) * MS;
    let late_at = recovered_at + rng.between(20, 150) * MS;
    let (hold_ns, late_ns) = (crash_at - silent_at, late_at - silent_at);
    let hold = Fault::Hold { from: replica(2), to: replica(1), for_ns: hold_ns, late_ns };
    let pause = Fault::Pause { node: replica(0), for_ns: rng.between(1, 500) * MS };
    let faults = [
        (silent_at, cut(0, 1, lease + rng.below(lease / 2))),
        (silent_at, cut(0, 2, lease + rng.below(lease / 2))),
        (silent_at, cut(2, 0, hold_ns)),
        (silent_at, hold),
        (crash_at, Fault::Restart { replica: 2 }),
        (recovered_at, cut(0, 1, late_at - recovered_at + lease)),
        (late_at, pause),
    ];
    with(plan, faults)
}

/// The first leader is cut off, the others go on without it. When it is heard again, one of them is
/// cut off and the other recovers; then the one who has what they did together dies, if the rack
/// may lose one more.
fn stale_leader(protocol: Protocol, seed: u64) -> Plan {
    let mut rng = Rng::new(seed);
    let isolate = |replica, for_ns| Fault::Isolate { replica, for_ns, stale_switch: false };
    let stale_at = rng.between(100, 200) * MS;
    let heard_at = stale_at + rng.between(500, 1_000) * MS;
    let apart_at = heard_at - rng.between(5, 100) * MS;
    let faults = [
        (stale_at, isolate(0, heard_at - stale_at)),
        (apart_at, isolate(1, 2_000 * MS)),
        (apart_at + MS, Fault::Restart { replica: 2 }),
        (heard_at + rng.between(200, 600) * MS, Fault::Kill { replica: 1 }),
    ];
    with(of_three(protocol, seed), faults)
}

/// Replica 1, which leads next, is cut off until the others keep too few records for it. While it
/// copies the state, the leader is cut off.
fn copying_next(protocol: Protocol, seed: u64) -> Plan {
    let mut rng = Rng::new(seed);
    let isolate = |replica, for_ns| Fault::Isolate { replica, for_ns, stale_switch: false };
    let apart_at = rng.between(50, 150) * MS;
    let back_at = apart_at + rng.between(400, 700) * MS;
    let faults = [
        (apart_at, isolate(1, back_at - apart_at)),
        (back_at + rng.between(5, 120) * MS, isolate(0, 1_000 * MS)),
        // Until then the rack is not healed.
        (back_at + 1_000 * MS, Fault::Pause { node: Node::Controller, for_ns: MS }),
    ];
    let plan = with(of_three(protocol, seed), faults);
    let (think_ns, writes_percent) = (plan.think_ns.min(5 * MS), 15);
    let peer_latency_ns = 3 * MS;
    Plan { records_kept: 20, copy_bytes: 1, peer_latency_ns, think_ns, writes_percent, ..plan }
}

/// One way between two replicas.
fn cut(from: usize, to: usize, for_ns: u64) -> Fault {
    Fault::Cut { from: Node::Replica(from), to: Node::Replica(to), for_ns }
}

/// Of five, replica 4 alone leaves the view of replica 0, since it and two others do not hear that
/// one for a while; what it says to replica 3 is on its way for long. It crashes and recovers, and
/// replica 3 does not hear of that before it grants a lease to it. Replicas 1 and 2 grant it none.
fn late_leave(protocol: Protocol, seed: u64) -> Plan {
    let mut rng = Rng::new(seed);
    let plan = Plan { replicas: 5, loss_ppm: 0, ..of_three(protocol, seed) };
    let lease = plan.lease_ns;
    let silent_at = rng.between(100, 200) * MS;
    let silent_ns = lease + rng.below(lease / 2);
    let crash_at = silent_at + 2 * lease;
    let recovered_at = crash_at + lease + rng.between(20, 60) * MS;
    let late_at = recovered_at + lease + rng.below(lease);
    let long_ns = 6 * lease;
    let (hold_ns, late_ns) = (crash_at - silent_at, late_at - silent_at);
    let (from, to) = (Node::Replica(4), Node::Replica(3));
    let mut faults = vec![
        (silent_at, Fault::Hold { from, to, for_ns: hold_ns, late_ns }),
        (crash_at, Fault::Restart { replica: 4 }),
        (crash_at, cut(4, 3, recovered_at - crash_at)),
    ];
    faults.extend([1, 2, 4].map(|deaf| (silent_at, cut(0, deaf, silent_ns))));
    faults.extend([0, 1, 2].map(|other| (silent_at, cut(4, other, hold_ns))));
    faults.extend([1, 2].map(|other| (recovered_at, cut(4, other, long_ns))));
    // What the others say to each other about the next view does not reach it.
    let apart_at = late_at - rng.between(1, 10) * MS;
    faults.extend([0, 1, 2, 3].map(|other| (apart_at, cut(other, 4, long_ns))));
    faults.extend([0, 3].map(|other| (apart_at, cut(4, other, long_ns))));
    let mut faults: Vec<Timed> =
        faults.into_iter().map(|(at_ns, fault)| Timed { at_ns, fault }).collect();
    faults.sort_by_key(|f| f.at_ns);
    Plan { faults, ..plan }
}

/// All that replica 2 says to its leader is on its way for long, from the start on: each question
/// for a stream, and the same by other numbers, as nobody answers.
fn late_questions(protocol: Protocol, seed: u64) -> Plan {
    let mut rng = Rng::new(seed);
    let plan = of_three(protocol, seed);
    let for_ns = rng.between(560, 900) * MS;
    let late_ns = for_ns + rng.between(20, 1_000) * MS;
    let (from, to) = (Node::Replica(2), Node::Replica(0));
    with(plan, [(0, Fault::Hold { from, to, for_ns, late_ns })])
}

/// The followers hear the first leader for seconds, and it hears none of them. Times to live pass
/// meanwhile.
fn deaf_leader(protocol: Protocol, seed: u64) -> Plan {
    let mut rng = Rng::new(seed);
    let at = rng.between(100, 300) * MS;
    with(of_three(protocol, seed), [1, 2].map(|from| (at, cut(from, 0, 7_000 * MS))))
}

/// A group of two: a quorum is everybody, so that what a quorum executed is visible everywhere.
fn ordered_pair(protocol: Protocol, seed: u64) -> Plan {
    let plan = ordered(seed);
    let (program, disks) = (Program::of(protocol, true), Disks::default());
    Plan { protocol, program, disks, replicas: 2, slots: 64, ..plan }
}

/// Each removed guard is caught by its draw, which passes with all of them where it was made for
/// the guard.
fn are_caught(name: &str, alone: &[(Guard, Draw)], aimed: &[(Guard, Draw)]) {
    for (guard, draw) in alone.iter().chain(aimed) {
        let median = median_seeds(&format!("{name} {guard:?}"), Guards::without(*guard), *draw);
        assert!(
            median <= SEEDS_MAX,
            "no violation in {SEEDS_MAX} seeds of {name} without {guard:?}"
        );
    }
    for (guard, draw) in aimed {
        for seed in 0..100 {
            assert_eq!(run(&draw(seed)).violation, None, "{name} with {guard:?}, seed {seed}");
        }
    }
}

#[test]
fn every_guard_of_vr_is_caught_when_removed() {
    let aimed: [(Guard, Draw); 2] = [
        (Guard::CaughtUp, |seed| copying_next(Protocol::Vr, seed)),
        (Guard::CrashVector, |seed| late_vote(Protocol::Vr, seed)),
    ];
    are_caught("VR", &VR_ALONE.map(|guard| (guard, vr as Draw)), &aimed);
}

/// That of Figure 8 (`OwnTerm`) is shown by a script, and ReadIndex' by a test
/// (`crates/protocols/src/quorum/tests/raft.rs`).
#[test]
fn every_guard_of_raft_is_caught_when_removed() {
    let alone = [
        Guard::OneVote,
        Guard::UpToDate,
        Guard::InOrderWrites,
        Guard::ClientTable,
        Guard::Visibility,
    ];
    let aimed: [(Guard, Draw); 1] = [(Guard::Lease, |seed| split(Protocol::Raft, seed))];
    are_caught("Raft", &alone.map(|guard| (guard, raft as Draw)), &aimed);
}

/// A seed of Raft whose replicas answer reads so.
fn reading(seed: u64, reads: SlowReads) -> Plan {
    drawn_at(seed, Aim { protocol: Some(Protocol::Raft), reads: Some(reads), ..Aim::default() })
}

#[test]
fn every_guard_of_follower_leases_is_caught_when_removed() {
    let alone = [Guard::LeaseHolders, Guard::ReadLease, Guard::LeaseFloor, Guard::GroupRevoked];
    let leased: Draw = |seed| reading(seed, SlowReads::FollowerLease);
    let by_quorum: Draw = |seed| reading(seed, SlowReads::Quorum);
    let aimed = [(Guard::QuorumEnd, by_quorum)];
    are_caught("follower leases", &alone.map(|guard| (guard, leased)), &aimed);
}

/// A leader that is cut off leaves its view before a replica that recovers could take its word, in
/// these runs. So the recovery quorum is shown where such a leader stays.
#[test]
fn recovery_quorum_with_a_stale_leader_is_caught() {
    let base = Guards::without(Guard::StepAside);
    let draws: [(&str, Draw); 2] = [
        ("VR", |seed| stale_leader(Protocol::Vr, seed)),
        ("NOPaxos", |seed| stale_leader(Protocol::NoPaxos, seed)),
    ];
    for (name, draw) in draws {
        for seed in 0..100 {
            let outcome = run(&Plan { guards: base, ..draw(seed) });
            assert_eq!(outcome.violation, None, "{name}, seed {seed}");
        }
        let without = base.and_without(Guard::RecoveryQuorum);
        let median = median_seeds(&format!("{name} RecoveryQuorum"), without, draw);
        assert!(median <= SEEDS_MAX, "no violation in {SEEDS_MAX} seeds of {name}: RecoveryQuorum");
    }
}

#[test]
fn leases_of_quorum_protocols_are_caught_when_removed() {
    are_caught("VR", &[], &[(Guard::Lease, |seed| split(Protocol::Vr, seed))]);
    are_caught("NOPaxos", &[], &[(Guard::Lease, |seed| split(Protocol::NoPaxos, seed))]);
}

/// What packets of earlier incarnations, late questions and ways that are cut in one direction do.
#[test]
fn late_packet_and_deaf_leader_guards_are_caught() {
    // `IncarnationRaised` is caught by no draw of these: who hears of two lives with one number
    // keeps the first, so that five replicas and a late packet are needed
    // (`protocols/src/quorum/tests/incarnations.rs` removes it).
    let vr: [(Guard, Draw); 2] = [
        (Guard::StreamOnce, |seed| late_questions(Protocol::Vr, seed)),
        (Guard::StepAside, |seed| deaf_leader(Protocol::Vr, seed)),
    ];
    are_caught("VR", &[], &vr);
    let nopaxos: [(Guard, Draw); 1] =
        [(Guard::StepAside, |seed| deaf_leader(Protocol::NoPaxos, seed))];
    are_caught("NOPaxos", &[], &nopaxos);
}

/// A vote of an earlier incarnation, and a lease of the next one. That `Guard::LeaseIncarnation` is
/// needed is shown by the protocol's own test (bug_15_14), built with `mutants`: with one switch no
/// client sees that a follower's lease outlives its view.
#[test]
fn no_lease_outlives_its_view_where_a_late_vote_counts() {
    for protocol in [Protocol::Vr, Protocol::NoPaxos] {
        for seed in 0..100 {
            assert_eq!(
                run(&late_leave(protocol, seed)).violation,
                None,
                "{protocol:?}, seed {seed}"
            );
        }
    }
}

#[test]
fn every_guard_of_nopaxos_is_caught_when_removed() {
    let aimed: [(Guard, Draw); 2] = [
        (Guard::CaughtUp, |seed| copying_next(Protocol::NoPaxos, seed)),
        (Guard::CrashVector, |seed| late_vote(Protocol::NoPaxos, seed)),
    ];
    are_caught("NOPaxos", &NOPAXOS_ALONE.map(|guard| (guard, nopaxos as Draw)), &aimed);
}

/// Harmonia §8.3 delays completions so that few fast reads are refused; P1 is what makes them safe.
/// So the COMMIT-ACK quorum is shown where it suffices by itself: where a quorum is everybody.
#[test]
fn commit_acks_suffice_where_a_quorum_is_all() {
    let base = Guards::without(Guard::Visibility);
    let draws: [(&str, Draw); 2] = [
        ("VR", |seed| ordered_pair(Protocol::Vr, seed)),
        ("NOPaxos", |seed| ordered_pair(Protocol::NoPaxos, seed)),
    ];
    for (name, draw) in draws {
        for seed in 0..300 {
            let outcome = run(&Plan { guards: base, ..draw(seed) });
            assert_eq!(outcome.violation, None, "{name}, seed {seed}");
        }
        let without = base.and_without(Guard::CommitAck);
        let median = median_seeds(&format!("{name} CommitAck"), without, draw);
        assert!(median <= SEEDS_MAX, "no violation in {SEEDS_MAX} seeds of {name}: CommitAck");
    }
}

/// CRAQ with a head, at least one in the middle, and a tail.
fn craq(seed: u64) -> Plan {
    let plan = drawn(Protocol::Craq, seed);
    Plan { replicas: plan.replicas.max(3), ..plan }
}

/// The tail and the one before it are cut off together from the others and the controller, and the
/// switch does not hear of it (trap T25).
fn craq_with_a_detached_tail(seed: u64) -> Plan {
    let mut rng = Rng::new(seed);
    let plan = craq(seed);
    let (at_ns, for_ns) = (rng.between(50, 500) * MS, rng.between(800, 2_000) * MS);
    let (left, right) = (0..plan.replicas - 2, plan.replicas - 2..plan.replicas);
    let mut cuts = vec![(Node::Controller, Node::Switch)];
    for detached in right.map(Node::Replica) {
        for other in left.clone().map(Node::Replica).chain([Node::Controller]) {
            cuts.extend([(detached, other), (other, detached)]);
        }
    }
    let cut = |(from, to)| Timed { at_ns, fault: Fault::Cut { from, to, for_ns } };
    Plan { faults: cuts.into_iter().map(cut).collect(), ..plan }
}

/// One in the middle is cut off, and asks the tail before it hears that it was removed.
fn craq_with_a_stranger(seed: u64) -> Plan {
    let mut rng = Rng::new(seed);
    let at_ns = rng.between(50, 500) * MS;
    let for_ns = rng.between(700, 1_500) * MS;
    let fault = Fault::Isolate { replica: 1, for_ns, stale_switch: true };
    Plan { faults: vec![Timed { at_ns, fault }], ..craq(seed) }
}

#[test]
fn every_guard_of_craq_is_caught_when_removed() {
    let aimed: [(Guard, Draw); 3] = [
        (Guard::AskTail, craq),
        (Guard::VersionLease, craq_with_a_detached_tail),
        (Guard::VersionEpoch, craq_with_a_stranger),
    ];
    for (guard, draw) in aimed {
        for seed in 0..100 {
            assert_eq!(run(&draw(seed)).violation, None, "with {guard:?}, seed {seed}");
        }
    }
    let any = [Guard::Lease, Guard::ClientTable, Guard::Incarnation].map(|g| (g, craq as Draw));
    for (guard, draw) in aimed.into_iter().chain(any) {
        let median = median_seeds(&format!("CRAQ {guard:?}"), Guards::without(guard), draw);
        assert!(median <= SEEDS_MAX, "no violation in {SEEDS_MAX} seeds of CRAQ without {guard:?}");
    }
}
