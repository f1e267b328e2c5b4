//! A block in readable form: its home, its owner and the reasons, its lock, its copies, and its
//! state at this node.

use alloc::format;
use alloc::string::{String, ToString as _};
use alloc::vec::Vec;

use concord_wire::concordia::{Copyset, NUMBER_MAX, Tag, home_place};

use crate::cache::LineState;
use crate::directory::Owner;
use crate::member::MemoryNode;
use crate::node::Node;

/// The home of a block among the members of the epoch, and the reason.
fn home(memory: &MemoryNode, tag: Tag) -> Option<(u16, String)> {
    let members: Vec<u16> = memory.members().map(|member| member.node).collect();
    let range = tag.range();
    let home = *members.get(usize::from(home_place(range, &members)?))?;
    let why = match home == range + 1 {
        true => "range and node have one number".to_string(),
        false => format!("node {} is no member", range + 1),
    };
    Some((home, why))
}

fn nodes(memory: &MemoryNode, copyset: Copyset) -> String {
    let own = memory.members().zip(0..).filter(|(_, place)| copyset.has(*place));
    let own: Vec<String> = own.map(|(member, _)| member.node.to_string()).collect();
    if own.is_empty() { "none".to_string() } else { format!("nodes {}", own.join(", ")) }
}

/// The part that only the home knows.
fn at_home(memory: &MemoryNode, node: &Node, tag: Tag) -> String {
    if node.is_lost(tag) {
        return "lost: yes, its only copy was at a node that is gone; concord memory renew empties it\n"
            .to_string();
    }
    let (owner, heat) = node.ownership(tag);
    let owner = match owner {
        Owner::Home => "the home: the block is not hot, or the switch has no room for it",
        Owner::Adding => "the home, which gives it to the switch",
        Owner::Switch => {
            "the switch: the block was hot, and is not cold for eight windows of 10 ms"
        }
        Owner::Removing => "the switch, which gives it back to the home",
        Owner::Forgetting => "the home, which took it back",
    };
    let mut text = format!("owner: {owner}\nhotness: {heat} requests in the last window\n");
    match node.owned(tag) {
        Some((status, version, copyset, is_locked)) => {
            let lock = match (is_locked, node.is_wanted(tag)) {
                (true, true) => "held, and a writer waits for it",
                (true, false) => "held",
                (false, true) => "free, and a writer wants it",
                (false, false) => "free",
            };
            let copies = nodes(memory, copyset);
            text +=
                &format!("state: {status:?}, version {version}\nlock: {lock}\ncopies: {copies}\n");
        }
        None => text += "state: in the switch's registers, with lock and copies\n",
    }
    text
}

/// The block's state at this node.
fn here(node: &Node, tag: Tag) -> String {
    let line = node.lines().find(|line| line.tag == tag);
    let copy = match line.map(|line| (line.state, line.version)) {
        Some((LineState::Shared, version)) => format!("a copy to read, version {version}"),
        Some((LineState::Modified, version)) => {
            format!("the only copy, to read and write, version {version}")
        }
        Some((LineState::Reserved, _)) | None => "no copy".to_string(),
    };
    let event = node.events().find(|(_, event)| event.tag == tag);
    match event {
        Some((lane, event)) => format!(
            "{copy}; lane {lane} has {:?} number {} under way: {:?}",
            event.op, event.number, event.stage
        ),
        None => copy,
    }
}

/// Lines of `name: value`. Those before `here` concern the block as a whole; its home knows more of
/// them.
pub(super) fn explain(memory: &MemoryNode, tag: Tag) -> String {
    let (range, block) = (tag.range(), tag.0 & NUMBER_MAX);
    let mut text = format!("block: {range}:{block}\n");
    let Some(node) = memory.node() else {
        return text + "here: this node is in no open epoch\n";
    };
    if let Some((home, why)) = home(memory, tag) {
        text += &format!("home: node {home}, since {why}\n");
    }
    if node.is_home(tag) {
        text += &at_home(memory, node, tag);
    }
    text + &format!("here: {}\n", here(node, tag))
}
