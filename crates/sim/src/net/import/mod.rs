//! Readers for the files of other simulators: htsim's topologies and connection matrices, HPCC's
//! topologies, flows and results.
//!
//! Each reader is a function of a text. An error is one line that begins with the line's number.

pub mod hpcc;
pub mod htsim;
#[cfg(test)]
mod tests;

use std::str::FromStr;

/// The words of each line with its number, from 1, without comments and empty lines.
fn lines(text: &str) -> impl Iterator<Item = (usize, Vec<&str>)> {
    let rows = text.lines().map(words);
    (1..).zip(rows).filter(|(_, words)| !words.is_empty())
}

fn words(line: &str) -> Vec<&str> {
    line.split('#').next().unwrap_or_default().split_whitespace().collect()
}

/// Parses a number; `what` names it in the error.
fn number<T: FromStr>(line: usize, what: &str, word: Option<&&str>) -> Result<T, String> {
    let Some(word) = word else { return Err(format!("line {line}: {what} has no number")) };
    word.parse().map_err(|_| format!("line {line}: {what} {word} is no such number"))
}
