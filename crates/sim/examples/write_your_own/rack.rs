//! The parts that the simulated rack and the one over UDP share: who is where, the switch with its
//! program, and how an operation is written down.

use concord_check::{Operation, Reply};
use concord_core::{Incarnation, Instant, Machine as _, Now};
use concord_switch::{AgentConfig, SwitchAgent};
use concord_wire::control::{Config, Member, Membership, Message as _, Program, Protocol};
use concord_wire::{Addr, GroupId};

use crate::switch::{Hdr, Op, Own};

/// The controller; in this rack it only says once who is who.
const CONTROLLER: Addr = Addr { ip: 0x7f00_0001, port: 1 };
const INCARNATION: u64 = 1;

/// A time, in ns.
pub fn at(ns: u64) -> Now {
    Now { instant: Instant(ns), unix_ms: 0 }
}

/// The switch: the seat that ships, with the program in it, told who the server is.
pub fn switch(addr: Addr, server: Addr) -> SwitchAgent<Own> {
    let mut config = AgentConfig::new(Incarnation(INCARNATION), addr, CONTROLLER);
    config.program = Program::Craq;
    let mut agent = SwitchAgent::new(config).expect("its registers are of a size that there is");
    let config = Config {
        epoch: 1,
        group: GroupId::FIRST,
        rack: 1,
        switch_id: 1,
        switch_incarnation: INCARNATION,
        switch: addr,
        kind: Protocol::Craq.into(),
        program: Program::Craq,
        members: vec![Member { node: 1, incarnation: 1, addr: server }],
        joining: Vec::new(),
    };
    let mut packet = Vec::new();
    Membership::Configure(config.into()).emit(&mut packet);
    agent.handle(at(0), CONTROLLER, &mut packet, &mut Vec::<(Addr, Vec<u8>)>::new());
    agent
}

/// How many reads the switch answered.
pub fn hits(agent: &SwitchAgent<Own>) -> u64 {
    let Own::Craq(cache) = agent.program();
    cache.hits()
}

/// An operation of client `client`, for the checker. What has not returned may have been executed.
pub fn operation(client: u64, done: &Hdr, call_ns: u64, return_ns: Option<u64>) -> Operation {
    let (key, value) = (done.key.to_string(), done.value.to_string());
    let (cmd, reply): (Vec<&str>, Reply) = match done.op {
        Op::Write | Op::WriteReply => (vec!["SET", &key, &value], Reply::Ok),
        Op::Read | Op::ReadReply if done.value == 0 => (vec!["GET", &key], Reply::Nil),
        Op::Read | Op::ReadReply => (vec!["GET", &key], Reply::bulk(value.as_str())),
    };
    Operation {
        client,
        ordinal: None,
        call_ns,
        return_ns,
        cmd: cmd.into_iter().map(|arg| arg.as_bytes().to_vec()).collect(),
        reply: return_ns.map(|_| reply),
        path: None,
    }
}
