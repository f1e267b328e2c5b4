//! The controller, with its state in a file (trap T3).

use std::collections::BTreeMap;
use std::path::PathBuf;

use concord_control::{Controller, ControllerConfig, GroupState, State};
use concord_core::{Instant, MS, Now, SEC};
use concord_wire::GroupId;
use concord_wire::control::{Config, GroupKind, Member, Standing};
use serde_json::{Value, json};
use tracing::{error, info, warn};

use crate::clock;
use crate::driver::{Persisted, Role};
use crate::error::Error;
use crate::http::{Health, Snapshot};
use crate::logging;
use crate::roles::{GroupNames, Place, unique};
use crate::state_file::{StateFile, Unwritten};
use crate::udp::Outbox;

/// The interval in ns at which the room on the disk of its state is checked.
const ROOM_NS: u64 = SEC;

/// The configuration of a controller, beside its place.
#[derive(Clone, Debug)]
pub struct ControllerSetup {
    /// The expected nodes, and their replication protocols.
    pub config: ControllerConfig,
    /// The names of the rack's groups.
    pub names: GroupNames,
    /// The path of its state.
    pub state: PathBuf,
}

#[derive(Debug)]
struct ControllerRole {
    node: u16,
    names: GroupNames,
    controller: Controller,
    file: StateFile,
    disk: StateDisk,
    logged: Logged,
}

/// The state of that disk.
#[derive(Debug, Default)]
struct StateDisk {
    is_short: bool,
    looked_at: Option<Instant>,
    /// The reason that the last state was not written, once it was logged.
    said: Option<String>,
}

impl StateDisk {
    /// Checks from time to time whether there is room.
    fn look(&mut self, now: Instant, file: &StateFile) {
        if self.looked_at.is_some_and(|at| now.since(at) < ROOM_NS) {
            return;
        }
        self.looked_at = Some(now);
        file.reserve();
        let is_short = file.is_short();
        if std::mem::replace(&mut self.is_short, is_short) != is_short {
            match is_short {
                true => {
                    warn!("the disk of the state has no room but what was held back: free some")
                }
                false => info!("the disk of the state has room again"),
            }
        }
    }
}

/// The values that were logged last.
#[derive(Debug, Default)]
struct Logged {
    configs: BTreeMap<GroupId, Config>,
    problem: Option<String>,
    has_recovered: bool,
    /// Replicas that asked to join a group that accepts none.
    outsiders: Vec<(GroupId, u16)>,
}

/// Runs a controller until it is told to end.
///
/// # Errors
/// One line for a person, for example that another controller holds the file or wrote to it. A
/// controller whose disk is full or fails lives on, and changes nothing that it cannot persist.
pub fn run(place: &Place, setup: ControllerSetup) -> Result<(), Error> {
    let (file, state) = StateFile::open(&setup.state)?;
    let _span = logging::span("controller", place.node).entered();
    let mut driver = place.driver()?;
    let config = ControllerConfig { rack: unique()?, ..setup.config };
    let controller = Controller::new(config, state);
    let epoch = first(&controller).map_or(0, |c| c.epoch);
    info!(addr = %place.addr, epoch, state = %setup.state.display(), "started");
    let (disk, logged) = (StateDisk::default(), Logged::default());
    let (node, names) = (place.node, setup.names);
    driver.run(&mut ControllerRole { node, names, controller, file, disk, logged })?;
    info!("stopped");
    Ok(())
}

/// The configuration of the first of its groups.
fn first(controller: &Controller) -> Option<&Config> {
    controller.state().config(controller.groups().next()?)
}

/// Logs the changes from one configuration to the next, a line each.
fn log_changes(controller: &Controller, now: Now, old: Option<&Config>, new: &Config) {
    let (epoch, group) = (new.epoch, new.group.0);
    let is_worker = new.kind == GroupKind::Workers;
    let is_chain = new.kind == GroupKind::Switches;
    let nothing = (&[][..], &[][..]);
    let (members, joining) = old.map_or(nothing, |c| (&c.members[..], &c.joining[..]));
    let has = |places: &[Member], m: &Member| places.contains(m);
    for gone in members.iter().chain(joining) {
        if !has(&new.members, gone) && !has(&new.joining, gone) {
            let known = controller.nodes(new.group, now).find(|(m, ..)| m.node == gone.node);
            let silent_ms = known.map_or(0, |(.., silent_ns)| silent_ns / MS);
            let standing = known.map_or("unknown", |(_, _, standing, _)| standing_name(standing));
            let other_incarnation = known.is_some_and(|(m, ..)| m.incarnation != gone.incarnation);
            let node = gone.node;
            if is_worker {
                warn!(epoch, group, worker = node, silent_ms, other_incarnation, "worker removed");
                continue;
            }
            if is_chain {
                warn!(epoch, group, switch = node, silent_ms, other_incarnation, "switch removed");
                continue;
            }
            let replica = node;
            warn!(epoch, group, replica, silent_ms, standing, other_incarnation, "replica removed");
        }
    }
    for come in new.joining.iter().filter(|m| !has(joining, m)) {
        if is_chain {
            info!(epoch, group, switch = come.node, addr = %come.addr, "switch joins");
            continue;
        }
        info!(epoch, group, replica = come.node, addr = %come.addr, "replica joins");
    }
    for come in new.members.iter().filter(|m| !has(members, m)) {
        if is_worker {
            info!(epoch, group, worker = come.node, addr = %come.addr, "worker is a member");
            continue;
        }
        if is_chain {
            info!(epoch, group, switch = come.node, addr = %come.addr, "switch is a member");
            continue;
        }
        info!(epoch, group, replica = come.node, addr = %come.addr, "replica is a member");
    }
    let is_new = old.is_none_or(|c| (c.switch_id, c.switch) != (new.switch_id, new.switch));
    if is_new && !is_chain {
        info!(epoch, group, switch_id = new.switch_id, addr = %new.switch, "switch is active");
    }
    info!(epoch, group, members = %nodes(&new.members), joining = %nodes(&new.joining), "new epoch");
}

/// Numbers with spaces between.
fn nodes(members: &[Member]) -> String {
    members.iter().map(|m| m.node.to_string()).collect::<Vec<_>>().join(" ")
}

impl ControllerRole {
    /// Logs replicas that no group will accept: a group in which a majority decides keeps the
    /// replicas with which it began.
    fn log_outsiders(&mut self, now: Now) {
        for GroupState { config, .. } in &self.controller.state().groups {
            if !config.kind.is_quorum() {
                continue;
            }
            let is_member = |node: u16| config.members.iter().any(|m| m.node == node);
            for (member, ..) in self.controller.nodes(config.group, now) {
                let outsider = (config.group, member.node);
                if is_member(member.node) || self.logged.outsiders.contains(&outsider) {
                    continue;
                }
                self.logged.outsiders.push(outsider);
                let (group, replica, members) =
                    (config.group.0, member.node, nodes(&config.members));
                warn!(
                    group,
                    replica,
                    members,
                    "replica stays outside: under VR, NOPaxos and Raft a group keeps the replicas that it began with"
                );
            }
        }
    }

    /// The problem that it reports, with the group's name if there are several groups.
    fn problem(&self) -> Option<String> {
        let problem = self.controller.problem()?.to_string();
        let group = self.controller.problem_group().filter(|_| self.names.are_several());
        Some(group.map_or(problem.clone(), |group| format!("{}: {problem}", self.names.of(group))))
    }
}

impl Role for ControllerRole {
    type Machine = Controller;

    fn machine(&mut self) -> &mut Controller {
        &mut self.controller
    }

    fn persist(&mut self, state: State) -> Result<Persisted, Error> {
        let (why, error) = match self.file.write(&state) {
            Ok(()) => {
                if self.disk.said.take().is_some() {
                    info!("the state is written again");
                }
                return Ok(Persisted::Now);
            }
            Err(Unwritten::Superseded(error)) => return Err(error),
            Err(Unwritten::Disk(why, error)) => (why, error.to_string()),
        };
        if self.disk.said.as_ref() != Some(&error) {
            error!(error, "the state could not be written: nothing changes meanwhile");
            self.disk.said = Some(error);
        }
        self.controller.not_stored(clock::now(), why);
        Ok(Persisted::Later)
    }

    fn attend(&mut self, now: Now, _out: &mut Outbox) -> Result<(), Error> {
        self.disk.look(now.instant, &self.file);
        Ok(())
    }

    fn log(&mut self, now: Now) {
        for (group, replica, why) in self.controller.take_mistrusted() {
            let group = group.0;
            warn!(group, replica, "started again with {why}; it copies the state of the others");
        }
        for GroupState { config: new, .. } in &self.controller.state().groups {
            let old = self.logged.configs.get(&new.group);
            if old.is_none_or(|old| old.epoch != new.epoch) {
                log_changes(&self.controller, now, old, new);
                self.logged.configs.insert(new.group, new.clone());
            }
        }
        self.log_outsiders(now);
        let epoch = first(&self.controller).map_or(0, |c| c.epoch);
        if !self.logged.has_recovered {
            for recovered in self.controller.recovered() {
                self.logged.has_recovered = true;
                warn!(epoch = recovered.epoch, "{recovered}");
            }
        }
        let problem = self.problem();
        if problem != self.logged.problem {
            match &problem {
                Some(problem) => error!(epoch, problem, "PROBLEM"),
                None => info!(epoch, "the problem is over"),
            }
            self.logged.problem = problem;
        }
    }

    fn snapshot(&self, now: Now) -> Snapshot {
        let mut s = Snapshot::new("controller", self.node);
        s.count(self.controller.counters().each());
        let state = self.controller.state();
        let config = first(&self.controller);
        let epoch = config.map_or(0, |c| c.epoch);
        s.gauge("epoch", "The configuration in force of the first group.", epoch.into());
        s.gauge("switch_id", "The last switch id granted.", state.last_switch_id.into());
        let members = config.map_or(0, |c| c.members.len());
        s.gauge("members", "Members of the first group's configuration.", members as f64);
        let recovered: Vec<String> =
            self.controller.recovered().iter().map(ToString::to_string).collect();
        s.tell("recovered", (!recovered.is_empty()).then(|| recovered.join("; ")));
        s.tell("rack", format!("{:016x}", state.rack));
        s.tell("disk_full", self.disk.is_short);
        let short = f64::from(u8::from(self.disk.is_short));
        s.gauge(
            "disk_full",
            "Whether the disk of the state has no room but what was held back.",
            short,
        );
        // The first group's fields stand beside those of all groups, for readers that know of one
        // group.
        if let Some(group) = self.controller.groups().next() {
            for (key, value) in group_json(&self.controller, group, now) {
                s.tell(key, value);
            }
        }
        let groups: Vec<_> = self
            .controller
            .groups()
            .map(|group| {
                let told = group_json(&self.controller, group, now).into_iter();
                let mut told: serde_json::Map<_, _> =
                    told.map(|(k, v)| (k.to_string(), v)).collect();
                told.insert("group".to_string(), json!(group.0));
                told.insert("name".to_string(), json!(self.names.of(group)));
                told
            })
            .collect();
        s.tell("groups", groups);
        let switches: Vec<_> = self
            .controller
            .switches(now)
            .map(|(incarnation, addr, standby, silent_ns)| {
                json!({
                    "addr": addr.to_string(),
                    "active": incarnation == state.switch_incarnation,
                    "standby": standby,
                    "silent_ms": silent_ns / MS,
                })
            })
            .collect();
        s.tell("switches", switches);
        let problem = self.problem();
        s.health = match (&problem, epoch) {
            (Some(problem), _) => Health::NotYet(problem.clone()),
            (None, 0) => {
                Health::NotYet("no epoch yet: not all replicas have registered".to_string())
            }
            (None, _) => Health::Ok,
        };
        s.tell("problem", problem);
        s
    }
}

/// The status of a group.
fn group_json(controller: &Controller, group: GroupId, now: Now) -> [(&'static str, Value); 8] {
    let config = controller.state().config(group);
    let numbers = |members: &[Member]| members.iter().map(|m| m.node).collect::<Vec<u16>>();
    let members = config.map_or(&[][..], |c| &c.members);
    let joining = numbers(config.map_or(&[][..], |c| &c.joining));
    let known: Vec<_> = controller
        .nodes(group, now)
        .map(|(member, epoch, standing, silent_ns)| {
            json!({
                "node": member.node,
                "addr": member.addr.to_string(),
                "member": members.iter().any(|m| m == &member),
                "joining": joining.contains(&member.node),
                "epoch": epoch,
                "open": matches!(standing, Standing::Open { .. }),
                "standing": standing_name(standing),
                "silent_ms": silent_ns / MS,
            })
        })
        .collect();
    [
        ("kind", json!(config.map(|c| c.kind.name()))),
        ("epoch", json!(config.map_or(0, |c| c.epoch))),
        ("switch_id", json!(config.map_or(0, |c| c.switch_id))),
        ("protocol", json!(config.and_then(Config::protocol).map(|p| format!("{p:?}")))),
        ("program", json!(config.map(|c| c.program.name()))),
        ("members", json!(numbers(members))),
        ("joining", json!(joining)),
        ("replicas", json!(known)),
    ]
}

fn standing_name(standing: Standing) -> &'static str {
    match standing {
        Standing::Out => "out",
        Standing::Copying => "copying",
        Standing::Copied => "copied",
        Standing::Opening { .. } => "opening",
        Standing::Open { caught_up: false } => "catching up",
        Standing::Open { caught_up: true } => "open",
        Standing::Leaving => "leaving",
        Standing::Returning { .. } => "out",
        Standing::Founding { .. } => "restored, waits for the rack to begin",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::{Driver, DriverOptions};
    use crate::udp::{self, Socket};
    use concord_control::GroupSetup;
    use concord_core::{Addr, Guards};
    use concord_wire::control::{
        Assembly, Heard, Held, Membership, Message as _, Program, Protocol, ReplicaAlive,
    };
    use std::net::UdpSocket;
    use std::time::{Duration, Instant};

    const LOCAL: Addr = Addr { ip: 0x7f00_0001, port: 0 };
    const WORKERS: GroupId = GroupId(7);
    const FAILURE_NS: u64 = 1_000 * MS;

    /// A node that says that it lives, over a socket of its own, and takes the configurations of
    /// its group.
    struct Peer {
        socket: UdpSocket,
        group: GroupId,
        node: u16,
        assembly: Assembly,
        config: Option<Config>,
    }

    impl Peer {
        fn new(group: GroupId, node: u16) -> Peer {
            let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
            socket.set_nonblocking(true).unwrap();
            Peer { socket, group, node, assembly: Assembly::new(1), config: None }
        }

        fn addr(&self) -> Addr {
            udp::from_std(self.socket.local_addr().unwrap()).unwrap()
        }

        fn epoch(&self) -> u32 {
            self.config.as_ref().map_or(0, |c| c.epoch)
        }

        fn members(&self) -> Vec<u16> {
            self.config.iter().flat_map(|c| c.members.iter()).map(|m| m.node).collect()
        }

        fn live(&mut self, controller: Addr, sent_at: u64) {
            let mut bytes = [0; 2_048];
            while let Ok((len, _)) = self.socket.recv_from(&mut bytes) {
                // The switch hears of all groups, and looks at its first here.
                let group = concord_wire::group(&bytes[..len]);
                assert!(group == self.group || self.node == 0, "of group {}", group.0);
                if group == self.group
                    && let Ok(Membership::Configure(part)) = Membership::parse(&bytes[..len])
                    && let Some(config) = self.assembly.take(part)
                    && config.epoch > self.epoch()
                {
                    self.config = Some(config);
                }
            }
            let (rack, switch_id) = self.config.as_ref().map_or((0, 0), |c| (c.rack, c.switch_id));
            let heard = Heard { rack, epoch: self.epoch(), switch_id };
            let standing = match self.config {
                None => Standing::Out,
                Some(_) => Standing::Open { caught_up: true },
            };
            let alive = match self.node {
                0 => Membership::SwitchAlive {
                    incarnation: 77,
                    addr: self.addr(),
                    sent_at,
                    epoch: heard.epoch,
                    heard,
                    standby: false,
                },
                node => Membership::ReplicaAlive(ReplicaAlive {
                    member: Member { node, incarnation: 10, addr: self.addr() },
                    sent_at,
                    heard,
                    standing,
                    held: Held::default(),
                    data_dir: None,
                    unheard: vec![],
                }),
            };
            let mut packet = vec![];
            alive.emit_in(self.group, &mut packet);
            self.socket.send_to(&packet, udp::to_std(controller)).unwrap();
        }
    }

    /// A controller's loop, over its socket and its file, in a thread that ends with the tests.
    fn start(state: PathBuf) -> Addr {
        let (tell, told) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let socket = Socket::bind(LOCAL).unwrap();
            let addr = socket.addr().unwrap();
            tell.send(addr).unwrap();
            let mut driver = Driver::new(socket, None, DriverOptions::default()).unwrap();
            let replicas = GroupSetup::replicas(vec![1, 2, 3], Protocol::Chain, Program::Forward);
            let config = ControllerConfig {
                groups: vec![replicas, GroupSetup::workers(WORKERS, Program::Forward)],
                failure_ns: FAILURE_NS,
                switch_failure_ns: FAILURE_NS,
                fresh: false,
                recover: None,
                rack: 0x7ac4,
                addr,
                guards: Guards::ALL,
            };
            let (file, stored) = StateFile::open(&state).unwrap();
            let (controller, logged) = (Controller::new(config, stored), Logged::default());
            let names = GroupNames::default();
            let disk = StateDisk::default();
            driver.run(&mut ControllerRole { node: 1, names, controller, file, disk, logged })
        });
        told.recv().unwrap()
    }

    /// Two groups over real sockets and a file where one loses a member.
    #[test]
    fn two_groups_over_sockets_and_a_file() {
        let directory = std::env::temp_dir().join(format!("concord-groups-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&directory);
        let path = directory.join("controller.state");
        let controller = start(path.clone());
        let of = |group: GroupId, nodes: std::ops::RangeInclusive<u16>| {
            nodes.map(move |node| Peer::new(group, node)).collect::<Vec<_>>()
        };
        let mut peers = of(GroupId::FIRST, 0..=3);
        // 100 workers: their configuration takes two packets.
        peers.extend(of(WORKERS, 1..=100));
        let began = Instant::now();
        let live_until = |peers: &mut Vec<Peer>, done: &dyn Fn(&[Peer]) -> bool| {
            while !done(peers) {
                assert!(began.elapsed() < Duration::from_secs(30), "nothing came of it");
                let sent_at = began.elapsed().as_nanos() as u64;
                peers.iter_mut().for_each(|peer| peer.live(controller, sent_at));
                std::thread::sleep(Duration::from_millis(30));
            }
        };
        let workers = |peers: &[Peer], count: usize| {
            let mut those = peers.iter().filter(|p| p.group == WORKERS);
            those.all(|p| p.members().len() == count)
        };
        live_until(&mut peers, &|peers| {
            workers(peers, 100) && peers[1..=3].iter().all(|p| p.members() == [1, 2, 3])
        });
        let before = peers[1].epoch();
        // The first worker is gone.
        peers.remove(4);
        live_until(&mut peers, &|peers| workers(peers, 99));
        assert!(peers[4..].iter().all(|p| !p.members().contains(&1)));
        assert!(peers[1..=3].iter().all(|p| p.epoch() == before), "the replicas' epoch stays");
        // What it wrote is what they heard.
        let bytes = std::fs::read(&path).unwrap();
        let stored = crate::state_file::decode(&bytes).unwrap();
        assert_eq!(stored.config(GroupId::FIRST), peers[1].config.as_ref());
        assert_eq!(stored.config(WORKERS), peers[4].config.as_ref());
        let _ = std::fs::remove_dir_all(&directory);
    }
}
