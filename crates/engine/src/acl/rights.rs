//! A user's rights: sets of rules.

use alloc::vec::Vec;

use super::rules::{Call, Catalogue, Denied, SYNTAX, Selector, Wrong};

/// The rights of a user: one or more sets of rules, of which one has to allow a whole command.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rights {
    /// The first set.
    pub root: Selector,
    /// The further ones.
    pub selectors: Vec<Selector>,
}

impl Rights {
    /// Everything.
    #[must_use]
    pub fn all() -> Rights {
        let mut rights = Rights::default();
        rights.root.set_all(true);
        (rights.root.all_keys, rights.root.all_channels) = (true, true);
        rights
    }

    /// Everything is allowed, so that nothing has to be looked at.
    #[must_use]
    pub fn are_all(&self) -> bool {
        self.root.all_commands && self.root.all_keys && self.root.all_channels
    }

    /// Applies a rule; `(rule ...)` adds a set.
    ///
    /// # Errors
    /// The reason for which the rule is invalid; then nothing has changed.
    pub fn apply(&mut self, all: &Catalogue, rule: &[u8]) -> Result<(), Wrong> {
        let [b'(', rules @ .., b')'] = rule else { return self.root.apply(all, rule) };
        let mut selector = Selector::default();
        for rule in rules.split(u8::is_ascii_whitespace).filter(|rule| !rule.is_empty()) {
            selector.apply(all, rule)?;
        }
        self.selectors.push(selector);
        Ok(())
    }

    /// Rules that say the same, as ACL LIST shows them.
    pub fn describe(&self, all: &Catalogue, out: &mut Vec<u8>) {
        self.root.describe(all, out);
        for selector in &self.selectors {
            out.extend_from_slice(b" (");
            selector.describe(all, out);
            out.push(b')');
        }
    }

    /// What [`Rights::describe`] wrote.
    ///
    /// # Errors
    /// The reason for which a rule is invalid.
    pub fn parse(all: &Catalogue, text: &[u8]) -> Result<Rights, Wrong> {
        let mut rights = Rights::default();
        for rule in merged(text.split(|byte| *byte == b' ')).map_err(|_| SYNTAX)? {
            rights.apply(all, &rule)?;
        }
        Ok(rights)
    }

    /// All sets of rules.
    pub fn all_selectors(&self) -> impl Iterator<Item = &Selector> {
        [&self.root].into_iter().chain(&self.selectors)
    }

    /// Whether one set of rules allows the command.
    ///
    /// # Errors
    /// The denied part, by the set that comes nearest to allowing the command.
    pub fn check(&self, call: &Call<'_>) -> Result<(), Denied> {
        let mut nearest = Denied::Command;
        for selector in self.all_selectors() {
            match selector.check(call) {
                Ok(()) => return Ok(()),
                Err(denied) => nearest = nearest.max(denied),
            }
        }
        Err(nearest)
    }

    /// Four lines of words for each set of rules (`acl.lua`).
    pub(crate) fn lines(&self, all: &Catalogue, out: &mut Vec<u8>) {
        self.all_selectors().for_each(|selector| selector.lines(all, out));
    }

    /// Whether the command may be run on whatever keys.
    #[must_use]
    pub fn may_on_all_keys(&self, call: &Call<'_>) -> bool {
        self.all_selectors().any(|own| own.allows_command(call) && own.all_keys)
    }
}

/// Rules, where those of a selector between parentheses are one.
///
/// # Errors
/// The beginning of one that has no end.
pub fn merged<'a>(rules: impl IntoIterator<Item = &'a [u8]>) -> Result<Vec<Vec<u8>>, Vec<u8>> {
    let mut all: Vec<Vec<u8>> = Vec::new();
    let mut open: Option<Vec<u8>> = None;
    for rule in rules {
        let joined = match open.take() {
            Some(before) => [&before[..], b" ", rule].concat(),
            None if rule.starts_with(b"(") => rule.to_vec(),
            None => {
                all.push(rule.to_vec());
                continue;
            }
        };
        match joined.ends_with(b")") {
            true => all.push(joined),
            false => open = Some(joined),
        }
    }
    match open {
        Some(open) => Err(open),
        None => Ok(all),
    }
}

#[cfg(test)]
mod tests {
    use alloc::string::String;

    use super::*;
    use crate::table::categories::CATEGORIES;

    fn rights(rules: &str) -> Rights {
        Rights::parse(&Catalogue::default(), rules.as_bytes()).unwrap()
    }

    #[test]
    fn what_is_described_is_understood_as_the_same() {
        let all = Catalogue::default();
        let with = |name| alloc::format!("+@all -@{name} (~a -@all +@{name} -get) +echo|x");
        let own =
            ["~a* %R~b %W~c &d* -@all +get +config|get +select|0", "~* &* +@all", "", "(+@all)"];
        let own = own.into_iter().map(String::from);
        for rules in own.chain(CATEGORIES.into_iter().map(with)).filter(|rules| !rules.is_empty()) {
            let (rights, mut text) = (rights(&rules), Vec::new());
            rights.describe(&all, &mut text);
            let again = Rights::parse(&all, &text).unwrap();
            let lines = |rights: &Rights| {
                let mut lines = Vec::new();
                rights.lines(&all, &mut lines);
                lines
            };
            assert_eq!(lines(&again), lines(&rights), "{rules}");
        }
        for wrong in ["(+get", "+nosuch", "on", ">password", "~a  ~b"] {
            assert!(Rights::parse(&all, wrong.as_bytes()).is_err(), "{wrong}");
        }
    }

    #[test]
    fn rules_are_four_lines_of_words_for_each_set() {
        let all = Catalogue::default();
        let lines = |rules: &str| {
            let mut lines = Vec::new();
            rights(rules).lines(&all, &mut lines);
            String::from_utf8(lines).unwrap()
        };
        assert_eq!(
            lines("~a* %R~b &c -@all +get +xinfo|stream +echo|x"),
            "+ get xinfo|stream \n echo|x \nba* rb \n&c \n"
        );
        assert_eq!(lines("~* &* +@all -get (%W~d +set)"), "- get \n \n*\n*\n+ set \n \nwd \n\n");
    }
}
