//! The options that all papers share, and the selection and the runs of their figures.

use std::path::PathBuf;
use std::time::Instant;

use clap::Args;
use concord_runtime::Error;

use super::figure::Figure;
use super::runner::Runner;
use super::seen::{self, Seen};
use crate::results::Results;

/// The selected figures, the number of runs, and the directory of results.
#[derive(Args, Clone, Debug)]
pub struct FigureArgs {
    /// Only these figures, by their numbers in the paper; ablations by their names
    #[arg(long, value_delimiter = ',', value_name = "FIGURE")]
    pub figures: Vec<String>,
    /// Number of runs of each point, each with another seed
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u64).range(2..=100))]
    pub repeats: u64,
    /// Number of threads [default: the number of cores]
    #[arg(long, value_name = "N")]
    threads: Option<usize>,
    /// The directory for results, in which they go to a directory with the paper's name
    #[arg(long, value_name = "DIR", default_value = "results")]
    pub out: PathBuf,
}

impl FigureArgs {
    /// A runner for this number of loads, with the number of threads that is wanted.
    pub fn runner(&self, runs: u64) -> Runner {
        let cores = || std::thread::available_parallelism().map_or(1, usize::from);
        Runner::new(self.threads.unwrap_or_else(cores), runs)
    }

    /// Whether the figure with this name is wanted.
    pub fn wants(&self, name: &str) -> bool {
        self.figures.is_empty() || self.figures.iter().any(|wanted| wanted == name)
    }

    /// The figures among `all` that are wanted; `others` are further names that may be wanted.
    ///
    /// # Errors
    /// A name that does not exist.
    pub fn choose(&self, all: Vec<Figure>, others: &[&'static str]) -> Result<Vec<Figure>, Error> {
        let known: Vec<&str> = all.iter().map(|f| f.name).chain(others.iter().copied()).collect();
        self.check(&known)?;
        Ok(all.into_iter().filter(|figure| self.wants(figure.name)).collect())
    }

    /// Checks that all wanted names are among `known`.
    ///
    /// # Errors
    /// A name that is not.
    pub fn check(&self, known: &[&str]) -> Result<(), Error> {
        match self.figures.iter().find(|name| !known.contains(&name.as_str())) {
            Some(name) => Err(Error::new(format!("no figure {name:?}: {}", known.join(", ")))),
            None => Ok(()),
        }
    }

    /// Runs figures one by one, and writes their results.
    ///
    /// # Errors
    /// A rack that did not run, or a file that could not be written.
    pub fn run(
        &self,
        figures: Vec<Figure>,
        runner: &Runner,
        results: &Results,
    ) -> Result<Vec<(Figure, Seen)>, Error> {
        let began = Instant::now();
        let mut all = Vec::new();
        for figure in figures {
            let seen = seen::run(&figure, self.repeats, runner)?;
            seen::write(results, &figure, &seen)?;
            runner.say(&format!("{}: {:.0} s in all", figure.name, began.elapsed().as_secs_f64()));
            all.push((figure, seen));
        }
        Ok(all)
    }
}
