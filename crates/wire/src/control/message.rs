//! The form of a rare message, after the common header.

use alloc::vec::Vec;

use concord_core::{Epoch, NodeId};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::header::{COMMON_BYTES, GroupId, Header, Kind, at, set_length};
use crate::{PACKET_BYTES_MAX, WireError};

/// An enum of rare messages. Its encoding by postcard begins with the variant's number in a byte;
/// that byte moves to the header as the operation, one higher.
pub trait Message: Serialize + DeserializeOwned {
    /// The kind whose operations these are.
    const KIND: Kind;

    /// The member that says it and of which epoch, for the header; 0 where it says neither.
    fn sender(&self) -> (NodeId, Epoch);

    /// Puts what the header says where [`Message::sender`] takes it from.
    fn set_sender(&mut self, node: NodeId, epoch: Epoch);

    /// As [`Message::emit_in`], in the first group.
    fn emit(&self, out: &mut Vec<u8>) {
        self.emit_in(GroupId::FIRST, out);
    }

    /// Writes the message into `out`, replacing what was there. What no packet can hold leaves
    /// nothing: it is not sent. `group`: the one that it concerns.
    fn emit_in(&self, group: GroupId, out: &mut Vec<u8>) {
        let (node, epoch) = self.sender();
        Header { group, node, epoch, ..Header::new(Self::KIND, 0) }.begin(out);
        let taken = core::mem::take(out);
        if let Ok(mut bytes) = postcard::to_extend(self, taken)
            && bytes.len() > COMMON_BYTES
            && bytes.len() <= PACKET_BYTES_MAX
        {
            bytes[at::OP] = bytes.remove(COMMON_BYTES) + 1;
            set_length(&mut bytes);
            *out = bytes;
        }
    }

    /// Parses a message; a tag and padding after it are left out.
    ///
    /// # Errors
    /// [`WireError`], which the caller counts.
    fn parse(bytes: &[u8]) -> Result<Self, WireError> {
        let (header, packet) = Header::parse_kind(bytes, Self::KIND, COMMON_BYTES)?;
        // The variant's number is one byte as long as it is below 128.
        let variant = header.op.checked_sub(1).filter(|v| *v < 128).ok_or(WireError::Op)?;
        let mut encoded = Vec::with_capacity(packet.len() - COMMON_BYTES + 1);
        encoded.push(variant);
        encoded.extend_from_slice(&packet[COMMON_BYTES..]);
        let mut message: Self = postcard::from_bytes(&encoded).map_err(|_| WireError::Field)?;
        message.set_sender(header.node, header.epoch);
        Ok(message)
    }
}
