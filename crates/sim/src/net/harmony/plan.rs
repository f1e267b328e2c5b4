//! The settings of Harmony's hosts and switches in a network, and the check that its buffers have
//! room for the bounds of its queues.

use concord_core::NodeId;
use concord_transport::HostSettings;

use super::bound::QueueBounds;
use super::config::{HarmonyConfig, HarmonyError, MESSAGE_BYTES_MAX};
use super::wiring::{Fabric, addr};
use crate::engine::NS;
use crate::net::managed::{QueueSpec, SHARES};
use crate::net::topology::Topology;

/// The maximum number of requests that wait at a receiver.
const PENDING_MAX: usize = 1 << 16;
/// The maximum number of messages that wait at a sender.
const SUBMISSIONS_MAX: usize = 1 << 20;

/// The settings of hosts and switches.
#[derive(Clone, Debug)]
pub(in crate::net) struct HarmonyPlan {
    pub(super) config: HarmonyConfig,
    pub(super) fabric: Fabric,
    pub(super) bounds: QueueBounds,
    /// The settings of the first host.
    settings: HostSettings,
}

impl HarmonyPlan {
    /// The plan for a topology.
    ///
    /// # Errors
    /// Its switches cannot run Harmony, or no bound of its queues is known.
    pub(in crate::net) fn new(
        topology: &Topology,
        config: &HarmonyConfig,
    ) -> Result<HarmonyPlan, HarmonyError> {
        let fabric = Fabric::new(topology, config)?;
        let bounds = QueueBounds::new(topology, &fabric, config)?;
        let idle_ps = topology.round_trip_ps_max(config.packet_bytes(), config.header_bytes);
        let round_trip_ps = config.round_trip_ps.unwrap_or(2 * (idle_ps + bounds.delay_ps)).max(NS);
        let bdp = u128::from(fabric.bits_per_s) * u128::from(idle_ps) / 8_000_000_000_000;
        let bdp = u32::try_from(bdp).unwrap_or(u32::MAX);
        let settings = HostSettings {
            hosts: (0..fabric.hosts).map(addr).collect(),
            switch: Some(addr(fabric.hosts)),
            slots: config.slots,
            phase_ns: bounds.phase_ps / NS,
            fragment_bytes: config.payload_bytes as usize,
            admission_ns: config.admission_ps / NS,
            life_ns: config.life_ps / NS,
            round_ns: round_trip_ps.div_ceil(NS),
            // If the whole quota of a slot counts, nothing is left for further slots.
            extra_bytes: config.extra_bytes.map_or(bdp, |b| if b == 0 { u32::MAX } else { b }),
            message_bytes_max: MESSAGE_BYTES_MAX as u32,
            pending_max: PENDING_MAX,
            submissions_max: SUBMISSIONS_MAX,
            tries_again: config.tries_again,
            guards: config.guards,
            ..HostSettings::EXAMPLE
        };
        settings.check().map_err(|error| HarmonyError(error.to_string()))?;
        Ok(HarmonyPlan { config: *config, fabric, bounds, settings })
    }

    /// The settings of a host.
    pub(super) fn settings(&self, host: u32) -> HostSettings {
        let place = host as u16;
        HostSettings { node: NodeId(1 + place), place, ..self.settings.clone() }
    }

    /// Checks that no queue within its bound is longer than its buffer.
    ///
    /// # Errors
    /// The first port whose buffer is too small.
    pub(in crate::net) fn check_buffers(
        &self,
        topology: &Topology,
        queues: &QueueSpec,
    ) -> Result<(), HarmonyError> {
        let slots = self.config.slots;
        let wrong = |bound: u64, room: u64, of: &str| {
            Err(HarmonyError(format!(
                "with {slots} slots up to {bound} bytes wait at {of}, whose buffer has {room}: give fewer \
                 slots, or more room"
            )))
        };
        for ports in &self.fabric.switches {
            let bound = |port: u32| self.bounds.waiting_bytes[port as usize];
            let all: u64 = ports.iter().map(|own| bound(own.port)).sum();
            for own in ports {
                let room = match queues.shared_bytes_max {
                    None => topology.links()[own.port as usize / 2].2.queue_bytes_max,
                    Some(max) if queues.share == 0 => max.saturating_sub(all - bound(own.port)),
                    Some(max) => {
                        let free = u128::from(max.saturating_sub(all));
                        let share = free * u128::from(queues.share) / u128::from(SHARES);
                        u64::try_from(share).unwrap_or(u64::MAX)
                    }
                };
                if bound(own.port) > room {
                    return wrong(bound(own.port), room, "a port");
                }
            }
        }
        Ok(())
    }
}
