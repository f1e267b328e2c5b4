//! The format of FUNCTION DUMP's reply and FUNCTION RESTORE's argument: Redis' own form
//! ([`crate::rdb`]), so that libraries move between the two. For each library a byte that says so
//! and its text.

use alloc::vec::Vec;

use crate::rdb::{BAD_PAYLOAD, COMPRESSED, Length, length, put_length, seal, unpack, unseal};

/// Precedes each library.
const LIBRARY: u8 = 245;
/// The newest version of the form whose libraries look the same.
const VERSION_MAX: u16 = 12;
/// No text is longer.
const TEXT_BYTES_MAX: usize = super::CODE_BYTES_MAX;

const BAD_LIBRARY: &[u8] = b"ERR Failed loading library data";

/// The texts of libraries as one payload.
pub(super) fn dump<'a>(texts: impl Iterator<Item = &'a [u8]>) -> Vec<u8> {
    let mut out = Vec::new();
    for text in texts {
        out.push(LIBRARY);
        put_length(&mut out, text.len() as u64);
        out.extend_from_slice(text);
    }
    seal(&mut out);
    out
}

/// The texts that a payload has.
pub(super) fn texts(payload: &[u8]) -> Result<Vec<Vec<u8>>, &'static [u8]> {
    let mut rest = unseal(payload, VERSION_MAX).ok_or(BAD_PAYLOAD)?;
    let mut texts = Vec::new();
    let mut bytes = 0;
    while let Some((kind, behind)) = rest.split_first() {
        if *kind != LIBRARY {
            return Err(b"ERR given type is not a function");
        }
        let (text, behind) = text(behind).ok_or(BAD_LIBRARY)?;
        rest = behind;
        bytes += text.len();
        if bytes > TEXT_BYTES_MAX {
            return Err(BAD_LIBRARY);
        }
        texts.push(text);
    }
    Ok(texts)
}

fn size(bytes: &[u8]) -> Option<(usize, &[u8])> {
    match length(bytes)? {
        (Length::Of(size), rest) => Some((usize::try_from(size).ok()?, rest)),
        (Length::Special(_), _) => None,
    }
}

/// A text, and the rest after it. (A number, which Redis encodes shorter, is not a library.)
fn text(bytes: &[u8]) -> Option<(Vec<u8>, &[u8])> {
    match length(bytes)? {
        (Length::Of(length), rest) => {
            let length = usize::try_from(length).ok()?;
            let (text, rest) = rest.split_at_checked(length)?;
            Some((text.to_vec(), rest))
        }
        (Length::Special(COMPRESSED), rest) => {
            let (compressed, rest) = size(rest)?;
            let (plain, rest) = size(rest)?;
            let (packed, rest) = rest.split_at_checked(compressed)?;
            let text = if plain > TEXT_BYTES_MAX { None } else { unpack(packed, plain) };
            Some((text?, rest))
        }
        (Length::Special(_), _) => None,
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use super::*;

    #[test]
    fn a_payload_survives_and_a_changed_one_is_refused() {
        let long = vec![b'x'; 20_000];
        let all: [&[u8]; 4] = [b"", &[b'y'; 63], &[b'z'; 64], &long];
        let payload = dump(all.into_iter());
        assert_eq!(texts(&payload).unwrap(), all);
        for at in [0, 1, 100, payload.len() - 1] {
            let mut changed = payload.clone();
            changed[at] ^= 1;
            assert_eq!(texts(&changed), Err(BAD_PAYLOAD));
        }
        for end in 0..payload.len() {
            assert!(texts(&payload[..end]).is_err());
        }
    }
}
