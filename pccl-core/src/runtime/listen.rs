//! Listening by name.

use std::net::{TcpListener, ToSocketAddrs};

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
}
