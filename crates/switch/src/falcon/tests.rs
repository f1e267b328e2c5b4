//! Tests of the pipeline, stage by stage.

use alloc::vec::Vec;

use concord_core::{Guards, Instant, Rng, SessionId};
use concord_pisa::ASIC;
use concord_wire::Addr;
use concord_wire::falcon::{Asker, Task};

use super::entry::{Entry, Waiter, Words};
use super::stages::{Ask, POINTER_STAGES, Phv, STAGES, Side, Stages};
use super::{Form, QueueLayout};

fn stages(form: Form) -> Stages {
    Stages::new(QueueLayout::one(4, 3, form), Guards::ALL)
}

fn task(tid: u32) -> Words {
    let owner = Addr { ip: 1, port: 1 };
    Entry { uid: 1, jid: 1, owner, task: Task { tid, ..Task::default() } }.words()
}

fn waiter(number: u32) -> Words {
    let asker = Asker { session: SessionId(2), number, slot: 0, addr: Addr { ip: 2, port: 2 } };
    Waiter { asker, until: Instant(1) }.words()
}

fn add(tid: u32) -> Phv {
    Phv::new(Ask::Add, task(tid), None)
}

fn retrieve(number: u32) -> Phv {
    Phv::new(Ask::Retrieve { may_wait: true }, waiter(number), None)
}

/// The outcome of a packet's pass.
fn outcome(phv: &Phv) -> (Side, u32, Words) {
    (phv.side, phv.ticket, phv.words)
}

/// Packets drawn from a seed.
fn packets(seed: u64, count: u32) -> impl FnMut() -> Phv {
    let mut rng = Rng::new(seed);
    let mut number = 0;
    move || {
        number += 1;
        match rng.below(5) {
            0 | 1 => add(number % count),
            2 | 3 => retrieve(number % count),
            _ => Phv::new(Ask::Retrieve { may_wait: false }, waiter(number), None),
        }
    }
}

#[test]
fn stage_by_stage_is_the_same_as_one_packet_after_another() {
    for form in [Form::Paired, Form::Repair] {
        for seed in 0..50 {
            let mut one_by_one = stages(form);
            let mut pipelined = stages(form);
            let (mut draw, mut again) = (packets(seed, 90), packets(seed, 90));
            let mut in_the_pipe: Vec<(u8, Phv)> = Vec::new();
            let mut done = Vec::new();
            let mut wanted = Vec::new();
            for _ in 0..400 {
                let mut phv = draw();
                one_by_one.run(&mut phv);
                wanted.push(outcome(&phv));
                // Each packet in the pipe advances by one stage, the oldest first.
                in_the_pipe.push((0, again()));
                for (stage, phv) in &mut in_the_pipe {
                    pipelined.stage(*stage, phv);
                    *stage += 1;
                }
                let left = in_the_pipe.extract_if(.., |(stage, _)| *stage == STAGES);
                done.extend(left.map(|(_, phv)| outcome(&phv)));
            }
            for (stage, phv) in &mut in_the_pipe {
                for rest in *stage..STAGES {
                    pipelined.stage(rest, phv);
                }
                done.push(outcome(phv));
            }
            assert_eq!(done, wanted, "{form:?} {seed}");
            assert_eq!(
                alloc::format!("{pipelined:?}"),
                alloc::format!("{one_by_one:?}"),
                "{form:?} {seed}"
            );
        }
    }
}

/// The pipe of an ASIC keeps the order of packets in every stage. Cores do not: a core with the
/// next ticket can overtake the core with the ticket before.
#[test]
fn several_cores_strand_a_task() {
    let mut stages = stages(Form::Paired);
    let (mut adds, mut asks) = (add(7), retrieve(1));
    for stage in 0..POINTER_STAGES {
        stages.stage(stage, &mut adds);
    }
    for stage in 0..STAGES {
        stages.stage(stage, &mut asks);
    }
    for stage in POINTER_STAGES..STAGES {
        stages.stage(stage, &mut adds);
    }
    assert_eq!((adds.side, asks.side), (Side::Put, Side::Missing));
    let mut next = retrieve(2);
    stages.run(&mut next);
    assert_eq!(next.side, Side::Wait, "the task is in its slot, and retrieve_ptr has passed it");
    assert_eq!(stages.occupied().0, [0]);
}

/// Tasks that found the queue full have moved add_ptr too far, and it is not set back yet: the
/// limit of waiting requests is computed from its true value.
#[test]
fn no_more_wait_than_there_are_slots_while_add_ptr_is_too_high() {
    let mut stages = stages(Form::Repair);
    let mut side = |mut phv: Phv| {
        stages.run(&mut phv);
        phv.side
    };
    let added: Vec<Side> = (0..6).map(|tid| side(add(tid))).collect();
    assert_eq!(added[..3], [Side::Put; 3]);
    assert!(added[3..].iter().all(|side| matches!(side, Side::Full | Side::Repairing)));
    let asked: Vec<Side> = (0..7).map(|number| side(retrieve(number))).collect();
    let (take, wait, full) = (Side::Take, Side::Wait, Side::Full);
    assert_eq!(asked, [take, take, take, wait, wait, wait, full]);
}

#[test]
fn every_form_of_the_queue_fits_an_asic() {
    for form in [Form::Paired, Form::Repair, Form::Printed] {
        let layout = match form {
            Form::Paired => QueueLayout::DEFAULT,
            Form::Repair | Form::Printed => QueueLayout::one(1 << 17, 1 << 17, form),
        };
        let report = concord_pisa::Report::new("falcon", Stages::new(layout, Guards::ALL).report());
        assert_eq!(report.excess(&ASIC), None, "{form:?}");
        assert_eq!(report.stages(), usize::from(STAGES), "{form:?}");
        assert_eq!(report.stage_sram_bytes_max(), 1 << 20, "128K words, one array a stage");
    }
}
