//! FUNCTION and FCALL at a gateway before a fake rack, which has no loader of libraries.

use super::common::World;

fn ask(world: &mut World, lines: &[&str]) -> String {
    world.ask(lines).replace("\r\n", " ")
}

#[test]
fn what_is_wrong_with_function_the_gateway_says() {
    let mut w = World::new(1);
    for (line, error) in [
        ("FUNCTION", "ERR wrong number of arguments for 'function' command"),
        ("FUNCTION nosuch", "ERR unknown subcommand 'nosuch'. Try FUNCTION HELP."),
        ("FUNCTION LOAD", "ERR wrong number of arguments for 'function|load' command"),
        ("FUNCTION DELETE a b", "ERR wrong number of arguments for 'function|delete' command"),
        ("FUNCTION KILL", "NOTBUSY No scripts in execution right now."),
        ("FCALL f", "ERR wrong number of arguments for 'fcall' command"),
        ("FCALL_RO f", "ERR wrong number of arguments for 'fcall_ro' command"),
        ("FCALL f 0", "ERR Function not found"),
        ("FCALL_RO f 0", "ERR Function not found"),
    ] {
        assert_eq!(ask(&mut w, &[line]), format!("-{error} "), "{line}");
    }
    assert!(ask(&mut w, &["FUNCTION HELP"]).starts_with("*"));
    assert!(ask(&mut w, &["FUNCTION STATS"]).contains("libraries_count :0"));
    assert_eq!(ask(&mut w, &["FUNCTION LIST", "FUNCTION FLUSH"]), "*0 +OK ");
}

#[test]
fn in_a_transaction_calls_are_queued_and_wrong_ones_abort_it() {
    let mut w = World::new(2);
    let lines = ["MULTI", "SET k v", "FCALL f 0", "FUNCTION KILL", "FUNCTION FLUSH", "EXEC"];
    assert_eq!(
        ask(&mut w, &lines),
        "+OK +QUEUED +QUEUED +QUEUED +QUEUED *4 +OK -ERR Function not found \
         -NOTBUSY No scripts in execution right now. +OK "
    );
    let reply = ask(&mut w, &["MULTI", "FUNCTION LOAD", "EXEC"]);
    assert!(reply.ends_with("-EXECABORT Transaction discarded because of previous errors. "));
}

#[test]
fn calls_are_in_order_with_what_comes_before_and_behind() {
    let mut w = World::new(3);
    let lines =
        ["SET k 1", "FCALL_RO f 0", "GET k", "FCALL f 0", "SET k 2", "FUNCTION LIST", "GET k"];
    assert_eq!(
        ask(&mut w, &lines),
        "+OK -ERR Function not found $1 1 -ERR Function not found +OK *0 $1 2 "
    );
}
