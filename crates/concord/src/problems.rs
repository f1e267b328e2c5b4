//! The section of docs/operate/problems.md about each problem that `status` reports.

/// The page, as a path from the root of the repository.
pub const PAGE: &str = "docs/operate/problems.md";

/// A part of a problem's line, and the anchor of the section about it. The first row that matches
/// counts.
const SECTIONS: [(&str, &str); 45] = [
    ("its event loop is busy", "event-loop-busy"),
    ("which is of another rack, or has another place", "another-process-answers"),
    ("is no role of a rack", "another-process-answers"),
    ("is not reachable", "not-reachable"),
    ("no session with the rack yet", "no-session"),
    ("answered no command of the last seconds", "no-answers"),
    ("no write was completed through this switch", "switch-is-new"),
    ("keys that begin with coord_prefix", "keys-below-the-prefix"),
    ("no switch is active", "no-active-switch"),
    ("the controller does not hear it", "not-heard-by-the-controller"),
    ("do not hear each other", "members-do-not-hear-each-other"),
    ("is not a member, and will not be one", "members-are-fixed"),
    ("is not a member", "not-a-member"),
    ("the controller has not made it a member", "not-a-member"),
    ("joining, not open", "joining"),
    (", not open", "not-open"),
    ("the rack file does not have it", "not-in-the-rack-file"),
    ("by the rack file", "another-protocol"),
    ("the first epoch of the chain waits for", "first-epoch"),
    ("the first epoch waits for", "first-epoch"),
    ("no switch of the chain is left", "chain-lost"),
    ("holds other data than the other replicas", "replicas-hold-different-data"),
    ("hold different data", "replicas-hold-different-data"),
    ("was restored from a backup", "restored-replicas"),
    ("is of another rack than the state file", "another-rack"),
    ("controller: the disk of its state has no room", "controllers-disk"),
    ("the disk of the controller's state failed", "controllers-disk-failed"),
    ("the disk of the controller's state", "controllers-disk"),
    ("its disk has no room", "disk-full"),
    ("its disk has not answered", "disk-hangs"),
    ("its disk failed", "disk-failed"),
    ("its log on disk is damaged", "damaged-log"),
    ("there is no state, but nodes have heard", "state-lost"),
    ("the state is of epoch", "state-lost"),
    ("the state is being made anew", "recovering"),
    ("the state cannot be made anew", "recovery-waits"),
    ("when the state was made anew", "group-left-out"),
    ("no member that has all the data is alive", "no-member-has-the-data"),
    ("an older data directory than it had", "older-directory"),
    ("as was the controller", "cold-start"),
    ("have lost what they had promised", "lost-promises"),
    ("every switch id was granted", "numbers-used-up"),
    ("every epoch number was used", "numbers-used-up"),
    ("the wall clock of", "clock-was-set"),
    ("the time that keys expire by", "clock-behind"),
];

/// The place in [`PAGE`] that explains a line of `status` and what to do: "page#anchor". A line
/// without a section leads to the page itself.
#[must_use]
pub fn section(line: &str) -> String {
    let known = SECTIONS.iter().find(|(part, _)| line.contains(part));
    known.map_or(PAGE.to_string(), |(_, anchor)| format!("{PAGE}#{anchor}"))
}

#[cfg(test)]
mod tests {
    use concord_control::{NotStored, Problem};
    use concord_core::Addr;

    use super::*;

    /// The sections of the page: their anchors, and the messages that they quote.
    fn sections() -> Vec<(String, Vec<String>)> {
        let page = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(PAGE);
        let text = std::fs::read_to_string(page).unwrap();
        let each = text.split("\n### ").skip(1).map(|section| {
            let (title, body) = section.split_once('\n').unwrap();
            let is_kept = |c: &char| c.is_alphanumeric() || *c == ' ';
            let kept: String = title.to_lowercase().chars().filter(is_kept).collect();
            let lines = body.lines().take_while(|line| line.starts_with('>'));
            let quote = lines.map(|line| &line[1..]).collect::<Vec<_>>().join("");
            let messages = quote.split('`').skip(1).step_by(2).map(str::to_string).collect();
            (kept.replace(' ', "-"), messages)
        });
        each.collect()
    }

    /// Every row leads to a section of the page.
    #[test]
    fn rows_lead_to_sections() {
        let known: Vec<String> = sections().into_iter().map(|(anchor, _)| anchor).collect();
        let lost: Vec<_> =
            SECTIONS.iter().filter(|(_, anchor)| !known.iter().any(|k| k == anchor)).collect();
        assert!(lost.is_empty(), "no sections of {PAGE}: {lost:?}");
    }

    /// A message at the beginning of a section, or a complete one, leads to that section.
    #[test]
    fn quoted_messages_lead_to_their_sections() {
        let is_of_status = |anchor: &String| SECTIONS.iter().any(|(_, known)| known == anchor);
        let (mut seen, mut astray) = (0, Vec::new());
        for (anchor, messages) in sections().into_iter().filter(|(anchor, _)| is_of_status(anchor))
        {
            assert!(!messages.is_empty(), "{anchor} quotes nothing");
            let is_whole = |(i, message): &(usize, &String)| *i == 0 || message.contains("PROBLEM");
            for (_, message) in messages.iter().enumerate().filter(is_whole) {
                seen += 1;
                let to = section(message);
                if to != format!("{PAGE}#{anchor}") {
                    astray.push(format!("{message} leads to {to}, and not to {anchor}"));
                }
            }
        }
        assert!(seen > 35, "{seen}");
        assert!(astray.is_empty(), "{astray:#?}");
    }

    /// Every problem of the controller has a section.
    #[test]
    fn problems_of_the_controller() {
        let addr = Addr { ip: 0x7f00_0001, port: 7 };
        let (node, epoch, heard_epoch, heard_switch_id) = (2, 7, 9, 3);
        let all = [
            Problem::SwitchIdsExhausted,
            Problem::EpochsExhausted,
            Problem::NobodyCaughtUp,
            Problem::OlderDirectory { node },
            Problem::ColdStart { node, epoch },
            Problem::StateLost { heard_epoch, heard_switch_id },
            Problem::StateOld { epoch, heard_epoch, heard_switch_id },
            Problem::Stranger { addr },
            Problem::CutPair { one: 1, other: 2 },
            Problem::Recovering,
            Problem::NothingHeard,
            Problem::NotHeard { node: None, epoch },
            Problem::NotHeard { node: Some(node), epoch },
            Problem::LeftOut,
            Problem::TwoRacks { addr },
            Problem::NothingLeft,
            Problem::WaitsForReplicas { node, others: 0 },
            Problem::WaitsForReplicas { node, others: 2 },
            Problem::WaitsForSwitch,
            Problem::WaitsForSwitches { node, others: 0 },
            Problem::WaitsForSwitches { node, others: 2 },
            Problem::ChainLost,
            Problem::OriginsDiffer { one: 1, other: 2 },
            Problem::Restored { node },
            Problem::Differs { node, position: 7, first: 0, end: 40 },
            Problem::Differ { one: 1, other: 2, position: 7, first: 0, end: 40 },
            Problem::NotStored(NotStored::Full),
            Problem::NotStored(NotStored::Refused),
            Problem::NotStored(NotStored::Unknown),
        ];
        for problem in all {
            let line = format!("PROBLEM: {problem}");
            assert!(section(&line).contains('#'), "{line}");
            // A new problem needs a row above and a section.
            match problem {
                Problem::SwitchIdsExhausted
                | Problem::EpochsExhausted
                | Problem::NobodyCaughtUp
                | Problem::OlderDirectory { .. }
                | Problem::ColdStart { .. }
                | Problem::StateLost { .. }
                | Problem::StateOld { .. }
                | Problem::Stranger { .. }
                | Problem::CutPair { .. }
                | Problem::Recovering
                | Problem::NothingHeard
                | Problem::NotHeard { .. }
                | Problem::LeftOut
                | Problem::TwoRacks { .. }
                | Problem::NothingLeft
                | Problem::WaitsForReplicas { .. }
                | Problem::WaitsForSwitch
                | Problem::WaitsForSwitches { .. }
                | Problem::ChainLost
                | Problem::OriginsDiffer { .. }
                | Problem::Restored { .. }
                | Problem::Differs { .. }
                | Problem::Differ { .. }
                | Problem::NotStored(_) => {}
            }
        }
    }
}
