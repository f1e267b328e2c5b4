//! The subjects of packets, and helpers that describe requests and messages in words.

use concord_wire::rpc::READ_BIT;
use concord_wire::{Flags, Op, Repr, Status};

/// The subject of a packet, for colours and filters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Topic {
    Write,
    Read,
    Reply,
    Record,
    Ack,
    Control,
    Other,
}

impl Topic {
    pub(crate) const ALL: [Topic; 7] = [
        Topic::Write,
        Topic::Read,
        Topic::Reply,
        Topic::Record,
        Topic::Ack,
        Topic::Control,
        Topic::Other,
    ];

    /// The name of the subject, which is also its CSS class in a diagram.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Topic::Write => "write",
            Topic::Read => "read",
            Topic::Reply => "reply",
            Topic::Record => "record",
            Topic::Ack => "ack",
            Topic::Control => "control",
            Topic::Other => "other",
        }
    }

    pub(crate) fn colour(self) -> &'static str {
        match self {
            Topic::Write => "#c0392b",
            Topic::Read => "#2471a3",
            Topic::Reply => "#1e8449",
            Topic::Record => "#b9770e",
            Topic::Ack => "#b7950b",
            Topic::Control => "#7d3c98",
            Topic::Other => "#707b7c",
        }
    }
}

pub(crate) fn control(message: &impl std::fmt::Debug) -> (Topic, String) {
    (Topic::Control, shortened(&format!("{message:?}")))
}

pub(crate) fn request(r: &Repr, body_bytes: usize) -> (Topic, String) {
    let topic = match r.op {
        Op::Write | Op::WRest => Topic::Write,
        Op::Read | Op::Pull => Topic::Read,
        Op::WRestAck
        | Op::WriteReply
        | Op::ReadReply
        | Op::Fragment
        | Op::Push
        | Op::WriteCompletion => Topic::Reply,
        Op::Sweep => Topic::Other,
    };
    let number = r.request.0 & !READ_BIT;
    let mut text = format!(
        "{:?} object {:08x}, request {number}, attempt {}, session {:04x}",
        r.op,
        r.obj_id.0,
        r.attempt,
        r.session.0 & 0xffff
    );
    if r.seq.is_some() {
        text += &format!(", number {}", r.seq);
    }
    if r.last_committed.is_some() {
        text += &format!(", last committed {}", r.last_committed);
    }
    for (flag, name) in [
        (Flags::FAST, "fast"),
        (Flags::NOOP, "no-op"),
        (Flags::WILDCARD, "all keys"),
        (Flags::REGISTER, "register"),
        (Flags::BODY_STAGED, "body staged"),
        (Flags::COMPLETION, "completion"),
        (Flags::FORWARDED, "forwarded"),
        (Flags::MORE, "first fragment"),
        (Flags::INTERNAL, "expiry"),
    ] {
        if r.flags.has(flag) {
            text += &format!(", {name}");
        }
    }
    if r.status != Status::Ok {
        text += &format!(", {:?}", r.status);
    }
    if topic == Topic::Reply {
        text += &format!(", by node {} in epoch {}, {:?}", r.node, r.epoch, r.reason);
    }
    text += &format!(", {body_bytes} bytes");
    (topic, text)
}

fn shortened(text: &str) -> String {
    const CHARS_MAX: usize = 400;
    if text.chars().count() <= CHARS_MAX {
        return text.into();
    }
    text.chars().take(CHARS_MAX).chain("...".chars()).collect()
}
