//! Input from outside, changed at random from a seed. `CONCORD_FALCON_INPUTS` sets another number
//! of inputs a format; `make fuzz-falcon` runs many.
#![allow(clippy::unwrap_used)]

mod journals;
mod packets;

use concord_core::SessionId;
use concord_wire::Addr;

const INPUTS: u64 = 50_000;
const OWNER: Addr = Addr { ip: 1, port: 1 };
const WORKER: Addr = Addr { ip: 2, port: 2 };
const SWITCH: Addr = Addr { ip: 3, port: 3 };
const UID: SessionId = SessionId(11);

type Sent = Vec<(Addr, Vec<u8>)>;

fn inputs() -> u64 {
    let told = std::env::var("CONCORD_FALCON_INPUTS").ok();
    told.and_then(|told| told.parse().ok()).unwrap_or(INPUTS)
}
