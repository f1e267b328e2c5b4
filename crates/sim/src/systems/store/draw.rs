//! The draw of a plan from a seed, in the style of swarm testing (Groce et al., ISSTA 2012): each
//! seed switches a random subset of the faults on, so that seeds differ in kind and not only in
//! degree.

use concord_core::{Duration, MS, Rng, SEC, US};
use concord_protocols::SlowReads;
use concord_wire::control::{Program, Protocol};

use crate::odd::up_to;
use crate::systems::store::draw_disks;
use crate::systems::store::edges::{MILLION, Packets, REQUESTS_END};
use crate::systems::store::fault::{Fault, Node};
use crate::systems::store::gateways::Gateways;
use crate::systems::store::links::Links;
use crate::systems::store::plan::{Plan, Service, Timed, any_protocol};

/// The minimum number of operations of a seed.
const OPERATIONS_MIN: u64 = 500;
/// The minimum number of faults that a seed is sure to inject, and the number of their kinds.
const FAULTS_MIN: usize = 3;
const FAULT_KINDS_MIN: usize = 2;
/// Faults that only quorum protocols draw. The others have no state that a held packet, a
/// partitioned rack or a write that some replicas miss could break, so that these faults would only
/// make others rarer.
const OF_QUORUMS: [&str; 3] = ["hold", "split", "lose-writes"];
/// Faults of disks, which are drawn separately ([`crate::Disks`]).
const OF_DISKS: [&str; 10] = [
    "power-cut",
    "power-cut-all",
    "fail-sync",
    "full-disk",
    "flip-bit",
    "hang-disk",
    "copy-disk",
    "put-back",
    "full-controller",
    "unreadable",
];
/// The operator's changes of voters, which are drawn separately for protocols that elect leaders.
const OF_VOTERS: &str = "change-voter";
/// Faults of a storage server, drawn only if the engine is one.
const OF_SERVERS: [&str; 3] = ["hang-engine", "stall-engine", "cut-engine"];
/// One in this number of seeds draws sizes that make its run long.
const HEAVY: u64 = 16;
/// The maximum time to live that is drawn, in ms: three days.
const TTL_MS_DRAWN_MAX: u64 = 3 * 24 * 3_600_000;
/// The maximum change of a wall clock, drawn in a few seeds, in minutes: ten days.
const JUMP_MINUTES_DRAWN_MAX: u64 = 10 * 24 * 60;
/// The maximum share of invalid packets of each kind, per million.
const ODD_PPM_MAX: u64 = 10_000;
/// The maximum delay of a late packet that is drawn, in ns: a minute.
const LATE_NS_DRAWN_MAX: Duration = 60 * SEC;
/// The maximum length of a key that is drawn, in bytes.
const KEY_BYTES_DRAWN_MAX: u64 = 4_096;
/// The maximum number of elements of a command that is drawn.
const ELEMENTS_DRAWN_MAX: u64 = 2_000;
/// The maximum number of keys that expire at the same time that is drawn.
const DUE_DRAWN_MAX: u64 = 3_000;
/// The minimum number of slots of a switch stage in seeds with such keys.
const DUE_SLOTS_MIN: u32 = 64;
/// The durations for which the controller is cut off, in multiples of the time after which a silent
/// node is removed.
const CUT_OFF_TIMES: [u64; 3] = [2, 6, 20];
/// The seed mask for the draw of engines that are busy for long.
const WORK: u64 = 0xb057_e461;
/// The duration below which a fault never makes a node look dead, in ns.
const SHORT_NS: Duration = 150 * MS;
/// The duration of faults that are longer than the others may take to go on without the node, in
/// ns.
const LONG_NS: Duration = 5 * SEC;
/// Whether faults of that duration include a replica that receives nothing.
const DRAWS_DEAF_LONG: bool = true;

/// How many numbers are left in seeds whose numbers begin near their end: more than a run uses.
const NUMBERS_LEFT: u64 = 5_000;
/// The maximum size of the records that are retained for replicas that were away, as drawn, in
/// bytes.
const LOG_MEMORY_DRAWN_MAX: u64 = 1 << 20;
/// The maximum length of values that is drawn in most seeds, in bytes.
const VALUE_DRAWN_MAX: u64 = 1 << 20;
/// The maximum length of a value in seeds with huge values, in bytes; one in `WITH_HUGE` seeds has
/// them.
const VALUE_HUGE_MAX: u64 = 6 << 20;
const WITH_HUGE: u64 = 128;
/// The seed mask for the draw of huge values. A seed mask is combined with the plan's seed by XOR,
/// so that each draw has a generator of its own.
const HUGE: u64 = 0x4096_b164;
/// The seed mask for the draw of numbers near their end.
const NUMBERS: u64 = 0x0e2d_0f5e;
/// The seed mask for the draw of the log's memory.
const LOG_MEMORY: u64 = 0x7a11_10f6;
/// The seed mask for the draw of how a leader reads.
const READS: u64 = 0x4ead_1de5;
/// The seed mask for the draw of reads by leases or by quorums.
const LEASES: u64 = 0x1ea5_e000;
/// The seed mask for the draw of switches that check replies.
const CHECKS: u64 = 0x0c4e_cced;
/// The seed mask for the draw of how such a switch balances reads.
const BALANCE: u64 = 0xba1a_9ce5;
/// The seed mask for the draw of gateways.
const GATEWAYS: u64 = 0x6a7e_3a75;
/// The seed mask for the draw of their databases.
const DATABASES: u64 = 0xda7a_ba5e;
/// The seed mask for the draw of their scripts.
const SCRIPTS: u64 = 0x5c21_f7e5;
/// The seed mask for the draw of their transactions on several keys.
const TOGETHER: u64 = 0x7063_e74e;
/// The seed mask for the draw of their moves and sorted sets.
const MOVES: u64 = 0x0304_e500;
/// The seed mask for the draw of clients that cache.
const CACHES: u64 = 0xcac4_e5e5;
/// The seed mask for the draw of changes of voters.
const VOTERS: u64 = 0x0707_e125;
/// The seed mask for the draw of gateways that share users.
const USERS: u64 = 0x05e5_acac;
/// The seed mask for the draw of the time that clients go on at the end.
const CALM: u64 = 0x0ca1_3000;
/// The seed mask for the draw of comparisons of states.
const COMPARED: u64 = 0xc033_9a6e;
/// The time that clients go on at the end, in ns, in one in `WITH_CALM` seeds.
const CALM_NS: Duration = 1_200 * MS;
const WITH_CALM: u64 = 8;
/// The number of slots of each switch stage in these seeds: in a table with room no expiry waits
/// long for a slot.
const CALM_SLOTS: u32 = 1_024;
/// The seed mask for the draw of links.
const LINKS: u64 = 0x0011_4c50;
/// One in this number of seeds has links.
const WITH_LINKS: u64 = 10;
/// The seed mask for the draw of clients that subscribe.
const SUBSCRIBERS: u64 = 0x5b5c_21be;

/// The parts of a plan that are given instead of drawn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Aim {
    /// The protocol; drawn if `None`.
    pub protocol: Option<Protocol>,
    /// Whether the switch helps, if it can; drawn if `None`.
    pub with_help: Option<bool>,
    /// The switch program, if it serves the protocol; drawn if `None`.
    pub program: Option<Program>,
    /// How protocols that elect leaders answer reads without the switch's help; drawn if `None`.
    pub reads: Option<SlowReads>,
    /// Whether every seed draws sizes that make its run long, instead of one in sixteen.
    pub heavy: bool,
}

impl Plan {
    /// Draws the plan of `seed`.
    #[must_use]
    pub fn draw(seed: u64) -> Plan {
        Plan::draw_aimed(seed, Aim::default())
    }

    /// Draws the plan of `seed`, with disks and power cuts.
    #[must_use]
    pub fn draw_with_disks(seed: u64, protocol: Protocol) -> Plan {
        let aim = Aim { protocol: Some(protocol), ..Aim::default() };
        let mut plan = Plan::draw_aimed(seed, aim);
        draw_disks::draw_if_none(&mut plan);
        plan
    }

    /// Draws the plan of `seed`, on links of the packet-level network.
    #[must_use]
    pub fn draw_with_links(seed: u64, protocol: Protocol) -> Plan {
        let aim = Aim { protocol: Some(protocol), ..Aim::default() };
        let mut plan = Plan::draw_aimed(seed, aim);
        if !plan.links.is_on() {
            draw_links_surely(&mut plan, &mut Rng::new(seed ^ LINKS));
        }
        plan
    }

    /// Draws the plan of `seed`, except for what `aim` gives.
    #[must_use]
    pub fn draw_aimed(seed: u64, aim: Aim) -> Plan {
        let mut rng = Rng::new(seed);
        let rng = &mut rng;
        let drawn = any_protocol(seed, rng);
        let protocol = aim.protocol.unwrap_or(drawn);
        let with_help = !rng.chance(1, 10);
        let sizes = if protocol.is_quorum() { [3, 3, 3, 4, 5] } else { [2, 3, 3, 3, 4] };
        let replicas = sizes[rng.below(5) as usize];
        let clients = rng.between(1, 3) as usize;
        let connections = rng.between(2, 4) as usize;
        let operations = rng.between(OPERATIONS_MIN, OPERATIONS_MIN + 200) as usize;
        let span_ns = rng.between(800, 2_000) * MS;
        let each = (operations / (clients * connections)) as u64;
        let mut plan = Plan {
            seed,
            protocol,
            program: aim
                .program
                .or_else(|| checks_replies(seed, aim))
                .filter(|program| program.serves(protocol))
                .unwrap_or(Program::of(protocol, aim.with_help.unwrap_or(with_help))),
            replicas,
            clients,
            connections,
            table_stages: rng.between(1, 3) as u8,
            slots: 1 << rng.below(7),
            operations,
            keys: rng.between(2, 8),
            writes_percent: rng.between(20, 60),
            long_values_percent: if rng.chance(1, 4) { rng.between(1, 10) } else { 0 },
            flushes_permille: if rng.chance(1, 4) { rng.between(1, 10) } else { 0 },
            // A third of the pauses is zero; the others are half of the maximum on average.
            think_ns: span_ns * 3 / each,
            rush_ns: if rng.chance(3, 4) { rng.between(15, 60) * MS } else { 0 },
            ..Plan::default()
        };
        draw_surroundings(&mut plan, rng);
        draw_faults(&mut plan, rng, span_ns);
        plan.run_bits = [0, 4][rng.below(2) as usize];
        plan.batch_packets = [1, 64][rng.below(2) as usize];
        // Drawn by a generator of its own, so that it does not depend on the other draws.
        plan.gateways = Gateways::draw(&mut Rng::new(seed ^ GATEWAYS), clients);
        // Drawn separately from the others, so that neither influences the other.
        draw_edges(&mut plan, aim.heavy, &mut Rng::new(seed ^ 0xed6e));
        draw_disks::draw(&mut plan);
        draw_links(&mut plan);
        draw_numbers(&mut plan, &mut Rng::new(seed ^ NUMBERS));
        draw_log_memory(&mut plan, &mut Rng::new(seed ^ LOG_MEMORY));
        plan.read_index = plan.protocol.elects() && Rng::new(seed ^ READS).chance(1, 3);
        draw_reads(&mut plan, aim);
        draw_balance(&mut plan);
        draw_databases(&mut plan);
        draw_scripts(&mut plan);
        draw_together(&mut plan);
        draw_moves(&mut plan);
        plan.gateways.caches = Rng::new(seed ^ CACHES).chance(1, 6);
        plan.gateways.users = Rng::new(seed ^ USERS).chance(1, 6);
        plan.gateways.subscribers =
            plan.gateways.count > 0 && Rng::new(seed ^ SUBSCRIBERS).chance(1, 4);
        draw_voters(&mut plan);
        draw_work(&mut plan);
        draw_compared(&mut plan);
        draw_huge(&mut plan);
        if plan.sizes.ttl_ms_max == 0 && Rng::new(seed ^ CALM).chance(1, WITH_CALM) {
            plan.calm_ns = CALM_NS;
            plan.slots = plan.slots.max(CALM_SLOTS);
        }
        plan
    }
}

/// Draws values of more than a megabyte in some seeds. They are few, since each takes a few
/// thousand packets, and links would carry little else.
fn draw_huge(plan: &mut Plan) {
    let mut rng = Rng::new(plan.seed ^ HUGE);
    if rng.chance(1, WITH_HUGE) && !plan.links.is_on() {
        plan.sizes.value_bytes_max = rng.between(VALUE_DRAWN_MAX, VALUE_HUGE_MAX) as usize;
        plan.long_values_percent = rng.between(1, 4);
    }
}

/// Draws comparisons of the replicas' states in one in eight seeds; in half of these, a replica's
/// data is damaged at the end.
fn draw_compared(plan: &mut Plan) {
    let mut rng = Rng::new(plan.seed ^ COMPARED);
    if rng.chance(1, 8) {
        plan.compare_ns = rng.between(1, 30) * MS;
        plan.damages = rng.chance(1, 2);
    }
}

/// Draws links of the packet-level network in one in ten seeds, slow enough that packets wait for
/// each other. With long values or replies the links are faster: a network that cannot carry them
/// within the time-outs would show nothing.
fn draw_links(plan: &mut Plan) {
    let mut rng = Rng::new(plan.seed ^ LINKS);
    if rng.chance(1, WITH_LINKS) {
        draw_links_surely(plan, &mut rng);
    }
}

fn draw_links_surely(plan: &mut Plan, rng: &mut Rng) {
    let is_heavy = plan.sizes.value_bytes_max > 0 || plan.sizes.elements_max > 0;
    let slowest = if is_heavy { 10 } else { 7 };
    // A link between replicas never sends fewer than 16 packets at once (`WINDOW_MIN`), for which a
    // port needs room.
    let shallowest = if is_heavy { 18 } else { 15 };
    plan.links = Links {
        // 128 Mb/s, or 1 Gb/s, up to 16 Gb/s.
        mbits: 1 << rng.between(slowest, 14),
        propagation_ns: up_to(rng, 100 * US).max(100),
        queue_bytes: 1 << rng.between(shallowest, 20),
        pass_ns: up_to(rng, 50 * US).max(50),
        both: rng.chance(1, 2),
        look_ns: if rng.chance(1, 2) { up_to(rng, 2 * MS) } else { 0 },
    };
}

/// Draws several databases for the clients of gateways in one in four seeds, unless reads list all
/// keys: the checker has a single key space.
fn draw_databases(plan: &mut Plan) {
    let mut rng = Rng::new(plan.seed ^ DATABASES);
    if plan.sizes.all_keys_permille == 0 && rng.chance(1, 4) {
        plan.gateways.databases_percent = rng.between(10, 90);
    }
}

/// Draws scripts and calls of functions for the clients of gateways in one in six seeds. (Each
/// starts an interpreter.)
fn draw_scripts(plan: &mut Plan) {
    let mut rng = Rng::new(plan.seed ^ SCRIPTS);
    if rng.chance(1, 6) {
        plan.gateways.scripts_percent = rng.between(1, 12);
    }
}

/// Draws an operator who changes voters several times in one in three seeds that elect leaders.
fn draw_voters(plan: &mut Plan) {
    let mut rng = Rng::new(plan.seed ^ VOTERS);
    if !plan.protocol.elects() || !rng.chance(1, 3) {
        return;
    }
    let last_ns = plan.faults.last().map_or(0, |f| f.at_ns).max(SEC);
    for _ in 0..rng.between(3, 9) {
        let replica = rng.below(plan.replicas as u64) as usize;
        let fault = Fault::ChangeVoter { replica, for_ns: rng.between(50, 1_000) * MS };
        plan.faults.push(Timed { at_ns: rng.between(30 * MS, last_ns), fault });
    }
    plan.faults.sort_by_key(|f| f.at_ns);
}

/// Draws transactions on several keys for the clients of gateways in every second seed, unless
/// clients delete or list all keys, or memory is bounded: the data of these keys only grows, and is
/// not in the history.
fn draw_together(plan: &mut Plan) {
    let mut rng = Rng::new(plan.seed ^ TOGETHER);
    let is_apart = plan.flushes_permille == 0 && plan.sizes.all_keys_permille == 0;
    if is_apart && plan.bounds.memory_bytes_max == 0 && rng.chance(1, 2) {
        plan.gateways.together_percent = rng.between(5, 60);
    }
}

/// Draws moves between lists and pops of sorted sets for the clients of gateways in one in four
/// seeds.
fn draw_moves(plan: &mut Plan) {
    let mut rng = Rng::new(plan.seed ^ MOVES);
    if rng.chance(1, 4) {
        plan.gateways.moves_percent = rng.between(5, 40);
    }
}

/// The program that checks replies, if the switch runs it: where `aim` does not say, in one in four
/// seeds whose protocol it serves.
fn checks_replies(seed: u64, aim: Aim) -> Option<Program> {
    let is_open = aim.protocol.is_none() && aim.with_help.is_none();
    let checks = is_open && Rng::new(seed ^ CHECKS).chance(1, 4);
    Program::ALL.into_iter().find(|program| checks && program.checks_replies())
}

/// Draws reads that any replica answers by leases or by a quorum, in one in four seeds that elect
/// leaders, unless the switch's help is asked for.
fn draw_reads(plan: &mut Plan, aim: Aim) {
    let is_open = aim.program.is_none() && aim.with_help != Some(true);
    let can = plan.protocol.elects() && !plan.program.checks_replies() && is_open;
    let mut rng = Rng::new(plan.seed ^ LEASES);
    let drawn = match (rng.chance(1, 4), rng.chance(1, 3)) {
        (true, true) => Some(SlowReads::Quorum),
        (true, false) => Some(SlowReads::FollowerLease),
        (false, _) => None,
    };
    let reads = aim.reads.or(drawn);
    let spreads = matches!(reads, Some(SlowReads::FollowerLease | SlowReads::Quorum));
    if can && (aim.reads.is_some() || spreads) {
        plan.follower_leases = reads == Some(SlowReads::FollowerLease);
        plan.quorum_reads = reads == Some(SlowReads::Quorum);
        plan.read_index = reads == Some(SlowReads::ReadIndex);
        plan.program = if spreads { Program::Forward } else { plan.program };
    }
}

/// Draws how a switch balances reads: equally, without the leader, or also by load, a third of the
/// seeds each.
fn draw_balance(plan: &mut Plan) {
    if plan.program.checks_replies() {
        let drawn = Rng::new(plan.seed ^ BALANCE).below(3);
        (plan.avoid_leader, plan.load_awareness) = (drawn > 0, drawn > 1);
    }
}

/// Draws sizes and bounds near a limit. Those that make a run long are in one in [`HEAVY`] seeds.
fn draw_edges(plan: &mut Plan, heavy: bool, rng: &mut Rng) {
    let some = |rng: &mut Rng, from: u64, to: u64| {
        let drawn = rng.between(from, to);
        if rng.chance(1, 4) { drawn } else { 0 }
    };
    plan.sizes.ttl_ms_max = if rng.chance(1, 4) { up_to(rng, TTL_MS_DRAWN_MAX) } else { 0 };
    plan.sizes.all_keys_permille = some(rng, 1, 10);
    plan.bounds.log_records_max = some(rng, 16, 128) as usize;
    plan.bounds.sessions_max = match some(rng, 2, 6) as usize {
        0 => 0,
        // With fewer sessions than clients, clients evict each other again and again.
        drawn => drawn.max(plan.clients),
    };
    plan.bounds.counter_bits = some(rng, 7, 12) as u8;
    plan.bounds.last_switch_id =
        some(rng, u64::from(u32::MAX) - 6_000, u64::from(u32::MAX) - 5_000) as u32;
    if rng.chance(1, 4) {
        plan.packets = Packets {
            truncated_ppm: rng.below(ODD_PPM_MAX),
            forged_ppm: rng.below(ODD_PPM_MAX),
            own_ppm: 0,
            padded_ppm: rng.below(5 * ODD_PPM_MAX),
            late_ppm: rng.below(ODD_PPM_MAX),
            late_ns_max: up_to(rng, LATE_NS_DRAWN_MAX),
        };
    }
    if rng.chance(1, 8) {
        plan.bounds.memory_bytes_max = rng.between(200, 4_000);
    }
    if rng.chance(1, HEAVY) || heavy {
        draw_heavy(plan, rng);
    }
    if rng.chance(1, HEAVY) {
        draw_minority(plan, rng);
    }
    for timed in &mut plan.faults {
        if let Fault::ClockJump { by_ms, .. } = &mut timed.fault
            && rng.chance(1, 3)
        {
            let far_ms = 60_000 * up_to(rng, JUMP_MINUTES_DRAWN_MAX) as i64;
            *by_ms = if rng.chance(1, 2) { far_ms } else { -far_ms };
        }
    }
}

/// Draws numbers that begin near their end, and forged writes that claim to be a replica's own:
/// each in one in [`HEAVY`] seeds.
fn draw_numbers(plan: &mut Plan, rng: &mut Rng) {
    let near = |rng: &mut Rng, end: u64| {
        let drawn = end - rng.between(NUMBERS_LEFT, 2 * NUMBERS_LEFT);
        if rng.chance(1, HEAVY) { drawn } else { 0 }
    };
    plan.bounds.last_epoch = near(rng, u32::MAX.into()) as u32;
    let first_view = near(rng, u32::MAX.into()) as u32;
    plan.bounds.first_view = if plan.protocol.is_quorum() { first_view } else { 0 };
    plan.bounds.first_request = near(rng, REQUESTS_END - MILLION);
    if rng.chance(1, HEAVY) {
        plan.packets.own_ppm = rng.between(1, ODD_PPM_MAX);
    }
}

/// Draws engines that are busy for up to seconds, as with a script, in half of the plans whose
/// engines are storage servers.
fn draw_work(plan: &mut Plan) {
    let rng = &mut Rng::new(plan.seed ^ WORK);
    if plan.engine_ns == 0 || rng.chance(1, 2) {
        return;
    }
    plan.engine_work_ns = rng.between(1, 4) * SEC;
    for timed in &mut plan.faults {
        if let Fault::StallEngine { for_ns, .. } = &mut timed.fault {
            *for_ns = rng.between(50 * MS, plan.engine_work_ns);
        }
    }
}

/// Draws how many records that all members have are retained for replicas that were away: from a
/// few to all of a run.
fn draw_log_memory(plan: &mut Plan, rng: &mut Rng) {
    let drawn = up_to(rng, LOG_MEMORY_DRAWN_MAX) as usize;
    plan.bounds.log_memory_bytes = if rng.chance(1, 4) { drawn } else { 0 };
}

/// Draws one or two of the sizes that make a run long.
fn draw_heavy(plan: &mut Plan, rng: &mut Rng) {
    for _ in 0..rng.between(1, 2) {
        match rng.below(4) {
            0 => plan.sizes.key_bytes_max = up_to(rng, KEY_BYTES_DRAWN_MAX) as usize,
            1 => {
                let most = VALUE_DRAWN_MAX;
                let drawn = if rng.chance(1, 2) { most } else { up_to(rng, most) };
                plan.sizes.value_bytes_max = drawn as usize;
                plan.long_values_percent = plan.long_values_percent.max(10);
            }
            2 => plan.sizes.elements_max = up_to(rng, ELEMENTS_DRAWN_MAX) as usize,
            _ => {
                plan.sizes.due_at_once = rng.between(100, DUE_DRAWN_MAX);
                // Each such key takes a slot and a record, and they have to be gone in seconds.
                plan.slots = plan.slots.max(DUE_SLOTS_MIN);
                plan.bounds.log_records_max = 0;
            }
        }
    }
}

/// Draws a minority that is at fault for so long that the others must go on without it.
fn draw_minority(plan: &mut Plan, rng: &mut Rng) {
    let replica = rng.below(plan.replicas as u64) as usize;
    let (node, for_ns) = (Node::Replica(replica), LONG_NS);
    let fault = match rng.below(if DRAWS_DEAF_LONG { 4 } else { 3 }) {
        0 => Fault::Pause { node, for_ns },
        1 => Fault::Isolate { replica, for_ns, stale_switch: false },
        2 => Fault::Kill { replica },
        _ => Fault::Deaf { replica, for_ns },
    };
    let last_ns = plan.faults.last().map_or(0, |f| f.at_ns);
    plan.faults.push(Timed { at_ns: last_ns + rng.below(SEC), fault });
    plan.linger_ns = LONG_NS;
}

/// Draws the network, the hosts and their clocks.
fn draw_surroundings(plan: &mut Plan, rng: &mut Rng) {
    let some = |rng: &mut Rng, most: u64| if rng.chance(1, 2) { rng.below(most) } else { 0 };
    plan.loss_ppm = some(rng, 40_000);
    plan.duplicate_ppm = some(rng, 40_000);
    plan.reorder_ppm = some(rng, 100_000);
    plan.latency_ns = rng.between(20, 200) * US;
    plan.peer_latency_ns = rng.between(20, 2_000) * US;
    plan.delay_ns = rng.between(1, 20) * MS;
    if rng.chance(1, 2) {
        let busy = |rng: &mut Rng| rng.below(20) * US;
        let read_ns = busy(rng);
        plan.service = Service {
            read_ns,
            query_ns: read_ns / 2,
            write_ns: busy(rng),
            record_ns: busy(rng),
            ack_ns: busy(rng) / 4,
            other_ns: busy(rng) / 4,
            switch_ns: rng.below(1_000),
            client_ns: rng.below(5_000),
        };
    }
    if rng.chance(1, 3) {
        plan.engine_ns = rng.between(1, 500) * US;
        plan.replicate_replies = rng.chance(1, 2);
        plan.engine_silence_ns = rng.between(200, 800) * MS;
    }
    plan.copy_bytes = rng.between(1, 2_000) as usize;
    if plan.protocol.is_quorum() && rng.chance(1, 2) {
        plan.records_kept = rng.between(50, 500) as usize;
    }
    plan.drift_ppm = some(rng, crate::systems::store::plan::DRIFT_PPM_MAX);
    plan.lease_ns = rng.between(60, 150) * MS;
    plan.failure_ns = rng.between(450, 600) * MS;
}

fn draw_faults(plan: &mut Plan, rng: &mut Rng, span_ns: Duration) {
    let kinds = kinds_of(plan);
    let mut on: Vec<usize> = kinds.iter().copied().filter(|_| rng.chance(1, 2)).collect();
    while on.len() < FAULT_KINDS_MIN {
        on.push(kinds[rng.below(kinds.len() as u64) as usize]);
    }
    let wanted = rng.between(3, 7) as usize;
    let mut sure = Vec::new();
    while plan.faults.len() < wanted || !is_enough(&sure) {
        if plan.faults.len() >= wanted {
            // Only faults that are sure to be injected help now.
            on.clone_from(&kinds);
        }
        let kind = on[rng.below(on.len() as u64) as usize];
        let fault = draw_fault(plan, rng, kind);
        if !fault.is_lethal() {
            sure.push(fault.kind());
        } else if plan.faults.len() >= wanted {
            continue;
        }
        let at_ns = rng.between(30 * MS, span_ns);
        plan.faults.push(Timed { at_ns, fault });
        if rng.chance(1, 2) {
            plan.faults.extend(draw_worse(plan, rng, Timed { at_ns, fault }));
        }
    }
    plan.faults.sort_by_key(|f| f.at_ns);
}

/// Faults that make a given one worse.
fn draw_worse(plan: &Plan, rng: &mut Rng, first: Timed) -> Vec<Timed> {
    let Timed { at_ns, fault } = first;
    let mut worse = Vec::new();
    let mut add = |at_ns, fault| worse.push(Timed { at_ns, fault });
    match fault {
        // The switch continues to send reads to the replica after others have gone on without it
        // (trap T2).
        Fault::Pause { node: Node::Replica(_), for_ns } => {
            let (from, to) = (Node::Controller, Node::Switch);
            add(at_ns, Fault::Cut { from, to, for_ns });
        }
        // The replica pauses, others go on without it, and it continues before it learns of that
        // (traps T1, T2).
        Fault::Isolate { replica, for_ns, .. } => {
            let node = Node::Replica(replica);
            let asleep_ns = rng.between(for_ns / 2, for_ns);
            add(at_ns, Fault::Pause { node, for_ns: asleep_ns });
        }
        // The new epoch opens while records of the old one are in flight (Harmonia §6.3, trap T4).
        Fault::RestartSwitch
        | Fault::ReplaceSwitch { .. }
        | Fault::Join
        | Fault::Restart { .. } => {
            let own = match fault {
                Fault::Join => Some(plan.replicas_ever() - 1),
                Fault::Restart { replica } => Some(replica),
                _ => None,
            };
            let any = rng.below(plan.replicas_ever() as u64) as usize;
            let replica = own.filter(|_| rng.chance(1, 2)).unwrap_or(any);
            let for_ns = rng.between(20, 300) * MS;
            let began_ns = (at_ns + rng.below(20) * MS).saturating_sub(for_ns / 2);
            add(began_ns, Fault::LoseRecords { replica, for_ns });
            if rng.chance(1, 2) {
                // No client repeats the pending requests, so that a new switch does not learn of
                // them.
                let client = rng.below(plan.clients as u64) as usize;
                let dies_ns = began_ns + rng.below(for_ns / 2);
                add(dies_ns, Fault::RestartClient { client });
            }
        }
        _ => {}
    }
    worse
}

/// The kinds of faults that a plan draws. In VR no replica joins: the group stays as it was
/// founded.
fn kinds_of(plan: &Plan) -> Vec<usize> {
    let is_drawn = |name: &str| match plan.protocol {
        Protocol::PrimaryBackup | Protocol::Chain | Protocol::Craq => !OF_QUORUMS.contains(&name),
        Protocol::Vr | Protocol::NoPaxos | Protocol::Raft => name != "join",
    };
    let has_server = plan.engine_ns > 0;
    let all = Fault::KINDS.into_iter().enumerate().filter(|(_, name)| !OF_DISKS.contains(name));
    let all = all.filter(|(_, name)| *name != OF_VOTERS);
    all.filter(|(_, name)| is_drawn(name) && (has_server || !OF_SERVERS.contains(name)))
        .map(|(kind, _)| kind)
        .collect()
}

fn is_enough(sure: &[usize]) -> bool {
    let kinds = sure.iter().enumerate().filter(|(at, kind)| !sure[..*at].contains(kind)).count();
    sure.len() >= FAULTS_MIN && kinds >= FAULT_KINDS_MIN
}

/// Draws a fault of the given kind.
fn draw_fault(plan: &Plan, rng: &mut Rng, kind: usize) -> Fault {
    // The replica that orders writes has more state than the others, and is hit more often.
    let first = rng.chance(1, 4);
    let replica = if first { 0 } else { rng.below(plan.replicas as u64) as usize };
    let long_ns = rng.between(50, 1_500) * MS;
    let short_ns = rng.between(10, SHORT_NS / MS) * MS;
    let client = rng.below(plan.clients as u64) as usize;
    let any = |rng: &mut Rng| match rng.below(4) {
        0 => Node::Switch,
        1 => Node::Client(client),
        _ => Node::Replica(rng.below(plan.replicas as u64) as usize),
    };
    match kind {
        0 => {
            let node = if rng.chance(1, 4) { Node::Controller } else { any(rng) };
            Fault::Pause { node, for_ns: long_ns }
        }
        1 => Fault::Kill { replica },
        2 => Fault::Restart { replica },
        3 => Fault::LoseEngine { replica },
        4 => Fault::Isolate { replica, for_ns: long_ns, stale_switch: rng.chance(1, 2) },
        5 => {
            let from = any(rng);
            let to = if rng.chance(1, 4) { Node::Controller } else { any(rng) };
            Fault::Cut { from, to, for_ns: long_ns }
        }
        6 => Fault::LossBurst {
            loss_ppm: rng.between(50, 500) * 1_000,
            for_ns: short_ns + rng.below(300) * MS,
        },
        7 => {
            Fault::DuplicateBurst { duplicate_ppm: rng.between(100, 900) * 1_000, for_ns: long_ns }
        }
        8 => Fault::Slow { replica, extra_ns: rng.between(50, 5_000) * US, for_ns: long_ns },
        9 => {
            let node = if rng.chance(1, 4) { Node::Controller } else { any(rng) };
            let by_ms = rng.between(0, 2 * SEC / MS) as i64 - (SEC / MS) as i64;
            Fault::ClockJump { node, by_ms }
        }
        10 => Fault::FillTable { for_ns: short_ns },
        11 => Fault::RestartSwitch,
        12 => Fault::RestartClient { client },
        13 => Fault::Join,
        14 => Fault::ReplaceSwitch { standby: rng.chance(1, 2), for_ns: long_ns },
        15 => Fault::SecondController { for_ns: long_ns },
        16 => Fault::LoseRecords { replica, for_ns: short_ns },
        17 => {
            let others = (plan.replicas as u64 - 1).max(1);
            let to = (replica + 1 + rng.below(others) as usize) % plan.replicas;
            let (from, to) = (Node::Replica(replica), Node::Replica(to));
            Fault::Hold { from, to, for_ns: long_ns / 4, late_ns: long_ns }
        }
        18 => Fault::Split { replica, for_ns: long_ns },
        19 => Fault::HangEngine { replica },
        20 => {
            Fault::StallEngine { replica, for_ns: rng.between(1, plan.engine_silence_ns * 3 / 4) }
        }
        21 => Fault::CutEngine { replica, for_ns: short_ns, executed: rng.chance(1, 2) },
        22 => {
            let times = CUT_OFF_TIMES[rng.below(3) as usize];
            // The default of a rack is 1.5 s.
            let for_ns = plan.failure_ns * times * 2 / 3;
            Fault::CutController { with_switch: rng.chance(1, 2), for_ns }
        }
        23 => {
            let others = (plan.replicas as u64 - 1).max(1);
            let other = (replica + 1 + rng.below(others) as usize) % plan.replicas;
            Fault::CutPair { one: replica, other, for_ns: long_ns }
        }
        24 => {
            let node = if rng.chance(1, 4) { Node::Switch } else { Node::Replica(replica) };
            Fault::Reboot { node }
        }
        25 => Fault::Deaf { replica, for_ns: long_ns },
        26 => Fault::LoseWrites { replica, for_ns: long_ns },
        27 => Fault::Retire { replica, for_ns: long_ns },
        _ => Fault::OldState { gone: rng.chance(1, 2), for_ns: long_ns },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_seed_is_thin_and_every_plan_can_be_run() {
        let mut kinds = [0; Fault::KINDS.len()];
        // Epochs, views, requests, and forged writes that claim to be a replica's own.
        let mut near_their_end = [0; 4];
        let (mut elect, mut check, mut subscribe) = (0, 0, 0);
        for seed in 0..2_000 {
            let plan = Plan::draw(seed);
            assert_eq!(plan.validate(), Ok(()), "seed {seed}");
            assert!(plan.operations >= OPERATIONS_MIN as usize);
            let sure: Vec<usize> = plan
                .faults
                .iter()
                .filter(|f| !f.fault.is_lethal())
                .map(|f| f.fault.kind())
                .collect();
            assert!(is_enough(&sure), "seed {seed}: {:?}", plan.faults);
            elect += u32::from(plan.protocol.elects());
            check += u32::from(plan.program.checks_replies());
            subscribe += u32::from(plan.gateways.subscribers && plan.gateways.count > 1);
            plan.faults.iter().for_each(|f| kinds[f.fault.kind()] += 1);
            let numbers = [
                plan.bounds.last_epoch.into(),
                plan.bounds.first_view.into(),
                plan.bounds.first_request,
                plan.packets.own_ppm,
            ];
            let drawn = near_their_end.iter_mut().zip(numbers).filter(|(_, number)| *number > 0);
            drawn.for_each(|(count, _)| *count += 1);
        }
        let (all, apart) = kinds.split_at(Fault::KINDS.len() - OF_DISKS.len() - 1);
        assert!(all.iter().all(|n| *n > 100), "{kinds:?}");
        assert!(apart.iter().all(|n| *n > 50), "{kinds:?}");
        assert!(near_their_end.iter().all(|n| *n > 30), "{near_their_end:?}");
        assert!(elect > 250 && check > 100, "{elect} {check}");
        assert!(subscribe > 80, "{subscribe}");
    }

    #[test]
    fn aiming_changes_nothing_else() {
        let aim = Aim { protocol: Some(Protocol::Chain), with_help: Some(false), ..Aim::default() };
        let backup = Aim { protocol: Some(Protocol::PrimaryBackup), ..Aim::default() };
        let (drawn, aimed) = (Plan::draw_aimed(9, backup), Plan::draw_aimed(9, aim));
        let Plan { protocol, program, .. } = drawn;
        assert_eq!(Plan { protocol, program, ..aimed }, drawn);
    }
}
