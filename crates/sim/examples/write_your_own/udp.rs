//! The same rack over UDP, on loopback: a thread for the switch, one for the server, one for each
//! client. The machines do not know the difference.

use std::io;
use std::net::{Ipv4Addr, SocketAddrV4, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use concord_check::{Operation, Options, check};
use concord_core::{Machine as _, Rng};
use concord_wire::Addr;

use crate::protocol::{Client, Server};
use crate::rack::{at, hits, operation, switch};
use crate::switch::{Hdr, KEYS};

const CLIENTS: u64 = 4;
/// Operations of each client.
const OPERATIONS: usize = 500;
const RETRY: Duration = Duration::from_millis(20);
/// How often a thread looks whether it is to end.
const LOOK: Duration = Duration::from_millis(50);
const PACKET_BYTES_MAX: usize = 1_500;

/// A socket on loopback, at a port that is free, and its address.
fn open(patience: Duration) -> io::Result<(UdpSocket, Addr)> {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
    socket.set_read_timeout(Some(patience))?;
    let port = socket.local_addr()?.port();
    Ok((socket, Addr { ip: Ipv4Addr::LOCALHOST.into(), port }))
}

fn send(socket: &UdpSocket, to: Addr, packet: &[u8]) {
    // A packet that cannot be sent is a lost one.
    let _ = socket.send_to(packet, SocketAddrV4::new(to.ip.into(), to.port));
}

/// Hands every packet that comes to `handle`, until `done`.
fn serve(socket: &UdpSocket, done: &AtomicBool, mut handle: impl FnMut(Addr, &mut [u8])) {
    let mut packet = [0; PACKET_BYTES_MAX];
    while !done.load(Ordering::Relaxed) {
        let Ok((length, std::net::SocketAddr::V4(from))) = socket.recv_from(&mut packet) else {
            continue;
        };
        handle(Addr { ip: (*from.ip()).into(), port: from.port() }, &mut packet[..length]);
    }
}

/// One client's operations, one after the other.
fn operate(number: u64, began: Instant, to: Addr) -> io::Result<Vec<Operation>> {
    let (socket, addr) = open(RETRY)?;
    let (mut client, mut rng) = (Client::new(addr), Rng::new(number));
    let ns = || began.elapsed().as_nanos() as u64;
    let mut packet = [0; PACKET_BYTES_MAX];
    let mut history = Vec::new();
    for n in 0..OPERATIONS as u32 {
        let value = rng.chance(1, 3).then_some(n * CLIENTS as u32 + number as u32 + 1);
        let asked = client.begin(rng.below(KEYS as u64) as u32, value);
        let call_ns = ns();
        send(&socket, to, &asked.packet());
        let done = loop {
            let came = socket.recv(&mut packet).ok().and_then(|n| Hdr::parse(&packet[..n]).ok());
            match came {
                Some(hdr) => {
                    if let Some(done) = client.handle(hdr) {
                        break done;
                    }
                }
                None => send(&socket, to, &asked.packet()),
            }
        };
        history.push(operation(number, &done, call_ns, Some(ns())));
    }
    Ok(history)
}

/// Runs the rack: how many operations there were, and how many reads the switch answered.
pub fn run() -> Result<(usize, u64), String> {
    let began = Instant::now();
    let error = |e: io::Error| format!("cannot use UDP on loopback: {e}");
    let (switch_socket, switch_addr) = open(LOOK).map_err(error)?;
    let (server_socket, server_addr) = open(LOOK).map_err(error)?;
    let (mut agent, mut server) = (switch(switch_addr, server_addr), Server::new(true));
    let done = AtomicBool::new(false);
    let history = thread::scope(|scope| {
        scope.spawn(|| {
            serve(&switch_socket, &done, |from, packet| {
                let mut sent: Vec<(Addr, Vec<u8>)> = Vec::new();
                agent.handle(at(began.elapsed().as_nanos() as u64), from, packet, &mut sent);
                sent.iter().for_each(|(to, packet)| send(&switch_socket, *to, packet));
            });
        });
        scope.spawn(|| {
            serve(&server_socket, &done, |_, packet| {
                if let Some(reply) = Hdr::parse(packet).ok().and_then(|hdr| server.handle(hdr)) {
                    send(&server_socket, switch_addr, &reply.packet());
                }
            });
        });
        let clients: Vec<_> =
            (0..CLIENTS).map(|n| scope.spawn(move || operate(n, began, switch_addr))).collect();
        let histories: Vec<_> = clients.into_iter().map(|client| client.join()).collect();
        done.store(true, Ordering::Relaxed);
        let mut all = Vec::new();
        for history in histories {
            all.extend(history.map_err(|_| "a client has panicked")?.map_err(error)?);
        }
        Ok::<_, String>(all)
    })?;
    let report = check(&history, &Options::default()).map_err(|e| e.to_string())?;
    if report.is_ok() { Ok((history.len(), hits(&agent))) } else { Err(report.to_string()) }
}
