//! A fixed set of seeds for every commit: no violation, and no thin runs. `make swarm` runs fresh
//! ones.

use std::thread;

use concord_core::{Guards, MS, US};
use concord_sim::{
    Aim, Bounds, Fault, Gateways, Node, PROTOCOLS, Plan, Sizes, SwarmOptions, Totals,
    protocol_name, run, swarm,
};
use concord_wire::control::{Program, Protocol};

/// Seeds of each protocol; `CONCORD_SEEDS` sets another number.
const SEEDS: u64 = 2_000;

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|s| s.parse().ok()).unwrap_or(default)
}

fn options(aim: Aim) -> SwarmOptions {
    SwarmOptions {
        first_seed: 0,
        seeds: None,
        time: None,
        threads: thread::available_parallelism().map_or(1, usize::from),
        aim,
        guards: Guards::ALL,
    }
}

/// Runs a swarm and says what it saw.
fn passes(options: &SwarmOptions) -> Totals {
    let report = swarm(options, |_| {});
    let progress = report.progress;
    println!(
        "{:?}, seeds from {:#x}: {} in {:.1} s, {:.0} a second\n{}",
        options.aim.protocol,
        options.first_seed,
        progress.seeds,
        progress.elapsed.as_secs_f64(),
        progress.seeds_per_second(),
        report.totals
    );
    if let Some(found) = report.found {
        let seed = found.plan.seed;
        let protocol = protocol_name(found.plan.protocol);
        panic!(
            "seed {seed:#x}: {}\nreplay: concord sim --protocol {protocol} --seed {seed:#x}",
            found.violation
        );
    }
    report.totals
}

/// Every fixed seed of every protocol is linearizable and makes progress.
#[test]
fn fixed_seeds_of_every_protocol() {
    for protocol in PROTOCOLS {
        let aim = Aim { protocol: Some(protocol), ..Aim::default() };
        let seeds = setting("CONCORD_SEEDS", SEEDS);
        let totals = passes(&SwarmOptions { seeds: Some(seeds), ..options(aim) });
        assert!(totals.operations >= 500 * seeds && totals.faults_injected() >= 3 * seeds);
        let thin = thin(protocol, &totals);
        assert!(seeds < SEEDS || thin.is_empty(), "no run of {protocol:?} saw: {thin:?}");
    }
}

/// What no run of the set saw was not tested.
fn thin(protocol: Protocol, totals: &Totals) -> Vec<&'static str> {
    let r = &totals.replicas;
    let mut seen = vec![
        ("unknown outcomes", totals.unknown),
        ("retries from the table", r.duplicates),
        ("refused by the table", r.refused_requests),
        ("gaps fetched", r.link_resent),
        ("held", r.link_held),
        ("staged bodies", r.fragments_staged),
        ("pulled replies", r.fragments_pulled),
        ("refused: lease", r.refused_lease),
        ("expiries", r.expiries_sent),
        ("lost packets", totals.lost),
        ("duplicated packets", totals.duplicated),
        ("packets in batches", totals.batched),
        ("epochs", totals.control.epochs - totals.runs),
        ("standby switches that took over", totals.control.standbys_taken),
        ("controllers that were too late", totals.control.superseded),
        ("clients that heard of another switch", totals.switches_heard_of),
        ("truncated packets", totals.odd.truncated),
        ("forged packets", totals.odd.forged),
        ("forged writes of replicas", totals.odd.own),
        ("padded packets", totals.odd.padded),
        ("late packets", totals.odd.late),
        ("time beside a minority at fault", totals.watched_ns),
        ("writes refused at full memory", totals.large.out_of_memory),
        ("sessions lost", totals.sessions_lost),
        ("reads of all keys", totals.large.of_all_keys),
        ("long keys", totals.large.keys),
        ("huge values", totals.large.values),
        ("replies of a thousand elements", totals.large.replies),
        ("times to live of a day", totals.large.lifetimes),
        ("keys due at one time", totals.large.due),
        ("times to live judged for lateness", totals.expiries[1]),
    ];
    seen.extend(seen_by_gateways(totals));
    match protocol {
        Protocol::PrimaryBackup | Protocol::Chain => {
            seen.extend(seen_with_help(totals));
            seen.extend(seen_with_epochs(totals));
            seen.push(("refused: newer", r.refused_newer));
        }
        Protocol::Vr => {
            seen.extend(seen_with_help(totals));
            seen.extend(seen_with_views(totals));
        }
        Protocol::Raft => {
            seen.extend(seen_with_help(totals));
            seen.extend(seen_with_views(totals));
            seen.push(("changes of who votes", totals.vr.voters_changed));
            seen.push(("leaders that voted no more", totals.vr.voted_out));
        }
        Protocol::NoPaxos => {
            seen.extend(seen_with_help(totals));
            seen.extend(seen_with_views(totals));
            seen.extend(seen_with_gaps(totals));
            // Forwarded as no-ops (T23).
            seen.retain(|(name, _)| *name != "full tables");
        }
        Protocol::Craq => {
            seen.extend(seen_with_epochs(totals));
            seen.extend(seen_with_versions(totals));
        }
    }
    let faults = Fault::KINDS.into_iter().zip(totals.faults.0);
    seen.extend(faults.filter(|(name, _)| is_drawn(protocol, name)));
    seen.into_iter().filter(|(_, count)| *count == 0).map(|(name, _)| name).collect()
}

fn is_drawn(protocol: Protocol, fault: &str) -> bool {
    if fault == "change-voter" {
        return protocol == Protocol::Raft;
    }
    match protocol {
        Protocol::PrimaryBackup | Protocol::Chain | Protocol::Craq => {
            !["hold", "split", "lose-writes"].contains(&fault)
        }
        Protocol::Vr | Protocol::NoPaxos | Protocol::Raft => {
            let of_disks =
                ["power-cut", "power-cut-all", "fail-sync", "full-disk", "flip-bit", "hang-disk"];
            fault != "join" && !of_disks.contains(&fault)
        }
    }
}

fn seen_with_help(totals: &Totals) -> [(&'static str, u64); 5] {
    [
        ("fast reads", totals.fast_reads),
        ("full tables", totals.switch.dropped_table_full),
        ("writes of all keys", totals.switch.writes_wildcard),
        ("stray entries swept", totals.switch.strays_swept),
        ("out of order", totals.replicas.writes_out_of_order),
    ]
}

fn seen_by_gateways(totals: &Totals) -> [(&'static str, u64); 26] {
    let (g, c) = (&totals.gateway, &totals.redis);
    [
        ("commands of gateways", g.commands),
        ("pipelines", c.pipelines),
        ("transactions", c.transactions),
        ("commands over several keys", c.splits),
        ("scripts", c.scripts),
        ("long scripts", c.long),
        ("cached", c.cached),
        ("messages published", c.published),
        ("messages delivered", c.delivered),
        ("calls of functions", c.calls),
        ("transactions of several keys", c.together),
        ("transactions whose watched keys had changed", c.aborted),
        ("moves and sorted sets", c.moves),
        ("pipelines of other databases", c.databases),
        ("inline commands", c.inline),
        ("RESP3", c.resp3),
        ("clients that do not read", c.slow),
        ("pipelines sent meanwhile", c.ahead),
        ("garbage", c.garbage),
        ("connections closed in mid-command", c.torn),
        ("gateways that died", c.died),
        ("commands held back by their order", g.commands_waited),
        ("tries of several clients together", g.tries_together),
        ("full windows", g.window_full),
        ("too many unanswered commands", g.slots_full),
        ("too many bytes of replies", g.output_full),
    ]
}

fn seen_with_versions(totals: &Totals) -> [(&'static str, u64); 5] {
    let r = &totals.replicas;
    [
        ("spread reads", totals.switch.reads_spread),
        ("clean reads", r.reads_clean),
        ("dirty reads", r.reads_dirty),
        ("version answers", r.version_answers),
        ("version refused", r.version_refused),
    ]
}

fn seen_with_epochs(totals: &Totals) -> [(&'static str, u64); 6] {
    let r = &totals.replicas;
    [
        ("replicas let in", totals.control.admitted),
        ("joined replicas made members", totals.control.promoted),
        ("joining given up", totals.control.joining_removed),
        ("copies begun", r.copies_begun),
        ("copies that went on from records", r.copies_resumed),
        ("reads refused as not whole", r.reads_not_whole),
    ]
}

fn seen_with_views(totals: &Totals) -> [(&'static str, u64); 10] {
    let v = &totals.vr;
    [
        ("chunks copied", totals.replicas.chunks_installed),
        ("states copied", totals.replicas.copies_whole),
        ("refused: behind", v.refused_behind),
        ("waited for the leader's lease", v.reads_waited_leader),
        ("another switch's numbers", totals.replicas.writes_other_switch),
        ("views led", v.views_led),
        ("views joined", v.views_joined),
        ("records transferred", v.records_transferred),
        ("recoveries", v.recovered),
        ("stale lives", v.stale_lives),
    ]
}

fn seen_with_gaps(totals: &Totals) -> [(&'static str, u64); 4] {
    let v = &totals.vr;
    [
        ("gaps asked for", v.gaps_asked),
        ("gaps filled", v.gaps_filled),
        ("gaps agreed on", v.gaps_agreed),
        ("writes as no-ops", totals.switch.writes_as_noop),
    ]
}

#[test]
fn one_seed_replays() {
    for plan in (0..10).map(Plan::draw) {
        let (a, b) = (run(&plan), run(&plan));
        assert_eq!(a.history, b.history);
        assert_eq!(a.totals, b.totals);
        assert_eq!(a.digest, b.digest);
        assert_eq!(a.digest, concord_sim::run_recorded(&plan).0.digest);
    }
}

/// Debug and release builds of any machine replay the same events: `make guards` runs this in
/// release. Whoever changes what the machines send runs it with CONCORD_BLESS=1.
#[test]
fn digests_of_fixed_seeds_are_as_written_down() {
    const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/digests.txt");
    let mut digests = String::new();
    let of = |protocol| Aim { protocol: Some(protocol), ..Aim::default() };
    let racks = PROTOCOLS.map(|protocol| (protocol_name(protocol), of(protocol)));
    let flair = Aim { program: Some(Program::Flair), ..of(Protocol::Vr) };
    for (name, aim) in racks.into_iter().chain([("flair", flair)]) {
        for seed in [1, 2, 3, 0xffff_ffff_ffff_fff1] {
            let digest = run(&Plan::draw_aimed(seed, aim)).digest;
            digests += &format!("{name} {seed:#x} {digest:#018x}\n");
        }
    }
    if std::env::var_os("CONCORD_BLESS").is_some() {
        std::fs::write(FILE, &digests).unwrap();
    }
    assert_eq!(std::fs::read_to_string(FILE).unwrap(), digests);
}

/// docs/internals/bugs.md, 1: the first packet after a pause made the controller call everybody
/// else silent.
#[test]
fn bug_1_a_controller_that_slept_removes_nobody_for_it() {
    let pause = Fault::Pause { node: Node::Controller, for_ns: 1_500 * MS };
    for seed in 0..20 {
        let plan = Plan { seed, think_ns: 50 * MS, ..Plan::default() };
        let plan =
            plan.with_fault(100 * MS, pause).with_fault(250 * MS, Fault::Kill { replica: 0 });
        let outcome = run(&plan);
        assert_eq!(outcome.violation, None, "seed {seed}");
        // The first epoch, and the one without the dead replica.
        assert_eq!(outcome.totals.control.epochs, 2, "seed {seed}");
    }
}

/// docs/internals/bugs.md, 15.gateway: of a pipeline, what followed a write was refused for its
/// order, took the dirty set's only slot from it, and was sent again before it, for ever.
#[test]
fn bug_15_pipelined_writes_get_through_a_dirty_set_of_one_slot() {
    let gateways = Gateways { count: 3, pipeline_max: 8, window: 4, ..Gateways::default() };
    let plan = Plan {
        clients: 3,
        connections: 4,
        table_stages: 1,
        slots: 1,
        writes_percent: 60,
        latency_ns: 90 * US,
        peer_latency_ns: MS,
        gateways,
        ..Plan::default()
    };
    for protocol in [Protocol::Vr, Protocol::NoPaxos, Protocol::Chain] {
        for seed in 0..5 {
            let program = Program::of(protocol, true);
            let outcome = run(&Plan { protocol, program, seed, ..plan.clone() });
            assert_eq!(outcome.violation, None, "{protocol:?}, seed {seed}");
            assert_eq!(outcome.totals.unknown, 0, "{protocol:?}, seed {seed}: writes given up");
        }
    }
}

/// A seed that the simulator's own check once called wrong, and that is not: the primary dies while
/// the controller sleeps for 1.4 s, so that nobody decides on expiries for three seconds.
#[test]
fn without_a_controller_a_key_may_outlive_its_time_for_longer() {
    let aim = Aim { protocol: Some(Protocol::PrimaryBackup), ..Aim::default() };
    assert_eq!(run(&Plan::draw_aimed(0x1_c5d4_ae88, aim)).violation, None);
}

/// The same of a member that is left alone and stands still for 5 s.
#[test]
fn key_may_outlive_its_time_while_the_only_member_stops() {
    let aim = Aim { protocol: Some(Protocol::Chain), ..Aim::default() };
    assert_eq!(run(&Plan::draw_aimed(0x55d_861e, aim)).violation, None);
}

/// The same of two replicas of which a quorum is both: one is cut off for 5 s.
#[test]
fn without_a_quorum_a_key_may_outlive_its_time() {
    let aim = Aim { protocol: Some(Protocol::NoPaxos), heavy: true, ..Aim::default() };
    assert_eq!(run(&Plan::draw_aimed(0x2_5242_30fd, aim)).violation, None);
}

/// Seeds that the simulator's own checks once called wrong, and that are not.
#[test]
fn what_is_known_to_be_committed_may_be_heard_late() {
    // A replica that slept through two epochs hears that its last records were committed, when
    // another member of its epoch has forgotten its log to be let in anew.
    for (protocol, seed) in
        [(Protocol::PrimaryBackup, 0x1_a14a_ccdb), (Protocol::Craq, 0x1_a15a_116f)]
    {
        let aim = Aim { protocol: Some(protocol), ..Aim::default() };
        assert_eq!(run(&Plan::draw_aimed(seed, aim)).violation, None);
    }
}

/// docs/internals/bugs.md, 20.4: a leader of Raft whose log was full logged its term's no-op all
/// the same; no follower took that, since its own log was full before, and nothing was committed
/// any more.
#[test]
fn bug_20_4_a_term_begins_with_a_full_log() {
    let aim = Aim { protocol: Some(Protocol::Raft), ..Aim::default() };
    assert_eq!(run(&Plan::draw_aimed(0x496_fcf5, aim)).violation, None);
}

/// docs/internals/bugs.md, 15.3b: a leader of VR or NOPaxos had no key deleted any more once its
/// log held as many records as it keeps for members that lag, which is always, from the 32,768th
/// on.
#[test]
fn bug_15_3b_keys_expire_while_the_log_keeps_records() {
    for protocol in [Protocol::Vr, Protocol::NoPaxos] {
        let bounds = Bounds { log_records_max: 64, ..Bounds::default() };
        let sizes = Sizes { due_at_once: 300, ..Sizes::default() };
        let plan = Plan { bounds, sizes, linger_ns: 2_000 * MS, ..Plan::of(protocol) };
        let outcome = run(&plan);
        assert_eq!(outcome.violation, None, "{protocol:?}");
        assert_eq!(outcome.totals.large.due, 300, "{protocol:?}");
    }
}

/// docs/internals/bugs.md, 15.sim2: a controller of VR or NOPaxos waited for the incarnations that
/// founded the group, so that no switch got an id any more once most of them had restarted.
#[test]
fn bug_15_sim2_switch_id_after_most_replicas_restarted() {
    for protocol in [Protocol::Vr, Protocol::NoPaxos] {
        let plan = Plan { think_ns: 50 * MS, ..Plan::of(protocol) }
            .with_fault(300 * MS, Fault::Restart { replica: 0 })
            .with_fault(1_000 * MS, Fault::Restart { replica: 1 })
            .with_fault(2_000 * MS, Fault::RestartSwitch);
        assert_eq!(run(&plan).violation, None, "{protocol:?}");
    }
}

/// docs/internals/bugs.md, 15.sim3: what a replica of CRAQ executed after it was committed stayed
/// in its log, and where that was full then it stayed full: nothing was ordered any more.
#[test]
fn bug_15_sim3_craq_log_releases_executed_records() {
    let aim = Aim { protocol: Some(Protocol::Craq), ..Aim::default() };
    assert_eq!(run(&Plan::draw_aimed(570, aim)).violation, None);
}

/// docs/internals/bugs.md, 15.sim4: a controller that had slept heard late packets of a dead
/// replica, took it and the one that did not hear it for cut from each other, and removed the
/// living one.
#[test]
fn bug_15_sim4_deaf_to_a_dead_replica_is_not_cut_off() {
    for protocol in [Protocol::Chain, Protocol::PrimaryBackup, Protocol::Craq] {
        let aim = Aim { protocol: Some(protocol), ..Aim::default() };
        assert_eq!(run(&Plan::draw_aimed(638, aim)).violation, None, "{protocol:?}");
    }
}

/// docs/internals/bugs.md, 22.157: a replica whose engine was at work looked for its silence at
/// once, again and again, and so did a gateway that wished to ask for users while all of its
/// requests were under way: each took a whole core.
#[test]
fn bug_22_157_who_waits_for_others_sleeps() {
    let aim = Aim { protocol: Some(Protocol::Chain), ..Aim::default() };
    for seed in [0xa_ae69, 0xa_ae8f] {
        assert_eq!(run(&Plan::draw_aimed(seed, aim)).violation, None, "{seed:#x}");
    }
}
