//! The coherence of GAM: homes that gather, asynchronous writes, fences.

use super::*;

fn gam(place: u8, guards: Guards) -> Node {
    let base = settings(place, guards);
    Node::new(NodeSettings { coherence: Coherence::Gam, cache_ways: 4, ..base }).unwrap()
}

fn fence(id: u64) -> Call {
    Call { access: Access::Fence, ..read(id) }
}

fn request(op: Op, place: u8, number: u64) -> Repr {
    Repr { place, number, is_first: true, ..Repr::new(op, TAG) }
}

/// The home of a block that nodes 1 and 2 share: its last answer to each event is unlocked.
fn home_of_shared(guards: Guards) -> Node {
    let mut home = gam(0, guards);
    for place in [1, 2] {
        let data = comes(&mut home, &request(Op::ReadMiss, place, 1), &[])[0];
        assert_eq!((data.op, data.provider), (Op::Data, None), "the home has the newest value");
        let copyset = data.copyset.with(Copyset::of(place));
        let status = GlobalStatus::Shared;
        let unlock = Repr { op: Op::Unlock, status, copyset, is_exclusive: false, ..data };
        assert_eq!(comes(&mut home, &unlock, &[])[0].op, Op::Unlocked);
    }
    home
}

/// A write is granted once all others have acknowledged to the home, and a copy of the request does
/// not change that.
#[test]
fn gam_a_home_grants_a_write_once_it_has_all_acknowledgements() {
    let mut home = home_of_shared(Guards::ALL);
    let asked = request(Op::WriteShared, 1, 2);
    let sent = comes(&mut home, &asked, &[]);
    assert_eq!(sent.iter().map(|p| p.op).collect::<alloc::vec::Vec<_>>(), [Op::WriteShared]);
    assert_eq!(comes(&mut home, &asked, &[]), sent, "its invalidation may be lost");
    let ack = Repr { op: Op::Ack, outcome: Outcome::Done, provider: Some(2), ..sent[0] };
    assert_eq!(comes(&mut home, &Repr { number: 1, ..ack }, &[]), [], "of another event");
    let granted = comes(&mut home, &ack, &[]);
    assert_eq!((granted.len(), granted[0].op, granted[0].provider), (1, Op::Ack, None));
    assert_eq!(comes(&mut home, &ack, &[]), [], "a copy of the acknowledgement");
    assert_eq!(comes(&mut home, &asked, &[]), granted, "the grant may be lost");
    #[cfg(feature = "mutants")]
    {
        let mut home = home_of_shared(Guards::without(concord_core::Guard::HomeGathered));
        let sent = comes(&mut home, &asked, &[]);
        assert!(sent.iter().any(|packet| packet.op == Op::Ack), "node 2 still reads its copy");
    }
}

/// The owner of a modified block sends it to the reader and to the home, whose value is the newest
/// from then on.
#[test]
fn gam_a_modified_block_that_is_read_goes_to_its_home_too() {
    let mut home = gam(0, Guards::ALL);
    let data = comes(&mut home, &request(Op::WriteMiss, 1, 1), &[])[0];
    let (status, copyset) = (GlobalStatus::Modified, Copyset::of(1));
    let unlock = Repr { op: Op::Unlock, status, copyset, is_exclusive: true, ..data };
    let _ = comes(&mut home, &unlock, &[]);
    let asked = comes(&mut home, &request(Op::ReadMiss, 2, 1), &[])[0];
    assert_eq!((asked.op, asked.provider), (Op::ReadMiss, Some(1)));

    let mut owner = gam(1, Guards::ALL);
    let miss = called(&mut owner, write(1, 0, 7))[0];
    assert_eq!(owner.poll_done().unwrap().result, Ok(alloc::vec![]), "a write is answered at once");
    let _ = comes(&mut owner, &Repr { op: Op::Data, version: 1, ..miss }, &[0; 512]);
    let sent = comes(&mut owner, &asked, &[]);
    assert_eq!(
        sent.iter().map(|p| p.op).collect::<alloc::vec::Vec<_>>(),
        [Op::Data, Op::WriteBack]
    );
    assert_eq!(comes(&mut home, &sent[1], &[7; 512]), [], "nobody waits for an answer");
    let (status, copyset) = (GlobalStatus::SharedStale, Copyset(6));
    let unlock = Repr { op: Op::Unlock, status, copyset, is_exclusive: false, ..sent[0] };
    let _ = comes(&mut home, &unlock, &[]);
    let (status, _, copyset, is_locked) = home.owned(TAG).unwrap();
    assert_eq!((status, copyset, is_locked), (GlobalStatus::Shared, Copyset(6), false));
    assert_eq!(home.home_data(TAG)[0], 7);
}

/// A write is answered before it takes effect, and a fence after.
#[test]
fn gam_a_fence_waits_for_the_writes_before_it() {
    let ids = |node: &mut Node| -> alloc::vec::Vec<u64> {
        core::iter::from_fn(|| node.poll_done()).map(|done| done.id).collect()
    };
    let fenced = |guards| {
        let mut node = gam(1, guards);
        let miss = called(&mut node, write(1, 0, 7))[0];
        assert_eq!(ids(&mut node), [1]);
        let _ = called(&mut node, fence(2));
        let before = ids(&mut node);
        let _ = comes(&mut node, &Repr { op: Op::Data, version: 1, ..miss }, &[0; 512]);
        assert!(!node.cancel(1), "it has taken effect");
        (before, ids(&mut node))
    };
    assert_eq!(fenced(Guards::ALL), (alloc::vec![], alloc::vec![2]));
    #[cfg(feature = "mutants")]
    {
        let without = fenced(Guards::without(concord_core::Guard::FenceWaits));
        assert_eq!(without, (alloc::vec![2], alloc::vec![]), "the write had no effect yet");
    }
    // Where writes are synchronous, a fence has nothing to wait for.
    let mut node = node(1, Guards::ALL);
    let _ = (called(&mut node, write(1, 0, 7)), called(&mut node, fence(2)));
    assert_eq!(ids(&mut node), [2]);
}

/// A read does not overtake the node's own write that waits for a lane.
#[test]
fn gam_a_read_comes_after_the_nodes_own_write() {
    let seen = |guards| {
        let mut node = gam(1, guards);
        let miss = called(&mut node, read(1))[0];
        let data = Repr { op: Op::Data, version: 1, ..miss };
        let unlock = comes(&mut node, &data, &[0; 512])[0];
        let _ = comes(&mut node, &Repr { op: Op::Unlocked, ..unlock }, &[]);
        assert_eq!(node.poll_done().unwrap().result, Ok(alloc::vec![0]));
        // Both lanes are busy.
        let _ = (called(&mut node, write(2, 1, 1)), called(&mut node, write(3, 2, 1)));
        let _ = (called(&mut node, write(4, 0, 7)), called(&mut node, read(5)));
        core::iter::from_fn(|| node.poll_done()).any(|done| done.id == 5)
    };
    assert!(!seen(Guards::ALL));
    #[cfg(feature = "mutants")]
    assert!(seen(Guards::without(concord_core::Guard::OwnWriteFirst)), "it reads the old value");
}

/// A write that was answered and cannot be done fails before the next fence.
#[test]
fn gam_a_write_that_fails_late_says_so_before_a_fence() {
    let mut node = gam(1, Guards::ALL);
    let miss = called(&mut node, write(1, 0, 7))[0];
    assert_eq!(node.poll_done(), Some(Done { id: 1, result: Ok(alloc::vec![]) }));
    assert!(!node.cancel(1), "its caller has its outcome");
    let _ = called(&mut node, fence(2));
    let lost = Repr { op: Op::Ack, outcome: Outcome::Lost, ..miss };
    let _ = comes(&mut node, &lost, &[]);
    assert_eq!(node.poll_done(), Some(Done { id: 1, result: Err(Failure::Lost) }));
    assert_eq!(node.poll_done(), Some(Done { id: 2, result: Ok(alloc::vec![]) }));
}
