//! Election of the content that a group's shared state gets, once every member has made its offer.
//!
//! - A group expects one revision: that of the last synchronisation plus one. In its first
//!   synchronisation, the highest that a possible candidate offers. (Rule 22)
//! - Candidates are the members at the expected revision that may send: not RECEIVE_ONLY, not torn,
//!   not without any tensor. Those with equal tensors vote for one another; ties go to the list of
//!   the longest-standing member.
//! - Tensors are compared by key. Data type, number of elements and flag must be equal, or the
//!   member fails; content too, or the member fetches, unless the flag allows it to differ.
//! - Tensors that may differ are handed to members whose revision is old (newcomers start with
//!   them) and to torn ones, and left alone at all others.
//! - Members that break a rule fail alone: they neither count nor vote. (Rule 21)

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::sync::Arc;

use crate::ids::{ContentDigest, MemberId};
use crate::types::{DataType, StateEntry, StateOffer, SyncStrategy};
use crate::wire::control::FetchEntry;

#[cfg(test)]
mod tests;

/// Outcome of an election.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Election {
    /// Revision of the state that was elected; `None` if none was, and every member fails.
    pub revision: Option<u64>,
    /// Revision that the group expects next; unchanged if none was elected.
    pub next_expected: Option<u64>,
    /// Members that hold all of the elected state and may send it, longest-standing first. There
    /// is one wherever somebody has to fetch.
    ///
    /// Where content may differ, theirs does: such a tensor must come from one of them as a whole.
    pub seeders: Vec<MemberId>,
    /// One for every member that made an offer.
    pub verdicts: BTreeMap<MemberId, SyncVerdict>,
}

/// What an election means for one member.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum SyncVerdict {
    /// Nothing to fetch. If its revision was old, it takes on the elected one.
    UpToDate {
        /// Whether it is one of the seeders.
        may_seed: bool,
    },
    /// It has to fetch.
    Fetch {
        /// Which tensors, sorted by key; never empty. Members that fetch the same share one list.
        keys: Arc<Vec<FetchEntry>>,
        /// Whether it may serve to others what it has fetched and verified. (Rule 22)
        may_pass_on: bool,
    },
    /// It broke a rule or was outvoted; it leaves the group.
    Fail {
        /// Which rule, which key, what was expected, who has it.
        what: String,
    },
}

/// Decides what every member of a group has to do. `expected` is what the last election of the
/// group returned as [`Election::next_expected`], `None` in its first one.
pub fn elect(expected: Option<u64>, offers: &BTreeMap<MemberId, StateOffer>) -> Election {
    let mut verdicts = BTreeMap::new();
    let mut taking_part = BTreeMap::new();
    let enforcing: Vec<MemberId> = offers
        .iter()
        .filter(|(_, offer)| offer.strategy == SyncStrategy::EnforcePopular)
        .map(|(id, _)| *id)
        .collect();
    for (&id, offer) in offers {
        match broken_rule(offer, &enforcing) {
            Some(what) => fail(&mut verdicts, id, what),
            None => _ = taking_part.insert(id, offer),
        }
    }
    let revision = expected.or_else(|| highest_candidate(&taking_part));
    if let Some(revision) = revision {
        taking_part.retain(|id, offer| {
            let allowed = offer.revision <= revision;
            if !allowed {
                let what = revision_too_high(offer.revision, revision);
                fail(&mut verdicts, *id, what);
            }
            allowed
        });
    }
    let winner = revision.and_then(|revision| winner(revision, &taking_part));
    let Some(elected) = winner else {
        let what = nobody_to_elect(revision, &taking_part);
        for id in taking_part.into_keys() {
            fail(&mut verdicts, id, what.clone());
        }
        return Election {
            revision: None,
            next_expected: expected,
            seeders: Vec::new(),
            verdicts,
        };
    };
    let mut seeders = Vec::new();
    let mut lists = BTreeSet::new();
    for (id, offer) in taking_part {
        let verdict = judge(offer, &elected, &mut lists);
        if verdict == (SyncVerdict::UpToDate { may_seed: true }) {
            seeders.push(id);
        }
        verdicts.insert(id, verdict);
    }
    Election {
        revision: Some(elected.revision),
        // Nobody counts that far; the largest number is then simply expected again.
        next_expected: Some(elected.revision.saturating_add(1)),
        seeders,
        verdicts,
    }
}

/// What won.
struct Elected<'a> {
    revision: u64,
    entries: &'a [StateEntry],
    /// Who voted for it, longest-standing first.
    holders: Vec<MemberId>,
}

fn fail(verdicts: &mut BTreeMap<MemberId, SyncVerdict>, id: MemberId, what: String) {
    verdicts.insert(id, SyncVerdict::Fail { what });
}

/// Why a member cannot even be considered, whatever the others hold.
fn broken_rule(offer: &StateOffer, enforcing: &[MemberId]) -> Option<String> {
    if !offer.is_canonical() {
        return Some("its list of tensors is not sorted, or has a key twice".to_owned());
    }
    let mixed = offer.strategy != SyncStrategy::EnforcePopular && !enforcing.is_empty();
    mixed.then(|| {
        format!(
            "its strategy is {:?}; EnforcePopular, the strategy of {}, must be that of all or none",
            offer.strategy,
            names(enforcing),
        )
    })
}

/// What the first synchronisation of a group expects.
fn highest_candidate(taking_part: &BTreeMap<MemberId, &StateOffer>) -> Option<u64> {
    let candidates = taking_part.values().filter(|offer| may_send(offer));
    candidates.map(|offer| offer.revision).max()
}

/// Whether the member's content could be handed to others, were its revision the right one.
fn may_send(offer: &StateOffer) -> bool {
    offer.strategy != SyncStrategy::ReceiveOnly && !offer.torn && !offer.entries.is_empty()
}

/// The tensors with most votes.
fn winner<'a>(
    revision: u64,
    taking_part: &BTreeMap<MemberId, &'a StateOffer>,
) -> Option<Elected<'a>> {
    let mut lists = BTreeMap::<Vec<_>, Elected<'a>>::new();
    for (&id, &offer) in taking_part {
        if !may_send(offer) || offer.revision != revision {
            continue;
        }
        let ballot = offer.entries.iter().map(|e| (layout(e), content(e)));
        let list = lists.entry(ballot.collect()).or_insert_with(|| Elected {
            revision,
            entries: &offer.entries,
            holders: Vec::new(),
        });
        list.holders.push(id);
    }
    lists.into_values().max_by_key(|list| {
        let oldest = list.holders.first().copied();
        (list.holders.len(), Reverse(oldest))
    })
}

/// What must be equal at all members.
fn layout(entry: &StateEntry) -> (&str, DataType, u64, bool) {
    let flag = entry.allow_content_inequality;
    (&entry.key, entry.data_type, entry.count, flag)
}

/// What must become equal at all members.
fn content(entry: &StateEntry) -> Option<ContentDigest> {
    (!entry.allow_content_inequality).then_some(entry.digest)
}

/// What a member has to do whose revision is not above the elected one.
fn judge(
    offer: &StateOffer,
    elected: &Elected<'_>,
    lists: &mut BTreeSet<Arc<Vec<FetchEntry>>>,
) -> SyncVerdict {
    if let Some(what) = layout_difference(&offer.entries, elected) {
        return SyncVerdict::Fail { what };
    }
    let old = offer.revision < elected.revision;
    // Layouts are equal, so entries lie side by side.
    let pairs = offer.entries.iter().zip(elected.entries);
    let keys: Vec<FetchEntry> = pairs
        .filter(|(own, elected)| match content(elected) {
            Some(digest) => own.digest != digest,
            None => old || offer.torn,
        })
        .map(|(_, elected)| FetchEntry {
            key: elected.key.clone(),
            digest: content(elected),
        })
        .collect();
    if offer.strategy == SyncStrategy::SendOnly && (old || !keys.is_empty()) {
        return SyncVerdict::Fail {
            what: not_elected(offer, elected),
        };
    }
    if keys.is_empty() {
        return SyncVerdict::UpToDate {
            may_seed: !old && may_send(offer),
        };
    }
    let keys = match lists.get(&keys) {
        Some(same) => same.clone(),
        None => {
            let keys = Arc::new(keys);
            lists.insert(keys.clone());
            keys
        }
    };
    SyncVerdict::Fetch {
        keys,
        may_pass_on: offer.strategy == SyncStrategy::EnforcePopular && !offer.torn,
    }
}

/// The first key, in their order, at which a member's tensors are not laid out as the elected ones.
fn layout_difference(own: &[StateEntry], elected: &Elected<'_>) -> Option<String> {
    let holders = names(&elected.holders);
    for expected in elected.entries {
        let key = short(&expected.key);
        let expects = describe(expected);
        let Some(found) = find(own, &expected.key) else {
            return Some(format!(
                "its state lacks the tensor {key}, which is {expects} in the elected state of \
                 {holders}",
            ));
        };
        if layout(found) != layout(expected) {
            let found = describe(found);
            return Some(format!(
                "its tensor {key} is {found}, but {expects} in the elected state of {holders}",
            ));
        }
    }
    let extra = own
        .iter()
        .find(|entry| find(elected.entries, &entry.key).is_none())?;
    let key = short(&extra.key);
    Some(format!(
        "its state has the tensor {key}, which the elected state of {holders} lacks"
    ))
}

fn find<'a>(entries: &'a [StateEntry], key: &str) -> Option<&'a StateEntry> {
    let place = entries.binary_search_by(|entry| entry.key.as_str().cmp(key));
    entries.get(place.ok()?)
}

fn describe(entry: &StateEntry) -> String {
    let flag = if entry.allow_content_inequality {
        "content may differ"
    } else {
        "content must be equal"
    };
    format!("{} x {:?} ({flag})", entry.count, entry.data_type)
}

fn revision_too_high(offered: u64, expected: u64) -> String {
    format!(
        "its revision {offered} is above {expected}, the one expected: raise it by one between \
         synchronisations"
    )
}

/// Why a member that only sends cannot go on.
fn not_elected(offer: &StateOffer, elected: &Elected<'_>) -> String {
    let holders = names(&elected.holders);
    let revision = elected.revision;
    let mut pairs = offer.entries.iter().zip(elected.entries);
    let reason = if offer.revision < revision {
        format!(
            "its revision is {}, the elected one {revision}",
            offer.revision
        )
    } else if let Some((own, expected)) = pairs.find(|(a, b)| content(a) != content(b)) {
        format!(
            "its tensor {} has digest {}, the elected one {}",
            short(&own.key),
            own.digest,
            expected.digest,
        )
    } else {
        "its last fetch broke off, so that its content may be torn".to_owned()
    };
    format!("it only sends, but the state of {holders} was elected: {reason}")
}

/// Why nobody of those that break no rule is a candidate.
fn nobody_to_elect(revision: Option<u64>, taking_part: &BTreeMap<MemberId, &StateOffer>) -> String {
    let mut what = "no member has a state that may be handed out:".to_owned();
    for (id, offer) in taking_part.iter().take(NAMED_AT_MOST) {
        let _ = match (offer.strategy, revision) {
            (SyncStrategy::ReceiveOnly, _) => write!(what, " {id} only receives;"),
            _ if offer.entries.is_empty() => write!(what, " {id} has an empty state;"),
            _ if offer.torn => write!(what, " the last fetch of {id} broke off;"),
            (_, Some(revision)) => write!(
                what,
                " {id} is at revision {}, expected is {revision};",
                offer.revision
            ),
            (_, None) => Ok(()),
        };
    }
    match taking_part.len() {
        0 => what.push_str(" all break a rule"),
        n if n > NAMED_AT_MOST => {
            let _ = write!(what, " and {} more", n - NAMED_AT_MOST);
        }
        _ => {
            what.pop();
        }
    }
    what
}

fn names(members: &[MemberId]) -> String {
    let mut text = String::new();
    for (i, member) in members.iter().take(NAMED_AT_MOST).enumerate() {
        let comma = if i > 0 { ", " } else { "" };
        let _ = write!(text, "{comma}{member}");
    }
    if members.len() > NAMED_AT_MOST {
        let _ = write!(text, " and {} more", members.len() - NAMED_AT_MOST);
    }
    text
}

/// A key as a message quotes it.
fn short(key: &str) -> String {
    let mut start: String = key.chars().take(KEY_CHARACTERS).collect();
    if start.len() < key.len() {
        start.push_str("...");
    }
    format!("{start:?}")
}

/// Members named in a message; a reason must stay readable, and travels to every member.
const NAMED_AT_MOST: usize = 8;

/// Characters of a key quoted in a message, for the same reasons.
const KEY_CHARACTERS: usize = 100;
