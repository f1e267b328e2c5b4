//! A role's status, and its formats on the wire.

use std::fmt::Write;

use serde_json::{Map, Value, json};

use crate::process;

/// Whether a role serves.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Health {
    /// It does.
    #[default]
    Ok,
    /// It does not, or not yet: one line that says why.
    NotYet(String),
}

/// Durations, counted by size.
#[derive(Clone, Debug, PartialEq)]
pub struct Histogram {
    name: &'static str,
    help: &'static str,
    /// Upper bounds in seconds, ascending, each with the number of durations up to it.
    buckets: Vec<(f64, u64)>,
    count: u64,
    sum_seconds: f64,
}

/// The status of a role at one moment.
#[derive(Clone, Debug, PartialEq)]
pub struct Snapshot {
    /// The role's name, such as "switch" or "replica".
    pub role: &'static str,
    /// Its number in the rack.
    pub node: u16,
    /// The answer of `/health`.
    pub health: Health,
    /// Counters, which only grow: `(name, help, value)`.
    pub counters: Vec<(String, &'static str, u64)>,
    /// Gauges: `(name, help, value)`.
    pub gauges: Vec<(String, &'static str, f64)>,
    /// Histograms of durations.
    pub histograms: Vec<Histogram>,
    /// The fields of `/status` beside the counters.
    pub status: Map<String, Value>,
}

impl Snapshot {
    /// An empty snapshot of `node`.
    #[must_use]
    pub fn new(role: &'static str, node: u16) -> Snapshot {
        Snapshot {
            role,
            node,
            health: Health::Ok,
            counters: Vec::new(),
            gauges: Vec::new(),
            histograms: Vec::new(),
            status: Map::new(),
        }
    }

    /// Adds counters of a part of the role, with the part's name as a prefix: two parts may have
    /// counters of the same name.
    pub fn count(&mut self, each: impl Iterator<Item = (&'static str, &'static str, u64)>) {
        self.count_as("", each);
    }

    /// Adds counters of a part of the role, with the part's name before theirs: two parts may count
    /// what has one name.
    pub fn count_as(
        &mut self,
        part: &str,
        each: impl Iterator<Item = (&'static str, &'static str, u64)>,
    ) {
        self.counters
            .extend(each.map(|(name, help, value)| (format!("{part}{name}"), help, value)));
    }

    /// Adds a gauge, which `/status` shows too.
    pub fn gauge(&mut self, name: &'static str, help: &'static str, value: f64) {
        self.gauge_as("", name, help, value);
    }

    /// Adds a gauge of a part of the role, with the part's name as a prefix.
    pub fn gauge_as(&mut self, part: &str, name: &'static str, help: &'static str, value: f64) {
        self.gauges.push((format!("{part}{name}"), help, value));
    }

    /// Adds a histogram of `count` durations: their sum in ns, and for ascending upper bounds in ns
    /// the number of durations up to each.
    pub fn histogram(
        &mut self,
        name: &'static str,
        help: &'static str,
        count: u64,
        sum_ns: u64,
        buckets: impl Iterator<Item = (u64, u64)>,
    ) {
        const NS: f64 = 1e-9;
        let buckets: Vec<_> = buckets.map(|(upper_ns, n)| (upper_ns as f64 * NS, n)).collect();
        let sum_seconds = sum_ns as f64 * NS;
        self.histograms.push(Histogram { name, help, buckets, count, sum_seconds });
    }

    /// Adds a field of `/status`.
    pub fn tell(&mut self, name: &str, value: impl Into<Value>) {
        self.status.insert(name.to_string(), value.into());
    }

    /// The snapshot in Prometheus' text format.
    #[must_use]
    pub fn metrics(&self) -> String {
        // Writing to a string cannot fail.
        let (mut out, role, node) = (String::new(), self.role, self.node);
        let name = format!("concord_{role}_healthy");
        let help = "Whether /health answers 200.";
        let is_healthy = u8::from(self.health == Health::Ok);
        let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} gauge");
        let _ = writeln!(out, "{name}{{node=\"{node}\"}} {is_healthy}");
        for (name, help, value) in &self.counters {
            let name = format!("concord_{role}_{name}_total");
            let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} counter");
            let _ = writeln!(out, "{name}{{node=\"{node}\"}} {value}");
        }
        for (name, help, value) in &self.gauges {
            let name = format!("concord_{role}_{name}");
            let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} gauge");
            let _ = writeln!(out, "{name}{{node=\"{node}\"}} {value}");
        }
        for h in &self.histograms {
            let name = format!("concord_{role}_{}", h.name);
            let _ = writeln!(out, "# HELP {name} {}\n# TYPE {name} histogram", h.help);
            for (upper, count) in &h.buckets {
                let _ = writeln!(out, "{name}_bucket{{node=\"{node}\",le=\"{upper}\"}} {count}");
            }
            let _ = writeln!(out, "{name}_bucket{{node=\"{node}\",le=\"+Inf\"}} {}", h.count);
            let _ = writeln!(out, "{name}_sum{{node=\"{node}\"}} {}", h.sum_seconds);
            let _ = writeln!(out, "{name}_count{{node=\"{node}\"}} {}", h.count);
        }
        out
    }

    /// One JSON object: role, node, the status fields, `gauges`, `counters` and `histograms`.
    #[must_use]
    pub fn to_json(&self) -> Value {
        let mut object = self.status.clone();
        object.insert("role".to_string(), self.role.into());
        object.insert("node".to_string(), self.node.into());
        let health = match &self.health {
            Health::Ok => Value::Null,
            Health::NotYet(why) => why.as_str().into(),
        };
        object.insert("unhealthy".to_string(), health);
        let counters: Map<_, _> =
            self.counters.iter().map(|(name, _, v)| (name.clone(), (*v).into())).collect();
        let gauges: Map<_, _> =
            self.gauges.iter().map(|(name, _, v)| (name.clone(), (*v).into())).collect();
        let histogram = |h: &Histogram| {
            let buckets: Vec<_> = h.buckets.iter().map(|(upper, n)| json!([upper, n])).collect();
            json!({"count": h.count, "sum_seconds": h.sum_seconds, "buckets": buckets})
        };
        let histograms: Map<_, _> =
            self.histograms.iter().map(|h| (h.name.to_string(), histogram(h))).collect();
        object.insert("counters".to_string(), counters.into());
        object.insert("gauges".to_string(), gauges.into());
        object.insert("histograms".to_string(), histograms.into());
        object.into()
    }
}

/// The time at which the system was started, in seconds since 1970.
fn booted_seconds() -> Option<f64> {
    let stat = std::fs::read_to_string("/proc/stat").ok()?;
    stat.lines().find_map(|line| line.strip_prefix("btime "))?.trim().parse().ok()
}

/// The metrics of the process that every Prometheus client library shows, and the build. Figures
/// that the system does not tell are left out.
#[must_use]
pub fn process() -> String {
    let mut out = String::new();
    let mut gauge = |name: &str, help: &str, kind: &str, value: Option<f64>| {
        if let Some(value) = value {
            let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} {kind}\n{name} {value}");
        }
    };
    let stat = process::Stat::of_process();
    let of = |field: fn(&process::Stat) -> f64| stat.as_ref().map(field);
    let cpu = "Processor time in user and system mode, in seconds.";
    gauge("process_cpu_seconds_total", cpu, "counter", of(|s| process::seconds(s.used)));
    let resident = "Memory in use, in bytes.";
    gauge("process_resident_memory_bytes", resident, "gauge", of(|s| s.resident_bytes));
    let size = "Address space, in bytes.";
    gauge("process_virtual_memory_bytes", size, "gauge", of(|s| s.virtual_bytes));
    let start = "When it was started, in seconds since 1970.";
    let started = booted_seconds().zip(of(|s| s.started_seconds)).map(|(boot, own)| boot + own);
    gauge("process_start_time_seconds", start, "gauge", started);
    let open = std::fs::read_dir("/proc/self/fd").ok().map(|entries| entries.count() as f64);
    gauge("process_open_fds", "Descriptors that are open.", "gauge", open);
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    gauge("process_max_fds", "Most descriptors.", "gauge", limit.map(|n| n as f64));
    let _ = writeln!(
        out,
        "# HELP concord_build_info Which build this is.\n# TYPE concord_build_info gauge\n\
         concord_build_info{{version=\"{}\"}} 1",
        env!("CARGO_PKG_VERSION")
    );
    out
}
