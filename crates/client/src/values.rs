//! Values of many packets (trap T17): a body goes out fragment by fragment before its write is
//! numbered, a long reply is pulled from the one who gave it.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::ops::Range;

use concord_core::{Instant, Now, RequestNumber};
use concord_wire::fragment::FragmentHdr;
use concord_wire::rpc::READ_BIT;
use concord_wire::{Op, Packet, Repr, Sink, Status, WireError};

use crate::api::{Outcome, Withdrawn};
use crate::client::Client;
use crate::route::ATTEMPTS_UNTIL_DOUBT;
use crate::slots::{Slot, State};
use crate::timers::{Lane, Timer};
use crate::transfer::{Download, Offer, Taken, Transfer, Upload, block_of, claims_too_much};

/// The largest number of unacknowledged fragments of one body.
const BODY_WINDOW: u32 = 32;
/// The largest number of requested fragments of one reply that have not arrived.
const PULL_WINDOW: u32 = 64;
/// After that many pulls in a row that brought nothing, the responder is taken for dead.
const FRUITLESS_MAX: u8 = 4;

impl Client {
    /// Sends the body of a write from its start.
    pub(crate) fn start_upload(&mut self, now: Now, number: u64, sink: &mut impl Sink) {
        self.drop_transfer(number);
        let session = self.session.id();
        let Some(slot) = self.slots.live_mut(number) else { return };
        slot.state = State::Staging;
        slot.session = session;
        slot.is_staged = false;
        slot.tag = slot.tag.wrapping_add(1);
        let upload = Upload::of(slot.command(), now.instant);
        slot.transfer = Some(Box::new(Transfer::Upload(upload)));
        self.pump_upload(now, number, sink);
    }

    fn pump_upload(&mut self, now: Now, number: u64, sink: &mut impl Sink) {
        loop {
            let window = self.flow.window(BODY_WINDOW);
            let Some(slot) = self.slots.live_mut(number) else { return };
            let upload = slot.transfer.as_deref_mut().and_then(Transfer::upload);
            let Some(index) = upload.and_then(|upload| upload.next(window)) else { return };
            self.flow.sent(1);
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
        let hdr = upload.hdr(index);
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
        sink.send(self.route.switch(), &self.scratch);
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
        let Some(upload) = slot.transfer.as_deref_mut().and_then(Transfer::upload) else {
            self.count.late += 1;
            return Ok(());
        };
        if !upload.is_of(&hdr) {
            self.count.fragments_mixed += 1;
            return Ok(());
        }
        if repr.status == Status::Busy {
            // The fragment's time comes again.
            self.count.busy += 1;
            self.flow.lost(now.instant);
            return Ok(());
        }
        let Some(is_whole) = upload.on_ack(now.instant, hdr.index) else {
            self.count.late += 1;
            return Ok(());
        };
        slot.note_body(now.instant);
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
            self.flow.end_download(slot);
            self.flow.offer(number, hdr.total_bytes);
        } else {
            self.begin_download(now, number, sink);
        }
        Ok(())
    }

    /// Pulls a long reply that was offered, if it is its turn.
    fn begin_download(&mut self, now: Now, number: u64, sink: &mut impl Sink) {
        let Some(slot) = self.slots.live_mut(number) else { return };
        let Some(Transfer::Offer(offer)) = slot.transfer.as_deref() else { return };
        let total_bytes = offer.hdr.total_bytes;
        if !self.flow.admit_download(slot, total_bytes) {
            self.give_back_reply(number, sink);
            self.count.replies_waited += 1;
            return self.flow.park(number);
        }
        let Some(Transfer::Offer(offer)) = slot.transfer.take().map(|t| *t) else { return };
        slot.state = State::Pulling;
        slot.transfer = Some(Box::new(Transfer::Download(Download::of(offer))));
        self.pump_pulls(now, number, sink);
    }

    /// Tells the replica that it need not keep a reply that was offered.
    fn give_back_reply(&mut self, number: u64, sink: &mut impl Sink) {
        let Some(slot) = self.slots.live_mut(number) else { return };
        let is_offer = |t: &mut Box<Transfer>| t.is_offer();
        if let Some(Transfer::Offer(offer)) = slot.transfer.take_if(is_offer).map(|t| *t) {
            self.ask_fragments(number, &offer.reply, FragmentHdr { count: 0, ..offer.hdr }, sink);
        }
    }

    fn pump_pulls(&mut self, now: Now, number: u64, sink: &mut impl Sink) {
        loop {
            let window = self.flow.window(PULL_WINDOW);
            let Some(slot) = self.slots.live_mut(number) else { return };
            let tag = slot.tag;
            let download = slot.transfer.as_deref_mut().and_then(Transfer::download);
            let next = download.and_then(|download| download.next(window));
            let Some((block, range)) = next else { return };
            let count = range.end - range.start;
            self.flow.sent(count);
            self.count.pulls += 1;
            self.pull(number, range, sink);
            let (set_at, missing) = (now.instant, count as u8);
            let timer = Timer { set_at, number, part: block, tag, round: 0, missing };
            self.flow.time(set_at, number, block);
            self.timers.set(Lane::Part, timer);
        }
    }

    fn pull(&mut self, number: u64, range: Range<u32>, sink: &mut impl Sink) {
        let Some(slot) = self.slots.live(number) else { return };
        let Some(Transfer::Download(download)) = slot.transfer.as_deref() else { return };
        let (reply, hdr) = download.headers();
        let hdr = FragmentHdr { index: range.start, count: range.end - range.start, ..hdr };
        let reply = *reply;
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
        sink.send(self.route.switch(), &self.scratch);
    }

    /// Handles a fragment of a long reply, or the answer that it is gone.
    pub(crate) fn on_fragment(
        &mut self,
        now: Now,
        packet: &Packet<'_>,
        sink: &mut impl Sink,
    ) -> Result<(), WireError> {
        let repr = packet.repr();
        let number = repr.request.0;
        let Some(slot) = self.live_of_session(&repr) else { return Ok(()) };
        let Some(download) = slot.transfer.as_deref_mut().and_then(Transfer::download) else {
            self.count.late += 1;
            return Ok(());
        };
        let parsed = FragmentHdr::parse(packet.body());
        let is_responder = repr.node == download.headers().0.node;
        let same = is_responder && parsed.is_ok_and(|(hdr, _)| download.is_of(&hdr));
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
        let taken = download.take(&hdr, payload);
        match taken {
            Taken::Late => {
                self.count.late += 1;
                return Ok(());
            }
            Taken::Malformed => return Err(WireError::Field),
            Taken::One | Taken::Last => {}
        }
        self.flow.arrived();
        self.sample_part(now.instant, number, block_of(hdr.index));
        if taken == Taken::Last {
            self.finish_download(now, number, sink);
        } else {
            self.pump_pulls(now, number, sink);
        }
        Ok(())
    }

    fn finish_download(&mut self, now: Now, number: u64, sink: &mut impl Sink) {
        let Some(transfer) = self.drop_transfer(number) else { return };
        if let Transfer::Download(download) = *transfer {
            let (reply, hdr) = download.headers();
            let reply = *reply;
            self.ask_fragments(number, &reply, FragmentHdr { count: 0, ..hdr }, sink);
            self.finish(now, number, Outcome::Reply, download.into_bytes(), Some(&reply));
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
                let progress = upload.has_progressed_since(timer.set_at);
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
            let Some(run) = download.missing_run(timer.part, from) else { return };
            self.count.pulls_again += 1;
            from = run.end;
            self.pull(timer.number, run, sink);
        }
    }

    /// A part has come: its round trip, if it was measured.
    fn sample_part(&mut self, now: Instant, number: u64, part: u32) {
        if let Some(rtt_ns) = self.flow.timed(now, number, part) {
            self.timers.sample(Lane::Part, rtt_ns);
        }
    }

    /// The next long reply that waits for [`Client::grant`] or [`Client::withdraw`], and its length
    /// in bytes; only with [`crate::ClientConfig::grants_replies`].
    pub fn poll_offer(&mut self) -> Option<(RequestNumber, u32)> {
        let (number, bytes) = self.flow.poll_offer(&self.slots)?;
        Some((RequestNumber(number), bytes))
    }

    /// Grants the reply of an unanswered request `bytes`. A reply that was offered is pulled.
    pub fn grant(&mut self, now: Now, request: RequestNumber, bytes: u32, sink: &mut impl Sink) {
        let number = request.0;
        let Some(slot) = self.slots.live_mut(number) else { return };
        slot.granted_bytes = bytes;
        if slot.state == State::Parked {
            self.begin_download(now, number, sink);
            self.run_ready(now, sink);
        }
    }

    /// Sets whether long replies must not delay others: they are then fetched with a small window.
    pub fn set_modest(&mut self, is_modest: bool) {
        self.flow.is_modest = is_modest;
    }

    /// Takes a read back whose reply was offered: it is not answered any more, and may be submitted
    /// anew. Its replica need not keep the reply.
    pub fn withdraw(&mut self, read: RequestNumber, sink: &mut impl Sink) -> Option<Withdrawn> {
        let number = read.0;
        let is_offered = |s: &&Slot| {
            number & READ_BIT != 0 && s.transfer.as_deref().is_some_and(Transfer::is_offer)
        };
        self.slots.live(number).filter(is_offered)?;
        self.count.replies_waited += 1;
        self.give_back_reply(number, sink);
        let slot = self.slots.live_mut(number)?;
        self.flow.release(slot, &mut self.ready);
        let (obj_id, further, flags) = (slot.obj_id, slot.further, slot.flags);
        let packet = core::mem::take(&mut slot.packet);
        self.slots.remove(number);
        Some(Withdrawn { obj_id, further, flags, packet })
    }
}
