//! Values of many packets (trap T17): a body goes out fragment by fragment before its write is
//! numbered, a long reply is pulled from the one who gave it.

use alloc::boxed::Box;
use alloc::vec::Vec;

use concord_core::hash::hash64;
use concord_core::{Instant, Now, RequestNumber};
use concord_wire::fragment::{Assembly, FragmentHdr};
use concord_wire::{Op, Packet, REPLY_BYTES_MAX, Repr, Sink, Status, WireError};

use crate::api::Outcome;
use crate::client::Client;
use crate::session::ATTEMPTS_UNTIL_DOUBT;
use crate::slots::State;
use crate::timers::{Lane, Timer};

/// Most unacknowledged fragments of one body.
const BODY_WINDOW: u32 = 32;
/// Fragments that one Pull asks for.
const BLOCK: u32 = 16;
/// Most fragments of one reply that were asked for and have not come.
const PULL_WINDOW: u32 = 64;
/// After that many pulls in a row that brought nothing, the responder is taken for dead.
const FRUITLESS_MAX: u8 = 4;

/// A transfer in one of its directions.
#[derive(Clone, Debug)]
pub enum Transfer {
    Upload(Upload),
    Download(Download),
    /// A long reply that may not be pulled yet.
    Offer(Offer),
}

/// A body on its way.
#[derive(Clone, Debug)]
pub struct Upload {
    hdr: FragmentHdr,
    /// One bit a fragment.
    acked: Vec<u64>,
    /// The first that was never sent.
    next: u32,
    out: u32,
    unacked: u32,
    progress_at: Instant,
}

/// The first part of a long reply.
#[derive(Clone, Debug)]
pub struct Offer {
    reply: Repr,
    hdr: FragmentHdr,
    first: Vec<u8>,
}

/// A long reply on its way.
#[derive(Clone, Debug)]
pub struct Download {
    reply: Repr,
    hdr: FragmentHdr,
    assembly: Assembly,
    /// The first block that was never asked for.
    next_block: u32,
    /// Fragments asked for that have not come.
    out: u32,
}

impl Transfer {
    fn out(&self) -> u32 {
        match self {
            Transfer::Upload(upload) => upload.out,
            Transfer::Download(download) => download.out,
            Transfer::Offer(_) => 0,
        }
    }
}

impl Upload {
    fn is_acked(&self, index: u32) -> bool {
        self.acked[index as usize / 64] & (1 << (index % 64)) != 0
    }
}

impl Download {
    /// The fragments of a block; the first fragment came with the reply.
    fn block(&self, block: u32) -> core::ops::Range<u32> {
        (block * BLOCK).max(1)..((block + 1) * BLOCK).min(self.hdr.fragments())
    }

    fn missing(&self, block: u32) -> u8 {
        self.block(block).filter(|&index| !self.assembly.has(index)).count() as u8
    }
}

/// The sub-header that the numbered write of a staged body carries.
pub fn staged_hdr(command: &[u8]) -> FragmentHdr {
    let hdr = FragmentHdr {
        version: hash64(0, command),
        total_bytes: command.len() as u32,
        index: 0,
        count: 1,
    };
    FragmentHdr { count: hdr.fragments(), ..hdr }
}

fn claims_too_much(body: &[u8]) -> bool {
    let total = body.get(8..12).and_then(|b| b.first_chunk::<4>());
    total.is_some_and(|b| u32::from_be_bytes(*b) as usize > REPLY_BYTES_MAX)
}

impl Client {
    /// Ends the transfer of a request, if there is one.
    pub(crate) fn drop_transfer(&mut self, number: u64) -> Option<Box<Transfer>> {
        let transfer = self.slots.live_mut(number)?.transfer.take()?;
        self.flow.ended(transfer.out());
        Some(transfer)
    }

    /// Sends the body of a write from its start.
    pub(crate) fn start_upload(&mut self, now: Now, number: u64, sink: &mut impl Sink) {
        self.drop_transfer(number);
        let session = self.session.id;
        let Some(slot) = self.slots.live_mut(number) else { return };
        let hdr = FragmentHdr { count: 1, ..staged_hdr(slot.command()) };
        slot.state = State::Staging;
        slot.session = session;
        slot.is_staged = false;
        slot.tag = slot.tag.wrapping_add(1);
        slot.transfer = Some(Box::new(Transfer::Upload(Upload {
            hdr,
            acked: alloc::vec![0; hdr.fragments().div_ceil(64) as usize],
            next: 0,
            out: 0,
            unacked: hdr.fragments(),
            progress_at: now.instant,
        })));
        self.pump_upload(now, number, sink);
    }

    fn pump_upload(&mut self, now: Now, number: u64, sink: &mut impl Sink) {
        loop {
            let window = self.flow.window(BODY_WINDOW);
            let Some(slot) = self.slots.live_mut(number) else { return };
            let Some(Transfer::Upload(upload)) = slot.transfer.as_deref_mut() else { return };
            if upload.out >= window || upload.next >= upload.hdr.fragments() {
                return;
            }
            let index = upload.next;
            upload.next += 1;
            upload.out += 1;
            self.flow.out += 1;
            self.count.fragments_sent += 1;
            self.flow.time(now.instant, number, index);
            self.send_fragment(now, number, index, 0, sink);
        }
    }

    fn send_fragment(
        &mut self,
        now: Now,
        number: u64,
        index: u32,
        round: u8,
        sink: &mut impl Sink,
    ) {
        let Some(slot) = self.slots.live(number) else { return };
        let Some(Transfer::Upload(upload)) = slot.transfer.as_deref() else { return };
        let hdr = FragmentHdr { index, ..upload.hdr };
        let repr = Repr {
            obj_id: slot.obj_id,
            session: slot.session,
            request: RequestNumber(number),
            client: self.config.addr,
            attempt: u16::from(round),
            ..Repr::new(Op::WRest)
        };
        self.part.clear();
        hdr.emit_of(slot.command(), &mut self.part);
        repr.emit(&self.part, &mut self.scratch);
        sink.send(self.config.switch, &self.scratch);
        let set_at = now.instant;
        let timer = Timer { set_at, number, part: index, tag: slot.tag, round, missing: 0 };
        self.timers.set(Lane::Part, timer);
    }

    /// A fragment of a body arrived there.
    pub(crate) fn on_fragment_ack(
        &mut self,
        now: Now,
        packet: &Packet<'_>,
        sink: &mut impl Sink,
    ) -> Result<(), WireError> {
        let repr = packet.repr();
        let (hdr, _) = FragmentHdr::parse(packet.body())?;
        let number = repr.request.0;
        let Some(slot) = self.live_of_session(&repr) else { return Ok(()) };
        let Some(Transfer::Upload(upload)) = slot.transfer.as_deref_mut() else {
            self.count.late += 1;
            return Ok(());
        };
        if (hdr.version, hdr.total_bytes) != (upload.hdr.version, upload.hdr.total_bytes) {
            self.count.fragments_mixed += 1;
            return Ok(());
        }
        if repr.status == Status::Busy {
            // The fragment's time comes again.
            self.count.busy += 1;
            self.flow.lost(now.instant);
            return Ok(());
        }
        if hdr.index >= upload.next || upload.is_acked(hdr.index) {
            self.count.late += 1;
            return Ok(());
        }
        upload.acked[hdr.index as usize / 64] |= 1 << (hdr.index % 64);
        upload.out -= 1;
        upload.unacked -= 1;
        upload.progress_at = now.instant;
        let is_whole = upload.unacked == 0;
        self.flow.arrived();
        self.sample_part(now.instant, number, hdr.index);
        if !is_whole {
            self.pump_upload(now, number, sink);
            return Ok(());
        }
        self.drop_transfer(number);
        if let Some(slot) = self.slots.live_mut(number) {
            slot.is_staged = true;
            slot.state = State::Held;
        }
        self.ready.push_back(number);
        Ok(())
    }

    /// The first part of a long reply came.
    pub(crate) fn start_download(
        &mut self,
        now: Now,
        reply: &Repr,
        body: &[u8],
        sink: &mut impl Sink,
    ) -> Result<(), WireError> {
        let number = reply.request.0;
        if claims_too_much(body) {
            self.finish(now, number, Outcome::TooLarge, Vec::new(), Some(reply));
            return Ok(());
        }
        let (hdr, payload) = FragmentHdr::parse(body)?;
        if hdr.index != 0 || payload.len() != hdr.range().len() {
            return Err(WireError::Field);
        }
        if hdr.fragments() == 1 {
            self.finish(now, number, Outcome::Reply, payload.to_vec(), Some(reply));
            return Ok(());
        }
        self.drop_transfer(number);
        let Some(slot) = self.slots.live_mut(number) else { return Ok(()) };
        slot.state = State::Parked;
        slot.tag = slot.tag.wrapping_add(1);
        let offer = Offer { reply: *reply, hdr, first: payload.to_vec() };
        slot.transfer = Some(Box::new(Transfer::Offer(offer)));
        if slot.granted_bytes < hdr.total_bytes {
            self.end_download(number);
            self.flow.offer(number, hdr.total_bytes);
        } else {
            self.begin_download(now, number, sink);
        }
        Ok(())
    }

    /// Pulls a long reply that was offered, if it is its turn.
    pub(crate) fn begin_download(&mut self, now: Now, number: u64, sink: &mut impl Sink) {
        let Some(slot) = self.slots.live_mut(number) else { return };
        let Some(Transfer::Offer(offer)) = slot.transfer.as_deref() else { return };
        let total_bytes = offer.hdr.total_bytes;
        if !self.take_download_turn(number, total_bytes) {
            return self.park(number, sink);
        }
        let Some(slot) = self.slots.live_mut(number) else { return };
        let Some(Transfer::Offer(offer)) = slot.transfer.take().map(|t| *t) else { return };
        let Offer { reply, hdr, first } = offer;
        let mut assembly = Assembly::new(hdr);
        assembly.add(&hdr, &first);
        slot.state = State::Pulling;
        let download = Download { reply, hdr, assembly, next_block: 0, out: 0 };
        slot.transfer = Some(Box::new(Transfer::Download(download)));
        self.pump_pulls(now, number, sink);
    }

    /// Tells the replica that it need not keep a reply that was offered.
    pub(crate) fn give_back_reply(&mut self, number: u64, sink: &mut impl Sink) {
        let Some(slot) = self.slots.live_mut(number) else { return };
        let is_offer = |t: &mut Box<Transfer>| matches!(**t, Transfer::Offer(_));
        if let Some(Transfer::Offer(offer)) = slot.transfer.take_if(is_offer).map(|t| *t) {
            self.ask_fragments(number, &offer.reply, FragmentHdr { count: 0, ..offer.hdr }, sink);
        }
    }

    fn pump_pulls(&mut self, now: Now, number: u64, sink: &mut impl Sink) {
        loop {
            let window = self.flow.window(PULL_WINDOW);
            let Some(slot) = self.slots.live_mut(number) else { return };
            let tag = slot.tag;
            let Some(Transfer::Download(download)) = slot.transfer.as_deref_mut() else { return };
            let block = download.next_block;
            let range = download.block(block);
            let count = range.end.saturating_sub(range.start);
            if count == 0 || download.out + count > window {
                return;
            }
            download.next_block += 1;
            download.out += count;
            self.flow.out += count;
            self.count.pulls += 1;
            self.pull(number, range, sink);
            let (set_at, missing) = (now.instant, count as u8);
            let timer = Timer { set_at, number, part: block, tag, round: 0, missing };
            self.flow.time(set_at, number, block);
            self.timers.set(Lane::Part, timer);
        }
    }

    fn pull(&mut self, number: u64, range: core::ops::Range<u32>, sink: &mut impl Sink) {
        let Some(slot) = self.slots.live(number) else { return };
        let Some(Transfer::Download(download)) = slot.transfer.as_deref() else { return };
        let count = range.end - range.start;
        let hdr = FragmentHdr { index: range.start, count, ..download.hdr };
        let reply = download.reply;
        self.ask_fragments(number, &reply, hdr, sink);
    }

    /// Asks who gave `reply` for fragments of it.
    fn ask_fragments(&mut self, number: u64, reply: &Repr, hdr: FragmentHdr, sink: &mut impl Sink) {
        let Some(slot) = self.slots.live(number) else { return };
        let repr = Repr {
            obj_id: slot.obj_id,
            session: slot.session,
            request: RequestNumber(number),
            client: self.config.addr,
            attempt: reply.attempt,
            epoch: reply.epoch,
            node: reply.node,
            ..Repr::new(Op::Pull)
        };
        self.part.clear();
        hdr.emit(&mut self.part);
        repr.emit(&self.part, &mut self.scratch);
        sink.send(self.config.switch, &self.scratch);
    }

    /// A fragment of a long reply, or word that there is none.
    pub(crate) fn on_fragment(
        &mut self,
        now: Now,
        packet: &Packet<'_>,
        sink: &mut impl Sink,
    ) -> Result<(), WireError> {
        let repr = packet.repr();
        let number = repr.request.0;
        let Some(slot) = self.live_of_session(&repr) else { return Ok(()) };
        let Some(Transfer::Download(download)) = slot.transfer.as_deref_mut() else {
            self.count.late += 1;
            return Ok(());
        };
        let parsed = FragmentHdr::parse(packet.body());
        let is_responder = repr.node == download.reply.node;
        let same = is_responder
            && parsed.is_ok_and(|(hdr, _)| {
                (hdr.version, hdr.total_bytes) == (download.hdr.version, download.hdr.total_bytes)
            });
        if repr.status != Status::Ok {
            // Word of another version says nothing about this one.
            if repr.status == Status::Gone && (same || is_responder && packet.body().is_empty()) {
                self.start_over(now, number, sink);
            } else {
                self.count.unexpected += 1;
            }
            return Ok(());
        }
        let (hdr, payload) = parsed?;
        if !same {
            self.count.fragments_mixed += 1;
            return Ok(());
        }
        if hdr.index >= download.next_block * BLOCK || download.assembly.has(hdr.index) {
            self.count.late += 1;
            return Ok(());
        }
        if !download.assembly.add(&hdr, payload) {
            return Err(WireError::Field);
        }
        download.out -= 1;
        let is_complete = download.assembly.is_complete();
        let block = hdr.index / BLOCK;
        self.flow.arrived();
        self.sample_part(now.instant, number, block);
        if is_complete {
            self.finish_download(now, number, sink);
        } else {
            self.pump_pulls(now, number, sink);
        }
        Ok(())
    }

    fn finish_download(&mut self, now: Now, number: u64, sink: &mut impl Sink) {
        let Some(transfer) = self.drop_transfer(number) else { return };
        if let Transfer::Download(download) = *transfer {
            let (reply, hdr) = (download.reply, download.hdr);
            self.ask_fragments(number, &reply, FragmentHdr { count: 0, ..hdr }, sink);
            let reply = download.assembly.into_bytes();
            self.finish(now, number, Outcome::Reply, reply, Some(&download.reply));
        }
    }

    /// The reply cannot be had from its responder any more: the whole request is asked again.
    fn start_over(&mut self, now: Now, number: u64, sink: &mut impl Sink) {
        self.count.replies_gone += 1;
        self.drop_transfer(number);
        self.transmit(now, number, sink);
    }

    /// The time of a fragment, or of a block of them, has come.
    pub(crate) fn on_part_timer(&mut self, now: Now, timer: &Timer, sink: &mut impl Sink) {
        let Some(slot) = self.slots.live(timer.number) else { return };
        match slot.transfer.as_deref() {
            Some(Transfer::Upload(upload)) => {
                if upload.is_acked(timer.part) {
                    return;
                }
                let progress = upload.progress_at > timer.set_at;
                let round = if progress { 0 } else { timer.round.saturating_add(1) };
                self.count.fragments_resent += 1;
                self.flow.lost(now.instant);
                self.flow.time_again(timer.number, timer.part);
                self.send_fragment(now, timer.number, timer.part, round, sink);
                if u16::from(round) >= ATTEMPTS_UNTIL_DOUBT {
                    self.doubt_switch(now, sink);
                }
            }
            Some(Transfer::Download(download)) => {
                let missing = download.missing(timer.part);
                if missing == 0 {
                    return;
                }
                let round = if missing < timer.missing { 0 } else { timer.round + 1 };
                if round > FRUITLESS_MAX {
                    self.start_over(now, timer.number, sink);
                    return;
                }
                self.flow.lost(now.instant);
                self.flow.time_again(timer.number, timer.part);
                self.pull_missing(timer, sink);
                let again = Timer { set_at: now.instant, round, missing, ..*timer };
                self.timers.set(Lane::Part, again);
            }
            Some(Transfer::Offer(_)) | None => {}
        }
    }

    /// Pulls the lost fragments of a block, a run of them a packet.
    fn pull_missing(&mut self, timer: &Timer, sink: &mut impl Sink) {
        let mut from = 0;
        loop {
            let Some(slot) = self.slots.live(timer.number) else { return };
            let Some(Transfer::Download(download)) = slot.transfer.as_deref() else { return };
            let block = download.block(timer.part);
            let is_missing = |index: &u32| !download.assembly.has(*index);
            let Some(start) = (block.start.max(from)..block.end).find(is_missing) else { return };
            let end = (start..block.end).find(|i| !is_missing(i)).unwrap_or(block.end);
            self.count.pulls_again += 1;
            self.pull(timer.number, start..end, sink);
            from = end;
        }
    }
}
