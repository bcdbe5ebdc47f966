//! What the master knows of one group.

use std::collections::{BTreeMap, BTreeSet};

use super::Master;
use super::uses::{UseId, Uses};
use crate::event::Event;
use crate::ids::{Epoch, MemberId, PeerGroup, Time, ViewId};
use crate::types::{Attributes, Choice};
use crate::wire::control::{Down, GroupView, Stamp};

/// A group that has members or newcomers.
#[derive(Debug, Default)]
pub(super) struct Group {
    pub(super) epoch: Epoch,
    /// Its members, in the order of the ring.
    pub(super) ring: Vec<MemberId>,
    /// Which algorithms go with that order, and for what: as published with the epoch. (Rule 10)
    pub(super) choice: Choice,
    pub(super) newcomers: BTreeSet<MemberId>,
    /// The ring with those newcomers in it that have a plan: what it becomes when they are
    /// admitted.
    pub(super) planned: Vec<MemberId>,
    /// Members that wait in a call that completes a round.
    pub(super) voters: BTreeSet<MemberId>,
    pub(super) uses: Uses,
    /// Members about which an edge report was made and that have not answered since. (Rule 12)
    pub(super) suspects: BTreeMap<MemberId, Doubt>,
    /// Revision that the next synchronisation expects; none before the first one.
    pub(super) expected_revision: Option<u64>,
}

/// What is doubtful about a member until it answers.
#[derive(Debug)]
pub(super) struct Doubt {
    /// Since when. What it sent before that may be read a little later.
    pub(super) since: Time,
    /// Who reported it.
    pub(super) by: BTreeSet<MemberId>,
    /// Uses whose abort waits for its answer.
    pub(super) uses: BTreeSet<UseId>,
}

impl Doubt {
    pub(super) fn new(since: Time) -> Self {
        Self {
            since,
            by: BTreeSet::new(),
            uses: BTreeSet::new(),
        }
    }
}

/// Sizes of the run, counted anew whenever members come or go.
#[derive(Debug, Default)]
pub(super) struct World {
    pub(super) view: ViewId,
    pub(super) members: usize,
    groups: u32,
    largest: u32,
    /// Highest epoch of a group that is gone. A group that is founded again goes on from here, so
    /// that nothing of its former life is taken for the new one.
    pub(super) past_epoch: Epoch,
}

impl Master {
    /// The stamp of everything that is decided now for a group. (Rule 16)
    pub(super) fn stamp(&self, group: PeerGroup) -> Stamp {
        let (epoch, size) = self
            .groups
            .get(&group)
            .map_or((Epoch(0), 0), |g| (g.epoch, g.ring.len()));
        Stamp {
            view: self.world.view,
            epoch,
            attributes: Attributes {
                global_world_size: u32::try_from(self.world.members).unwrap_or(u32::MAX),
                group_world_size: u32::try_from(size).unwrap_or(u32::MAX),
                peer_groups: self.world.groups,
                largest_group_world_size: self.world.largest,
            },
            pending: !self.pending.is_empty(),
        }
    }

    /// Counts members and groups.
    pub(super) fn count_world(&mut self) {
        let sizes = || {
            self.groups
                .values()
                .map(|g| g.ring.len())
                .filter(|n| *n > 0)
        };
        self.world.members = sizes().sum();
        self.world.groups = u32::try_from(sizes().count()).unwrap_or(u32::MAX);
        self.world.largest = u32::try_from(sizes().max().unwrap_or(0)).unwrap_or(u32::MAX);
    }

    /// A group as its members are told of it. (Rule 10: the order is the master's.)
    pub(super) fn group_view(&self, group: PeerGroup) -> GroupView {
        let Some(g) = self.groups.get(&group) else {
            return GroupView::default();
        };
        let info = |id: &MemberId| self.nodes.get(id).map(|node| node.info(*id));
        GroupView {
            epoch: g.epoch,
            ring: g.ring.iter().filter_map(info).collect(),
            choice: g.choice,
        }
    }

    /// Members of a group, in the order of the ring.
    pub(super) fn ring(&self, group: PeerGroup) -> Vec<MemberId> {
        self.groups
            .get(&group)
            .map_or_else(Vec::new, |g| g.ring.clone())
    }

    /// Tells a group what it is now.
    pub(super) fn publish_group(&mut self, group: PeerGroup) {
        let view = self.group_view(group);
        for id in self.ring(group) {
            self.send(id, Down::Group(view.clone()));
        }
        self.group_event(group);
    }

    /// Tells people what a group is now.
    pub(super) fn group_event(&mut self, group: PeerGroup) {
        if let Some(g) = self.groups.get(&group) {
            let (epoch, ring) = (g.epoch, g.ring.clone());
            self.event(Event::Group { group, epoch, ring });
        }
    }

    /// What becomes of a group when its last member is gone: it forgets its operations and its
    /// state, and itself if nobody waits to join it. (Rule 22)
    pub(super) fn dissolve(&mut self, group: PeerGroup) {
        self.clear_uses(group);
        let Some(g) = self.groups.get_mut(&group) else {
            return;
        };
        g.voters.clear();
        g.suspects.clear();
        g.expected_revision = None;
        if g.newcomers.is_empty() {
            self.world.past_epoch = self.world.past_epoch.max(g.epoch);
            self.groups.remove(&group);
        }
    }
}
