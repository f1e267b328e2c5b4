//! Rules of users who may not do everything, as the server's scripts look at them (`acl.lua`).

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use super::requests::is_script;
use crate::acl::sent::{self, Understood};
use crate::acl::words;
use crate::table::CommandTable;
use crate::{Command, info};

/// So many users' rules are kept as they are sent.
const KNOWN_MAX: usize = 256;

/// Rules, and what of them the server's scripts get.
#[derive(Debug, Default)]
pub(super) struct Known {
    understood: Understood,
    /// By the rules as they came: lines of words, or the error for the client.
    lines: BTreeMap<Vec<u8>, Result<Vec<u8>, Vec<u8>>>,
    /// Scripts of this server can change what others are made of, so that none may run on behalf of
    /// who may not do everything.
    pub(super) is_open: bool,
}

impl Known {
    /// Looks at the rules that came with a command, if it is a script.
    pub(super) fn learn(&mut self, table: &CommandTable, command: &Command<'_>) {
        let Some(rules) = rules_of(command) else { return };
        if self.lines.contains_key(rules) {
            return;
        }
        if self.lines.len() >= KNOWN_MAX {
            self.lines.clear();
        }
        let lines = match self.understood.of(rules) {
            _ if self.is_open => {
                Err(b"ERR scripts of users who may not do everything need a redis-server of \
                version 7.0 or newer"
                    .to_vec())
            }
            Err(wrong) => Err(sent::malformed(wrong)),
            Ok(acting) => {
                let all = self.understood.catalogue();
                let mut lines = all.containers();
                lines.push(b'\n');
                lines.extend_from_slice(&words(&all, table));
                lines.push(b'\n');
                acting.rights.lines(&all, &mut lines);
                Ok(lines)
            }
        };
        self.lines.insert(rules.to_vec(), lines);
    }

    /// What the server's script gets of these rules.
    pub(super) fn lines(&self, rules: &[u8]) -> Result<&[u8], &[u8]> {
        match self.lines.get(rules) {
            Some(Ok(lines)) => Ok(lines),
            Some(Err(error)) => Err(error),
            None => Err(b"ERR the rules of the user who runs the script are not known"),
        }
    }
}

/// The rules that came with a script.
pub(super) fn rules_of<'a>(command: &Command<'a>) -> Option<&'a [u8]> {
    if !is_script(command) {
        return None;
    }
    command.args().nth(2)?.strip_prefix(sent::MARKER)
}

/// Whether scripts of this server, by its INFO, can change what others are made of: before 7.0.
pub(super) fn is_open(server: &[u8]) -> bool {
    let version = info::field(server, "redis_version").unwrap_or_default();
    let first = version.split(|byte| *byte == b'.').next();
    first.and_then(crate::resp_scan::number).is_none_or(|major| major < 7)
}
