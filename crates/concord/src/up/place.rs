//! Which rack `concord up` starts: the file, the flags over it, and free ports for what is left
//! open.

use std::net::{IpAddr, SocketAddr, SocketAddrV4, TcpListener, UdpSocket};

use concord_runtime::{Context, Error};

use crate::cli::UpArgs;
use crate::rack::{
    ControllerPlace, Durability, GatewayPlace, LOCALHOST, Rack, ReplicaPlace, StandbyPlace,
    SwitchPlace,
};

const REPLICAS: u16 = 3;
const GATEWAYS: u16 = 1;
const STANDBYS: u16 = 0;
const LISTEN_PORT: u16 = 7379;

/// Ports that are held until all are chosen, so that none is chosen twice.
#[derive(Debug, Default)]
pub struct Ports {
    udp: Vec<UdpSocket>,
    tcp: Vec<TcpListener>,
}

impl Ports {
    fn udp(&mut self) -> Result<SocketAddrV4, Error> {
        let socket = UdpSocket::bind((LOCALHOST, 0)).cannot("find a free UDP port")?;
        let port = socket.local_addr().cannot("find a free UDP port")?.port();
        self.udp.push(socket);
        Ok(SocketAddrV4::new(LOCALHOST, port))
    }

    fn http(&mut self) -> Result<Option<SocketAddr>, Error> {
        let listener = TcpListener::bind((LOCALHOST, 0)).cannot("find a free TCP port")?;
        let addr = listener.local_addr().cannot("find a free TCP port")?;
        self.tcp.push(listener);
        Ok(Some(addr))
    }

    /// Whether clients can be served there: said before anything is started.
    fn claim(&mut self, listen: SocketAddr) -> Result<(), Error> {
        let listener = TcpListener::bind(listen)
            .map_err(|e| Error::listening(&listen.to_string(), &e, "--listen"))?;
        self.tcp.push(listener);
        Ok(())
    }
}

/// The whole rack, and the ports held for it.
///
/// # Errors
/// One line that says which flag, file or port is at fault.
pub fn rack(args: &UpArgs) -> Result<(Rack, Ports), Error> {
    let mut rack = match &args.config {
        Some(path) => Rack::read(path)?,
        None => Rack::default(),
    };
    overlay(&mut rack, args);
    let mut ports = Ports::default();
    place_gateways(&mut rack, args, &mut ports)?;
    place_roles(&mut rack, args, &mut ports)?;
    rack.check().map_err(Error::new)?;
    Ok((rack, ports))
}

/// Flags over the file.
fn overlay(rack: &mut Rack, args: &UpArgs) {
    fn set<T: Clone>(to: &mut T, from: &Option<T>) {
        if let Some(from) = from {
            *to = from.clone();
        }
    }
    set(&mut rack.protocol, &args.protocol);
    set(&mut rack.accel, &args.accel);
    set(&mut rack.engine, &args.engine);
    set(&mut rack.durability, &args.durability);
    set(&mut rack.faults.disk_hold_ms, &args.fault_disk_hold);
    set(&mut rack.requirepass, &args.requirepass);
    rack.split_reads |= args.split_reads;
    set(&mut rack.maxmemory, &args.maxmemory);
    set(&mut rack.redis_server, &args.redis_server);
    set(&mut rack.table.stages, &args.table_stages);
    set(&mut rack.table.slots, &args.table_slots);
    set(&mut rack.faults.drop_per_million, &args.fault_drop);
    set(&mut rack.faults.duplicate_per_million, &args.fault_duplicate);
    set(&mut rack.faults.reorder_per_million, &args.fault_reorder);
}

fn place_roles(rack: &mut Rack, args: &UpArgs, ports: &mut Ports) -> Result<(), Error> {
    if rack.controller.is_none() {
        let state = args.run_dir.join("controller.state");
        rack.controller = Some(ControllerPlace { addr: ports.udp()?, http: ports.http()?, state });
    }
    if rack.switch.is_none() {
        rack.switch = Some(SwitchPlace { addr: ports.udp()?, http: ports.http()? });
    }
    for node in 1..=wanted("standby", rack.standby.len(), args.standbys, STANDBYS)? {
        rack.standby.push(StandbyPlace { node, addr: ports.udp()?, http: ports.http()? });
    }
    for node in 1..=wanted("replica", rack.replica.len(), args.replicas, REPLICAS)? {
        let (addr, http) = (ports.udp()?, ports.http()?);
        let directory = Some(args.run_dir.join(format!("replica-{node}")));
        rack.replica.push(ReplicaPlace {
            node,
            addr,
            http,
            directory,
            data_dir: None,
            cpu_share: None,
        });
    }
    for replica in &mut rack.replica {
        let data_dir = || args.run_dir.join("data").join(format!("replica-{}", replica.node));
        if rack.durability != Durability::None && replica.data_dir.is_none() {
            replica.data_dir = Some(data_dir());
        }
    }
    if args.cpu_share.is_some() {
        for replica in &mut rack.replica {
            replica.cpu_share = args.cpu_share;
        }
    }
    Ok(())
}

/// The gateways come first: where they listen is given, and no other role must get it as a port that
/// is free.
fn place_gateways(rack: &mut Rack, args: &UpArgs, ports: &mut Ports) -> Result<(), Error> {
    let first = args.listen.unwrap_or(SocketAddr::new(IpAddr::V4(LOCALHOST), LISTEN_PORT));
    let nodes = 1..=wanted("gateway", rack.gateway.len(), args.gateways, GATEWAYS)?;
    if let (Some(listen), Some(gateway)) = (args.listen, rack.gateway.first_mut()) {
        gateway.listen = listen;
    }
    for gateway in &rack.gateway {
        ports.claim(gateway.listen)?;
    }
    let listens: Result<Vec<_>, Error> = nodes
        .map(|node| {
            let port = first.port().checked_add(node - 1);
            let port =
                port.ok_or_else(|| Error::new("--listen: no ports left for the gateways"))?;
            let listen = SocketAddr::new(first.ip(), port);
            ports.claim(listen)?;
            Ok((node, listen))
        })
        .collect();
    for (node, listen) in listens? {
        let (addr, http) = (ports.udp()?, ports.http()?);
        rack.gateway.push(GatewayPlace { node, addr, http, listen });
    }
    Ok(())
}

/// How many to place: none if the file places them, and then no flag may want another number.
fn wanted(role: &str, placed: usize, flag: Option<u16>, default: u16) -> Result<u16, Error> {
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
    fn a_taken_port_is_said_with_the_remedy() {
        let taken = TcpListener::bind((LOCALHOST, 0)).unwrap();
        let addr = taken.local_addr().unwrap();
        let line = rack(&args(&format!("--listen {addr}"))).unwrap_err().to_string();
        let expected =
            format!("cannot listen on {addr}: address in use; choose another with --listen");
        assert_eq!(line, expected);
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
