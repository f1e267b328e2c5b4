//! A paper's statements about its figures, as numbers where its text has some, compared with
//! measurements.

use std::fmt::{self, Write};
use std::path::Path;

use concord_runtime::{Context, Error};
use concord_sim::load::Measured;

use super::figure::Figure;
use super::runner::Mean;
use super::seen::Seen;
use crate::results::provenance;

/// The number in the paper's text.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Paper {
    /// A number, or one that expresses its words.
    Is(f64),
    /// A lower bound.
    Above(f64),
    /// An upper bound.
    Below(f64),
    /// None: the statement is ours.
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
    /// The ratio of our number to the paper's, or whether ours is within the paper's bound.
    pub fn beside(self, ours: f64) -> String {
        let holds = match self {
            Paper::Is(0.0) | Paper::Silent => return "-".to_string(),
            Paper::Is(value) => return format!("{:.2}", ours / value),
            Paper::Above(value) => ours > value,
            Paper::Below(value) => ours < value,
        };
        if holds { "holds" } else { "does not hold" }.to_string()
    }

    /// As [`Paper::beside`], but a bound counts only if the whole confidence interval of ours is on
    /// one side of it.
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

/// A statement of the paper about a figure on a store.
pub type Claim = ClaimOf<fn(&Seen) -> Option<Mean>>;

/// A statement of a paper about a figure. `F` takes the runs, and gives our number; `None` if a
/// point is missing.
pub struct ClaimOf<F> {
    /// The figure that it is about.
    pub figure: &'static str,
    /// The statement in the paper's words, shortened.
    pub says: &'static str,
    /// The paper's number.
    pub paper: Paper,
    /// The number from our runs.
    pub ours: F,
    /// The reason for a difference, or the source of the number.
    pub reason: &'static str,
}

impl<F> ClaimOf<F> {
    /// Its row, with our number. A bound of the paper's counts only if the whole confidence
    /// interval of ours is on one side of it.
    pub fn row(&self, ours: Mean) -> Row<'static> {
        let ClaimOf { figure, says, paper, reason, .. } = *self;
        Row { figure, says, paper, ours, beside: paper.beside_interval(&ours), reason }
    }
}

/// Operations answered per second.
pub fn total(m: &Measured) -> f64 {
    m.total()
}

/// Reads answered per second.
pub fn reads(m: &Measured) -> f64 {
    m.reads_per_second
}

/// Writes answered per second.
pub fn writes(m: &Measured) -> f64 {
    m.writes_per_second
}

/// The mean latency of reads, in us.
pub fn read_us(m: &Measured) -> f64 {
    m.read.mean_ns / 1e3
}

/// The ratio `a / b`, with the confidence interval that results from both.
pub fn over(a: Option<Mean>, b: Option<Mean>) -> Option<Mean> {
    let (a, b) = (a?, b?);
    let mean = a.mean / b.mean;
    let relative = (a.half / a.mean).hypot(b.half / b.mean);
    Some(Mean { mean, half: mean * relative })
}

/// The mean in millions.
pub fn millions(mean: Option<Mean>) -> Option<Mean> {
    mean.map(|m| Mean { mean: m.mean / 1e6, half: m.half / 1e6 })
}

/// A value without an interval.
pub fn exact(value: Option<f64>) -> Option<Mean> {
    value.map(|mean| Mean { mean, half: 0.0 })
}

/// A row of the table: a statement of the paper, and our number.
pub struct Row<'a> {
    /// The figure that it is about.
    pub figure: &'a str,
    /// The statement in the paper's words, shortened.
    pub says: &'a str,
    /// The paper's number.
    pub paper: Paper,
    /// The number from our runs.
    pub ours: Mean,
    /// The comparison of our number with the paper's.
    pub beside: String,
    /// The reason for a difference, or the source of the number.
    pub reason: &'a str,
}

/// The table of `rows` in Markdown, with this number of decimals.
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

/// The table of all claims, in Markdown.
pub fn table(claims: &[Claim], all: &[(Figure, Seen)]) -> String {
    let row = |claim: &Claim| {
        let (_, seen) = all.iter().find(|(f, _)| f.name == claim.figure)?;
        let ours = (claim.ours)(seen)?;
        Some(Row { beside: claim.paper.beside(ours.mean), ..claim.row(ours) })
    };
    table_of(claims.iter().filter_map(row), 2)
}

/// Writes a table to a file, and prints it.
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

/// Asserts that each claim is about one of `figures`.
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
