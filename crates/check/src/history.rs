//! Recorded operations, and their file format (JSON Lines).

use std::fmt;
use std::io::{self, BufRead, Write};

use serde::{Deserialize, Serialize};

/// A reply as a client saw it, in either protocol version.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", content = "value", rename_all = "lowercase")]
pub enum Reply {
    /// No value.
    Nil,
    /// The simple string OK.
    Ok,
    /// An integer.
    Int(i64),
    /// A string of bytes.
    Bulk(#[serde(with = "json_bytes")] Vec<u8>),
    /// The operation was executed, and its own reply is not known: a command over several keys has
    /// one reply for all of them.
    Unseen,
    /// A list of replies. Sets and maps of RESP3 are flattened into one.
    Array(Vec<Reply>),
    /// An error that says that nothing was executed. An operation whose error leaves the outcome
    /// unknown is recorded without a return.
    Error(String),
}

impl Reply {
    /// A string of bytes.
    #[must_use]
    pub fn bulk(value: impl Into<Vec<u8>>) -> Reply {
        Reply::Bulk(value.into())
    }
}

impl fmt::Display for Reply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reply::Nil => f.write_str("(nil)"),
            Reply::Ok => f.write_str("OK"),
            Reply::Unseen => f.write_str("(not known)"),
            Reply::Int(value) => write!(f, "(integer) {value}"),
            Reply::Bulk(value) => write!(f, "{}", Shown(value)),
            Reply::Array(items) => {
                f.write_str("[")?;
                for (index, item) in items.iter().enumerate() {
                    write!(f, "{}{item}", if index == 0 { "" } else { ", " })?;
                }
                f.write_str("]")
            }
            Reply::Error(text) => write!(f, "(error) {text}"),
        }
    }
}

/// One call of one client.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Operation {
    /// The calling client, shown in reports only.
    pub client: u64,
    /// The operation's ordinal among the client's, if it was sent before the replies to earlier
    /// ones had come (a pipeline). Writes of one client on one key take effect in this order, and
    /// reads keep their order relative to writes, not to each other.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ordinal: Option<u64>,
    /// The time of the call in ns of the recorder's clock, taken before anything was sent.
    #[serde(rename = "call")]
    pub call_ns: u64,
    /// The time at which the reply had arrived. `None` if the outcome is unknown: the operation may
    /// take effect once, at any time after the call, or never.
    #[serde(rename = "return", deserialize_with = "Option::deserialize")]
    pub return_ns: Option<u64>,
    /// The command with its arguments, the name first.
    #[serde(with = "json_args")]
    pub cmd: Vec<Vec<u8>>,
    /// The reply. `None` if and only if `return_ns` is `None`.
    #[serde(default)]
    pub reply: Option<Reply>,
    /// The path that it took ("fast, replica 2"), shown in reports.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[{:>13} .. ", Millis(self.call_ns))?;
        match self.return_ns {
            Some(at) => write!(f, "{:>13}]", Millis(at))?,
            None => write!(f, "{:>13}]", "never")?,
        }
        write!(f, " client {:>3} ", self.client)?;
        for arg in &self.cmd {
            write!(f, " {}", Shown(arg))?;
        }
        match &self.reply {
            Some(reply) => write!(f, " -> {reply}")?,
            None => f.write_str(" -> outcome unknown")?,
        }
        match &self.path {
            Some(path) => write!(f, "  ({path})"),
            None => Ok(()),
        }
    }
}

/// A time in ns, shown in ms.
struct Millis(u64);

impl fmt::Display for Millis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{}.{:06}", self.0 / 1_000_000, self.0 % 1_000_000))
    }
}

/// The number of bytes of an argument that a report shows.
const SHOWN_BYTES_MAX: usize = 64;

/// Bytes made readable: escaped, and cut if they are long.
pub(crate) struct Shown<'a>(pub(crate) &'a [u8]);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cut = &self.0[..self.0.len().min(SHOWN_BYTES_MAX)];
        let plain = !cut.is_empty() && cut.iter().all(|b| b.is_ascii_graphic() && *b != b'"');
        if plain {
            write!(f, "{}", cut.escape_ascii())?;
        } else {
            write!(f, "\"{}\"", cut.escape_ascii())?;
        }
        if cut.len() < self.0.len() {
            write!(f, "...({} bytes)", self.0.len())?;
        }
        Ok(())
    }
}

/// The reason that a history cannot be checked at all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HistoryError {
    /// The line of the file, or the position of the operation in the slice, from 1; 0 if no line is
    /// at fault.
    pub line: usize,
    /// What is wrong, and what to do about it.
    pub message: String,
}

impl fmt::Display for HistoryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => write!(f, "history: {}", self.message),
            line => write!(f, "history, line {line}: {}", self.message),
        }
    }
}

impl std::error::Error for HistoryError {}

/// A list of operations, in any order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct History {
    /// The operations. The n-th (from 1) is line n of the file that [`History::write`] writes.
    pub operations: Vec<Operation>,
}

impl History {
    /// Reads JSON Lines, one operation a line. Blank lines are an error too: every line counts.
    ///
    /// # Errors
    /// The first line that is not an operation, or a failure to read.
    pub fn read(mut reader: impl BufRead) -> Result<History, HistoryError> {
        let mut operations = Vec::new();
        let mut bytes = Vec::new();
        loop {
            bytes.clear();
            let line = operations.len() + 1;
            let fail = |message: String| HistoryError { line, message };
            match reader.read_until(b'\n', &mut bytes) {
                Ok(0) => return Ok(History { operations }),
                Ok(_) => {}
                Err(error) => return Err(fail(format!("cannot read: {error}"))),
            }
            let operation = serde_json::from_slice(&bytes).map_err(|error| {
                // serde_json's line number counts within this line, so only its column helps.
                let text = error.to_string();
                let what = text.split(" at line ").next().unwrap_or_default().to_owned();
                fail(format!("not an operation: {what} (column {})", error.column()))
            })?;
            operations.push(operation);
        }
    }

    /// Writes JSON Lines that [`History::read`] reads back.
    ///
    /// # Errors
    /// An error of the writer.
    pub fn write(&self, mut writer: impl Write) -> io::Result<()> {
        for operation in &self.operations {
            serde_json::to_writer(&mut writer, operation)?;
            writer.write_all(b"\n")?;
        }
        writer.flush()
    }
}

/// Bytes in JSON: a string if they are UTF-8, otherwise `{"hex": "00ff"}`.
#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum JsonBytes<'a> {
    Text(std::borrow::Cow<'a, str>),
    Hex { hex: String },
}

impl<'a> JsonBytes<'a> {
    fn of(bytes: &'a [u8]) -> JsonBytes<'a> {
        match std::str::from_utf8(bytes) {
            Ok(text) => JsonBytes::Text(text.into()),
            Err(_) => {
                let hex = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
                JsonBytes::Hex { hex }
            }
        }
    }

    fn into_bytes(self) -> Option<Vec<u8>> {
        let hex = match self {
            JsonBytes::Text(text) => return Some(text.into_owned().into_bytes()),
            JsonBytes::Hex { hex } => hex,
        };
        if !hex.len().is_multiple_of(2) || !hex.bytes().all(|b| b.is_ascii_hexdigit()) {
            return None;
        }
        let digit = |b: u8| char::from(b).to_digit(16).map(|d| d as u8);
        hex.as_bytes().chunks(2).map(|pair| Some(digit(pair[0])? << 4 | digit(pair[1])?)).collect()
    }
}

const BAD_HEX: &str = "hex takes an even number of hexadecimal digits";

pub(crate) mod json_bytes {
    use super::{BAD_HEX, JsonBytes};
    use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};

    pub(crate) fn serialize<S: Serializer>(bytes: &[u8], to: S) -> Result<S::Ok, S::Error> {
        JsonBytes::of(bytes).serialize(to)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<u8>, D::Error> {
        JsonBytes::deserialize(from)?.into_bytes().ok_or_else(|| D::Error::custom(BAD_HEX))
    }
}

mod json_args {
    use super::{BAD_HEX, JsonBytes};
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub(super) fn serialize<S: Serializer>(args: &[Vec<u8>], to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq(args.iter().map(|arg| JsonBytes::of(arg)))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Vec<Vec<u8>>, D::Error> {
        let args = Vec::<JsonBytes<'_>>::deserialize(from)?;
        let bytes: Option<_> = args.into_iter().map(JsonBytes::into_bytes).collect();
        bytes.ok_or_else(|| D::Error::custom(BAD_HEX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_documented_line_is_what_is_read_and_written() {
        let line = concat!(
            r#"{"client":3,"call":10,"return":20,"cmd":["SET","k",{"hex":"ff00"}],"#,
            r#""reply":{"kind":"ok"},"path":"slow: dirty"}"#,
            "\n",
            r#"{"client":4,"call":11,"return":null,"cmd":["INCR","n"],"reply":null}"#,
            "\n",
            r#"{"client":5,"call":12,"return":13,"cmd":["LRANGE","l","0","-1"],"#,
            r#""reply":{"kind":"array","value":[{"kind":"bulk","value":"a"},{"kind":"int","value":-7},"#,
            r#"{"kind":"nil"},{"kind":"error","value":"ERR x"},{"kind":"bulk","value":{"hex":"80"}}]}}"#,
            "\n",
        );
        let history = History::read(line.as_bytes()).unwrap();
        assert_eq!(history.operations[0].cmd[2], [0xff, 0]);
        assert_eq!(history.operations[1].return_ns, None);
        let mut written = Vec::new();
        history.write(&mut written).unwrap();
        assert_eq!(String::from_utf8(written).unwrap(), line);
    }

    #[test]
    fn a_bad_line_is_named_by_its_number() {
        let good = r#"{"client":4,"call":11,"return":null,"cmd":["INCR","n"]}"#;
        for bad in [
            "",
            "{",
            r#"{"client":4,"call":11,"cmd":["INCR","n"]}"#,
            r#"{"client":4,"call":11,"return":1,"cmd":[{"hex":"0"}]}"#,
            r#"{"client":4,"call":11,"return":1,"cmd":["GET"],"reply":{"kind":"what"}}"#,
        ] {
            let error = History::read(format!("{good}\n{bad}\n").as_bytes()).unwrap_err();
            assert_eq!(error.line, 2, "{bad}");
            assert!(error.to_string().starts_with("history, line 2: not an operation"), "{error}");
        }
    }
}
