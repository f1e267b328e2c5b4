//! The bytes that the server sends, cut into replies. Nothing is kept of one that is longer than a
//! reply may be.

use alloc::borrow::Cow;
use alloc::vec::Vec;

use super::operation::Kind;
use super::{BUFFER_BYTES_KEPT, Phase, RedisEngine};
use crate::resp_scan::number;
use crate::{DONE_TOO_LONG, READ_TOO_LONG, REPLY_BYTES_MAX};

/// Shortest reply that is moved to where it goes, in bytes.
const MOVED_BYTES_MIN: usize = 64 << 10;

impl RedisEngine {
    /// Takes bytes that the server sent. What is longer than a reply may be is not kept.
    pub fn input(&mut self, bytes: &[u8]) {
        let mut inbox = core::mem::take(&mut self.inbox);
        inbox.extend_from_slice(bytes);
        let mut start = 0;
        while !matches!(self.phase, Phase::Down | Phase::Lost(_)) {
            if !self.is_dropping && self.scanner.is_new() && self.begins_exec(&inbox[start..]) {
                let Some(end) = inbox[start..].iter().position(|byte| *byte == b'\n') else {
                    break;
                };
                self.begin_exec(&inbox[start..=start + end]);
                start += end + 1;
                continue;
            }
            match self.scanner.scan(&inbox[start..]) {
                Ok(Some(length)) => {
                    let frame = &inbox[start..start + length];
                    let is_dropped = core::mem::take(&mut self.is_dropping);
                    if is_dropped || length > REPLY_BYTES_MAX && self.is_bounded() {
                        self.on_part(self.too_long());
                    } else if length >= MOVED_BYTES_MIN && self.is_moved() {
                        let rest = inbox.split_off(start + length);
                        let mut frame = core::mem::replace(&mut inbox, rest);
                        frame.drain(..start);
                        self.on_long(frame);
                        start = 0;
                        continue;
                    } else {
                        self.on_part(frame);
                    }
                    start += length;
                }
                Ok(None) => {
                    if inbox.len() - start > REPLY_BYTES_MAX && self.is_bounded() {
                        self.is_dropping = true;
                    }
                    if self.is_dropping {
                        start += self.scanner.drop_seen(inbox.len() - start);
                    }
                    break;
                }
                Err(_) => self.lose("the server sent bytes that are no reply"),
            }
        }
        inbox.drain(..start);
        if inbox.is_empty() {
            inbox.shrink_to(BUFFER_BYTES_KEPT);
        }
        self.inbox = inbox;
    }

    /// Whether the reply that comes is one to a command of a client, or an element of one to EXEC.
    fn is_moved(&self) -> bool {
        let Some(first) = self.operations.front().filter(|_| matches!(self.phase, Phase::Ready))
        else {
            return false;
        };
        match first.kind {
            Kind::Read => self.front.frames >= usize::from(first.switched),
            Kind::Write { .. } => {
                let of_each = if first.awaited.is_some() { 2 } else { 1 };
                self.front.exec.is_some() && self.front.taken < first.commands * of_each
            }
            Kind::Copy { .. } | Kind::Install | Kind::Tell | Kind::Ask(_) => false,
        }
    }

    /// A long reply, or element of that to EXEC: it is not copied.
    fn on_long(&mut self, frame: Vec<u8>) {
        if frame.starts_with(b">") {
            return;
        }
        if self.front.exec.is_some() {
            self.front.moved.push_back((self.front.taken, frame));
            return self.on_part(b"$-1\r\n");
        }
        let Some(first) = self.operations.front() else { return };
        let (index, commands) = (self.front.frames - usize::from(first.switched), first.commands);
        self.front.frames += 1;
        self.on_command_reply(index, Cow::Owned(frame));
        if index + 1 == commands {
            self.complete();
        }
    }

    /// Whether the reply that comes is a client's, and not a value that is copied, say.
    fn is_bounded(&self) -> bool {
        let front = self.operations.front().filter(|_| matches!(self.phase, Phase::Ready));
        front.is_some_and(|first| matches!(first.kind, Kind::Read | Kind::Write { .. }))
    }

    /// What takes the place of a reply that is too long.
    fn too_long(&self) -> &'static [u8] {
        let front = self.operations.front();
        match front.is_some_and(|first| matches!(first.kind, Kind::Write { .. })) {
            true => DONE_TOO_LONG,
            false => READ_TOO_LONG,
        }
    }

    /// Whether the array that comes is the reply to EXEC of the oldest operation.
    fn begins_exec(&self, bytes: &[u8]) -> bool {
        bytes.first() == Some(&b'*')
            && self.front.exec.is_none()
            && matches!(self.phase, Phase::Ready)
            && self.operations.front().is_some_and(|first| {
                first.exec_index().is_some_and(|index| index == self.front.frames)
            })
    }

    /// The first line of the reply to EXEC.
    fn begin_exec(&mut self, line: &[u8]) {
        let count = number(line[1..].trim_ascii_end()).and_then(|n| usize::try_from(n).ok());
        match count {
            Some(count @ 1..) => self.front.exec = Some((line.to_vec(), count)),
            _ => self.on_frame(line),
        }
    }

    /// A reply, or an element of that to EXEC.
    fn on_part(&mut self, frame: &[u8]) {
        let is_push = frame.starts_with(b">");
        let exec = self.front.exec.as_mut().filter(|(_, missing)| *missing > 0 && !is_push);
        let Some((exec, missing)) = exec else {
            return self.on_frame(frame);
        };
        exec.extend_from_slice(frame);
        *missing -= 1;
        self.front.taken += 1;
        if *missing == 0 {
            let exec = core::mem::take(exec);
            self.on_frame(&exec);
        }
    }
}
