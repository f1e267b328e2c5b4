//! A switch program and a protocol of one's own, hosted by the seat that ships, simulated, checked,
//! and run over UDP: docs/guides/write-your-own.md.

mod protocol;
mod rack;
mod simulated;
mod switch;
mod udp;

use simulated::{OPERATIONS, run};

fn main() {
    let anywhere = concord_wire::Addr { ip: 0x7f00_0001, port: 7_000 };
    println!("{}\n", rack::switch(anywhere, anywhere).describe());
    let mut hits = 0;
    for seed in 0..500 {
        match run(seed, true) {
            Ok(more) => hits += more,
            Err(why) => return println!("seed {seed}: {why}"),
        }
    }
    println!(
        "500 seeds of {OPERATIONS} operations are linearizable; the switch answered {hits} reads"
    );
    match (0..5_000).find_map(|seed| run(seed, false).err().map(|why| (seed, why))) {
        Some((seed, why)) => println!("without dropping late numbers, seed {seed}: {why}"),
        None => println!("no seed catches that late numbers are not dropped"),
    }
    match udp::run() {
        Ok((operations, hits)) => println!(
            "over UDP {operations} operations are linearizable; the switch answered {hits} reads"
        ),
        Err(why) => println!("over UDP: {why}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_seed_is_linearizable_and_the_switch_helps() {
        let hits: u64 = (0..500).map(|seed| run(seed, true).unwrap()).sum();
        assert!(hits > 10_000, "{hits}");
    }

    #[test]
    fn dropping_late_numbers_is_caught() {
        assert!((0..5_000).any(|seed| run(seed, false).is_err()));
    }

    /// Over udp the same machines are linearizable and the switch helps.
    #[test]
    fn over_udp_linearizable_with_switch_help() {
        let (operations, hits) = udp::run().unwrap();
        assert_eq!(operations, 2_000);
        assert!(hits > 100, "{hits}");
    }

    #[test]
    fn a_packet_comes_back_as_it_was_and_one_of_no_key_is_refused() {
        let client = concord_wire::Addr { ip: 1, port: 2 };
        let hdr =
            switch::Hdr { op: switch::Op::Write, key: 3, value: 4, seq: 5, client, request: 6 };
        assert_eq!(switch::Hdr::parse(&hdr.packet()), Ok(hdr));
        let none = switch::Hdr { key: switch::KEYS as u32, ..hdr };
        assert!(switch::Hdr::parse(&none.packet()).is_err());
        assert!(switch::Hdr::parse(&hdr.packet()[..30]).is_err());
    }
}
