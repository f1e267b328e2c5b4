//! Golden vectors of Concordia: for each pass the packet in, the verdict, the packets out and the
//! registers, in `vectors/switch/concordia.txt`. Every rendering of the program must give the same.
//! `CONCORD_REGENERATE=1` rewrites them.
#![allow(clippy::unwrap_used)]

mod common;

use std::fmt::Write as _;

use common::{CONTROLLER, LIFE, SWITCH, golden, hex, replica};
use concord_core::{Epoch, Incarnation, Now, Rng};
use concord_pisa::{Copies, Verdict};
use concord_switch::{
    AgentConfig, BlocksLayout, Concordia, Ingress, Load as _, PortTable, SwitchProgram as _,
};
use concord_wire::concordia::{Copyset, GlobalStatus, Op, Repr, Tag};
use concord_wire::control::{Config, GroupKind, Program};

type Step = (String, Repr);

fn registers(program: &Concordia) -> String {
    let blocks = (0..3).map(|block| match program.peek(Tag(block)) {
        Some((status, version, copyset, is_locked)) => {
            let lock = if is_locked { " locked" } else { "" };
            format!("{block}: {status:?} v{version} {:b}{lock}", copyset.0)
        }
        None => format!("{block}: at its home"),
    });
    blocks.collect::<Vec<_>>().join(", ")
}

fn render(description: &str, steps: &[Step]) -> String {
    let kind = GroupKind::Memory;
    let config = Config { kind, program: Program::Concordia, ..common::config(1, 1) };
    let mut told = AgentConfig::new(Incarnation(LIFE), SWITCH, CONTROLLER);
    told.sections.blocks = BlocksLayout { ways: 2, way_blocks: 1 };
    let mut program = Concordia::load(&told.settings()).unwrap();
    common::install(&mut program, &config);
    let mut ports = PortTable::default();
    assert!(ports.fill(&[1, 2, 3].map(replica)));
    let mut text = format!("# {description}\n\nlayout: ways=2 way_blocks=1\n");
    writeln!(text, "tables: epoch=1 places={} {} {}", replica(1), replica(2), replica(3)).unwrap();
    for (comment, packet) in steps {
        let sender = replica(u16::from(packet.place) + 1);
        let mut bytes = packet.packet(&[]);
        writeln!(text, "\nstep: {comment}\nsender: {sender}\npacket: {}", hex(&bytes)).unwrap();
        let mut ingress = Ingress::first(Now::default(), sender, &ports);
        loop {
            let mut round = None;
            match program.process(&ingress, &mut bytes) {
                Verdict::Forward { to, size_bytes } => {
                    writeln!(text, "verdict: forward {to}\nout: {}", hex(&bytes[..size_bytes]))
                        .unwrap();
                }
                Verdict::Multicast { to: Copies::Ports(to), size_bytes } => {
                    let to: Vec<String> =
                        to.map(|port| ports.addr_of(port).unwrap().to_string()).collect();
                    writeln!(text, "verdict: multicast {}", to.join(" ")).unwrap();
                    writeln!(text, "out: {}", hex(&bytes[..size_bytes])).unwrap();
                }
                Verdict::Recirculate { metadata, size_bytes } => {
                    let [way, epoch] = metadata.0;
                    bytes.truncate(size_bytes);
                    writeln!(text, "verdict: recirculate\nmetadata: {way:x} {epoch:x}").unwrap();
                    round = Some(metadata);
                }
                Verdict::Drop(why) => writeln!(text, "verdict: drop {why:?}").unwrap(),
                other => panic!("Concordia does not do so: {other:?}"),
            }
            writeln!(text, "registers: {}", registers(&program)).unwrap();
            let Some(metadata) = round else { break };
            ingress = Ingress { passes: ingress.passes + 1, metadata, ..ingress };
        }
    }
    text
}

fn packet(op: Op, place: u8, number: u64) -> Repr {
    Repr { epoch: Epoch(1), place, number, ..Repr::new(op, Tag(0)) }
}

fn unlock(place: u8, number: u64, version: u64, new: (GlobalStatus, u32)) -> Repr {
    let (status, copyset) = (new.0, Copyset(new.1));
    Repr { version, status, copyset, is_exclusive: true, ..packet(Op::Unlock, place, number) }
}

fn scenario() -> Vec<Step> {
    let step = |comment: &str, packet| (comment.to_string(), packet);
    let (shared, modified) = (GlobalStatus::Shared, GlobalStatus::Modified);
    let read_unlock = |place, number, copyset| {
        let unlock = unlock(place, number, 1, (shared, copyset));
        Repr { is_exclusive: false, ..unlock }
    };
    let add = |block, number| Repr { tag: Tag(block), version: 1, ..packet(Op::Add, 0, number) };
    vec![
        step("a block that its home owns", packet(Op::ReadMiss, 1, 1)),
        step("it comes again: it is not the first", packet(Op::ReadMiss, 1, 1)),
        step("the home gives it to the switch, in two passes", add(0, 1)),
        step("and again", add(0, 1)),
        step("the request comes again, and gets no lock", packet(Op::ReadMiss, 1, 1)),
        step("nobody has it: to the home", packet(Op::ReadMiss, 1, 2)),
        step("the request comes again", packet(Op::ReadMiss, 1, 2)),
        step("a writer is refused", packet(Op::WriteMiss, 2, 1)),
        step("a reader waits for it", packet(Op::ReadMiss, 0, 1)),
        step("the first reader's unlock", read_unlock(1, 2, 0b10)),
        step("it comes again", read_unlock(1, 2, 0b10)),
        step("the writer gets it: to who has it", packet(Op::WriteMiss, 2, 2)),
        step("a late copy of the first reader's request", packet(Op::ReadMiss, 1, 2)),
        step("the writer's unlock", unlock(2, 2, 1, (modified, 0b100))),
        step("an eviction that is not of this state", packet(Op::EvictShared, 2, 3)),
        step("the eviction", packet(Op::EvictModified, 2, 4)),
        step("its unlock", unlock(2, 4, 2, (GlobalStatus::Unshared, 0))),
        step("another block", add(1, 2)),
        step("no room for a third", add(2, 3)),
        step("its home wants the first one back", packet(Op::Remove, 0, 4)),
        step("and asks again", packet(Op::Remove, 0, 4)),
        step("it is locked", packet(Op::ReadMiss, 1, 3)),
        step("its home has it", packet(Op::Forget, 0, 4)),
        step("and says so again", packet(Op::Forget, 0, 4)),
        step("a late copy of the ADD", add(0, 1)),
        step("a request after that passes on", packet(Op::ReadMiss, 1, 4)),
        step("of another epoch", Repr { epoch: Epoch(2), ..packet(Op::ReadMiss, 1, 9) }),
        step("of nobody", packet(Op::ReadMiss, 3, 1)),
        step("not for a switch", packet(Op::Ack, 1, 9)),
    ]
}

/// Packets drawn from a seed.
fn random() -> Vec<Step> {
    let mut rng = Rng::new(33);
    let (mut numbers, mut moves) = ([0; 3], 0);
    let draw = |index: usize| {
        let place = rng.below(3) as u8;
        let number = &mut numbers[usize::from(place)];
        let op = [
            Op::ReadMiss,
            Op::WriteMiss,
            Op::WriteShared,
            Op::EvictShared,
            Op::EvictModified,
            Op::Unlock,
            Op::Unlock,
            Op::Add,
            Op::Add,
            Op::Remove,
            Op::Forget,
        ][rng.below(11) as usize];
        *number += u64::from(op.is_request() && rng.chance(3, 4));
        moves += u64::from(matches!(op, Op::Add | Op::Remove) && rng.chance(3, 4));
        let status = GlobalStatus::ALL[rng.below(4) as usize];
        let new = (status, rng.below(8) as u32);
        let is_move = matches!(op, Op::Add | Op::Remove | Op::Forget);
        let number = if is_move { moves } else { *number };
        let unlock = unlock(place, number, rng.between(1, 4), new);
        let (tag, is_exclusive) = (Tag(rng.below(3)), rng.chance(1, 2));
        (format!("{index}"), Repr { op, tag, is_exclusive, ..unlock })
    };
    (0..200).map(draw).collect()
}

#[test]
fn golden_vectors_of_concordia() {
    golden("concordia", &render("Concordia: three nodes", &scenario()));
    golden("concordia_random", &render("Concordia: random packets of three nodes", &random()));
}
