//! Without faults, and with programs that agree, nothing fails and nobody is lost.

use crate::event::Event;
use crate::wire::reason::LossCause;

/// A call failed in a calm world.
pub(in crate::sim) fn failed(what: &str) -> Result<(), String> {
    Err(format!("in a calm world: {what}"))
}

/// Something happened in a calm world.
pub(in crate::sim) fn event(event: &Event) -> Result<(), String> {
    match event {
        Event::Lost {
            cause: LossCause::Left,
            ..
        } => Ok(()),
        Event::Lost { .. }
        | Event::Evicted { .. }
        | Event::Refused { .. }
        | Event::EdgeBroken { .. }
        | Event::CannotDial { .. }
        | Event::VoteFailed { .. }
        | Event::Detached { .. }
        | Event::Stalled { .. } => Err(format!("in a calm world: {event:?}")),
        _ => Ok(()),
    }
}
