//! Code that the systems share: the breadth-first exploration of all interleavings of a small
//! setup, and the generation of smaller plans. A system defines its states, and the parts of a plan
//! that can be left out.

use std::collections::{HashSet, VecDeque};
use std::hash::{Hash as _, Hasher as _};

use rustc_hash::{FxBuildHasher, FxHasher};

/// The result of an exploration.
#[derive(Clone, Debug)]
pub struct Explored {
    /// The number of distinct states.
    pub states: usize,
    /// The number of steps between states.
    pub steps: usize,
    /// Whether all states were reached, within the maximum.
    pub is_complete: bool,
    /// The first violation, and the steps that lead to it.
    pub violation: Option<(String, Vec<String>)>,
}

/// A state of an explored system. Equal states and actions give equal states.
pub(crate) trait State: Clone {
    /// The setup that is explored.
    type Setup;
    /// A possible next step.
    type Action: Copy;

    /// The initial state.
    ///
    /// # Errors
    /// The setup is not possible: the reason.
    fn begin(setup: &Self::Setup) -> Result<Self, String>;

    /// The maximum number of states that are explored.
    fn states_max(setup: &Self::Setup) -> usize;

    /// Hashes everything that distinguishes this state from others.
    fn hash_state(&self, hasher: &mut FxHasher);

    /// The possible next steps.
    fn actions(&self, setup: &Self::Setup) -> Vec<Self::Action>;

    /// Takes a step; returns its description.
    ///
    /// # Errors
    /// The description of a violation in this step.
    fn step(&mut self, action: Self::Action, setup: &Self::Setup) -> Result<String, String>;

    /// Checks the invariants of this state, and that it would come to rest. Called once for each
    /// new state.
    ///
    /// # Errors
    /// The description of the violation.
    fn check(&self, setup: &Self::Setup) -> Result<(), String>;
}

/// Adds packets to those in flight, in their order, so that states are alike however they came to
/// be.
pub(crate) fn add_in_order<T: Ord>(flights: &mut Vec<T>, sent: impl IntoIterator<Item = T>) {
    for flight in sent {
        let at = flights.partition_point(|other| *other < flight);
        flights.insert(at, flight);
    }
}

fn fingerprint<S: State>(state: &S) -> u128 {
    let of = |seed: u64| {
        let mut hasher = FxHasher::default();
        seed.hash(&mut hasher);
        state.hash_state(&mut hasher);
        hasher.finish()
    };
    u128::from(of(1)) << 64 | u128::from(of(0x9e37_79b9))
}

/// Explores all states; a violation is shown by a shortest trace.
///
/// # Errors
/// The setup is not possible: the reason.
pub(crate) fn explore<S: State>(setup: &S::Setup) -> Result<Explored, String> {
    let first = S::begin(setup)?;
    let mut seen: HashSet<u128, FxBuildHasher> = HashSet::default();
    seen.insert(fingerprint(&first));
    // How each state was reached: the previous state and the action; `None` for the initial state.
    let mut ways: Vec<Option<(usize, S::Action)>> = vec![None];
    let mut frontier = VecDeque::from([(0, first)]);
    let mut found = Explored { states: 1, steps: 0, is_complete: true, violation: None };
    while let Some((way, state)) = frontier.pop_front() {
        for action in state.actions(setup) {
            let mut next = state.clone();
            found.steps += 1;
            let done = next.step(action, setup);
            if done.is_ok() && !seen.insert(fingerprint(&next)) {
                continue;
            }
            if let Err(why) = done.and_then(|_| next.check(setup)) {
                found.is_complete = false;
                found.violation = Some((why, trace::<S>(setup, &ways, way, action)?));
                return Ok(found);
            }
            found.states += 1;
            if found.states >= S::states_max(setup) {
                found.is_complete = false;
                return Ok(found);
            }
            ways.push(Some((way, action)));
            frontier.push_back((ways.len() - 1, next));
        }
    }
    Ok(found)
}

/// The descriptions of the actions that lead to a state.
fn trace<S: State>(
    setup: &S::Setup,
    ways: &[Option<(usize, S::Action)>],
    mut way: usize,
    last: S::Action,
) -> Result<Vec<String>, String> {
    let mut actions = vec![last];
    while let Some((before, action)) = ways[way] {
        actions.push(action);
        way = before;
    }
    let mut state = S::begin(setup)?;
    let said = actions.iter().rev();
    Ok(said.map(|action| state.step(*action, setup).unwrap_or_else(|why| why)).collect())
}

/// Plans that are smaller than a given one, in the order in which they are tried.
pub(crate) struct Smaller<'a, P> {
    plan: &'a P,
    all: Vec<P>,
}

impl<'a, P: Clone + PartialEq> Smaller<'a, P> {
    pub(crate) fn than(plan: &'a P) -> Smaller<'a, P> {
        Smaller { plan, all: Vec::new() }
    }

    /// Adds the plan with a change, unless the change has no effect.
    pub(crate) fn with(mut self, change: impl FnOnce(&mut P)) -> Self {
        let mut smaller = self.plan.clone();
        change(&mut smaller);
        if smaller != *self.plan {
            self.all.push(smaller);
        }
        self
    }

    /// Adds, for each part of a list, the plan without it.
    pub(crate) fn without_each<T>(mut self, list: impl Fn(&mut P) -> &mut Vec<T>) -> Self {
        let parts = list(&mut self.plan.clone()).len();
        for index in 0..parts {
            self = self.with(|plan| {
                list(plan).remove(index);
            });
        }
        self
    }

    pub(crate) fn all(self) -> Vec<P> {
        self.all
    }
}

/// Implements [`Trial`](super::Trial) and [`Tally`](super::Tally) for the `Plan` and the `Totals`
/// of a system. It expects a `seed` in the plan, `events` and a method `add` in the totals, a
/// function `run` that returns totals and violation, and a function `smaller` of the plan.
macro_rules! trial {
    ($plan:ty, $totals:ty, $run:path, $smaller:path) => {
        impl $crate::systems::Tally for $totals {
            fn add(&mut self, other: &$totals) {
                <$totals>::add(self, other);
            }

            fn steps(&self) -> u64 {
                self.events
            }
        }

        impl $crate::systems::Trial for $plan {
            type Totals = $totals;

            fn seed(&self) -> u64 {
                self.seed
            }

            fn with_seed(&self, seed: u64) -> $plan {
                let mut other = self.clone();
                other.seed = seed;
                other
            }

            fn run(&self) -> ($totals, Option<String>) {
                let ran = $run(self);
                (ran.totals, ran.violation)
            }

            fn smaller(&self) -> Vec<$plan> {
                $smaller(self)
            }
        }
    };
}

pub(crate) use trial;

#[cfg(test)]
mod tests {
    use super::*;

    /// An example: one or two is added to a count, which must not become five.
    #[derive(Clone)]
    struct Count(u32);

    impl State for Count {
        type Setup = u32;
        type Action = u32;

        fn begin(_: &u32) -> Result<Count, String> {
            Ok(Count(0))
        }

        fn states_max(_: &u32) -> usize {
            100
        }

        fn hash_state(&self, hasher: &mut FxHasher) {
            self.0.hash(hasher);
        }

        fn actions(&self, most: &u32) -> Vec<u32> {
            [1, 2].into_iter().filter(|by| self.0 + by <= *most).collect()
        }

        fn step(&mut self, by: u32, _: &u32) -> Result<String, String> {
            self.0 += by;
            Ok(format!("{by} to {}", self.0))
        }

        fn check(&self, _: &u32) -> Result<(), String> {
            if self.0 == 5 { Err("it is five".into()) } else { Ok(()) }
        }
    }

    #[test]
    fn all_states_are_seen_once_and_the_trace_is_shortest() {
        let right = explore::<Count>(&4).expect("it begins");
        assert_eq!((right.states, right.steps, right.is_complete), (5, 7, true));
        let (why, trace) = explore::<Count>(&6).expect("it begins").violation.expect("five");
        assert_eq!((why.as_str(), trace.len()), ("it is five", 3));
        assert_eq!(trace[2].split(' ').next_back(), Some("5"));
    }

    #[test]
    fn smaller_plans_differ_from_the_plan() {
        let plan = vec![3, 0];
        let all = Smaller::than(&plan).without_each(|plan| plan).with(|plan| plan[1] = 0).all();
        assert_eq!(all, [vec![0], vec![3]]);
    }
}
