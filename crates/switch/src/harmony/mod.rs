//! Harmony's switch program: an `rsvp` on its way from a receiver to a sender reserves a virtual
//! link of the port by which it leaves, in the direction in which the data will come (trap H6);
//! `complete` and `reject` return through the same switches and free it (Harmony §3.1, §4).
//!
//! Each reservation has an owner, which is the grant of a receiver's slot, and an expiry time (trap
//! H4): a duplicated `rsvp` reserves nothing, only the owner frees, and a reservation that is never
//! freed expires. Data without a reservation goes on as best effort. A restarted switch reserves
//! nothing until the reservations that it forgot have expired (trap H5).
//!
//! Numbered steps: **1** choose the route (tables), **2** access the registers (`stages`), **3**
//! send the packet.

mod layout;
mod stages;
#[cfg(test)]
mod tests;

use alloc::vec::Vec;
use core::hash::{Hash, Hasher};

use concord_core::machine::Deadline;
use concord_core::{Duration, Guard, Guards, Instant, Now};
use concord_pisa::hash::{Crc32, POLYNOMIALS};
use concord_pisa::{Metadata, Report, Verdict};
use concord_wire::control::{Config, GroupKind};
use concord_wire::harmony::{HEAD_BYTES, Hop, Op, Reason, Repr, SPAN_SHIFT};
use concord_wire::{Addr, Kind, WireError, header};

use crate::program::{
    Count, Gauge, Ingress, Injection, Load, LoadError, Refused, Settings, SwitchProgram, Takes,
};
use layout::{Rows, SPREAD};
use stages::{Ask, Phv, Stages, Standing};

pub use layout::{Choice, LINK_PORTS_MAX, LINKS_MAX, LinkTables, LinksError, LinksLayout, Route};

/// The hash unit that picks an uplink.
static UPLINKS: Crc32 = Crc32::new(POLYNOMIALS[1]);
/// The maximum incarnation: one bit of the owner's cell tells whether it is open.
const INCARNATION_MAX: u32 = u32::MAX >> 1;
/// The maximum number of passes of an `rsvp` that looks for an uplink by hash.
const TRIES_MAX: u8 = 8;
/// How often the control plane scans for expired reservations within the maximum lifetime of one.
const SWEEPS: u64 = 4;

/// The reason why a packet ends at the switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DropReason {
    /// The packet is malformed.
    Malformed(WireError),
    /// The switch has no tables.
    Unconfigured,
    /// The packet names a host, slot or switch that does not exist or is not on its path.
    Misdirected,
    /// The packet is a duplicate of an `rsvp`.
    Again,
    /// The packet is a sweep, which is done.
    Swept,
}

concord_core::counters! {
    /// Counts of Harmony's packets by their fate.
    pub struct HarmonyCounters {
        /// Virtual links reserved.
        reserved,
        /// Reservations refused because no virtual link was free.
        refused_no_link,
        /// Reservations refused because the previous grant of the slot still holds a virtual link
        /// here.
        refused_busy,
        /// Reservations refused because the switch has restarted, and waits until the reservations
        /// that it forgot have expired.
        refused_restarted,
        /// Virtual links freed by the grants that held them.
        freed,
        /// Packets that would free a virtual link that their grant does not hold, or no longer
        /// holds.
        freed_again,
        /// Virtual links freed because their reservation had expired.
        expired,
        /// Data packets with a reservation at this switch.
        data_reserved,
        /// Data packets without a reservation, forwarded as best effort.
        data_best_effort,
        /// Packets forwarded by address alone.
        passed_on,
        /// Passes of packets beyond their first one (recirculations).
        recirculated,
        /// Repeated reservation requests (`rsvp`), for which the switch holds a virtual link
        /// already.
        rsvps_repeated,
        /// Packets dropped because they name a host, slot or virtual link that does not exist.
        dropped_misdirected,
        /// Packets dropped because the switch has no configuration yet.
        dropped_unconfigured,
        /// Packets dropped because they are malformed.
        malformed,
    }
}

/// The purpose of a recirculated packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
enum Round {
    /// The next attempt of an `rsvp`.
    Try = 1,
    /// An `rsvp` that found no virtual link.
    Close = 2,
    /// A sweep that found an expired reservation.
    Expire = 3,
}

/// A virtual link that is reserved, as the control plane reads it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Reservation {
    /// The receiver's place.
    pub receiver: u16,
    /// The receiver's slot.
    pub slot: u8,
    /// The receiver's incarnation.
    pub incarnation: u32,
    /// The number of the grant.
    pub grant: u32,
    /// The virtual link; `None` while an `rsvp` that found none is recirculated.
    pub link: Option<u16>,
}

/// Harmony's switch program.
#[derive(Clone, Debug)]
pub struct Harmony {
    layout: LinksLayout,
    guards: Guards,
    own: Addr,
    rows: Option<Rows>,
    stages: Stages,
    /// A register: the time before which the switch reserves nothing.
    ready_at: Instant,
    /// When the control plane next scans for expired reservations.
    sweep_at: Instant,
    /// The expired reservations that it found, to be swept.
    to_sweep: Vec<u32>,
    counters: HarmonyCounters,
}

impl Load for Harmony {
    fn load(settings: &Settings) -> Result<Harmony, LoadError> {
        let layout = settings.sections.links;
        Harmony::new(layout, settings.addr, settings.guards).map_err(LoadError::Links)
    }
}

/// The output of a pass.
enum Leaves {
    To(Addr, Repr),
    Round(Metadata, Repr),
}

impl Harmony {
    /// A switch without tables.
    ///
    /// # Errors
    /// [`LinksError`] if no switch can have this layout.
    pub fn new(layout: LinksLayout, own: Addr, guards: Guards) -> Result<Harmony, LinksError> {
        layout.check()?;
        Ok(Harmony {
            layout,
            guards,
            own,
            rows: None,
            stages: Stages::new(&layout, guards),
            ready_at: Instant(0),
            sweep_at: Instant::NEVER,
            to_sweep: Vec::new(),
            counters: HarmonyCounters::default(),
        })
    }

    /// Fills the tables, and empties the registers. If the switch may have had reservations before
    /// (`is_anew`), it reserves nothing until they have expired.
    ///
    /// # Errors
    /// [`Refused`] if the tables name ports that do not exist, or do not fit; nothing was changed.
    pub fn fill(&mut self, now: Instant, tables: LinkTables, is_anew: bool) -> Result<(), Refused> {
        let rows = Rows::of(&self.layout, tables).ok_or(Refused)?;
        self.stages.reset(Some(&rows));
        self.rows = Some(rows);
        let waits = is_anew && self.guards.on(Guard::SwitchRestart);
        self.ready_at = if waits { now.after(self.restart_ns()) } else { now };
        self.sweep_at = now.after(self.layout.life_ns / SWEEPS);
        self.to_sweep.clear();
        Ok(())
    }

    /// How long a restarted switch waits: the maximum lifetime of a reservation, which senders
    /// count from a little later than switches, and the drift of the clocks.
    #[must_use]
    pub fn restart_ns(&self) -> Duration {
        self.layout.life_ns + self.layout.life_ns / 8
    }

    fn drop(&mut self, reason: DropReason) -> Verdict<DropReason> {
        let c = &mut self.counters;
        match reason {
            DropReason::Malformed(_) => c.malformed += 1,
            DropReason::Unconfigured => c.dropped_unconfigured += 1,
            DropReason::Misdirected => c.dropped_misdirected += 1,
            DropReason::Again => c.rsvps_repeated += 1,
            DropReason::Swept => {}
        }
        Verdict::Drop(reason)
    }

    /// The cell of a receiver's slot.
    fn slot(&self, packet: &Repr) -> u32 {
        u32::from(packet.receiver) * self.layout.slot_stride() as u32 + u32::from(packet.slot)
    }

    /// Steps 1 and 2.
    fn dispatch(
        &mut self,
        rows: &Rows,
        ingress: &Ingress<'_>,
        packet: Repr,
    ) -> Result<Leaves, DropReason> {
        let routes = &rows.tables.routes;
        let is_host = |place: u16| usize::from(place) < routes.len();
        let has_slot = packet.slot < self.layout.slots;
        let is_known = is_host(packet.sender) && is_host(packet.receiver) && has_slot;
        if !is_known || packet.receiver_incarnation > INCARNATION_MAX {
            return Err(DropReason::Misdirected);
        }
        let grant = u64::from(packet.receiver_incarnation) << 32 | u64::from(packet.grant);
        let now = (ingress.at.0 >> SPAN_SHIFT) as u32;
        let phv = |ask| Phv::new(ask, self.slot(&packet), grant, now);
        match packet.op {
            Op::Sweep => {
                let phv = phv(if ingress.passes == 0 { Ask::Sweep } else { Ask::Expire });
                self.on_sweep(rows, ingress, phv, packet)
            }
            Op::Rsvp if ingress.at < self.ready_at => {
                self.counters.refused_restarted += 1;
                Ok(Leaves::To(ingress.sender, refuse(&packet, Reason::Restarted)))
            }
            Op::Rsvp => {
                let phv = phv(Ask::Reserve);
                self.on_rsvp(rows, ingress, phv, packet)
            }
            _ if packet.is_source_routed() => {
                let ask = if packet.op == Op::Data { Ask::Look } else { Ask::Free };
                let phv = phv(ask);
                self.on_way_back(rows, phv, packet)
            }
            Op::Request | Op::Data => self.pass_on(rows, packet.receiver, packet),
            Op::Reject | Op::Complete | Op::Failure => self.pass_on(rows, packet.sender, packet),
        }
    }

    /// Forwards a packet by its address: the uplink is a hash of the message.
    fn pass_on(&mut self, rows: &Rows, to: u16, packet: Repr) -> Result<Leaves, DropReason> {
        self.counters.passed_on += 1;
        let port = match rows.tables.routes[usize::from(to)] {
            Route::Down(port) => port,
            Route::Up => uplink(rows, &packet, 0),
        };
        Ok(Leaves::To(rows.tables.neighbours[usize::from(port)], packet))
    }

    /// Reserves a virtual link of a port towards the sender.
    fn on_rsvp(
        &mut self,
        rows: &Rows,
        ingress: &Ingress<'_>,
        mut phv: Phv,
        mut packet: Repr,
    ) -> Result<Leaves, DropReason> {
        let [round, tries] = ingress.metadata.0;
        let round = if ingress.passes == 0 { 0 } else { round };
        let tries = if round == 0 { 0 } else { tries as u8 };
        let is_shared = self.layout.choice == Choice::Fifo;
        let route = rows.tables.routes[usize::from(packet.sender)];
        let queue = match route {
            Route::Down(port) => port + 1,
            Route::Up if is_shared => 0,
            Route::Up => uplink(rows, &packet, tries) + 1,
        };
        phv.ask = match round {
            0 => Ask::Reserve,
            round if round == Round::Close as u64 => Ask::Close,
            _ => Ask::Again,
        };
        phv.until = phv.now.wrapping_add(packet.span);
        phv.queue = queue.into();
        phv.part = rows.queues[usize::from(queue)];
        let back = rows.tables.neighbours.iter().position(|addr| *addr == ingress.sender);
        let back = back.ok_or(DropReason::Misdirected)? as u8;
        if packet.path.is_full() {
            return Err(DropReason::Misdirected);
        }
        self.stages.run(&mut phv);
        match (phv.ask, phv.standing, phv.link) {
            (Ask::Close, ..) => {
                self.counters.refused_no_link += 1;
                Ok(Leaves::To(ingress.sender, refuse(&packet, Reason::NoLink)))
            }
            (_, Standing::Over, _) => Err(DropReason::Again),
            (_, Standing::Busy, _) => {
                self.counters.refused_busy += 1;
                Ok(Leaves::To(ingress.sender, refuse(&packet, Reason::NoLink)))
            }
            (_, Standing::Owner, Some(link)) => {
                self.counters.reserved += 1;
                packet.path.push(Hop { switch: rows.tables.switch, back, link });
                let port = rows.port_of[usize::from(link)];
                Ok(Leaves::To(rows.tables.neighbours[usize::from(port)], packet))
            }
            (_, Standing::Owner, None) => {
                let may_try = !is_shared && route == Route::Up && tries + 1 < TRIES_MAX;
                let round = if may_try { Round::Try } else { Round::Close };
                Ok(Leaves::Round(Metadata([round as u64, u64::from(tries) + 1]), packet))
            }
        }
    }

    /// Processes a packet that returns to the receiver by its path.
    fn on_way_back(
        &mut self,
        rows: &Rows,
        mut phv: Phv,
        packet: Repr,
    ) -> Result<Leaves, DropReason> {
        let ahead = packet.ahead.checked_sub(1).ok_or(DropReason::Misdirected)?;
        let hop = packet.path.hops().get(usize::from(ahead)).ok_or(DropReason::Misdirected)?;
        let to = rows.tables.neighbours.get(usize::from(hop.back));
        let queue = rows.queue_of.get(usize::from(hop.link));
        let (Some(to), Some(queue)) = (to, queue) else { return Err(DropReason::Misdirected) };
        if hop.switch != rows.tables.switch {
            return Err(DropReason::Misdirected);
        }
        phv.queue = (*queue).into();
        phv.part = rows.queues[usize::from(*queue)];
        phv.link = (phv.ask == Ask::Free).then_some(hop.link);
        self.stages.run(&mut phv);
        let is_owner = phv.standing == Standing::Owner;
        let mut packet = Repr { ahead, ..packet };
        if phv.ask == Ask::Look {
            packet.is_best_effort |= !is_owner && self.guards.on(Guard::DataReserved);
            self.counters.data_best_effort += u64::from(packet.is_best_effort);
            self.counters.data_reserved += u64::from(!packet.is_best_effort);
        } else {
            self.counters.freed += u64::from(is_owner);
            self.counters.freed_again += u64::from(!is_owner);
        }
        Ok(Leaves::To(*to, packet))
    }

    /// Processes a packet of the control plane: checks whether a slot's reservation has expired.
    fn on_sweep(
        &mut self,
        rows: &Rows,
        ingress: &Ingress<'_>,
        mut phv: Phv,
        packet: Repr,
    ) -> Result<Leaves, DropReason> {
        if ingress.sender != self.own {
            return Err(DropReason::Misdirected);
        }
        if phv.ask == Ask::Sweep {
            self.stages.run(&mut phv);
            let link = phv.link.map_or(0, |link| u64::from(link) + 1);
            let round = Round::Expire as u64 | link << 8;
            let is_over = phv.is_expired && self.guards.on(Guard::ReservationExpires);
            let round = Leaves::Round(Metadata([round, phv.word]), packet);
            return if is_over { Ok(round) } else { Err(DropReason::Swept) };
        }
        let [round, word] = ingress.metadata.0;
        phv.word = word;
        phv.link = ((round >> 8) as u16).checked_sub(1);
        if let Some(link) = phv.link {
            let queue = rows.queue_of.get(usize::from(link)).ok_or(DropReason::Misdirected)?;
            phv.queue = (*queue).into();
            phv.part = rows.queues[usize::from(*queue)];
        }
        self.stages.run(&mut phv);
        self.counters.expired += u64::from(phv.standing == Standing::Owner);
        Err(DropReason::Swept)
    }

    /// The reservations, as the control plane reads them.
    pub fn reservations(&self) -> impl Iterator<Item = Reservation> + '_ {
        let stride = self.layout.slot_stride() as u32;
        self.stages.reservations().map(move |(cell, owner, link, _)| Reservation {
            receiver: (cell / stride) as u16,
            slot: (cell % stride) as u8,
            incarnation: (owner >> 32) as u32,
            grant: owner as u32,
            link,
        })
    }

    /// The free virtual links, in the order of their queues.
    #[must_use]
    pub fn free(&self) -> Vec<u16> {
        let Some(rows) = &self.rows else { return Vec::new() };
        let queues = rows.queues.iter().zip(0..);
        queues.flat_map(|(part, queue)| self.stages.queue(queue, *part)).collect()
    }

    /// The number of virtual links of all its ports.
    #[must_use]
    pub fn links(&self) -> usize {
        self.rows.as_ref().map_or(0, |rows| rows.port_of.len())
    }

    /// The port of a virtual link.
    #[must_use]
    pub fn port_of(&self, link: u16) -> Option<u8> {
        self.rows.as_ref()?.port_of.get(usize::from(link)).copied()
    }

    /// Its counters.
    #[must_use]
    pub fn counters(&self) -> &HarmonyCounters {
        &self.counters
    }

    /// Hashes what distinguishes its states: the registers.
    pub fn hash_registers(&self, hasher: &mut impl Hasher) {
        for cell in self.stages.cells() {
            cell.hash(hasher);
        }
    }
}

/// The uplink that a hash of the message, the grant and the attempt picks.
fn uplink(rows: &Rows, packet: &Repr, tries: u8) -> u8 {
    let hosts = u32::from(packet.sender) << 16 | u32::from(packet.receiver);
    let grant = packet.grant ^ u32::from(packet.slot) << 24;
    let hash = UPLINKS.of([hosts, packet.number as u32, grant, tries.into()]);
    rows.spread[hash as usize & (SPREAD - 1)]
}

/// The `reject` that an `rsvp` becomes, which returns through the switches that it passed.
fn refuse(rsvp: &Repr, reason: Reason) -> Repr {
    let ahead = rsvp.path.hops().len() as u8;
    Repr { op: Op::Reject, reason, ahead, bytes: 0, span: 0, ..*rsvp }
}

impl SwitchProgram for Harmony {
    type Reason = DropReason;

    #[inline]
    fn takes(&self, kind: Kind) -> Takes {
        if kind == Kind::Harmony { Takes::Data } else { Takes::Nothing }
    }

    /// Configures a single switch between hosts: each member has a port. (Several switches have
    /// tables of their own: [`Harmony::fill`].)
    fn install(&mut self, now: Now, config: &Config) -> Result<Option<Injection>, Refused> {
        if config.kind != GroupKind::Hosts {
            return Err(Refused);
        }
        let neighbours: Vec<Addr> = config.members.iter().map(|member| member.addr).collect();
        let ports = neighbours.len() as u8;
        let tables = LinkTables {
            switch: config.switch_id as u16,
            own: self.own,
            links: neighbours.iter().map(|_| u16::from(self.layout.slots)).collect(),
            neighbours,
            uplinks: Vec::new(),
            routes: (0..ports).map(Route::Down).collect(),
        };
        let is_same = self.rows.as_ref().is_some_and(|rows| rows.tables == tables);
        if !is_same {
            self.fill(now.instant, tables, true)?;
        }
        Ok(None)
    }

    fn uninstall(&mut self) {
        self.rows = None;
        self.stages.reset(None);
        self.sweep_at = Instant::NEVER;
    }

    fn process(&mut self, ingress: &Ingress<'_>, bytes: &mut [u8]) -> Verdict<DropReason> {
        let (packet, data_bytes) = match Repr::parse(bytes) {
            Ok((packet, data)) => (packet, data.len()),
            Err(error) => return self.drop(DropReason::Malformed(error)),
        };
        let Some(rows) = self.rows.take() else { return self.drop(DropReason::Unconfigured) };
        let leaves = self.dispatch(&rows, ingress, packet);
        self.rows = Some(rows);
        // Rewrite the packet in place.
        let mut write = |packet: &Repr| packet.write(data_bytes, bytes).unwrap_or(0);
        match leaves {
            Ok(Leaves::To(to, packet)) => Verdict::Forward { to, size_bytes: write(&packet) },
            Ok(Leaves::Round(metadata, packet)) => {
                self.counters.recirculated += 1;
                Verdict::Recirculate { metadata, size_bytes: write(&packet) }
            }
            Err(reason) => self.drop(reason),
        }
    }

    fn malformed(&mut self, error: WireError) {
        let _: Verdict<_> = self.drop(DropReason::Malformed(error));
    }

    /// The control plane reads which reservations have expired, and sends a packet to recheck each
    /// (trap T19).
    fn upkeep(&mut self, now: Instant) -> Option<Injection> {
        if self.to_sweep.is_empty() && now >= self.sweep_at {
            self.sweep_at = now.after(self.layout.life_ns / SWEEPS);
            let time = (now.0 >> SPAN_SHIFT) as u32;
            let is_over = |until: u32| time.wrapping_sub(until) < 1 << 31;
            let over = self.stages.reservations().filter(|(_, _, _, until)| is_over(*until));
            self.to_sweep = over.map(|(cell, ..)| cell).collect();
        }
        let cell = self.to_sweep.pop()?;
        let stride = self.layout.slot_stride() as u32;
        let packet = Repr {
            slot: (cell % stride) as u8,
            receiver_incarnation: 1,
            ..Repr::new(Op::Sweep, 0, (cell / stride) as u16, 1)
        };
        Some(Injection::new(&packet.packet(&[])))
    }

    fn deadline(&self) -> Deadline {
        let at = if self.to_sweep.is_empty() { self.sweep_at } else { Instant(0) };
        Deadline { at, reason: "reservations may be over by their time" }
    }

    fn gauges(&self) -> Vec<Gauge> {
        let held = self.stages.reservations().filter(|(_, _, link, _)| link.is_some()).count();
        let help = "Virtual links that are reserved.";
        alloc::vec![Gauge { name: "virtual_links_held", help, value: held as u64 }]
    }

    fn counts(&self) -> Vec<Count> {
        self.counters.each().collect()
    }

    fn describe(&self) -> Report {
        let recirculations_max = match self.layout.choice {
            Choice::Fifo => 1,
            Choice::Hash => u32::from(TRIES_MAX),
        };
        Report { recirculations_max, ..Report::new("harmony", self.stages.report()) }
    }
}

// A sweep is as long as any packet without data.
const _: () = assert!(HEAD_BYTES <= crate::program::INJECTION_BYTES_MAX);
const _: () = assert!(header::COMMON_BYTES < HEAD_BYTES);
