//! Synchronisations: the election when all have offered, and who fails alone. (Rules 21, 22)

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::Master;
use super::loss::Departure;
use super::uses::{Content, UseId};
use crate::event::Event;
use crate::ids::{MemberId, PeerGroup, Token};
use crate::state::election::{Election, SyncVerdict, elect};
use crate::types::{StateEntry, StateOffer};
use crate::wire::control::{Down, FetchEntry, SyncPlan};
use crate::wire::reason::{AbortReason, EvictReason, LossCause};

/// Tensors named when a member's state has diverged.
const KEYS_NAMED: usize = 8;

/// Most different reasons that an abort quotes when no state can be elected.
const REASONS_QUOTED: usize = 8;

impl Master {
    /// A member offers its state. One that comes back gets its plan again.
    pub(super) fn offer(
        &mut self,
        group: PeerGroup,
        use_id: UseId,
        id: MemberId,
        mut offer: StateOffer,
    ) {
        let limit = self.config.limits.lists;
        let Some(entry) = self.use_mut(group, use_id) else {
            return;
        };
        let Content::Sync {
            offers,
            bytes,
            plans,
        } = &mut entry.content
        else {
            return;
        };
        match plans {
            None => {
                // Members that are in step offer the same: it is kept once.
                let same = offers.values().find(|o| o.entries == offer.entries);
                match same {
                    Some(same) => offer.entries = same.entries.clone(),
                    None => *bytes += offer.entries.iter().map(bytes_of).sum::<usize>(),
                }
                offers.insert(id, offer);
                let members = offers.len();
                if self.lists_kept(group) > limit {
                    let what = format!(
                        "the lists of tensors of {members} members, as far as they differ, are more \
                         than the {limit} bytes that the master takes"
                    );
                    self.abort(group, use_id, AbortReason::State { what });
                }
            }
            Some(plans) => {
                if let Some(plan) = plans.get(&id).cloned() {
                    self.send(id, Down::SyncPlan(plan));
                }
            }
        }
    }

    /// Bytes of the lists of a group's open synchronisations. Members that mean well have one at a
    /// time; others may open as many as there are uses.
    fn lists_kept(&self, group: PeerGroup) -> usize {
        let uses = self.groups.get(&group).map(|g| &g.uses);
        let open = uses.into_iter().flat_map(|uses| {
            let ids = uses.syncs().iter();
            ids.filter_map(|id| uses.get(*id))
        });
        let bytes = open.map(|entry| match &entry.content {
            Content::Sync { bytes, .. } => *bytes,
            Content::Reduce(..) | Content::Decided => 0,
        });
        bytes.sum()
    }

    /// Elects the state once all members of the group have offered theirs.
    pub(super) fn elect(&mut self, number: PeerGroup, use_id: UseId) {
        let Some(group) = self.groups.get(&number) else {
            return;
        };
        let Some(entry) = group.uses.get(use_id) else {
            return;
        };
        let Content::Sync {
            offers,
            bytes,
            plans: None,
        } = &entry.content
        else {
            return;
        };
        // What is to be fetched is a part of what was offered.
        let bytes = *bytes;
        if offers.len() < group.ring.len() {
            return;
        }
        let election = elect(group.expected_revision, offers);
        let Some(revision) = election.revision else {
            let what = quoted(&election.verdicts);
            return self.abort(number, use_id, AbortReason::State { what });
        };
        let diverged = diverged(number, group.expected_revision, revision, offers, &election);
        let (plans, failing) = self.plans(number, use_id, revision, election);
        for event in diverged {
            self.event(event);
        }
        for (id, plan) in &plans {
            self.send(*id, Down::SyncPlan(plan.clone()));
        }
        if let Some(entry) = self.use_mut(number, use_id) {
            entry.content = Content::Sync {
                offers: BTreeMap::new(),
                bytes,
                plans: Some(plans),
            };
        }
        if !failing.is_empty() {
            self.fail_alone(use_id, failing);
        }
    }

    /// Whether a synchronisation has been elected and is being carried out.
    pub(super) fn is_planned(&self, group: PeerGroup, use_id: UseId) -> bool {
        let entry = self.groups.get(&group).and_then(|g| g.uses.get(use_id));
        entry.is_some_and(|e| matches!(e.content, Content::Sync { plans: Some(_), .. }))
    }

    /// Members fail and leave the group; the synchronisation goes on for the others.
    pub(super) fn fail_alone(&mut self, use_id: UseId, failing: Vec<(MemberId, EvictReason)>) {
        let failing = failing
            .into_iter()
            .map(|(id, reason)| (id, Departure::Evicted(reason)));
        self.lose(failing.collect(), Some(use_id));
    }

    /// Somebody was lost: a synchronisation that is being carried out goes on with the seeders that
    /// are left, if whoever still fetches has one. Who leaves while it is open means its end, as
    /// of any operation. (Rules 13, 21)
    pub(super) fn goes_on(
        &mut self,
        number: PeerGroup,
        use_id: UseId,
        reason: &AbortReason,
    ) -> bool {
        let lost = match reason {
            AbortReason::MemberLost { cause, .. } => *cause != LossCause::Left,
            _ => false,
        };
        let members: BTreeSet<MemberId> = self.ring(number).into_iter().collect();
        let Some(entry) = self.use_mut(number, use_id).filter(|_| lost) else {
            return false;
        };
        let Content::Sync {
            plans: Some(plans), ..
        } = &mut entry.content
        else {
            return false;
        };
        plans.retain(|id, _| members.contains(id));
        let mut changed = Vec::new();
        for (id, plan) in plans {
            let before = (plan.seeders.len(), plan.readers.len());
            plan.seeders.retain(|info| members.contains(&info.id));
            plan.readers.retain(|(id, _)| members.contains(id));
            let fetches = !plan.fetch.is_empty() && !entry.done.contains_key(id);
            if fetches && plan.seeders.is_empty() {
                return false;
            }
            if before != (plan.seeders.len(), plan.readers.len()) {
                changed.push((*id, plan.clone()));
            }
        }
        for (id, plan) in changed {
            self.send(id, Down::SyncPlan(plan));
        }
        true
    }

    /// A synchronisation commits: what the next one expects follows from it. (Rule 22)
    pub(super) fn synchronised(&mut self, number: PeerGroup, use_id: UseId) {
        let Some(group) = self.groups.get_mut(&number) else {
            return;
        };
        let plan = group
            .uses
            .get(use_id)
            .and_then(|entry| match &entry.content {
                Content::Sync {
                    plans: Some(plans), ..
                } => plans.values().next(),
                _ => None,
            });
        if let Some(plan) = plan {
            group.expected_revision = Some(plan.revision.saturating_add(1));
        }
    }

    /// What each member has to do, and who fails.
    fn plans(
        &self,
        number: PeerGroup,
        use_id: UseId,
        revision: u64,
        election: Election,
    ) -> (BTreeMap<MemberId, SyncPlan>, Vec<(MemberId, EvictReason)>) {
        let mut plans = BTreeMap::new();
        let mut failing = Vec::new();
        let entry = self.groups.get(&number).and_then(|g| g.uses.get(use_id));
        let Some(entry) = entry else {
            return (plans, failing);
        };
        let fetches = |verdict: &SyncVerdict| matches!(verdict, SyncVerdict::Fetch { .. });
        let readers = election
            .verdicts
            .iter()
            .filter(|(_, verdict)| fetches(verdict));
        let readers: Vec<(MemberId, Token)> = readers
            .filter_map(|(id, _)| Some((*id, self.nodes.get(id)?.token)))
            .collect();
        let seeders = self.infos(election.seeders.iter().copied());
        let serving: BTreeSet<MemberId> = election.seeders.iter().copied().collect();
        for (id, verdict) in election.verdicts {
            let fetch: Arc<Vec<FetchEntry>> = match verdict {
                SyncVerdict::UpToDate { .. } => Arc::default(),
                SyncVerdict::Fetch { keys, .. } => keys,
                SyncVerdict::Fail { what } => {
                    failing.push((id, EvictReason::State { what }));
                    continue;
                }
            };
            let plan = SyncPlan {
                op: entry.name,
                quoted: entry.opened.get(&id).copied().unwrap_or_default(),
                revision,
                seeders: match fetch.is_empty() {
                    true => Vec::new(),
                    false => seeders.clone(),
                },
                fetch,
                readers: match serving.contains(&id) {
                    true => readers.clone(),
                    false => Vec::new(),
                },
            };
            plans.insert(id, plan);
        }
        (plans, failing)
    }
}

/// Bytes that a tensor takes in a list.
fn bytes_of(entry: &StateEntry) -> usize {
    size_of::<StateEntry>() + entry.key.len()
}

/// Members whose content differs from the elected one, and should not: not in the first
/// synchronisation, to which everybody may come with something else.
fn diverged(
    group: PeerGroup,
    expected: Option<u64>,
    revision: u64,
    offers: &BTreeMap<MemberId, StateOffer>,
    election: &Election,
) -> Vec<Event> {
    let Some(since) = expected.and_then(|next| next.checked_sub(1)) else {
        return Vec::new();
    };
    let holders = super::few(election.seeders.iter().copied());
    let event = |(id, verdict): (&MemberId, &SyncVerdict)| {
        let SyncVerdict::Fetch { keys, .. } = verdict else {
            return None;
        };
        let offer = offers.get(id)?;
        let equal = keys.iter().filter(|entry| entry.digest.is_some());
        let keys: Vec<String> = equal.take(KEYS_NAMED).map(|e| e.key.clone()).collect();
        let odd = offer.revision == revision && !offer.torn && !keys.is_empty();
        odd.then(|| Event::Diverged {
            group,
            member: *id,
            revision,
            keys,
            holders: holders.clone(),
            since,
        })
    };
    election.verdicts.iter().filter_map(event).collect()
}

/// Why nobody's state can be elected, once per reason.
fn quoted(verdicts: &BTreeMap<MemberId, SyncVerdict>) -> String {
    let mut reasons = BTreeMap::<&str, Vec<MemberId>>::new();
    for (id, verdict) in verdicts {
        if let SyncVerdict::Fail { what } = verdict {
            reasons.entry(what).or_default().push(*id);
        }
    }
    let mut text = String::from("no state can be elected");
    for (what, who) in reasons.into_iter().take(REASONS_QUOTED) {
        let who = super::few(who);
        text.push_str(&format!("; {who:?}: {what}"));
    }
    text
}
