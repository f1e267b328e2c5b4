//! `concord voters`: the members of a Raft group that are voters, and a change of these
//! (docs/internals/raft.md, Who votes).

use std::net::{SocketAddr, SocketAddrV4, UdpSocket};
use std::time::{Duration, Instant};

use concord_core::rng::splitmix64;
use concord_runtime::{Context as _, Error};
use concord_wire::control::{Membership, Message as _, VoterOutcome, VotersTold};
use concord_wire::{Addr, DATAGRAM_BYTES_MAX, header};

use super::Protocol;
use crate::cli::VotersArgs;
use crate::rack::{Group, Kind, Rack, in_file};
use crate::status::print;

/// The interval at which all replicas are asked.
const ASK_INTERVAL: Duration = Duration::from_millis(100);

/// `concord voters`.
///
/// # Errors
/// One line for a person: the mistake in the change, or why it was not made in time.
pub fn voters(args: &VotersArgs) -> Result<(), Error> {
    let rack = Rack::read(&args.config)?;
    let groups = rack.groups()?;
    let group = chosen(&groups, args.group.as_deref()).map_err(in_file(&args.config))?;
    let change = args.change();
    if let Some((node, _)) = change
        && !group.replicas.iter().any(|replica| replica.node == node)
    {
        let name = group.name;
        let file = args.config.display();
        return Err(Error::new(format!("{file}: group {name} has no replica {node}")));
    }
    let mut asking = Asking::new(group)?;
    let until = Instant::now() + Duration::from_secs(args.timeout_s);
    let told = loop {
        let answers = asking.ask(change)?;
        match settled(&answers, change) {
            Some(Ok(told)) => break told.clone(),
            Some(Err(why)) => return Err(Error::new(why)),
            None if Instant::now() < until => {}
            None => {
                let seconds = args.timeout_s;
                let why = why_not(&answers);
                return Err(Error::new(format!("not done after {seconds} s: {why}")));
            }
        }
    };
    print(&shown(&told))
}

/// The problem of a member that the rack file leaves out. `None` for a member of a Raft group that
/// is no voter: nobody waits for it.
#[must_use]
pub fn missing_in_file(group: &Group<'_>, node: u16) -> Option<String> {
    let (name, protocol) = (group.member_name("replica", node), group.protocol.name());
    match group.protocol {
        Protocol::Chain | Protocol::PrimaryBackup | Protocol::Craq => Some(format!(
            "{name} is a member, and the rack file does not have it: it is removed once it has ended or was silent for \
             failure_ms"
        )),
        Protocol::Raft if does_not_vote(group, node) => None,
        Protocol::Raft => Some(format!(
            "{name} votes, and the rack file does not have it: put its entry back, `concord voters --remove {node}`, and \
             take the entry out again"
        )),
        Protocol::Vr | Protocol::NoPaxos => Some(format!(
            "{name} is a member, and the rack file does not have it, but a {protocol} group keeps the replicas that it \
             began with: put its entry back; a group with others begins with a backup"
        )),
    }
}

/// Whether the leader says that the member is a non-voter for good.
fn does_not_vote(group: &Group<'_>, node: u16) -> bool {
    let asked = Asking::new(group).and_then(|mut asking| asking.ask(None));
    let answers = asked.unwrap_or_default();
    let Some(told) = leader(&answers).filter(|told| told.is_committed) else { return false };
    let place = told.members.iter().position(|member| *member == node);
    place.is_none_or(|place| told.voters >> place & 1 == 0)
}

/// The Raft group that the arguments select.
fn chosen<'a, 'r>(groups: &'a [Group<'r>], name: Option<&str>) -> Result<&'a Group<'r>, Error> {
    let is_raft =
        |group: &&Group<'_>| group.kind == Kind::Replicas && group.protocol == Protocol::Raft;
    if let Some(name) = name {
        let group = groups.iter().find(|group| group.name == name);
        let group = group.ok_or_else(|| Error::new(format!("the rack has no group {name}")))?;
        return match is_raft(&group) {
            true => Ok(group),
            false => Err(Error::new(format!("group {name} is no Raft group: who votes is fixed"))),
        };
    }
    let raft: Vec<&Group<'_>> = groups.iter().filter(is_raft).collect();
    match raft.as_slice() {
        [] => Err(Error::new("the rack has no group with protocol = \"raft\": who votes is fixed")),
        [group] => Ok(group),
        several => {
            let names: Vec<&str> = several.iter().map(|group| group.name).collect();
            Err(Error::new(format!("which group? --group {}", names.join(" or "))))
        }
    }
}

/// Asks all replicas of a group.
struct Asking<'a> {
    group: &'a Group<'a>,
    socket: UdpSocket,
    /// The replicas, and the address at which each reaches this process.
    places: Vec<(SocketAddrV4, Addr)>,
    number: u64,
}

impl<'a> Asking<'a> {
    fn new(group: &'a Group<'a>) -> Result<Asking<'a>, Error> {
        let socket = UdpSocket::bind("0.0.0.0:0").cannot("bind a UDP socket")?;
        let port = socket.local_addr().cannot("bind a UDP socket")?.port();
        let mut places = Vec::new();
        for replica in group.replicas {
            let to = replica.addr;
            places.push((to, own_addr(to, port).cannot(format!("find a way to {to}"))?));
        }
        let number = splitmix64(u64::from(std::process::id()) ^ u64::from(port) << 32);
        Ok(Asking { group, socket, places, number })
    }

    /// The replicas' answers within an interval.
    fn ask(&mut self, change: Option<(u16, bool)>) -> Result<Vec<VotersTold>, Error> {
        self.number += 1;
        let number = self.number;
        let mut packet = Vec::new();
        for (to, client) in &self.places {
            Membership::ChangeVoter { client: *client, number, change }.emit(&mut packet);
            header::set_group(&mut packet, self.group.id);
            // A replica that is gone does not answer.
            let _ = self.socket.send_to(&packet, SocketAddr::V4(*to));
        }
        let until = Instant::now() + ASK_INTERVAL;
        let mut answers: Vec<VotersTold> = Vec::new();
        let mut bytes = vec![0; DATAGRAM_BYTES_MAX];
        while let Some(left) = until.checked_duration_since(Instant::now()).filter(|d| !d.is_zero())
        {
            self.socket.set_read_timeout(Some(left)).cannot("wait for answers")?;
            let Ok((length, _)) = self.socket.recv_from(&mut bytes) else { continue };
            if let Ok(Membership::VotersTold(told)) = Membership::parse(&bytes[..length])
                && told.number == number
                && !answers.iter().any(|other| other.node == told.node)
            {
                answers.push(told);
            }
        }
        Ok(answers)
    }
}

/// The address at which `to` reaches this process, at `port`.
fn own_addr(to: SocketAddrV4, port: u16) -> std::io::Result<Addr> {
    let probe = UdpSocket::bind("0.0.0.0:0")?;
    probe.connect(to)?;
    match probe.local_addr()? {
        SocketAddr::V4(own) => Ok(Addr { ip: u32::from(*own.ip()), port }),
        SocketAddr::V6(_) => Err(std::io::Error::other("no IPv4")),
    }
}

/// The answer of the leader; the one with the latest configuration, if several claim to lead.
fn leader(answers: &[VotersTold]) -> Option<&VotersTold> {
    let leads = |told: &&VotersTold| told.outcome != VoterOutcome::NotLeader;
    answers.iter().filter(leads).max_by_key(|told| told.is_committed)
}

/// The result according to the answers; `None` if asking again may help.
fn settled(
    answers: &[VotersTold],
    change: Option<(u16, bool)>,
) -> Option<Result<&VotersTold, String>> {
    let told = leader(answers)?;
    match told.outcome {
        VoterOutcome::Done => (told.is_committed || change.is_none()).then_some(Ok(told)),
        VoterOutcome::NotMember => Some(Err("the group has no such member".to_string())),
        VoterOutcome::NoQuorum => Some(Err(
            "too few of those who would vote are there, or have caught up: nothing could be committed any more"
                .to_string(),
        )),
        VoterOutcome::NotLeader | VoterOutcome::NotYet | VoterOutcome::Behind => None,
    }
}

/// The reason why asking did not help.
fn why_not(answers: &[VotersTold]) -> &'static str {
    match leader(answers).map(|told| told.outcome) {
        None if answers.is_empty() => "no replica answers",
        None => "no replica leads",
        Some(VoterOutcome::Behind) => "the member is not heard, or has not caught up",
        Some(_) => "the change before is not committed",
    }
}

/// A line for each member.
fn shown(told: &VotersTold) -> String {
    let line = |(place, node): (usize, &u16)| {
        let votes = if told.voters >> place & 1 == 1 { "votes" } else { "does not vote" };
        let leads = if *node == told.node { ", leads" } else { "" };
        format!("replica {node}  {votes}{leads}\n")
    };
    let mut text: String = told.members.iter().enumerate().map(line).collect();
    if !told.is_committed {
        text += "not committed yet\n";
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(node: u16, outcome: VoterOutcome, is_committed: bool) -> VotersTold {
        VotersTold { number: 1, node, outcome, members: vec![1, 2, 7], voters: 0b101, is_committed }
    }

    #[test]
    fn a_change_is_made_once_the_leader_says_that_it_is_committed() {
        use VoterOutcome::*;
        let change = Some((2, false));
        let follower = told(1, NotLeader, true);
        assert!(settled(&[], change).is_none());
        assert!(settled(core::slice::from_ref(&follower), change).is_none());
        for outcome in [NotYet, Behind] {
            assert!(settled(&[follower.clone(), told(2, outcome, true)], change).is_none());
        }
        assert!(settled(&[told(2, Done, false)], change).is_none());
        assert!(settled(&[told(2, Done, false)], None).is_some(), "it is only shown");
        let both = [told(1, Done, false), told(2, Done, true)];
        assert_eq!(settled(&both, change).unwrap().unwrap().node, 2);
        for outcome in [NotMember, NoQuorum] {
            assert!(settled(&[told(2, outcome, true)], change).unwrap().is_err());
        }
        assert_eq!(why_not(&[]), "no replica answers");
        assert_eq!(why_not(&[follower]), "no replica leads");
    }

    #[test]
    fn who_votes_is_shown_by_the_members_numbers() {
        let text = shown(&told(7, VoterOutcome::Done, false));
        assert_eq!(
            text,
            "replica 1  votes\nreplica 2  does not vote\nreplica 7  votes, leads\nnot committed yet\n"
        );
    }
}
