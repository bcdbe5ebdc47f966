//! Events for people: every event of a machine goes to `tracing`.

use crate::event::Event;
use crate::ids::MemberId;

/// Logs an event of the master.
pub(crate) fn at_master(event: &Event) {
    match weight(event) {
        Weight::Trouble => tracing::warn!(target: "pccl::master", "{event}"),
        Weight::Change => tracing::info!(target: "pccl::master", "{event}"),
        Weight::Course => tracing::debug!(target: "pccl::master", "{event}"),
    }
}

/// Logs an event of a peer. `own` is its number, once it has one.
pub(crate) fn at_peer(own: Option<MemberId>, name: &str, event: &Event) {
    let peer = own.map(tracing::field::debug);
    match weight(event) {
        Weight::Trouble => tracing::warn!(target: "pccl::peer", peer, name, "{event}"),
        Weight::Change => tracing::info!(target: "pccl::peer", peer, name, "{event}"),
        Weight::Course => tracing::debug!(target: "pccl::peer", peer, name, "{event}"),
    }
}

enum Weight {
    /// Somebody should look at it.
    Trouble,
    /// The run is not what it was.
    Change,
    /// It goes on.
    Course,
}

fn weight(event: &Event) -> Weight {
    match event {
        Event::Refused { .. }
        | Event::Lost { .. }
        | Event::Evicted { .. }
        | Event::Detached { .. }
        | Event::VoteFailed { .. }
        | Event::Waiting { .. }
        | Event::CannotDial { .. }
        | Event::EdgeBroken { .. }
        | Event::Diverged { .. }
        | Event::Stalled { .. } => Weight::Trouble,
        Event::Registered { .. }
        | Event::Admitted { .. }
        | Event::Attached { .. }
        | Event::Group { .. } => Weight::Change,
        Event::Verdict { .. } | Event::FirstSegmentSent { .. } | Event::Completed { .. } => {
            Weight::Course
        }
    }
}
