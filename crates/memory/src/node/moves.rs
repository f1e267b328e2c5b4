//! A node's blocks that move to the switch and back: it measures heat in windows, and a home makes
//! one move after the other (§5.2.2).

use concord_core::{Instant, Now, Sink};
use concord_wire::concordia::{NUMBER_MAX, Op, Outcome, Repr, Tag};

use super::{Node, WINDOW_NS};
use crate::directory::Move;
use crate::event::RoundTrip;
use crate::settings::{Coherence, NodeSettings};

impl Node {
    /// Begins to move a block of this home to the switch, or back; `false` if that is not possible
    /// now.
    pub fn migrate(&mut self, now: Now, tag: Tag, sink: &mut impl Sink) -> bool {
        let is_home = self.is_home(tag);
        let begins = is_home && self.directory.begin(now.instant, tag);
        if begins {
            self.send_move(now, sink);
        }
        begins
    }

    /// Sends the packet of the move that is in progress, possibly again. A driver uses
    /// [`Machine::tick`](concord_core::Machine::tick) instead.
    pub fn send_move(&mut self, now: Now, sink: &mut impl Sink) {
        let NodeSettings { node, place, group, epoch, switch, .. } = self.settings;
        let Some((_, packet)) = self.directory.moving() else { return };
        let packet = Repr { group, from: node, epoch, place, ..packet };
        sink.send(switch, &packet.packet(&[]));
        self.directory.sent(now.instant);
    }

    /// Handles the switch's answer to a move: it goes on, or another one begins.
    pub(super) fn on_moved(&mut self, now: Now, packet: &Repr, sink: &mut impl Sink) {
        let heat = self.directory.heat(packet.tag);
        if !self.directory.answered(packet) {
            return;
        }
        if packet.op == Op::Added && packet.outcome == Outcome::Full {
            self.displace(packet, heat, sink);
        }
        if self.directory.moving().is_some() {
            return self.send_move(now, sink);
        }
        self.counters.moved += 1;
        self.next_move(now, sink);
    }

    /// Tells the home of the block that is in the way of a hot one to take it back, if it is
    /// colder.
    fn displace(&mut self, packet: &Repr, heat: u64, sink: &mut impl Sink) {
        let NodeSettings { node, place, group, epoch, .. } = self.settings;
        let Some(range) = packet.provider else { return };
        let tag = Tag::new(range.into(), packet.version);
        if self.is_home(tag) {
            return self.directory.displaces(tag, heat);
        }
        let Some(home) = self.home_of(tag) else { return };
        let number = heat.min(NUMBER_MAX);
        let told = Repr { group, from: node, epoch, place, ..Repr::new(Op::Displace, tag) };
        sink.send(home, &Repr { number, ..told }.packet(&[]));
    }

    fn next_move(&mut self, now: Now, sink: &mut impl Sink) {
        if let Some(tag) = self.directory.next_move() {
            self.migrate(now, tag, sink);
        }
    }

    /// Ends a window: reports the heat of blocks to their homes.
    pub(super) fn turn_window(&mut self, now: Now, sink: &mut impl Sink) {
        let NodeSettings { node, place, group, epoch, .. } = self.settings;
        for (tag, count) in core::mem::take(&mut self.heat) {
            if self.is_home(tag) {
                self.directory.heats(tag, count);
            } else if let Some(home) = self.home_of(tag) {
                let told = Repr { group, from: node, epoch, place, ..Repr::new(Op::Heat, tag) };
                let number = count.min(NUMBER_MAX);
                sink.send(home, &Repr { number, ..told }.packet(&[]));
            }
        }
        self.window_at = Instant::NEVER;
        self.directory.turn_window();
        self.next_move(now, sink);
    }

    /// Begins a window, if there is anything to measure.
    pub(super) fn open_window(&mut self, now: Now) {
        let moves = self.settings.coherence == Coherence::Concordia;
        let has_any = moves && (!self.heat.is_empty() || self.directory.has_windows());
        if self.window_at == Instant::NEVER && has_any {
            self.window_at = now.instant.after(WINDOW_NS);
        }
    }

    /// When a move is sent again if there is no answer.
    pub(super) fn move_due(&self) -> Instant {
        let again = |moving: Move| moving.at.after(self.round_trip.times(RoundTrip::UNLOCK));
        self.moves().map_or(Instant::NEVER, again)
    }
}
