//! Helpers that the tests of this crate share: a rack's addresses, packets, and a running switch.
#![allow(dead_code, clippy::unwrap_used)]

use concord_core::{Guards, Incarnation, Now, ObjectId, RequestNumber, Seq, SessionId, SwitchId};
use concord_pisa::Verdict;
use concord_switch::harmonia::cell_index;
use concord_switch::{
    AgentConfig, DropReason, Harmonia, Ingress, Layout, Load, PortTable, Settings, SwitchProgram,
};
use concord_wire::control::{Config, Member, Program, Protocol};
use concord_wire::{Addr, Flags, GroupId, Op, Packet, Repr};

pub const SWITCH: Addr = Addr { ip: 0x0a00_0001, port: 7000 };
pub const CLIENT: Addr = Addr { ip: 0x0a00_00c8, port: 9000 };
pub const CONTROLLER: Addr = Addr { ip: 0x0a00_0002, port: 6999 };
pub const LIFE: u64 = 40;
pub const OWN: SwitchId = SwitchId(7);

pub fn replica(node: u16) -> Addr {
    Addr { ip: 0x0a00_0100 + u32::from(node), port: 7001 }
}

/// A chain of three: node 1 is the head, node 3 the tail.
pub fn config(epoch: u32, switch_id: u32) -> Config {
    let member = |node| Member { node, incarnation: 1, addr: replica(node) };
    Config {
        epoch,
        group: GroupId(0),
        rack: 1,
        switch_id,
        switch_incarnation: LIFE,
        switch: SWITCH,
        kind: Protocol::Chain.into(),
        program: Program::Harmonia,
        members: (1..=3).map(member).collect(),
        joining: Vec::new(),
    }
}

pub fn layout(table_stages: u8, slots: u32) -> Layout {
    Layout { table_stages, slots, counter_bits: 32, run_bits: 0 }
}

pub fn program(layout: Layout) -> Harmonia {
    guarded(layout, Guards::ALL)
}

pub fn guarded(layout: Layout, guards: Guards) -> Harmonia {
    load(layout, guards, &config(1, OWN.0))
}

pub fn settings(layout: Layout, guards: Guards) -> Settings {
    let mut told = AgentConfig::new(Incarnation(LIFE), SWITCH, CONTROLLER);
    told.sections.table.layout = layout;
    AgentConfig { guards, ..told }.settings()
}

/// A program with its configuration installed.
pub fn load<P: Load>(layout: Layout, guards: Guards, config: &Config) -> P {
    let mut program = P::load(&settings(layout, guards)).unwrap();
    install(&mut program, config);
    program
}

pub fn install(program: &mut impl SwitchProgram, config: &Config) {
    program.install(Now::default(), config).unwrap();
}

pub fn process<P: SwitchProgram>(program: &mut P, bytes: &mut [u8]) -> Verdict<P::Reason> {
    let ports = PortTable::default();
    program.process(&Ingress::first(Now::default(), CLIENT, &ports), bytes)
}

pub fn request(op: Op, obj_id: u32) -> Repr {
    Repr {
        obj_id: ObjectId(obj_id),
        session: SessionId(0x1234_5678_9abc),
        request: RequestNumber(1),
        client: CLIENT,
        ..Repr::new(op)
    }
}

/// Compares the output of a program with `vectors/switch/NAME.txt`; `CONCORD_REGENERATE=1` rewrites
/// the file.
pub fn golden(name: &str, text: &str) {
    let dir = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../vectors/switch");
    let path = dir.join(format!("{name}.txt"));
    if std::env::var_os("CONCORD_REGENERATE").is_some() {
        std::fs::create_dir_all(&dir).unwrap();
        return std::fs::write(&path, text).unwrap();
    }
    let golden = std::fs::read_to_string(&path).unwrap_or_default();
    for (line, (got, expected)) in text.lines().zip(golden.lines()).enumerate() {
        assert_eq!(got, expected, "{} line {}", path.display(), line + 1);
    }
    assert_eq!(text.lines().count(), golden.lines().count(), "{}", path.display());
}

pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

/// The outcome of a packet: its destination and header, or the reason why it was dropped.
pub type Outcome = Result<(Addr, Repr), DropReason>;

/// Runs a packet with a body, which must leave unchanged.
pub fn run<P>(program: &mut P, hdr: Repr) -> Outcome
where
    P: SwitchProgram<Reason = DropReason>,
{
    let mut bytes = Vec::new();
    hdr.emit(b"body", &mut bytes);
    let full = bytes.len();
    match process(program, &mut bytes) {
        Verdict::Forward { to, size_bytes } => {
            assert_eq!(size_bytes, full);
            let packet = Packet::parse(&bytes).unwrap();
            assert_eq!(packet.body(), b"body");
            Ok((to, packet.repr()))
        }
        Verdict::Drop(reason) => Err(reason),
        other => panic!("no program of a chain does so: {other:?}"),
    }
}

pub fn write(program: &mut Harmonia, obj_id: u32) -> Result<u32, DropReason> {
    write_with(program, obj_id, Flags::default())
}

pub fn write_with(program: &mut Harmonia, obj_id: u32, flags: Flags) -> Result<u32, DropReason> {
    let (to, out) = run(program, Repr { flags, ..request(Op::Write, obj_id) })?;
    assert_eq!(to, replica(1), "writes go to the head");
    assert_eq!(out.seq.switch_id, OWN);
    Ok(out.seq.counter)
}

pub fn complete(program: &mut impl SwitchProgram<Reason = DropReason>, obj_id: u32, counter: u32) {
    complete_of(program, OWN, obj_id, counter);
}

pub fn complete_of(
    program: &mut impl SwitchProgram<Reason = DropReason>,
    switch_id: SwitchId,
    obj_id: u32,
    counter: u32,
) {
    let seq = Seq::new(switch_id, counter);
    let completion = Repr { seq, ..request(Op::WriteCompletion, obj_id) };
    assert_eq!(run(program, completion), Err(DropReason::Consumed));
}

pub fn read(program: &mut Harmonia, obj_id: u32) -> (Addr, Repr) {
    run(program, request(Op::Read, obj_id)).unwrap()
}

pub fn sweep(program: &mut Harmonia, index: u32) {
    assert_eq!(run(program, Repr { index, ..Repr::new(Op::Sweep) }), Err(DropReason::Consumed));
}

/// The cells in use of `obj_id`: stage and counter.
pub fn cells(program: &Harmonia, obj_id: u32) -> Vec<(usize, u32)> {
    let all = program.entries().filter(|e| e.2 == obj_id);
    all.map(|(stage, _, _, counter)| (stage, counter)).collect()
}

/// `count` objects that share the index of object `like` in every one of `stages` stages.
pub fn colliding(like: u32, stages: usize, slots: u32, count: usize) -> Vec<u32> {
    let index = |obj_id, stage| cell_index(stage, ObjectId(obj_id)) & (slots - 1);
    let same = |o: &u32| (0..stages).all(|s| index(*o, s) == index(like, s));
    (0..u32::MAX).filter(|o| *o != like).filter(same).take(count).collect()
}
