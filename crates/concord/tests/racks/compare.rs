//! Replicas that hold different data are found by the comparison of their states.

use crate::common::*;

/// A replica changes a key behind the log's back: the controller names it and the place of the key,
/// until it begins anew, and `concord status` leads to the section about it.
fn damage_is_named(protocol: &str) {
    let name = format!("compare-{protocol}");
    let files = directory(&format!("{name}-files"));
    let (config, faults) = (files.join("rack.toml"), files.join("faults"));
    std::fs::create_dir(&faults).unwrap();
    let text = format!("compare_ms = 20\n[faults]\ndamage = \"{}\"\n", faults.display());
    std::fs::write(&config, text).unwrap();
    let flags = ["--protocol", protocol, "--config", &config.display().to_string()];
    let rack = Rack::start(&name, &flags);
    let mut client = rack.client();
    let fill = |client: &mut Resp| {
        for n in 0..200 {
            assert_eq!(client.say(&format!("SET key:{n} {n}")), "+OK");
        }
    };
    fill(&mut client);
    let counter = |name: &str| Rack::counter(&rack.status(), "controller", name);
    until("comparison", || counter("digests_compared") > 10);
    assert_eq!(counter("digests_unequal"), 0);
    std::fs::write(faults.join("replica-2"), "").unwrap();
    let status = || {
        let output = concord(&["status", "--config", &rack.file()]);
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let problem = "PROBLEM: replica 2 holds other data than the other replicas";
    until("difference", || status().contains(problem));
    assert!(status().contains("problems.md#replicas-hold-different-data"), "{}", status());
    // Equal digests do not end it.
    fill(&mut client);
    let compared = counter("digests_compared");
    until("further comparisons", || counter("digests_compared") > compared + 10);
    assert!(status().contains(problem), "{}", status());
    std::fs::remove_file(faults.join("replica-2")).unwrap_or_default();
    // It copies the state as it begins anew.
    Rack::signal(rack.pid("replica-2"), "-9");
    let _again = ByHand::start(&rack, &["replica", "--node", "2"]);
    until("end of it", || !status().contains("PROBLEM"));
}

#[test]
fn bug_22_9_a_damaged_replica_of_a_chain_is_named() {
    damage_is_named("chain");
}

#[test]
fn bug_22_9_a_damaged_replica_under_vr_is_named() {
    damage_is_named("vr");
}
