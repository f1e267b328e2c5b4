//! The construction of a store's machines for all drivers: the swarm's rack, a load, the explorer,
//! and a bag of packets. Each driver begins with the shipped configuration, and changes a part of
//! it.

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

/// The storage engine of a replica: memory, which answers at once, or later as if behind a
/// connection.
pub(crate) fn engine(is_remote: bool, memory_bytes_max: u64) -> Shimmed<Store> {
    Shimmed::new(Store::new(is_remote, memory_bytes_max))
        .with_scripts(concord_lua::run)
        .with_functions(concord_lua::load)
}

/// The replicas among which clients choose for reads, out of `replicas`; none if clients do not
/// choose.
pub(crate) fn readers(reads: SlowReads, replicas: usize) -> Vec<NodeId> {
    match reads {
        SlowReads::FollowerLease | SlowReads::Quorum => (0..replicas as u16).map(NodeId).collect(),
        SlowReads::LeaderLease | SlowReads::ReadIndex => Vec::new(),
    }
}

/// The configurations of the machines of a rack at their start.
#[derive(Clone, Debug)]
pub(crate) struct Blueprint {
    pub protocol: Protocol,
    pub controller: ControllerConfig,
    /// The configuration of every replica, except for its identity.
    pub replica: ReplicaConfig,
    /// The configuration of every switch, except for its identity.
    pub switch: AgentConfig,
    /// The configuration of every client process, except for its address.
    pub client: ClientConfig,
}

impl Blueprint {
    /// A rack with this number of replicas at the start, as shipped except for the guards.
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
            // A replica that was away shall lack records; how many are retained for it is drawn, or
            // none.
            replica: ReplicaConfig {
                guards,
                limits: Limits { log_memory_bytes: 0, ..Limits::default() },
                ..ReplicaConfig::new(nobody, addr(CONTROLLER))
            },
            switch: AgentConfig { program, guards, ..switch },
            client: ClientConfig { controller: Some(addr(CONTROLLER)), guards, ..client },
        }
    }

    /// A controller that continues from a stored state, or makes the state anew.
    pub(crate) fn controller(&self, stored: Option<State>, recover: Option<Recover>) -> Controller {
        Controller::new(ControllerConfig { recover, ..self.controller.clone() }, stored)
    }

    /// A replica, by its place counted from 0.
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

    /// The configuration of the client process at `node`.
    pub(crate) fn client_config(&self, node: usize) -> ClientConfig {
        ClientConfig { addr: addr(node), ..self.client.clone() }
    }

    /// The client process at `node`.
    pub(crate) fn client(&self, node: usize, rng: Rng) -> OfGroup<Client> {
        OfGroup::new(GroupId::FIRST, Client::new(self.client_config(node), rng))
    }
}
