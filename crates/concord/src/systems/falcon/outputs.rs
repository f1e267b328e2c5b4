//! Outputs of tasks for a person or a script: unchanged bytes, in the order of the tasks if wanted,
//! and a log with a line for each task.

use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::io::Write as _;
use std::path::Path;

use concord_runtime::{Context as _, Error};
use serde_json::Value;

/// The header of a log of tasks.
pub(super) const LOG_HEADER: &str = "task\thow\tstatus\tattempts\tseconds\tbytes\n";

/// The bytes of a task's output; only the beginning of a long one.
pub(super) fn bytes_of(told: &Value) -> Vec<u8> {
    let Some(hex) = told["output_hex"].as_str() else {
        return told["output"].as_str().unwrap_or("").as_bytes().to_vec();
    };
    let byte = |at: usize| u8::from_str_radix(hex.get(at..at + 2)?, 16).ok();
    (0..hex.len()).step_by(2).filter_map(byte).collect()
}

/// The line of a task in a log, with the fields of [`LOG_HEADER`]. A signal counts as status 128
/// plus its number.
pub(super) fn log_line(told: &Value) -> String {
    let status = match (told["status"].as_u64(), told["signal"].as_u64()) {
        (Some(status), _) => status.to_string(),
        (None, Some(signal)) => (128 + signal).to_string(),
        (None, None) => "-".to_string(),
    };
    let seconds = told["ran_ms"].as_f64().unwrap_or(0.0) / 1e3;
    let (task, how) = (&told["task"], told["how"].as_str().unwrap_or("?"));
    let (attempts, bytes) = (&told["attempts"], told["output_bytes"].as_u64().unwrap_or(0));
    format!("{task}\t{how}\t{status}\t{attempts}\t{seconds:.3}\t{bytes}\n")
}

/// A log of tasks that are over.
#[derive(Debug)]
pub(super) struct JobLog {
    file: File,
    name: String,
}

impl JobLog {
    pub(super) fn create(path: &Path) -> Result<JobLog, Error> {
        let name = path.display().to_string();
        let mut file = File::create(path).cannot(format!("create {name}"))?;
        file.write_all(LOG_HEADER.as_bytes()).cannot(format!("write {name}"))?;
        Ok(JobLog { file, name })
    }

    pub(super) fn note(&mut self, told: &Value) -> Result<(), Error> {
        let written = self.file.write_all(log_line(told).as_bytes());
        written.cannot(format!("write {}", self.name))
    }
}

/// Prints outputs as they come, or in the order of their tasks.
#[derive(Debug)]
pub(super) struct Printer {
    /// The tasks whose outputs were not printed yet, in order, if there is an order.
    order: Option<VecDeque<u64>>,
    /// Outputs that came before their turn.
    early: BTreeMap<u64, Vec<u8>>,
}

impl Printer {
    /// A printer with this order, if there is one.
    pub(super) fn new(order: Option<Vec<u64>>) -> Printer {
        Printer { order: order.map(VecDeque::from), early: BTreeMap::new() }
    }

    /// The output to print now that this task is over.
    fn next(&mut self, told: &Value) -> Vec<u8> {
        let output = bytes_of(told);
        let Some(order) = &mut self.order else { return output };
        self.early.insert(told["task"].as_u64().unwrap_or(0), output);
        let mut all = Vec::new();
        while let Some(output) = order.front().and_then(|task| self.early.remove(task)) {
            order.pop_front();
            all.extend(output);
        }
        all
    }

    pub(super) fn print(&mut self, told: &Value) -> Result<(), Error> {
        if told["is_cut"] == true {
            let (task, bytes) = (&told["task"], &told["output_bytes"]);
            eprintln!(
                "concord: the output of task {task} is {bytes} bytes long, and not all of it is here"
            );
        }
        let bytes = self.next(told);
        let mut out = std::io::stdout().lock();
        match out.write_all(&bytes).and_then(|()| out.flush()) {
            // As every command in a pipe whose reader has closed it.
            Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => std::process::exit(141),
            written => written.cannot("write to standard output"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// Outputs are printed in the order of their tasks, each once, with unchanged bytes.
    #[test]
    fn outputs_come_in_their_order() {
        let told = |task: u64, output: &str| json!({ "task": task, "output": output });
        let mut printer = Printer::new(Some(vec![2, 4, 6]));
        assert_eq!(printer.next(&told(6, "c")), b"");
        assert_eq!(printer.next(&told(2, "a")), b"a");
        let bytes = json!({ "task": 4, "output": "?", "output_hex": "ff00" });
        assert_eq!(printer.next(&bytes), [255, 0, b'c']);
        assert_eq!(Printer::new(None).next(&told(6, "c")), b"c");
    }

    #[test]
    fn a_line_of_the_log_has_six_fields() {
        let told = json!({ "task": 3, "how": "failed", "signal": 9, "attempts": 2, "ran_ms": 1500.0,
            "output_bytes": 7 });
        assert_eq!(log_line(&told), "3\tfailed\t137\t2\t1.500\t7\n");
        let lost = json!({ "task": 3, "how": "lost", "attempts": 2 });
        assert_eq!(log_line(&lost), "3\tlost\t-\t2\t0.000\t0\n");
    }
}
