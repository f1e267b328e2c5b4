//! The grammar of random commands: the server's own COMMAND DOCS, as a tree of arguments.

use std::collections::BTreeMap;

use concord_engine::resp;

/// A RESP2 reply as a tree; errors and what is not expected here are `Nil`.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    Nil,
    Int(i64),
    Text(String),
    List(Vec<Value>),
}

impl Value {
    /// Reads one value from the front of `bytes`; gives how long it was.
    pub fn read(bytes: &[u8]) -> (Value, usize) {
        let line = resp::line_length(bytes).unwrap();
        let number = || resp::number(&bytes[1..line - 2]).unwrap();
        match bytes[0] {
            b'*' if number() >= 0 => {
                let mut at = line;
                let mut items = Vec::new();
                for _ in 0..number() {
                    let (item, length) = Value::read(&bytes[at..]);
                    items.push(item);
                    at += length;
                }
                (Value::List(items), at)
            }
            b'$' if number() >= 0 => {
                let end = line + number() as usize;
                let text = String::from_utf8_lossy(&bytes[line..end]).into_owned();
                (Value::Text(text), end + 2)
            }
            b'+' => (Value::Text(String::from_utf8_lossy(&bytes[1..line - 2]).into_owned()), line),
            b':' => (Value::Int(number()), line),
            _ => (Value::Nil, line),
        }
    }

    fn list(&self) -> &[Value] {
        if let Value::List(items) = self { items } else { &[] }
    }

    fn text(&self) -> &str {
        if let Value::Text(text) = self { text } else { "" }
    }

    /// A flat list of names and values.
    fn map(&self) -> BTreeMap<&str, &Value> {
        self.list().chunks_exact(2).map(|pair| (pair[0].text(), &pair[1])).collect()
    }
}

/// What stands for an argument.
#[derive(Clone, Debug)]
pub enum Kind {
    /// Nothing but its token.
    Token,
    Key,
    Integer,
    Double,
    Text,
    UnixTime,
    OneOf(Vec<Arg>),
    Block(Vec<Arg>),
}

/// An argument, as the server documents it.
#[derive(Clone, Debug)]
pub struct Arg {
    pub name: String,
    pub kind: Kind,
    /// The word before it.
    pub token: Option<String>,
    pub optional: bool,
    pub multiple: bool,
    /// With the token each time.
    pub multiple_token: bool,
}

impl Arg {
    fn read(value: &Value) -> Arg {
        let map = value.map();
        let text = |name: &str| map.get(name).map_or("", |v| v.text());
        let inner = || map.get("arguments").map_or(Vec::new(), |v| read_args(v));
        let kind = match text("type") {
            "key" => Kind::Key,
            "integer" => Kind::Integer,
            "double" => Kind::Double,
            "unix-time" => Kind::UnixTime,
            "pure-token" => Kind::Token,
            "oneof" => Kind::OneOf(inner()),
            "block" => Kind::Block(inner()),
            "string" | "pattern" => Kind::Text,
            other => panic!("COMMAND DOCS has a type of argument that is new here: {other}"),
        };
        let flags: Vec<&str> =
            map.get("flags").map_or(Vec::new(), |v| v.list().iter().map(Value::text).collect());
        Arg {
            name: text("name").to_string(),
            kind,
            token: map.get("token").map(|v| v.text().to_string()),
            optional: flags.contains(&"optional"),
            multiple: flags.contains(&"multiple"),
            multiple_token: flags.contains(&"multiple_token"),
        }
    }
}

fn read_args(value: &Value) -> Vec<Arg> {
    value.list().iter().map(Arg::read).collect()
}

/// A command or a subcommand.
#[derive(Clone, Debug)]
pub struct Form {
    /// Its words in lower case: `xgroup create`.
    pub name: String,
    pub group: String,
    pub args: Vec<Arg>,
    /// A container's own form: a subcommand that there is not.
    pub is_container: bool,
}

/// All commands and subcommands of a reply to COMMAND DOCS, in the order of their names.
pub fn forms(docs: &[u8]) -> Vec<Form> {
    let (docs, _) = Value::read(docs);
    let mut forms = Vec::new();
    for (name, doc) in docs.map() {
        let doc = doc.map();
        let group = doc["group"].text().to_string();
        let args =
            |doc: &BTreeMap<&str, &Value>| doc.get("arguments").map_or(vec![], |v| read_args(v));
        let subs = doc.get("subcommands").map_or(BTreeMap::new(), |subs| subs.map());
        let is_container = !subs.is_empty();
        forms.push(Form {
            name: name.into(),
            group: group.clone(),
            args: args(&doc),
            is_container,
        });
        for (sub, doc) in subs {
            let name = sub.replace('|', " ");
            let args = args(&doc.map());
            forms.push(Form { name, group: group.clone(), args, is_container: false });
        }
    }
    forms
}
