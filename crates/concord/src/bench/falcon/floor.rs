//! The minimum cost of a task's path: three threads with plain UDP sockets, for a client, a switch
//! and an executor, which do nothing but pass a packet on.

use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use concord_core::Instant;
use concord_runtime::{Context, Error, clock};

use super::{Queue, Single};

const LOOK: Duration = Duration::from_millis(200);
const BYTES: usize = 64;

/// The three threads.
#[derive(Debug)]
pub(super) struct Bare {
    client: UdpSocket,
    switch: SocketAddr,
    threads: Vec<JoinHandle<()>>,
    is_over: Arc<AtomicBool>,
}

fn socket() -> Result<(UdpSocket, SocketAddr), Error> {
    let socket = UdpSocket::bind("127.0.0.1:0").cannot("bind a UDP socket")?;
    socket.set_read_timeout(Some(LOOK)).cannot("set up a socket")?;
    let addr = socket.local_addr().cannot("set up a socket")?;
    Ok((socket, addr))
}

impl Bare {
    pub(super) fn start() -> Result<Bare, Error> {
        let (client, to_client) = socket()?;
        let (switch, to_switch) = socket()?;
        let (executor, to_executor) = socket()?;
        let is_over = Arc::new(AtomicBool::new(false));
        let pass = |from: UdpSocket, to: SocketAddr, stamps: bool| {
            let is_over = Arc::clone(&is_over);
            std::thread::spawn(move || {
                let mut packet = [0; BYTES];
                while !is_over.load(Ordering::Relaxed) {
                    if from.recv(&mut packet).is_ok() {
                        if stamps {
                            packet[..8].copy_from_slice(&clock::now().instant.0.to_be_bytes());
                        }
                        let _ = from.send_to(&packet, to);
                    }
                }
            })
        };
        let threads = vec![pass(switch, to_executor, false), pass(executor, to_client, true)];
        Ok(Bare { client, switch: to_switch, threads, is_over })
    }
}

impl Queue for Bare {
    fn single(&mut self) -> Result<Single, Error> {
        let mut packet = [0; BYTES];
        let began = clock::now().instant;
        self.client.send_to(&packet, self.switch).cannot("send")?;
        self.client.recv(&mut packet).cannot("receive")?;
        let now = clock::now().instant;
        let started = Instant(u64::from_be_bytes(*packet.first_chunk().unwrap_or(&[0; 8])));
        Ok(Single { start_ns: started.since(began), result_ns: now.since(began) })
    }

    fn many(&mut self, count: u32) -> Result<(), Error> {
        (0..count).try_for_each(|_| self.single().map(drop))
    }
}

impl Drop for Bare {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}
