//! Limits on connections that have not said who they are.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex};

use super::calls::lock;

/// Counts the connections of a listener that are still in their handshake.
#[derive(Clone, Default)]
pub(crate) struct HalfOpen {
    counts: Arc<Mutex<Counts>>,
}

#[derive(Default)]
struct Counts {
    total: usize,
    by_address: BTreeMap<IpAddr, usize>,
}

/// One counted connection; dropped when its handshake is over, in whatever way.
pub(crate) struct Permit {
    counts: Arc<Mutex<Counts>>,
    address: IpAddr,
}

impl HalfOpen {
    /// Counts a connection from `address`, unless there are too many already.
    pub(crate) fn admit(&self, address: IpAddr) -> Option<Permit> {
        let mut counts = lock(&self.counts);
        let from_here = counts.by_address.get(&address).copied().unwrap_or(0);
        if counts.total >= TOTAL_LIMIT || from_here >= ADDRESS_LIMIT {
            return None;
        }
        counts.total += 1;
        counts.by_address.insert(address, from_here + 1);
        Some(Permit {
            counts: self.counts.clone(),
            address,
        })
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut counts = lock(&self.counts);
        counts.total = counts.total.saturating_sub(1);
        if let Some(count) = counts.by_address.get_mut(&self.address) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                counts.by_address.remove(&self.address);
            }
        }
    }
}

/// Connections in their handshake, from everywhere. A run of the largest size that comes back after
/// a restart of the master is let in at thousands per second with this many at a time; each holds
/// one descriptor and little memory.
const TOTAL_LIMIT: usize = 1024;

/// Of those, from one address: half, so that one site behind one address can start all of its
/// peers together, and one hostile address cannot shut out the others.
const ADDRESS_LIMIT: usize = TOTAL_LIMIT / 2;

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    #[test]
    fn one_address_cannot_take_all_room() {
        let half_open = HalfOpen::default();
        let one = IpAddr::from(Ipv4Addr::new(192, 0, 2, 1));
        let other = IpAddr::from(Ipv4Addr::new(192, 0, 2, 2));
        let permits: Vec<_> = (0..ADDRESS_LIMIT).map(|_| half_open.admit(one)).collect();
        assert!(permits.iter().all(Option::is_some));
        assert!(half_open.admit(one).is_none());
        assert!(half_open.admit(other).is_some());
    }

    #[test]
    fn room_comes_back_and_nothing_stays_behind() {
        let half_open = HalfOpen::default();
        for last in 0..=255 {
            let permit = half_open.admit(IpAddr::from(Ipv4Addr::new(192, 0, 2, last)));
            assert!(permit.is_some());
        }
        let counts = lock(&half_open.counts);
        assert_eq!(counts.total, 0);
        assert!(counts.by_address.is_empty());
    }
}
