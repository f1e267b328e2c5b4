//! Rules that travel with a script, or with the call of a function, of a user who may not do
//! everything: replicas know of no users, and rules that change while a script is under way must
//! not make them differ. They stand where the number of keys would stand, which is behind them: a
//! replica of a version that does not know them takes them for a number of keys that is none, and
//! refuses the script.

use alloc::collections::BTreeMap;
use alloc::format;
use alloc::sync::Arc;
use alloc::vec::Vec;

use super::{Catalogue, Denied, Refused, Rights, Wrong, check, with_call};
use crate::table::CommandTable;

/// What the argument begins with.
pub const MARKER: &[u8] = b"\xffconcord rules ";
/// Most bytes of rules that are sent.
pub const RULES_BYTES_MAX: usize = 16 << 10;
/// So many users' rules are kept as they were understood.
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
    /// What it may do.
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

    /// What these rules allow.
    ///
    /// # Errors
    /// What is wrong with them.
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

/// The error of a script whose rules are none.
#[must_use]
pub fn malformed(wrong: Wrong) -> Vec<u8> {
    format!("ERR the rules of the user who runs the script are malformed: {wrong}").into_bytes()
}
