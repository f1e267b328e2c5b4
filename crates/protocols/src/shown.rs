//! The status that every replica shows to its host, whatever its protocol.

/// The accessors, of a machine with the fields `setup`, `serving`, `ordered`, `executed`,
/// `committed` and `count`, whose configuration is in the named one.
macro_rules! shown {
    ($($config:ident).+) => {
        /// The engine, for drivers that feed it.
        pub fn engine_mut(&mut self) -> &mut E {
            &mut self.serving.engine
        }

        /// The engine.
        pub fn engine(&self) -> &E {
            &self.serving.engine
        }

        /// This replica's node, address and incarnation.
        #[must_use]
        pub fn member(&self) -> &concord_wire::control::Member {
            &self.setup.me
        }

        /// The newest configuration that it knows.
        #[must_use]
        pub fn config(&self) -> Option<&concord_wire::control::Config> {
            self.$($config).+.as_ref()
        }

        /// The log.
        #[must_use]
        pub fn log(&self) -> &$crate::log::Log {
            &self.ordered.log
        }

        /// The last record executed here.
        #[must_use]
        pub fn executed(&self) -> concord_core::Position {
            self.executed
        }

        /// The position up to which the log is committed, as far as is known here.
        #[must_use]
        pub fn committed(&self) -> concord_core::Position {
            self.committed
        }

        /// A digest of the client table, equal at replicas that executed the same records; for
        /// tests.
        #[must_use]
        pub fn sessions_digest(&self) -> u64 {
            self.serving.sessions.digest()
        }

        /// The counters of every protocol.
        #[must_use]
        pub fn counters(&self) -> &$crate::counters::ReplicaCounters {
            &self.count
        }
    };
}

pub(crate) use shown;
