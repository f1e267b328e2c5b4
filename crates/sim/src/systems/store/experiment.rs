//! Plans as TOML files: every value by its name, with units in the names, and faults as a list.
//!
//! Values that a file leaves out are as in [`Plan::of`] its protocol. Unknown names and impossible
//! values are reported in one line.

use concord_wire::control::Program;
use toml::{Table, Value};

use crate::systems::store::fault::Fault;
use crate::systems::store::plan::{Plan, Timed};

impl Plan {
    /// Writes the plan as a file.
    #[must_use]
    pub fn to_toml(&self) -> String {
        // Every field of a plan is a number, a name or a list of them, so that this cannot fail.
        toml::to_string(self).unwrap_or_default()
    }

    /// Reads a plan from a file.
    ///
    /// # Errors
    /// One line with the mistake, and the line of the file if it is known.
    pub fn from_toml(text: &str) -> Result<Plan, String> {
        let mut plan: Plan = toml::from_str(text).map_err(|error| one_line(text, &error))?;
        if !toml::from_str::<Table>(text).is_ok_and(|table| table.contains_key("program")) {
            plan.program = Program::of(plan.protocol, true);
        }
        plan.faults.sort_by_key(|fault| fault.at_ns);
        plan.validate()?;
        Ok(plan)
    }
}

fn one_line(text: &str, error: &toml::de::Error) -> String {
    let message = error.message().lines().collect::<Vec<_>>().join(" ");
    match error.span() {
        Some(span) => {
            let line = text.bytes().take(span.start).filter(|b| *b == b'\n').count() + 1;
            format!("line {line}: {message}")
        }
        None => message,
    }
}

/// The table of a fault has `at_ns` beside the fields of the fault.
impl From<Timed> for Table {
    fn from(timed: Timed) -> Table {
        let mut table = Table::new();
        table.insert("at_ns".into(), Value::Integer(timed.at_ns as i64));
        if let Ok(Value::Table(fault)) = Value::try_from(timed.fault) {
            table.extend(fault);
        }
        table
    }
}

impl TryFrom<Table> for Timed {
    type Error = String;

    fn try_from(mut table: Table) -> Result<Timed, String> {
        let at_ns = match table.remove("at_ns") {
            Some(Value::Integer(at_ns)) if at_ns >= 0 => at_ns as u64,
            Some(other) => return Err(format!("a fault's at_ns is {other}: give it a time in ns")),
            None => return Err("a fault has no at_ns: give it a time in ns".into()),
        };
        let fault: Fault = Value::Table(table)
            .try_into()
            .map_err(|error: toml::de::Error| format!("a fault: {}", error.message()))?;
        Ok(Timed { at_ns, fault })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_plan_reads_as_it_is_written() {
        for seed in (0..200).chain([u64::MAX]) {
            let plan = Plan::draw(seed);
            assert_eq!(Plan::from_toml(&plan.to_toml()).as_ref(), Ok(&plan), "{}", plan.to_toml());
        }
    }

    #[test]
    fn a_short_file_is_a_good_day_with_a_fault() {
        let plan = Plan::from_toml(
            "seed = 7\nprotocol = \"primary-backup\"\n[service]\nread_ns = 500\n\
             [[faults]]\nat_ns = 1000\nkind = \"pause\"\nnode = \"switch\"\nfor_ns = 5\n",
        );
        let plan = plan.unwrap();
        assert_eq!((plan.seed, plan.replicas, plan.service.read_ns), (7, 3, 500));
        let pause = Fault::Pause { node: crate::Node::Switch, for_ns: 5 };
        assert_eq!(plan.faults, [Timed { at_ns: 1_000, fault: pause }]);
    }

    #[test]
    fn a_file_that_names_no_program_has_its_protocol_s() {
        for (protocol, program) in [("craq", "craq"), ("nopaxos", "nopaxos+harmonia")] {
            let plan = Plan::from_toml(&format!("protocol = \"{protocol}\"")).unwrap();
            assert_eq!(plan.program.name(), program);
        }
        let plan = Plan::from_toml("protocol = \"vr\"\nprogram = \"forward\"").unwrap();
        assert_eq!(plan.program, Program::Forward);
    }

    #[test]
    fn what_is_wrong_is_one_clear_line() {
        let fault = |text: &str| format!("[[faults]]\nat_ns = 1\n{text}");
        for (text, wanted) in [
            ("replica = 3".into(), "line 1: unknown field `replica`"),
            ("seed = 1\nreplicas = \"three\"".into(), "line 2: invalid type"),
            ("replicas = 0".into(), "replicas is 0: give it 1 to 64"),
            ("slots = 3".into(), "slots is 3: give it a power of two"),
            ("drift_ppm = 90000".into(), "drift_ppm is 90000"),
            ("protocol = \"ring\"".into(), "no protocol \"ring\": primary-backup, chain"),
            ("program = \"mirror\"".into(), "no program \"mirror\": forward, harmonia"),
            (
                "protocol = \"craq\"\nprogram = \"harmonia\"".into(),
                "program harmonia does not serve craq: give it craq",
            ),
            ("seed = \"xyz\"".into(), "no seed \"xyz\""),
            ("without = [\"luck\"]".into(), "no guard \"luck\": drop-on-full"),
            ("[service]\nwait_ns = 3".into(), "unknown field `wait_ns`"),
            (fault("kind = \"flood\""), "unknown variant `flood`"),
            (fault("kind = \"kill\""), "missing field `replica`"),
            (fault("kind = \"kill\"\nreplica = 9"), "a fault names replica-9: there are 3"),
            (fault("kind = \"kill\"\nreplica = 1\nhow = 2"), "unknown field `how`"),
            (fault("kind = \"pause\"\nnode = \"gateway\"\nfor_ns = 1"), "no node \"gateway\""),
            ("[[faults]]\nkind = \"restart-switch\"".into(), "a fault has no at_ns"),
            ("seed =".into(), "line 1: "),
        ] as [(String, &str); 18]
        {
            let error = Plan::from_toml(&text).unwrap_err();
            assert!(error.contains(wanted), "{text:?}: {error}");
            assert!(!error.contains('\n'), "{error:?}");
        }
    }
}
