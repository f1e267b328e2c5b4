//! The performance of a shared memory (Concordia §7.2): the shipped nodes and the shipped switch on
//! virtual time, with programs that never pause. Messages are counted; a cost for each access and
//! each message turns counts into throughput.
//!
//! - A program's thread is busy for `hit_ns` with each access, whether it hits or not.
//! - A message keeps the host's server busy for `message_ns` when it is received, and again when it
//!   is sent. The home agent and the cache agent are a thread each (§6), and answers to a thread's
//!   own events keep a server of that thread busy. A node's messages to itself are no packets.
//! - A packet takes `way_ns` from host to host, half of it to the switch, which is never busy.
//! - In GAM's coherence UNLOCK and UNLOCKED cost nothing and are not counted: they stand for the
//!   order and reliability of GAM's connections.
//!
//! A block is one packet, as it is one RDMA write in the paper. Apart from that, the length of a
//! block only determines how many blocks a cache holds.

mod grappa;
mod hosts;
mod setup;

pub use setup::{Costs, Load, Measured, System};

/// Runs a load.
///
/// # Errors
/// A line if an access is refused or never ends: a bug.
pub fn measure(load: &Load) -> Result<Measured, String> {
    match load.system {
        System::Grappa => Ok(grappa::measure(load)),
        System::Concordia | System::Base | System::Gam => hosts::measure(load),
    }
}

#[cfg(test)]
mod tests {
    use concord_core::MS;

    use super::*;

    const COSTS: Costs = Costs { hit_ns: 240, message_ns: 300, way_ns: 2_000 };

    fn quick(system: System, change: impl Fn(Load) -> Load) -> Measured {
        let load = Load::paper(system, COSTS, 512);
        measure(&change(Load { warm_up_ns: MS, measure_ns: 2 * MS, ..load })).unwrap()
    }

    /// Cache hits take the thread's time and nothing else: 32 threads, 240 ns.
    #[test]
    fn accesses_of_full_locality_take_what_a_hit_takes() {
        for system in [System::Concordia, System::Base, System::Gam] {
            let m = quick(system, |load| Load { locality_percent: 100, ..load });
            assert!((m.per_second() / 133e6 - 1.0).abs() < 0.02, "{system:?}: {m:?}");
            assert_eq!((m.hits, m.packets), (m.accesses, 0), "{system:?}: {m:?}");
        }
    }

    /// Homes handle fewer packets of shared blocks if the switch owns them, and accesses wait for
    /// less time.
    #[test]
    fn the_switch_takes_work_from_homes() {
        let shared = |load| Load { sharing_percent: 100, ..load };
        let [switch, base, gam] =
            [System::Concordia, System::Base, System::Gam].map(|system| quick(system, shared));
        println!("{switch:?}\n{base:?}\n{gam:?}");
        assert!(switch.per_second() > 1.1 * base.per_second());
        assert!(base.per_second() > gam.per_second() / 2.0);
        assert!(3.0 * switch.home_packets_each() < base.home_packets_each());
        assert!(switch.wait_ns() < base.wait_ns());
    }

    /// Without a cache it makes no difference which block is next.
    #[test]
    fn delegations_gain_nothing_from_locality() {
        let at = |locality_percent| {
            quick(System::Grappa, |load| Load { locality_percent, ..load }).per_second()
        };
        assert!((at(80) / at(0) - 1.0).abs() < 0.1, "{} {}", at(0), at(80));
    }

    #[test]
    fn equal_loads_of_a_memory_run_alike() {
        let once = |seed| quick(System::Concordia, |l| Load { seed, sharing_percent: 60, ..l });
        assert_eq!(once(1), once(1));
        assert_ne!(once(1), once(2));
    }
}
