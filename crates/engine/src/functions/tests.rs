use super::*;
use alloc::string::String;

/// Registers a function for each line of the code that is not empty; a line `fail` fails.
fn by_lines(code: &[u8], cost: &mut u64) -> Result<Vec<Declared>, Vec<u8>> {
    *cost += 1;
    let lines = code.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    let declared = |line: &[u8]| match line {
        b"fail" => Err(b"ERR failed".to_vec()),
        _ => Ok(Declared {
            name: line.to_vec(),
            description: line.starts_with(b"d").then(|| line.to_vec()),
            flags: FunctionFlags::default().with(b"no-writes"),
        }),
    };
    lines.map(declared).collect()
}

fn call(functions: &mut Functions, args: &[&[u8]]) -> String {
    let mut reply = Vec::new();
    let all: Vec<&[u8]> = [&b"FUNCTION"[..]].into_iter().chain(args.iter().copied()).collect();
    functions.execute(Some(by_lines), &Context::default(), Class::Write, &all, &mut reply);
    String::from_utf8_lossy(&reply).into_owned()
}

#[test]
fn libraries_are_loaded_replaced_and_deleted() {
    let mut all = Functions::default();
    assert_eq!(call(&mut all, &[b"LOAD", b"#!lua name=a\nf\ng\n"]), "$1\r\na\r\n");
    assert_eq!(
        call(&mut all, &[b"LOAD", b"#!lua name=a\nf"]),
        "-ERR Library 'a' already exists\r\n"
    );
    assert_eq!(
        call(&mut all, &[b"LOAD", b"#!lua name=b\nF"]),
        "-ERR Function F already exists\r\n"
    );
    assert_eq!(call(&mut all, &[b"LOAD", b"#!lua name=b\nfail"]), "-ERR failed\r\n");
    assert_eq!(call(&mut all, &[b"load", b"replace", b"#!lua name=a\nh\nd"]), "$1\r\na\r\n");
    assert!(all.find(b"f").is_none() && all.find(b"H").is_some());
    assert_eq!(call(&mut all, &[b"DELETE", b"b"]), "-ERR Library not found\r\n");
    let restored = Functions::restore(&all.save()).unwrap();
    assert_eq!((restored.digest(), restored.save()), (all.digest(), all.save()));
    assert_eq!(restored.memory_bytes(), all.memory_bytes());
    assert_eq!(call(&mut all, &[b"DELETE", b"a"]), "+OK\r\n");
    assert!(all.is_empty() && all.by_name.is_empty() && all.code_bytes == 0);
}

#[test]
fn what_was_saved_is_cut_nowhere() {
    let mut all = Functions::default();
    call(&mut all, &[b"LOAD", b"#!lua name=a\nf\nd\n"]);
    call(&mut all, &[b"LOAD", b"#!lua name=b\ng\n"]);
    let saved = all.save();
    let whole: Vec<usize> =
        (0..saved.len()).filter(|end| Functions::restore(&saved[..*end]).is_some()).collect();
    assert_eq!(whole.len(), 2, "between libraries: {whole:?}");
}

#[test]
fn a_payload_is_restored_as_a_whole_or_not_at_all() {
    let mut all = Functions::default();
    call(&mut all, &[b"LOAD", b"#!lua name=a\nf"]);
    call(&mut all, &[b"LOAD", b"#!lua name=b\ng"]);
    let payload = dump::dump(all.libraries.values().map(|library| &library.text[..]));
    let mut other = Functions::default();
    call(&mut other, &[b"LOAD", b"#!lua name=b\nx\ny"]);
    let before = other.digest();
    assert_eq!(call(&mut other, &[b"RESTORE", &payload]), "-ERR Library b already exists\r\n");
    assert_eq!(other.digest(), before);
    assert_eq!(call(&mut other, &[b"RESTORE", &payload, b"REPLACE"]), "+OK\r\n");
    assert!(other.find(b"f").is_some() && other.find(b"x").is_none());
    assert_eq!(other.digest(), all.digest());
    call(&mut other, &[b"LOAD", b"#!lua name=c\nz"]);
    assert_eq!(call(&mut other, &[b"RESTORE", &payload, b"flush"]), "+OK\r\n");
    assert_eq!(other.digest(), all.digest());
    call(&mut other, &[b"FLUSH"]);
    call(&mut other, &[b"LOAD", b"#!lua name=c\ng"]);
    assert_eq!(
        call(&mut other, &[b"RESTORE", &payload, b"REPLACE"]),
        "-ERR Function g already exists\r\n"
    );
    assert!(other.find(b"f").is_none());
}

#[test]
fn a_first_line_names_the_library() {
    let name = |line: &str| {
        let text = metadata::name_of(line.as_bytes()).unwrap_or_else(|text| text);
        String::from_utf8(text).unwrap()
    };
    for line in [
        "#!lua name=a_1\n",
        "#!Lua   NAME=a_1  \n",
        "#!lua \"name=a_1\"\n",
        "#!\"lua\" 'name=a\\x'\n",
    ] {
        assert!(name(line) == "a_1" || line.contains('\\'), "{line}: {}", name(line));
    }
    for (line, error) in [
        ("x", "ERR Missing library metadata"),
        ("#!lua name=a", "ERR Invalid library metadata"),
        ("#!lua \"name=a\n", "ERR Invalid library metadata"),
        ("#!lua \"name=\"a\n", "ERR Invalid library metadata"),
        ("#! lua name=a\n", "ERR Invalid metadata value given: lua"),
        ("#!js name=a\n", "ERR Engine 'js' not found"),
        ("#!\n", "ERR Library name was not given"),
        ("#!lua foo=a\n", "ERR Invalid metadata value given: foo=a"),
        (
            "#!lua name=a name=b\n",
            "ERR Invalid metadata value, name argument was given multiple times",
        ),
    ] {
        assert_eq!(name(line), error);
    }
    assert!(name("#!lua name=\n").starts_with("ERR Library names can only contain"));
    assert!(name("#!lua name=a-b\n").starts_with("ERR Library names can only contain"));
}
