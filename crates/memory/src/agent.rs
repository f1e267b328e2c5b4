//! The cache agent: it answers the requests of other nodes that the switch or a home forwards
//! (§5.1.1).

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::hash::{Hash, Hasher};

use concord_core::{Guard, Guards};
use concord_wire::concordia::{Op, Repr, Tag};

use crate::cache::{Cache, LineState};

/// The answer of an agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// None: the request is of an event that is over.
    Nothing,
    /// The copy is invalidated.
    Invalidated,
    /// The content of the block.
    Data(Vec<u8>),
}

/// A copy that was given away: kept for the event that got it until the same lane gets another one.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Given {
    /// The number of the event.
    pub number: u64,
    /// The block.
    pub tag: Tag,
    /// The version of the copy.
    pub version: u64,
    /// The content of the copy.
    pub data: Vec<u8>,
}

/// A node's cache agent.
#[derive(Clone, Debug)]
pub struct CacheAgent {
    guards: Guards,
    /// The copies given away, by the taker's place and lane, which bounds their number.
    given: BTreeMap<(u8, u8), Given>,
}

impl CacheAgent {
    /// An agent that has given no copy away.
    #[must_use]
    pub fn new(guards: Guards) -> CacheAgent {
        CacheAgent { guards, given: BTreeMap::new() }
    }

    /// Handles a request that the owner of the block forwarded to this node, because the node is in
    /// the copyset. `keeps_place`: an event of this node is in progress for the block.
    pub fn handle(
        &mut self,
        cache: &mut Cache,
        packet: &Repr,
        is_provider: bool,
        keeps_place: bool,
    ) -> Answer {
        let lane = (packet.place, packet.lane);
        // A copy that is newer than the request belongs to a later event (trap C7).
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

    /// The copies that it gave away, by the taker's place and lane, once its epoch is over.
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

    /// Hashes what distinguishes its states.
    pub fn hash_state(&self, hasher: &mut impl Hasher) {
        self.given.hash(hasher);
    }
}
