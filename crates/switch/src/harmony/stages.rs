//! The reservations of a switch, stage by stage.
//!
//! | stage | arrays | of |
//! |---|---|---|
//! | 0 | `held`: incarnation and number of the newest grant, and whether it holds a virtual link | a receiver's slot |
//! | 1 | `until`: when that is over, in units of 1,024 ns | a receiver's slot |
//! | 2 | `free`: how many virtual links are free (the paper's `DlinkCounter`) | a queue |
//! | 3 | `head`, `tail` | a queue |
//! | 4 | `ring`: free virtual links (the paper's `UplinkQ`) | a place in a queue |
//! | 5 | `link_of`: the virtual link that is held, plus one | a receiver's slot |
//!
//! A receiver's slot has one grant at a time, so a cell for each slot identifies its owner exactly
//! (trap H4). The owner's stage is before the queues: a packet that frees a virtual link compares
//! the owner, and pushes in the same pass. A pop that fails cannot correct the owner's cell in the
//! same pass, so the packet is recirculated once.

use alloc::vec::Vec;

use concord_core::{Guard, Guards};
use concord_pisa::{ArrayReport, Pass, RegisterArray};

use super::layout::{LINK_PORTS_MAX, LinksLayout, Queue, Rows};

/// The number of stages of the program.
pub(super) const STAGES: u8 = 6;
/// The number of queues: one of all uplinks, and one for each port.
const QUEUES: usize = 2 * LINK_PORTS_MAX;

/// The request of a packet to the registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ask {
    /// An `rsvp`: reserve a virtual link from this queue.
    Reserve,
    /// An `rsvp` in a further pass: the owner is already noted.
    Again,
    /// A `complete` or a `reject`: free this virtual link.
    Free,
    /// Data: find out whether there is a reservation.
    Look,
    /// Close the owner's cell after a pop that failed.
    Close,
    /// Check whether the reservation has expired.
    Sweep,
    /// Free an expired reservation.
    Expire,
}

/// How a packet's grant compares to the newest one of its slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    /// It is the owner: the packet may take effect.
    Owner,
    /// The slot's previous grant still holds a virtual link.
    Busy,
    /// It is a duplicate, or stale.
    Over,
}

/// The header vector of a packet (P4): its state on the way through the pipeline, beside its bytes.
#[derive(Debug)]
pub(super) struct Phv {
    pub(super) pass: Pass,
    pub(super) ask: Ask,
    /// The cell of the receiver's slot.
    pub(super) slot: u32,
    /// Incarnation and number of the grant.
    pub(super) grant: u64,
    /// The time of the packet, and the expiry of its reservation, in units of 1,024 ns.
    pub(super) now: u32,
    pub(super) until: u32,
    /// The queue, and its part of the ring.
    pub(super) queue: u32,
    pub(super) part: Queue,
    /// The virtual link that is freed, or was reserved.
    pub(super) link: Option<u16>,
    pub(super) standing: Standing,
    /// The content of the owner's cell before the pass.
    pub(super) word: u64,
    /// Whether a sweep found the reservation to have expired.
    pub(super) is_expired: bool,
    place: u32,
}

impl Phv {
    pub(super) fn new(ask: Ask, slot: u32, grant: u64, now: u32) -> Phv {
        Phv {
            pass: Pass::begin(),
            ask,
            slot,
            grant,
            now,
            until: now,
            queue: 0,
            part: Queue::default(),
            link: None,
            standing: Standing::Owner,
            word: 0,
            is_expired: false,
            place: 0,
        }
    }

    /// Whether the packet takes a virtual link from a queue.
    fn pops(&self) -> bool {
        let reserves = self.ask == Ask::Reserve || self.ask == Ask::Again;
        reserves && self.standing == Standing::Owner
    }

    /// Whether the packet returns a virtual link to its queue.
    fn pushes(&self) -> bool {
        let frees = self.ask == Ask::Free || self.ask == Ask::Expire;
        frees && self.standing == Standing::Owner && self.link.is_some()
    }
}

/// The register arrays.
#[derive(Clone, Debug)]
pub(super) struct Stages {
    guards: Guards,
    held: RegisterArray<u64>,
    until: RegisterArray<u32>,
    free: RegisterArray<u32>,
    head: RegisterArray<u32>,
    tail: RegisterArray<u32>,
    ring: RegisterArray<u16>,
    link_of: RegisterArray<u16>,
}

impl Stages {
    pub(super) fn new(layout: &LinksLayout, guards: Guards) -> Stages {
        let slots = layout.slot_cells();
        Stages {
            guards,
            held: RegisterArray::new("held", 0, slots),
            until: RegisterArray::new("until", 1, slots),
            free: RegisterArray::new("free", 2, QUEUES),
            head: RegisterArray::new("head", 3, QUEUES),
            tail: RegisterArray::new("tail", 3, QUEUES),
            ring: RegisterArray::new("ring", 4, (layout.ring_cells() + QUEUES).next_power_of_two()),
            link_of: RegisterArray::new("link_of", 5, slots),
        }
    }

    /// The control plane empties the registers, and fills the queues.
    pub(super) fn reset(&mut self, rows: Option<&Rows>) {
        self.held.reset();
        for array in [&mut self.until, &mut self.free, &mut self.head, &mut self.tail] {
            array.reset();
        }
        self.ring.reset();
        self.link_of.reset();
        let Some(rows) = rows else { return };
        for (queue, (links, part)) in rows.free.iter().zip(&rows.queues).enumerate() {
            let (queue, count) = (queue as u32, links.len() as u32);
            self.free.port().access(&mut Pass::begin(), queue, |cell| *cell = count);
            self.tail.port().access(&mut Pass::begin(), queue, |cell| *cell = count);
            for (place, link) in (part.base..).zip(links) {
                self.ring.port().access(&mut Pass::begin(), place, |cell| *cell = *link);
            }
        }
    }

    /// Runs a packet's pass.
    #[inline]
    pub(super) fn run(&mut self, phv: &mut Phv) {
        for stage in 0..STAGES {
            self.stage(stage, phv);
        }
    }

    /// Runs a packet's access in one stage.
    #[inline]
    pub(super) fn stage(&mut self, stage: u8, phv: &mut Phv) {
        match stage {
            0 => self.held(phv),
            1 => self.until(phv),
            2 => self.free(phv),
            3 => self.ends(phv),
            4 => self.ring(phv),
            _ => self.link_of(phv),
        }
    }

    /// Stage 0: the owner.
    fn held(&mut self, phv: &mut Phv) {
        let (ask, grant, word, guards) = (phv.ask, phv.grant, phv.word, self.guards);
        if ask == Ask::Again {
            return;
        }
        let access = |cell: &mut u64| {
            let (newest, is_open, was) = (*cell >> 1, *cell & 1 == 1, *cell);
            let is_owner = is_open && newest == grant;
            let standing = match ask {
                Ask::Reserve if grant <= newest && guards.on(Guard::RsvpOnce) => Standing::Over,
                Ask::Reserve if is_open && guards.on(Guard::SlotFreed) => Standing::Busy,
                Ask::Reserve => Standing::Owner,
                Ask::Free if is_owner || !guards.on(Guard::OwnerFrees) => Standing::Owner,
                Ask::Look | Ask::Close if is_owner => Standing::Owner,
                Ask::Sweep if is_open => Standing::Owner,
                Ask::Expire if *cell == word => Standing::Owner,
                _ => Standing::Over,
            };
            *cell = match ask {
                Ask::Reserve if standing == Standing::Owner => grant << 1 | 1,
                Ask::Free | Ask::Close | Ask::Expire if standing == Standing::Owner => *cell & !1,
                _ => *cell,
            };
            (standing, was)
        };
        (phv.standing, phv.word) = self.held.port().access(&mut phv.pass, phv.slot, access);
    }

    /// Stage 1: the expiry of the reservation.
    fn until(&mut self, phv: &mut Phv) {
        let is_owner = phv.standing == Standing::Owner;
        let (ask, now, until) = (phv.ask, phv.now, phv.until);
        phv.is_expired = self.until.port().access(&mut phv.pass, phv.slot, |cell| {
            if ask == Ask::Reserve && is_owner {
                *cell = until;
            }
            // Times wrap: half of their range is before any given time.
            ask == Ask::Sweep && is_owner && now.wrapping_sub(*cell) < 1 << 31
        });
    }

    /// Stage 2: the number of free virtual links.
    fn free(&mut self, phv: &mut Phv) {
        if !phv.pops() && !phv.pushes() {
            return;
        }
        let pops = phv.pops();
        let has_one = self.free.port().access(&mut phv.pass, phv.queue, |cell| {
            let has_one = *cell > 0;
            *cell = if pops { cell.saturating_sub(1) } else { *cell + 1 };
            has_one
        });
        if pops {
            phv.link = has_one.then_some(0);
        }
    }

    /// Stage 3: one end of the queue.
    fn ends(&mut self, phv: &mut Phv) {
        let count = |cell: &mut u32| {
            let was = *cell;
            *cell = cell.wrapping_add(1);
            was
        };
        let place = if phv.pushes() {
            self.tail.port().access(&mut phv.pass, phv.queue, count)
        } else if phv.pops() && phv.link.is_some() {
            self.head.port().access(&mut phv.pass, phv.queue, count)
        } else {
            return;
        };
        phv.place = phv.part.base + (place & phv.part.mask);
    }

    /// Stage 4: the virtual link itself.
    fn ring(&mut self, phv: &mut Phv) {
        if let Some(link) = phv.link.filter(|_| phv.pushes()) {
            self.ring.port().access(&mut phv.pass, phv.place, |cell| *cell = link);
        } else if phv.pops() && phv.link.is_some() {
            phv.link = Some(self.ring.port().access(&mut phv.pass, phv.place, |cell| *cell));
        }
    }

    /// Stage 5: the virtual link that the slot holds here.
    fn link_of(&mut self, phv: &mut Phv) {
        let (is_owner, ask, link) = (phv.standing == Standing::Owner, phv.ask, phv.link);
        let was = self.link_of.port().access(&mut phv.pass, phv.slot, |cell| {
            let was = *cell;
            *cell = match ask {
                Ask::Reserve | Ask::Again if is_owner => link.map_or(0, |link| link + 1),
                Ask::Free | Ask::Close | Ask::Expire if is_owner => 0,
                _ => was,
            };
            was
        });
        if ask == Ask::Sweep {
            phv.link = was.checked_sub(1);
        }
    }

    /// The reservations, as the control plane reads them: the slot's cell, the owner, the virtual
    /// link, and the expiry time.
    pub(super) fn reservations(&self) -> impl Iterator<Item = (u32, u64, Option<u16>, u32)> + '_ {
        let cells = self.held.cells().zip(0_u32..).filter(|(word, _)| word & 1 == 1);
        cells.map(|(word, slot)| {
            let link = self.link_of.peek(slot).checked_sub(1);
            (slot, word >> 1, link, self.until.peek(slot))
        })
    }

    /// The free virtual links of a queue, the next one first.
    pub(super) fn queue(&self, queue: u32, part: Queue) -> impl Iterator<Item = u16> + '_ {
        let (head, count) = (self.head.peek(queue), self.free.peek(queue));
        let places = (0..count).map(move |n| part.base + (head.wrapping_add(n) & part.mask));
        places.map(|place| self.ring.peek(place))
    }

    /// All registers, as the control plane reads them.
    pub(super) fn cells(&self) -> impl Iterator<Item = u64> + '_ {
        let words = [&self.until, &self.free, &self.head, &self.tail];
        let words = words.into_iter().flat_map(RegisterArray::cells).map(u64::from);
        let short = [&self.ring, &self.link_of].into_iter().flat_map(RegisterArray::cells);
        self.held.cells().chain(words).chain(short.map(u64::from))
    }

    pub(super) fn report(&self) -> Vec<ArrayReport> {
        alloc::vec![
            self.held.report(),
            self.until.report(),
            self.free.report(),
            self.head.report(),
            self.tail.report(),
            self.ring.report(),
            self.link_of.report(),
        ]
    }
}
