//! The bytes that the server sends, cut into replies. Nothing is kept of one that is longer than a
//! reply may be.

use super::operation::Kind;
use super::{BUFFER_BYTES_KEPT, Phase, RedisEngine};
use crate::resp_scan::number;
use crate::{DONE_TOO_LONG, READ_TOO_LONG, REPLY_BYTES_MAX};

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
                    let is_long = core::mem::take(&mut self.is_dropping);
                    match is_long || length > REPLY_BYTES_MAX && self.is_bounded() {
                        true => self.on_part(self.too_long()),
                        false => self.on_part(frame),
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
        if *missing == 0 {
            let exec = core::mem::take(exec);
            self.on_frame(&exec);
        }
    }
}
