//! The construction of a store's machines, whoever drives them: the swarm's rack, a load, the
//! explorer, a bag of packets. Each begins with what ships, and says what differs.

use concord_client::{Client, ClientConfig};
use concord_control::{Controller, ControllerConfig, GroupSetup, Recover, State};
use concord_core::{Guards, Incarnation, NodeId, Rng};
use concord_engine::{Engine, Shimmed};
use concord_protocols::{Limits, Node, ReplicaConfig, SlowReads};
use concord_switch::LoadError;
use concord_switch::agent::{Agent, AgentConfig};
use concord_wire::control::{Member, Program, Protocol};
use concord_wire::{GroupId, OfGroup};

use super::storage::Store;
use crate::world::{CONTROLLER, REPLICAS, SWITCH, addr};

/// The engine of a replica: memory, at once or as if behind a connection.
pub(crate) fn engine(is_remote: bool, memory_bytes_max: u64) -> Shimmed<Store> {
    Shimmed::new(Store::new(is_remote, memory_bytes_max))
        .with_scripts(concord_lua::run)
        .with_functions(concord_lua::load)
}

/// The replicas among whom clients choose, of so many; none where they do not.
pub(crate) fn readers(reads: SlowReads, replicas: usize) -> Vec<NodeId> {
    match reads {
        SlowReads::FollowerLease | SlowReads::Quorum => (0..replicas as u16).map(NodeId).collect(),
        SlowReads::LeaderLease | SlowReads::ReadIndex => Vec::new(),
    }
}

/// What the machines of a rack are told at their start.
#[derive(Clone, Debug)]
pub(crate) struct Blueprint {
    pub protocol: Protocol,
    pub controller: ControllerConfig,
    /// Of every replica, but for who it is.
    pub replica: ReplicaConfig,
    /// Of every switch, but for who it is.
    pub switch: AgentConfig,
    /// Of every client process, but for its address.
    pub client: ClientConfig,
}

impl Blueprint {
    /// A rack with so many replicas at the start, as it ships but for the guards.
    pub(crate) fn new(
        protocol: Protocol,
        program: Program,
        replicas: usize,
        guards: Guards,
    ) -> Blueprint {
        let group = GroupSetup::replicas((0..replicas as u16).collect(), protocol, program);
        let nobody = Member { node: 0, incarnation: 0, addr: addr(REPLICAS) };
        let switch = AgentConfig::new(Incarnation(0), addr(SWITCH), addr(CONTROLLER));
        let client = ClientConfig::new(addr(REPLICAS + replicas), addr(SWITCH));
        Blueprint {
            protocol,
            controller: ControllerConfig {
                rack: 1,
                guards,
                ..ControllerConfig::new(vec![group], addr(CONTROLLER))
            },
            // Whoever was away is to lack records: those that are kept for it are drawn, or none.
            replica: ReplicaConfig {
                guards,
                limits: Limits { log_memory_bytes: 0, ..Limits::default() },
                ..ReplicaConfig::new(nobody, addr(CONTROLLER))
            },
            switch: AgentConfig { program, guards, ..switch },
            client: ClientConfig { controller: Some(addr(CONTROLLER)), guards, ..client },
        }
    }

    /// A controller that goes on from what is stored, or makes it anew.
    pub(crate) fn controller(&self, stored: Option<State>, recover: Option<Recover>) -> Controller {
        Controller::new(ControllerConfig { recover, ..self.controller.clone() }, stored)
    }

    /// A replica, counted from 0.
    pub(crate) fn replica<E: Engine>(
        &self,
        replica: usize,
        incarnation: u64,
        engine: E,
    ) -> OfGroup<Node<E>> {
        let me = Member { node: replica as u16, incarnation, addr: addr(REPLICAS + replica) };
        let config = ReplicaConfig { me, ..self.replica.clone() };
        OfGroup::new(GroupId::FIRST, Node::new(self.protocol, config, engine))
    }

    /// The switch at `node`.
    pub(crate) fn switch(
        &self,
        node: usize,
        incarnation: u64,
        standby: bool,
    ) -> Result<Agent, LoadError> {
        let incarnation = Incarnation(incarnation);
        Agent::new(AgentConfig { incarnation, standby, addr: addr(node), ..self.switch })
    }

    /// What a client process at `node` is told.
    pub(crate) fn client_config(&self, node: usize) -> ClientConfig {
        ClientConfig { addr: addr(node), ..self.client.clone() }
    }

    /// A client process at `node`.
    pub(crate) fn client(&self, node: usize, rng: Rng) -> OfGroup<Client> {
        OfGroup::new(GroupId::FIRST, Client::new(self.client_config(node), rng))
    }
}
