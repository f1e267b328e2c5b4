//! `concord explain`: the path that a command took, as a gateway reports it.

use std::time::Duration;

use concord_runtime::{Context as _, Error};

use crate::cli::ExplainArgs;
use crate::net::{Redis, Reply};
use crate::rack::Rack;
use crate::status::print;

const EXPLAIN_TIMEOUT: Duration = Duration::from_secs(10);

/// `concord explain`.
///
/// # Errors
/// One line for a person.
pub fn explain(args: &ExplainArgs) -> Result<(), Error> {
    let rack = match args.gateway {
        Some(_) if !args.config.exists() => Rack::default(),
        _ => Rack::read(&args.config)?,
    };
    let gateway = args.gateway.or(rack.gateway.first().map(super::GatewayPlace::reached));
    let gateway = gateway
        .ok_or_else(|| Error::new(format!("{}: there is no [[gateway]]", args.config.display())))?;
    let password = args.password.as_ref().unwrap_or(&rack.requirepass);
    let mut redis = Redis::connect_as(gateway, args.user.as_deref(), password, EXPLAIN_TIMEOUT)
        .cannot(format!("ask the gateway at {gateway}"))?;
    let mut command: Vec<&[u8]> = vec![b"CONCORD", b"EXPLAIN"];
    command.extend(args.command.iter().map(String::as_bytes));
    match redis.call(&command).cannot(format!("ask the gateway at {gateway}"))? {
        Reply::Error(why) => Err(Error::new(why)),
        Reply::Array(fields) => {
            let line = |field: &[Reply]| {
                let texts: Vec<String> = field.iter().map(|f| f.lines().join("\n  ")).collect();
                texts.join(": ").replace('_', " ") + "\n"
            };
            print(&fields.chunks(2).map(line).collect::<String>())
        }
        reply @ Reply::Text(_) => print(&(reply.lines().join("\n") + "\n")),
    }
}
