//! State of the run for operators.

use serde::Serialize;

use super::{Master, NAMED};
use crate::ids::{Epoch, Incarnation, MemberId, PeerGroup, Round, ViewId};

/// State of a run, as `pccl-master status` prints it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct MasterStatus {
    /// Names the run.
    pub run: String,
    /// Life of the master.
    pub incarnation: Incarnation,
    /// Version of the membership.
    pub view: ViewId,
    /// Unanimous calls completed.
    pub round: Round,
    /// Queries completed since.
    pub queries: Round,
    /// Accepted members.
    pub members: usize,
    /// Newcomers that wait for admission and have a plan.
    pub pending: usize,
    /// Members that have voted for the unanimous call that is open, and how many tries at it have
    /// failed.
    pub votes: usize,
    /// Failed tries at the next round.
    pub failed_tries: u32,
    /// Pairs of members of which a newcomer is one, or that have lost their lanes.
    pub edges_tried: usize,
    /// The groups that have a member or a newcomer.
    pub groups: Vec<GroupStatus>,
}

/// One group of a [`MasterStatus`].
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct GroupStatus {
    /// Its number.
    pub group: PeerGroup,
    /// Version of its members and their order.
    pub epoch: Epoch,
    /// Members in the order of the ring.
    pub ring: Vec<MemberStatus>,
    /// Newcomers.
    pub newcomers: Vec<MemberStatus>,
    /// Operations that wait for their verdict.
    pub open_operations: usize,
    /// Verdicts that somebody may still need.
    pub kept_verdicts: usize,
    /// Revision of the shared state that the next synchronisation expects.
    pub expected_revision: Option<u64>,
}

/// One member or newcomer of a [`MasterStatus`].
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct MemberStatus {
    /// Its number.
    pub id: MemberId,
    /// Its name and where it was seen.
    pub name: String,
    /// Its key; none in a run without tickets.
    pub key: Option<String>,
    /// Whether it has a connection to the master.
    pub connected: bool,
    /// Milliseconds since its last sign of life.
    pub silent_ms: u64,
    /// Whether it waits in a unanimous call.
    pub voted: bool,
    /// Members that it cannot exchange data with, the first few.
    pub unreachable: Vec<MemberId>,
}

impl Master {
    /// State of the run, for operators.
    pub fn status(&self) -> MasterStatus {
        let (failed_tries, _) = self.votes.failed_tries();
        let groups = self.groups.iter().map(|(number, group)| {
            let open = group.uses.undecided().len();
            let members = |ids: &mut dyn Iterator<Item = &MemberId>| {
                ids.filter_map(|id| self.member_status(*id)).collect()
            };
            GroupStatus {
                group: *number,
                epoch: group.epoch,
                ring: members(&mut group.ring.iter()),
                newcomers: members(&mut group.newcomers.iter()),
                open_operations: open,
                kept_verdicts: group.uses.len() - open,
                expected_revision: group.expected_revision,
            }
        });
        MasterStatus {
            run: self.run.to_string(),
            incarnation: self.incarnation,
            view: self.world.view,
            round: self.votes.round,
            queries: self.votes.queries,
            members: self.world.members,
            pending: self.pending.len(),
            votes: self.votes.cast.len(),
            failed_tries,
            edges_tried: self.edges.len(),
            groups: groups.collect(),
        }
    }

    fn member_status(&self, id: MemberId) -> Option<MemberStatus> {
        let node = self.nodes.get(&id)?;
        let mut unreachable = self.broken_to(id);
        unreachable.truncate(NAMED);
        let silent = self.now.since(node.heard).as_millis();
        Some(MemberStatus {
            id,
            name: node.label(),
            key: node.key.map(|key| key.to_string()),
            connected: node.conn.is_some(),
            silent_ms: u64::try_from(silent).unwrap_or(u64::MAX),
            voted: self.votes.cast.contains_key(&id),
            unreachable,
        })
    }
}
