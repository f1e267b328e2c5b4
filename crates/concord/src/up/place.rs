//! The rack that `concord up` starts: the file, the flags that override it, and free ports for
//! roles that are left out.

use std::hash::{BuildHasher as _, RandomState};
use std::io;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpListener, UdpSocket};

use concord_runtime::{Context, Error};

use crate::cli::UpArgs;
use crate::rack::{ControllerPlace, LOCALHOST, Rack, StandbyPlace, SwitchPlace};
use crate::systems;

const STANDBYS: u16 = 0;
/// The lowest port that is chosen; those below are often well-known ports.
const FIRST_PORT: u16 = 10_240;
/// The number of ports that are tried before the kernel is asked for any.
const TRIED: u16 = 100;

/// Free ports, which are held until all are chosen, so that none is chosen twice.
#[derive(Debug)]
pub struct Ports {
    /// The host of roles that the file does not place: the one of those that it does.
    host: Ipv4Addr,
    udp: Vec<UdpSocket>,
    tcp: Vec<TcpListener>,
}

impl Ports {
    /// A free UDP port.
    ///
    /// # Errors
    /// If there is no free port.
    pub fn udp(&mut self) -> Result<SocketAddrV4, Error> {
        let host = self.host;
        let what = || format!("find a free UDP port at {host}");
        let socket = bind(|port| UdpSocket::bind((host, port))).cannot(what())?;
        let port = socket.local_addr().cannot(what())?.port();
        self.udp.push(socket);
        Ok(SocketAddrV4::new(host, port))
    }

    /// A free TCP port, for a role's HTTP.
    ///
    /// # Errors
    /// If there is no free port.
    pub fn http(&mut self) -> Result<Option<SocketAddr>, Error> {
        let listener =
            bind(|port| TcpListener::bind((LOCALHOST, port))).cannot("find a free TCP port")?;
        let addr = listener.local_addr().cannot("find a free TCP port")?;
        self.tcp.push(listener);
        Ok(Some(addr))
    }

    /// Checks, before any process is started, that clients can be served at this address. Returns
    /// the address, with a free port instead of port 0.
    ///
    /// # Errors
    /// If they cannot.
    pub fn claim(&mut self, listen: SocketAddr) -> Result<SocketAddr, Error> {
        let failed = |e| Error::listening(&listen.to_string(), &e, "--listen");
        let listener = TcpListener::bind(listen).map_err(failed)?;
        let claimed = listener.local_addr().map_err(failed)?;
        self.tcp.push(listener);
        Ok(claimed)
    }
}

/// The port `count` above `first`; port 0, for any free port, stays 0.
#[must_use]
pub fn port_after(first: u16, count: u16) -> Option<u16> {
    if first == 0 { Some(0) } else { first.checked_add(count) }
}

/// Binds a free port below those that the kernel gives to clients, so that no client has taken the
/// port of a role when that is restarted.
fn bind<S>(open: impl Fn(u16) -> io::Result<S>) -> io::Result<S> {
    let range = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range");
    let first_given = range.ok().and_then(|range| range.split_whitespace().next()?.parse().ok());
    let room = first_given.unwrap_or(FIRST_PORT).saturating_sub(FIRST_PORT);
    for _ in 0..room.min(TRIED) {
        let drawn = RandomState::new().hash_one(0) % u64::from(room);
        if let Ok(socket) = open(FIRST_PORT + drawn as u16) {
            return Ok(socket);
        }
    }
    open(0)
}

/// The complete rack, and the ports held for it.
///
/// # Errors
/// One line that names the flag, file or port at fault.
pub fn rack(args: &UpArgs) -> Result<(Rack, Ports), Error> {
    let mut rack = match &args.config {
        Some(path) => Rack::read(path)?,
        None => Rack::default(),
    };
    if let Some(choice) = args.system {
        choice.system().add(&mut rack);
    }
    overlay(&mut rack, args);
    let host = rack.host().unwrap_or(LOCALHOST);
    let mut ports = Ports { host, udp: Vec::new(), tcp: Vec::new() };
    systems::all().try_for_each(|system| system.claim(&mut rack, args, &mut ports))?;
    place_roles(&mut rack, args, &mut ports)?;
    let checked = rack.check().and_then(|()| match args.reads {
        Some(_) => rack.check_said_reads(),
        None => Ok(()),
    });
    checked.map_err(|mistake| Error::new(mistake.to_string()))?;
    Ok((rack, ports))
}

/// Overrides the file by flags.
fn overlay(rack: &mut Rack, args: &UpArgs) {
    systems::all().for_each(|system| system.overlay(rack, args));
    set(&mut rack.faults.drop_per_million, &args.fault_drop);
    set(&mut rack.faults.duplicate_per_million, &args.fault_duplicate);
    set(&mut rack.faults.reorder_per_million, &args.fault_reorder);
}

/// Overrides a value by a flag, if the flag was given.
pub fn set<T: Clone>(to: &mut T, from: &Option<T>) {
    if let Some(from) = from {
        *to = from.clone();
    }
}

fn place_roles(rack: &mut Rack, args: &UpArgs, ports: &mut Ports) -> Result<(), Error> {
    if rack.controller.is_none() {
        let state = args.run_dir.join("controller.state");
        rack.controller = Some(ControllerPlace { addr: ports.udp()?, http: ports.http()?, state });
    }
    // With --replicas there is a store, which is placed below.
    if rack.switch.is_none() && (rack.needs_switch() || args.replicas.is_some()) {
        rack.switch = Some(SwitchPlace { addr: ports.udp()?, http: ports.http()? });
    }
    for node in 1..=wanted("standby", rack.standby.len(), args.standbys, STANDBYS)? {
        rack.standby.push(StandbyPlace { node, addr: ports.udp()?, http: ports.http()? });
    }
    systems::all().try_for_each(|system| system.place(rack, args, ports))
}

/// The number of roles to place: 0 if the file places them.
///
/// # Errors
/// If the file places them, and a flag wants another number.
pub fn wanted(role: &str, placed: usize, flag: Option<u16>, default: u16) -> Result<u16, Error> {
    match flag {
        _ if placed == 0 => Ok(flag.unwrap_or(default)),
        Some(flag) if usize::from(flag) != placed => Err(Error::new(format!(
            "--{role}s {flag}, but the file places {placed}; change its [[{role}]] entries"
        ))),
        _ => Ok(0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    fn args(line: &str) -> UpArgs {
        let line = format!("concord up {line}");
        match crate::cli::Cli::try_parse_from(line.split_whitespace()).unwrap().command {
            crate::cli::Command::Up(up) => up,
            _ => panic!("up"),
        }
    }

    /// If tokens cross the network in plain HTTP, they must not allow commands, unless the rack
    /// file says so.
    #[test]
    fn bug_21_62_reachable_owners_have_workers_without_exec() {
        for (listen, allows) in [("127.0.0.1:0", true), ("0.0.0.0:0", false)] {
            let line = format!("--system falcon --listen {listen}");
            let (rack, _ports) = rack(&args(&line)).unwrap();
            let workers: Vec<_> = rack.group.iter().flat_map(|group| &group.worker).collect();
            assert!(!workers.is_empty() && workers.iter().all(|w| w.allow_exec == allows));
            let notes = crate::systems::all().flat_map(|system| system.notes(&rack));
            let warned = notes.filter(|line| line.contains("plain HTTP")).count();
            assert_eq!(warned, usize::from(!allows));
        }
    }

    #[test]
    fn every_role_gets_a_port_of_its_own() {
        let free = TcpListener::bind((LOCALHOST, 0)).unwrap().local_addr().unwrap();
        let (rack, _ports) = rack(&args(&format!("--replicas 5 --listen {free}"))).unwrap();
        assert_eq!(rack.replica.len(), 5);
        assert_eq!(rack.gateway[0].listen, free);
        let mut udp: Vec<_> = rack.replica.iter().map(|r| r.addr).collect();
        udp.push(rack.switch.as_ref().unwrap().addr);
        udp.push(rack.controller.as_ref().unwrap().addr);
        udp.push(rack.gateway[0].addr);
        udp.sort_unstable();
        udp.dedup();
        assert_eq!(udp.len(), 8);
    }

    #[test]
    fn what_a_file_leaves_out_of_its_groups_is_placed() {
        let directory = std::env::temp_dir().join(format!("concord-place-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let file = directory.join("rack.toml");
        let flags = format!("--config {} --listen 127.0.0.1:0", file.display());
        let write = |text: &str| std::fs::write(&file, text).unwrap();
        write(
            "durability = \"none\"\n[[group]]\nname = \"b\"\nnumber = 1\ndurability = \"fsync\"\n",
        );
        // The file's only group is placed; with --replicas there is a store beside it.
        let (alone, _ports) = rack(&args(&flags)).unwrap();
        assert_eq!((alone.replica.len(), alone.group[0].replica.len()), (0, 3));
        let (both, _ports) = rack(&args(&format!("{flags} --replicas 2 --gateways 2"))).unwrap();
        std::fs::remove_dir_all(&directory).unwrap();
        assert_eq!((both.replica.len(), both.group[0].replica.len()), (2, 3));
        let own = &both.group[0].replica[0];
        assert_eq!(own.data_dir, Some("run/data/b-replica-1".into()));
        assert_eq!(both.replica[0].data_dir, None);
        let served: Vec<_> = both.gateway.iter().map(|g| g.group.as_deref()).collect();
        assert_eq!(served, [None, None, Some("b")]);
    }

    #[test]
    fn bug_21_41_each_owner_has_a_journal_of_its_own() {
        let file = std::env::temp_dir().join(format!("concord-owners-{}", std::process::id()));
        let group = |name: &str, number: u16| {
            format!("[[group]]\nname = \"{name}\"\nnumber = {number}\nkind = \"workers\"\n")
        };
        let owner = |node: u16, more: &str| {
            format!(
                "[[group.owner]]\nnode = {node}\naddr = \"127.0.0.1:{}\"\nlisten = \
                 \"127.0.0.1:0\"\n{more}",
                7_900 + node
            )
        };
        let b = [owner(1, ""), owner(2, ""), owner(3, "journal = \"own\"\n")].concat();
        // One switch needs room for both.
        let queue = "[queue]\nslots = 4096\ncapacity = 4096\n".to_string();
        std::fs::write(&file, [queue, group("a", 1), group("b", 2), b].concat()).unwrap();
        let flags = format!("--journal --listen 127.0.0.1:0 --config {}", file.display());
        let placed = rack(&args(&flags));
        std::fs::remove_file(&file).unwrap();
        let owners = placed.unwrap().0.group.into_iter().flat_map(|group| group.owner);
        let journals: Vec<String> =
            owners.map(|owner| owner.journal.unwrap().display().to_string()).collect();
        assert_eq!(journals, ["run/a.journal", "run/b.journal", "run/b-2.journal", "own"]);
    }

    #[test]
    fn a_taken_port_is_said_with_the_remedy() {
        let taken = TcpListener::bind((LOCALHOST, 0)).unwrap();
        let addr = taken.local_addr().unwrap();
        let line = rack(&args(&format!("--listen {addr}"))).unwrap_err().to_string();
        let expected =
            format!("cannot listen on {addr}: address in use; choose another with --listen");
        assert_eq!(line, expected);
    }

    #[test]
    fn port_0_is_any_that_is_free() {
        let (rack, _ports) = rack(&args("--gateways 2 --listen 127.0.0.1:0")).unwrap();
        assert!(rack.gateway.iter().all(|gateway| gateway.listen.port() > 0));
        assert!(rack.check_whole().is_ok());
        let line = super::rack(&args("--reads leader-lease --listen 127.0.0.1:0")).unwrap_err();
        assert!(line.to_string().ends_with("say --protocol raft, vr or nopaxos"), "{line}");
    }

    #[test]
    fn a_flag_that_contradicts_the_file_is_refused() {
        assert_eq!(wanted("replica", 0, None, 3).unwrap(), 3);
        assert_eq!(wanted("replica", 3, None, 3).unwrap(), 0);
        assert_eq!(wanted("replica", 3, Some(3), 3).unwrap(), 0);
        assert!(wanted("replica", 3, Some(5), 3).is_err());
        assert!(rack(&args("--table-slots 1000")).is_err());
        assert!(rack(&args("--cpu-share 2")).is_err());
    }
}
