//! The machines of a rack of switches as they ship: each switch's agent, and the controller; and
//! the invariants after each event, and at rest.

use concord_control::{Chain, Controller, ControllerConfig, GroupSetup, State as Stored};
use concord_core::machine::Deadline;
use concord_core::{Incarnation, Instant, Now};
use concord_switch::recirculation::Loop;
use concord_switch::{Agent, AgentConfig, ChainSeat, NetCraq};
use concord_wire::control::{Config, Member};
use concord_wire::netcraq::{Name, State, Words};
use concord_wire::{Addr, GroupId};

use super::plan::Plan;
use super::shipped::addr_of;
use crate::clock::Clock;

/// The address of the controller.
pub(super) const CONTROLLER: Addr = Addr { ip: 40, port: 1 };
/// The maximum number of packets that are recirculated at a time.
const ROUND_MAX: usize = 128;
/// The maximum time that a key may exist after its deadline at rest, in ns.
const OVERDUE_NS: u64 = 50_000_000;
/// The number of the rack.
const RACK: u64 = 0x7ac4;

/// Packets that a machine sends.
pub(super) type Sent = Vec<(Addr, Vec<u8>)>;

/// A switch.
pub(super) struct Switch {
    pub(super) agent: Option<Agent>,
    pub(super) incarnation: u64,
    /// The switch's clock. All clocks have different readings, and may run at different rates.
    pub(super) clock: Clock,
    pub(super) paused_until: u64,
    /// The time at which it is woken next, in ns; `u64::MAX` if never.
    pub(super) wake_at: u64,
}

impl Switch {
    /// The reading of its clock.
    pub(super) fn now(&self, at_ns: u64) -> Now {
        self.clock.at(at_ns)
    }

    /// The virtual time at which it is to be woken, in ns.
    pub(super) fn deadline(&self) -> u64 {
        let deadline = self.agent.as_ref().map_or(Deadline::NONE, concord_core::Machine::deadline);
        if deadline.at == Instant::NEVER { u64::MAX } else { self.clock.when(deadline.at) }
    }

    /// The switch program.
    pub(super) fn chain(&self) -> Option<&NetCraq> {
        self.agent.as_ref()?.program().chain()
    }
}

/// The controller and its disk.
pub(super) struct Controlling {
    pub(super) controller: Option<Controller>,
    pub(super) stored: Option<Stored>,
    /// The state that the controller last asked to store.
    pub(super) proposed: Option<Stored>,
    pub(super) wake_at: u64,
    /// The number of its starts.
    pub(super) run: u64,
}

/// A switch that knows only its controller.
///
/// # Errors
/// The store is not possible: the reason.
pub(super) fn agent(plan: &Plan, index: usize, incarnation: u64) -> Result<Agent, String> {
    let told = AgentConfig::new(Incarnation(incarnation), addr_of(index), CONTROLLER);
    let seat = ChainSeat {
        lease_ns: plan.lease_ns,
        alive_interval_ns: plan.alive_ns,
        ..ChainSeat::new(GroupId::FIRST, node_of(index))
    };
    let mut told = AgentConfig {
        chain: Some((seat, true)),
        guards: plan.guards,
        recirculation: Loop { delay_ns: plan.round_ns, packets_max: ROUND_MAX },
        ..told
    };
    told.sections.chain = plan.layout;
    Agent::new(told).map_err(|error| error.to_string())
}

/// A controller that continues from the stored state.
pub(super) fn controller(plan: &Plan, stored: Option<&Stored>) -> Controller {
    let switches: Vec<u16> = (0..plan.members + plan.spares).map(node_of).collect();
    let chain = Chain { length: plan.members, failure_ns: plan.failure_ns, ..Chain::new(switches) };
    let groups = vec![GroupSetup::chain(GroupId::FIRST, chain)];
    let told = ControllerConfig::new(groups, CONTROLLER);
    let told =
        ControllerConfig { failure_ns: plan.failure_ns, rack: RACK, guards: plan.guards, ..told };
    Controller::new(told, stored.cloned())
}

/// The node number of a switch.
pub(super) fn node_of(index: usize) -> u16 {
    1 + index as u16
}

/// The content of a member of the configuration in force.
struct Held<'a> {
    node: u16,
    program: &'a NetCraq,
    is_open: bool,
}

/// The members of a configuration that are running, the head first, and whether the last of them is
/// the tail. A switch that has restarted is no member.
fn running<'a>(switches: &'a [Switch], config: &Config) -> (Vec<Held<'a>>, bool) {
    let of = |member: &Member| {
        let switch = switches.get(usize::from(member.node) - 1)?;
        let program = switch.chain().filter(|_| switch.incarnation == member.incarnation)?;
        let is_open =
            program.standing().is_some_and(|(epoch, _, open)| open && epoch == config.epoch);
        Some(Held { node: member.node, program, is_open })
    };
    let all: Vec<Option<Held<'a>>> = config.members.iter().map(of).collect();
    let has_tail = all.last().is_some_and(Option::is_some);
    (all.into_iter().flatten().collect(), has_tail)
}

/// Checks that no member has one name in two cells; that versions never increase along the chain;
/// that the tail has every clean version; and that members with the same version of a cell have the
/// same content. Returns a violation otherwise.
pub(super) fn wrong(switches: &[Switch], cells: u32, config: &Config) -> Option<String> {
    let (members, has_tail) = running(switches, config);
    let tail = members.last()?;
    for member in &members {
        let mut names: Vec<Name> = (0..cells).map(|cell| member.program.peek(cell).1).collect();
        names.retain(|name| *name != Name::default());
        names.sort_unstable();
        if let Some(twice) = names.windows(2).find(|pair| pair[0] == pair[1]) {
            return Some(format!("member {} has {:?} in two cells", member.node, twice[0]));
        }
    }
    for cell in 0..cells {
        let committed = tail.program.peek(cell).0;
        let mut before: Option<(State, Name, Words)> = None;
        for member in &members {
            let seen = member.program.peek(cell);
            let (state, node) = (seen.0, member.node);
            let is_ahead = !state.is_dirty() && state.version() > committed.version();
            // Before an epoch is open, its tail may lack committed writes.
            if is_ahead && has_tail && tail.is_open {
                return Some(format!(
                    "cell {cell}: member {node} takes {state:?} as clean, the tail has {committed:?}"
                ));
            }
            let Some((other, name, value)) = before.replace(seen) else { continue };
            if state.version() > other.version() {
                return Some(format!("cell {cell}: {state:?} of {node} is after {other:?}"));
            }
            let is_same = (state.clean(), seen.1, seen.2) == (other.clean(), name, value);
            if state.version() == other.version() && !is_same {
                return Some(format!("cell {cell}: two contents of version {}", state.version()));
            }
        }
    }
    None
}

/// Checks that at rest as many switches as possible are members, the epoch is open at all of them,
/// and all keys are clean and equal everywhere.
pub(super) fn at_rest(
    switches: &[Switch],
    plan: &Plan,
    config: &Config,
    now: u64,
) -> Option<String> {
    let alive = switches.iter().filter(|switch| switch.agent.is_some()).count();
    let (members, _) = running(switches, config);
    let (told, length) = (config.members.len(), alive.min(plan.members));
    if (told, members.len()) != (length, length) {
        let joining = config.joining.len();
        return Some(format!(
            "at rest epoch {} has {told} members, of which {} run, and {joining} join, of {length}",
            config.epoch,
            members.len()
        ));
    }
    if let Some(member) = members.iter().find(|member| !member.is_open) {
        let standing = member.program.standing();
        return Some(format!(
            "at rest epoch {} is not open at {}: {standing:?}",
            config.epoch, member.node
        ));
    }
    let head = members.first()?;
    for member in &members {
        for cell in 0..plan.layout.cells {
            let (own, first) = (member.program.peek(cell), head.program.peek(cell));
            if own.0.is_dirty() {
                return Some(format!("at rest cell {cell} of member {} is dirty", member.node));
            }
            if own != first {
                return Some(format!(
                    "at rest cell {cell}: {own:?} at member {}, {first:?}",
                    member.node
                ));
            }
            let deadline = |member: &Held<'_>| {
                let own = &switches[usize::from(member.node) - 1];
                member.program.peek_deadline(cell, own.now(now).instant)
            };
            let (own, first) = (deadline(member).0, deadline(head));
            if own != first.0 {
                return Some(format!("at rest cell {cell} ends at {own}, and at {}", first.0));
            }
            let is_over = own != 0 && own + OVERDUE_NS < first.1;
            if is_over {
                return Some(format!("at rest cell {cell} ends at {own}, and it is {}", first.1));
            }
        }
    }
    None
}
