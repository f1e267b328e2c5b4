//! The comparison of the replicas' states: damage of one replica's data is found under every
//! protocol, and none is found where there is none.

use concord_core::MS;
use concord_sim::{Plan, run};
use concord_wire::control::Protocol;

const PROTOCOLS: [Protocol; 6] = [
    Protocol::PrimaryBackup,
    Protocol::Chain,
    Protocol::Craq,
    Protocol::Vr,
    Protocol::NoPaxos,
    Protocol::Raft,
];
/// Seeds of each protocol.
const SEEDS: u64 = 12;

/// What a seed draws, with comparisons, and with disks in each third one.
fn drawn(seed: u64, protocol: Protocol) -> Plan {
    let plan = match seed % 3 {
        0 => Plan::draw_with_disks(seed, protocol),
        _ => Plan::draw_aimed(
            seed,
            concord_sim::Aim { protocol: Some(protocol), ..Default::default() },
        ),
    };
    Plan { compare_ns: (1 + seed % 10) * MS, damages: true, ..plan }
}

/// A key of one replica is changed behind the log's back: the controller names the replica and the
/// part of the keys, until the replica has copied the state. Before that, in the midst of faults,
/// it sees no difference (an invariant of the run).
#[test]
fn bug_22_9_a_damaged_replica_is_named() {
    for protocol in PROTOCOLS {
        let (mut damaged, mut found, mut compared) = (0, 0, 0);
        for seed in 0..SEEDS {
            let plan = drawn(seed, protocol);
            let outcome = run(&plan);
            assert_eq!(outcome.violation, None, "{protocol:?}, seed {seed}");
            damaged += outcome.totals.damaged_states;
            found += outcome.totals.damages_found;
            compared += outcome.totals.control.digests_compared;
        }
        println!("{protocol:?}: {found} of {damaged} damaged states were found");
        assert!(10 * found >= 9 * damaged, "{protocol:?}: {found} of {damaged} were found");
        assert!(damaged > SEEDS / 2, "{protocol:?}: {damaged} were damaged");
        assert!(compared > 50 * SEEDS, "{protocol:?}: {compared} digests were compared");
    }
}
