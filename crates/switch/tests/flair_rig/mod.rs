//! A switch that runs FLAIR, and the messages of its leader.
#![allow(dead_code, clippy::unwrap_used)]

use concord_core::{Epoch, Guards, Instant, NodeId, Now, ObjectId, Position, SwitchId};
use concord_pisa::Verdict;
use concord_switch::flair::{DropReason, Flair};
use concord_switch::{AgentConfig, Ingress, KeyGroupSettings, Load, PortTable, SwitchProgram};
use concord_wire::control::{Config, Message as _, Program, Protocol};
use concord_wire::flair::{
    self, CaughtUp, Followers, GROUPS_OF_CHUNK, Group, Heartbeat, SessionMessage, Sid, Step,
    Weights,
};
use concord_wire::{Addr, GroupId, Kind, Op, Repr, kind};

use crate::common::{self, CLIENT, CONTROLLER, LIFE, OWN, SWITCH, replica};

/// The output of the switch for a packet.
pub type Out = Result<(Addr, Vec<u8>), DropReason>;

pub const SID: Sid = Sid(7);
pub const ALL: Followers = Followers(0b111);

pub struct Switch {
    pub program: Flair,
    pub now: Now,
    /// The newest probe of the switch that the leader has heard.
    pub probe: Instant,
    pub leader: u16,
    pub view: u32,
    /// The switch id, as the leader knows it.
    pub id: SwitchId,
    /// Whether it balances reads by weights.
    pub load_awareness: bool,
}

/// 64 groups, and reads distributed evenly.
pub const SMALL: KeyGroupSettings = KeyGroupSettings {
    group_bits: 6,
    run_bits: 0,
    avoid_leader: false,
    ..KeyGroupSettings::DEFAULT
};

pub fn config(view: u32, nodes: &[u16]) -> Config {
    let all = common::config(view, OWN.0);
    let member = |node: &u16| all.members.iter().find(|m| m.node == *node).copied().unwrap();
    let members = nodes.iter().map(member).collect();
    Config { kind: Protocol::Vr.into(), program: Program::Flair, members, ..all }
}

pub fn stable(log_idx: u64, followers: Followers) -> Group {
    Group { log_idx, followers, is_stable: true }
}

/// The object that is the `index`-th of a group of [`SMALL`].
pub fn object(group: u32, index: u32) -> ObjectId {
    ObjectId(group << 26 | index)
}

impl Switch {
    /// A switch whose leader is node 1 of three, and has exchanged heartbeats with it.
    pub fn new(settings: KeyGroupSettings, guards: Guards) -> Switch {
        let mut told = AgentConfig::new(concord_core::Incarnation(LIFE), SWITCH, CONTROLLER);
        told.sections.key_groups = settings;
        let program = Flair::load(&AgentConfig { guards, ..told }.settings()).unwrap();
        let now = Now { instant: Instant(1_000_000_000), unix_ms: 0 };
        let (probe, load_awareness) = (now.instant, settings.load_awareness);
        let mut switch =
            Switch { program, now, probe, leader: 1, view: 3, id: OWN, load_awareness };
        switch.configure(3, &[1, 2, 3]);
        switch
    }

    /// A switch with an active session, all of whose groups are stable at position 10.
    pub fn in_session(settings: KeyGroupSettings) -> Switch {
        let mut switch = Switch::new(settings, Guards::ALL);
        switch.start(SID, |_| stable(10, ALL), stable(10, ALL));
        switch
    }

    pub fn configure(&mut self, view: u32, nodes: &[u16]) {
        (self.view, self.leader) = (view, nodes[0]);
        self.program.install(self.now, &config(view, nodes)).unwrap();
        let _ = self.program.look(self.now.instant);
    }

    pub fn groups(&self) -> u32 {
        self.program.gauge("groups") as u32
    }

    pub fn wait(&mut self, ns: u64) {
        self.now.instant = self.now.instant.after(ns);
    }

    /// Runs one packet through the pipeline.
    pub fn pass(&mut self, from: Addr, bytes: &[u8]) -> Out {
        let (mut packet, ports) = (bytes.to_vec(), PortTable::default());
        let verdict = self.program.process(&Ingress::first(self.now, from, &ports), &mut packet);
        let _ = self.program.look(self.now.instant);
        match verdict {
            Verdict::Forward { to, size_bytes } => {
                packet.truncate(size_bytes);
                Ok((to, packet))
            }
            Verdict::Drop(reason) => Err(reason),
            other => panic!("FLAIR does not do so: {other:?}"),
        }
    }

    /// Sends a client's request.
    pub fn ask(&mut self, hdr: Repr, body: &[u8]) -> Out {
        let mut bytes = Vec::new();
        hdr.emit(body, &mut bytes);
        self.pass(CLIENT, &bytes)
    }

    /// The destination and header of a request that leaves the switch.
    pub fn asked(&mut self, hdr: Repr) -> (Addr, flair::Repr) {
        let (to, bytes) = self.ask(hdr, b"command").unwrap();
        assert_eq!(kind(&bytes), Ok(Kind::Flair));
        let packet = flair::Packet::parse(&bytes).unwrap();
        assert_eq!(packet.command(), b"command");
        (to, packet.repr())
    }

    pub fn write(&mut self, obj_id: ObjectId) -> flair::Repr {
        let (to, out) = self.asked(Repr { obj_id, ..common::request(Op::Write, 0) });
        assert_eq!(to, replica(self.leader));
        out
    }

    pub fn read(&mut self, obj_id: ObjectId) -> (Addr, flair::Repr) {
        self.asked(Repr { obj_id, ..common::request(Op::Read, 0) })
    }

    /// Sends a replica's answer.
    pub fn answer(&mut self, hdr: &flair::Repr, body: &[u8]) -> Out {
        let mut bytes = Vec::new();
        hdr.emit(body, &mut bytes);
        self.pass(replica(hdr.common.node.0), &bytes)
    }

    /// Sends the leader's reply to a write, which is at `log_idx`.
    pub fn written(&mut self, write: &flair::Repr, log_idx: u64, cflwrs: Followers) -> Out {
        let (node, epoch) = (NodeId(self.leader), Epoch(self.view));
        let common = Repr { op: Op::WriteReply, node, epoch, ..write.common };
        let reply = flair::Repr {
            common,
            log_idx: Position(log_idx),
            cflwrs,
            echo: 0,
            switch: write.switch,
        };
        self.answer(&reply, b"+OK\r\n")
    }

    /// Gives the control plane a message of the leader; returns the step that it confirms.
    pub fn tell(&mut self, message: &SessionMessage) -> Option<Step> {
        let mut bytes = Vec::new();
        message.emit(&mut bytes);
        self.tell_bytes(&bytes)
    }

    pub fn tell_bytes(&mut self, bytes: &[u8]) -> Option<Step> {
        let injected = self.program.control(self.now, bytes).unwrap();
        let _ = self.program.look(self.now.instant);
        let mut injection = injected?;
        let (to, out) = self.pass(SWITCH, injection.packet()).unwrap();
        assert_eq!(to, replica(self.leader));
        match SessionMessage::parse(&out).unwrap() {
            SessionMessage::Confirmed { step, probe, .. } => {
                self.probe = Instant(probe);
                Some(step)
            }
            other => panic!("{other:?}"),
        }
    }

    pub fn begin(&self, sid: Sid, all_keys: Group) -> SessionMessage {
        let (view, from) = (self.view, self.leader);
        SessionMessage::Begin {
            view,
            from,
            switch: self.id.0,
            sid,
            replicas: vec![1, 2, 3],
            all_keys,
        }
    }

    pub fn chunk(&self, sid: Sid, chunk: u32, groups: Vec<Group>) -> SessionMessage {
        let (view, from, switch) = (self.view, self.leader, self.id.0);
        SessionMessage::Groups { view, from, switch, sid, chunk, groups }
    }

    pub fn activate(&self, sid: Sid) -> SessionMessage {
        let (view, from, probe) = (self.view, self.leader, self.probe.0);
        SessionMessage::Activate { view, from, switch: self.id.0, sid, probe }
    }

    pub fn weights(&self, sid: Sid, round: u32, weights: Weights) -> SessionMessage {
        let (view, from, switch) = (self.view, self.leader, self.id.0);
        SessionMessage::Weights { view, from, switch, sid, round, weights }
    }

    /// Runs the start of a session, each step of which is confirmed.
    pub fn start(&mut self, sid: Sid, group: impl Fn(u32) -> Group, all_keys: Group) {
        let groups = self.groups();
        let begin = self.begin(sid, all_keys);
        let load_awareness = self.load_awareness;
        assert_eq!(self.tell(&begin), Some(Step::Begun { groups, load_awareness }));
        for (chunk, first) in (0..).zip((0..groups).step_by(GROUPS_OF_CHUNK)) {
            let last = groups.min(first + GROUPS_OF_CHUNK as u32);
            let chunk_of = self.chunk(sid, chunk, (first..last).map(&group).collect());
            assert_eq!(self.tell(&chunk_of), Some(Step::Chunk { chunk }));
        }
        let activate = self.activate(sid);
        assert_eq!(self.tell(&activate), Some(Step::Active));
    }

    /// Sends a heartbeat that echoes `probe`.
    pub fn beat(&mut self, sid: Sid, probe: Instant) -> Out {
        self.beat_of(sid, probe, CaughtUp::default())
    }

    /// Sends a heartbeat with the replicas that have caught up.
    pub fn beat_of(&mut self, sid: Sid, probe: Instant, caught_up: CaughtUp) -> Out {
        let (from, view) = (NodeId(self.leader), Epoch(self.view));
        let (mut bytes, group, switch) = (Vec::new(), GroupId(0), self.id);
        Heartbeat { group, from, view, sid, switch, probe, caught_up }.emit(&mut bytes);
        self.pass(replica(self.leader), &bytes)
    }

    /// The packets that the control plane injects now, as they reach the leader.
    pub fn upkeep(&mut self) -> Vec<flair::Repr> {
        let mut sent = Vec::new();
        while let Some(mut injection) = self.program.upkeep(self.now.instant) {
            let (to, out) = self.pass(SWITCH, injection.packet()).unwrap();
            assert_eq!(to, replica(self.leader));
            sent.push(flair::Packet::parse(&out).unwrap().repr());
        }
        sent
    }
}
