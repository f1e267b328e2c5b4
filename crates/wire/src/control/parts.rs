//! A configuration on its way: in one packet if it fits, else in several parts, which have all but
//! the members and the joining members in common, and a hash of all of those.

use alloc::vec::Vec;
use core::fmt;

use concord_core::hash::hash64;
use serde::de::{Error as _, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::config::Part;
use super::{Config, Member, Membership, Message as _};
use crate::Addr;
use crate::Sink;

/// The largest number of members and joining ones of a part: one packet holds them.
pub const PLACES_OF_PART: usize = 76;
/// The largest number of parts of a configuration.
pub const PARTS_MAX: u8 = 16;
/// The largest number of members and joining ones of a configuration.
pub const PLACES_MAX: usize = PLACES_OF_PART * PARTS_MAX as usize;

/// The content of one packet of a configuration: all of it, or a part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigPart {
    part: u8,
    parts: u8,
    /// Of the members and joining members of all parts; 0 where there is one part.
    hash: u64,
    /// With the members and joining members of this part.
    config: Config,
}

/// All of it, though perhaps no packet holds it.
impl From<Config> for ConfigPart {
    fn from(config: Config) -> ConfigPart {
        ConfigPart { part: 0, parts: 1, hash: 0, config }
    }
}

impl ConfigPart {
    /// The configuration, but only with the members and joining members that this part has: what is
    /// common to all parts can be relied upon without the others.
    #[must_use]
    pub fn common(&self) -> &Config {
        &self.config
    }

    /// The configuration, if this is all of it.
    #[must_use]
    pub fn complete(self) -> Option<Config> {
        (self.parts == 1).then_some(self.config)
    }

    /// The fields that all parts of a configuration have in common.
    fn identity(&self) -> (u8, u64, Config) {
        let bare = Config { members: Vec::new(), joining: Vec::new(), ..self.config.clone() };
        (self.parts, self.hash, bare)
    }
}

impl Config {
    /// The packets' parts, in order: one if it fits. None at all if there are more than
    /// [`PLACES_MAX`] places: such a configuration is not sent.
    pub fn parts(&self) -> impl Iterator<Item = ConfigPart> + '_ {
        let places = self.members.len() + self.joining.len();
        let parts = if places > PLACES_MAX { 0 } else { places.div_ceil(PLACES_OF_PART).max(1) };
        let hash = if parts > 1 { places_hash(&self.members, &self.joining) } else { 0 };
        (0..parts).map(move |part| {
            let from = part * PLACES_OF_PART;
            let members = self.members.iter().skip(from).take(PLACES_OF_PART).copied();
            let members: Vec<Member> = members.collect();
            let skipped = from.saturating_sub(self.members.len());
            let room = PLACES_OF_PART - members.len();
            let joining = self.joining.iter().skip(skipped).take(room).copied().collect();
            let config = Config { members, joining, ..*self };
            ConfigPart { part: part as u8, parts: parts as u8, hash, config }
        })
    }

    /// Sends it, in as many packets as it takes.
    pub fn send(&self, to: Addr, scratch: &mut Vec<u8>, sink: &mut impl Sink) {
        for part in self.parts() {
            Membership::Configure(part).emit_in(self.group, scratch);
            sink.send(to, scratch);
        }
    }
}

fn places_hash(members: &[Member], joining: &[Member]) -> u64 {
    hash64(0, &postcard::to_allocvec(&(members, joining)).unwrap_or_default())
}

/// Puts configurations together whose parts come in any order, twice, or not at all: one at a time
/// for each of some groups, of [`PLACES_MAX`] places at most.
#[derive(Clone, Debug)]
pub struct Assembly {
    groups_max: usize,
    begun: Vec<Begun>,
}

/// A configuration of which parts are here.
#[derive(Clone, Debug)]
struct Begun {
    /// The fields that all its parts have in common.
    identity: (u8, u64, Config),
    /// The parts' members and joining members.
    places: Vec<Option<(Vec<Member>, Vec<Member>)>>,
}

impl Assembly {
    /// An assembly for the configurations of `groups_max` groups.
    #[must_use]
    pub const fn new(groups_max: usize) -> Assembly {
        Assembly { groups_max, begun: Vec::new() }
    }

    /// Takes a part; gives the configuration of which it was the last that was missing.
    ///
    /// Parts are of one configuration only if all is equal that its parts have in common, the hash
    /// of all its places too. One that is begun makes room for another one of its group, but not
    /// for one of an earlier epoch of its rack.
    pub fn take(&mut self, part: ConfigPart) -> Option<Config> {
        if part.parts == 1 {
            return Some(part.config);
        }
        let identity = part.identity();
        let common = &identity.2;
        let known = self.begun.iter().position(|b| b.identity.2.group == common.group);
        let at = match known {
            Some(at) if self.begun[at].identity == identity => at,
            Some(at) => {
                let old = &self.begun[at].identity.2;
                if old.rack == common.rack && old.epoch > common.epoch {
                    return None;
                }
                self.begun.remove(at);
                self.begin(identity)
            }
            None => self.begin(identity),
        };
        let begun = &mut self.begun[at];
        let place = begun.places.get_mut(usize::from(part.part))?;
        place.get_or_insert((part.config.members, part.config.joining));
        if begun.places.iter().any(Option::is_none) {
            return None;
        }
        let Begun { identity: (_, hash, bare), places } = self.begun.remove(at);
        let (members, joining): (Vec<_>, Vec<_>) = places.into_iter().flatten().unzip();
        let (members, joining) = (members.concat(), joining.concat());
        let is_intact = places_hash(&members, &joining) == hash;
        is_intact.then_some(Config { members, joining, ..bare })
    }

    /// Begins a configuration; the one that was begun first makes room for it.
    fn begin(&mut self, identity: (u8, u64, Config)) -> usize {
        if self.begun.len() >= self.groups_max.max(1) {
            self.begun.remove(0);
        }
        let places = alloc::vec![None; usize::from(identity.0)];
        self.begun.push(Begun { identity, places });
        self.begun.len() - 1
    }
}

/// Encoded as `Part`, followed by the hash if there are several.
impl Serialize for ConfigPart {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let written = Part::written(self.config.clone(), (self.part, self.parts));
        if self.parts == 1 {
            return written.serialize(serializer);
        }
        (written, self.hash).serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for ConfigPart {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<ConfigPart, D::Error> {
        deserializer.deserialize_tuple(2, PartVisitor)
    }
}

struct PartVisitor;

impl<'de> Visitor<'de> for PartVisitor {
    type Value = ConfigPart;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a part of a configuration")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<ConfigPart, A::Error> {
        let missing = || A::Error::custom("cut off");
        let written: Part = seq.next_element()?.ok_or_else(missing)?;
        let (part, parts) = written.place();
        let hash = match parts {
            1 => 0,
            2..=PARTS_MAX => seq.next_element()?.ok_or_else(missing)?,
            _ => return Err(A::Error::custom("too many parts")),
        };
        let config = written.config().map_err(A::Error::custom)?;
        let places = config.members.len() + config.joining.len();
        if part >= parts || (parts > 1 && !(1..=PLACES_OF_PART).contains(&places)) {
            return Err(A::Error::custom("no such part"));
        }
        Ok(ConfigPart { part, parts, hash, config })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::{GroupKind, Program};
    use crate::header::GroupId;
    use crate::{PACKET_BYTES_MAX, WireError};
    use alloc::vec;
    use concord_core::Rng;

    fn member(node: usize) -> Member {
        let addr = Addr { ip: u32::MAX, port: node as u16 };
        Member { node: node as u16, incarnation: u64::MAX - node as u64, addr }
    }

    /// A configuration whose fields are as long as they can be.
    fn config(epoch: u32, members: usize, joining: usize) -> Config {
        Config {
            epoch,
            group: GroupId(u16::MAX),
            rack: u64::MAX,
            switch_id: u32::MAX,
            switch_incarnation: u64::MAX,
            switch: Addr { ip: u32::MAX, port: u16::MAX },
            kind: GroupKind::Workers,
            program: Program::Forward,
            members: (0..members).map(member).collect(),
            joining: (members..members + joining).map(member).collect(),
        }
    }

    /// What is sent, each packet read again.
    fn sent(config: &Config) -> Vec<ConfigPart> {
        let (mut scratch, mut packets) = (vec![], Vec::<(Addr, Vec<u8>)>::new());
        config.send(config.switch, &mut scratch, &mut packets);
        let read = |(_, bytes): &(Addr, Vec<u8>)| {
            assert!(!bytes.is_empty() && bytes.len() <= PACKET_BYTES_MAX);
            assert_eq!(crate::group(bytes), config.group);
            match Membership::parse(bytes) {
                Ok(Membership::Configure(part)) => part,
                other => panic!("{other:?}"),
            }
        };
        packets.iter().map(read).collect()
    }

    /// A configuration of any length arrives in as many packets as it takes.
    #[test]
    fn configuration_of_any_length_in_parts() {
        let lengths =
            [(0, 0), (1, 0), (64, 12), (76, 0), (0, 76), (77, 0), (76, 1), (75, 2), (0, 77)];
        let long = [(152, 0), (153, 0), (300, 40), (600, 600), (PLACES_MAX, 0), (0, PLACES_MAX)];
        for (members, joining) in lengths.into_iter().chain(long) {
            let config = config(3, members, joining);
            let parts = sent(&config);
            assert_eq!(parts.len(), (members + joining).div_ceil(PLACES_OF_PART).max(1));
            let mut assembly = Assembly::new(1);
            let count = parts.len();
            for (n, part) in parts.into_iter().enumerate() {
                let told = assembly.take(part);
                assert_eq!(told.is_some(), n + 1 == count, "{members} and {joining}, part {n}");
                assert!(told.is_none_or(|told| told == config));
            }
            assert!(assembly.begun.is_empty());
        }
        assert!(sent(&config(3, PLACES_MAX, 1)).is_empty(), "nobody makes so long a one");
    }

    /// Parts of some epochs are lost, doubled and in any order, and are sent again until all have
    /// come.
    #[test]
    fn lost_doubled_reordered_parts_make_one_or_none() {
        for seed in 0..40 {
            let mut rng = Rng::new(seed);
            let places = |rng: &mut Rng| {
                let members = rng.below(400) as usize;
                (members, rng.below(60) as usize)
            };
            let configs: Vec<Config> = (1..=4)
                .map(|epoch| {
                    let (members, joining) = places(&mut rng);
                    config(epoch, members, joining)
                })
                .collect();
            let mut assembly = Assembly::new(1);
            let mut newest = 0;
            let mut flying: Vec<ConfigPart> = vec![];
            for round in 0..400 {
                // The controller says the newest one again and again; what it said before is still
                // on its way.
                let current = &configs[(round / 20).min(3)];
                flying.extend(sent(current).into_iter().filter(|_| rng.chance(2, 3)));
                for _ in 0..flying.len() / 2 + 1 {
                    if flying.is_empty() {
                        break;
                    }
                    let at = rng.below(flying.len() as u64) as usize;
                    let part = flying[at].clone();
                    if rng.chance(3, 4) {
                        flying.swap_remove(at);
                    }
                    if let Some(told) = assembly.take(part) {
                        assert!(configs.contains(&told), "seed {seed}: a mixture");
                        newest = newest.max(told.epoch);
                    }
                }
                let held = assembly.begun.iter().flat_map(|b| &b.places).flatten();
                let held: usize =
                    held.map(|(members, joining)| members.len() + joining.len()).sum();
                assert!(assembly.begun.len() <= 1 && held <= PLACES_MAX);
            }
            assert_eq!(newest, 4, "seed {seed}");
        }
    }

    #[test]
    fn parts_of_different_configurations_are_never_put_together() {
        let mut assembly = Assembly::new(1);
        let own = sent(&config(5, 100, 0));
        let others = [
            config(6, 100, 0),
            Config { rack: 1, ..config(5, 100, 0) },
            Config { switch_id: 1, ..config(5, 100, 0) },
            Config { switch_incarnation: 1, ..config(5, 100, 0) },
            Config { switch: Addr::default(), ..config(5, 100, 0) },
            Config { group: GroupId(1), ..config(5, 100, 0) },
            // Of one number, as a leader says them, but with others, or in another order.
            config(5, 101, 0),
            config(5, 100, 1),
            Config { members: (0..100).rev().map(member).collect(), ..config(5, 100, 0) },
        ];
        for other in &others {
            assert_eq!(assembly.take(own[0].clone()), None);
            assert_eq!(assembly.take(sent(other).swap_remove(1)), None, "{other:?}");
            assembly = Assembly::new(1);
        }
        // Nor where somebody says that they belong together.
        assert_eq!(assembly.take(own[0].clone()), None);
        let mut forged = sent(&others[8]).swap_remove(1);
        forged.hash = own[0].hash;
        assert_eq!(assembly.take(forged), None);
        assert!(assembly.begun.is_empty());
        // A late part of an earlier epoch does not make a later one begin again.
        assert_eq!(assembly.take(own[1].clone()), None);
        assert_eq!(assembly.take(sent(&config(4, 100, 0)).swap_remove(0)), None);
        assert_eq!(assembly.take(own[0].clone()), Some(config(5, 100, 0)));
    }

    #[test]
    fn groups_do_not_disturb_each_other_and_there_are_only_so_many() {
        let of = |group: u16| sent(&Config { group: GroupId(group), ..config(5, 100, 0) });
        let mut assembly = Assembly::new(2);
        for group in [1, 2] {
            assert_eq!(assembly.take(of(group).swap_remove(0)), None);
        }
        for group in [1, 2] {
            assert!(assembly.take(of(group).swap_remove(1)).is_some());
        }
        for group in [1, 2, 3] {
            assert_eq!(assembly.take(of(group).swap_remove(0)), None);
        }
        assert_eq!(assembly.begun.len(), 2);
        assert_eq!(assembly.take(of(1).swap_remove(1)), None, "the first one made room");
        assert!(assembly.take(of(3).swap_remove(1)).is_some());
    }

    #[test]
    fn parts_that_cannot_be_are_refused() {
        let mut parts = sent(&config(5, 100, 0));
        let written = |part: &ConfigPart| {
            let mut bytes = vec![];
            Membership::Configure(part.clone()).emit(&mut bytes);
            Membership::parse(&bytes)
        };
        assert!(written(&parts[0]).is_ok());
        for (part, count) in [(2, 2), (255, 2), (0, 0), (1, 1), (0, PARTS_MAX + 1), (3, 255)] {
            (parts[0].part, parts[0].parts) = (part, count);
            assert_eq!(written(&parts[0]), Err(WireError::Field), "{part} of {count}");
        }
        (parts[0].part, parts[0].parts) = (0, 2);
        parts[0].config.members.clear();
        assert_eq!(written(&parts[0]), Err(WireError::Field), "a part of nobody");
        for part in sent(&config(5, 100, 0)) {
            let mut bytes = vec![];
            Membership::Configure(part).emit(&mut bytes);
            for at in 0..bytes.len() {
                for byte in [0, 1, 2, 16, 17, 0x7f, 0x80, 0xff] {
                    let mut other = bytes.clone();
                    other[at] = byte;
                    if let Ok(Membership::Configure(part)) = Membership::parse(&other) {
                        let _ = Assembly::new(1).take(part);
                    }
                }
            }
        }
    }
}
