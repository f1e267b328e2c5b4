//! A paper's statements about its figures, in numbers where its text has some, beside the measured
//! ones.

use std::fmt::{self, Write};
use std::path::Path;

use concord_runtime::{Context, Error};
use concord_sim::load::Measured;

use super::figure::Figure;
use super::runner::Mean;
use super::seen::Seen;
use crate::results::provenance;

/// What the paper's text gives.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Paper {
    /// A number, or what its words mean as one.
    Is(f64),
    /// No number: more than this.
    Above(f64),
    /// No number: less than this.
    Below(f64),
    /// Nothing: what is asked is ours.
    Silent,
}

impl fmt::Display for Paper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Paper::Is(value) => write!(f, "{value}"),
            Paper::Above(value) => write!(f, "> {value}"),
            Paper::Below(value) => write!(f, "< {value}"),
            Paper::Silent => write!(f, "-"),
        }
    }
}

impl Paper {
    /// Ours over the paper's, or whether ours is on the paper's side.
    pub fn beside(self, ours: f64) -> String {
        let holds = match self {
            Paper::Is(0.0) | Paper::Silent => return "-".to_string(),
            Paper::Is(value) => return format!("{:.2}", ours / value),
            Paper::Above(value) => ours > value,
            Paper::Below(value) => ours < value,
        };
        if holds { "holds" } else { "does not hold" }.to_string()
    }

    /// As [`Paper::beside`], but that a bound is shown only if the whole interval of ours is on one
    /// side of it.
    pub fn beside_interval(self, ours: &Mean) -> String {
        let bound = match self {
            Paper::Is(_) | Paper::Silent => return self.beside(ours.mean),
            Paper::Above(bound) | Paper::Below(bound) => bound,
        };
        if ours.half > 0.0 && (ours.mean - bound).abs() <= ours.half {
            return "not shown".to_string();
        }
        self.beside(ours.mean)
    }
}

/// A statement of the paper about a figure.
pub struct Claim {
    /// Which figure.
    pub figure: &'static str,
    /// In the paper's words, shortened.
    pub says: &'static str,
    /// Its number.
    pub paper: Paper,
    /// The same from our runs; `None` if a point is missing.
    pub ours: fn(&Seen) -> Option<Mean>,
    /// Why it differs, or where the number comes from.
    pub reason: &'static str,
}

/// Operations answered a second.
pub fn total(m: &Measured) -> f64 {
    m.total()
}

/// Reads answered a second.
pub fn reads(m: &Measured) -> f64 {
    m.reads_per_second
}

/// Writes answered a second.
pub fn writes(m: &Measured) -> f64 {
    m.writes_per_second
}

/// Mean latency of reads, in us.
pub fn read_us(m: &Measured) -> f64 {
    m.read.mean_ns / 1e3
}

/// `a / b`, with the interval that both bring.
pub fn over(a: Option<Mean>, b: Option<Mean>) -> Option<Mean> {
    let (a, b) = (a?, b?);
    let mean = a.mean / b.mean;
    let relative = (a.half / a.mean).hypot(b.half / b.mean);
    Some(Mean { mean, half: mean * relative })
}

/// In millions.
pub fn millions(mean: Option<Mean>) -> Option<Mean> {
    mean.map(|m| Mean { mean: m.mean / 1e6, half: m.half / 1e6 })
}

/// A value without an interval.
pub fn exact(value: Option<f64>) -> Option<Mean> {
    value.map(|mean| Mean { mean, half: 0.0 })
}

/// A row of the table: a statement, and ours beside it.
pub struct Row<'a> {
    /// Which figure.
    pub figure: &'a str,
    /// In the paper's words, shortened.
    pub says: &'a str,
    /// Its number.
    pub paper: Paper,
    /// The same from our runs.
    pub ours: Mean,
    /// Ours beside the paper's.
    pub beside: String,
    /// Why it differs, or where the number comes from.
    pub reason: &'a str,
}

/// The table of `rows`, in Markdown, with so many digits after the point.
pub fn table_of<'a>(rows: impl Iterator<Item = Row<'a>>, digits: usize) -> String {
    let mut text = "| figure | the paper says | paper | ours | ours / paper | |\n\
                    |---|---|---|---|---|---|\n"
        .to_string();
    let least = 0.5 * 0.1f64.powi(digits as i32);
    for Row { figure, says, paper, ours: Mean { mean, half }, beside, reason } in rows {
        let half = if half > least { format!(" ± {half:.digits$}") } else { String::new() };
        let _ = writeln!(
            text,
            "| {figure} | {says} | {paper} | {mean:.digits$}{half} | {beside} | {reason} |"
        );
    }
    text
}

/// The table, in Markdown.
pub fn table(claims: &[Claim], all: &[(Figure, Seen)]) -> String {
    let row = |claim: &Claim| {
        let (_, seen) = all.iter().find(|(f, _)| f.name == claim.figure)?;
        let ours = (claim.ours)(seen)?;
        let Claim { figure, says, paper, reason, .. } = *claim;
        Some(Row { figure, says, paper, ours, beside: paper.beside(ours.mean), reason })
    };
    table_of(claims.iter().filter_map(row), 2)
}

/// Writes a table and shows it.
///
/// # Errors
/// A file that could not be written.
pub fn tell(path: &Path, text: &str) -> Result<(), Error> {
    let from = provenance().replace("# ", "");
    std::fs::write(path, format!("<!--\n{from}-->\n{text}"))
        .cannot(format!("write {}", path.display()))?;
    println!("\n{text}\nwrote {} and the figures beside it", path.display());
    Ok(())
}

/// Each claim is about one of `figures`.
#[cfg(test)]
pub fn all_are_run(claims: &[Claim], figures: &[Figure]) {
    for claim in claims {
        assert!(figures.iter().any(|f| f.name == claim.figure), "{}", claim.figure);
    }
}

#[cfg(test)]
mod tests {
    use super::Paper::{Above, Below, Is, Silent};
    use crate::reproduce::runner::Mean;

    #[test]
    fn ours_stands_beside_the_papers_number_or_on_its_side() {
        assert_eq!((Is(2.0).to_string(), Is(2.0).beside(3.0)), ("2".into(), "1.50".into()));
        assert_eq!(
            (Above(1.0).to_string(), Above(1.0).beside(0.9)),
            ("> 1".into(), "does not hold".into())
        );
        assert_eq!(Below(1.0).beside(0.9), "holds");
        let of = |mean, half| Below(50.0).beside_interval(&Mean { mean, half });
        assert_eq!([of(14.7, 372.0), of(14.7, 3.6)], ["not shown", "holds"]);
        assert_eq!([of(90.0, 0.0), of(55.0, 9.0)], ["does not hold", "not shown"]);
        assert_eq!(Silent.beside(3.0), "-");
    }
}
