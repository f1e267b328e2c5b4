//! The socket between a gateway and a connection whose client reads everything at once.

use concord_core::{Now, Sink};
use concord_engine::resp;
use concord_gateway::{ConnectionId, Gateway};

/// The data that each side wrote, and the other has not read.
#[derive(Debug, Default)]
pub(super) struct Socket {
    unread: Vec<u8>,
    received: Vec<u8>,
}

impl Socket {
    /// Sends a command of the client.
    pub(super) fn send(&mut self, words: &[&[u8]]) {
        resp::array(&mut self.unread, words.len());
        words.iter().for_each(|word| resp::bulk(&mut self.unread, word));
    }

    /// Transfers the data, as far as the gateway accepts it.
    pub(super) fn carry(
        &mut self,
        id: ConnectionId,
        gateway: &mut Gateway,
        now: Now,
        out: &mut impl Sink,
    ) {
        if let Some(output) = gateway.output(id) {
            let length = output.len();
            self.received.extend_from_slice(output);
            if length > 0 {
                gateway.written(now, id, length, out);
            }
        }
        let length = self.unread.len().min(gateway.input_room(id));
        if length > 0 {
            let bytes: Vec<u8> = self.unread.drain(..length).collect();
            gateway.input(now, id, &bytes, out);
        }
    }

    /// The next complete reply or push message.
    pub(super) fn next_value(&mut self) -> Option<Vec<u8>> {
        let length = resp::value_length(&self.received)?;
        Some(self.received.drain(..length).collect())
    }
}
