//! Disks that are slow, and disks that hang: a rack begins, elects, and goes on within stated
//! times.

use concord_check::Reply;
use concord_core::{MS, SEC};
use concord_sim::{Disks, Fault, Outcome, Plan, run};
use concord_wire::control::Protocol;

const PROTOCOLS: [Protocol; 6] = [
    Protocol::Chain,
    Protocol::PrimaryBackup,
    Protocol::Craq,
    Protocol::Vr,
    Protocol::NoPaxos,
    Protocol::Raft,
];
/// Where a sync takes about a second, a rack begins within that time, and goes on within it.
const SLOW_NS_MAX: u64 = 15 * SEC;
/// When a disk begins to hang.
const HANGS_AT_NS: u64 = 2 * SEC;
/// Within that time after a disk began to hang its replica has left, or leads no more: a member for
/// each of 10 s, 15 s and 20 s; a leader after 5 s.
const MEMBER_NS_MAX: u64 = 23 * SEC;
const LEADER_NS_MAX: u64 = 8 * SEC;

/// With the times that ship (`lease_ms`, `failure_ms` of the rack file).
fn plan(protocol: Protocol, sync_ns: u64, interval: bool) -> Plan {
    Plan {
        seed: 7,
        clients: 2,
        connections: 3,
        think_ns: 20 * MS,
        keys: 20,
        operations: 0,
        writes_percent: 100,
        lease_ns: 500 * MS,
        failure_ns: 1_500 * MS,
        disks: Disks { sync_ns, snapshot_bytes: 1 << 20, interval, ..Disks::default() },
        ..Plan::of(protocol)
    }
}

/// The longest time without the end of a write, of those between two times.
fn longest_pause_ns(outcome: &Outcome, from_ns: u64, to_ns: u64) -> u64 {
    let is_write = |cmd: &[Vec<u8>]| cmd.first().is_some_and(|c| !c.starts_with(b"GET"));
    let is_done = |reply: &Reply| !matches!(reply, Reply::Error(_));
    let writes = outcome.history.iter().filter(|o| is_write(&o.cmd));
    let writes = writes.filter(|o| o.reply.as_ref().is_some_and(is_done));
    let mut ends: Vec<u64> = writes.filter_map(|o| o.return_ns).collect();
    ends.retain(|end| (from_ns..to_ns).contains(end));
    ends.extend([from_ns, to_ns]);
    ends.sort_unstable();
    ends.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap_or(0)
}

/// Where a sync took 0.4 s, Raft had no leader in a minute, and VR never began.
#[test]
fn bug_22_6_racks_begin_and_elect_with_syncs_of_a_second() {
    let killed_ns = 16 * SEC;
    let mut wrong = vec![];
    for (protocol, replica) in PROTOCOLS.into_iter().flat_map(|p| [(p, 0), (p, 1), (p, 2)]) {
        // Three quarters of a second to five.
        let plan = Plan { linger_ns: 16 * SEC, ..plan(protocol, SEC, false) };
        let outcome = run(&plan.with_fault(killed_ns, Fault::Kill { replica }));
        let begins_ns = longest_pause_ns(&outcome, 0, killed_ns);
        let elects_ns = longest_pause_ns(&outcome, killed_ns, killed_ns + 16 * SEC);
        println!("{protocol:?}, {replica}: {} ms, {} ms", begins_ns / MS, elects_ns / MS);
        if let Some(text) = &outcome.violation {
            wrong.push(format!("{protocol:?}: {text}"));
        }
        if begins_ns.max(elects_ns) > SLOW_NS_MAX {
            wrong.push(format!("{protocol:?}: {} ms, {} ms", begins_ns / MS, elects_ns / MS));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// A disk that hangs for so long that its member leaves, and answers again: the member is let in
/// again, by itself. Where a majority decides nobody leaves.
#[test]
fn bug_22_153_a_disk_that_answers_again_brings_its_member_back() {
    let (for_ns, mut wrong) = (24 * SEC, vec![]);
    for (protocol, replica) in PROTOCOLS.into_iter().flat_map(|p| [(p, 0), (p, 2)]) {
        let plan = Plan { linger_ns: for_ns + 10 * SEC, ..plan(protocol, 2 * MS, false) };
        let outcome = run(&plan.with_fault(HANGS_AT_NS, Fault::HangDisk { replica, for_ns }));
        let control = &outcome.totals.control;
        let (left, back) = (control.removed_leaving, control.promoted + control.returned);
        println!("{protocol:?}, replica {replica}: {left} left, {back} came back");
        if let Some(text) = &outcome.violation {
            wrong.push(format!("{protocol:?}, replica {replica}: {text}"));
        }
        if !protocol.is_quorum() && (left == 0 || back == 0) {
            wrong.push(format!("{protocol:?}, replica {replica}: {left} left, {back} came back"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// How long writes stood while the disk of `replica` hung.
fn hung_ns(
    protocol: Protocol,
    replica: usize,
    interval: bool,
    most_ns: u64,
) -> Result<u64, String> {
    let plan = Plan { linger_ns: most_ns + SEC, ..plan(protocol, 2 * MS, interval) };
    let hang = Fault::HangDisk { replica, for_ns: 3_600 * SEC };
    let outcome = run(&plan.with_fault(HANGS_AT_NS, hang));
    let pause_ns = longest_pause_ns(&outcome, HANGS_AT_NS, HANGS_AT_NS + most_ns + SEC);
    let ms = pause_ns / MS;
    println!("{protocol:?}, replica {replica}, interval {interval}: {ms} ms");
    match outcome.violation {
        Some(text) => Err(format!("{protocol:?}, replica {replica}: {text}")),
        None if pause_ns > most_ns => Err(format!("{protocol:?}, replica {replica}: {ms} ms")),
        None => Ok(pause_ns),
    }
}

/// A hung disk of one stopped all writes of chain, primary-backup and CRAQ for as long as it hung.
#[test]
fn bug_22_5_writes_go_on_beside_a_hung_disk() {
    let mut wrong = vec![];
    for protocol in PROTOCOLS {
        let is_quorum = protocol.is_quorum();
        let most_ns = if is_quorum { LEADER_NS_MAX } else { MEMBER_NS_MAX };
        for replica in 0..3 {
            wrong.extend(hung_ns(protocol, replica, false, most_ns).err());
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// A leader that syncs each second took no more writes once its disk hung, and led on for as long.
#[test]
fn bug_22_136_leader_with_a_hung_disk_leads_no_more() {
    let mut wrong = vec![];
    for protocol in [Protocol::Vr, Protocol::NoPaxos, Protocol::Raft] {
        for replica in 0..3 {
            wrong.extend(hung_ns(protocol, replica, true, LEADER_NS_MAX).err());
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The disks of all hang for some seconds, and answer again: nobody has left, writes go on.
#[test]
fn racks_go_on_after_all_disks_hung() {
    let (for_ns, mut wrong) = (8 * SEC, vec![]);
    for protocol in PROTOCOLS {
        let mut plan = Plan { linger_ns: for_ns + 8 * SEC, ..plan(protocol, 2 * MS, false) };
        for replica in 0..3 {
            plan = plan.with_fault(HANGS_AT_NS, Fault::HangDisk { replica, for_ns });
        }
        let outcome = run(&plan);
        let pause_ns = longest_pause_ns(&outcome, HANGS_AT_NS, HANGS_AT_NS + for_ns + 8 * SEC);
        println!("{protocol:?}: {} ms", pause_ns / MS);
        if let Some(text) = &outcome.violation {
            wrong.push(format!("{protocol:?}: {text}"));
        }
        if pause_ns > for_ns + 4 * SEC {
            wrong.push(format!("{protocol:?}: writes stood for {} ms", pause_ns / MS));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
