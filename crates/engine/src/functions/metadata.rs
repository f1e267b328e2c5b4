//! The first line of a library, `#!lua name=...`, parsed as Redis does.

use alloc::vec::Vec;

const BAD_NAME: &[u8] =
    b"ERR Library names can only contain letters, numbers, or underscores(_) and \
    must be at least one character long";

/// The index of the first line's end.
pub(super) fn first_line_end(text: &[u8]) -> usize {
    text.iter().position(|byte| *byte == b'\n').unwrap_or(text.len())
}

/// The library's name, from its text; an error reply if the first line is not valid.
pub(super) fn name_of(text: &[u8]) -> Result<Vec<u8>, Vec<u8>> {
    let Some(line) = text.strip_prefix(b"#!") else {
        return Err(b"ERR Missing library metadata".to_vec());
    };
    let end = first_line_end(text);
    let words = if end == text.len() { None } else { words(&line[..end - 2]) };
    // The language follows `#!` without a space; with a space it is empty.
    let is_apart = line.first().is_none_or(u8::is_ascii_whitespace);
    let words = words.ok_or_else(|| b"ERR Invalid library metadata".to_vec())?;
    let mut words = words.into_iter();
    let engine = if is_apart { Vec::new() } else { words.next().unwrap_or_default() };
    let mut name = None;
    for word in words {
        let prefix = word.split_at_checked(5);
        let Some((_, value)) = prefix.filter(|(key, _)| key.eq_ignore_ascii_case(b"name=")) else {
            return Err([b"ERR Invalid metadata value given: ", &word[..]].concat());
        };
        if name.is_some() {
            let text = b"ERR Invalid metadata value, name argument was given multiple times";
            return Err(text.to_vec());
        }
        name = Some(value.to_vec());
    }
    let name = name.ok_or_else(|| b"ERR Library name was not given".to_vec())?;
    if name.is_empty() || !name.iter().all(|byte| byte.is_ascii_alphanumeric() || *byte == b'_') {
        return Err(BAD_NAME.to_vec());
    }
    if !engine.eq_ignore_ascii_case(super::ENGINE) {
        return Err([b"ERR Engine '", &engine[..], b"' not found"].concat());
    }
    Ok(name)
}

/// The words of a line, in quotes or not; `None` if a quote is not closed, or is not followed by a
/// space.
fn words(line: &[u8]) -> Option<Vec<Vec<u8>>> {
    let mut words = Vec::new();
    let mut rest = line.trim_ascii_start();
    while !rest.is_empty() {
        let mut word = Vec::new();
        while let Some((&byte, behind)) = rest.split_first() {
            rest = behind;
            match byte {
                _ if byte.is_ascii_whitespace() => break,
                b'"' | b'\'' => {
                    rest = quoted(byte, rest, &mut word)?;
                    if rest.first().is_some_and(|byte| !byte.is_ascii_whitespace()) {
                        return None;
                    }
                }
                _ => word.push(byte),
            }
        }
        words.push(word);
        rest = rest.trim_ascii_start();
    }
    Some(words)
}

/// Appends the quoted text to `word`. Returns the rest after the closing quote; `None` without one.
fn quoted<'a>(quote: u8, mut rest: &'a [u8], word: &mut Vec<u8>) -> Option<&'a [u8]> {
    loop {
        let (&byte, behind) = rest.split_first()?;
        rest = behind;
        match (byte, rest) {
            (b'\\', [b'x', high, low, behind @ ..]) if quote == b'"' => {
                let digit = |byte: u8| char::from(byte).to_digit(16);
                match (digit(*high), digit(*low)) {
                    (Some(high), Some(low)) => {
                        word.push((high * 16 + low) as u8);
                        rest = behind;
                    }
                    _ => {
                        word.push(b'x');
                        rest = &rest[1..];
                    }
                }
            }
            (b'\\', [escaped, behind @ ..]) if quote == b'"' => {
                word.push(match escaped {
                    b'n' => b'\n',
                    b'r' => b'\r',
                    b't' => b'\t',
                    b'b' => 8,
                    b'a' => 7,
                    other => *other,
                });
                rest = behind;
            }
            (b'\\', [b'\'', behind @ ..]) => {
                word.push(b'\'');
                rest = behind;
            }
            _ if byte == quote => return Some(rest),
            _ => word.push(byte),
        }
    }
}
