//! The path of keyspace events from the rack to those who listen here ([`crate::pubsub::events`]).

use alloc::format;
use alloc::vec::Vec;

use concord_client::{Class, Done, Outcome, Request, Size};
use concord_core::{Now, ObjectId};
use concord_engine::databases::{of_key, own_name};
use concord_engine::events::{EVENTS_COMMAND, Heard, read};
use concord_wire::{Flags, FurtherIds, Sink};

use crate::connection::subscriptions::{Message, Sort};
use crate::gateway::Gateway;
use crate::pubsub::channels::Waits;

impl Gateway {
    /// Asks the rack for events, if there are subscribers here.
    pub(crate) fn look_after_events(&mut self, now: Now, sink: &mut impl Sink) {
        let core = &mut self.core;
        let Some(behind) = core.events.next_question(now.instant) else { return };
        if !core.client.has_room(Class::Read, Size::Small) {
            return core.events.sent(now.instant, None);
        }
        let command = match behind {
            None => core.command.encode(0, [EVENTS_COMMAND, b"END"]),
            Some(place) => {
                let (position, index) = (format!("{}", place.position), format!("{}", place.index));
                let args = [EVENTS_COMMAND, b"GET", position.as_bytes(), index.as_bytes()];
                core.command.encode(0, args)
            }
        };
        let (obj_id, further, flags) = (ObjectId(0), FurtherIds::NONE, Flags::WILDCARD);
        let request = Request { class: Class::Read, obj_id, further, flags, after: None, command };
        let request = core.client.submit(now, request, sink).ok();
        core.events.sent(now.instant, request);
    }

    /// The rack answered what happened to keys.
    pub(crate) fn take_events(&mut self, now: Now, done: &Done, sink: &mut impl Sink) {
        let found = read(&done.reply).filter(|_| done.outcome == Outcome::Reply);
        let up_to = found.as_ref().map(|(place, has_more, _)| (*place, *has_more));
        let is_told = self.core.events.answered(now.instant, up_to);
        for event in found.into_iter().filter(|_| is_told).flat_map(|(_, _, events)| events) {
            for message in messages(&event) {
                self.deliver(now, &message);
            }
        }
        while let Some(id) = self.core.events.next_begun() {
            self.heard(now, Waits::Subscribed(id), sink);
        }
    }
}

/// The messages of an event: the one by its key first, as in Redis.
fn messages(event: &Heard) -> Vec<Message> {
    let (database, key) = (of_key(&event.key), own_name(&event.key));
    let channel =
        |kind: &str, name: &[u8]| [format!("__{kind}@{database}__:").as_bytes(), name].concat();
    let by_key = event.by_key.then(|| (channel("keyspace", key), event.name.clone()));
    let by_event = event.by_event.then(|| (channel("keyevent", &event.name), key.to_vec()));
    let message = |(channel, payload)| Message { sort: Sort::Channel, channel, payload };
    by_key.into_iter().chain(by_event).map(message).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_told_by_key_and_by_event() {
        let key = concord_engine::databases::stored(9, b"k").into_owned();
        let event = Heard { name: b"set".to_vec(), key, by_key: true, by_event: true };
        let told = |event: &Heard| -> Vec<(Vec<u8>, Vec<u8>)> {
            messages(event).into_iter().map(|m| (m.channel, m.payload)).collect()
        };
        let by_key = (b"__keyspace@9__:k".to_vec(), b"set".to_vec());
        let by_event = (b"__keyevent@9__:set".to_vec(), b"k".to_vec());
        assert_eq!(told(&event), [by_key, by_event.clone()]);
        assert_eq!(told(&Heard { by_key: false, ..event }), [by_event]);
    }
}
