//! What the round-trip time of a path says about how to use it.

use std::time::Duration;

/// Connections per edge when neither end asks for a number.
///
/// One thread moves all data of a process, so on a short path a second connection only costs. On a
/// long one a connection carries what its buffers hold per round trip: systems let them grow to
/// some 4 MiB. One for every 40 ms beside the first can carry 700 Mbit/s, however long the round
/// trip is up to [`MOST`] times that, and lose less when a packet is lost. More would only crowd the
/// queues of one link: each looks for its rate by itself.
pub fn connections(round_trip: Duration) -> u16 {
    if round_trip < SHORT {
        return 1;
    }
    let steps = round_trip.as_micros().div_ceil(STEP.as_micros());
    u16::try_from(steps)
        .unwrap_or(MOST)
        .saturating_add(1)
        .min(MOST)
}

/// How a connection is to find its rate.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Congestion {
    /// The path leads to the own host: nothing is lost there, and pacing would cost processor time.
    Host,
    /// As the system does it.
    System,
    /// By a model of the path (BBR) and not by losses, of which long paths have some that mean
    /// nothing.
    Model,
}

impl Congestion {
    /// For a path with this round-trip time.
    pub fn of(own_host: bool, round_trip: Duration) -> Self {
        match (own_host, round_trip < SHORT) {
            (true, _) => Self::Host,
            (false, true) => Self::System,
            (false, false) => Self::Model,
        }
    }
}

/// A path with a shorter round trip lies within one building.
const SHORT: Duration = Duration::from_millis(2);

/// Round-trip time per connection.
const STEP: Duration = Duration::from_millis(40);

/// Connections beyond these gain less than they cost.
pub const MOST: u16 = 8;

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    #[test]
    fn longer_paths_have_more_connections_up_to_a_limit() {
        let found = [0, 1, 2, 20, 41, 80, 100, 200, 280, 1_000_000].map(|n| connections(ms(n)));
        assert_eq!(found, [1, 1, 2, 2, 3, 3, 4, 6, 8, 8]);
        assert_eq!(connections(Duration::MAX), MOST);
    }

    #[test]
    fn only_long_paths_are_modelled() {
        assert_eq!(Congestion::of(true, ms(0)), Congestion::Host);
        assert_eq!(Congestion::of(false, ms(0)), Congestion::System);
        assert_eq!(Congestion::of(false, ms(20)), Congestion::Model);
    }
}
