//! The paper's statements about its figures, as numbers where its text has some, compared with
//! measurements.

use concord_sim::falcon::load::{Delays, Measured};

use super::figures::{
    FALCON, FULL, HALF, SCALE_FALCON, SCALE_IDEAL, SCALE_JBSQ, SCALE_PREFETCH, SCALE_SPARROW,
    SCALE_TWO, SPARK, SPARROW, ms, task,
};
use super::seen::Seen;
use crate::reproduce::claims::Paper::{Below, Is, Silent};
use crate::reproduce::claims::{ClaimOf, exact, over, table_of};
use crate::reproduce::runner::Mean;

const EIGHTY: f64 = 80.0;

/// A statement about one figure, or two.
type Claim = ClaimOf<fn(&All) -> Option<Mean>>;

/// The results of all figures.
struct All<'a>(&'a [(&'static str, Seen)]);

impl All<'_> {
    fn of(&self, name: &str) -> Option<&Seen> {
        self.0.iter().find(|(of, _)| *of == name).map(|(_, seen)| seen)
    }

    /// A delay of a figure's point, in ms.
    fn delay(
        &self,
        name: &str,
        line: usize,
        x: f64,
        value: impl Fn(&Delays) -> u32,
    ) -> Option<Mean> {
        self.of(name)?.at(line, x, |m| ms(value(task(m))))
    }

    /// A value of the steps in a figure.
    fn step(&self, name: &str, line: usize, value: impl Fn(&Measured) -> f64) -> Option<Mean> {
        self.of(name)?.at(line, EIGHTY, value)
    }

    /// The ratio of Sparrow to Falcon.
    fn gain(&self, name: &str, x: f64, value: fn(&Delays) -> u32) -> Option<Mean> {
        over(self.delay(name, SPARROW, x, value), self.delay(name, FALCON, x, value))
    }

    /// The ratio of Sparrow to Falcon for whole jobs, up to the start of their last task.
    fn gain_of_jobs(&self, x: f64, value: fn(&Delays) -> u32) -> Option<Mean> {
        let of = |line| self.of("8")?.at(line, x, |m| ms(value(&m.job)));
        over(of(SPARROW), of(FALCON))
    }

    /// The difference of p99 between a line and the ideal queue, in us, by seed.
    fn above_ideal(&self, name: &str, line: usize, x: f64) -> Option<Mean> {
        let p99_us = |m: &Measured| 1e3 * ms(p99(task(m)));
        self.of(name)?.paired((line, SCALE_IDEAL), x, p99_us)
    }
}

fn median(d: &Delays) -> u32 {
    d.median_ns
}

fn p95(d: &Delays) -> u32 {
    d.p95_ns
}

fn p99(d: &Delays) -> u32 {
    d.p99_ns
}

fn most_step_ms(m: &Measured) -> f64 {
    m.steps.iter().map(|step| ms(step.delays.p95_ns)).fold(0.0, f64::max)
}

fn longest_step_ms(m: &Measured) -> f64 {
    m.steps.iter().map(|step| ms(step.delays.most_ns)).fold(0.0, f64::max)
}

/// Queueing and retrieval together, in ms.
fn queue_and_retrieval_ms(m: &Measured, value: fn(&Delays) -> u32) -> f64 {
    m.steps.iter().skip(1).map(|step| ms(value(&step.delays))).sum()
}

/// By how much the time from submission to end is shorter with Falcon, in percent of Sparrow's.
fn shorter(all: &All) -> Option<Mean> {
    let took = |line| Some(10.0 + all.delay("8", line, FULL, median)?.mean);
    exact(Some(100.0 * (1.0 - took(FALCON)? / took(SPARROW)?)))
}

/// The ratio of queueing and retrieval between Sparrow and Falcon. Each of both figures has one
/// line.
fn steps_gain(all: &All) -> Option<Mean> {
    let of = |name| all.step(name, FALCON, |m| queue_and_retrieval_ms(m, median));
    over(of("10"), of("9"))
}

/// All statements.
const CLAIMS: &[Claim] = &[
    Claim {
        figure: "8",
        says: "50%: Falcon's median, ms (fitted)",
        paper: Is(0.09),
        ours: |all| all.delay("8", FALCON, HALF, median),
        reason: "the paper has 0.09 at 95%, and says that it does not change with the load",
    },
    Claim {
        figure: "8",
        says: "50%: Sparrow's median over Falcon's (fitted)",
        paper: Is(22.0),
        ours: |all| all.gain("8", HALF, median),
        reason: "\"up to\"",
    },
    Claim {
        figure: "8",
        says: "50%: Spark's median, ms (fitted)",
        paper: Is(3_000.0),
        ours: |all| all.delay("8", SPARK, HALF, median),
        reason: "of a run of a minute: with as many tasks each second no queue that keeps up waits for seconds",
    },
    Claim {
        figure: "8",
        says: "Spark above 50%: tasks that have not begun at the end, percent",
        paper: Silent,
        ours: |all| {
            let left = |m: &Measured| 100.0 * m.unstarted as f64 / m.tasks as f64;
            all.of("8")?.at(SPARK, 60.0, left)
        },
        reason: "\"infinite queueing\": at 60%, after 60 s and 15 s more",
    },
    Claim {
        figure: "8",
        says: "95%: Falcon's median, ms",
        paper: Is(0.09),
        ours: |all| all.delay("8", FALCON, FULL, median),
        reason: "tasks wait for those of 10 ms before, which began late themselves: `period`, `phase`",
    },
    Claim {
        figure: "8",
        says: "95%: Falcon's 95th percentile, ms",
        paper: Is(0.25),
        ours: |all| all.delay("8", FALCON, FULL, p95),
        reason: "",
    },
    Claim {
        figure: "8",
        says: "95%: Sparrow's median, ms",
        paper: Is(2.22),
        ours: |all| all.delay("8", SPARROW, FULL, median),
        reason: "",
    },
    Claim {
        figure: "8",
        says: "95%: Sparrow's 95th percentile, ms",
        paper: Is(2.68),
        ours: |all| all.delay("8", SPARROW, FULL, p95),
        reason: "",
    },
    Claim {
        figure: "8",
        says: "95%: median, Sparrow's over Falcon's",
        paper: Is(23.0),
        ours: |all| all.gain("8", FULL, median),
        reason: "its own numbers give 24.7",
    },
    Claim {
        figure: "8",
        says: "95%: 95th percentile, Sparrow's over Falcon's",
        paper: Is(9.7),
        ours: |all| all.gain("8", FULL, p95),
        reason: "its own numbers give 10.7",
    },
    Claim {
        figure: "8",
        says: "95%: median of whole jobs, Sparrow's over Falcon's",
        paper: Silent,
        ours: |all| all.gain_of_jobs(FULL, median),
        reason: "to the start of a job's last task; the rows above are of tasks",
    },
    Claim {
        figure: "8",
        says: "95%: 95th percentile of whole jobs, Sparrow's over Falcon's",
        paper: Silent,
        ours: |all| all.gain_of_jobs(FULL, p95),
        reason: "",
    },
    Claim {
        figure: "8",
        says: "Falcon's median at 95% over that at 50% (\"did not change\")",
        paper: Is(1.0),
        ours: |all| {
            let at = |x| all.delay("8", FALCON, x, median);
            over(at(FULL), at(HALF))
        },
        reason: "",
    },
    Claim {
        figure: "8",
        says: "short tasks: less time from submission to end, percent",
        paper: Is(25.0),
        ours: shorter,
        reason: "its numbers give 17.4 in the median at 95%, 19.2 in the 95th percentile",
    },
    Claim {
        figure: "9",
        says: "80%: Falcon's longest step, 95th percentile, ms",
        paper: Below(0.1),
        ours: |all| all.step("9", FALCON, most_step_ms),
        reason: "",
    },
    Claim {
        figure: "9",
        says: "80%: Falcon's longest step, the longest of all, ms",
        paper: Below(0.1),
        ours: |all| all.step("9", FALCON, longest_step_ms),
        reason: "one of three seeds has 0.104: below 0.1 ms are 95% of the tasks, not all",
    },
    Claim {
        figure: "10",
        says: "80%: Sparrow's longest step, 95th percentile, ms (\"up to\")",
        paper: Is(2.5),
        ours: |all| all.step("10", FALCON, most_step_ms),
        reason: "",
    },
    Claim {
        figure: "10",
        says: "80%: Sparrow's longest step, the longest of all, ms (\"up to\")",
        paper: Is(2.5),
        ours: |all| all.step("10", FALCON, longest_step_ms),
        reason: "",
    },
    Claim {
        figure: "10",
        says: "80%: queueing and retrieval, medians, Sparrow's over Falcon's (\"up to\")",
        paper: Is(42.0),
        ours: steps_gain,
        reason: "",
    },
    Claim {
        figure: "poisson",
        says: "95%, jobs at any time: median, Sparrow's over Falcon's",
        paper: Silent,
        ours: |all| all.gain("poisson", FULL, median),
        reason: "both wait for executors, not for software",
    },
    Claim {
        figure: "poisson",
        says: "95%, jobs at any time: Falcon's median, ms",
        paper: Silent,
        ours: |all| all.delay("poisson", FALCON, FULL, median),
        reason: "",
    },
    Claim {
        figure: "phase",
        says: "95%, clients in phase: Falcon's median, ms",
        paper: Silent,
        ours: |all| all.delay("phase", FALCON, 0.0, median),
        reason: "",
    },
    Claim {
        figure: "period",
        says: "95%, 28.5 tasks every 10.1 ms: Falcon's median, ms",
        paper: Is(0.09),
        ours: |all| all.delay("period", FALCON, 10_100.0, median),
        reason: "a client that sleeps for 10 ms between jobs has such a period",
    },
    Claim {
        figure: "period",
        says: "the same: 95th percentile, ms",
        paper: Is(0.25),
        ours: |all| all.delay("period", FALCON, 10_100.0, p95),
        reason: "",
    },
    Claim {
        figure: "period",
        says: "the same: median, Sparrow's over Falcon's",
        paper: Is(23.0),
        ours: |all| all.gain("period", 10_100.0, median),
        reason: "",
    },
    Claim {
        figure: "period",
        says: "the same: 95th percentile, Sparrow's over Falcon's",
        paper: Is(9.7),
        ours: |all| all.gain("period", 10_100.0, p95),
        reason: "",
    },
    Claim {
        figure: "submit",
        says: "95%: Sparrow's median at Falcon's costs and a submission of 1 ms, ms",
        paper: Is(2.22),
        ours: |all| all.delay("submit", FALCON, FULL, median),
        reason: "one number fits many a Sparrow",
    },
    Claim {
        figure: "large",
        says: "fixed: Falcon's p99 above the ideal's, us",
        paper: Below(50.0),
        ours: |all| all.above_ideal("large", SCALE_FALCON, 1.0),
        reason: "the bound is ours",
    },
    Claim {
        figure: "large",
        says: "exponential: the same",
        paper: Below(50.0),
        ours: |all| all.above_ideal("large", SCALE_FALCON, 2.0),
        reason: "",
    },
    Claim {
        figure: "large",
        says: "bimodal: the same",
        paper: Below(50.0),
        ours: |all| all.above_ideal("large", SCALE_FALCON, 3.0),
        reason: "",
    },
    Claim {
        figure: "large",
        says: "exponential: JBSQ(3)'s p99 above the ideal's, us",
        paper: Silent,
        ours: |all| all.above_ideal("large", SCALE_JBSQ, 2.0),
        reason: "",
    },
    Claim {
        figure: "large",
        says: "exponential: power of two's",
        paper: Silent,
        ours: |all| all.above_ideal("large", SCALE_TWO, 2.0),
        reason: "a worker's 16 executors may all be busy while others are free",
    },
    Claim {
        figure: "large",
        says: "exponential: Sparrow's",
        paper: Silent,
        ours: |all| all.above_ideal("large", SCALE_SPARROW, 2.0),
        reason: "",
    },
    Claim {
        figure: "short-fixed",
        says: "0.1 ms, 95%: Falcon's p99 above the ideal's, us",
        paper: Silent,
        ours: |all| all.above_ideal("short-fixed", SCALE_FALCON, FULL),
        reason: "",
    },
    Claim {
        figure: "short-fixed",
        says: "the same: JBSQ(3)'s",
        paper: Silent,
        ours: |all| all.above_ideal("short-fixed", SCALE_JBSQ, FULL),
        reason: "",
    },
    Claim {
        figure: "short-fixed",
        says: "the same: Falcon with prefetch 1",
        paper: Silent,
        ours: |all| all.above_ideal("short-fixed", SCALE_PREFETCH, FULL),
        reason: "no executor waits for a round trip",
    },
    Claim {
        figure: "short-bimodal",
        says: "0.1 ms, bimodal, 95%: Falcon's p99 above the ideal's, us",
        paper: Silent,
        ours: |all| all.above_ideal("short-bimodal", SCALE_FALCON, FULL),
        reason: "",
    },
    Claim {
        figure: "short-bimodal",
        says: "the same: JBSQ(3)'s",
        paper: Silent,
        ours: |all| all.above_ideal("short-bimodal", SCALE_JBSQ, FULL),
        reason: "short tasks are bound to executors with a long one",
    },
    Claim {
        figure: "short-bimodal",
        says: "the same: power of two's",
        paper: Silent,
        ours: |all| all.above_ideal("short-bimodal", SCALE_TWO, FULL),
        reason: "",
    },
    Claim {
        figure: "short-bimodal",
        says: "the same: Falcon with prefetch 1",
        paper: Silent,
        ours: |all| all.above_ideal("short-bimodal", SCALE_PREFETCH, FULL),
        reason: "a task that is held ahead waits for its own executor",
    },
    Claim {
        figure: "short-bimodal",
        says: "the same: the ideal queue's p99, ms",
        paper: Silent,
        ours: |all| all.delay("short-bimodal", SCALE_IDEAL, FULL, p99),
        reason: "preemption could save that at most, and less: it delays whoever is preempted",
    },
];

/// The table, in Markdown.
pub fn table(seen: &[(&'static str, Seen)]) -> String {
    let all = All(seen);
    let row = |claim: &Claim| Some(claim.row((claim.ours)(&all)?));
    table_of(CLAIMS.iter().filter_map(row), 2)
}

#[cfg(test)]
mod tests {
    use super::super::figures;
    use super::*;

    #[test]
    fn every_claim_is_about_a_figure_that_is_run() {
        let figures = figures::all();
        for claim in CLAIMS {
            assert!(figures.iter().any(|f| f.name == claim.figure), "{}", claim.figure);
        }
    }
}
