//! Spares of a chain: switches that stand by, one of which joins when a member has died.

use crate::common::*;

const CHAIN: &str = "\
[[group]]
name = \"locks\"
number = 1
kind = \"switches\"
length = 2
";

/// The spare takes a dead member's place, with all keys; the dead one, started again, is the spare.
#[test]
fn a_spare_takes_the_place_of_a_member_that_died() {
    let directory = directory("coord-spares-file");
    let path = directory.join("chain.toml");
    std::fs::write(&path, CHAIN).unwrap();
    let file = path.to_str().unwrap();
    let refused = concord(&["up", "--config", file, "--switches", "1"]);
    let line = String::from_utf8_lossy(&refused.stderr);
    assert_eq!(line.trim_end(), "concord: group locks: length is 2, more than it has switches (1)");
    let rack = Rack::start("coord-spares", &["--config", file, "--switches", "3"]);
    let members = || -> Vec<u64> {
        let controller = rack.role("controller", 1);
        let members = controller["members"].as_array().into_iter().flatten();
        members.filter_map(serde_json::Value::as_u64).collect()
    };
    assert_eq!(members(), [1, 2]);
    let spare = |node: u64| rack.role("switch", node)["stands_by"] == true;
    assert_eq!([1, 2, 3].map(spare), [false, false, true]);
    let config = rack.file();
    let status = || {
        let told = concord(&["status", "--config", &config]);
        (told.status.success(), String::from_utf8_lossy(&told.stdout).into_owned())
    };
    until("a rack that is well", || status().0);
    let text = status().1;
    assert!(text.contains("a chain of 2 switches with 1 spare, 2 of them open"), "{text}");
    assert!(text.contains("stands by"), "{text}");
    let coord = |args: &[&str]| {
        let told = concord(&[&["coord", "--config", &config], args].concat());
        let errors = String::from_utf8_lossy(&told.stderr).into_owned();
        assert!(told.status.success(), "{args:?}: {errors}");
        String::from_utf8(told.stdout).unwrap()
    };
    coord(&["put", "leader", "host-a"]);
    Rack::signal(rack.pid("locks-switch-1"), "-9");
    until("the spare as a member", || members() == [2, 3]);
    assert_eq!(coord(&["get", "leader"]), "host-a\n");
    coord(&["put", "leader", "host-b"]);
    let text = status().1;
    assert!(text.contains("locks switch 1 is not reachable"), "{text}");
    assert!(!text.contains("is not a member"), "{text}");
    // It is the spare when it is started again, and its turn comes.
    let _first = ByHand::start(&rack, &["switch", "--group", "locks", "--node", "1"]);
    until("the dead one as a spare", || spare(1));
    until("a rack that is well again", || status().0);
    Rack::signal(rack.pid("locks-switch-2"), "-9");
    until("it as a member", || members() == [3, 1]);
    assert_eq!(coord(&["--nearest", "1", "get", "leader"]), "host-b\n");
}
