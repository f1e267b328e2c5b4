//! The notation of seeds, protocols, programs and guards, in a plan's file and on the command line.

use concord_core::guard::{ALL_GUARDS, Guard, Guards};
use concord_wire::control::Protocol;

/// The name of a protocol on the command line and in experiment files.
#[must_use]
pub fn protocol_name(protocol: Protocol) -> &'static str {
    match protocol {
        Protocol::PrimaryBackup => "primary-backup",
        Protocol::Chain => "chain",
        Protocol::Vr => "vr",
        Protocol::Craq => "craq",
        Protocol::NoPaxos => "nopaxos",
        Protocol::Raft => "raft",
    }
}

/// All protocols that a rack can be drawn with.
pub const PROTOCOLS: [Protocol; 6] = [
    Protocol::PrimaryBackup,
    Protocol::Chain,
    Protocol::Vr,
    Protocol::NoPaxos,
    Protocol::Craq,
    Protocol::Raft,
];

/// Seeds are written in hexadecimal, since TOML's integers are signed.
pub(crate) mod seed {
    use serde::{Deserialize, Deserializer, Serializer};

    use crate::systems::store::written::parse_seed;

    #[derive(Deserialize)]
    #[serde(untagged, expecting = "seed: an integer, or a string like \"0x2a\"")]
    enum Written {
        Number(u64),
        Text(String),
    }

    pub(crate) fn serialize<S: Serializer>(seed: &u64, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&format!("{seed:#x}"))
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<u64, D::Error> {
        match Written::deserialize(from)? {
            Written::Number(seed) => Ok(seed),
            Written::Text(text) => parse_seed(&text).map_err(serde::de::Error::custom),
        }
    }
}

/// Parses a seed: decimal, or hexadecimal after `0x`.
///
/// # Errors
/// A line that says what is expected.
pub fn parse_seed(text: &str) -> Result<u64, String> {
    let number = match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16),
        None => text.parse(),
    };
    number.map_err(|_| format!("no seed {text:?}: a number like 42 or 0x2a"))
}

pub(crate) mod protocol {
    use concord_wire::control::Protocol;
    use serde::{Deserialize, Deserializer, Serializer};

    use crate::systems::store::written::{parse_protocol, protocol_name};

    pub(crate) fn serialize<S: Serializer>(protocol: &Protocol, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(protocol_name(*protocol))
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Protocol, D::Error> {
        let name = String::deserialize(from)?;
        parse_protocol(&name).map_err(serde::de::Error::custom)
    }
}

pub(crate) mod program {
    use concord_wire::control::Program;
    use serde::{Deserialize, Deserializer, Serializer};

    pub(crate) fn serialize<S: Serializer>(program: &Program, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(program.name())
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Program, D::Error> {
        let name = String::deserialize(from)?;
        Program::named(&name).ok_or_else(|| {
            let names = Program::ALL.map(Program::name).join(", ");
            serde::de::Error::custom(format!("no program {name:?}: {names}"))
        })
    }
}

/// Parses the name of a protocol.
///
/// # Errors
/// A line with the known names.
pub fn parse_protocol(name: &str) -> Result<Protocol, String> {
    PROTOCOLS.into_iter().find(|p| protocol_name(*p) == name).ok_or_else(|| {
        let names: Vec<&str> = PROTOCOLS.into_iter().map(protocol_name).collect();
        format!("no protocol {name:?}: {}", names.join(", "))
    })
}

/// The removed guards, by their names.
pub(crate) mod without {
    use concord_core::guard::{ALL_GUARDS, Guards};
    use serde::{Deserialize, Deserializer, Serializer};

    use crate::systems::store::written::{guard_name, without_guard};

    pub(crate) fn serialize<S: Serializer>(guards: &Guards, to: S) -> Result<S::Ok, S::Error> {
        let removed = ALL_GUARDS.into_iter().filter(|guard| !guards.on(*guard));
        to.collect_seq(removed.map(guard_name))
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Guards, D::Error> {
        let names = Vec::<String>::deserialize(from)?;
        let remove = |guards, name: &String| without_guard(guards, name);
        names.iter().try_fold(Guards::ALL, remove).map_err(serde::de::Error::custom)
    }
}

/// The name of a guard on the command line, such as `in-order-writes`.
#[must_use]
pub fn guard_name(guard: Guard) -> String {
    let mut name = String::new();
    for letter in format!("{guard:?}").chars() {
        if letter.is_uppercase() && !name.is_empty() {
            name.push('-');
        }
        name.push(letter.to_ascii_lowercase());
    }
    name
}

/// `guards` without the one with this name.
///
/// # Errors
/// A line with the known names, or that guards cannot be removed in this build.
pub fn without_guard(guards: Guards, name: &str) -> Result<Guards, String> {
    let Some(guard) = ALL_GUARDS.into_iter().find(|guard| guard_name(*guard) == name) else {
        let names: Vec<String> = ALL_GUARDS.into_iter().map(guard_name).collect();
        return Err(format!("no guard {name:?}: {}", names.join(", ")));
    };
    remove(guards, guard)
}

#[cfg(feature = "mutants")]
fn remove(guards: Guards, guard: Guard) -> Result<Guards, String> {
    Ok(guards.and_without(guard))
}

#[cfg(not(feature = "mutants"))]
fn remove(_: Guards, guard: Guard) -> Result<Guards, String> {
    let name = guard_name(guard);
    Err(format!("this build cannot do without {name}: build it with --features mutants"))
}
