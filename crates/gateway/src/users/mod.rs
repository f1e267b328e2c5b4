//! The users, at this gateway. The rack keeps them for all gateways, as one text
//! ([`concord_engine::users`]): a line for each, as in ACL LIST. A gateway changes them by a write
//! that succeeds only if they are as it knows them, tells the other gateways, and asks the rack
//! each second whether they changed.

pub(crate) mod access;
pub(crate) mod acl;
pub(crate) mod sharing;
pub(crate) mod user;

use alloc::collections::{BTreeMap, VecDeque};
use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;

use concord_core::{Duration, Instant, Now, RequestNumber, SEC};
use concord_engine::acl::Catalogue;
use concord_engine::acl::sent::{self, RULES_BYTES_MAX};
use concord_engine::events::Classes;
use concord_engine::users::USERS_BYTES_MAX;
use concord_engine::{resp, resp_scan};
use sha2::{Digest, Sha256};

use crate::commands::Failure;
use crate::connection::id::ConnectionId;
use crate::users::user::{User, hex};

/// The user of a connection that has not logged in.
pub(crate) const DEFAULT: &[u8] = b"default";
/// Time between two questions whether users have changed.
const ASK_NS: Duration = SEC;
/// Entries of ACL LOG of the same kind are one within this time.
const ALIKE_MS: u64 = 60_000;
/// The default for the largest number of entries of ACL LOG (`acllog-max-len`).
const LOG_MAX: usize = 128;

/// The number of users whose encoded rules are cached.
const SENT_RULES_MAX: usize = 256;

/// All users by name.
pub(crate) type Table = BTreeMap<Vec<u8>, Arc<User>>;

/// Something that changes users.
#[derive(Clone, Debug)]
pub(crate) enum Change {
    /// ACL SETUSER: a user, and rules.
    Set(Vec<u8>, Vec<Vec<u8>>),
    /// ACL DELUSER.
    Delete(Vec<Vec<u8>>),
    /// CONFIG SET of what is the rack's: `requirepass`, and which keyspace events are wanted.
    Config(Option<Vec<u8>>, Option<Classes>),
}

/// A change that a client waits for, in this slot of its connection.
#[derive(Clone, Debug)]
pub(crate) struct PendingChange {
    pub id: ConnectionId,
    pub slot: u64,
    pub change: Change,
}

/// A change that was sent to the rack: what is true if it is accepted, and what is answered then.
#[derive(Debug)]
pub(crate) struct Sent {
    pub request: RequestNumber,
    /// The version that it is made to.
    pub known: u64,
    pub asked: PendingChange,
    pub text: Vec<u8>,
    pub reply: Vec<u8>,
}

/// An entry of ACL LOG.
#[derive(Clone, Debug)]
pub(crate) struct LogEntry {
    pub count: u64,
    pub reason: &'static str,
    pub context: &'static str,
    pub object: Vec<u8>,
    pub user: Vec<u8>,
    pub at_ms: u64,
    /// The client, as CLIENT LIST shows it.
    pub client: String,
}

/// The users, and the changes in progress.
#[derive(Debug)]
pub(crate) struct Users {
    pub catalogue: Catalogue,
    table: Table,
    /// Which keyspace events are wanted ([`crate::pubsub::events`]): a line of the text, since all
    /// gateways share it.
    wanted: Classes,
    /// The default user, if the rack keeps no other: `requirepass` says its password.
    initial: Arc<User>,
    version: u64,
    /// The rack keeps them.
    is_shared: bool,
    is_known: bool,
    /// Whether they have just become known.
    is_news: bool,
    pub changes: VecDeque<PendingChange>,
    pub sent: Option<Sent>,
    pub question: Option<(RequestNumber, u64)>,
    ask_at: Instant,
    /// Rules as they are sent with scripts, of those who have run some.
    sent_rules: BTreeMap<Vec<u8>, (Arc<User>, Vec<u8>)>,
    log: VecDeque<LogEntry>,
    pub log_max: usize,
    /// The secret from which passwords are drawn.
    secret: Vec<u8>,
    drawn: u64,
}

impl Users {
    /// The default user alone, with this password or none; of no rack yet.
    pub(crate) fn new(password: Option<&[u8]>, seed: u64) -> Users {
        let initial = Arc::new(User::all_powerful(DEFAULT, password));
        let table = [(DEFAULT.to_vec(), initial.clone())].into_iter().collect();
        Users {
            catalogue: Catalogue::default(),
            table,
            wanted: Classes::default(),
            initial,
            version: 0,
            is_shared: false,
            is_known: true,
            is_news: false,
            changes: VecDeque::new(),
            sent: None,
            question: None,
            ask_at: Instant(0),
            sent_rules: BTreeMap::new(),
            log: VecDeque::new(),
            log_max: LOG_MAX,
            secret: seed.to_be_bytes().to_vec(),
            drawn: 0,
        }
    }

    /// Shares the users with the rack from now on: no client is served until the rack has sent
    /// them.
    pub(crate) fn share(&mut self, secret: &[u8]) {
        (self.is_shared, self.is_known) = (true, false);
        self.secret = secret.to_vec();
    }

    pub(crate) fn is_shared(&self) -> bool {
        self.is_shared
    }

    pub(crate) fn are_known(&self) -> bool {
        self.is_known
    }

    pub(crate) fn version(&self) -> u64 {
        self.version
    }

    pub(crate) fn table(&self) -> &Table {
        &self.table
    }

    pub(crate) fn wanted(&self) -> Classes {
        self.wanted
    }

    pub(crate) fn find(&self, name: &[u8]) -> Option<&Arc<User>> {
        self.table.get(name)
    }

    pub(crate) fn default_user(&self) -> Arc<User> {
        self.table.get(DEFAULT).unwrap_or(&self.initial).clone()
    }

    /// Whether the rack keeps another password of the default user than this gateway was started
    /// with: that one counts.
    pub(crate) fn keep_another_password(&self) -> bool {
        let (kept, own) = (self.table.get(DEFAULT).unwrap_or(&self.initial), &self.initial);
        self.is_known && (kept.no_password, &kept.passwords) != (own.no_password, &own.passwords)
    }

    /// Whether clients need no password.
    pub(crate) fn are_open(&self) -> bool {
        let user = self.table.get(DEFAULT).unwrap_or(&self.initial);
        user.is_on && user.no_password
    }

    /// The user, if the password is right.
    pub(crate) fn log_in(&self, name: &[u8], password: &[u8]) -> Option<Arc<User>> {
        self.table.get(name).filter(|user| user.accepts(password)).cloned()
    }

    /// The argument that says what a user may do who runs a script; none if that is everything.
    pub(crate) fn rules_of(&mut self, user: &Arc<User>) -> Result<Option<&[u8]>, Failure> {
        if user.may_all() {
            return Ok(None);
        }
        let known = self.sent_rules.get(&user.name);
        if !known.is_some_and(|(own, _)| Arc::ptr_eq(own, user)) {
            let mut rules = Vec::new();
            user.rights.describe(&self.catalogue, &mut rules);
            if rules.len() > RULES_BYTES_MAX {
                return Err("ERR the rules of this user take more than 16 KiB: with such rules Concord runs no scripts \
                     and functions"
                    .into());
            }
            if self.sent_rules.len() >= SENT_RULES_MAX {
                self.sent_rules.clear();
            }
            self.sent_rules.insert(user.name.clone(), (user.clone(), sent::argument(&rules)));
        }
        Ok(self.sent_rules.get(&user.name).map(|(_, rules)| &rules[..]))
    }

    /// Whether this request is about users.
    pub(crate) fn is_asked(&self, request: RequestNumber) -> bool {
        self.question.is_some_and(|(own, _)| own == request)
            || self.sent.as_ref().is_some_and(|sent| sent.request == request)
    }

    /// Whether the rack is to be asked.
    pub(crate) fn must_ask(&self, now: Instant) -> bool {
        self.is_shared && self.question.is_none() && now >= self.ask_at
    }

    pub(crate) fn deadline(&self) -> Instant {
        match self.is_shared && self.question.is_none() {
            true => self.ask_at,
            false => Instant(u64::MAX),
        }
    }

    /// The question was answered, or not.
    pub(crate) fn answered(&mut self, now: Instant, was_told: bool) {
        self.question = None;
        self.ask_at = now.after(ASK_NS);
        self.is_news |= was_told && !self.is_known;
        self.is_known |= was_told;
    }

    /// Whether they have become known since the last call.
    pub(crate) fn take_news(&mut self) -> bool {
        core::mem::take(&mut self.is_news)
    }

    /// The text that the rack keeps: the default user is in it only if it is not as `requirepass`
    /// says.
    pub(crate) fn text_of(&self, table: &Table, wanted: Classes) -> Vec<u8> {
        let kept = table.values().filter(|user| **user != self.initial);
        let lines = kept.map(|user| user.describe(&self.catalogue));
        let lines: Vec<Vec<u8>> = lines.chain(wanted.line()).collect();
        lines.join(&b'\n')
    }

    /// Parses such a text. A user whose line has a rule that is not known here, written by a newer
    /// gateway, may do nothing.
    fn table_of(&self, text: &[u8]) -> Table {
        let mut table: Table = [(DEFAULT.to_vec(), self.initial.clone())].into_iter().collect();
        for line in text.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
            let words: Vec<&[u8]> = line.split(|byte| *byte == b' ').collect();
            if let [b"user", name, rules @ ..] = &words[..] {
                let mut user = User::new(name);
                let _ = user.apply_all(&self.catalogue, rules);
                table.insert(name.to_vec(), Arc::new(user));
            }
        }
        table
    }

    /// Takes the rack's text. Returns false if it was known. `asked_at` is the version that was
    /// known when the rack was asked: if the rack has an older one, it has lost the newer (its
    /// disks are synced each second, or it was founded anew).
    pub(crate) fn install(&mut self, version: u64, text: &[u8], asked_at: u64) -> bool {
        if version <= self.version && version >= asked_at {
            return false;
        }
        self.table = self.table_of(text);
        self.wanted = Classes::of_text(text);
        self.version = version;
        true
    }

    /// The result of a change: the new text and the reply. Nothing is changed yet.
    pub(crate) fn try_change(&self, change: &Change) -> Result<(Vec<u8>, Vec<u8>), Failure> {
        let (mut table, mut wanted, mut reply) = (self.table.clone(), self.wanted, Vec::new());
        let mut set = |name: &[u8], rules: &[&[u8]]| {
            let known = table.get(name).map(|user| (**user).clone());
            let mut user = known.unwrap_or_else(|| User::new(name));
            user.apply_all(&self.catalogue, rules)?;
            table.insert(name.to_vec(), Arc::new(user));
            Ok::<(), String>(())
        };
        match change {
            Change::Set(name, rules) => {
                let rules: Vec<&[u8]> = rules.iter().map(Vec::as_slice).collect();
                set(name, &rules).map_err(|text| Failure::from(format!("ERR {text}")))?;
                reply.extend_from_slice(resp::OK);
            }
            Change::Config(password, classes) => {
                if let Some(password) = password {
                    let rule = [b">", &password[..]].concat();
                    let rules: [&[u8]; 2] = if password.is_empty() {
                        [b"resetpass", b"nopass"]
                    } else {
                        [b"resetpass", &rule]
                    };
                    set(DEFAULT, &rules)?;
                }
                wanted = classes.unwrap_or(wanted);
                reply.extend_from_slice(resp::OK);
            }
            Change::Delete(names) => {
                let count = names.iter().filter(|name| table.remove(*name).is_some()).count();
                resp::integer(&mut reply, count as i64);
            }
        }
        let text = self.text_of(&table, wanted);
        // The rack keeps the text: read again, it must say the same.
        if self.text_of(&self.table_of(&text), Classes::of_text(&text)) != text {
            return Err("ERR these rules cannot be kept (Concord)".into());
        }
        if text.len() > USERS_BYTES_MAX {
            return Err("ERR all users take more than 512 KiB (Concord's limit)".into());
        }
        Ok((text, reply))
    }

    /// Random hexadecimal digits that cannot be guessed.
    pub(crate) fn draw(&mut self, digits: usize) -> String {
        let mut drawn = String::new();
        while drawn.len() < digits {
            self.drawn += 1;
            let seed = [&self.secret[..], &self.drawn.to_be_bytes()].concat();
            drawn.push_str(&hex(&Sha256::digest(&seed)));
        }
        drawn.truncate(digits);
        drawn
    }

    /// A client was refused something.
    pub(crate) fn note(&mut self, entry: LogEntry) {
        let is_alike = |own: &LogEntry| {
            (own.reason, own.context, &own.object, &own.user)
                == (entry.reason, entry.context, &entry.object, &entry.user)
                && entry.at_ms.saturating_sub(own.at_ms) <= ALIKE_MS
        };
        let before = self.log.iter().position(is_alike);
        let before = before.and_then(|at| self.log.remove(at)).map_or(0, |own| own.count);
        self.log.push_front(LogEntry { count: before + 1, ..entry });
        self.log.truncate(self.log_max);
    }

    pub(crate) fn log(&self) -> impl Iterator<Item = &LogEntry> {
        self.log.iter()
    }

    pub(crate) fn clear_log(&mut self) {
        self.log.clear();
    }

    pub(crate) fn set_log_max(&mut self, most: usize) {
        self.log_max = most;
        self.log.truncate(most);
    }
}

/// The version and text in the rack's answer, or in another gateway's report.
pub(crate) fn version_and_text(reply: &[u8]) -> Option<(u64, &[u8])> {
    let mut elements = resp_scan::elements(reply);
    let version = elements.next()?.strip_prefix(b":")?;
    let version = resp::number(version.strip_suffix(b"\r\n")?)?;
    Some((u64::try_from(version).ok()?, resp::bulk_payload(elements.next()?)?))
}

/// When it is now, for ACL LOG.
pub(crate) fn log_ms(now: Now) -> u64 {
    now.unix_ms
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(name: &str, rules: &str) -> Change {
        let rules = rules.split(' ').map(|rule| rule.as_bytes().to_vec()).collect();
        Change::Set(name.as_bytes().to_vec(), rules)
    }

    #[test]
    fn what_one_gateway_writes_another_reads() {
        let (mut one, mut other) = (Users::new(None, 1), Users::new(Some(b"pass"), 2));
        let (text, reply) = one.try_change(&set("bob", "on >pw ~a* +get (~b +set)")).unwrap();
        assert_eq!(reply, resp::OK);
        assert!(one.find(b"bob").is_none(), "not yet");
        assert!(
            one.install(1, &text, 0) && other.install(1, &text, 0) && !other.install(1, b"", 1)
        );
        assert_eq!(one.find(b"bob"), other.find(b"bob"));
        assert!(other.log_in(b"bob", b"pw").is_some() && other.log_in(b"bob", b"no").is_none());
        // The default user is each gateway's own, until somebody changes it.
        assert!(one.are_open() && !other.are_open());
        let (text, _) = one.try_change(&Change::Config(Some(b"new".to_vec()), None)).unwrap();
        assert!(one.install(2, &text, 1) && other.install(2, &text, 1));
        assert!(
            other.log_in(DEFAULT, b"new").is_some() && other.log_in(DEFAULT, b"pass").is_none()
        );
        let (text, reply) = one.try_change(&Change::Delete(alloc::vec![b"bob".to_vec()])).unwrap();
        assert_eq!(reply, b":1\r\n");
        assert!(other.install(3, &text, 2) && other.find(b"bob").is_none());
        // A line of the future gives nobody anything.
        other.install(4, b"user eve on nopass ~* &* +@all somehow", 3);
        assert!(other.log_in(b"eve", b"").is_none());
        // What is late is not taken; what the rack says that has lost the newer is.
        assert!(!other.install(2, b"", 2) && other.install(2, b"", 4) && other.version() == 2);
    }

    #[test]
    fn bug_18_40_rules_are_read_as_they_were_given_or_refused() {
        let mut users = Users::new(None, 1);
        for (version, rules) in
            [(1, "on nopass %RW~* ~a +@all"), (2, "reset on nopass %R~* %W~* ~b -@all +get")]
        {
            let (text, _) = users.try_change(&set("a", rules)).unwrap();
            assert!(users.install(version, &text, version - 1));
            assert!(users.log_in(b"a", b"").is_some(), "{rules}");
        }
        let one = |rule: &str| Change::Set(b"a".to_vec(), alloc::vec![rule.as_bytes().to_vec()]);
        for rule in ["+get|a b", "+get|a\nuser evil on nopass ~* &* +@all", "+get|a)", "(~a) +get)"]
        {
            assert!(users.try_change(&one(rule)).is_err(), "{rule}");
        }
    }

    #[test]
    fn refusals_that_are_alike_are_one_entry() {
        let mut users = Users::new(None, 1);
        users.log_max = 2;
        let entry = |object: &str, at_ms| LogEntry {
            count: 0,
            reason: "key",
            context: "toplevel",
            object: object.as_bytes().to_vec(),
            user: b"u".to_vec(),
            at_ms,
            client: String::new(),
        };
        for (object, at_ms) in [("a", 0), ("b", 1), ("a", 2), ("a", 70_000)] {
            users.note(entry(object, at_ms));
        }
        let log: Vec<_> = users.log().map(|own| (own.count, own.object.clone())).collect();
        assert_eq!(log, [(1, b"a".to_vec()), (2, b"a".to_vec())]);
    }
}
