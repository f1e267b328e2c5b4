//! Values of many packets (trap T17), each by itself: what of a body was acknowledged, what of a
//! long reply has come, and what is to be sent next.

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

/// The effect of a fragment of a long reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    /// The fragment is a duplicate, or was not requested.
    Late,
    /// The fragment does not fit this reply, although its header names it.
    Malformed,
    /// The fragment was missing.
    One,
    /// The fragment was the last one missing.
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

    /// The number of fragments in flight.
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

    /// The next fragment to send, if then at most `window` are in flight; it counts as sent.
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

    /// Fragment `index` arrived there. Whether that was the last one; `None` if it was known, or
    /// never sent.
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

    /// The next block of fragments, which is asked for from now on, if no more than `window` are
    /// then.
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

    /// The number of fragments of a block that have not arrived.
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

#[cfg(test)]
mod tests {
    use alloc::vec;

    use concord_wire::Op;
    use concord_wire::fragment::FRAGMENT_BYTES;

    use super::*;

    /// A body goes out once within its window and is whole when all of it was acknowledged.
    #[test]
    fn body_is_sent_once_within_its_window() {
        // 130 fragments: more than two words of acknowledgements.
        let command = vec![7; 129 * FRAGMENT_BYTES + 1];
        let mut upload = Upload::of(&command, Instant(5));
        let mut sent = 0;
        while let Some(index) = upload.next(32) {
            assert_eq!(index, sent);
            sent += 1;
        }
        assert_eq!(sent, 32);
        assert_eq!(upload.on_ack(Instant(6), 32), None, "it was never sent");
        assert_eq!(upload.on_ack(Instant(6), 31), Some(false));
        assert_eq!(upload.on_ack(Instant(7), 31), None, "known");
        assert!(upload.is_acked(31) && !upload.is_acked(30));
        assert!(
            upload.has_progressed_since(Instant(5)) && !upload.has_progressed_since(Instant(6))
        );
        assert_eq!((upload.next(32), upload.next(32)), (Some(32), None));
        for index in (0..130).filter(|index| *index != 31) {
            while upload.next(200).is_some() {}
            assert_eq!(upload.on_ack(Instant(8), index), Some(index == 129), "{index}");
        }
        assert_eq!((upload.next(200), Transfer::Upload(upload).out()), (None, 0));
    }

    /// The numbered write names its body and each fragment its place.
    #[test]
    fn sequenced_write_names_its_body() {
        let command = vec![7; 2 * FRAGMENT_BYTES];
        let staged = staged_hdr(&command);
        assert_eq!((staged.index, staged.count, staged.total_bytes), (0, 2, command.len() as u32));
        let upload = Upload::of(&command, Instant(0));
        let hdr = upload.hdr(1);
        assert_eq!((hdr.index, hdr.count, hdr.version), (1, 1, staged.version));
        assert!(upload.is_of(&hdr));
        assert!(!upload.is_of(&FragmentHdr { version: hdr.version ^ 1, ..hdr }));
        assert!(!upload.is_of(&FragmentHdr { total_bytes: 1, ..hdr }));
        assert_ne!(staged_hdr(b"another").version, staged.version);
    }

    /// A reply of 40 fragments: two blocks of 16 and one of 8, the first fragment of which is here.
    fn download() -> Download {
        let total_bytes = 39 * FRAGMENT_BYTES as u32 + 5;
        let hdr = FragmentHdr { version: 3, total_bytes, index: 0, count: 1 };
        let first = vec![0; FRAGMENT_BYTES];
        Download::of(Offer { reply: Repr::new(Op::ReadReply), hdr, first })
    }

    fn fragment(download: &Download, index: u32) -> (FragmentHdr, Vec<u8>) {
        let hdr = FragmentHdr { index, ..download.hdr };
        (hdr, vec![index as u8; hdr.range().len()])
    }

    #[test]
    fn a_reply_is_asked_for_by_blocks_within_its_window() {
        let mut download = download();
        assert_eq!(download.next(14), None);
        assert_eq!(download.next(31), Some((0, 1..16)));
        assert_eq!(download.next(30), None);
        assert_eq!(download.next(31), Some((1, 16..32)));
        assert_eq!(download.next(100), Some((2, 32..40)));
        assert_eq!(download.next(100), None, "there is no more");
        assert_eq!((0..3).map(|block| download.missing(block)).collect::<Vec<_>>(), [15, 16, 8]);
        assert_eq!([15, 16, 39].map(block_of), [0, 1, 2]);
        assert_eq!(Transfer::Download(download).out(), 39);
    }

    #[test]
    fn what_came_of_a_block_is_not_asked_for_again() {
        let mut download = download();
        let _ = (download.next(64), download.next(64));
        for index in [16, 17, 20, 31] {
            let (hdr, bytes) = fragment(&download, index);
            assert_eq!(download.take(&hdr, &bytes), Taken::One);
        }
        let mut runs = vec![];
        let mut from = 0;
        while let Some(run) = download.missing_run(1, from) {
            from = run.end;
            runs.push(run);
        }
        assert_eq!((runs, download.missing(1)), (vec![18..20, 21..31], 12));
        assert_eq!(download.missing_run(0, 0), Some(1..16));
    }

    /// A reply is whole once each fragment has come and none counts twice.
    #[test]
    fn reply_fragments_count_once() {
        let mut download = download();
        let (hdr, bytes) = fragment(&download, 1);
        assert_eq!(download.take(&hdr, &bytes), Taken::Late, "it was not asked for");
        while download.next(64).is_some() {}
        assert_eq!(download.take(&hdr, &bytes[1..]), Taken::Malformed);
        for index in 1..40 {
            let (hdr, bytes) = fragment(&download, index);
            let taken = if index == 39 { Taken::Last } else { Taken::One };
            assert_eq!(download.take(&hdr, &bytes), taken);
            assert_eq!(download.take(&hdr, &bytes), Taken::Late);
        }
        assert_eq!(download.out, 0);
        let whole = download.into_bytes();
        assert_eq!(whole.len(), 39 * FRAGMENT_BYTES + 5);
        assert!(whole.chunks(FRAGMENT_BYTES).zip(0..).all(|(c, n)| c.iter().all(|b| *b == n)));
    }

    #[test]
    fn fragments_of_another_version_or_length_are_of_another_reply() {
        let download = download();
        let hdr = download.hdr;
        assert!(download.is_of(&hdr));
        assert!(!download.is_of(&FragmentHdr { version: 4, ..hdr }));
        assert!(!download.is_of(&FragmentHdr { total_bytes: 9, ..hdr }));
    }

    /// A reply that claims more than the largest is told by its first part.
    #[test]
    fn oversized_reply_is_detected_by_its_first_part() {
        for (bytes, too_much) in [(REPLY_BYTES_MAX, false), (REPLY_BYTES_MAX + 1, true)] {
            let mut body = vec![];
            let total_bytes = bytes as u32;
            FragmentHdr { version: 1, total_bytes, index: 0, count: 1 }.emit(&mut body);
            assert_eq!(claims_too_much(&body), too_much);
            assert!(!claims_too_much(&body[..11]));
        }
    }
}
