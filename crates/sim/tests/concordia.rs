//! Concordia in every interleaving of a few calls (docs/internals/concordia.md): three nodes and
//! their switch, evictions, loss, packets that come twice, any order.
#![allow(clippy::unwrap_used)]

use concord_core::Guards;
use concord_memory::{Access, Call};
use concord_sim::concordia::Shape;
use concord_sim::concordia::explore::{Explored, Setup, explore};
use concord_wire::concordia::Tag;

const A: Tag = Tag(0);
const B: Tag = Tag(1);

fn read(id: u64, tag: Tag) -> Call {
    Call { id, tag, access: Access::Read { offset_bytes: 0, size_bytes: 1 } }
}

fn write(id: u64, tag: Tag) -> Call {
    Call { id, tag, access: Access::Write { offset_bytes: 0, data: vec![id as u8] } }
}

/// One block, caches of one block, nothing goes wrong but the order.
fn setup(guards: Guards, calls: Vec<Vec<Call>>) -> Setup {
    let shape = Shape { nodes: 3, cache_ways: 1, lanes: 2, guards };
    Setup {
        shape,
        blocks: vec![A, B],
        before: Vec::new(),
        calls,
        under_way: 1,
        losses: 0,
        doubles: 0,
        resends: 0,
        states_max: 60_000,
    }
}

/// How many states each case has.
const STATES: [usize; 11] = [778, 1938, 36862, 2060, 13911, 53, 26791, 371, 1209, 37220, 22049];

/// What is explored, by name.
fn cases(guards: Guards) -> Vec<(&'static str, Setup)> {
    let base = |calls| setup(guards, calls);
    let contended = vec![vec![], vec![write(1, A), read(2, A)], vec![read(3, A), write(4, A)]];
    let three = vec![vec![write(1, A)], vec![write(2, A)], vec![read(3, A)]];
    let evicting = vec![vec![read(5, A)], vec![read(6, B)], vec![read(7, B)]];
    let shared = vec![(1, write(1, A)), (2, read(2, A))];
    let crossing = vec![vec![], vec![read(3, B)], vec![read(4, A)]];
    let full = vec![(1, write(1, A)), (2, write(2, B))];
    let one = vec![vec![], vec![write(3, A)], vec![]];
    let owned = || vec![(1, write(1, A))];
    let beside = vec![vec![], vec![read(4, A), write(5, A)], vec![write(6, A)]];
    let evicted = vec![vec![], vec![read(4, B), write(5, A)], vec![read(6, A)]];
    let back = vec![vec![], vec![read(4, B)], vec![write(5, A), read(6, B)]];
    vec![
        ("two nodes write and read", base(contended.clone())),
        ("three nodes", base(three.clone())),
        (
            "copies of a modified block are evicted",
            Setup { before: shared.clone(), ..base(evicting) },
        ),
        ("caches are full", Setup { before: full, ..base(crossing) }),
        ("a copy comes twice", Setup { doubles: 1, ..base(contended.clone()) }),
        (
            "packets are lost",
            Setup { losses: 1, resends: 1, before: shared.clone(), ..base(one.clone()) },
        ),
        (
            "packets are lost, two nodes",
            Setup { losses: 1, resends: 1, before: owned(), ..base(contended) },
        ),
        ("two calls at a node", Setup { under_way: 2, ..base(beside) }),
        ("a write during an eviction", Setup { under_way: 2, before: owned(), ..base(evicted) }),
        ("a write-back comes twice", Setup { doubles: 1, before: owned(), ..base(back) }),
        (
            "a request is sent again, and a copy is late",
            Setup {
                resends: 1,
                before: owned(),
                ..base(vec![vec![], vec![read(4, B), write(5, A)], vec![write(2, A)]])
            },
        ),
    ]
}

fn show(name: &str, found: &Explored) {
    println!(
        "{name}: {} states, {} steps, complete: {}",
        found.states, found.steps, found.is_complete
    );
    if let Some((why, trace)) = &found.violation {
        println!("  {why}");
        for (number, step) in (1..).zip(trace) {
            println!("  {number}. {step}");
        }
    }
}

/// One writer or many readers, the newest value, copysets that cover who has copies, no lock left,
/// and every call answered: in all states.
#[test]
fn three_nodes_are_coherent_in_every_interleaving() {
    let mut counts = Vec::new();
    for (name, setup) in cases(Guards::ALL) {
        let found = explore(&setup);
        show(name, &found);
        assert_eq!(found.violation, None, "{name}");
        assert!(found.is_complete, "{name}");
        counts.push(found.states);
    }
    assert_eq!(counts, STATES);
}

#[cfg(feature = "mutants")]
mod mutants {
    use super::*;
    use concord_core::Guard;

    /// Those that the explorer's small racks show. (`OneEvent` has no case yet, and `WriterWanted`
    /// is about progress: `c14_readers_wait_for_a_refused_writer` in `concord-switch`.)
    const ALL: [Guard; 12] = [
        Guard::EventOnce,
        Guard::UnlockOnce,
        Guard::CheckTable,
        Guard::HomeStale,
        Guard::CopyVersion,
        Guard::WrittenBack,
        Guard::GivenKept,
        Guard::AnswerEvent,
        Guard::AllInvalidated,
        Guard::RoomFirst,
        Guard::EvictedUnwritten,
        Guard::NewerBlock,
    ];

    #[test]
    fn guards_of_concordia_are_caught_by_the_explorer() {
        let mut missed = Vec::new();
        for guard in ALL {
            let caught = cases(Guards::without(guard)).into_iter().find_map(|(name, setup)| {
                let (why, trace) = explore(&setup).violation?;
                Some(format!("{name}, {} steps: {why}", trace.len()))
            });
            match caught {
                Some(why) => println!("without {guard:?}: {why}"),
                None => missed.push(guard),
            }
        }
        assert_eq!(missed, []);
    }
}
