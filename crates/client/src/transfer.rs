//! Values of many packets (trap T17), each by itself: what of a body was acknowledged, what of a long reply
//! has come, and what is to be sent next.

use alloc::vec::Vec;
use core::ops::Range;

use concord_core::Instant;
use concord_core::hash::hash64;
use concord_wire::fragment::{Assembly, FragmentHdr};
use concord_wire::{REPLY_BYTES_MAX, Repr};

/// Fragments that one Pull asks for.
const BLOCK: u32 = 16;

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
    pub reply: Repr,
    pub hdr: FragmentHdr,
    pub first: Vec<u8>,
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

/// What a fragment of a long reply did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    /// It is here before, or was not asked for.
    Late,
    /// It is none of this reply, though its header says so.
    Malformed,
    /// It is one of those that were missing.
    One,
    /// It was the last one.
    Last,
}

impl Transfer {
    pub fn upload(&mut self) -> Option<&mut Upload> {
        match self {
            Transfer::Upload(upload) => Some(upload),
            Transfer::Download(_) | Transfer::Offer(_) => None,
        }
    }

    pub fn download(&mut self) -> Option<&mut Download> {
        match self {
            Transfer::Download(download) => Some(download),
            Transfer::Upload(_) | Transfer::Offer(_) => None,
        }
    }

    pub fn is_offer(&self) -> bool {
        matches!(self, Transfer::Offer(_))
    }

    /// Fragments that are under way.
    pub fn out(&self) -> u32 {
        match self {
            Transfer::Upload(upload) => upload.out,
            Transfer::Download(download) => download.out,
            Transfer::Offer(_) => 0,
        }
    }
}

impl Upload {
    /// The body of `command`, none of which was sent.
    pub fn of(command: &[u8], now: Instant) -> Upload {
        let hdr = FragmentHdr { count: 1, ..staged_hdr(command) };
        Upload {
            hdr,
            acked: alloc::vec![0; hdr.fragments().div_ceil(64) as usize],
            next: 0,
            out: 0,
            unacked: hdr.fragments(),
            progress_at: now,
        }
    }

    /// The header of fragment `index`.
    pub fn hdr(&self, index: u32) -> FragmentHdr {
        FragmentHdr { index, ..self.hdr }
    }

    /// The next fragment, which is under way from now on, if no more than `window` are then.
    pub fn next(&mut self, window: u32) -> Option<u32> {
        if self.out >= window || self.next >= self.hdr.fragments() {
            return None;
        }
        let index = self.next;
        self.next += 1;
        self.out += 1;
        Some(index)
    }

    /// Whether an acknowledgement is of this body.
    pub fn is_of(&self, hdr: &FragmentHdr) -> bool {
        (hdr.version, hdr.total_bytes) == (self.hdr.version, self.hdr.total_bytes)
    }

    pub fn is_acked(&self, index: u32) -> bool {
        self.acked[index as usize / 64] & (1 << (index % 64)) != 0
    }

    /// Fragment `index` arrived there. Whether that was the last one; `None` if it was known, or never
    /// sent.
    pub fn on_ack(&mut self, now: Instant, index: u32) -> Option<bool> {
        if index >= self.next || self.is_acked(index) {
            return None;
        }
        self.acked[index as usize / 64] |= 1 << (index % 64);
        self.out -= 1;
        self.unacked -= 1;
        self.progress_at = now;
        Some(self.unacked == 0)
    }

    /// Whether a fragment was acknowledged after `at`.
    pub fn has_progressed_since(&self, at: Instant) -> bool {
        self.progress_at > at
    }
}

impl Download {
    /// The reply that was offered.
    pub fn of(offer: Offer) -> Download {
        let Offer { reply, hdr, first } = offer;
        let mut assembly = Assembly::new(hdr);
        assembly.add(&hdr, &first);
        Download { reply, hdr, assembly, next_block: 0, out: 0 }
    }

    /// The reply's header, and that of its fragments.
    pub fn headers(&self) -> (&Repr, FragmentHdr) {
        (&self.reply, self.hdr)
    }

    /// The next block of fragments, which is asked for from now on, if no more than `window` are then.
    pub fn next(&mut self, window: u32) -> Option<(u32, Range<u32>)> {
        let block = self.next_block;
        let range = self.block(block);
        let count = range.end.saturating_sub(range.start);
        if count == 0 || self.out + count > window {
            return None;
        }
        self.next_block += 1;
        self.out += count;
        Some((block, range))
    }

    /// The fragments of a block; the first fragment came with the reply.
    fn block(&self, block: u32) -> Range<u32> {
        (block * BLOCK).max(1)..((block + 1) * BLOCK).min(self.hdr.fragments())
    }

    /// How many fragments of a block have not come.
    pub fn missing(&self, block: u32) -> u8 {
        self.block(block).filter(|&index| !self.assembly.has(index)).count() as u8
    }

    /// The first run of fragments of a block, from `from` on, that have not come.
    pub fn missing_run(&self, block: u32, from: u32) -> Option<Range<u32>> {
        let block = self.block(block);
        let is_missing = |index: &u32| !self.assembly.has(*index);
        let start = (block.start.max(from)..block.end).find(is_missing)?;
        let end = (start..block.end).find(|i| !is_missing(i)).unwrap_or(block.end);
        Some(start..end)
    }

    /// Whether a fragment is of this reply, as its responder gave it.
    pub fn is_of(&self, hdr: &FragmentHdr) -> bool {
        (hdr.version, hdr.total_bytes) == (self.hdr.version, self.hdr.total_bytes)
    }

    /// Takes a fragment.
    pub fn take(&mut self, hdr: &FragmentHdr, payload: &[u8]) -> Taken {
        if hdr.index >= self.next_block * BLOCK || self.assembly.has(hdr.index) {
            return Taken::Late;
        }
        if !self.assembly.add(hdr, payload) {
            return Taken::Malformed;
        }
        self.out -= 1;
        if self.assembly.is_complete() { Taken::Last } else { Taken::One }
    }

    /// The reply, all of which has come.
    pub fn into_bytes(self) -> Vec<u8> {
        self.assembly.into_bytes()
    }
}

/// The block that a fragment is in.
pub fn block_of(index: u32) -> u32 {
    index / BLOCK
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

/// Whether the first part of a long reply says that it is longer than any.
pub fn claims_too_much(body: &[u8]) -> bool {
    let total = body.get(8..12).and_then(|b| b.first_chunk::<4>());
    total.is_some_and(|b| u32::from_be_bytes(*b) as usize > REPLY_BYTES_MAX)
}
