//! Golden vectors of NetCRAQ: for each pass the packet in, the verdict, the packets out and the
//! registers, in `vectors/switch/netcraq.txt`. Every rendering of the program must give the same.
//! `CONCORD_REGENERATE=1` rewrites them.
#![allow(clippy::unwrap_used)]

mod common;

use std::fmt::Write as _;

use common::{CLIENT, CONTROLLER, LIFE, golden, hex, replica};
use concord_core::{Epoch, Incarnation, Instant, NodeId, Now, Rng};
use concord_pisa::Verdict;
use concord_switch::program::Copied;
use concord_switch::{
    AgentConfig, ChainLayout, Ingress, Load as _, NetCraq, PortTable, SwitchProgram as _,
};
use concord_wire::control::{Config, GroupKind, Program};
use concord_wire::netcraq::{Command, Condition, Name, Op, Repr, Stamp, State, Words};

/// Time from one step to the next, in ns.
const STEP_NS: u64 = 10;

/// A comment, the member, whether the member itself injects the packet, and the packet.
type Step = (String, u16, bool, Repr);

fn members() -> Vec<NetCraq> {
    let kind = GroupKind::Switches;
    let config = Config { kind, program: Program::NetCraq, ..common::config(1, 1) };
    let load = |node| {
        let mut told = AgentConfig::new(Incarnation(LIFE), replica(node), CONTROLLER);
        told.sections.chain =
            ChainLayout { cells: 2, sessions: 2, value_bytes: 16, ..ChainLayout::DEFAULT };
        let mut program = NetCraq::load(&told.settings()).unwrap();
        common::install(&mut program, &config);
        program
    };
    (1..=3).map(load).collect()
}

fn registers(program: &NetCraq) -> String {
    let mut text = String::new();
    for cell in 0..2 {
        let (state, name, value) = program.peek(cell);
        let deadline = program.peek_deadline(cell, Instant(0)).0;
        write!(text, "{:x}/{:x}/{:x}.{:x}/", state.0, name.0[0], value.0[0], value.0[1]).unwrap();
        write!(text, "{deadline:x} ").unwrap();
    }
    text.trim_end().to_owned()
}

fn render(description: &str, steps: &[Step]) -> String {
    let mut members = members();
    let mut text = format!("# {description}\n\nlayout: cells=2 sessions=2 value_bytes=16\n");
    writeln!(text, "tables: epoch=1 members={} {} {}", replica(1), replica(2), replica(3)).unwrap();
    for (index, (comment, node, is_injected, packet)) in steps.iter().enumerate() {
        let now = Now { instant: Instant(STEP_NS * index as u64), unix_ms: 0 };
        let (program, ports) = (&mut members[usize::from(*node) - 1], PortTable::default());
        let sender = if *is_injected { replica(*node) } else { CLIENT };
        let mut bytes = packet.packet();
        writeln!(text, "\nstep: {comment}\nmember: {node}\nsender: {sender}").unwrap();
        writeln!(text, "packet: {}", hex(&bytes)).unwrap();
        let mut ingress = Ingress::first(now, sender, &ports);
        loop {
            let mut round = None;
            match program.process(&ingress, &mut bytes) {
                Verdict::Forward { to, size_bytes } => {
                    writeln!(text, "verdict: forward {to}\nout: {}", hex(&bytes[..size_bytes]))
                        .unwrap();
                }
                Verdict::Multicast { size_bytes, .. } => {
                    let to: Vec<String> = (0..3)
                        .map_while(|index| program.member(0, index))
                        .map(|to| to.to_string())
                        .collect();
                    writeln!(text, "verdict: multicast {}", to.join(" ")).unwrap();
                    writeln!(text, "out: {}", hex(&bytes[..size_bytes])).unwrap();
                }
                Verdict::Mirror { to, copy_bytes, metadata, size_bytes } => {
                    let mut copy = bytes[..copy_bytes].to_vec();
                    program.egress(&Copied { index: 0, port: None, to }, &mut copy);
                    writeln!(text, "verdict: mirror {to}\ncopy: {}", hex(&copy)).unwrap();
                    round = Some((metadata, size_bytes));
                }
                Verdict::Recirculate { metadata, size_bytes } => {
                    writeln!(text, "verdict: recirculate").unwrap();
                    round = Some((metadata, size_bytes));
                }
                Verdict::Drop(why) => writeln!(text, "verdict: drop {why:?}").unwrap(),
                other => panic!("NetCRAQ does not do so: {other:?}"),
            }
            let comes_round = round.is_some();
            if let Some((metadata, size_bytes)) = round {
                let [first, second] = metadata.0;
                bytes.truncate(size_bytes);
                writeln!(text, "metadata: {first:x} {second:x}\nout: {}", hex(&bytes)).unwrap();
                ingress = Ingress { passes: ingress.passes + 1, metadata, ..ingress };
            }
            writeln!(text, "registers: {}", registers(program)).unwrap();
            if !comes_round {
                break;
            }
        }
    }
    text
}

fn packet(op: Op, cell: u32, request: u32) -> Repr {
    let words = if op == Op::Acknowledgement { 0 } else { 2 };
    let (name, stamp) = (Name::new(b"lock").unwrap(), Stamp::new(1, 3, request));
    Repr { name, stamp, client: CLIENT, ..Repr::new(op, cell, words) }
}

fn of_member(node: u16, packet: Repr) -> Repr {
    Repr { from: NodeId(node), epoch: Epoch(1), ..packet }
}

fn set(request: u32, text: &[u8]) -> Repr {
    let (state, value) = (State::present(0, text.len() as u8, false), Words::new(text).unwrap());
    Repr { state, value, ..packet(Op::Write, 0, request) }
}

fn scenario() -> Vec<Step> {
    let step = |comment: &str, node, packet| (comment.to_string(), node, false, packet);
    let update = |version, text: &[u8], request| {
        let state = State::present(version, text.len() as u8, false);
        let set = set(request, text);
        of_member(1, Repr { op: Op::Update, state, basis: version, has_content: true, ..set })
    };
    let acknowledged = |version| {
        let state = State::present(version, 5, false);
        of_member(3, Repr { state, basis: version, ..packet(Op::Acknowledgement, 0, 1) })
    };
    let resend =
        of_member(1, Repr { state: State::present(1, 5, false), ..Repr::new(Op::Resend, 0, 2) });
    let lasting = Repr { cell: 1, deadline: 15, stamp: Stamp::new(0, 1, 2), ..set(2, b"bob") };
    let expire = of_member(1, Repr::new(Op::Expire, 1, 2));
    let ends = Repr { command: Command::Expire, deadline: 9, ..packet(Op::Write, 0, 6) };
    let late = Repr { deadline: 700, time: 600, ..update(4, b"y", 7) };
    let incr = Repr { command: Command::Incr, number: 5, ..packet(Op::Write, 1, 4) };
    vec![
        step("a read of an empty cell", 1, packet(Op::Read, 0, 1)),
        step("a write goes to the head", 2, set(1, b"alice")),
        step("the head numbers it in two passes", 1, set(1, b"alice")),
        step("its version is dirty: the tail is asked", 1, packet(Op::Read, 0, 2)),
        step("another write waits", 1, Repr { stamp: Stamp::new(0, 1, 1), ..set(1, b"bob") }),
        step("it comes again", 1, set(1, b"alice")),
        ("it is sent again".into(), 1, true, resend),
        step("the next member takes it", 2, update(1, b"alice", 1)),
        step("and once more", 2, update(1, b"alice", 1)),
        step("the tail answers, and acknowledges", 3, update(1, b"alice", 1)),
        step("an acknowledgement of another version", 1, acknowledged(2)),
        step("the acknowledgement", 1, acknowledged(1)),
        step("a clean read", 1, packet(Op::Read, 0, 2)),
        step("a read of a member at the tail", 3, of_member(1, packet(Op::Read, 0, 2))),
        step(
            "a read of another name",
            3,
            Repr { name: Name::new(b"b").unwrap(), ..packet(Op::Read, 0, 3) },
        ),
        step(
            "a condition that does not hold",
            1,
            Repr { condition: Condition::Absent, ..set(2, b"x") },
        ),
        step("a deletion", 1, Repr { command: Command::Del, ..packet(Op::Write, 0, 3) }),
        step("a key that is to end", 1, lasting),
        ("it is not acknowledged yet".into(), 1, true, expire),
        step(
            "acknowledged",
            1,
            Repr { cell: 1, state: State::present(1, 3, false), ..acknowledged(1) },
        ),
        step("a read says how long it lives", 1, Repr { cell: 1, ..packet(Op::Read, 0, 2) }),
        step("a write that finds it due ends it", 1, incr),
        ("it has ended".into(), 1, true, expire),
        step("a request of before", 1, set(2, b"x")),
        step("no such cell", 1, Repr { cell: 2, ..set(5, b"x") }),
        step("an update with a deadline tells the chain's time", 2, late),
        step("a deadline for a key that is not there", 1, ends),
        step("of another epoch", 2, Repr { epoch: Epoch(2), ..update(3, b"x", 5) }),
    ]
}

/// Packets drawn from a seed.
fn random() -> Vec<Step> {
    let mut rng = Rng::new(18);
    let mut request = 0;
    let draw = |index: usize| {
        let cell = rng.below(2) as u32;
        request += rng.below(2) as u32;
        let mut packet = match rng.below(5) {
            0 => packet(Op::Read, cell, request),
            1 => Repr { command: Command::Incr, number: 1, ..packet(Op::Write, cell, request) },
            2 => Repr { command: Command::Del, ..packet(Op::Write, cell, request) },
            3 => Repr { cell, ..set(request, &[b'a' + rng.below(3) as u8; 9]) },
            _ => {
                let state = State::present(rng.between(1, 6), 9, false);
                let update =
                    Repr { op: Op::Update, has_content: true, ..set(request, b"123456789") };
                of_member(1, Repr { cell, state, basis: state.version(), ..update })
            }
        };
        let node =
            if packet.op == Op::Update { 2 + rng.below(2) as u16 } else { 1 + rng.below(3) as u16 };
        packet.stamp = Stamp::new(rng.below(2) as u16, 1, request);
        match rng.below(8) {
            0 => packet.deadline = 1 + rng.below(500),
            1 => packet.keeps_deadline = packet.op == Op::Write,
            2 if packet.op == Op::Write => packet.command = Command::Expire,
            3 => {
                let expire = of_member(1, Repr::new(Op::Expire, cell, 2));
                return (format!("{index}"), 1, true, expire);
            }
            4 if packet.op == Op::Update => packet.time = rng.below(5_000),
            _ => {}
        }
        (format!("{index}"), node, false, packet)
    };
    (0..200).map(draw).collect()
}

#[test]
fn golden_vectors_of_netcraq() {
    golden("netcraq", &render("NetCRAQ: a chain of three", &scenario()));
    golden("netcraq_random", &render("NetCRAQ: random packets for a chain of three", &random()));
}
