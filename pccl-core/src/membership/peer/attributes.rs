//! What the user has been shown of the run. (Rules 1 and 16)

use crate::ids::Epoch;
use crate::planted::{Bug, planted};
use crate::types::Attributes;
use crate::wire::control::Stamp;

/// World sizes and epoch as last shown to the user by a verdict.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Shown {
    /// Of the highest view that a call has returned.
    stamp: Stamp,
    /// Highest epoch that a call has returned; goes into the next OPEN.
    epoch: Epoch,
}

impl Shown {
    /// A call returns with this stamp. Which calls do is rule 16's: joining, `update_topology`,
    /// `optimize_topology`, a synchronisation, or a collective that failed (when its user comes
    /// for the result). A committed
    /// collective does not: it was computed with the world size shown when it began, and who was
    /// lost since is told by the failure of the next use. Nor does a query.
    pub(super) fn show(&mut self, stamp: &Stamp) {
        if stamp.view >= self.stamp.view || planted(Bug::AttributesGoBack) {
            self.stamp = *stamp;
        }
        self.epoch = self.epoch.max(stamp.epoch);
    }

    /// What holds now, with the flag of the verdict that a call returns with.
    pub(super) fn stamp(&self, pending: bool) -> Stamp {
        Stamp {
            epoch: self.epoch,
            pending,
            ..self.stamp
        }
    }

    pub(super) fn attributes(&self) -> Attributes {
        self.stamp.attributes
    }

    pub(super) fn epoch(&self) -> Epoch {
        self.epoch
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::ViewId;

    fn stamp(view: u64, epoch: u64, world: u32) -> Stamp {
        Stamp {
            view: ViewId(view),
            epoch: Epoch(epoch),
            attributes: Attributes {
                group_world_size: world,
                ..Attributes::ALONE
            },
            pending: false,
        }
    }

    #[test]
    fn highest_view_wins_in_any_order() {
        let mut shown = Shown::default();
        assert_eq!(shown.attributes(), Attributes::ALONE);
        shown.show(&stamp(5, 3, 4));
        shown.show(&stamp(4, 2, 5));
        assert_eq!(shown.attributes().group_world_size, 4);
        assert_eq!(shown.epoch(), Epoch(3));
    }

    #[test]
    fn flag_is_the_verdicts_own() {
        let mut shown = Shown::default();
        shown.show(&stamp(5, 3, 4));
        assert!(shown.stamp(true).pending);
        assert!(!shown.stamp(false).pending);
        assert_eq!(shown.stamp(true).view, ViewId(5));
    }
}
