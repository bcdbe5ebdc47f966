//! Uses of keys: open ones, and verdicts that not everybody has yet. (Rule 2)

use std::collections::{BTreeMap, BTreeSet};

use crate::ids::{Digest, MemberId, Serial, Time};
use crate::planted::{Bug, planted};
use crate::types::{OpKind, ReduceDescriptor, StateOffer};
use crate::wire::control::{OpName, Outcome, SyncPlan, Verdict};
use crate::wire::reason::RequestCause;

/// Tells uses apart that bear the same name. Only the master knows it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(super) struct UseId(pub(super) u64);

/// One use of a key.
#[derive(Debug)]
pub(super) struct Use {
    pub(super) name: OpName,
    /// Who has opened it, and what each quoted then.
    pub(super) opened: BTreeMap<MemberId, Serial>,
    pub(super) done: BTreeMap<MemberId, Digest>,
    pub(super) content: Content,
    /// An abort request that waits for a word from the member that it complains about.
    pub(super) parked: Option<(MemberId, RequestCause)>,
    pub(super) since: Time,
    pub(super) verdict: Option<Verdict>,
    /// Who was sent the verdict and has not acknowledged it.
    pub(super) unacked: BTreeSet<MemberId>,
}

/// What a use does.
#[derive(Debug)]
pub(super) enum Content {
    /// An all-reduce, as first opened.
    Reduce(ReduceDescriptor, Digest),
    /// A synchronisation: what each member offers, and once all have, what each has to do.
    Sync {
        offers: BTreeMap<MemberId, StateOffer>,
        /// That their lists of tensors take, each counted once.
        bytes: usize,
        plans: Option<BTreeMap<MemberId, SyncPlan>>,
    },
    /// Forgotten, since the verdict is given.
    Decided,
}

impl Use {
    pub(super) fn new(name: OpName, content: Content, since: Time) -> Self {
        Self {
            name,
            opened: BTreeMap::new(),
            done: BTreeMap::new(),
            content,
            parked: None,
            since,
            verdict: None,
            unacked: BTreeSet::new(),
        }
    }

    pub(super) fn is_commit(&self) -> bool {
        matches!(&self.verdict, Some(v) if v.outcome == Outcome::Commit)
    }

    /// Whether nobody of a group of `members` needs the verdict any more: all have acknowledged
    /// it, and an abort has been met by everybody, so that nobody slips a step.
    fn is_over(&self, members: usize) -> bool {
        self.verdict.is_some()
            && self.unacked.is_empty()
            && (self.is_commit() || self.opened.len() >= members)
    }
}

/// The uses of one group.
#[derive(Debug, Default)]
pub(super) struct Uses {
    all: BTreeMap<UseId, Use>,
    names: BTreeMap<OpName, BTreeSet<UseId>>,
    undecided: BTreeSet<UseId>,
    /// Undecided synchronisations.
    syncs: BTreeSet<UseId>,
    commits: usize,
}

impl Uses {
    /// The use that a message means whose sender quoted `quoted` when it opened it: of those of
    /// the name the first commit with a later serial, else the one that is no commit.
    pub(super) fn find(&self, name: OpName, quoted: Serial) -> Option<UseId> {
        let candidates = self.names.get(&name)?.iter();
        candidates
            .filter_map(|id| {
                let entry = self.all.get(id)?;
                match &entry.verdict {
                    Some(v) if entry.is_commit() => {
                        let later = v.serial > quoted || planted(Bug::VerdictWithoutSerial);
                        later.then_some((false, v.serial, *id))
                    }
                    _ => Some((true, Serial::default(), *id)),
                }
            })
            .min()
            .map(|(_, _, id)| id)
    }

    pub(super) fn get(&self, id: UseId) -> Option<&Use> {
        self.all.get(&id)
    }

    pub(super) fn get_mut(&mut self, id: UseId) -> Option<&mut Use> {
        self.all.get_mut(&id)
    }

    pub(super) fn add(&mut self, id: UseId, entry: Use) {
        self.names.entry(entry.name).or_default().insert(id);
        self.undecided.insert(id);
        if entry.name.key.kind == OpKind::Sync {
            self.syncs.insert(id);
        }
        self.all.insert(id, entry);
    }

    /// Gives the verdict on a use.
    pub(super) fn decide(&mut self, id: UseId, verdict: Verdict) {
        let Some(entry) = self.all.get_mut(&id) else {
            return;
        };
        self.undecided.remove(&id);
        self.syncs.remove(&id);
        self.commits += usize::from(verdict.outcome == Outcome::Commit);
        entry.verdict = Some(verdict);
        entry.content = Content::Decided;
        entry.done.clear();
        entry.parked = None;
    }

    /// Forgets a use if nobody of a group of `members` needs it any more.
    pub(super) fn settle(&mut self, id: UseId, members: usize) {
        if self
            .all
            .get(&id)
            .is_some_and(|entry| entry.is_over(members))
        {
            self.forget(id);
        }
    }

    pub(super) fn forget(&mut self, id: UseId) {
        let Some(entry) = self.all.remove(&id) else {
            return;
        };
        self.undecided.remove(&id);
        self.syncs.remove(&id);
        self.commits -= usize::from(entry.is_commit());
        if let Some(same) = self.names.get_mut(&entry.name) {
            same.remove(&id);
            if same.is_empty() {
                self.names.remove(&entry.name);
            }
        }
    }

    pub(super) fn undecided(&self) -> &BTreeSet<UseId> {
        &self.undecided
    }

    pub(super) fn syncs(&self) -> &BTreeSet<UseId> {
        &self.syncs
    }

    pub(super) fn ids(&self) -> Vec<UseId> {
        self.all.keys().copied().collect()
    }

    /// Open uses and remembered aborts: what the limit on uses is about. Commits are few: nobody
    /// can have more of them unacknowledged than it may have uses in flight.
    pub(super) fn held(&self) -> usize {
        self.all.len() - self.commits
    }

    pub(super) fn len(&self) -> usize {
        self.all.len()
    }
}
