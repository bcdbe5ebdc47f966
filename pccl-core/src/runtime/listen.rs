//! Listening by name.

use std::net::{TcpListener, ToSocketAddrs};
use std::time::Duration;

use crate::error::{Error, Result, UsageError};
use crate::transport::sockopt;

/// Listens at the first address that `address` ("host:port") stands for and that can be bound.
pub(crate) fn bind(address: &str) -> Result<TcpListener> {
    let bad = |cause: String| {
        Error::Usage(UsageError::Address {
            address: address.into(),
            cause,
        })
    };
    let mut cause = String::from("the name has no address");
    for candidate in address.to_socket_addrs().map_err(|e| bad(e.to_string()))? {
        match sockopt::listen(candidate) {
            Ok(listener) => return Ok(listener),
            Err(e) => cause = format!("{candidate}: {e}"),
        }
    }
    Err(bad(cause))
}

/// How long to wait after a failed accept: longer each time, up to a limit.
#[derive(Default)]
pub(crate) struct Backoff {
    failures: u32,
}

impl Backoff {
    /// After a success.
    pub(crate) fn reset(&mut self) {
        self.failures = 0;
    }

    /// After a failure.
    pub(crate) fn next(&mut self) -> Duration {
        let wait = FIRST_WAIT * 2u32.saturating_pow(self.failures.min(10));
        self.failures = self.failures.saturating_add(1);
        wait.min(LONGEST_WAIT)
    }
}

/// Wait after the first failed accept.
const FIRST_WAIT: Duration = Duration::from_millis(10);

/// A freed descriptor is noticed within this time.
const LONGEST_WAIT: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bad_address_is_the_callers_mistake() {
        for bad in ["", "127.0.0.1", "127.0.0.1:x", "127.0.0.1:123456"] {
            let result = bind(bad);
            let expected = matches!(result, Err(Error::Usage(UsageError::Address { .. })));
            assert!(expected, "{bad}: {result:?}");
        }
    }

    #[test]
    fn waits_grow_to_a_limit() {
        let mut backoff = Backoff::default();
        let first = backoff.next();
        assert!(backoff.next() > first);
        for _ in 0..100 {
            assert!(backoff.next() <= LONGEST_WAIT);
        }
        backoff.reset();
        assert_eq!(backoff.next(), first);
    }
}
