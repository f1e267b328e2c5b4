//! `concord drain`.

use concord_runtime::Error;
use serde_json::Value;

use super::args::DrainArgs;
use super::jobs::{Client, microseconds};
use crate::status::print;

/// `concord drain`.
///
/// # Errors
/// One line for a person.
pub fn drain(args: &DrainArgs) -> Result<(), Error> {
    let within = args.within.as_deref().map(|text| microseconds("--within", text)).transpose()?;
    let query = within.map_or_else(String::new, |us| format!("?within_ms={}", us / 1_000));
    let told = Client::of(&args.asked)?.ask(
        "POST",
        &format!("/workers/{}/drain{query}", args.worker),
        &[],
    )?;
    print(&in_words(&told, args.within.as_deref()))
}

fn in_words(told: &Value, within: Option<&str>) -> String {
    let worker = &told["worker"];
    match (told["tasks"].as_u64().unwrap_or(0), within) {
        (0, _) => format!("worker {worker} takes no more tasks, has none, and ends\n"),
        (tasks, None) => {
            format!(
                "worker {worker} takes no more tasks, and ends when the {tasks} that it has are over\n"
            )
        }
        (tasks, Some(within)) => format!(
            "worker {worker} takes no more tasks, and ends when the {tasks} that it has are over, in {within} at the latest\n"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_a_drained_worker_has_is_said() {
        let told = |tasks: u32| json!({ "worker": 2, "tasks": tasks });
        assert!(in_words(&told(0), None).ends_with("has none, and ends\n"));
        assert!(in_words(&told(3), None).contains("the 3 that it has"));
        assert!(in_words(&told(3), Some("5m")).ends_with("in 5m at the latest\n"));
    }
}
