//! NetCRAQ: chains of switches that hold small keys themselves.

mod args;
mod commands;
mod lock;
mod section;
#[cfg(feature = "lab")]
mod sim;

use std::path::Path;

use concord_control::CHAIN_MAX;
use concord_runtime::Error;
use concord_wire::GroupId;
use serde_json::{Map, Value, json};

use super::{Earlier, System};
use crate::cli::UpArgs;
use crate::rack::{Group, GroupPlace, Kind, Rack, SWITCHES_MAX};
use crate::status::Role;
use crate::up::children::Children;
use crate::up::is_said;
use crate::up::place::{Ports, wanted};

pub use args::CoordArgs;
pub use commands::{place, run as coord};
pub use section::{Cells, ChainPlace};
#[cfg(feature = "lab")]
pub use sim::simulate;

/// The number and the name of the group that `concord up` makes.
const NUMBER: u16 = 1;
const NAME: &str = "coord";
const SWITCHES: u16 = 3;

/// Small keys in a chain of switches.
#[derive(Debug)]
pub struct NetCraq;

/// The groups of chains among all groups.
fn chains<'a, 'b>(groups: &'b [Group<'a>]) -> impl Iterator<Item = &'b Group<'a>> {
    groups.iter().filter(|group| group.kind == Kind::Switches)
}

/// So many switches are a chain, of so many that there are.
fn with_spares(length: usize, switches: usize) -> String {
    let each = |count: usize, what: &str, several: &str| {
        format!("{count} {}", if count == 1 { what } else { several })
    };
    let members = each(length, "switch", "switches");
    match switches.saturating_sub(length) {
        0 => members,
        spares => format!("{members} with {}", each(spares, "spare", "spares")),
    }
}

impl System for NetCraq {
    fn kind(&self) -> Kind {
        Kind::Switches
    }

    fn add(&self, rack: &mut Rack) {
        if rack.group.iter().any(|group| group.kind == Kind::Switches) {
            return;
        }
        let number = rack.group.iter().map(|group| group.number).max().map_or(NUMBER, |n| n + 1);
        rack.group.push(GroupPlace::new(NAME, number, Kind::Switches));
    }

    fn overlay(&self, _rack: &mut Rack, _args: &UpArgs) {}

    fn claim(&self, _rack: &mut Rack, _args: &UpArgs, _ports: &mut Ports) -> Result<(), Error> {
        Ok(())
    }

    fn place(&self, rack: &mut Rack, args: &UpArgs, ports: &mut Ports) -> Result<(), Error> {
        let mut chains = rack.group.iter_mut().filter(|group| group.kind == Kind::Switches);
        let Some(first) = chains.next() else {
            if args.switches.is_some() {
                let why = "--switches is for racks with a chain: say --system netcraq";
                return Err(Error::new(why));
            }
            return Ok(());
        };
        for group in [first].into_iter().chain(chains) {
            let placed = group.switch.len();
            let most = if group.length.is_some() { SWITCHES_MAX } else { CHAIN_MAX };
            if let Some(count) = args.switches.filter(|n| !(1..=most).contains(&usize::from(*n))) {
                let spares = if group.length.is_some() { ", spares included" } else { "" };
                let why = format!("--switches {count}: a chain has 1 to {most} switches{spares}");
                return Err(Error::new(why));
            }
            if args.switches.is_some_and(|n| placed != 0 && placed != usize::from(n)) {
                let why = format!(
                    "--switches says another number than the file, which places {placed}; change its \
                     [[group.switch]] entries"
                );
                return Err(Error::new(why));
            }
            let flag = args.switches.filter(|_| placed == 0);
            let least = group.length.unwrap_or(0).max(SWITCHES);
            for node in 1..=wanted("switch", placed, flag, least)? {
                let (addr, http) = (ports.udp()?, ports.http()?);
                group.switch.push(ChainPlace { node, addr, http });
            }
        }
        Ok(())
    }

    /// The data of the switches ends with their processes.
    fn gone(&self, _earlier: &Earlier<'_>, rack: &Rack) -> Result<Vec<GroupId>, Error> {
        Ok(chains(&rack.groups()?).map(|group| group.id).collect())
    }

    fn start(&self, rack: &Rack, file: &Path, children: &mut Children) -> Result<(), Error> {
        for group in chains(&rack.groups()?) {
            for switch in group.switches {
                let own = (switch.addr, switch.http);
                children.add_member(group, "switch", switch.node, file, own)?;
            }
        }
        Ok(())
    }

    fn headline(&self, rack: &Rack, group: &Group<'_>) -> String {
        let (members, keys) =
            (with_spares(group.chain_length(), group.switches.len()), rack.chain.keys);
        format!("up to {keys} keys in a chain of {members} (NetCRAQ)")
    }

    fn missing(&self, rack: &Rack) -> Option<String> {
        for group in chains(&rack.groups().ok()?) {
            let is_spare = |switch: &ChainPlace| {
                group.chain_length() < group.switches.len() && is_said(switch.http, "stands_by")
            };
            let is_there = |switch: &ChainPlace| is_said(switch.http, "member") || is_spare(switch);
            let absent = group.switches.iter().find(|switch| !is_there(switch));
            if let Some(switch) = absent {
                let name = group.member_name("switch", switch.node);
                return Some(format!("{name} is not a member"));
            }
        }
        None
    }

    fn keeps_data(&self, _group: &Group<'_>) -> bool {
        false
    }

    fn notes(&self, rack: &Rack) -> Vec<String> {
        let groups = rack.groups().unwrap_or_default();
        let note = |group: &Group<'_>| {
            format!(
                "{}: keys are in the switches' memory, and lost with the last of them",
                group.name
            )
        };
        chains(&groups).map(note).collect()
    }

    fn how_to_use(&self, rack: &Rack) -> Vec<String> {
        let groups = rack.groups().unwrap_or_default();
        let Some(group) = chains(&groups).next() else { return Vec::new() };
        vec![
            format!("Keys of {}:", group.name),
            "  concord coord put leader me".to_string(),
            "  concord coord lock job --ttl 10s -- sh -c 'echo $CONCORD_TOKEN'".to_string(),
        ]
    }

    fn farewell(&self, rack: &Rack) -> Option<&'static str> {
        let has_chain = rack.group.iter().any(|group| group.kind == Kind::Switches);
        has_chain.then_some("The chain's keys are gone with it.")
    }

    fn roles(&self, rack: &Rack) -> Result<Vec<Role>, Error> {
        let mut roles = Vec::new();
        for group in chains(&rack.groups()?) {
            let own = |s: &ChainPlace| Role::member(group, "switch", s.node, s.addr, s.http);
            roles.extend(group.switches.iter().map(own));
        }
        Ok(roles)
    }

    fn describe(&self, _role: &Value) -> Option<String> {
        None
    }

    fn settings(&self, group: &Group<'_>) -> Map<String, Value> {
        let all = [
            ("program", json!(group.program.name())),
            ("switches", json!(group.switches.len())),
            ("length", json!(group.chain_length())),
        ];
        all.into_iter().map(|(key, value)| (key.to_string(), value)).collect()
    }

    /// The chain according to the member that knows the highest epoch.
    fn figures(&self, members: &[&Value]) -> Map<String, Value> {
        let chains = members.iter().map(|status| &status["chain"]);
        let newest = chains.filter_map(|chain| chain["epoch"].as_u64()).max();
        let open = |status: &&&Value| {
            status["chain"]["epoch"].as_u64() == newest && status["chain"]["open"] == true
        };
        let open = members.iter().filter(open).count();
        let all = [("epoch", json!(newest)), ("members_open", json!(open))];
        all.into_iter().map(|(key, value)| (key.to_string(), value)).collect()
    }

    fn describe_group(&self, told: &Value) -> String {
        let count = |key: &str| {
            told[key].as_u64().and_then(|count| usize::try_from(count).ok()).unwrap_or(0)
        };
        format!(
            "a chain of {}, {} of them open in epoch {}, {}",
            with_spares(count("length"), count("switches")),
            told["members_open"],
            told["epoch"].as_u64().map_or("?".to_string(), |epoch| epoch.to_string()),
            told["program"].as_str().unwrap_or("?")
        )
    }
}
