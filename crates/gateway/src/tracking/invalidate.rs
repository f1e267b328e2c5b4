//! Between commands and [`crate::tracking`]: what each reads and writes is noted when it is sent,
//! taken when it is answered, and told to the clients that may have cached it.

use alloc::boxed::Box;
use alloc::vec::Vec;

use concord_client::{Class, Done, Outcome, Request, SubmitError};
use concord_core::{Instant, Now};
use concord_engine::table::UpperName;
use concord_engine::ttl::EXEC_COMMAND;
use concord_engine::{CommandBuf, keys as places, resp, resp_scan};
use concord_wire::rpc::BODY_BYTES_MAX;
use concord_wire::{COMMAND_BYTES_MAX, Flags, FurtherIds, Sink};

use crate::commands::{Handling, class_of};
use crate::connection::{Connection, ConnectionId, Subject};
use crate::gateway::{Gateway, list, taken};
use crate::scripts::locality::may_read;
use crate::state::Core;
use crate::tracking::footprint::{
    DIGESTS_MAX, Digests, Footprint, Seen, add, digest_in, parse_written,
};
use crate::tracking::{CHECK_KEYS, Invalidation};

/// The channel for clients with RESP2.
const CHANNEL: &[u8] = b"__redis__:invalidate";
/// The largest size of a command's digests, in bytes.
const DIGESTS_BYTES_MAX: usize = 64 << 10;

impl Core {
    /// Whether a client, here or at another gateway, tracks keys.
    fn is_tracked(&self) -> bool {
        self.tracking.has_clients() || self.exchange.is_written_asked_for()
    }

    /// The keys that a command reads and writes, if clients have to be told of them.
    pub(crate) fn footprint(
        &self,
        connection: &Connection,
        handling: Handling,
        name: &UpperName,
        args: &[&[u8]],
    ) -> Option<Box<Footprint>> {
        let is_tracked = self.is_tracked();
        let is_watching = connection.watch.is_on() && connection.multi.is_none();
        if !is_tracked && !is_watching {
            return None;
        }
        let mut footprint = Footprint::default();
        let spec = self.setup.table.spec_of(name.bytes(), args.get(1).copied());
        let (reads, writes) = match handling {
            Handling::OneKey(class, _) | Handling::Keys(class) | Handling::AllKeys(class) => {
                (class == Class::Read, class == Class::Write)
            }
            Handling::Several(several) => {
                (several.class == Class::Read, several.class == Class::Write)
            }
            Handling::Cursor => (true, false),
            Handling::Container | Handling::Blocks(_) => {
                let class = spec.and_then(class_of);
                (class == Some(Class::Read), class == Some(Class::Write))
            }
            Handling::Script { by_sha, read_only } => {
                footprint.has_script = true;
                let text = match by_sha {
                    true => self.scripts.get(args[1]).map(|script| &script.text[..]),
                    false => Some(args[1]),
                };
                let reads = text.is_none_or(|text| may_read(text, &self.setup.table));
                (reads, !read_only)
            }
            Handling::Call { read_only } => {
                footprint.has_script = true;
                (true, !read_only)
            }
            _ => return None,
        };
        footprint.flushes = matches!(name.bytes(), b"FLUSHALL" | b"FLUSHDB");
        footprint.deletes = matches!(name.bytes(), b"DEL" | b"UNLINK" | b"GETDEL");
        let keys = match (handling, spec) {
            (Handling::Script { .. } | Handling::Call { .. }, _) => keys_of_script(args),
            (_, Some(spec)) => {
                places::places(spec, name.bytes(), args).into_iter().map(|at| args[at]).collect()
            }
            (_, None) => Vec::new(),
        };
        if reads {
            let tracking = connection.tracking.as_deref();
            footprint.is_own = tracking.is_some_and(|tracking| tracking.remembers_reads());
            let is_own = footprint.is_own;
            let is_wanted = |key: &&&[u8]| is_own || self.tracking.is_broadcast(shown(key));
            keys.iter().filter(is_wanted).for_each(|key| add(&mut footprint.reads, key));
            if is_watching {
                let is_watched = |key: &&&[u8]| connection.watch.has_seen(key);
                keys.iter().filter(is_watched).for_each(|key| add(&mut footprint.watched, key));
                footprint.watch_number = connection.watch.number();
            }
        }
        if writes && is_tracked {
            let written = written_of(name.bytes(), keys);
            written.into_iter().for_each(|key| add(&mut footprint.writes, key));
        }
        (!footprint.is_empty()).then(|| Box::new(footprint))
    }

    /// Whether digests can be asked for together with the command.
    fn can_surround(footprint: &Footprint, bytes: usize) -> bool {
        let digests: usize = footprint.asked().map(|key| key.len() + 40).sum();
        footprint.asks()
            && footprint.asked().len() <= DIGESTS_MAX
            && digests <= DIGESTS_BYTES_MAX
            && bytes + 2 * digests < COMMAND_BYTES_MAX - 64
    }

    /// Asks for digests together with the command that is encoded in `self.command`.
    pub(crate) fn surround(&mut self, footprint: &mut Option<Box<Footprint>>, class: Class) {
        let Some(footprint) = footprint else { return };
        if Self::can_surround(footprint, self.command.bytes().len()) {
            footprint.surround(&mut self.command, class == Class::Write);
        }
    }

    /// The digests with which a transaction of this size begins and ends.
    pub(crate) fn questions(
        &self,
        footprint: &mut Option<Box<Footprint>>,
        bytes: usize,
        writes: bool,
    ) -> Vec<Vec<u8>> {
        let Some(footprint) = footprint else { return Vec::new() };
        if !Self::can_surround(footprint, bytes) {
            return Vec::new();
        }
        footprint.digests = Digests::Exec { behind: writes };
        footprint.questions()
    }

    /// A command ended: its reply loses the digests, and who is to be told is told.
    pub(crate) fn take_footprint(
        &mut self,
        now: Now,
        connection: &mut Connection,
        mut footprint: Box<Footprint>,
        outcome: Outcome,
        reply: &mut Vec<u8>,
    ) {
        let seen = footprint.take_digests(reply);
        if let Some((before, _)) = &seen {
            let digests = footprint.watched.iter().zip(&before[footprint.reads.len()..]);
            digests.for_each(|(key, digest)| {
                connection.watch.read(footprint.watch_number, key, digest);
            });
        }
        let is_alone = footprint.digests == Digests::None;
        let is_error = reply.starts_with(b"-");
        let no_loop = connection.tracking.as_ref().is_some_and(|tracking| tracking.no_loop);
        let (known, unknown) = match seen {
            Some(seen) => sort_reads(&mut footprint, &seen, no_loop),
            // The values may have changed since, and are not to be cached.
            None if is_alone && outcome == Outcome::Reply && !is_error => {
                (Vec::new(), core::mem::take(&mut footprint.reads))
            }
            None => (Vec::new(), Vec::new()),
        };
        let may_have_written = footprint.may_have_written(outcome, reply);
        let is_told = |key: &Vec<u8>| may_have_written && footprint.writes.contains(key);
        let (told, untold): (Vec<_>, Vec<_>) = unknown.into_iter().partition(is_told);
        let id = Some(connection.id).filter(|_| footprint.is_own);
        // With all who have read it before.
        told.iter().for_each(|key| self.tracking.read(now.instant, key, None, id));
        match id {
            Some(id) => self.tracking.tell(id, &untold),
            None => self.tracking.written(&untold, None),
        }
        if may_have_written {
            self.take_writes(now.instant, &footprint, Some(connection.id));
        }
        for (key, digest) in known {
            self.tracking.read(now.instant, &key, Some(&digest), id);
        }
    }

    /// A write ended, whose connection may be gone.
    fn take_writes(&mut self, now: Instant, footprint: &Footprint, by: Option<ConnectionId>) {
        if footprint.flushes {
            self.tracking.flushed();
        } else {
            self.tracking.written(&footprint.writes, by);
        }
        if !footprint.deletes {
            // A client that tracks its prefix may keep the value that it wrote, until that expires.
            footprint.writes.iter().for_each(|key| self.tracking.read(now, key, None, None));
        }
        self.exchange.tell_written(&footprint.writes, footprint.flushes);
    }

    /// A command ended whose connection is gone.
    pub(crate) fn take_orphan(&mut self, now: Now, place: (ConnectionId, u64), done: &Done) {
        let Some(footprint) = self.tracking.orphans.remove(&place) else { return };
        if footprint.may_have_written(done.outcome, &done.reply) {
            self.take_writes(now.instant, &footprint, None);
        }
    }

    /// A command that waited ended whose connection is gone.
    pub(crate) fn take_gone(&mut self, now: Now, id: ConnectionId, done: &Done) {
        let place = self.tracking.orphans.range((id, 0)..=(id, u64::MAX)).next();
        if let Some(place) = place.map(|(place, _)| *place) {
            self.take_orphan(now, place, done);
        }
    }

    /// Handles other gateways' reports of writes.
    fn take_written(&mut self) {
        if core::mem::take(&mut self.exchange.has_lost_contact) {
            self.tracking.lost_contact();
        }
        while let Some(written) = self.exchange.written.pop_front() {
            match parse_written(&written) {
                Some((_, true)) => self.tracking.flushed(),
                Some((keys, false)) => self.tracking.written(&keys, None),
                None => {}
            }
        }
    }

    /// Looks at keys that may be cached.
    pub(crate) fn check_tracked(&mut self, now: Now, sink: &mut impl Sink) {
        loop {
            let due = self.tracking.next_due(now.instant);
            if due.is_empty() {
                return;
            }
            debug_assert!(due.len() <= CHECK_KEYS, "as many as a request has objects");
            let ask = |key: &[u8]| {
                CommandBuf::new().encode(2, [&b"DEBUG"[..], b"DIGEST-VALUE", key]).to_vec()
            };
            let questions: Vec<Vec<u8>> = due.iter().map(|(key, _)| ask(key)).collect();
            let parts = [EXEC_COMMAND].into_iter().chain(questions.iter().map(Vec::as_slice));
            let command = self.command.encode(0, parts);
            let (mut flags, mut obj_id, mut further) =
                (Flags(0), Default::default(), FurtherIds::NONE);
            match Subject::of_keys(due.iter().map(|(key, _)| &key[..])) {
                Subject::Object(first) => obj_id = first,
                Subject::Objects(first, others) => (obj_id, further) = (first, others),
                Subject::AllKeys => flags = flags.with(Flags::WILDCARD),
            }
            // As with a client's read, one that does not fit a packet goes the way of writes.
            let class = if command.len() <= BODY_BYTES_MAX { Class::Read } else { Class::Write };
            let request = Request { class, obj_id, further, flags, after: None, command };
            match self.client.submit(now, request, sink) {
                Ok(number) => drop(self.tracking.checks.insert(number.0, due)),
                Err(SubmitError::Full) => return self.tracking.put_back(now.instant, due),
                Err(SubmitError::TooLarge) => due.iter().for_each(|(key, number)| {
                    self.tracking.looked(now.instant, key, *number, None)
                }),
            }
        }
    }

    /// Keys were looked at; false: this was something else.
    #[inline]
    pub(crate) fn take_check(&mut self, now: Now, done: &Done) -> bool {
        let Some(keys) = taken(&mut self.tracking.checks, done.request) else { return false };
        let mut digests = resp_scan::elements(&done.reply);
        for (key, number) in keys {
            let digest = match done.outcome {
                Outcome::Reply => digests.next().map(digest_in).filter(|d| !d.is_empty()),
                _ => None,
            };
            self.tracking.looked(now.instant, &key, number, digest.as_deref());
        }
        true
    }
}

/// Keys with their digests.
type Known = Vec<(Vec<u8>, Vec<u8>)>;

/// The keys that a command has read, with their digests, and those that may have changed since.
fn sort_reads(
    footprint: &mut Footprint,
    (before, behind): &Seen,
    no_loop: bool,
) -> (Known, Vec<Vec<u8>>) {
    let (mut known, mut unknown, mut changed) = (Vec::new(), Vec::new(), Vec::new());
    for ((key, before), behind) in footprint.reads.iter().zip(before).zip(behind) {
        if before != behind {
            changed.push(key.clone());
        }
        let is_written =
            before != behind || !footprint.has_script && footprint.writes.contains(key);
        // Unless the client knows its own writes.
        if before.is_empty() || behind.is_empty() || is_written && !no_loop {
            unknown.push(key.clone());
        } else {
            known.push((key.clone(), behind.clone()));
        }
    }
    if footprint.has_script {
        let reads = &footprint.reads;
        footprint.writes.retain(|key| changed.contains(key) || !reads.contains(key));
    }
    (known, unknown)
}

/// A key as clients name it.
fn shown(key: &[u8]) -> &[u8] {
    concord_engine::databases::own_name(key)
}

/// The keys that a script declares.
fn keys_of_script<'a>(args: &[&'a [u8]]) -> Vec<&'a [u8]> {
    let count = args.get(2).and_then(|count| resp::number(count));
    let count = count.and_then(|count| usize::try_from(count).ok()).unwrap_or(0);
    args.get(3..).and_then(|rest| rest.get(..count)).unwrap_or_default().to_vec()
}

/// The keys that a write changes.
fn written_of<'a>(name: &[u8], keys: Vec<&'a [u8]>) -> Vec<&'a [u8]> {
    match name {
        b"SINTERSTORE" | b"SUNIONSTORE" | b"SDIFFSTORE" | b"ZUNIONSTORE" | b"ZINTERSTORE"
        | b"ZDIFFSTORE" | b"ZRANGESTORE" | b"GEOSEARCHSTORE" | b"BITOP" | b"PFMERGE" => {
            keys.into_iter().take(1).collect()
        }
        b"COPY" | b"SORT" => keys.into_iter().skip(1).collect(),
        _ => keys,
    }
}

/// The message to a client, in its protocol; `None` if it could not tell it from a reply.
fn encode(keys: Option<&[Vec<u8>]>, target: &Connection) -> Option<Vec<u8>> {
    let mut out = Vec::new();
    if target.resp3 {
        resp::push(&mut out, 2);
        resp::bulk(&mut out, b"invalidate");
    } else if target.subscriber.is_empty() {
        return None;
    } else {
        resp::array(&mut out, 3);
        resp::bulk(&mut out, b"message");
        resp::bulk(&mut out, CHANNEL);
    }
    match keys {
        None => resp::null(&mut out, target.resp3),
        Some(keys) => {
            resp::array(&mut out, keys.len());
            keys.iter().for_each(|key| resp::bulk(&mut out, key));
        }
    }
    Some(out)
}

impl Gateway {
    /// Tells clients what they must not keep.
    pub(crate) fn invalidate(&mut self, now: Now) {
        self.core.take_written();
        while let Some(one) = self.core.tracking.outbox.pop_front() {
            self.tell(now, &one);
        }
    }

    fn tell(&mut self, now: Now, one: &Invalidation) {
        let Some(connection) = self.connections.get_mut(&one.to) else { return };
        let Some(tracking) = connection.tracking.as_deref_mut() else { return };
        let Some(redirect) = tracking.redirect else {
            // A client that could not tell it from a reply is not told, as in Redis.
            if connection.resp3 {
                self.push(now, one.to, one.keys.as_deref());
            }
            return;
        };
        if self.connections.get(&redirect).is_some_and(|c| !c.closing) {
            return self.push(now, redirect, one.keys.as_deref());
        }
        let Some(connection) = self.connections.get_mut(&one.to) else { return };
        if let Some(tracking) = &mut connection.tracking {
            tracking.is_broken = true;
        }
        if connection.resp3 {
            let mut out = Vec::new();
            resp::push(&mut out, 2);
            resp::bulk(&mut out, b"tracking-redir-broken");
            resp::integer(&mut out, redirect.0 as i64);
            connection.push_behind(out);
            self.core.memory.note(now.instant, connection);
            list(&mut self.ready, connection);
        }
    }

    fn push(&mut self, now: Now, to: ConnectionId, keys: Option<&[Vec<u8>]>) {
        let Some(connection) = self.connections.get_mut(&to).filter(|c| !c.is_given_up) else {
            return;
        };
        let Some(bytes) = encode(keys, connection) else { return };
        connection.push_behind(bytes);
        self.core.count.invalidations += 1;
        self.core.give_up_if_slow(now.instant, connection);
        self.core.memory.note(now.instant, connection);
        list(&mut self.ready, connection);
    }
}
