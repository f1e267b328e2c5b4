//! Rules that travel with a script or a function call of a user with restricted rights: replicas do
//! not know users, and rules that change while a script is in flight must not make replicas differ.
//! The rules precede the number of keys: an older version takes them for an invalid number of keys,
//! and refuses the script.

use alloc::collections::BTreeMap;
use alloc::format;
use alloc::sync::Arc;
use alloc::vec::Vec;

use super::{Catalogue, Denied, Refused, Rights, Wrong, check, with_call};
use crate::table::CommandTable;

/// The beginning of the argument.
pub const MARKER: &[u8] = b"\xffconcord rules ";
/// The largest size of rules that are sent, in bytes.
pub const RULES_BYTES_MAX: usize = 16 << 10;
/// The number of users whose parsed rules are cached.
const KNOWN_MAX: usize = 256;

/// The arguments of a script or call without the rules, and these, if some came.
#[must_use]
pub fn split(mut args: Vec<&[u8]>) -> (Vec<&[u8]>, Option<&[u8]>) {
    let rules = args.get(2).and_then(|arg| arg.strip_prefix(MARKER));
    if rules.is_some() {
        args.remove(2);
    }
    (args, rules)
}

/// The argument that carries rules.
#[must_use]
pub fn argument(rules: &[u8]) -> Vec<u8> {
    [MARKER, rules].concat()
}

/// On whose behalf a script runs.
#[derive(Debug)]
pub struct Acting {
    all: Arc<Catalogue>,
    /// The rights of the script.
    pub rights: Rights,
}

impl Acting {
    /// Whether a script may call a command.
    ///
    /// # Errors
    /// The error for the script, in Redis' words.
    pub fn check(&self, table: &CommandTable, args: &[&[u8]]) -> Result<(), Vec<u8>> {
        let denied = match check(&self.all, table, &self.rights, args) {
            Ok(()) => return Ok(()),
            Err(Refused::Sort(option)) => {
                let text = format!(
                    "ERR {option} option of SORT denied due to insufficient ACL permissions."
                );
                return Err(text.into_bytes());
            }
            Err(Refused::Denied(denied)) => denied,
        };
        let why = match denied {
            Denied::Command => "run this command or subcommand",
            Denied::Key(_) => "access at least one of the keys mentioned in the command arguments",
            Denied::Channel(_) => "publish to the channel mentioned in the command",
        };
        Err(format!("ERR The user executing the script can't {why}").into_bytes())
    }

    /// Whether it may, for a script that asks.
    #[must_use]
    pub fn may(&self, table: &CommandTable, args: &[&[u8]]) -> bool {
        with_call(&self.all, table, args, |call| self.rights.check(call)).is_ok()
    }
}

/// Rules that were understood: each text is parsed once.
#[derive(Debug, Default)]
pub struct Understood {
    all: Option<Arc<Catalogue>>,
    known: BTreeMap<Vec<u8>, Arc<Acting>>,
}

impl Understood {
    /// The commands that rules may name.
    pub fn catalogue(&mut self) -> Arc<Catalogue> {
        self.all.get_or_insert_with(Arc::default).clone()
    }

    /// Parses these rules.
    ///
    /// # Errors
    /// The reason for which they are invalid.
    pub fn of(&mut self, rules: &[u8]) -> Result<Arc<Acting>, Wrong> {
        if let Some(known) = self.known.get(rules) {
            return Ok(known.clone());
        }
        if rules.len() > RULES_BYTES_MAX {
            return Err("too long");
        }
        let all = self.catalogue();
        let rights = Rights::parse(&all, rules)?;
        let acting = Arc::new(Acting { all, rights });
        if self.known.len() >= KNOWN_MAX {
            self.known.clear();
        }
        self.known.insert(rules.to_vec(), acting.clone());
        Ok(acting)
    }
}

/// The error of a script with malformed rules.
#[must_use]
pub fn malformed(wrong: Wrong) -> Vec<u8> {
    format!("ERR the rules of the user who runs the script are malformed: {wrong}").into_bytes()
}
