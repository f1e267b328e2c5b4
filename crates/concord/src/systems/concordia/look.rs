//! `concord memory`: the nodes' reports about a block, and the renewal of lost blocks.

use std::time::Duration;

use concord_runtime::Error;

use super::args::{MemoryArgs, MemoryCommand};
use super::section::MemoryPlace;
use crate::net::{Redis, Reply};
use crate::rack::{Kind, Rack};
use crate::status::print;

const ASK_TIMEOUT: Duration = Duration::from_secs(6);

/// The beginning of a line about a node's own copy.
const HERE: &str = "here: ";

/// `concord memory`.
///
/// # Errors
/// One line for a person.
pub fn memory(args: &MemoryArgs) -> Result<(), Error> {
    let rack = Rack::read_whole(&args.config)?;
    let groups = rack.groups()?;
    let own = groups.iter().filter(|group| group.kind == Kind::Memory);
    let named = |name: &str| args.group.as_deref().is_none_or(|wanted| wanted == name);
    let own: Vec<_> = own.filter(|group| named(group.name)).collect();
    let nodes = match &own[..] {
        [group] => group.nodes,
        [] => return Err(Error::new("the rack has no such shared memory")),
        _ => return Err(Error::new("the rack has several shared memories: say --group")),
    };
    match &args.command {
        MemoryCommand::Explain { key, block } => {
            let command: Vec<String> = match (key, block) {
                (_, Some((range, block))) => vec![range.to_string(), block.to_string()],
                (key, None) => vec![key.clone().unwrap_or_default()],
            };
            explain(&rack, nodes, &command)
        }
        MemoryCommand::Renew => renew(&rack, nodes),
    }
}

fn ask(rack: &Rack, node: &MemoryPlace, words: &[&str]) -> Result<Reply, String> {
    let words: Vec<&[u8]> =
        [b"CONCORD" as &[u8]].into_iter().chain(words.iter().map(|word| word.as_bytes())).collect();
    let asked = Redis::connect(node.reached(), &rack.requirepass, ASK_TIMEOUT)
        .and_then(|mut redis| redis.call(&words));
    asked.map_err(|e| e.to_string())
}

/// Prints the home's report about the block as a whole, and each node's report about its copy.
fn explain(rack: &Rack, nodes: &[MemoryPlace], of: &[String]) -> Result<(), Error> {
    let mut words = vec!["EXPLAIN"];
    words.extend(of.iter().map(String::as_str));
    let (mut whole, mut each): (Vec<String>, Vec<String>) = (Vec::new(), Vec::new());
    for node in nodes {
        let number = node.node;
        match ask(rack, node, &words) {
            Ok(Reply::Error(why)) => return Err(Error::new(why)),
            Ok(reply) => {
                let lines = reply.lines();
                let (here, own): (Vec<String>, Vec<String>) =
                    lines.into_iter().partition(|line| line.starts_with(HERE));
                each.extend(here.iter().map(|h| format!("node {number}: {}", &h[HERE.len()..])));
                // The home's report is the longest.
                if own.len() > whole.len() {
                    whole = own;
                }
            }
            Err(why) => each.push(format!("node {number}: does not answer: {why}")),
        }
    }
    if whole.is_empty() {
        return Err(Error::new(format!("no node answers: {}", each.join("; "))));
    }
    let lines = whole.iter().chain(&each).map(|line| format!("{line}\n"));
    print(&lines.collect::<String>())
}

/// Renews lost blocks; each home renews its own.
fn renew(rack: &Rack, nodes: &[MemoryPlace]) -> Result<(), Error> {
    let mut silent = Vec::new();
    for node in nodes {
        let number = node.node;
        match ask(rack, node, &["RENEW"]) {
            Ok(Reply::Text(count)) => print(&format!("node {number}: {count} blocks renewed\n"))?,
            Ok(Reply::Error(why)) => silent.push(format!("node {number}: {why}")),
            Ok(Reply::Array(_)) => silent.push(format!("node {number} says something else")),
            Err(why) => silent.push(format!("node {number} does not answer: {why}")),
        }
    }
    match silent.len() {
        0 => Ok(()),
        all if all == nodes.len() => Err(Error::new(silent.join("; "))),
        _ => print(&(silent.join("\n") + "\n")),
    }
}
