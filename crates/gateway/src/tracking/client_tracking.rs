//! CLIENT TRACKING, CACHING and TRACKINGINFO.

use alloc::boxed::Box;
use alloc::collections::BTreeSet;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use concord_client::Class;
use concord_engine::resp;
use concord_engine::table::UpperName;

use crate::commands::Failure;
use crate::connection::subscriptions::Sort;
use crate::connection::{Connection, ConnectionId, Slot, SlotState, Subject};
use crate::pubsub::channels::Waits;
use crate::state::{CommandContext, Core};
use crate::tracking::ClientTracking;

const SYNTAX: &str = "ERR syntax error";
/// The largest total size of a client's prefixes, in bytes.
const PREFIXES_BYTES_MAX: usize = 64 << 10;

impl Connection {
    /// CLIENT GETREDIR: the client that is told instead; 0 for none, -1 without tracking.
    pub(crate) fn redirect(&self) -> i64 {
        let Some(tracking) = &self.tracking else { return -1 };
        tracking.redirect.map_or(0, |id| id.0 as i64)
    }
}

impl Core {
    /// CLIENT TRACKING ON|OFF [REDIRECT id] [PREFIX prefix ...] [BCAST] [OPTIN] [OPTOUT] [NOLOOP]
    pub(crate) fn client_tracking(
        &mut self,
        call: &mut CommandContext<'_>,
        args: &[&[u8]],
    ) -> Result<(), Failure> {
        let (mut wanted, mut prefixes, mut is_broadcast) =
            (ClientTracking::default(), Vec::new(), false);
        let mut rest = &args[1..];
        while let [word, behind @ ..] = rest {
            rest = behind;
            match (UpperName::of(word).bytes(), behind) {
                (b"REDIRECT", [id, behind @ ..]) => {
                    rest = behind;
                    if wanted.redirect.is_some() {
                        let text = "ERR A client can only redirect to a single other client";
                        return Err(text.into());
                    }
                    let id = resp::number(id);
                    let id = id.ok_or("ERR value is not an integer or out of range")?;
                    wanted.redirect = Some(find(call, id)?);
                }
                (b"PREFIX", [prefix, behind @ ..]) => {
                    rest = behind;
                    prefixes.push(prefix.to_vec());
                }
                (b"BCAST", _) => is_broadcast = true,
                (b"OPTIN", _) => wanted.opts_in = true,
                (b"OPTOUT", _) => wanted.opts_out = true,
                (b"NOLOOP", _) => wanted.no_loop = true,
                _ => return Err(SYNTAX.into()),
            }
        }
        match UpperName::of(args[0]).bytes() {
            b"ON" => {}
            b"OFF" => {
                self.end_tracking(call.connection);
                call.connection.ok();
                return Ok(());
            }
            _ => return Err(SYNTAX.into()),
        }
        let old = call.connection.tracking.as_deref();
        check(&wanted, is_broadcast, &prefixes, old)?;
        if is_broadcast {
            let mut all = old.and_then(|old| old.prefixes.clone()).unwrap_or_default();
            check_prefixes(&prefixes, &all)?;
            if prefixes.is_empty() {
                prefixes.push(Vec::new());
            }
            all.extend(prefixes);
            wanted.prefixes = Some(all);
        }
        let had_clients = self.tracking.has_clients();
        self.tracking.begin(call.connection.id, &wanted);
        call.connection.tracking = Some(Box::new(wanted));
        let until = match had_clients {
            true => Vec::new(),
            false => {
                let count = self.exchange.channels.ask(Sort::Written, b"");
                self.exchange.tell(&[(Sort::Written, b"", count)])
            }
        };
        self.ok_when_heard(call, &until);
        Ok(())
    }

    /// Answers once the other gateways have heard what they are to tell from now on.
    fn ok_when_heard(&mut self, call: &mut CommandContext<'_>, until: &[(usize, u64)]) {
        if until.is_empty() || call.connection.multi.is_some() {
            return call.connection.ok();
        }
        let connection = &mut *call.connection;
        let slot = connection.next_slot();
        self.exchange.wait(Waits::Published { id: connection.id, slot }, until);
        connection.ready_bytes += resp::OK.len();
        let waiting = Slot::waiting(Class::Read, Subject::AllKeys, connection.resp3);
        let state = SlotState::Gated(resp::OK.to_vec());
        connection.push_slot(Slot { state, ..waiting });
    }

    /// A connection tracks nothing any more.
    pub(crate) fn end_tracking(&mut self, connection: &mut Connection) {
        if connection.tracking.take().is_none() {
            return;
        }
        self.tracking.end(connection.id);
        if !self.tracking.has_clients() {
            let count = self.exchange.channels.end(Sort::Written, b"", connection.id);
            self.exchange.tell(&[(Sort::Written, b"", count)]);
        }
    }

    /// CLIENT CACHING YES|NO
    pub(crate) fn client_caching(
        &mut self,
        call: &mut CommandContext<'_>,
        how: &[u8],
    ) -> Result<(), Failure> {
        let tracking = call.connection.tracking.as_deref_mut();
        let Some(tracking) = tracking.filter(|tracking| tracking.opts_in || tracking.opts_out)
        else {
            return Err(
                "ERR CLIENT CACHING can be called only when the client is in tracking mode \
                        with OPTIN or OPTOUT mode enabled"
                    .into(),
            );
        };
        match UpperName::of(how).bytes() {
            b"YES" if tracking.opts_in => tracking.caching = Some(true),
            b"NO" if tracking.opts_out => tracking.caching = Some(false),
            b"YES" => {
                let text = "ERR CLIENT CACHING YES is only valid when tracking is enabled in \
                            OPTIN mode.";
                return Err(text.into());
            }
            b"NO" => {
                let text = "ERR CLIENT CACHING NO is only valid when tracking is enabled in \
                            OPTOUT mode.";
                return Err(text.into());
            }
            _ => return Err(SYNTAX.into()),
        }
        call.connection.ok();
        Ok(())
    }

    /// CLIENT TRACKINGINFO
    pub(crate) fn tracking_info(&mut self, call: &mut CommandContext<'_>) {
        let (redirect, resp3) = (call.connection.redirect(), call.connection.resp3);
        let tracking = call.connection.tracking.clone().unwrap_or_default();
        let is_on = call.connection.tracking.is_some();
        let flags = [
            ("off", !is_on),
            ("on", is_on),
            ("bcast", tracking.prefixes.is_some()),
            ("optin", tracking.opts_in),
            ("caching-yes", tracking.opts_in && tracking.caching == Some(true)),
            ("optout", tracking.opts_out),
            ("caching-no", tracking.opts_out && tracking.caching == Some(false)),
            ("noloop", tracking.no_loop),
            ("broken_redirect", tracking.is_broken),
        ];
        let flags: Vec<&str> = flags.iter().filter(|flag| flag.1).map(|flag| flag.0).collect();
        let prefixes = tracking.prefixes.unwrap_or_default();
        call.connection.answer(|out| {
            resp::map(out, 3, resp3);
            resp::bulk(out, b"flags");
            resp::set(out, flags.len(), resp3);
            flags.iter().for_each(|flag| resp::bulk(out, flag.as_bytes()));
            resp::bulk(out, b"redirect");
            resp::integer(out, redirect);
            resp::bulk(out, b"prefixes");
            resp::array(out, prefixes.len());
            prefixes.iter().for_each(|prefix| resp::bulk(out, prefix));
        });
    }
}

/// A client of this gateway.
fn find(call: &CommandContext<'_>, id: i64) -> Result<ConnectionId, Failure> {
    let id = u64::try_from(id).map(ConnectionId).ok();
    let is_there = |id: &ConnectionId| {
        *id == call.connection.id || call.others.get(id).is_some_and(|c| !c.is_given_up)
    };
    let text = "ERR The client ID you want redirect to does not exist";
    id.filter(is_there).ok_or_else(|| text.into())
}

fn check(
    wanted: &ClientTracking,
    is_broadcast: bool,
    prefixes: &[Vec<u8>],
    old: Option<&ClientTracking>,
) -> Result<(), Failure> {
    if !is_broadcast && !prefixes.is_empty() {
        return Err("ERR PREFIX option requires BCAST mode to be enabled".into());
    }
    if old.is_some_and(|old| old.prefixes.is_some() != is_broadcast) {
        return Err("ERR You can't switch BCAST mode on/off before disabling tracking for this \
                    client, and then re-enabling it with a different mode."
            .into());
    }
    if is_broadcast && (wanted.opts_in || wanted.opts_out) {
        return Err("ERR OPTIN and OPTOUT are not compatible with BCAST".into());
    }
    if wanted.opts_in && wanted.opts_out {
        return Err("ERR You can't specify both OPTIN mode and OPTOUT mode".into());
    }
    let is_other =
        |old: &ClientTracking| wanted.opts_in && old.opts_out || wanted.opts_out && old.opts_in;
    if old.is_some_and(is_other) {
        return Err("ERR You can't switch OPTIN/OPTOUT mode before disabling tracking for this \
                    client, and then re-enabling it with a different mode."
            .into());
    }
    Ok(())
}

fn check_prefixes(new: &[Vec<u8>], old: &BTreeSet<Vec<u8>>) -> Result<(), Failure> {
    let overlap = |a: &[u8], b: &[u8]| a.starts_with(b) || b.starts_with(a);
    let failure = |prefix: &[u8], with: &str, other: &[u8]| -> Failure {
        let [prefix, other] = [prefix, other].map(String::from_utf8_lossy);
        format!(
            "ERR Prefix '{prefix}' overlaps with {with} prefix '{other}'. Prefixes for a single \
             client must not overlap."
        )
        .into()
    };
    for (at, prefix) in new.iter().enumerate() {
        if let Some(other) = old.iter().find(|other| overlap(prefix, other)) {
            return Err(failure(prefix, "an existing", other));
        }
        if let Some(other) = new[at + 1..].iter().find(|other| overlap(prefix, other)) {
            return Err(failure(prefix, "another provided", other));
        }
    }
    let bytes: usize = new.iter().chain(old).map(Vec::len).sum();
    if bytes > PREFIXES_BYTES_MAX {
        return Err("ERR the prefixes take more than 64 KiB (Concord's limit)".into());
    }
    Ok(())
}
