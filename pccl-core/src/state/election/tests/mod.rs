mod plain;
mod rules;
mod scenarios;

use super::*;
use SyncStrategy::{EnforcePopular, ReceiveOnly, SendOnly};

const A: MemberId = MemberId(1);
const B: MemberId = MemberId(2);
const C: MemberId = MemberId(3);

/// A tensor of 1,024 bytes; `content` stands for its digest.
fn tensor(key: &str, content: u128) -> StateEntry {
    StateEntry {
        key: key.to_owned(),
        data_type: DataType::U8,
        count: 1024,
        allow_content_inequality: false,
        digest: ContentDigest::fast(content),
    }
}

fn loose(key: &str, content: u128) -> StateEntry {
    StateEntry {
        allow_content_inequality: true,
        ..tensor(key, content)
    }
}

fn offer(strategy: SyncStrategy, revision: u64, entries: &[StateEntry]) -> StateOffer {
    StateOffer::new(revision, strategy, entries.to_vec(), false).unwrap()
}

/// The usual offer of these scenarios: one tensor, revision 0.
fn simple(strategy: SyncStrategy, content: u128) -> StateOffer {
    offer(strategy, 0, &[tensor("key1", content)])
}

fn torn(offer: StateOffer) -> StateOffer {
    StateOffer {
        torn: true,
        ..offer
    }
}

/// A group whose members do as the elections say.
struct Group {
    expected: Option<u64>,
    offers: BTreeMap<MemberId, StateOffer>,
}

impl Group {
    fn new(offers: impl IntoIterator<Item = StateOffer>) -> Self {
        Self {
            expected: None,
            offers: (1..).map(MemberId).zip(offers).collect(),
        }
    }

    /// Holds an election, brings content and revision of those that do not fail up to date, and
    /// removes the others.
    fn sync(&mut self) -> Election {
        let election = elect(self.expected, &self.offers);
        assert_eq!(election.verdicts.len(), self.offers.len());
        self.expected = election.next_expected;
        let seeder = election
            .seeders
            .first()
            .map(|id| self.offers[id].entries.clone());
        for (id, verdict) in &election.verdicts {
            let SyncVerdict::Fail { .. } = verdict else {
                let offer = self.offers.get_mut(id).unwrap();
                for key in fetched(&election, *id) {
                    let at = offer.entries.iter().position(|e| e.key == key).unwrap();
                    Arc::make_mut(&mut offer.entries)[at] = seeder.as_ref().unwrap()[at].clone();
                }
                offer.revision = election.revision.unwrap();
                continue;
            };
            self.offers.remove(id);
        }
        election
    }

    fn step(&mut self, id: MemberId, revision: u64) {
        self.offers.get_mut(&id).unwrap().revision = revision;
    }

    fn content(&self, id: MemberId) -> Vec<u128> {
        self.offers[&id]
            .entries
            .iter()
            .map(|e| u128::from_le_bytes(e.digest.0[..16].try_into().unwrap()))
            .collect()
    }

    fn assert_equal(&self) {
        let contents: BTreeSet<_> = self.offers.keys().map(|id| self.content(*id)).collect();
        assert_eq!(contents.len(), 1);
    }
}

fn fetched(election: &Election, id: MemberId) -> Vec<String> {
    match &election.verdicts[&id] {
        SyncVerdict::Fetch { keys, .. } => keys.iter().map(|fetch| fetch.key.clone()).collect(),
        _ => Vec::new(),
    }
}

fn failed(election: &Election) -> Vec<MemberId> {
    let failed = |verdict: &SyncVerdict| matches!(verdict, SyncVerdict::Fail { .. });
    election
        .verdicts
        .iter()
        .filter(|(_, v)| failed(v))
        .map(|(id, _)| *id)
        .collect()
}

fn reason(election: &Election, id: MemberId) -> &str {
    match &election.verdicts[&id] {
        SyncVerdict::Fail { what } => what,
        other => panic!("{id} did not fail: {other:?}"),
    }
}

/// Nobody fails and nobody fetches.
fn assert_quiet(election: &Election) {
    for (id, verdict) in &election.verdicts {
        assert!(
            matches!(verdict, SyncVerdict::UpToDate { .. }),
            "{id}: {verdict:?}"
        );
    }
}
