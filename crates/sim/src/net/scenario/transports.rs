//! The sections `[transport.NAME]`, and the list of transports.

use concord_wire::harmony::{FRAGMENT_BYTES_MAX, HEAD_BYTES, SLOTS_MAX};

use super::section::{ScenarioError, Section, hint, wrong};
use crate::engine::MS;
use crate::net::dcpim::{CHANNELS_MAX, DcpimConfig};
use crate::net::fastpass::FastpassConfig;
use crate::net::harmony::{Choice, HarmonyConfig};
use crate::net::hpcc::HpccConfig;
use crate::net::tcp::TcpConfig;
use crate::net::topology::Topology;
use crate::net::windowed::WindowedConfig;

/// A transport of scenarios.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransportKind {
    /// [`Windowed`](crate::net::Windowed).
    Windowed,
    /// [`NewReno`](crate::net::NewReno).
    NewReno,
    /// [`Dctcp`](crate::net::Dctcp).
    Dctcp,
    /// [`Hpcc`](crate::net::Hpcc).
    Hpcc,
    /// [`Dcpim`](crate::net::Dcpim).
    Dcpim,
    /// [`Fastpass`](crate::net::Fastpass).
    Fastpass,
    /// [`Harmony`](crate::net::Harmony).
    Harmony,
}

impl TransportKind {
    /// All transports.
    pub const ALL: [TransportKind; 7] = [
        TransportKind::Windowed,
        TransportKind::NewReno,
        TransportKind::Dctcp,
        TransportKind::Hpcc,
        TransportKind::Dcpim,
        TransportKind::Fastpass,
        TransportKind::Harmony,
    ];

    /// The name of the transport in files, flags and tables.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            TransportKind::Windowed => "windowed",
            TransportKind::NewReno => "newreno",
            TransportKind::Dctcp => "dctcp",
            TransportKind::Hpcc => "hpcc",
            TransportKind::Dcpim => "dcpim",
            TransportKind::Fastpass => "fastpass",
            TransportKind::Harmony => "harmony",
        }
    }

    /// The transport with a name.
    ///
    /// # Errors
    /// The name is unknown; the line suggests the nearest one, or lists all.
    pub fn parse(name: &str) -> Result<TransportKind, ScenarioError> {
        let found = TransportKind::ALL.into_iter().find(|kind| kind.name() == name);
        let names = TransportKind::ALL.map(TransportKind::name);
        found.map_or_else(|| wrong(format!("no transport {name}: {}", hint(name, &names))), Ok)
    }

    /// Whether the transport treats reordered packets as lost.
    #[must_use]
    pub fn needs_order(self) -> bool {
        !matches!(self, Self::Windowed | Self::Dcpim | Self::Fastpass | Self::Harmony)
    }
}

/// The parameters of all transports.
#[derive(Clone, Copy, Debug)]
pub(super) struct Settings {
    pub(super) windowed: WindowedConfig,
    pub(super) newreno: TcpConfig,
    pub(super) dctcp: TcpConfig,
    /// The exponent of DCTCP's g = 2^-`gain_shift`.
    pub(super) gain_shift: u32,
    pub(super) hpcc: HpccConfig,
    pub(super) dcpim: DcpimConfig,
    pub(super) fastpass: FastpassConfig,
    pub(super) harmony: HarmonyConfig,
}

impl Settings {
    pub(super) fn read(
        mut section: Section<'_>,
        topology: &Topology,
        host_bits_per_s: u64,
    ) -> Result<Settings, ScenarioError> {
        let windowed = windowed(section.section("windowed")?)?;
        let mut newreno = section.section("newreno")?;
        let newreno_config = tcp(&mut newreno)?;
        newreno.finish()?;
        let mut dctcp = section.section("dctcp")?;
        let dctcp_config = tcp(&mut dctcp)?;
        let gain_shift = dctcp.whole_u32("gain_shift", 0..=16)?.unwrap_or(4);
        dctcp.finish()?;
        let hpcc = hpcc(section.section("hpcc")?, topology)?;
        let dcpim = dcpim(section.section("dcpim")?, topology, host_bits_per_s)?;
        let fastpass = fastpass(section.section("fastpass")?, topology)?;
        let harmony = harmony(section.section("harmony")?)?;
        section.finish()?;
        let (newreno, dctcp) = (newreno_config, dctcp_config);
        Ok(Settings { windowed, newreno, dctcp, gain_shift, hpcc, dcpim, fastpass, harmony })
    }
}

impl Settings {
    /// The payload of a full packet.
    pub(super) fn payload_bytes(&self, kind: TransportKind) -> u32 {
        match kind {
            TransportKind::Windowed => self.windowed.data_bytes,
            TransportKind::NewReno => self.newreno.payload_bytes,
            TransportKind::Dctcp => self.dctcp.payload_bytes,
            TransportKind::Hpcc => self.hpcc.payload_bytes,
            TransportKind::Dcpim => self.dcpim.payload_bytes,
            TransportKind::Fastpass => self.fastpass.payload_bytes,
            TransportKind::Harmony => self.harmony.payload_bytes,
        }
    }
}

fn windowed(mut section: Section<'_>) -> Result<WindowedConfig, ScenarioError> {
    let config = WindowedConfig {
        window: section.whole_u32("window", 1..=1 << 20)?.unwrap_or(64),
        data_bytes: section.whole_u32("data_bytes", 64..=65_536)?.unwrap_or(1_500),
        ack_bytes: section.whole_u32("ack_bytes", 1..=65_536)?.unwrap_or(64),
        timeout_ps: section.time("timeout_us")?.unwrap_or(MS).max(1),
    };
    section.finish()?;
    Ok(config)
}

fn tcp(section: &mut Section<'_>) -> Result<TcpConfig, ScenarioError> {
    let d = TcpConfig::default();
    Ok(TcpConfig {
        payload_bytes: section.whole_u32("payload_bytes", 64..=65_536)?.unwrap_or(d.payload_bytes),
        header_bytes: section.whole_u32("header_bytes", 0..=1_024)?.unwrap_or(d.header_bytes),
        ack_bytes: section.whole_u32("ack_bytes", 1..=1_024)?.unwrap_or(d.ack_bytes),
        first_window: section.whole_u32("first_window", 1..=1 << 20)?.unwrap_or(d.first_window),
        window_bytes_max: section
            .whole("window_bytes_max", 64..=1 << 40)?
            .unwrap_or(d.window_bytes_max),
        timeout_ps_min: section.time("timeout_us_min")?.unwrap_or(d.timeout_ps_min).max(1),
        first_timeout_ps: section.time("first_timeout_us")?.unwrap_or(d.first_timeout_ps).max(1),
        class: section.whole("class", 0..=7)?.map_or(d.class, |class| class as u8),
    })
}

fn hpcc(mut section: Section<'_>, topology: &Topology) -> Result<HpccConfig, ScenarioError> {
    let d = HpccConfig::default();
    let payload_bytes = section.whole_u32("payload_bytes", 64..=65_536)?.unwrap_or(d.payload_bytes);
    let header_bytes = section.whole_u32("header_bytes", 0..=1_024)?.unwrap_or(d.header_bytes);
    let ack_bytes = section.whole_u32("ack_bytes", 1..=1_024)?.unwrap_or(d.ack_bytes);
    let round_trip_ps = match section.time("round_trip_ns")? {
        Some(ps) => ps.max(1),
        None => topology.round_trip_ps_max(payload_bytes + header_bytes, ack_bytes).max(1),
    };
    let config = HpccConfig {
        payload_bytes,
        header_bytes,
        ack_bytes,
        round_trip_ps,
        target_percent: section.whole_u32("target_percent", 1..=100)?.unwrap_or(d.target_percent),
        stages_max: section.whole_u32("stages_max", 0..=1_000)?.unwrap_or(d.stages_max),
        increase_bytes: section.whole("increase_bytes", 0..=1 << 30)?.unwrap_or(d.increase_bytes),
        bits_per_s_min: section.rate("gbps_min")?.unwrap_or(d.bits_per_s_min),
        timeout_ps: section.time("timeout_us")?.unwrap_or(d.timeout_ps).max(1),
        class: section.whole("class", 0..=7)?.map_or(d.class, |class| class as u8),
    };
    section.finish()?;
    Ok(config)
}

fn dcpim(
    mut section: Section<'_>,
    topology: &Topology,
    host_bits_per_s: u64,
) -> Result<DcpimConfig, ScenarioError> {
    let d = DcpimConfig::default();
    let payload_bytes = section.whole_u32("payload_bytes", 64..=65_536)?.unwrap_or(d.payload_bytes);
    let header_bytes = section.whole_u32("header_bytes", 0..=1_024)?.unwrap_or(d.header_bytes);
    let control_bytes = section.whole_u32("control_bytes", 1..=1_024)?.unwrap_or(d.control_bytes);
    let control_round_trip_ps = match section.time("control_round_trip_ns")? {
        Some(ps) => ps.max(1),
        None => topology.round_trip_ps_max(control_bytes, control_bytes).max(1),
    };
    let window_bytes = match section.whole("window_bytes", 1..=1 << 40)? {
        Some(bytes) => bytes,
        None => {
            let ps = topology.round_trip_ps_max(payload_bytes + header_bytes, control_bytes);
            (u128::from(host_bits_per_s) * u128::from(ps) / 8_000_000_000_000).max(1) as u64
        }
    };
    let class = |class: Option<u64>, default: u8| class.map_or(default, |class| class as u8);
    let config = DcpimConfig {
        payload_bytes,
        header_bytes,
        control_bytes,
        control_round_trip_ps,
        window_bytes,
        rounds: section.whole_u32("rounds", 1..=64)?.unwrap_or(d.rounds),
        channels: section.whole_u32("channels", 1..=CHANNELS_MAX)?.unwrap_or(d.channels),
        slack_percent: section.whole_u32("slack_percent", 1..=10_000)?.unwrap_or(d.slack_percent),
        timeout_ps: section.time("timeout_us")?.unwrap_or(d.timeout_ps).max(1),
        classes: [
            class(section.whole("control_class", 0..=7)?, d.classes[0]),
            class(section.whole("short_class", 0..=7)?, d.classes[1]),
            class(section.whole("long_class", 0..=7)?, d.classes[2]),
        ],
    };
    section.finish()?;
    Ok(config)
}

fn fastpass(
    mut section: Section<'_>,
    topology: &Topology,
) -> Result<FastpassConfig, ScenarioError> {
    let d = FastpassConfig::default();
    let arbiter_round_trip_ps = match section.time("arbiter_round_trip_ns")? {
        Some(ps) => ps,
        None => topology.round_trip_ps_max(64, 64),
    };
    let config = FastpassConfig {
        payload_bytes: section.whole_u32("payload_bytes", 64..=65_536)?.unwrap_or(d.payload_bytes),
        header_bytes: section.whole_u32("header_bytes", 0..=1_024)?.unwrap_or(d.header_bytes),
        arbiter_round_trip_ps,
        admission_ps: section.time("admission_us")?.unwrap_or(d.admission_ps),
        class: section.whole("class", 0..=7)?.map_or(d.class, |class| class as u8),
    };
    section.finish()?;
    Ok(config)
}

fn harmony(mut section: Section<'_>) -> Result<HarmonyConfig, ScenarioError> {
    let d = HarmonyConfig::default();
    let head = HEAD_BYTES as u32;
    let choice = match section.choice("choice", &["fifo", "hash"])? {
        Some(1) => Choice::Hash,
        _ => d.choice,
    };
    let config = HarmonyConfig {
        slots: section.whole("slots", 1..=SLOTS_MAX as u64)?.map_or(d.slots, |k| k as u8),
        payload_bytes: section
            .whole_u32("payload_bytes", 64..=FRAGMENT_BYTES_MAX as u32)?
            .unwrap_or(d.payload_bytes),
        header_bytes: section.whole_u32("header_bytes", head..=1_024)?.unwrap_or(d.header_bytes),
        headroom_percent: section
            .whole_u32("headroom_percent", 0..=1_000)?
            .unwrap_or(d.headroom_percent),
        admission_ps: section.time("admission_us")?.unwrap_or(d.admission_ps),
        life_ps: section.time("life_us")?.unwrap_or(d.life_ps),
        extra_bytes: section.whole_u32("extra_bytes", 0..=1 << 30)?,
        round_trip_ps: section.time("round_trip_ns")?,
        tries_again: section.choice("rejected", &["again", "over"])?.unwrap_or(0) == 0,
        choice,
        guards: d.guards,
    };
    section.finish()?;
    Ok(config)
}
