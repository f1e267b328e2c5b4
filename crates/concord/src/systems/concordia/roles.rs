//! Nodes of a shared memory as processes, built from the rack file.

use concord_runtime::Error;
use concord_runtime::driver::DriverOptions;
use concord_runtime::memory::{MemorySetup, run};
use concord_runtime::roles::Place;

use super::args::NodeArgs;
use super::section::Coherence;
use crate::rack::{Rack, in_file, pick_member, wire};

/// `concord node`.
///
/// # Errors
/// One line for a person.
pub fn node(args: &NodeArgs) -> Result<(), Error> {
    let NodeArgs { role, group } = args;
    role.log.init()?;
    let rack = Rack::read_whole(&role.config)?;
    let groups = rack.groups()?;
    let wanted = (group.as_deref(), role.node);
    let (group, own) = pick_member("node", &groups, |g| g.nodes, |n| n.node, wanted)
        .map_err(in_file(&role.config))?;
    let options = DriverOptions { supervised: role.supervised, cpu_share: None };
    let place = Place { node: own.node, addr: wire(own.addr), http: own.http, options };
    let setup = MemorySetup {
        group: group.id,
        controller: wire(rack.controller()?.addr),
        listen: own.listen,
        requirepass: rack.requirepass.clone(),
        block_bytes: group.memory.block_bytes as usize,
        range_blocks: group.memory.range_blocks,
        cache_blocks: group.memory.cache_blocks as usize,
        lease_ns: rack.lease_ns(),
        coherence: match group.memory.coherence {
            Coherence::Concordia => concord_memory::Coherence::Concordia,
            Coherence::Base => concord_memory::Coherence::Base,
            Coherence::Gam => concord_memory::Coherence::Gam,
        },
    };
    run(&place, &setup)
}
