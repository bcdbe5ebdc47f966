//! No innocent is punished: whoever is counted as lost, evicted or refused had a fault that
//! exceeded the stated limits. Promise 5, rules 12 to 15.

use std::time::Duration;

use crate::config::Timing;
use crate::ids::Time;
use crate::sim::core::HostId;
use crate::sim::faults::Faults;
use crate::wire::reason::{EvictReason, LossCause};

/// What the world knows about a member at the moment of its loss.
#[derive(Clone, Copy, Debug)]
pub(in crate::sim) struct Suspect {
    /// Where it lives.
    pub(in crate::sim) host: HostId,
    /// Its process lives, and has not given the membership up by itself.
    pub(in crate::sim) alive: bool,
    /// Its user has asked to leave.
    pub(in crate::sim) leaving: bool,
    /// Some pair of hosts cannot reach each other in some direction, or bits flip.
    pub(in crate::sim) edges_trouble: bool,
    /// Some operator has evicted somebody.
    pub(in crate::sim) operator: bool,
    /// There is, or was, another master.
    pub(in crate::sim) other_master: bool,
    /// The look-up of the master's name gave sometimes one, sometimes the other.
    pub(in crate::sim) led_astray: bool,
    /// Fetches fail, or programs deviate, in this world.
    pub(in crate::sim) state_trouble: bool,
}

/// A member was counted as lost.
pub(in crate::sim) fn lost(
    suspect: Suspect,
    cause: LossCause,
    now: Time,
    timing: Timing,
    faults: &Faults,
) -> Result<(), String> {
    if !suspect.alive {
        return Ok(());
    }
    let window = Time(
        now.0
            .saturating_sub((timing.peer_timeout * 2).as_nanos() as u64),
    );
    let excused = faults.excused(suspect.host, window, now);
    let fair = match cause {
        LossCause::Left => suspect.leaving,
        LossCause::Silent => excused * 2 >= timing.peer_timeout,
        LossCause::Disconnected => suspect.led_astray || excused * 2 >= timing.peer_timeout,
        LossCause::Died => {
            excused * 2 >= timing.peer_timeout
                || (excused > Duration::ZERO && faults.lanes_excused(suspect.host, window, now))
        }
        // Its reason is judged by itself.
        LossCause::Evicted => true,
    };
    if fair {
        return Ok(());
    }
    Err(format!(
        "a live member on {:?} was lost ({cause}); its faults in the last two peer time-outs \
         sum up to {excused:?}",
        suspect.host
    ))
}

/// A member was evicted.
pub(in crate::sim) fn evicted(suspect: Suspect, reason: &EvictReason) -> Result<(), String> {
    let fair = match reason {
        // Judged when it was lost.
        EvictReason::Lost(_) => true,
        EvictReason::Unreachable { .. } => suspect.edges_trouble || !suspect.alive,
        EvictReason::State { .. } => suspect.state_trouble,
        EvictReason::UnknownMember => suspect.other_master,
        EvictReason::Protocol { .. } => false,
        EvictReason::Operator => suspect.operator,
    };
    if fair {
        return Ok(());
    }
    Err(format!(
        "a member on {:?} was evicted without cause: {reason}",
        suspect.host
    ))
}
