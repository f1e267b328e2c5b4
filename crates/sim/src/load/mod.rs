//! The performance of a rack: the shipped machines at hosts that take time for each packet, on a
//! good network, with clients that never pause. Throughput and latency are measured; histories are
//! not recorded ([`crate::run`] does that).
//!
//! A replica is one queue: each packet keeps it busy for the time of its kind. It acknowledges what
//! it has received once its queue is empty, or after [`BATCH_PACKETS`], as the runtime does at the
//! end of a batch. The switch is a pipeline: it delays packets and never queues them. Clients take
//! no time.

mod clients;
mod completions;
mod host;
mod measured;
mod setup;

use concord_core::{Duration, SEC};

use host::Rack;

pub use concord_protocols::SlowReads;
pub use measured::{Latency, Measured, Packets};
pub use setup::{BATCH_PACKETS, Dies, Keys, Load, Separate};

/// The maximum time until the rack has opened its first epoch and sessions are registered, in ns.
const START_NS_MAX: Duration = 5 * SEC;

/// Runs a load, and measures it.
///
/// # Errors
/// A line if the rack never got ready, or stopped, which is a bug.
pub fn measure(load: &Load) -> Result<Measured, String> {
    let mut rack = Rack::new(load)?;
    rack.start(START_NS_MAX)?;
    rack.run(load.warm_up_ns)?;
    rack.begin();
    if let Some((who, at_ns)) = load.dies {
        rack.run(at_ns)?;
        rack.kill(who);
        rack.run(load.measure_ns.saturating_sub(at_ns))?;
    } else if let Some((stops_ns, starts_ns)) = load.switch_stops {
        rack.run(stops_ns)?;
        rack.stop_switch();
        rack.run(starts_ns.saturating_sub(stops_ns))?;
        rack.start_switch()?;
        rack.run(load.measure_ns.saturating_sub(starts_ns))?;
    } else {
        rack.run(load.measure_ns)?;
    }
    Ok(rack.measured())
}

#[cfg(test)]
mod tests {
    use concord_core::{MS, Rng};
    use concord_switch::KeyGroupSettings;
    use concord_wire::control::{Program, Protocol};

    use super::*;
    use crate::systems::store::plan::Service;

    fn quick(load: Load) -> Measured {
        let load = Load { warm_up_ns: 3 * MS, measure_ns: 10 * MS, ..load };
        measure(&load).unwrap()
    }

    /// A chain reads as fast as its tail, and with Harmonia as fast as all its replicas.
    #[test]
    fn chain_reads_at_its_tail_and_harmonia_at_all() {
        let reads = Load { writes_permille: 0, outstanding: 192, ..Load::default() };
        let alone = quick(reads.clone().over(Protocol::Chain, false));
        assert!((alone.total() / 920_000.0 - 1.0).abs() < 0.02, "{}", alone.total());
        let helped = quick(reads);
        assert!(helped.total() > 2.85 * alone.total(), "{}", helped.total());
        assert_eq!(helped.replicas.reads_slow, 0);
    }

    #[test]
    fn writes_are_as_fast_as_one_server_with_and_without_help() {
        let writes = Load { writes_permille: 1_000, outstanding: 256, ..Load::default() };
        for with_help in [true, false] {
            let total = quick(writes.clone().over(Protocol::Chain, with_help)).total();
            assert!((total / 800_000.0 - 1.0).abs() < 0.04, "{total}");
        }
    }

    /// The replicas of a long chain write at the same time (docs/internals/bugs.md, 3).
    #[test]
    fn bug_3_the_replicas_of_a_long_chain_write_at_the_same_time() {
        let load = Load {
            replicas: 8,
            writes_permille: 1_000,
            outstanding: 8 * 96,
            program: Program::Forward,
            ..Load::default()
        };
        let total = quick(load).total();
        assert!((total / 800_000.0 - 1.0).abs() < 0.04, "{total}");
    }

    /// Key groups are read at all replicas, and the leader is spared while writes are pending.
    #[test]
    fn key_groups_are_read_at_all_replicas() {
        let load = |avoid_leader| {
            let key_groups = KeyGroupSettings { avoid_leader, ..KeyGroupSettings::DEFAULT };
            let of = Load { protocol: Protocol::Vr, program: Program::Flair, ..Load::default() };
            Load { outstanding: 192, key_groups, ..of }
        };
        let reads = quick(Load { writes_permille: 0, ..load(true) });
        assert!(reads.total() > 2.6 * 920_000.0, "{}", reads.total());
        assert!((reads.leader_reads_share - 0.33).abs() < 0.03, "{}", reads.leader_reads_share);
        let (spared, random) = (quick(load(true)), quick(load(false)));
        assert!(spared.leader_reads_share < 0.05, "{}", spared.leader_reads_share);
        assert!(random.leader_reads_share > 0.3, "{}", random.leader_reads_share);
        assert_eq!(spared.counts.get("dropped_no_session"), Some(&0));
    }

    /// Figure 26b (FLAIR) at a tenth of the rates, with weights that are computed twenty times as
    /// often.
    #[test]
    fn slower_follower_gets_fewer_reads() {
        let run = |load_awareness| {
            let key_groups =
                KeyGroupSettings { load_awareness, run_bits: 0, ..KeyGroupSettings::DEFAULT };
            let of = Load { protocol: Protocol::Vr, program: Program::Flair, ..Load::default() };
            let service = Service { read_ns: 10_870, ..of.service };
            let of = Load { service, slower_permille: 500, processes: 90, key_groups, ..of };
            let of = Load { writes_permille: 0, outstanding: 90, weigh_ns: 50 * MS, ..of };
            measure(&Load { warm_up_ns: 1_500 * MS, measure_ns: 200 * MS, ..of }).unwrap()
        };
        let (even, weighed) = (run(false), run(true));
        // Three times the capacity of the slowest replica, and the capacity of all three.
        let (least, most) = (3.0 * 92_000.0 / 1.5, 92_000.0 * (2.0 + 1.0 / 1.5));
        assert!((even.total() / least - 1.0).abs() < 0.03, "{} of {least}", even.total());
        assert!((weighed.total() / most - 1.0).abs() < 0.05, "{} of {most}", weighed.total());
        assert!(weighed.counts.get("weights_taken") > Some(&10), "{:?}", weighed.counts);
    }

    #[test]
    fn a_write_that_waits_takes_longer_and_keeps_nobody_busy() {
        let load = Load { writes_permille: 1_000, outstanding: 8, ..Load::default() };
        let quick_writes = quick(load.clone()).write.mean_ns;
        let held = quick(Load { write_wait_ns: MS, ..load }).write.mean_ns;
        assert!((held - quick_writes - 1e6).abs() < 1e5, "{quick_writes} {held}");
    }

    #[test]
    fn who_dies_answers_no_more() {
        let of = Load { protocol: Protocol::Vr, program: Program::Flair, ..Load::default() };
        let load = Load { writes_permille: 0, outstanding: 48, ..of };
        for who in [Dies::Leader, Dies::Follower] {
            let load = Load { dies: Some((who, 5 * MS)), measure_ns: 600 * MS, ..load.clone() };
            let seen = measure(&Load { bucket_ns: 100 * MS, ..load }).unwrap();
            assert!(seen.buckets[5] > 0, "{who:?}: {:?}", seen.buckets);
        }
    }

    #[test]
    fn open_loop_writes_come_at_their_rate() {
        let load = Load {
            writes_permille: 0,
            outstanding: 96,
            writes_per_second: 200_000,
            ..Load::default()
        };
        let seen = quick(load);
        assert!((seen.writes_per_second / 200_000.0 - 1.0).abs() < 0.05, "{seen:?}");
        let left = 3.0 * (1.0 - 0.25) / 1_087e-9;
        assert!((seen.reads_per_second / left - 1.0).abs() < 0.06, "{}", seen.reads_per_second);
    }

    #[test]
    fn stuck_writes_make_reads_of_their_objects_slow() {
        let load = Load {
            writes_permille: 0,
            outstanding: 192,
            stuck_writes: 2_000,
            keys: Keys::Uniform(10_000),
            ..Load::default()
        };
        let seen = quick(load);
        let slow = seen.replicas.reads_slow as f64;
        let share = slow / (slow + seen.replicas.reads_fast as f64);
        assert!((share - 0.18).abs() < 0.03, "{share}");
    }

    /// Late completions keep objects dirty, and lost ones leave stray entries.
    #[test]
    fn late_completions_and_strays() {
        let load = |apart, sweep_interval_ns| {
            quick(Load {
                outstanding: 192,
                keys: Keys::Uniform(20_000),
                slots: 1_024,
                completions_separate: Some(apart),
                sweep_interval_ns,
                ..Load::default()
            })
        };
        let in_time = load(Separate::default(), 5 * MS);
        let late = load(Separate { delay_ns: 2 * MS, lost_ppm: 0 }, 5 * MS);
        // 120,000 writes a second for 2 ms are 240 more dirty objects of 20,000.
        assert!(late.occupied > in_time.occupied + 100, "{} {}", late.occupied, in_time.occupied);
        assert!(late.replicas.reads_slow > 2 * in_time.replicas.reads_slow);
        let lost = load(Separate { delay_ns: 0, lost_ppm: 200_000 }, SEC);
        assert_eq!(lost.switch.strays_swept, 0);
        assert!(lost.switch.strays_read > 50, "{:?}", lost.switch);
        assert!(lost.occupied > 2 * in_time.occupied, "{}", lost.occupied);
        assert!((lost.total() / in_time.total() - 1.0).abs() < 0.02, "{}", lost.total());
    }

    #[test]
    fn commit_acks_apart_are_packets_of_the_leader() {
        let load = |commit_acks_separate| {
            let service = Service { ack_ns: 100, ..Load::default().service };
            let load = Load { service, commit_acks_separate, ..Load::default() };
            let load = Load { writes_permille: 1_000, outstanding: 1, ..load };
            quick(load.over(Protocol::Vr, true))
        };
        let (within, apart) = (load(false), load(true));
        let a_write = |m: &Measured| m.packets[1].got as f64 / m.answered as f64;
        let more = a_write(&apart) - a_write(&within);
        assert!((more - 2.0).abs() < 0.1, "two followers: {more}");
    }

    #[test]
    fn the_leader_of_a_quorum_reads_alone_and_with_help_all_do() {
        for protocol in [Protocol::Vr, Protocol::NoPaxos] {
            let reads = Load { writes_permille: 0, outstanding: 192, ..Load::default() };
            let alone = quick(reads.clone().over(protocol, false));
            assert!((alone.total() / 920_000.0 - 1.0).abs() < 0.02, "{}", alone.total());
            let helped = quick(reads.over(protocol, true));
            assert!(helped.total() > 2.85 * alone.total(), "{protocol:?}: {}", helped.total());
        }
    }

    #[test]
    fn a_run_is_a_function_of_its_load() {
        let load = Load { outstanding: 64, ..Load::default() };
        let (a, b) = (quick(load.clone()), quick(load));
        assert_eq!((a.events, a.read, a.packets), (b.events, b.read, b.packets));
    }

    #[test]
    fn zipf_prefers_the_first_ranks() {
        let keys = Keys::zipf(1_000, 0.9);
        let mut rng = Rng::new(1);
        let first = (0..10_000).filter(|_| keys.draw(&mut rng) == 0).count();
        assert!((900..1_400).contains(&first), "{first}");
    }
}
