//! The cache agent and the home agent: what a node does when another one asks (§5.1.1).

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::hash::{Hash, Hasher};

use concord_core::{Guard, Guards};
use concord_wire::concordia::{Op, Repr, Tag};

use crate::cache::{Cache, LineState};

/// What an agent answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Nothing: the request is of an event that is over.
    Nothing,
    /// The copy is invalidated.
    Invalidated,
    /// The block.
    Data(Vec<u8>),
}

/// A copy that was given away: kept for the event that has it until its lane has another one.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Given {
    /// The event's number.
    pub number: u64,
    /// Which block.
    pub tag: Tag,
    /// Its version.
    pub version: u64,
    /// Its content.
    pub data: Vec<u8>,
}

/// The cache agent.
#[derive(Clone, Debug)]
pub struct CacheAgent {
    guards: Guards,
    /// By the place and lane of who took it: a bound of their number.
    given: BTreeMap<(u8, u8), Given>,
}

impl CacheAgent {
    /// An agent that has given nothing.
    #[must_use]
    pub fn new(guards: Guards) -> CacheAgent {
        CacheAgent { guards, given: BTreeMap::new() }
    }

    /// A request that the owner of the block has forwarded to this node, because it is in the
    /// copyset. `keeps_place`: an event of this node's own is under way for the block.
    pub fn handle(
        &mut self,
        cache: &mut Cache,
        packet: &Repr,
        is_provider: bool,
        keeps_place: bool,
    ) -> Answer {
        let lane = (packet.place, packet.lane);
        // What is newer than the request is of a later event (trap C7).
        let checks = self.guards.on(Guard::CopyVersion);
        let line = cache.line_mut(packet.tag).filter(|line| line.is_valid());
        if checks && line.as_ref().is_some_and(|line| line.version > packet.version) {
            return Answer::Nothing;
        }
        match (packet.op, line) {
            (Op::ReadMiss, Some(line)) => {
                line.state = LineState::Shared;
                Answer::Data(line.data.clone())
            }
            (Op::WriteMiss, Some(line)) if is_provider => {
                let data = line.data.clone();
                let (number, tag, version) = (packet.number, packet.tag, packet.version);
                let given = Given { number, tag, version, data: data.clone() };
                self.given.insert(lane, given);
                CacheAgent::invalidate(cache, packet.tag, keeps_place);
                Answer::Data(data)
            }
            (Op::WriteMiss, None) if is_provider => {
                let is_same =
                    |given: &&Given| given.number == packet.number && given.tag == packet.tag;
                let kept = self.given.get(&lane).filter(is_same);
                let kept = kept.filter(|_| self.guards.on(Guard::GivenKept));
                kept.map_or(Answer::Nothing, |given| Answer::Data(given.data.clone()))
            }
            (Op::WriteMiss | Op::WriteShared, line) => {
                if line.is_some() {
                    CacheAgent::invalidate(cache, packet.tag, keeps_place);
                }
                Answer::Invalidated
            }
            _ => Answer::Nothing,
        }
    }

    /// What it gave away, by the place and lane of who took it, once its epoch is over.
    #[must_use]
    pub fn into_given(self) -> BTreeMap<(u8, u8), Given> {
        self.given
    }

    fn invalidate(cache: &mut Cache, tag: Tag, keeps_place: bool) {
        match cache.line_mut(tag) {
            Some(line) if keeps_place => {
                line.state = LineState::Reserved;
                line.data = Vec::new();
            }
            _ => drop(cache.remove(tag)),
        }
    }

    /// What tells its states apart.
    pub fn hash_state(&self, hasher: &mut impl Hasher) {
        self.given.hash(hasher);
    }
}
